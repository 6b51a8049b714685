"""Messages as columns: the form in which a range of a queue leaves the broker, for readers of many at a time.

    chunk, all integers little-endian, as Arrow has them: a head of 192 bytes, then the parts, each at a multiple of 64
         0   8  magic "WARRNCOL"
         8   2  major = 1             another one is refused
        10   1  compression           of each part by itself, where it has become smaller: 0 none, 1 zstd
        11   1  flags                 0x01 SPARSE      there is a part of offsets; else they are first, first + 1, ...
                                      0x02 FILTERED    the filter is set; else the chunk must be read to know
                                      0x04 UNFILTERED  with FILTERED: some messages have no such value
                                      0x08 COMPACTED   missing offsets were removed by compaction, and are not lost
                                      0x10 COUNTED     x-delivery-count in a message's headers is its queue's count;
                                                       without it is 0
        12   4  count                 of messages
        16   8  first                 the chunk stands for the offsets from here
        24   8  end                   to here; those that it does not have are gone, or cannot be read
        32   8  min_time_us           of its messages, since the Unix epoch
        40   8  max_time_us
        48   4  route_count
        52   4  zero
        56  72  parts: bytes here u32, bytes when uncompressed u32; in this order, an absent one has 0
                     OFFSETS         i64 each, ascending
                     TIMES           i64 each, microseconds since the Unix epoch: when it was published
                     FLAGS           u8 each: 0x01 REDELIVERED; absent when all are 0
                     ROUTES          u16 each, number in the table of names; absent when there is one route
                     NAMES           i32 each + 1: where each begins, then UTF-8: exchange, routing key of route 0, ...
                     BODY_ENDS       i32 each + 1: where each body begins in BODIES; the last is where they end
                     BODIES
                     PROPERTY_ENDS   i32 each + 1, as of bodies
                     PROPERTIES      property flags u16 and property list, as in the content header (big-endian)
       128  48  filter                with FILTERED: a Bloom filter of the values that messages are filtered by, four
                                      bits a value: (a + n b) mod 384, a = CRC-32 of it, b = CRC-32 continued from
                                      0x9747b28c, made odd
       176   8  mark                  where chunks lie in files: proves that the store put the chunk in this place;
                                      zero elsewhere
       184   4  crc                   CRC-32 (zlib) of everything after the head, padding too
       188   4  crc                   CRC-32 of bytes 0..187

1. A part is an Arrow buffer as it lies there: reading bodies alone never looks at single messages.
2. A chunk proves itself, and its head says where it ends: chunks stand one after the other in files and answers.
3. The body of a large message goes into a chunk uncopied, all the way from the message to the socket or the file.
4. The reader chooses which columns are left out: BODY_ENDS and BODIES, or PROPERTY_ENDS and PROPERTIES, may be absent.

Source of the layout: the Arrow columnar format, for primitive and variable-size binary arrays.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from librt.strings import (
    BytesWriter,
    read_i16_le,
    read_i32_be,
    read_i32_le,
    read_i64_le,
    write_i16_le,
    write_i32_le,
    write_i64_le,
)
from librt.vecs import append, vec
from mypy_extensions import i16, i32, i64, u8

from warren.msgstore.log.message import HEADER_AT, Envelope, Message

CHUNK_MAGIC: Final = b"WARRNCOL"
CHUNK_MAJOR: Final = 1
CHUNK_HEAD_BYTES: Final = 192
ALIGNMENT_BYTES: Final = 64

SPARSE: Final = 0x01
FILTERED: Final = 0x02
UNFILTERED: Final = 0x04
COMPACTED: Final = 0x08
COUNTED: Final = 0x10
REDELIVERED: Final = 0x01

UNCOMPRESSED: Final = 0
ZSTD: Final = 1

# The parts, in their order.
OFFSETS: Final = 0
TIMES: Final = 1
FLAGS: Final = 2
ROUTES: Final = 3
NAMES: Final = 4
BODY_ENDS: Final = 5
BODIES: Final = 6
PROPERTY_ENDS: Final = 7
PROPERTIES: Final = 8
PART_COUNT: Final = 9

# When a chunk is full: these many messages, or bytes of bodies and properties. A larger message has one of its own.
CHUNK_MESSAGES: Final = 16384
CHUNK_BYTES: Final = 4 << 20

# A body of this size is not copied, unless it came in pieces that are hardly larger than a reference to one.
LARGE_BODY_BYTES: Final = 1 << 20
_PIECE_BYTES_MIN: Final = 2048

FILTER_BYTES: Final = 48
MARK_BYTES: Final = 8
_FILTER_AT: Final = 128
_MARK_AT: Final = 176
_PARTS_AT: Final = 56
_CRC_AT: Final = 184
_FLAGS_AT: Final = 12  # in the payload of a content header: after class, weight and body size
_PADDING: Final = bytes(ALIGNMENT_BYTES)
# Below, a part is hardly worth it.
COMPRESSED_FROM_BYTES: Final = 128
_FILTER_HASHES: Final = 4
_SECOND_SEED: Final = 0x9747B28C


# Some bytes of a chunk, or of a body that lies elsewhere.
Piece = bytes | memoryview


class ColumnsWriter:
    """A chunk in the making. `bodies`, `properties`: whether the chunk has those columns.

    `counted`: the messages are of a queue that counts their deliveries.
    """

    def __init__(
        self, *, bodies: bool = True, properties: bool = True, compacted: bool = False, counted: bool = False
    ) -> None:
        self._is_compacted: bool = compacted
        self._is_counted: bool = counted
        self.count: i64 = 0
        self.content_bytes: i64 = 0  # of bodies and properties
        self._has_bodies: bool = bodies
        self._has_properties: bool = properties
        # Offsets, flags and routes are begun with the first message that needs them: most chunks do without.
        self._first: i64 = 0
        self._offsets = BytesWriter()
        self._times = BytesWriter()
        self._flags = BytesWriter()
        self._routes = BytesWriter()
        self._envelopes: dict[Envelope, int] = {}
        self._latest: Envelope | None = None
        self._latest_route: i64 = 0
        self._body_ends = BytesWriter()
        self._bodies = BytesWriter()
        self._earlier_bodies: list[Piece] = []  # the parts before those
        self._earlier_bytes: i64 = 0
        self._property_ends = BytesWriter()
        self._properties = BytesWriter()
        self._min_time_us: i64 = 0
        self._max_time_us: i64 = 0
        self._filter = bytearray(FILTER_BYTES)
        self._is_filtered: bool = False
        self._any_unfiltered: bool = False
        write_i32_le(self._body_ends, 0)
        write_i32_le(self._property_ends, 0)

    def is_full(self) -> bool:
        """Tell whether the next message belongs into another chunk."""
        return self.count >= CHUNK_MESSAGES or self.content_bytes >= CHUNK_BYTES

    def add(self, offset: i64, message: Message, redelivered: bool) -> None:
        """Add a message; offsets ascend."""
        time_us: i64 = message.time_ms * 1000
        write_i64_le(self._times, time_us)
        if self.count == 0:
            self._first = offset
            self._min_time_us = time_us
            self._max_time_us = time_us
        elif time_us > self._max_time_us:
            self._max_time_us = time_us
        elif time_us < self._min_time_us:
            self._min_time_us = time_us
        if offset != self._first + self.count or len(self._offsets) > 0:
            self._add_offset(offset)
        if redelivered or len(self._flags) > 0:
            self._add_flags(REDELIVERED if redelivered else 0)
        envelope = message.envelope
        if envelope is not self._latest:
            self._latest = envelope
            self._latest_route = self._envelopes.setdefault(envelope, len(self._envelopes))
        if self._latest_route > 0 or len(self._routes) > 0:
            self._add_route()
        header = message.header_frame()
        header_bytes: i64 = i64(read_i32_be(header, 3)) & 0xFFFFFFFF
        if self._has_bodies:
            if message.body_bytes >= LARGE_BODY_BYTES and _is_coarse(message, header_bytes):
                self._refer_to_body(message)
            else:
                self._add_body(message.joined(), 8 + header_bytes)
            write_i32_le(self._body_ends, i32(self._earlier_bytes + len(self._bodies)))
        if self._has_properties:
            self._properties.write(header[HEADER_AT + _FLAGS_AT : HEADER_AT + header_bytes])
            write_i32_le(self._property_ends, i32(len(self._properties)))
        self.count += 1
        self.content_bytes += header_bytes + message.body_bytes

    def _add_offset(self, offset: i64) -> None:
        if len(self._offsets) == 0:
            _write_offsets(self._offsets, self._first, self.count)
        write_i64_le(self._offsets, offset)

    def _add_flags(self, flags: i64) -> None:
        if len(self._flags) == 0:
            self._flags.write(bytes(int(self.count)))
        self._flags.append(u8(flags))

    def _add_route(self) -> None:
        if len(self._routes) == 0:
            self._routes.write(bytes(int(2 * self.count)))
        route: i64 = self._latest_route
        write_i16_le(self._routes, i16(route if route < 32768 else route - 65536))

    def _add_body(self, content: bytes, start: i64) -> None:
        """Add a body out of its frames, the first of which is at `start`."""
        end: i64 = len(content)
        pos: i64 = start
        while pos < end:
            size: i64 = i64(read_i32_be(content, pos + 3)) & 0xFFFFFFFF
            self._bodies.write(content[pos + 7 : pos + 7 + size])
            pos += 8 + size

    def _refer_to_body(self, message: Message) -> None:
        """Add a body where it lies."""
        if len(self._bodies) > 0:
            self._earlier_bodies.append(self._bodies.getvalue())
            self._earlier_bytes += len(self._bodies)
            self._bodies = BytesWriter()
        self._earlier_bodies += message.body_parts(message.body_bytes)
        self._earlier_bytes += message.body_bytes

    def filter_by(self, value: str | None) -> None:
        """Note the filter value of the message that was added last; None: it has none. For all messages or none."""
        self._is_filtered = True
        if value is None:
            self._any_unfiltered = True
        else:
            add_to_filter(self._filter, value)

    def finish(self, first: i64, end: i64) -> Columns:
        """Return the chunk, which stands for the offsets from `first` up to `end`; add nothing after that."""
        flags: i64 = COMPACTED if self._is_compacted else 0
        if self._is_counted:
            flags |= COUNTED
        parts: list[bytes] = [b""] * PART_COUNT  # of the bodies: the part after the earlier ones
        if self.count != end - first:
            flags |= SPARSE
            if len(self._offsets) == 0:
                _write_offsets(self._offsets, self._first, self.count)
            parts[OFFSETS] = self._offsets.getvalue()
        parts[TIMES] = self._times.getvalue()
        parts[FLAGS] = self._flags.getvalue()
        parts[ROUTES] = self._routes.getvalue()
        parts[NAMES] = _names(list(self._envelopes))
        if self._has_bodies:
            parts[BODY_ENDS] = self._body_ends.getvalue()
            parts[BODIES] = self._bodies.getvalue()
        if self._has_properties:
            parts[PROPERTY_ENDS] = self._property_ends.getvalue()
            parts[PROPERTIES] = self._properties.getvalue()
        if self._is_filtered:
            flags |= FILTERED
            if self._any_unfiltered:
                flags |= UNFILTERED
        head = BytesWriter()
        write_i32_le(head, i32(self.count))
        write_i64_le(head, first)
        write_i64_le(head, end)
        write_i64_le(head, self._min_time_us)
        write_i64_le(head, self._max_time_us)
        write_i32_le(head, i32(len(self._envelopes)))
        write_i32_le(head, 0)
        return Columns(flags, head.getvalue(), parts, bytes(self._filter), self._earlier_bodies, self.content_bytes)


class Columns:
    """A chunk that is complete, except for its checksums: `encode` makes the bytes, in any thread."""

    def __init__(
        self, flags: i64, numbers: bytes, parts: list[bytes], bits: bytes, earlier_bodies: list[Piece], size: i64
    ) -> None:
        self.content_bytes: i64 = size  # of bodies and properties
        self._flags: i64 = flags
        self._numbers = numbers  # bytes 12 to 55 of the head
        self._parts = parts
        self._bits = bits
        self._earlier_bodies = earlier_bodies

    def encode(self, compress: Callable[[bytes], bytes] | None = None, mark: bytes = bytes(MARK_BYTES)) -> list[Piece]:
        """Return the chunk in pieces. `compress`: as zstd does it; a part that does not get smaller stays as it is."""
        sizes = BytesWriter()
        pieces: list[Piece] = []
        compression: i64 = UNCOMPRESSED
        crc = 0
        for at, part in enumerate(self._parts):
            stored: list[Piece] = [part] if part else []
            if at == BODIES:
                stored = self._earlier_bodies + stored
            whole_bytes = sum([len(piece) for piece in stored])
            stored_bytes = whole_bytes
            if compress is not None and whole_bytes >= COMPRESSED_FROM_BYTES:
                smaller = compress(part if len(stored) == 1 and part else b"".join(stored))
                if len(smaller) < whole_bytes:
                    stored = [smaller]
                    stored_bytes = len(smaller)
                    compression = ZSTD
            write_i32_le(sizes, i32(stored_bytes))
            write_i32_le(sizes, i32(whole_bytes))
            gap = _PADDING[: -stored_bytes % ALIGNMENT_BYTES]
            if gap:
                stored.append(gap)
            for piece in stored:
                pieces.append(piece)
                crc = zlib.crc32(piece, crc)
        head = BytesWriter()
        head.write(CHUNK_MAGIC)
        write_i16_le(head, CHUNK_MAJOR)
        head.append(u8(compression))
        head.append(u8(self._flags))
        head.write(self._numbers)
        head.write(sizes.getvalue())
        head.write(self._bits)
        head.write(mark)
        head.write(crc.to_bytes(4, "little"))
        written = head.getvalue()
        return [written + zlib.crc32(written).to_bytes(4, "little"), *pieces]


def add_to_filter(bits: bytearray, value: str) -> None:
    """Note a value in the bits of a filter."""
    for bit in _filter_bits(value):
        bits[bit >> 3] |= 1 << (bit & 7)


def filter_mask(value: str) -> int:
    """Return the bits of a filter that a value has, as a little-endian integer."""
    mask = 0
    for bit in _filter_bits(value):
        mask |= 1 << bit
    return mask


def may_have(bits: bytes, masks: list[int]) -> bool:
    """Tell whether one of the values with these masks may have been noted; False is certain."""
    noted = int.from_bytes(bits, "little")
    return any(noted & mask == mask for mask in masks)


def _filter_bits(value: str) -> list[int]:
    raw = value.encode("utf-8", "replace")
    start = zlib.crc32(raw)
    step = zlib.crc32(raw, _SECOND_SEED) | 1
    return [(start + step * number) % (8 * FILTER_BYTES) for number in range(_FILTER_HASHES)]


class ChunkHead:
    """The head of a chunk, checked."""

    def __init__(self, head: bytes) -> None:
        self.compression: i64 = head[10]
        self.is_sparse: bool = head[11] & SPARSE != 0
        self.is_filtered: bool = head[11] & FILTERED != 0
        self.has_unfiltered: bool = head[11] & UNFILTERED != 0
        self.filter = head[_FILTER_AT : _FILTER_AT + FILTER_BYTES]
        self.mark = head[_MARK_AT : _MARK_AT + MARK_BYTES]
        self.count: i64 = i64(read_i32_le(head, 12))
        self.first: i64 = read_i64_le(head, 16)
        self.end: i64 = read_i64_le(head, 24)
        self.min_time_us: i64 = read_i64_le(head, 32)
        self.max_time_us: i64 = read_i64_le(head, 40)
        self.route_count: i64 = i64(read_i32_le(head, 48))
        self.stored = vec[i64]()  # bytes of each part as it is here
        self.whole = vec[i64]()  # and uncompressed
        self.places = vec[i64]()  # where each part begins, from the beginning of the chunk
        pos: i64 = CHUNK_HEAD_BYTES
        at: i64 = 0
        while at < PART_COUNT:
            stored: i64 = i64(read_i32_le(head, _PARTS_AT + 8 * at)) & 0xFFFFFFFF
            self.stored = append(self.stored, stored)
            self.whole = append(self.whole, i64(read_i32_le(head, _PARTS_AT + 8 * at + 4)) & 0xFFFFFFFF)
            self.places = append(self.places, pos)
            pos += (stored + ALIGNMENT_BYTES - 1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            at += 1
        self.chunk_bytes: i64 = pos


def maybe_head(data: bytes) -> ChunkHead | None:
    """Return the head that `data` begins with; None when it is damaged, or not a head."""
    if len(data) < CHUNK_HEAD_BYTES or data[:8] != CHUNK_MAGIC or read_i16_le(data, 8) != CHUNK_MAJOR:
        return None
    crc: i64 = zlib.crc32(data[: CHUNK_HEAD_BYTES - 4])
    if crc != i64(read_i32_le(data, CHUNK_HEAD_BYTES - 4)) & 0xFFFFFFFF:
        return None
    return ChunkHead(data)


def is_whole(head: ChunkHead, chunk: bytes) -> bool:
    """Tell whether `chunk`, from its head on, is complete and intact."""
    if len(chunk) != head.chunk_bytes:
        return False
    crc: i64 = zlib.crc32(memoryview(chunk)[CHUNK_HEAD_BYTES:])
    return crc == i64(read_i32_le(chunk, _CRC_AT)) & 0xFFFFFFFF


def without_parts(chunk: bytes, missing: list[int]) -> list[Piece]:
    """Return a whole `chunk` without these parts, in pieces: those that are left, where they lie."""
    head = ChunkHead(chunk)
    view = memoryview(chunk)
    pieces: list[Piece] = []
    sizes = BytesWriter()
    crc = 0
    at: i64 = 0
    while at < PART_COUNT:
        stored: i64 = 0
        if at not in missing:
            stored = head.stored[at]
            end: i64 = head.places[at + 1] if at + 1 < PART_COUNT else head.chunk_bytes
            piece = view[head.places[at] : end]
            pieces.append(piece)
            crc = zlib.crc32(piece, crc)
        write_i32_le(sizes, i32(stored))
        write_i32_le(sizes, i32(0 if stored == 0 else head.whole[at]))
        at += 1
    start = chunk[:_PARTS_AT] + sizes.getvalue() + chunk[_FILTER_AT:_CRC_AT] + crc.to_bytes(4, "little")
    return [start + zlib.crc32(start).to_bytes(4, "little"), *pieces]


def _is_coarse(message: Message, header_bytes: i64) -> bool:
    """Tell whether the frames of a body, and the pieces that it came in, are worth an object each."""
    frames: i64 = (message.content_bytes() - header_bytes - message.body_bytes) // 8
    pieces = message.pieces
    if pieces is not None:
        frames += len(pieces)
    return frames * _PIECE_BYTES_MIN <= message.body_bytes


def _write_offsets(out: BytesWriter, first: i64, count: i64) -> None:
    offset: i64 = first
    while offset < first + count:
        write_i64_le(out, offset)
        offset += 1


def _names(envelopes: list[Envelope]) -> bytes:
    starts = BytesWriter()
    names = BytesWriter()
    for envelope in envelopes:
        write_i32_le(starts, i32(len(names)))
        write_i32_le(starts, i32(len(names) + len(envelope.names) - envelope.routing_key_bytes))
        names.write(envelope.names)
    write_i32_le(starts, i32(len(names)))
    return starts.getvalue() + names.getvalue()
