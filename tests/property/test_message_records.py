"""The fast writer makes the same record of any message as the grammar, whole or in pieces, copied, and read again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import append, vec
from mypy_extensions import i64
from store_directory import content

from warren.msgstore.log import records
from warren.msgstore.log.checksum import CRC32C, checksum_function
from warren.msgstore.log.message import Envelope, Message
from warren.msgstore.log.records import CHUNK_MIN_BYTES, DROPPABLE, EXPIRES, MOVED, TIMED, MessageReader, RecordWriter
from warren.msgstore.log.replay import _length_by_head, trusted_end
from warren.msgstore.tools.format import MESSAGE, Record

from .wire import thorough

CHECKSUM = checksum_function(CRC32C)
MAX = 2**63 - 1

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
sizes = st.one_of(
    st.integers(0, 100), st.integers(CHUNK_MIN_BYTES - 80, CHUNK_MIN_BYTES + 20), st.sampled_from((70_000, 200_000))
)
times = st.one_of(st.just(0), st.integers(1, MAX))
places = st.lists(st.tuples(st.integers(1, MAX), st.integers(0, MAX)), min_size=1, max_size=3)


def vectors(pairs: list[tuple[int, int]]) -> tuple[vec[i64], vec[i64]]:
    ids, numbers = vec[i64](), vec[i64]()
    for queue_id, number in pairs:
        ids = append(ids, queue_id)
        numbers = append(numbers, number)
    return ids, numbers


def built(message: Message, flags: int, pairs: list[tuple[int, int]]) -> bytes:
    """Return the record of `message` as the grammar has it."""
    body = {
        "frame_max_bytes": message.frame_max_bytes,
        "channel": message.channel,
        "places": [{"queue_id": queue_id, "sequence_number": number} for queue_id, number in pairs],
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "content": message.content,
        "time_ms": message.time_ms,
    }
    data: bytes = Record.build({"kind": MESSAGE, "flags": flags, "body": body}, algorithm=CRC32C)
    return data


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Draw a message; with a time of any sort, and a time to live that only counts when there is a time."""
    properties: dict[str, Any] = {"type": "t"}
    expiration = draw(st.none() | st.integers(0, 10**11))
    if expiration is not None:
        properties["expiration"] = str(expiration)
    channel = draw(st.integers(1, 65535))
    frame_max = draw(st.sampled_from((64, 4096, 131072)))
    body = bytes(draw(sizes)) + draw(st.binary(max_size=8))
    whole = content(body, properties, channel, frame_max)
    message = Message(Envelope(draw(names), draw(names)), whole, channel, len(body), frame_max, draw(st.booleans()))
    message.time_ms = draw(times)
    message.expiration_ms = -1 if expiration is None else expiration
    return message


def flags_of(message: Message) -> int:
    flags = 0 if message.persistent else DROPPABLE
    if message.time_ms:
        flags |= TIMED
        if message.expiration_ms >= 0:
            flags |= EXPIRES
    return flags


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


@thorough(300)
@given(st.lists(st.tuples(messages(), places, st.lists(st.integers(0, 9000), max_size=3)), min_size=1, max_size=3))
def test_the_fast_writer_makes_the_bytes_of_the_grammar(
    written: list[tuple[Message, list[tuple[int, int]], list[int]]],
) -> None:
    writer = RecordWriter(CHECKSUM)
    expected = b""
    for message, pairs, cuts in written:
        record = built(message, flags_of(message), pairs)
        if cuts:
            ends = [0, *sorted(cuts), len(message.content)]
            message.pieces = [message.content[start:end] for start, end in pairwise(ends)]
            message.content = b""
        flags = 0 if message.persistent else DROPPABLE
        assert writer.message(message, flags, *vectors(pairs)) == len(record)
        expected += padded(record)
    assert writer.payload_bytes == len(expected)
    assert b"".join(writer.take_chunks()) == expected


@thorough(200)
@given(messages(), places, st.data())
def test_a_copy_for_some_of_the_places_loses_nothing_else(
    message: Message, pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    flags = flags_of(message) | MOVED
    kept = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=3))
    writer = RecordWriter(CHECKSUM)
    length = writer.copy(built(message, flags_of(message), pairs), flags, *vectors(kept))
    record = built(message, flags, kept)
    assert (length, b"".join(writer.take_chunks())) == (len(record), padded(record))


@thorough(200)
@given(messages(), places, st.integers(0, 3))
def test_a_message_comes_back_with_its_time_from_anywhere(
    message: Message, pairs: list[tuple[int, int]], words_before: int
) -> None:
    record = built(message, flags_of(message), pairs)
    at = 8 * words_before
    data = bytes(at) + padded(record) + b"what follows"
    read = MessageReader().message(data, at)
    timed_expiration = message.expiration_ms if message.time_ms else -1
    assert (read.time_ms, read.expiration_ms) == (message.time_ms, timed_expiration)
    assert records.time_of(data, at) == message.time_ms
    assert (read.content, read.channel, read.body_bytes) == (message.content, message.channel, message.body_bytes)
    assert (read.frame_max_bytes, read.persistent) == (message.frame_max_bytes, message.persistent)
    assert (read.envelope.exchange, read.envelope.routing_key) == (
        message.envelope.exchange,
        message.envelope.routing_key,
    )
    assert _length_by_head(data, at) == len(record)


@thorough(150)
@given(messages(), places, st.data())
def test_a_message_whose_body_or_time_is_damaged_is_stepped_over(
    message: Message, pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    record = bytearray(built(message, flags_of(message), pairs))
    record[data.draw(st.integers(24 + 16 * len(pairs), len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    payload = padded(bytes(record))
    assert trusted_end(CHECKSUM, payload, 0, len(payload)) == len(payload)
