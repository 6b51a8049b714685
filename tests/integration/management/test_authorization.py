"""Every route for everybody; and over HTTP one may do exactly what one may do over AMQP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pika
import pika.exceptions
import pytest
from broker_process import WarrenProcess

from warren.mgmt_plugin.plugin import all_routes
from warren.mgmt_plugin.routes import Access, Route

from .client import EVERYTHING, Api, Place, connect, q

# --- routes -----------------------------------------------------------------------------------------------------------

TAGS = ("none", "management", "policymaker", "monitoring", "administrator")
# The users that each access lets through: these tags, and in which vhosts (mine: with permissions; other: without).
MAY: dict[Access, tuple[set[str], dict[str, set[str]]]] = {
    Access.CLIENT: (set(TAGS), {"mine": set(TAGS), "other": set()}),
    Access.USER: (set(TAGS[1:]), {"mine": set(TAGS[1:]), "other": {"monitoring", "administrator"}}),
    Access.VHOST: (set(TAGS[1:]), {"mine": set(TAGS[1:]), "other": set()}),
    Access.VHOST_VISIBLE: (set(TAGS[1:]), {"mine": set(TAGS[1:]), "other": {"monitoring", "administrator"}}),
    Access.POLICYMAKER: (
        {"policymaker", "administrator"},
        {"mine": {"policymaker", "administrator"}, "other": {"administrator"}},
    ),
    Access.MONITORING: (
        {"monitoring", "administrator"},
        {"mine": {"monitoring", "administrator"}, "other": {"monitoring", "administrator"}},
    ),
    Access.ADMINISTRATOR: ({"administrator"}, {"mine": {"administrator"}, "other": {"administrator"}}),
}
# Decisions of the handlers themselves, about objects of other users.
OWN_RULES = {
    ("GET", "/api/users/{user}/permissions"): {"administrator"},
    ("DELETE", "/api/connections/username/{user}"): {"administrator"},
}
ROUTES = [route for route in all_routes() if route.access is not Access.PUBLIC]
# This name does not exist anywhere, so a request that is let through does no harm.
NOTHING = "nosuch"
MALFORMED = b"{no json"
HARMFUL = {("DELETE", "/api/vhosts/{vhost}")}


def path_of(route: Route, vhost: str) -> str:
    template = "/" + route.template.replace("{vhost}", q(vhost))  # two slashes: not only what is below /api
    return re.sub(r"\{[a-z_]+\}", NOTHING, template)


@pytest.fixture(scope="module")
def vhosts(api: Api) -> Iterator[dict[str, str]]:
    names = {"mine": "mi/ne", "other": "oth/er"}
    for name in names.values():
        api.put(f"/vhosts/{q(name)}")
    for tag in TAGS:
        api.put(f"/users/{tag}", {"password": "x", "tags": "" if tag == "none" else tag})
        api.put(f"/permissions/{q(names['mine'])}/{tag}", EVERYTHING)
    yield names
    for name in names.values():
        api.delete(f"/vhosts/{q(name)}")


@pytest.mark.parametrize("tag", TAGS)
def test_every_route_lets_through_whom_its_access_says_and_nobody_else(
    api: Api, vhosts: dict[str, str], tag: str
) -> None:
    user = api.as_user(tag)
    wrong: list[object] = []
    asked = 0
    for route in ROUTES:
        everywhere, by_vhost = MAY[route.access]
        for kind, vhost in vhosts.items() if "{vhost}" in route.template else [("", "")]:
            if (route.method, route.template) in HARMFUL and tag == "administrator":
                continue
            allowed = by_vhost[kind] if kind else everywhere
            allowed = OWN_RULES.get((route.method, route.template), allowed)
            body = MALFORMED if route.method in ("PUT", "POST") else None
            answer = user.ask(route.method, path_of(route, vhost), body)
            asked += 1
            let_through = answer.status != 401
            if let_through != (tag in allowed) or (answer.status >= 500 and answer.status != 503):
                wrong.append((route.method, route.template, kind, answer.status, answer.body[:200]))
            if not let_through and answer.json["error"] != "not_authorised":
                wrong.append((route.method, route.template, kind, answer.body[:200]))
    assert not wrong
    assert asked >= len(ROUTES) - len(HARMFUL)


def test_without_a_login_there_is_nothing(api: Api, vhosts: dict[str, str]) -> None:
    for user in (api.as_user(None), api.as_user("administrator", "wrong")):
        routes = ROUTES if user.headers == {} else ROUTES[:3]  # a wrong password costs time, on purpose
        for route in routes:
            answer = user.ask(route.method, path_of(route, vhosts["mine"]), b"" if route.method != "GET" else None)
            assert answer.status == 401 and answer.json["error"] == "not_authorized", route.template
            assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("operator_policy/{}/o", {"pattern": ".*", "definition": {"max-length": 1}}),
        ("vhost-limits/{}/limits", {"max-queues": 0}),
    ],
)
def test_operator_policies_and_limits_are_for_administrators_as_parameters_too(
    api: Api, vhosts: dict[str, str], path: str, value: dict[str, object]
) -> None:
    path = f"/parameters/{path.format(q(vhosts['mine']))}"
    body = {"value": value}
    for tag in TAGS:
        may = tag == "administrator"
        assert api.as_user(tag).ask("PUT", path, body).status == (201 if may else 401), tag
    for tag in TAGS:
        assert api.as_user(tag).ask("DELETE", path).status == (204 if tag == "administrator" else 401), tag


def test_a_page_of_another_site_does_not_have_aliveness_tested(api: Api, vhosts: dict[str, str]) -> None:
    mine = q(vhosts["mine"])
    api.ask("DELETE", f"/queues/{mine}/aliveness-test")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert api.ask("GET", f"/aliveness-test/{mine}", None, headers).status == 403
    assert "aliveness-test" not in [each["name"] for each in api.get(f"/queues/{mine}")]
    assert api.get(f"/aliveness-test/{mine}") == {"status": "ok"}
    api.ask("DELETE", f"/queues/{mine}/aliveness-test")


def test_a_vhost_that_is_not_there_is_not_told_from_one_that_is_closed(api: Api, vhosts: dict[str, str]) -> None:
    for tag in ("management", "policymaker"):
        user = api.as_user(tag)
        for path in ("/queues/{}", "/queues/{}/q", "/exchanges/{}", "/vhosts/{}", "/policies/{}/p", "/topology/{}"):
            there = user.ask("GET", path.format(q(vhosts["other"])))
            gone = user.ask("GET", path.format("nosuch"))
            assert there.status == gone.status and there.body == gone.body, path


def test_every_route_of_a_vhost_that_is_not_there_is_not_found(api: Api) -> None:
    wrong: list[object] = []
    asked = 0
    for route in ROUTES:
        if "{vhost}" not in route.template or route.makes_vhost:
            continue
        answer = api.ask(route.method, path_of(route, "nosuch"), b"{}" if route.method in ("PUT", "POST") else None)
        asked += 1
        if answer.status != 404 or answer.json["error"] not in ("Object Not Found", "not_found"):
            wrong.append((route.method, route.template, answer.status, answer.body[:200]))
    assert not wrong and asked > 80


def test_lists_show_what_is_in_ones_own_vhosts(api: Api, vhosts: dict[str, str]) -> None:
    for name in vhosts.values():
        api.put(f"/queues/{q(name)}/seen")
        api.put(f"/policies/{q(name)}/seen", {"pattern": "^seen$", "definition": {"max-length": 5}})
    for tag in TAGS[1:]:
        user = api.as_user(tag)
        everything = tag in ("monitoring", "administrator")
        for path in ("/queues", "/exchanges", "/bindings", "/policies", "/vhosts?columns=name"):
            seen = {row.get("vhost", row.get("name")) for row in user.get(path)}
            assert (vhosts["other"] in seen) is everything, (tag, path)
            assert vhosts["mine"] in seen
        assert user.get("/overview")["object_totals"]["queues"] == len(user.get("/queues"))


# --- the same as over AMQP --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An operation, and what is needed for it: permissions, each for a name."""

    name: str
    needs: tuple[tuple[str, str], ...]


