"""Connections to a cluster port, from both ends: they begin in the same way for all that nodes want of each other.

    node that connects                     node that accepts, here a leader
      |-- TLS, if the nodes use it ---------->|
      |<- handshake (``handshake.py``) ------>|   `prove_for` the client, instead of a position
      |<- the client's bytes, both ways ----->|

A leader refuses if it does not serve clients yet, or has too many requests at a time, and is asked again later.
"""

from __future__ import annotations

import errno
import secrets
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final

import trio

from warren.replication.handshake import NONCE_BYTES, FollowerSide, LeaderSide, Node, Refused
from warren.replication.identity import Identity
from warren.replication.newcomers import Newcomer
from warren.replication.wire import TlsWire, Wire, shake_hands
from warren.server.client_of_node import ClientOfNode
from warren.server.following import NoLeader, Passage
from warren.server.setting_kinds import Endpoint

PASSAGE_S: Final = 3.0


async def connect(endpoint: Endpoint, identity: Identity) -> Wire:
    """Connect to the cluster port of another node. Raises OSError."""
    try:
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    except UnicodeError:
        # Another node has told this address, and may have it from the name of its machine.
        raise OSError(errno.EINVAL, f"{endpoint.host!r} is not a host name") from None
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    if identity.connecting is None:
        return Wire(sock)
    wrapped = identity.connecting.wrap_socket(sock, do_handshake_on_connect=False)
    try:
        await shake_hands(wrapped)
    except BaseException:
        wrapped.close()
        raise
    return TlsWire(wrapped)


async def accepted(sock: socket.socket, context: ssl.SSLContext | None) -> Wire:
    """Put TLS around a connection that was accepted. Raises OSError."""
    sock.setblocking(False)
    if context is None:
        return Wire(sock)
    wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    await shake_hands(wrapped)
    return TlsWire(wrapped)


async def meet_leader(wire: Wire, identity: Identity, me: Node) -> FollowerSide:
    """Verify that the leader proves itself.

    Raises:
        Refused: it does not.
    """
    side = FollowerSide(identity.secret, me, secrets.token_bytes(NONCE_BYTES), wire.binding())
    wire.put([side.hello])
    try:
        while not side.challenged():
            side.feed(await some(wire))
    except Refused as refused:
        wire.put([refused.tell])
        raise
    return side


def accepting_side(identity: Identity, me: Node) -> LeaderSide:
    """Return the side of the node `me` for a connection that it has accepted."""
    return LeaderSide(identity.secret, me, secrets.token_bytes(NONCE_BYTES), identity.certificate)


async def meet_follower(wire: Wire, side: LeaderSide, newcomer: Newcomer) -> Mapping[str, Any]:
    """Verify that the node that connects proves itself; return its position, see `LeaderSide.proved`.

    Raises:
        Refused: it does not. The caller tells it so.
    """
    while not (challenge := side.challenge()):
        side.feed(await some(wire))
    newcomer.has_spoken = True
    wire.put([challenge])
    while (about := side.proved()) is None:
        side.feed(await some(wire))
    return about


async def pass_on(endpoint: Endpoint, identity: Identity, me: Node, client: ClientOfNode) -> Passage:
    """Connect a client to the leader at `endpoint`.

    Raises:
        NoLeader: the leader is missing, or takes nobody now.
    """
    try:
        with trio.fail_after(PASSAGE_S):
            wire = await connect(endpoint, identity)
            try:
                side = await meet_leader(wire, identity, me)
                wire.put([side.prove_for(client.table())])
                while side.welcomed() is None:
                    side.feed(await some(wire))
                if side.rest():
                    raise Refused("it speaks before the client does")
                return Passage(wire.detach(), side.leader)
            except BaseException:
                wire.close()
                raise
    except trio.TooSlowError:
        raise NoLeader(f"{endpoint} does not answer within {PASSAGE_S:g} s") from None
    except Refused as refused:
        raise NoLeader(f"{endpoint}: {refused.reason}") from None
    except OSError as error:
        raise NoLeader(f"{endpoint}: {error.strerror or error}") from None


async def some(wire: Wire) -> bytes:
    """Wait for bytes and return them.

    Raises:
        Refused: the connection has ended.
    """
    data = await wire.received()
    if not data:
        raise Refused("the other side hung up during the handshake; see its log")
    return data
