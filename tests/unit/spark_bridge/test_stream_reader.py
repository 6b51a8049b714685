"""The streaming reader against a broker in memory, called as Spark calls it; stream.py (1) to (5)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from unit.spark_bridge.broker_in_memory import MemoryBroker, bodies, options_for, ranges
from unit.spark_bridge.chunks import Sent, chunk_of
from warren.spark_bridge.bridge_errors import BrokerError, DataLoss, Gone
from warren.spark_bridge.columns import Chunk, read_chunks
from warren.spark_bridge.control import Description
from warren.spark_bridge.offsets import sentinel
from warren.spark_bridge.options import OptionError
from warren.spark_bridge.schema import spark_schema
from warren.spark_bridge.stream import IDLE_PAUSE_S, StreamReader

Offset = dict[str, Any]
SCHEMA = StructType(spark_schema().fields)


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def reader_of(broker: MemoryBroker, **given: Any) -> StreamReader:
    clock = given.pop("clock", None) or Clock()
    return StreamReader(options_for(broker, streaming=True, **given), SCHEMA, clock=clock, sleep=clock.sleep)


def through_json(offset: Offset) -> Offset:
    """Return an offset as Spark gives it back."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def step(reader: StreamReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    return through_json(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))


def planned(reader: StreamReader, start: Offset, end: Offset) -> list[tuple[str, int, int]]:
    return ranges(list(reader.partitions(start, end)))


def test_where_a_query_begins_is_said_by_its_first_end_alone(broker: MemoryBroker) -> None:
    stream = broker.stream(count=10)
    reader = reader_of(broker)
    assert reader.initialOffset() == {"v": 1, "init": "latest"}
    assert broker.asked == []  # (1): it says nothing of the broker, so it may be asked as often as Spark likes
    end = step(reader, reader.initialOffset())
    assert end == {"v": 1, "p": {"orders": {"id": "i1", "next": 10, "base": 10}}}
    stream.add(5)
    # A crash before the first batch was committed: another reader, and the stream has grown.
    again = reader_of(broker)
    assert planned(again, again.initialOffset(), end) == []
    following = step(again, end)
    assert planned(again, end, following) == [("orders", 10, 15)]


def test_an_earliest_start_is_pinned_in_the_same_way_and_reads_at_once(broker: MemoryBroker) -> None:
    stream = broker.stream(count=6)
    stream.trim(2)
    reader = reader_of(broker, startingOffsets="earliest")
    end = step(reader, reader.initialOffset())
    assert end["p"]["orders"] == {"id": "i1", "next": 6, "base": 2}
    stream.add(3)
    again = reader_of(broker, startingOffsets="earliest")
    assert planned(again, again.initialOffset(), end) == [("orders", 2, 6)]


def test_nothing_new_is_the_same_text(broker: MemoryBroker) -> None:
    broker.stream(count=3)
    reader = reader_of(broker, startingOffsets="earliest")
    end = step(reader, reader.initialOffset())
    assert json.dumps(reader.latestOffset(end, ReadMaxRows(5))) == json.dumps(end)
    broker.queues["orders"].add(1)
    following = step(reader, end)
    assert following == {"v": 1, "p": {"orders": {"id": "i1", "next": 4}}}
    assert json.dumps(reader.latestOffset(following, ReadMaxRows(5))) == json.dumps(following)


def test_a_limit_of_rows_is_kept_and_read_all_available_overrides_every_limit(broker: MemoryBroker) -> None:
    broker.stream(count=100)
    reader = reader_of(
        broker, startingOffsets="earliest", maxOffsetsPerTrigger=7, maxBytesPerTrigger=200, minOffsetsPerTrigger=3
    )
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    assert step(reader, reader.initialOffset(), ReadAllAvailable())["p"]["orders"]["next"] == 100
    assert step(reader, reader.initialOffset())["p"]["orders"]["next"] == 2  # 200 bytes


