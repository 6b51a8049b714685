"""The files of the message log: everything that the store does to the disk while the broker runs.

    checkpoint               the newest checkpoint; checkpoint.tmp while it is being written
    catching-up              of a follower: confirmed messages may be missing, see ``replication.replica_store``
    log/0000000001           segments
    streams/                 the sealed files of streams, see ``msgstore.files.sealed_files``
    log/spare  log/new       a segment in the making (``msgstore.files.new_segments``), which gets its name when its
                             header is durable
    log/ahead                one that has contents of its first batch already, see ``msgstore.files.contents_ahead``
    quarantine/              segments in which corruption was found, see ``msgstore.files.quarantine``
    pins/                    hard links to some of these, to copy from, see ``msgstore.files.pins``

1. The name of a segment means that its header is on the disk: the header is synced before the file is renamed into
   place, and the directory is synced before the first frame is written. A segment without a readable header is corrupt.
2. A new segment is begun when the previous one is sealed: cut after its last frame and synced. It is preallocated, and
   grows with its frames if the disk did not have the space for that, or a checkpoint needed some of it: nothing else
   makes room once everything is acknowledged.
3. `commit` can be repeated with the same job after StoreFullError, whatever step raised it. It resumes at the step that
   failed; bytes written twice are the same bytes at the same place.
4. After StoreFailedError nothing is tried again. A sync that failed is not repeated: the kernel has dropped the pages
   that it could not write, and the next sync would succeed without them.
5. Bytes that the disk does not give now are StoreUnreadableError (``msgstore.files.segment_reads``). Before bytes are
   taken for damaged they are read twice, the second time past the cache (`forget_cached`).
6. Only useless bytes are deleted or overwritten: segments that the log no longer needs, and files that an earlier
   process left half-made. A half-made frame goes only when the disk has no space.
7. *Committed* bytes are synced wherever that is required. By default that is here, and `commit` ends with it. A caller
   that requires more sets `commits_alone` to False before the first commit, and reports what is committed
   (`commit_reached`). Every frame says up to where the log was committed when it was made: for the next start,
   something missing below that is corruption, so no frame may claim too much. Actions that cannot be taken back (a
   checkpoint, the removal of a file, and what SQL is told) wait until their cause is committed; the message log does
   that.
8. `changes`, if it is set, is told of a segment, a frame or a chunk before it is written, and of a sync before it
   begins, so that others can do the same meanwhile. A frame is told once, the others with each try.
9. The directory of a follower that was catching up with its leader is not opened: only ``replication`` can make it the
   directory of a single broker again.

No threads here. `commit` and `close` belong to the committer; `read`, `read_sealed`, `drop_sealed` and `release` to the
reader; `unlink`, `write_checkpoint`, `prepare_spare`, `quarantine`, `seal`, `pin` and `unpin` to the housekeeper; the
rest to recovery, which runs before all of them. The locks guard what they share.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from time import time_ns
from typing import Final, Protocol

from warren.msgstore.files.contents_ahead import AHEAD, ContentsAhead
from warren.msgstore.files.fail_stop import (
    NO_SPACE,
    OUT_OF_DESCRIPTORS,
    SHORTAGES,
    FailStop,
    give_back_space,
    reason,
)
from warren.msgstore.files.file_system import (
    FileSystem,
    read_exactly,
    read_file,
    replace_file,
    unlink_if_there,
    write_all,
)
from warren.msgstore.files.new_segments import NEW, SPARE, NewSegments
from warren.msgstore.files.pins import PinnedFile, Pins
from warren.msgstore.files.quarantine import QUARANTINE, QUARANTINE_TMP, Quarantine
from warren.msgstore.files.sealed_files import STREAMS, Scan, SealedFiles, UnreadableFileError, sealed_path
from warren.msgstore.files.segment_header import SegmentHeader, mended_segments, read_headers
from warren.msgstore.files.segment_names import CHECKPOINT, LOG, maybe_segment_number, segment_path
from warren.msgstore.files.segment_reads import ReadProblem, SegmentReads, unreadable
from warren.msgstore.files.store_errors import StoreError, StoreFullError, StoreUnreadableError
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.columns import Piece
from warren.msgstore.log.jobs import CommitJob, DropJob, PortionJob, SealedRead, SealJob
from warren.msgstore.log.log_position import LogPosition
from warren.msgstore.log.records import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    STORE_TAG_BYTES,
    frame_header,
    segment_header,
)

CHECKPOINT_TMP: Final = "checkpoint.tmp"
CATCHING_UP: Final = "catching-up"
CATCHING_UP_TMP: Final = "catching-up.tmp"

READ_HANDLES_MAX: Final = 64
# The space that a file system may need besides the bytes of a new file.
_RESERVE_BYTES: Final = 1 << 16


def wall_time_ms() -> int:
    """Return the time in milliseconds since the Unix epoch."""
    return time_ns() // 1_000_000


class Changes(Protocol):
    """Is told of each change to the store's files in advance, by the committer; of chunks by the housekeeper."""

    def segment(self, header: bytes) -> None:
        """Note that a segment with this header is begun."""

    def frame(self, head: bytes, payload: list[bytes], *, sync: bool) -> None:
        """Note that a frame is written after the previous one, and synced with all before it when `sync`."""

    def sync(self, lsn: int) -> None:
        """Note that all frames before `lsn` are synced."""

    def chunk(self, stream_id: int, segment: int, position: int, pieces: list[Piece], *, is_replacement: bool) -> None:
        """Note a chunk, written at `position` of a stream's file and synced; `SEGMENT_HEADER_BYTES` begins the file."""


