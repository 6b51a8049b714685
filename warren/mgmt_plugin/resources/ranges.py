"""Where the data port reads: a stream, the claims of a drain, or a snapshot, each as ranges of offsets.

    stream      sealed: chunks as they lie in its files   |   else: made from the log and from memory
    claims      made from the log
    snapshot    chunks as they lie in its file

1. Chunks in files are sent as they are, compressed or not: a chunk may begin before the requested range and end after
   it. Only whole columns are left out.
2. `read` returns chunks and the offset where they end. The end is never before the beginning, so a reader that
   continues there comes to an end. Only of a snapshot that is being made may it be the beginning itself: after
   `PROGRESS_S` without the row, or when the answer already has others.
3. `cut` counts bodies and properties as they are in a reader's memory, not as they are compressed. Of a chunk that is
   cut it counts the part: a range that begins in the middle of a chunk does not have the bytes of all of it.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import trio

from warren.engine_view.engine_view import EngineView
from warren.engine_view.offsets import CLAIMS, LIFE_ID_BYTES, RANGE_MESSAGES, STREAM, SealedRow
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.names import the_vhost
from warren.mgmt_plugin.routes import Call, bad_request, not_found
from warren.msgstore.files.sealed_files import sealed_path
from warren.msgstore.log.columns import (
    BODIES,
    BODY_ENDS,
    LARGE_BODY_BYTES,
    PROPERTIES,
    PROPERTY_ENDS,
    Columns,
    ColumnsWriter,
    Piece,
    is_whole,
    maybe_head,
    without_parts,
)
from warren.server.copies.snapshots import (
    MAKING,
    Broken,
    Busy,
    Deleted,
    DiskLow,
    QueueGone,
    Snapshot,
    SnapshotError,
    TooMany,
)
from warren.server.draining.drains import Drains
from warren.server.threads import CHUNKS, SNAPSHOTS, in_thread

DIVERGED: Final = "diverged"
OFFSET_DIGITS_MAX: Final = 19
RETRY_AFTER_S: Final = 2
PROGRESS_S: Final = 10.0  # the most that a reader waits for the next rows of a snapshot
PIECES_MAX: Final = 100_000
LOOK_MESSAGES: Final = 1024  # at a time
BESIDE_BYTES: Final = 8 << 20  # the most that a chunk has in addition to its largest message


def incarnation_of(view: EngineView, queue: QueueRef) -> str:
    """Return an identity of this queue, different from earlier and later ones of the same name."""
    return incarnation(view.store_id(), view.offsets.number(queue))


def the_restored_vhost(call: Call, view: EngineView) -> str:
    """Return the name of the vhost of a call; its records, and so the lineages of its streams, have been read.

    Raises:
        HttpError: 404. 503, the broker is starting.
    """
    vhost = the_vhost(call)
    if view.records.are_restoring(vhost):
        raise HttpError(503, "busy", "the broker is starting", (("Retry-After", str(RETRY_AFTER_S)),))
    return vhost


class Known(NamedTuple):
    """A reader's knowledge: everything below `offset`, the last of it by a life; None: below the end of its range."""

    life_id: bytes
    offset: int | None = None


def split_id(identifier: str) -> tuple[str, Known | None]:
    """Return the parts of an id that a reader gives: the queue, and the reader's knowledge.

        ID          only the queue
        ID@LIFE     the life that has written the end of the range
        ID@LIFE:N   the life that has written the last offset below N

    Raises:
        HttpError: 400, the part after @ is not a life, or not an offset.
    """
    queue_id, at, known = identifier.partition("@")
    if not at:
        return queue_id, None
    life, colon, number = known.partition(":")
    if colon and not (number.isascii() and number.isdigit() and len(number) <= OFFSET_DIGITS_MAX):
        raise bad_request(f"id: {number!r} is not an offset")
    return queue_id, Known(life_of(life), int(number) if colon else None)


