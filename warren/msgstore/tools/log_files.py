"""The files of a store, read one frame at a time, whatever state they are in.

1. Reading changes nothing and stops at nothing: damaged bytes and read errors are things found, not exceptions.
2. A frame is `IntactFrame` when its bytes are all there: magic, LSN, store tag, length and crc agree. Other bytes
   between intact frames are a `Gap`, except for zeros up to the end of the file.
3. After damage the next frame is searched for where the damaged one says it ends, and only when none is there at every
   multiple of 8: a message may hold bytes that look like a frame.
4. A frame head with the tag of another store does not count, whatever its crc says; the crc is not even checked. A gap
   tells where the first such head in it is: a publisher put it there, it is from a file of another store, or its tag
   corrupted. A tag of zeros was never written: that is half a head, as a torn write leaves it.
5. Memory holds one frame.

It does not judge whether a gap is the torn end of the log or corruption: only later frames tell that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from types import TracebackType
from typing import Any, Final

from warren.amqp.methods import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD_BYTES
from warren.amqp.properties import MIN_HEADER_BYTES
from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.quarantine import QUARANTINE
from warren.msgstore.files.segment_names import CHECKPOINT, LOG, maybe_segment_number, segment_path
from warren.msgstore.log.checksum import checksum
from warren.msgstore.tools.format import (
    ACK,
    ALIGNMENT_BYTES,
    CONTINUED,
    EXPIRES,
    FRAME_HEAD_BYTES,
    FRAME_MAGIC,
    IGNORABLE,
    KINDS,
    MESSAGE,
    PAGE,
    SEGMENT_HEADER_BYTES,
    STORE_TAG_BYTES,
    TIMED,
    FormatError,
    Record,
    SegmentHeader,
)
from warren.msgstore.tools.lines import UnreadableStore

# Segments in the making: a crash leaves them, the next start removes them.
UNFINISHED: Final = frozenset({"spare", "new", "ahead"})

RECORD_HEAD_BYTES: Final = 16
# Magic, payload bytes, LSN, durable LSN, time, epoch, previous crc, record count, store tag, crc.
_FRAME_HEAD: Final = Struct(">4sIQQQIII8sI")
# Crc, length, kind, flags, count.
_RECORD_HEAD: Final = Struct(">IIBBH")
# Padding of the head, frame_max_bytes, channel, exchange bytes, routing key bytes, content bytes.
_MESSAGE_HEAD: Final = Struct(">12sIHBBI")
_AMQP_FRAME_HEAD: Final = Struct(">BHI")
# Where the 16-byte items of a counted record begin.
_COUNTED_FROM: Final = {ACK: 24, PAGE: 32}
_CHUNK_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class IntactFrame:
    """A frame whose crc is right."""

    segment: int
    lsn: int
    payload: bytes
    durable_lsn: int
    time_ms: int
    epoch: int
    previous_crc: int
    record_count: int
    is_continued: bool
    crc: int

    @property
    def end_lsn(self) -> int:
        return self.payload_lsn + len(self.payload)

    @property
    def payload_lsn(self) -> int:
        return self.lsn + FRAME_HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes where a frame should be and no intact one is. `is_last`: no intact frame follows in the segment.

    `foreign_lsn`: where the first frame head is that has the tag of another store.
    """

    segment: int
    lsn: int
    end_lsn: int
    reason: str
    is_last: bool
    foreign_lsn: int | None


@dataclass(frozen=True, slots=True)
class RecordAt:
    """A record in the payload of a frame. `fault` is what is wrong with it, None for an intact one."""

    offset: int
    length: int
    kind: int
    flags: int
    count: int
    fault: str | None


