"""A queue that is longer than memory, seen through the engine."""

from __future__ import annotations

from engine_harness import Harness

from warren.amqp import methods as m


def test_messages_behind_transient_ones_leave_memory_although_nobody_asks() -> None:
    harness = Harness()
    log = harness.broker.log
    client = harness.channel()
    client.declare("q", durable=True)

    def publish(count: int, delivery_mode: int) -> None:
        for _ in range(count):
            client.publish("", "q", b"x" * 100, delivery_mode=delivery_mode)
        log.close_if_due(lingered=True)
        harness.settle()

    def get(count: int) -> None:
        for _ in range(count):
            assert client.get("q", no_ack=True) is not None

    log.memory_bytes = 0
    publish(300, 2)
    publish(10, 1)
    # Takes the last messages on disk. The transient messages after them are not on disk, and nothing asks for them.
    get(300)
    for _ in range(10):
        publish(500, 2)
    assert log.resident_bytes < 1000 * 350, "of 5,010 messages"
    get(5010)
    assert client.get("q") is None
    assert log.resident_bytes == 0
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
