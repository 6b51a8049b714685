"""A valid client of AMQP 1.0, as frames: scenes that together use every performative, filter and kind of section.

A scene is a list of frames on one session, with handles of its own, that a correct broker accepts. The sender fills in
the numbers in flow and disposition that depend on received frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from peer_frames import PASSWORD, USER

from warren.amqp10.performatives import (
    ACCEPTED,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    FRAME_SASL,
    HEARTBEAT,
    MODIFIED,
    OPEN,
    RECEIVED,
    REJECTED,
    RELEASED,
    SASL_INIT,
    SOURCE,
    TARGET,
    TRANSFER,
    described,
    framed,
)
from warren.amqp10.values import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
    encode,
)

HANDLES: Final = (0, 1, 2, 3, 4, 5, 254, 255)
WINDOW: Final = 2048


class Wire(NamedTuple):
    """A frame before it is bytes. `code`: of its performative, -1: it is empty; `descriptor`: said instead of that."""

    channel: int
    code: int
    fields: list[Any]
    payload: bytes = b""
    frame_type: int = 0
    descriptor: Any = None

    def encode(self) -> bytes:
        if self.code < 0:
            return HEARTBEAT
        descriptor = ULong(self.code) if self.descriptor is None else self.descriptor
        return framed(self.channel, encode(Described(descriptor, self.fields)) + self.payload, self.frame_type)


QUEUES: Final[dict[str, dict[str, Any]]] = {
    "q.plain": {},
    "q.other": {"x-max-length": 20},
    "q.full": {"x-max-length": 3, "x-overflow": "reject-publish"},
    "q.dead": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q.other", "x-delivery-limit": 2},
    "q.expiring": {"x-message-ttl": 1000, "x-max-length": 20},
    "q.priority": {"x-max-priority": 5, "x-max-length": 20},
    "q.single": {"x-single-active-consumer": True, "x-max-length": 20},
    "q.stream": {"x-queue-type": "stream", "x-max-length-bytes": 100_000},
}
ADDRESSES: Final = (
    *[f"/queues/{name}" for name in QUEUES],
    "/queues/nowhere",
    "/queues/",
    "/queues/caf%C3%A9",
    "/queues/%zz",
    "/queues/a/b",
    "/exchanges/e.topic/a.b",
    "/exchanges/e.headers",
    "/exchanges/amq.fanout/x",
    "/exchanges/",
    "/management",
    "/nonsense",
    "",
    "/queues/" + "x" * 300,
)


# --- messages -----------------------------------------------------------------------------------------------------


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


EVERY_TYPE: Final[list[Any]] = [
    None,
    True,
    UByte(255),
    UShort(65535),
    UInt(1 << 31),
    ULong((1 << 64) - 1),
    Byte(-128),
    Short(-32768),
    Int(-1),
    -1 << 63,
    Float(0.5),
    0.25,
    Char("\U0001f407"),
    Timestamp(1_700_000_000_123),
    Uuid(bytes(range(16))),
    Decimal(bytes(4)),
    Decimal(bytes(8)),
    Decimal(bytes(16)),
    b"\x00\xff",
    "caf\u00e9",
    Symbol("symbol"),
]
COMPOUND: Final[list[Any]] = [
    [],
    [1, [2, [3]]],
    {},
    {"k": {Symbol("s"): UInt(0)}},
    Array(0x71, [Int(1), Int(-1)]),
    Array(0xB1, ["a", "b"]),
    Described(Symbol("a:thing"), [1]),
    Described(ULong(1 << 63), Described(ULong(0), None)),
]
HEADER: Final = section(0x70, [True, UByte(4), UInt(60_000), True, UInt(0)])
ANNOTATIONS: Final = section(
    0x72,
    {Symbol("x-opt-a"): "b", Symbol("x-stream-filter-value"): "red", Symbol("x-cc"): ["q.other"], Symbol("x-n"): 1},
)
PROPERTIES: Final = section(
    0x73,
    [
        "m-1",
        USER.encode(),
        "/queues/q.plain",
        "subject",
        "/queues/answers",
        ULong(7),
        Symbol("text/plain"),
        Symbol("utf-8"),
        Timestamp(1_900_000_000_000),
        Timestamp(1_700_000_000_123),
        "group",
        UInt(3),
        "reply-group",
    ],
)
APPLICATION: Final = section(0x74, {f"p{at}": value for at, value in enumerate(EVERY_TYPE)} | {"colour": "red", "n": 7})
DATA: Final = section(0x75, b"body")
MESSAGES: Final = (
    DATA,
    b"",
    HEADER + DATA,
    section(0x71, {Symbol("x-opt-d"): 1}) + DATA,
    HEADER + ANNOTATIONS + PROPERTIES + APPLICATION + DATA,
    PROPERTIES + section(0x75, bytes(range(256)) * 4),
    section(0x73, [Uuid(bytes(16)), None, None, None, None, b"raw"]) + DATA,
    section(0x75, b"one") + section(0x75, b"two"),
    section(0x76, [1, "two"]) + section(0x76, [EVERY_TYPE, COMPOUND]),
    section(0x77, "a text"),
    section(0x77, None),
    section(0x77, {"k": COMPOUND}),
    APPLICATION + section(0x77, EVERY_TYPE) + section(0x78, {Symbol("checksum"): b"1"}),
    section(0x70, []) + DATA + section(0x78, {}),
    section(0x70, [False, UByte(255), UInt((1 << 32) - 1), False, UInt((1 << 32) - 1)]) + DATA,
    encode(Described(Symbol("amqp:data:binary"), b"by name")),
    PROPERTIES + section(0x75, b"large" * 2000),
)


# --- frames -------------------------------------------------------------------------------------------------------


def sasl(mechanism: str = "PLAIN", response: bytes = f"\0{USER}\0{PASSWORD}".encode()) -> Wire:
    return Wire(0, SASL_INIT, [Symbol(mechanism), response, "localhost"], frame_type=FRAME_SASL)


def opening(max_frame_bytes: int, idle_ms: int | None = None) -> Wire:
    told: dict[Any, Any] = {Symbol("product"): "fuzz", Symbol("version"): "1", Symbol("n"): Int(1)}
    idle = None if idle_ms is None else UInt(idle_ms)
    return Wire(
        0, OPEN, ["client", "vhost:/", UInt(max_frame_bytes), UShort(63), idle, Symbol("en-US"), None, None, None, told]
    )


def begin(channel: int) -> Wire:
    return Wire(channel, BEGIN, [None, UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(255)])


def end(channel: int) -> Wire:
    return Wire(channel, END, [])


def close() -> Wire:
    return Wire(0, CLOSE, [])


def sender(channel: int, handle: int, address: str | None, **given: Any) -> Wire:
    source, target = described(SOURCE, ["client"]), described(TARGET, [address])
    fields: list[Any] = [f"s{handle}", UInt(handle), False, UByte(given.get("mode", 2)), UByte(0), source, target]
    return Wire(channel, ATTACH, [*fields, None, None, UInt(0), None, None, None, given.get("properties")])


def receiver(channel: int, handle: int, address: str | None, **given: Any) -> Wire:
    source = described(
        SOURCE, [address, UInt(0), None, None, given.get("dynamic"), None, Symbol("move"), given.get("filters")]
    )
    fields: list[Any] = [f"r{handle}", UInt(handle), True, UByte(given.get("mode", 0)), UByte(0), source]
    fields += [described(TARGET, ["client"]), None, None, None, ULong(0), None, None, given.get("properties")]
    return Wire(channel, ATTACH, fields)


def detach(channel: int, handle: int, *, closed: bool = True) -> Wire:
    return Wire(channel, DETACH, [UInt(handle), closed])


def flow(channel: int, handle: int | None, credit: int = 0, *, drain: bool = False, echo: bool = False) -> Wire:
    fields: list[Any] = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW)]
    if handle is not None:
        fields += [UInt(handle), UInt(0), UInt(credit), None, drain]
    else:
        fields += [None] * 5
    return Wire(channel, FLOW, [*fields, echo])


def transfers(
    channel: int, handle: int, message: bytes, *, settled: bool = False, parts: int = 1, delivery_id: int = 0
) -> list[Wire]:
    room = -(-len(message) // parts) or 1
    pieces = [message[at : at + room] for at in range(0, len(message), room)] or [b""]
    made: list[Wire] = []
    for at, piece in enumerate(pieces):
        more = at + 1 < len(pieces)
        first: list[Any] = [UInt(delivery_id), b"tag", UInt(0)] if at == 0 else [None, None, None]
        made.append(Wire(channel, TRANSFER, [UInt(handle), *first, settled, more], piece))
    return made


def disposition(channel: int, state: Any, *, settled: bool = True, last: bool = False) -> Wire:
    return Wire(channel, DISPOSITION, [True, UInt(0), UInt(0) if last else None, settled, state])


def request(channel: int, handle: int, method: str, path: str, body: Any = None, identifier: Any = "id") -> list[Wire]:
    message = section(0x73, [identifier, None, path, method, "$me"]) + section(0x77, body)
    return transfers(channel, handle, message, settled=True)


STATES: Final[list[Any]] = [
    described(ACCEPTED, []),
    described(REJECTED, []),
    described(REJECTED, [described(0x1D, [Symbol("amqp:internal-error"), "no"])]),
    described(RELEASED, []),
    described(MODIFIED, [True, False, {Symbol("x-opt-a"): 1}]),
    described(MODIFIED, [False, True]),
    described(MODIFIED, [True, False, {Symbol("x-opt-delivery-time"): Timestamp(1_700_000_002_000)}]),
    described(RECEIVED, [UInt(0), ULong(0)]),
    None,
]
FILTERS: Final[list[dict[Any, Any]]] = [
    {Symbol("rabbitmq:stream-offset-spec"): Described(Symbol("rabbitmq:stream-offset-spec"), "first")},
    {Symbol("rabbitmq:stream-offset-spec"): Described(Symbol("rabbitmq:stream-offset-spec"), ULong(3))},
    {Symbol("rabbitmq:stream-offset-spec"): Described(Symbol("rabbitmq:stream-offset-spec"), Timestamp(0))},
    {
        Symbol("offset"): Described(Symbol("rabbitmq:stream-offset-spec"), "1D"),
        Symbol("filter"): Described(Symbol("rabbitmq:stream-filter"), ["red", "blue"]),
        Symbol("unfiltered"): Described(Symbol("rabbitmq:stream-match-unfiltered"), True),
    },
    {Symbol("a"): Described(Symbol("amqp:properties-filter"), {Symbol("subject"): "&p:sub"})},
    {
        Symbol("a"): Described(
            ULong(0x173), {Symbol("message-id"): "m-1", Symbol("group-sequence"): UInt(3), Symbol("user-id"): USER}
        )
    },
    {Symbol("a"): Described(Symbol("amqp:application-properties-filter"), {"colour": "&s:ed", "n": Int(7)})},
    {Symbol("a"): Described(ULong(0x174), {f"p{at}": value for at, value in enumerate(EVERY_TYPE[:15])})},
    {Symbol("a"): Described(Symbol("amqp:sql-filter"), "colour = 'red' AND n > 3 OR properties.subject LIKE 's%'")},
    {Symbol("a"): Described(ULong(0x120), "p.subject IN ('subject', 'other') AND NOT (n IS NULL) AND n * 2 < 1e3")},
    {Symbol("apache.org:selector-filter:string"): Described(ULong(0x468C00000004), "x = 1")},
]


# --- scenes -------------------------------------------------------------------------------------------------------


def _published(channel: int, handle: int) -> list[Wire]:
    frames = [sender(channel, handle, "/queues/q.plain")]
    for at, message in enumerate(MESSAGES):
        frames += transfers(channel, handle, message, settled=at % 3 == 0, parts=1 + at % 2 * 3)
    return [*frames, flow(channel, handle, echo=True), detach(channel, handle)]


def _everywhere(channel: int, handle: int) -> list[Wire]:
    frames = [sender(channel, handle, None, mode=0)]
    for address in ADDRESSES:
        message = section(0x73, [None, None, address]) + DATA
        frames += transfers(channel, handle, message)
    return [*frames, detach(channel, handle, closed=False)]


def _to_exchanges(channel: int, handle: int) -> list[Wire]:
    frames: list[Wire] = []
    for address in ("/exchanges/e.topic/a.b", "/exchanges/e.headers", "/exchanges/amq.fanout/x", "/queues/q.full"):
        frames.append(sender(channel, handle, address, mode=1))
        for message in MESSAGES[:5]:
            frames += transfers(channel, handle, message)
        frames.append(detach(channel, handle))
    return frames


def _to_queues(channel: int, handle: int) -> list[Wire]:
    frames: list[Wire] = []
    for name in QUEUES:
        frames += [sender(channel, handle, f"/queues/{name}")]
        for message in MESSAGES[2:7]:
            frames += transfers(channel, handle, message)
        frames.append(detach(channel, handle))
    return frames


def _consumed(channel: int, handle: int) -> list[Wire]:
    frames = [receiver(channel, handle, "/queues/q.plain"), flow(channel, handle, 20)]
    for at, state in enumerate(STATES * 2):
        frames.append(disposition(channel, state, settled=at % 4 > 0, last=at % 3 == 0))
    frames += [
        flow(channel, handle, 5, drain=True),
        flow(channel, handle, 0, echo=True),
        flow(channel, None, echo=True),
    ]
    return [*frames, detach(channel, handle)]


def _from_queues(channel: int, handle: int) -> list[Wire]:
    frames: list[Wire] = []
    for at, name in enumerate(QUEUES):
        priority = {Symbol("rabbitmq:priority"): Int(at)} if at % 2 else None
        frames += [receiver(channel, handle, f"/queues/{name}", mode=at % 2, properties=priority)]
        frames += [flow(channel, handle, 3), disposition(channel, described(REJECTED, []))]
        frames += [flow(channel, handle, 10, drain=True), detach(channel, handle)]
    return frames


def _selected(channel: int, handle: int) -> list[Wire]:
    frames: list[Wire] = []
    for at, filters in enumerate(FILTERS):
        for name in ("q.stream",) if at < 4 else ("q.stream", "q.plain"):
            frames += [receiver(channel, handle, f"/queues/{name}", filters=filters), flow(channel, handle, 4)]
            frames += [disposition(channel, described(ACCEPTED, []), last=True), detach(channel, handle)]
    return frames


def _dynamic(channel: int, handle: int) -> list[Wire]:
    other = HANDLES[(HANDLES.index(handle) + 1) % len(HANDLES)]
    return [
        receiver(channel, handle, None, dynamic=True),
        flow(channel, handle, 10),
        sender(channel, other, None),
        *transfers(channel, other, section(0x73, [None, None, "/queues/q.plain"]) + DATA),
        Wire(channel, -1, []),
        detach(channel, other),
        detach(channel, handle),
    ]


def _paired(channel: int, handle: int) -> list[Wire]:
    other = HANDLES[(HANDLES.index(handle) + 1) % len(HANDLES)]
    paired = {Symbol("paired"): True}
    ask = [
        ("PUT", "/queues/q.new", {"durable": False, "arguments": {"x-max-length": ULong(5)}}),
        ("GET", "/queues/q.new", None),
        ("PUT", "/exchanges/e.new", {"type": "topic", "auto_delete": True, "arguments": {}}),
        ("POST", "/bindings", {"source": "e.new", "binding_key": "#", "destination_queue": "q.new", "arguments": {}}),
        ("POST", "/bindings", {"source": "e.topic", "binding_key": "a", "destination_exchange": "e.new"}),
        ("GET", "/bindings?src=e.new&dstq=q.new&key=%23", None),
        ("DELETE", "/bindings/src=e.new;dstq=q.new;key=%23;args=", None),
        ("DELETE", "/queues/q.new/messages", None),
        ("DELETE", "/queues/q.new", None),
        ("DELETE", "/exchanges/e.new", None),
        ("PUT", "/auth/tokens", b"token"),
        ("BREW", "/coffee", COMPOUND),
    ]
    frames = [
        sender(channel, handle, "/management", properties=paired),
        receiver(channel, other, "/management", properties=paired),
        flow(channel, other, 50),
    ]
    for at, (method, path, body) in enumerate(ask):
        frames += request(channel, handle, method, path, body, EVERY_TYPE[at])
    return [*frames, detach(channel, other), detach(channel, handle)]


def declared(channel: int) -> list[Wire]:
    """Return what declares whatever the scenes refer to."""
    paired = {Symbol("paired"): True}
    frames = [
        sender(channel, 0, "/management", properties=paired),
        receiver(channel, 1, "/management", properties=paired),
        flow(channel, 1, 100),
    ]
    for name, arguments in QUEUES.items():
        durable = name in ("q.plain", "q.stream")
        frames += request(channel, 0, "PUT", f"/queues/{name}", {"durable": durable, "arguments": arguments})
    for kind in ("topic", "headers"):
        frames += request(channel, 0, "PUT", f"/exchanges/e.{kind}", {"type": kind})
    for source, key in (("e.topic", "a.#"), ("e.headers", ""), ("amq.fanout", "")):
        body = {"source": source, "binding_key": key, "destination_queue": "q.other", "arguments": {}}
        frames += request(channel, 0, "POST", "/bindings", body)
    return [*frames, detach(channel, 1), detach(channel, 0)]


Scene = Callable[[int, int], list[Wire]]
SCENES: Final[tuple[Scene, ...]] = (
    _published,
    _everywhere,
    _to_exchanges,
    _to_queues,
    _consumed,
    _consumed,
    _from_queues,
    _selected,
    _dynamic,
    _paired,
)
