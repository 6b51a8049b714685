"""Many headers tables decoded at once, as a column.

1. Tables with the same keys and tags in the same order are decoded together. There must be at least `TOGETHER_MIN` of
   them, and at most `GROUPS_MAX` kinds of up to `WIDTH_MAX` entries; the rest is decoded one by one. The result is the
   same.
2. For a damaged table the verdict is always that of `header_table`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.bridge_errors import DamagedProperties
from warren.spark_bridge.gather import be_numbers, runs, slices
from warren.spark_bridge.header_table import (
    NUMBERS,
    SIZES,
    WITH_LENGTH,
    Entry,
    Malformed,
    TableReader,
    bytes_text,
    decimal_text,
    float_json,
    float_text,
    one_table,
    quoted,
)
from warren.spark_bridge.schema import JSON, MAP, TYPED_VALUE, arrow_type

TOGETHER_MIN: Final = 48
GROUPS_MAX: Final = 64
WIDTH_MAX: Final = 64

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class _Column(NamedTuple):
    """The same entry of many tables: where its payload begins and ends in each."""

    key: str
    tag: str
    starts: Positions
    ends: Positions

    def of(self, which: npt.NDArray[np.bool_]) -> _Column:
        return _Column(self.key, self.tag, self.starts[which], self.ends[which])


class _Alike(NamedTuple):
    """Tables with the same keys and tags."""

    rows: Positions
    columns: list[_Column]


def decode_tables(
    data: Bytes, starts: Positions, ends: Positions, headers_format: str, offset_of: Callable[[int], int]
) -> pa.Array:
    """Return tables as a column of the type that `headers_format` stands for.

    `starts`, `ends`: where the pairs of each table are in `data`, ascending, the length in front not included; within
    `data`, which the caller has made sure of. `offset_of` returns the offset of the message with the nth table.

    Raises:
        DamagedProperties: a table is malformed; it is named by its offset.
    """
    return _Tables(data, starts, ends, headers_format, offset_of).decode()


class _Tables:
    """Many tables being decoded."""

    def __init__(
        self,
        data: Bytes,
        starts: Positions,
        ends: Positions,
        headers_format: str,
        offset_of: Callable[[int], int],
    ) -> None:
        self.data = data
        self.starts = starts
        self.ends = ends
        self.format = headers_format
        self.offset_of = offset_of
        self.kind = arrow_type("headers", headers_format)
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The bytes, for decoding one by one."""
        if self._raw is None:
            self._raw = self.data.tobytes()
        return self._raw

    def decode(self) -> pa.Array:
        """Return all tables, in their order."""
        alike, single = self._sorted()
        parts = [(group.rows, self._together(group)) for group in alike]
        if single:
            rows = np.concatenate(single)
            parts.append((rows, pa.array([self._single(int(row)) for row in rows], self.kind)))
        if len(parts) == 1 and len(alike) == 1:
            return parts[0][1]
        if not parts:
            return pa.array([], self.kind)
        places = np.empty(len(self.starts), np.int64)
        places[np.concatenate([rows for rows, _ in parts])] = np.arange(len(places))
        return pa.concat_arrays([made for _, made in parts]).take(pa.array(places))

    def _malformed(self, row: int, what: object) -> DamagedProperties:
        return DamagedProperties(f"headers of offset {self.offset_of(row)}: {what}")

    def _single(self, row: int) -> Any:
        """Return one table as Arrow takes it in."""
        try:
            return one_table(TableReader(self.raw), int(self.starts[row]), int(self.ends[row]), self.format)
        except Malformed as error:
            raise self._malformed(row, error) from None

    def _refuse(self, row: int) -> DamagedProperties:
        """Return the error of a table that is known to be malformed."""
        self._single(row)
        raise AssertionError(f"headers of offset {self.offset_of(row)} are well after all")

    def _sorted(self) -> tuple[list[_Alike], list[Positions]]:
        """Return groups of tables that are alike, and the rows of those that are not."""
        alike: list[_Alike] = []
        single: list[Positions] = []
        waiting: list[tuple[Positions, Positions, list[_Column]]] = [
            (np.arange(len(self.starts)), self.starts, []),
        ]
        tried = 0
        while waiting:
            rows, pos, columns = waiting.pop()
            if len(rows) < TOGETHER_MIN or tried >= GROUPS_MAX:
                single.append(rows)
                continue
            tried += 1
            while True:
                stops = self.ends[rows]
                matches = pos < stops
                if not matches[0]:
                    matches = ~matches
                    is_end = True
                else:
                    is_end = False
                    size = int(self.data[pos[0]]) + 2  # with its length and the tag
                    matches &= (pos + size <= stops) & (self.data[np.minimum(pos, len(self.data) - 1)] == size - 2)
                    if not matches[0]:
                        raise self._refuse(int(rows[0]))
                    keys = runs(self.data, np.where(matches, pos, pos[0]), size)
                    matches &= keys == keys[0]
                if not matches.all():
                    rest = ~matches
                    waiting.append((rows[rest], pos[rest], [column.of(rest) for column in columns]))
                    rows, pos, stops = rows[matches], pos[matches], stops[matches]
                    columns = [column.of(matches) for column in columns]
                if is_end:
                    alike.append(_Alike(rows, columns))
                    break
                following = self._column(rows, pos, stops)
                is_known = following is not None and any(following.key == column.key for column in columns)
                if following is None or is_known or len(columns) >= WIDTH_MAX:
                    single.append(rows)
                    break
                columns = [*columns, following]
                pos = following.ends
        return alike, single

    def _column(self, rows: Positions, pos: Positions, stops: Positions) -> _Column | None:
        """Return the entry that all of `rows` have at `pos`; None when it must be looked at one by one."""
        at = int(pos[0])
        size = int(self.data[at])
        try:
            key = self.data[at + 1 : at + 1 + size].tobytes().decode()
        except UnicodeDecodeError:
            return None
        tag = chr(self.data[at + 1 + size])
        starts = pos + (size + 2)
        if tag in SIZES:
            ends = starts + SIZES[tag]
        elif tag in WITH_LENGTH:
            fits = starts + 4 <= stops
            if not fits.all():
                raise self._refuse(int(rows[np.argmin(fits)]))
            ends = starts + 4 + be_numbers(self.data, starts, ">u4")
            starts = starts + 4
        else:
            raise self._refuse(int(rows[0]))
        fits = ends <= stops
        if not fits.all():
            raise self._refuse(int(rows[np.argmin(fits)]))
        return _Column(key, tag, starts, ends)

    # --- what becomes of a group -----------------------------------------------------------------------------------

    def _together(self, group: _Alike) -> pa.Array:
        """Return tables that are alike as a column."""
        count, width = len(group.rows), len(group.columns)
        if width == 0:
            empty = "{}" if self.format == JSON else []
            return pa.array([empty] * count, self.kind)
        nested = self._nested(group)
        if self.format == JSON:
            return self._json(group, nested)
        values = self._texts(group, nested) if self.format == MAP else self._typed(group, nested)
        bounds = pa.array(np.arange(0, width * count + 1, width, dtype=np.int32))
        return pa.MapArray.from_arrays(
            bounds, _repeated([column.key for column in group.columns], count), values, self.kind
        )

    def _nested(self, group: _Alike) -> dict[int, list[str]]:
        """Return nested values as JSON, by the number of their column."""
        numbers = [number for number, column in enumerate(group.columns) if column.tag in "AF"]
        made: dict[int, list[str]] = {number: [] for number in numbers}
        if not numbers:
            return made
        for at, row in enumerate(group.rows):
            reader = TableReader(self.raw)
            reader.entries = len(group.columns)
            try:
                for number in numbers:
                    column = group.columns[number]
                    entry = Entry(column.tag, int(column.starts[at]), int(column.ends[at]))
                    made[number].append(reader.json(entry, 1))
            except Malformed as error:
                raise self._malformed(int(row), error) from None
        return made

    def _numbers(self, column: _Column) -> npt.NDArray[Any]:
        return be_numbers(self.data, column.starts, NUMBERS[column.tag][1])

    def _decimals(self, column: _Column) -> pa.Array:
        scales = self.data[column.starts].tolist()
        digits = be_numbers(self.data, column.starts + 1, ">i4").tolist()
        return pa.array(list(map(decimal_text, scales, digits)), pa.string())

    def _plain_text(self, column: _Column) -> pa.Array:
        """Return numbers as text."""
        if column.tag == "D":
            return self._decimals(column)
        numbers = self._numbers(column)
        if column.tag == "t":
            return pa.array(["false", "true"]).take(pa.array((numbers != 0).astype(np.int8)))
        if column.tag in "fd":
            return pa.array([float_text(number) for number in numbers.tolist()], pa.string())
        return pa.array(numbers).cast(pa.string())

    def _texts(self, group: _Alike, nested: dict[int, list[str]]) -> pa.Array:
        """Return the values of a map, table after table."""
        made = _Interleaved(len(group.rows), len(group.columns))
        made.add_slices(self.data, {n: column for n, column in enumerate(group.columns) if column.tag in "Sx"})
        for number, column in enumerate(group.columns):
            if number in nested:
                made.add(number, pa.array(nested[number], pa.string()))
            elif column.tag not in "SxV":
                made.add(number, self._plain_text(column))
        return _as_text(made.finish())

    def _typed(self, group: _Alike, nested: dict[int, list[str]]) -> pa.Array:
        """Return the values as structs, table after table."""
        count, width = len(group.rows), len(group.columns)
        texts, raw, json_texts = (_Interleaved(count, width) for _ in range(3))
        integers = np.zeros((count, width), np.int64)
        no_integer = np.ones((count, width), np.bool_)
        floats = np.zeros((count, width), np.float64)
        no_float = np.ones((count, width), np.bool_)
        bare = {n: column for n, column in enumerate(group.columns) if column.tag in "xAF"}
        not_numbers: dict[int, npt.NDArray[np.bool_]] = {}
        texts.add_slices(self.data, {n: column for n, column in enumerate(group.columns) if column.tag == "S"})
        for number, column in enumerate(group.columns):
            if number in nested:
                json_texts.add(number, pa.array(nested[number], pa.string()))
            elif column.tag == "D":
                texts.add(number, self._decimals(column))
            elif column.tag in "fd":
                values = self._numbers(column)
                floats[:, number] = values
                no_float[:, number] = False
                odd = np.isnan(values)
                if odd.any():
                    bare[number] = column
                    not_numbers[number] = odd
            elif column.tag not in "SxV":
                integers[:, number] = self._numbers(column).astype(np.int64)
                no_integer[:, number] = False
        raw.add_slices(self.data, bare)
        for number, odd in not_numbers.items():
            raw.mask[:, number] = ~odd
        strings, binaries = _texts_and_bytes(texts.finish(), raw.finish())
        fields = [
            _repeated([column.tag for column in group.columns], count),
            strings,
            pa.array(integers.reshape(-1), mask=no_integer.reshape(-1)),
            pa.array(floats.reshape(-1), mask=no_float.reshape(-1)),
            binaries,
            json_texts.finish().cast(pa.string()),
        ]
        return pa.StructArray.from_arrays(fields, fields=list(TYPED_VALUE))

    def _json(self, group: _Alike, nested: dict[int, list[str]]) -> pa.Array:
        """Return tables as JSON."""
        count = len(group.rows)
        pieces: list[Any] = []
        between = "{"
        for number, column in enumerate(group.columns):
            between += quoted(column.key) + ":"
            if column.tag == "V":
                between += "null,"
                continue
            quote = ""
            if number in nested:
                values = pa.array(nested[number], pa.string())
            elif column.tag in "Sx":
                one = slices(self.data, [(column.starts, column.ends)])
                values = _as_text(one.take(pa.array(np.arange(0, 2 * count, 2))))
                if _needs_escapes(values):
                    values = pa.array([quoted(text) for text in values.to_pylist()], pa.string())
                else:
                    quote = '"'
            elif column.tag in "fd":
                values = pa.array(list(map(float_json, self._numbers(column).tolist())), pa.string())
            else:
                values = self._plain_text(column)
            pieces += [pa.scalar(between + quote), values]
            between = quote + ","
        pieces.append(pa.scalar(between[:-1] + "}"))
        if len(pieces) == 1:
            return pa.repeat(pieces[0], count)
        return pc.binary_join_element_wise(*pieces, pa.scalar(""))


