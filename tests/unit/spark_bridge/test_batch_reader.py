"""The batch reader against a broker in memory; batch.py (1), (2), pieces.py (2), (3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkFiles
from pyspark.sql.datasource import InputPartition

from unit.spark_bridge.broker_in_memory import ROW_BYTES, MemoryBroker, bodies, options_for, ranges
from warren.spark_bridge.batch import BatchReader
from warren.spark_bridge.bridge_errors import AnotherQueue, DataLoss
from warren.spark_bridge.options import OptionError
from warren.spark_bridge.schema import spark_schema


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def reader_of(broker: MemoryBroker, **given: Any) -> BatchReader:
    load_id = given.pop("load_id", "load")
    options = options_for(broker, streaming=False, **{"minPartitions": 1} | given)
    return BatchReader(options, spark_schema(columns=options.columns), load_id)


def read(reader: BatchReader) -> list[bytes]:
    return [body for piece in reader.partitions() for body in bodies(reader.read(piece))]


@pytest.mark.parametrize(
    ("given", "range"),
    [
        ({}, (2, 20)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, (2, 20)),
        ({"startingOffsets": 5, "endingOffsets": 9}, (5, 9)),
        ({"startingOffsets": '{"orders": -2}', "endingOffsets": '{"orders": -1}'}, (2, 20)),
        ({"startingOffsets": "last"}, (19, 20)),
        ({"startingTimestamp": 5}, (2, 20)),
        ({"endingTimestamp": 5}, None),
        ({"startingOffsets": 1, "failOnDataLoss": False}, (2, 20)),
    ],
)
def test_a_batch_has_what_is_between_its_ends(
    broker: MemoryBroker, given: dict[str, object], range: tuple[int, int] | None
) -> None:
    broker.stream(count=20).trim(2)
    assert ranges(reader_of(broker, **given).partitions()) == ([("orders", *range)] if range else [])


def test_an_end_behind_the_end_is_refused(broker: MemoryBroker) -> None:
    broker.stream(count=20)
    with pytest.raises(OptionError, match="endingOffsets: 'orders' ends at offset 20, before 21"):
        reader_of(broker, endingOffsets=21).partitions()
    broker.queues["orders"].trim(5)
    with pytest.raises(DataLoss, match="startingOffsets"):
        reader_of(broker, startingOffsets=4).partitions()


def test_a_task_without_a_piece_has_no_rows(broker: MemoryBroker) -> None:
    broker.stream()
    reader = reader_of(broker)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_piece_gives_the_same_rows_again_and_closes_its_connection(broker: MemoryBroker) -> None:
    broker.stream(count=20)
    reader = reader_of(broker, startingOffsets=3, endingOffsets=9)
    (piece,) = reader.partitions()
    expected = [b"%d" % number for number in range(3, 9)]
    assert bodies(reader.read(piece)) == bodies(reader.read(piece)) == expected
    broker.asked.clear()
    rows = reader.read(piece)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert broker.asked[-1] == "close"


def test_only_the_columns_that_are_wanted_are_fetched(broker: MemoryBroker) -> None:
    broker.stream(count=3)
    for columns, parts in (("offset", ""), ("offset,body", "b"), ("message_id", "p"), ("body,headers", "bp")):
        reader = reader_of(broker, columns=columns)
        (piece,) = reader.partitions()
        (batch,) = reader.read(piece)
        assert batch.schema.names == columns.split(",")
        assert [asked for asked in broker.asked if asked.startswith("read")][-1].split()[4:] == (
            [parts] if parts else []
        )


def test_pieces_are_cut_by_bytes_by_number_and_by_rows(broker: MemoryBroker) -> None:
    broker.stream(count=40)
    one = ranges(reader_of(broker).partitions())
    assert one == [("orders", 0, 40)]
    by_bytes = ranges(reader_of(broker, targetPartitionBytes=16 * ROW_BYTES).partitions())
    assert by_bytes == [("orders", 0, 16), ("orders", 16, 32), ("orders", 32, 40)]
    by_number = ranges(reader_of(broker, minPartitions=5).partitions())
    assert by_number == [("orders", at, at + 8) for at in range(0, 40, 8)]
    by_rows = ranges(reader_of(broker, maxRecordsPerPartition=15).partitions())
    assert by_rows == [("orders", 0, 13), ("orders", 13, 26), ("orders", 26, 40)]


def test_a_little_is_one_piece_however_many_cores_there_are(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    broker.stream(count=40)
    options = options_for(broker, streaming=False)
    assert len(BatchReader(options, spark_schema(), "load").partitions()) == 1
    monkeypatch.setattr("warren.spark_bridge.pieces.SMALLEST_PIECE_BYTES", 4 * ROW_BYTES)
    assert len(BatchReader(options, spark_schema(), "other").partitions()) == 10  # cut at chunks of 4


def test_a_queue_is_read_from_a_snapshot(broker: MemoryBroker) -> None:
    source = broker.queue("orders", 6)
    source.trim(2)
    reader = reader_of(broker, snapshotTtl="90s", snapshotUnacked=True)
    (piece,) = reader.partitions()
    assert "snapshot orders 90 True" in broker.asked
    source.trim(6)  # consumers continue
    assert bodies(reader.read(piece)) == [b"2", b"3", b"4", b"5"]
    (batch,) = reader.read(piece)
    assert batch.column("queue").to_pylist() == ["orders"] * 4
    assert batch.column("offset").to_pylist() == [0, 1, 2, 3]


def test_a_snapshot_may_have_fewer_rows_than_its_plan(broker: MemoryBroker) -> None:
    broker.queue("orders", 6)
    broker.holes = 7
    pieces = reader_of(broker, maxRecordsPerPartition=3).partitions()
    assert [(first, end) for _, first, end in ranges(pieces)][-1][1] == 13
    reader = reader_of(broker)
    assert [each for piece in pieces for each in bodies(reader.read(piece))] == [b"%d" % n for n in range(6)]


def test_a_stream_needs_no_snapshot(broker: MemoryBroker) -> None:
    broker.stream(count=3)
    assert ranges(reader_of(broker, mode="snapshot").partitions()) == [("orders", 0, 3)]
    assert not any(asked.startswith("snapshot") for asked in broker.asked)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "log"}, "mode log is for streams"),
        ({"startingOffsets": 1}, "option startingOffsets: queue 'orders' is classic"),
        ({"endingTimestamp": 1}, "option endingTimestamp: queue 'orders' is classic"),
        ({"subscribe": "other"}, "queue 'other' cannot be read"),
    ],
)
def test_what_a_queue_cannot_do_is_refused(broker: MemoryBroker, given: dict[str, object], words: str) -> None:
    broker.queue("orders", 6)
    with pytest.raises(OptionError, match=words):
        reader_of(broker, **given).partitions()


def test_a_stream_that_is_made_anew_meanwhile_is_not_taken_for_the_same(broker: MemoryBroker) -> None:
    broker.stream(count=6)
    reader = reader_of(broker)
    (piece,) = reader.partitions()
    broker.stream(count=6, id="i2")
    with pytest.raises(AnotherQueue):
        bodies(reader.read(piece))


def test_what_is_read_is_pinned_for_other_processes_that_plan_the_same_load(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    stream = broker.stream(count=6)
    classic = broker.queue("work", 3)
    first = read(reader_of(broker, subscribe="orders,work"))
    stream.add(4)
    classic.add(4)
    assert read(reader_of(broker, subscribe="orders,work")) == first
    assert len(read(reader_of(broker, load_id="another", subscribe="orders,work"))) == len(first) + 8
    assert sum(asked.startswith("snapshot") for asked in broker.asked) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["warren-another.json", "warren-load.json"]


def test_who_is_second_to_pin_takes_what_the_first_has_pinned(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    stream = broker.stream(count=6)
    describe = broker.describe

    def overtaken(queue: str) -> object:
        found = describe(queue)
        monkeypatch.setattr(broker, "describe", describe)
        stream.add(1)
        assert len(read(reader_of(broker))) == 7  # the other one is faster
        return found

    monkeypatch.setattr(broker, "describe", overtaken)
    assert len(read(reader_of(broker))) == 7
