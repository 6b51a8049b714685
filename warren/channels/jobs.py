"""The requests of a connection, or its end, where that is work over many things (``queues.long_work``).

1. The jobs of a connection are done in the order in which they began, and nothing is read from its peer meanwhile
   (`PAUSED_WORK`): each reply still finds everything before it done.
2. A channel that ends takes nothing from the first moment on. Its consumers leave their queues one by one, then the
   unacknowledged deliveries are requeued, the oldest first.
3. A job that meets a defect of ours ends its connection with 541. Later jobs, such as the end of a channel, are done
   nevertheless. What clients have no part in is done to its end: deliveries that go back, the end of a channel or of a
   queue. It continues after a pause without the delivery that it failed at, which stays unacked until a restart.
4. While a channel requeues messages, their queue delivers nothing: all are in place before the first leaves again. A
   message that is not back yet is unacked. Dropping messages does not stop their queue: nothing takes their place, and
   dead letters that return to it would be dropped for its length, although its consumers have room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren.channels.back_pressure import is_held_up, unblock
from warren.channels.consuming import drop_consumer, recheck
from warren.channels.ending import force_close
from warren.channels.shared import PAUSED_WORK
from warren.msgstore.log.own_writes import NOTHING, PACED
from warren.msgstore.log.reclamation import Reclamation
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger, give_back
from warren.queues.long_work import Job, Steps, backwards
from warren.queues.unacked import Delivery
from warren.vhosts.metadata import ParameterDelete, PermissionDelete, TopicPermissionDelete
from warren.vhosts.metadata_journal import MetadataJournal
from warren.vhosts.topology_watcher import INTERNAL_USER
from warren.vhosts.unbinding import Unbinding, unbinding_steps

if TYPE_CHECKING:
    from warren.amqp.errors import ChannelException
    from warren.channels.broker import Broker
    from warren.channels.events import Event, Events
    from warren.channels.peer import Peer
    from warren.channels.session import Session
    from warren.exchanges.binding import Binding
    from warren.exchanges.exchange import Exchange
    from warren.vhosts.virtual_host import VirtualHost

CONSUMER_STEPS: Final = 2
QUEUE_STEPS: Final = 8
CLOSE_STEPS: Final = 16
RESUME_STEPS: Final = 4
LOOKS_PER_STEP: Final = 8
ACKS_PER_STEP: Final = 2
KEPT_STEPS: Final = 4  # for a message that is stored again
TRIES_MAX: Final = 10  # to remove one thing of a deleted vhost


class ConnectionJobs(Job):
    """The jobs of one connection, one after the other. It exists while there are any."""

    def __init__(self, peer: Peer, job: Job) -> None:
        self._peer = peer
        self._jobs: deque[Job] = deque([job])

    def add(self, job: Job) -> None:
        """Do `job` when all others are done."""
        self._jobs.append(job)

    def run(self, steps: Steps) -> bool:
        jobs = self._jobs
        need: i64 = jobs[0].need()
        while jobs:
            job = jobs[0]
            try:
                done = job.need() == need and job.run(steps)
            except Exception as error:
                self._peer.outbox.failed(error)
                if job.failed():
                    self._peer.broker.work.rest(self)
                    return True  # for now
                done = True
            if not done:
                if self._peer.running:
                    self._peer.pause(PAUSED_WORK)
                return False
            jobs.popleft()
        self._peer.work_done()
        return True

    def need(self) -> i64:
        return self._jobs[0].need()

    def failed(self) -> bool:
        raise AssertionError("it handles the failures of its jobs")


class Returning:
    """Gives deliveries of a channel back to their queues. ``need``: whether something of it is written."""

    def __init__(self, ledger: DeliveryLedger) -> None:
        self.need: i64 = NOTHING
        self._ledger = ledger
        self._queues: dict[BaseQueue, None] = {}
        self._last: BaseQueue | None = None
        self._dropped_from: dict[BaseQueue, None] = {}
        self._ending: list[BaseQueue] | None = None  # those queues, once all are back, then the others
        self._next: int = 0

    def put_back(
        self,
        delivery: Delivery,
        steps: Steps,
        *,
        requeue: bool,
        failed: bool,
        delay_ms: int = -1,
        rewritten: bool = False,
    ) -> None:
        """Requeue or drop `delivery`, which is out of the ledger. The consequences take steps, too.

        `rewritten`: its message was stored again.
        """
        queue = delivery.queue
        if not requeue:
            self._dropped_from[queue] = None
        elif queue is not self._last:
            if queue not in self._queues:
                self._queues[queue] = None
                queue.begin_return()
            self._last = queue
        give_back(self._ledger, delivery, requeue=requeue, failed=failed, delay_ms=delay_ms)
        # Not before: dead letters have taken some of them.
        steps.left -= KEPT_STEPS if rewritten else queue.publish_steps()
        if rewritten or (requeue and queue.rewrites(delay_ms)):
            steps.wrote(delivery.message.memory_bytes)
            if self.need == NOTHING:
                self.need = PACED
                steps.interrupt()

    def end(self, steps: Steps) -> bool:
        """Resume the queues, one by one, when all messages are back; return True when all continue."""
        ending = self._ending
        if ending is None:
            ending = list(self._queues)
            ending.extend(self._dropped_from)
            self._ending = ending
        while self._next < len(ending):
            if steps.left <= 0:
                return False
            steps.left -= 1
            if self._next < len(self._queues):
                ending[self._next].end_return()
            else:
                ending[self._next].wake()
            self._next += 1
        return True


class DeliveryRun(Job):
    """Something for the deliveries of a channel up to a tag, the oldest first; 0: all that have been made so far."""

    def __init__(self, ledger: DeliveryLedger, up_to: i64) -> None:
        self._ledger = ledger
        # Deliveries that are sent during this job are not included.
        self._up_to: i64 = up_to if up_to else ledger.next_tag - 1

    def maybe_take(self) -> Delivery | None:
        """Take out the oldest of those that are left."""
        return self._ledger.maybe_take_oldest(self._up_to) if self._up_to > 0 else None


class ReturnRun(DeliveryRun):
    """They go back or are dropped: basic.nack, basic.recover."""

    def __init__(self, channel: Session, up_to: i64, *, requeue: bool, failed: bool, delay_ms: int = -1) -> None:
        super().__init__(channel.ledger, up_to)
        self._requeue = requeue
        self._failed = failed
        self._delay_ms = delay_ms
        self._returning = Returning(channel.ledger)

    def need(self) -> i64:
        return self._returning.need

    def run(self, steps: Steps) -> bool:
        while steps.left > 0:
            delivery = self.maybe_take()
            if delivery is None:
                return self._returning.end(steps)
            self._returning.put_back(
                delivery, steps, requeue=self._requeue, failed=self._failed, delay_ms=self._delay_ms
            )
        return False

    def failed(self) -> bool:
        return True


class ReturnOfTaken(Job):
    """Deliveries that are out of the ledger already go back: one basic.nack after the other."""

    def __init__(
        self, ledger: DeliveryLedger, taken: list[Delivery], *, requeue: bool, failed: bool, delay_ms: int
    ) -> None:
        self._taken = backwards(taken)
        self._requeue = requeue
        self._failed = failed
        self._delay_ms = delay_ms
        self._returning = Returning(ledger)
        self._returning.need = PACED

    def need(self) -> i64:
        return self._returning.need

    def run(self, steps: Steps) -> bool:
        while self._taken:
            if steps.left <= 0:
                return False
            delivery = self._taken.pop()
            self._returning.put_back(
                delivery, steps, requeue=self._requeue, failed=self._failed, delay_ms=self._delay_ms
            )
        return self._returning.end(steps)

    def failed(self) -> bool:
        return True


class AckRun(DeliveryRun):
    """They are settled: basic.ack of very many."""

    def __init__(self, channel: Session, up_to: i64) -> None:
        super().__init__(channel.ledger, up_to)

    def run(self, steps: Steps) -> bool:
        while steps.left > 0:
            most: i64 = ACKS_PER_STEP * steps.left
            if self._up_to <= 0:
                return True
            count = self._ledger.ack_run(self._up_to, most)
            steps.left -= count // ACKS_PER_STEP
            if count < most:
                return True
        return False


class Reply(Job):
    """A reply that tells that the jobs before it are done."""

    def __init__(self, channel: Session, method: Any, ticket: int, batch: int) -> None:
        self._channel = channel
        self._method = method
        self._ticket = ticket
        self._batch = batch

    def run(self, steps: Steps) -> bool:
        if self._channel.is_open():
            self._channel.reply(self._method, self._ticket, self._batch)
        return True


class Recheck(Job):
    """A channel whose user's permissions have changed: consumers of queues that it may not read are cancelled."""

    def __init__(self, channel: Session) -> None:
        self._channel = channel
        self._consumers: list[Consumer] = list(channel.ledger.consumers.values())
        self._next: int = 0

    def run(self, steps: Steps) -> bool:
        peer = self._channel.peer
        before: i64 = peer.searched()
        while self._next < len(self._consumers):
            if steps.left <= 0:
                return False
            recheck(self._channel, self._consumers[self._next])
            searched: i64 = peer.searched()
            steps.left -= CONSUMER_STEPS + searched - before
            before = searched
            self._next += 1
        self._channel.recheck()
        return True


