"""The cluster port: bound from the start of a node, and listened on from then on where nodes elect their leader.

A node that cannot have its port says so before it can be elected, and does not end as a leader. While it does not lead
it only answers how far its log goes (``pre_vote.py``). If its process is gone, its machine refuses connections.
"""

from __future__ import annotations

from socket import AI_PASSIVE, SOCK_STREAM
from typing import Final

import trio

from warren.server.network.listening import bind_all
from warren.server.setting_kinds import Endpoint
from warren.server.start_errors import listen_error

BACKLOG: Final = 0xFFFF  # clients of all followers may connect at once; the kernel takes less


async def bound(endpoint: Endpoint) -> list[trio.socket.SocketType]:
    """Return a bound socket for each address of the endpoint that this machine has, not yet listening.

    Raises:
        StartError: it cannot be bound.
    """
    try:
        found = await trio.socket.getaddrinfo(endpoint.host, endpoint.port, type=SOCK_STREAM, flags=AI_PASSIVE)
        sockets = bind_all("cluster_listen", endpoint, found)
    except OSError as error:
        raise listen_error("cluster_listen", endpoint.host, endpoint.port, error) from None
    return [trio.socket.from_stdlib_socket(sock) for sock in sockets]


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
