"""The files of sealed streams: chunks of columns, one after the other.

    streams/0000000042-00000000000000016384      stream 42, from offset 16384 on: a header, then chunks

    segment header, 64 bytes, integers little-endian
         0   8  magic "WARRNSTR"
         8   2  major = 1             another one is refused
        10   6  zero
        16  16  store id              the same in every file of a store
        32   8  stream id             as of queues in the log
        40   8  first offset
        48  12  zero
        60   4  crc                   CRC-32 (zlib) of bytes 0..59

Chunks are as ``msgstore.log.columns`` says. The mark of one is the beginning of SHA-256 of the store id and of stream
id, first offset of the segment and position of the chunk, i64 each.

1. A chunk is reported as sealed when it, and the name of its file, are synced. Before that the log still has its
   messages; after that the log may forget them. The header of a file is synced before its first chunk is written: an
   unreadable header with something after it is corruption.
2. A start cuts the last file of each stream after its last whole chunk: a torn chunk was never reported, and the log
   still has its messages. If the log does not have them, or the disk cannot read the place, the chunk may have been
   reported: then nothing is cut, and the next chunk goes after that place.
3. A damaged place is skipped and reported; the chunks after it are served. A file with a damaged header, or without a
   whole chunk, gets another name, and stays.
4. A segment is replaced as a whole, and several by one. The new one overlaps with the old ones until they are removed.
5. A chunk that is damaged when it is read twice, the second time past the cache, is None, and so is one that is gone.
   If the disk does not give a chunk now, that is an error. `scan` skips it when it is told to, for a start that has
   waited long enough. Then the file keeps its name and its bytes, and the next start reads it again: (2) and (3) are
   only about bytes that were read. It gets another name only if the log has all of it, which is sealed again. If the
   log does not, and the place is after the last chunk that was read, nothing of the stream is sealed in this life: its
   chunks would overlap with those that are there, and (7) would hide these from then on.
6. A chunk without its mark does not count. After a torn or damaged place chunks are searched for at every multiple of
   64, in message bodies too. A publisher can put a chunk there, but cannot learn the store's id.
7. Of overlapping chunks the later one counts: it was sealed from the log, which still had all of it, when the earlier
   one could not be read. The exception is a chunk that compaction has made: the files after it are left-overs (4).

No threads here: `seal` belongs to the housekeeper, `read`, `drop`, `swap` and `unmake` to the reader, `scan` to
recovery. The lock guards the handles to write with: removing a file closes them.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from threading import Lock
from typing import Final, Protocol

from warren.msgstore.files.file_system import FileSystem, read_exactly, write_all
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.columns import (
    ALIGNMENT_BYTES,
    CHUNK_HEAD_BYTES,
    CHUNK_MAGIC,
    COMPACTED,
    MARK_BYTES,
    PART_COUNT,
    ChunkHead,
    Piece,
    is_whole,
    maybe_head,
)
from warren.msgstore.log.jobs import DropJob, SealedRead, SealJob
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES, SealedChunk, SealedSegment, SealedTable

STREAMS: Final = "streams"
MAGIC: Final = b"WARRNSTR"
MAJOR: Final = 1
COMPRESSION_LEVEL: Final = 1
READ_HANDLES_MAX: Final = 64

REPLACEMENT: Final = ".new"  # after the name of a file that will replace another one
UNUSABLE: Final = ".unusable"  # after the name of a file that is not a segment of ours
_SEARCH_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096
# After an unreadable end the next chunk begins at such a multiple: to write into a block the kernel reads it.
CLEAR_BYTES: Final = 1 << 16

_HEADER: Final = Struct("<8sH6x16sQQ12xI")
_PLACE: Final = Struct("<QQQ")
CHUNK_FLAGS_AT: Final = 11  # in the head of one
# The errors of a disk, or of the checksums of its file system, for a bad place.
_UNREADABLE: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA})
_ID_DIGITS: Final = 10
_OFFSET_DIGITS: Final = 20


def sealed_path(stream_id: int, first: int) -> str:
    """Return the path of the segment of a stream that begins at offset `first`."""
    return f"{STREAMS}/{stream_id:0{_ID_DIGITS}d}-{first:0{_OFFSET_DIGITS}d}"


def maybe_sealed_name(name: str) -> tuple[int, int] | None:
    """Return stream id and first offset in the name of a file; None when it does not name a segment."""
    stream_id, dash, first = name.partition("-")
    if not dash or len(stream_id) != _ID_DIGITS or len(first) != _OFFSET_DIGITS:
        return None
    digits = stream_id + first
    return (int(stream_id), int(first)) if digits.isascii() and digits.isdigit() else None


class OnChunk(Protocol):
    """Is told of a chunk: stream id, first offset of the segment, position, its bytes."""

    def __call__(
        self, stream_id: int, segment: int, position: int, pieces: list[Piece], *, is_replacement: bool
    ) -> None: ...


class UnreadableFileError(Exception):
    """The disk does not give a file, or a part of it, now."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(path)
        self.path = path
        self.error = error


