"""Rot mended from a peer: the damaged bytes of a file of this node are requested from others, checked, and replaced.

    damaged frames of a segment  ->  from the end of the intact frame before to the next intact one
    damaged header of a segment  ->  the header, and the damaged frames that follow it
    damaged chunk of a stream    ->  the chunk
                                 ->  the same bytes of another node  ->  checked  ->  the damaged ones are kept in
                                     ``quarantine/``, the others written over them and synced, and read again

1. Nothing is written that does not prove itself. Frames are of this store, each whole at its LSN, and continue the
   chain from the frame before to the frame after. A header is whole, and of this store and segment. A chunk has its
   mark, which is of this stream, file and place, its checksums hold, and it fills the place between its neighbours.
2. Intact bytes are never overwritten, and files never become longer. A crash in the middle leaves damage where damage
   was: the next reader finds it, and asks again.
3. Damage that cannot be mended stays, and its finder reports it. After a question without any answer, no question is
   asked for `REST_S`: readers are not held up again and again.
4. Bytes that the disk does not give count as damaged. Their whole blocks are written: to write a part of a block the
   kernel reads it, which fails likewise. Damage is replaced from frame to frame, so it spans them.
5. Sealed and current segments are the same bytes on all nodes (``shipping``). Files of streams may differ when one of
   the nodes has compacted a file: hence the mark and the places.

All of it blocks, and may be called in several threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Final, NamedTuple, Protocol

from warren.msgstore.files.file_system import FileSystem, read_exactly, write_all
from warren.msgstore.files.quarantine import QUARANTINE
from warren.msgstore.files.sealed_files import chunk_mark, sealed_path
from warren.msgstore.files.segment_header import SegmentHeader, parsed_header
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.files.store import wall_time_ms
from warren.msgstore.log.checksum import checksum_function
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, ChunkHead, is_whole, maybe_head
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES, STORE_TAG_BYTES, Checksum
from warren.msgstore.log.replay import maybe_frame, next_head
from warren.replication.entries import WantBytes
from warren.replication.questions import answered
from warren.server.logs import get_logger

REST_S: Final = 30.0
_ALIGNMENT: Final = 8
_BLOCK_BYTES: Final = 4096
_PIECE_BYTES: Final = 1 << 20

Write = Callable[[str, int, bytes], bool]

log = get_logger("replication")


class Region(NamedTuple):
    """Damage in a segment: bytes [start, end) of its file, and the crcs of the frames on both sides, if there are any.

    `before`: the crc of the frame that ends at `start`. `behind`: the previous crc in the frame at `end`.
    """

    start: int
    end: int
    before: int | None
    behind: int | None


class Peer(Protocol):
    """Answers questions for bytes of its files; see `Questions`."""

    def ask(self, stream_id: int, segment: int, position: int, length: int) -> bytes | None: ...


class OwnFiles:
    """The files of this node in `fs`, asked like those of another one."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def ask(self, stream_id: int, segment: int, position: int, length: int) -> bytes | None:
        """See `Questions.ask`."""
        found = answered(self._fs, WantBytes(0, stream_id, segment, position, length)).data
        return bytes(found) if len(found) == length else b""


