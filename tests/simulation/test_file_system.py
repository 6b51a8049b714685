"""The contract of FileSystem, on the real one and on the simulated one, and what only the real one promises."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from simulation.crashed_files import fails_with
from simulation.simulated_file_system import SimulatedFileSystem
from warren.msgstore.files import file_system
from warren.msgstore.files.file_system import IOV_MAX, FileSystem, OsFileSystem, read_exactly, write_all


@pytest.fixture(params=["os", "simulated"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return OsFileSystem(str(tmp_path)) if request.param == "os" else SimulatedFileSystem()


# The contract
def test_a_created_file_has_its_size_in_zeros(fs: FileSystem) -> None:
    handle = fs.create("a", 1000)
    assert fs.size(handle) == 1000
    assert fs.read(handle, 2000, 0) == bytes(1000)
    empty = fs.create("b", 0)
    assert fs.size(empty) == 0
    assert fs.read(empty, 10, 0) == b""


def test_an_existing_name_cannot_be_created(fs: FileSystem) -> None:
    fs.close(fs.create("file", 3))
    fs.mkdir("directory")
    fails_with(errno.EEXIST, lambda: fs.create("file", 0))
    fails_with(errno.EEXIST, lambda: fs.create("directory", 0))
    fails_with(errno.EEXIST, lambda: fs.mkdir("file"))
    fails_with(errno.EEXIST, lambda: fs.mkdir("directory"))
    assert fs.size(fs.open("file", writable=False)) == 3


def test_a_file_with_two_names_is_one_file_and_stays_under_the_other_name(fs: FileSystem) -> None:
    fs.mkdir("directory")
    handle = fs.create("a", 0)
    fs.link("a", "directory/b")
    write_all(fs, handle, [b"written later"], 0)
    fails_with(errno.EEXIST, lambda: fs.link("a", "directory/b"))
    fails_with(errno.ENOENT, lambda: fs.link("missing", "c"))
    fs.close(fs.create("new", 0))
    fs.rename("new", "a")
    fs.unlink("a")
    other = fs.open("directory/b", writable=False)
    assert fs.read(other, 100, 0) == b"written later"
    assert fs.names("directory") == ["b"]


def test_what_is_not_there_cannot_be_opened_renamed_removed_or_listed(fs: FileSystem) -> None:
    fails_with(errno.ENOENT, lambda: fs.open("a", writable=True))
    fails_with(errno.ENOENT, lambda: fs.rename("a", "b"))
    fails_with(errno.ENOENT, lambda: fs.unlink("a"))
    fails_with(errno.ENOENT, lambda: fs.names("a"))
    fails_with(errno.ENOENT, lambda: fs.sync_directory("a"))
    fails_with(errno.ENOENT, lambda: fs.create("a/b", 0))
    fails_with(errno.ENOENT, lambda: fs.mkdir("a/b"))


def test_a_file_is_no_directory(fs: FileSystem) -> None:
    fs.close(fs.create("a", 0))
    fails_with(errno.ENOTDIR, lambda: fs.names("a"))
    fails_with(errno.ENOTDIR, lambda: fs.sync_directory("a"))
    fails_with(errno.ENOTDIR, lambda: fs.create("a/b", 0))
    fails_with(errno.ENOTDIR, lambda: fs.open("a/b", writable=False))


def test_a_directory_is_no_file(fs: FileSystem) -> None:
    fs.mkdir("d")
    fs.close(fs.create("a", 0))
    fails_with(errno.EISDIR, lambda: fs.open("d", writable=True))
    fails_with(errno.EISDIR, lambda: fs.unlink("d"))
    fails_with(errno.EISDIR, lambda: fs.rename("a", "d"))


def test_written_bytes_are_read_back_through_any_handle(fs: FileSystem) -> None:
    handle = fs.create("a", 0)
    assert fs.write(handle, [b"abc", b"", b"defg"], 2) == 7
    assert fs.read(handle, 100, 0) == b"\0\0abcdefg"
    other = fs.open("a", writable=True)
    assert fs.write(other, [b"XY"], 4) == 2
    assert fs.read(handle, 4, 3) == b"bXYe"
    assert fs.size(other) == 9
    fs.close(handle)
    assert fs.read(other, 100, 8) == b"g"


def test_reading_ends_where_the_file_ends(fs: FileSystem) -> None:
    handle = fs.create("a", 10)
    assert len(fs.read(handle, 10, 4)) == 6
    assert fs.read(handle, 10, 10) == b""
    assert fs.read(handle, 10, 1000) == b""
    assert fs.read(handle, 0, 0) == b""


def test_a_write_behind_the_end_leaves_zeros_between(fs: FileSystem) -> None:
    handle = fs.create("a", 2)
    fs.write(handle, [b"x"], 5)
    assert fs.read(handle, 100, 0) == b"\0\0\0\0\0x"


def test_a_write_of_nothing_writes_nothing(fs: FileSystem) -> None:
    handle = fs.create("a", 2)
    assert fs.write(handle, [], 9) == 0
    assert fs.write(handle, [b"", b""], 9) == 0
    assert fs.size(handle) == 2


def test_one_write_takes_no_more_chunks_than_the_system_does(fs: FileSystem) -> None:
    handle = fs.create("a", 0)
    assert fs.write(handle, [b"ab"] * (IOV_MAX + 5), 0) == 2 * IOV_MAX
    assert fs.size(handle) == 2 * IOV_MAX


def test_truncate_cuts_and_grows_with_zeros(fs: FileSystem) -> None:
    handle = fs.create("a", 0)
    fs.write(handle, [b"abcdef"], 0)
    fs.truncate(handle, 3)
    assert fs.size(handle) == 3
    fs.truncate(handle, 5)
    assert fs.read(handle, 100, 0) == b"abc\0\0"


def test_a_file_opened_for_reading_only_cannot_be_changed(fs: FileSystem) -> None:
    fs.close(fs.create("a", 4))
    handle = fs.open("a", writable=False)
    fails_with(errno.EBADF, lambda: fs.write(handle, [b"x"], 0))
    fails_with(errno.EINVAL, lambda: fs.truncate(handle, 0))
    assert fs.read(handle, 10, 0) == bytes(4)
    fs.sync(handle)


def test_a_closed_handle_is_of_no_use(fs: FileSystem) -> None:
    handle = fs.create("a", 0)
    fs.close(handle)
    fails_with(errno.EBADF, lambda: fs.write(handle, [b"x"], 0))
    fails_with(errno.EBADF, lambda: fs.read(handle, 1, 0))
    fails_with(errno.EBADF, lambda: fs.size(handle))
    fails_with(errno.EBADF, lambda: fs.sync(handle))
    fails_with(errno.EBADF, lambda: fs.truncate(handle, 1))
    fails_with(errno.EBADF, lambda: fs.close(handle))


def test_names_are_listed_in_order_and_below_their_directory(fs: FileSystem) -> None:
    fs.mkdir("d")
    fs.mkdir("d/log")
    for name in ("d/log/0000000010", "d/log/0000000009", "d/checkpoint", "top"):
        fs.close(fs.create(name, 0))
    assert fs.names(".") == ["d", "top"]
    assert fs.names("d") == ["checkpoint", "log"]
    assert fs.names("d/log") == ["0000000009", "0000000010"]


def test_a_rename_replaces_the_file_that_has_the_name(fs: FileSystem) -> None:
    fs.mkdir("d")
    old, new = fs.create("d/old", 0), fs.create("d/new", 0)
    fs.write(old, [b"old"], 0)
    fs.write(new, [b"new"], 0)
    fs.rename("d/new", "d/old")
    assert fs.names("d") == ["old"]
    assert fs.read(fs.open("d/old", writable=False), 9, 0) == b"new"
    assert fs.read(old, 9, 0) == b"old", "who has it open still has it"
    fs.rename("d/old", "d/old")
    assert fs.names("d") == ["old"]


def test_a_removed_file_can_be_used_by_who_has_it_open_and_its_name_by_others(fs: FileSystem) -> None:
    handle = fs.create("a", 0)
    fs.write(handle, [b"still"], 0)
    fs.unlink("a")
    assert fs.names(".") == []
    other = fs.create("a", 1)
    fs.write(handle, [b" here"], 5)
    fs.sync(handle)
    assert fs.read(handle, 100, 0) == b"still here"
    assert fs.read(other, 100, 0) == b"\0"


def test_everything_can_be_synced(fs: FileSystem) -> None:
    fs.mkdir("d")
    handle = fs.create("d/a", 100)
    fs.sync(handle)
    fs.sync(handle)
    fs.sync_directory("d")
    fs.sync_directory(".")


def test_free_space_is_told(fs: FileSystem) -> None:
    assert fs.free_bytes() > 0


@pytest.mark.parametrize("path", ["/a", "../a", "d/../../a", ""])
def test_paths_outside_of_the_root_are_refused(fs: FileSystem, path: str) -> None:
    with pytest.raises(AssertionError):
        fs.create(path, 0)
    with pytest.raises(AssertionError):
        fs.open(path, writable=False)


def test_write_all_writes_more_chunks_than_the_system_takes_at_once(fs: FileSystem) -> None:
    handle = fs.create("a", 0)
    chunks = [b"", *(n.to_bytes(n % 3 + 2, "big") for n in range(3 * IOV_MAX)), *[b""] * (2 * IOV_MAX), b"end"]
    write_all(fs, handle, chunks, 7)
    assert read_exactly(fs, handle, 1 << 20, 0) == bytes(7) + b"".join(chunks)


def test_write_all_of_nothing_does_nothing(fs: FileSystem) -> None:
    handle = fs.create("a", 0)
    write_all(fs, handle, [], 5)
    write_all(fs, handle, [b""] * (IOV_MAX + 1), 5)
    assert fs.size(handle) == 0


# Tests for the real file system only.
def test_files_and_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    fs = OsFileSystem(str(tmp_path))
    handle = fs.create("a", 0)
    fs.mkdir("d")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert not os.get_inheritable(handle)
    assert not os.get_inheritable(fs.open("a", writable=True))
    fs.close(handle)


def test_links_are_not_followed(tmp_path: Path) -> None:
    fs = OsFileSystem(str(tmp_path))
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("nothing")
    fails_with(errno.ELOOP, lambda: fs.open("link", writable=True))
    fails_with(errno.EEXIST, lambda: fs.create("link", 0))
    fails_with(errno.EEXIST, lambda: fs.create("dangling", 0))
    assert (tmp_path / "target").read_bytes() == b"precious"


def test_a_created_file_has_its_space(tmp_path: Path) -> None:
    handle = OsFileSystem(str(tmp_path)).create("a", 1 << 20)
    assert os.fstat(handle).st_blocks * 512 >= 1 << 20
    os.close(handle)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_file_without_its_space_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_space(handle: int, offset: int, size: int) -> None:
        raise OSError(number, "injected")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    open_before = set(os.listdir("/proc/self/fd"))
    fs = OsFileSystem(str(tmp_path))
    fails_with(number, lambda: fs.create("a", 4096))
    assert fs.names(".") == []
    assert set(os.listdir("/proc/self/fd")) <= open_before


def test_a_file_larger_than_the_file_system_can_have_is_not_left_behind(tmp_path: Path) -> None:
    fs = OsFileSystem(str(tmp_path))
    fails_with(errno.EFBIG, lambda: fs.create("a", 1 << 62))
    assert fs.names(".") == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_cannot_preallocate_gets_the_size_without_the_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def cannot(handle: int, offset: int, size: int) -> None:
        raise OSError(number, "injected")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    fs = OsFileSystem(str(tmp_path))
    assert fs.size(fs.create("a", 4096)) == 4096


def test_a_system_that_cannot_preallocate_gets_the_size_without_the_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    fs = OsFileSystem(str(tmp_path))
    assert fs.size(fs.create("a", 4096)) == 4096


def test_syncing_asks_the_system_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    monkeypatch.setattr(file_system, "sync_content", lambda handle: synced.append(("file", os.fstat(handle).st_ino)))
    monkeypatch.setattr(file_system, "sync_all", lambda handle: synced.append(("directory", os.fstat(handle).st_ino)))
    fs = OsFileSystem(str(tmp_path))
    fs.mkdir("d")
    fs.sync(fs.create("d/a", 0))
    fs.sync_directory("d")
    assert synced == [("file", (tmp_path / "d/a").stat().st_ino), ("directory", (tmp_path / "d").stat().st_ino)]


class Stingy(SimulatedFileSystem):
    """A file system that reads and writes at most `most` bytes at a time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def write(self, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> int:
        return super().write(handle, [b"".join(chunks)[: self.most]], offset)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        return super().read(handle, min(length, self.most), offset)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 1000])
def test_short_writes_and_reads_are_gone_on_with(most: int) -> None:
    fs = Stingy(most)
    handle = fs.create("a", 0)
    write_all(fs, handle, [b"abc", b"", b"d", b"efghij"], 1)
    assert read_exactly(fs, handle, 100, 0) == b"\0abcdefghij"
    assert read_exactly(fs, handle, 4, 3) == b"cdef"
    assert read_exactly(fs, handle, 4, 11) == b""


def test_a_write_that_writes_nothing_is_an_error() -> None:
    fs = Stingy(0)
    handle = fs.create("a", 0)
    fails_with(errno.EIO, lambda: write_all(fs, handle, [b"a"], 0))
