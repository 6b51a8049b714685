"""Headers tables, and the form of their values in each format of a column.

    table   = length:u32 pair*            pair  = key:shortstr value
    array   = length:u32 value*           value = tag:char payload           all integers big-endian

    tag  payload            `map`, a text              `typed`: which fields     `json`
    t    u8                 true, false                i: the octet              true, false
    b    i8                 digits                     i                         number
    B    u8                 digits                     i                         number
    s    i16                digits                     i                         number
    u    u16                digits                     i                         number
    I    i32                digits                     i                         number
    i    u32                digits                     i                         number
    l L  i64                digits                     i                         number
    f d  binary32, 64       as Python's repr           d; not a number: b, too   number; not finite: as text
    D    u8 scale, i32      digits with a point        s: the same               number
    T    u64 seconds        digits                     i, as if it had a sign    number
    S    u32 length, bytes  itself, or base64          s; not UTF-8: b           string: itself, or base64
    x    u32 length, bytes  itself, or base64          b                         string: itself, or base64
    A    array              JSON                       json, and b: the bytes    array
    F    table              JSON                       json, and b: the bytes    object
    V    nothing            null                       none                      null

1. Base64 stands for bytes that are not UTF-8. In `typed` field t is the tag, and the bytes of a string, an array or a
   table are without their length: so a decoded value is encoded to the same bytes.
2. The checks are those of the broker, with the same rules: at most `DEPTH_MAX` tables in one another and
   `ENTRIES_MAX` entries, known tags, lengths that add up, keys in UTF-8. Of equal keys the last one counts.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from warren.spark_bridge.schema import JSON, MAP

DEPTH_MAX: Final = 16
ENTRIES_MAX: Final = 4096
# Tags with a payload of fixed size: the number of bytes, and NumPy's name for the number.
NUMBERS: Final = {
    "t": (1, ">u1"),
    "b": (1, ">i1"),
    "B": (1, ">u1"),
    "s": (2, ">i2"),
    "u": (2, ">u2"),
    "I": (4, ">i4"),
    "i": (4, ">u4"),
    "l": (8, ">i8"),
    "L": (8, ">i8"),
    "T": (8, ">u8"),
    "f": (4, ">f4"),
    "d": (8, ">f8"),
}
FORMATS: Final = {tag: struct.Struct(">" + letter) for tag, letter in zip("tbBsuIilLTfd", "BbBhHiIqqQfd", strict=True)}
SIZES: Final = {**{tag: size for tag, (size, _) in NUMBERS.items()}, "D": 5, "V": 0}
WITH_LENGTH: Final = "SxAF"
LENGTH: Final = struct.Struct(">I")
DECIMAL: Final = struct.Struct(">Bi")


class Malformed(Exception):
    """The error of one table."""


# --- values as text ----------------------------------------------------------------------------------------------


def bytes_text(raw: bytes) -> str:
    """Return bytes as text: themselves when they are UTF-8, else in base64."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return base64.b64encode(raw).decode()


def float_text(value: float) -> str:
    """Return a number as text: as Python's repr has it, with NaN and Infinity spelt as in JSON."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def decimal_text(scale: int, digits: int) -> str:
    """Return a decimal as text, with as many places as it has."""
    text = f"{abs(digits):0{scale + 1}d}"
    sign = "-" if digits < 0 else ""
    return sign + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def float_json(value: float) -> str:
    return float_text(value) if math.isfinite(value) else quoted(float_text(value))


# --- one table at a time -----------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A pair of a table: where its payload is, the length of those that have one not included."""

    tag: str
    start: int
    end: int


