"""The HTTP listener: GET /health, for load balancers and service managers.

1. Without a password it tells only whether the broker can do its work, and if not, in one sentence why; and what a
   confirm of this node promises.
2. At most `CONNECTIONS_MAX` connections at a time; a header block over 16 KiB, a body over 64 KiB, or a
   request that takes longer than `REQUEST_TIMEOUT_S` ends one.
3. Nothing of the request is repeated in a response.

HTTP itself is h11's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final

import h11
import trio

from warren.server.errors import listen_error

CONNECTIONS_MAX: Final = 128
REQUEST_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 75.0

_HEADER_BYTES_MAX: Final = 16 << 10
_BODY_BYTES_MAX: Final = 64 << 10
_READ_BYTES: Final = 8 << 10
_CLOSE: Final = (("Connection", "close"),)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the broker can do its work; `reason` says in one sentence why not.

    `confirm` is what a confirm promises: ``durable`` or ``os``, or ``mixed`` when that differs between vhosts.
    """

    ok: bool
    reason: str = ""
    confirm: str = "durable"


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    document: dict[str, str]
    headers: tuple[tuple[str, str], ...] = ()


async def serve_http(
    host: str,
    port: int,
    health: Callable[[], Health],
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; started with the host and port bound (`port` 0 chooses one).

    Raises StartError when the address cannot be bound.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise listen_error("http", host, port, error) from None
    places = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                places.acquire_on_behalf_of_nowait(stream)
            except trio.WouldBlock:
                return
            try:
                await _Conversation(stream, health).run()
            finally:
                places.release_on_behalf_of(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        bound: tuple[str, int] = listeners[0].socket.getsockname()[:2]
        task_status.started(bound)


class _Conversation:
    """One connection: requests answered one after the other."""

    def __init__(self, stream: trio.SocketStream, health: Callable[[], Health]) -> None:
        self._stream = stream
        self._health = health
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES_MAX)

    async def run(self) -> None:
        try:
            while True:
                with trio.move_on_after(IDLE_TIMEOUT_S) as idle:
                    await self._receive()
                if idle.cancelled_caught:
                    return
                with trio.move_on_after(REQUEST_TIMEOUT_S) as timeout:
                    await self._answer_request()
                if timeout.cancelled_caught or self._protocol.our_state is not h11.DONE:
                    return
                if self._protocol.their_state is not h11.DONE:
                    return
                self._protocol.start_next_cycle()
        except h11.RemoteProtocolError as error:
            with trio.move_on_after(REQUEST_TIMEOUT_S):
                await self._refuse(error.error_status_hint)
        except trio.BrokenResourceError:
            return

    async def _receive(self) -> None:
        """Wait for the first bytes of the next request, unless they came with the last one."""
        if not self._protocol.trailing_data[0]:
            self._protocol.receive_data(await self._stream.receive_some(_READ_BYTES))

    async def _answer_request(self) -> None:
        request: h11.Request | None = None
        body_bytes = 0
        while True:
            received = self._protocol.next_event()
            if received is h11.NEED_DATA:
                if self._protocol.they_are_waiting_for_100_continue:
                    proceed = self._protocol.send(h11.InformationalResponse(status_code=100, headers=[]))
                    await self._stream.send_all(proceed or b"")
                self._protocol.receive_data(await self._stream.receive_some(_READ_BYTES))
            elif isinstance(received, h11.Request):
                request = received
            elif isinstance(received, h11.Data):
                body_bytes += len(received.data)
                if body_bytes > _BODY_BYTES_MAX:
                    await self._respond(_Response(413, {"error": "the request is too large"}, _CLOSE))
                    return
            elif isinstance(received, h11.EndOfMessage):
                assert request is not None
                response = respond(request.method, request.target, self._health)
                await self._respond(response, head_only=request.method == b"HEAD")
                return
            else:
                # The peer closed, or what came before was answered with a close.
                return

    async def _respond(self, response: _Response, *, head_only: bool = False) -> None:
        body = json.dumps(response.document).encode() + b"\n"
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Date", formatdate(usegmt=True)),
            *response.headers,
        ]
        data = self._protocol.send(h11.Response(status_code=response.status, headers=headers)) or b""
        if not head_only:
            data += self._protocol.send(h11.Data(data=body)) or b""
        data += self._protocol.send(h11.EndOfMessage()) or b""
        await self._stream.send_all(data)

    async def _refuse(self, status: int) -> None:
        if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._respond(_Response(status, {"error": "malformed request"}, _CLOSE))


def respond(method: bytes, target: bytes, health: Callable[[], Health]) -> _Response:
    """Answer one request. The only resource is ``/health``: 200 when the broker works, else 503."""
    if target.split(b"?", 1)[0] != b"/health":
        return _Response(404, {"error": "not found"})
    if method not in (b"GET", b"HEAD"):
        return _Response(405, {"error": "method not allowed"}, (("Allow", "GET, HEAD"),))
    state = health()
    if state.ok:
        return _Response(200, {"status": "ok", "confirm": state.confirm})
    return _Response(503, {"status": "failed", "reason": state.reason, "confirm": state.confirm})
