"""A client's view of the simulated broker: deliveries, in the octets that it is sent."""

from __future__ import annotations

from typing import NamedTuple

from simulation.paper_queues import Messages, Version


class Delivered(NamedTuple):
    """A delivery as a client reads it. `consumer_tag` is empty for the answer to a basic.get."""

    consumer_tag: str
    tag: int
    redelivered: bool
    message: Version | None


def parse_deliveries(data: bytes, messages: Messages) -> list[Delivered]:
    """Return the deliveries and get-oks in what a client is sent."""
    found: list[Delivered] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 3 : at + 7], "big")
        payload = data[at + 7 : at + 7 + size]
        at += size + 8
        method = payload[:4]
        start = 4
        consumer_tag = ""
        if method == b"\x00\x3c\x00\x3c":
            consumer_tag, start = _short_string(payload, start)
        else:
            assert method == b"\x00\x3c\x00\x47", payload
        tag = int.from_bytes(payload[start : start + 8], "big")
        redelivered = payload[start + 8] == 1
        exchange, start = _short_string(payload, start + 9)
        routing_key, _ = _short_string(payload, start)
        content = at
        while at < len(data) and data[at] != 1:
            at += int.from_bytes(data[at + 3 : at + 7], "big") + 8
        version = messages.version_of_content(exchange, routing_key, data[content:at])
        found.append(Delivered(consumer_tag, tag, redelivered, version))
    return found


def _short_string(payload: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + payload[at]
    return payload[at + 1 : end].decode(), end
