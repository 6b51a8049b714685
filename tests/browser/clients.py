"""Actions of the broker's clients, in a line each."""

from __future__ import annotations

from pika.adapters.blocking_connection import BlockingChannel


def reject_all(channel: BlockingChannel, queue: str, *, requeue: bool) -> None:
    """Reject the messages of the queue until it delivers nothing."""
    while (method := channel.basic_get(queue)[0]) is not None:
        assert method.delivery_tag is not None
        channel.basic_reject(method.delivery_tag, requeue)
