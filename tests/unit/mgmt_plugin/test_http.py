"""Requests and answers over real sockets, and over streams whose time is made up."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
import trustme

from warren.mgmt_plugin import http as http_module
from warren.mgmt_plugin.http import (
    BodyBudget,
    Conversation,
    HttpError,
    HttpTraffic,
    Request,
    Respond,
    Response,
    serve_http,
)
from warren.server.errors import StartError

GET = b"GET /any HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


MemoryStream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


class Server:
    """A running listener; what it answers is `respond`, what it was asked `requests`."""

    def __init__(self) -> None:
        self.address = ("", 0)
        self.requests: list[Request] = []
        self.respond: Respond = self.echo

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        return await self.respond(request)

    async def echo(self, request: Request) -> Response:
        """Answer with the path and the size of the body."""
        if request.path == "/refuse":
            raise HttpError(401, "not_authorized", "Login required")
        if request.path == "/fail":
            raise KeyError("secret")
        body = await request.read_body(100_000) if request.method in ("POST", "PUT") else b""
        return Response(200, json.dumps({"path": request.path, "body_bytes": len(body)}).encode())

    async def exchange(self, request: bytes) -> bytes:
        """Send bytes, then read until the server closes."""
        stream = await trio.open_tcp_stream(*self.address)
        async with stream:
            await stream.send_all(request)
            return b"".join([chunk async for chunk in stream])

    async def get(self, target: str = "/any", method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        return parsed(
            await self.exchange(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        )


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(status.split()[1]), headers, body


@contextlib.asynccontextmanager
async def running(host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()

    def wrap(stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
        assert context is not None
        return trio.SSLStream(stream, context, server_side=True, https_compatible=True)

    async with trio.open_nursery() as nursery:
        tls = wrap if context is not None else None
        server.address = await nursery.start(serve_http, "http", host, 0, server.answer, tls)
        yield server
        nursery.cancel_scope.cancel()


def run(test: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with running() as server:
                await test(server)

    trio.run(main)


def memory_pair() -> tuple[MemoryStream, MemoryStream]:
    """Return two ends of a connection without sockets."""
    one, other = trio.testing.memory_stream_pair()
    return one, other


def conversation(stream: Any, respond: Respond, budget: BodyBudget) -> Conversation:
    return Conversation(stream, "127.0.0.1", False, respond, budget, HttpTraffic())


def converse(respond: Respond, test: Callable[[MemoryStream], Awaitable[None]]) -> float:
    """Run one conversation over a stream in memory on a clock that jumps; return how long it took."""

    async def main() -> float:
        client_end, server_end = memory_pair()
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(test, client_end)
            await conversation(server_end, respond, BodyBudget()).run()
            await server_end.aclose()
        return trio.current_time() - start

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def never(request: Request) -> Response:
    raise AssertionError("nobody should have asked")


async def received(stream: MemoryStream) -> bytes:
    return b"".join([bytes(chunk) async for chunk in stream])


# --- heads ------------------------------------------------------------------------------------------------------------


def test_an_answer_carries_its_type_and_length_and_may_not_be_kept_or_guessed_at() -> None:
    async def test(server: Server) -> None:
        status, headers, body = await server.get("/any?x=1")
        assert (status, json.loads(body)) == (200, {"path": "/any", "body_bytes": 0})
        assert headers["content-type"] == "application/json"
        assert headers["content-length"] == str(len(body))
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers and "date" in headers
        (request,) = server.requests
        assert (request.method, request.path, request.query, request.peer) == ("GET", "/any", "x=1", "127.0.0.1")
        assert request.headers["host"] == "x" and not request.is_tls

    run(test)


def test_head_is_get_without_the_body() -> None:
    async def test(server: Server) -> None:
        _, _, body = await server.get()
        status, headers, nothing = await server.get(method="HEAD")
        assert (status, headers["content-length"], nothing) == (200, str(len(body)), b"")
        # and the connection goes on
        answer = await server.exchange(GET.replace(b"GET", b"HEAD") + LAST)
        assert answer.count(b"HTTP/1.1 200") == 2 and answer.endswith(body)

    run(test)


def test_an_answer_without_content_has_neither_type_nor_length() -> None:
    async def test(server: Server) -> None:
        async def nothing(request: Request) -> Response:
            return Response(204)

        server.respond = nothing
        status, headers, body = await server.get()
        assert (status, body) == (204, b"")
        assert "content-type" not in headers and "content-length" not in headers

    run(test)


def test_what_a_handler_refuses_is_json_and_the_connection_goes_on() -> None:
    async def test(server: Server) -> None:
        answer = await server.exchange(GET.replace(b"/any", b"/refuse") + LAST)
        assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
        assert b'{"error":"not_authorized","reason":"Login required"}' in answer
        assert answer.count(b"HTTP/1.1 ") == 2

    run(test)


def test_requests_follow_each_other_on_one_connection_pipelined_too() -> None:
    async def test(server: Server) -> None:
        post = b"POST /p%d HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        answer = await server.exchange(GET + post % 1 + GET + post % 2 + LAST)
        assert answer.count(b"HTTP/1.1 200") == 5
        assert [request.path for request in server.requests] == ["/any", "/p1", "/any", "/p2", "/any"]

    run(test)


def test_an_old_client_gets_its_answer_and_is_closed() -> None:
    async def test(server: Server) -> None:
        answer = await server.exchange(b"GET /any HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}")

    run(test)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x00\xa5\r\n\r\n",
        b"AMQP\x00\x00\x09\x01\r\n\r\n",
        b"GET /any\r\n\r\n",
        b"GET /any HTTP/1.1\r\n\r\n",
        b"GET /any HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /any HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /any HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /any HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /any HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /any HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_next_client_served(request_bytes: bytes) -> None:
    async def test(server: Server) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            answer = await server.exchange(request_bytes)
            assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501"))
            assert b"Connection: close" in answer
        assert (await server.get())[0] == 200

    run(test)


def test_nothing_of_a_request_is_repeated_by_a_refusal() -> None:
    async def test(server: Server) -> None:
        for target in ("/refuse?<script>", "/fail?<script>"):
            _, headers, body = await server.get(target)
            assert b"script" not in body
            assert not any("script" in value for value in headers.values())

    run(test)


def test_clients_that_hang_up_anywhere_harm_nobody() -> None:
    async def test(server: Server) -> None:
        whole = b"POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        for length in range(len(whole) + 1):
            stream = await trio.open_tcp_stream(*server.address)
            await stream.send_all(whole[:length])
            await stream.aclose()
        assert (await server.get())[0] == 200

    run(test)


def test_a_head_that_does_not_end_is_cut() -> None:
    async def slow(stream: MemoryStream) -> None:
        await stream.send_all(b"GET /any HTTP/1.1\r\n")
        # a byte now and then does not help
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for _ in range(100):
                await trio.sleep(http_module.REQUEST_TIMEOUT_S / 20)
                await stream.send_all(b"X")

    took = converse(never, slow)
    assert http_module.REQUEST_TIMEOUT_S <= took < 10 * http_module.REQUEST_TIMEOUT_S


def test_a_connection_on_which_nothing_is_asked_ends() -> None:
    async def silent(stream: MemoryStream) -> None:
        assert await received(stream) == b""

    assert converse(never, silent) == pytest.approx(http_module.IDLE_TIMEOUT_S)


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_a_body_may_come_in_pieces_or_chunks() -> None:
    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(b"POST /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhello")
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(b"world")
        assert b'"body_bytes": 10' in b"".join([chunk async for chunk in stream])
        chunked = b"POST /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert b'"body_bytes": 7' in await server.exchange(chunked + b"3\r\nabc\r\n4\r\nabcd\r\n0\r\n\r\n")

    run(test)


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_over_the_limit_is_refused_while_it_comes(framing: str) -> None:
    """Before it has come whole: the rest is never sent."""

    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        if framing == "length":
            await stream.send_all(b"POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
            await stream.send_all(b"x" * 100_001)
        else:
            await stream.send_all(b"POST /any HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            await stream.send_all(b"30d41\r\n" + b"x" * 100_001)
        status, _, body = parsed(bytes(await stream.receive_some()))
        assert status == 413
        assert json.loads(body) == {"error": "payload_too_large", "reason": "a request may have 100000 bytes"}

    run(test)


def test_no_body_is_read_for_somebody_who_is_refused() -> None:
    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(
            b"POST /refuse HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"
        )
        assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 401 ")  # and no 100 before it

    run(test)


def test_a_small_body_that_nobody_wanted_is_thrown_away_and_the_connection_goes_on() -> None:
    async def test(server: Server) -> None:
        head = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        answer = await server.exchange(head % 5 + b"hello" + LAST)
        assert answer.count(b"HTTP/1.1 ") == 2

    run(test)


def test_a_client_that_waits_for_100_continue_gets_it_when_its_body_is_wanted() -> None:
    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert b" 100 " in await stream.receive_some()
        await stream.send_all(b"hi")
        assert b'"body_bytes": 2' in b"".join([chunk async for chunk in stream])

    run(test)


def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def read(request: Request) -> Response:
        await request.read_body(100)
        raise AssertionError("there was none")

    answers: list[bytes] = []

    async def slow(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        answers.append(await received(stream))

    took = converse(read, slow)
    assert answers[0].startswith(b"HTTP/1.1 408 ")
    assert took <= http_module.HANDLER_TIMEOUT_S + http_module.REQUEST_TIMEOUT_S


def test_a_body_that_is_cut_short_is_malformed() -> None:
    async def read(request: Request) -> Response:
        await request.read_body(100)
        raise AssertionError("there was none")

    answers: list[bytes] = []

    async def short(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        await stream.send_eof()
        answers.append(await received(stream))

    converse(read, short)
    assert answers[0].startswith(b"HTTP/1.1 400 ")


def test_all_bodies_together_have_a_budget_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "BODIES_BYTES_MAX", 150)
    head = b"POST /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n"

    async def main() -> None:
        budget = BodyBudget()
        nursery_of_server: trio.Nursery

        async def read(request: Request) -> Response:
            return Response(200, str(len(await request.read_body(1000))).encode())

        async def begin(data: bytes) -> MemoryStream:
            stream, server_end = memory_pair()
            nursery_of_server.start_soon(conversation(server_end, read, budget).run)
            await stream.send_all(data)
            await trio.testing.wait_all_tasks_blocked()
            return stream

        async with trio.open_nursery() as nursery_of_server:
            first = await begin(head + b"x" * 99)
            assert bytes(await (await begin(head + b"x" * 100)).receive_some()).startswith(b"HTTP/1.1 503 ")
            await first.send_all(b"x")
            assert bytes(await first.receive_some()).startswith(b"HTTP/1.1 200 ")
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                assert bytes(await (await begin(head + b"x" * 100)).receive_some()).startswith(b"HTTP/1.1 200 ")

    trio.run(main)


# --- handlers ---------------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_is_answered_with_500_and_the_next_request_works() -> None:
    async def test(server: Server) -> None:
        answer = await server.exchange(GET.replace(b"/any", b"/fail") + LAST)
        first, second = answer.split(b"HTTP/1.1 ")[1:]
        assert first.startswith(b"500 ") and b'"error":"internal_error"' in first and b"secret" not in first
        assert second.startswith(b"200 ")

    run(test)


def test_a_handler_that_takes_too_long_is_cancelled_and_the_connection_goes_on() -> None:
    calls: list[str] = []
    answers: list[bytes] = []

    async def hang(request: Request) -> Response:
        calls.append(request.path)
        if len(calls) == 1:
            await trio.sleep_forever()
        return Response(200)

    async def ask(stream: MemoryStream) -> None:
        await stream.send_all(GET + LAST)
        answers.append(await received(stream))

    took = converse(hang, ask)
    assert took == pytest.approx(http_module.HANDLER_TIMEOUT_S)
    assert answers[0].startswith(b"HTTP/1.1 503 ") and b"the request took too long" in answers[0]
    assert answers[0].count(b"HTTP/1.1 200 ") == 1


def test_a_client_that_reads_no_answer_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        async def large(request: Request) -> Response:
            return Response(200, b"x" * 1000)

        server_end, client_end = trio.testing.lockstep_stream_pair()
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client_end.send_all, GET)  # and what comes is not read
            await conversation(server_end, large, BodyBudget()).run()
        assert trio.current_time() - start == pytest.approx(http_module.HANDLER_TIMEOUT_S)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- listening --------------------------------------------------------------------------------------------------------


def test_more_connections_than_places_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "CONNECTIONS_MAX", 2)

    async def test(server: Server) -> None:
        held = [await trio.open_tcp_stream(*server.address) for _ in range(2)]
        for stream in held:
            await stream.send_all(GET)
            assert b" 200 " in await stream.receive_some()
        third = await trio.open_tcp_stream(*server.address)
        assert await third.receive_some() == b""
        await held[0].aclose()
        while True:
            with contextlib.suppress(trio.BrokenResourceError):
                if b" 200 " in await server.exchange(LAST):
                    return

    run(test)


def test_a_port_in_use_is_one_clear_line() -> None:
    async def test(server: Server) -> None:
        host, port = server.address
        with pytest.raises(StartError) as caught:
            await serve_http("https", host, port, never, None)
        assert str(caught.value) == f"cannot listen on {host}:{port} (https): the port is in use"

    run(test)


def test_a_host_that_does_not_exist_is_one_clear_line() -> None:
    async def main() -> None:
        with pytest.raises(StartError, match=r"^cannot listen on 192\.0\.2\.1:0 \(http\): this machine does not"):
            await serve_http("http", "192.0.2.1", 0, never, None)

    trio.run(main)


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def test_over_tls_requests_know_that_they_are(authority: trustme.CA, server_context: ssl.SSLContext) -> None:
    async def main() -> None:
        client = ssl.create_default_context()
        authority.configure_trust(client)
        with trio.fail_after(30):
            async with running(context=server_context) as server:
                plain = await trio.open_tcp_stream(*server.address)
                stream = trio.SSLStream(plain, client, server_hostname="localhost", https_compatible=True)
                await stream.send_all(LAST)
                answer = b"".join([bytes(chunk) async for chunk in stream])
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert server.requests[0].is_tls

    trio.run(main)


def test_peers_without_tls_and_peers_that_say_nothing_do_not_hold_others_up(
    authority: trustme.CA, server_context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        client = ssl.create_default_context()
        authority.configure_trust(client)
        with trio.fail_after(30):
            async with running(context=server_context) as server:
                silent = await trio.open_tcp_stream(*server.address)
                with contextlib.suppress(trio.BrokenResourceError):
                    assert b"HTTP/1.1 200" not in await server.exchange(LAST)
                plain = await trio.open_tcp_stream(*server.address)
                stream = trio.SSLStream(plain, client, server_hostname="localhost", https_compatible=True)
                await stream.send_all(LAST)
                assert b"HTTP/1.1 200" in b"".join([bytes(chunk) async for chunk in stream])
                # and the silent one ends when the time for a handshake is over
                assert await silent.receive_some() == b""

    monkeypatch.setattr(http_module, "TLS_TIMEOUT_S", 0.3)
    trio.run(main)
