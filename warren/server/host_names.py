"""Look up the names of hosts that users choose, as links do.

Not by trio's `getaddrinfo`: it takes the threads that connections to other nodes and to etcd need, and users could have
all of them wait for name servers that do not answer. Vhosts take turns: so the links of one cannot do that to those of
another, either.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from warren.server.threads import NAMES, in_thread


async def resolve(vhost: str, host: str, port: int) -> list[Any]:
    """Return the addresses of a host for a link of `vhost`, as `socket.getaddrinfo`; the caller has a deadline.

    Raises:
        OSError, UnicodeError: it has none, or is not a host name.
    """
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror as error:
        if error.errno != socket.EAI_NONAME:
            raise
    name = host.encode("ascii" if host.isascii() else "idna")
    look_up = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
    return await in_thread(NAMES, look_up, abandon=True, party=vhost)
