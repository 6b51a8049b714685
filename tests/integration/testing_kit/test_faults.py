"""Simulated faults look to clients like real ones, and end when the test ends them."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from warren.testing import Broker

from .conftest import Open

Persistent = pika.BasicProperties(delivery_mode=2)


class InThread:
    """A call in a thread, for what must not return yet."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.ended = threading.Event()
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        finally:
            self.ended.set()

    def join(self) -> None:
        self._thread.join(30)
        assert self.ended.is_set()


def pumped(channel: BlockingChannel, broker: Broker, condition: Callable[[], object]) -> None:
    """Make pika handle what comes until `condition` holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        channel.connection.process_data_events(0.01)


def test_a_dropped_connection_is_lost_to_its_client_and_its_messages_go_back(broker: Broker, opened: Open) -> None:
    channel, other = opened("victim"), opened("other")
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    channel.basic_get("q")
    assert broker.queue("q").unacked == 1
    broker.connection("victim").drop()
    assert (broker.queue("q").ready, broker.queue("q").unacked) == (1, 0)
    with pytest.raises(pika.exceptions.StreamLostError):
        channel.basic_get("q")
    assert other.basic_get("q")[2] == b"x"
    with pytest.raises(LookupError):
        broker.connection("victim")


def test_the_next_publisher_is_dropped_and_its_message_lost(broker: Broker, opened: Open) -> None:
    channel, other = opened("victim"), opened("reader")
    channel.queue_declare("q")
    broker.drop_next_publisher()
    assert other.basic_get("q") == (None, None, None)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.basic_publish("", "q", b"lost")
    assert broker.published == []
    other.basic_publish("", "q", b"there")
    assert [message.text for message in broker.queue("q").messages()] == ["there"]


def test_nothing_that_a_dropped_publisher_sent_on_is_taken(broker: Broker, opened: Open) -> None:
    channel = opened(confirms=False)
    channel.queue_declare("q")
    broker.drop_next_publisher()

    def publish_for_ever() -> None:
        while True:
            channel.basic_publish("", "q", b"x" * 1000)

    with pytest.raises(pika.exceptions.AMQPConnectionError):
        publish_for_ever()
    assert broker.queue("q").ready == 0


def test_refused_connections_are_refused_and_open_ones_go_on(broker: Broker, opened: Open) -> None:
    channel = opened()
    with broker.refusing_connections():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port))
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
    opened()
    assert len(broker.connections) == 2


@pytest.mark.parametrize("properties", [Persistent, None], ids=["persistent", "transient"])
def test_confirms_that_are_held_come_afterwards(broker: Broker, opened: Open, properties: Any) -> None:
    channel = opened()
    channel.queue_declare("q", durable=True)
    with broker.holding_confirms():
        publish = InThread(lambda: channel.basic_publish("", "q", b"x", properties))
        broker.wait_until(lambda: broker.queue("q").ready == 1)
        broker.wait_until(lambda: broker.on_loop(lambda: len(broker.engine.shared.confirms.held) > 0))
        assert not publish.ended.is_set()
        with pytest.raises(RuntimeError, match="holds confirms back"):
            broker.publish("", "q")
    publish.join()
    channel.basic_publish("", "q", b"y", properties)
    assert broker.queue("q").ready == 2


def test_confirms_that_are_delayed_come_by_themselves(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q")
    begin_s = time.monotonic()
    broker.delay_confirms(0.2)
    channel.basic_publish("", "q", b"x")
    assert time.monotonic() - begin_s >= 0.2
    assert not broker.on_loop(lambda: broker.engine.shared.confirms.is_held)


def test_the_next_publishes_are_nacked_and_no_more(broker: Broker, opened: Open) -> None:
    channel, careless = opened(), opened(confirms=False)
    channel.queue_declare("q")
    broker.nack_next(2)
    careless.basic_publish("", "q", b"cannot be nacked")
    broker.wait_until(lambda: broker.queue("q").ready == 1)
    for _ in range(2):
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"refused")
    channel.basic_publish("", "q", b"taken")
    assert [message.text for message in broker.published] == ["cannot be nacked", "taken"]
    assert [message.text for message in broker.nacked] == ["refused", "refused"]


def test_a_mandatory_message_is_returned_and_another_one_dropped(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q")
    broker.return_next(2)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "q", b"one", mandatory=True)
    channel.basic_publish("", "q", b"two")
    channel.basic_publish("", "q", b"three", mandatory=True)
    assert [message.text for message in broker.queue("q").messages()] == ["three"]
    assert [message.queues for message in broker.published] == [(), (), ("q",)]


@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_publishers_are_blocked_and_told_so_while_something_is_short(
    broker: Broker, opened: Open, resource: str
) -> None:
    channel = opened(confirms=False)
    told: list[str] = []
    channel.connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    channel.connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    channel.queue_declare("q")
    with broker.blocking_publishers(resource):
        channel.basic_publish("", "q", b"x")
        pumped(channel, broker, lambda: told)
        assert told == [f"low on {resource}"]
        assert broker.published == []
    pumped(channel, broker, lambda: len(told) > 1)
    assert told[1] == "unblocked"
    broker.assert_published(body="x", count=1)


def test_with_a_full_disk_nothing_persistent_is_confirmed_until_there_is_space(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q", durable=True)
    with broker.full_disk():
        publish = InThread(lambda: channel.basic_publish("", "q", b"x", Persistent))
        broker.wait_until(lambda: broker.on_loop(lambda: any(c.paused for c in broker.engine.connections.values())))
        assert not publish.ended.is_set()
    publish.join()
    broker.crash()
    broker.start()
    assert broker.queue("q").ready == 1


def test_a_channel_is_closed_with_a_reply_code_and_its_connection_stays(broker: Broker, opened: Open) -> None:
    channel = opened("c")
    second = channel.connection.channel()
    broker.connection("c").close_channel(channel.channel_number, 404, "gone for a test")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.basic_get("q")
    assert (closed.value.reply_code, closed.value.reply_text) == (404, "NOT_FOUND - gone for a test")
    second.queue_declare("q")
    with pytest.raises(LookupError):
        broker.connection("c").close_channel(99)


@pytest.mark.parametrize(
    ("code", "text"), [(320, "CONNECTION_FORCED - on purpose"), (504, "CHANNEL_ERROR - on purpose")]
)
def test_a_connection_is_closed_with_a_reply_code(broker: Broker, opened: Open, code: int, text: str) -> None:
    channel = opened("c")
    broker.connection("c").close(code, "on purpose")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        channel.basic_get("q")
    assert (closed.value.reply_code, closed.value.reply_text) == (code, text)


def test_a_stalled_consumer_gets_nothing_and_then_everything(broker: Broker, opened: Open) -> None:
    channel = opened("slow")
    channel.queue_declare("q")
    got: list[bytes] = []
    channel.basic_consume("q", lambda _, __, ___, body: got.append(body), auto_ack=True)
    with broker.connection("slow").stalled():
        for n in range(3):
            broker.publish("", "q", str(n))
        channel.queue_declare("another")  # replies still come
        assert got == []
        assert broker.queue("q").ready == 3
    pumped(channel, broker, lambda: len(got) == 3)
    assert got == [b"0", b"1", b"2"]
    broker.publish("", "q", "4")
    pumped(channel, broker, lambda: len(got) == 4)


def test_a_consumer_is_stalled_and_resumed_as_often_as_one_likes(broker: Broker, opened: Open) -> None:
    channel = opened("slow")
    view = broker.connection("slow")
    for _ in range(2):
        view.stall()
        view.stall()
        view.resume()
        view.resume()
    assert broker.on_loop(lambda: next(iter(broker.engine.connections.values())).outbox.in_flight_bytes) == 0
    channel.queue_declare("q")


def test_cancelled_consumers_are_told(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x")
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume("q", lambda *_: None, consumer_tag="mine")
    assert broker.queue("q").cancel_consumers() == 1
    pumped(channel, broker, lambda: cancelled)
    assert cancelled == ["mine"]
    assert broker.queue("q").consumers == ()
    assert broker.queue("q").cancel_consumers() == 0


def test_an_auto_delete_queue_goes_with_its_cancelled_consumers(broker: Broker, opened: Open) -> None:
    channel = opened()
    channel.queue_declare("q", auto_delete=True)
    channel.basic_consume("q", lambda *_: None)
    broker.queue("q").cancel_consumers()
    assert not broker.queue("q").exists


def test_no_fault_outlives_a_reset(broker: Broker, opened: Open) -> None:
    broker.drop_next_publisher(5)
    broker.nack_next(5)
    broker.return_next(5)
    broker.on_loop(lambda: broker.engine.hold_confirms(held=True))
    broker.on_loop(lambda: broker.engine.set_alarm("disk", True))
    broker.disk.full = True
    broker.reset()
    channel = opened()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"x", Persistent, mandatory=True)
    assert broker.queue("q").ready == 1


@pytest.mark.parametrize("delay_s", [-1, math.nan])
def test_a_delay_of_confirms_that_is_none_is_refused_and_does_not_end_the_broker(
    broker: Broker, delay_s: float
) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        broker.delay_confirms(delay_s)
    broker.declare_queue("jobs")
    broker.publish("", "jobs", "one")
    assert broker.queue("jobs").ready == 1
