"""Field tables: the typed dictionaries of AMQP, decoded to Python values or checked and left as bytes.

    table   = length:u32 pair*            pair  = key:shortstr value
    array   = length:u32 value*           value = tag:char payload

    tag  payload          Python            tag  payload             Python
    t    u8               bool              f    binary32            float
    b    i8               int               d    binary64            float
    B    u8               int               D    u8 scale, i32       Decimal
    s    i16              int               T    u64 seconds         Timestamp
    u    u16              int               S    u32 length, bytes   str, or bytes when not UTF-8
    I    i32              int               x    u32 length, bytes   bytes
    i    u32              int               A    array               list
    l L  i64              int               F    table               dict
                                            V    nothing             None

1. Nothing is allocated by an announced length: every length is checked against the received bytes first.
2. Nesting deeper than `DEPTH_MAX`, more than `ENTRIES_MAX` entries in all, an unknown tag or a length that does not
   add up is a syntax error (502); a key that is not UTF-8 a frame error (501).
3. Duplicate keys: the last one wins when decoded, all stay when the bytes travel.

Source: RabbitMQ's table of field types, which differs from the 0-9-1 text (``s`` is a short integer there).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from librt.strings import (
    BytesWriter,
    read_f32_be,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i32, i64, mypyc_attr, u8

from warren.amqp.errors import FRAME_ERROR, SYNTAX_ERROR, ConnectionException

DEPTH_MAX: Final = 16
ENTRIES_MAX: Final = 4096
FLAT_TABLE_BYTES: Final = ENTRIES_MAX  # so long at most, a table has not too many entries
EMPTY_TABLE: Final = b"\x00\x00\x00\x00"

Value = object
Table = dict[str, object]


@mypyc_attr(native_class=False)
class Timestamp(int):
    """Seconds since the epoch, unsigned 64 bit: an integer that knows it was a timestamp."""


TYPE_NAMES: Final[dict[str, str]] = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "T": "timestamp",
    "S": "longstr",
    "x": "binary",
    "A": "array",
    "F": "table",
    "V": "void",
}


def _malformed(what: str) -> ConnectionException:
    return ConnectionException(SYNTAX_ERROR, f"malformed field table: {what}")


class TableWalker:
    """Step through encoded tables with every bound checked; shared by decoding, checking and look-up."""

    def __init__(self, data: bytes, pos: i64, end: i64) -> None:
        self.data = data
        self.pos: i64 = pos
        self.end: i64 = end
        self.entries: i64 = 0

    def need(self, size: i64) -> None:
        """Make sure that `size` bytes are left before the end of the enclosing slice."""
        if size < 0 or self.end - self.pos < size:
            raise _malformed("a length exceeds the enclosing table")

    def open_length(self) -> i64:
        """Read a u32 length and return the position where its content ends."""
        self.need(4)
        length: i64 = i64(read_i32_be(self.data, self.pos)) & 0xFFFFFFFF
        self.pos += 4
        self.need(length)
        return self.pos + length

    def count_entry(self) -> None:
        self.entries += 1
        if self.entries > ENTRIES_MAX:
            raise _malformed(f"more than {ENTRIES_MAX} entries")

    def key(self) -> str:
        self.need(1)
        length: i64 = self.data[self.pos]
        self.pos += 1
        self.need(length)
        raw = self.data[self.pos : self.pos + length]
        self.pos += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise ConnectionException(FRAME_ERROR, "Malformed UTF-8 in shortstr") from None

    def skip_key(self) -> None:
        """Step over a key that `key` could decode, without building it."""
        start: i64 = self.pos
        self.need(1)
        length: i64 = self.data[self.pos]
        self.pos += 1
        self.need(length)
        key_end: i64 = self.pos + length
        while self.pos < key_end and self.data[self.pos] < 0x80:
            self.pos += 1
        if self.pos < key_end:  # not ASCII: leave the verdict to the decoder
            self.pos = start
            self.key()

    def skip_value(self, depth: i64) -> None:
        """Check one tagged value and step over it."""
        self.need(1)
        tag: i64 = self.data[self.pos]
        self.pos += 1
        size: i64 = -1
        if tag == 83 or tag == 120:  # S x
            self.pos = self.open_length()
            return
        if tag == 73 or tag == 105 or tag == 102:  # I i f
            size = 4
        elif tag == 108 or tag == 76 or tag == 84 or tag == 100:  # l L T d
            size = 8
        elif tag == 116 or tag == 98 or tag == 66:  # t b B
            size = 1
        elif tag == 115 or tag == 117:  # s u
            size = 2
        elif tag == 86:  # V
            size = 0
        elif tag == 68:  # D
            size = 5
        elif tag == 70:  # F
            self.skip_table(depth + 1)
            return
        elif tag == 65:  # A
            if depth + 1 > DEPTH_MAX:
                raise _malformed(f"nested deeper than {DEPTH_MAX}")
            content_end: i64 = self.open_length()
            outer_end: i64 = self.end
            self.end = content_end
            while self.pos < content_end:
                self.count_entry()
                self.skip_value(depth + 1)
            self.end = outer_end
            return
        else:
            raise _malformed(f"unknown type tag {int(tag)}")
        self.need(size)
        self.pos += size

    def skip_table(self, depth: i64) -> None:
        """Check one table, its length prefix included, and step over it."""
        if depth > DEPTH_MAX:
            raise _malformed(f"nested deeper than {DEPTH_MAX}")
        content_end: i64 = self.open_length()
        outer_end: i64 = self.end
        self.end = content_end
        while self.pos < content_end:
            self.count_entry()
            self.skip_key()
            self.skip_value(depth)
        self.end = outer_end

    def table(self, depth: i64) -> Table:
        if depth > DEPTH_MAX:
            raise _malformed(f"nested deeper than {DEPTH_MAX}")
        content_end: i64 = self.open_length()
        outer_end: i64 = self.end
        self.end = content_end
        result: Table = {}
        while self.pos < content_end:
            self.count_entry()
            key = self.key()
            result[key] = self.value(depth)
        self.end = outer_end
        return result

    def array(self, depth: i64) -> list[object]:
        if depth > DEPTH_MAX:
            raise _malformed(f"nested deeper than {DEPTH_MAX}")
        content_end: i64 = self.open_length()
        outer_end: i64 = self.end
        self.end = content_end
        result: list[object] = []
        while self.pos < content_end:
            self.count_entry()
            result.append(self.value(depth))
        self.end = outer_end
        return result

    def value(self, depth: i64) -> object:
        """Decode one tagged value."""
        self.need(1)
        tag = self.data[self.pos]
        if tag == 70:  # F
            self.pos += 1
            return self.table(depth + 1)
        if tag == 65:  # A
            self.pos += 1
            return self.array(depth + 1)
        start: i64 = self.pos + 1
        self.skip_value(depth)
        return _scalar(tag, self.data, start, self.pos)


def _scalar(tag: int, data: bytes, start: i64, end: i64) -> object:
    if tag == 83:  # S
        raw = data[start + 4 : end]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    if tag == 120:  # x
        return data[start + 4 : end]
    if tag == 116:  # t
        return data[start] != 0
    if tag == 73:  # I
        return int(read_i32_be(data, start))
    if tag == 105:  # i
        return int(i64(read_i32_be(data, start)) & 0xFFFFFFFF)
    if tag == 108 or tag == 76:  # l L
        return int(read_i64_be(data, start))
    if tag == 84:  # T
        return Timestamp(int(read_i64_be(data, start)) & 0xFFFFFFFFFFFFFFFF)
    if tag == 115:  # s
        return int(read_i16_be(data, start))
    if tag == 117:  # u
        return int(read_i16_be(data, start)) & 0xFFFF
    if tag == 98:  # b
        byte = int(data[start])
        return byte - 256 if byte > 127 else byte
    if tag == 66:  # B
        return int(data[start])
    if tag == 102:  # f
        return read_f32_be(data, start)
    if tag == 100:  # d
        return read_f64_be(data, start)
    if tag == 68:  # D
        return Decimal(int(read_i32_be(data, start + 1))).scaleb(-int(data[start]))
    return None  # V


def decode_table(data: bytes) -> Table:
    """Decode `data`, one encoded table with its length prefix and nothing after it.

    Raises:
        ConnectionException: 502 or 501, see the module's invariant 2.
    """
    walker = TableWalker(data, 0, len(data))
    table = walker.table(1)
    if walker.pos != walker.end:
        raise _malformed("bytes after its end")
    return table


def value_end(data: bytes, pos: i64) -> i64:
    """Return where the tagged value at `pos` ends, in a table that was checked before."""
    tag: i64 = data[pos]
    if tag == 73 or tag == 105 or tag == 102:  # I i f
        return pos + 5
    if tag == 83 or tag == 120 or tag == 70 or tag == 65:  # S x F A
        return pos + 5 + (i64(read_i32_be(data, pos + 1)) & 0xFFFFFFFF)
    if tag == 108 or tag == 76 or tag == 84 or tag == 100:  # l L T d
        return pos + 9
    if tag == 116 or tag == 98 or tag == 66:  # t b B
        return pos + 2
    if tag == 115 or tag == 117:  # s u
        return pos + 3
    return pos + 6 if tag == 68 else pos + 1  # D, V


def flat_table_end(data: bytes, pos: i64, end: i64) -> i64:
    """Return where the table at `pos` ends if it is as most are: ASCII keys, no nesting, not long; else -1.

    A rejected table may still be valid, or not: `TableWalker` has the verdict.
    """
    if end - pos < 4:
        return -1
    length: i64 = i64(read_i32_be(data, pos)) & 0xFFFFFFFF
    pos += 4
    if length > end - pos or length > FLAT_TABLE_BYTES:
        return -1
    end = pos + length
    while pos < end:
        key_end: i64 = pos + 1 + i64(data[pos])
        if key_end >= end:
            return -1
        pos += 1
        while pos < key_end:
            if data[pos] >= 0x80:
                return -1
            pos += 1
        tag: i64 = data[pos]
        if tag == 83:  # S
            if end - pos < 5:
                return -1
            pos += 5 + (i64(read_i32_be(data, pos + 1)) & 0xFFFFFFFF)
        elif tag == 73 or tag == 105:  # I i
            pos += 5
        elif tag == 108 or tag == 76 or tag == 84 or tag == 100:  # l L T d
            pos += 9
        elif tag == 116 or tag == 98 or tag == 66:  # t b B
            pos += 2
        elif tag == 86:  # V
            pos += 1
        else:
            return -1
    return pos if pos == end else -1


def is_valid_table(data: bytes) -> bool:
    """Tell whether an encoded table that was put together may be sent: neither too deep nor with too many entries."""
    try:
        TableWalker(data, 0, len(data)).skip_table(1)
    except ConnectionException:
        return False
    return True


def find_tag(data: bytes, wanted: str) -> str:
    """Return the type tag of the last entry named `wanted` in a valid encoded table, or ``""``."""
    walker = TableWalker(data, 4, len(data))
    found = ""
    while walker.pos < walker.end:
        key = walker.key()
        tag = chr(data[walker.pos])
        walker.skip_value(1)
        if key == wanted:
            found = tag
    return found


def maybe_value(data: bytes, wanted: bytes) -> object:
    """Return the value of the last entry named `wanted` in a table that was checked before; None: not found.

    The other entries are not decoded, however many the table has.
    """
    size: i64 = len(wanted)
    end: i64 = len(data)
    pos: i64 = 4
    found: i64 = -1
    while pos < end:
        value: i64 = pos + 1 + i64(data[pos])
        if value - pos - 1 == size and data[pos + 1 : value] == wanted:
            found = value
        pos = value_end(data, value)
    return None if found < 0 else TableWalker(data, found, end).value(1)


def without_key(data: bytes, unwanted: bytes) -> bytes:
    """Return a valid encoded table without its entries named `unwanted`; everything else keeps its bytes."""
    walker = TableWalker(data, 4, len(data))
    kept: list[bytes] = []
    while walker.pos < walker.end:
        start: i64 = walker.pos
        walker.skip_key()
        key = data[start + 1 : walker.pos]
        walker.skip_value(1)
        if key != unwanted:
            kept.append(data[start : walker.pos])
    return with_length(b"".join(kept))


def with_length(content: bytes) -> bytes:
    """Prefix the u32 length."""
    return len(content).to_bytes(4, "big") + content


def encode_table(table: Table) -> bytes:
    """Encode `table` with its length prefix, choosing for each Python value the tag that clients read best.

    int becomes ``I`` when 32 bits hold it, else ``l``; str ``S``; bytes ``x``; float ``d``; None ``V``.

    Raises:
        ValueError: a key is longer than 255 bytes, or a number is out of the range of its tag.
    """
    out = BytesWriter()
    for key, value in table.items():
        raw = key.encode()
        if len(raw) > 255:
            raise ValueError("a key is longer than 255 bytes")
        out.append(u8(len(raw)))
        out.write(raw)
        _write_value(out, value)
    return with_length(out.getvalue())


def _write_value(out: BytesWriter, value: object) -> None:
    if isinstance(value, bool):
        out.append(116)
        out.append(1 if value else 0)
    elif isinstance(value, Timestamp):
        if not 0 <= value < 1 << 64:
            raise ValueError("a timestamp has 64 bits and no sign")
        out.append(84)
        out.write(int(value).to_bytes(8, "big"))
    elif isinstance(value, int):
        if -0x80000000 <= value <= 0x7FFFFFFF:
            out.append(73)
            write_i32_be(out, i32(value))
        else:
            out.append(108)
            write_i64_be(out, i64(value))
    elif isinstance(value, str):
        raw = value.encode()
        out.append(83)
        out.write(with_length(raw))
    elif isinstance(value, bytes):
        out.append(120)
        out.write(with_length(value))
    elif isinstance(value, float):
        out.append(100)
        write_f64_be(out, value)
    elif isinstance(value, dict):
        out.append(70)
        out.write(encode_table(value))
    elif isinstance(value, list):
        out.append(65)
        items = BytesWriter()
        for item in value:
            _write_value(items, item)
        out.write(with_length(items.getvalue()))
    elif isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        scale = max(0, -exponent)
        if scale > 255:
            raise ValueError("a decimal has at most 255 places")
        out.append(68)
        out.append(u8(scale))
        write_i32_be(out, i32(int(value.scaleb(scale))))
    else:
        assert value is None, f"no field type for {type(value)}"
        out.append(86)
