"""The metadata of a follower: a copy takes the place of everything, and what is there already is not applied again.

The numbers in parentheses are the invariants in the header of ``warren/replication/metadata_copy.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.msgstore.files.store_errors import StoreFailedError
from warren.replication.entries import Catalogue as CatalogueEntry
from warren.replication.entries import CatalogueCopy
from warren.replication.metadata_copy import MetadataCopy
from warren.replication.replica_store import EntryRefusedError
from warren.server.catalogue.catalogue import Catalogue
from warren.vhosts.metadata import (
    MetadataChange,
    PermissionDelete,
    PermissionPut,
    QueueDelete,
    QueuePut,
    UserDelete,
    UserPut,
    VhostDelete,
    VhostPut,
)
from warren.vhosts.metadata_lane import encode_change

STORE = b"s" * 16
ANNA = UserPut("anna", "hash", "scrypt", ("administrator",))


class Place:
    def __init__(self, directory: Path) -> None:
        self._url = f"sqlite:///{directory / 'catalogue.db'}"
        self.open()

    def open(self) -> None:
        self.catalogue = Catalogue.open(self._url, first_contents=False)
        self.copy = MetadataCopy(self.catalogue)
        self.copy.begin(STORE)

    def copied(self, applied: int, *pieces: list[MetadataChange]) -> None:
        for at, changes in enumerate(pieces, 1):
            self.copy.apply(CatalogueCopy(applied, at < len(pieces), records(*changes)))

    def changed(self, first: int, *changes: MetadataChange) -> None:
        self.copy.apply(CatalogueEntry(0, first, records(*changes)))

    def queues(self) -> list[str]:
        return [change.name for change in self.catalogue.load() if isinstance(change, QueuePut)]


def records(*changes: MetadataChange) -> tuple[bytes, ...]:
    return tuple(encode_change(change) for change in changes)


def queue(name: str) -> QueuePut:
    return QueuePut("/", name, False, b"\0\0\0\0", 1)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.copy.close()


def test_a_copy_takes_the_place_of_everything_with_its_last_piece(place: Place) -> None:
    """(2)"""
    place.copied(3, [VhostPut("/"), queue("old"), UserPut("bob", "hash", "scrypt", ())])
    assert place.queues() == ["old"]
    place.copy.apply(CatalogueCopy(9, True, records(VhostPut("/"), queue("new"))))
    assert place.queues() == ["old"]
    assert set(place.copy.users) == {"bob"}
    place.copy.apply(CatalogueCopy(9, False, records(ANNA)))
    assert place.queues() == ["new"]
    assert place.copy.users == {"anna": ANNA}
    assert place.copy.applied(STORE) == 9


def test_pieces_of_a_link_that_ended_are_worth_nothing(place: Place) -> None:
    """(2)"""
    place.copy.apply(CatalogueCopy(9, True, records(VhostPut("/"), queue("half"))))
    place.copy.begin(STORE)
    place.copied(9, [VhostPut("/"), queue("whole")])
    assert place.queues() == ["whole"]


def test_changes_that_a_copy_has_already_are_not_applied_again(place: Place) -> None:
    """(3)"""
    place.copied(10, [VhostPut("/"), queue("kept")])
    # Changes 8 and 9 are in the copy, which no longer has a queue of that name.
    place.changed(8, queue("deleted since"), QueueDelete("/", "deleted since"), queue("later"))
    assert place.queues() == ["kept", "later"]
    place.changed(9, queue("deleted since"))
    assert place.queues() == ["kept", "later"]
    assert place.copy.applied(STORE) == 11


def test_changes_that_leave_others_out_are_refused_and_a_copy_of_everything_mends_that(place: Place) -> None:
    """(5): the leader's log forgets what is applied here, so it would be lost with the leader."""
    place.copied(3, [VhostPut("/"), queue("kept")])
    with pytest.raises(EntryRefusedError, match="changes from 5 on, and here are those below 3"):
        place.changed(5, queue("late"))
    assert place.queues() == ["kept"] and place.copy.applied(STORE) == 3
    place.copied(6, [VhostPut("/"), queue("kept"), queue("between"), queue("late")])
    place.changed(6, queue("next"))
    assert place.queues() == ["between", "kept", "late", "next"]


def test_a_record_that_the_leader_has_lost_counts_and_changes_nothing(place: Place) -> None:
    place.copied(0, [VhostPut("/")])
    place.copy.apply(CatalogueEntry(0, 0, (b"", encode_change(queue("q")))))
    assert place.queues() == ["q"]
    assert place.copy.applied(STORE) == 2


def test_users_come_and_go_with_the_changes_and_are_there_after_a_start(place: Place) -> None:
    place.copied(0, [VhostPut("/")])
    place.changed(0, ANNA, UserPut("bob", "hash", "scrypt", ()))
    place.changed(2, UserDelete("bob"))
    assert place.copy.users == {"anna": ANNA}
    place.copy.close()
    place.open()
    assert place.copy.users == {"anna": ANNA}


def test_what_a_newer_leader_has_written_ends_the_follower_and_is_not_skipped(place: Place) -> None:
    with pytest.raises(StoreFailedError, match="newer Warren"):
        place.copy.apply(CatalogueEntry(0, 0, (b'{"v":1,"change":"SomethingNewPut"}',)))
    assert place.copy.applied(STORE) == 0


def test_who_may_read_what_and_which_streams_there_are_is_known_without_sql(place: Place) -> None:
    """(4)"""
    stream = QueuePut("/", "events", False, b"\0\0\0\x1b\x0cx-queue-typeS\0\0\0\x06stream", 7)
    may = PermissionPut("anna", "/", "", "", "^ev")
    bob = PermissionPut("bob", "/", "", "", ".*")
    place.copied(3, [VhostPut("/"), ANNA], [may, bob, stream, queue("orders")])
    assert place.copy.streams == {("/", "events"): 7}, "a queue is none"
    assert place.copy.permissions == {("anna", "/"): may, ("bob", "/"): bob}
    place.copy.close()
    place.open()
    assert (place.copy.streams, len(place.copy.permissions)) == ({("/", "events"): 7}, 2), "after a restart, too"

    place.changed(3, QueueDelete("/", "events"), PermissionDelete("bob", "/"))
    assert (place.copy.streams, list(place.copy.permissions)) == ({}, [("anna", "/")])
    again = QueuePut("/", "events", False, stream.arguments, 9)
    place.changed(5, again, PermissionPut("anna", "/", "", "", ""))
    assert place.copy.streams == {("/", "events"): 9}
    assert place.copy.permissions["anna", "/"].read == ""
    place.changed(7, UserDelete("anna"))
    assert place.copy.permissions == {}
    place.changed(8, VhostPut("other"), QueuePut("other", "events", False, stream.arguments, 10), VhostDelete("/"))
    assert place.copy.streams == {("other", "events"): 10}
