"""kombu over py-amqp, the client underneath Celery, by itself."""

from __future__ import annotations

import time
from typing import Any

import amqp.exceptions
import kombu
import pytest

from ..broker import DEADLINE_S, Broker
from ..conftest import Names


def connection_to(broker: Broker, **options: Any) -> Any:
    """Return a connection with publisher confirms."""
    return kombu.Connection(broker.url, transport_options={"confirm_publish": True, **options})


def test_a_simple_queue_puts_and_gets(broker: Broker, names: Names) -> None:
    name = names.queue()
    names.exchange()
    with connection_to(broker) as connection:
        queue = connection.SimpleQueue(name, queue_opts={"durable": False}, exchange_opts={"durable": False})
        for number in range(20):
            queue.put({"number": number})
        assert queue.qsize() == 20
        for number in range(20):
            message = queue.get(timeout=DEADLINE_S)
            assert message.payload == {"number": number}
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)
        queue.close()
        connection.default_channel.exchange_delete(name)


def test_py_amqp_sees_rabbitmq_and_chooses_global_prefetch(broker: Broker) -> None:
    with connection_to(broker) as connection:
        connection.connect()
        assert connection.connection.server_properties["product"] == "RabbitMQ"
        # kombu sends per-consumer limits as global ones only where the broker is an old RabbitMQ or none
        assert connection.qos_semantics_matches_spec is False


def test_consumers_drain_events(broker: Broker, names: Names) -> None:
    exchange = kombu.Exchange(names.exchange(), "topic", durable=False)
    queue = kombu.Queue(names.queue(), exchange, routing_key="a.#", durable=False)
    got: list[Any] = []
    with connection_to(broker) as connection:

        def on_message(body: Any, message: Any) -> None:
            got.append((body, message.delivery_info["routing_key"], message.headers.get("h")))
            message.ack()

        with connection.Consumer(queue, callbacks=[on_message], prefetch_count=2):
            producer = connection.Producer()
            for number in range(10):
                producer.publish(number, exchange=exchange, routing_key=f"a.{number}", headers={"h": number})
            while len(got) < 10:
                connection.drain_events(timeout=DEADLINE_S)
    assert got == [(number, f"a.{number}", number) for number in range(10)]


def test_heartbeats_keep_a_connection_alive(broker: Broker) -> None:
    with kombu.Connection(broker.url, heartbeat=4) as connection:
        connection.connect()
        transport = connection.connection
        assert transport.heartbeat == 4
        before = transport.bytes_recv
        give_up_at = time.monotonic() + DEADLINE_S
        while transport.bytes_recv < before + 3:
            connection.heartbeat_check(rate=2)
            try:
                connection.drain_events(timeout=0.25)
            except TimeoutError:
                pass
            assert time.monotonic() < give_up_at
        assert connection.connected


def test_errors_are_py_amqps_own(broker: Broker, names: Names) -> None:
    with connection_to(broker) as connection:
        channel = connection.channel()
        missing = names.unused()
        with pytest.raises(amqp.exceptions.NotFound, match="no queue") as caught:
            channel.queue_declare(missing, passive=True)
        assert (caught.value.reply_code, caught.value.method_sig) == (404, (50, 10))
        assert connection.channel().channel_id != 0


def test_a_wrong_password_is_access_refused(broker: Broker) -> None:
    url = f"amqp://{broker.username}:wrong@{broker.host}:{broker.port}//"
    with kombu.Connection(url) as connection, pytest.raises(amqp.exceptions.AccessRefused, match="ACCESS_REFUSED"):
        connection.connect()


def test_an_unroutable_mandatory_message_comes_back(broker: Broker, names: Names) -> None:
    returned: list[Any] = []
    with connection_to(broker) as connection:
        producer = connection.Producer(on_return=lambda error, *rest: returned.append(error))
        producer.publish("x", routing_key=names.unused(), mandatory=True)
        while not returned:
            connection.drain_events(timeout=DEADLINE_S)
    assert returned[0].reply_code == 312
