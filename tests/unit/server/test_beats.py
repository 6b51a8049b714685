"""When what is done again and again is done."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from warren.server.beats import BEAT_S, next_beat


def test_tasks_that_begin_at_different_times_wake_at_the_same_ones() -> None:
    woken: dict[float, list[str]] = {}
    began_s = 0.0

    async def work(name: str, begin_s: float, period_s: float) -> None:
        await trio.sleep(begin_s)
        while trio.current_time() < began_s + 4 * BEAT_S:
            await next_beat(period_s)
            woken.setdefault(trio.current_time() - began_s, []).append(name)

    async def run() -> None:
        nonlocal began_s
        began_s = (trio.current_time() // (2 * BEAT_S) + 1) * 2 * BEAT_S
        await trio.sleep_until(began_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, "often", BEAT_S / 7, BEAT_S)
            nursery.start_soon(work, "late", BEAT_S / 3, BEAT_S)
            nursery.start_soon(work, "seldom", BEAT_S / 5, 2 * BEAT_S)

    trio.run(run, clock=MockClock(autojump_threshold=0))
    all_of_them, often = ["late", "often", "seldom"], ["late", "often"]
    assert {at_s: sorted(names) for at_s, names in woken.items()} == {
        BEAT_S: often,
        2 * BEAT_S: all_of_them,
        3 * BEAT_S: often,
        4 * BEAT_S: all_of_them,
    }
