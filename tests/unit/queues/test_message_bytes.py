"""What a queue reports of its messages: bytes unacked, bytes on disk only, and bytes that survive a restart."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.queues.base_queue import BaseQueue

BODY = b"x" * 100


def unacked(queue: BaseQueue) -> tuple[int, int]:
    return int(queue.unacked_count), int(queue.unacked_bytes)


def publish(client: Client, *sizes: int, **properties: Any) -> None:
    for size in sizes:
        client.publish("", "q", b"x" * size, **properties)


def store(harness: Harness) -> None:
    harness.broker.log.close_if_due(lingered=True)
    harness.settle()


@pytest.mark.parametrize("arguments", [{}, {"x-key-shared": True}, {"x-max-priority": 2}, {"x-queue-type": "quorum"}])
def test_unacked_bytes_go_with_each_way_back(arguments: dict[str, object]) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=arguments)
    queue = harness.queue("q")
    publish(client, 1, 20, 300, 4000)
    assert unacked(queue) == (0, 0) and queue.message_bytes == 4321
    for _ in range(4):
        assert client.get("q") is not None
    assert unacked(queue) == (4, 4321) and queue.message_bytes == 4321
    client.send(1, m.BasicAck(1, False))
    assert unacked(queue) == (3, 4320)
    client.send(1, m.BasicReject(2, False))
    assert unacked(queue) == (2, 4300)
    client.send(1, m.BasicNack(3, multiple=False, requeue=True))
    assert unacked(queue) == (1, 4000) and queue.ready_bytes == 300
    client.call(1, m.ChannelClose(200, "", 0, 0))
    assert unacked(queue) == (0, 0) and queue.message_bytes == 4300
    harness.check()


def test_unacked_bytes_of_a_stream_are_not_added_to_its_own() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True, arguments={"x-queue-type": "stream"})
    publish(client, 10, 20)
    store(harness)
    client.call(1, m.BasicQos(0, 10, False))
    offset = encode_table({"x-stream-offset": "first"})
    client.send(1, m.BasicConsume(0, "q", "c", False, False, False, False, offset))
    store(harness)
    queue = harness.queue("q")
    assert unacked(queue) == (2, 30)
    assert queue.message_bytes == 30 and queue.persistent() == (2, 30)
    client.send(1, m.BasicAck(0, True))
    assert unacked(queue) == (0, 0) and queue.message_bytes == 30


@pytest.mark.parametrize("levels", [{}, {"x-max-priority": 3}])
def test_persistent_messages_are_those_that_are_stored(levels: dict[str, object]) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=levels)
    queue = harness.queue("q")
    publish(client, 1, 20, delivery_mode=1)
    publish(client, 300, delivery_mode=2)
    publish(client, 4000, delivery_mode=2, priority=3)
    store(harness)
    assert queue.persistent() == (2, 4300)
    for _ in range(4):
        client.get("q")
    assert queue.persistent() == (2, 4300), "unacked ones are there"
    client.send(1, m.BasicAck(0, True))
    assert queue.persistent() == (0, 0)


def test_nothing_is_persistent_in_a_queue_that_a_restart_forgets() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=False)
    harness.broker.log.memory_bytes = 0
    publish(client, *[100] * 500, delivery_mode=2)
    store(harness)
    harness.queue("q").page_out()
    store(harness)
    assert harness.queue("q").persistent() == (0, 0)


@pytest.mark.parametrize("sharing", [{}, {"x-key-shared": True}])
@pytest.mark.parametrize("mode", [1, 2])
def test_what_is_paged_out_and_what_is_in_memory_add_up(mode: int, sharing: dict[str, object]) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=sharing)
    queue = harness.queue("q")
    publish(client, *range(1000), delivery_mode=mode)
    store(harness)
    ready = queue.ready
    assert ready.paged_out_bytes() == 0
    harness.broker.log.memory_bytes = 0
    harness.broker.log.under_pressure = True
    for _ in range(4):
        queue.page_out()
        store(harness)
    assert ready.paged_out_bytes() > 0
    for _ in range(20):
        assert client.get("q") is not None
    client.send(1, m.BasicNack(10, multiple=True, requeue=True))
    in_memory = sum(int(message.body_bytes) for message in ready.in_memory())
    assert ready.paged_out_count() > 0
    assert ready.paged_out_bytes() == queue.ready_bytes - in_memory > 0
    assert queue.message_bytes == sum(range(1000))
    assert queue.persistent() == ((1000, sum(range(1000))) if mode == 2 else (0, 0))
    for index in harness.broker.log.indexes.values():
        index.check_invariants()
    client.call(1, m.QueuePurge(0, "q", False))
    assert ready.paged_out_bytes() == 0 and unacked(queue) == (10, sum(range(10, 20)))
    harness.check()


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_what_was_said_to_be_persistent(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True)
    publish(client, 1, 20, delivery_mode=1)
    publish(client, 300, 4000, delivery_mode=2)
    store(harness)
    harness = harness.restart(clean=clean)
    queue = harness.queue("q")
    assert queue.persistent() == (2, 4300) == (queue.ready_count, queue.ready_bytes)
