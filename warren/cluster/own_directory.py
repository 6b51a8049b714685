"""A member's own data directory: how far its log goes, which lives it has had, and whether it is trusted.

A life is a random id, made at each start of a process on a directory. For each node in sync the record has the life
that its directory had when it was last known to have everything (``record.py`` (7)).

1. A directory is a restored copy if it does not know its recorded life, or if its log ended before the recorded floor
   at the start. Floors that are recorded later prove nothing: the log may still be catching up.
2. A node with a restored directory never leads. It leaves the set if enough replicas remain. It is trusted again when
   the record has its current life, or has it in sync without any life.
3. A restored directory forgets its earlier lives at once, durably. Otherwise it would know the recorded life if it were
   started again while it has caught up by half. A trusted one keeps the recorded life and all later ones, since a
   change of the record that is under way may name any of these.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from warren.cluster.actions import Actions
from warren.cluster.events import KeepLives, Position
from warren.cluster.record import Record, Replica
from warren.cluster.timers import Timers


class OwnDirectory:
    """The directory of `me`: its log went to `position` at the start; the last one of `lives` is the current one."""

    def __init__(
        self, me: Replica, position: Position, lives: tuple[str, ...], timers: Timers, actions: Actions
    ) -> None:
        self.position = position  # how far the log is synced, as a follower
        self.trouble = ""  # why it is not trusted
        self.disk_since_s: float | None = None  # since when the disk has worked on its oldest job
        self._me = me
        self._began_at = position
        self._lives = lives
        self._is_life_known = False  # whether it was compared with the record before
        self._timers = timers
        self._actions = actions

    @property
    def life(self) -> str | None:
        """The current life; None for a directory without a store."""
        return self._lives[-1] if self._lives else None

    def is_stuck(self, now_s: float) -> bool:
        """Tell whether the disk has worked on one thing for too long."""
        return self.disk_since_s is not None and now_s - self.disk_since_s >= self._timers.disk_s

    def compare(self, record: Record) -> None:
        """Check at the start whether the directory is the one on record; later, whether it has caught up."""
        life = record.life_of(self._me)
        is_start, self._is_life_known = not self._is_life_known, True
        if life is None or not self._lives:
            if self._me in record.in_sync:
                self.trouble = ""  # the record has no lives yet, and the leader has added it: it has everything
        elif life == self._lives[-1]:
            self.trouble = ""
            self._keep(self._lives[-1:])
        elif self.trouble:
            return
        elif life not in self._lives or (is_start and self._began_at < record.floor):
            self.trouble = (
                f"the data directory of this node is older than it was: its log ended at {self._began_at}, and it had "
                f"all up to {Position(*record.floor)} at least. It was restored from a copy, or its disk lost synced "
                "data. This node cannot lead until another one has sent it the missing data"
            )
            self._keep(self._lives[-1:])
            self._actions.report(self.trouble)
        else:
            self._keep(self._lives[self._lives.index(life) :])

    def _keep(self, lives: tuple[str, ...]) -> None:
        if lives != self._lives:
            self._lives = lives
            self._actions.add(KeepLives(lives))
