"""`warren export --engine spark`: the same directory, manifest and rows as without, and SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from broker_process import WarrenProcess

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.export import Export, ExportOptions
from warren.spark_bridge.import_files import Import, ImportOptions
from warren.spark_bridge.manifest import Manifest
from warren.spark_bridge.spark_export import SparkExport

from .messages import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


class Silent:
    def planned(self, rows: int, bytes: int) -> None: ...
    def advanced(self, rows: int, bytes: int) -> None: ...
    def committed(self, state: Any) -> None: ...


def export(
    broker: WarrenProcess, queue: str, directory: Path, *, spark: bool = True, sql: str | None = None, **options: Any
) -> Manifest:
    url = f"http://127.0.0.1:{broker.http_port}"
    with BrokerClient(url) as client:
        wanted = ExportOptions(queue, directory, **options)
        if not spark:
            return Export(client, wanted, Silent()).run()
        return SparkExport(client, wanted, Silent(), connection={"managementUrl": url}, sql=sql).run()


def offsets(state: Manifest, directory: Path) -> list[int]:
    found: list[int] = []
    for entry in state.files:
        found += pq.ParquetFile(directory / entry.path).read(["offset"]).column("offset").to_pylist()
    return sorted(found)


@pytest.mark.long
def test_either_engine_goes_on_where_the_other_ended(
    broker: WarrenProcess, publisher: Publisher, tmp_path: Path, name: str
) -> None:
    publisher.stream(name)
    for number in range(6):
        publisher.numbers(name, range(20 * number, 20 * number + 20))
        state = export(broker, name, tmp_path, spark=number % 2 == 0)
        assert (state.state, state.rows, state.read, state.covered) == ("complete", *[20 * (number + 1)] * 3)
    assert offsets(state, tmp_path) == list(range(120))
    tables = [pq.read_table(tmp_path / entry.path) for entry in state.files[:2]]
    assert [table.column_names for table in tables] == [tables[0].column_names] * 2
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("_")} == {
        entry.path for entry in state.files
    }


@pytest.mark.long
def test_conditions_and_directories_are_those_of_the_other_engine(
    broker: WarrenProcess, publisher: Publisher, tmp_path: Path, name: str
) -> None:
    publisher.stream(name)
    publisher.numbers(name, range(30))
    options: dict[str, Any] = {
        "where": "offset >= 10 and offset < 25",
        "partition_by": "date",
        "columns": ("offset", "body"),
    }
    states = [export(broker, name, tmp_path / str(spark), spark=spark, **options) for spark in (False, True)]
    for state, directory in zip(states, ("False", "True"), strict=True):
        assert (state.rows, state.read, state.filtered) == (15, 30, 15)
        assert offsets(state, tmp_path / directory) == list(range(10, 25))
    assert states[0].files[0].partition == states[1].files[0].partition
    assert states[0].files[0].path.partition("/")[0] == states[1].files[0].path.partition("/")[0]


def test_a_queue_is_copied_and_json_comes_back(
    broker: WarrenProcess, publisher: Publisher, tmp_path: Path, name: str
) -> None:
    publisher.queue(name)
    publisher.channel.basic_publish("", name, b"\xff\x00" * 100)  # of which Spark's base64 makes several lines
    publisher.channel.basic_publish("", name, "ü".encode())
    publisher.settled()
    state = export(broker, name, tmp_path, form="json")
    assert (state.rows, state.covered) == (2, 2)
    assert export(broker, name, tmp_path, form="json").rows == 2
    with BrokerClient(f"http://127.0.0.1:{broker.http_port}") as client:
        Import(client, ImportOptions(tmp_path, exchange="", routing_key=name), Silent()).run()
    taken = [publisher.channel.basic_get(name, auto_ack=True)[2] or b"" for _ in range(4)]
    assert sorted(taken) == sorted([b"\xff\x00" * 100, "ü".encode()] * 2)


@pytest.mark.long
def test_sql_says_what_is_written(broker: WarrenProcess, publisher: Publisher, tmp_path: Path, name: str) -> None:
    publisher.stream(name)
    publisher.numbers(name, range(30))
    sql = "SELECT offset % 3 AS third, count(*) AS messages FROM queue GROUP BY 1 ORDER BY 1"
    state = export(broker, name, tmp_path / "json", form="json", sql=sql)
    rows = [json.loads(line) for entry in state.files for line in (tmp_path / "json" / entry.path).open()]
    assert sorted((row["third"], row["messages"]) for row in rows) == [(0, 10), (1, 10), (2, 10)]
    state = export(broker, name, tmp_path / "csv", form="csv", sql="SELECT offset, 'a\nb' AS text FROM queue")
    assert state.rows == 30
    with pytest.raises(UsageError, match="sql"):
        export(broker, name, tmp_path / "json", form="json", sql="SELECT 1 AS one FROM queue")
    with pytest.raises(UsageError, match="sql"):
        export(broker, name, tmp_path / "json", spark=False, form="json")


@pytest.mark.long
def test_the_partitions_of_a_super_stream_are_exported(
    broker: WarrenProcess, publisher: Publisher, tmp_path: Path, name: str
) -> None:
    publisher.channel.exchange_declare(name, "x-super-stream", durable=True, arguments={"x-super-stream": 2})
    for number in range(20):
        publisher.channel.basic_publish(name, f"key {number}", b"%d" % number)
    publisher.settled()
    state = export(broker, name, tmp_path, columns=("partition", "offset", "body"))
    assert state.rows == 20
    for number in range(20, 30):
        publisher.channel.basic_publish(name, f"key {number}", b"%d" % number)
    publisher.settled()
    state = export(broker, name, tmp_path, columns=("partition", "offset", "body"), spark=False)
    rows = [row for entry in state.files for row in pq.read_table(tmp_path / entry.path).to_pylist()]
    assert sorted(int(row["body"]) for row in rows) == list(range(30))
    assert len({(row["partition"], row["offset"]) for row in rows}) == 30


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"form": "arrow"}, "--engine spark writes"),
        ({"form": "csv"}, "--sql"),
        ({"mode": "drain"}, "engine arrow"),
        ({"sql": "SELECT 1", "columns": ("body",)}, "--sql excludes --columns"),
    ],
)
def test_what_spark_cannot_do_is_refused(
    broker: WarrenProcess, publisher: Publisher, tmp_path: Path, name: str, options: dict[str, Any], reason: str
) -> None:
    publisher.queue(name)
    with pytest.raises(UsageError, match=reason):
        export(broker, name, tmp_path, **options)


def test_a_job_that_fails_leaves_nothing(
    broker: WarrenProcess, publisher: Publisher, tmp_path: Path, name: str, spark: SparkSession
) -> None:
    from pyspark.errors import PySparkException

    publisher.stream(name)
    publisher.numbers(name, range(5))
    with pytest.raises(PySparkException):
        export(broker, name, tmp_path, sql="SELECT raise_error('no') AS x FROM queue")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("_")] == []
    assert export(broker, name, tmp_path, sql="SELECT offset FROM queue").rows == 5
