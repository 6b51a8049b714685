"""Spark as whoever runs the tasks of a step: one job of Spark for each step, with a task for each piece.

1. A task that fails is tried again by Spark, elsewhere, as often as its settings say; then the step has failed, and is
   begun anew as after any error.
2. When the application itself has ended, or the JVM of the driver, nothing here brings it back: the command ends.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from warren.lake.errors import EngineGone
from warren.lake.spark_engine import PieceMade, Work
from warren.spark_bridge.errors import BridgeError
from warren.spark_bridge.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA: Final = "number bigint, made binary"


class SparkCluster:
    """A Spark application, the one of this process or one that is begun."""

    def __init__(self, spark: SparkSession, *, is_ours: bool = False) -> None:
        self._spark = spark
        self._is_ours = is_ours

    @classmethod
    def started(cls, master: str | None) -> SparkCluster:
        """Return the application of this process; it is begun if there is none.

        Raises:
            BridgeError: it cannot be.
        """
        spark, is_ours = session(master, "warren lake")
        return cls(spark, is_ours=is_ours)

    @property
    def slots(self) -> int:
        """How many tasks run at a time, as far as Spark knows by now."""
        self._check()
        return max(1, int(self._spark.sparkContext.defaultParallelism))

    def run(self, work: Work) -> list[PieceMade]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        count = len(work.pieces)
        frame = self._spark.range(0, count, 1, count).mapInArrow(_task(work), _SCHEMA)
        try:
            rows = frame.collect()
        except (PySparkException, Py4JError, OSError) as error:
            self._check()
            raise BridgeError(f"a task has failed: {_reason(error)}") from None
        found: dict[int, PieceMade] = {row.number: pickle.loads(row.made) for row in rows}
        return [found[number] for number in range(count)]

    def stop(self) -> None:
        """End the application, if it was begun for this."""
        if self._is_ours:
            self._spark.stop()

    def _check(self) -> None:
        """Make sure that the application is there.

        Raises:
            EngineGone: it is not.
        """
        from py4j.protocol import Py4JError

        try:
            context = self._spark.sparkContext._jsc
            is_there = context is not None and not context.sc().isStopped()
        except (Py4JError, OSError):
            is_there = False
        if not is_there:
            raise EngineGone("the Spark application has ended: the same command begins another one")


def _task(work: Work) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = pickle.dumps(work(number))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([made], pa.binary())], ["number", "made"]
                )

    return run


def _reason(error: Exception) -> str:
    """Return what a task has said last: the error, of pages of traces in two languages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if line.split(":", 1)[0].replace(".", "").isidentifier() and ": " in line]
    named = [line for line in raised if not line.startswith(("org.apache.spark", "pyspark.errors", "py4j"))]
    return (named or raised or lines or [type(error).__name__])[0]
