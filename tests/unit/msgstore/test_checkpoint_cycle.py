"""When checkpoints are taken, and what goes then. In parentheses: the header of ``checkpoint_cycle.py``."""

from __future__ import annotations

from itertools import pairwise

from stored_log import StoredLog, timed_message

from warren.msgstore.log.checkpoint import CLEAN
from warren.msgstore.log.queue_index import QueueIndex

SEGMENT_BYTES = 4096


def fill(log: StoredLog, index: QueueIndex, count: int, first: int = 0) -> None:
    """Store `count` messages of 1 KB, each in a frame of its own."""
    for number in range(first, first + count):
        log.log.batch.add(index, timed_message(bytes(1000)), number)
        log.rest()


def settle(log: StoredLog, index: QueueIndex, numbers: range) -> None:
    for number in numbers:
        log.settle(index, timed_message(b""), number)
    log.rest()


def test_one_is_written_when_the_log_is_durable_up_to_there() -> None:
    """(1), (2)"""
    log = StoredLog()
    log.log.batch.add(log.index(1), timed_message(b"x"), 0)
    log.log.checkpoints.want()
    assert log.log.checkpoint_jobs == [], "the batch is open"
    log.log.close_if_due()
    assert log.log.checkpoint_jobs == [], "the commit is under way"
    (commit,) = log.log.commit_jobs
    assert commit.sync
    assert log.disk.run()
    assert log.log.checkpoints.lsn == 0
    assert log.disk.run(), "the checkpoint"
    assert log.log.checkpoints.lsn == log.log.durable_lsn == log.log.next_lsn


def test_one_that_finds_everything_synced_is_written_at_once() -> None:
    """(2)"""
    log = StoredLog()
    log.log.batch.add(log.index(1), timed_message(b"x"), 0)
    log.log.force()
    log.rest()
    log.log.checkpoints.want()
    log.log.close_if_due()
    (job,) = log.log.checkpoint_jobs
    assert (job.lsn, job.last_crc) == (log.log.next_lsn, log.log.last_crc)


def test_none_is_taken_while_another_is_under_way() -> None:
    """(1)"""
    log = StoredLog()
    index = log.index(1)
    fill(log, index, 1)
    log.log.checkpoints.want()
    log.log.close_if_due()
    assert log.disk.run()
    (job,) = log.log.checkpoint_jobs
    log.log.checkpoints.want(clean=True)
    log.log.batch.add(index, timed_message(b"more"), 1)
    log.log.close_if_due(lingered=True)
    assert log.log.checkpoint_jobs == [job] and not job.content[13] & CLEAN
    log.rest()
    log.log.checkpoints.want(clean=True)
    log.rest()
    assert log.disk.checkpoint[13] & CLEAN and log.log.checkpoints.lsn == log.log.next_lsn


def test_so_much_of_the_log_makes_one() -> None:
    log = StoredLog()
    log.log.checkpoints.every_bytes = 10_000
    index = log.index(1)
    taken = []
    for number in range(40):
        fill(log, index, 1, number)
        if log.log.checkpoints.lsn not in taken:
            taken.append(int(log.log.checkpoints.lsn))
    assert all(9_000 < later - earlier <= 11_500 for earlier, later in pairwise(taken[1:]))
    assert len(taken) in (4, 5)


def test_a_segment_goes_when_a_checkpoint_is_written_that_was_taken_when_it_was_dead() -> None:
    """(3)"""
    log = StoredLog(segment_bytes=SEGMENT_BYTES)
    index = log.index(1)
    fill(log, index, 12)
    numbers = [int(segment.number) for segment in log.log.segments.segments]
    assert len(numbers) > 3
    # The first one is dead when it is taken, the second one only when it is written.
    settle(log, index, range(3))
    log.log.checkpoints.want()
    log.log.close_if_due()
    settling = range(3, 6)
    for number in settling:
        log.settle(index, timed_message(b""), number)
    dead = [int(segment.number) for segment in log.log.segments.segments if segment.is_dead()]
    log.rest()
    left = [int(segment.number) for segment in log.log.segments.segments]
    gone = [number for number in numbers if number not in left]
    assert gone and set(gone) < set(dead)
    log.log.checkpoints.want()
    log.rest()
    left = [int(segment.number) for segment in log.log.segments.segments]
    assert not set(dead) & set(left)
