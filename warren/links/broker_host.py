"""The broker as the host of its links: `host.Host` over `server.management.Management`.

The demand of a queue is polled every `DEMAND_EVERY_S`, and only for queues that a link has asked about. Notifications
would cost something at every delivery. The poll compares the demand with the answers that links have got since they
were last notified, not with the last poll: between two polls a queue may be full and empty again. A link that asked in
between acts on an answer that no poll has seen, and would wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import trio

from warren.engine_view.permissions import INTERNAL_USER
from warren.engine_view.refs import BindingRef, ExchangeRef, QueueRef
from warren.engine_view.topology import TopologyListener
from warren.links import shovel, upstreams
from warren.links.amqp_client import Signal
from warren.links.host import Listener, LocalBinding, LocalExchange, LocalQueue, Parameter, Policy
from warren.server.logs import get_logger
from warren.server.management import CommitTimeout, Management
from warren.vhosts.metadata import ParameterDelete

DEMAND_EVERY_S: Final = 0.1
AT_ONCE: Final = 64  # queues or exchanges whose policies are looked up before other tasks get a turn
COMPONENTS: Final = ("shovel", "federation-upstream", "federation-upstream-set")
FEDERATION_KEYS: Final = (upstreams.UPSTREAM, upstreams.UPSTREAM_SET, upstreams.UPSTREAM_PATTERN)
PURPOSE: Final = "x-internal-purpose"

log = get_logger("links")


class BrokerHost:
    """One broker, as its links see it. See `host.Host` for the methods."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._view = management.view
        self._listeners: list[Listener] = []
        self._answers: dict[tuple[str, str], set[bool]] = {}  # answers of `wants_messages` since the last notification
        self._asked = Signal()
        parameters = self._view.parameters
        parameters.validate_by("shovel", self._shovel_problems)
        parameters.validate_by("federation-upstream", self._upstream_problems)
        parameters.validate_by("federation-upstream-set", _set_problems)
        parameters.watch(self.definitions_changed)
        self._view.watch(_Watcher(self))

    # --- valid parameters -----------------------------------------------------------------------------------------

    def _may_connect(self, user: str) -> Callable[[str], bool] | None:
        """Return a test for vhosts that `user` may use, None for all: links themselves log in as the broker."""
        if user in ("", INTERNAL_USER):
            return None
        return lambda vhost: self._view.permissions.maybe_rights(user, vhost) is not None

    def _shovel_problems(self, vhost: str, name: str, value: Any, by: str) -> list[str]:
        return shovel.validate(name, value, user=by, may_connect=self._may_connect(by))

    def _upstream_problems(self, vhost: str, name: str, value: Any, by: str) -> list[str]:
        return upstreams.validate_upstream(name, value, user=by, may_connect=self._may_connect(by), vhost=vhost)

    # --- the objects of the broker --------------------------------------------------------------------------------

    @property
    def held_reason(self) -> str:
        return self._management.held_links.reason

    @property
    def cluster_name(self) -> str:
        return self._view.cluster_name()

    @property
    def node_name(self) -> str:
        return self._view.node_name()

    def now(self) -> float:
        return time.time()

    def parameters(self) -> Sequence[Parameter]:
        return [
            Parameter(each.component, each.vhost, each.name, _json(each.value))
            for each in self._view.parameters.of(None, None)
            if each.component in COMPONENTS
        ]

    async def federated_exchanges(self) -> Sequence[LocalExchange]:
        found: list[LocalExchange] = []
        exchanges = self._view.exchanges
        for vhost in self._federating():
            for at, exchange in enumerate(exchanges.in_vhost(vhost), 1):
                if at % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                policy = self._exchange_policy(vhost, exchange)
                if policy is not None and exchanges.name(exchange) and not exchanges.has_argument(exchange, PURPOSE):
                    found.append(LocalExchange(vhost, exchanges.declaration(exchange), policy))
        return found

    async def federated_queues(self) -> Sequence[LocalQueue]:
        found: list[LocalQueue] = []
        queues = self._view.queues
        for vhost in self._federating():
            for at, queue in enumerate(queues.in_vhost(vhost), 1):
                if at % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                policy = self._queue_policy(vhost, queue)
                if policy is None or not queues.is_shared(queue):
                    continue
                declaration = queues.declaration(queue)
                if PURPOSE.encode() not in declaration.arguments:
                    found.append(LocalQueue(vhost, declaration, policy))
        return found

    def _federating(self) -> list[str]:
        return [vhost for vhost in self._view.vhosts if self._federates(vhost)]

    def _federates(self, vhost: str) -> bool:
        return self._view.policies.have(vhost, FEDERATION_KEYS)

    def _exchange_policy(self, vhost: str, exchange: ExchangeRef) -> Policy | None:
        return _federation(self._view.policies.texts_of_exchange(vhost, exchange, FEDERATION_KEYS))

    def _queue_policy(self, vhost: str, queue: QueueRef) -> Policy | None:
        return _federation(self._view.policies.texts_of_queue(vhost, queue, FEDERATION_KEYS))

    def bindings(self, vhost: str, exchange: str) -> Iterable[LocalBinding]:
        source = self._view.exchanges.maybe(vhost, exchange)
        return map(self._local, [] if source is None else self._view.bindings.of(source))

    def _local(self, binding: BindingRef) -> LocalBinding:
        row = self._view.bindings.row(binding)
        return LocalBinding(row.routing_key, row.arguments)

    def wants_messages(self, vhost: str, queue: str) -> bool:
        found = self._view.queues.maybe(vhost, queue)
        wants = found is not None and self._view.queues.wants_messages(found)
        self._answers.setdefault((vhost, queue), set()).add(wants)
        self._asked.wake()
        return wants

    # --- changes ----------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def definitions_changed(self) -> None:
        """Notify listeners that the wanted links may be others now."""
        for listener in self._listeners:
            listener.definitions_changed()

    def exchange_changed(self, vhost: str, exchange: ExchangeRef) -> None:
        """Handle an exchange that was created or deleted: a new one of the same name has other bindings."""
        if self._federates(vhost) and self._exchange_policy(vhost, exchange) is not None:
            self.definitions_changed()
            for listener in self._listeners:
                listener.bindings_changed(vhost, self._view.exchanges.name(exchange))

    def queue_changed(self, vhost: str, queue: QueueRef) -> None:
        """Handle a queue that was created or deleted: a new one of the same name has other consumers."""
        if self._federates(vhost) and self._queue_policy(vhost, queue) is not None:
            self.definitions_changed()
            for listener in self._listeners:
                listener.demand_changed(vhost, self._view.queues.name(queue))

    def binding_changed(self, vhost: str, source: ExchangeRef, binding: BindingRef, count: int) -> None:
        """Pass on a binding that came or went. A deleted exchange loses its bindings later: those are not passed on."""
        if not self._federates(vhost):
            return
        name = self._view.exchanges.name(source)
        if self._view.exchanges.maybe(vhost, name) is source:
            for listener in self._listeners:
                listener.binding_changed(vhost, name, self._local(binding), count)

    async def watch_demand(self) -> None:
        """Watch the demand of the queues that links have asked about, until cancelled."""
        while True:
            if not self._answers:
                await self._asked.wait()
            await trio.sleep(DEMAND_EVERY_S)
            for at, (key, answers) in enumerate(list(self._answers.items()), 1):
                if at % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                queue = self._view.queues.maybe(*key)
                if queue is None or not answers:
                    del self._answers[key]  # nobody has asked since the notification: the link is gone
                elif (not self._view.queues.wants_messages(queue)) in answers:
                    answers.clear()
                    for listener in self._listeners:
                        listener.demand_changed(*key)

    async def delete_parameter(self, component: str, vhost: str, name: str, value: Any) -> None:
        found = self._view.parameters.maybe(vhost, component, name)
        if found is None or found.value != value:
            return
        try:
            await self._management.administer(ParameterDelete(vhost, component, name), INTERNAL_USER)
        except (ValueError, CommitTimeout) as error:
            log.warning("a parameter was not deleted", component=component, vhost=vhost, name=name, reason=str(error))

    # --- the way in -------------------------------------------------------------------------------------------------

    async def open_local(self) -> trio.abc.Stream:
        sock = self._management.open_local()
        sock.setblocking(False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(sock))

    def local_login(self) -> tuple[str, str]:
        return INTERNAL_USER, self._management.internal_password.decode()

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        await self._management.tasks.keep(name, work)

    def log(self, level: str, event: str, **details: object) -> None:
        write: Callable[..., None] = getattr(log, level)
        write(event, **details)


