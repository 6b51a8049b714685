"""The history that an offset belongs to: the lives of a broker, each start of it one, and the offsets of each life.

    lives of a stream      [["91c0…", 150], ["3e77…", 230]]     written from 150 on, and from 230 on
    a remembered offset    200, "91c0…"                         and the life that has written the last offset below it

1. Below an offset that one life has written in both, two histories are the same. A broker that was restored from a
   backup, or a copy of one, writes a life that no other broker has. So a comparison finds diverged histories.
2. Offsets from before the first life that a broker knows belong to the life `UNKNOWN`.
3. If a reader remembers no life, or a broker returns none, nothing is compared. The first case is told, once for each
   stream that a reader reads (`Remembered`): an earlier version has written what it remembers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

UNKNOWN: Final = "0" * 32


class Divergence(NamedTuple):
    """Histories that have diverged. `offset`: where; None: somewhere before the offsets that were read."""

    offset: int | None
    text: str


class Lives:
    """The lives of a stream, or of claims, that ends at `end`: id and first offset, ascending."""

    def __init__(self, entries: Iterable[tuple[str, int]], end: int) -> None:
        found = [(UNKNOWN, 0), *entries]
        self._lives = [life for life, _ in found]
        self._firsts = [first for _, first in found]
        self._end = end

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lives):
            return NotImplemented
        return (self._lives, self._firsts, self._end) == (other._lives, other._firsts, other._end)

    __hash__ = None  # type: ignore[assignment]

    def by(self, name: Callable[[str], str]) -> Lives:
        """Return the same lives under other names, for those that do not remember the ids themselves."""
        found = copy.copy(self)
        found._lives = [name(life) for life in self._lives]
        return found

    def at(self, offset: int) -> str:
        """Return the life that has written the last offset below `offset`."""
        number = max(at for at, first in enumerate(self._firsts) if first < offset or at == 0)
        return self._lives[number]

    def maybe_divergence(self, name: str, life: str, offset: int) -> Divergence | None:
        """Return where the history of `name` has left that of a reader, which is at `offset`; None: it has not."""
        ends = [*self._firsts[1:], self._end]
        if life in self._lives:
            end = min(ends[self._lives.index(life)], self._end)  # a crash may have lost writes of this life, too
            if offset <= end:
                return None
            where = f"at offset {end}"
        elif offset <= 0:
            return None
        else:
            end = None
            where = f"before offset {offset}, by a life that the broker does not know"
        return Divergence(
            end,
            f"the history of {name!r} diverged {where}, and it had been read up to {offset}: the broker was restored "
            "from a backup, or is a copy",
        )


class Remembered:
    """Compares what a reader remembers with the lives of a broker. `memory`: of what it is, for the text to `tell`."""

    def __init__(self, memory: str, tell: Callable[[str], None]) -> None:
        self._memory = memory
        self._tell = tell
        self._told: set[str] = set()

    def maybe_divergence(self, name: str, lives: Lives | None, life: str | None, offset: int) -> Divergence | None:
        """Return where the history of `name` has left that of a reader at `offset`; None: it has not, or is unknown."""
        if lives is None:
            return None
        if life is not None:
            return lives.maybe_divergence(name, life, offset)
        if offset > 0 and name not in self._told:
            self._told.add(name)
            self._tell(
                f"{name!r}: {self._memory} does not say in which life of the broker it was read up to {offset}. That "
                "the broker was restored from a backup is noticed from the next step on"
            )
        return None


def id_at(id: str, life: str | None) -> str:
    """Return the id that a range is asked for by, with the life that has written its end, if that is known."""
    return id if life is None else f"{id}@{life}"
