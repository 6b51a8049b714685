"""The helpers around the data source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest
from pyspark.errors import AnalysisException

from warren.spark_bridge import infer_json_schema, make_archive, read, to_kafka_shape, view, with_json

from .messages import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_bodies_are_parsed_as_json_and_what_is_none_is_kept_as_text(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.stream(name)
    publisher.bodies(name, [b'{"id": 1, "tags": ["a"]}', b"not json", b'{"id": "x"}'])
    schema = infer_json_schema(spark, name, rows=1, managementUrl=publisher.url)
    assert schema.simpleString() == "struct<id:bigint,tags:array<string>>"
    frame = read(spark, name, managementUrl=publisher.url)
    for given in (schema, "id bigint, tags array<string>"):
        rows = with_json(frame, given).orderBy("offset").select("value.*").collect()
        assert [tuple(row) for row in rows] == [
            (1, ["a"], None),
            (None, None, "not json"),
            (None, None, '{"id": "x"}'),
        ]
    with pytest.raises(ValueError, match="struct"):
        with_json(frame, "bigint")


@pytest.mark.long
def test_what_passes_for_json_and_is_none_is_corrupt(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name)
    bad = [b"", b"  ", b'{"id":5} rest', b'{"id":5}{"id":6}', b'{"id":5},{"id":6}', b'{"id":5}],[{"id":6}']
    bad += [b'{"id":NaN}', b'{"id":-Infinity}', b'{"id":1e400}', b'{"more":[{"x":1e400}]}', b'{"id":5,"id":6}', b"null"]
    good = [b'{"id":5}', b' {"id":1.5, "more":[{"x":1}, {"x":null}]} ', b"{}", b'{"id":null}', '{"s":"é\\n]"}'.encode()]
    publisher.bodies(name, [*bad, *good])
    frame = read(spark, name, managementUrl=publisher.url)
    rows = with_json(frame, "id double, more array<struct<x: double>>, s string").orderBy("offset").collect()
    assert [row.value["_corrupt"] for row in rows] == [body.decode() for body in bad] + [None] * len(good)
    assert all(row.value.id is None and row.value.more is None for row in rows[: len(bad)])
    assert [row.value.id for row in rows[len(bad) :]] == [5.0, 1.5, None, None, None]
    assert infer_json_schema(spark, name, managementUrl=publisher.url).fieldNames() == ["id", "more", "s"]


@pytest.mark.long
def test_large_bodies_are_looked_at_to_their_end(spark: SparkSession, publisher: Publisher, name: str) -> None:
    """Those that cannot become a variant were taken as they were, and a long text was too much for Java's stack."""
    publisher.stream(name)
    large = b"x" * (5 << 20)
    tails = [b'"} rest', b'"}{"id":6}', b'"},{"id":6}', b'"}],[{"id":6}']
    bad = [b'{"id":5,"s":"%s%s' % (large, tail) for tail in tails]
    bad += [b'{\'id\':5,"s":"%s"}' % large]
    good = [b'{"id":5,"s":"%s"}' % large, b'{"id":5,"s":"%s%s"}' % (b"0" * 300, large[: 1 << 18])]
    publisher.bodies(name, [*bad, *good])
    frame = read(spark, name, managementUrl=publisher.url)
    rows = with_json(frame, "id bigint").orderBy("offset").selectExpr("value.id", "length(value._corrupt) n").collect()
    assert [(row.id, row.n) for row in rows] == [(None, len(body)) for body in bad] + [(5, None)] * len(good)