class _Watcher(TopologyListener):
    """Hears of all objects that could have a federation policy, and passes on those that have one.

    Many clients declare and delete queues of their own. Without this check, each of these changes would start a search
    for links among all objects. In a vhost without a federation policy, not even the policy of the object is looked up.
    """

    def __init__(self, host: BrokerHost) -> None:
        self._host = host

    def exchange_changed(self, vhost: str, exchange: ExchangeRef) -> None:
        self._host.exchange_changed(vhost, exchange)

    def queue_changed(self, vhost: str, queue: QueueRef) -> None:
        self._host.queue_changed(vhost, queue)

    def binding_changed(self, vhost: str, source: ExchangeRef, binding: BindingRef, count: int) -> None:
        self._host.binding_changed(vhost, source, binding, count)

    def policies_changed(self, vhost: str) -> None:
        self._host.definitions_changed()

    def vhost_deleted(self, vhost: str) -> None:
        self._host.definitions_changed()


def _set_problems(vhost: str, name: str, value: Any, by: str) -> list[str]:
    return upstreams.validate_upstream_set(name, value)


def _federation(texts: list[str | None]) -> Policy | None:
    """Return the federation keys that are in effect, None when none of them is set."""
    return Policy(*texts) if any(texts) else None


def _json(value: object) -> Any:
    return value
