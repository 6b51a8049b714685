"""The format of the message store as one readable grammar, in construct: parse and build all that is in its files.

All integers are big-endian. *LSN*: place in the endless log; the byte at LSN x is at offset ``x - base_lsn`` of the
segment file that owns ``base_lsn`` up to ``base_lsn + capacity``. Checksum algorithms: 1 CRC-32C (Castagnoli), 2
CRC-32 (zlib), one per segment file. A crc covers every byte of its thing but itself, and nothing of the padding.

    messages/log/0000000001   a segment: header, frames, then zeros or nothing

    segment header, 64 bytes
         0   8  magic "WARRNLOG"
         8   2  major = 1             another one is refused
        10   2  minor = 0
        12   1  checksum algorithm
        13   3  zero
        16  16  store id              the same in every file of a store
        32   8  segment number
        40   8  base_lsn
        48   8  capacity              bytes of LSN space
        56   4  epoch                 larger with every start of the store
        60   4  crc                   of bytes 0..59

    frame: a head of 56 bytes and its records; the next frame follows directly; never across segments
         0   4  magic "WFRM"
         4   4  payload_bytes         a multiple of 8
         8   8  lsn                   of this frame
        16   8  durable_lsn           all below it was committed when this frame was made: synced wherever that is
                                      required, on a node by itself here
        24   8  time_ms               since the Unix epoch
        32   4  epoch
        36   4  previous_crc          the crc of the frame before, across segments too; 0 in the first one of a store
        40   4  record_count          the highest bit, CONTINUED: the next frame has more of the same batch. Frames of a
                                      batch without its last one mean nothing
        44   8  store_tag             the first 8 bytes of the store id; a frame with another tag does not count
        52   4  crc                   of bytes 0..51 and the payload
        56      records

    record: padded with zeros to a multiple of 8; ``length`` is without them
         0   4  crc                   of bytes 4..length-1
         4   4  length
         8   1  kind
         9   1  flags                 0x01 IGNORABLE  a reader that does not know the kind may skip it, else it refuses
                                      0x02 DROPPABLE  means nothing after a restart (transient message, paged out)
                                      0x04 MOVED      a copy made by compaction
                                      0x08 TIMED      a message with a time
                                      0x10 EXPIRES    a timed message with a time to live of its own
                                      0x20 DELIVERED  a message that may have been delivered before it was stored so:
                                                      returned, or held for another try
                                      0x40 REPUBLISHED  a message that a client published with an x-death, unchanged
        10   2  count
        12      by kind:

    1 MESSAGE, count = places
        12   4  frame_max_bytes       the largest whole frame in the content
        16   2  channel               the number in the content's frames
        18   1  exchange_bytes
        19   1  routing_key_bytes
        20   4  content_bytes
        24      places: queue_id u64, sequence_number u64
                exchange, routing key (UTF-8), content (AMQP header frame and body frames as received)
       end   8  time_ms               with TIMED only, since the Unix epoch: when it was published; in a lane that holds
                                      messages back, until when
    2 ACK, count = ranges             acknowledged, rejected, purged, expired: gone
        12   4  zero
        16   8  queue_id
        24      ranges: first sequence number u64, count u64
    3 QUEUE, count = lane             before the first record that names a queue id. Lane 0: the messages of the queue
                                      itself; other lanes: those of a priority, delayed ones and so on. Each lane of a
                                      queue has its own queue id and sequence numbers
        12   4  zero
        16   8  queue_id
        24   2  vhost_bytes
        26   2  name_bytes
        28   4  queue_flags           0x01 TRANSIENT_QUEUE
        32      vhost, name (UTF-8)
    4 QUEUE_DELETED
        12   4  zero
        16   8  queue_id
    5 PAGE, count = entries           consecutive sequence numbers of the index of one queue, from the page's first
        12   4  zero
        16   8  queue_id
        24   8  page_number           sequence number // 256
        32      entries: LSN of the MESSAGE u64 with flags in the 3 low bits, all 0 = no live message;
                record_bytes u32; body_bytes u32, 2^32-1 when it is more
                flags: 0x01 EXPIRING, the message has the flag EXPIRES; 0x02 DROPPABLE
    6 EPOCH                           the first record of every start
        12   4  epoch
        16   8  time_ms
    7 LIFE                            the second record of every start, IGNORABLE; not in stores of earlier versions
        12   4  epoch
        16  16  life_id               random: a copy of the store that is started writes another one
    8 FILLER                          IGNORABLE and without a meaning: has the next record begin where it must
        12      zeros

    messages/checkpoint       what replaying all frames below an LSN would give, durable entries only

         0   8  magic "WARRNCKP"
         8   2  major = 1
        10   2  minor = 3             2 has epochs without ids, 1 has no epochs; another one is refused
        12   1  checksum algorithm
        13   1  checkpoint_flags      0x01 CLEAN  the process ended with it; nothing was delivered afterwards
        14   2  epoch_count           at most 1000; 0 in minor 1
        16  16  store id
        32   8  lsn                   frames from here on must be replayed
        40   4  previous_crc          the crc of the frame before
        44   4  epoch
        48   8  next_queue_id
        56   8  next_segment          number of the next segment
        64   8  next_base_lsn         and where it begins
        72   4  page_entries          sequence numbers in a page of the index
        76   4  segment_count
        80   4  queue_count
        84   4  doomed_count
        88      segments, 48 bytes each:
                     0   8  segment number
                     8   8  base_lsn
                    16   8  capacity
                    24   8  end_lsn            after its last frame
                    32   8  live_refs
                    40   8  live_bytes
                queues:
                     0   8  queue_id
                     8   8  next_number        larger than every sequence number stored
                    16   8  delivered_below    messages with a smaller sequence number may have been delivered before
                    24   8  damaged_count
                    32   2  vhost_bytes
                    34   2  name_bytes
                    36   4  page_count
                    40   2  lane
                    42   2  index_flags        0x01 HAS_EXPIRING  messages that are EXPIRING were stored
                    44   4  zero
                    48      vhost, name (UTF-8)
                            pages, ascending:
                                 0   8  page_number
                                 8   8  lsn            of the PAGE record, 0: none
                                16   4  length         of the PAGE record
                                20   4  entry_count    0: the PAGE record has them
                                24   4  live_count
                                28   4  zero
                                32   8  body_bytes     of the live messages
                                40      entries as in a PAGE record
                doomed pages, whose references are still to be released: LSN of the PAGE record u64, its length u64
                epochs, ascending, 32 bytes each:
                     0   4  epoch
                     4   4  zero
                     8   8  first_lsn          of its first frame
                    16  16  life_id            zero: not known; in minor 2 the entry ends before it
       end   4  crc                   of everything before

1. This module is the reference. ``msgstore.log.records`` and ``msgstore.log.checkpoint`` are faster implementations of
   the same format; golden files and tests hold them equal to it, so a change of the format begins here.
2. Everything is strict: a non-zero byte in a zero field, a wrong length or count, an unknown kind that is not IGNORABLE
   and a wrong crc are refused with `FormatError`.
3. Tools and tests import it; the broker does not, because construct is too slow and too large to serve with.

It does not know how frames follow each other, which of them are durable or which messages are live.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

from construct import (  # type: ignore[import-untyped]
    Aligned,
    Array,
    Byte,
    Bytes,
    Check,
    CheckError,
    ChecksumError,
    Computed,
    Const,
    ConstructError,
    Default,
    Error,
    ExprAdapter,
    ExprValidator,
    FixedSized,
    GreedyBytes,
    If,
    IfThenElse,
    Int16ub,
    Int32ub,
    Int64ub,
    PaddingError,
    Rebuild,
    StringEncoded,
    Struct,
    Subconstruct,
    Switch,
    Terminated,
    evaluate,
    len_,
    stream_read,
    stream_seek,
    stream_tell,
    stream_write,
    this,
)

from warren.msgstore.log.checksum import CRC32, CRC32C, checksum

# The bytes, or the value to build, do not follow the grammar.
FormatError = ConstructError

SEGMENT_MAGIC: Final = b"WARRNLOG"
FRAME_MAGIC: Final = b"WFRM"
CHECKPOINT_MAGIC: Final = b"WARRNCKP"
MAJOR: Final = 1
MINOR: Final = 0
CHECKPOINT_MINOR: Final = 3
MINOR_WITHOUT_LIVES: Final = 2
MINOR_WITHOUT_EPOCHS: Final = 1

SEGMENT_HEADER_BYTES: Final = 64
FRAME_HEAD_BYTES: Final = 56
STORE_TAG_BYTES: Final = 8
ALIGNMENT_BYTES: Final = 8

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
FLAG_NAMES: Final[dict[int, str]] = {
    IGNORABLE: "IGNORABLE",
    DROPPABLE: "DROPPABLE",
    MOVED: "MOVED",
    TIMED: "TIMED",
    EXPIRES: "EXPIRES",
    DELIVERED: "DELIVERED",
    REPUBLISHED: "REPUBLISHED",
}

CONTINUED: Final = 1 << 31
EXPIRING: Final = 0x01
TRANSIENT_QUEUE: Final = 0x01
CLEAN: Final = 0x01
HAS_EXPIRING: Final = 0x01

# --- primitives ---------------------------------------------------------------------------------------------

Octet = Byte
Short = Int16ub
Long = Int32ub
LongLong = Int64ub


class Sealed(Subconstruct):  # type: ignore[misc]
    """A struct with a ``crc`` that covers all its other bytes, and maybe a length at offset 4; building fills both in.

    A negative `crc_offset` counts from the end; `uncounted_bytes` are those that the length leaves out. The checksum
    algorithm is the struct's own ``algorithm``, or the keyword of that name given to parse and build.
    """

    def __init__(self, subcon: Any, crc_offset: int, uncounted_bytes: int | None = None) -> None:
        super().__init__(subcon)
        self._crc_offset = crc_offset
        self._uncounted_bytes = uncounted_bytes

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        start = stream_tell(stream, path)
        parsed = self.subcon._parsereport(stream, context, path)
        length = stream_tell(stream, path) - start
        stream_seek(stream, start, io.SEEK_SET, path)
        computed = self._crc(stream_read(stream, length, path), parsed, context)
        if parsed.crc != computed:
            raise ChecksumError(f"the crc says {parsed.crc:08x}, the bytes are {computed:08x}", path=path)
        return parsed

    def _build(self, value: Any, stream: Any, context: Any, path: str) -> Any:
        buffer = io.BytesIO()
        self.subcon._build(value, buffer, context, path)
        data = bytearray(buffer.getvalue())
        if self._uncounted_bytes is not None:
            data[4:8] = Long.build(len(data) - self._uncounted_bytes)
        offset = self._crc_offset % len(data)
        data[offset : offset + 4] = Long.build(self._crc(bytes(data), value, context))
        stream_write(stream, bytes(data), len(data), path)
        return value

    def _crc(self, data: bytes, value: Mapping[str, Any], context: Any) -> int:
        algorithm = value.get("algorithm") or context._params.algorithm
        offset = self._crc_offset % len(data)
        return checksum(algorithm, data[offset + 4 :], checksum(algorithm, data[:offset]))


class Filling(FixedSized):  # type: ignore[misc]
    """A part that must use up exactly the bytes that a length before it announced."""

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        inner = io.BytesIO(stream_read(stream, evaluate(self.length, context), path))
        parsed = self.subcon._parsereport(inner, context, path)
        Terminated._parsereport(inner, context, path)
        return parsed

    def _build(self, value: Any, stream: Any, context: Any, path: str) -> Any:
        return self.subcon._build(value, stream, context, path)


class ZeroPadded(Aligned):  # type: ignore[misc]
    """Padding to a multiple of 8 bytes that is checked: it must be zeros."""

    def __init__(self, subcon: Any) -> None:
        super().__init__(ALIGNMENT_BYTES, subcon)

    def _parse(self, stream: Any, context: Any, path: str) -> Any:
        start = stream_tell(stream, path)
        parsed = self.subcon._parsereport(stream, context, path)
        pad = -(stream_tell(stream, path) - start) % ALIGNMENT_BYTES
        if stream_read(stream, pad, path) != bytes(pad):
            raise PaddingError("padding that is not zeros", path=path)
        return parsed


# Crc and length are filled in by `Sealed`.
FilledIn = Default(Long, 0)


_Algorithm = ExprValidator(Octet, lambda algorithm, _context: algorithm in (CRC32C, CRC32))


def _zeros(length: int) -> Any:
    return Const(bytes(length))


def _text(length: Any) -> Any:
    return StringEncoded(Bytes(length), "utf-8")


def _text_bytes(field: str) -> Any:
    return lambda context: len(context[field].encode("utf-8"))


# --- segment header -----------------------------------------------------------------------------------------

SegmentHeader = Sealed(
    Struct(
        "magic" / Const(SEGMENT_MAGIC),
        "major" / Const(MAJOR, Short),
        "minor" / Default(Short, MINOR),
        "algorithm" / _Algorithm,
        "zero" / _zeros(3),
        "store_id" / Bytes(16),
        "segment" / LongLong,
        "base_lsn" / LongLong,
        "capacity" / LongLong,
        "epoch" / Long,
        "crc" / FilledIn,
    ),
    crc_offset=60,
)

# --- records: each from offset 12 on ------------------------------------------------------------------------

_UNCOUNTED = Check(this._.count == 0)

Place = Struct("queue_id" / LongLong, "sequence_number" / LongLong)

Message = Struct(
    "frame_max_bytes" / Long,
    "channel" / Short,
    "exchange_bytes" / Rebuild(Octet, _text_bytes("exchange")),
    "routing_key_bytes" / Rebuild(Octet, _text_bytes("routing_key")),
    "content_bytes" / Rebuild(Long, len_(this.content)),
    Check(this._.count >= 1),
    Check(lambda context: context._.flags & (TIMED | EXPIRES) != EXPIRES),
    "places" / Array(this._.count, Place),
    "exchange" / _text(this.exchange_bytes),
    "routing_key" / _text(this.routing_key_bytes),
    "content" / Bytes(this.content_bytes),
    "time_ms" / If(this._.flags & TIMED != 0, LongLong),
)

Ack = Struct(
    "zero" / _zeros(4),
    "queue_id" / LongLong,
    "ranges" / Array(this._.count, Struct("first" / LongLong, "count" / LongLong)),
)

Queue = Struct(
    "lane" / Computed(this._.count),
    "zero" / _zeros(4),
    "queue_id" / LongLong,
    "vhost_bytes" / Rebuild(Short, _text_bytes("vhost")),
    "name_bytes" / Rebuild(Short, _text_bytes("name")),
    "queue_flags" / Default(Long, 0),
    "vhost" / _text(this.vhost_bytes),
    "name" / _text(this.name_bytes),
)

QueueDeleted = Struct(_UNCOUNTED, "zero" / _zeros(4), "queue_id" / LongLong)

Location = ExprAdapter(
    LongLong,
    lambda word, _context: {"lsn": word & ~7, "flags": word & 7},
    lambda location, _context: location["lsn"] | location["flags"],
)

Entry = Struct("location" / Location, "record_bytes" / Long, "body_bytes" / Long)

Page = Struct(
    "zero" / _zeros(4),
    "queue_id" / LongLong,
    "page_number" / LongLong,
    "entries" / Array(this._.count, Entry),
)

Epoch = Struct(_UNCOUNTED, "epoch" / Long, "time_ms" / LongLong)

Life = Struct(_UNCOUNTED, "epoch" / Long, "life_id" / Bytes(16))

Filler = Struct(_UNCOUNTED, "zeros" / ExprValidator(GreedyBytes, lambda zeros, _context: not any(zeros)))

KINDS: Final[dict[int, Any]] = {
    MESSAGE: Message,
    ACK: Ack,
    QUEUE: Queue,
    QUEUE_DELETED: QueueDeleted,
    PAGE: Page,
    EPOCH: Epoch,
    LIFE: Life,
    FILLER: Filler,
}
KIND_NAMES: Final[dict[int, str]] = {
    MESSAGE: "MESSAGE",
    ACK: "ACK",
    QUEUE: "QUEUE",
    QUEUE_DELETED: "QUEUE_DELETED",
    PAGE: "PAGE",
    EPOCH: "EPOCH",
    LIFE: "LIFE",
    FILLER: "FILLER",
}
_COUNTED: Final[dict[int, str]] = {MESSAGE: "places", ACK: "ranges", PAGE: "entries"}


def _count_of(context: Any) -> int:
    if context.kind == QUEUE:
        return context.body.get("lane") or 0
    return len(context.body[_COUNTED[context.kind]]) if context.kind in _COUNTED else context.get("count") or 0


# The bytes of an unknown kind that may be skipped, from offset 12 on.
_UnknownKind = ExprValidator(GreedyBytes, lambda raw, _context: len(raw) >= 4)

# One record without the padding after it.
Record = Sealed(
    Struct(
        "crc" / FilledIn,
        "length" / FilledIn,
        "kind" / Octet,
        "flags" / Default(Octet, 0),
        "count" / Rebuild(Short, _count_of),
        "body"
        / Filling(
            this.length - 12,
            Switch(this.kind, KINDS, default=IfThenElse(this.flags & IGNORABLE != 0, _UnknownKind, Error)),
        ),
    ),
    crc_offset=0,
    uncounted_bytes=0,
)

# --- frames -------------------------------------------------------------------------------------------------


def _record_count(context: Any) -> int:
    return len(context.records) | (CONTINUED if context.get("is_continued") else 0)


Frame = Sealed(
    Struct(
        "magic" / Const(FRAME_MAGIC),
        "payload_bytes" / FilledIn,
        "lsn" / LongLong,
        "durable_lsn" / LongLong,
        "time_ms" / LongLong,
        "epoch" / Long,
        "previous_crc" / Long,
        "record_count" / Rebuild(Long, _record_count),
        "store_tag" / Bytes(STORE_TAG_BYTES),
        "crc" / FilledIn,
        "records" / Filling(this.payload_bytes, Array(this.record_count & ~CONTINUED, ZeroPadded(Record))),
    ),
    crc_offset=52,
    uncounted_bytes=FRAME_HEAD_BYTES,
)


# --- checkpoint ---------------------------------------------------------------------------------------------

CheckpointPage = Struct(
    "page_number" / LongLong,
    "lsn" / LongLong,
    "length" / Long,
    "entry_count" / Rebuild(Long, len_(this.entries)),
    "live_count" / Long,
    "zero" / _zeros(4),
    "body_bytes" / LongLong,
    "entries" / Array(this.entry_count, Entry),
)

CheckpointQueue = Struct(
    "queue_id" / LongLong,
    "next_number" / LongLong,
    "delivered_below" / LongLong,
    "damaged_count" / LongLong,
    "vhost_bytes" / Rebuild(Short, _text_bytes("vhost")),
    "name_bytes" / Rebuild(Short, _text_bytes("name")),
    "page_count" / Rebuild(Long, len_(this.pages)),
    "lane" / Default(Short, 0),
    "index_flags" / Default(Short, 0),
    "zero" / _zeros(4),
    "vhost" / _text(this.vhost_bytes),
    "name" / _text(this.name_bytes),
    "pages" / Array(this.page_count, CheckpointPage),
)

CheckpointSegment = Struct(
    "segment" / LongLong,
    "base_lsn" / LongLong,
    "capacity" / LongLong,
    "end_lsn" / LongLong,
    "live_refs" / LongLong,
    "live_bytes" / LongLong,
)

CheckpointEpoch = Struct(
    "epoch" / Long,
    "zero" / _zeros(4),
    "first_lsn" / LongLong,
    "life_id" / If(this._.minor > MINOR_WITHOUT_LIVES, Default(Bytes(16), bytes(16))),
)


def _is_known_minor(minor: int, _context: Any) -> bool:
    return minor in (MINOR_WITHOUT_EPOCHS, MINOR_WITHOUT_LIVES, CHECKPOINT_MINOR)


Checkpoint = Sealed(
    Struct(
        "magic" / Const(CHECKPOINT_MAGIC),
        "major" / Const(MAJOR, Short),
        "minor" / Default(ExprValidator(Short, _is_known_minor), CHECKPOINT_MINOR),
        "algorithm" / _Algorithm,
        "checkpoint_flags" / Default(Octet, 0),
        "epoch_count" / Rebuild(Short, lambda context: len(context.get("epochs") or ())),
        "store_id" / Bytes(16),
        "lsn" / LongLong,
        "previous_crc" / Long,
        "epoch" / Long,
        "next_queue_id" / LongLong,
        "next_segment" / LongLong,
        "next_base_lsn" / LongLong,
        "page_entries" / Long,
        "segment_count" / Rebuild(Long, len_(this.segments)),
        "queue_count" / Rebuild(Long, len_(this.queues)),
        "doomed_count" / Rebuild(Long, len_(this.doomed)),
        "segments" / Array(this.segment_count, CheckpointSegment),
        "queues" / Array(this.queue_count, CheckpointQueue),
        "doomed" / Array(this.doomed_count, Struct("lsn" / LongLong, "length" / LongLong)),
        Check(lambda context: context.epoch_count == 0 or context.minor > MINOR_WITHOUT_EPOCHS),
        "epochs" / Default(Array(this.epoch_count, CheckpointEpoch), ()),
        "crc" / FilledIn,
        Terminated,
    ),
    crc_offset=-4,
)

# --- whole segments -----------------------------------------------------------------------------------------


def build_segment(header: Mapping[str, Any], frames: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a segment file that ends after its last frame."""
    algorithm = header["algorithm"]
    parts = [SegmentHeader.build(header), *(Frame.build(frame, algorithm=algorithm) for frame in frames)]
    return b"".join(parts)


def parse_segment(data: bytes) -> tuple[Any, list[Any]]:
    """Return the header and all frames of a segment file; zeros may follow the last one.

    Raises:
        FormatError: any byte is not as it must be.
    """
    stream = io.BytesIO(data)
    header = SegmentHeader.parse_stream(stream)
    frames: list[Any] = []
    while any(data[stream.tell() :]):
        frame = Frame.parse_stream(stream, algorithm=header.algorithm)
        if frame.store_tag != header.store_id[:STORE_TAG_BYTES]:
            raise CheckError(f"a frame of another store, whose id begins with {frame.store_tag.hex()}")
        frames.append(frame)
    return header, frames
