"""The file that the next segment begins with, and the space that goes when the disk is full.

In parentheses: the invariants in the header of ``files/new_segments.py``.
"""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest
from simulation.simulated_file_system import Fault, SimulatedFileSystem

from warren.msgstore.files.contents_ahead import ContentsAhead
from warren.msgstore.files.new_segments import NEW, SPARE, NewSegments
from warren.msgstore.log.jobs import CommitJob

SIZE = 8192
FULL = OSError(errno.ENOSPC, "full")


def fails(what: str, error: OSError) -> NoReturn:
    raise AssertionError(what) from error


def opened(capacity: int | None = None) -> tuple[SimulatedFileSystem, NewSegments]:
    fs = SimulatedFileSystem(capacity)
    fs.mkdir("log")
    ahead = ContentsAhead(fs, lambda handle, _: fs.sync(handle), fails)
    return fs, NewSegments(fs, ahead)


def job(capacity: int = SIZE) -> CommitJob:
    return CommitJob(1, 64, 1, 0, capacity, [], 0, 1, True)


def put(fs: SimulatedFileSystem, path: str, size: int) -> None:
    fs.close(fs.create(path, size))


def test_the_spare_is_made_once_and_taken_for_a_segment_of_its_size() -> None:
    fs, files = opened()
    files.prepare_spare(SIZE)
    files.prepare_spare(2 * SIZE)
    assert {path: len(data) for path, data in fs.contents().items()} == {SPARE: SIZE}
    file = files.file_for(job())
    assert (file.path, file.size) == (SPARE, SIZE)
    assert files.file_for(job()) is file, "until it is taken"
    fs.rename(SPARE, "log/0000000001")
    files.taken(file)
    files.prepare_spare(2 * SIZE)
    assert sorted(fs.contents()) == ["log/0000000001", SPARE]


def test_a_segment_of_another_size_begins_with_a_file_of_its_own_which_is_used_again() -> None:
    fs, files = opened()
    files.prepare_spare(SIZE)
    file = files.file_for(job(2 * SIZE))
    assert (file.path, file.size) == (NEW, 2 * SIZE)
    assert files.file_for(job(2 * SIZE)) is file
    fs.rename(NEW, "log/0000000001")
    files.taken(file)
    assert files.file_for(job()).path == SPARE


def test_without_space_a_file_begins_empty() -> None:
    """(2)"""
    fs, files = opened(SIZE - 1)
    file = files.file_for(job())
    assert (file.path, file.size, fs.size(file.handle)) == (NEW, SIZE, 0)


def test_another_error_of_making_a_file_is_told() -> None:
    fs, files = opened()
    fs.fail(1, Fault.EIO, "create")
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        files.file_for(job())


def test_when_the_disk_is_full_the_spare_goes_and_then_the_end_that_recovery_does_not_need() -> None:
    """(1)"""
    fs, files = opened()
    put(fs, "log/0000000001", SIZE)
    files.recovered_end = 1, 500
    files.prepare_spare(SIZE)
    assert files.makes_room(FULL)
    assert {path: len(data) for path, data in fs.contents().items()} == {"log/0000000001": SIZE}
    assert files.makes_room(FULL)
    assert {path: len(data) for path, data in fs.contents().items()} == {"log/0000000001": 500}
    assert not files.makes_room(FULL)
    assert fs.open_paths() == []


def test_a_shortage_of_descriptors_takes_the_spare_only() -> None:
    fs, files = opened()
    put(fs, "log/0000000001", SIZE)
    files.recovered_end = 1, 500
    files.prepare_spare(SIZE)
    shortage = OSError(errno.EMFILE, "too many open files")
    assert files.makes_room(shortage)
    assert not files.makes_room(shortage)
    assert {path: len(data) for path, data in fs.contents().items()} == {"log/0000000001": SIZE}


def test_another_error_takes_nothing() -> None:
    fs, files = opened()
    files.prepare_spare(SIZE)
    assert not files.makes_room(OSError(errno.EIO, "error"))
    assert sorted(fs.contents()) == [SPARE]


@pytest.mark.parametrize("size", [None, 100, 500])
def test_an_end_that_is_gone_or_not_longer_frees_nothing(size: int | None) -> None:
    fs, files = opened()
    if size is not None:
        put(fs, "log/0000000001", size)
    files.recovered_end = 1, 500
    assert not files.makes_room(FULL)
    assert files.recovered_end is None


def test_all_files_are_given_back_at_the_end() -> None:
    _, files = opened()
    files.prepare_spare(SIZE)
    files.file_for(job(2 * SIZE))
    assert sorted(file.path for file in files.take_files()) == [NEW, SPARE]
    assert files.take_files() == []


def test_a_file_left_by_a_beginning_that_took_the_spare_does_not_prevent_a_larger_segment() -> None:
    fs, files = opened()
    files.file_for(job())
    files.prepare_spare(SIZE)
    file = files.file_for(job())
    fs.rename(file.path, "log/0000000001")
    files.taken(file)
    larger = files.file_for(job(2 * SIZE))
    assert (larger.path, larger.size, fs.size(larger.handle)) == (NEW, 2 * SIZE, 2 * SIZE)
    assert sorted(fs.open_paths()) == [NEW, SPARE]


def test_with_a_quota_that_is_used_up_a_file_begins_empty() -> None:
    """(2)"""
    fs, files = opened()

    def hook(event: str) -> None:
        if event == f"before create {NEW}":
            fs.on_operation = None
            raise OSError(errno.EDQUOT, "quota")

    fs.on_operation = hook
    file = files.file_for(job())
    assert (file.path, file.size, fs.size(file.handle)) == (NEW, SIZE, 0)
