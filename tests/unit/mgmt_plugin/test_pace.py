"""How much of the work of many requests is done before everything else has its turn."""

from __future__ import annotations

import pytest
import trio

from warren.mgmt_plugin.http import pace as pace_module
from warren.mgmt_plugin.http.pace import TURNS_PER_ROUND, Breather, pace


class Rounds:
    """Counts passes of the loop; `done` are the pieces of work by pass."""

    def __init__(self) -> None:
        self.number = 0
        self.done: dict[int, int] = {}
        self.order: list[int] = []

    async def count(self) -> None:
        while True:
            self.number += 1
            await trio.lowlevel.checkpoint()

    def work(self, who: int) -> None:
        self.done[self.number] = self.done.get(self.number, 0) + 1
        self.order.append(who)


def test_many_that_work_for_long_share_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "SLICE_S", -1.0)
    rounds = Rounds()

    async def work(who: int) -> None:
        breather = Breather()
        for _ in range(10):
            await breather.breathe()
            rounds.work(who)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.count)
            async with trio.open_nursery() as workers:
                for who in range(32):
                    workers.start_soon(work, who)
            nursery.cancel_scope.cancel()

    trio.run(main)
    # The counter may have its turn before or after them in a round.
    assert max(rounds.done.values()) <= 2 * TURNS_PER_ROUND
    # Nobody is served twice before all others were served once.
    for start in range(0, 320, 32):
        assert sorted(rounds.order[start : start + 32]) == list(range(32))


def test_many_that_begin_at_the_same_time_begin_in_turns() -> None:
    rounds = Rounds()

    async def begin(who: int) -> None:
        await pace().begin()
        rounds.work(who)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.count)
            async with trio.open_nursery() as workers:
                for who in range(100):
                    workers.start_soon(begin, who)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(rounds.order) == 100
    assert max(rounds.done.values()) <= 2 * TURNS_PER_ROUND


def test_who_begins_alone_does_not_wait() -> None:
    async def main() -> None:
        clock = Rounds()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.count)
            for _ in range(5):
                before = clock.number
                await pace().begin()
                assert clock.number == before
                await trio.sleep(0)
                await trio.sleep(0)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_who_is_cancelled_while_it_waits_takes_no_turn() -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await pace().next_turn()
        assert scope.cancelled_caught
        for _ in range(3 * TURNS_PER_ROUND):
            await pace().begin()
        await pace().next_turn()

    trio.run(main)
