"""A client in a transaction, for the tests of what a transaction is and of what is asked before its commit."""

from __future__ import annotations

from typing import Any

from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.channels.channel import Channel
from warren.channels.transaction import Transaction


def begin() -> tuple[Harness, Client]:
    """Return a client in a transaction."""
    harness = Harness()
    client = harness.channel()
    client.call(1, m.TxSelect())
    return harness, client


def channel_of(client: Client) -> Channel:
    channel = client.connection.channels[1]
    assert isinstance(channel, Channel)
    return channel


def transaction_of(client: Client) -> Transaction:
    transaction = channel_of(client).transaction
    assert transaction is not None
    return transaction


def put(client: Client, key: str, count: int = 1, body: bytes = b"x", exchange: str = "", **properties: Any) -> None:
    client.feed(publish_frames(exchange, key, body, properties=properties) * count)
