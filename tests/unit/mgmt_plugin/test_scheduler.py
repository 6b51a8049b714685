"""How much of the work of many requests is done before everything else has its turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from warren.mgmt_plugin.http import scheduler as scheduler_module
from warren.mgmt_plugin.http.scheduler import (
    HEAD_BYTES_PER_UNIT,
    ROUND_UNITS,
    SLICE_UNITS,
    give_way,
    scheduler,
    work_for,
)

ROUNDS_MAX = 10_000
SLICES_PER_ROUND = ROUND_UNITS // SLICE_UNITS


class Rounds:
    """Counts passes of the loop; `done` are the pieces of work by pass."""

    def __init__(self) -> None:
        self.number = 0
        self.done: dict[int, int] = {}
        self.order: list[int] = []

    async def count(self) -> None:
        for self.number in range(1, ROUNDS_MAX):
            await trio.lowlevel.checkpoint()
        raise AssertionError("somebody waits for ever")

    def work(self, who: int) -> None:
        self.done[self.number] = self.done.get(self.number, 0) + 1
        self.order.append(who)


def test_many_that_work_for_long_share_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "SLICE_S", -1.0)
    rounds = Rounds()

    async def work(who: int) -> None:
        for _ in range(10):
            await give_way()
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
    assert max(rounds.done.values()) <= 2 * SLICES_PER_ROUND
    # Nobody is served twice before all others were served once.
    for start in range(0, 320, 32):
        assert sorted(rounds.order[start : start + 32]) == list(range(32))


async def _beside_a_crowd(rounds: Rounds, crowd: Callable[[int], Awaitable[None]], ask: Callable[[], Any]) -> Any:
    """Return what `ask` returns while 60 tasks of one account do `crowd`, each in a context of its own."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rounds.count)
        for who in range(60):
            nursery.start_soon(crowd, who)
        await trio.sleep(0)
        found = await ask()
        nursery.cancel_scope.cancel()
    return found


async def _long_work_of_one_account(who: int) -> None:
    work_for("user greedy")
    while True:
        await scheduler().next_turn()


def test_who_has_much_to_do_delays_another_account_by_a_round() -> None:
    """(2)"""
    rounds = Rounds()

    async def ask() -> int:
        work_for("user modest")
        before = rounds.number
        for _ in range(5):
            await scheduler().next_turn()
        return rounds.number - before

    # The counter may have its turn before or after us in a round.
    assert trio.run(_beside_a_crowd, rounds, _long_work_of_one_account, ask) <= 3 * 5 + 1


def test_a_beginning_does_not_stand_behind_long_work() -> None:
    """(1)"""
    rounds = Rounds()

    async def ask() -> int:
        before = rounds.number
        for _ in range(5):
            await scheduler().begin("127.0.0.1")
            await trio.sleep(0)
            await trio.sleep(0)
        return rounds.number - before

    assert trio.run(_beside_a_crowd, rounds, _long_work_of_one_account, ask) <= 5 * 5


def test_long_work_goes_on_beside_any_number_of_beginnings() -> None:
    """(1)"""
    rounds = Rounds()

    async def begin(who: int) -> None:
        while True:
            await scheduler().begin("127.0.0.1")
            await trio.sleep(0)

    async def ask() -> int:
        before = rounds.number
        for _ in range(5):
            await scheduler().next_turn()
        return rounds.number - before

    assert trio.run(_beside_a_crowd, rounds, begin, ask) <= 3 * 5 + 1


def test_beginnings_at_the_same_address_do_not_delay_those_at_another() -> None:
    """(2)"""
    rounds = Rounds()

    async def begin(who: int) -> None:
        while True:
            await scheduler().begin("198.51.100.1", HEAD_BYTES_PER_UNIT * ROUND_UNITS)
            await trio.sleep(0)

    async def ask() -> int:
        before = rounds.number
        await scheduler().begin("127.0.0.1")
        return rounds.number - before

    assert trio.run(_beside_a_crowd, rounds, begin, ask) <= 6


def test_a_large_head_counts_as_many_small_ones() -> None:
    """(1)"""
    rounds = Rounds()

    async def begin(who: int) -> None:
        await scheduler().begin("127.0.0.1", HEAD_BYTES_PER_UNIT * (ROUND_UNITS // 2))
        rounds.work(who)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.count)
            async with trio.open_nursery() as workers:
                for who in range(20):
                    workers.start_soon(begin, who)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert max(rounds.done.values()) <= 2 * 2


def test_many_that_begin_at_the_same_time_begin_in_turns() -> None:
    rounds = Rounds()

    async def begin(who: int) -> None:
        await scheduler().begin("127.0.0.1")
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
    assert max(rounds.done.values()) <= 2 * ROUND_UNITS


def test_who_begins_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """(3)"""
    monkeypatch.setattr(scheduler_module, "SLICE_S", 60.0)

    async def main() -> None:
        clock = Rounds()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.count)
            for _ in range(5):
                before = clock.number
                await scheduler().begin("127.0.0.1")
                await give_way()
                assert clock.number == before
                await trio.sleep(0)
                await trio.sleep(0)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_who_is_cancelled_while_it_waits_takes_no_turn() -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await scheduler().next_turn()
        assert scope.cancelled_caught
        for _ in range(3 * ROUND_UNITS):
            await scheduler().begin("127.0.0.1")
        await scheduler().next_turn()

    trio.run(main)
