"""A view of one engine: its parts by kind of object, and the facts about it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from warren.channels.broker import Broker
from warren.engine_view.bindings import Bindings
from warren.engine_view.browsing import Browsing
from warren.engine_view.claims import Claims
from warren.engine_view.connections import Connections
from warren.engine_view.consumers import Consumers
from warren.engine_view.damage import Damage
from warren.engine_view.exchanges import Exchanges
from warren.engine_view.held import Held
from warren.engine_view.mqtt import MqttSessions, RetainedTopics
from warren.engine_view.offsets import Offsets
from warren.engine_view.parameters import Parameters, Policies
from warren.engine_view.permissions import Permissions
from warren.engine_view.queues import Queues
from warren.engine_view.records import Records
from warren.engine_view.routing import Routing
from warren.engine_view.search import Names
from warren.engine_view.streams import Streams
from warren.engine_view.super_streams import SuperStreams
from warren.engine_view.topology import TopologyListener, Watcher
from warren.engine_view.totals import Totals, TotalsWalk
from warren.engine_view.vhosts import Vhosts
from warren.queues.counters import MessageCounts, Sums


class ChurnRow(msgspec.Struct, frozen=True):
    """How many things came and went since the start; see `queues.counters.Churn`."""

    connections_opened: int
    connections_closed: int
    received_bytes: int
    sent_bytes: int
    channels_opened: int
    channels_closed: int
    queues_declared: int
    queues_created: int
    queues_deleted: int
    dropped_qos_0: int
    logins_accepted: int
    logins_refused: int
    unrouted: int


class InboundRow(msgspec.Struct, frozen=True):
    """Contents that were received in part, the limit of their bytes, and the connections that wait for their turn."""

    held_bytes: int
    max_bytes: int
    is_short: bool
    waiting: int


class LogRow(msgspec.Struct, frozen=True):
    """The message log; positions are LSNs."""

    resident_bytes: int
    memory_bytes: int
    next_lsn: int
    written_lsn: int
    durable_lsn: int
    checkpoint_lsn: int
    epoch: int


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment of the message log."""

    number: int
    base_lsn: int
    bytes: int
    live_bytes: int
    live_records: int
    state: str


