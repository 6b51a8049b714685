"""Batches as JSON lines, and as CSV.

    column            JSON                                                     CSV
    texts, numbers    as they are; a null is left out                          as they are; a null is nothing at all
    times             "2026-11-22T08:00:00.000000Z"                            the same
    body              "body": text when it is UTF-8, else "body_base64"        columns body and body_base64
    headers  map      {"key": "text" or null}                                  that JSON
             typed    {"key": {"t": "S", "s": "text"}}; field b in base64      that JSON
             json     the object itself                                        that JSON

1. A reader of the rows gets every value unchanged. A number that is not finite is a text: "NaN", "Infinity".
2. Columns are turned into text as a whole; only texts that JSON must escape are looked at one by one.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.header_table import float_json

BODY_BASE64: Final = "body_base64"
_TIME: Final = b"0000-00-00T00:00:00.000000Z"
_DAY_US: Final = 86_400_000_000
_YEAR_0: Final = -719_528 * _DAY_US
_YEAR_10000: Final = 2_932_897 * _DAY_US
_EMPTY: Final = pa.scalar("")
_TO_THE_END: Final = (1 << 31) - 1  # without an end binary_slice of Arrow 26 fails


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch, one JSON object a line."""
    pieces: list[Any] = []
    for name, values in _plain_columns(batch):
        texts = _json(values)
        pieces.append(pc.binary_join_element_wise(pa.scalar(f",{json.dumps(name)}:"), texts, _EMPTY))
    if batch.num_rows == 0:
        return b""
    if not pieces:
        return b"{}\n" * int(batch.num_rows)
    joined = pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="replace", null_replacement="")
    lines = pc.binary_join_element_wise(
        pa.scalar(b"{"), pc.binary_slice(joined.cast(pa.binary()), 1, _TO_THE_END), pa.scalar(b"}\n"), pa.scalar(b"")
    )
    bounds = np.frombuffer(lines.buffers()[1], np.int32)
    first, end = int(bounds[lines.offset]), int(bounds[lines.offset + len(lines)])
    content: bytes = lines.buffers()[2][first:end].to_pybytes()
    return content


