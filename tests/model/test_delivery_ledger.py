"""`DeliveryLedger` against a dict: random acks of every kind, stragglers, rollbacks, and tags millions apart."""

from __future__ import annotations

import random

import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_view import outstanding_tags
from memory_store import memory_log

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.outbox import Outbox
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger
from warren.queues.queue import Queue
from warren.queues.queue_host import QueueHost
from warren.queues.timers import TimerQueue
from warren.queues.turns import Turns
from warren.queues.unacked import MOVED_AT_ONCE, Delivery

MESSAGE: Message = build_message(Envelope("", "q"), b"\x00\x00", b"m", 4096, False)


class Comparison:
    """A ledger with one acking and one no-ack consumer, and a dict of what is outstanding."""

    def __init__(self) -> None:
        self.outbox = Outbox(1, [], 1 << 30)
        self.ledger = DeliveryLedger(1, Turns(self.outbox, []), 0, 1 << 40)
        self.queue = Queue(
            QueueDeclaration("q", durable=False),
            owner=None,
            runnable=[],
            host=QueueHost("/", memory_log(), TimerQueue()),
        )
        self.acking = Consumer(
            self.ledger, self.queue, "a", no_ack=False, exclusive=False, priority=0, prefetch=0, arguments=EMPTY_TABLE
        )
        self.silent = Consumer(
            self.ledger, self.queue, "s", no_ack=True, exclusive=False, priority=0, prefetch=0, arguments=EMPTY_TABLE
        )
        self.outstanding: dict[int, int] = {}  # sequence number by tag, ascending
        self.buffered: list[Delivery] = []
        self.tags = 0
        self.places = 0

    def deliver(self, count: int) -> None:
        for _ in range(count):
            self.queue.unacked_count += 1
            self.queue.unacked_bytes += MESSAGE.body_bytes
            self.ledger.deliver(self.acking, MESSAGE, self.places, False)
            self.tags += 1
            self.outstanding[self.tags] = self.places
            self.places += 1

    def deliver_no_ack(self, count: int) -> None:
        for _ in range(count):
            self.ledger.deliver(self.silent, MESSAGE, self.places, False)
            self.tags += 1
            self.places += 1

    def jump(self, count: int) -> None:
        """As `deliver_no_ack` of millions: tags are numbers only."""
        self.ledger.next_tag += count
        self.tags += count

    def _named(self, tag: int, multiple: bool) -> list[int] | None:
        if tag not in self.outstanding and not (tag == 0 and multiple):
            return None
        if not multiple:
            return [tag]
        return [each for each in self.outstanding if tag == 0 or each <= tag]

    def ack(self, tag: int, multiple: bool) -> None:
        named = self._named(tag, multiple)
        acked = int(self.queue.acked)
        if named is None:
            with pytest.raises(ChannelException, match=f"unknown delivery tag {tag}"):
                self.ledger.ack(tag, multiple)
            named = []
        elif not self.ledger.ack(tag, multiple):
            while self.ledger.ack_run(tag, 1000):
                pass
        for each in named:
            del self.outstanding[each]
        assert self.queue.acked == acked + len(named)

    def take(self, tag: int, multiple: bool, keep: bool) -> None:
        """Take as reject does, or as a transaction does, to be restored or released later."""
        named = self._named(tag, multiple)
        if named is None:
            with pytest.raises(ChannelException, match=f"unknown delivery tag {tag}"):
                self.ledger.take(tag, multiple)
            return
        taken = self.ledger.take(tag, multiple)
        assert [(int(each.tag), int(each.sequence_number)) for each in taken] == [
            (each, self.outstanding.pop(each)) for each in named
        ]
        if keep:
            self.buffered += taken
            return
        for each in taken:
            self.ledger.release(each)
            self.queue.settle(each)

    def restore(self) -> None:
        for each in self.buffered:
            self.ledger.restore(each)
        self.outstanding |= {int(each.tag): int(each.sequence_number) for each in self.buffered}
        self.outstanding = dict(sorted(self.outstanding.items()))
        self.buffered = []

    def check(self) -> None:
        ledger = self.ledger
        assert outstanding_tags(ledger) == list(self.outstanding)
        assert ledger.unacked_count == len(self.outstanding)
        assert self.acking.outstanding == ledger.consumer_unacked == len(self.outstanding) + len(self.buffered)
        assert self.queue.unacked_count == len(self.outstanding) + len(self.buffered)
        assert self.queue.unacked_bytes == self.queue.unacked_count * MESSAGE.body_bytes
        assert ledger.next_tag == self.tags + 1
        self.outbox.take()


