"""A column of headers, in any of the formats, as tables.

1. Headers that were decoded in the format `typed` become the same bytes again; of equal keys only the last one is left.
2. A text of a `map` becomes a longstr, its null a void; a value of JSON the nearest type: t, I or l, d, S, V, A, F.
3. A value that its tag cannot have is refused, with its row and its key.
"""

from __future__ import annotations

import json
import struct
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.header_table import DECIMAL, FORMATS, LENGTH, NUMBERS
from warren.spark_bridge.schema import TYPED_VALUE

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def encode_tables(values: pa.Array) -> pa.Array:
    """Return the pairs of each table as a binary, without the length in front; null where a row has no table.

    `values`: a column of headers in any of the formats.

    Raises:
        ValueError: a value that AMQP cannot have; the reason names the row and the key.
    """
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([None if text is None else _table_of_json(text) for text in values.to_pylist()], pa.binary())
    if not pa.types.is_map(kind):
        raise ValueError(f"headers cannot be {kind}")
    bounds = values.offsets.to_numpy()
    first, behind = int(bounds[0]), int(bounds[-1])
    keys = values.keys.slice(first, behind - first).cast(pa.string()).cast(pa.binary())
    items = values.items.slice(first, behind - first)
    row_of = _RowOf(bounds, values.keys)
    sizes = pc.binary_length(keys).to_numpy()
    if len(sizes) and int(sizes.max()) > 255:
        raise ValueError(f"headers of row {row_of.row(int(sizes.argmax()))}: a key is longer than 255 bytes")
    if pa.types.is_struct(kind.item_type):
        tags, payloads = _typed_values(items, row_of)
    else:
        tags, payloads = _text_values(items.cast(pa.string()).cast(pa.binary()))
    key_sizes = _binaries(sizes.astype(np.uint8), 1)
    flat = pc.binary_join_element_wise(key_sizes, keys, tags, payloads, pa.scalar(b"", pa.binary()))
    if len(flat):
        flat_bounds = np.frombuffer(flat.buffers()[1], np.int32)[flat.offset : flat.offset + len(flat) + 1]
        content = flat.buffers()[2]
    else:
        flat_bounds, content = np.zeros(1, np.int32), pa.py_buffer(b"")
    row_bounds = np.ascontiguousarray(flat_bounds[bounds - first])
    tables = pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(row_bounds), content])
    if values.null_count:
        tables = pc.if_else(values.is_valid(), tables, pa.scalar(None, pa.binary()))
    return tables


def lengths(tables: pa.Array) -> pa.Array:
    """Return the bytes in front of each of `tables`: its length."""
    sizes = pc.binary_length(tables)
    made = _binaries(sizes.fill_null(0).to_numpy().astype(">u4").view(np.uint8), 4)
    return pc.if_else(tables.is_valid(), made, pa.scalar(None, pa.binary())) if tables.null_count else made


class _RowOf:
    """Which row and key an entry is of, for messages."""

    def __init__(self, bounds: npt.NDArray[np.int32], keys: pa.Array) -> None:
        self._bounds = bounds
        self._keys = keys

    def row(self, entry: int) -> int:
        return int(np.searchsorted(self._bounds, entry + int(self._bounds[0]), side="right")) - 1

    def refuse(self, entry: int, what: str) -> ValueError:
        key = self._keys[entry + int(self._bounds[0])].as_py()
        return ValueError(f"headers of row {self.row(entry)}: {key!r}: {what}")