def test_a_batch_with_a_limit_of_bytes_makes_progress_with_a_message_that_is_larger(broker: MemoryBroker) -> None:
    broker.stream(count=3)
    reader = reader_of(broker, startingOffsets="earliest", maxBytesPerTrigger=1)
    offset = reader.initialOffset()
    seen = [(offset := step(reader, offset))["p"]["orders"]["next"] for _ in range(4)]
    assert seen == [1, 2, 3, 3]


def test_several_streams_share_the_rows(broker: MemoryBroker) -> None:
    broker.stream("a", 100)
    broker.stream("b", 2)
    broker.stream("c", 100)
    reader = reader_of(broker, subscribe="a,b,c", startingOffsets="earliest", maxOffsetsPerTrigger=12)
    end = step(reader, reader.initialOffset())
    assert {name: each["next"] for name, each in end["p"].items()} == {"a": 5, "b": 2, "c": 5}
    assert planned(reader, reader.initialOffset(), end) == [("a", 0, 5), ("b", 0, 2), ("c", 0, 5)]


def test_a_batch_waits_for_enough_rows_but_not_for_ever(broker: MemoryBroker) -> None:
    stream = broker.stream(count=0)
    clock = Clock()
    reader = reader_of(broker, clock=clock, minOffsetsPerTrigger=10, maxTriggerDelay="60s", startingOffsets="earliest")
    offset = step(reader, reader.initialOffset())
    stream.add(9)
    assert step(reader, offset) == offset
    clock.now += 59
    assert step(reader, offset) == offset
    clock.now += 1
    late = step(reader, offset)
    assert late["p"]["orders"]["next"] == 9
    stream.add(9)
    assert step(reader, late) == late
    stream.add(1)
    assert step(reader, late)["p"]["orders"]["next"] == 19


def test_available_now_reads_what_was_there_when_it_began_and_no_more(broker: MemoryBroker) -> None:
    stream = broker.stream("a1", 25)
    reader = reader_of(
        broker,
        subscribe="",
        subscribePattern="a.*",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=10,
        minOffsetsPerTrigger=10,
    )
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    seen = []
    for _ in range(5):
        following = step(reader, offset)
        stream.add(7)  # producers continue
        broker.stream("a2", 5)  # and there are new streams
        seen.append(following["p"]["a1"]["next"])
        assert set(following["p"]) == {"a1"}
        if following == offset:
            break
        offset = following
    assert seen == [10, 20, 25, 25]


def test_what_spark_has_committed_is_told_to_the_broker_under_the_consumers_name(broker: MemoryBroker) -> None:
    stream = broker.stream(count=5)
    reader = reader_of(broker, startingOffsets="earliest", consumerName="lake")
    end = step(reader, reader.initialOffset())
    assert broker.groups == {}
    reader.commit(end)
    assert broker.groups == {}  # (3)
    step(reader, end)
    assert broker.groups == {("orders", "lake"): 5}
    stream.add(1)
    quiet = reader_of(broker, consumerName="lake", storeOffsets=False)
    step(quiet, step(quiet, end))
    assert broker.groups == {("orders", "lake"): 5}


