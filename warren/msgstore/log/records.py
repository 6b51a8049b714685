"""The bytes of the log: frames and records, written and read the fast way.

The byte tables are in ``msgstore.tools.format``, which declares the same with construct; golden files hold both to it.
All numbers are big-endian, every record starts at a multiple of 8, and the padding between records is zeros.

1. A record's crc covers all of the record after the crc itself: a message read on its own proves itself.
2. A frame's crc covers its header and all records: a frame is there whole, or it is not there.
3. Content is stored as it was received, frame by frame, so that neither storing nor delivering takes it apart.
4. A frame carries the first bytes of its store's random id: no publisher can write one into a message.
5. A frame has at most `FRAME_BYTES`, or one record. A batch that needs more has several frames, each but the last
   marked with `CONTINUED`; a reader applies them together or not at all (``replay.py (4)``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i16, i32, i64, u8

from warren.amqp.properties import expiration_ms_of, is_persistent
from warren.msgstore.log.checksum import change_behind
from warren.msgstore.log.message import Envelope, Message

if TYPE_CHECKING:
    from warren.msgstore.log.bodies_ahead import BodiesAhead

SEGMENT_MAGIC: Final = b"WARRNLOG"
FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 0
SEGMENT_HEADER_BYTES: Final = 64

FRAME_MAGIC: Final = b"WFRM"
FRAME_HEADER_BYTES: Final = 56
STORE_TAG_AT: Final = 44
STORE_TAG_BYTES: Final = 8
# In the word with the number of records: the batch continues in the next frame.
CONTINUED: Final = 1 << 31
# The limit of a payload, except for a single record. Records are limited by the size of a message: far below 4 GiB.
FRAME_BYTES: Final = 64 << 20

RECORD_HEAD_BYTES: Final = 16
MESSAGE_HEAD_BYTES: Final = 24
PAGE_HEAD_BYTES: Final = 32
PLACE_BYTES: Final = 16
PLACES_MAX: Final = 65535

MESSAGE: Final = 1
ACK: Final = 2
QUEUE: Final = 3
QUEUE_DELETED: Final = 4
PAGE: Final = 5
EPOCH: Final = 6
LIFE: Final = 7
FILLER: Final = 8

IGNORABLE: Final = 0x01
DROPPABLE: Final = 0x02
MOVED: Final = 0x04
TIMED: Final = 0x08
EXPIRES: Final = 0x10
DELIVERED: Final = 0x20
REPUBLISHED: Final = 0x40

TIME_BYTES: Final = 8
LIFE_ID_BYTES: Final = 16
# Lanes from here on have notes of the broker instead of messages, in the form of messages.
NOTES_FROM: Final = 260

# Contents from this size on are not copied into the frame but written from where they are.
CHUNK_MIN_BYTES: Final = 8192
# A frame is gathered in pieces of about this size: they stay in the processor's cache, and below the size from which
# the allocator takes fresh pages from the kernel for each.
PIECE_BYTES: Final = 65536
ENVELOPES_MAX: Final = 1024

_PADDING: Final = [bytes(size) for size in range(8)]

Checksum = Callable[[bytes, int], int]


def signed_word(value: i64) -> i32:
    """Return the 32 bits of `value` as `write_i32_be` wants them."""
    value &= 0xFFFFFFFF
    if value >= 0x80000000:
        value -= 0x100000000
    return i32(value)


def short_word(value: i64) -> i16:
    """Return the 16 bits of `value` as `write_i16_be` wants them."""
    if value >= 32768:
        value -= 65536
    return i16(value)


def unsigned_word(data: bytes, at: i64) -> i64:
    """Read 32 bits."""
    return i64(read_i32_be(data, at)) & 0xFFFFFFFF


def padded(length: i64) -> i64:
    """Return `length` rounded up to where the next record starts."""
    return (length + 7) & ~i64(7)


def segment_header(
    checksum: Checksum,
    algorithm: int,
    store_id: bytes,
    number: int,
    base_lsn: int,
    capacity: int,
    epoch: int,
) -> bytes:
    """Return the 64 bytes at the beginning of a segment file."""
    head = SEGMENT_MAGIC + FORMAT_MAJOR.to_bytes(2, "big") + FORMAT_MINOR.to_bytes(2, "big")
    head += bytes([algorithm, 0, 0, 0]) + store_id
    head += number.to_bytes(8, "big") + base_lsn.to_bytes(8, "big") + capacity.to_bytes(8, "big")
    head += epoch.to_bytes(4, "big")
    return head + checksum(head, 0).to_bytes(4, "big")


def frame_header(
    checksum: Checksum,
    chunks: list[bytes],
    payload_bytes: int,
    lsn: int,
    durable_lsn: int,
    time_ms: int,
    epoch: int,
    previous_crc: int,
    record_count: int,
    store_tag: bytes,
    is_continued: bool = False,
) -> bytes:
    """Return the 56 bytes in front of the payload `chunks`; the last four are the frame's crc.

    `store_tag`: the first 8 bytes of the store's id. `durable_lsn`: all below it is committed. `is_continued`: the next
    frame belongs to the same batch.
    """
    assert len(store_tag) == STORE_TAG_BYTES
    if is_continued:
        record_count |= CONTINUED
    head = FRAME_MAGIC + payload_bytes.to_bytes(4, "big") + lsn.to_bytes(8, "big") + durable_lsn.to_bytes(8, "big")
    head += time_ms.to_bytes(8, "big") + epoch.to_bytes(4, "big") + previous_crc.to_bytes(4, "big")
    head += record_count.to_bytes(4, "big") + store_tag
    crc = checksum(head, 0)
    for chunk in chunks:
        crc = checksum(chunk, crc)
    return head + crc.to_bytes(4, "big")


def head_bytes(message: Message, places: i64) -> i64:
    """Return the bytes of the record of a message with so many places before its content."""
    return MESSAGE_HEAD_BYTES + PLACE_BYTES * places + len(message.envelope.names)


class FramePayload:
    """The content of one frame."""

    def __init__(self, chunks: list[bytes], payload_bytes: i64, record_count: i64) -> None:
        self.chunks = chunks
        self.payload_bytes: i64 = payload_bytes
        self.record_count: i64 = record_count


class RecordBuffers:
    """The buffers of a `RecordWriter`: of all frames, and of one record. To grow them costs more than to fill them."""

    def __init__(self) -> None:
        self.out = BytesWriter()
        self.scratch = BytesWriter()


class RecordWriter:
    """The payload of the frame of a batch in the making, or of its frames: another one begins as (5) says.

    Positions are relative to the beginning of the first payload. The heads of further frames count as bytes of it.
    `buffers`: those of an earlier writer, which is done with.
    """

    def __init__(
        self, checksum: Checksum, frame_bytes: i64 = FRAME_BYTES, buffers: RecordBuffers | None = None
    ) -> None:
        self.payload_bytes: i64 = 0
        self.record_count: i64 = 0
        self.position: i64 = 0  # of the record that was written last
        self.bodies: BodiesAhead | None = None  # contents that have a place already
        self._frame_bytes: i64 = frame_bytes
        self._frame_start: i64 = 0  # where the payload of the last frame begins
        self._frame_records: i64 = 0  # records in earlier frames
        self._frames: list[FramePayload] = []  # those
        self._checksum = checksum
        # A record's checksum begins with 0, as without the second argument: one less to be made and parsed.
        self._checksum_of: Callable[..., int] = checksum
        if buffers is None:
            buffers = RecordBuffers()
        self._out = buffers.out
        self._out.truncate(0)
        self._scratch = buffers.scratch
        self._chunks: list[bytes] = []

    def take_frames(self) -> list[FramePayload]:
        """Return the payload of each frame; the writer is done with. There is one at least."""
        self._end_frame()
        return self._frames

    def _end_frame(self) -> None:
        chunks = self.take_chunks()
        self._chunks = []
        records: i64 = self.record_count - self._frame_records
        self._frames.append(FramePayload(chunks, self.payload_bytes - self._frame_start, records))
        self._frame_records = self.record_count

    def _place(self, length: i64) -> None:
        """Begin another frame if the next record, of `length` bytes, has no room in this one."""
        in_frame: i64 = self.payload_bytes - self._frame_start
        if in_frame + padded(length) > self._frame_bytes and in_frame > 0:
            self._end_frame()
            self.payload_bytes += FRAME_HEADER_BYTES
            self._frame_start = self.payload_bytes
        self.position = self.payload_bytes

    def take_chunks(self) -> list[bytes]:
        """Return the payload of the last frame; the writer is done with."""
        if len(self._out):
            self._chunks.append(self._out.getvalue())
            self._out.truncate(0)
        return self._chunks

    def message(self, message: Message, flags: i64, queue_ids: vec[i64], sequence_numbers: vec[i64]) -> i64:
        """Write a message that went to these places; return the length of its record."""
        envelope = message.envelope
        names = envelope.names
        content_bytes: i64 = message.content_bytes()
        places: i64 = len(queue_ids)
        length: i64 = MESSAGE_HEAD_BYTES + PLACE_BYTES * places + len(names) + content_bytes
        time_ms: i64 = message.time_ms
        if time_ms != 0:
            flags |= TIMED
            if message.expiration_ms >= 0:
                flags |= EXPIRES
            length += TIME_BYTES
        if message.attempts > 0:
            flags |= DELIVERED
        if message.republished:
            flags |= REPUBLISHED
        bodies = self.bodies
        planned: i64 = -1
        if bodies is not None and content_bytes >= CHUNK_MIN_BYTES:
            planned = bodies.position_of(message) - head_bytes(message, places)
            is_last: bool = planned + padded(length) > self._frame_start + self._frame_bytes
            self._fill_up_to(planned - FRAME_HEADER_BYTES if is_last else planned, bodies.gap_max())
        head = self._scratch
        head.truncate(0)
        # Two numbers of eight bytes for eight fields. Lengths have 31 bits: the highest bit is not that of a sign.
        key_bytes: i64 = envelope.routing_key_bytes
        write_i64_be(head, length << 32 | MESSAGE << 24 | flags << 16 | places)
        exchange_bytes: i64 = len(names) - key_bytes
        write_i64_be(head, message.frame_max_bytes << 32 | message.channel << 16 | exchange_bytes << 8 | key_bytes)
        write_i32_be(head, signed_word(content_bytes))
        place: i64 = 0
        while place < places:
            write_i64_be(head, queue_ids[place])
            write_i64_be(head, sequence_numbers[place])
            place += 1
        head.write(names)
        if content_bytes < CHUNK_MIN_BYTES:
            head.write(message.joined())
            if time_ms != 0:
                write_i64_be(head, time_ms)
            self._finish(length)
            return length
        start = head.getvalue()
        time = _time_bytes(time_ms) if time_ms != 0 else b""
        crc = self._checksum(start, 0)
        pieces = message.pieces
        if pieces is None:
            crc = self._checksum(message.content, crc)
        else:
            for piece in pieces:
                crc = self._checksum(piece, crc)
        if time:
            crc = self._checksum(time, crc)
        self._place(length)
        if bodies is not None and planned == self.position:
            bodies.placed += 1
        out = self._out
        write_i32_be(out, signed_word(crc))
        out.write(start)
        self._chunks.append(out.getvalue())
        if pieces is None:
            self._chunks.append(message.content)
        else:
            self._chunks.extend(pieces)
        out.truncate(0)
        out.write(time)
        self._count(length)
        return length

    def _fill_up_to(self, position: i64, gap_max: i64) -> None:
        """Write a record without a meaning that ends at `position`, if there is room for one, and not too much."""
        gap: i64 = position - self.payload_bytes
        if RECORD_HEAD_BYTES <= gap <= gap_max:
            head = self._head(FILLER, IGNORABLE, 0, 0, gap - RECORD_HEAD_BYTES)
            head.write(bytes(int(gap - RECORD_HEAD_BYTES)))
            self._finish(gap)

    def copy(
        self,
        record: bytes,
        flags: i64,
        queue_ids: vec[i64],
        sequence_numbers: vec[i64],
        pieces: list[bytes] | None = None,
    ) -> i64:
        """Write the MESSAGE `record` again with other flags, for these places only; return its length.

        `pieces`: what follows the places of a large record, which is intact. They are not looked through.
        """
        old_places: i64 = i64(read_i16_be(record, 10)) & 0xFFFF
        places: i64 = len(queue_ids)
        rest = record[MESSAGE_HEAD_BYTES + PLACE_BYTES * old_places :]
        rest_bytes: i64 = len(rest)
        if pieces is not None:
            for piece in pieces:
                rest_bytes += len(piece)
        length: i64 = MESSAGE_HEAD_BYTES + PLACE_BYTES * places + rest_bytes
        head = self._scratch
        head.truncate(0)
        write_i32_be(head, signed_word(length))
        head.append(MESSAGE)
        head.append(u8(flags))
        write_i16_be(head, short_word(places))
        head.write(record[12:MESSAGE_HEAD_BYTES])
        place: i64 = 0
        while place < places:
            write_i64_be(head, queue_ids[place])
            write_i64_be(head, sequence_numbers[place])
            place += 1
        if pieces is not None:
            assert len(rest) == 0
            start = head.getvalue()
            self._place(length)
            change = self._checksum(record[4:], 0) ^ self._checksum(start, 0)
            crc: i64 = unsigned_word(record, 0) ^ change_behind(self._checksum, change, int(rest_bytes))
            out = self._out
            write_i32_be(out, signed_word(crc))
            out.write(start)
            self._chunks.append(out.getvalue())
            self._chunks.extend(pieces)
            out.truncate(0)
            self._count(length)
            return length
        head.write(rest)
        self._finish(length)
        return length

    def acks(self, queue_id: i64, ranges: list[tuple[int, int]]) -> None:
        """Write which sequence numbers are gone: (first, count) each, ascending."""
        at: i64 = 0
        total: i64 = len(ranges)
        while at < total:
            end: i64 = at + PLACES_MAX
            if end > total:
                end = total
            head = self._head(ACK, 0, end - at, 0, 8 + PLACE_BYTES * (end - at))
            write_i64_be(head, queue_id)
            while at < end:
                first, count = ranges[at]
                write_i64_be(head, first)
                write_i64_be(head, count)
                at += 1
            self._finish(len(head) + 4)

    def ack_range(self, queue_id: i64, first: i64, count: i64) -> None:
        """Write that one range of sequence numbers is gone, as `acks` would."""
        head = self._head(ACK, 0, 1, 0, 8 + PLACE_BYTES)
        write_i64_be(head, queue_id)
        write_i64_be(head, first)
        write_i64_be(head, count)
        self._finish(RECORD_HEAD_BYTES + 8 + PLACE_BYTES)

    def queue(self, queue_id: i64, vhost: bytes, name: bytes, lane: i64, transient: bool) -> None:
        """Write the meaning of a queue id: vhost, name and lane."""
        head = self._head(QUEUE, DROPPABLE if transient else 0, lane, 0, 16 + len(vhost) + len(name))
        write_i64_be(head, queue_id)
        write_i16_be(head, short_word(len(vhost)))
        write_i16_be(head, short_word(len(name)))
        write_i32_be(head, 1 if transient else 0)
        head.write(vhost)
        head.write(name)
        self._finish(len(head) + 4)

    def queue_deleted(self, queue_id: i64) -> None:
        """Write that everything of a queue is gone."""
        head = self._head(QUEUE_DELETED, 0, 0, 0, 8)
        write_i64_be(head, queue_id)
        self._finish(len(head) + 4)

    def page(self, queue_id: i64, page_number: i64, entries: vec[i64], transient: bool) -> i64:
        """Write a page of the index; return the length of its record."""
        count: i64 = len(entries) // 2
        length: i64 = RECORD_HEAD_BYTES + 16 + 16 * count
        head = self._head(PAGE, DROPPABLE if transient else 0, count, 0, length - RECORD_HEAD_BYTES)
        write_i64_be(head, queue_id)
        write_i64_be(head, page_number)
        for word in entries:
            write_i64_be(head, word)
        self._finish(length)
        return length

    def epoch(self, epoch: i64, time_ms: i64) -> None:
        """Write that a process has begun to use the store."""
        head = self._head(EPOCH, 0, 0, epoch, 8)
        write_i64_be(head, time_ms)
        self._finish(len(head) + 4)

    def life(self, epoch: i64, life_id: bytes) -> None:
        """Write the id of the life that this epoch is. Nodes of earlier versions may skip it."""
        assert len(life_id) == LIFE_ID_BYTES
        head = self._head(LIFE, IGNORABLE, 0, epoch, LIFE_ID_BYTES)
        head.write(life_id)
        self._finish(len(head) + 4)

    def _head(self, kind: i64, flags: i64, count: i64, word: i64, rest_bytes: i64) -> BytesWriter:
        head = self._scratch
        head.truncate(0)
        write_i32_be(head, signed_word(RECORD_HEAD_BYTES + rest_bytes))
        head.append(u8(kind))
        head.append(u8(flags))
        write_i16_be(head, short_word(count))
        write_i32_be(head, signed_word(word))
        return head

    def _finish(self, length: i64) -> None:
        record = self._scratch.getvalue()
        assert len(record) + 4 == length
        self._place(length)
        write_i32_be(self._out, signed_word(self._checksum_of(record)))
        self._out.write(record)
        self._count(length)

    def _count(self, length: i64) -> None:
        self.record_count += 1
        self.payload_bytes += padded(length)
        gap: i64 = padded(length) - length
        out = self._out
        if gap > 0:
            out.write(_PADDING[gap])
        if len(out) >= PIECE_BYTES:
            self._chunks.append(out.getvalue())
            out.truncate(0)


# --- reading ----------------------------------------------------------------------------------------------------------


def record_length(data: bytes, at: i64) -> i64:
    """Return the length of the record at `at`, or 0 when it cannot lie there whole."""
    if at + RECORD_HEAD_BYTES > len(data):
        return 0
    length: i64 = unsigned_word(data, at + 4)
    if length < RECORD_HEAD_BYTES or at + length > len(data):
        return 0
    return length


def is_intact(checksum: Checksum, data: bytes, at: i64, length: i64) -> bool:
    """Check the crc of the record at `at`."""
    expected: i64 = checksum(data[at + 4 : at + length], 0)
    return expected == unsigned_word(data, at)


def place_count(data: bytes, at: i64) -> i64:
    """Return the number of places that the MESSAGE record at `at` went to."""
    return i64(read_i16_be(data, at + 10)) & 0xFFFF


def names_of(data: bytes, at: i64) -> i64:
    """Return where the names of the MESSAGE record at `at` begin, after its places."""
    return at + MESSAGE_HEAD_BYTES + PLACE_BYTES * place_count(data, at)


def queue_id_of_place(data: bytes, at: i64, place: i64) -> i64:
    return read_i64_be(data, at + MESSAGE_HEAD_BYTES + PLACE_BYTES * place)


def sequence_number_of_place(data: bytes, at: i64, place: i64) -> i64:
    return read_i64_be(data, at + MESSAGE_HEAD_BYTES + PLACE_BYTES * place + 8)


def body_bytes_of(data: bytes, at: i64) -> i64:
    """Return the body size of the MESSAGE record at `at`, which its content header announces."""
    content: i64 = _content_start(data, at)
    return read_i64_be(data, content + 11)


def _content_start(data: bytes, at: i64) -> i64:
    return at + MESSAGE_HEAD_BYTES + PLACE_BYTES * place_count(data, at) + i64(data[at + 18]) + i64(data[at + 19])


class MessageReader:
    """Makes messages of records. Messages of the same route share their envelope."""

    def __init__(self) -> None:
        self._envelopes: dict[bytes, Envelope] = {}

    def message(self, data: bytes, at: i64) -> Message:
        """Return the message of the intact MESSAGE record at `at`."""
        names: i64 = at + MESSAGE_HEAD_BYTES + PLACE_BYTES * place_count(data, at)
        exchange_end: i64 = names + i64(data[at + 18])
        content: i64 = exchange_end + i64(data[at + 19])
        key = data[at + 18 : at + 20] + data[names:content]
        envelope = self._envelopes.get(key)
        if envelope is None:
            envelope = Envelope(data[names:exchange_end].decode(), data[exchange_end:content].decode())
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes = {}
            self._envelopes[key] = envelope
        flags: i64 = data[at + 9]
        content_end: i64 = content + unsigned_word(data, at + 20)
        message = Message(
            envelope,
            data[content:content_end],
            i64(read_i16_be(data, at + 16)) & 0xFFFF,
            read_i64_be(data, content + 11),
            unsigned_word(data, at + 12),
            flags & DROPPABLE == 0,
        )
        if flags & DROPPABLE:
            # From a transient queue perhaps: in the next queue it is as persistent as it was published.
            message.persistent = is_persistent(message.header_payload())
        if flags & TIMED:
            message.time_ms = read_i64_be(data, content_end)
            if flags & EXPIRES:
                message.expiration_ms = expiration_ms_of(message.header_payload())
        if flags & DELIVERED:
            message.attempts = 1
        if flags & REPUBLISHED:
            message.republished = True
        return message

    def large_message(self, pieces: list[bytes]) -> Message:
        """Return the message of an intact MESSAGE record in `pieces`, the first of which has all places."""
        head = pieces[0]
        content: i64 = names_of(head, 0)
        if content + 512 <= len(head):
            content = _content_start(head, 0)
            header_end: i64 = content + 8 + unsigned_word(head, content + 3)
            if header_end <= len(head):
                return self._message_in_pieces(pieces, content, header_end)
        return self.message(b"".join(pieces), 0)

    def _message_in_pieces(self, pieces: list[bytes], content: i64, header_end: i64) -> Message:
        """Make it of the record without its body; the body is between the two parts."""
        head = pieces[0]
        left: i64 = unsigned_word(head, 20) - (header_end - content)
        kept = [head[content:header_end]]
        rest: list[bytes] = []
        start: i64 = header_end
        for piece in pieces:
            end: i64 = start + left
            if end > len(piece):
                end = len(piece)
            if end > start:
                kept.append(piece if start == 0 and end == len(piece) else piece[start:end])
                left -= end - start
            if end < len(piece):
                rest.append(piece[end:])
            start = 0
        header = header_end - content
        record = head[:20] + int(header).to_bytes(4, "big") + head[24:header_end] + b"".join(rest)
        message = self.message(record, 0)
        message.take_frames(b"", kept)
        return message


def time_of(data: bytes, at: i64) -> i64:
    """Return the time in the MESSAGE record at `at`, 0 without one."""
    if data[at + 9] & TIMED == 0:
        return 0
    return read_i64_be(data, _content_start(data, at) + unsigned_word(data, at + 20))


def _time_bytes(time_ms: i64) -> bytes:
    out = BytesWriter()
    write_i64_be(out, time_ms)
    return out.getvalue()


def page_entries(data: bytes, at: i64) -> vec[i64]:
    """Return the words of the intact PAGE record at `at`, two an entry."""
    words: i64 = 2 * place_count(data, at)
    entries = vec[i64]()
    pos: i64 = at + PAGE_HEAD_BYTES
    while words > 0:
        entries = append(entries, read_i64_be(data, pos))
        pos += 8
        words -= 1
    return entries
