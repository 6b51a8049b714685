"""The examples of docs/spark.md run, one after the other."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .messages import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


# Spark gives the worker of a streaming query 10 s to start, whatever its settings: a busy machine may need more.
TOO_SLOW = "failed to connect back"
TRIES = 5


def run(block: str, names: dict[str, object]) -> None:
    """Run an example; again if the machine was too busy for Spark to begin with it."""
    from pyspark.errors import StreamingQueryException

    for left in reversed(range(TRIES)):
        try:
            exec(block, names)
        except StreamingQueryException as error:
            if TOO_SLOW not in str(error) or not left:
                raise
        else:
            return


def test_the_examples_of_the_documentation_run(
    spark: SparkSession, publisher: Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert os.environ["WARREN_MANAGEMENT_URL"] == publisher.url
    publisher.stream("orders")
    publisher.bodies("orders", [b'{"id": 1}', b'{"id": 2}', b"?"])
    publisher.queue("work", 5)
    publisher.queue("work-2", 5)
    publisher.queue("orders.dead")
    dead_letters: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"}
    publisher.queue("tickets", **dead_letters)
    publisher.bodies("tickets", [b'{"id": 1, "text": "help"}', b"?"])
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    has_delta = find_spec("deltalake") is not None
    for block in blocks:
        if "deltalake" in block and not has_delta:
            continue
        run(block.replace('"lake/', f'"{tmp_path}/lake/'), names)
    assert spark.read.parquet(f"{tmp_path}/lake/orders").count() == 3
    assert spark.read.parquet(f"{tmp_path}/lake/all-orders").count() == 3
    assert "\n3\n" in f"\n{capsys.readouterr().out}"
    if has_delta:
        from deltalake import DeltaTable

        assert DeltaTable(f"{tmp_path}/lake/delta").to_pyarrow_table().num_rows == 3
    assert spark.read.parquet(f"{tmp_path}/lake/work").count() == 5
    assert spark.read.parquet(f"{tmp_path}/lake/tickets").count() == 1 and publisher.depth("orders.dead") == 1
    assert publisher.depth("work") == 0 and publisher.depth("work-2") == 5
