"""How long a leader continues with a follower that catches up, and when one that it has given up may begin again.

A follower that catches up makes its leader keep files: those that it reads, and those that the log no longer needs.
Their space becomes free when the follower has them, or is given up:

1. when it has taken nothing for `STALLED_S`, though data waits to be sent to it: its process stands still, or its disk
   or the network hangs;
2. when the files kept for it take more than half of the space that is left: it is too slow for the load here, and a
   leader without space serves nobody.

A follower that was given up waits, connected and with its beacons answered, for `BACK_OFF_S`: doubled each time, and
the least again when it has caught up once.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from typing import Final

from warren.replication.handshake import Node

STALLED_S: Final = 30.0
BACK_OFF_S: Final = (5.0, 300.0)
PROGRESS_S: Final = 5.0  # how often the log tells how far it is
REMEMBERED_MAX: Final = 64  # nodes


class CatchingUp:
    """A leader's memory of one node that catches up, over all of its connections."""

    def __init__(self) -> None:
        self.needs_image = False  # the log here does not continue its log
        self.given_up = ""  # why, the last time
        self._back_off_s = BACK_OFF_S[0]
        self._admitted_s = float("-inf")  # given nothing before
        self._took_s = 0.0  # when it took something, or nothing waited for it
        self._taken_bytes = 0
        self._told_s = float("-inf")

    def is_to_be_told(self, now_s: float) -> bool:
        """Return whether the log should tell how far the follower is; then not again for `PROGRESS_S`."""
        if now_s - self._told_s < PROGRESS_S:
            return False
        self._told_s = now_s
        return True

    def waits_s(self, now_s: float) -> float:
        """Return how long it has to wait until it is given anything."""
        return max(0.0, self._admitted_s - now_s)

    def begin(self, taken_bytes: int, now_s: float) -> None:
        """Give it missing data from now on, over a connection that has taken this many bytes so far."""
        self._taken_bytes, self._took_s = taken_bytes, now_s

    def takes(self, taken_bytes: int, waiting_bytes: int, now_s: float) -> None:
        """Note that the connection has taken this many bytes so far, and this many wait for it."""
        if taken_bytes > self._taken_bytes or not waiting_bytes:
            self.begin(taken_bytes, now_s)

    def reason_to_give_up(self, kept_bytes: int, free_bytes: int, now_s: float) -> str:
        """Return why to give it up; empty if it may continue. `kept_bytes`: files kept for it since it began."""
        if now_s - self._took_s >= STALLED_S:
            return f"it has taken nothing for {STALLED_S:g} s"
        if 2 * kept_bytes > free_bytes:
            return (
                f"it is too slow for what is written here: {kept_bytes} bytes that the log has released are kept for "
                f"it, and {free_bytes} are free"
            )
        return ""

    def give_up(self, reason: str, now_s: float) -> float:
        """Give up this attempt; return how long to wait before the next."""
        self.given_up = reason
        waits_s = self._back_off_s
        self._admitted_s = now_s + waits_s
        self._back_off_s = min(2 * waits_s, BACK_OFF_S[1])
        return waits_s


class CatchUps:
    """A leader's memory of the nodes that catch up, by incarnation: at most `REMEMBERED_MAX`, the latest ones."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, CatchingUp] = {}

    def maybe(self, node: Node) -> CatchingUp | None:
        """Return the memory of a node, if it catches up."""
        return self._nodes.get(node.incarnation)

    def begin(self, node: Node) -> CatchingUp:
        """Return the memory of a node that begins to catch up."""
        found = self._nodes.setdefault(node.incarnation, CatchingUp())
        if len(self._nodes) > REMEMBERED_MAX:
            del self._nodes[next(iter(self._nodes))]
        return found

    def end(self, node: Node) -> None:
        """Note that a node gets messages as they are written."""
        self._nodes.pop(node.incarnation, None)
