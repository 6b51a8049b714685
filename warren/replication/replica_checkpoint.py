"""The checkpoint of a follower: what the kept one says, and the one that comes in, piece by piece, beside it.

1. Pieces come in order. The first one begins again, whatever has come before.
2. A checkpoint gets its name when it is synced, and the name is durable when `put` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from warren.msgstore.files.file_system import FileSystem, read_exactly, unlink_if_there, write_all
from warren.msgstore.files.recovery import ADVICE
from warren.msgstore.files.segment_header import SegmentHeader
from warren.msgstore.files.store import CHECKPOINT_TMP
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.checkpoint import HEADER_BYTES as CHECKPOINT_HEADER_BYTES
from warren.msgstore.log.checkpoint import (
    MINOR_WITHOUT_EPOCHS,
    MINOR_WITHOUT_LIVES,
    SEGMENT_BYTES,
    CheckpointError,
    CheckpointReader,
)
from warren.msgstore.log.checksum import checksum_function
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.replication.entries import CheckpointPiece

_EPOCH: Final = Struct(">I4xQ16x")
_EPOCH_WITHOUT_LIFE: Final = Struct(">I4xQ")
_SEGMENT: Final = Struct(">QQQQQQ")  # in a checkpoint: number, base LSN, capacity, end LSN, live references, live bytes


class NeededSegment(NamedTuple):
    """A segment with messages, as a checkpoint has it. `end_lsn`: after its last frame before the checkpoint."""

    base_lsn: int
    capacity: int
    end_lsn: int


class KeptCheckpoint:
    """Of a checkpoint: its LSN, its epochs, and the segments that it needs: referred to, or after its LSN."""

    def __init__(self, content: bytes | None) -> None:
        self.lsn = 0
        self.epochs: list[tuple[int, int]] = []
        self.segments: dict[int, NeededSegment] = {}  # those that it refers to, by number
        if content is None:
            return
        self.lsn = int.from_bytes(content[32:40], "big")
        count = int.from_bytes(content[76:80], "big")
        table = content[CHECKPOINT_HEADER_BYTES : CHECKPOINT_HEADER_BYTES + count * SEGMENT_BYTES]
        minor = int.from_bytes(content[10:12], "big")
        if minor > MINOR_WITHOUT_EPOCHS:
            entry = _EPOCH if minor > MINOR_WITHOUT_LIVES else _EPOCH_WITHOUT_LIFE
            at = len(content) - 4 - int.from_bytes(content[14:16], "big") * entry.size
            self.epochs = list(entry.iter_unpack(content[at:-4]))
        self.segments = {
            number: NeededSegment(base_lsn, capacity, end_lsn)
            for number, base_lsn, capacity, end_lsn, refs, _ in _SEGMENT.iter_unpack(table)
            if refs
        }

    def needs(self, segment: SegmentHeader) -> bool:
        """Tell whether a segment must stay."""
        return segment.number in self.segments or segment.base_lsn + segment.capacity > self.lsn

    def is_about(self, segment: SegmentHeader) -> bool:
        """Tell whether a segment is the one that it refers to by this number: of the same place and epoch."""
        needed = self.segments.get(segment.number)
        if needed is None or (needed.base_lsn, needed.capacity) != (segment.base_lsn, segment.capacity):
            return False
        first_lsn = segment.base_lsn + SEGMENT_HEADER_BYTES
        begun = [epoch for epoch, epoch_lsn in self.epochs if epoch_lsn <= first_lsn]
        return not begun or max(begun) == segment.epoch


class IncomingCheckpoint:
    """The one that comes in. `sync` and `sync_directory` are the store's, which may fail it.

    Every method may raise OSError.
    """

    def __init__(self, fs: FileSystem, sync: Callable[[int, str], None], sync_directory: Callable[[str], None]) -> None:
        self.size = 0  # how many bytes have come
        self._fs = fs
        self._sync = sync
        self._sync_directory = sync_directory
        self._handle = -1

    def write(self, piece: CheckpointPiece) -> bool:
        """Write a piece; False when it does not follow those that have come. Can be repeated."""
        if piece.offset == 0:
            self.give_up()
            unlink_if_there(self._fs, CHECKPOINT_TMP)
            self._handle = self._fs.create(CHECKPOINT_TMP, 0)
        if self._handle < 0 or piece.offset > self.size:
            return False
        write_all(self._fs, self._handle, [piece.data], piece.offset)
        self.size = piece.offset + len(piece.data)
        return True

    def content(self, total_bytes: int) -> bytes:
        """Return all of it, as it is in the file."""
        return read_exactly(self._fs, self._handle, total_bytes, 0)

    def put(self, path: str) -> None:
        """Make it durable, under that name."""
        self._sync(self._handle, CHECKPOINT_TMP)
        self._fs.rename(CHECKPOINT_TMP, path)
        self.give_up()
        self._sync_directory(".")

    def give_up(self) -> None:
        """Give the file back."""
        self.size = 0
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)


def checked(content: bytes) -> CheckpointReader:
    """Return a reader of a checkpoint that is intact.

    Raises:
        StoreError: it is not.
    """
    try:
        reader = CheckpointReader(content)
        if not reader.is_intact(checksum_function(reader.algorithm)):
            raise CheckpointError("its checksum is wrong")
    except ValueError as error:
        raise StoreError(f"the checkpoint of the message store cannot be read: {error}; {ADVICE}") from None
    return reader
