"""Reading out of turn, and looking for times. Numbers in parentheses: the header of ``warren/queues/fetch.py``."""

from __future__ import annotations

import pytest
from held_store import HeldStore

from warren.msgstore.log.jobs import ReadJob
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.fetch import Fetch, TimeScan


class Noted(Fetch):
    """A fetch that records the bodies it gets and continues by itself. `keeps`: it leaves damaged pages to others."""

    def __init__(self, store: HeldStore, numbers: list[int], most_bytes: int = 0, *, keeps: bool = False) -> None:
        super().__init__(store.log, store.index, numbers, most_bytes)
        self.came: list[list[bytes | None]] = []
        self.asked: list[list[int]] = []
        self.keeps = keeps

    def fetched(self, messages: list[Message | None]) -> None:
        self.asked.append(list(self.numbers))
        self.came.append([None if message is None else message.body() for message in messages])
        self.fetch_rest()

    def page_damaged(self, page: IndexPage) -> None:
        if not self.keeps:
            super().page_damaged(page)


class Times(TimeScan):
    """Notes the times that it finds, and the records if it gets them."""

    def __init__(self, store: HeldStore, *, whole: bool = False, wanted_flag: int = 0) -> None:
        super().__init__(store.log, store.index, wanted_flag, whole=whole)
        self.times: list[tuple[int, int]] = []
        self.records: dict[int, bytes] = {}
        self.lost: list[int] = []
        self.damaged = 0
        self.over = False

    def found(self, number: int, time_ms: int, data: bytes) -> None:
        self.times.append((number, time_ms))
        self.records[number] = data

    def unreadable(self, number: int) -> None:
        self.lost.append(number)

    def page_damaged(self, page: IndexPage) -> None:
        self.damaged += 1

    def ended(self) -> None:
        self.over = True


def filled(count: int, *, body: bytes = b"", segment_bytes: int = 1 << 16, absent: bool = True) -> HeldStore:
    """Return a store with messages ``0``, ``1`` and so on; on disk only, their pages too, if `absent`."""
    store = HeldStore(segment_bytes=segment_bytes)
    store.fill(count, step_ms=1, body=body, absent=absent)
    return store


