"""Connections that are lost together are given up one after the other."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from warren.links.starts import END_EVERY_S, Ends


def test_connections_that_are_lost_at_once_are_given_up_one_after_the_other() -> None:
    ended_s: list[float] = []

    async def lose(ends: Ends) -> None:
        await ends.wait()
        ended_s.append(trio.current_time())

    async def main() -> None:
        ends = Ends()
        began_s = trio.current_time()
        await lose(ends)
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lose, ends)
        expected = [began_s, *(began_s + 1 + n * END_EVERY_S for n in range(3))]
        assert ended_s == pytest.approx(expected), "one alone at once"

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_those_who_stop_waiting_to_be_given_up_do_not_delay_the_next() -> None:
    async def main() -> None:
        ends = Ends()
        await ends.wait()
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(2000):
                nursery.start_soon(ends.wait)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await ends.wait()
        assert trio.current_time() - began_s <= END_EVERY_S * 1.5

    trio.run(main, clock=MockClock(autojump_threshold=0.05))
