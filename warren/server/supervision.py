"""Supervise tasks: handle their exceptions, start them again, and show their state.

1. No exception of a supervised task reaches its nursery. That includes a MemoryError or an OSError for lack of
   descriptors, like any defect of ours: it is the failure of that task only. Only cancellation passes.
2. A task that is kept starts again after a pause that doubles from `PAUSE_FIRST_S` to `PAUSE_MAX_S`. The pauses begin
   at `PAUSE_FIRST_S` again when it has run for `SETTLED_S`. A failure switches a begun task off; a task that runs once
   ends.
3. A failure is logged with its traceback. The same cause is logged again after `REPEAT_S` at the earliest, with the
   number of failures in between.
4. A kept or begun task counts as failing from its failure until it has run for `SETTLED_S`, or for good when it is
   switched off. While an essential task is failing the broker is not healthy; any other one is named as degraded.
5. An essential task that fails `LOST_AFTER` times without running for `SETTLED_S` in between is lost. `on_lost` is
   called once. The process ends, since nothing in it restores the task. That takes about a minute.
6. A failure is noted even when memory does not suffice for its line in the log.

What the message store does in its threads is not here: its failure ends the process (`message_store`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import trio

from warren.server.logs import get_logger

PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
SETTLED_S: Final = 10.0
REPEAT_S: Final = 60.0
LOST_AFTER: Final = 30

RUNNING: Final = "running"
RESTARTING: Final = "restarting"
OFF: Final = "off"
Need = Literal["essential", "optional"]
ESSENTIAL: Final[Need] = "essential"
OPTIONAL: Final[Need] = "optional"

_NEVER_S: Final = float("-inf")

log = get_logger("supervision")


@dataclass(slots=True)
class Task:
    """The state of the tasks of one name. Times are trio's."""

    name: str
    need: Need = OPTIONAL
    lasting: bool = False  # it should run for ever
    state: str = RUNNING
    failures: int = 0
    in_a_row: int = 0  # failures since it last ran for `SETTLED_S`
    reason: str = ""  # of the last failure
    failed_s: float = _NEVER_S
    logged: tuple[str, str, int] | None = None  # the cause of the last line in the log
    logged_s: float = _NEVER_S
    unlogged: int = 0  # failures since

    def is_failing(self, now_s: float) -> bool:
        """Tell whether it cannot be relied on (4)."""
        return self.lasting and (self.state != RUNNING or now_s - self.failed_s < SETTLED_S)


class Supervision:
    """The tasks of one broker. Its methods are what nurseries start: ``start_soon(tasks.keep, "a name", work)``."""

    def __init__(self, on_lost: Callable[[str], None] | None = None) -> None:
        self.tasks: dict[str, Task] = {}
        self.on_lost = on_lost

    def failing(self) -> list[Task]:
        """Return the tasks that are failing now, essential ones first."""
        now_s = trio.current_time()
        found = [task for task in self.tasks.values() if task.is_failing(now_s)]
        return sorted(found, key=lambda task: (task.need != ESSENTIAL, task.name))

    async def keep(self, name: str, work: Callable[[], Awaitable[object]], need: Need = OPTIONAL) -> None:
        """Run `work` until it returns; start it again when it fails."""
        task = self._task(name)
        task.lasting, task.need = True, need
        pause_s = PAUSE_FIRST_S
        while True:
            task.state = RUNNING
            began_s = trio.current_time()
            if await self._survives(task, work):
                return
            if trio.current_time() - began_s >= SETTLED_S:
                pause_s = PAUSE_FIRST_S
                task.in_a_row = 0
            task.in_a_row += 1
            if need == ESSENTIAL and task.in_a_row == LOST_AFTER and self.on_lost is not None:
                self.on_lost(name)
            task.state = RESTARTING
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def once(self, name: str, work: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Run `work` once, without a restart after a failure."""
        await self._survives(self._task(name), work, *args)

    async def begin(
        self,
        name: str,
        work: Callable[..., Awaitable[object]],
        *args: Any,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run `work`, which reports by ``task_status`` that it has begun; a failure switches it off.

        Raises:
            Exception: what `work` raises before it has begun.
        """
        task = self._task(name)
        status = _Status(task_status)
        problem: Exception | None = None

        async def attempt() -> None:
            nonlocal problem
            try:
                await work(*args, task_status=status)
            except Exception as error:
                if status.has_begun:
                    raise
                problem = error

        task.lasting = True
        if not await self._survives(task, attempt):
            task.state = OFF
        if problem is not None:
            del self.tasks[name]
            raise problem

    def _task(self, name: str) -> Task:
        return self.tasks.setdefault(name, Task(name))

    async def _survives(self, task: Task, work: Callable[..., Awaitable[object]], *args: Any) -> bool:
        """Run `work`; False if it failed."""
        try:
            await work(*args)
        except Exception as error:
            self._note(task, error)
            return False
        except BaseExceptionGroup as group:
            # Cancelled, and something failed on its way out: pass only the cancellation on.
            faults, others = group.split(Exception)
            if faults is not None:
                self._note(task, faults)
            if others is not None:
                raise others from None
            return False
        return True

    def _note(self, task: Task, error: BaseException) -> None:
        task.failures += 1
        task.failed_s = trio.current_time()
        with contextlib.suppress(MemoryError):
            self._tell(task, error)

    def _tell(self, task: Task, error: BaseException) -> None:
        cause = _innermost(error)
        now_s = task.failed_s
        task.reason = f"{type(cause).__name__}: {cause}"[:300]
        place = _place(cause)
        if place == task.logged and now_s - task.logged_s < REPEAT_S:
            task.unlogged += 1
            return
        more = {"repeated": task.unlogged} if task.unlogged else {}
        task.logged, task.logged_s, task.unlogged = place, now_s, 0
        log.error("a task has failed", task=task.name, need=task.need, exception=error, **more)


class _Status:
    """Passes on that a task has begun, and remembers it."""

    def __init__(self, status: trio.TaskStatus[Any]) -> None:
        self._status = status
        self.has_begun = False

    def started(self, value: object = None) -> None:
        self.has_begun = True
        self._status.started(value)


def _innermost(error: BaseException) -> BaseException:
    """Return the first error that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _place(error: BaseException) -> tuple[str, str, int]:
    """Return the cause of an error, for comparison: the type, and where it was raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(error).__name__, "", 0
    return type(error).__name__, traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
