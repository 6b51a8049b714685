"""The verdicts about claims as records of a vhost, and what is left of them when one is damaged."""

from __future__ import annotations

import pytest

from warren.server.draining.claim_verdicts import ACK, DEAD_LETTER, PAGE_VERDICTS, Verdict, decided, decoded
from warren.server.draining.verdict_records import VerdictRecords

CLAIMS = "amq.drain/q/c"


class Records:
    """The records of a vhost, of which some may be damaged."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.is_damaged = False

    def maybe_value(self, name: str) -> bytes | None:
        return self.stored.get(name)

    def values(self, prefix: str) -> list[tuple[str, bytes]]:
        return [(name, value) for name, value in self.stored.items() if name.startswith(prefix)]

    def has_lost_some(self) -> bool:
        return self.is_damaged

    def store(self, name: str, value: bytes) -> None:
        self.stored[name] = value

    def forget(self, name: str) -> bool:
        return self.stored.pop(name, None) is not None


def decide(records: Records, verdicts: VerdictRecords, ranges: list[tuple[int, int]], kind: str) -> list[Verdict]:
    verdicts.change(records, CLAIMS, decided(verdicts.of(records, CLAIMS).verdicts, ranges, kind, None))
    return verdicts.of(records, CLAIMS).verdicts


def lose(records: Records, page: int) -> list[Verdict]:
    """Lose the record of a page; return the verdicts of the others, in their order."""
    records.is_damaged = True
    del records.stored[list(records.stored)[page]]
    left = [verdict for value in records.stored.values() for verdict in decoded(value)]
    return sorted(left, key=lambda each: each.first)


@pytest.mark.parametrize("lost", [0, 1, 3, 4])
def test_a_damaged_page_takes_no_other_with_it(lost: int) -> None:
    records = Records()
    decide(records, VerdictRecords(), [(at, at + 1) for at in range(0, 10 * PAGE_VERDICTS, 2)], DEAD_LETTER)
    assert len(records.stored) == 5
    left = lose(records, lost)
    assert left == VerdictRecords().of(records, CLAIMS).verdicts
    assert len(left) == 4 * PAGE_VERDICTS and len(records.stored) == 4


@pytest.mark.parametrize("lost", [0, 1, 3, 4])
def test_verdicts_after_a_damaged_page_are_forgotten_with_their_claims(lost: int) -> None:
    """They were found again when a later session of the name had as many pages, and held for other claims."""
    records = Records()
    decide(records, VerdictRecords(), [(at, at + 1) for at in range(0, 10 * PAGE_VERDICTS, 2)], DEAD_LETTER)
    lose(records, lost)
    verdicts = VerdictRecords()
    verdicts.forget(records, CLAIMS)
    assert not records.stored
    assert decide(records, verdicts, [(1, 2)], DEAD_LETTER) == [Verdict(1, 2, DEAD_LETTER)]
    assert decide(records, verdicts, [(1, 2)], ACK) == []
