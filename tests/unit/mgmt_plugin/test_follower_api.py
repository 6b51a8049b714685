"""A follower's answers over HTTP, and the permission to get them."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, cast

import pytest
import trio

from warren.mgmt_plugin.follower_api import FollowerApi
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.server.client_of_node import ClientOfNode
from warren.server.following import Following, NoLeader, NotPromoted, Passage
from warren.server.logins.passwords import hash_password
from warren.server.management import Health
from warren.server.settings import Settings
from warren.server.supervision import Supervision
from warren.vhosts.metadata import UserPut

STATUS: dict[str, Any] = {
    "role": "follower",
    "connected": True,
    "in_sync": True,
    "received_lsn": 120,
    "synced_lsn": 112,
    "committed_lsn": 112,
    "lag_bytes": 0,
    "epoch": 3,
    "served_bytes": 0,
    "mended": 0,
    "damaged": 0,
    "quarantine_files": 0,
    "quarantine_bytes": 0,
    "members": [
        {"node": "rabbit@two", "role": "follower", "state": "waiting", "running": True},
        {"node": "rabbit@one", "role": "follower", "state": "gone", "running": False, "gone_since_ms": 7},
    ],
}


class Node:
    """A follower whose users are those of `users`, by their tag; passwords are their names."""

    def __init__(self) -> None:
        self.users: dict[str, UserPut] = {}
        self.health = Health(True)
        self.asked: list[bool] = []
        self.refusal = ""
        self.leader: str | None = "rabbit@one"
        following = Following(
            Settings(),
            Supervision(),
            lambda: self.users,
            lambda: self.health,
            lambda: STATUS,
            self.promote,
            lambda: self.leader,
            self.to_leader,
            recover=self.recover,
        )
        self.api = FollowerApi(following)

    async def to_leader(self, client: ClientOfNode) -> Passage:
        raise NoLeader("nobody leads")

    async def promote(self, accept_loss: bool) -> dict[str, Any]:
        if self.refusal:
            raise NotPromoted(self.refusal)
        self.asked.append(accept_loss)
        return {"lsn": 112}

    async def recover(self, accept_loss: bool) -> dict[str, Any]:
        if not accept_loss:
            raise NotPromoted("what others have is lost")
        return {"epoch": 3}

    def add(self, name: str, *tags: str) -> None:
        stored = hash_password(name.encode())
        self.users = self.users | {name: UserPut(name, stored.text, stored.algorithm, tags)}

    def ask(self, method: str, target: str, user: str = "", body: bytes = b"", *, anybody: bool = False) -> Response:
        async def read(limit_bytes: int, look: object = None) -> bytes:
            return body

        headers = {"authorization": "Basic " + b64encode(f"{user}:{user}".encode()).decode()} if user else {}
        path, _, query = target.partition("?")
        request = Request(method, path, query, headers, "127.0.0.1", False, cast(Any, read))
        respond = self.api.respond_to_anybody if anybody else self.api.respond
        return trio.run(respond, request)

    def refused(self, method: str, path: str, user: str = "", body: bytes = b"", *, anybody: bool = False) -> int:
        with pytest.raises(HttpError) as refusal:
            self.ask(method, path, user, body, anybody=anybody)
        return refusal.value.status


@pytest.fixture(scope="module")
def node() -> Node:
    made = Node()
    made.add("root", "administrator")
    made.add("watcher", "monitoring")
    made.add("client")
    return made


def test_a_follower_without_users_lets_nobody_in() -> None:
    assert Node().refused("GET", "/api/cluster/status", "guest") == 401


def test_who_may_see_and_who_may_promote(node: Node) -> None:
    for path in ("/api/cluster/status", "/metrics"):
        assert node.refused("GET", path) == 401
        assert node.refused("GET", path, "client") == 401
        assert node.ask("GET", path, "watcher").status == 200
    assert json.loads(node.ask("GET", "/api/cluster/status", "root").body) == STATUS
    assert node.refused("POST", "/api/cluster/promote") == 401
    assert node.refused("POST", "/api/cluster/promote", "watcher") == 401
    assert node.asked == []
    assert json.loads(node.ask("POST", "/api/cluster/promote", "root").body) == {"lsn": 112}
    assert node.ask("POST", "/api/cluster/promote", "root", b'{"accept_loss":true}').status == 200
    assert node.asked == [False, True]


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"accept_loss":1}', b'{"accept_loss":"yes"}'])
def test_a_promotion_that_is_not_plain_is_refused(node: Node, body: bytes) -> None:
    assert node.refused("POST", "/api/cluster/promote", "root", body) == 400


def test_why_it_is_not_promoted_is_the_reason_of_the_answer(node: Node) -> None:
    node.refusal = "the leader answers"
    with pytest.raises(HttpError, match="the leader answers") as refusal:
        node.ask("POST", "/api/cluster/promote", "root")
    assert refusal.value.status == 409
    node.refusal = ""


def test_a_recovery_is_for_administrators_and_says_what_is_lost(node: Node) -> None:
    path = "/api/cluster/recover"
    assert node.refused("POST", path, "watcher", b'{"accept_loss":true}') == 401
    assert node.refused("POST", path, "root", b"[]") == 400
    with pytest.raises(HttpError, match="what others have is lost") as refusal:
        node.ask("POST", path, "root")
    assert refusal.value.status == 409
    assert json.loads(node.ask("POST", path, "root", b'{"accept_loss":true}').body) == {"epoch": 3}


def test_health_is_good_while_clients_are_passed_on_and_never_that_of_a_leader(node: Node) -> None:
    for anybody in (False, True):
        answer = node.ask("GET", "/health", anybody=anybody)
        assert answer.status == 200
        assert json.loads(answer.body)["role"] == "follower"
        assert node.ask("GET", "/health/leader", anybody=anybody).status == 503
        assert node.ask("GET", "/health/follower", anybody=anybody).status == 200
    node.health = Health(False, "not in sync yet")
    answer = node.ask("GET", "/health/follower")
    assert (answer.status, json.loads(answer.body)["reason"]) == (503, "not in sync yet")
    assert node.ask("GET", "/health").status == 200
    node.leader = None
    answer = node.ask("GET", "/health")
    assert (answer.status, json.loads(answer.body)["reason"]) == (503, "not in sync yet")
    node.health, node.leader = Health(True), "rabbit@one"


def test_everything_else_is_refused_and_nothing_more_is_on_the_open_port(node: Node) -> None:
    assert node.refused("GET", "/api/queues", "root") == 503
    assert node.refused("GET", "/api/cluster/status", anybody=True) == 404
    assert node.refused("POST", "/api/cluster/promote", anybody=True) == 404
    text = node.ask("GET", "/metrics", anybody=True).body.decode()
    assert "warren_follower_received_lsn 120\n" in text


def test_the_status_of_the_leader_is_forwarded_while_there_is_one() -> None:
    node = Node()
    node.add("watcher", "monitoring")
    assert node.refused("GET", "/api/cluster/status?of=leader", "watcher") == 503, "it was forwarded, to nobody"
    assert json.loads(node.ask("GET", "/api/cluster/status?of=me", "watcher").body) == STATUS
    node.leader = None
    assert json.loads(node.ask("GET", "/api/cluster/status?of=leader", "watcher").body) == STATUS


def test_while_nobody_leads_the_nodes_are_told_by_what_is_known_here() -> None:
    node = Node()
    node.add("watcher", "monitoring")
    node.add("bob", "management")
    assert node.refused("GET", "/api/nodes", "watcher") == 503, "with a leader that is its to answer"
    node.leader = None
    rows = json.loads(node.ask("GET", "/api/nodes", "watcher").body)
    assert [(row["name"], row["running"]) for row in rows] == [("rabbit@two", True), ("rabbit@one", False)]
    one = json.loads(node.ask("GET", "/api/nodes/rabbit%40one", "watcher").body)
    assert one == rows[1]
    assert (one["type"], one["gone_since_ms"]) == ("disc", 7)
    assert node.refused("GET", "/api/nodes/rabbit@three", "watcher") == 404
    assert [node.refused("GET", "/api/nodes", user) for user in ("bob", "")] == [401, 401]


def test_a_follower_is_ready_while_it_is_in_sync_and_live_in_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    for anybody in (False, True):
        assert node.ask("GET", "/health/ready", anybody=anybody).status == 200
        assert node.ask("GET", "/health/live", anybody=anybody).status == 200
    monkeypatch.setitem(STATUS, "in_sync", False)  # it has caught up, and is not on record yet
    answer = node.ask("GET", "/health/ready")
    assert (answer.status, json.loads(answer.body)["reason"]) == (503, "not in sync")
    node.health, node.leader = Health(False, "not following: nobody leads"), None
    answer = node.ask("GET", "/health/ready")
    assert (answer.status, json.loads(answer.body)["reason"]) == (503, "not following: nobody leads")
    assert node.ask("GET", "/health/live").status == 200
