"""A test lets time pass: all events of that time have happened, in their order, without waiting."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pika
import pytest

from warren.testing import Broker, Properties
from warren.testing.clock import MovableClock

from .conftest import Open

HOUR_S = 3600.0
HOUR_MS = 3_600_000


def dead_letters_to(queue: str, ttl_ms: int) -> dict[str, object]:
    return {"x-message-ttl": ttl_ms, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def test_a_message_expires_when_its_time_has_passed_and_not_before(broker: Broker) -> None:
    queue = broker.declare_queue("q", arguments={"x-message-ttl": HOUR_MS})
    with broker.stopped_clock():
        broker.publish("", "q", "by the queue")
        broker.publish("", "q", "by itself", properties=Properties(delivery_mode=2, expiration=str(HOUR_MS // 2)))
        broker.advance(HOUR_S - 0.001)
        assert [message.text for message in queue.messages()] == ["by the queue"]
        broker.advance(0.001)
        assert queue.messages() == []


def test_an_hour_is_an_hour_though_somebody_was_interrupted_while_looking_at_the_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = MovableClock()
    time_of_broker = clock.steady()
    late_ns = time.time_ns() - 20_000_000
    with monkeypatch.context() as interrupted:
        interrupted.setattr(time, "time_ns", lambda: late_ns)
        time_of_broker.follow()
    clock.stop()
    began_ms = time_of_broker.now_ms()
    clock.advance(HOUR_MS * 1_000_000)
    assert time_of_broker.now_ms() == began_ms + HOUR_MS


def test_what_one_thing_leads_to_has_its_time_as_well(broker: Broker) -> None:
    broker.declare_queue("end")
    broker.declare_queue("two", arguments=dead_letters_to("end", HOUR_MS))
    broker.declare_queue("one", arguments=dead_letters_to("two", HOUR_MS))
    broker.publish("", "one", "x")
    broker.advance(2.5 * HOUR_S)
    (message,) = broker.queue("end").messages()
    deaths: Any = message.headers["x-death"]
    second, first = deaths
    assert (first["queue"], second["queue"]) == ("one", "two")
    assert second["time"] - first["time"] in (3600, 3601)  # in whole seconds


def test_an_unused_queue_is_deleted(broker: Broker) -> None:
    queue = broker.declare_queue("q", arguments={"x-expires": HOUR_MS})
    broker.advance(HOUR_S - 60)
    assert queue.exists
    broker.advance(60)
    assert not queue.exists


def test_delayed_messages_come_in_the_order_of_their_times(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q", durable=True)
    for body, delay_ms in ((b"late", HOUR_MS), (b"soon", HOUR_MS // 2), (b"never", 10 * HOUR_MS)):
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay_ms})
        channel.basic_publish("", "q", body, properties)
    queue = broker.queue("q")
    assert queue.ready == 0
    broker.advance(2 * HOUR_S)
    assert [message.text for message in queue.messages()] == ["soon", "late"]


def test_a_failed_message_is_tried_again_after_its_back_off(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q", durable=True, arguments={"x-retry-backoff": ["1m", "1h"]})
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    queue = broker.queue("q")
    for back_off_s in (60.0, HOUR_S):
        method, _, _ = channel.basic_get("q")
        assert method is not None and method.delivery_tag is not None
        channel.basic_nack(method.delivery_tag)
        broker.wait_until(lambda: not queue.unacked, 30)
        broker.advance(back_off_s - 30)
        assert queue.ready == 0
        broker.advance(30)
        assert queue.ready == 1


def test_a_delivery_that_is_not_answered_comes_back_and_may_cost_its_consumer(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("seen", arguments={"x-visibility-timeout": HOUR_MS})
    channel.queue_declare("stuck", arguments={"x-consumer-timeout": 2 * HOUR_MS})
    for name in ("seen", "stuck"):
        channel.basic_publish("", name, b"x")
        channel.basic_consume(name, lambda *_: None)
    other = opened("other")
    broker.advance(HOUR_S)
    # It came back and was delivered again; the other one is still out.
    assert (broker.queue("seen").unacked, broker.queue("stuck").unacked) == (1, 1)
    broker.advance(HOUR_S)
    assert (broker.queue("seen").unacked, broker.queue("stuck").ready) == (1, 1)
    method, _, _ = other.basic_get("stuck")
    assert method is not None and method.redelivered
    assert channel.queue_declare("stuck", passive=True).method.consumer_count == 0


def test_connections_live_on_however_much_time_passes(broker: Broker, opened: Open) -> None:
    channel = opened(url=f"{broker.url}?heartbeat=10")
    channel.queue_declare("q")
    broker.advance(100 * HOUR_S)
    # The ticker looks at heartbeats twice a second; here it does at once.
    broker.on_loop(lambda: broker.engine.tick(time.monotonic()))
    assert channel.basic_get("q") == (None, None, None)


def test_what_is_on_disk_only_expires_too(broker: Broker) -> None:
    broker.declare_queue("end")
    broker.declare_queue("q", arguments=dead_letters_to("end", HOUR_MS))
    for number in range(10):
        broker.publish("", "q", str(number))
    broker.restart()
    broker.advance(HOUR_S)
    assert broker.queue("q").ready == 0
    assert [message.text for message in broker.queue("end").messages()] == [str(number) for number in range(10)]


def test_time_passes_while_the_broker_is_down(broker: Broker) -> None:
    broker.declare_queue("q", arguments={"x-message-ttl": HOUR_MS})
    broker.publish("", "q", "x")
    broker.stop()
    broker.advance(HOUR_S)
    broker.start()
    broker.advance(0)
    assert broker.queue("q").ready == 0


def test_a_reset_has_the_time_of_the_machine_again(broker: Broker) -> None:
    before = broker.now
    with broker.stopped_clock():
        broker.advance(HOUR_S)
        broker.declare_queue("q", arguments={"x-message-ttl": HOUR_MS})
        broker.reset()
    assert timedelta() <= broker.now - before < timedelta(minutes=30)
    assert not broker.queue("q").exists
    broker.declare_queue("q", arguments={"x-message-ttl": HOUR_MS})
    broker.publish("", "q", "x")
    broker.advance(HOUR_S / 2)
    assert broker.queue("q").ready == 1


def test_a_stopped_clock_goes_on_from_where_it_stood(broker: Broker) -> None:
    with broker.stopped_clock():
        stood = broker.now
        broker.advance(1)
        assert broker.now - stood == timedelta(seconds=1)
        broker.restart()
        assert broker.now - stood == timedelta(seconds=1)
    broker.wait_until(lambda: broker.now - stood > timedelta(seconds=1))


def test_time_does_not_go_back(broker: Broker) -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        broker.advance(-1)
