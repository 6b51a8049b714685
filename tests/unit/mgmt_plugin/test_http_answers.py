"""Answers over HTTP that are made while they are sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast

import h11
import pytest
import trio
import trio.testing
from unit.mgmt_plugin.http_peers import (
    GET,
    LAST,
    Server,
    conversation,
    parsed,
    run,
)

from warren.channels.access import AccessControl
from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin.http import permits as permits_module
from warren.mgmt_plugin.http import server as http_module
from warren.mgmt_plugin.http.server import (
    BodyBudget,
    Request,
    Response,
)
from warren.mgmt_plugin.operators import Doorkeeper
from warren.server.logins.authenticator import Authenticator


class Making:
    """Answers with `count` pieces of `PIECE` bytes. `made`: pieces; `open`: answers that have not come to an end."""

    PIECE = 1 << 14

    def __init__(self, count: int = 1000) -> None:
        self.count = count
        self.made = 0
        self.open = 0

    def pieces(self) -> Iterator[bytes]:
        self.open += 1
        try:
            for _ in range(self.count):
                self.made += 1
                yield b"x" * self.PIECE
        finally:
            self.open -= 1

    async def respond(self, request: Request) -> Response:
        if request.path in ("/short", "/health"):
            return Response(200, b"{}")
        request.identified(request.headers.get("user", "alice"))
        return Response(200, pieces=self.pieces())


def test_a_long_answer_is_made_as_its_peer_takes_it_and_given_up_when_it_does_not() -> None:
    making = Making()

    async def main() -> None:
        server_end, client_end = trio.testing.lockstep_stream_pair()
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation(server_end, making.respond, BodyBudget()).run)
            await client_end.send_all(GET)
            taken = 0
            for _ in range(3):
                await trio.sleep(http_module.UNREAD_TIMEOUT_S - 1)
                assert making.made * Making.PIECE <= taken + 2 * http_module.PART_BYTES
                taken += len(await client_end.receive_some(1 << 20))
        # The answer was given up, and what made it is not kept.
        assert trio.current_time() - start == pytest.approx(4 * http_module.UNREAD_TIMEOUT_S - 3)
        assert making.made * Making.PIECE <= taken + 2 * http_module.PART_BYTES
        assert making.open == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_long_answer_comes_in_chunks_or_up_to_the_end_of_the_connection() -> None:
    making = Making(100)

    async def test(server: Server) -> None:
        server.respond = making.respond
        status, headers, body = await server.get()
        assert (status, headers["transfer-encoding"]) == (200, "chunked") and "content-length" not in headers
        reader = h11.Connection(h11.CLIENT)
        reader.send(h11.Request(method="GET", target="/any", headers=[("Host", "x"), ("Connection", "close")]))
        reader.send(h11.EndOfMessage())
        reader.receive_data(await server.exchange(LAST))
        size = 0
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            size += len(event.data) if isinstance(event, h11.Data) else 0
        assert size == 100 * Making.PIECE
        # An old client knows no chunks, and asks for the connection to be closed.
        _, headers, body = parsed(await server.exchange(b"GET /any HTTP/1.0\r\n\r\n"))
        assert len(body) == 100 * Making.PIECE and headers["connection"] == "close"
        assert not {"transfer-encoding", "content-length"} & set(headers)
        # The answer to a HEAD is begun, but not sent.
        making.made = 0
        answer = await server.exchange(GET.replace(b"GET", b"HEAD") + LAST.replace(b"/any", b"/short"))
        assert answer.count(b"HTTP/1.1 200") == 2 and answer.endswith(b"\r\n\r\n{}") and b"xx" not in answer
        assert making.made * Making.PIECE == http_module.PART_BYTES and making.open == 0

    run(test)


def test_a_short_answer_in_pieces_has_its_length() -> None:
    async def test(server: Server) -> None:
        server.respond = Making(2).respond
        for method, size in (("GET", 2 * Making.PIECE), ("HEAD", 0)):
            status, headers, body = await server.get(method=method)
            assert (status, headers["content-length"], len(body)) == (200, str(2 * Making.PIECE), size)

    run(test)


def test_an_answer_whose_making_fails_is_500_or_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Noted:
        def error(self, text: str, *, exception: Exception, path: str = "") -> None:
            told.append(text)

    monkeypatch.setattr(http_module, "log", Noted())

    async def test(server: Server) -> None:
        def failing(count: int) -> Iterator[bytes]:
            yield from Making(count).pieces()
            raise KeyError("secret")

        async def fail(request: Request) -> Response:
            return Response(200, pieces=failing(100 if request.path == "/any" else 1))

        server.respond = fail
        assert (await server.get("/early"))[0] == 500
        answer = await server.exchange(GET)
        assert answer.startswith(b"HTTP/1.1 200 ") and not answer.endswith(b"0\r\n\r\n")
        assert b"secret" not in answer

    run(test)
    assert len(told) == 2 and "with 500" in told[0] and "the connection is closed" in told[1]


def test_a_user_has_so_many_long_answers_at_a_time_and_everybody_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits_module, "PER_ACCOUNT", 2)
    monkeypatch.setattr(permits_module, "LINE_S", 0.05)
    making = Making(100_000)

    async def test(server: Server) -> None:
        server.respond = making.respond
        unread = [await trio.open_tcp_stream(*server.address) for _ in range(2)]
        for stream in unread:
            await stream.send_all(GET)
            await stream.receive_some(1)
        answer = await server.exchange(LAST)
        status, headers, body = parsed(answer)
        assert (status, headers["retry-after"]) == (503, "5")
        assert json.loads(body)["error"] == "overloaded" and "page_size" in json.loads(body)["reason"]
        for path in ("/short", "/health"):
            assert (await server.get(path))[0] == 200
        making.count = 100
        bob = LAST.replace(b"\r\n\r\n", b"\r\nUser: bob\r\n\r\n")
        assert (await server.exchange(bob)).startswith(b"HTTP/1.1 200 ")
        # One of them goes, and has made room.
        await unread[0].aclose()
        while (await server.get())[0] == 503:
            pass

    run(test)


def test_long_work_ends_when_its_peer_leaves() -> None:
    ended: list[str] = []

    async def test(server: Server) -> None:
        begun = trio.Event()

        async def work(request: Request) -> Response:
            await request.begin_work()
            begun.set()
            try:
                await trio.sleep_forever()
            finally:
                ended.append(request.path)
            raise AssertionError("never")

        server.respond = work
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(GET)
        await begun.wait()
        assert not ended
        await stream.aclose()
        while not ended:
            await trio.sleep(0)
        server.respond = server.echo
        assert (await server.get())[0] == 200

    run(test)


def test_a_login_ends_when_its_peer_leaves() -> None:
    """Else one that has the right password would wait for the hashes of all that have left."""
    begun = trio.Event()
    ended: list[str] = []

    class Slow:
        async def check(self, user: str, password: bytes, peer_address: str) -> bool:
            begun.set()
            try:
                await trio.sleep_forever()
            finally:
                ended.append(user)
            return False

    async def test(server: Server) -> None:
        users = Permissions(AccessControl(lambda: None))
        keeper = Doorkeeper(users, cast(Authenticator, Slow()), frozenset())

        async def respond(request: Request) -> Response:
            await keeper.identify(request)
            return Response(200)

        server.respond = respond
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Basic Ym9iOngK\r\n\r\n"))
        await begun.wait()
        assert not ended
        await stream.aclose()
        while not ended:
            await trio.sleep(0.01)
        assert ended == ["bob"]

    run(test)


def test_what_follows_a_login_does_not_end_when_its_peer_ends_its_half() -> None:
    async def test(server: Server) -> None:
        async def respond(request: Request) -> Response:
            with request.watched():
                pass
            await trio.sleep(3 * permits_module.LOOK_S)
            return Response(200, b"done")

        server.respond = respond
        stream = await trio.open_tcp_stream(*server.address)
        async with stream:
            await stream.send_all(LAST)
            await stream.send_eof()
            assert b"".join([chunk async for chunk in stream]).endswith(b"done")

    run(test)


def test_a_permit_for_long_work_is_free_again_when_the_answer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits_module, "PER_ACCOUNT", 1)
    monkeypatch.setattr(permits_module, "LINE_S", 0.05)
    making = Making(100_000)

    async def test(server: Server) -> None:
        async def respond(request: Request) -> Response:
            request.identified("alice")
            await request.begin_work()
            await request.begin_work()  # it has its permit
            return await making.respond(request) if request.path == "/any" else Response(200, b"sorted")

        server.respond = respond
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(GET)
        await stream.receive_some(1)
        assert (await server.get("/sorted"))[2] == b"sorted"
        await stream.aclose()

    run(test)


def test_what_an_answer_holds_is_taken_from_the_budget_once_until_it_is_sent() -> None:
    budget = BodyBudget()
    seen: list[int] = []

    async def respond(request: Request) -> Response:
        request.hold(600)
        seen.append(budget._taken)
        return Response(200, blocks=[b"x" * 500, b"y" * 500])

    async def main() -> None:
        server_end, client_end = trio.testing.lockstep_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation(server_end, respond, budget).run)
            await client_end.send_all(LAST)
            await trio.testing.wait_all_tasks_blocked()
            assert budget._taken == 1000
            while budget._taken:
                await client_end.receive_some(1 << 16)
                await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert seen == [600]
