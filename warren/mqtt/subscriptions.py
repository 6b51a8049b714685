"""Subscriptions as bindings: the options of a subscription are arguments of its binding."""

from __future__ import annotations

from typing import Final

from warren.amqp.field_table import EMPTY_TABLE, Table, decode_table, encode_table
from warren.exchanges.binding import Binding
from warren.mqtt.packets import SUBSCRIPTION_ID_MAX, Wanted
from warren.mqtt.topics import Subscription, filter_of, has_star

# Arguments of the binding of a subscription. A binding without arguments has the options of 3.1.1.
_ARG_FILTER: Final = "x-mqtt-filter"  # where it does not follow from the binding key
_ARG_ID: Final = "x-mqtt-subscription-id"
_ARG_NO_LOCAL: Final = "x-mqtt-no-local"
_ARG_AS_PUBLISHED: Final = "x-mqtt-retain-as-published"


def arguments_of(wanted: Wanted, identifier: int) -> bytes:
    """Return the arguments of the binding of a subscription."""
    table: Table = {}
    if has_star(wanted.filter):
        table[_ARG_FILTER] = wanted.filter
    if identifier:
        table[_ARG_ID] = identifier
    if wanted.no_local:
        table[_ARG_NO_LOCAL] = True
    if wanted.as_published:
        table[_ARG_AS_PUBLISHED] = True
    return encode_table(table) if table else EMPTY_TABLE


def _identifier_of(value: object) -> int:
    """Return the subscription identifier in the arguments of a binding, which any client may have made; 0: not set."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 < value <= SUBSCRIPTION_ID_MAX else 0


def subscription_of(binding: Binding, qos: int) -> Subscription:
    """Return the subscription that a binding represents, even if another client made the binding."""
    table = decode_table(binding.arguments)
    filter_ = table.get(_ARG_FILTER)
    return Subscription(
        filter_ if isinstance(filter_, str) else filter_of(binding.routing_key),
        qos,
        table.get(_ARG_NO_LOCAL) is True,
        table.get(_ARG_AS_PUBLISHED) is True,
        _identifier_of(table.get(_ARG_ID)),
        binding.arguments,
    )
