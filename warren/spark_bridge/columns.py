"""Chunks of messages, as the broker hands them out, to Arrow record batches.

    chunk, all integers little-endian: a head of 192 bytes, then the parts, each at a multiple of 64
         0   8  magic "WARRNCOL"
         8   2  major = 1             another one is refused
        10   1  compression           of each part by itself, where it has become smaller: 0 none, 1 zstd
        11   1  flags                 0x01 SPARSE      there is a part of offsets; else they are first, first + 1, ...
                                      0x08 COMPACTED   missing offsets were removed by compaction, and are not lost
                                      0x10 COUNTED     x-delivery-count in the headers is the queue's count; without
                                                       it is 0
                                      0x06             not looked at here, as is the filter
        12   4  count                 of messages
        16   8  first                 the chunk stands for the offsets from here
        24   8  end                   to here; those that it does not have are gone, or cannot be read
        32   8  min_time_us           of its messages, since the Unix epoch
        40   8  max_time_us
        48   4  route_count
        52   4  zero
        56  72  parts: bytes here u32, bytes when uncompressed u32; in this order, an absent one has 0
                     OFFSETS         i64 each, ascending
                     TIMES           i64 each, microseconds since the Unix epoch: when it was published
                     FLAGS           u8 each: 0x01 REDELIVERED; absent when all are 0
                     ROUTES          u16 each, number in the table of names; absent when there is one route
                     NAMES           i32 each + 1: where each begins, then UTF-8: exchange, routing key of route 0, ...
                     BODY_ENDS       i32 each + 1: where each body begins in BODIES; the last is where they end
                     BODIES
                     PROPERTY_ENDS   i32 each + 1, as of bodies
                     PROPERTIES      property flags u16 and property list, as in the content header (big-endian)
       128  48  filter
       176   8  zero
       184   4  crc                   CRC-32 (zlib) of everything after the head, padding too
       188   4  crc                   CRC-32 of bytes 0..187

1. A chunk is used only after its checksums were verified, and its sizes are trusted only within the bytes that are
   there: any contradiction is a `DamagedChunk`, never a crash, and never other rows.
2. Offsets, timestamps and bodies are not copied, unless the parts are compressed; they keep the bytes of the answer
   alive. Only requested properties need work for each single message.
3. A batch has at most `BATCH_ROWS` rows, and more than `BATCH_BYTES` of bodies only when it is a single row.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge import properties
from warren.spark_bridge.bridge_errors import DamagedChunk
from warren.spark_bridge.schema import MAP, PROPERTY_COLUMNS, TIMESTAMP_TYPE, arrow_type

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "HEAD_BYTES", "Chunk", "Context", "DamagedChunk", "read_chunks"]
__all__ += ["to_record_batches"]

MAGIC: Final = b"WARRNCOL"
MAJOR: Final = 1
HEAD_BYTES: Final = 192
ALIGNMENT_BYTES: Final = 64
SPARSE: Final = 0x01
COMPACTED: Final = 0x08
COUNTED: Final = 0x10
REDELIVERED: Final = 0x01

OFFSETS: Final = 0
TIMES: Final = 1
FLAGS: Final = 2
ROUTES: Final = 3
NAMES: Final = 4
BODY_ENDS: Final = 5
BODIES: Final = 6
PROPERTY_ENDS: Final = 7
PROPERTIES: Final = 8
PART_COUNT: Final = 9

BATCH_ROWS: Final = 16384
BATCH_BYTES: Final = 8 << 20
# A part can grow to no more than this when it is uncompressed: Arrow counts its bytes with an i32.
PART_BYTES_MAX: Final = (1 << 31) - 1

_HEAD: Final = struct.Struct("<8sHBBIqqqqI")
_PARTS: Final = struct.Struct(f"<{2 * PART_COUNT}I")
_PARTS_AT: Final = 56
_CRCS: Final = struct.Struct("<II")
_CRC_AT: Final = 184
_CODECS: Final = {1: "zstd"}
_DELIVERY_COUNT: Final = "x-delivery-count"
_COUNT_DIGITS: Final = 10  # a number with this many digits is not a count of a queue

Words = npt.NDArray[np.int64]


@dataclass
class Context:
    """Facts about the messages that a chunk does not contain, and counts made while reading.

    `failures`: how often a reader has failed with them, in addition to their own counts. `undecodable_bodies` counts
    bodies that are wanted as strings and are not UTF-8: null in the batches.
    """

    queue: str
    partition: int = 0
    failures: int = 0
    undecodable_bodies: int = 0


class Chunk:
    """A chunk whose head and checksums are right; the parts are read when they are asked for."""

    def __init__(self, data: pa.Buffer, head: bytes, at: int) -> None:
        (
            _,
            _,
            self.compression,
            flags,
            self.count,
            self.first,
            self.end,
            self.min_time_us,
            self.max_time_us,
            routes,
        ) = _HEAD.unpack_from(head)
        self.is_sparse: bool = flags & SPARSE != 0
        self.is_compacted: bool = flags & COMPACTED != 0  # missing offsets are not lost
        self.is_counted: bool = flags & COUNTED != 0
        self.route_count: int = routes
        self.bytes: int = 0  # of the whole chunk
        self._at = at  # in the data that was read, for messages
        sizes = _PARTS.unpack_from(head, _PARTS_AT)
        self._whole = sizes[1::2]
        self._stored: list[tuple[int, int]] = []
        pos = HEAD_BYTES
        for stored in sizes[::2]:
            self._stored.append((pos, stored))
            pos += -(-stored // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.bytes = pos
        self._data = data
        self._parts: dict[int, pa.Buffer] = {}
        self._offsets: Words | None = None

    def _check(self) -> None:
        """Check the fields of the head against each other."""
        if self.compression != 0 and self.compression not in _CODECS:
            raise self._damaged(f"unknown compression {self.compression}")
        if self.first < 0 or self.end < self.first or self.count > self.end - self.first:
            raise self._damaged(f"{self.count} messages cannot have the offsets from {self.first} to {self.end}")
        if not self.is_sparse and self.count != self.end - self.first:
            raise self._damaged("offsets are missing, and there is no part of offsets")
        if self.count and not self.route_count:
            raise self._damaged("messages without a route")
        for number, ((_, stored), whole) in enumerate(zip(self._stored, self._whole, strict=True)):
            is_compressed = self.compression != 0 and 0 < stored < whole <= PART_BYTES_MAX
            if stored != whole and not is_compressed:
                raise self._damaged(f"part {number} has {stored} bytes instead of {whole}")

    def _damaged(self, what: str) -> DamagedChunk:
        return DamagedChunk(f"chunk of the offsets from {self.first}, at byte {self._at}: {what}")

    def has_part(self, number: int) -> bool:
        """Tell whether the part is there."""
        return bool(self._whole[number])

    def part(self, number: int) -> pa.Buffer:
        """Return a part, uncompressed; an absent one is empty."""
        found = self._parts.get(number)
        if found is None:
            at, stored = self._stored[number]
            whole = self._whole[number]
            found = self._data.slice(at, stored)
            if stored < whole:
                try:
                    found = pa.Codec(_CODECS[self.compression]).decompress(found, decompressed_size=whole)
                except (OSError, ValueError, pa.ArrowException) as error:
                    raise self._damaged(f"part {number}: {error}") from None
            self._parts[number] = found
        return found

    def _array(self, number: int, kind: str, count: int) -> npt.NDArray[Any]:
        """Return a part that has `count` numbers."""
        part = self.part(number)
        size = np.dtype(kind).itemsize * count
        if part.size != size:
            raise self._damaged(f"part {number} has {part.size} bytes instead of {size}")
        return np.frombuffer(part, kind, count)

    def offsets(self) -> Words:
        """Return the offset of each message."""
        if self._offsets is None:
            if not self.is_sparse:
                found: Words = np.arange(self.first, self.end, dtype=np.int64)
            else:
                found = self._array(OFFSETS, "<i8", self.count)
                if self.count and not (
                    found[0] >= self.first and found[-1] < self.end and bool((found[1:] > found[:-1]).all())
                ):
                    raise self._damaged("its offsets do not ascend within its range")
            self._offsets = found
        return self._offsets

    def rows(self, first: int, end: int) -> tuple[int, int]:
        """Return from which row to which the messages with the offsets [first, end) are."""
        if not self.is_sparse:
            low, high = (min(max(offset - self.first, 0), self.count) for offset in (first, end))
        else:
            low, high = (int(row) for row in np.searchsorted(self.offsets(), (first, end)))
        return low, max(low, high)

    def ends(self, number: int) -> npt.NDArray[np.int32]:
        """Return where each value begins, and where the last one ends, in the part after part `number`."""
        found: npt.NDArray[np.int32] = self._array(number, "<i4", self.count + 1)
        if found[0] != 0 or int(found[-1]) != self._whole[number + 1] or bool((found[1:] < found[:-1]).any()):
            raise self._damaged(f"the ends in part {number} do not ascend")
        return found

    def routes(self) -> tuple[pa.Array, pa.Array, npt.NDArray[np.uint16] | None]:
        """Return exchanges and routing keys of the routes, and the route of each message; None: all have the first."""
        names = self.part(NAMES)
        starts_bytes = 4 * (2 * self.route_count + 1)
        if names.size < starts_bytes:
            raise self._damaged("its table of names is too short")
        starts = np.frombuffer(names, "<i4", 2 * self.route_count + 1)
        text = names.slice(starts_bytes)
        if starts[0] != 0 or int(starts[-1]) != text.size or bool((starts[1:] < starts[:-1]).any()):
            raise self._damaged("its table of names does not add up")
        both = pa.Array.from_buffers(pa.binary(), len(starts) - 1, [None, pa.py_buffer(starts), text])
        both = properties.as_text(both)
        exchanges = both.take(pa.array(np.arange(0, 2 * self.route_count, 2)))
        keys = both.take(pa.array(np.arange(1, 2 * self.route_count, 2)))
        if not self.has_part(ROUTES):
            if self.route_count > 1:
                raise self._damaged("several routes, and none for each message")
            return exchanges, keys, None
        numbers: npt.NDArray[np.uint16] = self._array(ROUTES, "<u2", self.count)
        if self.count and int(numbers.max()) >= self.route_count:
            raise self._damaged("a message has an unknown route")
        return exchanges, keys, numbers

    # --- columns -------------------------------------------------------------------------------------------------

    def _fixed(self, number: int, kind: pa.DataType, low: int, high: int) -> pa.Array:
        """Return rows of a part of i64 as they lie there."""
        part = self.part(number)
        if part.size != 8 * self.count:
            raise self._damaged(f"part {number} has {part.size} bytes instead of {8 * self.count}")
        return pa.Array.from_buffers(kind, high - low, [None, part.slice(8 * low, 8 * (high - low))])

    def bodies(self, low: int, high: int) -> pa.Array:
        """Return the bodies of the rows [low, high)."""
        if not self.has_part(BODY_ENDS):
            raise self._damaged("the bodies were left out")
        self.ends(BODY_ENDS)
        buffers = [None, self.part(BODY_ENDS), self.part(BODIES)]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers).slice(low, high - low)

    def property_columns(self, names: list[str], headers_format: str, low: int, high: int) -> dict[str, pa.Array]:
        """Return columns out of the properties of the rows [low, high)."""
        if not self.has_part(PROPERTY_ENDS):
            raise self._damaged("the properties were left out")
        ends = self.ends(PROPERTY_ENDS)[low : high + 1]
        data = np.frombuffer(self.part(PROPERTIES), np.uint8)
        offsets = self.offsets()
        return properties.decode_properties(ends, data, names, headers_format, lambda row: int(offsets[low + row]))

    def delivery_counts(self, low: int, high: int) -> Words:
        """Return how often a delivery of each of the rows [low, high) has failed, by their headers; 0 without."""
        found: Words = np.zeros(high - low, np.int64)
        if not self.has_part(PROPERTY_ENDS):
            raise self._damaged("the properties were left out")
        ends = self.ends(PROPERTY_ENDS)
        data = self.part(PROPERTIES).slice(int(ends[low]), int(ends[high]) - int(ends[low]))
        if _DELIVERY_COUNT.encode() in data.to_pybytes():
            headers = self.property_columns(["headers"], MAP, low, high)["headers"]
            for row, text in enumerate(pc.map_lookup(headers, pa.scalar(_DELIVERY_COUNT), "last").to_pylist()):
                if text is not None and text.isdecimal() and len(text) < _COUNT_DIGITS:
                    found[row] = int(text)
        return found

    def redelivered(self, low: int, high: int) -> pa.Array:
        """Return which of the rows [low, high) are redelivered."""
        if not self.has_part(FLAGS):
            return pa.repeat(pa.scalar(False), high - low)
        return pa.array(self._array(FLAGS, "u1", self.count)[low:high] & REDELIVERED != 0)


def let_go(chunks: list[Chunk]) -> Iterator[Chunk]:
    """Yield chunks and forget each: a chunk that was read is uncompressed, and many times as large as before."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()


