"""A copy does not take over the age, the delay and the failed deliveries of its original."""

from __future__ import annotations

from engine_harness import Harness

from warren.channels.tracing import TRACE_EXCHANGE, ChannelTracer
from warren.msgstore.log.message import Envelope, build_message


def test_a_copy_begins_a_life_of_its_own() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.declare("traces")
    client.bind("traces", TRACE_EXCHANGE, "#")
    message = build_message(Envelope("x", "k"), b"\0\0", b"body", 0, True)
    message.time_ms = 1
    message.expiration_ms = 2
    message.due_ms = 3
    message.attempts = 4
    ChannelTracer(client.connection, 1).delivered(harness.queue("q"), message, True)
    harness.broker.own_messages.publish()
    (copy,) = harness.queue("traces").ready.in_memory()
    assert copy.body() == b"body"
    assert (copy.persistent, copy.time_ms, copy.expiration_ms, copy.due_ms, copy.attempts) == (False, 0, -1, 0, 0)
    assert (message.persistent, message.time_ms, message.expiration_ms, message.due_ms) == (True, 1, 2, 3)
    assert (message.envelope.exchange, message.attempts) == ("x", 4)


def test_a_large_body_is_shared_not_copied() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.declare("traces")
    client.bind("traces", TRACE_EXCHANGE, "#")
    message = build_message(Envelope("x", "k"), b"\0\0", bytes(100000), 0, False)
    frame_bytes = message.content[:22]
    message.pieces = [frame_bytes, message.content[22:]]
    message.content = b""
    ChannelTracer(client.connection, 1).published(["k"], message, [])
    harness.broker.own_messages.publish()
    (copy,) = harness.queue("traces").ready.in_memory()
    assert message.pieces is not None
    assert copy.pieces is not None
    assert copy.pieces[1] is message.pieces[1]
