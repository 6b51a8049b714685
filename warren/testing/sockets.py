"""Sockets of a broker under test that a test can tear.

The reactor treats the result of `ListeningSocket.accept` like any other socket. `ClientSocket.tear` makes its next
system call fail as if the network had gone. It does nothing else: it does not read or hold back any bytes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BACKLOG: Final = 1024
_RESET: Final = struct.pack("ii", 1, 0)


class ClientSocket(socket.socket):
    """One accepted connection. `peer` is ``host:port``, as the engine knows it."""

    peer = ""
    is_torn = False

    def tear(self, *, reset: bool) -> None:
        """Stop all traffic; `reset`: the peer gets an RST, else it reads the bytes that were sent and an end.

        The reactor has to be told that the socket is ready.
        """
        self.is_torn = True
        if reset:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        self._check()
        return super().recv(bufsize, flags)

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        self._check()
        return super().send(data, flags)

    def sendmsg(self, buffers: Iterable[ReadableBuffer], *others: Any) -> int:
        self._check()
        return super().sendmsg(buffers, *others)

    def _check(self) -> None:
        if self.is_torn:
            raise ConnectionResetError("torn on purpose")


class ListeningSocket(socket.socket):
    """Listens on `address`; its open connections are in `clients`."""

    def __init__(self, address: tuple[str, int], clients: WeakSet[ClientSocket]) -> None:
        super().__init__(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        self._clients = clients
        try:
            # Several sockets may be bound to a port as long as one listens: so the port stays ours while none listens.
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
            self.setblocking(False)
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[ClientSocket, Any]:
        accepted, peer = super().accept()
        client = ClientSocket(accepted.family, accepted.type, accepted.proto, accepted.detach())
        host, port = peer[:2]
        client.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._clients.add(client)
        return client, peer
