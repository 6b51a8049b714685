"""HTTP/1.1 over trio streams: requests in, responses out. The protocol itself is h11's.

1. ``slots.py`` limits the connections; one that has said nothing has no task yet (``newcomers.py``). A head over 16 KiB
   or with more than `HEADERS_MAX` lines, or one that is incomplete after `REQUEST_TIMEOUT_S`, ends the connection.
2. A body is read when a handler asks for it, that is for a user with the permission. A limit holds while it comes;
   `PROGRESS_BYTES` of it have to come in each `PROGRESS_TIMEOUT_S`. All bodies together have `BODIES_BYTES_MAX`, which
   they share with the memory that answers hold until they are sent; a user has at most as much as is left for all
   others. It is more where messages may be so large that half of it would not be enough for one.
3. A handler is cancelled after `HANDLER_TIMEOUT_S`. Its exceptions are logged and answered with 500; any other
   exception is logged and ends its connection. The other connections continue. However a request ends,
   `Request.concluded` is called once, before anything of the answer is sent.
4. A request with both Content-Length and Transfer-Encoding is refused, and its connection closed.
5. Requests begin, and bodies in many small chunks are read, in the turns of ``scheduler.py``. So the rest of the broker
   has its turn after a few milliseconds, whatever number and kind of requests clients send.
6. The bytes that a peer sends take their own size in memory, without an object for each piece of them.
7. An answer in `pieces` is made while the peer takes it: memory holds at most `PART_BYTES` and a piece of a long one.
   It has a permit (``permits.py``), and begins with a status that cannot be changed later: a failure after that cuts
   the connection. A short one, less than `PART_BYTES`, needs no permit and is sent with its length.
8. A peer has to take each part of an answer in `UNREAD_TIMEOUT_S`, and all of it in `ANSWER_TIMEOUT_S`. The work for a
   long answer ends when its peer leaves.

One task serves a connection from its socket to its answer. While the broker is busy each switch of tasks costs one of
its turns, up to 10 ms. A server framework with several tasks for each request would be too slow for that.
"""

from __future__ import annotations

import io
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol

import h11
import msgspec
import trio

from warren.mgmt_plugin.http.newcomers import Newcomer, Newcomers
from warren.mgmt_plugin.http.node_stream import NodeTlsStream, node_stream
from warren.mgmt_plugin.http.permits import Departures, Permits
from warren.mgmt_plugin.http.scheduler import give_way, scheduler, work_for
from warren.mgmt_plugin.http.slots import Slot, SlotPool, Slots, Standing
from warren.server.descriptors import UNLIMITED
from warren.server.histogram import Histogram
from warren.server.logs import get_logger
from warren.server.network.listening import open_sockets
from warren.server.network.peer_address import origin_of
from warren.server.network.tls_stream import TlsStream
from warren.server.setting_kinds import Endpoint
from warren.server.supervision import Supervision

REQUEST_TIMEOUT_S: Final = 10.0
HANDLER_TIMEOUT_S: Final = 60.0
UNREAD_TIMEOUT_S: Final = 20.0
ANSWER_TIMEOUT_S: Final = 600.0
TLS_TIMEOUT_S: Final = 5.0
IDLE_TIMEOUT_S: Final = 75.0
PROGRESS_TIMEOUT_S: Final = 5.0
PROGRESS_BYTES: Final = 16 << 10
BODY_BYTES_MAX: Final = 32 << 20
BODIES_BYTES_MAX: Final = 256 << 20
LOOK_BYTES: Final = 8 << 10  # as much as is measured in one go
PART_BYTES: Final = 128 << 10  # of an answer that is made while it is sent
HEADERS_MAX: Final = 100
HEALTH: Final = ("/health", "/health/live", "/health/ready")  # answered on the reserved slots too
NOT_AMQP: Final = "this is an HTTP port: AMQP clients use another one, 5672 by default"

