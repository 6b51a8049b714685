"""The objects of a path, and those that a user may see."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Final

from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import ConnectionRef, QueueRef
from warren.mgmt_plugin.listing import MANY, in_order
from warren.mgmt_plugin.routes import Access, Call, not_authorised, not_found

DEFAULT_NAME: Final = "amq.default"
CLOSED_BY_MANAGEMENT: Final = "Closed via management plugin"
CANCELLED_BY_MANAGEMENT: Final = "Cancelled via management plugin"


def cluster_id(view: EngineView) -> str:
    """Return the identity of this broker, which no other broker has, whatever their names.

    Only a digest of the store's id is returned: with the id itself a publisher could write frames into his messages.
    """
    digest = sha256(view.store_id() + b"cluster").digest()[:16]
    return "rabbitmq-cluster-id-" + urlsafe_b64encode(digest).decode().rstrip("=")


def exchange_name(given: str) -> str:
    """Return the name of an exchange as AMQP has it: in paths the default exchange is called ``amq.default``."""
    return "" if given == DEFAULT_NAME else given


# --- what a user may see ----------------------------------------------------------------------------------------------


def visible_vhost_names(call: Call) -> list[str]:
    """Return the name of the vhost of the path, or those of the vhosts that the user may see, in order."""
    only = call.params.get("vhost")
    if only is not None:
        return [only]
    sees_all = call.operator.is_monitor
    return [name for name in sorted(call.vhosts) if sees_all or call.operator.may_enter(name)]


async def visible_queues(call: Call, view: EngineView) -> list[QueueRef]:
    """Return the queues that the user may see, by vhost and name; not to be changed."""
    vhosts = visible_vhost_names(call)
    if len(vhosts) == 1:
        return await sorted_queues(call, view, vhosts[0])
    found: list[QueueRef] = []
    for vhost in vhosts:
        found += await sorted_queues(call, view, vhost)
    return found


async def sorted_queues(call: Call, view: EngineView, vhost: str) -> list[QueueRef]:
    """Return the queues of a vhost in the order of their names, sorted in pieces; not to be changed."""
    queues = view.queues
    found = queues.maybe_sorted(vhost, MANY)
    if found is None:
        await call.request.begin_work()
        found = queues.maybe_sorted(vhost, MANY)  # sorted by the previous holder of the permit
    if found is None:
        version = queues.topology_version(vhost)
        found = await in_order(queues.in_vhost(vhost), queues.name)
        queues.keep_sorted(vhost, found, version)
    return found


def visible_connections(call: Call, view: EngineView) -> list[ConnectionRef]:
    """Return the client connections that the user may see: a monitor all, others their own, of a vhost if asked."""
    own = None if call.operator.is_monitor else call.operator.name
    return view.connections.known(user=own, vhost=call.params.get("vhost"))


def the_connection(call: Call, view: EngineView) -> ConnectionRef:
    """Return the connection of the path, to describe it.

    Raises:
        HttpError: 404; 401, it belongs to another user.
    """
    connection = view.connections.maybe_named(call.params["connection"])
    if connection is None:
        raise not_found()
    if not call.operator.is_monitor and view.connections.user(connection) != call.operator.name:
        raise not_authorised(Access.POLICYMAKER.value)
    return connection


def the_connection_to_close(call: Call, view: EngineView) -> ConnectionRef:
    """Return the connection of the path, to close it or to end something on it.

    Raises:
        HttpError: 404; 401, it belongs to another user.
    """
    connection = the_connection(call, view)
    check_may_close(call, view.connections.user(connection))
    return connection


def check_may_close(call: Call, user: str) -> None:
    """Make sure that the connections of `user` may be closed: an administrator may, and everybody their own.

    Raises:
        HttpError: 401.
    """
    if not call.operator.is_administrator and user != call.operator.name:
        raise not_authorised(Access.POLICYMAKER.value)


def reason_of(call: Call, otherwise: str = CLOSED_BY_MANAGEMENT) -> str:
    """Return what the log says, and the client is told; `otherwise`: when the request does not say it.

    Programs send UTF-8, as to RabbitMQ, and browsers can send Latin-1 only.
    """
    given = call.request.headers.get("x-reason", "")
    try:
        return given.encode("latin-1").decode() or otherwise
    except UnicodeDecodeError:
        return given


def the_vhost(call: Call) -> str:
    """Return the name of the vhost of the path.

    Raises:
        HttpError: 404, it was deleted meanwhile.
    """
    if call.params["vhost"] not in call.vhosts:
        raise not_found()
    return call.params["vhost"]


def the_shared_queue(call: Call, view: EngineView) -> QueueRef:
    """Return the queue of the path, to look at its messages or to change it, and not one of a connection.

    Raises:
        HttpError: 404. ChannelException: 405, it is exclusive to a connection.
    """
    queue = the_queue(call, view)
    view.queues.check_shared(queue)
    return queue


def the_queue(call: Call, view: EngineView) -> QueueRef:
    """Return the queue of the path, to describe it: what lists show of a queue they show of every queue.

    Raises:
        HttpError: 404.
    """
    queue = view.queues.maybe(call.params["vhost"], call.params["queue"])
    if queue is None:
        raise not_found()
    return queue
