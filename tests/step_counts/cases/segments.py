"""The message log, with n segments."""

from __future__ import annotations

from engine_harness import publish_frames

from step_counts.cases.case import LINEAR, Act, case
from step_counts.meter import Meter

SEGMENT_BYTES = 1024


@case(None, LINEAR)
def checkpoint_behind_which_many_segments_go(meter: Meter, n: int) -> Act:
    log = meter.broker.log
    log.segment_bytes = SEGMENT_BYTES
    client = meter.channel()
    client.declare("q", durable=True)
    for _ in range(n):
        client.feed(publish_frames("", "q", bytes(SEGMENT_BYTES), properties={"delivery_mode": 2}))
        log.force()
        meter.settle()
    meter.queue("q").purge()
    meter.settle()
    assert len(log.segments.segments) >= n

    def take_a_checkpoint() -> None:
        log.checkpoints.want()
        meter.settle()
        assert len(log.segments.segments) <= 2

    return take_a_checkpoint
