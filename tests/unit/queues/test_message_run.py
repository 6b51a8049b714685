"""Messages in memory with consecutive numbers. (3): the header of ``warren/queues/message_run.py``."""

from __future__ import annotations

import random

import pytest
from stored_log import StoredLog

from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.message_run import GONE_MIN, PLACES_PER_MESSAGE, SPARSE_MIN, MessageRun

QUEUE_ID = 1


def message(body: bytes = b"body") -> Message:
    return build_message(Envelope("", "q"), b"\0\0", body, 4096, True)


def run_of(*numbers: int) -> MessageRun:
    """Return a run with messages of these numbers, which ascend."""
    run = MessageRun()
    for number in numbers:
        run.append(message(), number)
    return run


def numbers_of(run: MessageRun) -> list[int]:
    run.check_invariants()
    return [number for number, _ in run.numbered()]


@pytest.mark.parametrize("seed", range(6))
def test_a_run_is_a_table_of_messages_by_ascending_numbers(seed: int) -> None:
    dice = random.Random(seed)
    run = MessageRun()
    table: dict[int, Message] = {}
    following = 5
    for _ in range(3 * GONE_MIN):
        what = dice.choice(
            ("append", "append", "append", "gap", "take", "take first", "cut end", "cut beginning", "trim")
        )
        if what == "append":
            table[following] = message(b"x" * dice.randrange(9))
            run.append(table[following], following)
            following += 1
        elif what == "gap":
            following += dice.randrange(3)
        elif what == "take" and table:
            number = dice.choice(list(table))
            run.take(table.pop(number), number)
        elif what == "take first" and table:
            number = min(table)
            run.take(table.pop(number), number)
        elif what == "cut end" and table and dice.random() < 0.02:
            kept_to = dice.randrange(min(table), max(table) + 1)
            cut = run.cut_end(run.at + kept_to - run.first)
            assert cut.count == len([table.pop(number) for number in list(table) if number >= kept_to])
        elif what == "cut beginning" and table and dice.random() < 0.02:
            first = dice.randrange(min(table), max(table) + 1)
            cut = run.cut_beginning(first - run.first)
            left = [table.pop(number) for number in list(table) if number < first]
            assert (cut.count, cut.body_bytes) == (len(left), sum(int(each.body_bytes) for each in left))
        elif what == "trim":
            run.trim()
        assert numbers_of(run) == sorted(table)
        around = dice.randrange(following + 2)
        assert run.find(around) is table.get(around)
        later = [number for number in table if number >= around]
        assert run.seek(around) == (min(later) if later else max(around, int(run.end()))) or not table
    assert len(run.items) - run.at <= SPARSE_MIN


def test_a_run_that_loses_its_last_message_has_no_places() -> None:
    """(3)"""
    run = run_of(3, 9)
    run.take(run.items[6] or message(), 9)
    run.cut_beginning(1)
    assert numbers_of(run) == [] and not run.items
    run.append(message(), 20)
    assert numbers_of(run) == [20] and run.first == 20


def test_a_run_is_sparse_once_it_has_many_places_for_each_message() -> None:
    most = SPARSE_MIN + 2 * PLACES_PER_MESSAGE
    assert not run_of(0, most - 1).is_sparse()
    run = run_of(0, most)
    assert run.is_sparse()
    run.take(run.items[0] or message(), 0)
    run.trim()
    assert not run.is_sparse() and numbers_of(run) == [most]


def test_what_is_on_disk_ends_at_a_message_that_is_not() -> None:
    store = StoredLog()
    index = store.index(QUEUE_ID)
    run = run_of(0, 1, 4, 5, 8)
    for number in (0, 1, 5, 8):
        store.log.batch.add(index, run.items[number] or message(), number)
    assert (run.stored_to(index), run.stored_from(index, 0)) == (0, 9), "the batch is open"
    store.rest()
    assert (run.stored_to(index), run.stored_from(index, 0), run.stored_from(index, 7)) == (4, 5, 7)
    run.store(index, 0, whole=False)
    store.rest()
    assert (run.stored_to(index), run.stored_from(index, 0)) == (9, 0)
    assert index.live_count == 5, "the others were not stored twice"


def test_gaps_are_not_settled() -> None:
    store = StoredLog()
    index = store.index(QUEUE_ID)
    run = run_of(*range(6))
    for number, each in run.numbered():
        store.log.batch.add(index, each, number)
    store.rest()
    for number in (2, 3):
        run.take(run.items[number] or message(), number)
    run.settle(index)
    assert index.live_count == 2 and index.lsn_of(2) and index.lsn_of(3)


def test_the_beginning_that_stays_has_one_message_of_any_size() -> None:
    run = MessageRun()
    for number in range(4):
        run.append(message(b"x" * 1000), number)
    assert [int(run.short_to(most, 1)) for most in (0, 1, 4)] == [0, 1, 1]
    assert run.short_to(3, 1 << 20) == 3
