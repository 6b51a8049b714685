"""A connection of the load tool without a broker: the other end reads its output, and writes its input."""

from __future__ import annotations

import socket

from warren.perf.client import Address


class Ends:
    """A connection, and the broker's end of it."""

    def __init__(self) -> None:
        self.sock, self.broker = socket.socketpair()
        self.sock.setblocking(False)
        self.broker.setblocking(False)
        self.leftover = bytearray()
        self.address = Address()

    def end(self) -> None:
        self.sock.close()
        self.broker.close()
