"""Where a peer comes from: the two ends of its connection, what carries it, and who TLS says that it is."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Origin:
    """The origin of one peer. `peer` and `local` are ``host:port``, `address` is the peer's without its port.

    `certificate_user`: named by the verified TLS certificate. `node_name`: the node that the client is connected to;
    empty: this one, which leads.
    """

    def __init__(
        self,
        peer: str,
        local: str,
        address: str,
        certificate_user: str | None = None,
        *,
        is_tls: bool = False,
        is_web: bool = False,
        node_name: str = "",
    ) -> None:
        self.peer = peer
        self.local = local
        self.address = address
        self.certificate_user = certificate_user
        self.is_tls = is_tls
        self.is_web = is_web  # over a WebSocket
        self.node_name = node_name
        self.connected_at_ms: int = 0  # set by the broker
        self.is_internal: bool = False  # from inside this process; the shell checks the user that its login names
        self.is_direct: bool = False  # of management, see `channels.direct_session`

    def ends(self) -> str:
        """Return the name of the connection in the management API."""
        return f"{self.peer} -> {self.local}"

    def shown(self, protocol: str) -> str:
        """Return `protocol` as the management API shows it: over a WebSocket as RabbitMQ does."""
        return f"Web {protocol}" if self.is_web else protocol
