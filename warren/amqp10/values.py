"""The type system of AMQP 1.0: bytes to values and back. For speed, ``performatives`` has readers of its own.

    code     width after it           types
    0x4_     nothing                  null 40, true 41, false 42, uint 0 43, ulong 0 44, empty list 45
    0x5_     1 byte                   ubyte 50, byte 51, uint 52, ulong 53, int 54, long 55, boolean 56
    0x6_     2                        ushort 60, short 61
    0x7_     4                        uint 70, int 71, float 72, char 73, decimal32 74
    0x8_     8                        ulong 80, long 81, double 82, timestamp 83, decimal64 84
    0x9_     16                       decimal128 94, uuid 98
    0xA_ B_  u8 or u32 size           binary A0 B0, string A1 B1, symbol A3 B3
    0xC_ D_  u8 or u32 size, count    list C0 D0, map C1 D1
    0xE_ F_  u8 or u32 size, count    array E0 F0: one constructor, then its elements
    0x00     descriptor, value        described

    type            Python            type            Python             type            Python
    null            None              byte            Byte               char            Char
    boolean         bool              short           Short              timestamp       Timestamp, in ms
    ubyte           UByte             int             Int                uuid            Uuid, 16 bytes
    ushort          UShort            long            int                decimal         Decimal
    uint            UInt              float           Float              string          str
    ulong           ULong             double          float              symbol          Symbol
    binary          bytes             list            list               map             dict
    array           Array             described       Described

1. Nothing is allocated for an announced size or count before it is checked against the received bytes. Elements that
   take no bytes count against `ENTRIES_MAX` like all others.
2. These cause amqp:decode-error: nesting deeper than `DEPTH_MAX`, more than `ENTRIES_MAX` elements in all, an unknown
   code, a size that does not add up, and a map with a compound key.
3. A decoded value is encoded with the same types, perhaps with smaller constructors. If a map has a key twice, the last
   value is kept.

Source: AMQP 1.0, part 1 "Types".
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_f32_be,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f32_be,
    write_f64_be,
    write_i32_be,
)
from mypy_extensions import i32, i64, mypyc_attr, u8

from warren.amqp10.error_conditions import DECODE_ERROR, Amqp10Error

DEPTH_MAX: Final = 16
ENTRIES_MAX: Final = 4096

NULL: Final = 0x40
TRUE: Final = 0x41
FALSE: Final = 0x42
UINT_0: Final = 0x43
ULONG_0: Final = 0x44
LIST_0: Final = 0x45
SMALL_UINT: Final = 0x52
SMALL_ULONG: Final = 0x53
BOOLEAN: Final = 0x56
UINT: Final = 0x70
BINARY_8: Final = 0xA0
BINARY_32: Final = 0xB0


@mypyc_attr(native_class=False)
class UByte(int):
    """8 bits without a sign."""


@mypyc_attr(native_class=False)
class UShort(int):
    """16 bits without a sign."""


@mypyc_attr(native_class=False)
class UInt(int):
    """32 bits without a sign."""


@mypyc_attr(native_class=False)
class ULong(int):
    """64 bits without a sign."""


@mypyc_attr(native_class=False)
class Byte(int):
    """8 bits with a sign."""


@mypyc_attr(native_class=False)
class Short(int):
    """16 bits with a sign."""


@mypyc_attr(native_class=False)
class Int(int):
    """32 bits with a sign."""


@mypyc_attr(native_class=False)
class Timestamp(int):
    """Milliseconds since the epoch, 64 bits with a sign."""


@mypyc_attr(native_class=False)
class Float(float):
    """A floating-point number of 32 bits."""


@mypyc_attr(native_class=False)
class Char(str):
    """One character."""


@mypyc_attr(native_class=False)
class Symbol(str):
    """A name of a constrained domain, ASCII."""


@mypyc_attr(native_class=False)
class Uuid(bytes):
    """16 bytes."""


@mypyc_attr(native_class=False)
class Decimal(bytes):
    """A decimal number as it is encoded: 4, 8 or 16 bytes of IEEE 754. Nothing here computes with it."""


class Array:
    """Elements of one type. `code`: of their constructor; `descriptor`: of each of them, None without."""

    def __init__(self, code: int, elements: list[object], descriptor: object = None) -> None:
        self.code = code
        self.elements = elements
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and (self.code, self.elements, self.descriptor) == (
            other.code,
            other.elements,
            other.descriptor,
        )

    def __hash__(self) -> int:
        raise TypeError("an array cannot be a key")


class Described:
    """A value that `descriptor` gives a meaning."""

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and (self.descriptor, self.value) == (other.descriptor, other.value)

    def __hash__(self) -> int:
        raise TypeError("a described value cannot be a key")


def malformed(what: str) -> Amqp10Error:
    return Amqp10Error(DECODE_ERROR, f"malformed: {what}")


def value_end(data: bytes, pos: i64, end: i64) -> i64:
    """Return where the value that begins at `pos` ends. The contents of lists, maps and arrays are skipped.

    Raises:
        Amqp10Error: it does not end before `end`, or is of an unknown type.
    """
    depth: i64 = 0
    while pos < end and data[pos] == 0:
        depth += 1
        if depth > DEPTH_MAX:
            raise malformed(f"described values nested deeper than {DEPTH_MAX}")
        pos = _undescribed_end(data, pos + 1, end)
    return _undescribed_end(data, pos, end)


def _undescribed_end(data: bytes, pos: i64, end: i64) -> i64:
    if pos >= end:
        raise malformed("it ends too early")
    code: i64 = data[pos]
    pos += 1
    kind: i64 = code >> 4
    size: i64 = 0
    if kind == 4:
        size = 0
    elif kind == 5:
        size = 1
    elif kind == 10 or kind == 12 or kind == 14:
        if pos >= end:
            raise malformed("it ends too early")
        size = 1 + i64(data[pos])
    elif kind == 11 or kind == 13 or kind == 15:
        if end - pos < 4:
            raise malformed("it ends too early")
        size = 4 + (i64(read_i32_be(data, pos)) & 0xFFFFFFFF)
    elif kind == 7:
        size = 4
    elif kind == 8:
        size = 8
    elif kind == 6:
        size = 2
    elif kind == 9:
        size = 16
    else:
        raise malformed(f"an unknown type, {int(code):#04x}")
    if size > end - pos:
        raise malformed("a size exceeds the available bytes")
    return pos + size


class Reader:
    """Decodes the values between `pos` and `end`."""

    def __init__(self, data: bytes, pos: i64, end: i64) -> None:
        self.data = data
        self.pos: i64 = pos
        self.end: i64 = end
        self._entries: i64 = 0

    def value(self, depth: i64 = 0) -> object:
        """Decode the next value.

        Raises:
            Amqp10Error: it is malformed.
        """
        if depth > DEPTH_MAX:
            raise malformed(f"values nested deeper than {DEPTH_MAX}")
        code: i64 = self._byte()
        if code == 0:
            self._count(1)
            descriptor = self.value(depth + 1)
            return Described(descriptor, self.value(depth + 1))
        return self._of(code, depth)

    def _byte(self) -> i64:
        if self.pos >= self.end:
            raise malformed("it ends too early")
        found: i64 = self.data[self.pos]
        self.pos += 1
        return found

    def _count(self, entries: i64) -> None:
        self._entries += entries
        if self._entries > ENTRIES_MAX:
            raise malformed(f"more than {ENTRIES_MAX} elements")

    def _need(self, size: i64) -> i64:
        """Skip `size` bytes; return where they begin."""
        start: i64 = self.pos
        if size > self.end - start:
            raise malformed("a size exceeds the available bytes")
        self.pos = start + size
        return start

    def _size(self, code: i64) -> i64:
        """Read a u8 or a u32."""
        if code >> 4 & 1 == 0:
            return self._byte()
        return i64(read_i32_be(self.data, self._need(4))) & 0xFFFFFFFF

    def _of(self, code: i64, depth: i64) -> object:
        kind: i64 = code >> 4
        if kind == 4:
            return _empty(code)
        if kind == 10 or kind == 11:
            size: i64 = self._size(code)
            start: i64 = self._need(size)
            return _variable(code, self.data[start : start + size])
        if kind >= 12:
            return self._compound(code, depth)
        return self._fixed(code)

    def _fixed(self, code: i64) -> object:
        data = self.data
        kind: i64 = code >> 4
        if kind == 5:
            byte = int(self._byte())
            signed = byte - 256 if byte > 127 else byte
            if code == 0x50:
                return UByte(byte)
            if code == 0x51:
                return Byte(signed)
            if code == SMALL_UINT:
                return UInt(byte)
            if code == SMALL_ULONG:
                return ULong(byte)
            if code == 0x54:
                return Int(signed)
            if code == 0x55:
                return signed
            if code == BOOLEAN and byte < 2:
                return byte == 1
        elif kind == 6:
            at: i64 = self._need(2)
            short = int(read_i16_be(data, at))
            if code == 0x60:
                return UShort(short & 0xFFFF)
            if code == 0x61:
                return Short(short)
        elif kind == 7:
            at = self._need(4)
            if code == 0x72:
                return Float(read_f32_be(data, at))
            if code == 0x74:
                return Decimal(data[at : at + 4])
            word = int(read_i32_be(data, at))
            if code == UINT:
                return UInt(word & 0xFFFFFFFF)
            if code == 0x71:
                return Int(word)
            if code == 0x73:
                point = word & 0xFFFFFFFF
                if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                    raise malformed("not a valid char")
                return Char(chr(point))
        elif kind == 8:
            at = self._need(8)
            if code == 0x82:
                return float(read_f64_be(data, at))
            if code == 0x84:
                return Decimal(data[at : at + 8])
            number = int(read_i64_be(data, at))
            if code == 0x80:
                return ULong(number & 0xFFFFFFFFFFFFFFFF)
            if code == 0x81:
                return number
            if code == 0x83:
                return Timestamp(number)
        elif kind == 9:
            at = self._need(16)
            if code == 0x94:
                return Decimal(data[at : at + 16])
            if code == 0x98:
                return Uuid(data[at : at + 16])
        raise malformed(f"an unknown type, {int(code):#04x}")

    def _compound(self, code: i64, depth: i64) -> object:
        if code not in (0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0):
            raise malformed(f"an unknown type, {int(code):#04x}")
        size: i64 = self._size(code)
        if size > self.end - self.pos:
            raise malformed("a size exceeds the available bytes")
        outer: i64 = self.end
        inner: i64 = self.pos + size
        self.end = inner
        count: i64 = self._size(code)
        self._count(count)
        found: object
        if code >> 4 >= 14:
            found = self._array(count, depth)
        elif code & 1:
            found = self._map(count, depth)
        else:
            if count > inner - self.pos:
                raise malformed("a list with more elements than bytes")
            elements: list[object] = []
            while count > 0:
                elements.append(self.value(depth + 1))
                count -= 1
            found = elements
        if self.pos != inner:
            raise malformed("a size that does not add up")
        self.end = outer
        return found

    def _map(self, count: i64, depth: i64) -> dict[object, object]:
        if count % 2 or count > self.end - self.pos:
            raise malformed("a map with an odd number of elements, or more than bytes")
        found: dict[object, object] = {}
        while count > 0:
            key = self.value(depth + 1)
            if isinstance(key, list | dict | Array | Described):
                raise malformed("a map with a compound key")
            found[key] = self.value(depth + 1)
            count -= 2
        return found

    def _array(self, count: i64, depth: i64) -> Array:
        code: i64 = self._byte()
        descriptor: object = None
        if code == 0:
            descriptor = self.value(depth + 1)
            code = self._byte()
            if code == 0:
                raise malformed("an array of values that are described twice")
        if depth + 1 > DEPTH_MAX:
            raise malformed(f"values nested deeper than {DEPTH_MAX}")
        elements: list[object] = []
        while count > 0:
            elements.append(self._of(code, depth + 1))
            count -= 1
        return Array(int(code), elements, descriptor)


def _empty(code: i64) -> object:
    if code == NULL:
        return None
    if code == TRUE:
        return True
    if code == FALSE:
        return False
    if code == UINT_0:
        return UInt(0)
    if code == ULONG_0:
        return ULong(0)
    if code == LIST_0:
        empty: list[object] = []
        return empty
    raise malformed(f"an unknown type, {int(code):#04x}")


def _variable(code: i64, raw: bytes) -> object:
    low: i64 = code & 15
    if low == 0:
        return raw
    try:
        if low == 1:
            return raw.decode()
        if low == 3:
            return Symbol(raw.decode("ascii"))
    except UnicodeDecodeError:
        raise malformed("a string that is not UTF-8, or a symbol that is not ASCII") from None
    raise malformed(f"an unknown type, {int(code):#04x}")


def decode(data: bytes) -> object:
    """Decode one value that is all of `data`.

    Raises:
        Amqp10Error: the data is not exactly one value.
    """
    reader = Reader(data, 0, len(data))
    found = reader.value()
    if reader.pos != len(data):
        raise malformed("bytes after the value")
    return found


def encode(value: object) -> bytes:
    """Encode one value, with the smallest constructor of its type.

    Raises:
        ValueError: a number is out of the range of its type.
    """
    out = BytesWriter()
    write_value(out, value)
    return out.getvalue()


def _signed(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big", signed=True)
    except OverflowError:
        raise ValueError(f"{value} is out of range for {size} bytes") from None


def _unsigned(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise ValueError(f"{value} is out of range for {size} unsigned bytes") from None


def _is_int(value: object) -> bool:
    # A function of its own: after a check for int in the caller, compiled code would no longer know the class.
    return isinstance(value, int)


def write_value(out: BytesWriter, value: object) -> None:
    """Encode `value` and append it to `out`."""
    if value is None:
        out.append(NULL)
    elif isinstance(value, bool):
        out.append(TRUE if value else FALSE)
    elif _is_int(value):
        _write_int(out, value)
    elif isinstance(value, str):
        _write_text(out, value)
    elif isinstance(value, bytes):
        _write_bytes(out, value)
    elif isinstance(value, Float):
        out.append(0x72)
        write_f32_be(out, float(value))
    elif isinstance(value, float):
        out.append(0x82)
        write_f64_be(out, value)
    elif isinstance(value, list):
        write_list(out, value)
    elif isinstance(value, dict):
        parts = BytesWriter()
        for key, each in value.items():
            write_value(parts, key)
            write_value(parts, each)
        _write_compound(out, 0xC1, 2 * len(value), parts.getvalue())
    elif isinstance(value, Described):
        out.append(0)
        write_value(out, value.descriptor)
        write_value(out, value.value)
    elif isinstance(value, Array):
        _write_array(out, value)
    else:
        raise AssertionError(f"no type for {type(value)}")


def write_list(out: BytesWriter, values: list[object]) -> None:
    """Encode a list."""
    if not values:
        out.append(LIST_0)
        return
    parts = BytesWriter()
    for each in values:
        write_value(parts, each)
    _write_compound(out, 0xC0, len(values), parts.getvalue())


def _write_compound(out: BytesWriter, code: i64, count: i64, content: bytes) -> None:
    """Write size, count and content with the smallest constructor that fits; `code`: the one with sizes of one byte."""
    size: i64 = len(content)
    if size < 255 and count < 256:
        out.append(u8(code))
        out.append(u8(size + 1))
        out.append(u8(count))
    else:
        out.append(u8(code + 16))
        write_i32_be(out, i32(size + 4))
        write_i32_be(out, i32(count))
    out.write(content)


def _write_int(out: BytesWriter, value: object) -> None:
    if isinstance(value, UInt):
        if value == 0:
            out.append(UINT_0)
        elif 0 < value < 256:
            out.append(SMALL_UINT)
            out.append(u8(i64(value)))
        else:
            out.append(UINT)
            out.write(_unsigned(value, 4))
    elif isinstance(value, ULong):
        if value == 0:
            out.append(ULONG_0)
        elif 0 < value < 256:
            out.append(SMALL_ULONG)
            out.append(u8(i64(value)))
        else:
            out.append(0x80)
            out.write(_unsigned(value, 8))
    elif isinstance(value, UByte):
        out.append(0x50)
        out.write(_unsigned(value, 1))
    elif isinstance(value, UShort):
        out.append(0x60)
        out.write(_unsigned(value, 2))
    elif isinstance(value, Byte):
        out.append(0x51)
        out.write(_signed(value, 1))
    elif isinstance(value, Short):
        out.append(0x61)
        out.write(_signed(value, 2))
    elif isinstance(value, Int):
        small = -128 <= value <= 127
        out.append(0x54 if small else 0x71)
        out.write(_signed(value, 1 if small else 4))
    elif isinstance(value, Timestamp):
        out.append(0x83)
        out.write(_signed(value, 8))
    elif isinstance(value, int):
        small = -128 <= value <= 127
        out.append(0x55 if small else 0x81)
        out.write(_signed(value, 1 if small else 8))


def _write_text(out: BytesWriter, value: object) -> None:
    if isinstance(value, Char):
        out.append(0x73)
        out.write(ord(value).to_bytes(4, "big"))
    elif isinstance(value, Symbol):
        _write_variable(out, 0xA3, value.encode("ascii", "replace"))
    elif isinstance(value, str):
        _write_variable(out, 0xA1, value.encode("utf-8", "replace"))


def _write_bytes(out: BytesWriter, value: object) -> None:
    if isinstance(value, Uuid):
        out.append(0x98)
        out.write(value)
    elif isinstance(value, Decimal):
        out.append({4: 0x74, 8: 0x84, 16: 0x94}[len(value)])
        out.write(value)
    elif isinstance(value, bytes):
        _write_variable(out, BINARY_8, value)


def _write_variable(out: BytesWriter, code: i64, raw: bytes) -> None:
    size: i64 = len(raw)
    if size < 256:
        out.append(u8(code))
        out.append(u8(size))
    else:
        out.append(u8(code + 16))
        write_i32_be(out, i32(size))
    out.write(raw)


# The size of an array's elements by the first half of their constructor, if that fixes the size.
_WIDTHS: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
# The constructor of each type that any of its values fits into, for arrays: all elements have the same.
_WIDEST: Final = {
    0x43: 0x70,
    0x52: 0x70,
    0x44: 0x80,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0x41: 0x56,
    0x42: 0x56,
    0x45: 0xD0,
}


def _write_array(out: BytesWriter, array: Array) -> None:
    code = array.code
    if code >= 0xA0:
        code |= 0x10
    code = _WIDEST.get(code, code)
    parts = BytesWriter()
    if array.descriptor is not None:
        parts.append(0)
        write_value(parts, array.descriptor)
    parts.append(u8(i64(code)))
    for each in array.elements:
        parts.write(_element(code, each))
    content = parts.getvalue()
    out.append(0xF0)
    write_i32_be(out, i32(len(content) + 4))
    write_i32_be(out, i32(len(array.elements)))
    out.write(content)


def _element(code: int, value: object) -> bytes:
    """Encode an element of an array for the constructor `code`, the widest of its type."""
    raw = encode(value)
    found = raw[0]
    if found == code:
        return raw[1:]
    if code == BOOLEAN:
        return b"\x01" if found == TRUE else b"\x00"
    if found == LIST_0:
        return (4).to_bytes(4, "big") + bytes(4)
    if code >= 0xC0:  # sizes and counts of a byte each; the size counts the count
        return (raw[1] + 3).to_bytes(4, "big") + raw[2].to_bytes(4, "big") + raw[3:]
    if code >= 0xA0:
        return raw[1].to_bytes(4, "big") + raw[2:]
    width = _WIDTHS[code >> 4]
    signed = code in (0x71, 0x81)
    return int.from_bytes(raw[1:], "big", signed=signed).to_bytes(width, "big", signed=signed)
