"""A leader, before the broker around it serves.

The numbers in parentheses are the invariants in the header of ``warren/replication/reception.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from free_ports import free_port
from simulation.simulated_file_system import SimulatedFileSystem

from warren.replication.cluster_state import ClusterState
from warren.replication.handshake import Node
from warren.replication.identity import Identity
from warren.replication.leader import Leader
from warren.replication.newcomers import NEWCOMERS_MAX
from warren.replication.passage import pass_on
from warren.replication.reception import HANDSHAKE_S
from warren.server.client_of_node import ClientOfNode
from warren.server.following import NoLeader
from warren.server.setting_kinds import Endpoint
from warren.server.supervision import Supervision

ME = Node("one", b"1" * 16)
TWO = Node("two", b"2" * 16)
EPOCH = 7


def test_a_client_that_is_passed_on_to_a_leader_that_recovers_is_told_so(tmp_path: Path) -> None:
    """(3): it listens before it is a broker."""
    identity = Identity(b"what the nodes of this test share")
    state = ClusterState(ME.incarnation)
    client = ClientOfNode("192.0.2.7:50412", "192.0.2.2:5671", False)

    async def main() -> None:
        endpoint = Endpoint("127.0.0.1", free_port())
        leader = Leader(endpoint, identity, ME.name, tmp_path, state, SimulatedFileSystem())
        async with trio.open_nursery() as nursery:
            await nursery.start(leader.listen, tasks := Supervision(), b"s" * 16, EPOCH)
            with pytest.raises(NoLeader, match="it does not accept clients yet"):
                await pass_on(endpoint, identity, TWO, client)
            assert not tasks.failing()
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize("count", [40, 3 * NEWCOMERS_MAX])
def test_peers_that_say_nothing_are_in_nobodys_way(tmp_path: Path, count: int) -> None:
    """(1): later peers are heard at once, not only when the time of the silent ones is over."""
    identity = Identity(b"what the nodes of this test share")
    state = ClusterState(ME.incarnation)
    client = ClientOfNode("192.0.2.7:50412", "192.0.2.2:5671", False)

    async def main() -> None:
        endpoint = Endpoint("127.0.0.1", free_port())
        leader = Leader(endpoint, identity, ME.name, tmp_path, state, SimulatedFileSystem())
        async with trio.open_nursery() as nursery:
            await nursery.start(leader.listen, Supervision(), b"s" * 16, EPOCH)
            silent = [await trio.open_tcp_stream("127.0.0.1", endpoint.port) for _ in range(count)]
            began_s = trio.current_time()
            with pytest.raises(NoLeader, match="it does not accept clients yet"):
                await pass_on(endpoint, identity, TWO, client)
            assert len(leader.reception.newcomers) >= min(count, NEWCOMERS_MAX) - 1
            assert trio.current_time() - began_s < HANDSHAKE_S
            nursery.cancel_scope.cancel()
        for stream in silent:
            await stream.aclose()

    trio.run(main)
