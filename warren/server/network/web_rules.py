"""Set the rules of a listener for its WebSockets, and decide which pages may open one.

`WebSocket` itself is in `web_socket`, which is imported when one is opened: a broker without WebSockets does not have
wsproto in its memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warren.server.network.peer_address import is_loopback, maybe_address

FRAME_UNITS: Final = 24  # wsproto takes 8 us for a small one
FRAMES_MIN: Final = 8
FRAMES_MAX: Final = 256  # at a time: 2 ms
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


class WebSocketEnd(Exception):
    """The peer has closed, or `reason` says what it did wrong. The next `framed` has the answer to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WebRules:
    """The rules of a listener for its WebSockets.

    `subprotocols` are those that it knows; a client that names none is accepted if `may_name_none`. `admits` gets an
    Origin, a Host, and the address of the peer.
    """

    subprotocols: tuple[str, ...]
    may_name_none: bool
    takes_text: bool
    admits: Callable[[str, str, str], bool]


class Origins:
    """The pages that may connect: those in `listed`, and those of the host that they connect to.

    An attacker can make a name resolve to this machine. So from this machine only addresses, ``localhost`` and
    `own_names` count as such a host.
    """

    def __init__(self, listed: str, own_names: str) -> None:
        self._listed = frozenset(_words(listed))
        self._own_names = frozenset(_words(own_names)) | {"localhost"}

    def admit(self, origin: str, host: str, address: str) -> bool:
        """Tell whether a page of `origin` may connect to `host` from `address`."""
        if "*" in self._listed or origin.lower() in self._listed:
            return True
        scheme, _, place = origin.partition("://")
        name = _name_in(host)
        if scheme not in ("http", "https") or not name or _name_in(place) != name:
            return False
        return name in self._own_names or maybe_address(name) is not None or not is_loopback(address)


def _words(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",") if word.strip()]


def _name_in(host: str) -> str:
    """Return the name or address in ``host:port``; ``""`` if `host` does not have that form."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()
