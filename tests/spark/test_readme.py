"""What the README prints runs as printed, and what Spark's tasks leave on the terminal."""

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

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_of_the_readme_speak_of_the_same_stream(
    spark: SparkSession, broker: WarrenProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2 and "pika" in blocks[0] and "spark" in blocks[1]
    for block in blocks:
        exec(block.replace("127.0.0.1:5672", f"127.0.0.1:{broker.amqp_port}"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "b'hello'"
    assert "|offset|routing_key|            body|" in lines
    assert "|     0|     events|[68 65 6C 6C 6F]|" in lines


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
