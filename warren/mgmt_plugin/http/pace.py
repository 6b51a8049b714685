"""Work over HTTP in pieces: what all requests together may do before everything else has its turn again.

1. A round is one pass of trio's loop over what is ready; the reactor has its turn in each. In one round at most
   `TURNS_PER_ROUND` requests begin or go on with long work, in the order in which they asked.
2. A piece is about `SLICE_S` of work. Work that is shorter never waits, unless many requests begin at the same time.
"""

from __future__ import annotations

import time
from typing import Final

import trio

SLICE_S: Final = 0.001
TURNS_PER_ROUND: Final = 4


class Pace:
    """Hands out the turns of one run of trio's loop."""

    def __init__(self) -> None:
        self._waiting = trio.lowlevel.ParkingLot()
        self._taken = 0  # turns of this round
        self._round_ends = False  # a call of `_next_round` is under way

    async def begin(self) -> None:
        """Take a turn of this round if there is one left, else wait for one."""
        if self._taken >= TURNS_PER_ROUND or self._waiting:
            await self.next_turn()
            return
        self._taken += 1
        self._end_round()

    async def next_turn(self) -> None:
        """Wait for a turn of a later round."""
        self._end_round()
        await self._waiting.park()

    def _end_round(self) -> None:
        if not self._round_ends:
            self._round_ends = True
            trio.lowlevel.current_trio_token().run_sync_soon(self._next_round)

    def _next_round(self) -> None:
        self._round_ends = False
        self._taken = len(self._waiting.unpark(count=TURNS_PER_ROUND))
        if self._taken:
            self._end_round()


_PACE: Final[trio.lowlevel.RunVar[Pace]] = trio.lowlevel.RunVar("pace of HTTP")


def pace() -> Pace:
    """Return what hands out turns in this run of the loop."""
    try:
        return _PACE.get()
    except LookupError:
        made = Pace()
        _PACE.set(made)
        return made


class Breather:
    """Gives way whenever about a slice has passed."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def breathe(self) -> None:
        """Call this between small pieces of work."""
        if time.perf_counter() - self._began_s > SLICE_S:
            await pace().next_turn()
            self._began_s = time.perf_counter()
