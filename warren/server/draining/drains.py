"""Let readers drain queues: they claim ranges of messages, and can read a range again until they acknowledge it.

    open -> epoch      claim(after k): all below k is acknowledged, the next messages are claimed as [k, e)
                       read [k, e), any number of times: claim queues are read like streams
                       claim(after e) ...

A session is a vhost, a queue and the name of a consumer. Its claimed messages are in a queue of its own, a claim queue
(`queues.claims`).

1. Opening a session gives it an epoch, larger than all earlier ones in the vhost. Calls with another epoch than the
   latest are refused: of two readers with one name only the later one can continue.
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
from typing import Final

import msgspec
import trio

from warren.amqp.declarations import QueueDeclaration
from warren.msgstore.files.store import wall_time_ms
from warren.queues.claim_names import claims_name
from warren.queues.claims import DEAD_LETTER as DEAD_LETTER_CLAIMS
from warren.queues.claims import LIMIT as LIMIT_CLAIMS
from warren.queues.claims import PIECE_MESSAGES, ClaimQueue, claims_arguments, ends_of, mark_of
from warren.queues.claims import REQUEUE as REQUEUE_CLAIMS
from warren.queues.claims import Verdict as ClaimVerdict
from warren.queues.queue import Queue
from warren.server.draining.claim_verdicts import (
    ACK,
    DEAD_LETTER,
    GIVE_UP,
    VERDICTS_MAX,
    Failed,
    Verdict,
    decided,
    decoded,
    encoded,
    leaving,
    left,
)
from warren.server.logs import get_logger
from warren.server.management import Management
from warren.server.shares import Quota
from warren.streams.stream import Stream
from warren.vhosts.limits import MAX_QUEUES, is_reached
from warren.vhosts.virtual_host import VirtualHost

CLAIM_S: Final = 20.0
# How long a call waits for the previous one.
TURN_S: Final = 30.0
# Of one queue: every user who may read it can open sessions, and each session is a queue.
DRAINS_QUOTA: Final = Quota(total=100, of_user=50)
# If the task woke this late, the broker could not hear readers either.
LATE_S: Final = 1.0
AT_ONCE: Final = 256  # sessions that are looked at without giving way
_CONGESTED_POLL_S: Final = 0.01
_RESTORE_POLL_S: Final = 0.02

_LAST_EPOCH: Final = "drain epoch"
_SESSION: Final = "drain of "
_VERDICTS: Final = "verdicts of drain "

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

    `failed`: the batch that was tried again last; `acked`: up to where readers have acknowledged claims.
    """

    epoch: int
    owner: str = ""
    opened_ms: int = 0
    lease_s: int | None = None
    user: str = ""
    failed: Failed | None = None
    acked: int = 0


