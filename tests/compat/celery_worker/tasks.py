"""The Celery application of the worker and its tests: `make_app` here, `app` for `celery -A tasks`.

1. Every name in the broker starts with the namespace, so that several suites can share a vhost.
2. Tasks that wait, wait for a file to appear; they give up long after the tests did.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Exchange, Queue
from kombu.common import Broadcast

GIVE_UP_S = 60.0
POLL_S = 0.02
# How long a worker may keep a task of the impatient queue without an answer.
IMPATIENT_MS = 3000


def add(x: int, y: int) -> int:
    """Add."""
    return x + y


def echo(value: Any) -> Any:
    """Return what came."""
    return value


def total(numbers: list[int]) -> int:
    """Sum."""
    return sum(numbers)


def fail(reason: str) -> None:
    """Raise ValueError."""
    raise ValueError(reason)


def succeed_at_last(self: Any, failures: int) -> int:
    """Fail and retry `failures` times; return the number of the last try."""
    retries: int = self.request.retries
    if retries < failures:
        raise self.retry(exc=ValueError("not yet"), countdown=0.05, max_retries=failures)
    return retries


def always_retry(self: Any) -> None:
    """Fail and retry once, in vain."""
    raise self.retry(exc=ValueError("not yet"), countdown=0.05, max_retries=1)


def executed_at() -> float:
    """Return the time of execution, seconds since the epoch."""
    return time.time()


def wait_for(path: str) -> str:
    """Return when a file appears."""
    give_up_at = time.monotonic() + GIVE_UP_S
    while not Path(path).exists():
        if time.monotonic() > give_up_at:
            raise TimeoutError(path)
        time.sleep(POLL_S)
    return "released"


def append(path: str, line: str) -> None:
    """Append a line to a file."""
    with Path(path).open("a") as out:
        out.write(line + "\n")


def give_back_once(self: Any, path: str) -> None:
    """Reject with requeue on first delivery, note the second."""
    redelivered = bool(self.request.delivery_info["redelivered"])
    append(path, f"redelivered={redelivered}")
    if not redelivered:
        raise Reject("not now", requeue=True)


def make_app(broker_url: str, namespace: str) -> Celery:
    """Return an application whose queues and exchanges start with `namespace`."""
    app = Celery("compat", broker=broker_url, backend="rpc://")
    app.conf.update(
        task_default_queue=namespace,
        task_default_exchange=namespace,
        task_queues=[
            Queue(namespace, Exchange(namespace, "direct"), routing_key=namespace),
            Queue(f"{namespace}.topic", Exchange(f"{namespace}.topic", "topic"), routing_key="work.#"),
            Queue(
                f"{namespace}.priority",
                Exchange(namespace, "direct"),
                routing_key=f"{namespace}.priority",
                queue_arguments={"x-max-priority": 9},
            ),
            Queue(
                f"{namespace}.impatient",
                Exchange(namespace, "direct"),
                routing_key=f"{namespace}.impatient",
                queue_arguments={"x-consumer-timeout": IMPATIENT_MS},
            ),
            Broadcast(f"{namespace}.broadcast"),
        ],
        task_default_routing_key=namespace,
        control_exchange=namespace,
        event_exchange=f"{namespace}.events",
        event_queue_prefix=f"{namespace}.events",
        result_exchange=f"{namespace}.results",
        task_track_started=True,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        broker_connection_retry_on_startup=True,
    )
    for function in (add, echo, total, fail, executed_at, wait_for, append):
        app.task(name=function.__name__)(function)
    app.task(name="succeed_at_last", bind=True)(succeed_at_last)
    app.task(name="always_retry", bind=True)(always_retry)
    app.task(name="give_back_once", bind=True, acks_late=True, ignore_result=True)(give_back_once)
    app.task(name="wait_for_late", acks_late=True)(wait_for)
    assert issubclass(app.Task, Task)
    return app


app = make_app(os.environ.get("COMPAT_CELERY_BROKER", "amqp://"), os.environ.get("COMPAT_CELERY_NAMESPACE", "compat"))
