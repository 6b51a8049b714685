"""A purge or a deletion is one step, for its client and for the disk; the rest of the work is done in later turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, publish_frames
from memory_store import MemoryDisk, memory_log

from warren.amqp import methods as m
from warren.msgstore.log.message import MESSAGE_OVERHEAD_BYTES, Envelope, build_message
from warren.msgstore.log.reclamation import BYTES_PER_STEP
from warren.queues.backlog import Backlog
from warren.queues.queue import Queue

# More than is taken apart at once.
MANY = 6000
BODY = b"x" * 100
COST_BYTES = len(publish_frames("", "q", BODY, properties={"delivery_mode": 2})) + MESSAGE_OVERHEAD_BYTES  # at most


def publishing(harness: Harness, count: int = MANY) -> Client:
    client = harness.channel()
    client.declare("q", durable=True)
    publish(client, count)
    return client


def publish(client: Client, count: int) -> None:
    client.feed(publish_frames("", "q", BODY, properties={"delivery_mode": 2}) * count)


def owing(harness: DurableHarness, count: int) -> Client:
    """Return a client that has got `count` messages, and has not answered."""
    client = harness.channel()
    client.send(1, *[m.BasicGet(0, "q", False) for _ in range(count)])
    client.take_bytes()
    assert harness.queue("q").unacked_count == count
    return client


def delete(queue: Queue) -> int:
    count = int(queue.ready_count)
    queue.close()
    return count


@pytest.mark.parametrize("end", [Queue.purge, delete], ids=["purge", "deletion"])
def test_what_a_queue_has_let_go_of_counts_until_it_is_taken_apart(end: Callable[[Queue], int]) -> None:
    harness = DurableHarness()
    publishing(harness)
    harness.write()
    log = harness.broker.log
    queue = harness.plain_queue("q")
    assert sum(int(segment.live_refs) for segment in log.segments.segments) >= MANY
    assert end(queue) == MANY
    assert (queue.ready_count, queue.ready_bytes, queue.ready.memory_bytes()) == (0, 0, 0)
    assert MANY * COST_BYTES // 2 < log.resident_bytes <= MANY * COST_BYTES
    assert sum(int(segment.live_refs) for segment in log.segments.segments) > 0
    log.check_invariants()
    harness.broker.end_turn()
    assert log.resident_bytes == 0
    assert sum(int(segment.live_refs) for segment in log.segments.segments) == 0
    assert not harness.broker.has_work()


def test_large_messages_are_taken_apart_by_their_size() -> None:
    """The system takes back their pages, which takes long however few messages these are."""
    count, message_bytes, steps = 1000, 1 << 20, 4000
    log = memory_log()
    log.resident_bytes = count * message_bytes
    log.reclamation.add([b""] * count, count * message_bytes)
    while not log.reclamation.is_empty():
        before = log.resident_bytes
        log.reclamation.take_apart(steps)
        assert 0 < before - log.resident_bytes <= steps * BYTES_PER_STEP + message_bytes
    assert log.resident_bytes == 0


def test_a_message_that_waits_for_its_batch_when_it_is_purged_is_never_written() -> None:
    harness = DurableHarness()
    client = publishing(harness, 10)
    harness.write()
    written = harness.store.written_bytes
    harness.broker.log.hold_batch()  # messages published now stay in the open batch
    publish(client, MANY)
    taken = owing(harness, 12)
    assert harness.queue("q").purge() == MANY - 2
    publish(client, 1)
    harness.broker.log.release_batch()
    harness.write()
    assert harness.store.written_bytes - written < 10 * COST_BYTES
    assert not taken.ended
    restarted = harness.restart(clean=False)
    assert restarted.queue("q").ready_count == 13, "the twelve that were out, and what came after the purge"


def test_what_was_taken_out_of_turn_is_not_purged() -> None:
    log = memory_log(page_entries=16)
    disk = MemoryDisk(log)
    backlog = Backlog(log, lambda lost, lost_bytes: None)
    index = log.new_index(log.new_queue_id(), "/", "q", 0, False)
    backlog.begin_storing(index)
    in_batch = 90
    for number in range(100):
        message = build_message(Envelope("", "q"), b"\0\0", BODY, 0, True)
        assert backlog.append(message) == number
        log.batch.add(index, message, number)
        if number == in_batch - 1:
            log.force()
            log.close_if_due()
            disk.run()
    for number in (20, 21, 50, 95):
        assert backlog.remove(number)
    backlog.clear()
    log.force()
    log.close_if_due()
    disk.run()
    left = [number for number in range(100) if index.lsn_of(number)]
    assert left == [20, 21, 50, 95]
    log.check_invariants()


def test_a_purge_of_what_came_back_is_in_one_frame() -> None:
    harness = DurableHarness()
    publishing(harness)
    harness.write()
    client = owing(harness, MANY - 1)
    client.send(1, m.BasicRecover(True))
    client.take_bytes()
    kept = owing(harness, 1)
    log = harness.broker.log
    commits = harness.store.commits
    assert harness.queue("q").purge() == MANY - 1
    log.force()
    log.close_if_due()
    assert harness.store.commits == commits and log.in_flight is None, "a part of it is written"
    harness.settle()
    log.check_invariants()
    assert harness.store.commits == commits + 1
    assert not kept.ended
    assert harness.restart(clean=False).queue("q").ready_count == 1


def test_a_purge_of_what_came_back_does_not_wait_for_a_batch_that_others_have_held() -> None:
    harness = DurableHarness()
    publishing(harness)
    harness.write()
    client = owing(harness, MANY)
    client.send(1, m.BasicRecover(True))
    log = harness.broker.log
    assert log.hold_batch()
    assert harness.queue("q").purge() == MANY
    assert harness.queue("q").persistent() == (0, 0)
    log.release_batch()
    harness.write()
    assert harness.restart(clean=False).queue("q").ready_count == 0


def test_a_checkpoint_knows_of_nothing_that_was_let_go_of() -> None:
    harness = DurableHarness()
    publishing(harness)
    harness.write()
    log = harness.broker.log
    log.checkpoints.want()
    harness.queue("q").purge()
    assert not log.reclamation.is_empty()
    log.close_if_due()
    harness.settle()
    restarted = harness.restart(clean=False)
    assert restarted.queue("q").ready_count == 0
    assert sum(int(segment.live_refs) for segment in restarted.broker.log.segments.segments) == 0
