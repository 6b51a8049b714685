"""Keep the verdicts of drains in the records of their vhosts, a page in each. Callers settle the turn after changes.

A page whose record is damaged is missing since the start. Its verdicts are lost, and it leaves a gap among the numbers
of the pages. The gap is closed before anything else: a gap hides the later pages, until as many are stored again. Their
verdicts would then be about other claims.
"""

from __future__ import annotations

from collections.abc import Iterator

from warren.engine_view.claims import verdicts_record
from warren.engine_view.records import RecordsOfVhost
from warren.server.draining.claim_verdicts import VERDICTS_MAX, Change, VerdictPages, left
from warren.server.logs import get_logger

log = get_logger("drains")


class VerdictRecords:
    """The verdicts about the claims of all sessions of a broker; `claims` is the name of a claim queue."""

    def __init__(self) -> None:
        # Those that were read or stored last, with their first page: claims are settled one after the other.
        self._latest: tuple[bytes | None, VerdictPages] = (None, VerdictPages())
        self._without_gaps: set[tuple[RecordsOfVhost, str]] = set()  # of vhosts with damaged records

    def of(self, records: RecordsOfVhost, claims: str) -> VerdictPages:
        """Return the verdicts about claims; only `change` changes them."""
        self._close_gaps(records, claims)
        first = records.maybe_value(verdicts_record(claims, 0))
        if first is None or first is not self._latest[0]:
            self._latest = first, VerdictPages(_pages_of(records, claims))
        return self._latest[1]

    def change(self, records: RecordsOfVhost, claims: str, change: Change) -> None:
        """Change the verdicts about claims."""
        pages = self.of(records, claims)
        for number, value in pages.carry_out(change).items():
            if value is None:
                records.forget(verdicts_record(claims, number))
            else:
                records.store(verdicts_record(claims, number), value)
        self._latest = records.maybe_value(verdicts_record(claims, 0)), pages

    def leave(self, records: RecordsOfVhost, claims: str, number: int) -> None:
        """Forget the verdicts about claims below `number`."""
        change = left(self.of(records, claims).verdicts, number)
        if change.high:
            self.change(records, claims, change)

    def forget(self, records: RecordsOfVhost, claims: str) -> None:
        """Forget all verdicts about claims."""
        self._close_gaps(records, claims)
        number = 0
        while records.forget(verdicts_record(claims, number)):
            number += 1

    def _close_gaps(self, records: RecordsOfVhost, claims: str) -> None:
        """Number the pages about claims without gaps; once for each claim queue."""
        if not records.has_lost_some() or (records, claims) in self._without_gaps:
            return
        self._without_gaps.add((records, claims))
        count, end = 0, 0
        for page in range(VERDICTS_MAX):  # a page has one at least
            name = verdicts_record(claims, page)
            value = records.maybe_value(name)
            if value is not None:
                end = page + 1
                if page > count:
                    records.store(verdicts_record(claims, count), value)
                    records.forget(name)
                count += 1
        if count < end:
            log.error("verdicts about claims are lost: their records are damaged", claims=claims, pages=end - count)


def _pages_of(records: RecordsOfVhost, claims: str) -> Iterator[bytes]:
    number = 0
    while (page := records.maybe_value(verdicts_record(claims, number))) is not None:
        yield page
        number += 1
