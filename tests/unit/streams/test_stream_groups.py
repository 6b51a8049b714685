"""A consumer group's memory of the messages that it was sent, and how many groups there may be."""

from __future__ import annotations

from random import Random

import pytest
from engine_harness import Harness, basic_consume, publish_frames

from warren.amqp import methods as m
from warren.streams.group_serving import STORED_AT_ONCE
from warren.streams.groups import COMMIT_MS, GROUPS_MAX, RANGES_MAX, SentRanges
from warren.streams.stream import Stream

OFFSETS = 200


def was_sent(ranges: SentRanges, offset: int) -> bool:
    first, end = ranges.at(offset)
    assert offset < end or first == end
    return first <= offset


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_those_that_were_added(seed: int) -> None:
    random = Random(seed)
    ranges = SentRanges()
    sent: set[int] = set()
    for _ in range(RANGES_MAX // 2):
        first = random.randrange(OFFSETS)
        end = min(first + random.choice([1, 2, 3, 10, 50]), OFFSETS)
        ranges.add(first, end)
        sent |= set(range(first, end))
        assert [offset for offset in range(OFFSETS + 5) if was_sent(ranges, offset)] == sorted(sent)


def test_ranges_do_not_touch_and_are_few() -> None:
    ranges = SentRanges()
    for first in (0, 20, 10, 5, 25, 15):
        ranges.add(first, first + 5)
        assert ranges.at(first)[0] <= first
    assert ranges.at(0) == (0, 30)
    many = SentRanges()
    for number in reversed(range(3 * RANGES_MAX)):
        many.add(10 * number, 10 * number + 5)
    found = [many.at(0)]
    while found[-1][1] < 1 << 60:
        found.append(many.at(found[-1][1]))
    assert len(found) - 1 == RANGES_MAX
    # Nothing that was sent is forgotten, and what was sent last is told apart from what was not.
    assert all(was_sent(many, 10 * number + 4) for number in range(3 * RANGES_MAX))
    assert not was_sent(many, 10 * 3 * RANGES_MAX - 15)


def test_a_stream_has_a_limited_number_of_groups() -> None:
    """(6)"""
    harness = Harness()
    client = harness.channel()
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    stream = harness.queue("s")
    assert isinstance(stream, Stream)
    known = stream.need_groups().known
    for number in range(GROUPS_MAX):
        known.group(f"g{number}")
    client.call(1, m.BasicQos(0, 10, False))
    refusal = client.refused(1, basic_consume("s", "t", arguments={"x-group": "one more"}))
    assert (refusal.code, refusal.text) == (
        406,
        "PRECONDITION_FAILED - queue 's' in vhost '/' has 10000 consumer groups, at most 10000 are allowed: delete "
        "those that are not used",
    )
    assert not stream.consumers and len(known.groups) == GROUPS_MAX
    client.call(1, m.BasicQos(0, 10, False))
    client.consume("s", arguments={"x-group": "g5"})
    client.consume("s")


def test_very_many_groups_are_stored_in_several_calls() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.feed(publish_frames("", "s", b"x") * 2)
    stream = harness.queue("s")
    assert isinstance(stream, Stream)
    client.call(1, m.BasicQos(0, 1, False))
    count = STORED_AT_ONCE + 10
    consumers = [
        basic_consume("s", f"t{at}", arguments={"x-group": f"g{at}", "x-stream-offset": "first"}) for at in range(count)
    ]
    client.send(1, *consumers)
    client.send(1, m.BasicAck(0, multiple=True))
    groups = stream.consumer_groups()

    def stored() -> int:
        return sum(group.stored == 1 for group in groups)

    harness.broker.keep_time(int(harness.broker.log.now_ms) + COMMIT_MS)
    assert (stored(), len(groups)) == (STORED_AT_ONCE, count)
    harness.broker.keep_time(int(harness.broker.log.now_ms))
    assert stored() == count
    harness.check()
