"""The engine with a shell made of nothing: turns by hand, peers as byte buffers, a disk that is fast or held.

The fuzzer plays its peers on it; ``engine_harness`` adds users, limits and words to write tests with.
"""

from __future__ import annotations

import hashlib

from following_sql import take_durable_changes
from memory_store import MemoryStore, memory_log
from peer_frames import PASSWORD, USER

from warren.channels.broker import Broker, Limits
from warren.channels.connection import Connection
from warren.channels.origin import Origin
from warren.msgstore.log.checkpoint import snapshot
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.lanes import METADATA
from warren.vhosts.metadata import MetadataChange, PermissionPut, UserPut, VhostDelete, VhostPut
from warren.vhosts.virtual_host import VirtualHost

TURNS_MAX = 10000


class Client:
    """One peer. `received`: the bytes sent to it and not yet taken with `take`; `stalled`: it does not read."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.received = bytearray()
        self.stalled = False
        self.ended = False

    def take(self) -> bytes:
        taken = bytes(self.received)
        self.received.clear()
        return taken


# Wall time at which an engine begins, in ms since the epoch.
START_MS = 1_700_000_000_000


class Engine:
    """A broker with one vhost and one user, on a clock that moves when it is told to.

    `commits_at_once`: no reply ever waits for changes of the metadata. ``changes``: those that are durable, unless
    nobody ``follows``.
    """

    def __init__(self, *, commits_at_once: bool = False) -> None:
        self.now_s = 0.0
        self._names_given = 0
        limits = Limits()
        limits.outbox_soft_bytes = 1 << 16
        limits.outbox_hard_bytes = 1 << 18
        limits.message_max_bytes = 1 << 20
        limits.inbound_max_bytes = 1 << 22
        self.broker = Broker(limits, self._entropy, seed=1, log=memory_log())
        self.broker.log.now_ms = START_MS
        self.store = MemoryStore(self.broker)
        self.broker.log.checkpoints.take = lambda: snapshot(self.broker.log)
        self.clients: dict[int, Client] = {}
        self.follows = True
        self.changes: list[MetadataChange] = []
        self.broker.restore(VhostPut("/"))
        self.broker.restore(UserPut(USER, "", "rabbit_password_hashing_sha256"))
        self.broker.restore(PermissionPut(USER, "/", ".*", ".*", ".*"))

        if commits_at_once:
            self.broker.journal.committed_ticket = 1 << 60

    def _entropy(self) -> bytes:
        self._names_given += 1
        return hashlib.sha256(str(self._names_given).encode()).digest()[:16]

    @property
    def vhost(self) -> VirtualHost:
        return self.broker.vhosts["/"]

    @property
    def indexes(self) -> list[QueueIndex]:
        """Return the log's indexes of queues, exchanges and vhosts: all but the changes of the metadata."""
        return [index for index in self.broker.log.indexes.values() if index.lane != METADATA]

    def connect(self) -> Client:
        """Accept a connection; nothing has been received yet."""
        joined = self.broker.join(Connection, Origin("127.0.0.1:50000", "127.0.0.1:5672", "127.0.0.1"))
        assert isinstance(joined, Connection)
        client = Client(joined)
        self.clients[client.connection.key] = client
        return client

    def hang_up(self, client: Client) -> None:
        """The socket of `client` is gone."""
        if not client.ended:
            client.connection.lost()
        self.settle()
        self.clients.pop(client.connection.key, None)

    def advance(self, seconds: float) -> None:
        """Advance the time; each timer fires when it is due."""
        end_ms = int(self.broker.log.now_ms) + round(seconds * 1000)
        while self.broker.timers.next_ms() <= end_ms:
            self.broker.keep_time(max(self.broker.timers.next_ms(), int(self.broker.log.now_ms)))
            self.settle()
        self.broker.log.now_ms = end_ms
        self.now_s += seconds
        self.broker.tick(self.now_s)

    def settle(self, *, commit: bool = True) -> None:
        """Run turns until the broker is at rest; without `commit` the disk takes its time."""
        for _ in range(TURNS_MAX):
            if not self._turn(commit):
                return
        raise AssertionError(f"the broker is not at rest after {TURNS_MAX} turns")

    def _turn(self, commit: bool) -> bool:
        broker = self.broker
        busy = self._answer_logins()
        broker.end_turn()
        for defect in broker.work.take_defects():
            raise defect  # the shell would log it
        if commit:
            busy |= self.store.run()
            if self.follows and not self.store.hold and broker.journal.lane.is_behind():
                self._follow(take_durable_changes(broker, self.store))
                busy |= not broker.journal.lane.is_behind()
        busy |= self._flush()
        for peer in broker.take_ended():
            client = self.clients.get(peer.key)
            if client is not None:
                client.ended = True
        for peer in broker.take_resumed():
            busy = True
            peer.feed(b"")
        broker.notices.clear()
        return busy or broker.has_work()

    def _follow(self, changes: list[MetadataChange]) -> None:
        """Do what SQL would do with changes of the metadata that are durable now."""
        self.changes += changes

    def take_changes(self) -> list[MetadataChange]:
        """Return the changes of the metadata that became durable since the last time."""
        changes, self.changes = self.changes, []
        return changes

    def _answer_logins(self) -> bool:
        requests = self.broker.logins[:]
        self.broker.logins.clear()
        for request in requests:
            if (request.user, request.password) == (USER, PASSWORD.encode()):
                request.accept(USER)
            else:
                request.refuse()
        return bool(requests)

    def _flush(self) -> bool:
        busy = False
        failures: list[Exception] = []
        for outbox in self.broker.take_dirty():
            if outbox.failure is not None:
                failures.append(outbox.failure)
                outbox.failure = None
            client = self.clients.get(outbox.key)
            if client is not None and client.stalled:
                self.broker.shared.dirty.append(outbox)  # `touch` would not: it was not taken
                continue
            for chunk in outbox.take():
                busy = True
                if client is not None:
                    client.received += chunk
                if outbox.sent(len(chunk)) and client is not None:
                    client.connection.drained()
        for failure in failures:
            raise failure  # a defect of ours, for which the reactor would end the connection
        return busy

    def wake(self, client: Client) -> None:
        """Make a stalled client read again."""
        client.stalled = False
        self.settle()

    def start_over(self) -> None:
        """Forget every client, exchange, queue and message; the process continues."""
        for client in list(self.clients.values()):
            client.stalled = False
            self.hang_up(client)
        self.broker.set_alarm("memory", False)
        self.broker.administer(VhostDelete("/"))
        self.broker.administer(VhostPut("/"))
        self.broker.administer(PermissionPut(USER, "/", ".*", ".*", ".*"))
        # Nothing is needed of the log: have its segments unlinked.
        self.broker.log.checkpoints.want()
        self.settle()
        assert not self.indexes, "the log keeps messages of queues that are deleted"
        self.changes.clear()

    def check_idle(self) -> None:
        """Check what must hold between clients: nobody left anything behind."""
        broker = self.broker
        for queue in self.vhost.queues.values():
            queue.check_invariants()
        alive = {id(end) for ends in (self.vhost.queues, self.vhost.exchanges) for end in ends.values()}
        for binding in self.vhost.bindings():
            assert id(binding.destination) in alive, f"a binding to {binding.destination.name!r}, which is deleted"
        if not self.clients:
            assert not broker.connections
            assert not broker.shared.confirms.due
            assert broker.shared.inbound.held_bytes == 0, "bodies lost track"
            for queue in self.vhost.queues.values():
                assert queue.owner is None, f"exclusive queue {queue.name!r} outlived its connection"
                assert queue.unacked_count == 0, f"{queue.name!r} waits for acks that nobody can send"
                assert not queue.consumers
