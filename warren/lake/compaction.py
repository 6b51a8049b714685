"""Which files of a table are made one: those of about the same size, when there are enough of them.

    level   a file of                                  becomes, with others
    0       3/4 of the target size or more             nothing: it stays
    1       1/count of that or more                    a file of level 0
    2       1/count of that or more                    a file of level 1 or 0, and so on

1. A file is merged with files of its level only, at least `count` of them. So they come into another level, and a row
   is written again at most once for each level, however often there are commits: 4 times from 20 KB to 128 MB.
2. Of one partition at most `most_bytes` are taken at once: they are read into memory.
"""

from __future__ import annotations

from collections.abc import Sequence


def level_of(size: int, target_bytes: int, count: int) -> int:
    """Return the level of a file."""
    bound = target_bytes * 3 // 4
    level = 0
    while size < bound:
        level += 1
        bound //= max(2, count)
    return level


def chosen(sizes: Sequence[int], target_bytes: int, count: int, most_bytes: int) -> list[int]:
    """Return which files of a partition, by their numbers in `sizes`, are to become one; none: it is well as it is."""
    levels: dict[int, list[int]] = {}
    for number, size in enumerate(sizes):
        levels.setdefault(level_of(size, target_bytes, count), []).append(number)
    for level in sorted(levels, reverse=True):  # the smallest first
        files = levels[level]
        if level == 0 or len(files) < max(2, count):
            continue
        taken: list[int] = []
        total = 0
        for number in files:
            if total + sizes[number] > most_bytes:
                break
            taken.append(number)
            total += sizes[number]
        if len(taken) > 1:
            return taken
    return []
