"""The data port: the messages of a queue, in chunks of columns, for readers that take many messages at a time.

    describe  ->  plan: where a range can be cut  ->  chunks, an answer of about 8 MiB at a time

1. Reading does not change the counts, the order or the messages that consumers get.
2. A range is of one queue. A reader that gives the queue's ``id`` gets an error when that queue was deleted and created
   again (409), or when retention has removed the beginning of the range (410). Nothing is skipped silently. The id may
   be followed by ``@`` and the life of the broker in which the reader's data was written. Then the reader gets an error
   when the histories have diverged (409): the broker was restored from a backup, or is a copy.
3. Answers contain synced messages only, and an answer is always the same for the same range. Only the places where a
   range is cut into chunks may differ. A snapshot can be read while it is being made: a request waits for its rows, at
   most a while, after which its answer has none.
4. It needs no tag: a user who may read the queue over AMQP may read it here. So a queue that belongs to a connection is
   neither listed nor described.
5. For a stream with followers, descriptions and plans give the end of its sealed part, and the nodes that serve it, too
   (``follower_chunks.py``).
6. Readers may have a token instead of a login, at the listener of data alone (``data_listener.py``).

The form of a chunk is in ``msgstore.log.columns``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from warren.engine_view.engine_view import EngineView
from warren.engine_view.permissions import READ
from warren.engine_view.refs import QueueRef
from warren.engine_view.totals import chunks
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import sorted_queues, the_shared_queue
from warren.mgmt_plugin.resources.ranges import (
    Known,
    Ranges,
    SnapshotRanges,
    Sources,
    StreamRanges,
    Wanted,
    check_path,
    described_lives,
    incarnation,
    split_id,
    the_restored_vhost,
)
from warren.mgmt_plugin.resources.snapshots import the_snapshot
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.msgstore.log.columns import Piece
from warren.server.copies.snapshots import Snapshots

ANSWER_BYTES: Final = 8 << 20
PIECE_BYTES: Final = 64 << 20
BOUNDED_PIECES: Final = 64  # into about as many a range is cut of which only some bytes are wanted
SUPER_STREAM: Final = "super-stream"


def _boot_id() -> str | None:
    """Return an identity of this run of this machine, different from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


_BOOT_ID: Final = _boot_id()


class Range(msgspec.Struct, forbid_unknown_fields=True):
    """A range of offsets, and the wanted part of it.

    `id`: of the queue that it is of, maybe with a life (`split_id`).
    """

    from_: int = msgspec.field(name="from")
    to: int
    id: str | None = None
    snapshot: str | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    piece_bytes: int = PIECE_BYTES


def _describe_super_stream(vhost: str, name: str, partitions: list[str]) -> Described:
    missing: Described = dict.fromkeys(("id", "first", "end", "lives", "messages", "bytes", "sealed", "nodes"))
    return {"vhost": vhost, "name": name, "type": SUPER_STREAM, **missing, "partitions": partitions}


def _checked(view: EngineView, ranges: Ranges, first: int, end: int, known: Known | None) -> tuple[int, int]:
    """Make sure that a range exists, and fits the reader's knowledge; return the existing part."""
    if ranges.queue is not None:
        check_path(view, ranges.queue, known, end)
    oldest, newest = ranges.bounds()
    if not 0 <= first <= end:
        raise bad_request("a range must not end before it begins")
    if first < oldest:
        raise HttpError(410, "gone", f"the oldest offset is {oldest}")
    if end > newest:
        raise bad_request(f"the range ends at {end}, but only what is before {newest} is synced")
    return oldest, newest


