"""How the log is read again while it changes. The numbers in parentheses are the invariants of ``scrub.py``."""

from __future__ import annotations

from stored_log import StoredLog, timed_message

from warren.msgstore.log.message import Message
from warren.msgstore.log.scrub import PIECE_BYTES, Scrubber, ScrubRead
from warren.msgstore.log.segments import Segment

BODY = bytes(PIECE_BYTES // 2)


class ScrubbedLog(StoredLog):
    """Three sealed segments, of some pieces each, and one that is being written; `reads`: where pieces were read."""

    def __init__(self) -> None:
        super().__init__(segment_bytes=4 * PIECE_BYTES)
        self.messages: list[tuple[Message, Segment]] = []
        index = self.index(1)
        segments = self.log.segments.segments
        while len(segments) < 4:
            message = timed_message(BODY)
            self.log.batch.add(index, message, len(self.messages))
            self.rest()
            self.messages.append((message, segments[-1]))
        self.scrubber = Scrubber(self.log)
        self.reads: list[int] = []

    def step(self) -> bool:
        """Ask for the next piece, without reading it; False at the end of a pass."""
        if not self.scrubber.step():
            return False
        (job,) = self.log.read_jobs
        assert isinstance(job, ScrubRead)
        self.reads.append(job.ranges[0][0])
        return True

    def remove(self, segment: Segment) -> None:
        """Acknowledge all of it, and remove its file."""
        for number, (message, its) in enumerate(self.messages):
            if its is segment:
                self.settle(self.index(1), message, number)
        self.log.checkpoints.want()
        self.rest()
        assert segment not in self.log.segments.segments

    def scrub(self) -> list[int]:
        """Go on to the end of the pass; return the numbers of the segments of which something was read, in order."""
        while self.step():
            assert self.log.segments.maybe_find(self.reads[-1]) is not None, "it is gone"
            self.rest()
        numbers = {int(its.number): its for _, its in self.messages}
        return sorted(
            number
            for number, its in numbers.items()
            if any(its.base_lsn <= lsn < its.base_lsn + its.capacity for lsn in self.reads)
        )


def test_a_pass_reads_each_sealed_segment_once() -> None:
    """(1)"""
    s = ScrubbedLog()
    assert s.scrub() == [1, 2, 3]
    assert len(s.reads) == len(set(s.reads)) > 6
    assert (s.scrubber.passes, s.log.damage.reports) == (1, [])
    assert s.scrubber.read_bytes == sum(its.end_lsn - its.base_lsn - 64 for its in s.log.segments.segments[:3])


def test_a_segment_that_goes_between_two_pieces_is_not_asked_for_again() -> None:
    """(3)"""
    s = ScrubbedLog()
    first = s.log.segments.segments[0]
    assert s.step()
    s.rest()
    s.remove(first)
    assert s.scrub() == [1, 2, 3]
    assert [lsn for lsn in s.reads if lsn < first.end_lsn] == s.reads[:1]
    assert (s.scrubber.passes, s.log.damage.reports) == (1, [])


def test_a_segment_that_goes_while_a_piece_of_it_is_read_is_not_judged() -> None:
    """(3)"""
    s = ScrubbedLog()
    first = s.log.segments.segments[0]
    assert s.step()
    (job,) = s.log.read_jobs
    assert isinstance(job, ScrubRead)
    s.log.read_jobs.clear()
    s.remove(first)
    job.data = [b""]
    job.finished()
    assert s.scrub() == [1, 2, 3]
    assert s.scrubber.passes == 1
    assert s.log.damage.reports == []


def test_segments_that_go_before_their_turn_are_left_out() -> None:
    s = ScrubbedLog()
    assert s.step()
    s.rest()
    s.remove(s.log.segments.segments[1])
    assert s.scrub() == [1, 3]
    assert s.scrubber.passes == 1


def test_a_piece_that_is_left_is_passed_over_and_the_frames_after_it_are_checked() -> None:
    """(4)"""
    s = ScrubbedLog()
    first = s.log.segments.segments[0]
    rotten = int(first.end_lsn) - 1000
    s.disk.segments[int(first.base_lsn)][rotten - int(first.base_lsn)] ^= 1
    assert s.step()
    (job,) = s.log.read_jobs
    s.log.read_jobs.clear()
    job.is_left = True
    job.finished()
    assert s.scrub() == [1, 2, 3]
    assert sorted(s.reads) == s.reads and len(s.reads) > 8, "the pieces after it are read"
    (damage,) = s.log.damage.reports
    assert first.base_lsn < damage.lsn < rotten
    assert s.scrubber.passes == 1


def test_pieces_that_are_left_to_the_end_of_a_segment_are_no_damage() -> None:
    """(4)"""
    s = ScrubbedLog()
    first = s.log.segments.segments[0]
    while s.step():
        (job,) = s.log.read_jobs
        if s.reads[-1] < first.end_lsn:
            s.log.read_jobs.clear()
            job.is_left = True
            job.finished()
        else:
            s.rest()
    assert s.scrubber.passes == 1
    assert s.log.damage.reports == []
