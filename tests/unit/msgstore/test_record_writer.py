"""A writer of records writes the same whatever its buffers held, and one range of acks as a list of ranges."""

from __future__ import annotations

import zlib

from librt.vecs import vec
from mypy_extensions import i64

from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.records import FRAME_BYTES, RecordBuffers, RecordWriter, place_count, record_length

MAX_WORD = (1 << 31) - 1


def message(body: bytes) -> Message:
    return build_message(Envelope("exchange", "key"), b"\0\0", body, 0, persistent=True)


def written(writer: RecordWriter, body: bytes) -> bytes:
    writer.ack_range(7, 1, 2)
    writer.message(message(body), 0, vec[i64]([7]), vec[i64]([8]))
    writer.message(message(b"last"), 0, vec[i64]([7]), vec[i64]([9]))
    return b"".join(writer.take_chunks())


def test_one_range_is_written_as_a_list_with_one() -> None:
    one, other = RecordWriter(zlib.crc32), RecordWriter(zlib.crc32)
    one.ack_range(7, 1 << 40, 12)
    other.acks(7, [(1 << 40, 12)])
    assert b"".join(one.take_chunks()) == b"".join(other.take_chunks())
    assert one.payload_bytes == other.payload_bytes


def test_a_writer_that_takes_over_buffers_writes_the_same() -> None:
    buffers = RecordBuffers()
    left = RecordWriter(zlib.crc32, FRAME_BYTES, buffers)
    left.ack_range(1, 2, 3)  # it is given up with bytes in its buffers
    for size in (3, 300, 30_000, 100_000, 5):
        body = bytes([size % 251]) * size
        taken = written(RecordWriter(zlib.crc32, FRAME_BYTES, buffers), body)
        assert taken == written(RecordWriter(zlib.crc32), body)


def test_the_head_of_a_message_record_keeps_its_fields_apart() -> None:
    """Eight fields are written as two numbers."""
    extreme = message(b"body")
    extreme.frame_max_bytes = MAX_WORD
    extreme.channel = 65535
    writer = RecordWriter(zlib.crc32)
    length = writer.message(extreme, 0xFF, vec[i64]([1] * 65535), vec[i64]([2] * 65535))
    record = b"".join(writer.take_chunks())
    assert record_length(record, 0) == length
    assert (record[8], record[9], place_count(record, 0)) == (1, 0xFF, 65535)
    assert record[12:20] == MAX_WORD.to_bytes(4, "big") + b"\xff\xff" + bytes([len("exchange"), len("key")])
