"""Drain queues for readers: they claim ranges of messages, and can read a range again until they acknowledge it.

    open -> epoch      claim(after k): all below k is acknowledged, the next messages are claimed as [k, e)
                       read [k, e), any number of times: claim queues are read like streams
                       claim(after e) ...

A session is a vhost, a queue and the name of a consumer. Its claimed messages are in a queue of its own, a claim queue
(`queues.claims`).

1. Opening a session gives it an epoch, larger than all earlier ones in its vhost. Calls with another epoch than the
   latest are refused: of two readers with one name only the later one can continue. The first epoch of a vhost is the
   time in ms: an earlier vhost of the name had other ones. After a clock went back they may be smaller, and can only be
   equal if it went back to the very same ms. A vhost remembers which lives of the broker gave which epochs. A reader
   that names its previous epoch gets no new session from a broker that does not know it: a restored backup, or a copy.
2. Answered calls are synced: claims, acknowledgements, epochs. After a crash each message is in the queue or claimed,
   and a claim still has its number.
3. Claiming after k claims nothing if something from k on is claimed already. A reader that died before it noted a claim
   finds that claim this way.
4. The calls of a session are done one after the other. A cancelled call leaves what it has claimed so far to (3).
   Claiming stops after `CLAIM_S`, and when another reader opens the session.
5. Claims outlive their queue. They end with the vhost, when they are acknowledged, or when they are deleted.
6. Claims are not returned automatically, however long no reader asks, unless the session was opened with a lease. With
   a lease they return as if an operator had released them, once no call of the session and no read of its claims was
   under way for that long. Time in which the broker did not run, or could not listen, does not count as silence.

7. Single claims can be settled in another way than by acknowledging them: dead-lettered, or put back into the queue.
   That is noted at once, and carried out when they are acknowledged (``claim_verdicts``): one frame of the log removes
   such a message from the claims and adds it to its destination.

The epoch and the lease of a session are among the records of its vhost (`vhosts.records`), which no client can
change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import msgspec
import trio

from warren.engine_view.claims import DEAD_LETTER as DEAD_LETTER_CLAIMS
from warren.engine_view.claims import LIMIT as LIMIT_CLAIMS
from warren.engine_view.claims import ON_PATH, SESSION_RECORD, ClaimsRow, Lineage, claims_name
from warren.engine_view.claims import REQUEUE as REQUEUE_CLAIMS
from warren.engine_view.claims import Verdict as ClaimVerdict
from warren.engine_view.records import RecordsOfVhost
from warren.engine_view.refs import QueueRef
from warren.msgstore.files.store import wall_time_ms
from warren.server.draining.claim_verdicts import (
    ACK,
    DEAD_LETTER,
    GIVE_UP,
    VERDICTS_MAX,
    Failed,
    Verdict,
    decided,
    leaving,
)
from warren.server.draining.verdict_records import VerdictRecords
from warren.server.logs import get_logger
from warren.server.management import Management
from warren.server.shares import Quota

CLAIM_S: Final = 20.0
# How long a call waits for the previous one.
TURN_S: Final = 30.0
# Of one queue: every user who may read it can open sessions, and each session is a queue.
DRAINS_QUOTA: Final = Quota(total=100, of_user=50)
# If the task woke this late, the broker could not hear readers either.
LATE_S: Final = 1.0
AT_ONCE: Final = 256  # sessions that are looked at without giving way
FORGET_S: Final = 3600.0  # how often ended sessions are looked for, at least
_CONGESTED_POLL_S: Final = 0.01
_RESTORE_POLL_S: Final = 0.02

_LAST_EPOCH: Final = "drain epoch"
_LINEAGE: Final = "lineage of drain epochs"

log = get_logger("drains")


class DrainError(Exception):
    """A drain cannot do something; the text is for the client that asked."""


class Fenced(DrainError):
    """Another reader has opened the session since."""


class NoDrain(DrainError):
    """The session does not exist."""


class NoQueue(DrainError):
    """The queue is gone, or cannot be drained."""


class Ahead(DrainError):
    """The reader has seen claims that this broker does not know."""


class Diverged(DrainError):
    """The reader has seen claims of another history: this broker was restored from a backup, or is a copy."""


class StillClaimed(DrainError):
    """The session still has claims."""


class TooMany(DrainError):
    """The queue may have no more drains, or the vhost no more queues."""


class NotClaimed(DrainError):
    """The request names claims that do not exist."""


class NoDeadLetters(DrainError):
    """The queue has no dead letter exchange."""


class Busy(DrainError):
    """It has to wait for something else to finish."""


class Note(msgspec.Struct):
    """The record of a session, opened last by `user`. `lease_s` None: claims are not returned automatically.

    `failed`: the batch that was tried again last; `acked`: up to where readers have acknowledged claims, None: an
    earlier version did not note it.
    """

    epoch: int
    owner: str = ""
    opened_ms: int = 0
    lease_s: int | None = None
    user: str = ""
    failed: Failed | None = None
    acked: int | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """A session: the queue and the name of its consumer."""

    vhost: str
    queue: str
    consumer: str

    @property
    def claims_name(self) -> str:
        """The name of its claim queue."""
        return claims_name(self.queue, self.consumer)


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of opening a session: the offsets from `first` to `end` are claimed and not acknowledged.

    `acked`: up to where readers have acknowledged claims; from there up to `first` they were released. None: it is not
    known. `life_id`: of the broker that gave the epoch.
    """

    epoch: int
    claims: QueueRef
    first: int
    end: int
    acked: int | None
    life_id: bytes


