"""A channel: publishing beyond the fast path, consuming, acknowledging, confirms and transactions.

1. A failed method closes the channel and nothing else: its unacked messages are back in their queues, in order and
   marked redelivered, its consumers are gone, before the channel.close is written.
2. In a transaction nothing that was published or acknowledged is visible to anybody before tx.commit.
3. basic.return for a mandatory message is written before the confirm of the same message.

exchange.* and queue.* methods are in ``channels.topology``; the fast path in ``channels.fast_path``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.codec import decode_method
from warren.amqp.errors import (
    ACCESS_REFUSED,
    NO_ROUTE,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelException,
    ConnectionException,
)
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag, without_key
from warren.amqp.properties import (
    EXPIRATION,
    HAS_BCC,
    HAS_CC,
    HAS_DEATHS,
    HAS_DELAY,
    HEADERS,
    REPLY_TO,
    USER_ID,
    BasicProperties,
    decode_properties,
    expiration_ms_of,
    known_headers,
)
from warren.channels.access import IMPERSONATOR, READ, WRITE, Route
from warren.channels.control import control
from warren.channels.fast_path import CLOSING, REFUSE, RETURN, TAKE, FastChannel
from warren.channels.tracing import ChannelTracer
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.recent_history_exchange import RecentHistoryExchange
from warren.exchanges.topic_exchange import TopicExchange
from warren.msgstore.message import Envelope, Message, write_frames
from warren.queues.arguments import consumer_arguments
from warren.queues.counters import SMALL_MAX_BYTES
from warren.queues.dead_letter import mark_republished
from warren.queues.delay import check_delay, due_time_ms, negate_delay
from warren.queues.delivery import Consumer, Delivery, DeliveryLedger
from warren.queues.queue import Queue
from warren.queues.virtual_host import CONTROL_EXCHANGE, VirtualHost

if TYPE_CHECKING:
    from warren.channels.connection import Connection

REPLY_TO_NAME: Final = "amq.rabbitmq.reply-to"
REPLY_TO_PREFIX: Final = "amq.rabbitmq.reply-to."
EXPIRATION_MAX_MS: Final = 315360000000


class BufferedPublish:
    """A publish that waits for tx.commit: with the queues, and the exchanges that hold or remember it."""

    def __init__(
        self,
        message: Message,
        exchange: Exchange,
        queues: list[Queue],
        holders: list[Exchange] | None,
        rememberers: list[RecentHistoryExchange] | None,
        mandatory: bool,
    ) -> None:
        self.message = message
        self.exchange = exchange
        self.queues = queues
        self.holders = holders
        self.rememberers = rememberers
        self.mandatory = mandatory

    def left(self) -> list[Queue]:
        """Return the queues that it goes to; one that was deleted since the publish takes nothing any more."""
        return [queue for queue in self.queues if not queue.deleted]


class Transaction:
    """What a transactional channel has buffered since tx.select or the last commit."""

    def __init__(self) -> None:
        self.publishes: list[BufferedPublish] = []
        self.acked: list[Delivery] = []
        self.rejected: list[tuple[Delivery, bool, bool]] = []  # with: requeue, failed


class Channel(FastChannel):
    """One channel of a connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        unacked_max = connection.broker.limits.unacked_per_channel_max
        ledger = DeliveryLedger(number, connection.outbox, connection.frame_max_bytes, unacked_max)
        ledger.owner = self
        super().__init__(connection, number, ledger)
        self.connection = connection
        vhost = connection.fast_vhost
        self.sync_confirms = vhost is None or vhost.sync_confirms
        self.last_queue = ""  # what an empty queue name means
        self.prefetch: int = 0  # for consumers to come
        self.reply_queue: Queue | None = None
        connection.channels_opened += 1
        self.serial: int = connection.channels_opened  # unlike the number never used again
        self._transaction: Transaction | None = None
        self._tracer: ChannelTracer | None = None
        self.trace(vhost is not None and vhost.tracing)

    @property
    def vhost(self) -> VirtualHost:
        vhost = self.fast_vhost_or_none()
        assert vhost is not None
        return vhost

    def fast_vhost_or_none(self) -> VirtualHost | None:
        return self.fast_connection.fast_vhost

    def authorize(self, action: int, kind: str, name: str) -> None:
        """Make sure that this connection's user may do `action`.

        Raises:
            ChannelException: 403.
        """
        principal = self.fast_connection.fast_principal
        assert principal is not None
        principal.authorize(action, kind, name)

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        """Send a reply, not before the metadata change `ticket` and the log's `batch` are on disk."""
        self.connection.send_method(int(self.number), method, ticket, batch)

    def trace(self, on: bool) -> None:
        """Begin or end to have copies made of what is published and delivered here."""
        self._tracer = ChannelTracer(self.connection, int(self.number)) if on else None
        self.ledger.watcher = self._tracer

    # --- publishing -----------------------------------------------------------------------------------------------

    def make_route(self, arguments: bytes) -> Route:
        """Decode, authorize and route the argument bytes of basic.publish.

        Raises:
            ChannelException: 403, 404. ConnectionException: 540, immediate.
        """
        payload = b"\x00\x3c\x00\x28" + arguments
        publish: m.BasicPublish = decode_method(payload, 0, len(payload))
        vhost = self.vhost
        principal = self.fast_connection.fast_principal
        assert principal is not None
        if publish.immediate:
            raise ConnectionException(NOT_IMPLEMENTED, "immediate=true")
        if publish.exchange == CONTROL_EXCHANGE:
            control_exchange = vhost.exchange(CONTROL_EXCHANGE)
            return Route(Envelope(CONTROL_EXCHANGE, publish.routing_key), control_exchange, [], False, False, False)
        self.authorize(WRITE, "exchange", publish.exchange)
        exchange = vhost.exchange(publish.exchange)
        if exchange.internal:
            raise ChannelException(
                ACCESS_REFUSED,
                f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost.name}'",
            )
        if isinstance(exchange, TopicExchange):
            principal.authorize_topic(WRITE, exchange.name, publish.routing_key)
        envelope = Envelope(publish.exchange, publish.routing_key)
        cacheable = vhost.is_cacheable(exchange) and self.shared.judge is None
        queues: list[Queue] = []
        if exchange.name == "" and publish.routing_key.startswith(REPLY_TO_PREFIX):
            cacheable = False
        if cacheable:
            queues = vhost.route(exchange, [publish.routing_key], Content(b""))
        return Route(envelope, exchange, queues, cacheable, publish.mandatory, publish.immediate)

    def publish_with_care(
        self, route: Route, content: bytes, header: bytes, flags: i64, body_bytes: i64, largest: i64
    ) -> None:
        """Publish a message whose properties the broker may have to act on, or that needs routing of its own.

        Raises:
            ChannelException: 406, a property is not acceptable; 403, a topic of CC or BCC is not permitted.
        """
        vhost = self.vhost
        envelope = route.envelope
        if envelope.exchange == CONTROL_EXCHANGE:
            self._control(route, header, body_bytes)
            return
        keys = [envelope.routing_key]
        properties: BasicProperties | None = None
        rewritten = False
        known: i64 = 0
        if flags & HEADERS:
            known = known_headers(header)
        if flags & (EXPIRATION | USER_ID | REPLY_TO) or known & (HAS_CC | HAS_BCC):
            properties = decode_properties(header, 0, len(header))
            self._check_properties(properties)
            if properties.headers is not None:
                copies, blind_copies = _carbon_copies(properties.headers)
                keys = keys + copies + blind_copies
                if blind_copies:
                    envelope = Envelope(envelope.exchange, envelope.routing_key)
                    envelope.blind_copies = blind_copies
                    properties.headers = without_key(properties.headers, b"BCC")
                    rewritten = True
            if properties.reply_to == REPLY_TO_NAME:
                if self.reply_queue is None:
                    raise ChannelException(PRECONDITION_FAILED, "fast reply consumer does not exist")
                properties.reply_to = self.reply_queue.name
                rewritten = True
        message = Message(envelope, content, self.number, body_bytes, largest, flags & 2 != 0)
        if rewritten and properties is not None:
            message = self._with_properties(message, properties)
        if known & HAS_DEATHS:
            message = mark_republished(message)
        if known & HAS_DELAY:
            now_ms: i64 = self.shared.log.now_ms
            due_ms: i64 = due_time_ms(header, now_ms)
            if due_ms:
                check_delay(due_ms, now_ms)
                message.due_ms = due_ms
        if flags & EXPIRATION:
            message.expiration_ms = expiration_ms_of(header)
        if len(keys) > 1 and isinstance(vhost.exchange(envelope.exchange), TopicExchange):
            principal = self.fast_connection.fast_principal
            assert principal is not None
            for key in keys:
                principal.authorize_topic(WRITE, envelope.exchange, key)
        holders: list[Exchange] | None = None
        rememberers: list[RecentHistoryExchange] | None = None
        repeated = bool(vhost.seen_keys) and self._transaction is None and self._is_repeated(message)
        if repeated:
            queues = []
        elif route.cacheable and len(keys) == 1:
            queues = route.queues
            message.sole = len(queues) == 1
        else:
            routed = Content(header)
            routed.due_ms = message.due_ms
            queues = vhost.route(vhost.exchange(envelope.exchange), keys, routed)
            holders = routed.holders
            rememberers = routed.rememberers
        if self._tracer is not None:
            self._tracer.published(keys, message, queues)
        transaction = self._transaction
        if transaction is not None:
            transaction.publishes.append(
                BufferedPublish(message, route.exchange, queues, holders, rememberers, route.mandatory)
            )
            return
        if rememberers is not None:
            _remember_in(rememberers, message)
        self._count(route.exchange, body_bytes, len(queues))
        if not repeated:
            self._enqueue(message, queues, holders, route.mandatory)
        if self.confirming:
            self.count_publish(message)

    def _count(self, exchange: Exchange, body_bytes: i64, queues: i64) -> None:
        """Count a message published to `exchange` that goes to so many queues."""
        self.published += 1
        self.published_bytes += body_bytes
        if body_bytes > SMALL_MAX_BYTES:
            self.shared.sizes.count(body_bytes)
        exchange.published_in += 1
        self.not_to_one(exchange, queues)

    def _control(self, route: Route, header: bytes, body_bytes: i64) -> None:
        control(self, route.envelope.routing_key, header)
        self._count(route.exchange, body_bytes, 0)
        if self.confirming:
            self.count_publish(Message(route.envelope, b"", 0, 0, 0, False))

    def _is_repeated(self, message: Message) -> bool:
        """Tell whether its exchange has accepted `message` before, and so drops it."""
        seen = self.vhost.seen_keys.get(message.envelope.exchange)
        keys = None if seen is None else seen.keys_of(message)
        return seen is not None and keys is not None and seen.drops(keys, message)

    def _remember(self, message: Message, queues: list[Queue], holders: list[Exchange] | None) -> None:
        """Have its exchange remember `message`, which these have got."""
        seen = self.vhost.seen_keys.get(message.envelope.exchange)
        keys = None if seen is None else seen.keys_of(message)
        if seen is not None and keys is not None:
            stored = False
            for queue in queues:
                stored = stored or queue.stores
            if holders is not None:
                for holder in holders:
                    stored = stored or holder.durable
            seen.add(keys, message, stored)

    def _enqueue(self, message: Message, queues: list[Queue], holders: list[Exchange] | None, mandatory: bool) -> None:
        """Hand a routed message to whoever takes it."""
        judge = self.shared.judge
        if judge is not None:
            verdict = judge(self, message, queues)
            if verdict != TAKE:
                message.refused = verdict == REFUSE
                if verdict == RETURN and mandatory:
                    self._return(message)
                return
        if not queues:
            if mandatory:
                self._return(message)
            elif holders is None:
                self.dropped += 1
        if message.due_ms:
            negate_delay(message)
            for queue in queues:
                queue.hold(message, message.due_ms)
            if holders is not None:
                for holder in holders:
                    self.vhost.hold(holder, message)
        else:
            for queue in queues:
                if message.expiration_ms >= 0:
                    queue.need_keeper()
                queue.publish(message)
        if self.vhost.seen_keys and (queues or holders) and not message.refused:
            self._remember(message, queues, holders)

    def _check_properties(self, properties: BasicProperties) -> None:
        expiration = properties.expiration
        if expiration is not None:
            reason = _expiration_error(expiration)
            if reason:
                text = f"invalid expiration '{expiration}': {reason}"
                raise ChannelException(PRECONDITION_FAILED, text)
        user_id = properties.user_id
        if user_id is not None:
            principal = self.fast_connection.fast_principal
            assert principal is not None
            if user_id != principal.user.name and IMPERSONATOR not in principal.user.tags:
                raise ChannelException(
                    PRECONDITION_FAILED,
                    f"user_id property set to '{user_id}' but authenticated user was '{principal.user.name}'",
                )

    def _with_properties(self, message: Message, properties: BasicProperties) -> Message:
        """Return `message` with other properties."""
        header = BytesWriter()
        write_i32_be(header, 60 << 16)
        write_i64_be(header, message.body_bytes)
        header.write(properties.encode())
        payload = header.getvalue()
        out = BytesWriter()
        write_frames(out, message.channel, payload, message.body(), message.frame_max_bytes)
        largest: i64 = message.frame_max_bytes
        if 8 + len(payload) > largest:
            largest = 8 + len(payload)
        return Message(
            message.envelope, out.getvalue(), message.channel, message.body_bytes, largest, message.persistent
        )

    def unroutable(self, route: Route, message: Message) -> None:
        """Return a mandatory message that no queue takes."""
        if route.mandatory:
            self._return(message)
        else:
            self.dropped += 1

    def _return(self, message: Message) -> None:
        self.returned += 1
        envelope = message.envelope
        self.connection.send_event(
            int(self.number), m.BasicReturn(NO_ROUTE, "NO_ROUTE", envelope.exchange, envelope.routing_key)
        )
        self.ledger.write_content(message)
        self.connection.check_outbox()

    # --- acknowledging --------------------------------------------------------------------------------------------

    def acknowledge(self, tag: i64, multiple: bool) -> None:
        """basic.ack.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        transaction = self._transaction
        if transaction is None:
            self.ledger.ack(tag, multiple)
        else:
            transaction.acked.extend(self.ledger.take(tag, multiple))

    def reject(self, tag: int, multiple: bool, requeue: bool, *, failed: bool, delay_ms: int = -1) -> None:
        """basic.nack and basic.reject. `failed`: a requeue counts towards the delivery limit.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        taken = self.ledger.take(_signed(tag), multiple)
        if self._transaction is not None:
            self._transaction.rejected.extend([(delivery, requeue, failed) for delivery in taken])
            return
        self._put_back(taken, requeue, failed, delay_ms)

    def touch(self, tag: int) -> None:
        """Give a delivery its visibility timeout again.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        delivery = self.ledger.outstanding(_signed(tag))
        delivery.queue.touch(self.ledger, delivery)

    def _put_back(self, deliveries: list[Delivery], requeue: bool, failed: bool, delay_ms: int = -1) -> None:
        """Requeue or drop deliveries, then wake their queues: all are in place before the first leaves again."""
        touched: list[Queue] = []
        for delivery in deliveries:
            queue = delivery.queue
            self.ledger.release(delivery)
            if requeue:
                queue.requeue(delivery, failed=failed, delay_ms=delay_ms)
            else:
                queue.reject(delivery)
            if not touched or touched[-1] is not queue:
                touched.append(queue)
        for queue in touched:
            queue.wake()
        if self.ledger.prefetch or self.ledger.starved:
            self.ledger.wake_consumers()

    def _settle(self, deliveries: list[Delivery]) -> None:
        """Settle what was acknowledged in a transaction."""
        self.ledger.acked += len(deliveries)
        for delivery in deliveries:
            self.ledger.release(delivery)
            delivery.queue.settle(delivery)
            delivery.queue.wake()
        if self.ledger.prefetch or self.ledger.starved:
            self.ledger.wake_consumers()

    # --- the methods of class basic, confirm, tx and channel --------------------------------------------------------

    def handle(self, method: Any) -> None:
        """Handle a method other than exchange.* and queue.*.

        Raises:
            AmqpError: whatever the method's rules say.
        """
        match method:
            case m.BasicAck():
                self.acknowledge(_signed(method.delivery_tag), method.multiple)
            case m.BasicNack():
                self.reject(method.delivery_tag, method.multiple, method.requeue, failed=False)
            case m.BasicReject():
                self.reject(method.delivery_tag, False, method.requeue, failed=True)
            case m.BasicGet():
                self._get(method)
            case m.BasicConsume():
                self._consume(method)
            case m.BasicCancel():
                self._cancel(method)
            case m.BasicCancelOk():
                pass
            case m.BasicQos():
                self._qos(method)
            case m.BasicRecover():
                self._recover(method.requeue)
                self.reply(m.BasicRecoverOk())
            case m.BasicRecoverAsync():
                self._recover(method.requeue)
            case m.ConfirmSelect():
                self._confirm_select(method)
            case m.TxSelect():
                self._tx_select()
            case m.TxCommit():
                self._tx_commit()
            case m.TxRollback():
                self._tx_rollback()
            case m.ChannelFlow():
                if not method.active:
                    raise ConnectionException(NOT_IMPLEMENTED, "active=false")
                self.reply(m.ChannelFlowOk(True))
            case m.AccessRequest():
                self.reply(m.AccessRequestOk(1))
            case _:
                raise ConnectionException(503, "unimplemented method")

    def queue_name(self, name: str) -> str:
        """Resolve an empty queue name to the last queue declared on this channel.

        Raises:
            ChannelException: 404, none was.
        """
        if name == "":
            if self.last_queue == "":
                raise ChannelException(NOT_FOUND, "no previously declared queue")
            return self.last_queue
        return name

    def _get(self, method: m.BasicGet) -> None:
        name = self.queue_name(method.queue)
        self.authorize(READ, "queue", name)
        queue = self.vhost.queue(name, self.connection)
        if not queue.get(self.ledger, method.no_ack):
            self.reply(m.BasicGetEmpty(""))

    def _consume(self, method: m.BasicConsume) -> None:
        if method.queue == REPLY_TO_NAME:
            self._consume_replies(method)
            return
        name = self.queue_name(method.queue)
        self.authorize(READ, "queue", name)
        tag = method.consumer_tag or "amq.ctag-" + self.connection.broker.unique_name()
        self._check_new_consumer(tag)
        queue = self.vhost.queue(name, self.connection)
        wanted = consumer_arguments(queue.name, self.vhost.name, method.arguments)
        consumer = Consumer(
            self.ledger,
            queue,
            tag,
            method.no_ack,
            method.exclusive,
            wanted.priority,
            self.prefetch,
            method.arguments,
        )
        consumer.wanted_visibility_ms = wanted.visibility_timeout_ms
        consumer.wanted_timeout_ms = wanted.consumer_timeout_ms
        consumer.owner = self
        queue.add_consumer(consumer)
        self.ledger.consumers[tag] = consumer
        self.connection.broker.churn.consumers_created += 1
        self.connection.broker.watchers.consumer_created(consumer)
        if not method.no_wait:
            self.reply(m.BasicConsumeOk(tag))

    def _check_new_consumer(self, tag: str) -> None:
        consumers = self.ledger.consumers
        if tag in consumers:
            raise ConnectionException(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        limit = self.connection.broker.limits.consumers_per_channel_max
        if len(consumers) >= limit:
            raise ConnectionException(NOT_ALLOWED, f"reached maximum ({limit}) of consumers per channel")

    def _consume_replies(self, method: m.BasicConsume) -> None:
        """Direct reply-to: replies go to an unlisted queue with an unguessable name."""
        if not method.no_ack:
            raise ChannelException(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self.reply_queue is not None:
            raise ChannelException(PRECONDITION_FAILED, "reply consumer already set")
        tag = method.consumer_tag or "amq.ctag-" + self.connection.broker.unique_name()
        self._check_new_consumer(tag)
        queue = self.vhost.open_reply_queue(REPLY_TO_PREFIX + self.connection.broker.unique_name(), self.connection)
        consumer = Consumer(self.ledger, queue, tag, True, False, 0, 0, method.arguments)
        consumer.owner = self
        queue.add_consumer(consumer)
        self.reply_queue = queue
        self.ledger.consumers[tag] = consumer
        self.connection.broker.churn.consumers_created += 1
        if not method.no_wait:
            self.reply(m.BasicConsumeOk(tag))

    def _cancel(self, method: m.BasicCancel) -> None:
        consumer = self.ledger.consumers.get(method.consumer_tag)
        if consumer is not None:
            self._remove_consumer(consumer)
        if not method.no_wait:
            self.reply(m.BasicCancelOk(method.consumer_tag))

    def _remove_consumer(self, consumer: Consumer) -> None:
        del self.ledger.consumers[consumer.tag]
        self.connection.broker.churn.consumers_deleted += 1
        queue = consumer.queue
        if queue is not self.reply_queue:
            self.connection.broker.watchers.consumer_deleted(consumer)
        consumer.owner = None
        if queue is self.reply_queue:
            self.vhost.close_reply_queue(queue)
            self.reply_queue = None
            return
        queue.remove_consumer(consumer)
        if queue.auto_delete and not queue.consumers:
            self.connection.broker.delete_queue(self.vhost, queue)

    def consumer_lost(self, consumer: Consumer) -> None:
        """The queue of `consumer` is gone, or the right to read it: tell a client that understands."""
        if self.ledger.consumers.pop(consumer.tag, None) is None:
            return
        self.connection.broker.churn.consumers_deleted += 1
        consumer.owner = None
        if self.connection.consumer_cancel_notify:
            self.connection.send_event(int(self.number), m.BasicCancel(consumer.tag, True))

    def revoke_consumers(self) -> None:
        """Cancel the consumers of queues that the user may no longer read."""
        principal = self.fast_connection.fast_principal
        assert principal is not None
        for consumer in list(self.ledger.consumers.values()):
            if consumer.queue is self.reply_queue or principal.may(READ, consumer.queue.name):
                continue
            queue = consumer.queue
            self.connection.broker.watchers.consumer_deleted(consumer)
            self.consumer_lost(consumer)
            queue.remove_consumer(consumer)
            if queue.auto_delete and not queue.consumers:
                self.connection.broker.delete_queue(self.vhost, queue)

    def _qos(self, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise ConnectionException(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
        if method.global_:
            self.ledger.prefetch = method.prefetch_count
            self.ledger.wake_consumers()
        else:
            self.prefetch = method.prefetch_count
        self.reply(m.BasicQosOk())

    def _recover(self, requeue: bool) -> None:
        if not requeue:
            raise ConnectionException(NOT_IMPLEMENTED, "requeue=false")
        self._put_back(self.ledger.take_all(), True, False)

    # --- confirms and transactions ----------------------------------------------------------------------------------

    def _confirm_select(self, method: m.ConfirmSelect) -> None:
        if self._transaction is not None:
            raise ChannelException(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self.confirming = True
        if not method.no_wait:
            self.reply(m.ConfirmSelectOk())

    def _tx_select(self) -> None:
        if self.confirming:
            raise ChannelException(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        if self._transaction is None:
            self._transaction = Transaction()
            self.transactional = True
        self.reply(m.TxSelectOk())

    def _take_transaction(self) -> Transaction:
        transaction = self._transaction
        if transaction is None:
            raise ChannelException(PRECONDITION_FAILED, "channel is not transactional")
        self._transaction = Transaction()
        return transaction

    def _tx_commit(self) -> None:
        transaction = self._take_transaction()
        partial = False
        repeats = False
        for publish in transaction.publishes:
            message = publish.message
            if publish.rememberers is not None:
                _remember_in(publish.rememberers, message)
            left = publish.left()
            if not self.vhost.seen_keys or not self._is_repeated(message):
                self._count(publish.exchange, message.body_bytes, len(left))
                self._enqueue(message, left, publish.holders, publish.mandatory)
            else:
                self._count(publish.exchange, message.body_bytes, 0)
            partial = partial or message.refused
            repeats = repeats or message.awaits_batch
        self._settle(transaction.acked)
        for delivery, requeue, failed in transaction.rejected:
            self._put_back([delivery], requeue, failed)
        if partial:
            raise ChannelException(PRECONDITION_FAILED, "partial tx completion")
        log = self.shared.log
        batch = log.close_soon(self.sync_confirms)
        if repeats and not batch:
            log.force()  # what is repeated may be on its way to the disk
            batch = int(log.batch)
        self.reply(m.TxCommitOk(), 0, batch)

    def _tx_rollback(self) -> None:
        transaction = self._take_transaction()
        restored = transaction.acked + [delivery for delivery, _, _ in transaction.rejected]
        self.ledger.restore(restored)
        for delivery in restored:
            # Its time may have run out while its answer waited: nobody would look at it again.
            delivery.queue.touch(self.ledger, delivery)
        self.reply(m.TxRollbackOk())

    def uncommitted(self) -> tuple[int, int]:
        """Return how many publishes and how many acknowledgements wait for tx.commit."""
        transaction = self._transaction
        if transaction is None:
            return 0, 0
        return len(transaction.publishes), len(transaction.acked) + len(transaction.rejected)

    def unroutable_count(self) -> int:
        """Return how many publishes wait for tx.commit that nobody would get if it came now."""
        transaction = self._transaction
        count = 0
        if transaction is not None:
            for publish in transaction.publishes:
                if publish.holders is None and not publish.left():
                    count += 1
        return count

    def maybe_full_queue(self) -> Queue | None:
        """Return a queue that would refuse something if tx.commit came now, as far as can be said before; else None."""
        transaction = self._transaction
        if transaction is None:
            return None
        counts: dict[Queue, int] = {}
        sizes: dict[Queue, int] = {}
        for publish in transaction.publishes:
            if publish.message.due_ms:
                continue  # it is held
            for queue in publish.queues:
                if queue.may_refuse() and not queue.deleted:
                    counts[queue] = counts.get(queue, 0) + 1
                    sizes[queue] = sizes.get(queue, 0) + int(publish.message.body_bytes)
        for queue, count in counts.items():
            if not queue.has_space_for(count, sizes[queue]):
                return queue
        return None

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Let go of everything: consumers first, so that what is requeued does not come back here."""
        self.drop_content()
        self.state = CLOSING
        self.add_counts(self.vhost.counted)
        for consumer in list(self.ledger.consumers.values()):
            self._remove_consumer(consumer)
        outstanding = self.ledger.take_all()
        if self._transaction is not None:
            outstanding += self._transaction.acked + [delivery for delivery, _, _ in self._transaction.rejected]
            self._transaction = None
        self._put_back(outstanding, True, True)
        # It has us and we have it: nothing must be left for the cyclic collector.
        self.ledger.owner = None
        if not self.connection.is_direct:
            self.connection.broker.churn.channels_closed += 1
            self.connection.broker.events.channel_closed(self)


