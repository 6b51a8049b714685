"""LongWork: the work that a job may do at once, also of jobs that it begins, and the rest for later turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memory_store import memory_log

from warren.queues.long_work import AT_ONCE_STEPS, REST_MS, TURN_STEPS, Job, LongWork, Steps
from warren.queues.timers import NEVER, TimerQueue


class Count(Job):
    """Takes a number of steps, one at a time; before the first one it may do something else."""

    def __init__(self, steps: int, before: Callable[[], object] | None = None) -> None:
        self.wanted = steps
        self.done = 0
        self._before = before

    def run(self, steps: Steps) -> bool:
        if self._before is not None:
            before, self._before = self._before, None
            before()
        while self.done < self.wanted:
            if steps.left <= 0:
                return False
            steps.left -= 1
            self.done += 1
        return True


def test_what_begins_in_one_turn_shares_its_steps() -> None:
    work = LongWork()
    first, second, third = Count(TURN_STEPS - 100), Count(TURN_STEPS), Count(TURN_STEPS)
    assert work.begin(first)
    assert not work.begin(second)
    assert second.done == 100
    assert not work.begin(third)
    assert third.done == AT_ONCE_STEPS
    assert len(work) == 2


def test_a_turn_that_leaves_nothing_is_followed_by_a_whole_one() -> None:
    work = LongWork()
    assert work.begin(Count(TURN_STEPS))
    work.end_turn()
    assert work.begin(Count(TURN_STEPS))


def test_a_job_that_another_begins_takes_of_its_steps() -> None:
    work = LongWork()
    inner = Count(100)
    outer = Count(TURN_STEPS, before=lambda: work.begin(inner))
    assert not work.begin(outer)
    assert (inner.done, outer.done) == (100, TURN_STEPS - 100)


def test_jobs_share_a_later_turn_and_what_they_begin_takes_of_that() -> None:
    work = LongWork()
    inner = Count(1000)
    assert not work.begin(Count(TURN_STEPS + AT_ONCE_STEPS))
    outer = Count(5 * TURN_STEPS, before=lambda: work.begin(inner))
    work.turn_steps = 1000
    work.end_turn()
    assert len(work) == 0
    assert not work.begin(outer)
    done = outer.done + inner.done
    assert done == 1000
    other = Count(5 * TURN_STEPS)
    assert not work.begin(other)
    work.end_turn()
    assert outer.done + inner.done == done + 500
    assert other.done == AT_ONCE_STEPS + 500


class Waiting(Job):
    """Waits for `other`, at one step for each look."""

    def __init__(self, other: Count) -> None:
        self._other = other

    def run(self, steps: Steps) -> bool:
        steps.left -= 1
        return self._other.done == self._other.wanted


def test_a_job_that_many_wait_for_gets_the_steps_that_they_leave() -> None:
    """As a long commit that holds the batch, beside a thousand that wait for it: all confirms wait for it, too."""
    work = LongWork()
    long = Count(20 * TURN_STEPS)
    work.begin(long)
    for _ in range(1000):
        work.begin(Waiting(long))
    work.end_turn()
    before = long.done
    turns = 0
    while len(work):
        work.end_turn()
        turns += 1
    assert turns <= 2 + (long.wanted - before) // (TURN_STEPS - 1000 - AT_ONCE_STEPS)


class Failing(Job):
    """Meets a defect after its first turn, as often as told."""

    def __init__(self, failures: int, *, again: bool) -> None:
        self._begun = False
        self._failures = failures
        self._again = again
        self.is_done = False

    def run(self, steps: Steps) -> bool:
        if not self._begun:
            self._begun = True
            return False
        if self._failures:
            self._failures -= 1
            raise ValueError("a defect")
        self.is_done = True
        return True

    def failed(self) -> bool:
        return self._again


@pytest.mark.parametrize("again", [False, True])
def test_a_job_that_fails_takes_no_other_one_with_it_and_may_continue(again: bool) -> None:
    log = memory_log()
    timers = TimerQueue()
    work = LongWork(log.own, timers)
    others = [Count(2 * TURN_STEPS), Count(2 * TURN_STEPS)]
    failing = Failing(3, again=again)
    for job in (*others, failing):
        work.begin(job)
    while work.is_due():
        work.end_turn()
    assert [other.done for other in others] == [2 * TURN_STEPS] * 2
    assert [str(error) for error in work.take_defects()] == ["a defect"]
    for rest in range(1, 4):
        assert not work.is_due()
        assert timers.next_ms() == (rest * REST_MS if again else NEVER)
        log.now_ms = rest * REST_MS
        timers.run_due(log.now_ms)
        work.end_turn()
    assert failing.is_done == again
    assert not work.take_defects(), "it is reported once"


def test_a_job_that_fails_where_it_begins_does_not_fail_the_caller() -> None:
    work = LongWork()
    failing = Failing(1, again=False)
    failing.run(Steps(1))
    assert not work.begin(failing)
    assert len(work.take_defects()) == 1 and len(work) == 0
