"""Admit connections: cap those that have not logged in yet, and the rate at which new ones are accepted.

1. An address block (IPv4 /24, IPv6 /64) has at most `per_block_max` unauthenticated connections, all blocks together
   `unauthenticated_max`. Loopback counts in the total only: all local clients share one block.
2. In the long run, `accepts_per_s` connections are accepted in a second, and at most that number at once. The rest wait
   in the listen backlog, whatever their address. One more may be accepted as soon as its share of a second has passed.
3. A connection whose descriptor is `descriptors_below` or higher exceeds the limit: the rest is for files and HTTP
   (`descriptors`).
"""

from __future__ import annotations

from ipaddress import ip_network

from warren.server.descriptors import UNLIMITED
from warren.server.network.peer_address import maybe_address


def address_block(address: str) -> str:
    """Return the /24 or /64 of `address`; ``""`` for loopback, and IPv4-mapped addresses count as IPv4."""
    parsed = maybe_address(address)
    if parsed is None:
        return address
    if parsed.is_loopback:
        return ""
    return str(ip_network((int(parsed), 24 if parsed.version == 4 else 64), strict=False))


class Admission:
    """Counts unauthenticated connections."""

    def __init__(
        self,
        unauthenticated_max: int,
        per_block_max: int,
        accepts_per_s: int,
        descriptors_below: int = UNLIMITED.clients_below,
    ) -> None:
        self.unauthenticated = 0
        self.refusal = ""  # the reason for the last refusal of `enter`
        self._descriptors_below = descriptors_below
        self._unauthenticated_max = unauthenticated_max
        self._per_block_max = per_block_max
        self._accepts_per_s = accepts_per_s
        self._blocks: dict[str, int] = {}
        self._accepts_left = float(accepts_per_s)
        self._counted_to_s = 0.0

    def may_accept(self, now_s: float) -> bool:
        """Tell whether another connection may be accepted at `now_s`, of a monotonic clock."""
        passed_s = now_s - self._counted_to_s
        if passed_s > 0:
            self._counted_to_s = now_s
            self._accepts_left = min(self._accepts_left + passed_s * self._accepts_per_s, float(self._accepts_per_s))
        return self._accepts_left >= 1

    def enter(self, address: str, descriptor: int) -> bool:
        """Count a new connection; False if too many are open, or too many have not logged in."""
        self._accepts_left -= 1
        if descriptor >= self._descriptors_below:
            self.refusal = "too many descriptors are in use"
            return False
        block = address_block(address)
        count = self._blocks.get(block, 0)
        if self.unauthenticated >= self._unauthenticated_max or (block and count >= self._per_block_max):
            self.refusal = "too many logins"
            return False
        self.unauthenticated += 1
        self._blocks[block] = count + 1
        return True

    def leave(self, address: str) -> None:
        """Remove a connection from the counts, when it logs in or ends before."""
        block = address_block(address)
        self.unauthenticated -= 1
        if self._blocks[block] == 1:
            del self._blocks[block]
        else:
            self._blocks[block] -= 1
