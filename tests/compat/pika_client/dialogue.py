"""What the pika tests say again and again: wait, collect, and name the close they expect.

1. Nothing here sleeps to synchronise: every wait is on a condition, with a deadline that only ends a hopeless test.
   Only `outlast` waits for time itself, for what has to expire.
2. pika's private parts are touched in this module and in wire.py only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from pika.spec import Basic, BasicProperties, Confirm

from ..broker import DEADLINE_S

Connect = Callable[..., pika.BlockingConnection]


def tag_of(method: Basic.Deliver | Basic.GetOk | Basic.Ack | Basic.Nack) -> int:
    """Return the delivery tag, which every message that came from a broker has."""
    assert method.delivery_tag is not None
    return method.delivery_tag


class Delivery(NamedTuple):
    """One message as a consumer sees it."""

    method: Basic.Deliver
    properties: BasicProperties
    body: bytes


class Inbox:
    """Collect what one consumer of a blocking channel receives, in order."""

    def __init__(self, channel: BlockingChannel, acks: bool = False) -> None:
        self._channel = channel
        self._acks = acks
        self.deliveries: list[Delivery] = []

    def __call__(
        self, channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        self.deliveries.append(Delivery(method, properties, body))
        if self._acks:
            channel.basic_ack(tag_of(method))

    def consume(self, queue: str, **options: Any) -> str:
        """Start consuming `queue` into this inbox; return the consumer tag."""
        return self._channel.basic_consume(queue, self, **options)

    def wait_for(self, count: int) -> list[Delivery]:
        """Run the connection until at least `count` deliveries are here."""
        pump(self._channel.connection, lambda: len(self.deliveries) >= count, f"{count} deliveries")
        return self.deliveries

    @property
    def bodies(self) -> list[bytes]:
        """The bodies received so far."""
        return [delivery.body for delivery in self.deliveries]

    @property
    def tags(self) -> list[int]:
        """The delivery tags received so far."""
        return [tag_of(delivery.method) for delivery in self.deliveries]


def pump(connection: pika.BlockingConnection, condition: Callable[[], bool], what: str) -> None:
    """Process the connection's events until `condition` holds."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise AssertionError(f"waited {DEADLINE_S:.0f} s in vain for: {what}")
        connection.process_data_events(time_limit=0.05)


def ready(channel: BlockingChannel, queue: str) -> int:
    """Return the number of ready messages a passive declare reports.

    RabbitMQ may count before it takes in what the same channel just published: `wait_for_ready` or `emptied` then.
    """
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def wait_for_ready(channel: BlockingChannel, queue: str, count: int) -> None:
    """Wait until a passive declare reports `count` ready messages."""
    pump(channel.connection, lambda: ready(channel, queue) == count, f"{count} ready messages")


def emptied(channel: BlockingChannel, queue: str) -> int:
    """Purge the queue; return how many messages it held, everything this channel published included."""
    count: int | None = channel.queue_purge(queue).method.message_count
    assert count is not None
    return count


def consumers(channel: BlockingChannel, queue: str) -> int:
    """Return the number of consumers a passive declare reports."""
    count: int = channel.queue_declare(queue, passive=True).method.consumer_count
    return count


def settle(channel: BlockingChannel, queue: str) -> None:
    """Wait until every delivery that the broker already decided on has reached the callbacks.

    The first passive declare is answered by the queue after whatever it sent to this channel; the second is answered by
    the channel after those deliveries left it.
    """
    ready(channel, queue)
    ready(channel, queue)
    channel.connection.process_data_events(time_limit=0)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Get and acknowledge everything ready in `queue`; return the bodies in order."""
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return bodies
        bodies.append(body)


def get(channel: BlockingChannel, queue: str, auto_ack: bool = False) -> tuple[Basic.GetOk, BasicProperties, bytes]:
    """Get one message that must be there."""
    method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
    assert method is not None and properties is not None and body is not None, f"queue {queue!r} is empty"
    return method, properties, body


def hold(channel: BlockingChannel, queue: str) -> int:
    """Get one message that must be there and keep it unacknowledged; return its tag."""
    return tag_of(get(channel, queue)[0])


def collect(channel: BlockingChannel, queue: str, count: int) -> list[tuple[Basic.GetOk, BasicProperties, bytes]]:
    """Get `count` messages that are in `queue` or on their way there; they are acknowledged, what follows stays."""
    got: list[tuple[Basic.GetOk, BasicProperties, bytes]] = []

    def complete() -> bool:
        while len(got) < count:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None or body is None:
                return False
            got.append((method, properties, body))
        return True

    pump(channel.connection, complete, f"{count} messages in {queue}")
    return got


def outlast(channel: BlockingChannel, milliseconds: int) -> None:
    """Wait for `milliseconds` and the clock's grain: messages enqueued with that time to live have expired then."""
    over_at = time.monotonic() + milliseconds / 1000 + 0.005
    pump(channel.connection, lambda: time.monotonic() >= over_at, f"{milliseconds} ms to pass")


def round_trip(channel: BlockingChannel) -> None:
    """Wait until the broker has handled everything sent on this channel: flow(true) changes nothing."""
    channel.flow(True)


def cut(reply_text: str) -> str:
    """Return how a text too long for a short string arrives: 252 octets and three dots."""
    octets = reply_text.encode()
    return reply_text if len(octets) <= 255 else octets[:252].decode() + "..."


@contextmanager
def channel_closed_with(reply_code: int, reply_text: str) -> Iterator[None]:
    """Expect the broker to close the channel with exactly this code and text."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (reply_code, cut(reply_text))


@contextmanager
def connection_closed_with(reply_code: int, reply_text: str) -> Iterator[None]:
    """Expect the broker to close the connection with exactly this code and text."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (reply_code, cut(reply_text))


def until_closed(connection: pika.BlockingConnection) -> None:
    """Process events until the broker's close surfaces as an exception."""
    pump(connection, lambda: False, "the broker to close the connection")


def send_method(channel: BlockingChannel, method: Any, content: tuple[BasicProperties, bytes] | None = None) -> None:
    """Send a method pika has no call for on an open channel."""
    getattr(channel, "_impl")._send_method(method, content)  # noqa: B009


def publish_in_flight(channel: BlockingChannel, queues: list[str], body: bytes) -> tuple[set[int], set[int]]:
    """Publish to each of `queues` without waiting in between; return the numbers (from 1) acked and nacked.

    Each is answered once. `channel` is switched to confirms here, below pika's blocking mode.
    """
    acked: set[int] = set()
    nacked: set[int] = set()
    outstanding = set(range(1, len(queues) + 1))

    def answered(frame: Any) -> None:
        method: Basic.Ack | Basic.Nack = frame.method
        last = tag_of(method)
        numbers = {number for number in outstanding if number <= last} if method.multiple else {last}
        assert numbers and numbers <= outstanding, f"answered twice: {last}"
        outstanding.difference_update(numbers)
        (nacked if isinstance(method, Basic.Nack) else acked).update(numbers)

    send_method(channel, Confirm.Select())
    round_trip(channel)
    getattr(channel, "_impl").add_callback(answered, [Basic.Ack, Basic.Nack], one_shot=False)  # noqa: B009
    for queue in queues:
        channel.basic_publish("", queue, body)
    pump(channel.connection, lambda: not outstanding, "all confirms")
    return acked, nacked


def impl(connection: pika.BlockingConnection) -> Any:
    """Return the select connection inside a blocking connection."""
    return getattr(connection, "_impl")  # noqa: B009
