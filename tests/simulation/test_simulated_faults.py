"""Faults of the simulated file system: killed processes, failed calls, spoilt places, a full disk."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from simulation.crashed_files import crashed, fails_with, made
from simulation.simulated_file_system import Fault, SimulatedFileSystem
from warren.msgstore.files.file_system import read_exactly, write_all


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
