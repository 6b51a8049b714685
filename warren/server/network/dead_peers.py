"""Find connections whose peer's machine is gone, though their protocol does not ask for anything.

A machine without power sends no end. Heartbeats notice that, but clients may do without, and a publisher that is
blocked by an alarm is not read.

1. If nothing is under way, the kernel asks from time to time (TCP keepalives), and ends the connection when too many
   of its questions were not answered.
2. While sent bytes wait for their acknowledgement, the kernel does not ask. It repeats them, for 15 minutes or more.
   Linux tells how long ago it was that the peer acknowledged something: a connection is over if that is as long ago as
   keepalives would have taken. TCP_USER_TIMEOUT would also end peers that answer, but have no room since they do not
   read.
3. A look costs a system call. A tick looks at `LOOKS_AT_ONCE` connections at most, and at each one every
   `ROUND_S` or less often.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

LOOKS_AT_ONCE: Final = 256
ROUND_S: Final = 5.0
# Repetitions without an answer. A peer without room answers each question, but a look may come right after one.
UNANSWERED_MIN: Final = 2

_TELLS: Final = sys.platform == "linux" and hasattr(socket, "TCP_INFO")
_IDLE: Final = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # the latter on macOS
# The beginning of Linux's tcp_info: retransmits, probes, and the age of the last acknowledgement in ms.
_TCP_INFO: Final = struct.Struct("=2xBB52xI")


@dataclass(frozen=True, slots=True)
class Keepalive:
    """When a peer that does not answer is given up: `count` questions, each `interval_s` after the one before.

    The first one comes after `idle_s` without anything from the peer; 0: never.
    """

    idle_s: int
    interval_s: int
    count: int

    def start(self, sock: socket.socket) -> None:
        """Turn on TCP keepalive for a socket."""
        if not self.idle_s:
            return
        with suppress(OSError):  # it is gone already: the first read tells
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, _IDLE), self.idle_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, self.interval_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, self.count)

    def is_over(self, sock: socket.socket) -> bool:
        """Tell whether the peer does not acknowledge what was sent; False where the system does not tell that."""
        if not _TELLS or not self.idle_s:
            return False
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return False  # not TCP
        if len(info) < _TCP_INFO.size:
            return False
        retransmits, probes, silent_ms = _TCP_INFO.unpack(info)
        return int(retransmits) + int(probes) >= UNANSWERED_MIN and int(silent_ms) >= self.timeout_s * 1000

    @property
    def timeout_s(self) -> int:
        """The time after which a silent peer is given up."""
        return self.idle_s + self.interval_s * self.count


NEVER: Final = Keepalive(0, 1, 1)


class DeadPeers:
    """Looks at connections in turns. `keepalive`: of their sockets."""

    def __init__(self, keepalive: Keepalive = NEVER) -> None:
        self.keepalive = keepalive
        self._waiting: list[int] = []  # descriptors; the next ones are last
        self._next_round_s = 0.0

    def due(self, descriptors: Iterable[int], now_s: float) -> list[int]:
        """Return the connections whose turn it is. `descriptors`: all of them; one that was returned may be closed."""
        if not self.keepalive.idle_s:
            return []
        if not self._waiting:
            if now_s < self._next_round_s:
                return []
            self._next_round_s = now_s + ROUND_S
            self._waiting = list(descriptors)
        found = self._waiting[-LOOKS_AT_ONCE:]
        del self._waiting[-LOOKS_AT_ONCE:]
        return found
