"""Apply to SQL, in order and in a worker thread, the changes that became durable in the message log.

    durable in the log -> read -> one transaction, with the number up to which it goes -> settled in the log

1. SQL is never ahead of the log, and no client waits for it: a declaration is answered when it is in the log. Changes
   that SQL does not have yet stay in the log, not in memory. They are read from there when SQL can be reached again.
2. The number goes with the changes in one transaction. So SQL has each change once, whatever is lost after that: a
   start begins at this number (`catch_up`), before the catalogue is loaded.
3. A commit that fails is repeated until it succeeds. The log reports changes of the store's state, not the attempts. A
   fault of ours ends `run`, which begins with the same changes when it is called again.
4. A commit that has begun is waited for even when the task is cancelled. Stopping the process may interrupt it, and
   waits until its deadline for the last position (7).
5. An unreadable change is lost, and the log says so. Later changes are applied, except those that refer to something
   missing: such rows would keep the broker from starting.
6. SQL stands still while it is copied (`standing_still`). Changes wait in the log meanwhile.
7. The position up to which the log is synced goes with the number. It is also written now and then when nothing changes
   (`keep_position`). It reveals an older message store that was put in place of the current one
   (``server/histories.py``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from warren.server.lag import Lag
from warren.server.logs import get_logger
from warren.server.losses import Losses
from warren.server.start_errors import CatalogueError, StartError
from warren.server.threads import CATALOGUE, Purpose, in_thread
from warren.vhosts.metadata import (
    BindingPut,
    ExchangeDelete,
    ExchangePut,
    MetadataChange,
    QueueDelete,
    QueuePut,
    UserDelete,
    UserPut,
    VhostDelete,
    VhostPut,
)
from warren.vhosts.metadata_journal import MetadataJournal
from warren.vhosts.metadata_lane import decode_change
from warren.vhosts.virtual_host import standard_exchanges

# Gather changes for this long into one transaction: each transaction costs two syncs, which the log waits for.
GATHER_S: Final = 0.1
# The approximate number of changes for each transaction at a start.
AT_ONCE: Final = 10_000
# How soon after a start SQL gets the position up to which the log is synced, and how often after that.
POSITION_FIRST_S: Final = 1.0
POSITION_EVERY_S: Final = 60.0
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0

_Result = TypeVar("_Result")


def _nobody(_first: int, _bodies: Sequence[bytes | None]) -> None:
    """Do nothing."""


log = get_logger("catalogue")


class Store(Protocol):
    """What the writer needs of a catalogue."""

    def applied(self, store_id: bytes, /) -> int:
        """Return the number below which all changes of that log are here. Raises CatalogueError."""

    def commit(
        self, changes: Sequence[MetadataChange], store_id: bytes, applied: int, lsn: int, life_id: bytes, /
    ) -> None:
        """Make `changes` durable, all or none, with the number, the LSN and the life. Raises CatalogueError."""

    def load(self) -> Iterator[MetadataChange]:
        """Yield the contents. Raises CatalogueError."""


class InThread(Protocol):
    """Makes a call that blocks, and returns what it returns; as `threads.in_thread`."""

    async def __call__(self, purpose: Purpose, work: Callable[[], _Result], *, abandon: bool = False) -> _Result: ...


class CatalogueWriter:
    """Applies the changes of `journal` to `store`.

    `settle` lets the engine finish its turn, `in_thread` makes the blocking calls of `store`.
    `on_applied` gets records that SQL has, before the log forgets them: the number of the first one, and the records.
    `healthy` is False while the store refuses; `reason` then says why. `losses`: gets the changes that are lost.
    """

    def __init__(
        self,
        store: Store,
        journal: MetadataJournal,
        settle: Callable[[], None],
        in_thread: InThread = in_thread,
        on_applied: Callable[[int, Sequence[bytes | None]], None] = _nobody,
        clock_s: Callable[[], float] = time.monotonic,
        losses: Losses | None = None,
    ) -> None:
        self.healthy = True
        self.reason = ""
        self._on_applied = on_applied
        self._store = store
        self._journal = journal
        self._lane = journal.lane
        self._settle = settle
        self._in_thread = in_thread
        self._sieve = _Sieve(store, Losses() if losses is None else losses)
        self._hurried = trio.Event()
        self._progress = trio.Event()
        self._applying = trio.Lock()
        self._clock_s = clock_s
        self._lag = Lag()
        self._told_lsn = 0  # up to where the log is synced, as SQL knows it

    # --- at a start -------------------------------------------------------------------------------------------------

    def catch_up(self, carry_out: Callable[[], None]) -> None:
        """Apply what recovery found in the log and SQL lacks; `carry_out` does the reads of the log at once.

        Raises:
            StartError: SQL cannot be read or written, or a newer Warren has written the changes.
        """
        lane = self._lane
        lane.begin(self._store.applied(self._journal.log.store_id))
        count = 0
        while lane.is_behind():
            bodies: list[bytes | None] = []
            first = int(lane.applied)
            while lane.is_behind() and len(bodies) < AT_ONCE:
                (piece,) = self._begin_read(carry_out, _nothing)
                bodies += piece.bodies
                lane.applied_to(piece.end)  # the log writes nothing before this is over
            try:
                count += self._apply(_Piece(first, bodies))
            except ValueError as error:
                raise StartError(f"message store: {error}") from None
        self._sieve.tell()
        if count:
            log.info("changes of the metadata applied that were in the message log only", changes=count)

    # --- from then on -----------------------------------------------------------------------------------------------

    def note_durable(self) -> None:
        """Note that more changes may be durable."""
        self._lag.came(int(self._lane.durable), self._clock_s())
        self._progress.set()
        self._progress = trio.Event()

    async def run(self) -> None:
        """Apply for ever. Exceptions other than CatalogueError are our own faults and pass through."""
        while True:
            while not self._lane.is_behind():
                await self._progress.wait()
            async with self._applying:
                known = self._lane.durable
                piece = await self._read()
                await self._commit(partial(self._apply, piece))
                self._sieve.tell()
                self._on_applied(piece.first, piece.bodies)
                self._lane.applied_to(piece.end)
                self._lag.done(piece.end)
                self._settle()
            self.note_durable()
            if piece.end >= known:
                with trio.move_on_after(GATHER_S):
                    await self._hurried.wait()

    def waiting(self) -> int:
        """Return the number of durable changes that SQL lacks."""
        return int(self._lane.durable - self._lane.applied)

    def behind_s(self) -> float:
        """Return for how long the oldest of them has been durable; 0 if SQL has all."""
        return self._lag.behind_s(self._clock_s()) if self._lane.is_behind() else 0.0

    @asynccontextmanager
    async def standing_still(self) -> AsyncIterator[None]:
        """Stop applying in the block: the contents of SQL, and the log's record of them, stay the same."""
        async with self._applying:
            yield

    async def copy(self) -> tuple[int, list[MetadataChange]]:
        """Return the contents of SQL, and the number below which they have all changes; apply nothing meanwhile.

        Raises:
            CatalogueError: it cannot be read.
        """

        def read() -> tuple[int, list[MetadataChange]]:
            return self._store.applied(self._journal.log.store_id), list(self._store.load())

        return await self._in_thread(CATALOGUE, read)

    async def drain(self, deadline: float) -> bool:
        """Wait until SQL has all that was appended, or cannot be reached, or `deadline` (trio time).

        Return whether SQL has all changes. The others stay in the log.
        """
        self._hurried.set()
        with trio.move_on_at(deadline):
            while self.healthy and not self._has_all():
                await self._progress.wait()
            if self._has_all():
                await self._tell_position(abandon=True)
        return self._has_all()

    async def keep_position(self) -> None:
        """Record in SQL up to where the log is synced, though nothing changes. For ever."""
        pause_s = POSITION_FIRST_S
        while True:
            await trio.sleep(pause_s)
            await self._tell_position()
            pause_s = POSITION_EVERY_S

    async def _tell_position(self, *, abandon: bool = False) -> None:
        async with self._applying:
            lsn = self._position()
            if lsn <= self._told_lsn or not self.healthy:
                return
            note = partial(self._commit_to, [], int(self._lane.applied))
            try:
                await self._in_thread(CATALOGUE, note, abandon=abandon)
            except CatalogueError as error:
                log.warning("the log position cannot be stored in the metadata store", reason=str(error))

    def _position(self) -> int:
        """Return up to where the log is known to be synced."""
        message_log = self._journal.log
        is_written = message_log.durable_lsn > message_log.void_below_lsn
        return int(message_log.durable_lsn if is_written else message_log.recovered_lsn)

    def _commit_to(self, changes: Sequence[MetadataChange], applied: int) -> None:
        lsn = self._position()
        message_log = self._journal.log
        self._store.commit(changes, message_log.store_id, applied, lsn, message_log.epochs.life_at(lsn))
        self._told_lsn = lsn

    def _has_all(self) -> bool:
        journal = self._journal
        return journal.committed_ticket == journal.last_ticket and not self._lane.is_behind()

    async def _read(self) -> _Piece:
        is_read = trio.Event()
        pieces = self._begin_read(self._settle, is_read.set)
        await is_read.wait()
        return pieces[0]

    def _begin_read(self, carry_out: Callable[[], None], then: Callable[[], None]) -> list[_Piece]:
        """Request the next piece, which `carry_out` reads; it is in the list when `then` is called."""
        pieces: list[_Piece] = []

        def take(first: int, bodies: list[bytes | None]) -> None:
            pieces.append(_Piece(first, bodies))
            then()

        self._lane.read(take)
        carry_out()
        return pieces

    def _apply(self, piece: _Piece) -> int:
        """Apply the changes that can be applied, in a thread from `run`, and return their number."""
        if piece.changes is None:
            piece.changes = self._sieve.sift(piece.first, piece.bodies)
        self._commit_to(piece.changes, piece.end)
        return len(piece.changes)

    async def _commit(self, work: Callable[[], int]) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                count = await self._in_thread(CATALOGUE, work)
            except CatalogueError as error:
                if self.healthy:
                    log.error("metadata store unavailable; changes wait in the message log", reason=str(error))
                self.healthy, self.reason = False, str(error)
                self.note_durable()
            else:
                if not self.healthy:
                    log.info("metadata store available again", changes=count)
                self.healthy, self.reason = True, ""
                return
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MAX_S)


