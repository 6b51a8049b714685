"""The connections that a port of HTTP may have at the same time, and which one is closed when there are too many.

    IDLE      nothing has been asked yet, or nothing since the last answer, or a head that is not complete
    ASKED     a request whose user is not known (yet)
    KNOWN     a request of a user who has logged in

1. There are `TOTAL` slots, of which an address has at most `PER_ADDRESS`. While there are too many, a newcomer takes
   the slot of an idle connection: the longest idle one of the address with the most idle connections. Without an idle
   one it takes that of a connection that has asked but not logged in. An address that has its share takes the slot from
   its own connections. A request of a known user is never closed for a newcomer.
2. When no connection can be closed, a newcomer gets one of `RESERVED` extra slots, where only the health of the broker
   is answered. The longest idle of these makes room as well, so health is answered at any number of connections.
3. All ports of HTTP together have at most as many connections as there are descriptors for HTTP, so silent connections
   take none from clients of other protocols. A quarter of them, at most `RESERVED`, is for the extra slots. While there
   are too many, the port with the most idle connections makes room, as in (1) and (2).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

TOTAL: Final = 512
PER_ADDRESS: Final = 384
RESERVED: Final = 32


class Standing(enum.IntEnum):
    """How far a connection has come, in the order in which they are closed."""

    IDLE = 0
    ASKED = 1
    KNOWN = 2


@dataclass(slots=True, eq=False)
class Slot:
    """One connection. `close` closes it when its slot is given to another one."""

    address: str
    close: Callable[[], None]
    standing: Standing = Standing.IDLE
    reserved: bool = False


class _Share:
    """The slots of one address, or the reserved ones: by standing, the oldest first."""

    def __init__(self) -> None:
        self.standing: tuple[dict[Slot, None], ...] = tuple({} for _ in Standing)

    def __len__(self) -> int:
        return sum(map(len, self.standing))


class SlotPool:
    """The slots of all ports together: `most` at the same time; None: as many as the ports have."""

    def __init__(self, most: int | None = None) -> None:
        self._reserved_most: int | None = None
        self._most: int | None = None
        if most is not None:
            self._reserved_most = min(RESERVED, most // 4)
            self._most = most - self._reserved_most
        self._count = 0
        self._reserved_count = 0
        self._ports: dict[Slots, None] = {}  # those with connections

    def count(self, port: Slots, more: int, *, reserved: bool) -> None:
        """Count connections of `port` that have come, or -1 for one that has gone."""
        if reserved:
            self._reserved_count += more
        else:
            self._count += more
        if port.is_empty():
            self._ports.pop(port, None)
        else:
            self._ports[port] = None

    def make_room(self) -> bool:
        """Tell whether there is room for one more, if necessary by closing one; not for a reserved one."""
        if self._most is None or self._count < self._most:
            return True
        for standing in (Standing.IDLE, Standing.ASKED):
            port = max(self._ports, key=lambda each: each.counts[standing])
            if port.counts[standing]:
                return port.close_oldest(standing)
        return False

    def make_reserved_room(self) -> bool:
        """Tell whether there is room for one more reserved connection, if necessary by closing one."""
        if self._reserved_most is None or self._reserved_count < self._reserved_most:
            return True
        return any(port.close_reserved() for port in list(self._ports))


class Slots:
    """The slots of one port, among those of `pool`. `counts`: of its connections by standing, the reserved ones not."""

    def __init__(self, pool: SlotPool | None = None) -> None:
        self.counts = [0] * len(Standing)
        self._pool = SlotPool() if pool is None else pool
        self._shares: dict[str, _Share] = {}
        self._reserved = _Share()
        self._count = 0  # without the reserved ones

    def is_empty(self) -> bool:
        """Tell whether it has no connection."""
        return not self._shares and not self._reserved

    def maybe_enter(self, address: str, close: Callable[[], None]) -> Slot | None:
        """Give a newcomer a slot, maybe that of another connection; None when no slot can be had at all."""
        slot = Slot(address, close)
        if not self._make_room(address):
            slot.reserved = True
            has_room = len(self._reserved) < RESERVED or self.close_reserved()
            if not has_room or not self._pool.make_reserved_room():
                return None
        self._add(slot)
        return slot

    def leave(self, slot: Slot) -> None:
        """Give a slot back; nothing happens when it was taken away."""
        share = self._reserved if slot.reserved else self._shares.get(slot.address)
        if share is None or slot not in share.standing[slot.standing]:
            return
        del share.standing[slot.standing][slot]
        if not slot.reserved:
            self._count -= 1
            self.counts[slot.standing] -= 1
            if not share:
                del self._shares[slot.address]
        self._pool.count(self, -1, reserved=slot.reserved)

    def stand(self, slot: Slot, standing: Standing) -> None:
        """Note how far a connection has come."""
        share = self._reserved if slot.reserved else self._shares.get(slot.address)
        if share is not None and slot in share.standing[slot.standing]:
            del share.standing[slot.standing][slot]
            if not slot.reserved:
                self.counts[slot.standing] -= 1
                self.counts[standing] += 1
            slot.standing = standing
            share.standing[standing][slot] = None

    def may_ask(self, slot: Slot) -> bool:
        """Tell whether more than health is answered here; a reserved slot becomes one of the others when it can."""
        if slot.reserved and self._make_room(slot.address):
            self.leave(slot)
            slot.reserved = False
            self._add(slot)
        return not slot.reserved

    def _add(self, slot: Slot) -> None:
        share = self._reserved
        if not slot.reserved:
            share = self._shares.setdefault(slot.address, _Share())
            self._count += 1
            self.counts[slot.standing] += 1
        share.standing[slot.standing][slot] = None
        self._pool.count(self, 1, reserved=slot.reserved)

    def close_oldest(self, standing: Standing) -> bool:
        """Close the oldest connection of this standing, of the address that has most of those."""
        return self._close_oldest(self._shares.values(), (standing,))

    def close_reserved(self) -> bool:
        """Close the longest idle reserved connection; False without one."""
        return self._close_oldest([self._reserved], (Standing.IDLE,))

    def _make_room(self, address: str) -> bool:
        own = self._shares.get(address)
        if own is not None and len(own) >= PER_ADDRESS:
            return self._close_oldest([own], (Standing.IDLE, Standing.ASKED))
        if self._count >= TOTAL:
            return self._close_oldest(self._shares.values(), (Standing.IDLE, Standing.ASKED))
        return self._pool.make_room()

    def _close_oldest(self, shares: Collection[_Share], standings: tuple[Standing, ...]) -> bool:
        """Close the oldest connection of the lowest of `standings`, of the share that has most of those."""
        for standing in standings:
            most = max((share.standing[standing] for share in shares), key=len)
            if most:
                oldest = next(iter(most))
                oldest.close()
                self.leave(oldest)
                return True
        return False