@dataclass(slots=True)
class Scan:
    """The sealed files that were found: a table for each stream, by its id, and problems with files."""

    tables: dict[int, SealedTable] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class SealedFiles:
    """The sealed segments in the directory `STREAMS` of `fs`. `sync`, `sync_directory`: the store's, which may fail it.

    `compresses`: whether chunks are compressed, where that makes them smaller.
    """

    def __init__(
        self,
        fs: FileSystem,
        sync: Callable[[int, str], None],
        sync_directory: Callable[[str], None],
        handles_max: int = READ_HANDLES_MAX,
    ) -> None:
        self.store_id = bytes(16)
        self.compresses = True
        self.on_chunk: OnChunk | None = None  # is told of a chunk before it is written
        self._fs = fs
        self._handles_max = handles_max
        self._sync = sync
        self._sync_directory = sync_directory
        self._compressor = Zstd()  # the housekeeper's
        self._decompressor = Zstd()  # the reader's
        # The housekeeper's: the file that was written last, of each stream that is being written.
        self._written: OrderedDict[tuple[int, int, bool], int] = OrderedDict()
        self._log_has: Callable[[int, int], bool] = lambda _stream_id, _offset: True
        self._tolerates = True
        # Of `scan`: how many reads have failed, and whether one has after the last chunk that was read.
        self._unread = 0
        self._end_is_unread = False
        self._lock = Lock()
        self._read: OrderedDict[tuple[int, int], int] = OrderedDict()  # the reader's
        self._renamed = ""  # a swap was begun: the replacement has this name, but maybe not durably

    # --- the housekeeper's ------------------------------------------------------------------------------------------

    def seal(self, job: SealJob) -> None:
        """Write the chunk of `job` and sync it; can be repeated with the same job. Raises OSError."""
        position = job.position or SEGMENT_HEADER_BYTES
        mark = chunk_mark(self.store_id, job.stream_id, job.segment, position)
        pieces = job.columns.encode(self._compressor.compress if self.compresses else None, mark)
        if self.on_chunk is not None:
            self.on_chunk(job.stream_id, job.segment, position, pieces, is_replacement=job.is_replacement)
        self.write(job.stream_id, job.segment, position, pieces, is_replacement=job.is_replacement)
        job.placed_at = position
        job.head = bytes(pieces[0])

    def write(
        self,
        stream_id: int,
        segment: int,
        position: int,
        pieces: Sequence[Piece],
        *,
        is_replacement: bool,
        has_more: bool = False,
    ) -> None:
        """Write bytes of a chunk at `position`, and sync them unless there are more to come. Raises OSError.

        Bytes written at `SEGMENT_HEADER_BYTES` begin the file. Can be repeated.
        """
        path = sealed_path(stream_id, segment)
        if is_replacement:
            path += REPLACEMENT
        begins = position == SEGMENT_HEADER_BYTES
        with self._lock:
            handle = self._handle_to_write((stream_id, segment, is_replacement), path, begins=begins)
        if begins:
            write_all(self._fs, handle, [segment_header(self.store_id, stream_id, segment)], 0)
            self._sync(handle, path)
        write_all(self._fs, handle, pieces, position)
        if not has_more:
            self._sync(handle, path)
        if begins:
            self._sync_directory(STREAMS)

    def _handle_to_write(self, key: tuple[int, int, bool], path: str, *, begins: bool) -> int:
        handle = self._written.pop(key, -1)
        if begins and handle >= 0:
            self._fs.close(handle)
            handle = -1
        if handle < 0:
            for other in [each for each in self._written if (each[0], each[2]) == (key[0], key[2])]:
                self._fs.close(self._written.pop(other))
            while len(self._written) >= self._handles_max:
                self._fs.close(self._written.popitem(last=False)[1])
            if begins:
                with suppress(FileNotFoundError):
                    self._fs.unlink(path)  # of a beginning that failed
                handle = self._fs.create(path, 0)
            else:
                handle = self._fs.open(path, writable=True)
        self._written[key] = handle
        return handle

    # --- the reader's -----------------------------------------------------------------------------------------------

    def read(self, job: SealedRead) -> None:
        """Read the chunk of `job`; None when it is damaged, or gone. Raises OSError: it cannot be read now."""
        try:
            handle = self._handle_to_read(job.stream_id, job.segment)
            if not self._is_taken(job, read_exactly(self._fs, handle, job.length, job.position)):
                self._fs.forget_cached(handle, job.length, job.position)
                self._is_taken(job, read_exactly(self._fs, handle, job.length, job.position))
        except FileNotFoundError:
            return
        except OSError:
            while self._read:
                self._fs.close(self._read.popitem()[1])  # kept for the next read only
            raise

    def _is_taken(self, job: SealedRead, data: bytes) -> bool:
        """Put a chunk into its job if it is whole."""
        head = maybe_head(data)
        if head is None or not is_whole(head, data):
            return False
        if job.wants_parts:
            try:
                job.parts = uncompressed(head, data, self._decompressor)
            except ValueError:
                return False
        job.chunk = data
        return True

    def _handle_to_read(self, stream_id: int, segment: int) -> int:
        key = (stream_id, segment)
        handle = self._read.get(key, -1)
        if handle < 0:
            while len(self._read) >= self._handles_max:
                self._fs.close(self._read.popitem(last=False)[1])
            handle = self._fs.open(sealed_path(stream_id, segment), writable=False)
            self._read[key] = handle
        self._read.move_to_end(key)
        return handle

    def drop(self, job: DropJob) -> None:
        """Remove files, durably; missing files are ignored. Raises OSError.

        A replacement in the making stays: its maker continues, or calls `unmake`.
        """
        for segment in job.segments:
            handle = self._read.pop((job.stream_id, segment), -1)
            if handle >= 0:
                self._fs.close(handle)
            # The file is no longer written, but an open handle would keep its space.
            self._close_written(job.stream_id, segment, is_replacement=False)
            with suppress(FileNotFoundError):
                self._fs.unlink(sealed_path(job.stream_id, segment))
        self._sync_directory(STREAMS)

    def _close_written(self, stream_id: int, segment: int, *, is_replacement: bool) -> None:
        with self._lock:
            handle = self._written.pop((stream_id, segment, is_replacement), -1)
            if handle >= 0:
                self._fs.close(handle)

    def swap(self, stream_id: int, segments: list[int]) -> None:
        """Put the replacement of the first of these segments in the place of all of them.

        Can be repeated. Raises OSError.
        """
        for segment in segments:
            handle = self._read.pop((stream_id, segment), -1)
            if handle >= 0:
                self._fs.close(handle)
        self._close_written(stream_id, segments[0], is_replacement=True)
        path = sealed_path(stream_id, segments[0])
        if self._renamed != path:
            self._fs.rename(path + REPLACEMENT, path)
            self._renamed = path
        self._sync_directory(STREAMS)
        self._renamed = ""
        for segment in segments[1:]:
            self._close_written(stream_id, segment, is_replacement=False)
            with suppress(FileNotFoundError):
                self._fs.unlink(sealed_path(stream_id, segment))

    def unmake(self, stream_id: int, segment: int) -> None:
        """Remove a replacement. Raises OSError."""
        self._close_written(stream_id, segment, is_replacement=True)
        with suppress(FileNotFoundError):
            self._fs.unlink(sealed_path(stream_id, segment) + REPLACEMENT)

    def take_handles(self) -> list[int]:
        """Return all handles, for the caller to close."""
        handles = [*self._written.values(), *self._read.values()]
        self._written.clear()
        self._read.clear()
        return handles

    # --- recovery's -------------------------------------------------------------------------------------------------

    def scan(self, log_has: Callable[[int, int], bool], *, tolerates: bool = True) -> Scan:
        """Find the sealed chunks, cut torn ones, and make the rest durable.

        `log_has`: whether the log has a stream's messages from an offset on. `tolerates`: unreadable places, see (5).

        Raises OSError, StoreError; UnreadableFileError: something cannot be read now.
        """
        self._log_has = log_has
        self._tolerates = tolerates
        found = Scan()
        by_stream: dict[int, list[int]] = {}
        for name in self._fs.names(STREAMS):
            named = maybe_sealed_name(name)
            if name.endswith(REPLACEMENT) and maybe_sealed_name(name.removesuffix(REPLACEMENT)) is not None:
                self._fs.unlink(f"{STREAMS}/{name}")  # of a compaction that did not come to its end
            elif named is not None:
                by_stream.setdefault(named[0], []).append(named[1])
        for stream_id, firsts in by_stream.items():
            table = SealedTable()
            self._end_is_unread = False
            for first in firsts:
                if first < table.end and self._is_compacted(stream_id, table, first):
                    self._fs.unlink(sealed_path(stream_id, first))  # it was merged into the one before
                    continue
                segment = self._scan_segment(stream_id, first, is_last=first == firsts[-1], found=found)
                if segment is not None:
                    table.cut(segment.first)
                    table.add_segment(segment)
            table.end_is_unread = self._end_is_unread and not log_has(stream_id, int(table.end))
            if table.segments or table.end_is_unread:
                found.tables[stream_id] = table
        return found

    def _scan_segment(self, stream_id: int, first: int, *, is_last: bool, found: Scan) -> SealedSegment | None:
        path = sealed_path(stream_id, first)
        unread_before = self._unread
        try:
            handle = self._fs.open(path, writable=is_last)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            self._met_unreadable(path, error)
            found.problems.append(f"{path} cannot be opened: {os.strerror(error.errno or 0)}")
            self._leave(path, stream_id, first)
            return None
        try:
            size = self._fs.size(handle)
            header = self._maybe_read(handle, SEGMENT_HEADER_BYTES, 0)
            if header is None:
                found.problems.append(f"{path} has a header that cannot be read")
                self._leave(path, stream_id, first)
                return None
            problem = header_problem(header, self.store_id, stream_id, first)
            if problem:
                is_short = size < SEGMENT_HEADER_BYTES + CHUNK_HEAD_BYTES
                if is_short and is_last and self._log_has(stream_id, first):
                    self._fs.unlink(path)  # nothing in it was ever reported
                else:
                    found.problems.append(f"{path} {problem}")
                    self._set_aside(path)
                return None
            segment = SealedSegment(first)
            position = SEGMENT_HEADER_BYTES
            is_damaged = False
            while position < size:
                unread = self._unread
                head = self._maybe_chunk(handle, position, size, stream_id, first, checked=is_last)
                if head is None:
                    behind = self._next_chunk(handle, position, size, stream_id, first)
                    # A place counts as unreadable even if a second read of it succeeds.
                    is_readable = self._is_readable(handle, position, behind) and self._unread == unread
                    if is_last and behind == size and is_readable and self._log_has(stream_id, int(segment.end)):
                        break  # torn, and never reported
                    if is_readable and self._is_padding(handle, position, behind, segment):
                        position = behind
                        continue
                    what = "is damaged" if is_readable else "cannot be read"
                    found.problems.append(f"{path} {what} at byte {position}")
                    is_damaged = True
                    position = behind
                    if not is_readable and behind == size:
                        position += -position % CLEAR_BYTES
                    continue
                segment.cut(head.first)
                segment.add(SealedChunk(position, head))
                self._end_is_unread = False
                position += int(head.chunk_bytes)
            if segment.chunks:
                # Damage at the end of a file is not written over.
                segment.file_bytes = position + -position % ALIGNMENT_BYTES
                if is_last:
                    if position < size:
                        self._fs.truncate(handle, position)
                    self._sync(handle, path)
                return segment
        finally:
            self._fs.close(handle)
        if self._unread > unread_before:
            self._leave(path, stream_id, first)
            return None
        if is_damaged:
            self._set_aside(path)
        elif is_last:
            self._fs.unlink(path)
        return None

    def _is_padding(self, handle: int, position: int, behind: int, segment: SealedSegment) -> bool:
        """Tell whether a chunk went to `behind` because the bytes before `position` could not be read then."""
        if behind - position >= CLEAR_BYTES or behind % CLEAR_BYTES:
            return False
        data = self._maybe_read(handle, CHUNK_HEAD_BYTES, behind)
        head = None if data is None else maybe_head(data)
        gap = self._maybe_read(handle, behind - position, position)
        return head is not None and head.first <= segment.end and gap is not None and not any(gap)

    def _is_compacted(self, stream_id: int, table: SealedTable, offset: int) -> bool:
        """Tell whether compaction has written the chunk that `offset` is in."""
        segment, chunk = table.place(offset)
        handle = self._fs.open(sealed_path(stream_id, int(segment.first)), writable=False)
        try:
            head = self._maybe_read(handle, CHUNK_HEAD_BYTES, int(chunk.position))
        finally:
            self._fs.close(handle)
        return head is not None and len(head) == CHUNK_HEAD_BYTES and bool(head[CHUNK_FLAGS_AT] & COMPACTED)

    def _leave(self, path: str, stream_id: int, first: int) -> None:
        """Leave a file that cannot be read now to the next start; if the log has all of it, it is sealed again."""
        if self._log_has(stream_id, first):
            self._set_aside(path)

    def _set_aside(self, path: str) -> None:
        self._fs.rename(path, self._free_path(f"{path}{UNUSABLE}"))

    def _free_path(self, path: str) -> str:
        """Return an unused path: a file that was set aside before stays."""
        taken = {f"{STREAMS}/{name}" for name in self._fs.names(STREAMS)}
        number = 1
        free = path
        while free in taken:
            number += 1
            free = f"{path}.{number}"
        return free

    def _maybe_chunk(
        self, handle: int, position: int, size: int, stream_id: int, segment: int, *, checked: bool
    ) -> ChunkHead | None:
        """Return the head of the chunk at `position`, if one is there whole; `checked`: all of it is verified."""
        data = self._maybe_read(handle, CHUNK_HEAD_BYTES, position)
        head = None if data is None else maybe_head(data)
        if head is None or position + int(head.chunk_bytes) > size:
            return None
        if head.mark != chunk_mark(self.store_id, stream_id, segment, position):
            return None
        if checked:
            data = self._maybe_read(handle, int(head.chunk_bytes), position)
            if data is None or not is_whole(head, data):
                return None
        return head

    def _next_chunk(self, handle: int, position: int, size: int, stream_id: int, segment: int) -> int:
        """Return where the next whole chunk after a damaged place begins; `size` without one."""
        at = position + ALIGNMENT_BYTES
        while at < size:
            piece = self._readable(handle, min(_SEARCH_BYTES + len(CHUNK_MAGIC), size - at), at)
            found = piece.find(CHUNK_MAGIC)
            if found < 0:
                at += _SEARCH_BYTES
                continue
            at += found
            if at % ALIGNMENT_BYTES == 0 and self._maybe_chunk(handle, at, size, stream_id, segment, checked=True):
                return at
            at += 1
        return size

    def _maybe_read(self, handle: int, length: int, position: int) -> bytes | None:
        """Return the bytes there, fewer only where the file ends; None where the disk cannot read. Raises OSError."""
        try:
            return read_exactly(self._fs, handle, length, position)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            self._met_unreadable(STREAMS, error)
            return None

    def _met_unreadable(self, path: str, error: OSError) -> None:
        self._unread += 1
        self._end_is_unread = True
        if not self._tolerates:
            raise UnreadableFileError(path, error)

    def _readable(self, handle: int, length: int, position: int) -> bytes:
        """Return the bytes there, with zeros where the disk cannot read."""
        data = self._maybe_read(handle, length, position)
        if data is not None:
            return data
        pieces: list[bytes] = []
        end = position + length
        while position < end:
            size = min(_BLOCK_BYTES - position % _BLOCK_BYTES, end - position)
            block = self._maybe_read(handle, size, position)
            pieces.append(bytes(size) if block is None else block)
            position += size
        return b"".join(pieces)

    def _is_readable(self, handle: int, position: int, end: int) -> bool:
        pieces = range(position, end, _SEARCH_BYTES)
        return all(self._maybe_read(handle, min(_SEARCH_BYTES, end - at), at) is not None for at in pieces)


