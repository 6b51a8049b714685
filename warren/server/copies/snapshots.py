"""Make snapshots: the messages of a queue at one time, copied into a file that can be read any number of times.

    queue --look--> chunks of columns --thread--> snapshots/<id>         rows 0, 1, ... as they would leave the queue
                                                       `--> readers, chunk by chunk, while it is being made

1. Nothing happens to the queue: counts, order and `redelivered` stay as they are. Consumers and publishers continue.
2. A snapshot has the messages that were ready when it began, except those that a consumer takes before the copy reaches
   them. Later messages are not in it. With `unacked` the messages that clients have, or had then, come first, flagged
   as redelivered.
3. A message that returns to its queue meanwhile may or may not be in the snapshot, but never twice.
4. A file lives until its time is over, at most until the broker stops. A start removes the files of a killed process.
   Ids are never reused: with an id from before a restart, a client cannot read by mistake a snapshot that somebody else
   has made since.
   A snapshot ends with its vhost, even if the vhost is declared again.
5. Memory: about two chunks for each snapshot that is being made (at most `MAKING_QUOTA`), and what a look reads.
6. No file is made while the disk is short (`store.disk_free_min_bytes`). A snapshot that would make it short is
   cancelled.
7. A row can be read as soon as its chunk is written, and the first look makes a chunk: the time to the first row does
   not depend on the number of messages. Readers do not change the copy: it is made at its own pace, so that consumers
   take as few messages before it as possible. Row n is the same message for every reader.
8. A snapshot has at most `most` rows: the messages that were ready or unacked when it began. A range may end there
   before the number of rows is known. The rows that it then lacks were never in it.
9. A snapshot that fails while it is being made cannot be read any longer, not even the rows that were written.

The time of a row is when the message was published, or when the snapshot was begun if that time is unknown.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import Final, NamedTuple

import trio

from warren.engine_view.browsing import LANE_SHIFT, NUMBER_MASK, Cursor, Message, Outstanding, Seen
from warren.engine_view.records import RecordsOfVhost
from warren.engine_view.refs import QueueRef
from warren.msgstore.files.store import wall_time_ms
from warren.msgstore.log.columns import Columns, ColumnsWriter
from warren.server.logs import get_logger
from warren.server.management import Management
from warren.server.shares import Quota
from warren.server.threads import SNAPSHOTS, in_thread

DIRECTORY: Final = "snapshots"
MAKING_QUOTA: Final = Quota(total=4, of_user=2)
KEPT_QUOTA: Final = Quota(total=100, of_user=50)
CHECK_S: Final = 10.0  # how long the file of a snapshot may outlive its vhost
LOOK_MESSAGES: Final = 512
# References to unacked messages are copied in one go: 20 ms for so many.
UNACKED_MAX: Final = 1_000_000
UNACKED_AT_ONCE: Final = 1024  # are added
# Places are kept in sets of so many neighbours: a set that grows to a million copies itself in 50 ms.
BLOCK_SHIFT: Final = 13

Run = list[tuple[int, Message]]  # places and messages that clients had

MAKING: Final = "making"
READY: Final = "ready"
FAILED: Final = "failed"

log = get_logger("snapshots")


class SnapshotError(Exception):
    """A snapshot cannot be made; the text is for the client that asked."""


class DiskLow(SnapshotError):
    """There is no space."""


class Busy(SnapshotError):
    """Other snapshots are being made."""


class TooMany(SnapshotError):
    """There are too many snapshots, or this one would be too large."""


class QueueGone(SnapshotError):
    """The queue was deleted meanwhile."""


class Deleted(SnapshotError):
    """The snapshot was deleted, or its time was over, before it was complete."""


class Broken(SnapshotError):
    """A defect of ours, or a lack of memory, has ended it."""


class SnapshotChunk(NamedTuple):
    """The rows from `first` up to `end`: place and bytes in the file, and bytes when uncompressed."""

    first: int
    end: int
    position: int
    size: int
    content_bytes: int


@dataclass(slots=True)
class Snapshot:
    """One snapshot. `queue_id` identifies the queue for the caller that begins it; `records`: of its vhost."""

    id: str
    vhost: str
    queue: str
    queue_id: str
    user: str
    records: RecordsOfVhost
    path: Path
    begun_ms: int
    ends_at_s: float  # on trio's clock
    expires_ms: int
    most: int  # rows that it can have
    message_bytes: int  # of an average body, when it began
    state: str = MAKING
    error: SnapshotError | None = None
    count: int = 0
    bytes: int = 0
    chunks: list[SnapshotChunk] = field(default_factory=list)
    over: trio.Event = field(default_factory=trio.Event)  # it is ready, or has failed
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _progress: trio.Event = field(default_factory=trio.Event)

    @property
    def ready(self) -> bool:
        """Whether it is complete."""
        return self.state == READY

    @property
    def written(self) -> int:
        """The number of rows that can be read now."""
        return self.chunks[-1].end if self.chunks else 0

    def maybe_chunk(self, row: int) -> SnapshotChunk | None:
        """Return the chunk with this row; None when it is not written."""
        if row >= self.written:
            return None
        return self.chunks[bisect_right(self.chunks, row, key=lambda chunk: chunk.end)]

    async def progress(self) -> None:
        """Wait until a chunk is written, or until the snapshot is complete or has failed."""
        await self._progress.wait()

    def add_chunk(self, chunk: SnapshotChunk) -> None:
        """Note a chunk that is written, and wake those that wait for progress."""
        self.chunks.append(chunk)
        self._progress.set()
        self._progress = trio.Event()

    def end_as(self, state: str) -> None:
        """Set the state to READY or FAILED, and wake all."""
        self.state = state
        self._progress.set()
        self.over.set()


class Snapshots:
    """The snapshots of one broker, in files of a directory of their own."""

    def __init__(self, management: Management, data_dir: Path) -> None:
        self._management = management
        self._view = management.view
        self._directory = data_dir / DIRECTORY
        self._snapshots: dict[str, Snapshot] = {}
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._changed = trio.Event()

    # --- what there is ----------------------------------------------------------------------------------------------

    def maybe_find(self, vhost: str, queue: str, identifier: str) -> Snapshot | None:
        """Return a snapshot whose time is not over, whatever its state; None if it does not exist."""
        found = self._snapshots.get(identifier)
        if found is None or (found.vhost, found.queue) != (vhost, queue) or self._is_over(found):
            return None
        return found

    def of(self, vhosts: list[str]) -> list[Snapshot]:
        """Return the snapshots in these vhosts, the newest first."""
        return [each for each in reversed(self._snapshots.values()) if each.vhost in vhosts and self._has_vhost(each)]

    def _is_over(self, snapshot: Snapshot) -> bool:
        return snapshot.ends_at_s <= trio.current_time() or not self._has_vhost(snapshot)

    def _has_vhost(self, snapshot: Snapshot) -> bool:
        return self._view.records.are_of(snapshot.records, snapshot.vhost)

    # --- making -----------------------------------------------------------------------------------------------------

    def begin(
        self, queue: QueueRef, queue_id: str, user: str, ttl_s: float, nursery: trio.Nursery, *, unacked: bool
    ) -> Snapshot:
        """Begin a snapshot of `queue`; `Snapshot.over` tells when it is made, or has failed.

        Raises:
            SnapshotError: `Busy`, `TooMany`, `DiskLow`.
        """
        if self._view.has_alarm("disk"):
            raise DiskLow("the disk is low on space")
        known = self._view.permissions
        users = [each.user for each in self._snapshots.values() if each.state == MAKING]
        refusal = MAKING_QUOTA.maybe_refusal("snapshots in the making", known, user, users.count(user), len(users))
        if refusal:
            raise Busy(refusal)
        users = [each.user for each in self._snapshots.values()]
        refusal = KEPT_QUOTA.maybe_refusal("snapshots", known, user, users.count(user), len(users))
        if refusal:
            raise TooMany(f"{refusal}: delete some")
        ready, unacked_count, messages = self._view.queues.lengths([queue])[0]
        if unacked and unacked_count > UNACKED_MAX:
            raise TooMany(f"more than {UNACKED_MAX} messages are unacknowledged")
        identifier = f"{self._run}-{next(self._numbers)}"
        now_ms = wall_time_ms()
        vhost, name = self._view.queues.names([queue])[0]
        snapshot = Snapshot(
            identifier,
            vhost,
            name,
            queue_id,
            user,
            self._view.records.of(vhost),
            self._directory / identifier,
            now_ms,
            trio.current_time() + ttl_s,
            now_ms + round(1000 * ttl_s),
            messages,
            self._view.queues.ready(queue)[1] // max(1, ready),
        )
        self._snapshots[snapshot.id] = snapshot
        self._changed.set()
        # Both in this turn: a message is either unacked or ready.
        had = self._view.browsing.outstanding(queue) if unacked else None
        once = self._management.tasks.once
        nursery.start_soon(once, "snapshot", self._make, snapshot, queue, self._view.browsing.mark(queue), had)
        return snapshot

    async def delete(self, snapshot: Snapshot) -> None:
        """Forget a snapshot, and delete its file."""
        snapshot.scope.cancel()
        if self._snapshots.pop(snapshot.id, None) is not None:
            await _removed(snapshot.path)

    async def _make(self, snapshot: Snapshot, queue: QueueRef, mark: int, had: Outstanding | None) -> None:
        began_s = time.monotonic()
        try:
            with snapshot.scope:
                await _Maker(snapshot, queue, mark, had, self._management).run()
                snapshot.end_as(READY)
            if snapshot.state == MAKING:
                raise Deleted("the snapshot was deleted, or has expired, while it was being made")
        except SnapshotError as error:
            await self._failed(snapshot, error)
        except OSError as error:
            log.warning("a snapshot could not be written", queue=snapshot.queue, reason=str(error))
            await self._failed(snapshot, DiskLow(f"the file could not be written: {error.strerror}"))
        else:
            log.info(
                "snapshot made",
                vhost=snapshot.vhost,
                queue=snapshot.queue,
                messages=snapshot.count,
                seconds=round(time.monotonic() - began_s, 3),
            )
        finally:
            if snapshot.state == MAKING:
                # Without a reason its readers would wait for more rows.
                await self._failed(snapshot, Broken("the snapshot could not be made: see the broker's log"))

    async def _failed(self, snapshot: Snapshot, error: SnapshotError) -> None:
        snapshot.error = error
        await _removed(snapshot.path)
        snapshot.end_as(FAILED)

    # --- time -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Remove files of an earlier process, and files whose time is over, until cancelled; then all files."""
        try:
            await in_thread(SNAPSHOTS, _empty, self._directory, f"{self._run}-")
            while True:
                self._changed = trio.Event()
                for snapshot in list(self._snapshots.values()):
                    if self._is_over(snapshot):
                        await self.delete(snapshot)
                next_s = min((each.ends_at_s for each in self._snapshots.values()), default=float("inf"))
                if self._snapshots:
                    next_s = min(next_s, trio.current_time() + CHECK_S)
                with trio.move_on_at(next_s):
                    await self._changed.wait()
        finally:
            for snapshot in list(self._snapshots.values()):
                await self.delete(snapshot)


