"""The grammar of the message store's files: built records are parsed again, field by field, and others are refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_directory import ack, content, epoch, life, message, page, queue, queue_deleted

from warren.msgstore.log.checksum import CRC32, CRC32C, checksum
from warren.msgstore.tools import format as grammar
from warren.msgstore.tools.format import FormatError, Frame, Record, SegmentHeader, build_segment, parse_segment

ALGORITHMS = pytest.mark.parametrize("algorithm", [CRC32C, CRC32])
HEADER = {
    "algorithm": CRC32C,
    "store_id": bytes(range(16)),
    "segment": 7,
    "base_lsn": 1 << 40,
    "capacity": 1 << 26,
    "epoch": 3,
}
FRAME_HEAD = {
    "lsn": 1 << 40,
    "durable_lsn": 123456,
    "time_ms": 1_700_000_000_000,
    "epoch": 3,
    "previous_crc": 0xCAFE,
    "store_tag": bytes(range(8)),
}
EVERY_KIND = [
    epoch(3, 1_700_000_000_000),
    life(3, bytes(range(16))),
    queue(9, "größe", "/å", transient=True),
    queue(10, "größe", "/å", lane=65535),
    page(9, 4, [(1 << 40 | 8, 0, 100, 2**32 - 1), (0, 0, 0, 0), (16, grammar.DROPPABLE, 60, 5)]),
    message((9, 1), (2**63, 2**64 - 1), body=b"hello", exchange="amq.täst", routing_key="a.b", channel=65535),
    message((9, 2), body=b"x" * 10_000, properties={"delivery_mode": 2, "type": "t"}, flags=grammar.MOVED),
    message((9, 3), body=b"timed", flags=grammar.EXPIRES, time_ms=2**64 - 1),
    ack(9, (0, 1), (5, 2**64 - 1)),
    queue_deleted(9),
    {"kind": grammar.FILLER, "flags": grammar.IGNORABLE, "body": {"zeros": bytes(20)}},
    {"kind": 200, "flags": grammar.IGNORABLE, "count": 3, "body": b"later"},
]


def contains(parsed: Any, expected: Any) -> bool:
    """Tell whether `parsed` has all that `expected` names, at every depth."""
    if isinstance(expected, Mapping):
        return all(contains(parsed[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(parsed) == len(expected) and all(map(contains, parsed, expected))
    return bool(parsed == expected)


def sealed(data: bytes, algorithm: int = CRC32C) -> bytes:
    """Return a record with its crc put right."""
    return checksum(algorithm, data[4:]).to_bytes(4, "big") + data[4:]


def test_a_segment_header_is_the_64_bytes_of_the_table() -> None:
    data = SegmentHeader.build(HEADER)
    fields = struct.unpack(">8sHHB3s16sQQQII", data)
    crc = checksum(CRC32C, data[:60])
    assert fields == (b"WARRNLOG", 1, 0, 1, bytes(3), bytes(range(16)), 7, 1 << 40, 1 << 26, 3, crc)
    assert contains(SegmentHeader.parse(data), {**HEADER, "major": 1, "minor": 0, "crc": crc})


@pytest.mark.parametrize(("offset", "value"), [(0, b"X"), (9, b"\x02"), (12, b"\x00"), (12, b"\x03"), (13, b"\x01")])
def test_a_segment_header_of_another_format_is_refused(offset: int, value: bytes) -> None:
    data = SegmentHeader.build(HEADER)
    data = data[:offset] + value + data[offset + len(value) : 60]
    with pytest.raises(FormatError):
        SegmentHeader.parse(data + checksum(CRC32C, data).to_bytes(4, "big"))


def test_a_segment_header_of_a_later_minor_version_is_read() -> None:
    assert SegmentHeader.parse(SegmentHeader.build({**HEADER, "minor": 9})).minor == 9


@ALGORITHMS
def test_a_frame_is_the_56_bytes_of_the_table_and_its_records(algorithm: int) -> None:
    records = [epoch(1), ack(1, (0, 1))]
    data = Frame.build({**FRAME_HEAD, "records": records}, algorithm=algorithm)
    payload = b"".join(
        record + bytes(-len(record) % 8) for record in (Record.build(value, algorithm=algorithm) for value in records)
    )
    assert data[56:] == payload
    crc = checksum(algorithm, data[:52] + payload)
    assert struct.unpack(">4sIQQQIII8sI", data[:56]) == (
        b"WFRM",
        len(payload),
        1 << 40,
        123456,
        1_700_000_000_000,
        3,
        0xCAFE,
        2,
        bytes(range(8)),
        crc,
    )


@ALGORITHMS
@pytest.mark.parametrize("record", EVERY_KIND, ids=lambda record: str(record["kind"]))
def test_every_field_of_every_kind_comes_back(record: dict[str, Any], algorithm: int) -> None:
    data = Record.build(record, algorithm=algorithm)
    parsed = Record.parse(data, algorithm=algorithm)
    assert contains(parsed, record)
    assert parsed.length == len(data)
    assert parsed.crc == checksum(algorithm, data[4:])
    assert Record.build(parsed, algorithm=algorithm) == data


@ALGORITHMS
def test_a_frame_of_all_kinds_comes_back(algorithm: int) -> None:
    value = {**FRAME_HEAD, "records": EVERY_KIND}
    data = Frame.build(value, algorithm=algorithm)
    parsed = Frame.parse(data, algorithm=algorithm)
    assert contains(parsed, value)
    assert (parsed.payload_bytes, parsed.record_count) == (len(data) - 56, len(EVERY_KIND))
    assert Frame.build(parsed, algorithm=algorithm) == data


def test_a_segment_comes_back_with_zeros_behind_it_or_without() -> None:
    frames = [{**FRAME_HEAD, "lsn": 64, "records": []}, {**FRAME_HEAD, "lsn": 120, "records": EVERY_KIND}]
    data = build_segment(HEADER, frames)
    for behind in (b"", bytes(7), bytes(4096)):
        header, parsed = parse_segment(data + behind)
        assert contains(header, HEADER)
        assert contains(parsed, frames)
    with pytest.raises(FormatError):
        parse_segment(data + bytes(64) + b"\x01")


def test_a_frame_of_another_store_is_refused_in_a_segment() -> None:
    data = build_segment(HEADER, [{**FRAME_HEAD, "store_tag": bytes(range(1, 9)), "records": []}])
    with pytest.raises(FormatError, match="a frame of another store, whose id begins with 0102030405060708"):
        parse_segment(data)


@pytest.mark.parametrize(
    ("record", "table"),
    [
        (
            message((1, 2), (3, 4), body=b"b", exchange="ex", routing_key="key", channel=7, frame_max=131072),
            (">BBHIHBBIQQQQ2s3s", (1, 0, 2, 131072, 7, 2, 3, 31, 1, 2, 3, 4, b"ex", b"key")),
        ),
        (ack(5, (6, 7), (8, 9)), (">BBHIQQQQQ", (2, 0, 2, 0, 5, 6, 7, 8, 9))),
        (queue(5, "name", "/v", transient=True), (">BBHIQHHI2s4s", (3, 2, 0, 0, 5, 2, 4, 1, b"/v", b"name"))),
        (queue(5, "name", "/v", lane=258), (">BBHIQHHI2s4s", (3, 0, 258, 0, 5, 2, 4, 0, b"/v", b"name"))),
        (queue_deleted(5), (">BBHIQ", (4, 0, 0, 0, 5))),
        (page(5, 6, [(64, 2, 7, 8)]), (">BBHIQQQII", (5, 0, 1, 0, 5, 6, 66, 7, 8))),
        (epoch(5, 6), (">BBHIQ", (6, 0, 0, 5, 6))),
    ],
    ids=["message", "ack", "queue", "lane", "queue_deleted", "page", "epoch"],
)
def test_the_bytes_of_a_record_are_those_of_the_table(
    record: dict[str, Any], table: tuple[str, tuple[object, ...]]
) -> None:
    layout, fields = table
    data = Record.build(record, algorithm=CRC32C)
    end = 8 + struct.calcsize(layout)
    assert struct.unpack(layout, data[8:end]) == fields
    assert data[end:] == (content(b"b", channel=7) if record["kind"] == grammar.MESSAGE else b"")
    assert data[:8] == struct.pack(">II", checksum(CRC32C, data[4:]), len(data))


@pytest.mark.parametrize(("flags", "kept"), [(0, 0x08), (grammar.EXPIRES, 0x18), (grammar.MOVED, 0x0C)])
def test_a_time_stands_behind_the_content(flags: int, kept: int) -> None:
    data = Record.build(
        message((1, 2), body=b"b", channel=7, flags=flags, time_ms=0x0102030405060708), algorithm=CRC32C
    )
    assert data.endswith(content(b"b", channel=7) + b"\1\2\3\4\5\6\7\10")
    assert data[9] == kept


def test_an_unknown_kind_is_refused_unless_it_may_be_ignored() -> None:
    for flags in (0, grammar.DROPPABLE, grammar.MOVED):
        with pytest.raises(FormatError):
            Record.build({"kind": 9, "flags": flags, "body": b"1234"}, algorithm=CRC32C)
        with pytest.raises(FormatError):
            Record.parse(sealed(struct.pack(">IIBBHI", 0, 16, 9, flags, 0, 0)), algorithm=CRC32C)
    parsed = Record.parse(sealed(struct.pack(">IIBBHI", 0, 16, 9, grammar.IGNORABLE, 0, 5)), algorithm=CRC32C)
    assert parsed.body == b"\0\0\0\5"


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (message((1, 1), body=b"b"), lambda data: data[:10] + b"\0\0" + data[12:]),  # no place
        (message((1, 1), body=b"b"), lambda data: data[:10] + b"\0\2" + data[12:]),  # a place that is not there
        (message((1, 1), routing_key="é"), lambda data: data[:41] + b"\xff" + data[42:]),  # not UTF-8
        (ack(1, (0, 1)), lambda data: data[:12] + b"\0\0\0\1" + data[16:]),  # not zero
        (ack(1, (0, 1)), lambda data: data[:4] + struct.pack(">I", len(data) + 8) + data[8:] + bytes(8)),  # too long
        (message((1, 1), body=b"b"), lambda data: data[:9] + b"\x08" + data[10:]),  # the time is not there
        (message((1, 1), body=b"b", time_ms=5), lambda data: data[:9] + b"\0" + data[10:]),  # a time that is not told
        (message((1, 1), body=b"b"), lambda data: data[:9] + b"\x10" + data[10:]),  # expires from when?
        (queue_deleted(1), lambda data: data[:11] + b"\1" + data[12:]),  # counts nothing
        (epoch(1), lambda data: data[:4] + struct.pack(">I", len(data) - 1) + data[8:-1]),  # too short
    ],
    ids=[
        "no-place",
        "place-count",
        "utf8",
        "zero-field",
        "too-long",
        "no-time",
        "hidden-time",
        "expires-without-time",
        "count",
        "too-short",
    ],
)
def test_a_record_with_a_right_crc_and_wrong_fields_is_refused(
    record: dict[str, Any], change: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(FormatError):
        Record.parse(sealed(change(Record.build(record, algorithm=CRC32C))), algorithm=CRC32C)


@ALGORITHMS
def test_every_flipped_bit_of_a_frame_is_noticed(algorithm: int) -> None:
    data = Frame.build({**FRAME_HEAD, "records": EVERY_KIND}, algorithm=algorithm)
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    bits = [*range(8 * 56), *chance.sample(range(8 * 56, 8 * len(data)), 200)]
    for bit in bits:
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            Frame.parse(bytes(broken), algorithm=algorithm)
        except FormatError:
            continue
        raise AssertionError(f"bit {bit} flipped, seed {seed}")


def test_padding_that_is_not_zeros_is_refused() -> None:
    data = Frame.build({**FRAME_HEAD, "records": [queue(1, "q")]}, algorithm=CRC32C)
    broken = data[:-1] + b"\x01"
    crc = checksum(CRC32C, broken[:52] + broken[56:])
    with pytest.raises(FormatError, match="padding"):
        Frame.parse(broken[:52] + crc.to_bytes(4, "big") + broken[56:], algorithm=CRC32C)


def test_the_algorithm_decides() -> None:
    data = Record.build(epoch(1), algorithm=CRC32C)
    with pytest.raises(FormatError):
        Record.parse(data, algorithm=CRC32)


U64 = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
RECORDS = st.one_of(
    st.builds(epoch, st.integers(0, 2**32 - 1), U64),
    st.builds(queue, U64, NAMES, NAMES, lane=st.integers(0, 65535), transient=st.booleans()),
    st.builds(queue_deleted, U64),
    st.builds(lambda queue_id, ranges: ack(queue_id, *ranges), U64, st.lists(st.tuples(U64, U64), max_size=5)),
    st.builds(
        lambda places, body, exchange, key, flags, time_ms: message(
            *places, body=body, exchange=exchange, routing_key=key, flags=flags, time_ms=time_ms
        ),
        st.lists(st.tuples(U64, U64), min_size=1, max_size=4),
        st.binary(max_size=100),
        NAMES,
        NAMES,
        st.integers(0, 7),
        st.none() | U64,
    ),
)


@given(st.lists(RECORDS, max_size=6), U64, U64, st.sampled_from([CRC32C, CRC32]))
def test_whatever_frame_is_built_comes_back(
    records: list[dict[str, Any]], lsn: int, durable_lsn: int, algorithm: int
) -> None:
    value = {**FRAME_HEAD, "lsn": lsn, "durable_lsn": durable_lsn, "records": records}
    assert contains(Frame.parse(Frame.build(value, algorithm=algorithm), algorithm=algorithm), value)
