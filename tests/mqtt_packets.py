"""Packets of MQTT: built, and taken apart by hand. Needs no broker."""

from __future__ import annotations

from typing import Any, NamedTuple

from peer_frames import PASSWORD, USER

from warren.mqtt.packets import Properties, binary, packet, text


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
