"""Publishers that wait until the disk has taken what they sent before."""

from __future__ import annotations

from durable_harness import DurableHarness
from engine_harness import publish_frames


def test_publishers_wait_while_much_waits_for_the_disk() -> None:
    harness = DurableHarness()
    client, other = harness.channel(), harness.channel()
    client.declare("q", durable=True)
    harness.write()
    queue = harness.queue("q")
    small, large = (publish_frames("", "q", bytes(size), properties={"delivery_mode": 2}) for size in (100, 2 << 20))
    harness.broker.log.batch_bytes = 4096
    harness.store.hold = True
    client.feed(small * 50)  # is with the disk
    client.feed(large)  # waits for it
    assert queue.ready_count == 51
    other.feed(large)
    assert queue.ready_count == 51, "another large one has to wait"
    client.feed(small * 50)
    assert queue.ready_count == 101, "small ones go on"
    client.feed(small)
    assert queue.ready_count == 101, "until these are many, too"
    harness.store.hold = False
    harness.settle()
    assert queue.ready_count == 103
    client.feed(small)
    assert queue.ready_count == 104
