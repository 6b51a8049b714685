"""A queue: messages waiting in order, the consumers they go to, and what is out for acknowledgement.

1. A message is ready, unacked or gone. ``ready_count`` and ``unacked_count`` say how many there are.
2. Each message has a sequence number, ascending in publish order. ``_backlog`` holds the never-delivered messages;
   ``_returned`` holds requeued ones, all with smaller numbers.
3. Ready messages leave in the order of their sequence numbers, so a requeued message has its old place again.
4. While a message is ready and a consumer may take it, the queue is on the broker's runnable list. ``_hungry`` is True
   only when some consumer may be able to take a message: a publish into a queue of stalled consumers is an append.
5. Consumers of higher priority are served first, equals in turn. With single-active-consumer only the first in
   registration order is served.

6. A persistent message in a durable queue is in the log, or on its way there, until it is settled here.
7. Whether the oldest message is in memory is the backlog's to say; while it is being read from disk, consumers and
   basic.get wait for `_loaded`.

What a queue is made from (declaration, ownership, deletion) belongs to ``queues.virtual_host``.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64

from warren.amqp.errors import ACCESS_REFUSED, ChannelException
from warren.exchanges.destination import Destination
from warren.msgstore.message import Message
from warren.msgstore.message_log import MessageLog
from warren.msgstore.queue_index import QueueIndex
from warren.queues.backlog import Backlog
from warren.queues.delivery import Consumer, Delivery, DeliveryLedger

# How many messages one drain hands out before the other queues have their turn.
DRAIN_BUDGET: Final = 2000


class ConsumerGroup:
    """Consumers of one priority, served in turn."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members: list[Consumer] = []
        self.next: i64 = 0


