"""Jobs of the engine for the store's threads: plain values, made on the loop, carried out elsewhere.

The engine half of the store never touches a file. It makes these, the shell carries them out in order, and hands each
one back with its outcome filled in. `CommitJob`s go to the committer, `SealJob`s and checkpoints to the housekeeper,
everything else to the reader.

1. An errand whose bytes the disk does not give now is not handed back: the shell repeats it until it succeeds. So the
   queue that asked waits. A range that comes back empty is gone, one that comes back wrong is damaged. Only what is
   read for its own sake is left after a while (`Errand.is_left`).
2. Damaged bytes were read twice, the second time past the cache, and no other node could mend them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from mypy_extensions import i64

from warren.msgstore.log.records import FRAME_HEADER_BYTES, is_intact, record_length

if TYPE_CHECKING:
    from warren.msgstore.log.bodies_ahead import BodiesAhead
    from warren.msgstore.log.columns import Columns
    from warren.msgstore.log.removals import Removals

# Records from this size on are read in pieces of `PIECE_BYTES`.
LARGE_RECORD_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 1 << 18


class Files(Protocol):
    """The methods of ``msgstore.files.store.Store`` that errands need."""

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]: ...
    def seal(self, job: SealJob) -> None: ...
    def read_sealed(self, job: SealedRead) -> None: ...
    def drop_sealed(self, job: DropJob) -> None: ...
    def swap_sealed(self, stream_id: int, segments: list[int]) -> None: ...
    def unmake_sealed(self, stream_id: int, segment: int) -> None: ...


class CommitJob:
    """Write one frame, and make it durable when `sync`. Without records there is only the sync.

    A batch is one job, or a few for a very large one: all but the last are continued.

    The committer adds what only it knows: the time, the LSN up to which the log is committed by now, the epoch and the
    crc of the frame before. A job that syncs is reported when its frame is committed.
    """

    def __init__(
        self,
        batch: i64,
        lsn: i64,
        segment: i64,
        base_lsn: i64,
        capacity: i64,
        chunks: list[bytes],
        payload_bytes: i64,
        record_count: i64,
        sync: bool,
        is_continued: bool = False,
    ) -> None:
        self.batch: i64 = batch  # batches count from 1 in each life of the process
        self.lsn: i64 = lsn  # of the frame's first byte
        self.segment: i64 = segment  # number of the segment; another one than before begins a new file
        self.base_lsn: i64 = base_lsn
        self.capacity: i64 = capacity
        self.chunks = chunks  # the payload
        self.payload_bytes: i64 = payload_bytes
        self.record_count: i64 = record_count
        self.sync: bool = sync
        self.is_continued: bool = is_continued  # the next job has more of the batch: it is not reported before that
        self.bodies: BodiesAhead | None = None  # its segment begins with the file of this plan
        self.crc: i64 = 0  # outcome: the crc field of the frame
        self.committed_lsn: i64 = 0  # outcome: all below is committed
        self.ahead_bytes: i64 = 0  # outcome: so much of the frame was on the disk already

    def written_bytes(self) -> i64:
        """Return how much of the payload this job has written."""
        return self.payload_bytes - self.ahead_bytes

    def end_lsn(self) -> i64:
        """Return the LSN up to which the log is written when it is carried out."""
        if self.record_count == 0:
            return self.lsn
        return self.lsn + FRAME_HEADER_BYTES + self.payload_bytes


class PortionJob(CommitJob):
    """Write chunks into the file of a plan (``bodies_ahead.py``) at these `positions` of its frame's payload, and sync.

    Without chunks the file is removed. It is continued by the batch of the plan, and never fails for want of space:
    then chunks are left out.
    """

    def __init__(
        self, plan: BodiesAhead, batch: i64, segment: i64, positions: list[int], chunks: list[bytes], file_bytes: i64
    ) -> None:
        payload: i64 = 0
        for chunk in chunks:
            payload += len(chunk)
        super().__init__(batch, 0, segment, 0, 0, chunks, payload, 0, False, True)
        self.bodies = plan
        self.positions = positions
        self.file_bytes: i64 = file_bytes


class Errand:
    """A job of a thread for a part of the engine, which is told when it is done.

    ``is_checked``: the thread has found all records that `damaged` looks at intact, so they need not be checked again.
    ``is_left``: it ends without its data, since nothing needs that and the disk does not give it.
    """

    is_checked: bool = False
    is_left: bool = False

    def subject(self) -> tuple[str, str]:
        """Return vhost and name of the queue for which it is done; empty without one."""
        return "", ""

    def carry_out(self, files: Files) -> None:
        """Do it. Called in a thread; it keeps its findings in itself."""
        raise AssertionError("overridden")

    def damaged(self, checksum: Callable[[bytes, int], int]) -> list[int]:
        """Return places in the log where the bytes read are damaged, as far as that can be told before they are taken.

        In the thread that has carried it out.
        """
        return []

    def finished(self) -> None:
        """Take the outcome back into the engine. Called on the loop."""
        raise AssertionError("overridden")


class ReadJob(Errand):
    """Read ranges of the log. ``data[n]`` is range n; shorter than asked, or empty, where the file ends or is gone."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.ranges = ranges  # (lsn, length)
        self.data: list[bytes] = []

    def carry_out(self, files: Files) -> None:
        self.data = files.read(self.ranges)


