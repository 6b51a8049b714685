"""Queues that wait for commits keep their invariants, whatever their dead letters, limits and policies do meanwhile."""

from __future__ import annotations

import json
import os
from random import Random
from typing import Final

from durable_harness import DurableHarness
from engine_harness import publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE, Table
from warren.vhosts.metadata import PolicyDelete, PolicyPut

RUNS: Final = int(os.environ.get("WARREN_TEST_GATE_RUNS", "40"))
SEED: Final = int(os.environ.get("WARREN_TEST_GATE_SEED", "60"))
COMMANDS: Final = 80
NAMES: Final = ("a", "b", "c")


class Run:
    """Three queues whose dead letters go to each other, and three clients, under one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.harness = DurableHarness()
        self.clients = [self.harness.channel() for _ in range(3)]
        self.bodies = self.tags = 0
        self.has_policy = False
        for name in NAMES:
            self.clients[0].declare(name, durable=True, arguments=self._arguments())

    def _arguments(self) -> Table:
        dice = self.dice
        arguments: Table = {}
        if dice.random() < 0.6:
            arguments["x-read-committed"] = dice.random() < 0.85
        if dice.random() < 0.7:
            arguments["x-max-length"] = dice.choice((0, 1, 1, 2, 5))
        if dice.random() < 0.3:
            arguments["x-overflow"] = dice.choice(("drop-head", "reject-publish"))
        if dice.random() < 0.8:
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dice.choice(NAMES)}
        if dice.random() < 0.2:
            arguments["x-message-ttl"] = dice.choice((0, 5, 100))
        kinds: tuple[Table, ...] = (
            {},
            {"x-max-priority": 3},
            {"x-key-shared": True},
            {"x-single-active-consumer": True},
            {"x-queue-type": "quorum"},
        )
        return arguments | dice.choices(kinds, (5, 2, 1, 1, 2))[0]

    def live(self) -> None:
        commands = [
            (self.publish, 45),
            (self.hold, 10),
            (self.get, 10),
            (self.policy, 11),
            (self.consume, 6),
            (self.pass_time, 6),
            (self.recover, 4),
            (self.purge, 3),
        ]
        for _ in range(COMMANDS):
            (command,) = self.dice.choices([each for each, _ in commands], [weight for _, weight in commands])
            command()
            self.check()
        self.harness.hold_commits = False
        self.check()
        assert not any(queue.ready.uncommitted_count for queue in self.harness.broker.vhosts["/"].queues.values())

    def check(self) -> None:
        self.harness.settle()
        for queue in self.harness.broker.vhosts["/"].queues.values():
            queue.check_invariants()

    def publish(self) -> None:
        dice, queue = self.dice, self.dice.choice(NAMES)
        frames = []
        for _ in range(dice.choice((1, 1, 2, 4, 8))):
            self.bodies += 1
            properties: dict[str, object] = {"delivery_mode": dice.choice((1, 2, 2))}
            if dice.random() < 0.3:
                properties["priority"] = dice.randrange(4)
            if dice.random() < 0.1:
                properties["expiration"] = "3"
            frames.append(publish_frames("", queue, str(self.bodies).encode(), properties=properties))
        dice.choice(self.clients).feed(b"".join(frames))

    def hold(self) -> None:
        self.harness.hold_commits = not self.harness.hold_commits

    def get(self) -> None:
        self.dice.choice(self.clients).send(1, m.BasicGet(0, self.dice.choice(NAMES), self.dice.random() < 0.5))

    def policy(self) -> None:
        dice = self.dice
        if self.has_policy and dice.random() < 0.3:
            self.has_policy = False
            self.harness.broker.administer(PolicyDelete("/", "p"))
            return
        self.has_policy = True
        definition: dict[str, object] = {"read-committed": dice.random() < 0.5}
        if dice.random() < 0.5:
            definition["max-length"] = dice.choice((0, 1, 3))
        if dice.random() < 0.6:
            definition |= {"dead-letter-exchange": "", "dead-letter-routing-key": dice.choice(NAMES)}
        pattern = f"^[{dice.choice(('a', 'ab', 'abc', 'c'))}]$"
        self.harness.broker.administer(PolicyPut("/", "p", pattern, "queues", 0, json.dumps(definition)))

    def consume(self) -> None:
        self.tags += 1
        no_ack = self.dice.random() < 0.5
        consume = m.BasicConsume(0, self.dice.choice(NAMES), f"t{self.tags}", False, no_ack, False, True, EMPTY_TABLE)
        self.dice.choice(self.clients).send(1, consume)

    def pass_time(self) -> None:
        self.harness.advance(self.dice.choice((0.002, 0.05, 1)))

    def recover(self) -> None:
        self.dice.choice(self.clients).send(1, m.BasicRecover(True))

    def purge(self) -> None:
        self.dice.choice(self.clients).send(1, m.QueuePurge(0, self.dice.choice(NAMES), True))


def test_places_and_counts_are_right_whatever_comes_back() -> None:
    for seed in range(SEED, SEED + RUNS):
        try:
            Run(seed).live()
        except BaseException:
            print(f"WARREN_TEST_GATE_SEED={seed} WARREN_TEST_GATE_RUNS=1")
            raise
