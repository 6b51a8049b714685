"""The broker as one deterministic machine: no socket, no disk, no clock.

In: bytes of connections (`Connection.feed`), the time (`tick`), finished commits of the message log (`stored`), data
read from disk (`loaded`), answers to login requests, alarms, administrative changes. Out: bytes in outboxes
(`take_dirty`), login requests, jobs of the message log, durable changes of the metadata (`journal.lane`), connections
that ended, notices for the operator.

1. The shell calls `end_turn` after feeding connections and before flushing; deliveries and confirms are written there.
2. `has_work` tells that another turn is due although no socket has anything to read.
3. Nothing here waits. Work that has to wait pauses a connection: its input stays where it is, in the end in the peer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.amqp.errors import NOT_ALLOWED, ConnectionException
from warren.amqp.outbox import Outbox
from warren.channels.access import AccessControl
from warren.channels.administration import Administration, existing_vhost
from warren.channels.audit_trail import AuditTrail
from warren.channels.back_pressure import alarm_set
from warren.channels.cancel_notices import CancelNotices, tell_lost
from warren.channels.connection import Connection
from warren.channels.direct_session import DirectPeer, DirectSession
from warren.channels.ending import force_close
from warren.channels.events import Events
from warren.channels.inbound import Inbound
from warren.channels.jobs import QueueEnd, Resuming, TakingApart
from warren.channels.login import LoginRequest
from warren.channels.origin import Origin
from warren.channels.overdue import end_overdue
from warren.channels.own_messages import OwnMessages
from warren.channels.peer import Peer
from warren.channels.publisher_flow import PublisherFlow
from warren.channels.reply_gate import ShutGates
from warren.channels.rounds import Rounds
from warren.channels.session import CHANNEL_CLOSING, Session
from warren.channels.shared import Shared
from warren.channels.shortage_notes import ShortageNotes, close_largest, close_stalled
from warren.channels.topology_growth import TopologyGrowth
from warren.msgstore.log.gathering import Gathering
from warren.msgstore.log.jobs import CommitJob, Errand
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.base_queue import BaseQueue, owns
from warren.queues.counters import Churn, DeathTable, MessageCounts, Sums
from warren.queues.lanes import EXCHANGE, EXCHANGE_PRODUCERS, EXCHANGE_SEEN_KEYS, METADATA, VHOST_RECORDS
from warren.queues.long_work import LongWork
from warren.queues.receiver import Receiver
from warren.queues.seen_keys import SeenKeys
from warren.queues.timers import FAILED_MS, Timer, TimerQueue
from warren.vhosts.dead_lettering import LettersInLine
from warren.vhosts.metadata import (
    MetadataChange,
)
from warren.vhosts.metadata_journal import MetadataJournal
from warren.vhosts.parameters import CLUSTER_NAME, ParameterBook
from warren.vhosts.topology_watcher import INTERNAL_USER, TopologyWatchers
from warren.vhosts.virtual_host import VirtualHost

# Makes the peer of an accepted connection: the class of a protocol.
PeerMaker = Callable[["Broker", int, Origin], Peer]

# Clients recognise RabbitMQ by this name.
NODE_NAME: Final = "rabbit@localhost"


class Limits:
    """Limits for peers. Counts and bytes; the defaults are the settings' defaults."""

    def __init__(self) -> None:
        self.frame_max_bytes: int = 131072
        self.channel_max: int = 2047
        self.heartbeat_s: int = 60
        self.message_max_bytes: int = 134217728
        self.content_timeout_s: float = 60.0  # 0: none
        self.connections_max: int = 65536
        self.handshake_timeout_s: float = 10.0
        self.consumers_per_channel_max: int = 10000
        self.unacked_per_channel_max: int = 500000
        self.transaction_max_bytes: int = 1 << 26
        self.transactions_max_bytes: int = 1 << 29  # of all that are open
        self.delivery_timeout_s: float = 1800.0  # 0: none
        self.send_timeout_s: float = 30.0  # 0: none
        self.queues_per_vhost_max: int = 1000000
        self.exchanges_per_vhost_max: int = 100000
        self.bindings_per_exchange_max: int = 500000
        self.binding_bytes_per_exchange_max: int = 1 << 26  # of the arguments of all bindings
        self.arguments_max_bytes: int = 131072  # of one declaration or binding: fits a frame of the usual size
        self.outbox_soft_bytes: int = 1 << 20
        self.outbox_hard_bytes: int = 1 << 25
        self.mqtt_qos0_outbox_bytes: int = 1 << 22
        self.inbound_max_bytes: int = 1 << 29


