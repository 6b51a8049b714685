"""basic.consume, cancel, get: tags, dispatch, exclusivity, priorities, single active consumer, cancel notification."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import DuplicateConsumerTag

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    connection_closed_with,
    consumers,
    drain,
    get,
    pump,
    ready,
    round_trip,
    send_method,
    settle,
    tag_of,
    until_closed,
)

# basic.get


def test_get_empty_from_an_empty_queue(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    assert channel.basic_get(queue) == (None, None, None)


def test_get_ok_tells_where_from_and_how_many_are_left(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.fanout")
    for _ in range(3):
        channel.basic_publish("amq.fanout", "the key", b"x")
    method, _, _ = get(channel, queue)
    assert (method.delivery_tag, method.redelivered, method.exchange, method.routing_key, method.message_count) == (
        1,
        False,
        "amq.fanout",
        "the key",
        2,
    )
    assert get(channel, queue)[0].message_count == 1
    assert get(channel, queue)[0].message_count == 0


def test_getting_from_a_missing_queue_is_404(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.basic_get(queue)


# consume and cancel


def test_messages_already_there_and_coming_later_are_delivered(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"before")
    inbox = Inbox(channel)
    tag = inbox.consume(queue)
    channel.basic_publish("", queue, b"after")
    before, after = inbox.wait_for(2)
    assert (before.body, after.body) == (b"before", b"after")
    assert before.method.consumer_tag == tag
    assert (before.method.delivery_tag, after.method.delivery_tag) == (1, 2)
    assert before.method.redelivered is False
    assert (before.method.exchange, before.method.routing_key) == ("", queue)


def test_consuming_from_a_missing_queue_is_404(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        Inbox(channel).consume(queue)


def test_an_empty_consumer_tag_is_filled_in_by_the_server(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    tags: list[str] = []
    getattr(channel, "_impl").add_callback(  # noqa: B009
        lambda reply: tags.append(reply.method.consumer_tag), [spec.Basic.ConsumeOk]
    )
    send_method(channel, spec.Basic.Consume(queue=queue, consumer_tag=""))
    pump(channel.connection, lambda: len(tags) == 1, "consume-ok")
    assert re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tags[0])


def test_the_clients_consumer_tag_is_used_and_may_be_any_text(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    assert inbox.consume(queue, consumer_tag="my tag ✓") == "my tag ✓"
    channel.basic_publish("", queue, b"x")
    assert inbox.wait_for(1)[0].method.consumer_tag == "my tag ✓"


def test_a_consumer_tag_in_use_is_a_connection_error(connect: Connect, names: Names) -> None:
    connection = connect()
    channel = connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    inbox.consume(queue, consumer_tag="twice")
    with pytest.raises(DuplicateConsumerTag):
        inbox.consume(queue, consumer_tag="twice")
    with connection_closed_with(530, "NOT_ALLOWED - attempt to reuse consumer tag 'twice'"):
        send_method(channel, spec.Basic.Consume(queue=queue, consumer_tag="twice"))
        until_closed(connection)


def test_consumer_tags_belong_to_their_channel(connect: Connect, names: Names) -> None:
    connection = connect()
    queue = names.queue()
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue)
    for channel in (first, second):
        Inbox(channel).consume(queue, consumer_tag="same")
    assert consumers(first, queue) == 2
    first.basic_cancel("same")
    assert consumers(first, queue) == 1


def test_nothing_is_delivered_after_cancel_ok(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    tag = inbox.consume(queue, auto_ack=True)
    channel.basic_publish("", queue, b"delivered")
    inbox.wait_for(1)
    channel.basic_cancel(tag)
    channel.basic_publish("", queue, b"stays")
    settle(channel, queue)
    assert inbox.bodies == [b"delivered"]
    assert drain(channel, queue) == [b"stays"]


def test_what_was_delivered_before_cancel_can_be_acknowledged_after(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    tag = inbox.consume(queue)
    channel.basic_publish("", queue, b"kept")
    inbox.wait_for(1)
    channel.basic_cancel(tag)
    assert ready(channel, queue) == 0
    channel.basic_ack(1)
    round_trip(channel)


def test_cancelling_an_unknown_tag_is_answered(channel: BlockingChannel) -> None:
    replies: list[str] = []
    getattr(channel, "_impl").add_callback(  # noqa: B009
        lambda reply: replies.append(reply.method.consumer_tag), [spec.Basic.CancelOk]
    )
    send_method(channel, spec.Basic.Cancel(consumer_tag="nobody"))
    pump(channel.connection, lambda: replies == ["nobody"], "cancel-ok")


def test_a_cancelled_tag_may_be_used_again(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(10):
        inbox = Inbox(channel)
        inbox.consume(queue, consumer_tag="again", auto_ack=True)
        channel.basic_publish("", queue, b"x")
        inbox.wait_for(1)
        channel.basic_cancel("again")


def test_no_local_is_ignored(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    tag = inbox.consume(queue, consumer_tag="local")
    assert tag == "local"
    channel.basic_cancel(tag)
    send_method(channel, spec.Basic.Consume(queue=queue, no_local=True, no_ack=True, nowait=True, consumer_tag="nl"))
    channel.basic_publish("", queue, b"from here")
    assert drain(channel, queue) == []


def test_nowait_consume_and_cancel_are_obeyed(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    send_method(channel, spec.Basic.Consume(queue=queue, consumer_tag="quiet", nowait=True))
    assert consumers(channel, queue) == 1
    send_method(channel, spec.Basic.Cancel(consumer_tag="quiet", nowait=True))
    assert consumers(channel, queue) == 0


def test_auto_ack_leaves_nothing_to_acknowledge_or_requeue(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    inbox.consume(queue, auto_ack=True)
    for _ in range(10):
        channel.basic_publish("", queue, b"")
    inbox.wait_for(10)
    channel.close()
    assert drain(other, queue) == []


# dispatch


def test_messages_go_round_the_consumers(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inboxes = [Inbox(channel) for _ in range(3)]
    for inbox in inboxes:
        inbox.consume(queue, auto_ack=True)
    for number in range(9):
        channel.basic_publish("", queue, b"%d" % number)
    pump(channel.connection, lambda: sum(len(inbox.bodies) for inbox in inboxes) == 9, "nine deliveries")
    assert [len(inbox.bodies) for inbox in inboxes] == [3, 3, 3]


def test_a_busy_consumer_does_not_hold_up_a_free_one(connect: Connect, names: Names) -> None:
    queue = names.queue()
    busy, free = connect().channel(), connect().channel()
    busy.queue_declare(queue)
    for channel in (busy, free):
        channel.basic_qos(prefetch_count=1)
    held, worked = Inbox(busy), Inbox(free, acks=True)
    held.consume(queue)
    busy.basic_publish("", queue, b"slow")
    held.wait_for(1)
    worked.consume(queue)
    for number in range(20):
        busy.basic_publish("", queue, b"%d" % number)
    worked.wait_for(20)
    assert worked.bodies == [b"%d" % number for number in range(20)]
    assert held.bodies == [b"slow"]


def test_higher_priorities_are_served_first_and_lower_ones_while_they_are_busy(
    channel: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_qos(prefetch_count=2)
    low, middle, high = Inbox(channel), Inbox(channel), Inbox(channel)
    low.consume(queue, arguments={"x-priority": -5})
    middle.consume(queue)
    high.consume(queue, arguments={"x-priority": 10})
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    pump(channel.connection, lambda: sum(len(i.bodies) for i in (low, middle, high)) == 5, "five deliveries")
    assert [high.bodies, middle.bodies, low.bodies] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    channel.basic_ack(high.tags[0])
    channel.basic_publish("", queue, b"5")
    high.wait_for(3)
    assert high.bodies[-1] == b"5"


def test_a_priority_that_is_no_integer_is_refused(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    with pytest.raises(Exception, match="x-priority") as caught:
        Inbox(channel).consume(queue, arguments={"x-priority": "high"})
    assert caught.value.args[0] == 406


def test_unknown_consumer_arguments_are_accepted(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    inbox.consume(queue, arguments={"x-colour": "green", "x-cancel-on-ha-failover": True})
    channel.basic_publish("", queue, b"x")
    inbox.wait_for(1)


# exclusive consumers


def test_an_exclusive_consumer_keeps_others_out(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    Inbox(channel).consume(queue, exclusive=True)
    with channel_closed_with(403, f"ACCESS_REFUSED - {broker.queue(queue)} in exclusive use"):
        Inbox(channel).consume(queue)


def test_exclusive_use_is_refused_while_others_consume(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    Inbox(channel).consume(queue)
    with channel_closed_with(403, f"ACCESS_REFUSED - {broker.queue(queue)} in exclusive use"):
        Inbox(channel).consume(queue, exclusive=True)


def test_exclusive_use_ends_with_cancel(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(3):
        channel.basic_cancel(Inbox(channel).consume(queue, exclusive=True))
    Inbox(channel).consume(queue)
    assert consumers(channel, queue) == 1


def test_get_is_possible_beside_an_exclusive_consumer(connect: Connect, names: Names) -> None:
    queue = names.queue()
    owner, other = connect().channel(), connect().channel()
    owner.queue_declare(queue)
    owner.basic_qos(prefetch_count=1)
    inbox = Inbox(owner)
    inbox.consume(queue, exclusive=True)
    owner.basic_publish("", queue, b"consumed")
    inbox.wait_for(1)
    owner.basic_publish("", queue, b"got")
    round_trip(owner)
    assert get(other, queue, auto_ack=True)[2] == b"got"


# single active consumer


def test_the_first_of_several_consumers_is_the_active_one_and_the_next_takes_over(
    connect: Connect, names: Names
) -> None:
    queue = names.queue()
    connection = connect()
    channels = [connection.channel() for _ in range(3)]
    channels[0].queue_declare(queue, arguments={"x-single-active-consumer": True})
    inboxes = [Inbox(channel, acks=True) for channel in channels]
    tags = [inbox.consume(queue) for inbox in inboxes]

    def publish_and_wait(body: bytes, reader: Inbox) -> None:
        before = len(reader.bodies)
        channels[2].basic_publish("", queue, body)
        pump(connection, lambda: len(reader.bodies) > before, f"{body!r}")

    for number in range(4):
        publish_and_wait(b"to the first", inboxes[0])
        assert number + 1 == len(inboxes[0].bodies)
    channels[0].basic_cancel(tags[0])
    publish_and_wait(b"to the second", inboxes[1])
    channels[1].close()
    publish_and_wait(b"to the third", inboxes[2])
    assert [Counter(inbox.bodies) for inbox in inboxes] == [
        {b"to the first": 4},
        {b"to the second": 1},
        {b"to the third": 1},
    ]


def test_unacknowledged_messages_of_the_active_consumer_go_to_its_successor(connect: Connect, names: Names) -> None:
    queue = names.queue()
    connection = connect()
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue, arguments={"x-single-active-consumer": True})
    one, two = Inbox(first), Inbox(second)
    one.consume(queue)
    two.consume(queue)
    for number in range(3):
        second.basic_publish("", queue, b"%d" % number)
    one.wait_for(3)
    first.basic_ack(1)
    first.close()
    two.wait_for(2)
    assert two.bodies == [b"1", b"2"]
    assert all(delivery.method.redelivered for delivery in two.deliveries)


def test_exclusive_consumption_of_a_single_active_consumer_queue_is_refused(
    channel: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-single-active-consumer": True})
    with channel_closed_with(403, f"ACCESS_REFUSED - {broker.queue(queue)} in exclusive use"):
        Inbox(channel).consume(queue, exclusive=True)


# cancellation by the broker


def test_deleting_a_queue_tells_its_consumers(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    tags = [Inbox(channel).consume(queue), Inbox(channel).consume(queue)]
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    other.queue_delete(queue)
    pump(connection, lambda: len(cancelled) == 2, "two cancellations")
    assert set(cancelled) == set(tags)
    assert channel.consumer_tags == []


def test_a_client_without_the_capability_is_not_told(connect: Connect, names: Names) -> None:
    connection = connect(client_properties={"capabilities": {"consumer_cancel_notify": False}})
    channel, other = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    Inbox(channel).consume(queue)
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    other.queue_delete(queue)
    round_trip(channel)
    round_trip(channel)
    connection.process_data_events(time_limit=0)
    assert cancelled == []


def test_the_owner_of_a_deleted_exclusive_queue_is_told_too(connect: Connect, names: Names) -> None:
    connection = connect()
    channel = connection.channel()
    queue = names.queue()
    channel.queue_declare(queue, exclusive=True)
    Inbox(channel).consume(queue)
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.queue_delete(queue)
    pump(connection, lambda: len(cancelled) == 1, "the cancellation")


# the generator


def test_the_generator_yields_messages_in_order(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    bodies = []
    for method, _, body in channel.consume(queue):
        channel.basic_ack(tag_of(method))
        bodies.append(body)
        if len(bodies) == 10:
            break
    assert channel.cancel() == 0
    assert bodies == [b"%d" % number for number in range(10)]
    assert ready(channel, queue) == 0


def test_the_generator_yields_nones_while_nothing_comes(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    seen: list[bytes | None] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=0.05, auto_ack=True):
        seen.append(body)
        if method is None:
            channel.basic_publish("", queue, b"woken")
        if seen.count(b"woken") == 2:
            break
    channel.cancel()
    assert seen[0] is None


def test_leaving_the_generator_requeues_what_it_prefetched(connect: Connect, names: Names) -> None:
    connection = connect()
    channel = connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    for method, _, body in channel.consume(queue):
        assert body == b"0"
        channel.basic_ack(tag_of(method))
        break
    channel.cancel()
    assert drain(channel, queue) == [b"1", b"2", b"3", b"4"]


def test_the_generator_ends_when_its_queue_is_deleted(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"last")
    bodies = []
    for _, _, body in channel.consume(queue, auto_ack=True):
        bodies.append(body)
        other.queue_delete(queue)
    assert bodies == [b"last"]
