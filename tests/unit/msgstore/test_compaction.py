"""Compaction beside index pages that come and go: compaction.py (4) and (5). The rest is in ``tests/simulation``."""

from __future__ import annotations

from collections.abc import Callable

from stored_log import MAX, StoredLog, timed_message

from warren.msgstore.log.compaction import ROUNDS_MAX, PagesRead, PieceRead
from warren.msgstore.log.jobs import Errand
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.segments import Segment

PAGE = 4
COUNT = 8 * PAGE


class Sparse(StoredLog):
    """A log whose first segment has a message left of each page of an index, all of which are on disk only."""

    def __init__(self) -> None:
        super().__init__(segment_bytes=8192, page_entries_max=PAGE)
        self.of_queue: QueueIndex = self.index(1)
        messages = [timed_message(bytes(100)) for _ in range(COUNT)]
        for number, message in enumerate(messages):
            self.log.batch.add(self.of_queue, message, number)
        self.rest()
        self.segment: Segment = self.log.segments.segments[0]
        for number, message in enumerate(messages):
            if number % PAGE:
                self.settle(self.of_queue, message, number)
        other = self.index(2)
        for number in range(60):  # the segment is full, and the next one begun
            self.log.batch.add(other, timed_message(bytes(200)), number)
            self.rest()
        self.log.batch.settle_range(other, 0, 60)
        for page_number in range(COUNT // PAGE):
            self.unload(self.of_queue, page_number)
        self.log.checkpoints.want()
        self.rest()
        assert self.segment.is_sparse(False) and self.segment.end_lsn <= self.log.checkpoints.lsn

    def absent(self) -> list[int]:
        return [number for number, page in enumerate(self.of_queue.pages) if page is not None and not page.resident]

    def make_absent(self, numbers: list[int]) -> None:
        """Remove pages from memory that were not changed since they were written."""
        for number in numbers:
            page = self.of_queue.page(number)
            assert page is not None
            if page.resident:
                page.dirty = False
                self.of_queue.make_absent(page)

    def run_reads(self, before: Callable[[Errand], None]) -> None:
        """Compact one segment; `before` a read is taken note of."""
        assert self.compaction.step()
        while self.log.read_jobs:
            jobs, self.log.read_jobs = self.log.read_jobs, []
            for job in jobs:
                job.carry_out(self.disk.files)
                before(job)
                job.finished()


def test_a_page_that_leaves_memory_while_others_are_read_is_read_too() -> None:
    """(5)"""
    log = Sparse()
    rounds: list[int] = []

    def before(job: Errand) -> None:
        if isinstance(job, PieceRead):
            for number in (1, 2, 5):
                log.load(log.of_queue, number)  # somebody has a use for them
        elif isinstance(job, PagesRead):
            rounds.append(len(job.pages))
            if len(rounds) == 1:
                log.make_absent([1, 2, 5])

    log.run_reads(before)
    log.rest()
    assert rounds == [COUNT // PAGE - 3, 3]
    assert log.segment.live_refs == 0


def test_a_page_whose_message_is_to_be_copied_stays_until_that_is_done() -> None:
    """(5)"""
    log = Sparse()
    log.load(log.of_queue, 3)
    log.run_reads(lambda job: None)
    page = log.of_queue.page(3)
    assert page is not None and page.dirty
    log.of_queue.unload_candidates = [3]
    log.of_queue.unload(0, MAX)
    assert page.resident
    log.rest()
    assert log.segment.live_refs == 0


def test_what_was_left_is_tried_again_when_the_copies_are_written() -> None:
    """(4)"""
    log = Sparse()

    def before(job: Errand) -> None:
        if isinstance(job, PieceRead):
            for number in (1, 2, 5):
                log.load(log.of_queue, number)
        else:
            log.make_absent([1, 2, 5])
            log.compaction._rounds = ROUNDS_MAX

    log.run_reads(before)
    assert not log.compaction.step(), "not before"
    log.rest()
    assert log.segment.live_refs == 3
    log.compact()
    assert log.segment.live_refs == 0


def test_a_segment_with_a_damaged_record_is_not_looked_at_again() -> None:
    """(4)"""
    log = Sparse()
    log.load(log.of_queue, 3)
    at = int(log.of_queue.lsn_of(3 * PAGE) - log.segment.base_lsn)
    log.disk.segments[int(log.segment.base_lsn)][at + 60] ^= 1
    log.run_reads(lambda job: None)
    log.rest()
    assert log.segment.live_refs == 1
    moved = log.compaction.moved_bytes
    log.compact()
    assert (log.compaction.moved_bytes, log.segment.live_refs) == (moved, 1)


def test_a_segment_that_was_left_is_tried_again_when_its_read_has_succeeded() -> None:
    """(6)"""
    log = Sparse()
    for read in (PieceRead, PagesRead):
        assert log.compaction.step()
        while not isinstance(log.log.read_jobs[0], read):
            job = log.log.read_jobs.pop()
            job.carry_out(log.disk.files)
            job.finished()
        late = log.log.read_jobs.pop()
        log.compaction.leave()
        log.compact()
        assert log.segment.live_refs == COUNT // PAGE
        late.carry_out(log.disk.files)
        late.finished()
    log.compact()
    assert log.segment.live_refs == 0
