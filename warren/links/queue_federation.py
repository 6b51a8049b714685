"""One upstream of a federated queue: messages move here while a consumer here waits for them.

1. The link consumes upstream only while `Host.wants_messages` is true: the local queue is empty and has a consumer with
   room. It consumes with priority -1: consumers at the upstream come first.
2. Messages that have arrived when the demand ends are still moved: at most prefetch-count of them.
3. Publishes are mandatory: if the local queue is deleted meanwhile, the attempt ends, and the messages stay upstream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from warren.amqp.errors import NOT_FOUND
from warren.amqp.field_table import encode_table
from warren.amqp_client.channel import Delivery
from warren.amqp_client.client_errors import PeerClosed
from warren.links import forwarding, transfer
from warren.links.amqp_client import Channel, LinkConnection, Signal
from warren.links.endpoints import Endpoints
from warren.links.federation import FederationLink
from warren.links.host import LocalQueue
from warren.links.transfer import Publish, Transfer
from warren.links.upstreams import Upstream
from warren.links.validation import Json

PRIORITY: Final = -1


class QueueLink(FederationLink):
    """Fetches for one queue from one upstream."""

    kind = "queue"

    def __init__(self, queue: LocalQueue, upstream: Upstream, endpoints: Endpoints) -> None:
        super().__init__(queue.vhost, queue.declaration.name, upstream, endpoints)
        self._queue = queue
        self._demand_changed = Signal()

    @property
    def upstream_queue(self) -> str:
        return self.upstream.queue or self.name

    def demand_changed(self) -> None:
        """Wake the link: the queue here may want messages now, or no longer."""
        self._demand_changed.wake()

    async def carry(
        self, nursery: trio.Nursery, remote: LinkConnection, local: LinkConnection, running: Callable[[], None]
    ) -> None:
        await self._ensure_upstream(remote)
        outbound = await local.open_channel()
        if self.upstream.ack_mode == transfer.ON_CONFIRM:
            await outbound.confirm_select()
        inbound = await remote.open_channel()
        if self.upstream.prefetch_count and self.upstream.ack_mode != transfer.NO_ACK:
            await inbound.qos(self.upstream.prefetch_count)
        moving = Transfer(inbound, outbound, self.upstream.ack_mode, self._rewrite)
        running()
        await self.move(moving, partial(self._follow, inbound))

    async def _ensure_upstream(self, remote: LinkConnection) -> None:
        """Make sure that the upstream queue exists, whatever its properties; create it with those of ours if not."""
        probe = await remote.open_channel()
        try:
            await probe.look_at_queue(self.upstream_queue)
            return
        except PeerClosed as error:
            if error.scope != "channel" or error.reply_code != NOT_FOUND:
                raise
        maker = await remote.open_channel()
        await maker.declare_queue(replace(self._queue.declaration, name=self.upstream_queue))

    async def _follow(self, inbound: Channel) -> None:
        """Consume while there is demand."""
        arguments = encode_table({"x-priority": PRIORITY})
        no_ack = self.upstream.ack_mode == transfer.NO_ACK
        consuming = False
        while True:
            wanted = self.endpoints.host.wants_messages(self.vhost, self.name)
            if wanted == consuming:
                await self._demand_changed.wait()  # no other task has run since the check
                continue
            tag = self.upstream.consumer_tag
            if wanted:
                await inbound.consume(self.upstream_queue, tag, no_ack=no_ack, arguments=arguments)
            else:
                await inbound.cancel(tag)
            consuming = wanted

    def _rewrite(self, delivery: Delivery, annotated: bool) -> Publish:
        properties = forwarding.decode(self.trusted(delivery.properties))
        if annotated:
            properties.headers = forwarding.received_from_queue(
                properties.headers,
                uri=self.uri.shown,
                queue=self.upstream_queue,
                redelivered=delivery.redelivered,
                exchange=delivery.exchange,
                routing_key=delivery.routing_key,
            )
        elif properties.headers is not None:
            properties.headers = forwarding.without_copies(properties.headers)
        return Publish("", self.name, properties.encode(), True)

    async def clean_up(self) -> None:
        pass  # A link of queues leaves only messages upstream.

    def status(self) -> dict[str, Json]:
        return {
            "queue": self.name,
            "upstream_queue": self.upstream_queue,
            "consumer_tag": self.upstream.consumer_tag,
            "type": self.kind,
            "vhost": self.vhost,
            "upstream": self.upstream.name,
            "id": self.id,
        }
