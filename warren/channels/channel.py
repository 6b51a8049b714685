"""A channel: publishing beyond the fast path, consuming, acknowledging, confirms and transactions.

1. A failed method closes the channel and nothing else: its unacked messages are back in their queues, in order and
   marked redelivered, its consumers are gone, before the channel.close is written.
2. basic.return for a mandatory message is written before the confirm of the same message.

exchange.* and queue.* methods are in ``channels.topology``, confirms in ``channels.confirms``, what a transaction is in
``channels.transaction``; the fast path is in ``channels.fast_path``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.codec import decode_method
from warren.amqp.errors import (
    COMMAND_INVALID,
    NO_ROUTE,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelException,
    ConnectionException,
)
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag, without_key
from warren.amqp.methods import (
    BASIC_CLASS_ID,
    BASIC_PUBLISH,
    FRAME_END,
    FRAME_HEADER,
    FRAME_OVERHEAD_BYTES,
)
from warren.amqp.numbers import number_text
from warren.amqp.properties import (
    EXPIRATION,
    HAS_BCC,
    HAS_CC,
    HAS_DEATHS,
    HAS_DELAY,
    HEADERS,
    PERSISTENT_FLAG,
    REPLY_TO,
    USER_ID,
    BasicProperties,
    decode_properties,
    expiration_ms_of,
    known_headers,
)
from warren.channels.access import IMPERSONATOR, READ, WRITE, Route, ticket_of
from warren.channels.commit_check import CommitCheck
from warren.channels.confirms import Confirms
from warren.channels.control import control
from warren.channels.fast_path import CHANNEL_CLOSING, REFUSE, RETURN, TAKE, FastChannel
from warren.channels.jobs import AckRun, Reply, ReturnRun
from warren.channels.tracing import ChannelTracer
from warren.channels.transaction import BufferedPublish, BufferRun, Commit, Rollback, Transaction
from warren.channels.wide_publish import QUEUES_AT_ONCE, OnceMore, Spread, WidePublish, hand_over
from warren.exchanges.content import STEPS_MAX, Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.recent_history_exchange import RecentHistoryExchange
from warren.exchanges.topic_exchange import TopicExchange
from warren.msgstore.log.message import Envelope, Message, write_frame_head
from warren.queues.arguments import consumer_arguments
from warren.queues.counters import SMALL_MAX_BYTES
from warren.queues.dead_letter import mark_republished, reheaded
from warren.queues.delay import check_delay, due_time_ms, negate_delay
from warren.queues.delivery import Consumer, Delivery, DeliveryLedger
from warren.queues.long_work import ALL_STEPS, Job, Steps
from warren.queues.origin import CHANNEL
from warren.queues.outcome import ACCEPTED, REFUSED, REPEATED
from warren.queues.queue import Queue
from warren.queues.seen_keys import Claim, MessageKeys
from warren.vhosts.history import remember_in
from warren.vhosts.virtual_host import CONTROL_EXCHANGE, VirtualHost

if TYPE_CHECKING:
    from warren.channels.connection import Connection

REPLY_TO_NAME: Final = "amq.rabbitmq.reply-to"
REPLY_TO_PREFIX: Final = "amq.rabbitmq.reply-to."
EXPIRATION_MAX_MS: Final = 315360000000
# So much of a transaction of the broker's own is committed at once.
ROWS_AT_ONCE: Final = 16384
TOPIC_STEPS_MAX: Final = 1 << 14  # of permissions for the keys of one message: 8,000 with an ordinary pattern


class Channel(FastChannel):
    """One channel of a connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        unacked_max = connection.broker.limits.unacked_per_channel_max
        ledger = DeliveryLedger(number, connection.turns, connection.frame_max_bytes, unacked_max)
        ledger.owner = self
        super().__init__(connection, number, ledger)
        self.connection = connection
        vhost = connection.fast_vhost
        # A confirm, or tx.commit-ok, means synced, not just written.
        self.sync_confirms: bool = vhost is None or vhost.sync_confirms
        self.last_queue = ""  # what an empty queue name means
        self.prefetch: int = 0  # for consumers to come
        self.reply_queue: Queue | None = None
        connection.channels_opened += 1
        self.serial: int = connection.channels_opened  # unlike the number never used again
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

    def reply_when_done(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        """`reply` when all jobs of the connection are done."""
        self.connection.begin(Reply(self, method, ticket, batch))

    def trace(self, on: bool) -> None:
        """Begin or end to have copies made of what is published and delivered here."""
        self._tracer = ChannelTracer(self.connection, int(self.number)) if on else None
        self.ledger.watcher = self._tracer

    # --- publishing -----------------------------------------------------------------------------------------------

    def make_route(self, arguments: bytes) -> Route:
        """Decode, authorize and route the argument bytes of basic.publish.

        Raises:
            ChannelException: 403, 404; 406, the bindings of the exchange make it too much work. ConnectionException:
                540, immediate.
        """
        payload = BASIC_PUBLISH.to_bytes(4, "big") + arguments
        publish: m.BasicPublish = decode_method(payload, 0, len(payload))
        vhost = self.vhost
        principal = self.fast_connection.fast_principal
        assert principal is not None
        if publish.immediate:
            raise ConnectionException(NOT_IMPLEMENTED, "immediate=true")
        if publish.exchange == CONTROL_EXCHANGE:
            control_exchange = vhost.exchange(CONTROL_EXCHANGE)
            return Route(
                Envelope(CONTROL_EXCHANGE, publish.routing_key),
                control_exchange,
                [],
                cacheable=False,
                mandatory=False,
                immediate=False,
            )
        exchange = principal.publishable(vhost, publish.exchange, publish.routing_key)
        envelope = Envelope(publish.exchange, publish.routing_key)
        cacheable = vhost.is_cacheable(exchange) and self.shared.judge is None
        queues: list[Queue] = []
        if exchange.name == "" and publish.routing_key.startswith(REPLY_TO_PREFIX):
            cacheable = False
        if cacheable:
            routed = Content(b"")
            queues = vhost.route(exchange, [publish.routing_key], routed)
            self.fast_connection.units_left -= STEPS_MAX - routed.steps_left
            _check_steps(routed, exchange.name, vhost.name)
        return Route(
            envelope, exchange, queues, cacheable=cacheable, mandatory=publish.mandatory, immediate=publish.immediate
        )

    def publish_with_care(
        self,
        route: Route,
        content: bytes,
        pieces: list[bytes] | None,
        header: bytes,
        flags: i64,
        body_bytes: i64,
        largest: i64,
    ) -> None:
        """Publish a message whose properties the broker may have to act on, or that needs routing of its own.

        Raises:
            ChannelException: 406, a property is not acceptable, or routing it is too much work; 403, a topic of CC or
                BCC is not permitted.
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
                keys = list(dict.fromkeys(keys + copies + blind_copies))
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
        message = Message(envelope, content, self.number, body_bytes, largest, flags & PERSISTENT_FLAG != 0, pieces)
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
            self._authorize_topics(envelope.exchange, keys)
        job: Job | None = None
        if self.transaction is None and self.is_claimed(message):
            job = OnceMore(self, route, message, keys, header, wants_hold=False)
        else:
            job = self.publish_routed(route, route.queues, message, keys, header, holds=False)
        if job is not None:
            self.connection.begin(job)

    def publish_routed(
        self, route: Route, remembered: list[Queue], message: Message, keys: list[str], header: bytes, *, holds: bool
    ) -> Job | None:
        """Route a message and publish it; return what is left to be done of that, None: nothing.

        `remembered`: where it goes if `route` can be remembered; `keys`: its routing key and those of CC and BCC;
        `holds`: whoever calls holds the batch.

        Raises:
            ChannelException: 404, the exchange is gone; 406, routing it is too much work.
        """
        vhost = self.vhost
        exchange = message.envelope.exchange
        holders: list[Exchange] | None = None
        rememberers: list[RecentHistoryExchange] | None = None
        repeated = bool(vhost.seen_keys) and self.transaction is None and self._is_repeated(message)
        if repeated:
            queues: list[Queue] = []
        elif route.cacheable and len(keys) == 1:
            queues = remembered
            message.sole = len(queues) == 1
        else:
            routed = Content(header)
            routed.due_ms = message.due_ms
            queues = vhost.route(vhost.exchange(exchange), keys, routed)
            self.fast_connection.units_left -= STEPS_MAX - routed.steps_left
            _check_steps(routed, exchange, vhost.name)
            holders = routed.holders
            rememberers = routed.rememberers
        claimed: MessageKeys | None = None
        is_wide = self._is_wide(queues)
        if is_wide and self.transaction is None and vhost.seen_keys:
            claimed = self._keys_of(message)
            if claimed is not None and message.persistent and not holds:
                return OnceMore(self, route, message, keys, header, wants_hold=True)
        if self._tracer is not None:
            self._tracer.published(keys, message, queues)
        transaction = self.transaction
        if transaction is not None:
            transaction.add(BufferedPublish(message, route.exchange, queues, holders, rememberers, route.mandatory))
            return None
        if rememberers is not None:
            self.fast_connection.units_left -= remember_in(rememberers, message)
        self._count(route.exchange, message.body_bytes, len(queues))
        if is_wide:
            if message.due_ms:
                negate_delay(message)
            spread = Spread(message, queues, self._claim(message, claimed), CHANNEL)
            return WidePublish(self, spread, holders, holds=holds)
        if repeated or holders is not None:
            # The queues that have it, or the exchange that holds it, may be as new as anything.
            outcome: i64 = REPEATED
            if not repeated:
                outcome = self._enqueue(message, queues, holders, route.mandatory, CHANNEL)
            self._told(message, outcome, None)
        else:
            self._told(message, self._enqueue(message, queues, holders, route.mandatory, CHANNEL), queues)
        return None

    def _authorize_topics(self, exchange: str, keys: list[str]) -> None:
        """Make sure that a message may be published with all of its routing keys.

        Raises:
            ChannelException: 403; 406, finding out is too much work.
        """
        principal = self.fast_connection.fast_principal
        assert principal is not None
        searched: i64 = principal.searched
        try:
            for key in keys:
                principal.authorize_topic(WRITE, exchange, key)
                if principal.searched - searched > TOPIC_STEPS_MAX:
                    raise ChannelException(
                        PRECONDITION_FAILED,
                        f"a message for exchange '{exchange}' in vhost '{self.vhost.name}' has more routing keys than "
                        "its topic permissions can be asked about at a time",
                    )
        finally:
            self.fast_connection.units_left -= principal.searched - searched

    def _is_wide(self, queues: list[Queue]) -> bool:
        """Tell whether a publish goes to so many queues that it takes several turns."""
        return len(queues) > QUEUES_AT_ONCE and self.shared.judge is None

    def publish_wide(self, message: Message, queues: list[Queue], holders: list[Exchange] | None) -> None:
        self.connection.begin(WidePublish(self, Spread(message, queues, None, CHANNEL), holders))

    def _keys_of(self, message: Message) -> MessageKeys | None:
        """Return what its exchange knows `message` by; None when that drops no repetitions."""
        seen = self.vhost.seen_keys.get(message.envelope.exchange)
        return None if seen is None else seen.keys_of(message)

    def _claim(self, message: Message, keys: MessageKeys | None) -> Claim | None:
        return None if keys is None else Claim(self.vhost.seen_keys[message.envelope.exchange], keys)

    def is_claimed(self, message: Message) -> bool:
        """Tell whether another message is under way of which this one may be a repetition."""
        seen_keys = self.vhost.seen_keys
        if not seen_keys:
            return False
        seen = seen_keys.get(message.envelope.exchange)
        if seen is None or not seen.has_claims():
            return False
        keys = seen.keys_of(message)
        return keys is not None and seen.is_claimed(keys)

    def wide_publish_done(self, spread: Spread, holders: list[Exchange] | None) -> None:
        """All queues have what was published to very many."""
        outcome: i64 = self.spread_done(spread, holders)
        self._told(spread.message, outcome, spread.queues if holders is None else None)

    def _told(self, message: Message, outcome: i64, queues: list[Queue] | None) -> None:
        """Have a publish confirmed, or refused. `queues`: those that have it; None: it is not known who else has."""
        confirms = self.confirms
        if confirms is not None and self.is_open():
            confirms.count_publish(message, outcome, self.ticket_of(queues))
            if outcome == REFUSED:
                self.connection.check_outbox()

    def ticket_of(self, queues: list[Queue] | None) -> i64:
        """Return the change of the metadata that a message in `queues` waits for; None: it may be in anything."""
        return self.connection.broker.journal.last_ticket if queues is None else ticket_of(queues)

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
        confirms = self.confirms
        if confirms is not None:
            confirms.count_publish(Message(route.envelope, b"", 0, 0, 0, False), ACCEPTED, 0)

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

    def _enqueue(
        self, message: Message, queues: list[Queue], holders: list[Exchange] | None, mandatory: bool, origin: i64
    ) -> i64:
        """Hand a routed message to whoever takes it; return the outcome."""
        judge = self.shared.judge
        if judge is not None:
            verdict = judge(self, message, queues)
            if verdict != TAKE:
                if verdict == RETURN and mandatory:
                    self._return(message)
                return REFUSED if verdict == REFUSE else ACCEPTED
        if not queues:
            if mandatory:
                self._return(message)
            elif holders is None:
                self.dropped += 1
        outcome: i64 = ACCEPTED
        if message.due_ms:
            negate_delay(message)
        for queue in queues:
            outcome = _greater(outcome, hand_over(message, queue, origin))
        return self._handed_over(message, queues, holders, outcome)

    def spread_done(self, spread: Spread, holders: list[Exchange] | None) -> i64:
        """All queues have what goes to very many; return the outcome."""
        outcome: i64 = self._handed_over(spread.message, spread.queues, holders, spread.outcome)
        if spread.claim is not None:
            spread.claim.end()
        return outcome

    def _handed_over(self, message: Message, queues: list[Queue], holders: list[Exchange] | None, outcome: i64) -> i64:
        """All queues have `message`: see to exchanges that hold or remember it; return the outcome."""
        if message.due_ms and holders is not None:
            for holder in holders:
                self.vhost.hold(holder, message)
        if self.vhost.seen_keys and (queues or holders) and outcome != REFUSED:
            self._remember(message, queues, holders)
        return outcome

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
        write_i32_be(header, BASIC_CLASS_ID << 16)  # and a weight of 0
        write_i64_be(header, message.body_bytes)
        header.write(properties.encode())
        payload = header.getvalue()
        frame = BytesWriter()
        write_frame_head(frame, FRAME_HEADER, message.channel, len(payload))
        frame.write(payload)
        frame.append(FRAME_END)
        old_bytes = FRAME_OVERHEAD_BYTES + len(message.header_payload())
        return reheaded(message, message.envelope, frame.getvalue(), old_bytes)

    def unroutable(self, route: Route, message: Message) -> None:
        """Return a mandatory message that no queue takes."""
        if route.mandatory:
            self._return(message)
        else:
            self.dropped += 1

    def _return(self, message: Message) -> None:
        if not self.is_open():
            return  # it was in a transaction, and the connection has ended meanwhile
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
        transaction = self.transaction
        if transaction is None:
            if not self.ledger.ack(tag, multiple):
                self.connection.begin(AckRun(self, tag))
        elif multiple:
            self.ledger.check_outstanding(tag)
            run = BufferRun(self.ledger, tag, transaction, rejected=False, requeue=False, failed=False)
            self.connection.begin(run)
        else:
            transaction.acked.extend(self.ledger.take(tag, False))

    def reject(self, tag: int, *, multiple: bool, requeue: bool, failed: bool, delay_ms: int = -1) -> None:
        """basic.nack and basic.reject. `failed`: a requeue counts towards the delivery limit.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        transaction = self.transaction
        if multiple:
            self.ledger.check_outstanding(_signed(tag))
            if transaction is None:
                self.connection.begin(ReturnRun(self, _signed(tag), requeue=requeue, failed=failed, delay_ms=delay_ms))
            else:
                run = BufferRun(self.ledger, _signed(tag), transaction, rejected=True, requeue=requeue, failed=failed)
                self.connection.begin(run)
            return
        taken = self.ledger.take(_signed(tag), False)
        if transaction is None:
            self._put_back(taken, requeue=requeue, failed=failed, delay_ms=delay_ms)
        else:
            transaction.rejected.extend([(delivery, requeue, failed) for delivery in taken])

    def touch(self, tag: int) -> None:
        """Give a delivery its visibility timeout again.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        delivery = self.ledger.outstanding(_signed(tag))
        delivery.queue.touch(self.ledger, delivery)

    def _put_back(self, deliveries: list[Delivery], *, requeue: bool, failed: bool, delay_ms: int = -1) -> None:
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
                self.reject(method.delivery_tag, multiple=method.multiple, requeue=method.requeue, failed=False)
            case m.BasicReject():
                self.reject(method.delivery_tag, multiple=False, requeue=method.requeue, failed=True)
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
                self.reply_when_done(m.BasicRecoverOk())
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
                raise ConnectionException(COMMAND_INVALID, "unimplemented method")

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
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            priority=wanted.priority,
            prefetch=self.prefetch,
            arguments=method.arguments,
        )
        consumer.wanted_visibility_ms = wanted.visibility_timeout_ms
        consumer.wanted_timeout_ms = wanted.consumer_timeout_ms
        consumer.owner = self
        queue.add_consumer(consumer)
        self.ledger.consumers[tag] = consumer
        self.connection.broker.churn.consumers_created += 1
        self.connection.broker.watchers.consumer_created(consumer)
        consumer.keep_small_arguments()
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
        consumer = Consumer(
            self.ledger, queue, tag, no_ack=True, exclusive=False, priority=0, prefetch=0, arguments=method.arguments
        )
        consumer.keep_small_arguments()
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
        self.ledger.left(consumer)
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
        self.ledger.left(consumer)
        self.connection.broker.churn.consumers_deleted += 1
        consumer.owner = None
        if self.is_open() and self.connection.consumer_cancel_notify:
            self.connection.send_event(int(self.number), m.BasicCancel(consumer.tag, True))

    def recheck(self, consumer: Consumer) -> None:
        """Cancel `consumer` if it is still there and the user may no longer read its queue."""
        principal = self.fast_connection.fast_principal
        queue = consumer.queue
        assert principal is not None
        if consumer.owner is not self or queue is self.reply_queue or principal.may(READ, queue.name):
            return
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
            self.ledger.make_room()
        else:
            self.prefetch = method.prefetch_count
        self.reply(m.BasicQosOk())

    def _recover(self, requeue: bool) -> None:
        if not requeue:
            raise ConnectionException(NOT_IMPLEMENTED, "requeue=false")
        self.connection.begin(ReturnRun(self, 0, requeue=True, failed=False))

    # --- confirms and transactions ----------------------------------------------------------------------------------

    def _confirm_select(self, method: m.ConfirmSelect) -> None:
        if self.transaction is not None:
            raise ChannelException(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = Confirms(self.shared.confirms, self.ledger.outbox, self.number, syncs=self.sync_confirms)
        if not method.no_wait:
            self.reply(m.ConfirmSelectOk())

    def _tx_select(self) -> None:
        if self.confirms is not None:
            raise ChannelException(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = Transaction(self.shared.log)
        self.reply(m.TxSelectOk())

    def _take_transaction(self) -> Transaction:
        transaction = self.transaction
        if transaction is None:
            raise ChannelException(PRECONDITION_FAILED, "channel is not transactional")
        self.transaction = Transaction(self.shared.log)
        return transaction

    def _tx_commit(self) -> None:
        self.connection.begin(Commit(self, self._take_transaction()))

    def commit(self, check: CommitCheck, note: Callable[[], None]) -> None:
        """Do as tx.commit does if `check` lets it pass, for somebody inside the broker, and then `note`.

        What that stores is in the same frame of the log. What does not pass is rolled back and answered so. It is done
        at once, unless that is very much.

        Raises:
            ChannelException: 406, the channel has no transaction.
        """
        transaction = self._take_transaction()
        check.is_promised = transaction.row_count() > ROWS_AT_ONCE
        commit = Commit(self, transaction, check, note)
        if check.is_promised:
            self.connection.begin(commit)
        else:
            commit.go_on(Steps(ALL_STEPS))

    def maybe_spread(self, publish: BufferedPublish, origin: i64) -> Spread | None:
        """Begin to publish what waited for tx.commit and goes to very many queues; None: it does not.

        `spread_done` follows when all of them have it. `is_claimed` is False.
        """
        message = publish.message
        if not self._is_wide(publish.queues) or not publish.has_takers():
            return None
        keys: MessageKeys | None = self._keys_of(message) if self.vhost.seen_keys else None
        if keys is not None and self.vhost.seen_keys[message.envelope.exchange].knows(keys):
            return None
        if publish.rememberers is not None:
            remember_in(publish.rememberers, message)
        if message.due_ms:
            negate_delay(message)
        self._count(publish.exchange, message.body_bytes, len(publish.queues))
        return Spread(message, publish.queues, self._claim(message, keys), origin)

    def publish_buffered(self, publish: BufferedPublish, origin: i64) -> i64:
        """Publish what waited for tx.commit; return the outcome."""
        message = publish.message
        if publish.rememberers is not None:
            remember_in(publish.rememberers, message)
        left = publish.left()
        if self.vhost.seen_keys and self._is_repeated(message):
            self._count(publish.exchange, message.body_bytes, 0)
            return REPEATED
        self._count(publish.exchange, message.body_bytes, len(left))
        return self._enqueue(message, left, publish.holders, publish.mandatory, origin)

    def _tx_rollback(self) -> None:
        self.connection.begin(Rollback(self.ledger, self._take_transaction()))
        self.reply_when_done(m.TxRollbackOk())

    def uncommitted(self) -> tuple[int, int]:
        """Return how many publishes and how many acknowledgements wait for tx.commit."""
        transaction = self.transaction
        if transaction is None:
            return 0, 0
        return len(transaction.publishes), len(transaction.acked) + len(transaction.rejected)

    # --- the end ----------------------------------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Tell whether its peer may still be told something on it."""
        return self.state != CHANNEL_CLOSING and self.connection.running

    def close(self) -> None:
        """Take nothing more; `jobs.ChannelEnd` lets go of everything."""
        self.drop_content()
        self.state = CHANNEL_CLOSING
        if self.confirms is not None:
            self.confirms.close()
        self.add_counts(self.vhost.counted)
        self.ledger.close()
        transaction = self.transaction
        if transaction is not None:
            transaction.give_up()

    def drop_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer at the end, if it has not gone by itself."""
        if consumer.tag in self.ledger.consumers:
            self._remove_consumer(consumer)

    def maybe_take_unanswered(self) -> Delivery | None:
        """Take out one of the deliveries that nobody will answer any more, the oldest first; None: all are out."""
        delivery = self.ledger.maybe_take_oldest(0)
        transaction = self.transaction
        if delivery is None and transaction is not None:
            delivery = transaction.maybe_take_answered()
        return delivery

    def ended(self) -> None:
        """Nothing is left."""
        self.transaction = None
        # It has us and we have it: nothing must be left for the cyclic collector.
        self.ledger.owner = None
        if not self.connection.is_direct:
            self.connection.broker.churn.channels_closed += 1
            self.connection.broker.events.channel_closed(self)


def _greater(one: i64, other: i64) -> i64:
    return one if one > other else other


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
        return f"{{value_negative,{number_text(value)}}}"
    if value > EXPIRATION_MAX_MS:
        return f"{{value_too_large,{number_text(value)}}}"
    return ""


def _check_steps(routed: Content, exchange: str, vhost: str) -> None:
    """Refuse what was not routed to the end."""
    if routed.steps_left < 0:
        raise ChannelException(
            PRECONDITION_FAILED,
            f"routing a message of exchange '{exchange}' in vhost '{vhost}' takes more than {STEPS_MAX} steps: "
            "its keys, words or headers meet too many bindings",
        )


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
