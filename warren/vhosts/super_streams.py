"""Super streams: an exchange and the streams that it spreads its messages over, its partitions.

    exchange NAME      durable, with the argument ``x-super-stream: true``; of type ``x-super-stream``, which hashes the
                       routing key, or ``direct``, where the client chooses the partition
    stream NAME-KEY    bound with the binding key KEY, ``0`` to ``N-1`` unless others are given
    each binding       has ``x-stream-partition-order``: 0, 1, ...

This is RabbitMQ's topology. It consists of ordinary exchanges, queues and bindings: a client can make a super stream by
declaring these, and they are stored, exported and deleted like all others.

    exchange.declare with    makes also
    x-super-stream: N        the partitions ``0`` to ``N-1``; of both types (Warren's own)
    x-super-stream: [KEYS]   a partition for each of these texts; of type ``direct`` (Warren's own)

1. A declaration that makes partitions is carried out as a whole or refused. Its changes are appended to the journal
   together: all of them are committed, or none. Equivalent streams that exist already become the partitions.
2. The exchange becomes the same as if a client of RabbitMQ had declared it: ``x-super-stream`` is true. Arguments for
   streams go to the partitions, and the exchange does not have them.
3. If a super stream is declared again, the number of partitions, their binding keys and their arguments must be the
   same. Then nothing is made.
4. The order of partitions is that of ``x-stream-partition-order``. Those without it come last, in the order of binding.
   A stream counts once, at its first place.
5. A super stream has at most `PARTITIONS_MAX` bindings, since a change of one may change the places of all partitions.
   If an earlier version has stored more bindings, they are kept.

Sources: RabbitMQ, "Super Streams"; the plugin ``rabbitmq_stream`` of 4.x.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import (
    EMPTY_TABLE,
    TYPE_NAMES,
    Table,
    Timestamp,
    decode_table,
    encode_table,
    find_tag,
    with_length,
    without_key,
)
from warren.amqp.inequivalence import locked
from warren.amqp.term_text import term_text
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import SUPER_STREAM, Exchange
from warren.exchanges.super_stream_exchange import SUPER_STREAM_TYPE
from warren.queues.arguments import ARGUMENTS, STREAM, QueueArguments
from warren.queues.destination import Destination
from warren.streams.stream import Stream

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

PARTITION_ORDER: Final = "x-stream-partition-order"
PARTITIONS_MAX: Final = 1_000
DIRECT: Final = "direct"
_UNORDERED: Final = 1 << 62
# Arguments for the exchange itself: exchanges can drop repetitions before they route.
_OF_EXCHANGES: Final = ("message-deduplication", "deduplication-header", "cache-size", "cache-ttl")
STREAM_ARGUMENTS: Final = tuple([row.name for row in ARGUMENTS if row.fits(STREAM) and row.key not in _OF_EXCHANGES])


# --- what there is ------------------------------------------------------------------------------------------------


def bound_partitions(exchange: Exchange) -> list[tuple[Stream, Binding]]:
    """Return each stream that is bound to `exchange`, with its first binding, in order (4)."""
    ordered: list[tuple[int, int, Stream, Binding]] = []
    for at, binding in enumerate(exchange.bindings.values()):
        stream = binding.destination
        if isinstance(stream, Stream):
            order = maybe_order(binding)
            ordered.append((_UNORDERED if order is None else order, at, stream, binding))
    ordered.sort(key=_place)
    found: dict[str, tuple[Stream, Binding]] = {}
    for _, _, stream, binding in ordered:
        found.setdefault(stream.name, (stream, binding))
    return list(found.values())


def maybe_order(binding: Binding) -> int | None:
    """Return the place among the partitions that `binding` asks for; None: it does not ask for one."""
    if binding.arguments == EMPTY_TABLE:
        return None
    order = binding.table.get(PARTITION_ORDER)
    return int(order) if isinstance(order, int) and not isinstance(order, bool) else None


def partitions(exchange: Exchange) -> list[Stream]:
    """Return the partitions of `exchange`, in order; an empty list if it is not a super stream."""
    if not exchange.is_super_stream:
        return []
    return [stream for stream, _ in bound_partitions(exchange)]


def partition_places(exchange: Exchange) -> dict[Destination, int]:
    """Return the place of each partition of `exchange`, from 0; -1 for other destinations bound to it."""
    places = exchange.partition_places
    if places is None:
        places = dict.fromkeys(exchange.by_destination, -1)
        for place, stream in enumerate(partitions(exchange)):
            places[stream] = place
        exchange.partition_places = places
    return places


def partitions_moved(exchange: Exchange, gone: list[Destination]) -> None:
    """Regroup the consumers of partitions after a change of the bindings of `exchange`; those of `gone` too."""
    if not exchange.is_super_stream:
        return
    exchange.partition_places = None
    for destination in [*exchange.by_destination, *gone]:
        if isinstance(destination, Stream) and destination.groups is not None:
            destination.groups.regroup()


def bindings_max(exchange: Exchange, limit: int) -> int:
    """Return how many bindings `exchange` may have where `limit` applies to any exchange (5)."""
    return min(limit, PARTITIONS_MAX) if exchange.is_super_stream else limit


def partitions_of(vhost: VirtualHost, name: str) -> list[str] | None:
    """Return the names of the partitions of the super stream called `name`, in order; None: it does not exist."""
    exchange = vhost.exchanges.get(name)
    if exchange is None or not exchange.is_super_stream:
        return None
    return [stream.name for stream in partitions(exchange)]


def _place(entry: tuple[int, int, Stream, Binding]) -> tuple[int, int]:
    return entry[0], entry[1]


# --- declaring ----------------------------------------------------------------------------------------------------


class SuperStreamDeclaration:
    """A declaration of an exchange with partitions: one of the exchange itself, and one of each partition."""

    def __init__(self, exchange: ExchangeDeclaration, keys: list[str], stream_arguments: bytes) -> None:
        self.exchange = exchange
        self.keys = keys  # of the bindings, in order
        self.streams: list[QueueDeclaration] = [
            QueueDeclaration(f"{exchange.name}-{key}", durable=True, arguments=stream_arguments) for key in keys
        ]

    @property
    def name(self) -> str:
        """The name of the exchange."""
        return self.exchange.name

    def partition_names(self) -> list[str]:
        """Return the names of the partitions, in order."""
        return [stream.name for stream in self.streams]


def maybe_super_stream(declaration: ExchangeDeclaration, vhost_name: str) -> SuperStreamDeclaration | None:
    """Return the super stream that a declaration of an exchange asks for; None: it asks for an exchange only.

    Raises:
        ChannelException: 406, it asks for impossible partitions.
    """
    arguments: bytes = declaration.arguments
    type_name: str = declaration.type
    if len(arguments) == len(EMPTY_TABLE) or type_name not in (SUPER_STREAM_TYPE, DIRECT):
        return None
    tag = find_tag(arguments, SUPER_STREAM)
    if tag in ("", "t"):
        return None
    table = decode_table(arguments)
    value = table[SUPER_STREAM]
    where = f"for exchange '{declaration.name}' in vhost '{vhost_name}'"
    keys = _keys_of(value, type_name)
    if keys is None:
        if type_name == DIRECT:
            return None  # means nothing to RabbitMQ either
        text = f"invalid arg '{SUPER_STREAM}' {where}: "
        raise _refusal(f"{text}{{invalid_super_stream,{{{TYPE_NAMES[tag]},{term_text(value)}}}}}")
    if declaration.auto_delete or not declaration.durable:
        raise _refusal(f"invalid property '{'auto-delete' if declaration.auto_delete else 'non-durable'}' {where}")
    own = without_key(arguments, SUPER_STREAM.encode())
    passed_on: Table = {"x-queue-type": STREAM}
    for argument in STREAM_ARGUMENTS:
        if argument in table:
            own = without_key(own, argument.encode())
            passed_on[argument] = table[argument]
    own = with_length(own[4:] + encode_table({SUPER_STREAM: True})[4:])
    wanted = SuperStreamDeclaration(replace(declaration, arguments=own), keys, encode_table(passed_on))
    for partition in wanted.partition_names():
        if len(partition.encode()) > NAME_MAX_BYTES:
            raise _refusal(f"a partition would have a name of more than {NAME_MAX_BYTES} bytes {where}")
    return wanted


def _keys_of(value: object, type_name: str) -> list[str] | None:
    """Return the binding keys that the value of ``x-super-stream`` asks for; None when they are impossible."""
    if isinstance(value, list):
        keys = [key for key in value if isinstance(key, str) and 0 < len(key.encode()) <= NAME_MAX_BYTES]
        possible = type_name == DIRECT and 0 < len(keys) <= PARTITIONS_MAX
        return keys if possible and len(keys) == len(value) == len(set(keys)) else None
    if isinstance(value, int) and not isinstance(value, (bool, Timestamp)) and 0 < value <= PARTITIONS_MAX:
        return [str(number) for number in range(value)]
    return None


def check_declaration(vhost: VirtualHost, wanted: SuperStreamDeclaration) -> None:
    """Refuse a declaration that cannot be carried out as a whole, or that differs from existing parts (3).

    Raises:
        ChannelException: 406; 405, a queue of that name belongs to a connection.
    """
    exchange = vhost.exchanges.get(wanted.name)
    if exchange is None:
        for declaration in wanted.streams:
            queue = vhost.queues.get(declaration.name)
            if queue is None:
                QueueArguments(declaration, vhost.name)
            elif queue.owner is not None:
                raise locked(queue.name, vhost.name)
            else:
                QueueArguments.check_equivalent(queue, declaration)
        return
    exchange.check_equivalent(wanted.exchange, vhost.name)
    bound = bound_partitions(exchange) if exchange.is_super_stream else []
    current = [binding.routing_key for _, binding in bound]
    if current != wanted.keys:
        raise _inequivalent(wanted, vhost.name, current)
    for (stream, _), declaration in zip(bound, wanted.streams, strict=True):
        QueueArguments.check_equivalent(stream, declaration)


def declare_super_stream(vhost: VirtualHost, wanted: SuperStreamDeclaration, by: str) -> int:
    """Make the super stream `wanted`, unless it exists. Return the ticket to wait for; everything is in one batch.

    The caller applies the policies of the partitions, by `FirstPolicies`.

    Raises:
        ChannelException: 405 or 406, see `check_declaration`; or the exchange has a bad argument. Nothing is made.
    """
    check_declaration(vhost, wanted)
    new = wanted.name not in vhost.exchanges
    ticket = vhost.declare_exchange(wanted.exchange, by)
    if not new:
        return ticket
    exchange = vhost.exchanges[wanted.name]
    for order, declaration in enumerate(wanted.streams):
        vhost.declare_queue(declaration, by=by, follows_policies=False)
        arguments = encode_table({PARTITION_ORDER: order})
        is_last = order + 1 == len(wanted.keys)
        ticket = vhost.bind(
            exchange, vhost.queues[declaration.name], wanted.keys[order], arguments, by, is_last=is_last
        )
    return ticket


def _inequivalent(wanted: SuperStreamDeclaration, vhost_name: str, current: list[str]) -> ChannelException:
    received = _shown(wanted.keys)
    text = f"inequivalent arg '{SUPER_STREAM}' for exchange '{wanted.name}' in vhost '{vhost_name}': "
    return _refusal(f"{text}received '{received}' but current is '{_shown(current)}'")


def _shown(keys: list[str]) -> str:
    """Return the number of keys if a declaration with this number means these keys, else the keys."""
    return str(len(keys)) if keys == [str(number) for number in range(len(keys))] else ",".join(keys)


def _refusal(text: str) -> ChannelException:
    return ChannelException(PRECONDITION_FAILED, text)
