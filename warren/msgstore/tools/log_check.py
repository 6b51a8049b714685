"""One pass over the whole log: the frames that count, and the faults of the others.

Where the next frame should be and is not, or does not follow the one before by its ``previous_crc``:

    the checkpoint says that the segment ends here, or        the rest is left over from before a recovery
      the next segment continues the frame before               cut the log here: it never counted
    a frame with the tag of another store, and nothing        it never counted; somebody put it there
      claims that this place was synced
    no frame or checkpoint claims that this place was synced  the torn tail that a crash leaves; never counted either
    something does                                            corruption

1. `cuts` and `corrupt` are complete when `lines` is exhausted: torn frames show at the end.
2. Consequences of reported damage (the chain that it interrupts) are not reported again.
3. Corruption with a copy in the quarantine was found before by a recovery or a repair; it is noted, but not a problem.
"""

from __future__ import annotations

from collections.abc import Iterator

from warren.msgstore.tools.format import EPOCH, SEGMENT_HEADER_BYTES
from warren.msgstore.tools.lines import Line, UnreadableStore, crc_text, note, problem
from warren.msgstore.tools.log_files import Gap, IntactFrame, RecordAt, SegmentFile, StoreFiles
from warren.msgstore.tools.stored_state import CheckpointFacts


def foreign_frame(gap: Gap) -> Line:
    """Return the line for bytes in `gap` that look like a frame and have the tag of another store."""
    return note("a frame of another store, which does not count", segment=gap.segment, lsn=gap.foreign_lsn)


