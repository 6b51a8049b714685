"""Streams: how they are declared, and what they do not do. Texts are those of RabbitMQ 3.10.8."""

from __future__ import annotations

import pytest
from engine_harness import (
    Client,
    Harness,
    queue_declare,
)

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.vhosts.metadata import VhostPut

from .rules import rule
from .stream_clients import (
    ME,
    OFFSET,
    STREAM,
    consume,
    consume_refused,
    declare,
    everything,
    fill,
    not_implemented,
    numbers,
    offsets,
    precondition,
)

# --- declaring --------------------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.declare", "A stream is declared like a queue, and counts its messages, read or not.")
def test_a_stream_is_declared(client: Client) -> None:
    assert client.declare("s", durable=True, arguments=STREAM) == m.QueueDeclareOk("s", 0, 0)
    fill(client, 3)
    consume(client)
    client.send(1, m.BasicAck(client.deliveries()[-1].method.delivery_tag, True))
    assert client.declare("s", durable=True, arguments=STREAM) == m.QueueDeclareOk("s", 3, 1)
    assert client.declare("s", passive=True) == m.QueueDeclareOk("s", 3, 1)


@rule("rabbitmq.stream.declare", "A stream is durable, not exclusive, not auto-delete, and has a name: 406.")
@pytest.mark.parametrize(
    ("name", "properties", "reason"),
    [
        ("s", {"durable": False}, f"invalid property 'non-durable' for {ME}"),
        ("s", {"exclusive": True}, f"invalid property 'exclusive-owner' for {ME}"),
        ("s", {"auto_delete": True}, f"invalid property 'auto-delete' for {ME}"),
        ("", {}, "Cannot declare a server-named queue for type rabbit_stream_queue"),
    ],
)
def test_properties(client: Client, harness: Harness, name: str, properties: dict[str, bool], reason: str) -> None:
    call = queue_declare(name, arguments=STREAM, **{"durable": True, **properties})
    assert client.refused(1, call) == precondition(reason, m.QueueDeclare)
    assert not harness.vhost.queues


@rule("rabbitmq.stream.arguments", "It has arguments of its own and some that others have too, each with its range.")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length-bytes", 0),
        ("x-max-length-bytes", 2**62),
        *(("x-max-age", age) for age in ("1Y", "12M", "7D", "1h", "90m", "1s", "007s")),
        ("x-stream-max-segment-size-bytes", 0),
        ("x-stream-max-segment-size-bytes", 3_000_000_000),
        ("x-stream-filter-size-bytes", 16),
        ("x-stream-filter-size-bytes", 255),
        ("x-initial-cluster-size", 1),
        ("x-queue-leader-locator", "balanced"),
        ("x-unknown", 1),
    ],
)
def test_arguments(client: Client, name: str, value: object) -> None:
    for _ in range(2):
        client.declare("s", durable=True, arguments=STREAM | {name: value})


@rule("rabbitmq.stream.arguments", "What is out of its range is refused, 406.")
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(("x-max-age", age, "invalid_max_age") for age in ("5x", "0s", "", "h", "1H", "1", "-1s", "1.5h", "1 h")),
        ("x-max-age", "9" * 13 + "s", "invalid_max_age"),
        ("x-max-age", 5, "{unacceptable_type,signedint}"),
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", "a", '"expected integer, got longstr"'),
        ("x-stream-max-segment-size-bytes", "a", '"expected integer, got longstr"'),
        ("x-stream-max-segment-size-bytes", -1, "{value_negative,-1}"),
        ("x-stream-filter-size-bytes", "a", '"expected integer, got longstr"'),
        ("x-initial-cluster-size", 0, "{value_zero,0}"),
        ("x-initial-cluster-size", -1, "{value_negative,-1}"),
        ("x-queue-leader-locator", "bogus", "invalid_queue_locator_arg"),
    ],
)
def test_impossible_arguments(client: Client, harness: Harness, name: str, value: object, reason: str) -> None:
    call = queue_declare("s", durable=True, arguments=STREAM | {name: value})
    assert client.refused(1, call) == precondition(f"invalid arg '{name}' for {ME}: {reason}", m.QueueDeclare)
    assert not harness.vhost.queues


