"""What the system takes of whoever passes messages on: a process that receives bytes, sends them, and decides nothing.

    publisher --- loopback ---> relay --- loopback ---> each of its receivers

1. The relay receives `PIECE_BYTES` at most and sends each receiver all of that. With larger pieces a byte costs less.
2. Over loopback a sender also pays for what its peer's system does with the bytes: between machines it is less.

    python -m benchmarks.relay
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

PIECE_BYTES: Final = 256 << 10
_CONTEXT: Final = multiprocessing.get_context("fork")
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True)
class PassedOn:
    """How many bytes a relay has passed on, the CPU that it took, and how many receivers there were."""

    passed_bytes: int
    cpu_s: float
    receivers: int

    def cpu_us(self, message_bytes: int) -> float:
        """Return the relay's CPU for a message of that size."""
        return self.cpu_s / self.passed_bytes * message_bytes * 1e6


def measure(seconds: float, *, receivers: int = 1, core: int | None = None) -> PassedOn:
    """Have bytes passed on for so long; `core`: the one to which the relay is confined, if any.

    Raises OSError, and RuntimeError when the relay has failed.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told, telling = _CONTEXT.Pipe(duplex=False)
        relay = _CONTEXT.Process(target=_relay, args=(listener.getsockname(), receivers, core, telling), daemon=True)
        relay.start()
        telling.close()
        listener.settimeout(_DEADLINE_S)
        socks = [listener.accept()[0] for _ in range(1 + receivers)]  # in the order in which the relay connects
        threads = [threading.Thread(target=_throw_away, args=(sock,), daemon=True) for sock in socks[1:]]
        for thread in threads:
            thread.start()
        piece = bytes(PIECE_BYTES)
        end_s = time.monotonic() + seconds
        with socks[0] as publisher, suppress(ConnectionError):  # of a relay that has failed
            while time.monotonic() < end_s:
                publisher.sendall(piece)
    try:
        if not told.poll(_DEADLINE_S):
            raise RuntimeError("the relay does not come to its end")
        passed_bytes, cpu_s = told.recv()
    except EOFError:
        raise RuntimeError("the relay has failed") from None
    finally:
        relay.join(_DEADLINE_S)
        for thread in threads:
            thread.join(_DEADLINE_S)
        for sock in socks[1:]:
            sock.close()
    return PassedOn(passed_bytes, cpu_s, receivers)


def _relay(address: tuple[str, int], receivers: int, core: int | None, telling: Connection) -> None:
    publisher = socket.create_connection(address)
    socks = [socket.create_connection(address) for _ in range(receivers)]
    if core is not None:
        os.sched_setaffinity(0, {core})
    buffer = memoryview(bytearray(PIECE_BYTES))
    passed = 0
    begin = os.times()
    while size := publisher.recv_into(buffer):
        for sock in socks:
            sock.sendall(buffer[:size])
        passed += size
    end = os.times()
    telling.send((passed, end.user + end.system - begin.user - begin.system))


def _throw_away(sock: socket.socket) -> None:
    buffer = bytearray(PIECE_BYTES)
    with suppress(ConnectionError):  # of a relay that has failed
        while sock.recv_into(buffer):
            pass


def main() -> None:
    """Print what it takes for one, two and three receivers."""
    for receivers in (1, 2, 3):
        found = measure(2.0, receivers=receivers)
        print(f"{receivers} receivers: {found.cpu_us(1024):.2f} µs a KiB, {found.cpu_us(65536):.1f} µs for 64 KiB")


if __name__ == "__main__":
    main()
