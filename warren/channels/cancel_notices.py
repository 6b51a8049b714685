"""Notices to clients about the consumers of a deleted queue.

1. The client that deletes the queue gets the notices about its own consumers after the reply to queue.delete, as with
   RabbitMQ: a client that waits for the reply need not expect anything else. (Otherwise py-amqp, and so Celery, raises
   from the delete.)
2. All other clients are told at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from warren.channels.consuming import consumer_lost, lose
from warren.channels.session import Session
from warren.queues.consumer import Consumer
from warren.queues.long_work import Job, Steps

if TYPE_CHECKING:
    from warren.channels.peer import Peer


def tell_lost(consumer: Consumer) -> None:
    """Notify the channel of `consumer` that its queue is gone."""
    channel = consumer.owner
    if isinstance(channel, Session):
        consumer_lost(channel, consumer)


class CancelNotices(Job):
    """Notices for `peer` about its own consumers of a queue that it deletes.

    The job has to begin when the reply has been written.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._lost: deque[tuple[Session, Consumer]] = deque()

    def lost(self, consumer: Consumer) -> None:
        """Note that the queue of `consumer` is gone."""
        channel = consumer.owner
        if not isinstance(channel, Session) or channel.peer is not self.peer:
            tell_lost(consumer)
        elif lose(channel, consumer):
            self._lost.append((channel, consumer))

    def run(self, steps: Steps) -> bool:
        while self._lost:
            if steps.left <= 0:
                return False
            steps.left -= 1
            channel, consumer = self._lost.popleft()
            if channel.is_open():
                channel.consumer_cancelled(consumer)
        return True
