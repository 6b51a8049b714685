"""Requests and answers over HTTP: heads, and handlers that fail or take too long."""

from __future__ import annotations

import contextlib
import json

import h11
import pytest
import trio
import trio.testing
from unit.mgmt_plugin.http_peers import (
    GET,
    LAST,
    MemoryStream,
    Server,
    conversation,
    converse,
    never,
    received,
    run,
)

from warren.mgmt_plugin.http import server as http_module
from warren.mgmt_plugin.http.server import (
    BodyBudget,
    Request,
    Response,
)

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
        # and the connection continues
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


def test_a_target_may_be_a_whole_uri_as_it_is_for_a_proxy() -> None:
    async def test(server: Server) -> None:
        for target in (b"http://other:80/any?a=b", b"HTTPS://other:80/any?a=b"):
            answer = await server.exchange(GET.replace(b"/any", target) + LAST)
            assert answer.count(b"HTTP/1.1 200") == 2
        await server.exchange(GET.replace(b"/any", b"http://other:80") + LAST)
        asked = [each for each in server.requests if each.headers["host"] == "other:80"]
        assert [(each.path, each.query) for each in asked] == [("/any", "a=b"), ("/any", "a=b"), ("/", "")]

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
        b"POST /any HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /any HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\nCONTENT-LENGTH: 5\r\n\r\nhello" + GET,
    ],
)
def test_what_is_not_http_is_refused_and_the_next_client_served(request_bytes: bytes) -> None:
    async def test(server: Server) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            answer = await server.exchange(request_bytes)
            assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501"))
            assert b"Connection: close" in answer
            assert answer.count(b"HTTP/1.1 ") == 1
        assert (await server.get())[0] == 200

    run(test)


@pytest.mark.parametrize(
    "lines",
    [b"a:\r\n" * 3000, b"X: y\r\n" * (http_module.HEADERS_MAX + 2), b"Cookie: " + b'"' * 17_000 + b"\r\n"],
)
def test_a_head_with_too_much_in_it_is_refused_before_it_is_taken_apart(
    lines: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    receive_data = h11.Connection.receive_data

    def noted(protocol: h11.Connection, data: bytes) -> None:
        given.append(len(data))
        receive_data(protocol, data)

    monkeypatch.setattr(h11.Connection, "receive_data", noted)

    async def test(server: Server) -> None:
        answer = await server.exchange(b"GET /any HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert given == [] and server.requests == []

    run(test)


def test_as_many_headers_as_there_may_be_are_read() -> None:
    async def test(server: Server) -> None:
        lines = b"X: y\r\n" * (http_module.HEADERS_MAX - 2)
        answer = await server.exchange(b"GET /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + lines + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")

    run(test)


def test_heads_and_bodies_may_come_byte_by_byte_and_all_at_once() -> None:
    post = b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    whole = GET + post + GET.replace(b"\r", b"") + post + LAST

    async def test(server: Server) -> None:
        for piece in (1, 7, len(whole)):
            server.requests.clear()
            stream = await trio.open_tcp_stream(*server.address)
            async with trio.open_nursery() as nursery:

                async def send(stream: trio.SocketStream, piece: int) -> None:
                    for at in range(0, len(whole), piece):
                        await stream.send_all(whole[at : at + piece])

                nursery.start_soon(send, stream, piece)
                answer = b"".join([chunk async for chunk in stream])
            assert answer.count(b"HTTP/1.1 200") == 5
            assert [request.path for request in server.requests] == ["/any", "/p", "/any", "/p", "/any"]

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


# --- handlers ---------------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_is_answered_with_500_and_the_next_request_works() -> None:
    async def test(server: Server) -> None:
        answer = await server.exchange(GET.replace(b"/any", b"/fail") + LAST)
        first, second = answer.split(b"HTTP/1.1 ")[1:]
        assert first.startswith(b"500 ") and b'"error":"internal_error"' in first and b"secret" not in first
        assert second.startswith(b"200 ")

    run(test)


def test_a_defect_in_one_connection_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in a connection it is: here in its answer, which a handler has given a header that cannot be sent."""
    told: list[str] = []

    class Noted:
        def error(self, text: str, *, exception: Exception) -> None:
            told.append(f"{text} {exception!r}")

    monkeypatch.setattr(http_module, "log", Noted())

    async def test(server: Server) -> None:
        async def broken(request: Request) -> Response:
            return (
                Response(200, headers=(("X", "line\nbreak"),)) if request.path == "/any" else await server.echo(request)
            )

        server.respond = broken
        other = await trio.open_tcp_stream(*server.address)
        await other.send_all(GET.replace(b"/any", b"/other"))
        assert b" 200 " in await other.receive_some()
        assert await server.exchange(GET) == b""
        await other.send_all(GET.replace(b"/any", b"/other"))
        assert b" 200 " in await other.receive_some()
        assert (await server.get("/other"))[0] == 200

    run(test)
    assert len(told) == 1 and "the connection is closed" in told[0] and "Protocol" in told[0]


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
        assert trio.current_time() - start == pytest.approx(http_module.UNREAD_TIMEOUT_S)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_client_of_amqp_is_told_at_once_where_it_is() -> None:
    async def talk(stream: MemoryStream) -> None:
        await stream.send_all(b"AMQP\x00\x00\x09\x01")
        answers.append(await received(stream))

    answers: list[bytes] = []
    took_s = converse(never, talk)
    assert took_s == 0
    assert answers[0].startswith(b"HTTP/1.1 400 ") and b"AMQP clients use another one" in answers[0]
