"""The streams of one log that have files of their own, and how large their chunks are.

    recovery -> `recovered` -> the stream is restored, and takes its table -> `served`
             -> `deleted`   -> the files of these are removed (`Removals.take_sealed`)

1. A table is in `recovered` until its stream is restored. Those that stay belong to no stream in the metadata store:
   they are reported, and their files stay.
2. A stream is in `served` until it is closed, also while nothing of it is sealed.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.msgstore.log.columns import CHUNK_BYTES, CHUNK_MESSAGES
from warren.msgstore.log.sealed_table import SealedChunk, SealedTable


class SealedStream:
    """A stream that is served, for code that visits all of them."""

    def sealed(self) -> SealedTable:
        """Return the table of its sealed chunks."""
        raise AssertionError("overridden")

    def named(self) -> tuple[str, str]:
        """Return its vhost and its name."""
        raise AssertionError("overridden")

    def chunk_damaged(self, place: SealedChunk) -> None:
        """Note that a chunk cannot be read."""
        raise AssertionError("overridden")


class SealedStreams:
    """The streams of a log, by queue id."""

    def __init__(self) -> None:
        self.recovered: dict[int, SealedTable] = {}  # tables of their files
        self.deleted: set[int] = set()  # all queues whose end recovery has replayed
        self.served: dict[int, SealedStream] = {}
        self.chunk_messages: i64 = CHUNK_MESSAGES  # of a full chunk
        self.chunk_bytes: i64 = CHUNK_BYTES
