"""A transaction: publishes and acknowledgements of a channel since tx.select or the last commit, and its end.

    tx.select      the channel has a `Transaction` from now on; one with confirms has none: 406
    basic.publish  routed at once, and kept with the queues that it goes to
    basic.ack      the deliveries leave the ledger and are kept, unacked; so with basic.nack and basic.reject
    tx.commit      `Commit`: publishes, acknowledgements and rejections in one commit of the log, then requeues;
                   the answer waits for the disk, and for the declarations of the queues
    tx.rollback    `Rollback`: publishes are forgotten, deliveries are back in the ledger, unacked

1. Nothing of it is visible to anybody before tx.commit.
2. All of it but requeues is in one commit of the log, and so on disk or not, as a whole. Others wait for that commit:
   so it has a limit (7), and large contents are written ahead of it (``msgstore.log.bodies_ahead``). Requeues follow in
   portions (``msgstore.log.own_writes``): a crash requeues deliveries anyway.
3. tx.commit takes the current content: the channel has a new transaction when its commit begins, not when it is done.
4. A queue that was deleted since the publish takes nothing. If one queue refuses a publish, the others still get it:
   the channel is closed with 406 for a partial completion, and the refused message is lost.
5. A channel that ends gives back the deliveries that it has acknowledged, the oldest first.
6. Its publishes count as memory of queues until they are committed or forgotten. They cannot leave memory, so messages
   that wait in queues do.
7. The publishes of one transaction have at most ``limits.transaction_max_bytes``, and one message more. A publish
   beyond that is refused when it comes, with 406, and the transaction ends with its channel: nothing of it is done.
   Acknowledgements have the limit of unacked deliveries. Transactions of the broker's own connections have no limit:
   their maker cuts them into pieces (``server.staging.staged_batch``).
8. Open transactions of all clients together may hold a quarter of the memory at which the alarm begins, in shares of
   users: otherwise they could set the alarm, which ends with a commit, while nobody is read. A publish beyond that is
   refused likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.methods import TX_COMMIT
from warren.channels.commit_check import CommitCheck
from warren.channels.jobs import KEPT_STEPS, DeliveryRun, Returning
from warren.channels.wide_publish import STORED_STEPS, Spread
from warren.exchanges.effects import Effects
from warren.exchanges.exchange import Exchange
from warren.msgstore.log.bodies_ahead import BodiesAhead
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.own_writes import AHEAD, HOLD, NOTHING
from warren.msgstore.log.records import head_bytes
from warren.queues.base_queue import BaseQueue
from warren.queues.delivery import DeliveryLedger
from warren.queues.long_work import ALL_STEPS, Job, Steps
from warren.queues.origin import CHANNEL, PROMISED
from warren.queues.outcome import REFUSED
from warren.queues.receiver import Receiver
from warren.queues.unacked import Delivery
from warren.vhosts.user_shares import UserShares

if TYPE_CHECKING:
    from warren.channels.session import Session

# The part of a transaction of the broker's own that is committed at once.
ROWS_AT_ONCE: Final = 16384
# The size of a publish besides its message, and for each of its queues: its work is counted as bytes that take as long.
PUBLISH_BYTES: Final = 512
PLACE_BYTES: Final = 512
NO_LIMIT: Final = 1 << 60
# Extra steps of the first acknowledgement in a queue: the frame of the log lists the removed messages of each queue.
QUEUE_STEPS: Final = 2


class BufferedPublish:
    """A publish that waits for tx.commit: with the queues, and the exchanges that act on it."""

    def __init__(
        self,
        message: Message,
        exchange: Exchange,
        queues: list[Receiver],
        effects: Effects | None,
        mandatory: bool,
    ) -> None:
        self.message = message
        self.exchange = exchange
        self.queues = queues
        self.effects = effects
        self.mandatory = mandatory

    def has_takers(self) -> bool:
        """Tell whether any of the queues that it goes to is left."""
        return any(not queue.deleted for queue in self.queues)

    def steps(self) -> i64:
        """Return the number of steps to publish it."""
        each: i64 = 1 + STORED_STEPS if self.message.persistent else 1
        return 1 + each * i64(len(self.queues))

    def size(self) -> i64:
        """Return its part of the limit of a transaction (7)."""
        return PUBLISH_BYTES + PLACE_BYTES * i64(len(self.queues)) + self.message.memory_bytes

    def left(self) -> list[Receiver]:
        """Return the queues that it goes to; a queue that was deleted since the publish takes nothing."""
        return [queue for queue in self.queues if not queue.deleted]


class Transaction:
    """The publishes and acknowledgements of a transactional channel since tx.select or the last commit.

    `max_bytes`: the limit of its publishes (7). `shares`, `user`: in which share they count (8); None: in no share.
    """

    def __init__(
        self, log: MessageLog, max_bytes: i64 = NO_LIMIT, shares: UserShares | None = None, user: str = ""
    ) -> None:
        self.publishes: list[BufferedPublish] = []
        self._log = log
        self._shares = shares
        self._user = user
        self._max_bytes: i64 = max_bytes
        self._bytes: i64 = 0  # of those that are not committed
        self._memory_bytes: i64 = 0  # of those that are not committed
        self.acked: list[Delivery] = []
        self.rejected: list[tuple[Delivery, bool, bool]] = []  # with: requeue, failed

    def check_room(self, publish: BufferedPublish) -> None:
        """Make sure that there is room for a publish.

        Raises:
            ChannelException: 406, the transaction, or all that are open, would be too large.
        """
        more: i64 = publish.size()
        shares = self._shares
        if shares is not None and not shares.allows(self._user, more):
            text = (
                f"open transactions of user '{self._user}' hold {shares.used(self._user)} bytes, those of all users "
                f"{shares.total} (maximum {shares.most}): commit more often, or after other commits"
            )
            raise ChannelException(PRECONDITION_FAILED, text)
        size: i64 = self._bytes + more
        if size > self._max_bytes and self.publishes:
            text = (
                f"transaction of {int(size)} bytes with {len(self.publishes) + 1} messages is too large (maximum "
                f"{int(self._max_bytes)}): commit more often, or raise limits.transaction_max_bytes"
            )
            raise ChannelException(PRECONDITION_FAILED, text)

    def add(self, publish: BufferedPublish) -> None:
        """Keep a publish until the commit."""
        self.publishes.append(publish)
        self._count(publish.size())
        self._memory_bytes += publish.message.memory_bytes
        self._log.resident_bytes += publish.message.memory_bytes

    def committed(self, publish: BufferedPublish) -> None:
        """Count a publish no longer: it goes to its queues."""
        self._count(-publish.size())
        self._memory_bytes -= publish.message.memory_bytes
        self._log.resident_bytes -= publish.message.memory_bytes

    def _count(self, more: i64) -> None:
        self._bytes += more
        if self._shares is not None:
            self._shares.add(self._user, int(more))

    def row_count(self) -> int:
        """Return the number of messages that all queues together would get, about."""
        return sum([len(publish.queues) for publish in self.publishes])

    def maybe_bodies(self) -> BodiesAhead | None:
        """Return a plan for writing the contents of its publishes ahead of its commit; None: that is not worth it."""
        sizes = self._log.ahead_file.sizes
        if self._bytes < sizes.batch_bytes_min or self.row_count() > sizes.rows_max:
            return None
        plan = BodiesAhead(sizes, self._log.frame_bytes)
        for publish in self.publishes:
            message = publish.message
            places = len([queue for queue in publish.queues if queue.stores]) if message.persistent else 0
            if places:
                plan.add(message, head_bytes(message, places))
        return plan if plan.is_worth_it() else None

    def give_up(self) -> None:
        """Forget the publishes, and take nothing more: `maybe_take_answered` takes out the answered deliveries."""
        self.acked.reverse()  # it is taken from the end, the oldest first
        self.rejected.reverse()
        self.forget_publishes()

    def forget_publishes(self) -> None:
        """Queue the publishes for release in later turns: releasing all immediately would delay all connections."""
        self._log.reclamation.add(self.publishes, self._memory_bytes)
        self.publishes = []
        self._memory_bytes = 0
        self._count(-self._bytes)

    def maybe_take_answered(self) -> Delivery | None:
        """Take out one of the deliveries of a transaction that was given up; None: all are out."""
        if self.acked:
            return self.acked.pop()
        if self.rejected:
            return self.rejected.pop()[0]
        return None


class BufferRun(DeliveryRun):
    """Deliveries up to a tag are set aside in a transaction, as acknowledged or as `rejected`."""

    def __init__(
        self,
        ledger: DeliveryLedger,
        up_to: i64,
        transaction: Transaction,
        *,
        rejected: bool,
        requeue: bool,
        failed: bool,
    ) -> None:
        super().__init__(ledger, up_to)
        self._transaction = transaction
        self._rejected = rejected
        self._requeue = requeue
        self._failed = failed

    def run(self, steps: Steps) -> bool:
        while steps.left > 0:
            delivery = self.maybe_take()
            if delivery is None:
                return True
            steps.left -= 1
            if self._rejected:
                self._transaction.rejected.append((delivery, self._requeue, self._failed))
            else:
                self._transaction.acked.append(delivery)
        return False


class Commit(Job):
    """tx.commit: publishes, then acknowledgements and rejections, then requeues.

    The batch of the log is held open until all but the requeues is done (2); a commit that is done at once need not
    hold it. Two long commits do not hold the same batch: the second one waits. So does a message that may repeat one
    that is under way (`SeenKeys` (8)).

    If `check` does not pass, the commit is rolled back and answered with tx.rollback-ok: publishes are forgotten, and
    the channel has to put back the answered deliveries. If it passes, its queue is purged before all else. `note` is
    called when all of it is done and nothing was refused: records that it stores are in the same commit. `ahead`: the
    contents that are written before it begins.
    """

    def __init__(
        self,
        channel: Session,
        transaction: Transaction,
        check: CommitCheck | None = None,
        note: Callable[[], None] | None = None,
        ahead: BodiesAhead | None = None,
    ) -> None:
        self._channel = channel
        self._publisher = channel.publisher
        self._check = check
        self._note = note
        self._ahead = ahead  # until it is with the open batch
        self._transaction = transaction
        self._next_publish: int = 0
        self._next_rejected: int = 0
        self._next_requeued: int = 0
        self._settled: dict[BaseQueue, None] = {}  # queues of the acknowledged deliveries
        self._woken: list[BaseQueue] | None = None  # the same, once all is settled
        self._next_woken: int = 0
        self._returning = Returning(channel.ledger)
        self._partial: bool = False
        self._repeats: bool = False  # some was published before, and may be on its way to the disk
        self._holds: bool = False
        self._waits: bool = False  # for a batch that it can hold
        self._is_checked: bool = False
        self._least_steps: i64 = 0  # that it takes, as far as they were counted
        self._is_stored: bool = False  # all but the requeues is in the log, or on its way to it
        self._batch: int = 0  # with which it is, 0: with one that is closed
        self._spread: Spread | None = None  # of the next publish, if that has begun
        self._ticket: i64 = 0  # of the latest declaration of a queue with the messages
        transaction.acked.reverse()  # it is taken from the end, the oldest first

    def need(self) -> i64:
        if self._ahead is not None and not self._ahead.is_done:
            return AHEAD
        if self._is_stored:
            return self._returning.need
        return HOLD if self._waits and not self._holds else NOTHING

    def run(self, steps: Steps) -> bool:
        if not self._is_stored:
            ahead = self._ahead
            if ahead is not None and not ahead.is_done:
                self._channel.shared.log.ahead_file.begin(ahead)
                return False
            if not self._store(steps):
                return False
            if not self._is_stored:
                return True  # it was rolled back
        if not (self._requeue(steps) and self._returning.end(steps) and self._wake(steps)):
            return False
        self._answer()
        return True

    def _store(self, steps: Steps) -> bool:
        """Do all but the requeues; True when that is done, or the check has not passed."""
        log = self._channel.shared.log
        if not self._holds:
            ahead = self._ahead
            if ahead is not None and not log.ahead_file.has_room(ahead):
                steps.left -= 1
                return False
            if self._is_longer_than(steps.left) or self._has_to_wait():
                if not log.hold_batch():
                    self._waits = True
                    return False
                self._holds = True
                if self._check is not None:
                    self._check.is_promised = True
            else:
                steps = Steps(ALL_STEPS)
        check = self._check
        if check is not None and not self._is_checked:
            if not check.run(self._transaction.publishes, steps):
                return False
            self._is_checked = True
            if not check.has_passed():
                if self._ahead is not None:
                    log.ahead_file.drop(self._ahead)
                self._transaction.acked.reverse()  # as it was
                self._end()
                if self._channel.is_open():
                    self._channel.reply(m.TxRollbackOk())
                else:
                    self._give_back()
                return True
            if check.purged is not None and not check.purged.deleted:
                check.purged.purge()
        if self._ahead is not None:
            log.ahead_file.attach(self._ahead)
            self._ahead = None
        if not (self._publish(steps) and self._settle(steps) and self._drop(steps)):
            return False
        if self._note is not None and not self._partial:
            self._note()
        self._end()
        self._is_stored = True
        if not self._partial:
            self._batch = log.close_soon(self._channel.sync_confirms)
            if self._repeats and not self._batch:
                log.force()
                self._batch = int(log.batch.number)
        return True

    def _end(self) -> None:
        self._transaction.forget_publishes()
        if self._check is not None:
            self._check.end()
        if self._holds:
            self._channel.shared.log.release_batch()
            self._holds = False

    def failed(self) -> bool:
        if self._is_stored:
            return True  # the requeues are left
        if self._ahead is not None:
            self._channel.shared.log.ahead_file.drop(self._ahead)
        if self._spread is not None:
            self._spread.failed()
        self._end()
        rejected = self._transaction.rejected
        dropped = self._next_rejected
        rejected[:dropped] = [each for each in rejected[:dropped] if each[1]]  # to be requeued: those are left
        self._give_back()
        return False

    def _give_back(self) -> None:
        """Return the deliveries with all others of the channel, which ends."""
        self._transaction.give_up()
        self._channel.transaction = self._transaction

    def _is_longer_than(self, steps: i64) -> bool:
        if self._least_steps > steps:
            return True  # it has waited, and is not counted again each time
        transaction = self._transaction
        needed: i64 = len(transaction.acked) + KEPT_STEPS * len(transaction.rejected)
        for publish in transaction.publishes:
            needed += publish.steps()
            if needed > steps:
                break
        self._least_steps = needed
        return needed > steps

    def _has_to_wait(self) -> bool:
        """Tell whether some of it may repeat a message that is under way. It is short."""
        if not self._channel.vhost.seen_keys:
            return False
        return any(self._publisher.is_claimed(publish.message) for publish in self._transaction.publishes)

    def _publish(self, steps: Steps) -> bool:
        publishes = self._transaction.publishes
        publisher = self._publisher
        check = self._check
        origin: i64 = PROMISED if check is not None and check.is_promised else CHANNEL
        while self._next_publish < len(publishes):
            if steps.left <= 0:
                return False
            publish = publishes[self._next_publish]
            spread = self._spread
            if spread is None:
                if publisher.is_claimed(publish.message):
                    return False
                spread = publisher.maybe_spread(publish, origin)
            if spread is None:
                steps.left -= publish.steps()
                outcome: i64 = publisher.publish_buffered(publish, origin)
            else:
                self._spread = spread
                if not spread.run(steps):
                    return False
                self._spread = None
                outcome = publisher.spread_done(spread)
            self._next_publish += 1
            self._transaction.committed(publish)
            if publish.message.persistent:
                ticket: i64 = publisher.ticket_of(publish.queues, publish.effects)
                if ticket > self._ticket:
                    self._ticket = ticket
            self._partial = self._partial or outcome == REFUSED
            self._repeats = self._repeats or publish.message.awaits_batch
        return True

    def _settle(self, steps: Steps) -> bool:
        acked = self._transaction.acked
        ledger = self._channel.ledger
        while acked:
            if steps.left <= 0:
                return False
            steps.left -= 1
            delivery = acked.pop()
            ledger.acked += 1
            ledger.release(delivery)
            queue = delivery.queue
            queue.settle(delivery)
            if queue not in self._settled:
                self._settled[queue] = None
                steps.left -= QUEUE_STEPS
        return True

    def _drop(self, steps: Steps) -> bool:
        rejected = self._transaction.rejected
        while self._next_rejected < len(rejected):
            if steps.left <= 0:
                return False
            delivery, requeue, failed = rejected[self._next_rejected]
            self._next_rejected += 1
            if requeue:
                steps.left -= 1
            else:
                self._returning.put_back(delivery, steps, requeue=False, failed=failed)
        return True

    def _requeue(self, steps: Steps) -> bool:
        rejected = self._transaction.rejected
        while self._next_requeued < len(rejected):
            if steps.left <= 0:
                return False
            delivery, requeue, failed = rejected[self._next_requeued]
            self._next_requeued += 1
            if requeue:
                self._returning.put_back(delivery, steps, requeue=True, failed=failed)
            else:
                steps.left -= 1
        return True

    def _wake(self, steps: Steps) -> bool:
        woken = self._woken
        if woken is None:
            woken = list(self._settled)
            self._woken = woken
        while self._next_woken < len(woken):
            if steps.left <= 0:
                return False
            steps.left -= 1
            woken[self._next_woken].wake()
            self._next_woken += 1
        return True

    def _answer(self) -> None:
        """Send tx.commit-ok as soon as it is on disk, or close the channel when something was refused."""
        channel = self._channel
        if self._partial:
            error = ChannelException(PRECONDITION_FAILED, "partial tx completion")
            channel.refuse(error, TX_COMMIT)
            return
        if channel.is_open():
            channel.reply(m.TxCommitOk(), int(self._ticket), self._batch)


class Rollback(Job):
    """tx.rollback: deliveries acknowledged or rejected in the transaction are unacknowledged again."""

    def __init__(self, ledger: DeliveryLedger, transaction: Transaction) -> None:
        self._ledger = ledger
        self._transaction = transaction
        transaction.give_up()

    def run(self, steps: Steps) -> bool:
        while steps.left > 0:
            delivery = self._transaction.maybe_take_answered()
            if delivery is None:
                return True
            steps.left -= 1
            self._ledger.restore(delivery)
            # Its time may have run out while its answer waited: it would not be looked at again.
            delivery.queue.limit_again(self._ledger, delivery, touched=False)
            self.restored(delivery)
        return False

    def failed(self) -> bool:
        return True

    def restored(self, delivery: Delivery) -> None:
        """Note that a delivery waits for its answer again."""


# --- the methods of class tx ----------------------------------------------------------------------------------------


def tx_select(channel: Session) -> None:
    """Handle tx.select.

    Raises:
        ChannelException: 406, the channel has confirms.
    """
    if channel.confirms is not None:
        raise ChannelException(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = new_transaction(channel)
    channel.reply(m.TxSelectOk())


def tx_commit(channel: Session) -> None:
    """Handle tx.commit.

    Raises:
        ChannelException: 406, the channel has no transaction.
    """
    transaction = _taken_from(channel)
    channel.peer.begin(Commit(channel, transaction, ahead=transaction.maybe_bodies()))


def tx_rollback(channel: Session) -> None:
    """Handle tx.rollback.

    Raises:
        ChannelException: 406, the channel has no transaction.
    """
    channel.peer.begin(Rollback(channel.ledger, _taken_from(channel)))
    channel.reply_when_done(m.TxRollbackOk())


def commit_checked(channel: Session, check: CommitCheck, note: Callable[[], None]) -> None:
    """Do as tx.commit does if `check` lets it pass, for a caller inside the broker, and then `note`.

    Records that `note` stores are in the same frame of the log. If the check fails, the transaction is rolled back and
    answered so. All of it is done at once, unless it is very much, or may repeat a message that is under way.

    Raises:
        ChannelException: 406, the channel has no transaction.
    """
    transaction = _taken_from(channel)
    commit = Commit(channel, transaction, check, note)
    if transaction.row_count() > ROWS_AT_ONCE or not commit.run(Steps(ALL_STEPS)):
        channel.peer.begin(commit)


def _taken_from(channel: Session) -> Transaction:
    """Take the transaction of `channel`, which has a new one from now on (3)."""
    transaction = channel.transaction
    if transaction is None:
        raise ChannelException(PRECONDITION_FAILED, "channel is not transactional")
    channel.transaction = new_transaction(channel)
    return transaction


def new_transaction(channel: Session) -> Transaction:
    """Return an empty transaction of `channel`, with its limits (7, 8)."""
    peer = channel.peer
    if peer.origin.is_direct:
        return Transaction(channel.shared.log)
    max_bytes: i64 = peer.broker.limits.transaction_max_bytes
    return Transaction(channel.shared.log, max_bytes, channel.shared.transaction_shares, peer.login.user_name)
