"""Direct reply-to: amq.rabbitmq.reply-to as requester and responder."""

from __future__ import annotations

import uuid

import pytest
from pika import BasicProperties, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    drain,
    get,
    pump,
    round_trip,
    tag_of,
)

REPLY_TO = "amq.rabbitmq.reply-to"


def serve(channel: BlockingChannel, queue: str) -> None:
    """Answer every request in `queue` with its body reversed."""

    def answer(_: BlockingChannel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        assert properties.reply_to is not None
        reply = BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, body[::-1], reply)
        channel.basic_ack(tag_of(method))

    channel.basic_consume(queue, answer)


def test_a_request_is_answered_without_a_reply_queue(connect: Connect, names: Names) -> None:
    queue = names.queue()
    client, server = connect().channel(), connect().channel()
    server.queue_declare(queue)
    serve(server, queue)
    inbox = Inbox(client)
    inbox.consume(REPLY_TO, auto_ack=True)
    for number in range(5):
        token = str(uuid.uuid4())
        request = BasicProperties(reply_to=REPLY_TO, correlation_id=token)
        client.basic_publish("", queue, b"request %d" % number, request)

        def answered() -> bool:
            server.connection.process_data_events(time_limit=0)
            return len(inbox.deliveries) > number  # noqa: B023

        pump(client.connection, answered, "the answer")
        answer = inbox.deliveries[-1]
        assert answer.body == (b"request %d" % number)[::-1]
        assert answer.properties.correlation_id == token
        assert answer.method.exchange == ""


def reply_mandatory(channel: BlockingChannel, address: str, body: bytes, *, returned: bool) -> None:
    """Publish a mandatory reply on a channel in confirm mode and see whether it comes back."""
    properties = BasicProperties(headers={"a": 1})
    if returned:
        with pytest.raises(UnroutableError):
            channel.basic_publish("", address, body, properties, mandatory=True)
    else:
        channel.basic_publish("", address, body, properties, mandatory=True)


def test_a_mandatory_reply_reaches_a_living_requester_once(connect: Connect, names: Names, broker: Broker) -> None:
    queue = names.queue()
    client, server = connect().channel(), connect().channel()
    client.queue_declare(queue)
    inbox = Inbox(client)
    inbox.consume(REPLY_TO, auto_ack=True)
    client.basic_publish("", queue, b"?", BasicProperties(reply_to=REPLY_TO))
    round_trip(client)
    address = get(server, queue, auto_ack=True)[1].reply_to
    assert address is not None
    server.confirm_delivery()
    # RabbitMQ before 4.2 returns even a reply it delivered; Warren does not
    returned = broker.older_than(4, 2) and "warren_version" not in broker.server_properties
    reply_mandatory(server, address, b"!", returned=returned)
    delivery = inbox.wait_for(1)[0]
    assert (delivery.body, delivery.properties.headers) == (b"!", {"a": 1})
    assert delivery.method.redelivered is False
    assert delivery.method.routing_key == address
    round_trip(client)
    assert len(inbox.deliveries) == 1


def test_a_reply_consumer_can_follow_a_cancelled_one(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(3):
        channel.basic_cancel(Inbox(channel).consume(REPLY_TO, auto_ack=True))
    Inbox(channel).consume(REPLY_TO, auto_ack=True)
    channel.basic_publish("", queue, b"?", BasicProperties(reply_to=REPLY_TO))
    assert drain(channel, queue) == [b"?"]
