"""A way over HTTP into one vhost for a program that the broker itself has started, whatever listeners there are.

1. Who starts such a program gets a token for it, and dismisses that when the program has ended. Tokens are random, kept
   as their hashes in this process, and end with it.
2. The listener is opened when it is first asked for: a broker that starts no program has none. It is on the loopback
   interface, with a port that the system chooses, and what it serves is said by who opens it.
"""

from __future__ import annotations

import secrets
from hashlib import sha256

import trio


class LocalHttp:
    """Where the listener is, and who may come."""

    def __init__(self) -> None:
        self._vhosts: dict[bytes, str] = {}
        self._wanted = trio.Event()
        self._opened = trio.Event()
        self._url = ""

    async def url(self) -> str:
        """Return where it is; wait for it, if it is not there yet."""
        self._wanted.set()
        await self._opened.wait()
        return self._url

    def admit(self, vhost: str) -> str:
        """Return a token that lets in to `vhost`."""
        token = secrets.token_urlsafe(32)
        self._vhosts[_digest(token)] = vhost
        return token

    def dismiss(self, token: str) -> None:
        """Let nobody in with `token` any more."""
        self._vhosts.pop(_digest(token), None)

    def maybe_vhost(self, token: str) -> str | None:
        """Return where a token lets in to; None: it is none."""
        return self._vhosts.get(_digest(token))

    # --- for who serves -----------------------------------------------------------------------------------------------

    async def wanted(self) -> None:
        """Wait until somebody asks for it."""
        await self._wanted.wait()

    def opened(self, url: str) -> None:
        """Tell that it is at `url`."""
        self._url = url
        self._opened.set()

    def closed(self) -> None:
        """Tell that it is not there any more, and may be opened again."""
        self._opened = trio.Event()


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()
