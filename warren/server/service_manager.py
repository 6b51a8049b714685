"""Tell systemd, or another manager that starts the broker the same way, that it serves, reloads, stops, and is alive.

1. Without ``NOTIFY_SOCKET`` nothing is opened and nothing happens.
2. Telling neither blocks nor fails: a message that the manager does not take is dropped. A manager that misses one acts
   as if the broker were slow, and reports that.
3. A task of the broker's own loop notifies the watchdog, three times within its time: a loop that hangs is silent.

Source: sd_notify(3) and sd_watchdog_enabled(3): datagrams of lines ``NAME=value``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import trio

from warren.server.logs import get_logger

_WATCHDOG_SHARE: Final = 3
_ADDRESS_VARIABLE: Final = "NOTIFY_SOCKET"
_WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
_WATCHED_VARIABLE: Final = "WATCHDOG_PID"

log = get_logger("service manager")


class ServiceManager:
    """The manager that started this process. `watchdog_s` is how often it wants to hear from us, 0 for never."""

    def __init__(self, sock: socket.socket | None = None, watchdog_s: float = 0.0) -> None:
        self._sock = sock
        self.watchdog_s = watchdog_s
        self._status = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ServiceManager:
        """Connect to the manager that the environment names; without one the result sends nothing."""
        address = environment.get(_ADDRESS_VARIABLE, "")
        if not address.startswith(("/", "@")):
            return cls()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            sock.close()
            log.warning("the service manager cannot be notified", socket=address, reason=error.strerror)
            return cls()
        return cls(sock, _watchdog_s(environment))

    def ready(self, status: str) -> None:
        """Report that the broker serves; `status` is for a person."""
        self._status = status
        self._tell_ready()

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Report that settings are being read again while the block runs, unless the broker does not serve yet."""
        if not self._status:
            yield
            return
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
        try:
            yield
        finally:
            self._tell_ready()

    def stopping(self) -> None:
        """Report that the broker has begun to stop."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    async def keep_alive(self) -> None:
        """Report to the watchdog for ever that the loop turns; return immediately without a watchdog."""
        while self.watchdog_s:
            self._tell("WATCHDOG=1")
            await trio.sleep(self.watchdog_s / _WATCHDOG_SHARE)

    def _tell_ready(self) -> None:
        self._tell(f"READY=1\nSTATUS={self._status}")

    def _tell(self, text: str) -> None:
        if self._sock is None:
            return
        try:
            self._sock.send(text.encode("utf-8", "replace"), socket.MSG_NOSIGNAL)
        except OSError as error:
            log.debug("the service manager did not accept a notification", reason=error.strerror)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the time of the watchdog; 0 without one, or if it is for another process."""
    watched, text = environment.get(_WATCHED_VARIABLE, ""), environment.get(_WATCHDOG_VARIABLE, "")
    if not text.isascii() or not text.isdigit() or (watched and watched != str(os.getpid())):
        return 0.0
    return int(text[:18]) / 1e6
