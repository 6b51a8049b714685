"""A lane of held messages, by hand. Numbers in parentheses: the header of ``warren/queues/held_messages.py``.

``model/test_held_messages.py`` tests it with random commands.
"""

from __future__ import annotations

import pytest
from held_store import HeldStore, Lane

from warren.msgstore.log.own_writes import GIVEN_MAX, WRITES
from warren.msgstore.log.queue_index import IndexPage
from warren.queues.held_messages import DEAD_LETTERED, DROPPED, LOOKED_AT_MAX, PARKED_UNTIL, RELEASED
from warren.queues.held_times import STALE_MIN
from warren.queues.timers import NEVER


def filled(
    count: int, *, step_ms: int = 10, body: bytes = b"", absent: bool = False, persistent: bool = True
) -> HeldStore:
    """Return a store with messages ``0``, ``1`` and so on, each due `step_ms` after the one before."""
    store = HeldStore(segment_bytes=1 << 13)
    store.fill(count, first_ms=1000, step_ms=step_ms, body=body, absent=absent, persistent=persistent)
    return store


def bodies(numbers: list[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def page_of(store: HeldStore, number: int) -> IndexPage | None:
    return store.index.page(number // store.page_entries)


# --- time -------------------------------------------------------------------------------------------------------------


def test_what_is_due_leaves_in_the_order_of_the_times_and_of_the_numbers() -> None:
    """(3)"""
    store = HeldStore()
    for body, delay_ms in ((b"d", 30), (b"a", 10), (b"e", 30), (b"b", 10), (b"c", 20), (b"later", 31)):
        store.hold(body, delay_ms)
    assert store.lane.first_ms() == store.now_ms + 10
    store.pass_time(9)
    assert store.lane.out == []
    store.pass_time(21)
    assert store.lane.out == [b"a", b"b", b"c", b"d", b"e"]
    assert store.lane.first_ms() == store.now_ms + 1
    store.check()


def test_a_clock_that_is_set_back_holds_longer_and_one_set_forward_releases() -> None:
    store = filled(3, step_ms=0)
    store.pass_time(-3_600_000)
    store.pass_time(1000)
    assert store.lane.out == []
    store.pass_time(3_599_999)
    assert store.lane.out == []
    store.pass_time(1)
    assert store.lane.out == bodies([0, 1, 2])


def test_a_parked_message_is_never_due() -> None:
    """(4)"""
    store = HeldStore()
    store.begin_storing()
    store.lane.hold(store.message(b"parked"), PARKED_UNTIL, True)
    store.rest()
    assert store.lane.first_ms() == NEVER
    store.restart()
    assert store.lane.first_ms() == NEVER
    assert [each.until_ms for each in store.listed()] == [PARKED_UNTIL]
    store.hold(b"not parked", 5)
    assert store.lane.first_ms() == store.now_ms + 5


def test_not_all_that_is_due_leaves_in_one_go() -> None:
    store = filled(10, step_ms=0)
    store.lane.taken_max = 4
    store.now_ms += 1000
    store.lane.release_due(store.now_ms)
    assert store.lane.out == bodies(list(range(4)))
    assert store.lane.first_ms() == store.now_ms
    store.release()
    assert store.lane.out == bodies(list(range(10)))


def next_turn(store: HeldStore) -> None:
    store.log.own.given = 0
    store.log.own.call_waiters()
    store.rest()


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_messages_that_go_to_many_queues_leave_over_several_turns(absent: bool, persistent: bool) -> None:
    """(6)"""
    store = filled(10, step_ms=0, absent=absent and persistent, persistent=persistent)
    store.lane.queues_each = GIVEN_MAX // 3
    store.now_ms += 1000
    assert store.lane.release_due(store.now_ms) >= 10
    store.rest()
    for end in (4, 8, 10):
        assert store.lane.out == bodies(list(range(end)))
        assert store.lane.first_ms() == NEVER
        assert store.lane.release_due(store.now_ms) == 0
        next_turn(store)
    assert store.lane.out == bodies(list(range(10)))
    store.check()


def test_lanes_take_turns() -> None:
    """(6): one whose messages go to many queues does not keep others waiting."""
    store = filled(10, step_ms=0)
    store.lane.queues_each = GIVEN_MAX
    other = Lane(store.log)
    for number in range(3):
        other.hold(store.message(b"%d" % number), store.now_ms + 1000, False)
    store.now_ms += 1000
    store.lane.release_due(store.now_ms)
    other.release_due(store.now_ms)
    assert (len(store.lane.out), len(other.out)) == (1, 0)
    next_turn(store)
    assert (len(store.lane.out), len(other.out)) == (2, 0)
    next_turn(store)
    assert (len(store.lane.out), len(other.out)) == (3, 3)


@pytest.mark.parametrize("absent", [False, True])
def test_an_operator_is_told_when_the_last_turn_is_over_and_drops_at_once(absent: bool) -> None:
    """(6)"""
    store = filled(10, absent=absent)
    store.lane.queues_each = GIVEN_MAX
    told: list[int] = []
    store.lane.take([2, 1, 0], RELEASED, told.append)
    store.rest()
    assert store.lane.out == bodies([2]) and told == []
    store.lane.take([5, 6, 7], DROPPED, told.append)
    store.rest()
    assert told == [3]
    for _ in range(2):
        next_turn(store)
    assert store.lane.out == bodies([2, 1, 0]) and told == [3, 3]
    store.check()


def test_nothing_is_released_while_the_broker_has_written_its_share_of_a_batch() -> None:
    """(6)"""
    store = filled(3)
    large = store.message(b"x" * (33 << 20))
    store.log.own.begin()
    store.log.batch.add(store.log.new_index(99, "/", "other", 0, False), large, 0)
    store.log.own.end()
    assert not store.log.own.may(WRITES)
    store.now_ms += 5000
    changes = store.lane.changes
    store.lane.release_due(store.now_ms)
    assert store.lane.out == []
    assert store.lane.first_ms() == NEVER
    store.rest()
    store.log.own.call_waiters()
    assert store.lane.changes > changes, "whoever sets the timers is told to look again"
    store.release()
    assert store.lane.out == bodies([0, 1, 2])


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_few_stored_messages_stay_in_memory_and_are_released_without_the_disk() -> None:
    store = filled(200)
    store.pass_time(10_000)
    assert store.lane.out == bodies(list(range(200)))
    assert store.disk.reads == 0
    assert store.log.resident_bytes == 0


def test_many_stored_messages_leave_memory_and_so_do_their_pages() -> None:
    store = HeldStore()
    store.lane.memory.kept_max = 20
    for number in range(200):
        store.hold(b"%d" % number, 1000)
        store.rest()
    assert store.lane.in_memory_count() <= 20
    resident = [page for page in store.index.pages if page is not None and page.resident]
    assert len(resident) <= 8
    store.check()
    store.pass_time(1000)
    assert store.lane.out == bodies(list(range(200)))
    assert store.log.resident_bytes == 0
    store.check()


def test_a_few_large_messages_leave_memory_too() -> None:
    store = HeldStore(segment_bytes=1 << 23)
    for _ in range(12):
        store.hold(b"x" * (1 << 20), 1000)
        store.rest()
    assert store.log.resident_bytes < 9 << 20
    store.pass_time(1000)
    assert len(store.lane.out) == 12


@pytest.mark.parametrize("pressure", [True, False])
def test_when_memory_is_short_what_is_stored_leaves_it_and_transient_messages_under_pressure(pressure: bool) -> None:
    store = filled(20)
    for number in range(20):
        store.hold(b"t%d" % number, 500, persistent=False)
    if pressure:
        store.page_out()
    else:
        store.log.memory_bytes = 0
        store.lane.page_out()
    store.rest()
    assert store.lane.in_memory_count() == (0 if pressure else 20)
    assert store.log.resident_bytes == sum(250 + len(b"t%d" % number) for number in range(0 if pressure else 20))
    store.check()
    store.pass_time(600)
    assert store.lane.out == [b"t%d" % number for number in range(20)]
    store.pass_time(1000)
    assert store.lane.out[20:] == bodies(list(range(20)))
    store.check()


def test_a_transient_lane_is_paged_out_into_an_index_of_its_own_and_lost_at_a_restart() -> None:
    store = HeldStore(stores=False)
    for number in range(20):
        store.hold(b"%d" % number, number)
    assert store.lane.index is None
    assert not store.lane.needs_index()
    store.page_out()
    assert store.lane.in_memory_count() == 0
    store.pass_time(9)
    assert store.lane.out == bodies(list(range(10)))
    store.restart()
    assert store.lane.count == 0


def test_transient_messages_are_stored_in_pages_that_had_left_memory() -> None:
    """``held_memory.py`` (2)"""
    store = HeldStore()
    for number in range(40):
        store.hold(b"%d" % number, 1000 + number, persistent=number % 2 == 0)
    store.rest()
    store.give_up_pages()
    assert sum(1 for page in store.index.pages if page is not None and not page.resident) == 10
    store.page_out()
    store.give_up_pages()
    store.check()
    assert store.lane.in_memory_count() == 0
    store.pass_time(2000)
    assert store.lane.out == bodies(list(range(40)))
    store.check()


def test_transient_messages_are_stored_in_pages_of_which_everything_else_is_gone() -> None:
    """``held_memory.py`` (2)"""
    store = HeldStore()
    for number in range(400):
        store.hold(b"%d" % number, 1000 if number % 4 else 5000, persistent=number % 4 != 0)
    store.rest()
    store.pass_time(1000)
    assert store.index.first_page > 90
    store.page_out()
    store.check()
    store.restart()
    assert store.lane.count == 0
    assert store.lane.first_ms() == NEVER


def test_pages_that_came_back_for_messages_that_were_taken_leave_again() -> None:
    store = filled(400, absent=True)
    store.lane.memory.loaded_pages_max = 10
    for number in range(0, 400, 4):
        store.take([number], RELEASED)
    store.give_up_pages()
    store.hold(b"so that a batch is closed", 5000)
    store.rest()
    assert sum(1 for page in store.index.pages if page is not None and page.resident) <= 12
    store.check()
    store.pass_time(100_000)
    assert len(store.lane.out) == 401


# --- restart ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [True, False])
def test_after_a_restart_everything_stored_is_held_until_its_time(checkpoint: bool) -> None:
    """(2)"""
    store = filled(50)
    store.hold(b"transient", 1, persistent=False)
    store.take([3, 4], RELEASED)
    if checkpoint:
        store.give_up_pages()
        store.checkpoint()
    store.restart()
    assert store.lane.count == 48
    assert not store.lane.scanning
    expected = [number for number in range(50) if number not in (3, 4)]
    assert [(each.number, each.until_ms) for each in store.listed()] == [
        (number, store.now_ms + 1000 + 10 * number) for number in expected
    ]
    store.pass_time(1245)
    assert store.lane.out == bodies([number for number in expected if number < 25])
    store.pass_time(1000)
    assert store.lane.out == bodies(expected)
    store.check()


def test_what_is_known_already_is_released_while_the_rest_is_still_read() -> None:
    """(2)"""
    store = filled(400, step_ms=0, body=b"x" * 100, absent=True)
    store.checkpoint()
    store.restart(scan=False)
    store.now_ms += 5000
    store.log.now_ms = store.now_ms
    store.disk.read_one()
    store.disk.read_one()
    assert store.lane.scanning
    assert store.lane.first_ms() <= store.now_ms
    store.lane.release_due(store.now_ms)
    while not store.lane.out:
        assert store.disk.read_one()
    assert store.lane.scanning
    store.release()
    assert not store.lane.scanning
    assert len(store.lane.out) == 400
    store.check()


def test_new_messages_after_a_restart_have_new_numbers_although_the_last_ones_were_not_stored() -> None:
    """Their page is absent: later changes in it would not find it (``held_memory.py`` (2))."""
    store = HeldStore(page_entries=4)
    for number in range(8):
        store.hold(b"%d" % number, 1000, persistent=number < 6)
    store.rest()
    store.give_up_pages()
    store.checkpoint()
    store.restart()
    assert page_of(store, 5) is not None
    for number in range(10, 14):
        store.hold(b"%d" % number, 1000)
    store.rest()
    store.check()
    store.pass_time(1000)
    assert store.lane.out == bodies([0, 1, 2, 3, 4, 5, 10, 11, 12, 13])


# --- taking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [True, False])
def test_messages_are_taken_whatever_their_time_in_the_order_asked_for(absent: bool) -> None:
    store = filled(20, absent=absent)
    assert store.take([7, 3, 3, 1000, 12], RELEASED) == 3
    assert store.take([7], RELEASED) == 0
    assert store.take([5, 6], DROPPED) == 2
    assert store.take([1, 0], DEAD_LETTERED) == 2
    assert store.lane.out == bodies([7, 3, 12])
    assert store.lane.dead == bodies([1, 0])
    assert store.lane.count == 13
    store.check()
    store.restart()
    assert store.lane.count == 13


@pytest.mark.parametrize("drop_first", [True, False])
def test_what_is_dropped_while_it_is_due_leaves_once(drop_first: bool) -> None:
    """``held_times.py`` (1)"""
    store = filled(20, absent=True)
    store.now_ms += 5000
    told: list[int] = []
    if drop_first:
        store.lane.take([5, 6], DROPPED, told.append)
    store.lane.release_due(store.now_ms)
    if not drop_first:
        store.lane.take([5, 6], DROPPED, told.append)
    store.release()
    assert told == [2 if drop_first else 0]
    assert store.lane.out == bodies([number for number in range(20) if not drop_first or number not in (5, 6)])
    store.check()


def test_what_is_cleared_while_it_is_being_read_does_not_leave() -> None:
    store = filled(20, absent=True)
    store.hold(b"in the open batch", 1)
    store.hold(b"in memory only", 1, persistent=False)
    store.now_ms += 5000
    store.lane.release_due(store.now_ms)
    store.disk.read_one()
    assert store.lane.clear() == 22
    store.rest()
    assert store.lane.out == []
    assert (store.lane.count, store.lane.body_bytes, store.log.resident_bytes) == (0, 0, 0)
    store.check()
    store.restart()
    assert store.lane.count == 0


def test_whoever_waits_for_messages_of_a_deleted_queue_is_told() -> None:
    store = filled(20, absent=True)
    told: list[int] = []
    store.lane.take([5, 6], DROPPED, told.append)
    store.lane.close()
    store.rest()
    assert told == [0]
    assert store.log.resident_bytes == 0


@pytest.mark.parametrize("absent", [False, True])
def test_the_times_of_what_is_taken_from_the_front_go_with_it(absent: bool) -> None:
    """``held_times.py`` (1)"""
    store = filled(100, absent=absent)
    for first in range(0, 90, 10):
        store.lane.take(list(range(first, first + 10)), RELEASED)
        store.rest()
        assert len(store.lane.times) == 90 - first
    assert [each.number for each in store.listed()] == list(range(90, 100))
    store.pass_time(1 << 20)
    assert store.lane.out == bodies(list(range(100)))
    store.check()


@pytest.mark.parametrize("stores", [False, True])
def test_the_times_of_parked_messages_that_were_taken_do_not_stay(stores: bool) -> None:
    """``held_times.py`` (1)"""
    store = HeldStore(stores=stores)
    if stores:
        store.begin_storing()
    first = store.lane.hold(store.message(b"first"), PARKED_UNTIL, stores)
    for _ in range(2 * STALE_MIN):
        number = store.lane.hold(store.message(b"x"), PARKED_UNTIL, stores)
        store.lane.take([number], DROPPED)
        store.rest()
    assert len(store.lane.times) <= STALE_MIN + 3
    assert [each.number for each in store.listed()] == [first]
    last = store.lane.hold(store.message(b"last"), PARKED_UNTIL, stores)
    store.rest()
    assert [each.number for each in store.listed()] == [first, last]
    store.check()


@pytest.mark.parametrize("purpose", [RELEASED, DEAD_LETTERED])
def test_all_are_taken_a_piece_at_a_time_in_order_and_what_comes_meanwhile_is_not(purpose: int) -> None:
    store = filled(100, absent=True)
    store.lane.taken_max = 8
    store.lane.take_all(purpose)
    assert store.lane.first_ms() <= store.now_ms
    store.lane.release_due(store.now_ms)
    store.hold(b"new", 1)
    store.release()
    left = store.lane.out if purpose == RELEASED else store.lane.dead
    assert left == bodies(list(range(100)))
    assert store.lane.count == 1
    store.pass_time(1)
    assert store.lane.out[-1] == b"new"
    store.check()


def test_all_that_are_found_after_a_restart_are_taken_too() -> None:
    store = filled(100, absent=True)
    store.checkpoint()
    store.restart(scan=False)
    store.lane.take_all(RELEASED)
    store.release()
    assert sorted(store.lane.out) == sorted(bodies(list(range(100))))
    assert store.lane.count == 0


def test_those_that_were_not_taken_when_the_process_died_are_held_as_before() -> None:
    store = filled(20)
    store.lane.taken_max = 8
    store.lane.take_all(RELEASED)
    store.lane.release_due(store.now_ms)
    store.rest()
    store.restart()
    assert [each.number for each in store.listed()] == list(range(8, 20))
    assert store.lane.first_ms() == store.now_ms + 1080


def test_messages_are_not_dead_lettered_where_there_is_no_exchange_for_it() -> None:
    store = filled(3)
    store.lane.dead_letters = False
    with pytest.raises(ValueError, match="there is no dead letter exchange"):
        store.lane.take([1], DEAD_LETTERED)
    with pytest.raises(ValueError, match="there is no dead letter exchange"):
        store.lane.take_all(DEAD_LETTERED)
    assert store.lane.count == 3
    assert store.lane.first_ms() == store.now_ms + 1000


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_message_is_counted_out_and_the_others_leave() -> None:
    store = filled(10, absent=True)
    store.load(1)
    page = page_of(store, 5)
    assert page is not None
    store.disk.spoil(int(page.entries[2] & ~7) + 60)
    store.pass_time(5000)
    assert store.lane.out == bodies([0, 1, 2, 3, 4, 6, 7, 8, 9])
    assert (store.lane.count, store.lane.body_bytes) == (0, 0)
    assert [damage.sequence_number for damage in store.log.damage.reports] == [5]
    store.check()


def test_a_time_that_makes_no_sense_is_looked_into_at_once() -> None:
    store = filled(10, absent=True)
    record = store.record(5)
    page = page_of(store, 5)
    assert page is not None
    store.checkpoint()
    store.disk.spoil(int(page.entries[2] & ~7) + len(record) - 8)
    store.restart()
    store.pass_time(0)
    assert store.lane.count == 9
    assert [damage.sequence_number for damage in store.log.damage.reports] == [5]
    store.pass_time(5000)
    assert store.lane.out == bodies([0, 1, 2, 3, 4, 6, 7, 8, 9])


@pytest.mark.parametrize("when", ["scan", "take"])
def test_the_messages_of_a_damaged_page_are_counted_out(when: str) -> None:
    store = filled(12, absent=True)
    store.checkpoint()
    page = page_of(store, 5)
    assert page is not None
    store.disk.spoil(int(page.lsn) + 50)
    if when == "scan":
        store.restart()
    else:
        store.pass_time(5000)
    assert len(store.log.damage.reports) == 1
    assert store.lane.count == (8 if when == "scan" else 0)
    store.pass_time(5000)
    assert store.lane.out == bodies([0, 1, 2, 3, 8, 9, 10, 11])
    assert (store.lane.count, store.lane.body_bytes) == (0, 0)
    store.lane.check_invariants()


def test_what_is_in_memory_survives_its_damaged_page() -> None:
    store = filled(8)
    for number in (0, 1):
        store.index.unload_candidates.append(number)
    for _ in range(3):
        store.lane.batch_closed()
        store.rest()
    page = page_of(store, 5)
    assert page is not None
    assert not page.resident
    assert store.lane.in_memory_count() == 8
    store.disk.spoil(int(page.lsn) + 50)
    assert store.take([6], DROPPED) == 1
    assert store.lane.count == 7
    store.lane.check_invariants()
    store.checkpoint()
    store.restart()
    assert sorted(each.number for each in store.listed()) == [0, 1, 2, 3, 4, 5, 7]


# --- listing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [True, False])
def test_the_earliest_are_listed_with_what_an_operator_wants_to_know(absent: bool) -> None:
    store = filled(20, body=b"x" * 50, absent=absent)
    store.take([0, 1, 3], DROPPED)
    listed = store.listed(3)
    assert [each.number for each in listed] == [2, 4, 5]
    first = listed[0]
    assert (first.exchange, first.routing_key, first.body_bytes) == ("an exchange", "a key", 51)
    assert (first.until_ms, first.persistent) == (store.now_ms + 1020, True)
    assert len(store.listed()) == 17
    assert store.listed(0) == []
    assert store.lane.count == 17
    store.check()


def test_a_list_of_large_messages_is_read_a_piece_at_a_time() -> None:
    store = filled(20, body=b"x" * 500, absent=True)
    store.lane.taken_max_bytes = 1200
    reads = store.disk.reads
    assert [each.number for each in store.listed()] == list(range(20))
    assert store.disk.reads >= reads + 10


def test_what_leaves_while_the_list_is_read_is_not_in_it() -> None:
    store = filled(8, absent=True)
    told: list[list[int]] = []
    store.lane.take([2], DROPPED)
    store.lane.list_earliest(8, lambda listed: told.append([each.number for each in listed]))
    store.rest()
    assert told == [[0, 1, 3, 4, 5, 6, 7]]
    store.check()


def test_messages_are_listed_by_number_and_no_others_are_read() -> None:
    store = filled(20, body=b"x" * 500, absent=True)
    store.lane.taken_max_bytes = 1200
    reads = store.disk.reads
    numbers, _ = store.lane.numbers_from(0, 20)
    assert numbers == list(range(20)) and store.disk.reads == reads
    store.lane.take([17], DROPPED)
    store.rest()
    reads = store.disk.reads
    told: list[list[int]] = []
    store.lane.list_numbered(numbers[16:], lambda listed: told.append([each.number for each in listed]))
    store.rest()
    assert told == [[16, 18, 19]]
    assert store.disk.reads <= reads + 3
    store.check()


def test_numbers_are_looked_for_in_pieces_whether_something_is_held_there_or_not() -> None:
    store = filled(LOOKED_AT_MAX + 3, persistent=False)
    store.lane.take([0, *range(2, LOOKED_AT_MAX + 1)], DROPPED)
    end = store.lane.end_number()
    assert end > LOOKED_AT_MAX + 2
    assert store.lane.numbers_from(0, 1) == ([1], 2)
    assert store.lane.numbers_from(2, 5) == ([LOOKED_AT_MAX + 1], LOOKED_AT_MAX + 2)
    assert store.lane.numbers_from(0, 5) == ([1], LOOKED_AT_MAX)
    assert store.lane.numbers_from(LOOKED_AT_MAX + 2, 5) == ([LOOKED_AT_MAX + 2], end)
    assert store.lane.numbers_from(end, 5) == ([], end)


def test_what_went_in_front_is_not_looked_at_by_number() -> None:
    store = filled(40, absent=True)
    size = store.page_entries
    store.lane.take(list(range(3 * size + 1)), DROPPED)
    store.rest()
    assert store.lane.numbers_from(0, 1) == ([3 * size + 1], 3 * size + 2)
    store.check()


def test_none_listed_by_number_is_told_too() -> None:
    store = filled(20, absent=True)
    told: list[list[int]] = []
    store.lane.list_numbered([], lambda listed: told.append([each.number for each in listed]))
    store.rest()
    assert told == [[]]
    store.check()


def test_transient_messages_that_left_are_not_listed_by_number() -> None:
    store = filled(3, persistent=False)
    store.lane.take([1], DROPPED)
    told: list[list[int]] = []
    store.lane.list_numbered([0, 1, 2], lambda listed: told.append([each.number for each in listed]))
    assert told == [[0, 2]]


def test_transient_messages_are_listed_without_an_index() -> None:
    store = filled(3, persistent=False)
    assert store.lane.index is None
    assert [(each.number, each.persistent) for each in store.listed()] == [(0, False), (1, False), (2, False)]
    assert isinstance(store.lane, Lane)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("absent", "persistent"), [(False, False), (False, True), (True, True)])
def test_a_message_whose_release_fails_stays_and_the_others_are_released(
    absent: bool, persistent: bool, early: bool
) -> None:
    """(3)"""
    store = filled(6, step_ms=0, absent=absent, persistent=persistent)
    lane = store.lane
    lane.failing = b"2"
    lane.fails_early = early
    with pytest.raises(MemoryError):
        store.pass_time(1000)
    store.rest()
    assert lane.out == bodies([0, 1]) and lane.count == 4
    store.pass_time(0)
    assert lane.out == bodies([0, 1, 3, 4, 5])
    lane.failing = b""
    store.pass_time(1000)
    assert lane.out == bodies([0, 1, 3, 4, 5, 2])
    store.check()
