"""An AMQP 0-9-1 client on trio, as far as links need one: throughput, bounded memory, readable errors.

Owns one socket per `Connection`, its heartbeats, and the `Channel`s on it.

1. The tasks of a connection never raise. The error that ends it is kept, and every later call on it or its channels
   raises that: a `LinkError` whose text names the peer and holds no credentials.
2. Memory: while more than `INBOX_BYTES` of deliveries wait to be taken nothing is read; while more than
   `OUTBOX_BYTES` are unsent `Connection.writable` waits. A content larger than ``max_message_bytes`` is refused, and a
   content takes its size in memory, in however many frames it comes; the incomplete contents of all links are bounded
   (``inbound.py``). A peer may return and cancel only existing objects, and have `ANSWERS_MAX` answers unsent.
3. Properties stay encoded, from delivery to publish: unless they are rewritten, they keep every byte.
4. Everything queued for sending before a request or `close` goes out before it: acks are never overtaken.
"""

from __future__ import annotations

import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, NamedTuple, Self, TypeVar

import trio

from warren.amqp import methods
from warren.amqp.codec import decode_method, method_frame
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import COMMAND_INVALID, REPLY_SUCCESS, AmqpError
from warren.amqp.field_table import EMPTY_TABLE, FLAT_TABLE_BYTES, Table
from warren.amqp.properties import MIN_HEADER_BYTES, scan_properties
from warren.links.address_guard import AddressGuard
from warren.links.amqp_uri import BrokerUri, redact
from warren.links.client_tls import client_context, client_stream
from warren.links.inbound import STALL_S, Inbound
from warren.links.starts import Ends

INBOX_BYTES: Final = 8 << 20
OUTBOX_BYTES: Final = 1 << 20
SEND_BYTES: Final = 1 << 20  # are handed to the socket at a time
ANSWERS_MAX: Final = 1000  # to unsolicited methods of the peer
READ_MIN_BYTES: Final = 32 << 10
READ_MAX_BYTES: Final = 256 << 10
SMALL_FRAME_BYTES: Final = 512
REPLY_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 3.0
FRAME_MAX_BYTES: Final = 131072
MAX_MESSAGE_BYTES: Final = 134_217_728
SHOWN_CHARACTERS: Final = 200  # of a value that a peer offers, which may be a frame full of it
CONTENT_HEAD_BYTES: Final = 12  # of a content header, before its properties
_DELIVER: Final = 60 << 16 | 60
_ACK: Final = 60 << 16 | 80
_HEAD = Struct(">BHI")
_FRAME_END: Final = b"\xce"
_CONTENT_HEAD = Struct(">BHIHHQ")
_CONTENT_SIZE = Struct(">Q")
_METHOD_ID = Struct(">I")
_TAG = Struct(">Q")
_ACK_FRAME = Struct(">BHIIQBB")
NO_PROPERTIES: Final = b"\x00\x00"

M = TypeVar("M")


class LinkError(Exception):
    """A link cannot continue. The text is for status and logs: it must not contain credentials."""

    def fresh(self) -> Self:
        """Return the same error without a traceback.

        A connection keeps why it has ended. The frames of a traceback refer to the connection: with them it would be in
        a cycle, and stay in memory.
        """
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        return made


class PeerClosed(LinkError):
    """The broker closed a channel or the connection, or refused the login."""

    def __init__(self, where: str, scope: str, reply_code: int, reply_text: str) -> None:
        super().__init__(f"{where} closed the {scope}: {reply_code} {redact(reply_text)}")
        self.scope = scope
        self.reply_code = reply_code
        self.reply_text = reply_text


@dataclass(frozen=True)
class ClientSettings:
    """The settings that all links share. `guard` decides about remote addresses only."""

    guard: AddressGuard
    max_message_bytes: int = MAX_MESSAGE_BYTES
    product: str = "Warren"
    version: str = ""
    descriptors_below: int = 1 << 30  # a connection whose socket has a number from there on exceeds the limit
    inbound: Inbound = field(default_factory=Inbound)


class Delivery(NamedTuple):
    """A message from a queue. ``properties``: flag word and property list, as in a content header."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


def _cost(delivery: Delivery) -> int:
    """Return the bytes of a delivery in `INBOX_BYTES`: without the constant, empty messages would be free."""
    return len(delivery.body) + len(delivery.properties) + 256


class Confirm(NamedTuple):
    """The broker's word on publishes: up to `sequence` when `multiple`, else on that one."""

    sequence: int
    multiple: bool
    accepted: bool


