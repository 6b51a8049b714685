"""The engine's help for tests of clients: a judge of publishes, and confirms that are held back."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, body_of

from warren.amqp import methods as m
from warren.channels.session import Session
from warren.channels.shared import LOSE, REFUSE, RETURN, TAKE
from warren.msgstore.log.message import Message
from warren.queues.receiver import Receiver


class Judge:
    """Says the next of `verdicts`, then TAKE; remembers what it was asked about."""

    def __init__(self, *verdicts: int) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[tuple[bytes, list[str]]] = []

    def __call__(self, channel: Session, message: Message, queues: list[Receiver]) -> int:
        self.asked.append((message.body(), [queue.name for queue in queues]))
        return self.verdicts.pop(0) if self.verdicts else TAKE


def judged(*verdicts: int) -> tuple[Harness, Client, Judge]:
    """Return a broker with a judge, and a client with a queue and confirms."""
    harness = Harness()
    judge = Judge(*verdicts)
    harness.broker.judge_publishes(judge)
    client = harness.channel()
    client.declare("q")
    client.call(1, m.ConfirmSelect(False))
    return harness, client, judge


def test_a_judge_is_asked_about_every_publish_also_those_like_the_one_before() -> None:
    harness, client, judge = judged()
    for body in (b"1", b"2", b"3"):
        client.publish("", "q", body)
    client.publish("", "nowhere", b"4")
    assert judge.asked == [(b"1", ["q"]), (b"2", ["q"]), (b"3", ["q"]), (b"4", [])]
    assert harness.queue("q").ready_count == 3
    harness.check()


def test_what_is_refused_is_nacked_and_in_no_queue() -> None:
    harness, client, _ = judged(REFUSE)
    client.publish("", "q", b"refused")
    assert client.expect(m.BasicNack) == m.BasicNack(1, multiple=False, requeue=False)
    client.publish("", "q", b"taken")
    assert client.expect(m.BasicAck).delivery_tag == 2
    assert harness.queue("q").ready_count == 1
    harness.check()


def test_what_finds_no_queue_is_returned_if_mandatory_and_confirmed() -> None:
    harness, client, _ = judged(RETURN, RETURN)
    client.publish("", "q", b"mandatory", mandatory=True)
    returned, confirm = client.take()
    assert isinstance(returned.method, m.BasicReturn) and returned.method.reply_code == 312
    assert body_of(returned) == b"mandatory"
    assert confirm.method == m.BasicAck(1, False)
    client.publish("", "q", b"dropped")
    assert client.expect(m.BasicAck).delivery_tag == 2
    assert harness.queue("q").ready_count == 0


def test_what_is_lost_is_confirmed_and_in_no_queue() -> None:
    harness, client, _ = judged(LOSE)
    client.publish("", "q", b"lost", mandatory=True)
    assert client.expect(m.BasicAck).delivery_tag == 1
    assert harness.queue("q").ready_count == 0


def test_a_transaction_is_judged_when_it_is_committed() -> None:
    harness = Harness()
    judge = Judge()
    harness.broker.judge_publishes(judge)
    client = harness.channel()
    client.declare("q")
    client.call(1, m.TxSelect())
    client.publish("", "q", b"x")
    assert judge.asked == []
    client.call(1, m.TxCommit())
    assert judge.asked == [(b"x", ["q"])]


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_confirms_that_were_held_back_come_in_one_when_they_may(delivery_mode: int) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True)
    client.call(1, m.ConfirmSelect(False))
    client.publish("", "q", b"before", delivery_mode=delivery_mode)
    assert client.expect(m.BasicAck) == m.BasicAck(1, False)
    harness.broker.hold_confirms(held=True)
    for body in (b"1", b"2", b"3"):
        client.publish("", "q", body, delivery_mode=delivery_mode)
    client.nothing()
    assert harness.queue("q").ready_count == 4
    harness.broker.hold_confirms(held=False)
    harness.settle()
    assert client.expect(m.BasicAck) == m.BasicAck(4, True)
    client.publish("", "q", b"after", delivery_mode=delivery_mode)
    assert client.expect(m.BasicAck) == m.BasicAck(5, False)
    harness.check()


def test_a_channel_that_ends_while_its_confirms_are_held_back_is_forgotten() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.call(1, m.ConfirmSelect(False))
    harness.broker.hold_confirms(held=True)
    client.publish("", "q", b"x")
    client.hang_up()
    harness.broker.hold_confirms(held=False)
    harness.settle()
    assert harness.queue("q").ready_count == 1
    harness.check()
