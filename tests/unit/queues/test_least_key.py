"""`LeastKey` against a dictionary, and how many keys it looks at."""

from __future__ import annotations

import heapq
import random

import pytest

from warren.queues import least_key
from warren.queues.least_key import SWEEP_MIN, SWEPT_AT_ONCE, LeastKey


class Watched(dict[int, object]):
    """Counts how often it was asked for a key."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_least_of_keys_that_come_and_go(seed: int) -> None:
    choices = random.Random(seed)
    keys: dict[int, object] = {}
    least = LeastKey(keys)
    most = choices.choice([3, 50, 3000])
    for _ in range(8000):
        key = choices.randrange(-most, most)
        if key not in keys:
            keys[key] = None
            least.came(key)
        elif choices.random() < 0.9:
            del keys[key]
            least.went()
        else:
            del keys[key]
        if keys and choices.random() < 0.3:
            assert least.get() == min(keys)


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_a_change_looks_at_a_few_keys_and_those_that_are_gone_do_not_stay(order: str) -> None:
    """To sort 500,000 that were left took 15 ms, in the turn of one answer."""
    keys = Watched()
    least = LeastKey(keys)
    count = 20_000
    for key in range(count):
        keys[key] = None
        least.came(key)
    going = list(range(count))
    if order == "descending":
        going.reverse()
    elif order == "random":
        random.Random(1).shuffle(going)
    for key in going[: count - 10]:
        del keys[key]
        keys.looks = 0
        least.went()
        assert keys.looks <= SWEPT_AT_ONCE + 1
        assert len(least) <= 3 * len(keys) + 2 * SWEEP_MIN
    assert least.get() == min(keys)


def test_a_key_that_comes_and_goes_again_and_again_takes_no_more_room() -> None:
    keys: dict[int, object] = dict.fromkeys(range(10))
    least = LeastKey(keys)
    for key in keys:
        least.came(key)
    for _ in range(20 * SWEEP_MIN):
        del keys[5]
        least.went()
        keys[5] = None
        least.came(5)
        assert len(least) <= 3 * SWEEP_MIN
    assert least.get() == 0


@pytest.mark.skipif(least_key.__file__.endswith(".so"), reason="a compiled function cannot be replaced")
@pytest.mark.parametrize("failures", [1, 2, 100])
def test_no_key_is_lost_when_memory_does_not_suffice_for_a_sweep(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    keys: dict[int, object] = dict.fromkeys(range(4 * SWEEP_MIN))
    least = LeastKey(keys)
    for key in keys:
        least.came(key)
    left = [failures]

    def heappush(heap: list[int], key: int) -> None:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        heapq.heappush(heap, key)

    monkeypatch.setattr(least_key, "heappush", heappush)
    for key in range(1, 4 * SWEEP_MIN - 20):  # but for the least: no key that is gone is at the top
        del keys[key]
        least.went()
    while keys:
        assert least.get() == min(keys)
        del keys[least.get()]
    assert left == [0]
