"""Consumers that want some messages only, from inside: how often they decide, and what they keep. See ``selective``."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, basic_consume, body_of

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.msgstore.log.message import Message
from warren.queues.base_queue import BaseQueue
from warren.queues.dispatch import DRAIN_BUDGET
from warren.queues.queue import Queue
from warren.queues.returned_messages import STALE_MIN, ReturnedMessages
from warren.queues.selection import Selection
from warren.queues.selective import TURN_LOOKS, WINDOW_MESSAGES, Search, Selective


class Counting(Selection):
    """Wants what has a body that begins so; counts decisions."""

    def __init__(self, beginning: bytes, cost: int = 0) -> None:
        super().__init__()
        self.beginning = beginning
        self.decisions = 0
        self.each = cost

    def passes(self, message: Message, now_ms: int) -> bool:
        self.decisions += 1
        self.cost = self.each
        return message.body().startswith(self.beginning)


def declared(harness: Harness, **arguments: Any) -> Queue:
    more: Table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    harness.channel().declare("q", durable=True, arguments=more)
    return harness.plain_queue("q")


def fill(harness: Harness, *bodies: bytes, **properties: Any) -> None:
    publisher = harness.channel()
    for body in bodies:
        publisher.publish("", "q", body, **properties)
    harness.settle()


def selecting(
    harness: Harness,
    beginning: bytes,
    *,
    prefetch: int = 0,
    cost: int = 0,
    client: Client | None = None,
    tag: str = "c",
) -> tuple[Client, Counting]:
    """Return a client that consumes what begins so."""
    client = client or harness.channel()
    queue = harness.plain_queue("q")
    selection = Counting(beginning, cost)
    client.send(1, m.BasicQos(0, prefetch, False))
    before = set(queue.consumers)
    queue.pause(paused=True)
    client.send(1, basic_consume("q", tag))
    (consumer,) = set(queue.consumers) - before
    queue.select(consumer, selection)
    queue.pause(paused=False)
    harness.settle()
    return client, selection


def bodies(client: Client) -> list[bytes]:
    return [body_of(each) for each in client.take() if isinstance(each.method, m.BasicDeliver)]


def search_of(queue: BaseQueue, at: int = 0) -> Search:
    search = list(queue.consumers)[at].search
    assert search is not None
    return search


# --- (1) --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", [1, 4, 8])
def test_everybody_decides_once_on_each_message(consumers: int) -> None:
    counts: list[int] = []
    for size in (200, 400):
        harness = Harness()
        declared(harness)
        fill(harness, *[b"no"] * size)
        everybody = [selecting(harness, b"yes")[1] for _ in range(consumers)]
        for _ in range(size):
            fill(harness, b"never")
        counts.append(sum(each.decisions for each in everybody))
    assert counts == [consumers * 400, consumers * 800]


def test_a_return_is_one_more_decision_of_each_however_long_the_queue_is() -> None:
    harness = Harness()
    queue = declared(harness)
    fill(harness, *[b"no"] * 500, b"yes", *[b"no"] * 500)
    client, selection = selecting(harness, b"yes", prefetch=1)
    _, other = selecting(harness, b"other")
    assert bodies(client) == [b"yes"]
    assert (selection.decisions, other.decisions) == (501, 1000)
    for again in range(1, 50):
        client.send(1, m.BasicNack(again, multiple=False, requeue=True))
        assert len(bodies(client)) == 1
    assert selection.decisions == 501 + 49
    assert other.decisions <= 1000 + 49
    assert queue.unacked_count == 1
    harness.check()


def test_what_others_take_is_not_decided_on() -> None:
    harness = Harness()
    declared(harness)
    client, selection = selecting(harness, b"yes", prefetch=1)
    fill(harness, b"yes")
    fill(harness, *[b"yes"] * 100)
    assert len(bodies(client)) == 1 and selection.decisions == 1
    taker = harness.channel()
    for _ in range(100):
        taker.get("q", no_ack=True)
    client.send(1, m.BasicAck(1, False))
    assert bodies(client) == [] and selection.decisions == 1


def test_who_comes_later_looks_at_what_came_back_too() -> None:
    harness = Harness()
    declared(harness)
    fill(harness, b"yes", b"no", b"yes 2")
    first = harness.channel()
    for _ in range(3):
        first.get("q")
    first.send(1, m.BasicNack(3, multiple=True, requeue=True))
    client, selection = selecting(harness, b"yes")
    assert bodies(client) == [b"yes", b"yes 2"] and selection.decisions == 3


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_what_came_back_is_looked_at_in_its_order(order: tuple[int, ...]) -> None:
    harness = Harness()
    declared(harness)
    fill(harness, b"0", b"1", b"2", b"3")
    holder = harness.channel()
    for _ in range(4):
        holder.get("q")
    client, _ = selecting(harness, b"", prefetch=1)
    queue = harness.plain_queue("q")
    queue.pause(paused=True)
    for at in order:
        holder.send(1, m.BasicReject(at + 1, True))
    queue.pause(paused=False)
    harness.settle()
    found = bodies(client)
    for tag in (1, 2, 3):
        client.send(1, m.BasicAck(tag, False))
        found += bodies(client)
    assert found == [b"0", b"1", b"2", b"3"]


def test_places_that_are_out_of_date_do_not_pile_up() -> None:
    harness = Harness()
    queue = declared(harness)
    selecting(harness, b"yes", prefetch=1)
    fill(harness, b"yes")
    fill(harness, b"no")
    holder = harness.channel()
    for tag in range(1, 1000):
        assert holder.get("q") is not None
        holder.send(1, m.BasicNack(tag, multiple=False, requeue=True))
    assert len(search_of(queue)._again) <= 2 + STALE_MIN + 2
    harness.check()


# --- (3), (4) ---------------------------------------------------------------------------------------------------------


def test_one_that_looks_long_does_not_keep_others_waiting() -> None:
    harness = Harness()
    queue = declared(harness)
    fill(harness, *[b"no"] * 5000)
    _, selection = selecting(harness, b"yes", prefetch=1)
    (consumer,) = queue.consumers
    plain = harness.channel()
    queue.pause(paused=True)
    plain.consume("q", no_ack=True)
    fill(harness, *[b"no"] * 5000)
    before = selection.decisions
    queue.pause(paused=False)
    queue.drain()
    looked = selection.decisions - before
    handed_out = 10_000 - int(queue.ready_count)
    assert consumer.search is not None and handed_out >= DRAIN_BUDGET // (TURN_LOOKS + 1) - 1
    assert looked + handed_out <= DRAIN_BUDGET + TURN_LOOKS
    harness.settle()


def test_dear_decisions_use_up_the_budget_of_a_turn() -> None:
    harness = Harness()
    queue = declared(harness)
    fill(harness, *[b"no"] * 1000)
    _, selection = selecting(harness, b"yes", cost=100)
    assert selection.decisions == 1000
    queue.pause(paused=True)
    fill(harness, *[b"no"] * 1000)
    queue.pause(paused=False)
    queue.drain()
    assert 1000 + DRAIN_BUDGET // 101 <= selection.decisions <= 1000 + DRAIN_BUDGET // 101 + 1
    harness.settle()


def test_looking_counts_for_the_turn_of_a_connection() -> None:
    harness = Harness()
    declared(harness)
    client = harness.channel()
    for number in range(4):
        selecting(harness, b"yes", client=client, tag=f"c{number}")
    queue = harness.plain_queue("q")
    queue.pause(paused=True)
    fill(harness, *[b"no"] * (2 * DRAIN_BUDGET))
    queue.pause(paused=False)
    consumers = list(queue.consumers)
    costs: list[int] = []
    for consumer in consumers[:2]:
        costs.append(int(consumer.take_turn(32)))
    assert all(DRAIN_BUDGET <= cost <= DRAIN_BUDGET + TURN_LOOKS + 1 for cost in costs)
    harness.settle()


class Failing(Counting):
    """Fails once, when it is told to."""

    def __init__(self, beginning: bytes) -> None:
        super().__init__(beginning)
        self.fails = False

    def passes(self, message: Message, now_ms: int) -> bool:
        if self.fails:
            self.fails = False
            raise MemoryError
        return super().passes(message, now_ms)


def two_consumers(harness: Harness, client: Client) -> tuple[Queue, Failing]:
    """Return a queue that is paused, with two consumers that want everything; the first may fail."""
    queue = declared(harness)
    queue.pause(paused=True)
    client.send(1, basic_consume("q", "failing"), basic_consume("q", "other"))
    failing = Failing(b"m")
    for consumer, selection in zip(list(queue.consumers), (failing, Counting(b"m")), strict=True):
        queue.select(consumer, selection)
    return queue, failing


def test_a_turn_that_fails_leaves_their_turns_to_the_others() -> None:
    harness = Harness()
    client = harness.channel()
    client.send(1, m.BasicQos(0, 1, False))
    queue, failing = two_consumers(harness, client)
    fill(harness, b"m1", b"m2")
    consumer = next(iter(queue.consumers))
    queue.pause(paused=False)
    failing.fails = True
    with pytest.raises(MemoryError):
        consumer.take_turn(1)
    queue.wake()
    harness.settle()
    assert sorted(bodies(client)) == [b"m1", b"m2"]
    harness.check()


def test_a_channel_is_served_after_a_turn_of_it_has_failed() -> None:
    harness = Harness()
    client = harness.channel()
    client.send(1, m.BasicQos(0, 1, True))
    queue, failing = two_consumers(harness, client)
    fill(harness, *[b"m"] * 4)
    queue.pause(paused=False)
    harness.settle()
    failing.fails = True
    failures = 0
    while tags := [each.method.delivery_tag for each in client.take() if isinstance(each.method, m.BasicDeliver)]:
        assert len(tags) == 1
        try:
            client.send(1, m.BasicAck(tags[0], False))
        except MemoryError:
            failures += 1
        harness.settle()
    assert (failures, queue.ready_count, queue.unacked_count) == (1, 0, 0)
    harness.check()


# --- (5) --------------------------------------------------------------------------------------------------------------


def on_disk(count: int, *bodies_: bytes) -> Harness:
    harness = Harness()
    harness.broker.log.memory_bytes = 0
    declared(harness)
    fill(harness, *[b"no"] * count, *bodies_, delivery_mode=2)
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()
    return harness


def test_a_window_is_let_go_when_nobody_has_its_place_there() -> None:
    harness = on_disk(3 * WINDOW_MESSAGES, b"yes")
    log = harness.broker.log
    before = log.resident_bytes
    client, selection = selecting(harness, b"yes")
    assert bodies(client) == [b"yes"] and selection.decisions == 3 * WINDOW_MESSAGES + 1
    assert log.resident_bytes <= before
    harness.check()


def test_two_who_want_the_same_of_what_is_read_have_it_once() -> None:
    harness = on_disk(300, b"yes 1", b"yes 2", b"yes 3")
    first, _ = selecting(harness, b"yes", prefetch=1)
    second, _ = selecting(harness, b"yes", prefetch=2)
    assert bodies(first) == [b"yes 1"] and bodies(second) == [b"yes 2", b"yes 3"]
    harness.check()
    queue = harness.plain_queue("q")
    queue.pause(paused=True)
    both = [harness.channel(), harness.channel()]
    for at, client in enumerate(both):
        selection = Counting(b"no")
        client.send(1, m.BasicQos(0, 200, False), basic_consume("q", f"n{at}"))
        queue.select(list(queue.consumers)[-1], selection)
    queue.pause(paused=False)
    harness.settle()
    assert [len(bodies(client)) for client in both] == [150, 150]
    assert queue.unacked_count == 303 and queue.ready_count == 0
    harness.check()


@pytest.mark.parametrize("ends", ["cancelled", "deleted"])
def test_what_is_read_for_who_goes_meanwhile_is_let_go(ends: str) -> None:
    harness = on_disk(3 * WINDOW_MESSAGES, b"yes")
    queue = harness.plain_queue("q")
    log = harness.broker.log
    before = log.resident_bytes
    client, other = harness.channel(), harness.channel()
    queue.pause(paused=True)
    client.send(1, basic_consume("q", "c"))
    (consumer,) = queue.consumers
    selection = Counting(b"yes")
    queue.select(consumer, selection)
    selective = queue.need_keeper().dispatch
    queue.pause(paused=False)
    queue.drain()
    assert log.read_jobs and selection.decisions < WINDOW_MESSAGES, "nothing is being read"
    if ends == "cancelled":
        client.send(1, m.BasicCancel("c", True))
    else:
        other.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    harness.settle()
    assert isinstance(selective, Selective) and selective.selective_count() == 0 and consumer.search is None
    assert selection.decisions < WINDOW_MESSAGES
    assert log.resident_bytes == (before if ends == "cancelled" else 0)
    harness.check()


def test_a_message_taken_before_others_of_its_page_are_stored_can_be_answered() -> None:
    """Nothing of the queue was stored when it was taken; its page of the index is left by the time of its answer."""
    harness = Harness()
    declared(harness)
    count = 8 * WINDOW_MESSAGES
    fill(harness, *[b"no"] * (count // 2), b"yes", *[b"no"] * (count // 2))
    client, _ = selecting(harness, b"yes")
    (delivery,) = [each for each in client.take() if isinstance(each.method, m.BasicDeliver)]
    log = harness.broker.log
    log.memory_bytes = 0
    log.under_pressure = True
    queue = harness.plain_queue("q")
    for _ in range(8):
        queue.page_out()
        log.close_if_due(lingered=True)
        harness.settle()
    assert queue.ready.paged_out_count() > count // 2
    client.send(1, m.BasicAck(delivery.method.delivery_tag, False))
    assert queue.unacked_count == 0 and queue.ready_count == count
    harness.check()


# --- what came back ---------------------------------------------------------------------------------------------------


def message_of(harness: Harness, body: bytes) -> Message:
    harness.channel().publish("", "q", body)
    message = harness.queue("q").ready.take_next()
    assert message is not None
    return message


def test_any_message_that_came_back_can_be_taken_and_the_order_stays() -> None:
    harness = Harness()
    declared(harness)
    message = message_of(harness, b"x")
    returned = ReturnedMessages()
    for place in range(999, -1, -1):
        returned.put(message, place)
    for place in range(0, 1000, 2):
        assert returned.maybe_take(place) is message
        returned.check_invariants()
    assert returned.maybe_take(0) is None
    assert [place for place, _ in returned.between(0, 1 << 60, 3)] == [1, 3, 5]
    returned.put(message, 0)
    assert returned.first_place() == 0 and returned.count() == 501
    assert [place for place, _ in returned.between(2, 9, 30)] == [3, 5, 7, 9]
    found: list[int] = []
    while returned.count():
        found.append(int(returned.first_place()))
        assert returned.maybe_take(found[-1]) is message
        returned.check_invariants()
    assert found == [0, *range(1, 1000, 2)]
