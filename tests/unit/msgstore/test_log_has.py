"""Whether the log continues where a stream's files end (``recovery.log_has``); if so, a torn end is corruption."""

from __future__ import annotations

from memory_store import memory_log

from warren.msgstore.files.recovery import log_has
from warren.msgstore.log.checkpoint import CheckpointReader, seal, snapshot
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.segments import Segment


def log_with(first: int, end: int) -> MessageLog:
    """Return a log, in pages of 4, that had messages up to `end`, and has forgotten those before `first`."""
    log = memory_log(page_entries=4)
    log.segments.add(Segment(1, 0, 1 << 20))
    index = log.new_index(1, "/", "s", 0, False)
    index.named = True
    for number in range(end):
        index.add(number, 64 + 128 * number, 0, 100, 10)
    index.forget_range(0, first)
    return log


def test_the_log_goes_on_where_it_has_the_message_or_nothing_came_from_there_on() -> None:
    for first in range(11):
        log = log_with(first, 10)
        assert [log_has(log, 1, offset) for offset in range(12)] == [
            first <= offset or offset >= 10 for offset in range(12)
        ]


def test_of_a_stream_that_the_log_does_not_know_nothing_is_missing() -> None:
    assert log_has(log_with(10, 10), 2, 0)


def test_a_page_that_is_absent_has_its_last_messages() -> None:
    log = log_with(0, 8)
    index = log.indexes[1]
    page = index.page(1)
    assert page is not None
    index.page_written(page, 4096, 96)
    again = memory_log(page_entries=4)
    CheckpointReader(seal(snapshot(log), log.checksum, 0)).fill(again)
    absent = again.indexes[1].page(1)
    assert absent is not None and not absent.resident
    assert [log_has(again, 1, offset) for offset in range(3, 9)] == [True] * 6
    absent.live = 1
    assert [log_has(again, 1, offset) for offset in range(4, 9)] == [False, False, False, True, True]
