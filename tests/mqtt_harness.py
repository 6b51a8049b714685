"""A client of MQTT without loop and socket, on the `Harness`: packets built, and packets taken apart by hand."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from engine import Client
from engine_harness import PASSWORD, USER, Harness

from warren.channels.connection import Connection
from warren.mqtt.packets import Properties, binary, packet, text
from warren.mqtt.peer import MqttPeer


class Packet(NamedTuple):
    """A packet of the broker: its type, its flags, and what follows the remaining length."""

    kind: int
    flags: int
    body: bytes


class Message(NamedTuple):
    """A PUBLISH of the broker; `properties` as encoded, without their length."""

    topic: str
    body: bytes
    qos: int
    packet_id: int
    retain: bool
    dup: bool
    properties: bytes


def maybe_first_packet(data: bytes) -> tuple[Packet, bytes] | None:
    """Take the first packet off; None when it is not whole."""
    size, at, shift = 0, 1, 0
    while at < len(data):
        size |= (data[at] & 127) << shift
        at += 1
        shift += 7
        if data[at - 1] < 128:
            if at + size > len(data):
                return None
            return Packet(data[0] >> 4, data[0] & 15, data[at : at + size]), data[at + size :]
    return None


def split_packets(data: bytes) -> list[Packet]:
    """Take whole packets apart."""
    found: list[Packet] = []
    while data:
        first = maybe_first_packet(data)
        assert first is not None, f"half a packet: {data[:200]!r}"
        found.append(first[0])
        data = first[1]
    return found


def message(given: Packet, version: int) -> Message:
    """Take a PUBLISH apart."""
    assert given.kind == 3, given
    body = given.body
    at = 2 + int.from_bytes(body[:2], "big")
    topic = body[2:at].decode()
    qos = given.flags >> 1 & 3
    packet_id = 0
    if qos:
        packet_id = int.from_bytes(body[at : at + 2], "big")
        at += 2
    properties = b""
    if version == 5:
        size, shift = 0, 0
        while True:
            byte = body[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        properties = body[at : at + size]
        at += size
    return Message(topic, body[at:], qos, packet_id, bool(given.flags & 1), bool(given.flags & 8), properties)


def properties(values: dict[int, Any] | None = None, users: list[tuple[str, str]] | None = None) -> Properties:
    """Return properties with these in them."""
    made = Properties()
    made.values.update(values or {})
    made.users.extend(users or [])
    return made


def connect_packet(
    version: int = 4,
    client_id: str = "c",
    *,
    clean: bool = True,
    keep_alive_s: int = 0,
    user: str | None = USER,
    password: str | None = PASSWORD,
    will: tuple[str, bytes, int, bool] | None = None,
    will_properties: Properties | None = None,
    given: Properties | None = None,
) -> bytes:
    """Return CONNECT. `will`: topic, payload, QoS, RETAIN."""
    flags = 2 if clean else 0
    rest = text(client_id)
    if will is not None:
        flags |= 4 | will[2] << 3 | (32 if will[3] else 0)
        rest += (will_properties or Properties()).encode() if version == 5 else b""
        rest += text(will[0]) + binary(will[1])
    if user is not None:
        flags |= 128
        rest += text(user)
    if password is not None:
        flags |= 64
        rest += text(password)
    head = text("MQIsdp" if version == 3 else "MQTT") + bytes([version, flags]) + keep_alive_s.to_bytes(2, "big")
    return packet(1, 0, head + ((given or Properties()).encode() if version == 5 else b"") + rest)


def publish_packet(
    topic: str,
    body: bytes = b"",
    qos: int = 0,
    packet_id: int = 1,
    *,
    version: int = 4,
    retain: bool = False,
    dup: bool = False,
    given: Properties | None = None,
) -> bytes:
    """Return PUBLISH."""
    rest = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"")
    rest += (given or Properties()).encode() if version == 5 else b""
    return packet(3, (8 if dup else 0) | qos << 1 | (1 if retain else 0), rest + body)


class MqttClient:
    """One client. `feed` lets the broker come to rest, and returns what it said to that."""

    def __init__(self, harness: Harness, version: int = 4, *, certificate_user: str | None = None) -> None:
        self.harness = harness
        self.version = version
        joined = harness.broker.join(MqttPeer, "127.0.0.1:50002", "127.0.0.1:1883", "127.0.0.1", certificate_user)
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
