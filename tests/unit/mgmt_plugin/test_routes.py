"""Paths to routes, queries and bodies to values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast, get_args

import msgspec
import pytest
import trio
from answers import whole

from warren.mgmt_plugin.api import as_response
from warren.mgmt_plugin.http.json_bodies import ORDINARY, BodyLimits
from warren.mgmt_plugin.http.server import LOOK_BYTES, HttpError, Request
from warren.mgmt_plugin.plugin import all_routes
from warren.mgmt_plugin.resources.sessions import Login
from warren.mgmt_plugin.routes import (
    Access,
    Call,
    Route,
    RouteTable,
    convert,
    decode_json,
    measure,
    parse_query,
)


async def nothing(call: Call) -> None:
    """Handle nothing."""


def table(*lines: str) -> RouteTable:
    rows = [line.split() for line in lines]
    return RouteTable(Route(method, template, Access.USER, nothing, "") for method, template in rows)


TABLE = table(
    "GET /api/queues",
    "GET /api/queues/detailed",
    "GET /api/queues/{vhost}",
    "PUT /api/queues/{vhost}/{queue}",
    "GET /api/queues/{vhost}/{queue}",
    "GET /api/queues/{vhost}/{queue}/bindings",
    "DELETE /api/only/{name}",
)


def found(path: str, method: str = "GET") -> tuple[str, dict[str, str]]:
    route, params = TABLE.find(method, path)
    return route.template, params


def refused(method: str, path: str) -> HttpError:
    with pytest.raises(HttpError) as caught:
        TABLE.find(method, path)
    return caught.value


@pytest.mark.parametrize(
    ("path", "template", "params"),
    [
        ("/api/queues", "/api/queues", {}),
        ("/api/queues/", "/api/queues", {}),
        ("/api/queues/detailed", "/api/queues/detailed", {}),
        ("/api/queues/%2F", "/api/queues/{vhost}", {"vhost": "/"}),
        ("/api/queues/%2f/", "/api/queues/{vhost}", {"vhost": "/"}),
        ("/api/queues/%2F/a%2Fb", "/api/queues/{vhost}/{queue}", {"vhost": "/", "queue": "a/b"}),
        ("/api/queues/detailed/q", "/api/queues/{vhost}/{queue}", {"vhost": "detailed", "queue": "q"}),
        ("/api/queues/v/bindings", "/api/queues/{vhost}/{queue}", {"vhost": "v", "queue": "bindings"}),
        ("/api/queues/v/q/bindings", "/api/queues/{vhost}/{queue}/bindings", {"vhost": "v", "queue": "q"}),
        ("/api/queues/%252F", "/api/queues/{vhost}", {"vhost": "%2F"}),
        ("/api/queues/a+b", "/api/queues/{vhost}", {"vhost": "a+b"}),
        ("/api/queues/a%20b%3F%23%00", "/api/queues/{vhost}", {"vhost": "a b?#\0"}),
        ("/api/queues/%C3%A9%E2%82%AC", "/api/queues/{vhost}", {"vhost": "é€"}),
        ("/api/queues/..", "/api/queues/{vhost}", {"vhost": ".."}),
        ("/api/queues/%zz", "/api/queues/{vhost}", {"vhost": "%zz"}),
    ],
)
def test_paths_lead_to_routes_with_their_parts_decoded(path: str, template: str, params: dict[str, str]) -> None:
    assert found(path) == (template, params)


@pytest.mark.parametrize(
    "path", ["/", "", "/api", "/api/nosuch", "/api/queues/v/q/nosuch", "/api/queues//q", "/API/queues"]
)
def test_other_paths_lead_nowhere(path: str) -> None:
    refusal = refused("GET", path)
    assert (refusal.status, refusal.error, refusal.reason) == (404, "Object Not Found", "Not Found")


@pytest.mark.parametrize("path", ["/api/queues/%FF", "/api/queues/%ED%A0%80", "/api/queues/%C3/q"])
def test_paths_that_are_not_utf_8_are_refused(path: str) -> None:
    assert (refused("GET", path).status, refused("GET", path).reason) == (400, "the path is not UTF-8")


def test_other_methods_are_refused_with_those_that_there_are() -> None:
    for method in ("DELETE", "POST", "OPTIONS", "get", "PATCH"):
        refusal = refused(method, "/api/queues/v/q")
        assert (refusal.status, refusal.error) == (405, "method_not_allowed")
        assert refusal.headers == (("Allow", "GET, HEAD, OPTIONS, PUT"),)
    assert refused("GET", "/api/only/x").headers == (("Allow", "DELETE, OPTIONS"),)
    assert refused("HEAD", "/api/only/x").status == 405


def test_head_goes_where_get_goes() -> None:
    assert found("/api/queues/v/q", "HEAD") == found("/api/queues/v/q", "GET")


def test_a_route_cannot_be_there_twice_nor_a_part_have_two_names() -> None:
    with pytest.raises(AssertionError, match="twice"):
        table("GET /a/{b}", "GET /a/{b}")
    with pytest.raises(AssertionError, match="two names"):
        table("GET /a/{b}", "GET /a/{c}/d")


def test_every_path_of_thousands_of_parts_is_found_or_not_without_a_crash() -> None:
    assert refused("GET", "/api/queues" + "/x" * 8000).status == 404
    assert refused("GET", "/" * 16000).status == 404


# --- the table there is -----------------------------------------------------------------------------------------------


def test_every_route_there_is_is_found_by_its_own_template() -> None:
    routes = list(all_routes())
    whole = RouteTable(routes)
    for route in routes:
        path = route.template.replace("{", "%7B").replace("}", "%7D")
        assert whole.find(route.method, path)[0] is route, route.template


def test_public_routes_are_few() -> None:
    public = {(route.method, route.template) for route in all_routes() if route.access is Access.PUBLIC}
    # Each of these decides itself what an unknown caller may learn.
    assert public <= {
        ("POST", "/api/warren/session"),
        ("GET", "/api/warren/session"),
        ("DELETE", "/api/warren/session"),
        ("POST", "/api/login"),
        ("GET", "/api/auth"),
        ("GET", "/health"),
        ("GET", "/health/leader"),
        ("GET", "/health/live"),
        ("GET", "/health/ready"),
        ("GET", "/api/openapi.json"),
    }


ADMINISTRATORS = (
    *("users", "permissions", "topic-permissions", "user-limits", "vhost-limits", "vhosts", "operator-policies"),
    *("definitions", "global-parameters", "cluster-name", "cluster", "rebalance", "feature-flags"),
)
POLICYMAKERS = ("policies", "parameters", "shovels", "federation-links", "lake")
OF_NODE = ("/api/warren/log-level", "/api/warren/backups", "/api/warren/links", "/api/warren/damage")
# Not a GET, and for those who may see the vhost: one only asks, one takes the right to close a connection besides.
SEEN = ("/api/warren/route/{vhost}", "/api/consumers/{vhost}/{connection}/{number}/{consumer}")
# As far as permissions in the vhost go.
EVERYBODY = ("queues", "exchanges", "bindings", "connections", "consumers", "stream", "warren")


def test_changes_need_the_tags_that_they_need_in_rabbitmq() -> None:
    for route in all_routes():
        if route.method == "GET" or route.access is Access.PUBLIC:
            continue
        of = route.template.split("/")[2]
        of_node = route.template.startswith(OF_NODE)
        if of in ADMINISTRATORS or "definitions" in route.template or of_node:
            assert route.access is Access.ADMINISTRATOR, route.template
        elif of in POLICYMAKERS:
            assert route.access is Access.POLICYMAKER, route.template
        else:
            assert of in EVERYBODY, route.template
            if of == "warren" and route.access in (Access.CLIENT, Access.POLICYMAKER):
                continue  # a route that RabbitMQ does not have
            if of != "connections" and route.template not in SEEN:
                assert route.access is Access.VHOST, route.template


def test_secrets_are_for_those_only_who_may_change_them() -> None:
    for route in all_routes():
        if route.template.startswith(("/api/users", "/api/definitions", "/api/config")):
            own = route.template == "/api/users/{user}/permissions"
            assert route.access is (Access.USER if own else Access.ADMINISTRATOR), route.template
        if route.template.startswith(("/api/parameters", "/api/global-parameters")):
            assert route.access in (Access.POLICYMAKER, Access.ADMINISTRATOR), route.template


def test_what_reads_or_writes_a_vhost_of_the_path_declares_that_it_does() -> None:
    for route in all_routes():
        if "{vhost}" in route.template and "/health/" not in route.template:
            assert route.access is not Access.USER, route.template
        if route.access in (Access.VHOST, Access.VHOST_VISIBLE):
            assert "{vhost}" in route.template, route.template
        if route.access is Access.VHOST_VISIBLE and route.template not in SEEN:
            assert route.method == "GET", route.template


# --- queries ----------------------------------------------------------------------------------------------------------


def test_a_query_is_decoded_and_the_last_of_a_name_counts() -> None:
    assert parse_query("") == {}
    assert parse_query("a=1&b=%2F+x&a=2&c&d=") == {"a": "2", "b": "/ x", "c": "", "d": ""}


@pytest.mark.parametrize("query", ["a=%FF", "%C3=1", "&".join(f"a{n}=1" for n in range(200))])
def test_queries_that_are_not_utf_8_or_too_long_are_refused(query: str) -> None:
    with pytest.raises(HttpError) as caught:
        parse_query(query)
    assert (caught.value.status, caught.value.reason) == (400, "the query string is malformed")


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_nothing_is_an_empty_object() -> None:
    assert decode_json(b"") == {} == decode_json(b" \r\n\t")
    assert decode_json(b'{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"{a: 1}",
        b"'x'",
        b"[1,]",
        b"NaN",
        b"1e400",
        b'"\\ud800"',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"[" * 100_000,
        b"\x00",
    ],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        decode_json(data)
    assert (caught.value.status, caught.value.error, caught.value.reason) == (400, "bad_request", "not_json")


def asked(body: bytes, limits: BodyLimits = ORDINARY) -> Call:
    """Return a call whose body comes in pieces."""

    async def read_body(limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
        came = 0
        while came < len(body):
            piece = body[came : came + LOOK_BYTES]
            came += len(piece)
            sizes.append(came)
            if came > limit_bytes:
                raise HttpError(413, "payload_too_large", "")
            if look is not None:
                look(piece)
        return body

    sizes.clear()
    request = Request("POST", "/", "", {}, "127.0.0.1", False, read_body)
    return Call(request, {}, *(cast(Any, None),) * 3, limits=limits)


sizes: list[int] = []


def test_a_body_of_very_many_values_is_refused_when_they_come_and_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty-two million bytes of empty lists would be a thousand million of objects."""
    monkeypatch.setattr(msgspec.json, "decode", None)
    for unit in (b"[],", b"{},", b'{"":0},', b"1,", b'"",'):
        with pytest.raises(HttpError) as caught:
            trio.run(asked(b"[" + unit * 500_000, BodyLimits(32 << 20, 20_000)).json)
        assert (caught.value.status, caught.value.reason) == (413, "the JSON has more than 20000 values")
        assert sizes[-1] <= 20_000 * len(unit) + 2 * LOOK_BYTES


