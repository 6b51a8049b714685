"""Consumer groups of streams: their state after a restart or a crash."""

from __future__ import annotations

from unittest import mock

import pytest
from durable_harness import DurableHarness

from warren.amqp import methods as m
from warren.amqp.field_table import Timestamp

from .group_clients import COMMIT_S, ack, ack_all, group_of, groups, join, leave, reset, seen, stream_of
from .rules import rule
from .stream_clients import (
    START_S,
    declare,
    fill,
    offsets,
    restarted,
)


@rule("warren.stream.groups.restart", "A group goes on where it was when the broker stopped; nothing is flagged then.")
def test_a_clean_restart() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 6)
    join(client, prefetch=4)
    ack(client, *client.deliveries()[:2])
    assert offsets(client) == [4, 5]
    for _ in range(3):
        harness = harness.restart(clean=True)
        client = harness.channel()
        assert groups(harness) == {"g": 2}
    join(client)
    assert seen(client) == [(offset, False) for offset in range(2, 6)]
    ack_all(client)
    harness = harness.restart(clean=True)
    client = harness.channel()
    join(client)
    client.nothing()
    fill(client, 1, first=6)
    assert offsets(client) == [6]


@rule(
    "warren.stream.groups.restart", "After a crash what was acknowledged within the last second comes again, not more."
)
def test_a_crash() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 6)
    join(client)
    deliveries = client.deliveries()
    ack(client, *deliveries[:2])
    harness.pass_time(COMMIT_S / 2)
    ack(client, deliveries[2])
    harness.pass_time(COMMIT_S / 2)
    ack(client, deliveries[3])
    harness.write()
    harness.pass_time(COMMIT_S / 2)
    harness, client = restarted(harness, clean=False)
    assert groups(harness) == {"g": 3}
    join(client)
    assert seen(client) == [(3, False), (4, False), (5, False)]


@rule("warren.stream.groups.restart", "Whoever acknowledges all the time is not behind by more than a second either.")
def test_a_crash_amid_acknowledgements() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 50)
    join(client)
    for delivery in client.deliveries()[:40]:
        ack(client, delivery)
        harness.pass_time(COMMIT_S / 8)
    harness, client = restarted(harness, clean=False)
    assert 40 - 8 <= groups(harness)["g"] <= 40


@rule("warren.stream.groups.restart", "Where a group begins is stored at once: what is confirmed later is its own.")
@pytest.mark.parametrize("offset", ["first", "last", "next", Timestamp(START_S)])
def test_a_crash_of_a_new_group(offset: object) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3)
    harness, client = restarted(harness)
    join(client, offset=offset)
    had = offsets(client)
    client.call(1, m.ConfirmSelect(False))
    client.publish("", "s")
    client.pick(m.BasicAck)
    assert offsets(client) == [3]
    harness = harness.restart(clean=False)
    client = harness.channel()
    assert groups(harness) == {"g": had[0] if had else 3}
    join(client, offset="next")
    assert offsets(client) == [*had, 3]


@rule("warren.stream.groups.restart", "When its consumer goes, what a group has committed is stored at once.")
def test_a_crash_after_a_consumer_went() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 6)
    tag = join(client)
    ack(client, *client.deliveries()[:4])
    leave(client, tag)
    harness, client = restarted(harness, clean=False)
    assert groups(harness) == {"g": 4}


@rule("warren.stream.groups.restart", "Many groups come back, each where it was, and leave nothing of their past.")
@pytest.mark.parametrize("clean", [True, False])
def test_many_groups(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 60)
    expected: dict[str, int] = {}
    for life in range(3):
        for number in range(50):
            name = f"{life % 2}.{number}"
            expected[name] = (number + 7 * life) % 60
            reset(harness, expected[name], name)
        for number in range(0, 50, 3):
            name = f"{life % 2}.{number}"
            stream_of(harness).need_groups().forget(group_of(harness, name))
            del expected[name]
        harness, client = restarted(harness, clean=clean)
        assert groups(harness) == expected
        known = stream_of(harness).need_groups().known
        known.check_numbers([int(group.number) for group in stream_of(harness).consumer_groups()])
        assert known.next_number <= 100


@rule("warren.stream.groups.restart", "Who comes before groups have been read waits for that, and begins where it is.")
def test_who_comes_early() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 6)
    for name, offset in (("known", 4), ("reset", 1), ("other", 2)):
        reset(harness, offset, name)
    harness.write()
    with mock.patch.object(DurableHarness, "settle"):
        harness = harness.restart(clean=False)
    harness.store.hold = True
    members = [harness.channel() for _ in range(4)]
    for member, name in zip(members, ("known", "reset", "new", "left"), strict=True):
        tag = join(member, name)
        member.nothing()
    leave(members[3], tag)
    reset(harness, 5, "reset")
    reset(harness, 3, "created")
    harness.store.hold = False
    harness.settle()
    assert [offsets(member) for member in members] == [[4, 5], [5], [0, 1, 2, 3, 4, 5], []]
    expected = {"known": 4, "reset": 5, "other": 2, "new": 0, "created": 3}
    assert groups(harness) == expected
    reset(harness, 0, "last")
    harness, _ = restarted(harness, clean=False)
    assert groups(harness) == expected | {"last": 0}


@rule(
    "warren.stream.groups.restart", "Should damage leave two records of a group, the newer counts, and the other goes."
)
@pytest.mark.parametrize(("serial", "expected"), [(0, 3), (9, 5)])
def test_two_records_of_a_group(serial: int, expected: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 6)
    reset(harness, 3)
    known = stream_of(harness).need_groups().known
    words = (5).to_bytes(8, "big") + serial.to_bytes(8, "big")
    known.put(1, words + b"g", known.log.now_ms)
    known.next_number = 2
    for _ in range(2):
        harness, client = restarted(harness, clean=False)
        assert groups(harness) == {"g": expected}
        known = stream_of(harness).need_groups().known
        known.check_numbers([int(group_of(harness).number)])
