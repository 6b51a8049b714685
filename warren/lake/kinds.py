"""Kinds of columns that are read from bodies: which values each takes, and how a column meets values of other kinds.

    kind       takes                                      Arrow
    boolean    true, false                                bool
    int        integers of 32 bits                        int32
    long       integers of 64 bits, also 3.0              int64
    float      numbers, rounded; integers that it has     float
    double     numbers; integers that it has exactly      double
    string     texts; objects and arrays as in the body   string
    timestamp  moments; texts as in RFC 3339, with a zone timestamp[us, UTC]
    date       days; texts as in 2026-11-24               date32
    binary     bytes, which JSON does not have            binary

1. A value that its column does not take is refused, never changed: so a row never differs from its message. A number
   that is not an integer becomes the nearest double.
2. A column is widened from int to long and from float to double, in a table that can do that, and by a declaration
   only; columns that are found in bodies are long and double from the start.
3. The kind of a column that is found in bodies depends on the values of one commit, in their order; then it stays.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

BOOLEAN: Final = "boolean"
INT: Final = "int"
LONG: Final = "long"
FLOAT: Final = "float"
DOUBLE: Final = "double"
STRING: Final = "string"
TIMESTAMP: Final = "timestamp"
DATE: Final = "date"
BINARY: Final = "binary"

ARROW: Final[dict[str, pa.DataType]] = {
    BOOLEAN: pa.bool_(),
    INT: pa.int32(),
    LONG: pa.int64(),
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    DATE: pa.date32(),
    BINARY: pa.binary(),
}
WIDER: Final = {INT: LONG, FLOAT: DOUBLE}
EXACT_MAX: Final = 1 << 53  # up to here a double has each integer
_EXACT_MAX: Final = {FLOAT: 1 << 24, DOUBLE: EXACT_MAX}
_FLOAT_END: Final = float((1 << 128) - (1 << 103))  # from here on the nearest of 32 bits is infinity
_FLOAT_BEGIN: Final = 2.0**-150  # up to here the nearest of 32 bits is 0
_MOMENTS: Final = {TIMESTAMP: datetime, DATE: date}
_BITS: Final = {INT: 31, LONG: 63}


class Unfit(Exception):
    """A value is not of the kind of its column; the text says how."""


class JsonText(str):
    """An object or an array, as a body in JSON has it."""

    __slots__ = ()


class Rounded(float):
    """A number that a body in JSON has with more digits than a double has, which is an integer as a double."""

    __slots__ = ()


def kind_of_type(kind: pa.DataType) -> str | None:
    """Return the kind whose Arrow type this is; None: a column of this type is not read from bodies."""
    if pa.types.is_large_string(kind):
        return STRING
    return next((name for name, each in ARROW.items() if each == kind), None)


def kind_of_value(value: Any) -> str:
    """Return the kind of a column whose first value this is.

    Raises:
        Unfit: no kind takes it.
    """
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        if not _fits(value, 63):
            raise Unfit("an integer of more than 64 bits")
        return LONG
    return DOUBLE if isinstance(value, float) else STRING


def joined(kind: str, value: Any) -> str:
    """Return the kind of a column that is being found, is `kind` so far, and meets `value`.

    Raises:
        Unfit: it does not take such a value.
    """
    met = kind_of_value(value)
    if met == kind or (kind == DOUBLE and met == LONG):
        return kind
    if kind == LONG and met == DOUBLE:
        return DOUBLE
    raise Unfit(f"{_named(value)} where a {kind} is expected")


def taken(kind: str, value: Any) -> Any:
    """Return `value` as a column of `kind` has it.

    Raises:
        Unfit: it does not take such a value.
    """
    if kind == STRING:
        if isinstance(value, str):
            return str(value)
        if isinstance(value, dict | list):
            return msgspec.json.encode(value).decode()
    elif kind == BOOLEAN:
        if isinstance(value, bool):
            return value
    elif kind in _BITS:
        number = value
        if isinstance(value, float) and value.is_integer():
            if isinstance(value, Rounded):
                raise Unfit("a non-integer number with too many digits")
            number = int(value)
        if isinstance(number, int) and not isinstance(value, bool):
            if _fits(number, _BITS[kind]):
                return number
            raise Unfit(f"an integer of more than {_BITS[kind] + 1} bits")
    elif kind in _EXACT_MAX and isinstance(value, Rounded) and value == 0.0:
        raise Unfit("a number that is too small for a double")
    elif kind == FLOAT and isinstance(value, float):
        if _FLOAT_END <= abs(value) < math.inf:
            raise Unfit("a number that is too large for a float")
        if 0.0 < abs(value) <= _FLOAT_BEGIN:
            raise Unfit("a number that is too small for a float")
        return value
    elif kind in _EXACT_MAX:
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) <= _EXACT_MAX[kind]:
                return float(value)
            raise Unfit(f"an integer that a {kind} cannot represent exactly")
    elif kind == BINARY:
        if isinstance(value, bytes):
            return value
    elif isinstance(value, str) and not isinstance(value, JsonText):
        return _moment(kind, value)
    elif type(value) is _MOMENTS[kind]:
        return value
    raise Unfit(f"{_named(value)} where a {kind} is expected")


def _moment(kind: str, text: str) -> datetime | date:
    try:
        if kind == DATE:
            return date.fromisoformat(text)
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None and "T" in text.upper():
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Unfit(f"a text that is not a {kind}")


def _fits(value: int, bits: int) -> bool:
    return -(1 << bits) <= value < 1 << bits


def _named(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, JsonText):
        return "an object" if value.startswith("{") else "an array"
    if isinstance(value, str | list):
        return "an array" if isinstance(value, list) else "a text"
    return "bytes" if isinstance(value, bytes) else "a time"
