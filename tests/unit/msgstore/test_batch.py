"""Batches: what of them becomes a frame, and when they are closed. In parentheses: the header of ``batch.py``."""

from __future__ import annotations

from stored_log import StoredLog, timed_message

from warren.msgstore.log.message_log import LINGER_ROWS
from warren.msgstore.log.queue_index import IndexOwner, QueueIndex


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
        log.log.batch.add(index, messages[0], 0)  # behind a row of another message
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
    assert log.log.hold()
    assert not log.log.hold(), "somebody has it"
    log.log.force()
    log.log.close_if_due()
    assert (log.log.in_flight, log.log.batch.number) == (None, 1)
    log.log.release()
    assert not log.log.hold(), "somebody had it"
    log.log.close_if_due()
    assert log.log.batch.number == 2
    assert log.log.hold(), "another batch"
    log.log.release()


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