def chunk_mark(store_id: bytes, stream_id: int, segment: int, position: int) -> bytes:
    """Return the mark of the chunk at `position` of the segment that begins at offset `segment`."""
    return sha256(store_id + _PLACE.pack(stream_id, segment, position)).digest()[:MARK_BYTES]


def segment_header(store_id: bytes, stream_id: int, first: int) -> bytes:
    """Return the header of a segment."""
    head = _HEADER.pack(MAGIC, MAJOR, store_id, stream_id, first, 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little")


def header_problem(data: bytes, store_id: bytes, stream_id: int, first: int) -> str:
    """Return what is wrong with the header of a segment, worded to follow the name of the file; empty when it is right.

    Raises:
        StoreError: a later version of Warren has written it.
    """
    if len(data) < SEGMENT_HEADER_BYTES or data[:8] != MAGIC:
        return "does not begin like a segment of a stream"
    _, major, own_store_id, own_id, own_first, crc = _HEADER.unpack(data)
    if zlib.crc32(data[:-4]) != crc:
        return "has a damaged header"
    if major != MAJOR:
        raise StoreError(f"a segment of a stream has format version {major}: a newer Warren has written this store")
    if own_store_id != store_id:
        return f"is of another store, {own_store_id.hex()}"
    if (own_id, own_first) != (stream_id, first):
        return f"says that it is of stream {own_id} from offset {own_first} on"
    return ""


class Zstd:
    """zstd for one thread. Imported when it is needed first: it takes more than 2 MB."""

    def __init__(self) -> None:
        self._compress: Callable[[bytes], bytes] | None = None
        self._decompress: Callable[..., bytes] | None = None

    def compress(self, data: bytes) -> bytes:
        """Return `data` as a zstd frame, which says how large it was."""
        if self._compress is None:
            import zstandard

            self._compress = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress
        return self._compress(data)

    def decompress(self, data: bytes, size: int) -> bytes:
        """Return the `size` bytes that a zstd frame holds.

        Raises:
            ValueError: the data is not a zstd frame, or holds another number of bytes.
        """
        import zstandard

        if self._decompress is None:
            self._decompress = zstandard.ZstdDecompressor().decompress
        try:
            # A frame that states a size is given that much memory, whatever `max_output_size` says.
            if zstandard.frame_content_size(data) not in (-1, size):
                raise ValueError("a part states another size than its head says")
            found = self._decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(f"no zstd frame that can be read: {error}") from None
        if len(found) != size:
            raise ValueError("a part has another size than its head says")
        return found


def uncompressed(head: ChunkHead, chunk: bytes, decompressor: Zstd) -> list[bytes]:
    """Return the parts of a chunk.

    Raises:
        ValueError: a part is not a zstd frame of the size that the head announces.
    """
    parts: list[bytes] = []
    for at in range(PART_COUNT):
        start, stored, whole = int(head.places[at]), int(head.stored[at]), int(head.whole[at])
        part = chunk[start : start + stored]
        parts.append(decompressor.decompress(part, whole) if stored != whole else part)
    return parts