@rule("rabbitmq.stream.arguments", "Sizes of segments and filters have texts of their own, 406.")
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(("x-stream-max-segment-size-bytes", size, "Exceeded max value") for size in (3_000_000_001, 10**13)),
        *(("x-stream-filter-size-bytes", size, "Invalid value") for size in (-1, 0, 15, 256)),
    ],
)
def test_texts_of_their_own(client: Client, name: str, value: object, reason: str) -> None:
    call = queue_declare("s", durable=True, arguments=STREAM | {name: value})
    assert client.refused(1, call) == precondition(f"{reason} for {name}", m.QueueDeclare)


@rule("rabbitmq.stream.arguments", "What takes messages out or hands them out otherwise, a stream does not have: 406.")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length", 5),
        ("x-message-ttl", 5),
        ("x-expires", 5),
        ("x-overflow", "drop-head"),
        ("x-dead-letter-exchange", "x"),
        ("x-dead-letter-routing-key", "k"),
        ("x-dead-letter-strategy", "at-most-once"),
        ("x-single-active-consumer", True),
        ("x-max-priority", 3),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 2),
        ("x-delivery-limit", 5),
        ("x-consumer-timeout", 5),
        ("x-visibility-timeout", 5),
        ("x-retry-backoff", ["5s"]),
        ("x-key-shared", True),
        ("x-storage", "disk"),
        ("x-consumer-prefetch-max", 5),
        ("x-max-unacked", 5),
    ],
)
def test_arguments_of_other_types(client: Client, harness: Harness, name: str, value: object) -> None:
    call = queue_declare("s", durable=True, arguments=STREAM | {name: value})
    reason = f"invalid arg '{name}' for {ME} of queue type rabbit_stream_queue"
    assert client.refused(1, call) == precondition(reason, m.QueueDeclare)
    assert not harness.vhost.queues


@rule("rabbitmq.stream.arguments", "Other queue types do not have the arguments of streams: 406.")
@pytest.mark.parametrize(("base", "kind"), [({}, "classic"), ({"x-queue-type": "quorum"}, "quorum")])
def test_arguments_of_streams(client: Client, base: Table, kind: str) -> None:
    reason = f"invalid arg 'x-max-age' for {ME} of queue type rabbit_{kind}_queue"
    call = queue_declare("s", durable=True, arguments=base | {"x-max-age": "1h"})
    assert client.refused(1, call) == precondition(reason, m.QueueDeclare)


@rule("rabbitmq.stream.declare", "A redeclaration agrees in type and arguments: else 406.")
@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (STREAM, STREAM | {"x-max-age": "1h"}, "x-max-age' {}: received the value '1h' of type 'longstr' but"),
        (STREAM | {"x-max-age": "1h"}, STREAM | {"x-max-age": "60m"}, "x-max-age' {}: received '60m' but current is"),
        (STREAM | {"x-max-length-bytes": 5}, STREAM, "x-max-length-bytes' {}: received none but current is the value"),
        (STREAM, {}, "x-queue-type' {}: received none but current is the value 'stream' of type 'longstr'"),
        ({}, STREAM, "x-queue-type' {}: received the value 'stream' of type 'longstr' but current is none"),
    ],
)
def test_redeclaration(client: Client, first: Table, second: Table, difference: str) -> None:
    client.declare("s", durable=True, arguments=first)
    refusal = client.refused(1, queue_declare("s", durable=True, arguments=second))
    assert (refusal.scope, refusal.code) == ("channel", 406)
    assert refusal.text.startswith("PRECONDITION_FAILED - inequivalent arg '" + difference.format(f"for {ME}"))
    client.declare("s", durable=True, arguments=first)


@rule("rabbitmq.stream.declare", "The default queue type of a vhost may be stream; what cannot be one is classic.")
def test_the_default_type_of_a_vhost(harness: Harness) -> None:
    harness.broker.administer(VhostPut("/", default_queue_type="stream"))
    client = harness.channel()
    client.declare("s", durable=True)
    client.declare("s", durable=True, arguments=STREAM)
    client.declare("transient")
    client.declare("exclusive", durable=True, exclusive=True)
    types = {name: queue.rules.queue_type for name, queue in harness.vhost.queues.items()}
    assert types == {"s": "stream", "transient": "classic", "exclusive": "classic"}
    fill(client, 1)
    assert everything(client) == numbers(1)
    assert client.get("transient") is None


