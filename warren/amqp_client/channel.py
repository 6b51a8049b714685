"""One channel of a client, without a socket: requests, contents, confirms, and the bounds on a peer.

1. Properties stay encoded, from delivery to publish: unless they are rewritten, they keep every byte.
2. A content takes its size in memory, in however many frames it comes. One larger than ``max_message_bytes`` is
   refused.
3. A peer may return only mandatory publishes, confirm only publishes, and cancel only consumers that there are.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from warren.amqp import methods
from warren.amqp.codec import decode_method, method_frame
from warren.amqp.errors import AmqpError
from warren.amqp.field_table import EMPTY_TABLE, FLAT_TABLE_BYTES
from warren.amqp.properties import BODY_SIZE_OFFSET, FLAGS_OFFSET, MIN_HEADER_BYTES, scan_properties
from warren.amqp_client import frames
from warren.amqp_client.client_errors import BrokerError, PeerClosed, Violation
from warren.amqp_client.frames import NO_PROPERTIES

if TYPE_CHECKING:
    from warren.amqp_client.connection import ClientConnection

_METHOD_ID: Final = Struct(">I")
_TAG: Final = Struct(">Q")

M = TypeVar("M")


class Delivery(NamedTuple):
    """A message from a queue. ``properties``: flag word and property list, as in a content header."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


def _cost(delivery: Delivery) -> int:
    """Return the bytes of a delivery in ``inbox_bytes``: without the constant, empty messages would be free."""
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


def method_name(method: Any) -> str:
    """Return the dotted name of a method, such as ``basic.qos``; "nothing" for None."""
    packed = methods.METHOD_IDS.get(type(method))
    return methods.METHODS[packed].name if packed is not None else "nothing"


def consume_method(
    queue: str,
    consumer_tag: str = "",
    *,
    no_ack: bool = False,
    exclusive: bool = False,
    arguments: bytes = EMPTY_TABLE,
) -> methods.BasicConsume:
    """Return a basic.consume that waits for its answer."""
    return methods.BasicConsume(
        0, queue, consumer_tag, no_local=False, no_ack=no_ack, exclusive=exclusive, no_wait=False, arguments=arguments
    )


