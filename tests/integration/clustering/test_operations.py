"""Operations on a cluster of processes: hand over, restart one node after the other, forget one.

One cluster for all tests here. The decisions, and faults on the way, are tested in ``tests/cluster`` and
``unit/replication/test_elected_nodes.py``.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from broker_process import wait_until

from .test_election import ElectingNode, await_all, bodies, leader_of


def ctl(node: ElectingNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``warren ctl``, asking `node`."""
    command = [sys.executable, "-m", "warren", "ctl", "--url", f"http://127.0.0.1:{node.process.http_port}"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_a_cluster_is_handed_over_restarted_and_made_smaller(nodes: list[ElectingNode]) -> None:
    first = leader_of(nodes)
    await_all(first, nodes)
    second, third = (node for node in nodes if node is not first)
    first.publish("orders", bodies(0, 20))

    refused = ctl(third, "cluster", "transfer", first.name)
    assert (refused.returncode, "leads already" in refused.stderr) == (1, True), refused
    assert "/" not in refused.stderr, "a node, and not one of its directories"
    for command in ("transfer", "drain", "revive", "forget"):
        assert ctl(third, "cluster", command, "nope").returncode == 5
    handed = ctl(third, "cluster", "transfer", second.name)
    print(handed.stdout)
    assert handed.returncode == 0 and f"{second.name} leads" in handed.stdout, handed
    # The old leader restarts, and the command has waited for it.
    assert f"{first.name} follows" in handed.stdout, handed
    shown = ctl(first, "cluster", "status")
    print(shown.stdout)
    assert shown.returncode == 0 and f"{second.name} at http://127.0.0.1:{second.process.http_port}" in shown.stdout
    rows = [line.split("\t") for line in shown.stdout.splitlines() if "\t" in line]
    assert {row[0] for row in rows[1:]} == {first.name, third.name}, "the table of the leader"
    assert leader_of(nodes) is second
    second.publish("orders", bodies(20, 20))
    await_all(second, nodes)

    second.process.stop()  # a rolling restart: a node that is told to stop hands over first
    rest = [first, third]
    fourth = leader_of(rest)
    assert "this node hands over" in second.process.log()
    wait_until(lambda: "elected: it leads" in fourth.process.log(), "the line of the log")
    assert fourth.status()["epoch"] == 3, "no election was needed"
    second.take_part()
    await_all(fourth, nodes)
    wait_until(lambda: second.status()["in_sync"] is True, "who was restarted to follow")
    assert fourth.drain("orders") == bodies(0, 40)

    for node in (second, fourth):  # a follower and the leader
        assert ctl(node, "check_protocol_listener", "amqp,clustering").returncode == 0
        assert ctl(node, "is_in_service").returncode == 0
    drained = ctl(second, "drain")
    assert drained.returncode == 0, drained
    assert [ctl(node, "is_in_service").returncode for node in (second, fourth)] == [6, 0]
    assert fourth.ask("GET", f"/api/nodes/{second.name}")[1]["being_drained"]
    assert ctl(second, "revive").returncode == 0
    assert ctl(second, "is_in_service").returncode == 0

    gone = next(node for node in nodes if node not in (second, fourth))
    there = ctl(second, "forget_cluster_node", gone.name)
    assert (there.returncode, "stop it first" in there.stderr) == (1, True), there
    gone.process.kill()
    # Its registration in etcd has to expire.
    wait_until(lambda: ctl(second, "forget_cluster_node", gone.name).returncode == 0, "the node to be forgotten")
    assert fourth.status()["forgotten"] == [gone.name]
    gone.take_part()
    gone.await_log(f"{gone.name} was forgotten")
    fourth.publish("orders", bodies(40, 1))
