"""The contract of FileSystem, on the real one and on the simulated one; then the crashes and faults of the latter."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from simulation.disk import SECTOR_BYTES, Write
from simulation.simulated_file_system import Fault, SimulatedFileSystem
from warren.msgstore.files.file_system import IOV_MAX, FileSystem, OsFileSystem, read_exactly, write_all


@pytest.fixture(params=["os", "simulated"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return OsFileSystem(str(tmp_path)) if request.param == "os" else SimulatedFileSystem()


def fails_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=rf"^\[Errno {number}\]"):
        call()


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


# What only the real one has


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
    open_before = os.listdir("/proc/self/fd")
    fs = OsFileSystem(str(tmp_path))
    fails_with(number, lambda: fs.create("a", 4096))
    assert fs.names(".") == []
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


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


def test_syncing_asks_the_system_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "fdatasync", lambda handle: synced.append(("file", os.fstat(handle).st_ino)))
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(("directory", os.fstat(handle).st_ino)))
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


# Crashes

Contents = dict[str, bytes]


def crashed(fs: SimulatedFileSystem, limit: int = 2000, seed: int = 1) -> list[Contents]:
    return [state.contents() for state in fs.crash_states(seed, limit)]


def made(fs: SimulatedFileSystem, path: str, data: bytes, *, synced: bool = True) -> int:
    """Create a file with `data` in it."""
    handle = fs.create(path, 0)
    fs.write(handle, [data], 0)
    if synced:
        fs.sync(handle)
        fs.sync_directory(path.rpartition("/")[0] or ".")
    return handle


def test_what_is_synced_survives_every_crash() -> None:
    fs = SimulatedFileSystem()
    made(fs, "a", b"safe")
    assert crashed(fs) == [{"a": b"safe"}]


def test_what_is_not_synced_may_survive_or_not() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"safe")
    fs.write(handle, [b"ty"], 4)
    assert crashed(fs) == [{"a": b"safety"}, {"a": b"safe"}, {"a": b"safe\0\0"}]


def test_the_name_of_a_synced_file_is_lost_unless_its_directory_is_synced() -> None:
    fs = SimulatedFileSystem()
    fs.sync(made(fs, "a", b"data", synced=False))
    assert crashed(fs) == [{"a": b"data"}, {}]
    fs.sync_directory(".")
    assert crashed(fs) == [{"a": b"data"}]


def test_a_synced_name_does_not_save_what_is_in_the_file() -> None:
    fs = SimulatedFileSystem()
    made(fs, "a", b"data", synced=False)
    fs.sync_directory(".")
    assert crashed(fs) == [{"a": b"data"}, {"a": b""}, {"a": bytes(4)}]


def test_a_name_is_lost_with_the_directory_that_it_is_in() -> None:
    fs = SimulatedFileSystem()
    fs.mkdir("d")
    made(fs, "d/a", b"data")
    states = [(state.names("."), state.contents()) for state in fs.crash_states(1, 100)]
    assert states == [(["d"], {"d/a": b"data"}), ([], {})]
    fs.sync_directory(".")
    assert crashed(fs) == [{"d/a": b"data"}]


def test_preallocated_space_is_no_safer_than_other_content() -> None:
    fs = SimulatedFileSystem()
    handle = fs.create("a", 2)
    fs.sync_directory(".")
    assert crashed(fs) == [{"a": bytes(2)}, {"a": b""}]
    fs.sync(handle)
    assert crashed(fs) == [{"a": bytes(2)}]


def test_directories_lose_their_last_changes_first_and_whatever_becomes_of_the_files() -> None:
    fs = SimulatedFileSystem()
    for name in "abc":
        fs.sync(fs.create(name, 0))
    handle = made(fs, "z", b"z")
    fs.sync_directory(".")
    fs.unlink("a")
    fs.create("d", 0)
    fs.rename("b", "c")
    fs.write(handle, [b"Z"], 0)
    states = {("".join(sorted(state)), state["z"]) for state in crashed(fs)}
    names = ["abcz", "bcz", "bcdz", "cdz"]
    assert states == {(some, data) for some in names for data in (b"z", b"Z")}


def test_a_crash_during_a_rename_leaves_the_old_file_or_the_new_one() -> None:
    fs = SimulatedFileSystem()
    made(fs, "checkpoint", b"old")
    made(fs, "checkpoint.tmp", b"new")
    fs.rename("checkpoint.tmp", "checkpoint")
    assert crashed(fs) == [{"checkpoint": b"new"}, {"checkpoint": b"old", "checkpoint.tmp": b"new"}]


def test_a_rename_does_not_sync_the_file() -> None:
    fs = SimulatedFileSystem()
    made(fs, "checkpoint", b"old")
    made(fs, "checkpoint.tmp", b"new", synced=False)
    fs.rename("checkpoint.tmp", "checkpoint")
    assert {"checkpoint": b""} in crashed(fs)


def test_a_removed_file_may_come_back_and_so_may_both_that_had_a_name() -> None:
    fs = SimulatedFileSystem()
    made(fs, "a", b"first")
    fs.unlink("a")
    fs.sync(made(fs, "a", b"second", synced=False))
    assert sorted(map(str, crashed(fs))) == sorted(map(str, [{"a": b"first"}, {}, {"a": b"second"}]))


def test_unsynced_writes_survive_in_any_combination() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"....")
    for offset in range(4):
        fs.write(handle, [b"x"], offset)
    assert len(crashed(fs)) == 16


def test_writes_to_the_same_place_keep_their_order() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"1")
    fs.write(handle, [b"2"], 0)
    fs.write(handle, [b"3"], 0)
    assert sorted(state["a"] for state in crashed(fs)) == [b"1", b"2", b"3"]
    assert crashed(fs, limit=1) == [{"a": b"3"}]


def test_a_write_is_torn_between_sectors_only() -> None:
    fs = SimulatedFileSystem()
    size = 4 * SECTOR_BYTES
    handle = made(fs, "a", b"-" * size)
    # Touches the last byte of the first sector, two whole ones, and the first byte of the last one.
    fs.write(handle, [b"x" * (2 * SECTOR_BYTES + 2)], SECTOR_BYTES - 1)
    images = [state["a"] for state in crashed(fs)]
    assert len(images) == 16
    for image in images:
        sectors = [image[n : n + SECTOR_BYTES] for n in range(0, size, SECTOR_BYTES)]
        assert sectors[0] in (b"-" * 512, b"-" * 511 + b"x")
        assert sectors[1] in (b"-" * 512, b"x" * 512)
        assert sectors[2] in (b"-" * 512, b"x" * 512)
        assert sectors[3] in (b"-" * 512, b"x" + b"-" * 511)


def test_a_file_may_have_grown_without_its_bytes() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"")
    fs.write(handle, [b"x" * SECTOR_BYTES * 2], 0)
    images = {state["a"] for state in crashed(fs)}
    x, o = b"x" * SECTOR_BYTES, bytes(SECTOR_BYTES)
    assert images == {b"", x, x + x, o + o, o + x, x + o}, "x: the second sector is lost, and the new size with it"


def test_files_lose_what_they_lose_independently() -> None:
    fs = SimulatedFileSystem()
    first, second = made(fs, "a", b"0"), made(fs, "b", b"0")
    fs.write(first, [b"1"], 0)
    fs.write(second, [b"1"], 0)
    assert {(state["a"], state["b"]) for state in crashed(fs)} == {(a, b) for a in (b"0", b"1") for b in (b"0", b"1")}


def test_syncing_one_file_syncs_no_other() -> None:
    fs = SimulatedFileSystem()
    first, second = made(fs, "a", b"0"), made(fs, "b", b"0")
    fs.write(first, [b"1"], 0)
    fs.write(second, [b"1"], 0)
    fs.sync(second)
    assert crashed(fs) == [{"a": b"1", "b": b"1"}, {"a": b"0", "b": b"1"}]


def test_a_seed_gives_the_same_states_again_and_no_state_twice() -> None:
    fs = SimulatedFileSystem()
    for name in "abc":
        handle = made(fs, name, b"." * 3000, synced=name != "b")
        for n in range(5):
            fs.write(handle, [bytes([n]) * 1500], 700 * n)
    states = crashed(fs, limit=500, seed=7)
    assert len(states) == 500
    assert states == crashed(fs, limit=500, seed=7)
    assert states != crashed(fs, limit=500, seed=8)
    assert len({tuple(sorted(state.items())) for state in states}) == 500


def test_few_states_of_many_are_other_ones_with_another_seed() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"." * 5)
    for offset in range(5):
        fs.write(handle, [b"x"], offset)
    assert len({str(crashed(fs, limit=10, seed=seed)) for seed in range(10)}) == 10


def test_with_enough_seeds_every_simple_case_comes_however_few_states_each_gives() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"." * 20)
    for offset in range(20):
        fs.write(handle, [b"x"], offset)
    images = {state["a"] for seed in range(40) for state in crashed(fs, limit=30, seed=seed)}
    for n in range(20):
        assert b"x" * n + b"." * (20 - n) in images
        assert b"x" * n + b"." + b"x" * (19 - n) in images
        assert b"." * n + b"x" + b"." * (19 - n) in images


def test_random_states_mix_torn_writes_with_cut_names() -> None:
    fs = SimulatedFileSystem()
    sectors = 8
    handles = [made(fs, name, b"." * SECTOR_BYTES * sectors) for name in "ab"]
    for name in "cdef":
        fs.create(name, 0)
    for handle in handles:
        fs.write(handle, [b"x" * SECTOR_BYTES * sectors], 0)
    states = crashed(fs, limit=300)
    # Prefixes and suffixes of a write change once from sector to sector.
    scattered = [
        (len(state) - 2, name)
        for state in states
        for name in "ab"
        if sum(one != other for one, other in pairwise(state[name][::SECTOR_BYTES])) > 2
    ]
    assert {names for names, _ in scattered} == {0, 1, 2, 3, 4}
    assert {name for _, name in scattered} == {"a", "b"}


def test_a_write_touches_the_sectors_that_its_bytes_are_in() -> None:
    touched = [Write(1, offset, bytes(size)).sectors for offset, size in [(0, 512), (0, 513), (511, 1), (511, 2)]]
    assert touched == [1, 2, 1, 2]


def test_equal_contents_count_once_however_they_came_about() -> None:
    fs = SimulatedFileSystem()
    made(fs, "a", b"same")
    fs.unlink("a")
    fs.sync(made(fs, "a", b"same", synced=False))
    assert sorted(map(str, crashed(fs))) == sorted(map(str, [{"a": b"same"}, {}]))
    fs.sync_directory(".")
    fs.sync(made(fs, "b", b"b"))
    fs.rename("a", "c")
    fs.rename("c", "a")
    assert len(crashed(fs)) == 2


def test_the_first_states_are_everything_and_nothing() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"old")
    fs.write(handle, [b"new"], 0)
    fs.close(made(fs, "b", b"b", synced=False))
    first = crashed(fs, limit=4)
    assert first == [{"a": b"new", "b": b"b"}, {"a": b"old"}, {"a": b"old", "b": b""}, {"a": b"new"}]


def test_states_belong_to_the_moment_of_the_call_and_to_themselves() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"1")
    fs.write(handle, [b"2"], 0)
    states = fs.crash_states(1, 10)
    fs.write(handle, [b"3"], 0)
    fs.sync(handle)
    fs.unlink("a")
    fs.sync_directory(".")
    one, other = states
    made(one, "b", b"only here")
    one.unlink("a")
    assert other.contents() == {"a": b"1"}
    assert fs.contents() == {}
    assert crashed(one)[0] == {"b": b"only here"}


def test_a_crash_state_can_crash_again() -> None:
    fs = SimulatedFileSystem(capacity=100)
    handle = made(fs, "a", b"1")
    fs.write(handle, [b"2"], 0)
    (_, state) = fs.crash_states(1, 10)
    assert state.capacity == 100
    again = state.open("a", writable=True)
    state.write(again, [b"4"], 0)
    assert crashed(state) == [{"a": b"4"}, {"a": b"1"}]
    state.sync(again)
    assert crashed(state) == [{"a": b"4"}]


def test_a_killed_process_loses_nothing_and_syncs_nothing() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"1")
    fs.write(handle, [b"2"], 0)
    fs.mkdir("d")
    made(fs, "d/b", b"b", synced=False)
    fs.unlink("a")
    after = fs.kill9()
    assert after.contents() == fs.contents() == {"d/b": b"b"}
    assert after.open_paths() == []
    assert crashed(after) == crashed(fs)
    assert {"a": b"1"} in crashed(after)
    after.sync(after.open("d/b", writable=False))
    after.sync_directory("d")
    after.sync_directory(".")
    assert crashed(after) == [{"d/b": b"b"}]
    fs.write(handle, [b"3"], 0)
    assert crashed(after) == [{"d/b": b"b"}]
    assert {"a": b"1"} in crashed(fs), "the file system that was killed is another one"


def test_the_changes_of_a_killed_process_and_of_the_next_one_are_no_concern_of_each_other() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"1")
    fs.write(handle, [b"2"], 0)
    after = fs.kill9()
    fs.write(handle, [b"3"], 0)
    after.write(after.open("a", writable=True), [b"4"], 0)
    assert {state["a"] for state in crashed(fs)} == {b"1", b"2", b"3"}
    assert {state["a"] for state in crashed(after)} == {b"1", b"2", b"4"}


def test_after_a_kill_a_file_is_still_one_file_under_its_old_and_its_new_name() -> None:
    fs = SimulatedFileSystem()
    made(fs, "old", b"1")
    fs.rename("old", "new")
    after = fs.kill9()
    handle = after.open("new", writable=True)
    after.write(handle, [b"2"], 0)
    after.sync(handle)
    assert crashed(after) == [{"new": b"2"}, {"old": b"2"}]


def test_after_a_failed_sync_the_data_is_read_but_not_on_the_disk_and_no_later_sync_helps() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"old.....")
    fs.fail(1 + fs.calls(Fault.FAILED_SYNC), Fault.FAILED_SYNC)
    fs.write(handle, [b"lost"], 0)
    fails_with(errno.EIO, lambda: fs.sync(handle))
    assert fs.contents() == {"a": b"lost...."}
    assert crashed(fs) == [{"a": b"old....."}]
    after = fs.kill9()
    for survivor, again in ((fs, handle), (after, after.open("a", writable=True))):
        survivor.write(again, [b"kept"], 4)
        survivor.sync(again)
        assert survivor.contents() == {"a": b"lostkept"}
        assert crashed(survivor) == [{"a": b"old.kept"}]


def test_rot_is_read_now_and_after_a_crash() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", bytes(1200))
    fs.flip_bit("a", 700, 3)
    assert fs.read(handle, 1, 700) == b"\x08"
    assert crashed(fs) == [{"a": bytes(700) + b"\x08" + bytes(499)}]
    fs.write(handle, [b"x" * 1200], 0)
    fs.sync(handle)
    fs.zero_sector("a", 2)
    assert fs.contents() == {"a": b"x" * 1024 + bytes(176)}
    assert fs.contents() == crashed(fs)[0]


def test_a_spoilt_place_cannot_be_read_and_what_is_before_and_behind_it_can() -> None:
    fs = SimulatedFileSystem()
    handle = fs.create("a", 0)
    fs.write(handle, [b"x" * 1200], 0)
    fs.spoil("a", 512, 1024)
    assert fs.read(handle, 1200, 0) == b"x" * 512
    assert read_exactly(fs, handle, 512, 0) == b"x" * 512
    for place in (512, 1023):
        fails_with(errno.EIO, partial(fs.read, handle, 1, place))
    fails_with(errno.EIO, lambda: read_exactly(fs, handle, 513, 0))
    assert fs.read(handle, 1000, 1024) == b"x" * 176
    again = fs.kill9()
    fails_with(errno.EIO, lambda: again.read(again.open("a", writable=False), 1, 512))
    for place in (0, 1100):
        fails_with(errno.EIO, partial(fs.write, handle, [b"x" * 100], place))
    assert again.write(again.open("a", writable=True), [b"y" * 1200], 0) == 1200
    assert again.contents() == {"a": b"y" * 1200}
    assert again.read(again.open("a", writable=False), 1200, 0) == b"y" * 1200
    fs.heal("a")
    assert read_exactly(fs, handle, 1200, 0) == b"x" * 1200


# Faults


def workload(fs: SimulatedFileSystem) -> None:
    """Do each operation, some twice."""
    fs.mkdir("d")
    handle = fs.create("d/tmp", 100)
    write_all(fs, handle, [b"abc", b"defg"], 0)
    fs.sync(handle)
    fs.truncate(handle, 7)
    fs.sync(handle)
    fs.close(handle)
    fs.rename("d/tmp", "d/a")
    fs.sync_directory("d")
    fs.sync_directory(".")
    assert fs.names("d") == ["a"]
    handle = fs.open("d/a", writable=False)
    assert fs.size(handle) == 7
    assert read_exactly(fs, handle, 100, 0) == b"abcdefg"
    fs.close(handle)
    fs.unlink("d/a")
    assert fs.free_bytes() > 0


@pytest.mark.parametrize(("fault", "number"), [(Fault.EIO, errno.EIO), (Fault.ENOSPC, errno.ENOSPC)])
def test_every_call_can_be_made_to_fail(fault: Fault, number: int) -> None:
    whole = SimulatedFileSystem()
    workload(whole)
    hit = []
    for n in range(1, whole.calls(fault) + 1):
        fs = SimulatedFileSystem()
        fs.fail(n, fault)
        fails_with(number, partial(workload, fs))
        hit += fs.failures
    writing = ["mkdir d", "create d/tmp", "write d/tmp"]
    if fault is Fault.ENOSPC:
        assert hit == [*writing, "truncate d/tmp", "rename d/tmp d/a"]
    else:
        assert hit == [
            *(*writing, "sync d/tmp", "truncate d/tmp", "sync d/tmp", "rename d/tmp d/a", "sync_directory d"),
            *("sync_directory .", "names d", "open d/a", "read d/a", "read d/a", "unlink d/a"),
        ]
    fs = SimulatedFileSystem()
    fs.fail(len(hit) + 1, fault)
    workload(fs)
    assert fs.failures == []


def test_a_failed_operation_has_changed_nothing() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"a")
    for call in (
        lambda: fs.create("b", 5),
        lambda: fs.write(handle, [b"xyz"], 0),
        lambda: fs.truncate(handle, 0),
        lambda: fs.rename("a", "b"),
        lambda: fs.unlink("a"),
        lambda: fs.mkdir("d"),
    ):
        fs.fail(fs.calls(Fault.EIO) + 1, Fault.EIO)
        fails_with(errno.EIO, call)
        assert crashed(fs) == [{"a": b"a"}]
        assert fs.names(".") == ["a"]


def test_a_short_write_writes_the_first_half() -> None:
    fs = SimulatedFileSystem()
    handle = fs.create("a", 0)
    fs.fail(2, Fault.SHORT_WRITE)
    assert fs.write(handle, [b"abcdef"], 0) == 6
    assert fs.write(handle, [b"gh", b"ijk"], 6) == 2
    assert fs.write(handle, [b"ijk"], 8) == 3
    assert fs.contents() == {"a": b"abcdefghijk"}
    assert fs.failures == ["write a"]


def test_a_fault_can_be_aimed_at_an_operation_that_it_does_not_usually_hit() -> None:
    fs = SimulatedFileSystem()
    handle = made(fs, "a", b"a")
    fs.write(handle, [b"b"], 0)
    fs.fail(2, Fault.ENOSPC, "sync")
    fails_with(errno.ENOSPC, lambda: fs.sync(handle))
    assert crashed(fs) == [{"a": b"a"}]


def test_a_failed_sync_of_a_directory_leaves_its_names_unsynced() -> None:
    fs = SimulatedFileSystem()
    fs.sync(fs.create("a", 0))
    fs.fail(1, Fault.EIO, "sync_directory")
    fails_with(errno.EIO, lambda: fs.sync_directory("."))
    assert crashed(fs) == [{"a": b""}, {}]


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    fs = SimulatedFileSystem(capacity=100)
    handle = fs.create("a", 60)
    assert fs.free_bytes() == 40
    fails_with(errno.ENOSPC, lambda: fs.create("b", 41))
    assert fs.names(".") == ["a"]
    assert fs.write(handle, [b"x" * 60], 0) == 60, "the space is there"
    assert fs.write(handle, [b"x" * 50], 60) == 40
    fails_with(errno.ENOSPC, lambda: fs.write(handle, [b"x"], 100))
    fails_with(errno.ENOSPC, lambda: fs.truncate(handle, 101))
    fails_with(errno.ENOSPC, lambda: write_all(fs, handle, [b"yy" * 20], 70))
    assert fs.free_bytes() == 0
    fs.truncate(handle, 30)
    assert fs.free_bytes() == 70
    fs.capacity = 10
    assert fs.free_bytes() == 0


def test_the_space_of_a_removed_file_is_free_once_it_is_closed() -> None:
    fs = SimulatedFileSystem(capacity=100)
    handle = fs.create("a", 60)
    fs.unlink("a")
    assert fs.free_bytes() == 40
    fs.close(handle)
    assert fs.free_bytes() == 100


def test_the_hook_comes_before_and_after_every_operation() -> None:
    fs = SimulatedFileSystem()
    seen: list[str] = []
    fs.on_operation = seen.append
    workload(fs)
    operations = [line.removeprefix("before ") for line in seen[::2]]
    assert [line.removeprefix("after ") for line in seen[1::2]] == operations
    assert operations[:5] == ["mkdir d", "create d/tmp", "write d/tmp", "sync d/tmp", "truncate d/tmp"]
    assert {line.split()[0] for line in operations} >= {"close", "rename", "sync_directory", "open", "size", "unlink"}


def test_handles_that_were_not_closed_are_known() -> None:
    fs = SimulatedFileSystem()
    handle = fs.create("a", 0)
    other = fs.open("a", writable=False)
    fs.close(handle)
    assert fs.open_paths() == ["a"]
    fs.close(other)
    assert fs.open_paths() == []


# A small log, and the mistakes that the crash model has to find in it


def confirmed_and_lost(append: Callable[[SimulatedFileSystem, Callable[[int], None]], None]) -> bool:
    """Crash before and after each operation of `append` and at each confirm; return whether a confirmed record is lost.

    Record n is the byte n + 1 at offset n of the file ``log``.
    """
    fs = SimulatedFileSystem()
    confirmed: list[int] = []
    lost: list[int] = []

    def crash(_: str) -> None:
        for state in crashed(fs):
            lost.extend(n for n in confirmed if state.get("log", b"")[n : n + 1] != bytes([n + 1]))

    def confirm(n: int) -> None:
        confirmed.append(n)
        crash("confirm")

    fs.on_operation = crash
    append(fs, confirm)
    return bool(lost)


def records(handle: int, fs: SimulatedFileSystem) -> Iterator[int]:
    for n in range(3):
        write_all(fs, handle, [bytes([n + 1])], n)
        yield n


def test_a_log_that_syncs_loses_nothing_confirmed() -> None:
    def append(fs: SimulatedFileSystem, confirm: Callable[[int], None]) -> None:
        handle = fs.create("log", 10)
        fs.sync_directory(".")
        for n in records(handle, fs):
            fs.sync(handle)
            confirm(n)

    assert not confirmed_and_lost(append)


def test_a_confirm_before_the_sync_is_found() -> None:
    def append(fs: SimulatedFileSystem, confirm: Callable[[int], None]) -> None:
        handle = fs.create("log", 10)
        fs.sync_directory(".")
        for n in records(handle, fs):
            confirm(n)
            fs.sync(handle)

    assert confirmed_and_lost(append)


def test_a_missing_sync_of_the_directory_is_found() -> None:
    def append(fs: SimulatedFileSystem, confirm: Callable[[int], None]) -> None:
        handle = fs.create("log", 10)
        for n in records(handle, fs):
            fs.sync(handle)
            confirm(n)

    assert confirmed_and_lost(append)


def test_a_failed_sync_that_is_tried_again_is_found() -> None:
    def append(fs: SimulatedFileSystem, confirm: Callable[[int], None]) -> None:
        handle = fs.create("log", 10)
        fs.sync_directory(".")
        fs.fail(2, Fault.FAILED_SYNC)
        for n in records(handle, fs):
            try:
                fs.sync(handle)
            except OSError:
                fs.sync(handle)
            confirm(n)

    assert confirmed_and_lost(append)
