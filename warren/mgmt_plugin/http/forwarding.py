"""A request that another node answers: its head and body go there part by part, and its answer comes back so.

1. Bodies and answers are not kept: memory holds one part of each at a time, as much as was received at once.
2. The answer may come before all of the body is there; then the rest is not sent.
3. An answer that breaks off breaks off for the client, too: the client cannot mistake a part of it for all of it.
4. Headers of the connection stay with it (RFC 9110, 7.6.1); all others are passed on unchanged.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import h11
import trio

from warren.mgmt_plugin.http.node_stream import NodeTlsStream, node_stream
from warren.mgmt_plugin.http.server import HttpError, Request, Response

READ_BYTES: Final = 64 << 10
_OF_THE_CONNECTION: Final = frozenset(
    {"connection", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
_NO_ANSWER: Final = "the leader has not answered: repeat the request if it may be made twice"


async def forward(request: Request, sock: socket.socket) -> Response:
    """Forward a request to the node at the other end of `sock`; its answer is still under way when this returns.

    Raises:
        HttpError: it does not answer, or the body does not come.
    """
    exchange = _Exchange(node_stream(sock), sock)
    try:
        return await exchange.begin(request)
    except (trio.BrokenResourceError, h11.RemoteProtocolError, OSError):
        exchange.close()
        raise HttpError(502, "bad_gateway", _NO_ANSWER) from None
    except BaseException:
        exchange.close()
        raise


class _Exchange:
    """One request and its answer."""

    def __init__(self, stream: trio.SocketStream | NodeTlsStream, sock: socket.socket) -> None:
        self._stream = stream
        self._sock = sock
        self._protocol = h11.Connection(h11.CLIENT)
        self._refusal: HttpError | None = None  # the body does not come

    async def begin(self, request: Request) -> Response:
        """Send the request, and return the head of the answer."""
        options = {name.strip().lower() for name in request.headers.get("connection", "").split(",")}
        left_out = _OF_THE_CONNECTION | options
        kept = [(name, value) for name, value in request.headers.items() if name not in left_out]
        # As bytes: values may have any of Latin-1.
        headers = [(name.encode(), value.encode("latin-1")) for name, value in kept]
        if "transfer-encoding" in request.headers:
            headers.append((b"transfer-encoding", b"chunked"))
        if "host" not in request.headers:
            headers.append((b"host", b""))  # HTTP/1.0 need not have it
        target = f"{request.path}?{request.query}" if request.query else request.path
        await self._send(h11.Request(method=request.method, target=target, headers=headers))
        answer = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_body, request, nursery.cancel_scope)
            answer = await self._maybe_answer()
            nursery.cancel_scope.cancel()
        if self._refusal is not None:
            raise self._refusal
        if answer is None:
            raise h11.RemoteProtocolError("the answer is incomplete")
        found = [(name.decode("ascii"), value.decode("latin-1")) for name, value in answer.headers]
        answered = tuple((name, value) for name, value in found if name not in _OF_THE_CONNECTION)
        return Response(answer.status_code, headers=answered, source=self)

    async def _maybe_answer(self) -> h11.Response | None:
        """Return the head of the answer, None when it does not come."""
        try:
            event = await self._next()
            while isinstance(event, h11.InformationalResponse):
                event = await self._next()
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            return None
        return event if isinstance(event, h11.Response) else None

    async def part(self) -> bytes:
        """Return the next part of the answer."""
        try:
            event = await self._next()
        except h11.RemoteProtocolError as error:
            raise trio.BrokenResourceError from error
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    def close(self) -> None:
        """Close the connection to the node."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
        self._sock.close()

    async def _send_body(self, request: Request, scope: trio.CancelScope) -> None:
        try:
            while part := await request.body_part():
                await self._send(h11.Data(data=part))
            await self._send(h11.EndOfMessage())
        except HttpError as refusal:
            self._refusal = refusal
            scope.cancel()
        except h11.RemoteProtocolError:
            self._refusal = HttpError(400, "bad_request", "the body is malformed, or incomplete")
            scope.cancel()
        except trio.BrokenResourceError:
            return  # the answer may be there all the same

    async def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        await self._stream.send_all(self._protocol.send(event) or b"")

    async def _next(self) -> Any:
        while True:
            event = self._protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._protocol.receive_data(bytes(await self._stream.receive_some(READ_BYTES)))
