"""Permits for long work: how much runs at the same time, how long a request waits, and how a lost peer is found.

1. Long work before an answer, which ends by itself, has permits of its own. So have long answers, which end when their
   peers have read them. So a peer that does not read its answer does not block short requests.
2. An account, which is a user or an address, has `PER_ACCOUNT` of `TOTAL` permits. A request without a permit stands in
   line for `LINE_S`; at most `LINE_PER_ACCOUNT` of an account do. Permits go to the first in line whose account has
   room.
3. If a peer hangs up, or shuts down its side, during long work for it, that is found within `LOOK_S`. Only Linux tells
   when a side is shut down.
"""

from __future__ import annotations

import select
from dataclasses import dataclass, field
from typing import Final

import trio

from warren.server.network.readiness import ENDED, offered

TOTAL: Final = 32
PER_ACCOUNT: Final = 8
LINE_PER_ACCOUNT: Final = 32
LINE_S: Final = 10.0
LOOK_S: Final = 0.5


@dataclass(slots=True, eq=False)
class _Waiter:
    account: str
    admitted: trio.Event = field(default_factory=trio.Event)


class Permits:
    """The permits of one kind of long work."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._total = 0
        self._line: dict[_Waiter, None] = {}  # in the order in which they came

    async def maybe_acquire(self, account: str) -> bool:
        """Acquire a permit, maybe after a while; False when this account gets no permit."""
        if self._has_room(account):
            self._take(account)
            return True
        if sum(waiter.account == account for waiter in self._line) >= LINE_PER_ACCOUNT:
            return False
        waiter = _Waiter(account)
        self._line[waiter] = None
        try:
            with trio.move_on_after(LINE_S):
                await waiter.admitted.wait()
        except trio.Cancelled:
            if waiter.admitted.is_set():
                self.release(account)
            raise
        finally:
            self._line.pop(waiter, None)
        return waiter.admitted.is_set()

    def release(self, account: str) -> None:
        """Give a permit back."""
        self._total -= 1
        left = self._taken.pop(account) - 1
        if left:
            self._taken[account] = left
        for waiter in self._line:
            if self._has_room(waiter.account):
                del self._line[waiter]
                self._take(waiter.account)
                waiter.admitted.set()
                return

    def _has_room(self, account: str) -> bool:
        return self._total < TOTAL and self._taken.get(account, 0) < PER_ACCOUNT

    def _take(self, account: str) -> None:
        self._total += 1
        self._taken[account] = self._taken.get(account, 0) + 1


class Departures:
    """Sockets for whose peers something long is made: its scope is cancelled when the peer leaves."""

    def __init__(self) -> None:
        self._scopes: dict[int, trio.CancelScope] = {}
        self._poll = select.poll()
        self._some = trio.Event()

    def watch(self, descriptor: int, scope: trio.CancelScope) -> None:
        """Cancel `scope` when the peer leaves, until `forget`."""
        self._scopes[descriptor] = scope
        self._poll.register(descriptor, offered(ENDED))
        self._some.set()

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor: its long work has ended."""
        if self._scopes.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    async def run(self) -> None:
        """Watch the descriptors without end."""
        while True:
            await self._some.wait()
            await trio.sleep(LOOK_S)
            # Not the trio task's own waiting: that may be for the same socket, and one task at a time can.
            for descriptor, _ in self._poll.poll(0):
                self._scopes[descriptor].cancel()
            if not self._scopes:
                self._some = trio.Event()
