"""The header of a segment file: read, or made again of the frames when the disk has damaged it.

1. A damaged header costs no message: the log is replayed as if it were whole. So nothing gets a place in the log, or a
   number in a queue, that a message of this segment has, and a repair can write the header at any time.
2. The first frame that is intact tells the place of the segment. It must be of this store, and fit between the segments
   before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Final

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.segment_image import ReadRange, SegmentImage
from warren.msgstore.files.segment_names import LOG, maybe_segment_number, segment_path
from warren.msgstore.files.segment_reads import unreadable
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.checksum import CRC32, CRC32C, checksum_function
from warren.msgstore.log.records import (
    FORMAT_MAJOR,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    STORE_TAG_AT,
    STORE_TAG_BYTES,
    Checksum,
    padded,
    segment_header,
)

_STORE_ID_BYTES: Final = 16
# Magic, major, minor, algorithm, store id, number, base LSN, capacity, epoch, crc.
_HEADER: Final = Struct(">8sHHB3x16sQQQII")


@dataclass(slots=True)
class SegmentHeader:
    """The fields of a segment file's header, and its `size` in bytes."""

    number: int
    base_lsn: int
    capacity: int
    epoch: int
    algorithm: int
    store_id: bytes
    size: int
    is_remade: bool = False  # of the frames: the one in the file is damaged

    def encoded(self) -> bytes:
        """Return the bytes of a file that begins with this header."""
        checksum = checksum_function(self.algorithm)
        fields = (self.algorithm, self.store_id, self.number, self.base_lsn, self.capacity, self.epoch)
        return segment_header(checksum, *fields)


def read_headers(
    fs: FileSystem,
    numbers: Sequence[int],
    read: ReadRange,
    checkpoint: Callable[[], bytes | None],
    known: Mapping[int, SegmentHeader],
) -> tuple[list[SegmentHeader], list[str]]:
    """Return the headers of the segments that can be used, by number, and the problems of the others.

    `numbers`: of all segments, ascending. `known`: headers that need not be read. Raises StoreUnreadableError.
    """
    headers: list[SegmentHeader] = []
    problems: list[str] = []
    damaged: list[tuple[int, int, str]] = []
    for number in numbers:
        found, size = (known[number], 0) if number in known else read_header(fs, number)
        if isinstance(found, SegmentHeader):
            headers.append(found)
        else:
            damaged.append((number, size, found))
    if headers:
        # The newest file tells whose store this is.
        ours = headers[-1].store_id
        for header in headers:
            if header.store_id != ours:
                problems.append(f"{segment_path(header.number)} is of another store, {header.store_id.hex()}")
        headers = [header for header in headers if header.store_id == ours]
    for number, size, fault in damaged:
        remade = remade_header(read, number, size, headers, checkpoint())
        if remade is None:
            problems.append(f"{segment_path(number)} {fault}")
        else:
            headers = sorted([*headers, remade], key=lambda each: each.number)
    return headers, problems


def read_header(fs: FileSystem, number: int) -> tuple[SegmentHeader | str, int]:
    """Return the header of a segment, or its fault, and the size of the file. Raises StoreUnreadableError."""
    path = segment_path(number)
    try:
        handle = fs.open(path, writable=False)
        try:
            size = fs.size(handle)
            data = read_exactly(fs, handle, SEGMENT_HEADER_BYTES, 0)
        finally:
            fs.close(handle)
    except OSError as error:
        raise unreadable(path, error, number) from None
    header = parsed_header(data, size, path)
    if isinstance(header, SegmentHeader) and header.number != number:
        return f"says that it is segment {header.number}", size
    return header, size


def mended_segments(
    fs: FileSystem, known: Sequence[tuple[int, int, int]], store_id: bytes
) -> list[tuple[int, int, int]]:
    """Return base LSN, number and capacity of the segments of a store that can be used, except for those `known`."""
    numbers = {number for _, number, _ in known}
    found: list[tuple[int, int, int]] = []
    with suppress(OSError, StoreError):
        for name in fs.names(LOG):
            number = maybe_segment_number(name)
            if number is None or number in numbers:
                continue
            header, _ = read_header(fs, number)
            if isinstance(header, SegmentHeader) and header.store_id == store_id:
                found.append((header.base_lsn, number, header.capacity))
    return found


