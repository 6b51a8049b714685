"""The broker as one deterministic machine: no socket, no disk, no clock.

In: bytes of connections (`Connection.feed`), the time (`tick`), finished commits of the catalogue (`committed`) and
the message log (`stored`), what was read from disk (`loaded`), answers to login requests, alarms, administrative
changes. Out: bytes in outboxes (`take_dirty`), login requests, metadata changes in the journal, jobs of the message
log, connections that ended, notices for the operator.

1. The shell calls `end_turn` after feeding connections and before flushing; deliveries and confirms are written there.
2. `has_work` tells that another turn is due although no socket has anything to read.
3. Nothing here waits. Whatever needs waiting pauses a connection: its input stays where it is, at last in the peer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.amqp.errors import NOT_ALLOWED, ConnectionException
from warren.amqp.outbox import Outbox
from warren.channels.access import AccessControl
from warren.channels.channel import Channel
from warren.channels.connection import Connection, LoginRequest
from warren.channels.direct import DirectConnection
from warren.channels.events import Events
from warren.channels.fast_path import CLOSING, PAUSED_ALARM, FastChannel, Shared
from warren.channels.own_messages import OwnMessages
from warren.msgstore.jobs import CommitJob, Errand
from warren.msgstore.message import Message
from warren.msgstore.message_log import MessageLog
from warren.msgstore.queue_index import QueueIndex
from warren.queues.agenda import Agenda
from warren.queues.counters import Churn, DeathTable, MessageCounts
from warren.queues.lanes import EXCHANGE, EXCHANGE_PRODUCERS, EXCHANGE_SEEN_KEYS, VHOST_RECORDS
from warren.queues.limits import VHOST_LIMITS, parse_limits
from warren.queues.metadata import (
    BindingPut,
    ExchangePut,
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    MetadataJournal,
    ParameterDelete,
    ParameterPut,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    QueuePut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
    check_storable,
)
from warren.queues.parameters import CLUSTER_NAME, ParameterBook, ParameterChange, own_change
from warren.queues.queue import Queue
from warren.queues.seen_keys import SeenKeys
from warren.queues.topology_watcher import INTERNAL_USER, TopologyWatchers
from warren.queues.virtual_host import DEFAULT_QUEUE_TYPES, VirtualHost

NODE_NAME: Final = "warren"


class Limits:
    """What peers may ask for. Counts and bytes; the defaults are the settings' defaults."""

    def __init__(self) -> None:
        self.frame_max_bytes: int = 131072
        self.channel_max: int = 2047
        self.heartbeat_s: int = 60
        self.message_max_bytes: int = 16777216
        self.connections_max: int = 65536
        self.handshake_timeout_s: float = 10.0
        self.consumers_per_channel_max: int = 10000
        self.unacked_per_channel_max: int = 500000
        self.delivery_timeout_s: float = 1800.0  # 0: none
        self.queues_per_vhost_max: int = 1000000
        self.exchanges_per_vhost_max: int = 100000
        self.bindings_per_exchange_max: int = 500000
        self.outbox_soft_bytes: int = 1 << 20
        self.outbox_hard_bytes: int = 1 << 25
        self.inbound_max_bytes: int = 1 << 29


def _always(vhost: str) -> bool:
    return True


