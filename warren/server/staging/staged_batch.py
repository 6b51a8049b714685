"""Publish one batch of staged messages into the queues: cut it into pieces, try it out, publish it with its notes.

    piece       cells of parts, in the order of the plan; a transaction of a direct session of the user

The invariants are in the header of ``server.staging.stages``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec
import trio

from warren.engine_view.records import RecordsOfVhost
from warren.server.direct_clients import Checked, DirectClient
from warren.server.management import Management
from warren.server.staging.commit_notes import EXCHANGES_MAX, CommitNotes, CommitPlan, Note
from warren.server.staging.stage_files import PartHead

# Limits for one go of publishing; one message may be larger.
PIECE_BYTES: Final = 8 << 20
PIECE_MESSAGES: Final = 16_384

_READ_CELLS: Final = 8
_POLL_S: Final = 0.02


class StageError(Exception):
    """A request about stages cannot be fulfilled; see the classes below."""


class NoStage(StageError):
    """The stage does not exist, or belongs to another user."""


class Conflict(StageError):
    """Another commit is in the way."""


class NotOwner(StageError):
    """The query is another user's, or the user has none of the rights that a query needs."""


class MissingBatches(StageError):
    """Batches between the last one and this one are unknown here."""


class NoRoom(StageError):
    """There are too many stages, or too large ones."""


class OtherBatch(StageError):
    """A batch of this number was committed, and had other messages."""


class QueueFull(StageError):
    """A queue would refuse messages."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request to commit. `kept_ms`: how long the commit is remembered at least, None: without end.

    `compares`: a batch with the number of a committed one is the same only if it has the same number of messages;
    `staged`: that number. `follows`: it is refused if no earlier batch of the query is known. `purged`: a queue whose
    waiting messages the batch replaces.
    """

    query: str
    batch: int
    stages: list[str]
    mandatory: bool = True
    kept_ms: int | None = None
    compares: bool = False
    follows: bool = False
    staged: int = 0
    purged: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a commit. `unroutable`: how many messages reached no queue, or would have reached none."""

    committed: bool
    duplicate: bool = False
    messages: int = 0
    unroutable: int = 0


class Unroutable(Exception):
    """Messages of a mandatory batch, `count` of them, would reach no queue."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class Parts(Protocol):
    """A reader of parts of stages that does not block."""

    async def head(self, vhost: str, stage: str, part: int, /) -> PartHead:
        """Return the head of a part.

        Raises:
            DamagedPart: it cannot be read.
        """

    async def read(self, head: PartHead, first: int, end: int, /) -> list[bytes]:
        """Return cells of a part.

        Raises:
            DamagedPart: one cannot be read.
        """


class _Place(NamedTuple):
    """A place in a batch: the number of a part in its plan, and of a cell in that part."""

    part: int
    cell: int


class _Run(NamedTuple):
    """Consecutive cells of one part."""

    head: PartHead
    first: int
    end: int


class _Pieces:
    """Cuts a batch into pieces, from a place on. `fingerprints`: of the parts so far."""

    def __init__(self, parts: Parts, vhost: str, plan: CommitPlan, place: _Place) -> None:
        self.fingerprints: list[int] = []
        self._parts = parts
        self._vhost = vhost
        self._plan = plan
        self._part, self._cell = place
        self._head: PartHead | None = None

    @property
    def place(self) -> _Place:
        """The beginning of the next piece."""
        return _Place(self._part, self._cell)

    async def next(self) -> list[_Run]:
        """Return the next piece; an empty one at the end.

        Raises:
            DamagedPart: a part cannot be read. Conflict: it differs from the part that the batch began with.
        """
        runs: list[_Run] = []
        size = messages = 0
        while self._part < len(self._plan.parts):
            if self._head is None:
                self._head = await self._checked_head()
            head, first, full = self._head, self._cell, False
            for cell in head.cells[first:]:
                full = messages > 0 and (size + cell.size > PIECE_BYTES or messages + cell.messages > PIECE_MESSAGES)
                if full:
                    break
                size += cell.size
                messages += cell.messages
                self._cell += 1
            if first < self._cell:
                runs.append(_Run(head, first, self._cell))
            if full:
                break
            self._part, self._cell, self._head = self._part + 1, 0, None
        return runs

    async def _checked_head(self) -> PartHead:
        stage, number = self._plan.parts[self._part]
        head = await self._parts.head(self._vhost, stage, number)
        found = head.fingerprint()
        self.fingerprints.append(found)
        if self._plan.fingerprints and self._plan.fingerprints[self._part] != found:
            raise Conflict(
                f"part {number} of stage '{stage}' was written again after batch {self._plan.batch} had begun to be "
                "published: forget the query, or have the node lead that has it as it was"
            )
        return head


