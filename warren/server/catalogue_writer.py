"""The task that makes metadata changes durable: takes what gathered and commits it in a worker thread.

1. One commit at a time; while it runs the next batch gathers. A batch is everything that had been appended.
2. `committed(ticket)` is called in the trio thread, after the commit of everything up to `ticket` and in
   order.
3. A failed commit is repeated, the same batch, until it succeeds: nobody is told "declared" before. The state
   changes of the store, not the attempts, are logged. A fault of ours ends `run`, which begins with that batch when it
   is called again.
4. A commit that has begun is finished and reported even when the task is cancelled.
5. A batch that deletes a queue, an exchange or a vhost is committed after `before_delete` has returned: a queue is
   deleted in the message store first, its row last. The other way round a crash in between would leave messages of a
   queue that nobody knows; this way it leaves an empty queue, whose deletion nobody had been told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import trio

from warren.server.errors import CatalogueError
from warren.server.logs import get_logger
from warren.server.threads import CATALOGUE, Purpose, in_thread
from warren.vhosts.metadata import ExchangeDelete, MetadataChange, MetadataJournal, QueueDelete, VhostDelete

_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0

_Result = TypeVar("_Result")

log = get_logger("catalogue")


class Store(Protocol):
    """What the writer needs of a catalogue."""

    def commit(self, changes: Sequence[MetadataChange], /) -> None:
        """Make `changes` durable, all or none. Raises CatalogueError."""


class InThread(Protocol):
    """Makes a call that blocks, and returns what it returns; as `threads.in_thread`."""

    async def __call__(self, purpose: Purpose, work: Callable[[], _Result], *, abandon: bool = False) -> _Result: ...


async def _nothing_before_delete() -> None:
    """Return at once: there is no message store to wait for."""


class CatalogueWriter:
    """Commit the changes of `journal` to `store` and report each batch to `committed`.

    `before_delete` returns when the message store has durably deleted every queue and exchange deleted so far;
    `in_thread` makes the call of `store`, which blocks.
    `healthy` is False while the store refuses; `reason` then says why.
    """

    def __init__(
        self,
        store: Store,
        journal: MetadataJournal,
        committed: Callable[[int], None],
        before_delete: Callable[[], Awaitable[None]] = _nothing_before_delete,
        in_thread: InThread = in_thread,
    ) -> None:
        self.healthy = True
        self.reason = ""
        self._store = store
        self._journal = journal
        self._committed = committed
        self._before_delete = before_delete
        self._in_thread = in_thread
        self._batch: tuple[list[MetadataChange], int] | None = None  # that is being committed
        self._committed_ticket = journal.committed_ticket
        self._wake_up: trio.Event | None = None
        self._progress = trio.Event()
        journal.on_append = self._on_append

    async def run(self) -> None:
        """Commit for ever. Exceptions other than CatalogueError are our own faults and pass through."""
        while True:
            if self._batch is None:
                taken = self._journal.take()
                if not taken[0]:
                    self._wake_up = trio.Event()
                    await self._wake_up.wait()
                    continue
                self._batch = taken
            changes, ticket = self._batch
            if any(isinstance(change, QueueDelete | ExchangeDelete | VhostDelete) for change in changes):
                await self._before_delete()
            await self._commit(changes)
            self._batch = None
            self._committed_ticket = ticket
            self._committed(ticket)
            self._progress.set()
            self._progress = trio.Event()

    async def drain(self, deadline: float) -> bool:
        """Wait until all that was appended is committed, or `deadline` (trio time). Return whether it is."""
        with trio.move_on_at(deadline):
            while self._committed_ticket < self._journal.last_ticket:
                await self._progress.wait()
        return self._committed_ticket >= self._journal.last_ticket

    def _on_append(self) -> None:
        if self._wake_up is not None:
            self._wake_up.set()
            self._wake_up = None

    async def _commit(self, changes: list[MetadataChange]) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                await self._in_thread(CATALOGUE, partial(self._store.commit, changes))
            except CatalogueError as error:
                if self.healthy:
                    log.error("metadata store unavailable; declarations wait", reason=str(error))
                self.healthy, self.reason = False, str(error)
            else:
                if not self.healthy:
                    log.info("metadata store available again", changes=len(changes))
                self.healthy, self.reason = True, ""
                return
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MAX_S)
