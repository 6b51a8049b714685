"""A quorum queue of a leader whose follower is slow: its consumers get nothing that a take-over could take back.

A dead letter goes into the queues while the follower has stopped: a publisher might be held back by then.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from .nodes import PERSISTENT, Node

SOURCE, QUORUM, CLASSIC, EXCHANGE = "source", "quorum", "classic", "letters"


def declare(channel: Any) -> None:
    channel.exchange_declare(EXCHANGE, "fanout", durable=True)
    channel.queue_declare(SOURCE, durable=True, arguments={"x-dead-letter-exchange": EXCHANGE})
    channel.queue_declare(QUORUM, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare(CLASSIC, durable=True)
    for queue in (QUORUM, CLASSIC):
        channel.queue_bind(queue, EXCHANGE)
    channel.confirm_delivery()
    channel.basic_publish("", SOURCE, b"letter", PERSISTENT)


class Consumer:
    """Takes from both queues; ``came`` has queues and bodies in order."""

    def __init__(self, node: Node) -> None:
        self.connection = node.connect()
        self.came: list[tuple[str, str]] = []
        self.channel = self.connection.channel()
        for queue in (QUORUM, CLASSIC):
            self.channel.basic_consume(queue, self._took, auto_ack=True, consumer_tag=queue)

    def _took(self, _: Any, method: Any, __: Any, body: bytes) -> None:
        self.came.append((method.consumer_tag, body.decode()))

    def await_one(self, queue: str, body: str) -> None:
        """Wait for that message, and for what was sent at that time."""
        while (queue, body) not in self.came:
            self.connection.process_data_events(1)
        self.channel.basic_qos(prefetch_count=0)


@pytest.mark.parametrize("takes_over", [False, True])
def test_what_the_follower_lacks_is_not_delivered(tmp_path: Path, takes_over: bool) -> None:
    leader, follower = Node(tmp_path, "one", {"min_in_sync": 2}), Node(tmp_path, "two")
    leader.lead(is_enough=False)
    follower.follow(leader)
    leader.await_in_sync("two")
    client = leader.connect()
    channel = client.channel()
    declare(channel)
    method, _, _ = channel.basic_get(SOURCE)
    assert method is not None
    consumer = Consumer(leader)

    follower.process.signal(signal.SIGSTOP)
    channel.basic_reject(method.delivery_tag or 0, requeue=False)
    consumer.await_one(CLASSIC, "letter")
    assert consumer.came == [(CLASSIC, "letter")]

    if not takes_over:
        follower.process.signal(signal.SIGCONT)
        consumer.await_one(QUORUM, "letter")
        assert consumer.came == [(CLASSIC, "letter"), (QUORUM, "letter")]
        leader.process.stop()
        follower.process.stop()
        return
    leader.process.kill()
    follower.process.signal(signal.SIGCONT)
    follower.await_lost()
    follower.promote(accept_loss=True)
    with follower.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", QUORUM, b"after", PERSISTENT)
    # The letter is in one place: what came to the follower at last may be there, and nobody has seen it before.
    letters = [follower.drain(SOURCE), follower.drain(QUORUM)]
    assert letters in ([[b"letter"], [b"after"]], [[], [b"letter", b"after"]])
    follower.process.stop()
