"""The lanes of a queue besides its backlog, with held messages (``queues.held_messages``).

    held          delayed by its publisher, or until another try
    parked        given up, until an operator releases it
    undelivered   dead letters that a target has refused, of a queue that sends them at least once; and those whose
                  routing takes too many steps

A refused letter is sent again every `UNDELIVERED_RETRY_MS`. A queue that has taken it does not get it again, in this
process. The letter stays in its place in the log meanwhile, for a target may be away for days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.dead_letter import DELIVERY_LIMIT
from warren.queues.held_messages import DROPPED, DUE, PARKED_UNTIL, STAYS, UNROUTED_RETRY_MS, HeldMessages
from warren.queues.lanes import DELAYED, PARKED, UNDELIVERED
from warren.queues.message_deaths import MessageDeaths
from warren.queues.origin import RELEASED
from warren.queues.queue_host import QueueHost
from warren.queues.rules import QueueRules
from warren.queues.timers import NEVER, Timer

if TYPE_CHECKING:
    from warren.queues.queue import Queue

UNDELIVERED_RETRY_MS: Final = 5000


class HeldLanes:
    """The held messages of `queue`; a lane is None until it gets a message. `timer` is set for the first of all."""

    def __init__(self, queue: Queue, rules: QueueRules, host: QueueHost, deaths: MessageDeaths, timer: Timer) -> None:
        self.held: HeldLane | None = None
        self.parked: HeldLane | None = None
        self.undelivered: HeldLane | None = None
        self.log: MessageLog = host.log
        self._queue = queue
        self._stores_all: bool = rules.is_quorum
        self._host = host
        self._deaths = deaths
        self._timer = timer

    def follow(self, rules: QueueRules) -> None:
        """Follow other rules from now on."""
        self._stores_all = rules.is_quorum

    # --- in and out -------------------------------------------------------------------------------------------------

    def hold(self, message: Message, until_ms: i64) -> None:
        """Hold a message until its time."""
        lane = self.held
        if lane is None:
            lane = HeldLane(self, DELAYED)
            self.held = lane
        self._keep_in(lane, message, until_ms)

    def park(self, message: Message) -> None:
        """Keep a message until an operator releases it."""
        lane = self.parked
        if lane is None:
            lane = HeldLane(self, PARKED)
            self.parked = lane
        self._keep_in(lane, message, PARKED_UNTIL)

    def letter_sent(self, letter: Message | None) -> None:
        """Note the fate of a letter of a message that died here: None when it was taken, else it must be sent again."""
        if not self._deaths.at_least_once:
            return
        if letter is None:
            self._deaths.confirmed()
        else:
            self._keep_undelivered(letter.copy(), UNDELIVERED_RETRY_MS)

    def letter_unrouted(self, letter: Message) -> None:
        """Keep a letter of a message that died here, whose routing takes too many steps: try that again later."""
        self._keep_undelivered(letter.copy(), UNROUTED_RETRY_MS)

    def _keep_undelivered(self, message: Message, delay_ms: i64) -> None:
        lane = self.undelivered
        if lane is None:
            lane = HeldLane(self, UNDELIVERED)
            self.undelivered = lane
        message.persistent = message.persistent or self._stores_all
        number = self._keep_in(lane, message, self.log.now_ms + delay_ms)
        lane.note_takers(number, message)

    def _keep_in(self, lane: HeldLane, message: Message, until_ms: i64) -> int:
        stored: bool = message.persistent and self._queue.stores
        if stored and lane.index is None:
            lane.begin_storing(self._queue.ready.indexes.make(lane.code))
        number = lane.hold(message, until_ms, stored)
        if until_ms < PARKED_UNTIL:
            self._host.timers.at(until_ms, self._timer)
        return number

    def released(self, lane: i64, message: Message) -> None:
        """Take a held message whose time has come."""
        if lane != UNDELIVERED:
            self._queue.accept(message, RELEASED)
            return
        delay_ms: i64 = self.send_again(message)
        if delay_ms > 0:
            self._keep_undelivered(message.copy(), delay_ms)

    def send_again(self, letter: Message) -> i64:
        """Send a letter to the queues that have not taken it; return after how many ms again, 0: all have it now."""
        letter.attempts = 0  # it is new to the next queue
        delay_ms: i64 = self._host.send_letter(self._queue, letter)
        if delay_ms == 0 and self._deaths.at_least_once:
            self._deaths.confirmed()
        return delay_ms

    def may_dead_letter(self) -> bool:
        """Tell whether `dead_letter_parked` would."""
        return self._deaths.may_dead_letter()

    def dead_letter_parked(self, message: Message) -> None:
        """Dead-letter a parked message, as an operator asked."""
        if self._deaths.may_dead_letter():
            self._deaths.add_placeless(message, DELIVERY_LIMIT)
        else:
            self.park(message)  # there was an exchange when it was asked for

    # --- time -------------------------------------------------------------------------------------------------------

    def release_due(self, now_ms: i64) -> None:
        """Release the messages whose time has come."""
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                self._host.timers.worked += lane.release_due(now_ms)

    def changed(self) -> None:
        """Set the timer again: something may be due earlier."""
        at_ms: i64 = self.first_ms()
        if at_ms < NEVER and not self._queue.deleted:
            self._host.timers.at(at_ms, self._timer)

    def first_ms(self) -> i64:
        """Return when the next message is due."""
        at_ms: i64 = NEVER
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                first_ms: i64 = lane.first_ms()
                if first_ms < at_ms:
                    at_ms = first_ms
        return at_ms

    # --- the store --------------------------------------------------------------------------------------------------

    def restore(self, index: QueueIndex, *, clean: bool) -> None:
        """Take over a lane that recovery found."""
        lane = HeldLane(self, index.lane)
        if index.lane == DELAYED:
            self.held = lane
        elif index.lane == PARKED:
            self.parked = lane
        else:
            self.undelivered = lane
        lane.restore(index, clean=clean)
        self.changed()

    def lane_of(self, code: i64) -> HeldLane | None:
        """Return one of the lanes; None when it never held a message."""
        if code == DELAYED:
            return self.held
        return self.parked if code == PARKED else self.undelivered

    def holds_in_memory(self) -> bool:
        """Tell whether held messages take memory."""
        lanes = (self.held, self.parked, self.undelivered)
        return any(lane is not None and lane.in_memory_count() for lane in lanes)

    def page_out(self) -> None:
        """Give up memory, which is short."""
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                if lane.needs_index():
                    lane.begin_storing(self._queue.ready.indexes.make(lane.code))
                lane.page_out()

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        for lane in (self.held, self.parked, self.undelivered):
            if lane is not None:
                lane.close()
        # The lanes and this refer to each other: do not leave them to the cyclic collector.
        self.held = None
        self.parked = None
        self.undelivered = None
        self._timer = Timer()


class HeldLane(HeldMessages):
    """One of the held lanes of a queue."""

    def __init__(self, lanes: HeldLanes, code: i64) -> None:
        super().__init__(lanes.log)
        self.code: i64 = code
        self._lanes = lanes
        # The takers of letters that only some queues have taken, by number: a message that leaves memory forgets them.
        self._takers: dict[int, list[str]] = {}
        self._last_takers: list[str] = []  # mostly they are the same

    def note_takers(self, number: int, letter: Message) -> None:
        """Remember which queues have taken the letter with a number, until it leaves."""
        takers = letter.envelope.taken_by
        if takers:
            if takers != self._last_takers:
                self._last_takers = takers
            self._takers[number] = self._last_takers

    def known(self, number: i64, time_ms: i64) -> None:
        if self.code == UNDELIVERED and time_ms > self.log.now_ms + UNDELIVERED_RETRY_MS:
            time_ms = self.log.now_ms + UNDELIVERED_RETRY_MS  # the clock of an earlier process was ahead
        HeldMessages.known(self, number, time_ms)

    def decide(self, number: int, message: Message, purpose: i64) -> i64:
        if self.code != UNDELIVERED:
            return HeldMessages.decide(self, number, message, purpose)
        takers = self._takers.pop(number, None)
        if takers is not None:
            message.note_takers(takers)
        if purpose != DUE:
            return purpose
        letter = message.copy()
        letter.time_ms = 0
        delay_ms: i64 = self._lanes.send_again(letter)
        if delay_ms == 0:
            return DROPPED
        self.note_takers(number, letter)
        self.times.add(self.log.now_ms + delay_ms, number)
        return STAYS

    def _forget_all(self) -> None:
        HeldMessages._forget_all(self)
        self.log.reclamation.add_named(self._takers, 0)
        self._takers = {}

    def released(self, message: Message) -> None:
        self._lanes.released(self.code, message)

    def may_dead_letter(self) -> bool:
        return self._lanes.may_dead_letter()

    def dead_lettered(self, message: Message) -> None:
        self._lanes.dead_letter_parked(message)

    def changed(self) -> None:
        self._lanes.changed()
