"""Which messages make spans, and what these say. The numbers in parentheses are those of ``channels/spans.py``."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.channels.spans import SPANS_MOST, Span, Spans
from warren.channels.tracing import TRACE_EXCHANGE

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = encode_table({"traceparent": f"00-{TRACE}-{PARENT}-01"})
UNSAMPLED = encode_table({"traceparent": f"00-{TRACE}-{PARENT}-00"})


class Traced:
    """A broker that makes spans, and a client of it with a queue."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.harness = Harness()
        self.spans = self.harness.broker.shared.spans = Spans(ratio)
        self.client: Client = self.harness.channel()
        self.client.declare("q")

    def take(self) -> list[tuple[str, str, str | None]]:
        """Return exchange, routing key and, of deliveries, the queue of the spans since the last call."""
        return [(span.exchange, span.routing_key, span.queue) for span in self.taken()]

    def taken(self) -> list[Span]:
        return self.spans.take(SPANS_MOST)


def test_a_publish_and_each_delivery_make_a_span() -> None:
    """(2)"""
    traced = Traced()
    client = traced.client
    client.declare("second")
    for queue in ("q", "second"):
        client.bind(queue, "amq.topic", "a.#")
    client.consume("q", "tag")
    traced.harness.broker.log.now_ms = 1_700_000_000_123
    client.publish("amq.topic", "a.b", b"body", headers=SAMPLED, message_id="m-1", correlation_id="c-1")
    published, delivered = traced.taken()
    assert (published.queue, published.queues, published.body_bytes) == (None, 2, 4)
    assert (delivered.queue, delivered.redelivered) == ("q", False)
    for span in (published, delivered):
        assert (span.context.trace_id, span.context.parent_id) == (TRACE, PARENT)
        assert (span.exchange, span.routing_key) == ("amq.topic", "a.b")
        assert (span.message_id, span.correlation_id) == ("m-1", "c-1")
        assert span.time_ms == 1_700_000_000_123
        assert (span.place.vhost, span.place.channel) == ("/", 1)
        assert span.place.peer == client.connection.origin.peer
    client.send(1, m.BasicReject(client.deliveries()[0].method.delivery_tag, True))
    (again,) = traced.taken()
    assert (again.queue, again.redelivered) == ("q", True)
    client.deliveries()
    assert client.get("second") is not None
    assert traced.take() == [("amq.topic", "a.b", "second")]


def test_only_a_sampled_context_makes_spans() -> None:
    """(1)"""
    traced = Traced()
    traced.client.consume("q", no_ack=True)
    traced.client.publish("", "q", b"without headers")
    traced.client.publish("", "q", b"with others", headers=encode_table({"a": 1}))
    traced.client.publish("", "q", b"not sampled", headers=UNSAMPLED)
    assert len(traced.client.deliveries()) == 3
    assert traced.take() == []


def test_what_no_queue_takes_makes_a_span() -> None:
    """(2)"""
    traced = Traced()
    traced.client.publish("", "nowhere", b"x", headers=SAMPLED)
    (span,) = traced.taken()
    assert (span.routing_key, span.queues) == ("nowhere", 0)


def test_a_dead_letter_makes_a_span_as_it_is_delivered() -> None:
    """(2)"""
    traced = Traced()
    client = traced.client
    client.declare("dying", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    client.publish("", "dying", b"x", headers=SAMPLED)
    got = client.get("dying")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    client.consume("q")
    client.deliveries()
    assert traced.take() == [("", "dying", None), ("", "dying", "dying"), ("", "q", "q")]


def test_a_publish_in_a_transaction_makes_one_span() -> None:
    """(2)"""
    traced = Traced()
    traced.client.call(1, m.TxSelect())
    traced.client.publish("", "q", b"x", headers=SAMPLED)
    assert traced.take() == [("", "q", None)]
    traced.client.call(1, m.TxCommit())
    assert traced.take() == []


def test_the_trace_id_alone_decides_what_is_kept() -> None:
    """(3)"""
    low = f"00-{'f' * 16}{'7' + 'f' * 15}-{PARENT}-01"
    high = f"00-{'0' * 15}18{'0' * 15}-{PARENT}-01"
    for ratio, kept in ((0.0, []), (0.5, ["low"]), (1.0, ["low", "high"])):
        traced = Traced(ratio)
        traced.client.declare("low")
        traced.client.declare("high")
        for name, text in (("low", low), ("high", high)):
            traced.client.publish("", name, b"x", headers=encode_table({"traceparent": text}))
        assert [key for _, key, _ in traced.take()] == kept


def test_what_has_no_room_is_dropped_and_counted() -> None:
    """(4)"""
    traced = Traced()
    for _ in range(SPANS_MOST + 7):
        traced.client.publish("", "nowhere", b"x", headers=SAMPLED)
    assert (len(traced.spans), traced.spans.dropped) == (SPANS_MOST, 7)
    assert len(traced.spans.take(100)) == 100
    traced.client.publish("", "nowhere", b"x", headers=SAMPLED)
    assert (len(traced.spans), traced.spans.dropped) == (SPANS_MOST - 99, 7)


@pytest.mark.parametrize("with_spans", [True, False])
def test_routes_are_remembered_all_the_same(with_spans: bool) -> None:
    traced = Traced()
    if not with_spans:
        traced.harness.broker.shared.spans = None
    client = traced.harness.channel()
    client.publish("", "q", b"x", headers=SAMPLED)
    client.publish("", "q", b"x")
    (session,) = client.connection.channels.values()
    assert session.last_route is not None and session.last_route.cacheable
    assert len(traced.take()) == with_spans


def test_copies_for_the_trace_exchange_and_spans_do_not_know_of_each_other() -> None:
    traced = Traced()
    client = traced.client
    client.declare("traces")
    client.bind("traces", TRACE_EXCHANGE, "#")
    traced.harness.broker.trace("/", True)
    client.publish("", "q", b"x", headers=SAMPLED)
    client.get("q", no_ack=True)
    assert traced.take() == [("", "q", None), ("", "q", "q")]
    keys = [client.get("traces", no_ack=True) for _ in range(2)]
    assert [got.method.routing_key for got in keys if got is not None] == ["publish.", "deliver.q"]
    assert traced.take() == []  # the copies are of no trace
    traced.harness.broker.trace("/", False)
    client.publish("", "q", b"x", headers=SAMPLED)
    assert traced.take() == [("", "q", None)]
    client.call(1, m.QueueUnbind(0, "traces", TRACE_EXCHANGE, "#", EMPTY_TABLE))