class ChannelEnd(Job):
    """The end of a channel: it takes nothing more, and releases everything.

    Consumers go first, so that requeued messages do not come back here. `refusal`: why we close it, None: the peer or
    the connection does. `told`: whether the peer is told about the end.
    """

    def __init__(self, channel: Session, *, told: bool, refusal: ChannelException | None = None, method_id: int = 0):
        self._channel = channel
        self._told = told
        self._refusal = refusal
        self._method_id = method_id
        self._consumers: list[Consumer] = backwards(list(channel.ledger.consumers.values()))
        self._returning = Returning(channel.ledger)

    def need(self) -> i64:
        return self._returning.need

    def run(self, steps: Steps) -> bool:
        channel = self._channel
        consumers = self._consumers
        while consumers:
            if steps.left <= 0:
                return False
            steps.left -= CONSUMER_STEPS
            drop_consumer(channel, consumers.pop())
        while True:
            if steps.left <= 0:
                return False
            delivery = channel.maybe_take_unanswered()
            if delivery is None:
                break
            self._returning.put_back(delivery, steps, requeue=True, failed=True)
        if not self._returning.end(steps):
            return False
        channel.ended()
        if self._told:
            channel.peer.session_ended(channel, self._refusal, self._method_id)
        return True

    def failed(self) -> bool:
        return True


