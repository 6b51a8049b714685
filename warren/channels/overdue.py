"""Deliveries that are not answered in time: they go back to their queue, and their consumer is cancelled.

1. Only that consumer is cancelled, once; other consumers of the channel are not touched. The client may still answer
   its deliveries that are not overdue. Deliveries that become overdue later are requeued without another notice.
2. A channel is closed (406) when the peer cannot be told about a consumer: after basic.get, after basic.cancel by the
   client, and if the client does not understand that consumers are cancelled.
3. The limit of the broker applies to quorum queues whose arguments, policies and consumers do not set another one. Each
   delivery is looked at once after its time, by `OverdueRun`; `sweep` knows the time of a delivery (`Peer.tick`). A
   delivery is looked at again after a rollback has taken its answer back.

As RabbitMQ 4.3; limits of arguments and policies, here for classic queues too: ``queues.delivery_timeout``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.channels.consuming import note_consumer
from warren.channels.jobs import LOOKS_PER_STEP
from warren.channels.session import CHANNEL_CLOSING
from warren.msgstore.log.own_writes import PACED
from warren.queues.delivery import give_back
from warren.queues.long_work import Job, Steps
from warren.queues.unacked import Delivery

if TYPE_CHECKING:
    from warren.channels.peer import Peer
    from warren.channels.session import Session

DELIVERY_SWEEP_S: Final = 60.0


def sweep(peer: Peer, now_s: float) -> float:
    """Look for deliveries of `peer` that have waited longer than the broker's limit; return when to do so again."""
    timeout_s = peer.broker.limits.delivery_timeout_s
    if timeout_s > 0:
        for channel in list(peer.channels.values()):
            ledger = channel.ledger
            if now_s - ledger.waiting_since(now_s) > timeout_s:
                up_to = ledger.last_tag_by(now_s - timeout_s)
                if up_to > ledger.swept_tag and channel.state != CHANNEL_CLOSING:
                    peer.begin(OverdueRun(channel, up_to, int(timeout_s * 1000)))
    return now_s + min(DELIVERY_SWEEP_S, max(timeout_s, 1.0) / 4)


def end_overdue(channel: Session, tag: int, timeout_ms: int) -> None:
    """Take back a delivery that was not answered within `timeout_ms`."""
    ledger = channel.ledger
    delivery = ledger.find(tag)
    if delivery is None or not channel.is_open():
        return
    consumer = delivery.consumer
    if consumer is None or (consumer.gone and not consumer.timed_out):
        _close(channel, timeout_ms)
        return
    if not consumer.timed_out:
        explanation = f"consumer '{consumer.tag}' did not answer a delivery within {timeout_ms} ms"
        consumer.timed_out = True
        if not channel.give_up_consumer(consumer, explanation):
            _close(channel, timeout_ms)
            return
        note_consumer(channel, consumer, "warning", "consumer.timed_out", {"timeout_ms": timeout_ms})
    # Cancelling may have given it back already.
    taken = ledger.take_overdue(tag)
    if taken is not None:
        give_back(ledger, taken, requeue=True, failed=False)
        taken.queue.wake()


def _close(channel: Session, timeout_ms: int) -> None:
    if channel.state == CHANNEL_CLOSING:
        return
    text = (
        f"delivery acknowledgement on channel {int(channel.number)} timed out. Timeout value used: "
        f"{timeout_ms} ms. This timeout value can be configured, "
        "see consumers doc guide to learn more"
    )
    channel.peer.close_session(channel, ChannelException(PRECONDITION_FAILED, text), 0)


class OverdueRun(Job):
    """Take back deliveries of a channel, up to a tag, to which the broker's own limit applies."""

    def __init__(self, channel: Session, up_to: int, timeout_ms: int) -> None:
        self._channel = channel
        self._up_to = up_to
        self._timeout_ms = timeout_ms
        self._tags: list[int] | None = None
        self._next: int = 0

    def need(self) -> i64:
        return PACED

    def run(self, steps: Steps) -> bool:
        channel = self._channel
        ledger = channel.ledger
        if not channel.is_open():
            return True
        tags = self._tags
        if tags is None:
            steps.left -= ledger.unacked_count // LOOKS_PER_STEP
            tags = ledger.outstanding_between(ledger.swept_tag + 1, self._up_to)
            self._tags = tags
            ledger.swept_tag = self._up_to
        while self._next < len(tags):
            if steps.left <= 0:
                return False
            if self._next % LOOKS_PER_STEP == 0:
                steps.left -= 1
            tag = tags[self._next]
            self._next += 1
            delivery = ledger.find(tag)
            if delivery is not None and has_broker_limit(delivery):
                steps.left -= 1
                end_overdue(channel, tag, self._timeout_ms)
                steps.wrote(delivery.message.memory_bytes)
        return True


def has_broker_limit(delivery: Delivery) -> bool:
    """Tell whether the limit of the broker is for `delivery`. A delivery of a deleted queue cannot go back to it."""
    rules = delivery.queue.rules
    if not rules.is_quorum or delivery.queue.deleted:
        return False
    consumer = delivery.consumer
    return (rules.consumer_timeout_ms if consumer is None else consumer.timeout_ms) < 0
