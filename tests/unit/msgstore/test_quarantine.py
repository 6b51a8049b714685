"""Copies of damaged segments: once, whole or with zeros, and what is left of one that fails.

In parentheses: the invariants in the header of ``files/quarantine.py``.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest
from simulation.simulated_file_system import Fault, SimulatedFileSystem

from warren.msgstore.files.fail_stop import SHORTAGES
from warren.msgstore.files.quarantine import QUARANTINE, Quarantine
from warren.msgstore.files.segment_reads import ReadProblem
from warren.msgstore.files.store_errors import StoreFailedError, StoreFullError

SEGMENT = "log/0000000007"
CONTENT = bytes(range(256)) * 100


class WithoutLinks(SimulatedFileSystem):
    """A disk of a kind that has no hard links."""

    def link(self, path: str, new: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


class Place:
    """A segment and the quarantine beside it; each copy is made a millisecond later than the one before."""

    def __init__(self, *, has_links: bool = False, free_min_bytes: int = 0) -> None:
        self.fs = SimulatedFileSystem() if has_links else WithoutLinks()
        for name in ("log", QUARANTINE):
            self.fs.mkdir(name)
        handle = self.fs.create(SEGMENT, 0)
        self.fs.write(handle, [CONTENT], 0)
        self.fs.close(handle)
        self.fs.sync_directory(".")
        self.problems: list[ReadProblem] = []
        self._now_ms = 0
        self.quarantine = Quarantine(
            self.fs,
            self._clock_ms,
            self.problems.append,
            free_min_bytes,
            sync=lambda handle, _: self.fs.sync(handle),
            sync_directory=self.fs.sync_directory,
            fail=self._fail,
        )

    def _clock_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def _fail(self, what: str, error: OSError) -> NoReturn:
        raise (StoreFullError if error.errno in SHORTAGES else StoreFailedError)(what) from error

    def fail_next(self, operation: str, nth: int = 1) -> None:
        self.fs.fail(self.fs._calls.get(operation, 0) + nth, Fault.EIO, operation)

    def copies(self) -> dict[str, bytes]:
        return {path: data for path, data in self.fs.contents().items() if path.startswith(QUARANTINE)}


def test_a_segment_is_copied_once() -> None:
    """(1)"""
    place = Place()
    assert not place.quarantine.has_copy(7)
    for _ in range(2):
        place.quarantine.keep(7)
        assert place.quarantine.has_copy(7)
    assert place.copies() == {"quarantine/0000000007-2": CONTENT}
    assert not place.quarantine.has_copy(70) and not place.quarantine.has_copy(8)
    assert place.fs.open_paths() == []


def test_a_crash_leaves_a_whole_copy_or_none() -> None:
    """(2)"""
    place = Place()
    place.quarantine.keep(7)
    for state in place.fs.crash_states(seed=1, limit=20):
        found = {path: data for path, data in state.contents().items() if path.startswith(QUARANTINE)}
        assert found == {"quarantine/0000000007-2": CONTENT}, "it is on the disk"


def test_a_segment_that_is_gone_has_no_copy_and_is_noted() -> None:
    place = Place()
    place.fs.unlink(SEGMENT)
    place.quarantine.keep(7)
    assert place.copies() == {}
    assert [problem.segment for problem in place.problems] == [7]


def test_bytes_that_the_disk_does_not_give_are_zeros() -> None:
    """(2)"""
    place = Place()
    for nth in (1, 3):  # the whole of it, then its second block
        place.fs.fail(nth, Fault.EIO, "read")
    place.quarantine.keep(7)
    assert list(place.copies().values()) == [CONTENT[:4096] + bytes(4096) + CONTENT[8192:]]
    assert len(place.problems) == 1


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
def test_a_copy_that_fails_has_no_name(operation: str) -> None:
    """(2)"""
    place = Place()
    place.fail_next(operation, nth=2 if operation == "sync" else 1)  # the segment is synced first
    with pytest.raises((StoreFailedError, OSError)):
        place.quarantine.keep(7)
    assert not place.quarantine.has_copy(7)
    assert place.fs.contents()[SEGMENT] == CONTENT


def test_a_copy_for_which_there_is_no_space_leaves_nothing() -> None:
    place = Place()
    place.fs.capacity = len(CONTENT) + 100
    with pytest.raises(StoreFullError):
        place.quarantine.keep(7)
    assert place.copies() == {}
    place.fs.capacity = 2 * len(CONTENT)
    place.quarantine.keep(7)
    assert list(place.copies().values()) == [CONTENT]


def test_a_second_name_takes_no_space() -> None:
    """(3)"""
    place = Place(has_links=True)
    place.fs.capacity = len(CONTENT)
    for _ in range(2):
        assert place.quarantine.is_linked(7)
    place.fs.unlink(SEGMENT)
    assert place.copies() == {"quarantine/0000000007-1": CONTENT}


def test_damage_takes_no_space() -> None:
    """(3)"""
    place = Place(has_links=True, free_min_bytes=1 << 30)
    place.fs.capacity = len(CONTENT)
    for _ in range(2):
        place.quarantine.keep(7)
    place.fs.unlink(SEGMENT)
    assert list(place.copies().values()) == [CONTENT]


def test_a_file_that_is_about_to_be_changed_is_copied() -> None:
    """(3)"""
    place = Place(has_links=True)
    place.quarantine.keep(7)
    place.quarantine.copy(7)
    handle = place.fs.open(SEGMENT, writable=True)
    place.fs.truncate(handle, 10)
    place.fs.close(handle)
    assert sorted(place.copies().values()) == [CONTENT[:10], CONTENT]


def test_a_copy_leaves_the_space_that_publishers_need() -> None:
    """(3)"""
    place = Place(free_min_bytes=1000)
    place.fs.capacity = 2 * len(CONTENT) + 999
    with pytest.raises(StoreFullError):
        place.quarantine.keep(7)
    assert place.copies() == {}
    place.fs.capacity += 1
    place.quarantine.keep(7)
    assert list(place.copies().values()) == [CONTENT]


@pytest.mark.parametrize("operation", ["open", "link"])
def test_without_links_there_is_no_second_name(operation: str) -> None:
    """(3)"""
    place = Place(has_links=True)
    place.fail_next(operation)
    assert not place.quarantine.is_linked(7)
    assert place.copies() == {}
    assert place.fs.open_paths() == []
