"""Whatever clients do, no frame of the log is larger than it may be, and a batch of several frames counts as a whole.

``memory_store.check_frame`` looks at every frame that is written here and in all other tests with such a disk. The
limit is 64 MiB in a broker and some hundred bytes here. The tests compare the stored messages with those that a start
finds.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from random import Random
from typing import Any, Final

import pytest
from durable_harness import SHAPE, DurableHarness
from engine_harness import Client, content_frames
from mqtt_harness import MqttClient, connect_packet, publish_packet

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.mqtt.packets import packet, text
from warren.vhosts.own_publishes import publish_copy

RUNS: Final = int(os.environ.get("WARREN_TEST_FRAME_RUNS", "40"))
SEED: Final = int(os.environ.get("WARREN_TEST_FRAME_SEED", "1" if RUNS <= 40 else str(int(time.time()))))
STEPS: Final = 24
# Each of these steps has to make a batch of several frames in some run.
LARGE: Final = {
    "publish",
    "transaction",
    "give_back",
    "give_back_in_a_transaction",
    "bind",
    "wait",
    "replay",
    "subscribe",
}
NO_TABLE: Final = encode_table({})
DELAYED: Final[tuple[str, dict[str, Any]]] = ("x-delayed-message", {"x-delayed-type": "fanout"})
EXCHANGES: Final = {"all": ("fanout", {}), "seen": ("x-recent-history", {}), "later": DELAYED}
QUEUES: Final = ("a", "b", "c", "d", "letters")
# The treatment of messages that do not fit in each queue, or are rejected. The last two are sent round and round.
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "a": {},
    "b": {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"},
    "c": {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"},
    "d": {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"},
    "letters": {"x-message-ttl": 50, "x-dead-letter-exchange": "all"},
}


class Run:
    """A broker with small frames, and a client that does legal things in the order of its seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.frame_bytes = self.random.choice((128, 300, 1000))
        self.harness = DurableHarness(shape=SHAPE._replace(frame_bytes=self.frame_bytes))
        self.continued = 0
        self.of_step: Counter[str] = Counter()  # frames that continue one, by the step that made them
        self.client = self._client()
        for name, (kind, table) in EXCHANGES.items():
            arguments = encode_table(table)
            self.client.send(1, m.ExchangeDeclare(0, name, kind, False, True, False, False, False, arguments))
        for name in QUEUES:
            self.client.send(
                1, m.QueueDeclare(0, name, False, True, False, False, False, encode_table(ARGUMENTS[name]))
            )
            if name != "letters":
                self.client.send(1, m.QueueBind(0, name, "all", "", False, NO_TABLE))
                self.client.send(1, m.QueueBind(0, name, "later", "", False, NO_TABLE))
        self.client.take()

    def _client(self) -> Client:
        client = self.harness.channel()
        client.open(2)
        client.send(2, m.TxSelect())
        client.take()
        return client

    def step(self) -> None:
        """Do one thing."""
        random = self.random
        step = random.choice(
            [self.publish] * 4
            + [self.transaction] * 2
            + [self.get, self.get, self.consume, self.give_back, self.give_back_in_a_transaction, self.purge]
            + [self.bind, self.policy, self.wait, self.wait, self.delay, self.replay, self.retain, self.subscribe]
        )
        before = self.harness.store.continued_frames
        step()
        if random.random() < 0.4:
            self.harness.hold_commits = not self.harness.hold_commits
            self.harness.settle()
        self.of_step[step.__name__] += self.harness.store.continued_frames - before
        self.client.take()

    def publish(self) -> None:
        """Publish much in one turn."""
        self.client.feed(b"".join(self._message(1) for _ in range(self.random.randint(1, 12))))

    def transaction(self) -> None:
        """Publish and acknowledge in a transaction, and commit it, mostly."""
        data = b"".join(self._message(2) for _ in range(self.random.randint(1, 30)))
        end = m.TxCommit() if self.random.random() < 0.8 else m.TxRollback()
        self.client.feed(data + method_frame(2, end))

    def _message(self, number: int) -> bytes:
        exchange, key = self.random.choice((("all", ""), ("seen", ""), ("", self.random.choice(QUEUES))))
        body = bytes(self.random.choice((0, 3, 90, 700)))
        return method_frame(
            number, m.BasicPublish(0, exchange, key, mandatory=False, immediate=False)
        ) + content_frames(number, body, {"delivery_mode": 2})

    def get(self) -> None:
        """Take some, and acknowledge a few of them."""
        number = self.random.choice((1, 2))
        self.client.send(number, *[m.BasicGet(0, self.random.choice(QUEUES), False)] * self.random.randint(1, 5))

    def consume(self) -> None:
        """Make a consumer take all there is, and leave with it."""
        name = self.random.choice(QUEUES)
        self.client.send(3, m.ChannelOpen(""))
        self.client.send(3, m.BasicConsume(0, name, "", False, False, False, False, NO_TABLE))
        if self.random.random() < 0.5:
            self.client.send(3, m.BasicNack(0, True, self.random.random() < 0.5))
        self.client.send(3, m.ChannelClose(200, "", 0, 0))

    def give_back(self) -> None:
        """Answer everything that is out on a channel."""
        number = self.random.choice((1, 2))
        self.client.send(
            number,
            self.random.choice(
                (
                    m.BasicNack(0, multiple=True, requeue=True),
                    m.BasicNack(0, multiple=True, requeue=False),
                    m.BasicRecover(True),
                )
            ),
        )

    def give_back_in_a_transaction(self) -> None:
        """Give back everything that is out, and publish, in one transaction."""
        self.client.feed(b"".join(self._message(2) for _ in range(self.random.randint(0, 5))))
        self.client.send(2, m.BasicNack(0, True, self.random.random() < 0.7), m.TxCommit())

    def delay(self) -> None:
        """Publish messages that are due at the same time."""
        properties = {"delivery_mode": 2, "headers": encode_table({"x-delay": self.random.choice((5, 50))})}
        publish = method_frame(1, m.BasicPublish(0, "later", "", mandatory=False, immediate=False))
        bodies = [bytes(self.random.choice((0, 90, 700))) for _ in range(self.random.randint(1, 8))]
        self.client.feed(b"".join(publish + content_frames(1, body, properties) for body in bodies))

    def replay(self) -> None:
        """Make an operator publish all messages that are out once more, in one turn."""
        vhost = self.harness.vhost
        for channel in self.client.connection.channels.values():
            for tag in channel.ledger.outstanding_between(1, channel.ledger.next_tag)[:12]:
                publish_copy(vhost, channel.ledger.outstanding(tag).message, vhost.exchange("all"), "")
        self.harness.settle()

    def retain(self) -> None:
        """Publish messages over MQTT that are retained."""
        client = self._device("retains")
        for at in range(1, self.random.randint(2, 8)):
            body = bytes(self.random.choice((0, 3, 90, 700)))
            client.feed(publish_packet(f"a/{self.random.randint(1, 8)}", body, 1, at, retain=True))
        client.hang_up()

    def subscribe(self) -> None:
        """Make a session of MQTT get all that is retained, by several filters at a time, and leave."""
        client = self._device(f"session{self.random.randint(1, 2)}")
        filters = b"".join(text(each) + b"\1" for each in ("#", "a/#", "a/+", "+/#"))
        client.feed(packet(8, 2, b"\0\1" + filters))
        client.hang_up()

    def _device(self, client_id: str) -> MqttClient:
        client = MqttClient(self.harness)
        client.feed(connect_packet(4, client_id, clean=False))  # its answer may wait for the disk
        return client

    def purge(self) -> None:
        """Empty a queue."""
        self.client.send(1, m.QueuePurge(0, self.random.choice(QUEUES), False))

    def bind(self) -> None:
        """Bind a queue to an exchange with a history, and unbind it."""
        name = self.random.choice(QUEUES)
        for _ in range(self.random.randint(1, 3)):
            self.client.send(
                1, m.QueueBind(0, name, "seen", "", False, NO_TABLE), m.QueueUnbind(0, name, "seen", "", NO_TABLE)
            )

    def policy(self) -> None:
        """Take most of what a queue holds away from it, by another declaration of what it may hold."""
        name = self.random.choice(QUEUES)
        self.client.send(1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False))
        self.client.send(1, m.QueueDeclare(0, name, False, True, False, False, False, encode_table(ARGUMENTS[name])))

    def wait(self) -> None:
        """Make messages expire."""
        self.harness.pass_time(self.random.choice((0.01, 0.06, 0.3)))

    def restart(self) -> None:
        """Be killed when everything is written, and compare what there is then."""
        self.harness.hold_commits = False
        self.harness.settle()
        self.client.hang_up()
        self.harness.write()
        before = {name: self._count(name) for name in QUEUES}
        self.continued += self.harness.store.continued_frames
        self.harness = self.harness.restart(clean=False)
        self.harness.settle()
        found = {name: self._count(name) for name in QUEUES}
        assert found == before
        self.harness.check()
        self.client = self._client()

    def _count(self, name: str) -> tuple[int, int]:
        queue = self.harness.queue(name)
        return int(queue.ready_count), int(queue.ready_bytes)


