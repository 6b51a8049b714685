"""Quorum queues: what may be declared, delivery counts and limits, order of returns, and what they have in common.

The differences between versions are RabbitMQ's; where 4.3 changed something Warren does as 4.3 does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    collect,
    connection_closed_with,
    consumers,
    drain,
    get,
    hold,
    pump,
    ready,
    settle,
    tag_of,
    wait_for_ready,
)

QUORUM = {"x-queue-type": "quorum"}


def declare(channel: BlockingChannel, names: Names, **arguments: Any) -> str:
    """Declare a quorum queue."""
    queue = names.queue()
    more = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=QUORUM | more)
    return queue


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """The channel with confirms: a publish returns once its message is in the queue."""
    channel.confirm_delivery()
    return channel


def publish_numbers(channel: BlockingChannel, queue: str, count: int) -> None:
    """Publish b"0", b"1" and so on."""
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


def delivery_count(properties: BasicProperties) -> int:
    """Return how often the message was delivered in vain; absent the first time a consumer gets it."""
    headers: Any = properties.headers or {}
    return int(headers.get("x-delivery-count", 0))


def refusal(broker: Broker, queue: str, key: str, reason: str) -> str:
    """The text of 406 for an argument with an impossible type or value."""
    return f"PRECONDITION_FAILED - invalid arg '{key}' for {broker.queue(queue)}: {reason}"


# declaring


def test_a_quorum_queue_is_declared_and_declared_again(channel: BlockingChannel, names: Names) -> None:
    queue = declare(channel, names)
    declared = channel.queue_declare(queue, durable=True, arguments=QUORUM).method
    assert (declared.queue, declared.message_count, declared.consumer_count) == (queue, 0, 0)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
        ({"durable": True, "exclusive": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_a_quorum_queue_is_durable_and_neither_exclusive_nor_auto_delete(
    channel: BlockingChannel, names: Names, broker: Broker, flags: dict[str, bool], named: str
) -> None:
    queue = names.queue()
    text = f"PRECONDITION_FAILED - invalid property '{named}' for {broker.queue(queue)}"
    with channel_closed_with(406, text):
        channel.queue_declare(queue, arguments=QUORUM, **flags)


def test_a_quorum_queue_has_a_name(channel: BlockingChannel) -> None:
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    with channel_closed_with(406, text):
        channel.queue_declare("", durable=True, arguments=QUORUM)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": 0},
        {"x-expires": 60_000},
        {"x-max-length": 0},
        {"x-max-length-bytes": 0},
        {"x-overflow": "drop-head"},
        {"x-overflow": "reject-publish"},
        {"x-overflow": "reject-publish-dlx"},
        {"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "b"},
        {"x-dead-letter-strategy": "at-most-once"},
        {
            "x-dead-letter-exchange": "a",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
        {"x-single-active-consumer": True},
        {"x-delivery-limit": 0},
        {"x-delivery-limit": -1},
        {"x-quorum-initial-group-size": 1},
        {"x-quorum-initial-group-size": 5},
        {"x-queue-leader-locator": "client-local"},
        {"x-queue-leader-locator": "balanced"},
        {"x-queue-leader-locator": "random"},
        {"x-queue-leader-locator": "least-leaders"},
        {"x-max-in-memory-length": 0},
        {"x-max-in-memory-bytes": 0},
        {"x-consumer-timeout": 60_000},
        {"x-colour": "green"},
    ],
    ids=str,
)
def test_what_a_quorum_queue_knows_is_accepted(
    channel: BlockingChannel, names: Names, arguments: dict[str, Any]
) -> None:
    queue = names.queue()
    for _ in range(2):
        channel.queue_declare(queue, durable=True, arguments=QUORUM | arguments)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", "5", '"expected integer, got longstr"'),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-overflow", "drop-tail", "invalid_overflow"),
        ("x-dead-letter-routing-key", "key", "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-strategy", "twice", "invalid_dlx_strategy"),
        ("x-dead-letter-strategy", "", "invalid_dlx_strategy"),
        ("x-dead-letter-strategy", 5, "{unacceptable_type,signedint}"),
        ("x-single-active-consumer", 1, "{unacceptable_type,signedint}"),
        ("x-quorum-initial-group-size", 0, "{value_zero,0}"),
        ("x-quorum-initial-group-size", -1, "{value_negative,-1}"),
        ("x-quorum-initial-group-size", "1", '"expected integer, got longstr"'),
        ("x-queue-leader-locator", "nearest", "invalid_queue_locator_arg"),
        ("x-queue-leader-locator", 5, "{unacceptable_type,signedint}"),
        ("x-max-in-memory-length", -1, "{value_negative,-1}"),
        ("x-max-in-memory-bytes", "1", '"expected integer, got longstr"'),
    ],
)
def test_an_impossible_value_is_refused(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: Any, reason: str
) -> None:
    queue = names.queue()
    with channel_closed_with(406, refusal(broker, queue, key, reason)):
        channel.queue_declare(queue, durable=True, arguments=QUORUM | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x-max-priority", 5),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 2),
        ("x-max-age", "1h"),
        ("x-initial-cluster-size", 1),
        ("x-stream-max-segment-size-bytes", 100),
    ],
)
def test_a_quorum_queue_refuses_what_only_other_types_know(
    channel: BlockingChannel, names: Names, broker: Broker, key: str, value: Any
) -> None:
    if key in {"x-queue-mode", "x-queue-version"} and not broker.older_than(4, 3):
        pytest.skip("no queue knows modes any more")
    queue = names.queue()
    text = f"PRECONDITION_FAILED - invalid arg '{key}' for {broker.queue(queue)} of queue type rabbit_quorum_queue"
    with channel_closed_with(406, text):
        channel.queue_declare(queue, durable=True, arguments=QUORUM | {key: value})


@pytest.mark.parametrize(
    ("first", "second", "key", "received", "current"),
    [
        (QUORUM, {}, "x-queue-type", "none", "the value 'quorum' of type 'longstr'"),
        (QUORUM, {"x-queue-type": "classic"}, "x-queue-type", "'classic'", "'quorum'"),
        ({}, QUORUM, "x-queue-type", "the value 'quorum' of type 'longstr'", "none"),
        ({"x-queue-type": "classic"}, QUORUM, "x-queue-type", "'quorum'", "'classic'"),
        (QUORUM | {"x-delivery-limit": 3}, QUORUM | {"x-delivery-limit": 4}, "x-delivery-limit", "'4'", "'3'"),
        (
            QUORUM | {"x-delivery-limit": 3},
            QUORUM,
            "x-delivery-limit",
            "none",
            "the value '3' of type 'signedint'",
        ),
        (
            QUORUM | {"x-dead-letter-strategy": "at-most-once"},
            QUORUM | {"x-dead-letter-strategy": "at-least-once"},
            "x-dead-letter-strategy",
            "'at-least-once'",
            "'at-most-once'",
        ),
        (QUORUM | {"x-max-length": 1}, QUORUM | {"x-max-length": 2}, "x-max-length", "'2'", "'1'"),
    ],
)
def test_a_different_redeclaration_names_the_argument(
    channel: BlockingChannel,
    names: Names,
    broker: Broker,
    first: dict[str, Any],
    second: dict[str, Any],
    key: str,
    received: str,
    current: str,
) -> None:
    queue = names.queue()
    channel.queue_declare(queue, durable=True, arguments=first)
    text = f"inequivalent arg '{key}' for {broker.queue(queue)}: received {received} but current is {current}"
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(queue, durable=True, arguments=second)


# publishing and consuming


@pytest.mark.parametrize("mode", [1, 2])
def test_messages_are_confirmed_kept_in_order_and_delivered_as_sent(
    confirming: BlockingChannel, names: Names, mode: Any
) -> None:
    queue = declare(confirming, names)
    properties = BasicProperties(headers={"a": [1]}, priority=3, delivery_mode=mode, message_id="m")
    for number in range(20):
        confirming.basic_publish("", queue, b"%d" % number, properties, mandatory=True)
    got = collect(confirming, queue, 20)
    assert [body for *_, body in got] == [b"%d" % number for number in range(20)]
    for method, received, _ in got:
        assert method.redelivered is False
        assert (received.delivery_mode, received.priority, received.message_id) == (mode, 3, "m")
        headers: Any = received.headers
        assert headers["a"] == [1]


def test_a_large_message_arrives_whole(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names)
    body = bytes(range(256)) * 2000
    confirming.basic_publish("", queue, body)
    assert get(confirming, queue, auto_ack=True)[2] == body


def test_purge_and_delete_count_what_is_ready(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names)
    publish_numbers(confirming, queue, 5)
    hold(confirming, queue)
    assert confirming.queue_purge(queue).method.message_count == 4
    publish_numbers(confirming, queue, 2)
    wait_for_ready(confirming, queue, 2)
    assert confirming.queue_delete(queue).method.message_count == 2
    with pytest.raises(UnroutableError):
        confirming.basic_publish("", queue, b"x", mandatory=True)


@pytest.mark.parametrize(("flag", "named"), [("if_unused", "if-unused"), ("if_empty", "if-empty")])
def test_a_conditional_delete_was_not_always_possible(
    connect: Connect, names: Names, broker: Broker, flag: str, named: str
) -> None:
    channel = connect().channel()
    queue = declare(channel, names)
    if broker.is_warren:
        channel.queue_delete(queue, **{flag: True})
        with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
            channel.queue_declare(queue, passive=True)
    else:
        text = f"cannot delete {broker.queue(queue)}. queue.delete operations with {named} flag set are not supported"
        with connection_closed_with(540, f"NOT_IMPLEMENTED - {text} by quorum queues"):
            channel.queue_delete(queue, **{flag: True})


def test_a_prefetch_of_one_holds_messages_back(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names)
    publish_numbers(confirming, queue, 3)
    confirming.basic_qos(prefetch_count=1)
    inbox = Inbox(confirming)
    inbox.consume(queue)
    for count in range(1, 4):
        inbox.wait_for(count)
        settle(confirming, queue)
        assert len(inbox.bodies) == count
        confirming.basic_ack(inbox.tags[-1])
    assert inbox.bodies == [b"0", b"1", b"2"]


def test_a_prefetch_of_the_whole_channel_is_refused_or_taken_for_one_of_each_consumer(
    connect: Connect, names: Names, broker: Broker
) -> None:
    channel = connect().channel()
    queue = declare(channel, names)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    inbox = Inbox(channel)
    if broker.behaves_like(4, 3):
        inbox.consume(queue)
        channel.basic_publish("", queue, b"x")
        inbox.wait_for(1)
    else:
        text = f"NOT_IMPLEMENTED - {broker.queue(queue)} does not support global qos"
        with connection_closed_with(540, text):
            inbox.consume(queue)


def test_consumers_are_never_exclusive(channel: BlockingChannel, names: Names) -> None:
    queue = declare(channel, names)
    Inbox(channel).consume(queue, exclusive=True)
    Inbox(channel).consume(queue)
    Inbox(channel).consume(queue, exclusive=True)
    pump(channel.connection, lambda: consumers(channel, queue) == 3, "three consumers")


def test_a_transaction_publishes_and_rolls_back(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    queue = declare(channel, names)
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    channel.tx_commit()
    assert [body for *_, body in collect(channel, queue, 1)] == [b"committed"]
    assert drain(channel, queue) == []


def test_higher_consumer_priorities_are_served_first(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names)
    confirming.basic_qos(prefetch_count=2)
    low, high = Inbox(confirming), Inbox(confirming)
    low.consume(queue, arguments={"x-priority": 1})
    high.consume(queue, arguments={"x-priority": 2})
    pump(confirming.connection, lambda: consumers(confirming, queue) == 2, "two consumers")
    publish_numbers(confirming, queue, 3)
    pump(confirming.connection, lambda: len(high.bodies) + len(low.bodies) == 3, "three deliveries")
    assert (high.bodies, low.bodies) == ([b"0", b"1"], [b"2"])


def test_a_single_active_consumer_is_followed_by_the_next(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names, single_active_consumer=True)
    first, second = Inbox(confirming, acks=True), Inbox(confirming, acks=True)
    tag = first.consume(queue)
    second.consume(queue)
    publish_numbers(confirming, queue, 3)
    first.wait_for(3)
    settle(confirming, queue)
    confirming.basic_cancel(tag)
    confirming.basic_publish("", queue, b"next")
    second.wait_for(1)
    assert (first.bodies, second.bodies) == ([b"0", b"1", b"2"], [b"next"])


# delivery counts and limits


def fail(channel: BlockingChannel, tag: int) -> None:
    """Return a message as not processed; every version counts this."""
    channel.basic_reject(tag, requeue=True)


def test_the_header_counts_deliveries_in_vain(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names, delivery_limit=10)
    confirming.basic_publish("", queue, b"x")
    inbox = Inbox(confirming)
    inbox.consume(queue)
    for count in range(1, 5):
        delivery = inbox.wait_for(count)[-1]
        fail(confirming, tag_of(delivery.method))
    assert [delivery_count(delivery.properties) for delivery in inbox.deliveries[:4]] == [0, 1, 2, 3]
    assert [delivery.method.redelivered for delivery in inbox.deliveries[:4]] == [False, True, True, True]


def test_the_header_is_there_for_get_and_beside_others(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names, delivery_limit=10)
    confirming.basic_publish("", queue, b"x", BasicProperties(headers={"mine": 1}))
    fail(confirming, hold(confirming, queue))
    method, properties, _ = collect(confirming, queue, 1)[0]
    headers: Any = properties.headers
    assert (headers["mine"], headers["x-delivery-count"], method.redelivered) == (1, 1, True)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_message_is_gone_after_one_delivery_more_than_the_limit(
    confirming: BlockingChannel, names: Names, limit: int
) -> None:
    queue = declare(confirming, names, delivery_limit=limit)
    confirming.basic_publish("", queue, b"poison")
    inbox = Inbox(confirming)
    inbox.consume(queue)
    for count in range(1, limit + 2):
        fail(confirming, tag_of(inbox.wait_for(count)[-1].method))
    confirming.basic_publish("", queue, b"food")
    inbox.wait_for(limit + 2)
    assert inbox.bodies == [b"poison"] * (limit + 1) + [b"food"]
    settle(confirming, queue)
    assert len(inbox.bodies) == limit + 2


def test_at_the_limit_a_message_is_dead_lettered_for_that_reason(confirming: BlockingChannel, names: Names) -> None:
    letters = names.queue("letters")
    confirming.queue_declare(letters)
    queue = declare(confirming, names, delivery_limit=2, dead_letter_exchange="", dead_letter_routing_key=letters)
    confirming.basic_publish("", queue, b"poison", BasicProperties(headers={"mine": 1}))
    inbox = Inbox(confirming)
    inbox.consume(queue)
    for count in range(1, 4):
        fail(confirming, tag_of(inbox.wait_for(count)[-1].method))
    method, properties, body = collect(confirming, letters, 1)[0]
    headers: Any = properties.headers
    (entry,) = headers["x-death"]
    assert (body, headers["mine"], method.redelivered) == (b"poison", 1, False)
    assert (entry["queue"], entry["reason"], entry["count"]) == (queue, "delivery_limit", 1)
    assert headers["x-first-death-reason"] == "delivery_limit"


@pytest.mark.parametrize("how", ["channel close", "connection close"])
@pytest.mark.parametrize("taken", ["get", "consume"])
def test_a_client_that_goes_away_has_failed(connect: Connect, names: Names, how: str, taken: str) -> None:
    connection = connect()
    sender = connection.channel()
    queue = declare(sender, names, delivery_limit=1)
    sender.confirm_delivery()
    sender.basic_publish("", queue, b"poison")
    for _ in range(2):
        leaving = connect()
        channel = leaving.channel()
        if taken == "get":
            collected = take(channel, queue)
        else:
            inbox = Inbox(channel)
            inbox.consume(queue)
            collected = inbox.wait_for(1)[0].body
        assert collected == b"poison"
        if how == "channel close":
            channel.close()
        else:
            leaving.close()
    sender.basic_publish("", queue, b"food")
    assert [body for *_, body in collect(sender, queue, 1)] == [b"food"]


def take(channel: BlockingChannel, queue: str) -> bytes:
    """Get a message that is there or on its way back, and keep it."""
    bodies: list[bytes] = []

    def taken() -> bool:
        method, _, body = channel.basic_get(queue)
        if method is not None and body is not None:
            bodies.append(body)
        return bool(bodies)

    pump(channel.connection, taken, f"a message in {queue}")
    return bodies[0]


def test_a_nack_that_requeues_counts_as_failure_before_it_meant_a_return(
    confirming: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = declare(confirming, names, delivery_limit=2)
    confirming.basic_publish("", queue, b"poison")
    inbox = Inbox(confirming)
    inbox.consume(queue)
    for count in range(1, 4):
        confirming.basic_nack(tag_of(inbox.wait_for(count)[-1].method), requeue=True)
    if broker.behaves_like(4, 3):
        inbox.wait_for(4)
        assert inbox.bodies == [b"poison"] * 4
    else:
        confirming.basic_publish("", queue, b"food")
        inbox.wait_for(4)
        assert inbox.bodies == [b"poison"] * 3 + [b"food"]


def test_a_limit_of_minus_one_is_none(confirming: BlockingChannel, names: Names, broker: Broker) -> None:
    if not broker.behaves_like(4, 0):
        pytest.skip("before 4.0 a negative limit is reached by the first failure")
    queue = declare(confirming, names, delivery_limit=-1)
    confirming.basic_publish("", queue, b"x")
    inbox = Inbox(confirming)
    inbox.consume(queue)
    for count in range(1, 31):
        fail(confirming, tag_of(inbox.wait_for(count)[-1].method))
    inbox.wait_for(31)


# order of what comes back


@pytest.mark.parametrize(
    "give_back",
    [
        lambda channel, tags: channel.basic_nack(tags[-1], multiple=True, requeue=True),
        lambda channel, tags: [channel.basic_reject(tag, requeue=True) for tag in tags],
        lambda channel, tags: channel.basic_recover(requeue=True),
        lambda channel, tags: channel.close(),
    ],
    ids=["nack multiple", "reject one by one", "recover", "close"],
)
def test_what_is_given_back_comes_again_before_the_rest(
    connect: Connect, names: Names, give_back: Callable[[BlockingChannel, list[int]], object]
) -> None:
    connection = connect()
    channel, reader = connection.channel(), connection.channel()
    queue = declare(channel, names, delivery_limit=10)
    reader.confirm_delivery()
    publish_numbers(reader, queue, 6)
    tags = [hold(channel, queue) for _ in range(4)]
    give_back(channel, tags)
    pump(connection, lambda: ready(reader, queue) == 6, "all messages to be back")
    got = collect(reader, queue, 6)
    assert [body for *_, body in got] == [b"%d" % number for number in range(6)]
    assert [method.redelivered for method, *_ in got] == [True] * 4 + [False] * 2


def test_one_given_back_is_the_next(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names, delivery_limit=10)
    publish_numbers(confirming, queue, 4)
    tags = [hold(confirming, queue) for _ in range(3)]
    confirming.basic_reject(tags[1], requeue=True)
    wait_for_ready(confirming, queue, 2)
    assert drain(confirming, queue) == [b"1", b"3"]


# expiry, length, dead letters


@pytest.mark.parametrize("of", ["queue", "message"])
def test_messages_expire_and_are_dead_lettered(confirming: BlockingChannel, names: Names, of: str) -> None:
    letters = names.queue("letters")
    confirming.queue_declare(letters)
    ttl = {"message_ttl": 50} if of == "queue" else {}
    queue = declare(confirming, names, dead_letter_exchange="", dead_letter_routing_key=letters, **ttl)
    confirming.basic_publish("", queue, b"x", BasicProperties(expiration="60000" if of == "queue" else "50"))
    _, properties, _ = collect(confirming, letters, 1)[0]
    headers: Any = properties.headers
    (entry,) = headers["x-death"]
    assert (entry["queue"], entry["reason"], entry["count"]) == (queue, "expired", 1)
    assert entry["original-expiration"] == ("60000" if of == "queue" else "50")
    assert properties.expiration is None
    wait_for_ready(confirming, queue, 0)


def test_a_rejected_message_is_dead_lettered_whatever_the_limit(confirming: BlockingChannel, names: Names) -> None:
    letters = names.queue("letters")
    confirming.queue_declare(letters)
    queue = declare(confirming, names, delivery_limit=5, dead_letter_exchange="", dead_letter_routing_key=letters)
    confirming.basic_publish("", queue, b"x")
    confirming.basic_reject(hold(confirming, queue), requeue=False)
    headers: Any = collect(confirming, letters, 1)[0][1].headers
    assert [(entry["queue"], entry["reason"]) for entry in headers["x-death"]] == [(queue, "rejected")]


@pytest.mark.parametrize("limit", [{"max_length": 3}, {"max_length_bytes": 3}])
def test_a_full_quorum_queue_drops_its_oldest_messages(
    confirming: BlockingChannel, names: Names, limit: dict[str, Any]
) -> None:
    letters = names.queue("letters")
    confirming.queue_declare(letters)
    queue = declare(confirming, names, dead_letter_exchange="", dead_letter_routing_key=letters, **limit)
    publish_numbers(confirming, queue, 10)
    wait_for_ready(confirming, queue, 3)
    assert drain(confirming, queue) == [b"7", b"8", b"9"]
    got = collect(confirming, letters, 7)
    assert [body for *_, body in got] == [b"%d" % number for number in range(7)]
    headers: Any = got[0][1].headers
    assert headers["x-first-death-reason"] == "maxlen"


def test_a_full_quorum_queue_nacks_and_keeps_what_it_acked(confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names, max_length=3, overflow="reject-publish")
    acked: list[bytes] = []
    refused = 0
    for number in range(20):
        try:
            confirming.basic_publish("", queue, b"%d" % number)
            acked.append(b"%d" % number)
        except NackError:
            refused += 1
    # RabbitMQ notices that it is full one message too late
    assert refused >= 15
    assert drain(confirming, queue) == acked
    assert len(acked) >= 3


def test_letters_are_kept_until_taken_with_the_strategy_at_least_once(
    confirming: BlockingChannel, names: Names
) -> None:
    letters, dlx = names.queue("letters"), names.exchange("dlx")
    confirming.exchange_declare(dlx, "direct")
    queue = declare(
        confirming,
        names,
        dead_letter_exchange=dlx,
        dead_letter_routing_key="dead",
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
        message_ttl=20,
    )
    confirming.queue_declare(letters)
    confirming.queue_bind(letters, dlx, "dead")
    publish_numbers(confirming, queue, 5)
    got = collect(confirming, letters, 5)
    assert [body for *_, body in got] == [b"0", b"1", b"2", b"3", b"4"]
    headers: Any = got[0][1].headers
    assert [(entry["queue"], entry["reason"], entry["count"]) for entry in headers["x-death"]] == [
        (queue, "expired", 1)
    ]


def test_a_message_dies_in_a_quorum_queue_and_then_in_a_classic_one(confirming: BlockingChannel, names: Names) -> None:
    letters, classic = names.queue("letters"), names.queue("classic")
    confirming.queue_declare(letters)
    confirming.queue_declare(
        classic,
        arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters},
    )
    queue = declare(confirming, names, dead_letter_exchange="", dead_letter_routing_key=classic)
    confirming.basic_publish("", queue, b"x")
    confirming.basic_reject(hold(confirming, queue), requeue=False)
    headers: Any = collect(confirming, letters, 1)[0][1].headers
    assert [(entry["queue"], entry["reason"]) for entry in headers["x-death"]] == [
        (classic, "expired"),
        (queue, "rejected"),
    ]


def test_an_unused_quorum_queue_expires(connect: Connect, confirming: BlockingChannel, names: Names) -> None:
    queue = declare(confirming, names, expires=250)

    def is_gone() -> bool:
        try:
            confirming.basic_publish("", queue, b"anybody home?", mandatory=True)
        except UnroutableError:
            return True
        return False

    pump(confirming.connection, is_gone, "the queue to expire")
