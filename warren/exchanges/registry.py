"""The exchange types by name, and the one place that makes exchanges.

1. Every exchange that `create_exchange` returns has valid arguments; a type refuses its own bad ones when it is made.

Source: RabbitMQ's texts for unknown types and for ``alternate-exchange``.
"""

from __future__ import annotations

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

EXCHANGE_TYPES: Final[tuple[str, ...]] = (
    "direct",
    "fanout",
    "headers",
    "topic",
    "x-consistent-hash",
    "x-delayed-message",
    "x-federation-upstream",
    "x-local-random",
    "x-modulus-hash",
    "x-random",
    "x-recent-history",
    "x-super-stream",
)


def create_exchange(declaration: ExchangeDeclaration, *, seed: int, vhost_name: str = "/") -> Exchange:
    """Make the exchange that a declare asks for; `seed` drives the types that choose at random.

    Raises:
        ChannelException: 406, unknown type or an argument that the type cannot use.
    """
    type_name = declaration.type
    if type_name not in EXCHANGE_TYPES:
        raise ChannelException(PRECONDITION_FAILED, f"unknown exchange type '{type_name}'")
    _check_text(ALTERNATE_EXCHANGE, declaration, vhost_name)
    if type_name == "direct":
        return DirectExchange(declaration)
    if type_name == "fanout":
        return FanoutExchange(declaration)
    if type_name == "topic":
        return TopicExchange(declaration)
    if type_name == "headers":
        return HeadersExchange(declaration)
    if type_name == "x-consistent-hash":
        _check_text(HASH_HEADER, declaration, vhost_name)
        _check_text(HASH_PROPERTY, declaration, vhost_name)
        return ConsistentHashExchange(declaration)
    if type_name == DELAYED_MESSAGE:
        of_type = replace(declaration, type=_delayed_type(declaration.arguments))
        inner = create_exchange(of_type, seed=seed, vhost_name=vhost_name)
        return DelayedMessageExchange(declaration, inner)
    if type_name == FEDERATION_UPSTREAM:
        return FederationUpstreamExchange(declaration)
    if type_name == "x-modulus-hash":
        return ModulusHashExchange(declaration)
    if type_name == "x-random":
        return RandomExchange(declaration, seed)
    if type_name == "x-local-random":
        return LocalRandomExchange(declaration, seed)
    if type_name == SUPER_STREAM_TYPE:
        return SuperStreamExchange(declaration)
    assert type_name == "x-recent-history"
    return RecentHistoryExchange(declaration)


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
    """Refuse an argument `key` that is there and not a longstr."""
    tag = find_tag(declaration.arguments, key)
    if tag and tag != "S":
        raise ChannelException(
            PRECONDITION_FAILED,
            f"invalid type '{TYPE_NAMES[tag]}' for arg '{key}' in exchange '{declaration.name}' in vhost "
            f"'{vhost_name}'",
        )
