"""Chunks as the tools take them apart: all contents come out as written, and inconsistencies are reported."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from column_rows import rows_of

from warren.msgstore.files.sealed_files import Zstd, uncompressed
from warren.msgstore.log.columns import (
    BODIES,
    BODY_ENDS,
    FLAGS,
    NAMES,
    OFFSETS,
    PROPERTIES,
    PROPERTY_ENDS,
    ROUTES,
    TIMES,
    ChunkHead,
    ColumnsWriter,
)
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.tools.chunk_rows import ChunkRows

KINDS = [Envelope("", "q"), Envelope("amq.topic", "schlüssel")]


def chunk(offsets: list[int], first: int, end: int, *, redelivered: bool = False) -> bytes:
    """Return a chunk of messages that differ in everything."""
    writer = ColumnsWriter()
    for offset in offsets:
        properties = b"\x10\0" + bytes([offset % 7]) if offset % 2 else b"\0\0"
        made = build_message(KINDS[offset % 2], properties, b"x" * (offset % 5) * 100, 4096, True)
        made.time_ms = 1_700_000_000_000 - offset
        writer.add(offset, made, redelivered)
    return b"".join(writer.finish(first, end).encode(Zstd().compress))


def taken_apart(data: bytes) -> tuple[ChunkHead, list[bytes]]:
    head = ChunkHead(data)
    return head, uncompressed(head, data, Zstd())


@pytest.mark.parametrize("offsets", [list(range(5, 25)), [6, 7, 11, 24], [12], []])
@pytest.mark.parametrize("redelivered", [False, True])
def test_every_message_comes_out_as_it_was_put_in(offsets: list[int], redelivered: bool) -> None:
    data = chunk(offsets, 5, 25, redelivered=redelivered)
    rows = ChunkRows(*taken_apart(data))
    expected = rows_of(data)
    assert rows.offsets == [row.offset for row in expected] == offsets
    for at, row in enumerate(expected):
        message = rows.message(at)
        assert (message.body(), message.header_payload()[12:]) == (row.body, row.properties)
        assert (message.envelope.exchange, message.envelope.routing_key) == (row.exchange, row.routing_key)
        assert message.time_ms == row.time_ms


def numbers(kind: str, *values: int) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


@pytest.mark.parametrize(
    ("part", "change", "what"),
    [
        (OFFSETS, lambda data: data[:-8], "3 offsets of 4 messages"),
        (OFFSETS, lambda data: data[:-1], "half of a number among the offsets"),
        (OFFSETS, lambda _: numbers("q", 4, 7, 11, 24), "offsets that do not ascend from 5 to 25"),
        (OFFSETS, lambda _: numbers("q", 6, 7, 11, 25), "offsets that do not ascend from 5 to 25"),
        (OFFSETS, lambda _: numbers("q", 6, 11, 7, 24), "offsets that do not ascend from 5 to 25"),
        (OFFSETS, lambda _: numbers("q", 6, 7, 7, 24), "offsets that do not ascend from 5 to 25"),
        (TIMES, lambda data: data[8:], "columns of other lengths than 4"),
        (TIMES, lambda data: bytes(8) + data[8:], "times that are not within those of the head"),
        (FLAGS, lambda data: data + b"\0", "columns of other lengths than 4"),
        (ROUTES, lambda data: data[2:], "columns of other lengths than 4"),
        (ROUTES, lambda data: numbers("H", 2) + data[2:], "a route that has no name"),
        (NAMES, lambda data: data[:-1], "names that do not end where they should"),
        (NAMES, lambda data: data[:8], "names that do not end where they should"),
        (NAMES, lambda data: data[:-1] + b"\xff", "names that are not UTF-8"),
        (BODY_ENDS, lambda data: data[4:], "bodies that do not end where they should"),
        (BODY_ENDS, lambda data: numbers("i", 1) + data[4:], "bodies that do not end where they should"),
        (BODY_ENDS, lambda data: data[:4] + numbers("i", 9999) + data[8:], "bodies that do not ascend"),
        (BODIES, lambda data: data[:-1], "bodies that do not end where they should"),
        (PROPERTY_ENDS, lambda data: data[:4] + numbers("i", 1) + data[8:], "properties without flags"),
        (PROPERTIES, lambda data: data + b"\0", "properties that do not end where they should"),
    ],
)
def test_columns_that_do_not_fit_together_are_told(part: int, change: Callable[[bytes], bytes], what: str) -> None:
    head, parts = taken_apart(chunk([6, 7, 11, 24], 5, 25, redelivered=True))
    parts[part] = change(parts[part])
    with pytest.raises(ValueError, match=what):
        ChunkRows(head, parts)


def test_a_chunk_that_has_not_all_of_its_offsets_says_which() -> None:
    whole = taken_apart(chunk([5, 6], 5, 7))
    sparse = ChunkHead(chunk([5], 5, 7))
    with pytest.raises(ValueError, match="0 offsets of 1 messages"):
        ChunkRows(sparse, whole[1])
