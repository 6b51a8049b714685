"""A queue: messages waiting in order, the consumers they go to, and what is out for acknowledgement.

1. A message is ready, unacked or gone. ``ready_count`` and ``unacked_count`` say how many there are.
2. Each message has a sequence number, ascending in publish order. ``_ready`` holds never-delivered messages with
   consecutive numbers from ``_ready.first``; ``_returned`` holds requeued ones, all with smaller numbers.
3. Ready messages leave in the order of their sequence numbers, so a requeued message has its old place again.
4. While a message is ready and a consumer may take it, the queue is on the broker's runnable list. ``_hungry`` is True
   only when some consumer may be able to take a message: a publish into a queue of stalled consumers is an append.
5. Consumers of higher priority are served first, equals in turn. With single-active-consumer only the first in
   registration order is served.

What a queue is made from (declaration, ownership, deletion) belongs to ``queues.virtual_host``.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64

from warren.amqp.errors import ACCESS_REFUSED, ChannelException
from warren.exchanges.destination import Destination
from warren.queues.delivery import Consumer, Delivery, DeliveryLedger
from warren.queues.message import Message

# How many messages one drain hands out before the other queues have their turn.
DRAIN_BUDGET: Final = 2000


class MessageFifo:
    """Never-delivered messages with consecutive sequence numbers; a list whose taken part is cut off now and then."""

    def __init__(self) -> None:
        self.first: i64 = 0  # sequence number of the oldest message, or of the next to come
        self._items: list[Message | None] = []
        self._head: i64 = 0

    def __len__(self) -> int:
        return len(self._items) - int(self._head)

    def append(self, message: Message) -> None:
        self._items.append(message)

    def pop(self) -> Message:
        """Remove and return the oldest message; there must be one."""
        head: i64 = self._head
        message = self._items[head]
        assert message is not None
        self._items[head] = None
        head += 1
        self.first += 1
        if head == len(self._items):
            self._items.clear()
            head = 0
        elif head > 1024 and head * 2 > len(self._items):
            del self._items[:head]
            head = 0
        self._head = head
        return message

    def clear(self) -> None:
        self.first += len(self._items) - self._head
        self._items.clear()
        self._head = 0


class ConsumerGroup:
    """Consumers of one priority, served in turn."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members: list[Consumer] = []
        self.next: i64 = 0


class Queue(Destination):
    """A classic queue in memory. ``arguments`` is the encoded table of its declaration."""

    def __init__(
        self,
        vhost_name: str,
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: bytes,
        runnable: list[Queue],
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
        self._ready = MessageFifo()
        self._returned: list[tuple[int, Message]] = []  # a heap by sequence number

    # --- in -------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> None:
        """Take a routed message: hand it to a consumer at once, or keep it."""
        self.published += 1
        if self._hungry and self.ready_count == 0:
            consumer = self._pick()
            if consumer is not None:
                ready = self._ready
                sequence_number: i64 = ready.first
                ready.first = sequence_number + 1
                self.delivered += 1
                if not consumer.no_ack:
                    self.unacked_count += 1
                consumer.ledger.deliver(consumer, message, sequence_number, False)
                return
        self._ready.append(message)
        self.ready_count += 1
        self.ready_bytes += message.body_bytes

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
            consumer = self._pick()
            if consumer is None:
                return
            self._hand_out(consumer)

    def _hand_out(self, consumer: Consumer) -> None:
        self.delivered += 1
        if not consumer.no_ack:
            self.unacked_count += 1
        if self._returned:
            sequence_number, message = heappop(self._returned)
            self._left(message)
            self.redelivered += 1
            consumer.ledger.deliver(consumer, message, sequence_number, True)
            return
        first: i64 = self._ready.first
        fresh = self._ready.pop()
        self._left(fresh)
        consumer.ledger.deliver(consumer, fresh, first, False)

    def _left(self, message: Message) -> None:
        self.ready_count -= 1
        self.ready_bytes -= message.body_bytes

    def get(self, ledger: DeliveryLedger, no_ack: bool) -> bool:
        """Answer basic.get through `ledger` with the oldest ready message; False when there is none."""
        if self.ready_count == 0:
            return False
        self.gotten += 1
        if not no_ack:
            self.unacked_count += 1
        sequence_number: i64 = self._ready.first
        redelivered = False
        if self._returned:
            number, message = heappop(self._returned)
            sequence_number = number
            redelivered = True
            self.redelivered += 1
        else:
            message = self._ready.pop()
        self._left(message)
        ledger.get(self, message, sequence_number, redelivered, no_ack, self.ready_count)
        return True

    def purge(self) -> int:
        """Drop all ready messages and return how many there were."""
        count = int(self.ready_count)
        self._returned.clear()
        self._ready.clear()
        self.ready_count = 0
        self.ready_bytes = 0
        return count

    def close(self) -> None:
        """Let go of everything: the queue is deleted. Deliveries that are out are forgotten when they come back."""
        self.deleted = True
        self.purge()
        self.consumers = []
        self._groups = []
        self._hungry = False

    def peek_ready(self) -> list[Message]:
        """Return the ready messages in order, without touching them. For tests and small listings only."""
        returned = [message for _, message in sorted(self._returned, key=_by_number)]
        return returned + [message for message in self._ready._items if message is not None]

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
        assert self.ready_count == len(self._ready) + len(self._returned)
        assert self.ready_bytes == sum(int(message.body_bytes) for message in self.peek_ready())
        assert all(number < self._ready.first for number, _ in self._returned)
        assert self.unacked_count >= 0
        if self.ready_count > 0 and not self._scheduled:
            assert self._pick() is None, "a message waits although a consumer could take it"


def _by_number(entry: tuple[int, Message]) -> int:
    return entry[0]
