"""Classify the address of an accepted socket: whether it is this machine, and which network it belongs to.

1. An IPv4 address mapped into IPv6 (``::ffff:127.0.0.1``) is the IPv4 address it stands for.
2. Text that is not an address is not loopback.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
# Several questions are asked about each connection, and clients reconnect from the same addresses.
_REMEMBERED: Final = 4096


@lru_cache(_REMEMBERED)
def maybe_address(text: str) -> Address | None:
    """Parse a numeric address as `getpeername` gives it (a scope such as ``%eth0`` allowed)."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_loopback(text: str) -> bool:
    """Tell whether a peer with this address runs on this machine."""
    address = maybe_address(text)
    return address is not None and address.is_loopback


def origin_of(text: str) -> str:
    """Return the origin for counting login attempts: an IPv4 address, or an IPv6 /64."""
    address = maybe_address(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), 64), strict=False))
    return text if address is None else str(address)