def _nothing() -> None:
    """Do nothing."""


class _Piece:
    """Consecutive records of the log, and their changes to apply once those are known."""

    def __init__(self, first: int, bodies: list[bytes | None]) -> None:
        self.first = first
        self.bodies = bodies
        self.end = first + len(bodies)
        self.changes: list[MetadataChange] | None = None


class _Sieve:
    """Pass changes that can be applied although others were lost (5), and remember what to report about the rest."""

    def __init__(self, store: Store, losses: Losses) -> None:
        self._store = store
        self._losses = losses
        self._referred: _Referred | None = None  # None: nothing was ever lost
        self._lost: list[int] = []
        self._left_out: list[MetadataChange] = []

    def sift(self, first: int, bodies: list[bytes | None]) -> list[MetadataChange]:
        """Return the changes to apply, of records whose numbers count from `first`.

        Raises:
            ValueError: a newer Warren has written one.
            CatalogueError: the store cannot be read; call again.
        """
        changes: list[MetadataChange] = []
        if None in bodies and self._referred is None:
            self._referred = _Referred(self._store.load())
        for number, body in enumerate(bodies, start=first):
            if body is None:
                self._lost.append(number)
                continue
            change = decode_change(body)
            if self._referred is None or self._referred.admits(change):
                changes.append(change)
            else:
                self._left_out.append(change)
        return changes

    def tell(self) -> None:
        """Report lost changes, if there are any."""
        lost, self._lost = self._lost, []
        left_out, self._left_out = self._left_out, []
        if lost:
            self._losses.tell(
                log,
                "error",
                "changes of the metadata are lost: damaged in the message log, or the metadata store is an older one",
                changes=len(lost),
                first=lost[0],
                last=lost[-1],
            )
        for change in left_out:
            log.error("a change of the metadata refers to what is lost, and is left out", change=repr(change))


