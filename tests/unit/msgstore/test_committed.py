"""The log takes as committed only what the outcomes of commits report."""

from __future__ import annotations

import pytest
from memory_store import memory_log

from warren.msgstore.log.checkpoint import snapshot
from warren.msgstore.log.jobs import CommitJob
from warren.msgstore.log.log_position import LogPosition, call_with_position
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.message_log import MessageLog


def job_of(log: MessageLog, number: int, *, sync: bool) -> CommitJob:
    """Return the job of a batch with a message."""
    index = log.indexes.get(1) or log.new_index(1, "/", "q", 0, False)
    log.batch.add(index, build_message(Envelope("", "q"), b"\0\0", b"body", 4096, True), number)
    log.close_soon(sync)
    log.close_if_due()
    (job,) = log.commit_jobs
    log.commit_jobs = []
    return job


def test_the_log_is_durable_up_to_where_the_outcome_of_a_commit_says() -> None:
    log = memory_log()
    first = job_of(log, 0, sync=False)
    log.committed(first)
    assert (log.written_lsn, log.durable_lsn) == (first.end_lsn(), 0)
    second = job_of(log, 1, sync=False)
    second.committed_lsn = first.end_lsn()  # the segment before was sealed, for instance
    log.committed(second)
    assert (log.written_lsn, log.durable_lsn) == (second.end_lsn(), first.end_lsn())
    third = job_of(log, 2, sync=True)
    third.committed_lsn = third.end_lsn()
    log.committed(third)
    assert log.durable_lsn == third.end_lsn()


def test_nobody_is_told_of_a_batch_that_is_synced_here_and_not_committed() -> None:
    log = memory_log()
    told: list[LogPosition] = []
    call_with_position(log, told.append)
    job = job_of(log, 0, sync=True)
    job.committed_lsn = job.end_lsn() - 8
    with pytest.raises(AssertionError, match="reported before it is committed"):
        log.committed(job)
    assert told == []


def test_a_checkpoint_waits_until_the_log_is_committed_up_to_it() -> None:
    log = memory_log()
    log.checkpoints.take = lambda: snapshot(log)
    log.checkpoints.want()
    job = job_of(log, 0, sync=True)
    assert log.checkpoint_jobs == []
    job.committed_lsn = job.end_lsn()
    log.committed(job)
    assert [each.lsn for each in log.checkpoint_jobs] == [log.durable_lsn]
