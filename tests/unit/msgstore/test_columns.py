"""Chunks of columns, byte by byte: the test reads them by the table in the header of ``msgstore.log.columns``."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
import zstandard

from warren.msgstore.files.sealed_files import Zstd, uncompressed
from warren.msgstore.log.columns import (
    BODIES,
    BODY_ENDS,
    CHUNK_BYTES,
    CHUNK_HEAD_BYTES,
    CHUNK_MESSAGES,
    FLAGS,
    LARGE_BODY_BYTES,
    NAMES,
    OFFSETS,
    PROPERTIES,
    PROPERTY_ENDS,
    ROUTES,
    TIMES,
    ColumnsWriter,
    add_to_filter,
    filter_mask,
    is_whole,
    may_have,
    maybe_head,
    without_parts,
)
from warren.msgstore.log.message import Envelope, Message, build_message

TIME_MS = 1_700_000_000_123
NO_PROPERTIES = b"\0\0"
PRIORITY_7 = b"\x08\x00\x07"
COMPRESS = zstandard.ZstdCompressor().compress
DECOMPRESSOR = Zstd()


class Row(NamedTuple):
    offset: int
    time_us: int
    redelivered: bool
    exchange: str
    routing_key: str
    body: bytes | None
    properties: bytes | None


class Parsed(NamedTuple):
    """A chunk, read by the table. `parts`: stored size, whole size, and the bytes as they lie there."""

    compression: int
    sparse: bool
    filtered: bool
    unfiltered: bool
    first: int
    end: int
    min_time_us: int
    max_time_us: int
    route_count: int
    parts: list[tuple[int, int, bytes]]
    filter: bytes
    rows: list[Row]
    size: int


def parsed(data: bytes) -> Parsed:
    """Read the chunk that `data` begins with; assert everything that the table says of it."""
    magic, major, compression, flags, count, first, end, low, high, routes, zero = struct.unpack_from(
        "<8sHBBIqqqqII", data
    )
    assert (magic, major, zero) == (b"WARRNCOL", 1, 0)
    assert flags & ~0x07 == 0
    sizes = struct.unpack_from("<18I", data, 56)
    assert data[176:184] == bytes(8)
    crc, head_crc = struct.unpack_from("<II", data, 184)
    assert head_crc == zlib.crc32(data[:188])
    at = 192
    parts = []
    for stored, whole in zip(sizes[::2], sizes[1::2], strict=True):
        assert at % 64 == 0
        part = data[at : at + stored]
        padded = -(-stored // 64) * 64
        assert data[at + stored : at + padded] == bytes(padded - stored)
        at += padded
        assert stored <= whole
        parts.append((stored, whole, part))
    assert crc == zlib.crc32(data[192:at])
    columns = [part if stored == whole else DECOMPRESSOR.decompress(part, whole) for stored, whole, part in parts]
    assert [len(column) for column in columns] == [whole for _, whole, _ in parts]
    offsets = numbers("q", columns[0]) if flags & 1 else list(range(first, end))
    times = numbers("q", columns[1])
    marks = columns[2] or bytes(count)
    numbered = numbers("H", columns[3]) or [0] * count
    ends = numbers("i", columns[4][: 4 * (2 * routes + 1)])
    text = columns[4][4 * (2 * routes + 1) :]
    names = [text[start:stop].decode() for start, stop in pairwise(ends)]
    bodies = cut(columns[5], columns[6], count)
    properties = cut(columns[7], columns[8], count)
    assert [len(each) for each in (offsets, times, marks, numbered, bodies, properties)] == [count] * 6
    rows = [
        Row(
            offsets[row],
            times[row],
            marks[row] == 1,
            names[2 * numbered[row]],
            names[2 * numbered[row] + 1],
            bodies[row],
            properties[row],
        )
        for row in range(count)
    ]
    return Parsed(
        compression,
        flags & 1 != 0,
        flags & 2 != 0,
        flags & 4 != 0,
        first,
        end,
        low,
        high,
        routes,
        parts,
        data[128:176],
        rows,
        at,
    )


def numbers(kind: str, part: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(part) // struct.calcsize('<' + kind)}{kind}", part))


def cut(ends: bytes, values: bytes, count: int) -> list[bytes | None]:
    if not ends:
        assert values == b""
        return [None] * count
    at = numbers("i", ends)
    assert (at[0], at[-1]) == (0, len(values))
    return [values[start:stop] for start, stop in pairwise(at)]


def message(
    body: bytes = b"",
    *,
    envelope: Envelope | None = None,
    properties: bytes = NO_PROPERTIES,
    time_ms: int = TIME_MS,
    frame_max: int = 4096,
) -> Message:
    made = build_message(envelope or Envelope("amq.topic", "a.b"), properties, body, frame_max, True)
    made.time_ms = time_ms
    return made


def chunk(*bodies: bytes, first: int = 0, compressed: bool = False) -> bytes:
    """Return a chunk of messages that follow one another."""
    writer = ColumnsWriter()
    envelope = Envelope("", "q")
    for offset, body in enumerate(bodies, first):
        writer.add(offset, message(body, envelope=envelope), False)
    return encoded(writer, first, first + len(bodies), compressed=compressed)


def encoded(writer: ColumnsWriter, first: int, end: int, *, compressed: bool = False) -> bytes:
    return b"".join(writer.finish(first, end).encode(COMPRESS if compressed else None))


# --- what is there ----------------------------------------------------------------------------------------------------


def test_every_byte_of_a_chunk_is_where_the_table_says() -> None:
    writer = ColumnsWriter()
    one, other = Envelope("amq.topic", "stock.é"), Envelope("", "q")
    writer.add(7, message(b"one", envelope=one), False)
    writer.add(8, message(b"", envelope=other, properties=PRIORITY_7, time_ms=TIME_MS - 5), True)
    writer.add(9, message(b"three", envelope=one, time_ms=TIME_MS + 9), False)
    found = parsed(encoded(writer, 7, 10))
    assert found.rows == [
        Row(7, TIME_MS * 1000, False, "amq.topic", "stock.é", b"one", NO_PROPERTIES),
        Row(8, (TIME_MS - 5) * 1000, True, "", "q", b"", PRIORITY_7),
        Row(9, (TIME_MS + 9) * 1000, False, "amq.topic", "stock.é", b"three", NO_PROPERTIES),
    ]
    assert (found.first, found.end, found.sparse, found.compression) == (7, 10, False, 0)
    assert (found.min_time_us, found.max_time_us) == ((TIME_MS - 5) * 1000, (TIME_MS + 9) * 1000)
    assert found.route_count == 2
    assert not found.filtered and not found.unfiltered and found.filter == bytes(48)
    assert [whole for _, whole, _ in found.parts] == [0, 24, 3, 6, 4 * 5 + 17 + 1, 16, 8, 16, 7]


def test_the_head_says_the_same_as_the_bytes() -> None:
    data = chunk(b"x", b"yy", first=41)
    found, head = parsed(data), maybe_head(data)
    assert head is not None
    assert (head.count, head.first, head.end, head.route_count) == (2, 41, 43, 1)
    assert (head.min_time_us, head.max_time_us) == (found.min_time_us, found.max_time_us)
    assert list(zip(head.stored, head.whole, strict=True)) == [(stored, whole) for stored, whole, _ in found.parts]
    for place, (stored, _, part) in zip(head.places, found.parts, strict=True):
        assert data[int(place) : int(place) + stored] == part
    assert head.chunk_bytes == found.size == len(data)
    assert is_whole(head, data)


def test_a_chunk_tells_where_it_ends_and_the_next_begins() -> None:
    chunks = [chunk(b"a" * size, first=offset) for offset, size in enumerate((0, 1, 64, 100))]
    data = b"".join(chunks)
    for offset, each in enumerate(chunks):
        head = maybe_head(data)
        assert head is not None and head.first == offset
        assert data[: int(head.chunk_bytes)] == each
        data = data[int(head.chunk_bytes) :]
    assert data == b""


def test_offsets_are_there_only_where_some_are_missing() -> None:
    writer = ColumnsWriter()
    for offset in (3, 4, 9):
        writer.add(offset, message(b"%d" % offset), False)
    found = parsed(encoded(writer, 2, 12))
    assert (found.sparse, found.first, found.end) == (True, 2, 12)
    assert [row.offset for row in found.rows] == [3, 4, 9]
    writer = ColumnsWriter()
    for offset in (3, 4):
        writer.add(offset, message(), False)
    assert not parsed(encoded(writer, 3, 5)).sparse


def test_a_chunk_without_messages_says_for_which_offsets_there_are_none() -> None:
    found = parsed(encoded(ColumnsWriter(), 5, 9))
    assert (found.rows, found.first, found.end, found.sparse) == ([], 5, 9, True)
    assert (found.min_time_us, found.max_time_us, found.route_count) == (0, 0, 0)
    nothing = parsed(encoded(ColumnsWriter(), 5, 5))
    assert (nothing.rows, nothing.sparse) == ([], False)


def test_flags_are_there_only_when_one_is_set() -> None:
    plain = parsed(chunk(b"a", b"b"))
    assert plain.parts[FLAGS][1] == 0
    writer = ColumnsWriter()
    for offset in range(3):
        writer.add(offset, message(), offset == 1)
    assert parsed(encoded(writer, 0, 3)).parts[FLAGS] == (3, 3, b"\0\1\0")


def test_routes_are_there_only_when_there_are_two_and_have_numbers_up_to_65535() -> None:
    assert parsed(chunk(b"a", b"b")).parts[ROUTES][1] == 0
    writer = ColumnsWriter(bodies=False, properties=False)
    count = 40_000
    envelopes = [Envelope("", str(number)) for number in range(count)]
    made = message(envelope=envelopes[0])
    for offset, envelope in enumerate(envelopes):
        made.envelope = envelope
        writer.add(offset, made, False)
    found = parsed(encoded(writer, 0, count))
    assert found.route_count == count
    assert [row.routing_key for row in found.rows] == [str(number) for number in range(count)]


def test_a_route_that_comes_again_has_its_old_number() -> None:
    writer = ColumnsWriter()
    one, other = Envelope("e", "1"), Envelope("", "2")
    for offset, envelope in enumerate((one, other, one, one, other)):
        writer.add(offset, message(envelope=envelope), False)
    found = parsed(encoded(writer, 0, 5))
    assert found.route_count == 2
    assert numbers("H", found.parts[ROUTES][2]) == [0, 1, 0, 0, 1]
    assert [(row.exchange, row.routing_key) for row in found.rows] == [("e", "1"), ("", "2")] * 1 + [
        ("e", "1"),
        ("e", "1"),
        ("", "2"),
    ]


@pytest.mark.parametrize("frame_max", [0, 9, 100, 4096])
def test_a_body_is_there_without_its_frames_however_they_were_cut(frame_max: int) -> None:
    body = bytes(range(250))
    writer = ColumnsWriter()
    writer.add(0, message(body, frame_max=frame_max), False)
    pieces = message(body, frame_max=frame_max)
    header_bytes = 8 + int.from_bytes(pieces.content[3:7], "big")
    pieces.pieces = [pieces.content[:header_bytes], pieces.content[header_bytes:]]
    pieces.content = b""
    writer.add(1, pieces, False)
    assert [row.body for row in parsed(encoded(writer, 0, 2)).rows] == [body, body]


@pytest.mark.parametrize(("bodies", "properties"), [(True, False), (False, True), (False, False)])
def test_columns_that_nobody_wants_are_not_there(bodies: bool, properties: bool) -> None:
    writer = ColumnsWriter(bodies=bodies, properties=properties)
    writer.add(0, message(b"body", properties=PRIORITY_7), True)
    found = parsed(encoded(writer, 0, 1))
    assert found.rows == [
        Row(
            0,
            TIME_MS * 1000,
            True,
            "amq.topic",
            "a.b",
            b"body" if bodies else None,
            PRIORITY_7 if properties else None,
        )
    ]


def test_a_chunk_is_full_by_messages_or_by_bytes() -> None:
    writer = ColumnsWriter(bodies=False, properties=False)
    made = message()
    for offset in range(CHUNK_MESSAGES):
        assert not writer.is_full()
        writer.add(offset, made, False)
    assert writer.is_full()
    writer = ColumnsWriter()
    writer.add(0, message(bytes(CHUNK_BYTES - 100)), False)
    assert not writer.is_full()
    writer.add(1, message(bytes(100)), False)
    assert writer.is_full()


# --- large bodies -----------------------------------------------------------------------------------------------------


def in_pieces(body: bytes, frame_bytes: int, piece_bytes: int) -> Message:
    """Return a message that came in pieces of this size, after its header."""
    made = build_message(Envelope("", "q"), PRIORITY_7, body, frame_bytes, True)
    header_bytes = 8 + int.from_bytes(made.content[3:7], "big")
    frames = made.content[header_bytes:]
    made.pieces = [made.content[:header_bytes]]
    made.pieces += [frames[at : at + piece_bytes] for at in range(0, len(frames), piece_bytes)]
    made.content = b""
    made.time_ms = TIME_MS
    return made


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("frame_bytes", "piece_bytes"), [(131072, 262144), (131072, 100_003), (4096, 262144), (100, 999)]
)
def test_a_large_body_is_where_the_table_says_between_small_ones(
    frame_bytes: int, piece_bytes: int, compressed: bool
) -> None:
    body = Random(3).randbytes(LARGE_BODY_BYTES // 2) + bytes(LARGE_BODY_BYTES // 2 + 5)
    writer = ColumnsWriter()
    writer.add(0, message(b"before"), False)
    writer.add(1, in_pieces(body, frame_bytes, piece_bytes), False)
    writer.add(2, in_pieces(body, frame_bytes, piece_bytes), False)
    writer.add(3, message(b"behind"), False)
    data = encoded(writer, 0, 4, compressed=compressed)
    assert [row.body for row in parsed(data).rows] == [b"before", body, body, b"behind"]
    head = maybe_head(data)
    assert head is not None and is_whole(head, data)
    left = b"".join(without_parts(data, [PROPERTY_ENDS, PROPERTIES]))
    assert [row.body for row in parsed(left).rows] == [b"before", body, body, b"behind"]


def test_a_large_body_is_not_copied_into_a_chunk_nor_when_columns_are_left_out() -> None:
    made = in_pieces(bytes(32 << 20), 131072, 262144)
    whole = message(bytes(32 << 20))
    tracemalloc.start()
    try:
        for each in (made, whole):
            writer = ColumnsWriter()
            writer.add(0, each, False)
            pieces = writer.finish(0, 1).encode()
            assert sum(map(len, pieces)) > 32 << 20
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        data = b"".join(pieces)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        head = maybe_head(data)
        assert head is not None and is_whole(head, data)
        assert sum(map(len, without_parts(data, [PROPERTY_ENDS, PROPERTIES]))) > 32 << 20
        assert tracemalloc.get_traced_memory()[1] - before < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_body_in_very_small_frames_is_copied_since_each_would_cost_more_than_it_holds() -> None:
    writer = ColumnsWriter()
    writer.add(0, in_pieces(bytes(LARGE_BODY_BYTES), 100, 1 << 20), False)
    assert len(writer.finish(0, 1).encode()) < 20


# --- without columns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("missing", [[BODY_ENDS, BODIES], [PROPERTY_ENDS, PROPERTIES], [5, 6, 7, 8], []])
def test_leaving_columns_out_leaves_all_others_as_they_are(missing: list[int], compressed: bool) -> None:
    writer = ColumnsWriter()
    for offset in (1, 2, 5):
        made = message(b"body %d " % offset * 50, properties=PRIORITY_7, envelope=Envelope("", str(offset)))
        writer.add(offset, made, offset == 2)
        writer.filter_by("x")
    data = encoded(writer, 0, 9, compressed=compressed)
    left = b"".join(without_parts(data, missing))
    before, after = parsed(data), parsed(left)
    head = maybe_head(left)
    assert head is not None and is_whole(head, left)
    assert after[:9] == before[:9]
    assert after.filter == before.filter
    expected = [
        row._replace(
            body=None if BODIES in missing else row.body, properties=None if PROPERTIES in missing else row.properties
        )
        for row in before.rows
    ]
    assert after.rows == expected
    assert (left == data) == (not missing)


# --- compression ------------------------------------------------------------------------------------------------------


def test_each_part_is_compressed_by_itself_where_that_makes_it_smaller() -> None:
    random = Random(5)
    writer = ColumnsWriter()
    envelope = Envelope("", "q")
    for offset in range(100):
        writer.add(offset, message(random.randbytes(40), envelope=envelope), False)
    data = encoded(writer, 0, 100, compressed=True)
    found = parsed(data)
    assert found.compression == 1
    assert found.rows == parsed(encoded(writer, 0, 100)).rows
    smaller = [part for part in range(9) if found.parts[part][0] < found.parts[part][1]]
    assert smaller == [TIMES, BODY_ENDS, PROPERTY_ENDS, PROPERTIES], (
        "names are short, and random bytes stay as they are"
    )
    head = maybe_head(data)
    assert head is not None and head.compression == 1
    for part, column in enumerate(uncompressed(head, data, DECOMPRESSOR)):
        stored, whole, raw = found.parts[part]
        assert column == (raw if stored == whole else DECOMPRESSOR.decompress(raw, whole))


def test_a_chunk_of_which_nothing_gets_smaller_says_that_it_is_not_compressed() -> None:
    data = chunk(b"short", compressed=True)
    assert parsed(data).compression == 0
    assert data == chunk(b"short")


def test_a_part_that_is_no_compressed_data_is_refused() -> None:
    data = chunk(b"a" * 1000, compressed=True)
    head = maybe_head(data)
    assert head is not None
    start = int(head.places[BODIES])
    with pytest.raises(ValueError, match="frame"):
        uncompressed(head, data[:start] + bytes(int(head.stored[BODIES])) + data[start:], DECOMPRESSOR)


def test_a_part_of_another_size_than_the_head_says_is_refused() -> None:
    data = chunk(b"a" * 1000, compressed=True)
    head = maybe_head(data)
    assert head is not None
    start, stored = int(head.places[BODIES]), int(head.stored[BODIES])
    other = COMPRESS(b"a" * 999).ljust(stored, b"\0")[:stored]
    with pytest.raises(ValueError, match=r"zstd|size"):
        uncompressed(head, data[:start] + other + data[start + stored :], DECOMPRESSOR)


# --- damage -----------------------------------------------------------------------------------------------------------


def test_every_bit_that_flips_is_noticed() -> None:
    data = chunk(b"some body", b"and another", first=3)
    for at in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            head = maybe_head(bytes(bad))
            if at < CHUNK_HEAD_BYTES:
                assert head is None, f"byte {at}, bit {bit}"
            else:
                assert head is not None and not is_whole(head, bytes(bad)), f"byte {at}, bit {bit}"


def test_what_is_cut_off_anywhere_is_noticed() -> None:
    data = chunk(b"some body", b"and another")
    for size in range(len(data)):
        head = maybe_head(data[:size])
        if size < CHUNK_HEAD_BYTES:
            assert head is None
        else:
            assert head is not None and not is_whole(head, data[:size])
    head = maybe_head(data + b"\0")
    assert head is not None and not is_whole(head, data + b"\0")


@pytest.mark.parametrize(
    ("at", "value"), [(0, b"WARRNCOM"), (8, b"\x02\x00"), (8, b"\x00\x00")], ids=["magic", "major", "no-major"]
)
def test_another_format_is_no_chunk_of_ours(at: int, value: bytes) -> None:
    data = bytearray(chunk(b"x"))
    data[at : at + len(value)] = value
    data[188:192] = zlib.crc32(data[:188]).to_bytes(4, "little")
    assert maybe_head(bytes(data)) is None


# --- filters ----------------------------------------------------------------------------------------------------------


def test_what_was_noted_is_found_and_most_of_the_rest_is_not() -> None:
    random = Random(11)
    for count in (1, 10, 50):
        bits = bytearray(48)
        values = [f"{random.getrandbits(64):x}" for _ in range(count)]
        for value in values:
            add_to_filter(bits, value)
        assert all(may_have(bytes(bits), [filter_mask(value)]) for value in values)
        others = [filter_mask(f"other {number}") for number in range(1000)]
        wrong = sum(may_have(bytes(bits), [mask]) for mask in others)
        assert wrong <= {1: 2, 10: 20, 50: 150}[count]


@pytest.mark.parametrize("value", ["", "a", "ü", "x" * 1000, "\ud800", "a\0b"])
def test_any_text_can_be_noted(value: str) -> None:
    bits = bytearray(48)
    assert not may_have(bytes(bits), [filter_mask(value)])
    add_to_filter(bits, value)
    assert may_have(bytes(bits), [filter_mask(value)])
    assert may_have(bytes(bits), [filter_mask("other"), filter_mask(value)])
    assert not may_have(bytes(bits), [])
    assert 1 <= sum(byte.bit_count() for byte in bits) <= 4


def test_the_bits_of_a_value_are_those_of_the_table() -> None:
    raw = b"invoices"
    start, step = zlib.crc32(raw), zlib.crc32(raw, 0x9747B28C) | 1
    bits = bytearray(48)
    add_to_filter(bits, "invoices")
    expected = {(start + step * number) % 384 for number in range(4)}
    assert {at for at in range(384) if bits[at // 8] >> (at % 8) & 1} == expected


@pytest.mark.parametrize("values", [["a"], ["a", None], [None], []])
def test_a_chunk_says_whether_anybody_looked_and_what_was_there(values: list[str | None]) -> None:
    writer = ColumnsWriter()
    for offset, value in enumerate(values):
        writer.add(offset, message(), False)
        writer.filter_by(value)
    data = encoded(writer, 0, len(values))
    found, head = parsed(data), maybe_head(data)
    assert head is not None
    assert found.filtered == head.is_filtered == (len(values) > 0)
    assert found.unfiltered == head.has_unfiltered == (None in values)
    assert found.filter == head.filter
    assert (found.filter != bytes(48)) == ("a" in values)
    assert may_have(head.filter, [filter_mask("a")]) == ("a" in values)


# --- any --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_whatever_goes_in_comes_out(seed: int) -> None:
    random = Random(seed)
    envelopes = [Envelope(random.choice(("", "e")), "k" * random.randrange(4)) for _ in range(random.randrange(1, 6))]
    compressed, all_there = random.random() < 0.5, random.random() < 0.5
    writer = ColumnsWriter()
    first = offset = random.randrange(1 << 40)
    rows = []
    for _ in range(random.randrange(60)):
        offset += 0 if all_there else random.choice((0, 0, 1, 9))
        made = message(
            random.randbytes(random.choice((0, 1, 63, 64, 65, 500))),
            envelope=random.choice(envelopes),
            properties=random.choice((NO_PROPERTIES, PRIORITY_7)),
            time_ms=TIME_MS + random.randrange(-9, 9),
            frame_max=random.choice((0, 20, 4096)),
        )
        redelivered = random.random() < 0.1
        writer.add(offset, made, redelivered)
        properties = made.header_payload()[12:]
        envelope = made.envelope
        time_us = int(made.time_ms) * 1000
        rows.append(Row(offset, time_us, redelivered, envelope.exchange, envelope.routing_key, made.body(), properties))
        offset += 1
    data = encoded(writer, first, offset, compressed=compressed)
    found = parsed(data)
    assert found.rows == rows
    assert found.size == len(data)
    assert found.sparse == (len(rows) != offset - first)
    times = [row.time_us for row in rows]
    assert (found.min_time_us, found.max_time_us) == ((min(times), max(times)) if times else (0, 0))
    head = maybe_head(data)
    assert head is not None and is_whole(head, data)
    assert [len(part) for part in uncompressed(head, data, DECOMPRESSOR)] == [whole for _, whole, _ in found.parts]
    assert head.whole[NAMES] == found.parts[NAMES][1] and head.whole[OFFSETS] == found.parts[OFFSETS][1]


def test_a_frame_that_states_another_size_is_refused_before_memory_is_taken_for_it() -> None:
    stated = bytearray(COMPRESS(b"x" * 100_000))
    at = stated.index((100_000).to_bytes(4, "little"))
    stated[at : at + 4] = (1 << 31).to_bytes(4, "little")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="another size"):
            DECOMPRESSOR.decompress(bytes(stated), 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="another size"):
        DECOMPRESSOR.decompress(COMPRESS(b"x" * 100_000), 10)


def test_a_frame_that_states_no_size_is_limited_too() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1000)
    assert DECOMPRESSOR.decompress(silent, 1000) == b"x" * 1000
    for size, reason in ((999, "decompression error|Destination"), (1001, "another size")):
        with pytest.raises(ValueError, match=reason):
            DECOMPRESSOR.decompress(silent, size)
