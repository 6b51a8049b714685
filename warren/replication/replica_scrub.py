"""A follower's scrubbing: sealed files are read again, slowly and for ever, and damage is mended.

    missing segments of the log                  requested whole
    segments of the log, but for the newest      frame by frame
    files of streams                             chunk by chunk

1. It works while the follower is in sync, for then its leader has the same bytes. A pass takes a file at a time. It is
   given up when the follower loses its leader, and a new one begins from scratch.
2. A damaged place is checked twice, with a pause between: a chunk may just be being written.
3. Bytes are put in place under the lock of the replica's entries, and only if no file has become another one since it
   was found damaged (`ReplicaStore.generation`).
4. Damage that cannot be mended is reported once, and counted (`damaged`) as long as it is there. It goes with its file:
   segments and files of streams may be removed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from warren.msgstore.files.file_system import read_exactly
from warren.msgstore.files.sealed_copy import SealedCopy
from warren.msgstore.files.sealed_files import STREAMS, maybe_sealed_name, sealed_path
from warren.msgstore.files.segment_header import parsed_header
from warren.msgstore.files.segment_names import LOG, maybe_segment_number, segment_path
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.replication.mending import Mender, chunk_states
from warren.replication.questions import Questions
from warren.replication.replica_checkpoint import NeededSegment
from warren.replication.replica_store import ReplicaStore
from warren.replication.segment_frames import SegmentFrames
from warren.server.logs import get_logger
from warren.server.threads import REPLICATION, in_thread

PIECE_BYTES: Final = 1 << 20
IDLE_S: Final = 5.0
PASS_EVERY_S: Final = 3600.0
SUSPECT_S: Final = 0.5  # until a suspect is checked, and between two checks

log = get_logger("replication")


class ReplicaScrub:
    """That of `replica`. `copy` tells what readers have met; `peers` are asked while the follower is in sync."""

    def __init__(self, replica: ReplicaStore, copy: SealedCopy, peers: Callable[[], Sequence[Questions]]) -> None:
        self._replica = replica
        self._fs = replica.file_system
        self._copy = copy
        self._peers = peers
        self._generation = 0
        self._mender = Mender(self._fs, peers, self._put, lambda: replica.store_id)
        self._unmended: set[tuple[str, int]] = set()

    @property
    def mended(self) -> int:
        """How many places were mended."""
        return self._mender.mended

    @property
    def damaged(self) -> int:
        """How many places are damaged, and could not be; a missing segment is one."""
        return len(self._unmended) + len(self._replica.missing())

    async def run(self, bytes_per_s: int) -> None:
        """Go round, at that pace. For ever."""
        looking = self._all()
        began_s = trio.current_time()
        rests_until_s = began_s
        read_bytes = 0  # in this pass
        while True:
            now_s = trio.current_time()
            if not self._peers():
                looking = self._all()
                await trio.sleep(IDLE_S)
            elif self._copy.suspects:
                await trio.sleep(SUSPECT_S)
                await in_thread(REPLICATION, self._look_at_suspects)
            elif now_s < rests_until_s:
                await trio.sleep(min(IDLE_S, rests_until_s - now_s))
            elif (size := await in_thread(REPLICATION, partial(next, looking, None))) is not None:
                read_bytes += size
                await trio.sleep(max(size, PIECE_BYTES) / bytes_per_s)
            else:
                looking = self._all()
                rests_until_s = began_s + PASS_EVERY_S if read_bytes else now_s + IDLE_S  # nothing is sealed
                began_s, read_bytes = max(now_s, rests_until_s), 0

    def look_at_all(self) -> None:
        """Make one pass, at once. Blocks."""
        for _ in self._all():
            pass

    def _look_at_suspects(self) -> None:
        while self._copy.suspects:
            stream_id, segment = self._copy.suspects.popleft()
            for _ in self._file_of_stream(stream_id, segment):
                pass

    def _all(self) -> Iterator[int]:
        """Look at everything, and yield how much was read since the last time."""
        there = {f"{directory}/{name}" for directory in (LOG, STREAMS) for name in self._fs.names(directory)}
        self._unmended = {place for place in self._unmended if place[0] in there}
        for missing, needed in self._replica.missing().items():
            yield self._missing_segment(missing, needed)
        numbers = [number for name in self._fs.names(LOG) if (number := maybe_segment_number(name)) is not None]
        for number in sorted(numbers)[:-1]:
            yield from self._segment(number)
        for name in self._fs.names(STREAMS):
            named = maybe_sealed_name(name)
            if named is not None:
                yield from self._file_of_stream(*named)

    def _missing_segment(self, number: int, needed: NeededSegment) -> int:
        """Request a segment that is missing; return how many bytes have come."""
        self._generation = self._replica.generation
        data = self._mender.maybe_segment(number, needed.base_lsn, needed.end_lsn - needed.base_lsn)
        if data and self._replica.add_missing(self._generation, number, data):
            log.warning("a missing segment of the message log is here again", segment=number)
        return len(data)

    def _segment(self, number: int) -> Iterator[int]:
        path = segment_path(number)
        try:
            handle = self._fs.open(path, writable=False)
        except OSError:
            return
        lsn = 0
        try:
            size = self._fs.size(handle)
            header = parsed_header(read_exactly(self._fs, handle, SEGMENT_HEADER_BYTES, 0), size, path)
            if not isinstance(header, str):
                frames = SegmentFrames(self._fs, handle, header)
                lsn, told = frames.first_lsn, 0
                while lsn < header.base_lsn + size and (found := frames.maybe_frame(lsn)) is not None:
                    lsn += int(found[0].end)
                    if lsn - frames.first_lsn - told >= PIECE_BYTES:
                        yield lsn - frames.first_lsn - told
                        told = lsn - frames.first_lsn
                if lsn >= header.base_lsn + size:
                    self._is_well(path)
                    return
        except OSError:
            pass  # the disk does not give it
        finally:
            self._fs.close(handle)
        yield 0
        self._generation = self._replica.generation
        self._note(path, lsn, self._mender.mend_frames(number, end_lsn=self._replica.end_lsn(number)))

    def _file_of_stream(self, stream_id: int, segment: int) -> Iterator[int]:
        store_id = self._replica.store_id
        suspects = list(self._chunks(store_id, stream_id, segment))
        yield sum(size for _, size, _ in suspects)
        if all(is_well for _, _, is_well in suspects):
            self._is_well(sealed_path(stream_id, segment))
            return
        for position, size, is_well in self._chunks(store_id, stream_id, segment):
            if not is_well:
                self._generation = self._replica.generation
                is_mended = self._mender.mend_chunk(store_id, stream_id, segment, position, size)
                self._note(sealed_path(stream_id, segment), position, is_mended)
                yield size

    def _chunks(self, store_id: bytes, stream_id: int, segment: int) -> Iterator[tuple[int, int, bool]]:
        return chunk_states(self._fs, sealed_path(stream_id, segment), store_id, stream_id, segment)

    def _put(self, path: str, position: int, data: bytes) -> bool:
        return self._replica.mend(self._generation, path, position, data)

    def _is_well(self, path: str) -> None:
        self._unmended = {place for place in self._unmended if place[0] != path}

    def _note(self, path: str, position: int, is_mended: bool) -> None:
        place = (path, position)
        directory, _, name = path.rpartition("/")
        if is_mended:
            self._unmended.discard(place)
        elif place not in self._unmended and name in self._fs.names(directory):
            self._unmended.add(place)
            log.error(
                "damage on disk cannot be mended", file=path, reason="the leader has not answered with these bytes"
            )
