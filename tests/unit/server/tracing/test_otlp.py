"""The contents of a span for a collector. The numbers in parentheses are those of ``otlp.py``."""

from __future__ import annotations

import sys

import pytest
from engine_harness import Harness

from warren.amqp.field_table import encode_table
from warren.channels.spans import Span, Spans
from warren.server.start_errors import StartError
from warren.server.tracing.otlp import OtlpSender, attributes_of, name_of, with_path

SAMPLED = encode_table({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})


def spans_of(exchange: str, key: str, queue: str) -> tuple[Span, Span]:
    """Return the spans of a publish and of its delivery; without a key it is that of the queue."""
    harness = Harness()
    spans = harness.broker.shared.spans = Spans(1.0)
    client = harness.channel()
    queue = client.declare(queue).queue
    client.bind(queue, "amq.topic", "#")
    client.consume(queue, no_ack=True)
    client.publish(exchange, key or queue, b"12345", headers=SAMPLED, message_id="m", correlation_id="c")
    published, delivered = spans.take(10)
    return published, delivered


def test_a_span_is_named_and_described_as_the_conventions_say() -> None:
    """(1)"""
    published, delivered = spans_of("amq.topic", "a.b", "q")
    published.place.peer = "10.0.0.7:41234"
    published.place.local = "[fd00::1]:5672"
    assert (name_of(published), name_of(delivered)) == ("publish amq.topic", "deliver q")
    of_both = {
        "messaging.system": "rabbitmq",
        "messaging.rabbitmq.destination.routing_key": "a.b",
        "messaging.message.body.size": 5,
        "messaging.message.id": "m",
        "messaging.message.conversation_id": "c",
        "network.peer.address": "10.0.0.7",
        "network.peer.port": 41234,
        "network.protocol.name": "amqp",
        "network.protocol.version": "0.9.1",
        "server.address": "fd00::1",
        "server.port": 5672,
        "warren.vhost": "/",
        "warren.exchange": "amq.topic",
        "warren.channel": 1,
    }
    assert attributes_of(published) == of_both | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "amq.topic:a.b",
        "warren.queues": 1,
    }
    assert attributes_of(delivered) == of_both | {
        "messaging.operation.name": "deliver",
        "messaging.destination.name": "amq.topic:a.b:q",
        "warren.queue": "q",
        "warren.redelivered": False,
    }


def test_the_default_exchange_and_generated_queues_have_names_of_their_own() -> None:
    """(1)"""
    published, delivered = spans_of("", "", "")
    assert (name_of(published), name_of(delivered)) == ("publish amq.default", "deliver (generated)")
    assert attributes_of(delivered)["messaging.destination.name"] == delivered.queue


def test_a_collector_without_a_path_gets_spans_where_otlp_has_them() -> None:
    assert with_path("http://collector:4318") == "http://collector:4318/v1/traces"
    assert with_path("http://collector:4318/") == "http://collector:4318/v1/traces"
    assert with_path("https://example.com/otlp/traces?a=1") == "https://example.com/otlp/traces?a=1"


def test_without_the_extra_a_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(StartError, match=r"pip install './warren\[otel\]'"):
        OtlpSender("http://collector:4318", "rabbit@here")
