"""Consumer groups of streams: where they begin, who is served, what is committed, and what of it a restart leaves."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Received, basic_consume, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp, encode_table
from warren.streams.groups import BEHIND_MAX, COMMIT_MS, GROUP, Group
from warren.streams.stream import Stream

from .rules import rule
from .stream_clients import (
    ME,
    OFFSET,
    PAGE,
    START_S,
    declare,
    fill,
    offset_of,
    offsets,
    precondition,
    put_policy,
    restarted,
)

COMMIT_S = COMMIT_MS / 1000


def join(client: Client, name: str = "g", offset: object = "first", *, prefetch: int = 1000, **arguments: Any) -> str:
    """Consume as one of a group; return the consumer tag."""
    client.call(1, m.BasicQos(0, prefetch, False))
    table: Table = {GROUP: name, OFFSET: offset} | {"x-" + key.replace("_", "-"): arguments[key] for key in arguments}
    return client.consume("s", arguments=table)


def leave(client: Client, tag: str) -> None:
    assert client.call(1, m.BasicCancel(tag, False)) == m.BasicCancelOk(tag)


def seen(client: Client) -> list[tuple[int, bool]]:
    """Return the offsets of what came, each with whether it is flagged redelivered."""
    return [(offset_of(each), each.method.redelivered) for each in client.deliveries()]


def ack(client: Client, *deliveries: Received) -> None:
    client.send(1, *(m.BasicAck(each.method.delivery_tag, False) for each in deliveries))


def ack_all(client: Client) -> None:
    client.send(1, m.BasicAck(0, True))


def stream_of(harness: Harness) -> Stream:
    queue = harness.queue("s")
    assert isinstance(queue, Stream)
    return queue


def groups(harness: Harness) -> dict[str, int]:
    """Look into the broker: return the committed offset of each group of the stream."""
    return {group.name: int(group.committed) for group in stream_of(harness).consumer_groups()}


def group_of(harness: Harness, name: str = "g") -> Group:
    (group,) = (group for group in stream_of(harness).consumer_groups() if group.name == name)
    return group


def reset(harness: Harness, offset: int, name: str = "g") -> None:
    """Do as an operator does."""
    stream_of(harness).need_groups().reset(name, offset)
    harness.settle()


# --- where a group begins ---------------------------------------------------------------------------------------------


@rule("warren.stream.groups", "A group goes on where it has committed, whichever consumer comes for it.")
@pytest.mark.parametrize("same", [True, False])
def test_a_group_goes_on(client: Client, other: Client, same: bool) -> None:
    declare(client)
    fill(client, 5)
    tag = join(client, prefetch=4)
    deliveries = client.deliveries()
    assert [offset_of(each) for each in deliveries] == [0, 1, 2, 3]
    ack(client, *deliveries[:2])
    assert seen(client) == [(4, False)]
    leave(client, tag)
    following = client if same else other
    join(following)
    assert seen(following) == [(2, True), (3, True), (4, True)]
    fill(client, 1, first=5)
    assert seen(following) == [(5, False)]


@rule("warren.stream.groups", "x-stream-offset says where a group begins that nobody has heard of, and no other.")
@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", [0, 1, 2, 3, 4]),
        ("last", [4]),
        ("next", []),
        (3, [3, 4]),
        (Timestamp(START_S + 20), [2, 3, 4]),
        ("30s", [2, 3, 4]),
    ],
)
def test_offset_of_a_new_group(client: Client, other: Client, offset: object, expected: list[int]) -> None:
    declare(client)
    fill(client, 5, seconds=10)
    tag = join(client, offset=offset)
    assert offsets(client) == expected
    leave(client, tag)
    for later in ("first", "next", 1, "1h"):
        tag = join(other, offset=later)
        assert offsets(other) == expected
        leave(other, tag)


@rule("warren.stream.groups", "Without x-stream-offset a new group begins at next.")
def test_no_offset(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 3)
    client.call(1, m.BasicQos(0, 10, False))
    client.consume("s", arguments={GROUP: "g"})
    client.nothing()
    assert groups(harness) == {"g": 3}


@rule("warren.stream.groups", "A group that began at next stays there: what comes while nobody consumes is its own.")
def test_pinned_at_next(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 3)
    leave(client, join(client, offset="next"))
    assert groups(harness) == {"g": 3}
    fill(client, 2, first=3)
    join(client, offset="next")
    assert seen(client) == [(3, False), (4, False)]


@rule("warren.stream.groups", "A group that left before it knew where to begin is not remembered.")
def test_left_before_it_began() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 5, seconds=10)
    harness, client = restarted(harness)
    harness.store.hold = True  # the time is looked for on disk
    tags = [join(client, name, Timestamp(START_S + 20)) for name in ("g", "h")]
    assert groups(harness) == {"g": -1, "h": -1}
    leave(client, tags[0])
    assert groups(harness) == {"h": -1}
    harness.store.hold = False
    harness.settle()
    assert groups(harness) == {"h": 2}
    assert offsets(client) == [2, 3, 4]


@rule("warren.stream.groups", "A name is a text of 1 to 255 bytes: else 406, and there is no such group.")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", "{longstr,<<>>}"),
        ("g" * 256, None),
        ("ä" * 128, None),
        (5, "{signedint,5}"),
        (True, "{bool,true}"),
        (None, "{void,undefined}"),
        (["g"], '{array,[{longstr,<<"g">>}]}'),
        ({"a": 1}, '{table,[{<<"a">>,signedint,1}]}'),
        (b"g", '{binary,<<"g">>}'),
    ],
)
def test_impossible_names(client: Client, harness: Harness, value: object, shown: str | None) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    refusal = client.refused(1, basic_consume("s", arguments={GROUP: value}))
    expected = precondition(f"invalid arg '{GROUP}' for {ME}: {{invalid_group,{shown}}}")
    if shown is None:  # too long for the text of a close
        assert refusal.text.startswith(f"PRECONDITION_FAILED - invalid arg '{GROUP}' for {ME}: {{invalid_group,")
        assert refusal.code == 406
    else:
        assert refusal == expected
    assert groups(harness) == {} and not harness.queue("s").consumers


@rule("warren.stream.groups", "A consumer that is refused for something else leaves no group behind.")
def test_refused_consumers(client: Client, harness: Harness) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    refused: list[Table] = [{OFFSET: "bogus"}, {"x-stream-filter": 5}, {"x-priority": 1}]
    for arguments in refused:
        client.refused(1, basic_consume("s", arguments={GROUP: "g"} | arguments))
    client.refused(1, basic_consume("s", no_ack=True, arguments={GROUP: "g"}))
    assert groups(harness) == {}


@rule("warren.stream.groups", "A name may be of any bytes that are a text.")
@pytest.mark.parametrize("name", ["g", "g" * 255, "ü / \0 €", " "])
def test_names(name: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 2)
    join(client, name, prefetch=1)
    ack(client, *client.deliveries())
    harness, client = restarted(harness)
    assert groups(harness) == {name: 1}
    join(client, name)
    assert offsets(client) == [1]


# --- who is served ----------------------------------------------------------------------------------------------------


@rule("warren.stream.groups.served", "Of its consumers one is served; when it goes the next takes over.")
@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_one_is_served(harness: Harness, client: Client, how: str) -> None:
    declare(client)
    fill(client, 3)
    members = [harness.channel() for _ in range(3)]
    tags = [join(member) for member in members]
    first, second, third = members
    deliveries = first.deliveries()
    assert [offset_of(each) for each in deliveries] == [0, 1, 2]
    ack(first, deliveries[0])
    fill(client, 1, first=3)
    assert offsets(first) == [3]
    second.nothing()
    if how == "cancel":
        leave(first, tags[0])
    elif how == "channel":
        assert first.call(1, m.ChannelClose(200, "", 0, 0)) == m.ChannelCloseOk()
    else:
        first.hang_up()
    assert seen(second) == [(1, True), (2, True), (3, True)]
    third.nothing()
    ack_all(second)
    leave(second, tags[1])
    third.nothing()
    fill(client, 1, first=4)
    assert seen(third) == [(4, False)]


@rule("warren.stream.groups.served", "Whoever waits may go, and comes last when it comes again.")
def test_who_waits_may_go(harness: Harness, client: Client) -> None:
    declare(client)
    served, second, third = (harness.channel() for _ in range(3))
    tag = join(served)
    leaving = join(second)
    join(third)
    leave(second, leaving)
    join(second)
    fill(client, 1)
    assert offsets(served) == [0]
    leave(served, tag)
    assert seen(third) == [(0, True)]
    second.nothing()
    third.hang_up()
    assert seen(second) == [(0, True)]


@rule("warren.stream.groups.served", "Consumers of one channel are members like others.")
def test_members_of_one_channel(client: Client) -> None:
    declare(client)
    tags = [join(client, prefetch=2) for _ in range(2)]
    fill(client, 4)
    deliveries = client.deliveries()
    assert [(offset_of(each), each.method.consumer_tag) for each in deliveries] == [(0, tags[0]), (1, tags[0])]
    ack(client, deliveries[0])
    assert [(offset_of(each), each.method.consumer_tag) for each in client.deliveries()] == [(2, tags[0])]
    client.send(1, m.BasicCancel(tags[0], False))
    client.pick(m.BasicCancelOk)
    assert [(offset_of(each), each.method.consumer_tag) for each in client.deliveries()] == [(1, tags[1]), (2, tags[1])]


@rule(
    "warren.stream.groups.served", "Groups do not know of each other, nor of consumers without, nor of other streams."
)
def test_groups_are_independent(harness: Harness, client: Client) -> None:
    declare(client)
    declare(client, "second")
    fill(client, 4)
    one, two, none = (harness.channel() for _ in range(3))
    tag = join(one, "one", prefetch=3)
    join(two, "two", 2)
    none.call(1, m.BasicQos(0, 10, False))
    none.consume("s", arguments={OFFSET: "first"})
    none.consume("second", arguments={GROUP: "one", OFFSET: "first"})
    ack(one, *one.deliveries()[:2])
    assert seen(two) == [(2, False), (3, False)]
    assert seen(none) == [(0, False), (1, False), (2, False), (3, False)]
    ack_all(none)
    assert groups(harness) == {"one": 2, "two": 2}
    assert offsets(one) == [3]
    leave(one, tag)
    two.nothing()
    none.nothing()


# --- what is committed ------------------------------------------------------------------------------------------------


@rule("warren.stream.groups.commit", "Committed is what is below the first message that is not acknowledged.")
def test_acks_out_of_order(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 8)
    join(client)
    deliveries = client.deliveries()
    for acked, committed in ((2, 0), (0, 1), (3, 1), (1, 4), (6, 4), (4, 5), (5, 7), (7, 8)):
        ack(client, deliveries[acked])
        assert groups(harness) == {"g": committed}


@rule("warren.stream.groups.commit", "An acknowledgement of several commits them all.")
def test_multiple_acks(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 8)
    join(client)
    deliveries = client.deliveries()
    client.send(1, m.BasicAck(deliveries[3].method.delivery_tag, True))
    assert groups(harness) == {"g": 4}
    ack_all(client)
    assert groups(harness) == {"g": 8}


@rule("warren.stream.groups.commit", "What is rejected counts like what is acknowledged.")
@pytest.mark.parametrize("multiple", [True, False])
def test_rejects(client: Client, other: Client, harness: Harness, multiple: bool) -> None:
    declare(client)
    fill(client, 4)
    tag = join(client)
    deliveries = client.deliveries()
    client.send(1, m.BasicReject(deliveries[0].method.delivery_tag, False))
    assert groups(harness) == {"g": 1}
    if multiple:
        client.send(1, m.BasicNack(deliveries[2].method.delivery_tag, True, False))
    else:
        client.send(1, *(m.BasicNack(each.method.delivery_tag, False, False) for each in deliveries[1:3]))
    assert groups(harness) == {"g": 3}
    leave(client, tag)
    join(other)
    assert offsets(other) == [3]


@rule(
    "warren.stream.groups.requeue",
    "What is requeued comes again at once, to the same consumer, flagged; nothing else does.",
)
@pytest.mark.parametrize("call", [m.BasicReject, m.BasicNack, m.BasicRecover])
@pytest.mark.parametrize("from_disk", [False, True])
def test_requeues(call: type[Any], from_disk: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 5)
    if from_disk:
        harness, client = restarted(harness)
    tag = join(client, prefetch=3)
    deliveries = client.deliveries()
    ack(client, deliveries[0])
    assert seen(client) == [(3, False)]
    if call is m.BasicReject:
        client.send(1, m.BasicReject(deliveries[1].method.delivery_tag, True))
    elif call is m.BasicNack:
        client.send(1, m.BasicNack(deliveries[1].method.delivery_tag, False, True))
    else:
        ack(client, deliveries[2])
        assert seen(client) == [(4, False)]
        client.send(1, m.BasicRecover(True))
        client.pick(m.BasicRecoverOk)
    again = client.deliveries()
    expected = [1, 3, 4] if call is m.BasicRecover else [1]
    assert [(offset_of(each), each.method.redelivered) for each in again] == [(at, True) for at in expected]
    assert groups(harness) == {"g": 1}
    ack(client, again[0])
    assert groups(harness) == {"g": 3 if call is m.BasicRecover else 2}
    ack_all(client)
    client.take()
    ack_all(client)
    assert groups(harness) == {"g": 5}
    leave(client, tag)
    join(client)
    client.nothing()


@rule("warren.stream.groups.requeue", "Until it is answered the group stays there, however much else is.")
def test_what_is_requeued_is_not_committed(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    tag = join(client, prefetch=2)
    stubborn, later = client.deliveries()
    for _ in range(3):
        client.send(1, m.BasicNack(stubborn.method.delivery_tag, False, True))
        (stubborn,) = client.deliveries()
        assert (offset_of(stubborn), stubborn.method.redelivered) == (0, True)
        ack(client, later)
        (later,) = client.deliveries()
        assert not later.method.redelivered
        assert groups(harness) == {"g": 0}
    assert offset_of(later) == 4
    client.send(1, m.BasicNack(later.method.delivery_tag, True, True))
    stubborn, later = client.deliveries()
    assert [offset_of(each) for each in (stubborn, later)] == [0, 4]
    leave(client, tag)
    join(other, prefetch=3)
    again = other.deliveries()
    assert [(offset_of(each), each.method.redelivered) for each in again] == [(0, True), (1, True), (2, True)]
    client.send(1, m.BasicNack(later.method.delivery_tag, True, True))
    other.nothing()
    client.nothing()


@rule("warren.stream.groups.requeue", "What is requeued waits for room like everything else, and goes first.")
def test_what_is_requeued_waits_for_room(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    join(client, prefetch=4)
    deliveries = client.deliveries()
    harness.queue("s").pause(paused=True)
    for each in (2, 0, 1):
        client.send(1, m.BasicNack(deliveries[each].method.delivery_tag, False, True))
    client.nothing()
    ack(client, deliveries[3])
    assert groups(harness) == {"g": 0}
    harness.queue("s").pause(paused=False)
    harness.settle()
    assert seen(client) == [(0, True), (1, True), (2, True), (4, False)]


@rule("warren.stream.groups.requeue", "A reset forgets what was requeued.")
def test_a_reset_after_a_requeue(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    join(client, prefetch=4)
    deliveries = client.deliveries()
    harness.queue("s").pause(paused=True)
    client.send(1, m.BasicNack(deliveries[0].method.delivery_tag, False, True))
    reset(harness, 3)
    harness.queue("s").pause(paused=False)
    client.send(1, m.BasicNack(deliveries[1].method.delivery_tag, False, True))
    assert seen(client) == [(3, True), (4, False)]
    assert groups(harness) == {"g": 3}


@rule("warren.stream.groups.requeue", "What retention removed meanwhile does not come again, and holds nobody up.")
@pytest.mark.parametrize("rest", [True, False])
def test_what_is_requeued_may_be_gone(rest: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3 * PAGE)
    harness, client = restarted(harness)
    join(client)
    deliveries = client.deliveries()
    requeued = [0, 5, PAGE, 2 * PAGE + 1] if rest else [0, 5, PAGE]
    harness.queue("s").pause(paused=True)
    for at, each in enumerate(deliveries[:-1]):
        client.send(1, m.BasicNack(each.method.delivery_tag, False, at in requeued))
    assert groups(harness) == {"g": 0}
    put_policy(harness, max_length_bytes=0)
    harness.queue("s").pause(paused=False)
    harness.settle()
    assert seen(client) == ([(2 * PAGE + 1, True)] if rest else [])
    assert groups(harness) == {"g": 2 * PAGE + 1 if rest else 3 * PAGE - 1}
    ack_all(client)
    assert groups(harness) == {"g": 3 * PAGE}
    fill(client, 1)
    assert seen(client) == [(3 * PAGE, False)]


@rule(
    "warren.stream.groups.commit",
    "A group waits while its oldest unanswered message is 20,000 behind, and more than the prefetch.",
)
def test_how_far_a_group_gets_ahead(client: Client, harness: Harness) -> None:
    declare(client)
    count = BEHIND_MAX + 20
    client.feed(b"".join(publish_frames("", "s", b"") for _ in range(count)))
    join(client, prefetch=10)
    first, *others = client.deliveries()
    while others:
        at = offset_of(others[-1])
        ack(client, *others)
        others = client.deliveries()
    assert at == BEHIND_MAX + 9
    assert groups(harness) == {"g": 0}
    client.send(1, m.BasicNack(first.method.delivery_tag, False, True))
    (again,) = client.deliveries()
    ack(client, again)
    assert offsets(client) == list(range(BEHIND_MAX + 10, count))
    assert groups(harness) == {"g": BEHIND_MAX + 10}


@rule("warren.stream.groups.commit", "What comes after its consumer has gone does not count.")
def test_acks_of_a_consumer_that_has_gone(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 3)
    tag = join(client)
    deliveries = client.deliveries()
    ack(client, deliveries[0])
    leave(client, tag)
    ack(client, *deliveries[1:])
    client.nothing()
    assert groups(harness) == {"g": 1}
    join(other)
    assert seen(other) == [(1, True), (2, True)]


@rule("warren.stream.groups.commit", "Acknowledgements in a transaction count with its commit.")
def test_transactions(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 3)
    client.call(1, m.TxSelect())
    join(client)
    deliveries = client.deliveries()
    ack(client, *deliveries)
    assert groups(harness) == {"g": 0}
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()
    assert groups(harness) == {"g": 0}
    ack(client, *deliveries[:2])
    assert client.call(1, m.TxCommit()) == m.TxCommitOk()
    assert groups(harness) == {"g": 2}


def fill_by_colour(client: Client, *colours: str) -> None:
    for colour in colours:
        client.publish("", "s", headers=encode_table({"x-stream-filter-value": colour}))


@rule("warren.stream.groups.commit", "What a filter passes over counts as answered, behind what is not.")
def test_filters(client: Client, harness: Harness) -> None:
    declare(client)
    fill_by_colour(client, "red", "red", "blue", "red", "blue", "red")
    join(client, stream_filter="blue")
    deliveries = client.deliveries()
    assert [offset_of(each) for each in deliveries] == [2, 4]
    assert groups(harness) == {"g": 2}
    ack(client, deliveries[1])
    assert groups(harness) == {"g": 2}
    fill_by_colour(client, "red")
    ack(client, deliveries[0])
    assert groups(harness) == {"g": 7}
    fill_by_colour(client, "red", "red")
    client.nothing()
    assert groups(harness) == {"g": 9}
    join(client, "h", "first", stream_filter="green")
    assert groups(harness) == {"g": 9, "h": 9}


@rule("warren.stream.groups.commit", "Paused, nothing goes to a group; what was sent may be answered.")
def test_pauses(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 2)
    tag = join(client)
    deliveries = client.deliveries()
    harness.queue("s").pause(paused=True)
    fill(client, 1, first=2)
    ack(client, deliveries[0])
    client.nothing()
    join(other)
    leave(client, tag)
    other.nothing()
    assert groups(harness) == {"g": 1}
    harness.queue("s").pause(paused=False)
    harness.settle()
    assert seen(other) == [(1, True), (2, False)]


# --- operators --------------------------------------------------------------------------------------------------------


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
    assert client.call(1, m.QueueDelete(0, "s", False, False, False)) == m.QueueDeleteOk(4)
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
    stream_of(harness).leave_chunk(next(iter(stream_of(harness)._cursors.values())))  # as if memory had been short
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
    # What it had in memory it gets.
    assert offsets(client) == list(range(5, 10))
    leave(client, tag)
    join(client)
    assert seen(client) == [(offset, False) for offset in range(2 * PAGE, 3 * PAGE)]


# --- restarts ---------------------------------------------------------------------------------------------------------


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
