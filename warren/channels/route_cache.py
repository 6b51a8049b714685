"""The remembered routes: the result of publishing with certain arguments, per user and vhost.

    RouteMemory    one for each broker: the size of all caches together, and which of them hold something
    RouteCache     one for each user in a vhost: argument bytes of basic.publish -> Route

1. The routes of a cache belong to one version of the vhost's topology. Routes of an older version are dropped at the
   next look-up, and by `RouteMemory.tick` when no look-up comes: they would keep deleted queues in memory.
2. Caches count bytes, not entries: one route may have very many queues. A route that finds its cache full takes the
   place of one or a few others, chosen by its hash: a program that publishes to more queues than fit, in turn, still
   finds part of them. If that is not enough the cache is emptied. Above `BYTES_MAX` in all, the cache that has been in
   use for longest is emptied.
3. Routes of one exchange with equal queues share one list.
4. The argument bytes are looked up where they lie in the read buffer (`RouteCache.maybe_at`): neither a copy of them
   nor an object is made. A route has one of two places for that, chosen by all of its bytes. Where others have taken
   both, the route is found by `routes`: a peer that has many choose the same places loses this advantage, not more.
5. A dropped route is void: it has no queues and is not `cacheable`. A session or a content that still holds the route
   looks the exchange up again, so only the cache keeps lists of queues in memory.
6. When memory becomes short, all caches are emptied before a queue gives anything up (`drop_all`).
7. Reply queues are not part of the topology: at the end of one, its routes are void at once
   (`RouteMemory.end_of_replies`). The entries stay in their caches until these are emptied. Names of reply queues are
   never used again.
8. To free a route takes longer than to void it, and a full cache has 15,000. So what an emptied cache had is freed
   little by little: two routes for each that is added, and some in each tick.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from warren.exchanges.exchange import Exchange
from warren.msgstore.log.message import Envelope
from warren.msgstore.log.reclamation import Reclamation
from warren.queues.receiver import Receiver
from warren.vhosts.virtual_host import VirtualHost

BYTES_MAX: Final = 32 << 20
CACHE_BYTES_MAX: Final = 12 << 20
# Places in which a new route looks for others to forget.
LOOKED_FOR_ROOM: Final = 512
FREED_FOR_NEW: Final = 2
FREED_IN_TICK: Final = 2000
# The size of a route besides its arguments, which it holds four times: as the key, and as names and bytes of its
# envelope. It includes the route's part of the places.
ROUTE_BYTES: Final = 664
# There are at least as many places as this for each route, and at most twice as many.
PLACES_PER_ROUTE: Final = 4
PLACES_MIN: Final = 64
_NO_PLACES: Final[list[Route | None]] = []  # of caches with one route, or none: never changed
# Of one reply queue, by so many users.
REPLY_ROUTES_MAX: Final = 16
LIST_BYTES: Final = 56
QUEUE_BYTES: Final = 8
# The number of caches that one tick looks at.
LOOKED_AT_MAX: Final = 1000

WORD_BYTES: Final = 8
_HALF_MASK: Final = 0x7FFFFFFF
_SPREAD: Final = 0x5BD1E995  # odd, with bits everywhere, and so small that a product with 31 bits is not negative


def are_at(known: bytes, data: bytes, start: i64, end: i64) -> bool:
    """Tell whether ``data[start:end]`` is `known`, without a copy of it: eight bytes are compared at a time."""
    size: i64 = len(known)
    if end - start != size:
        return False
    if size < WORD_BYTES:
        return data[start:end] == known
    last: i64 = size - WORD_BYTES
    at: i64 = 0
    while at < last:
        if read_i64_be(data, start + at) != read_i64_be(known, at):
            return False
        at += WORD_BYTES
    return read_i64_be(data, start + last) == read_i64_be(known, last)


def _mixed(before: i64, word: i64) -> i64:
    product: i64 = ((before ^ word ^ (word >> 31)) & _HALF_MASK) * _SPREAD
    return product ^ (product >> 29)


def _place_of(data: bytes, start: i64, end: i64) -> i64:
    """Return a number that depends on each of ``data[start:end]``, which are at least four bytes."""
    if end - start < WORD_BYTES:
        return _mixed(i64(read_i32_be(data, start)), i64(read_i32_be(data, end - 4)))
    place: i64 = 0
    last: i64 = end - WORD_BYTES
    at: i64 = start
    while at < last:
        place = _mixed(place, read_i64_be(data, at))
        at += WORD_BYTES
    return _mixed(place, read_i64_be(data, last))


class Route:
    """The meaning of certain arguments of basic.publish for one principal.

    ``queues`` is where messages go when ``cacheable``; else the destinations depend on each message. ``exchange`` is
    the one they are published to, the only one that counts them. ``ticket``: see `ticket_of`. ``arguments``: its key
    in a cache, b"": it was never in one.
    """

    def __init__(
        self,
        envelope: Envelope,
        exchange: Exchange,
        queues: list[Receiver],
        cacheable: bool,
        mandatory: bool,
    ) -> None:
        self.envelope = envelope
        self.exchange = exchange
        self.queues = queues
        self.cacheable: bool = cacheable
        self.mandatory: bool = mandatory
        self.ticket: i64 = ticket_of(queues)
        self.arguments: bytes = b""


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
        self.memory = memory
        self._vhost: VirtualHost | None = None
        self._places = _NO_PLACES  # a power of two of them, see `maybe_at`
        self._lists: dict[Exchange, list[Receiver]] = {}  # the last list of each exchange

    def begin(self, vhost: VirtualHost) -> None:
        """Hold routes of the present version of the topology of `vhost`, and no others."""
        self.drop()
        self._vhost = vhost
        self.version = vhost.topology_version

    def maybe_at(self, data: bytes, start: i64, end: i64) -> Route | None:
        """Return the route with the argument bytes ``data[start:end]`` if it has a place; None: ask `routes`."""
        places = self._places
        count: i64 = len(places)
        if count == 0 or end - start < 4:
            return None
        place: i64 = _place_of(data, start, end) & (count - 1)
        route = places[place]
        if route is not None and are_at(route.arguments, data, start, end):
            return route
        route = places[place ^ 1]
        if route is not None and are_at(route.arguments, data, start, end):
            return route
        return None

    def _give_place(self, route: Route) -> None:
        """Index a route that has been added, so that `maybe_at` finds it. With more routes there are more places."""
        arguments = route.arguments
        size: i64 = len(arguments)
        count: i64 = len(self._places)
        if len(self.routes) < 2 or size < 4:
            return
        if count < PLACES_PER_ROUTE * len(self.routes):
            count = max(2 * count, PLACES_MIN)
            self._places = [None] * int(count)
            for each in self.routes.values():
                if len(each.arguments) >= 4:
                    self._put(each, count)
            return
        self._put(route, count)

    def _put(self, route: Route, count: i64) -> None:
        """Put a route into the better one of its places."""
        places = self._places
        place: i64 = _place_of(route.arguments, 0, len(route.arguments)) & (count - 1)
        if places[place] is not None and places[place ^ 1] is None:
            place ^= 1
        places[place] = route

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
            self._make_room(cost, arguments)
        if self.bytes + cost > CACHE_BYTES_MAX:
            self.drop()
            cost += LIST_BYTES + QUEUE_BYTES * len(route.queues) - list_cost
        if cost > CACHE_BYTES_MAX:
            return  # a look-up is little beside a publish to that many queues
        self._lists[route.exchange] = route.queues
        route.arguments = arguments
        self.routes[arguments] = route
        self._give_place(route)
        self.bytes += cost
        self.memory.grown(self, cost)

    def _make_room(self, cost: i64, arguments: bytes) -> None:
        """Forget some routes for a new one (2). Their lists stay counted: other routes may have them."""
        places = self._places
        count: i64 = len(places)
        if count == 0 or len(arguments) < 4:
            return
        place: i64 = _place_of(arguments, 0, len(arguments))
        looked: i64 = 0
        while looked < LOOKED_FOR_ROOM and self.bytes + cost > CACHE_BYTES_MAX:
            at: i64 = (place + looked) & (count - 1)
            route = places[at]
            looked += 1
            if route is None:
                continue
            places[at] = None
            del self.routes[route.arguments]
            route.queues = []
            route.cacheable = False
            size: i64 = ROUTE_BYTES + 4 * len(route.arguments)
            self.bytes -= size
            self.memory.bytes -= size

    def is_stale(self) -> bool:
        """Tell whether the topology has changed since."""
        vhost = self._vhost
        return vhost is None or vhost.topology_version != self.version

    def drop(self) -> None:
        """Forget all routes, and void them (5)."""
        if self.bytes == 0:
            return
        nothing: list[Receiver] = []
        for route in self.routes.values():
            route.queues = nothing
            route.cacheable = False
        self.memory.dropped.append(self.routes)
        self.routes = {}
        self._places = _NO_PLACES
        self._lists = {}
        self.memory.emptied(self)
        self.bytes = 0


class RouteMemory:
    """The size of all caches of a broker together."""

    def __init__(self) -> None:
        self.bytes: i64 = 0
        self._used: dict[RouteCache, None] = {}  # those that hold something, the one to look at first in front
        self._to_replies: dict[Receiver, list[Route]] = {}
        self.dropped: list[dict[bytes, Route]] = []  # void, yet to be freed (8)

    def grown(self, cache: RouteCache, cost: i64) -> None:
        """Count `cost` bytes that a cache has taken."""
        self._used[cache] = None
        self.bytes += cost
        if self.dropped:
            self._free(FREED_FOR_NEW)
        while self.bytes > BYTES_MAX:
            self._first().drop()

    def emptied(self, cache: RouteCache) -> None:
        """Forget a cache that is about to be empty."""
        self.bytes -= cache.bytes
        del self._used[cache]

    def tick(self) -> None:
        """Drop the routes of topologies that have changed. Call about twice a second."""
        self._free(FREED_IN_TICK)
        for _ in range(min(len(self._used), LOOKED_AT_MAX)):
            cache = self._first()
            if cache.is_stale():
                cache.drop()
            else:
                del self._used[cache]
                self._used[cache] = None

    def drop_all(self, reclamation: Reclamation) -> None:
        """Empty all caches: memory is short."""
        while self._used:
            self._first().drop()
        for routes in self.dropped:
            reclamation.add_named(routes, 0)
        self.dropped.clear()

    def _free(self, count: i64) -> None:
        while count > 0 and self.dropped:
            routes = self.dropped[len(self.dropped) - 1]
            if not routes:
                self.dropped.pop()
                continue
            routes.popitem()
            count -= 1

    def may_remember(self, route: Route, replies: Receiver) -> bool:
        """Note a route to a reply queue, to void it at the end of the queue; False: it must not be remembered."""
        routes = [each for each in self._to_replies.get(replies, []) if each.cacheable]
        if len(routes) == REPLY_ROUTES_MAX:
            return False
        routes.append(route)
        self._to_replies[replies] = routes
        return True

    def end_of_replies(self, replies: Receiver) -> None:
        """Void the routes to a reply queue that has ended."""
        for route in self._to_replies.pop(replies, []):
            route.queues.clear()  # a cache may hold the list for the next route with equal queues
            route.cacheable = False

    def _first(self) -> RouteCache:
        return next(iter(self._used))
