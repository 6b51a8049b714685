"""Consumers of a channel and basic.get: their rules in RabbitMQ's order, then one call on the queue.

1. A consumer has its channel as `owner` as long as it stands in the channel's ledger.
2. A reply queue (direct reply-to) belongs to one channel and its one consumer, and goes with that. It has an
   unguessable name and is not listed.
3. basic.cancel of an unknown tag is answered like any other.
4. A consumer leaves its channel once, by `lose`, and its queue, if that is still there, by `drop_consumer`:

    why it ends            function                           the peer is told                 its unanswered deliveries
    ---------------------  ---------------------------------  -------------------------------  -------------------------
    the client cancels     cancel                             cancel-ok, or as it has asked    stay
    its channel ends       drop_consumer (jobs.ChannelEnd)    that the channel has ended       are requeued
    the queue is deleted   consumer_lost; by the same client  basic.cancel, or DELETED         have no queue
                           lose, then CancelNotices           the same, after delete-ok        have no queue
    lost right to read     recheck, then cancel_by_broker     basic.cancel, or DELETED         stay
    consumer timeout       give_up_consumer (overdue)         basic.cancel, or LIMIT_EXCEEDED  stay, but the overdue one
    an operator            cancel_by_operator, end_consumer   basic.cancel, or DETACH_FORCED   stay

   A delivery that stays can still be answered. A client without `consumer_cancel_notify` is not told, and its channel
   is closed (406) after a consumer timeout. In AMQP 1.0 the link is detached with the condition that is named, and its
   deliveries are requeued. MQTT and STOMP have no word for any of it: the connection ends; an operator is refused.

``queues.consumer_groups`` chooses the next consumer, ``queues.delivery`` keeps the unacknowledged deliveries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import (
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    ChannelException,
    ConnectionException,
)
from warren.channels.access import READ
from warren.channels.login import about_peer
from warren.channels.shared import PAUSED_LOAD
from warren.queues.arguments import consumer_arguments
from warren.queues.basic_get import answer_get, call_when_ready, can_answer
from warren.queues.consumer import Consumer
from warren.queues.queue import Queue

if TYPE_CHECKING:
    from warren.channels.session import Session
    from warren.queues.base_queue import BaseQueue

REPLY_TO_NAME: Final = "amq.rabbitmq.reply-to"
REPLY_TO_PREFIX: Final = "amq.rabbitmq.reply-to."


def may_get(channel: Session, name: str) -> bool:
    """Tell whether basic.get can be answered now; if not, its peer is paused until the message has come from disk."""
    queue = channel.vhost.queues.get(name or channel.last_queue)
    if not isinstance(queue, Queue) or can_answer(queue):
        return True
    peer = channel.peer
    peer.pause(PAUSED_LOAD)
    call_when_ready(queue, lambda: peer.resume(PAUSED_LOAD))
    return False


def get(channel: Session, method: m.BasicGet) -> None:
    """Handle basic.get."""
    name = channel.queue_name(method.queue)
    channel.authorize(READ, "queue", name)
    queue = channel.vhost.queue(name, channel.peer)
    if not isinstance(queue, Queue):
        raise queue.refusal("basic.get")
    if queue.rules.is_quorum and queue.rules.single_active:
        text = (
            f"cannot obtain access to locked queue '{name}' in vhost '{channel.vhost.name}'. basic.get operations "
            "are not supported by quorum queues with single active consumer"
        )
        raise ChannelException(RESOURCE_LOCKED, text)
    if not method.no_ack and queue.ready_count > 0:
        _check_owed(channel)
    if not answer_get(queue, channel.ledger, method.no_ack):
        channel.reply(m.BasicGetEmpty(""))


def _check_owed(channel: Session) -> None:
    """Make sure that a channel may owe one more answer to a basic.get.

    Raises:
        ChannelException: 406. It cannot wait: its answers are needed.
    """
    ledger = channel.ledger
    _, uncommitted = channel.uncommitted()
    owed = int(ledger.unacked_count) + uncommitted
    if owed >= ledger.unacked_max and not ledger.may_owe_more():
        most = int(ledger.unacked_max)
        text = f"{owed} messages of the channel wait for their acknowledgement (maximum {most} at present)"
        raise ChannelException(PRECONDITION_FAILED, text)


def consume(channel: Session, method: m.BasicConsume) -> None:
    """Handle basic.consume."""
    if method.queue == REPLY_TO_NAME:
        _consume_replies(channel, method)
        return
    peer = channel.peer
    name = channel.queue_name(method.queue)
    channel.authorize(READ, "queue", name)
    tag = _new_tag(channel, method)
    queue = channel.vhost.queue(name, peer)
    if peer.broker.has_alarm("memory"):
        peer.broker.growth.check_consumer(peer.key, tag, method.arguments)
    wanted = consumer_arguments(queue.name, channel.vhost.name, method.arguments)
    consumer = Consumer(
        channel.ledger,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        priority=wanted.priority,
        prefetch=channel.prefetch,
        arguments=method.arguments,
    )
    consumer.wanted_visibility_ms = wanted.visibility_timeout_ms
    consumer.wanted_timeout_ms = wanted.consumer_timeout_ms
    consumer.owner = channel
    queue.add_consumer(consumer)
    channel.ledger.add_consumer(consumer)
    peer.broker.watchers.consumer_created(consumer)
    consumer.keep_small_arguments()
    if not method.no_wait:
        channel.reply(m.BasicConsumeOk(tag))


def _new_tag(channel: Session, method: m.BasicConsume) -> str:
    """Return the consumer tag that the client has chosen, or one for it.

    Raises:
        ConnectionException: 530, it is in use, or there are too many consumers.
    """
    broker = channel.peer.broker
    tag: str = method.consumer_tag or "amq.ctag-" + broker.unique_name()
    consumers = channel.ledger.consumers
    if tag in consumers:
        raise ConnectionException(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    limit = broker.limits.consumers_per_channel_max
    if len(consumers) >= limit:
        raise ConnectionException(NOT_ALLOWED, f"reached maximum ({limit}) of consumers per channel")
    return tag


def _consume_replies(channel: Session, method: m.BasicConsume) -> None:
    if not method.no_ack:
        raise ChannelException(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_queue is not None:
        raise ChannelException(PRECONDITION_FAILED, "reply consumer already set")
    tag = _new_tag(channel, method)
    broker = channel.peer.broker
    if broker.has_alarm("memory"):
        broker.growth.check_consumer(channel.peer.key, tag, method.arguments)
    channel.reply_queue = open_replies(channel, tag, method.arguments).queue
    if not method.no_wait:
        channel.reply(m.BasicConsumeOk(tag))


def open_replies(channel: Session, tag: str, arguments: bytes) -> Consumer:
    """Return a consumer of a reply queue of its own."""
    peer = channel.peer
    broker, vhost = peer.broker, channel.vhost
    declaration = QueueDeclaration(REPLY_TO_PREFIX + broker.unique_name(), durable=False, exclusive=True)
    queue = Queue(declaration, peer, broker.runnable, vhost)
    vhost.reply_queues[queue.name] = queue
    consumer = Consumer(
        channel.ledger, queue, tag, no_ack=True, exclusive=False, priority=0, prefetch=0, arguments=arguments
    )
    consumer.keep_small_arguments()
    consumer.owner = channel
    queue.add_consumer(consumer)
    channel.ledger.add_consumer(consumer)
    return consumer


def cancel(channel: Session, method: m.BasicCancel) -> None:
    """Handle basic.cancel."""
    consumer = channel.ledger.consumers.get(method.consumer_tag)
    if consumer is not None:
        drop_consumer(channel, consumer)
    if not method.no_wait:
        channel.reply(m.BasicCancelOk(method.consumer_tag))


def drop_consumer(channel: Session, consumer: Consumer) -> bool:
    """Remove a consumer from its channel and its queue, without a word; False: it had left."""
    queue = consumer.queue
    is_reply_queue = _is_reply_queue(channel, queue)
    try:
        if consumer.owner is channel and not is_reply_queue:
            channel.peer.broker.watchers.consumer_deleted(consumer)  # it names its channel
    finally:  # else its queue would keep it, and nobody else would be the active one
        has_left = lose(channel, consumer)
        if has_left and not is_reply_queue:
            queue.remove_consumer(consumer)
            if queue.auto_delete and not queue.consumers:
                channel.peer.broker.delete_queue(channel.vhost, queue)
    if has_left and is_reply_queue:
        del channel.vhost.reply_queues[queue.name]
        channel.peer.broker.access.routes.end_of_replies(queue)
        queue.close()  # later replies are dropped
        if queue is channel.reply_queue:
            channel.reply_queue = None
    return has_left


def _is_reply_queue(channel: Session, queue: BaseQueue) -> bool:
    return channel.vhost.reply_queues.get(queue.name) is queue


def lose(channel: Session, consumer: Consumer) -> bool:
    """Take a consumer off its channel; its queue is gone, or removes it. False: it had left."""
    if consumer.owner is not channel:
        return False
    consumer.owner = None
    del channel.ledger.consumers[consumer.tag]
    channel.ledger.left(consumer)
    return True


def consumer_lost(channel: Session, consumer: Consumer) -> None:
    """Notify a client that understands: the queue of `consumer` is gone."""
    if lose(channel, consumer) and channel.is_open():
        channel.consumer_cancelled(consumer)


def recheck(channel: Session, consumer: Consumer) -> None:
    """Cancel `consumer` if it is still there and the user may no longer read its queue."""
    principal = channel.peer.principal
    queue = consumer.queue
    assert principal is not None
    if consumer.owner is not channel or _is_reply_queue(channel, queue) or principal.may(READ, queue.name):
        return
    cancel_by_broker(channel, consumer)


def cancel_by_broker(channel: Session, consumer: Consumer) -> None:
    """Remove `consumer`, whose queue is still there, and tell a client that understands."""
    if drop_consumer(channel, consumer) and channel.is_open():
        channel.consumer_cancelled(consumer)


def cancel_by_operator(channel: Session, consumer: Consumer, reason: str) -> bool:
    """Cancel `consumer` for an operator; False: the protocol of its peer has no way to say that."""
    if not channel.end_consumer(consumer, reason):
        return False
    note_consumer(channel, consumer, "info", "consumer.cancelled", {"reason": reason})
    return True


def note_consumer(channel: Session, consumer: Consumer, level: str, event: str, why: dict[str, object]) -> None:
    """Log what has become of a consumer."""
    about = {"channel": int(channel.number), "queue": consumer.queue.name, "consumer_tag": consumer.tag}
    peer = channel.peer
    peer.broker.note(level, event, {**about_peer(peer), **about, **why})


def limit_prefetch(channel: Session, method: m.BasicQos) -> None:
    """Handle basic.qos: of the channel, or of each consumer to come."""
    if method.prefetch_size:
        raise ConnectionException(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.ledger.prefetch = method.prefetch_count
        channel.ledger.make_room()
    else:
        channel.prefetch = method.prefetch_count
    channel.reply(m.BasicQosOk())
