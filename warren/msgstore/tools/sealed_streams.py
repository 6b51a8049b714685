"""The sealed files of streams, read one chunk at a time, whatever state they are in (``msgstore.files.sealed_files``).

1. Reading changes nothing and stops at nothing: damaged bytes and read errors are things found, not exceptions.
2. A chunk is a `WholeChunk` when its head, its mark and both checksums are right and, if that is asked for, its columns
   fit together. Other bytes between whole chunks, or after the last one, are `Damage`.
3. After damage chunks are searched for at every multiple of 64: a message may hold bytes that look like a chunk, but
   not the mark of its place.
4. Only the chunks count that a broker would serve: of overlapping chunks the later one. The exception is a chunk that
   compaction has made: the left-overs of compaction come after it.
5. Memory holds one chunk, and a line for each.

It does not judge whether the end of the last file is torn or corruption: that takes the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from types import TracebackType
from typing import Final, Self

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.sealed_files import (
    CHUNK_FLAGS_AT,
    CLEAR_BYTES,
    REPLACEMENT,
    STREAMS,
    UNUSABLE,
    Zstd,
    chunk_mark,
    header_problem,
    maybe_sealed_name,
    sealed_path,
    uncompressed,
)
from warren.msgstore.log.columns import (
    ALIGNMENT_BYTES,
    BODIES,
    CHUNK_HEAD_BYTES,
    CHUNK_MAGIC,
    COMPACTED,
    ChunkHead,
    is_whole,
    maybe_head,
)
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES
from warren.msgstore.tools.chunk_rows import ChunkRows
from warren.msgstore.tools.lines import UnreadableStore

UNREADABLE: Final = "the disk cannot read it"
_PIECE_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class WholeChunk:
    """A chunk that a broker would serve: it stands for the offsets from `first` up to `end`."""

    path: str
    position: int
    stored_bytes: int
    first: int
    end: int
    count: int
    body_bytes: int
    min_time_us: int
    max_time_us: int
    is_compacted: bool


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a file where a chunk should be and no whole one is. `is_readable`: the disk gives them back."""

    path: str
    position: int
    end: int
    reason: str
    is_readable: bool


