"""Speak AMQP inside the process: methods and messages over a direct connection (`channels.direct`), awaited on trio.

1. A client has one channel, number `CHANNEL`, open from the first call on. Errors of the broker are raised as the
   exceptions that would close a peer. `ChannelException` ends the client's channel, and with it the client.
2. Replies come in the order of the calls, so several calls may be sent before the first reply is read (`send`).
3. When a client closes, its unacked messages return to their queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import trio
from librt.strings import BytesWriter

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, method_frame
from warren.amqp.errors import PRECONDITION_FAILED, AmqpError, ChannelException, ConnectionException
from warren.amqp.properties import BasicProperties, decode_properties
from warren.channels.broker import Broker
from warren.channels.channel import Channel
from warren.channels.commit_check import CommitCheck
from warren.channels.direct import DirectConnection
from warren.channels.transaction import commit_checked
from warren.msgstore.log.message import HEADER_AT, write_frames
from warren.server.logs import get_logger

log = get_logger("direct")

CHANNEL: Final = 1
SHORT_TEXT_BYTES_MAX: Final = 255
_METHOD: Final = 1
_HEADER: Final = 2
_HEADER_PREFIX_BYTES: Final = 12  # of a content header payload: class, weight, body size


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a basic.get or basic.return; `method` is the method that it came with.

    `parts` of its body are not joined: joining many MiB would hold up all other tasks.
    """

    method: Any
    properties: BasicProperties
    parts: list[bytes]

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        return sum(map(len, self.parts))


class Published(NamedTuple):
    """The result of a publish."""

    routed: bool
    accepted: bool


class DirectClients:
    """The clients of one broker in use. `settle` lets the engine finish its turn."""

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self.broker = broker
        self.settle = settle
        self._clients: dict[int, DirectClient] = {}

    def open(self, user: str, vhost: str) -> DirectClient:
        """Return a client that acts for `user` in `vhost`; use it as a context manager.

        Raises:
            ConnectionException: 530, the vhost does not exist, or the user may not enter it.
        """
        connection = self.broker.connect_direct(user, vhost)
        client = DirectClient(connection, self)
        self._clients[connection.key] = client
        return client

    def deliver(self) -> None:
        """Hand out the output of the engine for direct connections. Called after each turn."""
        outboxes = self.broker.direct_outboxes
        while outboxes:
            outbox = outboxes.pop()
            client = self._clients.get(outbox.key)
            if outbox.failure is not None and client is not None:
                client.fail(outbox.failure)
            outbox.failure = None
            if client is None:
                outbox.take()
            else:
                client.wake()

    def forget(self, key: int) -> None:
        """Forget a closed client."""
        self._clients.pop(key, None)


