"""Three nodes are upgraded one after the other under load, from older sources: the followers first, the leader last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.etcd_processes import EtcdCluster, running_etcd

from ..old_sources import LEVEL_1, SCHEMA_5, running
from ..upgrade_load import Load
from .test_election import NAMES, ElectingNode, await_all, leader_of

MESSAGES = 100


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("commit", [LEVEL_1, SCHEMA_5], ids=["level_1", "schema_5"])
def test_three_nodes_are_upgraded_under_load(tmp_path: Path, etcd: EtcdCluster, commit: str) -> None:
    wrapper = running(commit, tmp_path / "sources")
    nodes = [ElectingNode(tmp_path, name, etcd) for name in NAMES]
    load: Load | None = None
    try:
        for node in nodes:
            node.wrapper = wrapper
            node.take_part()
        leader = leader_of(nodes)
        await_all(leader, nodes)
        load = Load([node.process.amqp_port for node in nodes])
        load.start()
        load.await_more(MESSAGES)
        for node in sorted(nodes, key=lambda node: node is leader):
            node.process.stop()
            node.wrapper = ()
            node.take_part()
            await_all(leader_of(nodes), nodes)
            load.await_more(MESSAGES)
        assert leader_of(nodes) is not leader
        print(f"{load.check()} confirmed messages over a rolling upgrade from {commit}, nothing lost, all in order")
    finally:
        if load is not None:
            load.end()
        for node in nodes:
            node.process.kill()
