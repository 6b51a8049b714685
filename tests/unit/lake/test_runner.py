"""When steps are made, what is tried again, and what is the end. runner (1) to (3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast
from urllib.request import urlopen

import pytest

from warren.lake.follower import Follower, Step
from warren.lake.job import Job
from warren.lake.metrics import Meter, Meters, serve
from warren.lake.options import TableOptions
from warren.lake.runner import TRIES_ONCE, Runner
from warren.lake.table import Kept
from warren.lake.table_errors import Conflict, Overtaken
from warren.spark_bridge.bridge_errors import DataLoss, Unreachable, UsageError


class Stop(threading.Event):
    """Time passes while somebody waits, and that is over after `most` waits."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.set_by_s = 0.0  # the wall clock, after the first wait
        self.waits: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_s += timeout
        self.waits.append(timeout)
        if len(self.waits) >= self._most:
            self.set()
        return self.is_set()


class Scripted:
    """A follower that does what a test lays down, and is idle then."""

    def __init__(self, *script: Step | Exception) -> None:
        self.script = list(script)
        self.opened = self.steps = self.maintained = 0
        self.stopped_here = False
        self.behind = 0
        self.looking: Callable[[], None] = lambda: None
        self.rows_max = JOB.limits.rows

    def open(self) -> None:
        self.opened += 1

    def step(self) -> Step:
        self.steps += 1
        made = self.script.pop(0) if self.script else Step()
        if isinstance(made, Exception):
            raise made
        return made

    def stop_here(self) -> None:
        self.stopped_here = True

    def waiting(self) -> int:
        self.looking()
        return self.behind

    def maintain(self, now_s: float) -> Kept:
        self.maintained += 1
        return Kept(16, 1, 2, 20)


JOB = Job("shop.orders", stream="orders", interval_s=10.0, table=TableOptions(compact_files=2))


def runner(follower: Scripted, stop: Stop) -> tuple[Runner, Meter, list[str]]:
    meter, said = Meter("shop.orders", "orders"), list[str]()
    clock: Callable[[], float] = lambda: stop.now_s  # noqa: E731
    wall: Callable[[], float] = lambda: stop.now_s + (stop.set_by_s if stop.waits else 0)  # noqa: E731
    made = Runner(JOB, lambda: cast(Follower, follower), meter, stop, said.append, wall_s=wall, steady_s=clock)
    return made, meter, said


def test_once_takes_what_there_is_and_tidies_up() -> None:
    follower = Scripted(Step(5, 1, 0, 3, True), Step(3, 0, 0, 0, True))
    made, meter, said = runner(follower, Stop(100))
    made.run(once=True)
    assert follower.stopped_here and follower.steps == 3 and follower.maintained
    assert (meter.rows, meter.refused, meter.commits, meter.waiting, meter.up) == (8, 1, 2, 0, False)
    assert said[1] == "shop.orders: 5 rows, 1 refused, 3 waiting"


def test_a_step_follows_the_other_at_once_while_there_is_more_and_else_after_the_interval() -> None:
    follower = Scripted(Step(5, waiting=3, moved=True), Step(3, moved=True))
    stop = Stop(15)
    made, _, _ = runner(follower, stop)
    made.run(once=False)
    assert follower.steps == 3
    assert sum(stop.waits[:10]) == 10.0


def test_looks_at_many_partitions_take_a_small_share_of_the_time() -> None:
    follower, stop = Scripted(), Stop(100)
    follower.looking = lambda: setattr(stop, "now_s", stop.now_s + 0.25)
    made, _, _ = runner(follower, stop)
    made.run(once=False)
    assert stop.waits[:3] == [1.0, 5.0, 3.5]


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
def test_an_interval_is_as_long_as_it_is_though_the_wall_clock_is_set_meanwhile(set_by_s: float) -> None:
    follower, stop = Scripted(Step(5, moved=True), Step(3, moved=True)), Stop(15)
    stop.set_by_s = set_by_s
    made, meter, _ = runner(follower, stop)
    made.run(once=False)
    assert follower.steps == 2 and sum(stop.waits[:10]) == 10.0
    assert (meter.committed_at_s, meter.step_s) == (1010.0 + set_by_s, 0.0)


