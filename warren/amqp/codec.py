"""The fast codec of methods: table-driven, compiled, and held equal to the construct grammar by property tests.

    method payload = class:u16 method:u16 argument*        consecutive bits share octets, lowest bit first

The tables are derived from ``amqp.methods``. Four methods never pass here on the hot path: basic.publish, basic.ack
(read in ``channels.fast_path``), basic.deliver and the confirm (written from templates).
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i32_be,
)
from mypy_extensions import i16, i32, i64, u8

from warren.amqp.errors import COMMAND_INVALID, FRAME_ERROR, SYNTAX_ERROR, ConnectionException
from warren.amqp.field_table import TableWalker, decode_table, encode_table
from warren.amqp.methods import FRAME_END, FRAME_METHOD, METHOD_IDS, METHODS

NAME_MAX_BYTES: Final = 255  # of a short string: names, routing keys, consumer tags
_OCTET: Final = 0
_SHORT: Final = 1
_LONG: Final = 2
_LONGLONG: Final = 3
_BIT: Final = 4
_SHORTSTR: Final = 5
_LONGSTR: Final = 6
_TABLE: Final = 7
_RAWTABLE: Final = 8
_INTEGER_BYTES: Final = (1, 2, 4, 8)
_CODES: Final[dict[str, int]] = {
    "octet": _OCTET,
    "short": _SHORT,
    "long": _LONG,
    "longlong": _LONGLONG,
    "bit": _BIT,
    "shortstr": _SHORTSTR,
    "longstr": _LONGSTR,
    "table": _TABLE,
    "rawtable": _RAWTABLE,
}
_DOMAINS: Final[dict[int, bytes]] = {
    packed: bytes([_CODES[domain] for _, domain in spec.fields]) for packed, spec in METHODS.items()
}
_TYPES: Final[dict[int, Any]] = {packed: spec.type for packed, spec in METHODS.items()}


def _too_short(packed: i64) -> ConnectionException:
    name = METHODS[packed].name
    return ConnectionException(SYNTAX_ERROR, f"arguments of {name} do not fill their frame")


def decode_shortstr(data: bytes, pos: i64, end: i64) -> str:
    """Decode the short string at `pos`.

    Raises:
        ConnectionException: 502, it ends after `end`; 501, it is not UTF-8.
    """
    if pos >= end or pos + 1 + i64(data[pos]) > end:
        raise ConnectionException(SYNTAX_ERROR, "a short string exceeds its frame")
    try:
        return data[pos + 1 : pos + 1 + i64(data[pos])].decode()
    except UnicodeDecodeError:
        raise ConnectionException(FRAME_ERROR, "Malformed UTF-8 in shortstr") from None


def decode_method(data: bytes, start: i64, end: i64) -> Any:
    """Decode the method payload ``data[start:end]`` to its named tuple of ``amqp.methods``.

    Raises:
        ConnectionException: 503, no such method; 502, the arguments do not fill the payload exactly; 501, bad UTF-8.
    """
    if end - start < 4:
        raise ConnectionException(SYNTAX_ERROR, "a method frame shorter than a method id")
    packed: i64 = i64(read_i32_be(data, start)) & 0xFFFFFFFF
    domains = _DOMAINS.get(packed)
    if domains is None:
        raise ConnectionException(COMMAND_INVALID, "unimplemented method")
    values: list[object] = []
    pos: i64 = start + 4
    bit: i64 = 0  # next bit in the octet at pos - 1; 0: start a new octet
    for domain in domains:
        if domain == _BIT:
            if bit == 0:
                if pos >= end:
                    raise _too_short(packed)
                pos += 1
            values.append((i64(data[pos - 1]) >> bit) & 1 == 1)
            bit = (bit + 1) & 7
            continue
        bit = 0
        if domain == _SHORTSTR:
            values.append(decode_shortstr(data, pos, end))
            pos += 1 + i64(data[pos])
            continue
        size: i64 = 4
        if domain == _OCTET:
            size = 1
        elif domain == _SHORT:
            size = 2
        elif domain == _LONGLONG:
            size = 8
        if end - pos < size:
            raise _too_short(packed)
        if domain == _OCTET:
            values.append(int(data[pos]))
        elif domain == _SHORT:
            values.append(int(i64(read_i16_be(data, pos)) & 0xFFFF))
        elif domain == _LONG:
            values.append(int(i64(read_i32_be(data, pos)) & 0xFFFFFFFF))
        elif domain == _LONGLONG:
            values.append(int(read_i64_be(data, pos)) & 0xFFFFFFFFFFFFFFFF)
        else:
            length: i64 = i64(read_i32_be(data, pos)) & 0xFFFFFFFF
            if end - pos - 4 < length:
                raise _too_short(packed)
            size = 4 + length
            if domain == _LONGSTR:
                values.append(data[pos + 4 : pos + size])
            elif domain == _TABLE:
                values.append(decode_table(data[pos : pos + size]))
            else:
                TableWalker(data, pos, pos + size).skip_table(1)
                values.append(data[pos : pos + size])
        pos += size
    if pos != end:
        raise _too_short(packed)
    return _TYPES[packed](*values)


def encode_method(method: Any) -> bytes:
    """Encode a named tuple of ``amqp.methods`` to a method payload.

    Raises:
        OverflowError: a number does not fit its argument. Nothing is cut off in silence.
    """
    packed = METHOD_IDS[type(method)]
    out = BytesWriter()
    write_i32_be(out, i32(packed))
    bits: i64 = 0
    bit: i64 = 0
    values: Any = method
    index = 0
    for domain in _DOMAINS[packed]:
        value = values[index]
        index += 1
        if domain == _BIT:
            if bit == 8:
                out.append(u8(bits))
                bits = 0
                bit = 0
            if value:
                bits |= 1 << bit
            bit += 1
            continue
        if bit:
            out.append(u8(bits))
            bits = 0
            bit = 0
        if domain <= _LONGLONG:
            number: int = value
            out.write(number.to_bytes(_INTEGER_BYTES[domain], "big"))  # checks the range, unlike the writers
        elif domain == _SHORTSTR:
            text: str = value
            raw = text.encode("utf-8", "surrogateescape")
            assert len(raw) <= NAME_MAX_BYTES
            out.append(u8(len(raw)))
            out.write(raw)
        elif domain == _LONGSTR:
            blob: bytes = value
            out.write(len(blob).to_bytes(4, "big"))
            out.write(blob)
        elif domain == _TABLE:
            out.write(encode_table(value))
        else:
            raw_table: bytes = value
            out.write(raw_table)
    if bit:
        out.append(u8(bits))
    return out.getvalue()


def wire_short(number: i64) -> i16:
    """Return the 16 bits of an unsigned `number`, a channel for instance, for ``write_i16_be``.

    Above 32767 a plain ``i16(number)`` wraps when compiled and fails when interpreted.
    """
    return i16(number if number < 0x8000 else number - 0x10000)


def frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    """Wrap `payload` into one frame."""
    head = bytes([frame_type]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big")
    return head + payload + bytes([FRAME_END])


def method_frame(channel: int, method: Any) -> bytes:
    """Encode a named tuple of ``amqp.methods`` to a whole frame."""
    return frame(FRAME_METHOD, channel, encode_method(method))
