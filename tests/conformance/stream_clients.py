"""Clients of streams, in few words."""

from __future__ import annotations

import json
from typing import Any

from durable_harness import DurableHarness
from engine import START_MS
from engine_harness import (
    Client,
    Harness,
    Received,
    Refusal,
    basic_consume,
    body_of,
)

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.vhosts.metadata import PolicyPut

from .typed_table import Typed, typed_table

STREAM: Table = {"x-queue-type": "stream"}
ME = "queue 's' in vhost '/'"
START_S = START_MS // 1000
PAGE = 16  # entries of an index page of `DurableHarness`
OFFSET = "x-stream-offset"


def declare(client: Client, name: str = "s", **arguments: object) -> None:
    """Declare a stream; underscores in names stand for hyphens."""
    table: Table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    client.declare(name, durable=True, arguments=STREAM | table)


def fill(client: Client, count: int, *, first: int = 0, seconds: float = 0, **properties: Any) -> None:
    """Publish the numbers from `first` on, `seconds` apart."""
    for number in range(first, first + count):
        client.publish("", "s", b"%d" % number, **properties)
        if seconds:
            client.harness.pass_time(seconds)


def consume(client: Client, arguments: Table | None = None, *, prefetch: int = 1000, queue: str = "s") -> str:
    """Consume, from the first message on unless the arguments say otherwise."""
    client.call(1, m.BasicQos(0, prefetch, False))
    return client.consume(queue, arguments={OFFSET: "first"} if arguments is None else arguments)


def headers_of(received: Received) -> dict[str, Typed]:
    assert received.content is not None and received.content.properties.headers is not None
    return typed_table(received.content.properties.headers)


def offset_of(received: Received) -> int:
    kind, offset = headers_of(received)[OFFSET]
    assert kind == "l"
    return int(offset)


def offsets(client: Client) -> list[int]:
    """Return the offsets of what came, which is deliveries only."""
    return [offset_of(each) for each in client.deliveries()]


def everything(client: Client) -> list[tuple[int, bytes]]:
    """Return what is in the stream, read on a channel of its own."""
    client.open(9)
    client.call(9, m.BasicQos(0, 60000, False))
    client.consume("s", arguments={OFFSET: "first"}, number=9)
    found = [(offset_of(each), body_of(each)) for each in client.deliveries()]
    assert client.call(9, m.ChannelClose(200, "", 0, 0)) == m.ChannelCloseOk()
    return found


def numbers(count: int, first: int = 0) -> list[tuple[int, bytes]]:
    """Return what `everything` returns after `fill`."""
    return [(number, b"%d" % number) for number in range(first, count)]


def consume_refused(client: Client, arguments: Table | None = None, *, no_ack: bool = False) -> Refusal:
    return client.refused(1, basic_consume("s", no_ack=no_ack, arguments=arguments))


def precondition(explanation: str, method: type[Any] = m.BasicConsume) -> Refusal:
    return Refusal("channel", 406, f"PRECONDITION_FAILED - {explanation}", method)


def not_implemented(explanation: str, method: type[Any] = m.BasicConsume) -> Refusal:
    return Refusal("connection", 540, f"NOT_IMPLEMENTED - {explanation}", method)


def restarted(harness: DurableHarness, *, clean: bool = True) -> tuple[DurableHarness, Client]:
    """Return the next process: everything that a stream has is on disk only."""
    harness.write()
    harness = harness.restart(clean=clean)
    return harness, harness.channel()


def put_policy(harness: Harness, apply_to: str = "all", **definition: object) -> None:
    settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
    harness.broker.administer(PolicyPut("/", "p", "", apply_to, 0, settings))
    harness.settle()
