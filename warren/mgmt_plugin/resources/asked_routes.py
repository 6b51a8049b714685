"""Where a message would go, asked without publishing it: the queues, and the bindings on the way.

1. The queues are those that the engine's routing finds. The way is listed exchange by exchange, with each binding that
   lets the message through once.
2. Each binding is tested by itself: an exchange of the type is made for all bindings of one exchange, and has one of
   them at a time. Nothing of it stays: a tested binding is unbound again.
3. Work is linear in the bindings on the way of the message, gives way every millisecond, and ends after `WORK_MAX`. An
   answer has at most `SHOWN_MAX` queues and as many steps, and contains their total number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import msgspec

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.properties import BasicProperties
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import create_exchange
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import exchange_name, the_vhost
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_found
from warren.mgmt_plugin.terms import table_from_json
from warren.queues.destination import Destination
from warren.vhosts.virtual_host import VirtualHost

# Exchange types in which a binding matches or not independently of other bindings.
STATELESS_TYPES: Final = ("direct", "fanout", "topic", "headers")
SHOWN_MAX: Final = 1000
# Asking a binding is a piece of work, and one more for each header of the message.
WORK_MAX: Final = 200_000
HEADERS_BYTES_MAX: Final = 64 << 10


class Question(msgspec.Struct):
    """A message that might be published."""

    exchange: str
    routing_key: str = ""
    headers: Any = None


class Way:
    """The way of one message, as far as it was followed.

    `count`: how many steps there are, of which `steps` are the first; `complete`: whether all bindings were looked at.
    """

    def __init__(self, vhost: VirtualHost, key: str, header: bytes) -> None:
        self.steps: list[Described] = []
        self.count = 0
        self.complete = True
        self._vhost = vhost
        self._key = key
        self._header = header
        self._cost = 1 + len(Content(header).headers)
        self._left = WORK_MAX

    async def follow(self, start: Exchange) -> None:
        """Follow the message from the exchange that it is published to."""
        if start.name == "":
            if self._key in self._vhost.queues:
                self._add("", self._vhost.queues[self._key], self._key)
            return
        seen: set[Destination] = {start}
        visits = [start]
        for exchange in visits:
            for destination in await self._from(exchange):
                if isinstance(destination, Exchange) and destination not in seen:
                    seen.add(destination)
                    visits.append(destination)

    async def _from(self, exchange: Exchange) -> list[Destination]:
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
                await give_way()
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
            self.steps.append(
                {
                    "exchange": exchange,
                    "destination": destination.name,
                    "destination_type": destination.kind,
                    "routing_key": binding_key,
                }
            )


def _chain(binding: Binding | None) -> Iterator[Binding]:
    """Yield a chain of bindings to one destination; one that is unbound meanwhile ends it."""
    while binding is not None:
        yield binding
        binding = binding.next_to_destination


class AskedRouteHandlers(Handlers):
    """The handler of the question where a message would go."""

    async def ask_route(self, call: Call) -> Described:
        question = await call.body(Question)
        vhost = the_vhost(call)
        start = vhost.exchanges.get(exchange_name(question.exchange))
        if start is None:
            raise not_found(f"no exchange '{question.exchange}' in vhost '{vhost.name}'")
        if len(question.routing_key.encode("utf-8", "replace")) > NAME_MAX_BYTES:
            raise bad_request(f"the routing key is longer than {NAME_MAX_BYTES} bytes")
        properties = BasicProperties()
        if question.headers:
            properties.headers = table_from_json(question.headers, "headers")
            if len(properties.headers) > HEADERS_BYTES_MAX:
                raise bad_request(f"headers have more than {HEADERS_BYTES_MAX} bytes")
        header = b"\x00\x3c\x00\x00" + bytes(8) + properties.encode()
        receivers = vhost.route(start, [question.routing_key], Content(header))
        queues = [each.name for each in receivers if each.is_queue]
        subscribers = [each.name for each in receivers if not each.is_queue]
        way = Way(vhost, question.routing_key, header)
        await way.follow(start)
        return {
            "queues": queues[:SHOWN_MAX],
            "queue_count": len(queues),
            "subscribers": subscribers[:SHOWN_MAX],
            "subscriber_count": len(subscribers),
            "unroutable": not receivers,
            "path": way.steps,
            "path_count": way.count,
            "complete": way.complete,
        }

    ROUTES: ClassVar = (
        Route(
            "POST",
            "/api/warren/route/{vhost}",
            Access.VHOST_VISIBLE,
            ask_route,
            "Where a message would go",
            Question,
            is_use=True,
        ),
    )
