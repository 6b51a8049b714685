"""The exchange that a federated broker declares at its upstream, for messages that its bindings match.

It is a fanout that drops messages that have taken ``x-max-hops`` hops already, or have been at the downstream before.
The header ``x-received-from`` shows this: an array of tables, one for each broker that forwarded the message.

Source: RabbitMQ's exchange federation, which declares this type with ``x-downstream-name`` (a cluster name) and
``x-downstream-vhost``.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.declarations import ExchangeDeclaration
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination

FEDERATION_UPSTREAM: Final = "x-federation-upstream"
RECEIVED_FROM: Final = "x-received-from"


class FederationUpstreamExchange(Exchange):
    """An exchange of type ``x-federation-upstream``. Without a valid ``x-max-hops`` it allows one."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self.cacheable = False
        table = self.table
        hops = table.get("x-max-hops")
        self.max_hops: int = hops if isinstance(hops, int) else 1
        self.downstream_name = table.get("x-downstream-name")
        self.downstream_vhost = table.get("x-downstream-vhost")

    def may_pass(self, content: Content) -> bool:
        """Tell whether the message may take one more hop, to the downstream."""
        visited = content.headers.get(RECEIVED_FROM)
        if not isinstance(visited, list):
            return True
        if len(visited) >= self.max_hops:
            return False
        for entry in visited:
            if (
                isinstance(entry, dict)
                and entry.get("cluster-name") == self.downstream_name
                and entry.get("vhost") == self.downstream_vhost
            ):
                return False
        return True

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        if self.may_pass(content):
            found.extend(self.by_destination)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        self.match(routing_keys[0], content, found)
