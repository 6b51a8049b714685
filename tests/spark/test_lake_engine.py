"""`warren lake --engine spark` makes the same table as the other engine, after any kill and any change of engine."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from broker_process import WarrenProcess, wait_until

from warren.lake.commands import follower_of
from warren.lake.follower import Follower
from warren.lake.job import Job, job_of
from warren.lake.ranges import Range
from warren.lake.spark_cluster import SparkCluster
from warren.lake.spark_engine import Piece, Work
from warren.lake.table_errors import Overtaken
from warren.spark_bridge.bridge_errors import BridgeError

from .lake import DEADLINE_S
from .messages import Publisher
from .odd_decoder import Odd
from .processes import kill, process
from .session import children_of, command_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("iceberg", "delta")
START_S = 4 * DEADLINE_S  # a JVM, workers and their libraries, where others want the processors


def body_of(number: int) -> bytes:
    """Return the body of a message; some are not what a table takes, and a column comes late."""
    if number % 17 == 3:
        return b"no JSON %d" % number
    document: dict[str, Any] = {"number": number, "price": "free" if number % 23 == 5 else number / 2}
    if number > 70:
        document["late"] = number % 2 == 0
    return json.dumps(document).encode()


class Place:
    """Tables in a directory, by either engine."""

    def __init__(self, publisher: Publisher, spark: SparkSession, stream: str, form: str, directory: Path) -> None:
        self.publisher = publisher
        self.cluster = SparkCluster(spark)
        self.stream = stream
        self.form = form
        self.directory = directory

    def job(self, name: str = "orders", rows: int = 15) -> Job:
        to = f"{self.directory}/shop.{name}" if self.form == "iceberg" else f"{self.directory}/{name}"
        words = {"stream": self.stream, "to": to, "format": self.form, "body": "json", "max_rows": rows}
        return job_of(words, {}, Path())

    def follower(self, *, spark: bool, name: str = "orders", rows: int = 15) -> Follower:
        made = follower_of(self.job(name, rows), self.publisher.client, self.cluster if spark else None)
        made.open()
        return made

    def rows(self, name: str = "orders") -> list[dict[str, Any]]:
        """Return the rows of a table, in the order of offsets."""
        if self.form == "delta":
            from deltalake import DeltaTable

            found = DeltaTable(f"{self.directory}/{name}").to_pyarrow_table()
        else:
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog("warren", **self.job(name).catalog)
            found = catalog.load_table(f"shop.{name}").scan().to_arrow()
        return list(found.sort_by("offset").to_pylist())

    def offsets(self) -> list[int]:
        return sorted(row["offset"] for name in ("orders", "orders_refused") for row in self.rows(name))


@pytest.fixture(params=FORMATS)
def place(
    request: pytest.FixtureRequest, publisher: Publisher, spark: SparkSession, tmp_path: Path, name: str
) -> Place:
    pytest.importorskip("pyiceberg_core")
    pytest.importorskip("deltalake")
    return Place(publisher, spark, publisher.stream(name), request.param, tmp_path)


def run(made: Follower) -> int:
    steps = 0
    while made.step().moved:
        steps += 1
    return steps


# Both formats without Spark: unit/lake/test_spark_engine.py.
@pytest.mark.parametrize("place", ["delta", pytest.param("iceberg", marks=pytest.mark.long)], indirect=True)
def test_both_engines_make_the_same_table_and_go_on_where_the_other_ended(place: Place) -> None:
    ends = (40, 100, 150, 200)
    published = 0
    for turn, end in enumerate(ends):
        place.publisher.bodies(place.stream, map(body_of, range(published, end)))
        published = end
        run(place.follower(spark=turn % 2 == 0, name="turns"))
        run(place.follower(spark=False, name="plain"))
    assert place.rows("turns") == place.rows("plain")
    assert place.rows("turns_refused") == place.rows("plain_refused")
    both = [*place.rows("turns"), *place.rows("turns_refused")]
    assert sorted(row["offset"] for row in both) == list(range(200))
    assert place.rows("turns")[-1]["late"] is not None and place.rows("turns_refused")


@pytest.mark.long
def test_who_was_overtaken_while_tasks_ran_commits_nothing(place: Place) -> None:
    place.publisher.bodies(place.stream, map(body_of, range(30)))
    run(place.follower(spark=False))
    place.publisher.bodies(place.stream, map(body_of, range(30, 60)))
    first = place.follower(spark=True)
    second: list[Follower] = []
    original = place.cluster.run

    def run_and_be_overtaken(work: Work) -> Any:
        made = original(work)
        second.append(place.follower(spark=True))
        return made

    place.cluster.run = run_and_be_overtaken  # type: ignore[method-assign]
    with pytest.raises(Overtaken):
        first.step()
    place.cluster.run = original  # type: ignore[method-assign]
    assert place.offsets() == list(range(30))
    run(second[0])
    assert place.offsets() == list(range(60))


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_task_that_fails_as_often_as_it_may_is_said_in_a_line(place: Place) -> None:
    place.publisher.bodies(place.stream, map(body_of, range(3)))
    made = place.follower(spark=True)
    run(made)
    table = made._there().table
    client = place.publisher.client
    found = client.describe(place.stream)
    piece = Piece(Range(place.stream, 0, place.stream, found.id, 0, 3), client)
    work = Work(Odd(), table.columns(), False, table.writer(), None, (piece,))
    with pytest.raises(BridgeError, match=r"^a task has failed: RuntimeError: odd$"):
        place.cluster.run(work)


# --- processes -------------------------------------------------------------------------------------------------------


def command(place: Place, *more: str) -> list[str]:
    found = [sys.executable, "-m", "warren", "lake", "--url", place.publisher.url, "--stream", place.stream]
    found += ["--to", f"{place.directory}/shop.orders" if place.form == "iceberg" else f"{place.directory}/orders"]
    return [*found, "--format", place.form, "--body", "json", "--max-rows", "40", "--interval", "100ms", *more]


SPARK = ("--engine", "spark", "--master", "local[2]")


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_driver_that_is_killed_leaves_each_message_once(place: Place, broker: WarrenProcess) -> None:
    log = place.directory / "lake.log"
    environment = dict(os.environ)
    published = 0

    def publish(count: int) -> None:
        nonlocal published
        place.publisher.bodies(place.stream, map(body_of, range(published, published + count)))
        published += count

    def files() -> int:
        return sum(1 for _ in place.directory.rglob("*.parquet"))

    publish(300)
    look = threading.Event()
    for more in (SPARK, SPARK, ()):
        before = files()
        publish(200)
        with process(command(place, *more), log, environment) as started:
            wait_until(
                lambda: files() > before + 3 or started.poll() is not None,  # noqa: B023
                "files of tasks, committed or not",
                START_S,
            )
            look.wait(0.01 * (published % 7))
            assert started.poll() is None, log.read_text()[-3000:]
            kill(started)
    publish(100)
    with process(command(place, *SPARK, "--once"), log, environment) as started:
        assert started.wait(START_S) == 0, log.read_text()[-3000:]
    assert place.offsets() == list(range(published))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_the_command_ends_with_its_application(place: Place) -> None:
    log = place.directory / "lake.log"
    place.publisher.bodies(place.stream, map(body_of, range(100)))
    with process(command(place, *SPARK), log, dict(os.environ)) as started:
        wait_until(lambda: " 0 waiting" in log.read_text(), "the table to be there", START_S)
        for pid in children_of(started.pid):
            if "java" in command_of(pid):
                os.kill(pid, 9)
        place.publisher.bodies(place.stream, map(body_of, range(100, 120)))
        assert started.wait(START_S) == 1
    assert "the Spark application has ended" in log.read_text()
