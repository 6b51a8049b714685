"""SIGTERM under load, and what the next start makes of it: nothing twice, in order, nothing flagged without reason."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess
from integration.peers import connect
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ConnectionClosedByBroker

from .test_kill_9 import CYCLES, SEED, begin

_PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_clean_stops_under_load_lose_duplicate_and_reorder_nothing(tmp_path: Path) -> None:
    life, _ = begin(tmp_path, SEED + 3_000_000)
    try:
        for cycle in range(min(5, CYCLES)):
            print(f"cycle {cycle}")
            life.stop()
    finally:
        life.process.kill()
        print(life.summary())


def _publish(channel: BlockingChannel, queue: str, bodies: Sequence[bytes]) -> None:
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, _PERSISTENT)


def _take(channel: BlockingChannel, queue: str, count: int) -> list[tuple[bytes, bool]]:
    """Take `count` messages without acking; return body and redelivered flag of each."""
    taken: list[tuple[bytes, bool]] = []
    for _ in range(count):
        method, _, body = channel.basic_get(queue)
        assert isinstance(method, spec.Basic.GetOk) and body is not None, (
            f"the queue has {len(taken)} of {count} messages"
        )
        taken.append((body, method.redelivered))
    return taken


def test_after_a_clean_stop_only_what_a_consumer_held_is_flagged_as_redelivered(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(100)]
    with WarrenProcess(tmp_path, {"http": "off"}) as process:
        connection = connect(process)
        channel = connection.channel()
        _publish(channel, "q", bodies)
        held = _take(channel, "q", 12)
        channel.basic_ack(3)
        channel.basic_ack(5)
        assert [redelivered for _, redelivered in held] == [False] * 12
        # An answer that comes after the acks: they are processed.
        assert channel.queue_declare("q", passive=True).method.message_count == 88
        _stop(process, connection)
        process.start()
        with connect(process) as connection:
            channel = connection.channel()
            assert channel.queue_declare("q", passive=True).method.message_count == 98
            left = [body for body in bodies if body not in (b"2", b"4")]
            assert _take(channel, "q", 98) == [(body, int(body) < 12) for body in left]


def _stop(process: WarrenProcess, connection: pika.BlockingConnection) -> None:
    """Stop the broker while a client is connected, which answers."""
    process.signal(signal.SIGTERM)
    try:
        while True:
            connection.process_data_events(1)
    except ConnectionClosedByBroker as closed:
        print(closed)
    assert process.wait() == 0


@pytest.mark.long
def test_a_second_clean_stop_without_anything_between_changes_nothing(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(50)]
    with WarrenProcess(tmp_path, {"http": "off"}) as process:
        with connect(process) as connection:
            _publish(connection.channel(), "q", bodies)
        for _ in range(3):
            process.stop()
            process.start()
        with connect(process) as connection:
            assert _take(connection.channel(), "q", 50) == [(body, False) for body in bodies]


def test_transient_messages_and_queues_do_not_outlive_the_broker(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, {"http": "off"}) as process:
        with connect(process) as connection:
            channel = connection.channel()
            _publish(channel, "q", [b"persistent"])
            channel.basic_publish("", "q", b"transient", pika.BasicProperties(delivery_mode=1))
            channel.queue_declare("fleeting")
            channel.basic_publish("", "fleeting", b"persistent, in a transient queue", _PERSISTENT)
        process.stop()
        process.start()
        with connect(process) as connection:
            channel = connection.channel()
            assert channel.queue_declare("q", passive=True).method.message_count == 1
            assert _take(channel, "q", 1) == [(b"persistent", False)]
            # As a durable one, which an equal transient one would refuse with 406.
            assert channel.queue_declare("fleeting", durable=True).method.message_count == 0