class Queue(Destination):
    """A classic queue. ``arguments`` is the encoded table of its declaration, ``store_id`` its name in the log."""

    def __init__(
        self,
        vhost_name: str,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: bytes,
        runnable: list[Queue],
        log: MessageLog,
        store_id: int = 0,
    ) -> None:
        super().__init__(name)
        self.is_queue = True
        self.vhost_name = vhost_name
        self.durable = durable
        self.auto_delete: bool = auto_delete
        self.owner = owner  # the connection of an exclusive queue
        self.arguments = arguments
        self.single_active: bool = False
        self.deleted: bool = False

        self.ready_count: i64 = 0
        self.ready_bytes: i64 = 0
        self.unacked_count: i64 = 0
        self.published: i64 = 0
        self.delivered: i64 = 0
        self.redelivered: i64 = 0
        self.acked: i64 = 0
        self.gotten: i64 = 0

        self.consumers: list[Consumer] = []  # in registration order
        self._groups: list[ConsumerGroup] = []  # who may be served, highest priority first
        self._hungry: bool = False
        self._scheduled: bool = False
        self._runnable = runnable
        self.store_id = store_id  # 0 until it is needed
        self._log = log
        self._index: QueueIndex | None = None
        self._backlog = Backlog(log, self._loaded)
        self._returned: list[tuple[int, Message]] = []  # a heap by sequence number
        self._load_waiters: list[Callable[[], None]] = []

    # --- in -------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> None:
        """Take a routed message: hand it to a consumer at once, or keep it."""
        self.published += 1
        if self._hungry and self.ready_count == 0:
            consumer = self._pick()
            if consumer is not None:
                sequence_number: i64 = self._backlog.skip_number()
                self.delivered += 1
                if not consumer.no_ack:
                    self.unacked_count += 1
                    if message.persistent and self.durable:
                        self._store(message, sequence_number)
                consumer.ledger.deliver(consumer, message, sequence_number, False)
                return
        waiting_number: i64 = self._backlog.append(message)
        self.ready_count += 1
        self.ready_bytes += message.body_bytes
        if message.persistent and self.durable:
            self._store(message, waiting_number)

    def _store(self, message: Message, sequence_number: i64) -> None:
        index = self._index
        if index is None:
            index = self._begin_storing()
        self._log.add(index, message, sequence_number)

    def _begin_storing(self) -> QueueIndex:
        if self.store_id == 0:
            self.store_id = self._log.new_queue_id()
        index = self._log.new_index(self.store_id, self.vhost_name, self.name, not self.durable)
        index.owner = self._backlog
        self._index = index
        self._backlog.index = index
        return index

    def restore(self, index: QueueIndex, clean: bool) -> None:
        """Take over the messages that recovery found; after an unclean stop any of them may have been delivered."""
        self._index = index
        self._backlog.restore(index)
        self.ready_count = index.live_count
        self.ready_bytes = index.live_body_bytes
        # What was delivered and not stored has left no number behind: the next messages get those numbers again.
        known = clean and index.delivered_below < index.next_number
        self._backlog.delivered_before = index.delivered_below if known else index.next_number

    def page_out(self) -> None:
        """Memory is short: have what waits here stored and forgotten, transient or not."""
        if self.ready_count and not self.deleted:
            if self._index is None:
                self._begin_storing()
            self._backlog.batch_closed()

    def requeue(self, delivery: Delivery) -> None:
        """Put a delivery back to its place. The caller wakes the queue when all are back."""
        self.unacked_count -= 1
        if self.deleted:
            return
        heappush(self._returned, (int(delivery.sequence_number), delivery.message))
        self.ready_count += 1
        self.ready_bytes += delivery.message.body_bytes

    def settle(self, delivery: Delivery) -> None:
        """Forget an acknowledged or rejected delivery."""
        self.unacked_count -= 1
        self.acked += 1
        index = self._index
        if index is not None:
            self._log.settle(index, delivery.message, delivery.sequence_number)

    # --- out ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Note that a consumer may be able to take a message again."""
        self._hungry = True
        if self.ready_count > 0 and not self._scheduled:
            self._scheduled = True
            self._runnable.append(self)

    def drain(self) -> None:
        """Hand out ready messages while consumers take them, at most `DRAIN_BUDGET`; then queue up again."""
        self._scheduled = False
        budget: i64 = DRAIN_BUDGET
        while self.ready_count > 0:
            if budget == 0:
                self.wake()
                return
            budget -= 1
            if not self._returned and not self._backlog.is_ready():
                return  # `_loaded` goes on
            consumer = self._pick()
            if consumer is None:
                return
            self._hand_out(consumer)

    def _hand_out(self, consumer: Consumer) -> None:
        self.delivered += 1
        redelivered = False
        if self._returned:
            number, message = heappop(self._returned)
            sequence_number: i64 = number
            redelivered = True
            self.redelivered += 1
        else:
            message = self._backlog.pop()
            sequence_number = self._backlog.popped_number
            if sequence_number < self._backlog.delivered_before:
                redelivered = True
                self.redelivered += 1
        self._left(message)
        if not consumer.no_ack:
            self.unacked_count += 1
        else:
            index = self._index
            if index is not None:
                self._log.settle(index, message, sequence_number)
        consumer.ledger.deliver(consumer, message, sequence_number, redelivered)

    def _left(self, message: Message) -> None:
        self.ready_count -= 1
        self.ready_bytes -= message.body_bytes

    def is_ready(self) -> bool:
        """Tell whether `get` can answer now: the oldest message is in memory, or there is none."""
        return self.ready_count == 0 or len(self._returned) > 0 or self._backlog.is_ready()

    def call_when_ready(self, waiter: Callable[[], None]) -> None:
        """Have `waiter` called when the oldest message has come from disk."""
        self._load_waiters.append(waiter)

    def get(self, ledger: DeliveryLedger, no_ack: bool) -> bool:
        """Answer basic.get through `ledger` with the oldest message; False when there is none. See `is_ready`."""
        if self.ready_count == 0:
            return False
        self.gotten += 1
        redelivered = False
        if self._returned:
            number, message = heappop(self._returned)
            sequence_number: i64 = number
            redelivered = True
        else:
            message = self._backlog.pop()
            sequence_number = self._backlog.popped_number
            redelivered = sequence_number < self._backlog.delivered_before
        if redelivered:
            self.redelivered += 1
        self._left(message)
        if not no_ack:
            self.unacked_count += 1
        else:
            index = self._index
            if index is not None:
                self._log.settle(index, message, sequence_number)
        ledger.get(self, message, sequence_number, redelivered, no_ack, self.ready_count)
        return True

    def _loaded(self, lost: int, lost_bytes: int) -> None:
        """Messages have come from disk; those that were `lost` are damaged there, and not served."""
        self.ready_count -= lost
        self.ready_bytes -= lost_bytes
        if self._hungry:
            self.wake()
        waiters = self._load_waiters
        if waiters and self.is_ready():
            self._load_waiters = []
            for waiter in waiters:
                waiter()

    def purge(self) -> int:
        """Drop all ready messages and return how many there were."""
        count = int(self.ready_count)
        index = self._index
        if index is not None:
            for number, message in self._returned:
                self._log.settle(index, message, number)
        self._backlog.clear()
        self._forget_ready()
        return count

    def _forget_ready(self) -> None:
        self._returned.clear()
        self.ready_count = 0
        self.ready_bytes = 0
        self._loaded(0, 0)

    def close(self) -> None:
        """Let go of everything: the queue is deleted. Deliveries that are out are forgotten when they come back."""
        self.deleted = True
        self.consumers = []
        self._groups = []
        self._hungry = False
        self._index = None
        self._backlog.close()
        self._forget_ready()

    def peek_ready(self) -> list[Message]:
        """Return the ready messages that are in memory, in order. For tests and small listings only."""
        returned = [message for _, message in sorted(self._returned, key=_by_number)]
        return returned + self._backlog.resident_messages()

    # --- consumers ------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Register `consumer`.

        Raises:
            ChannelException: 403, it or another one is exclusive; 403, exclusive on a single-active-consumer queue.
        """
        taken = len(self.consumers) > 0 and (consumer.exclusive or self.consumers[0].exclusive)
        if taken or (consumer.exclusive and self.single_active):
            text = f"queue '{self.name}' in vhost '{self.vhost_name}' in exclusive use"
            raise ChannelException(ACCESS_REFUSED, text)
        self.consumers.append(consumer)
        self._regroup()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Forget `consumer`; its unacked messages stay with its channel."""
        self.consumers.remove(consumer)
        self._regroup()

    def is_active(self, consumer: Consumer) -> bool:
        """Tell whether `consumer` is being served: always, except behind a single active consumer."""
        return not self.single_active or self.consumers[0] is consumer

    def _regroup(self) -> None:
        """Rebuild who may be served. Cold: runs when a consumer comes or goes."""
        served = self.consumers[:1] if self.single_active else self.consumers
        by_priority: dict[int, ConsumerGroup] = {}
        for consumer in served:
            if consumer.priority not in by_priority:
                by_priority[consumer.priority] = ConsumerGroup(consumer.priority)
            by_priority[consumer.priority].members.append(consumer)
        self._groups = [by_priority[priority] for priority in sorted(by_priority, reverse=True)]
        self._hungry = len(self._groups) > 0
        if self._hungry:
            self.wake()

    def _pick(self) -> Consumer | None:
        """Choose who gets the next message, or None (and note it) when nobody may take one."""
        for group in self._groups:
            members = group.members
            count: i64 = len(members)
            tried: i64 = 0
            at: i64 = group.next
            while tried < count:
                consumer = members[at]
                at += 1
                if at == count:
                    at = 0
                ledger = consumer.ledger
                if ledger.outbox.writable and (
                    consumer.no_ack
                    or (
                        (consumer.prefetch == 0 or consumer.outstanding < consumer.prefetch)
                        and (ledger.prefetch == 0 or ledger.consumer_unacked < ledger.prefetch)
                        and ledger.unacked_count < ledger.unacked_max
                    )
                ):
                    group.next = at
                    return consumer
                if ledger.unacked_count >= ledger.unacked_max:
                    ledger.starved = True
                tried += 1
        self._hungry = False
        return None

    def check_invariants(self) -> None:
        """Assert (1) to (4) of the module header. For tests."""
        resident = self.peek_ready()
        assert self.ready_count == len(resident) + self._backlog.middle_count
        if self._backlog.middle_count == 0:
            assert self.ready_bytes == sum(int(message.body_bytes) for message in resident)
        assert all(number < self._backlog.delivered_below() for number, _ in self._returned)
        assert self.unacked_count >= 0
        if self.ready_count > 0 and not self._scheduled and self.is_ready():
            assert self._pick() is None, "a message waits although a consumer could take it"


def _by_number(entry: tuple[int, Message]) -> int:
    return entry[0]
