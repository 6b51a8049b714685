"""The common part of all exchange types: bindings, alternate exchange, the checks of a redeclaration.

1. ``bindings`` holds every binding that has this exchange as its source, once per identity, as its own key, in the
   order of binding.
2. ``by_destination`` maps each destination with a binding to the first binding of its chain. ``downstream`` holds
   those of the destinations that are exchanges, and no others.
3. `bind` and `unbind` keep the type's own index (`_index`, `_unindex`) in step with ``bindings``.
4. Removing one binding costs the same with ten and with a hundred thousand others.

Bindings that end here, permissions, auto-delete and durability are the vhost's business.

A type that does more than route overrides some of `enter`, `publish`, `is_used`, `maybe_bind_job`, `forget` and
`close`, and is not ``cacheable``. Other modules use only these methods, and do not ask for the type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import Table, decode_table
from warren.amqp.inequivalence import check_argument, check_flag, check_text
from warren.exchanges.binding import Binding, chained_to_destination, unchained_to_destination
from warren.exchanges.content import Content
from warren.msgstore.log.message import Message
from warren.queues.destination import Destination
from warren.queues.long_work import Job, Steps

if TYPE_CHECKING:
    from warren.exchanges.exchange_host import ExchangeHost
    from warren.queues.base_queue import BaseQueue

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
SUPER_STREAM: Final = "x-super-stream"


class BindJob(Job):
    """Makes a binding in several turns. `is_done`: it is made, was given up, or one of its ends is gone."""

    def __init__(self) -> None:
        self.is_done: bool = False

    def units(self) -> i64:
        """Return about how many units of work the whole job takes."""
        raise AssertionError("overridden")


class Exchange(Destination):
    """An exchange of any type; the types override `match`, and how they maintain their index.

    ``alternate`` is the exchange for messages that match nothing here; ``""`` means no alternate. ``policy`` is the
    name of the policy that it follows. ``cacheable`` tells that the destinations depend on the bindings and the routing
    key only. ``is_super_stream`` tells that the streams bound here are the partitions of one (`vhosts.super_streams`).
    ``declared_by`` is the user that declared it; ``""`` means that the user is not known.
    """

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration.name)
        self.type_name = declaration.type
        self.durable = declaration.durable
        self.auto_delete = declaration.auto_delete
        self.internal = declaration.internal
        self.arguments = declaration.arguments
        table = self.table
        alternate = table.get(ALTERNATE_EXCHANGE)
        self.is_super_stream: bool = table.get(SUPER_STREAM) is True
        self.partition_places: dict[Destination, int] | None = None  # None: not computed yet (`vhosts.super_streams`)
        self.alternate: str = alternate if isinstance(alternate, str) else ""
        self.policy: str | None = None
        self.declared_by: str = ""
        self.cacheable = True
        # Whether all exchanges that messages may reach from here are cacheable, by the topology of version `looked_at`.
        self.has_cacheable_routes: bool = False
        self.looked_at: i64 = 0
        self.published_in: i64 = 0  # messages that channels published here
        self.spread: i64 = 0  # routed copies minus messages published here; may be negative
        self.seen_activity: i64 = -1  # belongs to `exchanges.activity`
        self.bindings: dict[Binding, Binding] = {}
        self.binding_bytes: i64 = 0  # the size of the arguments of all bindings
        self.by_destination: dict[Destination, Binding] = {}
        self.downstream: dict[Exchange, None] = {}

    @property
    def published_out(self) -> int:
        """The number of copies that queues got of messages that channels published here.

        Copies that went through other exchanges, by bindings or as alternates, count here and not there.
        """
        return int(self.published_in + self.spread)

    @property
    def table(self) -> Table:
        """The decoded arguments, decoded again at each call.

        Raises:
            ConnectionException: 501, a key is not UTF-8.
        """
        return decode_table(self.arguments)

    def is_bound_to(self, destination: Destination) -> bool:
        """Return whether any binding leads from here to `destination`."""
        return destination in self.by_destination

    def has_binding(self, destination: Destination, routing_key: str, arguments: bytes) -> bool:
        """Return whether there is the binding of this identity."""
        return Binding(self, destination, routing_key, arguments) in self.bindings

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        """Append the destination of each matching binding to `found`; a destination may appear several times."""
        raise NotImplementedError

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        """Append the destinations of a message with `routing_keys`, at least one, to `found`.

        The first is the message's own, the others come from its CC and BCC headers. Types that choose without
        looking at the key, or choose one destination per message, override this.
        """
        for routing_key in routing_keys:
            self.match(routing_key, content, found)

    def enter(self, host: ExchangeHost) -> None:
        """Begin to work: the exchange is in the vhost `host` now."""

    def publish(self, message: Message) -> i64:
        """Act on a message for which `match` has noted the exchange (`Content.acts`), after it passed all checks.

        Returns the outcome for its publisher (``queues.outcome``). The queues of the message get it afterwards,
        whatever the outcome is.
        """
        raise AssertionError("overridden")

    def is_used(self) -> bool:
        """Tell whether anything is bound here, or is about to be bound."""
        return len(self.bindings) > 0

    def maybe_bind_job(
        self, host: ExchangeHost, queue: BaseQueue, binding: Binding, by: str, done: Callable[[int], None]
    ) -> BindJob | None:
        """Return a job that makes `binding`, whose destination is `queue`; None: the vhost makes it at once.

        `done` gets the ticket to wait for.

        Raises:
            ChannelException: 406, the type refuses the binding.
        """
        return None

    def forget(self, steps: Steps) -> bool:
        """Release what a deleted exchange keeps, until no steps are left; True when all is released."""
        return True

    def close(self) -> None:
        """End: the exchange is deleted."""

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        """Refuse a binding key or arguments that this type cannot use.

        Raises:
            ChannelException: 406, with the reason of the type.
        """

    def bind(self, binding: Binding) -> bool:
        """Add `binding`, whose source is this exchange; return False if an identical one was there."""
        if binding in self.bindings:
            return False
        self.bindings[binding] = binding
        self.binding_bytes += len(binding.arguments)
        destination = binding.destination
        first = self.by_destination.get(destination)
        self.by_destination[destination] = chained_to_destination(first, binding)
        if first is None and isinstance(destination, Exchange):
            self.downstream[destination] = None
        self._index(binding)
        return True

    def unbind(self, destination: Destination, routing_key: str, arguments: bytes) -> Binding | None:
        """Remove and return the binding of this identity; None when it does not exist."""
        binding = self.bindings.pop(Binding(self, destination, routing_key, arguments), None)
        if binding is None:
            return None
        self.binding_bytes -= len(arguments)
        first = unchained_to_destination(self.by_destination[destination], binding)
        if first is None:
            self._forget_destination(destination)
        else:
            self.by_destination[destination] = first
        self._unindex(binding)
        return binding

    @property
    def declaration(self) -> ExchangeDeclaration:
        """The declaration of an exchange like this one."""
        return ExchangeDeclaration(
            self.name,
            self.type_name,
            durable=self.durable,
            auto_delete=self.auto_delete,
            internal=self.internal,
            arguments=self.arguments,
        )

    def check_equivalent(self, declaration: ExchangeDeclaration, vhost_name: str) -> None:
        """Refuse a redeclaration that differs in a property or in ``alternate-exchange``.

        Raises:
            ChannelException: 406, ``inequivalent arg ...``.
        """
        check_text("exchange", self.name, vhost_name, "type", declaration.type, self.type_name)
        check_flag("exchange", self.name, vhost_name, "durable", declaration.durable, self.durable)
        check_flag("exchange", self.name, vhost_name, "auto_delete", declaration.auto_delete, self.auto_delete)
        check_flag("exchange", self.name, vhost_name, "internal", declaration.internal, self.internal)
        check_argument("exchange", self.name, vhost_name, ALTERNATE_EXCHANGE, declaration.arguments, self.arguments)

    def _index(self, binding: Binding) -> None:
        """Add `binding` to the index that `match` uses."""

    def _unindex(self, binding: Binding) -> None:
        """Remove `binding` from the index that `match` uses; ``bindings`` no longer has it."""

    def _forget_destination(self, destination: Destination) -> None:
        del self.by_destination[destination]
        if isinstance(destination, Exchange):
            del self.downstream[destination]
