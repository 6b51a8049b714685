"""A group over the partitions of a super stream against lists: instances that come, answer, go and die, and the broker.

Every delivery is compared, so no message is skipped, and none is repeated without need. After each change the model
computes again, for each partition, which instance is served, and the offset that the group has committed: the oldest
message that this instance has not answered. Later answers of others change nothing.

Meanwhile partitions are unbound and bound again, which moves the partitions after them. An unbound one is a plain
stream.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, body_of, exchange_declare, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.exchanges.murmur3 import murmur3
from warren.streams.groups import COMMIT_MS, GROUP
from warren.streams.stream import Stream

SEED: Final = int(os.environ.get("WARREN_TEST_SUPER_STREAM_SEED", "1"))
LIVES: Final = int(os.environ.get("WARREN_TEST_SUPER_STREAM_LIVES", "12"))
STEPS: Final = 120
INSTANCES_MAX: Final = 5
SUPER: Final = "x-super-stream"


@dataclass
class Sent:
    """A message at an instance: to which consumer, of which partition and offset, and how often that had moved."""

    tag: str
    partition: int
    offset: int
    moves: int


@dataclass(eq=False)
class Instance:
    """A consumer of each of some partitions, on a connection of its own. `out` is by delivery tag."""

    client: Client
    serial: int
    prefetch: int
    tags: dict[int, str] = field(default_factory=dict)
    out: dict[int, Sent] = field(default_factory=dict)

    def out_of(self, partition: int) -> int:
        return sum(sent.tag == self.tags[partition] for sent in self.out.values())


@dataclass
class Partition:
    """The expected state of the group in one partition. `history`: see `test_stream_groups`."""

    number: int
    bound: bool = True
    bodies: list[bytes] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)  # by the instance that was served
    jumped: bool = False  # an operator has moved the group further ahead
    committed: int = -1
    members: list[Instance] = field(default_factory=list)  # in the order in which they came
    served: Instance | None = None
    moves: int = 0
    following: int = 0
    unanswered: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    history: list[tuple[int, int]] = field(default_factory=list)
    certain: bool = False

    @property
    def name(self) -> str:
        return f"e-{self.number}"

    def begin(self) -> None:
        """End the validity of outstanding deliveries."""
        self.moves += 1
        self.unanswered = set()
        self.again = []
        self.following = max(self.committed, 0)

    def takes(self, room: int) -> list[tuple[int, bool]]:
        """Return what the instance that is served gets now, and whether it is flagged redelivered."""
        self.again.sort()
        got = [(offset, True) for offset in self.again[:room]]
        self.again = self.again[room:]
        while len(got) < room and self.following < len(self.bodies):
            got.append((self.following, self.following in self.sent))
            self.following += 1
        self.sent |= {offset for offset, _ in got}
        self.unanswered |= {offset for offset, _ in got}
        return got


class Life:
    """A broker, the instances and the model, under one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.crashes = self.moved = self.late = self.serial = self.published = 0
        self.harness = DurableHarness()
        self.publisher = self.publishing()
        count = self.random.randint(2, 5)
        declare = exchange_declare("e", SUPER, durable=True, arguments={SUPER: count})
        assert self.publisher.call(1, declare) == m.ExchangeDeclareOk()
        self.partitions = [Partition(number) for number in range(count)]
        self.instances: list[Instance] = []

    def publishing(self) -> Client:
        client = self.harness.channel()
        client.call(1, m.ConfirmSelect(False))
        return client

    def run(self) -> None:
        for _ in range(STEPS):
            act = self.random.choice(
                [self.publish] * 4
                + [self.join] * 3
                + [self.answer] * 10
                + [self.leave, self.leave_one, self.reset, self.rebind_any, self.write, self.restart]
                + [self.pass_time] * 3
            )
            self.trace.append(act.__name__)
            act()
            self.check()
        self.finish()

    # --- the model ------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return int(self.harness.broker.log.now_ms)

    def stored_by(self, partition: Partition, time_ms: int) -> None:
        partition.history.append((time_ms, partition.committed))

    def elect(self) -> None:
        """Assign each partition to the consumer that it has to serve."""
        bound = [partition for partition in self.partitions if partition.bound]
        bound.sort(key=lambda partition: partition.number)
        for partition in self.partitions:
            chosen = partition.served
            if chosen not in partition.members:
                chosen = partition.members[0] if partition.members else None
            if partition.bound and partition.members:
                place = bound.index(partition)
                members = sorted(partition.members, key=lambda each: each.serial)
                chosen = members[place % len(members)]
            if chosen is partition.served:
                continue
            self.moved += partition.served is not None and chosen is not None
            if partition.served is not None:
                self.stored_by(partition, self.now_ms)
            partition.served = chosen
            if chosen is not None:
                partition.begin()

    # --- what happens ---------------------------------------------------------------------------------------------

    def publish(self) -> None:
        frames = b""
        bound = {str(partition.number): partition for partition in self.partitions if partition.bound}
        for _ in range(self.random.choice([1, 3, 20])):
            key = str(self.random.randrange(1000))
            body = b"%d" % self.published
            self.published += 1
            frames += publish_frames("e", key, body)
            target = bound.get(str(murmur3(key.encode(), 104729) % len(bound))) if bound else None
            if target is not None:
                target.bodies.append(body)
        self.publisher.feed(frames)
        self.publisher.take()

    def join(self) -> None:
        """Make an instance consume from some partitions that it does not consume from yet, or from all."""
        instance = self.random.choice(self.instances) if self.instances else None
        if instance is None or len(self.instances) < INSTANCES_MAX:
            self.serial += 1
            instance = Instance(self.harness.channel(), self.serial, self.random.choice([1, 3, 10, 1000]))
            instance.client.call(1, m.BasicQos(0, instance.prefetch, False))
            self.instances.append(instance)
        missing = [partition for partition in self.partitions if partition.number not in instance.tags]
        self.random.shuffle(missing)
        arguments: Table = {GROUP: "g", "x-stream-offset": "first"}
        for partition in missing[: self.random.choice([1, 99, 99])]:
            instance.tags[partition.number] = instance.client.consume(partition.name, arguments=arguments)
            partition.members.append(instance)
            self.elect()
            self.follow()

    def answer(self) -> None:
        instance = self.random.choice(self.instances) if self.instances else None
        if instance is None or not instance.out:
            return
        tag = self.random.choice(list(instance.out))
        multiple, requeue = self.random.random() < 0.3, False
        call: m.BasicAck | m.BasicNack = m.BasicAck(tag, multiple)
        if self.random.random() < 0.4:
            requeue = self.random.random() < 0.5
            call = m.BasicNack(tag, multiple, requeue)
        for each in [each for each in instance.out if (each <= tag if multiple else each == tag)]:
            self.answered(instance, instance.out.pop(each), requeue)
        instance.client.send(1, call)

    def answered(self, instance: Instance, sent: Sent, requeue: bool) -> None:
        partition = self.partitions[sent.partition]
        if partition.served is not instance or sent.moves != partition.moves:
            self.late += 1
            return
        partition.unanswered.remove(sent.offset)
        if requeue:
            partition.again.append(sent.offset)
        else:
            partition.answered.add(sent.offset)

    def leave(self) -> None:
        if not self.instances:
            return
        instance = self.random.choice(self.instances)
        if self.random.random() < 0.3:
            for number in list(instance.tags):
                self.cancel(instance, number)
        self.instances.remove(instance)
        for number in instance.tags:
            self.gone(instance, self.partitions[number])
        instance.client.hang_up()
        self.follow()

    def leave_one(self) -> None:
        instance = self.random.choice(self.instances) if self.instances else None
        if instance is not None and instance.tags:
            self.cancel(instance, self.random.choice(list(instance.tags)))

    def cancel(self, instance: Instance, number: int) -> None:
        instance.client.send(1, m.BasicCancel(instance.tags[number], False))
        assert instance.client.expect(m.BasicCancelOk).consumer_tag == instance.tags.pop(number)
        self.gone(instance, self.partitions[number])
        self.follow()

    def gone(self, instance: Instance, partition: Partition) -> None:
        partition.members.remove(instance)
        self.stored_by(partition, self.now_ms)
        self.elect()

    def reset(self) -> None:
        partition = self.random.choice(self.partitions)
        offset = self.random.randint(0, len(partition.bodies))
        self.stream(partition).need_groups().reset("g", offset)
        self.harness.settle()
        partition.jumped |= offset > partition.committed
        partition.committed = offset
        self.stored_by(partition, self.now_ms)
        partition.begin()

    def rebind_any(self) -> None:
        self.rebind(self.random.choice(self.partitions))

    def rebind(self, partition: Partition) -> None:
        """Take a partition out, or put it back in its place."""
        arguments = encode_table({"x-stream-partition-order": partition.number})
        key = str(partition.number)
        if partition.bound:
            call = m.QueueUnbind(0, partition.name, "e", key, arguments)
            assert self.publisher.call(1, call) == m.QueueUnbindOk()
        else:
            bind = m.QueueBind(0, partition.name, "e", key, False, arguments)
            assert self.publisher.call(1, bind) == m.QueueBindOk()
        partition.bound = not partition.bound
        self.elect()

    def pass_time(self) -> None:
        self.harness.pass_time(self.random.choice([0.1, 0.4, 0.5, 1]))

    def write(self) -> None:
        self.harness.write()
        self.harness.broker.log.check_invariants()
        for partition in self.partitions:
            stored = [at for at, (time_ms, _) in enumerate(partition.history) if time_ms <= self.now_ms]
            if stored:
                del partition.history[: stored[-1]]
                partition.certain = True

    def restart(self) -> None:
        clean = self.random.random() < 0.4
        self.crashes += not clean
        if clean:
            while self.instances:
                self.leave()
        self.instances = []
        self.harness = self.harness.restart(clean=clean)
        self.publisher = self.publishing()
        for at, partition in enumerate(self.partitions):
            stream = self.stream(partition)
            assert stream.next_offset() == len(partition.bodies)
            offset = next((int(group.committed) for group in stream.consumer_groups()), -1)
            possible = {partition.committed} if clean else {committed for _, committed in partition.history}
            if not clean and not partition.certain:
                possible.add(-1)
            assert offset in possible, (partition.name, possible)
            anew = Partition(at, partition.bound, partition.bodies, partition.answered, partition.jumped, offset)
            if offset >= 0:
                self.stored_by(anew, 0)
                anew.certain = True
            self.partitions[at] = anew

    def finish(self) -> None:
        """Answer everything that is left."""
        while self.instances:
            self.leave()
        for partition in self.partitions:
            if not partition.bound:
                self.rebind(partition)
        while not all(partition.members for partition in self.partitions):
            self.join()
        self.check()
        while any(instance.out for instance in self.instances):
            for instance in self.instances:
                for sent in instance.out.values():
                    self.answered(instance, sent, False)
                instance.out.clear()
                instance.client.send(1, m.BasicAck(0, True))
            self.check()
        for partition in self.partitions:
            assert partition.committed == len(partition.bodies)
            # Messages that an operator has jumped over may never have been sent.
            assert partition.jumped or partition.answered == set(range(len(partition.bodies)))

    # --- judging --------------------------------------------------------------------------------------------------

    def stream(self, partition: Partition) -> Stream:
        queue = self.harness.queue(partition.name)
        assert isinstance(queue, Stream)
        return queue

    def check(self) -> None:
        self.harness.check()
        self.follow()
        for partition in self.partitions:
            found = [int(group.committed) for group in self.stream(partition).consumer_groups()]
            assert found == ([partition.committed] if partition.committed >= 0 else []), partition.name
            self.check_served(partition)
        whole = [each for each in self.instances if len(each.tags) == len(self.partitions)]
        if len(whole) == len(self.instances) > 0 and all(partition.bound for partition in self.partitions):
            shares = Counter(partition.served.serial for partition in self.partitions if partition.served is not None)
            counts = [shares[each.serial] for each in self.instances]
            assert sum(counts) == len(self.partitions) and max(counts) - min(counts) <= 1

    def follow(self) -> None:
        """Take what came, which is what had to come."""
        self.compare()
        self.note()

    def check_served(self, partition: Partition) -> None:
        groups = self.stream(partition).need_groups()
        for group in groups.all():
            active = groups.active_of(group)
            assert (active is None) == (partition.served is None)
            if active is not None and partition.served is not None:
                assert active.tag == partition.served.tags[partition.number]

    def note(self) -> None:
        """Reckon what the group has committed."""
        for partition in self.partitions:
            if partition.served is None:
                continue
            committed = min([*partition.unanswered, *partition.again], default=partition.following)
            if committed != partition.committed:
                new = partition.committed < 0
                partition.committed = committed
                self.stored_by(partition, self.now_ms + (0 if new else COMMIT_MS))

    def compare(self) -> None:
        for instance in self.instances:
            got: dict[str, list[tuple[int, bool]]] = {}
            for each in instance.client.deliveries():
                method = each.method
                number = next(number for number, tag in instance.tags.items() if tag == method.consumer_tag)
                partition = self.partitions[number]
                offset = partition.bodies.index(body_of(each))
                got.setdefault(partition.name, []).append((offset, method.redelivered))
                instance.out[method.delivery_tag] = Sent(method.consumer_tag, number, offset, partition.moves)
            expected: dict[str, list[tuple[int, bool]]] = {}
            for partition in self.partitions:
                if partition.served is instance:
                    room = instance.prefetch - instance.out_of(partition.number) + len(got.get(partition.name, []))
                    expected[partition.name] = partition.takes(room)
            assert got == {name: taken for name, taken in expected.items() if taken}


@pytest.mark.timeout(900 + 10 * LIVES)
@pytest.mark.parametrize("group", range(4))
def test_each_partition_is_served_to_one_instance_in_order_and_nothing_is_passed_over(group: int) -> None:
    crashes = moved = late = 0
    for seed in range(SEED * 100_000 + group * LIVES, SEED * 100_000 + (group + 1) * LIVES):
        life = Life(seed)
        try:
            life.run()
        except Exception:
            print(f"seed {seed}, after {' '.join(life.trace)}")
            raise
        crashes += life.crashes
        moved += life.moved
        late += life.late
    print(f"{crashes} crashes, {moved} moves, {late} answers that came too late")
    assert crashes > LIVES and moved > 5 * LIVES and late > LIVES
