"""The cluster over HTTP: whether a node can be spared, and whether enough nodes run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
import trio

from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin.http.server import HttpError, Request
from warren.mgmt_plugin.metrics.election import election_metrics
from warren.mgmt_plugin.operators import Operator
from warren.mgmt_plugin.plugin import table_of
from warren.mgmt_plugin.resources.cluster import ClusterHandlers
from warren.mgmt_plugin.resources.health_checks import CheckFailed
from warren.mgmt_plugin.routes import Acting, Call
from warren.server.management import Health
from warren.server.replication import ClusterRefusal, Replication

WELL = Health(True)


async def no_body(limit_bytes: int, look: Any = None) -> bytes:
    return b""


def ask(check: str, status: Callable[[], dict[str, Any]] | None, node: str = "", health: Health = WELL) -> object:
    """Return what a check answers on the node `a`; `node` is the one that was asked, if it is another."""
    handlers = ClusterHandlers("a", lambda: health, status)
    route, params = table_of([handlers]).find("GET", f"/api/health/checks/{check}")
    request = Request("GET", "", "", {}, "127.0.0.1", False, no_body, node=node)
    operator = Operator("someone", (), Permissions.of_records())
    return trio.run(route.handler, Call(request, params, operator, {}, cast(Acting, None)))


def cluster(least: int, *rows: tuple[str, bool, bool], replicas: int = 3) -> Callable[[], dict[str, Any]]:
    members = [{"node": name, "running": running, "in_sync": in_sync} for name, running, in_sync in rows]
    return lambda: {"members": members, "min_in_sync": least, "replicas": replicas}


THREE = (("a", True, True), ("b", True, True), ("c", True, True))


@pytest.mark.parametrize(
    ("status", "node", "reason"),
    [
        (cluster(2, *THREE), "", ""),
        (cluster(2, *THREE), "c", ""),
        (cluster(2, *THREE[:2], ("c", False, False)), "", "without a 1 nodes would be in sync, but 2 are required"),
        (cluster(2, *THREE[:2], ("c", False, True)), "b", "without b 1 nodes would be in sync, but 2 are required"),
        (cluster(2, *THREE[:2], ("c", True, False)), "c", ""),
        (cluster(1, *THREE[:2]), "", ""),
        (cluster(1, THREE[0], ("b", True, False)), "", "without a 0 nodes would be in sync, but 1 are required"),
        (cluster(3, *THREE), "c", "without c 2 nodes would be in sync, but 3 are required"),
    ],
)
def test_a_node_is_critical_when_too_few_others_are_in_sync_and_run(
    status: Callable[[], dict[str, Any]], node: str, reason: str
) -> None:
    if not reason:
        assert ask("node-is-quorum-critical", status, node) == {"status": "ok"}
        return
    with pytest.raises(CheckFailed, match=reason) as failed:
        ask("node-is-quorum-critical", status, node)
    assert failed.value.status == 503


@pytest.mark.parametrize(("node", "name"), [("", "a"), ("b", "b")], ids=["the leader", "a follower"])
def test_a_drained_node_is_not_in_service_whether_it_leads_or_not(node: str, name: str) -> None:
    def status(*drained: str) -> Callable[[], dict[str, Any]]:
        return lambda: cluster(2, *THREE)() | {"drained": list(drained)}

    assert ask("is-in-service", status("c"), node) == {"status": "ok"}
    with pytest.raises(CheckFailed, match=f"{name} is drained") as failed:
        ask("is-in-service", status("c", name), node)
    assert failed.value.status == 503


def test_a_node_is_in_service_only_while_the_broker_can_do_its_work() -> None:
    for status in (None, cluster(2, *THREE)):
        assert ask("is-in-service", status) == {"status": "ok"}
        with pytest.raises(CheckFailed, match="the disk is full"):
            ask("is-in-service", status, health=Health(False, "the disk is full"))


class Refusing:
    """A cluster that refuses whatever is asked for."""

    async def refuse(self, node: str) -> None:
        raise ClusterRefusal(f"not {node}")

    forget = drain = revive = refuse

    def transfer(self, node: str | None) -> str:
        raise ClusterRefusal(f"not {node}")


@pytest.mark.parametrize("command", ["transfer", "forget", "drain", "revive"])
@pytest.mark.parametrize(
    ("node", "status"), [("b", 409), ("gone", 409), ("nope", 404)], ids=["a node", "one that was forgotten", "no node"]
)
def test_a_command_about_a_node_that_there_is_not_is_not_found(command: str, node: str, status: int) -> None:
    handlers = ClusterHandlers(
        "a", lambda: WELL, lambda: cluster(2, *THREE)() | {"forgotten": ["gone"]}, cast(Replication, Refusing())
    )

    async def body(limit_bytes: int, look: Any = None) -> bytes:
        return msgspec.json.encode({"node": node})

    route, params = table_of([handlers]).find("POST", f"/api/cluster/{command}")
    request = Request("POST", "", "", {}, "127.0.0.1", False, body)
    operator = Operator("someone", ("administrator",), Permissions.of_records())
    with pytest.raises(HttpError, match=f"not {node}") as refused:
        trio.run(route.handler, Call(request, params, operator, {}, cast(Acting, None)))
    assert refused.value.status == status


class Leading:
    """A leader that may serve, or may not at the moment."""

    def __init__(self, may: bool) -> None:
        self.may = may

    def may_serve(self) -> bool:
        return self.may


def test_a_leader_is_ready_while_it_may_serve_and_live_in_any_state() -> None:
    def answer(path: str, replication: Leading | None) -> object:
        full = Health(False, "the disk is full")  # consumers must come here all the same: they make room
        handlers = ClusterHandlers("a", lambda: full, None, cast(Replication | None, replication))
        route, params = table_of([handlers]).find("GET", path)
        request = Request("GET", "", "", {}, "127.0.0.1", False, no_body)
        operator = Operator("", (), Permissions.of_records())
        return trio.run(route.handler, Call(request, params, operator, {}, cast(Acting, None)))

    for replication in (None, Leading(True)):
        assert answer("/health/ready", replication) == {"status": "ok"}
    with pytest.raises(CheckFailed, match="may not serve clients") as failed:
        answer("/health/ready", Leading(False))
    assert failed.value.status == 503
    assert answer("/health/live", Leading(False)) == {"status": "ok"}


def test_a_node_by_itself_is_no_cluster() -> None:
    assert ask("node-is-quorum-critical", None) == {"status": "ok", "reason": "single node cluster"}
    assert ask("reached-target-cluster-size", None) == {"status": "ok"}


def test_a_cluster_is_complete_when_as_many_run_as_there_are_to_be() -> None:
    assert ask("reached-target-cluster-size", cluster(2, *THREE)) == {"status": "ok"}
    with pytest.raises(CheckFailed, match="2 of 3 nodes run") as failed:
        ask("reached-target-cluster-size", cluster(2, *THREE[:2], ("c", False, True)))
    assert (failed.value.document["running"], failed.value.document["target"]) == (2, 3)


def test_the_election_has_metrics_where_there_is_one() -> None:
    assert list(election_metrics({"members": []})) == []
    etcd = {"requests": 7, "failures": 2, "seconds": 0.25, "trouble": ""}
    election = {"leads": True, "epoch": 4, "takeovers": 3, "leaderless_s": 1.5, "late_renewals": 1, "etcd": etcd}
    status = cluster(2, *THREE[:2], ("c", False, True))() | {"election": election}
    found = {metric.name: (metric.kind, value) for metric, value in election_metrics(status)}
    assert found == {
        "cluster_leader": ("gauge", 1),
        "cluster_epoch": ("gauge", 4),
        "cluster_takeovers_total": ("counter", 3),
        "cluster_leaderless_seconds_total": ("counter", 1.5),
        "cluster_members": ("gauge", 3),
        "cluster_members_running": ("gauge", 2),
        "cluster_late_renewals_total": ("counter", 1),
        "etcd_requests_total": ("counter", 7),
        "etcd_failures_total": ("counter", 2),
        "etcd_request_seconds_total": ("counter", 0.25),
    }
