"""Keeps the links running that should exist: derives them from parameters and policies; their tasks and status.

1. Each link is a task of its own. An error in one, even a bug of ours, ends its attempt and nothing else. The link
   tries again after its reconnect delay. A link whose delay is too long to wait for is switched off. An error in a
   parameter or policy does not affect the links that run.
2. A link never runs twice: a changed link starts when the previous one has ended.
3. A link cleans up at its upstream, for at most `CLEAN_UP_S`, when it is removed for good or has to use another object
   there. It does not clean up when the broker stops, or if another link has its objects or will have them.
4. Status, logs and reasons hold no credentials.
5. A vhost has `LINKS_MAX` links at most: the first of its shovels, federated exchanges and federated queues. Attempts
   begin one after the other (`links.starts`). The wanted links are computed in pieces, since the numbers of policies
   and upstreams multiply: a user who may set them can make every queue ask for a link to every upstream.
6. While links are held (`Host.held_reason`), no link runs, and each is shown as held. A release starts all of them.
7. Computing the wanted links takes at most a fifth of the time. So if thousands of parameters are set one by one, a few
   passes handle them, instead of one pass for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from warren.amqp_client.client_errors import BrokerError
from warren.amqp_client.redaction import redact
from warren.links import shovel, upstreams
from warren.links.amqp_client import ClientSettings
from warren.links.endpoints import Endpoints
from warren.links.exchange_federation import ExchangeLink, upstream_objects
from warren.links.federation import FederationLink
from warren.links.host import Host, LocalBinding, LocalExchange, LocalQueue, Policy
from warren.links.queue_federation import QueueLink
from warren.links.shovel import Shovel
from warren.links.starts import Starts
from warren.links.validation import Json

STARTING: Final = "starting"
RUNNING: Final = "running"
TERMINATED: Final = "terminated"
HELD: Final = "held"
DONE: Final = "src-delete-after is reached"
CLEAN_UP_S: Final = 10.0
# Shovels have 0 for "never again". Federation links have no such value: for them 0 is a short delay.
DELAY_MIN_S: Final = 0.1
LINKS_MAX: Final = 2000
AT_ONCE: Final = 64  # links that are looked at before other tasks get a turn; a URI counts like a link
URI_CHARACTERS: Final = 256  # so many characters count like a URI
PAUSE_PER_S: Final = 4.0  # for each second of computing the wanted links
Key = tuple[str, ...]
Spec = tuple[Hashable, bool]  # the settings of a link, and whether it is held
Wanted = dict[Key, tuple[Spec, Callable[[], Shovel | FederationLink], int]]  # spec, how it is made, and its cost


@dataclass
class _Entry:
    """One link that should exist, or has to end."""

    key: Key
    spec: Spec
    link: Shovel | FederationLink | None
    state: str = STARTING
    reason: str = ""
    since: float = 0.0
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_task: bool = False
    removed: bool = False
    problem: str = ""


class _Pace:
    """Gives other tasks a turn after each `AT_ONCE` units of a long computation."""

    def __init__(self) -> None:
        self._done = 0

    async def note(self, cost: int = 1) -> None:
        self._done += cost
        if self._done >= AT_ONCE:
            self._done = 0
            await trio.lowlevel.checkpoint()


def _cost(value: Json) -> int:
    """Return how much a look at a parameter costs: its URIs take long, or the members of a set."""
    if isinstance(value, list):
        return 1 + len(value)
    found = [value.get(key) for key in ("uri", "src-uri", "dest-uri")] if isinstance(value, Mapping) else []
    uris = [uri for each in found for uri in (each if isinstance(each, list) else [each])]
    return 1 + sum(1 + len(uri) // URI_CHARACTERS for uri in uris if isinstance(uri, str))


def _moves(link: Shovel | FederationLink | None, make: Callable[[], Shovel | FederationLink]) -> bool:
    """Tell whether the link that `make` makes leaves objects upstream that `link` uses."""
    if not isinstance(link, FederationLink):
        return False
    made = make()
    return isinstance(made, FederationLink) and link.leaves_for(made)


def timestamp(seconds: float) -> str:
    """Return a moment as RabbitMQ's status objects have it: UTC, the hour without a leading zero."""
    at = time.gmtime(seconds)
    return f"{at.tm_year}-{at.tm_mon:02}-{at.tm_mday:02} {at.tm_hour}:{at.tm_min:02}:{at.tm_sec:02}"


