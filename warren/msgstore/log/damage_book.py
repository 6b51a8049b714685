"""The damage on disk that one log knows.

    a read, recovery, scrubbing -> reports -> the shell logs them, and has the places mended
                      (`report_…`)  |  (`take`)
                                    +-> indexes, chunks -> listed for operators, until given up (``queues.damage``)

1. A place is reported once: the index, the stream or the scrubber remembers it.
2. In memory only. The next process finds the same when it reads (``index_damage.py``).
3. `indexes` has exactly the indexes whose `QueueIndex.damage` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.segments import SegmentTable

if TYPE_CHECKING:
    from warren.msgstore.log.queue_index import QueueIndex


class Damage:
    """A place of the log that no longer has the bytes written there.

    `queue` and `vhost` are ``""`` when it is not known whose it was, `sequence_number` -1 when it is more than one.
    """

    def __init__(self, lsn: int, segment: int, vhost: str, queue: str, sequence_number: int) -> None:
        self.lsn = lsn
        self.segment = segment
        self.vhost = vhost
        self.queue = queue
        self.sequence_number = sequence_number


class DamageBook:
    """The damage of a log with these `segments`."""

    def __init__(self, segments: SegmentTable) -> None:
        self.reports: list[Damage] = []  # taken by the shell
        self.indexes: dict[int, QueueIndex] = {}  # by queue id: those with damage that is known
        self.chunks: dict[int, set[int]] = {}  # by stream id: the first offsets of damaged chunks
        self._segments = segments

    def report_message(self, index: QueueIndex, number: i64, lsn: i64) -> None:
        """Report a damaged message, once, or with -1 a page of them."""
        if number >= 0 and not index.damage_message(number):
            return
        segment = self._segments.find(lsn)
        self.reports.append(Damage(int(lsn), int(segment.number), index.vhost, index.name, int(number)))

    def report_frame(self, lsn: i64, segment: i64) -> None:
        """Report a damaged frame; it is not known which messages it has."""
        self.reports.append(Damage(int(lsn), int(segment), "", "", -1))

    def report_chunk(self, stream_id: int, vhost: str, name: str, first: int) -> None:
        """Report the sealed messages of a stream from offset `first` on, which are missing or cannot be read."""
        self.chunks.setdefault(stream_id, set()).add(first)
        self.reports.append(Damage(-1, -1, vhost, name, first))

    def take(self) -> list[Damage]:
        """Return the new reports, and forget them."""
        reports = self.reports
        self.reports = []
        return reports
