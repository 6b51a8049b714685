"""The cluster port: bound from the start of a node, and listened on from then on where nodes elect their leader.

A node that cannot have its port says so before it can be elected, and does not end as a leader. While it does not lead
it only answers how far its log goes (``pre_vote.py``). If its process is gone, its machine refuses connections.
"""

from __future__ import annotations

import errno
from socket import AF_INET6, AI_PASSIVE, IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET
from typing import Final

import trio

from warren.server.setting_kinds import Endpoint
from warren.server.start_errors import listen_error

BACKLOG: Final = 0xFFFF  # clients of all followers may connect at once; the kernel takes less


async def bound(endpoint: Endpoint) -> list[trio.socket.SocketType]:
    """Return a bound socket for each address of the endpoint, not yet listening.

    Raises:
        StartError: it cannot be bound.
    """
    sockets: list[trio.socket.SocketType] = []
    try:
        found = await trio.socket.getaddrinfo(endpoint.host, endpoint.port, type=SOCK_STREAM, flags=AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            try:
                sock = trio.socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue  # a name that has an address of IPv6, too, on a machine without it
                raise
            sockets.append(sock)
            sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            if family == AF_INET6:
                sock.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
            await sock.bind(address)
    except OSError as error:
        close(sockets)
        raise listen_error("cluster_listen", endpoint.host, endpoint.port, error) from None
    return sockets


def listen(endpoint: Endpoint, sockets: list[trio.socket.SocketType]) -> None:
    """Listen on the sockets from `bound`.

    Raises:
        StartError: another process does.
    """
    try:
        for sock in sockets:
            sock.listen(BACKLOG)
    except OSError as error:
        raise listen_error("cluster_listen", endpoint.host, endpoint.port, error) from None


def close(sockets: list[trio.socket.SocketType]) -> None:
    """Give the port back."""
    for sock in sockets:
        sock.close()
