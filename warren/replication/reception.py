"""A leader's end of the cluster port: what connects there proves itself, and is let in as a follower or a client.

1. A peer that connects has `HANDSHAKE_S` to prove that it knows the secret, unless others need its place
   (``newcomers.py``). Until then it is told nothing of the store.
2. A follower is taken if its directory is of this store, or empty, and no other node has its name or its incarnation.
3. A client of a follower comes over a connection of its own, which belongs to the broker from the handshake on. While
   clients are not served none is taken: followers may have to connect first, and nothing waits in their way.
4. A node that asks how far the log goes is answered, and hung up on.

The proofs are in ``handshake``; a follower that was let in is handled in ``link_to_follower``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import trio

from warren.cluster.events import Standing
from warren.replication import cluster_port
from warren.replication.advertised import told_urls
from warren.replication.entries import PREAMBLE
from warren.replication.followers import Followers
from warren.replication.format_level import LEVEL_TOLD, told_level, told_life, told_trouble, told_version
from warren.replication.handshake import LeaderSide, Node, Refused
from warren.replication.identity import Identity
from warren.replication.link_to_follower import Feeder, LinkToFollower
from warren.replication.newcomers import Newcomer, Newcomers
from warren.replication.passage import accepted, accepting_side, meet_follower
from warren.replication.pre_vote import answer, is_question
from warren.replication.rare_warnings import RareWarnings
from warren.replication.wire import Wire
from warren.server.client_of_node import ClientOfNode
from warren.server.replication import Host
from warren.server.setting_kinds import Endpoint
from warren.server.supervision import ESSENTIAL, Supervision

HANDSHAKE_S: Final = 5.0
REFUSED: Final = "a follower was refused"


class Electorate(Protocol):
    """What an elected leader says of its store and its nodes."""

    def standing(self) -> tuple[str, Standing]:
        """Return which store this is, how far its log goes, and up to where that is committed."""

    def why_not_taken(self, node: str, *, is_empty: bool) -> str:
        """Return why a node cannot follow this one, empty if it can; `is_empty`: its directory is."""


class Receiving(Feeder, Protocol):
    """The leader, as far as those that come need it. Its broker is not there before it has recovered."""

    me: Node
    followers: Followers

    @property
    def electorate(self) -> Electorate | None:
        """None for a leader that was not elected."""

    @property
    def maybe_host(self) -> Host | None:
        """The broker around it."""

    def store_id(self) -> bytes:
        """Return which store this is."""

    def left(self, link: LinkToFollower) -> None:
        """Note that the connection of a follower has ended."""


class Reception:
    """The cluster port of `leader`, at `endpoint`."""

    def __init__(self, endpoint: Endpoint, identity: Identity, leader: Receiving) -> None:
        self.bound: list[trio.socket.SocketType] = []  # the port, if that was bound before
        self.place: tuple[str, int] | None = None  # where it listens
        self.newcomers = Newcomers()
        self._endpoint = endpoint
        self._identity = identity
        self._leader = leader
        self._warnings = RareWarnings()

    async def run(self, tasks: Supervision, *, task_status: trio.TaskStatus[None]) -> None:
        """Take what comes. For ever.

        Raises:
            StartError: the address cannot be bound.
        """
        listeners = self.bound or await cluster_port.bound(self._endpoint)
        try:
            cluster_port.listen(self._endpoint, listeners)
            async with trio.open_nursery() as nursery:
                for listener in listeners:

                    async def accept(listener: trio.socket.SocketType = listener) -> None:
                        await self._accept(listener, nursery, tasks)

                    nursery.start_soon(tasks.keep, "cluster listener", accept, ESSENTIAL)
                self.place = listeners[0].getsockname()[:2]
                task_status.started()
        finally:
            cluster_port.close(listeners)

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery, tasks: Supervision) -> None:
        while True:
            try:
                sock, address = await listener.accept()
            except OSError:
                await trio.sleep(1.0)
                continue
            plain = socket.socket(fileno=sock.detach())
            nursery.start_soon(tasks.once, "follower", self._serve, plain, str(address[0]))

    async def _serve(self, sock: socket.socket, address: str) -> None:
        link: LinkToFollower | None = None
        try:
            with sock:
                link = await self._maybe_link(sock, address)
                if link is not None:
                    try:
                        await link.serve()
                    finally:
                        self._leader.left(link)
        finally:
            if link is not None:
                await link.forget()

    async def _maybe_link(self, sock: socket.socket, address: str) -> LinkToFollower | None:
        """Go through the handshake in time; return the follower's link, None for anything else."""
        link: LinkToFollower | None = None
        is_met = False
        try:
            with self.newcomers.enter(address, HANDSHAKE_S) as newcomer:
                link = await self._meet(sock, address, newcomer)
                is_met = True
            why = "others needed its place" if newcomer.lost_place else f"no handshake within {HANDSHAKE_S:g} s"
        except Refused as refused:
            why = refused.reason
        except OSError as error:
            why = error.strerror or str(error)
        if not is_met:
            self._warnings.say(REFUSED, reason=why, address=address)
        return link

    async def _meet(self, sock: socket.socket, address: str, newcomer: Newcomer) -> LinkToFollower | None:
        """Go through the handshake; return the follower's link, None for a client that one passes on, or a question.

        Raises:
            Refused: the peer is not a follower, or is not accepted.
            OSError: the connection, or its TLS, has failed.
        """
        leader = self._leader
        wire = await accepted(sock, self._identity.accepting)
        side = accepting_side(self._identity, leader.me)
        try:
            about = await meet_follower(wire, side, newcomer)
            assert side.follower is not None
            if side.client is not None:
                self._take_client(wire, side, side.client)
                return None
            if leader.electorate is not None and is_question(about):
                wire.put([side.welcome(answer(*leader.electorate.standing()))])
                wire.close()
                return None
            self._check(side, about)
        except Refused as refused:
            wire.put([refused.tell])
            raise
        told = {"store": leader.store_id().hex(), "epoch": leader.epoch(), "min_in_sync": leader.in_sync.min_in_sync}
        wire.put([side.welcome(told | LEVEL_TOLD)])
        wire.put([PREAMBLE])
        link = LinkToFollower(leader, wire, side.follower, address, about.get("applied"))
        link.urls = told_urls(about.get("http"))
        link.replica.life = told_life(about.get("life"))
        link.trouble = told_trouble(about.get("trouble"))
        link.level, link.version = told_level(about.get("level")), told_version(about.get("version"))
        leader.followers.add(link)
        link.feed(side.rest())
        return link

    def _take_client(self, wire: Wire, side: LeaderSide, table: Mapping[str, Any]) -> None:
        """Serve a client of a follower, if clients are served.

        Raises:
            Refused: its description makes no sense.
        """
        try:
            assert side.follower is not None
            client = ClientOfNode.of_table(table, side.follower.name)
        except ValueError as error:
            raise Refused(str(error), side.refusal(str(error))) from None
        host = self._leader.maybe_host
        if host is None or not host.may_accept():
            wire.put([side.refusal("it does not accept clients yet, or not that many at a time")])
            wire.close()
            return
        wire.put([side.welcome({})])
        host.pass_on(wire.detach(), client)

    def _check(self, side: LeaderSide, about: Mapping[str, Any]) -> None:
        """See whether a follower that knows the secret can be taken.

        Raises:
            Refused: it cannot.
        """
        assert side.follower is not None
        reason = self._why_not(side.follower, about.get("store"))
        if reason:
            raise Refused(reason, side.refusal(reason))

    def _why_not(self, node: Node, store: object) -> str:
        """Return why a node with that store cannot be taken; empty if it can."""
        leader = self._leader
        me = leader.me
        if node.name == me.name:
            return f"the leader is called {node.name}, too: give one of them another node_name"
        if node.incarnation == me.incarnation:
            return "the follower's data directory is a copy of the leader's with cluster.json: remove that file"
        if store not in ("", leader.store_id().hex()):
            return "its data directory holds another store: use an empty one, or follow the leader of that store"
        electorate = leader.electorate
        if electorate is not None and (why := electorate.why_not_taken(node.name, is_empty=store == "")):
            return why
        other = leader.followers.rival(node, time.monotonic())
        if other == node:
            return f"{node.name} is connected already, with a data directory of the same origin"
        if other is not None:
            return f"another node with the name {other.name}, or a copy of its directory, is connected already"
        return ""
