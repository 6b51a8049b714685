"""Spark as the cluster for the tasks of a step: one job of Spark for each step, with a task for each piece.

1. A task that fails is repeated by Spark, elsewhere, as often as its settings say. Then the step has failed, and is
   repeated as after any error.
2. When the application itself has ended, or the JVM of the driver, it is not restarted here: the command ends.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from warren.lake.spark_engine import PieceMade, Work
from warren.lake.table_errors import EngineGone
from warren.spark_bridge.bridge_errors import BridgeError
from warren.spark_bridge.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TRACEBACK: Final = "Traceback (most recent call last):"


class SparkCluster:
    """A Spark application, that of this process or a new one."""

    def __init__(self, spark: SparkSession, *, is_ours: bool = False) -> None:
        self._spark = spark
        self._is_ours = is_ours

    @classmethod
    def started(cls, master: str | None) -> SparkCluster:
        """Return the application of this process; start it if necessary.

        Raises:
            BridgeError: it cannot be started.
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
        try:
            # With a data frame this would take pandas.
            numbers = self._spark.sparkContext.parallelize(range(count), count)
            found: list[PieceMade] = numbers.map(lambda number: work(number)).collect()
        except (PySparkException, Py4JError, OSError) as error:
            self._check()
            raise BridgeError(f"a task has failed: {_reason(error)}") from None
        return found

    def stop(self) -> None:
        """End the application, if it was begun for this."""
        from py4j.protocol import Py4JError

        if self._is_ours:
            with suppress(Py4JError, OSError):  # it has ended by itself, which was said
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


def _reason(error: Exception) -> str:
    """Return the last words of a task: the error, of pages of traces in two languages."""
    lines = iter(str(error).splitlines())
    first = next(lines, "") or type(error).__name__
    for line in lines:
        if line.endswith(_TRACEBACK):
            break
    return next((line for line in lines if line.strip() and not line[0].isspace()), first)
