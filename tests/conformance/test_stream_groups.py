"""Consumer groups of streams: where they begin, and which consumer is served."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, basic_consume

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp
from warren.streams.groups import GROUP

from .group_clients import ack, ack_all, groups, join, leave, seen
from .rules import rule
from .stream_clients import (
    ME,
    OFFSET,
    START_S,
    declare,
    fill,
    offset_of,
    offsets,
    precondition,
    restarted,
)

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
