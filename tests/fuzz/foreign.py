"""Messages of clients of 0-9-1, with headers that mean something to other protocols and are not as those would be.

Consumers of another protocol get them in the form of that protocol, whatever they contain.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any, Final

from engine import Engine

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp, encode_table
from warren.amqp.methods import PROTOCOL_HEADER

from .session import ALL_PROPERTIES, HEADERS, handshake, method, opened, publish

_NAMES: Final = (
    "x-amqp10-to",
    "x-amqp10-subject",
    "x-amqp10-expiry",
    "x-amqp10-group-sequence",
    "x-amqp10-reply-to-group",
    "x-amqp10-sections",
    "x-amqp10-body",
    "x-amqp10-footer",
    "x-creation-time-ms",
    "x-message-id",
    "x-correlation-id",
    "x-death",
    "x-opt-deaths",
    "x-opt-mqtt-user",
    "x-mqtt-topic",
    "x-stream-filter-value",
    "x-delivery-count",
    "destination",
    "message-id",
    "content-length",
    "a:b\nc",
    "\x00",
    "caf\u00e9",
    "x-caf\u00e9",
    "colour",
    "",
    "x" * 255,
)
_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    (1 << 63) - 1,
    -1 << 63,
    0.1,
    float("nan"),
    Timestamp(0),
    Timestamp((1 << 64) - 1),
    Decimal("0.001"),
    Decimal(-(1 << 31)),
    "",
    "red",
    "line\r\n\x00:\\c",
    "urn:uuid:00000000-0000-0000-0000-000000000000",
    "urn:uuid:zzzz",
    "x" * 3000,
    b"\xff\x00",
    b"\x00\x53\x75\xa0\x01x",
    b"\x00\x53\x73\xc0\x01\x09",
    # Stored properties of AMQP 1.0 messages: the layout of their bodies, their sections, their footers.
    [b"\x00\x53\x75\xa0"],
    [b"\x00\x53\x75\xb0", 1, b"\x00\x53\x75\xa0"],
    [b"\x00\x53\x75\xa0", (1 << 63) - 1, b"\x00\x53\x75\xb0"],
    [b"\x00\x53\x75\xa0", -1, b"\x00\x80" + bytes(7) + b"\x75\xa0"],
    [b"\x00\x53\x75\xa0", 0, b"\x00\xa3\x10amqp:data:binary\xa0"],
    b"\x00\x53\x78\xc1\x01\x00",
    b"\x00\x53\x78\xc1\x01\x00\x00\x53\x78\x40",
    b"\x00\x53\x74\xc1\x01\x00",
    b"\x00\x53\x73\x45\x00\x53\x73\x45\x00\x53\x72\xc1\x01\x00\x00\x53\x72\xc1\x01\x00",
    b"\x00\x53\x75\xa0\x01x",
    b"\x00\x53\x72\xc1\x0a\x02\xa3\x03x-a\x81\xff\xff\xff",
    [],
    {},
    [{}],
    [1, [Timestamp(1 << 63), {"d": Decimal(1)}]],
    [{"queue": 7, "reason": None, "count": -1, "time": Timestamp((1 << 64) - 1), "routing-keys": ["k", 1]}],
    [{"queue": Decimal(1), "exchange": [Timestamp((1 << 64) - 1)], "count": 1 << 62, "time": "now"}, 3],
    {"a": {"b": [None, 1, "c"]}},
    HEADERS,
)
_TEXTS: Final = ("", "amqp-1.0", "urn:uuid:" + "0" * 32, "\x00\n:", "caf\u00e9", "/queues/a b", "x" * 255)


def publish_foreign(engine: Engine, choices: random.Random, queues: list[str]) -> None:
    """Publish some to queues that may be there, as a client that comes for that."""
    client = engine.connect()
    frames = [*handshake(), *opened(1)]
    for _ in range(choices.randrange(1, 6)):
        table: Table = {choices.choice(_NAMES): choices.choice(_VALUES) for _ in range(choices.randrange(4))}
        properties: dict[str, Any] = dict(choices.sample(sorted(ALL_PROPERTIES.items()), choices.randrange(14)))
        properties["headers"] = encode_table(table)
        for name in choices.sample(["content_type", "message_id", "correlation_id", "reply_to", "type", "app_id"], 2):
            properties[name] = choices.choice(_TEXTS)
        properties["timestamp"] = choices.choice([None, 0, 1 << 62, (1 << 64) - 1])
        properties["expiration"] = choices.choice([None, None, None, "0", "60000"])
        body = choices.choice([b"", b"x", b"a\x00b", b"\x00\x53\x75\xa0\x01x", b"\x00\x53\x77", b"large" * 300])
        frames += publish(1, "", choices.choice(queues), properties, body)
    frames.append(method(1, m.ChannelClose(200, "", 0, 0)))
    client.connection.feed(PROTOCOL_HEADER + b"".join(frame.encode() for frame in frames))
    engine.settle()
    engine.hang_up(client)
