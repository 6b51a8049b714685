"""SQL statements that write: which ones Spark lets a source in Python have, and what becomes of their rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from .messages import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_numbers = itertools.count()


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """A name for a table or view, which is dropped at the end."""
    name = f"written{next(_numbers)}"
    yield name
    spark.catalog.dropTempView(name)
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def taken(publisher: Publisher, queue: str) -> list[tuple[str, int | None, str | None]]:
    """Take all messages of a queue: body, delivery mode and message id."""
    found: list[tuple[str, int | None, str | None]] = []
    while True:
        method, properties, body = publisher.channel.basic_get(queue, auto_ack=True)
        if method is None or properties is None or body is None:
            return found
        assert method.routing_key == queue
        found.append((body.decode(), properties.delivery_mode, properties.message_id))


def options(publisher: Publisher, **more: Any) -> str:
    given = {"managementUrl": publisher.url} | more
    return ", ".join(f"{name} '{value}'" for name, value in given.items())


def test_rows_are_inserted_by_place_by_columns_and_by_name(
    spark: SparkSession, publisher: Publisher, name: str, table: str
) -> None:
    publisher.queue(name)
    spark.sql(
        f"CREATE TEMPORARY VIEW {table} (message_id STRING, body STRING, routing_key STRING, delivery_mode INT) "
        f"USING warren OPTIONS ({options(publisher)})"
    )
    spark.sql(f"INSERT INTO {table} VALUES ('1', 'one', '{name}', 1)")
    spark.sql(f"INSERT INTO {table} (body, routing_key) VALUES ('two', '{name}')")
    spark.sql(f"INSERT INTO {table} BY NAME SELECT '{name}' AS routing_key, 'three' AS body, '3' AS message_id")
    # Columns that are left out are null, and a message without a delivery mode is persistent.
    assert taken(publisher, name) == [("one", 1, "1"), ("two", 2, None), ("three", 2, "3")]


@pytest.mark.long
def test_a_view_without_columns_refuses_what_leaves_out_those_of_a_reader(
    spark: SparkSession, publisher: Publisher, name: str, table: str
) -> None:
    publisher.queue(name)
    spark.sql(f"CREATE TEMPORARY VIEW {table} USING warren OPTIONS ({options(publisher, queue=name)})")
    with pytest.raises(Exception, match="CANNOT_FIND_DATA"):
        spark.sql(f"INSERT INTO {table} (body) VALUES (X'62')")
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")  # of nothing
    assert publisher.depth(name) == 0


def test_a_table_takes_the_broker_from_the_environment_and_the_place_from_its_rows(
    spark: SparkSession, publisher: Publisher, name: str, table: str
) -> None:
    publisher.queue(name)
    with pytest.raises(Exception, match="Spark passes no options to a table"):
        spark.sql(f"CREATE TABLE {table} USING warren OPTIONS ({options(publisher, queue=name)}) AS SELECT 'x' AS body")
    spark.sql(f"CREATE TABLE {table} USING warren AS SELECT 'one' AS body, '{name}' AS routing_key")
    spark.sql(f"INSERT INTO {table} (routing_key, body) VALUES ('{name}', 'two')")
    spark.sql(f"INSERT INTO {table} BY NAME SELECT 'three' AS body, '{name}' AS routing_key")
    assert [body for body, _, _ in taken(publisher, name)] == ["one", "two", "three"]


def test_save_as_table_passes_options(spark: SparkSession, publisher: Publisher, name: str, table: str) -> None:
    publisher.queue(name)
    writer = spark.sql("SELECT 'one' AS body").write.format("warren")
    writer.option("queue", name).option("managementUrl", publisher.url).mode("append").saveAsTable(table)
    assert taken(publisher, name) == [("one", 2, None)]