CASES = (
    Case("declare queue", (("configure", "new"),)),
    Case("declare queue with dead letters", (("configure", "new"), ("read", "new"), ("write", "x"))),
    Case("delete queue", (("configure", "q"),)),
    Case("purge queue", (("read", "q"),)),
    Case("get", (("read", "q"),)),
    Case("declare exchange", (("configure", "new"),)),
    Case("declare exchange with alternate", (("configure", "new"), ("read", "new"), ("write", "x"))),
    Case("delete exchange", (("configure", "x"),)),
    Case("bind queue", (("write", "q"), ("read", "x"))),
    Case("unbind queue", (("write", "q"), ("read", "x"))),
    Case("bind exchange", (("write", "y"), ("read", "x"))),
    Case("unbind exchange", (("write", "y"), ("read", "x"))),
    Case("publish", (("write", "x"),)),
    Case("publish to the default exchange", (("write", "amq.default"),)),
)


def over_amqp(channel: Any, case: str) -> None:
    operations = {
        "declare queue": lambda: channel.queue_declare("new"),
        "declare queue with dead letters": lambda: channel.queue_declare(
            "new", arguments={"x-dead-letter-exchange": "x"}
        ),
        "delete queue": lambda: channel.queue_delete("q"),
        "purge queue": lambda: channel.queue_purge("q"),
        "get": lambda: channel.basic_get("q"),
        "declare exchange": lambda: channel.exchange_declare("new", "fanout"),
        "declare exchange with alternate": lambda: channel.exchange_declare(
            "new", "fanout", arguments={"alternate-exchange": "x"}
        ),
        "delete exchange": lambda: channel.exchange_delete("x"),
        "bind queue": lambda: channel.queue_bind("q", "x", "k"),
        "unbind queue": lambda: channel.queue_unbind("q", "x", "bound"),
        "bind exchange": lambda: channel.exchange_bind("y", "x", "k"),
        "unbind exchange": lambda: channel.exchange_unbind("y", "x", "bound"),
        "publish": lambda: channel.basic_publish("x", "k", b"m"),
        "publish to the default exchange": lambda: channel.basic_publish("", "q", b"m"),
    }
    operations[case]()


