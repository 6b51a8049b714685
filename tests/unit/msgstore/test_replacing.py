"""A message is replaced in place: the frame that says it is gone holds another one with its sequence number.

The record after the ACK is the message. That holds for each replay, from the beginning or from any checkpoint, and
whether the page of the index was in memory, on disk or dropped.
"""

from __future__ import annotations

from typing import Final

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_log import StoredLog, entries, timed_message

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import BODY_MASK, EXPIRING, QueueIndex

PAGE_ENTRIES: Final = 4
OLD: Final = b"old"
NEW: Final = b"the new one"


def counts(log: MessageLog) -> list[tuple[int, int, int, int, bool]]:
    """Return what is counted of each queue."""
    return [
        (queue_id, int(index.live_count), int(index.live_body_bytes), int(index.next_number), index.has_expiring)
        for queue_id, index in sorted(log.indexes.items())
    ]


def references(log: MessageLog) -> tuple[int, int]:
    """Return how many references the segments count, and of how many bytes."""
    segments = log.segments.segments
    return sum(int(s.live_refs) for s in segments), sum(int(s.live_bytes) for s in segments)


def assert_restarts_alike(log: StoredLog, *checkpoints: bytes) -> None:
    """Compare what each checkpoint, and the whole log, give with what there is."""
    for checkpoint in (None, *checkpoints):
        restarted = log.restarted(checkpoint)
        assert entries(restarted, log.disk) == entries(log.log, log.disk)
        assert counts(restarted) == counts(log.log)
        assert references(restarted) == references(log.log)
        restarted.check_invariants()
    log.log.check_invariants()


def replace(log: StoredLog, index: QueueIndex, old: Message, number: int, new: Message) -> None:
    log.settle(index, old, number)
    log.log.batch.add(index, new, number)


@pytest.mark.parametrize("others", [0, 1, 9], ids=["alone", "two", "among-many"])
@pytest.mark.parametrize("page", ["resident", "written", "absent"])
def test_the_message_behind_the_ack_is_the_one(others: int, page: str) -> None:
    log = StoredLog(page_entries_max=PAGE_ENTRIES)
    index = log.index(1)
    old = [timed_message(OLD, 5) for _ in range(others + 1)]
    for number, message in enumerate(old):
        log.log.batch.add(index, message, number)
    log.rest()
    if page != "resident":
        log.log.batch.write_page(index, 0)
        log.rest()
    if page == "absent":
        log.unload(index, 0)
    before = log.checkpoint()
    replace(log, index, old[0], 0, timed_message(NEW, 7, 60_000))
    log.rest()
    read = log.message(index, 0)
    assert (read.body(), read.time_ms, read.expiration_ms) == (NEW, 7, 60_000)
    word0, word1 = entries(log.log, log.disk)[1][0]
    assert (word0 & EXPIRING, word1 & BODY_MASK) == (EXPIRING, len(NEW))
    assert index.live_count == others + 1
    assert_restarts_alike(log, before, log.checkpoint())


def test_a_page_is_dropped_and_comes_back_with_the_message_that_replaces_its_last_one() -> None:
    log = StoredLog(page_entries_max=PAGE_ENTRIES)
    index = log.index(1)
    messages = [timed_message(OLD) for _ in range(3 * PAGE_ENTRIES)]
    for number, message in enumerate(messages):
        log.log.batch.add(index, message, number)
    log.rest()
    last = PAGE_ENTRIES - 1
    for number in range(last):
        log.settle(index, messages[number], number)
    log.log.batch.write_page(index, 0)
    log.rest()
    before = log.checkpoint()
    log.log.batch.write_page(index, 0)
    replace(log, index, messages[last], last, timed_message(NEW))
    assert index.page(0) is None
    log.rest()
    assert log.message(index, last).body() == NEW
    assert_restarts_alike(log, before, log.checkpoint())


def test_a_message_is_replaced_twice_before_anything_is_written() -> None:
    log = StoredLog(page_entries_max=PAGE_ENTRIES)
    index = log.index(1)
    old = timed_message(OLD)
    log.log.batch.add(index, old, 0)
    log.rest()
    between = timed_message(b"never written")
    replace(log, index, old, 0, between)
    replace(log, index, between, 0, timed_message(NEW))
    log.rest()
    assert log.message(index, 0).body() == NEW
    assert not any(b"never written" in image for image in log.disk.segments.values())
    assert_restarts_alike(log, log.checkpoint())