def parsed_header(data: bytes, size: int, path: str) -> SegmentHeader | str:
    """Return the header at the beginning of a segment file of `size` bytes, or what is wrong with it.

    Raises:
        StoreError: a later version of Warren has written it.
    """
    if len(data) < SEGMENT_HEADER_BYTES or data[: len(SEGMENT_MAGIC)] != SEGMENT_MAGIC:
        return "does not begin like a segment"
    _, major, minor, algorithm, store_id, number, base_lsn, capacity, epoch, crc = _HEADER.unpack(data)
    if algorithm not in (CRC32C, CRC32) or checksum_function(algorithm)(data[:-4], 0) != crc:
        return "has a damaged header"
    if major != FORMAT_MAJOR:
        raise StoreError(
            f"{path} has format version {major}.{minor}, this Warren reads {FORMAT_MAJOR}: a newer Warren has "
            "written this store"
        )
    return SegmentHeader(number, base_lsn, capacity, epoch, algorithm, store_id, size)


def remade_header(
    read: ReadRange, number: int, size: int, others: Sequence[SegmentHeader], checkpoint: bytes | None
) -> SegmentHeader | None:
    """Return the header of a segment as its first intact frame says it, None if that is not known.

    `others`: the headers of the store, by number. `checkpoint`: tells whose the segment is when they do not.
    """
    tells = _id_by_file(others, checkpoint) or _id_by_frame(read(number, SEGMENT_HEADER_BYTES, FRAME_HEADER_BYTES))
    if tells is None:
        return None
    store_id, algorithms = tells
    for algorithm in algorithms:
        found = _first_frame(read, number, size, checksum_function(algorithm), store_id[:STORE_TAG_BYTES])
        if found is not None:
            base_lsn, epoch = found
            header = SegmentHeader(
                number, base_lsn, int(padded(size)), epoch, algorithm, store_id, size, is_remade=True
            )
            return header if _has_place(header, others) else None
    return None


def _id_by_file(others: Sequence[SegmentHeader], checkpoint: bytes | None) -> tuple[bytes, list[int]] | None:
    if others:
        return others[-1].store_id, [others[-1].algorithm]
    if checkpoint is None:
        return None
    # A damaged one stops the start in any case.
    return checkpoint[16:32], [each for each in (CRC32C, CRC32) if each in checkpoint[12:13]]


def _id_by_frame(head: bytes) -> tuple[bytes, list[int]] | None:
    """Return the id as far as the head of the first frame says it; a frame further on may be a publisher's."""
    tag = head[STORE_TAG_AT : STORE_TAG_AT + STORE_TAG_BYTES]
    if head[: len(FRAME_MAGIC)] != FRAME_MAGIC or not any(tag):
        return None
    return tag.ljust(_STORE_ID_BYTES, b"\0"), [CRC32C, CRC32]


def _first_frame(read: ReadRange, number: int, size: int, checksum: Checksum, tag: bytes) -> tuple[int, int] | None:
    """Return the base LSN and the epoch of a segment by its first intact frame."""
    for at in SegmentImage(read, number, size, 0, checksum, tag).heads(SEGMENT_HEADER_BYTES):
        base_lsn = int.from_bytes(read(number, at + 8, 8), "big") - at
        image = SegmentImage(read, number, size, base_lsn, checksum, tag)
        found = image.maybe_frame(at) if base_lsn >= 0 else None
        if found is not None:
            return base_lsn, found[0].epoch
    return None


def _has_place(header: SegmentHeader, others: Sequence[SegmentHeader]) -> bool:
    """Tell whether a segment fits between the others."""
    for other in others:
        first, second = sorted((header, other), key=lambda each: each.number)
        if first.base_lsn + first.capacity > second.base_lsn:
            return False
    return True
