"""The rows of chunks of columns (``msgstore.log.columns``), one by one: slowly, by the table in its header only."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from typing import NamedTuple

import zstandard

HEAD_BYTES = 192
PART_COUNT = 9
OFFSETS, TIMES, FLAGS, ROUTES, NAMES, BODY_ENDS, BODIES, PROPERTY_ENDS, PROPERTIES = range(PART_COUNT)


class Row(NamedTuple):
    """A message. `properties`: flags and property list, encoded."""

    offset: int
    body: bytes
    redelivered: bool
    exchange: str
    routing_key: str
    time_ms: int
    properties: bytes


class Chunk(NamedTuple):
    """A chunk: it stands for the offsets from `first` to `end`."""

    first: int
    end: int
    rows: list[Row]


def chunks_of(data: bytes) -> list[Chunk]:
    """Split chunks that stand one after the other."""
    found = []
    while data:
        chunk, size = _chunk(data)
        found.append(chunk)
        data = data[size:]
    return found


def rows_of(data: bytes) -> list[Row]:
    """Return the rows of all chunks."""
    return [row for chunk in chunks_of(data) for row in chunk.rows]


def _chunk(data: bytes) -> tuple[Chunk, int]:
    head = data[:HEAD_BYTES]
    assert head[:8] == b"WARRNCOL"
    assert zlib.crc32(head[:188]) == int.from_bytes(head[188:192], "little")
    count, first, end = struct.unpack_from("<Iqq", head, 12)
    parts = []
    at = HEAD_BYTES
    for number in range(PART_COUNT):
        size, whole = struct.unpack_from("<II", head, 56 + 8 * number)
        part = data[at : at + size]
        if size != whole:
            assert head[10] == 1, "it is compressed, and does not say so"
            part = zstandard.ZstdDecompressor().decompress(part, max_output_size=whole)
        assert len(part) == whole
        parts.append(part)
        at += (size + 63) // 64 * 64
    assert zlib.crc32(data[HEAD_BYTES:at]) == int.from_bytes(head[184:188], "little")
    is_sparse = head[11] & 1 != 0
    offsets = _numbers("q", parts[OFFSETS]) if is_sparse else list(range(first, end))
    assert len(offsets) == count
    times = _numbers("q", parts[TIMES])
    flags = parts[FLAGS] or bytes(count)
    routes = _numbers("H", parts[ROUTES]) or [0] * count
    (route_count,) = struct.unpack_from("<I", head, 48)
    ends = _numbers("i", parts[NAMES][: 4 * (2 * route_count + 1)])
    names = parts[NAMES][4 * (2 * route_count + 1) :]
    texts = [names[start:stop].decode() for start, stop in pairwise(ends)]
    bodies = _values(parts[BODY_ENDS], parts[BODIES], count)
    properties = _values(parts[PROPERTY_ENDS], parts[PROPERTIES], count)
    rows = [
        Row(
            offsets[row],
            bodies[row],
            flags[row] & 1 != 0,
            texts[2 * routes[row]],
            texts[2 * routes[row] + 1],
            times[row] // 1000,
            properties[row],
        )
        for row in range(count)
    ]
    return Chunk(first, end, rows), at


def _numbers(kind: str, part: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(part) // struct.calcsize(kind)}{kind}", part))


def _values(ends: bytes, values: bytes, count: int) -> list[bytes]:
    if not ends:
        return [b""] * count
    at = _numbers("i", ends)
    return [values[start:stop] for start, stop in pairwise(at)]
