"""Two things that a leader renews in the record: the life of each node in sync, and the floor.

The floor says how far the log was committed.

When a node starts, both show whether its directory is a restored copy (``own_directory.py``).

1. The life of a node is recorded as soon as the node has everything. The floor is recorded every `renew_s` only, since
   etcd keeps each revision until it is compacted.
2. A node of an older version cannot read a record with lives. So none is recorded before all assigned nodes have told
   their lives in this epoch, unless the record has lives already.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from warren.cluster.record import Record, Refusal, Replica, renewed
from warren.cluster.timers import Timers


class Renewal:
    """The lives and the floor of the epoch that `me` leads; `life` is its own, None without a store."""

    def __init__(self, me: Replica, epoch: int, life: str | None, now_s: float, timers: Timers) -> None:
        self._me = me
        self._epoch = epoch
        self._life = life
        self._timers = timers
        self._lives: dict[Replica, str] = {}  # of those that have everything
        self._committed_lsn = 0
        self._renews_at_s = now_s  # not earlier

    @property
    def renews_at_s(self) -> float:
        """When the floor may be recorded again."""
        return self._renews_at_s

    def told(self, replica: Replica, life: str) -> None:
        """Note the life of a replica that has everything."""
        self._lives[replica] = life

    def committed(self, lsn: int) -> None:
        """Note how far the log is committed."""
        self._committed_lsn = max(lsn, self._committed_lsn)

    def life_of(self, record: Record, replica: Replica) -> str | None:
        """Return the life with which a replica joins the set; None without one."""
        return self._lives.get(replica) if self._is_understood(record) else None

    def wanted(self, now_s: float, record: Record) -> Record | None:
        """Return the record with the current lives, and with the floor if that is due; None if it has these."""
        if self._life is None or not self._committed_lsn or not self._is_understood(record):
            return None
        lives = {replica.node: life for replica, life in self._lives.items() if replica in record.in_sync}
        lives[self._me.node] = self._life
        floor = (self._epoch, self._committed_lsn) if now_s >= self._renews_at_s else record.floor
        change = renewed(record, self._me, self._epoch, lives, floor)
        if isinstance(change, Refusal) or change == record:
            return None
        if change.floor != record.floor:
            self._renews_at_s = now_s + self._timers.renew_s
        return change

    def _is_understood(self, record: Record) -> bool:
        """Tell whether all nodes that must read the record understand lives in it."""
        known = {replica.node for replica in self._lives} | {self._me.node}
        return self._life is not None and (bool(record.lives) or record.assigned <= known)