class LogCheck:
    """The pass, oldest segment first."""

    def __init__(self, files: StoreFiles, checkpoint: CheckpointFacts | None) -> None:
        self.frames = 0
        self.records = 0
        self.payload_bytes = 0
        self.durable_lsn = 0 if checkpoint is None else checkpoint.lsn  # the largest that anything claims
        self.end_lsn = 0  # after the last frame that counts
        self.epoch = 0
        self.store_id: bytes | None = None if checkpoint is None else checkpoint.store_id
        self.algorithm: int | None = None
        self.cuts: dict[int, int] = {}  # by segment: nothing counts from this LSN on
        self.corrupt: list[Gap] = []
        self.unusable: list[int] = []  # segments without a header
        self.unfinished: set[int] = set()  # LSNs of frames whose batch has no last one
        self._continued: list[IntactFrame] = []  # of the batch that is being read
        self._files = files
        self._checkpoint = checkpoint
        self._gaps: list[Gap] = []
        self._claimed_lsn = 0  # the largest durable LSN of a frame so far
        self._chain: int | None = None  # crc of the frame before, when that is known
        self._before: int | None = None  # number of the segment before
        self._free_lsn = 0  # the next segment may begin from here on
        self._copied = {name.partition("-")[0] for name in files.quarantined()}

    def lines(self) -> Iterator[Line]:
        """Yield everything that is wrong or worth knowing."""
        for name in self._files.others:
            yield note("a file that is not a segment", file=name)
        if self._checkpoint is not None:
            for number, messages in self._checkpoint.live_refs.items():
                if messages and number not in self._files.segments:
                    yield problem("a segment is missing that the checkpoint needs", segment=number, messages=messages)
        for number in self._files.segments:
            yield from self._segment(number)
        yield from self._end_batch()
        for gap in self._gaps:
            yield self._judged(gap)
            if gap.foreign_lsn not in (None, gap.lsn):
                yield foreign_frame(gap)

    def foreign(self) -> list[Gap]:
        """Return the gaps with a frame of another store, once all lines were yielded."""
        return [gap for gap in self._gaps if gap.foreign_lsn is not None]

    def counts(self, frame: IntactFrame) -> bool:
        """Tell whether a frame is part of the log, once all lines were yielded."""
        cut = self.cuts.get(frame.segment)
        return cut is None or frame.lsn < cut

    def _end_batch(self) -> Iterator[Line]:
        """Report an unfinished batch: nothing more comes of it."""
        continued, self._continued = self._continued, []
        if not continued:
            return
        self.unfinished.update(frame.lsn for frame in continued)
        first, last = continued[0], continued[-1]
        yield note(
            "the beginning of a batch that was never finished, as a crash leaves it: it is ignored",
            segment=first.segment,
            lsn=first.lsn,
            end_lsn=last.end_lsn,
        )

    def _segment(self, number: int) -> Iterator[Line]:
        if self._before is None:
            # The first frame of a store has no predecessor; that of an older segment may be gone by right.
            self._chain = 0 if number == 1 else None
        elif number != self._before + 1:
            self._chain = None
        self._before = number
        try:
            file = self._files.segment(number)
        except UnreadableStore as error:
            yield problem(str(error), segment=number)
            self.unusable.append(number)
            self._chain = None
            return
        with file:
            if file.fault is not None:
                yield problem(file.fault, segment=number)
                self.unusable.append(number)
                self._chain = None
                return
            yield from self._header(file)
            yield from self._frames(file)

    def _header(self, file: SegmentFile) -> Iterator[Line]:
        header = file.header
        where = {"segment": file.number}
        if self.store_id is None:
            self.store_id = header.store_id
        elif self.store_id != header.store_id:
            yield problem(f"a segment of another store, {header.store_id.hex()}", **where)
        if self.algorithm is None:
            self.algorithm = header.algorithm
        elif self.algorithm != header.algorithm:
            yield problem(f"checksum algorithm {header.algorithm} in a store with {self.algorithm}", **where)
        if header.base_lsn < self._free_lsn:
            yield problem(f"the segment begins at LSN {header.base_lsn}, inside the one before it", **where)
        if header.epoch < self.epoch:
            yield problem(f"epoch {header.epoch} after epoch {self.epoch}", **where)
        if file.size > header.capacity:
            yield problem(f"the file has {file.size} bytes, more than its capacity of {header.capacity}", **where)
        self._free_lsn = header.base_lsn + header.capacity

    def _frames(self, file: SegmentFile) -> Iterator[Line]:
        end = file.header.base_lsn + SEGMENT_HEADER_BYTES
        complete = None if self._checkpoint is None else self._checkpoint.end_lsns.get(file.number)
        last_in_file: int | None = None
        gaps = 0
        for found in file.frames():
            if complete is not None:
                left_over = found.lsn >= complete
            else:
                breaks = isinstance(found, Gap) or (self._chain is not None and found.previous_crc != self._chain)
                left_over = breaks and self._continues_elsewhere(file, last_in_file)
            if left_over:
                self.cuts[file.number] = found.lsn
                yield note("left over from before a recovery cut the log here", segment=file.number, lsn=found.lsn)
                break
            if isinstance(found, Gap):
                self._continued = []  # the frame may have ended the batch, see ``replay.py (4)``
                gaps += 1
                self._gaps.append(found)
                self._chain = None
                continue
            yield from self._frame(file, found)
            last_in_file = found.crc
            end = found.end_lsn
        if complete is not None and end < complete and not gaps:
            yield problem("frames are missing at the end", segment=file.number, lsn=end, end_lsn=complete)
            self._chain = None

    def _continues_elsewhere(self, file: SegmentFile, last_in_file: int | None) -> bool:
        """Tell whether the chain continues in a later segment."""
        crc = self._chain if last_in_file is None else last_in_file
        if crc is None:
            return False
        for number in self._files.segments:
            if number <= file.number:
                continue
            with self._files.segment(number) as later:
                if later.header is None:
                    return False
                first = next(later.frames(), None)
                if first is not None:
                    return isinstance(first, IntactFrame) and first.previous_crc == crc
        return False

    def _frame(self, file: SegmentFile, frame: IntactFrame) -> Iterator[Line]:
        where = {"segment": file.number, "lsn": frame.lsn}
        if self._chain is not None and frame.previous_crc != self._chain:
            yield problem(
                f"frames are missing before this one: it follows {crc_text(frame.previous_crc)}, "
                f"not {crc_text(self._chain)}",
                **where,
            )
        if frame.durable_lsn < self._claimed_lsn:
            yield problem(f"durable LSN {frame.durable_lsn} after {self._claimed_lsn}", **where)
        if frame.durable_lsn > frame.lsn:
            yield problem(f"durable LSN {frame.durable_lsn} beyond the frame itself", **where)
        if frame.epoch < self.epoch:
            yield problem(f"epoch {frame.epoch} after epoch {self.epoch}", **where)
        if self._continued and self._continued[0].epoch != frame.epoch:
            yield from self._end_batch()
        if frame.is_continued:
            self._continued.append(frame)
        else:
            self._continued = []
        yield from self._records(file, frame)
        self._chain = frame.crc
        self.epoch = max(self.epoch, frame.epoch)
        self._claimed_lsn = max(self._claimed_lsn, frame.durable_lsn)
        self.durable_lsn = max(self.durable_lsn, frame.durable_lsn)
        self.end_lsn = frame.end_lsn
        self.frames += 1
        self.payload_bytes += len(frame.payload)

    def _records(self, file: SegmentFile, frame: IntactFrame) -> Iterator[Line]:
        count = 0
        for record in file.records(frame.payload):
            fault = record.fault or self._epoch_fault(frame, record, count)
            if fault is not None:
                yield problem(fault, segment=file.number, lsn=frame.payload_lsn + record.offset)
            count += 1
        self.records += count
        if count != frame.record_count:
            yield problem(f"{count} records in a frame of {frame.record_count}", segment=file.number, lsn=frame.lsn)

    def _epoch_fault(self, frame: IntactFrame, record: RecordAt, place: int) -> str | None:
        # Where frames are missing, by right or not, the first of the epoch is among them.
        begins = place == 0 and 0 < self.epoch < frame.epoch and self._chain is not None
        return f"epoch {frame.epoch} does not begin with an EPOCH record" if begins and record.kind != EPOCH else None

    def _judged(self, gap: Gap) -> Line:
        where = {"segment": gap.segment, "lsn": gap.lsn, "end_lsn": gap.end_lsn}
        if self.durable_lsn <= gap.lsn:
            self.cuts[gap.segment] = min(gap.lsn, self.cuts.get(gap.segment, gap.lsn))
            if gap.foreign_lsn == gap.lsn:
                return problem(f"nothing counts from here on, and no crash leaves this: {gap.reason}", **where)
            return note(f"torn tail, as a crash leaves it: {gap.reason}", **where)
        self.corrupt.append(gap)
        if f"{gap.segment:010d}" in self._copied:
            return note(f"corruption that was found before, a copy is in the quarantine: {gap.reason}", **where)
        return problem(f"corruption in synced data: {gap.reason}", durable_lsn=self.durable_lsn, **where)
