"""Parties take turns, and a place is never lost."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from warren.server.shared_limiter import SharedLimiter


def test_a_party_that_waits_with_many_delays_another_by_one_each() -> None:
    taken: list[str] = []

    async def main() -> None:
        shared = SharedLimiter(1)
        await shared.take("")

        async def take(party: str) -> None:
            await shared.take(party)
            taken.append(party)

        async with trio.open_nursery() as nursery:
            for party in ("a", "a", "a", "b", "b", "c"):
                nursery.start_soon(take, party)
                await wait_all_tasks_blocked()
            for _ in range(6):
                shared.give_back()
                await wait_all_tasks_blocked()

    trio.run(main)
    assert taken == ["a", "b", "c", "a", "b", "a"]


@pytest.mark.parametrize("seed", range(20))
def test_a_cancelled_call_leaves_its_place_to_others(seed: int) -> None:
    """Some are cancelled at the moment in which they get a place."""
    rng = random.Random(seed)
    places = 3
    most = have = 0

    async def main() -> None:
        nonlocal most, have
        shared = SharedLimiter(places)

        async def call(party: str, scope: trio.CancelScope) -> None:
            nonlocal most, have
            with scope:
                await shared.take(party)
                have += 1
                most = max(most, have)
                try:
                    for _ in range(rng.randrange(4)):
                        await trio.lowlevel.checkpoint()
                finally:
                    have -= 1
                    shared.give_back()

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                scope = trio.CancelScope()
                nursery.start_soon(call, rng.choice("ab"), scope)
                if rng.random() < 0.5:
                    await trio.lowlevel.checkpoint()
                if rng.random() < 0.5:
                    scope.cancel()
        assert shared._free == places and not shared._lines

    trio.run(main)
    assert most == places, f"seed {seed}"