async def _cut_off(bounds: list[int], sizes: list[int], most_bytes: int) -> tuple[list[int], list[int]]:
    """Return the pieces that fit into `most_bytes`, and of the next the part that does: at least a row."""
    left = most_bytes
    for at, size in enumerate(sizes):
        await give_way()
        if size > left:
            rows = max(0 if at else 1, left * (bounds[at + 1] - bounds[at]) // size)
            if rows == 0:
                return bounds[: at + 1], sizes[:at]
            return [*bounds[: at + 1], bounds[at] + rows], [*sizes[:at], left]
        left -= size
    return bounds, sizes


async def answer_of(
    ranges: Ranges, first: int, end: int, wanted: Wanted, hold: Callable[[int], None]
) -> tuple[list[Piece], int]:
    """Return as many chunks as an answer has, and the offset up to which they reach. `hold`: see `Request`."""
    blocks: list[Piece] = []
    size = 0
    at = first
    while at < end and size < ANSWER_BYTES:
        if at > first and at < ranges.bounds()[0]:
            break  # retention has overtaken us: return what we have; the next request is answered with 410
        pieces, following = await ranges.read(at, end, wanted)
        if not pieces:
            break  # a snapshot that is being made: the next request gets the next rows
        more = sum(map(len, pieces))
        try:
            hold(more)
        except HttpError:
            if at > first:
                break  # return what we have; this chunk gets an answer of its own
            raise
        blocks += pieces
        size += more
        at = following
    return blocks, at


def _number(call: Call, name: str) -> int:
    try:
        return integer(call.query[name])
    except (KeyError, ValueError):
        raise bad_request(f"{name} must be an offset") from None


_V: Final = "/api/warren/data/{vhost}"
QUEUE_PATH: Final = f"{_V}/{{queue}}"
_READ: Final = ("from", "to", "id", "columns", "snapshot")
_FILES: Final = ("from", "to", "id")


class DataPortHandlers(Handlers):
    """Handlers of the data port. `directory` has the files of the message log, and `sources` gives ranges of queues.

    `readers` returns the URLs of followers that serve the sealed part.
    """

    def __init__(
        self,
        sources: Sources,
        snapshots: Snapshots,
        directory: Path,
        readers: Callable[[], list[str]] = list,
    ) -> None:
        self._readers = readers
        self._view = sources.view
        self._sources = sources
        self._snapshots = snapshots
        self._directory = directory

    def _the_ranges(self, call: Call, identifier: str | None, snapshot_id: str | None) -> tuple[Ranges, Known | None]:
        """Return the ranges that the caller means, and the caller's knowledge of them."""
        if snapshot_id:
            ranges: Ranges | None = SnapshotRanges(the_snapshot(call, self._snapshots, snapshot_id))
        else:
            the_restored_vhost(call, self._view)
            ranges = self._sources.maybe_ranges(self._the_readable(call))
        if ranges is None:
            raise bad_request(f"queue '{call.params['queue']}' is not a stream: read a snapshot of it, or drain it")
        known: Known | None = None
        if identifier is not None:
            identifier, known = split_id(identifier)
            if identifier != ranges.id:
                raise HttpError(409, "another_queue", f"queue '{call.params['queue']}' was deleted and declared again")
        return ranges, known

    async def list_readable(self, call: Call) -> Rows:
        view = self._view
        vhost, rights = the_restored_vhost(call, view), call.rights()
        found: list[tuple[QueueRef | None, str]] = []  # a queue, or the name of a super stream
        for some in chunks(await sorted_queues(call, view, vhost)):
            found += [(queue, "") for queue in view.offsets.readable(some, rights)]
            await give_way()
        for name in view.super_streams.names(vhost):
            if view.queues.maybe(vhost, name) is None and rights.may(READ, name):
                found.append((None, name))
            await give_way()

        def describe(each: tuple[QueueRef | None, str]) -> Described:
            queue, name = each
            if queue is not None:
                return self._describe(vhost, queue)
            return _describe_super_stream(vhost, name, view.super_streams.maybe_partitions(vhost, name) or [])

        def is_gone(each: tuple[QueueRef | None, str]) -> bool:
            queue, name = each
            return view.super_streams.maybe(vhost, name) is None if queue is None else view.queues.is_gone(queue)

        return Rows(found, describe, is_gone)

    async def describe(self, call: Call) -> Described:
        vhost, name = the_restored_vhost(call, self._view), call.params["queue"]
        partitions = self._view.super_streams.maybe_partitions(vhost, name)
        if partitions is not None and self._view.queues.maybe(vhost, name) is None:
            call.authorize(READ, "queue", name)
            return _describe_super_stream(vhost, name, partitions)
        return self._describe(vhost, self._the_readable(call))

    def _the_readable(self, call: Call) -> QueueRef:
        """Return the queue of the path, which the user may read."""
        queue = the_shared_queue(call, self._view)
        call.authorize(READ, "queue", self._view.offsets.authorized_name(queue))
        return queue

    def _describe(self, vhost: str, queue: QueueRef) -> Described:
        row = self._view.offsets.row(queue)
        ranges = None if row.bounds is None else self._sources.maybe_ranges(queue)
        first, end = row.bounds or (None, None)
        readable = None if ranges is None else ranges.queue
        return {
            "vhost": vhost,
            "name": row.name,
            "type": row.type,
            "id": incarnation(self._view.store_id(), row.number),
            "first": first,
            "end": end,
            "lives": None if readable is None else described_lives(self._view, readable),
            "messages": row.messages,
            "bytes": row.bytes,
            "partitions": None,
            **self._elsewhere(ranges),
        }

    def _elsewhere(self, ranges: Ranges | None) -> Described:
        """Return up to which offset other nodes can serve a range as well, and where they are."""
        sealed = ranges.sealed_end() if isinstance(ranges, StreamRanges) else 0
        return {"sealed": sealed, "nodes": self._readers() if sealed else []}

    async def plan(self, call: Call) -> Described:
        wanted = await call.body(Range)
        ranges, known = self._the_ranges(call, wanted.id, wanted.snapshot)
        oldest, newest = _checked(self._view, ranges, wanted.from_, wanted.to, known)
        end = wanted.to
        if wanted.max_rows is not None:
            end = min(end, wanted.from_ + max(1, wanted.max_rows))
        piece_bytes = max(1, wanted.piece_bytes)
        if wanted.max_bytes is None:
            bounds, sizes = await ranges.cut(wanted.from_, end, piece_bytes)
        else:
            most_bytes = max(1, wanted.max_bytes)
            bounds, sizes = await ranges.cut(
                wanted.from_, end, min(piece_bytes, most_bytes // BOUNDED_PIECES + 1), most_bytes
            )
            bounds, sizes = await _cut_off(bounds, sizes, most_bytes)
        return {"id": ranges.id, "first": oldest, "end": newest, "bounds": bounds, "bytes": sizes} | self._elsewhere(
            ranges
        )

    async def read_chunks(self, call: Call) -> Response:
        ranges, known = self._the_ranges(call, call.query.get("id"), call.query.get("snapshot"))
        first, end = _number(call, "from"), _number(call, "to")
        columns = set(call.query.get("columns", "bodies,properties").split(",")) - {""}
        if not columns <= {"bodies", "properties"}:
            raise bad_request("columns must be bodies, properties or both")
        _checked(self._view, ranges, first, end, known)
        wanted = Wanted("bodies" in columns, "properties" in columns)
        blocks, at = await answer_of(ranges, first, end, wanted, call.request.hold)
        headers = (("X-Warren-Next", str(at)),)
        return Response(200, content_type="application/octet-stream", headers=headers, blocks=blocks)

    async def list_files(self, call: Call) -> Described:
        ranges, known = self._the_ranges(call, call.query.get("id"), None)
        first, end = _number(call, "from"), _number(call, "to")
        _checked(self._view, ranges, first, end, known)
        chunks = await ranges.files(first, end) if isinstance(ranges, StreamRanges) else []
        # A path proves nothing: with the inode a reader verifies that it has opened the right file.
        inodes: dict[str, tuple[int, int]] = {}
        name = ""
        for chunk in chunks:
            await give_way()
            if chunk[2] == name:
                continue
            name = chunk[2]
            try:
                found = (self._directory / name).stat()
            except OSError:  # just removed
                continue
            inodes[name] = (found.st_dev, found.st_ino)
        described = {"id": ranges.id, "boot": _BOOT_ID, "directory": str(self._directory)}
        return {**described, "files": inodes, "chunks": chunks}

    def for_one_node(self) -> DataPortHandlers:
        """Return the same for readers that must not ask other nodes."""
        return DataPortHandlers(self._sources, self._snapshots, self._directory, list)

    def token_routes(self) -> Iterator[Route]:
        """Yield the routes that a token lets in, answered by this object."""
        for route in self.routes():
            if route.template in (QUEUE_PATH, f"{QUEUE_PATH}/files", f"{QUEUE_PATH}/chunks"):
                yield route

    ROUTES: ClassVar = (
        Route("GET", _V, Access.CLIENT, list_readable, "The queues that the user may read"),
        Route("GET", QUEUE_PATH, Access.CLIENT, describe, "Content of a queue, for bulk readers"),
        Route("POST", f"{QUEUE_PATH}/plan", Access.CLIENT, plan, "Split points of a range of offsets", Range),
        Route(
            "GET",
            f"{QUEUE_PATH}/files",
            Access.CLIENT,
            list_files,
            "Place of the sealed part of a range in its files",
            query=_FILES,
        ),
        Route(
            "GET",
            f"{QUEUE_PATH}/chunks",
            Access.CLIENT,
            read_chunks,
            "A range of offsets, as chunks of columns",
            query=_READ,
        ),
    )
