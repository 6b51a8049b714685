"""The interface of links to the broker they live in; the broker implements it, and tests have a fake.

1. All methods run on trio's thread. Those that are not ``async`` return at once, from memory.
2. `Listener` calls are hints: they may come too often, and never too seldom. A listener reads the state again after a
   call. `binding_changed` is the exception: it comes once for each change, since listeners count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.links.validation import Json


@dataclass(frozen=True)
class Parameter:
    """A runtime parameter. ``component``: shovel, federation-upstream or federation-upstream-set."""

    component: str
    vhost: str
    name: str
    value: Json = field(repr=False)


@dataclass(frozen=True)
class Policy:
    """The federation keys of the policy that is in effect for an exchange or queue; at most one is set."""

    upstream: str | None = None
    upstream_set: str | None = None
    upstream_pattern: str | None = None


@dataclass(frozen=True)
class LocalExchange:
    """An exchange with a federation policy.

    Never the default exchange, nor one with the argument ``x-internal-purpose``.
    """

    vhost: str
    declaration: ExchangeDeclaration
    policy: Policy


@dataclass(frozen=True)
class LocalQueue:
    """A queue with a federation policy.

    Never an exclusive one, nor one with the argument ``x-internal-purpose``.
    """

    vhost: str
    declaration: QueueDeclaration
    policy: Policy


@dataclass(frozen=True)
class LocalBinding:
    """A binding whose source is a federated exchange; its destination, queue or exchange, does not matter."""

    binding_key: str
    arguments: bytes


class Listener(Protocol):
    """A listener for changes. Its methods return at once and must not raise."""

    def definitions_changed(self) -> None:
        """Report that a parameter, a policy, or an exchange or queue that could have one came, changed or went."""

    def bindings_changed(self, vhost: str, exchange: str) -> None:
        """Report that the bindings with a federated exchange as source may have changed: read all of them again."""

    def binding_changed(self, vhost: str, exchange: str, binding: LocalBinding, count: int) -> None:
        """Report that a federated exchange has gained an outgoing binding (`count` 1), or lost one (-1)."""

    def demand_changed(self, vhost: str, queue: str) -> None:
        """Report that `Host.wants_messages` of a federated queue may have changed."""


class Host(Protocol):
    """The broker around the links."""

    @property
    def held_reason(self) -> str:
        """The reason why no link may run; empty when they may. `definitions_changed` reports a change of it."""

    @property
    def cluster_name(self) -> str:
        """The name by which other brokers know this one: in names of upstream queues, and in x-received-from.

        It prevents loops. It is the ``cluster_name`` that this broker announces in its server-properties. It must
        differ between brokers that are linked, and should not change.
        """

    @property
    def node_name(self) -> str:
        """The name in status objects."""

    def now(self) -> float:
        """Return seconds since the epoch."""

    def parameters(self) -> Sequence[Parameter]:
        """Return the parameters of the three components, of all vhosts."""

    async def federated_exchanges(self) -> Sequence[LocalExchange]:
        """Return the exchanges with a federation key in their policy. Other tasks get turns during the search."""

    async def federated_queues(self) -> Sequence[LocalQueue]:
        """Return the queues with a federation key in their policy, in the same way."""

    def bindings(self, vhost: str, exchange: str) -> Iterable[LocalBinding]:
        """Return the current bindings whose source is that exchange; empty when it is gone. They may be very many."""

    def wants_messages(self, vhost: str, queue: str) -> bool:
        """Tell whether the queue has no ready message, and a consumer of priority 0 or higher that could take one.

        Consumers of lower priority do not count: federation links themselves consume with -1, and two brokers that
        are each other's upstream would pass messages to and fro.
        """

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every change from now on; return the function that ends this."""

    async def delete_parameter(self, component: str, vhost: str, name: str, value: Json) -> None:
        """Delete a parameter if it has this value: a shovel deletes its own when it is done, and not a later one."""

    async def open_local(self) -> trio.abc.Stream:
        """Connect to this broker's AMQP without TLS, by a socket or by any stream that is served like one.

        Raises:
            OSError: it is not possible now.
        """

    def local_login(self) -> tuple[str, str]:
        """Return user and password of the internal user that links log in as, by PLAIN, over `open_local`.

        It has all permissions in all vhosts and the tag ``impersonator`` (messages keep their user-id when
        trust-user-id says so). It exists for `open_local` alone and has no password that would work elsewhere.
        """

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` for ever: its errors are logged, it is shown as failing, and it is started again."""

    def log(self, level: str, event: str, **details: object) -> None:
        """Write a log line: level ``info``, ``warning`` or ``error``. Details hold no credentials."""
