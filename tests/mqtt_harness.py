"""A client of MQTT without loop and socket, on the `Harness`."""

from __future__ import annotations

from typing import Any, cast

from engine import Client
from engine_harness import Harness
from mqtt_packets import (
    Message,
    Packet,
    connect_packet,
    maybe_first_packet,
    message,
    properties,
    publish_packet,
    split_packets,
)

from warren.channels.connection import Connection
from warren.channels.origin import Origin
from warren.mqtt.packets import Properties, packet, text
from warren.mqtt.peer import MqttPeer

__all__ = [
    "Message",
    "MqttClient",
    "Packet",
    "connect_packet",
    "maybe_first_packet",
    "message",
    "mqtt_client",
    "properties",
    "publish_packet",
    "split_packets",
]


class MqttClient:
    """One client. `feed` lets the broker come to rest, and returns what it said to that."""

    def __init__(self, harness: Harness, version: int = 4, *, certificate_user: str | None = None) -> None:
        self.harness = harness
        self.version = version
        origin = Origin("127.0.0.1:50002", "127.0.0.1:1883", "127.0.0.1", certificate_user)
        joined = harness.broker.join(MqttPeer, origin)
        assert isinstance(joined, MqttPeer)
        self.peer = joined
        self._client = Client(cast(Connection, joined))
        harness.clients[joined.key] = self._client

    @property
    def ended(self) -> bool:
        return self._client.ended

    def hang_up(self) -> None:
        """Cut the socket without a word."""
        self.harness.hang_up(self._client)
        self.harness.settle()

    def feed(self, data: bytes) -> list[Packet]:
        self.peer.feed(data)
        self.harness.settle()
        return self.take()

    def take(self) -> list[Packet]:
        """Return what has come since."""
        return split_packets(self._client.take())

    def messages(self) -> list[Message]:
        """Return what has come since, which is PUBLISH and nothing else."""
        return [message(each, self.version) for each in self.take()]

    def bodies(self) -> list[bytes]:
        return [each.body for each in self.messages()]

    def connect(self, client_id: str = "c", **options: Any) -> Packet:
        """Log in; return CONNACK."""
        (reply,) = self.feed(connect_packet(self.version, client_id, **options))
        assert reply.kind == 2, reply
        return reply

    def subscribe(
        self, *filters: str, qos: int = 0, options: int = 0, packet_id: int = 9, given: Properties | None = None
    ) -> list[int]:
        """Subscribe; return the codes of SUBACK. Retained messages wait to be taken."""
        body = packet_id.to_bytes(2, "big") + ((given or Properties()).encode() if self.version == 5 else b"")
        body += b"".join(text(each) + bytes([qos | options]) for each in filters)
        self.peer.feed(packet(8, 2, body))
        self.harness.settle()
        data = self._client.take()
        first = maybe_first_packet(data)
        assert first is not None
        reply, rest = first
        self._client.received += rest
        assert reply.kind == 9, reply
        assert reply.body[:2] == packet_id.to_bytes(2, "big")
        return list(reply.body[3 if self.version == 5 else 2 :])

    def unsubscribe(self, *filters: str) -> list[int]:
        body = b"\0\x07" + (b"\0" if self.version == 5 else b"") + b"".join(text(each) for each in filters)
        (reply,) = self.feed(packet(10, 2, body))
        assert reply.kind == 11, reply
        return list(reply.body[3 if self.version == 5 else 2 :])

    def publish(self, topic: str, body: bytes = b"", qos: int = 0, **options: Any) -> list[Packet]:
        """Publish; return what came but messages, which wait to be taken."""
        self.peer.feed(publish_packet(topic, body, qos, version=self.version, **options))
        self.harness.settle()
        data = self._client.take()
        found: list[Packet] = []
        while (first := maybe_first_packet(data)) is not None:
            if first[0].kind == 3:
                self._client.received += data[: len(data) - len(first[1])]
            else:
                found.append(first[0])
            data = first[1]
        return found

    def ack(self, packet_id: int) -> list[Packet]:
        return self.feed(packet(4, 0, packet_id.to_bytes(2, "big")))

    def answer(self, kind: int, packet_id: int, reason: int = 0) -> list[Packet]:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP; return what came."""
        body = packet_id.to_bytes(2, "big") + (bytes([reason]) if reason else b"")
        return self.feed(packet(kind, 2 if kind == 6 else 0, body))


def mqtt_client(harness: Harness, version: int = 4, client_id: str = "c", **options: Any) -> MqttClient:
    """Return a client that has logged in."""
    client = MqttClient(harness, version)
    reply = client.connect(client_id, **options)
    assert reply.body[1] == 0, reply
    return client
