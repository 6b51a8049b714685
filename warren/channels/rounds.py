"""The order in which connections look at the time in a tick: there may be very many, and hardly any has work due.

1. A connection in a hurry looks in every tick: until it is open, while it ends, and when something may be due soon
   (`Peer.is_patient`).
2. All others look once in a round of `PATIENCE_S`, a share of them in each tick. Their order is the same in each round,
   but connections that come and go move the others: each looks again within two rounds. A tick after a longer pause is
   for all of them.

Connections are known by their keys: the key of a closed one is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.channels.peer import Peer

PATIENCE_S: Final = 2.0
# Half of it, the time after which a heartbeat is sent, is reached at the latest two rounds before the whole has passed.
PATIENT_HEARTBEAT_S: Final = 8


def is_long(interval_s: int) -> bool:
    """Tell whether heartbeats are so far apart that a look once in `PATIENCE_S` will do; 0: without heartbeats."""
    return interval_s == 0 or interval_s >= PATIENT_HEARTBEAT_S


class Rounds:
    """The connections in a hurry, and the order of the others."""

    def __init__(self) -> None:
        self._hurried: dict[int, None] = {}
        self._left: list[int] = []  # of this round, those too that are gone
        self._size: i64 = 0  # the number it began with
        self._ticked_s: float = 0.0

    def hurry(self, key: int) -> None:
        """Check the time of the connection of that key in every tick, until it is patient again."""
        self._hurried[key] = None

    def tick(self, now_s: float, connections: dict[int, Peer]) -> None:
        """Check the time of the connections whose turn it is."""
        for key in list(self._hurried):
            peer = connections.get(key)
            if peer is None or self._look(peer, now_s):
                self._hurried.pop(key, None)
        passed_s = now_s - self._ticked_s
        self._ticked_s = now_s
        if not self._left or passed_s >= PATIENCE_S:
            self._left = list(connections)
            self._size = len(self._left)
        # A share of the number at the beginning of the round: so it ends in time even if connections leave meanwhile.
        turns: i64 = int(min(passed_s / PATIENCE_S, 1.0) * int(self._size)) + 1
        while turns > 0 and self._left:
            turns -= 1
            key = self._left.pop()
            peer = connections.get(key)
            if peer is not None and not self._look(peer, now_s):
                self._hurried[key] = None

    def _look(self, peer: Peer, now_s: float) -> bool:
        """Have `peer` look at the time; tell whether it is patient. One that meets a defect of ours is ended."""
        try:
            peer.tick(now_s)
        except Exception as error:
            peer.outbox.failed(error)
        return peer.is_patient()
