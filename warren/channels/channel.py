"""A channel: which method does what, acknowledgements, what it is and how it ends.

1. A failed method closes the channel and nothing else: its unacked messages are back in their queues, in order and
   marked redelivered, its consumers are gone, before the channel.close is written.
2. A channel has confirms or transactions or neither; what it has it keeps to its end.
3. A delivery is answered once: its tag leaves the ledger with basic.ack, basic.nack or basic.reject, in a transaction
   before the commit.

Publishing is in ``channels.publisher``, consumers in ``channels.consuming``, confirms in ``channels.confirms``, tx.* in
``channels.transaction``, exchange.* and queue.* in ``channels.topology``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.errors import (
    COMMAND_INVALID,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelException,
    ConnectionException,
)
from warren.channels.access import Route
from warren.channels.confirms import Confirms
from warren.channels.consuming import cancel, consume, get, limit_prefetch
from warren.channels.fast_channel import CHANNEL_CLOSING, FastChannel
from warren.channels.jobs import AckRun, Reply, ReturnRun
from warren.channels.publisher import Publisher
from warren.channels.tracing import ChannelTracer
from warren.channels.transaction import BufferRun, tx_commit, tx_rollback, tx_select
from warren.exchanges.exchange import Exchange
from warren.msgstore.log.message import Message
from warren.queues.delivery import Delivery, DeliveryLedger
from warren.queues.queue import Queue
from warren.vhosts.virtual_host import VirtualHost

if TYPE_CHECKING:
    from warren.channels.connection import Connection


class Channel(FastChannel):
    """One channel of a connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        unacked_max = connection.broker.limits.unacked_per_channel_max
        ledger = DeliveryLedger(number, connection.turns, connection.frame_max_bytes, unacked_max)
        ledger.owner = self
        super().__init__(connection, number, ledger)
        self.connection: Connection = connection
        vhost = connection.fast_vhost
        # A confirm, or tx.commit-ok, means synced, not just written.
        self.sync_confirms: bool = vhost is None or vhost.sync_confirms
        self.last_queue = ""  # what an empty queue name means
        self.prefetch: int = 0  # for consumers to come
        self.reply_queue: Queue | None = None
        connection.channels_opened += 1
        self.serial: int = connection.channels_opened  # unlike the number never used again
        self._publisher: Publisher | None = Publisher(self)  # until the channel has ended
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
        tracer = ChannelTracer(self.connection, int(self.number)) if on else None
        self.ledger.watcher = tracer
        if self._publisher is not None:
            self._publisher.tracer = tracer

    # --- publishing -----------------------------------------------------------------------------------------------

    @property
    def publisher(self) -> Publisher:
        publisher = self._publisher
        assert publisher is not None
        return publisher

    def make_route(self, arguments: bytes) -> Route:
        return self.publisher.make_route(arguments)

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
        self.publisher.publish_with_care(route, content, pieces, header, flags, body_bytes, largest)

    def publish_wide(self, message: Message, queues: list[Queue], holders: list[Exchange] | None) -> None:
        self.publisher.publish_wide(message, queues, holders)

    def unroutable(self, route: Route, message: Message) -> None:
        if route.mandatory:
            self.publisher.return_message(message)
        else:
            self.dropped += 1

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

    def _recover(self, requeue: bool) -> None:
        if not requeue:
            raise ConnectionException(NOT_IMPLEMENTED, "requeue=false")
        self.connection.begin(ReturnRun(self, 0, requeue=True, failed=False))

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
                get(self, method)
            case m.BasicConsume():
                consume(self, method)
            case m.BasicCancel():
                cancel(self, method)
            case m.BasicCancelOk():
                pass
            case m.BasicQos():
                limit_prefetch(self, method)
            case m.BasicRecover():
                self._recover(method.requeue)
                self.reply_when_done(m.BasicRecoverOk())
            case m.BasicRecoverAsync():
                self._recover(method.requeue)
            case m.ConfirmSelect():
                self._confirm_select(method)
            case m.TxSelect():
                tx_select(self)
            case m.TxCommit():
                tx_commit(self)
            case m.TxRollback():
                tx_rollback(self)
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

    # --- confirms and transactions ----------------------------------------------------------------------------------

    def _confirm_select(self, method: m.ConfirmSelect) -> None:
        if self.transaction is not None:
            raise ChannelException(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = Confirms(self.shared.confirms, self.ledger.outbox, self.number, syncs=self.sync_confirms)
        if not method.no_wait:
            self.reply(m.ConfirmSelectOk())

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
        # They have us and we have them: nothing must be left for the cyclic collector.
        self.ledger.owner = None
        self._publisher = None
        if not self.connection.is_direct:
            self.connection.broker.churn.channels_closed += 1
            self.connection.broker.events.channel_closed(self)


def _signed(tag: int) -> int:
    """Bring an unsigned 64-bit delivery tag into the range of i64; what overflows is unknown anyway."""
    return tag if tag < 1 << 63 else -1
