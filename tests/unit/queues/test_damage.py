"""Messages that are damaged on disk stay referred to and listed until an operator gives them up.

In parentheses: the invariants in the header of ``warren/queues/damage.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from durable_harness import SHAPE, DurableHarness
from engine_harness import Received, body_of
from simulation.simulated_file_system import SimulatedFileSystem
from stored_log import StoredLog, timed_message

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.claim_names import claims_name
from warren.queues.claims import LIMIT, ClaimQueue, Verdict, claims_arguments
from warren.queues.damage import damaged_places, give_up_damage, has_damage

COUNT = 64  # of messages, in pages of 16


class Damaged:
    """A durable queue whose messages are on disk only."""

    def __init__(self) -> None:
        self.fs = SimulatedFileSystem()
        self.harness = DurableHarness(self.fs, memory_bytes=0, shape=SHAPE._replace(segment_bytes=4096))
        channel = self.harness.channel()
        channel.declare("q", durable=True)
        for number in range(COUNT):
            channel.publish("", "q", b"%d" % number + bytes(100), delivery_mode=2)
        self.restart()

    def restart(self) -> None:
        self.harness = self.harness.restart(clean=True)

    @property
    def index(self) -> QueueIndex:
        index = self.harness.queue("q").ready.backlog(0).index
        assert index is not None
        return index

    def page_lsn(self, page_number: int) -> int:
        page = self.index.page(page_number)
        assert page is not None and page.lsn
        return int(page.lsn)

    def spoil(self, lsn: int) -> None:
        segment = self.harness.broker.log.segments.find(lsn)
        self.fs.flip_bit(segment_path(int(segment.number)), lsn - int(segment.base_lsn) + 40, 1)

    def take_all(self) -> list[int]:
        """Get and acknowledge all that is ready."""
        channel = self.harness.channel()
        taken: list[int] = []
        while (got := channel.get("q", no_ack=True)) is not None:
            taken.append(number_in(got))
        self.harness.write()
        return taken

    def places(self) -> list[tuple[str, int, int, int]]:
        return [(each.what, each.first, each.end, each.messages) for each in damaged_places(self.harness.broker.log, 9)]

    def checkpoint(self) -> None:
        log = self.harness.broker.log
        for _ in range(2):
            log.checkpoints.want()
            self.harness.settle()

    def segment_numbers(self) -> set[int]:
        return {int(segment.number) for segment in self.harness.broker.log.segments.segments}


def number_in(received: Received) -> int:
    return int(body_of(received).rstrip(b"\0"))


@pytest.mark.parametrize("ends", ["acks", "purge"])
def test_a_damaged_message_stays_in_its_segment_and_is_named_after_every_restart(ends: str) -> None:
    """(1), (2)"""
    d = Damaged()
    channel = d.harness.channel()
    first = channel.get("q")
    assert first is not None
    lsn = int(d.index.lsn_of(5))
    d.restart()
    d.spoil(lsn)
    number = int(d.harness.broker.log.segments.find(lsn).number)
    left = [each for each in range(COUNT) if each != 5]
    if ends == "acks":
        assert d.take_all() == left
    else:
        channel = d.harness.channel()
        for each in left[:8]:
            got = channel.get("q", no_ack=True)
            assert got is not None and number_in(got) == each
        channel.call(1, m.QueuePurge(0, "q", False))
        d.harness.write()
    for _ in range(2):
        assert d.places() == [("messages", 5, 6, 1)]
        d.checkpoint()
        assert number in d.segment_numbers()
        d.restart()
        assert d.take_all() == []
    assert int(d.index.damaged_count) == 1, "the same damage counts once"
    assert give_up_damage(d.harness.broker.log, "/", "q") == 1
    d.harness.write()
    assert d.places() == [] and not has_damage(d.harness.broker.log)
    d.checkpoint()
    assert number not in d.segment_numbers()
    d.restart()
    assert d.take_all() == [] and d.places() == []


def test_a_range_is_settled_around_what_is_damaged() -> None:
    """(2)"""
    d = Damaged()
    lsn = int(d.index.lsn_of(5))
    d.spoil(lsn)
    d.restart()
    channel = d.harness.channel()
    assert [number_in(got) for _ in range(7) if (got := channel.get("q"))] == [0, 1, 2, 3, 4, 6, 7]
    log = d.harness.broker.log
    log.batch.settle_range(d.index, 0, 8)
    d.harness.write()
    assert [int(d.index.lsn_of(number)) for number in range(8)] == [0] * 5 + [lsn] + [0] * 2
    log.batch.settle_range(d.index, 4, 6)
    log.batch.settle_range(d.index, 5, 6)
    assert int(d.index.lsn_of(5)) == lsn and int(d.index.lsn_of(8)) != 0


def test_a_damaged_index_page_stays_with_what_it_refers_to_until_it_is_given_up() -> None:
    """(1), (2)"""
    d = Damaged()
    d.spoil(d.page_lsn(1))
    d.restart()
    assert d.take_all() == [*range(16), *range(32, COUNT)]
    d.checkpoint()
    assert d.places() == [("index page", 16, 32, 16)]
    left = sum(int(segment.live_refs) for segment in d.harness.broker.log.segments.segments)
    assert left >= 17, "the page, and its messages"
    d.restart()
    assert d.take_all() == []
    assert d.places() == [("index page", 16, 32, 16)]
    assert give_up_damage(d.harness.broker.log, "/", "q") == 16
    d.checkpoint()
    assert d.places() == []
    d.restart()
    assert d.take_all() == [] and d.places() == []
    assert sum(int(segment.live_refs) for segment in d.harness.broker.log.segments.segments) >= 16


def test_a_page_that_can_be_read_again_after_a_restart_has_all_its_messages() -> None:
    """(1)"""
    d = Damaged()
    lsn = d.page_lsn(1)
    d.spoil(lsn)
    d.restart()
    assert d.take_all() == [*range(16), *range(32, COUNT)]
    d.checkpoint()
    d.spoil(lsn)  # as it was before
    d.restart()
    assert d.take_all() == list(range(16, 32))
    assert d.places() == []


def test_a_deleted_queue_takes_its_damage_along() -> None:
    """(2)"""
    d = Damaged()
    d.spoil(d.page_lsn(1))
    d.restart()
    d.take_all()
    assert d.places() == [("index page", 16, 32, 16)]
    d.harness.channel().call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    d.harness.write()
    assert d.places() == [] and not has_damage(d.harness.broker.log)
    d.checkpoint()
    d.harness = d.harness.restart(clean=True)


def test_what_cannot_be_read_is_served_later_and_never_counted_as_lost() -> None:
    d = Damaged()
    lsn = d.page_lsn(1)
    segment = d.harness.broker.log.segments.find(lsn)
    path, start = segment_path(int(segment.number)), lsn - int(segment.base_lsn)
    d.fs.spoil(path, start, start + 8)
    for _ in range(2):
        d.restart()
        channel = d.harness.channel()
        channel.send(1, m.BasicGet(0, "q", True))
        assert channel.take() == [], "the answer waits"
        assert d.harness.store.unread and d.places() == []
        assert d.harness.queue("q").ready_count == COUNT
        d.checkpoint()
    d.fs.heal(path)
    d.restart()
    assert d.take_all() == list(range(COUNT))


class LookedThrough(set[int]):
    """Numbers that count how often someone looks through all of them."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return super().__iter__()


