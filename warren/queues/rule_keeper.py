"""Carries out the rules of a queue: who gets in, how long and how much waits, what becomes of what leaves otherwise.

A queue without rules has no keeper, and pays nothing. One gets a keeper with its first rule, or with the first message
that has a rule of its own (an expiration, a delay).

    publish    refused (overflow) | held (delay) | taken, with its time
    waiting    expired | dropped from the head (length)
    returned   counted: back to its place | held (retry) | limit reached
    leaving    dead-lettered when the queue has a dead letter exchange, else gone

1. A message is never delivered behind its deadline, and leaves within a second of it wherever it waits. With the
   queue's TTL alone deadlines have the order of the messages: only heads are looked at. A message with a TTL of its
   own, and what stands out of that order, has an entry in `_early`; what is right then is looked for when it is due.
2. What a dead letter needs at its targets and the end of the message here are in the same batch of the log, see
   ``vhosts.dead_lettering``: after a crash it is in one place. With the at-least-once strategy a dead letter that a
   target refuses stays in a lane of its own and is tried again every `UNDELIVERED_RETRY_MS`; who has taken it does not
   get it again, in this process.
3. Counts of failed deliveries are in the message's header (``x-delivery-count``): a counted message is stored again in
   its place, so the count survives whatever the message survives. Each queue counts anew.
4. Limits count what is ready. They are kept after each publish and each return; a head that is on disk is dropped when
   it has come.
5. Of what leaves at one moment, expired or too much, `LEAVE_MAX` go at once, the rest when the agenda is kept again.
   What has expired is not delivered meanwhile.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.field_table import decode_table
from warren.amqp.properties import HEADERS, find_property_from, headers_of
from warren.msgstore.log.message import HEADER_AT, Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import EXPIRING, IndexPage, QueueIndex
from warren.queues.agenda import NEVER, Appointment
from warren.queues.dead_letter import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, with_headers, without_header
from warren.queues.deadlines import Deadlines
from warren.queues.delivery import Delivery, DeliveryLedger
from warren.queues.fetch import Fetch, TimeScan
from warren.queues.held_messages import PARKED_UNTIL, HeldMessages
from warren.queues.lanes import DELAYED, LANE_SHIFT, NUMBER_MASK, PARKED, PRODUCERS, SEEN_KEYS, UNDELIVERED
from warren.queues.queue_host import QueueHost
from warren.queues.rules import (
    DROP_HEAD,
    LIMIT_DEAD_LETTERS,
    LIMIT_PARKS,
    REJECT_PUBLISH_DLX,
    RETRY_ALL,
    RETRY_DISABLED,
    RETRY_FAILED,
    RETRY_RETURNED,
    QueueRules,
)
from warren.queues.seen_keys import SeenKeys

if TYPE_CHECKING:
    from warren.queues.queue import Queue

UNDELIVERED_RETRY_MS: Final = 5000
# How many expired messages are fetched from the middle of a backlog in one go.
EXPIRE_MAX: Final = 512
EXPIRE_MAX_BYTES: Final = 1 << 20
# How many messages leave at a time: each may be dead-lettered.
LEAVE_MAX: Final = 1024
# From so many on, deadlines and time limits of what has been settled meanwhile are looked for.
STALE_MIN: Final = 1024

DELIVERY_COUNT: Final = "x-delivery-count"
RETURN_COUNT: Final = "x-acquired-count"
# As keys of a table they begin with their length.
_RAW_DELIVERY_COUNT: Final = b"\x10x-delivery-count"
_RAW_RETURN_COUNT: Final = b"\x10x-acquired-count"
COUNT_MAX: Final = 1 << 40  # no queue gets there


class TimeLimit:
    """A delivery that comes back when it is not answered in time, or with a `timeout_ms` closes its channel."""

    def __init__(self, at_ms: i64, ledger: DeliveryLedger, tag: i64, timeout_ms: i64) -> None:
        self.at_ms: i64 = at_ms
        self.ledger = ledger
        self.tag: i64 = tag
        self.timeout_ms: i64 = timeout_ms


class RuleKeeper(Appointment):
    """Keeps the rules of `queue`."""

    def __init__(self, queue: Queue, rules: QueueRules, host: QueueHost) -> None:
        super().__init__()
        self.queue = queue
        self.rules = rules
        self.log = host.log
        self.held: HeldLane | None = None
        self.parked: HeldLane | None = None
        self.undelivered: HeldLane | None = None
        self.seen: SeenKeys | None = None
        self._host = host
        self._early = Deadlines()  # of places
        self._fetching: bool = False
        self._since_ms: i64 = host.log.now_ms  # the time of messages that have none
        # The queue's time to live counts from here at the earliest.
        has_messages = queue.published > 0 or queue.ready.count > 0 or queue.unacked_count > 0
        self._aging_from_ms: i64 = host.log.now_ms if has_messages else 0
        self._latest_ms: i64 = host.log.now_ms  # when the latest came that the queue's time to live holds for
        self._used_ms: i64 = host.log.now_ms
        self._limits: list[tuple[int, int, TimeLimit]] = []  # a heap by time; the number keeps equal times in order
        self._limits_made: i64 = 0
        self.counts: bool = False
        self._deaths = host.deaths.at(is_quorum=False, has_exchange=False, at_least_once=False)
        self.change(rules)

    def change(self, rules: QueueRules) -> None:
        """Keep other rules from now on. The queue sees to what follows for its consumers."""
        if self.rules.message_ttl_ms < 0:
            # What waits already begins to age now.
            self._aging_from_ms = self.log.now_ms
        if self.rules.expires_ms != rules.expires_ms:
            self._used_ms = self.log.now_ms
        self.rules = rules
        self._deaths = self._host.deaths.at(
            is_quorum=rules.is_quorum,
            has_exchange=rules.dead_letter_exchange is not None,
            at_least_once=rules.dead_letters_at_least_once,
        )
        self.counts = rules.is_quorum or rules.delivery_limit >= 0 or rules.retry_type != RETRY_DISABLED
        if rules.dedup and self.seen is None:
            queue = self.queue
            self.seen = SeenKeys(
                self.log,
                self._host.agenda,
                queue.vhost_name,
                queue.name,
                queue.durable,
                rules,
                SEEN_KEYS,
                PRODUCERS,
            )
        self.plan()

    # --- in -------------------------------------------------------------------------------------------------------

    def admit(self, message: Message) -> bool:
        """Decide on a publish; False when the queue has nothing more to do with it."""
        rules = self.rules
        if rules.overflow != DROP_HEAD and self._would_overflow(message):
            message.refused = True
            if rules.overflow == REJECT_PUBLISH_DLX and rules.dead_letter_exchange is not None:
                self._leave(message, -1, MAXLEN)
            return False
        if message.time_ms == 0 and (rules.message_ttl_ms >= 0 or message.expiration_ms >= 0):
            message.time_ms = self.log.now_ms
        if rules.message_ttl_ms >= 0 and message.time_ms > self._latest_ms:
            self._latest_ms = message.time_ms
        return True

    def as_kept(self, message: Message) -> Message:
        """Return `message` as a queue that counts failed deliveries keeps it, the same one if it can be.

        Without counts that are not of this queue: a message that a client publishes again, or that died elsewhere, has
        all its tries here. A quorum queue stores everything, whatever the delivery mode.
        """
        kept = message
        if find_property_from(message.header_frame(), HEADER_AT, HEADERS) >= 0:
            header = message.header_payload()
            if _RAW_DELIVERY_COUNT in header or _RAW_RETURN_COUNT in header:
                kept = without_header(without_header(message, DELIVERY_COUNT), RETURN_COUNT)
        if self.rules.is_quorum and not message.persistent:
            if kept is message:
                kept = message.copy()
            kept.persistent = True
        if kept is not message and kept.persistent and self.queue.stores:
            message.awaits_batch = True  # its confirm: what is stored is another message
        return kept

    def _would_overflow(self, message: Message) -> bool:
        rules = self.rules
        queue = self.queue
        if rules.max_length >= 0 and queue.ready.count + 1 > rules.max_length:
            return True
        return rules.max_length_bytes >= 0 and queue.ready.body_bytes + message.body_bytes > rules.max_length_bytes

    def waits(self, message: Message, place: i64) -> None:
        """`message` waits now: note its deadline, keep the limits."""
        rules = self.rules
        if message.time_ms != 0:
            own: i64 = message.expiration_ms
            if self.deadline_ms(message) <= self.log.now_ms:
                if self.queue.ready.maybe_take_out(place) is not None:
                    self._leave(message, place, EXPIRED)
            else:
                if own >= 0:
                    # Even if the queue's is shorter: a policy's may go.
                    self._note_early(message.time_ms + own, place)
                if rules.message_ttl_ms >= 0:
                    if message.time_ms < self._latest_ms:
                        # The clock was set back: those before it leave later.
                        self._note_early(message.time_ms + rules.message_ttl_ms, place)
                    else:
                        self._latest_ms = message.time_ms
                        self._host.agenda.at(message.time_ms + rules.message_ttl_ms, self)
        self.keep_limits()

    def _note_early(self, at_ms: i64, place: i64) -> None:
        self._early.add(at_ms, place)
        if len(self._early) > 2 * self.queue.ready.count + STALE_MIN:
            self._forget_stale()
        self._host.agenda.at(at_ms, self)

    def _forget_stale(self) -> None:
        """Forget deadlines of messages that do not wait any more: they may be far in the future, and very many."""
        queue = self.queue
        early = self._early
        returned = queue.ready.returned_places()
        waiting = Deadlines()
        while len(early) > 0:
            place: i64 = early.first_number()
            if queue.ready.waits_at(place) or int(place) in returned:
                waiting.add(early.first_ms(), place)
            early.remove_first()
        self._early = waiting

    def keep_limits(self) -> None:
        """Drop from the head while more waits than may."""
        rules = self.rules
        queue = self.queue
        if rules.overflow != DROP_HEAD:
            return
        left: i64 = LEAVE_MAX
        while (rules.max_length >= 0 and queue.ready.count > rules.max_length) or (
            rules.max_length_bytes >= 0 and queue.ready.body_bytes > rules.max_length_bytes
        ):
            if left == 0:
                self._host.agenda.at(self.log.now_ms, self)
                return
            left -= 1
            message = queue.ready.maybe_take_oldest()
            if message is None:
                return
            self._leave(message, queue.ready.next_place, MAXLEN)

    # --- time -----------------------------------------------------------------------------------------------------

    def deadline_ms(self, message: Message) -> i64:
        """Return when `message` expires here."""
        at_ms: i64 = NEVER
        ttl: i64 = self.rules.message_ttl_ms
        own: i64 = message.expiration_ms
        since: i64 = message.time_ms
        if since == 0:
            since = self._since_ms
        if own >= 0:
            at_ms = since + own
        if ttl >= 0:
            if since < self._aging_from_ms:
                since = self._aging_from_ms
            at_ms = _earlier(at_ms, since + ttl)
        return at_ms

    def expire(self) -> bool:
        """Let go of what has expired, as far as it is in memory; the rest is fetched. False: there was too much.

        What is left goes when the agenda is kept next.
        """
        now_ms: i64 = self.log.now_ms
        queue = self.queue
        early = self._early
        left: i64 = LEAVE_MAX
        if len(early) > 0 and early.first_ms() <= now_ms and not self._fetching:
            left = self._expire_early(now_ms, left)
        if self.rules.message_ttl_ms >= 0:
            for lane in queue.ready.waiting_lanes():
                while left > 0:
                    message = queue.ready.maybe_head(lane)
                    if message is None or self.deadline_ms(message) > now_ms:
                        break
                    left -= 1
                    self._leave(queue.ready.take_head(lane), queue.ready.next_place, EXPIRED)
        self._host.agenda.worked += LEAVE_MAX - left
        if left > 0:
            return True
        self._host.agenda.at(now_ms, self)
        return False

    def is_expired(self, message: Message) -> bool:
        """Tell whether a message that is about to be delivered is too old for it."""
        return self.deadline_ms(message) <= self.log.now_ms

    def _expire_early(self, now_ms: i64, left: i64) -> i64:
        """Let go of at most `left` of those in `_early`; return how many more there may be."""
        queue = self.queue
        early = self._early
        lane: i64 = -1
        missing: list[int] = []
        while left > 0 and len(early) > 0 and early.first_ms() <= now_ms and len(missing) < EXPIRE_MAX:
            left -= 1
            place: i64 = early.first_number()
            if queue.ready.is_on_disk(place):
                if lane >= 0 and place >> LANE_SHIFT != lane:
                    break
                lane = place >> LANE_SHIFT
                missing.append(int(place & NUMBER_MASK))
                early.remove_first()
                continue
            early.remove_first()
            message = queue.ready.maybe_waiting(place)
            if message is not None and not self._lives_on(message, place, now_ms):
                queue.ready.maybe_take_out(place)
                self._leave(message, place, EXPIRED)
        if missing:
            index = queue.ready.index_of(lane)
            if index is not None:
                self._fetching = True
                _ExpiredFetch(self.log, index, missing, self, lane << LANE_SHIFT).begin()
        return left

    def _lives_on(self, message: Message, place: i64, now_ms: i64) -> bool:
        """Tell whether `message` has more time than was noted: the time to live of a policy has gone."""
        at_ms: i64 = self.deadline_ms(message)
        if at_ms <= now_ms:
            return False
        if at_ms < NEVER:
            self._early.add(at_ms, place)
        return True

    def expired_fetched(self, fetch: Fetch, lane_bits: i64, messages: list[Message | None]) -> None:
        """Expired messages have come from the middle of the backlog, or the first of them."""
        queue = self.queue
        if queue.deleted:
            return
        for number, message in zip(fetch.numbers, messages, strict=True):
            if message is None or self._lives_on(message, lane_bits | number, self.log.now_ms):
                continue
            # It may have been delivered meanwhile, or have come into memory.
            if queue.ready.take_out(lane_bits | number, message.body_bytes):
                self._leave(message, lane_bits | number, EXPIRED)
        if fetch.goes_on():
            return
        self._fetching = False
        fetch.index.unload_candidates += fetch.loaded
        queue.took_out()

    def restored(self, index: QueueIndex) -> None:
        """The backlog of a lane was taken over from an earlier process: find the deadlines in it, keep the limits."""
        self.keep_limits()
        self.plan()
        if index.has_expiring:
            _EarlyScan(self.log, index, self).go_on()

    def early_found(self, at_ms: i64, place: i64) -> None:
        """A message with a time to live of its own waits on disk."""
        self._note_early(at_ms, place)

    def loaded(self) -> None:
        """A head has come from disk: whatever waited for it goes on."""
        self.expire()
        self.keep_limits()
        self.plan()

    def due(self, now_ms: i64) -> None:
        queue = self.queue
        if queue.deleted:
            return
        if self.expire():
            queue.serve_waiters()
        self.keep_limits()
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                lane.release_due(now_ms)
        self._take_back(now_ms)
        if self._unused_until() <= now_ms:
            self._host.queue_expired(queue)
            return
        self.plan()

    def plan(self) -> None:
        """Make the appointment for whatever comes first."""
        if self.queue.deleted:
            return
        at_ms: i64 = NEVER
        if len(self._early) > 0 and not self._fetching:
            at_ms = self._early.first_ms()
        if self.rules.message_ttl_ms >= 0:
            for code in self.queue.ready.waiting_lanes():
                message = self.queue.ready.maybe_head(code)
                if message is not None:
                    at_ms = _earlier(at_ms, self.deadline_ms(message))
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                at_ms = _earlier(at_ms, lane.first_ms())
        if self._limits:
            at_ms = _earlier(at_ms, self._limits[0][0])
        at_ms = _earlier(at_ms, self._unused_until())
        if at_ms < NEVER:
            self._host.agenda.at(at_ms, self)

    def used(self) -> None:
        """Somebody declared the queue again, got from it, or stopped consuming."""
        self._used_ms = self.log.now_ms
        if self.rules.expires_ms >= 0:
            self.plan()

    def _unused_until(self) -> i64:
        if self.rules.expires_ms < 0 or self.queue.consumers:
            return NEVER
        return self._used_ms + self.rules.expires_ms

    # --- held -----------------------------------------------------------------------------------------------------

    def hold(self, message: Message, until_ms: i64) -> None:
        """Hold a message until its time."""
        lane = self.held
        if lane is None:
            lane = HeldLane(self, DELAYED)
            self.held = lane
        self._keep_in(lane, message, until_ms)

    def park(self, message: Message) -> None:
        """Keep a message until somebody releases it."""
        lane = self.parked
        if lane is None:
            lane = HeldLane(self, PARKED)
            self.parked = lane
        self._keep_in(lane, message, PARKED_UNTIL)

    def _keep_undelivered(self, message: Message) -> None:
        lane = self.undelivered
        if lane is None:
            lane = HeldLane(self, UNDELIVERED)
            self.undelivered = lane
        message.persistent = message.persistent or self.rules.is_quorum
        self._keep_in(lane, message, self.log.now_ms + UNDELIVERED_RETRY_MS)

    def _keep_in(self, lane: HeldLane, message: Message, until_ms: i64) -> None:
        stored: bool = message.persistent and self.queue.stores
        if stored and lane.index is None:
            lane.begin_storing(self.queue.ready.new_lane_index(lane.code))
        lane.hold(message, until_ms, stored)
        if until_ms < PARKED_UNTIL:
            self._host.agenda.at(until_ms, self)

    def restore_lane(self, index: QueueIndex, clean: bool) -> None:
        """Take over a lane of held messages that recovery found, or of what the queue has seen."""
        if self.seen is not None and self.seen.lacks(index.lane):
            self.seen.restore(index)
            return
        lane = HeldLane(self, index.lane)
        if index.lane == DELAYED:
            self.held = lane
        elif index.lane == PARKED:
            self.parked = lane
        else:
            self.undelivered = lane
        lane.restore(index, clean=clean)
        self.plan()

    def released(self, lane: i64, message: Message) -> None:
        """The time of a held message has come."""
        if lane != UNDELIVERED:
            self.queue.take_released(message)
            return
        message.attempts = 0  # to whoever takes the letter it is new
        if self._host.send_letter(self.queue, message):
            self._deaths.confirmed += 1
        else:
            self._keep_undelivered(message.copy())

    # --- returned and leaving ---------------------------------------------------------------------------------------

    def delivered(self, ledger: DeliveryLedger, visible_ms: i64, timeout_ms: i64) -> None:
        """A message was delivered and waits for its answer, which has a time limit, or two."""
        tag: i64 = ledger.next_tag - 1
        if visible_ms > 0:
            self._limit(TimeLimit(self.log.now_ms + visible_ms, ledger, tag, 0))
        if timeout_ms > 0:
            self._limit(TimeLimit(self.log.now_ms + timeout_ms, ledger, tag, timeout_ms))

    def _limit(self, limit: TimeLimit) -> None:
        if len(self._limits) > 4 * self.queue.unacked_count + STALE_MIN:
            self._forget_answered()
        self._limits_made += 1
        heappush(self._limits, (int(limit.at_ms), int(self._limits_made), limit))
        self._host.agenda.at(limit.at_ms, self)

    def _forget_answered(self) -> None:
        """Forget the limits of answered deliveries: the time may be hours ahead, and they keep their channel alive."""
        kept: list[tuple[int, int, TimeLimit]] = []
        for entry in self._limits:
            limit = entry[2]
            ledger = limit.ledger
            until_ms: i64 = ledger.touched.get(int(limit.tag), 0) if limit.timeout_ms == 0 else 0
            if until_ms <= limit.at_ms and ledger.is_outstanding(limit.tag):
                kept.append(entry)
        heapify(kept)
        self._limits = kept

    def touch(self, ledger: DeliveryLedger, tag: i64, visible_ms: i64) -> None:
        """Give a delivery its time again."""
        at_ms: i64 = self.log.now_ms + visible_ms
        if ledger.touched.get(int(tag), 0) == at_ms:
            return
        ledger.touched[int(tag)] = int(at_ms)
        self._limit(TimeLimit(at_ms, ledger, tag, 0))

    def _take_back(self, now_ms: i64) -> None:
        left: i64 = LEAVE_MAX
        while self._limits and self._limits[0][0] <= now_ms and left > 0:
            left -= 1
            limit = heappop(self._limits)[2]
            ledger = limit.ledger
            if limit.timeout_ms > 0:
                if ledger.is_outstanding(limit.tag):
                    self._host.delivery_overdue(ledger, int(limit.timeout_ms))
                continue
            if ledger.touched and ledger.touched.get(int(limit.tag), 0) > limit.at_ms:
                continue
            delivery = ledger.maybe_take(limit.tag)
            if delivery is not None:
                ledger.release(delivery)
                self.queue.requeue(delivery, failed=True)
                self.queue.wake()
        self._host.agenda.worked += LEAVE_MAX - left

    def takes_back(self, delivery: Delivery, failed: bool, delay_ms: i64) -> bool:
        """Decide what becomes of a returned delivery; False when it does not go to its old place.

        `delay_ms`: what its consumer asks for; negative: what the rules say.
        """
        if self.counts:
            if not self._count_return(delivery, failed, delay_ms):
                return False
        elif delay_ms > 0:
            self.queue.forget(delivery)
            self.hold(_tried(delivery.message), self.log.now_ms + delay_ms)
            return False
        message = delivery.message
        own: i64 = message.expiration_ms
        if own >= 0 or self.rules.message_ttl_ms >= 0:
            deadline: i64 = self.deadline_ms(message)
            if deadline <= self.log.now_ms:
                queue = self.queue
                queue.unacked_gone(delivery)
                self._leave(message, delivery.sequence_number, EXPIRED)
                return False
            if own >= 0 or self.rules.max_priority > 0 or message.time_ms < self._latest_ms:
                # What is returned need not have the order of its deadlines: of several levels, of a clock set back.
                self._note_early(deadline, delivery.sequence_number)
            self._host.agenda.at(deadline, self)
        return True

    def _count_return(self, delivery: Delivery, failed: bool, delay_ms: i64) -> bool:
        rules = self.rules
        queue = self.queue
        old = delivery.message
        failures: i64 = count_of(old, DELIVERY_COUNT)
        if failed:
            failures += 1
        returns: i64 = count_of(old, RETURN_COUNT) + 1
        if failed and rules.delivery_limit >= 0 and failures > rules.delivery_limit:
            if rules.limit_action == LIMIT_DEAD_LETTERS:
                queue.unacked_gone(delivery)
                self._leave(old, delivery.sequence_number, DELIVERY_LIMIT)
                return False
            queue.forget(delivery)
            if rules.limit_action == LIMIT_PARKS:
                self.park(_tried(old))
            return False
        counts: dict[str, object] = {RETURN_COUNT: int(returns)}
        if failures:
            counts[DELIVERY_COUNT] = int(failures)
        message = with_headers(old, counts)
        message.attempts = returns
        if delay_ms < 0:
            delay_ms = self._retry_delay_ms(failed, failures if failed else returns)
        if delay_ms > 0:
            queue.forget(delivery)
            self.hold(message, self.log.now_ms + delay_ms)
            return False
        queue.replace(delivery, message)
        return True

    def _retry_delay_ms(self, failed: bool, times: i64) -> i64:
        rules = self.rules
        kind: i64 = rules.retry_type
        if kind == RETRY_ALL or (kind == RETRY_FAILED and failed) or (kind == RETRY_RETURNED and not failed):
            return rules.retry_delay_ms(times)
        return 0

    def rejected(self, delivery: Delivery) -> None:
        """A consumer does not want a message back."""
        self._leave(delivery.message, delivery.sequence_number, REJECTED)

    def expired_at_hand_out(self, message: Message, place: i64) -> None:
        """A message that was about to be delivered is too old."""
        self._leave(message, place, EXPIRED)

    def _leave(self, message: Message, place: i64, reason: str) -> None:
        """A message dies here: settle it, unless `place` is -1, and dead-letter it."""
        queue = self.queue
        queue.count_death(reason, self._deaths)
        if self.rules.dead_letter_exchange is not None:
            self._host.post_letter(queue, message, place, reason)
        elif place >= 0:
            queue.ready.settle(message, place)

    def letter_sent(self, letter: Message | None) -> None:
        """Hear of the letter of a message that died here: None when it was taken, else it is to be sent again."""
        if not self.rules.dead_letters_at_least_once:
            return
        if letter is None:
            self._deaths.confirmed += 1
        else:
            self._keep_undelivered(letter.copy())

    def dead_letter_parked(self, message: Message) -> None:
        """Somebody wants a parked message dead-lettered."""
        if self.rules.dead_letter_exchange is None:
            self.park(message)  # there was one when it was asked for
        else:
            self._leave(message, -1, DELIVERY_LIMIT)

    def close(self) -> None:
        """The queue is deleted."""
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                lane.close()
        if self.seen is not None:
            self.seen.close()
        # They have us and we had them: nothing must be left for the cyclic collector.
        self.held = None
        self.parked = None
        self.undelivered = None
        self._early.clear()
        self._limits.clear()
        self._host.agenda.cancel(self)

    def lane_of(self, code: i64) -> HeldLane | None:
        """Return what is held in one of the lanes; None when nothing ever was."""
        if code == DELAYED:
            return self.held
        return self.parked if code == PARKED else self.undelivered

    def holds_in_memory(self) -> bool:
        """Tell whether held messages take memory."""
        lanes = (self.held, self.parked, self.undelivered)
        return any(lane is not None and lane.in_memory_count() for lane in lanes)

    def page_out(self) -> None:
        """Memory is short."""
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                if lane.needs_index():
                    lane.begin_storing(self.queue.ready.new_lane_index(lane.code))
                lane.page_out()


class HeldLane(HeldMessages):
    """One of the held lanes of a queue."""

    def __init__(self, keeper: RuleKeeper, code: i64) -> None:
        super().__init__(keeper.log)
        self.code: i64 = code
        self._keeper = keeper

    def released(self, message: Message) -> None:
        self._keeper.released(self.code, message)

    def may_dead_letter(self) -> bool:
        return self._keeper.rules.dead_letter_exchange is not None

    def dead_lettered(self, message: Message) -> None:
        self._keeper.dead_letter_parked(message)

    def changed(self) -> None:
        self._keeper.plan()


class _ExpiredFetch(Fetch):
    def __init__(
        self, log: MessageLog, index: QueueIndex, numbers: list[int], keeper: RuleKeeper, lane_bits: i64
    ) -> None:
        super().__init__(log, index, numbers, EXPIRE_MAX_BYTES)
        self._keeper = keeper
        self._lane_bits: i64 = lane_bits

    def fetched(self, messages: list[Message | None]) -> None:
        self._keeper.expired_fetched(self, self._lane_bits, messages)

    def page_damaged(self, page: IndexPage) -> None:
        """The backlog counts what it loses, when it comes there."""


class _EarlyScan(TimeScan):
    def __init__(self, log: MessageLog, index: QueueIndex, keeper: RuleKeeper) -> None:
        super().__init__(log, index, EXPIRING, whole=True)
        self._keeper = keeper

    def found(self, number: i64, time_ms: i64, data: bytes) -> None:
        message = self.log.maybe_message(self.index, number, data, 0, len(data))
        if message is not None and message.expiration_ms >= 0:
            place: i64 = self.index.lane << LANE_SHIFT | number
            self._keeper.early_found(time_ms + message.expiration_ms, place)

    def ended(self) -> None:
        pass


def _earlier(one: i64, other: i64) -> i64:
    return one if one < other else other


def _tried(message: Message) -> Message:
    """Return a copy of a message that has come back, for being held."""
    made = message.copy()
    if made.attempts == 0:
        made.attempts = 1
    return made


def count_of(message: Message, header: str) -> i64:
    """Return the number in a header of `message`, 0 without."""
    headers = headers_of(message.header_payload())
    if not headers or header.encode() not in headers:
        return 0
    value = decode_table(headers).get(header)
    # What waited before its queue began to count may have one of its publisher.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= COUNT_MAX:
        return 0
    return value
