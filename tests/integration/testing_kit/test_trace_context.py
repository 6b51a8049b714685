"""Tracing headers of instrumented programs arrive with the message, by every route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest

from warren.testing import Broker

from .conftest import Open

# W3C Trace Context and Baggage, as OpenTelemetry's propagators write them.
CONTEXT = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    "baggage": "user=alice,session=1;secret=none",
}
HOUR_S = 3600.0
HOUR_MS = 3_600_000


def letters_to(queue: str) -> dict[str, object]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def through_a_delay(broker: Broker, send: Callable[..., None], _: Open) -> None:
    broker.declare_queue("end")
    send("", "end", {"x-delay": HOUR_MS})
    broker.advance(HOUR_S)


def through_a_delaying_exchange(broker: Broker, send: Callable[..., None], _: Open) -> None:
    broker.declare_exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    broker.declare_queue("end")
    broker.bind("end", "later", "key")
    send("later", "key", {"x-delay": HOUR_MS})
    broker.restart()  # held, and read from the disk afterwards
    broker.advance(HOUR_S)


def through_two_dead_letter_queues(broker: Broker, send: Callable[..., None], _: Open) -> None:
    broker.declare_queue("end")
    broker.declare_queue("two", arguments={"x-message-ttl": HOUR_MS, **letters_to("end")})
    broker.declare_queue("one", arguments={"x-message-ttl": HOUR_MS, **letters_to("two")})
    send("", "one", {})
    broker.advance(2 * HOUR_S)


def through_failures(broker: Broker, send: Callable[..., None], opened: Open) -> None:
    broker.declare_queue("end")
    retried = {"x-retry-backoff": ["1h"], "x-delivery-limit": 1, **letters_to("end")}
    broker.declare_queue("jobs", arguments=retried)
    send("", "jobs", {})
    channel = opened("worker")
    for _ in range(2):
        method, properties, _ = channel.basic_get("jobs")
        assert method is not None and method.delivery_tag is not None
        headers: Any = properties.headers if properties is not None else {}
        assert {name: headers[name] for name in CONTEXT} == CONTEXT
        channel.basic_reject(method.delivery_tag)
        broker.wait_until(lambda: not broker.queue("jobs").unacked, 30)
        broker.advance(HOUR_S)


def through_bindings_between_exchanges(broker: Broker, send: Callable[..., None], opened: Open) -> None:
    broker.declare_exchange("first", "fanout")
    broker.declare_queue("end", arguments={"x-max-priority": 3})
    opened("topology").exchange_bind("amq.topic", "first")
    broker.bind("end", "amq.topic", "#")
    send("first", "key", {})


@pytest.mark.parametrize(
    "way",
    [
        through_a_delay,
        through_a_delaying_exchange,
        through_two_dead_letter_queues,
        through_failures,
        through_bindings_between_exchanges,
    ],
)
def test_trace_context_arrives_as_it_was_sent(
    broker: Broker, opened: Open, way: Callable[[Broker, Callable[..., None], Open], None]
) -> None:
    channel = opened("publisher")

    def send(exchange: str, routing_key: str, headers: dict[str, object]) -> None:
        table: Any = {**CONTEXT, **headers}
        properties = pika.BasicProperties(headers=table, delivery_mode=2, correlation_id="c", message_id="m")
        channel.basic_publish(exchange, routing_key, b"x", properties)

    way(broker, send, opened)
    (message,) = broker.assert_queued("end", within_s=30)
    assert {name: message.headers[name] for name in CONTEXT} == CONTEXT
    assert (message.properties.correlation_id, message.properties.message_id) == ("c", "m")
