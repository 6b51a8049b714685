"""`LeastKey` against a set, and how many keys it looks at."""

from __future__ import annotations

import random

import pytest

from warren.queues import least_key
from warren.queues.least_key import BLOCK_KEYS, LeastKey

interpreted = pytest.mark.skipif(least_key.__file__.endswith(".so"), reason="compiled code takes plain numbers only")
looks = [0]


class Watched(int):
    """Counts how often it is compared."""

    def __lt__(self, other: int) -> bool:
        looks[0] += 1
        return super().__lt__(other)


def sizes(least: LeastKey) -> list[int]:
    return [len(block) for block in least._blocks]


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_least_of_keys_that_come_and_go(seed: int) -> None:
    choices = random.Random(seed)
    keys: set[int] = set()
    least = LeastKey()
    most = choices.choice([3, 50, 3000])
    for _ in range(8000):
        key = choices.randrange(-most, most)
        if key not in keys or choices.random() < 0.1:
            keys.add(key)
            least.came(key)
        else:
            keys.discard(key)
            least.went(key)
        if choices.random() < 0.1:
            least.went(choices.randrange(most, 2 * most))  # is not here
        if keys and choices.random() < 0.3:
            assert least.get() == min(keys)
    assert least.in_order() == sorted(keys)


@interpreted
@pytest.mark.parametrize("order", ["ascending", "descending", "random", "all but the least"])
def test_each_call_looks_at_a_few_keys_and_those_that_are_gone_do_not_stay(order: str) -> None:
    """The least of 250,000 took 300 ms to find, in the turn of one answer, after as many others before it had gone."""
    few = 2 * BLOCK_KEYS.bit_length() + 10
    least = LeastKey()
    count = 20_000
    coming = [Watched(key) for key in range(count)]
    if order == "descending":
        coming.reverse()
    elif order == "random":
        random.Random(1).shuffle(coming)
    for key in coming:
        looks[0] = 0
        least.came(key)
        assert looks[0] <= few
    assert max(sizes(least)) <= BLOCK_KEYS
    assert len(sizes(least)) <= 2 * count / BLOCK_KEYS + 1
    going = coming[:]
    if order == "all but the least":
        going.remove(Watched(0))
        going = [*going[: count // 2], Watched(0), *going[count // 2 :]]
    for at, key in enumerate(going[:-1], 1):
        looks[0] = 0
        least.went(key)
        least.get()
        assert looks[0] <= few
        if at % 1000 == 0:
            assert sum(sizes(least)) == count - at
    assert least.get() == going[-1]


def test_a_key_that_comes_and_goes_again_and_again_takes_no_more_room() -> None:
    least = LeastKey()
    for key in range(10):
        least.came(key)
    for _ in range(4 * BLOCK_KEYS):
        least.went(5)
        least.came(5)
        least.came(5)
    assert sizes(least) == [10]
    assert least.get() == 0