class _Interleaved:
    """Texts of `width` columns put together row by row: that of row r and column n is element r * width + n."""

    def __init__(self, count: int, width: int) -> None:
        self.count = count
        self.places = np.zeros((count, width), np.int64)
        self.mask = np.ones((count, width), np.bool_)
        self._sources: list[pa.Array] = []
        self._size = 0

    def add_slices(self, data: Bytes, columns: dict[int, _Column]) -> None:
        """Add columns that are slices of `data`."""
        if not columns:
            return
        ordered = sorted(columns)
        segments = slices(data, [(columns[number].starts, columns[number].ends) for number in ordered])
        for at, number in enumerate(ordered):
            self.places[:, number] = np.arange(
                self._size + 2 * at, self._size + 2 * len(ordered) * self.count, 2 * len(ordered)
            )
            self.mask[:, number] = False
        self._sources.append(segments)
        self._size += len(segments)

    def add(self, number: int, values: pa.Array) -> None:
        """Add a column of its own."""
        self.places[:, number] = np.arange(self._size, self._size + self.count)
        self.mask[:, number] = False
        self._sources.append(values.cast(pa.binary()))
        self._size += self.count

    def finish(self) -> pa.Array:
        """Return all as binaries, null where a value is missing."""
        if not self._sources:
            return pa.nulls(self.places.size, pa.binary())
        source = self._sources[0] if len(self._sources) == 1 else pa.concat_arrays(self._sources)
        mask = self.mask.reshape(-1)
        places = pa.array(self.places.reshape(-1), mask=mask if mask.any() else None)
        return source.take(places)