def test_the_same_message_takes_its_own_place_with_another_time() -> None:
    log = StoredLog(page_entries_max=PAGE_ENTRIES)
    index = log.index(1)
    message = timed_message(OLD, 5)
    log.log.batch.add(index, message, 0)
    log.rest()
    for time_ms in (6, 7):
        replace(log, index, message, 0, message)
        message.time_ms = time_ms
    log.rest()
    assert log.message(index, 0).time_ms == 7
    assert_restarts_alike(log, log.checkpoint())


def test_what_compaction_is_about_to_copy_and_is_replaced_is_not_copied() -> None:
    log = StoredLog(segment_bytes=4096, page_entries_max=PAGE_ENTRIES)
    first, second = log.index(1), log.index(2, 1)
    old = timed_message(OLD, 5, 60_000)
    log.log.batch.add(first, old, 0)
    log.log.batch.add(second, old, 0)
    log.rest()
    lsn = first.lsn_of(0)
    log.log.batch.copy(log.record(first, 0), lsn, log.record(first, 0)[9])
    replace(log, first, old, 0, timed_message(NEW))
    log.rest()
    assert [log.message(index, 0).body() for index in (first, second)] == [NEW, OLD]
    assert lsn not in (first.lsn_of(0), second.lsn_of(0))
    assert log.message(second, 0).expiration_ms == 60_000
    assert_restarts_alike(log, log.checkpoint())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.booleans()),
        st.tuples(st.sampled_from(("ack", "replace", "write", "unload")), st.integers(0, 2), st.integers(0, 30)),
        st.tuples(st.sampled_from(("rest", "checkpoint", "compact")), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=examples(300), deadline=None, print_blob=True)
@given(STEPS)
def test_whatever_happens_every_restart_finds_the_same(steps: list[tuple[str, int, int]]) -> None:
    log = StoredLog(segment_bytes=2048, page_entries_max=PAGE_ENTRIES)
    indexes = [log.index(1), log.index(2, 5), log.index(3)]
    live: list[dict[int, Message]] = [{}, {}, {}]
    checkpoint: bytes | None = None
    for published, (step, which, choice) in enumerate(steps, 1):
        index, messages = indexes[which], live[which]
        number = sorted(messages)[choice % len(messages)] if messages else None
        new = timed_message(b"%d" % published + bytes(100), published if published % 3 else 0, published % 2 - 1)
        if step == "add":
            number = max([int(index.next_number), *(taken + 1 for taken in messages)])
            log.load(index, number // PAGE_ENTRIES)
            log.log.batch.add(index, new, number)
            messages[number] = new
        elif step == "replace" and number is not None:
            replace(log, index, messages[number], number, new)
            messages[number] = new
        elif step == "ack" and number is not None:
            log.settle(index, messages.pop(number), number)
        elif step == "write" and number is not None and index.page(number // PAGE_ENTRIES) is not None:
            log.log.batch.write_page(index, number // PAGE_ENTRIES)
        elif step == "unload" and number is not None:
            log.rest()
            log.unload(index, number // PAGE_ENTRIES)
        elif step == "rest":
            log.rest()
        elif step == "checkpoint":
            log.rest()
            checkpoint = log.checkpoint()
        elif step == "compact":
            log.compact()
            checkpoint = log.written_checkpoint()
    log.rest()
    for index, messages in zip(indexes, live, strict=True):
        assert index.live_count == len(messages)
        for number, message in messages.items():
            read = log.message(index, number)
            assert (read.content, read.time_ms) == (message.joined(), message.time_ms)
    found = entries(log.log, log.disk)
    for start in {None, checkpoint, log.checkpoint()}:
        restarted = log.restarted(start)
        # A lane in which nothing was ever written is in no record.
        assert entries(restarted, log.disk) == {key: found[key] for key in found if key in restarted.indexes}
        assert counts(restarted) == [row for row in counts(log.log) if row[0] in restarted.indexes]
        restarted.check_invariants()
    log.log.check_invariants()