_HEADER_BYTES_MAX: Final = 16 << 10
_READ_BYTES: Final = 64 << 10
_ABSOLUTE: Final = re.compile(r"https?://([^/?#]*)(.*)", re.I)
# A handshake of TLS takes as long as a head of that size.
_HANDSHAKE_BYTES: Final = 8 << 10
_AMQP: Final = b"AMQP\x00"  # the first bytes of a client of AMQP 0-9-1, and not a method of HTTP
_HEAD_END: Final = re.compile(rb"\n\r?\n")
# The unread rest of a body is drained up to this size: many clients read the answer only when all of it is sent, and
# would find a connection that was reset instead.
_DRAIN_BYTES_MAX: Final = BODY_BYTES_MAX
# Bytes that are already in memory are sent in parts of this size.
_SENT_AT_ONCE: Final = 1 << 20

log = get_logger("http")


class HttpError(Exception):
    """A request that is refused: `status`, a short `error` for programs, and the `reason` for people."""

    def __init__(self, status: int, error: str, reason: object, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, error, reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers


class Source(Protocol):
    """Where an answer comes from that another node has made."""

    async def part(self) -> bytes:
        """Return the next part of the body, nothing at its end.

        Raises:
            trio.BrokenResourceError: the rest of it does not come.
        """

    def close(self) -> None:
        """Close the source."""


@dataclass(slots=True)
class Response:
    """An answer: first `body`, as it is, then the `blocks` of a large one, which are never joined.

    After them come the `pieces`, which are made when the peer has taken everything before them. An empty piece gives
    other work a turn. An answer of another node has its own `headers` only, and comes from its `source`.
    `refusal` gives the reason for an answer other than the requested one, in the words of the body.
    """

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    cache_control: str = "no-store"
    blocks: Sequence[bytes | memoryview] = ()
    pieces: Iterator[bytes] | None = None
    refusal: str = ""
    source: Source | None = None

    @property
    def size(self) -> int:
        """The number of bytes that are sent after the head, without the pieces."""
        return len(self.body) + sum(map(len, self.blocks))


class ReadBody(Protocol):
    """How a handler gets the body of its request."""

    async def __call__(self, limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
        """Return the body; `look` sees each piece of it as it comes, and may raise.

        Raises:
            HttpError: 413, it is larger than `limit_bytes`; 408, it does not come; 503, there are too many.
        """


def _ignore(told: object) -> None:
    """Do nothing."""


async def _go_on() -> None:
    """Wait for nothing."""


async def _nothing() -> bytes:
    return b""


@dataclass(slots=True)
class Request:
    """The head of a request. Names of `headers` are lower case; `path` and `query` are still percent-encoded.

    The handler calls `identified` with the name of the user as soon as the user has logged in. It calls `hold` with the
    additional bytes that are kept until the answer is sent (it raises 503 when there are too many). It calls
    `begin_work` before work that takes long (it waits in line for a permit, which the request has until its handler
    returns, and raises 503 when it gets no permit).

    Within `watched` the handler is cancelled when the peer leaves, as during work that takes long.

    `body_part` returns the body part by part instead of `read_body`, nothing at its end, and raises as that does.

    A caller that wants to know the answer may replace `concluded`. None stands for a request that gets no answer,
    because its peer left or the broker stops.

    `node` is the node that the client asked and that passes the request on; empty: this one.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    peer: str
    is_tls: bool
    read_body: ReadBody = field(repr=False)
    identified: Callable[[str], None] = field(default=_ignore, repr=False)
    hold: Callable[[int], None] = field(default=_ignore, repr=False)
    begin_work: Callable[[], Awaitable[None]] = field(default=_go_on, repr=False)
    watched: Callable[[], AbstractContextManager[None]] = field(default=nullcontext, repr=False)
    body_part: Callable[[], Awaitable[bytes]] = field(default=_nothing, repr=False)
    concluded: Callable[[Response | None], None] = field(default=_ignore, repr=False)
    node: str = ""


Respond = Callable[[Request], Awaitable[Response]]
Stream = trio.SocketStream | TlsStream | NodeTlsStream


class HttpTraffic:
    """Counters of the HTTP ports. `requests` by their status; `times` from the request to its answer."""

    def __init__(self) -> None:
        self.connections = 0  # open now
        self.requests: dict[int, int] = {}
        self.sent_bytes = 0  # of bodies
        self.times = Histogram()

    def opened(self, more: int) -> None:
        """Count connections that were accepted, or -1 for one that was closed."""
        self.connections += more

    def count(self, status: int, sent_bytes: int, seconds: float) -> None:
        """Count an answer that took so long."""
        self.requests[status] = self.requests.get(status, 0) + 1
        self.sent_bytes += sent_bytes
        self.times.observe(seconds)


class BodyBudget:
    """How many bytes all bodies that are being received, and answers that are there and not sent, may have.

    An account, which is a user or an address, has at most as many as are left then: alone half of them, and so at least
    one of `largest_bytes`.
    """

    def __init__(self, largest_bytes: int = 0) -> None:
        self._largest_bytes = largest_bytes
        self._taken = 0
        self._of_account: dict[str, int] = {}

    def take(self, account: str, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            HttpError: 503.
        """
        own = self._of_account.get(account, 0) + size
        if own > max(BODIES_BYTES_MAX, 2 * self._largest_bytes) - self._taken - size:
            raise HttpError(503, "overloaded", "too many large requests at once", (("Retry-After", "1"),))
        self._taken += size
        self._of_account[account] = own

    def give_back(self, account: str, size: int) -> None:
        """Return `size` bytes to the budget: they are handled."""
        self._taken -= size
        own = self._of_account.pop(account, 0) - size
        if own:
            self._of_account[account] = own


class Load:
    """The shared limits of all HTTP ports: `connections_most` open at a time, None: as many as the ports have.

    `largest_bytes`: of a body or an answer that is in memory as a whole.
    """

    def __init__(self, largest_bytes: int = 0, connections_most: int | None = None) -> None:
        self.slots = SlotPool(connections_most)
        self.traffic = HttpTraffic()
        self.budget = BodyBudget(largest_bytes)
        self.work = Permits()
        self.answers = Permits()


@dataclass(frozen=True, slots=True)
class Port:
    """One port: the handler of its requests, its connections, and the limits that it shares with the others."""

    respond: Respond
    load: Load
    slots: Slots = field(init=False)
    departures: Departures = field(default_factory=Departures)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", Slots(self.load.slots))


async def serve_http(
    name: str,
    host: str,
    port: int,
    respond: Respond,
    wrap: Callable[[trio.SocketStream], TlsStream] | None,
    load: Load | None = None,
    tasks: Supervision | None = None,
    descriptors_below: int = UNLIMITED.http_below,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; started with the host and port bound (`port` 0 chooses one).

    `name` is the setting that errors name, `wrap` puts TLS around a stream, `load` is shared with other ports, `tasks`
    has the listeners and connections. A connection with a descriptor from `descriptors_below` on is closed at once.

    Raises:
        StartError: the address cannot be bound.
    """
    listeners = open_sockets(name, Endpoint(host, port))
    port_served = Port(respond, Load() if load is None else load)
    counted = port_served.load.traffic
    supervision = Supervision() if tasks is None else tasks

    async def talk(newcomer: Newcomer) -> None:
        try:
            if newcomer.sock.fileno() < 0:
                return  # its slot was given to another one just now
            async with trio.SocketStream(trio.socket.from_stdlib_socket(newcomer.sock)) as stream:
                await _converse(stream, newcomer, wrap, port_served)
        except Exception as error:
            # A defect of ours, met by one connection: the others continue.
            log.error("internal error, the connection is closed", exception=error)
        finally:
            port_served.slots.leave(newcomer.slot)
            counted.opened(-1)

    def begin(newcomer: Newcomer) -> None:
        nursery.start_soon(supervision.once, f"{name} connection", talk, newcomer)

    patience_s = IDLE_TIMEOUT_S if wrap is None else TLS_TIMEOUT_S
    with Newcomers(port_served.slots, patience_s, descriptors_below, counted.opened, begin) as newcomers:
        try:
            async with trio.open_nursery() as nursery:
                # An error of accepting, above all a lack of descriptors, pauses this listener and nothing else.
                for listener in listeners:
                    accept = partial(newcomers.accept, listener)
                    nursery.start_soon(supervision.keep, f"{name} listener", accept)
                nursery.start_soon(supervision.keep, f"{name} newcomers", newcomers.run)
                nursery.start_soon(supervision.keep, f"{name} departures", port_served.departures.run)
                bound: tuple[str, int] = listeners[0].getsockname()[:2]
                task_status.started(bound)
        finally:
            for listener in listeners:
                listener.close()


async def _converse(
    plain: trio.SocketStream,
    newcomer: Newcomer,
    wrap: Callable[[trio.SocketStream], TlsStream] | None,
    port: Port,
) -> None:
    peer, slot = newcomer.peer, newcomer.slot
    with trio.CancelScope() as scope:
        slot.close = scope.cancel
        try:
            stream: Stream = plain
            if wrap is not None:
                stream = wrap(plain)
                with trio.move_on_after(TLS_TIMEOUT_S) as timeout:
                    await scheduler().begin(slot.address, _HANDSHAKE_BYTES)
                    await stream.do_handshake()
                if timeout.cancelled_caught:
                    return
            await Conversation(stream, peer, wrap is not None, port, slot, plain.socket.fileno()).run()
        except (trio.BrokenResourceError, OSError):
            return  # the peer is gone


async def converse_through_node(sock: socket.socket, peer: str, port: Port, *, is_tls: bool, node: str = "") -> None:
    """Serve a client at the address `peer` that another `node` passes on, and close the socket at the end."""
    slot = port.slots.maybe_enter(origin_of(peer), sock.close)
    if slot is None:
        sock.close()
        return
    port.load.traffic.opened(1)
    try:
        async with node_stream(sock) as stream:
            with trio.CancelScope() as scope:
                slot.close = scope.cancel
                await Conversation(stream, peer, is_tls, port, slot, sock.fileno(), node).run()
    except (trio.BrokenResourceError, OSError):
        return  # the node is gone, or its client
    finally:
        port.slots.leave(slot)
        port.load.traffic.opened(-1)


class Conversation:
    """One connection: requests answered one after the other. `descriptor` is that of its socket, -1 without one.

    `node` is the one that passes it on; empty: this one.
    """

    def __init__(
        self, stream: Stream, peer: str, is_tls: bool, port: Port, slot: Slot, descriptor: int = -1, node: str = ""
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._node = node
        self._is_tls = is_tls
        self._port = port
        self._budget = port.load.budget
        self._slots = port.slots
        self._slot = slot
        self._descriptor = descriptor
        self._protocol = _protocol()
        self._unread = bytearray()  # bytes received and not yet given to the protocol: the next head at least
        self._account = peer
        self._taken = 0
        self._held = 0  # the part of `_taken` that the answer holds
        self._permits: list[Permits] = []  # in which this request has one
        self._answering = trio.CancelScope()

    async def run(self) -> None:
        """Answer until the peer has no more, or breaks the rules."""
        try:
            while True:
                self._account = self._peer
                with trio.move_on_after(IDLE_TIMEOUT_S) as idle:
                    await self._receive()
                if idle.cancelled_caught:
                    return
                head: h11.Request | None = None
                with trio.move_on_after(REQUEST_TIMEOUT_S):
                    head = await self._maybe_head()
                if head is None:
                    return
                self._slots.stand(self._slot, Standing.ASKED)
                try:
                    if not await self._answer(head):
                        return
                finally:
                    self._give_back()
                self._slots.stand(self._slot, Standing.IDLE)
                if not await self._drained() or self._protocol.our_state is not h11.DONE:
                    return
                self._unread[:0] = self._protocol.trailing_data[0]
                self._protocol = _protocol()
        except h11.RemoteProtocolError as error:
            if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                with trio.move_on_after(REQUEST_TIMEOUT_S):
                    reason = NOT_AMQP if str(error) == NOT_AMQP else "malformed request"
                    refusal = HttpError(error.error_status_hint, "bad_request", reason, (("Connection", "close"),))
                    await self._send(error_response(refusal), "GET")

    async def _receive(self) -> None:
        """Wait for the first bytes of the next request, unless they came with the last one."""
        if not self._unread:
            self._unread += await self._stream.receive_some(_READ_BYTES)

    async def _maybe_head(self) -> h11.Request | None:
        """Return the head of the next request, None when the peer has no more.

        The protocol is given a head that is complete and not too large, so it looks at each byte of it once.
        """
        searched = 0
        while (end := _HEAD_END.search(self._unread, searched)) is None:
            if not self._unread:
                return None
            if self._unread[0] < 0x21:
                raise h11.RemoteProtocolError("no request line")  # TLS, for one
            if self._unread.startswith(_AMQP):
                raise h11.RemoteProtocolError(NOT_AMQP)
            if len(self._unread) > _HEADER_BYTES_MAX:
                raise h11.RemoteProtocolError("the request head is too large", error_status_hint=431)
            searched = max(0, len(self._unread) - 2)
            received = await self._stream.receive_some(_READ_BYTES)
            if not received:
                raise h11.RemoteProtocolError("the request head is incomplete")
            self._unread += received
        size = end.end()
        if size > _HEADER_BYTES_MAX or self._unread.count(b"\n", 0, size) > HEADERS_MAX + 2:
            raise h11.RemoteProtocolError("the request head is too large", error_status_hint=431)
        await scheduler().begin(self._slot.address, size)
        self._protocol.receive_data(bytes(self._unread[:size]))
        del self._unread[:size]
        event = self._protocol.next_event()
        assert isinstance(event, h11.Request)
        names = {name for name, _ in event.headers}
        if b"content-length" in names and b"transfer-encoding" in names:
            # A proxy that believes the other one sees other requests than we do (RFC 9112, 6.1).
            raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding are given")
        return event

    async def _next_event(self) -> Any:
        """Return the next piece of the body."""
        while True:
            event = self._protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._protocol.they_are_waiting_for_100_continue:
                proceed = self._protocol.send(h11.InformationalResponse(status_code=100, headers=[]))
                await self._stream.send_all(proceed or b"")
            received = bytes(self._unread) or bytes(await self._stream.receive_some(_READ_BYTES))
            self._unread.clear()
            self._protocol.receive_data(received)

    async def _answer(self, head: h11.Request) -> bool:
        """Answer one request; False when the peer did not take the answer, of which a part may be under way."""
        method = head.method.decode("ascii")
        path, _, query = head.target.decode("ascii").partition("?")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        absolute = _ABSOLUTE.fullmatch(path)
        if absolute is not None:  # its host goes before the Host header (RFC 9112, 3.2.2)
            headers["host"], path = absolute[1], absolute[2] or "/"
        request = Request(
            method,
            path,
            query,
            headers,
            self._peer,
            self._is_tls,
            self._read_body,
            self._identified,
            self._hold,
            self._begin_work,
            self._watched,
            self._body_part,
            node=self._node,
        )
        began_s = time.perf_counter()
        with trio.CancelScope() as self._answering:
            try:
                response = await self._response_to(request)
            except BaseException:
                request.concluded(None)
                raise
            request.concluded(response)
            sent_bytes = 0 if method == "HEAD" else response.size
            self._port.load.traffic.count(response.status, sent_bytes, time.perf_counter() - began_s)
            try:
                with trio.move_on_after(ANSWER_TIMEOUT_S):
                    return await self._send(response, method)
            finally:
                if response.source is not None:
                    response.source.close()
        return False

    async def _response_to(self, request: Request) -> Response:
        """Return the answer, of which all is there but the pieces of a long one."""
        with trio.move_on_after(HANDLER_TIMEOUT_S):
            try:
                if request.path.rstrip("/") not in HEALTH and not self._slots.may_ask(self._slot):
                    close = (("Connection", "close"), ("Retry-After", "1"))
                    raise HttpError(503, "overloaded", "too many connections", close)
                response = await self._port.respond(request)
                self._release_permits()
                if response.pieces is not None:
                    await self._begin(response, response.pieces, request.method)
                if response.blocks:
                    self._hold(max(0, response.size - self._held))
                return response
            except HttpError as error:
                return error_response(error)
            except (h11.RemoteProtocolError, trio.BrokenResourceError):
                raise
            except Exception as error:
                # A defect of ours, met by one request: the others continue.
                log.error("internal error, the request is answered with 500", path=request.path, exception=error)
                return error_response(HttpError(500, "internal_error", "see the log of the broker"))
        return error_response(HttpError(503, "timeout", "the request took too long"))

    async def _begin(self, response: Response, pieces: Iterator[bytes], method: str) -> None:
        """Make the first part of an answer, which may be all of it."""
        part = await _next_part(pieces)
        response.body += part
        if len(part) < PART_BYTES:
            response.pieces = None
        elif method != "HEAD":
            await self._acquire(self._port.load.answers)

    def _identified(self, user: str) -> None:
        self._slots.stand(self._slot, Standing.KNOWN)
        work_for(f"user {user}")
        if not self._taken and not self._permits:
            self._account = f"user {user}"

    def _take(self, size: int) -> None:
        self._budget.take(self._account, size)
        self._taken += size

    def _hold(self, size: int) -> None:
        self._take(size)
        self._held += size

    async def _begin_work(self) -> None:
        await self._acquire(self._port.load.work)

    async def _acquire(self, permits: Permits) -> None:
        if permits in self._permits:
            return
        self._watch()
        if not await permits.maybe_acquire(self._account):
            reason = "too many long answers at a time: request pages (page and page_size), or try later"
            raise HttpError(503, "overloaded", reason, (("Retry-After", "5"),))
        self._permits.append(permits)

    def _watch(self) -> None:
        if self._descriptor >= 0:
            self._port.departures.watch(self._descriptor, self._answering)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self._watch()
        try:
            yield
        finally:
            if not self._permits:
                self._port.departures.forget(self._descriptor)

    def _release_permits(self) -> None:
        for permits in self._permits:
            permits.release(self._account)
        self._permits.clear()

    def _give_back(self) -> None:
        """Return everything that the request has taken: it is answered."""
        self._budget.give_back(self._account, self._taken)
        self._taken = self._held = 0
        self._release_permits()
        self._port.departures.forget(self._descriptor)

    async def _read_body(self, limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
        body = io.BytesIO()
        size = last_mark = 0
        last_s = trio.current_time() + HANDLER_TIMEOUT_S / 2
        with trio.CancelScope(deadline=trio.current_time() + PROGRESS_TIMEOUT_S) as scope:
            while True:
                await give_way()
                event = await self._next_event()
                if isinstance(event, h11.EndOfMessage):
                    return body.getvalue()
                if not isinstance(event, h11.Data):
                    raise HttpError(400, "bad_request", "the body is incomplete")
                size += len(event.data)
                if size > limit_bytes:
                    raise HttpError(413, "payload_too_large", f"a request body may have at most {limit_bytes} bytes")
                self._take(len(event.data))
                body.write(event.data)
                if look is not None:
                    for at in range(0, len(event.data), LOOK_BYTES):
                        look(bytes(event.data[at : at + LOOK_BYTES]))
                        await give_way()
                if size - last_mark >= PROGRESS_BYTES:
                    last_mark = size
                    scope.deadline = min(last_s, trio.current_time() + PROGRESS_TIMEOUT_S)
        raise HttpError(408, "timeout", "the body did not arrive in time")

    async def _body_part(self) -> bytes:
        """Return the next part of the body, which is not kept."""
        with trio.move_on_after(PROGRESS_TIMEOUT_S):
            event = await self._next_event()
            if isinstance(event, h11.EndOfMessage):
                return b""
            if not isinstance(event, h11.Data):
                raise HttpError(400, "bad_request", "the body is incomplete")
            return bytes(event.data)
        raise HttpError(408, "timeout", "the body did not arrive in time")

    async def _drained(self) -> bool:
        """Discard the unread rest of the request; False when that is not worth it."""
        size = 0
        with trio.move_on_after(PROGRESS_TIMEOUT_S):
            while self._protocol.their_state is h11.SEND_BODY and size <= _DRAIN_BYTES_MAX:
                await give_way()
                event = await self._next_event()
                if isinstance(event, h11.Data):
                    size += len(event.data)
        return self._protocol.their_state is h11.DONE

    async def _send(self, response: Response, method: str) -> bool:
        """Send an answer; False when the peer does not take it."""
        if response.source is not None:
            return await self._send_on(response, response.source, method)
        protocol = self._protocol
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Cache-Control", response.cache_control),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ]
        if response.status != 204:
            headers.append(("Content-Type", response.content_type))
            if response.pieces is None:
                headers.append(("Content-Length", str(response.size)))
        reason = HTTPStatus(response.status).phrase.encode()
        data = protocol.send(h11.Response(status_code=response.status, headers=headers, reason=reason)) or b""
        if method != "HEAD" and response.status != 204:
            for block in (response.body, *response.blocks):
                for at in range(0, len(block), _SENT_AT_ONCE):
                    data += protocol.send(h11.Data(data=bytes(block[at : at + _SENT_AT_ONCE]))) or b""
                    if len(data) >= PART_BYTES:
                        if not await self._write(data):
                            return False
                        data = b""
            if response.pieces is not None:
                while part := await _next_part(response.pieces):
                    data += protocol.send(h11.Data(data=part)) or b""
                    if not await self._write(data):
                        return False
                    self._port.load.traffic.sent_bytes += len(part)
                    data = b""
        data += protocol.send(h11.EndOfMessage()) or b""
        return await self._write(data)

    async def _send_on(self, response: Response, source: Source, method: str) -> bool:
        """Send an answer of another node as it comes; False when the peer does not take it."""
        protocol = self._protocol
        reason = HTTPStatus(response.status).phrase.encode()
        head = h11.Response(status_code=response.status, headers=list(response.headers), reason=reason)
        data = protocol.send(head) or b""
        if method != "HEAD" and response.status not in (204, 304):
            while part := await source.part():
                data += protocol.send(h11.Data(data=part)) or b""
                if not await self._write(data):
                    return False
                self._port.load.traffic.sent_bytes += len(part)
                data = b""
        data += protocol.send(h11.EndOfMessage()) or b""
        return await self._write(data)

    async def _write(self, data: bytes) -> bool:
        """Send a part; False when the peer does not take it in time."""
        with trio.move_on_after(UNREAD_TIMEOUT_S) as timeout:
            await self._stream.send_all(data)
        return not timeout.cancelled_caught


async def _next_part(pieces: Iterator[bytes]) -> bytes:
    """Return `PART_BYTES` of some pieces, or the rest up to their end."""
    part = io.BytesIO()
    for piece in pieces:
        part.write(piece)
        if part.tell() >= PART_BYTES:
            break
        await give_way()
    return part.getvalue()


def _protocol() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES_MAX)


def error_response(error: HttpError) -> Response:
    """Return the answer to a refused request."""
    body = msgspec.json.encode({"error": error.error, "reason": error.reason})
    return Response(error.status, body, headers=error.headers, refusal=str(error.reason))
