"""Keep what a reader decides about single claims before it acknowledges them, and in which order to carry that out.

    settle 3..5 dead_letter, 9 requeue      verdicts: [3, 5) dead_letter, [9, 10) requeue
    claim after 12                          [0, 3) acknowledged, [3, 5) dead-lettered, [5, 9) acknowledged, [9, 10) ...

1. A verdict waits until its claim is acknowledged. Until then a later verdict replaces it, and the verdict `ACK`
   removes it. So a batch that is tried again may decide again, and a batch that never finishes has decided nothing.
2. Verdicts are kept in order and do not overlap. Adjacent ones of one kind are merged. They are stored in pages, each a
   record: a decision about a claim writes a page, however many others there are.
3. A batch that was tried again is noted with the number of its failures (`Failed`). When it is acknowledged, messages
   that have failed more often than their queue allows are given up, unless they have a verdict.

This module only decides; `server.draining.drains` acts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

ACK: Final = "ack"
DEAD_LETTER: Final = "dead_letter"
REQUEUE: Final = "requeue"
GIVE_UP: Final = "give_up"  # never sent by a reader: see (3)
KINDS: Final = (ACK, DEAD_LETTER, REQUEUE)
# For one session, each verdict a range: they are in memory, and in records of the log.
VERDICTS_MAX: Final = 50_000
PAGE_VERDICTS: Final = 64


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """What happens to the claims from `first` to `end`. `delay_ms`: of `REQUEUE`, None: as the queue says."""

    first: int
    end: int
    kind: str
    delay_ms: int | None = None


class Failed(msgspec.Struct, frozen=True):
    """Claims of a batch that has failed `times`; noted in `epoch`. `limit`: the failures allowed, None: any number."""

    first: int
    end: int
    times: int
    limit: int | None
    epoch: int


def decoded(stored: bytes) -> list[Verdict]:
    """Return the verdicts of a record."""
    return msgspec.json.decode(stored, type=list[Verdict])


def encoded(verdicts: Sequence[Verdict]) -> bytes:
    """Return verdicts as a record."""
    return msgspec.json.encode(verdicts)


class Change(NamedTuple):
    """Verdicts that take the places from `low` up to `high` of a list."""

    low: int
    high: int
    verdicts: list[Verdict]


class VerdictPages:
    """The verdicts of a session, in pages that are numbered without a gap. `stored`: the pages by their numbers."""

    def __init__(self, stored: Iterable[bytes] = ()) -> None:
        pages = [(number, decoded(value)) for number, value in enumerate(stored)]
        self._pages = sorted(pages, key=lambda page: page[1][0].first)
        self.verdicts = [each for _, page in self._pages for each in page]

    def carry_out(self, change: Change) -> dict[int, bytes | None]:
        """Change the verdicts; return the pages that are written now, by their numbers, None: the page is gone."""
        low, high, verdicts = change
        if low == high and not verdicts:
            return {}
        pages, before = self._pages, len(self._pages)
        at = begin = 0
        while at + 1 < before and begin + len(pages[at][1]) <= low:
            begin += len(pages[at][1])
            at += 1
        stop, end = at, begin
        while stop < before and (stop == at or end < high):
            end += len(pages[stop][1])
            stop += 1
        found = [*self.verdicts[begin:low], *verdicts, *self.verdicts[high:end]]
        if 0 < len(found) < PAGE_VERDICTS // 4:  # a neighbour takes them
            if stop < before:
                found += pages[stop][1]
                stop += 1
            elif at:
                at -= 1
                found = [*pages[at][1], *found]
        self.verdicts[low:high] = verdicts
        parts = _parts(found)
        numbers = [number for number, _ in pages[at:stop]]
        numbers += range(before, before + len(parts) - len(numbers))
        pages[at:stop] = zip(numbers, parts, strict=False)
        changed: dict[int, bytes | None] = dict(zip(numbers, map(encoded, parts), strict=False))
        free = [number for number in numbers[len(parts) :] if number < len(pages)]
        for place, (number, page) in enumerate(pages):
            if number >= len(pages):
                pages[place] = free.pop(), page
                changed[pages[place][0]] = encoded(page)
        return changed | dict.fromkeys(range(len(pages), before))


def _parts(verdicts: list[Verdict]) -> list[list[Verdict]]:
    """Return verdicts in as few pages as they take, all of about the same size."""
    if not verdicts:
        return []
    size = -(-len(verdicts) // -(-len(verdicts) // PAGE_VERDICTS))
    return [verdicts[at : at + size] for at in range(0, len(verdicts), size)]


def decided(before: Sequence[Verdict], ranges: Iterable[tuple[int, int]], kind: str, delay_ms: int | None) -> Change:
    """Return how `before` changes with another verdict for `ranges`, which may overlap and be in any order."""
    wanted: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if wanted and first <= wanted[-1][1]:
            wanted[-1] = wanted[-1][0], max(wanted[-1][1], end)
        elif first < end:
            wanted.append((first, end))
    if not wanted:
        return Change(0, 0, [])
    # Only those that the ranges touch can change: there may be very many others.
    low = bisect_left(before, wanted[0][0], key=lambda each: each.end)
    high = bisect_right(before, wanted[-1][1], key=lambda each: each.first)
    found = list(_outside(before[low:high], wanted))
    if kind != ACK:
        found += [Verdict(first, end, kind, delay_ms) for first, end in wanted]
    return Change(low, high, list(_joined(sorted(found, key=lambda each: each.first))))


def _outside(verdicts: Iterable[Verdict], ranges: Sequence[tuple[int, int]]) -> Iterator[Verdict]:
    """Yield the parts of `verdicts` that are outside all `ranges`; both ascend."""
    at = 0
    for verdict in verdicts:
        first = verdict.first
        while at < len(ranges) and ranges[at][1] <= first:
            at += 1
        each = at
        while each < len(ranges) and ranges[each][0] < verdict.end:
            if first < ranges[each][0]:
                yield msgspec.structs.replace(verdict, first=first, end=ranges[each][0])
            first = max(first, ranges[each][1])
            each += 1
        if first < verdict.end:
            yield msgspec.structs.replace(verdict, first=first)


def _joined(verdicts: Iterable[Verdict]) -> list[Verdict]:
    made: list[Verdict] = []
    for each in verdicts:
        last = made[-1] if made else None
        if last is not None and (last.end, last.kind, last.delay_ms) == (each.first, each.kind, each.delay_ms):
            made[-1] = msgspec.structs.replace(last, end=each.end)
        else:
            made.append(each)
    return made


def leaving(verdicts: Sequence[Verdict], failed: Failed | None, number: int) -> list[Verdict]:
    """Return what happens to those claims below `number` that are not simply acknowledged, in their order."""
    found = [each for each in verdicts if each.first < number]
    if failed is not None and failed.limit is not None:
        ranges = [(each.first, each.end) for each in found]
        found += _outside([Verdict(failed.first, failed.end, GIVE_UP)], ranges)
    cut = [msgspec.structs.replace(each, end=min(each.end, number)) for each in found if each.first < number]
    return sorted(cut, key=lambda each: each.first)


def left(verdicts: Sequence[Verdict], number: int) -> Change:
    """Return how `verdicts` change when only claims from `number` on are left."""
    high = bisect_right(verdicts, number, key=lambda each: each.end)
    if high < len(verdicts) and verdicts[high].first < number:
        return Change(0, high + 1, [msgspec.structs.replace(verdicts[high], first=number)])
    return Change(0, high, [])
