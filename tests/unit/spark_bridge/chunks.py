"""Chunks made by the broker's own writer, and what they must read as."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, ColumnsWriter
from warren.msgstore.log.message import Envelope, build_message
from warren.spark_bridge.columns import Context, read_chunks, to_record_batches

NO_PROPERTIES = b"\0\0"


class Sent(NamedTuple):
    """A message to be put into a chunk."""

    offset: int
    body: bytes = b"body"
    properties: bytes = NO_PROPERTIES
    exchange: str = ""
    routing_key: str = "q"
    time_ms: int = 1_700_000_000_000
    redelivered: bool = False


def zstd(part: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(part, asbytes=True))


def chunk_of(
    messages: Sequence[Sent],
    first: int | None = None,
    end: int | None = None,
    *,
    bodies: bool = True,
    properties: bool = True,
    compacted: bool = False,
    counted: bool = False,
    compress: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Return a chunk of `messages` as the broker makes it."""
    writer = ColumnsWriter(bodies=bodies, properties=properties, compacted=compacted, counted=counted)
    envelopes: dict[tuple[str, str], Envelope] = {}
    for sent in messages:
        route = (sent.exchange, sent.routing_key)
        envelope = envelopes.setdefault(route, Envelope(*route))
        message = build_message(envelope, sent.properties, sent.body, 4096, True)
        message.time_ms = sent.time_ms
        writer.add(sent.offset, message, sent.redelivered)
    start = messages[0].offset if first is None else first
    behind = messages[-1].offset + 1 if end is None else end
    return b"".join(writer.finish(start, behind).encode(compress))


def rows(
    data: bytes, schema: pa.Schema, context: Context | None = None, first: int | None = None, end: int | None = None
) -> list[dict[str, Any]]:
    """Return what the chunks in `data` read as."""
    found: list[dict[str, Any]] = []
    for chunk in read_chunks(data):
        for batch in to_record_batches(chunk, schema, context or Context("q"), first=first, end=end):
            batch.validate(full=True)
            assert batch.schema.equals(schema, check_metadata=True)
            found += batch.to_pylist()
    return found


def signed(chunk: bytearray) -> bytes:
    """Return a chunk that was tampered with, with checksums that are right again."""
    chunk[184:188] = struct.pack("<I", zlib.crc32(chunk[CHUNK_HEAD_BYTES:]))
    chunk[188:192] = struct.pack("<I", zlib.crc32(chunk[:188]))
    return bytes(chunk)
