"""Which publishes a channel confirms or refuses, and when: confirms.py (1) to (6), with a disk that may be slow."""

from __future__ import annotations

import random

import pytest
from engine_harness import split_frames
from stored_log import StoredLog, timed_message

from warren.amqp import methods as m
from warren.amqp.codec import decode_method
from warren.amqp.outbox import Outbox
from warren.channels.channel_confirms import ChannelConfirms
from warren.channels.confirms import PendingConfirms
from warren.queues.long_work import LongWork
from warren.queues.outcome import ACCEPTED, REFUSED, REPEATED
from warren.vhosts.metadata import VhostPut
from warren.vhosts.metadata_journal import MetadataJournal

NUMBER = 40_000  # of the channel: more than 15 bits


def ack(tag: int, *, multiple: bool = False) -> m.BasicAck:
    return m.BasicAck(tag, multiple)


def nack(tag: int) -> m.BasicNack:
    return m.BasicNack(tag, multiple=False, requeue=False)


class Publisher:
    """The confirms of a channel, with a log and a catalogue of their own."""

    def __init__(self) -> None:
        self.stored = StoredLog()
        self.stored.disk.hold = True
        self.log = self.stored.log
        self.journal = MetadataJournal(self.log, LongWork())
        self.journal.hold()
        self.pending = PendingConfirms(self.log, self.journal)
        self.outbox = Outbox(1, [])
        self.confirms = ChannelConfirms(self.pending, self.outbox, NUMBER, syncs=True)
        self._index = self.stored.index(1)
        self._stored_count = 0

    def publish(self, count: int = 1, outcome: int = ACCEPTED) -> None:
        """Publish messages that nobody stores."""
        for _ in range(count):
            self.confirms.count_publish(timed_message(b"x", persistent=False), outcome, 0)

    def refuse(self) -> None:
        self.publish(outcome=REFUSED)

    def store(self, count: int = 1) -> None:
        """Publish messages that go to the disk."""
        for _ in range(count):
            message = timed_message(b"x")
            self.log.batch.add(self._index, message, self._stored_count)
            self._stored_count += 1
            self.confirms.count_publish(message, ACCEPTED, self.journal.last_ticket)

    def end_turn(self) -> None:
        self.pending.end_turn()
        self.log.close_if_due()

    def write(self) -> None:
        """The disk carries out what it was asked for before, nothing else."""
        self.stored.disk.hold = False
        self.stored.disk.run()
        self.stored.disk.hold = True

    def declare(self) -> int:
        return self.journal.append(VhostPut("/"))

    def commit(self, ticket: int) -> None:
        """The declarations up to `ticket`, which were held back, are durable."""
        self.journal.committed_ticket = ticket
        self.pending.declared()

    def answers(self) -> list[m.BasicAck | m.BasicNack]:
        """Return what the peer has been sent since the last time."""
        frames = split_frames(b"".join(self.outbox.take()))
        assert all((kind, number) == (1, NUMBER) for kind, number, _ in frames)
        return [decode_method(payload, 0, len(payload)) for _, _, payload in frames]


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def test_what_is_not_stored_is_confirmed_by_one_ack_at_the_end_of_the_turn(publisher: Publisher) -> None:
    publisher.end_turn()
    assert publisher.answers() == []
    publisher.publish(3)
    assert publisher.answers() == []
    publisher.end_turn()
    assert publisher.answers() == [ack(3, multiple=True)]
    publisher.publish(outcome=REPEATED)
    publisher.end_turn()
    publisher.end_turn()
    assert publisher.answers() == [ack(4)]


def test_a_refusal_is_told_at_once_and_no_ack_names_it(publisher: Publisher) -> None:
    publisher.publish(2)
    publisher.refuse()
    assert publisher.answers() == [nack(3)]
    publisher.end_turn()
    assert publisher.answers() == [ack(2, multiple=True)]
    publisher.refuse()
    publisher.publish()
    publisher.end_turn()
    assert publisher.answers() == [nack(4), ack(5, multiple=True)]
    assert (publisher.confirms.published, publisher.confirms.confirmed) == (5, 3)


def test_what_is_stored_is_confirmed_batch_by_batch(publisher: Publisher) -> None:
    publisher.store(2)
    publisher.end_turn()
    publisher.store(3)
    publisher.end_turn()
    assert publisher.answers() == []
    publisher.write()
    assert publisher.answers() == [ack(2, multiple=True)]
    publisher.end_turn()
    publisher.write()
    assert publisher.answers() == [ack(5, multiple=True)]


def test_a_repetition_waits_for_the_disk_as_what_it_repeats_does(publisher: Publisher) -> None:
    repeated = timed_message(b"x")
    repeated.awaits_batch = True
    publisher.stored.log.batch.add(publisher.stored.index(1), timed_message(b"x"), 0)
    publisher.confirms.count_publish(repeated, REPEATED, 0)
    publisher.end_turn()
    assert publisher.answers() == []
    publisher.write()
    assert publisher.answers() == [ack(1)]


