"""GET /health over real sockets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from warren.server import http as http_module
from warren.server.errors import StartError
from warren.server.http import Health, serve_http


class Server:
    """A running listener and the health it reports."""

    def __init__(self) -> None:
        self.health = Health(True)
        self.address = ("", 0)

    async def exchange(self, request: bytes) -> bytes:
        """Send bytes, then read until the server closes."""
        stream = await trio.open_tcp_stream(*self.address)
        async with stream:
            await stream.send_all(request)
            return b"".join([chunk async for chunk in stream])

    async def get(self, target: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        answer = await self.exchange(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return int(status.split()[1]), headers, body


@contextlib.asynccontextmanager
async def running(host: str = "127.0.0.1") -> AsyncIterator[Server]:
    server = Server()
    async with trio.open_nursery() as nursery:
        server.address = await nursery.start(serve_http, host, 0, lambda: server.health)
        yield server
        nursery.cancel_scope.cancel()


def run(test: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with running() as server:
                await test(server)

    trio.run(main)


def test_a_healthy_broker_answers_200() -> None:
    async def test(server: Server) -> None:
        status, headers, body = await server.get("/health")
        assert (status, json.loads(body)) == (200, {"status": "ok", "confirm": "durable"})
        assert headers["content-type"] == "application/json"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers

    run(test)


def test_a_broker_that_cannot_work_answers_503_with_the_reason() -> None:
    async def test(server: Server) -> None:
        server.health = Health(False, "the metadata store is unavailable", "os")
        status, _, body = await server.get("/health?verbose")
        assert status == 503
        assert json.loads(body) == {
            "status": "failed",
            "reason": "the metadata store is unavailable",
            "confirm": "os",
        }

    run(test)


def test_head_is_get_without_the_body() -> None:
    async def test(server: Server) -> None:
        status, headers, body = await server.get("/health", "HEAD")
        assert (status, headers["content-length"], body) == (200, "39", b"")

    run(test)


def test_there_is_nothing_else() -> None:
    async def test(server: Server) -> None:
        assert (await server.get("/"))[0] == 404
        assert (await server.get("/health/"))[0] == 404
        status, headers, _ = await server.get("/health", "POST")
        assert (status, headers["allow"]) == (405, "GET, HEAD")

    run(test)


def test_nothing_of_the_request_is_repeated() -> None:
    async def test(server: Server) -> None:
        for target in ("/health?<script>", "/<script>"):
            _, headers, body = await server.get(target)
            assert b"script" not in body
            assert not any("script" in value for value in headers.values())

    run(test)


def test_requests_follow_each_other_on_one_connection_pipelined_too() -> None:
    async def test(server: Server) -> None:
        one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await server.exchange(one + one + last)
        assert answer.count(b"HTTP/1.1 200") == 3

    run(test)


def test_a_body_is_read_and_ignored_up_to_a_bound() -> None:
    async def test(server: Server) -> None:
        head = b"POST /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        assert b" 405 " in await server.exchange(head % 5 + b"hello")
        too_large = 70_000
        assert b" 413 " in await server.exchange(head % too_large + b"x" * too_large)

    run(test)


def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async def test(server: Server) -> None:
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert b" 100 " in await stream.receive_some()
        await stream.send_all(b"hi")
        assert b" 404 " in b"".join([chunk async for chunk in stream])

    run(test)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x00\xa5\r\n\r\n",
        b"AMQP\x00\x00\x09\x01\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_next_client_served(request_bytes: bytes) -> None:
    async def test(server: Server) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            answer = await server.exchange(request_bytes)
            assert answer.startswith(b"HTTP/1.1 4")
            assert b"Connection: close" in answer
        assert (await server.get("/health"))[0] == 200

    run(test)


def test_clients_that_hang_up_anywhere_harm_nobody() -> None:
    async def test(server: Server) -> None:
        whole = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        for length in range(len(whole) + 1):
            stream = await trio.open_tcp_stream(*server.address)
            await stream.send_all(whole[:length])
            await stream.aclose()
        assert (await server.get("/health"))[0] == 200

    run(test)


def test_a_request_that_does_not_end_is_cut() -> None:
    async def main() -> None:
        server_end, client_end = trio.testing.memory_stream_pair()
        conversation = http_module._Conversation(server_end, lambda: Health(True))  # type: ignore[arg-type]
        await client_end.send_all(b"GET /health HTTP/1.1\r\n")
        start = trio.current_time()
        await conversation.run()
        assert trio.current_time() - start >= http_module.REQUEST_TIMEOUT_S

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_more_connections_than_places_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "CONNECTIONS_MAX", 2)

    async def test(server: Server) -> None:
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        held = [await trio.open_tcp_stream(*server.address) for _ in range(2)]
        for stream in held:
            await stream.send_all(request)
            assert b" 200 " in await stream.receive_some()
        third = await trio.open_tcp_stream(*server.address)
        assert await third.receive_some() == b""
        await held[0].aclose()
        while True:
            with contextlib.suppress(trio.BrokenResourceError):
                if b" 200 " in await server.exchange(request[:-2] + b"Connection: close\r\n\r\n"):
                    return

    run(test)


def test_a_port_in_use_is_one_clear_line() -> None:
    async def test(server: Server) -> None:
        host, port = server.address
        with pytest.raises(StartError) as caught:
            await serve_http(host, port, lambda: Health(True))
        assert str(caught.value) == f"cannot listen on {host}:{port} (http): the port is in use"

    run(test)


def test_a_host_that_does_not_exist_is_one_clear_line() -> None:
    async def main() -> None:
        with pytest.raises(StartError, match=r"^cannot listen on 192\.0\.2\.1:0 \(http\): this machine does not"):
            await serve_http("192.0.2.1", 0, lambda: Health(True))

    trio.run(main)
