"""What the engine asks the store's threads to do: plain values, made on the loop, carried out elsewhere.

The engine half of the store never touches a file. It makes these, the shell carries them out in order, and hands each
one back with its outcome filled in. `CommitJob`s go to the committer, everything else to the reader.
"""

from __future__ import annotations

from mypy_extensions import i64


class CommitJob:
    """Write one frame, and make it durable when `sync`. With no records there is no frame, only the sync.

    The committer adds what only it knows: the time, the LSN that is durable by now, the epoch and the crc of the
    frame before.
    """

    def __init__(
        self,
        batch: i64,
        lsn: i64,
        segment: i64,
        base_lsn: i64,
        capacity: i64,
        chunks: list[bytes],
        payload_bytes: i64,
        record_count: i64,
        sync: bool,
    ) -> None:
        self.batch: i64 = batch  # batches count from 1 in each life of the process
        self.lsn: i64 = lsn  # of the frame's first byte
        self.segment: i64 = segment  # number of the segment; another one than before begins a new file
        self.base_lsn: i64 = base_lsn
        self.capacity: i64 = capacity
        self.chunks = chunks  # the payload
        self.payload_bytes: i64 = payload_bytes
        self.record_count: i64 = record_count
        self.sync: bool = sync
        self.crc: i64 = 0  # outcome: the crc field of the frame


class ReadJob:
    """Read ranges of the log. ``data[n]`` is range n; shorter than asked, or empty, where the file ends or fails."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.ranges = ranges  # (lsn, length)
        self.data: list[bytes] = []

    def finished(self) -> None:
        """Take the data back into the engine. Called on the loop."""
        raise AssertionError("overridden")


class CheckpointJob:
    """Replace the checkpoint file. Only carried out once the log is durable up to `lsn`."""

    def __init__(self, lsn: i64, content: bytes) -> None:
        self.lsn: i64 = lsn
        self.content = content  # as ``checkpoint.snapshot`` makes it
        self.last_crc: i64 = 0  # of the frame that ends at `lsn`; ``checkpoint.seal`` wants it


class UnlinkJob:
    """Remove segment files that nobody needs."""

    def __init__(self, segments: list[int]) -> None:
        self.segments = segments
