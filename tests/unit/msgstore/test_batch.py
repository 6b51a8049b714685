"""Batches: the parts that become a frame, and the time of their end. In parentheses: the header of ``batch.py``."""

from __future__ import annotations

import pytest
from stored_log import StoredLog, entries, timed_message

from warren.amqp.outbox import Outbox
from warren.channels.channel_confirms import ChannelConfirms
from warren.channels.confirms import PendingConfirms
from warren.msgstore.log.batch import PORTION_BYTES, PORTION_ROWS
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import ALL_WAIT, FURTHER_ROWS, LINGER_ROWS
from warren.msgstore.log.queue_index import IndexOwner, QueueIndex
from warren.queues.long_work import LongWork
from warren.queues.outcome import ACCEPTED
from warren.vhosts.metadata_journal import MetadataJournal


def test_a_message_of_several_queues_is_one_record() -> None:
    """(1), (2)"""
    log = StoredLog()
    queues = [log.index(queue_id) for queue_id in (1, 2, 3)]
    message = timed_message(b"once")
    for number, index in enumerate(queues):
        log.log.batch.add(index, message, number)
    log.rest()
    assert log.disk.commits == 1
    assert b"".join(bytes(image) for image in log.disk.segments.values()).count(b"once") == 1
    for number, index in enumerate(queues):
        assert log.message(index, number).body() == b"once"


def test_what_is_settled_before_the_batch_is_closed_is_never_written() -> None:
    """(2)"""
    log = StoredLog()
    first, second = log.index(1), log.index(2)
    gone, kept = timed_message(b"gone"), timed_message(b"kept")
    for message in (gone, kept):
        log.log.batch.add(first, message, 0 if message is gone else 1)
        log.log.batch.add(second, message, 0 if message is gone else 1)
    for index in (first, second):
        log.settle(index, gone, 0)
    log.settle(second, kept, 1)
    log.rest()
    assert not any(b"gone" in image for image in log.disk.segments.values())
    assert (first.live_count, second.live_count) == (1, 0)
    assert log.message(first, 1).body() == b"kept"
    assert (gone.row, kept.row) == (-1, -1)


def test_a_row_is_found_wherever_it_is_in_the_batch() -> None:
    """(2)"""
    log = StoredLog()
    indexes = [log.index(queue_id) for queue_id in range(1, 41)]
    messages = [timed_message(b"%d" % number) for number in range(3)]
    for index in indexes[:20]:
        log.log.batch.add(index, messages[0], 0)
    log.log.batch.add(indexes[0], messages[1], 1)
    for index in indexes[20:]:
        log.log.batch.add(index, messages[0], 0)  # after a row of another message
    for at in (19, 0, 39, 20):
        log.settle(indexes[at], messages[0], 0)
    log.log.batch.add(indexes[0], messages[2], 2)
    log.log.batch.add(indexes[1], messages[1], 1)  # when the rows have been collected
    log.settle(indexes[1], messages[1], 1)
    log.settle(indexes[2], messages[1], 1)  # it has none there
    log.rest()
    live = {at for at, index in enumerate(indexes) if index.live_count}
    assert live == set(range(40)) - {19, 39, 20}
    assert (indexes[0].live_count, indexes[1].live_count) == (2, 1)
    assert log.message(indexes[0], 2).body() == b"2"


def test_a_batch_that_is_held_is_closed_when_it_is_released_and_held_once() -> None:
    log = StoredLog()
    index = log.index(1)
    for number in range(3):
        log.log.batch.add(index, timed_message(b"x"), number)
    assert log.log.hold_batch()
    assert not log.log.hold_batch(), "somebody has it"
    log.log.force()
    log.log.close_if_due()
    assert (log.log.in_flight, log.log.batch.number) == (None, 1)
    log.log.release_batch()
    assert not log.log.hold_batch(), "somebody had it"
    log.log.close_if_due()
    assert log.log.batch.number == 2
    assert log.log.hold_batch(), "another batch"
    log.log.batch.add(index, timed_message(b"y"), 3)
    log.log.release_batch()
    log.disk.run()
    log.log.close_if_due()
    assert log.log.batch.number == 2, "nobody waits for it"
    assert not log.log.hold_batch()
    log.log.close_if_due()
    assert log.log.batch.number == 3, "who wants to hold the next one does not have to wait for long"
    log.log.release_batch()


