"""The cost of a failing task for the others, and its visible signs."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from warren.server import supervision
from warren.server.supervision import ESSENTIAL, OFF, RESTARTING, RUNNING, SETTLED_S, Supervision

FAILURES: list[BaseException] = [
    ValueError("of a client"),
    MemoryError(),
    OSError(errno.EMFILE, "Too many open files"),
    OverflowError("timestamp too large to convert to C _PyTime_t"),
    RecursionError("maximum recursion depth exceeded"),
    AssertionError("a queue is not what it was"),
    StopAsyncIteration(),
    ExceptionGroup("of a nursery", [ExceptionGroup("in it", [ValueError("deep")])]),
]


class Lines:
    """Log lines, instead of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[dict[str, Any]] = []
        monkeypatch.setattr(supervision, "log", self)

    def error(self, event: str, /, **fields: Any) -> None:
        self.lines.append({"event": event} | fields)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    return Lines(monkeypatch)


def run(test: Callable[[Supervision, trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await test(Supervision(), nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def failing(*errors: BaseException) -> tuple[Callable[[], Awaitable[None]], list[float]]:
    """Return a task that raises these, one each time, and then runs for ever; and when it was started."""
    started: list[float] = []

    async def work() -> None:
        started.append(trio.current_time())
        if len(started) <= len(errors):
            raise errors[len(started) - 1]
        await trio.sleep_forever()

    return work, started


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_what_a_task_raises_starts_it_again_and_leaves_the_others_alone(error: BaseException, lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        other, other_started = failing()
        work, started = failing(error)
        nursery.start_soon(tasks.keep, "other", other)
        nursery.start_soon(tasks.keep, "one", work)
        await trio.sleep(1)
        assert len(started) == 2 and len(other_started) == 1
        assert tasks.tasks["one"].failures == 1
        assert tasks.tasks["other"].failures == 0
        (line,) = lines.lines
        assert line["task"] == "one" and line["exception"] is error

    run(test)


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_what_a_task_that_runs_once_raises_is_counted_and_over(error: BaseException, lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        work, started = failing(error)
        nursery.start_soon(tasks.once, "login", work)
        await trio.testing.wait_all_tasks_blocked()
        assert len(started) == 1
        assert tasks.tasks["login"].failures == 1
        assert tasks.failing() == []

    run(test)


def test_pauses_double_up_to_a_limit_and_begin_anew_when_it_has_run_for_a_while(lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        started: list[float] = []

        async def work() -> None:
            started.append(trio.current_time())
            if len(started) == 8:
                await trio.sleep(SETTLED_S)
            raise ValueError

        nursery.start_soon(tasks.keep, "one", work)
        while len(started) < 9:
            await trio.sleep(1)
        pauses = [round(after - before, 3) for before, after in pairwise(started[:9])]
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, SETTLED_S + 0.1]

    run(test)


def test_a_task_fails_until_it_has_run_for_a_while(lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        work, _ = failing(ValueError("why"))
        nursery.start_soon(tasks.keep, "one", work, ESSENTIAL)
        await trio.testing.wait_all_tasks_blocked()
        (task,) = tasks.failing()
        assert (task.name, task.state, task.need, task.reason) == ("one", RESTARTING, ESSENTIAL, "ValueError: why")
        await trio.sleep(1)
        assert [each.state for each in tasks.failing()] == [RUNNING]
        await trio.sleep(SETTLED_S)
        assert tasks.failing() == []

    run(test)


def test_essential_tasks_come_first_among_those_that_fail(lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        nursery.start_soon(tasks.keep, "a", failing(ValueError())[0])
        nursery.start_soon(tasks.keep, "b", failing(ValueError())[0], ESSENTIAL)
        await trio.testing.wait_all_tasks_blocked()
        assert [task.name for task in tasks.failing()] == ["b", "a"]

    run(test)


def test_the_same_cause_is_logged_once_and_counted_in_the_next_line(lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        async def work() -> None:
            raise ValueError(trio.current_time())

        nursery.start_soon(tasks.keep, "one", work)
        await trio.sleep(30)
        assert len(lines.lines) == 1
        before = tasks.tasks["one"].failures
        assert before > 10
        await trio.sleep(supervision.REPEAT_S)
        assert len(lines.lines) == 2
        assert lines.lines[1]["repeated"] >= before - 1

    run(test)


def test_another_cause_is_logged_at_once(lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        work, started = failing(ValueError("one"), OSError("two"), ValueError("three"))
        nursery.start_soon(tasks.keep, "one", work)
        await trio.sleep(1)
        assert len(started) == 4
        assert [type(line["exception"]) for line in lines.lines] == [ValueError, OSError, ValueError]

    run(test)


def test_a_task_that_has_ended_is_not_started_again() -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        times = 0

        async def work() -> None:
            nonlocal times
            times += 1

        await tasks.keep("one", work)
        assert times == 1
        assert tasks.failing() == []

    run(test)


def test_cancellation_passes_and_is_no_failure() -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        with trio.move_on_after(5) as scope:
            await tasks.keep("one", trio.sleep_forever)
        assert scope.cancelled_caught
        assert tasks.tasks["one"].failures == 0

    run(test)


def test_a_failure_on_the_way_out_of_a_cancelled_task_is_logged_and_does_not_pass(lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        async def fails_on_cancel() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("closing failed")

        async def work() -> None:
            async with trio.open_nursery() as inner:
                inner.start_soon(fails_on_cancel)
                inner.start_soon(trio.sleep_forever)

        with trio.move_on_after(5) as scope:
            await tasks.keep("one", work)
        assert scope.cancelled_caught
        assert [str(supervision._innermost(line["exception"])) for line in lines.lines] == ["closing failed"]

    run(test)


def test_what_fails_before_it_has_begun_is_the_callers() -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        async def work(port: int, *, task_status: trio.TaskStatus[int]) -> None:
            raise LookupError(port)

        with pytest.raises(LookupError, match="80"):
            await nursery.start(tasks.begin, "a listener", work, 80)
        assert tasks.failing() == []

    run(test)


def test_what_fails_when_it_has_begun_is_switched_off_for_good(lines: Lines) -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        async def work(port: int, *, task_status: trio.TaskStatus[int]) -> None:
            task_status.started(port)
            await trio.sleep(1)
            raise LookupError(port)

        assert await nursery.start(tasks.begin, "a listener", work, 80) == 80
        assert tasks.failing() == []
        await trio.sleep(2 * SETTLED_S)
        assert [(task.name, task.state) for task in tasks.failing()] == [("a listener", OFF)]

    run(test)


def test_a_reason_is_short() -> None:
    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        await tasks.once("one", partial(_raise, ValueError("x" * 10_000)))
        assert len(tasks.tasks["one"].reason) <= 300

    run(test)


async def _raise(error: Exception) -> None:
    raise error


def test_an_essential_task_that_never_settles_is_lost_and_another_one_is_not(lines: Lines) -> None:
    """(5)"""
    lost: list[str] = []

    async def fails() -> None:
        raise MemoryError

    async def main() -> None:
        tasks = Supervision(lost.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.keep, "reactor", fails, ESSENTIAL)
            nursery.start_soon(tasks.keep, "scrubbing", fails)
            await trio.sleep(300)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert lost == ["reactor"], "told once"


def test_an_essential_task_that_settles_in_between_is_never_lost(lines: Lines) -> None:
    """(5)"""
    lost: list[str] = []

    async def fails_at_last() -> None:
        await trio.sleep(SETTLED_S)
        raise MemoryError

    async def main() -> None:
        tasks = Supervision(lost.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.keep, "reactor", fails_at_last, ESSENTIAL)
            await trio.sleep(3 * supervision.LOST_AFTER * SETTLED_S)
            nursery.cancel_scope.cancel()
        assert tasks.tasks["reactor"].failures > supervision.LOST_AFTER

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert lost == []


def test_a_failure_counts_when_there_is_no_memory_for_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """(6)"""

    class NoMemory:
        def error(self, event: str, /, **fields: Any) -> None:
            raise MemoryError

    monkeypatch.setattr(supervision, "log", NoMemory())

    async def test(tasks: Supervision, nursery: trio.Nursery) -> None:
        work, started = failing(ValueError("first"))
        nursery.start_soon(tasks.keep, "a", work)
        await trio.sleep(5)
        assert len(started) == 2 and tasks.tasks["a"].failures == 1

    run(test)
