"""Listening sockets, of every address that a host name stands for.

A name may have an address that this machine does not have, such as ``::1`` for ``localhost`` where IPv6 is off. The
others are listened on, and the log names it. If none is left, or a port is in use, that is an error.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Any, Final

from warren.server.logs import get_logger
from warren.server.network.peer_address import is_loopback
from warren.server.setting_kinds import Endpoint
from warren.server.start_errors import listen_error

LISTEN_BACKLOG: Final = 4096
# How the system refuses an address that it does not have, or a family without support.
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)

log = get_logger("server")


def open_sockets(what: str, endpoint: Endpoint, backlog: int = LISTEN_BACKLOG) -> list[socket.socket]:
    """Listen on every address that the host name stands for.

    Raises:
        StartError: the name cannot be resolved, or the port cannot be bound.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets = bind_all(what, endpoint, found)
        for sock in sockets:
            sock.listen(backlog)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise listen_error(what, endpoint.host, endpoint.port, error) from None
    return sockets


def bind_all(what: str, endpoint: Endpoint, found: Sequence[tuple[Any, ...]]) -> list[socket.socket]:
    """Return a bound socket for each address in `found`, the answer of getaddrinfo, that this machine has.

    Raises:
        OSError: it has none, or one cannot be bound for another reason.
    """
    sockets: list[socket.socket] = []
    absent: list[tuple[str, OSError]] = []
    try:
        for family, kind, protocol, _, address in found:
            try:
                sockets.append(_bound(family, kind, protocol, address))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent.append((str(address[0]), error))
        if not sockets:
            raise absent[0][1]
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    for name, reason in absent:
        log.warning(
            "an address of the host is not used for listening",
            setting=what,
            host=endpoint.host,
            address=name,
            reason=reason.strerror or str(reason),
        )
    return sockets


def _bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if is_loopback(str(address[0])):
            _spare_pacing(sock)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


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
        log.debug("the default congestion control is kept", reason=str(error))
