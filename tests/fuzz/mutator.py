"""Break frames: sometimes so that they are still well-formed and mean something else, sometimes crudely.

Deterministic: everything is drawn from the `random.Random` that is handed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, encode_method
from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table, encode_table, with_length
from warren.amqp.methods import METHOD_IDS, METHODS
from warren.amqp.properties import decode_properties

from .session import ALL_PROPERTIES, HEADERS, QUEUE_ARGUMENTS, WireFrame

TEXTS = [
    "",
    "k",
    "a.b",
    "a.*.#",
    "#",
    "q.plain",
    "q.full",
    "q.single",
    "q.auto",
    "e.topic",
    "e.fanout",
    "e.direct",
    "e.headers",
    "e.x-recent-history",
    "e.super",
    "e.super-0",
    "amq.direct",
    "amq.topic",
    "amq.new",
    "amq.rabbitmq.reply-to",
    "amq.rabbitmq.reply-to.x",
    "direct",
    "topic",
    "headers",
    "x-consistent-hash",
    "x-local-random",
    "x-nonsense",
    "c.slow",
    "c.urgent",
    "guest",
    "line\r\nbreak",
    "\x00",
    "caf\u00e9",
    "\U0001f407" * 60,
    "x" * 255,
    "." * 255,
    "-1",
    "99999999999999999999",
    "0",
]
NUMBERS = [
    0,
    1,
    2,
    3,
    4,
    5,
    10,
    127,
    128,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
]
HUGE_NUMBERS = [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
WIDTHS = {"octet": 8, "short": 16, "long": 32, "longlong": 64}
ARGUMENT_KEYS = [
    *QUEUE_ARGUMENTS,
    "x-single-active-consumer",
    "x-priority",
    "x-match",
    "x-recent-history-length",
    "x-super-stream",
    "x-stream-partition-order",
    "x-group",
    "alternate-exchange",
    "hash-header",
    "hash-property",
    "hash-on",
    "CC",
    "BCC",
    "text",
]
VALUES: list[object] = [
    None,
    True,
    0,
    1,
    -1,
    3,
    1 << 62,
    0.5,
    "",
    "all",
    "any",
    "all-with-x",
    "q.full",
    "e.fanout",
    "reject-publish",
    "quorum",
    b"\xff",
    [],
    ["q.full", "k"],
    ["q.plain", 1, None],
    {},
    {"k": "v"},
]
UNKNOWN_TABLES = [
    with_length(b"\x01k?"),
    with_length(b"\x01\xffV"),
    with_length(b"\x01kV\x01kt\x01"),
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x09\x01kS\x7f\xff\xff\xff",
]


def _nested(levels: int) -> bytes:
    content = b""
    for _ in range(levels):
        content = b"\x01nF" + with_length(content)
    return with_length(content)


UNKNOWN_TABLES += [_nested(16), _nested(17), _nested(300), with_length(b"\x00V" * 1500)]


class Mutator:
    """A source of broken frames and of the choices a fuzzer makes."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self._ways: list[Callable[[WireFrame], bytes]] = [
            self._meaning,
            self._meaning,
            self._meaning,
            self._meaning,
            self._payload_bytes,
            self._payload_bytes,
            self._payload_length,
            self._method_swapped,
            self._envelope,
            self._raw_bytes,
        ]

    def mutated(self, frame: WireFrame) -> bytes:
        """Return the bytes of `frame`, broken in one way."""
        return self.choices.choice(self._ways)(frame)

    def protocol_header(self) -> bytes:
        """Return something else than the header of 0-9-1."""
        headers = [
            b"",
            b"AMQ",
            b"AMQP\x01\x01\x00\x09",
            b"AMQP\x00\x01\x00\x00",
            b"AMQP\x03\x01\x00\x00",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        ]
        return self.choices.choice([*headers, self.choices.randbytes(8)])

    # --- still well-formed --------------------------------------------------------------------------------

    def _meaning(self, frame: WireFrame) -> bytes:
        if frame.type == m.FRAME_METHOD:
            return self._argument(frame)
        if frame.type == m.FRAME_HEADER:
            return self._property(frame)
        if frame.type == m.FRAME_BODY:
            size = self.choices.choice([0, 1, len(frame.payload) - 1, len(frame.payload) + 1])
            return frame._replace(payload=self.choices.randbytes(max(0, size))).encode()
        return frame._replace(channel=self.choices.choice([0, 1, 2, 0xFFFF])).encode()

    def _argument(self, frame: WireFrame) -> bytes:
        method = decode_method(frame.payload, 0, len(frame.payload))
        fields = METHODS[METHOD_IDS[type(method)]].fields
        if not fields:
            return self._payload_length(frame)
        name, domain = self.choices.choice(fields)
        changed = method._replace(**{name: self._argument_value(domain, getattr(method, name))})
        return frame._replace(payload=encode_method(changed)).encode()

    def _argument_value(self, domain: str, value: Any) -> Any:
        choice = self.choices.choice
        if domain == "bit":
            return not value
        if domain in WIDTHS:
            numbers = NUMBERS + HUGE_NUMBERS
            return choice([number for number in numbers if number < 1 << WIDTHS[domain]])
        if domain == "shortstr":
            return choice(TEXTS)
        if domain == "longstr":
            return choice([b"", b"\x00", b"\x00guest\x00wrong", b"\x00\xff\x00\xff", self.choices.randbytes(20)])
        if domain == "table":
            return self._table(value)
        if self.choices.random() < 0.3:
            return choice(UNKNOWN_TABLES)
        return encode_table(self._table(decode_table(value)))

    def _table(self, table: Table) -> Table:
        changed = dict(table)
        for _ in range(self.choices.randint(1, 3)):
            changed[self.choices.choice(ARGUMENT_KEYS)] = self.choices.choice(VALUES)
        return changed

    def _property(self, frame: WireFrame) -> bytes:
        payload = frame.payload
        properties = {
            name: value
            for name, value in vars_of(decode_properties(payload, 0, len(payload))).items()
            if value is not None
        }
        body_bytes = int.from_bytes(payload[4:12], "big")
        match self.choices.randrange(6):
            case 0:
                sizes = [
                    0,
                    1,
                    body_bytes + 1,
                    max(0, body_bytes - 1),
                    1 << 20,
                    (1 << 20) + 1,
                    1 << 29,
                    1 << 30,
                ]
                body_bytes = self.choices.choice(sizes + HUGE_NUMBERS)
            case 1:
                properties["headers"] = self._argument_value("rawtable", properties.get("headers", EMPTY_TABLE))
            case 2:
                properties["headers"] = encode_table(self._table(HEADERS))
            case 3:
                properties |= dict(self.choices.sample(sorted(ALL_PROPERTIES.items(), key=str), 3))
            case 4:
                properties["delivery_mode"] = self.choices.choice([0, 1, 2, 3, 255])
                properties["priority"] = self.choices.choice([0, 5, 255])
            case _:
                name = self.choices.choice(["expiration", "user_id", "reply_to", "message_id", "correlation_id"])
                properties[name] = self.choices.choice([*TEXTS, "\udcff", "5", "+5", "-5", "315360000001"])
        return frame._replace(payload=content_header(properties, body_bytes)).encode()

    def _method_swapped(self, frame: WireFrame) -> bytes:
        """Another method's id, or another method of the same class, before the same arguments."""
        packed = self.choices.choice([*METHODS, 0, 0x003C0000, 0xFFFFFFFF, self.choices.getrandbits(32)])
        if self.choices.random() < 0.5:
            return frame._replace(type=m.FRAME_METHOD, payload=self._any_method()).encode()
        return frame._replace(type=m.FRAME_METHOD, payload=packed.to_bytes(4, "big") + frame.payload[4:]).encode()

    def _any_method(self) -> bytes:
        spec = self.choices.choice(list(METHODS.values()))
        plain: dict[str, Any] = {
            "bit": False,
            "shortstr": "",
            "longstr": b"",
            "table": {},
            "rawtable": EMPTY_TABLE,
        }
        values = [self._argument_value(domain, plain.get(domain, 0)) for _, domain in spec.fields]
        return encode_method(spec.type(*values))

    # --- crude --------------------------------------------------------------------------------------------

    def _payload_bytes(self, frame: WireFrame) -> bytes:
        """Overwrite a few bytes inside a frame that stays intact."""
        payload = bytearray(frame.payload)
        if not payload:
            return self._payload_length(frame)
        for _ in range(self.choices.choice([1, 1, 1, 2, 8])):
            at = self.choices.randrange(len(payload))
            change = self.choices.choice([0x00, 0xFF, 0x7F, 0x80, payload[at] ^ 1 << self.choices.randrange(8)])
            payload[at] = change if self.choices.random() < 0.7 else self.choices.randrange(256)
        return frame._replace(payload=bytes(payload)).encode()

    def _payload_length(self, frame: WireFrame) -> bytes:
        """Cut, extend or double the payload; the frame's size says so."""
        at = self.choices.randint(0, len(frame.payload))
        match self.choices.randrange(4):
            case 0:
                payload = frame.payload[:at]
            case 1:
                payload = frame.payload + self.choices.randbytes(self.choices.choice([1, 2, 8, 100]))
            case 2:
                payload = frame.payload[:at] + self.choices.randbytes(4) + frame.payload[at:]
            case _:
                payload = frame.payload + frame.payload[4:]
        return frame._replace(payload=payload).encode()

    def _envelope(self, frame: WireFrame) -> bytes:
        """Break what is around the payload."""
        data = bytearray(frame.encode())
        match self.choices.randrange(6):
            case 0:
                data[0] = self.choices.choice([0, 1, 2, 3, 4, 5, 8, 9, 0xCE, 0xFF])
            case 1:
                data[1:3] = self.choices.choice([0, 1, 2, 3, 7, 2047, 2048, 0x8000, 0xFFFF]).to_bytes(2, "big")
            case 2:
                size = len(frame.payload)
                sizes = [
                    0,
                    1,
                    max(0, size - 1),
                    size + 1,
                    4088,
                    4089,
                    131072,
                    0x7FFFFFFF,
                    0x80000000,
                    0xFFFFFFFF,
                ]
                data[3:7] = self.choices.choice(sizes).to_bytes(4, "big")
            case 3:
                data[-1] = self.choices.choice([0x00, 0xCD, 0xCF, 0xFF])
            case 4:
                return bytes(data) * 20
            case _:
                return b""
        return bytes(data)

    def _raw_bytes(self, frame: WireFrame) -> bytes:
        """Treat the frame as what it is in the end: bytes."""
        data = bytearray(frame.encode())
        at = self.choices.randrange(len(data))
        match self.choices.randrange(4):
            case 0:
                data[at] ^= 1 << self.choices.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = self.choices.randbytes(self.choices.choice([1, 8, 64]))
            case _:
                data += data[:at]
        return bytes(data)


def vars_of(properties: Any) -> dict[str, Any]:
    """Return the properties by name; a compiled class has no ``__dict__``."""
    return {name: getattr(properties, name) for name in ALL_PROPERTIES}
