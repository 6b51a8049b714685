"""An operator's view of each node of a cluster, from the knowledge of a leader and a follower."""

from __future__ import annotations

from typing import Any

from warren.cluster.registry import NodeEntry, Seen
from warren.replication.members import of_follower, of_leader

NOW_S = 1000.0


def seen(name: str, *, is_registered: bool = True, seen_s: float = NOW_S) -> Seen:
    return Seen(NodeEntry("91ce", f"{name}:25672", "0.1.0"), seen_s, is_registered)


def link(name: str, **more: Any) -> dict[str, Any]:
    row = {"node": name, "address": "192.0.2.7", "connected": True, "in_sync": True, "catching_up": False}
    return row | {"lag_bytes": 8, "lag_s": 0.5, "silent_s": 0.1} | more


def leader(*followers: dict[str, Any]) -> dict[str, Any]:
    in_sync = ["a", *(row["node"] for row in followers if row["in_sync"])]
    return {"node": "a", "in_sync": in_sync, "followers": list(followers)}


def follower(**more: Any) -> dict[str, Any]:
    return {"node": "b", "leader": "a", "connected": True, "lag_bytes": 8, "disconnected_s": None} | more


def states(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["node"]: row["state"] for row in rows}


def test_a_leader_has_a_row_for_every_member_and_comes_first() -> None:
    status = leader(link("c"), link("b", in_sync=False, catching_up=True), link("d", connected=False, in_sync=False))
    known = {"a": seen("a"), "b": seen("b"), "c": seen("c"), "e": seen("e"), "f": seen("f", is_registered=False)}
    rows = of_leader(status, {"a", "b", "c", "d", "f"}, known, NOW_S)
    assert states(rows) == {
        "a": "leading",
        "b": "catching up",
        "c": "following",
        "d": "gone",
        "e": "registered",
        "f": "gone",
    }
    assert [row["node"] for row in rows] == ["a", "b", "c", "d", "e", "f"]
    assert [row["node"] for row in rows if row["running"]] == ["a", "b", "c"]
    assert [row["node"] for row in rows if row["in_sync"]] == ["a", "c"]
    assert [row["role"] for row in rows] == ["leader", *["follower"] * 5]
    assert (rows[2]["lag_bytes"], rows[2]["lag_s"], rows[2]["address"], rows[2]["version"]) == (
        8,
        0.5,
        "c:25672",
        "0.1.0",
    )


def test_a_node_is_gone_since_its_link_ended_or_since_it_was_seen_last() -> None:
    by_link = link("b", connected=False, silent_s=30.0)
    awaited = link("c", connected=False, silent_s=None)
    known = {"b": seen("b", is_registered=False, seen_s=980.0), "c": seen("c", is_registered=False, seen_s=400.0)}
    rows = of_leader(leader(by_link, awaited), {"a", "b", "c", "d"}, known, NOW_S)
    assert [row["gone_since_ms"] for row in rows] == [None, 970_000, 400_000, None]
    assert rows[3]["state"] == "gone", "nobody here has ever seen it"


def test_a_node_that_runs_and_does_not_connect_is_no_member_that_runs() -> None:
    (_, row) = of_leader(leader(link("b", connected=False)), {"a", "b"}, {"b": seen("b")}, NOW_S)
    assert (row["state"], row["running"], row["in_sync"], row["gone_since_ms"]) == ("registered", False, True, None)


def test_a_node_with_several_directories_has_the_row_of_the_connection() -> None:
    rows = of_leader(leader(link("b", in_sync=False), link("b", connected=False, lag_bytes=None)), ["a"], {}, NOW_S)
    assert states(rows) == {"a": "leading", "b": "following"}
    assert rows[1]["address"] == "192.0.2.7", "without etcd the address of the connection is known"


def test_a_follower_knows_its_leader_by_the_link_and_others_by_etcd() -> None:
    known = {"a": seen("a"), "c": seen("c"), "d": seen("d", is_registered=False, seen_s=7.0)}
    known["e"] = seen("e")
    rows = of_follower(follower(), ["a", "b", "e"], ["a", "b", "c", "d", "e"], known, NOW_S)
    assert states(rows) == {"b": "following", "a": "leading", "c": "registered", "d": "gone", "e": "following"}
    assert [(row["role"], row["running"], row["in_sync"]) for row in rows] == [
        ("follower", True, True),
        ("leader", True, True),
        ("follower", True, False),
        ("follower", False, False),
        ("follower", True, True),
    ]
    assert rows[3]["gone_since_ms"] == 7000


def test_a_follower_without_a_leader_says_since_when() -> None:
    rows = of_follower(follower(connected=False, disconnected_s=4.0), ["b"], ["a"], {}, NOW_S)
    assert states(rows) == {"b": "waiting", "a": "gone"}
    assert rows[1]["gone_since_ms"] == 996_000
    assert [row["role"] for row in rows] == ["follower", "follower"], "nobody leads as far as is known"
