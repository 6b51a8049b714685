"""Sealed chunks from files that another part writes: those of a follower, which has no table of their contents.

    names in `STREAMS` -> the file that an offset must be in -> the heads of its chunks -> the chunk, checked

1. A chunk is returned only if it is whole by its checksums, has the mark of this place (``sealed_files`` (6)), and has
   the requested offset. Chunks that are torn, damaged, being written or gone count as missing.
2. The returned chunks follow each other without a gap.
3. Remembered facts about files are hints: an outdated one is looked up again, once for each call.
4. At most `HEADS_MAX` heads and the names of `STREAMS_MAX` streams are remembered.

Everything here blocks. Several threads may call it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.sealed_files import STREAMS, chunk_mark, maybe_sealed_name, sealed_path
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, is_whole, maybe_head
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES

HEADS_MAX: Final = 100_000
STREAMS_MAX: Final = 10_000
SUSPECTS_MAX: Final = 16


class Place(NamedTuple):
    """Where a chunk of the offsets [first, end) is in its file."""

    first: int
    end: int
    position: int
    size: int


class SealedCopy:
    """The sealed streams of the store in the root directory of `fs`."""

    def __init__(self, fs: FileSystem, heads_max: int = HEADS_MAX) -> None:
        self._fs = fs
        self._heads_max = heads_max
        self._lock = Lock()
        self._segments: dict[int, list[int]] = {}  # first offsets, ascending, by stream
        self._places: OrderedDict[tuple[int, int], list[Place]] = OrderedDict()  # by stream and segment
        self._heads = 0
        self.suspects: deque[tuple[int, int]] = deque(maxlen=SUSPECTS_MAX)  # streams and segments, to be checked

    def read(self, store_id: bytes, stream_id: int, first: int, end: int, most_bytes: int) -> tuple[list[bytes], int]:
        """Return the chunks from offset `first` on up to `end`, and where they end; nothing and `first`: not here.

        The first one may begin before, the last one reach beyond. They have `most_bytes` or a chunk more. Raises
        OSError: the disk does not give it, or descriptors ran out.
        """
        found: list[bytes] = []
        size, at, is_fresh = 0, first, False
        while at < end and size < most_bytes:
            chunk = self._maybe_chunk(store_id, stream_id, at)
            if chunk is None and not is_fresh:
                is_fresh = True
                with self._lock:
                    self._look_again(stream_id)
                chunk = self._maybe_chunk(store_id, stream_id, at)
            if chunk is None:
                break
            data, at = chunk
            found.append(data)
            size += len(data)
        return found, at

    def _maybe_chunk(self, store_id: bytes, stream_id: int, offset: int) -> tuple[bytes, int] | None:
        """Return the chunk that has `offset`, and where it ends.

        It is in the last file that begins before it; right after a compaction it may be in an earlier one.
        """
        segments = self._segments.get(stream_id, [])
        last = bisect_right(segments, offset) - 1
        for number in range(last, max(-1, last - 2), -1):
            with suppress(FileNotFoundError):
                handle = self._fs.open(sealed_path(stream_id, segments[number]), writable=False)
                try:
                    chunk = self._chunk_of(handle, store_id, stream_id, segments[number], offset)
                finally:
                    self._fs.close(handle)
                if chunk is not None:
                    return chunk
        return None

    def _chunk_of(
        self, handle: int, store_id: bytes, stream_id: int, segment: int, offset: int
    ) -> tuple[bytes, int] | None:
        with self._lock:
            places = self._places_in(handle, store_id, stream_id, segment, offset)
            # Of overlapping chunks the later one counts.
            place = next((each for each in reversed(places) if each.first <= offset < each.end), None)
        if place is None:
            return None
        data = read_exactly(self._fs, handle, place.size, place.position)
        head = maybe_head(data)
        is_meant = (
            head is not None
            and (int(head.first), int(head.end)) == (place.first, place.end)
            and head.mark == chunk_mark(store_id, stream_id, segment, place.position)
            and is_whole(head, data)
        )
        if not is_meant:
            self._suspect(stream_id, segment)
            return None
        return data, place.end

    def _places_in(self, handle: int, store_id: bytes, stream_id: int, segment: int, offset: int) -> list[Place]:
        """Return the chunks of a file, as far as to those that have `offset`."""
        key = (stream_id, segment)
        places = self._places.setdefault(key, [])
        self._places.move_to_end(key)
        at = places[-1].position + places[-1].size if places else SEGMENT_HEADER_BYTES
        size = self._fs.size(handle)
        while at + CHUNK_HEAD_BYTES <= size and not (places and places[-1].first > offset):
            head = maybe_head(read_exactly(self._fs, handle, CHUNK_HEAD_BYTES, at))
            if head is None or head.mark != chunk_mark(store_id, stream_id, segment, at):
                self._suspect(stream_id, segment)
                break
            places.append(Place(int(head.first), int(head.end), at, int(head.chunk_bytes)))
            self._heads += 1
            at += int(head.chunk_bytes)
        while self._heads > self._heads_max and len(self._places) > 1:
            self._heads -= len(self._places.popitem(last=False)[1])
        return places

    def _suspect(self, stream_id: int, segment: int) -> None:
        if (stream_id, segment) not in self.suspects:
            self.suspects.append((stream_id, segment))

    def _look_again(self, stream_id: int) -> None:
        """Forget the facts about a stream, and find its files."""
        for key in [(stream_id, segment) for segment in self._segments.pop(stream_id, ())]:
            self._heads -= len(self._places.pop(key, ()))
        named = [maybe_sealed_name(name) for name in self._fs.names(STREAMS)]
        found = sorted(each[1] for each in named if each is not None and each[0] == stream_id)
        if found:
            while len(self._segments) >= STREAMS_MAX:
                other = next(iter(self._segments))
                for segment in self._segments.pop(other):
                    self._heads -= len(self._places.pop((other, segment), ()))
            self._segments[stream_id] = found
