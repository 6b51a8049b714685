"""The log's lines about changes over HTTP and about failed logins. Numbers: ``mgmt_plugin/audit.py``."""

from __future__ import annotations

import re

from broker_process import WarrenProcess, wait_until

from .client import Api, Place


def told(broker: WarrenProcess, about: str, count: int) -> list[str]:
    """Return the lines of audit about requests whose path has `about`, without the time and the peer's port.

    Waits for `count` of them: a thread of its own writes the log.
    """

    def found() -> list[str]:
        return [line for line in broker.log().splitlines() if " audit  did=" in line and about in line]

    wait_until(lambda: len(found()) >= count, f"{count} lines about {about}")
    lines = found()
    return [re.sub(r":\d+", "", line[line.index("audit  did=") :]) for line in lines]


def test_a_change_has_a_line_with_who_from_where_and_what(broker: WarrenProcess, api: Api) -> None:
    """(1) (3)"""
    api.put("/users/newcomer", {"password": "top secret", "tags": "management"})
    api.put("/permissions/%2F/newcomer", {"configure": "", "write": "", "read": ".*"})
    api.delete("/users/newcomer?reason=hidden")
    assert told(broker, "newcomer", 3) == [
        'audit  did="PUT /api/users/newcomer"  user=guest  peer=127.0.0.1  status=201',
        'audit  did="PUT /api/permissions/%2F/newcomer"  user=guest  peer=127.0.0.1  status=201',
        'audit  did="DELETE /api/users/newcomer"  user=guest  peer=127.0.0.1  status=204',
    ]
    assert "top secret" not in broker.log() and "hidden" not in broker.log()


def test_a_change_that_is_refused_has_a_line_with_the_reason(broker: WarrenProcess, api: Api) -> None:
    """(1)"""
    api.put("/users/curious", {"password": "x", "tags": "management"})
    assert api.as_user("curious").ask("DELETE", "/vhosts/%2F?unheard=1").status == 401
    assert told(broker, "/api/vhosts/%2F", 1) == [
        'audit  did="DELETE /api/vhosts/%2F"  user=curious  peer=127.0.0.1  status=401  reason="Not administrator user"'
    ]
    api.delete("/users/curious")


def test_what_is_done_with_messages_has_no_line(broker: WarrenProcess, api: Api, place: Place) -> None:
    """(2)"""
    v = place.v
    api.put(f"/queues/{v}/letters", {})
    api.post(
        f"/exchanges/{v}/amq.default/publish",
        {"properties": {}, "routing_key": "letters", "payload": "x", "payload_encoding": "string"},
    )
    api.post(f"/queues/{v}/letters/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
    api.get(f"/queues/{v}/letters")
    api.delete(f"/queues/{v}/letters/contents")
    assert [line.split('"')[1] for line in told(broker, f"/{v}/", 2)] == [
        f"PUT /api/queues/{v}/letters",
        f"DELETE /api/queues/{v}/letters/contents",
    ]


def test_the_log_says_why_a_login_was_refused_and_the_answer_does_not(broker: WarrenProcess, api: Api) -> None:
    api.put("/users/blank", {"password_hash": "", "tags": "management"})
    answers = {
        api.as_user(user, "not it").ask("GET", "/whoami").refusal for user in ("guest", "nobody at all", "blank")
    }
    assert answers == {(401, "not_authorized", "Login failed")}
    wanted = {
        'guest  over=HTTP  reason="wrong password"',
        '"nobody at all"  over=HTTP  reason="unknown user"',
        'blank  over=HTTP  reason="the user has no password"',
    }

    def told() -> set[str]:
        return {line.partition("user=")[2] for line in broker.log().splitlines() if "login refused" in line}

    wait_until(lambda: len(told()) >= len(wanted), "the log, which a thread writes")
    assert told() == wanted
    api.delete("/users/blank")


def test_administrators_read_the_last_lines_over_http_without_secrets(broker: WarrenProcess, api: Api) -> None:
    before = api.get("/warren/logs")["last"]
    api.put("/users/watcher", {"password": "top secret", "tags": "monitoring"})
    api.ask("PUT", "/users/watcher", {"password": 5})
    found = api.get(f"/warren/logs?after={before}&audit=true&q=watcher")
    assert [(line["did"], line["status"], line["level"]) for line in found["lines"]] == [
        ("PUT /api/users/watcher", 201, "info"),
        ("PUT /api/users/watcher", 400, "warning"),
    ]
    assert found["last"] == found["lines"][-1]["number"] and not found["more"]
    assert "top secret" not in api.ask("GET", "/warren/logs?count=1000").body.decode()
    assert api.get(f"/warren/logs?after={found['last']}")["lines"] == []
    few = api.get(f"/warren/logs?after={before}&count=1")
    assert len(few["lines"]) == 1 and few["more"]
    warnings = api.get(f"/warren/logs?after={before}&level=warning&q=watcher")["lines"]
    assert [line["status"] for line in warnings] == [400]
    for wrong in ("level=loud", "count=0", "count=1001", "after=x"):
        assert api.ask("GET", f"/warren/logs?{wrong}").status == 400, wrong
    for user in ("watcher", "nobody"):
        assert api.as_user(user, "top secret").ask("GET", "/warren/logs").status == 401
    api.delete("/users/watcher")
