"""Expired messages are neither delivered nor returned, even before the timers have looked at them."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.queues.basic_get import can_answer
from warren.queues.expiry import STALE_MIN
from warren.queues.message_deaths import LEAVE_MAX

# More than leave at once.
COUNT = 2 * LEAVE_MAX + 10


def expired(arguments: dict[str, object]) -> tuple[Harness, Client]:
    """Return a broker whose queue ``q`` has messages that have just expired, and one that has not."""
    harness = Harness()
    client = harness.channel()
    client.declare("dead")
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **arguments})
    old = [publish_frames("", "q", b"%d" % number, properties={"expiration": "1000"}) for number in range(COUNT)]
    client.feed(b"".join(old))
    client.publish("", "q", b"young", expiration="9000")
    harness.broker.log.now_ms += 2000
    return harness, client


def check(harness: Harness, client: Client) -> None:
    """They are dead letters, and nowhere else."""
    queue = harness.queue("q")
    assert (queue.ready_count, queue.ready.body_bytes) == (0, 0)
    client.consume("dead", "d", no_ack=True)
    assert [body_of(each) for each in client.deliveries()] == [b"%d" % number for number in range(COUNT)]
    harness.check()


def test_messages_with_times_of_their_own_leave_in_parts() -> None:
    harness, _ = expired({})
    queue, timers = harness.queue("q"), harness.broker.timers
    for left in (COUNT - LEAVE_MAX, COUNT - 2 * LEAVE_MAX, 0):
        assert timers.next_ms() <= harness.broker.log.now_ms
        timers.run_due(harness.broker.log.now_ms)
        assert queue.ready_count == left + 1, "the young one stays"
    assert timers.next_ms() > harness.broker.log.now_ms


KINDS: list[dict[str, object]] = [{}, {"x-max-priority": 3}, {"x-key-shared": True}]


@pytest.mark.parametrize("arguments", KINDS)
def test_a_consumer_is_not_served_what_has_expired(arguments: dict[str, object]) -> None:
    harness, client = expired(arguments)
    client.consume("q", "t", no_ack=True)
    assert [body_of(each) for each in client.take() if isinstance(each.method, m.BasicDeliver)] == [b"young"]
    check(harness, client)


@pytest.mark.parametrize("arguments", KINDS)
def test_who_asks_is_not_given_what_has_expired(arguments: dict[str, object]) -> None:
    harness, client = expired(arguments)
    client.send(1, m.BasicGet(0, "q", True))
    client.nothing()
    while (timers := harness.broker.timers).next_ms() <= harness.broker.log.now_ms:
        timers.run_due(harness.broker.log.now_ms)
        harness.settle()
    (got,) = client.take()
    assert body_of(got) == b"young"
    assert client.get("q") is None
    check(harness, client)


def test_a_released_message_keeps_its_time_to_live_when_the_clock_is_set_back() -> None:
    """Its time to live counts from its release, not from the start of the broker."""
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-max-length": 10})
    log = harness.broker.log
    log.now_ms += 60_000
    client.publish("", "q", b"delayed", headers=encode_table({"x-delay": 1000}), expiration="5000")
    log.now_ms += 1000
    harness.broker.timers.run_due(log.now_ms)
    harness.settle()
    assert harness.queue("q").ready_count == 1
    log.now_ms -= 500
    got = client.get("q", no_ack=True)
    assert got is not None and body_of(got) == b"delayed"


def test_a_released_message_does_not_keep_later_ones_that_expire_earlier() -> None:
    """It went to a consumer at once, the clock was set back, and then all came back: it stands before them."""
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-message-ttl": 2000})
    client.publish("", "q", b"delayed", headers=encode_table({"x-delay": 1000}))
    client.consume("q", "c")
    log = harness.broker.log
    log.now_ms += 1000
    harness.broker.timers.run_due(log.now_ms)
    harness.settle()
    assert harness.queue("q").unacked_count == 1
    log.now_ms -= 500
    client.publish("", "q", b"earlier")
    client.hang_up()
    assert harness.queue("q").ready_count == 2
    log.now_ms += 2000
    harness.broker.timers.run_due(log.now_ms)
    assert [message.body() for message in harness.queue("q").ready.in_memory()] == [b"delayed"]
    log.now_ms += 500
    harness.broker.timers.run_due(log.now_ms)
    assert harness.queue("q").ready_count == 0


def test_the_deadlines_of_many_messages_that_come_back_are_all_noted() -> None:
    """Those of messages that do not wait are forgotten then, but not that of the message that is coming back."""
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.feed(b"".join([publish_frames("", "q", b"m", properties={"expiration": "60000"})] * (STALE_MIN + 10)))
    consumer = harness.channel()
    consumer.consume("q", "c")
    harness.settle()
    queue = harness.queue("q")
    assert queue.unacked_count == STALE_MIN + 10
    consumer.hang_up()
    assert queue.ready_count == STALE_MIN + 10
    harness.pass_time(61)
    assert queue.ready_count == 0
    harness.check()


@pytest.mark.parametrize("arguments", KINDS)
def test_who_asks_waits_for_what_is_on_disk_after_expired_messages(arguments: dict[str, object]) -> None:
    """The oldest expire while those after them are being read to expire."""
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=arguments)
    queue, log = harness.plain_queue("q"), harness.broker.log
    for count, expiration in ((10, "2000"), (400, "1000")):
        properties = {"expiration": expiration, "delivery_mode": 2}
        client.feed(b"".join([publish_frames("", "q", b"old", properties=properties)] * count))
    client.publish("", "q", b"young", delivery_mode=2)
    log.close_if_due(lingered=True)
    harness.settle()
    log.memory_bytes = 0
    log.under_pressure = True
    queue.page_out()
    log.now_ms += 1500
    assert can_answer(queue) and log.read_jobs, "those after the oldest are being read"
    log.now_ms += 1000
    client.send(1, m.BasicGet(0, "q", True))
    assert [body_of(each) for each in client.take()] == [b"young"]
    harness.check()
