"""A driver in a process of its own, to be killed: all flows at once, until it is told to finish.

    python -m spark.chaos.driver '{"master": …, "directory": …, "url": …, "available_now": …, "finish": …}'

1. A flow that fails is started again from its checkpoint, as in a real pipeline. It fails when the broker was away for
   longer than requests are retried, or when the process that plans its batches was killed. Each reason is a line of
   ``failures.jsonl``.
2. With `available_now` queries end and are started again, repeatedly.
3. With `finish` each query runs to the present end, and the process ends.
4. Few queries start at once: each starts a Python process, which has to start within ten seconds (Spark's fixed limit),
   and six at once take longer than that on a busy machine.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark.session import start_session

from .flows import Flow, flows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILURES: Final = "failures.jsonl"
# By what a driver says that it has begun another try of a task that seems slow.
SPECULATED: Final = "as speculatable because"
TRIES: Final = 8
STARTS: Final = 2
_PAUSE_S: Final = 2.5  # until a query starts again: longer than a lease
_POLL_S: Final = 0.05
_NO_SOURCES: Final = "Initializing sources"  # the status of a query until it can ask them
_CLUSTER: Final = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
    "spark.task.maxFailures": str(TRIES),
    # Whatever takes longer than half of the tasks of its stage is begun once more.
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.minTaskRuntime": "1ms",
}


def main(told: dict[str, Any]) -> None:
    """Run all flows; see the header."""
    from warren.spark_bridge import register

    directory = Path(told["directory"])
    is_local = told["master"].startswith("local")
    spark = start_session(told["master"], directory, **({} if is_local else _CLUSTER))
    register(spark)
    if not is_local:
        jvm: Any = spark._jvm
        log4j = jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel("org.apache.spark.scheduler.TaskSetManager", log4j.Level.INFO)
    followers = [_Follower(spark, flow, told) for flow in flows_in(directory).values()]
    for each in followers:
        each.start()
    for each in followers:
        each.join()
    spark.stop()


class _Follower(threading.Thread):
    """Has one flow run."""

    _noting = threading.Lock()
    _starting = threading.Semaphore(STARTS)

    def __init__(self, spark: SparkSession, flow: Flow, told: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._spark = spark
        self._flow = flow
        self._told = told
        self._pause = threading.Event()  # never set: a pause without a sleep call

    def run(self) -> None:
        jvm: Any = self._spark._jvm
        # Else Spark does not find a sink in Python: it looks for it in the active session, which is one of a thread.
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark._jsparkSession)
        finish = bool(self._told["finish"])
        while not (self._is_run(available_now=finish or bool(self._told["available_now"])) and finish):
            self._pause.wait(_PAUSE_S)

    def _is_run(self, *, available_now: bool) -> bool:
        try:
            with self._starting:
                query = self._flow.start(self._spark, self._told["url"], available_now=available_now)
                while query.isActive and query.status["message"] == _NO_SOURCES:
                    self._pause.wait(_POLL_S)
            query.awaitTermination()
        except Exception as error:
            line = json.dumps({"flow": self._flow.name, "why": str(error)[:4000]})
            with self._noting, (Path(self._told["directory"]) / FAILURES).open("a") as log:
                log.write(line + "\n")
            return False
        return True


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
