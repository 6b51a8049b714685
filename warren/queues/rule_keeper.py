"""Carries out the rules of a queue: each rule has its own module, and their common part is here.

A queue without rules has no keeper, and pays nothing. One gets a keeper with its first rule, or with the first message
that has a rule of its own (an expiration, a delay).

    publish    refused (``length_limit``, ``seen_keys``) | held (``held_lanes``) | taken, with its time (``expiry``)
    taken      stored and not committed (``commit_gate``) | at a consumer at once (``dispatch``) | waiting
    waiting    expired (``expiry``) | dropped from the head (``length_limit``)
    unacked    its time is over (``delivery_timeout``): returned
    returned   counted: back to its place | held | given up (``retry``)
    leaving    dead-lettered when the queue has a dead letter exchange, else gone (``message_deaths``)
    unused     the queue itself expires (x-expires)

Messages come by `publish`, delayed ones by `hold`, which does not look at the length limits. Held ones come a second
time by `released`.

The parts know the queue, and `MessageDeaths`, but not the keeper. The keeper has one timer for all of them. When that
is due each part has its turn in a fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.basic_get import serve_waiters
from warren.queues.delivery_timeout import DeliveryTimeouts
from warren.queues.dispatch import Dispatch, PriorityDispatch
from warren.queues.expiry import Expiry
from warren.queues.held_lanes import HeldLanes
from warren.queues.key_sharing import KeyShared
from warren.queues.lanes import LANE_SHIFT
from warren.queues.length_limit import LengthLimit
from warren.queues.message_deaths import MessageDeaths
from warren.queues.origin import CHANNEL, LETTER, PROMISED
from warren.queues.outcome import ACCEPTED, REFUSED, REPEATED
from warren.queues.queue_host import QueueHost
from warren.queues.retry import Retries
from warren.queues.rules import QueueRules
from warren.queues.timers import NEVER, Timer
from warren.queues.unacked import Delivery

if TYPE_CHECKING:
    from warren.queues.queue import Queue


class RuleKeeper(Timer):
    """Keeps the rules of `queue`."""

    def __init__(self, queue: Queue, rules: QueueRules, host: QueueHost) -> None:
        super().__init__()
        self.queue = queue
        self.rules = rules
        self.log: MessageLog = host.log
        self.deaths = MessageDeaths(queue, rules, host)
        self.expiry = Expiry(queue, rules, host, self.deaths, self)
        self.length = LengthLimit(queue, rules, host, self.deaths, self)
        self.lanes = HeldLanes(queue, rules, host, self.deaths, self)
        self.retries = Retries(queue, rules, self.lanes, self.deaths)
        # These two are arguments without a policy key, so they are known when the queue is made, before its messages.
        self.dispatch = Dispatch(queue)
        if rules.key_shared:
            self.dispatch = KeyShared(queue, rules.key_header)
        elif rules.max_priority > 0:
            self.dispatch = PriorityDispatch(queue)
        self._timeouts: DeliveryTimeouts | None = None
        self._host = host
        self._used_ms: i64 = host.log.now_ms
        self._plan()

    def change(self, rules: QueueRules) -> None:
        """Keep other rules from now on. The queue applies the consequences for its consumers."""
        if self.rules.expires_ms != rules.expires_ms:
            self._used_ms = self.log.now_ms
        self.rules = rules
        self.deaths.follow(rules)
        self.lanes.follow(rules)
        self.retries.follow(rules)
        self.length.follow(rules)
        self.expiry.follow(rules)
        self._plan()

    # --- messages ---------------------------------------------------------------------------------------------------

    def publish(self, message: Message, origin: i64) -> i64:
        """Take a message, unless it was here before or the queue is full. Arguments and result as `Queue.accept`."""
        queue = self.queue
        is_foreign = origin != CHANNEL and origin != PROMISED
        seen = queue.seen
        keys = None if seen is None or origin == LETTER else seen.keys_of(message)
        outcome: i64 = ACCEPTED
        if seen is not None and keys is not None and seen.drops(keys, message):
            outcome = REPEATED
        elif not self.length.admits(message, origin):
            outcome = REFUSED
        if outcome != ACCEPTED:
            if not is_foreign:
                queue.refused += 1
            return outcome
        self.expiry.admitted(message)
        queue.published += 1
        if is_foreign:
            queue.not_by_channels += 1
        self._add(self.retries.as_kept(message))
        if seen is not None and keys is not None:
            seen.add(keys, message, queue.will_store(message))
        return ACCEPTED

    def hold(self, message: Message, until_ms: i64) -> None:
        """Hold a message until a time."""
        self.lanes.hold(self.retries.as_kept(message), until_ms)

    def released(self, message: Message) -> None:
        """Take a message that was held here; it was counted when it came."""
        self.expiry.released(message)
        self._add(message)
        queue = self.queue
        if queue.is_hungry:
            queue.wake()

    def _add(self, message: Message) -> None:
        queue = self.queue
        lane: i64 = queue.ready.lane_of(message)
        gate = queue.gate
        if gate is not None and gate.takes(message):
            gate.hold(message, lane)
        else:
            self._make_ready(message, lane, is_stored=False, hands_over=True)

    def committed(self, message: Message, place: i64, *, hands_over: bool) -> None:
        """Make a message ready that the gate has held, and that is stored; `hands_over`: a consumer may get it now."""
        given = self._make_ready(message, place >> LANE_SHIFT, is_stored=True, hands_over=hands_over)
        assert given == place, "a message is ready at another place than it was given"

    def _make_ready(self, message: Message, lane: i64, *, is_stored: bool, hands_over: bool) -> i64:
        """Hand a message to a consumer, or add it to those that wait; return its place."""
        queue = self.queue
        ready = queue.ready
        self.expiry.becomes_ready(message)
        if hands_over and queue.is_hungry:
            given: i64 = self.dispatch.maybe_hand_over(message, lane, is_stored)
            if given >= 0:
                return given
        place: i64 = ready.append(message, lane)
        if message.persistent and queue.stores and not is_stored:
            ready.store(message, place)
        self.expiry.waits(message, place)
        self.length.keep()
        self.dispatch.came(lane)
        return place

    def takes_back(self, delivery: Delivery, failed: bool, delay_ms: i64) -> bool:
        """Decide about a returned delivery; False when it does not go to its old place.

        `delay_ms`: the delay that its consumer asks for; negative: by the rules.
        """
        return self.retries.comes_back(delivery, failed, delay_ms, self.log.now_ms) and self.expiry.returns(delivery)

    def timeouts(self) -> DeliveryTimeouts:
        """Return the time limits of unacked deliveries."""
        timeouts = self._timeouts
        if timeouts is None:
            timeouts = DeliveryTimeouts(self.queue, self._host, self)
            self._timeouts = timeouts
        return timeouts

    def restored(self, index: QueueIndex) -> None:
        """Look at the backlog of a lane, taken over from an earlier process."""
        self.length.keep()
        self._plan()
        self.expiry.restored(index)

    def loaded(self) -> None:
        """Continue after a head was read from disk."""
        self.expiry.expire()
        self.length.keep()
        self._plan()

    # --- time -------------------------------------------------------------------------------------------------------

    def due(self, now_ms: i64) -> None:
        queue = self.queue
        if queue.deleted:
            return
        waited = self.expiry.is_held_up
        if self.expiry.expire():
            serve_waiters(queue, self._host)
            if waited:
                queue.wake()
        self.length.keep()
        self.lanes.release_due(now_ms)
        if self._timeouts is not None:
            self._timeouts.end_due(now_ms)
        if self._unused_until_ms() <= now_ms:
            self._host.queue_expired(queue)
            return
        self._plan()

    def _plan(self) -> None:
        """Set the timer for the earliest event."""
        if self.queue.deleted:
            return
        at_ms: i64 = min(self.expiry.first_ms(), self.lanes.first_ms(), self._unused_until_ms())
        if self._timeouts is not None:
            at_ms = min(at_ms, self._timeouts.first_ms())
        if at_ms < NEVER:
            self._host.timers.at(at_ms, self)

    def used(self) -> None:
        """Note that the queue was declared again, got from, or lost a consumer."""
        self._used_ms = self.log.now_ms
        if self.rules.expires_ms >= 0:
            self._plan()

    def _unused_until_ms(self) -> i64:
        """Return when the queue itself expires, if it is not used until then."""
        if self.rules.expires_ms < 0 or self.queue.consumers:
            return NEVER
        return self._used_ms + self.rules.expires_ms

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        self.lanes.close()
        self.expiry.close()
        self.length.close()
        if self._timeouts is not None:
            self._timeouts.close()
        self._host.timers.cancel(self)
