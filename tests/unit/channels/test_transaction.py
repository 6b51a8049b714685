"""The effects of a transaction if it were committed now, the writes of a commit, and the remains of a rollback."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import pytest
import trio
from durable_harness import SHAPE, DurableHarness
from engine_harness import USER, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.channels.transaction import BufferedPublish
from warren.server.direct_clients import DirectClients

from .transacting import begin, put

# More publishes than a turn has steps.
MANY = 6000


def test_what_is_rolled_back_is_not_remembered_by_an_exchange_with_a_history() -> None:
    _, client = begin()
    client.declare_exchange("h", "x-recent-history")
    put(client, "k", body=b"rolled back", exchange="h")
    client.call(1, m.TxRollback())
    put(client, "k", body=b"committed", exchange="h")
    client.declare("before")
    client.bind("before", "h")
    assert client.get("before") is None
    client.call(1, m.TxCommit())
    client.declare("after")
    client.bind("after", "h")
    found = client.get("after", no_ack=True)
    assert found is not None
    assert found.content is not None
    assert found.content.body == b"committed"
    assert client.get("after") is None


def test_a_repetition_in_a_transaction_is_not_remembered_by_an_exchange_with_a_history() -> None:
    _, client = begin()
    client.declare_exchange("h", "x-recent-history", arguments={"x-message-deduplication": True})
    client.declare("before")
    client.bind("before", "h")
    for _ in range(2):
        put(client, "k", exchange="h", headers=encode_table({"x-deduplication-header": "one"}))
    client.call(1, m.TxCommit())
    client.declare("after")
    client.bind("after", "h")
    assert client.get("after", no_ack=True) is not None
    assert client.get("after", no_ack=True) is None


@pytest.mark.parametrize("delayed", [False, True])
def test_an_exchange_with_a_history_that_is_deleted_before_the_commit_remembers_nothing(delayed: bool) -> None:
    harness, client = begin()
    arguments: dict[str, Any] = {"x-delayed-type": "x-recent-history"} if delayed else {}
    client.declare_exchange("h", "x-delayed-message" if delayed else "x-recent-history", arguments=arguments)
    put(client, "k", body=b"x" * 1000, exchange="h")
    harness.channel().call(1, m.ExchangeDelete(0, "h", if_unused=False, no_wait=False))
    client.call(1, m.TxCommit())
    assert harness.vhost.remembered_bytes.total == 0


def test_a_long_commit_is_one_frame_of_the_log_although_its_connection_is_lost() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True)
    client.call(1, m.TxSelect())
    bodies = [b"%d" % number for number in range(MANY)]
    client.feed(b"".join(publish_frames("", "q", body, properties={"delivery_mode": 2}) for body in bodies))
    commits = harness.store.commits
    client.connection.feed(method_frame(1, m.TxCommit()))
    assert 0 < harness.queue("q").ready_count < MANY
    harness.broker.end_turn()
    client.connection.lost()
    harness.settle()
    assert harness.queue("q").ready_count == MANY
    assert harness.store.commits == commits + 1
    other = harness.channel()
    got = other.get("q")
    assert got is not None and got.content is not None
    assert got.content.body == b"0"


@pytest.mark.parametrize("jobs", [0, 1, 2, 3])
def test_requeues_follow_their_commit_and_a_crash_between_leaves_a_whole(jobs: int) -> None:
    """Publishes, acknowledgements and drops are there or not, as one; requeued messages are there in any case."""
    harness = DurableHarness(shape=SHAPE._replace(frame_bytes=1 << 16))
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    client.declare("new", durable=True)
    count = 60
    client.feed(publish_frames("", "q", bytes(2_000), properties={"delivery_mode": 2}) * count)
    harness.write()
    harness.broker.log.batch_bytes = 1 << 15
    client.consume("q", "c")
    client.take()
    client.call(1, m.TxSelect())
    client.feed(publish_frames("", "new", b"x" * 100, properties={"delivery_mode": 2}) * 3)
    client.send(
        1,
        m.BasicAck(1, False),
        m.BasicNack(2, multiple=False, requeue=False),
        m.BasicNack(0, multiple=True, requeue=True),
    )
    harness.store.jobs_left = jobs
    client.feed(method_frame(1, m.BasicCancel("c", True)) + method_frame(1, m.TxCommit()))
    harness = harness.restart(clean=False)
    queue, new = harness.queue("q"), harness.queue("new")
    assert (queue.ready_count, new.ready_count) == ((count, 0) if jobs == 0 else (count - 2, 3))
    harness.check()


def test_a_transaction_of_the_broker_itself_has_no_limit() -> None:
    harness = Harness(transaction_max_bytes=1)
    harness.channel().declare("q")

    clients = DirectClients(harness.broker.open_direct, harness.settle)

    async def fill() -> int:
        with clients.open(USER, "/") as direct:
            await direct.begin_transaction()
            await direct.put(publish_frames("", "q", bytes(1_000)) * 20)
            transaction = direct.session.transaction
            assert transaction is not None
            return len(transaction.publishes)

    assert trio.run(fill) == 20


def buffered() -> int:
    """Return how many publishes of transactions there are."""
    return sum(isinstance(each, BufferedPublish) for each in gc.get_objects())


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (1, m.TxCommit()),
        (1, m.TxRollback()),
        (1, m.ChannelClose(200, "", 0, 0)),
        (0, m.ConnectionClose(200, "", 0, 0)),
    ],
)
def test_the_publishes_of_a_transaction_that_ends_are_taken_apart_in_several_turns(number: int, end: Any) -> None:
    harness, client = begin()
    client.declare("q")
    gc.collect()
    others = buffered()
    harness.broker.work.turn_steps = MANY // 100
    put(client, "q", MANY)
    left = [buffered() - others]
    assert left[0] == MANY
    client.connection.feed(method_frame(number, end))
    left.append(buffered() - others)
    while left[-1] > 0 and len(left) < MANY:
        harness.broker.end_turn()
        left.append(buffered() - others)
    assert left[-1] == 0
    assert max(one - other for one, other in pairwise(left)) <= MANY // 5, "many go at once"
