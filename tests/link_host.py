"""A broker as links see it, made by hand: definitions are set by the test, the broker itself is some AMQP port.

1. `FakeHost` keeps the rules of `host.Host`: every change is told to the listener, deleting what is gone is fine.
2. `LinksThread` runs a supervisor in a thread of its own, so that tests stay synchronous; all that touches the host
   goes through `LinksThread.do`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import trio

from warren.links.address_guard import AddressGuard, networks
from warren.links.amqp_client import ClientSettings
from warren.links.host import Listener, LocalBinding, LocalExchange, LocalQueue, Parameter
from warren.links.supervisor import Supervisor
from warren.links.validation import Json

T = TypeVar("T")
LOOPBACK_SETTINGS = ClientSettings(AddressGuard(networks(["127.0.0.0/8", "::1/128"])))


class FakeHost:
    """Definitions in lists, demand in a set, local AMQP at a port of 127.0.0.1."""

    def __init__(self, port: int, cluster_name: str = "here") -> None:
        self.port = port
        self.definitions: dict[tuple[str, str, str], Json] = {}
        self.exchanges: list[LocalExchange] = []
        self.queues: list[LocalQueue] = []
        self.bound: dict[tuple[str, str], list[LocalBinding]] = {}
        self.reads = 0  # of all bindings of an exchange
        self.demand: set[tuple[str, str]] = set()
        self.listeners: list[Listener] = []
        self.logged: list[tuple[str, str, dict[str, object]]] = []
        self._cluster_name = cluster_name
        self.held_reason = ""

    @property
    def cluster_name(self) -> str:
        return self._cluster_name

    @property
    def node_name(self) -> str:
        return f"warren@{self._cluster_name}"

    def now(self) -> float:
        return time.time()

    def parameters(self) -> Sequence[Parameter]:
        return [Parameter(*key, value) for key, value in self.definitions.items()]

    async def federated_exchanges(self) -> Sequence[LocalExchange]:
        return self.exchanges

    async def federated_queues(self) -> Sequence[LocalQueue]:
        return self.queues

    def bindings(self, vhost: str, exchange: str) -> Iterable[LocalBinding]:
        self.reads += 1
        return list(self.bound.get((vhost, exchange), []))

    def wants_messages(self, vhost: str, queue: str) -> bool:
        return (vhost, queue) in self.demand

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def delete_parameter(self, component: str, vhost: str, name: str, value: Json) -> None:
        await trio.lowlevel.checkpoint()
        if self.definitions.get((component, vhost, name)) == value:
            del self.definitions[component, vhost, name]
            self.changed()

    async def open_local(self) -> trio.abc.Stream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    def local_login(self) -> tuple[str, str]:
        return "guest", "guest"

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:
                self.logged.append(("error", name, {"error": repr(error)}))
            await trio.lowlevel.checkpoint()

    def log(self, level: str, event: str, **details: object) -> None:
        self.logged.append((level, event, details))

    # --- what tests change --------------------------------------------------------------------------------------

    def changed(self) -> None:
        for listener in self.listeners:
            listener.definitions_changed()

    def set_parameter(self, component: str, name: str, value: Json, vhost: str = "/") -> None:
        """Set a parameter as the management API would after validation."""
        self.definitions[component, vhost, name] = value
        self.changed()

    def clear_parameter(self, component: str, name: str, vhost: str = "/") -> None:
        del self.definitions[component, vhost, name]
        self.changed()

    def federate(self, *what: LocalExchange | LocalQueue) -> None:
        """Put a policy in effect for exactly these."""
        self.exchanges = [one for one in what if isinstance(one, LocalExchange)]
        self.queues = [one for one in what if isinstance(one, LocalQueue)]
        self.changed()

    def bind(self, exchange: str, *bindings: LocalBinding, vhost: str = "/") -> None:
        """Give the exchange exactly these bindings."""
        self.bound[vhost, exchange] = list(bindings)
        for listener in self.listeners:
            listener.bindings_changed(vhost, exchange)

    def want(self, queue: str, wanted: bool, vhost: str = "/") -> None:
        """Say whether the queue has a consumer that waits."""
        (self.demand.add if wanted else self.demand.discard)((vhost, queue))
        for listener in self.listeners:
            listener.demand_changed(vhost, queue)


class LinksThread:
    """A supervisor at work from `__enter__` to `__exit__`."""

    def __init__(self, host: FakeHost, settings: ClientSettings = LOOPBACK_SETTINGS) -> None:
        self.host = host
        self.supervisor = Supervisor(host, dataclasses.replace(settings))
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._failure: BaseException | None = None

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._started.set()
        try:
            with self._scope:
                await self.supervisor.run()
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.do(self._scope.cancel)
        self._thread.join()
        assert self._failure is None, repr(self._failure)

    def do(self, function: Callable[..., T], *arguments: object) -> T:
        """Call something in the thread of the links."""
        return trio.from_thread.run_sync(function, *arguments, trio_token=self._token)

    def shovel(self, name: str) -> dict[str, Json]:
        """Return the status of a shovel; empty without one."""
        return next((one for one in self.do(self.supervisor.shovels) if one["name"] == name), {})

    def federation_link(self, name: str) -> dict[str, Json]:
        """Return the status of the first link of the exchange or queue of that name; empty without one."""
        links = self.do(self.supervisor.federation_links)
        return next((one for one in links if name in (one.get("exchange"), one.get("queue"))), {})
