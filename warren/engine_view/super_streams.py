"""Super streams: exchanges with the streams that they spread their messages over."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from warren.amqp.field_table import EMPTY_TABLE
from warren.engine_view.exchanges import Placed
from warren.engine_view.refs import ExchangeRef
from warren.exchanges.exchange import SUPER_STREAM as SUPER_STREAM
from warren.exchanges.exchange import Exchange
from warren.exchanges.super_stream_exchange import SUPER_STREAM_TYPE as SUPER_STREAM_TYPE
from warren.vhosts.super_streams import DIRECT as DIRECT
from warren.vhosts.super_streams import PARTITIONS_MAX as PARTITIONS_MAX
from warren.vhosts.super_streams import bound_partitions, maybe_order, partitions_of
from warren.vhosts.virtual_host import VirtualHost


class PartitionRow(msgspec.Struct, frozen=True):
    """A partition, and its place among them; None: it does not ask for one."""

    name: str
    routing_key: str
    order: int | None
    messages: int
    first_offset: int
    next_offset: int


class SuperStreamRow(msgspec.Struct, frozen=True):
    """A super stream with its partitions in order. `arguments`: of the partitions, an encoded field table."""

    name: str
    type: str
    arguments: bytes
    partitions: list[PartitionRow]


class SuperStreams:
    """The super streams of one engine."""

    def __init__(self, vhosts: Mapping[str, VirtualHost]) -> None:
        self._vhosts = vhosts

    def in_order(self, vhost: str) -> list[Placed]:
        """Return the exchanges of the super streams of a vhost by name. Proportional to all of its exchanges."""
        found = self._vhosts.get(vhost)
        exchanges = {} if found is None else found.exchanges
        return [(vhost, ExchangeRef(exchanges[name])) for name in sorted(exchanges) if exchanges[name].is_super_stream]

    def names(self, vhost: str) -> list[str]:
        """Return the names of the super streams of a vhost, in any order."""
        found = self._vhosts.get(vhost)
        return [] if found is None else [each.name for each in found.exchanges.values() if each.is_super_stream]

    def maybe(self, vhost: str, name: str) -> Placed | None:
        """Return the exchange of the super stream with this name."""
        found = self._vhosts.get(vhost)
        exchange = None if found is None else found.exchanges.get(name)
        return None if exchange is None or not exchange.is_super_stream else (vhost, ExchangeRef(exchange))

    def maybe_partitions(self, vhost: str, name: str) -> list[str] | None:
        """Return the names of the partitions of a super stream in order; None: it does not exist."""
        found = self._vhosts.get(vhost)
        return None if found is None else partitions_of(found, name)

    def row(self, of: Placed) -> SuperStreamRow:
        """Return a super stream."""
        exchange = of[1]
        assert isinstance(exchange, Exchange)
        partitions: list[PartitionRow] = []
        arguments = EMPTY_TABLE
        for stream, binding in bound_partitions(exchange):
            if not partitions:
                arguments = stream.arguments
            count, first, following = int(stream.message_count), stream.first_offset(), stream.next_offset()
            partitions.append(
                PartitionRow(stream.name, binding.routing_key, maybe_order(binding), count, first, following)
            )
        return SuperStreamRow(exchange.name, exchange.type_name, arguments, partitions)
