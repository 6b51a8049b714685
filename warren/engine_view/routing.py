"""Where a message would go, asked without publishing it: the queues, and the bindings on the way.

1. The queues are those that the engine's routing finds. The way is listed exchange by exchange, with each binding that
   lets the message through once.
2. Each binding is tested by itself: an exchange of the type is made for all bindings of one exchange, and has one of
   them at a time. Nothing of it stays: a tested binding is unbound again.
3. Work is linear in the bindings on the way of the message, and ends after `WORK_MAX`. A way has at most `SHOWN_MAX`
   steps, and contains their total number.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Final

import msgspec

from warren.amqp.declarations import ExchangeDeclaration
from warren.engine_view.refs import ExchangeRef
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import create_exchange
from warren.exchanges.routing import too_many_steps
from warren.queues.destination import Destination
from warren.vhosts.virtual_host import VirtualHost

# Exchange types in which a binding matches or not independently of other bindings.
STATELESS_TYPES: Final = ("direct", "fanout", "topic", "headers")
SHOWN_MAX: Final = 1000
# Asking a binding is a piece of work, and one more for each header of the message.
WORK_MAX: Final = 200_000


class RouteStep(msgspec.Struct, frozen=True):
    """A binding that lets a message through."""

    exchange: str
    destination: str
    destination_type: str
    routing_key: str


class Way:
    """The way of one message, as far as it was followed.

    `count`: how many steps there are, of which `steps` are the first; `complete`: whether all bindings were looked at.
    """

    def __init__(self, vhost: VirtualHost, key: str, header: bytes) -> None:
        self.steps: list[RouteStep] = []
        self.count = 0
        self.complete = True
        self._vhost = vhost
        self._key = key
        self._header = header
        self._cost = 1 + len(Content(header).headers)
        self._left = WORK_MAX

    def follow(self, start: ExchangeRef) -> Iterator[None]:
        """Follow the message from the exchange that it is published to; yield after each piece of work."""
        assert isinstance(start, Exchange)
        if start.name == "":
            if self._key in self._vhost.queues:
                self._add("", self._vhost.queues[self._key], self._key)
            return
        seen: set[Destination] = {start}
        visits: list[Exchange] = [start]
        for exchange in visits:
            for destination in (yield from self._from(exchange)):
                if isinstance(destination, Exchange) and destination not in seen:
                    seen.add(destination)
                    visits.append(destination)

    def _from(self, exchange: Exchange) -> Generator[None, None, list[Destination]]:
        """Add the steps from one exchange; return where they lead to."""
        matched: list[Destination] = []
        exchange.match_keys([self._key], Content(self._header), matched)
        reached = list(dict.fromkeys(matched))
        if not reached and exchange.alternate in self._vhost.exchanges:
            alternate = self._vhost.exchanges[exchange.alternate]
            self._add(exchange.name, alternate, "")
            return [alternate]
        alone = None
        if exchange.type_name in STATELESS_TYPES:
            alone = create_exchange(ExchangeDeclaration("", exchange.type_name, durable=False), seed=0)
        for destination in reached:
            keys: dict[str, None] = {}
            for binding in _chain(exchange.by_destination.get(destination)):
                if self._left <= 0:
                    self.complete = False
                    break
                self._left -= self._cost
                if binding.routing_key not in keys and (alone is None or self._matches(alone, binding)):
                    keys[binding.routing_key] = None
                    self._add(exchange.name, destination, binding.routing_key)
                yield
        return reached

    def _matches(self, alone: Exchange, binding: Binding) -> bool:
        """Tell whether `binding` lets the message through, by an exchange that has nothing but it."""
        destination, key, arguments = binding.destination, binding.routing_key, binding.arguments
        found: list[Destination] = []
        alone.bind(Binding(alone, destination, key, arguments))
        alone.match_keys([self._key], Content(self._header), found)
        alone.unbind(destination, key, arguments)
        return bool(found)

    def _add(self, exchange: str, destination: Destination, binding_key: str) -> None:
        self.count += 1
        if len(self.steps) < SHOWN_MAX:
            self.steps.append(RouteStep(exchange, destination.name, destination.kind, binding_key))


def _chain(binding: Binding | None) -> Iterator[Binding]:
    """Yield a chain of bindings to one destination; one that is unbound meanwhile ends it."""
    while binding is not None:
        yield binding
        binding = binding.next_to_destination


class Routing:
    """The routing of one engine."""

    def __init__(self, vhosts: Mapping[str, VirtualHost]) -> None:
        self._vhosts = vhosts

    def receivers(self, vhost: str, start: ExchangeRef, routing_key: str, header: bytes) -> tuple[list[str], list[str]]:
        """Return the queues and the subscribers that a message with this content header goes to.

        Raises:
            ChannelException: 406, routing it takes too many steps.
        """
        assert isinstance(start, Exchange)
        content = Content(header)
        found = self._vhosts[vhost].route(start, [routing_key], content)
        if content.steps_left < 0:
            raise too_many_steps(start.name, vhost)
        return [each.name for each in found if each.is_queue], [each.name for each in found if not each.is_queue]

    def way(self, vhost: str, routing_key: str, header: bytes) -> Way:
        """Return the way of such a message, which is not followed yet."""
        return Way(self._vhosts[vhost], routing_key, header)
