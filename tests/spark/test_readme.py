"""The README's examples run as printed, and Spark's tasks keep the terminal clean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from broker_process import WarrenProcess, wait_until

from warren.spark_bridge import read

from .messages import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_example_of_the_readme_runs_as_printed(
    spark: SparkSession, broker: WarrenProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks_of("README.md")
    exec(block.replace("127.0.0.1:5672", f"127.0.0.1:{broker.amqp_port}"), {})
    assert capsys.readouterr().out == "b'resize 7.jpg'\n"


def test_the_first_example_of_the_page_about_spark_runs_as_printed(
    spark: SparkSession,
    publisher: Publisher,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publisher.stream(name)
    publisher.bodies(name, [b"hello"])
    block = blocks_of("docs/spark.md")[0].replace('"orders"', f'"{name}"')
    exec(block.replace('"lake/', f'"{tmp_path}/lake/'), {})
    assert re.search(rf"\|\s*{name}\|\s*1\|", capsys.readouterr().out)
    assert spark.read.parquet(str(tmp_path / "lake/orders")).count() == 1


def test_tasks_that_limit_ends_early_print_no_traceback(
    spark: SparkSession, publisher: Publisher, name: str, worker_log: Path
) -> None:
    publisher.stream(name)
    publisher.bodies(name, [b"x" * 500] * 9_000)
    before = worker_log.stat().st_size
    for _ in range(3):
        frame = read(spark, name, managementUrl=publisher.url, columns="body", maxRecordsPerPartition=9_000)
        assert len(frame.limit(5).collect()) == 5
    # A line that comes after all that those tasks may have said.
    publisher.stream(f"{name}-bad")
    publisher.bodies(f"{name}-bad", [b"\xff"])
    read(spark, f"{name}-bad", managementUrl=publisher.url, columns="body", bodyAs="string").collect()
    wait_until(lambda: "are not UTF-8" in worker_log.read_text()[before:], "the worker's line")
    assert "Traceback" not in worker_log.read_text()[before:]
