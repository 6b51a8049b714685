"""Executors that know no password: batches, streaming queries and drains over the listener of data alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from broker_process import WarrenProcess

from warren.spark_bridge import read, read_stream

from .lake import DEADLINE_S
from .messages import Publisher
from .test_docs import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_all_modes_read_with_tokens(spark: SparkSession, tmp_path: Path, name: str) -> None:
    with WarrenProcess(tmp_path / "broker", {"data": "127.0.0.1:0"}) as process:
        publisher = Publisher(process)
        publisher.stream(name, 5)
        publisher.queue(f"{name}-q", 5)
        how: dict[str, Any] = {"managementUrl": publisher.url, "dataPort": "always", "localFiles": "never"}
        assert read(spark, name, **how).count() == 5
        assert read(spark, f"{name}-q", **how).count() == 5
        assert read(spark, name, **how, pushdown=False).where("offset > 2").count() == 2
        modes = {"log": {"subscribe": name, "startingOffsets": "earliest"}, "drain": {"subscribe": f"{name}-q"}}
        for mode, what in modes.items():
            frame = read_stream(spark, what["subscribe"], {**how, **what}, mode=mode, consumerName="lake")
            writer = frame.writeStream.format("parquet").option("path", str(tmp_path / mode))
            writer = writer.option("checkpointLocation", str(tmp_path / f"{mode}-c")).trigger(availableNow=True)
            run("assert start().awaitTermination(seconds)", {"start": writer.start, "seconds": int(DEADLINE_S)})
            assert spark.read.parquet(str(tmp_path / mode)).count() == 5
        publisher.close()


def test_a_broker_without_the_listener_fails_a_query_that_needs_it(
    spark: SparkSession, publisher: Publisher, name: str
) -> None:
    publisher.stream(name, 1)
    with pytest.raises(Exception, match="has no listener of data alone"):
        read(spark, name, managementUrl=publisher.url, dataPort="always").count()
