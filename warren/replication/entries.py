"""The format of the link between a leader and a follower, in both directions: entries, one after the other.

In each direction a link begins with 8 bytes, the magic "WRNREP" and the version of this format, u16 = 1. Entries
follow. All integers are big-endian.

    entry: a head of 12 bytes and a body
         0   4  length                of the body
         4   1  kind
         5   3  zero
         8   4  crc                   CRC-32 (zlib) of bytes 0..7 and the body. Of FRAME without the body, for a frame
                                      has a crc of its own, which the follower checks before it writes; of IMAGE_BYTES
                                      with the first 24 bytes of it, which have a crc of the others
        12      body, by kind:

    from the leader
     1 SEGMENT     the header of a segment, 64 bytes: the frames that follow go into this one
     2 FRAME       a frame of the log, head and payload, to be written after the previous one
     3 SYNC        lsn u64: sync all frames below, in one sync
     4 CHECKPOINT  lsn u64, total_bytes u64, offset u64, then bytes of the checkpoint file from `offset` on. The pieces
                   come in their order; with the last one the file replaces the previous one
     5 UNLINK      after_lsn u64, numbers of segments u64 each: to be removed
     6 CHUNK       stream_id u64, segment u64, position u64, flags u32, then bytes of a chunk of a stream, which belong
                   to `position` of the file; position 64 begins the file.
                   flags 0x01 REPLACEMENT  of the file that will take the place of this one
                         0x02 MORE         the next entry has more of the same chunk
     7 DROP        after_lsn u64, stream_id u64, segments u64 each: files to be removed
     8 SWAP        after_lsn u64, stream_id u64, segments u64 each: the replacement of the first takes the place of all
     9 UNMAKE      after_lsn u64, stream_id u64, segment u64: a replacement to be removed
    10 COMMITTED   lsn u64: all below is synced on all replicas in sync
    11 CATALOGUE   after_lsn u64, first u64, count u32, then records, each u32 length and bytes: changes of the metadata
                   from number `first` on that the leader's SQL has. To be applied before any later entry
    12 BEACON      number u64, committed_lsn u64, time_ms u64, epoch u32: the leader is there
    13 TRUNCATE    lsn u64, epoch u32: remove all frames from `lsn` on, and all of later epochs. Then the follower
                   says its POSITION again
    14 CAUGHT_UP   lsn u64: the follower has had all up to here, and is about to be counted as in sync

    15 CATALOGUE_COPY  applied u64, flags u32, count u32, then records as of CATALOGUE: all that the leader's SQL has,
                   as changes that make it, with all changes below `applied`. With the last piece it takes the place of
                   what the follower has
                   flags 0x02 MORE         the next of this kind has more of it
    both ways, to a node that has said that it answers (``format_level``)
    49 WANT_BYTES  number u64, stream_id u64, segment u64, position u64, length u32: bytes of the file of a stream, with
                   stream_id 0 of a segment of the log, which the sender has found damaged
    50 HAVE_BYTES  number u64, then the bytes that were asked for by that number; fewer, or none, where they are missing

    from the leader, too
    16 IMAGE       lsn u64: what follows is a whole log that ends there, to take the place of the follower's: pieces of
                   its segments, then those of its checkpoint. With the last one it does
    17 IMAGE_PIECE number u64, position u64, then bytes of that segment's file; the pieces come in their order, and the
                   segments by number
    18 IMAGE_BYTES number u64, position u64, algorithm u32, crc u32, then the same, with their crc by one of the
                   algorithms of the store's files (``msgstore.log.checksum``): the one that is fast where they come
                   from. For nodes that understand it (``format_level``)

    from the follower
    32 POSITION    store_id 16, segment u64, lsn u64, checkpoint_lsn u64, crc u32, count u32, then epochs, each epoch
                   u32, first_lsn u64: up to where its log goes, the LSN of its checkpoint, the crc of the frame that
                   ends the log, and which epochs it has. All zero: empty
    33 SEALED      flags u32, then files of streams, each stream_id u64, segment u64, file_bytes u64, crc u32 (CRC-32 of
                   the heads of its chunks, each without its last 4 bytes); flags 0x02 MORE: the list continues in the
                   next entry
    34 ACK         received_lsn u64, synced_lsn u64, done u64, beacon u64, epoch u32: how far the log is written and
                   synced; how many entries of this link are carried out, durably where they change files; the
                   latest beacon
    35 OBJECTION   epoch u32, lsn u64: the leader lacks what this follower has as committed, up to that LSN, which is of
                   that epoch. To a leader that understands it (``format_level``); STOP follows

    both ways
    48 STOP        UTF-8: the sender ends the link, and why

A link begins with POSITION and SEALED from the follower. The leader answers with TRUNCATE, with STOP, or with the
entries from there on; it does not say where they begin.

1. `after_lsn`: the follower has synced the log up to there before it does something that cannot be taken back.
2. A length is checked against the limits of its kind before any of the body is kept, and memory is taken only for bytes
   that have arrived.
3. An entry is there whole, with the right crc, or not at all. The error for a wrong one says what is wrong, and where;
   no entry after it is believed.
4. Entries are not numbered: links keep order. Both sides count them for `done`, from 1 after the last POSITION.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Any, ClassVar, Final, Self, cast

from warren.msgstore.log.checksum import checksum_function, default_algorithm, table_crc32c
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES

VERSION: Final = 1
_MAGIC: Final = b"WRNREP"
PREAMBLE: Final = _MAGIC + VERSION.to_bytes(2, "big")

# An entry of a large thing has at most this much of it, so that others come in between.
PIECE_BYTES: Final = 1 << 20
NUMBERS_MAX: Final = 4096  # segments in one entry
FILES_MAX: Final = 4096  # of streams, in one entry
EPOCHS_MAX: Final = 4096
TEXT_BYTES_MAX: Final = 1024
CATALOGUE_BYTES_MAX: Final = 64 << 20
LENGTH_MAX: Final = (1 << 32) - 1

_HEAD: Final = Struct(">IB3xI")
_COVERED_HEAD: Final = Struct(">IB3x")
_CHECKPOINT: Final = Struct(">QQQ")
_CHUNK: Final = Struct(">QQQI")
_THREE: Final = Struct(">QQQ")
_CATALOGUE: Final = Struct(">QQI")
_COPY: Final = Struct(">QII")
_BEACON: Final = Struct(">QQQI")
_TRUNCATE: Final = Struct(">QI")
_POSITION: Final = Struct(">16sQQQII")
_EPOCH: Final = Struct(">IQ")
_FILE: Final = Struct(">QQQI")
_IMAGE_PIECE: Final = Struct(">QQ")
_IMAGE_BYTES: Final = Struct(">QQII")
_ACK: Final = Struct(">QQQQI")
_OBJECTION: Final = Struct(">IQ")
_WANT: Final = Struct(">QQQQI")
_CHUNK_BYTES: Final = 1 << 12
_REPLACEMENT: Final = 0x01
_MORE: Final = 0x02

Piece = bytes | memoryview


class EntryError(ValueError):
    """This version cannot read the bytes as entries. Says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class BeginSegment:
    """The frames that follow go into the segment with this header."""

    KIND: ClassVar[int] = 1
    LENGTHS: ClassVar[tuple[int, int]] = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)

    header: bytes

    def body(self) -> list[Piece]:
        return [self.header]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(body)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of the log. `payload` has it in pieces; one that was received is one piece."""

    KIND: ClassVar[int] = 2
    LENGTHS: ClassVar[tuple[int, int]] = (FRAME_HEADER_BYTES, LENGTH_MAX)

    head: bytes
    payload: tuple[Piece, ...]

    @property
    def lsn(self) -> int:
        """Where the frame begins."""
        return int.from_bytes(self.head[8:16], "big")

    @property
    def end_lsn(self) -> int:
        """Where it ends."""
        return self.lsn + FRAME_HEADER_BYTES + int.from_bytes(self.head[4:8], "big")

    @property
    def crc(self) -> int:
        """The crc of the previous frame that the next frame must have."""
        return int.from_bytes(self.head[52:56], "big")

    def body(self) -> list[Piece]:
        return [self.head, *self.payload]

    @classmethod
    def parse(cls, body: Piece) -> Self:
        if int.from_bytes(body[4:8], "big") != len(body) - FRAME_HEADER_BYTES:
            raise ValueError("the frame in it has another length")
        return cls(bytes(body[:FRAME_HEADER_BYTES]), (body[FRAME_HEADER_BYTES:],))


@dataclass(frozen=True, slots=True)
class _Lsn:
    LENGTHS: ClassVar[tuple[int, int]] = (8, 8)

    lsn: int

    def body(self) -> list[Piece]:
        return [self.lsn.to_bytes(8, "big")]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(int.from_bytes(body, "big"))


@dataclass(frozen=True, slots=True)
class Sync(_Lsn):
    """Sync all frames below."""

    KIND: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class CheckpointPiece:
    """A piece of a checkpoint file; `checkpoint_pieces` makes them."""

    KIND: ClassVar[int] = 4
    LENGTHS: ClassVar[tuple[int, int]] = (_CHECKPOINT.size + 1, _CHECKPOINT.size + PIECE_BYTES)

    lsn: int
    total_bytes: int
    offset: int
    data: Piece

    @property
    def is_last(self) -> bool:
        """Whether the file is complete with it."""
        return self.offset + len(self.data) == self.total_bytes

    def body(self) -> list[Piece]:
        return [_CHECKPOINT.pack(self.lsn, self.total_bytes, self.offset), self.data]

    @classmethod
    def parse(cls, body: Piece) -> Self:
        lsn, total_bytes, offset = _CHECKPOINT.unpack_from(body)
        data = body[_CHECKPOINT.size :]
        if offset + len(data) > total_bytes:
            raise ValueError("it is longer than the checkpoint")
        return cls(lsn, total_bytes, offset, data)


@dataclass(frozen=True, slots=True)
class Unlink:
    """Segments to be removed, once the log is synced up to `after_lsn`."""

    KIND: ClassVar[int] = 5
    LENGTHS: ClassVar[tuple[int, int]] = (16, 8 + 8 * NUMBERS_MAX)

    after_lsn: int
    numbers: tuple[int, ...]

    def body(self) -> list[Piece]:
        return [_words((self.after_lsn, *self.numbers))]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        after_lsn, *numbers = _parsed_words(body)
        return cls(after_lsn, tuple(numbers))


@dataclass(frozen=True, slots=True)
class ChunkPiece:
    """Bytes of a chunk of a stream, for `position` of its file; `chunk_pieces` makes them."""

    KIND: ClassVar[int] = 6
    LENGTHS: ClassVar[tuple[int, int]] = (_CHUNK.size + 1, _CHUNK.size + PIECE_BYTES)

    stream_id: int
    segment: int  # its first offset
    position: int
    is_replacement: bool
    has_more: bool  # the next entry has more of the same chunk
    data: Piece

    def body(self) -> list[Piece]:
        flags = (_REPLACEMENT if self.is_replacement else 0) | (_MORE if self.has_more else 0)
        return [_CHUNK.pack(self.stream_id, self.segment, self.position, flags), self.data]

    @classmethod
    def parse(cls, body: Piece) -> Self:
        stream_id, segment, position, flags = _CHUNK.unpack_from(body)
        known = _known_flags(flags, _REPLACEMENT | _MORE)
        is_replacement, has_more = bool(known & _REPLACEMENT), bool(known & _MORE)
        return cls(stream_id, segment, position, is_replacement, has_more, body[_CHUNK.size :])


@dataclass(frozen=True, slots=True)
class _SealedChange:
    LENGTHS: ClassVar[tuple[int, int]] = (24, 16 + 8 * NUMBERS_MAX)

    after_lsn: int
    stream_id: int
    segments: tuple[int, ...]  # their first offsets

    def body(self) -> list[Piece]:
        return [_words((self.after_lsn, self.stream_id, *self.segments))]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        after_lsn, stream_id, *segments = _parsed_words(body)
        return cls(after_lsn, stream_id, tuple(segments))


@dataclass(frozen=True, slots=True)
class Drop(_SealedChange):
    """Files of a stream to be removed."""

    KIND: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class Swap(_SealedChange):
    """The replacement of the first segment takes the place of all of them."""

    KIND: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class Unmake:
    """A replacement to be removed."""

    KIND: ClassVar[int] = 9
    LENGTHS: ClassVar[tuple[int, int]] = (_THREE.size, _THREE.size)

    after_lsn: int
    stream_id: int
    segment: int

    def body(self) -> list[Piece]:
        return [_THREE.pack(self.after_lsn, self.stream_id, self.segment)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(*_THREE.unpack(body))


@dataclass(frozen=True, slots=True)
class Committed(_Lsn):
    """All below is synced on all replicas in sync."""

    KIND: ClassVar[int] = 10


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Changes of the metadata that the leader's SQL has: `records` from number `first` on."""

    KIND: ClassVar[int] = 11
    LENGTHS: ClassVar[tuple[int, int]] = (_CATALOGUE.size, CATALOGUE_BYTES_MAX)

    after_lsn: int
    first: int
    records: tuple[bytes, ...]

    def body(self) -> list[Piece]:
        return [_CATALOGUE.pack(self.after_lsn, self.first, len(self.records)), *_records_body(self.records)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        after_lsn, first, count = _CATALOGUE.unpack_from(body)
        return cls(after_lsn, first, _parsed_records(body, _CATALOGUE.size, count))


@dataclass(frozen=True, slots=True)
class CatalogueCopy:
    """All that the leader's SQL has, or a piece of it, with the changes below `applied`."""

    KIND: ClassVar[int] = 15
    LENGTHS: ClassVar[tuple[int, int]] = (_COPY.size, CATALOGUE_BYTES_MAX)

    applied: int
    has_more: bool
    records: tuple[bytes, ...]

    def body(self) -> list[Piece]:
        flags = _MORE if self.has_more else 0
        return [_COPY.pack(self.applied, flags, len(self.records)), *_records_body(self.records)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        applied, flags, count = _COPY.unpack_from(body)
        has_more = bool(_known_flags(flags, _MORE) & _MORE)
        return cls(applied, has_more, _parsed_records(body, _COPY.size, count))


@dataclass(frozen=True, slots=True)
class Beacon:
    """The leader is there; answered at once. `number` counts beacons, `time_ms` is its wall clock."""

    KIND: ClassVar[int] = 12
    LENGTHS: ClassVar[tuple[int, int]] = (_BEACON.size, _BEACON.size)

    number: int
    committed_lsn: int
    time_ms: int
    epoch: int

    def body(self) -> list[Piece]:
        return [_BEACON.pack(self.number, self.committed_lsn, self.time_ms, self.epoch)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(*_BEACON.unpack(body))


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove all frames from `lsn` on, and all of later epochs than `epoch`."""

    KIND: ClassVar[int] = 13
    LENGTHS: ClassVar[tuple[int, int]] = (_TRUNCATE.size, _TRUNCATE.size)

    lsn: int
    epoch: int

    def body(self) -> list[Piece]:
        return [_TRUNCATE.pack(self.lsn, self.epoch)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(*_TRUNCATE.unpack(body))


@dataclass(frozen=True, slots=True)
class CaughtUp(_Lsn):
    """The follower has had all up to here."""

    KIND: ClassVar[int] = 14


@dataclass(frozen=True, slots=True)
class BeginImage(_Lsn):
    """A whole log follows that ends there."""

    KIND: ClassVar[int] = 16


@dataclass(frozen=True, slots=True)
class ImagePiece:
    """Bytes of a segment of an image, for `position` of its file."""

    KIND: ClassVar[int] = 17
    LENGTHS: ClassVar[tuple[int, int]] = (_IMAGE_PIECE.size + 1, _IMAGE_PIECE.size + PIECE_BYTES)

    number: int
    position: int
    data: Piece

    def body(self) -> list[Piece]:
        return [_IMAGE_PIECE.pack(self.number, self.position), self.data]

    @classmethod
    def parse(cls, body: Piece) -> Self:
        number, position = _IMAGE_PIECE.unpack_from(body)
        return cls(number, position, body[_IMAGE_PIECE.size :])


@dataclass(frozen=True, slots=True)
class ImageBytes(ImagePiece):
    """The same, with a crc that costs less."""

    KIND: ClassVar[int] = 18
    LENGTHS: ClassVar[tuple[int, int]] = (_IMAGE_BYTES.size + 1, _IMAGE_BYTES.size + PIECE_BYTES)

    def body(self) -> list[Piece]:
        algorithm = default_algorithm()
        crc = checksum_of(algorithm, self.data)
        return [_IMAGE_BYTES.pack(self.number, self.position, algorithm, crc), self.data]

    @classmethod
    def parse(cls, body: Piece) -> Self:
        number, position, algorithm, crc = _IMAGE_BYTES.unpack_from(body)
        data = body[_IMAGE_BYTES.size :]
        if checksum_of(algorithm, data) != crc:
            raise ValueError("its bytes have a wrong checksum")
        return cls(number, position, data)


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where the log of a follower goes. `epochs`: (epoch, LSN where it begins), ascending."""

    KIND: ClassVar[int] = 32
    LENGTHS: ClassVar[tuple[int, int]] = (_POSITION.size, _POSITION.size + _EPOCH.size * EPOCHS_MAX)

    store_id: bytes
    segment: int
    lsn: int
    checkpoint_lsn: int
    crc: int  # of the frame that ends at `lsn`
    epochs: tuple[tuple[int, int], ...]

    @property
    def is_empty(self) -> bool:
        """Whether the follower has nothing yet."""
        return self.segment == 0

    def body(self) -> list[Piece]:
        head = _POSITION.pack(self.store_id, self.segment, self.lsn, self.checkpoint_lsn, self.crc, len(self.epochs))
        return [head, *(_EPOCH.pack(*epoch) for epoch in self.epochs)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        store_id, segment, lsn, checkpoint_lsn, crc, count = _POSITION.unpack_from(body)
        if len(body) != _POSITION.size + count * _EPOCH.size:
            raise ValueError("its epochs do not fill it")
        epochs = tuple(_EPOCH.iter_unpack(body[_POSITION.size :]))
        if any(later <= earlier for (earlier, _), (later, _) in pairwise(epochs)):
            raise ValueError("its epochs do not ascend")
        return cls(store_id, segment, lsn, checkpoint_lsn, crc, epochs)


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A follower's part of a file of a stream. `crc`: CRC-32 of the heads of its chunks."""

    stream_id: int
    segment: int
    file_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class SealedList:
    """Files of streams that a follower has; `sealed_lists` makes them."""

    KIND: ClassVar[int] = 33
    LENGTHS: ClassVar[tuple[int, int]] = (4, 4 + _FILE.size * FILES_MAX)

    files: tuple[SealedFile, ...]
    has_more: bool

    def body(self) -> list[Piece]:
        flags = _MORE if self.has_more else 0
        files = (_FILE.pack(file.stream_id, file.segment, file.file_bytes, file.crc) for file in self.files)
        return [flags.to_bytes(4, "big"), *files]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        if (len(body) - 4) % _FILE.size:
            raise ValueError("its files do not fill it")
        flags = _known_flags(int.from_bytes(body[:4], "big"), _MORE)
        return cls(tuple(SealedFile(*words) for words in _FILE.iter_unpack(body[4:])), bool(flags & _MORE))


@dataclass(frozen=True, slots=True)
class Ack:
    """How far a follower is. `done`: how many entries of this link are carried out. `epoch`: its leader's."""

    KIND: ClassVar[int] = 34
    LENGTHS: ClassVar[tuple[int, int]] = (_ACK.size, _ACK.size)

    received_lsn: int
    synced_lsn: int
    done: int
    beacon: int
    epoch: int

    def body(self) -> list[Piece]:
        return [_ACK.pack(self.received_lsn, self.synced_lsn, self.done, self.beacon, self.epoch)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(*_ACK.unpack(body))


@dataclass(frozen=True, slots=True)
class Objection:
    """The follower has committed frames that the leader does not have, up to `lsn`, which is of `epoch`."""

    KIND: ClassVar[int] = 35
    LENGTHS: ClassVar[tuple[int, int]] = (_OBJECTION.size, _OBJECTION.size)

    epoch: int
    lsn: int

    def body(self) -> list[Piece]:
        return [_OBJECTION.pack(self.epoch, self.lsn)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(*_OBJECTION.unpack(body))


@dataclass(frozen=True, slots=True)
class WantBytes:
    """Bytes of a file that the sender has found damaged: of a segment of the log, or with a `stream_id` of a stream's.

    Only to a node that has said that it answers (``mending``). `number` counts the questions of a link.
    """

    KIND: ClassVar[int] = 49
    LENGTHS: ClassVar[tuple[int, int]] = (_WANT.size, _WANT.size)

    number: int
    stream_id: int
    segment: int
    position: int
    length: int

    def body(self) -> list[Piece]:
        return [_WANT.pack(self.number, self.stream_id, self.segment, self.position, self.length)]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        wanted = cls(*_WANT.unpack(body))
        if not 0 < wanted.length <= PIECE_BYTES or wanted.position >= 1 << 62 or wanted.segment >= 1 << 62:
            raise ValueError("the requested data does not exist")
        return wanted


@dataclass(frozen=True, slots=True)
class HaveBytes:
    """The answer to question `number`: the bytes found; empty when the sender does not have them."""

    KIND: ClassVar[int] = 50
    LENGTHS: ClassVar[tuple[int, int]] = (8, 8 + PIECE_BYTES)

    number: int
    data: Piece

    def body(self) -> list[Piece]:
        return [self.number.to_bytes(8, "big"), self.data]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(int.from_bytes(body[:8], "big"), body[8:])


@dataclass(frozen=True, slots=True)
class Stop:
    """The sender ends the link. `text`: why, for people; cut to `TEXT_BYTES_MAX`."""

    KIND: ClassVar[int] = 48
    LENGTHS: ClassVar[tuple[int, int]] = (0, TEXT_BYTES_MAX)

    text: str

    def body(self) -> list[Piece]:
        return [self.text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore").encode()]

    @classmethod
    def parse(cls, body: bytes) -> Self:
        return cls(body.decode())  # UnicodeDecodeError is a ValueError


FromLeader = (
    BeginSegment
    | Frame
    | Sync
    | CheckpointPiece
    | Unlink
    | ChunkPiece
    | Drop
    | Swap
    | Unmake
    | Committed
    | Catalogue
    | CatalogueCopy
    | Beacon
    | Truncate
    | CaughtUp
    | BeginImage
    | ImagePiece
    | ImageBytes
    | Stop
)
FromFollower = Position | SealedList | Ack | Objection | Stop
OfBoth = WantBytes | HaveBytes
Entry = FromLeader | FromFollower | OfBoth
EntryType = type[Entry]

FROM_LEADER: Final[tuple[EntryType, ...]] = (
    BeginSegment,
    Frame,
    Sync,
    CheckpointPiece,
    Unlink,
    ChunkPiece,
    Drop,
    Swap,
    Unmake,
    Committed,
    Catalogue,
    CatalogueCopy,
    Beacon,
    Truncate,
    CaughtUp,
    BeginImage,
    ImagePiece,
    ImageBytes,
    Stop,
    WantBytes,
    HaveBytes,
)
FROM_FOLLOWER: Final[tuple[EntryType, ...]] = (Position, SealedList, Ack, Objection, Stop, WantBytes, HaveBytes)
# Those that have bytes of files: they keep the received bytes, and no copy of them.
_VIEWS: Final[frozenset[EntryType]] = frozenset({Frame, CheckpointPiece, ChunkPiece, ImagePiece, ImageBytes})
# The part of the body that the crc of the entry covers; all of it for kinds that are not listed.
_COVERED_BYTES: Final[dict[EntryType, int]] = {Frame: 0, ImageBytes: _IMAGE_BYTES.size}
_COVERED_PIECES: Final[dict[EntryType, int]] = {Frame: 0, ImageBytes: 1}


# --- writing ----------------------------------------------------------------------------------------------------------


def encoded(entry: Entry) -> list[Piece]:
    """Return the bytes of `entry` in pieces; large parts are not copied."""
    body = entry.body()
    length = sum(map(len, body))
    least, most = entry.LENGTHS
    assert least <= length <= most, f"{type(entry).__name__} of {length} bytes"
    covered = body[: _COVERED_PIECES.get(type(entry))]
    return [_HEAD.pack(length, entry.KIND, _crc(length, entry.KIND, covered)), *body]


def checkpoint_pieces(lsn: int, content: bytes) -> Iterator[CheckpointPiece]:
    """Yield a whole checkpoint file, the state of the log at `lsn`, in pieces."""
    view = memoryview(content)
    for offset in range(0, len(content), PIECE_BYTES):
        yield CheckpointPiece(lsn, len(content), offset, view[offset : offset + PIECE_BYTES])


def chunk_pieces(
    stream_id: int, segment: int, position: int, data: Piece, *, is_replacement: bool = False
) -> Iterator[ChunkPiece]:
    """Yield a chunk of a stream, which belongs to `position` of the file of `segment`, in pieces."""
    view = memoryview(data)
    for at in range(0, len(data), PIECE_BYTES):
        has_more = at + PIECE_BYTES < len(data)
        yield ChunkPiece(stream_id, segment, position + at, is_replacement, has_more, view[at : at + PIECE_BYTES])


def sealed_lists(files: Sequence[SealedFile]) -> Iterator[SealedList]:
    """Yield all files of streams that a follower has; one empty list without any."""
    for at in range(0, max(len(files), 1), FILES_MAX):
        yield SealedList(tuple(files[at : at + FILES_MAX]), has_more=at + FILES_MAX < len(files))


# --- reading ----------------------------------------------------------------------------------------------------------


class Decoder:
    """Makes entries of the bytes of a link, however they are cut. `accepted`: the kinds that may come.

    An incomplete entry is kept until the rest has arrived. After an EntryError the decoder returns nothing more.
    """

    def __init__(self, accepted: Iterable[EntryType]) -> None:
        self._types: dict[int, EntryType] = {entry_type.KIND: entry_type for entry_type in accepted}
        self._buffer = b""
        self._at = 0  # the bytes before it were taken
        self._passed = 0  # bytes of the link before the buffer
        self._chunks: list[bytes | bytearray] = []  # bytes that have arrived after it
        self._chunks_bytes = 0
        self._begun = False  # the preamble was there
        self._error = ""
        self.entry_bytes = 0  # of the body of the last entry

    def feed(self, data: bytes) -> None:
        """Take bytes as they have arrived."""
        chunks = self._chunks
        if chunks and isinstance(chunks[-1], bytearray) and len(chunks[-1]) < _CHUNK_BYTES:
            chunks[-1] += data
        else:
            # An object for each would take many times the space of small ones.
            chunks.append(data if len(data) >= _CHUNK_BYTES else bytearray(data))
        self._chunks_bytes += len(data)

    def _has(self, count: int) -> bool:
        """Gather so many bytes in one piece, from the next one on; False when they have not arrived.

        Large bodies are joined once, and not each time that some bytes have come.
        """
        left = len(self._buffer) - self._at
        if left < count and left + self._chunks_bytes >= count:
            self._buffer = b"".join([memoryview(self._buffer)[self._at :], *self._chunks])
            self._passed += self._at
            self._at = 0
            self._chunks.clear()
            self._chunks_bytes = 0
            return True
        return left >= count

    def maybe_entry(self) -> Entry | None:
        """Return the next entry; None while it is not complete.

        Raises:
            EntryError: the bytes are not an entry.
        """
        if self._error:
            raise EntryError(self._error)
        try:
            if not self._begun and not self._take_preamble():
                return None
            return self._maybe_entry()
        except EntryError as error:
            self._error = str(error)
            self._buffer = b""
            self._chunks.clear()
            raise

    def _take_preamble(self) -> bool:
        self._has(min(len(PREAMBLE), len(self._buffer) + self._chunks_bytes))
        found = self._buffer[: len(PREAMBLE)]
        if found[: len(_MAGIC)] != _MAGIC[: len(found)]:
            raise EntryError(f"the link begins with {found.hex()}: that is not a broker with replication")
        if len(found) < len(PREAMBLE):
            return False
        version = int.from_bytes(found[len(_MAGIC) :], "big")
        if version != VERSION:
            raise EntryError(f"the link has entries of version {version}, this Warren has {VERSION}")
        self._at = len(PREAMBLE)
        self._begun = True
        return True

    def _maybe_entry(self) -> Entry | None:
        if not self._has(_HEAD.size):
            return None
        length, kind, crc = _HEAD.unpack_from(self._buffer, self._at)
        entry_type = self._types.get(kind)
        if entry_type is None:
            raise self._wrong(f"an unexpected entry of kind {kind}")
        least, most = entry_type.LENGTHS
        if not least <= length <= most:
            raise self._wrong(f"{entry_type.__name__} of {length} bytes: it has {least} to {most}")
        if not self._has(_HEAD.size + length):
            return None
        buffer, at = self._buffer, self._at
        end = at + _HEAD.size + length
        if any(buffer[at + 5 : at + 8]):
            raise self._wrong(f"{entry_type.__name__} with nonzero bytes in reserved places of its head")
        view = memoryview(buffer)[at + _HEAD.size : end]
        body: Any = view if entry_type in _VIEWS else bytes(view)
        if _crc(length, kind, (body[: _COVERED_BYTES.get(entry_type)],)) != crc:
            raise self._wrong(f"{entry_type.__name__} with a wrong checksum")
        try:
            entry = entry_type.parse(body)
        except ValueError as error:
            raise self._wrong(f"{entry_type.__name__}: {error}") from None
        self._at = end
        self.entry_bytes = length
        return entry

    def _wrong(self, what: str) -> EntryError:
        return EntryError(f"byte {self._passed + self._at} of the link: {what}")


def entries_of(data: bytes, accepted: Iterable[EntryType]) -> Iterator[Entry]:
    """Yield the entries in `data`, which begins with the preamble. Raises EntryError."""
    decoder = Decoder(accepted)
    decoder.feed(data)
    while (entry := decoder.maybe_entry()) is not None:
        yield entry


def checksum_of(algorithm: int, piece: Piece, previous: int = 0) -> int:
    """Return the checksum of a piece by an algorithm of the store's files. Raises ValueError: it is unknown."""
    function: Callable[[Piece, int], int] = cast("Any", checksum_function(algorithm))
    # Without the wheel, the function with a table needs bytes.
    return function(bytes(piece) if function is table_crc32c else piece, previous)


def _crc(length: int, kind: int, pieces: Iterable[Piece]) -> int:
    crc = zlib.crc32(_COVERED_HEAD.pack(length, kind))
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return crc


def _records_body(records: Sequence[bytes]) -> Iterator[Piece]:
    for record in records:
        yield len(record).to_bytes(4, "big")
        yield record


def _parsed_records(body: bytes, at: int, count: int) -> tuple[bytes, ...]:
    records: list[bytes] = []
    while at + 4 <= len(body):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "big")
        records.append(body[start:at])
    if at != len(body) or len(records) != count:
        raise ValueError("its records do not fill it")
    return tuple(records)


def _words(words: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(8, "big") for word in words)


def _parsed_words(body: bytes) -> list[int]:
    if len(body) % 8:
        raise ValueError("its numbers do not fill it")
    return [int.from_bytes(body[at : at + 8], "big") for at in range(0, len(body), 8)]


def _known_flags(flags: int, known: int) -> int:
    if flags & ~known:
        raise ValueError(f"it has flags {flags:#x}, of which this Warren knows {known:#x}")
    return flags
