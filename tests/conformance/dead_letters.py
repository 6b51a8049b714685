"""Queues whose messages die, and dead letters as clients see them: what the tests of dead letters share."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, Received

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table
from warren.queues.base_queue import BaseQueue
from warren.queues.held_lanes import UNDELIVERED_RETRY_MS
from warren.queues.lanes import UNDELIVERED

RETRY_S = UNDELIVERED_RETRY_MS / 1000
# The arguments of a queue for each cause of death of its messages.
CAUSES: dict[str, Table] = {
    "rejected": {},
    "expired": {"x-message-ttl": 1000},
    "maxlen": {"x-max-length": 0},
    "maxlen, refused": {"x-max-length": 0, "x-overflow": "reject-publish-dlx"},
    "delivery_limit": {"x-delivery-limit": 0},
}
every_cause = pytest.mark.parametrize("cause", CAUSES)


def dead_letters_to(exchange: str, key: str | None = None, **arguments: object) -> Table:
    table: Table = {"x-dead-letter-exchange": exchange}
    if key is not None:
        table["x-dead-letter-routing-key"] = key
    return table | {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}


def kill(client: Client, harness: Harness, cause: str, queue: str = "q", body: bytes = b"x", **properties: Any) -> None:
    """Publish a message to a queue made for the cause, and have it die."""
    client.publish("", queue, body, **properties)
    if cause == "expired":
        harness.pass_time(1)
    if cause in ("rejected", "delivery_limit"):
        got = client.get(queue)
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, cause == "delivery_limit"))


def headers_of(received: Received | None) -> Table:
    assert received is not None and received.content is not None
    headers = received.content.properties.headers
    return {} if headers is None else decode_table(headers)


def deaths_of(received: Received | None) -> list[Table]:
    deaths = headers_of(received)["x-death"]
    assert isinstance(deaths, list)
    found: list[Table] = []
    for death in deaths:
        assert isinstance(death, dict)
        found.append(death)
    return found


def history(received: Received | None) -> list[tuple[object, object, object]]:
    """Return (queue, reason, count), newest death first."""
    return [(death["queue"], death["reason"], death["count"]) for death in deaths_of(received)]


def ready(harness: Harness, name: str = "q") -> int:
    return int(harness.queue(name).ready_count)


def undelivered(queue: BaseQueue) -> int:
    """Return how many letters of a queue no target has taken yet."""
    lane = queue.held(UNDELIVERED)
    return 0 if lane is None else int(lane.count)


def quorum(client: Client, exchange: str, key: str | None = None, name: str = "q", **arguments: object) -> None:
    """Declare a quorum queue that dead-letters at least once."""
    table = dead_letters_to(exchange, key, overflow="reject-publish", **arguments)
    table |= {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"}
    client.declare(name, durable=True, arguments=table)


def reject(client: Client, body: bytes = b"x", name: str = "q", **properties: Any) -> None:
    client.publish("", name, body, delivery_mode=2, **properties)
    got = client.get(name)
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
