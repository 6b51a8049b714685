"""The addresses at which a node tells others to reach it, and whether others can use them.

of the cluster port           cluster_advertise, if it is set
                              cluster_listen else; for ``0.0.0.0`` and ``::`` the name of the machine with that port
of the management API         http_advertise, if it is set, with ``https:`` if that is listened for
                              http and https else; for ``0.0.0.0`` and ``::`` with the host of the cluster port
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from warren.server.setting_kinds import Endpoint
from warren.server.settings import Settings

EVERYWHERE: Final = ("0.0.0.0", "::")
URLS_MAX: Final = 2
_URL: Final = re.compile(r"https?://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255}):[1-9][0-9]{0,4}")


def advertised(settings: Settings, machine: str) -> Endpoint:
    """Return the address. `machine`: the name of this machine."""
    if settings.cluster_advertise is not None:
        return settings.cluster_advertise
    listen = settings.cluster_listen
    assert listen is not None
    return Endpoint(machine, listen.port) if listen.host in EVERYWHERE else listen


def readable_at(settings: Settings, machine: str) -> list[str]:
    """Return the URLs of this node's management API; those for this machine only are left out if others exist.

    `machine`: the name of this machine.
    """
    endpoints = {"https": settings.https, "http": settings.http}
    there = {scheme: endpoint for scheme, endpoint in endpoints.items() if endpoint is not None}
    if settings.http_advertise is not None:
        return [f"{scheme}://{settings.http_advertise}" for scheme in list(there)[:1]]
    other = settings.follow if settings.cluster_listen is None else advertised(settings, machine)
    is_one_machine = other is not None and _is_loopback(str(other))
    found = []
    for scheme, endpoint in there.items():
        host = endpoint.host
        if host in EVERYWHERE:
            host = machine if settings.cluster_listen is None else advertised(settings, machine).host
        address = str(Endpoint(host, endpoint.port))
        if endpoint.port and (is_one_machine or not _is_loopback(address)):
            found.append(f"{scheme}://{address}")
    return found


def told_urls(value: object) -> tuple[str, ...]:
    """Return another node's URLs of its management API; nothing for an invalid value."""
    if not isinstance(value, list):
        return ()
    return tuple(url for url in value[:URLS_MAX] if isinstance(url, str) and _URL.fullmatch(url))


def fault(own: str, others: Iterable[str], etcd: Iterable[str]) -> str:
    """Return why other nodes cannot reach `own`; nothing if nothing speaks against it.

    `others` are the addresses of the other nodes, `etcd` the URLs of its members: if any is on another machine, that
    machine must reach `own`, too.
    """
    if not _is_loopback(own):
        return ""
    elsewhere = [address for address in others if not _is_loopback(address)]
    elsewhere += [host for host in (urlsplit(url).hostname or "" for url in etcd) if not _is_loopback(host)]
    if not elsewhere:
        return ""
    return f"{own} reaches only this machine, but {elsewhere[0]} is another one: set cluster_advertise"


def _is_loopback(address: str) -> bool:
    """Tell whether a host, or host and port, is the machine itself. Names are not looked up."""
    host = address.rpartition(":")[0] if address.count(":") == 1 or address.startswith("[") else address
    host = host.strip("[]").lower()
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.startswith("localhost.") or host.endswith(".localhost")
    return found.is_loopback or found.is_unspecified