def _repeated(texts: list[str], count: int) -> pa.Array:
    """Return `texts` one after the other, `count` times."""
    raw = [text.encode() for text in texts]
    once = b"".join(raw)
    ends = np.cumsum([len(text) for text in raw], dtype=np.int64)
    bounds = np.zeros(len(texts) * count + 1, np.int32)
    bounds[1:] = (np.arange(count)[:, None] * len(once) + ends).reshape(-1)
    return pa.Array.from_buffers(pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(once * count)])


def _as_text(values: pa.Array) -> pa.Array:
    """Return binaries as text, in base64 where they are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if raw is None else bytes_text(raw) for raw in values.to_pylist()], pa.string())


def _texts_and_bytes(texts: pa.Array, raw: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return `texts` as strings; those that are not UTF-8 are null, and among `raw` instead."""
    try:
        return texts.cast(pa.string()), raw
    except pa.ArrowInvalid:
        strings: list[str | None] = []
        binaries: list[bytes | None] = raw.to_pylist()
        for at, text in enumerate(texts.to_pylist()):
            try:
                strings.append(None if text is None else text.decode())
            except UnicodeDecodeError:
                strings.append(None)
                binaries[at] = text
        return pa.array(strings, pa.string()), pa.array(binaries, pa.binary())


def _needs_escapes(texts: pa.Array) -> bool:
    """Tell whether JSON cannot have one of `texts`, as it is, between quotation marks."""
    held = texts.buffers()[2]
    if held is None or held.size == 0:
        return False
    octets = np.frombuffer(held, np.uint8)
    return bool(((octets < 0x20) | (octets == 0x22) | (octets == 0x5C)).any())
