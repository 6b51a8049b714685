"""Which peers have a place at the cluster port. Numbers are those of `replication/newcomers.py`."""

from __future__ import annotations

from contextlib import ExitStack

import trio
import trio.testing

from warren.replication.newcomers import NEWCOMERS_MAX, Newcomer, Newcomers


def lost(newcomers: list[Newcomer]) -> list[int]:
    return [number for number, each in enumerate(newcomers) if each.lost_place]


def test_a_newcomer_takes_the_place_of_the_oldest_silent_one_of_the_address_that_has_most() -> None:
    """(1)"""

    async def main() -> None:
        with ExitStack() as places:
            there = Newcomers()
            few = [places.enter_context(there.enter("few", 5)) for _ in range(8)]
            many = [places.enter_context(there.enter("many", 5)) for _ in range(NEWCOMERS_MAX - 8)]
            many[0].has_spoken = True
            places.enter_context(there.enter("new", 5))
            assert (lost(few), lost(many), len(there)) == ([], [1], NEWCOMERS_MAX)
            for each in many:
                each.has_spoken = True
            places.enter_context(there.enter("few", 5))
            assert (lost(few), lost(many), len(there)) == ([], [0, 1], NEWCOMERS_MAX)
        assert len(there) == 0

    trio.run(main)


def test_a_newcomer_that_has_lost_its_place_is_cancelled_and_so_is_one_whose_time_is_over() -> None:
    """(2)"""

    async def main() -> None:
        there = Newcomers()
        ended: list[bool] = []

        async def come(address: str) -> None:
            with there.enter(address, 5) as newcomer:
                await trio.sleep_forever()
            ended.append(newcomer.lost_place)

        async with trio.open_nursery() as nursery:
            for _ in range(NEWCOMERS_MAX + 1):
                nursery.start_soon(come, "a")
            await trio.testing.wait_all_tasks_blocked()
            assert (ended, len(there)) == ([True], NEWCOMERS_MAX)
        assert ended == [True] + [False] * NEWCOMERS_MAX

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
