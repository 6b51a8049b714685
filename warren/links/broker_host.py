"""The broker as the host of its links: `host.Host` over `server.management.Management`.

The demand of a queue is polled every `DEMAND_EVERY_S`, and only for queues that a link has asked about: notifications
would cost every delivery. A change is measured against the answer that the link has got and acts on, not against the
last poll: between two polls a queue may be full and empty again, and a link that asked right then would wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import trio

from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.links import shovel, upstreams
from warren.links.amqp_client import Signal
from warren.links.host import Listener, LocalBinding, LocalExchange, LocalQueue, Parameter, Policy
from warren.queues.effective_policy import EffectivePolicy
from warren.queues.queue import Queue
from warren.server.logs import get_logger
from warren.server.management import CommitTimeout, Management
from warren.vhosts.metadata import ParameterDelete
from warren.vhosts.parameters import ParameterChange
from warren.vhosts.topology_watcher import INTERNAL_USER, TopologyWatcher
from warren.vhosts.virtual_host import VirtualHost

DEMAND_EVERY_S: Final = 0.1
AT_ONCE: Final = 64  # queues or exchanges whose policies are looked up without giving way
COMPONENTS: Final = ("shovel", "federation-upstream", "federation-upstream-set")
FEDERATION_KEYS: Final = (upstreams.UPSTREAM, upstreams.UPSTREAM_SET, upstreams.UPSTREAM_PATTERN)
PURPOSE: Final = "x-internal-purpose"

log = get_logger("links")


class BrokerHost:
    """One broker, as its links see it. See `host.Host` for the methods."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._broker = management.broker
        self._listeners: list[Listener] = []
        self._answers: dict[tuple[str, str], set[bool]] = {}  # of `wants_messages`, since it was told last
        self._asked = Signal()
        validators = self._broker.parameters.validators
        validators["shovel"] = self._shovel_problems
        validators["federation-upstream"] = self._upstream_problems
        validators["federation-upstream-set"] = _set_problems
        self._broker.parameters.listeners.append(self._parameter_changed)
        self._broker.watchers.add(_Watcher(self))

    # --- valid parameters -----------------------------------------------------------------------------------------

    def _may_connect(self, user: str) -> Callable[[str], bool] | None:
        """Return whether `user` may use a vhost: links log in to this broker as the broker itself."""
        if user in ("", INTERNAL_USER):
            return None
        return lambda vhost: self._broker.access.maybe_principal(user, vhost) is not None

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
        return self._broker.cluster_name()

    @property
    def node_name(self) -> str:
        return self._broker.node_name()

    def now(self) -> float:
        return time.time()

    def parameters(self) -> Sequence[Parameter]:
        return [
            Parameter(each.component, each.vhost, each.name, _json(each.value))
            for each in self._broker.parameters.parameters()
            if each.component in COMPONENTS
        ]

    async def federated_exchanges(self) -> Sequence[LocalExchange]:
        found: list[LocalExchange] = []
        for vhost in self._federating():
            for at, exchange in enumerate(list(vhost.exchanges.values()), 1):
                if at % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                policy = _exchange_policy(vhost, exchange)
                if policy is not None and exchange.name != "" and PURPOSE not in exchange.table:
                    found.append(LocalExchange(vhost.name, exchange.declaration, policy))
        return found

    async def federated_queues(self) -> Sequence[LocalQueue]:
        found: list[LocalQueue] = []
        for vhost in self._federating():
            for at, queue in enumerate(list(vhost.queues.values()), 1):
                if at % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                policy = _queue_policy(vhost, queue)
                if policy is not None and queue.owner is None and PURPOSE.encode() not in queue.arguments:
                    found.append(LocalQueue(vhost.name, queue.declaration, policy))
        return found

    def _federating(self) -> list[VirtualHost]:
        return [vhost for vhost in self._broker.vhosts.values() if vhost.policies.has_setting(FEDERATION_KEYS)]

    def bindings(self, vhost: str, exchange: str) -> Iterable[LocalBinding]:
        source = self._maybe_exchange(vhost, exchange)
        return map(_local, [] if source is None else list(source.bindings.values()))

    def _maybe_exchange(self, vhost: str, exchange: str) -> Exchange | None:
        place = self._broker.vhosts.get(vhost)
        return None if place is None else place.exchanges.get(exchange)

    def wants_messages(self, vhost: str, queue: str) -> bool:
        found = self._maybe_queue(vhost, queue)
        wants = found is not None and _wants_messages(found)
        self._answers.setdefault((vhost, queue), set()).add(wants)
        self._asked.wake()
        return wants

    def _maybe_queue(self, vhost: str, queue: str) -> Queue | None:
        place = self._broker.vhosts.get(vhost)
        return None if place is None else place.queues.get(queue)

    # --- changes ----------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def definitions_changed(self) -> None:
        """Something came, changed or went that links may be made for."""
        for listener in self._listeners:
            listener.definitions_changed()

    def exchange_changed(self, vhost: str, exchange: Exchange) -> None:
        """An exchange was created or deleted: another one of its name has other bindings."""
        place = self._broker.vhosts.get(vhost)
        if place is not None and _exchange_policy(place, exchange) is not None:
            self.definitions_changed()
            for listener in self._listeners:
                listener.bindings_changed(vhost, exchange.name)

    def queue_changed(self, vhost: str, queue: Queue) -> None:
        """A queue came or went."""
        place = self._broker.vhosts.get(vhost)
        if place is not None and _queue_policy(place, queue) is not None:
            self.definitions_changed()

    def binding_changed(self, vhost: str, binding: Binding, count: int) -> None:
        """A binding came or went: of an exchange that is there, for one that is gone loses its bindings later."""
        source = binding.source
        if self._maybe_exchange(vhost, source.name) is source:
            for listener in self._listeners:
                listener.binding_changed(vhost, source.name, _local(binding), count)

    def _parameter_changed(self, change: ParameterChange) -> None:
        self.definitions_changed()

    async def watch_demand(self) -> None:
        """Watch the demand of the queues that links have asked about, until cancelled."""
        while True:
            if not self._answers:
                await self._asked.wait()
            await trio.sleep(DEMAND_EVERY_S)
            for key, answers in list(self._answers.items()):
                queue = self._maybe_queue(*key)
                if queue is None or not answers:
                    del self._answers[key]  # not asked again: the link is gone
                elif (not _wants_messages(queue)) in answers:
                    answers.clear()
                    for listener in self._listeners:
                        listener.demand_changed(*key)

    async def delete_parameter(self, component: str, vhost: str, name: str) -> None:
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


