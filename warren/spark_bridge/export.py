"""Export: the messages of a queue or a stream, written into files once.

    source                               rows         target              each commit, in this order
    log       a stream, from .. to       as they      files in _tmp       1. the files are complete and on disk
    snapshot  a frozen copy of a queue   come, or     or a Delta table    2. they get their names
    drain     claimed messages,          some                             3. the manifest names them and the next offset
              acked afterwards                                            4. drain: their messages are acked

1. After any crash a second run continues where the manifest ends: every row is in the files once, and a drain acks only
   messages that are in a file. Files of a run that are not in the manifest are deleted by the next run, if it reads
   their messages again: else the manifest is an older copy, and the export ends.
2. Counts are verified: rows read against the offsets that were covered, rows written against the counts in the files
   themselves.
3. Messages that retention has removed, or that cannot be read, end the export with `DataLoss`. With `skip_lost` they
   are counted instead.
4. One export at a time writes into a directory, or with a checkpoint. To an object store that is so on this machine
   only: an export on another one takes over, after which this one ends, and nothing that it still writes is read. A
   drain by another session does not take over; it ends before it acknowledges anything.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from warren.spark_bridge import conditions, manifest, nodes
from warren.spark_bridge.bridge_errors import (
    AnotherQueue,
    BridgeError,
    DataLoss,
    Diverged,
    Gone,
    NoSnapshot,
    UsageError,
)
from warren.spark_bridge.columns import Context, to_record_batches
from warren.spark_bridge.control import BrokerClient, Description, DrainSession
from warren.spark_bridge.export_targets import DeltaTarget, FileTarget, Target
from warren.spark_bridge.lives import Lives, Remembered, id_at
from warren.spark_bridge.manifest import FileEntry, Manifest
from warren.spark_bridge.offsets import CLAIMS, STREAMS, Position
from warren.spark_bridge.places import Directory, Place, note_at, place_of
from warren.spark_bridge.schema import COLUMN_NAMES, FROM_PROPERTIES, TYPED, arrow_schema
from warren.spark_bridge.start_offsets import offset_at
from warren.spark_bridge.table_files import DELTA, PARQUET, checked_compression
from warren.spark_bridge.worker_output import say

LOG: Final = "log"
SNAPSHOT: Final = "snapshot"
DRAIN: Final = "drain"
MODES: Final = (LOG, SNAPSHOT, DRAIN)
DATE: Final = "date"
SNAPSHOT_TTL_S: Final = 24 * 3600
CLAIM_ROWS: Final = 1_000_000
MAX_FILE_BYTES: Final = 256 << 20
_AHEAD: Final = 2  # chunks read while others are written
_LEAVE_S: Final = 2.0  # how long to wait for an answer that is no longer needed


@dataclass(frozen=True)
class ExportOptions:
    """The source of an export, and its target: a directory, or a URL.

    `start`, `end`: an offset, first, last, next, an age or a time.
    """

    queue: str
    to: Path | str
    form: str = PARQUET
    mode: str | None = None
    start: str | None = None
    end: str | None = None
    columns: tuple[str, ...] | None = None
    headers_format: str = TYPED
    where: str | None = None
    partition_by: str | None = None
    max_file_bytes: int = MAX_FILE_BYTES
    compression: str | None = None
    consumer: str | None = None
    skip_lost: bool = False
    checkpoint: Path | None = None


class Watcher(Protocol):
    """Observes the progress of an export."""

    def planned(self, rows: int, bytes: int) -> None:
        """Note the approximate amount to read."""

    def advanced(self, rows: int, bytes: int) -> None:
        """Note that this much more was read."""

    def committed(self, state: Manifest) -> None:
        """Note the state that is safe now."""


class Planned(NamedTuple):
    """The plan of an export."""

    mode: str
    sources: tuple[tuple[str, int, int], ...]  # name, from, to
    rows: int
    bytes: int


class _Source(NamedTuple):
    """A stream, or snapshot, to be read from one offset to another."""

    name: str
    queue: str
    partition: int
    id: str
    first: int
    end: int
    bytes: int
    snapshot: str | None = None
    nodes: tuple[str, ...] = ()
    lives: Lives | None = None

    def life_at(self, offset: int) -> str | None:
        """Return the life of the broker that has written the last offset below `offset`, if it is known."""
        return None if self.lives is None else self.lives.at(offset)


class _Read(NamedTuple):
    """Rows of the offsets [first, end)."""

    first: int
    end: int
    rows: int
    bytes: int
    batches: list[pa.RecordBatch]
    is_compacted: bool = False  # missing offsets are not lost


class Export:
    """One run."""

    def __init__(self, client: BrokerClient, options: ExportOptions, watcher: Watcher) -> None:
        self._client = client
        self._options = options
        self._watcher = watcher
        self._remembered = Remembered("the directory", say)
        self._compression = checked_compression(options.form, options.compression)
        self._condition = None if options.where is None else conditions.parse(options.where)
        try:
            self._schema = arrow_schema(options.columns, options.headers_format)
            if options.partition_by not in (None, DATE):
                self._check_partition(str(options.partition_by))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if len(set(self._schema.names)) != len(self._schema.names) or not self._schema.names:
            raise UsageError("columns: each of them once, and at least one")
        if options.max_file_bytes < 1:
            raise UsageError("the size of files must be positive")
        self._reading = self._reading_schema()
        self.place = self._checked_place()
        self._note = manifest.note_in(self.place) if options.checkpoint is None else note_at(options.checkpoint)
        self._before = self._note  # which this run continues
        self.rows_before = 0  # that earlier runs wrote
        self._is_noted = False  # whether there is a manifest
        self._state: Manifest | None = None
        self._after: Manifest | None = None
        self._target: Target | None = None

    def _checked_place(self) -> Place:
        place = place_of(self._options.to)
        if self._options.form == DELTA and not isinstance(place, Directory):
            raise UsageError("format delta: --to must be a directory on this machine")
        return place

    def _check_partition(self, name: str) -> None:
        kind = arrow_schema([name]).field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise UsageError(f"files cannot be put into directories by {name}")

    def _reading_schema(self) -> pa.Schema:
        """Return the columns that are read: those to be written, and those that are asked or divided by."""
        needed = set(self._schema.names)
        if self._condition is not None:
            needed |= self._condition.columns
        if self._options.partition_by == DATE:
            needed.add("timestamp")
        elif self._options.partition_by is not None:
            needed.add(self._options.partition_by)
        return arrow_schema([name for name in COLUMN_NAMES if name in needed], self._options.headers_format)

    # --- the whole -----------------------------------------------------------------------------------------------

    def plan(self) -> Planned:
        """Return the plan of `run`; nothing is written, frozen or claimed."""
        state = self._maybe_loaded()
        found = self._client.describe(self._options.queue)
        mode = self._mode(found)
        if state is not None:
            self._check_same(state, mode)
        if mode == LOG:
            sources = self._streams(found, {} if state is None else state.positions)
            return Planned(
                mode,
                tuple((source.name, source.first, source.end) for source in sources),
                sum(source.end - source.first for source in sources),
                sum(source.bytes for source in sources),
            )
        return Planned(mode, ((found.name, 0, found.messages),), found.messages, found.bytes)

    def run(self) -> Manifest:
        """Export, and return the manifest.

        Raises:
            DataLoss: something that should be read is gone. UsageError: the options, or the directory, do not fit.
            BrokerError: as the broker says. OSError: the files cannot be written.
        """
        self.place.begin()
        with self.place.only_one(), self._only_with_checkpoint(), ExitStack() as stack:
            found = self._client.describe(self._options.queue)
            mode = self._mode(found)
            state = self._begun(mode)
            session, mark = None, 0
            if mode == DRAIN:
                session = self._opened(state)
                consumer, state = state.source["consumer"], self._begun(mode)  # nobody acknowledges by another one now
                if state.source["consumer"] != consumer:
                    raise UsageError(f"another export is writing into {self.place}")
                # If this is refused, the manifest may be of a later session.
                mark = self._client.mark(self._options.queue, str(consumer), session.epoch)
                stack.enter_context(manifest.only_session(self._note, f"{consumer} {session.id}"))
            self._before = self._note
            self._note = manifest.note_of_run(self._before, 0 if session is None else session.epoch)
            self._is_noted = self._is_noted and self._note == self._before
            self._target = self._made_target(state)
            self._target.clean(state)
            self._state, self._after = state, state.copied()
            self.rows_before = state.rows
            try:
                if mode == LOG:
                    self._log(found)
                elif session is None:
                    self._snapshot()
                else:
                    self._drain(session, mark)
            except BaseException:
                self._target.abandon()
                raise
            self._target.verify(state)
            self._check_counts(state)
            state.state = manifest.COMPLETE
            self._save(state)
            if mode == SNAPSHOT:
                self._client.delete_snapshot(self._options.queue, str(state.source["snapshot"]))
            return state

    def _only_with_checkpoint(self) -> AbstractContextManager[None]:
        """Return a context in which no other process on this machine has the checkpoint that was named."""
        if self._options.checkpoint is None:
            return nullcontext()
        return self._note.only_one(f"another export is using {self._note}")

    def _maybe_loaded(self) -> Manifest | None:
        """Return the manifest as it is now; None: it does not exist yet."""
        if self._options.checkpoint is not None:
            return manifest.maybe_load(self._note)
        self._note, state = manifest.load_in(self.place)
        return state

    def _save(self, state: Manifest, new: Iterable[FileEntry] = ()) -> None:
        """Write the manifest; `new`: files that it is the first to name.

        Raises:
            UsageError: that of another run counts now; no manifest names these files, and they are deleted.
        """
        if manifest.is_overtaken(self._note):
            for entry in new:
                with suppress(OSError):
                    self.place.delete(entry.path)
            raise UsageError(f"another export is writing into {self.place}")
        state.save(self._note)

    def _take_note(self) -> None:
        """Write the manifest, if this run has none: by it files are recognized, and from now on no other one counts."""
        if not self._is_noted:
            self._save(self._now()[0])
            self._is_noted = True
            manifest.drop_earlier(self._note, self._before)

    def _check_counts(self, state: Manifest) -> None:
        if state.read + state.missing != state.covered or state.rows + state.filtered != state.read:
            raise BridgeError(f"the counts in {self._note} do not add up: this is a bug in Warren")

    def _mode(self, found: Description) -> str:
        is_stream = found.type in ("stream", "super-stream")
        mode = self._options.mode or (LOG if is_stream else SNAPSHOT)
        if mode not in MODES:
            raise UsageError(f"mode {mode!r}: must be one of {', '.join(MODES)}")
        if (mode == LOG) != is_stream:
            raise UsageError(f"mode {mode}: {found.name!r} is a {found.type}")
        if mode != LOG and (self._options.start is not None or self._options.end is not None):
            raise UsageError(f"mode {mode}: from and to are for streams")
        if mode == DRAIN and self._options.where is not None:
            raise UsageError(
                f"mode {mode}: with a condition the other messages would leave the queue, too, and be in no file. "
                "Export without it; claims of an earlier version return by: warren ctl release_drain QUEUE NAME"
            )
        if mode != DRAIN and self._options.consumer is not None:
            raise UsageError(f"mode {mode}: a consumer name is for draining")
        return mode

    def _consumer(self, state: Manifest | None) -> str:
        """Return the name of the session for draining: the next run finds its claims by it.

        As long as there may be claims it is the name in the manifest, even if the place was moved, or an earlier
        version made the name. Else it is the same for the same queue and place.
        """
        if self._options.consumer is not None:
            return self._options.consumer
        if state is not None and state.state != manifest.COMPLETE and state.source.get("consumer") is not None:
            return str(state.source["consumer"])
        text = "\0".join((self._client.vhost, self._options.queue, *self.place.identity))
        return f"export-{sha256(text.encode()).hexdigest()[:12]}"

    def _settings(self) -> dict[str, Any]:
        return {
            "format": self._options.form,
            "columns": self._schema.names,
            "headers": self._options.headers_format,
            "where": self._options.where,
            "partition_by": self._options.partition_by,
            "compression": self._compression,
        }

    def _source_document(self, mode: str, state: Manifest | None) -> dict[str, Any]:
        return {
            "vhost": self._client.vhost,
            "queue": self._options.queue,
            "mode": mode,
            "consumer": self._consumer(state) if mode == DRAIN else None,
            "snapshot": None,
        }

    def _check_same(self, state: Manifest, mode: str) -> None:
        """Make sure that the directory belongs to the requested export."""
        wanted = {**self._source_document(mode, state), **self._settings()}
        had = {**state.source, **state.settings}
        # The session of a complete export was deleted, whatever its name was.
        others = ("snapshot", "consumer") if state.state == manifest.COMPLETE else ("snapshot",)
        for key in {**had, **wanted}:
            if key not in others and had.get(key) != wanted.get(key):
                raise UsageError(
                    f"{self._note} is of an export with {key} {had.get(key)!r}, not {wanted.get(key)!r}: "
                    "use another directory"
                )

    def _begun(self, mode: str) -> Manifest:
        """Return the existing manifest, or a new one."""
        state = self._maybe_loaded()
        self._is_noted = state is not None
        if state is not None:
            self._check_same(state, mode)
            if mode != SNAPSHOT:  # of which there is no more than there was
                state.source = self._source_document(mode, state)
                state.state = manifest.RUNNING
            return state
        if self._options.form != DELTA and not self.place.is_empty:
            raise UsageError(f"{self.place} is not empty, and has no {manifest.NAME}: use another one")
        kind = CLAIMS if mode == DRAIN else STREAMS
        return Manifest(self._source_document(mode, None), self._settings(), kind)

    def _kind_of_target(self) -> type[DeltaTarget] | type[FileTarget]:
        return DeltaTarget if self._options.form == DELTA else FileTarget

    def _made_target(self, state: Manifest) -> Target:
        return self._kind_of_target()(
            place=self.place,
            form=self._options.form,
            compression=self._compression,
            schema=self._schema,
            partition_by=self._options.partition_by,
            state=state,
            note=self._note,
        )

    # --- sources -------------------------------------------------------------------------------------------------

    def _log(self, found: Description) -> None:
        state, after = self._now()
        sources = self._streams(found, state.positions)
        self._drop_left(self._are_read_again(sources))
        self._watcher.planned(sum(each.end - each.first for each in sources), sum(each.bytes for each in sources))
        for source in sources:
            before = after.positions.get(source.name)
            if before is None:
                whole = source.queue if source.queue != source.name else None
                after.positions[source.name] = Position(
                    source.id,
                    source.first,
                    base=source.first,
                    queue=whole,
                    partition=source.partition,
                    life=source.life_at(source.first),
                )
            elif before.next < source.first:  # `_streams` has made sure that this is allowed
                lost = source.first - before.next
                after.positions[source.name] = before._replace(next=source.first, lost=before.lost + lost)
                after.lost += lost
            self._take_all(source)
        self._commit()

    def _are_read_again(self, sources: list[_Source]) -> bool:
        """Tell whether each source begins where the manifest ends."""
        positions = self._now()[0].positions
        return all(each.name not in positions or positions[each.name].next == each.first for each in sources)

    def _drop_left(self, are_read_again: bool) -> None:
        """Delete the files that the manifest does not name, if this run reads their messages again."""
        assert self._target is not None
        if not self._target.left:
            return
        if not are_read_again:
            raise UsageError(
                f"{self.place} has files of this export that {self._note} does not name, such as "
                f"{self._target.left[0]}: it is an older copy. Put the newer one back, or move these files elsewhere: "
                "their messages may be nowhere else"
            )
        self._take_note()  # a run on another machine may be about to name them in an earlier one
        self._target.drop_left()

    def _streams(self, found: Description, positions: dict[str, Position]) -> list[_Source]:
        """Return the source for a stream, or one for each partition of a super stream."""
        names = (found.name,) if found.partitions is None else found.partitions
        sources = []
        for number, name in enumerate(names):
            part = found if found.partitions is None else self._client.describe(name)
            before = positions.get(name)
            if before is not None and before.id != part.id:
                raise AnotherQueue(f"{name} was deleted and created again: use another directory")
            if before is not None:
                divergence = self._remembered.maybe_divergence(name, part.lives, before.life, before.next)
                if divergence is not None:
                    raise Diverged(f"{divergence.text}: use another directory")
            first = self._place(part, self._options.start or "first") if before is None else before.next
            if first < part.first:
                if not self._options.skip_lost:
                    raise Gone(
                        f"the offsets from {first} to {part.first} of {name} are gone. With --skip-lost they are "
                        "left out"
                    )
                first = part.first
            end = max(first, self._place(part, self._options.end or "next"))
            share = (end - first) / max(1, part.end - part.first)
            sources.append(
                _Source(
                    name,
                    found.name,
                    number,
                    part.id,
                    first,
                    min(end, part.end),
                    int(part.bytes * share),
                    nodes=nodes.nodes_of(part, first, number),
                    lives=part.lives,
                )
            )
        return sources

    def _place(self, part: Description, text: str) -> int:
        offset = offset_at(self._client, part, text)
        if offset > part.end:
            raise UsageError(f"offset {text} of {part.name} is not there yet: it ends at {part.end}")
        return offset

    def _snapshot(self) -> None:
        state, after = self._now()
        name = self._options.queue
        if state.state == manifest.COMPLETE:
            return
        if state.source["snapshot"] is None:
            self._drop_left(True)
            size = self._client.describe(name).bytes
            made = self._client.make_snapshot(name, ttl_s=SNAPSHOT_TTL_S)
            for each in (state, after):
                each.source["snapshot"] = made.snapshot
                each.positions[name] = Position(made.id, 0, base=0)
            self._take_note()
            self._save(state)
        else:
            try:
                made = self._client.snapshot(name, str(state.source["snapshot"]))
            except NoSnapshot:
                raise NoSnapshot(
                    f"the snapshot that was being exported to {self.place} no longer exists: "
                    "delete the directory, and export again"
                ) from None
            if made.failure is not None:
                raise NoSnapshot(
                    f"the snapshot that was being exported to {self.place} could not be completed "
                    f"({made.failure}): delete the directory, and export again"
                )
            size = made.bytes
        self._drop_left(True)
        first = state.positions[name].next
        self._watcher.planned(made.end - first, size * (made.end - first) // max(1, made.end))
        self._take_all(_Source(name, name, 0, made.id, first, made.end, made.bytes, made.snapshot))
        self._commit()

    def _opened(self, state: Manifest) -> DrainSession:
        """Open the session of a drain: an export into the same place by another machine ends before it acknowledges."""
        before = None if self._options.skip_lost else state.session
        consumer, owner = str(state.source["consumer"]), f"warren export to {self.place.identity[0]}"
        try:
            return self._client.open_drain(self._options.queue, consumer, owner, before=before)
        except Diverged as error:
            raise Diverged(f"{error}. Use another directory; with --skip-lost it continues in this one") from None

    def _drain(self, session: DrainSession, mark: int) -> None:
        state, after = self._now()
        name, consumer, client = self._options.queue, str(state.source["consumer"]), self._client
        position = after.positions.get(name)
        is_known = position is None or position.id == session.id
        if position is None or position.id != session.id:
            life = None if session.lives is None else session.lives.at(session.first)
            position = Position(session.id, session.first, base=session.first, claims=session.queue, life=life)
        elif position.next < session.first and not self._options.skip_lost:
            raise DataLoss(
                f"the claims from {position.next} to {session.first} of {name} are gone: released, and then they come "
                "again, or taken by an export into a copy of this directory. With --skip-lost this one continues"
            )
        divergence = self._remembered.maybe_divergence(name, session.lives, position.life, position.next)
        if divergence is not None:
            raise Diverged(f"{divergence.text}: use another directory")
        count = session.coming_again(position.base or 0, position.next)
        if count and not self._options.skip_lost:
            raise DataLoss(
                f"{count} claims below {session.first} of {name} were released although they are in files, and come "
                "again. With --skip-lost they are exported once more"
            )
        self._drop_left(session.first < session.end and session.first <= position.next and is_known)
        if session.life is not None:
            state.session = after.session = (session.epoch, session.life)
        state.positions[name] = after.positions[name] = position
        self._take_note()
        self._save(state)  # by which its claims are found again
        found = client.describe(name)
        self._watcher.planned(found.messages + max(0, session.end - position.next), found.bytes)
        while True:
            claim = client.claim(
                name,
                consumer,
                session.epoch,
                position.next,
                CLAIM_ROWS,
                max_bytes=self._options.max_file_bytes,
                until=mark,
                life=position.life,
            )
            if claim.first > position.next:
                position = position._replace(next=claim.first, life=None)
            after.positions[name] = position
            if claim.end <= claim.first:
                break
            # One call has made this claim, so it is of one life.
            lives = None if claim.life is None else Lives([(claim.life, claim.first)], claim.end)
            claimed = _Source(session.queue, name, 0, session.id, claim.first, claim.end, 0, lives=lives)
            self._take_all(claimed, name)
            self._commit()
            position = after.positions[name]
        self._commit()
        client.delete_drain(name, consumer, session.epoch)

    # --- rows ----------------------------------------------------------------------------------------------------

    def _now(self) -> tuple[Manifest, Manifest]:
        """Return the state that is safe, and the state after the next commit."""
        assert self._state is not None and self._after is not None
        return self._state, self._after

    def _take_all(self, source: _Source, key: str | None = None) -> None:
        """Write the rows of a source, with a commit whenever there are enough; `key`: the name of its position."""
        _, after = self._now()
        assert self._target is not None
        name = key or source.name
        with _ahead(lambda: self._chunks(source)) as reads:
            for read in reads:
                is_whole = read.is_compacted or read.rows == read.end - read.first
                if not is_whole and not self._options.skip_lost:
                    raise DataLoss(
                        f"{read.end - read.first - read.rows} of the messages from offset {read.first} to {read.end} "
                        f"of {source.name} cannot be read. With --skip-lost they are left out"
                    )
                position = after.positions[name]
                if read.first > position.next:  # retention was faster, and that is allowed
                    lost = read.first - position.next
                    after.lost += lost
                    position = position._replace(next=read.first, lost=position.lost + lost)
                for batch in read.batches:
                    chosen = batch if self._condition is None else self._condition.rows_of(batch)
                    after.filtered += batch.num_rows - chosen.num_rows
                    after.rows += chosen.num_rows
                    self._target.write(chosen, name, read.first, read.end)
                after.read += read.rows
                after.covered += read.end - read.first
                after.missing += read.end - read.first - read.rows
                after.positions[name] = position._replace(next=read.end, life=source.life_at(read.end))
                self._watcher.advanced(read.rows, read.bytes)
                if self._target.is_full(self._options.max_file_bytes):
                    self._commit()

    def _chunks(self, source: _Source) -> Iterator[_Read]:
        """Yield a source chunk by chunk."""
        names = self._reading.names
        context = Context(source.queue, source.partition)
        at = source.first
        while at < source.end:
            try:
                for chunk in nodes.read(
                    self._client,
                    source.nodes,
                    source.name,
                    at,
                    source.end,
                    id_at(source.id, source.life_at(source.end)),
                    bodies="body" in names,
                    properties=not FROM_PROPERTIES.isdisjoint(names),
                    snapshot=source.snapshot,
                ):
                    if source.snapshot is not None and not chunk.count:
                        return  # it has fewer rows than it could have had
                    first, end = max(at, chunk.first), min(chunk.end, source.end)
                    batches = list(to_record_batches(chunk, self._reading, context, first=first, end=end))
                    rows = sum(batch.num_rows for batch in batches)
                    yield _Read(first, end, rows, chunk.bytes, batches, chunk.is_compacted)
                    at = end
                return
            except Gone:
                if not self._options.skip_lost:
                    raise
            at = max(at + 1, self._client.describe(source.name).first)

    def _commit(self) -> None:
        """Make the written rows safe: files first, then the manifest."""
        state, after = self._now()
        assert self._target is not None
        if after.positions == state.positions and after.read == state.read and self._is_noted:
            return
        self._take_note()
        after.commits = state.commits + 1
        new = self._target.commit(after)
        after.files += new
        state.__dict__.update(after.copied().__dict__)
        self._save(state, new)
        self._watcher.committed(state)


@contextmanager
def _ahead(make: Callable[[], Iterator[_Read]]) -> Iterator[Iterator[_Read]]:
    """Run a generator in a thread, a little ahead of its consumer."""
    ready: queue.Queue[_Read | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item: _Read | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in make():
                if not put(item):
                    return
            put(None)
        except BaseException as error:  # raised again by the thread that takes the items
            put(error)

    def taken() -> Iterator[_Read]:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=work, name="warren-export-reader", daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        stopped.set()
        thread.join(_LEAVE_S)