class TableReader:
    """Read tables with every bound checked. `entries` counts over everything that is read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.entries = 0

    def pairs(self, pos: int, end: int) -> Iterator[tuple[str, Entry]]:
        """Yield the pairs that fill [pos, end)."""
        data = self.data
        while pos < end:
            self.count_entry()
            key_end = pos + 1 + data[pos]
            if key_end >= end:
                raise Malformed("a key is not whole")
            try:
                key = data[pos + 1 : key_end].decode()
            except UnicodeDecodeError:
                raise Malformed("a key is not UTF-8") from None
            entry = self.entry(key_end, end)
            yield key, entry
            pos = entry.end

    def entry(self, pos: int, end: int) -> Entry:
        """Return the value whose tag is at `pos`."""
        tag = chr(self.data[pos])
        size = SIZES.get(tag)
        start = pos + 1
        if size is None:
            if tag not in WITH_LENGTH:
                raise Malformed(f"unknown type tag {self.data[pos]}")
            start += 4
            if start > end:
                raise Malformed("a length is not whole")
            size = int.from_bytes(self.data[pos + 1 : start], "big")
        if size > end - start:
            raise Malformed("a value exceeds what is around it")
        return Entry(tag, start, start + size)

    def count_entry(self) -> None:
        self.entries += 1
        if self.entries > ENTRIES_MAX:
            raise Malformed(f"more than {ENTRIES_MAX} entries")

    def json(self, entry: Entry, depth: int) -> str:
        """Return a value, which is in a table of this depth, as JSON."""
        tag, start, end = entry
        data = self.data
        if tag in "Sx":
            return quoted(bytes_text(data[start:end]))
        if tag == "F":
            return self.json_object(start, end, depth + 1)
        if tag == "A":
            if depth + 1 > DEPTH_MAX:
                raise Malformed(f"nested deeper than {DEPTH_MAX}")
            items = []
            while start < end:
                self.count_entry()
                item = self.entry(start, end)
                items.append(self.json(item, depth + 1))
                start = item.end
            return "[" + ",".join(items) + "]"
        if tag == "V":
            return "null"
        if tag in "fd":
            return float_json(FORMATS[tag].unpack_from(data, start)[0])
        text = self.text(entry, depth)
        assert text is not None
        return text

    def json_object(self, start: int, end: int, depth: int) -> str:
        """Return the table that fills [start, end) as JSON."""
        if depth > DEPTH_MAX:
            raise Malformed(f"nested deeper than {DEPTH_MAX}")
        pairs = {key: self.json(entry, depth) for key, entry in self.pairs(start, end)}
        return "{" + ",".join(f"{quoted(key)}:{text}" for key, text in pairs.items()) + "}"

    def text(self, entry: Entry, depth: int) -> str | None:
        """Return a value as text, None for nothing."""
        tag, start, end = entry
        data = self.data
        if tag in "Sx":
            return bytes_text(data[start:end])
        if tag in "AF":
            return self.json(entry, depth)
        if tag == "V":
            return None
        if tag == "t":
            return "true" if data[start] else "false"
        if tag == "D":
            return decimal_text(*DECIMAL.unpack_from(data, start))
        value = FORMATS[tag].unpack_from(data, start)[0]
        return float_text(value) if tag in "fd" else str(value)

    def typed(self, entry: Entry, depth: int) -> dict[str, Any]:
        """Return a value as the fields of a struct."""
        tag, start, end = entry
        raw = self.data[start:end]
        fields: dict[str, Any] = {"t": tag}
        if tag == "S":
            try:
                fields["s"] = raw.decode()
            except UnicodeDecodeError:
                fields["b"] = raw
        elif tag == "x":
            fields["b"] = raw
        elif tag in "AF":
            fields["json"] = self.json(entry, depth)
            fields["b"] = raw
        elif tag == "D":
            fields["s"] = self.text(entry, depth)
        elif tag in "fd":
            value = FORMATS[tag].unpack(raw)[0]
            fields["d"] = value
            if value != value:
                fields["b"] = raw
        elif tag != "V":
            value = FORMATS[tag].unpack(raw)[0]
            fields["i"] = value - (1 << 64) if value >= 1 << 63 else value
        return fields


def one_table(reader: TableReader, start: int, end: int, headers_format: str) -> Any:
    """Return the table that fills [start, end) as Arrow takes it in."""
    if headers_format == JSON:
        return reader.json_object(start, end, 1)
    of_value = reader.text if headers_format == MAP else reader.typed
    made: dict[str, Any] = {key: of_value(entry, 1) for key, entry in reader.pairs(start, end)}
    return list(made.items())