class _Content:
    """A content on its way in: its method, then header, then body."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.properties = NO_PROPERTIES
        self.missing = -1
        self.body = bytearray()  # of one in several frames


class ClientChannel:
    """One channel. Nothing here waits: a driver waits for `replies`, `deliveries`, `confirms` or `failure`."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.failure: BrokerError | None = None
        self.published = 0
        self.reply: Any = None
        self.awaits_reply = False
        self.awaits_confirms = False
        self.deliveries: deque[Delivery] = deque()
        self.delivery_bytes = 0
        self.confirms: list[Confirm] = []
        self.returned: list[Returned] = []
        self.cancelled: set[str] = set()
        self._consumers: set[str] = set()
        self._returnable = 0  # mandatory publishes that the peer may still return
        self._content: _Content | None = None
        self._publish_key: tuple[str, str, bool] | None = None
        self._publish_frame = b""

    def notify(self) -> None:
        """Note that something has come, or that the channel has failed. For drivers to override."""

    def check(self) -> None:
        """Raise the error that ended the channel or its connection."""
        if self.failure is not None:
            raise self.failure.fresh()
        self.connection.check()

    # --- requests -----------------------------------------------------------------------------------------------

    def request(self, method: Any) -> None:
        """Queue a request for sending; its reply comes to `reply`."""
        self.check()
        self.reply = None
        self.awaits_reply = True
        self.connection.send(method_frame(self.number, method))

    def take_reply(self, method: Any, reply: type[M]) -> M:
        """Return the reply to `method` that has come.

        Raises:
            BrokerError: it is another one than `reply`, which ends the connection.
        """
        answer, self.reply = self.reply, None
        if not isinstance(answer, reply):
            raise self.connection.fail_with(f"answered {method_name(method)} with {method_name(answer)}")
        return answer

    # --- messages -----------------------------------------------------------------------------------------------

    def expect_confirms(self) -> None:
        """Count publishes from here on: the channel has been put into confirm mode."""
        self.published = 0
        self.awaits_confirms = True

    def takes(self, properties: bytes) -> bool:
        """Tell whether a content header may have these properties: it is one frame, whose headers are a valid table."""
        if FLAGS_OFFSET + len(properties) > self.connection.frame_max_bytes - methods.FRAME_OVERHEAD_BYTES:
            return False
        if len(properties) > FLAT_TABLE_BYTES:
            payload = bytes(FLAGS_OFFSET) + properties
            try:
                scan_properties(payload, 0, len(payload))
            except AmqpError:
                return False
        return True

    def publish(
        self, exchange: str, routing_key: str, properties: bytes, body: bytes, *, mandatory: bool = False
    ) -> int:
        """Queue one message for sending and return its sequence number.

        Raises:
            BrokerError: the channel is closed, a name is too long, or the properties do not fit a frame.
        """
        self.check()
        key = (exchange, routing_key, mandatory)
        if key != self._publish_key:
            try:
                self._publish_frame = frames.publish_method(self.number, exchange, routing_key, mandatory=mandatory)
            except ValueError as error:
                raise BrokerError(str(error)) from None
            self._publish_key = key
        connection = self.connection
        room = connection.frame_max_bytes - methods.FRAME_OVERHEAD_BYTES
        if FLAGS_OFFSET + len(properties) > room:
            raise BrokerError(f"{connection.where} does not accept content headers of {len(properties)} bytes")
        size = len(body)
        head = (self._publish_frame, frames.content_head(self.number, size, len(properties)), properties, frames.END)
        if size <= room:
            body_frame = (frames.HEAD.pack(3, self.number, size), body, frames.END) if size else ()
            connection.send(b"".join((*head, *body_frame)))
        else:
            connection.send(b"".join(head))
            view = memoryview(body)  # a large body is sent in parts, and not copied before
            for at in range(0, size, room):
                part = view[at : at + room]
                connection.send(frames.HEAD.pack(3, self.number, len(part)))
                connection.send(part)
                connection.send(frames.END)
        self._returnable += mandatory
        self.published += 1
        return self.published

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Queue an ack for sending."""
        self.check()
        self.connection.send(frames.ack(self.number, delivery_tag, multiple=multiple))

    def requeue(self, delivery_tag: int) -> None:
        """Give one delivery back to its queue, where it does not count as a failed one if the broker has that."""
        self.check()
        back: Any = methods.BasicReject(delivery_tag, requeue=True)
        if self.connection.knows("basic.nack"):
            back = methods.BasicNack(delivery_tag, multiple=False, requeue=True)
        self.connection.send(method_frame(self.number, back))

    def take_deliveries(self, limit: int | None = None) -> list[Delivery]:
        """Return received deliveries, at most `limit`, oldest first; reading resumes when there is room again."""
        count = len(self.deliveries) if limit is None else min(limit, len(self.deliveries))
        taken = [self.deliveries.popleft() for _ in range(count)]
        freed = sum(map(_cost, taken))
        self.delivery_bytes -= freed
        self.connection.freed(freed)
        return taken

    def take_confirms(self) -> list[Confirm]:
        """Return the confirms that have come."""
        taken, self.confirms = self.confirms, []
        return taken

    def forget_consumer(self, consumer_tag: str) -> None:
        """Note that this end has cancelled a consumer."""
        self._consumers.discard(consumer_tag)

    # --- from the connection ------------------------------------------------------------------------------------

    def fail(self, error: BrokerError) -> None:
        """End the channel."""
        if self.failure is None:
            self.failure = error
        self.notify()

    def receive_method_frame(self, data: bytes, start: int, stop: int) -> None:
        """Handle the payload ``data[start:stop]`` of a method frame."""
        if self._content is not None:
            raise Violation("sent a method where a content was due")
        if stop - start < 4:
            raise Violation("sent a method frame shorter than a method id")
        (packed,) = _METHOD_ID.unpack_from(data, start)
        if packed == methods.BASIC_DELIVER:
            self.begin_content(_deliver_arguments(data, start + 4, stop))
        elif packed == methods.BASIC_ACK and stop - start == methods.ACK_BYTES:
            (tag,) = _TAG.unpack_from(data, start + 4)
            self._receive_confirm(Confirm(tag, bool(data[start + 12] & 1), True))
        else:
            self._receive_method(decode_method(data, start, stop))

    def _receive_method(self, method: Any) -> None:
        connection = self.connection
        if isinstance(method, methods.ChannelClose):
            connection.send(method_frame(self.number, methods.ChannelCloseOk()))
            connection.drop(self)
            self.fail(PeerClosed(connection.where, "channel", method.reply_code, method.reply_text))
        elif isinstance(method, methods.BasicReturn):
            if not self._returnable:
                raise Violation("returned a message that it has not got")
            self._returnable -= 1
            self.begin_content(method)
        elif isinstance(method, methods.BasicNack):
            self._receive_confirm(Confirm(method.delivery_tag, method.multiple, False))
        elif isinstance(method, methods.BasicCancel):
            if method.consumer_tag not in self._consumers:
                raise Violation("cancelled a consumer that it has not got")
            self._consumers.discard(method.consumer_tag)
            self.cancelled.add(method.consumer_tag)
            if not method.no_wait:
                connection.send_answer(method_frame(self.number, methods.BasicCancelOk(method.consumer_tag)))
            self.notify()
        elif isinstance(method, methods.ChannelFlow):
            connection.send_answer(method_frame(self.number, methods.ChannelFlowOk(active=method.active)))
        elif self.awaits_reply:
            if isinstance(method, methods.BasicConsumeOk):
                self._consumers.add(method.consumer_tag)  # now: its cancel may be in the same read
            self.reply = method
            self.notify()
        else:
            raise Violation(f"sent {method_name(method)} unasked")

    def _receive_confirm(self, confirm: Confirm) -> None:
        # Nobody takes an unexpected confirm, and one for a later publish would cause an ack at the source too early. So
        # would 0, for everything so far: the peer has not got all of it yet. Brokers name the number.
        if not self.awaits_confirms or not 0 < confirm.sequence <= self.published:
            raise Violation("confirmed a publish that it has not got")
        self.confirms.append(confirm)
        self.notify()

    def begin_content(self, method: Any) -> None:
        """Expect the content of `method`: arguments of basic.deliver, or a basic.return."""
        self._content = _Content(method)

    def receive_header(self, data: bytes, start: int, stop: int) -> None:
        """Handle the payload ``data[start:stop]`` of a content header."""
        content = self._content
        if content is None or content.missing >= 0:
            raise Violation("sent a content header that belongs to nothing")
        if stop - start < MIN_HEADER_BYTES:
            raise Violation("sent a content header that is too short")
        scan_properties(data, start, stop)
        (content.missing,) = _TAG.unpack_from(data, start + BODY_SIZE_OFFSET)
        limit = self.connection.max_message_bytes
        if content.missing > limit:
            raise Violation(f"sent a message of {content.missing} bytes; {limit} are accepted at most")
        content.properties = data[start + FLAGS_OFFSET : stop]
        if not content.missing:
            self._complete(content, b"")

    def receive_body(self, data: bytes, start: int, stop: int) -> None:
        """Handle the payload ``data[start:stop]`` of a body frame."""
        content = self._content
        if content is None or content.missing < 0:
            raise Violation("sent a body that belongs to nothing")
        if stop - start > content.missing or stop == start:
            raise Violation("sent a body frame that is longer than announced, or empty")
        content.missing -= stop - start
        if not content.missing and not content.body:
            self._complete(content, data[start:stop])
            return
        content.body += data[start:stop]
        self.connection.holds(stop - start)
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
        self.notify()


def _deliver_arguments(data: bytes, pos: int, end: int) -> tuple[int, bool, str, str]:
    """Return delivery_tag, redelivered, exchange and routing_key of basic.deliver."""
    pos += 1 + data[pos]
    if pos + 11 > end:
        raise Violation("sent a malformed basic.deliver")
    (tag,) = _TAG.unpack_from(data, pos)
    redelivered = bool(data[pos + 8] & 1)
    pos += 9
    middle = pos + 1 + data[pos]
    if middle >= end or middle + 1 + data[middle] != end:
        raise Violation("sent a malformed basic.deliver")
    exchange = data[pos + 1 : middle].decode("utf-8", "surrogateescape")
    return tag, redelivered, exchange, data[middle + 1 : end].decode("utf-8", "surrogateescape")