def read_chunks(data: bytes | bytearray | memoryview | pa.Buffer) -> Iterator[Chunk]:
    """Yield the chunks that follow one another in `data`, each checked before it is yielded.

    Raises:
        DamagedChunk: the data is not a chunk, is not complete, or is not what was written.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    view = memoryview(buffer)
    at = 0
    while at < len(view):
        head = bytes(view[at : at + HEAD_BYTES])
        if len(head) < HEAD_BYTES:
            raise DamagedChunk(f"at byte {at}: {len(head)} bytes are not a chunk")
        if head[: len(MAGIC)] != MAGIC:
            raise DamagedChunk(f"at byte {at}: not the beginning of a chunk")
        major = _HEAD.unpack_from(head)[1]
        if major != MAJOR:
            raise DamagedChunk(f"at byte {at}: a chunk of version {major}, and this can read version {MAJOR} only")
        body_crc, head_crc = _CRCS.unpack_from(head, _CRC_AT)
        if zlib.crc32(head[: HEAD_BYTES - 4]) != head_crc:
            raise DamagedChunk(f"at byte {at}: the head of a chunk is damaged")
        chunk = Chunk(buffer, head, at)
        if chunk.bytes > len(view) - at:
            raise chunk._damaged(f"{len(view) - at} of its {chunk.bytes} bytes are there")
        chunk._data = buffer.slice(at, chunk.bytes)
        if zlib.crc32(view[at + HEAD_BYTES : at + chunk.bytes]) != body_crc:
            raise chunk._damaged("its checksum is wrong")
        chunk._check()
        yield chunk
        at += chunk.bytes


def to_record_batches(
    chunk: Chunk, schema: pa.Schema, context: Context, *, first: int | None = None, end: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `chunk` with offsets in [first, end) as batches of exactly `schema`.

    `schema` has any of the columns of `schema.COLUMNS`; its types give the form of the body and the headers.

    Raises:
        DamagedChunk: numbers do not add up, or the chunk lacks a requested column.
        ValueError: an unknown column, or one with a type that it cannot have.
    """
    low, high = chunk.rows(chunk.first if first is None else first, chunk.end if end is None else end)
    if low == high:
        return
    headers_format = _headers_format(schema)
    wanted = [name for name in schema.names if name in PROPERTY_COLUMNS]
    has_bodies = "body" in schema.names
    routes = chunk.routes() if "exchange" in schema.names or "routing_key" in schema.names else None
    for start, stop in _cuts(chunk, low, high, has_bodies):
        made = chunk.property_columns(wanted, headers_format, start, stop) if wanted else {}
        arrays = []
        for field in schema:
            name = field.name
            array = made[name] if name in made else _column(chunk, name, field.type, context, routes, start, stop)
            if array.type != field.type:
                raise ValueError(f"column {name!r} is {array.type}, not {field.type}")
            arrays.append(array)
        if arrays:
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        else:  # no columns are wanted, only the number of rows
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * (stop - start), pa.struct([])))


