"""The exchange types by name, and the one place that makes exchanges.

1. Every exchange that `create_exchange` returns has valid arguments; a type refuses its own bad ones when it is made.

Source: RabbitMQ's texts for unknown types and for ``alternate-exchange``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag
from warren.exchanges.consistent_hash_exchange import HASH_HEADER, HASH_PROPERTY, ConsistentHashExchange
from warren.exchanges.delayed_message_exchange import DELAYED_MESSAGE, DELAYED_TYPE, DelayedMessageExchange
from warren.exchanges.direct_exchange import DirectExchange
from warren.exchanges.exchange import ALTERNATE_EXCHANGE, Exchange
from warren.exchanges.fanout_exchange import FanoutExchange
from warren.exchanges.federation_upstream_exchange import FEDERATION_UPSTREAM, FederationUpstreamExchange
from warren.exchanges.headers_exchange import HeadersExchange
from warren.exchanges.modulus_hash_exchange import ModulusHashExchange
from warren.exchanges.random_exchange import LocalRandomExchange, RandomExchange
from warren.exchanges.recent_history_exchange import RecentHistoryExchange
from warren.exchanges.super_stream_exchange import SUPER_STREAM_TYPE, SuperStreamExchange
from warren.exchanges.topic_exchange import TopicExchange


class Making:
    """The input for the maker of a type, besides the declaration. `seed`: for the types that choose at random."""

    def __init__(self, seed: int, vhost_name: str) -> None:
        self.seed = seed
        self.vhost_name = vhost_name


def _consistent_hash(declaration: ExchangeDeclaration, making: Making) -> Exchange:
    _check_text(HASH_HEADER, declaration, making.vhost_name)
    _check_text(HASH_PROPERTY, declaration, making.vhost_name)
    return ConsistentHashExchange(declaration)


def _delayed_message(declaration: ExchangeDeclaration, making: Making) -> Exchange:
    of_type = replace(declaration, type=_delayed_type(declaration.arguments))
    inner = create_exchange(of_type, seed=making.seed, vhost_name=making.vhost_name)
    return DelayedMessageExchange(declaration, inner)


def _random(declaration: ExchangeDeclaration, making: Making) -> Exchange:
    return RandomExchange(declaration, making.seed)


def _local_random(declaration: ExchangeDeclaration, making: Making) -> Exchange:
    return LocalRandomExchange(declaration, making.seed)


# The types that are made from their declaration alone, and the makers of the others.
_CLASSES: Final[dict[str, Callable[[ExchangeDeclaration], Exchange]]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "headers": HeadersExchange,
    "topic": TopicExchange,
    "x-modulus-hash": ModulusHashExchange,
    "x-recent-history": RecentHistoryExchange,
    FEDERATION_UPSTREAM: FederationUpstreamExchange,
    SUPER_STREAM_TYPE: SuperStreamExchange,
}
_MAKERS: Final[dict[str, Callable[[ExchangeDeclaration, Making], Exchange]]] = {
    "x-consistent-hash": _consistent_hash,
    "x-local-random": _local_random,
    "x-random": _random,
    DELAYED_MESSAGE: _delayed_message,
}
EXCHANGE_TYPES: Final[tuple[str, ...]] = tuple(sorted([*_CLASSES, *_MAKERS]))


def create_exchange(declaration: ExchangeDeclaration, *, seed: int, vhost_name: str = "/") -> Exchange:
    """Make the exchange that a declare asks for; `seed` drives the types that choose at random.

    Raises:
        ChannelException: 406, unknown type or an argument that the type cannot use.
    """
    if declaration.type not in EXCHANGE_TYPES:
        raise ChannelException(PRECONDITION_FAILED, f"unknown exchange type '{declaration.type}'")
    _check_text(ALTERNATE_EXCHANGE, declaration, vhost_name)
    maker = _MAKERS.get(declaration.type)
    if maker is None:
        return _CLASSES[declaration.type](declaration)
    return maker(declaration, Making(seed, vhost_name))


def _delayed_type(arguments: bytes) -> str:
    """Return the type that a delayed message exchange routes like."""
    wanted = decode_table(arguments).get(DELAYED_TYPE)
    if not isinstance(wanted, str):
        raise ChannelException(
            PRECONDITION_FAILED, f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
        )
    if wanted == DELAYED_MESSAGE:
        raise ChannelException(
            PRECONDITION_FAILED, f"Invalid argument, '{DELAYED_MESSAGE}' can't be used for '{DELAYED_TYPE}'"
        )
    return wanted


def _check_text(key: str, declaration: ExchangeDeclaration, vhost_name: str) -> None:
    """Refuse the argument `key` if it is present and not a longstr."""
    tag = find_tag(declaration.arguments, key)
    if tag and tag != "S":
        raise ChannelException(
            PRECONDITION_FAILED,
            f"invalid type '{TYPE_NAMES[tag]}' for arg '{key}' in exchange '{declaration.name}' in vhost "
            f"'{vhost_name}'",
        )