def test_a_batch_is_closed_when_it_is_large_and_not_before() -> None:
    log = StoredLog(segment_bytes=8 << 20)
    index = log.index(1)
    for number in range(LINGER_ROWS - 1):
        log.log.batch.add(index, timed_message(b""), number)
    log.log.close_if_due()
    assert log.log.batch.number == 1
    log.log.batch.add(index, timed_message(b""), LINGER_ROWS - 1)
    log.log.close_if_due()
    assert log.log.batch.number == 2


class Asking(IndexOwner):
    """Stores another message when it is told of the end of a batch, once."""

    def __init__(self, log: StoredLog, index: QueueIndex) -> None:
        self.log = log
        self.index = index
        self.message = timed_message(b"later")

    def batch_closed(self) -> None:
        if self.message.row < 0 and self.index.next_number == 1:
            self.log.log.batch.add(self.index, self.message, 1)
            self.log.log.force()


def test_what_a_queue_asks_for_at_the_end_of_a_batch_is_in_the_next() -> None:
    """(3)"""
    log = StoredLog()
    index = log.index(1)
    index.owner = owner = Asking(log, index)
    log.log.batch.add(index, timed_message(b"now"), 0)
    log.log.close_if_due(lingered=True)
    assert (log.log.batch.number, owner.message.row) == (2, 0)
    assert log.disk.run()
    assert (index.live_count, log.log.is_idle()) == (1, False)
    log.log.close_if_due()
    assert log.disk.run()
    assert (index.live_count, owner.message.row, log.log.is_idle()) == (2, -1, True)
    assert log.log.durable_lsn == log.log.next_lsn
    assert log.message(index, 1).body() == b"later"


def test_a_queue_of_which_only_a_copy_is_written_is_named_in_the_next_frame() -> None:
    """(3)"""
    log = StoredLog()
    index = log.index(1)
    log.log.batch.add(index, timed_message(b"copied"), 0)
    log.rest()
    index.named = False  # as after a crash: the frame that names it may be removed
    lsn = int(index.lsn_of(0))
    log.log.batch.copy(log.record(index, 0), lsn, 0)
    log.rest()
    assert index.named and index.lsn_of(0) > lsn
    log.log.batch.add(log.index(2), timed_message(b"another"), 0)
    log.rest()
    images = b"".join(bytes(image) for image in log.disk.segments.values())
    assert images.count(b"copied") == 2 and images.index(b"copied") < images.rindex(b"copied")
    last = images.rindex(b"copied")
    assert b"/q" in images[last + 6 : images.index(b"another")]


class _Portions:
    """A log whose open batch is held, with a queue that has had messages before."""

    def __init__(self) -> None:
        self.store = StoredLog()
        self.log = self.store.log
        self.index = self.store.index(1)
        self.messages: dict[int, Message] = {}
        self.put(0, 1, 2)
        self.store.rest()
        assert self.log.hold_batch()

    def put(self, *numbers: int, index: QueueIndex | None = None) -> None:
        for number in numbers:
            self.messages[number] = timed_message(b"%d" % number)
            self.log.batch.add(index or self.index, self.messages[number], number)

    def settle(self, *numbers: int) -> None:
        for number in numbers:
            self.store.settle(self.index, self.messages[number], number)

    def end(self) -> None:
        """Close the batch, and check that a restart finds what there is: from all frames, and from a checkpoint."""
        self.log.release_batch()
        self.log.checkpoints.want()
        self.store.rest()
        self.log.check_invariants()
        there = entries(self.log, self.store.disk)
        for restarted in (self.store.restarted(), self.store.restarted(self.store.written_checkpoint())):
            found = entries(restarted, self.store.disk)
            assert {key: live for key, live in found.items() if live} == {
                key: live for key, live in there.items() if live
            }

    def live(self) -> set[int]:
        return set(entries(self.log, self.store.disk).get(1, {}))


