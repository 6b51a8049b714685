"""Consumer groups of one stream against lists: random consumers, answers and resets, and a broker that dies.

All publishes are confirmed, and deliveries are compared message by message: so a message is never skipped, and never
repeated without need. After a crash a group continues from an offset that it had committed, at or after the last one
that was certainly written. Only there the model follows the broker.

Group ``third`` has a filter, which two messages in three do not pass.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Received, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.streams.groups import COMMIT_MS, GROUP
from warren.streams.stream import Stream

SEED: Final = int(os.environ.get("WARREN_TEST_GROUP_SEED", "1"))
LIVES: Final = int(os.environ.get("WARREN_TEST_GROUP_LIVES", "15"))
STEPS: Final = 120
NAMES: Final = ("first", "next", "third")
FILTER: Final[Table] = {"x-stream-filter": "third"}
PASSING: Final = encode_table({"x-stream-filter-value": "third"})
OTHERS: Final = encode_table({"x-stream-filter-value": "another"})


@dataclass
class Member:
    """A consumer on a connection of its own. `out` is by delivery tag."""

    client: Client
    tag: str
    prefetch: int
    out: dict[int, int] = field(default_factory=dict)


@dataclass
class ModelGroup:
    """The expected state of a group. `history` is when each offset that it committed is stored at the latest, the first
    certainly if `certain`."""

    name: str
    committed: int = -1
    members: list[Member] = field(default_factory=list)
    following: int = 0
    unanswered: dict[int, int] = field(default_factory=dict)  # offsets, by delivery tag, since the last reset
    again: list[int] = field(default_factory=list)  # requeued, and not sent again yet
    sent: set[int] = field(default_factory=set)  # in this life
    history: list[tuple[int, int]] = field(default_factory=list)
    certain: bool = False

    def passes(self, offset: int) -> bool:
        return self.name != "third" or offset % 3 == 0


class Life:
    """A broker, its clients and the model, under one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.crashes = self.again = 0
        self.end = 0
        self.harness = DurableHarness()
        self.harness.broker.log.sealed.chunk_messages = 7
        self.publisher = self.publishing()
        self.publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"})
        self.groups = {name: ModelGroup(name) for name in NAMES}

    def publishing(self) -> Client:
        client = self.harness.channel()
        client.call(1, m.ConfirmSelect(False))
        return client

    def run(self) -> None:
        for _ in range(STEPS):
            act = self.random.choice(
                [self.publish] * 4
                + [self.join] * 2
                + [self.answer] * 8
                + [self.leave, self.reset, self.forget, self.write, self.restart]
                + [self.pass_time] * 3
            )
            self.trace.append(act.__name__)
            act()
            self.check()

    # --- the model ------------------------------------------------------------------------------------------------

    def stored_by(self, group: ModelGroup, time_ms: int) -> None:
        group.history.append((time_ms, group.committed))

    def moved(self, group: ModelGroup) -> None:
        committed = min([*group.unanswered.values(), *group.again], default=group.following)
        if committed != group.committed:
            new = group.committed < 0
            group.committed = committed
            self.stored_by(group, self.now_ms + (0 if new else COMMIT_MS))

    def activate(self, group: ModelGroup) -> None:
        """Serve the first member, which was not served yet."""
        group.unanswered = {}
        group.again = []
        if group.committed >= 0:
            group.following = group.committed
        else:
            group.following = self.end if group.name == "next" else 0

    def expected(self, group: ModelGroup) -> list[tuple[int, bool]]:
        """Return what the member that is served gets now, and whether it is flagged redelivered."""
        member = group.members[0]
        room = member.prefetch - len(member.out)
        expected = [(offset, True) for offset in sorted(group.again)[:room]]
        while not group.again[room:] and group.following < self.end and len(expected) < room:
            if group.passes(group.following):
                expected.append((group.following, group.following in group.sent))
            group.following += 1
        group.again = sorted(group.again)[room:]
        return expected

    # --- what happens ---------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return int(self.harness.broker.log.now_ms)

    def publish(self) -> None:
        frames = b""
        for _ in range(self.random.choice([1, 1, 3, 20])):
            headers = PASSING if self.end % 3 == 0 else OTHERS
            frames += publish_frames("", "s", b"%d" % self.end, properties={"headers": headers})
            self.end += 1
        self.publisher.feed(frames)
        self.publisher.take()

    def join(self) -> None:
        group = self.groups[self.random.choice(NAMES)]
        if len(group.members) == 3:
            return
        client = self.harness.channel()
        prefetch = self.random.choice([1, 3, 10, 1000])
        client.call(1, m.BasicQos(0, prefetch, False))
        arguments: Table = {GROUP: group.name, "x-stream-offset": "next" if group.name == "next" else "first"}
        if group.name == "third":
            arguments |= FILTER
        group.members.append(Member(client, client.consume("s", arguments=arguments), prefetch))
        if len(group.members) == 1:
            self.activate(group)

    def answer(self) -> None:
        group = self.groups[self.random.choice(NAMES)]
        member = group.members[0] if group.members else None
        if member is None or not member.out:
            return
        tag = self.random.choice(list(member.out))
        multiple, requeue = self.random.random() < 0.2, self.random.random() < 0.2
        call: m.BasicAck | m.BasicNack | m.BasicReject
        match self.random.randrange(3):
            case 0:
                call, requeue = m.BasicAck(tag, multiple), False
            case 1:
                call = m.BasicNack(tag, multiple, requeue)
            case _:
                call, multiple = m.BasicReject(tag, requeue), False
        for each in [each for each in member.out if (each <= tag if multiple else each == tag)]:
            offset = member.out.pop(each)
            if group.unanswered.pop(each, None) is not None and requeue:
                group.again.append(offset)
        member.client.send(1, call)

    def leave(self) -> None:
        group = self.groups[self.random.choice(NAMES)]
        if not group.members:
            return
        member = self.random.choice(group.members)
        served = member is group.members[0]
        group.members.remove(member)
        self.stored_by(group, self.now_ms)
        if self.random.random() < 0.5:
            member.client.send(1, m.BasicCancel(member.tag, False))
            assert member.client.expect(m.BasicCancelOk)
        member.client.hang_up()
        if group.members and served:
            self.activate(group)

    def reset(self) -> None:
        group = self.groups[self.random.choice(NAMES)]
        offset = self.random.randint(0, self.end)
        self.stream.need_groups().reset(group.name, offset)
        self.harness.settle()
        group.committed = offset
        self.stored_by(group, self.now_ms)
        if group.members:
            self.activate(group)

    def forget(self) -> None:
        name = self.random.choice(NAMES)
        group = self.groups[name]
        if group.committed >= 0 and not group.members:
            (found,) = (each for each in self.stream.consumer_groups() if each.name == name)
            self.stream.need_groups().forget(found)
            self.groups[name] = ModelGroup(name)
            self.write()  # a crash would bring it back

    def pass_time(self) -> None:
        self.harness.pass_time(self.random.choice([0.1, 0.4, 0.5, 1]))

    def write(self) -> None:
        self.harness.write()
        self.harness.broker.log.check_invariants()
        for group in self.groups.values():
            stored = [at for at, (time_ms, _) in enumerate(group.history) if time_ms <= self.now_ms]
            if stored:
                del group.history[: stored[-1]]
                group.certain = True

    def restart(self) -> None:
        clean = self.random.random() < 0.4
        self.crashes += not clean
        if clean:
            for group in self.groups.values():
                for member in reversed(group.members):  # nobody takes over
                    member.client.hang_up()
        self.harness = self.harness.restart(clean=clean)
        self.publisher = self.publishing()
        assert self.stream.next_offset() == self.end
        found = {group.name: int(group.committed) for group in self.stream.consumer_groups()}
        for name, group in self.groups.items():
            offset = found.get(name, -1)
            possible = {group.committed} if clean else {committed for _, committed in group.history}
            if not clean and not group.certain:
                possible.add(-1)
            assert offset in possible, (name, possible)
            self.again += offset < group.committed
            self.groups[name] = ModelGroup(name, offset)
            if offset >= 0:
                self.stored_by(self.groups[name], 0)
                self.groups[name].certain = True

    # --- judging --------------------------------------------------------------------------------------------------

    @property
    def stream(self) -> Stream:
        queue = self.harness.queue("s")
        assert isinstance(queue, Stream)
        return queue

    def check(self) -> None:
        self.harness.check()
        for group in self.groups.values():
            for waiting in group.members[1:]:
                waiting.client.nothing()
            if group.members:
                member = group.members[0]
                self.compare(group, member, member.client.deliveries())
                self.moved(group)
        found = {group.name: int(group.committed) for group in self.stream.consumer_groups()}
        assert found == {name: group.committed for name, group in self.groups.items() if group.committed >= 0}

    def compare(self, group: ModelGroup, member: Member, deliveries: list[Received]) -> None:
        expected = self.expected(group)
        assert [(int(body_of(each)), each.method.redelivered) for each in deliveries] == expected
        for each, (offset, _) in zip(deliveries, expected, strict=True):
            member.out[each.method.delivery_tag] = offset
            group.unanswered[each.method.delivery_tag] = offset
            group.sent.add(offset)


@pytest.mark.timeout(900 + 5 * LIVES)
@pytest.mark.parametrize("group", range(4))
def test_a_group_gets_everything_in_order_and_again_only_what_it_had_not_committed(group: int) -> None:
    crashes = again = 0
    for seed in range(SEED * 100_000 + group * LIVES, SEED * 100_000 + (group + 1) * LIVES):
        life = Life(seed)
        try:
            life.run()
        except Exception:
            print(f"seed {seed}, after {' '.join(life.trace)}")
            raise
        crashes += life.crashes
        again += life.again
    print(f"{crashes} crashes, after {again} of them a group went back")
    assert crashes > LIVES and again > 0
