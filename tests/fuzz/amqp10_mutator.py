"""Break frames of AMQP 1.0: their values, so that they are well-formed and mean something else, and their bytes.

Deterministic: everything is drawn from the `random.Random` that is handed in.
"""

from __future__ import annotations

import random
from typing import Any, Final

from warren.amqp10.performatives import (
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    COORDINATOR,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SASL_HEADER,
    SASL_INIT,
    SASL_OUTCOME,
    SOURCE,
    TARGET,
    TLS_HEADER,
    TRANSFER,
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
    encode,
)

from .amqp10_scenes import ADDRESSES, APPLICATION, COMPOUND, EVERY_TYPE, FILTERS, MESSAGES, STATES, Wire, section

# How many bits, and whether one of them is a sign.
_WIDTHS: Final[dict[type, tuple[int, bool]]] = {
    UByte: (8, False),
    UShort: (16, False),
    UInt: (32, False),
    ULong: (64, False),
    Byte: (8, True),
    Short: (16, True),
    Int: (32, True),
    Timestamp: (64, True),
    int: (64, True),
}
_DEEP: Final[Any] = [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]
_ABSURD: Final[list[Any]] = [
    *EVERY_TYPE,
    *COMPOUND,
    *ADDRESSES,
    *FILTERS,
    *STATES,
    _DEEP,
    UInt(0),
    UInt(255),
    UInt(256),
    UInt((1 << 32) - 1),
    ULong(0),
    ULong(1 << 63),
    Int(1 << 30),
    Timestamp((1 << 63) - 1),
    Timestamp(-1 << 63),
    Float(float("nan")),
    float("inf"),
    Char("\x00"),
    Symbol(""),
    Symbol("amqp:properties-filter"),
    Symbol("x-cc"),
    Symbol("x-opt-delivery-time"),
    Symbol("x-basic-type"),
    Symbol("x-message-id"),
    b"",
    b"\x00" * 33,
    b"\xff" * 600,
    "",
    "\x00",
    "x" * 256,
    "x" * 1100,
    "\U0001f407" * 100,
    "&p:",
    "&s:",
    "&x",
    "&&",
    "a = ",
    "(" * 300,
    "a LIKE '%_%' ESCAPE '%'",
    "a IN (" + ",".join(f"'{at}'" for at in range(200)) + ")",
    "NOT " * 100 + "TRUE",
    "1 / 0 = n",
    "9223372036854775807 + n > -9223372036854775808",
    list(range(200)),
    {f"k{at}": at for at in range(100)},
    {Symbol("paired"): True},
    {Symbol("rabbitmq:priority"): ULong((1 << 64) - 1)},
    Described(ULong(COORDINATOR), []),
    Described(ULong(SOURCE), []),
    Described(ULong(TARGET), [None] * 20),
    Described(Symbol("amqp:source:list"), ["/queues/q.plain"]),
    Array(0x40, [None] * 300),
    Array(0xB0, [b"a" * 300]),
    Array(0xD0, [[1], []]),
    Array(0xA3, [Symbol("a")], Symbol("d")),
    Decimal(b"\xff" * 16),
]
_CODES: Final = (
    *(OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE),
    *(SASL_INIT, SASL_OUTCOME, 0x1D, 0x75, 0, 255, (1 << 64) - 1),
)
_NAMES: Final = {
    OPEN: "amqp:open:list",
    BEGIN: "amqp:begin:list",
    ATTACH: "amqp:attach:list",
    FLOW: "amqp:flow:list",
    TRANSFER: "amqp:transfer:list",
    DISPOSITION: "amqp:disposition:list",
    DETACH: "amqp:detach:list",
    END: "amqp:end:list",
    CLOSE: "amqp:close:list",
    SASL_INIT: "amqp:sasl-init:list",
}
_SECTIONS: Final = (0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x6F, 0x79)
_CHANNELS: Final = (0, 1, 2, 63, 64, 255, 65535)


