"""Deliveries that are not answered in time come back: delivery_timeout (3)."""

from __future__ import annotations

from engine_harness import Harness, publish_frames

from warren.queues.message_deaths import LEAVE_MAX


def test_a_part_comes_back_at_once_and_the_rest_with_the_timers() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-visibility-timeout": 1000})
    client.consume("q", "t")
    client.feed(publish_frames("", "q", b"m") * (LEAVE_MAX + 110))
    queue = harness.queue("q")
    queue.pause(paused=True)  # what comes back is not delivered again
    assert queue.unacked_count == LEAVE_MAX + 110
    log, timers = harness.broker.log, harness.broker.timers
    log.now_ms += 1001
    for left in (110, 0):
        assert timers.next_ms() <= log.now_ms
        timers.run_due(log.now_ms)
        assert queue.unacked_count == left
    assert timers.next_ms() > log.now_ms
    assert queue.ready_count == LEAVE_MAX + 110
