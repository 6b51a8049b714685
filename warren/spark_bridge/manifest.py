"""The manifest of an export: the files that were written, and the offsets at which the next run continues.

    _manifest/export.json
                    {"version": 1, "id": "<of this export>", "state": "running" | "complete",
                     "source": {"vhost", "queue", "mode", "consumer", "snapshot"},
                     "settings": {"format", "columns", "headers", "where", "partition_by", "compression"},
                     "offsets": {"v": 1, "p" | "d": {"orders": {"id", "next", "base", ...}}},   see ``offsets``
                     "covered": offsets, "lost": offsets, "missing": offsets,
                     "read": rows, "filtered": rows, "rows": rows, "commits": n,
                     "files": [{"path", "rows", "bytes", "crc32", "partition": {"date": "2026-11-22"},
                                "from": {"orders": 0}, "to": {"orders": 100}}],
                     "pending": {"commits": n, ...} | null,       the commit to a Delta table that is under way
                     "session": [epoch, life] | null}             the last session of a drain, and who gave its epoch

1. The manifest is replaced as a whole, and is on disk before anything relies on it. All files that it names exist.
   Other files of this export were left by a run that was killed, and the next run deletes them.
2. read + missing = covered, and rows + filtered = read. Lost are offsets that were gone before they could be read.
3. Where other machines may write, each run has a manifest of its own, and the last by name counts:

    _manifest/export-NUMBER-EPOCH-RUN.json

   The number is one more than that of the manifest which the run continues, the epoch is of its session, 0 without one.
   A run that was overtaken may still write its own, which nobody reads: it can no longer acknowledge anything.
4. Of drains by different sessions, which do not fence each other, one may continue a manifest there. Each writes

    _manifest/drain-NUMBER-SESSION-RUN

   before it looks for those of others, and ends if there is one, or a later manifest (`places.marked`). Nothing was
   acknowledged until then.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.offsets import CLAIMS, STREAMS, Position, document, positions_of
from warren.spark_bridge.places import OWN, Note, Place, marked

NAME: Final = "_manifest/export.json"
# The former name, from when it lay beside the data: an export that has it there continues to use it.
OLD_NAME: Final = "_MANIFEST.json"
_OF_A_RUN: Final = f"{OWN}export-"
_OF_A_DRAIN: Final = f"{OWN}drain-"
_LOOKS: Final = 10
VERSION: Final = 1
RUNNING: Final = "running"
COMPLETE: Final = "complete"
COUNTS: Final = ("covered", "lost", "missing", "read", "filtered", "rows", "commits")


@dataclass
class FileEntry:
    """One file: its path below the directory, and its content."""

    path: str
    rows: int
    bytes: int
    crc32: int
    partition: dict[str, str | None]
    first: dict[str, int]
    end: dict[str, int]

    def document(self) -> dict[str, Any]:
        """Return the JSON for it."""
        found = dict(vars(self))
        first, end = found.pop("first"), found.pop("end")
        return {**found, "from": first, "to": end}


@dataclass
class Manifest:
    """See the header."""

    source: dict[str, Any]
    settings: dict[str, Any]
    kind: str = STREAMS
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    state: str = RUNNING
    positions: dict[str, Position] = field(default_factory=dict)
    covered: int = 0
    lost: int = 0
    read: int = 0
    missing: int = 0
    filtered: int = 0
    rows: int = 0
    files: list[FileEntry] = field(default_factory=list)
    pending: dict[str, Any] | None = None
    commits: int = 0
    session: tuple[int, str] | None = None

    def document(self) -> dict[str, Any]:
        """Return the JSON for it."""
        return {
            "version": VERSION,
            "id": self.id,
            "state": self.state,
            "source": self.source,
            "settings": self.settings,
            "offsets": document(self.positions, self.kind),
            **{name: getattr(self, name) for name in COUNTS},
            "files": [entry.document() for entry in self.files],
            "pending": self.pending,
            "session": self.session,
        }

    def copied(self) -> Manifest:
        """Return a copy to be changed; entries of files never change."""
        return replace(
            self,
            source=dict(self.source),
            settings=dict(self.settings),
            positions=dict(self.positions),
            files=list(self.files),
        )

    def prepare(self, after: Manifest) -> None:
        """Note the state for when the pending commit has succeeded."""
        self.pending = {name: getattr(after, name) for name in COUNTS}
        self.pending["offsets"] = document(after.positions, after.kind)

    def adopt_pending(self) -> None:
        """Record that the pending commit has succeeded."""
        assert self.pending is not None
        for name in COUNTS:
            setattr(self, name, int(self.pending[name]))
        self.positions = positions_of(self.pending["offsets"], self.kind)
        self.pending = None

    def save(self, note: Note) -> None:
        """Write it down; it stays when this returns."""
        document = self.document()
        entries = ",\n  ".join(map(json.dumps, document.pop("files")))  # a line each: there may be many
        rest = json.dumps(document, indent=1).removesuffix("\n}")
        note.replace(f'{rest},\n "files": [\n  {entries}\n ]\n}}'.encode())


def note_in(place: Place) -> Note:
    """Return the note with the manifest of a place, whether it is there or not."""
    if of_runs := _of_runs(place):
        return Note(place, of_runs[-1])
    note, old = Note(place, NAME), Note(place, OLD_NAME)
    return old if note.maybe_content() is None and old.maybe_content() is not None else note


def _of_runs(place: Place) -> list[str]:
    return [name for name in place.own_names() if name.startswith(_OF_A_RUN)] if place.is_shared else []


def load_in(place: Place) -> tuple[Note, Manifest | None]:
    """Return the note with the manifest of a place, and the manifest; None: it does not exist.

    Raises:
        UsageError: the note is not a manifest that this version can read.
    """
    for _ in range(_LOOKS):
        note = note_in(place)
        found = maybe_load(note)
        if found is not None or not note.name.startswith(_OF_A_RUN):
            return note, found
        # A later run has just replaced it.
    raise UsageError(f"{note} is listed, and is not there")


def note_of_run(before: Note, epoch: int) -> Note:
    """Return the note for a run that continues what is in `before`; `epoch`: of its session, 0 without one."""
    if not before.place.is_shared:
        return before
    return before._replace(name=f"{_OF_A_RUN}{_number_after(before):08}-{epoch:020}-{secrets.token_hex(4)}.json")


def _number_after(before: Note) -> int:
    is_of_run = before.name.startswith(_OF_A_RUN)
    return int(before.name.removeprefix(_OF_A_RUN).partition("-")[0]) + 1 if is_of_run else 1


@contextmanager
def only_session(before: Note, session: str) -> Iterator[None]:
    """Give a context in which drains of no other session continue what is in `before`: see (4).

    Raises:
        UsageError: another one does, or may.
    """
    place = before.place
    if not place.is_shared:
        yield
        return
    owner, refusal = sha256(session.encode()).hexdigest()[:16], f"another export is writing into {place}"
    with marked(place, f"{_OF_A_DRAIN}{_number_after(before):08}-", owner, refusal) as names:
        is_of_run = before.name.startswith(_OF_A_RUN)
        if any(name.startswith(_OF_A_RUN) and (name > before.name or not is_of_run) for name in names):
            raise UsageError(refusal)
        yield


def is_overtaken(note: Note) -> bool:
    """Tell whether the manifest of another run counts, instead of that in `note`."""
    return any(name > note.name for name in _of_runs(note.place))


def drop_earlier(note: Note, before: Note) -> None:
    """Delete the manifests of earlier runs, as far as that goes: that in `note` continues the one in `before`."""
    if note != before:
        ends = {_OF_A_RUN: note.name, _OF_A_DRAIN: f"{_OF_A_DRAIN}{_number_after(before):08}"}
        names = note.place.own_names()
        earlier = {name for kind, end in ends.items() for name in names if name.startswith(kind) and name < end}
        for name in earlier | {before.name}:
            with suppress(OSError):
                note.place.delete(name)


def maybe_load(note: Note) -> Manifest | None:
    """Return the manifest that is in `note`; None: the note does not exist.

    Raises:
        UsageError: the note is not a manifest that this version can read.
    """
    content = note.maybe_content()
    if content is None:
        return None
    try:
        found = json.loads(content)
    except ValueError as error:
        raise UsageError(f"{note} is not a manifest: {error}") from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise UsageError(f"{note} is not a manifest of version {VERSION}")
    try:
        return _manifest(found)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{note} is not a manifest: {error!r}") from None


def _manifest(found: Mapping[str, Any]) -> Manifest:
    kind = CLAIMS if CLAIMS in found["offsets"] else STREAMS
    return Manifest(
        source=dict(found["source"]),
        settings=dict(found["settings"]),
        kind=kind,
        id=str(found["id"]),
        state=str(found["state"]),
        positions=positions_of(found["offsets"], kind),
        **{name: int(found[name]) for name in COUNTS},
        files=list(_entries(found["files"])),
        pending=found.get("pending"),
        session=None if found.get("session") is None else (int(found["session"][0]), str(found["session"][1])),
    )


def _entries(found: list[Mapping[str, Any]]) -> Iterator[FileEntry]:
    for entry in found:
        yield FileEntry(
            path=str(entry["path"]),
            rows=int(entry["rows"]),
            bytes=int(entry["bytes"]),
            crc32=int(entry["crc32"]),
            partition=dict(entry.get("partition", {})),
            first=dict(entry["from"]),
            end=dict(entry["to"]),
        )