class SegmentFile:
    """One open segment file. `header` is None when it cannot be used, and `fault` says why."""

    def __init__(self, fs: FileSystem, number: int, header: Any = None, unread: set[str] | None = None) -> None:
        """Open segment `number`; `header` is taken for the one in the file. `unread`: gets its path if a read fails."""
        self.number = number
        self.path = segment_path(number)
        self.header = header
        self.fault: str | None = None
        self._fs = fs
        self._unread = set() if unread is None else unread
        self._handle = fs.open(self.path, writable=False)
        self.size = fs.size(self._handle)
        if header is None:
            self._read_header()

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fs.close(self._handle)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at `offset`: fewer where the file ends, none where the disk cannot read."""
        try:
            return read_exactly(self._fs, self._handle, length, offset)
        except OSError:
            self._unread.add(self.path)
            return b""

    def range(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, fewer where it ends, with zeros where the disk cannot read."""
        length = min(length, self.size - offset)
        piece = self.read(offset, length)
        if len(piece) < length:
            starts = range(offset, offset + length, _BLOCK_BYTES)
            blocks = [self.read(start, min(_BLOCK_BYTES, offset + length - start)) for start in starts]
            piece = b"".join(block.ljust(_BLOCK_BYTES, b"\0") for block in blocks)[:length]
        return piece

    def frames(self) -> Iterator[IntactFrame | Gap]:
        """Yield all intact frames in order, and the gaps between them."""
        offset = SEGMENT_HEADER_BYTES
        while True:
            found = self.frame_at(offset)
            if isinstance(found, IntactFrame):
                yield found
                offset = self._offset(found.end_lsn)
                continue
            if self._is_zero_from(offset):
                return
            following = self._frame_behind(offset)
            end = self.size if following is None else following
            foreign = next((at for at in self._heads(offset, end) if self._is_foreign(at)), None)
            foreign_lsn = None if foreign is None else self._lsn(foreign)
            yield Gap(self.number, self._lsn(offset), self._lsn(end), found, following is None, foreign_lsn)
            if following is None:
                return
            offset = following

    def crc(self, data: bytes, previous: int = 0) -> int:
        """Return the checksum of `data` by the algorithm of this file."""
        return checksum(self.header.algorithm, data, previous)

    def records(self, payload: bytes) -> Iterator[RecordAt]:
        """Yield the records of a frame; the last one may be all that cannot be a record."""
        offset = 0
        while offset < len(payload):
            record = self.record(payload, offset)
            yield record
            offset += record.length + -record.length % ALIGNMENT_BYTES

    def record(self, payload: bytes, offset: int) -> RecordAt:
        """Look at the record at `offset`; one whose length is impossible is the rest of `payload`."""
        rest = len(payload) - offset
        if rest < RECORD_HEAD_BYTES:
            return RecordAt(offset, rest, 0, 0, 0, "shorter than the head of a record")
        crc, length, kind, flags, count = _RECORD_HEAD.unpack_from(payload, offset)
        if not RECORD_HEAD_BYTES <= length <= rest:
            return RecordAt(offset, rest, kind, flags, count, f"impossible record length {length}")
        data = payload[offset : offset + length]
        fault = None
        if self.crc(data[4:]) != crc:
            fault = "wrong record crc"
        elif kind not in KINDS:
            fault = None if flags & IGNORABLE else f"unknown record kind {kind}"
        else:
            fault = self._structure_fault(data, kind, count)
        if fault is None and any(payload[offset + length : offset + length + -length % ALIGNMENT_BYTES]):
            fault = "padding that is not zeros"
        return RecordAt(offset, length, kind, flags, count, fault)

    def _structure_fault(self, data: bytes, kind: int, count: int) -> str | None:
        # The frequent kinds without construct: a log holds tens of millions of them.
        if kind == MESSAGE:
            return _message_fault(data, count)
        if kind in _COUNTED_FROM:
            expected = _COUNTED_FROM[kind] + 16 * count
            return None if len(data) == expected else f"{count} entries in {len(data)} bytes"
        try:
            Record.parse(data, algorithm=self.header.algorithm)
        except FormatError as error:
            return _one_line(error)
        return None

    def _read_header(self) -> None:
        try:
            header = SegmentHeader.parse(self.read(0, SEGMENT_HEADER_BYTES))
        except FormatError as error:
            self.fault = f"segment header: {_one_line(error)}"
            return
        if header.segment != self.number:
            self.fault = f"segment header: it is that of segment {header.segment}"
            return
        self.header = header

    @property
    def _store_tag(self) -> bytes:
        return bytes(self.header.store_id[:STORE_TAG_BYTES])

    def _lsn(self, offset: int) -> int:
        return int(self.header.base_lsn) + offset

    def _offset(self, lsn: int) -> int:
        return lsn - int(self.header.base_lsn)

    def frame_at(self, offset: int) -> IntactFrame | str:
        """Return the frame at `offset`, or the reason why it cannot be read."""
        head = self.read(offset, FRAME_HEAD_BYTES)
        if len(head) < FRAME_HEAD_BYTES:
            return "the file ends in a frame head" if offset + len(head) >= self.size else "unreadable"
        fields = _FRAME_HEAD.unpack(head)
        magic, payload_bytes, lsn, durable_lsn, time_ms, epoch, previous_crc, record_count, tag, crc = fields
        if magic != FRAME_MAGIC:
            return "no frame magic"
        if lsn != self._lsn(offset):
            return f"the frame is that of LSN {lsn}"
        if tag != self._store_tag:
            return f"the frame is that of another store, with the tag {tag.hex()}" if any(tag) else "half a frame head"
        if payload_bytes % ALIGNMENT_BYTES:
            return "impossible frame head"
        if offset + FRAME_HEAD_BYTES + payload_bytes > min(self.size, self.header.capacity):
            return "the frame does not fit into the segment"
        payload = self.read(offset + FRAME_HEAD_BYTES, payload_bytes)
        if len(payload) < payload_bytes:
            return "unreadable"
        if self.crc(payload, self.crc(head[:-4])) != crc:
            return "wrong frame crc"
        return IntactFrame(
            self.number,
            lsn,
            payload,
            durable_lsn,
            time_ms,
            epoch,
            previous_crc,
            record_count & ~CONTINUED,
            record_count & CONTINUED != 0,
            crc,
        )

    def _is_zero_from(self, offset: int) -> bool:
        while offset < self.size:
            data = self.read(offset, _CHUNK_BYTES)
            if not data or data.count(0) != len(data):
                return False
            offset += len(data)
        return True

    def _frame_behind(self, damaged: int) -> int | None:
        """Return the offset of the first intact frame after a damaged one."""
        head = self.read(damaged, FRAME_HEAD_BYTES)
        if head[:4] == FRAME_MAGIC and len(head) == FRAME_HEAD_BYTES:
            announced = damaged + FRAME_HEAD_BYTES + int.from_bytes(head[4:8], "big")
            if isinstance(self.frame_at(announced), IntactFrame):
                return announced
        for offset in self._heads(damaged + ALIGNMENT_BYTES, self.size):
            if isinstance(self.frame_at(offset), IntactFrame):
                return offset
        return None

    def _heads(self, offset: int, end: int) -> Iterator[int]:
        """Yield the offsets from `offset` up to `end` where the magic of a frame stands, and a frame might."""
        while offset < end:
            # Continue after a bad block: unreadable bytes do not hold a frame.
            data = self.read(offset, min(_CHUNK_BYTES, end - offset))
            at = data.find(FRAME_MAGIC)
            while at >= 0:
                if at % ALIGNMENT_BYTES == 0:
                    yield offset + at
                at = data.find(FRAME_MAGIC, at + 1)
            offset += len(data) - len(data) % ALIGNMENT_BYTES or _BLOCK_BYTES

    def _is_foreign(self, offset: int) -> bool:
        """Tell whether the frame head at `offset` is right for its place, but for another store."""
        head = self.read(offset, FRAME_HEAD_BYTES)
        if len(head) < FRAME_HEAD_BYTES:
            return False
        _, _, lsn, *_, tag, _ = _FRAME_HEAD.unpack(head)
        return lsn == self._lsn(offset) and tag != self._store_tag and any(tag)


