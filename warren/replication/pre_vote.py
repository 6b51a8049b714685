"""Asking another node how far its log goes, over its cluster port, and answering while this node follows.

    node that asks                         node that is asked
      |-- TLS, if the nodes use it ---------->|
      |<- handshake (``handshake.py``) ------>|   with `{"asks": "position"}` as the position
      |<- WELCOME: its store and standing ----|   and the connection ends

    store        hexadecimal digits; empty of a node with nothing in its directory
    standing     [epoch, LSN] up to where its log is synced, and [epoch, LSN] up to where that is committed

1. A node answers from its start on, in every role. While it does not lead it refuses everything else, and says that it
   does not lead: the process that led is gone.
2. The decision from the answers is in ``cluster/pre_vote.py``. A node that proves itself and does not answer (of an
   older version) counts as reached, too.
3. Peers that have not proved themselves are few, and have little time (``newcomers.py``).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from warren.cluster.events import Position, Standing
from warren.replication.handshake import Node, Refused
from warren.replication.identity import Identity
from warren.replication.newcomers import Newcomer, Newcomers
from warren.replication.passage import accepted, accepting_side, connect, meet_follower, meet_leader, some
from warren.server.logs import get_logger
from warren.server.setting_kinds import Endpoint

HANDSHAKE_S: Final = 5.0
AGAIN_S: Final = 1.0  # after a connection could not be taken
QUESTION: Final = {"asks": "position"}
NOT_LEADING: Final = "this node does not lead"
_NUMBER_MAX: Final = (1 << 63) - 1

log = get_logger("position_port")


class Told(NamedTuple):
    """The answer of a node; `standing` is None when it has said nothing of its log, or has another store."""

    node: Node
    standing: Standing | None


async def ask(endpoint: Endpoint, identity: Identity, me: Node, store: str) -> Told:
    """Ask the node at `endpoint` how far its log goes, which is of the store with this id; it may take for ever.

    Raises:
        OSError: the connection is refused, or fails.
        Refused: it does not prove itself.
    """
    wire = await connect(endpoint, identity)
    try:
        side = await meet_leader(wire, identity, me)
        assert side.leader is not None
        try:
            wire.put([side.prove(QUESTION)])
            while (answer := side.welcomed()) is None:
                side.feed(await some(wire))
        except Refused:
            return Told(side.leader, None)
        return Told(side.leader, _maybe_standing(answer, store))
    finally:
        wire.close()


def is_question(about: Mapping[str, Any]) -> bool:
    """Tell whether the position that a node has sent is this question."""
    return about.get("asks") == QUESTION["asks"]


def answer(store: str, standing: Standing) -> dict[str, object]:
    """Return the answer of a node."""
    return {"store": store, "standing": [list(standing.position), list(standing.committed)]}


def _maybe_standing(told: Mapping[str, Any], store: str) -> Standing | None:
    found = told.get("standing")
    if told.get("store") not in ("", store) or not isinstance(found, list) or len(found) != 2:
        return None
    position, committed = _maybe_position(found[0]), _maybe_position(found[1])
    return None if position is None or committed is None else Standing(position, committed)


def _maybe_position(pair: object) -> Position | None:
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    if not all(isinstance(number, int) and 0 <= number <= _NUMBER_MAX for number in pair):
        return None
    return Position(*pair)


class PositionPort:
    """The cluster port of the node `me` while it does not lead. `standing`: its store, and how far its log goes."""

    def __init__(self, identity: Identity, me: Node, standing: Callable[[], tuple[str, Standing]]) -> None:
        self._identity = identity
        self._me = me
        self._standing = standing
        self._newcomers = Newcomers()

    async def run(self, listeners: Sequence[trio.socket.SocketType]) -> None:
        """Answer, for ever."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            try:
                sock, address = await listener.accept()
            except OSError:
                await trio.sleep(AGAIN_S)
                continue
            nursery.start_soon(self._serve, socket.socket(fileno=sock.detach()), str(address[0]))

    async def _serve(self, sock: socket.socket, address: str) -> None:
        try:
            with sock, suppress(OSError, Refused), self._newcomers.enter(address, HANDSHAKE_S) as newcomer:
                await self._answer(sock, newcomer)
        except Exception as error:
            # A fault of ours, met by one peer that need not have logged in: the port stays.
            log.error("internal error, the connection is closed", exception=error)

    async def _answer(self, sock: socket.socket, newcomer: Newcomer) -> None:
        wire = await accepted(sock, self._identity.accepting)
        side = accepting_side(self._identity, self._me)
        try:
            if not is_question(await meet_follower(wire, side, newcomer)):
                raise Refused(NOT_LEADING, side.refusal(NOT_LEADING, leads=False))
            wire.put([side.welcome(answer(*self._standing()))])
        except Refused as refused:
            wire.put([refused.tell])
        finally:
            wire.close()
