"""One node asks another one how far its log goes, over its cluster port (pre_vote.py)."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import pytest
import trio
from free_ports import free_port

from warren.cluster.events import Position, Standing
from warren.replication import cluster_port
from warren.replication.handshake import Node, Refused
from warren.replication.identity import Identity
from warren.replication.newcomers import Newcomer
from warren.replication.passage import accepted, accepting_side, connect, meet_follower, meet_leader, some
from warren.replication.pre_vote import PositionPort, Told, ask
from warren.server.setting_kinds import Endpoint

ONE, TWO = Node("one", bytes(15) + b"1"), Node("two", bytes(15) + b"2")
SECRET = Identity(b"what the nodes of this test share")
STORE = bytes(range(16)).hex()
STANDING = Standing(Position(5, 500), Position(4, 400))


def with_port(store: str, test: Callable[[Endpoint], Awaitable[None]]) -> None:
    """Make node two answer, and run the test."""

    async def main() -> None:
        endpoint = Endpoint("127.0.0.1", free_port())
        port = await cluster_port.bound(endpoint)
        cluster_port.listen(endpoint, port)
        try:
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(PositionPort(SECRET, TWO, lambda: (store, STANDING)).run, port)
                    await test(endpoint)
                    nursery.cancel_scope.cancel()
        finally:
            cluster_port.close(port)

    trio.run(main)


@pytest.mark.parametrize(("store", "standing"), [(STORE, STANDING), ("", STANDING), (bytes(16).hex(), None)])
def test_a_node_of_the_same_store_says_how_far_its_log_goes(store: str, standing: Standing | None) -> None:
    async def test(endpoint: Endpoint) -> None:
        for _ in range(40):  # more than are taken at a time
            assert await ask(endpoint, SECRET, ONE, STORE) == Told(TWO, standing)

    with_port(store, test)


def test_who_does_not_know_the_secret_is_told_nothing() -> None:
    async def test(endpoint: Endpoint) -> None:
        with pytest.raises(Refused, match="the same secret"):
            await ask(endpoint, Identity(b"another secret than that"), ONE, STORE)

    with_port(STORE, test)


@pytest.mark.parametrize("host", ["broker..example", "b" * 64, "b" * 70 + ".example", "\ud800"])
def test_an_address_that_cannot_be_one_is_not_reached(host: str) -> None:
    """Another node has told it, and its machine may have such a name: that ends nothing here."""

    async def main() -> None:
        with pytest.raises(OSError, match="not a host name"):
            await connect(Endpoint(host, 25672), SECRET)

    trio.run(main)


def test_a_node_that_wants_to_follow_is_told_that_this_one_does_not_lead() -> None:
    """(1)"""

    async def test(endpoint: Endpoint) -> None:
        wire = await connect(endpoint, SECRET)
        side = await meet_leader(wire, SECRET, ONE)
        wire.put([side.prove({"store": STORE})])
        side.feed(await some(wire))
        with pytest.raises(Refused, match="does not lead") as refused:
            side.welcomed()
        assert not refused.value.leads
        wire.close()

    with_port(STORE, test)


@pytest.mark.parametrize(
    "answer", [{}, {"store": STORE, "standing": [[1, 2], [3, -4]]}, {"store": STORE, "standing": 7}]
)
def test_a_node_that_proves_itself_is_reached_whatever_it_says(answer: dict[str, object]) -> None:
    """(2)"""

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)

        async def serve() -> None:
            await trio.lowlevel.wait_readable(listener)
            sock, _ = listener.accept()
            wire = await accepted(sock, None)
            side = accepting_side(SECRET, TWO)
            await meet_follower(wire, side, Newcomer("nowhere", trio.CancelScope()))
            wire.put([side.welcome(answer) if answer else side.refusal("it has another store")])
            await trio.sleep_forever()

        with listener, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                endpoint = Endpoint(*listener.getsockname())
                assert await ask(endpoint, SECRET, ONE, STORE) == Told(TWO, None)
                nursery.cancel_scope.cancel()

    trio.run(main)
