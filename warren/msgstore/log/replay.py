"""Replaying the log: the effect of each record on the indexes and segments.

1. Replaying frames in their order gives exactly the state in which they were written (message_log.py (3)), without
   droppable entries: those are gone.
2. Replaying is repeatable from a checkpoint: nothing here writes.
3. An absent page is read when one of its entries changes; a page all of whose entries go is doomed unread.
4. The frames of a batch count together. A frame that is continued waits for the last one of its batch. Without that,
   in the log of a process that died meanwhile, none of them does anything, now and in every later start: the next frame
   is of another epoch. They stay links of the chain, and name the life that
   has written them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.records import (
    ACK,
    CONTINUED,
    DROPPABLE,
    EPOCH,
    EXPIRES,
    FILLER,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    IGNORABLE,
    LIFE,
    LIFE_ID_BYTES,
    MESSAGE,
    MOVED,
    PAGE,
    QUEUE,
    QUEUE_DELETED,
    STORE_TAG_AT,
    STORE_TAG_BYTES,
    TIME_BYTES,
    TIMED,
    Checksum,
    body_bytes_of,
    is_intact,
    padded,
    page_entries,
    place_count,
    queue_id_of_place,
    record_length,
    sequence_number_of_place,
    unsigned_word,
)

KINDS: Final = (MESSAGE, ACK, QUEUE, QUEUE_DELETED, PAGE, EPOCH, LIFE, FILLER)


class ReplayError(ValueError):
    """The log holds a record that this version may not skip. Says which."""


class FrameHead:
    """A whole, intact frame."""

    def __init__(self, data: bytes, at: i64) -> None:
        self.payload_bytes: int = int(unsigned_word(data, at + 4))
        self.lsn: int = int(read_i64_be(data, at + 8))
        self.durable_lsn: int = int(read_i64_be(data, at + 16))
        self.epoch: int = int(unsigned_word(data, at + 32))
        self.previous_crc: int = int(unsigned_word(data, at + 36))
        records: i64 = unsigned_word(data, at + 40)
        self.record_count: int = int(records & (CONTINUED - 1))
        self.is_continued: bool = records & CONTINUED != 0
        self.crc: int = int(unsigned_word(data, at + 52))
        self.end: int = int(at) + FRAME_HEADER_BYTES + self.payload_bytes


def maybe_frame(checksum: Checksum, store_tag: bytes, data: bytes, at: i64, lsn: i64) -> FrameHead | None:
    """Return the frame that lies whole and intact at ``data[at:]``, the position `lsn`; None without one.

    A frame of another store does not count. That is seen before its crc is computed: forged frames cost no time.
    """
    if at + FRAME_HEADER_BYTES > len(data) or data[at : at + 4] != FRAME_MAGIC:
        return None
    if read_i64_be(data, at + 8) != lsn or data[at + STORE_TAG_AT : at + STORE_TAG_AT + STORE_TAG_BYTES] != store_tag:
        return None
    payload: i64 = unsigned_word(data, at + 4)
    end: i64 = at + FRAME_HEADER_BYTES + payload
    if payload & 7 or end > len(data):
        return None
    crc = checksum(data[at + FRAME_HEADER_BYTES : end], checksum(data[at : at + 52], 0))
    if crc != unsigned_word(data, at + 52):
        return None
    return FrameHead(data, at)


def next_head(store_tag: bytes, data: bytes, start: int) -> int:
    """Return where the next frame may begin, at a multiple of 8 of `data` from `start` on; -1 when nowhere.

    It searches for the tag, which publishers do not know: repeated bytes of theirs cost nothing.
    """
    has_tag = any(store_tag)
    wanted, shift = (store_tag, STORE_TAG_AT) if has_tag else (FRAME_MAGIC, 0)
    found = data.find(wanted, start + shift)
    while found >= 0:
        at = found - shift
        if at % 8 == 0 and data[at : at + 4] == FRAME_MAGIC:
            return at
        found = data.find(wanted, found + 1)
    return -1


def damaged_payload(store_tag: bytes, data: bytes, at: i64, end: i64, lsn: i64) -> tuple[int, int]:
    """Return from where to where the payload of the damaged frame at ``data[at:end]`` goes; nothing if its head is bad.

    `lsn` is the position of the frame, `end` where the next thing begins that is known to be right.
    """
    if at + FRAME_HEADER_BYTES > end or data[at : at + 4] != FRAME_MAGIC:
        return int(at), int(at)
    start: i64 = at + FRAME_HEADER_BYTES
    stop: i64 = start + unsigned_word(data, at + 4)
    if read_i64_be(data, at + 8) != lsn or data[at + 44 : start - 4] != store_tag or stop > end or stop & 7 != at & 7:
        return int(at), int(at)
    return int(start), int(stop)


def trusted_end(checksum: Checksum, data: bytes, start: i64, end: i64) -> i64:
    """Return how far the records of a damaged payload ``data[start:end]`` can be walked.

    A record with a wrong crc is stepped over only when its length agrees with the rest of its head: a wrong length
    could lead into a body, and its publisher may have written records there.
    """
    at: i64 = start
    while at < end:
        length: i64 = record_length(data, at)
        if length == 0 or at + length > end:
            return at
        if length != _length_by_head(data, at) and not is_intact(checksum, data, at, length):
            return at
        at += padded(length)
    return end


def _length_by_head(data: bytes, at: i64) -> i64:
    """Return the length that the other fields of a record's head add up to; 0 when they do not say."""
    kind: i64 = data[at + 8]
    if kind == MESSAGE:
        if at + 24 > len(data):
            return 0
        names: i64 = i64(data[at + 18]) + i64(data[at + 19])
        time: i64 = TIME_BYTES if data[at + 9] & TIMED else 0
        return 24 + 16 * place_count(data, at) + names + unsigned_word(data, at + 20) + time
    if kind == ACK:
        return 24 + 16 * place_count(data, at)
    if kind == PAGE:
        return 32 + 16 * place_count(data, at)
    if kind in (QUEUE_DELETED, EPOCH):
        return 24
    if kind == LIFE:
        return 32
    return 0


