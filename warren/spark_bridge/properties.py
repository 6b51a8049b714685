"""AMQP properties as columns, and columns as AMQP properties: thousands of messages at a time.

    properties of a message = flags:u16 property*      all integers big-endian
       bit     property            form          bit     property       form
       0x8000  content_type        shortstr      0x0080  message_id     shortstr
       0x4000  content_encoding    shortstr      0x0040  timestamp      u64 seconds: column message_timestamp
       0x2000  headers             table         0x0020  type           shortstr
       0x1000  delivery_mode       u8            0x0010  user_id        shortstr
       0x0800  priority            u8            0x0008  app_id         shortstr
       0x0400  correlation_id      shortstr      0x0004  cluster_id     shortstr
       0x0200  reply_to            shortstr
       0x0100  expiration          shortstr      shortstr = length:u8 bytes

1. Decoding handles all messages of a chunk at once, a property at a time; headers in groups of messages with the same
   keys and types, the rest message by message. Messages that are all equal are decoded once.
2. Any deviation from the table above is `DamagedProperties`, which names the offset of the message; rows are not
   guessed. Properties that the caller does not ask for are skipped: of headers then only the length is looked at.
3. In a text that is not UTF-8, U+FFFD replaces the invalid bytes. A time outside the range of microseconds in an i64 is
   null. Everything else that is decoded is encoded to the same bytes again; of headers in the format `typed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.bridge_errors import DamagedProperties
from warren.spark_bridge.gather import be_numbers, slices
from warren.spark_bridge.header_columns import decode_tables
from warren.spark_bridge.header_encoding import encode_tables, lengths
from warren.spark_bridge.schema import JSON, PROPERTY_COLUMNS, TIMESTAMP_TYPE, arrow_type, column

__all__ = ["DamagedProperties", "as_text", "decode_properties", "encode_properties"]

_SHORTSTR: Final = "shortstr"
_OCTET: Final = "octet"
_TIME: Final = "time"
_TABLE: Final = "table"
# In the order in which they stand.
_PROPERTIES: Final = (
    (0x8000, "content_type", _SHORTSTR),
    (0x4000, "content_encoding", _SHORTSTR),
    (0x2000, "headers", _TABLE),
    (0x1000, "delivery_mode", _OCTET),
    (0x0800, "priority", _OCTET),
    (0x0400, "correlation_id", _SHORTSTR),
    (0x0200, "reply_to", _SHORTSTR),
    (0x0100, "expiration", _SHORTSTR),
    (0x0080, "message_id", _SHORTSTR),
    (0x0040, "message_timestamp", _TIME),
    (0x0020, "type", _SHORTSTR),
    (0x0010, "user_id", _SHORTSTR),
    (0x0008, "app_id", _SHORTSTR),
    (0x0004, "cluster_id", _SHORTSTR),
)
_UNKNOWN_FLAGS: Final = 0x0003
_MICROSECONDS: Final = 1_000_000
_SECONDS_MAX: Final = ((1 << 63) - 1) // _MICROSECONDS

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def as_text(values: pa.Array) -> pa.Array:
    """Return binaries as strings, with U+FFFD where they are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


# --- decoding ----------------------------------------------------------------------------------------------------


def decode_properties(
    ends: npt.NDArray[np.int32],
    data: Bytes,
    names: Sequence[str],
    headers_format: str,
    offset_of: Callable[[int], int],
) -> dict[str, pa.Array]:
    """Return the columns `names` out of the properties of messages, each of the type that the schema says.

    `ends`: where each message begins in `data`, ascending, and where the last one ends; within `data`, which the caller
    has made sure of. `offset_of` returns the offset of the nth of them, for errors.

    Raises:
        DamagedProperties: the bytes are not valid AMQP.
    """
    count = len(ends) - 1
    if count > 1 and _are_equal(ends, data):
        plain = [name for name in names if name != "headers" or headers_format == JSON]
        once = _Walk(ends[:2], data, offset_of).columns(plain, headers_format)
        made = {name: pa.repeat(values[0], count) for name, values in once.items()}
        if len(plain) == len(names):
            return made
        # Maps are not quickly repeated.
        return made | _Walk(ends, data, offset_of).columns(["headers"], headers_format)
    return _Walk(ends, data, offset_of).columns(names, headers_format)


def _are_equal(ends: npt.NDArray[np.int32], data: Bytes) -> bool:
    """Tell whether all messages have the same bytes."""
    first, behind = int(ends[0]), int(ends[-1])
    count = len(ends) - 1
    size = int(ends[1]) - first
    if behind - first != size * count or int(ends[count - 1]) != behind - size or size == 0:
        return False
    if bytes(data[first : first + size]) != bytes(data[behind - size : behind]):
        return False
    if bool((np.diff(ends) != size).any()):
        return False
    return bool((data[first + size : behind] == data[first : behind - size]).all())


