"""Tell which sockets are ready: one interface for epoll, kqueue and `poll`, and a way to end a wait.

A selector has the methods of `select.epoll`, and on Linux it is one: no layer stands between the caller and the system.

1. Masks are those of epoll, wherever they come from. Asking for `READ` includes the peer's end.
2. `fileno` is readable as soon as a socket is ready that is registered then or later, so a trio task can wait for a
   whole selector. With `poll`, which does not have a descriptor, a thread of its own waits meanwhile; call `fileno`
   again for each wait.
3. A descriptor is unregistered before it is closed: only epoll forgets closed ones by itself.
4. Events that were not asked for may be told or not: epoll and `poll` always tell of errors and lost connections,
   kqueue tells nothing of a descriptor without a requested event.

The first kind that the system has is used, unless the variable WARREN_SELECTOR names another: epoll, kqueue or poll.
With `poll` the broker runs as on a Unix that has nothing better, so that this can be tried on Linux.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from functools import partial
from threading import Condition, Thread
from typing import Any, Final, Protocol

from warren.server.start_errors import StartError

VARIABLE: Final = "WARREN_SELECTOR"
EPOLL: Final = "epoll"
KQUEUE: Final = "kqueue"
POLL: Final = "poll"

READABLE: Final = 0x1
WRITE: Final = 0x4
ERROR: Final = 0x8
GONE: Final = 0x10
# The peer has ended its half. Requested alone it reports an end, but no data.
ENDED: Final = 0x2000
READ: Final = READABLE | ENDED

SYSTEM: Any = select  # the module that has kqueue
EVENTS_MAX: Final = 1023  # for one answer, as in select.epoll


class Selector(Protocol):
    """The part of `select.epoll` that is used. `register`, `modify` and `unregister` raise OSError as there."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Watch a descriptor."""

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Watch it for other events."""

    def unregister(self, fd: int, /) -> None:
        """Stop watching it."""

    def poll(self, timeout: float, maxevents: int = EVENTS_MAX, /) -> list[tuple[int, int]]:
        """Return the ready descriptors with their events; wait at most `timeout` seconds for the first one."""

    def fileno(self) -> int:
        """Return a descriptor to wait for (2)."""

    def close(self) -> None:
        """Stop watching everything."""


class Wakeup(Protocol):
    """Makes `fd` readable, from any thread. Functions that are called often are the system's own."""

    fd: int
    ring: Callable[[], object]  # BlockingIOError: `fd` is readable already
    heard: Callable[[], object]  # ends that; called only when `fd` is readable

    def close(self) -> None:
        """Release the descriptors."""


def kinds() -> list[str]:
    """Return the selectors of this system, the best first."""
    return [kind for kind in (EPOLL, KQUEUE, POLL) if hasattr(select, kind)]


def chosen_kind() -> str:
    """Return the kind to use.

    Raises:
        StartError: this system does not have the kind that WARREN_SELECTOR names.
    """
    found = kinds()
    named = os.environ.get(VARIABLE, "")
    if named and named not in found:
        raise StartError(f"{VARIABLE}={named}: this system has {', '.join(found)}")
    return named or found[0]


def open_selector() -> Selector:
    """Return a new selector.

    Raises:
        StartError: as `chosen_kind`.
    """
    kind = chosen_kind()
    if kind == EPOLL:
        return select.epoll()
    return KqueueSelector() if kind == KQUEUE else PollSelector()


def open_wakeup() -> Wakeup:
    """Return the wakeup that fits the selector.

    Raises:
        StartError: as `chosen_kind`.
    """
    return EventFd() if chosen_kind() == EPOLL else Pipe()


