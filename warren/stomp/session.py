"""The session of a STOMP connection: messages in both directions, subscriptions, transactions and receipts.

1. A delivery is known by the `ack` and `message-id` of its MESSAGE, SESSION@@TAG.
2. With ``ack:client`` an answer is for all earlier deliveries of the same subscription, with ``client-individual`` for
   one. With ``auto`` nothing is answered.
3. The receipt of a SEND comes with its confirm: for a stored message, when it is on disk. Receipts of other frames come
   when their request is done, and durable if it has to be.
4. The route and properties of a SEND are kept by the bytes of its head: the same head costs a look-up.
5. Receipts that wait have `RECEIPTS_MAX_BYTES`, and one more; a SEND that asks for another waits with them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import NOT_ALLOWED, PRECONDITION_FAILED, SYNTAX_ERROR, ChannelException, ConnectionException
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.amqp.methods import FRAME_OVERHEAD_BYTES
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.channels.commit_check import CommitCheck
from warren.channels.confirms import Confirms, PendingConfirms
from warren.channels.consuming import cancel, consume
from warren.channels.jobs import Reply
from warren.channels.prepared_publish import NUMBER, PROPERTIES_AT, PreparedPublish
from warren.channels.session import Session
from warren.channels.topology import check_name, run_topology
from warren.channels.transaction import Commit, Rollback, Transaction, new_transaction
from warren.msgstore.log.message import HEADER_AT, Envelope, Message
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger
from warren.queues.long_work import Job, Steps
from warren.queues.unacked import Delivery
from warren.stomp.conversion import argument_value, headers_of_message, is_queue_argument, properties_of
from warren.stomp.destinations import (
    AMQ_QUEUE,
    QUEUE,
    REPLY_QUEUE,
    TEMP_PREFIX,
    TEMP_QUEUE,
    Destination,
    destination_of,
    parse_destination,
)
from warren.stomp.frames import StompFrame, encode, escaped, maybe_number

if TYPE_CHECKING:
    from warren.stomp.peer import StompPeer

HEADS_MAX: Final = 64
HEAD_KEPT_BYTES: Final = 1024
SUBSCRIPTION_ID_MAX_BYTES: Final = 200
TRANSACTIONS_MAX: Final = 64
TAGS_PER_STEP: Final = 16  # sorted again after ABORT
COMMIT_REFUSED: Final = "a full queue would refuse a message of the transaction: nothing was done"
RECEIPTS_MAX_BYTES: Final = 1 << 20
RECEIPT_OVERHEAD_BYTES: Final = 200
DECLARED_MIN: Final = 1000  # queues, before it is looked which of them are gone
TAG_MAX: Final = (1 << 63) - 1
QUEUE_PREFIX: Final = "stomp-subscription-"
AUTO: Final = "auto"
CLIENT: Final = "client"
INDIVIDUAL: Final = "client-individual"


class Receipt:
    """A result for `StompSession.reply`: everything before it is done."""

    def __init__(self, name: str) -> None:
        self.name = name


class Send(PreparedPublish):
    """The meaning of a head of SEND, for any body."""

    def __init__(self, size: i64, queue: str, exchange: str, routing_key: str, properties: bytes) -> None:
        super().__init__(exchange, routing_key, properties)
        self.size: i64 = size  # content-length, -1: missing
        self.queue = queue  # that is declared for it, or ""


class Receipts(Confirms):
    """Confirms as receipts. `session` has asked for them with its first receipt of a SEND."""

    def __init__(self, pending: PendingConfirms, session: StompSession, *, syncs: bool) -> None:
        super().__init__(pending, session.ledger.outbox, syncs=syncs)
        self._session: StompSession | None = session
        self._waiting: deque[tuple[int, str]] = deque()  # number of a publish, and the name of its receipt
        self._held_bytes: int = 0

    def is_full(self) -> bool:
        """Tell whether as many wait as may."""
        return self._held_bytes > RECEIPTS_MAX_BYTES

    def expect(self, receipt: str) -> None:
        """Send `receipt` when the next publish is confirmed."""
        self._waiting.append((int(self.published) + 1, receipt))
        self._held_bytes += len(receipt) + RECEIPT_OVERHEAD_BYTES

    def write_confirmed(self, up_to: i64, count: i64) -> None:
        session = self._session
        was_full = self.is_full()
        while self._waiting and self._waiting[0][0] <= up_to:
            _, receipt = self._waiting.popleft()
            self._held_bytes -= len(receipt) + RECEIPT_OVERHEAD_BYTES
            if session is not None:
                session.confirmed(receipt)
        if was_full and session is not None:
            session.receipts_sent()

    def write_refused(self, number: i64) -> None:
        session = self._session
        for at, (waiting, receipt) in enumerate(self._waiting):
            if waiting == number:
                del self._waiting[at]
                self._held_bytes -= len(receipt) + RECEIPT_OVERHEAD_BYTES
                if session is not None:
                    session.refused(receipt)
                return

    def close(self) -> None:
        super().close()
        self._session = None


class Subscription:
    """One SUBSCRIBE: its name and destination, its queue, and how the client acknowledges."""

    def __init__(self, name: str, destination: str, queue: str, mode: str) -> None:
        self.name = name
        self.destination = destination
        self.queue = queue
        self.mode = mode


class Committing:
    """A COMMIT under way, of the transaction of that name, and the receipt that is asked for."""

    def __init__(self, name: str, transaction: Transaction, receipt: str | None) -> None:
        self.name = name
        self.transaction = transaction
        self.receipt = receipt


class StompLedger(DeliveryLedger):
    """Deliveries, written as MESSAGE."""

    def __init__(self, peer: StompPeer, unacked_max: i64) -> None:
        super().__init__(NUMBER, peer.turns, 0, unacked_max)
        self.version: int = peer.version
        self.session = f"{peer.session_name}@@".encode()
        # Tags of the deliveries of each consumer where one answer is for many, those too that came back meanwhile.
        self.cumulative: dict[str, deque[int]] = {}
        self._envelope: Envelope | None = None
        self._properties = b""
        self._lines = b""  # for this envelope and these properties

    def write_delivery(self, consumer: Consumer, message: Message, tag: i64, redelivered: bool) -> None:
        if self.cumulative:
            tags = self.cumulative.get(consumer.tag)
            if tags is not None:
                tags.append(int(tag))
        content = message.header_frame()
        header_end: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        properties = content[HEADER_AT + PROPERTIES_AT : header_end - 1]
        if message.envelope is not self._envelope or properties != self._properties:
            self._describe(message, content, header_end, properties)
        number = str(int(tag)).encode()
        outbox = self.outbox
        outbox.touch()
        out = outbox.writer
        out.write(consumer.deliver_head)  # up to the tag in message-id
        out.write(number)
        if not consumer.no_ack:
            out.write(b"\nack:")
            out.write(self.session)
            out.write(number)
        out.write(b"\nredelivered:true\n" if redelivered else b"\nredelivered:false\n")
        out.write(self._lines)
        out.write(b"content-length:")
        out.write(str(int(message.body_bytes)).encode())
        out.write(b"\n\n")
        size: i64 = message.body_bytes
        if size > 0:
            body_at: i64 = header_end + HEADER_AT
            if message.pieces is None and body_at + size + 1 == len(content):
                body = content[body_at : body_at + size]
            else:
                body = message.body()
            if size >= CHUNK_MIN_BYTES:
                outbox.write_chunk(body)
                out = outbox.writer
            else:
                out.write(body)
        out.append(0)
        if len(out) > outbox.piece_bytes:
            outbox.end_piece()

    def forget(self, consumer_tag: str) -> None:
        """Forget a consumer that is gone, unless some of its deliveries may still be answered."""
        if not self.cumulative.get(consumer_tag, True):
            del self.cumulative[consumer_tag]

    def _describe(self, message: Message, content: bytes, header_end: i64, properties: bytes) -> None:
        envelope = message.envelope
        path = escaped(destination_of(envelope.exchange, envelope.routing_key), self.version)
        self._lines = f"destination:{path}\n".encode("utf-8", "replace") + headers_of_message(
            content, HEADER_AT, header_end - 1, self.version
        )
        self._envelope = envelope
        self._properties = properties


class CumulativeAnswer(Job):
    """An answer for deliveries of one subscription up to a tag, as many in a turn as that has steps."""

    def __init__(
        self,
        session: StompSession,
        consumer_tag: str,
        tags: deque[int],
        up_to: int,
        transaction: Transaction | None,
        *,
        is_nack: bool,
        requeue: bool,
    ) -> None:
        self._session = session
        self._consumer_tag = consumer_tag
        self._tags = tags
        self._up_to = up_to
        self._transaction = transaction
        self._is_nack = is_nack
        self._requeue = requeue

    def run(self, steps: Steps) -> bool:
        tags = self._tags
        session = self._session
        session.transaction = self._transaction
        try:
            while tags and tags[0] <= self._up_to:
                if steps.left <= 0:
                    return False
                steps.left -= 1
                tag = tags.popleft()
                if session.is_out(tag):
                    session.answer(tag, is_nack=self._is_nack, requeue=self._requeue)
        finally:
            session.transaction = None
        session.answered(self._consumer_tag)
        return True


class Abort(Rollback):
    """ABORT: answered deliveries wait for their answer again, also for an answer to several."""

    def __init__(self, ledger: StompLedger, transaction: Transaction) -> None:
        super().__init__(ledger, transaction)
        self._cumulative = ledger.cumulative
        self._tags: dict[str, list[int]] = {}

    def restored(self, delivery: Delivery) -> None:
        consumer = delivery.consumer
        if consumer is not None and consumer.tag in self._cumulative:
            self._tags.setdefault(consumer.tag, []).append(int(delivery.tag))

    def run(self, steps: Steps) -> bool:
        if not super().run(steps):
            return False
        for consumer_tag, tags in self._tags.items():
            waiting = self._cumulative.get(consumer_tag)
            if waiting is not None:
                newest = max(tags)
                while waiting and waiting[0] < newest:  # of other transactions; all later ones stay where they are
                    tags.append(waiting.popleft())
                waiting.extendleft(sorted(tags, reverse=True))
            steps.left -= len(tags) // TAGS_PER_STEP
        return True


class StompSession(Session):
    """The one session of a STOMP connection."""

    def __init__(self, peer: StompPeer) -> None:
        self._stomp: StompPeer = peer
        self._ledger = StompLedger(peer, peer.broker.limits.unacked_per_channel_max)
        super().__init__(peer, NUMBER, self._ledger)
        self.subscriptions: dict[str, Subscription] = {}  # by consumer tag
        self._transactions: dict[str, Transaction] = {}
        self._sends: dict[bytes, Send] = {}
        self._declared: set[str] = set()  # queues that this connection has declared
        self._declared_max: int = DECLARED_MIN  # with more of them those that are gone are forgotten
        self._receipts: Receipts | None = None
        self._ticket: int = 0  # of the latest change that this connection has made
        self._committing: Committing | None = None  # receipts of commits come with their end

    # --- results of commands ----------------------------------------------------------------------------------------

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        if ticket > self._ticket:
            self._ticket = ticket
        if isinstance(method, Receipt):
            self.write_receipt(method.name, self._ticket, batch)
        elif isinstance(method, m.TxCommitOk) and self._committing is not None:
            if self._committing.receipt is not None:
                self.write_receipt(self._committing.receipt, ticket, batch)
            self._committing = None
        elif isinstance(method, m.TxRollbackOk) and self._committing is not None:
            self._refuse_commit(self._committing)

    def _refuse_commit(self, committing: Committing) -> None:
        """Refuse COMMIT: a queue has no room for its messages. None of it is done, and the connection ends."""
        self._committing = None
        self._transactions[committing.name] = committing.transaction  # its deliveries are requeued, too
        self._stomp.fail_later(ChannelException(PRECONDITION_FAILED, COMMIT_REFUSED), committing.receipt)

    def write_receipt(self, name: str, ticket: int = 0, batch: int = 0) -> None:
        """Write RECEIPT, not before the change `ticket` and the log's `batch` are on disk."""
        peer = self._stomp
        if peer.running:
            peer.write_when_durable(encode("RECEIPT", [("receipt-id", name)], b"", peer.version), ticket, batch)

    def confirmed(self, receipt: str) -> None:
        """Write the receipt of a SEND. No reply that waits goes first: clients close after that of DISCONNECT."""
        peer = self._stomp
        if peer.running:
            peer.outbox.write(encode("RECEIPT", [("receipt-id", receipt)], b"", peer.version))

    def has_too_many_receipts(self) -> bool:
        """Tell whether another SEND that asks for a receipt has to wait."""
        receipts = self._receipts
        return receipts is not None and receipts.is_full()

    def receipts_sent(self) -> None:
        """Continue: there is room for receipts again."""
        self._stomp.receipts_sent()

    def receipt_when_done(self, frame: StompFrame) -> None:
        """Send the receipt of `frame` when the work that it has begun is done."""
        name = frame.get("receipt")
        if name is not None:
            self.peer.begin(Reply(self, Receipt(name), self._ticket, 0))

    def refused(self, receipt: str) -> None:
        """Fail the connection: a queue has refused a SEND with a receipt."""
        self._stomp.fail_later(ChannelException(PRECONDITION_FAILED, "a full queue has refused the message"), receipt)

    def write_returned(self, message: Message) -> None:
        """Do nothing: nothing is mandatory in STOMP."""

    def consumer_cancelled(self, consumer: Consumer) -> None:
        subscription = self.subscriptions.pop(consumer.tag, None)
        if subscription is not None:
            text = f"the queue of subscription '{subscription.name}' is gone, or the right to read it"
            self._stomp.fail_later(ChannelException(PRECONDITION_FAILED, text), None)

    def drop_content(self) -> None:
        self.shared.inbound.let_go(self)

    # --- SEND -------------------------------------------------------------------------------------------------------

    def maybe_known(self, head: bytes) -> Send | None:
        """Return the meaning of a head that was sent before and has no special requests."""
        send = self._sends.get(head)
        if send is not None and send.queue != "" and send.version != self.vhost.topology_version:
            return send if send.queue in self.vhost.queues else None
        return send

    def understand(self, head: bytes, frame: StompFrame, size: i64) -> Send:
        """Return the meaning of a SEND, after declaring the objects that it needs.

        Raises:
            AmqpError: it may not be sent.
        """
        target = parse_destination(frame.need("destination"))
        if target.kind == TEMP_QUEUE:
            raise ConnectionException(SYNTAX_ERROR, "/temp-queue/ is allowed in reply-to only")
        if target.kind == QUEUE:
            self._declare(target, frame)
        properties = properties_of(frame)
        reply_to = properties.reply_to
        is_plain = "receipt" not in frame.headers and "transaction" not in frame.headers
        if reply_to is not None and reply_to.startswith(TEMP_PREFIX):
            properties.reply_to = self._temporary(reply_to)
            is_plain = False
        queue = target.queue if target.kind == QUEUE else ""
        send = Send(size, queue, target.exchange, target.routing_key, properties.encode())
        if is_plain and len(head) <= HEAD_KEPT_BYTES:
            self._keep(head, send)
        return send

    def _keep(self, head: bytes, send: Send) -> None:
        if len(self._sends) >= HEADS_MAX:
            self._sends.clear()
        self._sends[head] = send

    def send(self, send: Send, body: bytes) -> None:
        """Publish `body`.

        Raises:
            AmqpError: it may not be published.
        """
        send.publish(self, body)

    def send_specially(self, send: Send, body: bytes, frame: StompFrame) -> None:
        """Publish with a receipt, or in a transaction.

        Raises:
            AmqpError: it may not be published.
        """
        receipt = frame.get("receipt")
        name = frame.get("transaction")
        if name is not None:
            self.transaction = self._the_transaction(name)
            try:
                self.send(send, body)
            finally:
                self.transaction = None
            if receipt is not None:
                self.write_receipt(receipt)
            return
        if receipt is not None:
            receipts = self._receipts
            if receipts is None:
                receipts = Receipts(self.shared.confirms, self, syncs=self.sync_confirms)
                self._receipts = receipts
                self.confirms = receipts
            receipts.expect(receipt)
        self.send(send, body)

    # --- queues -----------------------------------------------------------------------------------------------------

    def _declare(self, target: Destination, frame: StompFrame) -> None:
        """Declare the queue of a /queue destination, unless this connection has done so."""
        name = target.queue
        if name in self._declared and name in self.vhost.queues:
            return
        durable = frame.is_true("durable", default=True)
        self._declare_queue(
            name,
            frame,
            durable=durable,
            exclusive=frame.is_true("exclusive"),
            auto_delete=frame.is_true("auto-delete"),
        )
        declared = self._declared
        declared.add(name)
        if len(declared) >= self._declared_max:
            declared.intersection_update(self.vhost.queues)
            self._declared_max = max(DECLARED_MIN, 2 * len(declared))

    def _declare_queue(
        self, name: str, frame: StompFrame, *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> None:
        check_name("queue", name)  # 0-9-1 removes line breaks; messages would go to the name with them
        table: Table = {}
        for key, value in frame.headers.items():
            if is_queue_argument(key):
                table[key] = argument_value(key, value)
        arguments = encode_table(table) if table else EMPTY_TABLE
        declaration = QueueDeclaration(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
        )
        run_topology(self, declaration)

    def _temporary(self, path: str) -> str:
        """Return the queue of this connection for a reply-to of ``/temp-queue/NAME``; its messages come unasked."""
        parse_destination(path)
        tag = "T_" + path
        found = self.subscriptions.get(tag)
        if found is not None:
            return found.queue
        name = QUEUE_PREFIX + self.peer.broker.unique_name()
        run_topology(self, QueueDeclaration(name, durable=False, exclusive=True))
        self._consume(path, tag, name, AUTO, StompFrame("SUBSCRIBE", {}))
        return name

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(self, frame: StompFrame) -> None:
        """Handle SUBSCRIBE.

        Raises:
            AmqpError: as the rules of the command and of its declarations say.
        """
        path = frame.need("destination")
        name, tag = self._name_of(frame)
        if tag in self.subscriptions:
            raise ConnectionException(NOT_ALLOWED, f"there is a subscription '{name}' already")
        mode = frame.headers.get("ack", AUTO)
        if mode not in (AUTO, CLIENT, INDIVIDUAL):
            raise ConnectionException(SYNTAX_ERROR, "ack is neither auto, client nor client-individual")
        target = parse_destination(path)
        if target.kind in (REPLY_QUEUE, TEMP_QUEUE):
            raise ConnectionException(SYNTAX_ERROR, "replies come without a subscription: set reply-to in SEND")
        queue = target.queue
        if target.kind == QUEUE:
            self._declare(target, frame)
        elif target.kind != AMQ_QUEUE:
            queue = self._queue_of_topic(frame, path, target)
        self._consume(name, tag, queue, mode, frame)
        self.receipt_when_done(frame)

    def _queue_of_topic(self, frame: StompFrame, path: str, target: Destination) -> str:
        """Declare and bind the queue of a subscription to an exchange; return its name."""
        durable = self._is_durable(frame)
        queue = frame.get("x-queue-name")
        if queue is None:
            if durable:
                queue = durable_queue_name(path, frame.need("id"))
            else:
                queue = QUEUE_PREFIX + self.peer.broker.unique_name()
        exclusive = not durable and frame.is_true("exclusive", default="x-queue-name" not in frame.headers)
        self._declare_queue(
            queue,
            frame,
            durable=durable or frame.is_true("durable"),
            exclusive=exclusive,
            auto_delete=frame.is_true("auto-delete", default=not durable),
        )
        run_topology(self, m.QueueBind(0, queue, target.exchange, target.routing_key, False, EMPTY_TABLE))
        return queue

    def _is_durable(self, frame: StompFrame) -> bool:
        durable = frame.is_true("durable") or frame.is_true("persistent")
        return durable and not frame.is_true("auto-delete")

    def _name_of(self, frame: StompFrame) -> tuple[str, str]:
        """Return the client's name for a subscription, and its consumer tag."""
        name = frame.get("id")
        if name is not None:
            tag = "T_" + name
        else:
            name = frame.get("destination")
            if name is None:
                raise ConnectionException(SYNTAX_ERROR, f"{frame.command} needs the header 'id' or 'destination'")
            tag = "Q_" + name
        if len(tag.encode()) > SUBSCRIPTION_ID_MAX_BYTES:
            raise ConnectionException(
                SYNTAX_ERROR, f"the id of a subscription is longer than {SUBSCRIPTION_ID_MAX_BYTES - 2} bytes"
            )
        return name, tag

    def _consume(self, name: str, tag: str, queue: str, mode: str, frame: StompFrame) -> None:
        prefetch = frame.number("prefetch-count", 65535)
        self.prefetch = prefetch or 0
        table: Table = {}
        for key in ("x-priority", "x-stream-offset", "x-stream-filter"):
            value = frame.get(key)
            if value is not None:
                table[key] = argument_value(key, value)
        arguments = encode_table(table) if table else EMPTY_TABLE
        if mode == CLIENT:
            self._ledger.cumulative.setdefault(tag, deque())
        version = self._stomp.version
        consume(self, m.BasicConsume(0, queue, tag, False, mode == AUTO, False, False, arguments))
        consumer = self.ledger.consumers[tag]
        head = f"MESSAGE\nsubscription:{escaped(name, version)}\nmessage-id:".encode()
        consumer.deliver_head = head + self._ledger.session
        self.subscriptions[tag] = Subscription(name, frame.headers.get("destination", ""), queue, mode)

    def subscribed(self) -> list[Any]:
        return list(self.subscriptions.values())

    def describe_subscription(self, subscription: Any) -> dict[str, object]:
        assert isinstance(subscription, Subscription)
        return {
            "id": subscription.name,
            "destination": subscription.destination,
            "queue": subscription.queue,
            "ack": subscription.mode,
        }

    def unsubscribe(self, frame: StompFrame) -> None:
        """Handle UNSUBSCRIBE; for a durable subscription, with the same header again, its queue is deleted.

        Raises:
            AmqpError: there is no such subscription, or its queue may not be deleted.
        """
        name, tag = self._name_of(frame)
        subscription = self.subscriptions.pop(tag, None)
        if subscription is None and not self._is_durable(frame):
            raise ConnectionException(PRECONDITION_FAILED, f"unknown subscription '{name}'")
        queue = ""
        if subscription is not None:
            queue = subscription.queue
            cancel(self, m.BasicCancel(tag, False))
            self._ledger.forget(tag)
        if self._is_durable(frame):
            if not queue:
                queue = frame.get("x-queue-name") or durable_queue_name(frame.need("destination"), frame.need("id"))
            run_topology(self, m.QueueDelete(0, queue, False, False, False))
        self.receipt_when_done(frame)

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer_frame(self, frame: StompFrame, *, is_nack: bool) -> None:
        """Handle ACK and NACK.

        Raises:
            AmqpError: no delivery with that id waits for an answer, or the transaction does not exist.
        """
        name = frame.get("id")
        if name is None:
            name = frame.need("message-id")
        session, _, number = name.rpartition("@@")
        tag = maybe_number(number, TAG_MAX)
        if tag is None or session != self._stomp.session_name:
            raise ConnectionException(SYNTAX_ERROR, f"{name[:64]!a} is not a message of this connection")
        consumer = self.ledger.outstanding(tag).consumer
        tags = None if consumer is None else self._ledger.cumulative.get(consumer.tag)
        requeue = frame.is_true("requeue", default=True)
        transaction = frame.get("transaction")
        if transaction is not None:
            self.transaction = self._the_transaction(transaction)
        try:
            if consumer is None or tags is None:
                self.answer(tag, is_nack=is_nack, requeue=requeue)
            else:
                run = CumulativeAnswer(
                    self, consumer.tag, tags, tag, self.transaction, is_nack=is_nack, requeue=requeue
                )
                self.peer.begin(run)
        finally:
            if transaction is not None:
                self.transaction = None
        self.receipt_when_done(frame)

    def is_out(self, tag: int) -> bool:
        """Tell whether a delivery waits for its answer."""
        return self._ledger.is_outstanding(tag)

    def answered(self, consumer_tag: str) -> None:
        """Forget a subscription that has ended when its last delivery is answered."""
        if consumer_tag not in self.subscriptions:
            self._ledger.forget(consumer_tag)

    def answer(self, tag: int, *, is_nack: bool, requeue: bool) -> None:
        """Answer one delivery that waits for it."""
        if is_nack:
            self.reject(tag, multiple=False, requeue=requeue, failed=True)
        else:
            self.acknowledge(tag, False)

    # --- transactions -----------------------------------------------------------------------------------------------

    def _the_transaction(self, name: str) -> Transaction:
        found = self._transactions.get(name)
        if found is None:
            raise ConnectionException(SYNTAX_ERROR, f"unknown transaction '{name[:64]}'")
        return found

    def begin_transaction(self, frame: StompFrame) -> None:
        """Handle BEGIN.

        Raises:
            ConnectionException: there is one of that name, or too many.
        """
        name = frame.need("transaction")
        if name in self._transactions:
            raise ConnectionException(SYNTAX_ERROR, f"there is a transaction '{name[:64]}' already")
        if len(self._transactions) >= TRANSACTIONS_MAX:
            raise ConnectionException(NOT_ALLOWED, f"more than {TRANSACTIONS_MAX} transactions at a time")
        self._transactions[name] = new_transaction(self)
        self.receipt_when_done(frame)

    def commit(self, frame: StompFrame) -> None:
        """Handle COMMIT: all of it is in one frame of the log; its receipt comes when that is on disk."""
        transaction = self._the_transaction(frame.need("transaction"))
        del self._transactions[frame.need("transaction")]
        self._committing = Committing(frame.need("transaction"), transaction, frame.get("receipt"))
        ahead = transaction.maybe_bodies()
        self.peer.begin(Commit(self, transaction, CommitCheck(mandatory=False), ahead=ahead))

    def abort(self, frame: StompFrame) -> None:
        """Handle ABORT: sent messages are forgotten, answered deliveries wait for their answer again."""
        transaction = self._the_transaction(frame.need("transaction"))
        del self._transactions[frame.need("transaction")]
        self.peer.begin(Abort(self._ledger, transaction))
        self.receipt_when_done(frame)

    def uncommitted(self) -> tuple[int, int]:
        publishes = [len(each.publishes) for each in self._transactions.values()]
        answers = [len(each.acked) + len(each.rejected) for each in self._transactions.values()]
        return sum(publishes), sum(answers)

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        super().close()
        for transaction in self._transactions.values():
            transaction.give_up()

    def maybe_take_unanswered(self) -> Delivery | None:
        delivery = super().maybe_take_unanswered()
        if delivery is None:
            for transaction in self._transactions.values():
                delivery = transaction.maybe_take_answered()
                if delivery is not None:
                    break
        return delivery

    def ended(self) -> None:
        self._transactions.clear()
        self.subscriptions.clear()
        self._sends.clear()
        for tags in self._ledger.cumulative.values():
            self.shared.log.reclamation.add(list(tags), 0)
        super().ended()
        self._stomp.forget_session()


def durable_queue_name(path: str, subscription: str) -> str:
    """Return the queue name of a durable subscription: it follows from headers that the client repeats each time."""
    digest = hashlib.sha256(f"{len(path)}:{path}{subscription}".encode()).hexdigest()
    return f"{QUEUE_PREFIX}{digest[:32]}"
