"""The states that the simulated file system may leave after a crash, and broken logs that are found on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from simulation.crashed_files import crashed, made
from simulation.disk import SECTOR_BYTES, Write
from simulation.simulated_file_system import Fault, SimulatedFileSystem
from warren.msgstore.files.file_system import write_all


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