@pytest.mark.long
def test_a_number_that_its_column_does_not_have_is_corrupt(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.stream(name)
    bad = [b'{"d":1e-400}', b'{"d":-0.%s1}' % (b"0" * 400), b'{"f":1e-60}', b'{"more":[{"d":1},{"d":2E-400}]}']
    bad += [b'{"m":{"a":1e-999}}', b'{"t":9223372036855}', b'{"t":-99999999999999}', b'{"n":1.239}', b'{"n":1239e-3}']
    bad += [b'{"s":1e-400}', b'{"n":1.2300000000000000000001}', b'{"t":"+300000-01-01T00:00:00Z"}']
    good = [b'{"d":1e-300,"f":1e-30}', b'{"d":0e-400,"f":-0.0}', b'{"more":[{"d":0},null]}', b'{"s":"1e-400","d":0}']
    good += [b'{"t":9223372036854}', b'{"n":1.2300}', b'{"n":123e-2}', b'{"n":7}', b'{"t":"2026-11-29T00:00:00Z"}']
    publisher.bodies(name, [*bad, *good])
    schema = "d double, f float, more array<struct<d: double>>, m map<string, double>, t timestamp, "
    schema += "n decimal(10,2), s string"
    frame = with_json(read(spark, name, managementUrl=publisher.url), schema).orderBy("offset")
    # A time of such a year is not one that Python has.
    rows = frame.selectExpr("value._corrupt", "value.d", "cast(value.n as string) n", "value.t is null t").collect()
    assert [row["_corrupt"] for row in rows] == [body.decode() for body in bad] + [None] * len(good)
    assert [row.n for row in rows[len(bad) :]] == [None] * 5 + ["1.23", "1.23", "7.00", None]
    assert [row.t for row in rows[len(bad) :]] == [True] * 4 + [False] + [True] * 3 + [False]


@pytest.mark.long
def test_bad_bodies_in_the_sample_leave_one_corrupt_column(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.stream(name)
    publisher.bodies(name, [b'{"id": 1}', b"not json", b"\xff", b"[2]"])
    schema = infer_json_schema(spark, name, managementUrl=publisher.url)
    assert schema.simpleString() == "struct<id:bigint>"
    frame = with_json(read(spark, name, managementUrl=publisher.url), schema).orderBy("offset").select("value.*")
    assert frame.columns == ["id", "_corrupt"]
    assert [row.id for row in frame.collect()] == [1, None, None, None]
    assert [row["_corrupt"] is None for row in frame.collect()] == [True, False, False, False]


def test_a_table_is_refused_and_the_view_is_named(spark: SparkSession, name: str) -> None:
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW name USING warren"):
        spark.sql(f"create table t_{name} using warren options (subscribe 's')")
    spark.sql(f"create table t_{name} (body string) using warren options (subscribe 's')")
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW name USING warren"):
        spark.sql(f"select * from t_{name}").collect()
    spark.sql(f"drop table t_{name}")


@pytest.mark.long
def test_a_view_is_there_for_sql(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.queue(name, 3)
    view(spark, f"v_{name}", queue=name, managementUrl=publisher.url)
    assert spark.sql(f"select sum(cast(cast(body as string) as int)) as sum from v_{name}").collect()[0]["sum"] == 3
    spark.sql(
        f"create temporary view w_{name} using warren "
        f"options (subscribe '{name}', managementUrl '{publisher.url}', columns 'offset')"
    )
    assert spark.sql(f"select count(*) as count from w_{name}").collect()[0]["count"] == 3


@pytest.mark.long
def test_a_notebook_for_kafka_finds_its_columns(spark: SparkSession, publisher: Publisher, name: str) -> None:
    publisher.stream(name)
    publisher.publish(name, b"x", pika.BasicProperties(headers={"a": "1"}))
    frame = read(spark, name, managementUrl=publisher.url)
    kafka = to_kafka_shape(frame)
    assert kafka.drop("timestamp").dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    (row,) = kafka.collect()
    assert (bytes(row.key), bytes(row.value), row.topic, row.offset) == (name.encode(), b"x", name, 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("a", b"1")]
    assert "headers" not in to_kafka_shape(frame.drop("headers")).columns
    with pytest.raises(ValueError, match="headersFormat map"):
        to_kafka_shape(read(spark, name, managementUrl=publisher.url, headersFormat="typed"))


def imported(archive: Path, *modules: str) -> list[str]:
    """Return the modules of Warren that there are where nothing but `archive` is, once `modules` are imported."""
    look = (
        f"import sys; sys.path.insert(0, sys.argv[1])\nimport {', '.join(modules)}\nimport warren\n"
        "print(warren.__file__); print(*sorted(name for name in sys.modules if name.startswith('warren.')))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", look, str(archive)], capture_output=True, text=True, check=True, cwd=archive.parent
    )
    where, names = done.stdout.splitlines()
    assert where.startswith(str(archive))
    return names.split()


@pytest.mark.long
def test_what_is_sent_to_executors_needs_nothing_else_of_warren(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    names = imported(archive, "warren.spark_bridge.source", "warren.spark_bridge.writer")
    assert {name.split(".")[1] for name in names} == {"spark_bridge"}


def test_tasks_that_write_tables_need_nothing_else_of_warren(tmp_path: Path) -> None:
    for library in ("pyiceberg_core", "deltalake"):
        pytest.importorskip(library)
    modules = ("spark_cluster", "iceberg_table", "delta_table", "typed_fields")
    names = imported(make_archive(tmp_path), *(f"warren.lake.{module}" for module in modules))
    assert {name.split(".")[1] for name in names} == {"lake", "spark_bridge"}
