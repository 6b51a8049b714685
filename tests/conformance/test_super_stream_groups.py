"""Super streams: which consumers of a group get which partition, and what moves with a partition."""

from __future__ import annotations

from itertools import product

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Received, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.streams.groups import GROUP

from .rules import rule
from .stream_clients import OFFSET, STREAM, offset_of
from .super_stream_topology import bind, stream_of, super_stream, unbind


class Instance:
    """An application that consumes from partitions as one of a group, on a connection of its own."""

    def __init__(
        self, harness: Harness, partitions: list[str], *, prefetch: int = 100, client: Client | None = None
    ) -> None:
        self.client = client or harness.channel()
        self.tags: dict[str, str] = {}
        self.client.call(1, m.BasicQos(0, prefetch, False))
        for partition in partitions:
            self.join(partition)

    def join(self, partition: str, number: int = 1) -> None:
        arguments: Table = {GROUP: "g", OFFSET: "first"}
        self.tags[partition] = self.client.consume(partition, arguments=arguments, number=number)

    def leave(self, partition: str) -> None:
        self.client.send(1, m.BasicCancel(self.tags.pop(partition), False))
        self.client.pick(m.BasicCancelOk)

    def deliveries(self) -> dict[str, list[tuple[int, bool]]]:
        """Return by partition the offsets of what came, each with whether it is flagged redelivered."""
        found: dict[str, list[tuple[int, bool]]] = {}
        for each in self.client.deliveries():
            found.setdefault(self.partition_of(each), []).append((offset_of(each), each.method.redelivered))
        return found

    def partition_of(self, received: Received) -> str:
        (partition,) = (name for name, tag in self.tags.items() if tag == received.method.consumer_tag)
        return partition

    def ack_all(self) -> None:
        self.client.send(1, m.BasicAck(0, True))


def named(count: int) -> list[str]:
    return [f"e-{number}" for number in range(count)]


def fill(client: Client, partitions: list[str], count: int) -> None:
    for partition in partitions:
        client.feed(b"".join(publish_frames("", partition, b"%d" % number) for number in range(count)))


def active(harness: Harness, partitions: list[str], instances: list[Instance]) -> list[int]:
    """Look into the broker: return which instance has each partition."""
    found: list[int] = []
    for partition in partitions:
        serving = stream_of(harness, partition).need_groups()
        (group,) = serving.all()
        consumer = serving.active_of(group)
        assert consumer is not None
        (at,) = (at for at, each in enumerate(instances) if consumer.ledger.outbox is each.client.connection.outbox)
        found.append(at)
    return found


def committed(harness: Harness, partition: str) -> int:
    (group,) = stream_of(harness, partition).consumer_groups()
    return int(group.committed)


@rule("warren.super-stream.groups", "Each partition is served to one instance; all have as many, give or take one.")
@pytest.mark.parametrize(("count", "members"), [(1, 3), (3, 1), (3, 2), (4, 3), (8, 3), (5, 5), (3, 4)])
def test_partitions_are_spread(client: Client, harness: Harness, count: int, members: int) -> None:
    super_stream(client, count)
    names = named(count)
    fill(client, names, 2)
    instances = [Instance(harness, names) for _ in range(members)]
    assert active(harness, names, instances) == [place % members for place in range(count)]
    for instance in instances:
        instance.client.deliveries()
    fill(client, names, 1)
    for at, instance in enumerate(instances):
        got = instance.deliveries()
        assert sorted(got) == [name for place, name in enumerate(names) if place % members == at]


@rule("warren.super-stream.groups", "In whichever order they come to the partitions, the spread is as even.")
@pytest.mark.parametrize("seed", range(6))
def test_the_spread_does_not_depend_on_who_was_first(client: Client, harness: Harness, seed: int) -> None:
    super_stream(client, 6)
    names = named(6)
    instances = [Instance(harness, []) for _ in range(3)]
    joins = list(product(instances, names))
    for step in range(len(joins)):
        instance, name = joins.pop((seed * 7 + step * 5) % len(joins))
        instance.join(name)
    assert active(harness, names, instances) == [0, 1, 2, 0, 1, 2]


@rule(
    "warren.super-stream.groups",
    "Channels of one connection are instances of their own, in the order of their numbers.",
)
def test_channels_are_instances(client: Client, harness: Harness) -> None:
    super_stream(client, 4)
    names = named(4)
    fill(client, names, 1)
    other = harness.channel()
    for number in (2, 3):
        other.open(number)
        other.call(number, m.BasicQos(0, 10, False))
    for number in (3, 2):
        for name in names:
            other.consume(name, f"{number}.{name}", arguments={GROUP: "g", OFFSET: "first"}, number=number)
    other.take()
    fill(client, names, 1)
    got = [each.method.consumer_tag for each in other.deliveries()]
    assert sorted(got) == ["2.e-0", "2.e-2", "3.e-1", "3.e-3"]