class _Maker:
    """Writes one snapshot."""

    def __init__(
        self, snapshot: Snapshot, queue: QueueRef, mark: int, had: Outstanding | None, management: Management
    ) -> None:
        self._snapshot = snapshot
        self._queue = queue
        self._had = had
        self._view = management.view
        self._ends = self._view.browsing.ends(queue, mark)
        self._places: dict[int, set[int]] = {}  # of the unacked messages, in blocks
        self._minimum_bytes = management.settings.store.disk_free_min_bytes
        self._writer = self._new_writer()
        self._position = 0
        self._file = -1

    async def run(self) -> None:
        """Write it.

        Raises:
            SnapshotError, OSError: it cannot be written.
        """
        self._file = await in_thread(SNAPSHOTS, _create, self._snapshot.path)
        try:
            await self._add_unacked()
            cursor = Cursor()
            while not cursor.ended:
                for seen in await self._look(cursor):
                    if self._was_there(seen) and self._add(seen.message, redelivered=seen.redelivered):
                        await self._write()
                if not self._snapshot.chunks:
                    await self._write()  # for readers that wait
            if self._view.queues.is_gone(self._queue):
                raise QueueGone(f"queue '{self._snapshot.queue}' was deleted meanwhile")
            await self._write()
            await self._forget_places()
        finally:
            os.close(self._file)

    async def _add_unacked(self) -> None:
        """Add the messages that clients had, by place."""
        runs: list[Run] = []
        for run in self._had or ():
            run.sort(key=_place, reverse=True)
            runs.append(run)
            for place, _ in run:
                self._places.setdefault(place >> BLOCK_SHIFT, set()).add(place)
            await trio.lowlevel.checkpoint()
        self._had = None
        for at, (_, message) in enumerate(merge(*map(_popped, runs), key=_place), 1):
            if self._add(message, redelivered=True):
                await self._write()
            elif at % UNACKED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def _forget_places(self) -> None:
        """Free the places bit by bit: a million at once would take long."""
        while self._places:
            self._places.popitem()
            await trio.lowlevel.checkpoint()

    async def _look(self, cursor: Cursor) -> list[Seen]:
        """Return the next messages."""
        found: list[list[Seen]] = []
        done = trio.Event()

        def told(seen: list[Seen]) -> None:
            found.append(seen)
            done.set()

        self._view.browsing.look(self._queue, cursor, LOOK_MESSAGES, told)
        await done.wait()
        await trio.lowlevel.checkpoint()
        if not cursor.ended and cursor.number >= self._ends[cursor.lane]:
            # The next messages in this lane came later, and may never end.
            cursor.next_lane(self._view.browsing.lane_count(self._queue))
        return found[0]

    def _was_there(self, seen: Seen) -> bool:
        place = int(seen.place)
        if place in self._places.get(place >> BLOCK_SHIFT, ()):
            return False
        return place & NUMBER_MASK < self._ends[place >> LANE_SHIFT]

    def _add(self, message: Message, *, redelivered: bool) -> bool:
        """Add a row; True when a chunk is full."""
        if message.time_ms == 0:
            message = message.copy()
            message.time_ms = self._snapshot.begun_ms
        snapshot = self._snapshot
        self._writer.add(snapshot.count, message, redelivered)
        snapshot.count += 1
        snapshot.bytes += int(message.body_bytes)
        return self._writer.is_full()

    def _new_writer(self) -> ColumnsWriter:
        return ColumnsWriter(counted=self._view.claims.counts_deliveries(self._queue))

    async def _write(self) -> None:
        """Write the gathered rows as a chunk."""
        snapshot = self._snapshot
        if self._writer.count == 0:
            return
        first = snapshot.count - int(self._writer.count)
        columns = self._writer.finish(first, snapshot.count)
        self._writer = self._new_writer()
        size = await in_thread(SNAPSHOTS, _append, self._file, snapshot.path.parent, columns, self._minimum_bytes)
        snapshot.add_chunk(SnapshotChunk(first, snapshot.count, self._position, size, int(columns.content_bytes)))
        self._position += size


