"""The common base of queues, streams and claim queues: what all of them have, and what all of them are asked.

    Receiver             takes routed messages: ``queues.receiver``
      BaseQueue          is declared, has consumers and counts
        Queue            a message leaves with its acknowledgement: ``queues.queue``
        OffsetQueue      messages stay, and are read by offset: ``queues.offset_queue``
          Stream         by any number of consumers: ``streams.stream``
          ClaimQueue     by a drain: ``queues.claims``

1. Channels, ledgers, the broker, vhosts and views know a queue by these methods. Code that needs one kind asks for it.
2. A method here suits a queue that delivers nothing: it refuses what clients ask for, and does nothing for consumers.
3. ``published`` and the other counts only grow (``queues.counters``), and ``deleted`` ends everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import NOT_IMPLEMENTED, AmqpError, ConnectionException
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.arguments import QueueArguments
from warren.queues.backlog import Backlog
from warren.queues.consumer import Consumer
from warren.queues.counters import MessageCounts
from warren.queues.delivery import DeliveryLedger
from warren.queues.effective_policy import NO_POLICY, EffectivePolicy
from warren.queues.held_messages import HeldMessages
from warren.queues.lane_indexes import LaneIndexes
from warren.queues.lanes import PRODUCERS, SEEN_KEYS
from warren.queues.origin import CHANNEL
from warren.queues.outcome import ACCEPTED, REPEATED
from warren.queues.queue_host import QueueHost
from warren.queues.ready_messages import ReadyMessages
from warren.queues.receiver import RULED_STEPS, Receiver
from warren.queues.rules import PLAIN_RULES, QueueRules
from warren.queues.seen_keys import SeenKeys
from warren.queues.unacked import Delivery

if TYPE_CHECKING:
    from warren.queues.basic_get import Gets
    from warren.queues.selection import Selection


class BaseQueue(Receiver):
    """A queue of any kind. `owner` is the connection of an exclusive one, `store_id` its name in the log.

    `runnable` is the broker's list of queues with messages to deliver, `backlog` has the messages of this one.
    """

    def __init__(
        self,
        declaration: QueueDeclaration,
        owner: object | None,
        runnable: list[BaseQueue],
        host: QueueHost,
        store_id: int,
        backlog: Backlog,
    ) -> None:
        super().__init__(declaration.name, is_queue=True, durable=declaration.durable)
        self.vhost_name = host.name
        self.auto_delete: bool = declaration.auto_delete
        self.owner = owner
        self.arguments = declaration.arguments  # an encoded table
        self.parsed: QueueArguments | None = None  # None: a reply queue
        self.rules = PLAIN_RULES
        self.policies: EffectivePolicy = NO_POLICY  # those whose settings are in the rules

        self.ready = ReadyMessages(
            host.log, LaneIndexes(host.log, host.name, self.name, self.durable, store_id), backlog
        )
        self.seen: SeenKeys | None = None  # None: repetitions are not dropped
        self.unacked_count: i64 = 0
        self.unacked_bytes: i64 = 0  # of their bodies
        # Counts (`queues.counters`).
        self.published: i64 = 0  # taken, from any source
        self.not_by_channels: i64 = 0  # of those: dead letters, released or remembered messages, the broker's own
        self.refused: i64 = 0  # published by channels and not taken: too much, or a repetition
        self.delivered: i64 = 0
        self.delivered_no_ack: i64 = 0
        self.gets: Gets | None = None  # None: nobody has asked for a message
        self.redelivered: i64 = 0
        self.acked: i64 = 0
        self.seen_activity: i64 = -1  # of `queues.activity`

        self.consumers: dict[Consumer, None] = {}  # in registration order
        self.paused: bool = False
        self.is_scheduled: bool = False
        self._runnable = runnable
        self._host = host

    @property
    def declaration(self) -> QueueDeclaration:
        """The declaration of a queue like this one."""
        return QueueDeclaration(
            self.name,
            durable=self.durable,
            exclusive=self.owner is not None,
            auto_delete=self.auto_delete,
            arguments=self.arguments,
        )

    @property
    def ready_count(self) -> i64:
        """The number of ready messages, with those that are not committed yet."""
        return self.ready.count + self.ready.uncommitted_count

    @property
    def message_count(self) -> i64:
        """The number of messages, ready or unacked."""
        return self.ready.count + self.ready.uncommitted_count + self.unacked_count

    @property
    def ready_bytes(self) -> i64:
        """Their bodies."""
        return self.ready.body_bytes + self.ready.uncommitted_bytes

    @property
    def message_bytes(self) -> i64:
        """The bodies of all messages, ready or unacked."""
        return self.ready.body_bytes + self.ready.uncommitted_bytes + self.unacked_bytes

    def persistent(self) -> tuple[int, int]:
        """Return how many messages are stored and survive a restart, ready or unacked, and their bodies in bytes."""
        count: i64 = 0
        body_bytes: i64 = 0
        for lane in range(self.ready.lane_count):
            index = self.ready.index_of(lane)
            if index is not None:
                count += index.live_count - index.droppable_count
                body_bytes += index.live_body_bytes
        return int(count), int(body_bytes)

    def counts(self) -> MessageCounts:
        """Return the counts of messages here."""
        counts = MessageCounts()
        counts.publish = self.published - self.not_by_channels + self.refused
        counts.deliver = self.delivered
        counts.deliver_no_ack = self.delivered_no_ack
        gets = self.gets
        if gets is not None:
            counts.get = gets.got
            counts.get_no_ack = gets.got_no_ack
            counts.get_empty = gets.got_empty
        counts.redeliver = self.redelivered
        counts.ack = self.acked
        return counts

    @property
    def store_id(self) -> int:
        """Its name in the log, 0 until it is needed."""
        return self.ready.indexes.store_id

    # --- life -----------------------------------------------------------------------------------------------------

    def apply_rules(self, rules: QueueRules) -> None:
        """Follow other rules from now on: of the declaration, or because a policy came or went."""
        self.rules = rules
        # An argument without a policy key: it is there from the beginning, before the messages, or never.
        if rules.dedup and self.seen is None:
            log, timers = self._host.log, self._host.timers
            self.seen = SeenKeys(log, timers, self.vhost_name, self.name, self.durable, rules, SEEN_KEYS, PRODUCERS)

    def has_lane(self, lane: i64) -> bool:
        """Tell whether it stores messages or notes in a lane (`queues.lanes`)."""
        seen = self.seen
        return lane < self.ready.lane_count or (seen is not None and seen.lacks(lane))

    def restore(self, index: QueueIndex, clean: bool) -> None:
        """Take over what recovery found; after an unclean stop any of the messages may have been delivered."""
        seen = self.seen
        if seen is not None and seen.lacks(index.lane):
            seen.restore(index)
        else:
            self.ready.restore(index, clean)

    def used(self) -> None:
        """Note that it was used: one that expires does so later."""

    def pause(self, *, paused: bool) -> None:
        """Deliver nothing until resumed; publishing continues."""
        self.paused = paused
        if not paused:
            self.wake()

    def purge(self) -> int:
        """Drop all ready messages and return their number.

        Raises:
            AmqpError: it does not allow that.
        """
        raise self.refusal("queue.purge")

    def check_allows(self, method: str) -> None:
        """Make sure that a client may use `method`, queue.bind or queue.delete.

        Raises:
            AmqpError: it may not.
        """

    def refusal(self, what: str) -> AmqpError:
        """Return the refusal of `what`, a method that this kind of queue does not have."""
        kind = self.rules.queue_type
        text = f"{what} not supported by {kind} queues queue '{self.name}' in vhost '{self.vhost_name}'"
        return ConnectionException(NOT_IMPLEMENTED, text)

    def close(self) -> None:
        """Release everything: the queue is deleted. Unacked deliveries are forgotten when they come back."""
        self.deleted = True
        self.consumers = {}
        self.ready.close()
        if self.seen is not None:
            self.seen.close()
            self.seen = None

    # --- messages -------------------------------------------------------------------------------------------------

    def hold(self, message: Message, until_ms: i64, origin: i64) -> i64:
        seen = self.seen
        keys = None if seen is None else seen.keys_of(message)
        if seen is not None and keys is not None:
            if seen.drops(keys, message):
                if origin == CHANNEL:
                    self.refused += 1
                return REPEATED
            seen.add(keys, message, self.will_store(message))
        self.published += 1
        if origin != CHANNEL:
            self.not_by_channels += 1
        self._delay(message, until_ms)
        return ACCEPTED

    def _delay(self, message: Message, until_ms: i64) -> None:
        """Hold a message that is counted."""

    def publish_steps(self) -> i64:
        return 1 if self.seen is None else RULED_STEPS

    def held(self, lane: int) -> HeldMessages | None:
        """Return a lane of held messages (`queues.lanes`): DELAYED, PARKED, UNDELIVERED; None if it was never used."""
        return None

    def may_page_out(self) -> bool:
        """Tell whether `page_out` may find something in memory."""
        return self.ready.count > 0

    def page_out(self) -> None:
        """Store waiting messages and drop them from memory, transient or not: memory is short."""
        if not self.deleted:
            self.ready.page_out()

    # --- deliveries -----------------------------------------------------------------------------------------------

    def settle(self, delivery: Delivery) -> None:
        """Forget an acknowledged delivery."""
        self._answered(delivery)
        self.acked += 1

    def requeue(self, delivery: Delivery, *, failed: bool = True, delay_ms: int = -1) -> None:
        """Put a delivery back to its place, or do what the rules say. The caller wakes the queue when all are back.

        `failed`: it counts towards a delivery limit. `delay_ms`: the delay that the consumer asks for, negative: none.
        """
        self._answered(delivery)

    def reject(self, delivery: Delivery) -> None:
        """Forget a delivery that its consumer does not want, or dead-letter it."""
        self._answered(delivery)

    def _answered(self, delivery: Delivery) -> None:
        self.unacked_count -= 1
        self.unacked_bytes -= delivery.message.body_bytes

    def limit_again(self, ledger: DeliveryLedger, delivery: Delivery, *, touched: bool) -> None:
        """Begin the time limits of a delivery again, if it has any: a rollback has taken its answer back.

        `touched`: only the visibility timeout; its client still works on it.
        """

    def rewrites(self, delay_ms: i64) -> bool:
        """Tell whether a delivery that is requeued with a delay, negative: without one, may be stored again."""
        return False

    def begin_return(self) -> None:
        """Deliver nothing until `end_return`: returned messages must have their places before others leave."""

    def end_return(self) -> None:
        """Note that one channel has returned all its messages."""
        self.wake()

    # --- consumers ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Note that a consumer may be able to take a message again."""
        if self.consumers and not self.is_scheduled:
            self.is_scheduled = True
            self._runnable.append(self)

    def drain(self) -> None:
        """Deliver messages while consumers take them, a bounded number; then queue up again."""

    def serve(self, consumer: Consumer) -> None:
        """Deliver to `consumer`, whose turn it is on its channel or connection, while it has room."""

    def add_consumer(self, consumer: Consumer) -> None:
        """Register `consumer`.

        Raises:
            AmqpError: it cannot be served, or not beside the others.
        """
        raise self.refusal("basic.consume")

    def remove_consumer(self, consumer: Consumer) -> None:
        """Forget `consumer`; its unacked messages stay with its channel."""
        if consumer in self.consumers:  # else the queue has been deleted
            del self.consumers[consumer]
            consumer.gone = True
            self._consumer_left(consumer)

    def _consumer_left(self, consumer: Consumer) -> None:
        """Stop serving `consumer`, which has just been removed from `consumers`."""

    def select(self, consumer: Consumer, selection: Selection) -> None:
        """Deliver to `consumer`, which has just come, only messages that pass `selection`."""

    def check_invariants(self) -> None:
        """Assert what the module header says. For tests."""
        self.ready.check_invariants()
        assert self.unacked_count >= 0
        assert self.unacked_bytes >= 0 and (self.unacked_count > 0 or self.unacked_bytes == 0)


def owns(queue: BaseQueue, index: QueueIndex) -> bool:
    """Tell whether an index with the name of `queue` is of one of its lanes.

    An index that is older than the queue is not: a crash came after an earlier declaration of the name, before its row
    was stored.
    """
    return index.queue_id >= queue.store_id and queue.has_lane(index.lane)
