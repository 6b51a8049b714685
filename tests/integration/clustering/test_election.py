"""Three nodes and an etcd: the nodes elect a leader, and confirmed messages outlive any leader.

``test_faults.py`` tests faults under load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pika
import pika.exceptions
import pytest
from broker_process import WarrenProcess, wait_until
from cluster.etcd_processes import EtcdCluster

from .nodes import PERSISTENT, AnsweringProcess, Node

NAMES = ("one", "two", "three")


class ElectingNode(Node):
    """A node that takes part in an election."""

    def __init__(self, directory: Path, name: str, etcd: EtcdCluster) -> None:
        self.etcd = etcd
        super().__init__(directory, name)

    def _process(self, kind: type[WarrenProcess], follow: Node | None = None) -> WarrenProcess:
        process = super()._process(kind)
        process.flags |= {"etcd": ",".join(self.etcd.endpoints), "replicas": "3", "node": self.name}
        return process

    def take_part(self) -> None:
        """Start it, and wait until it answers over HTTP."""
        self.process = self._process(AnsweringProcess)
        self.process.start()

    def leads(self) -> bool:
        """Tell whether it leads, and serves clients."""
        try:
            # A follower that has no metadata yet knows no user.
            status, document = self.ask("GET", "/api/cluster/status")
            if status != 200 or document["role"] != "leader":
                return False
            assert isinstance(self.process, AnsweringProcess)
            if not self.process.is_leading():
                return False
            self.connect().close()
        except (OSError, pika.exceptions.AMQPError):
            return False  # between two roles nobody answers
        return True


def leader_of(nodes: Sequence[ElectingNode]) -> ElectingNode:
    """Wait until one of the nodes leads, and return it."""
    found: list[ElectingNode] = []

    def one_leads() -> bool:
        found[:] = [node for node in nodes if node.process.is_running() and node.leads()]
        return bool(found)

    wait_until(one_leads, "one of the nodes to lead")
    (leader,) = found
    return leader


def bodies(first: int, count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(first, first + count)]


def await_all(leader: ElectingNode, nodes: Sequence[ElectingNode]) -> None:
    leader.await_in_sync(*(node.name.removeprefix("rabbit@") for node in nodes if node is not leader))


def nodes_of(node: ElectingNode) -> dict[str, str]:
    """Return the state of every node, as any node tells it."""
    status, rows = node.ask("GET", "/api/nodes")
    return {row["name"]: row["state"] for row in rows} if status == 200 else {}


@pytest.mark.long
def test_a_killed_leader_is_replaced_and_follows_when_it_is_back(nodes: list[ElectingNode]) -> None:
    first = leader_of(nodes)
    await_all(first, nodes)
    first.publish("orders", bodies(0, 50))
    first.process.kill()

    others = [node for node in nodes if node is not first]
    second = leader_of(others)
    second.publish("orders", bodies(50, 50))
    assert second.status()["epoch"] > 1
    third = next(node for node in others if node is not second)
    wait_until(lambda: nodes_of(third) == {first.name: "gone", second.name: "leading", third.name: "following"}, "rows")
    status, row = third.ask("GET", f"/api/nodes/{first.name}")
    assert (status, row["running"], row["address"]) == (200, False, f"127.0.0.1:{first.cluster_port}")
    assert row["gone_since_ms"] > 0
    leads = {node.name: node.ask_text("/metrics").split("\nwarren_cluster_leader ")[1][0] for node in (second, third)}
    assert leads == {second.name: "1", third.name: "0"}
    # Two of three are left, and two have to be in sync: neither can be spared.
    for node in (second, third):
        status, answer = node.ask("GET", "/api/health/checks/node-is-quorum-critical")
        assert (status, node.name in answer["reason"]) == (503, True)
    cluster = third.ask("GET", "/api/overview")[1]["cluster"]
    assert (cluster["name"], cluster["leader"]) == ("warren", second.name)
    assert third.ask("GET", "/api/cluster-name")[1] == {"name": "rabbit@warren"}, "whoever leads"
    assert cluster["nodes"][0] == second.name and set(cluster["running"]) == {second.name, third.name}

    first.take_part()
    await_all(second, nodes)
    assert third.ask("GET", "/api/health/checks/node-is-quorum-critical")[0] == 200
    second.process.kill()
    third = leader_of([node for node in nodes if node is not second])
    assert third.drain("orders") == bodies(0, 100)


def test_a_leader_that_is_stopped_is_replaced(nodes: list[ElectingNode]) -> None:
    first = leader_of(nodes)
    await_all(first, nodes)
    first.publish("orders", bodies(0, 20))
    first.process.stop()
    second = leader_of([node for node in nodes if node is not first])
    assert second.drain("orders") == bodies(0, 20)


def test_clients_of_any_node_are_served_whoever_leads(nodes: list[ElectingNode]) -> None:
    """Publishers at every node learn that the leader was killed, reconnect to their node, and continue."""
    first = leader_of(nodes)
    await_all(first, nodes)
    confirmed: list[bytes] = []
    told: list[int] = []
    is_over = threading.Event()

    def publish(node: ElectingNode) -> None:
        number = 0
        while not is_over.is_set():
            try:
                with node.connect(socket_timeout=30, stack_timeout=30, blocked_connection_timeout=30) as connection:
                    channel = connection.channel()
                    channel.queue_declare("orders", durable=True)
                    channel.confirm_delivery()
                    while not is_over.is_set():
                        number += 1
                        body = f"{node.name} {number}".encode()
                        channel.basic_publish("", "orders", body, PERSISTENT)
                        confirmed.append(body)
            except pika.exceptions.ConnectionClosedByBroker as closed:
                told.append(closed.reply_code)
            except pika.exceptions.AMQPError:
                time.sleep(0.05)  # between two roles nobody listens

    others = [node for node in nodes if node is not first]
    publishers = [threading.Thread(target=publish, args=(node,)) for node in others]
    for thread in publishers:
        thread.start()
    wait_until(lambda: len(confirmed) > 50, "messages to be confirmed")
    first.process.kill()

    def resume() -> bool:
        return all(sum(body.startswith(node.name.encode()) for body in confirmed[before:]) > 20 for node in others)

    second = leader_of(others)
    before = len(confirmed)
    wait_until(resume, "the clients of both nodes to go on")
    is_over.set()
    for thread in publishers:
        thread.join(60)
    assert set(told) <= {320}
    assert told, "who was connected is told"
    follower = next(node for node in others if node is not second)
    kept = follower.drain("orders")
    assert set(confirmed) <= set(kept)
