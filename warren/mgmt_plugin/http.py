"""HTTP/1.1 over trio streams: requests in, responses out. The protocol itself is h11's.

1. At most `CONNECTIONS_MAX` connections at a time; a header block over 16 KiB, or a head or body that does not come
   within `REQUEST_TIMEOUT_S`, ends one.
2. A body is read when a handler asks for it, that is for a user who may ask, up to a limit that holds while it comes;
   all bodies together have `BODIES_BYTES_MAX`, which they share with the answers in blocks that are being sent.
3. A handler is cancelled after `HANDLER_TIMEOUT_S`. What it raises is answered with 500 and told to the log; the
   other connections go on.

One task serves a connection from its socket to its answer: while the broker is busy each switch of tasks costs one
of its turns, up to 10 ms, which is why there is no server framework of several tasks a request in between.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

import h11
import msgspec
import trio

from warren.server.errors import listen_error
from warren.server.histogram import Histogram
from warren.server.logs import get_logger

CONNECTIONS_MAX: Final = 512
REQUEST_TIMEOUT_S: Final = 10.0
HANDLER_TIMEOUT_S: Final = 60.0
TLS_TIMEOUT_S: Final = 5.0
IDLE_TIMEOUT_S: Final = 75.0
BODY_BYTES_MAX: Final = 32 << 20
BODIES_BYTES_MAX: Final = 128 << 20

_HEADER_BYTES_MAX: Final = 16 << 10
_READ_BYTES: Final = 64 << 10
# What is not read of a body is drained up to here, so that the connection can go on.
_DRAIN_BYTES_MAX: Final = 64 << 10

log = get_logger("http")


class HttpError(Exception):
    """A request that is refused: `status`, a short `error` for programs, and the `reason` for people."""

    def __init__(self, status: int, error: str, reason: object, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, error, reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers


@dataclass(slots=True)
class Response:
    """An answer; `body` is sent as it is, and behind it the `blocks` of a large one, which is never put together."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    cache_control: str = "no-store"
    blocks: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """How many bytes are sent behind the head."""
        return len(self.body) + sum(map(len, self.blocks))


