"""One Spark session and one broker for all tests; a queue of its own for each.

1. Without Java or PySpark one line says so (`test_tools.py`) and nothing else of this folder is collected.
2. A JVM takes 15 s to start: there is one for the session, and tests that kill a driver share what they start.
3. Tasks are tried four times, as on a cluster: a worker that is killed is not the end of a query.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from broker_process import WarrenProcess

from .tools import MISSING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from unit.spark_bridge.fake_registry import FakeRegistry

    from .lake import Lake
    from .messages import Publisher

collect_ignore_glob = [] if MISSING is None else ["test_[!t]*.py"]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("warren")) as process:
        yield process


@pytest.fixture(scope="session")
def publisher(broker: WarrenProcess) -> Iterator[Publisher]:
    from .messages import Publisher

    found = Publisher(broker)
    yield found
    found.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, broker: WarrenProcess) -> Iterator[SparkSession]:
    from warren.spark_bridge import register

    from .session import keep_worker_log, start_session

    # Where this broker is when nothing says so; the JVM and its workers take it over when they start.
    os.environ["WARREN_MANAGEMENT_URL"] = f"http://127.0.0.1:{broker.http_port}"
    directory = tmp_path_factory.mktemp("spark")
    session = start_session("local[2,4]", directory)
    keep_worker_log(session, directory / "workers.log")
    session.conf.set("spark.warren.workerLog", str(directory / "workers.log"))
    register(session)
    yield session
    session.stop()


@pytest.fixture
def worker_log(spark: SparkSession) -> Path:
    """The file with what Spark's Python workers print, on stderr too."""
    return Path(str(spark.conf.get("spark.warren.workerLog")))


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    from unit.spark_bridge.fake_registry import FakeRegistry

    with FakeRegistry() as made:
        yield made


@pytest.fixture
def name() -> str:
    """A name that nobody else uses."""
    return f"q{next(_numbers)}"


@pytest.fixture
def lake(spark: SparkSession, publisher: Publisher, tmp_path: Path, name: str) -> Iterator[Lake]:
    """Queries from a queue into Parquet, ended with the test."""
    from .lake import Lake

    made = Lake(spark, publisher.url, name, tmp_path)
    yield made
    made.stop()
