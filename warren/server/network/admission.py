"""Admit connections: cap those that have not logged in yet, and the rate at which new ones are accepted.

1. An address block (IPv4 /24, IPv6 /64) has at most `per_block_max` unauthenticated connections, all blocks together
   `unauthenticated_max`. Loopback counts in the total only: all local clients share one block.
2. In the long run, `accepts_per_s` connections are accepted in a second, and at most that number at once. The rest wait
   in the listen backlog, whatever their address. One more may be accepted as soon as its share of a second has passed.
3. A connection whose descriptor is `descriptors_below` or higher exceeds the limit: the rest is for files and HTTP
   (`descriptors`).
4. Peers that keep silent make room: a newcomer beyond a limit takes the place of another one, of the block that has
   most such peers. Those go first that have sent nothing for `GRACE_S`, the oldest first. Others go if the first bytes
   of their step are older than `PATIENCE_S`: clients that log in, many at the same time, do not push out each other. A
   peer that waits for us, for the check of its password above all, stays, for `STEPS_MAX` steps in all: one that sends
   byte for byte does not become younger by it.
5. A newcomer whose block has fewer connections than the largest one need not wait for these times: a peer of the
   largest block goes, if need be one that waits for us. A step of (4) and (5) takes the same time, whatever the number
   of peers.
6. A peer counts until it uses a vhost: one whose password was right, and that does not continue, is like any other.
"""

from __future__ import annotations

from ipaddress import ip_network
from math import inf
from typing import Final

from warren.server.descriptors import UNLIMITED
from warren.server.network.peer_address import maybe_address

GRACE_S: Final = 0.05  # the first bytes of a client come with its connection, and are read in the next turns
PATIENCE_S: Final = 1.0
# More than a login takes of steps that are ours: the pieces of a TLS handshake, and those of a mechanism of SASL.
STEPS_MAX: Final = 32


def address_block(address: str) -> str:
    """Return the /24 or /64 of `address`; ``""`` for loopback, and IPv4-mapped addresses count as IPv4."""
    parsed = maybe_address(address)
    if parsed is None:
        return address
    if parsed.is_loopback:
        return ""
    return str(ip_network((int(parsed), 24 if parsed.version == 4 else 64), strict=False))


class Crowds:
    """Connections by address block, in each the oldest first; the largest block is known."""

    def __init__(self) -> None:
        self._members: dict[str, dict[int, float]] = {}  # by block: descriptor -> since when
        self._blocks: dict[int, dict[str, None]] = {}  # by size
        self._largest = 0

    @property
    def largest(self) -> int:
        """The number of connections of the largest block."""
        return self._largest

    def add(self, block: str, descriptor: int, now_s: float) -> None:
        """Add a connection as the youngest of its block. One that is there stays as old as it is."""
        crowd = self._members.setdefault(block, {})
        if descriptor in crowd:
            return
        crowd[descriptor] = now_s
        self._resized(block, len(crowd) - 1, len(crowd))

    def remove(self, block: str, descriptor: int) -> None:
        """Remove a connection. Ignores others."""
        crowd = self._members.get(block)
        if crowd is None or crowd.pop(descriptor, None) is None:
            return
        if not crowd:
            del self._members[block]
        self._resized(block, len(crowd) + 1, len(crowd))

    def _resized(self, block: str, before: int, after: int) -> None:
        if before:
            blocks = self._blocks[before]
            del blocks[block]
            if not blocks:
                del self._blocks[before]
        if after:
            self._blocks.setdefault(after, {})[block] = None
        if after > self._largest or self._largest not in self._blocks:
            self._largest = after  # a size changes by one: without the largest block, this one is as large as any

    def maybe_oldest(self, block: str | None, since_s: float) -> int | None:
        """Return the oldest one of a block, None: of the largest block; None unless it is from `since_s` or before."""
        if block is None:
            if not self._largest:
                return None
            block = next(iter(self._blocks[self._largest]))
        for descriptor, found_s in self._members.get(block, {}).items():
            return descriptor if found_s <= since_s else None
        return None