class Before(NamedTuple):
    """An earlier session as its reader remembers it: an epoch, and the life of the broker that gave it."""

    epoch: int
    life_id: bytes


@dataclass(frozen=True, slots=True)
class Listed:
    """A session as operators see it. `last_seen_ms` None: not since the broker started."""

    claims: ClaimsRow
    note: Note
    last_seen_ms: int | None


class _Presence:
    """State of one session: its current call, and the last sign of its reader; `sign_s`: when its lease began."""

    def __init__(self, now_s: float) -> None:
        self.turn = trio.Lock()
        self.calls_under_way = 0
        self.sign_s = now_s
        self.last_seen_ms: int | None = None


class Drains:
    """The sessions of one broker. Leases end while `run` is running; `clock` is the one by which it sleeps."""

    def __init__(self, management: Management, *, clock: Callable[[], float] = trio.current_time) -> None:
        self._management = management
        self._view = management.view
        self._clock = clock
        self._present: dict[tuple[str, str], _Presence] = {}
        self._leased = trio.Event()
        self._next_end_s = inf  # when a lease may be over, at the earliest
        self._verdicts = VerdictRecords()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def open(
        self, drain: Drain, owner: str, by: str, lease_s: int | None = None, before: Before | None = None
    ) -> Opened:
        """Open a session, creating it if it is new, or take it over; `owner` is for people, `by` the user.

        `lease_s`: see (6); it replaces the one that the session had. `before`: the reader has drained the queue with
        it; see (1).

        Raises:
            DrainError: `TooMany`, `Busy`, `Diverged`; `Fenced`, another reader was faster.
        """
        self._check_restored(drain.vhost)
        is_new = self._view.queues.maybe(drain.vhost, drain.claims_name) is None
        if is_new:
            self._check_before(drain, before)
            self._check_room(drain, by)
        claims, ticket = self._view.claims.declare(drain.vhost, drain.queue, drain.consumer, by)
        with self._under_way(drain.vhost, drain.claims_name):
            if is_new:
                # Of a claim queue that was deleted before the records were read.
                self._verdicts.forget(self._records(drain), drain.claims_name)
            had = Note(0, acked=0) if is_new else self._note(drain)
            made = Note(0, owner, wall_time_ms(), lease_s, by, had.failed, had.acked)
            epoch = self._next_epoch(drain, made)
            if lease_s is not None and self._clock() + lease_s < self._next_end_s:
                self._leased.set()
            self._management.settle()
            await self._management.commit(ticket)
            async with self._turn(drain, epoch):
                await self._management.messages.deleted()
                first = await self._first(claims)
                self._check(drain, epoch)
                life_id = self._view.life_id()
                return Opened(epoch, claims, first, self._synced_end(claims), self._note(drain).acked, life_id)

    async def claim(
        self,
        drain: Drain,
        epoch: int,
        after: int,
        max_rows: int,
        max_bytes: int | None,
        until: int | None,
        life_id: bytes | None = None,
    ) -> tuple[int, int]:
        """Acknowledge all below `after`, claim the next messages, and return the range that is claimed now.

        `max_rows`: at least 1; `max_bytes`: of bodies, but at least one message; `until`: see `mark`; `life_id`: the
        life that has written the last claim below `after`, as far as the reader knows. If messages from `after` on are
        claimed already, the call returns these. The first number is larger than `after` only when claims from there on
        were released.

        Raises:
            DrainError: `NoDrain`, `Fenced`, `Diverged`, `Ahead`, `Busy`.
        """
        async with self._turn(drain, epoch):
            claims = self.claims_of(drain)
            offsets = self._view.offsets
            divergence = None if life_id is None else offsets.maybe_divergence(claims, life_id, after)
            if divergence is not None:
                raise Diverged(divergence)
            following = offsets.next_offset(claims)
            if after > following:
                raise Ahead(f"the reader is at offset {after}, but claims end at {following}")
            if after > self._synced_end(claims):
                await self._management.messages.deleted()
            await self._first(claims)
            await self._acknowledge(drain, epoch, claims, after)
            first = max(after, self._first_offset(claims))
            queue = self._maybe_home(drain)
            if offsets.next_offset(claims) == first and queue is not None:
                await self._claim(drain, epoch, queue, max_rows, max_bytes, until)
            await self._management.messages.deleted()
            self._check(drain, epoch)
            return first, self._synced_end(claims)

    def mark(self, drain: Drain, epoch: int) -> int:
        """Return a mark for the current end of the queue: a claim up to it does not take later messages.

        Raises:
            DrainError: `NoDrain`, `Fenced`.
        """
        self._check(drain, epoch)
        with self._under_way(drain.vhost, drain.claims_name):
            queue = self._view.queues.maybe(drain.vhost, drain.queue)
            return 0 if queue is None else self._view.browsing.mark(queue)

    async def settle(
        self,
        drain: Drain,
        ranges: list[tuple[int, int]],
        kind: str,
        delay_ms: int | None,
        epoch: int | None = None,
    ) -> int:
        """Note what happens to claims when they are acknowledged; return how many claims have such a note now.

        `kind`: of ``claim_verdicts``; `delay_ms`: of `REQUEUE`; `epoch` None: any. Messages that are no longer claimed
        are skipped.

        Raises:
            DrainError: `NoDrain`, `Fenced`, `NotClaimed`, `NoDeadLetters`, `NoQueue`, `TooMany`, `Busy`.
        """
        async with self._turn(drain, epoch):
            claims = self.claims_of(drain)
            first, end = await self._first(claims), self._synced_end(claims)
            if any(behind > end for _, behind in ranges):
                raise NotClaimed(f"claims of drain '{drain.consumer}' of queue '{drain.queue}' end at {end}")
            queue = self._view.queues.maybe(drain.vhost, drain.queue)
            if kind != ACK and queue is None:
                raise NoQueue(f"queue '{drain.queue}' no longer exists and cannot take messages back")
            if kind == DEAD_LETTER and (queue is None or not self._view.claims.has_dead_letters(queue)):
                raise NoDeadLetters(
                    f"queue '{drain.queue}' has no dead letter exchange: give it one with x-dead-letter-exchange, "
                    "or by a policy with dead-letter-exchange"
                )
            wanted = [(max(low, first), high) for low, high in ranges if high > first]
            records, name = self._records(drain), drain.claims_name
            self._verdicts.leave(records, name, first)
            verdicts = self._verdicts.of(records, name).verdicts
            change = decided(verdicts, wanted, kind, delay_ms)
            if len(verdicts) + len(change.verdicts) - (change.high - change.low) > VERDICTS_MAX:
                raise TooMany(f"a drain may have {VERDICTS_MAX} ranges settled one by one: claim fewer at a time")
            self._verdicts.change(records, name, change)
            count = sum(each.end - each.first for each in self._verdicts.of(records, name).verdicts)
            self._management.settle()
            await self._management.messages.deleted()
            return count

    async def fail(self, drain: Drain, epoch: int, first: int, end: int) -> Failed:
        """Note that the reader has failed with claims once more: it reads them again. Once in an epoch.

        Raises:
            DrainError: `NoDrain`, `Fenced`, `NotClaimed`, `Busy`.
        """
        async with self._turn(drain, epoch):
            claims = self.claims_of(drain)
            oldest, synced = await self._first(claims), self._synced_end(claims)
            if first < oldest or end > synced:
                raise NotClaimed(
                    f"the claims from {first} to {end} are not there: the claimed ones are {oldest} to {synced}"
                )
            note = self._note(drain)
            before = note.failed if note.failed is not None and note.failed.first == first else None
            if before is not None and (before.end, before.epoch) == (end, epoch):
                return before
            times = 1 if before is None else before.times + (before.epoch != epoch)
            queue = self._view.queues.maybe(drain.vhost, drain.queue)
            limit = None if queue is None else self._view.claims.delivery_limit(queue)
            note.failed = Failed(first, end, times, limit, epoch)
            self._records(drain).store(SESSION_RECORD + drain.claims_name, msgspec.json.encode(note))
            self._management.settle()
            await self._management.messages.deleted()
            return note.failed

    async def release(self, drain: Drain, epoch: int | None, seen: int | None = None) -> int:
        """Move the claimed messages back to the queue, and return their number.

        Claims that a reader has acknowledged leave as it has decided, also if its call was interrupted. The others go
        behind the waiting messages, flagged as redelivered. Without `epoch` the reader that has the session open is
        fenced; `seen`: only if this is its epoch, None: any.

        Raises:
            DrainError: `NoDrain`, `Fenced`, `NoQueue`, `Busy`.
        """
        by_reader = epoch is not None
        if epoch is None:
            self._check_restored(drain.vhost)
            self.claims_of(drain)
            if seen is not None:
                self._check(drain, seen)
            epoch = self._next_epoch(drain, self._note(drain))
        async with self._turn(drain, epoch, by_reader=by_reader):
            claims = self.claims_of(drain)
            queue = self._maybe_home(drain)
            if queue is None:
                raise NoQueue(f"queue '{drain.queue}' no longer exists and cannot take messages back")
            await self._management.messages.deleted()
            first = await self._first(claims)
            acked = self._note(drain).acked or 0
            if first < acked <= self._synced_end(claims):
                await self._acknowledge(drain, epoch, claims, acked)  # a call that was interrupted has begun it
                first = self._first_offset(claims)
            count = 0
            while first < self._synced_end(claims) and not self._view.queues.is_gone(queue):
                count += await self._give_back(claims, queue)
                self._check(drain, epoch)
                if self._first_offset(claims) == first:
                    break
                first = self._first_offset(claims)
                await self._give_way()
            self._verdicts.leave(self._records(drain), drain.claims_name, first)
            self._management.settle()
            await self._management.messages.deleted()
            return count

    async def delete(self, drain: Drain, by: str, *, discard: bool, epoch: int | None = None) -> None:
        """Forget a session; with `discard`, its claims are lost as well. `epoch` None: any.

        Raises:
            DrainError: `NoDrain`, `Fenced`, `StillClaimed`, `Busy`.
        """
        async with self._turn(drain, epoch, by_reader=False):
            claims = self.claims_of(drain)
            claimed = self._view.claims.row(claims).messages
            if claimed and not discard:
                raise StillClaimed(f"{claimed} messages are claimed: release or discard them first")
            ticket = self._view.claims.delete(claims, by)
            self._management.settle()
            await self._management.commit(ticket)

    def are_counted(self, claims: QueueRef) -> bool:
        """Tell whether these messages carry the number of failed deliveries: their queue counts that."""
        row = self._view.claims.row(claims)
        queue = self._view.queues.maybe(row.vhost, row.source)
        return queue is not None and self._view.claims.counts_deliveries(queue)

    @contextmanager
    def reading(self, claims: QueueRef) -> Iterator[None]:
        """Note that claims are being read: the reader is busy with them."""
        row = self._view.claims.row(claims)
        with self._under_way(row.vhost, row.name):
            yield

    # --- leases -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Return the claims of readers that were silent for as long as their lease, until cancelled."""
        while self._view.is_restoring():
            await trio.sleep(_RESTORE_POLL_S)
        self.begin_leases()
        while True:
            self._leased = trio.Event()
            self._next_end_s = inf  # a session opened meanwhile has to wake us: `end_leases` may miss it
            self._next_end_s = next_s = max(await self.end_leases(), self._clock())
            next_s = min(next_s, self._clock() + FORGET_S)
            with trio.move_on_at(next_s):
                await self._leased.wait()
            if self._clock() > next_s + LATE_S:
                self.begin_leases()

    def begin_leases(self) -> None:
        """Begin the lease of every session now."""
        for vhost in self._view.vhosts:
            records = self._view.records.of(vhost)
            for _, name in self._view.queues.names(self._view.claims.in_order(vhost)):
                if _note_of(records, name).lease_s is not None:
                    self._presence(vhost, name).sign_s = self._clock()

    async def end_leases(self) -> float:
        """Release the claims of sessions whose lease is over; return when the next one may be, at the earliest."""
        next_s = inf
        for at, ((vhost, name), presence) in enumerate(list(self._present.items()), 1):
            if at % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            claims = self._view.claims.maybe(vhost, name)
            if claims is None:
                if not presence.calls_under_way:
                    self._present.pop((vhost, name), None)  # it ended with its vhost
                continue
            lease_s = _note_of(self._view.records.of(vhost), name).lease_s
            if lease_s is None:
                continue
            if not presence.calls_under_way and self._clock() >= presence.sign_s + lease_s:
                await self._end_lease(self._view.claims.row(claims))
                presence.sign_s = self._clock()  # if claims are left, try again after the same time
            next_s = min(next_s, (self._clock() if presence.calls_under_way else presence.sign_s) + lease_s)
        return next_s

    async def _end_lease(self, claims: ClaimsRow) -> None:
        drain = Drain(claims.vhost, claims.source, claims.consumer)
        if not claims.messages or self._maybe_home(drain) is None:
            return  # nothing to return, or no queue to return it to: that does not shut the reader out
        place = {"vhost": drain.vhost, "queue": drain.queue, "name": drain.consumer}
        try:
            count = await self.release(drain, None)
        except DrainError as error:
            log.warning(
                "the lease of a drain has expired, but its claims were not released", **place, reason=str(error)
            )
        else:
            log.warning("the lease of a drain has expired: its claims are released", **place, messages=count)

    # --- what there is ----------------------------------------------------------------------------------------------

    async def look(self, drain: Drain) -> Listed:
        """Return a session, including its oldest claim: after a restart that is looked for on disk.

        Raises:
            DrainError: `NoDrain`.
        """
        claims = self.claims_of(drain)
        await self._first(claims)
        if self._view.queues.is_gone(claims):
            raise NoDrain(f"drain '{drain.consumer}' of queue '{drain.queue}' was deleted")
        return self.listed(claims)

    def listed(self, claims: QueueRef) -> Listed:
        """Return the session whose claims these are."""
        row = self._view.claims.row(claims)
        presence = self._present.get((row.vhost, row.name))
        note = _note_of(self._view.records.of(row.vhost), row.name)
        return Listed(row, note, None if presence is None else presence.last_seen_ms)

    # --- parts of calls ---------------------------------------------------------------------------------------------

    def claims_of(self, drain: Drain) -> QueueRef:
        """Return the claim queue of a session.

        Raises:
            DrainError: `NoDrain`.
        """
        claims = self._view.claims.maybe(drain.vhost, drain.claims_name)
        if claims is None:
            raise NoDrain(f"nobody has opened drain '{drain.consumer}' of queue '{drain.queue}'")
        return claims

    def _maybe_home(self, drain: Drain) -> QueueRef | None:
        """Return the queue of a session, if it is there and can be drained."""
        queue = self._view.queues.maybe(drain.vhost, drain.queue)
        return queue if queue is not None and self._view.claims.is_drainable(queue) else None

    def _records(self, drain: Drain) -> RecordsOfVhost:
        """Return the records of the vhost.

        Raises:
            DrainError: `NoDrain`, the vhost was deleted meanwhile.
        """
        try:
            return self._view.records.of(drain.vhost)
        except KeyError:
            raise NoDrain(f"drain '{drain.consumer}' of queue '{drain.queue}' was deleted") from None

    def _note(self, drain: Drain) -> Note:
        return _note_of(self._records(drain), drain.claims_name)

    def _first_offset(self, claims: QueueRef) -> int:
        return self._view.offsets.bounds(claims)[0]

    def _synced_end(self, claims: QueueRef) -> int:
        return self._view.offsets.bounds(claims)[1]

    def _next_epoch(self, drain: Drain, note: Note) -> int:
        """Give the session an epoch that no session of the vhost has had, and store `note` with it."""
        records = self._records(drain)
        last = records.maybe_value(_LAST_EPOCH)
        # See (1): the readers of an earlier vhost of the name may still call.
        epoch = wall_time_ms() if last is None else int(last) + 1
        records.store(_LAST_EPOCH, b"%d" % epoch)
        lineage, life_id = _lineage_of(records), self._view.life_id()
        if lineage.life_at(epoch) != life_id:
            lineage.begin(life_id, epoch)
            records.store(_LINEAGE, lineage.encode())
        note.epoch = epoch
        records.store(SESSION_RECORD + drain.claims_name, msgspec.json.encode(note))
        return epoch

    def _check_restored(self, vhost: str) -> None:
        if self._view.records.are_restoring(vhost):
            raise Busy("the broker is starting")
        if self._management.stopping:
            raise Busy("the broker is stopping")

    def _check_before(self, drain: Drain, before: Before | None) -> None:
        records = self._records(drain)
        if before is None:
            return
        end = int(records.maybe_value(_LAST_EPOCH) or 0) + 1
        if _lineage_of(records).diverged_at(before.life_id, before.epoch + 1, end) != ON_PATH:
            raise Diverged(
                f"this broker does not know that queue '{drain.queue}' was drained with epoch {before.epoch}: it was "
                "restored from a backup, or is a copy, or its vhost was made again. The reader may have these messages"
            )

    def _check_room(self, drain: Drain, user: str) -> None:
        records = self._records(drain)
        users = [_note_of(records, name).user for name in self._view.claims.names_for(drain.vhost, drain.queue)]
        what = f"drains of queue '{drain.queue}'"
        refusal = DRAINS_QUOTA.maybe_refusal(what, self._view.permissions, user, users.count(user), len(users))
        if refusal:
            raise TooMany(refusal)
        if not self._view.claims.has_room(drain.vhost):
            raise TooMany(f"the queue limit of vhost '{drain.vhost}' is reached")

    def _check(self, drain: Drain, epoch: int) -> None:
        self._check_restored(drain.vhost)
        if self._view.queues.is_gone(self.claims_of(drain)):
            raise NoDrain(f"drain '{drain.consumer}' of queue '{drain.queue}' was deleted")
        latest = self._note(drain).epoch
        if epoch != latest:
            raise Fenced(
                f"drain '{drain.consumer}' of queue '{drain.queue}' has epoch {latest} now, not {epoch}: another "
                "reader has opened it, or its claims were released by an operator or because its lease expired"
            )

    def _presence(self, vhost_name: str, name: str) -> _Presence:
        return self._present.setdefault((vhost_name, name), _Presence(self._clock()))

    @contextmanager
    def _under_way(self, vhost_name: str, name: str, *, by_reader: bool = True) -> Iterator[_Presence]:
        """Keep the lease from ending during a call; renew it afterwards if the call came from the reader."""
        presence = self._presence(vhost_name, name)
        presence.calls_under_way += 1
        if by_reader:
            presence.last_seen_ms = wall_time_ms()
        try:
            yield presence
        finally:
            presence.calls_under_way -= 1
            if by_reader:
                presence.sign_s = self._clock()
            if not presence.calls_under_way and self._view.claims.maybe(vhost_name, name) is None:
                self._present.pop((vhost_name, name), None)  # the session ended meanwhile

    @asynccontextmanager
    async def _turn(self, drain: Drain, epoch: int | None, *, by_reader: bool = True) -> AsyncIterator[None]:
        """Hold the session exclusively; it was not deleted, and opened again, since the caller asked."""
        self._check_restored(drain.vhost)
        asked = self.claims_of(drain)
        if epoch is not None:
            self._check(drain, epoch)  # a call of an earlier reader renews nothing
        with self._under_way(drain.vhost, drain.claims_name, by_reader=by_reader) as presence:
            with trio.move_on_after(TURN_S) as waiting:
                await presence.turn.acquire()
            if waiting.cancelled_caught:
                raise Busy("another request for this drain is in progress")
            try:
                if self._view.queues.is_gone(asked):
                    raise NoDrain(f"drain '{drain.consumer}' of queue '{drain.queue}' was deleted")
                if epoch is not None:
                    self._check(drain, epoch)
                yield
            finally:
                presence.turn.release()

    async def _first(self, claims: QueueRef) -> int:
        """Return the number of the oldest claim."""
        done = trio.Event()
        self._view.claims.find_first(claims, lambda number: done.set())
        await done.wait()
        return self._first_offset(claims)

    async def _acknowledge(self, drain: Drain, epoch: int, claims: QueueRef, number: int) -> None:
        """Remove the claims below `number`, each as it was decided."""
        verdicts, note = self._verdicts.of(self._records(drain), drain.claims_name).verdicts, self._note(drain)
        # otherwise nothing is claimed below it: it was released, or acknowledged before
        if number > self._first_offset(claims):
            note.acked = number
            self._records(drain).store(SESSION_RECORD + drain.claims_name, msgspec.json.encode(note))
        for verdict in leaving(verdicts, note.failed, number):
            await self._settle_below(claims, verdict.first)
            await self._hand_over(drain, epoch, claims, verdict, note.failed)
        await self._settle_below(claims, number)
        has_ended = note.failed is not None and note.failed.end <= number
        if verdicts or has_ended:
            self._check(drain, epoch)  # the note may be that of a later reader: the disk was waited for
        self._verdicts.leave(self._records(drain), drain.claims_name, number)
        if has_ended:
            note.failed = None
            self._records(drain).store(SESSION_RECORD + drain.claims_name, msgspec.json.encode(note))
        self._management.settle()

    async def _hand_over(
        self, drain: Drain, epoch: int, claims: QueueRef, verdict: Verdict, failed: Failed | None
    ) -> None:
        if verdict.kind == GIVE_UP:
            assert failed is not None and failed.limit is not None
            order = ClaimVerdict(LIMIT_CLAIMS, failures=failed.times, limit=failed.limit)
        elif verdict.kind == DEAD_LETTER:
            order = ClaimVerdict(DEAD_LETTER_CLAIMS)
        else:
            order = ClaimVerdict(REQUEUE_CLAIMS, delay_ms=-1 if verdict.delay_ms is None else verdict.delay_ms)
        while (first := self._first_offset(claims)) < verdict.end:
            await self._settle_oldest(claims, self._maybe_home(drain), verdict.end, order)
            self._check(drain, epoch)
            if self._first_offset(claims) == first:
                raise NoQueue(f"queue '{drain.queue}' no longer exists and cannot take the settled messages back")
            await self._give_way()

    async def _settle_below(self, claims: QueueRef, number: int) -> None:
        done = trio.Event()
        self._view.claims.settle_below(claims, number, done.set)
        await done.wait()

    async def _settle_oldest(self, claims: QueueRef, home: QueueRef | None, end: int, verdict: ClaimVerdict) -> None:
        done = trio.Event()
        self._view.claims.settle_oldest(claims, home, end, verdict, lambda count: done.set())
        await done.wait()

    async def _give_back(self, claims: QueueRef, home: QueueRef) -> int:
        found: list[int] = []
        done = trio.Event()

        def told(count: int) -> None:
            found.append(count)
            done.set()

        self._view.claims.give_back(claims, home, told)
        await done.wait()
        return found[0]

    async def _claim(
        self, drain: Drain, epoch: int, queue: QueueRef, max_rows: int, max_bytes: int | None, until: int | None
    ) -> None:
        claims = self.claims_of(drain)
        left, room_bytes = max_rows, 1 << 62 if max_bytes is None else max_bytes
        any_size = True
        ends_at = trio.current_time() + CLAIM_S
        while left > 0 and trio.current_time() < ends_at:
            read = trio.Event()
            claimed = self._view.claims.claim(
                claims, queue, left, room_bytes, any_size=any_size, until=until, read=read.set
            )
            left -= claimed.count
            room_bytes -= claimed.body_bytes
            any_size = any_size and not claimed.count
            if claimed.waits:
                with trio.move_on_at(ends_at):
                    await read.wait()
            elif not claimed.count:
                break
            await self._give_way()
            self._check(drain, epoch)

    async def _give_way(self) -> None:
        """Yield to other tasks, and wait while the disk is congested."""
        while self._view.is_congested():
            await trio.sleep(_CONGESTED_POLL_S)
        await trio.lowlevel.checkpoint()


def _lineage_of(records: RecordsOfVhost) -> Lineage:
    return Lineage(records.maybe_value(_LINEAGE) or b"")


def _note_of(records: RecordsOfVhost, name: str) -> Note:
    stored = records.maybe_value(SESSION_RECORD + name)
    return Note(0) if stored is None else msgspec.json.decode(stored, type=Note)
