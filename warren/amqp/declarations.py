"""Declarations: one value for an exchange and one for a queue, for every place that declares them.

    exchange.declare, queue.declare         `of_method`, and back with `method`
    PUT of the API, the testing kit, links  the value, sent as that method
    a file of definitions, a super stream,
    a drain                                 the value, given to the virtual host
    the catalogue                           `ExchangePut.declaration`, `QueuePut.declaration`
    what there is                           `Exchange.declaration`, `BaseQueue.declaration`

1. A declaration does not change. It equals another declaration with the same content. Its flags are given by name.
2. It leaves out what belongs to the method only (passive, no_wait, ticket), and also the user that declares.
3. It states a request, not whether the request is possible. The code that makes or stores the exchange or queue checks
   that. Arguments are an encoded table, length included, byte for byte as they came.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE


@dataclass(frozen=True, slots=True)
class ExchangeDeclaration:
    """An exchange as a client wants it, or as it is."""

    name: str
    type: str
    _: KW_ONLY
    durable: bool
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = EMPTY_TABLE

    @classmethod
    def of_method(cls, method: m.ExchangeDeclare, name: str) -> ExchangeDeclaration:
        """Return what `method` declares under `name`."""
        return cls(
            name,
            method.type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
        )

    def method(self, *, passive: bool = False) -> m.ExchangeDeclare:
        """Return the method that declares it and is answered."""
        return m.ExchangeDeclare(
            0,
            self.name,
            self.type,
            passive=passive,
            durable=self.durable,
            auto_delete=self.auto_delete,
            internal=self.internal,
            no_wait=False,
            arguments=self.arguments,
        )


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue as a client wants it, or as it is. Its type is in its arguments."""

    name: str
    _: KW_ONLY
    durable: bool
    exclusive: bool = False
    auto_delete: bool = False
    arguments: bytes = EMPTY_TABLE

    @classmethod
    def of_method(cls, method: m.QueueDeclare, name: str) -> QueueDeclaration:
        """Return what `method` declares under `name`."""
        return cls(
            name,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=method.arguments,
        )

    def method(self, *, passive: bool = False) -> m.QueueDeclare:
        """Return the method that declares it and is answered."""
        return m.QueueDeclare(
            0,
            self.name,
            passive=passive,
            durable=self.durable,
            exclusive=self.exclusive,
            auto_delete=self.auto_delete,
            no_wait=False,
            arguments=self.arguments,
        )
