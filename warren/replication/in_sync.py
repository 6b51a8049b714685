"""The in-sync set of a leader: the nodes that must have a commit before it is reported, and how they join and leave.

    behind    connected and catching up; nobody waits for it
    joining   has what is committed, and commits wait for it from now on. It takes note that it has caught up
    noted     it has taken note; the set with it is being recorded
    member    recorded. It has every message that was ever confirmed
    leaving   recorded, and not heard from: commits wait for it until the set without it is recorded

1. A commit is complete when the leader has it, and all nodes in the recorded set, in the set that is being recorded,
   and among the joining ones (`has`). So whatever becomes of the record, every node in it has every complete commit.
2. A node is not recorded before it has everything that is committed, and has taken note of that.
3. The recorded set never gets smaller than `min_in_sync`. If fewer members answer, commits wait instead.
4. A member leaves when its connection has ended, when nothing was heard from it for `SUSPECT_S`, or when a commit
   waits for it and it makes no progress for that long. A node that returns must catch up first. The sooner it has to
   leave again, the later it is let in (`BACK_OFF_S`): each time costs everybody a wait.
5. A node is a name and an incarnation of its directory: a member that returns with another directory is not a member.

No I/O and no clock: times are arguments, in seconds. The shell writes what `proposal` returns, durably and until that
succeeds, and then calls `recorded`.
"""

from __future__ import annotations

from typing import Final

from warren.replication.handshake import Node

SUSPECT_S: Final = 1.0
# How long a node stays out that had to leave: doubled each time, and the least again after some time as a member.
BACK_OFF_S: Final = (1.0, 60.0)
SETTLED_S: Final = 60.0

_NEVER_S: Final = float("-inf")


class Replica:
    """A leader's knowledge of a node that is, or was, connected. LSNs are those that it has acknowledged."""

    def __init__(self, node: Node, now_s: float) -> None:
        self.node = node
        self.is_connected = False
        self.is_live = False  # it gets messages as they are written
        self.is_joining = False
        self.life = ""  # of its process, as it has told
        self.is_noted = False  # it has taken note, on this connection, that it has caught up
        self.is_awaited = False  # a member when the leader began, which has not been here since
        self.received_lsn = 0
        self.synced_lsn = 0
        self.heard_s = now_s
        self.progress_s = now_s
        self.current_s = now_s  # when it last had all that was committed
        self.joined_s = _NEVER_S
        self.admitted_s = _NEVER_S  # not let in again before
        self.back_off_s = BACK_OFF_S[0]

    def has(self, lsn: int, *, synced: bool) -> bool:
        """Tell whether it has the log up to `lsn`: `synced`, or written."""
        return (self.synced_lsn if synced else self.received_lsn) >= lsn

    def away(self) -> None:
        """Mark the replica as not connected, or as beginning to connect."""
        self.is_connected = self.is_live = self.is_joining = self.is_noted = False


