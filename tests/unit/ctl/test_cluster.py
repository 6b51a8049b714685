"""The requests, waits and output of ``warren ctl cluster``, as leaders come and go."""

from __future__ import annotations

import re

import pytest

from warren.ctl import cluster
from warren.ctl.exit_codes import ExitCode

from .conftest import Ctl
from .fake_api import FakeApi

STATUS = "cluster/status"
ONE = {"role": "leader", "node": "rabbit@one", "epoch": 4}
TRANSFER = "cluster/transfer"


def hands_over(api: FakeApi, node: str = "rabbit@two") -> None:
    api.answer("GET", STATUS, ONE)
    api.answer("POST", TRANSFER, {"from": "rabbit@one", "node": node})


def returned(api: FakeApi) -> None:
    """Make the old leader, rabbit@one, follow after it has restarted."""
    api.answer("GET", "nodes", {"error": "unavailable", "reason": "no node that leads"}, 503)
    for state in ("registered", "gone", "following"):
        api.answer("GET", "nodes", [{"name": "rabbit@one", "state": state}])


def test_a_transfer_is_over_when_the_node_that_was_asked_follows_the_new_leader(api: FakeApi, ctl: Ctl) -> None:
    hands_over(api)
    api.answer("GET", STATUS, ONE)  # on its way out
    api.answer("GET", STATUS, silence=True)
    api.answer("GET", STATUS, {"error": "not_authorised", "reason": "Not_Authorized"}, 401)
    api.answer("GET", STATUS, {"role": "follower", "epoch": 5, "connected": False, "leader": "rabbit@one"})
    api.answer("GET", STATUS, {"role": "follower", "epoch": 5, "connected": True, "leader": "rabbit@two"})
    returned(api)
    ended = ctl("cluster", "transfer", "rabbit@two")
    assert ended.exit_code == 0
    assert [re.sub(r"\d+\.\d s", "… s", line) for line in ended.out.splitlines()] == [
        "rabbit@one hands over to rabbit@two",
        "rabbit@two leads, after … s",
        "rabbit@one follows, after … s",
    ]
    assert api.changes() == [("POST", "/api/cluster/transfer", {"node": "rabbit@two"})]


def test_without_a_name_the_leader_chooses(api: FakeApi, ctl: Ctl) -> None:
    hands_over(api, "rabbit@three")
    api.answer("GET", STATUS, {"role": "leader", "node": "rabbit@three", "epoch": 5})
    returned(api)
    assert "rabbit@three leads" in ctl("cluster", "transfer").out
    assert api.changes() == [("POST", "/api/cluster/transfer", {})]


