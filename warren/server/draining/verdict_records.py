"""Keep the verdicts of drains in the records of their vhosts, a page in each. Callers settle the turn after changes."""

from __future__ import annotations

from collections.abc import Iterator

from warren.engine_view.claims import verdicts_record
from warren.engine_view.records import RecordsOfVhost
from warren.server.draining.claim_verdicts import Change, VerdictPages, left


class VerdictRecords:
    """The verdicts about the claims of all sessions of a broker; `claims` is the name of a claim queue."""

    def __init__(self) -> None:
        # Those that were read or stored last, with their first page: claims are settled one after the other.
        self._latest: tuple[bytes | None, VerdictPages] = (None, VerdictPages())

    def of(self, records: RecordsOfVhost, claims: str) -> VerdictPages:
        """Return the verdicts about claims; only `change` changes them."""
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
        number = 0
        while records.forget(verdicts_record(claims, number)):
            number += 1


def _pages_of(records: RecordsOfVhost, claims: str) -> Iterator[bytes]:
    number = 0
    while (page := records.maybe_value(verdicts_record(claims, number))) is not None:
        yield page
        number += 1
