"""Operations that make room when the disk of the message log is full, and others (store.py). The disk is simulated.

The numbers in parentheses are the invariants in the header of ``warren/msgstore/files/store.py``.
"""

from __future__ import annotations

import errno
from threading import Thread

import pytest

from simulation.simulated_file_system import SimulatedFileSystem
from simulation.written_store import (
    EPOCH,
    SEGMENT_BYTES,
    STORE_ID,
    TIME_MS,
    Placing,
    Trouble,
    frames_of,
    opened,
    payload_of,
)
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreFullError, StoreUnreadableError
from warren.msgstore.log.checksum import default_algorithm
from warren.msgstore.log.jobs import CommitJob
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES


def test_a_checkpoint_takes_the_place_of_the_spare_when_the_disk_is_full() -> None:
    fs = SimulatedFileSystem(capacity=2 * SEGMENT_BYTES)
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(8)), TIME_MS)
    store.prepare_spare(SEGMENT_BYTES)
    assert fs.free_bytes() == 0
    store.write_checkpoint(b"c" * 500)
    assert store.read_checkpoint() == b"c" * 500
    with pytest.raises(StoreFullError):
        store.prepare_spare(SEGMENT_BYTES)
    with pytest.raises(StoreFullError):
        store.write_checkpoint(b"d" * 1500)
    assert store.read_checkpoint() == b"c" * 500
    assert sorted(fs.contents()) == ["checkpoint", "log/0000000001"]


def test_a_checkpoint_takes_what_is_unused_of_the_last_segment_when_there_is_nothing_else() -> None:
    """(2): and no byte of a frame, whatever a crash leaves."""
    fs = SimulatedFileSystem(capacity=2 * SEGMENT_BYTES)
    store, placing = opened(fs), Placing()
    committed: list[bytes] = []

    def commit(job: CommitJob) -> None:
        store.commit(job, TIME_MS)
        committed.append(payload_of(job))

    commit(placing.job(b"1" * 800))
    commit(placing.job(b"2" * 160))
    fs.capacity = sum(map(len, fs.contents().values()))
    assert fs.free_bytes() == 0
    seen: set[bytes | None] = set()

    def crash(event: str) -> None:
        for state in fs.crash_states(seed=len(seen), limit=200):
            survivor = Store(state)
            headers, problems = survivor.open_segments()
            assert problems == []
            images = [survivor.read_segment(header.number) for header in headers]
            assert [p for image in images for _, p in frames_of(image)][: len(committed)] == committed, event
            seen.add(survivor.read_checkpoint())

    fs.on_operation = crash
    store.write_checkpoint(b"c" * 500)
    assert seen == {None, b"c" * 500}
    commit(placing.job(b"3" * 80))
    store.write_checkpoint(b"d" * 100)
    with pytest.raises(StoreFullError):
        store.commit(placing.job(b"4" * 600), TIME_MS)
    fs.on_operation = None
    store.unlink([1])  # which the checkpoint no longer needs
    del committed[0]
    fs.on_operation = crash
    commit(placing.jobs[-1])
    assert seen == {None, b"c" * 500, b"d" * 100}


def test_a_checkpoint_takes_no_more_of_the_last_segment_than_it_needs() -> None:
    size = 1 << 20
    fs = SimulatedFileSystem(capacity=size)
    store = opened(fs)
    payload = bytes(8)
    lsn = SEGMENT_HEADER_BYTES
    store.commit(CommitJob(1, lsn, 1, 0, size, [payload], len(payload), 1, True), TIME_MS)
    assert fs.free_bytes() == 0
    store.write_checkpoint(b"c" * 1000)
    assert size - (100 << 10) < len(fs.contents()["log/0000000001"]) < size - 1000
    # The next one takes the place of this one, when that has gone.
    for n in range(50):
        store.write_checkpoint(b"%d" % n * 1000)
    assert len(fs.contents()["log/0000000001"]) > size - (100 << 10)


def test_a_start_without_space_cuts_what_does_not_count_of_the_last_segment() -> None:
    """(6): its first frame and a checkpoint fit, whatever a crash leaves all that counts is there."""
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(b"1" * 80), TIME_MS)
    used = len(fs.contents()["log/0000000001"])
    kept = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + 80
    again = Store(fs.kill9())
    survivor = again._fs
    assert isinstance(survivor, SimulatedFileSystem)
    survivor.capacity = used
    again.open()
    again.open_segments()
    again.sync_segments([1])
    again.recovered(1, kept)
    again.resume(int(placing.jobs[-1].crc), SEGMENT_BYTES, EPOCH + 1, STORE_ID, default_algorithm())
    assert len(survivor.contents()["log/0000000001"]) == used, "not before it has to be"

    def crash(event: str) -> None:
        for state in survivor.crash_states(seed=1, limit=100):
            found = Store(state)
            headers, problems = found.open_segments()
            assert (headers[0].number, problems) == (1, [])
            assert [payload for _, payload in frames_of(found.read_segment(1))] == [b"1" * 80], event

    survivor.on_operation = crash
    again.commit(Placing(1, SEGMENT_BYTES).job(bytes(8)), TIME_MS)
    assert len(survivor.contents()["log/0000000001"]) == kept
    again.write_checkpoint(b"c" * 100)
    assert sorted(survivor.contents()) == ["checkpoint", "log/0000000001", "log/0000000002"]


