"""Requests and answers over real sockets, and over streams whose time is made up."""

from __future__ import annotations

import contextlib
import json
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, ClassVar

import h11
import pytest
import trio
import trio.testing
import trustme

from warren.mgmt_plugin.http import permits as permits_module
from warren.mgmt_plugin.http import server as http_module
from warren.mgmt_plugin.http import slots as slots_module
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import (
    BodyBudget,
    Conversation,
    HttpError,
    Load,
    Port,
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
    load = Load()
    load.budget = budget
    port = Port(respond, load)
    place = port.slots.maybe_enter("127.0.0.1", lambda: None)
    assert place is not None
    return Conversation(stream, "127.0.0.1", False, port, place)


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
        assert json.loads(body) == {
            "error": "payload_too_large",
            "reason": "a request body may have at most 100000 bytes",
        }

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


def test_a_body_has_to_go_on_coming() -> None:
    """A byte now and then holds no place and no memory for long."""

    async def read(request: Request) -> Response:
        await request.read_body(1000)
        raise AssertionError("it has not ended")

    answers: list[bytes] = []

    async def trickle(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for _ in range(1000):
                await trio.sleep(0.1)
                await stream.send_all(b"x")
        answers.append(await received(stream))

    took = converse(read, trickle)
    assert answers[0].startswith(b"HTTP/1.1 408 ")
    assert took <= 3 * http_module.PROGRESS_TIMEOUT_S


def test_a_body_that_comes_slowly_but_steadily_is_read() -> None:
    size = 20 * http_module.PROGRESS_BYTES
    piece = size // 20
    answers: list[bytes] = []

    async def read(request: Request) -> Response:
        return Response(200, b"%d" % len(await request.read_body(size)))

    async def send(stream: MemoryStream) -> None:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(20):
            await trio.sleep(0.25 * http_module.PROGRESS_TIMEOUT_S)
            await stream.send_all(b"x" * piece)
        answers.append(await received(stream))

    converse(read, send)
    assert answers[0].endswith(b"%d" % size)


def chunked(body: bytes, size: int) -> bytes:
    """Return a request whose body is in chunks of `size` bytes."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_others_have_their_turn_between_the_chunks_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.mgmt_plugin.http.scheduler.SLICE_S", -1.0)  # every chunk is long work
    chunks = 5000
    turns = 0

    async def main() -> None:
        async def read(request: Request) -> Response:
            before = turns
            await request.read_body(chunks)
            return Response(200, b"%d" % (turns - before))

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        client_end, server_end = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await client_end.send_all(chunked(b"x" * chunks, 1))
            await conversation(server_end, read, BodyBudget()).run()
            await server_end.aclose()
            assert int((await received(client_end)).rpartition(b"\r\n")[2]) >= chunks
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_long_work_of_one_user_delays_the_work_of_another_by_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.mgmt_plugin.http.scheduler.SLICE_S", -1.0)  # whatever gives way is long work
    crowd, turns = 50, 40

    async def test(server: Server) -> None:
        pieces = 0

        async def work(request: Request) -> Response:
            nonlocal pieces
            user = request.path[1:]
            request.identified(user)
            if user == "modest":
                before = pieces
                for _ in range(turns):
                    await give_way()
                return Response(200, b"%d" % (pieces - before))
            while True:
                pieces += 1
                await give_way()

        server.respond = work
        async with trio.open_nursery() as nursery:
            for _ in range(crowd):
                nursery.start_soon(server.get, "/greedy")
            while len(server.requests) < crowd:
                await trio.sleep(0)
            _, _, body = await server.get("/modest")
            nursery.cancel_scope.cancel()
        # All fifty would have had a turn for each of ours. A round has two, and we may miss every other one.
        assert turns // 4 <= int(body) <= 5 * turns

    run(test)


def test_a_body_in_tiny_chunks_takes_its_own_size_in_memory() -> None:
    body = bytes(range(256)) * 600

    async def main() -> None:
        peak = 0

        async def read(request: Request) -> Response:
            nonlocal peak
            tracemalloc.start()
            try:
                assert await request.read_body(len(body)) == body
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            return Response(200)

        client_end, server_end = memory_pair()
        await client_end.send_all(chunked(body, 3))
        await conversation(server_end, read, BodyBudget()).run()
        # The body, and what has come of its chunks and is not taken apart yet.
        assert peak < 2 * len(body) + 6 * http_module._READ_BYTES

    trio.run(main)


def test_all_bodies_together_have_a_budget_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "BODIES_BYTES_MAX", 300)
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


def test_an_account_has_at_most_what_is_left_for_all_others() -> None:
    budget = BodyBudget()
    unit = http_module.BODIES_BYTES_MAX // 16

    def taken(account: str) -> int:
        count = 0
        with contextlib.suppress(HttpError):
            while True:
                budget.take(account, unit)
                count += 1
        return count

    assert taken("user a") == 8
    assert taken("user b") == 4
    assert taken("user c") == 2
    with pytest.raises(HttpError) as caught:
        budget.take("user a", unit)
    assert (caught.value.status, caught.value.headers) == (503, (("Retry-After", "1"),))
    for account, count in (("user a", 8), ("user b", 4), ("user c", 2)):
        budget.give_back(account, count * unit)
    assert not budget._of_account and budget._taken == 0


def test_the_largest_answer_there_can_be_has_room_when_nobody_else_has_any() -> None:
    largest = http_module.BODIES_BYTES_MAX
    budget = BodyBudget(largest)
    budget.take("user a", largest)
    with pytest.raises(HttpError):
        budget.take("user a", 1)
    budget.give_back("user a", largest)


def test_the_account_of_a_request_is_its_user_and_everything_is_given_back() -> None:
    budget = BodyBudget()

    async def read(request: Request) -> Response:
        if request.path == "/known":
            request.identified("alice")
        await request.read_body(100)
        account = "user alice" if request.path == "/known" else "127.0.0.1"
        assert budget._of_account == {account: 5}
        raise HttpError(400, "bad_request", "no")

    async def ask(stream: MemoryStream) -> None:
        post = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        await stream.send_all(post % b"/known" + post % b"/other")
        await stream.send_eof()
        assert (await received(stream)).count(b"HTTP/1.1 400 ") == 2

    async def main() -> None:
        client_end, server_end = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, client_end)
            await conversation(server_end, read, budget).run()
            await server_end.aclose()

    trio.run(main)
    assert not budget._of_account and budget._taken == 0


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


# --- answers that are made while they are sent -----------------------------------------------------------------------


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
        # What somebody asks for with HEAD is begun to be made, and not sent.
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


# --- listening --------------------------------------------------------------------------------------------------------


def test_idle_connections_make_room_for_new_ones() -> None:
    """Six hundred that ask nothing, or are silent after an answer, or do not end their heads: everybody is served."""

    async def test(server: Server) -> None:
        held = []
        for number in range(600):
            stream = await trio.open_tcp_stream(*server.address)
            held.append(stream)
            if number % 3 == 1:
                await stream.send_all(GET)
                assert b" 200 " in await stream.receive_some()
            elif number % 3 == 2:
                await stream.send_all(GET[:20])
        for _ in range(3):
            assert (await server.get())[0] == 200
            assert (await server.get("/health"))[0] == 200
        assert await held[0].receive_some() == b""  # the one that was idle for the longest time

    run(test)


def test_requests_of_users_keep_their_places_and_health_is_answered_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots_module, "TOTAL", 8)
    monkeypatch.setattr(slots_module, "PER_ADDRESS", 6)
    monkeypatch.setattr(slots_module, "RESERVED", 2)

    async def test(server: Server) -> None:
        go_on = trio.Event()
        asked = 0

        async def respond(request: Request) -> Response:
            nonlocal asked
            if request.path == "/any":
                request.identified("alice")
                asked += 1
                await go_on.wait()
            return Response(200, b"done")

        server.respond = respond
        async with trio.open_nursery() as nursery:
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append(await server.exchange(LAST))

            for _ in range(6):
                nursery.start_soon(ask)
            while asked < 6:
                await trio.sleep(0)
            status, headers, _ = await server.get("/other")
            assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
            silent = [await trio.open_tcp_stream(*server.address) for _ in range(20)]
            assert (await server.get("/health"))[0] == 200
            go_on.set()
        assert [answer.endswith(b"done") for answer in answers] == [True] * 6
        for stream in silent:
            await stream.aclose()
        assert (await server.get("/other"))[0] == 200

    run(test)


def test_connections_that_say_nothing_start_no_tasks() -> None:
    """(1)"""

    class Spawned(trio.abc.Instrument):
        names: ClassVar[list[str]] = []

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.names.append(task.name)

    async def test(server: Server) -> None:
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        silent = [await trio.open_tcp_stream(*server.address) for _ in range(20)]
        assert (await server.get("/behind-them"))[0] == 200
        assert [name.rpartition(".")[2] for name in spawned.names].count("once") == 1
        for stream in silent:
            await stream.aclose()

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