class QueueEnd(Job):
    """A queue that is deleted: its consumers are told one by one, by `lost`, then its bindings go."""

    def __init__(self, vhost: VirtualHost, queue: BaseQueue, by: str, lost: Callable[[Consumer], None]) -> None:
        self._vhost = vhost
        self._queue = queue
        self._by = by
        self._lost = lost
        self._consumers: list[Consumer] = backwards(list(queue.consumers))
        self._unbinding = Unbinding(vhost, queue, INTERNAL_USER)
        self.ticket: int = vhost.take_queue_out(queue)

    def run(self, steps: Steps) -> bool:
        vhost = self._vhost
        consumers = self._consumers
        while consumers:
            if steps.left <= 0:
                return False
            steps.left -= CONSUMER_STEPS
            consumer = consumers.pop()
            if consumer.owner is not None:  # it has not been cancelled meanwhile
                try:
                    vhost.watcher.consumer_deleted(consumer)
                finally:
                    self._lost(consumer)  # else its client would wait for ever
        if not self._unbinding.run(steps):
            return False
        vhost.watcher.queue_deleted(vhost.name, self._queue, self._by)
        return True

    def failed(self) -> bool:
        return True


class ForcedClose(Job):
    """Connections that we close for `reason`. Those that are not closed yet are unchanged."""

    def __init__(self, connections: list[Peer], reason: str) -> None:
        self._connections = backwards(connections)
        self._reason = reason

    def run(self, steps: Steps) -> bool:
        while self._connections:
            if steps.left <= 0:
                return False
            steps.left -= CLOSE_STEPS
            force_close(self._connections.pop(), self._reason)
        return True


