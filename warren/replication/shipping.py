"""Shipping: a leader's entry for every change that its `Store` makes to its files, and where a follower can continue.

    threads of the store          Shipping                         the links, one for each follower
    ShippedStore.commit ...  ->   encoded once, to every      ->   put: sends without blocking
                                  Attachment, in order
                                  attach(position, files)     ->   catch_up: the content of the files; then go_live

1. `ShippedStore` is the store to its threads. Each change is shipped before it is made here, and with a frame the wish
   to sync it: the disks work at the same time.
2. The entries of an attachment, first from `catch_up` and then live, lead from the follower's position to the state of
   the leader's files, without a gap and without repetition. Files of streams come before the frames by which the log
   forgets their messages, removals after them. A file that differs from the leader's is replaced in one step.
3. The changes of each of the three threads of the store are made under a lock of its own, and `attach` holds all three:
   the files hold everything that was shipped until then, and the rest is shipped to it. It holds the files that it will
   read (``held_files``), whatever is removed meanwhile.
4. Files that the log removes while a follower catches up are kept for it (`retain`): otherwise, after a long catch-up,
   the log would have moved on each time. They go when no follower needs them; their space is counted (`kept_bytes`),
   together with the files of streams that a follower may still be reading.
5. While a follower catches up, live entries wait in memory, at most `WAITING_BYTES_MAX` of them. Beyond that the
   attachment is useless when it has caught up with the files: the follower gets another one, with less to catch up.
6. A follower with frames that the leader never had must cut them off (`Truncate`), at the end of the largest epoch that
   both have. If the log here cannot continue the follower's log, since segments of it are gone, the follower gets an
   image: the whole log as it is, and its checkpoint. If not even that can serve, it gets `BulkNeededError`.
7. Segments that a start here could not use are not in an image: the checkpoint tells the follower which are missing
   (``replica_store`` (8)). Files of streams that were set aside here are not dropped from a follower.

No sockets and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Final

from warren.cluster.driver import passed_s
from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.pins import PinnedFile
from warren.msgstore.files.sealed_files import REPLACEMENT, STREAMS, UNUSABLE, maybe_sealed_name, sealed_path
from warren.msgstore.files.segment_header import SegmentHeader, parsed_header, read_headers
from warren.msgstore.files.segment_names import CHECKPOINT, LOG, maybe_segment_number, segment_path
from warren.msgstore.files.segment_reads import ReadProblem
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreError, StoreFullError
from warren.msgstore.log.checkpoint import MINOR_WITHOUT_LIVES, without_lives
from warren.msgstore.log.checksum import checksum_function
from warren.msgstore.log.columns import Piece
from warren.msgstore.log.epoch_table import EpochTable
from warren.msgstore.log.jobs import CommitJob, DropJob, SealedRead, SealJob
from warren.msgstore.log.log_position import LogPosition
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from warren.msgstore.log.replay import FrameHead
from warren.replication.entries import (
    NUMBERS_MAX,
    PIECE_BYTES,
    BeginImage,
    BeginSegment,
    Drop,
    Entry,
    Frame,
    ImageBytes,
    ImagePiece,
    Position,
    SealedFile,
    Swap,
    Sync,
    Truncate,
    Unlink,
    Unmake,
    checkpoint_pieces,
    chunk_pieces,
    encoded,
)
from warren.replication.held_files import HeldFile, HeldFiles
from warren.replication.sealed_inventory import sealed_file
from warren.replication.segment_frames import SegmentFrames

_CHECKPOINT_LSN_AT: Final = 32
_CHECKPOINT_LSN_END: Final = 40

WAITING_BYTES_MAX: Final = 64 << 20
JOINED_BYTES: Final = 4 << 20

Pieces = list[Piece]


class BulkNeededError(StoreError):
    """A follower cannot continue from its position: it needs a copy of everything. Says why."""


class OtherStoreError(StoreError):
    """A follower has the directory of another store."""


@dataclass(frozen=True, slots=True)
class _SealedSource:
    """A file of a stream of which a follower gets the bytes from `start` on.

    `is_swapped`: it has another one of that name, in the place of which this one is put when it is whole.
    """

    stream_id: int
    segment: int
    file: HeldFile
    start: int
    is_replacement: bool
    is_swapped: bool


@dataclass(frozen=True, slots=True)
class _LetGo:
    """A file that was removed while a follower caught up. `number`: of the last attachment at that time."""

    number: int
    size: int
    segment: int | None


class Attachment:
    """The entries for one follower. `sent` counts the entries that were given out, as the follower counts `done`."""

    def __init__(self, fs: FileSystem, number: int = 0) -> None:
        self.number = number  # later ones have greater numbers
        self.sent = 0
        self.is_behind = False  # too much came while it caught up: it needs another one
        self._fs = fs
        self._put: Callable[[Pieces], None] | None = None
        self._waiting: list[tuple[Pieces, int]] = []  # with their numbers of entries
        self._waiting_bytes = 0
        self._lock = Lock()
        # The files to read.
        self.position = Position(bytes(16), 0, 0, 0, 0, ())  # from where on
        self.end_lsn = 0  # up to where
        self.is_image = False  # the log does not continue from there: the follower gets all of it
        self.image_piece: type[ImagePiece] = ImageBytes  # which it understands
        self.reads_lives = True  # likewise, checkpoints with the ids of lives
        self.files = HeldFiles(fs, f"follower{number}")
        self.segments: list[tuple[SegmentHeader, HeldFile]] = []  # ascending
        self.sealed: list[_SealedSource] = []
        self.drops: list[Drop] = []
        self.checkpoint: HeldFile | None = None  # if the follower needs it

    def publish(self, pieces: Pieces, count: int = 1) -> None:
        """Add live entries. Any thread."""
        with self._lock:
            if self._put is not None:
                self.sent += count
                self._put(pieces)
                return
            if not self.is_behind:
                self._waiting.append((pieces, count))
                self._waiting_bytes += sum(map(len, pieces))
                if self._waiting_bytes > WAITING_BYTES_MAX:
                    self.is_behind = True
                    self._waiting.clear()

    @property
    def is_live(self) -> bool:
        """Whether published entries are given out at once."""
        return self._put is not None

    def catch_up(self) -> Iterator[Pieces]:
        """Yield the entries from the follower's position to where live entries begin, read as they are asked for.

        Raises:
            BulkNeededError: the files do not have it.
            OSError: they cannot be read.
        """
        try:
            for entry in self._catch_up():
                self.sent += 1
                yield encoded(entry)
        finally:
            self.close_files()

    def _catch_up(self) -> Iterator[Entry]:
        for source in self.sealed:
            yield from self._sealed_bytes(source)
        if self.is_image:
            yield from self._image()
        else:
            yield from self._frames()
            yield Sync(self.end_lsn)
            yield from self._checkpoint()
        yield from self.drops

    def _image(self) -> Iterator[Entry]:
        yield BeginImage(self.end_lsn)
        for header, file in self.segments:
            with self.files.opened(file) as handle:
                end = min(self._fs.size(handle), self.end_lsn - header.base_lsn)
                for at in range(0, end, PIECE_BYTES):
                    data = read_exactly(self._fs, handle, min(PIECE_BYTES, end - at), at)
                    if data:
                        head = b"" if at else self._head(handle, header)
                        yield self.image_piece(header.number, at, head + data[len(head) :])
        yield from self._checkpoint()

    def _checkpoint(self) -> Iterator[Entry]:
        if self.checkpoint is not None:
            with self.files.opened(self.checkpoint) as handle:
                content = read_exactly(self._fs, handle, self._fs.size(handle), 0)
            if not self.reads_lives:
                content = _without_lives(content)
            yield from checkpoint_pieces(_checkpoint_lsn(content), content)

    def _frames(self) -> Iterator[Entry]:
        lsn, crc = self.position.lsn, self.position.crc
        for header, file in self.segments:
            with self.files.opened(file) as handle:
                frames = SegmentFrames(self._fs, handle, header)
                if header.number != self.position.segment:
                    yield BeginSegment(self._head(handle, header))
                    lsn = frames.first_lsn
                while lsn < self.end_lsn and (found := frames.maybe_frame(lsn)) is not None:
                    head, data = found
                    if head.previous_crc != crc:
                        raise BulkNeededError(f"the log here does not continue the follower's at LSN {lsn}")
                    yield Frame(data[:FRAME_HEADER_BYTES], (memoryview(data)[FRAME_HEADER_BYTES:],))
                    lsn, crc = lsn + head.end, head.crc
        if lsn != self.end_lsn:
            raise BulkNeededError(f"the log here cannot be read from LSN {lsn} to {self.end_lsn}")

    def _head(self, handle: int, header: SegmentHeader) -> bytes:
        """Return the bytes at the beginning of a segment, made again if they are damaged."""
        data = read_exactly(self._fs, handle, SEGMENT_HEADER_BYTES, 0)
        found = parsed_header(data, header.size, segment_path(header.number))
        return header.encoded() if isinstance(found, str) or found.number != header.number else data

    def _sealed_bytes(self, source: _SealedSource) -> Iterator[Entry]:
        place = source.stream_id, source.segment
        with self.files.opened(source.file) as handle:
            end = self._fs.size(handle)
            at = source.start
            while at < end:
                data = read_exactly(self._fs, handle, min(PIECE_BYTES, end - at), at)
                if not data:
                    break
                yield from chunk_pieces(*place, at, data, is_replacement=source.is_replacement)
                at += len(data)
        if source.is_swapped:
            yield Swap(0, source.stream_id, (source.segment,))

    def go_live(self, put: Callable[[Pieces], None]) -> bool:
        """Call `put` with everything that has come since `attach`, and that comes later; it must not block or fail.

        Returns False when too much has come: the follower must catch up with the missing entries, too.
        """
        with self._lock:
            if self.is_behind:
                return False
            for pieces, count in self._waiting:
                self.sent += count
                put(pieces)
            self._waiting.clear()
            self._put = put
        return True

    def close_files(self) -> None:
        """Give the files back that are still to be read."""
        self.segments, self.sealed, self.checkpoint = [], [], None
        self.files.release()


class Shipping:
    """The entries of one leader, for all that are attached. `fs` is where its store is, `epochs` those of its log."""

    def __init__(self, fs: FileSystem, epochs: EpochTable) -> None:
        # Held while the thread changes files: see (3).
        self.committing = Lock()
        self.keeping_house = Lock()
        self.reading = Lock()
        self._fs = fs
        self._epochs = epochs
        self._attachments: tuple[Attachment, ...] = ()
        self._lock = Lock()  # of the entries' order
        self._is_over = False  # nothing more is shipped
        self._segment = 0  # the last one that was told of
        self._end_lsn = 0  # of the frames that were told of
        self._written_lsn = 0  # and is in the files
        self._unwritten: list[Entry] = []  # told of by a commit that has not ended
        self._known: dict[int, SegmentHeader] = {}  # headers that were read; a number is never used again
        self.commit_began_s: float | None = None  # while the disk works on one; the clock counts suspended time, too
        self._attached = 0  # how often
        self._let_go: list[_LetGo] = []  # in that order
        self._retained: dict[int, tuple[SegmentHeader, HeldFile]] = {}  # segments of these, by number
        self._retainer = HeldFiles(fs, "retained", handles_max=0)
        self._replaced = 0  # how often files of streams were replaced or removed

    # --- from the store: msgstore.files.store.Changes ---------------------------------------------------------------

    def segment(self, header: bytes) -> None:
        """Ship the beginning of a segment with this header."""
        number = int.from_bytes(header[32:40], "big")
        if number != self._segment:  # not for another try
            self._segment = number
            begin = BeginSegment(header)
            self._unwritten.append(begin)
            self.publish(begin)

    def frame(self, head: bytes, payload: list[bytes], *, sync: bool) -> None:
        """Ship a frame that is written, and synced when `sync`."""
        size = int.from_bytes(head[4:8], "big")
        entry = Frame(head, _joined(payload, size) if self._attachments else tuple(payload))
        # In one piece: a follower that finds nothing after a frame acknowledges it, and again when it is synced.
        entries = (entry, Sync(entry.end_lsn)) if sync else (entry,)
        self._unwritten += entries
        self.publish(*entries, end_lsn=entry.end_lsn)

    def sync(self, lsn: int) -> None:
        """Ship that all frames before `lsn` are synced."""
        self.publish(Sync(lsn))

    def chunk(self, stream_id: int, segment: int, position: int, pieces: list[Piece], *, is_replacement: bool) -> None:
        """Ship a chunk that is written."""
        if self._attachments:
            for piece in chunk_pieces(stream_id, segment, position, b"".join(pieces), is_replacement=is_replacement):
                self.publish(piece)

    # --- other entries to ship --------------------------------------------------------------------------------------

    def publish(self, *entries: Entry, end_lsn: int | None = None) -> None:
        """Ship entries, one after the other, to all that are attached; the log ends at `end_lsn` then. Any thread."""
        pieces = [piece for entry in entries for piece in encoded(entry)] if self._attachments else []
        with self._lock:
            if self._is_over:
                return
            if end_lsn is not None:
                self._end_lsn = end_lsn
            for attachment in self._attachments if pieces else ():
                attachment.publish(pieces, len(entries))

    def end(self) -> int:
        """Ship nothing more, and return up to where the log was shipped; replicas have it synced after all entries.

        Later writes of the store do not count: another node leads before this one starts again.
        """
        with self._lock:
            self._is_over = True
            pieces = encoded(Sync(self._end_lsn))
            for attachment in self._attachments:
                attachment.publish(pieces, 1)
            return self._end_lsn

    def written(self) -> None:
        """Note that the announced commit is in the files."""
        self._unwritten.clear()
        self._written_lsn = self._end_lsn

    def replaced(self) -> None:
        """Count a file of a stream that was replaced or removed. In the reader's thread."""
        self._replaced += 1

    def end_lsn(self) -> int:
        """Return up to where the log was shipped."""
        return self._end_lsn

    def written_lsn(self) -> int:
        """Return up to where the log is in the files; 0 before the first commit of this life."""
        return self._written_lsn

    def sent(self) -> dict[Attachment, int]:
        """Return how many entries each live follower has been given: `Ack.done` says when it has done them.

        One that still catches up is not in it: it has done all when it has done the CAUGHT_UP that it will be sent.
        """
        with self._lock:
            return {attachment: attachment.sent for attachment in self._attachments if attachment.is_live}

    # --- followers --------------------------------------------------------------------------------------------------

    def attach(
        self,
        position: Position,
        files: Sequence[SealedFile],
        *,
        needs_image: bool = False,
        reads_lives: bool = True,
    ) -> Attachment | Truncate:
        """Return the attachment of a follower at `position` with these sealed `files`, or where it must cut its log.

        `needs_image`: reading has shown that the log here does not continue the follower's log. `reads_lives`: it
        understands checkpoints with the ids of lives. To be called when the first commit of this life is done
        (`written_lsn`), which says that its epoch has begun.

        Raises:
            OtherStoreError: it is the directory of another store.
            BulkNeededError: it cannot continue from its position.
            StoreError: that commit is not done yet.
            OSError: the files cannot be read.
        """
        self._headers()  # read before a caller must wait for it
        replaced = self._replaced
        shared = self._shared(files)
        with self.committing, self.keeping_house, self.reading:
            if self._replaced != replaced:
                shared = self._shared(files)
            if not self._written_lsn:
                raise StoreError("the first frame of this broker is not written yet: connect again")
            headers = self._headers()
            if any(isinstance(entry, BeginSegment) for entry in self._unwritten):
                headers = [header for header in headers if header.number != self._segment]
            truncate = self._maybe_truncate(position, headers)
            if truncate is not None:
                return truncate
            self._attached += 1
            attachment = Attachment(self._fs, self._attached)
            attachment.position = position
            attachment.reads_lives = reads_lives
            attachment.end_lsn = self._written_lsn
            reachable = self._with_retained(headers)
            attachment.is_image = needs_image or self._has_gap(position, reachable)
            try:
                self._hold_segments(attachment, headers if attachment.is_image else reachable)
                self._hold_sealed(attachment, files, shared)
                self._hold_checkpoint(attachment)
            except BaseException:
                attachment.close_files()
                raise
            for entry in self._unwritten:
                attachment.publish(encoded(entry))
            with self._lock:
                self._attachments = (*self._attachments, attachment)
        return attachment

    def all_read_lives(self) -> bool:
        """Tell whether all that are attached read checkpoints with the ids of lives."""
        return all(attachment.reads_lives for attachment in self._attachments)

    def detach(self, attachment: Attachment) -> None:
        """Give nothing more to it."""
        with self._lock:
            self._attachments = tuple(other for other in self._attachments if other is not attachment)
        attachment.close_files()

    def retain(self, numbers: Sequence[int]) -> None:
        """Keep these segments, about to be removed, while a follower catches up. The housekeeper's."""
        if self._release():
            return
        headers: dict[int, SegmentHeader] = {}
        with suppress(OSError, StoreError):
            headers = {header.number: header for header in self._headers()}
        for number in numbers:
            with suppress(OSError):  # without it the follower may get an image
                path = segment_path(number)
                self._note(number, path)
                if number in headers:
                    self._retained[number] = headers[number], self._retainer.hold(path)

    def removing(self, stream_id: int, segments: Sequence[int]) -> None:
        """Keep these files of a stream, about to be removed, which a follower may still read. The reader's."""
        with self._lock:
            is_needed = any(not attachment.is_live for attachment in self._attachments)
        for segment in segments if is_needed else ():
            with suppress(OSError):
                self._note(None, sealed_path(stream_id, segment))

    def _note(self, segment: int | None, path: str) -> None:
        size = self._size(path)
        with self._lock:
            self._let_go.append(_LetGo(self._attached, size, segment))

    def kept_bytes(self, attachment: Attachment) -> int:
        """Return how much space is taken by files that are kept for this follower."""
        with self._lock:
            return sum(each.size for each in self._let_go if each.number >= attachment.number)

    def free_bytes(self) -> int:
        """Return how much space there is. Raises OSError."""
        return self._fs.free_bytes()

    def settle(self) -> None:
        """Release files that are no longer needed, after a follower has caught up or gone."""
        with self.keeping_house:
            self._release()

    def _release(self) -> bool:
        """Release files that are no longer needed; tell whether all followers are live."""
        with self._lock:
            first = min((each.number for each in self._attachments if not each.is_live), default=None)
            released = [each for each in self._let_go if first is None or each.number < first]
            self._let_go = self._let_go[len(released) :]
        for each in released:
            retained = None if each.segment is None else self._retained.pop(each.segment, None)
            if retained is not None:
                self._retainer.let_go(retained[1])
        return first is None

    def _with_retained(self, headers: list[SegmentHeader]) -> list[SegmentHeader]:
        found = {number: header for number, (header, _) in self._retained.items()}
        found.update((header.number, header) for header in headers)
        return [found[number] for number in sorted(found)]

    def _path(self, number: int) -> str:
        retained = self._retained.get(number)
        return segment_path(number) if retained is None else retained[1].link

    def _headers(self) -> list[SegmentHeader]:
        """Return the headers of the segments that a start would serve, by number."""
        numbers = [number for name in self._fs.names(LOG) if (number := maybe_segment_number(name)) is not None]
        headers, _ = read_headers(self._fs, numbers, self._read_range, lambda: None, self._known)
        # One that is made again may be mended, and its segment may grow.
        self._known = {header.number: header for header in headers if not header.is_remade}
        return headers

    def _read_range(self, number: int, offset: int, length: int) -> bytes:
        handle = self._fs.open(segment_path(number), writable=False)
        try:
            return read_exactly(self._fs, handle, length, offset)
        finally:
            self._fs.close(handle)

    def _maybe_truncate(self, position: Position, headers: list[SegmentHeader]) -> Truncate | None:
        """Return where the follower must cut its log; None when all of it is here as well."""
        if position.is_empty or not headers:
            return None
        if position.store_id != headers[-1].store_id:
            raise OtherStoreError(
                f"this is store {headers[-1].store_id.hex()}, the follower has one of {position.store_id.hex()}: begin "
                "with an empty directory"
            )
        ours = set(self._epochs.entries)
        common = next((epoch for epoch in reversed(position.epochs) if epoch in ours), None)
        if common is None:
            raise BulkNeededError("the follower's position is no longer known here")
        behind = [first_lsn for _, first_lsn in position.epochs if first_lsn > common[1]]
        end = min([self._end_of(common, headers), *behind])
        return Truncate(end, common[0]) if behind or position.lsn > end else None

    def _end_of(self, epoch: tuple[int, int], headers: list[SegmentHeader]) -> int:
        """Return the end of the last frame of an epoch; if that frame is gone, where the next epoch begins.

        If a follower has other frames up to there, the next frame does not continue them, which shows it.
        """
        following = min((first_lsn for _, first_lsn in self._epochs.entries if first_lsn > epoch[1]), default=None)
        if following is None:
            return self._written_lsn
        bound = following - SEGMENT_HEADER_BYTES
        of_epoch = [header for header in headers if header.epoch == epoch[0]]
        end = -1
        for header in reversed(of_epoch):
            lsn, last = self._end_of_segment(header)
            end = max(end, lsn)
            if last is not None:
                first = self._maybe_first_frame(headers[headers.index(of_epoch[-1]) + 1 :])
                # Else there were more segments of this epoch.
                return end if first is not None and first.previous_crc == last.crc else bound
        return bound

    def _end_of_segment(self, header: SegmentHeader) -> tuple[int, FrameHead | None]:
        last: FrameHead | None = None
        with self._reading_frames(header) as segment:
            lsn = segment.first_lsn
            while (found := segment.maybe_frame(lsn)) is not None:
                last = found[0]
                lsn += last.end
        return lsn, last

    def _maybe_first_frame(self, headers: list[SegmentHeader]) -> FrameHead | None:
        for header in headers:
            with self._reading_frames(header) as segment:
                found = segment.maybe_frame(segment.first_lsn)
            if found is not None:
                return found[0]
        return None

    @contextmanager
    def _reading_frames(self, header: SegmentHeader) -> Iterator[SegmentFrames]:
        handle = self._fs.open(self._path(header.number), writable=False)
        try:
            yield SegmentFrames(self._fs, handle, header)
        finally:
            self._fs.close(handle)

    def _has_gap(self, position: Position, headers: list[SegmentHeader]) -> bool:
        """Tell whether segments are gone that lead from the follower's position to the end of the log."""
        needed = [header for header in headers if header.number >= position.segment]
        if not needed:
            return False
        first = needed[0]
        if any(later.number != header.number + 1 for header, later in pairwise(needed)):
            return True
        if position.is_empty:
            return first.base_lsn != 0
        if first.number == position.segment:
            return False
        # Where the follower's own is gone, the next one may continue it.
        frame = self._maybe_first_frame(needed)
        return frame is not None and frame.previous_crc != position.crc

    def _hold_segments(self, attachment: Attachment, headers: list[SegmentHeader]) -> None:
        for header in headers:
            if attachment.is_image or header.number >= attachment.position.segment:
                attachment.segments.append((header, attachment.files.hold(self._path(header.number))))

    def _hold_sealed(
        self, attachment: Attachment, files: Sequence[SealedFile], shared: dict[tuple[int, int], int]
    ) -> None:
        """Find out which files of streams the follower lacks, has in part, or has and should not have."""
        theirs = {(file.stream_id, file.segment) for file in files}
        ours: set[tuple[int, int]] = set()
        for name in self._fs.names(STREAMS):
            file_name, is_unusable, _ = name.partition(UNUSABLE)
            if is_unusable and (unusable := maybe_sealed_name(file_name)) is not None:
                ours.add(unusable)  # the follower may have the only intact one: it keeps that
                continue
            is_replacement = name.endswith(REPLACEMENT)
            named = maybe_sealed_name(name.removesuffix(REPLACEMENT))
            if named is None:
                continue
            start = SEGMENT_HEADER_BYTES if is_replacement else shared.get(named, SEGMENT_HEADER_BYTES)
            is_swapped = not is_replacement and named in theirs and named not in shared
            if not is_replacement:
                ours.add(named)
            if start >= self._size(f"{STREAMS}/{name}"):
                continue
            file = attachment.files.hold(f"{STREAMS}/{name}")
            attachment.sealed.append(_SealedSource(*named, file, start, is_replacement or is_swapped, is_swapped))
        for stream_id, segment in sorted(theirs - ours):
            attachment.drops.append(Drop(0, stream_id, (segment,)))

    def _shared(self, files: Sequence[SealedFile]) -> dict[tuple[int, int], int]:
        """Return the files of which the follower has only bytes that are here too, and their lengths there."""
        found: dict[tuple[int, int], int] = {}
        for theirs in files:
            try:
                handle = self._fs.open(sealed_path(theirs.stream_id, theirs.segment), writable=False)
            except FileNotFoundError:
                continue
            try:
                if theirs.file_bytes <= self._fs.size(handle):
                    ours = sealed_file(self._fs, handle, theirs.stream_id, theirs.segment, theirs.file_bytes)
                    if ours == theirs:
                        found[(theirs.stream_id, theirs.segment)] = theirs.file_bytes
            finally:
                self._fs.close(handle)
        return found

    def _size(self, path: str) -> int:
        handle = self._fs.open(path, writable=False)
        try:
            return self._fs.size(handle)
        finally:
            self._fs.close(handle)

    def _hold_checkpoint(self, attachment: Attachment) -> None:
        try:
            handle = self._fs.open(CHECKPOINT, writable=False)
        except FileNotFoundError:
            if attachment.is_image:
                raise BulkNeededError("a part of the log is gone, and a checkpoint does not exist") from None
            return
        try:
            lsn = _checkpoint_lsn(read_exactly(self._fs, handle, _CHECKPOINT_LSN_END, 0))
        finally:
            self._fs.close(handle)
        if attachment.is_image or lsn > attachment.position.checkpoint_lsn:
            attachment.checkpoint = attachment.files.hold(CHECKPOINT)


