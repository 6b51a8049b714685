"""The parts of an index page that a checkpoint holds: (checkpoint.py, queue_index.py (2))."""

from __future__ import annotations

from memory_store import memory_log

from warren.msgstore.log.checkpoint import CheckpointReader, seal, snapshot
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.segments import Segment

PAGE_LSN = 4096


def log_with_page(numbers: int) -> MessageLog:
    """Return a log with a queue of `numbers` messages, whose first page of 4 has been written."""
    log = memory_log(page_entries=4)
    log.segments.add(Segment(1, 0, 1 << 20))
    index = log.new_index(1, "/", "q", 0, False)
    index.named = True
    for number in range(numbers):
        index.add(number, 64 + 128 * number, 0, 100, 10)
    page = index.page(0)
    assert page is not None
    index.page_written(page, PAGE_LSN, 96)
    return log


def restarted(log: MessageLog) -> QueueIndex:
    reader = CheckpointReader(seal(snapshot(log), log.checksum, 0))
    again = memory_log(page_entries=4)
    reader.fill(again)
    return again.indexes[1]


def test_a_whole_page_with_a_record_of_its_own_is_left_to_that() -> None:
    index = restarted(log_with_page(4))
    page = index.page(0)
    assert page is not None
    assert (page.resident, int(page.lsn), int(index.live_count)) == (False, PAGE_LSN, 4)


def test_a_page_that_may_still_grow_is_there_to_be_added_to() -> None:
    """Its last numbers may have been transient messages that a crash has taken: the next messages get them again."""
    index = restarted(log_with_page(3))
    index.add(3, 1024, 0, 100, 10)
    assert [int(index.lsn_of(number)) for number in range(4)] == [64, 192, 320, 1024]
    assert int(index.live_count) == 4
