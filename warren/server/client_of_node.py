"""Describe a client that another node passes on, as that node sees it: the header of a connection between nodes.

    peer      "192.0.2.7:50412"   the client's end, of which the address says whether it is on that node's machine
    local     "192.0.2.2:5671"    the node's end
    is_tls    true                whether client and node speak TLS
    user      "CN=robot"          whom the client's certificate names, as that node reads it; null without one
    protocol  "amqp"              or "http"

`node` is the name of that node. It is not a field, since the node proves its name before it sends a header.

1. The node is believed, since it has proved that it knows the secret of the cluster. The form of the header is checked
   all the same.
2. Rules about a client's address (where a user may log in from, how many attempts are allowed) apply to the address
   that the client has at that node, never to the address of the node itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from warren.server.network.peer_address import maybe_address

AMQP: Final = "amqp"
HTTP: Final = "http"
TEXT_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class ClientOfNode:
    """A client of another node."""

    peer: str
    local: str
    is_tls: bool
    user: str | None = None
    protocol: str = AMQP
    node: str = ""

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.peer.rpartition(":")[0].strip("[]")

    def table(self) -> dict[str, object]:
        """Return it as the fields above."""
        table: dict[str, object] = asdict(self)
        del table["node"]
        return table

    @classmethod
    def of_table(cls, table: Mapping[str, Any], node: str = "") -> ClientOfNode:
        """Return the client that the node of that name describes.

        Raises:
            ValueError: the description is not valid, for the reason said.
        """
        peer, local, user = _text(table, "peer"), _text(table, "local"), table.get("user")
        is_tls, protocol = table.get("is_tls"), table.get("protocol")
        if not isinstance(is_tls, bool):
            raise ValueError("a client without a proper is_tls")
        if protocol not in (AMQP, HTTP):
            raise ValueError("a client of an unknown protocol")
        client = cls(peer, local, is_tls, None if user is None else _text(table, "user"), str(protocol), node)
        if maybe_address(client.host) is None:
            raise ValueError("a client without an address")
        return client


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not 0 < len(value.encode(errors="replace")) <= TEXT_BYTES_MAX:
        raise ValueError(f"a client without a proper {name}")
    return value
