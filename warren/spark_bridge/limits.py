"""The share of each stream in the next batch.

1. A batch never has more rows than allowed. It has more bytes, as the broker counts them, only if it is one message.
2. Every stream has its share: a stream with few rows is read whole, the others share the rest. When there are fewer
   rows than streams, another stream begins each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def shares(waiting: Mapping[str, int], most: int, turn: int = 0) -> dict[str, int]:
    """Return how many of at most `most` rows each stream gets; `waiting`: how many it has."""
    names = sorted((name for name in waiting if waiting[name] > 0), key=lambda name: (waiting[name], name))
    if most < len(names):
        first = turn % len(names)
        names = sorted(names)
        return dict.fromkeys((names[first:] + names[:first])[:most], 1)
    given: dict[str, int] = {}
    for number, name in enumerate(names):
        given[name] = min(waiting[name], most // (len(names) - number))
        most -= given[name]
    return given


def within_bytes(
    wanted: Mapping[str, int], most_bytes: int, plan: Callable[[str, int, int], tuple[int, int]], turn: int = 0
) -> dict[str, int]:
    """Return how many of the `wanted` rows of each stream fit into `most_bytes`.

    `plan` gets a stream, a number of rows and of bytes; it returns how many rows fit, one at least, and their bytes.
    """
    names = sorted(wanted)
    first = turn % len(names) if names else 0
    names = names[first:] + names[:first]
    given: dict[str, int] = {}
    left = most_bytes
    for number, name in enumerate(names):
        if left <= 0:
            break
        rows, size = plan(name, wanted[name], max(1, left // (len(names) - number)))
        if size > left and given:
            continue
        given[name] = rows
        left -= size
    return given
