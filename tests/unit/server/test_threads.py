"""Hanging calls take only the threads of their own purpose, and are visible."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from warren.server import threads as threads_module
from warren.server.threads import LIMITS, LINKS, LOGINS, STAGES, Stuck, in_thread, threads


class Gate:
    """Calls that hang until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = 0
        self.left = 0

    def pass_through(self) -> str:
        self.entered += 1
        self.open.wait()
        self.left += 1
        return "through"


def run(test: Callable[[Gate], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `test` where nobody waits long for what hangs."""
    monkeypatch.setattr(threads_module, "DEADLINE_S", 0.05)
    gate = Gate()

    async def main() -> None:
        try:
            await test(gate)
        finally:
            gate.open.set()

    trio.run(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.001)


def test_a_purpose_that_hangs_takes_its_own_threads_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(gate: Gate) -> None:
        async def link() -> None:
            with pytest.raises(Stuck, match="links"):
                await in_thread(LINKS, gate.pass_through, abandon=True)

        async with trio.open_nursery() as nursery:
            for _ in range(5 * LIMITS[LINKS]):
                nursery.start_soon(link)
            await until(lambda: gate.entered == LIMITS[LINKS])
            assert await in_thread(LOGINS, lambda: threading.current_thread() is not threading.main_thread())
        assert gate.entered == LIMITS[LINKS]
        await until(lambda: threads().stuck() == [LINKS])
        # Abandoned, they are still in their threads.
        with pytest.raises(Stuck):
            await in_thread(LINKS, str, abandon=True)
        gate.open.set()
        await until(lambda: gate.left == LIMITS[LINKS])
        await until(lambda: threads().stuck() == [])
        monkeypatch.undo()  # this call does not hang, however long its thread takes to begin
        assert await in_thread(LINKS, str, 7, abandon=True) == "7"

    run(test, monkeypatch)


def test_a_call_that_is_not_abandoned_is_waited_for_and_shown_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(gate: Gate) -> None:
        results: list[str] = []

        async def write() -> None:
            results.append(await in_thread(STAGES, gate.pass_through))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await until(lambda: threads().stuck() == [STAGES])
            assert results == []
            gate.open.set()
        assert results == ["through"]
        assert threads().stuck() == []

    run(test, monkeypatch)


def test_who_is_cancelled_leaves_a_call_that_may_be_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(gate: Gate) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: in_thread(LINKS, gate.pass_through, abandon=True))
                await until(lambda: gate.entered == 1)
                scope.cancel()
        assert gate.left == 0

    run(test, monkeypatch)


def test_what_a_call_raises_is_the_callers() -> None:
    async def test() -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await in_thread(LINKS, int, "x", abandon=True)
        assert threads().stuck() == []

    trio.run(test)
