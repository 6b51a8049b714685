"""A tx.commit whose contents are written ahead of it (`msgstore.log.bodies_ahead`): others do not wait for their bytes.

The numbers in parentheses are the invariants in the header of that module.
"""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client

from warren.amqp import methods as m
from warren.channels.commit_check import CommitCheck
from warren.channels.transaction import Commit
from warren.msgstore.log.jobs import PortionJob
from warren.msgstore.log.records import CHUNK_MIN_BYTES

from .transacting import channel_of, put, transaction_of

BODIES = [b"%d" % at * (CHUNK_MIN_BYTES + at) for at in range(4)]


def begun() -> tuple[DurableHarness, Client, Client]:
    """Return a broker that writes ahead what is not tiny, a client in a transaction, and another one with confirms."""
    harness = DurableHarness()
    sizes = harness.broker.log.ahead_file.sizes
    sizes.batch_bytes_min = sizes.content_bytes_min = sizes.portion_bytes = CHUNK_MIN_BYTES
    sizes.room_bytes = 4096
    client, other = harness.channel(), harness.channel()
    client.declare("large", durable=True)
    client.declare("too", durable=True)
    client.call(1, m.TxSelect())
    other.declare("small", durable=True)
    other.call(1, m.ConfirmSelect(False))
    return harness, client, other


def commit(client: Client, *, key: str = "large") -> None:
    for body in BODIES:
        put(client, key, body=body, delivery_mode=2)
    put(client, key, body=b"little", delivery_mode=2)
    client.send(1, m.TxCommit())


def kinds(client: Client) -> list[str]:
    return [type(received.method).__name__ for received in client.take()]


def test_others_are_confirmed_between_the_portions_of_a_large_commit() -> None:
    harness, client, other = begun()
    store, log = harness.store, harness.broker.log
    store.commits_left = 0
    commit(client)
    plan = log.ahead_file.plan
    assert plan is not None
    for at in range(len(BODIES)):
        (job,) = log.commit_jobs
        assert isinstance(job, PortionJob)
        assert len(job.chunks) == 1
        put(other, "small", body=b"%d" % at, delivery_mode=2)
        store.commits_left = 2
        harness.settle()
        assert kinds(other) == ["BasicAck"]
        if at < len(BODIES) - 1:
            assert kinds(client) == []
            assert harness.queue("large").ready_count == 0
    store.commits_left = -1
    harness.settle()
    assert kinds(client) == ["TxCommitOk"]
    assert plan.is_placed()
    harness = harness.restart(clean=False)
    assert harness.waiting("large") == [*BODIES, b"little"]
    assert harness.waiting("small") == [b"0", b"1", b"2", b"3"]
    harness.check()


@pytest.mark.parametrize("jobs", range(len(BODIES) + 2))
def test_a_large_commit_is_there_whole_or_not_after_a_crash_at_each_of_its_jobs(jobs: int) -> None:
    """(1)"""
    harness, client, _ = begun()
    harness.store.jobs_left = jobs
    commit(client)
    done = kinds(client) == ["TxCommitOk"]
    assert done == (jobs > len(BODIES))
    harness = harness.restart(clean=False)
    assert harness.waiting("large") == ([*BODIES, b"little"] if done else [])


def test_two_large_commits_take_turns() -> None:
    """(4)"""
    harness, client, other = begun()
    third = harness.channel()
    third.call(1, m.TxSelect())
    harness.store.commits_left = 0
    commit(client)
    commit(third, key="too")
    harness.store.commits_left = -1
    harness.settle()
    assert kinds(client) == kinds(third) == ["TxCommitOk"]
    assert harness.broker.log.ahead_file.plan is None
    harness = harness.restart(clean=False)
    assert harness.waiting("large") == harness.waiting("too") == [*BODIES, b"little"]
    assert other is not third


