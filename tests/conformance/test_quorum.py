"""Quorum queues: the rules that their type brings to the same machine."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Received, body_of, queue_declare

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.queues.held_lanes import UNDELIVERED_RETRY_MS
from warren.queues.rules import QUORUM_DELIVERY_LIMIT

from .rules import rule

QUORUM: Table = {"x-queue-type": "quorum"}


def declare(client: Client, name: str = "q", **arguments: object) -> None:
    """Declare a quorum queue; underscores in names stand for hyphens."""
    table: Table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    client.declare(name, durable=True, arguments=QUORUM | table)


def counts(received: Received) -> tuple[object, object]:
    """Return x-delivery-count and x-acquired-count."""
    assert received.content is not None
    headers = received.content.properties.headers
    table = {} if headers is None else decode_table(headers)
    return table.get("x-delivery-count"), table.get("x-acquired-count")


def get(client: Client, name: str = "q") -> tuple[int, Received]:
    """Get a message; return its delivery tag too."""
    got = client.get(name)
    assert got is not None
    return got.method.delivery_tag, got


def fail(client: Client, times: int, name: str = "q") -> None:
    for _ in range(times):
        tag, _ = get(client, name)
        client.send(1, m.BasicReject(tag, True))


@rule("rabbitmq.quorum.declare", "A quorum queue is durable, not exclusive, not auto-delete, and has a name: 406.")
@pytest.mark.parametrize(
    ("name", "durable", "exclusive", "auto_delete", "reason"),
    [
        ("q", False, False, False, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
        ("q", True, True, False, "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"),
        ("q", True, False, True, "invalid property 'auto-delete' for queue 'q' in vhost '/'"),
        ("", True, False, False, "Cannot declare a server-named queue for type rabbit_quorum_queue"),
    ],
)
def test_properties(
    client: Client, harness: Harness, name: str, durable: bool, exclusive: bool, auto_delete: bool, reason: str
) -> None:
    refusal = client.refused(1, queue_declare(name, False, durable, exclusive, auto_delete, QUORUM))
    assert (refusal.code, refusal.text) == (406, f"PRECONDITION_FAILED - {reason}")
    assert not harness.vhost.queues


@rule("rabbitmq.quorum.declare", "It has no levels, and the strategy of dead lettering is its own: 406 for the others.")
@pytest.mark.parametrize(
    ("arguments", "name", "kind"),
    [
        (QUORUM | {"x-max-priority": 5}, "x-max-priority", "rabbit_quorum_queue"),
        ({"x-dead-letter-strategy": "at-least-once"}, "x-dead-letter-strategy", "rabbit_classic_queue"),
    ],
)
def test_arguments_of_the_other_type(client: Client, arguments: Table, name: str, kind: str) -> None:
    refusal = client.refused(1, queue_declare("q", durable=True, arguments=arguments))
    text = f"PRECONDITION_FAILED - invalid arg '{name}' for queue 'q' in vhost '/' of queue type {kind}"
    assert (refusal.code, refusal.text) == (406, text)


@rule("rabbitmq.quorum.declare", "The type of a queue does not change: a redeclaration as the other one is 406.")
@pytest.mark.parametrize(("first", "second"), [(QUORUM, {}), ({}, QUORUM)])
def test_the_type_does_not_change(client: Client, first: Table, second: Table) -> None:
    client.declare("q", durable=True, arguments=first)
    refusal = client.refused(1, queue_declare("q", durable=True, arguments=second))
    assert refusal.code == 406 and "inequivalent arg 'x-queue-type' for queue 'q'" in refusal.text


@rule("basic.deliver.01", "Failed deliveries are counted, and a message that fails too often is given up.")
@rule("rabbitmq.quorum.delivery-limit", "Without a limit of its own a message fails 20 times and not once more.")
@pytest.mark.parametrize("limit", [None, 0, 3])
def test_the_limit(client: Client, harness: Harness, limit: int | None) -> None:
    client.declare("dead")
    arguments: Table = {} if limit is None else {"x-delivery-limit": limit}
    letters: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("q", durable=True, arguments=QUORUM | letters | arguments)
    allowed = QUORUM_DELIVERY_LIMIT if limit is None else limit
    assert (allowed == 20) == (limit is None)
    client.publish("", "q", b"poison")
    for failures in range(allowed + 1):
        tag, got = get(client)
        assert counts(got) == ((failures, failures) if failures else (None, None))
        assert got.method.redelivered == (failures > 0)
        assert harness.queue("dead").ready_count == 0
        client.send(1, m.BasicReject(tag, True))
    assert client.get("q") is None
    _, letter = get(client, "dead")
    assert body_of(letter) == b"poison"


@rule("rabbitmq.quorum.delivery-limit", "A limit of -1 is none.")
def test_no_limit(client: Client) -> None:
    declare(client, delivery_limit=-1)
    client.publish("", "q")
    fail(client, 100)
    _, got = get(client)
    assert counts(got) == (100, 100)


@rule("warren.quorum.counts", "Returned messages are counted apart from failed ones, and never given up.")
def test_returned_and_failed(client: Client) -> None:
    declare(client, delivery_limit=1)
    client.publish("", "q")
    for returns in range(50):
        tag, got = get(client)
        assert counts(got) == (None, returns or None)
        client.send(1, m.BasicNack(tag, multiple=False, requeue=True))
    fail(client, 1)
    _, got = get(client)
    assert counts(got) == (1, 51)


@rule("warren.quorum.counts", "basic.recover returns; a channel or connection that ends has failed.")
@pytest.mark.parametrize(
    ("how", "expected"),
    [("recover", (None, 1)), ("close", (1, 1)), ("error", (1, 1)), ("hang up", (1, 1))],
)
def test_what_fails(client: Client, other: Client, how: str, expected: tuple[object, object]) -> None:
    declare(client)
    client.publish("", "q")
    get(other)
    if how == "recover":
        assert other.call(1, m.BasicRecover(True)) == m.BasicRecoverOk()
    elif how == "close":
        other.call(1, m.ChannelClose(200, "", 0, 0))
    elif how == "error":
        other.refused(1, m.QueuePurge(0, "missing", False))
    else:
        other.hang_up()
    _, got = get(client)
    assert counts(got) == expected


@rule("warren.quorum.counts", "A counted message keeps its place, its properties and its body.")
def test_a_counted_message_keeps_its_place(client: Client, harness: Harness) -> None:
    declare(client)
    for number in range(3):
        client.publish("", "q", b"%d" % number * 50_000, message_id=f"m{number}", delivery_mode=2)
    fail(client, 2)
    queue = harness.queue("q")
    assert (queue.ready_count, queue.ready_bytes) == (3, 150_000)
    for number in range(3):
        tag, got = get(client)
        assert body_of(got) == b"%d" % number * 50_000
        assert got.content is not None and got.content.properties.message_id == f"m{number}"
        client.send(1, m.BasicAck(tag, False))
    assert queue.ready_bytes == 0


@rule("warren.quorum.counts.restart", "Counts are stored with their message, which is in the log once.")
@pytest.mark.parametrize("clean", [False, True])
def test_counts_survive(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, delivery_limit=4)
    client.publish("", "q", b"x", delivery_mode=2)
    for expected in ((2, 2), (4, 5)):
        fail(client, 2)
        harness.write()
        index = harness.queue("q").ready.index_of(0)
        assert index is not None and index.live_count == 1
        harness = harness.restart(clean=clean)
        client = harness.channel()
        tag, got = get(client)
        assert got.method.redelivered
        assert counts(got) == expected
        client.send(1, m.BasicNack(tag, multiple=False, requeue=True))  # it is returned once, which counts apart
    fail(client, 1)
    assert client.get("q") is None, "that was the fifth failure"


@rule("rabbitmq.quorum.durable", "What it has is stored, whatever its delivery mode, and confirmed when it is.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("headers", [None, {"x-delivery-count": 3}], ids=["plain", "counted before"])
def test_transient_messages_survive(clean: bool, headers: Table | None) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.declare("classic", durable=True)
    for queue in ("q", "classic"):
        client.bind(queue, "amq.fanout")
    client.call(1, m.ConfirmSelect(False))
    harness.store.hold = True
    properties: dict[str, Any] = {} if headers is None else {"headers": encode_table(headers)}
    client.publish("amq.fanout", "", b"x", delivery_mode=1, **properties)
    client.nothing()
    harness.store.hold = False
    harness.settle()
    assert client.expect(m.BasicAck).delivery_tag == 1
    client = harness.restart(clean=clean).channel()
    _, got = get(client)
    assert body_of(got) == b"x" and got.content is not None and got.content.properties.delivery_mode == 1
    assert client.get("classic") is None


@rule("rabbitmq.quorum.durable", "Its dead letters are as durable as was asked for, and in a classic queue no more.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("at_once", [False, True], ids=["kept at first", "at once"])
def test_dead_letters_of_transient_messages(clean: bool, at_once: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    arguments = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    declare(client, dead_letter_strategy="at-least-once", overflow="reject-publish", **arguments)
    if at_once:
        client.declare("dead", durable=True)
    client.publish("", "q", b"x", delivery_mode=1)
    tag, _ = get(client)
    client.send(1, m.BasicReject(tag, False))
    harness.write()
    if not at_once:
        harness = harness.restart(clean=clean)
        client = harness.channel()
        client.declare("dead", durable=True)
        harness.pass_time(UNDELIVERED_RETRY_MS / 1000)
    assert harness.queue("dead").ready_count == 1
    harness.write()
    client = harness.restart(clean=clean).channel()
    assert (client.get("dead"), client.get("q")) == (None, None)


@rule("warren.quorum.counts.restart", "What was out when the process was lost has not failed.")
def test_what_was_out_at_a_crash_is_not_counted() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.publish("", "q", delivery_mode=2)
    harness.write()
    get(client)
    _, got = get(harness.restart(clean=False).channel())
    assert (counts(got), got.method.redelivered) == ((None, None), True)


@rule("rabbitmq.quorum.exclusive-consumer", "Consumers cannot be exclusive: it is ignored, and others are let in.")
def test_exclusive_is_ignored(client: Client, other: Client) -> None:
    declare(client)
    client.consume("q", exclusive=True)
    other.consume("q", exclusive=True)
    for number in range(4):
        client.publish("", "q", b"%d" % number)
    assert (len(client.bodies()), len(other.bodies())) == (2, 2)


@rule("rabbitmq.quorum.overflow", "reject-publish-dlx is not known to it: it drops its head.")
def test_overflow(client: Client) -> None:
    declare(client, max_length=2, overflow="reject-publish-dlx")
    client.call(1, m.ConfirmSelect(False))
    for number in range(4):
        client.publish("", "q", b"%d" % number)
        assert client.expect(m.BasicAck).delivery_tag == number + 1
    assert [body_of(get(client)[1]) for _ in range(2)] == [b"2", b"3"]


@rule("rabbitmq.quorum.overflow", "reject-publish refuses when it is full, and takes back what it has given.")
def test_reject_publish(client: Client) -> None:
    declare(client, max_length=1, overflow="reject-publish")
    client.call(1, m.ConfirmSelect(False))
    client.publish("", "q", b"1")
    client.expect(m.BasicAck)
    tag, _ = get(client)
    client.publish("", "q", b"2")
    client.expect(m.BasicAck)
    client.send(1, m.BasicReject(tag, True))
    client.publish("", "q", b"3")
    assert client.expect(m.BasicNack) == m.BasicNack(3, multiple=False, requeue=False)
    assert [body_of(get(client)[1]) for _ in range(2)] == [b"1", b"2"]


@rule("rabbitmq.quorum.priority", "The priority of a message means nothing to it.")
def test_priorities_mean_nothing(client: Client) -> None:
    declare(client)
    for priority in (0, 9, 5):
        client.publish("", "q", b"%d" % priority, priority=priority)
    assert [body_of(get(client)[1]) for _ in range(3)] == [b"0", b"9", b"5"]


@rule("warren.quorum.restart", "It comes back as what it was, with its default limit and its messages.")
@pytest.mark.parametrize("clean", [False, True])
def test_it_comes_back(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.publish("", "q", delivery_mode=2)
    harness.write()
    harness = harness.restart(clean=clean)
    rules = harness.queue("q").rules
    assert (rules.is_quorum, int(rules.delivery_limit)) == (True, QUORUM_DELIVERY_LIMIT)
    client = harness.channel()
    declare(client)
    fail(client, QUORUM_DELIVERY_LIMIT + 1)
    assert client.get("q") is None


@rule("rabbitmq.quorum.single-active", "A quorum queue with a single active consumer has no basic.get: 405.")
def test_a_get_is_refused_beside_a_single_active_consumer(client: Client, harness: Harness) -> None:
    declare(client, single_active_consumer=True)
    client.publish("", "q", b"m")
    refusal = client.refused(1, m.BasicGet(0, "q", False))
    assert (refusal.code, refusal.text) == (
        405,
        "RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not "
        "supported by quorum queues with single active consumer",
    )
    assert harness.queue("q").ready_count == 1
