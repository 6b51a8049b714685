"""Offer HTTP into one vhost to a program that the broker itself has started, independent of the listeners.

1. The code that starts such a program gets a token for it, and dismisses the token when the program has ended. Tokens
   are random, kept as hashes in this process, and end with it.
2. The listener opens when it is first needed: a broker that does not start such programs has no such listener. It is on
   the loopback interface, with a port that the system chooses. The code that opens it decides what it serves.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

import trio


class LocalHttp:
    """The address of the listener, and the tokens that it accepts."""

    def __init__(self) -> None:
        self._vhosts: dict[bytes, str] = {}
        self._wanted = trio.Event()
        self._opened = trio.Event()
        self._url = ""

    async def url(self) -> str:
        """Return the URL of the listener; wait until it is open."""
        self._wanted.set()
        await self._opened.wait()
        return self._url

    def admit(self, vhost: str) -> str:
        """Return a token that gives access to `vhost`."""
        token = secrets.token_urlsafe(32)
        self._vhosts[_digest(token)] = vhost
        return token

    def dismiss(self, token: str) -> None:
        """Refuse `token` from now on."""
        self._vhosts.pop(_digest(token), None)

    def maybe_vhost(self, token: str) -> str | None:
        """Return the vhost of a token; None if the token is not valid."""
        return self._vhosts.get(_digest(token))

    # --- for the server -----------------------------------------------------------------------------------------------

    async def wanted(self) -> None:
        """Wait until a program needs the listener."""
        await self._wanted.wait()

    def opened(self, url: str) -> None:
        """Note that the listener is open at `url`."""
        self._url = url
        self._opened.set()

    def closed(self) -> None:
        """Note that the listener is closed, and may be opened again."""
        self._opened = trio.Event()


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()