def test_that_the_broker_cannot_be_told_is_no_reason_to_stop(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise BrokerError("not allowed", 403)

    monkeypatch.setattr(broker, "store_offset", refuse)
    broker.stream(count=5)
    reader = reader_of(broker, startingOffsets="earliest", consumerName="lake")
    end = step(reader, reader.initialOffset())
    assert step(reader, end) == end
    assert "not allowed" in capsys.readouterr().err


OURS, THEIRS = "a" * 32, "b" * 32


def test_a_broker_with_another_history_is_neither_read_nor_told(broker: MemoryBroker) -> None:
    stream = broker.stream(count=20, lives=[(OURS, 0)])
    reader = reader_of(broker, startingOffsets="earliest", consumerName="lake")
    start = step(reader, step(reader, reader.initialOffset()))
    assert start["p"]["orders"]["life"] == OURS
    assert broker.groups == {("orders", "lake"): 20}
    # Restored to 10, and grown past what was read.
    stream.messages = stream.messages[:10]
    stream.add(30)
    stream.lives = [(OURS, 0), (THEIRS, 10)]
    broker.groups.clear()
    with pytest.raises(DataLoss, match="diverged at offset 10, and it had been read up to 20"):
        reader_of(broker, consumerName="lake").latestOffset(start, ReadAllAvailable())
    assert broker.groups == {}


@pytest.mark.parametrize(("known", "goes_on_at"), [(OURS, 10), ("c" * 32, 0)])
def test_without_fail_on_data_loss_a_query_continues_where_the_histories_diverged(
    broker: MemoryBroker, known: str, goes_on_at: int
) -> None:
    stream = broker.stream(count=20, lives=[(known, 0)])
    options = {"startingOffsets": "earliest", "consumerName": "lake", "failOnDataLoss": False}
    start = step(reader_of(broker, **options), sentinel("earliest"))
    stream.messages = stream.messages[:10]
    stream.add(30)
    stream.lives = [(OURS, 0), (THEIRS, 10)]
    reader = reader_of(broker, **options)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert planned(reader, start, end) == [("orders", goes_on_at, 40)]
    assert broker.groups == {("orders", "lake"): goes_on_at}
    assert end["p"]["orders"]["life"] == THEIRS


def test_a_checkpoint_without_a_life_is_read_and_told_of_once(
    broker: MemoryBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = broker.stream(count=20)
    start = step(reader_of(broker, startingOffsets="earliest"), sentinel("earliest"))
    assert "life" not in start["p"]["orders"]
    stream.lives = [(OURS, 20)]
    reader = reader_of(broker)
    for _ in range(2):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert capsys.readouterr().err.count("does not say in which life") == 1
    stream.add(5)
    assert step(reader, start)["p"]["orders"]["life"] == OURS


def test_how_far_behind_a_query_is_can_be_seen(broker: MemoryBroker) -> None:
    broker.stream(count=50)
    reader = reader_of(broker, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    assert reader.reportLatestOffset() is None
    step(reader, reader.initialOffset())
    assert reader.reportLatestOffset() == {"v": 1, "p": {"orders": {"id": "i1", "next": 50}}}


def test_an_idle_source_is_not_asked_a_hundred_times_a_second(broker: MemoryBroker) -> None:
    stream = broker.stream(count=5)
    clock = Clock()
    reader = reader_of(broker, clock=clock)
    offset = step(reader, reader.initialOffset())
    assert clock.slept == []
    assert step(reader, offset) == offset
    assert step(reader, offset) == offset
    assert clock.slept == pytest.approx([IDLE_PAUSE_S])
    stream.add(1)
    clock.now += 1
    step(reader, offset)
    assert clock.slept == pytest.approx([IDLE_PAUSE_S])


def test_looks_at_many_partitions_take_a_small_share_of_the_time(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stream(count=5)
    clock = Clock()
    reader = reader_of(broker, clock=clock)
    offset = step(reader, reader.initialOffset())
    describe = broker.describe

    def slow(queue: str) -> Description:
        clock.now += 0.1
        return describe(queue)

    monkeypatch.setattr(broker, "describe", slow)
    for _ in range(2):
        assert step(reader, offset) == offset
    assert clock.slept == pytest.approx([0.4])


# --- what is lost --------------------------------------------------------------------------------------------------


def committed(broker: MemoryBroker, **given: object) -> Offset:
    """Return the offset of a query that has read the first three of ten messages."""
    reader = reader_of(broker, startingOffsets="earliest", **given)
    return step(reader, step(reader, reader.initialOffset(), ReadMaxRows(2)), ReadMaxRows(1))


def test_messages_that_retention_has_removed_end_the_query_or_are_counted(broker: MemoryBroker) -> None:
    stream = broker.stream(count=10)
    offset = committed(broker)
    stream.trim(7)
    with pytest.raises(DataLoss, match="from 3 to 7 of stream 'orders' are gone"):
        step(reader_of(broker), offset)
    reader = reader_of(broker, failOnDataLoss=False)
    end = step(reader, offset)
    assert end["p"]["orders"] == {"id": "i1", "next": 10, "base": 7, "lost": 4}
    assert planned(reader, offset, end) == [("orders", 7, 10)]
    stream.add(1)
    assert step(reader, end)["p"]["orders"] == {"id": "i1", "next": 11, "lost": 4}


def test_a_stream_that_was_made_anew_is_noticed(broker: MemoryBroker) -> None:
    broker.stream(count=10)
    offset = committed(broker)
    broker.stream(count=5, id="i2")
    with pytest.raises(DataLoss, match="deleted and created again"):
        step(reader_of(broker), offset)
    reader = reader_of(broker, failOnDataLoss=False)
    end = step(reader, offset)
    assert end["p"]["orders"] == {"id": "i2", "next": 5, "base": 0}
    assert planned(reader, offset, end) == [("orders", 0, 5)]


def test_a_stream_that_ends_before_what_was_read_is_noticed(broker: MemoryBroker) -> None:
    broker.stream(count=10)
    offset = committed(broker)
    broker.stream(count=2)
    with pytest.raises(DataLoss, match="ends at offset 2, and had been read up to 3"):
        step(reader_of(broker), offset)
    assert step(reader_of(broker, failOnDataLoss=False), offset)["p"]["orders"]["next"] == 2


def test_a_stream_that_was_deleted_is_noticed(broker: MemoryBroker) -> None:
    broker.stream(count=10)
    broker.stream("other", 10)
    offset = committed(broker, subscribe="orders,other")
    del broker.queues["orders"]
    with pytest.raises(DataLoss, match="'orders' no longer exists"):
        step(reader_of(broker, subscribe="orders,other"), offset)
    reader = reader_of(broker, subscribe="orders,other", failOnDataLoss=False)
    end = step(reader, offset)
    assert set(end["p"]) == {"other"}
    assert step(reader, end) == end


def test_a_stream_that_is_not_asked_for_any_more_is_left_alone(
    broker: MemoryBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.stream("a", 4)
    broker.stream("b", 4)
    reader = reader_of(broker, subscribe="a,b", startingOffsets="earliest")
    end = step(reader, reader.initialOffset())
    end = step(reader_of(broker, subscribe="a"), end)
    assert set(end["p"]) == {"a"}
    assert "'b' is no longer subscribed to" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["trimmed", "made anew", "deleted"])
def test_what_goes_between_planning_and_reading_fails_the_batch_or_is_passed_over(
    broker: MemoryBroker, change: str
) -> None:
    stream = broker.stream(count=10)
    start = committed(broker)
    end = step(reader_of(broker), start)
    pieces = reader_of(broker).partitions(start, end)
    if change == "trimmed":
        stream.trim(8)
    elif change == "made anew":
        broker.stream(count=10, id="i2")
    else:
        del broker.queues["orders"]
    with pytest.raises(DataLoss):
        planned(reader_of(broker), start, end)
    with pytest.raises(BrokerError):
        bodies(reader_of(broker).read(pieces[0]))
    lenient = reader_of(broker, failOnDataLoss=False)
    left = [("orders", 8, 10)] if change == "trimmed" else []
    assert planned(lenient, start, end) == left
    if change == "trimmed":
        assert bodies(lenient.read(pieces[0])) == [b"8", b"9"]


def test_rows_come_once_though_the_broker_cuts_its_chunks_anew_meanwhile(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = broker.stream(count=10)
    reader = reader_of(broker, failOnDataLoss=False)
    end = {"v": 1, "p": {"orders": {"id": "i1", "next": 10, "base": 0}}}
    (piece,) = reader.partitions(reader.initialOffset(), end)
    pieces = broker.read

    def cut_anew(queue: str, first: int, end: int, id: str, **named: Any) -> Iterator[Chunk]:
        if first == 0:
            yield from pieces(queue, 0, 4, id, **named)
            stream.first = 6  # by retention
            raise Gone("the oldest offset is 6", 410)
        yield from read_chunks(chunk_of(stream.messages, 0, 10))

    monkeypatch.setattr(broker, "read", cut_anew)
    assert bodies(reader.read(piece)) == [b"0", b"1", b"2", b"3", b"6", b"7", b"8", b"9"]


def test_what_compaction_has_removed_is_no_loss(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.stream(count=10)
    reader = reader_of(broker)
    (piece,) = reader.partitions(reader.initialOffset(), {"v": 1, "p": {"orders": {"id": "i1", "next": 7, "base": 2}}})
    chunk = chunk_of([Sent(1, b"1"), Sent(5, b"5"), Sent(8, b"8")], 0, 10, compacted=True)
    monkeypatch.setattr(broker, "read", lambda *_, **__: read_chunks(chunk))
    assert bodies(reader.read(piece)) == [b"5"]


def test_a_message_that_cannot_be_read_fails_its_task_or_is_passed_over(broker: MemoryBroker) -> None:
    stream = broker.stream(count=10)
    end = committed(broker)
    del stream.messages[1]
    stream.messages.append(stream.messages[-1]._replace(offset=99))  # keeps the count of what is there
    reader = reader_of(broker)
    (piece,) = reader.partitions(reader.initialOffset(), {"v": 1, "p": {"orders": {"id": "i1", "next": 3, "base": 0}}})
    with pytest.raises(DataLoss, match="1 of the messages from offset 0 to 3 cannot be read"):
        bodies(reader.read(piece))
    assert bodies(reader_of(broker, failOnDataLoss=False).read(piece)) == [b"0", b"2"]
    assert end["p"]["orders"]["next"] == 3


# --- what there is ---------------------------------------------------------------------------------------------------


def test_a_stream_that_joins_a_pattern_is_read_from_its_beginning(broker: MemoryBroker) -> None:
    broker.stream("a1", 5)
    broker.stream("b1", 5)
    reader = reader_of(broker, subscribe="", subscribePattern="a.*")
    end = step(reader, reader.initialOffset())
    assert set(end["p"]) == {"a1"}
    broker.stream("a2", 3)
    following = step(reader, end)
    assert following["p"]["a2"] == {"id": "i1", "next": 3, "base": 0}
    assert planned(reader, end, following) == [("a2", 0, 3)]


def test_a_super_stream_is_its_partitions(broker: MemoryBroker) -> None:
    broker.stream("orders-0", 5)
    broker.stream("orders-1", 2, id="j")
    broker.stream("orders", type="super-stream", partitions=("orders-0", "orders-1"))
    reader = reader_of(broker, startingOffsets='{"orders": {"0": 4, "1": -2}}')
    end = step(reader, reader.initialOffset())
    assert end["p"] == {
        "orders-0": {"id": "i1", "next": 5, "base": 4, "of": "orders", "n": 0},
        "orders-1": {"id": "j", "next": 2, "base": 0, "of": "orders", "n": 1},
    }
    pieces = list(reader.partitions(reader.initialOffset(), end))
    assert ranges(pieces) == [("orders-0", 4, 5), ("orders-1", 0, 2)]
    (batch,) = reader.read(pieces[1])
    assert batch.column("queue").to_pylist() == ["orders"] * 2
    assert batch.column("partition").to_pylist() == [1, 1]
    assigned = reader_of(broker, subscribe="", assign='{"orders": [1]}')
    assert set(step(assigned, assigned.initialOffset())["p"]) == {"orders-1"}


def test_a_partition_that_is_added_is_read_from_its_beginning(broker: MemoryBroker) -> None:
    broker.stream("orders-0", 5)
    parent = broker.stream("orders", type="super-stream", partitions=("orders-0",))
    reader = reader_of(broker)
    end = step(reader, reader.initialOffset())
    broker.stream("orders-1", 2)
    parent.partitions = ("orders-0", "orders-1")
    following = step(reader, end)
    assert planned(reader, end, following) == [("orders-1", 0, 2)]


def test_a_pattern_that_matches_a_super_stream_and_its_partitions_reads_them_once(broker: MemoryBroker) -> None:
    broker.stream("orders-0", 5)
    broker.stream("orders", type="super-stream", partitions=("orders-0",))
    reader = reader_of(broker, subscribe="", subscribePattern="orders.*")
    assert list(step(reader, reader.initialOffset())["p"].values()) == [
        {"id": "i1", "next": 5, "base": 5, "of": "orders", "n": 0}
    ]
    twice = reader_of(broker, subscribe="orders,orders-0")
    with pytest.raises(OptionError, match="asked for as"):
        step(twice, twice.initialOffset())


def test_a_queue_that_is_no_stream_is_refused_with_the_word_that_empties_it(broker: MemoryBroker) -> None:
    broker.queue("orders", 5)
    reader = reader_of(broker)
    with pytest.raises(OptionError, match='option\\("mode", "drain"\\)'):
        step(reader, reader.initialOffset())


def test_a_stream_that_is_not_there_is_refused(broker: MemoryBroker) -> None:
    reader = reader_of(broker)
    with pytest.raises(OptionError, match="'orders' cannot be read"):
        step(reader, reader.initialOffset())


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ({"startingOffsets": 4}, 4),
        ({"startingOffsets": "last"}, 9),
        ({"startingOffsets": '{"orders": 10}'}, 10),
        ({"startingTimestamp": 1_700_000_000_000}, 2),
        ({"startingTimestamp": 1_800_000_000_000, "startingOffsetsByTimestampStrategy": "latest"}, 10),
        ({"startingOffsetsByTimestamp": '{"orders": 5}'}, 2),
        ({"startingOffsets": 1, "failOnDataLoss": False}, 2),
    ],
)
def test_a_query_begins_where_it_is_told(broker: MemoryBroker, given: dict[str, object], base: int) -> None:
    broker.stream(count=10).trim(2)
    reader = reader_of(broker, **given)
    assert step(reader, reader.initialOffset())["p"]["orders"]["base"] == base


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"startingOffsets": 1}, DataLoss, "offset 1 is gone"),
        ({"startingOffsets": 11}, OptionError, "ends at offset 10, before 11"),
        ({"startingTimestamp": 1_800_000_000_000}, OptionError, "no message from that time on"),
        (
            {"subscribe": "orders,other", "startingOffsets": '{"other": 5}'},
            OptionError,
            "says nothing of queue 'orders'",
        ),
    ],
)
def test_a_query_that_cannot_begin_there_says_why(
    broker: MemoryBroker, given: dict[str, object], error: type[Exception], words: str
) -> None:
    broker.stream(count=10).trim(2)
    reader = reader_of(broker, **given)
    with pytest.raises(error, match=words):
        step(reader, reader.initialOffset())


def test_a_reader_goes_to_executors_without_its_connection(broker: MemoryBroker) -> None:
    broker.stream(count=1)
    reader = reader_of(broker)
    step(reader, reader.initialOffset())
    options = reader.options
    bare = StreamReader(options, SCHEMA)
    bare._client = reader.client
    assert bare.__getstate__()["_client"] is None
    assert pickle.loads(pickle.dumps(StreamReader(options, SCHEMA))).options.queues == ("orders",)


def test_a_checkpoint_of_another_queue_is_refused(broker: MemoryBroker) -> None:
    for name in ("orders", "other"):
        broker.stream(name, 5)
    first = reader_of(broker, startingOffsets="earliest")
    offset = step(first, first.initialOffset())
    with pytest.raises(OptionError, match="the checkpoint is of 'orders': give this query a checkpointLocation"):
        step(reader_of(broker, subscribe="other"), offset)
    assert set(step(reader_of(broker, subscribe="orders,other"), offset)["p"]) == {"orders", "other"}
