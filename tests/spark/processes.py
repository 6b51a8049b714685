"""Processes of Spark, to be killed: drivers, a cluster, and the roles of their child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from broker_process import wait_until
from free_ports import free_port

from .lake import DEADLINE_S
from .session import JAVA_OPTIONS, children_of, command_of, home_without_archives


@contextmanager
def process(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
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
def cluster(directory: Path, hosts: Sequence[str] = ("127.0.0.1",)) -> Iterator[str]:
    """Run a master and a worker for each of `hosts`, and return the address of the master.

    The hosts are addresses of this machine: Spark tries a slow task again only on a host where it does not run.
    """
    home = str(home_without_archives(directory))
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
    url = f"spark://127.0.0.1:{port}"
    log = directory / "cluster.log"
    with ExitStack() as running:
        started = [running.enter_context(process(master, log, environment))]
        for host in hosts:
            command = [*worker, "--host", host, url]
            started.append(running.enter_context(process(command, log, environment | {"SPARK_LOCAL_IP": host})))

        def have_joined() -> bool:
            assert all(each.poll() is None for each in started), log.read_text()
            return log.read_text().count("Registering worker") >= len(hosts)

        wait_until(have_joined, "the workers to join", DEADLINE_S)
        yield url


def executors_below(pid: int) -> list[int]:
    """Return the executors of clusters that `pid` has started."""
    return [each for each in children_of(pid) if "CoarseGrainedExecutorBackend" in command_of(each)]


def task_workers_below(pid: int) -> list[int]:
    """Return the Python processes that run tasks; their daemons, which start them, are not among them."""
    found = []
    for each in children_of(pid):
        if "pyspark.daemon" in command_of(each) and not children_of(each):
            found.append(each)
    return found


def planners_below(pid: int) -> list[int]:
    """Return the Python processes in which the sources of streaming queries say what comes next."""
    return [each for each in children_of(pid) if "python_streaming_source_runner" in command_of(each)]
