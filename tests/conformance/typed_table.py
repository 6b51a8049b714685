"""Field tables with the tag of every value, which ``warren.amqp.field_table`` forgets on decoding."""

from __future__ import annotations

from typing import Any

Typed = tuple[str, Any]

_INTEGER_BYTES = {"b": 1, "s": 2, "I": 4, "l": 8}


def typed_table(encoded: bytes) -> dict[str, Typed]:
    """Decode a table with its length prefix; a value is its tag and what it holds, entries of arrays and tables too."""
    table, end = _table(encoded, 0)
    assert end == len(encoded)
    return table


def text(value: str) -> Typed:
    """Return what a longstr is decoded to."""
    return "S", value


def texts(*values: str) -> Typed:
    """Return what an array of longstr is decoded to."""
    return "A", [text(value) for value in values]


def _table(data: bytes, at: int) -> tuple[dict[str, Typed], int]:
    end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    at += 4
    table: dict[str, Typed] = {}
    while at < end:
        name = data[at + 1 : at + 1 + data[at]].decode()
        assert name not in table, f"{name} twice"
        table[name], at = _value(data, at + 1 + data[at])
    assert at == end
    return table, end


def _value(data: bytes, at: int) -> tuple[Typed, int]:
    tag = chr(data[at])
    at += 1
    if tag in _INTEGER_BYTES:
        end = at + _INTEGER_BYTES[tag]
        return (tag, int.from_bytes(data[at:end], "big", signed=True)), end
    if tag == "t":
        return (tag, data[at] == 1), at + 1
    if tag == "T":
        return (tag, int.from_bytes(data[at : at + 8], "big")), at + 8
    if tag == "V":
        return (tag, None), at
    if tag == "F":
        table, end = _table(data, at)
        return (tag, table), end
    end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    at += 4
    if tag == "A":
        items = []
        while at < end:
            item, at = _value(data, at)
            items.append(item)
        assert at == end
        return (tag, items), end
    assert tag in "Sx", f"unexpected tag {tag}"
    raw = data[at:end]
    try:
        return (tag, raw.decode()), end
    except UnicodeDecodeError:
        return (tag, raw), end
