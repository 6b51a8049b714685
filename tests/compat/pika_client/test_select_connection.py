"""pika's SelectConnection: everything by callback, nowait forms included, one thread and no blocking call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika import BasicProperties, spec
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByClient

from ..broker import DEADLINE_S, Broker
from ..conftest import Names
from .dialogue import tag_of


class Conversation:
    """Drive one SelectConnection from opening to close with steps that call each other.

    `run` returns when `finish` was called and the connection is closed, or when the broker closed it.
    """

    def __init__(self, broker: Broker, on_channel: Callable[[Channel], object], **changes: Any) -> None:
        self.channel_closings: list[Exception] = []
        self.closing: BaseException | None = None
        self._on_channel = on_channel
        self._gave_up = False
        self.connection = pika.SelectConnection(
            broker.parameters(**changes),
            on_open_callback=self._opened,
            on_open_error_callback=self._closed,
            on_close_callback=self._closed,
        )

    def _opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Channel) -> None:
        channel.add_on_close_callback(lambda _, reason: self.channel_closings.append(reason))
        self._on_channel(channel)

    def _closed(self, connection: pika.SelectConnection, reason: BaseException) -> None:
        self.closing = reason
        connection.ioloop.stop()

    def _give_up(self) -> None:
        self._gave_up = True
        self.connection.ioloop.stop()

    def finish(self, *_: object) -> None:
        """Close the connection; usable as the callback of the last step."""
        self.connection.close()

    def run(self) -> None:
        """Run until the connection is closed."""
        loop: Any = self.connection.ioloop
        loop.call_later(DEADLINE_S, self._give_up)
        loop.start()
        assert not self._gave_up, f"the conversation did not end in {DEADLINE_S:.0f} s"


def converse(broker: Broker, on_channel: Callable[[Channel, Conversation], object], **changes: Any) -> Conversation:
    """Run a conversation whose first step gets an open channel."""
    conversation = Conversation(broker, lambda channel: on_channel(channel, conversation), **changes)
    conversation.run()
    return conversation


def test_open_and_close(broker: Broker) -> None:
    conversation = converse(broker, lambda channel, talk: talk.finish())
    assert isinstance(conversation.closing, ConnectionClosedByClient)
    assert conversation.closing.reply_code == 200


def test_declare_bind_publish_consume_and_acknowledge(broker: Broker, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    received: list[bytes] = []

    def begin(channel: Channel, talk: Conversation) -> None:
        def declared(_: object) -> None:
            channel.queue_declare(queue, callback=queue_declared)

        def queue_declared(_: object) -> None:
            channel.queue_bind(queue, exchange, "k", callback=bound)

        def bound(_: object) -> None:
            channel.basic_qos(prefetch_count=10, callback=limited)

        def limited(_: object) -> None:
            channel.basic_consume(queue, on_message, callback=consuming)

        def consuming(_: object) -> None:
            for number in range(100):
                channel.basic_publish(exchange, "k", b"%d" % number)

        def on_message(_: Channel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            received.append(body)
            channel.basic_ack(tag_of(method))
            if len(received) == 100:
                channel.queue_unbind(queue, exchange, "k", callback=unbound)

        def unbound(_: object) -> None:
            channel.queue_delete(queue, callback=deleted)

        def deleted(frame: Any) -> None:
            assert frame.method.message_count == 0
            channel.exchange_delete(exchange, callback=talk.finish)

        channel.exchange_declare(exchange, "direct", callback=declared)

    converse(broker, begin)
    assert received == [b"%d" % number for number in range(100)]


def test_every_method_without_a_callback_is_sent_nowait_and_works(broker: Broker, names: Names) -> None:
    source, destination, queue = names.exchange(), names.exchange(), names.queue()
    counts: list[int] = []

    def begin(channel: Channel, talk: Conversation) -> None:
        channel.exchange_declare(source, "fanout")
        channel.exchange_declare(destination, "fanout")
        channel.exchange_bind(destination, source)
        channel.queue_declare(queue)
        channel.queue_bind(queue, destination)
        channel.basic_publish(source, "", b"purged")
        channel.queue_purge(queue)
        channel.basic_publish(source, "", b"kept")
        channel.exchange_unbind(destination, source)
        channel.basic_publish(source, "", b"lost")
        channel.exchange_delete(source)
        channel.queue_purge(queue, callback=lambda frame: purged(frame))

        def purged(frame: Any) -> None:
            counts.append(frame.method.message_count)
            channel.queue_delete(queue)
            channel.exchange_delete(destination)
            channel.queue_declare("", exclusive=True, callback=talk.finish)

    conversation = converse(broker, begin)
    assert counts == [1]
    assert not any(isinstance(reason, ChannelClosedByBroker) for reason in conversation.channel_closings)


def test_confirms_arrive_by_callback(broker: Broker, names: Names) -> None:
    queue = names.queue()
    outstanding = set(range(1, 1001))

    def begin(channel: Channel, talk: Conversation) -> None:
        def confirmed(frame: Any) -> None:
            assert isinstance(frame.method, spec.Basic.Ack)
            tag = frame.method.delivery_tag
            done = {number for number in outstanding if number <= tag} if frame.method.multiple else {tag}
            outstanding.difference_update(done)
            if not outstanding:
                talk.finish()

        def selected(_: object) -> None:
            for _number in range(1000):
                channel.basic_publish("", queue, b"x", BasicProperties(delivery_mode=2))

        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery(confirmed, callback=selected)

    converse(broker, begin)
    assert outstanding == set()


def test_confirm_select_without_callback_is_nowait(broker: Broker, names: Names) -> None:
    acks: list[int] = []

    def begin(channel: Channel, talk: Conversation) -> None:
        def confirmed(frame: Any) -> None:
            acks.append(frame.method.delivery_tag)
            talk.finish()

        channel.confirm_delivery(confirmed)
        channel.basic_publish("", names.unused(), b"x")

    converse(broker, begin)
    assert acks == [1]


def test_consumers_cancel_by_callback_and_are_cancelled_by_the_broker(broker: Broker, names: Names) -> None:
    queue = names.queue()
    log: list[str] = []

    def begin(channel: Channel, talk: Conversation) -> None:
        def cancelled_by_broker(frame: Any) -> None:
            log.append("broker " + frame.method.consumer_tag)
            talk.finish()

        def cancelled(frame: Any) -> None:
            log.append("client " + frame.method.consumer_tag)
            channel.queue_delete(queue)

        def consuming(_: object) -> None:
            channel.basic_cancel("first", callback=cancelled)

        channel.add_on_cancel_callback(cancelled_by_broker)
        channel.queue_declare(queue)
        channel.basic_consume(queue, lambda *_: None, consumer_tag="first")
        channel.basic_consume(queue, lambda *_: None, consumer_tag="second", callback=consuming)

    converse(broker, begin)
    assert log == ["client first", "broker second"]


def test_a_channel_error_reaches_its_callback_and_a_new_channel_takes_over(broker: Broker, names: Names) -> None:
    missing = names.unused()
    opened: list[int] = []

    def begin(channel: Channel, talk: Conversation) -> None:
        def closed(_: Channel, reason: Exception) -> None:
            if isinstance(reason, ChannelClosedByBroker):
                talk.connection.channel(on_open_callback=again)

        def again(new: Channel) -> None:
            opened.append(new.channel_number)
            talk.finish()

        channel.add_on_close_callback(closed)
        channel.queue_declare(missing, passive=True, callback=talk.finish)

    conversation = converse(broker, begin)
    reason = conversation.channel_closings[0]
    assert isinstance(reason, ChannelClosedByBroker)
    assert (reason.reply_code, reason.reply_text) == (404, f"NOT_FOUND - no {broker.queue(missing)}")
    assert len(opened) == 1


def test_many_channels_pipelined(broker: Broker, names: Names) -> None:
    total = 60
    received: dict[int, list[bytes]] = {}

    def begin(channel: Channel, talk: Conversation) -> None:
        def opened(each: Channel) -> None:
            number = each.channel_number
            received[number] = []
            queue = names.queue()

            def on_message(_: Channel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
                received[number].append(body)
                if sum(map(len, received.values())) == total * 10:
                    talk.finish()

            each.queue_declare(queue, exclusive=True)
            each.basic_consume(queue, on_message, auto_ack=True)
            for count in range(10):
                each.basic_publish("", queue, b"%d on %d" % (count, number))

        for _ in range(total):
            talk.connection.channel(on_open_callback=opened)

    converse(broker, begin)
    assert len(received) == total
    assert all(bodies == [b"%d on %d" % (c, n) for c in range(10)] for n, bodies in received.items())


@pytest.mark.parametrize("frame_max", [4096, 131072])
def test_large_messages_flow_both_ways_at_once(broker: Broker, names: Names, frame_max: int) -> None:
    queue = names.queue()
    body = bytes(range(256)) * 2000
    received: list[bytes] = []

    def begin(channel: Channel, talk: Conversation) -> None:
        def on_message(_: Channel, method: spec.Basic.Deliver, properties: BasicProperties, got: bytes) -> None:
            received.append(got)
            channel.basic_ack(tag_of(method))
            if len(received) == 20:
                talk.finish()

        channel.queue_declare(queue)
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume(queue, on_message)
        for _ in range(20):
            channel.basic_publish("", queue, body)

    converse(broker, begin, frame_max=frame_max)
    assert received == [body] * 20


def test_work_from_other_threads_enters_through_threadsafe_callbacks(broker: Broker, names: Names) -> None:
    queue = names.queue()
    received: set[bytes] = set()

    def begin(channel: Channel, talk: Conversation) -> None:
        loop: Any = talk.connection.ioloop

        def on_message(_: Channel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            received.add(body)
            if len(received) == 30:
                talk.finish()

        def produce(thread: int) -> None:
            for number in range(10):
                body = b"%d from %d" % (number, thread)
                loop.add_callback_threadsafe(lambda body=body: channel.basic_publish("", queue, body))

        def consuming(_: object) -> None:
            for thread in range(3):
                threading.Thread(target=produce, args=(thread,)).start()

        channel.queue_declare(queue)
        channel.basic_consume(queue, on_message, auto_ack=True, callback=consuming)

    converse(broker, begin)
    assert len(received) == 30


class ReconnectingConsumer:
    """Keep consuming across lost connections and channels: the shape pika's documentation recommends.

    Each connection is lost after two messages, in turn by an error of the connection and one of the channel.
    """

    def __init__(self, broker: Broker, queue: str, wanted: int) -> None:
        self._broker = broker
        self._queue = queue
        self._wanted = wanted
        self.received: list[bytes] = []
        self.connections = 0

    def run(self) -> None:
        """Connect again and again until everything wanted was received."""
        give_up_at = time.monotonic() + DEADLINE_S
        while len(self.received) < self._wanted:
            assert time.monotonic() < give_up_at
            self.connections += 1
            converse(self._broker, self._consume)

    def _consume(self, channel: Channel, talk: Conversation) -> None:
        handled = 0

        def on_message(_: Channel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            nonlocal handled
            if handled == 2:
                return
            handled += 1
            self.received.append(body)
            channel.basic_ack(tag_of(method))
            if len(self.received) == self._wanted:
                talk.finish()
            elif handled == 2 and self.connections % 2:
                channel.flow(False)
            elif handled == 2:
                channel.basic_ack(1_000_000)

        channel.add_on_close_callback(lambda _, reason: self._channel_lost(talk, reason))
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume(self._queue, on_message)

    def _channel_lost(self, talk: Conversation, reason: Exception) -> None:
        if isinstance(reason, ChannelClosedByBroker):
            talk.finish()


def test_a_reconnecting_consumer_gets_every_message_in_order(broker: Broker, names: Names) -> None:
    queue = names.queue()
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare(queue)
        channel.confirm_delivery()
        for number in range(11):
            channel.basic_publish("", queue, b"%d" % number)
    consumer = ReconnectingConsumer(broker, queue, wanted=11)
    consumer.run()
    assert consumer.received == [b"%d" % number for number in range(11)]
    assert consumer.connections == 6
