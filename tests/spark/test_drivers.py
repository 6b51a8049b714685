"""Drivers that are killed, and executors: each message is in the table once, of a stream and of a drained queue.

WARREN_TEST_SPARK_KILLS says how many drivers are killed (1); the last one runs on a cluster of its own, where it loses
an executor.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_process import wait_until

from .driver import lakes_of
from .lake import DEADLINE_S, Lake
from .messages import Publisher
from .processes import cluster, executors_below, kill, process
from .tools import KILLS

POLL_S = 0.002
# The error that ends a query on a busy machine: Spark gives a worker ten seconds to start, whatever is configured.
WORKER_WAS_SLOW = "Python worker failed to connect back"


@contextmanager
def driver(told: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `driver.py`."""
    log = Path(told["directory"]) / "driver.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with process([sys.executable, "-m", "spark.driver", json.dumps(told)], log, dict(os.environ)) as started:
            yield started
    except BaseException:
        sys.stderr.write(log.read_text()[-10_000:])
        raise


def moment(lake: Lake, kind: str, batches: int) -> Callable[[], bool]:
    """Return a condition for the moment at which the driver is killed, `batches` batches from now."""
    number = max(lake.batches("offsets"), default=-1) + batches

    def planned() -> bool:
        return (lake.checkpoint / "offsets" / str(number)).exists()

    def written() -> bool:
        return any((lake.table / "_spark_metadata").glob(f"{number}*"))

    def committed() -> bool:
        return (lake.checkpoint / "commits" / str(number)).exists()

    return {"planned": planned, "written": written, "committed": committed}[kind]


def is_killed(told: dict[str, Any], lakes: list[Lake], due: Callable[[], bool]) -> bool:
    """Run a driver and kill it when that is due; False when Spark ended it before, which is as much of an end."""
    with driver(told) as started:
        look = threading.Event()
        for _ in range(int(DEADLINE_S / POLL_S)):
            # Spark refuses a checkpoint that a kill left in the middle of noting the very first batch.
            if started.poll() is not None or (due() and all(lake.batches("offsets") for lake in lakes)):
                break
            look.wait(POLL_S)
        if started.poll() is None:
            assert due()
            kill(started)
            return True
    log = Path(told["directory"]) / "driver.log"
    assert WORKER_WAS_SLOW in log.read_text(), "the driver has ended"
    log.unlink()
    return False


@pytest.mark.long
@pytest.mark.timeout(900 + 120 * KILLS)
def test_what_is_read_is_there_once_whoever_is_killed(publisher: Publisher, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    stream, queue = "killed-stream", "killed-queue"
    publisher.stream(stream, 400)
    publisher.queue(queue, 400)
    published = 400
    told = {"master": "local[2]", "directory": str(tmp_path), "url": publisher.url, "finish": False}
    told |= {"stream": stream, "queue": queue}
    lakes = lakes_of(told, None)

    for _ in range(KILLS):
        kind, batches = chance.choice(["planned", "written", "committed"]), chance.randrange(1, 5)
        due = moment(chance.choice(lakes), kind, batches)
        print(f"killed when batch +{batches} is {kind}")
        while not is_killed(told, lakes, due):
            print("ended by Spark: a worker took more than ten seconds to start")
        more = chance.randrange(50, 150)
        publisher.numbers(stream, range(published, published + more))
        publisher.numbers(queue, range(published, published + more))
        published += more

    with cluster(tmp_path) as master, driver(told | {"master": master, "finish": True}) as started:
        before = sum(len(lake.batches("commits")) for lake in lakes)
        wait_until(
            lambda: started.poll() is not None or sum(len(lake.batches("commits")) for lake in lakes) > before,
            "a batch on the cluster",
            DEADLINE_S,
        )
        found = executors_below(os.getpid())
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        assert started.wait(DEADLINE_S) == 0
        said = (tmp_path / "driver.log").read_text()
        assert "warren_spark_bridge.zip" in json.loads(said[said.index('{"package"') :].splitlines()[0])["package"]

    for lake in lakes:
        assert lake.numbers() == list(range(published))
        assert [row[2] for row in lake.rows()] == list(range(published))
    assert publisher.depth(queue) == 0