def test_what_turns_out_different_is_written_with_the_frame() -> None:
    """(3): a queue is deleted while its contents are written. Its place is not filled with zeros."""
    harness, client, other = begun()
    harness.store.commits_left = 0
    for at, body in enumerate(BODIES):
        put(client, "too" if at == 1 else "large", body=body, delivery_mode=2)
    client.send(1, m.TxCommit())
    other.send(1, m.QueueDelete(0, "too", False, False, True))
    harness.store.commits_left = -1
    harness.settle()
    assert kinds(client) == ["TxCommitOk"]
    log = harness.broker.log
    assert log.ahead_file.plan is None
    kept = [BODIES[0], *BODIES[2:]]
    size = int(log.segments.segments[-1].end_lsn - log.segments.segments[-1].base_lsn)
    assert size < sum(map(len, kept)) + log.ahead_file.sizes.room_bytes + 2048
    harness = harness.restart(clean=False)
    assert harness.waiting("large") == kept


def test_a_commit_of_which_nothing_is_stored_gives_its_file_back() -> None:
    """(4): its only queue is deleted meanwhile, and nothing else closes the batch."""
    harness, client, other = begun()
    harness.store.commits_left = 0
    commit(client, key="too")
    other.send(1, m.QueueDelete(0, "too", False, False, True))
    harness.broker.log.force()
    harness.store.commits_left = -1
    harness.settle()
    assert kinds(client) == ["TxCommitOk"]
    assert harness.broker.log.ahead_file.plan is None
    commit(client)
    harness.settle()
    assert kinds(client) == ["TxCommitOk"]
    harness = harness.restart(clean=False)
    assert harness.waiting("large") == [*BODIES, b"little"]


def test_a_commit_that_is_rolled_back_gives_its_file_back_and_the_next_one_begins() -> None:
    """(4): a queue refuses it when its contents are on the disk."""
    harness, client, _ = begun()
    client.declare("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    put(client, "full", body=BODIES[0], delivery_mode=2)
    put(client, "full", body=BODIES[1], delivery_mode=2)
    transaction = transaction_of(client)
    plan = transaction.maybe_bodies()
    assert plan is not None
    harness.store.commits_left = 0
    client.connection.begin(Commit(channel_of(client), transaction, CommitCheck(mandatory=False), ahead=plan))
    file = harness.broker.log.ahead_file
    assert file.plan is plan
    harness.store.commits_left = -1
    harness.settle()
    assert kinds(client) == ["TxRollbackOk"]
    assert file.plan is None
    third = harness.channel()
    third.call(1, m.TxSelect())
    commit(third)
    harness.settle()
    assert kinds(third) == ["TxCommitOk"]
    harness = harness.restart(clean=False)
    assert harness.waiting("full") == []
    assert harness.waiting("large") == [*BODIES, b"little"]


def test_a_transaction_of_very_many_messages_is_not_planned() -> None:
    """A plan is made in one turn."""
    harness, client, _ = begun()
    put(client, "large", 2, body=BODIES[0], delivery_mode=2)
    assert transaction_of(client).maybe_bodies() is not None
    put(client, "large", int(harness.broker.log.ahead_file.sizes.rows_max) - 1, body=b"small", delivery_mode=2)
    assert transaction_of(client).maybe_bodies() is None


def test_a_commit_whose_client_has_gone_is_carried_out() -> None:
    harness, client, _ = begun()
    harness.store.commits_left = 0
    commit(client)
    client.hang_up()
    harness.store.commits_left = -1
    harness.settle()
    assert harness.broker.log.ahead_file.plan is None
    assert harness.waiting("large") in ([*BODIES, b"little"], [])


def test_with_much_in_the_open_batch_a_large_commit_waits_for_the_next_one() -> None:
    harness, client, other = begun()
    harness.store.commits_left = 0
    commit(client)
    for at in range(len(BODIES)):
        harness.store.commits_left = 1
        if at == len(BODIES) - 1:
            harness.store.commits_left = 0
            put(other, "small", 40, body=b"x" * 500, delivery_mode=2)
            harness.store.commits_left = -1
        harness.settle()
    assert kinds(client) == ["TxCommitOk"]
    harness = harness.restart(clean=False)
    assert harness.waiting("large") == [*BODIES, b"little"]
    assert len(harness.waiting("small")) == 40
