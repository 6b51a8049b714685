"""The broker's own writes, on a disk that is slow, full, or gone with the process: no message is lost or doubled.

A life publishes numbered messages and has them stored. Then something moves them (letters, returns, delays, expiry),
the disk takes its time, reports no space now and then, and the process dies after some commit. The next life continues
with the messages that it finds. At the end each message is in one place, whatever happened on the way
(``own_writes.py``).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from random import Random
from typing import Any, Final

import pytest
from durable_harness import SHAPE, DurableHarness
from engine_harness import Client, basic_consume, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.queues.lanes import DELAYED
from warren.vhosts.metadata import PolicyPut

RUNS: Final = int(os.environ.get("WARREN_TEST_OWN_WRITES_RUNS", "60"))
SEED: Final = int(os.environ.get("WARREN_TEST_OWN_WRITES_SEED", "1" if RUNS <= 60 else str(int(time.time()))))
MESSAGES: Final = 60
BATCH_BYTES: Final = 16 << 10
SIZES: Final = (10, 500, 3000)
TO_LETTERS: Final[dict[str, Any]] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
QUEUES: Final[dict[str, dict[str, Any]]] = {
    "plain": TO_LETTERS,
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 1000, **TO_LETTERS},
    "tried": {"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 50, **TO_LETTERS},
    "letters": {},
}
MOVES: Final = ("reject all", "give back all", "give back each", "leave", "expire", "shorten", "wait")


class Lives:
    """Processes that follow each other on one disk."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace: list[str] = []
        self.harness = self._begun(
            DurableHarness(shape=SHAPE._replace(frame_bytes=self.random.choice((2000, 64 << 20))))
        )
        self.client = self.harness.channel()
        for name, arguments in QUEUES.items():
            self.client.declare(name, durable=True, arguments=arguments)
        for number in range(MESSAGES):
            name = self.random.choice(("plain", "quorum", "tried"))
            body = b"%d " % number + bytes(self.random.choice(SIZES))
            self.client.feed(publish_frames("", name, body, properties={"delivery_mode": 2}))
        self.harness.write()

    def _begun(self, harness: DurableHarness) -> DurableHarness:
        harness.broker.log.batch_bytes = BATCH_BYTES
        return harness

    def live(self) -> None:
        """Run everything until the process dies, or for a while."""
        self.harness.hold_commits = True
        self.harness.store.jobs_left = self.random.choice((-1, self.random.randint(0, 12)))
        for _ in range(self.random.randint(1, 6)):
            self._move(self.random.choice(MOVES))
            for _ in range(self.random.randint(0, 4)):
                self._commit()
            if self.random.random() < 0.2:
                self._fill_disk()
        self.client.hang_up()
        self.harness = self._begun(self.harness.restart(clean=False))
        self.harness.settle()
        self.client = self.harness.channel()

    def _move(self, move: str) -> None:
        self.trace.append(move)
        name = self.random.choice(("plain", "quorum", "tried"))
        if move == "expire" or move == "shorten":
            definition = '{"message-ttl": 1}' if move == "expire" else '{"max-length": 3}'
            self.harness.broker.administer(PolicyPut("/", "short", f"^{name}$", "all", 0, definition))
            self.harness.pass_time(0.1)
            return
        if move == "wait":
            self.harness.pass_time(self.random.choice((0.01, 0.2)))
            return
        self.client.send(2, m.ChannelOpen(""))
        self.client.send(2, basic_consume(name, "c"))
        if move == "reject all":
            self.client.send(2, m.BasicNack(0, multiple=True, requeue=False))
        elif move == "give back all":
            self.client.send(2, m.BasicNack(0, multiple=True, requeue=True))
        elif move == "give back each":
            data = b"".join(method_frame(2, m.BasicNack(tag, multiple=False, requeue=True)) for tag in range(1, 4))
            out = sum(queue.unacked_count for queue in self.harness.vhost.queues.values())
            if out >= 3:
                self.client.feed(data)
        self.client.send(2, m.ChannelClose(200, "", 0, 0))
        self.client.take()

    def _commit(self) -> None:
        """Make the disk do what it was given, and look at what is open."""
        self.harness.store.run()
        self.harness.settle()
        batch = self.harness.broker.log.batch
        # Messages read for their release may find that others have used up the share.
        assert batch.row_bytes <= BATCH_BYTES + 2 * max(SIZES) + 2000, f"{batch.row_bytes} bytes in a batch"

    def _fill_disk(self) -> None:
        """The disk has no space for a while: the open batch is written, and then nothing more."""
        self.trace.append("full")
        self.harness.broker.set_alarm("disk", True)
        self.harness.broker.log.force()
        self.harness.settle()
        while self.harness.broker.log.commit_jobs and self.harness.store.jobs_left != 0:
            self._commit()
        written = self.harness.store.written_bytes
        self._move(self.random.choice(MOVES))
        for _ in range(3):
            self._commit()
        assert self.harness.store.written_bytes - written <= 4000, "something was written to a full disk"
        self.harness.broker.set_alarm("disk", False)

    def places(self) -> Counter[bytes]:
        """Return how often each message is there when everything has come to rest."""
        self.harness.hold_commits = False
        self.harness.store.jobs_left = -1
        for _ in range(300):  # each releases its share of a batch
            self.harness.pass_time(1)
        found: Counter[bytes] = Counter()
        for name in QUEUES:
            lane = self.harness.queue(name).held(DELAYED)
            assert lane is None or lane.count == 0
            while self._maybe_get(found, self.client, name):
                pass
        return found

    def _maybe_get(self, found: Counter[bytes], client: Client, name: str) -> bool:
        client.send(1, m.BasicGet(0, name, True))
        (received,) = client.take()
        if received.content is None:
            return False
        found[received.content.body.split()[0]] += 1
        return True


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_by_what_the_broker_does_itself() -> None:
    expected = Counter({b"%d" % number: 1 for number in range(MESSAGES)})
    for seed in range(SEED, SEED + RUNS):
        lives = Lives(seed)
        try:
            for _ in range(lives.random.randint(1, 4)):
                lives.live()
            assert lives.places() == expected
            lives.harness.check()
        except BaseException:
            print(f"WARREN_TEST_OWN_WRITES_SEED={seed} WARREN_TEST_OWN_WRITES_RUNS=1 {lives.trace}")
            raise
