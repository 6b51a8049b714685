"""One upstream of a federated exchange: brings here what is published there and matches a binding here.

The objects at the upstream have the names that RabbitMQ uses. All but the auto-delete exchange are durable:

    X --(the bindings of X here)--> exchange "federation: X -> us A" or "… B" --> queue "federation: X -> us" --> link

1. The upstream exchange gets the bindings of the exchange here. Bindings here with the same key and arguments, to
   several destinations, are one binding there, so bindings are counted. All are read once in each attempt, a few at a
   time. After that a change costs the same however many bindings exist. If changes come faster than the upstream takes
   them, they are forgotten, and all bindings are read again.
2. One of the two exchanges A and B is in use. A new attempt first builds the other one completely, and then deletes the
   old one, so stale bindings vanish. No message is missed, since meanwhile both lead to the same queue.
3. A message takes at most max-hops hops, and never goes back to a broker that it came through: the header
   x-received-from has these. Bindings have the argument x-bound-from, so they do not run in circles either. A message
   or binding that has no room for this is left out, and the log says so once in each attempt.
4. Messages wait in the upstream queue while the link is down, within expires and message-ttl.
5. The upstream queue and exchange are deleted when the link is removed for good, or has to follow another upstream
   exchange. They stay if resource-cleanup-mode is never. They also stay if another link of the same exchange has them
   or will have them: the name of the upstream is not part of their names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio

from warren.amqp import methods
from warren.amqp.codec import method_frame
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import NOT_FOUND
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table, with_length
from warren.amqp_client.channel import Delivery
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.links import forwarding, transfer
from warren.links.amqp_client import Channel, LinkConnection, Signal, is_unknown_exchange_type
from warren.links.endpoints import Endpoints
from warren.links.federation import FederationLink, delete_exchange, delete_queue, upstream_cluster_name
from warren.links.host import LocalBinding, LocalExchange
from warren.links.transfer import Publish, Transfer
from warren.links.upstreams import Upstream
from warren.links.validation import Json

BOUND_FROM: Final = "x-bound-from"
_PURPOSE: Final = ("x-internal-purpose", "federation")
_UPSTREAM_TYPE: Final = "x-federation-upstream"
AT_ONCE: Final = 64  # bindings that are looked at before other tasks get a turn
CHANGES_MAX: Final = 10_000
BIND_BYTES_MAX: Final = 8 + 4 + 2 + 3 * 256 + 1  # of the frame of exchange.bind, without its arguments
Key = tuple[str, bytes]


def upstream_queue_name(exchange: str, upstream_vhost: str, cluster_name: str, vhost: str, downstream: str) -> str:
    """Return the name of the queue at the upstream: unique for the cluster, vhost and exchange of the downstream."""
    place = cluster_name
    if vhost != upstream_vhost:
        place += f":{vhost}:{downstream}"
    elif downstream != exchange:
        place += f":{downstream}"
    return f"federation: {exchange} -> {place}"


def upstream_objects(exchange: LocalExchange, upstream: Upstream) -> frozenset[Hashable]:
    """Return an element for each place where a link of `exchange` to `upstream` may have its queue."""
    name = exchange.declaration.name
    followed = upstream.exchange or name
    return frozenset((exchange.vhost, name, followed, uri.host, uri.port, uri.vhost) for uri in upstream.uris)


def bound_from(
    arguments: bytes,
    *,
    cluster_name: str,
    vhost: str,
    exchange: str,
    max_hops: int,
    upstream_name: str,
    upstream_vhost: str,
) -> bytes | None:
    """Return the arguments that a binding has upstream; None when it must not be made there.

    A federation link further downstream may have made the binding. Then it has one hop less than it had there, and it
    is not made if no hop is left, or if it has been at the upstream before.
    """
    hops = max_hops
    before = forwarding.array_entries(arguments, BOUND_FROM)
    if before:
        former = before[0].get("hops")
        hops = min(max_hops, former - 1 if isinstance(former, int) else 0)
        if any(one.get("cluster-name") == upstream_name and one.get("vhost") == upstream_vhost for one in before):
            return None
    if hops <= 0:
        return None
    entry = encode_table({"cluster-name": cluster_name, "vhost": vhost, "exchange": exchange})
    hop = b"s" + min(hops, 0x7FFF).to_bytes(2, "big")
    return forwarding.prepended(arguments, BOUND_FROM, b"F" + forwarding.with_value(entry, "hops", hop))


class ExchangeLink(FederationLink):
    """Follows one exchange at one upstream."""

    kind = "exchange"

    def __init__(self, exchange: LocalExchange, upstream: Upstream, endpoints: Endpoints) -> None:
        super().__init__(exchange.vhost, exchange.declaration.name, upstream, endpoints)
        self._exchange = exchange
        self._suffix = "A"
        # Whether all bindings have to be read. Until then changes are ignored.
        self._is_stale = True
        self._changes: deque[tuple[LocalBinding, int]] = deque()
        self._changed = Signal()
        # For each binding at the upstream: how many bindings here want it.
        self._counts: dict[Key, int] = {}
        self._touched: dict[Key, None] = {}
        self._left_out: set[str] = set()  # already logged

    @property
    def upstream_exchange(self) -> str:
        return self.upstream.exchange or self.name

    def bindings_changed(self) -> None:
        """Wake the link: all bindings here may have changed."""
        self._is_stale = True
        self._changes.clear()
        self._changed.wake()

    def binding_changed(self, binding: LocalBinding, count: int) -> None:
        """Wake the link: there is one more such binding here, or one less (`count` -1)."""
        if self._is_stale:
            return
        if len(self._changes) == CHANGES_MAX:
            self.bindings_changed()
            return
        self._changes.append((binding, count))
        self._changed.wake()

    def _queue_name(self) -> str:
        cluster_name = self.endpoints.host.cluster_name
        return upstream_queue_name(self.upstream_exchange, self.uri.vhost, cluster_name, self.vhost, self.name)

    # --- set up -------------------------------------------------------------------------------------------------

    async def carry(
        self, nursery: trio.Nursery, remote: LinkConnection, local: LinkConnection, running: Callable[[], None]
    ) -> None:
        self._left_out = set()
        queue = self._queue_name()
        channel = await remote.open_channel()
        await self._declare_upstream(channel)
        arguments = encode_table(self._queue_arguments())
        await channel.declare_queue(QueueDeclaration(queue, durable=True, arguments=arguments))
        known = await self._build(nursery, remote, channel, queue)
        outbound = await local.open_channel()
        if self.upstream.ack_mode == transfer.ON_CONFIRM:
            await outbound.confirm_select()
        inbound = await remote.open_channel()
        if self.upstream.prefetch_count and self.upstream.ack_mode != transfer.NO_ACK:
            await inbound.qos(self.upstream.prefetch_count)
        await inbound.consume(queue, no_ack=self.upstream.ack_mode == transfer.NO_ACK)
        moving = Transfer(inbound, outbound, self.upstream.ack_mode, self._rewriter(remote))
        running()
        await self.move(moving, partial(self._follow, channel, known, upstream_cluster_name(remote)))

    async def _declare_upstream(self, channel: Channel) -> None:
        """Declare the upstream exchange with the properties of ours; a predeclared one only has to exist."""
        name = self.upstream_exchange
        await channel.declare_exchange(replace(self._exchange.declaration, name=name), passive=name.startswith("amq."))

    def _queue_arguments(self) -> Table:
        arguments: Table = {}
        if self.upstream.expires_ms is not None:
            arguments["x-expires"] = self.upstream.expires_ms
        if self.upstream.message_ttl_ms is not None:
            arguments["x-message-ttl"] = self.upstream.message_ttl_ms
        if self.upstream.queue_type is not None:
            arguments["x-queue-type"] = self.upstream.queue_type
        arguments[_PURPOSE[0]] = _PURPOSE[1]
        return arguments

    async def _exists(self, remote: LinkConnection, exchange: str) -> bool:
        probe = await remote.open_channel()
        try:
            await probe.declare_exchange(_internal_exchange(exchange, "fanout"), passive=True)
        except PeerClosed as error:
            if error.reply_code != NOT_FOUND or error.scope != "channel":
                raise
            return False
        return True

    async def _build(self, nursery: trio.Nursery, remote: LinkConnection, channel: Channel, queue: str) -> set[Key]:
        """Build up one of the exchanges A and B with all bindings, delete the other; return the bindings."""
        existing = [suffix for suffix in "AB" if await self._exists(remote, f"{queue} {suffix}")]
        if len(existing) == 2:
            # An attempt ended half way, and which of the two is complete is not known: complete A, continue as usual.
            self._suffix = "A"
            await self._complete(remote, channel, queue)
            await delete_exchange(remote, f"{queue} B")
            existing = ["A"]
        self._suffix = "B" if existing == ["A"] else "A"
        await self._declare_internal(nursery, channel, f"{queue} {self._suffix}")
        known = await self._complete(remote, channel, queue)
        for suffix in existing:
            await delete_exchange(remote, f"{queue} {suffix}")
        return known

    async def _complete(self, remote: LinkConnection, channel: Channel, queue: str) -> set[Key]:
        """Give the chosen internal exchange all bindings and the queue; return the bindings.

        The queue comes last: its answer shows that the bindings sent without waiting exist.
        """
        known: set[Key] = set()
        self.bindings_changed()
        await self._sync(channel, known, upstream_cluster_name(remote))
        bind = methods.QueueBind(0, queue, f"{queue} {self._suffix}", "", no_wait=False, arguments=EMPTY_TABLE)
        await channel.call(bind, methods.QueueBindOk)
        return known

    async def _declare_internal(self, nursery: trio.Nursery, channel: Channel, name: str) -> None:
        """Declare the internal exchange: a fanout, or the type that counts hops if the upstream knows it."""
        arguments = {
            "x-downstream-name": self.endpoints.host.cluster_name,
            "x-downstream-vhost": self.vhost,
            _PURPOSE[0]: _PURPOSE[1],
        }
        table = forwarding.with_value(
            encode_table(dict(arguments)), "x-max-hops", forwarding.long_value(self.upstream.max_hops)
        )
        # An unknown type closes the connection in older brokers: use a separate one.
        probe, _ = await self.endpoints.open(nursery, self.vhost, [self.uri], self.connection_name)
        try:
            await (await probe.open_channel()).declare_exchange(_internal_exchange(name, _UPSTREAM_TYPE, table))
            return
        except PeerClosed as error:
            if not is_unknown_exchange_type(error):
                raise
        finally:
            await probe.close()
        purpose = encode_table({_PURPOSE[0]: _PURPOSE[1]})
        await channel.declare_exchange(_internal_exchange(name, "fanout", purpose))

    # --- bindings -----------------------------------------------------------------------------------------------

    async def _follow(self, channel: Channel, known: set[Key], upstream_name: str) -> None:
        try:
            while True:
                await self._sync(channel, known, upstream_name)
                if not self._is_stale and not self._changes:
                    await self._changed.wait()
        finally:
            self.bindings_changed()

    async def _sync(self, channel: Channel, known: set[Key], upstream_name: str) -> None:
        """Make the changes of the bindings here at the upstream as well; afterwards `known` has the current ones."""
        await self._take_changes(known, upstream_name)
        source = self.upstream_exchange
        internal = f"{self._queue_name()} {self._suffix}"
        no_wait = self.upstream.bind_nowait
        room = channel.connection.frame_max_bytes
        touched = list(self._touched)
        self._touched = {}
        for at, pair in enumerate(touched, 1):
            key, arguments = pair
            if self._counts.get(pair, 0) > 0 and pair not in known and self._has_room(arguments, room):
                bind = methods.ExchangeBind(0, internal, source, key, no_wait=no_wait, arguments=arguments)
                await self._send(channel, bind, methods.ExchangeBindOk)
                known.add(pair)
            await _maybe_give_way(at)
        for at, pair in enumerate(touched, 1):
            if self._counts.get(pair, 0) <= 0 and pair in known:
                key, arguments = pair
                unbind = methods.ExchangeUnbind(0, internal, source, key, no_wait=no_wait, arguments=arguments)
                await self._send(channel, unbind, methods.ExchangeUnbindOk)
                known.discard(pair)
            await _maybe_give_way(at)

    def _has_room(self, arguments: bytes, room: int) -> bool:
        """Tell whether a binding with these `arguments` can be made with a frame of `room` bytes."""
        if len(arguments) + BIND_BYTES_MAX <= room and forwarding.is_sendable(arguments):
            return True
        self._leave_out("binding_left_out", "its arguments have no room for x-bound-from")
        return False

    def _leave_out(self, event: str, reason: str) -> None:
        if event not in self._left_out:
            self._left_out.add(event)  # more lines would repeat it
            details = {"vhost": self.vhost, "name": self.name, "upstream": self.upstream.name}
            self.endpoints.host.log("warning", event, **details, reason=reason)

    async def _take_changes(self, known: set[Key], upstream_name: str) -> None:
        """Count the changes since the last time, or everything."""
        at = 0
        while self._is_stale or self._changes:
            if self._is_stale:
                # The bindings are read as they are now. Changes from here on are counted after them.
                self._is_stale = False
                self._counts = {}
                self._touched = dict.fromkeys(known)
                for binding in self.endpoints.host.bindings(self.vhost, self.name):
                    self._count(binding, 1, upstream_name)
                    at += 1
                    await _maybe_give_way(at)
            while self._changes:
                binding, count = self._changes.popleft()
                self._count(binding, count, upstream_name)
                at += 1
                await _maybe_give_way(at)

    def _count(self, binding: LocalBinding, count: int, upstream_name: str) -> None:
        arguments = bound_from(
            binding.arguments or with_length(b""),
            cluster_name=self.endpoints.host.cluster_name,
            vhost=self.vhost,
            exchange=f"{self.vhost}:{self.name} {self._suffix}",
            max_hops=self.upstream.max_hops,
            upstream_name=upstream_name,
            upstream_vhost=self.uri.vhost,
        )
        if arguments is None:
            return
        pair = (binding.binding_key, arguments)
        wanted = self._counts.pop(pair, 0) + count
        if wanted:
            self._counts[pair] = wanted
        self._touched[pair] = None

    async def _send(self, channel: Channel, method: Any, reply: type[Any]) -> None:
        """Send a request and wait for the answer. With bind-nowait do not wait: a refusal closes the channel."""
        if not self.upstream.bind_nowait:
            await channel.call(method, reply)
            return
        channel.check()
        await channel.connection.writable()
        channel.connection.send(method_frame(channel.number, method))

    # --- messages -----------------------------------------------------------------------------------------------

    def _rewriter(self, remote: LinkConnection) -> Callable[[Delivery, bool], Publish | None]:
        host = self.endpoints.host
        cluster_name, max_hops = host.cluster_name, self.upstream.max_hops
        upstream_name = upstream_cluster_name(remote)

        def rewrite(delivery: Delivery, annotated: bool) -> Publish | None:
            if not annotated:
                self._leave_out("message_left_out", "its headers have no room for x-received-from")
                return None
            properties = forwarding.decode(self.trusted(delivery.properties))
            # The exchange at the upstream has checked this before, unless it is a plain fanout.
            if not forwarding.should_forward(properties.headers, max_hops, cluster_name, self.vhost):
                return None
            properties.headers = forwarding.received_from_exchange(
                properties.headers,
                uri=self.uri.shown,
                exchange=self.upstream_exchange,
                redelivered=delivery.redelivered,
                cluster_name=upstream_name,
                vhost=self.uri.vhost,
            )
            return Publish(self.name, delivery.routing_key, properties.encode(), False)

        return rewrite

    def upstream_objects(self) -> frozenset[Hashable]:
        return upstream_objects(self._exchange, self.upstream)

    def leaves_for(self, other: FederationLink) -> bool:
        # Other URIs alone prove nothing: they may lead to the same broker, whose queue has messages.
        return isinstance(other, ExchangeLink) and other.upstream_exchange != self.upstream_exchange

    async def clean_up(self) -> None:
        if not self.upstream.cleans_up:
            return
        failure: BrokerError | None = None
        async with trio.open_nursery() as nursery:
            try:
                remote, self.uri = await self.endpoints.open(
                    nursery, self.vhost, self.upstream.uris, self.connection_name
                )
                try:
                    queue = self._queue_name()
                    for suffix in "AB":
                        await delete_exchange(remote, f"{queue} {suffix}")
                    await delete_queue(remote, queue)
                finally:
                    await remote.close()
            except BrokerError as error:
                failure = error.fresh()
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure.fresh()

    def status(self) -> dict[str, Json]:
        return {
            "exchange": self.name,
            "upstream_exchange": self.upstream_exchange,
            "type": self.kind,
            "vhost": self.vhost,
            "upstream": self.upstream.name,
            "id": self.id,
        }


async def _maybe_give_way(at: int) -> None:
    if at % AT_ONCE == 0:
        await trio.lowlevel.checkpoint()


def _internal_exchange(name: str, type: str, arguments: bytes = EMPTY_TABLE) -> ExchangeDeclaration:
    """Return the declaration of one of the exchanges A and B."""
    return ExchangeDeclaration(name, type, durable=True, auto_delete=True, internal=True, arguments=arguments)
