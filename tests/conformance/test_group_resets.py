"""Consumer groups of streams: the effects of operators and retention."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness

from warren.amqp import methods as m

from .group_clients import COMMIT_S, ack, ack_all, group_of, groups, join, leave, reset, seen, stream_of
from .rules import rule
from .stream_clients import (
    PAGE,
    declare,
    fill,
    offset_of,
    offsets,
    put_policy,
    restarted,
)


@rule("warren.stream.groups.reset", "A group that nobody consumes goes on from where it was reset to.")
@pytest.mark.parametrize(("offset", "expected"), [(0, [0, 1, 2, 3]), (2, [2, 3]), (4, []), (-1, [0, 1, 2, 3])])
def test_reset_without_consumers(client: Client, harness: Harness, offset: int, expected: list[int]) -> None:
    declare(client)
    fill(client, 4)
    tag = join(client)
    client.deliveries()
    ack_all(client)
    leave(client, tag)
    reset(harness, offset)
    join(client, offset="next")
    assert seen(client) == [(each, True) for each in expected]


@rule("warren.stream.groups.reset", "Reset while it is consumed, its consumer is served from there at once.")
@pytest.mark.parametrize("offset", [0, 2, 3, 4])
def test_reset_while_consumed(client: Client, other: Client, harness: Harness, offset: int) -> None:
    declare(client)
    fill(client, 4)
    join(client, prefetch=6)
    join(other)
    client.deliveries()
    reset(harness, offset)
    got = client.deliveries()
    assert [(offset_of(each), each.method.redelivered) for each in got] == [(at, True) for at in range(offset, 4)][:2]
    other.nothing()
    assert groups(harness) == {"g": offset}
    ack_all(client)
    assert groups(harness) == {"g": min(offset + 2, 4)}


@rule(
    "warren.stream.groups.reset", "What was sent before a reset, answered later, gives credit and counts for nothing."
)
def test_answers_after_a_reset(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 4)
    join(client, prefetch=3)
    before = client.deliveries()
    join(other)
    reset(harness, 1)
    client.nothing()
    ack(client, *before[:2])
    assert seen(client) == [(1, True), (2, True)]
    assert groups(harness) == {"g": 1}
    client.send(1, m.BasicReject(before[2].method.delivery_tag, False))
    assert seen(client) == [(3, False)]
    assert groups(harness) == {"g": 1}
    client.hang_up()
    assert seen(other) == [(1, True), (2, True), (3, True)]


@rule("warren.stream.groups.reset", "Flagged is what the group was sent before, not what it has jumped over.")
@pytest.mark.parametrize("consumed", [True, False])
def test_flags_after_resets(client: Client, harness: Harness, consumed: bool) -> None:
    declare(client)
    fill(client, 12)
    tag = ""
    sent: set[int] = set()
    for offset in (0, 6, 3, 9, 0, 2, 4, 6, 8):
        if tag and not consumed:
            leave(client, tag)
        reset(harness, offset)
        if tag and consumed:
            ack_all(client)
        else:
            tag = join(client, prefetch=2)
        got = seen(client)
        assert got == [(at, at in sent) for at in (offset, offset + 1)]
        sent |= {at for at, _ in got}


@rule("warren.stream.groups.reset", "Reset, a group that nobody has heard of begins there.")
def test_reset_of_a_new_group(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 4)
    reset(harness, 3)
    assert groups(harness) == {"g": 3}
    join(client)
    assert seen(client) == [(3, False)]


@rule("warren.stream.groups.reset", "An offset that is still to come is waited for.")
@pytest.mark.parametrize("consumed", [True, False])
def test_reset_beyond_the_end(client: Client, harness: Harness, consumed: bool) -> None:
    declare(client)
    fill(client, 2)
    if consumed:
        join(client)
        client.deliveries()
    reset(harness, 4)
    if not consumed:
        join(client)
    fill(client, 4, first=2)
    assert seen(client) == [(4, False), (5, False)]


@rule("warren.stream.groups.reset", "What is reset is so after a crash, once it is written.")
def test_a_reset_survives() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 8)
    for name in ("consumed", "left"):
        join(client, name)
        client.deliveries()
        ack_all(client)
    reset(harness, 3, "consumed")
    reset(harness, 5, "left")
    reset(harness, 7, "new")
    client.deliveries()
    harness, client = restarted(harness, clean=False)
    assert groups(harness) == {"consumed": 3, "left": 5, "new": 7}


@rule("warren.stream.groups.reset", "A group that is forgotten begins anew, also after a restart.")
@pytest.mark.parametrize("clean", [True, False])
def test_forgotten_groups(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 4)
    for name in ("g", "h", "i"):
        tag = join(client, name, prefetch=2)
        ack(client, *client.deliveries())
        client.deliveries()
        leave(client, tag)
    harness.write()
    stream_of(harness).need_groups().forget(group_of(harness))
    assert groups(harness) == {"h": 2, "i": 2}
    harness, client = restarted(harness, clean=clean)
    assert groups(harness) == {"h": 2, "i": 2}
    tag = join(client)
    assert offsets(client) == [0, 1, 2, 3]
    leave(client, tag)
    harness, client = restarted(harness, clean=clean)
    assert groups(harness) == {"g": 0, "h": 2, "i": 2}


@rule("warren.stream.groups.reset", "The groups of a stream that is deleted are forgotten with it.")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("consumed", [True, False])
def test_groups_of_a_deleted_stream(clean: bool, consumed: bool) -> None:
    harness = DurableHarness()
    client, reader = harness.channel(), harness.channel()
    declare(client)
    fill(client, 4)
    tag = join(reader)
    ack(reader, *reader.deliveries()[:3])
    if not consumed:
        leave(reader, tag)
    harness.write()
    assert client.call(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False)) == m.QueueDeleteOk(4)
    if consumed:
        assert reader.expect(m.BasicCancel) == m.BasicCancel(tag, True)
    declare(client)
    fill(client, 2)
    assert groups(harness) == {}
    harness.pass_time(2 * COMMIT_S)
    harness, client = restarted(harness, clean=clean)
    assert groups(harness) == {}
    join(client)
    assert offsets(client) == [0, 1]


@rule("warren.stream.groups.retention", "A group whose next message went goes on with the oldest that is there.")
@pytest.mark.parametrize("clean", [True, False])
def test_retention(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3 * PAGE)
    join(client, prefetch=2)
    ack(client, *client.deliveries())
    harness.pass_time(COMMIT_S)
    harness, client = restarted(harness, clean=clean)
    put_policy(harness, max_length_bytes=0)
    assert groups(harness) == {"g": 2}
    tag = join(client)
    assert seen(client) == [(offset, False) for offset in range(2 * PAGE, 3 * PAGE)]
    assert groups(harness) == {"g": 2 * PAGE}
    leave(client, tag)
    reset(harness, 5)
    assert groups(harness) == {"g": 2 * PAGE}


@rule("warren.stream.groups.retention", "What went ahead of a group that is being served is passed over.")
def test_retention_ahead_of_a_group() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3 * PAGE)
    harness, client = restarted(harness)
    join(client, prefetch=5)
    deliveries = client.deliveries()
    harness.queue("s").pause(paused=True)
    next(iter(stream_of(harness).cursors.values())).leave_chunk()  # as if memory had been short
    put_policy(harness, max_length_bytes=0)
    ack(client, *deliveries)
    harness.queue("s").pause(paused=False)
    harness.settle()
    got = client.deliveries()
    assert [(offset_of(each), each.method.redelivered) for each in got] == [(2 * PAGE + at, False) for at in range(5)]
    assert groups(harness) == {"g": 2 * PAGE}


@rule("warren.stream.groups.retention", "What went while it was out may be acknowledged, and the group goes on.")
def test_retention_of_what_is_out() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3 * PAGE)
    harness, client = restarted(harness)
    tag = join(client, prefetch=5)
    deliveries = client.deliveries()
    put_policy(harness, max_length_bytes=0)
    ack(client, *deliveries)
    # It gets the messages that it had in memory.
    assert offsets(client) == list(range(5, 10))
    leave(client, tag)
    join(client)
    assert seen(client) == [(offset, False) for offset in range(2 * PAGE, 3 * PAGE)]
