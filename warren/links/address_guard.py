"""Which addresses a link may connect to: a user must not reach the inside of the broker's machine through it.

A user who may set a parameter chooses where the broker connects. So the guard refuses loopback, link-local, unspecified
and multicast addresses and the metadata services of clouds, unless the operator has allowed their network.

1. The guard judges the resolved address, and the link connects to exactly that address. So it does not help an attacker
   to change the address of a name between check and connect.
2. An IPv4 address within an IPv6 address (mapped, translated, NAT64, 6to4, Teredo, ISATAP) is judged as well. Within
   the local NAT64 prefix 64:ff9b:1::/48 its position depends on the network, so that prefix is refused as a whole.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_DENIED: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "168.63.129.16/32",  # metadata of Azure
        "192.0.0.192/32",  # metadata of Oracle Cloud
        "::/128",
        "::1/128",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
        "fd00:ec2::254/128",  # metadata of Amazon
        "64:ff9b:1::/48",  # local NAT64 (RFC 8215)
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_TRANSLATED: Final = ipaddress.IPv6Network("::ffff:0:0:0/96")  # RFC 2765
_ISATAP: Final = (0x0000_5EFE, 0x0200_5EFE)  # the upper half of an interface identifier
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse addresses and networks in CIDR notation.

    Raises:
        ValueError: one of them is neither.
    """
    return tuple(ipaddress.ip_network(text.strip()) for text in texts if text.strip())


def _inner_address(address: Address) -> Address | None:
    """Return the IPv4 address that an IPv6 address carries."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    is_isatap = int(address) >> 32 & 0xFFFF_FFFF in _ISATAP
    if is_isatap or address in _NAT64 or address in _TRANSLATED or (address in _COMPATIBLE and int(address) > 0xFFFF):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


class AddressGuard:
    """Decides about resolved addresses; `allowed` networks are exempt from the rules."""

    def __init__(self, allowed: Sequence[Network] = ()) -> None:
        self._allowed = tuple(allowed)

    def permits(self, text: str) -> bool:
        """Tell whether a link may connect to the numeric address `text`; a zone (``%eth0``) does not matter."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        seen = [address]
        inner = _inner_address(address)
        if inner is not None:
            seen.append(inner)
        if any(_within(one, self._allowed) for one in seen):
            return True
        return not any(_within(one, _DENIED) for one in seen)


def _within(address: Address, among: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in among)
