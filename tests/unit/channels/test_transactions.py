"""What a transaction would do if it were committed now, and what it does to exchanges that remember: channel.py (2)."""

from __future__ import annotations

from typing import Any

from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.channels.channel import Channel


def begin() -> tuple[Harness, Client, Channel]:
    """Return a client in a transaction, and its channel."""
    harness = Harness()
    client = harness.channel()
    client.call(1, m.TxSelect())
    (connection,) = harness.broker.connections.values()
    channel = connection.channels[1]
    assert isinstance(channel, Channel)
    return harness, client, channel


def put(client: Client, key: str, count: int = 1, body: bytes = b"x", exchange: str = "", **properties: Any) -> None:
    client.feed(publish_frames(exchange, key, body, properties=properties) * count)


def test_what_nobody_would_get_is_counted_as_things_are_now() -> None:
    _, client, channel = begin()
    client.declare("q")
    assert channel.unroutable_count() == 0
    put(client, "q", 2)
    put(client, "nobody", 3)
    assert channel.unroutable_count() == 3
    client.call(1, m.QueueDelete(0, "q", False, False, False))
    assert channel.unroutable_count() == 5
    client.call(1, m.TxRollback())
    assert channel.unroutable_count() == 0


def test_a_queue_that_would_refuse_is_found_before_the_commit() -> None:
    harness, client, channel = begin()
    client.declare("full", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    client.declare("bytes", arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    client.declare("drops", arguments={"x-max-length": 1})
    put(client, "drops", 5)
    put(client, "full", 3)
    put(client, "bytes", 1, bytes(10))
    assert channel.maybe_full_queue() is None
    put(client, "full")
    assert channel.maybe_full_queue() is harness.queue("full")
    client.call(1, m.TxRollback())
    put(client, "bytes", 2, bytes(6))
    assert channel.maybe_full_queue() is harness.queue("bytes")
    client.call(1, m.TxRollback())
    put(client, "full", 3)
    assert channel.maybe_full_queue() is None
    client.call(1, m.TxCommit())
    put(client, "full")
    assert channel.maybe_full_queue() is harness.queue("full")


def test_what_is_rolled_back_is_not_remembered_by_an_exchange_with_a_history() -> None:
    _, client, _ = begin()
    client.declare_exchange("h", "x-recent-history")
    put(client, "k", body=b"rolled back", exchange="h")
    client.call(1, m.TxRollback())
    put(client, "k", body=b"committed", exchange="h")
    client.declare("before")
    client.bind("before", "h")
    assert client.get("before") is None
    client.call(1, m.TxCommit())
    client.declare("after")
    client.bind("after", "h")
    found = client.get("after", no_ack=True)
    assert found is not None
    assert found.content is not None
    assert found.content.body == b"committed"
    assert client.get("after") is None