def test_an_interval_ends_early_when_there_is_enough_for_a_commit() -> None:
    follower = Scripted()
    follower.behind = JOB.limits.rows
    stop = Stop(5)
    made, _, _ = runner(follower, stop)
    made.run(once=False)
    assert follower.steps == 5


def test_what_may_become_better_is_tried_again_with_pauses_that_grow() -> None:
    script: list[Any] = [Unreachable("no broker"), OSError(5, "gone"), RuntimeError("odd"), Step(1, moved=True)]
    follower, stop = Scripted(*script), Stop(4)
    made, meter, said = runner(follower, stop)
    made.run(once=False)
    assert stop.waits[:3] == [0.5, 1.0, 2.0]
    assert (meter.failures, meter.rows, follower.opened) == (3, 1, 1)
    assert said[1] == "shop.orders: no broker: tries again in 0.5 s"


def test_once_gives_up_after_some_tries() -> None:
    made, _, _ = runner(Scripted(*[Unreachable("no broker")] * TRIES_ONCE), Stop(100))
    with pytest.raises(Unreachable):
        made.run(once=True)


@pytest.mark.parametrize("error", [Overtaken("another"), DataLoss("gone")])
def test_what_cannot_become_better_is_the_end(error: Exception) -> None:
    follower = Scripted(error)
    made, meter, _ = runner(follower, Stop(100))
    with pytest.raises(type(error)):
        made.run(once=False)
    assert follower.steps == 1 and not meter.up


def test_files_are_looked_after_when_there_are_enough_commits() -> None:
    follower = Scripted(*[Step(1, waiting=1, moved=True)] * 5)
    made, meter, said = runner(follower, Stop(2))
    made.run(once=False)
    assert follower.maintained == 2 and meter.files_rewritten == 32
    assert "shop.orders: 16 small files are 1, 2 old snapshots and 20 files are gone" in said


def test_a_conflict_while_files_are_looked_after_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(self: Scripted, now_s: float) -> Kept:
        raise Conflict("others")

    monkeypatch.setattr(Scripted, "maintain", conflict)
    made, meter, _ = runner(Scripted(Step(1, moved=True)), Stop(100))
    made.run(once=True)
    assert meter.failures == 0


def test_the_page_has_every_table() -> None:
    meters = Meters([Meter("shop.orders", "orders", rows=7), Meter('a"b\\', "jobs", up=True)])
    server = serve(meters, "127.0.0.1", 0)
    try:
        with urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=10) as answer:
            page = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    assert 'warren_lake_rows_total{table="shop.orders",source="orders"} 7' in page.splitlines()
    assert 'warren_lake_up{table="a\\"b\\\\",source="jobs"} 1' in page.splitlines()
    assert page.count("# TYPE") == page.count("# HELP") == 12


def test_a_registry_that_is_away_at_the_beginning_is_waited_for() -> None:
    follower = Scripted(Step(1, 0, 0, 0, True))
    answers: list[Any] = [Unreachable("no registry"), Unreachable("no registry"), follower]

    def make() -> Follower:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return cast(Follower, found)

    meter, said, stop = Meter("shop.orders", "orders"), list[str](), Stop(100)
    made = Runner(JOB, make, meter, stop, said.append, wall_s=lambda: stop.now_s, steady_s=lambda: stop.now_s)
    made.prepare()
    made.run(once=True)
    assert said[0] == "shop.orders: no registry: tries again in 0.5 s"
    assert (meter.failures, meter.rows, follower.opened) == (1, 1, 1) and not answers


def test_what_does_not_fit_is_told_before_anything_is_done() -> None:
    def make() -> Follower:
        raise UsageError("no schema")

    made = Runner(JOB, make, Meter("shop.orders", "orders"), Stop(1), list[str]().append)
    with pytest.raises(UsageError, match="no schema"):
        made.prepare()
