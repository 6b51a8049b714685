"""One list of requests to RabbitMQ and to us: the same status, the same error, the same fields, but for what is listed.

RabbitMQ is started for it where Debian's rabbitmq-server is installed. WARREN_TEST_RABBITMQ_API (``127.0.0.1:15672``)
names one that runs in its place, with a user guest: a vhost and users of this test's own are made in it, and deleted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_process import wait_until
from free_ports import free_port

from .client import EVERYTHING, Answer, Api
from .test_fields import LACKING

sys.path.append(str(Path(__file__).parents[3]))
from benchmarks.rabbitmq import RabbitMQ, maybe_program

START_S = 180.0
VHOST = "warren-same"
V = f"/{VHOST}"
USERS = {
    "same-none": "",
    "same-management": "management",
    "same-policymaker": "policymaker",
    "same-monitoring": "monitoring",
}
MESSAGE = {"properties": {}, "routing_key": "q", "payload": "p", "payload_encoding": "string"}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
POLICY = {"pattern": "^q", "definition": {"max-length": 100}, "priority": 1, "apply-to": "queues"}

Request = tuple[str | None, str, str, object]
ADMIN = "guest"
REQUESTS: list[Request] = [
    (None, "GET", "/overview", None),
    ("nobody", "GET", "/overview", None),
    *(
        (user, "GET", path, None)
        for user in USERS
        for path in ("/overview", "/whoami", "/nodes", "/users", f"/queues{V}")
    ),
    *(
        (user, "GET", f"{path}{V}", None)
        for user in USERS
        for path in ("/policies", "/parameters/shovel", "/definitions")
    ),
    *((user, "PUT", f"/policies{V}/mine", POLICY) for user in USERS),
    *((user, "PUT", f"/queues{V}/theirs", {}) for user in USERS),
    *((user, "DELETE", f"/queues{V}/theirs", None) for user in ("same-none", "same-management")),
    *((user, "POST", f"/exchanges{V}/amq.default/publish", MESSAGE) for user in USERS),
    *((user, "PUT", "/vhosts/warren-same-2", {}) for user in USERS),
    *((user, "GET", "/vhost-limits", None) for user in USERS),
    ("same-management", "GET", "/queues/%2F", None),
    ("same-management", "GET", "/queues/%2F/q", None),
    ("same-management", "PUT", "/policies/%2F/p", POLICY),
    ("same-policymaker", "PUT", "/policies/%2F/p", POLICY),
    ("same-policymaker", "PUT", f"/operator-policies{V}/p", POLICY),
    # queues
    (ADMIN, "PUT", f"/queues{V}/q", {"durable": True, "arguments": {"x-max-length": 10}}),
    (ADMIN, "PUT", f"/queues{V}/q", {"durable": True, "arguments": {"x-max-length": 10}}),
    (ADMIN, "PUT", f"/queues{V}/q", {"durable": True, "arguments": {"x-max-length": 11}}),
    (ADMIN, "PUT", f"/queues{V}/bad", {"arguments": {"x-message-ttl": "a"}}),
    (ADMIN, "PUT", f"/queues{V}/bad", {"durable": "perhaps"}),
    (ADMIN, "PUT", f"/queues{V}/amq.mine", {}),
    (ADMIN, "PUT", "/queues/nosuch/q", {}),
    (ADMIN, "GET", f"/queues{V}/q", None),
    (ADMIN, "GET", f"/queues{V}/nosuch", None),
    (ADMIN, "DELETE", f"/queues{V}/nosuch", None),
    (ADMIN, "DELETE", f"/queues{V}/nosuch/contents", None),
    (ADMIN, "GET", "/queues?page=0", None),
    (ADMIN, "GET", "/queues?page=1&page_size=501", None),
    (ADMIN, "GET", "/queues?page=99", None),
    (ADMIN, "GET", "/queues?page=x", None),
    (ADMIN, "GET", f"/queues{V}?page=1&page_size=1&columns=name,messages", None),
    # exchanges and bindings
    (ADMIN, "PUT", f"/exchanges{V}/x", {"type": "topic"}),
    (ADMIN, "PUT", f"/exchanges{V}/x", {"type": "topic"}),
    (ADMIN, "PUT", f"/exchanges{V}/x", {"type": "fanout"}),
    (ADMIN, "PUT", f"/exchanges{V}/y", {"type": "nosuch"}),
    (ADMIN, "PUT", f"/exchanges{V}/amq.mine", {"type": "direct"}),
    (ADMIN, "DELETE", f"/exchanges{V}/amq.direct", None),
    (ADMIN, "GET", f"/exchanges{V}/x", None),
    (ADMIN, "GET", f"/exchanges{V}/nosuch", None),
    (ADMIN, "POST", f"/bindings{V}/e/x/q/q", {"routing_key": "a.*", "arguments": {"k": 1}}),
    (ADMIN, "POST", f"/bindings{V}/e/x/q/q", {"routing_key": "a b/c"}),
    (ADMIN, "POST", f"/bindings{V}/e/x/q/q", {}),
    (ADMIN, "POST", f"/bindings{V}/e/x/q/nosuch", {}),
    (ADMIN, "POST", f"/bindings{V}/e/nosuch/q/q", {}),
    (ADMIN, "GET", f"/bindings{V}/e/x/q/q", None),
    (ADMIN, "GET", f"/bindings{V}/e/x/q/q/~", None),
    (ADMIN, "GET", f"/bindings{V}/e/x/q/q/nosuch", None),
    (ADMIN, "DELETE", f"/bindings{V}/e/x/q/q/~", None),
    (ADMIN, "DELETE", f"/bindings{V}/e/x/q/q/nosuch", None),
    (ADMIN, "DELETE", f"/exchanges{V}/x?if-unused=true", None),
    (ADMIN, "GET", f"/exchanges{V}/x/bindings/source", None),
    (ADMIN, "GET", f"/queues{V}/q/bindings", None),
    # messages
    (ADMIN, "POST", f"/exchanges{V}/amq.default/publish", MESSAGE),
    (ADMIN, "POST", f"/exchanges{V}/x/publish", MESSAGE),
    (ADMIN, "POST", f"/exchanges{V}/nosuch/publish", MESSAGE),
    (ADMIN, "POST", f"/exchanges{V}/x/publish", {"routing_key": "zz"}),
    (ADMIN, "POST", f"/exchanges{V}/x/publish", MESSAGE | {"payload_encoding": "hex"}),
    (ADMIN, "POST", f"/exchanges{V}/x/publish", MESSAGE | {"properties": {"user_id": "bob"}}),
    (ADMIN, "POST", f"/queues{V}/q/get", GET),
    (ADMIN, "POST", f"/queues{V}/q/get", {"count": 1}),
    (ADMIN, "POST", f"/queues{V}/nosuch/get", GET),
    (ADMIN, "DELETE", f"/queues{V}/q/contents", None),
    # users, permissions
    (ADMIN, "PUT", "/users/same-user", {}),
    (ADMIN, "PUT", "/users/same-user", {"password": "a", "password_hash": "", "tags": ""}),
    (ADMIN, "PUT", "/users/same-user", {"password_hash": "!!", "tags": ""}),
    (ADMIN, "PUT", "/users/same-user", {"password": "a", "tags": "management"}),
    (ADMIN, "GET", "/users/same-user", None),
    (ADMIN, "GET", "/users/nosuch", None),
    (ADMIN, "DELETE", "/users/nosuch", None),
    (ADMIN, "PUT", f"/permissions{V}/same-user", EVERYTHING),
    (ADMIN, "PUT", f"/permissions{V}/same-user", EVERYTHING),
    (ADMIN, "PUT", f"/permissions{V}/same-user", {"configure": "", "write": ""}),
    (ADMIN, "PUT", f"/permissions{V}/same-user", EVERYTHING | {"read": "("}),
    (ADMIN, "PUT", f"/permissions{V}/nosuch", EVERYTHING),
    (ADMIN, "GET", f"/permissions{V}/same-user", None),
    (ADMIN, "GET", f"/permissions{V}/nosuch", None),
    (ADMIN, "PUT", f"/topic-permissions{V}/same-user", {"exchange": "x", "write": "a", "read": "b"}),
    (ADMIN, "GET", f"/topic-permissions{V}/same-user", None),
    (ADMIN, "DELETE", f"/topic-permissions{V}/same-user", None),
    (ADMIN, "DELETE", f"/permissions{V}/same-user", None),
    (ADMIN, "DELETE", "/users/same-user", None),
    # policies, limits, parameters
    (ADMIN, "PUT", f"/policies{V}/p", POLICY),
    (ADMIN, "PUT", f"/policies{V}/p", POLICY),
    (ADMIN, "PUT", f"/policies{V}/p", {"definition": {"max-length": 1}}),
    (ADMIN, "PUT", f"/policies{V}/p", b"{bad"),
    (ADMIN, "PUT", f"/policies{V}/p", POLICY | {"pattern": "("}),
    (ADMIN, "PUT", f"/policies{V}/p", POLICY | {"definition": {"nosuch": 1}}),
    (ADMIN, "PUT", f"/policies{V}/p", POLICY | {"apply-to": "some"}),
    (ADMIN, "GET", f"/policies{V}/p", None),
    (ADMIN, "GET", f"/policies{V}/nosuch", None),
    (ADMIN, "DELETE", f"/policies{V}/p", None),
    (ADMIN, "DELETE", f"/policies{V}/p", None),
    (ADMIN, "PUT", f"/vhost-limits{V}/max-queues", {"value": "x"}),
    (ADMIN, "PUT", f"/vhost-limits{V}/nosuch", {"value": 1}),
    (ADMIN, "PUT", f"/vhost-limits{V}/max-queues", {"value": 1000}),
    (ADMIN, "GET", f"/vhost-limits{V}", None),
    (ADMIN, "DELETE", f"/vhost-limits{V}/max-queues", None),
    (ADMIN, "PUT", "/user-limits/same-none/max-channels", {"value": 10}),
    (ADMIN, "GET", "/user-limits/same-none", None),
    (ADMIN, "DELETE", "/user-limits/same-none/max-channels", None),
    (ADMIN, "PUT", f"/parameters/nosuch{V}/x", {"value": {}}),
    (ADMIN, "GET", f"/parameters/nosuch{V}/x", None),
    (ADMIN, "GET", "/global-parameters/nosuch", None),
    # the rest
    (ADMIN, "GET", f"/vhosts{V}", None),
    (ADMIN, "GET", "/vhosts/nosuch", None),
    (ADMIN, "DELETE", "/vhosts/nosuch", None),
    (ADMIN, "GET", f"/aliveness-test{V}", None),
    (ADMIN, "GET", "/whoami", None),
    (ADMIN, "GET", "/connections/nosuch", None),
    (ADMIN, "DELETE", "/connections/nosuch", None),
    (ADMIN, "GET", "/channels/nosuch", None),
    (ADMIN, "GET", "/nodes/nosuch", None),
    (ADMIN, "GET", "/nosuch", None),
    (ADMIN, "POST", "/overview", None),
    (ADMIN, "GET", "/health/checks/alarms", None),
    (ADMIN, "GET", "/health/checks/port-listener/1", None),
    (ADMIN, "GET", "/health/checks/node-is-quorum-critical", None),
]
# Where we answer otherwise, and why.
KNOWN = {
    "None GET /overview": "who is not logged in is told so, in a body as well",
    "guest PUT /queues/nosuch/q": "a vhost that is not there is answered alike, whatever it is asked for",
    "guest GET /nodes/nosuch": "RabbitMQ fails",
    "guest POST /overview": "a refusal has a body",
}


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    given = os.environ.get("WARREN_TEST_RABBITMQ_API")
    if given:
        host, _, port = given.rpartition(":")
        yield Api(int(port), host=host)
        return
    program = maybe_program()
    if program is None:
        pytest.skip("rabbitmq-server is not installed")
    directory = tmp_path_factory.mktemp("rabbitmq")
    http_port = free_port()
    (directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
    (directory / "rabbitmq.conf").write_text(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {http_port}\n")
    server = RabbitMQ([str(program)], directory, amqp_port=free_port(), dist_port=free_port(), epmd_port=free_port())
    server.start()
    try:
        api = Api(http_port)
        wait_until(lambda: server.exit_status() is not None or answers_at(api), "RabbitMQ to answer", START_S)
        if server.exit_status() is not None:
            pytest.skip("rabbitmq-server does not start here")
        yield api
    finally:
        server.stop()


def answers_at(api: Api) -> bool:
    try:
        return api.ask("GET", "/overview").status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def answers(rabbitmq: Api, api: Api) -> Iterator[dict[str, list[Answer]]]:
    """Return the answers of both."""
    found: dict[str, list[Answer]] = {}
    for name, broker in (("rabbitmq", rabbitmq), ("warren", api)):
        broker.ask("DELETE", f"/vhosts{V}")
        broker.put(f"/vhosts{V}")
        broker.put(f"/permissions{V}/guest", EVERYTHING)
        for user, tags in USERS.items():
            broker.put(f"/users/{user}", {"password": "x", "tags": tags})
            broker.put(f"/permissions{V}/{user}", {"configure": "", "write": "", "read": ""})
        apis = {user: broker.as_user(user) for user in (*USERS, None, "nobody")} | {ADMIN: broker}
        found[name] = [apis[user].ask(method, path, body) for user, method, path, body in REQUESTS]
    yield found
    for broker in (rabbitmq, api):
        for path in (f"/vhosts{V}", *(f"/users/{user}" for user in USERS)):
            broker.ask("DELETE", path)


def shape(answer: Answer) -> Any:
    """Return what is compared first: the status and the error."""
    body = json.loads(answer.body) if answer.body else None
    return answer.status, body.get("error", "") if isinstance(body, dict) else ""


def fields(answer: Answer) -> set[str]:
    """Return the fields of what is there, without those that come with others once they are sampled."""
    body = json.loads(answer.body) if answer.body else None
    rows = body if isinstance(body, list) else [body]
    return {key for row in rows if isinstance(row, dict) for key in row if not key.endswith("_details")}


@pytest.mark.long
def test_both_answer_the_same(answers: dict[str, list[Answer]]) -> None:
    different: list[str] = []
    met: set[str] = set()
    for request, theirs, ours in zip(REQUESTS, answers["rabbitmq"], answers["warren"], strict=True):
        user, method, path, body = request
        lacking = fields(theirs) - fields(ours) - set(LACKING) if theirs.status == 200 and ours.body != b"[]" else set()
        if shape(theirs) == shape(ours) and not lacking:
            continue
        key = f"{user} {method} {path}"
        if key in KNOWN:
            met.add(key)
        else:
            told = f"{theirs.status} {theirs.body[:200]!r} | {ours.status} {ours.body[:200]!r}"
            different.append(f"{key} {body}: {told} {sorted(lacking)}")
    assert not different, "\n".join(different)
    assert met == set(KNOWN)