@rule("rabbitmq.stream.delete", "It is deleted with all its messages, and a new one begins at 0.")
def test_a_new_stream_begins_anew(client: Client) -> None:
    declare(client)
    fill(client, 3)
    assert client.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False)) == m.QueueDeleteOk(3)
    declare(client)
    client.publish("", "s", b"new")
    assert everything(client) == [(0, b"new")]


@rule(
    "rabbitmq.stream.delete",
    "if-unused and if-empty hold for streams.",
    deviation="RabbitMQ 3.10 deletes a stream that is not empty all the same.",
)
def test_if_unused_and_if_empty(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 1)
    consume(client)
    client.deliveries()
    refusal = client.refused(1, m.QueueDelete(0, "s", if_unused=True, if_empty=False, no_wait=False))
    assert refusal == precondition(f"{ME} in use", m.QueueDelete)
    refusal = client.refused(1, m.QueueDelete(0, "s", if_unused=False, if_empty=True, no_wait=False))
    assert refusal == precondition(f"{ME} not empty", m.QueueDelete)
    assert "s" in harness.vhost.queues


@rule("rabbitmq.stream.delete", "Its consumers get a basic.cancel, and may still answer what they have had.")
def test_deleted_under_consumers(client: Client, other: Client) -> None:
    declare(client)
    fill(client, 5)
    tags = [consume(other, prefetch=2)]
    assert offsets(other) == [0, 1]
    tags.append(consume(other, {OFFSET: "next"}))
    assert client.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False)) == m.QueueDeleteOk(5)
    cancels = [each.method for each in other.take()]
    assert cancels == [m.BasicCancel(tag, True) for tag in tags]
    other.send(1, m.BasicAck(1, False), m.BasicNack(2, multiple=False, requeue=True))
    other.nothing()


# --- what streams do not do -------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.get", "basic.get is not for streams: 540.")
@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("count", [0, 1])
def test_get(client: Client, no_ack: bool, count: int) -> None:
    declare(client)
    fill(client, count)
    refusal = client.refused(1, m.BasicGet(0, "s", no_ack))
    assert refusal == not_implemented(f"basic.get not supported by stream queues {ME}", m.BasicGet)


@rule("rabbitmq.stream.purge", "A stream is not purged: 540.")
def test_purge(client: Client, other: Client) -> None:
    declare(client)
    fill(client, 2)
    refusal = client.refused(1, m.QueuePurge(0, "s", False))
    assert refusal == not_implemented(f"queue.purge not supported by stream queues {ME}", m.QueuePurge)
    assert everything(other) == numbers(2)


@rule("rabbitmq.stream.consume", "A consumer needs a prefetch: 406, whatever else it asks for.")
@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("limits", [[], [m.BasicQos(0, 10, True)], [m.BasicQos(0, 5, False), m.BasicQos(0, 0, False)]])
def test_consume_without_prefetch(client: Client, harness: Harness, no_ack: bool, limits: list[m.BasicQos]) -> None:
    declare(client)
    for limit in limits:
        client.call(1, limit)
    refusal = consume_refused(client, no_ack=no_ack)
    assert refusal == precondition(f"consumer prefetch count is not set for '{ME}'")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "A consumer acknowledges: without that, 540.")
def test_consume_without_acknowledgements(client: Client, harness: Harness) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    refusal = consume_refused(client, no_ack=True)
    assert refusal == not_implemented(f"automatic acknowledgement not supported by stream queues {ME}")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "A limit for all consumers of a channel together is not for streams: 540.")
def test_consume_with_a_limit_of_the_channel(client: Client, harness: Harness) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    client.call(1, m.BasicQos(0, 10, True))
    assert consume_refused(client) == not_implemented(f"{ME} does not support global qos")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "Consumers have no priority: 406.")
@pytest.mark.parametrize("priority", [0, 5, -1])
def test_consume_with_a_priority(client: Client, harness: Harness, priority: int) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    refusal = consume_refused(client, {"x-priority": priority})
    assert refusal == precondition(f"invalid arg 'x-priority' for {ME} of queue type rabbit_stream_queue")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "Consumers cannot be exclusive: it is ignored, and others are let in.")
def test_exclusive_is_ignored(client: Client, other: Client) -> None:
    declare(client)
    fill(client, 2)
    for each in (client, other):
        each.call(1, m.BasicQos(0, 10, False))
        each.consume("s", exclusive=True, arguments={OFFSET: "first"})
        assert offsets(each) == [0, 1]
    assert [consumer.exclusive for consumer in client.harness.queue("s").consumers] == [False, False]
