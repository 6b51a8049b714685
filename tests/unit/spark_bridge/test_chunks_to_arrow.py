"""Chunks to Arrow: every column, every way of cutting, every kind of damage."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.amqp.field_table import encode_table
from warren.msgstore.log.columns import ColumnsWriter
from warren.spark_bridge import columns
from warren.spark_bridge.columns import Context, DamagedChunk, read_chunks, to_record_batches
from warren.spark_bridge.schema import COLUMN_NAMES, arrow_schema

from .chunks import Sent, chunk_of, rows, signed, zstd

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN = ["queue", "partition", "offset", "timestamp", "exchange", "routing_key", "redelivered", "body"]


def some(count: int, first: int = 100) -> list[Sent]:
    return [
        Sent(
            first + number,
            b"body %d" % number,
            exchange="events" if number % 3 else "",
            routing_key=f"key.{number % 5}",
            time_ms=1_700_000_000_000 + number,
            redelivered=number % 7 == 0,
        )
        for number in range(count)
    ]


def expected(sent: Sent) -> dict[str, object]:
    return {
        "queue": "q",
        "partition": 3,
        "offset": sent.offset,
        "timestamp": EPOCH + timedelta(milliseconds=sent.time_ms),
        "exchange": sent.exchange,
        "routing_key": sent.routing_key,
        "redelivered": sent.redelivered,
        "body": sent.body,
    }


@pytest.mark.parametrize("compress", [None, zstd], ids=["plain", "zstd"])
def test_every_column_is_what_the_message_has(compress: object) -> None:
    sent = some(300)
    data = chunk_of(sent, compress=zstd if compress else None)
    assert rows(data, arrow_schema(PLAIN), Context("q", 3)) == [expected(message) for message in sent]


def test_columns_come_in_the_order_that_is_asked_for() -> None:
    schema = arrow_schema(["body", "offset", "queue"])
    assert rows(chunk_of(some(1)), schema) == [{"body": b"body 0", "offset": 100, "queue": "q"}]


def test_the_whole_schema_of_messages_without_properties_is_null_there() -> None:
    (row,) = rows(chunk_of([Sent(0)]), arrow_schema())
    assert list(row) == list(COLUMN_NAMES)
    assert {name for name, value in row.items() if value is None} == set(COLUMN_NAMES) - set(PLAIN)


def test_without_columns_the_rows_are_still_counted() -> None:
    (chunk,) = read_chunks(chunk_of(some(5)))
    assert [batch.num_rows for batch in to_record_batches(chunk, pa.schema([]), Context("q"))] == [5]


def test_offsets_with_gaps_are_kept_and_cut_by_offset() -> None:
    sent = [Sent(offset, b"%d" % offset) for offset in (10, 11, 17, 30)]
    data = chunk_of(sent, 8, 40)
    schema = arrow_schema(["offset", "body"])
    assert [row["offset"] for row in rows(data, schema)] == [10, 11, 17, 30]
    assert [row["body"] for row in rows(data, schema, first=11, end=30)] == [b"11", b"17"]
    assert rows(data, schema, first=12, end=17) == []
    assert rows(data, schema, first=0, end=100) == rows(data, schema)


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_range_reads_as_the_same_rows_cut_out_of_all(first: int, end: int) -> None:
    sent = some(40, first=10)
    schema = arrow_schema(PLAIN)
    whole = rows(chunk_of(sent), schema)
    assert rows(chunk_of(sent), schema, first=first, end=end) == [row for row in whole if first <= row["offset"] < end]


def test_a_chunk_of_offsets_that_are_all_gone_has_no_rows() -> None:
    data = chunk_of([], 5, 9)
    assert rows(data, arrow_schema()) == []
    assert [(chunk.first, chunk.end, chunk.count) for chunk in read_chunks(data)] == [(5, 9, 0)]


def test_chunks_stand_one_behind_the_other() -> None:
    data = chunk_of(some(20, 0)) + chunk_of([], 20, 25) + chunk_of(some(5, 25), compress=zstd)
    assert [row["offset"] for row in rows(data, arrow_schema(["offset"]))] == [*range(20), *range(25, 30)]


def test_bodies_offsets_and_times_are_not_copied() -> None:
    data = chunk_of([Sent(3), Sent(9)])
    held = pa.py_buffer(data)
    (chunk,) = read_chunks(held)
    (batch,) = to_record_batches(chunk, arrow_schema(["offset", "timestamp", "body"]), Context("q"))
    for array in batch.columns:
        buffer = array.buffers()[-1]
        assert held.address <= buffer.address < held.address + held.size


def test_a_batch_is_cut_at_its_rows_and_at_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    (chunk,) = read_chunks(chunk_of([Sent(number, b"x" * size) for number, size in enumerate((3, 3, 3, 9, 1, 1, 1))]))
    schema = arrow_schema(["offset", "body"])

    def cuts() -> list[list[int]]:
        return [batch["offset"].to_pylist() for batch in to_record_batches(chunk, schema, Context("q"))]

    assert cuts() == [[0, 1, 2, 3, 4, 5, 6]]
    monkeypatch.setattr(columns, "BATCH_BYTES", 6)
    assert cuts() == [[0, 1], [2], [3], [4, 5, 6]]
    monkeypatch.setattr(columns, "BATCH_ROWS", 2)
    assert cuts() == [[0, 1], [2], [3], [4, 5], [6]]
    monkeypatch.setattr(columns, "BATCH_BYTES", 1 << 20)
    assert cuts() == [[0, 1], [2, 3], [4, 5], [6]]


def test_bodies_as_strings_are_null_and_counted_where_they_are_no_text() -> None:
    context = Context("q")
    data = chunk_of([Sent(0, b"caf\xc3\xa9"), Sent(1, b"\xff"), Sent(2, b"")])
    found = rows(data, arrow_schema(["body"], body_as="string"), context)
    assert [row["body"] for row in found] == ["café", None, ""]
    assert context.undecodable_bodies == 1


def test_large_and_empty_bodies_stay_what_they_are() -> None:
    bodies = [b"", bytes(range(256)) * 65536, b"", b"x"]
    data = chunk_of([Sent(number, body) for number, body in enumerate(bodies)])
    assert [row["body"] for row in rows(data, arrow_schema(["body"]))] == bodies


def test_more_routes_than_an_i16_counts() -> None:
    sent = [Sent(number, b"", routing_key=f"k{number}") for number in range(40_000)]
    assert [row["routing_key"] for row in rows(chunk_of(sent), arrow_schema(["routing_key"]))] == [
        message.routing_key for message in sent
    ]


@pytest.mark.parametrize("column", ["body", "app_id"])
def test_a_column_that_was_left_out_is_told_not_guessed(column: str) -> None:
    data = chunk_of(some(3), bodies=column != "body", properties=column == "body")
    assert len(rows(data, arrow_schema(["offset", "routing_key"]))) == 3
    with pytest.raises(DamagedChunk, match="left out"):
        rows(data, arrow_schema([column]))


def test_a_column_that_there_is_not_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"routing_ky.*routing_key"):
        rows(chunk_of(some(1)), pa.schema([pa.field("routing_ky", pa.string())]))
    with pytest.raises(ValueError, match="'offset' is int64, not int32"):
        rows(chunk_of(some(1)), pa.schema([pa.field("offset", pa.int32())]))


# --- damage ------------------------------------------------------------------------------------------------------


def test_what_is_cut_off_anywhere_is_refused() -> None:
    data = chunk_of(some(3))
    for size in range(1, len(data)):
        with pytest.raises(DamagedChunk):
            list(read_chunks(data[:size]))
    assert list(read_chunks(b"")) == []


def test_a_bit_that_is_turned_anywhere_is_noticed() -> None:
    data = chunk_of(some(3))
    for at in range(len(data)):
        turned = bytearray(data)
        turned[at] ^= 1 << at % 8
        with pytest.raises(DamagedChunk):
            list(read_chunks(bytes(turned)))


def test_another_version_is_refused_by_its_number() -> None:
    data = bytearray(chunk_of(some(1)))
    data[8] = 2
    with pytest.raises(DamagedChunk, match="version 2"):
        list(read_chunks(signed(data)))


_POSITIONS = st.one_of(st.integers(10, 127), st.integers(192, 2000))


@pytest.mark.parametrize("compress", [None, zstd], ids=["plain", "zstd"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@given(changes=st.lists(st.tuples(_POSITIONS, st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=examples(400), deadline=None)
def test_no_forged_number_is_believed(changes: list[tuple[int, int]], compress: object, sparse: bool) -> None:
    """The checksums are right, the numbers are not: an error, or rows that are well-formed and within the chunk."""
    sent = some(30, first=5)
    data = bytearray(chunk_of(sent, 0 if sparse else None, compress=zstd if compress else None))
    for at, value in changes:
        data[at % len(data)] = value
    schema = arrow_schema(body_as="string", headers_format="typed")
    count = 0
    try:
        for chunk in read_chunks(signed(data)):
            for batch in to_record_batches(chunk, schema, Context("q")):
                batch.validate(full=True)
                count += batch.num_rows
    except DamagedChunk:
        return
    assert count <= 30


def test_forged_sizes_of_parts_reach_nothing_behind_the_chunk() -> None:
    data = bytearray(chunk_of(some(3)))
    for part in range(9):
        for whole in (0, 1, 7, 1 << 31, (1 << 32) - 1):
            forged = bytearray(data)
            struct.pack_into("<I", forged, 56 + 8 * part + 4, whole)
            if forged == data:
                continue
            with pytest.raises(DamagedChunk):
                rows(signed(forged), arrow_schema())


def test_what_compaction_has_removed_is_told_from_what_is_lost() -> None:
    for compacted in (False, True):
        data = b"".join(ColumnsWriter(compacted=compacted).finish(5, 9).encode())
        (found,) = read_chunks(data)
        assert (found.first, found.end, found.count, found.is_compacted) == (5, 9, 0, compacted)


def test_delivery_counts_are_those_of_the_queue_where_it_counts() -> None:
    counted = b"\x20\x00" + encode_table({"a": 1, "x-delivery-count": 3})
    strange = b"\x20\x00" + encode_table({"x-delivery-count": "many"})
    sent = [Sent(5), Sent(6, properties=counted), Sent(7, properties=strange)]
    schema = arrow_schema(["offset", "delivery_count"])
    assert [row["delivery_count"] for row in rows(chunk_of(sent, counted=True), schema)] == [0, 3, 0]
    assert [row["delivery_count"] for row in rows(chunk_of(sent, counted=True), schema, Context("q", failures=2))] == [
        2,
        5,
        2,
    ]
    assert [row["delivery_count"] for row in rows(chunk_of(sent), schema)] == [None, None, None]
    with pytest.raises(DamagedChunk, match="left out"):
        rows(chunk_of(sent, counted=True, properties=False), schema)