class InSyncSet:
    """The set of the leader `me`. `recorded`: the members on disk; `me` is always one."""

    def __init__(self, me: Node, recorded: frozenset[Node], min_in_sync: int, now_s: float) -> None:
        self.me = me
        self.members = recorded | {me}
        self.min_in_sync = min_in_sync
        self.committed_lsn = 0
        self._replicas = {node: Replica(node, now_s) for node in self.members if node != me}
        for replica in self._replicas.values():
            replica.is_awaited = True
        self._proposed: frozenset[Node] | None = None
        self._wanted: tuple[int, bool] | None = None  # the commit that waits: its end, and whether it needs a sync
        self._wanted_s = now_s  # since when
        self._required: tuple[Replica, ...] = ()
        self._gather_required()

    # --- events -----------------------------------------------------------------------------------------------------

    def connected(self, node: Node, now_s: float) -> Replica:
        """Note that a node has connected, and proved its identity; return its entry, with nothing acknowledged.

        Another connection of it that has not ended yet is over: its acknowledgements say nothing of what the node has
        now.
        """
        before = self._replicas.get(node)
        if before is not None and before.is_connected:
            self.disconnected(before, now_s)
        replica = self._replicas.pop(node, None) or Replica(node, now_s)
        self._replicas[node] = replica  # after all that connected before
        replica.away()
        replica.is_connected = True
        replica.is_awaited = False
        replica.received_lsn = replica.synced_lsn = 0
        replica.heard_s = replica.progress_s = now_s
        self._gather_required()
        return replica

    def disconnected(self, replica: Replica, now_s: float) -> None:
        """Forget a replica whose connection has ended, unless it is a member."""
        if replica.is_joining and replica.node not in self.members:
            self._leave(replica, now_s)
        replica.away()
        self._gather_required()

    def acknowledged(self, replica: Replica, received_lsn: int, synced_lsn: int, now_s: float) -> None:
        """Note up to where a replica has the log."""
        replica.heard_s = now_s
        if received_lsn > replica.received_lsn or synced_lsn > replica.synced_lsn:
            replica.progress_s = now_s
            replica.received_lsn = max(received_lsn, replica.received_lsn)
            replica.synced_lsn = max(synced_lsn, replica.synced_lsn)
        if replica.synced_lsn >= self.committed_lsn:
            replica.current_s = now_s

    def takes(self, replica: Replica, now_s: float) -> None:
        """Note that it reads: it is there, and makes progress, even if a large frame is not complete yet."""
        replica.heard_s = replica.progress_s = now_s

    def has(self, lsn: int, *, synced: bool, now_s: float) -> bool:
        """Tell whether the commit that ends at `lsn`, and which the leader has, is complete; if not, it waits."""
        if self.is_enough() and all(replica.has(lsn, synced=synced) for replica in self._required):
            self._wanted = None
            if synced:
                self.committed_lsn = max(self.committed_lsn, lsn)
            return True
        if self._wanted != (lsn, synced):
            self._wanted = (lsn, synced)
            self._wanted_s = now_s
        return False

    def lacks(self, lsn: int, *, synced: bool) -> bool:
        """Tell whether a required replica has not acknowledged the log up to `lsn`. Changes nothing; any thread."""
        return not all(replica.has(lsn, synced=synced) for replica in self._required)

    # --- joining and leaving ----------------------------------------------------------------------------------------

    def joiners(self, now_s: float) -> list[Replica]:
        """Return replicas that begin to join now, or are back: each must take note that it has caught up (`noted`)."""
        found = [replica for replica in self._replicas.values() if self._may_join(replica, now_s)]
        for replica in found:
            replica.is_joining = True
        if found:
            self._gather_required()
        return found

    def noted(self, replica: Replica) -> None:
        """Mark a replica as caught up: it has taken note of it."""
        replica.is_noted = True
        if replica.node in self.members:
            replica.is_joining = False

    def stragglers(self, now_s: float) -> list[Replica]:
        """Return the replicas that hold up commits and are not yet members: the caller disconnects them."""
        return [
            replica
            for replica in self._replicas.values()
            if replica.is_joining and replica.node not in self.members and not self.answers(replica, now_s)
        ]

    def proposal(self, now_s: float) -> frozenset[Node] | None:
        """Return a set to record instead of `members`; None when that is right, or a set is being recorded."""
        if self._proposed is not None:
            return None
        joining = (replica for replica in self._replicas.values() if replica.is_joining and replica.is_noted)
        proposed = self.members | {replica.node for replica in joining if self.answers(replica, now_s)}
        gone = [
            replica
            for replica in self._replicas.values()
            if replica.node in self.members and not self.answers(replica, now_s)
        ]
        # Those first that have been silent longest.
        for replica in sorted(gone, key=lambda replica: replica.heard_s):
            if len(proposed) > self.min_in_sync:
                proposed -= {replica.node}
        if proposed == self.members:
            return None
        self._proposed = proposed
        self._gather_required()
        return proposed

    def recorded(self, members: frozenset[Node], now_s: float) -> list[Replica]:
        """Note that `members` are on disk. Return the replicas that have left."""
        assert members == self._proposed
        for node in members - self.members:
            self._replicas[node].joined_s = now_s
        left = [self._replicas[node] for node in self.members - members]
        for replica in left:
            self._leave(replica, now_s)
        self.members = members
        self._proposed = None
        for node in members - {self.me}:
            self._replicas[node].is_joining = False
        self._gather_required()
        return left

    def _may_join(self, replica: Replica, now_s: float) -> bool:
        return (
            replica.is_live
            and not replica.is_joining
            and not replica.is_noted
            and replica.synced_lsn >= self.committed_lsn
            and (replica.node in self.members or now_s >= replica.admitted_s)
            and self.answers(replica, now_s)
        )

    def _leave(self, replica: Replica, now_s: float) -> None:
        least, most = BACK_OFF_S
        if now_s - replica.joined_s >= SETTLED_S:
            replica.back_off_s = least
        replica.admitted_s = now_s + replica.back_off_s
        replica.back_off_s = min(2 * replica.back_off_s, most)

    def _gather_required(self) -> None:
        nodes = self.members | (self._proposed or frozenset())
        self._required = tuple(
            replica for replica in self._replicas.values() if replica.node in nodes or replica.is_joining
        )

    # --- status -----------------------------------------------------------------------------------------------------

    def is_enough(self) -> bool:
        """Tell whether the recorded set is as large as it must be (3)."""
        return len(self.members) >= self.min_in_sync

    def is_short(self, now_s: float) -> bool:
        """Tell whether commits wait because too few members answer to leave any of them out."""
        answering = [
            replica
            for replica in self._replicas.values()
            if replica.node in self.members and self.answers(replica, now_s)
        ]
        return 1 + len(answering) < self.min_in_sync

    def answers(self, replica: Replica, now_s: float) -> bool:
        """Tell whether it is connected, heard from, and getting on if a commit waits for it (4)."""
        if not replica.is_connected:
            return replica.is_awaited and now_s - replica.heard_s < SUSPECT_S
        if now_s - replica.heard_s >= SUSPECT_S:
            return False
        if self._wanted is None or replica.has(self._wanted[0], synced=self._wanted[1]):
            return True
        return now_s - max(replica.progress_s, self._wanted_s) < SUSPECT_S

    def replicas(self) -> list[Replica]:
        """Return the nodes that are known, by name: of one name the connected one, else the one that came last.

        A node with an empty new directory is not the previous one, though commits may still wait for that.
        """
        shown = {replica.node.name: replica for replica in sorted(self._replicas.values(), key=_is_connected)}
        return [shown[name] for name in sorted(shown)]

    def forget_strangers(self) -> None:
        """Forget nodes that are neither connected nor recorded, when there are many."""
        if len(self._replicas) > 64:
            self._replicas = {
                node: replica
                for node, replica in self._replicas.items()
                if replica.is_connected or node in self.members or node in (self._proposed or ())
            }


def _is_connected(replica: Replica) -> bool:
    return replica.is_connected
