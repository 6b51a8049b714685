"""Chunks that are read for cursors: how cursors share them, how long they stay, and their memory.

In parentheses: the invariants in the header of ``streams/chunk_reader.py``.
"""

from __future__ import annotations

import pytest
from sealing_stream import CHUNK, Sealing

from warren.amqp import methods as m
from warren.streams import stream as stream_module
from warren.streams.chunk_reader import ChunkReader


def reader_of(s: Sealing) -> ChunkReader:
    found = s.stream._chunks
    assert found is not None
    return found


def restarted(*, chunk: int, count: int = 4 * CHUNK) -> Sealing:
    """Return a stream whose messages are all on disk."""
    s = Sealing(chunk=chunk)
    s.publish(count)
    s.restart(clean=True)
    return s


def test_a_stream_without_consumers_has_nothing_to_read_with() -> None:
    s = restarted(chunk=CHUNK)
    others = Sealing()
    for stream in (s.stream, others.stream):
        assert stream._chunks is None
        assert stream.cursors is stream_module._NO_CURSORS and stream.reading is stream_module._NO_CURSORS
        assert stream._in_turn is stream_module._NO_TURNS
    s.consumer()
    assert reader_of(s) is s.stream._chunks and len(s.stream.cursors) == 1
    assert not stream_module._NO_CURSORS and not stream_module._NO_TURNS


@pytest.mark.parametrize("chunk", [CHUNK, 1000])
def test_a_cursor_holds_the_chunk_of_its_next_offset_and_counts_its_memory(chunk: int) -> None:
    """(1), (2)"""
    s = restarted(chunk=chunk)
    before_bytes = int(s.log.resident_bytes)
    client = s.consumer(prefetch=3)
    assert s.offsets(client) == [0, 1, 2]
    (cursor,) = s.stream.cursors.values()
    held = cursor.chunk
    assert held is not None and held.has(3) and held.is_used()
    assert s.log.resident_bytes > before_bytes
    client.hang_up()
    s.harness.settle()
    assert not held.is_used() and cursor.chunk is None
    assert int(s.log.resident_bytes) == before_bytes


@pytest.mark.parametrize("chunk", [CHUNK, 1000])
def test_no_chunk_is_kept_for_consumers_that_are_gone(chunk: int) -> None:
    """(4)"""
    s = restarted(chunk=chunk)
    before_bytes = int(s.log.resident_bytes)
    for _ in range(2):
        client = s.consumer(prefetch=2 * CHUNK)
        assert s.offsets(client) == list(range(2 * CHUNK))
        client.hang_up()
        s.harness.settle()
    assert not reader_of(s).is_reading()
    assert int(s.log.resident_bytes) == before_bytes


@pytest.mark.parametrize("chunk", [CHUNK, 1000])
def test_a_read_for_a_stream_that_is_deleted_keeps_nothing(chunk: int) -> None:
    s = restarted(chunk=chunk)
    s.harness.store.hold = True
    s.consumer()
    reader, stream = reader_of(s), s.stream
    assert reader.is_reading()
    s.publisher.send(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
    assert stream.deleted
    s.harness.store.hold = False
    s.harness.settle()
    assert not reader.is_reading()
