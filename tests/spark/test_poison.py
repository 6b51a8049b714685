"""Messages that a query cannot use do not stop a drain: settled singly, dead-lettered, given up after some tries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from warren.spark_bridge import Claims, read, read_stream, with_json
from warren.spark_bridge.bridge_errors import Fenced, Refused

from .lake import DEADLINE_S
from .messages import Publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DRAIN: dict[str, Any] = {"mode": "drain", "consumerName": "lake", "columns": "queue,offset,body,delivery_count"}


def dead_letters_to(publisher: Publisher, dead: str) -> dict[str, Any]:
    publisher.queue(dead)
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}


def drained(publisher: Publisher, queue: str) -> list[bytes]:
    publisher.settled()
    found: list[bytes] = []
    while True:
        method, _, body = publisher.channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return found
        found.append(body)


def ended(query: StreamingQuery) -> None:
    assert query.awaitTermination(int(DEADLINE_S)), "the query does not end"


@pytest.mark.long
def test_single_messages_are_settled_once_with_their_batch(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    publisher.queue(name, 6, **dead_letters_to(publisher, f"{name}-dead"))
    kept: list[int] = []
    tries: list[int] = []
    claims = Claims("lake", managementUrl=publisher.url)

    def work(batch: DataFrame, number: int) -> None:
        value = F.col("body").cast("string").cast("int")
        claims.dead_letter(batch.where(value % 2 == 1))
        claims.requeue(batch.where(value == 0))
        claims.ack(batch.where(value == 5))
        tries.append(number)
        if len(tries) == 1:
            raise RuntimeError("the first try fails")
        kept.extend(int(row.body) for row in batch.where(value % 2 == 0).where(value > 0).collect())

    frame = read_stream(spark, name, DRAIN, managementUrl=publisher.url)
    writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException):
        ended(writer.trigger(availableNow=True).start())
    assert drained(publisher, f"{name}-dead") == []
    ended(writer.trigger(availableNow=True).start())
    assert (tries, sorted(kept)) == ([0, 0], [2, 4])
    assert drained(publisher, f"{name}-dead") == [b"1", b"3"]
    assert drained(publisher, name) == [b"0"]


@pytest.mark.long
def test_what_is_no_json_is_dead_lettered_and_the_query_goes_on(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    publisher.queue(name, **dead_letters_to(publisher, f"{name}-dead"))
    publisher.bodies(name, [b'{"id": 1}', b"poison", b'{"id": 2}', b'{"id": "x"}'])
    raw = read_stream(spark, name, DRAIN, managementUrl=publisher.url)
    claims = Claims("lake", managementUrl=publisher.url)
    orders = with_json(raw, "id bigint", on_corrupt="dead_letter", claims=claims).select("offset", "value.id")
    writer = orders.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    ended(writer.option("path", str(tmp_path / "orders")).trigger(availableNow=True).start())
    rows = spark.read.parquet(str(tmp_path / "orders")).orderBy("offset").collect()
    assert [(row.offset, row.id) for row in rows] == [(0, 1), (2, 2)]
    assert drained(publisher, f"{name}-dead") == [b"poison", b'{"id": "x"}']


@pytest.mark.long
def test_rows_of_an_earlier_query_settle_nothing_of_a_later_one(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    """The later one has the same claims by the same numbers, and decides about them itself."""
    publisher.queue(name, 2, **dead_letters_to(publisher, f"{name}-dead"))
    claims = Claims("lake", managementUrl=publisher.url)
    rows = str(tmp_path / "rows")
    settled: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        batch.where("offset = 0").cache().write.parquet(rows)
        claims.requeue(batch)
        raise RuntimeError("the first query fails")

    def settle(batch: DataFrame, number: int) -> None:
        claims.ack(batch.where("offset = 0"))
        claims.dead_letter(batch.where("offset = 1"))
        with pytest.raises(Fenced, match="since these rows were read"):
            claims.dead_letter(spark.read.parquet(rows))
        settled.append(number)

    for work in (keep, settle):
        frame = read_stream(spark, name, DRAIN, managementUrl=publisher.url)
        writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
        if work is keep:
            with pytest.raises(StreamingQueryException, match="the first query fails"):
                ended(writer.trigger(availableNow=True).start())
        else:
            ended(writer.trigger(availableNow=True).start())
    assert settled == [0]
    assert drained(publisher, f"{name}-dead") == [b"1"]
    assert drained(publisher, name) == []


def test_corrupt_bodies_fail_a_query_if_one_wants(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.queue(name)
    publisher.bodies(name, [b'{"id": 1}', b"poison"])
    frame = read(spark, name, managementUrl=publisher.url)
    with pytest.raises(Exception, match=f"offset 1 of queue {name} is no JSON"):
        with_json(frame, "id bigint", on_corrupt="fail").collect()
    assert [row.id for row in with_json(frame, "id bigint").select("value.id").collect()] == [1, None]
    with pytest.raises(ValueError, match="claims"):
        with_json(frame, "id bigint", on_corrupt="dead_letter")


@pytest.mark.long
def test_a_queue_without_dead_letter_exchange_is_told_of(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.queue(name, 1)
    with publisher.client as client:
        session = client.open_drain(name, "lake")
        client.claim(name, "lake", session.epoch, 0, 10)
    frame = spark.createDataFrame([(name, 0)], "queue string, offset bigint")
    with pytest.raises(Refused, match="has no dead letter exchange"):
        Claims("lake", managementUrl=publisher.url).dead_letter(frame)


@pytest.mark.long
def test_a_batch_that_fails_too_often_is_given_up_and_counts_are_right(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    limits = dead_letters_to(publisher, f"{name}-dead") | {"x-delivery-limit": 1}
    publisher.queue(name, 2, **limits)
    channel = publisher.channel
    method, _, _ = channel.basic_get(name)
    assert method is not None
    channel.basic_reject(method.delivery_tag or 0)  # the first one has failed once
    publisher.settled()
    seen: list[list[tuple[int, int]]] = []
    counted = read(spark, name, managementUrl=publisher.url, columns="offset,delivery_count").orderBy("offset")
    assert [row.delivery_count for row in counted.collect()] == [1, 0]

    def work(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        seen.append(sorted((int(row.body), row.delivery_count) for row in rows))
        if any(int(row.body) == 1 for row in rows):
            raise RuntimeError("poison")

    frame = read_stream(spark, name, DRAIN, managementUrl=publisher.url, failedBatches="count")
    writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):
        with pytest.raises(StreamingQueryException):
            ended(writer.trigger(availableNow=True).start())
    ended(writer.trigger(availableNow=True).start())
    assert seen == [[(0, 1), (1, 0)], [(1, 1)], []]
    assert sorted(drained(publisher, f"{name}-dead")) == [b"0", b"1"]
    assert publisher.depth(name) == 0


@pytest.mark.long
def test_stages_of_a_killed_driver_go_with_the_next_commit(
    spark: SparkSession, publisher: Publisher, name: str, tmp_path: Path
) -> None:
    publisher.stream(name, 3)
    publisher.queue(f"{name}-out")
    frame = read_stream(spark, name, managementUrl=publisher.url, columns="body", startingOffsets="earliest")
    writer = frame.writeStream.format("warren").options(queue=f"{name}-out", managementUrl=publisher.url)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = writer.start()
    ended(query)
    with publisher.client as client:
        left = f"{query.id}-1-0-0-0123456789ab"
        frames = b"\x01\x00\x01\x00\x00\x00\x09\x00\x3c\x00\x28\x00\x00\x00\x00\x00\xce"
        frames += b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(10) + b"\xce"
        client.put_stage(left, 0, frames)
        client.put_stage(f"other-{name}", 0, frames)
        publisher.numbers(name, [3])
        ended(writer.start())
        names = [each["name"] for each in client._list("GET", ("warren", "stages", "/"))]
        client.delete_stage(f"other-{name}")
    assert left not in names and f"other-{name}" in names
    assert publisher.depth(f"{name}-out") == 4