class BatchPublishing:
    """Publishes one batch."""

    def __init__(
        self,
        management: Management,
        parts: Parts,
        vhost: str,
        records: RecordsOfVhost,
        user: str,
        order: Order,
        parts_of_batch: list[tuple[str, int]],
        *,
        in_one_piece: bool,
    ) -> None:
        self._management = management
        self._parts = parts
        self._vhost = vhost
        self._user = user
        self._order = order
        self._plan = CommitPlan(order.batch, parts_of_batch, purged=order.purged)
        self._in_one_piece = in_one_piece
        self._records = records
        self._notes = CommitNotes(records)

    async def run(self) -> Outcome:
        """Publish the rest of the batch.

        Raises:
            Unroutable: some messages would reach no queue. NoStage: the vhost was deleted. AmqpError, QueueFull,
            DamagedPart, Conflict.
        """
        order = self._order
        note = self._notes.maybe_note(order.query)
        plan = self._notes.maybe_plan(order.query)
        if plan is None or note is None:
            now_ms = self._management.clock_ms()
            until_ms = None if order.kept_ms is None else now_ms + order.kept_ms
            note = Note(
                order.batch,
                self._user,
                done=False,
                mandatory=order.mandatory,
                at_ms=self._management.clock_ms(),
                until_ms=until_ms,
                counted=True,
                staged=order.staged,
                earlier=[] if note is None or not note.binds(self._user) else note.batches(),
                exchanges=[] if note is None or note.exchanges is None else note.exchanges,
            )
            if not self._in_one_piece:
                self._plan = msgspec.structs.replace(self._plan, fingerprints=await self._try_out())
                self._notes.begin(order.query, note, self._plan)
                await self._synced()
        else:
            self._plan = plan
        pieces = self._pieces(_Place(note.part, note.cell))
        while piece := await pieces.next():
            note = await self._publish(piece, note, pieces.place)
        if not note.done and self._plan.purged is not None:
            note = await self._publish([], note, pieces.place)  # no message, but a purge
        if not note.done:
            note = msgspec.structs.replace(note, done=True)
            self._notes.store(order.query, note)
        await self._synced()
        return Outcome(committed=True, messages=note.messages, unroutable=note.unroutable)

    def _pieces(self, place: _Place) -> _Pieces:
        return _Pieces(self._parts, self._vhost, self._plan, place)

    async def _synced(self) -> None:
        self._management.settle()
        await self._management.messages.deleted()
        await self._management.commit(self._management.view.last_ticket())

    async def _try_out(self) -> list[int]:
        """Make sure that nothing would be refused, by publishing all messages and rolling that back.

        Returns:
            The fingerprints of all parts.
        """
        unroutable = 0
        pieces = self._pieces(_Place(0, 0))
        while piece := await pieces.next():
            async with self._filled(piece, is_tried=True) as client:
                checked = await client.try_out(mandatory=self._order.mandatory, purged=self._plan.purged)
                unroutable += checked.unroutable
                _raise_if_full(checked)
        if unroutable and self._order.mandatory:
            raise Unroutable(unroutable)
        return pieces.fingerprints

    async def _publish(self, piece: list[_Run], note: Note, following: _Place) -> Note:
        """Publish a piece together with its note, which is returned; `following`: the beginning of the next piece."""
        while self._management.view.is_congested():
            await trio.sleep(_POLL_S)
        async with self._filled(piece, is_tried=False) as client:
            while self._management.view.vhosts.has_claims(self._vhost):
                await trio.sleep(_POLL_S)  # a part of it may repeat messages that are under way
            published, exchanges = client.staged(note.exchanges or [], EXCHANGES_MAX)
            further = note

            def store_note(unroutable: int) -> None:
                nonlocal further
                further = msgspec.structs.replace(
                    note,
                    done=following.part == len(self._plan.parts),
                    messages=note.messages + published - unroutable,
                    unroutable=note.unroutable + unroutable,
                    part=following.part,
                    cell=following.cell,
                    at_ms=self._management.clock_ms(),
                    exchanges=exchanges,
                )
                self._notes.store(self._order.query, further)

            purged = self._plan.purged if note.part == note.cell == 0 else None  # with the first piece
            refused = await client.commit(store_note, mandatory=note.mandatory, purged=purged)
            if refused is not None:
                _raise_if_full(refused)
                raise Unroutable(refused.unroutable)
        return further

    @asynccontextmanager
    async def _filled(self, piece: list[_Run], *, is_tried: bool) -> AsyncIterator[DirectClient]:
        """Open a transaction with the messages of a piece; it is rolled back unless it is committed.

        Raises:
            NoStage: the vhost of the batch was deleted.
        """
        with self._management.clients.open(self._user, self._vhost) as client:
            if not self._management.view.records.are_of(self._records, self._vhost):
                # A vhost of the same name must not get the rest of a batch, whose notes are not among its records.
                raise NoStage(f"vhost '{self._vhost}' was deleted after batch {self._order.batch} had begun")
            # Messages that are only tried now are announced when they are published.
            await client.begin_transaction(is_announced=not is_tried)
            for head, first, end in piece:
                for at in range(first, end, _READ_CELLS):
                    for publishes in await self._parts.read(head, at, min(at + _READ_CELLS, end)):
                        await client.put(publishes)
                        await trio.lowlevel.checkpoint()
            yield client


def _raise_if_full(checked: Checked) -> None:
    if checked.full_queue is not None:
        vhost, name = checked.full_queue
        raise QueueFull(f"queue '{name}' in vhost '{vhost}' has no room for the whole batch")
