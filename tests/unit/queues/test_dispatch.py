"""Which consumer takes a message that becomes ready: the dispatch of queues with a keeper. (n): ``queues.dispatch``."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, basic_consume

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.msgstore.log.message import Message
from warren.queues.dispatch import Dispatch, PriorityDispatch
from warren.queues.key_sharing import KeyShared
from warren.queues.queue import Queue
from warren.queues.selection import Selection
from warren.queues.selective import Selective


class All(Selection):
    """Passes every message."""

    def passes(self, message: Message, now_ms: int) -> bool:
        return True


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def client(harness: Harness) -> Client:
    return harness.channel()


def declared(client: Client, arguments: Table) -> Queue:
    client.declare("q", arguments=arguments)
    return client.harness.plain_queue("q")


def cancel(client: Client, *tags: str) -> None:
    client.send(1, *[m.BasicCancel(tag, False) for tag in tags])
    client.take()


def dispatch_of(queue: Queue) -> Dispatch:
    return queue.need_keeper().dispatch


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"x-max-length": 5}, Dispatch),
        ({"x-max-priority": 0}, Dispatch),
        ({"x-max-priority": 1}, PriorityDispatch),
        ({"x-key-shared": True}, KeyShared),
    ],
)
def test_the_arguments_of_a_queue_decide_which_dispatch_it_has(
    client: Client, arguments: Table, kind: type[Dispatch]
) -> None:
    assert type(dispatch_of(declared(client, arguments))) is kind


def test_a_plain_queue_has_neither_a_keeper_nor_a_dispatch(client: Client) -> None:
    assert declared(client, {}).keeper is None


@pytest.mark.parametrize("levels", [0, 3])
def test_a_queue_has_its_dispatch_again_when_its_last_selective_consumer_has_gone(client: Client, levels: int) -> None:
    queue = declared(client, {"x-max-priority": levels})
    usual = dispatch_of(queue)
    client.send(1, basic_consume("q", "one"), basic_consume("q", "two"), basic_consume("q", "plain"))
    client.take()
    one, two, _ = queue.consumers
    queue.select(one, All())
    queue.select(two, All())
    selective = dispatch_of(queue)
    assert isinstance(selective, Selective) and dispatch_of(queue).selective_count() == 2
    cancel(client, "plain", "one")
    assert dispatch_of(queue) is selective and dispatch_of(queue).selective_count() == 1
    cancel(client, "two")
    assert dispatch_of(queue) is usual and dispatch_of(queue).selective_count() == 0


@pytest.mark.parametrize("arguments", [{"x-max-length": 9}, {"x-max-priority": 3}, {"x-key-shared": True}])
def test_a_message_is_offered_once_and_else_waits(harness: Harness, client: Client, arguments: Table) -> None:
    queue = declared(client, arguments)
    client.publish("", "q", b"waits")
    assert queue.ready_count == 1
    other = harness.channel()
    other.send(1, m.BasicQos(0, 1, False), basic_consume("q", "c"))
    other.take()
    client.publish("", "q", b"waits too")
    assert (queue.ready_count, queue.unacked_count) == (1, 1)
    harness.check()


def test_a_message_of_a_higher_level_is_taken_while_lower_ones_are_read_from_disk(client: Client) -> None:
    queue = declared(client, {"x-max-priority": 3})
    queue.is_hungry = True
    dispatch_of(queue).came(0)
    assert not queue.is_scheduled, "nothing waits"
    client.publish("", "q", b"low")
    queue.is_hungry = True
    dispatch_of(queue).came(0)
    assert queue.is_scheduled


@pytest.mark.parametrize(
    "answer",
    [
        m.BasicAck(1, False),
        m.BasicReject(1, False),
        m.BasicReject(1, True),
        m.BasicNack(1, multiple=False, requeue=True),
    ],
    ids=["ack", "reject", "requeue", "nack"],
)
@pytest.mark.parametrize("gets", [True, False])
def test_each_delivery_ends_with_settled_or_came_back(
    harness: Harness, client: Client, answer: object, gets: bool
) -> None:
    """(2): a key-shared queue knows how many deliveries of each key are out, and `check` counts them."""
    queue = declared(client, {"x-key-shared": True})
    client.publish("", "q", b"x")
    client.send(1, m.BasicGet(0, "q", False) if gets else basic_consume("q", "c"))
    client.take()
    assert queue.unacked_count == 1
    harness.check()
    client.send(1, answer)
    client.take()
    harness.check()