def _place(entry: tuple[int, Message]) -> int:
    return entry[0]


def _popped(run: Run) -> Iterator[tuple[int, Message]]:
    """Yield the entries of a run from its end, and forget them."""
    while run:
        yield run.pop()


async def _removed(path: Path) -> None:
    """Remove a file, even if the caller is cancelled. A file system takes 0.3 s for a GiB."""
    with trio.CancelScope(shield=True):
        await in_thread(SNAPSHOTS, _unlink, path)


# --- in a thread ------------------------------------------------------------------------------------------------------


def _create(path: Path) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _append(file: int, directory: Path, columns: Columns, minimum_bytes: int) -> int:
    """Write a chunk after the others, and return how many bytes it has.

    Raises:
        DiskLow: the disk would have less free space than `minimum_bytes`.
    """
    pieces = columns.encode()
    size = sum(map(len, pieces))
    free = os.statvfs(directory)
    if free.f_bavail * free.f_frsize < minimum_bytes + size:
        raise DiskLow("the disk is low on space")
    for piece in pieces:
        left = memoryview(piece)
        while left:
            left = left[os.write(file, left) :]
    return size


def _empty(directory: Path, kept: str) -> None:
    """Remove the files of a directory, but not those whose names begin with `kept`; it has only files of ours."""
    if directory.is_dir():
        for path in directory.iterdir():
            if not path.name.startswith(kept):
                _unlink(path)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("a snapshot cannot be removed", path=str(path), reason=str(error))
