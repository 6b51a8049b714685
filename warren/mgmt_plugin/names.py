"""The names of things in the API: names of connections and channels, and the exchange without a name."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

from warren.channels.broker import Broker
from warren.channels.event_values import port_of
from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.exchanges.exchange import Exchange
from warren.mgmt_plugin.listing import MANY, in_order
from warren.mgmt_plugin.routes import Call, not_found
from warren.queues.queue import Queue
from warren.vhosts.virtual_host import VirtualHost

DEFAULT_NAME: Final = "amq.default"


def node_name(broker: Broker) -> str:
    """Return the name of the node."""
    return broker.node_name()


def cluster_id(broker: Broker) -> str:
    """Return the identity of this broker, which no other broker has, whatever their names.

    Only a digest of the store's id is returned: with the id itself a publisher could write frames into his messages.
    """
    digest = sha256(broker.log.store_id + b"cluster").digest()[:16]
    return "rabbitmq-cluster-id-" + urlsafe_b64encode(digest).decode().rstrip("=")


def exchange_name(given: str) -> str:
    """Return the name of an exchange as AMQP has it: in paths the default exchange is called ``amq.default``."""
    return "" if given == DEFAULT_NAME else given


def connection_name(connection: Peer) -> str:
    """Return ``peer -> local``."""
    return f"{connection.peer} -> {connection.local}"


def channel_name(channel: Session) -> str:
    """Return the connection's name and the channel's number."""
    return f"{connection_name(channel.connection)} ({int(channel.number)})"


def node_of(connection: Peer, broker: Broker) -> str:
    """Return the name of the node that a client is connected to: one that passes requests on, or this one."""
    return connection.node_name or node_name(broker)


def host_of(endpoint: str) -> str:
    """Return the host of ``host:port``."""
    return endpoint.rpartition(":")[0].strip("[]")


def connection_details(connection: Peer) -> dict[str, Any]:
    """Return the description of a connection in the objects that belong to it."""
    return {
        "name": connection_name(connection),
        "user_provided_name": connection.name,
        "peer_host": host_of(connection.peer),
        "peer_port": port_of(connection.peer),
    }


def channel_details(channel: Session, node: str) -> dict[str, Any]:
    """Return the description of a channel in the objects that belong to it."""
    connection = channel.connection
    return {
        "connection_name": connection_name(connection),
        "user_provided_name": connection.name,
        "name": channel_name(channel),
        "node": connection.node_name or node,
        "number": int(channel.number),
        "peer_host": host_of(connection.peer),
        "peer_port": port_of(connection.peer),
        "user": connection.user_name,
    }


# --- what a user may see ----------------------------------------------------------------------------------------------


def visible_vhosts(call: Call) -> Iterator[VirtualHost]:
    """Yield the vhost of the path, or those that the user may see, in the order of their names."""
    vhosts = call.vhosts
    only = call.params.get("vhost")
    sees_all = only is not None or call.operator.is_monitor
    for name in sorted(vhosts) if only is None else [only]:
        if sees_all or call.operator.may_enter(name):
            yield vhosts[name]


async def visible_queues(call: Call) -> list[Queue]:
    """Return the queues that the user may see, by vhost and name; not to be changed."""
    vhosts = list(visible_vhosts(call))
    if len(vhosts) == 1:
        return await sorted_queues(call, vhosts[0])
    found: list[Queue] = []
    for vhost in vhosts:
        found += await sorted_queues(call, vhost)
    return found


async def sorted_queues(call: Call, vhost: VirtualHost) -> list[Queue]:
    """Return the queues of a vhost in the order of their names, sorted in pieces; not to be changed."""
    if len(vhost.queues) <= MANY or vhost.has_sorted_queues():
        return vhost.sorted_queues()
    await call.request.begin_work()
    if vhost.has_sorted_queues():  # sorted by the previous holder of the permit
        return vhost.sorted_queues()
    version = int(vhost.topology_version)
    found = await in_order(list(vhost.queues.values()), lambda queue: queue.name)
    vhost.keep_sorted(found, version)
    return found


def visible_connections(call: Call, broker: Broker) -> list[Peer]:
    """Return the client connections that the user may see: a monitor all, others their own, of a vhost if asked."""
    only = call.params.get("vhost")
    own = None if call.operator.is_monitor else call.operator.name
    found: list[Peer] = []
    for connection in broker.connections.values():
        if connection.is_direct or not connection.is_known:
            continue
        if only is not None and connection.vhost_name != only:
            continue
        if own is None or connection.user_name == own:
            found.append(connection)
    return found


def the_vhost(call: Call) -> VirtualHost:
    """Return the vhost of the path."""
    vhost = call.vhosts.get(call.params["vhost"])
    if vhost is None:
        raise not_found()
    return vhost


def the_queue(call: Call) -> Queue:
    """Return the queue of the path, to describe it: what lists show of a queue they show of every queue.

    Raises:
        HttpError: 404.
    """
    queue = the_vhost(call).queues.get(call.params["queue"])
    if queue is None:
        raise not_found()
    return queue


def the_shared_queue(call: Call) -> Queue:
    """Return the queue of the path, to look at its messages or to change it: none that belongs to a connection.

    Raises:
        HttpError: 404. ChannelException: 405, it is exclusive to a connection.
    """
    return the_vhost(call).queue(the_queue(call).name, None)


def is_shared(queue: Queue) -> bool:
    """Tell whether `queue` is not exclusive to a connection."""
    return queue.owner is None


def the_exchange(call: Call) -> tuple[VirtualHost, Exchange]:
    """Return the exchange of the path, and its vhost.

    Raises:
        HttpError: 404.
    """
    vhost = the_vhost(call)
    exchange = vhost.exchanges.get(exchange_name(call.params["exchange"]))
    if exchange is None:
        raise not_found()
    return vhost, exchange
