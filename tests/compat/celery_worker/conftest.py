"""A real Celery worker as a process of its own, and the application that talks to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kombu.pools
import pika
import pytest

from ..broker import DEADLINE_S, Broker, wait_until
from .tasks import make_app

PROCESSES = (1, 4)
START_DEADLINE_S = 180.0


@dataclass(frozen=True)
class Worker:
    """The running worker: its node name and the application to reach it with."""

    app: Any
    namespace: str
    hostname: str

    def task(self, name: str) -> Any:
        """Return a task by name."""
        return self.app.tasks[name]

    def inspect(self) -> Any:
        """Return an inspector that is content with this worker's answer."""
        return self.app.control.inspect(destination=[self.hostname], timeout=DEADLINE_S, limit=1)

    def ask(self, what: str, *arguments: Any) -> Any:
        """Inspect the worker and return its own answer."""
        answers = getattr(self.inspect(), what)(*arguments)
        assert answers is not None, f"no answer to inspect {what}"
        return answers[self.hostname]


@pytest.fixture(scope="module")
def worker(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Worker]:
    """Start `celery worker --autoscale` and wait until it answers a ping."""
    namespace = f"compat-celery-{uuid.uuid4().hex[:8]}"
    hostname = f"{namespace}@localhost"
    directory = tmp_path_factory.mktemp("celery")
    log_path = directory / "worker.log"
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--loglevel=INFO", "--events"]
    command += [f"--hostname={hostname}", f"--autoscale={PROCESSES[1]},{PROCESSES[0]}", "--pool=prefork"]
    environment = os.environ | {
        "COMPAT_CELERY_BROKER": broker.url,
        "COMPAT_CELERY_NAMESPACE": namespace,
        "AUTOSCALE_KEEPALIVE": "0.5",
        "PYTHONPATH": str(Path(__file__).parent),
        "C_FORCE_ROOT": "1",
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT)
    running = Worker(make_app(broker.url, namespace), namespace, hostname)
    failed_before = request.session.testsfailed

    def answers() -> bool:
        assert process.poll() is None, f"the worker ended with status {process.returncode}"
        return bool(running.app.control.ping(destination=[hostname], timeout=0.5, limit=1))

    try:
        wait_until(answers, "the worker to answer a ping", START_DEADLINE_S)
        yield running
    except BaseException:
        sys.stderr.write(_tail(log_path))
        raise
    finally:
        if request.session.testsfailed > failed_before:
            sys.stderr.write(_tail(log_path))
        _end(process)
        running.app.backend.result_consumer.stop()
        running.app.close()
        kombu.pools.reset()
        _clean(broker, namespace)


def _tail(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()[-200:]
    return "\n".join(["--- celery worker ---", *lines, ""])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _clean(broker: Broker, namespace: str) -> None:
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        for queue in (namespace, f"{namespace}.topic", f"{namespace}.late"):
            channel.queue_delete(queue)
        exchanges = ["", ".topic", ".broadcast", ".late", ".pidbox", ".reply.pidbox", ".events", ".results"]
        for suffix in exchanges:
            channel.exchange_delete(namespace + suffix)
        channel.exchange_delete(f"reply.{namespace}.pidbox")