class Store(FailStop):
    """The store in the root directory of `fs`. `handles_max`: the number of files each of its caches keeps open.

    `free_min_bytes`: the space that copies of damaged segments leave.
    """

    def __init__(
        self,
        fs: FileSystem,
        clock_ms: Callable[[], int] = wall_time_ms,
        handles_max: int = READ_HANDLES_MAX,
        *,
        free_min_bytes: int = 0,
    ) -> None:
        super().__init__(fs)
        self.highest_number = 0  # of all files that look like segments, readable or not
        self.commits_alone = True  # bytes synced here are committed
        self.committed_lsn = 0  # all below is; any thread may read it
        self._changes: Changes | None = None

        # The same in all files that this process makes.
        self._algorithm = default_algorithm()
        self._store_id = bytes(16)
        self._epoch = 0

        # The committer's: the segment that is being written, and the chain of frames.
        self._handle = -1
        self._number = 0
        self._base_lsn = 0
        self._end_lsn = 0
        self._previous_crc = 0
        self._is_named = True  # durably: the directory was synced after the rename
        self._frame_job: CommitJob | None = None  # whose header is made already
        self._frame_head = b""

        self._ahead = ContentsAhead(fs, self._sync, self._raise)
        self._new_segments = NewSegments(fs, self._ahead)
        self._reads = SegmentReads(fs, handles_max)
        self._quarantine = Quarantine(
            fs,
            clock_ms,
            self._reads.note,
            free_min_bytes,
            sync=self._sync,
            sync_directory=self._sync_directory,
            fail=self._raise,
        )
        self._sealed = SealedFiles(fs, self._sync, self._sync_directory, handles_max)
        self._pins = Pins(fs)

        # Theirs together.
        self._end_lock = Lock()  # while the end of the log changes
        self._sealed_lock = Lock()  # while the names of sealed files change
        self._lock = self._new_segments.lock  # while a file becomes a segment, and segments go

    # --- before the threads: open and recover -----------------------------------------------------------------------

    def open(self, *, as_follower: bool = False) -> None:
        """Make the directories if they are missing, and remove files that an earlier process left half-made.

        Raises:
            StoreFailedError: the disk does not allow it.
            StoreFullError: there is no space for a directory.
            StoreError: it is a follower's, and was catching up, unless it is opened `as_follower`.
        """
        try:
            present = self._fs.names(".")
            if CATCHING_UP in present and not as_follower:
                raise StoreError(
                    "the message store is of a follower that was catching up with its leader: confirmed messages may "
                    "be missing. Start it with --follow, and promote it when it is in sync"
                )
            for name in (LOG, QUARANTINE, STREAMS):
                if name not in present:
                    self._fs.mkdir(name)
            for path in (CHECKPOINT_TMP, CATCHING_UP_TMP, SPARE, NEW, AHEAD, QUARANTINE_TMP):
                unlink_if_there(self._fs, path)
            self._pins.clear()
        except OSError as error:
            self._raise("open", error)
        self._sync_directory(".")

    def open_segments(self) -> tuple[list[SegmentHeader], list[str]]:
        """Return the segments by number, and the problems of files that are named like a segment but are not usable.

        A damaged header is made again of the frames, in memory.

        Raises:
            StoreUnreadableError: the disk does not give one of them, or the directory, now.
            StoreError: a later version of Warren has written one of them.
        """
        try:
            numbers = [number for name in self._fs.names(LOG) if (number := maybe_segment_number(name)) is not None]
        except OSError as error:
            raise unreadable(LOG, error) from None
        self.highest_number = max([self.highest_number, *numbers])
        headers, problems = read_headers(self._fs, numbers, self.read_range, self.read_checkpoint, {})
        self._reads.segments = sorted((header.base_lsn, header.number, header.capacity) for header in headers)
        return headers, problems

    def read_segment(self, number: int) -> bytes:
        """Return a whole segment file.

        Raises:
            StoreFullError: too many files are open.
            StoreUnreadableError: the disk does not give all of it now.
        """
        path = segment_path(number)
        try:
            return read_file(self._fs, path)
        except OSError as error:
            if error.errno in SHORTAGES:
                self._raise(f"open {path}", error)
            raise unreadable(path, error, number) from None

    def read_range(self, number: int, offset: int, length: int) -> bytes:
        """Return bytes of a segment file, fewer where it ends.

        Raises:
            StoreFullError: too many files are open.
            StoreUnreadableError: the disk does not give all of it now.
        """
        path = segment_path(number)
        try:
            return read_exactly(self._fs, self._reads.handle(number), length, offset)
        except OSError as error:
            if error.errno in SHORTAGES:
                self._raise(f"open {path}", error)
            raise unreadable(path, error, number) from None

    def sync_segments(self, numbers: list[int]) -> None:
        """Make the bytes that recovery has read from these segments durable: after kill -9 they may not be on the disk.

        Raises:
            StoreFailedError: a sync has failed.
        """
        self._check()
        for number in numbers:
            try:
                handle = self._fs.open(segment_path(number), writable=True)
            except OSError as error:
                self._raise(f"open {segment_path(number)}", error)
            try:
                self._sync(handle, segment_path(number))
            finally:
                self._fs.close(handle)
        self._sync_directory(LOG)
        self._sync_directory(".")

    def recovered(self, number: int, length: int) -> None:
        """Ignore everything after `length` bytes of this segment, the last one. It is cut there when space is short."""
        self._new_segments.recovered_end = number, length

    def scan_sealed(self, store_id: bytes, log_has: Callable[[int, int], bool], *, tolerates: bool = True) -> Scan:
        """Return the sealed files of streams. `log_has`: whether the log continues at an offset of a stream.

        `tolerates`: skip files that the disk cannot read now; they stay as they are.

        Raises:
            StoreUnreadableError: the disk does not give some of it now.
            StoreError: a later version of Warren has written it, or the disk does not allow it.
        """
        self._check()
        self._sealed.store_id = store_id
        try:
            found = self._sealed.scan(log_has, tolerates=tolerates)
        except UnreadableFileError as error:
            raise unreadable(error.path, error.error) from None
        except OSError as error:
            self._raise("look through the sealed streams", error)
        self._sync_directory(STREAMS)
        return found

    def set_aside(self, number: int) -> None:
        """Move a segment to the quarantine; one that cannot be read as a whole stays where it is.

        It takes no space: a node whose disk is full must start, too. Without hard links it is copied.

        Raises:
            StoreFullError: there is no space for a copy; it is where it was.
            StoreFailedError: the disk does not allow it.
        """
        self._check()
        quarantine = self._quarantine
        if not quarantine.is_linked(number):
            with suppress(StoreUnreadableError):
                quarantine.write(number, self.read_segment(number))
            if not quarantine.has_copy(number):
                return
        self.release([number])
        self.unlink([number])

    def resume(self, last_crc: int, end_lsn: int, epoch: int, store_id: bytes, algorithm: int) -> None:
        """Take up the chain of frames where recovery found its end. The first commit begins a new segment.

        Everything before `end_lsn` is committed, if this store commits alone; else the owner knows up to where.
        """
        assert len(store_id) == 16
        self._previous_crc = last_crc
        self._end_lsn = end_lsn
        self._synced()
        self._epoch = epoch
        self._store_id = store_id
        self._sealed.store_id = store_id
        self._algorithm = algorithm

    def tell(self, changes: Changes) -> None:
        """Notify `changes` of everything from now on, see (8). Before the first commit."""
        self._changes = changes
        self._sealed.on_chunk = changes.chunk

    # --- the committer's --------------------------------------------------------------------------------------------

    def commit(self, job: CommitJob, time_ms: int) -> None:
        """Write the frame of `job` at its place, `time_ms` being the time now; sync when the job says so.

        If the frame does not fit, the store frees the spare, or the unused part of the segment that recovery ended in.

        Sets ``job.crc`` and ``job.committed_lsn``: after the frame for a job that syncs, if this store commits alone;
        else the code that waits for the others sets it before the job is reported.

        Raises:
            StoreFullError: it did not fit; call again with the same job.
            StoreFailedError: the content of the disk is unknown; stop.
        """
        self._check()
        if isinstance(job, PortionJob):
            self._ahead.write(job)
            return
        try:
            if job.record_count:
                with self._end_lock:
                    try:
                        self._write(job, time_ms)
                    except OSError as error:
                        if not (self._new_segments.makes_room(error) or self._ahead.gives_up(job, error)):
                            raise
                        self._write(job, time_ms)
        except OSError as error:
            self._raise(f"write {segment_path(int(job.segment))}", error)
        if job.sync and self._handle >= 0:
            if self._changes is not None and not job.record_count:
                self._changes.sync(self._end_lsn)
            self._sync(self._handle, segment_path(self._number))
            self._synced()
        job.committed_lsn = self.committed_lsn

    def _write(self, job: CommitJob, time_ms: int) -> None:
        if job.segment != self._number:
            self._begin_segment(job)
        if not self._is_named:
            self._sync_directory(LOG)
            self._is_named = True
        self._write_frame(job, time_ms)

    def _synced(self) -> None:
        """Note that all of the log is synced here."""
        if self.commits_alone:
            self.committed_lsn = self._end_lsn

    def commit_reached(self, lsn: int) -> None:
        """Advance `committed_lsn`; the next frame has it. From any thread, for callers with `commits_alone=False`."""
        assert not self.commits_alone and lsn <= self._end_lsn, "more is committed than there is"
        if lsn > self.committed_lsn:
            self.committed_lsn = lsn

    def _begin_segment(self, job: CommitJob) -> None:
        number = int(job.segment)
        assert number > self.highest_number, "a segment's number is used again"
        assert job.base_lsn >= self._end_lsn, "segments overlap"
        self._seal()
        head = segment_header(
            checksum_function(self._algorithm),
            self._algorithm,
            self._store_id,
            number,
            int(job.base_lsn),
            int(job.capacity),
            self._epoch,
        )
        if self._changes is not None:
            self._changes.segment(head)
        with self._lock:
            # The reader must not give the spare up meanwhile.
            file = self._new_segments.file_for(job)
            if file.size > job.capacity:
                # Of contents ahead: the plan had room for what could be in front of each.
                self._fs.truncate(file.handle, int(job.capacity))
            write_all(self._fs, file.handle, [head], 0)
            self._sync(file.handle, file.path)
            self._fs.rename(file.path, segment_path(number))
            self._new_segments.taken(file)
            self._reads.segments = sorted([*self._reads.segments, (int(job.base_lsn), number, int(job.capacity))])
        self.highest_number = number
        self._handle = file.handle
        self._number = number
        self._base_lsn = int(job.base_lsn)
        self._end_lsn = self._base_lsn + SEGMENT_HEADER_BYTES
        self._is_named = False

    def _seal(self) -> None:
        """End the segment that is being written, if there is one."""
        handle = self._handle
        if handle < 0:
            return
        self._fs.truncate(handle, self._end_lsn - self._base_lsn)
        self._sync(handle, segment_path(self._number))
        self._synced()
        self._handle = -1
        self._fs.close(handle)

    def _write_frame(self, job: CommitJob, time_ms: int) -> None:
        assert job.lsn == self._end_lsn, "a frame is not at the end of the log"
        assert job.lsn - job.base_lsn + FRAME_HEADER_BYTES + job.payload_bytes <= job.capacity
        if self._frame_job is not job:
            self._frame_head = frame_header(
                checksum_function(self._algorithm),
                job.chunks,
                int(job.payload_bytes),
                int(job.lsn),
                self.committed_lsn,
                time_ms,
                self._epoch,
                self._previous_crc,
                int(job.record_count),
                self._store_id[:STORE_TAG_BYTES],
                job.is_continued,
            )
            self._frame_job = job
            if self._changes is not None:
                self._changes.frame(self._frame_head, job.chunks, sync=job.sync)
        head = self._frame_head
        for offset, chunks in self._ahead.unwritten([head, *job.chunks], job):
            write_all(self._fs, self._handle, chunks, offset)
        if not job.is_continued:
            self._ahead.ended()
        self._frame_job = None
        self._end_lsn += FRAME_HEADER_BYTES + int(job.payload_bytes)
        self._previous_crc = int.from_bytes(head[-4:], "big")
        job.crc = self._previous_crc

    def close(self) -> None:
        """Seal the segment that is being written and give all files back. Call when both threads are idle or over.

        Raises:
            StoreError: the last segment may be left longer than its frames.
        """
        try:
            if not self._failure:
                self._seal()
        except OSError as error:
            self._raise(f"seal {segment_path(self._number)}", error)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        handles = [*self._reads.take_handles(), *self._sealed.take_handles(), self._handle]
        self._handle = -1
        for file in self._new_segments.take_files():
            handles.append(file.handle)
            with suppress(OSError):
                self._fs.unlink(file.path)
        for handle in handles:
            if handle >= 0:
                with suppress(OSError):
                    self._fs.close(handle)

    # --- the reader's and the housekeeper's -------------------------------------------------------------------------

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (LSN, length): fewer, or none, where the file ends or is gone.

        Raises:
            StoreUnreadableError: the disk does not give one of them now; call again later.
            StoreFullError: too many files are open; call again.
            StoreFailedError: the store has failed before.
        """
        self._check()
        return self._reads.read(ranges)

    def forget_cached(self, ranges: list[tuple[int, int]]) -> None:
        """Drop these ranges from the cache: the next read comes from the disk, as the cached copy may be damaged.

        A segment that could not be used at the start is read, too, if it has been mended since.
        """
        self._reads.forget_cached(ranges)
        if not self._reads.has_all(ranges):
            with self._lock:
                known = self._reads.segments
                self._reads.segments = sorted([*known, *mended_segments(self._fs, known, self._store_id)])

    def take_read_problems(self) -> list[ReadProblem]:
        """Return the places that could not be read since the last call, at most a hundred."""
        return self._reads.take_problems()

    def read_checkpoint(self) -> bytes | None:
        """Return the checkpoint file, None without one.

        Raises:
            StoreUnreadableError: it is there, and the disk does not give it now.
        """
        try:
            return read_file(self._fs, CHECKPOINT)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(CHECKPOINT, error) from None

    def write_checkpoint(self, content: bytes) -> None:
        """Replace the checkpoint file, durably and in one step.

        If both do not fit, the store frees the spare, or the unused part of the segment that recovery ended in;
        at last, preallocated and unused space of the segment that is being written.

        Raises:
            StoreFullError: the old one is in place; call again later.
            StoreFailedError: either the old or the new file is in place; stop.
        """
        self._check()
        try:
            try:
                replace_file(self._fs, CHECKPOINT_TMP, CHECKPOINT, content, self._sync)
            except OSError as error:
                is_freed = self._new_segments.makes_room(error)
                if not is_freed and not (error.errno in NO_SPACE and self._give_up_unused(len(content))):
                    raise
                replace_file(self._fs, CHECKPOINT_TMP, CHECKPOINT, content, self._sync)
        except OSError as error:
            give_back_space(self._fs, CHECKPOINT_TMP, error)
            self._raise(f"write {CHECKPOINT}", error)
        self._sync_directory(".")

    def release(self, numbers: list[int]) -> None:
        """Read these segments no more: they are about to be removed.

        Raises:
            StoreFailedError: the disk does not allow it.
        """
        self._check()
        gone = set(numbers)
        with self._lock:
            self._reads.segments = [segment for segment in self._reads.segments if segment[1] not in gone]
        for number in numbers:
            try:
                self._reads.release(number)
            except OSError as error:
                self._raise(f"close {segment_path(number)}", error)

    def unlink(self, numbers: list[int]) -> None:
        """Remove released segments, durably. Missing segments are ignored.

        Raises:
            StoreFullError: out of descriptors; call again.
            StoreFailedError: the disk does not allow it.
        """
        self._check()
        for number in numbers:
            assert number != self._number or self._handle < 0, "the segment is being written"
            try:
                unlink_if_there(self._fs, segment_path(number))
            except OSError as error:
                self._raise(f"remove {segment_path(number)}", error)
        self._sync_directory(LOG)

    def prepare_spare(self, size: int) -> None:
        """Preallocate the next segment, unless that is done already.

        Raises:
            StoreFullError: the disk has no space for it; everything else continues.
            StoreFailedError: the disk does not allow it.
        """
        self._check()
        try:
            self._new_segments.prepare_spare(size)
        except OSError as error:
            self._raise(f"make {SPARE}", error)

    def _give_up_unused(self, length: int) -> bool:
        """Cut so many bytes, and a little more, off the unused end of the segment that is being written.

        The rest stays for acks, which can free segments. Frames that reach beyond it make the file grow again.
        """
        with self._end_lock:
            if self._handle < 0:
                return False
            size = self._fs.size(self._handle)
            kept = max(self._end_lsn - self._base_lsn, size - length - _RESERVE_BYTES)
            if kept >= size:
                return False
            self._ahead.cut(kept)
            self._fs.truncate(self._handle, kept)
        return True

    def quarantine(self, number: int, *, is_cut: bool = False) -> None:
        """Keep a segment as it is now in the quarantine, for later analysis; by a copy if it `is_cut` next.

        Otherwise a segment is kept once, however much corruption is found. Unreadable bytes are zeros in a copy.

        Raises:
            StoreFullError: the disk has too little space for a copy; nothing was copied.
            StoreFailedError: the disk does not allow it.
        """
        self._check()
        if is_cut:
            self._quarantine.copy(number)
        else:
            self._quarantine.keep(number)

    # --- streams ----------------------------------------------------------------------------------------------------

    def seal(self, job: SealJob) -> None:
        """Write a chunk of a stream, and sync it.

        Raises:
            StoreFullError: it did not fit; call again with the same job.
            StoreFailedError: the content of the disk is unknown; stop.
        """
        self._check()
        try:
            self._sealed.seal(job)
        except OSError as error:
            self._raise("seal a stream", error)

    def write_chunk(
        self, stream_id: int, segment: int, position: int, pieces: list[Piece], *, is_replacement: bool, has_more: bool
    ) -> None:
        """Write bytes of a chunk that another store has sealed, and sync it unless it `has_more`.

        Raises:
            StoreFullError: it did not fit; call again.
            StoreFailedError: the content of the disk is unknown; stop.
        """
        self._check()
        try:
            self._sealed.write(stream_id, segment, position, pieces, is_replacement=is_replacement, has_more=has_more)
        except OSError as error:
            self._raise("seal a stream", error)

    def read_sealed(self, job: SealedRead) -> None:
        """Read a chunk of a stream.

        Raises:
            StoreUnreadableError: the disk does not give it now; call again later.
            StoreFullError: too many files are open; call again.
        """
        try:
            self._sealed.read(job)
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise StoreFullError(f"open a segment of a stream: {reason(error)}") from None
            raise unreadable(sealed_path(job.stream_id, job.segment), error) from None

    def drop_sealed(self, job: DropJob) -> None:
        """Remove segments of a stream.

        Raises:
            StoreError: the disk does not allow it.
        """
        self._change_sealed(lambda: self._sealed.drop(job))

    def swap_sealed(self, stream_id: int, segments: list[int]) -> None:
        """Put the replacement of the first of these segments in the place of all of them.

        Raises:
            StoreError: the disk does not allow it.
        """
        self._change_sealed(lambda: self._sealed.swap(stream_id, segments))

    def unmake_sealed(self, stream_id: int, segment: int) -> None:
        """Remove a replacement that is not needed.

        Raises:
            StoreError: the disk does not allow it.
        """
        self._change_sealed(lambda: self._sealed.unmake(stream_id, segment))

    def _change_sealed(self, change: Callable[[], None]) -> None:
        self._check()
        try:
            with self._sealed_lock:
                change()
        except OSError as error:
            self._raise("change the segments of a stream", error)

    # --- pins -------------------------------------------------------------------------------------------------------

    def pin(self, holder: str, position: LogPosition) -> list[PinnedFile]:
        """Hold the files of a log that ends at `position`, until `unpin`.

        Requires that `position` was reported earlier, and that no stream was trimmed since.

        Raises:
            PinError: that is not possible; nothing is held.
        """
        self._check()
        with self._sealed_lock:
            return self._pins.take(holder, position)

    def unpin(self, holder: str) -> None:
        """Release the files that are held for `holder`, if any."""
        self._pins.release(holder)

    def free_bytes(self) -> int:
        """Return the space that is left on the disk. Any thread. Raises OSError."""
        return self._fs.free_bytes()
