"""A standby's memory of its leader, and when it may be promoted without a warning of loss (promotion.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from simulation.simulated_file_system import SimulatedFileSystem

from warren.replication import last_contact
from warren.replication.cluster_state import ClusterState
from warren.replication.entries import Beacon
from warren.replication.follower import Follower
from warren.replication.handshake import Node
from warren.replication.identity import Identity
from warren.replication.introduction import Introduction
from warren.replication.last_contact import NAME, Contact
from warren.replication.link_to_leader import LinkToLeader
from warren.replication.metadata_copy import MetadataCopy
from warren.replication.promotion import SURE_S
from warren.replication.replica_checkpoint import NeededSegment
from warren.replication.replica_store import ReplicaStore
from warren.replication.wire import Wire
from warren.server.following import NotPromoted
from warren.server.setting_kinds import Endpoint

CONTACT = Contact(1_700_000_000_000, "rabbit@one", 4096, 4000)


def test_a_contact_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert last_contact.maybe_read(tmp_path) is None
    last_contact.write(tmp_path, CONTACT)
    assert last_contact.maybe_read(tmp_path) == CONTACT
    last_contact.forget(tmp_path)
    last_contact.forget(tmp_path)
    assert last_contact.maybe_read(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"{",
        b'{"time_ms": -1, "leader": "a", "committed_lsn": 0, "synced_lsn": 0}',
        b'{"time_ms": 1, "leader": 1, "committed_lsn": 0, "synced_lsn": 0}',
        b'{"time_ms": 1, "leader": "a", "committed_lsn": true, "synced_lsn": 0}',
    ],
)
def test_what_cannot_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert last_contact.maybe_read(tmp_path) is None


class Replica:
    """The store of a standby, as far as a promotion looks at it."""

    def __init__(self) -> None:
        self.file_system = SimulatedFileSystem()
        self.epoch = 3
        self.is_catching_up = False
        self.synced_lsn = self.received_lsn = 4096
        self.committed_lsn = 0

    def missing(self) -> dict[int, NeededSegment]:
        return {}


class Link:
    """A link to the leader, which answers no beacon and has heard from it `ago_s` ago."""

    def __init__(self, ago_s: float = 0.0) -> None:
        self.came_s = time.monotonic() - ago_s

    def answer(self, beacon: int) -> None:
        pass


def standby(directory: Path, replica: Replica, min_in_sync: int = 1) -> Follower:
    """Return a standby whose leader does not answer."""
    leader = Node("rabbit@one", b"o" * 16)
    state = ClusterState(b"t" * 16, 3, leader=leader, min_in_sync=min_in_sync)
    place = Endpoint("127.0.0.1", 1)
    found = Follower(
        place,
        Identity(b"s" * 32),
        "rabbit@two",
        directory,
        state,
        cast(ReplicaStore, replica),
        cast(MetadataCopy, None),
    )
    return found


def heard(found: Follower, committed_lsn: int = 4096) -> None:
    found.heard(cast(LinkToLeader, Link()), Beacon(1, committed_lsn, 0, 3))


def promoted(found: Follower, *, accept_loss: bool = False) -> str:
    """Promote it; return the note, or raise NotPromoted."""
    return str(trio.run(found.promote, accept_loss)["note"])


def test_who_was_in_sync_a_moment_ago_is_promoted(tmp_path: Path) -> None:
    found = standby(tmp_path, Replica())
    heard(found)
    assert "min_in_sync is 1" in promoted(found)
    two = standby(tmp_path, Replica(), min_in_sync=2)
    heard(two)
    assert promoted(two) == ""


class NoLeader(Introduction):
    """Nobody connects to a leader; `meanwhile` happens while it is asked whether one answers."""

    def __init__(self, meanwhile: Callable[[], object] = bool) -> None:
        self._meanwhile = meanwhile

    async def connect(self, endpoint: Endpoint) -> Wire:
        raise OSError("nobody is there")

    async def is_answered(self, endpoint: Endpoint) -> bool:
        self._meanwhile()
        return False


def test_a_leader_that_comes_while_it_is_asked_for_keeps_others_from_being_promoted(tmp_path: Path) -> None:
    found = standby(tmp_path, Replica())
    heard(found)
    found._introduction = NoLeader(lambda: setattr(found, "_link", Link()))
    with pytest.raises(NotPromoted, match="answers: stop it first"):
        promoted(found)
    assert not found.life.over.is_set()


def test_a_promotion_ends_following_at_once(tmp_path: Path) -> None:
    """Else a leader that comes back is acknowledged by a node that leads the next moment; follower.py (3)."""
    found = standby(tmp_path, Replica())
    heard(found)
    found._introduction = NoLeader()

    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(found.run)
                await trio.testing.wait_all_tasks_blocked()
                await found.promote(accept_loss=False)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_who_was_not_in_sync_since_the_start_says_when_it_was_and_what_it_lacked(tmp_path: Path) -> None:
    last_contact.write(tmp_path, CONTACT)
    found = standby(tmp_path, Replica(), min_in_sync=2)
    status = found.status()
    assert (status["in_sync"], status["in_sync_since_start"]) == (False, False)
    assert (status["last_in_sync_ms"], status["committed_lsn"]) == (CONTACT.time_ms, 4096)
    assert status["disconnected_s"] > 86400, "from the last contact on, not from this start"
    with pytest.raises(NotPromoted) as refusal:
        promoted(found)
    for text in (
        "since it was started",
        "rabbit@one up to LSN 4000 at 2023-11-14T22:13:20",
        "before this start",
        "lacked 96 bytes",
        "--accept-loss",
    ):
        assert text in str(refusal.value)
    assert promoted(found, accept_loss=True).startswith("Confirmed messages may be missing here")


def test_it_is_said_when_it_is_not_known(tmp_path: Path) -> None:
    found = standby(tmp_path, Replica())
    assert (found.status()["last_in_sync_ms"], found.status()["disconnected_s"]) == (None, None)
    with pytest.raises(NotPromoted, match="it is not known when it was"):
        promoted(found)


def test_an_old_contact_of_this_life_is_no_surety(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = standby(tmp_path, Replica())
    heard(found)
    found.promotion._heard_s -= SURE_S + 1
    with pytest.raises(NotPromoted, match=rf"up to LSN 4096 at \S+, {SURE_S + 1:.0f} s ago\. What the leader"):
        promoted(found)
    assert found.status()["in_sync"], "as it was when its link ended"


def test_a_link_that_ends_while_in_sync_is_a_contact_and_one_that_catches_up_is_none(tmp_path: Path) -> None:
    replica = Replica()
    found = standby(tmp_path, replica)
    replica.is_catching_up = True
    heard(found)
    found.note_contact(time.monotonic())
    assert found.status()["last_in_sync_ms"] is None
    with pytest.raises(NotPromoted, match="was not in sync with its leader"):
        promoted(found)
    replica.is_catching_up = False
    found.note_contact(time.monotonic() - 5)
    assert found.status()["in_sync"]
    assert time.time() - found.status()["last_in_sync_ms"] / 1000 >= 5


def test_a_contact_is_written_soon_then_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Contact] = []
    monkeypatch.setattr(last_contact, "write", lambda directory, contact: written.append(contact))
    found = standby(tmp_path, Replica())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.keep_contact)
            for number in range(1, 25):
                heard(found, 4096 + number)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    assert 2 <= len(written) <= 4
    assert written == sorted(written, key=lambda contact: contact.committed_lsn)