def test_no_sequence_of_methods_makes_a_frame_above_the_limit() -> None:
    continued = 0
    of_step: Counter[str] = Counter()
    for seed in range(SEED, SEED + RUNS):
        run = Run(seed)
        try:
            for _ in range(3):
                for _ in range(STEPS):
                    run.step()
                run.restart()
        except BaseException:
            print(f"seed {seed}")
            raise
        continued += run.continued
        of_step += run.of_step
    assert continued > 20 * RUNS, f"only {continued} frames were continued"
    print(of_step)
    if RUNS >= 40:
        assert set(of_step) >= LARGE, f"no step of {LARGE - set(of_step)} made a batch of several frames"


@pytest.mark.parametrize("kept", range(4))
def test_a_batch_whose_last_frame_is_missing_does_nothing(kept: int) -> None:
    """A transaction of several frames, of which a crash leaves the first `kept`; and the next life, and its next."""
    harness = DurableHarness(shape=SHAPE._replace(frame_bytes=400))
    client = harness.channel()
    client.send(1, m.QueueDeclare(0, "q", False, True, False, False, False, NO_TABLE))
    client.send(1, m.TxSelect())
    before = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)) + content_frames(
        1, b"x" * 50, {"delivery_mode": 2}
    )
    client.feed(before + method_frame(1, m.TxCommit()))
    harness.write()
    harness.store.jobs_left = kept
    client.feed(before * 40 + method_frame(1, m.TxCommit()))
    assert harness.store.jobs_left == 0 and harness.queue("q").ready_count == 41
    for published in (1, 2):
        harness = harness.restart(clean=False)
        assert harness.queue("q").ready_count == published
        client = harness.channel()
        client.feed(before)
        harness.write()
        assert harness.queue("q").ready_count == published + 1
