"""Client ids: each belongs to one connection at a time in its vhost (``Broker.named_clients``).

    no owner     the connection begins, and becomes the owner when it has entered the vhost (`own`)
    an owner     the owner is ended, and the connection waits as its successor (`succeed`)
    release      the owner has released everything: its successor begins

1. A successor begins when the owner has released everything: its queues, its session, and its share of the limits of
   connections.
2. At most one connection waits. A later one ends it, and waits in its place.
3. The owner and its successors belong to the same user. A connection of another user is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.channels.peer import Peer
from warren.mqtt.reason_codes import BAD_CLIENT_ID, TAKEN_OVER, MqttError

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer


def _key(peer: MqttPeer) -> tuple[str, str]:
    return peer.login.vhost_name or "/", peer.client_id


def maybe_owner(peer: MqttPeer) -> Peer | None:
    """Return the connection that has the client id of `peer`; None: it is free."""
    return peer.broker.named_clients.get(_key(peer))


def succeed(peer: MqttPeer, owner: MqttPeer) -> None:
    """End `owner`, and pause `peer` until it has released everything: then `MqttPeer.begin_after` is called.

    Raises:
        MqttError: they are of different users.
    """
    if owner.login.user_name != peer.login.user_name:
        raise MqttError(BAD_CLIENT_ID, "the client id is that of another user who is connected")
    earlier = owner.successor
    owner.successor = peer
    for each in (earlier, owner):
        if each is not None:
            each.fail(MqttError(TAKEN_OVER, "the session was taken over by another connection"))


def own(peer: MqttPeer) -> None:
    """Note that `peer`, which has entered its vhost, has its client id."""
    peer.broker.named_clients[_key(peer)] = peer


def release(peer: MqttPeer) -> MqttPeer | None:
    """Give up the client id, if `peer` has it; return the connection that waits for it."""
    names = peer.broker.named_clients
    key = _key(peer)
    if names.get(key) is not peer:
        return None
    del names[key]
    successor = peer.successor
    peer.successor = None
    return successor