class DirectClient:
    """One user's channel. Do not share it between tasks."""

    def __init__(self, connection: DirectConnection, clients: DirectClients) -> None:
        self._connection = connection
        self._clients = clients
        self._received: deque[Any] = deque()
        self._content: Any = None  # the method whose content is coming
        self._properties = BasicProperties()
        self._parts: list[bytes] = []
        self._missing = 0
        self._unread = b""  # of a frame that has not come completely
        self._woken = trio.Event()
        self._opened = False
        self._confirming = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def fail(self, error: Exception) -> None:
        """End the connection, after a fault of ours while something was written for it."""
        log.error("internal error, the connection is closed", exception=error)
        self._connection.broken()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def call(self, method: Any) -> Any:
        """Send `method` and return its reply: a named tuple, or `Received` for one with content.

        Raises:
            ChannelException, ConnectionException: the broker refused.
        """
        await self.open()
        self.send(method)
        return await self.reply()

    async def open(self) -> None:
        """Open the channel, if it is not open yet."""
        if not self._opened:
            self._opened = True
            self.send(m.ChannelOpen(""))
            await self.reply()

    def send(self, *methods: Any) -> None:
        """Send methods; the channel is open. Read their replies in this order.

        Raises:
            ChannelException: a name is too long to be sent.
        """
        self._feed(b"".join(map(_frame_of, methods)))

    async def reply(self) -> Any:
        """Return the next reply, when it is there."""
        while not self._received:
            if self._read_some():
                if not self._received:
                    await trio.lowlevel.checkpoint()  # the reply is large
                continue
            await self._woken.wait()
            self._woken = trio.Event()
        received = self._received.popleft()
        if isinstance(received, m.ChannelClose | m.ConnectionClose):
            raise _closed(received)
        return received

    async def publish(
        self, exchange: str, routing_key: str, properties: BasicProperties, body: bytes, *, mandatory: bool = True
    ) -> Published:
        """Publish one message with a confirm and return the result.

        Raises:
            ChannelException: the broker refused it.
        """
        if not self._confirming:
            self._confirming = True
            await self.call(m.ConfirmSelect(False))
        out = BytesWriter()
        out.write(_frame_of(m.BasicPublish(0, exchange, routing_key, mandatory, False)))
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties.encode()
        write_frames(out, CHANNEL, header, body, self._connection.frame_max_bytes)
        self._feed(out.getvalue())
        routed = True
        while True:
            received = await self.reply()
            if isinstance(received, Received):
                routed = False
            elif isinstance(received, m.BasicAck):
                return Published(routed, True)
            else:
                assert isinstance(received, m.BasicNack)
                return Published(routed, False)

    # --- transactions -----------------------------------------------------------------------------------------------

    async def begin_transaction(self, frame_bytes_max: int) -> Channel:
        """Make publishes wait for `commit` from now on; return the channel, to look at.

        Frames of up to `frame_bytes_max` are accepted, even if clients may only send smaller ones.
        """
        self._connection.frame_limit_bytes = max(self._connection.frame_limit_bytes, frame_bytes_max)
        await self.call(m.TxSelect())
        channel = self._connection.channels[CHANNEL]
        assert isinstance(channel, Channel)
        return channel

    async def put(self, publishes: bytes) -> None:
        """Publish whole messages, encoded; waits while publishers are blocked.

        Raises:
            ChannelException, ConnectionException: the broker refused one of them, and forgets the transaction.
        """
        self._feed(publishes)
        while True:
            self._read()
            if self._received:
                await self.reply()  # raises: a publish is answered only with an error
            if not self._connection.carry:
                return
            await self._woken.wait()
            self._woken = trio.Event()

    def commit(self, check: CommitCheck, note: Callable[[], None]) -> None:
        """Begin to commit the transaction if `check` lets it pass; see `committed`.

        `note` is logged in the same frame as the transaction. A commit to very many queues takes several turns.
        """
        assert not self._connection.carry and not self._connection.paused
        channel = self._connection.channels[CHANNEL]
        assert isinstance(channel, Channel)
        commit_checked(channel, check, note)
        self._clients.settle()

    async def committed(self) -> bool:
        """Wait until the commit is written, as a client's tx.commit does; False: the check did not pass.

        Raises:
            ChannelException, ConnectionException: it was refused; `note` was not done.
        """
        return isinstance(await self.reply(), m.TxCommitOk)

    def close(self) -> None:
        """End the channel and the connection; unacked messages return to their queue."""
        self._clients.forget(self._connection.key)
        self._connection.lost()
        self._clients.settle()

    # --- bytes ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Note that there is input, or that a pause has ended."""
        self._woken.set()

    def _feed(self, data: bytes) -> None:
        self._connection.feed(data)
        self._clients.settle()

    def _read(self) -> None:
        """Read all input."""
        while self._read_some():
            pass

    def _read_some(self) -> bool:
        """Read the input, or a part if it is long; tell whether there was any."""
        connection = self._connection
        taken = b"".join(connection.outbox.take_some())
        if connection.outbox.sent(len(taken)):
            connection.drained()
        data = self._unread + taken
        pos = 0
        while len(data) - pos >= HEADER_AT:
            size = int.from_bytes(data[pos + 3 : pos + 7], "big")
            if len(data) - pos < 8 + size:
                break
            self._frame(data[pos], data[pos + 7 : pos + 7 + size])
            pos += 8 + size
        self._unread = data[pos:]
        if connection.outbox.waiting_bytes() == 0 and connection.carry and not connection.paused:
            self._feed(b"")
        return len(taken) > 0 or connection.outbox.waiting_bytes() > 0

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == _METHOD:
            method = decode_method(payload, 0, len(payload))
            if isinstance(method, m.BasicGetOk | m.BasicReturn):
                self._content = method
            else:
                self._received.append(method)
            return
        if kind == _HEADER:
            self._missing = int.from_bytes(payload[4:_HEADER_PREFIX_BYTES], "big")
            self._properties = decode_properties(payload, 0, len(payload))
            self._parts = []
        else:
            self._parts.append(payload)
            self._missing -= len(payload)
        if self._missing == 0:
            self._received.append(Received(self._content, self._properties, self._parts))


def _frame_of(method: Any) -> bytes:
    """Encode a method whose texts may be too long: their author may not know the limit."""
    for value in method:
        if isinstance(value, str) and len(value.encode("utf-8", "replace")) > SHORT_TEXT_BYTES_MAX:
            raise ChannelException(PRECONDITION_FAILED, f"'{value[:50]}…' is longer than {SHORT_TEXT_BYTES_MAX} bytes")
    return method_frame(CHANNEL, method)


def _closed(method: m.ChannelClose | m.ConnectionClose) -> AmqpError:
    """Return the error with which the broker closed."""
    kind = ChannelException if isinstance(method, m.ChannelClose) else ConnectionException
    return kind(method.reply_code, _explanation(method.reply_text))


def _explanation(text: str) -> str:
    """Return a reply text without its leading name, which the exceptions add again."""
    return text.partition(" - ")[2] or text
