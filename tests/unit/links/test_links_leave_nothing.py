"""Links and connections that are over leave no cycles: the collector of a broker never looks at what is old."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

import pytest
import trio
from link_host import FakeHost
from link_peer import Peer, fails, play
from trio.testing import MockClock

from warren.amqp import methods
from warren.amqp_client.client_errors import BrokerError
from warren.amqp_client.frames import NO_PROPERTIES
from warren.links.address_guard import AddressGuard
from warren.links.amqp_client import Channel, ClientSettings, LinkConnection
from warren.links.supervisor import Supervisor

SHOVEL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b", "reconnect-delay": 7}


def objects_of_links() -> Counter[str]:
    ours = ("warren.links", "warren.amqp_client")
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each).__module__.startswith(ours))


async def _nonsense(peer: Peer) -> None:
    await peer.stream.send_all(b"\x09\x00\x01\x00\x00\x00\x00\xce")


async def _closes(peer: Peer) -> None:
    await peer.send(0, methods.ConnectionClose(320, "gone", 0, 0))
    await peer.expect(methods.ConnectionCloseOk)


async def _closes_a_channel(peer: Peer) -> None:
    await peer.send(1, methods.ChannelClose(404, "no queue", 0, 0))
    await peer.expect(methods.ChannelCloseOk)
    await peer.expect(methods.ConnectionClose)
    await peer.send(0, methods.ConnectionCloseOk())


@pytest.mark.parametrize("script", [_nonsense, _closes, _closes_a_channel])
def test_a_connection_that_has_ended_is_freed_at_once(script: Callable[[Peer], object]) -> None:
    async def client(connection: LinkConnection, channel: Channel) -> None:
        await fails(channel)
        for _ in range(2):
            with pytest.raises(BrokerError):
                channel.publish("", "q", NO_PROPERTIES, b"")
        await connection.close()

    def once() -> None:
        play(script, client)  # type: ignore[arg-type]

    once()
    gc.collect()
    gc.disable()
    try:
        before = objects_of_links()
        for _ in range(5):
            once()
        assert objects_of_links() - before == Counter()
    finally:
        gc.enable()


class Unreachable(FakeHost):
    """A host whose broker takes no connections."""

    async def open_local(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise OSError("not now")


def test_links_that_were_tried_and_deleted_are_freed_at_once() -> None:
    async def main() -> None:
        host = Unreachable(0)
        supervisor = Supervisor(host, ClientSettings(AddressGuard()))

        async def come_and_go() -> None:
            host.set_parameter("shovel", "s", SHOVEL)
            await trio.sleep(22)  # three attempts
            host.clear_parameter("shovel", "s")
            await trio.sleep(10)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await come_and_go()
            gc.collect()
            gc.disable()
            try:
                before = objects_of_links()
                for _ in range(5):
                    await come_and_go()
                assert objects_of_links() - before == Counter()
            finally:
                gc.enable()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
