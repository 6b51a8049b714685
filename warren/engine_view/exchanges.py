"""Exchanges: rows and counters. An exchange does not know its vhost, so callers keep its name beside the ref."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

import msgspec

from warren.amqp.declarations import ExchangeDeclaration
from warren.engine_view.counters import exchange_counters
from warren.engine_view.refs import ExchangeRef
from warren.exchanges.activity import changed_exchanges
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.vhosts.virtual_host import VirtualHost

EXCHANGE_TYPE_NAMES: Final = tuple(sorted(EXCHANGE_TYPES))
Placed = tuple[str, ExchangeRef]  # with its vhost


class ExchangeRow(msgspec.Struct, frozen=True):
    """An exchange; the fields have RabbitMQ's names.

    `arguments`: an encoded field table; `delayed`: the messages that it holds, if it is of that type. `counters` are
    `EXCHANGE_STATS`.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: bytes
    policy: str | None
    declared_by: str
    delayed: int | None
    counters: tuple[int, ...]


class ExchangeBrief(msgspec.Struct, frozen=True):
    """The little of an exchange that a map of a vhost shows."""

    name: str
    type: str
    durable: bool
    internal: bool
    alternate: str


def _key(key: Callable[[tuple[str, Exchange]], object]) -> Callable[[Placed], object]:
    return cast("Callable[[Placed], object]", key)


class Exchanges:
    """The exchanges of one engine."""

    # Fields by which lists are filtered and sorted without a row of each item.
    KEYS: Final[Mapping[str, Callable[[Placed], object]]] = {
        "name": _key(lambda of: of[1].name),
        "vhost": _key(lambda of: of[0]),
        "type": _key(lambda of: of[1].type_name),
    }

    def __init__(self, vhosts: Mapping[str, VirtualHost]) -> None:
        self._vhosts = vhosts

    def count(self, vhost: str) -> int:
        """Return how many exchanges a vhost has."""
        found = self._vhosts.get(vhost)
        return 0 if found is None else len(found.exchanges)

    def in_vhost(self, vhost: str) -> list[ExchangeRef]:
        """Return the exchanges of a vhost, in any order."""
        found = self._vhosts.get(vhost)
        return [] if found is None else cast("list[ExchangeRef]", list(found.exchanges.values()))

    def in_order(self, vhost: str) -> list[Placed]:
        """Return the exchanges of a vhost by name, each with the vhost. Proportional to all of them."""
        found = self._vhosts.get(vhost)
        if found is None:
            return []
        return [(vhost, ExchangeRef(found.exchanges[name])) for name in sorted(found.exchanges)]

    def maybe(self, vhost: str, name: str) -> ExchangeRef | None:
        """Return the exchange with this name; the default exchange has an empty one."""
        found = self._vhosts.get(vhost)
        exchange = None if found is None else found.exchanges.get(name)
        return None if exchange is None else ExchangeRef(exchange)

    def changed(self, exchanges: list[ExchangeRef]) -> list[ExchangeRef]:
        """Return those of `exchanges` in which something happened since the last call."""
        return cast("list[ExchangeRef]", changed_exchanges(cast("list[Exchange]", exchanges)))

    def name(self, exchange: ExchangeRef) -> str:
        """Return the name of an exchange."""
        assert isinstance(exchange, Exchange)
        return exchange.name

    def has_argument(self, exchange: ExchangeRef, name: str) -> bool:
        """Tell whether an exchange was declared with an argument."""
        assert isinstance(exchange, Exchange)
        return name in exchange.table

    def declaration(self, exchange: ExchangeRef) -> ExchangeDeclaration:
        """Return the declaration of an exchange."""
        assert isinstance(exchange, Exchange)
        return exchange.declaration

    def names(self, exchanges: list[ExchangeRef]) -> list[tuple[str, str]]:
        """Return name and type of each."""
        return [(each.name, each.type_name) for each in _exchanges(exchanges)]

    def binding_counts(self, exchanges: list[ExchangeRef]) -> list[int]:
        """Return of each how many bindings lead from it."""
        return [len(each.bindings) for each in _exchanges(exchanges)]

    def is_gone(self, of: Placed) -> bool:
        """Tell whether an exchange has been deleted."""
        exchange = of[1]
        assert isinstance(exchange, Exchange)
        return exchange.deleted

    def counters(self, exchanges: list[ExchangeRef]) -> list[tuple[int, ...]]:
        """Return `EXCHANGE_STATS` of each."""
        return [exchange_counters(each) for each in _exchanges(exchanges)]

    def row(self, of: Placed) -> ExchangeRow:
        """Return an exchange."""
        vhost, exchange = of
        assert isinstance(exchange, Exchange)
        declared = exchange.declaration
        found = self._vhosts.get(vhost)
        held = None if found is None else found.held.get(exchange.name)
        return ExchangeRow(
            declared.name,
            declared.type,
            declared.durable,
            declared.auto_delete,
            declared.internal,
            declared.arguments,
            exchange.policy,
            exchange.declared_by,
            None if held is None else int(held.count),
            (int(exchange.published_in), int(exchange.published_out)),
        )

    def brief(self, exchange: ExchangeRef) -> ExchangeBrief:
        """Return the little of an exchange that a map shows."""
        assert isinstance(exchange, Exchange)
        return ExchangeBrief(exchange.name, exchange.type_name, exchange.durable, exchange.internal, exchange.alternate)

    def delaying(self, vhost: str) -> list[str]:
        """Return the names of the exchanges of a vhost that delay messages."""
        found = self._vhosts.get(vhost)
        return [] if found is None else list(found.held)

    def delayed(self, vhost: str, names: list[str]) -> int:
        """Return how many messages these exchanges hold."""
        found = self._vhosts.get(vhost)
        held = [] if found is None else [found.held.get(name) for name in names]
        return sum(int(each.count) for each in held if each is not None)


def _exchanges(refs: Iterable[ExchangeRef]) -> Iterable[Exchange]:
    return cast("Iterable[Exchange]", refs)
