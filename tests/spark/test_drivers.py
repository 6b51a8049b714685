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

import pyspark
import pytest
from broker_process import wait_until
from free_ports import free_port

from .driver import lakes_of
from .lake import DEADLINE_S, Lake
from .messages import Publisher
from .session import JAVA_OPTIONS, children_of, command_of
from .tools import KILLS

POLL_S = 0.002
# What ends a query on a busy machine: Spark gives a worker ten seconds to start, whatever is configured.
WORKER_WAS_SLOW = "Python worker failed to connect back"


@contextmanager
def process(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a group of its own, and leave nothing of it behind."""
    with log.open("ab") as out:
        started = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    try:
        yield started
    finally:
        kill(started)


def kill(started: subprocess.Popen[bytes]) -> None:
    """Kill a process and everything it has started."""
    below = children_of(started.pid)
    for pid in [started.pid, *below]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    started.wait()


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


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Run a master and a worker, and return the address of the master."""
    home = str(Path(pyspark.__file__).parent)
    environment = dict(os.environ) | {
        "SPARK_HOME": home,
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(directory / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("PYTHONPATH", None)  # executors have what is sent to them
    port = free_port()
    start = [f"{home}/bin/spark-class", "org.apache.spark.deploy"]
    master = [start[0], f"{start[1]}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = [start[0], f"{start[1]}.worker.Worker", "--cores", "2", "--memory", "1g", "--webui-port", "0"]
    worker += ["--host", "127.0.0.1", f"spark://127.0.0.1:{port}"]
    log = directory / "cluster.log"
    with process(master, log, environment) as first, process(worker, log, environment) as second:

        def has_joined() -> bool:
            assert first.poll() is None and second.poll() is None, log.read_text()
            return "Registering worker" in log.read_text()

        wait_until(has_joined, "the worker to join", DEADLINE_S)
        yield f"spark://127.0.0.1:{port}"


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

        def executors() -> list[int]:
            return [pid for pid in children_of(os.getpid()) if "CoarseGrainedExecutorBackend" in command_of(pid)]

        before = sum(len(lake.batches("commits")) for lake in lakes)
        wait_until(
            lambda: started.poll() is not None or sum(len(lake.batches("commits")) for lake in lakes) > before,
            "a batch on the cluster",
            DEADLINE_S,
        )
        assert executors()
        for pid in executors():
            os.kill(pid, signal.SIGKILL)
        assert started.wait(DEADLINE_S) == 0
        said = (tmp_path / "driver.log").read_text()
        assert "warren_spark_bridge.zip" in json.loads(said[said.index('{"package"') :].splitlines()[0])["package"]

    for lake in lakes:
        assert lake.numbers() == list(range(published))
        assert [row[2] for row in lake.rows()] == list(range(published))
    assert publisher.depth(queue) == 0
