"""Compaction of records that are larger than a piece: compaction.py (6)."""

from __future__ import annotations

import pytest
from librt.vecs import append, vec
from mypy_extensions import i64
from stored_log import StoredLog, timed_message

from warren.msgstore.log.checksum import CRC32, CRC32C, change_behind, checksum_function
from warren.msgstore.log.compaction import PIECE_BYTES, LargeRead
from warren.msgstore.log.records import (
    MESSAGE_HEAD_BYTES,
    MOVED,
    PLACE_BYTES,
    RecordWriter,
    is_intact,
    place_count,
    record_length,
)

BODY = bytes(range(256)) * (3 * PIECE_BYTES // 256)


class Large(StoredLog):
    """A log whose first segment has a large message in two queues, and others that are settled."""

    def __init__(self, queues: int = 2) -> None:
        super().__init__(segment_bytes=8 * PIECE_BYTES)
        self.queues = [self.index(1 + number) for number in range(queues)]
        self.large = timed_message(BODY)
        for index in self.queues:
            self.log.batch.add(index, self.large, 0)
        self.rest()
        self.segment = self.log.segments.segments[0]
        other = self.index(90)
        for number in range(12):
            self.log.batch.add(other, timed_message(bytes(PIECE_BYTES)), number)
            self.rest()
        self.log.batch.settle_range(other, 0, 12)
        self.log.checkpoints.want()
        self.rest()
        assert self.segment.sealed and self.segment.is_sparse(True)

    def step(self) -> LargeRead:
        """Compact up to the large record; return its read, which is not carried out."""
        while True:
            assert self.compaction.step(urgent=True)
            (job,) = self.log.read_jobs
            self.log.read_jobs.clear()
            if isinstance(job, LargeRead):
                return job
            job.carry_out(self.disk.files)
            job.finished()

    def body_of(self, queue: int) -> bytes:
        index = self.queues[queue]
        lsn = int(index.lsn_of(0))
        head = self.disk.read(lsn, 8)
        data = self.disk.read(lsn, int.from_bytes(head[4:8], "big"))
        message = self.log.maybe_message(index, 0, data, 0, len(data), False)
        assert message is not None, "the copy is not intact"
        return message.body()


def test_a_large_record_moves_in_the_pieces_that_were_read() -> None:
    log = Large()
    job = log.step()
    assert max(length for _, length in job.ranges) < PIECE_BYTES
    job.carry_out(log.disk.files)
    assert job.is_whole and job.damaged(log.log.checksum) == []
    job.finished()
    (copy,) = log.log.batch._wanted_copies
    assert copy.pieces is not None
    assert all(a is b for a, b in zip(copy.pieces, job.data[1:], strict=True)), "nothing is copied"
    log.rest()
    assert log.segment.live_refs == 0
    assert [log.body_of(queue) for queue in (0, 1)] == [BODY, BODY]
    log.log.check_invariants()


def test_a_place_that_is_settled_before_the_copy_is_written_is_left_out() -> None:
    log = Large()
    job = log.step()
    job.carry_out(log.disk.files)
    job.finished()
    log.settle(log.queues[1], log.large, 0)
    log.rest()
    assert log.segment.live_refs == 0
    assert log.queues[1].live_count == 0
    assert log.body_of(0) == BODY
    log.log.check_invariants()


@pytest.mark.parametrize("at", [0, 9, 26, 5000])
def test_a_large_record_that_is_damaged_stays(at: int) -> None:
    log = Large()
    job = log.step()
    base = int(log.segment.base_lsn)
    log.disk.segments[base][job.ranges[0][0] - base + at] ^= 1
    job.carry_out(log.disk.files)
    assert job.damaged(log.log.checksum) == [job.ranges[0][0]]
    job.finished()
    log.rest()
    assert log.segment.live_refs == 2
    moved = log.compaction.moved_bytes
    log.compact()
    assert log.compaction.moved_bytes == moved, "it is not tried again"


@pytest.mark.parametrize("algorithm", [CRC32C, CRC32])
@pytest.mark.parametrize("size", [0, 1, 255, 100_003])
def test_a_checksum_follows_from_the_change_of_its_beginning(algorithm: int, size: int) -> None:
    checksum = checksum_function(algorithm)
    rest = bytes(size)[:-1] + b"x" if size else b""
    old, new = b"the old beginning", b"another"
    change = checksum(old, 0) ^ checksum(new, 0)
    assert checksum(old + rest, 0) ^ change_behind(checksum, change, size) == checksum(new + rest, 0)


@pytest.mark.parametrize("algorithm", [CRC32C, CRC32])
@pytest.mark.parametrize("kept", [[0], [1, 2], [0, 1, 2]])
def test_a_copy_in_pieces_is_the_same_as_one_in_whole(algorithm: int, kept: list[int]) -> None:
    checksum = checksum_function(algorithm)
    written = RecordWriter(checksum)
    ids, numbers = vec[i64](), vec[i64]()
    for place in range(3):
        ids, numbers = append(ids, 7 + place), append(numbers, 100 + place)
    length = int(written.message(timed_message(bytes(range(256)) * 10), 0, ids, numbers))
    record = b"".join(written.take_chunks())[:length]
    some_ids, some_numbers = vec[i64](), vec[i64]()
    for place in kept:
        some_ids, some_numbers = append(some_ids, 7 + place), append(some_numbers, 100 + place)
    whole, pieced = RecordWriter(checksum), RecordWriter(checksum)
    head = MESSAGE_HEAD_BYTES + PLACE_BYTES * int(place_count(record, 0))
    pieces = [record[head : head + 1000], record[head + 1000 :]]
    size = whole.copy(record, MOVED, some_ids, some_numbers)
    assert pieced.copy(record[:head], MOVED, some_ids, some_numbers, pieces) == size
    copy = b"".join(pieced.take_chunks())
    assert copy == b"".join(whole.take_chunks())
    assert record_length(copy, 0) == size and is_intact(checksum, copy, 0, size)
