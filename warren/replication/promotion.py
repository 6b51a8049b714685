"""Whether a follower may be promoted without a warning of loss, and the epoch that it leads then.

1. A standby is promoted without `accept_loss` if it was in sync in this life, its link ended while it was, and that
   was less than `SURE_S` ago. Otherwise its leader may have confirmed more since: promoting it means to accept that.
2. The time when it was last in sync survives restarts (``last_contact``): an administrator is told of it.
3. The epoch of a node that is promoted by hand is one that its leader does not take by starting again meanwhile, nor
   another follower that is promoted, too. Asked again, it is the same one. An elected node has that of its election.

No I/O and no clock: `now_s` is a monotonic time, `wall_s` the time of day, both in seconds.
"""

from __future__ import annotations

import secrets
from typing import Final

from warren.replication.last_contact import Contact
from warren.replication.replica_store import EPOCH_STRIDE

SURE_S: Final = 60.0  # of silence, in which loss need not be accepted
MAY_LACK: Final = "Confirmed messages may be missing here"
# A leader that starts again takes the next epoch, and a follower that is promoted another one than that, and than
# another follower that is promoted, too. Epochs have 32 bits.
EPOCHS_APART: Final = 1 << 20


class Promotion:
    """What one follower knows for its promotion; `contact`: when it was last in sync, as its directory says."""

    def __init__(self, contact: Contact | None) -> None:
        self.contact = contact  # None: it is not known when this node was in sync
        self.is_of_this_life = False  # that contact
        self.is_done = False
        self._heard_s = 0.0  # when the contact of this life was
        self._epoch = 0

    def note(self, contact: Contact, heard_s: float) -> None:
        """Note that this node was in sync."""
        self.contact = contact
        self.is_of_this_life = True
        self._heard_s = heard_s

    def silent_s(self, now_s: float, wall_s: float) -> float | None:
        """Return how long ago this node was in sync; None when that is not known."""
        if self.contact is None:
            return None
        if self.is_of_this_life:
            return round(now_s - self._heard_s, 3)
        return round(max(0.0, wall_s - self.contact.time_ms / 1000), 3)

    def doubt(self, *, has_all: bool, now_s: float, wall_s: float) -> str:
        """Return why confirmed messages may be missing here; empty when nothing speaks for that.

        `has_all`: the directory had all that its leader had, as far as the directory itself knows.
        """
        silent_s = self.silent_s(now_s, wall_s)
        last = self._last(silent_s)
        if not has_all:
            return f"{MAY_LACK}: this follower was not in sync with its leader; {last}."
        if not self.is_of_this_life:
            return (
                f"{MAY_LACK}: this follower has not been in sync with its leader since it was started; {last}. "
                "What the leader confirmed after that is not here."
            )
        if silent_s is None or silent_s >= SURE_S:
            return (
                f"{MAY_LACK}: {last}. What the leader confirmed after that, alone or with another follower, "
                "is not here."
            )
        return ""

    def elect(self, epoch: int) -> None:
        """Lead an epoch that this node was elected for."""
        self._epoch = epoch
        self.is_done = True

    def epoch(self, known: int) -> int:
        """Return the epoch of this node as a leader; `known` is the greatest one that its directory knows."""
        if not self._epoch:
            self._epoch = known + EPOCH_STRIDE + secrets.randbelow(EPOCHS_APART)
        return self._epoch

    def _last(self, silent_s: float | None) -> str:
        """Return when this node was in sync, and with which leader."""
        contact = self.contact
        if contact is None:
            return "it is not known when it was"
        behind = contact.committed_lsn - contact.synced_lsn
        lacked = f", and lacked {behind} bytes of what was committed then" if behind > 0 else ""
        before = "" if self.is_of_this_life else ", before this start"
        return (
            f"it was in sync with {contact.leader} up to LSN {contact.synced_lsn} at {contact.time_text()}, "
            f"{silent_s:.0f} s ago{before}{lacked}"
        )