def page_of(store: HeldStore, number: int) -> IndexPage:
    page = store.index.page(number // store.page_entries)
    assert page is not None
    return page


def lsn_of(index: QueueIndex, number: int) -> int:
    return int(index.lsn_of_resident(number))


# --- fetching ---------------------------------------------------------------------------------------------------------


def test_messages_come_in_the_order_in_which_they_were_asked_for() -> None:
    store = filled(20)
    fetch = Noted(store, [13, 2, 17, 3, 0])
    fetch.begin()
    assert fetch.came == []
    store.rest()
    assert fetch.came == [[b"13", b"2", b"17", b"3", b"0"]]
    assert sorted(fetch.loaded) == [0, 3, 4]
    assert all(page_of(store, number).resident for number in (13, 2, 17))
    assert not page_of(store, 8).resident


def test_what_is_gone_or_was_never_stored_is_none() -> None:
    """(1)"""
    store = filled(10, absent=False)
    store.take([3], 1)
    store.give_up_pages()
    fetch = Noted(store, [3, 4, 1000, 5])
    fetch.begin()
    store.rest()
    assert fetch.came == [[None, b"4", None, b"5"]]
    nothing = Noted(store, [3, 1000])
    nothing.begin()
    assert nothing.came == [[None, None]]


def test_what_is_settled_while_it_is_read_is_none() -> None:
    """(1)"""
    store = filled(10)
    fetch = Noted(store, [4, 5])
    fetch.begin()
    assert store.disk.read_one()
    assert page_of(store, 4).resident
    store.log.batch.settle(store.index, store.message(b"5"), 5)
    assert store.disk.read_one()
    assert fetch.came == [[b"4", None]]


def test_what_is_not_written_yet_is_waited_for() -> None:
    store = filled(4, absent=False)
    store.hold(b"new", 1)
    store.close_batch()
    store.lane.memory.kept_max = -1
    fetch = Noted(store, [4, 0])
    fetch.begin()
    assert not store.log.read_jobs
    assert store.disk.commit_one()
    assert store.disk.read_one()
    assert fetch.came == [[b"new", b"0"]]


def test_what_is_stored_while_the_others_are_read_comes_too() -> None:
    store = filled(4, absent=False)
    store.hold(b"new", 1)
    fetch = Noted(store, [0, 4])
    fetch.begin()
    store.close_batch()
    store.disk.commit_one()
    while store.disk.read_one():
        pass
    assert fetch.came == [[b"0", b"new"]]


def test_not_more_than_was_asked_for_comes_at_a_time_but_one_message_always() -> None:
    """(5)"""
    store = filled(12, body=b"x" * 300)
    fetch = Noted(store, list(range(12)), 1500)
    fetch.begin()
    store.rest()
    assert [len(came) for came in fetch.came] == [3, 3, 3, 3]
    assert [number for asked in fetch.asked for number in asked] == list(range(12))
    single = Noted(store, [7, 2, 9], 1)
    single.begin()
    store.rest()
    assert single.asked == [[7], [2], [9]]
    assert all(came[0] is not None for came in single.came)


def test_messages_that_lie_together_are_read_in_one_go() -> None:
    store = filled(40)
    fetch = Noted(store, list(range(39, -1, -1)))
    fetch.begin()
    store.disk.read_one()
    (job,) = store.log.read_jobs
    assert isinstance(job, ReadJob) and len(job.ranges) == 1
    store.rest()
    assert fetch.came == [[b"%d" % number for number in range(39, -1, -1)]]


def test_messages_in_several_segments_are_read_from_each() -> None:
    store = filled(60, body=b"x" * 200, segment_bytes=1 << 12)
    assert len(store.log.segments.segments) > 3
    fetch = Noted(store, list(range(60)))
    fetch.begin()
    store.rest()
    assert fetch.came == [[b"%d" % number + b"x" * 200 for number in range(60)]]


def test_a_damaged_message_is_none_and_reported() -> None:
    store = filled(8)
    store.load(1)
    store.disk.spoil(lsn_of(store.index, 5) + 40)
    fetch = Noted(store, [4, 5, 6])
    fetch.begin()
    store.rest()
    assert fetch.came == [[b"4", None, b"6"]]
    assert [(damage.queue, damage.sequence_number) for damage in store.log.damage.reports] == [("q", 5)]
    assert store.index.damaged_count == 1
    assert lsn_of(store.index, 5) != 0


@pytest.mark.parametrize("keeps", [False, True])
def test_of_a_damaged_page_nothing_comes(keeps: bool) -> None:
    """(2)"""
    store = filled(12)
    page = page_of(store, 5)
    store.disk.spoil(int(page.lsn) + 40)
    fetch = Noted(store, [3, 4, 5, 9], keeps=keeps)
    fetch.begin()
    store.rest()
    assert fetch.came == [[b"3", None, None, b"9"]]
    assert store.index.page(1) is (page if keeps else None)
    assert len(store.log.damage.reports) == (0 if keeps else 1)


def test_a_page_that_was_written_again_meanwhile_is_read_again() -> None:
    """(4)"""
    store = filled(8)
    fetch = Noted(store, [4, 5, 6, 7])
    fetch.begin()
    (stale,) = store.log.read_jobs
    store.log.read_jobs = []
    assert isinstance(stale, ReadJob)
    stale.carry_out(store.disk.files)
    store.take([5], 1)
    page = page_of(store, 5)
    store.give_up_pages()
    assert not page.resident
    assert (int(page.lsn), int(page.length)) != stale.ranges[0]
    stale.finished()
    assert not page.resident, "the old page, with what is settled, would have come back"
    store.rest()
    assert fetch.came == [[b"4", None, b"6", b"7"]]
    store.check()


def test_a_page_that_somebody_else_has_loaded_meanwhile_stays_as_it_is() -> None:
    """(4)"""
    store = filled(8)
    fetch = Noted(store, [4, 5])
    fetch.begin()
    (late,) = store.log.read_jobs
    store.log.read_jobs = []
    late.carry_out(store.disk.files)
    store.take([5], 1)
    late.finished()
    store.rest()
    assert fetch.came == [[b"4", None]]
    store.check()


def test_a_page_that_was_given_up_meanwhile_is_loaded_once_more() -> None:
    """(2)"""
    store = filled(8)
    fetch = Noted(store, [4])
    fetch.begin()
    assert store.disk.read_one()
    page = page_of(store, 4)
    assert page.resident
    store.index.make_absent(page)
    store.rest()
    assert fetch.came == [[b"4"]]
    assert page.resident


def test_a_message_that_compaction_moves_meanwhile_comes_all_the_same() -> None:
    """(3)"""
    store = filled(200, body=b"x" * 100, segment_bytes=1 << 12)
    store.take(list(range(1, 200, 2)), 1)
    store.give_up_pages()
    fetch = Noted(store, [10])
    fetch.begin()
    assert store.disk.read_one()
    before = lsn_of(store.index, 10)
    (late,) = store.log.read_jobs
    store.log.read_jobs = []
    late.carry_out(store.disk.files)
    store.compact()
    store.load(10 // store.page_entries)
    assert lsn_of(store.index, 10) > before
    late.finished()
    store.rest()
    assert fetch.came == [[b"10" + b"x" * 100]]


def test_of_a_deleted_queue_nothing_comes() -> None:
    store = filled(8)
    fetch = Noted(store, [4, 5])
    fetch.begin()
    store.lane.close()
    store.rest()
    assert fetch.came == [[None, None]]


# --- looking for times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("absent", [False, True])
def test_a_scan_finds_the_time_of_everything_that_is_stored(whole: bool, absent: bool) -> None:
    store = filled(150, body=b"x" * 50, segment_bytes=1 << 12, absent=absent)
    store.take([0, 77, 149], 1)
    if absent:
        store.give_up_pages()
    scan = Times(store, whole=whole)
    scan.advance()
    store.rest()
    assert scan.over
    expected = [number for number in range(150) if number not in (0, 77, 149)]
    assert sorted(scan.times) == [(number, store.now_ms + number) for number in expected]
    assert scan.lost == []
    for number, record in scan.records.items():
        assert record == (store.record(number) if whole else b"")


def test_a_scan_keeps_no_pages_and_meets_nothing_new() -> None:
    store = filled(40)
    scan = Times(store)
    scan.advance()
    store.hold(b"new", 1)
    store.rest()
    assert len(scan.times) == 40
    assert not any(page.resident for page in store.index.pages[:10] if page is not None)


def test_a_scan_reads_of_large_messages_only_their_ends() -> None:
    store = filled(20, body=b"x" * 5000)
    scan = Times(store)
    scan.advance()
    assert store.disk.read_one()
    (job,) = store.log.read_jobs
    assert isinstance(job, ReadJob) and sum(length for _, length in job.ranges) == 20 * 8
    store.rest()
    assert sorted(scan.times) == [(number, store.now_ms + number) for number in range(20)]


def test_a_scan_reads_whole_messages_a_piece_at_a_time() -> None:
    store = filled(20, body=b"x" * 300_000, segment_bytes=1 << 23)
    scan = Times(store, whole=True)
    scan.advance()
    most = 0
    while store.log.read_jobs:
        job = store.log.read_jobs[0]
        assert isinstance(job, ReadJob)
        most = max(most, sum(length for _, length in job.ranges))
        store.disk.read_one()
    assert 300_000 < most < 2_000_000
    assert len(scan.times) == 20


def test_a_scan_looks_only_for_what_it_is_told() -> None:
    store = HeldStore()
    for number in range(8):
        store.begin_storing()
        message = store.message(b"%d" % number)
        if number % 3 == 0:
            message.expiration_ms = 60
        store.lane.hold(message, store.now_ms + number, True)
    store.rest()
    scan = Times(store, wanted_flag=1)
    scan.advance()
    store.rest()
    assert sorted(number for number, _ in scan.times) == [0, 3, 6]


def test_what_is_being_moved_when_a_scan_comes_by_is_found_when_it_is_written() -> None:
    store = filled(200, body=b"x" * 100, segment_bytes=1 << 12)
    store.take(list(range(1, 200, 2)), 1)
    store.checkpoint()
    assert store.compaction.step(urgent=True)
    while store.disk.read_one():
        pass
    store.close_batch()  # with the copies
    assert store.log.in_flight is not None
    scan = Times(store)
    scan.advance()
    while store.disk.read_one():
        pass
    assert not scan.over
    assert 0 < len(scan.times) < 100
    store.rest()
    assert scan.over
    assert {number for number, _ in scan.times} == set(range(0, 200, 2))


def test_a_page_that_is_written_again_while_a_scan_reads_it_is_looked_at_again() -> None:
    store = filled(8)
    scan = Times(store)
    scan.advance()
    (stale,) = store.log.read_jobs
    store.log.read_jobs = []
    assert isinstance(stale, ReadJob)
    stale.carry_out(store.disk.files)
    store.take([5], 1)
    store.give_up_pages()
    stale.finished()
    store.rest()
    assert scan.over
    assert sorted(number for number, _ in scan.times) == [0, 1, 2, 3, 4, 6, 7]


def test_a_page_that_is_dropped_while_a_scan_reads_it_is_passed_over() -> None:
    store = filled(12)
    scan = Times(store)
    scan.advance()
    store.lane.clear()
    store.rest()
    assert scan.over
    assert scan.times == []


def test_damaged_pages_and_places_that_cannot_be_read_are_told() -> None:
    store = filled(16)
    store.load(3)
    store.disk.spoil(int(page_of(store, 5).lsn) + 40)
    store.disk.lost.add(lsn_of(store.index, 13) + 50)
    whole = Times(store, whole=True)
    whole.advance()
    store.rest()
    assert whole.over
    assert whole.damaged == 1
    assert whole.lost == [12, 13, 14, 15], "they lie in one range"
    assert {number for number, _ in whole.times} == {0, 1, 2, 3, 8, 9, 10, 11}


def test_a_scan_of_a_deleted_queue_ends_without_a_word() -> None:
    store = filled(40)
    scan = Times(store)
    scan.advance()
    store.lane.close()
    store.rest()
    assert not scan.over
    assert scan.times == []