class _Walk:
    """Where everything is in the properties of many messages."""

    def __init__(self, ends: npt.NDArray[np.int32], data: Bytes, offset_of: Callable[[int], int]) -> None:
        self.data = data
        self.count = len(ends) - 1
        self.stops: Positions = ends[1:].astype(np.int64)
        self.offset_of = offset_of
        starts: Positions = ends[:-1].astype(np.int64)
        self.need(self.stops - starts >= 2, None, "too short")
        self.flags: Positions = be_numbers(data, starts, ">u2").astype(np.int64)
        self.need(self.flags & _UNKNOWN_FLAGS == 0, None, "unknown property flags")
        # Of each property that is there: which messages have it (None: all), where it begins and where it ends.
        self.found: dict[str, tuple[Positions | None, Positions, Positions]] = {}
        self._walk(starts + 2)

    def need(self, holds: npt.NDArray[np.bool_], rows: Positions | None, what: str) -> None:
        """Make sure that something holds for all of `rows`."""
        if not holds.all():
            at = int(np.argmin(holds))
            row = at if rows is None else int(rows[at])
            raise DamagedProperties(f"properties of offset {self.offset_of(row)}: {what}")

    def _walk(self, pos: Positions) -> None:
        common = int(np.bitwise_and.reduce(self.flags)) if self.count else 0
        some = int(np.bitwise_or.reduce(self.flags)) if self.count else 0
        for bit, name, form in _PROPERTIES:
            if not some & bit:
                continue
            rows = None if common & bit else np.flatnonzero(self.flags & bit)
            at = pos if rows is None else pos[rows]
            stops = self.stops if rows is None else self.stops[rows]
            if form == _SHORTSTR:
                self.need(at < stops, rows, f"{name} is not whole")
                start = at + 1
                end = start + self.data[at]
            elif form == _TABLE:
                self.need(at + 4 <= stops, rows, f"{name} is not whole")
                start = at + 4
                end = start + be_numbers(self.data, at, ">u4")
            else:
                start = at
                end = at + (1 if form == _OCTET else 8)
            self.need(end <= stops, rows, f"{name} is not whole")
            self.found[name] = (rows, start, end)
            if rows is None:
                pos = end
            else:
                pos = pos.copy()
                pos[rows] = end
        self.need(pos == self.stops, None, "bytes after the last property")

    def columns(self, names: Sequence[str], headers_format: str) -> dict[str, pa.Array]:
        """Return columns by their names."""
        made: dict[str, pa.Array] = {}
        strings = [name for _, name, form in _PROPERTIES if form == _SHORTSTR and name in names and name in self.found]
        made |= self._strings(strings)
        for name in names:
            if name in made:
                continue
            if name not in self.found:
                made[name] = pa.nulls(self.count, arrow_type(name, headers_format))
            elif name == "headers":
                made[name] = self._headers(headers_format)
            elif name == "message_timestamp":
                made[name] = self._times()
            else:
                made[name] = self._octets(name)
        return made

    def _strings(self, names: Sequence[str]) -> dict[str, pa.Array]:
        whole: list[tuple[Positions, Positions]] = []
        masks: list[npt.NDArray[np.bool_] | None] = []
        # A message without the property gets an empty slice where the one before it ended: slices stand in order.
        behind = self.stops
        for name in reversed(names):
            rows, starts, ends = self.found[name]
            if rows is None:
                mask = None
            else:
                mask = np.ones(self.count, np.bool_)
                mask[rows] = False
                all_starts, all_ends = behind.copy(), behind.copy()
                all_starts[rows], all_ends[rows] = starts, ends
                starts, ends = all_starts, all_ends
            whole.append((starts, ends))
            masks.append(mask)
            behind = starts
        whole.reverse()
        masks.reverse()
        if not names:
            return {}
        segments = slices(self.data, whole)
        made = {}
        for number, (name, mask) in enumerate(zip(names, masks, strict=True)):
            wanted = np.arange(2 * number, 2 * len(names) * self.count, 2 * len(names))
            made[name] = as_text(segments.take(pa.array(wanted, mask=mask)))
        return made

    def _octets(self, name: str) -> pa.Array:
        rows, starts, _ = self.found[name]
        return _spread(self.data[starts].astype(np.int16), rows, self.count)

    def _times(self) -> pa.Array:
        rows, starts, _ = self.found["message_timestamp"]
        seconds = be_numbers(self.data, starts, ">u8").astype(np.uint64)
        is_far = seconds > _SECONDS_MAX
        times = np.where(is_far, 0, seconds).astype(np.int64) * _MICROSECONDS
        mask = is_far if bool(is_far.any()) else None
        return _spread(times, rows, self.count, mask).view(TIMESTAMP_TYPE)

    def _headers(self, headers_format: str) -> pa.Array:
        rows, starts, ends = self.found["headers"]
        offset_of = self.offset_of
        tables = decode_tables(
            self.data, starts, ends, headers_format, lambda at: offset_of(at if rows is None else int(rows[at]))
        )
        if rows is None:
            return tables
        places = np.zeros(self.count, np.int64)
        places[rows] = np.arange(len(rows))
        mask = np.ones(self.count, np.bool_)
        mask[rows] = False
        return tables.take(pa.array(places, mask=mask))