def _remember_in(exchanges: list[RecentHistoryExchange], message: Message) -> None:
    for exchange in exchanges:
        exchange.remember(message)


def _signed(tag: int) -> int:
    """Bring an unsigned 64-bit delivery tag into the range of i64; what overflows is unknown anyway."""
    return tag if tag < 1 << 63 else -1


def _expiration_error(text: str) -> str:
    """Return why `text` is no expiration in ms, or ``""``."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    count = 0
    while count < len(digits) and "0" <= digits[count] <= "9":
        count += 1
    if count == 0:
        return "no_integer"
    if count < len(digits):
        return f'{{leftover_string,"{digits[count:]}"}}'
    value = int(text)
    if value < 0:
        return f"{{value_negative,{value}}}"
    if value > EXPIRATION_MAX_MS:
        return f"{{value_too_large,{value}}}"
    return ""


def _carbon_copies(headers: bytes) -> tuple[list[str], list[str]]:
    table = decode_table(headers)
    return _keys_of(table, "CC", headers), _keys_of(table, "BCC", headers)


def _keys_of(table: dict[str, object], name: str, headers: bytes) -> list[str]:
    if name not in table:
        return []
    value = table[name]
    if not isinstance(value, list):
        tag = TYPE_NAMES[find_tag(headers, name)]
        raise ChannelException(PRECONDITION_FAILED, f'invalid message: {{unacceptable_type_in_header,"{name}",{tag}}}')
    return [key for key in value if isinstance(key, str)]
