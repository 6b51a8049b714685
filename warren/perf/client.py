"""One AMQP connection with one channel, blocking, for everything that is not the flat-out path.

Owns the login and the requests that runs need; the protocol is `warren.amqp_client`.

1. The connection has negotiated heartbeat 0 unless the caller asks for heartbeats, and then sends them: a measured
   stream never contains heartbeat frames.
2. Every failure is a `BrokerError` whose text names the peer and, when the broker said it, reply code and
   reply text.

Refuses TLS: the tool measures the broker, not OpenSSL.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from warren.amqp import methods
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.amqp_client.blocking import CHANNEL as CHANNEL
from warren.amqp_client.blocking import HANDSHAKE, BlockingConnection, open_socket
from warren.amqp_client.channel import consume_method
from warren.amqp_client.client_errors import BrokerError as BrokerError
from warren.amqp_client.connection import Login

_SPARE_FILES: Final = 100
_CAPABILITIES: Final = ("authentication_failure_close", "consumer_cancel_notify", "basic.nack", "publisher_confirms")


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
        try:
            found = parts.port
        except ValueError:
            raise ValueError(f"{uri!r}: a port is a number from 1 to 65535") from None
        vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=found or port,
            user=unquote(parts.username) if parts.username is not None else "guest",
            password=unquote(parts.password) if parts.password is not None else "guest",
            vhost=vhost,
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def product_of(properties: Mapping[str, object]) -> str:
    """Return the product and its version: Warren's own, although it announces RabbitMQ's to clients."""
    if "warren_version" in properties:
        return f"Warren {properties['warren_version']}"
    return f"{properties.get('product', '?')} {properties.get('version', '?')}"


class PerfConnection(BlockingConnection):
    """A logged-in connection with channel 1 open. `source`: see `open_socket`."""

    def __init__(self, address: Address, *, name: str = "warren perf", heartbeat_s: int = 0, source: str = "") -> None:
        login = Login(
            address.user,
            address.password,
            address.vhost,
            properties={
                "product": "warren perf",
                "connection_name": name,
                "capabilities": dict.fromkeys(_CAPABILITIES, True),
            },
            heartbeat_s=heartbeat_s,
            frame_max_bytes=0,
        )
        super().__init__(open_socket(address.host, address.port, source=source), str(address), login)
        self.address = address

    @classmethod
    def open(cls, address: Address, *, name: str = "warren perf") -> Self:
        """Connect, log in, open the vhost and channel 1.

        Raises BrokerError when the broker is absent or refuses (403 login, 530 vhost).
        """
        connection = cls(address, name=name)
        connection.enter()
        return connection

    def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Declare a queue. Raises PeerClosed 405, 406."""
        table = encode_table(dict(arguments or {}))
        declaration = QueueDeclaration(queue, durable=durable, exclusive=exclusive, arguments=table)
        self.call(declaration.method(), methods.QueueDeclareOk)

    def declare_queues(
        self, queues: Iterable[str], *, durable: bool = False, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Declare queues, without waiting for each of them."""
        table = encode_table(dict(arguments or {}))
        declarations = (QueueDeclaration(queue, durable=durable, arguments=table).method() for queue in queues)
        self.call_pipelined(declarations, methods.QueueDeclareOk)

    def delete_queue(self, queue: str) -> int:
        """Delete a queue. Returns the number of ready messages in it."""
        return self.call(_queue_delete(queue), methods.QueueDeleteOk).message_count

    def delete_queues(self, queues: Iterable[str]) -> None:
        """Delete queues, existing or not, whatever they hold."""
        self.call_pipelined(map(_queue_delete, queues), methods.QueueDeleteOk)

    def declare_exchange(
        self, exchange: str, kind: str, *, durable: bool = False, arguments: bytes = EMPTY_TABLE
    ) -> None:
        """Declare an exchange. Raises PeerClosed 403, 406, 503."""
        declaration = ExchangeDeclaration(exchange, kind, durable=durable, arguments=arguments)
        self.call(declaration.method(), methods.ExchangeDeclareOk)

    def delete_exchange(self, exchange: str) -> None:
        """Delete an exchange, existing or not."""
        self.call(methods.ExchangeDelete(0, exchange, if_unused=False, no_wait=False), methods.ExchangeDeleteOk)

    def bind(self, exchange: str, bindings: Iterable[tuple[str, str, Mapping[str, object]]]) -> None:
        """Bind queues; each binding is (queue, binding_key, arguments)."""
        self.call_pipelined(
            (
                methods.QueueBind(
                    0, queue, exchange, binding_key, no_wait=False, arguments=encode_table(dict(arguments))
                )
                for queue, binding_key, arguments in bindings
            ),
            methods.QueueBindOk,
        )

    def qos(self, prefetch_count: int) -> None:
        """Limit unacknowledged deliveries of each later consumer of this channel."""
        self.call(methods.BasicQos(0, prefetch_count, global_=False), methods.BasicQosOk)

    def consume(self, queue: str, consumer_tag: str, *, no_ack: bool) -> None:
        """Start a consumer; deliveries follow on the socket, perhaps already in `leftover`."""
        self.call(consume_method(queue, consumer_tag, no_ack=no_ack), methods.BasicConsumeOk)

    def maybe_get(self, queue: str) -> bytes | None:
        """Get one message and return its body, None when the queue is empty.

        It is not acknowledged: it returns to its place when the connection ends. Raises PeerClosed 404.
        """
        answer = self.call(methods.BasicGet(0, queue, no_ack=False), methods.BasicGetOk, methods.BasicGetEmpty)
        return self.take_content() if isinstance(answer, methods.BasicGetOk) else None

    def next_delivery(self) -> tuple[int, bytes]:
        """Wait for the next delivery to a consumer of this connection; return delivery tag and body.

        Raises PeerClosed with the broker's words, BrokerError on silence or another method.
        """
        return self.wait_for(methods.BasicDeliver).delivery_tag, self.take_content()

    def confirm_select(self) -> None:
        """Put channel 1 in confirm mode."""
        self.call(methods.ConfirmSelect(no_wait=False), methods.ConfirmSelectOk)

    def drain(self) -> None:
        """Receive until the peer closes the socket. Raises OSError when it does not, or is gone."""
        while self.sock.recv(65536):
            pass


def _queue_delete(queue: str) -> methods.QueueDelete:
    return methods.QueueDelete(0, queue, if_unused=False, if_empty=False, no_wait=False)


def open_many(
    address: Address, count: int, *, wave: int = 100, heartbeat_s: int = 0, sources: Sequence[str] = ("",)
) -> list[PerfConnection]:
    """Open ``count`` connections, ``wave`` at a time, each wave walking through the handshake in step.

    They come from `sources` in turn, see `PerfConnection`.

    Raises BrokerError, also when this process may not open so many files; those already open are closed.
    """
    _allow_open_files(count + _SPARE_FILES)
    opened: list[PerfConnection] = []
    try:
        while len(opened) < count:
            fresh: list[PerfConnection] = []
            for _ in range(min(wave, count - len(opened))):
                source = sources[len(opened) % len(sources)]
                fresh.append(PerfConnection(address, heartbeat_s=heartbeat_s, source=source))
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