def life_of(text: str) -> bytes:
    """Return the id of a life that a reader gives.

    Raises:
        HttpError: 400, it is not one.
    """
    try:
        life_id = bytes.fromhex(text)
    except ValueError:
        life_id = b""
    if len(life_id) != LIFE_ID_BYTES:
        raise bad_request(f"{text!r} is not the id of a life ({2 * LIFE_ID_BYTES} hexadecimal digits)")
    return life_id


def described_lives(view: EngineView, queue: QueueRef) -> list[tuple[str, int]]:
    """Return the lives of a queue in the form for readers: id and first offset."""
    return [(life_id.hex(), first) for life_id, first in view.offsets.lives(queue)]


def check_path(view: EngineView, queue: QueueRef, known: Known | None, end: int) -> None:
    """Make sure that a reader's knowledge fits the queue; `end`: of the requested range.

    Raises:
        HttpError: 409, the histories have diverged: the text says where, and what to do.
    """
    if known is None:
        return
    divergence = view.offsets.maybe_divergence(queue, known.life_id, end if known.offset is None else known.offset)
    if divergence is not None:
        raise HttpError(409, DIVERGED, divergence)


def incarnation(store_id: bytes, queue_id: int) -> str:
    """Return an identity for the queue of that id in a store, different from all others.

    Only a digest of the store's id is returned: with the id itself a publisher could write frames into his messages.
    """
    digest = sha256(store_id + b"queue").hexdigest()
    return f"{digest[:16]}-{queue_id}"


class Wanted(NamedTuple):
    """The columns that are wanted in addition to offsets, times, flags and routes."""

    bodies: bool
    properties: bool

    def missing_parts(self) -> list[int]:
        """Return the parts of a chunk that are not wanted."""
        bodies = [] if self.bodies else [BODY_ENDS, BODIES]
        return bodies + ([] if self.properties else [PROPERTY_ENDS, PROPERTIES])


