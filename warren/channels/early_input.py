"""Input from peers before their login: incomplete first packets.

1. Up to `FREE_BYTES` of a peer are not counted: each may have so many.
2. All others together hold at most `EARLY_MAX_BYTES`. Above, the peer that began first is dropped: one that sends its
   packet without a pause is done long before that is its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.channels.peer import Peer

FREE_BYTES: Final = 8192
EARLY_MAX_BYTES: Final = 16 << 20
REASON: Final = "too much is held for packets received in part before a login"


class EarlyInput:
    """The early input of all connections."""

    def __init__(self) -> None:
        self.held_bytes: i64 = 0
        self._peers: dict[Peer, int] = {}  # the bytes of each, the oldest first

    def hold(self, peer: Peer, size: i64) -> None:
        """Note that `peer` holds `size` now; others, or it, may be dropped for that."""
        if size <= FREE_BYTES:
            return
        before = self._peers.get(peer, 0)
        self._peers[peer] = int(size)
        self.held_bytes += size - before
        while self.held_bytes > EARLY_MAX_BYTES:
            next(iter(self._peers)).drop(REASON)

    def let_go(self, peer: Peer) -> None:
        """Forget the input of `peer`: its packet is whole, or it ends."""
        if self._peers:
            self.held_bytes -= self._peers.pop(peer, 0)
