"""Pages on disk whose messages are all gone: read back, and released. In parentheses: ``doomed_pages.py``."""

from __future__ import annotations

import pytest
from stored_log import StoredLog, timed_message

from warren.msgstore.log.doomed_pages import DOOMED_PER_JOB
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex

PAGE = 4


def references(log: MessageLog) -> int:
    return sum(int(segment.live_refs) for segment in log.segments.segments)


def stored(pages: int) -> tuple[StoredLog, QueueIndex]:
    """Return a log with a queue of `pages` full pages, on disk only, and one message more."""
    log = StoredLog(page_entries_max=PAGE)
    index = log.index(1)
    for number in range(pages * PAGE + 1):
        log.log.batch.add(index, timed_message(b"x"), number)
    log.rest()
    index.unload_candidates = list(range(pages))
    for _ in range(2):
        index.unload(0, pages)
        log.rest()
    assert not any(page.resident for page in index.pages[:pages] if page is not None)
    return log, index


def test_they_count_until_they_are_read_a_few_at_a_time() -> None:
    """(1)"""
    pages = 2 * DOOMED_PER_JOB + 1
    log, index = stored(pages)
    before = references(log.log)
    assert before == pages * (PAGE + 1) + 1
    log.log.batch.settle_range(index, 0, pages * PAGE)
    assert (references(log.log), len(log.log.doomed.pages)) == (before, pages)
    for left in (pages - 1, pages - 1 - DOOMED_PER_JOB, 0):  # the first is asked for at once
        assert len(log.log.read_jobs) == 1
        assert log.disk.run()
        assert len(log.log.doomed.pages) == left
        assert references(log.log) == before - (pages - left) * (PAGE + 1)
    log.rest()
    assert (references(log.log), log.log.doomed.pages) == (1, [])
    log.log.check_invariants()


def test_a_start_goes_on_with_those_of_the_checkpoint() -> None:
    """(2)"""
    log, index = stored(5)
    log.log.batch.settle_range(index, 0, 5 * PAGE)
    checkpoint = log.checkpoint()
    assert len(log.log.doomed.pages) == 5
    restarted = log.restarted(checkpoint)
    assert (references(restarted), restarted.doomed.pages) == (1, [])
    restarted.check_invariants()


@pytest.mark.parametrize("lost", [0, 3])
def test_one_that_cannot_be_read_releases_only_itself(lost: int) -> None:
    """(3)"""
    log, index = stored(5)
    page = index.page(lost)
    assert page is not None
    image = log.disk.segments[0]
    image[int(page.lsn) + 20] ^= 0x55
    log.log.batch.settle_range(index, 0, 5 * PAGE)
    log.rest()
    assert (references(log.log), log.log.doomed.pages) == (1 + PAGE, [])
