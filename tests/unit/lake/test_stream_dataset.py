"""Excluded messages are not even fetched; the others are all there. pushdown (1) to (4), stream_dataset."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import warren.lake
from unit.spark_bridge.broker_in_memory import CHUNK_ROWS
from unit.spark_bridge.chunks import Sent
from unit.spark_bridge.export_broker import ExportBroker
from warren.lake.pushdown import narrowed
from warren.lake.stream_dataset import MESSAGES, StreamDataset
from warren.spark_bridge.bridge_errors import DataLoss, UsageError
from warren.spark_bridge.columns import Chunk, to_record_batches
from warren.spark_bridge.control import SealedChunk, SealedFiles

offset = pc.field("offset")


@pytest.fixture
def broker() -> ExportBroker:
    return ExportBroker()


def dataset(broker: ExportBroker, name: str = "orders", **more: object) -> StreamDataset:
    return warren.lake.dataset(name, client=broker, **more)  # type: ignore[arg-type]


def offsets(found: StreamDataset, filter: pc.Expression | None = None) -> list[int]:
    return list(found.to_table(columns=["offset"], filter=filter).column("offset").to_pylist())


def reads(broker: ExportBroker) -> list[str]:
    return [asked for asked in broker.asked if asked.startswith("read")]


def test_a_stream_is_what_it_was_when_it_was_looked_at(broker: ExportBroker) -> None:
    stream = broker.stream(count=10, first=3)
    found = dataset(broker)
    stream.add(5)
    assert offsets(found) == offsets(found) == list(range(3, 13))
    assert found.schema == MESSAGES and found.count_rows() == 10
    assert found.to_table().column("body").to_pylist() == [b"%d" % number for number in range(3, 13)]


def test_all_partitions_of_a_super_stream_are_read(broker: ExportBroker) -> None:
    broker.stream("a", count=3)
    broker.stream("b", count=2)
    broker.stream("both", type="super-stream", partitions=("a", "b"))
    found = dataset(broker, "both").to_table(columns=["queue", "partition", "offset"]).to_pylist()
    places = [(row["queue"], row["partition"], row["offset"]) for row in found]
    assert places == [("both", 0, 0), ("both", 0, 1), ("both", 0, 2), ("both", 1, 0), ("both", 1, 1)]
    broker.asked.clear()
    assert dataset(broker, "both").count_rows(filter=pc.field("partition") == 1) == 2
    assert reads(broker) == ["read b 0 2 "]


def test_only_columns_that_are_wanted_are_fetched(broker: ExportBroker) -> None:
    broker.stream(count=4)
    for columns, kinds in ((["offset"], ""), (["body"], "b"), (["priority"], "p"), (None, "bp")):
        broker.asked.clear()
        dataset(broker).to_table(columns=columns)
        assert reads(broker) == [f"read orders 0 4 {kinds}"]
    broker.asked.clear()
    assert dataset(broker).to_table(columns=["offset"], filter=pc.field("body") == b"2").num_rows == 1
    assert reads(broker) == ["read orders 0 4 b"]


@pytest.mark.parametrize("seed", range(3))
def test_only_offsets_that_can_pass_are_fetched(seed: int) -> None:
    chance = random.Random(seed)
    broker = ExportBroker()
    broker.stream(count=50, first=100)
    found = dataset(broker)
    for _ in range(30):
        low, high = chance.randrange(90, 160), chance.randrange(90, 160)
        filter, wanted = chance.choice(
            [
                (offset > low, range(low + 1, 150)),
                (offset <= high, range(100, high + 1)),
                ((offset >= low) & (offset < high), range(low, high)),
                (offset == low, range(low, low + 1)),
                (~(offset < low), range(low, 150)),
                ((offset == low) | (offset == high), sorted({low, high})),
            ]
        )
        passed = [number for number in wanted if 100 <= number < 150]
        broker.asked.clear()
        assert offsets(found, filter) == passed
        asked = [(int(words[2]), int(words[3])) for words in map(str.split, reads(broker))]
        assert asked == ([(passed[0], passed[-1] + 1)] if passed else [])


def test_offsets_are_not_left_out_by_what_says_nothing_of_them() -> None:
    for filter in (None, pc.field("body") == b"", pc.field("timestamp").is_valid(), (offset < 3) | (offset > 97)):
        assert narrowed(filter, MESSAGES, "offset", 0, 100) == (0, 100)
    assert narrowed(offset > 5, MESSAGES, "offset", 7, 7) == (7, 7)


def test_no_rows_are_made_of_chunks_of_another_time(broker: ExportBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = broker.stream()
    for number in range(3 * CHUNK_ROWS):
        stream.messages.append(Sent(number, time_ms=1000 * (number // CHUNK_ROWS)))
    found = dataset(broker)
    made: list[int] = []

    def counted(chunk: Chunk, *arguments: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        made.append(chunk.first)
        return to_record_batches(chunk, *arguments, **more)

    monkeypatch.setattr("warren.lake.ranges.to_record_batches", counted)
    second = datetime.fromtimestamp(1, UTC)
    assert offsets(found, pc.field("timestamp") == second) == list(range(CHUNK_ROWS, 2 * CHUNK_ROWS))
    assert made == [CHUNK_ROWS]


def test_what_is_sealed_and_older_is_not_fetched(broker: ExportBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = broker.stream()
    for number in range(20):  # at 10 the clock was set back
        stream.messages.append(Sent(number, time_ms=1000 * (number if number < 10 else number - 5)))
    found = dataset(broker)
    timestamp = pc.field("timestamp")
    since = timestamp >= datetime.fromtimestamp(8, UTC)
    everything = [8, 9, *range(13, 20)]
    assert offsets(found, since) == everything and reads(broker)[-1] == "read orders 0 20 "  # nothing is sealed
    sealed = tuple(SealedChunk(at, at + CHUNK_ROWS, "a", 0, 1) for at in range(0, 12, CHUNK_ROWS))
    monkeypatch.setattr(broker, "files", lambda *_: SealedFiles("", "/nowhere", {}, sealed))
    assert offsets(found, since) == everything and reads(broker)[-1] == "read orders 8 20 "
    late = timestamp > datetime.fromtimestamp(12, UTC)
    assert offsets(found, late) == [18, 19] and reads(broker)[-1] == "read orders 12 20 "  # the tail has no such times
    assert offsets(found, since & (offset > 14)) == [15, 16, 17, 18, 19] and reads(broker)[-1] == "read orders 15 20 "
    either = since | (offset == 2)
    assert offsets(found, either) == [2, *everything] and reads(broker)[-1] == "read orders 0 20 "
    assert (
        offsets(found, timestamp < datetime.fromtimestamp(1, UTC)) == [0] and reads(broker)[-1] == "read orders 0 20 "
    )


def test_a_part_of_a_stream_is_said_by_words_offsets_and_times(broker: ExportBroker) -> None:
    stream = broker.stream()
    for number in range(10):
        stream.messages.append(Sent(number, time_ms=1000 * number))
    assert offsets(dataset(broker, since="4", until="7")) == [4, 5, 6]
    assert offsets(dataset(broker, since="1970-01-01T00:00:08")) == [8, 9]
    assert offsets(dataset(broker, since="next")) == []
    assert offsets(dataset(broker, since="9" * 30)) == []
    assert offsets(dataset(broker, since="7", until="3")) == []
    with pytest.raises(UsageError):
        dataset(broker, since="some-time")


def test_what_is_gone_meanwhile_is_a_loss_unless_that_is_accepted(broker: ExportBroker) -> None:
    stream = broker.stream(count=20)
    strict, lenient = dataset(broker), dataset(broker, skip_lost=True)
    stream.trim(10)
    with pytest.raises(DataLoss, match="skip_lost"):
        strict.to_table()
    assert isinstance(strict.failure, DataLoss)
    assert offsets(lenient) == list(range(10, 20)) and lenient.lost == 10


def test_a_queue_is_no_stream(broker: ExportBroker) -> None:
    broker.queue("jobs", 3)
    with pytest.raises(UsageError, match="'jobs' is classic and no stream"):
        dataset(broker, "jobs")


def test_read_gives_batches_as_they_are_asked_for(broker: ExportBroker) -> None:
    broker.stream(count=100)
    reader = warren.lake.read("orders", client=broker, columns=["offset", "body"], where=offset >= 97, since="90")
    assert reader.schema.names == ["offset", "body"]
    assert reader.read_all().to_pylist() == [{"offset": number, "body": b"%d" % number} for number in (97, 98, 99)]


def test_no_more_is_read_than_is_asked_for(broker: ExportBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.stream(count=100 * CHUNK_ROWS)
    made: list[int] = []

    def counted(chunk: Chunk, *arguments: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        made.append(chunk.first)
        return to_record_batches(chunk, *arguments, **more)

    monkeypatch.setattr("warren.lake.ranges.to_record_batches", counted)
    reader = warren.lake.read("orders", client=broker)
    assert reader.read_next_batch().num_rows == CHUNK_ROWS
    assert len(made) == 1
    assert sum(batch.num_rows for batch in reader) == 99 * CHUNK_ROWS


# --- bodies ----------------------------------------------------------------------------------------------------------


def with_bodies(broker: ExportBroker, *bodies: bytes) -> None:
    broker.stream().messages += [Sent(number, body) for number, body in enumerate(bodies)]


def test_fields_of_json_bodies_are_columns(broker: ExportBroker) -> None:
    with_bodies(broker, b'{"id": 1, "offset": 7}', b'{"id": 2.5, "who": "x", "Who": "y"}', b"[1]", b'{"id": null}')
    found = dataset(broker, json=True)
    assert found.schema.names == [*MESSAGES.names, "id", "body_offset", "who"]
    rows = found.to_table(columns=["id", "who", "body_offset", "offset"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1.0, None, 7, 0),
        (2.5, None, None, 1),
        (None, None, None, 2),
        (None, None, None, 3),
    ]
    assert found.unfit == 2
    assert offsets(found, pc.field("id") > 2) == [1]


def test_of_two_fields_for_one_column_a_null_is_none(broker: ExportBroker) -> None:
    with_bodies(broker, b'{"who": null, "Who": "y"}', b'{"a-b": 1}', b'{"a_b": 2}')
    found = dataset(broker, json=True)
    rows = found.to_table(columns=["Who", "a_b"]).to_pylist()
    assert ([tuple(row.values()) for row in rows], found.unfit) == ([("y", None), (None, 1), (None, 2)], 0)


def test_a_field_with_values_of_several_kinds_has_texts(broker: ExportBroker) -> None:
    values = ["1", "true", '{"b": 1, "b":2}', "0.123456789012345678901234567890", "1E2", str(10**40)]
    with_bodies(broker, b'{"a": "one"}', *(b'{"a" : %b }' % value.encode() for value in values))
    found = dataset(broker, json=True).to_table(columns=["a"]).column("a").to_pylist()
    assert found == ["one", *values]


def test_what_the_sample_has_not_shown_is_null_and_counted(
    broker: ExportBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.lake.sql.SAMPLE_ROWS", 2)
    with_bodies(broker, b'{"a": 1}', b'{"a": 2}', b'{"a": "x", "late": 1}', b'{"a": 4}', b'{"b": 5}')
    found = dataset(broker, json=True)
    rows = found.to_table(columns=["a", "b"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, None), (2, None), (None, None), (4, None), (None, 5)]
    assert found.unfit == 1 and "late" not in found.schema.names


def test_columns_are_those_of_a_schema(broker: ExportBroker, tmp_path: Path) -> None:
    with_bodies(broker, b'{"at": "2026-01-01T00:00:00Z", "more": 1}', b'{"at": 5}')
    path = tmp_path / "orders.json"
    path.write_text('{"properties": {"at": {"type": "string", "format": "date-time"}}}')
    found = dataset(broker, json=path)
    assert found.schema.names == [*MESSAGES.names, "at"]
    assert [str(each) for each in found.to_table(columns=["at"]).column("at").to_pylist()] == [
        "2026-01-01 00:00:00+00:00",
        "None",
    ]
    assert found.unfit == 1
