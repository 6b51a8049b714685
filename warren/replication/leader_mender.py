"""Damage that a leader's reads and its scrubbing find, mended from a follower in sync; see ``mending``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.segment_header import read_header
from warren.msgstore.files.segment_names import LOG, maybe_segment_number
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.jobs import Errand, SealedRead
from warren.replication.mending import Mender
from warren.replication.questions import Questions


class LeaderMender:
    """Mends the store in the root directory of `fs`; see ``server.message_store.Mender``."""

    def __init__(self, fs: FileSystem, peers: Callable[[], Sequence[Questions]], store_id: Callable[[], bytes]) -> None:
        self._fs = fs
        self._store_id = store_id
        self._mender = Mender(fs, peers, store_id=store_id)

    @property
    def mended(self) -> int:
        """How many places were mended."""
        return self._mender.mended

    def mend(self, job: Errand, places: list[int]) -> bool:
        if isinstance(job, SealedRead):
            return self._mender.mend_chunk(self._store_id(), job.stream_id, job.segment, job.position, job.length)
        # Places that are damaged in one frame are mended together.
        mended = [self._mender.mend_frames(number, lsn) for lsn in places if (number := self._segment_of(lsn))]
        return any(mended)

    def mend_unread(self, job: Errand, segment: int) -> bool:
        """See ``server.message_store.Mender``: a read may span frames, and the first of them may be intact."""
        return self._mender.mend_frames(segment) if segment else self.mend(job, [])

    def mend_segment(self, number: int, lsn: int) -> None:
        self._mender.mend_frames(number, lsn)

    def _segment_of(self, lsn: int) -> int:
        """Return the number of the segment that an LSN is in, 0 without one; that of a damaged header if it fits."""
        found = 0
        for name in reversed(self._fs.names(LOG)):
            number = maybe_segment_number(name)
            if number is None:
                continue
            try:
                header, _ = read_header(self._fs, number)
            except StoreUnreadableError:
                header = ""
            if isinstance(header, str):
                found = number
            elif header.base_lsn <= lsn:
                return number if lsn < header.base_lsn + header.capacity else found
            else:
                found = 0
        return found
