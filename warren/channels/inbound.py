"""Contents that are not received as a whole yet: their memory, which connections wait in a shortage, which are closed.

1. Received bytes count, with the cost of keeping them; announced bytes are neither counted nor allocated.
2. Up to `max_bytes` nobody waits. Above, there is a shortage, and a connection that adds to it waits if it holds more
   than its share: `max_bytes` by the number of connections that hold something. A connection that holds less than that
   never waits for others, nor does one whose contents come in one read.
3. One of the connections that would wait has the floor instead, until one of its contents is whole. It loses the floor
   when it sends less than `FLOOR_MIN_BYTES` between two ticks while others wait. So every shortage completes something.
4. Above twice `max_bytes` the connection that holds most is closed, until less is held.
5. A content that does not grow for `timeout_s` ends its channel. The time in which we do not read its connection does
   not count, unless it only waits for its next turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.channels.peer import Peer
    from warren.channels.session import Session

# A connection that has the floor and sends less than this between two ticks lets others go first.
FLOOR_MIN_BYTES: Final = 65536
# At most this number of contents is given up in a tick, the rest in the next ones.
EXPIRED_PER_TICK: Final = 500


class Inbound:
    """The unfinished contents of all connections."""

    def __init__(self, max_bytes: i64, timeout_s: float) -> None:
        self.max_bytes: i64 = max_bytes
        self.timeout_s: float = timeout_s  # 0: none
        self.held_bytes: i64 = 0
        self.is_short: bool = False
        self.connections: dict[Peer, None] = {}  # that hold something
        self.waiting: dict[Peer, None] = {}  # those that are not read, the next to have the floor first
        self.floor: Peer | None = None
        self._floor_received: i64 = 0  # the bytes it had sent at the latest tick
        self._grown_s: dict[Session, float] = {}  # when each content grew, in that order
        self._ticked_s: float = -1.0  # the latest tick, -1: no tick yet
        self._now_s: float = 0.0  # the time since the first tick, as far as it counts

    def hold(self, channel: Session, size: i64) -> None:
        """Count `size` more bytes of the content that `channel` is receiving; its connection may have to wait."""
        peer = channel.peer
        if peer.inbound_bytes == 0:
            self.connections[peer] = None
        if channel.held_bytes == 0:
            channel.grown_s = self._now_s
            self._grown_s[channel] = self._now_s
        elif channel.grown_s != self._now_s:
            self._grew(channel)
        channel.held_bytes += size
        peer.inbound_bytes += size
        self.held_bytes += size
        if self.held_bytes > self.max_bytes:
            self._make_wait(peer)

    def _grew(self, channel: Session) -> None:
        """Put `channel` after all whose contents grew before now."""
        channel.grown_s = self._now_s
        del self._grown_s[channel]
        self._grown_s[channel] = self._now_s

    def share_bytes(self) -> i64:
        """Return the share that a connection may hold in a shortage without waiting."""
        holders: i64 = len(self.connections)
        return self.max_bytes // holders if holders else self.max_bytes

    def _make_wait(self, peer: Peer) -> None:
        self.is_short = True
        if peer is self.floor or peer.inbound_bytes <= self.share_bytes():
            return
        if self.floor is None:
            self._give_floor(peer)
        else:
            peer.wait_inbound()
            self.waiting[peer] = None

    def let_go(self, channel: Session) -> None:
        """Forget the bytes that `channel` holds: its content is whole, or it ends."""
        size: i64 = channel.held_bytes
        if size == 0:
            return
        channel.held_bytes = 0
        del self._grown_s[channel]
        peer = channel.peer
        peer.inbound_bytes -= size
        self.held_bytes -= size
        if peer.inbound_bytes == 0:
            del self.connections[peer]
            if self.waiting and peer in self.waiting:
                del self.waiting[peer]
                peer.resume_inbound()
        if self.is_short:
            if peer is self.floor:
                self.floor = None
            if self.held_bytes <= self.max_bytes:
                self._end_shortage()
            elif self.floor is None:
                self._pass_floor()

    def _end_shortage(self) -> None:
        self.is_short = False
        self.floor = None
        waiting = self.waiting
        self.waiting = {}
        for peer in waiting:
            peer.resume_inbound()

    def _give_floor(self, peer: Peer) -> None:
        self.floor = peer
        self._floor_received = peer.received_bytes

    def _pass_floor(self) -> None:
        for peer in self.waiting:
            del self.waiting[peer]
            self._give_floor(peer)
            peer.resume_inbound()
            return

    def maybe_largest(self) -> Peer | None:
        """Return the connection that holds most when it has to be closed to free memory, else None."""
        if self.held_bytes <= 2 * self.max_bytes:
            return None
        largest: Peer | None = None
        for peer in self.connections:
            if largest is None or peer.inbound_bytes > largest.inbound_bytes:
                largest = peer
        return largest

    def tick(self, now_s: float) -> list[Session]:
        """Advance the clock, and return channels whose contents have not grown for too long."""
        if self._ticked_s >= 0:
            # Bytes that we did not read because we were stopped or busy are read before the next tick.
            self._now_s += min(now_s - self._ticked_s, self.timeout_s / 2)
        self._ticked_s = now_s
        floor = self.floor
        if floor is not None and self.waiting:
            if floor.received_bytes - self._floor_received < FLOOR_MIN_BYTES:
                # Its connection is read again. If it sends something after all, it waits after the others.
                self._pass_floor()
            else:
                self._floor_received = floor.received_bytes
        expired: list[Session] = []
        if self.timeout_s == 0:
            return expired
        held_back: list[Session] = []
        for channel, grown_s in self._grown_s.items():
            if self._now_s - grown_s < self.timeout_s or len(expired) == EXPIRED_PER_TICK:
                break
            if channel.peer.is_held_back():
                held_back.append(channel)
            else:
                expired.append(channel)
        for channel in held_back:
            self._grew(channel)
        return expired
