"""A number of places that parties share in turns: one with many calls that wait delays those of another by one each."""

from __future__ import annotations

import trio


class SharedLimiter:
    """The places. Within a party the first comes first."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._lines: dict[str, dict[trio.Event, None]] = {}  # by party; the next first, in both

    def of(self, party: str) -> PartyLimiter:
        """Return a limiter for calls of `party`."""
        return PartyLimiter(self, party)

    async def take(self, party: str) -> None:
        """Wait until `party` has a place. A call that is cancelled has taken none."""
        if self._free:
            self._free -= 1
            return
        turn = trio.Event()
        self._lines.setdefault(party, {})[turn] = None
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():  # it was cancelled first, and is told of that now
                self.give_back()
            else:
                line = self._lines[party]
                del line[turn]
                if not line:
                    del self._lines[party]
            raise

    def give_back(self) -> None:
        """Free a place, for the next call that waits."""
        if not self._lines:
            self._free += 1
            return
        party = next(iter(self._lines))
        line = self._lines.pop(party)
        turn = next(iter(line))
        del line[turn]
        if line:
            self._lines[party] = line  # after all others
        turn.set()


class PartyLimiter:
    """The methods of `trio.CapacityLimiter` that `trio.to_thread.run_sync` calls."""

    def __init__(self, shared: SharedLimiter, party: str) -> None:
        self._shared = shared
        self._party = party

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for a place."""
        await self._shared.take(self._party)

    def release_on_behalf_of(self, borrower: object) -> None:
        """Free the place."""
        self._shared.give_back()