def test_a_body_that_is_nested_too_deeply_is_refused_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.json, "decode", None)
    with pytest.raises(HttpError) as caught:
        trio.run(asked(b"[" * 900_000).json)
    assert (caught.value.status, caught.value.reason) == (400, "the JSON is nested too deeply")
    assert len(sizes) == 1


def test_a_body_within_its_limits_is_decoded() -> None:
    body = {"queues": [{"name": '"[{,:\\', "arguments": {"x": [1, 2.5, None, "é"]}}] * 900}
    assert trio.run(asked(json.dumps(body).encode()).json) == body
    assert trio.run(asked(b"").json) == {}


def test_ordinary_routes_take_little_and_the_others_are_few() -> None:
    assert BodyLimits(1 << 20, 20_000) == ORDINARY
    large = {(route.access, route.template) for route in all_routes() if route.limits != ORDINARY}
    assert large == {
        (Access.VHOST, "/api/exchanges/{vhost}/{exchange}/publish"),
        (Access.CLIENT, "/api/warren/stages/{vhost}/commit"),
        (Access.CLIENT, "/api/warren/stages/{vhost}/replace"),
        (Access.ADMINISTRATOR, "/api/definitions"),
        (Access.ADMINISTRATOR, "/api/definitions/{vhost}"),
        (Access.ADMINISTRATOR, "/api/warren/definitions/dry-run"),
        (Access.ADMINISTRATOR, "/api/warren/definitions/dry-run/{vhost}"),
    }
    for route in all_routes():
        if route.access is not Access.ADMINISTRATOR:
            assert route.limits.values <= 40_000, route.template


