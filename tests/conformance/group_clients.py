"""Clients of consumer groups of streams, and how far their groups have come."""

from __future__ import annotations

from typing import Any

from engine_harness import Client, Harness, Received

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.streams.groups import COMMIT_MS, GROUP, Group
from warren.streams.stream import Stream

from .stream_clients import (
    OFFSET,
    offset_of,
)

COMMIT_S = COMMIT_MS / 1000


def join(client: Client, name: str = "g", offset: object = "first", *, prefetch: int = 1000, **arguments: Any) -> str:
    """Consume as one of a group; return the consumer tag."""
    client.call(1, m.BasicQos(0, prefetch, False))
    table: Table = {GROUP: name, OFFSET: offset} | {"x-" + key.replace("_", "-"): arguments[key] for key in arguments}
    return client.consume("s", arguments=table)


def leave(client: Client, tag: str) -> None:
    assert client.call(1, m.BasicCancel(tag, False)) == m.BasicCancelOk(tag)


def seen(client: Client) -> list[tuple[int, bool]]:
    """Return the offsets of what came, each with whether it is flagged redelivered."""
    return [(offset_of(each), each.method.redelivered) for each in client.deliveries()]


def ack(client: Client, *deliveries: Received) -> None:
    client.send(1, *(m.BasicAck(each.method.delivery_tag, False) for each in deliveries))


def ack_all(client: Client) -> None:
    client.send(1, m.BasicAck(0, True))


def stream_of(harness: Harness) -> Stream:
    queue = harness.queue("s")
    assert isinstance(queue, Stream)
    return queue


def groups(harness: Harness) -> dict[str, int]:
    """Look into the broker: return the committed offset of each group of the stream."""
    return {group.name: int(group.committed) for group in stream_of(harness).consumer_groups()}


def group_of(harness: Harness, name: str = "g") -> Group:
    (group,) = (group for group in stream_of(harness).consumer_groups() if group.name == name)
    return group


def reset(harness: Harness, offset: int, name: str = "g") -> None:
    """Do as an operator does."""
    stream_of(harness).need_groups().reset(name, offset)
    harness.settle()
