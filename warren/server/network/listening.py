"""Listening sockets of AMQP."""

from __future__ import annotations

import socket
from typing import Final

from warren.server.logs import get_logger
from warren.server.network.peer_address import is_loopback
from warren.server.setting_kinds import Endpoint
from warren.server.start_errors import listen_error

LISTEN_BACKLOG: Final = 4096

log = get_logger("server")


def open_sockets(what: str, endpoint: Endpoint) -> list[socket.socket]:
    """Listen on every address that the host name stands for.

    Raises:
        StartError: the name cannot be resolved, or the port cannot be bound.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if is_loopback(str(address[0])):
                _spare_pacing(sock)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise listen_error(what, endpoint.host, endpoint.port, error) from None
    return sockets


def _spare_pacing(sock: socket.socket) -> None:
    """Use Reno between processes of this machine.

    Where BBR is the default, its pacing timers cost a fifth of the kernel's work on large messages, while loopback does
    not need gentleness. Accepted sockets inherit it.
    """
    if not hasattr(socket, "TCP_CONGESTION"):
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    except OSError as error:
        log.debug("the default congestion control stays", reason=str(error))
