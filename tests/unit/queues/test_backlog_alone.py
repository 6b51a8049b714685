"""A backlog without a queue: what is in memory, what is only on disk, and in which order it comes out."""

from __future__ import annotations

import random

import pytest
from stored_log import StoredLog

from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import LENGTH_SHIFT, LSN_MASK
from warren.queues.backlog import SHORT_HEAD_MESSAGES, Backlog
from warren.queues.message_run import NO_MESSAGES, SPARSE_MIN
from warren.queues.middle import NO_MIDDLE

QUEUE_ID = 1
MANY = 3 * SHORT_HEAD_MESSAGES
AMPLE_BYTES = 128 << 20


class Waiting:
    """A backlog on a log and a disk in memory. `bodies`: what should wait, by number; `out`: what is not answered."""

    def __init__(self) -> None:
        self.store = StoredLog()
        self.backlog = Backlog(self.store.log, self._loaded)
        self.index = self.store.index(QUEUE_ID)
        self.backlog.begin_storing(self.index)
        self.bodies: dict[int, bytes] = {}
        self.out: dict[int, Message] = {}
        self.lost = 0

    def _loaded(self, lost: int, lost_bytes: int) -> None:
        self.lost += lost

    @property
    def log(self) -> MessageLog:
        return self.store.log

    def publish(self, body: bytes, *, persistent: bool = True) -> int:
        """Add a message; return its number."""
        message = build_message(Envelope("", "q"), b"\0\0", body, 4096, persistent)
        number = int(self.backlog.append(message))
        if persistent:
            self.log.batch.add(self.index, message, number)
        self.bodies[number] = body
        return number

    def fill(self, count: int, *, persistent: bool = True) -> None:
        """Add messages whose bodies are their numbers, and have everything written."""
        for _ in range(count):
            self.publish(b"%d" % int(self.backlog.next_number), persistent=persistent)
        self.store.rest()

    def short_of_memory(self, short: bool = True) -> None:
        """Make the queues take more memory than they may, or no longer."""
        self.log.memory_bytes = 0 if short else AMPLE_BYTES
        self.log.under_pressure = short

    def page_out(self) -> None:
        """Remove everything from memory that can leave it."""
        self.short_of_memory()
        for _ in range(4):
            self.backlog.batch_closed()
            self.store.rest()

    def begin_to_read(self, number: int) -> None:
        """Put the messages on disk only, and take them from there until the one with this number is being read."""
        self.fill(MANY)
        self.page_out()
        while not (self.log.read_jobs and self.backlog.middle.has(number)):
            if self.log.read_jobs:
                self.store.disk.run()  # pages of the index come first
            else:
                assert self.pop() is not None

    def answer(self) -> None:
        """Settle what was taken out of turn."""
        for number, message in self.out.items():
            self.log.batch.settle(self.index, message, number)
            self.backlog.middle.settled(number)
        self.out.clear()

    def pop(self) -> int | None:
        """Take out and settle the oldest message, read from disk if it has to be; return its number."""
        if self.backlog.is_empty():
            return None
        while not self.backlog.ready_or_fetch():
            assert self.log.read_jobs, "it waits for nothing"
            self.store.rest()
        assert self.backlog.oldest().body() == self.bodies[min(self.bodies)]
        message = self.backlog.pop()
        number = int(self.backlog.popped_number)
        assert number == min(self.bodies)
        self.log.batch.settle(self.index, message, number)
        assert message.body() == self.bodies.pop(number)
        return number

    def take(self, number: int) -> bool:
        """Take a message out of turn, if it can be found now. It is not answered yet."""
        found = self.backlog.find(number)
        if found is None:
            if not self.backlog.middle.has(number):
                return False
            found = self._on_disk(number)
        assert self.backlog.take(number)
        assert not self.backlog.take(number), "it does not wait any longer"
        assert found.body() == self.bodies.pop(number)
        self.out[number] = found
        return True

    def _on_disk(self, number: int) -> Message:
        """Return a message that is only on disk; its index page is in memory."""
        page = self.index.page(number // int(self.index.page_entries))
        assert page is not None
        at = 2 * (number % int(self.index.page_entries))
        data = self.store.disk.read(page.entries[at] & LSN_MASK, page.entries[at + 1] >> LENGTH_SHIFT)
        found = self.log.maybe_message(self.index, number, data, 0, len(data), False)
        assert found is not None
        return found

    def check(self) -> None:
        """Compare with what should wait."""
        backlog = self.backlog
        backlog.check_invariants()
        assert backlog.is_empty() == (not self.bodies)
        assert {number: message.body() for number, message in backlog.residents()}.items() <= self.bodies.items()
        assert len(backlog.residents()) + backlog.middle.count == len(self.bodies)
        assert backlog.oldest_number() <= min(self.bodies, default=int(backlog.next_number))

    def drain(self) -> None:
        """Take out everything, in order."""
        while self.pop() is not None:
            pass
        assert not self.bodies and self.lost == 0


def test_a_short_backlog_is_in_memory_and_nothing_is_read() -> None:
    waiting = Waiting()
    waiting.fill(MANY)
    assert (waiting.backlog.head.count, waiting.backlog.middle.count) == (MANY, 0)
    assert waiting.log.resident_bytes == waiting.backlog.memory_bytes() > 0
    waiting.drain()
    assert not waiting.log.read_jobs and waiting.log.resident_bytes == 0


def test_a_backlog_that_was_always_short_shares_an_empty_middle_and_tail() -> None:
    """(7)"""
    waiting = Waiting()
    waiting.fill(3)
    waiting.drain()
    assert waiting.backlog.middle is NO_MIDDLE and waiting.backlog.tail is NO_MESSAGES
    waiting.fill(MANY)
    waiting.page_out()
    waiting.fill(1)
    assert waiting.backlog.middle is not NO_MIDDLE
    waiting.drain()
    restored = Backlog(waiting.log, waiting._loaded)
    restored.restore(waiting.index)
    assert restored.is_empty() and restored.middle is NO_MIDDLE
    waiting.backlog.close()
    waiting.backlog.check_invariants()


def test_while_memory_is_short_the_beginning_stays_and_the_rest_is_on_disk_only() -> None:
    waiting = Waiting()
    waiting.fill(MANY)
    waiting.page_out()
    assert [number for number, _ in waiting.backlog.residents()] == list(range(SHORT_HEAD_MESSAGES))
    assert waiting.backlog.on_disk() == (SHORT_HEAD_MESSAGES, MANY)
    assert waiting.backlog.middle.may_have(MANY - 1) and not waiting.backlog.middle.may_have(0)
    waiting.check()
    waiting.drain()


@pytest.mark.parametrize("short", [False, True])
def test_transient_messages_go_to_disk_only_while_memory_is_short(short: bool) -> None:
    waiting = Waiting()
    waiting.fill(MANY, persistent=False)
    assert waiting.index.live_count == 0
    if short:
        waiting.page_out()
    assert (waiting.backlog.middle.count > 0) == short
    assert int(waiting.index.live_count) == waiting.backlog.middle.count
    waiting.drain()


def test_what_comes_behind_the_middle_waits_for_it() -> None:
    waiting = Waiting()
    waiting.fill(MANY)
    waiting.page_out()
    waiting.short_of_memory(False)
    last = waiting.publish(b"last")
    assert waiting.backlog.residents()[-1][0] == last == MANY
    waiting.check()
    waiting.drain()


def test_what_is_purged_does_not_come_back_from_a_read_under_way() -> None:
    waiting = Waiting()
    waiting.fill(MANY)
    waiting.page_out()
    while waiting.pop() is not None and not waiting.log.read_jobs:
        pass
    assert waiting.log.read_jobs, "nothing is read"
    waiting.backlog.clear()
    waiting.bodies.clear()
    number = waiting.publish(b"new")
    waiting.store.rest()
    waiting.check()
    assert [each for each, _ in waiting.backlog.residents()] == [number]
    assert waiting.index.live_count == 1, "what was purged is settled"
    waiting.drain()


def test_a_message_that_is_taken_while_it_is_read_comes_once() -> None:
    waiting = Waiting()
    number = SHORT_HEAD_MESSAGES + 5
    waiting.begin_to_read(number)
    assert waiting.take(number)
    waiting.store.rest()
    waiting.check()
    waiting.drain()


def test_a_message_that_is_settled_while_it_is_read_does_not_come() -> None:
    waiting = Waiting()
    number = SHORT_HEAD_MESSAGES + 5
    waiting.begin_to_read(number)
    message = waiting._on_disk(number)
    assert waiting.backlog.remove(number)
    waiting.log.batch.settle(waiting.index, message, number)
    del waiting.bodies[number]
    waiting.store.rest()
    waiting.check()
    waiting.drain()


def test_a_message_has_its_number_after_everything_before_was_given_up_and_taken() -> None:
    waiting = Waiting()
    waiting.fill(MANY)
    for number in range(1, SHORT_HEAD_MESSAGES + 10):
        assert waiting.take(number)
    assert waiting.pop() == 0  # now the head begins with more places without a message than stay in memory
    waiting.short_of_memory()
    waiting.backlog.batch_closed()
    for number in sorted(waiting.bodies):
        assert waiting.take(number)
    waiting.short_of_memory(False)
    waiting.fill(3)
    assert [waiting.pop() for _ in range(3)] == [MANY, MANY + 1, MANY + 2]


def test_a_message_that_is_taken_out_of_turn_makes_those_before_it_suspect() -> None:
    waiting = Waiting()
    waiting.fill(10)
    assert waiting.backlog.delivered_below() == 0
    assert waiting.take(6)
    assert waiting.backlog.delivered_below() == 7
    assert not waiting.take(6)
    waiting.check()
    waiting.drain()
    assert waiting.backlog.delivered_below() == 10


def test_the_end_of_the_head_is_stored_in_one_batch_although_its_first_message_is_large() -> None:
    """(3): messages leave from the end, so a piece of which only the beginning is stored frees nothing."""
    waiting = Waiting()
    waiting.fill(SHORT_HEAD_MESSAGES, persistent=False)
    for body in (b"x" * 5000, b"small", b"small"):
        waiting.publish(body, persistent=False)
    waiting.short_of_memory()
    waiting.log.batch_bytes = 3000
    waiting.backlog.batch_closed()
    assert [message.body()[:5] for message in waiting.log.batch.messages] == [b"xxxxx", b"small", b"small"]
    waiting.store.rest()
    assert waiting.backlog.on_disk() == (SHORT_HEAD_MESSAGES, SHORT_HEAD_MESSAGES + 3)
    waiting.drain()


@pytest.mark.parametrize("end", ["head", "tail"])
def test_a_message_has_its_number_after_most_of_those_before_it_passed(end: str) -> None:
    """(6)"""
    waiting = Waiting()
    backlog = waiting.backlog
    waiting.publish(b"first", persistent=False)
    if end == "tail":
        backlog.pass_number()
        waiting.publish(b"second", persistent=False)  # not right after the first, so it is in the tail
    while not (backlog.head.is_sparse() or backlog.tail.is_sparse()):
        assert waiting.take(waiting.publish(b"taken", persistent=False))
    for _ in range(3):
        if not backlog.thin_out():
            backlog.batch_closed()
            waiting.store.rest()
    assert backlog.thin_out()
    assert waiting.publish(b"last", persistent=False) > SPARSE_MIN
    waiting.check()
    waiting.drain()


@pytest.mark.parametrize("all_persistent", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_messages_come_out_in_order_whatever_is_in_memory(seed: int, all_persistent: bool) -> None:
    dice = random.Random(seed)
    waiting = Waiting()
    for _ in range(150):
        what = dice.choice(
            ("publish", "publish", "pop", "take", "answer", "rest", "page out", "ample", "pass", "clear")
        )
        if what == "publish":
            for _ in range(dice.choice((1, 5, 40))):
                body = b"%d" % dice.randrange(1 << 20) * dice.choice((1, 1, 1, 300))
                waiting.publish(body, persistent=all_persistent or dice.random() < 0.8)
        elif what == "pop":
            for _ in range(dice.choice((1, 10, 60))):
                waiting.pop()
        elif what == "take" and waiting.bodies:
            for number in dice.sample(sorted(waiting.bodies), min(len(waiting.bodies), dice.choice((1, 5, 30)))):
                waiting.take(number)
        elif what == "answer":
            waiting.answer()
        elif what == "rest":
            waiting.store.rest()
        elif what == "page out":
            waiting.page_out()
        elif what == "ample":
            waiting.short_of_memory(False)
        elif what == "pass":
            waiting.backlog.pass_number()
        elif what == "clear" and dice.random() < 0.2:
            waiting.backlog.clear()
            waiting.bodies.clear()
        waiting.check()
    waiting.store.rest()
    if all_persistent:
        unanswered = {number: message.body() for number, message in waiting.out.items()}
        assert _found_after_a_restart(waiting) == waiting.bodies | unanswered
    waiting.answer()
    waiting.drain()
    waiting.store.rest()
    assert waiting.index.live_count == 0


def _found_after_a_restart(waiting: Waiting) -> dict[int, bytes]:
    """Return what a backlog on the log that a restart makes hands out, by number."""
    log = waiting.store.restarted()
    log.written_lsn = log.next_lsn = waiting.log.next_lsn
    index = log.indexes.get(QUEUE_ID)
    found: dict[int, bytes] = {}
    if index is None:
        return found
    losses: list[int] = []
    backlog = Backlog(log, lambda lost, _: losses.append(lost))
    backlog.restore(index)
    while not backlog.is_empty():
        while not backlog.ready_or_fetch():
            assert log.read_jobs, "it waits for nothing"
            jobs, log.read_jobs = log.read_jobs, []
            for job in jobs:
                job.carry_out(waiting.store.disk.files)
                job.finished()
        message = backlog.pop()
        found[int(backlog.popped_number)] = message.body()
    assert not any(losses)
    assert list(found) == sorted(found)
    return found