class Supervisor:
    """All links of one broker. It is the `Listener` of its host."""

    def __init__(self, host: Host, settings: ClientSettings) -> None:
        self._host = host
        self._endpoints = Endpoints(host, settings)
        self._entries: dict[Key, _Entry] = {}
        self._by_place: dict[Key, dict[Key, _Entry]] = {}  # by kind, vhost and name
        self._stale = True
        self._changed = trio.Event()
        self._told: set[tuple[str, str, str, str]] = set()  # parameters that were logged as unusable
        self._crowded: set[str] = set()  # vhosts that were logged as wanting too many links
        self._starts = Starts()
        # The upstream objects of all links that should exist, even of those that do not run because they are changed.
        self._in_use: set[Hashable] = set()

    # --- calls of the host ----------------------------------------------------------------------------------------

    def definitions_changed(self) -> None:
        """See `host.Listener`."""
        self._stale = True
        self._changed.set()

    def bindings_changed(self, vhost: str, exchange: str) -> None:
        """See `host.Listener`."""
        for entry in self._of("exchange", vhost, exchange):
            if isinstance(entry.link, ExchangeLink):
                entry.link.bindings_changed()

    def binding_changed(self, vhost: str, exchange: str, binding: LocalBinding, count: int) -> None:
        """See `host.Listener`."""
        for entry in self._of("exchange", vhost, exchange):
            if isinstance(entry.link, ExchangeLink):
                entry.link.binding_changed(binding, count)

    def demand_changed(self, vhost: str, queue: str) -> None:
        """See `host.Listener`."""
        for entry in self._of("queue", vhost, queue):
            if isinstance(entry.link, QueueLink):
                entry.link.demand_changed()

    def _of(self, *place: str) -> list[_Entry]:
        """Return the entries of a kind, vhost and name, without searching all others."""
        return list(self._by_place.get(place, {}).values())

    def _add(self, entry: _Entry) -> None:
        self._entries[entry.key] = entry
        self._by_place.setdefault(entry.key[:3], {})[entry.key] = entry

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        beside = self._by_place[entry.key[:3]]
        del beside[entry.key]
        if not beside:
            del self._by_place[entry.key[:3]]

    # --- life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the links as they should be until cancelled."""
        unsubscribe = self._host.subscribe(self)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._host.keep, "starts of links", self._starts.run)
                await self._host.keep("links", partial(self._follow, nursery))
        finally:
            unsubscribe()

    async def _follow(self, nursery: trio.Nursery) -> None:
        self._stale = True
        while True:
            if not self._stale:
                await self._changed.wait()
            self._stale = False
            self._changed = trio.Event()
            began_s = trio.current_time()
            await self._reconcile(nursery)
            await trio.sleep((trio.current_time() - began_s) * PAUSE_PER_S)

    async def _reconcile(self, nursery: trio.Nursery) -> None:
        wanted = await self._wanted()
        for at, (key, entry) in enumerate(list(self._entries.items()), 1):
            if at % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if self._entries.get(key) is not entry:
                continue
            if key in wanted and wanted[key][0] == entry.spec:
                continue
            if entry.has_task:
                entry.removed = key not in wanted or _moves(entry.link, wanted[key][1])
                entry.scope.cancel()
            else:
                self._drop(entry)
        pace = _Pace()
        for key, (spec, make, cost) in wanted.items():
            is_new = key not in self._entries
            await pace.note(cost if is_new else 1)
            if is_new and key not in self._entries:
                self._begin(nursery, key, spec, make)

    def _begin(self, nursery: trio.Nursery, key: Key, spec: Spec, make: Callable[[], Shovel | FederationLink]) -> None:
        entry = _Entry(key, spec, None, since=self._host.now())
        self._add(entry)
        try:
            entry.link = make()
        except BrokerError as error:
            self._set(entry, TERMINATED, str(error))
            return
        except Exception as error:
            # A bug of ours affects only this link.
            self._set(entry, TERMINATED, f"internal error: {redact(repr(error))}")
            return
        if reason := self._host.held_reason:
            entry.spec = (spec[0], True)  # links may have been held after `spec` was computed
            self._set(entry, HELD, reason)
            return
        entry.has_task = True
        nursery.start_soon(self._live, entry, entry.link)

    async def _wanted(self) -> Wanted:
        wanted: Wanted = {}
        counts: dict[str, int] = {}
        parameters = self._host.parameters()
        is_held = self._host.held_reason != ""

        def want(key: Key, spec: Hashable, make: Callable[[], Shovel | FederationLink], cost: int = 1) -> None:
            vhost = key[1]
            counts[vhost] = counts.get(vhost, 0) + 1
            if counts[vhost] <= LINKS_MAX:
                wanted[key] = ((spec, is_held), make, cost)

        book = upstreams.UpstreamBook()
        pace = _Pace()
        for parameter in parameters:
            cost = _cost(parameter.value)
            if parameter.component == shovel.COMPONENT:
                vhost, name, value = parameter.vhost, parameter.name, parameter.value
                want(("shovel", vhost, name), repr(value), partial(self._shovel, vhost, name, value), cost)
            else:
                book.add(parameter)
            await pace.note(cost)
        self._tell(book)
        resolved: dict[tuple[str, Policy], list[upstreams.Upstream]] = {}
        in_use: set[Hashable] = set()

        async def upstreams_of(each: LocalExchange | LocalQueue) -> list[upstreams.Upstream]:
            await trio.lowlevel.checkpoint()
            if counts.get(each.vhost, 0) >= LINKS_MAX:
                counts[each.vhost] += 1
                return []
            key = (each.vhost, each.policy)
            if key not in resolved:
                resolved[key] = []
                for name, settings in book.chosen(each.vhost, each.policy)[: LINKS_MAX + 1]:
                    await pace.note(_cost(settings))
                    made = upstreams.maybe_upstream(name, each.vhost, settings)
                    if made is not None:
                        resolved[key].append(made)
            return resolved[key]

        for exchange in await self._host.federated_exchanges():
            for upstream in await upstreams_of(exchange):
                key = ("exchange", exchange.vhost, exchange.declaration.name, upstream.name)
                want(key, (exchange, upstream), partial(ExchangeLink, exchange, upstream, self._endpoints))
                if key in wanted:
                    in_use |= upstream_objects(exchange, upstream)
                    await pace.note(len(upstream.uris))
        for queue in await self._host.federated_queues():
            for upstream in await upstreams_of(queue):
                key = ("queue", queue.vhost, queue.declaration.name, upstream.name)
                want(key, (queue, upstream), partial(QueueLink, queue, upstream, self._endpoints))
        self._tell_crowded({vhost for vhost, count in counts.items() if count > LINKS_MAX})
        self._in_use = in_use
        return wanted

    def _tell_crowded(self, vhosts: set[str]) -> None:
        """Log which vhosts want more links than they may have, each once."""
        for vhost in sorted(vhosts - self._crowded):
            self._host.log("error", "too_many_links", vhost=vhost, most=LINKS_MAX)
        self._crowded = vhosts

    def _tell(self, book: upstreams.UpstreamBook) -> None:
        """Log which upstreams and sets cannot be used, each once."""
        told = set()
        for parameter, reason in book.problems:
            told.add((parameter.component, parameter.vhost, parameter.name, reason))
        for component, vhost, name, reason in sorted(told - self._told):
            self._host.log(
                "error", "parameter_invalid", component=component, vhost=vhost, name=name, reason=redact(reason)
            )
        self._told = told

    def _shovel(self, vhost: str, name: str, value: Json) -> Shovel:
        return Shovel(vhost, name, shovel.parse(name, value), self._endpoints)

    async def _live(self, entry: _Entry, link: Shovel | FederationLink) -> None:
        try:
            with entry.scope:
                await self._attempts(entry, link)
        except Exception as error:
            self._set(entry, TERMINATED, f"switched off: {redact(repr(error))}")
        entry.has_task = False
        if not entry.scope.cancelled_caught:
            # It is done. Its status stays visible until its parameter is gone or changed.
            self.definitions_changed()
            return
        if entry.removed and isinstance(link, FederationLink) and link.upstream_objects().isdisjoint(self._in_use):
            try:
                with trio.fail_after(CLEAN_UP_S):
                    await link.clean_up()
            except (BrokerError, trio.TooSlowError) as error:
                self._log("warning", "link_left_something_upstream", entry, str(error) or "no answer in time")
            except Exception as error:
                self._log("error", "link_failed_to_clean_up", entry, redact(repr(error)))
        if self._entries.get(entry.key) is entry:
            self._drop(entry)
        self.definitions_changed()

    async def _attempts(self, entry: _Entry, link: Shovel | FederationLink) -> None:
        while True:
            if entry.state != STARTING:
                self._set(entry, STARTING, entry.reason)
            await self._starts.wait(entry.key[1])
            try:
                await link.attempt(lambda: self._set(entry, RUNNING, ""))
                assert isinstance(link, Shovel), "a federation link always ends with an error"
                value = link.definition.parameter
                await self._host.delete_parameter(shovel.COMPONENT, link.vhost, link.name, value)
                self._set(entry, TERMINATED, DONE)
                return
            except BrokerError as error:
                reason = str(error)
            except Exception as error:
                # A bug of ours affects only this link.
                reason = f"internal error: {redact(repr(error))}"
            self._set(entry, TERMINATED, reason)
            delay_s = link.reconnect_delay_s
            if isinstance(link, Shovel) and not delay_s:
                return  # as the parameter asks: reconnect-delay 0 means never
            await trio.sleep(max(DELAY_MIN_S, delay_s))

    def _set(self, entry: _Entry, state: str, reason: str) -> None:
        entry.state = state
        entry.reason = reason
        entry.since = self._host.now()
        if state == RUNNING:
            self._log("info", "link_running", entry, "")
            entry.problem = ""
        elif reason == DONE:
            self._log("info", "shovel_done", entry, reason)
        elif state == TERMINATED and reason != entry.problem:
            # The same reason again and again would fill the log.
            entry.problem = reason
            self._log("warning", "link_down", entry, reason)

    def _log(self, level: str, event: str, entry: _Entry, reason: str) -> None:
        kind, vhost, name = entry.key[:3]
        details = {"kind": kind, "vhost": vhost, "name": name}
        if len(entry.key) > 3:
            details["upstream"] = entry.key[3]
        if reason:
            details["reason"] = redact(reason)
        self._host.log(level, event, **details)

    def _restart(self, entry: _Entry) -> None:
        if entry.has_task:
            entry.scope.cancel()
        else:
            self._drop(entry)
            self.definitions_changed()

    # --- for the management API ---------------------------------------------------------------------------------

    def restart_shovel(self, vhost: str, name: str) -> bool:
        """Restart a shovel; return False when the name is unknown."""
        entry = self._entries.get(("shovel", vhost, name))
        if entry is None:
            return False
        self._restart(entry)
        return True

    def restart_federation_link(self, vhost: str, link_id: str) -> bool:
        """Restart a federation link by the ``id`` of its status; return False when the id is unknown."""
        for entry in list(self._entries.values()):
            if isinstance(entry.link, FederationLink) and entry.link.id == link_id and entry.link.vhost == vhost:
                self._restart(entry)
                return True
        return False

    def shovels(self, vhost: str | None = None) -> list[dict[str, Json]]:
        """Return the objects of GET /api/shovels, or /api/shovels/{vhost}."""
        found = []
        for key, entry in sorted(self._entries.items()):
            if key[0] != "shovel" or vhost not in (None, key[1]):
                continue
            status: dict[str, Json] = {
                "node": self._host.node_name,
                "timestamp": timestamp(entry.since),
                "name": key[2],
                "vhost": key[1],
                "type": "dynamic",
                "state": entry.state,
            }
            if isinstance(entry.link, Shovel) and entry.state == RUNNING:
                status |= entry.link.status()
            if entry.reason:
                status["reason"] = redact(entry.reason)
            found.append(status)
        return found

    def federation_links(self, vhost: str | None = None) -> list[dict[str, Json]]:
        """Return the objects of GET /api/federation-links, or /api/federation-links/{vhost}."""
        found = []
        for key, entry in sorted(self._entries.items()):
            link = entry.link
            if not isinstance(link, FederationLink) or vhost not in (None, key[1]):
                continue
            status: dict[str, Json] = {"node": self._host.node_name, **link.status()}
            status["status"] = "error" if entry.state == TERMINATED else entry.state
            if entry.state == RUNNING:
                status["local_connection"] = link.connection_name
            if entry.reason:
                status["error"] = redact(entry.reason)
            status["uri"] = link.uri.shown
            status["timestamp"] = timestamp(entry.since)
            found.append(status)
        return found