@rule(
    "warren.super-stream.groups.move",
    "An instance that joins takes its share at the committed offset; nothing is passed over.",
)
def test_joining(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 4)
    old = Instance(harness, names)
    deliveries = old.client.deliveries()
    for each in deliveries:
        if offset_of(each) < 2:
            old.client.send(1, m.BasicAck(each.method.delivery_tag, False))
    new = Instance(harness, names)
    assert active(harness, names, [old, new]) == [0, 1]
    assert new.deliveries() == {"e-1": [(2, True), (3, True)]}
    fill(client, names, 1)
    assert old.deliveries() == {"e-0": [(4, False)]}
    assert new.deliveries() == {"e-1": [(4, False)]}


@rule(
    "warren.super-stream.groups.move",
    "What one that lost a partition says of it later gives it credit, and changes nothing of the group.",
)
@pytest.mark.parametrize("answer", ["ack", "ack all", "reject", "requeue", "recover"])
def test_late_answers(client: Client, harness: Harness, answer: str) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 6)
    old = Instance(harness, names, prefetch=4)
    before = [each for each in old.client.deliveries() if old.partition_of(each) == "e-1"]
    assert [offset_of(each) for each in before] == [0, 1, 2, 3]
    old.client.send(1, m.BasicAck(before[0].method.delivery_tag, False))
    assert old.deliveries() == {"e-1": [(4, False)]}
    new = Instance(harness, names, prefetch=4)
    assert new.deliveries() == {"e-1": [(1, True), (2, True), (3, True), (4, True)]}
    match answer:
        case "ack all":
            old.ack_all()
        case "recover":
            old.client.send(1, m.BasicRecover(True))
            old.client.pick(m.BasicRecoverOk)
        case _:
            for each in before[1:]:
                tag = each.method.delivery_tag
                call = m.BasicAck(tag, False) if answer == "ack" else m.BasicNack(tag, False, answer == "requeue")
                old.client.send(1, call)
    assert committed(harness, "e-1") == 1
    assert "e-1" not in old.deliveries()
    new.client.nothing()
    new.ack_all()
    assert new.deliveries() == {"e-1": [(5, False)]}
    assert committed(harness, "e-1") == 5
    new.client.hang_up()
    # It is back, with what it had before out of the way.
    assert committed(harness, "e-1") == 5
    assert old.deliveries()["e-1"] == [(5, True)]


@rule(
    "warren.super-stream.groups.move", "What was answered before the move stays answered, out of order it comes again."
)
def test_answers_out_of_order(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 4)
    old = Instance(harness, names)
    mine = [each for each in old.client.deliveries() if old.partition_of(each) == "e-1"]
    for at in (0, 2):
        old.client.send(1, m.BasicAck(mine[at].method.delivery_tag, False))
    new = Instance(harness, names)
    assert new.deliveries() == {"e-1": [(1, True), (2, True), (3, True)]}


@rule("warren.super-stream.groups.move", "When an instance goes its partitions go to the others, however it goes.")
@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_leaving(client: Client, harness: Harness, how: str, which: int) -> None:
    super_stream(client, 6)
    names = named(6)
    fill(client, names, 2)
    instances = [Instance(harness, names) for _ in range(3)]
    for instance in instances:
        for each in instance.client.deliveries():
            if offset_of(each) == 0:
                instance.client.send(1, m.BasicAck(each.method.delivery_tag, False))
    assert [committed(harness, name) for name in names] == [1] * 6
    leaver = instances.pop(which)
    if how == "cancel":
        for name in names:
            leaver.leave(name)
    elif how == "channel":
        leaver.client.call(1, m.ChannelClose(200, "", 0, 0))
    else:
        leaver.client.hang_up()
    assert active(harness, names, instances) == [0, 1, 0, 1, 0, 1]
    # Those that stayed where they were are not disturbed.
    moved = [name for at, name in enumerate(names) if at % 3 != [at for at in range(3) if at != which][at % 2]]
    got = [instance.deliveries() for instance in instances]
    assert got[0] | got[1] == {name: [(1, True)] for name in moved}
    for instance in instances:
        instance.ack_all()
    assert [committed(harness, name) for name in names] == [2] * 6


@rule(
    "warren.super-stream.groups.move", "An instance that does not consume from all partitions leaves those to others."
)
def test_partial_instances(client: Client, harness: Harness) -> None:
    super_stream(client, 3)
    names = named(3)
    whole = Instance(harness, names)
    part = Instance(harness, ["e-1"])
    assert active(harness, names, [whole, part]) == [0, 1, 0]
    whole.leave("e-1")
    part.join("e-2")
    assert active(harness, names, [whole, part]) == [0, 1, 0]
    whole.leave("e-2")
    assert active(harness, names, [whole, part]) == [0, 1, 1]


