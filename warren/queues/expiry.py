"""When the messages of a queue expire: by its time to live (x-message-ttl), and by that of messages (expiration).

    waiting    at most until its deadline, wherever it stands
    returned   back to its place while there is time left, else expired
    delivered  never after its deadline

1. A message is never delivered after its deadline, and leaves within a second of it wherever it waits. With the queue's
   time to live alone deadlines have the order of the messages: only heads are looked at. A message with a time to live
   of its own, or out of that order, has an entry in `_early`; whether that is still right is checked when it is due.
   While some of these are being read from disk, heads are looked at as well.
2. Expired messages die, as ``queues.message_deaths`` says, `LEAVE_MAX` in one turn, the rest when the timers run again.
   They are not delivered meanwhile.
3. Messages that wait when a policy brings a time to live begin to age at that moment. After the clock was set back
   before a start, messages may have times in the future: they begin to age at that start, and do not keep later ones
   alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import EXPIRING, IndexPage, QueueIndex
from warren.queues.dead_letter import EXPIRED
from warren.queues.deadlines import Deadlines
from warren.queues.fetch import Fetch, TimeScan
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.message_deaths import LEAVE_MAX, MessageDeaths
from warren.queues.queue_host import QueueHost
from warren.queues.rules import QueueRules
from warren.queues.timers import NEVER, Timer
from warren.queues.unacked import Delivery

if TYPE_CHECKING:
    from warren.queues.queue import Queue

# How many expired messages are fetched from the middle of a backlog in one go.
EXPIRE_MAX: Final = 512
EXPIRE_MAX_BYTES: Final = 1 << 20
# From this number on, deadlines of settled messages are removed.
STALE_MIN: Final = 1024


class Expiry:
    """The deadlines of the messages that wait in `queue`. `timer` is set for the first one."""

    def __init__(self, queue: Queue, rules: QueueRules, host: QueueHost, deaths: MessageDeaths, timer: Timer) -> None:
        log = host.log
        self.queue = queue
        self.log = log
        self._timers = host.timers
        self._timer = timer
        self._deaths = deaths
        self._ttl_ms: i64 = rules.message_ttl_ms
        self._has_levels: bool = rules.max_priority > 0
        self._early = Deadlines()  # of places
        self._fetching: bool = False
        self._scans: int = 0  # that look for deadlines on disk
        self.is_held_up: bool = False  # for dead letters: expired messages stay, and are not delivered
        self._since_ms: i64 = log.now_ms  # the time of messages that have none
        self._came_ms: i64 = log.now_ms  # no message that has come into this process is later
        # The queue's time to live counts from this time at the earliest.
        has_messages = queue.published > 0 or queue.ready.count > 0 or queue.unacked_count > 0
        self._aging_from_ms: i64 = log.now_ms if has_messages or self._ttl_ms < 0 else 0
        self._latest_ms: i64 = log.now_ms  # when the latest message came that has the queue's time to live

    def __len__(self) -> int:
        """Return how many deadlines are noted besides the order of the messages."""
        return len(self._early)

    def follow(self, rules: QueueRules) -> None:
        """Follow another time to live from now on."""
        if self._ttl_ms < 0:
            # Messages that wait already begin to age now.
            self._aging_from_ms = self.log.now_ms
        self._ttl_ms = rules.message_ttl_ms
        self._has_levels = rules.max_priority > 0

    # --- messages come ----------------------------------------------------------------------------------------------

    def admitted(self, message: Message) -> None:
        """Give a message that comes into the queue its time, if there is a time to live for it."""
        if message.time_ms == 0 and (self._ttl_ms >= 0 or message.expiration_ms >= 0):
            message.time_ms = self.log.now_ms
        if self.log.now_ms > self._came_ms:
            self._came_ms = self.log.now_ms

    def becomes_ready(self, message: Message) -> None:
        """Note when a message came, also one that is delivered at once: later ones with earlier times are out of order.

        Delivered ones may return. Not earlier: those that came before it and wait for the gate as well are in order.
        """
        if self._ttl_ms >= 0 and message.time_ms > self._latest_ms:
            self._latest_ms = message.time_ms

    def released(self, message: Message) -> None:
        """Begin the time to live of a held message that comes into the queue now, however long it was held."""
        if message.expiration_ms >= 0 or self._ttl_ms >= 0:
            message.time_ms = self.log.now_ms
        if self.log.now_ms > self._came_ms:
            self._came_ms = self.log.now_ms

    def waits(self, message: Message, place: i64) -> None:
        """Note the deadline of `message`, which waits now."""
        if message.time_ms == 0:
            return
        own: i64 = message.expiration_ms
        if self.deadline_ms(message) <= self.log.now_ms:
            if self.queue.ready.maybe_take_out(place) is not None:
                self._deaths.add(message, place, EXPIRED)
            return
        if own >= 0:
            # Even if the queue's is shorter: a policy's may go.
            self._note_early(message.time_ms + own, place)
        if self._ttl_ms >= 0:
            if message.time_ms < self._latest_ms:
                # The clock was set back: earlier messages leave later.
                self._note_early(message.time_ms + self._ttl_ms, place)
            else:
                self._timers.at(message.time_ms + self._ttl_ms, self._timer)

    def returns(self, delivery: Delivery) -> bool:
        """Note the deadline of a delivery that comes back; False when it is over, and the message has died."""
        message = delivery.message
        own: i64 = message.expiration_ms
        if own < 0 and self._ttl_ms < 0:
            return True
        deadline: i64 = self.deadline_ms(message)
        if deadline <= self.log.now_ms:
            self.queue.unacked_gone(delivery)
            self._deaths.add(message, delivery.sequence_number, EXPIRED)
            return False
        if own >= 0 or self._has_levels or message.time_ms < self._latest_ms:
            # Returned messages need not be in the order of their deadlines: several levels, or a clock set back.
            self._note_early(deadline, delivery.sequence_number)
        self._timers.at(deadline, self._timer)
        return True

    def restored(self, index: QueueIndex) -> None:
        """Find the deadlines in the backlog of a lane, taken over from an earlier process."""
        if index.has_expiring:
            self._scans += 1
            _EarlyScan(self.log, index, self).advance()

    def early_found(self, at_ms: i64, place: i64) -> None:
        """Note a message on disk with a time to live of its own."""
        self._note_early(at_ms, place)

    def scan_ended(self) -> None:
        """Note that all deadlines of a lane are found."""
        self._scans -= 1

    def _note_early(self, at_ms: i64, place: i64) -> None:
        if len(self._early) >= 2 * self.queue.ready.count + STALE_MIN:
            self._forget_stale()
        self._early.add(at_ms, place)  # not before: one that is coming back does not wait yet
        self._timers.at(at_ms, self._timer)

    def _forget_stale(self) -> None:
        """Forget deadlines of messages that no longer wait: they may be far in the future, and very many."""
        queue = self.queue
        early = self._early
        waiting = Deadlines()
        while len(early) > 0:
            place: i64 = early.first_number()
            if queue.ready.is_on_disk(place) or queue.ready.maybe_waiting(place) is not None:
                waiting.add(early.first_ms(), place)
            early.remove_first()
        self._early = waiting

    # --- messages expire --------------------------------------------------------------------------------------------

    def deadline_ms(self, message: Message) -> i64:
        """Return when `message` expires here."""
        at_ms: i64 = NEVER
        ttl: i64 = self._ttl_ms
        own: i64 = message.expiration_ms
        since: i64 = self.since_ms(message)
        if own >= 0:
            at_ms = since + own
        if ttl >= 0:
            if since < self._aging_from_ms:
                since = self._aging_from_ms
            if since + ttl < at_ms:
                at_ms = since + ttl
        return at_ms

    def since_ms(self, message: Message) -> i64:
        """Return the time from which `message` ages."""
        since: i64 = message.time_ms
        # A future time was stored by an earlier process, whose clock was ahead: the message waits since the start.
        if since == 0 or (since > self.log.now_ms and since > self._came_ms):
            return self._since_ms
        return since

    def is_expired(self, message: Message) -> bool:
        """Tell whether a message that is about to be delivered is too old for it."""
        return self.deadline_ms(message) <= self.log.now_ms

    def expired_at_hand_out(self, message: Message, place: i64) -> None:
        """Expire a message that was about to be delivered and has left the queue."""
        self._deaths.add(message, place, EXPIRED)

    def expire(self) -> bool:
        """Remove expired messages that are in memory; fetch the others. False: there were too many.

        The rest is removed when the timers run next.
        """
        now_ms: i64 = self.log.now_ms
        early = self._early
        left: i64 = LEAVE_MAX
        self.is_held_up = False
        if len(early) > 0 and early.first_ms() <= now_ms and not self._fetching:
            left = self._expire_early(now_ms, left)
        if self._ttl_ms >= 0 or self._fetching or self._scans > 0:
            ready = self.queue.ready
            for lane in ready.waiting_lanes():
                while left > 0:
                    message = ready.maybe_head(lane)
                    if message is None or self.deadline_ms(message) > now_ms:
                        break
                    if self._has_to_wait():
                        return False
                    left -= 1
                    self._deaths.add(ready.take_head(lane), ready.next_place, EXPIRED)
        self._timers.worked += LEAVE_MAX - left
        if self.is_held_up:
            return False
        if left > 0:
            return True
        self._timers.at(now_ms, self._timer)
        return False

    def _has_to_wait(self) -> bool:
        """Tell whether dead letters must be placed before more messages may expire; the timer is due then."""
        self.is_held_up = self._deaths.must_wait(self._timer)
        return self.is_held_up

    def _expire_early(self, now_ms: i64, left: i64) -> i64:
        """Remove at most `left` of those in `_early`; return how many more there may be."""
        ready = self.queue.ready
        early = self._early
        lane: i64 = -1
        missing: list[int] = []
        while left > 0 and len(early) > 0 and early.first_ms() <= now_ms and len(missing) < EXPIRE_MAX:
            if self._has_to_wait():
                break
            left -= 1
            place: i64 = early.first_number()
            if ready.is_on_disk(place):
                if lane >= 0 and place >> LANE_SHIFT != lane:
                    break
                lane = place >> LANE_SHIFT
                missing.append(int(place & NUMBER_MASK))
                early.remove_first()
                continue
            early.remove_first()
            message = ready.maybe_waiting(place)
            if message is not None and not self._lives_on(message, place, now_ms):
                ready.maybe_take_out(place)
                self._deaths.add(message, place, EXPIRED)
        if missing:
            index = ready.index_of(lane)
            if index is not None:
                self._fetching = True
                _ExpiredFetch(self.log, index, missing, self, lane << LANE_SHIFT).begin()
        return left

    def _lives_on(self, message: Message, place: i64, now_ms: i64) -> bool:
        """Tell whether `message` has more time than was noted: a policy with a time to live has gone."""
        at_ms: i64 = self.deadline_ms(message)
        if at_ms <= now_ms:
            return False
        if at_ms < NEVER:
            self._early.add(at_ms, place)
        return True

    def expired_fetched(self, fetch: Fetch, lane_bits: i64, messages: list[Message | None]) -> None:
        """Expire messages that were read from the middle of the backlog, or the first of them."""
        queue = self.queue
        if queue.deleted:
            return
        for number, message in zip(fetch.numbers, messages, strict=True):
            if message is None or self._lives_on(message, lane_bits | number, self.log.now_ms):
                continue
            # It may have been delivered meanwhile, or have come into memory.
            if queue.ready.take_out(lane_bits | number, message.body_bytes):
                self._deaths.add(message, lane_bits | number, EXPIRED)
        if fetch.fetch_rest():
            return
        self._fetching = False
        fetch.index.unload_candidates += fetch.loaded
        queue.look_again()

    def first_ms(self) -> i64:
        """Return when the next message expires, as far as that is known in memory."""
        at_ms: i64 = NEVER
        if self.is_held_up:
            return at_ms
        if len(self._early) > 0 and not self._fetching:
            at_ms = self._early.first_ms()
        if self._ttl_ms >= 0:
            for code in self.queue.ready.waiting_lanes():
                message = self.queue.ready.maybe_head(code)
                if message is not None:
                    deadline: i64 = self.deadline_ms(message)
                    if deadline < at_ms:
                        at_ms = deadline
        return at_ms

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        self._early.clear()
        self._timer = Timer()  # it refers to us, and we to it


class _ExpiredFetch(Fetch):
    def __init__(self, log: MessageLog, index: QueueIndex, numbers: list[int], expiry: Expiry, lane_bits: i64) -> None:
        super().__init__(log, index, numbers, EXPIRE_MAX_BYTES)
        self._expiry = expiry
        self._lane_bits: i64 = lane_bits

    def fetched(self, messages: list[Message | None]) -> None:
        self._expiry.expired_fetched(self, self._lane_bits, messages)

    def page_damaged(self, page: IndexPage) -> None:
        """Do nothing: the backlog counts its lost messages when it reads the page itself."""


class _EarlyScan(TimeScan):
    def __init__(self, log: MessageLog, index: QueueIndex, expiry: Expiry) -> None:
        super().__init__(log, index, EXPIRING, whole=True)
        self._expiry = expiry

    def found(self, number: i64, time_ms: i64, data: bytes) -> None:
        message = self.log.maybe_message(self.index, number, data, 0, len(data), False)
        if message is not None and message.expiration_ms >= 0:
            place: i64 = self.index.lane << LANE_SHIFT | number
            self._expiry.early_found(self._expiry.since_ms(message) + message.expiration_ms, place)

    def ended(self) -> None:
        self._expiry.scan_ended()
