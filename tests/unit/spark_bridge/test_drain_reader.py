"""The draining reader against a broker in memory, called as Spark calls it; drain.py (1) to (4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from unit.spark_bridge.broker_in_memory import MemoryBroker, bodies, options_for, ranges
from warren.spark_bridge.bridge_errors import DataLoss, Fenced
from warren.spark_bridge.drain import DrainReader
from warren.spark_bridge.options import OptionError
from warren.spark_bridge.schema import spark_schema

Offset = dict[str, Any]
CLAIMS = "amq.drain/orders/lake"


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def reader_of(broker: MemoryBroker, **given: object) -> DrainReader:
    given = {"mode": "drain", "consumerName": "lake", "maxOffsetsPerTrigger": 4} | given
    clock = [0.0]
    return DrainReader(
        options_for(broker, streaming=True, **given),
        spark_schema(),
        clock=lambda: clock[0],
        sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
    )


def step(reader: DrainReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    found: Offset = json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit())))
    return found


def read(reader: DrainReader, start: Offset, end: Offset) -> list[bytes]:
    return [body for piece in reader.partitions(start, end) for body in bodies(reader.read(piece))]


def left(broker: MemoryBroker) -> int:
    """Return how much is claimed and not acknowledged."""
    return len(broker.queues[CLAIMS].messages)


def test_a_queue_is_claimed_read_and_acknowledged_when_spark_has_it(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    reader = reader_of(broker)
    offset = reader.initialOffset()
    assert broker.asked == []
    seen: list[bytes] = []
    while (end := step(reader, offset)) != offset:
        assert read(reader, offset, end) == read(reader, offset, end)
        seen += read(reader, offset, end)
        assert left(broker) > 0  # not before the batch is committed
        offset = end
    assert seen == [b"%d" % number for number in range(10)]
    assert left(broker) == 0  # (1): the last batch too
    assert broker.queues["orders"].messages == []
    assert offset == {"v": 1, "d": {"orders": {"id": "c1", "next": 10, "from": CLAIMS}}}


def test_a_life_that_begins_after_the_session_was_opened_is_not_another_history(broker: MemoryBroker) -> None:
    """A broker enters its life with the first message that it claims."""
    broker.life = "aa"
    broker.queue("orders", 10)
    reader = reader_of(broker)
    offset = reader.initialOffset()
    seen: list[bytes] = []
    while (end := step(reader, offset)) != offset:
        seen += read(reader, offset, end)
        offset = end
    assert seen == [b"%d" % number for number in range(10)]
    broker.queue("orders", 3)
    again = reader_of(broker)  # the query starts again from its checkpoint
    assert step(again, offset)["d"]["orders"]["next"] == 13
    broker.queues[CLAIMS].lives = [("bb", 0)]
    with pytest.raises(DataLoss, match="diverged"):
        step(reader_of(broker), offset)


def test_the_rows_are_said_to_be_of_the_queue(broker: MemoryBroker) -> None:
    broker.queue("orders", 2)
    reader = reader_of(broker)
    end = step(reader, reader.initialOffset())
    (piece,) = reader.partitions(reader.initialOffset(), end)
    assert piece.value.name == CLAIMS
    (batch,) = reader.read(piece)
    assert batch.column("queue").to_pylist() == ["orders", "orders"]
    assert batch.column("offset").to_pylist() == [0, 1]


def test_a_claim_that_nobody_wrote_down_is_adopted(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    first = reader_of(broker)
    offset = step(first, first.initialOffset())
    step(first, offset)  # and a crash, before Spark wrote it down
    again = reader_of(broker, maxOffsetsPerTrigger=2)
    end = step(again, offset)
    assert read(again, offset, end) == [b"4", b"5", b"6", b"7"]
    assert len(broker.queues["orders"].messages) == 2


def test_a_crash_in_the_first_batch_reads_the_same_again(broker: MemoryBroker) -> None:
    source = broker.queue("orders", 3)
    first = reader_of(broker)
    end = step(first, first.initialOffset())
    source.add(5)
    again = reader_of(broker)
    assert ranges(list(again.partitions(again.initialOffset(), end))) == [(CLAIMS, 0, 3)]
    following = step(again, end)
    assert read(again, end, following) == [b"3", b"4", b"5", b"6"]


def test_a_batch_that_is_tried_again_counts_as_failed_if_the_reader_says_so(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    broker.limit = 1
    first = reader_of(broker, failedBatches="count")
    offset = step(first, first.initialOffset())
    end = step(first, offset)
    assert read(first, offset, end) == [b"4", b"5", b"6", b"7"]
    for times in (1, 2):
        again = reader_of(broker, failedBatches="count")
        (piece,) = again.partitions(offset, end)
        assert (piece.value.failures, piece.value.limit) == (times, 1)
        assert bodies(again.read(piece)) == ([b"4", b"5", b"6", b"7"] if times == 1 else [])
    asked = len(broker.asked)
    following = step(again, end)
    assert read(again, end, following) == [b"8", b"9"]
    assert read(reader_of(broker), end, following) == [b"8", b"9"]
    assert not any(call.startswith("fail") for call in broker.asked[asked:])


def test_a_checkpoint_that_was_deleted_begins_with_what_is_claimed(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    first = reader_of(broker)
    offset = step(first, first.initialOffset())
    step(first, offset)
    new = reader_of(broker)
    end = step(new, new.initialOffset())
    assert end["d"]["orders"]["base"] == 4
    assert read(new, new.initialOffset(), end) == [b"4", b"5", b"6", b"7"]


def test_whoever_opens_the_session_shuts_out_the_others(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    first, second = reader_of(broker), reader_of(broker)
    offset = step(first, first.initialOffset())
    assert list(second.partitions(second.initialOffset(), offset))  # (3): before anything is read again
    with pytest.raises(Fenced):
        step(first, offset)
    assert step(second, offset) != offset


def test_available_now_ends_while_producers_go_on(broker: MemoryBroker) -> None:
    source = broker.queue("orders", 9)
    reader = reader_of(broker)
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    seen: list[bytes] = []
    for _ in range(6):
        end = step(reader, offset)
        source.add(5)
        if end == offset:
            break
        seen += read(reader, offset, end)
        offset = end
    assert seen == [b"%d" % number for number in range(9)]
    assert left(broker) == 0


def test_read_all_available_takes_everything(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    reader = reader_of(broker)
    assert step(reader, reader.initialOffset(), ReadAllAvailable())["d"]["orders"]["next"] == 10
    assert broker.asked[-1].endswith("None")  # no limit of bytes either


def test_several_queues_share_the_rows_and_bytes(broker: MemoryBroker) -> None:
    for queue in ("a", "b"):
        broker.queue(queue, 10)
    reader = reader_of(broker, subscribe="a,b", maxBytesPerTrigger=1000)
    end = step(reader, reader.initialOffset(), ReadMaxRows(5))
    assert {queue: each["next"] for queue, each in end["d"].items()} == {"a": 2, "b": 3}
    assert [asked for asked in broker.asked if asked.startswith("claim")] == ["claim a 0 2 500", "claim b 0 3 500"]


def test_what_is_released_comes_again_and_is_not_missed(broker: MemoryBroker) -> None:
    broker.queue("orders", 6)
    reader = reader_of(broker)
    offset = step(reader, reader.initialOffset())
    read(reader, reader.initialOffset(), offset)
    lost = step(reader, offset)  # claimed, and a crash before Spark wrote it down
    assert lost["d"]["orders"]["next"] == 6
    broker.release("orders", "lake")
    with pytest.raises(Fenced):
        step(reader, offset)
    again = reader_of(broker, failOnDataLoss=False)
    end = step(again, offset)
    assert sorted(read(again, offset, end)) == [b"4", b"5"]


def test_what_is_released_after_spark_committed_it_is_told(broker: MemoryBroker) -> None:
    broker.queue("orders", 6)
    reader = reader_of(broker)
    offset = step(reader, reader.initialOffset())  # Spark commits the batch, and the driver is killed
    broker.release("orders", "lake")
    with pytest.raises(DataLoss, match=r"4 claims below 4 .* were released after the query had committed them"):
        step(reader_of(broker), offset)
    again = reader_of(broker, failOnDataLoss=False)
    end = step(again, offset)
    assert len(read(again, offset, end)) == 4
    end = step(again, end)
    step(reader_of(broker), end)  # told once


def test_a_new_query_gets_what_was_released_before_it(broker: MemoryBroker) -> None:
    broker.queue("orders", 6)
    reader = reader_of(broker)
    step(reader, reader.initialOffset())
    broker.release("orders", "lake")
    reader = reader_of(broker)
    offset = step(reader, reader.initialOffset())
    assert offset["d"]["orders"]["base"] == 4
    end = step(reader_of(broker), offset)
    assert end["d"]["orders"]["next"] == 10


def test_a_session_that_was_deleted_and_made_anew_is_noticed(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    first = reader_of(broker)
    offset = step(first, first.initialOffset())
    following = step(first, offset)
    broker.queues[CLAIMS].id = "c2"
    with pytest.raises(DataLoss, match="deleted and created again"):
        step(reader_of(broker), following)
    with pytest.raises(DataLoss, match="The session was deleted"):
        reader_of(broker).partitions(offset, following)
    lenient = reader_of(broker, failOnDataLoss=False)
    assert list(lenient.partitions(offset, following)) == []
    assert step(lenient, following)["d"]["orders"]["id"] == "c2"


def test_a_checkpoint_older_than_what_was_acknowledged_is_noticed(broker: MemoryBroker) -> None:
    broker.queue("orders", 10)
    first = reader_of(broker)
    old = step(first, first.initialOffset())
    step(first, step(first, old))
    for fails in (True, False):
        with pytest.raises(DataLoss, match=r"is an older copy.* new checkpoint and a new output"):
            step(reader_of(broker, failOnDataLoss=fails), old)


def test_an_idle_queue_gives_the_same_offset(broker: MemoryBroker) -> None:
    broker.queue("orders", 0)
    reader = reader_of(broker)
    offset = step(reader, reader.initialOffset())
    assert json.dumps(reader.latestOffset(offset, ReadMaxRows(4))) == json.dumps(offset)


def test_a_session_has_the_lease_that_is_asked_for_and_signs_of_life_until_the_query_stops(
    broker: MemoryBroker,
) -> None:
    for queue in ("a", "b"):
        broker.queue(queue, 3)
    reader = reader_of(broker, subscribe="a,b", claimTtl="60s")
    assert reader._heartbeat is None
    step(reader, reader.initialOffset())
    assert [asked for asked in broker.asked if asked.startswith("open")] == [
        "open a lake for 60 s",
        "open b lake for 60 s",
    ]
    heartbeat = reader._heartbeat
    assert heartbeat is not None and heartbeat._thread is not None and heartbeat._thread.daemon
    broker.asked.clear()
    heartbeat.beat(broker)
    assert broker.asked == ["mark a 1", "mark b 1"]
    reader.stop()
    heartbeat._thread.join(10)
    assert not heartbeat._thread.is_alive()


def test_without_a_lease_there_is_no_heartbeat(broker: MemoryBroker) -> None:
    broker.queue("orders", 3)
    reader = reader_of(broker)
    step(reader, reader.initialOffset())
    assert reader._heartbeat is None and "open orders lake" in broker.asked
    reader.stop()


def test_a_reader_is_sent_to_executors_without_its_heartbeat(broker: MemoryBroker) -> None:
    broker.queue("orders", 3)
    reader = reader_of(broker, claimTtl="60s")
    step(reader, reader.initialOffset())
    state = reader.__getstate__()
    assert state["_heartbeat"] is None and state["_client"] is None
    reader.stop()


def test_a_checkpoint_of_another_queue_is_refused(broker: MemoryBroker) -> None:
    for name in ("orders", "other"):
        broker.queue(name, 5)
    first = reader_of(broker)
    offset = step(first, first.initialOffset())
    with pytest.raises(OptionError, match="the checkpoint is of 'orders'"):
        step(reader_of(broker, subscribe="other"), offset)