class EngineView:
    """What the users of one engine see of it. `settle` ends the turn of a command."""

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._settle = settle
        self.vhosts = Vhosts(broker.vhosts)
        self.queues = Queues(broker, settle)
        self.bindings = Bindings(broker.vhosts)
        self.consumers = Consumers(broker, settle)
        self.exchanges = Exchanges(broker.vhosts)
        self.connections = Connections(broker, settle)
        self.parameters = Parameters(broker.parameters)
        self.policies = Policies(broker.vhosts)
        self.names = Names(broker)
        self.permissions = Permissions(broker.access)
        self.records = Records(broker.vhosts)
        # Messages: looked at, held, read by offset, claimed, routed, retained, damaged.
        self.browsing = Browsing(broker, settle)
        self.held = Held(settle)
        self.offsets = Offsets(settle)
        self.claims = Claims(broker, settle)
        self.streams = Streams(broker, settle)
        self.super_streams = SuperStreams(broker.vhosts)
        self.routing = Routing(broker.vhosts)
        self.mqtt_sessions = MqttSessions(broker, settle)
        self.retained = RetainedTopics(broker)
        self.damage = Damage(broker.log, settle)
        self._totals = TotalsWalk(broker)

    # --- the node ---------------------------------------------------------------------------------------------------

    def node_name(self) -> str:
        """Return the name of the node."""
        return self._broker.node

    def cluster_name(self) -> str:
        """Return the name of the broker for clients and other brokers."""
        return self._broker.cluster_name()

    def store_id(self) -> bytes:
        """Return the id of the message store. Do not show it: publishers could write frames with it."""
        return self._broker.log.store_id

    def now_s(self) -> float:
        """Return the time of the current turn, by the monotonic clock."""
        return self._broker.now_s

    def connections_max(self) -> int:
        """Return how many connections are accepted."""
        return int(self._broker.limits.connections_max)

    def open_connections(self) -> int:
        """Return how many connections are open."""
        return self._broker.open_connections

    def has_alarm(self, resource: str) -> bool:
        """Tell whether ``memory``, ``disk`` or ``replicas`` are short."""
        return self._broker.has_alarm(resource)

    def publishers_wait(self) -> bool:
        """Tell whether publishers wait: there is an alarm, or the disk is behind."""
        return bool(self._broker.shared.stopped) or self.is_congested()

    def is_congested(self) -> bool:
        """Tell whether the disk is behind."""
        return self._broker.log.is_congested()

    def is_restoring(self) -> bool:
        """Tell whether data that publishes depend on must still be read from disk."""
        return self._broker.is_restoring()

    def last_ticket(self) -> int:
        """Return the ticket of the last change of the metadata."""
        return self._broker.journal.last_ticket

    def message_bytes_max(self) -> int:
        """Return how large a body may be."""
        return int(self._broker.limits.message_max_bytes)

    def inbound(self) -> InboundRow:
        """Return what was received in part."""
        inbound = self._broker.shared.inbound
        return InboundRow(int(inbound.held_bytes), int(inbound.max_bytes), bool(inbound.is_short), len(inbound.waiting))

    def waiting_bytes(self) -> int:
        """Return how many bytes were written for clients and not yet taken. Looks at every connection."""
        return sum(int(each.outbox.waiting_bytes()) for each in self._broker.connections.values())

    # --- counters ---------------------------------------------------------------------------------------------------

    def churn(self) -> ChurnRow:
        """Return how many things came and went."""
        return msgspec.convert(self._broker.churn, ChurnRow, from_attributes=True)

    def counts(self, vhost: str | None = None) -> MessageCounts:
        """Return the message counts in `vhost`, None: everywhere. Looks at every channel.

        Raises:
            KeyError: there is no such vhost.
        """
        return self._broker.totals(vhost)

    def counts_by_vhost(self) -> dict[str, MessageCounts]:
        """Return the counts of each vhost, with one look at the channels."""
        return self._broker.sums().by_vhost

    def sums(self) -> Sums:
        """Return the counts of all vhosts and connections, with one look at each connection."""
        return self._broker.sums()

    def size_buckets(self, counts: MessageCounts) -> list[int]:
        """Return how many bodies had at most each of `SIZE_BOUNDS`, and the total, of the counts of everything."""
        return self._broker.size_buckets(counts)

    def deaths(self) -> dict[tuple[bool, str], dict[str, int]]:
        """Return dead letters by reason, for queues by whether they are quorum queues, and their strategy."""
        reasons = ("expired", "maxlen", "rejected", "delivery_limit", "confirmed")
        counts = self._broker.deaths.counts.items()
        return {key: {reason: int(getattr(each, reason)) for reason in reasons} for key, each in counts}

    def walk(self) -> Iterator[Totals | None]:
        """Yield None after each piece of the walk over all objects, and their sums at last. One walk at a time."""
        return self._totals.walk()

    # --- the message log --------------------------------------------------------------------------------------------

    def log(self) -> LogRow:
        """Return the message log."""
        log = self._broker.log
        return LogRow(
            int(log.resident_bytes),
            int(log.memory_bytes),
            int(log.next_lsn),
            int(log.written_lsn),
            int(log.durable_lsn),
            int(log.checkpoints.lsn),
            int(log.epoch),
        )

    def life_id(self) -> bytes:
        """Return the id of this life of the broker."""
        return self._broker.log.life_id

    def segments(self) -> list[SegmentRow]:
        """Return the segments of the message log."""
        return [
            SegmentRow(
                int(segment.number),
                int(segment.base_lsn),
                int(segment.capacity),
                int(segment.live_bytes),
                int(segment.live_refs + segment.droppable_refs),
                "compacting" if segment.spent else "sealed" if segment.sealed else "open",
            )
            for segment in self._broker.log.segments.segments
        ]

    def watch(self, listener: TopologyListener) -> None:
        """Notify `listener` of changes in all vhosts from now on."""
        self._broker.watchers.add(Watcher(listener))

    # --- commands ---------------------------------------------------------------------------------------------------

    def trace(self, vhost: str, *, on: bool) -> None:
        """Switch the tracing of a vhost on or off.

        Raises:
            ValueError: there is no such vhost.
        """
        self._broker.trace(vhost, on)
        self._settle()