def _binaries(data: Bytes, size: int) -> pa.Array:
    """Return binaries of `size` bytes each."""
    count = len(data) // size
    ends = np.arange(0, size * count + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _with_lengths(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(lengths(values), values, pa.scalar(b"", pa.binary()))


def _text_values(items: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return tags and payloads of texts: longstr, or void for null."""
    count = len(items)
    if not items.null_count:
        return pa.repeat(pa.scalar(b"S", pa.binary()), count), _with_lengths(items)
    some = items.is_valid()
    tags = pc.if_else(some, pa.scalar(b"S", pa.binary()), pa.scalar(b"V", pa.binary()))
    payloads = _with_lengths(items.fill_null(b""))
    return tags, pc.if_else(some, payloads, pa.scalar(b"", pa.binary()))


def _typed_values(items: pa.Array, row_of: _RowOf) -> tuple[pa.Array, pa.Array]:
    """Return tags and payloads of structs. Without a tag the first field that is there says it: S, l, d, x, F or A."""
    fields = dict(zip([field.name for field in items.type], items.flatten(), strict=True))
    unknown = set(fields) - {field.name for field in TYPED_VALUE}
    if unknown:
        raise ValueError(f"headers have the unknown field {min(unknown)!r}")
    count = len(items)

    def field(name: str) -> pa.Array:
        kind = TYPED_VALUE.field(name).type
        found = fields.get(name)
        return pa.nulls(count, kind) if found is None else found.cast(kind)

    tags, texts, integers, floats, raw, json_texts = (field(member.name) for member in TYPED_VALUE)
    if tags.null_count:
        is_list = pc.starts_with(pc.utf8_ltrim_whitespace(json_texts), "[")
        inferred = pa.scalar("V")
        for values, tag in (
            (json_texts, pc.if_else(is_list, "A", "F")),
            (raw, pa.scalar("x")),
            (floats, pa.scalar("d")),
            (integers, pa.scalar("l")),
            (texts, pa.scalar("S")),
        ):
            inferred = pc.if_else(values.is_valid(), tag, inferred)
        tags = pc.coalesce(tags, inferred)
    made: list[pa.Array] = []
    rows: list[Positions] = []
    letters = tags.to_numpy(zero_copy_only=False)
    for tag in pc.unique(tags).to_pylist():
        here = np.flatnonzero(letters == tag)
        which = pa.array(here)
        rows.append(here)
        if tag in "fd" and len(tag) == 1:
            made.append(_float_payloads(tag, floats.take(which), raw.take(which), here, row_of))
        elif tag in NUMBERS:
            made.append(_integer_payloads(tag, integers.take(which), here, row_of))
        elif tag == "V":
            made.append(pa.repeat(pa.scalar(b"", pa.binary()), len(here)))
        elif tag == "D":
            decimals = texts.take(which).to_pylist()
            made.append(
                pa.array(
                    [_decimal(text, int(at), row_of) for at, text in zip(here, decimals, strict=True)], pa.binary()
                )
            )
        elif tag in ("S", "x", "A", "F"):
            contents = raw.take(which)
            if tag == "S":
                contents = pc.coalesce(contents, texts.take(which).cast(pa.binary()))
            elif tag != "x" and contents.null_count:
                contents = pa.array(
                    [
                        content if content is not None else _nested_of_json(tag, text, int(at), row_of)
                        for at, content, text in zip(
                            here, contents.to_pylist(), json_texts.take(which).to_pylist(), strict=True
                        )
                    ],
                    pa.binary(),
                )
            _need_all(contents, tag, here, row_of)
            made.append(_with_lengths(contents))
        else:
            raise row_of.refuse(int(here[0]), f"unknown type {tag!r}")
    if not made:
        return tags.cast(pa.binary()), pa.array([], pa.binary())
    places = np.empty(count, np.int64)
    places[np.concatenate(rows)] = np.arange(count)
    payloads = made[0] if len(made) == 1 else pa.concat_arrays(made).take(pa.array(places))
    return tags.cast(pa.binary()), payloads


def _need_all(values: pa.Array, tag: str, here: Positions, row_of: _RowOf) -> None:
    if values.null_count:
        at = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        raise row_of.refuse(int(here[at]), f"type {tag!r} has no value")


def _integer_payloads(tag: str, values: pa.Array, here: Positions, row_of: _RowOf) -> pa.Array:
    _need_all(values, tag, here, row_of)
    size, kind = NUMBERS[tag]
    numbers = values.to_numpy()
    if size < 8:
        limits = np.iinfo(kind)
        wrong = (numbers < limits.min) | (numbers > limits.max)
        if wrong.any():
            at = int(wrong.argmax())
            raise row_of.refuse(int(here[at]), f"type {tag!r} cannot be {numbers[at]}")
    return _binaries(numbers.astype(kind).view(np.uint8), size)


def _float_payloads(tag: str, values: pa.Array, raw: pa.Array, here: Positions, row_of: _RowOf) -> pa.Array:
    size, kind = NUMBERS[tag]
    has_raw = raw.is_valid().to_numpy(zero_copy_only=False)
    _need_all(pc.coalesce(values, pc.if_else(raw.is_valid(), 0.0, None).cast(pa.float64())), tag, here, row_of)
    numbers = values.fill_null(0.0).to_numpy()
    with np.errstate(over="ignore"):
        octets = np.ascontiguousarray(numbers.astype(kind)).view(np.uint8).reshape(-1, size).copy()
    wrong = np.isfinite(numbers) & ~np.isfinite(octets.view(kind).reshape(-1))
    if wrong.any():
        at = int(wrong.argmax())
        raise row_of.refuse(int(here[at]), f"type {tag!r} cannot be {numbers[at]}")
    for at in np.flatnonzero(has_raw).tolist():
        content = raw[at].as_py()
        if len(content) != size:
            raise row_of.refuse(int(here[at]), f"type {tag!r} has {size} bytes")
        octets[at] = np.frombuffer(content, np.uint8)
    return _binaries(octets.reshape(-1), size)


def _decimal(text: str | None, entry: int, row_of: _RowOf) -> bytes:
    try:
        if text is None:
            raise ValueError
        value = Decimal(text)
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int) or not -255 <= exponent <= 10:
            raise ValueError
        scale = max(0, -exponent)
        return DECIMAL.pack(scale, int(value.scaleb(scale)))
    except (InvalidOperation, ValueError, struct.error):
        raise row_of.refuse(entry, f"no decimal: {text!r}") from None


def _nested_of_json(tag: str, text: str | None, entry: int, row_of: _RowOf) -> bytes | None:
    """Return the bytes of a table or an array that is given as JSON, without their length."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        if not isinstance(value, dict if tag == "F" else list):
            raise ValueError(f"JSON of another kind than type {tag!r}")
        return _natural(value)[5:]
    except ValueError as error:
        raise row_of.refuse(entry, str(error)) from None


@lru_cache(4096)
def _table_of_json(text: str) -> bytes:
    """Return the pairs of a table that is given as JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"headers are no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"headers are no JSON object: {text[:80]}")
    return _natural(value)[5:]


def _natural(value: Any) -> bytes:
    """Return tag and payload of a value of JSON."""
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return b"I" + value.to_bytes(4, "big", signed=True)
        if -(1 << 63) <= value < 1 << 63:
            return b"l" + value.to_bytes(8, "big", signed=True)
        raise ValueError(f"{value} needs more than 64 bits")
    if isinstance(value, float):
        return b"d" + FORMATS["d"].pack(value)
    if isinstance(value, str):
        raw = value.encode()
        return b"S" + LENGTH.pack(len(raw)) + raw
    if isinstance(value, list):
        content = b"".join(map(_natural, value))
        return b"A" + LENGTH.pack(len(content)) + content
    parts = []
    for key, item in value.items():
        raw = key.encode()
        if len(raw) > 255:
            raise ValueError("a key is longer than 255 bytes")
        parts.append(bytes([len(raw)]) + raw + _natural(item))
    content = b"".join(parts)
    return b"F" + LENGTH.pack(len(content)) + content