class Replay:
    """Applies records to `log`. `read` returns the bytes at an LSN, fewer when they are not there."""

    def __init__(self, log: MessageLog, read: Callable[[int, int], bytes]) -> None:
        self.log = log
        self.frames: int = 0
        self.records: int = 0
        self.hurt = False  # some records are lost
        self._read = read
        self._waiting: list[FrameHead] = []  # frames of a batch whose last one has not come; they are read again

    def frame(self, data: bytes, frame: FrameHead) -> None:
        """Apply an intact frame whose payload ends at ``frame.end`` of `data`, as (4) says.

        Raises:
            ReplayError: a record of a kind that may not be skipped.
        """
        self.frames += 1
        self.epoch_begins(frame.epoch)
        if frame.is_continued:
            self._name_life(data, frame)
            self._waiting.append(frame)
            return
        self._apply_waiting()
        self._apply(data, frame.end - frame.payload_bytes, frame.end, frame.lsn + FRAME_HEADER_BYTES)

    def _name_life(self, data: bytes, frame: FrameHead) -> None:
        """Note which life an epoch is of, whether the batch that says so is ever finished or not: its frames count."""
        start: i64 = frame.end - frame.payload_bytes
        shift: i64 = frame.lsn + FRAME_HEADER_BYTES - start
        at: i64 = start
        while at < frame.end and data[at + 8] in (EPOCH, LIFE):
            length: i64 = record_length(data, at)
            self.record(data, at, length, at + shift)
            at += padded(length)

    def epoch_begins(self, epoch: int) -> None:
        """Forget frames of an earlier epoch whose batch was never finished."""
        if self._waiting and self._waiting[0].epoch != epoch:
            self._waiting = []

    def _apply_waiting(self) -> None:
        if self._waiting:
            waiting = self._waiting
            self._waiting = []
            for frame in waiting:
                lsn = frame.lsn + FRAME_HEADER_BYTES
                data = self._read(lsn, frame.payload_bytes)
                if len(data) < frame.payload_bytes:
                    raise ReplayError(f"the frame at LSN {frame.lsn} cannot be read again")
                self._apply(data, 0, frame.payload_bytes, lsn)

    def _apply(self, data: bytes, start: i64, end: i64, lsn: i64) -> None:
        """Apply the records in ``data[start:end]``, of which the first is at `lsn`."""
        shift: i64 = lsn - start
        at: i64 = start
        while at < end:
            length: i64 = record_length(data, at)
            assert length > 0, "a record does not fit its intact frame"
            self.record(data, at, length, at + shift)
            at += padded(length)

    def record(self, data: bytes, at: i64, length: i64, lsn: i64) -> None:
        """Apply the intact record of `length` bytes at ``data[at:]``, the position `lsn`."""
        self.records += 1
        kind: i64 = data[at + 8]
        flags: i64 = data[at + 9]
        if kind == MESSAGE:
            if flags & DROPPABLE == 0:
                self._message(data, at, length, lsn, flags)
        elif kind == ACK:
            self._ack(data, at, length)
        elif kind == PAGE:
            if flags & DROPPABLE == 0:
                self._page(data, at, length, lsn)
        elif kind == QUEUE:
            self._queue(data, at, flags)
        elif kind == QUEUE_DELETED:
            queue_id = int(read_i64_be(data, at + 16))
            self.log.sealed.deleted.add(queue_id)
            index = self.log.indexes.pop(queue_id, None)
            if index is not None:
                index.deleted = True
                index.forget_all()
        elif kind == LIFE:
            epoch = int(unsigned_word(data, at + 12))
            self.log.epochs.name(epoch, data[at + 16 : at + 16 + LIFE_ID_BYTES])
        elif kind != EPOCH and flags & IGNORABLE == 0:
            raise ReplayError(f"a record of kind {int(kind)} at LSN {int(lsn)}: a newer Warren has written this store")

    def _message(self, data: bytes, at: i64, length: i64, lsn: i64, flags: i64) -> None:
        place: i64 = 0
        places: i64 = place_count(data, at)
        body_bytes: i64 = body_bytes_of(data, at)
        while place < places:
            index = self.log.indexes.get(queue_id_of_place(data, at, place))
            number: i64 = sequence_number_of_place(data, at, place)
            place += 1
            if index is None:
                continue  # of a transient queue: a fan-out has one record for all
            self._ensure_resident(index, number)
            if flags & MOVED and index.lsn_of(number) != 0:
                index.relocate(number, lsn, length)
            else:
                if self.hurt:
                    # It may replace one whose ACK, right before it, is lost.
                    index.forget(number)
                index.add(number, lsn, flags & EXPIRES, length, body_bytes)

    def _ack(self, data: bytes, at: i64, length: i64) -> None:
        index = self.log.indexes.get(read_i64_be(data, at + 16))
        if index is None:
            return
        pos: i64 = at + 24
        while pos + 16 <= at + length:
            first: i64 = read_i64_be(data, pos)
            end: i64 = first + read_i64_be(data, pos + 8)
            # The pages at both ends may hold messages that stay.
            if first % index.page_entries:
                self._ensure_resident(index, first)
            if end % index.page_entries:
                self._ensure_resident(index, end)
            index.forget_range(first, end)
            pos += 16

    def _page(self, data: bytes, at: i64, length: i64, lsn: i64) -> None:
        index = self.log.indexes.get(read_i64_be(data, at + 16))
        if index is None:
            return
        page = index.page(read_i64_be(data, at + 24))
        # When records are lost, the page may differ from its record: the replayed one stays, and is written again.
        if page is not None and not self.hurt:
            index.page_written(page, lsn, length)

    def _queue(self, data: bytes, at: i64, flags: i64) -> None:
        queue_id = int(read_i64_be(data, at + 16))
        log = self.log
        if queue_id >= log.next_queue_id:
            log.next_queue_id = queue_id + 1
        if flags & DROPPABLE or queue_id in log.indexes:
            return
        vhost_bytes: i64 = i64(data[at + 24]) << 8 | i64(data[at + 25])
        name_bytes: i64 = i64(data[at + 26]) << 8 | i64(data[at + 27])
        names: i64 = at + 32
        vhost = data[names : names + vhost_bytes].decode()
        name = data[names + vhost_bytes : names + vhost_bytes + name_bytes].decode()
        index = log.new_index(queue_id, vhost, name, place_count(data, at), False)
        index.named = True

    def _ensure_resident(self, index: QueueIndex, number: i64) -> None:
        page = index.page(number // index.page_entries)
        if page is None or page.resident:
            return
        data = self._read(int(page.lsn), int(page.length))
        if not self.log.is_page(data, page.length):
            self.log.damage.report_message(index, -1, page.lsn)
            index.lose_page(page)
            return
        index.page_loaded(page, page_entries(data, 0), 1 << 62)

    def meet_damage(self) -> None:
        """Note that records are lost here. They may have ended a batch: its other frames are applied."""
        self._apply_waiting()
        self.hurt = True

    def salvage(self, data: bytes, start: i64, end: i64, lsn: i64) -> list[str]:
        """Apply the intact records of a damaged frame's payload; return the names of queues that lost something."""
        self.meet_damage()
        hurt: list[str] = []
        at: i64 = start
        end = trusted_end(self.log.checksum, data, start, end)
        while at < end:
            length: i64 = record_length(data, at)
            if data[at + 8] in KINDS and is_intact(self.log.checksum, data, at, length):
                self.record(data, at, length, lsn + at - start)
            else:
                self._note_hurt(data, at, length, hurt)
            at += padded(length)
        return hurt

    def _note_hurt(self, data: bytes, at: i64, length: i64, hurt: list[str]) -> None:
        """Note the queues that a damaged message was for, as far as it still says so."""
        if length < 40 or data[at + 8] != MESSAGE:
            return
        for place in range(min(int(place_count(data, at)), int(length - 24) // 16)):
            index = self.log.indexes.get(queue_id_of_place(data, at, place))
            if index is not None:
                index.damaged_count += 1
                hurt.append(f"'{index.name}' in vhost '{index.vhost}'")
