"""Handlers are given what they need, and a test builds a route with that and no more.

The rights of a route are not checked here: `api.carry_out` does that.
"""

from __future__ import annotations

import inspect
from typing import Any, cast
from urllib.parse import quote

import pytest
import trio

from warren.engine_view.parameters import Parameters
from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin import openapi
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.operators import Operator
from warren.mgmt_plugin.plugin import HANDLERS, table_of
from warren.mgmt_plugin.resources.health_checks import OTHER_NAMES, CheckFailed, HealthHandlers
from warren.mgmt_plugin.resources.linked import LinkHandlers, NoLinks
from warren.mgmt_plugin.resources.node import NodeHandlers
from warren.mgmt_plugin.routes import Acting, Call, Handlers
from warren.server.direct_clients import DirectClients
from warren.server.held_links import HeldLinks
from warren.server.management import CLUSTERING, Health, Listening
from warren.server.protocols import LISTENERS
from warren.server.setting_kinds import Endpoint
from warren.server.settings import Settings
from warren.vhosts.metadata import MetadataChange
from warren.vhosts.parameters import ParameterBook

NEEDS_MAX = 4


async def no_body(limit_bytes: int, look: Any = None) -> bytes:
    return b""


def asked(*handlers: Handlers, method: str, path: str, changes: list[MetadataChange] | None = None) -> object:
    """Return what the handler answers that the table finds; `changes` takes what it asks for."""
    made = [] if changes is None else changes

    async def administer(change: MetadataChange, by: str) -> None:
        assert by == "someone"
        made.append(change)

    route, params = table_of(handlers).find(method, path)
    access = Permissions.of_records()
    request = Request(method, path, "", {}, "127.0.0.1", False, no_body)
    acting = Acting(cast(DirectClients, None), administer)
    call = Call(request, params, Operator("someone", ("administrator",), access), {}, acting)
    return trio.run(route.handler, call)


def not_held() -> HeldLinks:
    return HeldLinks(ParameterBook(), None)


def test_a_health_check_needs_no_broker() -> None:
    listening = [Listening("amqp", "127.0.0.1", 5672)]
    handlers = HealthHandlers(cast(Any, None), lambda: Health(False, "the disk is full"), listening, None)
    assert asked(handlers, method="GET", path="/api/health/checks/port-listener/5672") == {"status": "ok", "port": 5672}
    assert asked(handlers, method="GET", path="/api/health/checks/certificate-expiration/1/days") == {"status": "ok"}
    with pytest.raises(HttpError, match="the disk is full"):
        asked(handlers, method="GET", path="/health")


