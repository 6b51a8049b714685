"""kqueue for a system that has none: enough of it to run everything that waits with `KqueueSelector`.

Like the real one it has up to two filters for a descriptor, tells of a state until it is over, or with KQ_EV_CLEAR once
for each time that something comes, refuses to delete what is not there, and can itself be waited for.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from warren.server.network import readiness

KQUEUE_ON_EPOLL = "kqueue on epoll"

KQ_FILTER_READ = -1
KQ_FILTER_WRITE = -2
KQ_EV_ADD = 0x1
KQ_EV_DELETE = 0x2
KQ_EV_CLEAR = 0x20
KQ_EV_EOF = 0x8000

_ENDS = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class kevent(NamedTuple):
    ident: int
    filter: int
    flags: int


class kqueue:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._filters: dict[int, dict[int, int]] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()

    def control(self, changes: Iterable[kevent] | None, events_max: int, timeout: float | None = None) -> list[kevent]:
        for change in changes or ():
            self._change(change)
        if events_max == 0:
            return []
        events = []
        for fd, mask in self._epoll.poll(timeout, events_max):
            filters = self._filters[fd]
            if KQ_FILTER_READ in filters and mask & ~select.EPOLLOUT:
                events.append(kevent(fd, KQ_FILTER_READ, KQ_EV_EOF if mask & _ENDS else 0))
            if KQ_FILTER_WRITE in filters and mask & ~select.EPOLLIN & ~select.EPOLLRDHUP:
                events.append(kevent(fd, KQ_FILTER_WRITE, KQ_EV_EOF if mask & _ENDS & ~select.EPOLLRDHUP else 0))
        return events

    def _change(self, change: kevent) -> None:
        filters = self._filters.setdefault(change.ident, {})
        was_watched = bool(filters)
        if change.flags & KQ_EV_ADD:
            assert filters.get(change.filter, change.flags) == change.flags, "they cannot be changed"
            filters[change.filter] = change.flags
        elif change.filter not in filters:
            raise OSError(errno.ENOENT, "no such filter")
        else:
            del filters[change.filter]
        mask = 0
        if KQ_FILTER_READ in filters:
            mask |= select.EPOLLIN | select.EPOLLRDHUP
            if filters[KQ_FILTER_READ] & KQ_EV_CLEAR:
                mask |= select.EPOLLET
        if KQ_FILTER_WRITE in filters:
            mask |= select.EPOLLOUT
        if not filters:
            del self._filters[change.ident]
            self._epoll.unregister(change.ident)
        elif was_watched:
            self._epoll.modify(change.ident, mask)
        else:
            self._epoll.register(change.ident, mask)


class System:
    """Stands in for the module `select`."""

    kqueue = kqueue
    kevent = kevent
    KQ_FILTER_READ = KQ_FILTER_READ
    KQ_FILTER_WRITE = KQ_FILTER_WRITE
    KQ_EV_ADD = KQ_EV_ADD
    KQ_EV_DELETE = KQ_EV_DELETE
    KQ_EV_CLEAR = KQ_EV_CLEAR
    KQ_EV_EOF = KQ_EV_EOF


def choose(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use that selector for everything that is made from now on."""
    if kind == KQUEUE_ON_EPOLL:
        monkeypatch.setattr(readiness, "SYSTEM", System)
        monkeypatch.setattr(readiness, "kinds", lambda: [readiness.KQUEUE])
    else:
        monkeypatch.setenv(readiness.VARIABLE, kind)
