"""A session: messages that a peer publishes and is sent in one order, in every protocol. A channel is one.

    publisher     routes, transactions, repetitions, very many queues (`channels.publisher`)
    confirms      which publishes are answered, and when (`channels.confirms`); a protocol writes the answers
    ledger        unanswered deliveries, and the consumers (`queues.delivery`); a protocol writes deliveries
    commands      exchange.*, queue.* and consumers, as the values of `amqp.methods` with a session as the actor
                  (`channels.topology`, `channels.consuming`); their results come to `reply` as such values

1. A session has confirms or transactions or neither, and keeps its choice to its end.
2. A delivery is answered once: its tag leaves the ledger when it is acknowledged or given back, in a transaction before
   the commit.
3. Each publish and its outcome are counted here; see ``queues.counters``.
4. A session that is closed takes nothing more; `jobs.ChannelEnd` releases everything, the consumers first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren.amqp.errors import NOT_FOUND, ChannelException
from warren.amqp.methods import FRAME_HEAD_BYTES
from warren.amqp.properties import PERSISTENT_FLAG, SPECIAL_PROPERTIES, scan_properties
from warren.channels.back_pressure import block_publisher
from warren.channels.confirms import Confirms
from warren.channels.jobs import AckRun, Reply, ReturnOfTaken, ReturnRun
from warren.channels.publisher import Publisher
from warren.channels.route_cache import Route
from warren.channels.shared import Shared
from warren.channels.spans import SessionSpans
from warren.channels.tracing import BothWatchers, ChannelTracer, TrafficWatcher
from warren.channels.transaction import BufferRun, Transaction
from warren.channels.wide_publish import QUEUES_AT_ONCE
from warren.exchanges.exchange import Exchange
from warren.msgstore.log.message import Message
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.queues.counters import SMALL_MAX_BYTES, MessageCounts
from warren.queues.delivery import DeliveryLedger, give_back
from warren.queues.outcome import ACCEPTED, REFUSED
from warren.queues.unacked import Delivery
from warren.vhosts.virtual_host import VirtualHost

if TYPE_CHECKING:
    from warren.channels.peer import Peer
    from warren.exchanges.exchange import BindJob

# States: open for commands, and closed by us. A protocol may have others between them.
SESSION_OPEN: Final = 0
CHANNEL_CLOSING: Final = 3

# Work, in the units of `channels.shared`.
ROUTE_UNITS: Final = 16  # more for a publish whose route has to be found
CARE_UNITS: Final = 4  # more for a publish with properties to act on, or in a transaction


class Session:
    """One session of a peer. `number`: among those of the peer."""

    def __init__(self, peer: Peer, number: i64, ledger: DeliveryLedger) -> None:
        self.peer: Peer = peer
        self.shared: Shared = peer.shared
        self.number: i64 = number
        self.ledger: DeliveryLedger = ledger
        self.state: i64 = SESSION_OPEN
        self.transaction: Transaction | None = None
        self.confirms: Confirms | None = None
        # The publishes here, how many more queues than messages they went to, and the outcome of the rest.
        self.published: i64 = 0
        self.published_bytes: i64 = 0
        self.spread: i64 = 0
        self.returned: i64 = 0
        self.dropped: i64 = 0
        self.route: Route | None = None  # of the content being received
        self.last_arguments: bytes = b""
        self.last_route: Route | None = None
        self.last_version: i64 = 0
        self.held_bytes: i64 = 0  # the cost of a partly received content, counted in `Shared.inbound`
        self.grown_s: float = 0.0
        vhost = peer.vhost
        # A confirm, or the end of a commit, means synced, not just written.
        self.sync_confirms: bool = vhost is None or vhost.sync_confirms
        self.last_queue = ""  # the queue that an empty name stands for
        self.prefetch: int = 0  # for consumers to come
        self.reply_queue: BaseQueue | None = None
        if not peer.origin.is_direct:
            peer.broker.churn.channels_opened += 1
        login = peer.login
        login.channels_opened += 1
        self.serial: int = login.channels_opened  # unlike the number never used again
        self._publisher: Publisher | None = None  # made when first needed: most subscribers never do
        self._watcher: TrafficWatcher | None = None
        ledger.owner = self
        self.watch(copies=vhost is not None and vhost.tracing)

    # --- overridden by protocols ------------------------------------------------------------------------------------

    def subscribed(self) -> list[Any]:
        """Return the subscriptions of the peer, where its protocol has that notion; do not change them."""
        return []

    def describe_subscription(self, subscription: Any) -> dict[str, object]:
        """Return one of `subscribed` as the management API shows it."""
        raise AssertionError("overridden")

    def recheck(self) -> None:
        """End uses that need a right that the user has lost, consumers apart."""

    def reply(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        """Send the result of a command once the change `ticket` and the `batch` of the log are durable."""
        raise AssertionError("overridden")

    def write_returned(self, message: Message) -> None:
        """Give the peer a mandatory message back that no queue takes."""
        raise AssertionError("overridden")

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Notify the peer that the queue of `consumer` is gone, or the right to read it."""
        raise AssertionError("overridden")

    def give_up_consumer(self, consumer: Consumer, explanation: str) -> bool:
        """Cancel a consumer that did not answer in time; False: the peer cannot be told that."""
        return False

    def end_consumer(self, consumer: Consumer, reason: str) -> bool:
        """Cancel a consumer for an operator, and tell the peer; False: its protocol can only end the whole session.

        What the consumer has not answered is still the peer's to answer, where the protocol allows that.
        """
        return False

    def drop_content(self) -> None:
        """Forget a content received in part: the session or its peer ends."""
        raise AssertionError("overridden")

    # --- permissions ------------------------------------------------------------------------------------------------

    @property
    def vhost(self) -> VirtualHost:
        vhost = self.peer.vhost
        assert vhost is not None
        return vhost

    def authorize(self, action: int, kind: str, name: str) -> None:
        """Make sure that the peer's user may do `action`.

        Raises:
            ChannelException: 403.
        """
        principal = self.peer.principal
        assert principal is not None
        principal.authorize(action, kind, name)

    def queue_name(self, name: str) -> str:
        """Resolve an empty queue name to the last queue declared on this session.

        Raises:
            ChannelException: 404, no queue was declared.
        """
        if name == "":
            if self.last_queue == "":
                raise ChannelException(NOT_FOUND, "no previously declared queue")
            return self.last_queue
        return name

    def begin_bind(self, bind: BindJob) -> None:
        """Do the job of a queue.bind."""
        self.peer.begin(bind)

    def reply_when_done(self, method: Any, ticket: int = 0, batch: int = 0) -> None:
        """Send `method` as a reply when all jobs of the connection are done."""
        self.peer.begin(Reply(self, method, ticket, batch))

    def watch(self, *, copies: bool) -> None:
        """Report publishes and deliveries here: as spans if the shell wants them, with `copies` as traces."""
        watcher: TrafficWatcher | None = None
        spans = self.shared.spans
        if spans is not None:
            watcher = SessionSpans(spans, self.peer, int(self.number))
        if copies:
            tracer = ChannelTracer(self.peer, int(self.number))
            watcher = tracer if watcher is None else BothWatchers(tracer, watcher)
        self._set_watcher(watcher)

    def disable_tracing(self) -> None:
        """Disable tracing: this session only does dry runs."""
        self._set_watcher(None)

    def _set_watcher(self, watcher: TrafficWatcher | None) -> None:
        self.ledger.watcher = watcher
        self._watcher = watcher
        if self._publisher is not None:
            self._publisher.watcher = watcher

    # --- publishing -------------------------------------------------------------------------------------------------

    @property
    def publisher(self) -> Publisher:
        """The publisher of the session, until the session has ended."""
        publisher = self._publisher
        if publisher is None:
            assert self.ledger.owner is self
            publisher = Publisher(self)
            publisher.watcher = self._watcher
            self._publisher = publisher
        return publisher

    def find_route(self, arguments: bytes) -> Route:
        """Return the current meaning of basic.publish with these argument bytes."""
        peer = self.peer
        vhost = peer.vhost
        principal = peer.principal
        assert vhost is not None and principal is not None
        version: i64 = vhost.topology_version
        cache = principal.routes
        if cache.version != version:
            cache.begin(vhost)
        found = cache.routes.get(arguments)
        if found is None:
            peer.units_left -= ROUTE_UNITS
            searched: i64 = principal.searched
            try:
                found = self.make_route(arguments)
            finally:
                peer.units_left -= principal.searched - searched
            peer.units_left -= len(found.queues)
            if found.cacheable:
                cache.add(arguments, found)
        self.last_arguments = arguments
        self.last_route = found
        self.last_version = version
        return found

    def find_route_at(self, data: bytes, start: i64, end: i64) -> Route:
        """Return the same for the argument bytes ``data[start:end]``."""
        peer = self.peer
        vhost = peer.vhost
        principal = peer.principal
        assert vhost is not None and principal is not None
        cache = principal.routes
        if cache.version == vhost.topology_version:
            found = cache.maybe_at(data, start, end)
            if found is not None:
                self.last_arguments = found.arguments
                self.last_route = found
                self.last_version = cache.version
                return found
        return self.find_route(data[start:end])

    def make_route(self, arguments: bytes) -> Route:
        """Decode, authorize and route."""
        return self.publisher.make_route(arguments)

    def complete(
        self,
        content: bytes,
        pieces: list[bytes] | None,
        data: bytes,
        start: i64,
        header_end: i64,
        body_bytes: i64,
        largest: i64,
    ) -> None:
        """Publish the whole content, `content` or `pieces`; ``data[start:header_end]`` is its header frame."""
        route = self.route
        assert route is not None
        flags: i64 = scan_properties(data, start + FRAME_HEAD_BYTES, header_end - 1)
        if flags & SPECIAL_PROPERTIES or not route.cacheable or self.transaction is not None:
            self.peer.units_left -= CARE_UNITS
            header = data[start + FRAME_HEAD_BYTES : header_end - 1]
            self.publisher.publish_with_care(route, content, pieces, header, flags, body_bytes, largest)
            return
        self.published += 1
        self.published_bytes += body_bytes
        if body_bytes > SMALL_MAX_BYTES:
            self.shared.sizes.count(body_bytes)
        route.exchange.published_in += 1
        persistent: bool = flags & PERSISTENT_FLAG != 0
        message = Message(route.envelope, content, self.number, body_bytes, largest, persistent, pieces)
        queues = route.queues
        if len(queues) != 1:
            self.not_to_one(route.exchange, i64(len(queues)))
            if len(queues) == 0:
                self.unroutable(route, message)
            elif len(queues) > QUEUES_AT_ONCE:
                self.publisher.publish_wide(message, queues)
                return
        outcome: i64 = ACCEPTED
        for queue in queues:
            found: i64 = queue.publish(message)
            if found > outcome:
                outcome = found
        confirms = self.confirms
        if confirms is not None:
            confirms.count_publish(message, outcome, route.ticket)
            if outcome == REFUSED:
                self.peer.check_outbox()

    def unroutable(self, route: Route, message: Message) -> None:
        """Return a mandatory message; drop another one."""
        if route.mandatory:
            self.publisher.return_message(message)
        else:
            self.dropped += 1

    def not_to_one(self, exchange: Exchange, queues: i64) -> None:
        """Note that a message published to `exchange` did not go to one queue but to `queues`."""
        self.spread += queues - 1
        exchange.spread += queues - 1
        self.peer.units_left -= queues

    def add_counts(self, counts: MessageCounts) -> None:
        """Add the counts of this session to `counts`."""
        ledger = self.ledger
        counts.publish += self.published
        counts.published_bytes += self.published_bytes
        counts.routed += self.published + self.spread
        counts.return_unroutable += self.returned
        counts.drop_unroutable += self.dropped
        counts.deliver += ledger.delivered
        counts.deliver_no_ack += ledger.next_tag - 1 - ledger.delivered - ledger.got - ledger.got_no_ack
        counts.get += ledger.got
        counts.get_no_ack += ledger.got_no_ack
        counts.get_empty += ledger.got_empty
        counts.redeliver += ledger.redelivered
        counts.ack += ledger.acked
        confirms = self.confirms
        if confirms is not None:
            counts.publish_confirm += confirms.published
            counts.confirm += confirms.confirmed

    def confirm(self) -> None:
        """Write the pending confirms now, not at the end of the turn: the peer ends the session before that."""
        confirms = self.confirms
        if confirms is not None:
            confirms.end_turn()

    def unconfirmed_count(self) -> int:
        """Return the number of publishes that wait for their confirm."""
        confirms = self.confirms
        return 0 if confirms is None else confirms.unanswered_count()

    def uncommitted(self) -> tuple[int, int]:
        """Return the numbers of publishes and of acknowledgements that wait for tx.commit."""
        transaction = self.transaction
        if transaction is None:
            return 0, 0
        return len(transaction.publishes), len(transaction.acked) + len(transaction.rejected)

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, tag: i64, multiple: bool) -> None:
        """Handle basic.ack.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        transaction = self.transaction
        if transaction is None:
            if not self.ledger.ack(tag, multiple):
                self.peer.begin(AckRun(self, tag))
        elif multiple:
            self.ledger.check_outstanding(tag)
            run = BufferRun(self.ledger, tag, transaction, rejected=False, requeue=False, failed=False)
            self.peer.begin(run)
        else:
            transaction.acked.extend(self.ledger.take(tag, False))

    def reject(self, tag: int, *, multiple: bool, requeue: bool, failed: bool, delay_ms: int = -1) -> None:
        """Handle basic.nack and basic.reject. `failed`: a requeue counts towards the delivery limit.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        transaction = self.transaction
        if multiple:
            up_to = signed_tag(tag)
            self.ledger.check_outstanding(up_to)
            if transaction is None:
                self.peer.begin(ReturnRun(self, up_to, requeue=requeue, failed=failed, delay_ms=delay_ms))
            else:
                run = BufferRun(self.ledger, up_to, transaction, rejected=True, requeue=requeue, failed=failed)
                self.peer.begin(run)
            return
        taken = self.ledger.take(signed_tag(tag), False)
        if transaction is None:
            self._put_back(taken, requeue=requeue, failed=failed, delay_ms=delay_ms)
            if not requeue and self.vhost.is_crowded:
                block_publisher(self.peer)  # its dead letters would have to wait
        else:
            transaction.rejected.extend([(delivery, requeue, failed) for delivery in taken])

    def touch(self, tag: int) -> None:
        """Give a delivery its visibility timeout again.

        Raises:
            ChannelException: 406, unknown delivery tag.
        """
        if self.ledger.is_overdue(signed_tag(tag)):
            return
        delivery = self.ledger.outstanding(signed_tag(tag))
        delivery.queue.limit_again(self.ledger, delivery, touched=True)

    def _put_back(self, deliveries: list[Delivery], *, requeue: bool, failed: bool, delay_ms: int = -1) -> None:
        """Requeue or drop deliveries, then wake their queues: all are in place before the first leaves again."""
        for delivery in deliveries:
            if requeue and delivery.queue.rewrites(delay_ms):
                run = ReturnOfTaken(self.ledger, deliveries, requeue=True, failed=failed, delay_ms=delay_ms)
                self.peer.begin(run)
                return
        touched: list[BaseQueue] = []
        for delivery in deliveries:
            queue = delivery.queue
            give_back(self.ledger, delivery, requeue=requeue, failed=failed, delay_ms=delay_ms)
            if not touched or touched[-1] is not queue:
                touched.append(queue)
        for queue in touched:
            queue.wake()

    # --- the end ----------------------------------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Tell whether its peer may still be told something on it."""
        return self.state != CHANNEL_CLOSING and self.peer.running

    def refuse(self, error: ChannelException, method_id: int) -> None:
        """Close it, if that has not happened yet, because of something that is found only now."""
        if self.is_open():
            self.peer.close_session(self, error, method_id)

    def close(self) -> None:
        """Take nothing more; `jobs.ChannelEnd` releases everything."""
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
        """Take out the oldest delivery that nobody will answer; None: all are out."""
        delivery = self.ledger.maybe_take_oldest(0)
        transaction = self.transaction
        if delivery is None and transaction is not None:
            delivery = transaction.maybe_take_answered()
        return delivery

    def ended(self) -> None:
        """Release what refers to the session: nothing of it is left."""
        self.transaction = None
        # They refer to us and we to them: do not leave a cycle for the cyclic collector.
        self.ledger.owner = None
        self._publisher = None
        if not self.peer.origin.is_direct:
            self.peer.broker.churn.channels_closed += 1
            self.peer.broker.events.channel_closed(self)


def signed_tag(tag: int) -> int:
    """Bring an unsigned 64-bit delivery tag into the range of i64; larger ones are unknown anyway."""
    return tag if tag < 1 << 63 else -1
