"""Import: files of rows published again, each row once.

    files --> pieces --> frames --> parts of a stage --> commit number n, published and remembered --> state: n, rows

1. A commit that the broker has already made is known to it by its number, and answered as a duplicate: after any crash
   a second run continues, and no row is published twice or left out. The state says how many rows a commit has before
   it is begun: a second run begins with a commit of the same rows, even if it reads files in other pieces or has more
   of them. The files must not change meanwhile; the import verifies that. The broker remembers the last commit without
   an end, so a second run may come as late as it likes; after the whole import an empty one is remembered for `KEPT_S`.
   A broker that knows no commit of an unfinished import, since it was restored from an older backup, refuses others.
2. A row that was decoded without loss becomes the same message again: body, properties and typed headers octet by
   octet. The broker's own columns are not restored: offset, time, redelivered.
3. Messages of files without a column ``delivery_mode`` are persistent: a restart of the broker would lose transient
   ones from durable queues. A ``delivery_mode`` in a file wins, and so does ``without`` this property.
4. Counts are compared: rows read, messages that the broker says it published, rows that the manifest of an export has.
5. Only one import on this machine works with a state at a time. In an object store a state is begun once: of imports
   that begin at once on several machines at most one continues, before anything is published.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from warren.spark_bridge import manifest
from warren.spark_bridge.bridge_errors import BridgeError, Refused, UsageError
from warren.spark_bridge.control import BrokerClient, Committed
from warren.spark_bridge.frames import PART_BYTES_MOST, bounds_of, content_of, encode_publishes, too_large
from warren.spark_bridge.places import OWN, Directory, Note, marked, note_at, place_of
from warren.spark_bridge.properties import encode_properties
from warren.spark_bridge.schema import PROPERTY_COLUMNS, arrow_type
from warren.spark_bridge.table_files import DELTA, crc_of
from warren.spark_bridge.table_readers import (
    MESSAGE_COLUMNS,
    DamagedFile,
    SourceFile,
    delta_pieces,
    form_of,
    read_pieces,
)

VERSION: Final = 1
COMMIT_BYTES: Final = 8 << 20  # of messages: one transaction
COMMIT_ROWS: Final = 32_768
PART_BYTES: Final = 16 << 20
KEPT_S: Final = 7 * 24 * 3600
QUEUE_FULL_WAIT_S: Final = 600.0
_RETRY_PAUSE_S: Final = 1.0
_ENDING: Final = -1
_DELIVERY_MODE: Final = "delivery_mode"
_PERSISTENT: Final = 2
_CONFLICT: Final = "conflict"
_MISSING: Final = "missing_batches"
_AGAIN: Final = ("queue_full", _CONFLICT)


@dataclass(frozen=True)
class ImportOptions:
    """The source, a directory or a URL, and the target. `exchange`, `routing_key` None: as each row says."""

    source: Path | str
    exchange: str | None = None
    routing_key: str | None = None
    routing_key_column: str | None = None
    without: tuple[str, ...] = ()
    mandatory: bool = True
    checkpoint: Path | None = None


class Watcher(Protocol):
    """Observes the progress of an import."""

    def planned(self, rows: int, bytes: int) -> None:
        """Note the amount of work; 0 when it is unknown."""

    def advanced(self, rows: int, bytes: int) -> None:
        """Note that this much more was published."""

    def committed(self, state: ImportState) -> None:
        """Note the state that is safe now."""


@dataclass
class ImportState:
    """How far an import is: the next commit is number `batch`, and begins with row `rows`.

    `pending`: how many rows that commit has, if it was begun, `_ENDING` if it is the last one; else 0.
    """

    query: str
    target: dict[str, Any]
    files: list[list[Any]]  # path and bytes of each
    table_version: int | None = None
    batch: int = 0
    rows: int = 0
    published: int = 0
    unroutable: int = 0
    before: int = 0  # messages that earlier runs published
    pending: int = 0
    follows: bool = False  # whether the broker has to know the commit before

    def save(self, note: Note) -> None:
        """Write it down; it stays when this returns."""
        note.replace(json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode())


class PlannedImport(NamedTuple):
    """The plan of an import."""

    files: int
    rows: int | None
    done: int


class Import:
    """One run."""

    def __init__(self, client: BrokerClient, options: ImportOptions, watcher: Watcher) -> None:
        self._client = client
        self._options = options
        self._watcher = watcher
        for name in options.without:
            if name not in PROPERTY_COLUMNS:
                raise UsageError(f"{name!r} is not a property that can be omitted")
        if options.routing_key is not None and options.routing_key_column is not None:
            raise UsageError("a routing key, or the column that has it: not both")
        self.place = place_of(options.source)
        if isinstance(self.place, Directory) and not self.place.path.is_dir():
            raise UsageError(f"{self.place} is not a directory")
        self._target = {
            "vhost": client.vhost,
            "exchange": options.exchange,
            "routing_key": options.routing_key,
            "routing_key_column": options.routing_key_column,
            "without": sorted(options.without),
            "mandatory": options.mandatory,
        }
        name = sha256(json.dumps(self._target, sort_keys=True).encode()).hexdigest()[:12]
        self._note = self._noted(name) if options.checkpoint is None else note_at(options.checkpoint)
        self._export = manifest.load_in(self.place)[1]
        form = None if self._export is None else self._export.settings["format"]
        self._delta = self._maybe_table(form)
        self._wanted = frozenset(MESSAGE_COLUMNS) - set(options.without) - self._not_needed()
        self._lacks_delivery_mode = _DELIVERY_MODE in self._wanted and (
            self._export is None or _DELIVERY_MODE not in (self._export.settings["columns"] or ())
        )
        self._is_noted = False  # whether there is a state
        self._sources = [] if self._delta is not None else self._files()

    def _noted(self, name: str) -> Note:
        """Return the note with how far the import to this target is."""
        note, old = Note(self.place, f"{OWN}import-{name}.json"), Note(self.place, f"_IMPORT-{name}.json")
        return old if note.maybe_content() is None and old.maybe_content() is not None else note

    def _maybe_table(self, form: str | None) -> Path | None:
        """Return where the Delta table is, if it is one."""
        if not isinstance(self.place, Directory):
            return None
        is_table = form == DELTA or (self.place.path / "_delta_log").is_dir()
        return self.place.path if is_table else None

    def _not_needed(self) -> set[str]:
        options = self._options
        if options.routing_key_column not in (None, *MESSAGE_COLUMNS):
            raise UsageError(f"column {options.routing_key_column!r} cannot be the routing key")
        return {"exchange"} if options.exchange is not None else set()

    def _files(self) -> list[SourceFile]:
        """Return the files to read, in their order; the paths are names in the place."""
        if self._export is not None:
            form, headers = self._export.settings["format"], self._export.settings["headers"]
            return [SourceFile(Path(entry.path), form, entry.partition, headers) for entry in self._export.files]
        paths = [Path(name) for name in self.place.names()]
        sources = [SourceFile(path, form) for path in paths if (form := form_of(path)) is not None]
        if not sources:
            raise UsageError(f"{self.place} has no files that can be read")
        return sources

    def plan(self) -> PlannedImport:
        """Return the plan of `run`; nothing is published."""
        state = self._begun()
        rows = None if self._export is None else self._export.rows
        return PlannedImport(len(self._sources), rows, state.rows)

    def run(self) -> ImportState:
        """Publish, and return how far it is: at the end.

        Raises:
            DamagedFile: a file is damaged. BrokerError: an error of the broker.
            UsageError: the files, or where they go, are not those of the run before; or another run is under way.
        """
        # Two that begin at once would not know each other's messages.
        with self._note.only_one(f"another import is publishing what is in {self.place} to the same target"):
            return self._run()

    def _run(self) -> ImportState:
        state = self._begun()
        if state.pending == _ENDING:
            self._end(state)
        batch = state.batch
        if not self._is_noted:
            self._begin(state)
        # A Delta table is read as it was when the import began, whatever was added since.
        known = None if self._export is None or self._delta is not None else self._export.rows
        self._watcher.planned(max(0, (known or 0) - state.rows), 0)
        waiting: list[pa.Array] = []
        rows = size = 0
        for piece in self._pieces(state):
            messages = self._encoded(piece)
            waiting.append(messages)
            rows += len(messages)
            size += int(bounds_of(messages)[-1])
            is_due = rows == state.pending if state.pending else size >= COMMIT_BYTES or rows >= COMMIT_ROWS
            if is_due:
                self._commit(state, waiting, rows, size)
                waiting, rows, size = [], 0, 0
        if rows < state.pending:
            raise DamagedFile(f"{self.place} has {state.pending - rows} rows less than a commit that was begun")
        if waiting:
            self._commit(state, waiting, rows, size)
        if known is not None and known != state.rows:
            raise BridgeError(f"{state.rows} rows were read, and the manifest says {known}")
        if state.published + state.unroutable != state.rows:
            raise BridgeError(
                f"{state.rows} rows were read, and {state.published} messages published, {state.unroutable} unroutable"
            )
        if state.batch != batch:
            self._end(state)
        return state

    def _begin(self, state: ImportState) -> None:
        """Write the first state: its query is the only one by which this source is published to this target."""
        place, refusal = self._note.place, f"another import is publishing what is in {self.place} to the same target"
        if not place.is_shared:
            state.save(self._note)
            return
        with marked(place, f"{self._note.name.removesuffix('.json')}-begins-", secrets.token_hex(4), refusal):
            if self._note.maybe_content() is not None:
                raise UsageError(refusal)
            state.save(self._note)

    def _end(self, state: ImportState) -> None:
        """End the import: an empty commit follows, so that the broker forgets it some time."""
        state.pending = _ENDING
        state.save(self._note)
        self._committed(state, [], KEPT_S)
        state.batch += 1
        state.pending = 0
        state.follows = False
        state.save(self._note)

    def _begun(self) -> ImportState:
        """Return the existing state, or a new one."""
        files: list[list[Any]] = [
            [source.path.as_posix(), self._size_of(source.path.as_posix())] for source in self._sources
        ]
        content = self._note.maybe_content()
        self._is_noted = content is not None
        if content is None:
            return ImportState(f"import-{secrets.token_hex(8)}", self._target, files)
        try:
            found = json.loads(content)
        except ValueError as error:
            raise UsageError(f"{self._note} is not the state of an import: {error}") from None
        if not isinstance(found, dict) or found.pop("version", None) != VERSION:
            raise UsageError(f"{self._note} is not the state of an import of version {VERSION}")
        try:
            state = ImportState(**found)
        except TypeError as error:
            raise UsageError(f"{self._note} is not the state of an import: {error}") from None
        if state.target != self._target:
            raise UsageError(f"{self._note} belongs to an import to another target: name another checkpoint")
        if state.files != files[: len(state.files)]:
            raise UsageError(f"the files in {self.place} are not those of the import in {self._note}")
        state.files = files
        state.before = state.published
        return state

    def _size_of(self, name: str) -> int:
        size = self.place.maybe_size(name)
        if size is None:
            raise DamagedFile(f"{self.place}/{name} is not there any more")
        return size

    # --- rows ----------------------------------------------------------------------------------------------------

    def _pieces(self, state: ImportState) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are not published yet."""
        if self._delta is not None:
            state.table_version, every = delta_pieces(self._delta, state.table_version, self._wanted)
            state.save(self._note)
        else:
            every = chain.from_iterable(self._of_file(source) for source in self._sources)
        skip, begun = state.rows, state.pending
        for piece in every:
            if skip >= piece.num_rows:
                skip -= piece.num_rows
                continue
            left, skip = piece.slice(skip), 0
            if 0 < begun < left.num_rows:  # the commit that was begun ends here
                yield left.slice(0, begun)
                left = left.slice(begun)
                begun = 0
            begun = max(0, begun - left.num_rows)
            yield left
        if skip:
            raise DamagedFile(f"{self.place} has {skip} rows less than were published")

    def _of_file(self, source: SourceFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, and check it when something is known of it."""
        rows = 0
        name = source.path.as_posix()
        entry = None
        if self._export is not None:
            entry = next(each for each in self._export.files if each.path == name)
        with self.place.local(name) as path:
            if entry is not None and crc_of(path) != entry.crc32:
                raise DamagedFile(f"{self.place}/{name} is not what was written")
            for piece in read_pieces(source._replace(path=path), self._wanted):
                rows += piece.num_rows
                yield piece
        if entry is not None and rows != entry.rows:
            raise DamagedFile(f"{self.place}/{name} has {rows} rows instead of {entry.rows}")

    def _encoded(self, piece: pa.RecordBatch) -> pa.Array:
        """Return the frames of each message of a piece."""
        options = self._options
        names = set(piece.schema.names)
        exchange: pa.Array | str | None = options.exchange
        if exchange is None:
            if "exchange" not in names:
                raise UsageError("the files have no column exchange: name one with --exchange, or a queue with --queue")
            exchange = piece.column("exchange")
        key: pa.Array | str | None = options.routing_key
        if key is None:
            name = options.routing_key_column or "routing_key"
            if name not in names:
                raise UsageError(f"the files have no column {name}: name a routing key with --routing-key")
            key = piece.column(name)
        columns = {name: piece.column(name) for name in PROPERTY_COLUMNS if name in names and name in self._wanted}
        if self._lacks_delivery_mode and _DELIVERY_MODE not in columns:
            columns[_DELIVERY_MODE] = pa.repeat(pa.scalar(_PERSISTENT, arrow_type(_DELIVERY_MODE)), piece.num_rows)
        try:
            properties = encode_properties(columns, piece.num_rows)
            # The commit says whether unroutable messages are an error.
            return encode_publishes(exchange, key, properties, piece.column("body"))
        except (ValueError, RecursionError) as error:
            raise DamagedFile(f"{self.place}: a row cannot be published: {error}") from None

    def _commit(self, state: ImportState, messages: list[pa.Array], rows: int, size: int) -> None:
        """Publish messages as one commit, and note that."""
        stage = f"{state.query}-{state.batch}"
        row = state.rows
        for each in messages:
            sizes = np.diff(bounds_of(each))
            if len(sizes) and int(sizes.max()) > PART_BYTES_MOST:
                large = int(np.argmax(sizes > PART_BYTES_MOST))
                raise DamagedFile(f"{self.place}: {too_large(row + large, int(sizes[large]))}")
            row += len(each)
        is_again = state.pending > 0
        if not is_again:
            state.pending = rows
            state.save(self._note)
        self._put(stage, messages, is_again=is_again)
        found = self._committed(state, [stage])
        if not found.committed and not found.duplicate:
            raise BridgeError(
                f"{found.unroutable} of the messages from row {state.rows} to {state.rows + rows} would go to no "
                "queue. With --unroutable drop they are dropped"
            )
        unroutable = 0 if found.duplicate else found.unroutable
        state.batch += 1
        state.pending = 0
        state.follows = True
        state.rows += rows
        state.unroutable += unroutable
        state.published += rows - unroutable
        if not found.duplicate and found.messages not in (rows, rows - unroutable):
            raise BridgeError(f"{rows} messages were staged, and the broker says that it published {found.messages}")
        state.save(self._note)
        self._watcher.advanced(rows, size)
        self._watcher.committed(state)

    def _put(self, stage: str, messages: list[pa.Array], *, is_again: bool) -> None:
        """Store messages as a stage; `is_again`: a run that was killed may have stored it, in other parts perhaps."""
        try:
            if is_again:
                self._client.delete_stage(stage)
            for number, part in enumerate(_parts(messages)):
                self._client.put_stage(stage, number, part)
        except Refused as error:
            if not is_again or error.error != _CONFLICT:
                raise
            # The broker has begun to publish it, and continues with what it has.

    def _committed(self, state: ImportState, stages: list[str], kept_s: int | None = None) -> Committed:
        """Commit stages, and wait while a queue is full or another commit is in the way."""
        give_up_s = time.monotonic() + QUEUE_FULL_WAIT_S
        while True:
            try:
                return self._client.commit_stages(
                    state.query,
                    state.batch,
                    stages,
                    mandatory=self._options.mandatory,
                    kept_s=kept_s,
                    compare=True,
                    # The last one may have been forgotten since.
                    follows=state.follows and kept_s is None,
                )
            except Refused as error:
                if error.error == _MISSING:
                    raise BridgeError(f"{error}. To publish all of it again name another --checkpoint") from None
                if error.error not in _AGAIN or time.monotonic() >= give_up_s:
                    raise
            time.sleep(_RETRY_PAUSE_S)


def _parts(messages: list[pa.Array]) -> Iterator[bytes]:
    """Yield messages one after the other, in parts of about `PART_BYTES`."""
    pieces: list[memoryview] = []
    size = 0
    for array in messages:
        bounds, content = bounds_of(array), content_of(array)
        at = 0
        while at < len(array):
            stop = int(bounds.searchsorted(int(bounds[at]) + PART_BYTES - size, side="right")) - 1
            if stop <= at and size:
                yield b"".join(pieces)
                pieces, size = [], 0
                continue
            stop = max(stop, at + 1)  # one message may be more than a part
            pieces.append(content[int(bounds[at]) : int(bounds[stop])])
            size += int(bounds[stop] - bounds[at])
            at = stop
    if pieces:
        yield b"".join(pieces)