def test_portions_are_one_frame_and_nothing_of_it_is_written_before_the_last() -> None:
    """(4)"""
    portions = _Portions()
    frames = portions.store.disk.commits
    for first in (3, 6, 9):
        portions.put(*range(first, first + 3))
        portions.log.write_ahead()
        assert portions.store.disk.commits == frames and portions.log.in_flight is None
        assert [portions.messages[first + at].row for at in range(3)] == [-1] * 3
    portions.put(12)
    portions.end()
    assert portions.store.disk.commits == frames + 1
    assert portions.live() == set(range(13))
    assert [portions.store.message(portions.index, number).body() for number in (3, 8, 12)] == [b"3", b"8", b"12"]


def test_what_is_settled_after_its_portion_is_gone() -> None:
    """(4)"""
    portions = _Portions()
    portions.put(3, 4, 5)
    portions.settle(1, 3)  # of the frame before, and never written
    portions.log.write_ahead()
    portions.put(6, 7)
    portions.settle(4, 6)
    portions.log.write_ahead()
    portions.settle(7)
    portions.end()
    assert portions.live() == {0, 2, 5}


def test_a_number_that_is_stored_again_in_a_later_portion_is_what_came_last() -> None:
    """(4): as `Queue.replace` and the producers of ``seen_keys`` do."""
    portions = _Portions()
    portions.settle(0)
    portions.put(0)
    portions.log.write_ahead()
    portions.settle(0)
    portions.messages[0] = timed_message(b"again")
    portions.log.batch.add(portions.index, portions.messages[0], 0)
    portions.end()
    assert portions.live() == {0, 1, 2}
    assert portions.store.message(portions.index, 0).body() == b"again"


def test_a_purge_and_the_end_of_a_queue_reach_what_is_in_earlier_portions() -> None:
    """(4)"""
    portions = _Portions()
    other = portions.store.index(2)
    portions.put(3, 4)
    portions.put(100, 101, index=other)
    portions.log.write_ahead()
    portions.put(5)
    portions.log.batch.settle_waiting(portions.index, 0, 6)
    portions.log.delete_queue(other)
    portions.log.write_ahead()
    portions.put(6)
    portions.end()
    assert portions.live() == {6}
    assert 2 not in portions.store.restarted().indexes


def test_pages_may_be_written_in_any_portion() -> None:
    """(4): a page is as it is when its portion is written."""
    portions = _Portions()
    portions.put(3, 4, 5)
    portions.log.batch.write_page(portions.index, 0)
    portions.log.write_ahead()
    portions.settle(2, 4)
    portions.put(6)
    portions.log.batch.write_page(portions.index, 0)
    portions.log.batch.write_page(portions.index, 1)
    portions.log.write_ahead()
    portions.settle(3)
    portions.end()
    portions.store.unload(portions.index, 1)
    assert portions.live() == {0, 1, 5, 6}


def test_whoever_waits_for_a_batch_in_portions_is_told_once_when_all_of_it_is_written() -> None:
    portions = _Portions()
    number = int(portions.log.batch.number)
    journal = MetadataJournal(portions.log, LongWork())
    waiter = ChannelConfirms(PendingConfirms(portions.log, journal), Outbox(1, []), 1, syncs=True)
    message = timed_message(b"elsewhere")
    message.awaits_batch = True
    waiter.count_publish(message, ACCEPTED, 0)
    for first in (3, 4):
        portions.put(first)
        portions.log.write_ahead()
        portions.log.close_if_due()
        assert waiter.confirmed == 0 and portions.log.batch.number == number
    durable = int(portions.log.durable_lsn)
    assert portions.log.entered_lsn() > durable
    portions.end()
    assert waiter.confirmed == 1 and portions.log.durable_lsn > durable