class _Watcher(TopologyWatcher):
    """Hears of all objects that could have a federation policy, and passes on those that have one.

    Clients come and go with queues of their own. Without this check, each time would cost a search for links among all
    objects.
    """

    def __init__(self, host: BrokerHost) -> None:
        super().__init__()
        self._host = host

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        self._host.exchange_changed(vhost, exchange)

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        self._host.exchange_changed(vhost, exchange)

    def queue_created(self, vhost: str, queue: Queue, by: str) -> None:
        self._host.queue_changed(vhost, queue)

    def queue_deleted(self, vhost: str, queue: Queue, by: str) -> None:
        self._host.queue_changed(vhost, queue)

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        self._host.binding_changed(vhost, binding, 1)

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        self._host.binding_changed(vhost, binding, -1)

    def policies_changed(self, vhost: str) -> None:
        self._host.definitions_changed()

    def vhost_deleted(self, vhost: str) -> None:
        self._host.definitions_changed()


def _set_problems(vhost: str, name: str, value: Any, by: str) -> list[str]:
    return upstreams.validate_upstream_set(name, value)


def _wants_messages(queue: Queue) -> bool:
    if queue.ready_count > 0:
        return False
    return any(consumer.priority >= 0 and consumer.is_ready() for consumer in queue.consumers)


def _exchange_policy(vhost: VirtualHost, exchange: Exchange) -> Policy | None:
    return _federation(vhost.policies.of_exchange(exchange.name))


def _queue_policy(vhost: VirtualHost, queue: Queue) -> Policy | None:
    return _federation(vhost.policies.of_queue(queue.name, queue.rules.queue_type))


def _federation(policies: EffectivePolicy) -> Policy | None:
    """Return the federation keys that are in effect, None when none of them is set."""
    texts = [policies.maybe_text(key) for key in FEDERATION_KEYS]
    return Policy(*texts) if any(texts) else None


def _local(binding: Binding) -> LocalBinding:
    return LocalBinding(binding.routing_key, binding.arguments)


def _json(value: object) -> Any:
    return value
