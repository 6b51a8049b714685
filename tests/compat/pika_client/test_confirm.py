"""Publisher confirms: many publishes in flight, returns first, several queues, and pika's blocking mode."""

from __future__ import annotations

from typing import Literal

import pytest
from pika import BasicProperties, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from ..conftest import Names
from .dialogue import (
    Connect,
    drain,
    impl,
    pump,
    round_trip,
    send_method,
    tag_of,
)


class Confirms:
    """The broker's answers to the publishes of a channel in confirm mode, as frames came in."""

    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self.log: list[tuple[str, int | str]] = []
        self.outstanding: set[int] = set()
        self.acked: set[int] = set()
        self._published = 0
        raw = getattr(channel, "_impl")  # noqa: B009
        raw.add_callback(self._ack, [spec.Basic.Ack], one_shot=False)
        raw.add_on_return_callback(lambda _, method, properties, body: self.log.append(("return", body.decode())))

    def _ack(self, frame: object) -> None:
        method = getattr(frame, "method")  # noqa: B009
        tag: int = method.delivery_tag
        confirmed = {t for t in self.outstanding if t <= tag} if method.multiple else {tag}
        assert confirmed <= self.outstanding, f"confirmed twice or never published: {confirmed - self.outstanding}"
        self.outstanding -= confirmed
        self.acked |= confirmed
        self.log.append(("ack", tag))

    def publish(
        self, exchange: str, key: str, body: bytes = b"", mandatory: bool = False, mode: Literal[1, 2] = 1
    ) -> int:
        """Publish without waiting; return the sequence number."""
        self._published += 1
        self.outstanding.add(self._published)
        properties = BasicProperties(delivery_mode=mode)
        self._channel.basic_publish(exchange, key, body, properties, mandatory)
        return self._published

    def wait(self) -> None:
        """Wait until nothing is outstanding."""
        pump(self._channel.connection, lambda: not self.outstanding, "all confirms")


def confirming(channel: BlockingChannel) -> Confirms:
    """Switch confirms on below pika's blocking mode, so that publishes can be in flight."""
    send_method(channel, spec.Confirm.Select())
    round_trip(channel)
    return Confirms(channel)


def test_a_blocking_publish_returns_when_the_broker_has_the_message(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", queue, b"%d" % number, mandatory=True)
    assert drain(channel, queue) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("mode", [1, 2])
def test_every_publish_in_flight_is_confirmed_once(
    channel: BlockingChannel, names: Names, durable: bool, mode: Literal[1, 2]
) -> None:
    queue = names.queue()
    channel.queue_declare(queue, durable=durable)
    confirms = confirming(channel)
    for _ in range(500):
        confirms.publish("", queue, b"x", mode=mode)
    confirms.wait()
    assert confirms.acked == set(range(1, 501))


def test_no_confirm_overtakes_the_return_of_its_message_in_a_burst(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue, durable=True)
    confirms = confirming(channel)
    for number in range(1, 101):
        key = queue if number % 3 else names.unused()
        confirms.publish("", key, b"%d" % number, mandatory=True, mode=2)
    confirms.wait()
    returned: set[int] = set()
    for kind, what in confirms.log:
        if kind == "return":
            returned.add(int(what))
        else:
            assert int(what) % 3 or int(what) in returned, f"{what} was confirmed before it was returned"
    assert returned == {number for number in range(1, 101) if number % 3 == 0}


def test_pika_raises_what_came_back(channel: BlockingChannel, names: Names) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", names.unused(), b"nobody", mandatory=True)
    assert [message.body for message in caught.value.messages] == [b"nobody"]


def test_one_confirm_for_a_message_that_went_to_many_queues(channel: BlockingChannel, names: Names) -> None:
    exchange, queues = names.exchange(), [names.queue() for _ in range(20)]
    channel.exchange_declare(exchange, "fanout")
    for number, queue in enumerate(queues):
        channel.queue_declare(queue, durable=number % 2 == 0)
        channel.queue_bind(queue, exchange)
    confirms = confirming(channel)
    for _ in range(10):
        confirms.publish(exchange, "", b"x", mode=2)
    confirms.wait()
    assert confirms.acked == set(range(1, 11))
    assert all(len(drain(channel, queue)) == 10 for queue in queues)


def test_a_publish_to_a_queue_being_deleted_is_confirmed(connect: Connect, names: Names) -> None:
    connection = connect()
    sender, remover = connection.channel(), connection.channel()
    queue = names.queue()
    sender.queue_declare(queue)
    confirms = confirming(sender)
    for number in range(100):
        confirms.publish("", queue, b"x")
        if number == 50:
            remover.queue_delete(queue)
    confirms.wait()
    assert confirms.acked == set(range(1, 101))


def test_confirms_and_deliveries_share_a_channel(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    confirms = confirming(channel)
    bodies: list[bytes] = []

    def on_message(_: object, method: spec.Basic.Deliver, properties: object, body: bytes) -> None:
        bodies.append(body)
        channel.basic_ack(tag_of(method))

    channel.basic_consume(queue, on_message)
    for number in range(200):
        confirms.publish("", queue, b"%d" % number)
    pump(channel.connection, lambda: len(bodies) == 200, "all deliveries")
    confirms.wait()
    assert bodies == [b"%d" % number for number in range(200)]


def test_a_reopened_channel_number_starts_without_confirms(connect: Connect, names: Names) -> None:
    connection = connect()
    first = connection.channel(1)
    first.confirm_delivery()
    first.basic_publish("", names.unused(), b"")
    first.close()
    second = connection.channel(1)
    acks: list[object] = []
    impl(connection)._channels[1].add_callback(acks.append, [spec.Basic.Ack], one_shot=False)
    second.basic_publish("", names.unused(), b"")
    round_trip(second)
    assert acks == []
