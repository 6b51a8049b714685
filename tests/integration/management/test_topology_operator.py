"""The messaging topology operator of Kubernetes (``rabbitmq.com/v1beta1``): each request as it makes it.

The requests are those of its client, rabbit-hole 3.5, with the bodies that its controllers fill in. An object is put
with each reconciliation, so the same request comes again and again; any status below 300 is success to it. What it
deletes may be gone: 404 is success, too.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import quote

import pytest
from broker_process import WarrenProcess

from .client import Api, Place

ALGORITHM = "rabbit_password_hashing_sha512"


def password_hash(password: str) -> str:
    salt = b"salt"
    return base64.b64encode(salt + hashlib.sha512(salt + password.encode()).digest()).decode()


def reconciled(api: Api, method: str, path: str, body: object) -> None:
    """Send a request as often as the operator may."""
    for _ in range(3):
        answer = api.ask(method, path, body)
        assert answer.status < 300, (method, path, answer)


def gone(api: Api, path: str) -> None:
    assert api.ask("DELETE", path, b"").status < 300, path
    assert api.ask("DELETE", path, b"").status == 404, path


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_queue(api: Api, place: Place, kind: str) -> None:
    path = f"/queues/{place.v}/orders"
    arguments = {"x-queue-type": kind, "x-max-length-bytes": 1_000_000}
    reconciled(api, "PUT", path, {"type": kind, "durable": True, "arguments": arguments})
    found = api.get(path)
    assert (found["type"], found["durable"], found["messages"], found["consumers"]) == (kind, True, 0, 0)
    # What cannot be changed is an error of the object, with a reason.
    changed = {"type": kind, "durable": True, "arguments": arguments | {"x-max-length-bytes": 5}}
    assert api.ask("PUT", path, changed).refusal[:2] == (400, "bad_request")
    gone(api, f"{path}?")


def test_queue_that_is_deleted_only_when_it_is_empty_and_unused(api: Api, place: Place) -> None:
    path = f"/queues/{place.v}/orders"
    reconciled(api, "PUT", path, {"type": "classic", "durable": True, "arguments": {"x-queue-type": "classic"}})
    message = {"routing_key": "orders", "payload": "x", "payload_encoding": "string", "properties": {}}
    api.post(f"/exchanges/{place.v}/amq.default/publish", message)
    assert api.ask("DELETE", f"{path}?if-empty=true&if-unused=true", b"").status == 400
    api.delete(f"{path}/contents")
    gone(api, f"{path}?if-empty=true&if-unused=true")


def test_exchange(api: Api, place: Place) -> None:
    path = f"/exchanges/{place.v}/events"
    reconciled(api, "PUT", path, {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "rest"}})
    assert api.get(path)["type"] == "topic"
    gone(api, path)


@pytest.mark.parametrize(("kind", "letter"), [("queue", "q"), ("exchange", "e")])
@pytest.mark.parametrize("key", ["", "orders.#", "a~b"])
def test_binding(api: Api, place: Place, kind: str, letter: str, key: str) -> None:
    for name in ("events", "orders"):
        api.put(f"/exchanges/{place.v}/{name}", {"type": "topic", "durable": True})
    api.put(f"/queues/{place.v}/orders", {"durable": True})
    path = f"/bindings/{place.v}/e/events/{letter}/orders"
    body = {
        "source": "events",
        "vhost": place.vhost,
        "destination": "orders",
        "destination_type": kind,
        "routing_key": key,
    }
    reconciled(api, "POST", path, body | {"arguments": {}})
    assert [(each["routing_key"], each["arguments"]) for each in api.get(path)] == [(key, {})]
    gone(api, f"{path}/{quote(key.replace('~', '%7E') or '~', safe='~')}")
    assert api.get(path) == []


def test_binding_with_arguments_is_found_in_the_list_and_deleted_by_its_key(api: Api, place: Place) -> None:
    api.put(f"/exchanges/{place.v}/events", {"type": "headers", "durable": True})
    api.put(f"/queues/{place.v}/orders", {"durable": True})
    path = f"/bindings/{place.v}/e/events/q/orders"
    body = {"source": "events", "vhost": place.vhost, "destination": "orders", "destination_type": "queue"}
    reconciled(api, "POST", path, body | {"routing_key": "", "arguments": {"x-match": "any", "n": 1}})
    (found,) = api.get(path)
    assert (found["arguments"], found["routing_key"]) == ({"x-match": "any", "n": 1}, "")
    gone(api, f"{path}/{quote(found['properties_key'], safe='~')}")


def test_vhost_with_limits(api: Api) -> None:
    path, limits = "/vhosts/shop%2Feu", "/vhost-limits/shop%2Feu"
    body = {"description": "", "tags": "prod,eu", "default_queue_type": "quorum", "tracing": False}
    reconciled(api, "PUT", path, body)
    found = api.get(path)
    assert (sorted(found["tags"]), found["default_queue_type"]) == (["eu", "prod"], "quorum")
    assert api.get(limits) == []
    for name in ("max-connections", "max-queues"):
        reconciled(api, "PUT", f"{limits}/{name}", {"value": 10})
    assert [each["value"] for each in api.get(limits)] == [{"max-connections": 10, "max-queues": 10}]
    assert api.ask("DELETE", f"{limits}/max-queues", b"").status < 300
    gone(api, path)


def test_user_with_limits_permissions_and_topic_permissions(api: Api, place: Place) -> None:
    user = f"/users/{quote(place.vhost, safe='')}"
    body = {"name": place.vhost, "tags": "policymaker,monitoring", "password_hash": password_hash("hunter2")}
    reconciled(api, "PUT", user, body | {"hashing_algorithm": ALGORITHM})
    limits = user.replace("/users/", "/user-limits/")
    assert api.get(limits) == []
    for name in ("max-connections", "max-channels"):
        reconciled(api, "PUT", f"{limits}/{name}", {"value": 5})
    assert [each["value"] for each in api.get(limits)] == [{"max-connections": 5, "max-channels": 5}]
    assert api.ask("DELETE", f"{limits}/max-channels", b"").status < 300
    permissions = f"/permissions/{place.v}/{user.rpartition('/')[2]}"
    reconciled(api, "PUT", permissions, {"configure": "^$", "write": ".*", "read": ".*"})
    topics = permissions.replace("/permissions/", "/topic-permissions/")
    reconciled(api, "PUT", topics, {"exchange": "amq.topic", "write": "^a", "read": ".*"})
    assert api.as_user(place.vhost, "hunter2").get("/whoami")["name"] == place.vhost
    gone(api, f"{topics}/amq.topic")
    gone(api, permissions)
    gone(api, user)


@pytest.mark.parametrize("path", ["policies", "operator-policies"])
def test_policies(api: Api, place: Place, path: str) -> None:
    definition = {"max-length": 100} if path == "operator-policies" else {"dead-letter-exchange": "amq.topic"}
    body = {
        "vhost": place.vhost,
        "pattern": "^lqs.",
        "apply-to": "queues",
        "name": "limits",
        "priority": 1,
        "definition": definition,
    }
    reconciled(api, "PUT", f"/{path}/{place.v}/limits", body)
    assert api.get(f"/{path}/{place.v}/limits")["definition"] == definition
    gone(api, f"/{path}/{place.v}/limits")


def test_shovel_and_federation(api: Api, place: Place, broker: WarrenProcess) -> None:
    uri = [f"amqp://127.0.0.1:{broker.amqp_port}"]
    shovel: dict[str, Any] = {
        "dest-uri": uri,
        "src-uri": uri,
        "ack-mode": "on-confirm",
        "delete-after": "never",
        "dest-add-forward-headers": True,
        "dest-queue": "to",
        "reconnect-delay": 5,
        "src-delete-after": "never",
        "src-queue": "from",
        "src-protocol": "amqp091",
        "dest-protocol": "amqp091",
    }
    reconciled(api, "PUT", f"/parameters/shovel/{place.v}/move", {"value": shovel})
    gone(api, f"/parameters/shovel/{place.v}/move")
    upstream = {
        "uri": uri,
        "expires": 1000,
        "message-ttl": 1000,
        "max-hops": 1,
        "prefetch-count": 10,
        "reconnect-delay": 1,
        "ack-mode": "on-confirm",
        "trust-user-id": False,
        "exchange": "events",
        "queue-type": "classic",
        "resource-cleanup-mode": "default",
    }
    names = {"name": "origin", "vhost": place.vhost, "component": "federation-upstream"}
    reconciled(api, "PUT", f"/parameters/federation-upstream/{place.v}/origin", names | {"value": upstream})
    gone(api, f"/parameters/federation-upstream/{place.v}/origin")


def test_schema_replication_is_a_global_parameter_that_nothing_reads(api: Api) -> None:
    path = "/global-parameters/schema_definition_sync_upstream"
    value = {"username": "a", "password": "b", "endpoints": ["a:5672"]}
    reconciled(api, "PUT", path, {"name": "schema_definition_sync_upstream", "value": value})
    gone(api, path)


def test_super_stream_is_an_exchange_streams_and_bindings(api: Api, place: Place) -> None:
    reconciled(
        api,
        "PUT",
        f"/exchanges/{place.v}/sales",
        {"type": "direct", "durable": True, "arguments": {"x-super-stream": True}},
    )
    for number in range(2):
        stream = {"type": "stream", "durable": True, "arguments": {"x-queue-type": "stream"}}
        reconciled(api, "PUT", f"/queues/{place.v}/sales-{number}", stream)
        body = {"source": "sales", "vhost": place.vhost, "destination": f"sales-{number}", "destination_type": "queue"}
        order = {"routing_key": str(number), "arguments": {"x-stream-partition-order": number}}
        reconciled(api, "POST", f"/bindings/{place.v}/e/sales/q/sales-{number}", body | order)
