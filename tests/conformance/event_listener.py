"""A queue with all events of a broker, and words for what they say."""

from __future__ import annotations

from engine_harness import Harness

from warren.channels.connection import Connection

from .typed_table import Typed, text, typed_table

EVENTS = "amq.rabbitmq.event"
NOW_MS = 1795285408241
INTERNAL = "rmq-internal"

Event = tuple[str, dict[str, Typed]]


class Listener:
    """A queue with all events, on a connection of its own."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.now_ms = NOW_MS
        harness.broker.log.now_ms = NOW_MS
        self.client = harness.channel()
        self.client.declare("events")
        self.client.bind("events", EVENTS, "#")
        self.take()

    def take(self) -> list[Event]:
        """Return the events since the last call, without their time, which is what it must be."""
        self.harness.settle()
        events: list[Event] = []
        while (got := self.client.get("events", no_ack=True)) is not None:
            assert got.content is not None
            assert got.content.body == b""
            assert got.method.exchange == EVENTS
            properties = got.content.properties
            assert properties.headers is not None
            assert (properties.delivery_mode, properties.timestamp) == (2, self.now_ms // 1000)
            headers = typed_table(properties.headers)
            assert headers.pop("timestamp_in_ms") == ("l", self.now_ms)
            events.append((got.method.routing_key, headers))
        return events

    def one(self, key: str) -> dict[str, Typed]:
        """Return the headers of the only event since the last call."""
        events = self.take()
        assert [found for found, _ in events] == [key], events
        return events[0][1]

    def keys(self) -> list[str]:
        return [key for key, _ in self.take()]

    def named(self) -> list[tuple[str, str, str]]:
        """Return the key, the name or a part of it, and the user, of each event."""
        named = []
        for key, headers in self.take():
            for header in ("name", "destination_name", "consumer_tag", "pid"):
                if header in headers:
                    named.append((key, headers[header][1], headers.get("user_who_performed_action", ("", ""))[1]))
                    break
        return named


def by(user: str) -> dict[str, Typed]:
    return {"user_who_performed_action": text(user)}


def pid(connection: Connection, serial: int = 0) -> Typed:
    return text(f"<rabbit@localhost.{NOW_MS // 1000}.{connection.key}.{serial}>")
