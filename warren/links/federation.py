"""The common part of links of federated exchanges and queues: identity, attempts, status."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable

import trio

from warren.amqp import methods
from warren.amqp_client.client_errors import BrokerError
from warren.links import forwarding
from warren.links.amqp_client import LinkConnection, LinkError
from warren.links.endpoints import Endpoints
from warren.links.transfer import Transfer
from warren.links.upstreams import Upstream
from warren.links.validation import Json


class FederationLink(ABC):
    """One upstream of one exchange or queue, over all attempts. ``kind`` is ``exchange`` or ``queue``."""

    kind = ""

    def __init__(self, vhost: str, name: str, upstream: Upstream, endpoints: Endpoints) -> None:
        self.vhost = vhost
        self.name = name
        self.upstream = upstream
        self.endpoints = endpoints
        self.uri = upstream.uris[0]
        self.transfer: Transfer | None = None
        self.id = f"{zlib.crc32(repr((self.kind, vhost, name, upstream.name)).encode()):08x}"

    @property
    def reconnect_delay_s(self) -> float:
        return self.upstream.reconnect_delay_s

    @property
    def connection_name(self) -> str:
        return f"Federation link (upstream: {self.upstream.name}, {self.kind} '{self.name}' in vhost '{self.vhost}')"

    async def attempt(self, running: Callable[[], None]) -> None:
        """Connect to both brokers, call `running`, and carry messages until an error ends that.

        Raises:
            BrokerError: the error.
        """
        failure: BrokerError | None = None
        opened: list[LinkConnection] = []
        async with trio.open_nursery() as nursery:
            try:
                local = await self.endpoints.open_local(nursery, self.vhost, self.connection_name)
                opened.append(local)
                remote, self.uri = await self.endpoints.open(
                    nursery, self.vhost, self.upstream.uris, self.connection_name
                )
                opened.append(remote)
                await self.carry(nursery, remote, local, running)
            except BrokerError as error:
                failure = error.fresh()
            finally:
                self.transfer = None
                for connection in opened:
                    await connection.close()
                nursery.cancel_scope.cancel()
        raise LinkError("the link ended") if failure is None else failure.fresh()

    @abstractmethod
    async def carry(
        self, nursery: trio.Nursery, remote: LinkConnection, local: LinkConnection, running: Callable[[], None]
    ) -> None:
        """Prepare both ends and move messages; the link's own part."""

    async def move(self, transfer: Transfer, follow: Callable[[], Awaitable[None]]) -> None:
        """Move messages, and `follow` local changes meanwhile, until one of the two fails.

        Raises:
            BrokerError: the first failure.
        """
        self.transfer = transfer
        failures: list[BrokerError] = []
        async with trio.open_nursery() as both:

            async def attempt(part: Callable[[], Awaitable[None]]) -> None:
                try:
                    await part()
                except BrokerError as error:
                    failures.append(error.fresh())
                    both.cancel_scope.cancel()

            both.start_soon(attempt, follow)
            await attempt(transfer.run)
            both.cancel_scope.cancel()
        if failures:
            raise failures[0].fresh()

    def upstream_objects(self) -> frozenset[Hashable]:
        """Return an element for each object that this link may have made upstream; equal ones mean the same object."""
        return frozenset()

    def leaves_for(self, other: FederationLink) -> bool:
        """Tell whether `other`, which replaces this link, leaves the upstream objects of this link unused."""
        return False

    @abstractmethod
    async def clean_up(self) -> None:
        """Remove everything that the link made upstream, once the link is no longer wanted.

        Raises:
            BrokerError: the upstream cannot be reached.
        """

    def trusted(self, properties: bytes) -> bytes:
        """Return the properties without a user-id, unless the upstream is trusted with it."""
        if self.upstream.trust_user_id or not properties[1] & 0x10:
            return properties
        decoded = forwarding.decode(properties)
        decoded.user_id = None
        return decoded.encode()

    @abstractmethod
    def status(self) -> dict[str, Json]:
        """Return the fields of /api/federation-links that name the link; no credentials."""


def upstream_cluster_name(remote: LinkConnection) -> str:
    """Return the cluster name of an upstream; its address when it has none."""
    name = remote.server_properties.get("cluster_name")
    return name if isinstance(name, str) and name else remote.where


async def delete_queue(connection: LinkConnection, queue: str) -> None:
    """Delete a queue if it is there."""
    channel = await connection.open_channel()
    await channel.call(
        methods.QueueDelete(0, queue, if_unused=False, if_empty=False, no_wait=False), methods.QueueDeleteOk
    )


async def delete_exchange(connection: LinkConnection, exchange: str) -> None:
    """Delete an exchange if it is there."""
    channel = await connection.open_channel()
    await channel.call(methods.ExchangeDelete(0, exchange, if_unused=False, no_wait=False), methods.ExchangeDeleteOk)