class Notice:
    """Something worth a log line. `fields` hold no secret."""

    def __init__(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.level = level
        self.event = event
        self.fields = fields


class Broker:
    """Everything that the peers of one process share.

    `entropy` returns 16 unguessable bytes at each call; `seed` makes randomly routing exchanges repeatable.
    """

    def __init__(self, limits: Limits, entropy: Callable[[], bytes], seed: int, log: MessageLog) -> None:
        self.limits = limits
        self.now_s: float = 0.0
        self.log = log
        self.agenda = Agenda()
        self.journal = MetadataJournal()
        self.shared = Shared(log, self.journal)
        self.shared.message_max_bytes = limits.message_max_bytes
        self.shared.inbound_max_bytes = limits.inbound_max_bytes
        self.access = AccessControl(self._access_changed)
        self.own_messages = OwnMessages()
        self.events = Events(self, NODE_NAME)
        self.watchers = TopologyWatchers()  # of all vhosts
        self.watchers.add(self.events)
        self.parameters = ParameterBook()
        self.host_name = ""  # of the machine, set by the shell
        self.vhosts: dict[str, VirtualHost] = {}
        self.connections: dict[int, Connection] = {}
        self.open_connections: int = 0
        self.churn = Churn()
        self.deaths = DeathTable()
        self.counted = MessageCounts()  # in vhosts that were deleted
        self.logins: list[LoginRequest] = []  # taken by the shell
        self.notices: list[Notice] = []  # taken by the shell
        self.ended: list[Connection] = []  # to be closed by the shell once flushed
        self.resumed: list[Connection] = []  # may be read again
        self.direct_outboxes: list[Outbox] = []  # of direct connections, with something to read or to go on with
        self.alarm_reason: str = ""
        self.syncs_confirms: Callable[[str], bool] = _always  # whether a confirm of that vhost means synced
        self._alarms: set[str] = set()
        self._behind: bool = False  # the disk is slower than the publishers
        self._gated: set[Connection] = set()
        self._runnable: list[Queue] = []
        self._restoring: list[SeenKeys] = []
        self._entropy = entropy
        self._seed = seed
        self._next_key: int = 1

    # --- life of a connection ---------------------------------------------------------------------------------------

    def connect(self, peer: str, local: str, address: str, certificate_user: str | None) -> Connection:
        """Create the state of an accepted connection. `certificate_user`: who the verified TLS certificate names."""
        key = self._next_key
        self._next_key += 1
        connection = Connection(self, key, peer, local, address, certificate_user)
        self.connections[key] = connection
        return connection

    def connect_direct(self, user: str, vhost: str) -> DirectConnection:
        """Open a connection without a socket, on which the caller acts for `user`; the caller closes it.

        Raises:
            ConnectionException: 530, there is no such vhost, or the user may not enter it.
        """
        entered = self.vhosts.get(vhost)
        if entered is None:
            raise ConnectionException(NOT_ALLOWED, f"vhost {vhost} not found")
        principal = self.access.maybe_principal(user, vhost)
        if principal is None:
            raise ConnectionException(NOT_ALLOWED, f"access to vhost '{vhost}' refused for user '{user}'")
        key = self._next_key
        self._next_key += 1
        connection = DirectConnection(self, key, principal, entered)
        self.connections[key] = connection
        return connection

    def unique_name(self) -> str:
        """Return 22 characters that nobody can guess."""
        return base64.urlsafe_b64encode(self._entropy()).decode().rstrip("=")

    def note(self, level: str, event: str, fields: dict[str, object]) -> None:
        """Add a notice for the log."""
        self.notices.append(Notice(level, event, fields))

    def gate(self, connection: Connection) -> None:
        """Remember that `connection` has replies that wait for a commit."""
        self._gated.add(connection)

    # --- turns ------------------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Hand out what became deliverable and write the confirms of this turn."""
        runnable = self._runnable
        if runnable:
            count = len(runnable)
            turn = runnable[:count]
            del runnable[:count]
            for queue in turn:
                queue.drain()
        self.own_messages.publish()
        unconfirmed = self.shared.unconfirmed
        if unconfirmed:
            for channel in unconfirmed:
                channel.confirm()
            unconfirmed.clear()
        log = self.log
        done: i64 = log.done_batch
        log.close_if_due()
        if log.done_batch != done:
            self._open_gates()  # nothing was left to write
        if log.is_congested() != self._behind:
            self._behind = not self._behind
            self._check_publishers()

    def has_work(self) -> bool:
        """Tell whether another turn is due without new input."""
        return len(self._runnable) > 0 or len(self.resumed) > 0 or len(self.own_messages) > 0

    def take_dirty(self) -> list[Outbox]:
        """Return the outboxes with something to send."""
        dirty = self.shared.dirty
        if not dirty:
            return []
        taken = dirty[:]
        dirty.clear()
        return taken

    def take_ended(self) -> list[Connection]:
        """Return the connections whose sockets are to be closed once their outboxes are flushed."""
        ended = self.ended
        if ended:
            self.ended = []
        return ended

    def take_resumed(self) -> list[Connection]:
        """Return the connections that may be read again; feed each ``b""`` first."""
        resumed = self.resumed
        if resumed:
            self.resumed = []
        return resumed

    def tick(self, now_s: float) -> None:
        """Let time pass: heartbeats and deadlines. Call about twice a second."""
        self.now_s = now_s
        for connection in list(self.connections.values()):
            connection.tick(now_s)

    def restore_lane(self, index: QueueIndex, clean: bool) -> bool:
        """Give messages that recovery found to the queue or exchange that has the name; False when there is none."""
        vhost = self.vhosts.get(index.vhost)
        if index.lane == EXCHANGE_SEEN_KEYS or index.lane == EXCHANGE_PRODUCERS:
            of_exchange = None if vhost is None else vhost.seen_keys.get(index.name)
            if of_exchange is None or not of_exchange.lacks(index.lane):
                return False
            of_exchange.restore(index)
            self._restoring.append(of_exchange)
            return True
        if index.lane == VHOST_RECORDS:
            if vhost is None or vhost.records.index is not None:
                return False
            vhost.records.restore(index)
            return True
        if index.lane == EXCHANGE:
            delayed = None if vhost is None else vhost.delayed.get(index.name)
            if delayed is None or not delayed.exchange.durable or delayed.held.index is not None:
                return False
            delayed.restore(index, clean=clean)
            return True
        queue = None if vhost is None else vhost.queues.get(index.name)
        if queue is None or not queue.durable or not queue.owns(index):
            return False
        queue.restore(index, clean)
        if queue.keeper is not None and queue.keeper.seen is not None:
            self._restoring.append(queue.keeper.seen)
        return True

    def is_restoring(self) -> bool:
        """Tell whether something has still to be read from disk that decides on publishes: none may come before."""
        self._restoring = [seen for seen in self._restoring if seen.is_restoring()]
        if self._restoring:
            return True
        return any(vhost.records.is_restoring for vhost in self.vhosts.values())

    def keep_time(self, now_ms: int) -> None:
        """Do what is due at `now_ms`, wall time in ms since the epoch. Call when ``agenda.next_ms`` has come."""
        self.log.now_ms = now_ms
        self.agenda.keep(now_ms)
        for vhost in list(self.vhosts.values()):
            while vhost.expired_queues:
                self.delete_queue(vhost, vhost.expired_queues.pop())
            while vhost.overdue:
                ledger, timeout_ms = vhost.overdue.pop()
                channel = ledger.owner
                if isinstance(channel, Channel):
                    channel.connection.close_overdue(channel, timeout_ms)

    # --- commits ----------------------------------------------------------------------------------------------------

    def committed(self, ticket: int) -> None:
        """Every metadata change up to `ticket` is durable: send the replies that waited for it."""
        self.journal.committed(ticket)
        undeclared = self.shared.undeclared
        if undeclared:
            self.shared.undeclared = []
            for channel in undeclared:
                channel.batch_done(self.log.done_batch)
        self._open_gates()

    def stored(self, job: CommitJob) -> None:
        """The shell has carried out the commit of a batch."""
        self.log.committed(job)
        self._open_gates()

    def loaded(self, job: Errand) -> None:
        """The shell has read what the engine asked for."""
        job.finished()

    def _open_gates(self) -> None:
        if not self._gated:
            return
        for connection in list(self._gated):
            if connection.open_gate():
                self._gated.discard(connection)

    def forget_gate(self, connection: Connection) -> None:
        """Forget a connection that ended."""
        self._gated.discard(connection)

    # --- what the broker tells about itself -------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the wall time of this turn in ms since the epoch."""
        return int(self.log.now_ms)

    def cluster_name(self) -> str:
        """Return what this broker calls itself to clients and other brokers: the global parameter, or a default."""
        named = self.parameters.maybe_global(CLUSTER_NAME)
        if named is not None and isinstance(named.value, str):
            return named.value
        return self.node_name()

    def node_name(self) -> str:
        """Return what this node is called in the management API."""
        return f"{NODE_NAME}@{self.host_name}" if self.host_name else NODE_NAME

    def emit(self, key: str, headers: dict[str, object]) -> None:
        """Tell the event exchange; see `channels.events`. To be called once it has happened."""
        self.events.emit(key, headers)

    def trace(self, vhost_name: str, on: bool) -> None:
        """Switch the tracing of a vhost (`channels.tracing`) on or off, until the broker stops.

        Raises:
            ValueError: no such vhost.
        """
        vhost = self._existing_vhost(vhost_name)
        if vhost.tracing == on:
            return
        vhost.tracing = on
        vhost.topology_version += 1  # routes that are remembered pass by the tracer, or need it no longer
        for connection in self.connections.values():
            if connection.fast_vhost is vhost:
                for channel in connection.channels.values():
                    if isinstance(channel, Channel):
                        channel.trace(on)

    # --- counts -----------------------------------------------------------------------------------------------------

    def totals(self, vhost: str | None = None) -> MessageCounts:
        """Return what happened to messages in `vhost`, None: everywhere, since the start; nothing in it goes back.

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
        for connection in self.connections.values():
            if only is None or connection.fast_vhost is only:
                for channel in connection.channels.values():
                    if channel.state != CLOSING:  # or it is in the counts of its vhost
                        channel.add_counts(totals)
        return totals

    def totals_by_vhost(self) -> dict[str, MessageCounts]:
        """Return `totals` of each vhost, with one look at the channels."""
        found: dict[str, MessageCounts] = {}
        for name, vhost in self.vhosts.items():
            found[name] = MessageCounts()
            found[name].add(vhost.counted)
        for connection in self.connections.values():
            of_vhost = found.get(connection.vhost_name)
            if of_vhost is not None:
                for channel in connection.channels.values():
                    if channel.state != CLOSING:
                        channel.add_counts(of_vhost)
        return found

    def size_buckets(self, totals: MessageCounts) -> list[int]:
        """Return how many bodies of all published had at most so many bytes, for each of `SIZE_BOUNDS`; then all.

        `totals` are those of the broker; their sum is its ``published_bytes``.
        """
        return self.shared.sizes.buckets(int(totals.publish))

    # --- faults on purpose, for tests of clients --------------------------------------------------------------------

    def judge_publishes(self, judge: Callable[[FastChannel, Message, list[Queue]], int]) -> None:
        """Have `judge` say what becomes of every publish (`fast_path.TAKE` and so on). Before the first connection."""
        self.shared.judge = judge

    def hold_confirms(self, *, held: bool) -> None:
        """Write no basic.ack for publishes until that is over; they are stored and delivered meanwhile."""
        shared = self.shared
        shared.holds_confirms = held
        if not held:
            channels = shared.unheld
            shared.unheld = []
            for channel in channels:
                channel.batch_done(self.log.done_batch)

    # --- alarms -----------------------------------------------------------------------------------------------------

    def set_alarm(self, resource: str, short: bool) -> None:
        """Stop reading from publishers while `resource` (``memory`` or ``disk``) is `short`."""
        if short == (resource in self._alarms):
            return
        if short:
            self._alarms.add(resource)
            self.note("warning", "alarm.set", {"resource": resource})
        else:
            self._alarms.discard(resource)
            self.note("info", "alarm.cleared", {"resource": resource})
        self.events.alarm(resource, short)
        self.alarm_reason = " & ".join([f"low on {name}" for name in sorted(self._alarms, reverse=True)])
        if short:
            for connection in self.connections.values():
                connection.alarm_set()
        self._check_publishers()

    def has_alarm(self, resource: str) -> bool:
        """Tell whether `resource` is short."""
        return resource in self._alarms

    def _check_publishers(self) -> None:
        self.shared.stopped = self._behind or len(self._alarms) > 0
        if not self.shared.stopped:
            for connection in self.connections.values():
                if connection.told_blocked or connection.paused & PAUSED_ALARM:
                    connection.unblock()

    # --- administration ---------------------------------------------------------------------------------------------

    def delete_queue(self, vhost: VirtualHost, queue: Queue, by: str = INTERNAL_USER) -> int:
        """Delete `queue` as `by` asked, cancel its consumers, and return the ticket to wait for."""
        consumers, ticket = vhost.delete_queue(queue, by)
        owner = queue.owner
        if isinstance(owner, Connection):
            owner.exclusive_queues.pop(queue.name, None)
        for consumer in consumers:
            channel = consumer.owner
            if isinstance(channel, Channel):
                channel.consumer_lost(consumer)
        return ticket

    def restore(self, change: MetadataChange) -> None:
        """Apply what the catalogue remembers. Only at start, before the first connection.

        Raises:
            AmqpError, ValueError: the catalogue holds something that this version refuses.
        """
        match change:
            case VhostPut():
                self._add_vhost(change)
            case ExchangePut() | QueuePut() | BindingPut():
                self.vhosts[change.vhost].restore(change)
            case UserPut() | PermissionPut() | TopicPermissionPut():
                self.access.apply(change)
            case UserLimitsPut():
                self.access.limit(change)
            case VhostLimitsPut():
                self._limit_vhost(change)
            case PolicyPut():
                self._existing_vhost(change.vhost).policies.put(change)
            case ParameterPut() | GlobalParameterPut():
                self.parameters.restore(change)
            case _:
                raise ValueError(f"the catalogue may not hold {type(change).__name__}")

    def administer(self, change: MetadataChange, by: str = INTERNAL_USER) -> int:
        """Apply an administrative change that `by` asked for, live, and journal it. Return the ticket to wait for.

        Raises:
            ValueError: the change is not valid, a pattern for instance, or its vhost or user does not exist. The text
                is for whoever asked; nothing is changed.
        """
        change = own_change(change)
        check_storable(change)
        told = self.events.describe(change, by)
        changed: ParameterChange | None = None
        match change:
            case VhostPut():
                if change.default_queue_type not in DEFAULT_QUEUE_TYPES:
                    raise ValueError(
                        f"default queue type '{change.default_queue_type}' is not classic, quorum or stream"
                    )
                self._add_vhost(change)
            case VhostDelete():
                self._delete_vhost(change.name, by)
            case UserPut() | UserDelete():
                self.access.apply(change)
            case PermissionPut() | PermissionDelete() | TopicPermissionPut() | TopicPermissionDelete():
                self._existing_vhost(change.vhost)
                self.access.apply(change)
            case UserLimitsPut() | UserLimitsDelete():
                self.access.limit(change)
            case VhostLimitsPut() | VhostLimitsDelete():
                self._limit_vhost(change)
            case PolicyPut():
                vhost = self._existing_vhost(change.vhost)
                vhost.policies.put(change)
                vhost.apply_policies()
                self.watchers.policies_changed(vhost.name)
            case PolicyDelete():
                vhost = self._existing_vhost(change.vhost)
                vhost.policies.delete(change.name, operator=change.operator)
                vhost.apply_policies()
                self.watchers.policies_changed(vhost.name)
            case ParameterPut() | ParameterDelete():
                self._existing_vhost(change.vhost)
                changed = change if self.parameters.apply(change, by) else None
            case GlobalParameterPut() | GlobalParameterDelete():
                changed = change if self.parameters.apply(change, by) else None
            case _:
                raise ValueError("exchanges, queues and bindings are declared, not administered")
        ticket = self.journal.append(change)
        self.events.emit_all(told)
        if changed is not None:
            self.parameters.tell(changed)
        if isinstance(change, UserDelete):
            for connection in list(self.connections.values()):
                if connection.user_name == change.name:
                    connection.force_close(f"user '{change.name}' was deleted")
        if isinstance(change, PermissionPut | PermissionDelete):
            self._recheck(change.user, change.vhost)
        return ticket

    def _existing_vhost(self, name: str) -> VirtualHost:
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise ValueError(f"vhost '{name}' does not exist")
        return vhost

    def _limit_vhost(self, change: VhostLimitsPut | VhostLimitsDelete) -> None:
        vhost = self._existing_vhost(change.vhost)
        limits: dict[str, int] = {}
        if isinstance(change, VhostLimitsPut):
            limits = parse_limits(change.definition, VHOST_LIMITS, "limits")
        vhost.limits = limits

    def _add_vhost(self, record: VhostPut) -> None:
        if record.name in self.vhosts:
            self.vhosts[record.name].record = record
            return
        vhost = VirtualHost(record, self.journal, self._runnable, self._seed, self.log, self.agenda)
        vhost.sync_confirms = self.syncs_confirms(record.name)
        vhost.watcher = self.watchers
        vhost.churn = self.churn
        vhost.deaths = self.deaths
        self.vhosts[record.name] = vhost

    def _delete_vhost(self, name: str, by: str) -> None:
        vhost = self.vhosts.get(name)
        if vhost is None:
            return
        if vhost.record.protected_from_deletion:
            raise ValueError(f"Refusing to delete virtual host '{name}' because it is protected from deletion")
        del self.vhosts[name]
        for connection in list(self.connections.values()):
            if connection.fast_vhost is vhost:
                connection.force_close(f"vhost '{name}' was deleted")
        self.counted.add(vhost.counted)
        self.events.vhost_emptied(vhost, by)
        self.churn.queues_deleted += len(vhost.queues)
        for queue in list(vhost.queues.values()):
            queue.close()
        for seen in vhost.seen_keys.values():
            seen.close()
        for delayed in vhost.delayed.values():
            delayed.close()
        vhost.records.close()
        self.access.forget_vhost(name)
        self.watchers.vhost_deleted(name)
        for cleared in self.parameters.forget_vhost(name):
            self.parameters.tell(cleared)

    def _recheck(self, user: str, vhost: str) -> None:
        for connection in list(self.connections.values()):
            if connection.user_name != user or connection.vhost_name != vhost:
                continue
            if self.access.maybe_principal(user, vhost) is None:
                connection.force_close(f"access to vhost '{vhost}' was revoked for user '{user}'")
            else:
                connection.revoke_consumers()

    def _access_changed(self) -> None:
        # Cached routes embed a granted permission: make every channel look again.
        for vhost in self.vhosts.values():
            vhost.topology_version += 1

    def shut_down(self, reason: str) -> None:
        """Close every connection with 320; each is ended by its close-ok or its deadline."""
        for connection in list(self.connections.values()):
            connection.force_close(f"broker forced connection closure with reason '{reason}'")
