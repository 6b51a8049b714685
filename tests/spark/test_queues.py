"""Queues other than streams: read from snapshots, and drained."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from broker_process import wait_until

from warren.spark_bridge import dlq_summary, read

from .lake import DEADLINE_S, Lake
from .messages import Publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.long
def test_a_snapshot_leaves_a_queue_as_it_was(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.queue(name, 20)
    channel = publisher.channel
    for _ in range(3):  # ready again, and flagged
        method, _, _ = channel.basic_get(name)
        assert method is not None
        channel.basic_nack(method.delivery_tag or 0)
    frame = read(spark, name, managementUrl=publisher.url, columns="queue,offset,redelivered,body")
    rows = frame.orderBy("offset").collect()
    assert [(row.queue, row.offset, int(row.body)) for row in rows] == [(name, number, number) for number in range(20)]
    assert [row.redelivered for row in rows] == [True] + [False] * 19
    assert publisher.depth(name) == 20
    seen = []
    while True:  # consumers continue
        method, _, body = channel.basic_get(name, auto_ack=True)
        if method is None or body is None:
            break
        seen.append((int(body), method.redelivered))
    assert seen == [(number, number == 0) for number in range(20)]
    assert frame.orderBy("offset").collect() == rows
    assert read(spark, name, managementUrl=publisher.url).count() == 0


def test_what_is_unacknowledged_is_in_a_snapshot_if_one_wants(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.queue(name, 5)
    own = Publisher(publisher.process)
    own.channel.basic_get(name)
    assert read(spark, name, managementUrl=publisher.url).count() == 4
    assert read(spark, name, managementUrl=publisher.url, snapshotUnacked=True).count() == 5
    own.close()


def test_a_dead_letter_queue_is_summed_up(spark: SparkSession, publisher: Publisher, name: str) -> None:
    dead = publisher.queue(f"{name}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    publisher.queue(name, 3, **arguments)
    publisher.queue(f"{name}-full", 4, **arguments, **{"x-max-length": 2})
    for _ in range(3):
        method, _, _ = publisher.channel.basic_get(name)
        assert method is not None
        publisher.channel.basic_reject(method.delivery_tag or 0, requeue=False)
    publisher.settled()
    found = dlq_summary(read(spark, dead, managementUrl=publisher.url)).collect()
    assert [(row.dlx_queue, row.dlx_reason, row.messages, row.deaths) for row in found] == [
        (name, "rejected", 3, 3),
        (f"{name}-full", "maxlen", 2, 2),
    ]


# --- drains --------------------------------------------------------------------------------------------------------

DRAIN: dict[str, Any] = {"mode": "drain", "consumerName": "lake"}


def claimed(publisher: Publisher, queue: str) -> int:
    """Return how many messages of a queue are claimed and not acknowledged."""
    with publisher.client as client:
        found = [each for each in client.drains() if each["queue"] == queue]
    return sum(int(each["end"]) - int(each["first"]) for each in found)


@pytest.mark.long
def test_a_drain_ends_while_producers_go_on_shares_the_queue_with_consumers_and_leaves_nothing_unacknowledged(
    publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.queue(name, 100)
    done = threading.Event()
    consumed: list[int] = []

    def produce_and_consume() -> None:
        own = Publisher(publisher.process)
        number = 100
        while not done.wait(0.05):
            own.numbers(name, range(number, number + 10))
            number += 10
            method, _, body = own.channel.basic_get(name, auto_ack=True)
            if method is not None and body is not None:
                consumed.append(int(body))
        own.close()

    other = threading.Thread(target=produce_and_consume)
    other.start()
    try:
        lake.run(**DRAIN, maxOffsetsPerTrigger=60)
    finally:
        done.set()
        other.join()
    drained = lake.numbers()
    assert set(Counter(drained + consumed).values()) == {1}
    assert len(drained) >= 50 and publisher.depth(name) > 0  # the consumer had some of the 100
    lake.run()
    everything = Counter(lake.numbers() + consumed)
    assert set(everything.values()) == {1}
    assert sorted(everything) == list(range(len(everything)))
    assert {row[0] for row in lake.rows()} == {name}
    assert [row[2] for row in lake.rows()] == list(range(len(lake.rows())))
    assert publisher.depth(name) == 0 and claimed(publisher, name) == 0


@pytest.mark.long
def test_a_claim_that_spark_did_not_write_down_is_adopted_by_the_next_run(
    publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.queue(name, 30)
    lake.run(**DRAIN, maxOffsetsPerTrigger=10)
    publisher.numbers(name, range(30, 60))
    with publisher.client as client:
        # The last action of a driver that dies before Spark writes the batch down.
        session = client.open_drain(name, "lake")
        found = client.claim(name, "lake", session.epoch, 30, 7)
        assert (found.first, found.end) == (30, 37)
    lake.run()
    assert lake.numbers() == list(range(60))
    # And one that dies when the batch is written and not committed.
    publisher.numbers(name, range(60, 65))
    lake.start()
    lake.wait_for_rows(65)
    lake.stop()
    lake.forget("commits", lake.batches("commits")[-1])
    lake.run()
    assert lake.numbers() == list(range(65))
    assert publisher.depth(name) == 0 and claimed(publisher, name) == 0


@pytest.mark.long
def test_a_second_query_of_the_same_name_shuts_out_the_first(
    spark: SparkSession, publisher: Publisher, name: str, lake: Lake, tmp_path: Path
) -> None:
    publisher.queue(name, 5)
    first = lake.start(**DRAIN)
    lake.wait_for_rows(5)
    second = Lake(spark, publisher.url, name, tmp_path / "second")
    second.run(**DRAIN)
    wait_until(lambda: not first.isActive, "the first query to be shut out", DEADLINE_S)
    with pytest.raises(Exception, match="Fenced"):
        lake.wait(first)
    assert lake.numbers() + second.numbers() == list(range(5))


@pytest.mark.long
def test_a_lease_lasts_as_long_as_a_batch_and_ends_when_the_query_has(
    spark: SparkSession, publisher: Publisher, name: str, lake: Lake
) -> None:
    publisher.queue(name, 10)

    def seen_ms() -> int:
        with publisher.client as client:
            return int(client.drain(name, "lake")["last_seen_at"])

    claims: list[int] = []

    def write(frame: DataFrame, batch: int) -> None:
        began_ms = seen_ms()
        assert frame.count() == 10
        wait_until(lambda: seen_ms() >= began_ms + 5000, "more than two leases to pass", DEADLINE_S)
        claims.append(claimed(publisher, name))
        raise ValueError("no room in the table")

    given = {"managementUrl": publisher.url, "subscribe": name, **DRAIN, "claimTtl": "2s"}
    writer = spark.readStream.format("warren").options(**given).load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(lake.checkpoint)).start()
    with pytest.raises(Exception, match="no room in the table"):
        lake.wait(query)
    assert claims == [10]
    wait_until(lambda: publisher.depth(name) == 10, "the claims to go back", DEADLINE_S)
    assert claimed(publisher, name) == 0
    with pytest.raises(Exception, match="deleted or released"):
        lake.run(**DRAIN)  # from the same checkpoint, which has a batch that is gone
    lake.run(failOnDataLoss=False)
    assert lake.numbers() == list(range(10))


def test_released_claims_come_again_flagged(publisher: Publisher, name: str, lake: Lake) -> None:
    publisher.queue(name, 10)
    with publisher.client as client:
        session = client.open_drain(name, "lake")
        client.claim(name, "lake", session.epoch, session.first, 4)
        assert claimed(publisher, name) == 4 and publisher.depth(name) == 6
        assert client.release(name, "lake") == 4
    lake.run(**DRAIN)
    assert lake.numbers() == list(range(10))