@dataclass(frozen=True, slots=True)
class Drain:
    """A session: the queue and the name of its consumer."""

    vhost: VirtualHost
    queue: str
    consumer: str

    @property
    def claims_name(self) -> str:
        """The name of its claim queue."""
        return claims_name(self.queue, self.consumer)


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of opening a session: the offsets from `first` to `end` are claimed and not acknowledged.

    `acked`: up to where readers have acknowledged claims; from there up to `first` they were released.
    """

    epoch: int
    claims: ClaimQueue
    first: int
    end: int
    acked: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A session as operators see it. `last_seen_ms` None: not since the broker started."""

    claims: ClaimQueue
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
        self._clock = clock
        self._present: dict[tuple[str, str], _Presence] = {}
        self._leased = trio.Event()
        self._next_end_s = inf  # when a lease may be over, at the earliest

    # --- calls ------------------------------------------------------------------------------------------------------

    async def open(self, drain: Drain, owner: str, by: str, lease_s: int | None = None) -> Opened:
        """Open a session, creating it if it is new, or take it over; `owner` is for people, `by` the user.

        `lease_s`: see (6); it replaces the one that the session had.

        Raises:
            DrainError: `TooMany`, `Busy`; `Fenced`, another reader was faster.
        """
        vhost = drain.vhost
        self._check_restored(vhost)
        if drain.claims_name not in vhost.queues:
            self._check_room(drain, by)
        arguments = claims_arguments(drain.queue, drain.consumer)
        ticket = vhost.declare_queue(QueueDeclaration(drain.claims_name, durable=True, arguments=arguments), by=by)
        claims = self._claims(drain)
        with self._under_way(vhost.name, drain.claims_name):
            before = self._note(drain)
            made = Note(0, owner, wall_time_ms(), lease_s, by, before.failed, before.acked)
            epoch = self._next_epoch(drain, made)
            if lease_s is not None and self._clock() + lease_s < self._next_end_s:
                self._leased.set()
            self._management.settle()
            await self._management.commit(ticket)
            async with self._turn(drain, epoch):
                await self._management.messages.deleted()
                first = await self._first(claims)
                self._check(drain, epoch)
                return Opened(epoch, claims, first, claims.synced_end(), self._note(drain).acked)

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
        self._check(drain, epoch)
        async with self._turn(drain, epoch):
            claims = self._claims(drain)
            divergence = None if life_id is None else claims.maybe_divergence(life_id, after)
            if divergence is not None:
                raise Diverged(divergence)
            if after > claims.next_offset():
                raise Ahead(f"the reader is at offset {after}, but claims end at {claims.next_offset()}")
            if after > claims.synced_end():
                await self._management.messages.deleted()
            await self._first(claims)
            await self._acknowledge(drain, epoch, claims, after)
            first = max(after, claims.first_offset())
            queue = drain.vhost.queues.get(drain.queue)
            if claims.next_offset() == first and queue is not None and is_drainable(queue):
                await self._claim(drain, epoch, queue, max_rows, max_bytes, until)
            await self._management.messages.deleted()
            self._check(drain, epoch)
            return first, claims.synced_end()

    def mark(self, drain: Drain, epoch: int) -> int:
        """Return a mark for the current end of the queue: a claim up to it does not take later messages.

        Raises:
            DrainError: `NoDrain`, `Fenced`.
        """
        self._check(drain, epoch)
        with self._under_way(drain.vhost.name, drain.claims_name):
            queue = drain.vhost.queues.get(drain.queue)
            return 0 if queue is None else mark_of(queue)

    async def settle(self, drain: Drain, ranges: list[tuple[int, int]], kind: str, delay_ms: int | None) -> int:
        """Note what happens to claims when they are acknowledged; return how many claims have such a note now.

        `kind`: of ``claim_verdicts``; `delay_ms`: of `REQUEUE`. Messages that are no longer claimed are skipped.

        Raises:
            DrainError: `NoDrain`, `NotClaimed`, `NoDeadLetters`, `NoQueue`, `TooMany`, `Busy`.
        """
        self._check_restored(drain.vhost)
        self._claims(drain)
        async with self._turn(drain, None):
            claims = self._claims(drain)
            first, end = await self._first(claims), claims.synced_end()
            if any(behind > end for _, behind in ranges):
                raise NotClaimed(f"claims of drain '{drain.consumer}' of queue '{drain.queue}' end at {end}")
            queue = drain.vhost.queues.get(drain.queue)
            if kind != ACK and queue is None:
                raise NoQueue(f"queue '{drain.queue}' no longer exists and cannot take messages back")
            if kind == DEAD_LETTER and (queue is None or queue.rules.dead_letter_exchange is None):
                raise NoDeadLetters(
                    f"queue '{drain.queue}' has no dead letter exchange: give it one with x-dead-letter-exchange, "
                    "or by a policy with dead-letter-exchange"
                )
            wanted = [(max(low, first), high) for low, high in ranges if high > first]
            verdicts = decided(left(self._verdicts(drain), first), wanted, kind, delay_ms)
            if len(verdicts) > VERDICTS_MAX:
                raise TooMany(f"a drain may have {VERDICTS_MAX} ranges that are settled singly: claim fewer at a time")
            self._keep_verdicts(drain, verdicts)
            self._management.settle()
            await self._management.messages.deleted()
            return sum(each.end - each.first for each in verdicts)

    async def fail(self, drain: Drain, epoch: int, first: int, end: int) -> Failed:
        """Note that the reader has failed with claims once more: it reads them again. Once in an epoch.

        Raises:
            DrainError: `NoDrain`, `Fenced`, `NotClaimed`, `Busy`.
        """
        self._check(drain, epoch)
        async with self._turn(drain, epoch):
            claims = self._claims(drain)
            if first < await self._first(claims) or end > claims.synced_end():
                raise NotClaimed(
                    f"the claims from {first} to {end} are not there: claimed are those from {claims.first_offset()} "
                    f"to {claims.synced_end()}"
                )
            note = self._note(drain)
            before = note.failed
            if before is not None and before.first == first and before.epoch == epoch:
                return before
            times = before.times + 1 if before is not None and before.first == first else 1
            queue = drain.vhost.queues.get(drain.queue)
            limit = None if queue is None or queue.rules.delivery_limit < 0 else int(queue.rules.delivery_limit)
            note.failed = Failed(first, end, times, limit, epoch)
            drain.vhost.records.store(_SESSION + drain.claims_name, msgspec.json.encode(note))
            self._management.settle()
            await self._management.messages.deleted()
            return note.failed

    async def release(self, drain: Drain, epoch: int | None) -> int:
        """Move the claimed messages back to the queue, and return their number.

        They go behind the waiting messages, flagged as redelivered. Without `epoch` the reader that has the session
        open is fenced.

        Raises:
            DrainError: `NoDrain`, `Fenced`, `NoQueue`, `Busy`.
        """
        by_reader = epoch is not None
        if epoch is None:
            self._check_restored(drain.vhost)
            self._claims(drain)
            epoch = self._next_epoch(drain, self._note(drain))
        self._check(drain, epoch)
        async with self._turn(drain, epoch, by_reader=by_reader):
            claims = self._claims(drain)
            queue = drain.vhost.queues.get(drain.queue)
            if queue is None or not is_drainable(queue):
                raise NoQueue(f"queue '{drain.queue}' no longer exists and cannot take messages back")
            await self._management.messages.deleted()
            first = await self._first(claims)
            count = 0
            while first < claims.synced_end() and not queue.deleted:
                count += await self._give_back(claims, queue)
                self._check(drain, epoch)
                if claims.first_offset() == first:
                    break
                first = claims.first_offset()
                await self._give_way()
            self._keep_verdicts(drain, left(self._verdicts(drain), first))
            self._management.settle()
            await self._management.messages.deleted()
            return count

    async def delete(self, drain: Drain, by: str, *, discard: bool) -> None:
        """Forget a session; with `discard`, its claims are lost as well.

        Raises:
            DrainError: `NoDrain`, `StillClaimed`, `Busy`.
        """
        self._check_restored(drain.vhost)
        self._claims(drain)
        async with self._turn(drain, None, by_reader=False):
            claims = self._claims(drain)
            if claims.ready_count and not discard:
                raise StillClaimed(f"{int(claims.ready_count)} messages are claimed: release or discard them first")
            ticket = self._management.broker.delete_queue(drain.vhost, claims, by)
            drain.vhost.records.forget(_SESSION + drain.claims_name)
            self._keep_verdicts(drain, [])
            self._management.settle()
            await self._management.commit(ticket)
        self._present.pop((drain.vhost.name, drain.claims_name), None)

    def are_counted(self, claims: ClaimQueue) -> bool:
        """Tell whether these messages carry the number of failed deliveries: their queue counts that."""
        vhost = self._management.broker.vhosts.get(claims.vhost_name)
        queue = None if vhost is None else vhost.queues.get(claims.source_name)
        return queue is not None and queue.counts_deliveries()

    @contextmanager
    def reading(self, claims: ClaimQueue) -> Iterator[None]:
        """Note that claims are being read: the reader is busy with them."""
        with self._under_way(claims.vhost_name, claims.name):
            yield

    # --- leases -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Return the claims of readers that were silent for as long as their lease, until cancelled."""
        while self._management.broker.is_restoring():
            await trio.sleep(_RESTORE_POLL_S)
        self.begin_leases()
        while True:
            self._leased = trio.Event()
            self._next_end_s = inf  # a session opened meanwhile has to wake us: `end_leases` may miss it
            self._next_end_s = next_s = max(await self.end_leases(), self._clock())
            with trio.move_on_at(next_s):
                await self._leased.wait()
            if self._clock() > next_s + LATE_S:
                self.begin_leases()

    def begin_leases(self) -> None:
        """Begin the lease of every session now."""
        for vhost in self._management.broker.vhosts.values():
            for claims in vhost.queues.values():
                if isinstance(claims, ClaimQueue) and _note_of(vhost, claims.name).lease_s is not None:
                    self._presence(vhost.name, claims.name).sign_s = self._clock()

    async def end_leases(self) -> float:
        """Release the claims of sessions whose lease is over; return when the next one may be, at the earliest."""
        next_s = inf
        for at, ((vhost_name, name), presence) in enumerate(list(self._present.items()), 1):
            if at % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            vhost = self._management.broker.vhosts.get(vhost_name)
            claims = None if vhost is None else vhost.queues.get(name)
            if vhost is None or not isinstance(claims, ClaimQueue):
                if not presence.calls_under_way:
                    self._present.pop((vhost_name, name), None)  # it ended with its vhost
                continue
            lease_s = _note_of(vhost, name).lease_s
            if lease_s is None:
                continue
            if not presence.calls_under_way and self._clock() >= presence.sign_s + lease_s:
                await self._end_lease(Drain(vhost, claims.source_name, claims.consumer_name), claims)
                presence.sign_s = self._clock()  # if claims are left, try again after the same time
            next_s = min(next_s, (self._clock() if presence.calls_under_way else presence.sign_s) + lease_s)
        return next_s

    async def _end_lease(self, drain: Drain, claims: ClaimQueue) -> None:
        queue = drain.vhost.queues.get(drain.queue)
        if not claims.ready_count or queue is None or not is_drainable(queue):
            return  # nothing to return, or no queue to return it to: that does not shut the reader out
        place = {"vhost": drain.vhost.name, "queue": drain.queue, "name": drain.consumer}
        try:
            count = await self.release(drain, None)
        except DrainError as error:
            log.warning(
                "the lease of a drain has expired, but its claims were not released", **place, reason=str(error)
            )
        else:
            log.warning("the lease of a drain has expired: its claims are released", **place, messages=count)

    # --- what there is ----------------------------------------------------------------------------------------------

    def find(self, drain: Drain) -> Listed:
        """Return a session.

        Raises:
            DrainError: `NoDrain`.
        """
        return self.listed(drain.vhost, self._claims(drain))

    async def look(self, drain: Drain) -> Listed:
        """Return a session, including its oldest claim: after a restart that is looked for on disk.

        Raises:
            DrainError: `NoDrain`.
        """
        await self._first(self._claims(drain))
        return self.find(drain)

    def listed(self, vhost: VirtualHost, claims: ClaimQueue) -> Listed:
        """Return the session whose claims these are."""
        presence = self._present.get((vhost.name, claims.name))
        return Listed(claims, _note_of(vhost, claims.name), None if presence is None else presence.last_seen_ms)

    # --- parts of calls ---------------------------------------------------------------------------------------------

    def _claims(self, drain: Drain) -> ClaimQueue:
        claims = drain.vhost.queues.get(drain.claims_name)
        if not isinstance(claims, ClaimQueue):
            raise NoDrain(f"nobody has opened drain '{drain.consumer}' of queue '{drain.queue}'")
        return claims

    def _note(self, drain: Drain) -> Note:
        return _note_of(drain.vhost, drain.claims_name)

    def _next_epoch(self, drain: Drain, note: Note) -> int:
        """Give the session an epoch that no session of the vhost has had, and store `note` with it."""
        records = drain.vhost.records
        last = records.maybe_value(_LAST_EPOCH)
        epoch = 1 if last is None else int(last) + 1
        records.store(_LAST_EPOCH, b"%d" % epoch)
        note.epoch = epoch
        records.store(_SESSION + drain.claims_name, msgspec.json.encode(note))
        return epoch

    def _check_restored(self, vhost: VirtualHost) -> None:
        if vhost.records.is_restoring:
            raise Busy("the broker is starting")
        if self._management.stopping:
            raise Busy("the broker is stopping")

    def _check_room(self, drain: Drain, user: str) -> None:
        vhost = drain.vhost
        users = [_note_of(vhost, name).user for name in vhost.claims_of.get(drain.queue, ())]
        what = f"drains of queue '{drain.queue}'"
        access = self._management.broker.access
        refusal = DRAINS_QUOTA.maybe_refusal(what, access, user, users.count(user), len(users))
        if refusal:
            raise TooMany(refusal)
        count = len(vhost.queues)
        if count >= self._management.broker.limits.queues_per_vhost_max or is_reached(vhost.limits, MAX_QUEUES, count):
            raise TooMany(f"the queue limit of vhost '{vhost.name}' is reached")

    def _check(self, drain: Drain, epoch: int) -> None:
        self._check_restored(drain.vhost)
        if self._claims(drain).deleted or drain.vhost is not self._management.broker.vhosts.get(drain.vhost.name):
            raise NoDrain(f"drain '{drain.consumer}' of queue '{drain.queue}' was deleted")
        latest = self._note(drain).epoch
        if epoch != latest:
            raise Fenced(f"drain '{drain.consumer}' of queue '{drain.queue}' has epoch {latest} now, not {epoch}")

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

    @asynccontextmanager
    async def _turn(self, drain: Drain, epoch: int | None, *, by_reader: bool = True) -> AsyncIterator[None]:
        """Hold the session exclusively."""
        with self._under_way(drain.vhost.name, drain.claims_name, by_reader=by_reader) as presence:
            with trio.move_on_after(TURN_S) as waiting:
                await presence.turn.acquire()
            if waiting.cancelled_caught:
                raise Busy("another request for this drain is in progress")
            try:
                if epoch is not None:
                    self._check(drain, epoch)
                yield
            finally:
                presence.turn.release()

    async def _first(self, claims: ClaimQueue) -> int:
        """Return the number of the oldest claim."""
        done = trio.Event()
        claims.find_first(lambda number: done.set())
        self._management.settle()
        await done.wait()
        return claims.first_offset()

    async def _acknowledge(self, drain: Drain, epoch: int, claims: ClaimQueue, number: int) -> None:
        """Remove the claims below `number`, each as it was decided."""
        verdicts, note = self._verdicts(drain), self._note(drain)
        # otherwise nothing is claimed below it: it was released, or acknowledged before
        if number > claims.first_offset():
            note.acked = number
            drain.vhost.records.store(_SESSION + drain.claims_name, msgspec.json.encode(note))
        for verdict in leaving(verdicts, note.failed, number):
            await self._settle_below(claims, verdict.first)
            await self._hand_over(drain, epoch, claims, verdict, note.failed)
        await self._settle_below(claims, number)
        if verdicts:
            self._keep_verdicts(drain, left(verdicts, number))
        if note.failed is not None and note.failed.end <= number:
            note.failed = None
            drain.vhost.records.store(_SESSION + drain.claims_name, msgspec.json.encode(note))
        self._management.settle()

    async def _hand_over(
        self, drain: Drain, epoch: int, claims: ClaimQueue, verdict: Verdict, failed: Failed | None
    ) -> None:
        if verdict.kind == GIVE_UP:
            assert failed is not None and failed.limit is not None
            order = ClaimVerdict(LIMIT_CLAIMS, failures=failed.times, limit=failed.limit)
        elif verdict.kind == DEAD_LETTER:
            order = ClaimVerdict(DEAD_LETTER_CLAIMS)
        else:
            order = ClaimVerdict(REQUEUE_CLAIMS, delay_ms=-1 if verdict.delay_ms is None else verdict.delay_ms)
        while claims.first_offset() < verdict.end:
            first = claims.first_offset()
            queue = drain.vhost.queues.get(drain.queue)
            home = queue if queue is not None and is_drainable(queue) else None
            await self._settle_oldest(claims, home, verdict.end, order)
            self._check(drain, epoch)
            if claims.first_offset() == first:
                raise NoQueue(f"queue '{drain.queue}' no longer exists and cannot take back what was settled")
            await self._give_way()

    def _verdicts(self, drain: Drain) -> list[Verdict]:
        return decoded(drain.vhost.records.maybe_value(_VERDICTS + drain.claims_name))

    def _keep_verdicts(self, drain: Drain, verdicts: list[Verdict]) -> None:
        records, name = drain.vhost.records, _VERDICTS + drain.claims_name
        if verdicts:
            records.store(name, encoded(verdicts))
        else:
            records.forget(name)

    async def _settle_below(self, claims: ClaimQueue, number: int) -> None:
        done = trio.Event()
        claims.settle_below(number, done.set)
        self._management.settle()
        await done.wait()

    async def _settle_oldest(self, claims: ClaimQueue, queue: Queue | None, end: int, verdict: ClaimVerdict) -> None:
        done = trio.Event()
        claims.settle_oldest(queue, end, verdict, lambda count: done.set())
        self._management.settle()
        await done.wait()

    async def _give_back(self, claims: ClaimQueue, queue: Queue) -> int:
        found: list[int] = []
        done = trio.Event()

        def told(count: int) -> None:
            found.append(count)
            done.set()

        claims.give_back(queue, told)
        self._management.settle()
        await done.wait()
        return found[0]

    async def _claim(
        self, drain: Drain, epoch: int, queue: Queue, max_rows: int, max_bytes: int | None, until: int | None
    ) -> None:
        claims = self._claims(drain)
        left, room_bytes = max_rows, 1 << 62 if max_bytes is None else max_bytes
        any_size = True
        ends_at = trio.current_time() + CLAIM_S
        while left > 0 and trio.current_time() < ends_at:
            ends = [] if until is None else ends_of(queue, until)
            claimed = claims.claim(queue, min(left, PIECE_MESSAGES), room_bytes, any_size, ends)
            left -= int(claimed.count)
            room_bytes -= int(claimed.body_bytes)
            any_size = any_size and not claimed.count
            read = trio.Event()
            if claimed.waits:
                queue.call_when_ready(read.set)
            self._management.settle()
            if claimed.waits:
                with trio.move_on_at(ends_at):
                    await read.wait()
            elif not claimed.count:
                break
            await self._give_way()
            self._check(drain, epoch)

    async def _give_way(self) -> None:
        """Let other tasks have their turn, and wait while the disk is behind."""
        while self._management.broker.log.is_congested():
            await trio.sleep(_CONGESTED_POLL_S)
        await trio.lowlevel.checkpoint()


def is_drainable(queue: Queue) -> bool:
    """Tell whether the messages of `queue` can be claimed: its kind allows it, and it is not exclusive."""
    return queue.owner is None and not isinstance(queue, Stream | ClaimQueue)


def _note_of(vhost: VirtualHost, name: str) -> Note:
    stored = vhost.records.maybe_value(_SESSION + name)
    return Note(0) if stored is None else msgspec.json.decode(stored, type=Note)