class Telling(Job):
    """Events that follow a change, as many in a turn as that has steps."""

    def __init__(self, events: Events, told: Iterator[Event]) -> None:
        self._events = events
        self._told = told

    def run(self, steps: Steps) -> bool:
        while steps.left > 0:
            event = next(self._told, None)
            if event is None:
                return True
            steps.left -= 1
            self._events.emit(event[0], event[1])
        return False


class VhostEnd(Job):
    """The connections to a vhost that has been deleted, then its queues and all other objects with messages in it.

    Until its connections are closed it works as before for them, but nothing of it is remembered. The journal is held:
    the deletion is stored when all messages are gone from the log. Otherwise a crash would leave messages there that
    belong to nothing. `let_go` is called when no connection to it is left.

    The end of each object in it is reported when it happens, and then that of the vhost: the permissions `lost` first,
    the settings of an administrator, with the parameters that were `cleared`, at last. A thing that cannot be removed
    is left, after some tries: its messages stay in the log, and are reported at the next start.
    """

    def __init__(
        self,
        vhost: VirtualHost,
        journal: MetadataJournal,
        connections: list[Peer],
        let_go: Callable[[VirtualHost], None],
        events: Events,
        lost: list[PermissionDelete | TopicPermissionDelete],
        cleared: list[ParameterDelete],
        by: str,
    ) -> None:
        self._vhost = vhost
        self._journal = journal
        self._close = ForcedClose(connections, f"vhost '{vhost.name}' was deleted")
        self._let_go = let_go
        self._events = events
        self._by = by
        self._permissions = Telling(events, events.permissions_lost(lost, by))
        self._settings = Telling(events, events.vhost_gone(vhost, cleared, by))
        self._is_left: bool = False
        self._tries: i64 = 0  # that have failed in a row
        self._queues: list[BaseQueue] = []
        self._exchanges: deque[Exchange] = deque()
        self._bindings: list[Binding] | None = None  # from the first of them; None: they have not been looked at
        journal.hold()

    def run(self, steps: Steps) -> bool:
        if not self._is_left:
            kept = self._vhost.kept_sessions
            if not self._close.run(steps) or (kept is not None and not kept.forget(steps)):
                return False
            self._queues = backwards(list(self._vhost.queues.values()))
            self._exchanges = deque(self._vhost.exchanges.values())
            self._is_left = True
            self._let_go(self._vhost)
        if not self._permissions.run(steps):
            return False
        vhost = self._vhost
        while self._queues:
            if steps.left <= 0:
                return False
            steps.left -= QUEUE_STEPS
            queue = self._queues[-1]
            if queue.name in vhost.queues:  # it has not gone with its connection meanwhile
                queue.close()  # first: its messages are not to be left in the log
                del vhost.queues[queue.name]
                vhost.churn.queues_deleted += 1
                vhost.watcher.queue_let_go(queue)
                self._events.queue_deleted(vhost.name, queue, self._by)
            self._queues.pop()
            self._tries = 0
        while self._exchanges:
            if not (self._exchanges[0].forget(steps) and self._unbind(self._exchanges[0], steps)):
                return False
            exchange = self._exchanges.popleft()
            vhost.exchanges.pop(exchange.name, None)
            self._tries = 0
            self._events.exchange_deleted(vhost.name, exchange, self._by)
        if not self._settings.run(steps):
            return False
        self._journal.release()
        vhost.taken_apart()
        return True

    def failed(self) -> bool:
        self._tries += 1
        if self._tries == TRIES_MAX:  # the journal is held: it has to end
            self._tries = 0
            self._bindings = None
            if self._queues:
                self._queues.pop()
            elif self._exchanges:
                self._exchanges.popleft()
        return True

    def _unbind(self, exchange: Exchange, steps: Steps) -> bool:
        """Remove the bindings from `exchange` without events: with its queues they would stay for ever."""
        if steps.left <= 0:
            return False
        steps.left -= 1
        bindings = self._bindings
        if bindings is None:
            bindings = backwards(list(exchange.bindings.values()))
            self._bindings = bindings
        while bindings:
            if steps.left <= 0:
                return False
            binding = bindings.pop()
            steps.left -= unbinding_steps(binding)
            exchange.unbind(binding.destination, binding.routing_key, binding.arguments)
            self._vhost.incoming.forget(binding)
        self._bindings = None
        return True


