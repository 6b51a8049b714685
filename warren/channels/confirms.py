"""Publisher confirms: which publishes of a session are confirmed and refused, and when.

Publishes have numbers, from 1 on; three of them say how far a session is:

    1 ... _confirmed_to     answered: the latest confirmation names it
          _accepted         the latest publish that was not refused: the next confirmation may name it
          published         the latest publish

1. Each publish is answered once: a refused one by the refusal of its number, any other by the first confirmation that
   covers it. No confirmation names a refused one.
2. A refusal is written at once, and so before any confirmation that covers its number.
3. Confirms are counted, not written: one cumulative confirmation at the end of the turn, or, for stored messages, one
   when a batch of the log is done.
4. A stored publish leaves a mark, "the publishes up to this one are confirmed when that batch is done". There is one
   mark for the open batch at most, and one for the batch under way. While a mark exists, no later publish is confirmed:
   confirms are in order.
5. A queue may have been declared while the journal was held: messages stored there wait for its declaration, too
   (`vhosts.metadata_journal`, 4). Changes by other clients do not delay confirms.
6. After its end, a session is told nothing more.

``queues.outcome`` decides the outcome of a publish; the protocol decides how the peer is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from warren.amqp.outbox import Outbox
from warren.msgstore.log.batch import BatchWaiter, tell_all
from warren.msgstore.log.message import Message
from warren.queues.outcome import REFUSED
from warren.vhosts.metadata_journal import MetadataJournal

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog


class PendingConfirms:
    """The confirms of all sessions: which are due at the end of the turn, and which wait for more than the log."""

    def __init__(self, log: MessageLog, journal: MetadataJournal) -> None:
        self.log = log
        self.journal = journal
        self.due: list[Confirms] = []
        self.undeclared: dict[Confirms, None] = {}  # they wait for a declaration that was held back
        self.is_held: bool = False  # on purpose, by a test of a client: do not confirm
        self.held: list[Confirms] = []  # they wait for the end of that

    def end_turn(self) -> None:
        """Confirm the publishes of this turn that are not being stored."""
        due = self.due
        if due:
            for confirms in due:
                confirms.end_turn()
            due.clear()

    def declared(self) -> None:
        """Confirm publishes that waited for metadata: more changes of it may be durable."""
        undeclared = self.undeclared
        if undeclared:
            self.undeclared = {}
            tell_all(list(undeclared), self.log.done_batch)

    def hold(self, *, held: bool) -> None:
        """Stop confirms, or confirm again, including those that were due meanwhile."""
        self.is_held = held
        if not held:
            waiting = self.held
            self.held = []
            tell_all(list(waiting), self.log.done_batch)


@mypyc_attr(acyclic=True)
class Mark:
    """The publishes up to `up_to` are confirmed when `batch` is done and the metadata change `ticket` is durable."""

    __slots__ = ("batch", "ticket", "up_to")

    def __init__(self, batch: i64, up_to: i64, ticket: i64) -> None:
        self.batch: i64 = batch
        self.up_to: i64 = up_to
        self.ticket: i64 = ticket


class Confirms(BatchWaiter):
    """The confirms of one session.

    `syncs`: a confirm of a stored message means that it is synced, not just written. `outbox`: of its peer, which is
    ended when a confirm cannot be written.
    """

    def __init__(self, pending: PendingConfirms, outbox: Outbox, *, syncs: bool) -> None:
        self.published: i64 = 0  # the number of publishes, which is the number of the latest
        self.confirmed: i64 = 0  # the number of confirmed publishes
        self._confirmed_to: i64 = 0
        self._accepted: i64 = 0
        self._refused_below: i64 = 0  # refused publishes that the next confirmation covers, whatever number it names
        self._refused: list[int] = []  # refused, after a publish that is not confirmed yet
        self._marks: list[Mark] = []
        self._is_due: bool = False
        self._is_closed: bool = False
        self._pending = pending
        self._outbox = outbox
        self._syncs = syncs

    # --- publishes ---------------------------------------------------------------------------------------------------

    def count_publish(self, message: Message, outcome: i64, ticket: i64) -> None:
        """Number a publish: it is refused now, or confirmed at the end of the turn or when it is on disk.

        `ticket`: of the latest declaration of the queues that have it.
        """
        number: i64 = self.published + 1
        self.published = number
        if outcome == REFUSED:
            self._refuse(number)
            return
        self._accepted = number
        if message.row >= 0 or message.awaits_batch:
            self._mark(number, ticket)
        elif not self._is_due:
            self._is_due = True
            self._pending.due.append(self)

    def await_batch(self) -> None:
        """Make the latest publish wait for the open batch: something that belongs to it is stored there."""
        if self._accepted == self.published:
            self._mark(self.published, 0)

    def _mark(self, number: i64, ticket: i64) -> None:
        """Mark the publishes up to `number` as waiting for the open batch."""
        pending = self._pending
        batch: i64 = pending.log.batch.number
        marks = self._marks
        if marks:
            mark = marks[-1]
            if mark.batch == batch:
                mark.up_to = number
                if ticket > mark.ticket:
                    mark.ticket = ticket
                return
        marks.append(Mark(batch, number, ticket))
        pending.log.wait(self, self._syncs)

    def _refuse(self, number: i64) -> None:
        if self._is_closed:
            return
        if self._confirmed_to == self._accepted:
            self._refused_below += 1
        else:
            self._refused.append(int(number))
        self.write_refused(number)

    # --- confirmations -----------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Confirm everything published, unless some of it is being stored."""
        self._is_due = False
        if not self._marks:
            self._confirm_up_to(self._accepted)

    def batch_done(self, batch: i64) -> None:
        """Confirm the publishes up to the mark of `batch`: they are on disk."""
        pending = self._pending
        marks = self._marks
        confirmable: i64 = self._confirmed_to
        while marks:
            mark = marks[0]
            if mark.batch > batch:
                break
            if mark.ticket > i64(pending.journal.committed_ticket):
                pending.undeclared[self] = None
                break
            confirmable = mark.up_to
            del marks[0]
        self._confirm_up_to(confirmable if marks else self._accepted)

    def unanswered_count(self) -> int:
        """Return the number of publishes that have been neither confirmed nor refused yet."""
        refused: i64 = self._refused_below + len(self._refused)
        return int(self.published - self._confirmed_to - refused)

    def close(self) -> None:
        """Send no more confirms: the session is being closed."""
        self._is_closed = True

    def _confirm_up_to(self, number: i64) -> None:
        count: i64 = number - self._confirmed_to
        if count == 0 or self._is_closed:
            return
        if self._pending.is_held:
            self._pending.held.append(self)
            return
        self._confirmed_to = number
        self.confirmed += count
        if self._refused_below or self._refused:
            self.confirmed -= self._take_refused(number)
        try:
            self.write_confirmed(number, count)
        except Exception as error:
            self._outbox.failed(error)  # the commit is done, and others wait for their confirms

    def _take_refused(self, number: i64) -> i64:
        """Return the number of refused publishes up to `number`, and not confirmed before."""
        refused = self._refused
        below: i64 = 0
        while below < len(refused) and refused[below] < number:
            below += 1
        count: i64 = self._refused_below + below
        self._refused_below = 0
        del refused[:below]
        if number == self._accepted:
            self._refused_below = len(refused)
            refused.clear()
        return count

    # --- overridden by protocols ------------------------------------------------------------------------------------

    def write_confirmed(self, up_to: i64, count: i64) -> None:
        """Confirm the publishes up to number `up_to`, `count` numbers more than before."""
        raise AssertionError("overridden")

    def write_refused(self, number: i64) -> None:
        """Notify the peer that publish `number` was refused."""
        raise AssertionError("overridden")
