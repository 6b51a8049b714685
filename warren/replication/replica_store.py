"""The directory of a follower: carries out the entries that its leader ships, one by one, without an engine.

    entry        the steps, each after the previous one
    SEGMENT      the segment before is cut after its last frame and synced; the new one is made as ``Store`` makes it
    FRAME        checked; written after the previous one
    SYNC         one sync of the segment
    CHECKPOINT   written beside the old one, checked, synced; put in its place once the log is synced up to its LSN
    UNLINK       checked against the checkpoint on disk; removed
    CHUNK        written and synced
    DROP, SWAP, UNMAKE    done once the log is synced up to `after_lsn`
    IMAGE        a log and its checkpoint are written beside those that are here, and replace them when complete
                 (``incoming_image``)
    CATALOGUE    given to `on_catalogue` once the log is synced up to `after_lsn`; CATALOGUE_COPY at once

1. At any moment a power cut of the leader could have left the directory as it is: `recover` finds a state in it that
   the leader was in. Everything acknowledged as synced (`synced_lsn`, `done`) is on the disk.
2. A frame is checked before it is written: its crc, that it continues the chain at the end of the log, that it is of
   the segment's epoch and this store. A frame that does not fit is refused and changes nothing: the link must end, and
   the next one begins with `position`.
3. Entries count only from the leader that is followed (`follow`), and only if its epoch is not behind the log's.
4. Between `follow` and CAUGHT_UP a file says so, durably: ``catching-up``, with an LSN. Frames above it may say that
   others before them are committed which never were synced here: there the first torn frame is the end of the log, and
   not corruption. Below it, and without the file, a missing frame that is said to be committed is corruption. A
   follower that counts as in sync does not have this file. It leaves only by the end of its link, since frames that are
   made afterwards count without it.
5. A segment goes only when the checkpoint on disk does not need it. With CAUGHT_UP all of those go: the leader may have
   removed them while this follower was away.
6. TRUNCATE and IMAGE never remove committed frames. The checkpoint on disk is committed, and each frame says how far
   its leader's log was, in this life or an earlier one. A leader that asks for more lost them (`HistoryLostError`).
   The exception is a leader whose epoch is at least `EPOCH_STRIDE` beyond the log here: a person has made its log the
   truth. Frames that are cut off are copied to the quarantine, for good if they were committed (``cut_copies.py`` if
   not). The file is cut and synced, and the later segments are gone, before the next entry.
7. After a failure of the disk nothing is tried again, as in ``Store``; after a shortage the same entry may be.
8. An image is checked before it replaces the log here: it must be readable from its checkpoint to its end. Damaged data
   never replaces intact data. Frames that are damaged in the image are taken from the log here, and chunks that are
   damaged in the new file of a stream from the old one. A segment that the checkpoint needs and the leader cannot use
   stays. If it is not here either, it is `missing`, as one that was lost here: this node is in sync with its leader,
   which lacks the segment too, and tells of it.

The marker, the checkpoint and the files of streams have modules of their own (``catching_up_marker.py``,
``replica_checkpoint.py``, ``sealed_inventory.py``). One thread. It keeps a `Store` for everything but the log: that one
writes no frames.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final, assert_never

from warren.cluster.events import Position as LogPosition
from warren.msgstore.files.fail_stop import FailStop
from warren.msgstore.files.file_system import FileSystem, unlink_if_there, write_all
from warren.msgstore.files.new_segments import NEW
from warren.msgstore.files.recovery import ADVICE
from warren.msgstore.files.segment_header import SegmentHeader, parsed_header
from warren.msgstore.files.segment_names import CHECKPOINT, LOG, segment_path
from warren.msgstore.files.store import CATCHING_UP, Store, wall_time_ms
from warren.msgstore.files.store_errors import StoreError, StoreFailedError
from warren.msgstore.log.jobs import DropJob
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES, STORE_TAG_BYTES
from warren.msgstore.log.replay import FrameHead
from warren.replication.catching_up_marker import CatchingUpMarker
from warren.replication.cut_copies import CutCopies
from warren.replication.entries import (
    Ack,
    Beacon,
    BeginImage,
    BeginSegment,
    Catalogue,
    CatalogueCopy,
    CaughtUp,
    CheckpointPiece,
    ChunkPiece,
    Committed,
    Drop,
    Frame,
    FromLeader,
    ImagePiece,
    Position,
    SealedFile,
    Stop,
    Swap,
    Sync,
    Truncate,
    Unlink,
    Unmake,
    checksum_of,
)
from warren.replication.incoming_image import COMPLETE, IncomingImage, finish
from warren.replication.intact_data import IntactData
from warren.replication.mending import put_in_place
from warren.replication.missing_segments import MissingSegments
from warren.replication.replica_checkpoint import IncomingCheckpoint, KeptCheckpoint, NeededSegment, checked
from warren.replication.sealed_inventory import SealedInventory
from warren.replication.segment_frames import SegmentFrames
from warren.server.logs import get_logger

NO_STORE: Final = bytes(16)
# An epoch that a person begins is so far beyond the one before, or further: a leader that starts again takes the next.
EPOCH_STRIDE: Final = 1000

log = get_logger("replication")


class EntryRefusedError(StoreError):
    """An entry does not fit the directory: nothing was done, and the directory is as it was. The link must end."""


class HistoryLostError(EntryRefusedError):
    """The leader does not have frames known as committed here, up to `lsn`, of `epoch`. Nothing was cut off."""

    def __init__(self, wanted: str, epoch: int, lsn: int) -> None:
        super().__init__(
            f"the leader lacks what was confirmed: {wanted}, and this node has all up to LSN {lsn} of epoch {epoch} as "
            "committed. Nothing was cut off here"
        )
        self.epoch = epoch
        self.lsn = lsn


class ReplicaStore(FailStop):
    """The follower's store in the root directory of `fs`. `on_catalogue` applies changes of the metadata, durably."""

    def __init__(
        self,
        fs: FileSystem,
        clock_ms: Callable[[], int] = wall_time_ms,
        on_catalogue: Callable[[Catalogue | CatalogueCopy], None] | None = None,
    ) -> None:
        super().__init__(fs)
        self.store_id = NO_STORE  # of a directory with nothing in it
        self.received_lsn = 0  # up to here the log is written
        self.synced_lsn = 0
        self.committed_lsn = 0  # of the log here, according to its frames
        self.done = 0  # entries of this link that are carried out
        self.epoch = 0  # of the last segment
        self.generation = 0  # another one since files may have become others than they were
        self._changing = Lock()  # while an entry is carried out, or a file is mended
        self._clock_ms = clock_ms
        self._store = Store(fs, clock_ms)
        self._on_catalogue = on_catalogue
        self._leader_epoch = 0
        self._may_lose = False  # a person has declared the leader's log to be the truth
        self._crc = 0  # of the frame that ends at `received_lsn`
        self._segments: dict[int, SegmentHeader] = {}
        self._current: SegmentHeader | None = None
        self._handle = -1  # of the current segment
        self._is_named = True  # durably
        self._checkpoint = KeptCheckpoint(None)
        self._incoming = IncomingCheckpoint(fs, self._sync, self._sync_directory)
        self._sealed = SealedInventory(fs)
        self._marker = CatchingUpMarker(fs, self._sync, self._sync_directory)
        self._image: IncomingImage | None = None  # that is coming in
        self._missing = MissingSegments()
        self._intact = IntactData(fs, clock_ms)

    @property
    def file_system(self) -> FileSystem:
        """Where the directory is."""
        return self._fs

    # --- before a link ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the state of the directory, and cut torn ends of a crash. To be called before each link.

        Raises:
            StoreUnreadableError: the disk does not give some of it now.
            StoreError: it cannot be used, the text says why: it is corrupt, or a newer Warren has written it.
        """
        self._check()
        with self._changing:
            self.generation += 1
        self.close()
        try:
            finish(self._fs, self._sync_directory)
        except OSError as error:
            self._raise("take over the log that the leader has sent", error)
        self._store = Store(self._fs, self._clock_ms)
        self._store.open(as_follower=True)
        self._read_log()

    def position(self) -> Position:
        """Return where the log continues."""
        number = 0 if self._current is None else self._current.number
        return Position(self.store_id, number, self.received_lsn, self._checkpoint.lsn, self._crc, self._epochs())

    def sealed_files(self) -> list[SealedFile]:
        """Return the files of streams at the time when `follow` was called, or the log was cut last."""
        return self._sealed.files

    @property
    def is_catching_up(self) -> bool:
        """Whether confirmed messages may be missing here, see (4)."""
        return self._marker.lsn is not None

    def follow(self, epoch: int, store_id: bytes) -> None:
        """Begin a link with the leader of `epoch`, after `open`; its entries have to be caught up with, see (4).

        Then the leader needs `position` and `sealed_files`.

        Raises:
            EntryRefusedError: the leader is one of the past, or has another store.
            StoreUnreadableError: the disk does not give some of it now.
            StoreError: the disk does not allow it.
        """
        self._check()
        if epoch < max(self.epoch, self._leader_epoch):
            raise EntryRefusedError(
                f"the leader is in epoch {epoch}, and this follower has followed one of "
                f"{max(self.epoch, self._leader_epoch)}: it was deposed"
            )
        if self.store_id not in (NO_STORE, store_id):
            raise EntryRefusedError(
                f"the leader has store {store_id.hex()}, and this directory is of {self.store_id.hex()}: begin with an "
                "empty one"
            )
        self.store_id = store_id
        self._leader_epoch = epoch
        self._may_lose = epoch - self.epoch >= EPOCH_STRIDE
        self.done = 0
        self._sealed.read(self._store, self.store_id)
        try:
            self._marker.put(self.received_lsn)
        except OSError as error:
            self._raise(f"write {CATCHING_UP}", error)

    def promote(self, *, force: bool = False) -> None:
        """End following: the directory is one that a broker can be started with, in a larger epoch than any before.

        `force`: the caller knows that nothing confirmed is missing, since it is in the recorded set of those in sync;
        or accepts the loss.

        Raises:
            StoreError: it was catching up, so confirmed messages may be missing; or the disk does not allow it.
        """
        self._check()
        if self.is_catching_up and not force:
            raise StoreError("this follower is not in sync with its leader: confirmed messages may be missing")
        self._leader_epoch += 1  # nothing that is still under way counts
        try:
            self._sync_log(self.received_lsn)
            self._close_current()
            self._give_up_image()
            if finish(self._fs, self._sync_directory):
                self._read_log()
            self._marker.remove()
        except OSError as error:
            self._raise(f"remove {CATCHING_UP}", error)

    def close(self) -> None:
        """Give all files back. Makes nothing durable."""
        self._incoming.give_up()
        self._give_up_image()
        self._close_current()
        self._store.close()

    def missing(self) -> dict[int, NeededSegment]:
        """Return the segments that the checkpoint needs, and that are not here or too short, by number. Any thread."""
        return self._missing.of(self._checkpoint.segments, self._segments)

    def end_lsn(self, number: int) -> int:
        """Return up to where the checkpoint has frames in a segment; 0: unknown. Any thread."""
        needed = self._checkpoint.segments.get(number)
        return 0 if needed is None else needed.end_lsn

    def add_missing(self, generation: int, number: int, data: bytes) -> bool:
        """Put a segment in its place, durably, if it is missing still; tell whether it is there. `generation`: `mend`.

        It is all of a segment of this store, and intact.
        """
        with self._changing:
            if generation != self.generation or number not in self.missing():
                return False
            header = parsed_header(data[:SEGMENT_HEADER_BYTES], len(data), segment_path(number))
            try:
                handle = self._created(0)
                try:
                    write_all(self._fs, handle, [data], 0)
                    self._fs.sync(handle)
                finally:
                    self._fs.close(handle)
                self._fs.rename(NEW, segment_path(number))
                self._fs.sync_directory(LOG)
            except OSError:
                return False
            assert isinstance(header, SegmentHeader)
            self._segments = dict(sorted({**self._segments, number: header}.items()))
            self._missing.came(number)
            return True

    def mend(self, generation: int, path: str, position: int, data: bytes) -> bool:
        """Put bytes into a file, if it is surely the one that it was in `generation`; tell whether they are there."""
        with self._changing:
            return generation == self.generation and put_in_place(self._fs, path, position, data)

    # --- entries ----------------------------------------------------------------------------------------------------

    def ack(self, beacon: int = 0) -> Ack:
        """Return how far this follower is. `beacon`: the number of the last one that has come."""
        return Ack(self.received_lsn, self.synced_lsn, self.done, beacon, self._leader_epoch)

    def apply(self, entry: FromLeader, epoch: int) -> None:
        """Carry out an entry of the link with the leader of `epoch`.

        Raises:
            EntryRefusedError: it does not fit; end the link.
            StoreFullError: the disk is full; call again with the same entry.
            StoreFailedError: the content of the disk is unknown; stop.
        """
        self._check()
        if epoch != self._leader_epoch:
            raise EntryRefusedError(f"an entry of the leader of epoch {epoch}, which is no longer followed")
        try:
            with self._changing:
                self._carry_out(entry)
        except OSError as error:
            self._raise(f"carry out {type(entry).__name__}", error)
        except StoreFailedError as error:
            self._failure = str(error)
            raise
        # The count begins after the position that was said last.
        self.done = 0 if isinstance(entry, Truncate) else self.done + 1

    def _carry_out(self, entry: FromLeader) -> None:
        match entry:
            case Frame():
                self._write_frame(entry)
            case Sync():
                self._sync_up_to(entry.lsn)
            case BeginSegment():
                self._begin_segment(entry.header)
            case CheckpointPiece():
                self._take_checkpoint(entry)
            case Unlink():
                self._sync_up_to(entry.after_lsn)
                self._unlink(entry.numbers)
            case ChunkPiece():
                self._store.write_chunk(
                    entry.stream_id,
                    entry.segment,
                    entry.position,
                    [entry.data],
                    is_replacement=entry.is_replacement,
                    has_more=entry.has_more,
                )
            case Drop():
                self._sync_up_to(entry.after_lsn)
                self._store.drop_sealed(DropJob(entry.stream_id, list(entry.segments)))
            case Swap():
                self.generation += 1
                self._sync_up_to(entry.after_lsn)
                if self.is_catching_up:  # else the leader has it from memory
                    self._intact.mend_file(self.store_id, entry.stream_id, entry.segments[0])
                self._store.swap_sealed(entry.stream_id, list(entry.segments))
            case Unmake():
                self._sync_up_to(entry.after_lsn)
                self._store.unmake_sealed(entry.stream_id, entry.segment)
            case Catalogue():
                self._sync_up_to(entry.after_lsn)
                if self._on_catalogue is not None:
                    self._on_catalogue(entry)
            case CatalogueCopy():
                if self._on_catalogue is not None:
                    self._on_catalogue(entry)
            case BeginImage():
                self._begin_image(entry)
            case ImagePiece():
                if self._image is None or not self._image.write(entry.number, entry.position, entry.data):
                    raise EntryRefusedError(f"bytes of segment {entry.number} from {entry.position} on are not due")
            case Committed():
                # It comes when both logs are known to be the same.
                self.committed_lsn = max(self.committed_lsn, min(entry.lsn, self.received_lsn))
            case Beacon():
                pass  # it may come before that
            case Truncate():
                self._truncate(entry)
            case CaughtUp():
                self._sync_up_to(entry.lsn)
                self._remove_superfluous()
                self._marker.remove()
            case Stop():
                pass  # the link's
            case _:
                assert_never(entry)

    # --- the log ----------------------------------------------------------------------------------------------------

    def _begin_segment(self, data: bytes) -> None:
        header = parsed_header(data, len(data), "a segment of the leader")
        if isinstance(header, str):
            raise EntryRefusedError(f"a segment that {header}")
        current = self._current
        if header.store_id != self.store_id:
            raise EntryRefusedError(f"a segment of another store, {header.store_id.hex()}")
        if self._segments and header.number <= max(self._segments):
            raise EntryRefusedError(f"segment {header.number} does not follow segment {max(self._segments)}")
        if current is not None and header.base_lsn < current.base_lsn + current.capacity:
            raise EntryRefusedError(f"segment {header.number} overlaps with segment {current.number}")
        if not self.epoch <= header.epoch <= self._leader_epoch:
            raise EntryRefusedError(
                f"segment {header.number} is of epoch {header.epoch}, not from {self.epoch} to {self._leader_epoch}"
            )
        self._seal()
        fs = self._fs
        handle = self._created(header.capacity)
        try:
            write_all(fs, handle, [data], 0)
            self._sync(handle, NEW)
            fs.rename(NEW, segment_path(header.number))
        except BaseException:
            fs.close(handle)
            raise
        self._handle = handle
        self._is_named = False
        self._segments[header.number] = self._current = header
        self.epoch = header.epoch
        self.received_lsn = self.synced_lsn = header.base_lsn + SEGMENT_HEADER_BYTES

    def _created(self, capacity: int) -> int:
        """Return a preallocated file; where there is no space for all of it, one that grows."""
        unlink_if_there(self._fs, NEW)
        try:
            return self._fs.create(NEW, capacity)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        return self._fs.create(NEW, 0)

    def _seal(self) -> None:
        """End the current segment: its file ends with its last frame, durably."""
        current = self._current
        if current is None or self._handle < 0:
            return
        self._fs.truncate(self._handle, self.received_lsn - current.base_lsn)
        self._sync_log(self.received_lsn, always=True)
        self._close_current()

    def _write_frame(self, entry: Frame) -> None:
        current = self._current
        if current is None or entry.lsn != self.received_lsn:
            raise EntryRefusedError(f"a frame for LSN {entry.lsn}, and the log ends at {self.received_lsn}")
        if entry.end_lsn > current.base_lsn + current.capacity:
            raise EntryRefusedError(f"the frame at LSN {entry.lsn} does not fit segment {current.number}")
        if not self._is_intact(entry, current):
            raise EntryRefusedError(f"the frame at LSN {entry.lsn} is damaged, or of another store")
        head = FrameHead(entry.head, 0)
        if head.previous_crc != self._crc:
            raise EntryRefusedError(f"the frame at LSN {entry.lsn} does not continue the log")
        if head.epoch != current.epoch:
            raise EntryRefusedError(f"the frame at LSN {entry.lsn} is of epoch {head.epoch}, not {current.epoch}")
        if self._handle < 0:
            self._handle = self._fs.open(segment_path(current.number), writable=True)
        if not self._is_named:
            self._sync_directory(LOG)
            self._is_named = True
        write_all(self._fs, self._handle, [entry.head, *entry.payload], entry.lsn - current.base_lsn)
        self.received_lsn = entry.end_lsn
        self.committed_lsn = max(self.committed_lsn, min(head.durable_lsn, entry.lsn))
        self._crc = entry.crc

    @staticmethod
    def _is_intact(entry: Frame, segment: SegmentHeader) -> bool:
        crc = checksum_of(segment.algorithm, entry.head[:-4])
        for piece in entry.payload:
            crc = checksum_of(segment.algorithm, piece, crc)
        is_ours = entry.head[44 : 44 + STORE_TAG_BYTES] == segment.store_id[:STORE_TAG_BYTES]
        return is_ours and crc == entry.crc and int.from_bytes(entry.head[4:8], "big") % 8 == 0

    def _sync_up_to(self, lsn: int) -> None:
        if lsn > self.received_lsn:
            raise EntryRefusedError(f"something that needs the log up to LSN {lsn}, and it ends at {self.received_lsn}")
        self._sync_log(lsn)

    def _sync_log(self, lsn: int, *, always: bool = False) -> None:
        if self._handle < 0 or (lsn <= self.synced_lsn and not always):
            return
        assert self._current is not None
        self._sync(self._handle, segment_path(self._current.number))
        self.synced_lsn = self.received_lsn

    def _close_current(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)

    # --- checkpoints, and files that they make superfluous ----------------------------------------------------------

    def _take_checkpoint(self, piece: CheckpointPiece) -> None:
        image = self._image
        end_lsn = self.received_lsn if image is None else image.end_lsn
        if piece.lsn > end_lsn:
            raise EntryRefusedError(f"a checkpoint at LSN {piece.lsn}, and the log ends at {end_lsn}")
        size = self._incoming.size
        if not self._incoming.write(piece):
            raise EntryRefusedError(f"a piece of a checkpoint from byte {piece.offset} on, and {size} are here")
        if not piece.is_last:
            return
        content = self._incoming.content(piece.total_bytes)
        self._check_checkpoint(content, piece.lsn)
        if image is not None:
            self._take_over(image, content)
            return
        self._sync_log(piece.lsn)
        self._incoming.put(CHECKPOINT)
        self._checkpoint = KeptCheckpoint(content)

    def _check_checkpoint(self, content: bytes, lsn: int) -> None:
        try:
            reader = checked(content)
        except StoreError as error:
            raise EntryRefusedError(str(error)) from None
        if reader.store_id != self.store_id or reader.lsn != lsn or lsn < self._checkpoint.lsn:
            raise EntryRefusedError(
                f"a checkpoint at LSN {reader.lsn} of store {reader.store_id.hex()}: not what is due"
            )

    # --- images -----------------------------------------------------------------------------------------------------

    def _begin_image(self, entry: BeginImage) -> None:
        self._check_history(entry.lsn, f"its log ends at LSN {entry.lsn}")
        self._give_up_image()
        image = IncomingImage(self._fs, self._sync, entry.lsn)

        def mend(number: int) -> None:
            own = self._segments.get(number)
            end_lsn = self.received_lsn if own is self._current else None
            self._intact.mend_segment(image.header(number), own, end_lsn)

        image.on_segment = mend
        self._image = image

    def _take_over(self, image: IncomingImage, content: bytes) -> None:
        """Replace what was here by the image, which is all there, and its checkpoint, (8)."""
        self.generation += 1
        image.end_segment()
        checkpoint = checked(content)
        lsn = image.readable_to(checkpoint.lsn, checkpoint.last_crc)
        if lsn != image.end_lsn:
            raise EntryRefusedError(
                f"the log that has come can be read up to LSN {lsn}, and it ends at {image.end_lsn}: the leader's log "
                "is damaged there. The next checkpoint of the leader makes that part superfluous"
            )
        kept = KeptCheckpoint(content)
        for number in kept.segments:
            own = self._segments.get(number)
            if number in image.numbers or own is None or not kept.is_about(own):
                continue
            if own is self._current:
                self._seal()
            with suppress(FileNotFoundError):
                image.keep(number)
                log.warning("a segment that the leader lacks is kept", segment=number)
        self._sync_directory(LOG)
        self._incoming.put(COMPLETE)
        self._give_up_image()
        self._close_current()
        self._store.close()
        finish(self._fs, self._sync_directory)
        self._read_log()

    def _give_up_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None

    def _unlink(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            segment = self._segments.get(number)
            if segment is not None and (segment is self._current or self._checkpoint.needs(segment)):
                raise EntryRefusedError(f"segment {number} is to be removed, and the checkpoint needs it")
        self._store.unlink(list(numbers))
        for number in numbers:
            self._segments.pop(number, None)

    def _remove_superfluous(self) -> None:
        """Remove the segments that the leader has removed while this follower was away."""
        numbers = [
            number
            for number, segment in self._segments.items()
            if segment is not self._current and not self._checkpoint.needs(segment)
        ]
        if numbers:
            self._unlink(tuple(numbers))

    # --- the state at a start, and cuts by a leader -----------------------------------------------------------------

    def _read_log(self) -> None:
        store = self._store
        headers, problems = store.open_segments()
        problems += [f"{segment_path(each.number)} has a damaged header" for each in headers if each.is_remade]
        if problems:
            raise StoreError(f"{problems[0]}; {ADVICE}")
        content = store.read_checkpoint()
        lsn = crc = 0
        if headers:
            self.store_id = headers[-1].store_id
        if content is not None:
            reader = checked(content)
            if self.store_id not in (NO_STORE, reader.store_id):
                raise StoreError(
                    f"the log is of store {self.store_id.hex()}, the checkpoint of {reader.store_id.hex()}"
                )
            self.store_id, lsn, crc = reader.store_id, reader.lsn, reader.last_crc
        elif headers and headers[0].base_lsn:
            raise StoreError("the checkpoint of the message store is missing, and so is the beginning of its log")
        self._checkpoint = KeptCheckpoint(content)
        self._segments = {header.number: header for header in headers}
        try:
            self._marker.read()
            self._find_end(headers, lsn, crc)
        except OSError as error:
            self._raise("read the log", error)
        self._missing.find(self._checkpoint.segments, headers)

    def _find_end(self, headers: list[SegmentHeader], lsn: int, crc: int) -> None:
        """Follow the chain of frames from `lsn` on to its end; remove everything after that, and sync all of it."""
        # The last one may be full.
        ahead = [header for header in headers if header.base_lsn + header.capacity > lsn or header is headers[-1]]
        if headers and headers[-1].base_lsn + headers[-1].capacity < lsn:
            raise StoreError(f"no segment has LSN {lsn}, where the checkpoint ends; {ADVICE}")
        committed_lsn = lsn
        for header in ahead:
            is_last = header is ahead[-1]
            handle = self._fs.open(segment_path(header.number), writable=is_last)
            try:
                frames = SegmentFrames(self._fs, handle, header)
                lsn, crc = frames.end(max(lsn, frames.first_lsn), crc)
                committed_lsn = max(committed_lsn, frames.claimed_lsn)
                if frames.maybe_frame(lsn) is not None or (self._marker.is_above(lsn) and frames.claims_behind(lsn)):
                    raise StoreError(f"corruption in {segment_path(header.number)} at LSN {lsn}, or before; {ADVICE}")
                if is_last:
                    self._cut(handle, header, lsn)
            finally:
                self._fs.close(handle)
        self._current = headers[-1] if headers else None
        self.epoch = headers[-1].epoch if headers else 0
        self.received_lsn = self.synced_lsn = lsn
        self.committed_lsn = committed_lsn
        self._crc = crc
        self._is_named = True
        self._store.sync_segments([header.number for header in ahead])

    def _cut(self, handle: int, header: SegmentHeader, lsn: int) -> None:
        length = lsn - header.base_lsn
        if self._fs.size(handle) > length:
            self._fs.truncate(handle, length)

    def _truncate(self, entry: Truncate) -> None:
        self.generation += 1
        self._check_history(entry.lsn, f"the log here is to be cut at LSN {entry.lsn}")
        self._marker.put(entry.lsn)
        if entry.lsn == self.received_lsn and self.epoch <= entry.epoch:
            self._sync_log(entry.lsn)  # the log ends there already: the leader wants to know what is here
            self._sealed.read(self._store, self.store_id)
            return
        self._close_current()
        store = self._store
        was_committed = entry.lsn < max(self._checkpoint.lsn, self.committed_lsn)
        for number, header in sorted(self._segments.items(), reverse=True):
            is_last = header.epoch <= entry.epoch and header.base_lsn < entry.lsn
            if not is_last and was_committed:
                store.set_aside(number)
                continue
            if entry.lsn < self.received_lsn and was_committed:
                store.quarantine(number, is_cut=True)
            elif entry.lsn < self.received_lsn:
                start_lsn = entry.lsn if is_last else header.base_lsn + SEGMENT_HEADER_BYTES
                self._keep(header, start_lsn)
            if is_last:
                self._cut_file(header, entry.lsn)  # synced by the code that reads the log
                break
            store.release([number])
            store.unlink([number])
        self._current = None
        self._read_log()
        self._sealed.read(self._store, self.store_id)

    def _keep(self, header: SegmentHeader, start_lsn: int) -> None:
        end_lsn = min(self.received_lsn, header.base_lsn + header.capacity)
        if end_lsn > start_lsn:
            base = header.base_lsn
            CutCopies(self._fs, self._clock_ms).keep(header.number, start_lsn - base, end_lsn - base)

    def _check_history(self, lsn: int, wanted: str) -> None:
        """See that nothing is given up from `lsn` on that is known to be committed."""
        kept = max(self._checkpoint.lsn, self.committed_lsn)
        if lsn >= kept or (self._may_lose and lsn >= self._checkpoint.lsn):
            return
        if self._may_lose:
            raise EntryRefusedError(
                f"{wanted}, and the checkpoint here is at LSN {kept}: an administrator has had another node be the "
                "truth. Keep a copy of this data directory, and start this node with an empty one"
            )
        raise HistoryLostError(wanted, self.committed().epoch, kept)

    def committed(self) -> LogPosition:
        """Return up to where the log is known here to be committed: the epoch of the last frame before, and the LSN."""
        lsn = max(self._checkpoint.lsn, self.committed_lsn)
        return LogPosition(max((epoch for epoch, first_lsn in self._epochs() if first_lsn < lsn), default=0), lsn)

    def _cut_file(self, header: SegmentHeader, lsn: int) -> None:
        handle = self._fs.open(segment_path(header.number), writable=True)
        try:
            self._cut(handle, header, lsn)
        finally:
            self._fs.close(handle)

    def _epochs(self) -> tuple[tuple[int, int], ...]:
        """Return the epochs that the checkpoint knows, and those that have begun a segment since."""
        epochs = dict(self._checkpoint.epochs)
        last = max(epochs, default=-1)
        for header in self._segments.values():
            if header.epoch > last:
                epochs.setdefault(header.epoch, header.base_lsn + SEGMENT_HEADER_BYTES)
        return tuple(epochs.items())