class _Referred:
    """The existing objects that changes may refer to; at first those in `stored`."""

    def __init__(self, stored: Iterator[MetadataChange]) -> None:
        self._vhosts: set[str] = set()
        self._users: set[str] = set()
        self._ends: set[tuple[str, str, str]] = set()  # vhost, queue or exchange, name
        for change in stored:
            self.admits(change)

    def admits(self, change: MetadataChange) -> bool:
        """Note what `change` makes or deletes; False when it needs a missing object."""
        if not self._has_what_it_needs(change):
            return False
        match change:
            case VhostPut():
                self._vhosts.add(change.name)
                self._ends |= {(change.name, "exchange", each.name) for each in standard_exchanges(change.name)}
            case VhostDelete():
                self._vhosts.discard(change.name)
                self._ends = {end for end in self._ends if end[0] != change.name}
            case UserPut():
                self._users.add(change.name)
            case UserDelete():
                self._users.discard(change.name)
            case QueuePut() | ExchangePut():
                self._ends.add((change.vhost, _end_type(change), change.name))
            case QueueDelete() | ExchangeDelete():
                self._ends.discard((change.vhost, _end_type(change), change.name))
        return True

    def _has_what_it_needs(self, change: MetadataChange) -> bool:
        if not type(change).__name__.endswith("Put"):
            return True  # deleting a missing object does no harm
        if isinstance(change, BindingPut):
            ends = {(change.vhost, "exchange", change.source)}
            return (ends | {(change.vhost, change.destination_type, change.destination)}) <= self._ends
        vhost, user = getattr(change, "vhost", None), getattr(change, "user", None)
        return (vhost is None or vhost in self._vhosts) and (user is None or user in self._users)


def _end_type(change: QueuePut | QueueDelete | ExchangePut | ExchangeDelete) -> str:
    return "queue" if isinstance(change, QueuePut | QueueDelete) else "exchange"
