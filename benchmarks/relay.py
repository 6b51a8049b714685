"""The share of the system in passing messages on: a process that receives bytes, sends them, and decides nothing.

    publisher --- loopback ---> relay --- loopback ---> receiver

1. The relay receives `PIECE_BYTES` at most, and sends all of that. With larger pieces a byte costs less.
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
    """How many bytes a relay has passed on, and the CPU that it took."""

    passed_bytes: int
    cpu_s: float

    def cpu_us(self, message_bytes: int) -> float:
        """Return the relay's CPU for a message of that size."""
        return self.cpu_s / self.passed_bytes * message_bytes * 1e6


def measure(seconds: float, *, core: int | None = None) -> PassedOn:
    """Have bytes passed on for so long; `core`: the one to which the relay is confined, if any.

    Raises OSError, and RuntimeError when the relay has failed.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told, telling = _CONTEXT.Pipe(duplex=False)
        relay = _CONTEXT.Process(target=_relay, args=(listener.getsockname(), core, telling), daemon=True)
        relay.start()
        telling.close()
        listener.settimeout(_DEADLINE_S)
        # In the order in which the relay connects.
        publisher, receiver = listener.accept()[0], listener.accept()[0]
        receiving = threading.Thread(target=_throw_away, args=(receiver,), daemon=True)
        receiving.start()
        piece = bytes(PIECE_BYTES)
        end_s = time.monotonic() + seconds
        with publisher, suppress(ConnectionError):  # of a relay that has failed
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
        receiving.join(_DEADLINE_S)
        receiver.close()
    return PassedOn(passed_bytes, cpu_s)


def _relay(address: tuple[str, int], core: int | None, telling: Connection) -> None:
    publisher = socket.create_connection(address)
    receiver = socket.create_connection(address)
    if core is not None:
        os.sched_setaffinity(0, {core})
    buffer = memoryview(bytearray(PIECE_BYTES))
    passed = 0
    begin = os.times()
    while size := publisher.recv_into(buffer):
        receiver.sendall(buffer[:size])
        passed += size
    end = os.times()
    telling.send((passed, end.user + end.system - begin.user - begin.system))


def _throw_away(sock: socket.socket) -> None:
    buffer = bytearray(PIECE_BYTES)
    with suppress(ConnectionError):  # of a relay that has failed
        while sock.recv_into(buffer):
            pass


def main() -> None:
    """Print what it takes."""
    found = measure(2.0)
    print(f"{found.cpu_us(1024):.2f} µs a KiB, {found.cpu_us(65536):.1f} µs for 64 KiB")


if __name__ == "__main__":
    main()
