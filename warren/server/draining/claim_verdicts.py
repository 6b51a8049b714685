"""Keep what a reader decides about single claims before it acknowledges them, and in which order to carry that out.

    settle 3..5 dead_letter, 9 requeue      verdicts: [3, 5) dead_letter, [9, 10) requeue
    claim after 12                          [0, 3) acknowledged, [3, 5) dead-lettered, [5, 9) acknowledged, [9, 10) ...

1. A verdict waits until its claim is acknowledged. Until then a later verdict replaces it, and the verdict `ACK`
   removes it. So a batch that is tried again may decide again, and a batch that never finishes has decided nothing.
2. Verdicts are kept in order and do not overlap. Adjacent ones of one kind are merged.
3. A batch that was tried again is noted with the number of its failures (`Failed`). When it is acknowledged, messages
   that have failed more often than their queue allows are given up, unless they have a verdict.

This module only decides; `server.draining.drains` acts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

ACK: Final = "ack"
DEAD_LETTER: Final = "dead_letter"
REQUEUE: Final = "requeue"
GIVE_UP: Final = "give_up"  # never sent by a reader: see (3)
KINDS: Final = (ACK, DEAD_LETTER, REQUEUE)
# For one session, each verdict a range: they are in memory, and in one record of the log.
VERDICTS_MAX: Final = 50_000


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


def decoded(stored: bytes | None) -> list[Verdict]:
    """Return the verdicts of a record."""
    return [] if stored is None else msgspec.json.decode(stored, type=list[Verdict])


def encoded(verdicts: Sequence[Verdict]) -> bytes:
    """Return verdicts as a record."""
    return msgspec.json.encode(verdicts)


def decided(
    before: Sequence[Verdict], ranges: Iterable[tuple[int, int]], kind: str, delay_ms: int | None
) -> list[Verdict]:
    """Return `before` with another verdict for `ranges`, which may overlap and be in any order."""
    wanted: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if wanted and first <= wanted[-1][1]:
            wanted[-1] = wanted[-1][0], max(wanted[-1][1], end)
        elif first < end:
            wanted.append((first, end))
    if not wanted:
        return list(before)
    # Only those that the ranges touch can change: there may be very many others.
    low = bisect_left(before, wanted[0][0], key=lambda each: each.end)
    high = bisect_right(before, wanted[-1][1], key=lambda each: each.first)
    found = list(_outside(before[low:high], wanted))
    if kind != ACK:
        found += [Verdict(first, end, kind, delay_ms) for first, end in wanted]
    return [*before[:low], *_joined(sorted(found, key=lambda each: each.first)), *before[high:]]


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


def left(verdicts: Sequence[Verdict], number: int) -> list[Verdict]:
    """Return the verdicts about claims from `number` on."""
    found = list(verdicts[bisect_right(verdicts, number, key=lambda each: each.end) :])
    if found and found[0].first < number:
        found[0] = msgspec.structs.replace(found[0], first=number)
    return found
