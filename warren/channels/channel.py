"""A channel: the session of AMQP 0-9-1, and the methods on it.

1. A failed method closes the channel and nothing else: its unacked messages are back in their queues, in order and
   marked redelivered, its consumers are gone, before the channel.close is written.
2. A channel has confirms or transactions or neither, and keeps its choice to its end.
3. A delivery is answered once: its tag leaves the ledger with basic.ack, basic.nack or basic.reject, in a transaction
   before the commit.

Publishing is in ``channels.publisher``, consumers in ``channels.consuming``, confirms in ``channels.confirms``, tx.* in
``channels.transaction``, exchange.* and queue.* in ``channels.topology``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warren.amqp import methods as m
from warren.amqp.errors import (
    COMMAND_INVALID,
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelException,
    ConnectionException,
)
from warren.channels.bind_in_alarm import AlarmWait, WaitingBind
from warren.channels.channel_confirms import ChannelConfirms
from warren.channels.consuming import cancel, cancel_by_broker, consume, get, limit_prefetch
from warren.channels.content_channel import ContentChannel
from warren.channels.jobs import ReturnRun
from warren.channels.session import signed_tag
from warren.channels.transaction import tx_commit, tx_rollback, tx_select
from warren.msgstore.log.message import Message
from warren.msgstore.log.own_writes import NOTHING
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger

if TYPE_CHECKING:
    from warren.channels.connection import Connection
    from warren.exchanges.exchange import BindJob


class Channel(ContentChannel):
    """One channel of a connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        unacked_max = connection.broker.limits.unacked_per_channel_max
        ledger = DeliveryLedger(number, connection.turns, connection.login.frame_max_bytes, unacked_max)
        super().__init__(connection, number, ledger)
        self.waiting_bind: WaitingBind | None = None  # it may be over
        self._sender: Connection = connection

    def begin_bind(self, bind: BindJob) -> None:
        own = self.shared.log.own
        if bind.need() == NOTHING or not (own.memory_is_short or own.disk_is_short):
            super().begin_bind(bind)
            return
        waiting = WaitingBind(self.peer, bind)
        self.waiting_bind = waiting
        self.peer.broker.work.begin(waiting)

    def waits_for_bind(self, method: Any) -> bool:
        """Tell whether `method` has to wait for a bind, and have it wait."""
        bind = self.waiting_bind
        if bind is None or settles(method):
            return False
        self.waiting_bind = None
        if bind.is_over:
            return False
        self.peer.begin(AlarmWait(bind))
        return True

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        """Send a reply, not before the metadata change `ticket` and the log's `batch` are on disk."""
        self._sender.send_method(int(self.number), method, ticket, batch)

    def write_returned(self, message: Message) -> None:
        """Write basic.return with its content."""
        envelope = message.envelope
        returned = m.BasicReturn(NO_ROUTE, "NO_ROUTE", envelope.exchange, envelope.routing_key)
        self._sender.send_event(int(self.number), returned)
        self.ledger.write_content(message)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Write basic.cancel to a client that understands it, after the replies that wait for the disk."""
        if self._sender.consumer_cancel_notify:
            self._sender.send_method(int(self.number), m.BasicCancel(consumer.tag, True), 0)

    def give_up_consumer(self, consumer: Consumer, explanation: str) -> bool:
        """Cancel `consumer` if the client understands that."""
        if not self._sender.consumer_cancel_notify:
            return False
        cancel_by_broker(self, consumer)
        return True

    def end_consumer(self, consumer: Consumer, reason: str) -> bool:
        cancel_by_broker(self, consumer)
        return True

    def _recover(self, requeue: bool) -> None:
        if not requeue:
            raise ConnectionException(NOT_IMPLEMENTED, "requeue=false")
        self.peer.begin(ReturnRun(self, 0, requeue=True, failed=False))

    # --- the methods of class basic, confirm, tx and channel --------------------------------------------------------

    def handle(self, method: Any) -> None:
        """Handle a method other than exchange.* and queue.*.

        Raises:
            AmqpError: as the method's rules say.
        """
        match method:
            case m.BasicAck():
                self.acknowledge(signed_tag(method.delivery_tag), method.multiple)
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

    # --- confirms and transactions ----------------------------------------------------------------------------------

    def _confirm_select(self, method: m.ConfirmSelect) -> None:
        if self.transaction is not None:
            raise ChannelException(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = ChannelConfirms(
                self.shared.confirms, self.ledger.outbox, self.number, syncs=self.sync_confirms
            )
        if not method.no_wait:
            self.reply(m.ConfirmSelectOk())


def settles(method: Any) -> bool:
    """Tell whether `method` only takes deliveries back: it has no reply and must never wait."""
    return isinstance(method, m.BasicAck | m.BasicNack | m.BasicReject | m.BasicCancelOk)
