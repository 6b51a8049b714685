"""Decide whose password is hashed next, when more checks wait than may be hashed at a time.

    share     gets one turn after each other share; waiting checks in it have names, which are served in turn
    suspect   a share that has had too many failures; determined when its turn comes

1. Every waiting check is served: a share has its turn after each other share has had one, and in a share each name
   after each other name.
2. At most one turn of a suspect is under way, so others always find a place. While others wait as well, a suspect has
   at least every fourth turn.
3. Giving out a turn takes the same time however many checks wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

Share = tuple[str, str]

_TURNS_OF_OTHERS: Final = 3  # before one of a suspect


@dataclass(slots=True, eq=False)
class _Waiter:
    share: Share
    name: str
    is_suspect: bool = False
    served: trio.Event = field(default_factory=trio.Event)


_Shares = OrderedDict[Share, OrderedDict[str, deque[_Waiter]]]


class HashTurns:
    """Hands out turns, at most `most` at a time. `is_suspect` tells the current state of a share."""

    def __init__(self, most: int, is_suspect: Callable[[Share], bool]) -> None:
        self._left = most
        self._is_suspect = is_suspect
        self._others: _Shares = OrderedDict()
        self._suspects: _Shares = OrderedDict()
        self._suspect_at_work = False
        self._turns_of_others = 0  # since the last one of a suspect

    @asynccontextmanager
    async def turn(self, share: Share, name: str) -> AsyncIterator[bool]:
        """Wait for a turn and hold it; the value tells whether it is a suspect's turn."""
        waiter = _Waiter(share, name)
        shares = self._suspects if share in self._suspects else self._others
        shares.setdefault(share, OrderedDict()).setdefault(name, deque()).append(waiter)
        self._hand_out()
        try:
            await waiter.served.wait()
            yield waiter.is_suspect
        finally:
            if waiter.served.is_set():
                self._left += 1
                self._suspect_at_work &= not waiter.is_suspect
            else:
                self._withdraw(waiter)
            self._hand_out()

    def _hand_out(self) -> None:
        while self._left and (waiter := self._maybe_next()) is not None:
            self._left -= 1
            self._suspect_at_work |= waiter.is_suspect
            self._turns_of_others = 0 if waiter.is_suspect else self._turns_of_others + 1
            waiter.served.set()

    def _maybe_next(self) -> _Waiter | None:
        suspects_may = bool(self._suspects) and not self._suspect_at_work
        if suspects_may and self._turns_of_others >= _TURNS_OF_OTHERS:
            return self._take(self._suspects, is_suspect=True)
        while self._others:
            share = next(iter(self._others))
            if not self._is_suspect(share):
                return self._take(self._others, is_suspect=False)
            self._suspects[share] = self._others.pop(share)
        suspects_may = bool(self._suspects) and not self._suspect_at_work
        return self._take(self._suspects, is_suspect=True) if suspects_may else None

    def _take(self, shares: _Shares, *, is_suspect: bool) -> _Waiter:
        share, names = shares.popitem(last=False)
        name, waiting = names.popitem(last=False)
        waiter = waiting.popleft()
        waiter.is_suspect = is_suspect
        if waiting:
            names[name] = waiting
        if names:
            self._others[share] = names  # its state is determined when its turn comes
        return waiter

    def _withdraw(self, waiter: _Waiter) -> None:
        shares = self._suspects if waiter.share in self._suspects else self._others
        names = shares[waiter.share]
        waiting = names[waiter.name]
        waiting.remove(waiter)
        if not waiting:
            del names[waiter.name]
        if not names:
            del shares[waiter.share]
