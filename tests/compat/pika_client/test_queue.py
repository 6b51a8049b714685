"""queue class: declare, passive, equivalence, exclusivity, auto-delete, bind, purge, delete, and every refusal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    consumers,
    drain,
    get,
    hold,
    pump,
    ready,
    round_trip,
    send_method,
    settle,
)

NOT_ON_DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"
NO_LAST_QUEUE = "NOT_FOUND - no previously declared queue"


def locked(broker: Broker, queue: str) -> str:
    """The text of 405 for a queue that belongs to another connection."""
    return (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked {broker.queue(queue)}. "
        "It could be originally declared on another connection or "
        "the exclusive property value does not match that of the original declaration."
    )


# declare


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("auto_delete", [False, True])
def test_declare_ok_names_the_queue_and_counts(
    channel: BlockingChannel, names: Names, durable: bool, auto_delete: bool
) -> None:
    queue = names.queue()
    declared = channel.queue_declare(queue, durable=durable, auto_delete=auto_delete).method
    assert (declared.queue, declared.message_count, declared.consumer_count) == (queue, 0, 0)


def test_redeclaring_reports_ready_messages_and_consumers(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(5):
        channel.basic_publish("", queue, b"")
    get(channel, queue)
    assert ready(channel, queue) == 4
    channel.basic_qos(prefetch_count=1)
    Inbox(channel).consume(queue)
    Inbox(channel).consume(queue)
    declared = channel.queue_declare(queue).method
    assert (declared.message_count, declared.consumer_count) == (2, 2)


def test_an_empty_name_asks_the_server_for_one(channel: BlockingChannel) -> None:
    named = {channel.queue_declare("", exclusive=True, auto_delete=True).method.queue for _ in range(5)}
    assert len(named) == 5
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", queue) for queue in named)


def test_a_server_named_queue_need_not_be_exclusive(connect: Connect) -> None:
    queue = connect().channel().queue_declare("").method.queue
    channel = connect().channel()
    assert channel.queue_declare(queue, passive=True).method.queue == queue
    channel.queue_delete(queue)


def test_a_reserved_queue_name_is_refused(channel: BlockingChannel) -> None:
    refusal = "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"
    with channel_closed_with(403, refusal):
        channel.queue_declare("amq.mine")


def test_a_server_named_queue_cannot_be_redeclared_by_name(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    refusal = f"ACCESS_REFUSED - queue name '{queue}' contains reserved prefix 'amq.*'"
    with channel_closed_with(403, refusal):
        channel.queue_declare(queue, exclusive=True)


def test_a_passive_declare_of_nothing_is_404(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_declare(queue, passive=True)


def test_a_passive_declare_ignores_flags_and_arguments(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue, durable=True)
    other: dict[str, Any] = {"durable": False, "auto_delete": True, "arguments": {"x-max-length": 1}}
    assert channel.queue_declare(queue, passive=True, **other).method.queue == queue


@pytest.mark.parametrize(
    ("first", "second", "argument", "received", "current"),
    [
        ({}, {"durable": True}, "durable", "'true'", "'false'"),
        ({"durable": True}, {}, "durable", "'false'", "'true'"),
        ({}, {"auto_delete": True}, "auto_delete", "'true'", "'false'"),
        (
            {},
            {"arguments": {"x-max-length": 9}},
            "x-max-length",
            "the value '9' of type 'signedint'",
            "none",
        ),
        (
            {"arguments": {"x-message-ttl": 60000}},
            {},
            "x-message-ttl",
            "none",
            "the value '60000' of type 'signedint'",
        ),
        (
            {"arguments": {"x-dead-letter-exchange": "a"}},
            {"arguments": {"x-dead-letter-exchange": "b"}},
            "x-dead-letter-exchange",
            "'b'",
            "'a'",
        ),
        (
            {"arguments": {"x-max-length": 9}},
            {"arguments": {"x-max-length": 10}},
            "x-max-length",
            "'10'",
            "'9'",
        ),
    ],
)
def test_a_different_redeclaration_of_a_queue_names_the_argument(
    channel: BlockingChannel,
    names: Names,
    broker: Broker,
    first: dict[str, Any],
    second: dict[str, Any],
    argument: str,
    received: str,
    current: str,
) -> None:
    queue = names.queue()
    channel.queue_declare(queue, **first)
    text = f"inequivalent arg '{argument}' for {broker.queue(queue)}: received {received} but current is {current}"
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_declare(queue, **second)


def test_unknown_queue_arguments_are_kept_but_not_compared(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-colour": "green", "nested": {"deep": [1, None]}})
    channel.queue_declare(queue, arguments={"x-colour": "red"})
    channel.queue_declare(queue)


def test_integer_arguments_are_equal_by_value_whatever_their_width(channel: BlockingChannel, names: Names) -> None:
    from pika.compat import long  # pika writes this one with 64 bits

    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-max-length": 10})
    channel.queue_declare(queue, arguments={"x-max-length": long(10)})


def test_the_classic_queue_type_equals_no_queue_type(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue, durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})


def test_carriage_returns_and_line_feeds_are_taken_out_of_queue_names(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    # pika waits for a declare-ok with the name it sent, so it asks for none
    send_method(channel, spec.Queue.Declare(queue=queue[:5] + "\r\n" + queue[5:], nowait=True))
    assert ready(channel, queue) == 0


# exclusive


def test_an_exclusive_queue_serves_its_own_connection_on_any_channel(connect: Connect, names: Names) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    queue = names.queue()
    first.queue_declare(queue, exclusive=True)
    second.queue_declare(queue, exclusive=True)
    second.basic_publish("", queue, b"mine")
    assert drain(second, queue) == [b"mine"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda channel, queue: channel.queue_declare(queue, exclusive=True),
        lambda channel, queue: channel.queue_declare(queue),
        lambda channel, queue: channel.queue_declare(queue, passive=True),
        lambda channel, queue: channel.queue_bind(queue, "amq.fanout"),
        lambda channel, queue: channel.queue_unbind(queue, "amq.fanout"),
        lambda channel, queue: channel.queue_purge(queue),
        lambda channel, queue: channel.queue_delete(queue),
        lambda channel, queue: channel.basic_get(queue),
        lambda channel, queue: channel.basic_consume(queue, Inbox(channel)),
    ],
    ids=["declare-exclusive", "declare", "passive", "bind", "unbind", "purge", "delete", "get", "consume"],
)
def test_an_exclusive_queue_is_locked_for_other_connections(
    connect: Connect, names: Names, broker: Broker, operation: Any
) -> None:
    queue = names.queue()
    owner = connect().channel()
    owner.queue_declare(queue, exclusive=True)
    owner.queue_bind(queue, "amq.fanout")
    with channel_closed_with(405, locked(broker, queue)):
        operation(connect().channel(), queue)


def test_anyone_may_publish_to_an_exclusive_queue(connect: Connect, names: Names) -> None:
    queue = names.queue()
    owner, stranger = connect().channel(), connect().channel()
    owner.queue_declare(queue, exclusive=True)
    stranger.confirm_delivery()
    stranger.basic_publish("", queue, b"from outside", mandatory=True)
    assert drain(owner, queue) == [b"from outside"]


def test_redeclaring_a_shared_queue_as_exclusive_is_refused(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    with channel_closed_with(405, locked(broker, queue)):
        channel.queue_declare(queue, exclusive=True)


def test_an_exclusive_queue_ends_with_its_connection_even_when_durable(
    connect: Connect, channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    owner = connect()
    owner.channel().queue_declare(queue, exclusive=True, durable=True)
    owner.close()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_declare(queue, passive=True)


def test_an_exclusive_queue_survives_the_channel_that_declared_it(connect: Connect, names: Names) -> None:
    connection = connect()
    queue = names.queue()
    first = connection.channel()
    first.queue_declare(queue, exclusive=True)
    first.close()
    assert ready(connection.channel(), queue) == 0


# auto-delete


def test_an_auto_delete_queue_stays_until_it_had_a_consumer(connect: Connect, names: Names) -> None:
    queue = names.queue()
    first = connect()
    first.channel().queue_declare(queue, auto_delete=True)
    first.close()
    assert consumers(connect().channel(), queue) == 0


@pytest.mark.parametrize("how", ["cancel", "channel close", "connection close"])
def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connect: Connect, names: Names, broker: Broker, how: str
) -> None:
    queue = names.queue()
    watcher = connect().channel()
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    inbox = Inbox(channel)
    first, second = inbox.consume(queue), inbox.consume(queue)
    channel.basic_cancel(first)
    assert consumers(watcher, queue) == 1
    if how == "cancel":
        channel.basic_cancel(second)
    elif how == "channel close":
        channel.close()
    else:
        connection.close()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        watcher.queue_declare(queue, passive=True)


def test_a_get_does_not_count_as_consumer_of_an_auto_delete_queue(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue, auto_delete=True)
    channel.basic_get(queue, auto_ack=True)
    assert ready(channel, queue) == 0


# the last declared queue


def test_an_empty_queue_name_means_the_last_one_declared(channel: BlockingChannel) -> None:
    first = channel.queue_declare("", exclusive=True).method.queue
    last = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", "a-key-of-" + last)
    channel.basic_publish("amq.direct", "a-key-of-" + last, b"bound")
    assert get(channel, "", auto_ack=True)[2] == b"bound"
    channel.basic_publish("", last, b"purged")
    assert channel.queue_purge("").method.message_count == 1
    inbox = Inbox(channel)
    inbox.consume("")
    channel.basic_publish("", last, b"consumed")
    inbox.wait_for(1)
    channel.queue_delete("")
    assert ready(channel, first) == 0


def test_an_empty_queue_name_and_routing_key_bind_the_last_queue_under_its_own_name(
    channel: BlockingChannel,
) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    # pika would fill in the queue name itself, so the method is sent as it is
    send_method(channel, spec.Queue.Bind(queue="", exchange="amq.direct", routing_key="", nowait=True))
    channel.basic_publish("amq.direct", queue, b"by name")
    channel.basic_publish("amq.direct", "", b"by an empty key")
    assert drain(channel, queue) == [b"by name"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda channel: send_method(channel, spec.Queue.Bind(queue="", exchange="amq.direct", routing_key="k")),
        lambda channel: send_method(channel, spec.Queue.Purge(queue="")),
        lambda channel: send_method(channel, spec.Queue.Delete(queue="")),
        lambda channel: send_method(channel, spec.Basic.Get(queue="")),
        lambda channel: send_method(channel, spec.Basic.Consume(queue="")),
    ],
    ids=["bind", "purge", "delete", "get", "consume"],
)
def test_an_empty_queue_name_without_a_declare_is_404(channel: BlockingChannel, operation: Any) -> None:
    with channel_closed_with(404, NO_LAST_QUEUE):
        operation(channel)
        round_trip(channel)


# bind and unbind


def test_a_binding_routes_until_it_is_unbound(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    key = names.unused("key")
    channel.queue_bind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"bound")
    channel.queue_unbind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"unbound")
    assert drain(channel, queue) == [b"bound"]


def test_the_same_binding_twice_delivers_once_and_unbinds_once(channel: BlockingChannel, names: Names) -> None:
    queue, key = names.queue(), names.unused("key")
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.direct", key)
    channel.queue_bind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"once")
    channel.queue_unbind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"never")
    assert drain(channel, queue) == [b"once"]


def test_arguments_are_part_of_what_a_binding_is(channel: BlockingChannel, names: Names) -> None:
    queue, key = names.queue(), names.unused("key")
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.direct", key, {"note": "first"})
    channel.queue_bind(queue, "amq.direct", key, {"note": "second"})
    channel.queue_unbind(queue, "amq.direct", key, {"note": "first"})
    channel.basic_publish("amq.direct", key, b"through the second")
    channel.queue_unbind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"still through the second")
    channel.queue_unbind(queue, "amq.direct", key, {"note": "second"})
    channel.basic_publish("amq.direct", key, b"lost")
    assert drain(channel, queue) == [b"through the second", b"still through the second"]


def test_binding_a_missing_queue_is_404(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_bind(queue, "amq.direct", "k")


def test_binding_to_a_missing_exchange_is_404(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue, exchange = names.queue(), names.unused()
    channel.queue_declare(queue)
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(exchange)}"):
        channel.queue_bind(queue, exchange, "k")


@pytest.mark.parametrize("call", ["queue_bind", "queue_unbind"])
def test_the_default_exchange_cannot_be_bound_to_a_queue(channel: BlockingChannel, names: Names, call: str) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    with channel_closed_with(403, NOT_ON_DEFAULT):
        getattr(channel, call)(queue, "", "k")


def test_unbinding_what_is_missing_succeeds(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.queue_unbind(queue, "amq.direct", "never bound")
    channel.queue_unbind(queue, names.unused("exchange"), "k")
    channel.queue_unbind(names.unused("queue"), "amq.direct", "k")


def test_deleting_a_queue_drops_its_bindings(channel: BlockingChannel, names: Names) -> None:
    queue, key = names.queue(), names.unused("key")
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.direct", key)
    channel.queue_delete(queue)
    channel.queue_declare(queue)
    channel.basic_publish("amq.direct", key, b"lost")
    assert drain(channel, queue) == []


# purge


def test_purge_counts_and_removes_what_is_ready(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(20):
        channel.basic_publish("", queue, b"dust")
    assert channel.queue_purge(queue).method.message_count == 20
    assert channel.queue_purge(queue).method.message_count == 0


def test_purge_spares_what_is_unacknowledged(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    held = hold(channel, queue)
    assert channel.queue_purge(queue).method.message_count == 2
    channel.basic_reject(held, requeue=True)
    assert drain(channel, queue) == [b"0"]


def test_purging_a_missing_queue_is_404(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_purge(queue)


# delete


def test_delete_counts_the_ready_messages_it_throws_away(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(7):
        channel.basic_publish("", queue, b"")
    get(channel, queue)
    assert channel.queue_delete(queue).method.message_count == 6


def test_deleting_a_missing_queue_succeeds_with_zero(channel: BlockingChannel, names: Names) -> None:
    assert channel.queue_delete(names.unused()).method.message_count == 0


def test_if_unused_spares_a_queue_with_consumers(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    Inbox(channel).consume(queue)
    with channel_closed_with(406, f"PRECONDITION_FAILED - {broker.queue(queue)} in use"):
        channel.queue_delete(queue, if_unused=True)


def test_if_empty_spares_a_queue_with_messages(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"keep me")
    with channel_closed_with(406, f"PRECONDITION_FAILED - {broker.queue(queue)} not empty"):
        channel.queue_delete(queue, if_empty=True)


def test_an_unused_and_empty_queue_is_deleted_with_both_flags(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    assert channel.queue_delete(queue, if_unused=True, if_empty=True).method.message_count == 0
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_declare(queue, passive=True)


def test_messages_unacknowledged_when_their_queue_is_deleted_can_still_be_settled(
    channel: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(3):
        channel.basic_publish("", queue, b"")
    tags = [hold(channel, queue) for _ in range(3)]
    channel.queue_delete(queue)
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[1])
    channel.basic_reject(tags[2])
    round_trip(channel)


# nowait forms


def test_nowait_forms_are_obeyed_without_an_answer(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue, key = names.queue(), names.unused("key")
    send_method(channel, spec.Queue.Declare(queue=queue, nowait=True))
    send_method(channel, spec.Queue.Bind(queue=queue, exchange="amq.direct", routing_key=key, nowait=True))
    channel.basic_publish("amq.direct", key, b"bound")
    assert drain(channel, queue) == [b"bound"]
    channel.basic_publish("", queue, b"purged")
    send_method(channel, spec.Queue.Purge(queue=queue, nowait=True))
    assert ready(channel, queue) == 0
    send_method(channel, spec.Queue.Declare(queue=queue, passive=True, nowait=True))
    send_method(channel, spec.Queue.Delete(queue=queue, nowait=True))
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_declare(queue, passive=True)


def test_a_deleted_queue_can_be_declared_anew_with_other_properties(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"old")
    channel.queue_delete(queue)
    declared = channel.queue_declare(queue, durable=True, auto_delete=True).method
    assert declared.message_count == 0


def test_five_hundred_queues_come_and_go(connect: Connect, names: Names) -> None:
    connection = connect()
    channel = connection.channel()
    stem = names.unused("queue")
    queues = [f"{stem}-{number}" for number in range(500)]
    for queue in queues:
        send_method(channel, spec.Queue.Declare(queue=queue, exclusive=True, nowait=True))
    for queue in queues:
        channel.basic_publish("", queue, queue.encode())
    inbox = Inbox(channel)
    for queue in queues[::50]:
        inbox.consume(queue, auto_ack=True)
    inbox.wait_for(10)
    assert inbox.bodies == [queue.encode() for queue in queues[::50]]
    settle(channel, queues[0])
    pump(connection, lambda: ready(channel, queues[1]) == 1, "the other queues to hold their message")


def test_a_reply_text_too_long_for_a_short_string_is_cut_with_three_dots(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.unused("q" * 200)
    queue += "q" * (250 - len(queue))
    text = f"NOT_FOUND - no {broker.queue(queue)}"
    assert len(text) > 255
    with channel_closed_with(404, text[:252] + "..."):
        channel.queue_declare(queue, passive=True)
