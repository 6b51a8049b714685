"""Work that takes several turns: its visible state meanwhile, and its answer, which comes last."""

from __future__ import annotations

import gc
import itertools

import pytest
from engine_harness import Harness, basic_consume, exchange_declare, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.channels.ending import close_broken
from warren.exchanges.binding import Binding
from warren.queues.long_work import Job, Steps
from warren.queues.queue import Queue

EMPTY = encode_table({})
# More than the steps of a turn.
MANY = 6000


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def publish(harness: Harness, count: int) -> None:
    client = harness.channel()
    client.declare("q")
    client.feed(b"".join(publish_frames("", "q", body) for body in numbers(count)))


def test_a_channel_is_closed_when_everything_is_back_and_in_order() -> None:
    harness = Harness()
    publish(harness, MANY)
    client = harness.channel()
    client.consume("q")
    client.take_bytes()
    other = harness.channel()
    client.connection.feed(method_frame(1, m.ChannelClose(200, "", 0, 0)))
    other.connection.feed(method_frame(1, basic_consume("q", "c")))
    queue = harness.queue("q")
    assert 0 < queue.ready_count < MANY
    assert queue.ready_count + queue.unacked_count == MANY
    assert not client.connection.outbox.waiting_bytes(), "the channel is said to be closed"
    harness.broker.end_turn()
    assert queue.delivered == MANY, "something left before all was back"
    harness.settle()
    client.expect(m.ChannelCloseOk)
    other.pick(m.BasicConsumeOk)
    assert other.bodies() == numbers(MANY)


def test_a_queue_may_be_declared_again_while_its_bindings_go() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.send(1, exchange_declare("x"))
    client.send(1, *[m.QueueBind(0, "q", "x", f"k{at}", True, EMPTY) for at in range(MANY)])
    client.take_bytes()
    other = harness.channel()
    client.connection.feed(method_frame(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False)))
    assert 0 < len(harness.vhost.exchanges["x"].bindings) < MANY
    assert list(harness.vhost.bindings()) == [], "a binding to a queue that is gone is shown"
    assert not client.connection.outbox.waiting_bytes()
    last = f"k{MANY - 1}"
    other.connection.feed(
        method_frame(1, m.QueueDeclare(0, "q", False, False, False, False, True, EMPTY))
        + method_frame(1, m.QueueBind(0, "q", "x", last, True, EMPTY))
        + publish_frames("x", last, b"new")
        + publish_frames("x", f"k{MANY - 2}", b"lost")
    )
    harness.settle()
    assert client.expect(m.QueueDeleteOk) == m.QueueDeleteOk(0)
    assert [binding.routing_key for binding in harness.vhost.bindings()] == [last]
    assert harness.queue("q").ready_count == 1


def test_many_auto_delete_exchanges_in_a_chain_go_with_the_last() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare_exchange("x0")
    for at in range(2000):
        client.feed(
            method_frame(1, exchange_declare(f"x{at + 1}", auto_delete=True))
            + method_frame(1, m.ExchangeBind(0, f"x{at}", f"x{at + 1}", "", False, EMPTY))
        )
    client.take_bytes()
    assert client.call(1, m.ExchangeDelete(0, "x0", if_unused=False, no_wait=False)) == m.ExchangeDeleteOk()
    assert not [name for name in harness.vhost.exchanges if name.startswith("x")]


def alive(kind: type[object]) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


@pytest.mark.parametrize("kind", [Queue, Binding])
def test_what_a_long_job_has_deleted_is_freed_before_the_job_ends(kind: type[object]) -> None:
    """Freed together, in the last turn, 50,000 queues take 30 ms."""
    harness = Harness()
    client = harness.channel()
    before = alive(kind)
    if kind is Queue:
        for number in range(MANY):
            client.declare(f"q{number}", exclusive=True)
    else:
        client.declare("q")
        client.send(1, exchange_declare("x"))
        client.send(1, *[m.QueueBind(0, "q", "x", f"k{at}", True, EMPTY) for at in range(MANY)])
    client.take_bytes()
    if kind is Queue:
        client.connection.lost()
    else:
        client.connection.feed(method_frame(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False)))
    counts = [alive(kind) - before]
    while harness.broker.work.is_due():
        harness.broker.end_turn()
        counts.append(alive(kind) - before)
    assert counts[-1] == 0
    freed = [one - two for one, two in itertools.pairwise(counts)]
    assert max(freed) < MANY / 2, counts


def test_what_follows_a_request_that_may_not_begin_yet_waits_too() -> None:
    """jobs.py (1): replies come in order, and each request finds the ones before it done."""
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.declare_exchange("h", "x-recent-history")
    client.publish("h", "", b"remembered")
    harness.broker.set_alarm("memory", True)
    client.send(1, m.QueueBind(0, "q", "h", "", False, EMPTY), m.QueueUnbind(0, "q", "h", "", EMPTY))
    client.nothing()
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert [received.method for received in client.take()] == [m.QueueBindOk(), m.QueueUnbindOk()]
    assert not harness.vhost.exchanges["h"].bindings


class Defect(Job):
    """Work that meets a defect of ours."""

    def __init__(self) -> None:
        self.has_failed = False

    def run(self, steps: Steps) -> bool:
        raise MemoryError

    def failed(self) -> bool:
        self.has_failed = True
        return False


def test_a_defect_in_a_job_ends_its_connection_and_all_of_that_is_given_back() -> None:
    """jobs.py (3)"""
    harness = Harness()
    publish(harness, 3)
    client = harness.channel()
    client.declare("mine", exclusive=True)
    client.consume("q")
    client.take_bytes()
    defect = Defect()
    client.connection.begin(defect)
    with pytest.raises(MemoryError):
        harness.settle()
    assert defect.has_failed
    close_broken(client.connection)  # as the reactor does
    harness.settle()
    assert client.expect(m.ConnectionClose).reply_code == 541
    assert list(harness.vhost.queues) == ["q"] and harness.queue("q").ready_count == 3


def test_what_waits_behind_a_defect_is_done() -> None:
    harness = Harness()
    publish(harness, 1)
    client = harness.channel()
    client.declare("mine", exclusive=True)
    client.declare_exchange("h", "x-recent-history")
    client.consume("q")
    harness.broker.set_alarm("memory", True)
    client.connection.feed(method_frame(1, m.QueueBind(0, "mine", "h", "", False, EMPTY)))
    client.connection.begin(Defect())
    client.connection.lost()
    harness.broker.set_alarm("memory", False)
    with pytest.raises(MemoryError):
        harness.settle()
    harness.settle()
    assert list(harness.vhost.queues) == ["q"] and harness.queue("q").ready_count == 1
