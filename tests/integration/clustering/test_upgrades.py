"""Nodes of this version and of older sources are a cluster, while they are upgraded one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import wait_until
from cluster.etcd_processes import EtcdCluster, running_etcd

from ..old_sources import LEVEL_1, SCHEMA_5, running
from ..upgrade_load import Load
from .nodes import PERSISTENT, drained
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


@pytest.mark.long
@pytest.mark.parametrize("commit", [LEVEL_1, SCHEMA_5], ids=["level_1", "schema_5"])
def test_older_nodes_follow_a_newer_leader_whatever_is_declared(tmp_path: Path, etcd: EtcdCluster, commit: str) -> None:
    """The order of the upgrade is another one when the leader is lost in between."""
    wrapper = running(commit, tmp_path / "sources")
    nodes = [ElectingNode(tmp_path, name, etcd) for name in NAMES]
    newer, *older = nodes
    try:
        for node in nodes:
            node.wrapper = wrapper
            node.take_part()
        await_all(leader_of(nodes), nodes)
        newer.process.stop()
        newer.wrapper = ()
        newer.take_part()
        await_all(leader_of(nodes), nodes)
        if leader_of(nodes) is not newer:
            status, answer = leader_of(nodes).ask("POST", "/api/cluster/transfer", {"node": newer.name})
            assert status == 200, answer
            wait_until(newer.leads, "the newer node to lead")
            await_all(newer, nodes)
        for round_number in range(2):
            with newer.connect() as connection:
                channel = connection.channel()
                channel.exchange_declare(f"x{round_number}", "topic", durable=True)
                channel.queue_declare("q", durable=True)
                channel.queue_bind("q", f"x{round_number}", "#")
                channel.confirm_delivery()
                channel.basic_publish(f"x{round_number}", "key", b"%d" % round_number, PERSISTENT)
            # One that begins again gets a copy of all metadata.
            older[0].process.stop()
            older[0].take_part()
            await_all(newer, nodes)
        newer.process.kill()
        with leader_of(older).connect() as connection:
            channel = connection.channel()
            channel.exchange_declare("x1", passive=True)
            assert drained(channel, "q") == [b"0", b"1"]
    finally:
        for node in nodes:
            node.process.kill()