def _column(
    chunk: Chunk,
    name: str,
    kind: pa.DataType,
    context: Context,
    routes: tuple[pa.Array, pa.Array, npt.NDArray[np.uint16] | None] | None,
    low: int,
    high: int,
) -> pa.Array:
    count = high - low
    if name == "queue":
        return pa.repeat(pa.scalar(context.queue, pa.string()), count)
    if name == "partition":
        return pa.repeat(pa.scalar(context.partition, pa.int32()), count)
    if name == "offset":
        if chunk.is_sparse:
            chunk.offsets()
            return chunk._fixed(OFFSETS, pa.int64(), low, high)
        return pa.array(np.arange(chunk.first + low, chunk.first + high, dtype=np.int64))
    if name == "timestamp":
        return chunk._fixed(TIMES, TIMESTAMP_TYPE, low, high)
    if name in ("exchange", "routing_key"):
        assert routes is not None
        names = routes[0] if name == "exchange" else routes[1]
        numbers = routes[2]
        return pa.repeat(names[0], count) if numbers is None else names.take(pa.array(numbers[low:high]))
    if name == "redelivered":
        return chunk.redelivered(low, high)
    if name == "delivery_count":
        if not chunk.is_counted:
            return pa.nulls(count, pa.int32())
        return pa.array(chunk.delivery_counts(low, high) + context.failures, pa.int64()).cast(pa.int32(), safe=False)
    if name == "body":
        bodies = chunk.bodies(low, high)
        if kind != pa.string():
            return bodies
        texts, bad = _texts_or_nulls(bodies)
        context.undecodable_bodies += bad
        return texts
    arrow_type(name)  # raises: the column does not exist
    raise AssertionError(name)


