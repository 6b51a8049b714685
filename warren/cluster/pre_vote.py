"""A pre-vote, as in Raft: before a node stands for election, it asks the others how far their logs go.

1. A node stands only if it reaches as many others as a commit needs (`reaches`). A node that reaches etcd alone could
   lead, but confirm and serve nothing, and would keep others from leading.
2. It never stands while another node has committed frames that it does not have (`ahead`): its directory is older than
   it was. Positions are compared by the epoch of the last frame first, then by LSN.
3. The node whose log goes furthest stands first (`rank`), the others later. A node learns from the next frame that one
   is committed, so what only the longest log has may be confirmed. All in-sync nodes have it, unless a disk has lost
   synced data. So a node gives way (`is_outrun`) while one with a longer log answers, and stands only if that one has
   not stood for `Timers.yield_s`: it may not reach etcd.

Answers are not promises: the compare-and-swap of the record decides. No I/O and no clock: times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from warren.cluster.events import Position, Standing
from warren.cluster.record import Record, Replica

ASKING_S: Final = 4.0  # long enough for an answer over a slow link; after this time all answers are too old


class Ahead(NamedTuple):
    """A node that has committed frames which this one does not have."""

    replica: Replica
    committed: Position


class PreVote:
    """The questions of number `number`, which `nodes` were asked at `asked_s`, and the answers so far."""

    def __init__(self, number: int, nodes: frozenset[str], asked_s: float) -> None:
        self.number = number
        self.asked_s = asked_s
        self.is_over = not nodes
        self.reached: set[str] = set()
        self.told: dict[Replica, Standing] = {}

    def take(self, node: str, replica: Replica | None, standing: Standing | None) -> None:
        """Note an answer. A node of an older version does not report its log."""
        self.reached.add(node)
        if replica is not None and standing is not None:
            self.told[replica] = standing

    def is_ready(self, now_s: float, patience_s: float) -> bool:
        """Tell whether to decide by these answers: no more will come, or `patience_s` are over."""
        return self.is_over or now_s >= self.asked_s + patience_s

    def reaches(self, record: Record) -> bool:
        """Tell whether enough other nodes answer to confirm anything with them."""
        return len(self.reached) >= record.least - 1

    def ahead(self, position: Position) -> Ahead | None:
        """Return the node whose committed frames go furthest, if they go beyond `position`."""
        found = [Ahead(replica, told.committed) for replica, told in self.told.items() if told.committed > position]
        return max(found, key=lambda ahead: (ahead.committed, ahead.replica), default=None)

    def rank(self, record: Record, me: Replica, position: Position) -> int:
        """Return how many other nodes of the set should stand before this node: those with longer logs."""
        theirs = [
            (told.position, other) for other, told in self.told.items() if other != me and record.may_stand(other)
        ]
        return sum(their > position or (their == position and other < me) for their, other in theirs)

    def is_outrun(self, record: Record, me: Replica, position: Position) -> bool:
        """Tell whether another node of the set that may stand has a longer log."""
        return any(
            told.position > position for other, told in self.told.items() if other != me and record.may_stand(other)
        )

    def answering(self) -> frozenset[Replica]:
        """Return the replicas that have answered."""
        return frozenset(self.told)


def positions(told: Mapping[Replica, Standing]) -> str:
    """Return the answers of the nodes about their logs, for people: the furthest first."""
    furthest = sorted(told.items(), key=lambda item: (item[1].position, item[0]), reverse=True)
    return ", ".join(f"{replica.node} has {standing.position}" for replica, standing in furthest)
