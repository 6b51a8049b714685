"""Stage messages: store them first, publish them later, completely and exactly once.

A writer stores publishes as parts of stages. No consumer sees them yet. A commit names a query, the number of a batch
and the stages of the batch. It publishes them as the committing user would over AMQP.

    put part ... put part  ->  commit(query, batch, stages)  ->  published and remembered  ->  stages removed

1. A batch of a query is published once, however often it is committed and wherever the broker or the writer dies: the
   messages and the note about them are in one frame of the log. Committing a committed batch again is a duplicate, and
   drops its stages. If the commit asks for that, the number of its messages decides as well: see `OtherBatch`. A commit
   that leaves out batches is refused (``commit_notes`` (2)).
2. A batch of at most `PIECE_BYTES` and `PIECE_MESSAGES` is one transaction: all of it is there at once, or nothing. A
   transaction with more than 16,384 destinations takes several turns, as a long tx.commit does. A crash leaves all or
   nothing of it, too, and queues that may refuse publishes reserve room for it meanwhile. A larger batch is tried out
   first (published and rolled back, a piece at a time). Then its plan is stored, and it is published a piece at a time,
   each piece with a note of the progress. After a crash the broker continues from there when it starts, before it
   answers any request about that query. It uses only the parts that it began with: the plan has a fingerprint of each.
3. If one message of a mandatory batch would not reach any queue, nothing of the batch is published. The same applies if
   a queue would refuse a message, or the user may not publish it. A batch whose plan is stored stops where that
   happens. Committing it again continues from there, with the stages that it began with.
   A stage without a part below its last one is not published: its beginning was removed while it was written.
   A stage without any part is not published either: its first one could not be stored.
   A batch may replace the waiting messages of a queue: these go in the frame of its first piece.
4. A commit is answered when the commit, and every queue that received messages from it, is synced. A part is answered
   when it is synced.
5. A commit continues even if no client waits for it any longer. Each query has one commit at a time. Another request
   for the same batch and stages waits for the same commit, and gets its answer. One with other stages waits until the
   commit is over: then it is one for a batch that was committed, or begins its own.
6. A stage belongs to the user who made it. It is removed if no part was added for `STAGE_TTL_S` and no commit needs it.
   When its vhost is deleted it is over: a later vhost of the name does not see it, even if a crash has left its files.
   Each part has the random id that its vhost got with its first stage, and keeps in its records: the life of the vhost.
   If a start does not find that id, or the vhost, the files are set aside: the disk may have damaged it. Until they
   are, nothing is added to such a stage.
   A published stage that could not be removed is removed later; nothing is added to it until then.
   ``staged_space`` bounds what a user, and all users together, may have on disk.
7. Nodes of a cluster do not copy stages. When a node leads again after another one has led, its staged messages may
   have been staged again on that other node. So it keeps only the stages that a begun batch needs. If damage has taken
   the note that tells whether another node has led, the others are set aside.
8. Memory: the messages of one piece for each commit under way. At most `COMMITS_MAX` are under way,
   `COMMITS_OF_USER_MAX` of one user. The others wait.

Transient messages, and those for transient queues, are published once as well, but a crash loses them like any other
transient message.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio

from warren.amqp.errors import AmqpError
from warren.amqp.publishes import PublishScan, scan_publishes
from warren.engine_view.permissions import WRITE
from warren.engine_view.records import RecordsOfVhost
from warren.engine_view.topology import TopologyListener
from warren.server.logs import get_logger
from warren.server.management import Management
from warren.server.staging.commit_notes import CommitNotes, CommitPlan, Note, due
from warren.server.staging.stage_files import Cell, DamagedPart, PartHead, StageFiles
from warren.server.staging.staged_batch import (
    PIECE_BYTES,
    PIECE_MESSAGES,
    BatchPublishing,
    Conflict,
    MissingBatches,
    NoRoom,
    NoStage,
    NotOwner,
    Order,
    OtherBatch,
    Outcome,
    StageError,
    Unroutable,
)
from warren.server.staging.staged_space import StagedSpace
from warren.server.staging.vhost_lives import VhostLives
from warren.server.threads import STAGES, in_thread

# The most to check, read and hand to the engine without giving way.
CELL_BYTES: Final = 256 << 10
CELL_MESSAGES: Final = 1024

COMMITS_MAX: Final = 8
COMMITS_OF_USER_MAX: Final = 4
STAGE_TTL_S: Final = 24 * 3600
SWEEP_EVERY_S: Final = 3600
SWEEP_AFTER: Final = 10_000  # commits, each of which may have left a note of a new query
AT_ONCE: Final = 256  # steps of long loops without giving way

_POLL_S: Final = 0.02

_Result = TypeVar("_Result")

log = get_logger("stages")


@dataclass(slots=True)
class Stage:
    """The parts of a stage: messages and bytes of each. `needed_by`: the query whose commit needs, or needed, it.

    `is_over`: nobody sees it, and it is removed: its vhost was deleted, or another node has led meanwhile.
    `is_unknown`: it is over, but perhaps only because of damage, so its files are set aside. `life`: see `PartHead`.
    """

    vhost: str
    name: str
    user: str
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    changed_ms: int = 0
    life: str = ""
    needed_by: str | None = None
    is_over: bool = False
    is_unknown: bool = False
    lock: trio.Lock = field(default_factory=trio.Lock)
    messages: int = 0
    size: int = 0  # of the messages, encoded


@dataclass(slots=True)
class _Commit:
    """A commit under way. `records`: of its vhost."""

    vhost: str
    records: RecordsOfVhost
    user: str
    order: Order
    done: trio.Event = field(default_factory=trio.Event)
    outcome: Outcome | None = None
    error: Exception | None = None


class _VhostEnds(TopologyListener):
    """Has the stages of deleted vhosts end."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def vhost_deleted(self, vhost: str) -> None:
        self._stages.vhost_deleted(vhost)