class StoreFiles:
    """The files of a store, in the directory ``messages`` of a data directory, which is the root of `fs`.

    `headers` stand in for headers that cannot be used. `trusts_copies`: damage of which a copy is in the quarantine was
    told before.
    """

    def __init__(self, fs: FileSystem) -> None:
        """List the files of the log. Raises UnreadableStore when the message store does not exist."""
        self.fs = fs
        self.trusts_copies = True
        self.unread: set[str] = set()  # files of the log of which the disk did not give something
        self.headers: dict[int, Any] = {}
        try:
            names = fs.names(LOG)
        except FileNotFoundError:
            raise UnreadableStore(f"no message store: messages/{LOG} is missing") from None
        except OSError as error:
            raise UnreadableStore(f"messages/{LOG}: {os.strerror(error.errno or 0)}") from None
        self.segments = [number for name in names if (number := maybe_segment_number(name)) is not None]
        self.highest_number = max(self.segments, default=0)
        self.others = [name for name in names if maybe_segment_number(name) is None and name not in UNFINISHED]

    def segment(self, number: int, header: Any = None) -> SegmentFile:
        """Open a segment; `header` stands in for the one in the file.

        Raises UnreadableStore: the file is missing, or this user may not read it.
        """
        try:
            return SegmentFile(self.fs, number, header or self.headers.get(number), self.unread)
        except OSError as error:
            self.unread.add(segment_path(number))
            raise UnreadableStore(f"messages/{segment_path(number)}: {os.strerror(error.errno or 0)}") from None

    def quarantined(self) -> list[str]:
        """Return the names of files that were put aside, as far as that counts."""
        try:
            return self.fs.names(QUARANTINE) if self.trusts_copies else []
        except OSError:
            return []

    def maybe_checkpoint(self) -> bytes | None:
        """Return the content of the checkpoint file, None without one.

        Raises UnreadableStore: it cannot be read.
        """
        try:
            handle = self.fs.open(CHECKPOINT, writable=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnreadableStore(f"messages/{CHECKPOINT}: {os.strerror(error.errno or 0)}") from None
        try:
            return read_exactly(self.fs, handle, self.fs.size(handle), 0)
        except OSError:
            self.unread.add(CHECKPOINT)
            return b""
        finally:
            self.fs.close(handle)


def _message_fault(data: bytes, count: int) -> str | None:
    """Return the structural fault of a MESSAGE record whose crc is right."""
    if len(data) < _MESSAGE_HEAD.size or count == 0:
        return "a message without a place"
    frame_max_bytes, channel, exchange_bytes, routing_key_bytes, content_bytes = _MESSAGE_HEAD.unpack_from(data)[1:]
    names = _MESSAGE_HEAD.size + 16 * count
    content = names + exchange_bytes + routing_key_bytes
    time_bytes = 8 if data[9] & TIMED else 0
    if len(data) != content + content_bytes + time_bytes:
        return "the lengths in a message do not add up"
    if data[9] & EXPIRES and not time_bytes:
        return "a message expires and has no time"
    try:
        data[names : names + exchange_bytes].decode()
        data[names + exchange_bytes : content].decode()
    except UnicodeDecodeError:
        return "exchange or routing key is not UTF-8"
    at, body_bytes, expected, largest = content, -1, FRAME_HEADER, 0
    announced = 0
    content_end = content + content_bytes
    while at + FRAME_OVERHEAD_BYTES <= content_end:
        kind, number, size = _AMQP_FRAME_HEAD.unpack_from(data, at)
        end = at + FRAME_OVERHEAD_BYTES + size
        if kind != expected or number != channel or end > content_end or data[end - 1] != FRAME_END:
            return "the content is not whole AMQP frames"
        if expected == FRAME_HEADER:
            if size < MIN_HEADER_BYTES:
                return "the content header is too short"
            announced = int.from_bytes(data[at + 11 : at + 19], "big")
            body_bytes, expected = 0, FRAME_BODY
        else:
            body_bytes += size
        largest = max(largest, end - at)
        at = end
    if at != content_end or body_bytes != announced:
        return "the content is not as long as its header says"
    return "a frame in the content is larger than the message says" if largest > frame_max_bytes else None


def _one_line(error: Exception) -> str:
    """Return the text of a grammar error, without the path of the field that construct puts first."""
    return str(error).strip().splitlines()[-1]