def _cuts(chunk: Chunk, low: int, high: int, has_bodies: bool) -> Iterator[tuple[int, int]]:
    """Yield the rows of each batch."""
    ends = chunk.ends(BODY_ENDS) if has_bodies and chunk.has_part(BODY_ENDS) else None
    if ends is None or int(ends[high]) - int(ends[low]) <= BATCH_BYTES:
        for start in range(low, high, BATCH_ROWS):
            yield start, min(start + BATCH_ROWS, high)
        return
    start = low
    while start < high:
        limit = int(ends[start]) + BATCH_BYTES
        stop = int(np.searchsorted(ends, limit, side="right")) - 1
        stop = min(max(stop, start + 1), start + BATCH_ROWS, high)
        yield start, stop
        start = stop


def _headers_format(schema: pa.Schema) -> str:
    """Return the headers format that the type of the column `headers` stands for."""
    if "headers" not in schema.names:
        return "map"
    kind = schema.field("headers").type
    for headers_format in ("map", "typed", "json"):
        if kind == arrow_type("headers", headers_format):
            return headers_format
    raise ValueError(f"column 'headers' cannot be {kind}")


def _texts_or_nulls(values: pa.Array) -> tuple[pa.Array, int]:
    """Return binaries as strings, null where they are not UTF-8, and the number of those."""
    try:
        return values.cast(pa.string()), 0
    except pa.ArrowInvalid:
        texts = [_maybe_text(value) for value in values.to_pylist()]
        return pa.array(texts, pa.string()), texts.count(None)


def _maybe_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