def over_http(user: Api, v: str, case: str) -> int:
    message = {"properties": {}, "payload": "m", "payload_encoding": "string"}
    requests: dict[str, tuple[str, str, object]] = {
        "declare queue": ("PUT", f"/queues/{v}/new", {"durable": False}),
        "declare queue with dead letters": (
            "PUT",
            f"/queues/{v}/new",
            {"durable": False, "arguments": {"x-dead-letter-exchange": "x"}},
        ),
        "delete queue": ("DELETE", f"/queues/{v}/q", None),
        "purge queue": ("DELETE", f"/queues/{v}/q/contents", None),
        "get": ("POST", f"/queues/{v}/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
        "declare exchange": ("PUT", f"/exchanges/{v}/new", {"type": "fanout", "durable": False}),
        "declare exchange with alternate": (
            "PUT",
            f"/exchanges/{v}/new",
            {"type": "fanout", "durable": False, "arguments": {"alternate-exchange": "x"}},
        ),
        "delete exchange": ("DELETE", f"/exchanges/{v}/x", None),
        "bind queue": ("POST", f"/bindings/{v}/e/x/q/q", {"routing_key": "k"}),
        "unbind queue": ("DELETE", f"/bindings/{v}/e/x/q/q/bound", None),
        "bind exchange": ("POST", f"/bindings/{v}/e/x/e/y", {"routing_key": "k"}),
        "unbind exchange": ("DELETE", f"/bindings/{v}/e/x/e/y/bound", None),
        "publish": ("POST", f"/exchanges/{v}/x/publish", message | {"routing_key": "k"}),
        "publish to the default exchange": (
            "POST",
            f"/exchanges/{v}/amq.default/publish",
            message | {"routing_key": "q"},
        ),
    }
    return user.ask(*requests[case]).status


def prepare(place: Place) -> None:
    """Put into the vhost what the cases act on, and nothing else."""
    api, v = place.api, place.v
    for kind in ("queues", "exchanges"):
        api.ask("DELETE", f"/{kind}/{v}/new")
    api.put(f"/queues/{v}/q")
    for exchange in ("x", "y"):
        api.put(f"/exchanges/{v}/{exchange}", {"type": "direct"})
    api.post(f"/bindings/{v}/e/x/q/q", {"routing_key": "bound"})
    api.post(f"/bindings/{v}/e/x/e/y", {"routing_key": "bound"})


def granted(needs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the permissions that grant exactly this."""
    found = {}
    for action in ("configure", "write", "read"):
        names = [re.escape(name) for of, name in needs if of == action]
        found[action] = f"^({'|'.join(names)})$" if names else ""
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_permissions_hold_over_http_exactly_as_over_amqp(broker: WarrenProcess, place: Place, case: Case) -> None:
    user = place.user("worker", "management", None)
    attempts = [case.needs, *(tuple(need for need in case.needs if need != without) for without in case.needs)]
    for needs in attempts:
        place.api.put(f"/permissions/{place.v}/worker", granted(needs))
        expected = needs == case.needs
        prepare(place)
        connection = connect(broker.amqp_port, place.vhost, "worker", "x")
        channel = connection.channel()
        channel.confirm_delivery()
        by_amqp = True
        try:
            over_amqp(channel, case.name)
        except pika.exceptions.ChannelClosedByBroker as closed:
            by_amqp = closed.reply_code != 403
        connection.close()
        prepare(place)
        status = over_http(user, place.v, case.name)
        assert status in (200, 201, 204, 400, 401), (needs, status)
        assert (by_amqp, status < 300) == (expected, expected), (needs, by_amqp, status)


def test_topic_permissions_hold_too(broker: WarrenProcess, place: Place) -> None:
    api, v = place.api, place.v
    user = place.user("worker", "management")
    api.put(f"/exchanges/{v}/t", {"type": "topic"})
    api.put(f"/queues/{v}/q")
    api.put(f"/topic-permissions/{v}/worker", {"exchange": "t", "write": "^w\\.", "read": "^r\\."})
    message = {"properties": {}, "payload": "m", "payload_encoding": "string"}
    for key, may_write, may_read in (("w.a", True, False), ("r.a", False, True), ("a", False, False)):
        published = user.ask("POST", f"/exchanges/{v}/t/publish", message | {"routing_key": key})
        bound = user.ask("POST", f"/bindings/{v}/e/t/q/q", {"routing_key": key})
        assert (published.status == 200, bound.status == 201) == (may_write, may_read), key
        connection = connect(broker.amqp_port, place.vhost, "worker", "x")
        for allowed, operation, arguments in (
            (may_write, "basic_publish", ("t", key, b"m")),
            (may_read, "queue_bind", ("q", "t", key)),
        ):
            channel: Any = connection.channel()
            channel.confirm_delivery()
            if allowed:
                getattr(channel, operation)(*arguments)
            else:
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                    getattr(channel, operation)(*arguments)
        connection.close()
    # CC and BCC count as keys
    cc = user.ask(
        "POST", f"/exchanges/{v}/t/publish", message | {"routing_key": "w.a", "properties": {"headers": {"CC": ["a"]}}}
    )
    assert cc.status == 400 and "ACCESS_REFUSED" in cc.json["reason"]


def test_a_user_id_must_be_ones_own(place: Place) -> None:
    user = place.user("worker", "management")
    impersonator = place.user("actor", "management,impersonator")
    message = {"routing_key": "k", "payload": "m", "payload_encoding": "string"}
    path = f"/exchanges/{place.v}/amq.direct/publish"
    assert user.ask("POST", path, message | {"properties": {"user_id": "worker"}}).status == 200
    assert user.ask("POST", path, message | {"properties": {"user_id": "guest"}}).refusal[0] == 400
    assert impersonator.ask("POST", path, message | {"properties": {"user_id": "guest"}}).status == 200


def test_permissions_are_taken_away_from_one_request_to_the_next(place: Place) -> None:
    user = place.user("worker", "management")
    path = f"/queues/{place.v}/q"
    assert user.put(path) == 201
    place.api.put(f"/permissions/{place.v}/worker", {"configure": "", "write": "", "read": ""})
    assert user.ask("DELETE", path).refusal[:2] == (401, "not_authorised")
    assert user.ask("GET", path).status == 200  # one may look
    place.api.delete(f"/permissions/{place.v}/worker")
    assert user.ask("GET", path).refusal[:2] == (401, "not_authorised")
    place.api.put("/users/worker", {"password": "x", "tags": ""})
    assert user.ask("GET", "/whoami").refusal == (401, "not_authorised", "Not management user")
    place.api.delete("/users/worker")
    assert user.ask("GET", "/whoami").refusal[:2] == (401, "not_authorized")