def test_a_range_with_many_damaged_messages_is_settled_in_one_go() -> None:
    log = StoredLog(page_entries_max=4)
    index = log.index(1)
    for number in range(400):
        log.log.batch.add(index, timed_message(b"x"), number)
    log.rest()
    damaged = {*range(3, 400, 7), 396}
    for number in damaged:
        index.damage_message(number)
    damage = index.need_damage()
    lost = index.page(5)
    assert lost is not None
    index.lose_page(lost)
    damage.numbers = numbers = LookedThrough(damaged)
    log.log.batch.settle_range(index, 22, 399)
    assert numbers.times == 1
    left = [number for number in range(400) if index.lsn_of(number)]
    assert left == sorted({*range(20), *(damaged - set(range(20, 24))), 399})


def test_a_claim_that_is_given_up_no_longer_counts() -> None:
    """A queue of claims can be deleted when nothing is left in it."""
    d = Damaged()
    name = claims_name("q", "c")
    declaration = QueueDeclaration(name, durable=True, arguments=claims_arguments("q", "c"))
    d.harness.vhost.declare_queue(declaration)
    claims = d.harness.vhost.queues[name]
    assert isinstance(claims, ClaimQueue)
    while (taken := claims.claim(d.harness.plain_queue("q"), COUNT, 1 << 20, True, [])).waits or taken.count:
        d.harness.write()
    assert claims.message_count == COUNT
    index = claims.messages.index
    assert index is not None
    d.spoil(int(index.lsn_of(5)))
    acknowledged: list[int] = []
    claims.settle_oldest(None, COUNT, Verdict(LIMIT, limit=9), acknowledged.append)
    d.harness.write()
    assert acknowledged == [COUNT - 1] and claims.message_count == 1
    assert give_up_damage(d.harness.broker.log, "/", name) == 1
    d.harness.write()
    assert claims.message_count == 0 and claims.message_bytes == 0
    claims.check_allows("queue.delete")
    d.harness.check()
