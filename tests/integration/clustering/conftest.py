"""Three nodes with an etcd of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.etcd_processes import EtcdCluster, running_etcd

from .test_election import NAMES, ElectingNode


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.fixture
def nodes(tmp_path: Path, etcd: EtcdCluster) -> Iterator[list[ElectingNode]]:
    nodes = [ElectingNode(tmp_path, name, etcd) for name in NAMES]
    try:
        for node in nodes:
            node.take_part()
        yield nodes
    finally:
        for node in nodes:
            if node.process.is_running():
                node.process.kill()
