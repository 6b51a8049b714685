"""Excess messages leave: length_limit (2), and how the excess is measured."""

from __future__ import annotations

import pytest
from engine_harness import Harness, publish_frames

from warren.queues.message_deaths import LEAVE_MAX
from warren.vhosts.metadata import PolicyPut


@pytest.mark.parametrize("definition", ['{"max-length":10}', '{"max-length-bytes":20}'])
def test_of_what_is_too_much_a_part_leaves_at_once_and_the_rest_with_the_timers(definition: str) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.feed(publish_frames("", "q", b"ab") * (2 * LEAVE_MAX + 110))
    harness.broker.administer(PolicyPut("/", "p", ".*", "queues", 0, definition))
    queue = harness.queue("q")
    assert queue.ready_count == LEAVE_MAX + 110
    timers = harness.broker.timers
    for left in (110, 10, 10):
        assert (timers.next_ms() <= harness.broker.log.now_ms) == (queue.ready_count > 10)
        timers.run_due(harness.broker.log.now_ms)
        assert queue.ready_count == left
