"""One AMQP connection with one channel, blocking, for everything that is not the flat-out path.

Owns the handshake, declarations and the translation of errors into one readable line.

1. The connection has negotiated heartbeat 0 unless the caller asks for heartbeats, and then sends them: a measured
   stream never contains heartbeat frames.
2. Bytes received beyond the awaited reply stay in `leftover`; the next owner of the socket starts with them.
3. Every failure is a `BrokerError` whose text names the peer and, when the broker said it, reply code and
   reply text.

Refuses TLS: the tool measures the broker, not OpenSSL.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import pack, unpack_from
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from warren.perf import frames
from warren.perf.frames import FieldValue

CHANNEL: Final = 1
REPLY_TIMEOUT_S: Final = 60.0
_RECEIVE_BYTES: Final = 65536
_SPARE_FILES: Final = 100


class BrokerError(Exception):
    """The broker is absent, refuses, or closed what we were using.

    The text is for the person at the terminal.
    """


class ConnectionClosed(BrokerError):
    """The broker sent connection.close or channel.close."""

    def __init__(self, scope: str, where: str, reply_code: int, reply_text: str) -> None:
        super().__init__(f"{where} closed the {scope}: {reply_code} {reply_text}")
        self.scope = scope
        self.reply_code = reply_code
        self.reply_text = reply_text


@dataclass(frozen=True)
class Address:
    """Where the broker listens and as whom to log in."""

    host: str = "127.0.0.1"
    port: int = 5672
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"

    @classmethod
    def from_uri(cls, uri: str, scheme: str = "amqp", port: int = 5672) -> Address:
        """Read ``amqp://user:password@host:port/vhost``; every part may be left out (RabbitMQ URI
        specification). Other protocols have another `scheme` and `port`.

        Raises ValueError for another scheme or an impossible port.
        """
        parts = urlsplit(uri)
        if parts.scheme == f"{scheme}s":
            raise ValueError(f"{scheme}s is not supported: measure the plain listener")
        if parts.scheme != scheme:
            raise ValueError(f"{uri!r} is not {'an' if scheme == 'amqp' else 'a'} {scheme}:// URI")
        vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or port,
            user=unquote(parts.username) if parts.username is not None else "guest",
            password=unquote(parts.password) if parts.password is not None else "guest",
            vhost=vhost,
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def closed_by_peer(where: str, buffer: bytes | bytearray, found: frames.Frame) -> ConnectionClosed | None:
    """Return the error that a connection.close or channel.close frame announces, or None for any other
    method.
    """
    name = frames.method_name(buffer, found)
    if name == frames.CONNECTION_CLOSE:
        scope = "connection"
    elif name == frames.CHANNEL_CLOSE:
        scope = "channel"
    else:
        return None
    said = frames.arguments(buffer, found)
    (code,) = unpack_from(">H", said)
    text = said[3 : 3 + said[2]].decode(errors="replace")
    return ConnectionClosed(scope, where, int(code), text)


class Connection:
    """A logged-in connection with channel 1 open. Use as a context manager or call `close`.

    `source`: the own address that it comes from, "" for the usual one.
    """

    def __init__(self, address: Address, *, name: str = "warren perf", heartbeat_s: int = 0, source: str = "") -> None:
        self.address = address
        self._heartbeat_s = heartbeat_s
        self.name = name
        self.frame_max_bytes = 0
        self.server_properties: dict[str, str] = {}
        self.leftover = bytearray()
        try:
            self.sock = socket.create_connection(
                (address.host, address.port), REPLY_TIMEOUT_S, (source, 0) if source else None
            )
        except ConnectionRefusedError:
            raise BrokerError(f"nothing listens on {address}") from None
        except OSError as error:
            raise BrokerError(f"cannot reach {address}: {error.strerror or error}") from None
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def open(cls, address: Address, *, name: str = "warren perf") -> Connection:
        """Connect, log in, open the vhost and channel 1.

        Raises BrokerError when the broker is absent or refuses (403 login, 530 vhost).
        """
        connection = cls(address, name=name)
        for step in HANDSHAKE:
            step(connection)
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Say connection.close, wait for the answer, close the socket. Never raises: the peer may be gone
        already.
        """
        try:
            self.sock.settimeout(5.0)
            self.send(frames.method(0, frames.CONNECTION_CLOSE, b"\0\xc8" + frames.short_string("done") + b"\0\0\0\0"))
            self.leftover.clear()
            self.wait_for(frames.CONNECTION_CLOSE_OK, tolerant=True)
        except (BrokerError, OSError, frames.FrameFormatError):
            pass  # the socket is closed below whatever the peer says
        finally:
            self.sock.close()

    def abort(self) -> None:
        """Close the socket without a word."""
        self.sock.close()

    # -- the handshake, in steps so that many connections can be opened in waves

    def greet(self) -> None:
        """Send the protocol header."""
        self.send(frames.PROTOCOL_HEADER)

    def log_in(self) -> None:
        """Await connection.start, answer with PLAIN credentials."""
        start = self.wait_for(frames.CONNECTION_START)
        self.server_properties = _text_fields(start[2:])
        client: dict[str, FieldValue] = {
            "product": "warren perf",
            "connection_name": self.name,
            "capabilities": {
                "authentication_failure_close": True,
                "consumer_cancel_notify": True,
                "basic.nack": True,
                "publisher_confirms": True,
            },
        }
        credentials = f"\0{self.address.user}\0{self.address.password}".encode()
        self.send(
            frames.method(
                0,
                frames.CONNECTION_START_OK,
                frames.field_table(client)
                + frames.short_string("PLAIN")
                + frames.long_string(credentials)
                + frames.short_string("en_US"),
            )
        )

    def tune(self) -> None:
        """Await connection.tune, accept its limits with our heartbeat, ask for the vhost."""
        channel_max, frame_max, _ = unpack_from(">HIH", self.wait_for(frames.CONNECTION_TUNE))
        self.frame_max_bytes = int(frame_max)
        self.send(
            frames.method(0, frames.CONNECTION_TUNE_OK, pack(">HIH", channel_max, frame_max, self._heartbeat_s))
            + frames.method(0, frames.CONNECTION_OPEN, frames.short_string(self.address.vhost) + b"\0\0")
        )

    def open_channel(self) -> None:
        """Await connection.open-ok, ask for channel 1."""
        self.wait_for(frames.CONNECTION_OPEN_OK)
        self.send(frames.method(CHANNEL, frames.CHANNEL_OPEN, b"\0"))

    def await_channel(self) -> None:
        """Await channel.open-ok."""
        self.wait_for(frames.CHANNEL_OPEN_OK)

    # -- requests and replies

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises BrokerError when the peer is gone."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise BrokerError(f"lost {self.address} while sending: {error.strerror or error}") from None

    def wait_for(self, reply: tuple[int, int], *, tolerant: bool = False) -> bytes:
        """Return the argument bytes of the next method, which must be ``reply``; ``tolerant`` drops
        everything before it.

        Raises ConnectionClosed with the broker's code and text, BrokerError on silence, disconnection or
        another method.
        """
        while True:
            found, taken = self._take_frame()
            if found.kind == frames.METHOD:
                if frames.method_name(taken, found) == reply:
                    return frames.arguments(taken, found)
                if not tolerant:
                    closed = closed_by_peer(str(self.address), taken, found)
                    raise closed or BrokerError(
                        f"{self.address} sent method {frames.method_name(taken, found)} where {reply} was due"
                    )
            elif not tolerant and found.kind != frames.HEARTBEAT:
                raise BrokerError(f"{self.address} sent a frame of type {found.kind} where method {reply} was due")

    def call(self, name: tuple[int, int], reply: tuple[int, int], arguments: bytes = b"") -> bytes:
        """Send one method on channel 1 and return the argument bytes of its reply."""
        self.send(frames.method(CHANNEL, name, arguments))
        return self.wait_for(reply)

    def call_pipelined(
        self,
        name: tuple[int, int],
        reply: tuple[int, int],
        all_arguments: Sequence[bytes],
        *,
        window: int = 500,
    ) -> None:
        """Send many requests with up to ``window`` replies outstanding, and await all replies."""
        awaited = 0
        for at in range(0, len(all_arguments), window):
            chunk = all_arguments[at : at + window]
            self.send(b"".join(frames.method(CHANNEL, name, arguments) for arguments in chunk))
            while awaited:
                self.wait_for(reply)
                awaited -= 1
            awaited = len(chunk)
        while awaited:
            self.wait_for(reply)
            awaited -= 1

    def declare_queue(self, queue: str, *, durable: bool = False, exclusive: bool = False) -> None:
        """Declare a queue. Raises ConnectionClosed 405, 406."""
        self.call(
            frames.QUEUE_DECLARE,
            frames.QUEUE_DECLARE_OK,
            declare_queue_arguments(queue, durable=durable, exclusive=exclusive),
        )

    def delete_queue(self, queue: str) -> int:
        """Delete a queue. Returns the number of ready messages in it."""
        arguments = b"\0\0" + frames.short_string(queue) + b"\0"
        (messages,) = unpack_from(">I", self.call(frames.QUEUE_DELETE, frames.QUEUE_DELETE_OK, arguments))
        return int(messages)

    def delete_queues(self, queues: Iterable[str]) -> None:
        """Delete queues, existing or not, whatever they hold."""
        self.call_pipelined(
            frames.QUEUE_DELETE,
            frames.QUEUE_DELETE_OK,
            [b"\0\0" + frames.short_string(queue) + b"\0" for queue in queues],
        )

    def declare_exchange(self, exchange: str, kind: str, *, durable: bool = False) -> None:
        """Declare an exchange. Raises ConnectionClosed 403, 406, 503."""
        arguments = (
            b"\0\0"
            + frames.short_string(exchange)
            + frames.short_string(kind)
            + bytes([2 * durable])
            + frames.field_table({})
        )
        self.call(frames.EXCHANGE_DECLARE, frames.EXCHANGE_DECLARE_OK, arguments)

    def delete_exchange(self, exchange: str) -> None:
        """Delete an exchange, existing or not."""
        self.call(frames.EXCHANGE_DELETE, frames.EXCHANGE_DELETE_OK, b"\0\0" + frames.short_string(exchange) + b"\0")

    def bind(self, exchange: str, bindings: Iterable[tuple[str, str, dict[str, FieldValue]]]) -> None:
        """Bind queues; each binding is (queue, binding_key, arguments)."""
        self.call_pipelined(
            frames.QUEUE_BIND,
            frames.QUEUE_BIND_OK,
            [
                b"\0\0"
                + frames.short_string(queue)
                + frames.short_string(exchange)
                + frames.short_string(binding_key)
                + b"\0"
                + frames.field_table(arguments)
                for queue, binding_key, arguments in bindings
            ],
        )

    def qos(self, prefetch_count: int) -> None:
        """Limit unacknowledged deliveries of each later consumer of this channel."""
        self.call(frames.BASIC_QOS, frames.BASIC_QOS_OK, pack(">IHB", 0, prefetch_count, 0))

    def consume(self, queue: str, consumer_tag: str, *, no_ack: bool) -> None:
        """Start a consumer; deliveries follow on the socket, perhaps already in `leftover`."""
        arguments = (
            b"\0\0"
            + frames.short_string(queue)
            + frames.short_string(consumer_tag)
            + bytes([2 * no_ack])
            + frames.field_table({})
        )
        self.call(frames.BASIC_CONSUME, frames.BASIC_CONSUME_OK, arguments)

    def maybe_get(self, queue: str) -> bytes | None:
        """Get one message and return its body, None when the queue is empty.

        It is not acknowledged: it returns to its place when the connection ends. Raises ConnectionClosed 404.
        """
        self.send(frames.method(CHANNEL, frames.BASIC_GET, b"\0\0" + frames.short_string(queue) + b"\0"))
        found, taken = self._take_frame()
        name = frames.method_name(taken, found)
        if name == frames.BASIC_GET_EMPTY:
            return None
        if name != frames.BASIC_GET_OK:
            closed = closed_by_peer(str(self.address), taken, found)
            raise closed or BrokerError(f"{self.address} answered basic.get with method {name}")
        return self._take_content()

    def next_delivery(self) -> tuple[int, bytes]:
        """Wait for the next delivery to a consumer of this connection; return delivery tag and body.

        Raises ConnectionClosed with the broker's words, BrokerError on silence or another method.
        """
        arguments = self.wait_for(frames.BASIC_DELIVER)
        (delivery_tag,) = unpack_from(">Q", arguments, 1 + arguments[0])
        return int(delivery_tag), self._take_content()

    def confirm_select(self) -> None:
        """Put channel 1 in confirm mode."""
        self.call(frames.CONFIRM_SELECT, frames.CONFIRM_SELECT_OK, b"\0")

    def _take_content(self) -> bytes:
        """Return the body whose content header comes next."""
        found, taken = self._take_frame()
        (missing,) = unpack_from(">Q", taken, found.start + 11)
        body = b""
        while len(body) < missing:
            found, taken = self._take_frame()
            body += taken[7 : found.end - 1]
        return body

    def _take_frame(self) -> tuple[frames.Frame, bytes]:
        """Return the next frame, and a copy of its bytes in which it begins at 0."""
        found = self._next_frame()
        taken = bytes(self.leftover[: found.end])
        del self.leftover[: found.end]
        return found, taken

    def _next_frame(self) -> frames.Frame:
        while True:
            if len(self.leftover) >= 4 and self.leftover[:4] == b"AMQP":
                raise BrokerError(f"{self.address} does not speak AMQP 0-9-1: it wants {bytes(self.leftover[4:8])!r}")
            if self.leftover[:5] == b"HTTP/":
                raise BrokerError(f"{self.address} is a port of HTTP: AMQP clients connect to another one, mostly 5672")
            try:
                found = frames.maybe_frame(self.leftover, 0, len(self.leftover))
            except frames.FrameFormatError as error:
                raise BrokerError(f"{self.address} does not speak AMQP: {error}") from None
            if found is not None:
                return found
            self.receive_more()

    def drain(self) -> None:
        """Receive until the peer closes the socket. Raises OSError when it does not, or is gone."""
        while self.sock.recv(_RECEIVE_BYTES):
            pass

    def receive_more(self) -> None:
        """Wait for something, and add it to `leftover`. Raises BrokerError on silence and disconnection."""
        try:
            data = self.sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise BrokerError(f"{self.address} did not answer within {REPLY_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise BrokerError(f"lost {self.address}: {error.strerror or error}") from None
        if not data:
            raise BrokerError(f"{self.address} closed the socket without a word")
        self.leftover += data


HANDSHAKE: Final = (
    Connection.greet,
    Connection.log_in,
    Connection.tune,
    Connection.open_channel,
    Connection.await_channel,
)


def open_many(
    address: Address, count: int, *, wave: int = 100, heartbeat_s: int = 0, sources: Sequence[str] = ("",)
) -> list[Connection]:
    """Open ``count`` connections, ``wave`` at a time, each wave walking through the handshake in step.

    They come from `sources` in turn, see `Connection`.

    Raises BrokerError, also when this process may not open so many files; those already open are closed.
    """
    _allow_open_files(count + _SPARE_FILES)
    opened: list[Connection] = []
    try:
        while len(opened) < count:
            fresh: list[Connection] = []
            for _ in range(min(wave, count - len(opened))):
                source = sources[len(opened) % len(sources)]
                fresh.append(Connection(address, heartbeat_s=heartbeat_s, source=source))
                opened.append(fresh[-1])
            for step in HANDSHAKE:
                for connection in fresh:
                    step(connection)
    except BrokerError:
        for connection in opened:
            connection.abort()
        raise
    return opened


def _allow_open_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BrokerError(f"{wanted} open files are needed here, the system allows {hard} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def declare_queue_arguments(queue: str, *, durable: bool, exclusive: bool = False) -> bytes:
    """Return the argument bytes of queue.declare."""
    bits = 2 * durable + 4 * exclusive
    return b"\0\0" + frames.short_string(queue) + bytes([bits]) + frames.field_table({})


def _text_fields(table: bytes) -> dict[str, str]:
    """Return the top-level string fields of a field table, product and version above all, skipping the rest
    by length.
    """
    fields: dict[str, str] = {}
    (size,) = unpack_from(">I", table)
    at, stop = 4, 4 + int(size)
    fixed_bytes = {
        "t": 1,
        "b": 1,
        "B": 1,
        "s": 2,
        "u": 2,
        "I": 4,
        "i": 4,
        "l": 8,
        "L": 8,
        "f": 4,
        "d": 8,
        "D": 5,
        "T": 8,
        "V": 0,
    }
    while at < stop:
        name = table[at + 1 : at + 1 + table[at]].decode(errors="replace")
        at += 1 + table[at]
        kind = chr(table[at])
        at += 1
        if kind in fixed_bytes:
            at += fixed_bytes[kind]
            continue
        (length,) = unpack_from(">I", table, at)
        if kind == "S":
            fields[name] = table[at + 4 : at + 4 + length].decode(errors="replace")
        at += 4 + int(length)
    return fields