class WholeRecordsRead(ReadJob):
    """Read records, each a range of its own."""

    def damaged(self, checksum: Callable[[bytes, int], int]) -> list[int]:
        found: list[int] = []
        for data, (lsn, length) in zip(self.data, self.ranges, strict=True):
            if record_length(data, 0) != length or not is_intact(checksum, data, 0, length):
                found.append(lsn)
        return found


class RecordsRead(ReadJob):
    """Read ranges of records. A large record has a range of its own, which stands in `alone`.

    It comes in pieces, and is checked here: to join 128 MiB on the loop, or to look through them, would hold up
    all clients. ``large`` has the pieces for each of `alone`; none, when the record is not intact.
    """

    def __init__(self, ranges: list[tuple[int, int]], alone: list[int], checksum: Callable[[bytes, int], int]) -> None:
        super().__init__(ranges)
        self.alone = alone
        self.large: dict[int, list[bytes]] = {}
        self._checksum = checksum

    def carry_out(self, files: Files) -> None:
        if not self.alone:
            self.data = files.read(self.ranges)
            return
        self.data = []
        for place, (lsn, length) in enumerate(self.ranges):
            if place in self.alone:
                self.large[place] = self._read_large(files, lsn, length)
                self.data.append(b"")
            else:
                self.data += files.read([(lsn, length)])

    def is_damaged(self, place: int, start: int, length: int) -> bool:
        """Tell whether the record that lies at `start` of range `place` differs from the written one."""
        if place in self.large:
            return not self.large[place]
        data = self.data[place]
        return record_length(data, start) != length or not is_intact(self._checksum, data, start, length)

    def _read_large(self, files: Files, lsn: int, length: int) -> list[bytes]:
        ranges: list[tuple[int, int]] = []
        for at in range(0, length, PIECE_BYTES):
            ranges.append((lsn + at, min(PIECE_BYTES, length - at)))
        pieces = files.read(ranges)
        head = pieces[0]
        if len(head) < 8 or int.from_bytes(head[4:8], "big") != length:
            return []
        crc = self._checksum(head[4:], 0)
        size = len(head)
        for piece in pieces[1:]:
            crc = self._checksum(piece, crc)
            size += len(piece)
        return pieces if size == length and crc == int.from_bytes(head[:4], "big") else []


class SealJob(Errand):
    """Write a chunk of a stream after the others of its segment file, and sync it; `position` 0 begins the file."""

    def __init__(self, stream_id: int, segment: int, position: int, columns: Columns) -> None:
        self.stream_id = stream_id
        self.segment = segment  # its first offset
        self.position = position
        self.columns = columns
        self.is_replacement: bool = False  # it goes into a file that will replace existing ones
        self.placed_at = 0  # outcome: where the chunk begins
        self.head = b""  # outcome: its head

    def carry_out(self, files: Files) -> None:
        files.seal(self)


class SealedRead(Errand):
    """Read a chunk of a stream. ``chunk`` is None when it is damaged, or not there any longer."""

    def __init__(self, stream_id: int, segment: int, position: int, length: int) -> None:
        self.stream_id = stream_id
        self.segment = segment
        self.position = position
        self.length = length
        self.chunk: bytes | None = None  # as it lies in the file, checked
        self.wants_parts: bool = True
        self.parts: list[bytes] = []  # its columns, uncompressed

    def carry_out(self, files: Files) -> None:
        files.read_sealed(self)


class Removal(Errand):
    """A job that cannot be undone. `Removals` gives it to the reader."""

    def __init__(self) -> None:
        self.removals: Removals | None = None  # waits for its end

    def goes(self) -> bool:
        """Tell whether it must still be carried out: its cause is committed, and it is the next one."""
        return True

    def replaced(self) -> tuple[int, list[int]]:
        """Return the stream of which segments are not there afterwards, or are others, and their first offsets."""
        raise AssertionError("overridden")

    def finished(self) -> None:
        """Notify the removals, if any: the job is durable."""
        if self.removals is not None:
            self.removals.finished()


class DropJob(Removal):
    """Remove segment files of a stream: `segments` are their first offsets."""

    def __init__(self, stream_id: int, segments: list[int]) -> None:
        super().__init__()
        self.stream_id = stream_id
        self.segments = segments

    def replaced(self) -> tuple[int, list[int]]:
        return self.stream_id, self.segments

    def carry_out(self, files: Files) -> None:
        files.drop_sealed(self)


class CheckpointJob:
    """Replace the checkpoint file. Only carried out once the log is committed up to `lsn`."""

    def __init__(self, lsn: i64, content: bytes) -> None:
        self.lsn: i64 = lsn
        self.content = content  # as ``checkpoint.snapshot`` makes it
        self.last_crc: i64 = 0  # of the frame that ends at `lsn`; ``checkpoint.seal`` wants it


class UnlinkJob:
    """Remove segment files that are no longer needed."""

    def __init__(self, segments: list[int]) -> None:
        self.segments = segments
