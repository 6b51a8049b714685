"""Wait for descriptors and for wake-ups, and remember those that are ready until a turn handles them.

1. `ready` has the events that the selector told and no turn has handled, in their order: each event is told only once.
   With `GO_ON` it has sockets for which nothing came, but whose connections have more to handle. It is told once, too.
2. A descriptor that is no longer watched is not ready: the next socket may get its number.
3. `wake` ends a wait at once, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.server.network.readiness import READABLE, open_selector, open_wakeup

# Not from the selector: the connection has more to handle, or its pause is over.
GO_ON: Final = 1 << 40


class Poller:
    """What a reactor waits for. `on_wake` runs in the turn after a `wake`."""

    def __init__(self, on_wake: Callable[[], None]) -> None:
        self.selector = open_selector()
        self.ready: dict[int, int] = {}  # fd -> events
        self._on_wake = on_wake
        self._wakeup = open_wakeup()
        self._wake_fd = self._wakeup.fd
        self._ring = self._wakeup.ring
        self._heard = self._wakeup.heard
        self._callbacks: dict[int, Callable[[], None]] = {}  # of the descriptors that others watch
        self._is_closed = False
        self.selector.register(self._wake_fd, READABLE)

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` in the turns in which there is something to read, before the engine ends the turn.

        `on_readable` must not raise.
        """
        self._callbacks[fd] = on_readable
        if not self._is_closed:
            self.selector.register(fd, READABLE)

    def unwatch(self, fd: int) -> None:
        """Stop watching; call this before the descriptor is closed. After `close` links end, too."""
        del self._callbacks[fd]
        if not self._is_closed:
            self.forget(fd)

    def forget(self, fd: int) -> None:
        """Stop watching a socket."""
        self.ready.pop(fd, None)
        self.selector.unregister(fd)

    def requeue(self, fd: int) -> None:
        """Schedule a connection for the next turn though nothing arrives for it."""
        self.ready[fd] = self.ready.get(fd, 0) | GO_ON

    def leave(self, events: list[tuple[int, int]]) -> None:
        """Keep events that a turn has not reached. They come first in the next one."""
        ready = dict(events)
        for fd, mask in self.ready.items():  # became ready during the turn
            ready[fd] = ready.get(fd, 0) | mask
        self.ready = ready

    def take(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Take each socket that is ready once, then `events`."""
        ready = self.ready
        self.ready = {}
        for fd, mask in events:
            ready[fd] = ready.get(fd, 0) | mask
        if ready.pop(self._wake_fd, 0):
            self.happened(self._wake_fd)
        return list(ready.items())

    def happened(self, fd: int) -> bool:
        """Handle an event of a descriptor that is not a socket of a client; False: it is not watched for others."""
        if fd == self._wake_fd:
            self._heard()
            self._on_wake()
            return True
        on_readable = self._callbacks.get(fd)
        if on_readable is None:
            return False
        on_readable()
        return True

    def wake(self) -> None:
        """Wake the poller for another turn: the only method that other threads may call."""
        try:
            self._ring()
        except BlockingIOError:
            pass  # it is awake already

    def close(self) -> None:
        """Release the descriptors."""
        self._is_closed = True
        self.selector.close()
        self._wakeup.close()