class Stages:
    """The stages of one broker, and their commits. Start `run` once."""

    def __init__(self, management: Management, data_dir: Path) -> None:
        self._management = management
        self._view = management.view
        self._files = StageFiles(data_dir)
        self._stages: dict[tuple[str, str], Stage] = {}
        self._space = StagedSpace(management)
        self._commits: dict[tuple[str, str], _Commit] = {}
        self._places = trio.CapacityLimiter(COMMITS_MAX)
        self._places_of_user: dict[str, trio.CapacityLimiter] = {}
        self._lives = VhostLives(management)
        self._ready = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._noted = 0  # commits since the last sweep
        self._is_epoch_noted = False
        self._sweep_due = trio.Event()
        self._view.watch(_VhostEnds(self))

    def now_ms(self) -> int:
        """Return the time in ms since the epoch by which stages age."""
        return self._management.clock_ms()

    # --- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Find existing stages, continue commits that a crash has interrupted, remove old stages. For ever."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            # In this block, since commits under way end with the nursery.
            keep = self._management.tasks.keep
            await keep("stages: what there is", self._resume)
            await keep("stages: removal", self._sweep_for_ever)

    async def _resume(self) -> None:
        await self._find()
        while self._view.is_restoring():
            await trio.sleep(_POLL_S)
        for stage in self._stages.values():
            is_current = self._lives.maybe_current(stage.vhost, stage.life)
            stage.is_unknown = is_current is None and not stage.is_over
            stage.is_over = stage.is_over or not is_current
        self._go_on()
        await self._end_superseded()
        for stage in [each for each in self._stages.values() if each.is_unknown]:
            await self._remove(stage)
        await self._maybe_note_epoch()
        self._ready.set()

    async def _sweep_for_ever(self) -> None:
        while True:
            self._noted = 0
            self._sweep_due = trio.Event()
            await self._sweep()
            with trio.move_on_after(SWEEP_EVERY_S):
                await self._sweep_due.wait()

    async def _find(self) -> None:
        self._stages.clear()
        self._space.clear()
        for found in await self._in_thread(lambda: list(self._files.scan())):
            if isinstance(found, DamagedPart):
                log.error("a part of a stage is unusable and left in place", reason=str(found))
                continue
            key = (found.vhost, found.stage)
            stage = self._stages.get(key)
            if stage is None:
                stage = Stage(found.vhost, found.stage, found.user)
                self._stages[key] = stage
                self._space.count(found.user, 1, 0, 0)
            self._add(stage, found.part, found.messages, found.size)
            stage.life = stage.life or found.life
            stage.changed_ms = max(stage.changed_ms, found.at_ms)

    def _go_on(self) -> None:
        """Continue the batches that a crash has interrupted."""
        for vhost in list(self._view.vhosts):
            notes = CommitNotes(self._view.records.of(vhost))
            for query, plan in notes.plans().items():
                note = notes.maybe_note(query)
                if note is None or note.done or (vhost, query) in self._commits:
                    continue
                order = _order_of(query, note, plan)
                for stage in self._maybe_stages(vhost, order.stages):
                    stage.needed_by = query
                try:
                    self._begin(vhost, note.user, order, has_begun=True)
                except (StageError, DamagedPart) as error:
                    log.error("a commit cannot be resumed", vhost=vhost, query=query, reason=str(error))
                else:
                    log.info("resuming a commit", vhost=vhost, query=query, batch=note.batch)

    async def _end_superseded(self) -> None:
        """End the stages that another node may have in a newer form."""
        if self._management.replication is None or self._is_epoch_noted:
            return
        epoch = self._view.log().epoch
        is_unknown = False
        try:
            noted = await self._in_thread(self._files.maybe_epoch)
        except (DamagedPart, OSError) as error:
            log.error("it is not known whether another node has led since stages were written", reason=str(error))
            is_unknown = True
        else:
            # Noted in this very life: the task that finds existing stages was restarted.
            if noted is None or noted in (epoch - 1, epoch):
                return
        for stage in [each for each in self._stages.values() if each.needed_by is None]:
            log.info("another node may have a newer form of a stage", vhost=stage.vhost, stage=stage.name)
            stage.is_over = True
            stage.is_unknown = is_unknown
            await self._remove(stage)

    async def _maybe_note_epoch(self) -> None:
        """Note that the stages are ours, once none is left that may not be: those stay superseded until then."""
        if self._management.replication is None or self._is_epoch_noted:
            return
        if any(stage.is_over for stage in self._stages.values()):
            return
        try:
            await self._in_thread(partial(self._files.note_epoch, self._view.log().epoch))
        except OSError as error:
            log.error("the epoch of the stages cannot be noted", reason=str(error))
        else:
            self._is_epoch_noted = True

    async def _sweep(self) -> None:
        await self._ready.wait()  # before that, it is not known which stages begun batches need
        now_ms = self._management.clock_ms()
        vhosts = self._view.vhosts
        for stage in list(self._stages.values()):
            if self._is_needed(stage):
                continue
            is_over = stage.is_over or stage.needed_by is not None or stage.vhost not in vhosts
            if is_over or now_ms - stage.changed_ms > STAGE_TTL_S * 1000:
                log.info("removing a stage that was not committed", vhost=stage.vhost, stage=stage.name)
                await self._remove(stage)
        await self._maybe_note_epoch()
        for vhost in list(vhosts):
            found = await self.notes(vhost)
            queries = await self._in_thread(partial(due, found, now_ms))
            for start in range(0, len(queries), AT_ONCE):
                notes = self._maybe_notes(vhost)
                if notes is None:
                    break
                for query in queries[start : start + AT_ONCE]:
                    notes.expire(query, found[query])
                self._management.settle()
                await trio.lowlevel.checkpoint()

    def vhost_deleted(self, vhost: str) -> None:
        """Schedule the removal of the stages of a deleted vhost."""
        for stage in self._stages.values():
            if stage.vhost == vhost:
                stage.is_over = True
        self._lives.forget(vhost)
        self._sweep_due.set()

    # --- parts ------------------------------------------------------------------------------------------------------

    async def put(
        self, vhost: str, stage_name: str, part: int, user: str, content: bytes, authorize: Callable[[str], None]
    ) -> int:
        """Check and store a part, replacing one of the same number; return how many messages it has.

        `authorize` is called with the name of each exchange in it, and raises if the user may not publish there.

        Raises:
            ConnectionException, ChannelException: it is malformed. Conflict: the stage is another user's, or is being
            committed. NoRoom: it does not fit. NoStage: the vhost was deleted.
        """
        await self._ready.wait()
        scan = PublishScan(self._view.message_bytes_max())
        cells = await _cells(scan, content)
        for at, exchange in enumerate(scan.exchanges, 1):
            authorize(exchange)
            if at % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        key = (vhost, stage_name)
        stage = self._stages.get(key)
        if stage is not None and stage.is_over:
            await self._remove(stage)
        life = await self._lives.need(vhost)
        head = PartHead(vhost, stage_name, part, user, self._management.clock_ms(), cells, life)
        stage = self._stages.get(key)
        if stage is None:
            self._space.check_stage(user)
            stage = Stage(vhost, stage_name, user, changed_ms=head.at_ms, life=life)
            self._stages[key] = stage
            self._space.count(user, 1, 0, 0)
        try:
            async with stage.lock:
                is_gone = self._stages.get(key) is not stage or stage.is_over
                if is_gone or stage.user != user or stage.needed_by is not None:
                    raise Conflict(f"stage '{stage_name}' is another user's, or is being committed or removed")
                self._space.check_part(user, len(content))
                await self._in_thread(partial(self._files.write, head, content))
                self._add(stage, part, head.messages, len(content))
                stage.changed_ms = head.at_ms
        except OSError as error:
            raise NoRoom(f"the part cannot be stored: {error.strerror}") from None
        finally:
            self._forget_if_empty(stage)  # also when it was cancelled before it had the lock
        return head.messages

    def _add(self, stage: Stage, part: int, messages: int, size: int) -> None:
        messages_before, before = stage.parts.get(part, (0, 0))
        self._space.count(stage.user, 0, int(part not in stage.parts), size - before)
        stage.parts[part] = (messages, size)
        stage.messages += messages - messages_before
        stage.size += size - before

    async def remove(self, vhost: str, stage_name: str, user: str | None) -> None:
        """Remove a stage; `user` None: of any user.

        Raises:
            NoStage: it does not exist. Conflict: it is being committed.
        """
        await self._ready.wait()
        stage = self._stages.get((vhost, stage_name))
        if stage is None:
            raise NoStage(f"no stage '{stage_name}' in vhost '{vhost}'")
        if user is not None and stage.user != user:
            raise NoStage(f"stage '{stage_name}' is another user's")
        if self._is_needed(stage):
            raise Conflict(f"stage '{stage_name}' is being committed")
        await self._remove(stage)

    async def _remove(self, stage: Stage) -> None:
        async with stage.lock:
            if self._stages.get((stage.vhost, stage.name)) is not stage:
                return
            work = self._files.set_aside if stage.is_unknown else self._files.remove
            try:
                place = await self._in_thread(partial(work, stage.vhost, stage.name))
            except OSError as error:
                log.error("a stage cannot be removed", vhost=stage.vhost, stage=stage.name, reason=str(error))
                return
            if place is not None:
                log.error("a stage of unknown origin is set aside", vhost=stage.vhost, stage=stage.name, place=place)
            self._forget(stage)

    def _is_needed(self, stage: Stage) -> bool:
        """Tell whether a commit is under way, or has begun, that needs this stage."""
        query = stage.needed_by
        if query is None:
            return False
        if (stage.vhost, query) in self._commits:
            return True
        is_over = stage.is_over or stage.vhost not in self._view.vhosts
        return not is_over and CommitNotes(self._view.records.of(stage.vhost)).has_plan(query)

    def _forget_if_empty(self, stage: Stage) -> None:
        """Forget a stage without a part, unless another request has its lock and sees to it."""
        if not stage.parts and not stage.lock.locked() and self._stages.get((stage.vhost, stage.name)) is stage:
            self._forget(stage)

    def _forget(self, stage: Stage) -> None:
        del self._stages[stage.vhost, stage.name]
        self._space.count(stage.user, -1, -len(stage.parts), -stage.size)

    async def listed(self, vhosts: Collection[str], user: str | None) -> list[Stage]:
        """Return the stages in these vhosts, of `user` or of all; the oldest first."""
        await self._ready.wait()
        there = [each for each in self._stages.values() if each.vhost in vhosts and not each.is_over]
        found = [each for each in there if user in (None, each.user)]
        return sorted(found, key=lambda stage: (stage.changed_ms, stage.name))

    # --- commits ----------------------------------------------------------------------------------------------------

    async def commit(self, vhost: str, user: str, order: Order, *, supersedes: str | None = None) -> Outcome:
        """Publish the stages of a batch, unless that was done before, and wait until it is synced.

        `supersedes`: afterwards, other stages of this user whose names begin with this text are removed: those of tasks
        that were killed before they could remove them.

        Raises:
            AmqpError: the user may not publish that. NoStage: a stage does not exist. QueueFull: a queue is full.
            NotOwner: the query is another user's, and this user lacks a right that it needs. Conflict: another batch of
            the query is not done; another user has committed this one or a later one.
            MissingBatches: batches before it were not committed here. OtherBatch: one of this number had more or fewer
            messages, or their number is no longer known.
            DamagedPart: stored messages have become unreadable.
        """
        outcome = await self._committed(vhost, user, replace(order, stages=list(dict.fromkeys(order.stages))))
        if supersedes is not None and (outcome.committed or outcome.duplicate):
            found: list[str] = []
            for at, stage in enumerate(list(self._stages.values()), 1):
                if stage.vhost == vhost and stage.name.startswith(supersedes):
                    found.append(stage.name)
                if at % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            await self._drop(vhost, user, found)
        return outcome

    async def _committed(self, vhost: str, user: str, order: Order) -> Outcome:
        await self._ready.wait()
        while (running := self._commits.get((vhost, order.query))) is not None:
            if running.order.batch != order.batch or running.user != user:
                raise Conflict(
                    f"batch {running.order.batch} of query '{order.query}' is being committed by user '{running.user}'"
                )
            if set(running.order.stages) == set(order.stages):
                break
            await running.done.wait()
        notes = self._maybe_notes(vhost)
        if notes is None:
            raise NoStage(f"vhost '{vhost}' was deleted")
        note = self._maybe_binding(vhost, user, order, notes.maybe_note(order.query))
        if note is None and order.follows:
            raise MissingBatches(
                f"no batch of query '{order.query}' before batch {order.batch} is known, as after the restore of an "
                "older backup: none of them is in the queues, or the query was forgotten"
            )
        if running is None:
            if note is not None and (order.batch < note.batch or (note.done and order.batch == note.batch)):
                is_heir = note.user != user
                if is_heir and not self._lacks(vhost, note.user, note, is_empty=False):
                    raise Conflict(
                        f"user '{note.user}' has committed batch {note.batch} of query '{order.query}': "
                        f"other users are not told that batch {order.batch} was committed before"
                    )
                if order.compares or is_heir:
                    self._check_same(vhost, order, note)
                await self._drop(vhost, user, order.stages)
                return Outcome(committed=False, duplicate=True)
            plan = notes.maybe_plan(order.query)
            if note is not None and note.done and note.counted and order.batch > note.batch + 1:
                raise MissingBatches(
                    f"batch {order.batch} of query '{order.query}' cannot follow batch {note.batch}: those from "
                    f"{note.batch + 1} to {order.batch - 1} are missing, as after the restore of an older backup. "
                    "Publish them again, or have the query forgotten (DELETE …/commits/QUERY) and continue without them"
                )
            if note is None or note.done:
                running = self._begin(vhost, user, order)
            elif plan is None or order.batch != note.batch:
                raise Conflict(f"batch {note.batch} of query '{order.query}' has begun and is not finished")
            else:
                running = self._begin(vhost, user, _order_of(order.query, note, plan), has_begun=True)
        await running.done.wait()
        outcome, error = running.outcome, running.error
        del running  # it has the error, whose traceback will have this frame: avoid a cycle
        if error is not None:
            try:
                raise error
            finally:
                del error
        assert outcome is not None
        if outcome.committed:
            await self._drop(vhost, user, order.stages)
        return outcome

    def _maybe_binding(self, vhost: str, user: str, order: Order, note: Note | None) -> Note | None:
        """Return the note that decides which batches of a query `user` may commit. `note`: the current one.

        Raises:
            NotOwner: `user` may not commit any.
        """
        if note is not None and note.user == user:
            return note
        staged = self._maybe_stages(vhost, order.stages)
        is_empty = not any(stage.messages for stage in staged if stage.user == user)
        lacks = self._lacks(vhost, user, note, is_empty=is_empty)
        if lacks and note is None:
            raise NotOwner(f"user '{user}' may not begin query '{order.query}': {lacks}")
        if lacks and note is not None:
            raise NotOwner(
                f"user '{note.user}' has committed batch {note.batch} of query '{order.query}', and user '{user}' may "
                f"not continue it: {lacks}"
            )
        if note is None or note.binds(user):
            return note
        if not self._lacks(vhost, note.user, note, is_empty=True):
            raise NotOwner(
                f"query '{order.query}' has published nothing and belongs to user '{note.user}' alone. It is free "
                "when that user is deleted or may not write, or when it is forgotten (DELETE …/commits/QUERY)"
            )
        return None

    def _lacks(self, vhost: str, user: str, note: Note | None, *, is_empty: bool) -> str:
        """Return which right `user` lacks for a batch of a query; "" if none. `is_empty`: the batch has no messages."""
        rights = self._view.permissions.maybe_rights(user, vhost)
        if rights is None:
            return "it may not enter the vhost"
        exchanges = [] if note is None else note.exchanges
        for exchange in exchanges or []:
            try:
                rights.authorize(WRITE, "exchange", exchange)
            except AmqpError:
                return f"it may not write to exchange '{exchange or 'amq.default'}', as the query does"
        if is_empty and exchanges is None:
            return "its batch is empty"
        if is_empty and not rights.may_some(WRITE):
            return "it may not write to any exchange"
        return ""

    def _begin(self, vhost: str, user: str, order: Order, *, has_begun: bool = False) -> _Commit:
        """Start a commit; `has_begun`: its plan names the parts.

        Raises:
            NoStage: a stage is missing, or belongs to another user. Conflict: another commit needs it.
            DamagedPart: a part of it was unusable at the start, so the batch would be incomplete.
        """
        assert self._nursery is not None
        needed: list[Stage] = []
        for name in order.stages:
            if self._files.is_damaged(vhost, name):
                raise DamagedPart(f"a part of stage '{name}' in vhost '{vhost}' is damaged; write it again")
            stage = self._stages.get((vhost, name))
            if stage is None or stage.is_over or stage.user != user:
                raise NoStage(self._why_missing(vhost, name, user, order))
            if stage.needed_by not in (None, order.query):
                raise Conflict(f"stage '{name}' is being committed by query '{stage.needed_by}'")
            needed.append(stage)
        for stage in needed:
            stage.needed_by = order.query
        self._noted += 1
        if self._noted >= SWEEP_AFTER:
            self._sweep_due.set()
        commit = _Commit(vhost, self._view.records.of(vhost), user, order)
        self._commits[vhost, order.query] = commit
        carry_out = partial(self._carry_out, has_begun=has_begun)
        self._nursery.start_soon(self._management.tasks.once, "commit of stages", carry_out, commit, needed)
        return commit

    def _check_same(self, vhost: str, order: Order, note: Note) -> None:
        """Make sure that a batch with a used number is the one that was published under it.

        Raises:
            OtherBatch: it differs.
        """
        stages = [self._stages.get((vhost, name)) for name in order.stages]
        staged = 0
        for stage in stages:
            if stage is None or stage.is_over:
                return  # dropped when it was published: only the answer was lost
            staged += stage.messages
        had = note.maybe_staged(order.batch)
        if had != staged:
            count = "a number of messages that is not remembered" if had is None else f"{had} messages"
            raise OtherBatch(
                f"batch {order.batch} of query '{order.query}' was published with {count}, and has {staged} now: its "
                f"writer was reset to an earlier point. Batch {note.batch} was published last"
            )

    def _why_missing(self, vhost: str, name: str, user: str, order: Order) -> str:
        """Say that a stage is missing, and with several nodes, which do not copy stages, what to do about it."""
        text = f"no stage '{name}' of user '{user}' in vhost '{vhost}'"
        if self._management.replication is None:
            return text
        text += ". If another node was the leader when it was written, the stage is there"
        if CommitNotes(self._view.records.of(vhost)).maybe_plan(order.query) is None:
            return f"{text}: write it again"
        return (
            f"{text}, and a part of batch {order.batch} of query '{order.query}' is published: make that node lead for "
            "the rest, or forget the query (DELETE …/commits/QUERY) and write the batch again"
        )

    async def _carry_out(self, commit: _Commit, needed: list[Stage], *, has_begun: bool) -> None:
        order = commit.order
        try:
            async with self._place(commit.user):
                for stage in needed:
                    async with stage.lock:
                        pass  # unfinished writes are done, and no new ones begin
                    if not has_begun:
                        _check_whole(stage)
                order = commit.order = replace(order, staged=sum(stage.messages for stage in needed))
                commit.outcome = await self._publishing(commit, needed).run()
        except Unroutable as unroutable:
            commit.outcome = Outcome(committed=False, unroutable=unroutable.count)
        except (AmqpError, StageError, DamagedPart) as error:
            commit.error = error.with_traceback(None)
        except Exception as error:
            # A defect of ours, met by one commit: fail only that one.
            log.error("internal error, a commit of stages has failed", query=order.query, exception=error)
            commit.error = error.with_traceback(None)
        try:
            await self._let_go(commit, needed)
        finally:
            del self._commits[commit.vhost, order.query]
            commit.done.set()
            if any(stage.is_over for stage in needed):
                self._sweep_due.set()

    async def _let_go(self, commit: _Commit, needed: list[Stage]) -> None:
        """Remove the stages of a commit that is over, or let others have them, unless it has to be resumed."""
        if commit.outcome is not None and commit.outcome.committed:
            for stage in needed:
                await self._remove(stage)
        elif not self._has_plan(commit):
            for stage in needed:
                stage.needed_by = None
                self._forget_if_empty(stage)
        else:
            reason = str(commit.error) if commit.error is not None else "some of the messages would reach no queue"
            log.warning(
                "commit interrupted; it resumes when requested again",
                vhost=commit.vhost,
                query=commit.order.query,
                batch=commit.order.batch,
                reason=reason,
            )

    def _has_plan(self, commit: _Commit) -> bool:
        """Tell whether a commit has begun, and its vhost is still there."""
        are_there = self._view.records.are_of(commit.records, commit.vhost)
        return are_there and CommitNotes(commit.records).has_plan(commit.order.query)

    @asynccontextmanager
    async def _place(self, user: str) -> AsyncIterator[None]:
        """Hold one of the places for commits, within the share of `user`."""
        mine = self._places_of_user.setdefault(user, trio.CapacityLimiter(COMMITS_OF_USER_MAX))
        try:
            async with mine, self._places:
                yield
        finally:
            if not mine.borrowed_tokens:
                self._places_of_user.pop(user, None)  # no commit waits for a place when all are free

    def _publishing(self, commit: _Commit, needed: list[Stage]) -> BatchPublishing:
        messages = sum(stage.messages for stage in needed)
        size = sum(stage.size for stage in needed)
        return BatchPublishing(
            self._management,
            self,
            commit.vhost,
            commit.records,
            commit.user,
            commit.order,
            [(stage.name, number) for stage in needed for number in sorted(stage.parts)],
            in_one_piece=messages <= PIECE_MESSAGES and size <= PIECE_BYTES,
        )

    def _maybe_stages(self, vhost: str, names: Sequence[str]) -> list[Stage]:
        """Return the existing stages among these names."""
        found = (self._stages.get((vhost, name)) for name in names)
        return [stage for stage in found if stage is not None and not stage.is_over]

    async def _drop(self, vhost: str, user: str, names: list[str]) -> None:
        """Remove the existing stages of an earlier commit."""
        for stage in self._maybe_stages(vhost, names):
            if stage.user == user and not self._is_needed(stage):
                await self._remove(stage)

    def _maybe_notes(self, vhost: str) -> CommitNotes | None:
        """Return the notes of a vhost; None if it was deleted."""
        return CommitNotes(self._view.records.of(vhost)) if vhost in self._view.vhosts else None

    async def notes(self, vhost: str) -> dict[str, Note]:
        """Return the notes about the queries of a vhost; nothing if it was deleted."""
        await self._ready.wait()
        found: dict[str, Note] = {}
        notes = self._maybe_notes(vhost)
        for query, note in () if notes is None else notes.each():
            found[query] = note
            if len(found) % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return found

    async def forget(self, vhost: str, query: str) -> bool:
        """Forget a query; the unpublished rest of its last batch is never published. False: it had no note.

        Raises:
            Conflict: a commit of it is under way.
        """
        await self._ready.wait()
        if (vhost, query) in self._commits:
            raise Conflict(f"a batch of query '{query}' is being committed")
        notes = self._maybe_notes(vhost)
        if notes is None or not notes.forget(query):
            return False
        for stage in self._stages.values():
            if stage.vhost == vhost and stage.needed_by == query:
                stage.needed_by = None
        self._management.settle()
        await self._management.messages.deleted()
        return True

    async def head(self, vhost: str, stage: str, part: int) -> PartHead:
        """Return the head of a part.

        Raises:
            DamagedPart: it cannot be read.
        """
        return await self._in_thread(partial(self._files.head, vhost, stage, part))

    async def read(self, head: PartHead, first: int, end: int) -> list[bytes]:
        """Return cells of a part.

        Raises:
            DamagedPart: one cannot be read.
        """
        return await self._in_thread(partial(self._files.read, head, first, end))

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await in_thread(STAGES, work)


