"""A driver in a process of its own, to be killed: a stream and a queue into Parquet, until it is told to finish.

    python -m spark.driver '{"master": ..., "directory": ..., "url": ..., "stream": ..., "queue": ..., "finish": ...}'

The format is found by PySpark itself in local mode, and registered, which sends the package to executors, on a cluster.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .lake import Lake
from .session import start_session


def main(told: dict[str, Any]) -> None:
    """Run both queries; with `finish` until everything is read, else until somebody ends this process."""
    directory = Path(told["directory"])
    spark = start_session(
        told["master"],
        directory,
        **{"spark.executor.memory": "512m", "spark.executor.cores": "2", "spark.cores.max": "2"},
    )
    if not told["master"].startswith("local"):
        from warren.spark_bridge import register

        register(spark)
        where = spark.sparkContext.parallelize([0], 1).map(_where_the_package_is).collect()
        print(json.dumps({"package": where[0]}), flush=True)
    lakes = lakes_of(told, spark)
    queries = [lake.start(available_now=told["finish"]) for lake in lakes]
    if not told["finish"]:
        spark.streams.awaitAnyTermination()  # which raises what has ended one of them
    for query in queries:
        query.awaitTermination()
    spark.stop()


def _where_the_package_is(_: int) -> str:
    import warren.spark_bridge

    return warren.spark_bridge.__file__ or ""


def lakes_of(told: dict[str, Any], spark: Any) -> list[Lake]:
    """Return the two queries, with their options."""
    directory = Path(told["directory"])
    stream = Lake(spark, told["url"], told["stream"], directory / "stream")
    stream.options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "60", "maxRecordsPerPartition": "50"}
    queue = Lake(spark, told["url"], told["queue"], directory / "queue")
    queue.options = {"mode": "drain", "consumerName": "lake", "maxOffsetsPerTrigger": "60"}
    return [stream, queue]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
