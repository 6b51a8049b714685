"""Recovery's reads of a segment with a torn or damaged frame: each byte a few times, and never all of it at once."""

from __future__ import annotations

from typing import Final

import pytest
from simulation.simulated_file_system import SimulatedFileSystem
from simulation.written_store import STORE_ID, Placing, opened

from warren.msgstore.files.recovery import recover
from warren.msgstore.files.segment_image import PIECE_BYTES, SegmentImage
from warren.msgstore.files.store import Store
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import FRAME_HEADER_BYTES, FRAME_MAGIC, SEGMENT_HEADER_BYTES, frame_header

CHECKSUM: Final = checksum_function(default_algorithm())
TAG: Final = STORE_ID[:8]


class Reads:
    """A file that notes what is read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.total = 0
        self.largest = 0

    def __call__(self, number: int, offset: int, length: int) -> bytes:
        self.total += length
        self.largest = max(self.largest, length)
        return self.data[offset : offset + length]

    def image(self) -> SegmentImage:
        return SegmentImage(self, 1, len(self.data), 0, CHECKSUM, TAG)


def frame(lsn: int, payload: bytes, *, durable_lsn: int = 0) -> bytes:
    return frame_header(CHECKSUM, [payload], len(payload), lsn, durable_lsn, 0, 1, 0, 1, TAG) + payload


def test_what_looks_like_a_frame_is_looked_at_in_pieces() -> None:
    size = 20 * PIECE_BYTES
    forged = FRAME_MAGIC + b"\x7f\xff\xff\xf8"  # of 2 GiB
    body = (forged * (size // 8 + 1))[:size]
    reads = Reads(bytes(SEGMENT_HEADER_BYTES) + b"torn" + bytes(4) + body)
    assert list(reads.image().frames_from(SEGMENT_HEADER_BYTES)) == []
    assert reads.largest <= PIECE_BYTES + FRAME_HEADER_BYTES
    assert reads.total <= 2 * len(reads.data)


@pytest.mark.parametrize("shift", [0, 8, PIECE_BYTES - 64, PIECE_BYTES - 16, PIECE_BYTES - 8])
def test_a_frame_is_found_wherever_it_begins(shift: int) -> None:
    before = SEGMENT_HEADER_BYTES + 2 * PIECE_BYTES + shift
    written = frame(before, bytes(64))
    reads = Reads(bytes(before) + written + bytes(1000))
    ((head, at),) = reads.image().frames_from(SEGMENT_HEADER_BYTES + 8)
    assert (at, head.lsn) == (before, before)
    assert reads.largest <= PIECE_BYTES + FRAME_HEADER_BYTES


def test_a_frame_that_is_larger_than_a_piece_is_read_whole() -> None:
    payload = bytes(range(256)) * (3 * PIECE_BYTES // 256)
    reads = Reads(bytes(SEGMENT_HEADER_BYTES) + frame(SEGMENT_HEADER_BYTES, payload))
    found = reads.image().maybe_frame(SEGMENT_HEADER_BYTES)
    assert found is not None and found[1][FRAME_HEADER_BYTES:] == payload
    assert reads.largest == FRAME_HEADER_BYTES + len(payload)


def test_no_segment_is_read_as_a_whole() -> None:
    fs = SimulatedFileSystem()
    store = opened(fs)
    placing = Placing()
    for _ in range(300):
        store.commit(placing.job(bytes(64)), 0)
    store.close()

    class Watched(Store):
        """A store that cannot read whole segments."""

        def read_segment(self, number: int) -> bytes:
            raise AssertionError("a whole segment is read")

    again = Watched(fs)
    again.open()
    log = MessageLog(CHECKSUM, 1 << 20)
    with pytest.raises(AssertionError, match="does not fit its intact frame"):
        recover(again, log, bytes(16))  # the payloads are not records, so they were read frame by frame
