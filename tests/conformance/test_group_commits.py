"""Consumer groups of streams: the commits of offsets."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.streams.groups import BEHIND_MAX

from .group_clients import ack, ack_all, groups, join, leave, reset, seen
from .rules import rule
from .stream_clients import (
    PAGE,
    declare,
    fill,
    offset_of,
    offsets,
    put_policy,
    restarted,
)


@rule("warren.stream.groups.commit", "Committed is what is below the first message that is not acknowledged.")
def test_acks_out_of_order(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 8)
    join(client)
    deliveries = client.deliveries()
    for acked, committed in ((2, 0), (0, 1), (3, 1), (1, 4), (6, 4), (4, 5), (5, 7), (7, 8)):
        ack(client, deliveries[acked])
        assert groups(harness) == {"g": committed}


@rule("warren.stream.groups.commit", "An acknowledgement of several commits them all.")
def test_multiple_acks(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 8)
    join(client)
    deliveries = client.deliveries()
    client.send(1, m.BasicAck(deliveries[3].method.delivery_tag, True))
    assert groups(harness) == {"g": 4}
    ack_all(client)
    assert groups(harness) == {"g": 8}


@rule("warren.stream.groups.commit", "What is rejected counts like what is acknowledged.")
@pytest.mark.parametrize("multiple", [True, False])
def test_rejects(client: Client, other: Client, harness: Harness, multiple: bool) -> None:
    declare(client)
    fill(client, 4)
    tag = join(client)
    deliveries = client.deliveries()
    client.send(1, m.BasicReject(deliveries[0].method.delivery_tag, False))
    assert groups(harness) == {"g": 1}
    if multiple:
        client.send(1, m.BasicNack(deliveries[2].method.delivery_tag, multiple=True, requeue=False))
    else:
        client.send(
            1, *(m.BasicNack(each.method.delivery_tag, multiple=False, requeue=False) for each in deliveries[1:3])
        )
    assert groups(harness) == {"g": 3}
    leave(client, tag)
    join(other)
    assert offsets(other) == [3]


@rule(
    "warren.stream.groups.requeue",
    "What is requeued comes again at once, to the same consumer, flagged; nothing else does.",
)
@pytest.mark.parametrize("call", [m.BasicReject, m.BasicNack, m.BasicRecover])
@pytest.mark.parametrize("from_disk", [False, True])
def test_requeues(call: type[Any], from_disk: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 5)
    if from_disk:
        harness, client = restarted(harness)
    tag = join(client, prefetch=3)
    deliveries = client.deliveries()
    ack(client, deliveries[0])
    assert seen(client) == [(3, False)]
    if call is m.BasicReject:
        client.send(1, m.BasicReject(deliveries[1].method.delivery_tag, True))
    elif call is m.BasicNack:
        client.send(1, m.BasicNack(deliveries[1].method.delivery_tag, multiple=False, requeue=True))
    else:
        ack(client, deliveries[2])
        assert seen(client) == [(4, False)]
        client.send(1, m.BasicRecover(True))
        client.pick(m.BasicRecoverOk)
    again = client.deliveries()
    expected = [1, 3, 4] if call is m.BasicRecover else [1]
    assert [(offset_of(each), each.method.redelivered) for each in again] == [(at, True) for at in expected]
    assert groups(harness) == {"g": 1}
    ack(client, again[0])
    assert groups(harness) == {"g": 3 if call is m.BasicRecover else 2}
    ack_all(client)
    client.take()
    ack_all(client)
    assert groups(harness) == {"g": 5}
    leave(client, tag)
    join(client)
    client.nothing()


@rule("warren.stream.groups.requeue", "Until it is answered the group stays there, however much else is.")
def test_what_is_requeued_is_not_committed(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    tag = join(client, prefetch=2)
    stubborn, later = client.deliveries()
    for _ in range(3):
        client.send(1, m.BasicNack(stubborn.method.delivery_tag, multiple=False, requeue=True))
        (stubborn,) = client.deliveries()
        assert (offset_of(stubborn), stubborn.method.redelivered) == (0, True)
        ack(client, later)
        (later,) = client.deliveries()
        assert not later.method.redelivered
        assert groups(harness) == {"g": 0}
    assert offset_of(later) == 4
    client.send(1, m.BasicNack(later.method.delivery_tag, multiple=True, requeue=True))
    stubborn, later = client.deliveries()
    assert [offset_of(each) for each in (stubborn, later)] == [0, 4]
    leave(client, tag)
    join(other, prefetch=3)
    again = other.deliveries()
    assert [(offset_of(each), each.method.redelivered) for each in again] == [(0, True), (1, True), (2, True)]
    client.send(1, m.BasicNack(later.method.delivery_tag, multiple=True, requeue=True))
    other.nothing()
    client.nothing()


@rule("warren.stream.groups.requeue", "What is requeued waits for room like everything else, and goes first.")
def test_what_is_requeued_waits_for_room(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    join(client, prefetch=4)
    deliveries = client.deliveries()
    harness.queue("s").pause(paused=True)
    for each in (2, 0, 1):
        client.send(1, m.BasicNack(deliveries[each].method.delivery_tag, multiple=False, requeue=True))
    client.nothing()
    ack(client, deliveries[3])
    assert groups(harness) == {"g": 0}
    harness.queue("s").pause(paused=False)
    harness.settle()
    assert seen(client) == [(0, True), (1, True), (2, True), (4, False)]


@rule("warren.stream.groups.requeue", "A reset forgets what was requeued.")
def test_a_reset_after_a_requeue(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    join(client, prefetch=4)
    deliveries = client.deliveries()
    harness.queue("s").pause(paused=True)
    client.send(1, m.BasicNack(deliveries[0].method.delivery_tag, multiple=False, requeue=True))
    reset(harness, 3)
    harness.queue("s").pause(paused=False)
    client.send(1, m.BasicNack(deliveries[1].method.delivery_tag, multiple=False, requeue=True))
    assert seen(client) == [(3, True), (4, False)]
    assert groups(harness) == {"g": 3}


@rule("warren.stream.groups.requeue", "What retention removed meanwhile does not come again, and holds nobody up.")
@pytest.mark.parametrize("rest", [True, False])
def test_what_is_requeued_may_be_gone(rest: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3 * PAGE)
    harness, client = restarted(harness)
    join(client)
    deliveries = client.deliveries()
    requeued = [0, 5, PAGE, 2 * PAGE + 1] if rest else [0, 5, PAGE]
    harness.queue("s").pause(paused=True)
    for at, each in enumerate(deliveries[:-1]):
        client.send(1, m.BasicNack(each.method.delivery_tag, False, at in requeued))
    assert groups(harness) == {"g": 0}
    put_policy(harness, max_length_bytes=0)
    harness.queue("s").pause(paused=False)
    harness.settle()
    assert seen(client) == ([(2 * PAGE + 1, True)] if rest else [])
    assert groups(harness) == {"g": 2 * PAGE + 1 if rest else 3 * PAGE - 1}
    ack_all(client)
    assert groups(harness) == {"g": 3 * PAGE}
    fill(client, 1)
    assert seen(client) == [(3 * PAGE, False)]


@rule(
    "warren.stream.groups.commit",
    "A group waits while its oldest unanswered message is 20,000 behind, and more than the prefetch.",
)
def test_how_far_a_group_gets_ahead(client: Client, harness: Harness) -> None:
    declare(client)
    count = BEHIND_MAX + 20
    client.feed(b"".join(publish_frames("", "s", b"") for _ in range(count)))
    join(client, prefetch=10)
    first, *others = client.deliveries()
    while others:
        at = offset_of(others[-1])
        ack(client, *others)
        others = client.deliveries()
    assert at == BEHIND_MAX + 9
    assert groups(harness) == {"g": 0}
    client.send(1, m.BasicNack(first.method.delivery_tag, multiple=False, requeue=True))
    (again,) = client.deliveries()
    ack(client, again)
    assert offsets(client) == list(range(BEHIND_MAX + 10, count))
    assert groups(harness) == {"g": BEHIND_MAX + 10}


@rule("warren.stream.groups.commit", "What comes after its consumer has gone does not count.")
def test_acks_of_a_consumer_that_has_gone(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 3)
    tag = join(client)
    deliveries = client.deliveries()
    ack(client, deliveries[0])
    leave(client, tag)
    ack(client, *deliveries[1:])
    client.nothing()
    assert groups(harness) == {"g": 1}
    join(other)
    assert seen(other) == [(1, True), (2, True)]


@rule("warren.stream.groups.commit", "Acknowledgements in a transaction count with its commit.")
def test_transactions(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 3)
    client.call(1, m.TxSelect())
    join(client)
    deliveries = client.deliveries()
    ack(client, *deliveries)
    assert groups(harness) == {"g": 0}
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()
    assert groups(harness) == {"g": 0}
    ack(client, *deliveries[:2])
    assert client.call(1, m.TxCommit()) == m.TxCommitOk()
    assert groups(harness) == {"g": 2}


def fill_by_colour(client: Client, *colours: str) -> None:
    for colour in colours:
        client.publish("", "s", headers=encode_table({"x-stream-filter-value": colour}))


@rule("warren.stream.groups.commit", "What a filter passes over counts as answered, behind what is not.")
def test_filters(client: Client, harness: Harness) -> None:
    declare(client)
    fill_by_colour(client, "red", "red", "blue", "red", "blue", "red")
    join(client, stream_filter="blue")
    deliveries = client.deliveries()
    assert [offset_of(each) for each in deliveries] == [2, 4]
    assert groups(harness) == {"g": 2}
    ack(client, deliveries[1])
    assert groups(harness) == {"g": 2}
    fill_by_colour(client, "red")
    ack(client, deliveries[0])
    assert groups(harness) == {"g": 7}
    fill_by_colour(client, "red", "red")
    client.nothing()
    assert groups(harness) == {"g": 9}
    join(client, "h", "first", stream_filter="green")
    assert groups(harness) == {"g": 9, "h": 9}


@rule("warren.stream.groups.commit", "Paused, nothing goes to a group; what was sent may be answered.")
def test_pauses(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 2)
    tag = join(client)
    deliveries = client.deliveries()
    harness.queue("s").pause(paused=True)
    fill(client, 1, first=2)
    ack(client, deliveries[0])
    client.nothing()
    join(other)
    leave(client, tag)
    other.nothing()
    assert groups(harness) == {"g": 1}
    harness.queue("s").pause(paused=False)
    harness.settle()
    assert seen(other) == [(1, True), (2, False)]