def run(choices: random.Random, steps: int, most: int) -> Comparison:
    comparison = Comparison()
    for _ in range(steps):
        some = choices.choice([1, 1, 2, 5, most])
        tags = list(comparison.outstanding)
        tag = choices.choice(
            [choices.choice(tags), tags[0], tags[-1], tags[len(tags) // 2]] if tags else [0, 1, comparison.tags]
        )
        if choices.random() < 0.05:
            tag = choices.choice([0, tag + 1, comparison.tags + 1, max(tag - 1, 0)])
        multiple = choices.random() < 0.3
        match choices.randrange(12):
            case 0 | 1 | 2:
                comparison.deliver(some)
            case 3:
                comparison.deliver_no_ack(some)
            case 4:
                comparison.jump(choices.choice([1, 5_000, 3_000_000, 1 << 40]))
            case 5 | 6 | 7:
                comparison.ack(tag, multiple)
            case 8:
                comparison.take(tag, multiple, keep=False)
            case 9:
                comparison.take(tag, multiple, keep=True)
            case 10:
                comparison.restore()
            case _:
                # Everything but a few old ones: what makes stragglers.
                for each in tags[3:]:
                    comparison.ack(each, False)
        comparison.check()
    return comparison


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 32))
def test_a_few_steps_agree_with_a_dict(seed: int) -> None:
    run(random.Random(seed), 60, 20)


def test_many_steps_agree_with_a_dict() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    run(random.Random(seed), 250, 6000)


@pytest.mark.parametrize("oldest_first", [False, True])
def test_one_forgotten_message_does_not_pin_the_list(oldest_first: bool) -> None:
    comparison = Comparison()
    comparison.deliver(3)
    for _ in range(300):
        comparison.deliver(100)
        tags = list(comparison.outstanding)[3:]
        for tag in tags if oldest_first else reversed(tags):
            comparison.ack(tag, False)
        comparison.outbox.take()
    comparison.check()
    assert len(comparison.ledger._entries) < 10_000
    assert outstanding_tags(comparison.ledger) == [1, 2, 3]


def test_tags_leave_no_places_behind_for_no_ack_deliveries() -> None:
    comparison = Comparison()
    comparison.deliver_no_ack(20_000)
    comparison.deliver(1)
    comparison.check()
    assert len(comparison.ledger._entries) == 1


def test_so_many_are_moved_at_once_and_no_more() -> None:
    """One answer moved 37,000 stragglers in 18 ms, and the same client could have left 500,000."""
    comparison = Comparison()
    comparison.deliver(30_000)
    moved = 0
    for tag in range(1, 30_001):
        if tag % 9:
            comparison.ack(tag, False)
            before, moved = moved, len(comparison.ledger._stragglers)
            assert moved - before <= MOVED_AT_ONCE
        comparison.outbox.take()
    assert moved > 1000
    comparison.check()
    comparison.ack(0, True)
    comparison.check()


def test_a_delivery_that_waits_makes_no_places_for_millions_without_acks() -> None:
    """A hundred million tags would have taken 800 MB when the next one wants an answer."""
    comparison = Comparison()
    comparison.deliver(2)
    comparison.jump(100_000)
    comparison.deliver(1)
    assert len(comparison.ledger._entries) == 1
    comparison.check()
    for tag in (2, 100_003, 1):
        comparison.ack(tag, False)
        comparison.check()
