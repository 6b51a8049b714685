"""A connection between two nodes as a stream: plain, or TLS of which the handshake is done."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import trio

RECEIVE_BYTES: Final = 64 << 10


class NodeTlsStream(trio.abc.Stream):
    """TLS by OpenSSL on the socket, which does not block. One task reads while another one writes."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._sock.recv(max_bytes or RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._sock)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._sock)
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        left = memoryview(data)
        while left:
            try:
                left = left[self._sock.send(left) :]
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._sock)
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._sock)
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._sock)

    async def aclose(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        await trio.lowlevel.checkpoint()


def node_stream(sock: socket.socket) -> trio.SocketStream | NodeTlsStream:
    """Return the stream of a connected socket."""
    sock.setblocking(False)
    if isinstance(sock, ssl.SSLSocket):
        return NodeTlsStream(sock)
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))
