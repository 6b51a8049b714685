"""Peers at the cluster port that have yet to prove that they know the secret.

1. There are at most `NEWCOMERS_MAX`. One more takes the place of another one: from the address that has most places,
   first one whose first message has not come, then the oldest. So silent peers, however many, do not keep others out.
2. A newcomer whose place is taken is disconnected at once; `Newcomers.enter` cancels its scope.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

NEWCOMERS_MAX: Final = 64


@dataclass(slots=True, eq=False)
class Newcomer:
    """One of them, from `address`. `scope` ends its handshake when its place is taken, or its time is over."""

    address: str
    scope: trio.CancelScope
    has_spoken: bool = False  # its first message has come
    lost_place: bool = field(default=False)


class Newcomers:
    """Those of one port."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[Newcomer, None]] = {}  # the oldest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def enter(self, address: str, timeout_s: float) -> Iterator[Newcomer]:
        """Give a newcomer a place for at most `timeout_s`; losing the place cancels the body."""
        if self._count >= NEWCOMERS_MAX:
            self._make_room()
        newcomer = Newcomer(address, trio.move_on_after(timeout_s))
        self._by_address.setdefault(address, {})[newcomer] = None
        self._count += 1
        try:
            with newcomer.scope:
                yield newcomer
        finally:
            self._leave(newcomer)

    def _make_room(self) -> None:
        crowd = max(self._by_address.values(), key=len)
        silent = (each for each in crowd if not each.has_spoken)
        loser = next(silent, None) or next(iter(crowd))
        loser.lost_place = True
        loser.scope.cancel()
        self._leave(loser)

    def _leave(self, newcomer: Newcomer) -> None:
        crowd = self._by_address.get(newcomer.address)
        if crowd is None or newcomer not in crowd:
            return
        del crowd[newcomer]
        self._count -= 1
        if not crowd:
            del self._by_address[newcomer.address]
