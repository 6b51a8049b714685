"""The remembered routes: the result of publishing with certain arguments, per user and vhost.

    RouteMemory    one for each broker: the size of all caches together, and which of them hold something
    RouteCache     one for each user in a vhost: argument bytes of basic.publish -> Route

1. The routes of a cache belong to one version of the vhost's topology. Routes of an older version are dropped at the
   next look-up, and by `RouteMemory.tick` when no look-up comes: they would keep deleted queues in memory.
2. Caches count bytes, not entries: one route may have very many queues. A cache above `CACHE_BYTES_MAX` is emptied;
   above `BYTES_MAX` in all, the cache that has been in use for longest is emptied.
3. Routes of one exchange with equal queues share one list.
4. A dropped route is void: it has no queues and is not `cacheable`. A session or a content that still holds the route
   looks the exchange up again, so only the cache keeps lists of queues in memory.
5. When memory is short, all caches are emptied before a queue gives anything up (`drop_all`).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.exchanges.exchange import Exchange
from warren.msgstore.log.message import Envelope
from warren.queues.receiver import Receiver
from warren.vhosts.virtual_host import VirtualHost

BYTES_MAX: Final = 32 << 20
CACHE_BYTES_MAX: Final = 4 << 20
# The size of a route besides its arguments, which it holds four times: as the key, and as names and bytes of its
# envelope.
ROUTE_BYTES: Final = 600
LIST_BYTES: Final = 56
QUEUE_BYTES: Final = 8
# The number of caches that one tick looks at.
LOOKED_AT_MAX: Final = 1000


class Route:
    """The meaning of certain arguments of basic.publish for one principal.

    ``queues`` is where messages go when ``cacheable``; else the destinations depend on each message. ``exchange`` is
    the one they are published to, the only one that counts them. ``ticket``: see `ticket_of`.
    """

    def __init__(
        self,
        envelope: Envelope,
        exchange: Exchange,
        queues: list[Receiver],
        cacheable: bool,
        mandatory: bool,
        immediate: bool,
    ) -> None:
        self.envelope = envelope
        self.exchange = exchange
        self.queues = queues
        self.cacheable: bool = cacheable
        self.mandatory: bool = mandatory
        self.immediate: bool = immediate
        self.ticket: i64 = ticket_of(queues)


def ticket_of(queues: list[Receiver]) -> i64:
    """Return the change of the metadata that all of these queues are declared with: a confirm waits for it, too."""
    ticket: i64 = 0
    for queue in queues:
        if queue.ticket > ticket:
            ticket = queue.ticket
    return ticket


class RouteCache:
    """The routes of one user in one vhost. `memory` counts them. ``version``: of the topology that they belong to."""

    def __init__(self, memory: RouteMemory) -> None:
        self.routes: dict[bytes, Route] = {}
        self.version: i64 = 0
        self.bytes: i64 = 0
        self._memory = memory
        self._vhost: VirtualHost | None = None
        self._lists: dict[Exchange, list[Receiver]] = {}  # the last list of each exchange

    def begin(self, vhost: VirtualHost) -> None:
        """Hold routes of the present version of the topology of `vhost`, and no others."""
        self.drop()
        self._vhost = vhost
        self.version = vhost.topology_version

    def add(self, arguments: bytes, route: Route) -> None:
        """Remember a route."""
        cost: i64 = ROUTE_BYTES + 4 * len(arguments)
        list_cost: i64 = LIST_BYTES + QUEUE_BYTES * len(route.queues)
        known = self._lists.get(route.exchange)
        if known is not None and known == route.queues:
            route.queues = known
            list_cost = 0
        cost += list_cost
        if self.bytes + cost > CACHE_BYTES_MAX:
            self.drop()
            cost += LIST_BYTES + QUEUE_BYTES * len(route.queues) - list_cost
        if cost > CACHE_BYTES_MAX:
            return  # a look-up is little beside a publish to that many queues
        self._lists[route.exchange] = route.queues
        self.routes[arguments] = route
        self.bytes += cost
        self._memory.grown(self, cost)

    def is_stale(self) -> bool:
        """Tell whether the topology has changed since."""
        vhost = self._vhost
        return vhost is None or vhost.topology_version != self.version

    def drop(self) -> None:
        """Forget all routes, and void them (4)."""
        if self.bytes == 0:
            return
        nothing: list[Receiver] = []
        for route in self.routes.values():
            route.queues = nothing
            route.cacheable = False
        self.routes = {}
        self._lists = {}
        self._memory.emptied(self)
        self.bytes = 0


class RouteMemory:
    """The size of all caches of a broker together."""

    def __init__(self) -> None:
        self.bytes: i64 = 0
        self._used: dict[RouteCache, None] = {}  # those that hold something, the one to look at first in front

    def grown(self, cache: RouteCache, cost: i64) -> None:
        """A cache has taken `cost` bytes."""
        self._used[cache] = None
        self.bytes += cost
        while self.bytes > BYTES_MAX:
            self._first().drop()

    def emptied(self, cache: RouteCache) -> None:
        """A cache is about to be empty."""
        self.bytes -= cache.bytes
        del self._used[cache]

    def tick(self) -> None:
        """Drop the routes of topologies that have changed. Call about twice a second."""
        for _ in range(min(len(self._used), LOOKED_AT_MAX)):
            cache = self._first()
            if cache.is_stale():
                cache.drop()
            else:
                del self._used[cache]
                self._used[cache] = None

    def drop_all(self) -> None:
        """Empty all caches: memory is short."""
        while self._used:
            self._first().drop()

    def _first(self) -> RouteCache:
        return next(iter(self._used))
