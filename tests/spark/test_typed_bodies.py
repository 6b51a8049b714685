"""Bodies in Avro and Protobuf, with and without a registry, in batches and streaming queries."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from unit.spark_bridge.fake_registry import FakeRegistry
from unit.spark_bridge.typed_messages import ORDER, avro, framed, order_file, protobuf, record, serialized, set_of

from warren.spark_bridge import Claims, read, read_stream, with_avro, with_protobuf

from .messages import Publisher
from .test_poison import DRAIN, dead_letters_to, drained, ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_bodies_in_avro_are_columns(spark: SparkSession, publisher: Publisher, name: str) -> None:
    at = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record(("id", "long"), ("at", at), ("tags", {"type": "map", "values": {"type": "array", "items": "int"}}))
    moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
    publisher.stream(name)
    publisher.bodies(name, [avro(schema, {"id": 1, "at": moment, "tags": {"a": [1, 2]}}), b"?"])
    frame = with_avro(read(spark, name, managementUrl=publisher.url), json.dumps(schema)).orderBy("offset")
    assert frame.select("value.*").dtypes == [
        ("id", "bigint"),
        ("at", "timestamp"),
        ("tags", "map<string,array<int>>"),
        ("_corrupt", "string"),
    ]
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for each in (zone, "Asia/Tokyo"):
            spark.conf.set("spark.sql.session.timeZone", str(each))
            rows = frame.selectExpr("value.id", "unix_millis(value.at) as at", "value.tags").collect()
            assert [row.asDict() for row in rows] == [
                {"id": 1, "at": round(moment.timestamp() * 1000), "tags": {"a": [1, 2]}},
                {"id": None, "at": None, "tags": None},
            ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    with pytest.raises(Exception, match=f"offset 1 of queue {name} is no Avro of the schema: it "):
        with_avro(frame.drop("value"), json.dumps(schema), on_corrupt="fail").collect()


@pytest.mark.long
def test_a_drain_reads_what_a_registry_has_and_dead_letters_the_rest(
    spark: SparkSession, publisher: Publisher, registry: FakeRegistry, name: str, tmp_path: Path
) -> None:
    older = record(("id", "int"), name="shop.Order")
    registry.register(1, f"{name}-value", json.dumps(older))
    registry.register(2, f"{name}-value", json.dumps(ORDER), version=2)
    publisher.queue(name, **dead_letters_to(publisher, f"{name}-dead"))
    poison = [b"?", framed(3, b"\x02")]
    good = [framed(1, avro(older, {"id": 1})), framed(2, avro(ORDER, {"id": 2, "note": "x"}))]
    publisher.bodies(name, [good[0], *poison, good[1]])
    raw = read_stream(spark, name, DRAIN, managementUrl=publisher.url)
    how: dict[str, Any] = {"registry": registry.url, "subject": f"{name}-value"}
    claims = Claims("lake", managementUrl=publisher.url)
    orders = with_avro(raw, **how, on_corrupt="dead_letter", claims=claims).select("offset", "value.id", "value.note")
    writer = orders.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    ended(writer.option("path", str(tmp_path / "orders")).trigger(availableNow=True).start())
    rows = spark.read.parquet(str(tmp_path / "orders")).orderBy("offset").collect()
    assert [(row.offset, row.id, row.note) for row in rows] == [(0, 1, None), (3, 2, "x")]
    assert drained(publisher, f"{name}-dead") == poison


@pytest.mark.long
def test_bodies_in_protobuf_are_columns(
    spark: SparkSession, publisher: Publisher, registry: FakeRegistry, name: str
) -> None:
    registry.register(1, f"{name}-value", serialized(order_file()), "PROTOBUF")
    body = protobuf(order_file(), "shop.Order", id=5, tags=["a"])
    publisher.stream(name)
    publisher.bodies(name, [body, framed(1, body, b"\x00"), framed(1, body, b"\x02\x02")])
    frame = read(spark, name, managementUrl=publisher.url)
    plain = with_protobuf(frame.where("offset = 0"), "shop.Order", set_of(order_file()))
    (row,) = plain.select("value.*").collect()
    assert row.asDict() == {"id": 5, "note": None, "tags": ["a"], "_corrupt": None}
    known = with_protobuf(frame, registry=registry.url, subject=f"{name}-value", into="order", corrupt="why")
    assert [(row.id, row.why) for row in known.orderBy("offset").select("order.*").collect()] == [
        (None, "it does not begin with the number of a schema"),
        (5, None),
        (None, "it is a shop.Refund, not a shop.Order"),
    ]