def _spread(
    values: npt.NDArray[Any], rows: Positions | None, count: int, mask: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return `values`, which `rows` have, as a column of `count` rows; `mask`: which of them are null all the same."""
    if rows is None:
        return pa.array(values, mask=mask)
    whole = np.zeros(count, values.dtype)
    nulls = np.ones(count, np.bool_)
    whole[rows] = values
    nulls[rows] = False if mask is None else mask
    return pa.array(whole, mask=nulls)


# --- encoding ----------------------------------------------------------------------------------------------------


def encode_properties(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return flags and property list of `count` messages, a binary each.

    `columns`: any of the property columns, in the types of the schema; headers in any of the three formats. A null is
    a property that is not there.

    Raises:
        ValueError: an unknown column, or a value that AMQP cannot have; the reason names column and row.
    """
    for name in columns:
        if name not in PROPERTY_COLUMNS:
            column(name)
            raise ValueError(f"column {name!r} is no property")
    flags = np.zeros(count, np.uint16)
    pieces: list[pa.Array] = []
    for bit, name, form in _PROPERTIES:
        values = columns.get(name)
        if values is None or values.null_count == count:
            continue
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if values.null_count:
            flags[pc.is_valid(values).to_numpy(zero_copy_only=False)] |= bit
        else:
            flags |= np.uint16(bit)
        if form == _SHORTSTR:
            pieces += _encoded_strings(name, values)
        elif form == _OCTET:
            pieces.append(_encoded_octets(name, values))
        elif form == _TIME:
            pieces.append(_encoded_times(name, values))
        else:
            tables = encode_tables(values)
            pieces += [lengths(tables), tables]
    first = _fixed_binaries(flags.astype(">u2").view(np.uint8), 2)
    if not pieces:
        return first
    return pc.binary_join_element_wise(
        first, *pieces, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )


def _fixed_binaries(data: Bytes, size: int, mask: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return binaries of `size` bytes each."""
    count = len(data) // size
    ends = np.arange(0, size * count + 1, size, dtype=np.int32)
    made = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return made if mask is None else pc.if_else(pa.array(~mask), made, pa.scalar(None, pa.binary()))


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which of `values` are null; None: none of them."""
    return values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None


def _encoded_strings(name: str, values: pa.Array) -> list[pa.Array]:
    raw = values.cast(pa.string()).cast(pa.binary())
    sizes = pc.binary_length(raw).fill_null(0).to_numpy()
    if len(sizes) and int(sizes.max()) > 255:
        raise ValueError(f"{name} of row {int(sizes.argmax())} is longer than 255 bytes")
    return [_fixed_binaries(sizes.astype(np.uint8), 1, _nulls(values)), raw]


def _encoded_octets(name: str, values: pa.Array) -> pa.Array:
    numbers = values.cast(pa.int64()).fill_null(0).to_numpy()
    wrong = (numbers < 0) | (numbers > 255)
    if bool(wrong.any()):
        at = int(wrong.argmax())
        raise ValueError(f"{name} of row {at} is {numbers[at]}: it must be from 0 to 255")
    return _fixed_binaries(numbers.astype(np.uint8), 1, _nulls(values))


def _encoded_times(name: str, values: pa.Array) -> pa.Array:
    try:
        found = values.cast(options=pc.CastOptions(TIMESTAMP_TYPE, allow_time_truncate=True))
    except pa.ArrowInvalid:
        raise ValueError(f"{name} has a time beyond the year 294246") from None
    times = found.view(pa.int64()).fill_null(0).to_numpy()
    if bool((times < 0).any()):
        raise ValueError(f"{name} of row {int((times < 0).argmax())} is before 1970")
    return _fixed_binaries((times // _MICROSECONDS).astype(">u8").view(np.uint8), 8, _nulls(values))


assert {name for _, name, _ in _PROPERTIES} == set(PROPERTY_COLUMNS)
