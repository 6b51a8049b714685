"""Parts of backlogs alone: what is on disk only, and the levels of a priority queue."""

from __future__ import annotations

import pytest
from stored_log import StoredLog

from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.backlog import Backlog, nobody_waits
from warren.queues.middle import Middle
from warren.queues.priority_lanes import PriorityLanes

PAGE = 4  # entries of a page


def message(properties: bytes = b"\0\0") -> Message:
    return build_message(Envelope("", "q"), properties, b"body", 4096, True)


class Stored:
    """A middle from `start` up to `end`, of which the log has these numbers."""

    def __init__(self, start: int, end: int, *numbers: int) -> None:
        self.store = StoredLog(page_entries_max=PAGE)
        self.index: QueueIndex = self.store.index(7)
        for number in numbers:
            self.store.log.batch.add(self.index, message(), number)
        self.store.rest()
        self.middle = Middle(self.index, PAGE)
        self.middle.begin(start, end, 0)
        self.middle.count = len([number for number in numbers if start <= number < end])


def test_the_middle_has_what_is_stored_between_its_ends_and_was_not_taken() -> None:
    middle = Stored(1, 7, 0, 1, 2, 5, 6, 7).middle
    middle.note_taken(2)
    assert [number for number in range(9) if middle.has(number)] == [1, 5, 6]
    assert middle.numbers_from(1, 99) == ([1, 5, 6], 7)
    assert middle.numbers_from(1, 1) == ([1], 2)
    middle.settled(2)
    assert middle.has(2), "the caller settles it in the index"


def test_of_an_absent_page_the_middle_may_have_everything() -> None:
    stored = Stored(0, 8, *range(8))
    stored.store.unload(stored.index, 0)
    assert stored.middle.may_have(1) and not stored.middle.has(1)
    assert stored.middle.may_have(5) and stored.middle.has(5)
    assert stored.middle.numbers_from(2, 1) == ([2, 3], 4)


def test_a_message_that_was_taken_is_not_settled_with_the_middle_and_keeps_its_page() -> None:
    stored = Stored(0, 8, *range(8))
    stored.middle.note_taken(5)
    assert stored.middle.has_taken_of(1) and not stored.middle.has_taken_of(0)
    stored.middle.offer_pages(0)
    stored.store.rest()
    stored.middle.offer_pages(0)
    pages = [stored.index.page(number) for number in (0, 1)]
    assert [page is not None and page.resident for page in pages] == [False, True]
    stored.middle.settle(stored.index)
    assert stored.index.live_count == 1 and stored.index.lsn_of(5)


def test_pages_that_a_read_needs_are_not_given_up() -> None:
    stored = Stored(0, 8, *range(8))
    stored.middle.offer_pages(3)
    stored.store.rest()
    stored.middle.offer_pages(3)
    pages = [stored.index.page(number) for number in (0, 1)]
    assert [page is not None and page.resident for page in pages] == [True, False]


@pytest.mark.parametrize(("priority", "lane"), [(0, 4), (1, 3), (4, 0), (200, 0)])
def test_a_priority_is_a_lane_and_the_highest_is_the_first(priority: int, lane: int) -> None:
    lanes = PriorityLanes(Backlog(StoredLog().log, nobody_waits), 5)
    assert lanes.of(message(b"\x08\x00" + bytes([priority]))) == lane


def test_a_level_has_a_backlog_from_its_first_message_on() -> None:
    highest = Backlog(StoredLog().log, nobody_waits)
    lanes = PriorityLanes(highest, 5)
    assert (lanes.used, lanes.first()) == ([0], 5)
    for lane in (3, 1):
        lanes.filled(lane).append(message())
    assert (lanes.used, lanes.first()) == ([0, 1, 3], 1)
    assert lanes.backlog(2) is lanes.backlog(4) is not lanes.backlog(1)
    lanes.backlog(1).pop()
    assert lanes.first() == 3
    highest.append(message())
    assert lanes.filled(0) is highest and lanes.first() == 0