async def _cells(scan: PublishScan, content: bytes) -> list[Cell]:
    """Check publishes and cut them into cells.

    Raises:
        ConnectionException, ChannelException: they are malformed.
    """
    cells: list[Cell] = []
    at = 0
    while messages := int(scan_publishes(scan, content, CELL_BYTES, CELL_MESSAGES)):
        end = int(scan.pos)
        cells.append(Cell(end - at, messages, zlib.crc32(memoryview(content)[at:end])))
        at = end
        await trio.lowlevel.checkpoint()
    return cells


def _check_whole(stage: Stage) -> None:
    """Make sure that a stage has parts, and all up to its last one.

    Raises:
        NoStage: it lacks one.
    """
    if not stage.parts:
        raise NoStage(f"stage '{stage.name}' in vhost '{stage.vhost}' has no part: its first one could not be stored")
    if max(stage.parts) < len(stage.parts):
        return
    gap = next(number for number in range(len(stage.parts)) if number not in stage.parts)
    raise NoStage(
        f"part {gap} of stage '{stage.name}' in vhost '{stage.vhost}' is missing: a stage has parts from 0 to the last "
        "one. If it was removed, or another node led, while it was written, write all of it again"
    )


def _order_of(query: str, note: Note, plan: CommitPlan) -> Order:
    """Return the order of a begun batch."""
    stages = list(dict.fromkeys(stage for stage, _ in plan.parts))
    return Order(query, note.batch, stages, note.mandatory, purged=plan.purged)
