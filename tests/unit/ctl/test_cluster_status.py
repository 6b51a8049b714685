"""The output of ``warren ctl cluster status`` about the nodes, also about those that are gone."""

from __future__ import annotations

import pytest

from warren.ctl.cluster import _cell

from .conftest import Ctl
from .fake_api import FakeApi

LINKS = {
    "lag_bytes": 0,
    "lag_s": 0.0,
    "synced_lsn": 144,
    "address": "192.0.2.12",
    "version": "0.1.0",
    "catching_up": False,
}
STATUS = {
    "role": "leader",
    "node": "rabbit@one",
    "epoch": 4,
    "in_sync": ["rabbit@one", "rabbit@two"],
    "min_in_sync": 2,
    "committed_lsn": 144,
    "trouble": "",
    "format_level": 1,
    "followers": [{"node": "rabbit@two", "connected": True, "in_sync": True} | LINKS],
    "members": [
        {"node": "rabbit@one", "state": "leading", "in_sync": True},
        {"node": "rabbit@two", "state": "following", "in_sync": True},
        {"node": "rabbit@three", "state": "gone", "in_sync": False, "address": "three:25672", "lag_bytes": None},
    ],
    "election": {"etcd": {"trouble": ""}},
}


def test_a_member_that_is_gone_has_a_line_though_its_leader_never_met_it(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "cluster/status", STATUS)
    lines = ctl("cluster", "status").out.splitlines()
    assert lines[-2:] == [
        "rabbit@two\tfollowing\tyes\t0 B\t0\t144\t192.0.2.12\t0.1.0",
        "rabbit@three\tgone\tno\t\t\t\tthree:25672\t",
    ]
    assert not any("etcd" in line for line in lines)
    assert any(line.split() == ["format", "1"] for line in lines), "that of the oldest node"


def test_what_keeps_a_node_from_its_etcd_is_said(api: FakeApi, ctl: Ctl) -> None:
    trouble = {"election": {"etcd": {"trouble": "http://etcd1:2379: Connection refused"}}}
    api.answer("GET", "cluster/status", STATUS | trouble)
    assert "etcd         http://etcd1:2379: Connection refused" in ctl("cluster", "status").out
    api.answer("GET", "cluster/status", {"role": "follower", "node": "rabbit@two", "connected": False} | trouble)
    assert "http://etcd1:2379: Connection refused" in ctl("cluster", "status").out


def test_a_follower_shows_the_nodes_in_sync_its_clock_and_what_is_wrong_with_its_disk(api: FakeApi, ctl: Ctl) -> None:
    known = {"role": "follower", "node": "rabbit@two", "connected": True, "min_in_sync": 2, "clock_skew_ms": 18_000_000}
    wrong = {"in_sync_nodes": ["rabbit@one", "rabbit@two"], "trouble": "the data directory is older than it was"}
    age = {"election": {"record_age_s": 40.04}}
    api.answer("GET", "cluster/status", known | wrong | age)
    shown = [" ".join(line.split()) for line in ctl("cluster", "status").out.splitlines()]
    assert {
        "nodes in sync rabbit@one, rabbit@two, as etcd said 40.0 s ago",
        "min_in_sync 2",
        "clock 18000 s ahead of the leader's",
        "trouble the data directory is older than it was",
    } <= set(shown)


FOLLOWER = {
    "role": "follower",
    "node": "rabbit@two",
    "connected": True,
    "leader": "rabbit@one",
    "leader_address": "192.0.2.11:25672",
}


def test_a_follower_shows_the_nodes_as_its_leader_knows_them_and_where_to_ask_that(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "cluster/status", FOLLOWER)
    api.answer("GET", "cluster/status", STATUS | {"http": ["http://192.0.2.11:15672"]})
    lines = ctl("cluster", "status").out.splitlines()
    shown = [line.split(maxsplit=1) for line in lines]
    assert ["leader", "rabbit@one at http://192.0.2.11:15672"] in shown
    assert ["management", "http://192.0.2.11:15672"] in shown
    assert [line.split("\t")[0] for line in lines[-2:]] == ["rabbit@two", "rabbit@three"]
    assert [asked.path for asked in api.asked] == ["/api/cluster/status", "/api/cluster/status?of=leader"]


@pytest.mark.parametrize(("answer", "status"), [(FOLLOWER, 200), ({"error": "unavailable", "reason": "none"}, 503)])
def test_a_follower_whose_leader_does_not_answer_shows_its_own_state(
    api: FakeApi, ctl: Ctl, answer: dict[str, object], status: int
) -> None:
    """A follower of an older version answers by itself."""
    api.answer("GET", "cluster/status", FOLLOWER)
    api.answer("GET", "cluster/status", answer, status)
    ended = ctl("cluster", "status")
    assert ended.exit_code == 0
    assert "rabbit@one, cluster port 192.0.2.11:25672" in ended.out
    assert "min_in_sync" not in ended.out


def test_a_follower_without_a_leader_asks_nobody_else(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "cluster/status", FOLLOWER | {"connected": False, "trouble": "nobody leads"})
    assert "no: nobody leads" in ctl("cluster", "status").out
    assert len(api.asked) == 1


FOLLOWS = {"connected": True, "catching_up": False, "waits_s": 0.0, "trouble": ""}
GIVEN_UP = {"waits_s": 20.2, "trouble": "it has taken nothing for 30 s"}


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (FOLLOWS, "following"),
        (FOLLOWS | {"catching_up": True}, "catching up"),
        (FOLLOWS | {"catching_up": True, "trouble": "it was too slow once"}, "catching up"),
        (FOLLOWS | {"connected": False}, "gone"),
        (FOLLOWS | GIVEN_UP, "given up, again in 20 s: it has taken nothing for 30 s"),
        (FOLLOWS | GIVEN_UP | {"connected": False}, "given up, again in 20 s: it has taken nothing for 30 s"),
    ],
)
def test_the_state_of_a_follower(row: dict[str, object], state: str) -> None:
    assert _cell(row, "state") == state
