"""The route of the publish before is taken again for the same arguments, and for no others."""

from __future__ import annotations

import random

import pytest
from engine_harness import Harness, publish_frames, queue_declare

from warren.amqp.codec import method_frame


@pytest.mark.parametrize("size", [*range(1, 28), 255])
def test_names_that_differ_in_any_one_byte_are_told_apart(size: int) -> None:
    harness = Harness()
    client = harness.channel()
    first = "a" * size
    names = [first, *(first[:at] + "b" + first[at + 1 :] for at in range(size)), first[:-1] or "c", (first + "a")[:255]]
    names = sorted(set(names))
    for name in names:
        client.feed(method_frame(1, queue_declare(name)))
    client.take()
    chosen = random.Random(size).choices(names, k=200)
    # From the same one to the same, and from each of some to each.
    pairs = [name for name in chosen for _ in range(random.Random(name).randint(1, 3))]
    client.feed(b"".join(publish_frames("", name, name.encode()) for name in pairs))
    for name in names:
        assert harness.queue(name).message_count == pairs.count(name)
