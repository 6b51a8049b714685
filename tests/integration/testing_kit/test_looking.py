"""A test's view of a broker, and its messages about missing objects."""

from __future__ import annotations

import asyncio
import re
import threading

import aio_pika
import pika
import pika.exceptions
import pytest

from warren.amqp.errors import ChannelException
from warren.testing import Broker, Properties

from .conftest import Open


def test_what_clients_publish_is_seen_with_everything_they_sent(broker: Broker, opened: Open) -> None:
    channel = opened("shop")
    channel.exchange_declare("orders", "topic")
    channel.queue_declare("all")
    channel.queue_bind("all", "orders", "#")
    properties = pika.BasicProperties(
        content_type="application/json",
        headers={"tries": 3, "name": "é", "deep": {"list": [1, "a"]}},
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1700000000,
        type="t",
        app_id="app",
    )
    channel.basic_publish("orders", "order.created", b'{"id": 7}', properties)
    channel.basic_publish("orders", "order.created", b"")
    first, second = broker.published
    assert (first.exchange, first.routing_key, first.vhost, first.user) == ("orders", "order.created", "/", "guest")
    assert first.connection == "shop"
    assert first.queues == ("all",)
    assert first.json() == {"id": 7}
    assert first.headers == {"tries": 3, "name": "é", "deep": {"list": [1, "a"]}}
    assert first.properties == Properties(
        content_type="application/json",
        headers=first.headers,
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1700000000,
        type="t",
        app_id="app",
    )
    assert first.properties.time is not None and first.properties.time.year == 2023
    assert (second.body, second.headers, second.properties) == (b"", {}, Properties())


def test_a_large_body_is_seen_whole(broker: Broker, opened: Open) -> None:
    body = bytes(range(256)) * 4096
    channel = opened()
    channel.queue_declare("q")
    channel.basic_publish("", "q", body)
    assert broker.published[0].body == body
    assert broker.queue("q").messages()[0].body == body


def test_what_is_published_in_a_transaction_is_seen_when_it_is_committed(broker: Broker, opened: Open) -> None:
    channel = opened(confirms=False)
    channel.queue_declare("q")
    channel.tx_select()
    channel.basic_publish("", "q", b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", "q", b"committed")
    channel.basic_qos()  # a round trip
    assert broker.published == []
    channel.tx_commit()
    assert [message.text for message in broker.published] == ["committed"]


def test_what_the_broker_refuses_is_not_published(broker: Broker, opened: Open) -> None:
    channel = opened()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.basic_publish("no-such-exchange", "k", b"x")
    assert broker.published == []


def test_messages_are_found_by_any_of_what_they_are(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b'{"id": 1}', pika.BasicProperties(headers={"kind": "a", "n": 1}))
    channel.basic_publish("", "q", b"text")
    channel.basic_publish("amq.topic", "a.b.c", b"nowhere")
    assert len(broker.find_published()) == 3
    assert [message.text for message in broker.find_published(exchange="")] == ['{"id": 1}', "text"]
    assert len(broker.find_published(routing_key=re.compile(r"^a\..*c$"))) == 1
    assert len(broker.find_published(body={"id": 1})) == 1
    assert len(broker.find_published(body=b"text")) == 1
    assert len(broker.find_published(body="text")) == 1
    assert len(broker.find_published(body=lambda body: body.startswith(b"no"))) == 1
    assert len(broker.find_published(headers={"kind": "a"})) == 1
    assert broker.find_published(headers={"kind": "b"}) == []
    assert len(broker.find_published(queue="q")) == 2
    assert broker.find_published(vhost="other") == []


def test_an_assertion_waits_for_a_publisher_that_does_not(broker: Broker, opened: Open) -> None:
    channel = opened(confirms=False)
    channel.queue_declare("q")
    publisher = threading.Timer(0.05, channel.basic_publish, ("", "q", b"late"))
    publisher.start()
    (message,) = broker.assert_published(routing_key="q", count=1, within_s=30)
    publisher.join()
    assert message.text == "late"


def test_a_failed_assertion_says_what_was_published_instead(broker: Broker, opened: Open) -> None:
    with pytest.raises(AssertionError) as empty:
        broker.assert_published(exchange="orders", within_s=0)
    assert str(empty.value) == ("no message was published with exchange='orders' (within 0 s).\nNothing was published.")
    channel = opened()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"one", pika.BasicProperties(headers={"a": 1}))
    channel.basic_publish("amq.topic", "q", b"two")
    with pytest.raises(AssertionError) as wrong:
        broker.assert_published(exchange="", routing_key="q", body="two", within_s=0)
    assert str(wrong.value).splitlines() == [
        "no message was published with exchange='', routing_key='q', body='two' (within 0 s).",
        "Published, 2 in all:",
        "  1. exchange='' routing_key='q' body=b'one' headers={'a': 1} to q   <- differs in body",
        "  2. exchange='amq.topic' routing_key='q' body=b'two' to nowhere   <- differs in exchange",
    ]
    with pytest.raises(AssertionError, match=r"^2 messages should have been published with body='one', but 1 was"):
        broker.assert_published(body="one", count=2, within_s=0)
    with pytest.raises(AssertionError, match=r"^0 messages should have been published, but 2 were"):
        broker.assert_published(count=0)