class Amqp10Mutator:
    """Breaks frames."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices

    def protocol_header(self) -> bytes:
        """Return how a client might begin that is mistaken."""
        first = self.choices.choice([b"AMQP\0\0\x09\1", AMQP_HEADER, TLS_HEADER, b"AMQP\x03\x01\x00\x01", b"GET / HT"])
        return self.choices.choice([first, SASL_HEADER + first, SASL_HEADER[:5], self.choices.randbytes(16)])

    def mutated(self, wire: Wire) -> bytes:
        """Return something instead of `wire`."""
        choices = self.choices
        match choices.randrange(10):
            case 0 | 1 | 2 | 3:
                return self._encoded(wire._replace(fields=self._altered_list(wire.fields)))
            case 4:
                return self._encoded(wire._replace(payload=self._payload(wire.payload)))
            case 5 | 6:
                return self._bytes(wire.encode())
            case 7:
                return self._elsewhere(wire)
            case 8:
                return wire.encode() * choices.choice([2, 2, 2, 20])
            case _:
                return self._crude(wire.encode())

    def _encoded(self, wire: Wire) -> bytes:
        try:
            return wire.encode()
        except (ValueError, KeyError, IndexError):  # an array of what does not fit together
            return self._bytes(wire._replace(fields=[]).encode())

    def _elsewhere(self, wire: Wire) -> bytes:
        """Return it as another performative, on another channel, or said in another way."""
        choices = self.choices
        match choices.randrange(5):
            case 0:
                return self._encoded(wire._replace(channel=choices.choice(_CHANNELS)))
            case 1:
                return self._encoded(wire._replace(descriptor=ULong(choices.choice(_CODES))))
            case 2:  # the same, by name
                return self._encoded(wire._replace(descriptor=Symbol(_NAMES.get(wire.code, "amqp:nothing:list"))))
            case 3:
                return self._encoded(wire._replace(frame_type=choices.choice([0, 1, 1, 2, 255])))
            case _:
                return self._encoded(wire._replace(descriptor=choices.choice(_ABSURD)))

    # --- values -----------------------------------------------------------------------------------------------------

    def _altered(self, value: Any) -> Any:
        choices = self.choices
        if choices.random() < 0.4:
            return choices.choice(_ABSURD)
        if isinstance(value, Described):
            if choices.random() < 0.2:
                return Described(choices.choice([ULong(choices.randrange(256)), Symbol("a:b")]), value.value)
            return Described(value.descriptor, self._altered(value.value))
        if isinstance(value, list):
            return self._altered_list(value)
        if isinstance(value, dict):
            return self._altered_map(value)
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self._number(value)
        if isinstance(value, bytes | str):
            return self._text(value)
        return choices.choice(_ABSURD)

    def _altered_list(self, given: list[Any]) -> list[Any]:
        choices = self.choices
        values = given[:]
        match choices.randrange(8):
            case 0:
                return values[: choices.randrange(len(values) + 1)]
            case 1:
                return values + [choices.choice(_ABSURD) for _ in range(choices.choice([1, 1, 10, 300]))]
            case 2 if values:
                values.insert(choices.randrange(len(values)), choices.choice(_ABSURD))
                return values
            case 3 if values:
                del values[choices.randrange(len(values))]
                return values
            case _ if values:
                at = choices.randrange(len(values))
                values[at] = self._altered(values[at])
                return values
            case _:
                return [choices.choice(_ABSURD)]

    def _altered_map(self, given: dict[Any, Any]) -> dict[Any, Any]:
        choices = self.choices
        values = dict(given)
        if values and choices.random() < 0.7:
            name = choices.choice(list(values))
            altered = self._altered(values.pop(name))
            key = self._altered(name) if choices.random() < 0.3 else name
            values[key if not isinstance(key, list | dict | Array | Described) else name] = altered
        else:
            key = choices.choice([each for each in EVERY_TYPE if each is not None])
            values[key] = choices.choice(_ABSURD)
        return values

    def _number(self, value: int) -> int:
        bits, is_signed = _WIDTHS.get(type(value), (64, True))
        kind = type(value) if type(value) in _WIDTHS else int
        low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
        wanted = self.choices.choice(
            [0, 1, value + 1, value - 1, 255, 256, high, high - 1, low, 1 << bits - 2, value ^ 1]
        )
        return kind(min(max(wanted, low), high))

    def _text(self, value: bytes | str) -> Any:
        choices = self.choices
        at = choices.randrange(len(value) + 1)
        if isinstance(value, str):
            kind = type(value) if isinstance(value, Symbol) else str
            return kind(choices.choice([value[:at], value + "x", value * 40, value.upper()]))
        return choices.choice([bytes(value[:at]), bytes(value) + b"\xff", bytes(value) * 40])

    def _payload(self, payload: bytes) -> bytes:
        """Return another message."""
        choices = self.choices
        match choices.randrange(6):
            case 0:
                return section(choices.choice(_SECTIONS), choices.choice(_ABSURD)) + payload
            case 1:
                return payload + section(choices.choice(_SECTIONS), choices.choice(_ABSURD))
            case 2:
                fields = [choices.choice(_ABSURD) for _ in range(13)]
                return section(choices.choice([0x70, 0x73]), fields) + payload
            case 3:
                values = {choices.choice([Symbol("x-a"), Symbol("x-cc"), "p", "CC"]): choices.choice(_ABSURD)}
                return section(choices.choice([0x72, 0x74]), values) + payload
            case 4:
                return self._garbled(payload or APPLICATION)
            case _:
                return choices.choice(MESSAGES) + choices.choice(MESSAGES)

    # --- bytes ------------------------------------------------------------------------------------------------------

    def _garbled(self, data: bytes) -> bytes:
        choices = self.choices
        made = bytearray(data)
        for _ in range(choices.choice([1, 1, 2, 5])):
            at = choices.randrange(len(made) + 1)
            match choices.randrange(6):
                case 0 if at < len(made):
                    made[at] ^= 1 << choices.randrange(8)
                case 1 if at < len(made):
                    made[at] = choices.choice((0, 1, 0x40, 0x45, 0x7F, 0x80, 0xB0, 0xC0, 0xD0, 0xE0, 0xF0, 0xFF))
                case 2:
                    del made[at:]
                case 3:
                    made[at:at] = choices.randbytes(choices.randrange(1, 9))
                case 4:
                    del made[at : at + choices.randrange(1, 9)]
                case _:
                    made[at:at] = encode(choices.choice(_ABSURD))
        return bytes(made)

    def _bytes(self, frame: bytes) -> bytes:
        """Return a frame of the right size whose content is broken."""
        content = self._garbled(frame[8:])
        return (8 + len(content)).to_bytes(4, "big") + frame[4:8] + content

    def _crude(self, frame: bytes) -> bytes:
        choices = self.choices
        match choices.randrange(6):
            case 0:
                size = choices.choice((0, 7, 8, 9, len(frame) - 1, len(frame) + 1, 131072, 131073, (1 << 32) - 1))
                return size.to_bytes(4, "big") + frame[4:]
            case 1:
                return frame[:4] + bytes([choices.choice((0, 1, 2, 3, 255))]) + frame[5:]
            case 2:  # an extended header
                extra = choices.randrange(1, 9)
                head = (len(frame) + 4 * extra).to_bytes(4, "big") + bytes([2 + extra])
                return head + frame[5:8] + choices.randbytes(4 * extra) + frame[8:]
            case 3:
                return frame[: choices.randrange(len(frame))]
            case 4:
                return choices.choice([AMQP_HEADER, SASL_HEADER]) + frame
            case _:
                return self._garbled(frame)
