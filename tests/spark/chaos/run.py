"""Carry a plan out: two hands at once kill a process each time that a moment has come (`plan`).

1. A moment is found in the writings of its owner (checkpoints, files, a log, sessions of the broker) or at a proxy that
   holds the request. Nothing is killed by the clock.
2. A killed process is started again at once; a driver with its next life. The next moment shows that work continues: if
   it does not come, the run has failed.
3. A kill counts when its victim was there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any, Final, NamedTuple

from spark.processes import cluster, executors_below, kill, planners_below, process, task_workers_below

from . import plan as steps
from .driver import FAILURES, SPECULATED, TRIES
from .flows import Flow
from .ledger import Verdict
from .plan import Kill, Life
from .world import World

DEADLINE_S: Final = 600.0
FINISH_S: Final = 900.0
POLL_S: Final = 0.005
_ASK_EVERY: Final = 6  # looks, where a look is a request
_HOSTS: Final = ("127.0.0.2", "127.0.0.3")
# The error of a query that has lost messages; a query with leases is told to continue.
_LOSS: Final = "DataLoss"
_AWAY: Final = 4  # requests that find nobody after the one that was lost
_LOCAL_CORES: Final = 4


class Carried(NamedTuple):
    """A kill that was carried out."""

    kill: Kill
    processes: int


@dataclass
class Outcome:
    """The findings of a run."""

    seed: int
    asked: int
    lives: tuple[Life, ...] = ()
    carried: list[Carried] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    shared: dict[str, int] = field(default_factory=dict)
    again: int = 0
    again_and_there: int = 0
    speculated: int = 0
    published: int = 0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        whole = len(self.carried) == self.asked and all(each.rows for each in self.verdicts.values())
        return whole and not self.losses and all(each.is_right for each in self.verdicts.values())


class Run:
    """Kills in a world. `say`: prints a line for the observer."""

    def __init__(self, world: World, seed: int, kills: int, say: Callable[[str], None]) -> None:
        self._world = world
        self._chance = random.Random(seed + 1)
        self._say = say
        self._driver: Popen[bytes] | None = None
        self._log = world.directory / "driver.log"
        self._master = ""
        self._plan = steps.plan(seed, kills)
        self._lake_hand = threading.Thread(target=self._kill_of_lake, daemon=True)
        self._lake_failure: BaseException | None = None
        self.outcome = Outcome(seed, kills, self._plan.lives)

    def whole(self) -> Outcome:
        """Make all kills, let everything come to its end, and judge."""
        began = time.monotonic()
        world = self._world
        world.lake.start()
        world.publisher.start()
        self._lake_hand.start()
        with ExitStack() as running:
            for number, life in enumerate(self._plan.lives):
                if life.kind == steps.ON_CLUSTER and not self._master:
                    self._master = running.enter_context(cluster(world.directory, _HOSTS))
                self._say(f"life {number + 1} of {len(self._plan.lives)}, {life.kind}")
                self._live(life)
        self._lake_hand.join()
        self._check()
        world.publisher.end()
        self._finish()
        self._judge()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # --- drivers ---------------------------------------------------------------------------------------------------

    def _told(self, kind: str, *, finish: bool) -> list[str]:
        told = {
            "master": self._master if kind == steps.ON_CLUSTER else f"local[{_LOCAL_CORES},{TRIES}]",
            "directory": str(self._world.directory / "spark"),
            "url": self._world.url,
            "available_now": kind == steps.AVAILABLE_NOW,
            "finish": finish,
        }
        return [sys.executable, "-m", "spark.chaos.driver", json.dumps(told)]

    def _live(self, life: Life) -> None:
        with process(self._told(life.kind, finish=False), self._log, os.environ) as self._driver:
            for each in life.kills:
                self._carry_out(each)
        self._driver = None

    def _kill_of_lake(self) -> None:
        try:
            for each in self._plan.lake:
                self._carry_out(each)
        except BaseException as error:
            self._lake_failure = error

    def _finish(self) -> None:
        """Make every flow and every table get what there is."""
        self._say("all kills are made; everything comes to its end")
        world = self._world
        world.lake.kill()
        with process(self._told(steps.AVAILABLE_NOW, finish=True), self._log, os.environ) as driver:
            ended = driver.wait(FINISH_S)
        assert ended == 0, self._said()
        world.lake.catch_up()

    # --- kills -----------------------------------------------------------------------------------------------------

    def _carry_out(self, each: Kill) -> None:
        if each.moment in (steps.REQUESTED, steps.DONE):
            self._lose_request(each)
            count = 1
        else:
            self._wait(self._moment(each), each)
            count = self._kill(each)
        self.outcome.carried.append(Carried(each, count))
        self._say(f"  {len(self.outcome.carried)}. {each.victim}: {each.where}, {each.moment} (+{each.steps})")

    def _kill(self, each: Kill) -> int:
        """Kill the victim and start it again, if it is not a driver; return how many processes that was."""
        world, count = self._world, 1
        match each.victim:
            case steps.DRIVER | steps.DRIVER_AND_BROKER:
                self._wait(self._all_have_begun, each)
                if each.victim == steps.DRIVER_AND_BROKER:
                    world.broker.kill()
                assert self._driver is not None
                kill(self._driver)
                if each.victim == steps.DRIVER_AND_BROKER:
                    world.broker.start()
            case steps.BROKER:
                world.restart_broker()
            case steps.WORKER:
                count = self._kill_all(lambda: task_workers_below(os.getpid()), each)
            case steps.PLANNER:
                count = self._kill_all(lambda: planners_below(os.getpid()), each)
            case steps.EXECUTOR:
                count = self._kill_all(lambda: self._chance.sample(executors_below(os.getpid()), 1), each)
            case steps.POSTGRES:
                world.postgres.kill()
                world.postgres.start()
            case steps.LAKE:
                world.lake.kill()
                world.lake.start()
            case _:
                raise AssertionError(each)
        return count

    def _kill_all(self, find: Callable[[], list[int]], each: Kill) -> int:
        """Kill all that are found, one at least."""
        killed = 0

        def is_done() -> bool:
            nonlocal killed
            for pid in find():
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    pass
            return killed > 0

        self._wait(is_done, each)
        return killed

    def _lose_request(self, each: Kill) -> None:
        """Lose a request of `warren lake`, and kill that meanwhile if it is the victim."""
        world = self._world
        is_catalog = each.where == "rest-iceberg" and each.victim != steps.STORE
        proxy = world.rest if is_catalog else world.store
        fits = {
            "rest-iceberg": r"^POST .*/tables/events$" if is_catalog else r"^PUT /lake/rest/",
            "s3-delta": r"^PUT /lake/events/_delta_log/" if each.steps % 2 else r"^PUT /lake/events/",
        }[each.where]
        away = 0 if each.victim == steps.LAKE else _AWAY
        trap = proxy.arm(fits, skip=each.steps, is_carried_out=each.moment == steps.DONE, away=away)
        self._wait(trap.sprung.is_set, each)
        if each.victim == steps.LAKE:
            world.lake.kill()
        trap.released.set()
        if each.victim == steps.LAKE:
            world.lake.start()

    def _wait(self, is_there: Callable[[], bool], each: Kill) -> None:
        """Wait for a moment, while everybody is alive that should be."""
        give_up_at = time.monotonic() + DEADLINE_S
        look = 0
        while not is_there():
            time.sleep(POLL_S)
            look += 1
            if look % 100 == 0:
                self._check()
                assert time.monotonic() < give_up_at, f"in vain for {each}\n{self._said()}"

    def _check(self) -> None:
        """Raise what has ended that should not; each hand looks after those that it alone kills."""
        self._world.publisher.check()
        if threading.current_thread() is self._lake_hand:
            self._world.lake.check()
            return
        if self._lake_failure is not None:
            raise self._lake_failure
        if self._driver is not None:
            assert self._driver.poll() is None, f"the driver has ended\n{self._said()}"

    def _said(self) -> str:
        """Return the end of what driver and lake have said."""
        return "\n".join(path.read_text(errors="replace")[-5000:] for path in (self._log, self._world.lake.log))

    # --- moments ---------------------------------------------------------------------------------------------------

    def _all_have_begun(self) -> bool:
        """Spark refuses a checkpoint that a kill left in the middle of noting the very first batch."""
        return all(flow.last("offsets") >= 0 for flow in self._world.flows.values())

    def _moment(self, each: Kill) -> Callable[[], bool]:
        if each.where in self._world.lake.tables:
            return self._moment_of_table(each)
        flow = self._world.flows[each.where]
        number = flow.last("offsets") + each.steps
        match each.moment:
            case steps.PLANNED:
                return lambda: flow.has("offsets", number)
            case steps.WRITTEN:
                return lambda: flow.is_in_sink(number)
            case steps.COMMITTED:
                return lambda: flow.has("commits", number)
            case steps.UNNAMED:
                return _unnamed(flow, number)
            case steps.CLAIMED:
                return self._claimed(flow, each.steps)
            case steps.STAGED:
                return self._staged(each.steps)
        raise AssertionError(each)

    def _moment_of_table(self, each: Kill) -> Callable[[], bool]:
        lake = self._world.lake
        table = lake.tables[each.where]
        if each.moment == steps.COMMITTED:
            wanted = lake.commits(table) + each.steps
            return lambda: lake.commits(table) >= wanted
        if table.form == "iceberg":  # the file is written right before the catalogue is asked
            folder, kind = lake.directory / "sql", "**/*.metadata.json"
        else:
            folder, kind = Path(table.to), "*.parquet"
        old = set(folder.glob(kind))
        return lambda: len(set(folder.glob(kind)) - old) >= each.steps

    def _claimed(self, flow: Flow, count: int) -> Callable[[], bool]:
        """Return a condition: `count` more claims."""
        end: list[int] = []

        def look() -> bool:
            found = self._world.ask(f"/warren/drains/%2F/{flow.source}/{flow.consumer}")
            if found is None:
                return False
            end.append(int(found["end"]))
            return end[-1] >= end[0] + 20 * count

        return _now_and_then(look)

    def _staged(self, count: int) -> Callable[[], bool]:
        """Return a condition: something is staged and not committed, which was not the last time, so often."""
        seen: set[str] = set()

        def look() -> bool:
            found = self._world.ask("/warren/stages/%2F")
            seen.update(stage["name"] for stage in found or ())
            return bool(found) and len(seen) >= count

        return _now_and_then(look)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        world, outcome = self._world, self.outcome
        outcome.batches = world.batches()
        outcome.commits = {name: world.lake.commits(table) for name, table in world.lake.tables.items()}
        outcome.published = sum(world.ledger.sent.values())
        outcome.speculated = self._log.read_text(errors="replace").count(SPECULATED)
        failures = world.directory / "spark" / FAILURES
        for line in failures.read_text().splitlines() if failures.exists() else ():
            failed: dict[str, Any] = json.loads(line)
            outcome.failures[failed["flow"]] += 1
            if _LOSS in failed["why"]:
                outcome.losses.append(f"{failed['flow']}: {failed['why'][:500]}")
        leased = world.flows["leased"]
        for line in leased.again.read_text().splitlines() if leased.again.exists() else ():
            again, there = map(int, line.split())
            outcome.again += again
            outcome.again_and_there += there
        outcome.shared = {name: sum(1 for _ in world.flows[name].rows()) for name in ("left", "right")}
        outcome.verdicts = world.verdicts()


def _unnamed(flow: Flow, number: int) -> Callable[[], bool]:
    """Return a condition: from batch `number` on, there is a file that no commit of the sink names."""
    old = flow.data_files()

    def look() -> bool:
        new = flow.data_files() - old
        if not new or flow.last("offsets") < number:
            return False
        named = flow.named_lately()
        old.update(name for name in new if name in named)
        return not new <= old

    return look


def _now_and_then(look: Callable[[], bool]) -> Callable[[], bool]:
    """Return a condition that looks every so often only."""
    turns = 0

    def is_there() -> bool:
        nonlocal turns
        turns += 1
        return turns % _ASK_EVERY == 1 and look()

    return is_there