class ChunkFile:
    """One open file, of which the places of chunks are known."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Open the file. Raises OSError."""
        self.path = path
        self._fs = fs
        self._zstd = Zstd()
        self._handle = fs.open(path, writable=False)
        self.size = fs.size(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fs.close(self._handle)

    def rows(self, chunk: WholeChunk) -> ChunkRows | str:
        """Return the messages of a whole chunk, or the reason why they cannot be read."""
        data = self.maybe_read(chunk.position, chunk.stored_bytes)
        head = None if data is None else maybe_head(data)
        if data is None or head is None or not is_whole(head, data):
            return UNREADABLE
        return self.rows_in(head, data)

    def rows_in(self, head: ChunkHead, chunk: bytes) -> ChunkRows | str:
        """Return the messages of a chunk whose checksums are right, or the reason why they cannot be read."""
        try:
            return ChunkRows(head, uncompressed(head, chunk, self._zstd))
        except ValueError as error:
            return f"a chunk that does not fit together: {error}"

    def maybe_read(self, position: int, length: int) -> bytes | None:
        """Return the bytes there, fewer only where the file ends; None where the disk cannot read."""
        try:
            return read_exactly(self._fs, self._handle, length, position)
        except OSError:
            return None

    def readable(self, position: int, length: int) -> bytes:
        """Return the bytes there, with zeros where the disk cannot read."""
        data = self.maybe_read(position, length)
        if data is not None:
            return data
        pieces: list[bytes] = []
        end = position + length
        while position < end:
            size = min(_BLOCK_BYTES - position % _BLOCK_BYTES, end - position)
            pieces.append(self.maybe_read(position, size) or bytes(size))
            position += size
        return b"".join(pieces)

    def copy(self) -> Iterator[bytes]:
        """Yield the whole file in pieces, with zeros where the disk cannot read."""
        for position in range(0, self.size, _PIECE_BYTES):
            yield self.readable(position, min(_PIECE_BYTES, self.size - position))


class SealedFile(ChunkFile):
    """A file of a stream, under whatever name. `fault` says why its header cannot be used."""

    def __init__(self, fs: FileSystem, path: str, stream_id: int, first: int, store_id: bytes) -> None:
        """Open the file, and read its header. Raises OSError; StoreError: a later version of Warren has written it."""
        super().__init__(fs, path)
        self._place = (store_id, stream_id, first)
        header = self.maybe_read(0, SEGMENT_HEADER_BYTES)
        self.is_readable = header is not None
        self.fault = "has a header that cannot be read"
        if header is not None:
            self.fault = header_problem(header, store_id, stream_id, first)

    def pieces(self, *, in_full: bool = False) -> Iterator[WholeChunk | Damage]:
        """Yield the content of the file, in order. `in_full`: the columns of chunks are checked too."""
        position = SEGMENT_HEADER_BYTES
        while position < self.size:
            found = self._chunk_at(position, in_full=in_full)
            if isinstance(found, WholeChunk):
                yield found
                position += found.stored_bytes
                continue
            behind = self._next_chunk(position, in_full=in_full)
            is_readable = self._is_readable(position, behind)
            if not (is_readable and self._is_padding(position, behind)):
                yield Damage(self.path, position, behind, found, is_readable)
            position = behind

    def _chunk_at(self, position: int, *, in_full: bool) -> WholeChunk | str:
        """Return the chunk at `position`, or the reason why it cannot be read."""
        data = self.maybe_read(position, CHUNK_HEAD_BYTES)
        if data is None:
            return UNREADABLE
        if len(data) < CHUNK_HEAD_BYTES:
            return "the file ends in the head of a chunk"
        head = maybe_head(data)
        if head is None:
            return "the head of a chunk is damaged" if data.startswith(CHUNK_MAGIC) else "there is no chunk"
        if head.mark != chunk_mark(*self._place, position):
            return "a chunk that was not put there"
        if position + int(head.chunk_bytes) > self.size:
            return "the file ends in a chunk"
        chunk = self.maybe_read(position, int(head.chunk_bytes))
        if chunk is None:
            return UNREADABLE
        if not is_whole(head, chunk):
            return "wrong crc of a chunk"
        if in_full:
            rows = self.rows_in(head, chunk)
            if isinstance(rows, str):
                return rows
        return WholeChunk(
            path=self.path,
            position=position,
            stored_bytes=int(head.chunk_bytes),
            first=int(head.first),
            end=int(head.end),
            count=int(head.count),
            body_bytes=int(head.whole[BODIES]),
            min_time_us=int(head.min_time_us),
            max_time_us=int(head.max_time_us),
            is_compacted=bool(data[CHUNK_FLAGS_AT] & COMPACTED),
        )

    def _next_chunk(self, position: int, *, in_full: bool) -> int:
        """Return where the first whole chunk after a damaged place begins; the end of the file without one."""
        at = position + ALIGNMENT_BYTES
        while at < self.size:
            piece = self.readable(at, min(_PIECE_BYTES + len(CHUNK_MAGIC), self.size - at))
            found = piece.find(CHUNK_MAGIC)
            if found < 0:
                at += _PIECE_BYTES
                continue
            at += found
            if at % ALIGNMENT_BYTES == 0 and isinstance(self._chunk_at(at, in_full=in_full), WholeChunk):
                return at
            at += 1
        return self.size

    def _is_padding(self, position: int, behind: int) -> bool:
        """Tell whether a chunk went to `behind` because the bytes before `position` could not be read then."""
        if behind == self.size or behind - position >= CLEAR_BYTES or behind % CLEAR_BYTES:
            return False
        return not any(self.readable(position, behind - position))

    def _is_readable(self, position: int, end: int) -> bool:
        pieces = range(position, end, _PIECE_BYTES)
        return all(self.maybe_read(at, min(_PIECE_BYTES, end - at)) is not None for at in pieces)


@dataclass(slots=True)
class FileFacts:
    """The content of a file. `fault`: why a broker would not serve it; `is_left_over`: compaction has merged it."""

    path: str
    stream_id: int
    first: int
    size: int = 0
    fault: str = ""
    is_readable: bool = True
    is_left_over: bool = False
    pieces: list[WholeChunk | Damage] = field(default_factory=list)

    @property
    def chunks(self) -> list[WholeChunk]:
        return [piece for piece in self.pieces if isinstance(piece, WholeChunk)]

    @property
    def damages(self) -> list[Damage]:
        return [piece for piece in self.pieces if isinstance(piece, Damage)]


class SealedStream:
    """The sealed part of one stream. `files`: the oldest first; `chunks`: those that a broker would serve."""

    def __init__(self, fs: FileSystem, stream_id: int, files: list[FileFacts]) -> None:
        self.id = stream_id
        self.files = files
        self._fs = fs
        self.chunks: list[WholeChunk] = []
        for file in files:
            if file.fault or not file.chunks:
                continue
            around = None
            if file.first < self.end:
                around = next((chunk for chunk in self.chunks if file.first < chunk.end), None)
            if around is not None and around.is_compacted:
                file.is_left_over = True
                continue
            for chunk in file.chunks:
                while self.chunks and self.chunks[-1].end > chunk.first:
                    self.chunks.pop()
                self.chunks.append(chunk)

    @property
    def first(self) -> int:
        return self.chunks[0].first if self.chunks else self.end

    @property
    def end(self) -> int:
        return self.chunks[-1].end if self.chunks else 0

    @property
    def count(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def body_bytes(self) -> int:
        return sum(chunk.body_bytes for chunk in self.chunks)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the offsets that no chunk stands for: from where to where."""
        for one, other in zip(self.chunks, self.chunks[1:], strict=False):
            if one.end < other.first:
                yield one.end, other.first

    def rows(self) -> Iterator[tuple[WholeChunk, ChunkRows | str]]:
        """Yield each chunk that counts with its messages, or with the reason why they cannot be read."""
        for path, chunks in groupby(self.chunks, key=lambda chunk: chunk.path):
            with ChunkFile(self._fs, path) as file:
                for chunk in chunks:
                    yield chunk, file.rows(chunk)


class SealedNames:
    """The names in the directory of sealed files."""

    def __init__(self, fs: FileSystem) -> None:
        """List the files of all streams. Raises UnreadableStore: the directory is there and cannot be read."""
        self.segments: dict[int, list[int]] = {}  # first offsets by stream, ascending
        self.unfinished: list[str] = []  # replacements that a compaction was writing
        self.unusable: list[tuple[str, int, int]] = []  # set aside: name, stream, first offset
        self.others: list[str] = []
        try:
            names = fs.names(STREAMS)
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise UnreadableStore(f"messages/{STREAMS}: {os.strerror(error.errno or 0)}") from None
        for name in names:
            self._sort(name)

    def _sort(self, name: str) -> None:
        named = maybe_sealed_name(name)
        base, _, ending = name.partition(".")
        owner = maybe_sealed_name(base)
        if named is not None:
            self.segments.setdefault(named[0], []).append(named[1])
        elif owner is None:
            self.others.append(name)
        elif f".{ending}" == REPLACEMENT:
            self.unfinished.append(name)
        elif f".{ending}".startswith(UNUSABLE):
            self.unusable.append((name, *owner))
        else:
            self.others.append(name)


def read_file(
    fs: FileSystem, path: str, stream_id: int, first: int, store_id: bytes, *, in_full: bool = False
) -> FileFacts:
    """Return the content of a file. Raises StoreError: a later version of Warren has written it."""
    facts = FileFacts(path, stream_id, first)
    try:
        file = SealedFile(fs, path, stream_id, first, store_id)
    except OSError as error:
        facts.fault = f"cannot be opened: {os.strerror(error.errno or 0)}"
        facts.is_readable = False
        return facts
    with file:
        facts.size = file.size
        facts.fault = file.fault
        facts.is_readable = file.is_readable
        facts.pieces = list(file.pieces(in_full=in_full))
    return facts


def read_streams(
    fs: FileSystem, store_id: bytes, wanted: set[int] | None = None, *, in_full: bool = False
) -> dict[int, SealedStream]:
    """Return the sealed streams, by id: of those that are `wanted`, None meaning all."""
    streams: dict[int, SealedStream] = {}
    for stream_id, firsts in SealedNames(fs).segments.items():
        if wanted is None or stream_id in wanted:
            named = [(sealed_path(stream_id, first), first) for first in firsts]
            facts = [read_file(fs, path, stream_id, first, store_id, in_full=in_full) for path, first in named]
            streams[stream_id] = SealedStream(fs, stream_id, facts)
    return streams