class EventFd:
    """A wakeup that only Linux has: one descriptor, which reads as a number."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.ring: Callable[[], object] = partial(os.eventfd_write, self.fd, 1)
        self.heard: Callable[[], object] = partial(os.eventfd_read, self.fd)

    def close(self) -> None:
        os.close(self.fd)


class Pipe:
    """A wakeup that every Unix has."""

    def __init__(self) -> None:
        self.fd, self._written = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._written, False)
        self.ring: Callable[[], object] = partial(os.write, self._written, b"\0")
        self.heard: Callable[[], object] = partial(os.read, self.fd, 1 << 16)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._written)


class KqueueSelector:
    """kqueue, of macOS and the BSDs. Each descriptor has up to two filters there."""

    def __init__(self) -> None:
        self._system = SYSTEM
        self._kqueue = SYSTEM.kqueue()
        self._interests: dict[int, int] = {}

    def register(self, fd: int, eventmask: int, /) -> None:
        if fd in self._interests:
            raise FileExistsError(fd)
        self._change(fd, 0, eventmask)
        self._interests[fd] = eventmask

    def modify(self, fd: int, eventmask: int, /) -> None:
        self._change(fd, self._interest(fd), eventmask)
        self._interests[fd] = eventmask

    def unregister(self, fd: int, /) -> None:
        self._change(fd, self._interest(fd), 0)
        del self._interests[fd]

    def _interest(self, fd: int) -> int:
        if fd not in self._interests:
            raise FileNotFoundError(fd)
        return self._interests[fd]

    def _change(self, fd: int, old: int, new: int) -> None:
        system = self._system
        changes = []
        if old & READ != new & READ:
            # An existing filter cannot be changed from telling a state to telling changes.
            if old & READ:
                changes.append(system.kevent(fd, system.KQ_FILTER_READ, system.KQ_EV_DELETE))
            if new & READ:
                flags = system.KQ_EV_ADD if new & READABLE else system.KQ_EV_ADD | system.KQ_EV_CLEAR
                changes.append(system.kevent(fd, system.KQ_FILTER_READ, flags))
        if old & WRITE != new & WRITE:
            flags = system.KQ_EV_ADD if new & WRITE else system.KQ_EV_DELETE
            changes.append(system.kevent(fd, system.KQ_FILTER_WRITE, flags))
        if changes:
            self._kqueue.control(changes, 0, 0)

    def poll(self, timeout: float, maxevents: int = EVENTS_MAX, /) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        system = self._system
        for event in self._kqueue.control(None, maxevents, timeout):
            fd = event.ident
            mask = found.get(fd, 0)
            if event.filter == system.KQ_FILTER_WRITE:
                mask |= WRITE
            elif event.flags & system.KQ_EV_EOF:
                mask |= READ & self._interests[fd]
            else:
                mask |= READABLE & self._interests[fd]
            if mask:
                found[fd] = mask
        return list(found.items())

    def fileno(self) -> int:
        return int(self._kqueue.fileno())

    def close(self) -> None:
        self._kqueue.close()


class PollSelector:
    """`poll`, which every Unix has, with a thread that waits while a task does."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._interests: dict[int, int] = {}
        self._ready = Pipe()  # readable: the thread has seen something
        self._changed = Pipe()  # readable: the thread should look again
        self._state = Condition()
        self._thread: Thread | None = None
        self._is_awaited = False  # the thread should wait
        self._is_closed = False

    def register(self, fd: int, eventmask: int, /) -> None:
        if fd in self._interests:
            raise FileExistsError(fd)
        self._watch(fd, eventmask)

    def modify(self, fd: int, eventmask: int, /) -> None:
        if fd not in self._interests:
            raise FileNotFoundError(fd)
        self._watch(fd, eventmask)

    def _watch(self, fd: int, eventmask: int) -> None:
        with self._state:
            self._interests[fd] = eventmask
            self._poll.register(fd, offered(eventmask))
            self._look_anew()

    def unregister(self, fd: int, /) -> None:
        with self._state:
            if fd not in self._interests:
                raise FileNotFoundError(fd)
            del self._interests[fd]
            self._poll.unregister(fd)
            self._look_anew()

    def _look_anew(self) -> None:
        if self._is_awaited:
            ring(self._changed)

    def poll(self, timeout: float, maxevents: int = EVENTS_MAX, /) -> list[tuple[int, int]]:
        try:
            self._ready.heard()
        except BlockingIOError:
            pass  # no thread waited, or nothing was seen
        return self._poll.poll(timeout * 1000)[:maxevents]

    def fileno(self) -> int:
        with self._state:
            if not self._is_awaited and not self._is_closed:
                self._is_awaited = True
                self._state.notify()
                if self._thread is None:
                    self._thread = Thread(target=self._wait, name="poll", daemon=True)
                    self._thread.start()
        return self._ready.fd

    def _wait(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._is_awaited or self._is_closed)
                if self._is_closed:
                    return
                # A `poll` object of its own: this is outside of the lock, and the other one is asked meanwhile.
                poll = select.poll()
                for fd, eventmask in self._interests.items():
                    poll.register(fd, offered(eventmask))
            poll.register(self._changed.fd, select.POLLIN)
            ready = [fd for fd, _ in poll.poll()]
            with self._state:
                if self._changed.fd in ready:
                    self._changed.heard()
                    ready.remove(self._changed.fd)
                if ready:
                    self._is_awaited = False
                    ring(self._ready)

    def close(self) -> None:
        with self._state:
            self._is_closed = True
            self._state.notify()
            ring(self._changed)
        if self._thread is not None:
            self._thread.join()
        self._ready.close()
        self._changed.close()


def ring(wakeup: Wakeup) -> None:
    """Make its descriptor readable, unless it is already."""
    try:
        wakeup.ring()
    except BlockingIOError:
        pass


def offered(eventmask: int) -> int:
    """Return the part of a mask that `poll` knows here: only Linux reports the peer's end by itself."""
    return eventmask if getattr(select, "POLLRDHUP", 0) == ENDED else eventmask & ~ENDED
