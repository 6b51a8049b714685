"""Recovery of the log after a stop, clean or not: load the checkpoint, replay the frames after it.

What recovery finds at the place where the next frame should be, and what it does then:

    a frame that continues the chain                    replayed
    nothing valid; the next segment continues the       the segment ended here, or was cut here by an earlier
      chain                                               recovery
    nothing valid, and no later frame claims that       a torn tail: cut. Nothing in it was ever confirmed
      this place was committed                            in mode `durable`
    nothing valid, but a later frame claims so          corruption. The segment is copied to the quarantine, whole
                                                          records are taken, queues that lost something are named,
                                                          and recovery continues after it
    a segment that the checkpoint needs is missing      reported; its records are found missing when they are read

1. Recovery changes no file except in the quarantine: dying in the middle of it, and beginning again, gives the same.
   A torn tail is cut by ignoring it; the process that follows cuts the file when it needs the space.
2. Replayed frames are synced before anything is built on them: after a killed process they may be in the page cache
   only.
3. Every start begins a new segment, and a new epoch (``epoch_table.py``): the given one, else one more than the largest
   that any file mentions. No two starts have the same epoch, so a given one that is not larger is refused. Only the
   process that made a file ever appends to it.
4. An unknown file is moved aside, never deleted. A segment with a damaged header is replayed all the same
   (``segment_header.py``).
5. A frame must have the first bytes of the store's id (`MessageLog.store_tag`). After a torn or damaged place, recovery
   searches for frames at every multiple of 8, in message bodies too. A publisher can put a frame there: it can guess
   magic, LSN and crc. If recovery believed it, a crash would bring forged records to life, and a torn tail would be
   taken for corruption. The store's id is random, and clients never learn it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from warren.msgstore.files.segment_image import SegmentImage
from warren.msgstore.files.store_errors import StoreError, StoreFullError
from warren.msgstore.log.checkpoint import CheckpointError, CheckpointReader, NewerCheckpointError, snapshot
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import FRAME_HEADER_BYTES, NOTES_FROM, SEGMENT_HEADER_BYTES
from warren.msgstore.log.replay import FrameHead, Replay, ReplayError, damaged_payload
from warren.msgstore.log.segments import Segment

ADVICE: Final = "run `warren store verify` on a copy of the data directory"


class SegmentFile(Protocol):
    """The content of the header of a segment file."""

    number: int
    base_lsn: int
    capacity: int
    epoch: int
    algorithm: int
    store_id: bytes
    size: int
    is_remade: bool


class LogFiles(Protocol):
    """The files of a log, as recovery needs them. ``msgstore.files.store.Store`` is one."""

    highest_number: int  # of all files that look like segments, readable or not

    def read_checkpoint(self) -> bytes | None: ...
    def open_segments(self) -> tuple[Sequence[SegmentFile], list[str]]: ...
    def read_range(self, number: int, offset: int, length: int) -> bytes: ...
    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]: ...
    def quarantine(self, number: int) -> None: ...
    def set_aside(self, number: int) -> None: ...
    def sync_segments(self, numbers: list[int]) -> None: ...
    def recovered(self, number: int, length: int) -> None: ...


class Event:
    """Something that the operator should know. `level`: info, warning or error."""

    def __init__(self, level: str, text: str, **fields: object) -> None:
        self.level = level
        self.text = text
        self.fields = fields


class Recovery:
    """The findings of a recovery."""

    def __init__(self) -> None:
        self.clean = False  # the last process had stopped in order: its deliveries are known
        self.is_new = False
        self.segments = 0
        self.frames = 0
        self.records = 0
        self.messages = 0
        self.damaged = False
        self.events: list[Event] = []

    def tell(self, level: str, text: str, **fields: object) -> None:
        self.events.append(Event(level, text, **fields))


def recover(files: LogFiles, log: MessageLog, new_store_id: bytes, epoch: int | None = None) -> Recovery:
    """Bring the empty `log` to the state on disk, ready to write in a new segment.

    `new_store_id`: 16 random bytes, for a store that does not exist yet. `epoch`: the one that begins, larger than any
    before; None: the next one.

    Raises:
        StoreError: the store cannot be opened; the text says why and what to do.
    """
    return _Recoverer(files, log, epoch).run(new_store_id)


def log_has(log: MessageLog, stream_id: int, offset: int) -> bool:
    """Tell whether the log continues at an offset of a stream: it has that message, or never had one from there on."""
    index = log.indexes.get(stream_id)
    if index is None or index.next_number <= offset:
        return True
    size = int(index.page_entries)
    page = index.page(offset // size)
    if page is not None and not page.resident:
        # Entries go from the beginning of a page.
        return (offset // size + 1) * size - page.live <= offset
    return index.lsn_of(offset) != 0


class _Recoverer:
    def __init__(self, files: LogFiles, log: MessageLog, epoch: int | None) -> None:
        self._files = files
        self._log = log
        self._given_epoch = epoch
        self._found = Recovery()
        self._replay = Replay(log, lambda lsn, length: files.read([(lsn, length)])[0])

    def run(self, new_store_id: bytes) -> Recovery:
        files, log, found = self._files, self._log, self._found
        segments, problems = files.open_segments()
        for problem in problems:
            found.damaged = True
            found.tell("error", "a segment cannot be used", reason=problem, advice=ADVICE)
        for file in segments:
            if file.is_remade:
                found.damaged = True
                found.tell("error", "the header of a segment is damaged", segment=file.number, advice=ADVICE)
        checkpoint = self._load_checkpoint(segments, new_store_id)
        start_lsn = int(log.next_lsn)
        log.recovered_lsn = start_lsn
        self._reconcile(segments, start_lsn)
        replayed = self._replay_from(start_lsn, segments)
        found.clean = checkpoint is not None and checkpoint.clean and found.frames == 0 and not found.damaged
        found.is_new = checkpoint is None and not segments
        log.epoch = self._next_epoch(segments)
        self._finish(segments, replayed)
        return found

    def _load_checkpoint(self, segments: Sequence[SegmentFile], new_store_id: bytes) -> CheckpointReader | None:
        log = self._log
        content = self._files.read_checkpoint()
        if content is None:
            if segments and segments[0].base_lsn != 0:
                raise StoreError(
                    "the checkpoint of the message store is missing, and so is the beginning of its log; "
                    "run `warren store repair`"
                )
            log.algorithm = segments[0].algorithm if segments else default_algorithm()
            log.store_id = segments[0].store_id if segments else new_store_id
            log.checksum = checksum_function(log.algorithm)
            log.epoch = 0
            return None
        try:
            reader = CheckpointReader(content)
            log.checksum = checksum_function(reader.algorithm)
            if not reader.is_intact(log.checksum):
                raise CheckpointError("its checksum is wrong")
            reader.fill(log)
        except NewerCheckpointError as error:
            raise StoreError(
                f"the checkpoint of the message store cannot be read: {error}; a newer Warren has written this store"
            ) from None
        except ValueError as error:
            raise StoreError(
                f"the checkpoint of the message store cannot be read: {error}; run `warren store repair`"
            ) from None
        return reader

    def _reconcile(self, segments: Sequence[SegmentFile], start_lsn: int) -> None:
        """Compare the files with the checkpoint: its store, its segment table."""
        log, found = self._log, self._found
        for file in segments:
            if file.store_id != log.store_id:
                found.damaged = True
                found.tell(
                    "error",
                    "a segment is of another store than the checkpoint: none of its frames counts",
                    segment=file.number,
                    store_id=file.store_id.hex(),
                    advice=ADVICE,
                )
        files = {segment.number: segment for segment in segments}
        known = {int(segment.number): segment for segment in log.segments.segments}
        unlinked: list[int] = []  # after the checkpoint
        for number, segment in known.items():
            if number in files:
                continue
            if segment.live_refs == 0:
                unlinked.append(number)
                continue
            found.damaged = True
            found.tell(
                "error",
                "a segment of the message log is missing",
                segment=number,
                messages=int(segment.live_refs),
                advice=ADVICE,
            )
        log.segments.remove(unlinked)
        for number, file in files.items():
            if number not in known and file.base_lsn + file.capacity <= start_lsn:
                found.tell("warning", "a segment that nothing refers to is moved to the quarantine", segment=number)
                self._keep(number, self._files.set_aside)

    def _keep(self, number: int, keep: Callable[[int], None]) -> None:
        """Put a segment into the quarantine; without space for that it stays where it is."""
        try:
            keep(number)
        except StoreFullError as error:
            self._found.tell(
                "warning", "no space to copy a segment to the quarantine", segment=number, reason=str(error)
            )

    def _replay_from(self, start_lsn: int, segments: Sequence[SegmentFile]) -> list[int]:
        """Replay all frames from `start_lsn` on; return the numbers of the segments that they are in."""
        log = self._log
        known = {int(segment.number): segment for segment in log.segments.segments}
        ahead = [segment for segment in segments if segment.base_lsn + segment.capacity > start_lsn]
        expected_crc = int(log.last_crc)
        for at, file in enumerate(ahead):
            image = self._image_of(file)
            segment = known.get(file.number)
            if segment is None:
                segment = Segment(file.number, file.base_lsn, file.capacity)
                segment.sealed = True
                log.segments.add(segment)
            following = ahead[at + 1] if at + 1 < len(ahead) else None
            pos = max(SEGMENT_HEADER_BYTES, start_lsn - file.base_lsn)
            segment.end_lsn = file.base_lsn + pos
            while True:
                found = image.maybe_frame(pos)
                if found is not None and found[0].previous_crc != expected_crc:
                    found = None  # left over from before a cut
                if found is None:
                    if following is not None and self._continues(following, expected_crc):
                        break
                    after = self._later_frame(image, pos, file, following)
                    if after is None:
                        break
                    behind, same_file = after
                    self._damaged(image, pos, file, behind if same_file else None)
                    expected_crc = behind.previous_crc
                    if not same_file:
                        break
                    pos = behind.lsn - file.base_lsn
                    continue
                frame, data = found
                self._apply(data, frame)
                expected_crc = frame.crc
                pos += frame.end
                segment.end_lsn = file.base_lsn + pos
                log.recovered_lsn = file.base_lsn + pos
            log.last_crc = expected_crc
        return [segment.number for segment in ahead]

    def _image_of(self, file: SegmentFile) -> SegmentImage:
        log = self._log
        read = self._files.read_range
        return SegmentImage(read, file.number, file.size, file.base_lsn, log.checksum, log.store_tag)

    def _apply(self, data: bytes, frame: FrameHead) -> None:
        self._found.frames += 1
        self._epoch_begins(frame.epoch, frame.lsn)
        try:
            self._replay.frame(data, frame)
        except ReplayError as error:
            raise StoreError(str(error)) from None

    def _epoch_begins(self, epoch: int, first_lsn: int) -> None:
        """Enter an epoch that exists. The beginning of the epoch of a checkpoint without a table is unknown."""
        self._replay.epoch_begins(epoch)
        if epoch > self._log.epoch:
            self._log.epoch = epoch
            self._log.epochs.begin(epoch, first_lsn)

    def _continues(self, file: SegmentFile, expected_crc: int) -> bool:
        first = self._image_of(file).maybe_frame(SEGMENT_HEADER_BYTES)
        return first is not None and first[0].previous_crc == expected_crc

    def _later_frame(
        self,
        image: SegmentImage,
        pos: int,
        file: SegmentFile,
        following: SegmentFile | None,
    ) -> tuple[FrameHead, bool] | None:
        """Return the next valid frame that claims the bytes at `pos` were durable, and whether it is in this file.

        None when there is no such frame: then nothing that was ever confirmed is missing.
        """
        lsn = file.base_lsn + pos
        for frame, _ in image.frames_from(pos + 1):
            if frame.durable_lsn > lsn:
                return frame, True
        if following is not None:
            # A segment is begun when the previous one is synced: if it does not continue the chain, frames are missing.
            for frame, _ in self._image_of(following).frames_from(SEGMENT_HEADER_BYTES):
                return (frame, False) if frame.durable_lsn > lsn else None
        return None

    def _damaged(self, image: SegmentImage, pos: int, file: SegmentFile, behind: FrameHead | None) -> None:
        """Handle damage: the frame at `pos` was durable once and is not readable now."""
        found = self._found
        found.damaged = True
        # Each epoch begins a segment: where it began is known, whatever became of its first frame.
        self._epoch_begins(file.epoch, file.base_lsn + SEGMENT_HEADER_BYTES)
        self._replay.meet_damage()
        self._keep(file.number, self._files.quarantine)
        end = behind.lsn - file.base_lsn if behind is not None else image.size
        hurt: list[str] = []
        at = pos
        while True:
            head = image.bytes_at(at, FRAME_HEADER_BYTES)
            start, stop = damaged_payload(self._log.store_tag, head, 0, end - at, file.base_lsn + at)
            if start == stop:
                break
            payload = image.bytes_at(at + start, stop - start)
            hurt += self._replay.salvage(payload, 0, len(payload), file.base_lsn + at + start)
            at += stop
        found.tell(
            "error",
            "a part of the message log is damaged; a copy is in the quarantine, the rest is served",
            segment=file.number,
            lsn=file.base_lsn + pos,
            bytes=end - pos,
            queues=", ".join(sorted(set(hurt))) or "unknown",
            advice=ADVICE,
        )

    def _next_epoch(self, segments: Sequence[SegmentFile]) -> int:
        # A segment was begun even if all of its frames are gone.
        begun = [segment.epoch for segment in segments if segment.store_id == self._log.store_id]
        highest = max([int(self._log.epoch), *begun])
        given = self._given_epoch
        if given is None:
            return highest + 1
        if given <= highest:
            raise StoreError(
                f"epoch {given} cannot begin: this store has been in epoch {highest}. It was started with an older "
                "number than it had before, or its directory is in use elsewhere"
            )
        return given

    def _finish(self, segments: Sequence[SegmentFile], replayed: list[int]) -> None:
        log, found = self._log, self._found
        end_lsn = max((segment.base_lsn + segment.capacity for segment in segments), default=0)
        log.begin_life(self._files.highest_number + 1, end_lsn)
        log.reclamation.release_pages()
        log.checkpoints.take = lambda: snapshot(log)
        self._files.sync_segments(replayed)
        if replayed and not found.damaged:
            last = log.segments.segments[-1]
            self._files.recovered(int(last.number), int(last.end_lsn - last.base_lsn))
        found.segments = len(segments)
        found.records = self._replay.records
        found.messages = sum(int(index.live_count) for index in log.indexes.values() if index.lane < NOTES_FROM)
