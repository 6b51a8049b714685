"""AMQP 0-9-1 on trio, as links need it: throughput, bounded memory, readable errors.

Owns one socket per `LinkConnection`, its tasks and its heartbeats; the protocol is `warren.amqp_client`.

1. The tasks of a connection never raise. The error that ends the connection is kept, and every later call on it or its
   channels raises it. It is a `BrokerError` whose text names the peer and holds no credentials.
2. Memory is bounded. While more than `INBOX_BYTES` of deliveries wait to be taken, nothing is read. While more than
   `OUTBOX_BYTES` are unsent, `LinkConnection.writable` waits. Each incomplete message has at most
   ``max_message_bytes``, and those of all links together are bounded as well (``inbound.py``).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import trio

from warren.amqp import methods
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import COMMAND_INVALID
from warren.amqp.field_table import EMPTY_TABLE, Table
from warren.amqp_client.channel import ClientChannel, consume_method, method_name
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.amqp_client.connection import ClientConnection, Login, State
from warren.links.address_guard import AddressGuard
from warren.links.amqp_uri import BrokerUri
from warren.links.client_tls import client_context, client_stream
from warren.links.inbound import STALL_S, Inbound
from warren.links.starts import Ends

INBOX_BYTES: Final = 8 << 20
OUTBOX_BYTES: Final = 1 << 20
READ_MIN_BYTES: Final = 32 << 10
READ_MAX_BYTES: Final = 256 << 10
SMALL_FRAME_BYTES: Final = 512
REPLY_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 3.0
MAX_MESSAGE_BYTES: Final = 134_217_728

M = TypeVar("M")


class LinkError(BrokerError):
    """A link cannot continue. The text is for status and logs: it must not contain credentials."""


async def _resolve(vhost: str, host: str, port: int) -> list[Any]:
    return await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)


@dataclass(frozen=True)
class ClientSettings:
    """The settings that all links share. `guard` decides about remote addresses only.

    `resolve`: getaddrinfo; its first argument is the vhost of the link at this broker.
    """

    guard: AddressGuard
    max_message_bytes: int = MAX_MESSAGE_BYTES
    product: str = "Warren"
    version: str = ""
    descriptors_below: int = 1 << 30  # a connection is refused if the number of its socket is not below this
    inbound: Inbound = field(default_factory=Inbound)
    resolve: Callable[[str, str, int], Awaitable[list[Any]]] = _resolve


class Signal:
    """Wakes the tasks that wait at that moment. It has no memory, so look at the state before waiting."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None  # None: no task waits

    def wake(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()


class Channel(ClientChannel):
    """One channel. A request waits for its reply; publishes and acks only queue bytes."""

    connection: LinkConnection

    def __init__(self, connection: LinkConnection, number: int) -> None:
        super().__init__(connection, number)
        self.changed = Signal()
        self._replied = trio.Event()
        self._lock = trio.Lock()

    def notify(self) -> None:
        if self.reply is not None or self.failure is not None:
            self._replied.set()
        self.changed.wake()

    async def call(self, method: Any, reply: type[M]) -> M:
        """Send a request and return its reply.

        Raises:
            BrokerError: the channel is closed or gets closed, another reply came, or no reply came within a minute.
        """
        async with self._lock:
            self._replied = trio.Event()
            self.request(method)
            try:
                with trio.move_on_after(REPLY_TIMEOUT_S) as deadline:
                    await self._replied.wait()
            finally:
                self.awaits_reply = False
            self.check()
            if deadline.cancelled_caught:
                raise self.connection.fail_with(f"did not answer {method_name(method)} in {REPLY_TIMEOUT_S:.0f} s")
            return self.take_reply(method, reply)

    async def qos(self, prefetch_count: int) -> None:
        await self.call(methods.BasicQos(0, prefetch_count, global_=False), methods.BasicQosOk)

    async def declare_queue(self, declaration: QueueDeclaration) -> methods.QueueDeclareOk:
        """Declare a queue."""
        return await self.call(declaration.method(), methods.QueueDeclareOk)

    async def look_at_queue(self, queue: str) -> methods.QueueDeclareOk:
        """Declare passively: make sure that a queue exists, whatever its properties."""
        return await self.call(QueueDeclaration(queue, durable=True).method(passive=True), methods.QueueDeclareOk)

    async def declare_exchange(self, declaration: ExchangeDeclaration, *, passive: bool = False) -> None:
        """Declare an exchange; `passive`: only make sure that there is one of that name."""
        await self.call(declaration.method(passive=passive), methods.ExchangeDeclareOk)

    async def consume(
        self,
        queue: str,
        consumer_tag: str = "",
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: bytes = EMPTY_TABLE,
    ) -> str:
        """Start a consumer and return its tag."""
        consume = consume_method(queue, consumer_tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments)
        return (await self.call(consume, methods.BasicConsumeOk)).consumer_tag

    async def cancel(self, consumer_tag: str) -> None:
        """Stop a consumer. Deliveries that arrived before can still be taken."""
        await self.call(methods.BasicCancel(consumer_tag, no_wait=False), methods.BasicCancelOk)
        self.forget_consumer(consumer_tag)

    async def confirm_select(self) -> None:
        """Turn on publisher confirms: sequence numbers are `published` after each publish, from 1 on."""
        await self.call(methods.ConfirmSelect(no_wait=False), methods.ConfirmSelectOk)
        self.expect_confirms()


class LinkConnection(ClientConnection):
    """A connection, which may have ended. Made by `connect`."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        where: str,
        login: Login,
        max_message_bytes: int,
        ends: Ends,
        inbound: Inbound | None = None,
    ) -> None:
        super().__init__(where, login, max_message_bytes)
        self.changed = Signal()
        self._stream = stream
        self._next_channel = 1
        self._read_bytes = READ_MIN_BYTES
        self._inbound = inbound or Inbound()
        self._sending_bytes = 0
        self._work = trio.Event()
        self._room = Signal()
        self._last_sent = self._last_received = 0.0
        self._progress_s = 0.0  # when an incomplete content last made enough progress
        self._progress_bytes = 0  # bytes that came since then
        self._holds_back = False  # True while it waits before it reads more
        self._closed = trio.Event()
        self._written = trio.Event()
        self._tasks: list[trio.CancelScope] = []
        self._ends = ends

    def notify(self) -> None:
        self._room.wake()
        self.changed.wake()

    def fail(self, error: BrokerError) -> None:
        super().fail(error)
        self._closed.set()
        self._work.set()

    async def _lose(self, error: BrokerError) -> None:
        """Wait for the turn of this connection (`Ends`), then fail because of an error of the peer."""
        if not self.is_closing:
            await self._ends.wait()
        self.fail(error)

    # --- sending ------------------------------------------------------------------------------------------------

    def send(self, data: bytes | memoryview) -> None:
        super().send(data)
        self._work.set()

    async def has_room(self) -> None:
        """Wait until less than `OUTBOX_BYTES` are unsent.

        Raises:
            BrokerError: the connection has ended.
        """
        self.check()
        while self.unsent_bytes + self._sending_bytes > OUTBOX_BYTES:
            await self._room.wait()
            self.check()

    async def writable(self) -> None:
        """Wait until the peer takes publishes: less than `OUTBOX_BYTES` unsent, and not blocked.

        Raises:
            BrokerError: the connection has ended.
        """
        self.check()
        while self.unsent_bytes + self._sending_bytes > OUTBOX_BYTES or self.blocked_reason is not None:
            await self._room.wait()
            self.check()

    async def flushed(self) -> None:
        """Wait until everything is handed to the operating system."""
        self.check()
        while self.unsent_bytes or self._sending_bytes:
            await self._room.wait()
            self.check()

    async def _write(self) -> None:
        try:
            # If the peer has closed the connection, close-ok still has to be sent.
            while self.failure is None or (self.unsent_bytes and isinstance(self.failure, PeerClosed)):
                if not self.unsent_bytes:
                    self._work = trio.Event()
                    await self._work.wait()
                    continue
                await self._send_some()
                self._last_sent = trio.current_time()
                self._room.wake()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            await self._lose(BrokerError(f"the connection to {self.where} was lost"))
        finally:
            self._written.set()

    async def _send_some(self) -> None:
        data = self.take_output()
        self._sending_bytes = len(data)
        await self._stream.send_all(data)
        self._sending_bytes = 0
        self.sent()

    async def _beat(self) -> None:
        """Send a heartbeat after half an interval of silence; give up after two intervals without received bytes."""
        half = self.login.heartbeat_s / 2
        while self.failure is None:
            await trio.sleep(half)
            now = trio.current_time()
            if now - self._last_sent >= half * 0.9 and not self._sending_bytes:
                self.send(methods.HEARTBEAT_FRAME)
            # While we do not read, we cause the silence.
            if self._holds_back:
                self._last_received = now
            elif now - self._last_received > 2 * self.login.heartbeat_s:
                await self._lose(
                    BrokerError(f"{self.where} was silent for {2 * self.login.heartbeat_s} s: missed heartbeats")
                )

    # --- receiving ----------------------------------------------------------------------------------------------

    def freed(self, size: int) -> None:
        was_full = self.inbox_bytes > INBOX_BYTES
        super().freed(size)
        if was_full and self.inbox_bytes <= INBOX_BYTES:
            self.changed.wake()

    def holds(self, count: int) -> None:
        if count > 0:
            is_first = not self.partial_bytes
            self._inbound.grown(self, count)
            self._progress_bytes += count
            if is_first or self._progress_bytes >= self._inbound.progress_bytes(self):
                self._progress_s, self._progress_bytes = trio.current_time(), 0
        else:
            self._inbound.completed(self, -count)

    async def _read(self) -> None:
        try:
            while self.failure is None:
                self._holds_back = True
                while self.inbox_bytes > INBOX_BYTES and self.failure is None and not self.is_closing:
                    await self.changed.wait()
                    self._last_received = trio.current_time()
                if await self._inbound.turn(self):
                    self._last_received = self._progress_s = trio.current_time()
                self._holds_back = False
                await self._receive_some()
        except BrokerError as error:
            await self._lose(error)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            await self._lose(BrokerError(f"the connection to {self.where} was lost"))

    async def _receive_some(self) -> None:
        """Read once, and read less the next time if the frames are small."""
        until_s = self._progress_s + STALL_S if self.partial_bytes else math.inf
        with trio.move_on_at(until_s) as stalled:
            data = bytes(await self._stream.receive_some(self._read_bytes))
        if stalled.cancelled_caught:
            raise BrokerError(f"{self.where} stopped within a message for {STALL_S:.0f} s")
        if not data:
            raise self.eof()
        self._last_received = trio.current_time()
        count = self.receive(data)
        if count * SMALL_FRAME_BYTES > len(data):
            self._read_bytes = READ_MIN_BYTES
        elif len(data) >= self._read_bytes:
            self._read_bytes = min(2 * self._read_bytes, READ_MAX_BYTES)

    # --- life ---------------------------------------------------------------------------------------------------

    async def open_channel(self) -> Channel:
        """Open another channel."""
        self.check()
        channel = Channel(self, self._next_channel)
        self._next_channel += 1
        self.add_channel(channel)
        await channel.call(methods.ChannelOpen(""), methods.ChannelOpenOk)
        return channel

    async def handshake(self) -> None:
        """Log in and open the vhost."""
        self.greet()
        while self.state is not State.OPEN:
            await self._send_some()
            await self._receive_some()

    def start(self, nursery: trio.Nursery) -> None:
        self._last_sent = self._last_received = trio.current_time()
        for task in (self._read, self._write):
            # A cancelled link still has to send acks and close. So `close` ends these two tasks, not the cancellation.
            scope = trio.CancelScope(shield=True)
            self._tasks.append(scope)
            nursery.start_soon(self._run, task, scope)
        if self.login.heartbeat_s:
            nursery.start_soon(self._beat)

    async def _run(self, task: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        with scope:
            await task()

    async def close(self) -> None:
        """Send close, wait for the answer a little, and close the socket. Never raises, and cannot be cancelled."""
        if self.is_closing:
            return
        # From here on deliveries are dropped: a full inbox must not keep us from reading the answer.
        self.is_closing = True
        self.changed.wake()
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
            if self.failure is None:
                self.say_goodbye()
                await self._closed.wait()
            if isinstance(self.failure, PeerClosed) and self._tasks:
                await self._written.wait()
        self.fail(BrokerError(f"the connection to {self.where} is closed"))
        for scope in self._tasks:
            scope.cancel()
        self._channels.clear()  # they refer to us
        with trio.CancelScope(shield=True):  # a cancelled task may have a second connection to close after this one
            await trio.aclose_forcefully(self._stream)


def _login(uri: BrokerUri, properties: Table) -> Login:
    mechanisms = uri.mechanisms
    if not mechanisms:
        certified = uri.certificate_file is not None and uri.user is None
        mechanisms = ("EXTERNAL", "PLAIN") if certified else ("PLAIN",)
    return Login(
        user="guest" if uri.user is None else uri.user,
        password="guest" if uri.password is None and uri.user is None else uri.password or "",
        vhost=uri.vhost,
        mechanisms=mechanisms,
        properties=properties,
        heartbeat_s=uri.heartbeat_s,
        channel_max=uri.channel_max,
    )


# --- connecting -----------------------------------------------------------------------------------------------------


async def _dial(vhost: str, uri: BrokerUri, settings: ClientSettings, where: str) -> trio.SocketStream:
    """Connect to the first permitted address of the host that answers."""
    try:
        found = await settings.resolve(vhost, uri.host, uri.port)
    except OSError as error:
        raise LinkError(f"cannot resolve {where}: {error.strerror or error}") from None
    except UnicodeError:
        raise LinkError(f"cannot resolve {where}: not a host name") from None
    permitted = [entry for entry in found if settings.guard.permits(str(entry[4][0]))]
    if not permitted:
        raise LinkError(f"links may not connect to {where}: a loopback, link-local or reserved address")
    problem = "nothing listens there"
    for family, kind, protocol, _, address in permitted:
        sock = trio.socket.socket(family, kind, protocol)
        if sock.fileno() >= settings.descriptors_below:
            sock.close()
            raise LinkError(f"cannot connect to {where}: too many descriptors are in use")
        try:
            await sock.connect(address)
            return trio.SocketStream(sock)
        except OSError as error:
            sock.close()
            problem = error.strerror or str(error)
        except BaseException:
            sock.close()
            raise
    raise LinkError(f"cannot connect to {where}: {problem}")


async def _secure(stream: trio.SocketStream, uri: BrokerUri, where: str) -> trio.abc.Stream:
    try:
        context = await client_context(uri)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise LinkError(f"the certificate files for {where} cannot be used: {type(error).__name__}") from None
    try:
        secured = client_stream(stream, context, uri)
    except (OSError, ValueError):
        raise LinkError(f"no TLS with {where}: its server name is not a host name") from None
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        raise LinkError(f"no TLS with {where}: {_said_by_tls(error) or 'the handshake failed'}") from None
    return secured


_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)  # OpenSSL's numbers


def _said_by_tls(error: BaseException) -> str:
    """Return the reason that TLS gives for a lost connection, such as the alert of the peer; ``""`` without one."""
    cause = error.__cause__
    if getattr(cause, "verify_code", None) in _UNKNOWN_AUTHORITY:
        reason = getattr(cause, "verify_message", "") or "unknown authority"
        return f"its certificate cannot be verified ({reason}): cacertfile=FILE in the URI names the file of its CA"
    return getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or ""


async def connect(
    nursery: trio.Nursery,
    uri: BrokerUri,
    settings: ClientSettings,
    connection_name: str,
    open_local: Callable[[], Any] | None = None,
    ends: Ends | None = None,
    vhost: str = "",
) -> LinkConnection:
    """Open a connection; its tasks run in `nursery` until `LinkConnection.close`, which the caller must call.

    `ends`: shared by all connections that may be lost together with this one.
    `open_local`: asynchronous, returns a stream to this broker. It is used for a URI without a host; such a URI has to
    contain the credentials.
    `vhost`: the vhost of the link at this broker.

    Raises:
        LinkError: unreachable, not permitted, refused, or not done within the URI's connection_timeout.
    """
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    where = "this broker" if uri.is_local else f"{host}:{uri.port}"
    properties: Table = {
        "product": settings.product,
        "version": settings.version,
        "platform": "Python",
        "connection_name": connection_name,
        "capabilities": {
            "authentication_failure_close": True,
            "basic.nack": True,
            "connection.blocked": True,
            "consumer_cancel_notify": True,
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
        },
    }
    stream: trio.abc.Stream | None = None
    try:
        with trio.fail_after(uri.connection_timeout_ms / 1000):
            if uri.is_local:
                if open_local is None:
                    raise LinkError("a URI without a host, but there is no local broker")
                stream = await open_local()
            else:
                stream = await _dial(vhost, uri, settings, where)
                if uri.tls:
                    stream = await _secure(stream, uri, where)
            assert stream is not None
            login = _login(uri, properties)
            connection = LinkConnection(
                stream, where, login, settings.max_message_bytes, ends or Ends(), settings.inbound
            )
            await connection.handshake()
    except BaseException as error:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        if isinstance(error, trio.TooSlowError):
            raise LinkError(f"{where} did not accept a connection in {uri.connection_timeout_ms} ms") from None
        if isinstance(error, OSError | trio.BrokenResourceError | trio.ClosedResourceError | ssl.SSLError):
            # With TLS 1.3 a peer refuses our certificate after our side has finished the TLS handshake.
            reason = _said_by_tls(error)
            because = f": {reason}" if reason else ""
            raise LinkError(f"the connection to {where} was lost during the handshake{because}") from None
        raise
    connection.start(nursery)
    return connection


def is_unknown_exchange_type(error: BrokerError) -> bool:
    """Tell whether a declaration failed because the broker does not know the type: 503, or 406 in newer ones."""
    if not isinstance(error, PeerClosed):
        return False
    return error.reply_code == COMMAND_INVALID or "unknown exchange type" in error.reply_text
