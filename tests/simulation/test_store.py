"""The files of the message log (store.py), on the real file system and on the simulated one with all its faults.

The numbers in parentheses are the invariants in the header of ``warren/msgstore/files/store.py``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from simulation.simulated_file_system import Fault, SimulatedFileSystem
from simulation.written_store import (
    EPOCH,
    SEGMENT_BYTES,
    STORE_ID,
    TIME_MS,
    Placing,
    Trouble,
    content_of,
    frames_of,
    opened,
    operations,
    payload_of,
    put,
)
from warren.msgstore.files.file_system import FileSystem, OsFileSystem
from warren.msgstore.files.segment_header import SegmentHeader
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.files.store import READ_HANDLES_MAX, Store
from warren.msgstore.files.store_errors import StoreError, StoreFailedError, StoreFullError, StoreUnreadableError
from warren.msgstore.log.checksum import CRC32, CRC32C, checksum_function, default_algorithm
from warren.msgstore.log.jobs import PortionJob
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, segment_header


@pytest.fixture(params=["os", "simulated"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return OsFileSystem(str(tmp_path)) if request.param == "os" else SimulatedFileSystem()


# Writing


def test_a_segment_has_its_name_when_its_header_is_durable_and_frames_when_its_name_is() -> None:
    fs = SimulatedFileSystem()
    store = opened(fs)
    done = operations(fs)
    store.commit(Placing().job(bytes(16)), TIME_MS)
    assert done == [
        "create log/new",
        "write log/new",
        "sync log/new",
        "rename log/new log/0000000001",
        "sync_directory log",
        "write log/new",
        "sync log/new",
    ]


def test_the_one_before_is_cut_and_synced_before_a_segment_begins() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    first = placing.job(bytes(600), sync=False)
    store.commit(first, TIME_MS)
    done = operations(fs)
    store.commit(placing.job(bytes(600), sync=False), TIME_MS)
    assert done[:3] == ["truncate log/new", "sync log/new", "create log/new"]
    end = int(first.lsn + FRAME_HEADER_BYTES + first.payload_bytes)
    assert len(fs.contents()["log/0000000001"]) == end
    assert len(fs.contents()["log/0000000002"]) == SEGMENT_BYTES


def test_frames_are_where_they_belong_and_chained_over_segments(fs: FileSystem) -> None:
    store, placing = opened(fs), Placing()
    payloads = [bytes([n]) * 8 * n for n in range(1, 30)] + [b"x" * 5000, b"y" * 8]
    for payload in payloads:
        store.commit(placing.job(payload), TIME_MS)
    store.close()
    previous, found = 0, []
    headers, problems = Store(fs).open_segments()
    assert problems == []
    assert [header.number for header in headers] == list(range(1, len(headers) + 1))
    for header in headers:
        assert (header.epoch, header.store_id) == (EPOCH, STORE_ID)
        image = content_of(fs, segment_path(header.number))
        assert len(image) == header.size
        frames = frames_of(image)
        assert frames[-1][0].end == len(image), "cut behind its last frame"
        for frame, payload in frames:
            assert frame.previous_crc == previous
            assert frame.epoch == EPOCH
            previous = frame.crc
            found.append(payload)
    assert found == payloads
    assert placing.jobs[-1].crc == previous


def test_a_frame_says_what_was_durable_when_it_was_written() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    synced = [False, True, False, False]
    for sync in synced:
        store.commit(placing.job(bytes(8), sync=sync), TIME_MS)
    store.commit(placing.sync(), TIME_MS)
    store.commit(placing.job(bytes(8)), TIME_MS)
    ends = [int(job.lsn) + FRAME_HEADER_BYTES + 8 for job in placing.jobs]
    frames = [frame for frame, _ in frames_of(fs.contents()["log/0000000001"])]
    assert [frame.durable_lsn for frame in frames] == [0, 0, ends[1], ends[1], ends[3]]


def test_a_frame_is_synced_when_the_job_says_so_and_a_job_without_records_only_syncs() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.sync(), TIME_MS)  # nothing of this process to sync yet
    store.commit(placing.job(bytes(8)), TIME_MS)
    done = operations(fs)
    store.commit(placing.job(bytes(8), sync=False), TIME_MS)
    assert done == ["write log/new"]
    store.commit(placing.sync(), TIME_MS)
    assert done == ["write log/new", "sync log/new"]


def test_what_is_synced_is_committed_and_reported_so_on_a_store_that_commits_alone(fs: FileSystem) -> None:
    store, placing = opened(fs), Placing()
    for sync in (True, False, True):
        store.commit(placing.job(bytes(8), sync=sync), TIME_MS)
    first, unsynced, last = placing.jobs
    assert first.committed_lsn == unsynced.committed_lsn == first.end_lsn()
    assert last.committed_lsn == store.committed_lsn == last.end_lsn()


def test_frames_of_a_store_that_does_not_commit_alone_claim_what_its_owner_says_and_no_more(fs: FileSystem) -> None:
    store, placing = Store(fs), Placing()
    store.commits_alone = False
    store.open()
    store.resume(0, 0, EPOCH, STORE_ID, default_algorithm())
    said: list[int] = []
    for number in range(4):
        job = placing.job(bytes(400))  # two of them in a segment: the end of one commits nothing, either
        store.commit(job, TIME_MS)
        assert job.committed_lsn == (said[-1] if said else 0)
        if number != 1:
            store.commit_reached(int(job.end_lsn()))
            store.commit_reached(0)  # an answer that comes late
        said.append(store.committed_lsn)
    frames = [frame for number in (1, 2) for frame, _ in frames_of(content_of(fs, segment_path(number)))]
    assert [frame.durable_lsn for frame in frames] == [0, said[0], said[0], said[2]]


def test_what_a_store_does_not_have_cannot_be_committed() -> None:
    store, placing = opened(SimulatedFileSystem()), Placing()
    store.commits_alone = False
    store.commit(placing.job(bytes(8)), TIME_MS)
    with pytest.raises(AssertionError, match="more is committed than there is"):
        store.commit_reached(int(placing.jobs[0].end_lsn()) + 1)


def test_the_chain_goes_on_after_a_restart_in_a_new_segment(fs: FileSystem) -> None:
    store, placing = opened(fs), Placing()
    store.commit(placing.job(b"12345678"), TIME_MS)
    store.close()
    again = Store(fs)
    again.open()
    headers, _ = again.open_segments()
    end = headers[-1].base_lsn + headers[-1].capacity
    again.resume(int(placing.jobs[-1].crc), end, EPOCH + 1, STORE_ID, default_algorithm())
    job = Placing(1, end).job(b"abcdefgh")
    again.commit(job, TIME_MS)
    [(frame, payload)] = frames_of(content_of(fs, segment_path(2)))
    assert payload == b"abcdefgh"
    assert (frame.previous_crc, frame.durable_lsn, frame.epoch) == (placing.jobs[-1].crc, end, EPOCH + 1)


def test_a_spare_becomes_the_next_segment() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.prepare_spare(SEGMENT_BYTES)
    store.prepare_spare(SEGMENT_BYTES)
    done = operations(fs)
    store.commit(placing.job(bytes(8)), TIME_MS)
    assert "create log/new" not in done
    assert sorted(fs.contents()) == ["log/0000000001"]
    store.prepare_spare(SEGMENT_BYTES)
    store.commit(placing.job(bytes(5000)), TIME_MS)  # does not fit into a spare
    assert sorted(fs.contents()) == ["log/0000000001", "log/0000000002", "log/spare"]


def test_a_number_that_a_file_has_is_not_given_again() -> None:
    fs = SimulatedFileSystem()
    opened(fs)
    put(fs, "log/0000000001", b"unreadable")
    store = opened(fs)
    with pytest.raises(AssertionError):
        store.commit(Placing().job(bytes(8)), TIME_MS)
    assert store.highest_number == 1
    assert fs.contents()["log/0000000001"] == b"unreadable"


def test_a_closed_store_has_no_open_files_no_spare_and_an_end_that_is_cut() -> None:
    fs = SimulatedFileSystem()
    store = opened(fs)
    job = Placing().job(bytes(8))
    store.commit(job, TIME_MS)
    store.prepare_spare(SEGMENT_BYTES)
    store.read([(int(job.lsn), 8)])
    store.close()
    assert fs.open_paths() == []
    assert {path: len(image) for path, image in fs.contents().items()} == {
        "log/0000000001": SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + 8
    }


# Contents that are written ahead


def commits_around_contents(*, ahead: bool) -> tuple[SimulatedFileSystem, list[str]]:
    """Write the same frames with and without contents written ahead; return the disk, and what the commit did."""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(8)), TIME_MS)
    between = [placing.job(bytes(16)), placing.job(bytes(24))]
    portions, job = placing.ahead()
    for portion, other in zip(portions, between, strict=True):
        if ahead:
            store.commit(portion, TIME_MS)
        store.commit(other, TIME_MS)
    done = operations(fs)
    store.commit(job, TIME_MS)
    fs.on_operation = None
    assert job.written_bytes() == job.payload_bytes - (4000 if ahead else 0)
    store.commit(placing.job(bytes(8)), TIME_MS)
    store.close()
    return fs, done


def test_contents_written_ahead_are_in_the_frame_and_not_written_again() -> None:
    """(9): commits of others come between the portions; the files are as without them."""
    plain, done = commits_around_contents(ahead=False)
    assert done[-2:] == ["write log/new", "sync log/new"]
    fs, done = commits_around_contents(ahead=True)
    assert fs.contents() == plain.contents()
    assert fs.open_paths() == []
    assert done == [
        "truncate log/new",
        "sync log/new",
        "write log/ahead",
        "sync log/ahead",
        "rename log/ahead log/0000000002",
        "sync_directory log",
        "write log/ahead",  # the head
        "write log/ahead",  # what is between the two contents
        "sync log/ahead",
    ]


def test_a_file_of_contents_that_is_too_long_is_cut_when_it_becomes_the_segment() -> None:
    """Also after a crash no segment is longer than its capacity."""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    portions, job = placing.ahead(more_bytes=4096)
    for portion in portions:
        store.commit(portion, TIME_MS)
    assert len(fs.contents()["log/ahead"]) == job.capacity + 4096
    store.commit(job, TIME_MS)
    image = fs.kill9().contents()[segment_path(1)]
    assert len(image) == job.capacity
    [(_, payload)] = frames_of(image)
    assert payload == payload_of(job)
    store.close()


def test_only_the_same_object_at_its_place_counts_as_written() -> None:
    """(9)"""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    portions, job = placing.ahead()
    for portion in portions:
        store.commit(portion, TIME_MS)
    job.chunks[1] = b"z" * len(job.chunks[1])
    job.chunks[2:4] = [job.chunks[2] + job.chunks[3][:8], job.chunks[3][8:]]
    store.commit(job, TIME_MS)
    store.close()
    [(_, payload)] = frames_of(fs.contents()[segment_path(1)])
    assert payload == payload_of(job)


def test_a_file_of_contents_is_removed_when_its_batch_needs_it_no_more_and_at_a_start() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    (first, second), job = placing.ahead()
    store.commit(first, TIME_MS)
    assert "log/ahead" in fs.contents()
    assert job.bodies is not None
    store.commit(PortionJob(job.bodies, job.batch, 0, [], [], 0), TIME_MS)
    assert "log/ahead" not in fs.contents()
    store.commit(second, TIME_MS)
    assert "log/ahead" in fs.contents()
    again = opened(fs.kill9())
    assert isinstance(again._fs, SimulatedFileSystem)
    assert "log/ahead" not in again._fs.contents()
    store.close()
    assert sorted(fs.contents()) == []
    assert fs.open_paths() == []


def test_without_space_for_contents_they_are_written_with_their_frame() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(8)), TIME_MS)
    portions, job = placing.ahead()
    fs.capacity = sum(map(len, fs.contents().values())) + 1000
    for portion in portions:
        store.commit(portion, TIME_MS)
        assert "log/ahead" not in fs.contents()
    fs.capacity = None
    store.commit(job, TIME_MS)
    [(_, payload)] = frames_of(fs.contents()[segment_path(2)])
    assert payload == payload_of(job)


@pytest.mark.parametrize("checkpoint_bytes", [100, 2000, 3000])
def test_contents_that_a_checkpoint_has_cut_off_are_written_with_their_frame(checkpoint_bytes: int) -> None:
    """The frame had zeros in their place: its batch was confirmed, and the next start did not find it."""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    portions, job = placing.ahead()
    for portion in portions:
        store.commit(portion, TIME_MS)
    fs.fail(4, Fault.ENOSPC, "write")  # after two contents and the header
    with pytest.raises(StoreFullError):
        store.commit(job, TIME_MS)
    fs.capacity = sum(map(len, fs.contents().values()))
    before = len(fs.contents()[segment_path(1)])
    store.write_checkpoint(bytes(checkpoint_bytes))
    assert len(fs.contents()[segment_path(1)]) < before
    fs.capacity = None
    store.commit(job, TIME_MS)
    [(_, payload)] = frames_of(fs.contents()[segment_path(1)])
    assert payload == payload_of(job)


def test_contents_give_up_their_space_for_a_frame_that_does_not_fit() -> None:
    """(9): otherwise acknowledgements that make space would wait for a batch that waits for space."""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(8)), TIME_MS)
    more = placing.job(bytes(5000))
    portions, job = placing.ahead()
    store.commit(portions[0], TIME_MS)
    fs.capacity = sum(map(len, fs.contents().values())) + 100
    store.commit(more, TIME_MS)
    assert "log/ahead" not in fs.contents()
    fs.capacity = None
    store.commit(portions[1], TIME_MS)
    store.commit(job, TIME_MS)
    [(_, payload)] = frames_of(fs.contents()[segment_path(3)])
    assert payload == payload_of(job)


# Trouble at every step


def script(store: Store) -> Iterator[Callable[[], None]]:
    """Yield what a store is asked to do in its life, as one call after the other."""
    placing = Placing()
    for n in range(24):
        job = placing.job(bytes([n]) * (120 + 8 * n), sync=n % 3 > 0)
        yield partial(store.commit, job, TIME_MS + n)
        if n % 4 == 1:
            yield partial(store.prepare_spare, SEGMENT_BYTES)
        if n % 5 == 2:
            yield partial(store.write_checkpoint, b"checkpoint %d" % n)
    yield partial(store.commit, placing.sync(), TIME_MS)
    yield partial(store.commit, placing.job(bytes(3000)), TIME_MS)
    portions, ahead = placing.ahead(5000)
    for portion in portions:
        yield partial(store.commit, portion, TIME_MS)
    yield partial(store.commit, ahead, TIME_MS)
    yield partial(store.quarantine, 2)
    yield partial(store.unlink, [1])
    yield store.close


def play(store: Store) -> int:
    """Go through the script as the threads do; return how often something had to be repeated."""
    repeats = 0
    for call in script(store):
        while True:
            try:
                call()
            except StoreFullError:
                repeats += 1
                assert repeats < 5
                continue
            break
    return repeats


def undisturbed() -> SimulatedFileSystem:
    fs = SimulatedFileSystem()
    play(opened(fs))
    return fs


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE])
def test_a_job_that_met_a_shortage_anywhere_can_be_repeated(number: int) -> None:
    expected = undisturbed()
    nth = 0
    while True:
        nth += 1
        fs = SimulatedFileSystem()
        store = opened(fs)
        trouble = Trouble(fs, nth, number)
        try:
            play(store)
        except StoreFailedError:
            # A sync that has failed is not repeated, whatever the reason (4).
            descriptors = number in (errno.EMFILE, errno.ENFILE)
            assert trouble.operation.startswith("sync " if descriptors else ("sync ", "sync_directory "))
            continue
        if not trouble.operation:
            break
        assert trouble.operation.split()[0] not in ("sync",)
        wanted, found = expected.contents(), fs.contents()
        if "spare" not in trouble.operation and not trouble.operation.startswith("read "):
            assert found == wanted, trouble.operation
        assert fs.open_paths() == []
    assert nth > 100, "the script has become too short"


def test_short_writes_anywhere_change_nothing() -> None:
    expected = undisturbed()
    writes = expected.calls(Fault.SHORT_WRITE)
    assert writes > 20
    for nth in range(1, writes + 1):
        fs = SimulatedFileSystem()
        fs.fail(nth, Fault.SHORT_WRITE)
        assert play(opened(fs)) == 0
        assert fs.contents() == expected.contents()


def failure_of(call: Callable[[], object]) -> str | None:
    """Return what StoreFailedError says when `call` raises it."""
    try:
        call()
    except StoreFailedError as error:
        return str(error)
    return None


def test_after_a_failure_anywhere_nothing_is_tried_again() -> None:
    faults = 0
    for fault in (Fault.EIO, Fault.FAILED_SYNC):
        for nth in range(1, undisturbed().calls(fault) + 1):
            fs = SimulatedFileSystem()
            fs.fail(nth, fault)
            try:
                store = opened(fs)
            except (StoreFailedError, StoreUnreadableError):
                continue
            failed = failure_of(partial(play, store))
            if failed is None:
                # Operations that only read, or remove files to free their space.
                assert fs.failures[0].split()[0] in ("read", "unlink", "open"), fs.failures
                continue
            done = operations(fs)
            job = Placing().job(bytes(8))
            for call in (
                partial(store.commit, job, TIME_MS),
                partial(store.read, [(64, 8)]),
                partial(store.write_checkpoint, b""),
                partial(store.unlink, [3]),
                partial(store.prepare_spare, 8),
                partial(store.quarantine, 1),
            ):
                assert failure_of(call) == failed
            assert done == []
            assert "\n" not in failed
            faults += 1
    assert faults > 60


def test_a_failed_sync_of_the_log_is_not_followed_by_another() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(8)), TIME_MS)
    fs.fail(1 + fs.calls(Fault.FAILED_SYNC), Fault.FAILED_SYNC)
    job = placing.job(bytes(8))
    with pytest.raises(StoreFailedError, match="sync log/0000000001: Input/output error"):
        store.commit(job, TIME_MS)
    done = operations(fs)
    store.close()
    assert not any(operation.startswith(("sync", "truncate", "write")) for operation in done)


def test_whatever_a_crash_leaves_holds_every_synced_frame_and_only_segments_with_headers() -> None:
    """(1), (2): crash before and after every operation."""
    states = 0
    points = 0
    synced: list[bytes] = []
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()

    def crash(event: str) -> None:
        nonlocal states, points
        points += 1
        for state in fs.crash_states(seed=points, limit=100):
            states += 1
            survivor = Store(state)
            headers, problems = survivor.open_segments()
            assert problems == [], event
            found = [payload for header in headers for _, payload in frames_of(survivor.read_segment(header.number))]
            assert found[: len(synced)] == synced, event

    fs.on_operation = crash
    waiting: list[bytes] = []
    for n in range(40):
        if n % 3 == 0:
            store.prepare_spare(SEGMENT_BYTES)
        job = placing.job(bytes([n + 1]) * (160 + 8 * n), sync=n % 3 == 2)
        store.commit(job, TIME_MS)
        waiting.append(payload_of(job))
        if job.sync:
            synced += waiting
            waiting = []
    store.close()
    print(f"{states} crash states at {points} points")
    assert len(synced) == 39
    assert states > 1000


def test_a_frame_that_was_written_in_part_is_written_again_as_it_was() -> None:
    """(3): not with the time of the second attempt, which would make it another frame."""
    fs = SimulatedFileSystem(capacity=300)
    store = opened(fs)
    job = Placing().job(bytes(400))
    # As on a file system that cannot preallocate.
    fs.create = lambda path, size: SimulatedFileSystem.create(fs, path, 0)  # type: ignore[method-assign]
    with pytest.raises(StoreFullError):
        store.commit(job, TIME_MS)
    begun = fs.contents()["log/0000000001"]
    assert len(begun) == 300
    fs.capacity = None
    store.commit(job, TIME_MS + 1000)
    image = fs.contents()["log/0000000001"]
    assert image[:300] == begun
    [(_, payload)] = frames_of(image)
    assert payload == bytes(400)


# Reading


def test_ranges_are_read_from_the_segments_that_hold_them(fs: FileSystem) -> None:
    store, placing = opened(fs), Placing()
    jobs = [placing.job(bytes([n]) * 400) for n in range(6)]
    for job in jobs:
        store.commit(job, TIME_MS)
    ranges = [(int(job.lsn) + FRAME_HEADER_BYTES, 400) for job in reversed(jobs)]
    assert store.read(ranges) == [payload_of(job) for job in reversed(jobs)]
    assert store.take_read_problems() == []


def test_what_is_not_there_is_short_or_empty_and_noted() -> None:
    """(5)"""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    jobs = [placing.job(bytes([n]) * 600) for n in range(3)]
    for job in jobs:
        store.commit(job, TIME_MS)
    assert store.read([(int(jobs[0].lsn) + FRAME_HEADER_BYTES + 500, 200)]) == [bytes(100)], "the file is cut"
    assert store.take_read_problems() == []
    lsns = [int(job.lsn) for job in jobs]
    fs.unlink("log/0000000003")
    found = store.read([(lsns[2], 8), (lsns[1], 8), (1 << 50, 8)])
    assert [len(data) for data in found] == [0, 8, 0]
    problems = store.take_read_problems()
    assert [problem.lsn for problem in problems] == [lsns[2], 1 << 50]
    assert problems[0].text == "No such file or directory"
    assert store.take_read_problems() == []


@pytest.mark.parametrize("operation", ["open", "read"])
def test_what_the_disk_does_not_give_now_is_neither_short_nor_empty(operation: str) -> None:
    """(5)"""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    jobs = [placing.job(bytes([n]) * 600) for n in range(3)]
    for job in jobs:
        store.commit(job, TIME_MS)
    lsns = [int(job.lsn) for job in jobs]
    fs.fail(2 + fs._calls.get(operation, 0), Fault.EIO, operation)
    ranges = [(lsns[0], 8), (lsns[1], 8), (lsns[2], 8)]
    with pytest.raises(StoreUnreadableError, match="log/0000000002 cannot be read: Input/output error") as told:
        store.read(ranges)
    assert (told.value.segment, told.value.lsn) == (2, lsns[1])
    assert [len(data) for data in store.read(ranges)] == [8, 8, 8]
    assert store.take_read_problems() == []


def test_no_more_than_64_segments_are_open_for_reading() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    jobs = [placing.job(bytes(904)) for _ in range(READ_HANDLES_MAX + 20)]
    for job in jobs:
        store.commit(job, TIME_MS)
    for _ in range(2):
        for job in jobs:
            assert store.read([(int(job.lsn), 4)]) == [b"WFRM"]
            assert len(fs.open_paths()) <= READ_HANDLES_MAX + 1
    assert len(fs.open_paths()) == READ_HANDLES_MAX + 1


def test_a_read_that_finds_no_descriptor_is_to_be_repeated_and_loses_nothing() -> None:
    fs = SimulatedFileSystem()
    store = opened(fs)
    job = Placing().job(bytes(8))
    store.commit(job, TIME_MS)
    Trouble(fs, 1, errno.EMFILE)
    with pytest.raises(StoreFullError):
        store.read([(int(job.lsn), 4)])
    assert store.read([(int(job.lsn), 4)]) == [b"WFRM"]
    assert store.take_read_problems() == []


def test_removed_segments_are_gone_for_good_and_removing_is_repeatable() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    jobs = [placing.job(bytes(600)) for _ in range(4)]
    for job in jobs:
        store.commit(job, TIME_MS)
    store.read([(int(job.lsn), 4) for job in jobs])
    store.release([1, 3])
    store.unlink([1, 3])
    store.unlink([3])
    assert [len(data) for data in store.read([(int(job.lsn), 4) for job in jobs])] == [0, 4, 0, 4]
    for state in fs.crash_states(seed=1, limit=20):
        assert sorted(state.contents()) == ["log/0000000002", "log/0000000004"]
    with pytest.raises(AssertionError):
        store.unlink([4])


# The checkpoint


def test_a_crash_leaves_the_old_checkpoint_or_the_new_one_and_after_the_call_the_new_one() -> None:
    fs = SimulatedFileSystem()
    store = opened(fs)
    assert store.read_checkpoint() is None
    contents: list[bytes | None] = [None]
    seen: set[bytes | None] = set()
    allowed: set[bytes | None] = {None}

    def crash(event: str) -> None:
        for state in fs.crash_states(seed=len(seen), limit=200):
            survivor = Store(state)
            survivor.open()
            found = survivor.read_checkpoint()
            assert found in allowed, event
            assert "checkpoint.tmp" not in state.contents()
            seen.add(found)

    fs.on_operation = crash
    for content in (b"one" * 1000, b"", b"two" * 500):
        allowed = {contents[-1], content}
        store.write_checkpoint(content)
        allowed = {content}
        crash("afterwards")
        contents.append(content)
    assert seen == set(contents)
    assert store.read_checkpoint() == b"two" * 500


# Opening


def header_of(number: int, store_id: bytes = STORE_ID, *, algorithm: int = CRC32C, major: int = 1) -> bytes:
    function = checksum_function(algorithm)
    head = segment_header(function, algorithm, store_id, number, number << 20, 1 << 20, 1)[:-4]
    head = head[:8] + major.to_bytes(2, "big") + head[10:]
    return head + function(head, 0).to_bytes(4, "big")


def test_what_an_earlier_process_left_half_made_is_removed_and_nothing_else(fs: FileSystem) -> None:
    opened(fs).close()
    keep = ["checkpoint", "log/0000000001", "log/notes.txt", "quarantine/0000000001-5"]
    for path in keep:
        put(fs, path, header_of(1))
    for path in ("checkpoint.tmp", "log/spare", "log/new", "quarantine/copy.tmp"):
        put(fs, path, b"half")
    store = Store(fs)
    store.open()
    assert [len(store.open_segments()[n]) for n in (0, 1)] == [1, 0]
    assert fs.names(".") == ["checkpoint", "log", "quarantine", "streams"]
    assert fs.names("log") == ["0000000001", "notes.txt"]
    assert fs.names("quarantine") == ["0000000001-5"]


@pytest.mark.parametrize("algorithm", [CRC32C, CRC32])
def test_headers_say_what_the_segments_are(fs: FileSystem, algorithm: int) -> None:
    opened(fs)
    put(fs, "log/0000000012", header_of(12, algorithm=algorithm) + bytes(100))
    headers, problems = Store(fs).open_segments()
    assert headers == [SegmentHeader(12, 12 << 20, 1 << 20, 1, algorithm, STORE_ID, 164)]
    assert problems == []


def test_files_that_are_no_segments_are_named_with_what_is_wrong(fs: FileSystem) -> None:
    opened(fs)
    put(fs, "log/0000000001", header_of(1, b"o" * 16))
    put(fs, "log/0000000002", header_of(2)[:63])
    put(fs, "log/0000000003", b"\x00" * 1000)
    put(fs, "log/0000000004", header_of(4)[:20] + b"x" + header_of(4)[21:])
    put(fs, "log/0000000005", header_of(6))
    put(fs, "log/0000000007", header_of(7))
    put(fs, "log/0000000008", b"")
    store = Store(fs)
    headers, problems = store.open_segments()
    assert [header.number for header in headers] == [7]
    assert problems == [
        f"log/0000000001 is of another store, {b'o'.hex() * 16}",
        "log/0000000002 does not begin like a segment",
        "log/0000000003 does not begin like a segment",
        "log/0000000004 has a damaged header",
        "log/0000000005 says that it is segment 6",
        "log/0000000008 does not begin like a segment",
    ]
    assert store.highest_number == 8


def test_a_segment_of_a_newer_version_is_refused(fs: FileSystem) -> None:
    opened(fs)
    put(fs, "log/0000000001", header_of(1, major=2))
    with pytest.raises(StoreError, match=r"has format version 2\.0, this Warren reads 1: a newer Warren"):
        Store(fs).open_segments()


def test_what_recovery_read_is_synced_with_its_names() -> None:
    """A killed process may leave what is neither on the disk nor lost: not even the name of the file."""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(8), sync=False), TIME_MS)
    written = fs.kill9()
    killed: list[SimulatedFileSystem] = []
    fs.on_operation = lambda event: killed.append(fs.kill9()) if event.startswith("after rename") else None
    store.commit(placing.job(bytes(1000)), TIME_MS)
    for survivor, numbers in ((written, [1]), (killed[0], [1, 2])):
        again = Store(survivor)
        again.open()
        headers, _ = again.open_segments()
        assert [header.number for header in headers] == numbers
        again.sync_segments(numbers)
        before = survivor.contents()
        assert [state.contents() for state in survivor.crash_states(seed=1, limit=10)] == [before]


# The quarantine


def test_a_damaged_segment_is_copied_once(fs: FileSystem) -> None:
    times = iter((11, 12, 13))
    store, placing = opened(fs, lambda: next(times)), Placing()
    store.commit(placing.job(b"abcdefgh"), TIME_MS)
    store.quarantine(1)
    store.quarantine(1)
    assert fs.names("quarantine") == ["0000000001-11"]
    assert content_of(fs, "quarantine/0000000001-11") == content_of(fs, "log/0000000001")
    store.commit(placing.job(bytes(1000)), TIME_MS)
    store.set_aside(1)
    assert fs.names("log") == ["0000000002"]
    store.commit(placing.job(bytes(1000)), TIME_MS)
    store.set_aside(2)
    assert fs.names("quarantine") == ["0000000001-11", "0000000002-12"]


def test_a_segment_is_set_aside_on_a_full_disk() -> None:
    """A follower with a full disk may be promoted while it has a segment that its checkpoint no longer knows."""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(b"abcdefgh", sync=False), TIME_MS)
    store.commit(placing.job(bytes(1000)), TIME_MS)
    content = fs.contents()["log/0000000001"]
    fs.capacity = sum(map(len, fs.contents().values()))
    store.set_aside(1)
    assert fs.names("log") == ["0000000002"]
    assert [state.contents()[f"quarantine/0000000001-{TIME_MS}"] for state in fs.crash_states(seed=1, limit=10)] == [
        content
    ]


def test_a_segment_is_copied_aside_where_there_are_no_hard_links() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(b"abcdefgh"), TIME_MS)
    store.commit(placing.job(bytes(1000)), TIME_MS)
    content = fs.contents()["log/0000000001"]
    fs.fail(1, Fault.EIO, "link")
    fs.fail(1, Fault.EIO, "read")
    store.set_aside(1)
    assert fs.names("log") == ["0000000001", "0000000002"], "a copy would not have all of it"
    fs.fail(2, Fault.EIO, "link")
    store.set_aside(1)
    assert fs.names("log") == ["0000000002"]
    assert fs.contents()[f"quarantine/0000000001-{TIME_MS}"] == content


def test_the_copy_has_zeros_where_the_disk_gives_nothing() -> None:
    fs = SimulatedFileSystem()
    opened(fs)
    content = header_of(1) + bytes([255]) * 20000
    put(fs, "log/0000000001", content)
    store = opened(fs)
    fs.fail(1, Fault.EIO, "link")
    for nth in (1, 3):  # the whole of it, then one of its blocks
        fs.fail(nth + fs._calls.get("read", 0), Fault.EIO, "read")
    store.quarantine(1)
    copy = fs.contents()[f"quarantine/0000000001-{TIME_MS}"]
    assert copy == content[:4096] + bytes(4096) + content[8192:]
    assert len(store.take_read_problems()) == 1
