"""The wire format of AMQP 0-9-1 as one readable grammar, in construct: parse and build all that a peer sends.

    protocol header  'A' 'M' 'Q' 'P' protocol-id:u8=0 major:u8=0 minor:u8=9 revision:u8=1

    frame            type:u8   channel:u16   size:u32   payload:size bytes   end:u8=0xCE
                     1 method        class:u16  method:u16  argument*
                     2 header        class:u16  weight:u16  body_size:u64  flags:u16  property*
                     3 body          any bytes
                     8 heartbeat     nothing

    argument         octet u8, short u16, long u32, longlong u64        all integers big-endian
                     shortstr  length:u8  UTF-8
                     longstr   length:u32 bytes
                     bit       consecutive bits share octets: first bit lowest, a ninth opens the next octet
                     table     length:u32 (key:shortstr field)*
    field            tag:char payload     see ``amqp.field_table`` for the tags
                     array     length:u32 field*
                     decimal   scale:u8 unscaled:i32

1. This module is the reference. ``amqp.codec``, ``amqp.field_table`` and ``amqp.properties`` are faster
   implementations of the same format; property tests hold them equal to it, so a change begins here.
2. Everything is strict: a payload must be used up exactly; an unknown tag, method, frame type or property
   flag is refused, and so is a table beyond the limits of ``amqp.field_table``. Refusing raises
   `SpecificationError`.
3. The methods are those of ``amqp.methods``, not written a second time.
4. Tests and tools import it; the broker does not, because construct is too slow and too large to serve with.

It does not know which peer may send which method, nor in which order: that is the business of ``channels``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import chain, groupby, islice
from typing import Any, Final

from construct import (  # type: ignore[import-untyped]
    Byte,
    Bytes,
    Check,
    Const,
    ConstructError,
    Error,
    ExprAdapter,
    ExprValidator,
    Flag,
    Float32b,
    Float64b,
    FocusedSeq,
    GreedyBytes,
    GreedyRange,
    If,
    Int8sb,
    Int16sb,
    Int16ub,
    Int32sb,
    Int32ub,
    Int64sb,
    Int64ub,
    LazyBound,
    PascalString,
    Pass,
    Prefixed,
    RawCopy,
    Rebuild,
    Sequence,
    Struct,
    Switch,
    Terminated,
    this,
)

from warren.amqp.field_table import DEPTH_MAX, ENTRIES_MAX, Table, Timestamp
from warren.amqp.methods import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    METHOD_IDS,
    METHODS,
    MethodSpec,
)

# The bytes, or the value to build, do not follow the grammar.
SpecificationError = ConstructError

# --- primitives ---------------------------------------------------------------------------------------------

Octet = Byte
Short = Int16ub
Long = Int32ub
LongLong = Int64ub
ShortStr = PascalString(Octet, "utf-8")
LongStr = Prefixed(Long, GreedyBytes)
# The properties of a message are its publisher's business: bytes that are not UTF-8 pass through unharmed.
LenientShortStr = ExprAdapter(
    Prefixed(Octet, GreedyBytes),
    lambda raw, _context: raw.decode("utf-8", "surrogateescape"),
    lambda text, _context: text.encode("utf-8", "surrogateescape"),
)


def _repeated(length: Any, item: Any) -> Any:
    """Parse as many `item` as fill the length exactly; GreedyRange alone would stop quietly at a bad one."""
    return Prefixed(length, FocusedSeq("items", "items" / GreedyRange(item), Terminated))


# --- field tables, keeping tags, widths and duplicates ------------------------------------------------------

Tag = ExprAdapter(
    Bytes(1),
    lambda raw, _context: raw.decode("latin-1"),
    lambda tag, _context: tag.encode("latin-1"),
)

FIELD_PAYLOADS: Final[dict[str, Any]] = {
    "t": Flag,
    "b": Int8sb,
    "B": Octet,
    "s": Int16sb,
    "u": Short,
    "I": Int32sb,
    "i": Long,
    "l": Int64sb,
    "L": Int64sb,
    "f": Float32b,
    "d": Float64b,
    "D": Struct("scale" / Octet, "unscaled" / Int32sb),
    "T": LongLong,
    "S": LongStr,
    "x": LongStr,
    "A": LazyBound(lambda: FieldArray),
    "F": LazyBound(lambda: Pairs),
    "V": Pass,
}

Field: Any = Struct("tag" / Tag, "value" / Switch(this.tag, FIELD_PAYLOADS, default=Error))
FieldArray: Any = _repeated(Long, Field)
Pairs: Any = _repeated(Long, Struct("key" / ShortStr, "field" / Field))


def _fields_inside(field: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if field["tag"] == "F":
        return [pair["field"] for pair in field["value"]]
    return list(field["value"]) if field["tag"] == "A" else []


def _within_limits(pairs: list[Mapping[str, Any]], _context: object) -> bool:
    entries = 0
    level = [pair["field"] for pair in pairs]
    for depth in range(1, DEPTH_MAX + 1):
        entries += len(level)
        containers = [field for field in level if field["tag"] in "FA"]
        if depth == DEPTH_MAX and containers:
            return False
        level = [inner for field in containers for inner in _fields_inside(field)]
    return entries <= ENTRIES_MAX


# A whole table: list of {key, field: {tag, value}}.
TaggedTable = ExprValidator(Pairs, _within_limits)


# --- field tables as Python values --------------------------------------------------------------------------


def plain_value(field: Mapping[str, Any]) -> object:
    """Return the Python value that stands for the tagged `field`."""
    tag, value = field["tag"], field["value"]
    match tag:
        case "F":
            return plain_table(value)
        case "A":
            return [plain_value(item) for item in value]
        case "T":
            return Timestamp(value)
        case "D":
            digits = tuple(int(digit) for digit in str(abs(value["unscaled"])))
            return Decimal((int(value["unscaled"] < 0), digits, -value["scale"]))
        case "S":
            try:
                return str(value, "utf-8")
            except UnicodeDecodeError:
                return value
    return value


def plain_table(pairs: Iterable[Mapping[str, Any]]) -> Table:
    """Return the dictionary that stands for tagged `pairs`; of equal keys the last one wins."""
    return {pair["key"]: plain_value(pair["field"]) for pair in pairs}


def tagged_value(value: object) -> dict[str, Any]:
    """Return the tagged field that an encoder chooses for a Python `value`."""
    match value:
        case bool():
            return {"tag": "t", "value": value}
        case Timestamp():
            return {"tag": "T", "value": int(value)}
        case int():
            return {"tag": "I" if -(2**31) <= value < 2**31 else "l", "value": value}
        case float():
            return {"tag": "d", "value": value}
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int), "neither infinity nor NaN"
            number = int("".join(map(str, digits))) * 10 ** max(0, exponent)
            return {
                "tag": "D",
                "value": {"scale": max(0, -exponent), "unscaled": -number if sign else number},
            }
        case str():
            return {"tag": "S", "value": value.encode()}
        case bytes():
            return {"tag": "x", "value": value}
        case list():
            return {"tag": "A", "value": [tagged_value(item) for item in value]}
        case dict():
            return {"tag": "F", "value": tagged_table(value)}
    assert value is None, f"no field type for {type(value)}"
    return {"tag": "V", "value": None}


def tagged_table(table: Table) -> list[dict[str, Any]]:
    """Return the pairs that an encoder chooses for a Python `table`."""
    return [{"key": key, "field": tagged_value(value)} for key, value in table.items()]


FieldTable = ExprAdapter(
    TaggedTable,
    lambda pairs, _context: plain_table(pairs),
    lambda table, _context: tagged_table(table),
)
# A table that is checked and then kept as its encoding, length prefix included.
RawTable = ExprAdapter(
    RawCopy(TaggedTable),
    lambda copy, _context: copy["data"],
    lambda raw, _context: {"data": raw},
)

# --- methods ------------------------------------------------------------------------------------------------

DOMAINS: Final[dict[str, Any]] = {
    "octet": Octet,
    "short": Short,
    "long": Long,
    "longlong": LongLong,
    "shortstr": ShortStr,
    "longstr": LongStr,
    "table": FieldTable,
    "rawtable": RawTable,
}


def _bits(count: int) -> Any:
    """Build the parser of up to eight bits in one octet, the first one lowest, as a list of bool."""
    return ExprAdapter(
        Octet,
        lambda octet, _context: [bool(octet >> place & 1) for place in range(count)],
        lambda bits, _context: sum(bool(bit) << place for place, bit in enumerate(bits)),
    )


def _arguments(spec: MethodSpec) -> Any:
    """Build the parser of the argument list of `spec`, from and to its named tuple: runs of one domain, flattened."""
    runs: list[tuple[int, Any]] = []
    for domain, fields in groupby(spec.fields, key=lambda field: field[1]):
        length = len(list(fields))
        if domain != "bit":
            runs.append((length, Sequence(*[DOMAINS[domain]] * length)))
            continue
        for first in range(0, length, 8):
            octet_length = min(8, length - first)
            runs.append((octet_length, _bits(octet_length)))

    def to_tuple(values: list[list[Any]], _context: object) -> Any:
        return spec.type(*chain.from_iterable(values))

    def to_runs(method: Iterable[Any], _context: object) -> list[list[Any]]:
        values = iter(method)
        return [list(islice(values, length)) for length, _ in runs]

    return ExprAdapter(Sequence(*(grammar for _, grammar in runs)), to_tuple, to_runs)


_METHOD_ARGUMENTS: Final[dict[int, Any]] = {packed: _arguments(spec) for packed, spec in METHODS.items()}

# From and to the named tuples of ``amqp.methods``.
MethodPayload = ExprAdapter(
    Struct(
        "class_id" / Short,
        "method_id" / Short,
        "arguments" / Switch(lambda ctx: ctx.class_id << 16 | ctx.method_id, _METHOD_ARGUMENTS, default=Error),
        Terminated,
    ),
    lambda parsed, _context: parsed["arguments"],
    lambda method, _context: {
        "class_id": METHOD_IDS[type(method)] >> 16,
        "method_id": METHOD_IDS[type(method)] & 0xFFFF,
        "arguments": method,
    },
)

# --- content headers ----------------------------------------------------------------------------------------

# In flag order, highest bit first; the basic class does not use the two lowest bits.
PROPERTIES: Final[dict[str, Any]] = {
    "content_type": LenientShortStr,
    "content_encoding": LenientShortStr,
    "headers": RawTable,
    "delivery_mode": Octet,
    "priority": Octet,
    "correlation_id": LenientShortStr,
    "reply_to": LenientShortStr,
    "expiration": LenientShortStr,
    "message_id": LenientShortStr,
    "timestamp": LongLong,
    "type": LenientShortStr,
    "user_id": LenientShortStr,
    "app_id": LenientShortStr,
    "cluster_id": LenientShortStr,
}
PROPERTY_FLAGS: Final[dict[str, int]] = {name: 0x8000 >> place for place, name in enumerate(PROPERTIES)}


def _flags_of(context: Mapping[str, Any]) -> int:
    return sum(flag for name, flag in PROPERTY_FLAGS.items() if context.get(name) is not None)


# Flag word and property list. Built from a mapping of those present; parsed to all 14, None where absent.
PropertyList = ExprAdapter(
    Struct(
        "flags" / Rebuild(Short, _flags_of),
        Check(this.flags & 3 == 0),
        *(name / If(this.flags & PROPERTY_FLAGS[name], domain) for name, domain in PROPERTIES.items()),
    ),
    lambda parsed, _context: {name: parsed[name] for name in PROPERTIES},
    lambda properties, _context: dict.fromkeys(PROPERTIES) | dict(properties),
)

ContentHeader = Struct(
    "class_id" / Short,
    "weight" / Short,
    "body_size" / LongLong,
    "properties" / PropertyList,
    Terminated,
)

# --- frames -------------------------------------------------------------------------------------------------

ProtocolHeader = Struct(
    "magic" / Const(b"AMQP"),
    "protocol_id" / Octet,
    "major" / Octet,
    "minor" / Octet,
    "revision" / Octet,
    Terminated,
)


def _frame(payload: Any) -> Any:
    return Struct(
        "type" / Octet,
        "channel" / Short,
        "payload" / Prefixed(Long, payload),
        "end" / Const(FRAME_END, Octet),
    )


_PAYLOADS: Final[dict[int, Any]] = {
    FRAME_METHOD: MethodPayload,
    FRAME_HEADER: ContentHeader,
    FRAME_BODY: GreedyBytes,
    FRAME_HEARTBEAT: Terminated,
}

Frame = _frame(Switch(this.type, _PAYLOADS, default=Error))
# Any type, payload as bytes: for tools that take frames apart before reading them, tests that break them.
RawFrame = _frame(GreedyBytes)


def parse_frames(data: bytes, frame: Any = Frame) -> list[Any]:
    """Parse `data`, whole frames one after the other, with the grammar `frame`.

    Returns one container per frame with ``type``, ``channel`` and ``payload``; a method is its named tuple.

    Raises:
        SpecificationError: the bytes are not whole, valid frames.
    """
    stream = io.BytesIO(data)
    frames: list[Any] = []
    while stream.tell() < len(data):
        frames.append(frame.parse_stream(stream))
    return frames