def csv_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose columns CSV can hold."""
    columns = _plain_columns(batch)
    return pa.RecordBatch.from_arrays(
        [_json(values) if pa.types.is_map(values.type) else _time_text(values) for _, values in columns],
        names=[name for name, _ in columns],
    )


def _time_text(values: pa.Array) -> pa.Array:
    """Return times as texts; anything else as it is."""
    if not pa.types.is_timestamp(values.type):
        return values
    micros = values.view(pa.int64()).fill_null(0).to_numpy()
    if len(micros) == 0 or int(micros.min()) < _YEAR_0 or int(micros.max()) >= _YEAR_10000:
        far = [with_four_digits(text) + "Z" for text in np.datetime_as_string(micros.astype("M8[us]")).tolist()]
        return pa.array(far, pa.string(), mask=values.is_null().to_numpy(zero_copy_only=False))
    # Ten times as fast as Arrow's cast, which asks for the rules of the zone each time, and fails for far years.
    days = (micros // _DAY_US).astype("M8[D]")
    months = days.astype("M8[M]")
    years = days.astype("M8[Y]")
    of_day = micros % _DAY_US
    text = np.empty((len(micros), len(_TIME)), np.uint8)
    text[:] = np.frombuffer(_TIME, np.uint8)
    for at, digits, numbers in (
        (0, 4, years.astype(np.int64) + 1970),
        (5, 2, (months - years).astype(np.int64) + 1),
        (8, 2, (days - months).astype(np.int64) + 1),
        (11, 2, of_day // 3_600_000_000),
        (14, 2, of_day // 60_000_000 % 60),
        (17, 2, of_day // 1_000_000 % 60),
        (20, 6, of_day % 1_000_000),
    ):
        left = numbers
        for place in range(at + digits - 1, at - 1, -1):
            text[:, place] += (left % 10).astype(np.uint8)
            left = left // 10
    bounds = np.arange(0, text.size + 1, len(_TIME), dtype=np.int32)
    texts = pa.Array.from_buffers(pa.string(), len(micros), [None, pa.py_buffer(bounds), pa.py_buffer(text)])
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string())) if values.null_count else texts


def with_four_digits(text: str) -> str:
    """Return a time whose year has four digits at least: numpy counts the sign of one before 0 as one."""
    if not text.startswith("-"):
        return text
    year, _, rest = text[1:].partition("-")
    return f"-{year:0>4}-{rest}"


def _plain_columns(batch: pa.RecordBatch) -> list[tuple[str, pa.Array]]:
    """Return the columns by name, with binary ones as texts."""
    columns: list[tuple[str, pa.Array]] = []
    for field, values in zip(batch.schema, batch.columns, strict=True):
        if field.name == "body" and pa.types.is_binary(field.type):
            columns += _bodies(values)
        else:
            columns.append((field.name, values))
    return columns


def _bodies(bodies: pa.Array) -> list[tuple[str, pa.Array]]:
    try:
        return [("body", bodies.cast(pa.string())), (BODY_BASE64, pa.nulls(len(bodies), pa.string()))]
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        encoded: list[str | None] = []
        for body in bodies.to_pylist():
            try:
                texts.append(body.decode())
                encoded.append(None)
            except UnicodeDecodeError:
                texts.append(None)
                encoded.append(base64.b64encode(body).decode())
        return [("body", pa.array(texts, pa.string())), (BODY_BASE64, pa.array(encoded, pa.string()))]


def _json(values: pa.Array) -> pa.Array:
    """Return values as JSON, null for null."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.string())
    if pa.types.is_timestamp(kind):
        return _quoted(_time_text(values))
    if pa.types.is_string(kind):
        return _quoted(values)
    if pa.types.is_binary(kind):
        return _quoted(_base64(values))
    if pa.types.is_floating(kind):
        return pa.array([None if value is None else float_json(value) for value in values.to_pylist()], pa.string())
    if pa.types.is_map(kind):
        return _objects(values)
    return values.cast(pa.string())


def _base64(values: pa.Array) -> pa.Array:
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.string())
    texts = [None if value is None else base64.b64encode(value).decode() for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts as JSON strings."""
    held = texts.buffers()[2]
    if held is not None and held.size:
        octets = np.frombuffer(held, np.uint8)
        if bool(((octets < 0x20) | (octets == 0x22) | (octets == 0x5C)).any()):
            escaped = [None if text is None else json.dumps(text, ensure_ascii=False) for text in texts.to_pylist()]
            return pa.array(escaped, pa.string())
    mark = pa.scalar('"')
    return pc.binary_join_element_wise(mark, texts, mark, _EMPTY)


def _objects(maps: pa.Array) -> pa.Array:
    """Return maps as JSON objects."""
    bounds = maps.offsets.to_numpy()
    first, count = int(bounds[0]), int(bounds[-1]) - int(bounds[0])
    keys, items = maps.keys.slice(first, count), maps.items.slice(first, count)
    values = _structs(items) if pa.types.is_struct(items.type) else _json(items).fill_null("null")
    entries = pc.binary_join_element_wise(_quoted(keys), values, ":")
    lists = pa.ListArray.from_arrays(pa.array(bounds - first, pa.int32()), entries)
    objects = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")
    return pc.if_else(maps.is_valid(), objects, pa.scalar(None, pa.string())) if maps.null_count else objects


def _structs(items: pa.Array) -> pa.Array:
    """Return structs as JSON objects of their fields that are not null."""
    pieces = []
    for field, values in zip(items.type, items.flatten(), strict=True):
        if values.null_count < len(values):
            pieces.append(pc.binary_join_element_wise(f",{json.dumps(field.name)}:", _json(values), ""))
    if not pieces:
        return pa.repeat(pa.scalar("{}"), len(items))
    joined = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")