@dataclass(slots=True)
class Request:
    """The head of a request. Names of `headers` are lower case; `path` and `query` are still percent-encoded."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    peer: str
    is_tls: bool
    read_body: Callable[[int], Awaitable[bytes]] = field(repr=False)


Respond = Callable[[Request], Awaitable[Response]]
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class HttpTraffic:
    """What the ports of HTTP have done, counted. `requests` by their status; `times` from the request to its answer."""

    def __init__(self) -> None:
        self.connections = 0  # open now
        self.requests: dict[int, int] = {}
        self.sent_bytes = 0  # of bodies
        self.times = Histogram()

    def count(self, status: int, sent_bytes: int, seconds: float) -> None:
        """Count an answer that took so long."""
        self.requests[status] = self.requests.get(status, 0) + 1
        self.sent_bytes += sent_bytes
        self.times.observe(seconds)


class BodyBudget:
    """How many bytes all bodies that are being received, and answers in blocks that are being sent, may have."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            HttpError: 503.
        """
        if self._taken + size > BODIES_BYTES_MAX:
            raise HttpError(503, "overloaded", "too many large requests at a time")
        self._taken += size

    def give_back(self, size: int) -> None:
        """They are handled."""
        self._taken -= size


async def serve_http(
    name: str,
    host: str,
    port: int,
    respond: Respond,
    wrap: Callable[[trio.SocketStream], trio.SSLStream[trio.SocketStream]] | None,
    traffic: HttpTraffic | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; started with the host and port bound (`port` 0 chooses one).

    `name` is the setting that errors name, `wrap` puts TLS around a stream, `traffic` counts what happens.

    Raises:
        StartError: the address cannot be bound.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise listen_error(name, host, port, error) from None
    places = trio.CapacityLimiter(CONNECTIONS_MAX)
    budget = BodyBudget()
    counted = HttpTraffic() if traffic is None else traffic

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                places.acquire_on_behalf_of_nowait(stream)
            except trio.WouldBlock:
                return
            counted.connections += 1
            try:
                await _converse(stream, wrap, respond, budget, counted)
            finally:
                counted.connections -= 1
                places.release_on_behalf_of(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        bound: tuple[str, int] = listeners[0].socket.getsockname()[:2]
        task_status.started(bound)


async def _converse(
    plain: trio.SocketStream,
    wrap: Callable[[trio.SocketStream], trio.SSLStream[trio.SocketStream]] | None,
    respond: Respond,
    budget: BodyBudget,
    traffic: HttpTraffic,
) -> None:
    try:
        peer = str(plain.socket.getpeername()[0])
        stream: Stream = plain
        if wrap is not None:
            stream = wrap(plain)
            with trio.move_on_after(TLS_TIMEOUT_S) as timeout:
                await stream.do_handshake()
            if timeout.cancelled_caught:
                return
        await Conversation(stream, peer, wrap is not None, respond, budget, traffic).run()
    except (trio.BrokenResourceError, OSError):
        return  # the peer is gone


class Conversation:
    """One connection: requests answered one after the other."""

    def __init__(
        self, stream: Stream, peer: str, is_tls: bool, respond: Respond, budget: BodyBudget, traffic: HttpTraffic
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._is_tls = is_tls
        self._respond = respond
        self._budget = budget
        self._traffic = traffic
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES_MAX)
        self._taken = 0

    async def run(self) -> None:
        """Answer until the peer has no more, or breaks the rules."""
        protocol = self._protocol
        try:
            while True:
                with trio.move_on_after(IDLE_TIMEOUT_S) as idle:
                    await self._receive()
                if idle.cancelled_caught:
                    return
                head: h11.Request | None = None
                with trio.move_on_after(REQUEST_TIMEOUT_S):
                    head = await self._maybe_head()
                if head is None:
                    return
                try:
                    if not await self._answer(head):
                        return
                finally:
                    self._budget.give_back(self._taken)
                    self._taken = 0
                if protocol.our_state is not h11.DONE or not await self._drained():
                    return
                protocol.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                with trio.move_on_after(REQUEST_TIMEOUT_S):
                    refusal = HttpError(
                        error.error_status_hint, "bad_request", "malformed request", (("Connection", "close"),)
                    )
                    await self._send(error_response(refusal), "GET")

    async def _receive(self) -> None:
        """Wait for the first bytes of the next request, unless they came with the last one."""
        if not self._protocol.trailing_data[0]:
            self._protocol.receive_data(bytes(await self._stream.receive_some(_READ_BYTES)))

    async def _next_event(self) -> Any:
        while True:
            event = self._protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._protocol.they_are_waiting_for_100_continue:
                proceed = self._protocol.send(h11.InformationalResponse(status_code=100, headers=[]))
                await self._stream.send_all(proceed or b"")
            self._protocol.receive_data(bytes(await self._stream.receive_some(_READ_BYTES)))

    async def _maybe_head(self) -> h11.Request | None:
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            return None
        # The protocol's own limit is for heads that are incomplete: this one may have come in one piece.
        size = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
        if size > _HEADER_BYTES_MAX:
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        return event

    async def _answer(self, head: h11.Request) -> bool:
        """Answer one request; False when the peer did not take the answer, of which a part may be under way."""
        method = head.method.decode("ascii")
        path, _, query = head.target.decode("ascii").partition("?")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        request = Request(method, path, query, headers, self._peer, self._is_tls, self._read_body)
        response: Response | None = None
        began_s = time.perf_counter()
        with trio.move_on_after(HANDLER_TIMEOUT_S):
            try:
                response = await self._respond(request)
            except HttpError as error:
                response = error_response(error)
            except (h11.RemoteProtocolError, trio.BrokenResourceError):
                raise
            except Exception as error:
                # A defect of ours, met by one request: the others go on.
                log.error("internal error, the request is answered with 500", path=path, exception=error)
                response = error_response(HttpError(500, "internal_error", "see the log of the broker"))
        if response is None:
            response = error_response(HttpError(503, "timeout", "the request took too long"))
        if response.blocks:
            try:
                self._budget.take(response.size)
                self._taken += response.size
            except HttpError as error:
                response = error_response(error)
        sent_bytes = 0 if method == "HEAD" else response.size
        self._traffic.count(response.status, sent_bytes, time.perf_counter() - began_s)
        with trio.move_on_after(HANDLER_TIMEOUT_S):
            await self._send(response, method)
            return True
        return False

    async def _read_body(self, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        with trio.move_on_after(HANDLER_TIMEOUT_S / 2):
            while True:
                event = await self._next_event()
                if isinstance(event, h11.Data):
                    size += len(event.data)
                    if size > limit_bytes:
                        raise HttpError(413, "payload_too_large", f"a request may have {limit_bytes} bytes")
                    self._budget.take(len(event.data))
                    self._taken += len(event.data)
                    parts.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    return b"".join(parts)
                else:
                    raise HttpError(400, "bad_request", "the body is incomplete")
        raise HttpError(408, "timeout", "the body did not come in time")

    async def _drained(self) -> bool:
        """Throw away what was not read of the request; False when that is not worth it."""
        size = 0
        with trio.move_on_after(REQUEST_TIMEOUT_S):
            while self._protocol.their_state is h11.SEND_BODY and size <= _DRAIN_BYTES_MAX:
                event = await self._next_event()
                if isinstance(event, h11.Data):
                    size += len(event.data)
        return self._protocol.their_state is h11.DONE

    async def _send(self, response: Response, method: str) -> None:
        protocol = self._protocol
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Cache-Control", response.cache_control),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ]
        if response.status != 204:
            headers.append(("Content-Type", response.content_type))
            headers.append(("Content-Length", str(response.size)))
        reason = HTTPStatus(response.status).phrase.encode()
        data = protocol.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""
        if method != "HEAD" and response.status != 204:
            data += protocol.send(h11.Data(data=response.body)) or b""
            for block in response.blocks:
                await self._stream.send_all(data)
                data = protocol.send(h11.Data(data=block)) or b""
        data += protocol.send(h11.EndOfMessage()) or b""
        await self._stream.send_all(data)


def error_response(error: HttpError) -> Response:
    """Return the answer to a refused request."""
    body = msgspec.json.encode({"error": error.error, "reason": error.reason})
    return Response(error.status, body, headers=error.headers)
