"""Tables that a broker keeps, in a cluster: the leader runs their followers, and the next leader continues them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_process import wait_until

from .nodes import Node

pytest.importorskip("deltalake")

DEADLINE_S = 120.0


def table_of(node: Node) -> dict[str, Any]:
    status, rows = node.ask("GET", "/api/lake")
    assert status == 200, rows
    return dict(rows[0]) if rows else {}


def bodies_in(table: Path) -> list[str]:
    from deltalake import DeltaTable

    return sorted(row["body"].decode() for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist())


@pytest.mark.timeout(300)
def test_the_next_leader_goes_on_with_the_tables_of_the_one_before(tmp_path: Path) -> None:
    table = tmp_path / "lake" / "jobs"
    settings = {"lake_places": tmp_path / "lake"}
    leader, follower = Node(tmp_path, "one", settings), Node(tmp_path, "two", settings)
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    leader.publish("jobs", [b"%02d" % number for number in range(10)])
    value = {"queue": "jobs", "format": "delta", "to": str(table), "interval": "50ms"}
    assert leader.ask("PUT", "/api/parameters/lake/%2F/jobs", {"value": value})[0] == 201
    wait_until(lambda: table_of(leader).get("rows") == 10, "rows", DEADLINE_S)
    assert table_of(leader)["node"] == leader.name
    pid = table_of(leader)["os_pid"]
    assert table_of(follower)["os_pid"] == pid, "a follower has none, and asks its leader"

    leader.publish("jobs", [b"%02d" % number for number in range(10, 20)])
    leader.process.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process to end without its broker", DEADLINE_S)
    follower.await_lost()
    follower.promote()
    follower.publish("jobs", [b"%02d" % number for number in range(20, 30)])
    wanted = [f"{number:02}" for number in range(30)]
    wait_until(lambda: bodies_in(table) == wanted, "each message, once", DEADLINE_S)
    assert table_of(follower)["node"] == follower.name
    follower.process.stop()
    assert bodies_in(table) == wanted