class Admission:
    """Counts unauthenticated connections, which are named by their descriptors."""

    def __init__(
        self,
        unauthenticated_max: int,
        per_block_max: int,
        accepts_per_s: int,
        descriptors_below: int = UNLIMITED.clients_below,
    ) -> None:
        self.refusal = ""  # the reason for the last refusal of `enter`
        self._descriptors_below = descriptors_below
        self._unauthenticated_max = unauthenticated_max
        self._per_block_max = per_block_max
        self._accepts_per_s = accepts_per_s
        self._counts: dict[str, int] = {}  # by block
        self._block_of: dict[int, str] = {}  # by descriptor
        self._silent = Crowds()  # have sent nothing
        self._spoken = Crowds()  # have sent something; more has to come
        self._waiting = Crowds()  # wait for us
        self._steps: dict[int, int] = {}  # by descriptor: how often it had to wait for us
        self._accepts_left = float(accepts_per_s)
        self._counted_to_s = 0.0

    @property
    def unauthenticated(self) -> int:
        """The number of connections that have not logged in."""
        return len(self._block_of)

    def may_accept(self, now_s: float) -> bool:
        """Tell whether another connection may be accepted at `now_s`, of a monotonic clock."""
        passed_s = now_s - self._counted_to_s
        if passed_s > 0:
            self._counted_to_s = now_s
            self._accepts_left = min(self._accepts_left + passed_s * self._accepts_per_s, float(self._accepts_per_s))
        return self._accepts_left >= 1

    def is_high(self, descriptor: int) -> bool:
        """Tell whether a descriptor is not one of those for clients."""
        return descriptor >= self._descriptors_below

    def maybe_loser(self, address: str, descriptor: int, now_s: float) -> int | None:
        """Return the connection that has to be closed before `enter`; None if that is not needed, or impossible."""
        block = address_block(address)
        if self.is_high(descriptor) or self.unauthenticated >= self._unauthenticated_max:
            loser = self._maybe_oldest(None, now_s)
            return self._maybe_of_larger(self._counts.get(block, 0)) if loser is None else loser
        if self._is_crowded(block):
            return self._maybe_oldest(block, now_s)
        return None

    def _maybe_oldest(self, block: str | None, now_s: float) -> int | None:
        loser = self._silent.maybe_oldest(block, now_s - GRACE_S)
        return self._spoken.maybe_oldest(block, now_s - PATIENCE_S) if loser is None else loser

    def _maybe_of_larger(self, count: int) -> int | None:
        """Return the oldest peer of the largest block, if that has more connections than `count` and the newcomer."""
        for crowds in (self._silent, self._spoken, self._waiting):
            if crowds.largest > count + 1:
                return crowds.maybe_oldest(None, inf)
        return None

    def _is_crowded(self, block: str) -> bool:
        return block != "" and self._counts.get(block, 0) >= self._per_block_max

    def enter(self, address: str, descriptor: int, now_s: float) -> bool:
        """Count a new connection; False if too many are open, or too many have not logged in."""
        self._accepts_left -= 1
        if self.is_high(descriptor):
            self.refusal = "too many descriptors are in use"
            return False
        block = address_block(address)
        if self.unauthenticated >= self._unauthenticated_max or self._is_crowded(block):
            self.refusal = "too many logins"
            return False
        self._counts[block] = self._counts.get(block, 0) + 1
        self._block_of[descriptor] = block
        self._silent.add(block, descriptor, now_s)
        return True

    def heard(self, descriptor: int, now_s: float, *, has_to_wait: bool) -> None:
        """Note that a connection has sent something. `has_to_wait`: the next step is ours, so it is not silent."""
        block = self._block_of[descriptor]
        self._silent.remove(block, descriptor)
        steps = self._steps.get(descriptor, 0)
        if has_to_wait and steps < STEPS_MAX:
            self._steps[descriptor] = steps + 1
            self._spoken.remove(block, descriptor)
            self._waiting.add(block, descriptor, now_s)
        else:
            self._waiting.remove(block, descriptor)
            self._spoken.add(block, descriptor, now_s)

    def leave(self, descriptor: int) -> None:
        """Remove a connection from the counts, when it has logged in (6) or ends before."""
        block = self._block_of.pop(descriptor)
        for crowds in (self._silent, self._spoken, self._waiting):
            crowds.remove(block, descriptor)
        self._steps.pop(descriptor, None)
        if self._counts[block] == 1:
            del self._counts[block]
        else:
            self._counts[block] -= 1
