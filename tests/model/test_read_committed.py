"""Random commands around queues that deliver what is committed, on a leader that is replaced again and again.

Messages go to two watched queues, to a queue that nobody consumes (the witness), and from one watched queue to another
in transactions. Commits are held for a while, as by nodes that do not acknowledge. Then they are done, or another node
takes over: it has exactly what was committed.

1. A message that a consumer has seen was committed: after every take-over the witness has it.
2. A message that was seen in the queue to which a transaction has moved it is never in the old one again.
3. A confirmed message is in its queues, or was seen there.
4. A consumer gets new messages of each priority in the order of their publishing.
5. After each command: the counts of the queue, and no message waits while a consumer could take it.

A run is played again by its seed, which it prints:

    WARREN_TEST_COMMIT_SEED=7 WARREN_TEST_COMMIT_RUNS=1
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random, SystemRandom
from typing import Final

from durable_harness import DurableHarness
from engine_harness import Client, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table

RUNS: Final = int(os.environ.get("WARREN_TEST_COMMIT_RUNS", "5"))
SEED: Final = int(os.environ.get("WARREN_TEST_COMMIT_SEED", "0"))
COMMANDS: Final = 150
WITNESS, WATCHED, SOURCE, TARGET = "witness", "watched", "source", "target"
GATED: Final = (WATCHED, SOURCE, TARGET)
QUORUM: Final[Table] = {"x-queue-type": "quorum", "x-delivery-limit": -1}
KINDS: Final[tuple[Table, ...]] = (
    QUORUM,
    {"x-read-committed": True},
    {"x-read-committed": True, "x-max-priority": 3},
    {"x-read-committed": True, "x-key-shared": True},
    {**QUORUM, "x-single-active-consumer": True},
    {"x-read-committed": True, "x-message-ttl": 3_600_000},
)


class Run:
    """Random commands under one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        self.kind = self.dice.choice(KINDS)
        self.bodies = 0
        self.takeovers = 0
        self.seen: dict[str, set[str]] = {name: set() for name in GATED}
        self.moved: set[str] = set()  # by transactions that were committed, as far as their client knows
        self.confirmed: set[str] = set()
        self.harness = DurableHarness(is_replicated=True)
        self.release()
        client = self.harness.channel()
        client.declare_exchange("both", "fanout")
        for name in GATED:
            client.declare(name, durable=True, arguments=self.kind)
        client.declare(WITNESS, durable=True)
        self._connect()

    def _connect(self) -> None:
        """Connect a publisher with confirms, one with transactions, a mover, and two consumers."""
        harness = self.harness
        self.publisher, self.transactor, self.mover = harness.channel(), harness.channel(), harness.channel()
        self.consumers = [harness.channel(), harness.channel()]
        assert self.publisher.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
        for client in (self.transactor, self.mover):
            assert client.call(1, m.TxSelect()) == m.TxSelectOk()
        self.published: list[str] = []
        self.answered = 0
        self.committing: list[str] = []
        self.moving: list[str] = []
        self.latest: dict[tuple[Client, str, int], int] = {}

    # --- commands -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        commands: list[tuple[Callable[[], None], float]] = [
            (self.publish, 20),
            (self.transact, 8),
            (self.move, 10),
            (self.consume, 5),
            (self.get, 4),
            (self.acknowledge, 6),
            (self.lose_consumer, 2),
            (self.hold, 6),
            (self.release, 4),
            (self.release_one, 4),
            (self.take_over, 1.5),
        ]
        names = [command for command, _ in commands]
        weights = [weight for _, weight in commands]
        for _ in range(COMMANDS):
            (command,) = self.dice.choices(names, weights)
            self.trace.append(command.__name__)
            command()
            self._take()
            self.harness.check()
        self.take_over()
        self._judge_all()

    def _frames(self, queue: str, name: str) -> bytes:
        properties = {"delivery_mode": 2, "priority": int(name) % 4, "expiration": str(3_600_000 + int(name))}
        if self.dice.random() < 0.7:
            del properties["expiration"]
        return publish_frames("", queue, name.encode(), properties=properties)

    def _names(self) -> list[str]:
        count = self.dice.choice((1, 1, 2, 5))
        self.bodies += count
        return [str(self.bodies - at) for at in reversed(range(count))]

    def publish(self) -> None:
        """Publish to a watched queue and its witness, in one piece: in one frame of the log."""
        for name in self._names():
            for queue in (WATCHED, WITNESS):
                self.published.append(name)
                self.publisher.connection.feed(self._frames(queue, name))
        self.harness.settle()

    def transact(self) -> None:
        if self.committing:
            return  # a commit is under way
        self.committing = self._names()
        frames = [self._frames(queue, name) for name in self.committing for queue in (WATCHED, SOURCE, WITNESS)]
        self.transactor.feed(b"".join([*frames, method_frame(1, m.TxCommit())]))

    def move(self) -> None:
        """Move the next message of a queue to another one."""
        if self.moving:
            return
        self.mover.send(1, m.BasicGet(0, SOURCE, False))
        received = self.mover.take()
        if not received:  # it waits for the commit: the answer belongs to nobody, and goes with the connection
            self.mover.hang_up()
            self.mover = self.harness.channel()
            assert self.mover.call(1, m.TxSelect()) == m.TxSelectOk()
            return
        if isinstance(received[0].method, m.BasicGetOk):
            name = body_of(received[0]).decode()
            self._see(self.mover, SOURCE, name, received[0].method.redelivered)
            self.moving = [name]
            ack = method_frame(1, m.BasicAck(received[0].method.delivery_tag, False))
            self.mover.feed(self._frames(TARGET, name) + ack + method_frame(1, m.TxCommit()))

    def consume(self) -> None:
        client = self.dice.choice(self.consumers)
        client.send(1, m.BasicQos(0, self.dice.choice((0, 1, 3)), False))
        self._take_from(client)
        queue = self.dice.choice((WATCHED, TARGET))
        self.harness.settle()
        client.send(1, m.BasicConsume(0, queue, "", False, self.dice.random() < 0.3, False, True, b"\0\0\0\0"))

    def get(self) -> None:
        if "x-single-active-consumer" in self.kind:
            return  # it is refused
        client = self.harness.channel()
        client.send(1, m.BasicGet(0, self.dice.choice((WATCHED, TARGET)), True))
        self._take_from(client)
        client.hang_up()

    def acknowledge(self) -> None:
        client = self.dice.choice(self.consumers)
        self._take_from(client)
        multiple = self.dice.random() < 0.7
        if client.connection.channels[1].ledger.unacked_count:
            if multiple:
                client.send(1, m.BasicAck(0, True))
            else:
                client.send(1, m.BasicNack(0, multiple=True, requeue=True))

    def lose_consumer(self) -> None:
        at = self.dice.randrange(len(self.consumers))
        self.consumers[at].hang_up()
        self.consumers[at] = self.harness.channel()

    def hold(self) -> None:
        self.harness.store.commits_left = 0

    def release(self) -> None:
        self.harness.store.commits_left = -1
        self.harness.settle()

    def release_one(self) -> None:
        """Do the oldest commit, and hold the next one."""
        self.harness.store.commits_left = 1
        self.harness.settle()
        self.hold()

    def take_over(self) -> None:
        """Make another node lead, which has what was committed. For a while its first commit is not done."""
        self._take()
        self.takeovers += 1
        self.harness = self.harness.restart(clean=False, is_replicated=True)
        witness = self._waiting(WITNESS)
        lost = self.seen[WATCHED] - witness
        assert not lost, f"seen and taken back: {sorted(lost)}"
        moved_back = (self.seen[TARGET] | self.moved) & self._waiting(SOURCE)
        assert not moved_back, f"seen where they were moved to, and back: {sorted(moved_back)}"
        assert self.confirmed <= witness
        early = self.harness.channel()
        for queue in GATED:
            early.send(1, m.BasicConsume(0, queue, "", False, True, False, True, b"\0\0\0\0"))
        early.nothing()
        self.release()
        self.latest = {}
        self._take_from(early)
        self.harness.check()
        early.hang_up()
        self._connect()

    # --- what came ----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        for client in self.consumers:
            self._take_from(client)
        for received in self.publisher.take():
            assert isinstance(received.method, m.BasicAck), received
            self.answered = max(self.answered, received.method.delivery_tag)
        # A name is confirmed when both of its publishes are.
        self.confirmed.update(self.published[1 : self.answered : 2])
        if self.transactor.take():
            self.confirmed.update(self.committing)
            self.committing = []
        if self.moving and self.mover.take():
            self.moved.update(self.moving)
            self.moving = []

    def _take_from(self, client: Client) -> None:
        for received in client.take():
            method = received.method
            if isinstance(method, m.BasicDeliver | m.BasicGetOk):
                self._see(client, method.routing_key, body_of(received).decode(), method.redelivered)

    def _see(self, client: Client, queue: str, name: str, redelivered: bool) -> None:
        if not redelivered and queue != TARGET:  # there names come in the order of moving
            level = int(name) % 4 if "x-max-priority" in self.kind else 0
            assert self.latest.get((client, queue, level), 0) < int(name), f"{name} comes after a later one"
            self.latest[client, queue, level] = int(name)
        self.seen[queue].add(name)

    def _waiting(self, queue: str) -> set[str]:
        """Return what a queue has."""
        return {body.decode() for body in self.harness.waiting(queue)}

    def _judge_all(self) -> None:
        """Take everything out."""
        client = self.harness.channel()
        found = {name: self._drained(client, name) for name in (*GATED, WITNESS)}
        assert self.seen[WATCHED] <= found[WITNESS]
        assert found[WATCHED] <= found[WITNESS]
        lost = self.confirmed - found[WATCHED] - self.seen[WATCHED]
        assert not lost, f"confirmed, and in no queue: {sorted(lost)}"
        assert not (self.seen[TARGET] | found[TARGET] | self.moved) & found[SOURCE]
        self.harness.check()

    def _drained(self, client: Client, queue: str) -> set[str]:
        client.consume(queue, no_ack=True)
        found = [body_of(each).decode() for each in client.deliveries()]
        assert len(found) == len(set(found)), f"{queue} has a message twice"
        return set(found)


def test_what_was_seen_is_never_taken_back() -> None:
    seed = SEED or SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    for number in range(RUNS):
        run = Run(seed + number)
        try:
            run.run()
        except BaseException:
            print(run.kind, *run.trace[-60:], sep="\n")
            print(f"WARREN_TEST_COMMIT_SEED={seed + number} WARREN_TEST_COMMIT_RUNS=1")
            raise