def test_the_document_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than a turn, and anybody may ask for it."""
    made: list[None] = []

    def document(routes: object) -> dict[str, str]:
        made.append(None)
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(openapi, "document", document)
    handlers = openapi.DocumentHandlers(())
    for _ in range(3):
        answer = asked(handlers, method="GET", path="/api/openapi.json")
        assert isinstance(answer, Response) and answer.body == b'{"openapi":"3.1.0"}'
    assert len(made) == 1


OTHERS = ("http", "https", "prometheus", "data", "datas", CLUSTERING)


@pytest.mark.parametrize("protocol", [*LISTENERS, *OTHERS])
def test_a_listener_of_each_protocol_is_found_by_its_name_and_its_other_names(protocol: str) -> None:
    listening = [Listening(protocol, "127.0.0.1", 1)]
    handlers = HealthHandlers(cast(Any, None), lambda: Health(True), listening, None)
    for name in (protocol, *OTHER_NAMES.get(protocol, ())):
        path = f"/api/health/checks/protocol-listener/{quote(name, safe='')}"
        assert asked(handlers, method="GET", path=path) == {"status": "ok", "protocol": name}
    with pytest.raises(CheckFailed) as failed:
        asked(handlers, method="GET", path="/api/health/checks/protocol-listener/gopher")
    assert failed.value.document["protocols"] == [protocol]


def test_other_names_are_of_protocols_that_listeners_have() -> None:
    opened = {
        name for name, kind in inspect.get_annotations(Settings, eval_str=True).items() if kind == Endpoint | None
    }
    named_otherwise = {"cluster_listen", "cluster_advertise", "http_advertise", "follow"}
    assert opened - named_otherwise | {CLUSTERING} == {*OTHERS}
    assert OTHER_NAMES.keys() <= {*LISTENERS, *OTHERS}


class OneLink(NoLinks):
    def __init__(self) -> None:
        self.restarted: list[tuple[str, str]] = []

    def shovels(self, vhost: str | None = None) -> list[dict[str, Any]]:
        return [{"name": "s", "vhost": vhost}]

    def restart_shovel(self, vhost: str, name: str) -> bool:
        self.restarted.append((vhost, name))
        return name == "s"


def test_links_need_who_runs_them_and_the_parameters() -> None:
    links, parameters = OneLink(), Parameters(ParameterBook())
    handlers = LinkHandlers(links, parameters, not_held())
    assert asked(handlers, method="GET", path="/api/shovels/vhost/v/s") == {"name": "s", "vhost": "v"}
    assert asked(handlers, method="DELETE", path="/api/shovels/vhost/v/s/restart") is None
    assert links.restarted == [("v", "s")]
    with pytest.raises(HttpError):
        asked(handlers, method="DELETE", path="/api/shovels/vhost/v/other/restart")
    changes: list[MetadataChange] = []
    with pytest.raises(HttpError):  # the parameter does not exist
        asked(handlers, method="DELETE", path="/api/shovels/vhost/v/s", changes=changes)
    assert changes == []


class OneTable(NoLinks):
    def tables(self, vhost: str | None = None) -> list[dict[str, Any]]:
        return [{"name": "t", "vhost": vhost, "state": "failing"}]

    def restart_table(self, vhost: str, name: str) -> bool:
        return (vhost, name) == ("v", "t")


def test_tables_are_told_restarted_and_deleted_with_their_parameter() -> None:
    handlers = LinkHandlers(OneTable(), Parameters(ParameterBook()), not_held())
    row = {"name": "t", "vhost": "v", "state": "failing"}
    assert asked(handlers, method="GET", path="/api/lake/vhost/v/t") == row
    assert asked(handlers, method="DELETE", path="/api/lake/vhost/v/t/restart") is None
    for method, path in (
        ("GET", "/api/lake/vhost/v/other"),
        ("DELETE", "/api/lake/vhost/v/other/restart"),
        ("DELETE", "/api/lake/vhost/v/t"),  # the parameter does not exist
    ):
        with pytest.raises(HttpError):
            asked(handlers, method=method, path=path)


def test_handlers_of_one_table_do_not_meet() -> None:
    first, second = OneLink(), OneLink()
    for links in (first, second):
        handlers = LinkHandlers(links, Parameters(ParameterBook()), not_held())
        asked(handlers, method="DELETE", path="/api/shovels/vhost/v/s/restart")
    assert (first.restarted, second.restarted) == ([("v", "s")], [("v", "s")])


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_constructor_says_what_routes_may_touch(kind: type[Handlers]) -> None:
    """Nothing is given everything; the node alone is shown with all of the process."""
    if kind.__init__ is object.__init__:
        return
    needs = list(inspect.signature(kind.__init__).parameters.values())[1:]
    assert len(needs) <= NEEDS_MAX
    assert all(each.annotation not in ("Services", "Any") for each in needs)
    assert kind is NodeHandlers or all(each.annotation != "Management" for each in needs)


def test_every_route_is_answered_by_a_method_of_its_handlers() -> None:
    for kind in HANDLERS:
        assert kind.ROUTES, kind
        assert all(getattr(kind, route.handler.__name__) is route.handler for route in kind.ROUTES)
