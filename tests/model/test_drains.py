"""Readers that drain a queue into a table, as Spark does, while they die, the broker dies, and others take over.

A reader notes where a batch ends before it writes the batch, and that it is written afterwards; what it notes and what
it has written survives it. A batch that is written twice replaces itself. In the end each message is in the table once,
or a client has got it; it is there twice if it was in the table already when a lease ended before its ack. A run is
played again by its seed, which it prints:

    WARREN_TEST_DRAINS_SEED=7 WARREN_TEST_DRAINS_RUNS=1
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf
from random import Random, SystemRandom
from typing import Any, Final

import pytest
from engine_harness import body_of

from warren.amqp import methods as m
from warren.server.draining.drains import Fenced

from .drain_places import Killed, Place
from .test_claims import rest

RUNS: Final = int(os.environ.get("WARREN_TEST_DRAINS_RUNS", "40"))
SEED: Final = int(os.environ.get("WARREN_TEST_DRAINS_SEED", "0"))
COMMANDS: Final = 60


class Reader:
    """A streaming query with its checkpoint: `planned` and `committed` are logs of offsets, by batch."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.planned: list[int] = []
        self.committed = 0  # how many batches
        self.table: dict[int, list[bytes]] = {}
        self.epoch = -1
        self.lease_s: int | None = None

    def end_of(self, batch: int) -> int:
        return self.planned[batch] if batch >= 0 else 0

    def start(self) -> None:
        """Begin with nothing but the checkpoint."""
        self.epoch = -1

    def step(self, dice: Random, most: int) -> None:
        """Do a batch, or a part of it: a reader may die anywhere."""
        if self.epoch < 0:
            self.epoch = self.place.open(lease_s=self.lease_s).epoch
        batch = self.committed
        if batch == len(self.planned):
            after = self.end_of(batch - 1)
            first, end = self.place.claim(self.epoch, after, most)
            assert first == max(after, self.place.claims().first_offset())
            if end == after or dice.random() < 0.2:
                return
            self.planned.append(end)
        if dice.random() < 0.2:
            return
        end = self.end_of(batch)
        first = max(self.end_of(batch - 1), self.place.claims().first_offset())  # before it is what a lease has ended
        self.table[batch] = self.place.rows(first, end) if first < end else []
        if dice.random() < 0.2:
            return
        self.committed += 1


class Run:
    """A place and two readers that share one checkpoint, under one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        kinds: tuple[dict[str, Any], ...] = ({}, {}, {"x-max-priority": 2}, {"x-queue-type": "quorum"})
        self.place = Place(self.dice.choice((0, 128 << 20)), **self.dice.choice(kinds))
        self.reader = Reader(self.place)
        self.reader.lease_s = self.dice.choice((None, 60, 600))
        self.again: list[bytes] = []  # messages that come a second time
        self.bodies: list[bytes] = []
        self.got: list[bytes] = []

    def publish(self) -> None:
        self.bodies += self.place.publish(self.dice.choice((1, 5, 40)), priority=self.dice.randrange(3))

    def get(self) -> None:
        """A client works on the queue as well."""
        client = self.place.client
        for _ in range(self.dice.choice((1, 3))):
            client.send(1, m.BasicGet(0, "q", False))
            received = client.take()
            if not received:
                rest(self.place.broker)
                received = client.take()
            (answer,) = received
            if isinstance(answer.method, m.BasicGetEmpty):
                return
            if self.dice.random() < 0.3:
                client.send(1, m.BasicNack(answer.method.delivery_tag, multiple=False, requeue=True))
            else:
                client.send(1, m.BasicAck(answer.method.delivery_tag, False))
                rest(self.place.broker)
                self.got.append(body_of(answer))

    def step(self) -> None:
        self.reader.step(self.dice, self.dice.choice((1, 7, 30, 1000)))

    def reader_dies(self) -> None:
        self.reader.start()

    def broker_dies(self) -> None:
        """In the middle of what a reader does, or not."""
        self.place.desk.lives = self.dice.randrange(12)
        try:
            self.reader.step(self.dice, 30)
        except Killed:
            self.reader.start()
        self.place.start_again()

    def broker_stops(self) -> None:
        self.place.client.hang_up()
        self.place.broker.stop()
        self.place.start_again()

    def other_reader(self) -> None:
        """Another reader opens the session for a moment: the first reader is refused, and starts again."""
        stale = self.reader.epoch
        self.place.open(lease_s=self.dice.choice((None, 60)))
        if stale >= 0:
            with pytest.raises(Fenced):
                self.place.claim(stale, self.reader.end_of(self.reader.committed - 1), 1)
            self.reader.start()

    def time_passes(self) -> None:
        """Nobody calls: claims go back when that takes as long as the lease, and not before."""
        place, reader = self.place, self.reader
        before = place.claimed()
        first = place.claims().first_offset() if before else 0
        seconds = self.dice.choice((1, 30, 59, 60, 600))
        if before:
            lease_s = inf if (given := place.lease_s()) is None else given
            ends = place.clock_s + seconds >= place.silent_since_s + lease_s
        else:
            ends = False
        dies = self.dice.random() < 0.3
        place.desk.lives = self.dice.randrange(8) if dies else -1
        try:
            place.pass_time(seconds)
        except Killed:
            assert ends
        if dies:
            place.start_again()
        after = place.claimed()
        assert after == before or (ends and after == before[len(before) - len(after) :])
        if not ends:
            assert after == before
            return
        assert dies or not after
        returned = min(len(before) - len(after), max(0, reader.end_of(reader.committed - 1) - first))
        self.again += before[:returned]
        if reader.epoch >= 0 and not dies:
            with pytest.raises(Fenced):
                place.claim(reader.epoch, reader.end_of(reader.committed - 1), 1)
        reader.start()

    def run(self) -> None:
        commands: list[tuple[Callable[[], None], float]] = [
            (self.publish, 5),
            (self.get, 2),
            (self.step, 8),
            (self.reader_dies, 1.5),
            (self.broker_dies, 1.5),
            (self.broker_stops, 0.5),
            (self.other_reader, 0.7),
            (self.time_passes, 2),
        ]
        for _ in range(COMMANDS):
            (command,) = self.dice.choices([each for each, _ in commands], [weight for _, weight in commands])
            self.trace.append(command.__name__)
            command()
            self.place.broker.check()
        self.finish()

    def finish(self) -> None:
        """Drain what is left, and compare."""
        calm = Random()
        calm.random = lambda: 1.0  # type: ignore[method-assign]
        idle = 0
        while idle < 2:
            before = (len(self.reader.planned), self.reader.committed)
            self.reader.step(calm, 1000)
            idle = idle + 1 if before == (len(self.reader.planned), self.reader.committed) else 0
        table = [body for batch in sorted(self.reader.table) for body in self.reader.table[batch]]
        assert sorted(table + self.got) == sorted(self.bodies + self.again)
        assert self.place.got() == []


def test_readers_that_die_anywhere_have_each_message_once_in_the_end() -> None:
    seed = SEED or SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    for number in range(RUNS):
        run = Run(seed + number)
        try:
            run.run()
        except BaseException:
            print(*run.trace[-40:], sep="\n")
            print(f"WARREN_TEST_DRAINS_SEED={seed + number} WARREN_TEST_DRAINS_RUNS=1")
            raise