class Ranges(Protocol):
    """A source that can be read in ranges: from `first` up to `end`, now."""

    id: str
    queue: QueueRef | None  # None: a snapshot, which has no history

    def bounds(self) -> tuple[int, int]:
        """Return the oldest offset, and the end of the synced part."""

    async def cut(
        self, first: int, end: int, piece_bytes: int, most_bytes: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Return where a range can be cut into pieces of about that size, and how large each piece is about.

        `most_bytes`: the rest after this many bytes need not be cut.
        """

    async def read(self, first: int, end: int, wanted: Wanted) -> tuple[list[Piece], int]:
        """Return the next chunk in pieces, and the offset up to which it reaches, at most `end`."""


class Sources:
    """The queues that ranges are read from: `drains` hold claims while they are read."""

    def __init__(self, view: EngineView, drains: Drains) -> None:
        self.view = view
        self._drains = drains

    def maybe_ranges(self, queue: QueueRef) -> Ranges | None:
        """Return how `queue` is read in ranges; None when it is not."""
        kind = self.view.offsets.kind(queue)
        if kind == STREAM:
            return StreamRanges(self.view, queue)
        return ClaimRanges(self.view, self._drains, queue) if kind == CLAIMS else None


class StreamRanges:
    """A stream."""

    def __init__(self, view: EngineView, stream: QueueRef) -> None:
        self.id = incarnation_of(view, stream)
        self.queue: QueueRef | None = stream
        self._view = view
        self._offsets = view.offsets
        self._stream = stream

    def bounds(self) -> tuple[int, int]:
        return self._offsets.bounds(self._stream)

    def sealed_end(self) -> int:
        """Return the end of the sealed part; 0: nothing is sealed."""
        return self._offsets.sealed_end(self._stream)

    async def cut(
        self, first: int, end: int, piece_bytes: int, most_bytes: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Cut exactly where chunks are sealed; in memory message by message if `most_bytes` asks for that.

        Messages that are only in the log count with the average size of unsealed messages.
        """
        pieces = _Pieces(first, piece_bytes, most_bytes)
        for chunk in self._offsets.sealed_between(self._stream, first, end):
            await give_way()
            if pieces.has_enough():
                return pieces.made()
            begin, behind = max(first, chunk.first), min(chunk.end, end)
            pieces.add(begin, behind, chunk.content_bytes * (behind - begin) // (chunk.end - chunk.first))
        if pieces.end < end:
            await self._cut_unsealed(pieces, end)
        return pieces.made()

    async def _cut_unsealed(self, pieces: _Pieces, end: int) -> None:
        stream, offsets = self._stream, self._offsets
        average = offsets.unsealed_bytes(stream)
        tail = end if pieces.most_bytes is None else min(end, offsets.tail_from(stream))
        await pieces.add_evenly(tail, average)
        while pieces.end < end and not pieces.has_enough():
            await give_way()
            at = max(pieces.end, offsets.tail_from(stream))
            sizes = offsets.tail_sizes(stream, at, min(end, at + LOOK_MESSAGES))
            if not sizes:
                await pieces.add_evenly(end, average)  # it has left memory meanwhile
            for offset, size in enumerate(sizes, at):
                if pieces.has_enough():
                    break
                pieces.add(offset, offset + 1, size)

    async def files(self, first: int, end: int) -> list[tuple[int, int, str, int, int]]:
        """Return the sealed chunks of a range: first, end, name of the file, place in it, bytes."""
        found: list[tuple[int, int, str, int, int]] = []
        number = self._offsets.number(self._stream)
        for chunk in self._offsets.sealed_between(self._stream, first, end):
            await give_way()
            path = sealed_path(number, chunk.file)
            found.append((chunk.first, chunk.end, path, chunk.position, chunk.stored_bytes))
        return found

    async def read(self, first: int, end: int, wanted: Wanted) -> tuple[list[Piece], int]:
        stream = self._stream
        chunk = self._offsets.maybe_sealed_at(stream, first)
        if chunk is not None:
            if chunk.first >= end:
                return ColumnsWriter().finish(first, end).encode(), end
            pieces = await self._maybe_sealed(chunk, wanted)
            if pieces is None:
                return await self.read(first, end, wanted)  # compaction has replaced it while it was read
            return pieces, min(chunk.end, end)
        columns, following = await _read_columns(self._view, stream, first, end, wanted)
        if following > first and self._offsets.maybe_sealed_at(stream, first) is not None:
            return await self.read(first, end, wanted)  # sealed meanwhile, so that something was missing in the log
        return await _encoded(columns), following

    async def _maybe_sealed(self, chunk: SealedRow, wanted: Wanted) -> list[Piece] | None:
        """Return a chunk, without messages when it is damaged; None when it is not in the table any longer."""
        found: list[bytes | None] = []
        done = trio.Event()

        def told(data: bytes | None) -> None:
            found.append(data)
            done.set()

        self._offsets.read_sealed(self._stream, chunk, told)
        await _told(self._view, done, self._stream)
        if found[0] is not None:
            missing = wanted.missing_parts()
            if len(found[0]) < LARGE_BODY_BYTES or not missing:
                return without_parts(found[0], missing) if missing else [found[0]]
            return await in_thread(CHUNKS, without_parts, found[0], missing)
        oldest = self._offsets.bounds(self._stream)[0]
        if chunk.first < oldest:
            raise _gone(oldest)
        if not self._offsets.is_sealed_there(self._stream, chunk):
            return None
        self._offsets.note_damage(self._stream, chunk)
        return ColumnsWriter().finish(chunk.first, chunk.end).encode()


class ClaimRanges:
    """The claims of a drain."""

    def __init__(self, view: EngineView, drains: Drains, claims: QueueRef) -> None:
        self.id = incarnation_of(view, claims)
        self.queue: QueueRef | None = claims
        self._view = view
        self._drains = drains
        self._claims = claims

    def bounds(self) -> tuple[int, int]:
        return self._view.offsets.bounds(self._claims)

    async def cut(
        self, first: int, end: int, piece_bytes: int, most_bytes: int | None = None
    ) -> tuple[list[int], list[int]]:
        pieces = _Pieces(first, piece_bytes, most_bytes)
        count, body_bytes = self._view.offsets.size(self._claims)
        await pieces.add_evenly(end, max(1, body_bytes // max(1, count)))
        return pieces.made()

    async def read(self, first: int, end: int, wanted: Wanted) -> tuple[list[Piece], int]:
        claims = self._claims
        if self._view.queues.is_gone(claims):
            raise not_found()
        counted = self._drains.are_counted(claims)
        with self._drains.reading(claims):
            columns, following = await _read_columns(self._view, claims, first, end, wanted, counted=counted)
        return await _encoded(columns), following


_REFUSALS: Final[dict[type[SnapshotError], tuple[int, str]]] = {
    DiskLow: (507, "disk_low"),
    Busy: (503, "busy"),
    TooMany: (429, "too_many"),
    QueueGone: (404, "no_queue"),
    Deleted: (404, "no_snapshot"),
    Broken: (500, "internal_error"),
}


def refused(error: SnapshotError) -> HttpError:
    """Return the answer for a snapshot that cannot be made."""
    status, word = _REFUSALS[type(error)]
    headers = (("Retry-After", str(RETRY_AFTER_S)),) if status in (429, 503) else ()
    return HttpError(status, word, str(error), headers)


class SnapshotRanges:
    """A snapshot, complete or in the making, for one request."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.id = snapshot.queue_id
        self.queue: QueueRef | None = None
        self._snapshot = snapshot
        self._has_read = False

    def bounds(self) -> tuple[int, int]:
        return 0, self._snapshot.most

    async def cut(
        self, first: int, end: int, piece_bytes: int, most_bytes: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Cut exactly where chunks are written, and evenly after that."""
        snapshot = self._snapshot
        pieces = _Pieces(first, piece_bytes, most_bytes)
        for chunk in snapshot.chunks:
            await give_way()
            if pieces.has_enough():
                return pieces.made()
            begin, behind = max(first, chunk.first), min(chunk.end, end)
            if begin < behind:
                pieces.add(begin, behind, chunk.content_bytes * (behind - begin) // (chunk.end - chunk.first))
        if pieces.end < end:
            if snapshot.ready:
                pieces.add(pieces.end, end, 0)  # rows that are not in it
            else:
                await pieces.add_evenly(end, max(1, snapshot.message_bytes))
        return pieces.made()

    async def read(self, first: int, end: int, wanted: Wanted) -> tuple[list[Piece], int]:
        """Return the next chunk, and wait for it only if this is the first of the answer.

        Raises:
            HttpError: the snapshot is gone, damaged, or could not be completed.
        """
        snapshot = self._snapshot
        if not self._has_read:
            with trio.move_on_after(PROGRESS_S):
                while snapshot.state == MAKING and snapshot.written <= first:
                    await snapshot.progress()
        if snapshot.error is not None:
            raise refused(snapshot.error)
        chunk = snapshot.maybe_chunk(first)
        if chunk is None:
            if snapshot.ready:
                return ColumnsWriter(compacted=True).finish(first, end).encode(), end
            return [], first
        self._has_read = True
        try:
            missing = wanted.missing_parts()
            pieces = await in_thread(
                SNAPSHOTS, _read_chunk, snapshot.path, chunk.position, chunk.size, missing, abandon=True
            )
        except FileNotFoundError:
            raise HttpError(404, "no_snapshot", "the snapshot has expired") from None
        if not pieces:
            raise HttpError(500, "damaged", "the snapshot is damaged on disk: take another")
        return pieces, min(chunk.end, end)


def _read_chunk(path: Path, position: int, size: int, missing: list[int]) -> list[Piece]:
    """Return a chunk of a file without some of its parts; nothing when it is damaged."""
    with path.open("rb") as file:
        data = os.pread(file.fileno(), size, position)
    head = maybe_head(data)
    if head is None or not is_whole(head, data):
        return []
    return without_parts(data, missing) if missing else [data]


async def _encoded(columns: Columns) -> list[Piece]:
    """Return the bytes of a chunk; a thread computes the checksum of a large one, so that other work can run."""
    if columns.content_bytes < LARGE_BODY_BYTES:
        return columns.encode()
    return await in_thread(CHUNKS, columns.encode)


class _Pieces:
    """The cuts of a range. `end`: how far it was examined; `most_bytes`: the caller wants no more."""

    def __init__(self, first: int, piece_bytes: int, most_bytes: int | None) -> None:
        self.end = first
        self.most_bytes = most_bytes
        self._piece_bytes = piece_bytes
        self._bounds = [first]
        self._sizes: list[int] = []
        self._total = 0

    def has_enough(self) -> bool:
        return self.most_bytes is not None and self._total >= self.most_bytes

    def add(self, begin: int, behind: int, size: int) -> None:
        """Add the offsets up to `behind`, of which those from `begin` are there: to the last piece if there is room."""
        size = max(1, size)
        if self._sizes and self._sizes[-1] + size <= self._piece_bytes:
            self._bounds[-1] = behind
            self._sizes[-1] += size
        else:
            if self._sizes:
                self._bounds[-1] = max(self._bounds[-1], begin)
            self._bounds.append(behind)
            self._sizes.append(size)
        self.end = behind
        self._total += size

    async def add_evenly(self, end: int, message_bytes: int) -> None:
        """Add the offsets up to `end`, of messages of about that size, in pieces of their own."""
        first = self.end
        step = max(1, self._piece_bytes // message_bytes, (end - first) // PIECES_MAX + 1)
        step = (step + RANGE_MESSAGES - 1) // RANGE_MESSAGES * RANGE_MESSAGES
        for behind in range(first + step, end + step, step):
            await give_way()
            if self.has_enough():
                break
            behind = min(behind, end)
            size = message_bytes * (behind - self.end)
            self._bounds.append(behind)
            self._sizes.append(size)
            self._total += size
            self.end = behind

    def made(self) -> tuple[list[int], list[int]]:
        """Return the bounds of the pieces, and their sizes."""
        return self._bounds, self._sizes


async def _read_columns(
    view: EngineView, queue: QueueRef, first: int, end: int, wanted: Wanted, *, counted: bool = False
) -> tuple[Columns, int]:
    """Return a chunk of the messages in memory or in the log, and the offset that it ends at.

    Raises:
        HttpError: 404, the queue was deleted meanwhile; 410, the beginning was cut off meanwhile.
    """
    found: list[tuple[Columns, int]] = []
    done = trio.Event()

    def told(columns: Columns, following: int) -> None:
        found.append((columns, following))
        done.set()

    bodies, properties = wanted
    view.offsets.read_columns(queue, first, end, told, bodies=bodies, properties=properties, counted=counted)
    if not found:
        await _told(view, done, queue)
    oldest = view.offsets.bounds(queue)[0]
    if first < oldest:
        raise _gone(oldest)
    return found[0]


def _gone(oldest: int) -> HttpError:
    return HttpError(410, "gone", f"the oldest offset is {oldest}")


async def _told(view: EngineView, done: trio.Event, queue: QueueRef) -> None:
    """Wait until the engine has told what was asked.

    Raises:
        HttpError: 404, the queue was deleted meanwhile.
    """
    while not done.is_set():
        if view.queues.is_gone(queue):
            raise not_found()
        with trio.move_on_after(0.1):
            await done.wait()