class NewRights(Job):
    """The connections of a user whose permission in a vhost was changed or removed."""

    def __init__(self, connections: list[Peer], vhost: str) -> None:
        self._connections = backwards(connections)
        self._vhost = vhost

    def run(self, steps: Steps) -> bool:
        while self._connections:
            if steps.left <= 0:
                return False
            peer = self._connections.pop()
            steps.left -= 1
            if peer.login.vhost_name == self._vhost:
                steps.left -= CLOSE_STEPS
                try:
                    _rights_changed(peer)
                except Exception as error:
                    peer.outbox.failed(error)  # ends it
        return True


def _rights_changed(peer: Peer) -> None:
    """End a connection whose user may no longer enter its vhost, else cancel consumers that may not read now."""
    user, vhost = peer.login.user_name, peer.login.vhost_name
    if peer.broker.access.maybe_principal(user, vhost) is None:
        force_close(peer, f"access to vhost '{vhost}' was revoked for user '{user}'")
        return
    for channel in list(peer.channels.values()):  # one of another protocol takes its connection with it
        if channel.is_open():
            peer.begin(Recheck(channel))


class Resuming(Job):
    """Publishers that resume because a shortage is over. Those that were not reached yet wait as before."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: list[Peer] = []
        self._is_due: bool = False
        self._is_under_way: bool = False

    def is_to_begin(self) -> bool:
        """Request a scan of all connections, another one if one is under way; True when the caller has to begin it."""
        self._is_due = True
        return not self._is_under_way

    def run(self, steps: Steps) -> bool:
        self._is_under_way = True
        looks: i64 = LOOKS_PER_STEP
        while not self._broker.shared.stopped:
            if not self._connections:
                if not self._is_due:
                    break
                self._is_due = False
                self._connections = backwards(list(self._broker.connections.values()))
            elif steps.left <= 0:
                return False
            else:
                peer = self._connections.pop()
                if is_held_up(peer):
                    steps.left -= RESUME_STEPS
                    try:
                        unblock(peer)
                    except Exception as error:
                        peer.outbox.failed(error)  # ends it
                elif looks > 0:
                    looks -= 1
                else:
                    looks = LOOKS_PER_STEP
                    steps.left -= 1
        self._connections = []
        self._is_under_way = False
        return True

    def failed(self) -> bool:
        self._is_due = True
        return True


class TakingApart(Job):
    """Messages that queues have released are taken apart. One job for all of them: nobody waits for it."""

    def __init__(self, reclamation: Reclamation) -> None:
        self._reclamation = reclamation
        self.is_under_way: bool = False

    def run(self, steps: Steps) -> bool:
        steps.left = self._reclamation.take_apart(steps.left)
        self.is_under_way = not self._reclamation.is_empty()
        return not self.is_under_way

    def failed(self) -> bool:
        self.is_under_way = True  # if it has failed where it began, too
        return True


class ConnectionEnd(Job):
    """The channels of a connection that has ended, or is about to, and then its exclusive queues.

    `answered`: the peer has asked for the end and has to be told.
    """

    def __init__(self, peer: Peer, channels: list[Session], *, answered: bool) -> None:
        self._peer = peer
        self._channels = backwards(channels)
        self._end: ChannelEnd | None = None  # of the first of them
        self._queues: list[BaseQueue] = backwards(list(peer.exclusive_queues.values()))
        self._answered = answered

    def need(self) -> i64:
        return NOTHING if self._end is None else self._end.need()

    def run(self, steps: Steps) -> bool:
        while self._end is not None or self._channels:
            end = self._end
            if end is None:
                end = ChannelEnd(self._channels.pop(), told=False)
                self._end = end
            steps.left -= 1
            if not end.run(steps):
                return False
            self._end = None
        peer = self._peer
        vhost = peer.vhost
        while self._queues:
            if steps.left <= 0:
                return False
            steps.left -= QUEUE_STEPS
            if vhost is not None:
                peer.broker.delete_queue(vhost, self._queues[-1])
            self._queues.pop()
        if self._answered:
            peer.answer_close()
        return True

    def failed(self) -> bool:
        return True
