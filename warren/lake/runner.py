"""Keeps a table following: the times of its steps, the errors that are repeated, and those that end it.

1. A step is made every `interval_s`, and at once when more messages wait than one step takes.
2. An error that a repetition cannot solve ends the table: another process has it, messages are gone, the settings do
   not fit, or its Spark application has ended. After any other error the step is repeated, after a pause that doubles
   up to `PAUSE_MAX_S`; it begins with the state in the tables, as after a crash.
3. Once: up to where the source ended at the beginning, with a few tries for each failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from warren.lake.follower import Follower, Step
from warren.lake.job import Job
from warren.lake.metrics import Meter
from warren.lake.table_errors import Conflict, EngineGone, NotOurs, Overtaken
from warren.spark_bridge.bridge_errors import (
    BridgeError,
    DamagedChunk,
    DataLoss,
    Fenced,
    NotAllowed,
    NotFound,
    Unreachable,
    UsageError,
)

PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
TRIES_ONCE: Final = 6
LOOK_S: Final = 1.0
LOOK_PAUSES: Final = 20  # a look at many partitions takes long: it is made after so many times that
REASON_MAX: Final = 300
MAINTAIN_S: Final = 3600.0
_FINAL: Final = (
    *(UsageError, NotOurs, Overtaken, Fenced, DataLoss, DamagedChunk, NotAllowed, NotFound, EngineGone),
    ModuleNotFoundError,
)


class Runner:
    """One table. `make`: returns the follower; `say`: shows a line to people.

    `wall_s`: the wall clock, for reported times, and for the ages of files; `steady_s`: a clock that cannot be set,
    for waits. Tests have their own.
    """

    def __init__(
        self,
        job: Job,
        make: Callable[[], Follower],
        meter: Meter,
        stop: threading.Event,
        say: Callable[[str], None],
        *,
        wall_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._make = make
        self._made: Follower | None = None
        self._meter = meter
        self._stop = stop
        self._say = say
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._is_open = False
        self._has_end = False
        self._failures = 0
        self._maintained_at_s = steady_s()
        self._commits_since = 0

    def prepare(self) -> None:
        """Make the follower, before anything is done. If a schema registry does not answer, `run` waits for it.

        Raises:
            UsageError: the settings do not fit together.
        """
        with suppress(Unreachable):
            self._following()

    def _following(self) -> Follower:
        """Return the follower, which is made at the first call. Raises as `prepare`, and Unreachable."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def run(self, *, once: bool) -> None:
        """Follow until it is stopped; `once`: until the table has everything that was there at the beginning.

        Raises:
            BridgeError: the error that ends it.
        """
        try:
            while not self._stop.is_set():
                try:
                    if self._turn(once):
                        return
                    self._failures = 0
                except _FINAL:
                    raise
                except Exception as error:
                    self._failed(error, once)
        finally:
            self._meter.up = False

    def _turn(self, once: bool) -> bool:
        """Make a step, and wait for the next one; return whether that was the last one."""
        if not self._is_open:
            self._following().open()
            self._is_open = self._meter.up = True
            self._say(f"{self._job.to}: follows {self._job.source}")
        if once and not self._has_end:
            self._following().stop_here()
            self._has_end = True
        began_s = self._steady_s()
        step = self._following().step()
        self._meter.problem = ""
        self._note(step, began_s)
        if once and not step.moved:
            with suppress(Overtaken):  # everything is done
                self._maintain()
            return True
        if self._is_due():
            self._maintain()
        if not once and not step.waiting:
            self._wait(began_s + self._job.interval_s)
        return False

    def _note(self, step: Step, began_s: float) -> None:
        meter, now_s = self._meter, self._wall_s()
        if step.mended:
            self._say(
                f"{self._job.to}: {step.mended} rows were there twice, by a compaction of another program that had not "
                "seen one before it: they are there once"
            )
        meter.waiting = step.waiting
        if not step.waiting:
            meter.caught_up_at_s = now_s
        if not step.moved:
            return
        meter.rows += step.rows
        meter.bytes += step.bytes
        meter.refused += step.refused
        meter.lost += step.lost
        meter.commits += 1
        meter.committed_at_s = now_s
        meter.step_s = self._steady_s() - began_s
        self._commits_since += 1
        refused = f", {step.refused} refused" if step.refused else ""
        lost = f", {step.lost} lost" if step.lost else ""
        self._say(f"{self._job.to}: {step.rows} rows{refused}{lost}, {step.waiting} waiting")

    def _wait(self, until_s: float) -> None:
        """Wait for the next step, or until enough messages wait for one."""
        pause_s = LOOK_S
        while (rest_s := until_s - self._steady_s()) > 0 and not self._stop.wait(min(rest_s, pause_s)):
            began_s = self._steady_s()
            self._meter.waiting = self._following().waiting()
            if self._meter.waiting >= self._following().rows_max:
                return
            pause_s = max(LOOK_S, LOOK_PAUSES * (self._steady_s() - began_s))

    def _is_due(self) -> bool:
        is_late = self._steady_s() - self._maintained_at_s >= MAINTAIN_S
        return self._commits_since >= self._job.table.compact_files or is_late

    def _maintain(self) -> None:
        self._maintained_at_s = self._steady_s()
        self._commits_since = 0
        try:
            done = self._following().maintain(self._wall_s())
        except Conflict:
            return  # another program commits; the next time will do
        if any(done):
            self._meter.files_rewritten += done.rewritten
            self._say(
                f"{self._job.to}: {done.rewritten} small files are {done.written}, "
                f"{done.expired} old snapshots and {done.deleted} files are gone"
                + (f", and {done.orphans} files that no snapshot had" if done.orphans else "")
            )

    def _failed(self, error: Exception, once: bool) -> None:
        """Wait before the next try, or give up."""
        self._failures += 1
        self._meter.failures += 1
        if once and self._failures >= TRIES_ONCE:
            if isinstance(error, BridgeError | OSError):
                raise error
            raise BridgeError(f"{self._job.to}: {type(error).__name__}: {error}") from error
        pause_s = min(PAUSE_S * 2 ** (self._failures - 1), PAUSE_MAX_S)
        reason = str(error) if isinstance(error, BridgeError) else f"{type(error).__name__}: {error}"
        reason = reason.partition("\n")[0][:REASON_MAX]  # of libraries, which may say pages
        self._meter.problem = reason
        self._say(f"{self._job.to}: {reason}: tries again in {pause_s:g} s")
        self._stop.wait(pause_s)