def test_a_log_of_which_a_part_cannot_be_read_is_not_recovered() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(80)), TIME_MS)
    survivor = fs.kill9()
    survivor.capacity = SEGMENT_BYTES
    again = Store(survivor)
    again.open()
    again.open_segments()
    survivor.spoil("log/0000000001", 300, 400)
    with pytest.raises(StoreUnreadableError, match="log/0000000001 cannot be read: Input/output error"):
        again.read_segment(1)
    assert len(survivor.contents()["log/0000000001"]) == SEGMENT_BYTES


def test_a_segment_that_has_gone_since_recovery_is_not_cut() -> None:
    fs = SimulatedFileSystem()
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(80)), TIME_MS)
    survivor = fs.kill9()
    again = Store(survivor)
    again.open()
    again.open_segments()
    again.recovered(1, SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + 80)
    again.resume(int(placing.jobs[-1].crc), SEGMENT_BYTES, EPOCH + 1, STORE_ID, default_algorithm())
    again.release([1])
    again.unlink([1])
    survivor.capacity = 0
    job = Placing(1, SEGMENT_BYTES).job(bytes(8))
    with pytest.raises(StoreFullError):
        again.commit(job, TIME_MS)
    survivor.capacity = None
    again.commit(job, TIME_MS)


def test_out_of_descriptors_nothing_of_the_last_segment_is_given_up() -> None:
    fs = SimulatedFileSystem()
    store = opened(fs)
    store.commit(Placing().job(bytes(8)), TIME_MS)
    Trouble(fs, 2, errno.EMFILE)
    with pytest.raises(StoreFullError):
        store.write_checkpoint(b"c")
    assert len(fs.contents()["log/0000000001"]) == SEGMENT_BYTES


def test_a_checkpoint_that_needs_space_waits_for_the_frame_that_is_being_written() -> None:
    fs = SimulatedFileSystem(capacity=SEGMENT_BYTES)
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(8)), TIME_MS)
    housekeeper = Thread(target=store.write_checkpoint, args=(b"c" * 800,))

    def write_a_checkpoint(event: str) -> None:
        if event.startswith("after write log/"):
            fs.on_operation = None
            housekeeper.start()
            housekeeper.join(0.1)
            assert housekeeper.is_alive()

    fs.on_operation = write_a_checkpoint
    store.commit(placing.job(b"abcdefgh", sync=False), TIME_MS)
    housekeeper.join()
    assert [payload for _, payload in frames_of(store.read_segment(1))] == [bytes(8), b"abcdefgh"]


def test_a_segment_that_cannot_be_preallocated_takes_frames_while_there_is_space() -> None:
    fs = SimulatedFileSystem(capacity=SEGMENT_BYTES // 2)
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(200)), TIME_MS)
    assert len(fs.contents()["log/0000000001"]) < SEGMENT_BYTES // 2
    job = placing.job(bytes(SEGMENT_BYTES // 2))
    with pytest.raises(StoreFullError):
        store.commit(job, TIME_MS)
    fs.capacity = SEGMENT_BYTES
    store.commit(job, TIME_MS)
    headers, _ = Store(fs).open_segments()
    assert len(frames_of(store.read_segment(headers[0].number))) == 2


def test_a_frame_takes_the_place_of_the_spare_when_the_disk_is_full() -> None:
    fs = SimulatedFileSystem(capacity=SEGMENT_BYTES // 2)
    store, placing = opened(fs), Placing()
    store.commit(placing.job(bytes(200)), TIME_MS)  # in a segment that could not be preallocated
    begun_bytes = len(fs.contents()["log/0000000001"])
    fs.capacity = begun_bytes + SEGMENT_BYTES + 100
    store.prepare_spare(SEGMENT_BYTES)
    store.commit(placing.job(bytes(SEGMENT_BYTES // 2)), TIME_MS)
    assert sorted(fs.contents()) == ["log/0000000001"]
    assert [len(payload) for _, payload in frames_of(store.read_segment(1))] == [200, SEGMENT_BYTES // 2]
    fs.capacity = None
    store.prepare_spare(SEGMENT_BYTES)
    assert "log/spare" in fs.contents()


def test_a_spare_is_known_until_its_name_is_free_for_the_next_one() -> None:
    """The committer gives it up while the housekeeper may be asked for one."""
    fs = SimulatedFileSystem(capacity=2 * SEGMENT_BYTES)
    store, placing = opened(fs), Placing()
    store.prepare_spare(SEGMENT_BYTES)
    seen: list[bool] = []

    def ask(event: str) -> None:
        if event == "before unlink log/spare":
            fs.on_operation = None
            store.prepare_spare(SEGMENT_BYTES)
            seen.append("log/spare" in fs.contents())

    fs.on_operation = ask
    store.commit(placing.job(bytes(SEGMENT_BYTES)), TIME_MS)
    assert seen == [True]
    assert sorted(fs.contents()) == ["log/0000000001"]
    store.prepare_spare(fs.free_bytes())
    store.close()
    assert fs.open_paths() == []


def test_a_full_disk_fills_up_to_the_last_frame_that_fits_and_goes_on_where_it_was() -> None:
    fs = SimulatedFileSystem(capacity=2 * SEGMENT_BYTES + 700)
    store, placing = opened(fs), Placing()
    committed = []
    for n in range(100):
        job = placing.job(bytes([n]) * 200)
        try:
            store.commit(job, TIME_MS)
        except StoreFullError:
            break
        committed.append(payload_of(job))
    assert len(committed) == 9, "what a segment did not need was given back"
    fs.capacity = 10 * SEGMENT_BYTES
    store.commit(job, TIME_MS)
    committed.append(payload_of(job))
    headers, problems = Store(fs).open_segments()
    assert problems == []
    assert [p for header in headers for _, p in frames_of(store.read_segment(header.number))] == committed
