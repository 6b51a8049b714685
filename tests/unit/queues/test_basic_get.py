"""basic.get on a queue alone: answers, callers that wait for one, and counts. In parentheses: ``queues.basic_get``."""

from __future__ import annotations

import pytest
from engine_harness import Harness
from memory_store import memory_log

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.outbox import Outbox
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.activity import Lengths, changed_queues
from warren.queues.basic_get import answer_get, call_when_ready, can_answer
from warren.queues.delivery import DeliveryLedger
from warren.queues.queue import Queue
from warren.queues.queue_host import QueueHost
from warren.queues.timers import TimerQueue
from warren.queues.turns import Turns


class Alone:
    """A plain queue without a broker, and a channel that gets from it."""

    def __init__(self) -> None:
        log = memory_log()
        declaration = QueueDeclaration("q", durable=False)
        self.host = QueueHost("/", log, TimerQueue())
        self.queue = Queue(declaration, None, [], self.host)
        self.ledger = DeliveryLedger(1, Turns(Outbox(1, [], 1 << 20), []), 0)
        self.told: list[str] = []

    def publish(self, body: bytes) -> Message:
        message = build_message(Envelope("", "q"), bytes(2), body, 0, False)
        self.queue.publish(message)
        return message

    def get(self, *, no_ack: bool = False) -> bool:
        return answer_get(self.queue, self.ledger, no_ack)

    def await_answer(self, name: str) -> None:
        call_when_ready(self.queue, lambda: self.told.append(name))


@pytest.fixture
def alone() -> Alone:
    return Alone()


def test_the_oldest_message_leaves_first_and_is_unacked_until_it_is_answered(alone: Alone) -> None:
    alone.publish(b"first")
    alone.publish(b"then")
    assert can_answer(alone.queue) and alone.get()
    delivery = alone.ledger.outstanding(1)
    assert delivery.message.body() == b"first" and delivery.consumer is None
    assert (alone.queue.ready_count, alone.queue.unacked_count, alone.queue.unacked_bytes) == (1, 1, 5)
    assert alone.get(no_ack=True)
    assert (alone.queue.ready_count, alone.queue.unacked_count) == (0, 1)
    assert not alone.get()


def test_a_queue_that_nobody_asks_has_no_counts_and_those_of_others_outlast_it(alone: Alone) -> None:
    queue = alone.queue
    assert can_answer(queue) and queue.gets is None
    assert queue.counts().get_empty == 0
    alone.publish(b"a")
    alone.publish(b"b")
    for no_ack in (False, True, True, False, False):
        alone.get(no_ack=no_ack)
    queue.close()
    counts = queue.counts()
    assert (counts.get, counts.get_no_ack, counts.get_empty, counts.deliver_get) == (1, 1, 3, 2)
    assert (alone.ledger.got, alone.ledger.got_no_ack, alone.ledger.got_empty) == (1, 1, 3)


def test_an_empty_answer_is_activity(alone: Alone) -> None:
    def has_changed() -> bool:
        return bool(changed_queues([alone.queue], 0, 1, Lengths()))

    assert has_changed() and not has_changed()
    alone.get()
    assert has_changed() and not has_changed()


def test_nothing_is_answered_while_messages_come_back_and_each_caller_is_told_once(alone: Alone) -> None:
    queue = alone.queue
    alone.publish(b"a")
    alone.publish(b"b")
    alone.get()
    queue.begin_return()
    queue.begin_return()
    assert not can_answer(queue)
    alone.await_answer("one")
    alone.await_answer("two")
    delivery = alone.ledger.maybe_take(1)
    assert delivery is not None
    alone.ledger.release(delivery)
    queue.requeue(delivery)
    queue.end_return()
    assert not can_answer(queue) and not alone.told
    queue.end_return()
    assert can_answer(queue) and alone.told == ["one", "two"]
    queue.look_again()
    assert alone.told == ["one", "two"]
    assert alone.get() and alone.ledger.outstanding(2).message.body() == b"a"
    assert queue.counts().redeliver == 1


def test_a_paused_queue_looks_empty(alone: Alone) -> None:
    alone.publish(b"a")
    alone.queue.pause(paused=True)
    assert can_answer(alone.queue) and not alone.get()
    alone.queue.pause(paused=False)
    assert alone.get()


def test_a_caller_that_meets_a_defect_keeps_no_other_from_its_answer(alone: Alone) -> None:
    def raises() -> None:
        raise MemoryError

    queue = alone.queue
    alone.publish(b"a")
    queue.begin_return()
    alone.await_answer("one")
    call_when_ready(queue, raises)
    alone.await_answer("two")
    queue.end_return()
    assert alone.told == ["one", "two"]
    assert [type(defect) for defect in alone.host.work.take_defects()] == [MemoryError]


def test_callers_are_told_when_the_queue_is_deleted(alone: Alone) -> None:
    alone.publish(b"a")
    alone.queue.begin_return()
    alone.await_answer("one")
    alone.queue.close()
    assert alone.told == ["one"]


def test_expired_messages_go_before_an_answer() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-message-ttl": 1000})
    client.publish("", "q", b"old")
    harness.broker.log.now_ms += 2000
    queue = harness.plain_queue("q")
    assert can_answer(queue) and queue.ready_count == 0
