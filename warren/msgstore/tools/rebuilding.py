"""The live messages, from the records of the whole log alone: for a store whose checkpoint cannot be used.

1. Frames count as in `LogCheck`; of corrupt ones the whole records do.
2. Every message comes at least once. An acknowledged message comes back if its acknowledgement was in a segment that
   is gone by now, unless an index page in the log says that the message was gone already.
3. A queue whose name is no longer in any record gets an empty name and lane 0. The metadata knows lane 0 by its id;
   messages of other lanes are kept and not served.
4. The last message of a sequence number counts: a broker may put a message in the place of another, and compaction
   writes a copy after its original.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from warren.msgstore.log.checksum import checksum_function
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.records import LIFE_ID_BYTES, STORE_TAG_BYTES, body_bytes_of, page_entries
from warren.msgstore.log.replay import damaged_payload, trusted_end
from warren.msgstore.log.segments import Segment
from warren.msgstore.tools.format import (
    ACK,
    DROPPABLE,
    EXPIRES,
    FRAME_HEAD_BYTES,
    KINDS,
    LIFE,
    MESSAGE,
    PAGE,
    QUEUE,
    QUEUE_DELETED,
    SEGMENT_HEADER_BYTES,
    Record,
)
from warren.msgstore.tools.log_check import LogCheck
from warren.msgstore.tools.log_files import Gap, RecordAt, SegmentFile, StoreFiles
from warren.msgstore.tools.stored_state import new_log

_PAIR: Final = Struct(">QQ")
_WORD: Final = Struct(">I")
_PLACES_AT: Final = 24

Place = tuple[int, int]


def counted_records(files: StoreFiles, check: LogCheck) -> Iterator[tuple[SegmentFile, RecordAt, bytes, int]]:
    """Yield every whole record that counts: its file, itself, the payload it is in and its LSN."""
    corrupt = set(check.corrupt)
    for number in files.segments:
        with files.segment(number) as file:
            if file.header is None:
                continue
            for found in file.frames():
                if isinstance(found, Gap):
                    if found not in corrupt:
                        continue
                    payload, start = _salvageable(file, found), found.lsn + FRAME_HEAD_BYTES
                elif check.counts(found) and found.lsn not in check.unfinished:
                    payload, start = found.payload, found.payload_lsn
                else:
                    continue
                for record in file.records(payload):
                    if record.fault is None and record.kind in KINDS:
                        yield file, record, payload, start + record.offset


def places_of(payload: bytes, record: RecordAt) -> list[Place]:
    """Return the (queue id, sequence number) of a MESSAGE record."""
    start = record.offset + _PLACES_AT
    return [_PAIR.unpack_from(payload, start + 16 * place) for place in range(record.count)]


def ranges_of(payload: bytes, record: RecordAt) -> tuple[int, list[tuple[int, int]]]:
    """Return the queue id of an ACK record and its ranges: the first number, and the one after the last."""
    start = record.offset + 24
    pairs = [_PAIR.unpack_from(payload, start + 16 * place) for place in range(record.count)]
    queue_id = int.from_bytes(payload[record.offset + 16 : start], "big")
    return queue_id, [(first, first + count) for first, count in pairs]


def _salvageable(file: SegmentFile, gap: Gap) -> bytes:
    data = file.read(gap.lsn - file.header.base_lsn, gap.end_lsn - gap.lsn)
    start, stop = damaged_payload(file.header.store_id[:STORE_TAG_BYTES], data, 0, len(data), gap.lsn)
    return data[start : trusted_end(checksum_function(file.header.algorithm), data, start, stop)]


class Rebuild:
    """An index made of records, in the order of the log."""

    def __init__(self, files: StoreFiles, check: LogCheck) -> None:
        assert check.algorithm is not None, "no segment can be read"
        self.log: MessageLog = new_log()
        self.log.algorithm = check.algorithm
        self.log.checksum = checksum_function(check.algorithm)
        self.log.store_id = check.store_id or bytes(16)
        self.log.epoch = check.epoch
        self._files = files
        self._check = check
        # Queues that have no place in the index: deleted, or gone with the process.
        self._without: set[int] = set()

    def run(self) -> MessageLog:
        """Return the log, ready for its checkpoint."""
        self._add_segments()
        for file, record, payload, lsn in counted_records(self._files, self._check):
            if record.kind == MESSAGE:
                self._message(payload, record, lsn)
            elif record.kind == ACK:
                self._ack(payload, record, lsn)
            elif record.kind == PAGE:
                self._page(payload, record)
            elif record.kind in (QUEUE, QUEUE_DELETED):
                self._queue(file, payload, record, lsn)
            elif record.kind == LIFE:
                self._life(payload, record)
        log = self.log
        # As at every start: messages deleted on the way no longer refer to anything.
        log.reclamation.release_pages()
        for index in log.indexes.values():
            index.named = True
            index.delivered_below = index.next_number
        return log

    def _add_segments(self) -> None:
        log = self.log
        log.next_segment = self._files.highest_number + 1
        for number in self._files.segments:
            with self._files.segment(number) as file:
                if file.header is None:
                    continue
                segment = Segment(number, file.header.base_lsn, file.header.capacity)
                segment.end_lsn = file.header.base_lsn + SEGMENT_HEADER_BYTES
                segment.sealed = True
                for found in file.frames():
                    if not isinstance(found, Gap) and self._check.counts(found):
                        segment.end_lsn = found.end_lsn
                        log.last_crc = found.crc
                        if found.epoch > log.epochs.last():
                            log.epochs.begin(found.epoch, found.lsn)
                log.segments.add(segment)
                log.next_base_lsn = max(int(log.next_base_lsn), file.header.base_lsn + file.header.capacity)
        log.next_lsn = log.next_base_lsn

    def _index(self, queue_id: int) -> QueueIndex | None:
        if queue_id in self._without:
            return None
        index = self.log.indexes.get(queue_id)
        if index is None:
            index = self.log.new_index(queue_id, "", "", 0, False)
            self._used(queue_id)
        return index

    def _used(self, queue_id: int) -> None:
        self.log.next_queue_id = max(self.log.next_queue_id, queue_id + 1)

    def _message(self, payload: bytes, record: RecordAt, lsn: int) -> None:
        if record.flags & DROPPABLE:
            return
        for queue_id, number in places_of(payload, record):
            index = self._index(queue_id)
            if index is None:
                continue
            index.forget(number)
            index.add(number, lsn, record.flags & EXPIRES, record.length, body_bytes_of(payload, record.offset))

    def _ack(self, payload: bytes, record: RecordAt, lsn: int) -> None:
        queue_id, ranges = ranges_of(payload, record)
        index = self._index(queue_id)
        if index is not None:
            for first, end in ranges:
                index.forget_range(first, end)
                index.next_number = max(int(index.next_number), end)

    def _page(self, payload: bytes, record: RecordAt) -> None:
        """Forget messages that were gone when the page was written."""
        queue_id, page_number = _PAIR.unpack_from(payload, record.offset + 16)
        index = self.log.indexes.get(queue_id)
        if index is None or record.flags & DROPPABLE:
            return
        entries = page_entries(payload, record.offset)
        first = page_number * int(index.page_entries)
        for place in range(int(index.page_entries)):
            if 2 * place >= len(entries) or entries[2 * place] == 0:
                index.forget(first + place)

    def _life(self, payload: bytes, record: RecordAt) -> None:
        (epoch,) = _WORD.unpack_from(payload, record.offset + 12)
        start = record.offset + 16
        self.log.epochs.name(epoch, payload[start : start + LIFE_ID_BYTES])

    def _queue(self, file: SegmentFile, payload: bytes, record: RecordAt, lsn: int) -> None:
        data = payload[record.offset : record.offset + record.length]
        body = Record.parse(data, algorithm=file.header.algorithm).body
        if record.kind == QUEUE_DELETED or record.flags & DROPPABLE:
            self._without.add(body.queue_id)
            self._used(body.queue_id)
            index = self.log.indexes.pop(body.queue_id, None)
            if index is not None:
                index.forget_all()
            return
        index = self._index(body.queue_id)
        if index is not None:
            index.vhost, index.name, index.lane = body.vhost, body.name, body.lane


def messages_of_pages(
    files: StoreFiles, check: LogCheck, pages: set[tuple[int, int]], page_entries_max: int
) -> dict[Place, tuple[int, int, int, int]]:
    """Return the messages whose place is in one of `pages`, at least once, as `QueueIndex.add` takes them.

    By place: LSN, flags, record length and body bytes.
    """
    found: dict[Place, tuple[int, int, int, int]] = {}
    for _, record, payload, lsn in counted_records(files, check):
        if record.kind == MESSAGE and not record.flags & DROPPABLE:
            for queue_id, number in places_of(payload, record):
                if (queue_id, number // page_entries_max) in pages:
                    body_bytes = int(body_bytes_of(payload, record.offset))
                    found[queue_id, number] = (lsn, record.flags & EXPIRES, record.length, body_bytes)
        elif record.kind == ACK:
            queue_id, ranges = ranges_of(payload, record)
            gone = [
                (owner, number)
                for owner, number in found
                if owner == queue_id and any(first <= number < end for first, end in ranges)
            ]
            for place in gone:
                del found[place]
    return found
