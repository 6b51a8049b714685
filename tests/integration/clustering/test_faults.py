"""Each fault once, under load, on three electing nodes: every leader has all confirmed messages.

``make cluster-faults`` runs more of them, longer and in random order. `fault_cluster` defines the faults.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cluster.etcd_processes import running_etcd

from . import fault_cluster as faults
from .fault_cluster import Fault, FaultCluster, suffer
from .network import compiled_shim

# How long each lasts: shorter and longer than a leader serves unanswered (2 s), and than nobody stands (3 s).
ONCE: tuple[tuple[Fault, float], ...] = (
    (faults.disk_is_lost, 0.2),
    (faults.leader_is_killed, 0.2),
    (faults.leader_is_stopped, 4.0),
    (faults.follower_is_stopped, 1.5),
    (faults.leader_is_cut_off, 4.0),
    (faults.etcd_is_away, 0.5),
)


@pytest.mark.long
def test_nothing_that_was_confirmed_is_lost_whatever_fails(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    with running_etcd(tmp_path / "etcd") as etcd:
        cluster = FaultCluster(tmp_path, etcd, compiled_shim(tmp_path), random.Random(seed))
        try:
            for fault, seconds in ONCE:
                print(fault.__name__)
                suffer(cluster, fault, seconds)
        except BaseException:
            print(cluster.tails())
            raise
        finally:
            cluster.close()
    assert cluster.history.counts["confirmed"] > 0
    assert cluster.history.counts["found"] > 0
