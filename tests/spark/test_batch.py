"""Batches: the contents of a queue as a data frame."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pyspark.sql import functions as F

from warren.spark_bridge import read
from warren.spark_bridge.helpers import PUSHDOWN_CONF

from .messages import Publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, publisher: Publisher, queue: str, **options: Any) -> DataFrame:
    return read(spark, queue, managementUrl=publisher.url, **options)


def numbers(frame: DataFrame) -> list[int]:
    return [int(row.body) for row in frame.select("offset", "body").orderBy("offset").collect()]


def test_a_message_has_all_its_properties(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name)
    when = datetime.datetime(2026, 11, 22, 8, 0, tzinfo=datetime.UTC)
    headers: dict[str, Any] = {
        "text": "é",
        "int": 5,
        "big": 1 << 40,
        "true": True,
        "none": None,
        "decimal": decimal.Decimal("1.5"),
        "time": when,
        "bytes": b"\xff\x00",
        "list": [1, "two", None],
        "table": {"inner": {"deep": 1}},
    }
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="gzip",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="c1",
        reply_to="r1",
        expiration="60000",
        message_id="m1",
        timestamp=int(when.timestamp()),
        type="t1",
        user_id="guest",
        app_id="a1",
        cluster_id="k1",
    )
    publisher.channel.exchange_declare(f"{name}-x", "topic")
    publisher.channel.queue_bind(name, f"{name}-x", "a.#")
    publisher.publish("a.b", b"\x00body\xff", properties, f"{name}-x")
    publisher.publish(name, b"", pika.BasicProperties())

    full, bare = frame(spark, publisher, name).orderBy("offset").collect()
    assert (full.queue, full.partition, full.offset) == (name, 0, 0)
    assert (full.exchange, full.routing_key, full.redelivered) == (f"{name}-x", "a.b", False)
    assert bytes(full.body) == b"\x00body\xff"
    age = datetime.datetime.now(datetime.UTC) - full.timestamp.astimezone(datetime.UTC)
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=10)
    assert (full.content_type, full.content_encoding) == ("application/json", "gzip")
    assert (full.delivery_mode, full.priority) == (2, 7)
    assert (full.correlation_id, full.reply_to, full.expiration) == ("c1", "r1", "60000")
    assert (full.message_id, full.type, full.user_id) == ("m1", "t1", "guest")
    assert (full.app_id, full.cluster_id) == ("a1", "k1")
    assert full.message_timestamp.astimezone(datetime.UTC) == when
    assert full.headers["text"] == "é" and full.headers["int"] == "5" and full.headers["big"] == str(1 << 40)
    assert full.headers["none"] is None and full.headers["true"] == "true"
    assert json.loads(full.headers["list"]) == [1, "two", None]
    assert json.loads(full.headers["table"]) == {"inner": {"deep": 1}}
    assert set(full.headers) == set(headers)
    assert bytes(bare.body) == b"" and bare.headers is None and bare.message_id is None and bare.priority is None

    typed = frame(spark, publisher, name, headersFormat="typed").where("offset = 0").first()
    assert typed is not None
    assert typed.headers["int"].i == 5 and bytes(typed.headers["bytes"].b) == b"\xff\x00"
    as_json = frame(spark, publisher, name, headersFormat="json", bodyAs="string").orderBy("offset").collect()
    assert json.loads(as_json[0].headers)["text"] == "é"
    assert [row.body for row in as_json] == [None, ""]  # bodies that are not UTF-8 are null


@pytest.mark.long
def test_a_batch_goes_from_one_offset_or_time_to_another(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name, 10)
    first = numbers(frame(spark, publisher, name))
    assert first == list(range(10))
    assert numbers(frame(spark, publisher, name, startingOffsets=3, endingOffsets=7)) == [3, 4, 5, 6]
    bounds = {"startingOffsets": json.dumps({name: 8}), "endingOffsets": json.dumps({name: -1})}
    assert numbers(frame(spark, publisher, name, **bounds)) == [8, 9]
    times = [row.timestamp for row in frame(spark, publisher, name).orderBy("offset").collect()]
    after = times[-1] + datetime.timedelta(milliseconds=1)
    assert times == sorted(times)
    at = json.dumps({name: times[4].replace(tzinfo=datetime.UTC).isoformat()})
    from_fourth = numbers(frame(spark, publisher, name, startingOffsetsByTimestamp=at))
    assert from_fourth == [number for number, time in enumerate(times) if time >= times[4]]
    ending = after.replace(tzinfo=datetime.UTC).isoformat()
    assert numbers(frame(spark, publisher, name, endingTimestamp=ending)) == first


@pytest.mark.long
def test_the_same_frame_has_the_same_rows_while_producers_go_on(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.stream(name, 20)
    everything = frame(spark, publisher, name)
    some = everything.where("offset >= 10")
    assert (everything.count(), some.count()) == (20, 10)
    publisher.numbers(name, range(20, 30))
    assert (everything.count(), some.count()) == (20, 10)
    assert everything.join(some, "offset").count() == 10
    assert numbers(frame(spark, publisher, name)) == list(range(30))


@pytest.mark.long
def test_the_same_frame_has_the_same_rows_though_spark_plans_it_anew(
    spark: SparkSession, publisher: Publisher, name: str, pushdown: None
) -> None:
    publisher.stream(name, 20)
    reader = spark.read.format("warren").options(managementUrl=publisher.url, subscribe=name)
    some = reader.schema("offset long").load().where("offset >= 10")
    assert some.count() == 10
    publisher.numbers(name, range(20, 30))
    assert some.count() == 10


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark pushes filters down."""
    spark.conf.set(PUSHDOWN_CONF, "true")
    yield
    spark.conf.unset(PUSHDOWN_CONF)


