"""Takes the dead letters of a vhost from the queue that a message has left to those that get it.

A letter that comes to a full queue pushes another one out, or is refused and goes on from there: one publish can lead
to as many letters as there are ways through the queues. So they wait in line, and are placed one after the other.

1. Letters are placed in the order in which their messages died, never within another one's placing. As many as a turn
   has steps for (``queues.long_work``) are placed where the first one died, the others in later turns.
2. A message keeps its place in the log until its letter is placed: both are in the same batch, whenever that is, and
   after a crash it is in one place. What a queue refused, and dead-letters without having had it, keeps the place that
   its letter came from. Only if such letters go on in later turns may a crash leave both the old place and some of the
   new ones.
3. One death leads to at most `LETTERS_MAX` letters before a client rejects or publishes one of them; those of the first
   death are all sent, whatever their number. Further ones are dropped. The copies share the count while they are in
   memory; what was read from disk begins anew.
4. What died in `DEATHS_MAX` queues without a client's doing is dropped: x-death has no room for many more, and
   `dead_letter.is_cycle` could not see the circle.
5. A vhost in whose line there is too much is crowded: its own publishers wait, those of others do not. From
   `LINE_FULL` letters on what letters lead to is dropped, unless its queue dead-letters at least once.

What a letter looks like is ``queues.dead_letter``'s.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Envelope, LetterCount, Message
from warren.queues.dead_letter import REJECTED, DeadLetter, dead_letter, is_cycle, sent_again
from warren.queues.long_work import Job, Steps
from warren.queues.origin import LETTER
from warren.queues.outcome import REFUSED
from warren.queues.queue import Queue
from warren.queues.rules import QueueRules

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

LETTERS_MAX: Final = 1024
DEATHS_MAX: Final = 256
# Of `long_work`: what it takes to make a letter, and to give it to a queue.
LETTER_STEPS: Final = 40
TARGET_STEPS: Final = 10
# From so many bytes in line on the publishers of the vhost wait, until half of them are left.
LINE_MAX_BYTES: Final = 1 << 25
# From so many letters on one that another one led to is dropped: nobody who could wait has caused it. They are counted
# and not weighed, for copies share their body.
LINE_FULL: Final = 1 << 16
# Of a waiting letter beside the message, for the sum of all that wait: its x-death will have one entry more.
_OVERHEAD_BYTES: Final = 2048


class LettersInLine:
    """What waits to be placed in all vhosts of a broker, and how many letters were dropped for (3), (4) and (5).

    ``eased``: publishers of some vhost need not wait any longer; whoever resumes them sets it back.
    """

    def __init__(self) -> None:
        self.waiting: i64 = 0
        self.waiting_bytes: i64 = 0  # what the messages take in memory, and what they cost beside
        self.dropped: i64 = 0
        self.eased: bool = False
        self.full: i64 = LINE_FULL


class _Waiting:
    """A message that has left its queue; its letter is not made yet. ``place`` is -1 when it never had one there."""

    def __init__(
        self, queue: Queue, message: Message, place: i64, reason: str, time_s: i64, cause: _Waiting | None
    ) -> None:
        self.queue = queue
        self.message = message
        self.place: i64 = place
        self.reason = reason
        self.time_s: i64 = time_s
        self.rules = queue.rules  # others may hold when its turn comes
        self.cause = cause  # whose place in the log it keeps
        self.unplaced: i64 = 1  # itself, and those that keep its place


class DeadLettering(Job):
    """The line of one vhost."""

    def __init__(self, vhost: VirtualHost) -> None:
        self.in_line = LettersInLine()  # the broker's, once it knows the vhost
        self._vhost = vhost
        self._line: deque[_Waiting] = deque()
        self._waiting_bytes: i64 = 0
        self._placing: bool = False
        self._begun: bool = False  # the broker goes on with it
        self._cause: _Waiting | None = None  # of what is refused now
        self._targets: i64 = 0  # of the letter that was sent last

    def post(self, queue: Queue, message: Message, place: i64, reason: str) -> None:
        """Place the letter of a message that has left `place` of `queue`, when its turn comes; settle it then.

        `place` is -1 for a message that the queue has refused, or that was settled before.
        """
        if self._placing and len(self._line) > self.in_line.full and not queue.rules.dead_letters_at_least_once:
            self.in_line.dropped += 1
            if place >= 0:
                queue.ready.settle(message, place)
            return
        cause: _Waiting | None = None
        if place < 0:
            cause = self._cause
            if cause is not None:
                cause.unplaced += 1
        time_s: i64 = self._vhost.log.now_ms // 1000
        self._line.append(_Waiting(queue, message, place, reason, time_s, cause))
        self._count(message, 1)
        self._begin()

    def _count(self, message: Message, change: i64) -> None:
        """Count a message that comes into the line, or leaves it: `change` is 1 or -1."""
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
        elif self._waiting_bytes > LINE_MAX_BYTES:
            vhost.is_crowded = True

    def send(self, queue: Queue, message: Message, reason: str) -> Message | None:
        """Place the letter of a message that died in `queue` at once; return it unless everybody took it."""
        letter = self._letter(queue, message, reason, self._vhost.log.now_ms // 1000, queue.rules)
        return None if self._send_alone(letter, False) else letter.message

    def send_again(self, letter: Message) -> bool:
        """Send a letter to those that have not taken it; tell whether there is nobody left."""
        return self._send_alone(sent_again(letter), True)

    def go_on(self, steps: Steps) -> bool:
        line = self._line
        self._placing = True
        try:
            while line and steps.left > 0:
                waiting = line.popleft()
                self._count(waiting.message, -1)
                self._place(waiting)
                steps.left -= LETTER_STEPS + TARGET_STEPS * self._targets
        finally:
            self._placing = False
            self._cause = None
        if line:
            return False
        self._begun = False
        return True

    def close(self) -> None:
        """The vhost is deleted, and all queues with it."""
        for waiting in self._line:
            self._count(waiting.message, -1)
        self._line.clear()

    def _begin(self) -> None:
        if self._line and not self._placing and not self._begun:
            self._begun = True
            self._vhost.work.begin(self)

    def _place(self, waiting: _Waiting) -> None:
        """Place a letter, and settle the message if nothing else keeps its place."""
        cause = waiting if waiting.place >= 0 else waiting.cause
        self._cause = cause
        queue = waiting.queue
        letter = self._letter(queue, waiting.message, waiting.reason, waiting.time_s, waiting.rules)
        taken = self._send(letter, False)
        keeper = queue.keeper
        if keeper is not None:  # else it was deleted meanwhile, and nobody would send the letter again
            keeper.lanes.letter_sent(None if taken else letter.message)
        if cause is not None:
            cause.unplaced -= 1
            if cause.unplaced == 0:
                cause.queue.ready.settle(cause.message, cause.place)

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
        """Send a letter out of turn, and go on with those that it leads to."""
        self._placing = True
        try:
            taken = self._send(letter, again)
        finally:
            self._placing = False
        self._begin()
        return taken

    def _send(self, letter: DeadLetter, again: bool) -> bool:
        """Give a letter to whoever is to have it; False when nobody is, or somebody refused it."""
        self._targets = 0
        vhost = self._vhost
        message = letter.message
        exchange = vhost.exchanges.get(message.envelope.exchange)
        if exchange is None:
            return False
        if len(letter.automatic) > DEATHS_MAX:
            self.in_line.dropped += 1
            return True
        queues, held = vhost.route_message(exchange, letter.keys, message)
        taken = held or len(queues) > 0
        targets: list[Queue] = []
        had_by = message.envelope.taken_by or []
        passed_over = set(had_by)
        for queue in queues:
            if not is_cycle(letter, queue.name) and queue.name not in passed_over:
                targets.append(queue)
        if not again:
            targets = self._within_count(message.envelope, targets)
        self._targets = len(targets)
        takers: list[str] = []
        for queue in targets:
            if queue.accept(message, LETTER) == REFUSED:
                taken = False
            else:
                takers.append(queue.name)
        if not taken and takers:
            _note_takers(message, had_by + takers)
        return taken

    def _within_count(self, envelope: Envelope, targets: list[Queue]) -> list[Queue]:
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


def _note_takers(letter: Message, names: list[str]) -> None:
    """Have a letter remember who has it: those that refused it get it again, the others not."""
    old = letter.envelope
    envelope = Envelope(old.exchange, old.routing_key)  # that of a message from disk is others' too
    envelope.blind_copies = old.blind_copies
    envelope.letters = old.letters
    envelope.taken_by = names
    letter.envelope = envelope