class Mender:
    """Mends the files in the root directory of `fs`. `peers`: over which links others can be asked, best first.

    `write` puts bytes into a file durably, and tells whether it did; the default does it here and now.
    `path_of` and `sealed_path_of` tell where the files are that are mended. `tell` logs that a place of a file was
    mended: its position and size in bytes.
    """

    def __init__(
        self,
        fs: FileSystem,
        peers: Callable[[], Sequence[Peer]],
        write: Write | None = None,
        store_id: Callable[[], bytes] | None = None,
        clock_ms: Callable[[], int] = wall_time_ms,
        path_of: Callable[[int], str] = segment_path,
        sealed_path_of: Callable[[int, int], str] = sealed_path,
        tell: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.mended = 0  # places
        self._fs = fs
        self._peers = peers
        self._write = self._write_here if write is None else write
        self._store_id = store_id
        self._clock_ms = clock_ms
        self._path_of = path_of
        self._sealed_path_of = sealed_path_of
        self._tell = _tell if tell is None else tell
        self._lock = Lock()
        self._rests_until_s = 0.0

    def mend_frames(self, number: int, lsn: int | None = None, end_lsn: int = 0) -> bool:
        """Mend the damage in a segment that `lsn` is in, all of it for None; tell whether none is left.

        Zeros after the last frame are not damage, except for those before `end_lsn`, or at `lsn`.
        """
        if lsn is not None:
            end_lsn = max(end_lsn, lsn + 1)
        with self._lock:
            path = self._path_of(number)
            data = self._read_all(path)
            head = data[:SEGMENT_HEADER_BYTES]
            header = parsed_header(head, len(data), path)
            if isinstance(header, str):
                head = self._header_by_peers(number, len(data))
                header = parsed_header(head, len(data), path)
                if isinstance(header, str):
                    return False
                data = head + data[SEGMENT_HEADER_BYTES:]
                is_mended, data = self._mended_beginning(number, data, header, end_lsn)
                if not is_mended:
                    return False
            base_lsn, checksum, tag = (
                header.base_lsn,
                checksum_function(header.algorithm),
                header.store_id[:STORE_TAG_BYTES],
            )
            regions = damaged_regions(data, base_lsn, checksum, tag, end_lsn)
            if lsn is not None:
                regions = [region for region in regions if region.start <= lsn - base_lsn < region.end]
            are_mended = True
            for region in regions:

                def is_right(data: bytes, region: Region = region) -> bool:
                    return is_continuous(data, region, base_lsn, checksum, tag)

                place = (0, number, region.start, region.end - region.start)
                are_mended &= self._mended(path, place, is_right)
            return are_mended

    def maybe_segment(self, number: int, base_lsn: int, length: int) -> bytes:
        """Return the first `length` bytes of a segment that is missing here, all of them intact; else nothing."""
        path = self._path_of(number)
        with self._lock:
            for peer in self._asked() if self._store_id is not None else ():
                data = peer.ask(0, number, 0, length) or b""
                header = parsed_header(data[:SEGMENT_HEADER_BYTES], len(data), path)
                if isinstance(header, str) or (header.number, header.base_lsn) != (number, base_lsn):
                    continue
                checksum, tag = checksum_function(header.algorithm), header.store_id[:STORE_TAG_BYTES]
                frames = Region(SEGMENT_HEADER_BYTES, length, None, None)
                is_ours = self._store_id is not None and header.store_id == self._store_id()
                if is_ours and is_continuous(data[SEGMENT_HEADER_BYTES:], frames, base_lsn, checksum, tag):
                    return data
        return b""

    def mend_chunk(self, store_id: bytes, stream_id: int, segment: int, position: int, size: int = 0) -> bool:
        """Mend the chunk at `position` of a file of a stream, of `size` bytes if that is known; tell whether it is."""
        with self._lock:
            path = self._sealed_path_of(stream_id, segment)
            mark = chunk_mark(store_id, stream_id, segment, position)
            size = size or self._size_by_peers(stream_id, segment, position, mark)
            if not size or not self._is_followed(path, store_id, stream_id, segment, position + size):
                return False

            def is_right(data: bytes) -> bool:
                head = maybe_head(data)
                return head is not None and head.mark == mark and is_whole(head, data)

            return self._mended(path, (stream_id, segment, position, size), is_right)

    def _size_by_peers(self, stream_id: int, segment: int, position: int, mark: bytes) -> int:
        """Return the size of a chunk whose head cannot be read here, in bytes; 0 when it is unknown."""
        for questions in self._asked():
            head = maybe_head(questions.ask(stream_id, segment, position, CHUNK_HEAD_BYTES) or b"")
            if head is not None and head.mark == mark:
                return int(head.chunk_bytes)
        return 0

    def _is_followed(self, path: str, store_id: bytes, stream_id: int, segment: int, end: int) -> bool:
        """Tell whether another chunk begins at `end` of a file, or the file ends there."""
        try:
            handle = self._fs.open(path, writable=False)
            try:
                size = self._fs.size(handle)
                data = read_exactly(self._fs, handle, CHUNK_HEAD_BYTES, end) if end < size else b""
            finally:
                self._fs.close(handle)
        except OSError:
            return False
        head = maybe_head(data)
        return end == size or (head is not None and head.mark == chunk_mark(store_id, stream_id, segment, end))

    # --- both ---------------------------------------------------------------------------------------------------------

    def _asked(self) -> Sequence[Peer]:
        return self._peers() if time.monotonic() >= self._rests_until_s else ()

    def _mended(self, path: str, place: tuple[int, int, int, int], is_right: Callable[[bytes], bool]) -> bool:
        """Replace the bytes of a place by those of another node, if they are right; tell whether they are."""
        _, _, position, length = place
        has_answered = False
        for questions in self._asked():
            data = questions.ask(*place)
            has_answered |= data is not None
            if not data or not is_right(data):
                continue
            self._keep(path, position, length)
            if self._write(path, position, data) and is_right(self._read(path, position, length)):
                self.mended += 1
                self._tell(path, position, length)
                return True
        if not has_answered:
            self._rests_until_s = time.monotonic() + REST_S
        return False

    def _keep(self, path: str, position: int, length: int) -> None:
        """Keep the damaged bytes for a later look. A failure of that does not matter."""
        name = path.rpartition("/")[2]
        with suppress(OSError):
            handle = self._fs.create(f"{QUARANTINE}/mended-{name}-{position}-{self._clock_ms()}", 0)
            try:
                write_all(self._fs, handle, [self._read(path, position, length)], 0)
                self._fs.sync(handle)
            finally:
                self._fs.close(handle)
            self._fs.sync_directory(QUARANTINE)

    def _write_here(self, path: str, position: int, data: bytes) -> bool:
        return put_in_place(self._fs, path, position, data)

    def _read(self, path: str, position: int, length: int) -> bytes:
        """Return the bytes there, with zeros where the disk cannot read."""
        try:
            handle = self._fs.open(path, writable=False)
        except OSError:
            return b""
        try:
            return readable(self._fs, handle, position, length)
        finally:
            self._fs.close(handle)

    def _read_all(self, path: str) -> bytes:
        """Return a whole file, with zeros where the disk cannot read; nothing if it cannot be opened."""
        try:
            handle = self._fs.open(path, writable=False)
            try:
                return readable(self._fs, handle, 0, self._fs.size(handle))
            finally:
                self._fs.close(handle)
        except OSError:
            return b""

    def _header_by_peers(self, number: int, size: int) -> bytes:
        """Return the header of a segment of this store, of `size` bytes, as others have it; nothing without one."""
        for questions in self._asked() if self._store_id is not None and size else ():
            data = questions.ask(0, number, 0, SEGMENT_HEADER_BYTES) or b""
            header = parsed_header(data, size, segment_path(number))
            if isinstance(header, str) or header.number != number or size > header.capacity:
                continue
            if self._store_id is not None and header.store_id == self._store_id():
                return data
        return b""

    def _mended_beginning(self, number: int, data: bytes, header: SegmentHeader, end_lsn: int) -> tuple[bool, bytes]:
        """Mend a segment up to its first intact frame; return whether that is done, and the segment then."""
        head = data[:SEGMENT_HEADER_BYTES]
        checksum, tag = checksum_function(header.algorithm), header.store_id[:STORE_TAG_BYTES]
        regions = damaged_regions(data, header.base_lsn, checksum, tag, end_lsn)
        has_first = len(regions) > 0 and regions[0].start == SEGMENT_HEADER_BYTES
        first = regions[0] if has_first else Region(SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES, None, None)

        def is_right(found: bytes) -> bool:
            frames = found[SEGMENT_HEADER_BYTES:]
            return found[:SEGMENT_HEADER_BYTES] == head and is_continuous(frames, first, header.base_lsn, checksum, tag)

        path = self._path_of(number)
        is_mended = self._mended(path, (0, number, 0, first.end), is_right)
        return is_mended, self._read_all(path) if is_mended else data


def _tell(path: str, position: int, size: int) -> None:
    log.error("damage on disk was mended from another node", file=path, position=position, bytes=size)


def damaged_regions(data: bytes, base_lsn: int, checksum: Checksum, tag: bytes, end_lsn: int = 0) -> list[Region]:
    """Return where in a segment no intact frame is; zeros at its end, from `end_lsn` on, are space that is not used."""
    found: list[Region] = []
    at, crc = SEGMENT_HEADER_BYTES, None
    while at < len(data):
        frame = maybe_frame(checksum, tag, data, at, base_lsn + at)
        if frame is not None:
            at, crc = int(frame.end), frame.crc
            continue
        end = _next_frame(data, at, base_lsn, checksum, tag)
        if end == len(data) and base_lsn + at >= end_lsn and not any(data[at:]):
            break
        behind = maybe_frame(checksum, tag, data, end, base_lsn + end)
        found.append(Region(at, end, crc, None if behind is None else behind.previous_crc))
        at = end
    return found


def _next_frame(data: bytes, at: int, base_lsn: int, checksum: Checksum, tag: bytes) -> int:
    """Return where the next intact frame after `at` begins; the end of the segment without one."""
    found = next_head(tag, data, at + 1)
    while found >= 0:
        if maybe_frame(checksum, tag, data, found, base_lsn + found) is not None:
            return found
        found = next_head(tag, data, found + _ALIGNMENT)
    return len(data)


def is_continuous(data: bytes, region: Region, base_lsn: int, checksum: Checksum, tag: bytes) -> bool:
    """Tell whether `data` are the frames that belong into `region`."""
    if len(data) != region.end - region.start:
        return False
    at, crc = 0, region.before
    while at < len(data):
        frame = maybe_frame(checksum, tag, data, at, base_lsn + region.start + at)
        if frame is None or (crc is not None and frame.previous_crc != crc):
            return False
        at, crc = int(frame.end), frame.crc
    return region.behind is None or crc == region.behind


def put_in_place(fs: FileSystem, path: str, position: int, data: bytes) -> bool:
    """Write over bytes of a file that is there, durably; tell whether that was possible. No file becomes longer."""
    try:
        handle = fs.open(path, writable=True)
        try:
            if fs.size(handle) < position + len(data):
                return False
            write_all(fs, handle, [data], position)
            fs.sync(handle)
        finally:
            fs.close(handle)
    except OSError:
        return False
    return True


def readable(fs: FileSystem, handle: int, position: int, length: int) -> bytes:
    """Return bytes of a file, with zeros where the disk cannot read."""
    pieces: list[bytes] = []
    for at in range(position, position + length, _PIECE_BYTES):
        size = min(_PIECE_BYTES, position + length - at)
        try:
            pieces.append(read_exactly(fs, handle, size, at))
        except OSError:
            for block in range(at, at + size, _BLOCK_BYTES):
                wanted = min(_BLOCK_BYTES, at + size - block)
                try:
                    pieces.append(read_exactly(fs, handle, wanted, block))
                except OSError:
                    pieces.append(bytes(wanted))
    return b"".join(pieces)


def chunk_places(fs: FileSystem, handle: int, mark_of: Callable[[int], bytes]) -> list[tuple[int, ChunkHead | None]]:
    """Return the chunks of a file of a stream: their places and heads; None at the end, where none can be read."""
    found: list[tuple[int, ChunkHead | None]] = []
    at, size = SEGMENT_HEADER_BYTES, fs.size(handle)
    while at < size:
        head = maybe_head(readable(fs, handle, at, CHUNK_HEAD_BYTES))
        if head is None or head.mark != mark_of(at):
            found.append((at, None))
            break
        found.append((at, head))
        at += int(head.chunk_bytes)
    return found


def chunk_states(
    fs: FileSystem, path: str, store_id: bytes, stream_id: int, segment: int
) -> Iterator[tuple[int, int, bool]]:
    """Yield the place of each chunk of a file of a stream, its size, 0 when that is unknown, and whether it is whole.

    After a head that cannot be read the places are not known. A file that cannot be opened has none.
    """
    try:
        handle = fs.open(path, writable=False)
    except OSError:
        return
    try:
        for position, head in chunk_places(fs, handle, partial(chunk_mark, store_id, stream_id, segment)):
            if head is None:
                yield position, 0, False
                continue
            size = int(head.chunk_bytes)
            try:
                data = read_exactly(fs, handle, size, position)
            except OSError:
                data = b""
            yield position, size, is_whole(head, data)
    except OSError:
        return
    finally:
        fs.close(handle)