@pytest.mark.long
def test_filters_leave_the_same_whoever_applies_them(
    spark: SparkSession, publisher: Publisher, name: str, pushdown: None
) -> None:
    publisher.stream(name)
    publisher.channel.exchange_declare(f"{name}-x", "topic")
    publisher.channel.queue_bind(name, f"{name}-x", "#")
    for number in range(30):
        exchange, key = (f"{name}-x", f"k.{number % 4}") if number % 3 else ("", name)
        publisher.channel.basic_publish(exchange, key, b"%d" % number)
    publisher.settled()
    plain = frame(spark, publisher, name)
    assert plain.count() == 30
    when = plain.selectExpr("min(timestamp) as first").first()
    assert when is not None
    for condition in (
        "offset between 5 and 20 and routing_key like 'k.%'",
        f"exchange = '{name}-x' and not routing_key = 'k.1'",
        f"timestamp >= timestamp '{when['first']}' and body = cast('6' as binary)",
        "queue = 'other'",
    ):
        # Each test has its own frame: Spark remembers the filters pushed down in a frame.
        pushed = frame(spark, publisher, name, pushdown="true")
        assert numbers(pushed.where(condition)) == numbers(plain.where(condition)), condition


@pytest.mark.long
def test_a_limit_and_a_queue_without_messages(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name)
    empty = frame(spark, publisher, name)
    assert empty.count() == 0 and empty.where("offset > 5").count() == 0
    publisher.numbers(name, range(100))
    assert [int(row.body) for row in frame(spark, publisher, name).limit(5).collect()] == list(range(5))


def test_a_schema_of_ones_own_says_which_columns_are_read(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name, 3)
    reader = spark.read.format("warren").options(managementUrl=publisher.url, subscribe=name)
    found = reader.schema("body string, offset bigint").load()
    assert [tuple(row) for row in found.orderBy("offset").collect()] == [("0", 0), ("1", 1), ("2", 2)]
    assert frame(spark, publisher, name, columns="offset").columns == ["offset"]
    for schema, words in (("offst long", "did you mean 'offset'"), ("offset int", "can be int64, not int32")):
        with pytest.raises(Exception, match=words):
            reader.schema(schema).load().count()


def test_a_wrong_option_fails_where_it_is_given(spark: SparkSession, publisher: Publisher) -> None:
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        frame(spark, publisher, "orders", startingOffset="earliest")
    with pytest.raises(Exception, match="must be earliest"):
        spark.readStream.format("warren").options(subscribe="orders", startingOffsets="newest").load()


@pytest.mark.long
def test_large_and_empty_bodies_arrive_whole(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name)
    large = bytes(range(256)) * (16 << 12)
    publisher.bodies(name, [b"", large, b"x"])
    found = frame(spark, publisher, name, columns="offset,body")
    assert [len(row.body) for row in found.orderBy("offset").collect()] == [0, 16 << 20, 1]
    sums = found.select(F.sha2("body", 256).alias("sum"), "offset").orderBy("offset").collect()
    import hashlib

    assert sums[1]["sum"] == hashlib.sha256(large).hexdigest()


@pytest.mark.long
def test_many_tasks_read_a_stream_once(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name, 10_000)
    cases: list[tuple[dict[str, int], int]] = [
        ({}, 1),
        ({"maxRecordsPerPartition": 1500}, 7),
        ({"minPartitions": 3}, 3),
    ]
    for options, tasks in cases:
        found = frame(spark, publisher, name, **options)
        assert found.rdd.getNumPartitions() == tasks
        assert numbers(found) == list(range(10_000))
