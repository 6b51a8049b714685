"""A queue: messages waiting in order, the consumers they go to, and the messages out for acknowledgement.

    ready   the messages that wait, and their places in the log   groups  the consumers, and which one is next
    keeper  what arguments and policies ask for                   gets    basic.get: its counts, and what waits for it
    gate    messages that wait for their commit                   seen    the keys by which repetitions are known

1. A message is ready, unacked, held or gone. Ready messages are in ``ready`` (``queues.ready_messages``). Unacked ones
   are in the channels' ledgers and counted here. Held ones are in the keeper's lanes (``queues.held_lanes``).
2. While a message is ready and a consumer may take it, the queue is on the broker's runnable list, or that consumer
   stands in a line for its turn on a channel or connection (``queues.turns``). ``is_hungry`` is True only when some
   consumer may be able to take a message: a publish into a queue of stalled consumers is an append.
3. Consumers of higher priority are served first, equals in turn (``queues.consumer_groups``).
4. A persistent message in a durable queue is in the log, or on its way there, until it is settled here.
5. While the next message is being read from disk, consumers and basic.get wait for `look_again`.
6. The keeper carries out arguments and policies (``queues.rule_keeper``); a queue without any does not have a keeper.
7. The keeper's dispatch decides which consumer takes which message (``queues.dispatch``). It may narrow (2) and (3): to
   the messages of a key (``queues.key_sharing``), or to those that a consumer wants (``queues.selective``).
8. A queue without a keeper is plain: first in, first out, and its rules are ignored. Its way from publish to settle is
   in line here, and asks only whether there is a keeper.
9. In a queue with a ``gate`` a message is ready only once it is committed (``queues.commit_gate``). Until then
   basic.get waits for it, as for one that is being read from disk.
10. If a step between two places of a message fails, for lack of memory for instance, it is in one of them.

The making of a queue (declaration, ownership, deletion) belongs to ``vhosts.virtual_host``.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ACCESS_REFUSED, ChannelException
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.backlog import Backlog, nobody_waits
from warren.queues.base_queue import BaseQueue
from warren.queues.basic_get import serve_waiters
from warren.queues.commit_gate import CommitGate, fit_gate
from warren.queues.consumer import Consumer
from warren.queues.consumer_groups import NOBODY, PASSED_OVER_PER_MESSAGE, ConsumerGroups
from warren.queues.counters import DeathCounts
from warren.queues.dead_letter import REJECTED
from warren.queues.delivery import DeliveryLedger
from warren.queues.dispatch import DRAIN_BUDGET
from warren.queues.held_lanes import HeldLane
from warren.queues.lanes import HELD_FROM, UNDELIVERED
from warren.queues.message_deaths import count_death
from warren.queues.origin import CHANNEL, PROMISED, RELEASED
from warren.queues.outcome import ACCEPTED
from warren.queues.queue_host import QueueHost
from warren.queues.receiver import RULED_STEPS, Room
from warren.queues.rule_keeper import RuleKeeper
from warren.queues.rules import DROP_HEAD, QueueRules
from warren.queues.selection import Selection
from warren.queues.selective import Selective
from warren.queues.unacked import Delivery


class Queue(BaseQueue):
    """A queue from which messages leave with their acknowledgement; see `BaseQueue`."""

    def __init__(
        self,
        declaration: QueueDeclaration,
        owner: object | None,
        runnable: list[BaseQueue],
        host: QueueHost,
        store_id: int = 0,
    ) -> None:
        super().__init__(declaration, owner, runnable, host, store_id, Backlog(host.log, nobody_waits))
        self.deaths: DeathCounts | None = None  # None: nothing has died
        self.groups = NOBODY  # the queue's own from the first consumer on
        self.is_hungry: bool = False
        self.is_search_long: bool = False  # many are passed over in a search: only `drain` looks for a consumer
        self.keeper: RuleKeeper | None = None
        self.gate: CommitGate | None = None  # None: messages are ready when they come; else there is a keeper
        self.is_shut: bool = False  # paused, or its recovered messages wait for the first commit of this life
        self._restrained: bool = False  # shut, or with a limit of unacked messages, or being given some back
        self.returning: int = 0  # how many channels are giving messages back, step by step
        self.ready.backlog(0).on_loaded = self.look_again

    # --- in -------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        keeper = self.keeper
        if keeper is not None:
            return keeper.publish(message, CHANNEL)
        # First in, first out, in line (`queues.dispatch`).
        self.published += 1
        ready = self.ready
        if self.is_hungry and ready.count == 0:
            consumer = self.let_wait() if self.is_search_long else self.pick()
            if consumer is not None:
                place: i64 = ready.skip(0)
                if consumer.no_ack:
                    self.delivered_no_ack += 1
                else:
                    self.delivered += 1
                    self.unacked_count += 1
                    self.unacked_bytes += message.body_bytes
                    if message.persistent and self.stores:
                        ready.store(message, place)
                try:
                    consumer.ledger.deliver(consumer, message, place, False)
                except Exception as error:
                    wait_again(self, consumer, message, place, error)
                    return ACCEPTED
                if consumer.has_time_limit:
                    self.need_keeper().timeouts().begin(consumer.ledger, consumer.visibility_ms, consumer.timeout_ms)
                return ACCEPTED
        waiting_place: i64 = ready.append(message, 0)
        if message.persistent and self.stores:
            ready.store(message, waiting_place)
        return ACCEPTED

    def accept(self, message: Message, origin: i64) -> i64:
        """Take a message: hand it to a consumer at once, keep it, or do what the rules say.

        `origin`: where it is from (``queues.origin``). Returns the outcome (``queues.outcome``).
        """
        if message.expiration_ms >= 0 or message.attempts > 0:
            self.need_keeper()
        keeper = self.keeper
        if keeper is None:
            if origin != CHANNEL and origin != PROMISED:
                self.not_by_channels += 1
            return self.publish(message)
        if origin == RELEASED:
            keeper.released(message)
            return ACCEPTED
        return keeper.publish(message, origin)

    def _delay(self, message: Message, until_ms: i64) -> None:
        self.need_keeper().hold(message, until_ms)

    def publish_steps(self) -> i64:
        return 1 if self.keeper is None else RULED_STEPS

    def maybe_room(self) -> Room | None:
        rules = self.rules
        may_refuse = rules.overflow != DROP_HEAD and (rules.max_length >= 0 or rules.max_length_bytes >= 0)
        return self.need_keeper().length if may_refuse else None

    def has_lane(self, lane: i64) -> bool:
        return HELD_FROM <= lane <= UNDELIVERED or super().has_lane(lane)

    def restore(self, index: QueueIndex, clean: bool) -> None:
        if HELD_FROM <= index.lane <= UNDELIVERED:
            self.need_keeper().lanes.restore(index, clean=clean)
            return
        super().restore(index, clean)
        if index.lane >= HELD_FROM:
            return
        if index.has_expiring or self.keeper is not None:
            self.need_keeper().restored(index)
        if self.gate is not None and self._host.log.is_replicated:
            self.gate.await_first_commit()

    def held(self, lane: int) -> HeldLane | None:
        keeper = self.keeper
        return None if keeper is None else keeper.lanes.lane_of(lane)

    def may_page_out(self) -> bool:
        keeper = self.keeper
        return super().may_page_out() or (keeper is not None and keeper.lanes.holds_in_memory())

    def page_out(self) -> None:
        if self.deleted or self.rules.memory_only:
            return
        keeper = self.keeper
        if keeper is not None:
            keeper.lanes.page_out()
        self.ready.page_out()

    # --- back -----------------------------------------------------------------------------------------------------

    def requeue(self, delivery: Delivery, *, failed: bool = True, delay_ms: int = -1) -> None:
        if self.deleted:
            self._answered(delivery)
            return
        keeper = self.need_keeper() if delay_ms > 0 else self.keeper
        if keeper is not None and not keeper.takes_back(delivery, failed, delay_ms):
            return
        message = delivery.message
        self.ready.put_back(message, delivery.sequence_number)
        self.unacked_count -= 1
        self.unacked_bytes -= message.body_bytes
        if keeper is not None:
            keeper.dispatch.came_back(delivery.sequence_number)
            keeper.length.keep()

    def settle(self, delivery: Delivery) -> None:
        self.unacked_count -= 1
        self.unacked_bytes -= delivery.message.body_bytes
        self.acked += 1
        keeper = self.keeper
        if keeper is not None:
            keeper.dispatch.settled(delivery.message, delivery.sequence_number)
        ready = self.ready
        if ready.in_log:
            ready.settle(delivery.message, delivery.sequence_number)

    def limit_again(self, ledger: DeliveryLedger, delivery: Delivery, *, touched: bool) -> None:
        consumer, rules = delivery.consumer, self.rules
        visible_ms: i64 = rules.visibility_timeout_ms if consumer is None else consumer.visibility_ms
        timeout_ms: i64 = 0
        if not touched:
            timeout_ms = rules.consumer_timeout_ms if consumer is None else consumer.timeout_ms
        if (visible_ms > 0 or timeout_ms > 0) and not self.deleted:
            self.need_keeper().timeouts().begin_again(ledger, delivery.tag, visible_ms, timeout_ms)

    def reject(self, delivery: Delivery) -> None:
        self.unacked_gone(delivery)
        keeper = self.keeper
        if keeper is not None and not self.deleted:
            keeper.deaths.add(delivery.message, delivery.sequence_number, REJECTED)
            return
        if not self.deleted:
            plain = self._host.deaths.at(is_quorum=False, has_exchange=False, at_least_once=False)
            count_death(self, REJECTED, plain)
        self.ready.settle(delivery.message, delivery.sequence_number)

    def unacked_gone(self, delivery: Delivery) -> None:
        """Note that a delivery is no longer out. The caller settles it."""
        self._answered(delivery)
        keeper = self.keeper
        if keeper is not None:
            keeper.dispatch.settled(delivery.message, delivery.sequence_number)

    def begin_return(self) -> None:
        self.returning += 1
        self._restrained = True

    def end_return(self) -> None:
        if self.deleted:
            return
        self.returning -= 1
        self.restrain()
        self.wake()
        gets = self.gets
        if gets is not None and gets.waiters and not self.returning:
            self.look_again()

    def rewrites(self, delay_ms: i64) -> bool:
        keeper = self.keeper
        return keeper is not None and (keeper.retries.counts or delay_ms > 0)

    # --- out ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self.is_hungry = True
        if self.ready.count > 0 and not self.is_scheduled:
            self.is_scheduled = True
            self._runnable.append(self)

    def drain(self) -> None:
        """Deliver ready messages while consumers take them, at most `DRAIN_BUDGET`; then queue up again."""
        self.is_scheduled = False
        self._hand_out_ready()

    def serve(self, consumer: Consumer) -> None:
        if self.deleted:
            return
        hungry = self.is_hungry
        self.is_hungry = True
        self.groups.narrow(consumer)
        try:
            self._hand_out_ready()
        finally:
            self.groups.widen()
        if hungry:
            self.is_hungry = True  # nothing is known of the others

    def _hand_out_ready(self) -> None:
        keeper = self.keeper
        self.is_search_long = False
        if keeper is not None:
            keeper.expiry.expire()
            if keeper.expiry.is_held_up:
                self.is_hungry = True  # the keeper wakes us
            else:
                keeper.dispatch.drain(DRAIN_BUDGET)
            return
        # First in, first out, in line (`queues.dispatch`).
        budget: i64 = DRAIN_BUDGET
        ready = self.ready
        while ready.count > 0:
            if budget <= 0:
                self.wake()
                return
            budget -= 1
            if not ready.ready_or_fetch():
                return  # `look_again` will continue
            consumer = self.pick()
            if self.is_search_long:
                budget -= self.groups.take_search_cost()
            if consumer is None:
                return
            message = ready.take_next()
            self.hand_out(consumer, message, ready.next_place, ready.next_redelivered)

    def hand_out(self, consumer: Consumer, message: Message, place: i64, redelivered: bool) -> None:
        """Deliver a message that has waited, and was taken out."""
        self.deliver(consumer, message, place, redelivered)
        if consumer.no_ack:
            self.ready.settle(message, place)

    def deliver(self, consumer: Consumer, message: Message, place: i64, redelivered: bool) -> None:
        """Deliver a message that does not wait, or no longer; it waits if that fails."""
        ledger = consumer.ledger
        if redelivered:
            self.redelivered += 1
            ledger.redelivered += 1
        if consumer.no_ack:
            self.delivered_no_ack += 1
        else:
            self.delivered += 1
            self.unacked_count += 1
            self.unacked_bytes += message.body_bytes
        try:
            ledger.deliver(consumer, message, place, redelivered)
        except Exception as error:
            wait_again(self, consumer, message, place, error)
            return
        if consumer.has_time_limit:
            self.need_keeper().timeouts().begin(ledger, consumer.visibility_ms, consumer.timeout_ms)

    def look_again(self, lost: int = 0, lost_bytes: int = 0) -> None:
        """Continue after messages were taken out by other code, or read from disk: the next one may be in memory now.

        `lost`: how many of those that were read are damaged, and not served.
        """
        self.ready.lost(lost, lost_bytes)
        keeper = self.keeper
        if keeper is not None and not self.deleted:
            keeper.loaded()
        if self.is_hungry:
            self.wake()
        serve_waiters(self, self._host)

    def purge(self) -> int:
        count = int(self.ready_count)
        self.ready.purge()
        if self.gate is not None:
            self.gate.purge()
        self.look_again()
        return count

    def close(self) -> None:
        self.deleted = True
        self.returning = 0
        if self.groups is not NOBODY:
            self.groups.clear()
        self.is_hungry = False
        # They refer to us, and we to them: do not leave them to the cyclic collector.
        keeper = self.keeper
        if keeper is not None:
            keeper.dispatch.close()
        if self.gate is not None:
            self.gate.close()
            self.gate = None
        super().close()
        if keeper is not None:
            keeper.close()
            self.keeper = None
        self.look_again()

    # --- rules ----------------------------------------------------------------------------------------------------

    def need_keeper(self) -> RuleKeeper:
        """Return the keeper; make it if needed."""
        keeper = self.keeper
        if keeper is None:
            keeper = RuleKeeper(self, self.rules, self._host)
            self.keeper = keeper
        return keeper

    def used(self) -> None:
        if self.keeper is not None:
            self.keeper.used()

    def apply_rules(self, rules: QueueRules) -> None:
        super().apply_rules(rules)
        self.stores = self.durable and not rules.memory_only
        self.stores_transient = rules.is_quorum
        self.restrain()
        has_keeper = self.keeper is not None or not rules.is_plain
        if has_keeper:
            keeper = self.need_keeper()
            keeper.change(rules)
            keeper.length.keep()
            if self.gate is not None or rules.is_quorum or rules.read_committed == 1:
                fit_gate(self, self._host)
        for consumer in self.consumers:
            consumer.follow(rules)  # also in a plain queue: their timeout is not a rule of it
        if has_keeper:
            self.wake()

    def pause(self, *, paused: bool) -> None:
        super().pause(paused=paused)
        self.restrain()

    def restrain(self) -> None:
        """Give out nothing while there is a reason. Code that removes one wakes the queue."""
        gate = self.gate
        self.is_shut = self.paused or (gate is not None and gate.is_recovering)
        self._restrained = self.is_shut or self.rules.max_unacked >= 0 or self.returning > 0

    def check_restrained(self) -> bool:
        """Check (and note) whether the rules allow no deliveries now. Code that changes that wakes the queue."""
        if self._restrained and (
            self.is_shut or self.returning > 0 or 0 <= self.rules.max_unacked <= self.unacked_count
        ):
            self.is_hungry = False
            return True
        return False

    # --- consumers ------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Register `consumer`.

        Raises:
            ChannelException: 403, it or another one is exclusive; 403, exclusive on a single-active-consumer queue.
        """
        if self.rules.is_quorum:
            consumer.exclusive = False  # like RabbitMQ: quorum queues do not support it
        taken = self.groups.exclusive is not None or (consumer.exclusive and len(self.consumers) > 0)
        single_active = self.rules.single_active
        if taken or (consumer.exclusive and single_active):
            text = f"queue '{self.name}' in vhost '{self.vhost_name}' in exclusive use"
            raise ChannelException(ACCESS_REFUSED, text)
        self.consumers[consumer] = None
        consumer.follow(self.rules)
        if self.groups is NOBODY:
            self.groups = ConsumerGroups()
        self.groups.add(consumer, single_active)
        self.wake()

    def select(self, consumer: Consumer, selection: Selection) -> None:
        """Deliver to `consumer`, which has just come, only messages that pass `selection`. Not with shared keys."""
        keeper = self.need_keeper()
        dispatch = keeper.dispatch
        if not isinstance(dispatch, Selective):
            dispatch = Selective(self, dispatch)
            keeper.dispatch = dispatch
        dispatch.add(consumer, selection)

    def _consumer_left(self, consumer: Consumer) -> None:
        keeper = self.keeper
        if keeper is not None:
            keeper.dispatch = keeper.dispatch.without(consumer)
        self.groups.remove(consumer)
        if self.consumers:
            self.wake()  # another one may be active now, or get messages that only this one could take
        else:
            self.is_hungry = False
        if keeper is not None:
            keeper.used()

    def pick(self) -> Consumer | None:
        """Choose who gets the next message, or None (and note it) when nobody may take one."""
        if self._restrained and self.check_restrained():
            return None
        groups = self.groups
        consumer = groups.sole
        if consumer is not None:
            if consumer.has_room():
                return consumer
            self.is_hungry = False
            return None
        consumer = groups.pick()
        if groups.passed_over > PASSED_OVER_PER_MESSAGE:
            self.is_search_long = True
        if consumer is None:
            self.is_hungry = False
        return consumer

    def let_wait(self) -> Consumer | None:
        """Leave the choice for a message that has just come to the next drain: the search takes long. Return None."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._runnable.append(self)
        return None

    def check_invariants(self) -> None:
        """Assert (1) and (2) of the module header, for key-shared queues (7). For tests."""
        super().check_invariants()
        if self.gate is not None:
            self.gate.check_invariants()
        keeper = self.keeper
        if keeper is not None:
            keeper.dispatch.check_invariants(is_idle=not self.is_scheduled)
        elif self.ready.count > 0 and not self.is_scheduled and self.ready.ready_or_fetch():
            assert self.pick() is None, "a message waits although a consumer could take it"


def wait_again(queue: Queue, consumer: Consumer, message: Message, place: i64, error: Exception) -> None:
    """Have a message wait whose delivery has failed, and was counted; the peer of `consumer` is ended."""
    consumer.ledger.outbox.failed(error)
    if consumer.no_ack:
        return  # nobody would have asked for it again
    queue.delivered -= 1
    queue.unacked_count -= 1
    queue.unacked_bytes -= message.body_bytes
    queue.ready.put_back(message, place)
    keeper = queue.keeper
    if keeper is not None:
        keeper.dispatch.came_back(place)
    queue.wake()
