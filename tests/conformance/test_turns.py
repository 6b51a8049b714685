"""Consumers that share a channel or a connection are served in turn."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Any

import pytest
from engine_harness import Client, Harness, Received, basic_consume, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.queues.consumer_groups import PASSED_OVER_PER_MESSAGE
from warren.queues.dispatch import DRAIN_BUDGET
from warren.queues.turns import RUN_MAX

from .rules import rule

RULE = "warren.turns"
MESSAGES = 3000
OUTBOX_BYTES = 4096


@pytest.fixture
def harness() -> Harness:
    return Harness(outbox_soft_bytes=OUTBOX_BYTES)


@pytest.fixture
def publisher(harness: Harness) -> Client:
    """Two queues with messages that begin with the name of the queue."""
    client = harness.channel()
    for name in "ab":
        client.declare(name)
        client.feed(publish_frames("", name, name.encode() * 20) * MESSAGES)
    return client


def queues_of(received: list[Received]) -> str:
    """Return the queues from which messages came, a letter each."""
    return "".join(body_of(each)[:1].decode() for each in received if each.content is not None)


def runs_of(came: str) -> list[int]:
    """Return how many messages came of one queue before one of another came."""
    return [len(list(run)) for _, run in groupby(came)]


def served_while_stalled(client: Client, *calls: tuple[int, Any]) -> str:
    """Send `calls` while `client` reads nothing, then have it read all; return the queues of what it got."""
    client.peer.stalled = True
    client.feed(b"".join(method_frame(number, call) for number, call in calls))
    client.harness.wake(client.peer)
    return queues_of(client.take())


@rule(RULE, "The consumers of a channel with a global prefetch get a message each in turn.")
@pytest.mark.parametrize("multiple", [False, True])
def test_a_global_prefetch_is_shared_in_turn(harness: Harness, publisher: Client, multiple: bool) -> None:
    worker = harness.channel()
    worker.call(1, m.BasicQos(0, 20, True))
    worker.consume("a")
    worker.consume("b")
    came, tag = "", 0
    while len(came) < 2 * MESSAGES:
        came += queues_of(worker.deliveries())
        tag = len(came) if multiple else tag + 1
        worker.send(1, m.BasicAck(tag, multiple))
    assert came.index("b") <= 21
    last_in_turn = min(came.rindex("a"), came.rindex("b"))
    assert max(runs_of(came[20:last_in_turn])) <= 2


@rule(RULE, "A message for a consumer that got nothing lately is sent before the others of its channel have two more.")
def test_a_quiet_queue_is_served_beside_a_busy_one(harness: Harness, publisher: Client) -> None:
    publisher.declare("quiet")
    worker = harness.channel()
    worker.call(1, m.BasicQos(0, 5, True))
    for name in ("a", "b", "quiet"):
        worker.consume(name)
    tag = len(worker.deliveries())
    for _ in range(20):
        publisher.publish("", "quiet", b"q")
        came = ""
        while "q" not in came:
            worker.send(1, m.BasicAck(tag, True))
            more = worker.deliveries()
            tag += len(more)
            came += queues_of(more)
        assert came.count("a") <= 5 and came.count("b") <= 5


@rule(RULE, "Those of a connection whose peer is slower than its queues have turns, on one channel or on several.")
@pytest.mark.parametrize("channels", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("no_ack", [True, False])
def test_a_slow_connection_is_shared_in_turn(
    harness: Harness, publisher: Client, channels: tuple[int, int], no_ack: bool
) -> None:
    slow = harness.client()
    for number in set(channels):
        slow.open(number)
    calls = [(number, basic_consume(name, no_ack=no_ack)) for name, number in zip("ab", channels, strict=True)]
    came = served_while_stalled(slow, *calls)
    assert (came.count("a"), came.count("b")) == (MESSAGES, MESSAGES)
    first_fill = runs_of(came)[0]
    assert first_fill * len(b"a" * 20) <= OUTBOX_BYTES
    last_in_turn = min(came.rindex("a"), came.rindex("b"))
    runs = runs_of(came[first_fill:last_in_turn])
    assert max(runs) <= RUN_MAX and sum(runs[::2]) <= sum(runs[1::2]) + 2 * RUN_MAX


@rule(RULE, "A channel with a global prefetch has turns beside other consumers of a slow connection.")
def test_a_channel_with_a_global_prefetch_has_its_turns(harness: Harness, publisher: Client) -> None:
    slow = harness.client()
    slow.open(1)
    slow.open(2)
    came = served_while_stalled(
        slow,
        (1, basic_consume("a", no_ack=True)),
        (2, m.BasicQos(0, 2000, True)),
        (2, basic_consume("b")),
    )
    assert came.count("a") == MESSAGES and came.count("b") == 2000
    first_fill = runs_of(came)[0]
    last_in_turn = min(came.rindex("a"), came.rindex("b"))
    runs = runs_of(came[first_fill:last_in_turn])
    assert max(runs) <= RUN_MAX and sum(runs[::2]) <= sum(runs[1::2]) + 2 * RUN_MAX


@rule(RULE, "Within a queue priority goes before turns.")
def test_priority_goes_before_turns(harness: Harness, publisher: Client) -> None:
    worker = harness.channel()
    worker.call(1, m.BasicQos(0, 4, True))
    worker.consume("a", "low", arguments={"x-priority": -1})
    worker.consume("b", "other")
    worker.consume("a", "high")
    tag = len(worker.deliveries())
    by_tag = {"low": 0, "other": 0, "high": 0}
    for _ in range(100):
        worker.send(1, m.BasicAck(tag, True))
        for each in worker.deliveries():
            tag += 1
            by_tag[each.method.consumer_tag] += 1
    assert by_tag["low"] == 0
    # The queue with two consumers has two turns.
    assert by_tag["other"] * 2 <= by_tag["high"] + 4 and by_tag["high"] <= by_tag["other"] * 2 + 4


@rule(RULE, "An acknowledgement costs the same with two and with many consumers that wait on its channel.")
def test_an_ack_costs_the_same_with_many_who_wait() -> None:
    few, many = (calls_for_an_ack(consumers) for consumers in (4, 400))
    assert many <= few * 2


def calls_for_an_ack(consumers: int) -> float:
    """Return the average number of function calls of an ack when `consumers` consumers share one place."""
    harness = Harness()
    client = harness.channel()
    client.call(1, m.BasicQos(0, 1, True))
    for number in range(consumers):
        client.declare(f"q{number}")
        client.feed(publish_frames("", f"q{number}", b"m") * 3)
    for number in range(consumers):
        client.consume(f"q{number}")
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    acks = 2 * consumers
    sys.setprofile(count)
    try:
        for tag in range(1, acks + 1):
            client.connection.feed(method_frame(1, m.BasicAck(tag, False)))
            harness.settle()
    finally:
        sys.setprofile(None)
    assert len(client.deliveries()) == acks + 1
    return calls / acks


@rule("warren.turns", "However many consumers without room stand before one that has some, no turn passes over all.")
def test_consumers_without_room_do_not_make_a_turn_long() -> None:
    harness = Harness()
    client, other, publisher = harness.channel(), harness.channel(), harness.channel()
    client.declare("q")
    many = 600
    client.call(1, m.BasicQos(0, 1, True))  # of them all: none may be left out of the next search
    for number in range(many):
        client.call(1, basic_consume("q", f"c{number}", arguments={"x-priority": number + 1}))
    other.call(1, basic_consume("q", "idle"))
    publisher.connection.feed(publish_frames("", "q", b"x") * many)
    queue = harness.queue("q")
    turns = 0
    while queue.ready_count:
        left = queue.ready_count
        harness.broker.end_turn()
        turns += 1
        assert queue.ready_count < left
    assert turns >= many * many // PASSED_OVER_PER_MESSAGE // DRAIN_BUDGET
    assert turns > 1
    assert queue.unacked_count == many