def _always(vhost: str) -> bool:
    return True


class Notice:
    """Something worth a log line. `fields` hold no secret."""

    def __init__(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.level = level
        self.event = event
        self.fields = fields


class _Waking(Timer):
    """Wakes a queue again whose turn has failed: it may be that nothing else does."""

    def __init__(self, queue: BaseQueue) -> None:
        super().__init__()
        self._queue = queue

    def due(self, now_ms: i64) -> None:
        if not self._queue.deleted:
            self._queue.wake()


class Broker:
    """Everything that the peers of one process share.

    `entropy` returns 16 unguessable bytes at each call; `seed` makes randomly routing exchanges repeatable.
    """

    def __init__(self, limits: Limits, entropy: Callable[[], bytes], seed: int, log: MessageLog) -> None:
        self.limits = limits
        self.now_s: float = 0.0
        self.log = log
        self.gathering = Gathering()
        self.is_gathering: bool = False  # the open batch could be closed, and takes more first
        self.timers = TimerQueue()
        self.work = LongWork(log.own, self.timers)
        self._taking_apart = TakingApart(log.reclamation)
        self.letters_in_line = LettersInLine()
        self.growth = TopologyGrowth()
        self.journal = MetadataJournal(log, self.work)
        self.shared = Shared(log, self.journal)
        self.shared.message_max_bytes = limits.message_max_bytes
        self.shared.transaction_shares.most = limits.transactions_max_bytes
        self.shared.inbound = Inbound(limits.inbound_max_bytes, limits.content_timeout_s)
        self.flow = PublisherFlow(self.shared, self.work, Resuming(self))
        self.churn = Churn()
        self._shortages = ShortageNotes(self.shared.inbound, self.letters_in_line, self.churn, self.note)
        self.access = AccessControl(self._access_changed)
        self.own_messages = OwnMessages()
        self.events = Events(self)
        self.watchers = TopologyWatchers(self.work)  # of all vhosts
        self.watchers.add(self.events)
        self.parameters = ParameterBook(self.work)
        self.node = NODE_NAME  # the name of this node; set by the shell
        self.cluster = ""  # and the cluster, where several nodes lead in turn; set by the shell
        self.vhosts: dict[str, VirtualHost] = {}
        self.connections: dict[int, Peer] = {}
        self.rounds = Rounds()  # of these, when time passes
        self._connections_of: dict[str, dict[Peer, None]] = {}  # by user
        # The clients of protocols with client names, by vhost and name: one at a time.
        self.named_clients: dict[tuple[str, str], Peer] = {}
        # Other protocols spoken on the port of AMQP 0-9-1, by the first 8 bytes; set by the shell.
        self.other_protocols: dict[bytes, PeerMaker] = {}
        # The peer that takes the place of a connection, and the bytes received so far; taken by the shell.
        self.switched: tuple[Peer, bytes] | None = None
        self.open_connections: int = 0
        self.deaths = DeathTable()
        self.counted = MessageCounts()  # in vhosts that were deleted
        self.logins: list[LoginRequest] = []  # taken by the shell
        self.notices: list[Notice] = []  # taken by the shell
        self.audit_trail = AuditTrail(self.note)
        self.ended: list[Peer] = []  # to be closed by the shell once flushed
        self.resumed: list[Peer] = []  # have more to handle, or may be read again
        self.syncs_confirms: Callable[[str], bool] = _always  # whether a confirm of that vhost means synced
        self.shut_gates = ShutGates()
        self.runnable: list[BaseQueue] = []
        self._restoring: list[SeenKeys] = []
        self._entropy = entropy
        self.seed = seed
        self._next_key: int = 1
        self._administration = Administration(self)

    # --- life of a connection ---------------------------------------------------------------------------------------

    def join(self, protocol: PeerMaker, origin: Origin) -> Peer:
        """Create the state of an accepted connection that speaks `protocol`."""
        origin.connected_at_ms = self.now_ms()
        joined = protocol(self, self._new_key(), origin)
        self.connections[joined.key] = joined
        self.rounds.hurry(joined.key)
        return joined

    def switch(self, connection: Connection, protocol: PeerMaker, data: bytes) -> None:
        """Put a peer that speaks `protocol` in the place of a connection that has received only `data` so far."""
        key = connection.key
        made = protocol(self, key, connection.origin)
        made.heartbeats.deadline_s = connection.heartbeats.deadline_s
        connection.give_way()
        self.connections[key] = made
        self.rounds.hurry(key)
        assert self.switched is None
        self.switched = (made, data)

    def take_switched(self) -> tuple[Peer, bytes] | None:
        """Return the peer that replaces the connection just fed, and the bytes to feed it; None: no replacement."""
        switched = self.switched
        if switched is not None:
            self.switched = None
        return switched

    def _new_key(self) -> int:
        key = self._next_key
        self._next_key += 1
        return key

    def open_direct(self, user: str, vhost: str) -> DirectSession:
        """Open a session inside the process, on which the caller acts for `user`; the caller ends its peer.

        Raises:
            ConnectionException: 530, there is no such vhost, or the user may not enter it.
        """
        entered = self.vhosts.get(vhost)
        if entered is None:
            raise ConnectionException(NOT_ALLOWED, f"vhost {vhost} not found")
        principal = self.access.maybe_principal(user, vhost)
        if principal is None:
            raise ConnectionException(NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{user}'")
        peer = DirectPeer(self, self._new_key(), principal, entered)
        self.connections[peer.key] = peer
        session = DirectSession(peer)
        peer.channels[int(session.number)] = session
        return session

    def note_user(self, peer: Peer) -> None:
        """Remember the user of a connection."""
        self._connections_of.setdefault(peer.login.user_name, {})[peer] = None

    def forget_connection(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        self.connections.pop(peer.key, None)
        own = self._connections_of.get(peer.login.user_name)
        if own is not None:
            own.pop(peer, None)
            if not own:
                del self._connections_of[peer.login.user_name]

    def unique_name(self) -> str:
        """Return 22 characters that cannot be guessed."""
        return base64.urlsafe_b64encode(self._entropy()).decode().rstrip("=")

    def note(self, level: str, event: str, fields: dict[str, object]) -> None:
        """Add a notice for the log."""
        self.notices.append(Notice(level, event, fields))

    # --- turns ------------------------------------------------------------------------------------------------------

    def end_turn(self, *, runs_long_work: bool = True) -> None:
        """Hand out messages that became deliverable and write the confirms of this turn.

        `runs_long_work`: run this turn's share of long work, too. Pass False for calls from outside a turn: each would
        run another share.
        """
        served = self.shared.served
        if served:
            # Before the queues: a consumer that waits for its turn may be the one that has priority there.
            lines = served[:]
            served.clear()
            begun: i64 = 0
            try:
                for turns in lines:
                    begun += 1
                    turns.serve()
            except BaseException:
                served.extend(lines[begun:])  # they are served in the next turn, and would never be asked for again
                raise
        runnable = self.runnable
        if runnable:
            count = len(runnable)
            turn = runnable[:count]
            del runnable[:count]
            drained: i64 = 0
            try:
                for queue in turn:
                    drained += 1
                    queue.drain()
            except BaseException:
                runnable.extend(turn[drained:])
                # Its other consumers have not had their turn. Not at once: it may fail for ever.
                self.timers.at(self.log.now_ms + FAILED_MS, _Waking(turn[drained - 1]))
                raise
        if not self._taking_apart.is_under_way and not self.log.reclamation.is_empty():
            self.work.begin(self._taking_apart)
        if runs_long_work:
            self.work.end_turn()
        self.own_messages.publish()
        self.shared.confirms.end_turn()
        log = self.log
        done: i64 = log.done_batch
        self.is_gathering = log.in_flight is None and self.gathering.takes_more(log.batch, self.now_s)
        if not self.is_gathering:
            log.close_if_due()
        if log.done_batch != done:
            self.shut_gates.open()  # all has been written
        if self.shared.inbound.is_short:
            close_largest(self.shared.inbound)
        if self.letters_in_line.eased:
            self.letters_in_line.eased = False
            self.flow.resume()
        self.flow.look_at_log()

    def has_work(self) -> bool:
        """Tell whether another turn is due without new input."""
        if self.shared.served or self.is_gathering:
            return True
        return len(self.runnable) > 0 or len(self.resumed) > 0 or len(self.own_messages) > 0 or self.work.is_due()

    def take_dirty(self) -> list[Outbox]:
        """Return the outboxes with something to send."""
        dirty = self.shared.dirty
        if not dirty:
            return []
        taken = dirty[:]
        dirty.clear()
        return taken

    def take_ended(self) -> list[Peer]:
        """Return the connections whose sockets the shell has to close once their outboxes are flushed."""
        ended = self.ended
        if ended:
            self.ended = []
        return ended

    def take_resumed(self) -> list[Peer]:
        """Return the connections to continue: feed each ``b""``, and read it again unless it is paused."""
        resumed = self.resumed
        if resumed:
            self.resumed = []
        return resumed

    def tick(self, now_s: float) -> None:
        """Check heartbeats and deadlines. Call about twice a second."""
        self.now_s = now_s
        inbound = self.shared.inbound
        for channel in inbound.tick(now_s):
            assert isinstance(channel, Session)
            try:
                close_stalled(channel, inbound.timeout_s)
            except Exception as error:
                channel.peer.outbox.failed(error)  # ends it
        self._shortages.tick(now_s)
        self.audit_trail.tick()
        self.access.routes.tick()
        self.shared.owed.tick()
        self.rounds.tick(now_s, self.connections)

    def restore_lane(self, index: QueueIndex, clean: bool) -> bool:
        """Restore one recovered lane (``queues.lanes``); return False if its owner is unknown."""
        vhost = self.vhosts.get(index.vhost)
        if index.lane == EXCHANGE_SEEN_KEYS or index.lane == EXCHANGE_PRODUCERS:
            of_exchange = None if vhost is None else vhost.seen_keys.get(index.name)
            if of_exchange is None or not of_exchange.lacks(index.lane):
                return False
            of_exchange.restore(index)
            self._restoring.append(of_exchange)
            return True
        if index.lane == METADATA:
            return self.journal.lane.index is index  # from the beginning
        if index.lane == VHOST_RECORDS:
            if vhost is None or vhost.records.index is not None:
                return False
            vhost.records.restore(index)
            return True
        if index.lane == EXCHANGE:
            held = None if vhost is None else vhost.held.get(index.name)
            if vhost is None or held is None or held.index is not None or not vhost.exchanges[index.name].durable:
                return False
            held.restore(index, clean=clean)
            return True
        queue = None if vhost is None else vhost.queues.get(index.name)
        if queue is None or not queue.durable or not owns(queue, index):
            return False
        queue.restore(index, clean)
        if queue.seen is not None:
            self._restoring.append(queue.seen)
        return True

    def is_restoring(self) -> bool:
        """Tell whether data that publishes depend on must still be read from disk: until then they have to wait."""
        self._restoring = [seen for seen in self._restoring if seen.is_restoring()]
        if self._restoring:
            return True
        return any(vhost.records.is_restoring for vhost in self.vhosts.values())

    def keep_time(self, now_ms: int) -> None:
        """Do the work due at `now_ms`, wall time in ms since the epoch. Call when ``timers.next_ms`` has come."""
        self.log.now_ms = now_ms
        try:
            self.timers.run_due(now_ms)
        finally:  # one that has failed is not the one that asked for this
            for vhost in list(self.vhosts.values()):
                while vhost.expired_queues:
                    queue = vhost.expired_queues.pop()
                    try:
                        self.delete_queue(vhost, queue)
                    except Exception as error:
                        self.work.report(error)
                        if queue.keeper is not None:
                            self.timers.at(now_ms + FAILED_MS, queue.keeper)  # asks again
                if vhost.overdue:
                    self._end_overdue(vhost)

    def _end_overdue(self, vhost: VirtualHost) -> None:
        overdue = vhost.overdue
        vhost.overdue = []
        self.log.own.begin()
        try:
            for ledger, tag, timeout_ms in overdue:
                channel = ledger.owner
                if isinstance(channel, Session):
                    try:
                        end_overdue(channel, tag, timeout_ms)
                    except Exception as error:
                        channel.peer.outbox.failed(error)  # ends it, and its deliveries go back
        finally:
            self.log.own.end()

    # --- commits ----------------------------------------------------------------------------------------------------

    def stored(self, job: CommitJob) -> None:
        """Send the replies that waited for a commit: the shell has carried it out."""
        if job is self.log.in_flight:
            self.gathering.committed(self.now_s)
        self.log.committed(job)
        self.shared.confirms.declared()
        self.shut_gates.open()

    def loaded(self, job: Errand) -> None:
        """Finish a read of the engine: the shell has the data."""
        job.finished()

    # --- the broker's reports about itself --------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the wall time of this turn in ms since the epoch."""
        return int(self.log.now_ms)

    def cluster_name(self) -> str:
        """Return the name of this broker for clients and other brokers: the global parameter, or a default."""
        named = self.parameters.maybe_global(CLUSTER_NAME)
        if named is not None and isinstance(named.value, str):
            return named.value
        return self.cluster or self.node

    def emit(self, key: str, headers: dict[str, object]) -> None:
        """Publish to the event exchange; see `channels.events`. To be called once it has happened."""
        self.events.emit(key, headers)

    def trace(self, vhost_name: str, on: bool) -> None:
        """Switch the tracing of a vhost (`channels.tracing`) on or off, until the broker stops.

        Raises:
            ValueError: no such vhost.
        """
        vhost = existing_vhost(self.vhosts, vhost_name)
        if vhost.tracing == on:
            return
        vhost.tracing = on
        vhost.topology_version += 1  # routes that are remembered pass by the tracer, or need it no longer
        for peer in self.connections.values():
            if peer.vhost is vhost:
                for channel in peer.channels.values():
                    if isinstance(channel, Session):
                        channel.watch(copies=on)

    # --- counts -----------------------------------------------------------------------------------------------------

    def totals(self, vhost: str | None = None) -> MessageCounts:
        """Return the message counts in `vhost`, None: everywhere, since the start; they never decrease.

        Looks at every channel there is.

        Raises:
            KeyError: no such vhost.
        """
        totals = MessageCounts()
        only: VirtualHost | None = None
        if vhost is None:
            totals.add(self.counted)
            for each in self.vhosts.values():
                totals.add(each.counted)
        else:
            only = self.vhosts[vhost]
            totals.add(only.counted)
        for peer in self.connections.values():
            if only is None or peer.vhost is only:
                for channel in peer.channels.values():
                    if channel.state != CHANNEL_CLOSING:  # or it is in the counts of its vhost
                        channel.add_counts(totals)
        return totals

    def sums(self) -> Sums:
        """Return the counts of all connections, with one look at each."""
        sums = Sums()
        by_vhost = sums.by_vhost
        for name, vhost in self.vhosts.items():
            by_vhost[name] = MessageCounts()
            by_vhost[name].add(vhost.counted)
        sums.everywhere.add(self.counted)
        received: i64 = self.churn.received_bytes
        sent: i64 = self.churn.sent_bytes
        for peer in self.connections.values():
            received += peer.received_bytes
            sent += peer.outbox.sent_bytes
            if peer.channels:
                # A connection that is not open has none, but channels of one whose vhost is gone may still be closing.
                of_vhost = by_vhost.get(peer.login.vhost_name, sums.everywhere)
                for channel in peer.channels.values():
                    if channel.state != CHANNEL_CLOSING:
                        channel.add_counts(of_vhost)
        for counts in by_vhost.values():
            sums.everywhere.add(counts)
        sums.received_bytes, sums.sent_bytes = received, sent
        return sums

    def size_buckets(self, totals: MessageCounts) -> list[int]:
        """Return the number of published bodies up to each size of `SIZE_BOUNDS`; then that of all.

        `totals` are those of the broker; their sum is its ``published_bytes``.
        """
        return self.shared.sizes.buckets(int(totals.publish))

    # --- faults on purpose, for tests of clients --------------------------------------------------------------------

    def judge_publishes(self, judge: Callable[[Session, Message, list[Receiver]], int]) -> None:
        """Set the function that decides every publish (`shared.TAKE` and so on). Call before the first connection."""
        self.shared.judge = judge

    def hold_confirms(self, *, held: bool) -> None:
        """Write no basic.ack for publishes until that is over; they are stored and delivered meanwhile."""
        self.shared.confirms.hold(held=held)

    # --- alarms -----------------------------------------------------------------------------------------------------

    def set_alarm(self, resource: str, short: bool) -> None:
        """Stop reading from publishers while `resource` (``memory`` or ``disk``) is `short`."""
        if short == self.flow.has_alarm(resource):
            return
        self.flow.note_alarm(resource, short)
        self.flow.check()  # first: publishers stop even if a peer cannot be told
        if short:
            if resource in {"memory", "disk"}:
                self.growth.alarm_set(resource)
            if resource == "memory":
                self.access.routes.drop_all(self.log.reclamation)
                self.shared.owed.begin()
            self.note("warning", "alarm.set", {"resource": resource})
        else:
            self.growth.alarm_over(resource)
            self.note("info", "alarm.cleared", {"resource": resource})
        self.events.alarm(resource, short)
        if short:
            for peer in self.connections.values():
                if resource == "memory":
                    for channel in peer.channels.values():
                        channel.ledger.hold_back()
                try:
                    alarm_set(peer)
                except Exception as error:
                    peer.outbox.failed(error)  # ends it
        elif resource == "memory":
            self.shared.owed.end()

    def has_alarm(self, resource: str) -> bool:
        """Tell whether `resource` is short."""
        return self.flow.has_alarm(resource)

    # --- administration ---------------------------------------------------------------------------------------------

    def delete_queue(
        self, vhost: VirtualHost, queue: BaseQueue, by: str = INTERNAL_USER, asked: CancelNotices | None = None
    ) -> int:
        """Delete `queue` as `by` asked, cancel its consumers, and return the ticket to wait for.

        `asked`: collects the consumers of the connection that asked, which waits until the bindings are gone, too.
        """
        if vhost.queues.get(queue.name) is not queue:
            return 0
        owner = queue.owner
        if isinstance(owner, Peer):
            owner.exclusive_queues.pop(queue.name, None)
        if asked is None:
            end = QueueEnd(vhost, queue, by, tell_lost)
            self.work.begin(end)
        else:
            end = QueueEnd(vhost, queue, by, asked.lost)
            asked.peer.begin(end)
        return end.ticket

    def restore(self, change: MetadataChange) -> None:
        """Apply the contents of the catalogue. Only at start, before the first connection (`vhosts.metadata`, 2).

        Raises:
            AmqpError, ValueError: the catalogue holds something that this version refuses.
        """
        self._administration.restore(change)

    def administer(self, change: MetadataChange, by: str = INTERNAL_USER, *, planned: bool = False) -> int:
        """Apply an administrative change that `by` asked for, live, and journal it. Return the ticket to wait for.

        `planned`: the right of `by` to the change has been checked; its content is checked again.

        Raises:
            ValueError: the change is not valid, a pattern for instance, or its vhost or user does not exist. The text
                is for the caller; nothing is changed.
        """
        return self._administration.apply(change, by, planned=planned)

    def connections_of_user(self, user: str) -> list[Peer]:
        """Return the connections of `user`."""
        return list(self._connections_of.get(user, ()))

    def _access_changed(self) -> None:
        # Cached routes embed a granted permission: make every channel look again.
        for vhost in self.vhosts.values():
            vhost.topology_version += 1

    def shut_down(self, reason: str) -> None:
        """Close every connection with 320; each is ended by its close-ok or its deadline."""
        for peer in list(self.connections.values()):
            force_close(peer, f"broker forced connection closure with reason '{reason}'", noted=False)
