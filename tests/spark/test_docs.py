"""The examples of docs/spark.md run, one after the other."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from unit.spark_bridge.fake_registry import FakeRegistry
from unit.spark_bridge.typed_messages import ORDER, avro, framed, order_file, protobuf, serialized

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


@pytest.mark.long
def test_the_examples_of_the_documentation_run(
    spark: SparkSession,
    publisher: Publisher,
    registry: FakeRegistry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
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
    publisher.stream("orders-avro")
    publisher.bodies("orders-avro", [avro(ORDER, {"id": 1})])
    publisher.stream("orders-framed")
    publisher.bodies("orders-framed", [framed(1, avro(ORDER, {"id": 4711}))])
    publisher.stream("refunds")
    publisher.bodies("refunds", [framed(2, protobuf(order_file(), "shop.Refund", order=4712), b"\x02\x02")])
    registry.register(1, "orders-value", json.dumps(ORDER))
    registry.register(2, "refunds-value", serialized(order_file()), "PROTOBUF")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    has_delta = find_spec("deltalake") is not None
    for block in blocks:
        if "deltalake" in block and not has_delta:
            continue
        here = block.replace('"lake/', f'"{tmp_path}/lake/').replace("http://127.0.0.1:8081", registry.url)
        run(here, names)
    assert spark.read.parquet(f"{tmp_path}/lake/orders").count() == 3
    assert spark.read.parquet(f"{tmp_path}/lake/all-orders").count() == 3
    printed = capsys.readouterr().out
    assert "{'orders': 0}" in printed
    assert "\n3\n" in f"\n{printed}" and "4711" in printed and "4712" in printed
    if has_delta:
        from deltalake import DeltaTable

        assert DeltaTable(f"{tmp_path}/lake/delta").to_pyarrow_table().num_rows == 3
    assert spark.read.parquet(f"{tmp_path}/lake/work").count() == 5
    assert spark.read.parquet(f"{tmp_path}/lake/tickets").count() == 1 and publisher.depth("orders.dead") == 1
    assert publisher.depth("work") == 0 and publisher.depth("work-2") == 5