def test_what_is_published_behind_something_stored_waits_for_it(publisher: Publisher) -> None:
    publisher.store()
    publisher.publish()
    publisher.end_turn()
    assert publisher.answers() == []
    publisher.write()
    assert publisher.answers() == [ack(2, multiple=True)]


def test_a_batch_confirms_nothing_that_waits_for_the_next_one(publisher: Publisher) -> None:
    publisher.store()
    publisher.end_turn()
    publisher.publish()
    publisher.store()
    publisher.publish()
    publisher.end_turn()
    publisher.write()
    assert publisher.answers() == [ack(1)]
    publisher.end_turn()
    publisher.write()
    assert publisher.answers() == [ack(4, multiple=True)]


@pytest.mark.parametrize("is_written_first", [False, True])
def test_what_is_stored_waits_for_the_declarations_before_it(publisher: Publisher, is_written_first: bool) -> None:
    first = publisher.declare()
    publisher.store()
    publisher.end_turn()
    second = publisher.declare()
    publisher.publish()
    if is_written_first:
        publisher.write()
        assert publisher.answers() == []
        publisher.commit(first)
    else:
        publisher.commit(first)
        assert publisher.answers() == []
        publisher.write()
    assert publisher.answers() == [ack(2, multiple=True)]
    publisher.commit(second)
    assert publisher.answers() == []


def test_a_channel_that_waits_for_a_declaration_is_looked_at_once(publisher: Publisher) -> None:
    """It stores more meanwhile, a batch at a time: each end of one looks at all that wait."""
    ticket = publisher.declare()
    for _ in range(5):
        publisher.store()
        publisher.end_turn()
        publisher.write()
    assert publisher.answers() == [] and len(publisher.pending.undeclared) == 1
    publisher.commit(ticket)
    assert publisher.answers() == [ack(5, multiple=True)]


def test_a_queue_declared_within_a_batch_delays_all_of_it(publisher: Publisher) -> None:
    publisher.store()
    ticket = publisher.declare()
    publisher.store()
    publisher.end_turn()
    publisher.write()
    assert publisher.answers() == []
    publisher.commit(ticket)
    assert publisher.answers() == [ack(2, multiple=True)]


def test_confirms_that_are_held_back_come_in_one(publisher: Publisher) -> None:
    publisher.pending.hold(held=True)
    publisher.publish()
    publisher.end_turn()
    publisher.store()
    publisher.end_turn()
    publisher.write()
    publisher.refuse()
    assert publisher.answers() == [nack(3)]
    assert publisher.confirms.unanswered_count() == 2
    publisher.pending.hold(held=False)
    assert publisher.answers() == [ack(2, multiple=True)]
    assert publisher.confirms.unanswered_count() == 0


def test_a_closed_channel_is_told_nothing(publisher: Publisher) -> None:
    publisher.publish()
    publisher.store()
    publisher.confirms.close()
    publisher.end_turn()
    publisher.write()
    publisher.refuse()
    assert publisher.answers() == []
    assert publisher.confirms.confirmed == 0


class Books:
    """All publishes and their answers, one by one."""

    def __init__(self) -> None:
        self.open: dict[int, bool] = {}  # publish -> refused
        self.published = 0
        self.confirmed = 0
        self.latest_ack = 0

    def publish(self, *, refused: bool = False) -> None:
        self.published += 1
        self.open[self.published] = refused

    def answered(self, answer: m.BasicAck | m.BasicNack) -> None:
        tag = answer.delivery_tag
        if isinstance(answer, m.BasicNack):
            assert self.open.pop(tag), "it was not refused"
            return
        assert self.open[tag] is False, "an ack names a refused publish, or one that was answered"
        done = [each for each in self.open if each == tag or (answer.multiple and each < tag)]
        assert not any(self.open.pop(each) for each in done), "an ack covers a refused publish before its nack"
        assert not self.open or min(self.open) > tag, "an ack leaves something behind it"
        assert tag > self.latest_ack, "acks are in order"
        self.latest_ack = tag
        self.confirmed += len(done)


@pytest.mark.parametrize("seed", range(100))
def test_every_publish_is_answered_once_and_counted(publisher: Publisher, seed: int) -> None:
    choose = random.Random(seed)
    books = Books()
    confirms = publisher.confirms
    for _ in range(200):
        match choose.randrange(8):
            case 0 | 1:
                books.publish()
                publisher.publish()
            case 2:
                books.publish()
                publisher.store()
            case 3:
                books.publish(refused=True)
                publisher.refuse()
            case 4:
                publisher.end_turn()
            case 5:
                publisher.write()
            case 6:
                publisher.declare()
            case 7:
                publisher.commit(choose.randint(publisher.journal.committed_ticket, publisher.journal.last_ticket))
        for answer in publisher.answers():
            books.answered(answer)
        assert confirms.unanswered_count() == len(books.open)
        assert (confirms.published, confirms.confirmed) == (books.published, books.confirmed)
    publisher.commit(publisher.journal.last_ticket)
    for _ in range(2):
        publisher.end_turn()
        publisher.write()
    for answer in publisher.answers():
        books.answered(answer)
    assert not books.open
