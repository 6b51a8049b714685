"""Takes the dead letters of a vhost from the queue that a message has left to the queues that get them.

A letter that comes to a full queue pushes another message out, or is refused and dead-lettered in turn. So one publish
can lead to as many letters as there are ways through the queues. So letters wait in line, and are placed one by one.

1. Letters are placed in the order in which their messages died, and never while another letter is being placed. When a
   message dies and no letter waits, as many letters as fit into the steps of a turn (``queues.long_work``) are placed
   at once, and the others in later turns. Each later turn places at least one letter, in at most `TARGETS_AT_ONCE`
   queues.
2. A message keeps its place in the log until its letter is placed: both changes are in the same batch, so after a crash
   the message is in one place. A full queue may refuse a letter and dead-letter it at once: then the message keeps its
   place in the queue where it died first. If such letters continue in later turns, a crash may leave both the old place
   and some of the new ones.
3. One death leads to at most `LETTERS_MAX` letters before a client rejects or publishes one of them. Further ones are
   dropped, but the letters of the first death are all sent, whatever their number. The copies share the count while
   they are in memory; for messages read from disk the count begins again.
4. A message that died in `DEATHS_MAX` queues without a client's doing is dropped: x-death has no room for many more,
   and `dead_letter.is_cycle` could not see the circle.
5. A letter to very many queues goes to them over several turns, in one frame of the log, which is held open. The next
   letter waits. The queues are those of its route when its turn came; a queue that is deleted meanwhile gets nothing.
6. A vhost with too much in its line is crowded: its own publishers wait, and those of other vhosts do not. If more than
   `LINE_FULL` letters wait, letters caused by other letters are dropped, unless their queue dead-letters at least once.
   While the vhost is crowded, messages that should expire, or are too many for a queue, stay in their queue
   (`must_wait`), and are not delivered.
7. If placing a letter fails because of a bug of ours, the line rests for a moment (``queues.long_work``). Then the
   letter is placed in the queues that have not taken it yet. If it fails again it goes to the end of the line. Its
   message keeps its place in the log.
8. A letter whose routing takes too many steps goes to no queue. Its queue keeps it, whatever its strategy, and sends it
   again later (``queues.held_lanes``). Routing counts among the steps of the turn.
9. Letters wait for the disk and for space on it, like everything that the broker writes by itself
   (``msgstore.log.own_writes``). A letter that holds the batch open does not wait.

The contents of a letter are the business of ``queues.dead_letter``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Envelope, LetterCount, Message
from warren.msgstore.log.own_writes import HOLD, NOTHING, WRITES
from warren.queues.dead_letter import REJECTED, DeadLetter, dead_letter, is_cycle, sent_again
from warren.queues.held_lanes import UNDELIVERED_RETRY_MS
from warren.queues.held_messages import UNROUTED_RETRY_MS
from warren.queues.long_work import Job, Steps
from warren.queues.origin import LETTER
from warren.queues.outcome import REFUSED
from warren.queues.queue import Queue
from warren.queues.receiver import Receiver
from warren.queues.rules import QueueRules
from warren.queues.timers import Timer
from warren.vhosts.own_publishes import route_message

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

LETTERS_MAX: Final = 1024
DEATHS_MAX: Final = 256
# Steps of `long_work`: to make a letter, and to give it to a queue.
LETTER_STEPS: Final = 40
TARGET_STEPS: Final = 10
# Routing finds this many queues in a step, whether they get the letter or not.
ROUTED_PER_STEP: Final = 4
# A letter goes to more queues than these in parts.
TARGETS_AT_ONCE: Final = 1024
# With more bytes in line the publishers of the vhost wait, until half of these are left.
LINE_MAX_BYTES: Final = 1 << 25
# With more letters in line, letters caused by other letters are dropped: making publishers wait would not prevent them.
# The number of letters counts and not their bytes, since copies share their body.
LINE_FULL: Final = 1 << 16
# What a waiting letter adds to the sum of bytes besides its message: its x-death will have one more entry.
_OVERHEAD_BYTES: Final = 2048


class LettersInLine:
    """The letters that wait to be placed in all vhosts of a broker, and how many were dropped for (3), (4) and (6).

    ``eased``: publishers of some vhost need no longer wait; the code that resumes them resets it.
    """

    def __init__(self) -> None:
        self.waiting: i64 = 0
        self.waiting_bytes: i64 = 0  # the messages in memory, and `_OVERHEAD_BYTES` for each
        self.dropped: i64 = 0
        self.eased: bool = False
        self.full: i64 = LINE_FULL


class _Waiting:
    """A message that has left its queue; its letter is not made yet. ``place``: in that queue; -1: it has none."""

    def __init__(
        self, queue: Queue, message: Message, place: i64, reason: str, time_s: i64, cause: _Waiting | None
    ) -> None:
        self.queue = queue
        self.message = message
        self.place: i64 = place
        self.reason = reason
        self.time_s: i64 = time_s
        self.rules = queue.rules  # as they are now: they may change before its turn comes
        self.cause = cause  # the message that keeps its place in the log until this letter is placed
        self.unplaced: i64 = 1  # this letter, and those that it is the cause of
        self.begun: _UnderWay | None = None  # the letter, if placing it has failed
        self.has_failed: bool = False


class _UnderWay:
    """The letter whose turn it is: the queues of its route, and how far it has been placed."""

    def __init__(
        self, waiting: _Waiting, letter: DeadLetter, queues: list[Receiver], taken: bool, is_routed: bool
    ) -> None:
        self.waiting = waiting
        self.letter = letter
        self.queues = queues
        self.is_routed: bool = is_routed  # False: routing takes too many steps
        self.taken: bool = taken  # no queue has refused it, and at least one queue or exchange has it, or will
        # Only a letter of a first death can go to so many queues: later ones are limited (3).
        self.in_parts: bool = len(queues) > TARGETS_AT_ONCE and letter.message.envelope.letters is None
        self.takers: list[str] = []
        self.is_given: bool = False  # whether all queues have it
        self.next: int = 0
        self.wants_hold: bool = self.in_parts and letter.message.persistent
        self.holds: bool = False  # whether it holds the batch open


class DeadLettering(Job):
    """The line of one vhost."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.in_line = LettersInLine()  # replaced by that of the broker
        self._vhost = vhost
        self._line: deque[_Waiting] = deque()
        self._waiting_bytes: i64 = 0
        self._placing: bool = False
        self._begun: bool = False  # whether this job is under way, and will be continued
        self._cause: _Waiting | None = None  # the cause of letters that are posted now
        self._targets: i64 = 0  # how many queues the last letter went to
        self._under_way: _UnderWay | None = None
        self._is_routed: bool = True  # whether the last routing was completed
        self._routing_cost: i64 = 0  # the cost of the last routing
        self._beginning: bool = False  # whether the job runs for the first time, in the turn of a death
        self._timers: dict[Timer, None] = {}  # of queues that wait until the line is shorter (`must_wait`)

    def post(self, queue: Queue, message: Message, place: i64, reason: str) -> None:
        """Put a message that has left `place` of `queue` in line; it is settled when its letter is placed.

        `place` is -1 for a message that the queue has refused, or that was settled before.
        """
        if self._placing and len(self._line) > self.in_line.full and not queue.rules.dead_letters_at_least_once:
            self.in_line.dropped += 1
            if place >= 0:
                queue.ready.settle(message, place)
            return
        cause = self._cause if place < 0 else None
        time_s: i64 = self._vhost.log.now_ms // 1000
        try:
            self._line.append(_Waiting(queue, message, place, reason, time_s, cause))
        except BaseException:
            if place >= 0:
                queue.ready.put_back(message, place, is_unanswered=False)
                if queue.keeper is not None:
                    queue.keeper.dispatch.came_back(place)
                queue.wake()
            raise
        if cause is not None:
            cause.unplaced += 1
        self._count(message, 1)
        self._begin()

    def _count(self, message: Message, change: i64) -> None:
        """Count a message that comes into the line (`change` is 1), or leaves it (-1)."""
        size: i64 = change * (message.memory_bytes + _OVERHEAD_BYTES)
        self._waiting_bytes += size
        in_line = self.in_line
        in_line.waiting += change
        in_line.waiting_bytes += size
        vhost = self._vhost
        if vhost.is_crowded:
            if self._waiting_bytes <= LINE_MAX_BYTES // 2:
                vhost.is_crowded = False
                in_line.eased = True
                timers = list(self._timers)
                self._timers = {}
                for timer in timers:
                    vhost.timers.at(vhost.log.now_ms, timer)
        elif self._waiting_bytes > LINE_MAX_BYTES:
            vhost.is_crowded = True

    def must_wait(self, timer: Timer) -> bool:
        """Tell whether the line is too long for more messages to die. If so, `timer` becomes due when it is shorter."""
        if not self._vhost.is_crowded:
            return False
        self._timers[timer] = None
        return True

    def send(self, queue: Queue, message: Message, reason: str) -> Message | None:
        """Place the letter of a message that died in `queue` at once. Return it unless all its queues took it."""
        letter = self._letter(queue, message, reason, self._vhost.log.now_ms // 1000, queue.rules)
        return None if self._send_alone(letter, False) else letter.message

    def send_again(self, letter: Message) -> i64:
        """Send a letter to the queues that have not taken it; return the ms until the next try, 0: all have it now."""
        if self._send_alone(sent_again(letter), True):
            return 0
        return UNDELIVERED_RETRY_MS if self._is_routed else UNROUTED_RETRY_MS

    def need(self) -> i64:
        under_way = self._under_way
        if under_way is None or not under_way.wants_hold:
            return WRITES
        return NOTHING if under_way.holds else HOLD

    def run(self, steps: Steps) -> bool:
        line = self._line
        may_exceed = not self._beginning  # a later turn places at least one letter
        self._placing = True
        try:
            while steps.left > 0 and (line or self._under_way is not None):
                under_way = self._under_way
                if under_way is None:
                    under_way = self._take_next(line[0])
                    line.popleft()
                    steps.left -= LETTER_STEPS + self._routing_cost + i64(len(under_way.queues)) // ROUTED_PER_STEP
                    self._under_way = under_way
                if not self._place(under_way, steps, may_exceed):
                    break
                may_exceed = False
                self._under_way = None
                self._count(under_way.waiting.message, -1)
                if under_way.holds:
                    break  # the next letter has to wait for other conditions (`need`)
        finally:
            self._placing = False
            self._cause = None
        if line or self._under_way is not None:
            return False
        self._begun = False
        return True

    def failed(self) -> bool:
        under_way = self._under_way
        if under_way is not None:
            self._under_way = None
            if under_way.holds:
                under_way.holds = False
                self._vhost.log.release_batch()
            waiting = under_way.waiting
            waiting.begun = under_way
        elif self._line:
            waiting = self._line.popleft()  # making its letter has failed
        else:
            return True
        if waiting.has_failed:
            self._line.append(waiting)
        else:
            waiting.has_failed = True
            self._line.appendleft(waiting)
        return True

    def close(self) -> None:
        """Drop the line: the vhost is deleted, and all queues with it."""
        self._timers = {}
        for waiting in self._line:
            self._count(waiting.message, -1)
        self._line.clear()
        under_way = self._under_way
        self._under_way = None
        if under_way is not None:
            self._count(under_way.waiting.message, -1)
            if under_way.holds:
                self._vhost.log.release_batch()

    def _begin(self) -> None:
        if self._line and not self._placing and not self._begun:
            self._begun = True
            self._beginning = True
            try:
                self._vhost.work.begin(self)
            finally:
                self._beginning = False

    def _take_next(self, waiting: _Waiting) -> _UnderWay:
        """Make the letter of a message and route it."""
        self._routing_cost = 0
        if waiting.begun is not None:
            return waiting.begun
        letter = self._letter(waiting.queue, waiting.message, waiting.reason, waiting.time_s, waiting.rules)
        queues, taken = self._route(letter)
        return _UnderWay(waiting, letter, queues, taken, self._is_routed)

    def _place(self, under_way: _UnderWay, steps: Steps, may_exceed: bool) -> bool:
        """Place a letter, and settle the message if nothing else keeps its place; False when work is left.

        `may_exceed`: it may take more steps than are left.
        """
        waiting = under_way.waiting
        self._cause = waiting if waiting.place >= 0 else waiting.cause
        letter = under_way.letter
        queues = under_way.queues
        if under_way.is_given:
            return True  # a step after the giving has failed before: do not repeat these steps
        if under_way.in_parts:
            if not self._give_some(under_way, steps):
                return False
        else:
            most: i64 = len(queues) if len(queues) < TARGETS_AT_ONCE else TARGETS_AT_ONCE
            if TARGET_STEPS * most > steps.left and not may_exceed:
                return False
            under_way.taken = self._give(letter, queues, under_way.taken, False)
            steps.left -= TARGET_STEPS * self._targets
            steps.wrote(letter.message.memory_bytes)
        under_way.is_given = True
        keeper = waiting.queue.keeper
        if keeper is not None:  # without one the queue was deleted meanwhile, and could not send the letter again
            if under_way.is_routed:
                keeper.lanes.letter_sent(None if under_way.taken else letter.message)
            else:
                keeper.lanes.letter_unrouted(letter.message)
        cause = self._cause
        if cause is not None:
            cause.unplaced -= 1
            if cause.unplaced == 0:
                cause.queue.ready.settle(cause.message, cause.place)
        if under_way.holds:
            self._vhost.log.release_batch()
        return True

    def _give_some(self, under_way: _UnderWay, steps: Steps) -> bool:
        """Give a letter to very many queues, until no steps are left; True when all have it."""
        letter = under_way.letter
        message = letter.message
        if under_way.wants_hold and not under_way.holds:
            if not self._vhost.log.hold_batch():
                return False
            under_way.holds = True
        letters = message.envelope.letters
        if letters is None:
            letters = LetterCount()
            message.envelope.letters = letters
        queues = under_way.queues
        while under_way.next < len(queues):
            if steps.left <= 0:
                return False
            steps.left -= TARGET_STEPS
            queue = queues[under_way.next]
            if not queue.deleted and not is_cycle(letter, queue.name):
                if queue.accept(message, LETTER) == REFUSED:
                    under_way.taken = False
                else:
                    under_way.takers.append(queue.name)
                letters.count += 1
            under_way.next += 1
        if not under_way.taken and under_way.takers:
            message.note_takers(under_way.takers)
        return True

    def _letter(self, queue: Queue, message: Message, reason: str, time_s: i64, rules: QueueRules) -> DeadLetter:
        exchange = rules.dead_letter_exchange
        assert exchange is not None
        letter = dead_letter(message, queue.name, reason, int(time_s), exchange, rules.dead_letter_routing_key)
        old = message.envelope
        envelope = letter.message.envelope
        if old.blind_copies is not None and rules.dead_letter_routing_key is None:
            letter.keys += old.blind_copies
            letter.message.copy_blindly_to(old.blind_copies)
        if reason != REJECTED:
            envelope.letters = old.letters
        return letter

    def _send_alone(self, letter: DeadLetter, again: bool) -> bool:
        """Send a letter out of turn, and afterwards the letters that this causes."""
        self._placing = True
        try:
            taken = self._send(letter, again)
        finally:
            self._placing = False
        self._begin()
        return taken

    def _send(self, letter: DeadLetter, again: bool) -> bool:
        """Route a letter and give it to its queues; False when nothing takes it, or a queue refused it."""
        queues, taken = self._route(letter)
        self._vhost.log.own.given += len(queues)
        return self._give(letter, queues, taken, again)

    def _route(self, letter: DeadLetter) -> tuple[list[Receiver], bool]:
        """Return the queues of a letter, and whether it counts as taken: as well if it is held, or dropped for (4)."""
        vhost = self._vhost
        message = letter.message
        self._is_routed = True
        self._routing_cost = 0
        exchange = vhost.exchanges.get(message.envelope.exchange)
        if exchange is None:
            return [], False
        if len(letter.automatic) > DEATHS_MAX:
            self.in_line.dropped += 1
            return [], True
        routed = route_message(vhost, exchange, letter.keys, message)
        self._is_routed = routed.is_complete
        self._routing_cost = routed.cost
        return routed.queues, routed.is_held() or len(routed.queues) > 0

    def _give(self, letter: DeadLetter, queues: list[Receiver], taken: bool, again: bool) -> bool:
        """Give a letter to its queues. Return False if a queue refused it, else `taken`."""
        message = letter.message
        targets: list[Receiver] = []
        had_by = message.envelope.taken_by or []
        passed_over = set(had_by)
        for queue in queues:
            if not queue.deleted and not is_cycle(letter, queue.name) and queue.name not in passed_over:
                targets.append(queue)
        if not again:
            targets = self._within_count(message.envelope, targets)
        self._targets = len(targets)
        takers: list[str] = []
        given = 0
        try:
            for queue in targets:
                if queue.accept(message, LETTER) == REFUSED:
                    taken = False
                else:
                    takers.append(queue.name)
                given += 1
        except Exception:
            letters = message.envelope.letters
            if not again and letters is not None:
                letters.count -= len(targets) - given
            message.note_takers(had_by + takers)  # the other queues get it later
            raise
        if not taken and takers:
            message.note_takers(had_by + takers)
        return taken

    def _within_count(self, envelope: Envelope, targets: list[Receiver]) -> list[Receiver]:
        """Return those of `targets` that get the letter, see (3), and count them."""
        letters = envelope.letters
        if letters is None:
            letters = LetterCount()
            envelope.letters = letters
        elif len(targets) > LETTERS_MAX - letters.count:
            left: i64 = LETTERS_MAX - letters.count
            if left < 0:
                left = 0
            self.in_line.dropped += len(targets) - left
            targets = targets[:left]
        letters.count += len(targets)
        return targets