def test_a_transfer_says_so_when_the_old_leader_does_not_return(
    api: FakeApi, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RETURN_S", 0.0)
    hands_over(api)
    api.answer("GET", STATUS, {"role": "leader", "node": "rabbit@two", "epoch": 5})
    api.answer("GET", "nodes", [{"name": "rabbit@one", "state": "gone"}])
    ended = ctl("cluster", "transfer")
    assert ended.exit_code == 0
    assert "rabbit@one does not follow yet: it restarts, and refuses connections meanwhile" in ended.out


def test_a_transfer_after_which_another_node_leads_has_failed(api: FakeApi, ctl: Ctl) -> None:
    hands_over(api)
    api.answer("GET", STATUS, {"role": "leader", "node": "rabbit@three", "epoch": 6})
    ended = ctl("cluster", "transfer", "rabbit@two")
    assert (ended.exit_code, ended.err[:30]) == (ExitCode.FAILED, "warren ctl: rabbit@three leads")


def test_a_transfer_is_waited_for_no_longer_than_one_likes(api: FakeApi, ctl: Ctl) -> None:
    hands_over(api)
    ended = ctl("cluster", "transfer", "--within", "0")
    assert ended.exit_code == ExitCode.FAILED and "nobody is known to lead" in ended.err


def test_why_nobody_takes_over_is_said(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", STATUS, ONE)
    api.answer("POST", TRANSFER, {"error": "conflict", "reason": "rabbit@two is not in sync"}, 409)
    ended = ctl("cluster", "transfer", "rabbit@two")
    assert ended.exit_code == ExitCode.FAILED and "rabbit@two is not in sync" in ended.err


def test_what_is_asked_for_about_a_node_is_said(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", STATUS, ONE)
    for path in ("forget", "drain", "revive"):
        api.answer("POST", f"cluster/{path}", {"node": "rabbit@two"})
    for line, said in (
        (("cluster", "forget", "rabbit@two"), "rabbit@two is forgotten"),
        (("forget_cluster_node", "rabbit@two"), "rabbit@two is forgotten"),
        (("cluster", "drain", "rabbit@two"), "rabbit@two is drained"),
        (("drain", "rabbit@two"), "rabbit@two is drained"),
        (("revive",), "rabbit@one is revived"),
        (("cluster", "revive", "rabbit@two"), "rabbit@two is revived"),
    ):
        ended = ctl(*line)
        assert ended.exit_code == 0 and ended.out.startswith(said), ended
    asked = [(path.rpartition("/")[2], body["node"]) for _, path, body in api.changes()]
    assert asked == [
        *[("forget", "rabbit@two")] * 2,
        ("drain", "rabbit@two"),
        ("drain", "rabbit@two"),
        ("revive", "rabbit@one"),
        ("revive", "rabbit@two"),
    ]


@pytest.mark.parametrize("asked", ["rabbit@one", "rabbit@two"])
def test_a_leader_that_is_drained_is_waited_for_like_one_that_hands_over(api: FakeApi, ctl: Ctl, asked: str) -> None:
    two = {"role": "follower", "node": "rabbit@two", "epoch": 4, "connected": True, "leader": "rabbit@one"}
    api.answer("GET", STATUS, ONE if asked == "rabbit@one" else two)
    api.answer("POST", "cluster/drain", {"node": "rabbit@one"})
    api.answer("GET", STATUS, silence=True)
    api.answer("GET", STATUS, {"role": "leader", "node": "rabbit@three", "epoch": 5})
    returned(api)
    ended = ctl("drain", "rabbit@one")
    assert ended.exit_code == 0
    assert [re.sub(r"\d+\.\d s", "… s", line) for line in ended.out.splitlines()] == [
        "rabbit@one is drained: it does not lead until it is revived",
        "rabbit@three leads, after … s",
        "rabbit@one follows, after … s",
    ]


def test_a_recovery_is_over_when_the_node_leads(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", STATUS, {"role": "follower", "epoch": 4, "connected": False, "leader": "rabbit@one"})
    api.answer("POST", "cluster/recover", {"node": "rabbit@two", "epoch": 4, "synced_lsn": 7592})
    api.answer("GET", STATUS, {"role": "follower", "epoch": 4, "connected": False, "leader": "rabbit@one"})
    api.answer("GET", STATUS, silence=True)
    api.answer("GET", STATUS, {"role": "leader", "node": "rabbit@two", "epoch": 2005})
    ended = ctl("cluster", "recover", "--accept-loss")
    assert ended.exit_code == 0 and ended.out.splitlines() == [
        "rabbit@two is recovered, from its log up to 7592 of epoch 4",
        "rabbit@two leads. Other nodes follow it, and drop what it does not have",
    ]
    assert api.changes() == [("POST", "/api/cluster/recover", {"accept_loss": True})]


def test_a_leader_is_not_recovered(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", STATUS, ONE)
    ended = ctl("cluster", "recover", "--accept-loss")
    assert (ended.exit_code, ended.err) == (1, "warren ctl: rabbit@one leads: nothing has to be recovered\n")
    assert api.changes() == []


def test_nodes_are_waited_for_until_enough_run(api: FakeApi, ctl: Ctl) -> None:
    there = {"name": "rabbit@one", "running": True}
    api.answer("GET", "nodes", silence=True)
    api.answer("GET", "nodes", {"error": "unavailable", "reason": "no node that leads"}, 503)
    api.answer("GET", "nodes", [there, {"name": "rabbit@two", "running": False}])
    api.answer("GET", "nodes", [there, there | {"name": "rabbit@two"}])
    assert ctl("await_online_nodes", "2").out == "Running nodes: 2\n"
    assert ctl("await_online_nodes", "3", "--within", "0").exit_code == ExitCode.CHECK_FAILED


def test_what_does_not_belong_together_is_refused_before_anything_is_asked(api: FakeApi, ctl: Ctl) -> None:
    for line in (("status", "rabbit@two"), ("transfer", "--accept-loss"), ("promote", "rabbit@two"), ("forget",)):
        assert ctl("cluster", *line).exit_code == ExitCode.USAGE
    assert api.asked == []