def test_a_route_of_our_own_refuses_what_only_a_newer_client_knows() -> None:
    """Else the client would believe that it was done, such as a purge."""
    bodies: dict[str, type[msgspec.Struct]] = {
        route.template: route.body
        for route in all_routes()
        if route.template.startswith("/api/warren/") and route.body not in (None, Login)
    }
    assert len(bodies) >= 15
    for template, body in bodies.items():
        for each in (body, *_inside(body)):
            assert each.__struct_config__.forbid_unknown_fields, f"{template}: {each.__name__}"


def _inside(body: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Return the structures that are fields of a body, or elements of its lists."""
    kinds = [each for field in msgspec.structs.fields(body) for each in (field.type, *get_args(field.type))]
    return [each for each in kinds if isinstance(each, type) and issubclass(each, msgspec.Struct)]


def test_json_that_came_in_a_form_is_measured_as_well() -> None:
    for data, status, reason in (
        (b"[" * 900, 400, "nested too deeply"),
        (b"[" + b"1," * 200, 413, "more than 100 values"),
    ):
        with pytest.raises(HttpError) as caught:
            trio.run(measure, data, BodyLimits(1000, 100))
        assert caught.value.status == status and reason in str(caught.value.reason)
    trio.run(measure, b"[1, 2]", BodyLimits(1000, 100))


class Shape(msgspec.Struct):
    """A body."""

    name: str
    count: int = 0
    flag: bool = False


def test_numbers_and_flags_may_be_given_as_texts_and_the_rest_is_refused_by_name() -> None:
    assert convert({"name": "x", "count": "3", "flag": "true", "more": 1}, Shape) == Shape("x", 3, True)
    for given, reason in (
        ({}, "`name`"),
        ({"name": 1}, "$.name"),
        ([], "object"),
        ({"name": "x", "count": "y"}, "$.count"),
    ):
        with pytest.raises(HttpError) as caught:
            convert(given, Shape)
        assert caught.value.status == 400 and reason in str(caught.value.reason)


def test_results_are_json_nothing_is_204() -> None:
    assert as_response(None).status == 204
    assert whole(as_response({"a": 1})) == b'{"a":1}'
    assert whole(as_response([])) == b"[]"
    assert json.loads(whole(as_response({"name": "caf\udce9"}))) == {"name": "caf\udce9"}


def test_every_handler_has_its_words() -> None:
    for route in all_routes():
        assert route.summary, route.template
        assert not route.summary.endswith("."), route.template
