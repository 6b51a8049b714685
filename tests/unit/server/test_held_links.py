"""Whether links are held: the directory, the metadata and a release decide (``held_links.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from warren.server.held_links import PARAMETER, HeldLinks, told_by
from warren.server.links_mark import hold, maybe_mark
from warren.vhosts.metadata import GlobalParameterDelete, GlobalParameterPut, MetadataChange
from warren.vhosts.parameters import ParameterBook


class Metadata:
    """A book of parameters, with what was asked of it; a crash may come before a change is durable."""

    def __init__(self) -> None:
        self.book = ParameterBook()
        self.changes: list[MetadataChange] = []
        self.told: list[object] = []
        self.crashes = False
        self.book.listeners.append(self.told.append)

    async def administer(self, change: MetadataChange, by: str) -> None:
        assert isinstance(change, GlobalParameterPut | GlobalParameterDelete)
        self.changes.append(change)
        if self.book.apply(change, by):
            self.book.tell(change)
        await trio.lowlevel.checkpoint()
        if self.crashes:
            raise ConnectionError


def begin(metadata: Metadata, directory: Path | None, *, with_links: bool = False) -> HeldLinks:
    held = HeldLinks(metadata.book, directory)
    trio.run(lambda: held.begin(metadata.administer, with_links=with_links))
    return held


def test_without_a_mark_nothing_is_held_and_nothing_changed(tmp_path: Path) -> None:
    metadata = Metadata()
    for directory in (tmp_path, None):
        for with_links in (False, True):
            assert begin(metadata, directory, with_links=with_links).reason == ""
    assert metadata.changes == []


def test_a_mark_becomes_a_part_of_the_metadata_and_goes(tmp_path: Path) -> None:
    """(2)"""
    hold(tmp_path, "restored")
    metadata = Metadata()
    held = begin(metadata, tmp_path)
    assert (held.reason, maybe_mark(tmp_path)) == ("restored", None)
    assert told_by(metadata.book) == held.maybe_mark()
    assert begin(metadata, None).reason == "restored", "as on a node that has taken over"
    assert len(metadata.changes) == 1


def test_links_are_held_before_anything_is_durable_and_after_a_crash(tmp_path: Path) -> None:
    """(1)"""
    hold(tmp_path, "restored")
    assert HeldLinks(ParameterBook(), tmp_path).reason == "restored"
    metadata = Metadata()
    metadata.crashes = True
    with pytest.raises(ConnectionError):
        begin(metadata, tmp_path)
    assert maybe_mark(tmp_path) is not None
    assert begin(Metadata(), tmp_path).reason == "restored"


def test_a_release_is_for_good_and_told(tmp_path: Path) -> None:
    """(3)"""
    hold(tmp_path, "restored")
    metadata = Metadata()
    held = begin(metadata, tmp_path)
    metadata.told.clear()
    assert trio.run(held.release, metadata.administer, "guest")
    assert metadata.told == [GlobalParameterDelete(PARAMETER)]
    assert held.reason == begin(metadata, tmp_path).reason == ""
    assert not trio.run(held.release, metadata.administer, "guest")


def test_a_release_is_told_when_the_metadata_never_had_the_mark(tmp_path: Path) -> None:
    hold(tmp_path, "restored")
    metadata = Metadata()
    held = begin(metadata, tmp_path, with_links=True)
    assert metadata.told == [GlobalParameterDelete(PARAMETER)]
    assert (held.reason, metadata.changes, maybe_mark(tmp_path)) == ("", [], None)


def test_a_crash_of_a_release_leaves_links_held_or_released(tmp_path: Path) -> None:
    hold(tmp_path, "restored")
    metadata = Metadata()
    held = begin(metadata, tmp_path)
    metadata.crashes = True
    with pytest.raises(ConnectionError):
        trio.run(held.release, metadata.administer, "guest")
    assert maybe_mark(tmp_path) is None
    before = ParameterBook()  # as if the deletion had not become durable
    put = metadata.changes[0]
    assert isinstance(put, GlobalParameterPut)
    before.restore(put)
    assert HeldLinks(before, tmp_path).reason == "restored"
