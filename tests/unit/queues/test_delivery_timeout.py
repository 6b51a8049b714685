"""Deliveries that are not answered in time come back: delivery_timeout (3)."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.channels import jobs
from warren.queues.delivery_timeout import STALE_MIN
from warren.queues.message_deaths import LEAVE_MAX
from warren.queues.queue import Queue
from warren.queues.timers import FAILED_MS
from warren.queues.unacked import Delivery


def test_a_part_comes_back_at_once_and_the_rest_with_the_timers() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-visibility-timeout": 1000})
    client.consume("q", "t")
    client.feed(publish_frames("", "q", b"m") * (LEAVE_MAX + 110))
    queue = harness.queue("q")
    queue.pause(paused=True)  # returned messages are not delivered again
    assert queue.unacked_count == LEAVE_MAX + 110
    log, timers = harness.broker.log, harness.broker.timers
    log.now_ms += 1001
    for left in (110, 0):
        assert timers.next_ms() <= log.now_ms
        timers.run_due(log.now_ms)
        assert queue.unacked_count == left
    assert timers.next_ms() > log.now_ms
    assert queue.ready_count == LEAVE_MAX + 110


def test_that_answered_deliveries_had_more_time_is_forgotten() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-visibility-timeout": 600_000})
    client.consume("q", "t")
    queue = harness.plain_queue("q")
    count = STALE_MIN
    for tag in range(1, count + 1):
        harness.broker.log.now_ms += 1
        client.publish("", "q", b"m")
        touch(client, tag)
        client.send(1, m.BasicAck(tag, False))
    assert queue.unacked_count == 0
    timeouts = queue.need_keeper().timeouts()
    assert 0 < timeouts.touched_count() < count
    client.publish("", "q", b"touched")
    harness.pass_time(599)
    touch(client, count + 1)
    harness.pass_time(599)
    assert queue.unacked_count == 1
    queue.pause(paused=True)
    harness.pass_time(1)
    assert (queue.unacked_count, queue.ready_count, timeouts.touched_count()) == (0, 1, 0)


def test_many_rollbacks_of_one_answer_leave_few_limits() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-visibility-timeout": 600_000, "x-consumer-timeout": 700_000})
    client.consume("q", "t")
    client.publish("", "q", b"m")
    client.deliveries()
    client.call(1, m.TxSelect())
    timeouts = harness.plain_queue("q").need_keeper().timeouts()
    for _ in range(STALE_MIN):
        harness.broker.log.now_ms += 1
        client.send(1, m.BasicAck(1, False))
        client.call(1, m.TxRollback())
    assert (len(timeouts) <= STALE_MIN + 8, timeouts.touched_count()) == (True, 2)


def touch(client: Client, tag: int) -> None:
    client.publish("amq.control", "touch", headers=encode_table({"delivery-tag": tag}))


@pytest.mark.skipif(jobs.__file__.endswith(".so"), reason="a compiled method cannot be replaced")
def test_a_delivery_that_cannot_come_back_keeps_its_limit_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-visibility-timeout": 1000})
    client.consume("q", "t")
    client.feed(publish_frames("", "q", b"m") * 3)
    queue = harness.plain_queue("q")
    queue.pause(paused=True)
    real, left = Queue.requeue, [1]

    def requeue(self: Queue, delivery: Delivery, *, failed: bool = True, delay_ms: int = -1) -> None:
        if delivery.tag == 1 and left[0]:
            left[0] -= 1
            raise MemoryError
        real(self, delivery, failed=failed, delay_ms=delay_ms)

    monkeypatch.setattr(Queue, "requeue", requeue)
    with pytest.raises(MemoryError):
        harness.pass_time(1)
    assert (queue.ready_count, queue.unacked_count) == (2, 1)
    harness.pass_time(FAILED_MS / 1000)
    assert (queue.ready_count, queue.unacked_count) == (3, 0)