@rule("warren.super-stream.groups.move", "A partition that comes, goes or changes its place moves those behind it.")
def test_partitions_come_and_go(client: Client, harness: Harness) -> None:
    super_stream(client, 4)
    names = named(4)
    instances = [Instance(harness, names) for _ in range(2)]
    assert active(harness, names, instances) == [0, 1, 0, 1]
    unbind(client, "e-0", "0", 0)
    assert active(harness, names, instances) == [0, 0, 1, 0]  # a plain stream is left where it is
    bind(client, "e-0", "9", 9)
    assert active(harness, names, instances) == [1, 0, 1, 0]
    assert client.call(1, m.QueueDelete(0, "e-1", if_unused=False, if_empty=False, no_wait=False)) == m.QueueDeleteOk(0)
    assert active(harness, ["e-2", "e-3", "e-0"], instances) == [0, 1, 0]
    assert client.call(1, m.ExchangeDelete(0, "e", if_unused=False, no_wait=False)) == m.ExchangeDeleteOk()
    assert active(harness, ["e-2", "e-3", "e-0"], instances) == [0, 1, 0]


@rule("warren.super-stream.groups.move", "A stream that becomes a partition while it is consumed moves like one.")
def test_a_stream_becomes_a_partition(client: Client, harness: Harness) -> None:
    super_stream(client, True)
    for name in ("s", "t"):
        client.declare(name, durable=True, arguments=STREAM)
    fill(client, ["t"], 3)
    instances = [Instance(harness, ["t"]) for _ in range(2)]
    assert instances[0].deliveries() == {"t": [(0, False), (1, False), (2, False)]}
    bind(client, "t", "1", 1)
    instances[1].client.nothing()  # it is the only partition, at place 0
    bind(client, "s", "0", 0)
    assert instances[1].deliveries() == {"t": [(0, True), (1, True), (2, True)]}
    unbind(client, "s", "0", 0)
    assert instances[0].deliveries() == {"t": [(0, True), (1, True), (2, True)]}


@rule("warren.super-stream.groups", "Of a stream in two super streams the place in the one of the smaller name counts.")
def test_two_super_streams(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    super_stream(client, True, name="d")
    instances = [Instance(harness, named(2)) for _ in range(2)]
    assert active(harness, named(2), instances) == [0, 1]
    bind(client, "e-1", "0", 0, "d")
    assert active(harness, named(2), instances) == [0, 0]
    assert client.call(1, m.ExchangeDelete(0, "d", if_unused=False, no_wait=False)) == m.ExchangeDeleteOk()
    assert active(harness, named(2), instances) == [0, 1]


@rule("warren.super-stream.groups", "Groups of one super stream are independent, and so are consumers without a group.")
def test_groups_are_independent(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 1)
    Instance(harness, names)
    plain = harness.channel()
    plain.call(1, m.BasicQos(0, 10, False))
    for name in names:
        plain.consume(name, arguments={GROUP: "h", OFFSET: "first"})
        plain.consume(name, arguments={OFFSET: "first"})
    assert len(plain.deliveries()) == 4


@rule(
    "warren.super-stream.groups", "A group that is reset is served from there, by the instance that has the partition."
)
def test_resets(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 3)
    old, new = Instance(harness, names), Instance(harness, names)
    old.client.deliveries()
    new.client.deliveries()
    new.ack_all()
    assert committed(harness, "e-1") == 3
    stream_of(harness, "e-1").need_groups().reset("g", 1)
    harness.settle()
    assert new.deliveries() == {"e-1": [(1, True), (2, True)]}
    old.client.nothing()


@rule(
    "warren.super-stream.groups.move", "How far the group had come is stored with the move: a crash does not undo it."
)
def test_a_crash_after_a_move() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 4)
    old = Instance(harness, names)
    mine = [each for each in old.client.deliveries() if old.partition_of(each) == "e-1"]
    old.client.send(1, *(m.BasicAck(each.method.delivery_tag, False) for each in mine[:3]))
    harness.write()
    Instance(harness, names)
    harness.write()
    harness = harness.restart(clean=False)
    assert committed(harness, "e-1") == 3


@rule(
    "warren.super-stream.groups.move",
    "While nobody knows yet how far a group has come, nothing is served, and then in turn.",
)
def test_who_comes_early() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 3)
    instance = Instance(harness, names, prefetch=2)
    instance.client.deliveries()
    instance.ack_all()
    harness.write()
    harness = harness.restart(clean=True)
    harness.store.hold = True
    instances = [Instance(harness, names) for _ in range(2)]
    for each in instances:
        each.client.nothing()
    harness.store.hold = False
    harness.settle()
    assert [each.deliveries() for each in instances] == [{"e-0": [(2, False)]}, {"e-1": [(2, False)]}]


@rule(
    "warren.super-stream.groups.move", "Who is still looking for its beginning may lose the partition, and get it back."
)
def test_moves_while_an_offset_is_looked_for() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 2)
    fill(client, ["e-1"], 5)
    harness.write()
    harness = harness.restart(clean=True)
    harness.store.hold = True
    arguments: Table = {GROUP: "g", OFFSET: "1h"}
    clients = [harness.channel() for _ in range(2)]
    for each in clients:
        each.call(1, m.BasicQos(0, 10, False))
        each.consume("e-1", arguments=arguments)
    clients[1].hang_up()
    third = harness.channel()
    third.call(1, m.BasicQos(0, 10, False))
    third.consume("e-1", arguments=arguments)
    harness.store.hold = False
    harness.settle()
    clients[0].nothing()
    assert [offset_of(each) for each in third.deliveries()] == [0, 1, 2, 3, 4]
