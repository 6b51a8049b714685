"""Random consumers that share channels and connections: a consumer does not wait while another one has two turns.

A consumer waits when its queue has messages, it has room of its own, and only what it shares is missing: room in its
channel, or in the outbox of its connection. From one rest of the broker to the next, until it gets a message:

1. It does not wait while its channel and its outbox have room.
2. For room in its channel: another consumer that this limits gets at most one message, when the outbox is never full.
3. For the outbox: no other consumer of the connection gets more than two turns of `RUN_MAX` messages.

The test reads deliveries from the outboxes, in the order in which they were written; peers take them when a command
says so.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest
from engine_harness import Client, Harness, basic_consume, publish_frames, split_frames

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, method_frame
from warren.queues.base_queue import BaseQueue
from warren.queues.turns import RUN_MAX
from warren.vhosts.metadata import PermissionPut, VhostPut

RUNS = int(os.environ.get("WARREN_TEST_FAIRNESS_RUNS", "40"))
SEED = int(os.environ.get("WARREN_TEST_FAIRNESS_SEED", "0")) or random.SystemRandom().getrandbits(32)
COMMANDS = 300
VHOSTS = ("/", "other")


@dataclass(eq=False)
class Channel:
    connection: Connection
    number: int
    limit: int = 0  # of all its consumers together, 0: none
    tags: int = 0
    unacked: dict[int, Consumer] = field(default_factory=dict)

    def has_room(self) -> bool:
        return self.limit == 0 or len(self.unacked) < self.limit


@dataclass(eq=False)
class Connection:
    client: Client
    vhost: str
    channels: list[Channel] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    unsent: int = 0

    def is_full(self) -> bool:
        return not self.client.connection.outbox.writable


@dataclass(eq=False)
class Consumer:
    channel: Channel
    queue: BaseQueue
    no_ack: bool
    prefetch: int
    waits: bool = False
    is_calm: bool = True  # the outbox was never full while it waited
    passed_by: dict[Consumer, int] = field(default_factory=dict)

    def may_wait(self) -> bool:
        out = sum(each is self for each in self.channel.unacked.values())
        return self.queue.ready_count > 0 and (self.no_ack or self.prefetch == 0 or out < self.prefetch)

    def has_shared_room(self) -> bool:
        return not self.channel.connection.is_full() and (self.no_ack or self.channel.has_room())

    def is_limited_with(self, other: Consumer) -> bool:
        return other.channel is self.channel and not self.no_ack and not other.no_ack


class Run:
    """One broker with random connections, and what came to them."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.harness = Harness(outbox_soft_bytes=choices.choice([500, 2000, 20000]))
        broker = self.harness.broker
        broker.administer(VhostPut("other"))
        broker.administer(PermissionPut("guest", "other", ".*", ".*", ".*"))
        self.publishers: dict[str, Client] = {}
        self.queues: list[tuple[str, str]] = []
        for vhost in VHOSTS:
            self.publishers[vhost] = self.harness.client(vhost=vhost)
            self.publishers[vhost].open(1)
            for number in range(choices.randint(2, 4)):
                self.publishers[vhost].declare(f"q{number}")
                self.queues.append((vhost, f"q{number}"))
        self.connections = [self._connection() for _ in range(choices.randint(1, 3))]
        for connection in self.connections:
            for channel in connection.channels:
                self._consumers(connection, channel)
        self.rest()

    def _connection(self) -> Connection:
        vhost = self.choices.choice(VHOSTS)
        connection = Connection(self.harness.client(vhost=vhost), vhost)
        for number in range(1, self.choices.randint(1, 3) + 1):
            connection.client.open(number)
            channel = Channel(connection, number, self.choices.choice([0, 0, 1, 2, 5]))
            connection.client.call(number, m.BasicQos(0, channel.limit, True))
            connection.channels.append(channel)
        connection.client.peer.stalled = True
        return connection

    def _consumers(self, connection: Connection, channel: Channel) -> None:
        names = [name for vhost, name in self.queues if vhost == connection.vhost]
        for name in self.choices.sample(names, self.choices.randint(1, len(names))):
            tag = f"{channel.number}-{name}"
            queue = self.harness.broker.vhosts[connection.vhost].queues[name]
            consumer = Consumer(channel, queue, self.choices.random() < 0.3, self.choices.choice([0, 0, 1, 3]))
            connection.consumers[tag] = consumer
            calls = (m.BasicQos(0, consumer.prefetch, False), basic_consume(name, tag, no_ack=consumer.no_ack))
            connection.client.connection.feed(b"".join(method_frame(channel.number, call) for call in calls))

    # --- commands -----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        vhost, name = self.choices.choice(self.queues)
        body = b"m" * self.choices.choice([1, 1, 100, 700])
        self.publishers[vhost].connection.feed(publish_frames("", name, body) * self.choices.choice([1, 5, 60]))

    def ack(self) -> None:
        channel = self.choices.choice(self.choices.choice(self.connections).channels)
        if channel.unacked:
            tag = self.choices.choice(list(channel.unacked))
            multiple = self.choices.random() < 0.3
            for each in [each for each in channel.unacked if each == tag or (multiple and each < tag)]:
                del channel.unacked[each]
            channel.connection.client.connection.feed(method_frame(channel.number, m.BasicAck(tag, multiple)))

    def read(self) -> None:
        connection = self.choices.choice(self.connections)
        size, connection.unsent = connection.unsent, 0
        if connection.client.connection.outbox.sent(size):
            connection.client.connection.drained()

    def limit(self) -> None:
        channel = self.choices.choice(self.choices.choice(self.connections).channels)
        channel.limit = self.choices.choice([0, 1, 2, 5])
        channel.connection.client.connection.feed(method_frame(channel.number, m.BasicQos(0, channel.limit, True)))

    # --- what comes ---------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Run the broker until it rests, and check which consumers got messages and which wait."""
        self.harness.settle()
        for connection in self.connections:
            data = b"".join(connection.client.connection.outbox.take())
            connection.unsent += len(data)
            for kind, number, payload in split_frames(data):
                method = decode_method(payload, 0, len(payload)) if kind == 1 else None
                if isinstance(method, m.BasicDeliver):
                    self._came(connection.consumers[method.consumer_tag], number, method.delivery_tag)
        for connection in self.connections:
            for consumer in connection.consumers.values():
                self._look_at(consumer)

    def _came(self, consumer: Consumer, number: int, tag: int) -> None:
        channel = consumer.channel
        assert channel.number == number
        if not consumer.no_ack:
            channel.unacked[tag] = consumer
        consumer.waits = False
        for other in channel.connection.consumers.values():
            if other.waits:
                other.passed_by[consumer] = other.passed_by.get(consumer, 0) + 1

    def _look_at(self, consumer: Consumer) -> None:
        connection = consumer.channel.connection
        if not consumer.may_wait():
            # Its messages may have gone to other consumers of its queue when its turn came.
            consumer.waits = False
            return
        if consumer.waits:
            consumer.is_calm = consumer.is_calm and not connection.is_full()
            for other, count in consumer.passed_by.items():
                limited = consumer.is_limited_with(other)
                most = 1 if limited and consumer.is_calm else 2 * RUN_MAX
                assert count <= most or not (limited or self._waits_for_outbox(consumer)), f"passed by {count} times"
        assert not consumer.has_shared_room(), "it waits although there is room"
        if not consumer.waits:
            consumer.waits = True
            consumer.is_calm = not connection.is_full()
            consumer.passed_by = {}
        if not self._waits_for_outbox(consumer):
            # Consumers that do not need the room that it waits for go past it.
            consumer.passed_by = {
                other: count for other, count in consumer.passed_by.items() if consumer.is_limited_with(other)
            }

    def _waits_for_outbox(self, consumer: Consumer) -> bool:
        return consumer.no_ack or consumer.channel.has_room()


@pytest.mark.parametrize("run", range(RUNS))
def test_nobody_waits_while_another_one_has_two_turns(run: int) -> None:
    seed = SEED + run
    print(f"seed {seed}: WARREN_TEST_FAIRNESS_SEED={seed} WARREN_TEST_FAIRNESS_RUNS=1")
    choices = random.Random(seed)
    broker = Run(choices)
    weights = {broker.publish: 3, broker.ack: 6, broker.read: 4, broker.limit: 0.2}
    for command in choices.choices(list(weights), list(weights.values()), k=COMMANDS):
        command()
        broker.rest()
    broker.harness.check()
