"""A listener of HTTP and its clients, over real sockets and over streams whose time is made up."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import trio
import trio.testing

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
from warren.server.network.tls_stream import TlsStream

GET = b"GET /any HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


MemoryStream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


class Server:
    """A running listener; `respond` gives its answers, `requests` records its requests."""

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

    def wrap(stream: trio.SocketStream) -> TlsStream:
        assert context is not None
        return TlsStream(stream, context)

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