class Returned(NamedTuple):
    """A mandatory message that no queue took; its confirm follows."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


class Signal:
    """Wakes the tasks that wait at that moment. It has no memory, so look at the state before waiting."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def wake(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()


def shortstr(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raise LinkError("a name or routing key is longer than 255 bytes")
    return bytes([len(raw)]) + raw


class _Content:
    """A content on its way in: its method, then header, then body."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.properties = NO_PROPERTIES
        self.missing = -1
        self.body = bytearray()  # of one in several frames


class Channel:
    """One channel. A request waits for its reply; publishes and acks only queue bytes."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.failure: LinkError | None = None
        self.published = 0
        self._awaits_confirms = False
        self.changed = Signal()
        self.deliveries: deque[Delivery] = deque()
        self.delivery_bytes = 0
        self.confirms: list[Confirm] = []
        self.returned: list[Returned] = []
        self.cancelled: set[str] = set()
        self._consumers: set[str] = set()
        self._returnable = 0  # mandatory publishes that the peer may still return
        self._reply: Any = None
        self._replied = trio.Event()
        self._awaiting = False
        self._lock = trio.Lock()
        self._content: _Content | None = None
        self._publish_key: tuple[str, str, bool] | None = None
        self._publish_frame = b""

    # --- requests -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error that ended the channel or its connection."""
        if self.failure is not None:
            raise self.failure.fresh()
        self.connection.check()

    async def call(self, method: Any, reply: type[M]) -> M:
        """Send a request and return its reply.

        Raises:
            LinkError: the channel is or gets closed, another reply came, or none within a minute.
        """
        async with self._lock:
            self.check()
            self._replied = trio.Event()
            self._awaiting = True
            self.connection.send(method_frame(self.number, method))
            try:
                with trio.move_on_after(REPLY_TIMEOUT_S) as deadline:
                    await self._replied.wait()
            finally:
                self._awaiting = False
            self.check()
            if deadline.cancelled_caught:
                raise self.connection.fail_with(f"did not answer {_name(method)} in {REPLY_TIMEOUT_S:.0f} s")
            answer, self._reply = self._reply, None
            if not isinstance(answer, reply):
                raise self.connection.fail_with(f"answered {_name(method)} with {_name(answer)}")
            return answer

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
        consume = methods.BasicConsume(
            0,
            queue,
            consumer_tag,
            no_local=False,
            no_ack=no_ack,
            exclusive=exclusive,
            no_wait=False,
            arguments=arguments,
        )
        return (await self.call(consume, methods.BasicConsumeOk)).consumer_tag

    async def cancel(self, consumer_tag: str) -> None:
        """Stop a consumer. Deliveries that arrived before can still be taken."""
        await self.call(methods.BasicCancel(consumer_tag, no_wait=False), methods.BasicCancelOk)
        self._consumers.discard(consumer_tag)

    async def confirm_select(self) -> None:
        """Have publishes confirmed: their sequence numbers are `published` after each, from 1 on."""
        await self.call(methods.ConfirmSelect(no_wait=False), methods.ConfirmSelectOk)
        self.published = 0
        self._awaits_confirms = True

    # --- messages -----------------------------------------------------------------------------------------------

    def takes(self, properties: bytes) -> bool:
        """Tell whether a content header may have these properties: it is one frame, whose headers are a valid table."""
        if CONTENT_HEAD_BYTES + len(properties) > self.connection.frame_max_bytes - 8:
            return False
        if len(properties) > FLAT_TABLE_BYTES:
            payload = bytes(CONTENT_HEAD_BYTES) + properties
            try:
                scan_properties(payload, 0, len(payload))
            except AmqpError:
                return False
        return True

    def publish(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, *, mandatory: bool = False
    ) -> int:
        """Queue one message for sending and return its sequence number; wait for `Connection.writable` before.

        Raises:
            LinkError: the channel is closed.
        """
        self.check()
        key = (exchange, routing_key, mandatory)
        if key != self._publish_key:
            payload = b"\x00\x3c\x00\x28\x00\x00" + shortstr(exchange) + shortstr(routing_key) + bytes([mandatory])
            self._publish_frame = _HEAD.pack(1, self.number, len(payload)) + payload + _FRAME_END
            self._publish_key = key
        size = len(body)
        head = _CONTENT_HEAD.pack(2, self.number, CONTENT_HEAD_BYTES + len(properties), 60, 0, size)
        connection = self.connection
        room = connection.frame_max_bytes - 8
        if CONTENT_HEAD_BYTES + len(properties) > room:
            raise LinkError(f"{connection.where} does not accept content headers of {len(properties)} bytes")
        if size <= room:
            parts = [self._publish_frame, head, properties, _FRAME_END]
            if size:
                parts += [_HEAD.pack(3, self.number, size), body, _FRAME_END]
            connection.send(b"".join(parts))
        else:
            connection.send(self._publish_frame + head + properties + _FRAME_END)
            view = memoryview(body)
            for at in range(0, size, room):
                part = view[at : at + room]
                connection.send(_HEAD.pack(3, self.number, len(part)))
                connection.send(part)
                connection.send(_FRAME_END)
        self._returnable += mandatory
        self.published += 1
        return self.published

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Queue an ack for sending."""
        self.check()
        self.connection.send(_ACK_FRAME.pack(1, self.number, 13, _ACK, delivery_tag, multiple, 0xCE))

    def requeue(self, delivery_tag: int) -> None:
        """Give one delivery back to its queue."""
        self.check()
        self.connection.send(method_frame(self.number, methods.BasicReject(delivery_tag, requeue=True)))

    def take_deliveries(self, limit: int | None = None) -> list[Delivery]:
        """Return received deliveries, at most `limit`, oldest first; reading resumes when there is room again."""
        count = len(self.deliveries) if limit is None else min(limit, len(self.deliveries))
        taken = [self.deliveries.popleft() for _ in range(count)]
        freed = sum(map(_cost, taken))
        self.delivery_bytes -= freed
        self.connection.freed(freed)
        return taken

    def take_confirms(self) -> list[Confirm]:
        taken, self.confirms = self.confirms, []
        return taken

    # --- from the reader ----------------------------------------------------------------------------------------

    def fail(self, error: LinkError) -> None:
        if self.failure is None:
            self.failure = error
        self._replied.set()
        self.changed.wake()

    def receive_method(self, method: Any) -> None:
        if isinstance(method, methods.ChannelClose):
            self.connection.send(method_frame(self.number, methods.ChannelCloseOk()))
            self.connection.drop(self)
            self.fail(PeerClosed(self.connection.where, "channel", method.reply_code, method.reply_text))
        elif isinstance(method, methods.BasicReturn):
            if not self._returnable:
                raise _Nonsense("returned a message that it has not got")
            self._returnable -= 1
            self._content = _Content(method)
        elif isinstance(method, methods.BasicNack):
            self._receive_confirm(Confirm(method.delivery_tag, method.multiple, False))
        elif isinstance(method, methods.BasicCancel):
            if method.consumer_tag not in self._consumers:
                raise _Nonsense("cancelled a consumer that it has not got")
            self._consumers.discard(method.consumer_tag)
            self.cancelled.add(method.consumer_tag)
            if not method.no_wait:
                self.connection.answer(method_frame(self.number, methods.BasicCancelOk(method.consumer_tag)))
            self.changed.wake()
        elif isinstance(method, methods.ChannelFlow):
            self.connection.answer(method_frame(self.number, methods.ChannelFlowOk(active=method.active)))
        elif self._awaiting:
            if isinstance(method, methods.BasicConsumeOk):
                self._consumers.add(method.consumer_tag)  # now: its cancel may be in the same read
            self._reply = method
            self._replied.set()
        else:
            raise _Nonsense(f"sent {_name(method)} unasked")

    def receive_ack(self, delivery_tag: int, multiple: bool) -> None:
        self._receive_confirm(Confirm(delivery_tag, multiple, True))

    def _receive_confirm(self, confirm: Confirm) -> None:
        # Nobody takes an unexpected confirm, and one for a later publish would cause an ack at the source too early.
        if not self._awaits_confirms or confirm.sequence > self.published:
            raise _Nonsense("confirmed a publish that it has not got")
        self.confirms.append(confirm)
        self.changed.wake()

    def begin_content(self, method: Any) -> None:
        if self._content is not None:
            raise _Nonsense("sent a method where a content was due")
        self._content = _Content(method)

    def receive_header(self, data: bytes, start: int, end: int) -> None:
        content = self._content
        if content is None or content.missing >= 0:
            raise _Nonsense("sent a content header that belongs to nothing")
        if end - start < MIN_HEADER_BYTES:
            raise _Nonsense("sent a content header that is too short")
        scan_properties(data, start, end)
        (content.missing,) = _CONTENT_SIZE.unpack_from(data, start + 4)
        limit = self.connection.max_message_bytes
        if content.missing > limit:
            raise _Nonsense(f"sent a message of {content.missing} bytes; links take {limit} at most")
        content.properties = data[start + CONTENT_HEAD_BYTES : end]
        if not content.missing:
            self._complete(content, b"")

    def receive_body(self, data: bytes, start: int, end: int) -> None:
        content = self._content
        if content is None or content.missing < 0:
            raise _Nonsense("sent a body that belongs to nothing")
        if end - start > content.missing or end == start:
            raise _Nonsense("sent a body frame that is longer than announced, or empty")
        content.missing -= end - start
        if not content.missing and not content.body:
            self._complete(content, data[start:end])
            return
        content.body += data[start:end]
        self.connection.holds(end - start)
        if not content.missing:
            self.connection.holds(-len(content.body))
            self._complete(content, bytes(content.body))

    def drop_content(self) -> None:
        """Forget a content that is not complete: the channel has ended."""
        content, self._content = self._content, None
        if content is not None and content.body:
            self.connection.holds(-len(content.body))

    def _complete(self, content: _Content, body: bytes) -> None:
        self._content = None
        method = content.method
        if type(method) is tuple:
            delivery_tag, redelivered, exchange, routing_key = method
            delivery = Delivery(delivery_tag, redelivered, exchange, routing_key, content.properties, body)
            if not self.connection.is_closing:
                self.deliveries.append(delivery)
                self.delivery_bytes += _cost(delivery)
                self.connection.inbox_bytes += _cost(delivery)
        else:
            self.returned.append(Returned(*method))
        self.changed.wake()

    @property
    def in_content(self) -> bool:
        return self._content is not None


class _Nonsense(Exception):
    """The peer broke the protocol; the text continues a sentence that begins with its name."""


def _name(method: Any) -> str:
    packed = methods.METHOD_IDS.get(type(method))
    return methods.METHODS[packed].name if packed is not None else "nothing"


class Connection:
    """A connection that is open, or was. Made by `connect`."""

    def __init__(
        self, stream: trio.abc.Stream, where: str, max_message_bytes: int, ends: Ends, inbound: Inbound | None = None
    ) -> None:
        self.where = where
        self.max_message_bytes = max_message_bytes
        self.frame_max_bytes = methods.FRAME_MIN_BYTES
        self.heartbeat_s = 0
        self.server_properties: Table = {}
        self.blocked_reason: str | None = None
        self.failure: LinkError | None = None
        self.inbox_bytes = 0
        self.partial_bytes = 0
        self.changed = Signal()
        self._stream = stream
        self._channels: dict[int, Channel] = {}
        self._next_channel = 1
        self._carry = b""
        self._read_bytes = READ_MIN_BYTES
        self._inbound = inbound or Inbound()
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self._answers = 0  # that are unsent
        self._sending_bytes = 0
        self._work = trio.Event()
        self._room = Signal()
        self._last_sent = self._last_received = 0.0
        self._progress_s = 0.0  # when the last part of an incomplete content came
        self.is_closing = False
        self._closed = trio.Event()
        self._written = trio.Event()
        self._tasks: list[trio.CancelScope] = []
        self._ends = ends

    # --- sending ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error that ended the connection."""
        if self.failure is not None:
            raise self.failure.fresh()

    def fail_with(self, what: str) -> LinkError:
        """End the connection for a reason of ours, and return the error with that reason."""
        self._fail(LinkError(f"{self.where} {what}"))
        assert self.failure is not None
        return self.failure.fresh()

    def _fail(self, error: LinkError) -> None:
        if self.failure is None:
            self.failure = error.fresh()
        for channel in list(self._channels.values()):
            channel.drop_content()
            channel.fail(self.failure)
        self._closed.set()
        self._work.set()
        self._room.wake()
        self.changed.wake()

    async def _lose(self, error: LinkError) -> None:
        """Fail because of an error of the peer, when it is the turn of this connection."""
        if not self.is_closing:
            await self._ends.wait()
        self._fail(error)

    def send(self, data: bytes | memoryview) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        self._work.set()

    def answer(self, data: bytes) -> None:
        """Send an answer to an unsolicited method of the peer."""
        self._answers += 1
        if self._answers > ANSWERS_MAX:
            raise _Nonsense(f"asks for more than {ANSWERS_MAX} answers and does not take them")
        self.send(data)

    def _take_out(self) -> bytes | memoryview:
        """Take about `SEND_BYTES` of the bytes that wait to be sent."""
        out = self._out
        taken = [out.popleft()]
        size = len(taken[0])
        while out and size + len(out[0]) <= SEND_BYTES:
            size += len(out[0])
            taken.append(out.popleft())
        self._out_bytes -= size
        self._sending_bytes = size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def writable(self) -> None:
        """Wait until the peer takes publishes: less than `OUTBOX_BYTES` unsent, and not blocked.

        Raises:
            LinkError: the connection has ended.
        """
        self.check()
        while self._out_bytes + self._sending_bytes > OUTBOX_BYTES or self.blocked_reason is not None:
            await self._room.wait()
            self.check()

    async def flushed(self) -> None:
        """Wait until everything is handed to the operating system."""
        self.check()
        while self._out or self._sending_bytes:
            await self._room.wait()
            self.check()

    async def _write(self) -> None:
        try:
            # To a peer that has closed the connection, close-ok is still to be said.
            while self.failure is None or (self._out and isinstance(self.failure, PeerClosed)):
                if not self._out:
                    self._work = trio.Event()
                    await self._work.wait()
                    continue
                await self._stream.send_all(self._take_out())
                self._last_sent = trio.current_time()
                self._sending_bytes = 0
                if not self._out:
                    self._answers = 0
                self._room.wake()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            await self._lose(LinkError(f"the connection to {self.where} was lost"))
        finally:
            self._written.set()

    async def _beat(self) -> None:
        """Send a heartbeat after half an interval of silence; give up after two intervals without received bytes."""
        half = self.heartbeat_s / 2
        while self.failure is None:
            await trio.sleep(half)
            now = trio.current_time()
            if now - self._last_sent >= half * 0.9 and not self._sending_bytes:
                self.send(methods.HEARTBEAT_FRAME)
            # While we do not read, silence is ours.
            if self.inbox_bytes > INBOX_BYTES:
                self._last_received = now
            elif now - self._last_received > 2 * self.heartbeat_s:
                await self._lose(LinkError(f"{self.where} was silent for {2 * self.heartbeat_s} s: missed heartbeats"))

    # --- receiving ----------------------------------------------------------------------------------------------

    def freed(self, size: int) -> None:
        """Tell that `size` bytes of deliveries were taken."""
        was_full = self.inbox_bytes > INBOX_BYTES
        self.inbox_bytes -= size
        if was_full and self.inbox_bytes <= INBOX_BYTES:
            self.changed.wake()

    async def _read(self) -> None:
        try:
            while self.failure is None:
                self._feed()
                while self.inbox_bytes > INBOX_BYTES and self.failure is None and not self.is_closing:
                    await self.changed.wait()
                    self._last_received = trio.current_time()
                if await self._inbound.turn(self):
                    self._last_received = self._progress_s = trio.current_time()
                await self._receive_more()
        except _Nonsense as error:
            await self._lose(LinkError(f"{self.where} {error}"))
        except AmqpError as error:
            await self._lose(LinkError(f"{self.where} sent something malformed: {error.explanation}"))
        except LinkError as error:
            await self._lose(error)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            await self._lose(LinkError(f"the connection to {self.where} was lost"))

    def holds(self, count: int) -> None:
        """Count bytes of incomplete contents, which have come, or which are complete or dropped (negative)."""
        if count > 0:
            self._inbound.grown(self, count)
            self._progress_s = trio.current_time()
        else:
            self._inbound.completed(self, -count)

    async def _receive_more(self) -> None:
        until_s = self._progress_s + STALL_S if self.partial_bytes else math.inf
        with trio.move_on_at(until_s) as stalled:
            data = bytes(await self._stream.receive_some(self._read_bytes))
        if stalled.cancelled_caught:
            raise LinkError(f"{self.where} stopped within a message for {STALL_S:.0f} s")
        if not data:
            raise LinkError(f"{self.where} closed the connection without giving a reason")
        self._last_received = trio.current_time()
        self._carry = self._carry + data if self._carry else data

    def _feed(self) -> None:
        """Walk the whole frames of the received bytes, and read less at a time where they are small."""
        data = self._carry
        pos = frames = 0
        end = len(data)
        while end - pos >= 7:
            kind, number, size = _HEAD.unpack_from(data, pos)
            if size > self.frame_max_bytes - 8:
                raise _Nonsense(f"sent a frame of {size} bytes; {self.frame_max_bytes} were agreed on")
            start = pos + 7
            stop = start + size
            if stop >= end:
                break
            if data[stop] != 0xCE:
                raise _Nonsense("sent a frame without its end octet")
            self._frame(kind, number, data, start, stop)
            pos = stop + 1
            frames += 1
        self._carry = data[pos:] if pos else data
        if frames * SMALL_FRAME_BYTES > end:
            self._read_bytes = READ_MIN_BYTES
        elif end >= self._read_bytes:
            self._read_bytes = min(2 * self._read_bytes, READ_MAX_BYTES)

    def _frame(self, kind: int, number: int, data: bytes, start: int, stop: int) -> None:
        if kind == methods.FRAME_HEARTBEAT:
            if number or stop != start:
                raise _Nonsense("sent a heartbeat on a channel")
            return
        if not number:
            if kind != methods.FRAME_METHOD:
                raise _Nonsense("sent a content on channel 0")
            self._on_method(decode_method(data, start, stop))
            return
        channel = self._channels.get(number)
        if channel is None:
            return  # it was closed while this was on its way
        if kind == methods.FRAME_BODY:
            channel.receive_body(data, start, stop)
        elif kind == methods.FRAME_HEADER:
            channel.receive_header(data, start, stop)
        elif kind != methods.FRAME_METHOD:
            raise _Nonsense(f"sent a frame of the unknown type {kind}")
        elif channel.in_content:
            raise _Nonsense("sent a method where a content was due")
        elif stop - start < 4:
            raise _Nonsense("sent a method frame shorter than a method id")
        else:
            (packed,) = _METHOD_ID.unpack_from(data, start)
            if packed == _DELIVER:
                channel.begin_content(_deliver_arguments(data, start + 4, stop))
            elif packed == _ACK and stop - start == 13:
                channel.receive_ack(_TAG.unpack_from(data, start + 4)[0], bool(data[start + 12] & 1))
            else:
                channel.receive_method(decode_method(data, start, stop))

    def _on_method(self, method: Any) -> None:
        if isinstance(method, methods.ConnectionClose):
            self.send(method_frame(0, methods.ConnectionCloseOk()))
            raise PeerClosed(self.where, "connection", method.reply_code, method.reply_text)
        elif isinstance(method, methods.ConnectionCloseOk):
            self._closed.set()
            self._fail(LinkError(f"the connection to {self.where} is closed"))
        elif isinstance(method, methods.ConnectionBlocked):
            self.blocked_reason = method.reason
            self.changed.wake()
        elif isinstance(method, methods.ConnectionUnblocked):
            self.blocked_reason = None
            self._room.wake()
            self.changed.wake()
        else:
            raise _Nonsense(f"sent {_name(method)} unasked")

    # --- life ---------------------------------------------------------------------------------------------------

    async def open_channel(self) -> Channel:
        """Open another channel."""
        self.check()
        channel = Channel(self, self._next_channel)
        self._next_channel += 1
        self._channels[channel.number] = channel
        await channel.call(methods.ChannelOpen(""), methods.ChannelOpenOk)
        return channel

    def drop(self, channel: Channel) -> None:
        """Forget a channel that was closed; its deliveries that were not taken no longer count."""
        self._channels.pop(channel.number, None)
        channel.drop_content()
        self.freed(channel.delivery_bytes)
        channel.delivery_bytes = 0

    async def _next_method(self, expected: type[M]) -> M:
        """During the handshake: return the next method on channel 0."""
        while True:
            if len(self._carry) >= 7:
                kind, number, size = _HEAD.unpack_from(self._carry, 0)
                if size > FRAME_MAX_BYTES or kind not in (methods.FRAME_METHOD, methods.FRAME_HEARTBEAT) or number:
                    raise LinkError(f"{self.where} does not speak AMQP 0-9-1")
                if len(self._carry) >= size + 8:
                    method = decode_method(self._carry, 7, 7 + size) if kind == methods.FRAME_METHOD else None
                    self._carry = self._carry[size + 8 :]
                    if isinstance(method, methods.ConnectionClose):
                        raise PeerClosed(self.where, "connection", method.reply_code, method.reply_text)
                    if isinstance(method, expected):
                        return method
                    if method is not None:
                        raise LinkError(f"{self.where} sent {_name(method)} during the handshake")
                    continue
            await self._receive_more()

    async def handshake(self, uri: BrokerUri, client_properties: Table) -> None:
        """Log in and open the vhost."""
        await self._stream.send_all(methods.PROTOCOL_HEADER)
        start = await self._next_method(methods.ConnectionStart)
        self.server_properties = start.server_properties
        mechanism, response = _credentials(uri, start.mechanisms.decode("ascii", "replace").split(), self.where)
        ok = methods.ConnectionStartOk(client_properties, mechanism, response, "en_US")
        await self._stream.send_all(method_frame(0, ok))
        try:
            tune = await self._next_method(methods.ConnectionTune)
        except LinkError as error:
            if isinstance(error, PeerClosed):
                raise
            raise LinkError(f"{self.where} refused the login") from None
        frame_max = min(tune.frame_max or FRAME_MAX_BYTES, FRAME_MAX_BYTES)
        if frame_max < methods.FRAME_MIN_BYTES:
            raise LinkError(f"{self.where} takes frames of {frame_max} bytes; {methods.FRAME_MIN_BYTES} are the least")
        channel_max = tune.channel_max
        if uri.channel_max:
            channel_max = min(uri.channel_max, channel_max) if channel_max else uri.channel_max
        self.heartbeat_s = uri.heartbeat_s
        await self._stream.send_all(
            method_frame(0, methods.ConnectionTuneOk(channel_max, frame_max, self.heartbeat_s))
            + method_frame(0, methods.ConnectionOpen(uri.vhost, "", reserved_2=False))
        )
        self.frame_max_bytes = frame_max
        await self._next_method(methods.ConnectionOpenOk)

    def start(self, nursery: trio.Nursery) -> None:
        self._last_sent = self._last_received = trio.current_time()
        for task in (self._read, self._write):
            # A cancelled link still has to send acks and close: these two tasks end with `close`.
            scope = trio.CancelScope(shield=True)
            self._tasks.append(scope)
            nursery.start_soon(self._run, task, scope)
        if self.heartbeat_s:
            nursery.start_soon(self._beat)

    async def _run(self, task: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        with scope:
            await task()

    async def close(self) -> None:
        """Say goodbye, wait for the answer a little, and close the socket. Never raises, nor is it cancelled."""
        if self.is_closing:
            return
        # From here on deliveries are dropped, so that a full inbox does not keep us from reading the answer.
        self.is_closing = True
        self.changed.wake()
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
            if self.failure is None:
                self.send(method_frame(0, methods.ConnectionClose(REPLY_SUCCESS, "done", 0, 0)))
                await self._closed.wait()
            if isinstance(self.failure, PeerClosed) and self._tasks:
                await self._written.wait()
        self._fail(LinkError(f"the connection to {self.where} is closed"))
        for scope in self._tasks:
            scope.cancel()
        self._channels.clear()  # they refer to us
        with trio.CancelScope(shield=True):  # otherwise a cancelled task would not get to closing a second connection
            await trio.aclose_forcefully(self._stream)


def _deliver_arguments(data: bytes, pos: int, end: int) -> tuple[int, bool, str, str]:
    """Return delivery_tag, redelivered, exchange and routing_key of basic.deliver."""
    pos += 1 + data[pos]
    if pos + 11 > end:
        raise _Nonsense("sent a malformed basic.deliver")
    (tag,) = _TAG.unpack_from(data, pos)
    redelivered = bool(data[pos + 8] & 1)
    pos += 9
    middle = pos + 1 + data[pos]
    if middle >= end or middle + 1 + data[middle] != end:
        raise _Nonsense("sent a malformed basic.deliver")
    exchange = data[pos + 1 : middle].decode("utf-8", "surrogateescape")
    return tag, redelivered, exchange, data[middle + 1 : end].decode("utf-8", "surrogateescape")


def _credentials(uri: BrokerUri, offered: Sequence[str], where: str) -> tuple[str, bytes]:
    wanted = uri.mechanisms
    if not wanted:
        certified = uri.certificate_file is not None and uri.user is None
        wanted = ("EXTERNAL", "PLAIN") if certified else ("PLAIN",)
    known = set(offered)  # which may be tens of thousands
    for mechanism in wanted:
        if mechanism not in known:
            continue
        if mechanism == "EXTERNAL":
            return mechanism, b""
        if mechanism == "PLAIN":
            user = "guest" if uri.user is None else uri.user
            password = "guest" if uri.password is None and uri.user is None else uri.password or ""
            return mechanism, b"\0" + user.encode() + b"\0" + password.encode()
    theirs, ours = " ".join(offered)[:SHOWN_CHARACTERS], " or ".join(wanted)[:SHOWN_CHARACTERS]
    raise LinkError(f"{where} offers {theirs} to log in with, the URI asks for {ours}")


# --- connecting -----------------------------------------------------------------------------------------------------


async def _dial(uri: BrokerUri, settings: ClientSettings, where: str) -> trio.SocketStream:
    """Connect to the first permitted address of the host that answers."""
    try:
        found = await trio.socket.getaddrinfo(uri.host, uri.port, type=trio.socket.SOCK_STREAM)
    except OSError as error:
        raise LinkError(f"cannot resolve {where}: {error.strerror or error}") from None
    except UnicodeError:
        raise LinkError(f"cannot resolve {where}: that is no host name") from None
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
        raise LinkError(f"no TLS with {where}: its server name is no host name") from None
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        raise LinkError(f"no TLS with {where}: {_said_by_tls(error) or 'the handshake failed'}") from None
    return secured


def _said_by_tls(error: BaseException) -> str:
    """Return the reason that TLS gives for a lost connection, such as the alert of the peer; ``""`` without one."""
    cause = error.__cause__
    return getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or ""


async def connect(
    nursery: trio.Nursery,
    uri: BrokerUri,
    settings: ClientSettings,
    connection_name: str,
    open_local: Callable[[], Any] | None = None,
    ends: Ends | None = None,
) -> Connection:
    """Open a connection; its tasks run in `nursery` until `Connection.close`, which the caller must call.

    `ends`: those of all connections that may be lost with it, if there are others.
    `open_local`: asynchronous, returns the stream to this broker; used for a URI without host, which then has its
    credentials in it.

    Raises:
        LinkError: unreachable, not permitted, refused, or not done in the URI's connection_timeout.
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
                    raise LinkError("a URI without host, and no local broker")
                stream = await open_local()
            else:
                stream = await _dial(uri, settings, where)
                if uri.tls:
                    stream = await _secure(stream, uri, where)
            assert stream is not None
            connection = Connection(stream, where, settings.max_message_bytes, ends or Ends(), settings.inbound)
            await connection.handshake(uri, properties)
    except BaseException as error:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        if isinstance(error, trio.TooSlowError):
            raise LinkError(f"{where} did not accept a connection in {uri.connection_timeout_ms} ms") from None
        if isinstance(error, AmqpError):
            raise LinkError(f"{where} sent something malformed: {error.explanation}") from None
        if isinstance(error, OSError | trio.BrokenResourceError | trio.ClosedResourceError | ssl.SSLError):
            # With TLS 1.3 a peer refuses our certificate when for us the handshake of TLS is done.
            reason = _said_by_tls(error)
            because = f": {reason}" if reason else ""
            raise LinkError(f"the connection to {where} was lost during the handshake{because}") from None
        raise
    connection.start(nursery)
    return connection


def is_unknown_exchange_type(error: LinkError) -> bool:
    """Tell whether a declaration failed because the broker does not know the type: 503, or 406 in newer ones."""
    if not isinstance(error, PeerClosed):
        return False
    return error.reply_code == COMMAND_INVALID or "unknown exchange type" in error.reply_text
