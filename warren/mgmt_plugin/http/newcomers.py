"""Connections over HTTP that have said nothing yet: each a watched descriptor and a slot, and no task.

A client that connects and says nothing costs a few system calls. Hundreds of them at once delay the clients after them
in the backlog of the listener by some milliseconds only.

1. A newcomer has its slot (``slots.py``) from the moment it is accepted; it may be given to another one meanwhile.
2. When it says something, it is handed over; when it says nothing in time, or hangs up, it is closed.
3. At most `ACCEPTS_PER_ROUND` are accepted and `BEGUN_PER_ROUND` handed on before everything else has its turn.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import trio

from warren.mgmt_plugin.http.slots import Slot, Slots
from warren.server.network.peer_address import origin_of
from warren.server.network.readiness import READABLE, open_selector

ACCEPTS_PER_ROUND: Final = 64
BEGUN_PER_ROUND: Final = 16


@dataclass(slots=True, eq=False)
class Newcomer:
    """An open connection to `peer`, which has `slot`."""

    sock: socket.socket
    peer: str
    slot: Slot
    deadline: float  # trio time


class Newcomers:
    """Those of one port. `begin` takes over each that has something to say, its slot included.

    `opened` is told of each that is let in, with 1, and with -1 of each that is closed here. One that says nothing for
    `patience_s` is closed, and one whose descriptor is `descriptors_below` or more at once.
    """

    def __init__(
        self,
        slots: Slots,
        patience_s: float,
        descriptors_below: int,
        opened: Callable[[int], None],
        begin: Callable[[Newcomer], None],
    ) -> None:
        self._slots = slots
        self._patience_s = patience_s
        self._descriptors_below = descriptors_below
        self._opened = opened
        self._begin = begin
        self._selector = open_selector()
        self._waiting: dict[int, Newcomer] = {}  # by descriptor, the oldest first
        self._wait = trio.CancelScope()  # ends when the oldest has waited long enough

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for newcomer in list(self._waiting.values()):
            self._close(newcomer)
        self._selector.close()

    def __len__(self) -> int:
        return len(self._waiting)

    async def accept(self, listener: socket.socket) -> None:
        """Accept from a listening socket that does not block. For ever.

        Raises:
            OSError: most likely the process has run out of descriptors.
        """
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(ACCEPTS_PER_ROUND):
                try:
                    sock, peer = listener.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    break
                self._welcome(sock, str(peer[0]))

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        fd = sock.fileno()
        slot = None
        if fd < self._descriptors_below:
            slot = self._slots.maybe_enter(origin_of(peer), partial(self._turn_away, fd))
        if slot is None:
            sock.close()
            return
        try:
            sock.setblocking(False)
            newcomer = Newcomer(sock, peer, slot, trio.current_time() + self._patience_s)
            self._waiting[fd] = newcomer
            self._selector.register(fd, READABLE)
        except BaseException:
            self._waiting.pop(fd, None)
            self._slots.leave(slot)
            sock.close()
            raise
        self._opened(1)
        if len(self._waiting) == 1:
            self._wait.deadline = newcomer.deadline

    def _turn_away(self, fd: int) -> None:
        """Close a newcomer whose slot another one gets."""
        self._selector.unregister(fd)
        self._waiting.pop(fd).sock.close()
        self._opened(-1)

    def _close(self, newcomer: Newcomer) -> None:
        self._selector.unregister(newcomer.sock.fileno())
        self._forget(newcomer)

    def _forget(self, newcomer: Newcomer) -> None:
        del self._waiting[newcomer.sock.fileno()]
        self._slots.leave(newcomer.slot)
        newcomer.sock.close()
        self._opened(-1)

    async def run(self) -> None:
        """Hand over connections that say something, close the others in time. Without end."""
        while True:
            oldest = next(iter(self._waiting.values()), None)
            with trio.CancelScope(deadline=math.inf if oldest is None else oldest.deadline) as self._wait:
                await trio.lowlevel.wait_readable(self._selector.fileno())
            self._close_overdue()
            for fd, _ in self._selector.poll(0, BEGUN_PER_ROUND):
                self._hear(self._waiting[fd])

    def _close_overdue(self) -> None:
        now = trio.current_time()
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if oldest.deadline > now:
                return
            self._close(oldest)

    def _hear(self, newcomer: Newcomer) -> None:
        try:
            hung_up = newcomer.sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return
        except OSError:
            hung_up = True
        if hung_up:
            self._close(newcomer)
            return
        fd = newcomer.sock.fileno()
        self._selector.unregister(fd)
        del self._waiting[fd]
        # Until the connection is handed over, only its slot may close it.
        newcomer.slot.close = newcomer.sock.close
        self._begin(newcomer)
