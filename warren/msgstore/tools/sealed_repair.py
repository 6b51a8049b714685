"""Repairing the sealed files of streams: as a start does, but it also restores headers.

    a header that cannot be used, with whole chunks   a copy goes to the quarantine, and the header is made again from
      after it, and nothing else where they belong      the name; a file that a start has set aside gets its name back
    a file of which a start would serve nothing       it is set aside, as that start would
    damage in a file                                  a copy goes to the quarantine; the file stays as it is
    a torn end, a left-over of compaction             nothing: the next start removes it

1. Nothing is deleted or cut. Only the first block of a file is ever overwritten, after making a copy of it.
2. The changes are entered in `streams` too, and in a dry run only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from warren.msgstore.files.file_system import write_all
from warren.msgstore.files.quarantine import QUARANTINE, QUARANTINE_TMP
from warren.msgstore.files.sealed_files import STREAMS, UNUSABLE, sealed_path, segment_header
from warren.msgstore.files.store import wall_time_ms
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES
from warren.msgstore.tools.lines import Line
from warren.msgstore.tools.log_files import StoreFiles
from warren.msgstore.tools.sealed_check import copy_prefix, fits, tail_gap
from warren.msgstore.tools.sealed_streams import (
    Damage,
    FileFacts,
    SealedFile,
    SealedNames,
    SealedStream,
    WholeChunk,
    read_file,
)
from warren.msgstore.tools.stored_state import StoredState

# A block of the disk: to write less, the kernel would have to read the rest of it.
_BLOCK_BYTES = 4096


class SealedRepair:
    """One repair of the files of `streams`, which is changed."""

    def __init__(
        self, files: StoreFiles, state: StoredState, streams: dict[int, SealedStream], *, is_dry: bool
    ) -> None:
        self._fs = files.fs
        self._state = state
        self._store_id = state.log.store_id
        self._streams = streams
        self._is_dry = is_dry
        self._copied = files.quarantined()

    def files(self) -> Iterator[tuple[str, Line]]:
        """Do it, or only simulate it; yield the actions, and their places."""
        for stream in list(self._streams.values()):
            for facts in list(stream.files):
                if facts.fault and not self._is_torn(facts, stream):
                    yield from self._repair_header(facts, stream)
        for name, stream_id, first in SealedNames(self._fs).unusable:
            facts = read_file(self._fs, f"{STREAMS}/{name}", stream_id, first, self._store_id, in_full=True)
            found = self._streams.get(stream_id) or SealedStream(self._fs, stream_id, [])
            if fits(facts, found):
                yield from self._repair_header(facts, found)
        for stream in self._streams.values():
            for facts in stream.files:
                yield from self._copy_damage(facts, stream)

    def _is_torn(self, facts: FileFacts, stream: SealedStream) -> bool:
        is_short = facts.size < SEGMENT_HEADER_BYTES + CHUNK_HEAD_BYTES
        return self._may_be_torn(facts, stream) and facts.is_readable and is_short

    def _may_be_torn(self, facts: FileFacts, stream: SealedStream) -> bool:
        return facts is stream.files[-1] and not tail_gap(self._state, stream)

    def _repair_header(self, facts: FileFacts, stream: SealedStream) -> Iterator[tuple[str, Line]]:
        where: Line = {"queue_id": stream.id, "file": facts.path}
        others = [file for file in stream.files if file is not facts]
        if not fits(facts, SealedStream(self._fs, stream.id, others)):
            yield f"set aside: the file {facts.fault}", where
            self._set_aside(facts.path)
            self._streams[stream.id] = SealedStream(self._fs, stream.id, others)
            return
        messages = sum(chunk.count for chunk in facts.chunks)
        what = f"the header is made again: the file {facts.fault}" if facts.fault else "the file gets its name back"
        yield what, {**where, "messages": messages}
        path = sealed_path(stream.id, facts.first)
        if not self._is_dry:
            if facts.fault:
                self._copy(facts)
                self._write_header(facts)
            if path != facts.path:
                self._fs.rename(facts.path, path)
                self._fs.sync_directory(STREAMS)
        pieces: list[WholeChunk | Damage] = [replace(piece, path=path) for piece in facts.pieces]
        made = FileFacts(path, stream.id, facts.first, facts.size, pieces=pieces)
        files = sorted([*others, made], key=lambda file: file.first)
        self._streams[stream.id] = SealedStream(self._fs, stream.id, files)

    def _copy_damage(self, facts: FileFacts, stream: SealedStream) -> Iterator[tuple[str, Line]]:
        damages = facts.damages
        if damages and self._may_be_torn(facts, stream) and damages[-1].end == facts.size and damages[-1].is_readable:
            damages = damages[:-1]
        if facts.fault or not damages or any(name.startswith(copy_prefix(facts.path)) for name in self._copied):
            return
        where: Line = {"queue_id": stream.id, "file": facts.path, "places": len(damages)}
        yield f"copied to the quarantine: {damages[0].reason}", where
        if not self._is_dry:
            self._copy(facts)

    def _set_aside(self, path: str) -> None:
        if self._is_dry:
            return
        taken = {f"{STREAMS}/{name}" for name in self._fs.names(STREAMS)}
        names = [f"{path}{UNUSABLE}", *(f"{path}{UNUSABLE}.{number}" for number in range(2, len(taken) + 3))]
        self._fs.rename(path, next(name for name in names if name not in taken))
        self._fs.sync_directory(STREAMS)

    def _copy(self, facts: FileFacts) -> None:
        """Copy a file to the quarantine, with zeros where the disk cannot read."""
        fs = self._fs
        with suppress(FileNotFoundError):
            fs.unlink(QUARANTINE_TMP)
        handle = fs.create(QUARANTINE_TMP, 0)
        try:
            with SealedFile(fs, facts.path, facts.stream_id, facts.first, self._store_id) as file:
                position = 0
                for piece in file.copy():
                    write_all(fs, handle, [piece], position)
                    position += len(piece)
            fs.sync(handle)
        finally:
            fs.close(handle)
        fs.rename(QUARANTINE_TMP, f"{QUARANTINE}/{copy_prefix(facts.path)}{wall_time_ms()}")
        fs.sync_directory(QUARANTINE)

    def _write_header(self, facts: FileFacts) -> None:
        fs = self._fs
        with SealedFile(fs, facts.path, facts.stream_id, facts.first, self._store_id) as file:
            rest = file.readable(SEGMENT_HEADER_BYTES, min(_BLOCK_BYTES, file.size) - SEGMENT_HEADER_BYTES)
        handle = fs.open(facts.path, writable=True)
        try:
            write_all(fs, handle, [segment_header(self._store_id, facts.stream_id, facts.first), rest], 0)
            fs.sync(handle)
        finally:
            fs.close(handle)
