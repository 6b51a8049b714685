"""A queue: messages waiting in order, the consumers they go to, and what is out for acknowledgement.

1. A message is ready, unacked, held or gone. ``ready_count`` and ``unacked_count`` say how many there are of the first
   two; what is held is the keeper's.
2. Each message has a place, ascending in publish order within a lane (``queues.lanes``). The backlogs of the lanes hold
   the never-delivered messages; ``_returned`` holds requeued ones, in each lane with smaller numbers than those.
3. Ready messages leave in the order of their places, so a requeued message has its old place again.
4. While a message is ready and a consumer may take it, the queue is on the broker's runnable list. ``_hungry`` is True
   only when some consumer may be able to take a message: a publish into a queue of stalled consumers is an append.
5. Consumers of higher priority are served first, equals in turn. With single-active-consumer only one is served, until
   it goes; its successor is the one with the highest priority, of equals the first that came.
6. A persistent message in a durable queue is in the log, or on its way there, until it is settled here.
7. Whether the oldest message is in memory is the backlog's to say; while it is being read from disk, consumers and
   basic.get wait for `_loaded`.
8. Whatever arguments and policies ask for is the keeper's (``queues.rule_keeper``); a queue without any has none.
9. In a key-shared queue (3), (4) and (5) hold among the messages of each key, as ``queues.key_sharing`` says; requeued
   messages are in its hands, not in ``_returned``.

What a queue is made from (declaration, ownership, deletion) belongs to ``queues.virtual_host``.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from mypy_extensions import i64

from warren.amqp.errors import ACCESS_REFUSED, ChannelException
from warren.amqp.properties import priority_of
from warren.exchanges.destination import Destination
from warren.msgstore.message import Message
from warren.msgstore.queue_index import QueueIndex
from warren.queues.arguments import QueueArguments
from warren.queues.backlog import Backlog
from warren.queues.delivery import Consumer, Delivery, DeliveryLedger
from warren.queues.key_sharing import KeySharing
from warren.queues.lanes import HELD_FROM, LANE_SHIFT, NUMBER_MASK, UNDELIVERED
from warren.queues.queue_host import QueueHost
from warren.queues.rule_keeper import HeldLane, RuleKeeper
from warren.queues.rules import QueueRules
from warren.queues.seen_keys import SeenKeys

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
        name: str,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: bytes,
        runnable: list[Queue],
        host: QueueHost,
        store_id: int = 0,
    ) -> None:
        super().__init__(name)
        self.is_queue = True
        self.vhost_name = host.name
        self.durable = durable
        self.stores: bool = durable  # persistent messages go into the log
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
        self._active: Consumer | None = None  # the single active one
        self._groups: list[ConsumerGroup] = []  # who may be served, highest priority first
        self._hungry: bool = False
        self._scheduled: bool = False
        self._runnable = runnable
        self.store_id = store_id  # 0 until it is needed
        self.parsed: QueueArguments | None = None  # None: a reply queue
        self.rules = QueueRules()
        self.keeper: RuleKeeper | None = None
        self.sharing: KeySharing | None = None  # with x-key-shared; there is a keeper then
        self.paused: bool = False
        self._restrained: bool = False  # paused, or with a limit of unacked messages
        self.next_place: i64 = 0  # of what `take_next` or `take_head` returned last
        self.next_redelivered: bool = False  # whether that may have been delivered before
        self._host = host
        self._log = host.log
        self._index: QueueIndex | None = None
        self._backlog = Backlog(host.log, self._loaded)
        # Of a priority queue, the highest level, `_backlog`, first.
        self._lanes: list[Backlog] | None = None
        self._lane: i64 = 0  # none before this one has a message
        self._returned: list[tuple[int, Message]] = []  # a heap by sequence number
        self._load_waiters: list[Callable[[], None]] = []

    # --- in -------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> None:
        """Take a routed message: hand it to a consumer at once, keep it, or do with it what the rules say."""
        keeper = self.keeper
        if keeper is not None:
            if keeper.seen is None:
                self._publish_by_rules(keeper, message)
            else:
                self._publish_once(keeper, keeper.seen, message)
            return
        self.published += 1
        if self._hungry and self.ready_count == 0:
            consumer = self.pick()
            if consumer is not None:
                sequence_number: i64 = self._backlog.skip_number()
                self.delivered += 1
                if not consumer.no_ack:
                    self.unacked_count += 1
                    if message.persistent and self.stores:
                        self._store(message, sequence_number)
                consumer.ledger.deliver(consumer, message, sequence_number, False)
                if consumer.has_time_limit:
                    self._limit_time(consumer)
                return
        waiting_number: i64 = self._backlog.append(message)
        self.ready_count += 1
        self.ready_bytes += message.body_bytes
        if message.persistent and self.stores:
            self._store(message, waiting_number)

    def _publish_by_rules(self, keeper: RuleKeeper, message: Message) -> bool:
        """Do what the rules say; False when the message is refused."""
        if not keeper.admit(message):
            return False
        self.published += 1
        self._add(keeper, keeper.as_kept(message) if keeper.counts else message)
        return True

    def _publish_once(self, keeper: RuleKeeper, seen: SeenKeys, message: Message) -> None:
        keys = seen.keys_of(message)
        if keys is None:
            self._publish_by_rules(keeper, message)
        elif not seen.drops(keys, message) and self._publish_by_rules(keeper, message):
            seen.add(keys, message, self.stores)

    def take_letter(self, message: Message) -> None:
        """Take a dead letter: as `publish`, but nothing that the queue has seen before keeps it out."""
        keeper = self.keeper
        if keeper is None:
            self.publish(message)
        else:
            self._publish_by_rules(keeper, message)

    def _add(self, keeper: RuleKeeper, message: Message) -> None:
        lane: i64 = 0
        backlog = self._backlog
        lanes = self._lanes
        if lanes is not None:
            lane = i64(len(lanes)) - 1 - priority_of(message.header_payload())
            if lane < 0:
                lane = 0
            backlog = lanes[lane]
        sharing = self.sharing
        if sharing is not None:
            # On the runnable list older messages of other keys go first.
            if self._hungry and not self._scheduled and sharing.maybe_hand_over(message):
                return
        elif self._hungry and self.ready_count == 0:
            consumer = self.pick()
            if consumer is not None:
                self.hand_over(consumer, message, lane)
                return
        waiting_place: i64 = lane << LANE_SHIFT | backlog.append(message)
        if lane < self._lane:
            self._lane = lane
        self.ready_count += 1
        self.ready_bytes += message.body_bytes
        if message.persistent and self.stores:
            self._store(message, waiting_place)
        keeper.waits(message, waiting_place)
        if lanes is not None:
            self.wake_if_hungry()  # what is ahead of it may be waiting for the disk
        if sharing is not None and self._hungry and (self._scheduled or not sharing.maybe_look_past()):
            self.wake()

    def hand_over(self, consumer: Consumer, message: Message, lane: i64) -> i64:
        """Deliver a message that has just come and need not wait; return its place."""
        backlog = self._backlog if self._lanes is None else self._lanes[lane]
        place: i64 = lane << LANE_SHIFT | backlog.skip_number()
        if not consumer.no_ack and message.persistent and self.stores:
            self._store(message, place)
        self._deliver(consumer, message, place, message.attempts > 0)
        return place

    def hold(self, message: Message, until_ms: i64) -> None:
        """Take a routed message that is not to be delivered before a time."""
        keeper = self.need_keeper()
        seen = keeper.seen
        keys = None if seen is None else seen.keys_of(message)
        if seen is not None and keys is not None:
            if seen.drops(keys, message):
                return
            seen.add(keys, message, self.stores)
        self.published += 1
        keeper.hold(keeper.as_kept(message) if keeper.counts else message, until_ms)

    def take_released(self, message: Message) -> None:
        """Take a message whose time has come."""
        keeper = self.keeper
        assert keeper is not None
        if message.expiration_ms >= 0 or self.rules.message_ttl_ms >= 0:
            message.time_ms = self._log.now_ms
        self._add(keeper, message)
        self.wake_if_hungry()

    def _store(self, message: Message, place: i64) -> None:
        if place > NUMBER_MASK:
            self._log.add(self._lane_index(place >> LANE_SHIFT), message, place & NUMBER_MASK)
            return
        index = self._index
        if index is None:
            index = self._begin_storing()
        self._log.add(index, message, place)

    def _begin_storing(self) -> QueueIndex:
        if self.store_id == 0:
            self.store_id = self._log.new_queue_id()
        index = self._log.new_index(self.store_id, self.vhost_name, self.name, 0, not self.durable)
        index.owner = self._backlog
        self._index = index
        self._backlog.index = index
        return index

    def new_lane_index(self, lane: i64) -> QueueIndex:
        """Begin to store the messages of another lane."""
        return self._log.new_index(self._log.new_queue_id(), self.vhost_name, self.name, lane, not self.durable)

    def _lane_index(self, lane: i64) -> QueueIndex:
        lanes = self._lanes
        assert lanes is not None
        backlog = lanes[lane]
        index = backlog.index
        if index is None:
            index = self.new_lane_index(lane)
            index.owner = backlog
            backlog.index = index
        return index

    def index_of(self, lane: i64) -> QueueIndex | None:
        """Return the index of a lane of ready messages; None while nothing of it is stored."""
        lanes = self._lanes
        return self._index if lanes is None else lanes[lane].index

    def owns(self, index: QueueIndex) -> bool:
        """Tell whether an index with our name is of a lane of this queue.

        Not one that is older than the queue: a queue of that name was declared before, and a crash came before its row.
        """
        if index.queue_id < self.store_id:
            return False
        lane: i64 = index.lane
        lanes = self._lanes
        keeper = self.keeper
        if keeper is not None and keeper.seen is not None and keeper.seen.lacks(lane):
            return True
        return HELD_FROM <= lane <= UNDELIVERED or lane == 0 or (lanes is not None and lane < len(lanes))

    def restore(self, index: QueueIndex, clean: bool) -> None:
        """Take over the messages that recovery found; after an unclean stop any of them may have been delivered."""
        lane: i64 = index.lane
        lanes = self._lanes
        backlog = self._backlog
        if lane >= HELD_FROM:
            self.need_keeper().restore_lane(index, clean)
            return
        if lane == 0:
            self._index = index
        if lanes is not None:
            backlog = lanes[lane]
            if lane < self._lane:
                self._lane = lane
        backlog.restore(index)
        self.ready_count += index.live_count
        self.ready_bytes += index.live_body_bytes
        # What was delivered and not stored has left no number behind: the next messages get those numbers again.
        known = clean and index.delivered_below < index.next_number
        backlog.delivered_before = index.delivered_below if known else index.next_number
        if index.has_expiring or self.keeper is not None:
            self.need_keeper().restored(index)

    def held(self, lane: int) -> HeldLane | None:
        """Return what is held in a lane (`queues.lanes`): DELAYED, PARKED, UNDELIVERED; None when nothing ever was."""
        keeper = self.keeper
        return None if keeper is None else keeper.lane_of(lane)

    def may_page_out(self) -> bool:
        """Tell whether `page_out` may find something in memory."""
        keeper = self.keeper
        return self.ready_count > 0 or (keeper is not None and keeper.holds_in_memory())

    def page_out(self) -> None:
        """Memory is short: have what waits here stored and forgotten, transient or not."""
        if self.deleted or self.rules.memory_only:
            return
        keeper = self.keeper
        if keeper is not None:
            keeper.page_out()
        if not self.ready_count:
            return
        lanes = self._lanes
        if lanes is None:
            if self._index is None:
                self._begin_storing()
            self._backlog.batch_closed()
            return
        for lane, backlog in enumerate(lanes):
            if not backlog.is_empty():
                if lane == 0 and self._index is None:
                    self._begin_storing()
                self._lane_index(lane)
                backlog.batch_closed()

    # --- back -----------------------------------------------------------------------------------------------------

    def requeue(self, delivery: Delivery, *, failed: bool = True, delay_ms: int = -1) -> None:
        """Put a delivery back to its place, or do what the rules say. The caller wakes the queue when all are back.

        `failed`: it counts towards a delivery limit. `delay_ms`: what the consumer asks for, negative: nothing.
        """
        if self.deleted:
            self.unacked_count -= 1
            return
        keeper = self.keeper
        if keeper is not None:
            if not keeper.takes_back(delivery, failed, delay_ms):
                return
        elif delay_ms > 0:
            self.need_keeper().takes_back(delivery, failed, delay_ms)
            return
        self.unacked_count -= 1
        message = delivery.message
        sharing = self.sharing
        if sharing is None:
            heappush(self._returned, (int(delivery.sequence_number), message))
        else:
            sharing.returned(delivery.sequence_number, message)
        self.ready_count += 1
        self.ready_bytes += message.body_bytes
        if keeper is not None:
            keeper.keep_limits()

    def settle(self, delivery: Delivery) -> None:
        """Forget an acknowledged delivery."""
        self.unacked_count -= 1
        self.acked += 1
        place: i64 = delivery.sequence_number
        sharing = self.sharing
        if sharing is not None:
            sharing.answered(place, delivery.message)
        if place > NUMBER_MASK:
            self.settle_place(delivery.message, place)
            return
        index = self._index
        if index is not None:
            self._log.settle(index, delivery.message, place)

    def touch(self, ledger: DeliveryLedger, delivery: Delivery) -> None:
        """Give a delivery its visibility timeout again, if it has one."""
        consumer = delivery.consumer
        visible_ms: i64 = self.rules.visibility_timeout_ms if consumer is None else consumer.visibility_ms
        if visible_ms > 0 and not self.deleted:
            self.need_keeper().touch(ledger, delivery.tag, visible_ms)

    def reject(self, delivery: Delivery) -> None:
        """Forget a delivery that its consumer does not want, or dead-letter it."""
        keeper = self.keeper
        if keeper is not None and not self.deleted:
            keeper.rejected(delivery)
        self.settle(delivery)

    def forget(self, delivery: Delivery) -> None:
        """Settle a delivery that leaves in another way."""
        self.unacked_count -= 1
        sharing = self.sharing
        if sharing is not None:
            sharing.answered(delivery.sequence_number, delivery.message)
        self.settle_place(delivery.message, delivery.sequence_number)

    def settle_place(self, message: Message, place: i64) -> None:
        """Have the log forget the message at `place`."""
        lanes = self._lanes
        index = self._index if lanes is None else lanes[place >> LANE_SHIFT].index
        if index is not None:
            self._log.settle(index, message, place & NUMBER_MASK)

    def replace(self, delivery: Delivery, message: Message) -> None:
        """Have `message` stand for the delivery from now on, on disk as well."""
        place: i64 = delivery.sequence_number
        if self.index_of(place >> LANE_SHIFT) is not None:
            self.settle_place(delivery.message, place)
        if message.persistent and self.stores:
            self._store(message, place)
        delivery.message = message

    # --- out ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Note that a consumer may be able to take a message again."""
        self._hungry = True
        if self.ready_count > 0 and not self._scheduled:
            self._scheduled = True
            self._runnable.append(self)

    def wake_if_hungry(self) -> None:
        """A message became ready outside of a publish: see to it that it is handed out."""
        if self._hungry:
            self.wake()

    def drain(self) -> None:
        """Hand out ready messages while consumers take them, at most `DRAIN_BUDGET`; then queue up again."""
        self._scheduled = False
        keeper = self.keeper
        if keeper is not None:
            keeper.expire()
            sharing = self.sharing
            if sharing is not None:
                sharing.drain(DRAIN_BUDGET)
                return
        budget: i64 = DRAIN_BUDGET
        while self.ready_count > 0:
            if budget == 0:
                self.wake()
                return
            budget -= 1
            if not self.is_ready():
                return  # `_loaded` goes on
            consumer = self.pick()
            if consumer is None:
                return
            message = self.take_next()
            if keeper is not None and keeper.is_expired(message):
                keeper.expired_at_hand_out(message, self.next_place)
                continue
            self.hand_out(consumer, message, self.next_place, self.next_redelivered)

    def hand_out(self, consumer: Consumer, message: Message, place: i64, redelivered: bool) -> None:
        """Deliver a message that has waited, and was taken out."""
        if redelivered:
            self.redelivered += 1
        if consumer.no_ack:
            self.settle_place(message, place)
        self._deliver(consumer, message, place, redelivered)

    def _deliver(self, consumer: Consumer, message: Message, place: i64, redelivered: bool) -> None:
        self.delivered += 1
        ledger = consumer.ledger
        if not consumer.no_ack:
            self.unacked_count += 1
        ledger.deliver(consumer, message, place, redelivered)
        if consumer.has_time_limit:
            self._limit_time(consumer)

    def _limit_time(self, consumer: Consumer) -> None:
        self.need_keeper().delivered(consumer.ledger, consumer.visibility_ms, consumer.timeout_ms)

    def take_next(self) -> Message:
        """Take the next message out; `is_ready` has said that it is in memory. `next_place` is where it was."""
        returned = self._returned
        lanes = self._lanes
        if returned and (lanes is None or returned[0][0] >> LANE_SHIFT <= self._first_lane()):
            place, message = heappop(returned)
            self.next_place = place
            self.next_redelivered = True
        elif lanes is None:
            message = self._backlog.pop()
            self.next_place = self._backlog.popped_number
            self.next_redelivered = self.next_place < self._backlog.delivered_before
        else:
            lane: i64 = self._first_lane()
            backlog = lanes[lane]
            message = backlog.pop()
            self.next_place = lane << LANE_SHIFT | backlog.popped_number
            self.next_redelivered = backlog.popped_number < backlog.delivered_before
        if message.attempts > 0:
            self.next_redelivered = True
        self.ready_count -= 1
        self.ready_bytes -= message.body_bytes
        return message

    def _first_lane(self) -> i64:
        """Return the first lane with a message; behind the last when there is none."""
        lanes = self._lanes
        assert lanes is not None
        lane: i64 = self._lane
        count: i64 = len(lanes)
        while lane < count and lanes[lane].is_empty():
            lane += 1
        self._lane = lane
        return lane

    def is_ready(self) -> bool:
        """Tell whether the next message is in memory, or there is none. See `KeySharing.is_ready` for those queues."""
        if self.ready_count == 0:
            return True
        lanes = self._lanes
        if lanes is None:
            sharing = self.sharing
            if sharing is not None:
                return sharing.is_ready()
            return len(self._returned) > 0 or self._backlog.is_ready()
        lane: i64 = self._first_lane()
        if self._returned and self._returned[0][0] >> LANE_SHIFT <= lane:
            return True
        return lanes[lane].is_ready()

    def maybe_take_oldest(self) -> Message | None:
        """Take the oldest message out, whoever may have it; None when it is on disk. `next_place` is where it was."""
        sharing = self.sharing
        if sharing is None:
            return self.take_next() if self.is_ready() else None
        if sharing.maybe_oldest() is not None:
            return sharing.take_oldest()
        return self.take_next() if self._backlog.is_ready() else None

    def is_ready_to_get(self) -> bool:
        """Tell whether `get` can answer now. What has expired is out of its way then."""
        if self.keeper is not None:
            self.keeper.expire()
        return self.is_ready()

    def call_when_ready(self, waiter: Callable[[], None]) -> None:
        """Have `waiter` called when the oldest message has come from disk."""
        self._load_waiters.append(waiter)

    def get(self, ledger: DeliveryLedger, no_ack: bool) -> bool:
        """Answer basic.get through `ledger` with the next message; False when there is none. See `is_ready`."""
        keeper = self.keeper
        if keeper is not None:
            keeper.used()
            keeper.expire()
        while self.ready_count > 0 and not self.paused:
            if not self.is_ready():
                return False  # what was ahead of it has expired just now
            sharing = self.sharing
            message = self.take_next() if sharing is None else sharing.maybe_take_for(ledger)
            if message is None:
                return False
            if keeper is not None and keeper.is_expired(message):
                keeper.expired_at_hand_out(message, self.next_place)
                continue
            place: i64 = self.next_place
            self.gotten += 1
            if self.next_redelivered:
                self.redelivered += 1
            if no_ack:
                self.settle_place(message, place)
            else:
                self.unacked_count += 1
                if sharing is not None:
                    sharing.got(message, place, ledger)
            ledger.get(self, message, place, self.next_redelivered, no_ack, self.ready_count)
            if not no_ack and self.rules.visibility_timeout_ms > 0:
                self.need_keeper().delivered(ledger, self.rules.visibility_timeout_ms, -1)
            return True
        return False

    def _loaded(self, lost: int, lost_bytes: int) -> None:
        """Messages have come from disk; those that were `lost` are damaged there, and not served."""
        self.ready_count -= lost
        self.ready_bytes -= lost_bytes
        keeper = self.keeper
        if keeper is not None and not self.deleted:
            keeper.loaded()
        if self._hungry:
            self.wake()
        waiters = self._load_waiters
        if waiters and self.is_ready():
            self._load_waiters = []
            for waiter in waiters:
                waiter()

    # --- out of turn ----------------------------------------------------------------------------------------------

    def waiting_lanes(self) -> list[int]:
        """Return what `maybe_head` can be asked for: the lanes with messages, -1 for what was returned or set aside."""
        found: list[int] = []
        if self.maybe_head(-1) is not None:
            found.append(-1)
        lanes = self._lanes
        if lanes is None:
            if not self._backlog.is_empty():
                found.append(0)
            return found
        lane = int(self._first_lane())
        while lane < len(lanes):
            if not lanes[lane].is_empty():
                found.append(lane)
            lane += 1
        return found

    def maybe_head(self, lane: i64) -> Message | None:
        """Return the first message of a lane; None when there is none, or it has to come from disk."""
        if lane < 0:
            if self.sharing is not None:
                return self.sharing.maybe_oldest()
            return self._returned[0][1] if self._returned else None
        lanes = self._lanes
        backlog = self._backlog if lanes is None else lanes[lane]
        return backlog.head() if backlog.is_ready() else None

    def take_head(self, lane: i64) -> Message:
        """Take out what `maybe_head` has returned. `next_place` is where it was."""
        if lane < 0:
            if self.sharing is not None:
                return self.sharing.take_oldest()
            place, message = heappop(self._returned)
            self.next_place = place
        else:
            lanes = self._lanes
            backlog = self._backlog if lanes is None else lanes[lane]
            message = backlog.pop()
            self.next_place = lane << LANE_SHIFT | backlog.popped_number
        self.ready_count -= 1
        self.ready_bytes -= message.body_bytes
        return message

    def is_on_disk(self, place: i64) -> bool:
        """Tell whether a message at `place` waits on disk only, as far as that is known in memory."""
        lanes = self._lanes
        backlog = self._backlog if lanes is None else lanes[place >> LANE_SHIFT]
        return backlog.find(place & NUMBER_MASK) is None and backlog.is_on_disk(place & NUMBER_MASK)

    def maybe_waiting(self, place: i64) -> Message | None:
        """Return the message at `place` if it waits in memory, wherever it stands."""
        sharing = self.sharing
        if sharing is not None:
            aside = sharing.maybe_aside(place)
            if aside is not None:
                return aside
        returned = self._returned
        if returned and returned[0][0] == place:
            return returned[0][1]
        lanes = self._lanes
        backlog = self._backlog if lanes is None else lanes[place >> LANE_SHIFT]
        message = backlog.find(place & NUMBER_MASK)
        if message is None:
            for returned_place, message in returned:
                if returned_place == place:
                    return message
            return None
        return message

    def waits_at(self, place: i64) -> bool:
        """Tell whether a message may wait at `place`, returned ones left aside: see `returned_places`."""
        sharing = self.sharing
        if sharing is not None and sharing.maybe_aside(place) is not None:
            return True
        lanes = self._lanes
        backlog = self._backlog if lanes is None else lanes[place >> LANE_SHIFT]
        number: i64 = place & NUMBER_MASK
        return backlog.find(number) is not None or backlog.is_on_disk(number)

    def returned_places(self) -> set[int]:
        """Return the places of all returned messages."""
        return {place for place, _ in self._returned}

    def maybe_take_out(self, place: i64) -> Message | None:
        """Take a message out that waits in memory, wherever it stands; None when it does not."""
        if self.sharing is not None:
            aside = self.sharing.maybe_take_out(place)
            if aside is not None:
                return aside
        lanes = self._lanes
        backlog = self._backlog if lanes is None else lanes[place >> LANE_SHIFT]
        message = backlog.find(place & NUMBER_MASK)
        if message is not None:
            backlog.remove(place & NUMBER_MASK)
        else:
            message = self._maybe_take_returned(place)
        if message is not None:
            self.ready_count -= 1
            self.ready_bytes -= message.body_bytes
        return message

    def _maybe_take_returned(self, place: i64) -> Message | None:
        returned = self._returned
        if returned and returned[0][0] == place:
            return heappop(returned)[1]  # of those that expire together the first is first, so all do not take n * n
        for at, (returned_place, message) in enumerate(returned):
            if returned_place == place:
                returned[at] = returned[-1]
                returned.pop()
                heapify(returned)
                return message
        return None

    def take_out(self, place: i64, body_bytes: i64) -> bool:
        """Take a message out that was fetched; False when it does not wait any more. Its index page is resident."""
        if self.sharing is not None and self.sharing.maybe_take_out(place) is not None:
            return True
        lanes = self._lanes
        backlog = self._backlog if lanes is None else lanes[place >> LANE_SHIFT]
        if not backlog.remove(place & NUMBER_MASK):
            return False
        self.ready_count -= 1
        self.ready_bytes -= body_bytes
        return True

    def took_out(self) -> None:
        """What was fetched is out: what is behind it may be in memory, and what waited for it to be loaded goes on."""
        self._loaded(0, 0)

    def purge(self) -> int:
        """Drop all ready messages and return how many there were."""
        count = int(self.ready_count)
        for place, message in self._returned:
            self.settle_place(message, place)
        if self.sharing is not None:
            self.sharing.purge()
        for backlog in self._backlogs():
            backlog.clear()
        self._forget_ready()
        return count

    def _backlogs(self) -> list[Backlog]:
        lanes = self._lanes
        return [self._backlog] if lanes is None else lanes

    def _forget_ready(self) -> None:
        self._returned.clear()
        self.ready_count = 0
        self.ready_bytes = 0
        self._loaded(0, 0)

    def close(self) -> None:
        """Let go of everything: the queue is deleted. Deliveries that are out are forgotten when they come back."""
        self.deleted = True
        self.consumers = []
        self._active = None
        self._groups = []
        self._hungry = False
        self._index = None
        for backlog in self._backlogs():
            backlog.close()
        # Both have us and we had them: nothing must be left for the cyclic collector.
        sharing = self.sharing
        if sharing is not None:
            sharing.purge()
            self.sharing = None
        keeper = self.keeper
        if keeper is not None:
            keeper.close()
            self.keeper = None
        self._forget_ready()

    def peek_ready(self) -> list[Message]:
        """Return the ready messages that are in memory, in order. For tests and small listings only."""
        listed = [message for _, message in sorted(self._returned, key=_by_number)]
        if self.sharing is not None:
            listed += self.sharing.aside_messages()
        for backlog in self._backlogs():
            listed += backlog.resident_messages()
        return listed

    # --- rules ----------------------------------------------------------------------------------------------------

    def need_keeper(self) -> RuleKeeper:
        """Return the keeper, from now on there."""
        keeper = self.keeper
        if keeper is None:
            keeper = RuleKeeper(self, self.rules, self._host)
            self.keeper = keeper
        return keeper

    def used(self) -> None:
        """Somebody showed interest: an expiry begins anew."""
        if self.keeper is not None:
            self.keeper.used()

    def make_lanes(self, max_priority: int) -> None:
        """Make this a priority queue; it is new."""
        lanes = [self._backlog]
        while len(lanes) <= max_priority:
            lanes.append(Backlog(self._log, self._loaded))
        self._lanes = lanes
        self._lane = len(lanes)

    def apply_rules(self, rules: QueueRules) -> None:
        """Follow other rules from now on: of the declaration, or because a policy came or went."""
        self.rules = rules
        self.stores = self.durable and not rules.memory_only
        self._restrained = self.paused or rules.max_unacked >= 0
        if rules.is_plain() and self.keeper is None:
            return
        if rules.key_shared and self.sharing is None:  # of the declaration, never of a policy: the queue is new
            self.sharing = KeySharing(self, self._backlog, rules.key_header)
        keeper = self.need_keeper()
        keeper.change(rules)
        keeper.keep_limits()
        for consumer in self.consumers:
            self._fit(consumer)
        self.wake()

    def _fit(self, consumer: Consumer) -> None:
        """Give a consumer what the rules allow."""
        rules = self.rules
        consumer.prefetch = consumer.wanted_prefetch
        if rules.prefetch_max > 0 and (consumer.prefetch == 0 or consumer.prefetch > rules.prefetch_max):
            consumer.prefetch = rules.prefetch_max
        consumer.visibility_ms = rules.visibility_timeout_ms
        if consumer.wanted_visibility_ms > 0:
            consumer.visibility_ms = consumer.wanted_visibility_ms
        consumer.timeout_ms = rules.consumer_timeout_ms
        if consumer.wanted_timeout_ms >= 0:
            consumer.timeout_ms = consumer.wanted_timeout_ms
        consumer.has_time_limit = not consumer.no_ack and (consumer.visibility_ms > 0 or consumer.timeout_ms > 0)

    def pause(self, *, paused: bool) -> None:
        """Hand nothing out until resumed; publishing goes on."""
        self.paused = paused
        self._restrained = paused or self.rules.max_unacked >= 0
        if not paused:
            self.wake()

    def is_restrained(self) -> bool:
        """Tell (and note) that the rules let nothing out now. Whoever changes that wakes the queue."""
        if self._restrained and (self.paused or 0 <= self.rules.max_unacked <= self.unacked_count):
            self._hungry = False
            return True
        return False

    # --- consumers ------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Register `consumer`.

        Raises:
            ChannelException: 403, it or another one is exclusive; 403, exclusive on a single-active-consumer queue.
        """
        if self.rules.is_quorum:
            consumer.exclusive = False  # as RabbitMQ: quorum queues do not know it
        taken = len(self.consumers) > 0 and (consumer.exclusive or self.consumers[0].exclusive)
        if taken or (consumer.exclusive and self.single_active):
            text = f"queue '{self.name}' in vhost '{self.vhost_name}' in exclusive use"
            raise ChannelException(ACCESS_REFUSED, text)
        self.consumers.append(consumer)
        self._fit(consumer)
        self._regroup()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Forget `consumer`; its unacked messages stay with its channel."""
        self.consumers.remove(consumer)
        consumer.gone = True
        if self.sharing is not None:
            self.sharing.consumer_removed(consumer)
        self._regroup()
        if self.keeper is not None:
            self.keeper.used()

    def _regroup(self) -> None:
        """Rebuild who may be served. Cold: runs when a consumer comes or goes."""
        served = self.consumers
        if self.single_active and served:
            if self._active not in served:
                self._active = served[0]
                for consumer in served:
                    if consumer.priority > self._active.priority:
                        self._active = consumer
            served = [self._active]
        by_priority: dict[int, ConsumerGroup] = {}
        for consumer in served:
            if consumer.priority not in by_priority:
                by_priority[consumer.priority] = ConsumerGroup(consumer.priority)
            by_priority[consumer.priority].members.append(consumer)
        self._groups = [by_priority[priority] for priority in sorted(by_priority, reverse=True)]
        self._hungry = len(self._groups) > 0
        if self._hungry:
            self.wake()

    def pick(self) -> Consumer | None:
        """Choose who gets the next message, or None (and note it) when nobody may take one."""
        if self._restrained and self.is_restrained():
            return None
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
                if consumer.has_room():
                    group.next = at
                    return consumer
                tried += 1
        self._hungry = False
        return None

    def has_room(self) -> bool:
        """Tell whether some consumer may take a message, out of turn; note it when there is none."""
        for consumer in self.consumers:
            if consumer.has_room():
                return True
        self._hungry = False
        return False

    def check_invariants(self) -> None:
        """Assert (1) to (4) of the module header, for key-shared queues (9). For tests."""
        resident = self.peek_ready()
        backlogs = self._backlogs()
        middle = sum(int(backlog.middle_count) for backlog in backlogs)
        assert self.ready_count == len(resident) + middle
        if middle == 0:
            assert self.ready_bytes == sum(int(message.body_bytes) for message in resident)
        for place, _ in self._returned:
            assert place & NUMBER_MASK < backlogs[place >> LANE_SHIFT].delivered_below()
        assert self.unacked_count >= 0
        if self.sharing is not None:
            self.sharing.check_invariants()
            if not self._scheduled:
                self.sharing.check_nothing_could_leave()
        elif self.ready_count > 0 and not self._scheduled and self.is_ready():
            assert self.pick() is None, "a message waits although a consumer could take it"


def _by_number(entry: tuple[int, Message]) -> int:
    return entry[0]