def test_a_frame_in_portions_begins_a_segment_and_others_go_on_in_it() -> None:
    portions = _Portions()
    segments = portions.log.segments.segments
    before = len(segments)
    portions.put(3)
    portions.log.write_ahead()
    assert not segments[before - 1].sealed, "what is in flight may be on its way there"
    portions.put(4)
    portions.end()
    assert len(segments) == before + 1 and segments[before - 1].sealed and not segments[-1].sealed
    portions.put(5)
    portions.store.rest()
    assert len(segments) == before + 1
    assert portions.store.message(portions.index, 5).body() == b"5"


def test_a_frame_larger_than_a_segment_has_one_of_its_size() -> None:
    portions = _Portions()
    for number in range(3, 8):
        portions.messages[number] = timed_message(bytes(1 << 15))
        portions.log.batch.add(portions.index, portions.messages[number], number)
        portions.log.write_ahead()
    portions.end()
    segment = portions.log.segments.segments[-1]
    assert segment.capacity >= 5 << 15 and segment.end_lsn <= segment.base_lsn + segment.capacity
    assert portions.live() == set(range(8))


@pytest.mark.parametrize("rows", [PORTION_ROWS - 1, PORTION_ROWS])
def test_a_held_batch_of_many_rows_is_written_in_portions(rows: int) -> None:
    portions = _Portions()
    other = portions.store.index(2)
    message = timed_message(b"x")
    for number in range(rows):
        portions.log.batch.add(other, message, number)
    portions.log.close_if_due()
    assert (other.live_count, len(portions.log.batch.messages)) == ((0, rows) if rows < PORTION_ROWS else (rows, 0))
    portions.end()
    assert other.live_count == rows


def test_a_held_batch_of_many_bytes_is_written_in_portions_but_no_content_many_times() -> None:
    portions = _Portions()
    large = timed_message(bytes(PORTION_BYTES))
    for number in range(3, 10):
        portions.log.batch.add(portions.index, large, number)
    portions.log.close_if_due()
    assert portions.index.live_count == 3, "it may come to further queues, and would be written again for them"
    portions.log.batch.add(portions.index, timed_message(b"x"), 10)
    portions.log.close_if_due()
    assert portions.index.live_count == 11 and large.row == -1
    portions.end()


def test_a_held_batch_with_many_acks_is_written_in_portions() -> None:
    portions = _Portions()
    indexes = [portions.store.index(10 + at) for at in range(4)]
    count = PORTION_ROWS // 2 + 4
    message = timed_message(b"x")
    for index in indexes:
        for number in range(count):
            portions.log.batch.add(index, message, number)
    portions.log.write_ahead()
    for index in indexes:
        for number in range(0, count, 2):
            portions.store.settle(index, message, number)
    assert portions.log.batch.is_portion()
    portions.log.close_if_due()
    assert not portions.log.batch.acking
    portions.end()


def test_publishers_wait_while_the_open_batch_has_very_many_rows() -> None:
    log = StoredLog().log
    index = log.new_index(1, "/", "q", 0, False)
    message = timed_message(b"x")
    for number in range(FURTHER_ROWS + 1):
        log.batch.add(index, message, number)
    assert log.pressure() != ALL_WAIT
    log.batch.add(index, message, FURTHER_ROWS + 1)
    assert log.pressure() == ALL_WAIT and not log.is_congested()


def test_what_comes_beyond_that_is_written_in_portions_while_another_batch_is_committed() -> None:
    store = StoredLog()
    log = store.log
    index = store.index(1)
    log.batch.add(index, timed_message(b"first"), 0)
    log.force()
    log.close_if_due()
    assert log.in_flight is not None
    message = timed_message(b"x")
    for number in range(1, FURTHER_ROWS + 2):
        log.batch.add(index, message, number)
    log.close_if_due()
    assert index.live_count == 1, "they are not too many"
    log.batch.add(index, message, FURTHER_ROWS + 2)
    log.close_if_due()
    assert index.live_count == FURTHER_ROWS + 3 and log.pressure() == ALL_WAIT, "they are still to be written"
    log.force()
    store.rest()
    log.check_invariants()
    assert log.pressure() != ALL_WAIT and len(entries(store.restarted(), store.disk)[1]) == FURTHER_ROWS + 3
