"""Which files become one. compaction (1) and (2)."""

from __future__ import annotations

import random

import pytest

from warren.lake.compaction import chosen, level_of

TARGET = 128 << 20
MOST = 1 << 40


def test_files_of_a_level_become_one_when_there_are_enough() -> None:
    assert chosen([1000] * 15, TARGET, 16, MOST) == []
    assert chosen([1000] * 16, TARGET, 16, MOST) == list(range(16))
    assert chosen([TARGET] * 100, TARGET, 16, MOST) == []
    assert chosen([TARGET // 2] * 5 + [1000] * 15, TARGET, 16, MOST) == []
    assert chosen([TARGET // 2, 1000, 1000, 1000], TARGET, 3, MOST) == [1, 2, 3]


def test_no_more_is_taken_at_once_than_memory_is_for() -> None:
    assert chosen([40 << 20] * 16, TARGET, 16, 100 << 20) == [0, 1]
    assert chosen([40 << 20] * 16, TARGET, 16, 50 << 20) == []


@pytest.mark.parametrize("count", [2, 4, 16])
def test_a_row_is_written_again_at_most_once_for_each_level(count: int) -> None:
    chance = random.Random(count)
    files: list[tuple[int, int]] = []  # size, how often its rows were written again, at most
    for _ in range(20_000):
        files.append((chance.randrange(1000, 200_000), 0))
        numbers = chosen([size for size, _ in files], TARGET, count, MOST)
        if numbers:
            merged = [files[number] for number in numbers]
            files = [each for number, each in enumerate(files) if number not in set(numbers)]
            files.append((sum(size for size, _ in merged), max(times for _, times in merged) + 1))
    levels = level_of(1000, TARGET, count)
    assert max(times for _, times in files) <= levels
    assert len([size for size, _ in files if size < TARGET * 3 // 4]) <= levels * count


def test_levels_go_down_by_the_count() -> None:
    bound = TARGET * 3 // 4
    assert [
        level_of(size, TARGET, 16) for size in (bound, bound - 1, bound // 16, bound // 16 - 1, bound // 256, 1)
    ] == [*(0, 1, 1, 2, 2, 7)]
