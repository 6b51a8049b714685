"""The in-sync set of an elected leader: a `Member` decides which replicas join and leave, and etcd has it on record.

    behind    connected and catching up; nobody waits for it
    joining   the member requires its acks; it takes note that it has caught up
    noted     it has taken note; the member hears of its acks, and puts it on record when it has all required messages
    member    recorded. It has every message that was ever confirmed

1. A commit is complete when all replicas have it whose acks the member requires (`require`). Before the first `require`
   no commit is complete.
2. The member hears that a replica is near before it requires its acks, and hears of the acks once the replica has taken
   note: by then commits wait for it, and its directory says that nothing is missing. So it is not recorded before that.
3. A replica whose acks are no longer required is disconnected if it has taken note, or is about to: its directory must
   say again that something may be missing.
4. The member's knowledge of the log's end is never older than the moment at which it requires a replica's acks
   (`tell_progress` comes before `joiners`): a replica that joins must have everything that was confirmed without it.

The proposals of `InSyncSet` are not used: only the member decides.
"""

from __future__ import annotations

from collections.abc import Callable

from warren.cluster.events import (
    Appended,
    BeaconAnswered,
    CommittedUpTo,
    DiskWaits,
    EpochRefused,
    Event,
    Heard,
    LifeTold,
    LinkLost,
    NearlyCaughtUp,
    Objected,
    Position,
    Recovered,
    Synced,
)
from warren.cluster.record import Record
from warren.cluster.record import Replica as RecordedReplica
from warren.replication.handshake import Node
from warren.replication.in_sync import InSyncSet, Replica


def recorded(node: Node) -> RecordedReplica:
    """Return a node as the record names it."""
    return RecordedReplica(node.name, node.incarnation.hex())


class ElectedSet(InSyncSet):
    """The set of the leader `me`. `tell` reports an event to the member."""

    def __init__(self, me: Node, tell: Callable[[Event], None], now_s: float) -> None:
        self._tell = tell
        self._nodes: frozenset[Node] | None = None  # whose acks are required, this node among them
        self._has_begun = False
        super().__init__(me, frozenset(), 1, now_s)

    # --- from the member --------------------------------------------------------------------------------------------

    def require(self, replicas: frozenset[RecordedReplica], now_s: float) -> None:
        """Set the replicas for which commits wait from now on."""
        nodes = frozenset(node_of(replica) for replica in replicas)
        self._nodes = nodes
        for node in nodes - {self.me}:
            if node not in self._replicas:
                replica = self._replicas[node] = Replica(node, now_s)
                replica.is_awaited = True
        self._gather_required()

    def learn(self, record: Record, now_s: float) -> None:
        """Note the current record."""
        members = frozenset(node_of(replica) for replica in record.in_sync)
        for node in members - self.members - {self.me}:
            if node in self._replicas:
                self._replicas[node].joined_s = now_s
        self.members = members
        self.min_in_sync = record.least

    # --- events -----------------------------------------------------------------------------------------------------

    def disconnected(self, replica: Replica, now_s: float) -> None:
        super().disconnected(replica, now_s)
        self._tell(LinkLost(recorded(replica.node)))

    def answered(self, replica: Replica, epoch: int, beacon: int) -> None:
        """Report that a replica has answered a beacon."""
        self._tell(BeaconAnswered(recorded(replica.node), epoch, beacon))

    def takes(self, replica: Replica, now_s: float) -> None:
        super().takes(replica, now_s)
        self._tell(Heard(recorded(replica.node)))

    def refused(self, replica: Replica, epoch: int) -> None:
        """Report that a replica follows the leader of another epoch."""
        self._tell(EpochRefused(recorded(replica.node), epoch))

    def objected(self, replica: Replica, committed: Position) -> None:
        """Note that it has committed frames, up to there, that this leader lacks."""
        self._tell(Objected(recorded(replica.node), committed))

    def tell_progress(self, end_lsn: int, commit_began_s: float | None, written_lsn: int | None = None) -> None:
        """Report the progress of all replicas to the member, several times in the time after which one is suspected.

        `commit_began_s`: since when this node's own disk has worked on a commit, by the member's clock. `written_lsn`:
        how far it has come.
        """
        self._tell(DiskWaits(commit_began_s))
        for replica in self._required:
            if replica.is_connected and (replica.is_noted or replica.node in self.members):
                self._tell(Synced(recorded(replica.node), replica.synced_lsn))
        if written_lsn is not None:
            self._tell(Synced(recorded(self.me), written_lsn))
        if self.committed_lsn:
            self._tell(CommittedUpTo(self.committed_lsn))
        self._tell(Appended(end_lsn))

    def has(self, lsn: int, *, synced: bool, now_s: float) -> bool:
        if self._nodes is None or not super().has(lsn, synced=synced, now_s=now_s):
            return False
        if synced and not self._has_begun:
            # The first commit says that the epoch has begun.
            self._has_begun = True
            self._tell(Recovered())
        return True

    # --- joining and leaving ----------------------------------------------------------------------------------------

    def joiners(self, now_s: float) -> list[Replica]:
        found = []
        for replica in list(self._replicas.values()):
            if not self._may_join(replica, now_s):
                continue
            if not self._is_required(replica):
                self._tell(NearlyCaughtUp(recorded(replica.node)))
            if self._is_required(replica):
                replica.is_joining = True
                found.append(replica)
        return found

    def noted(self, replica: Replica) -> None:
        replica.is_noted = True
        replica.is_joining = False
        if replica.life:
            self._tell(LifeTold(recorded(replica.node), replica.life))

    def stragglers(self, now_s: float) -> list[Replica]:
        return [
            replica
            for replica in self._replicas.values()
            if (replica.is_joining or replica.is_noted) and not self._is_required(replica)
        ]

    def proposal(self, now_s: float) -> None:
        return None

    def is_enough(self) -> bool:
        return True  # the record never has fewer, and the member requires all that are in it

    def _is_required(self, replica: Replica) -> bool:
        return self._nodes is not None and replica.node in self._nodes

    def _gather_required(self) -> None:
        nodes = self._nodes or frozenset()
        self._required = tuple(replica for replica in self._replicas.values() if replica.node in nodes)


def node_of(replica: RecordedReplica) -> Node:
    """Return the node that a record names."""
    try:
        return Node(replica.node, bytes.fromhex(replica.incarnation))
    except ValueError:
        return Node(replica.node, replica.incarnation.encode())  # not connected: its acks never come
