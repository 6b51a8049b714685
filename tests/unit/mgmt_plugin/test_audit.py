"""A change over HTTP has one line of the log, however its request ends. Numbers: ``mgmt_plugin/audit.py``."""

from __future__ import annotations

import gc
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from unit.mgmt_plugin.http_peers import conversation, memory_pair, parsed, received

from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin.api import Api
from warren.mgmt_plugin.http import server as http_module
from warren.mgmt_plugin.http.server import BodyBudget, HttpError, Request, Response
from warren.mgmt_plugin.http.static_files import StaticFiles
from warren.mgmt_plugin.operators import Doorkeeper, Operator
from warren.mgmt_plugin.routes import Access, Call, Route, RouteTable
from warren.server.management import Management


class Changes:
    """Handlers that change something, each of which ends in another way."""

    def __init__(self) -> None:
        self.changed = 0

    async def do(self, call: Call) -> None:
        self.changed += 1

    async def fail(self, call: Call) -> None:
        self.changed += 1
        raise KeyError("a fault of ours")

    async def refuse(self, call: Call) -> None:
        raise HttpError(400, "bad_request", "not like this")

    async def refuse_at_length(self, call: Call) -> None:
        raise HttpError(400, "bad_request", "x" * 1_000_000)

    async def hang(self, call: Call) -> None:
        self.changed += 1
        await trio.sleep_forever()

    async def read(self, call: Call) -> None:
        await call.body(dict)
        self.changed += 1

    async def answer_badly(self, call: Call) -> Response:
        def pieces() -> Any:
            yield b"[1"
            raise KeyError("while the answer is made")

        self.changed += 1
        return Response(200, pieces=pieces())

    def api(self) -> Api:
        names = ("do", "fail", "refuse", "refuse_at_length", "hang", "read", "answer_badly")
        table = RouteTable(
            Route("POST", f"/api/{name}", Access.ADMINISTRATOR, getattr(self, name), name) for name in names
        )
        operator = Operator("bob", ("administrator",), Permissions.of_records())

        async def identify(request: Request) -> Operator:
            return operator

        doorkeeper = cast(Doorkeeper, SimpleNamespace(identify=identify))
        management = SimpleNamespace(view=SimpleNamespace(vhosts={}), clients=None, administer=None)
        return Api(table, doorkeeper, cast(Management, management), StaticFiles())


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """Return what the lines of audit say, and their level."""
    caplog.set_level(logging.INFO, "warren.audit")

    def told() -> list[tuple[str, dict[str, object]]]:
        records = [record for record in caplog.records if record.name == "warren.audit"]
        return [(record.levelname, cast(Any, record).fields) for record in records]

    return told


def request(name: str, body: bytes = b"{}", promised: int | None = None) -> bytes:
    length = len(body) if promised is None else promised
    return b"POST /api/%s?secret=1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        name.encode(),
        length,
        body,
    )


def ask(api: Api, sent: bytes, *, leaves: bool = False) -> bytes:
    """Return the answer to `sent`; a client that `leaves` does so after it."""

    async def main() -> bytes:
        client_end, server_end = memory_pair()
        answers: list[bytes] = []

        async def talk() -> None:
            await client_end.send_all(sent)
            if leaves:
                await client_end.aclose()
            else:
                answers.append(await received(client_end))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            try:
                await conversation(server_end, api.respond, BodyBudget()).run()
            except trio.BrokenResourceError:
                pass
            await server_end.aclose()
        return b"".join(answers)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def line(name: str, **more: object) -> dict[str, object]:
    return {"did": f"POST /api/{name}", "user": "bob", "peer": "127.0.0.1", **more}


@pytest.mark.parametrize(
    ("name", "level", "status", "reason"),
    [
        ("do", "INFO", 204, None),
        ("refuse", "WARNING", 400, "not like this"),
        ("fail", "WARNING", 500, "see the log of the broker"),
        ("hang", "WARNING", 503, "the request took too long"),
        ("answer_badly", "WARNING", 500, "see the log of the broker"),
    ],
)
def test_a_change_has_one_line_with_the_status_of_its_answer(
    name: str, level: str, status: int, reason: str | None, lines: Any
) -> None:
    """(1)"""
    changes = Changes()
    assert parsed(ask(changes.api(), request(name)))[0] == status
    more = {"status": status} if reason is None else {"status": status, "reason": reason}
    assert lines() == [(level, line(name, **more))]


def test_a_long_reason_is_cut(lines: Any) -> None:
    assert parsed(ask(Changes().api(), request("refuse_at_length")))[0] == 400
    ((_, fields),) = lines()
    assert fields["reason"] == "x" * 499 + "…"


def test_a_change_whose_client_leaves_before_the_answer_has_its_line(lines: Any) -> None:
    """(1)"""
    changes = Changes()
    ask(changes.api(), request("do"), leaves=True)
    assert changes.changed == 1
    assert lines() == [("INFO", line("do", status=204))]


def test_a_change_whose_client_leaves_in_its_body_has_a_line_without_a_status(lines: Any) -> None:
    """(1)"""
    changes = Changes()
    ask(changes.api(), request("read", b"{", promised=100), leaves=True)
    assert changes.changed == 0
    assert lines() == [("WARNING", line("read", reason="it was cut off, and may have been carried out"))]


def test_a_change_that_the_end_of_the_broker_cuts_off_has_a_line_without_a_status(lines: Any) -> None:
    """(1)"""
    changes = Changes()

    async def main() -> None:
        client_end, server_end = memory_pair()
        await client_end.send_all(request("hang"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation(server_end, changes.api().respond, BodyBudget()).run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert changes.changed == 1
    assert lines() == [("WARNING", line("hang", reason="it was cut off, and may have been carried out"))]


def test_a_request_is_gone_with_its_answer() -> None:
    """No cycle keeps it, and its connection with it, until the next collection."""
    gc.collect()
    gc.disable()
    try:
        ask(Changes().api(), request("do"))
        assert not [kept for kept in gc.get_objects() if isinstance(kept, Request)]
    finally:
        gc.enable()


def test_the_line_is_there_before_the_answer(monkeypatch: pytest.MonkeyPatch, lines: Any) -> None:
    """A client that has the answer finds the line in the log."""
    seen: list[int] = []
    send = http_module.Conversation._send

    async def counting(self: Any, response: Response, method: str) -> bool:
        seen.append(len(lines()))
        return await send(self, response, method)

    monkeypatch.setattr(http_module.Conversation, "_send", counting)
    ask(Changes().api(), request("do"))
    assert seen == [1]
