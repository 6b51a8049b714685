"""The OpenAPI document of the API, made of the table of routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from warren import __version__
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.resources.overview import PRODUCT
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route

COMPONENTS: Final = "#/components/schemas/{name}"
NUMBERS: Final = frozenset(
    {"page", "page_size", "offset", "count", "scan_from", "truncate", "limit", "epoch"}
    | {f"{prefix}_{end}" for prefix in ("lengths", "msg_rates", "data_rates", "node_stats") for end in ("age", "incr")}
)
FLAGS: Final = frozenset(
    {"use_regex", "sort_reverse", "sort_natural", "if-empty", "if-unused", "disable_stats", "enable_queue_totals"}
)
NEEDS: Final = {
    Access.PUBLIC: "Needs no login.",
    Access.CLIENT: "Needs permissions in the vhost, and no tag.",
    Access.USER: "Needs one of the tags management, policymaker, monitoring, administrator.",
    Access.VHOST: "Needs permissions in the vhost.",
    Access.VHOST_VISIBLE: "Needs permissions in the vhost, or the tag monitoring.",
    Access.POLICYMAKER: "Needs the tag policymaker and permissions in the vhost.",
    Access.MONITORING: "Needs the tag monitoring.",
    Access.ADMINISTRATOR: "Needs the tag administrator.",
}
ERROR: Final = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "reason": {}},
    "required": ["error", "reason"],
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of `routes`."""
    table = list(routes)
    bodies = {route.body for route in table if route.body is not None}
    _, components = msgspec.json.schema_components(
        sorted(bodies, key=lambda body: body.__qualname__), ref_template=COMPONENTS
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{PRODUCT} management API",
            "version": __version__,
            "description": "RabbitMQ's management HTTP API; what only Warren has is below /api/warren/.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**components, "Error": ERROR},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(route: Route, components: Mapping[str, Any]) -> dict[str, Any]:
    names = [segment.strip("{}") for segment in route.template.split("/") if segment.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    parameters += [{"name": name, "in": "query", "schema": _schema_of(name)} for name in route.query]
    error = {"schema": {"$ref": COMPONENTS.format(name="Error")}}
    refused = {"description": "Refused", "content": {"application/json": error}}
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.template}".replace("{", "").replace("}", "").replace("/", "_"),
        "tags": [_tag(route)],
        "summary": route.summary,
        "description": NEEDS[route.access],
        "responses": {**_success(route), "4XX": refused, "503": refused},
    }
    if parameters:
        operation["parameters"] = parameters
    if route.access is not Access.PUBLIC:
        operation["security"] = [{"basic": []}, {"bearer": []}]
    if route.body is not None:
        schema = {"$ref": COMPONENTS.format(name=route.body.__name__)}
        assert route.body.__name__ in components
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _schema_of(name: str) -> dict[str, Any]:
    if name in NUMBERS:
        return {"type": "integer"}
    return {"type": "string", "enum": ["true", "false"]} if name in FLAGS else {"type": "string"}


def _success(route: Route) -> dict[str, Any]:
    if route.method == "GET":
        return {"200": {"description": "What was asked for"}}
    if route.method == "PUT":
        return {"201": {"description": "Created"}, "204": {"description": "Changed, or as it was"}}
    if route.method == "POST":
        done = {"description": "Done"}
        return {"200": done, "201": done, "204": done}
    return {"204": {"description": "Done"}}


def _tag(route: Route) -> str:
    parts = route.template.strip("/").split("/")
    if parts[0] != "api":
        return parts[0]
    return "warren" if parts[1] == "warren" else parts[1]


class DocumentHandlers(Handlers):
    """The handler of the document of all `routes`.

    Strangers may ask for it, and to make it takes much longer than a turn: it is made once.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = routes
        self._made = b""

    async def show_document(self, call: Call) -> Response:
        self._made = self._made or msgspec.json.encode(document(self._routes))
        return Response(200, self._made)

    ROUTES: ClassVar = (Route("GET", "/api/openapi.json", Access.PUBLIC, show_document, "This document"),)