def test_looking_into_a_queue_changes_nothing_in_it(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q", durable=True)
    for n in range(5):
        channel.basic_publish("", "q", str(n).encode(), pika.BasicProperties(delivery_mode=2, headers={"n": n}))
    view = broker.queue("q")
    assert [message.text for message in view.messages()] == ["0", "1", "2", "3", "4"]
    assert view.messages() == view.messages()
    assert (view.ready, view.unacked, view.consumers) == (5, 0, ())
    method, _, body = channel.basic_get("q")
    assert method is not None and method.delivery_tag is not None
    assert (method.redelivered, body) == (False, b"0")
    assert (view.ready, view.unacked) == (4, 1)
    channel.basic_nack(method.delivery_tag)
    broker.wait_until(lambda: view.ready == 5)
    assert [(message.text, message.redelivered) for message in view.messages()][:2] == [("0", True), ("1", False)]


@pytest.mark.long
def test_messages_that_are_on_disk_only_are_seen_with_those_that_came_since(broker: Broker) -> None:
    broker.declare_queue("q")
    for n in range(700):
        broker.publish("", "q", f"{n}")
    broker.restart()
    for n in range(700, 710):
        broker.publish("", "q", f"{n}")
    assert [message.text for message in broker.queue("q").messages()] == [str(n) for n in range(710)]
    assert broker.queue("q").ready == 710


def test_a_priority_queue_is_seen_in_the_order_of_delivery(broker: Broker) -> None:
    broker.declare_queue("q", arguments={"x-max-priority": 5})
    for priority in (0, 5, 3, 5):
        broker.publish("", "q", str(priority), properties=Properties(priority=priority))
    assert [message.text for message in broker.queue("q").messages()] == ["5", "5", "3", "0"]


def test_consumers_and_connections_are_seen(broker: Broker, opened: Open) -> None:
    channel = opened("worker")
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None, consumer_tag="mine")
    assert broker.queue("q").consumers == ("mine",)
    (connection,) = broker.connections
    assert (connection.name, connection.user, connection.vhost, connection.channels) == ("worker", "guest", "/", (1,))
    assert connection.client_properties["connection_name"] == "worker"
    assert broker.connection(connection.peer).is_open
    with pytest.raises(LookupError, match=r"no connection 'other', only \['worker'\]"):
        broker.connection("other")


def test_preparing_goes_the_way_of_clients_errors_included(broker: Broker) -> None:
    broker.declare_exchange("e", "headers")
    broker.declare_queue("q", arguments={"x-message-ttl": 60000})
    broker.bind("q", "e", arguments={"x-match": "all", "a": 1})
    assert broker.publish("e", "", "fits", properties=Properties(headers={"a": 1}))
    assert not broker.publish("e", "", "does not", properties=Properties(headers={"a": 2}))
    assert [message.text for message in broker.queue("q").messages()] == ["fits"]
    assert broker.published == [] and broker.connections == []
    assert broker.queue("q").purge() == 1
    with pytest.raises(ChannelException, match="inequivalent"):
        broker.declare_queue("q", durable=False)
    with pytest.raises(LookupError, match="no queue 'other'"):
        _ = broker.queue("other").ready


def test_nothing_waits_on_an_event_loop(broker: Broker) -> None:
    async def conversation() -> None:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("q")
            await channel.default_exchange.publish(aio_pika.Message(b"hello"), "q")
            broker.assert_published(body="hello", count=1)
            assert broker.queue("q").ready == 1
            with pytest.raises(AssertionError, match="not waited for: this is an event loop"):
                broker.assert_published(body="other", within_s=600)
            with pytest.raises(RuntimeError, match="would stop this event loop"):
                broker.wait_until(lambda: broker.queue("q").unacked == 1)
            await queue.get()
            await asyncio.to_thread(broker.wait_until, lambda: broker.queue("q").unacked == 1)

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_waiting_in_vain_says_for_what(broker: Broker) -> None:
    with pytest.raises(AssertionError, match=r"^a consumer did not become true \(within 0 s\)\.$"):
        broker.wait_until(lambda: False, 0, "a consumer")
