"""The disk in memory keeps the contract of FileSystem, and forgets in a crash what was not synced."""

from __future__ import annotations

import errno

import pytest
from simulation.test_file_system import (  # noqa: F401
    test_a_closed_handle_is_of_no_use,
    test_a_created_file_has_its_size_in_zeros,
    test_a_directory_is_no_file,
    test_a_file_is_no_directory,
    test_a_file_opened_for_reading_only_cannot_be_changed,
    test_a_removed_file_can_be_used_by_who_has_it_open_and_its_name_by_others,
    test_a_rename_replaces_the_file_that_has_the_name,
    test_a_write_behind_the_end_leaves_zeros_between,
    test_a_write_of_nothing_writes_nothing,
    test_an_existing_name_cannot_be_created,
    test_everything_can_be_synced,
    test_free_space_is_told,
    test_names_are_listed_in_order_and_below_their_directory,
    test_one_write_takes_no_more_chunks_than_the_system_does,
    test_paths_outside_of_the_root_are_refused,
    test_reading_ends_where_the_file_ends,
    test_truncate_cuts_and_grows_with_zeros,
    test_what_is_not_there_cannot_be_opened_renamed_removed_or_listed,
    test_write_all_of_nothing_does_nothing,
    test_write_all_writes_more_chunks_than_the_system_takes_at_once,
    test_written_bytes_are_read_back_through_any_handle,
)

from warren.testing.disk import Disk, MemoryFiles


@pytest.fixture(params=["files", "disk"])
def fs(request: pytest.FixtureRequest) -> MemoryFiles | Disk:
    return MemoryFiles() if request.param == "files" else Disk(MemoryFiles())


def read(files: MemoryFiles, path: str) -> bytes:
    handle = files.open(path, writable=False)
    return files.read(handle, 1 << 20, 0)


def test_a_crash_leaves_what_was_synced_and_nothing_else() -> None:
    files = MemoryFiles()
    handle = files.create("a", 10)
    files.write(handle, [b"synced"], 0)
    files.sync(handle)
    files.sync_directory(".")
    files.write(handle, [b"XX"], 2)
    files.write(handle, [b"behind"], 20)
    files.truncate(handle, 3)
    files.close(files.create("unnamed", 5))
    files.crash()
    assert files.names(".") == ["a"]
    assert read(files, "a") == b"synced" + bytes(4)


def test_a_rename_that_was_not_synced_is_undone_by_a_crash() -> None:
    files = MemoryFiles()
    for name in ("old", "other"):
        handle = files.create(name, 0)
        files.write(handle, [name.encode()], 0)
        files.sync(handle)
    files.sync_directory(".")
    files.rename("other", "old")
    files.crash()
    assert [read(files, name) for name in files.names(".")] == [b"old", b"other"]


def test_a_handle_from_before_a_crash_is_of_no_use() -> None:
    files = MemoryFiles()
    handle = files.create("a", 0)
    files.crash()
    with pytest.raises(OSError, match=rf"^\[Errno {errno.EBADF}\]"):
        files.write(handle, [b"x"], 0)


def test_a_full_disk_refuses_writes_and_a_cut_one_everything() -> None:
    files = MemoryFiles()
    disk = Disk(files)
    handle = disk.create("a", 0)
    disk.full = True
    with pytest.raises(OSError, match=rf"^\[Errno {errno.ENOSPC}\]"):
        disk.write(handle, [b"x"], 0)
    disk.full = False
    assert disk.write(handle, [b"x"], 0) == 1
    disk.cut()
    with pytest.raises(OSError, match=rf"^\[Errno {errno.EIO}\]"):
        disk.read(handle, 1, 0)
    with pytest.raises(OSError, match=rf"^\[Errno {errno.EBADF}\]"):
        files.size(handle)


def test_a_file_with_two_names_is_one_file(fs: MemoryFiles | Disk) -> None:
    fs.mkdir("directory")
    handle = fs.create("a", 0)
    fs.link("a", "directory/b")
    fs.write(handle, [b"later"], 0)
    with pytest.raises(FileExistsError):
        fs.link("a", "directory/b")
    fs.unlink("a")
    assert fs.read(fs.open("directory/b", writable=False), 100, 0) == b"later"
