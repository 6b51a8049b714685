"""The address that a node tells others to reach its cluster port at, and whether they can have any use for it.

cluster_advertise       if it is set
cluster_listen          else; for ``0.0.0.0`` and ``::`` the name of the machine with that port
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from warren.server.settings import Endpoint, Settings

EVERYWHERE: Final = ("0.0.0.0", "::")


def advertised(settings: Settings, machine: str) -> Endpoint:
    """Return the address. `machine`: the name of this machine."""
    if settings.cluster_advertise is not None:
        return settings.cluster_advertise
    listen = settings.cluster_listen
    assert listen is not None
    return Endpoint(machine, listen.port) if listen.host in EVERYWHERE else listen


def fault(own: str, others: Iterable[str], etcd: Iterable[str]) -> str:
    """Return why other nodes cannot reach `own`; nothing if nothing speaks against it.

    `others` are the addresses of the other nodes, `etcd` the URLs of its members: who has any of them on other machines
    is asked from there, too.
    """
    if not _is_loopback(own):
        return ""
    elsewhere = [address for address in others if not _is_loopback(address)]
    elsewhere += [host for host in (urlsplit(url).hostname or "" for url in etcd) if not _is_loopback(host)]
    if not elsewhere:
        return ""
    return f"{own} leads to this machine only, and {elsewhere[0]} is another one: set cluster_advertise"


def _is_loopback(address: str) -> bool:
    """Tell whether a host, or host and port, is the machine itself. Names are not looked up."""
    host = address.rpartition(":")[0] if address.count(":") == 1 or address.startswith("[") else address
    host = host.strip("[]").lower()
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.startswith("localhost.") or host.endswith(".localhost")
    return found.is_loopback or found.is_unspecified
