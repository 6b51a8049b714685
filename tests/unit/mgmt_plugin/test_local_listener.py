"""The listener for programs that the broker has started. local_listener (1), (2)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from warren.channels.access import CONFIGURE, READ, WRITE
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.local_listener import PATHS, LocalListener
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route
from warren.server.local_http import LocalHttp
from warren.vhosts.topology_watcher import INTERNAL_USER


async def answer(echo: Echo, call: Call) -> Response:
    await trio.lowlevel.checkpoint()
    echo.call = call
    return Response(200)


OTHERS = (("GET", "/api/users"), ("DELETE", "/api/warren/drains/{vhost}/{queue}/{consumer}"))


class Echo(Handlers):
    """Answers every route, and some that are not for programs; it keeps the last call."""

    ROUTES = tuple(Route(method, template, Access.CLIENT, answer, "") for method, template in (*PATHS, *OTHERS))

    def __init__(self) -> None:
        self.call: Call | None = None


class Place:
    """A listener, and what it asks."""

    def __init__(self) -> None:
        self.echo, self.local = Echo(), LocalHttp()
        view = SimpleNamespace(vhosts={"/": None, "other": None})
        management = SimpleNamespace(view=view, clients=None, administer=None)
        self.listener = LocalListener([self.echo], self.local, cast(Any, management))
        self.users: list[str] = []

    def ask(self, path: str, authorization: str | None = None, method: str = "GET") -> int:
        async def nothing(limit_bytes: int, look: object = None) -> bytes:
            return b""

        headers = {} if authorization is None else {"authorization": authorization}
        request = Request(method, path, "", headers, "127.0.0.1", False, nothing, identified=self.users.append)
        try:
            return trio.run(self.listener.respond, request).status
        except HttpError as error:
            return error.status


def test_a_token_lets_in_to_its_vhost_as_the_broker_which_may_only_read() -> None:
    place = Place()
    token = place.local.admit("/")
    assert place.ask("/api/warren/data/%2F/orders", f"Bearer {token}") == 200
    assert place.users == [INTERNAL_USER]
    call = place.echo.call
    assert call is not None
    assert call.may(READ, "anything at all")
    assert not call.may(WRITE, "orders")
    assert not call.may(CONFIGURE, "orders")
    assert not call.operator.is_administrator
    assert not call.operator.is_policymaker
    assert place.ask("/api/warren/data/other/orders", f"Bearer {token}") == 403
    place.local.dismiss(token)
    assert place.ask("/api/warren/data/%2F/orders", f"Bearer {token}") == 401


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic Z3Vlc3Q6Z3Vlc3Q=", "Bearer ä" * 999])
def test_nobody_else_is_let_in(authorization: str | None) -> None:
    place = Place()
    place.local.admit("/")
    assert place.ask("/api/warren/data/%2F/orders", authorization) == 401
    assert place.users == []


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/users"), ("DELETE", "/api/warren/drains/%2F/orders/x"), ("GET", "/")]
)
def test_there_is_nothing_else(method: str, path: str) -> None:
    place = Place()
    token = place.local.admit("/")
    assert place.ask(path, f"Bearer {token}", method) in (404, 405)


def test_the_listener_is_wanted_by_the_first_who_asks_and_may_be_elsewhere_later() -> None:
    async def main() -> None:
        local = LocalHttp()
        found: list[str] = []

        async def ask() -> None:
            found.append(await local.url())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await local.wanted()
            local.opened("http://127.0.0.1:1")
        local.closed()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.lowlevel.checkpoint()
            local.opened("http://127.0.0.1:2")
        assert found == ["http://127.0.0.1:1", "http://127.0.0.1:2"]

    trio.run(main)