class ShippedStore:
    """A `Store` whose changes are shipped: the StoreFiles of ``server.message_store``."""

    def __init__(self, store: Store, shipping: Shipping) -> None:
        self._store = store
        self._shipping = shipping
        store.tell(shipping)
        # Calls that change nothing.
        self.read: Callable[[list[tuple[int, int]]], list[bytes]] = store.read
        self.read_sealed: Callable[[SealedRead], None] = store.read_sealed
        self.forget_cached: Callable[[list[tuple[int, int]]], None] = store.forget_cached
        self.take_read_problems: Callable[[], list[ReadProblem]] = store.take_read_problems
        self.release: Callable[[list[int]], None] = store.release
        self.prepare_spare: Callable[[int], None] = store.prepare_spare
        self.quarantine: Callable[[int], None] = store.quarantine
        self.free_bytes: Callable[[], int] = store.free_bytes
        self.unpin: Callable[[str], None] = store.unpin
        self.close: Callable[[], None] = store.close

    def commit(self, job: CommitJob, time_ms: int) -> None:
        """See `Store.commit`."""
        shipping = self._shipping
        with shipping.committing:
            shipping.commit_began_s = passed_s()
            try:
                self._store.commit(job, time_ms)
            except StoreFullError:
                # The commit that syncs waits for this one: replicas must not look slow because this disk is full.
                shipping.sync(shipping.end_lsn())
                raise
            shipping.written()
            shipping.commit_began_s = None

    def write_checkpoint(self, content: bytes) -> None:
        """See `Store.write_checkpoint`."""
        shipping = self._shipping
        with shipping.keeping_house:
            shipped = content if shipping.all_read_lives() else _without_lives(content)
            for piece in checkpoint_pieces(_checkpoint_lsn(content), shipped):
                shipping.publish(piece)
            self._store.write_checkpoint(content)

    def unlink(self, numbers: list[int]) -> None:
        """See `Store.unlink`."""
        shipping = self._shipping
        with shipping.keeping_house:
            for at in range(0, len(numbers), NUMBERS_MAX):
                shipping.publish(Unlink(0, tuple(numbers[at : at + NUMBERS_MAX])))
            shipping.retain(numbers)
            self._store.unlink(numbers)

    def pin(self, holder: str, position: LogPosition) -> list[PinnedFile]:
        """See `Store.pin`."""
        with self._shipping.keeping_house:
            return self._store.pin(holder, position)

    def seal(self, job: SealJob) -> None:
        """See `Store.seal`."""
        with self._shipping.keeping_house:
            self._store.seal(job)

    def drop_sealed(self, job: DropJob) -> None:
        """See `Store.drop_sealed`."""
        shipping = self._shipping
        with shipping.reading:
            for at in range(0, len(job.segments), NUMBERS_MAX):
                shipping.publish(Drop(shipping.end_lsn(), job.stream_id, tuple(job.segments[at : at + NUMBERS_MAX])))
            shipping.removing(job.stream_id, job.segments)
            self._store.drop_sealed(job)
            shipping.replaced()

    def swap_sealed(self, stream_id: int, segments: list[int]) -> None:
        """See `Store.swap_sealed`."""
        shipping = self._shipping
        with shipping.reading:
            shipping.publish(Swap(shipping.end_lsn(), stream_id, tuple(segments)))
            shipping.removing(stream_id, segments)
            self._store.swap_sealed(stream_id, segments)
            shipping.replaced()

    def unmake_sealed(self, stream_id: int, segment: int) -> None:
        """See `Store.unmake_sealed`."""
        shipping = self._shipping
        with shipping.reading:
            shipping.publish(Unmake(shipping.end_lsn(), stream_id, segment))
            self._store.unmake_sealed(stream_id, segment)
            shipping.replaced()


def _joined(pieces: list[bytes], size: int) -> tuple[bytes, ...]:
    """Return the same bytes, `size` of them, in fewer pieces of about `JOINED_BYTES`.

    Each costs something at every follower, and a message has two.
    """
    step = max(1, JOINED_BYTES * len(pieces) // max(1, size))
    return tuple(b"".join(pieces[at : at + step]) for at in range(0, len(pieces), step))


def _without_lives(content: bytes) -> bytes:
    """Return a checkpoint as nodes of earlier versions read it."""
    if int.from_bytes(content[10:12], "big") <= MINOR_WITHOUT_LIVES:
        return content
    return without_lives(content, checksum_function(content[12]))


def _checkpoint_lsn(content: bytes) -> int:
    return int.from_bytes(content[_CHECKPOINT_LSN_AT:_CHECKPOINT_LSN_END], "big")
