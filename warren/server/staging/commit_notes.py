"""Keep, in the records of a vhost, notes about commits of staged messages (``server.staging.stages``).

    name of a record      value, JSON
    commit:<query>        `Note`: the last batch of the query, and how far it has come
    plan:<query>          `CommitPlan`: what that batch consists of, while it is published in several pieces
    stages:life           not a note: see ``server.staging.vhost_lives``

1. A note is stored in the same frame of the log as the messages that it tells about.
2. Batches of a query follow each other. A batch that is not larger than the noted one was committed before, provided
   the noted one is done. A batch that leaves out others is refused: those were committed to a history that this broker
   does not have, since it was restored from an older backup. Notes of earlier versions are not `counted`; batches may
   be missing after them. A writer whose own state was taken back reuses numbers for other messages. The number of
   messages tells whether it is the same batch. That number is remembered for the last `EARLIER_MAX` batches.
3. A query belongs to the user who has committed its last batch. Another user may continue with the next batch, if it
   may write to the exchanges that the query has published to, but is not told that an earlier one is a duplicate.
   Otherwise a user that knows a query could make batches of others count as published. A query that has published
   nothing belongs to its user alone. An empty batch needs the right to write to some exchange, so a user without any
   right begins no query of another user first.
   A query whose user was deleted, or has lost the rights that it needs, is not lost. Another user with these rights is
   told of duplicates, if they have as many messages; and if nothing was published, the query begins again.
4. Notes with a time are removed when that time has come. Of the others the latest are kept: `NOTES_MAX` altogether, and
   `NOTES_OF_USER_MAX` of a user.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

import msgspec

from warren.engine_view.records import RecordsOfVhost

EARLIER_MAX: Final = 32
NOTES_MAX: Final = 100_000
NOTES_OF_USER_MAX: Final = 50_000
EXCHANGES_MAX: Final = 4

_COMMIT: Final = "commit:"
_PLAN: Final = "plan:"


class Note(msgspec.Struct, frozen=True):
    """The last batch of a query. `part` and `cell`: where to continue publishing if it is not `done`.

    Times are in ms since the Unix epoch; `until_ms` None: remembered without end. `staged`: the number of messages in
    the batch, None: version 0.1 began it; `earlier`: the numbers of earlier batches, and how many messages each had.
    `exchanges`: the first `EXCHANGES_MAX` that the query has published to; None: an earlier version did not note them.
    """

    batch: int
    user: str
    done: bool
    messages: int = 0
    unroutable: int = 0
    part: int = 0
    cell: int = 0
    mandatory: bool = True
    at_ms: int = 0
    until_ms: int | None = None
    counted: bool = False
    staged: int | None = None
    earlier: list[tuple[int, int]] = []
    exchanges: list[str] | None = None

    def binds(self, user: str) -> bool:
        """Tell whether it decides which batches `user` may commit, provided that `user` may continue the query."""
        return self.user == user or not self.done or self.exchanges != []

    def maybe_staged(self, batch: int) -> int | None:
        """Return how many messages a committed batch had; None if that is no longer known."""
        return self.staged if batch == self.batch else dict(self.earlier).get(batch)

    def batches(self) -> list[tuple[int, int]]:
        """Return this batch and the earlier ones, for a later note."""
        own = [] if self.staged is None else [(self.batch, self.staged)]
        return [*self.earlier, *own][-EARLIER_MAX:]


class CommitPlan(msgspec.Struct, frozen=True):
    """The parts of a batch in the order in which they are published: stage and number.

    `fingerprints`: of each part (`PartHead.fingerprint`); empty for a batch that version 0.1 began. `purged`: the queue
    whose messages go in the frame of the first piece.
    """

    batch: int
    parts: list[tuple[str, int]]
    fingerprints: list[int] = []
    purged: str | None = None


class CommitNotes:
    """The notes of one vhost. After changes the caller has to settle the turn."""

    def __init__(self, records: RecordsOfVhost) -> None:
        self._records = records

    def maybe_note(self, query: str) -> Note | None:
        """Return the note of a query; None without one."""
        value = self._records.maybe_value(_COMMIT + query)
        return None if value is None else msgspec.json.decode(value, type=Note)

    def maybe_plan(self, query: str) -> CommitPlan | None:
        """Return the plan of a query whose batch is being published; None if no batch is."""
        value = self._records.maybe_value(_PLAN + query)
        return None if value is None else msgspec.json.decode(value, type=CommitPlan)

    def has_plan(self, query: str) -> bool:
        """Tell whether a batch of a query has begun to be published, and is not done."""
        return self._records.maybe_value(_PLAN + query) is not None

    def each(self) -> Iterator[tuple[str, Note]]:
        """Yield the current queries and their notes; a caller that gives way meanwhile may get outdated notes."""
        for name, value in self._records.values(_COMMIT):
            yield name[len(_COMMIT) :], msgspec.json.decode(value, type=Note)

    def plans(self) -> dict[str, CommitPlan]:
        """Return the plans of all batches that are being published, by their queries."""
        found = self._records.values(_PLAN)
        return {name[len(_PLAN) :]: msgspec.json.decode(value, type=CommitPlan) for name, value in found}

    def begin(self, query: str, note: Note, plan: CommitPlan) -> None:
        """Note that a batch will be published in pieces."""
        self._records.store(_PLAN + query, msgspec.json.encode(plan))
        self._records.store(_COMMIT + query, msgspec.json.encode(note))

    def store(self, query: str, note: Note) -> None:
        """Note the progress of a batch; its plan is removed when it is done."""
        self._records.store(_COMMIT + query, msgspec.json.encode(note))
        if note.done:
            self._records.forget(_PLAN + query)

    def forget(self, query: str) -> bool:
        """Forget a query; False if it had no note."""
        self._records.forget(_PLAN + query)
        return self._records.forget(_COMMIT + query)

    def expire(self, query: str, note: Note) -> None:
        """Forget a query that is due, if `note` is still its last one."""
        if self.maybe_note(query) == note:
            self.forget(query)


def due(notes: dict[str, Note], now_ms: int) -> list[str]:
    """Return the queries whose time is over."""
    found = [query for query, note in notes.items() if note.done and _is_due(note, now_ms)]
    of_users: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for query, note in notes.items():
        if note.done and not _is_due(note, now_ms):
            of_users[note.user].append((note.at_ms, query))
    kept: list[tuple[int, str]] = []
    for of_user in of_users.values():
        of_user.sort()
        too_many = max(0, len(of_user) - NOTES_OF_USER_MAX)
        found += [query for _, query in of_user[:too_many]]
        kept += of_user[too_many:]
    if len(kept) > NOTES_MAX:
        found += [query for _, query in nsmallest(len(kept) - NOTES_MAX, kept)]
    return found


def _is_due(note: Note, now_ms: int) -> bool:
    return note.until_ms is not None and note.until_ms <= now_ms
