"""The firehose: copies of published and delivered messages of a vhost go to its exchange ``amq.rabbitmq.trace``.

    routing key           publish.<exchange>, deliver.<queue>; cut after 255 bytes
    body                  that of the message
    headers               S longstr, I signedint (l where 32 bits do not hold it), A array of longstr, F table
      exchange_name     S   where the message was published to
      routing_keys      A   the routing key and those of CC; of a publish those of BCC too
      properties        F   of the message, named as in the specification; texts S, numbers I, headers F
      node              S
      redelivered       I   of a delivery only: 0 or 1
      vhost             S
      connection        S   peer -> local, of the publisher or consumer
      channel           I
      user              S
      routed_queues     A   of a publish only: the queues that it goes to, but for the one of a direct reply-to

1. A publish is traced when it is routed, in a transaction too, whether a queue takes it or not; a delivery when it is
   written, by basic.get too. Publishes of the broker itself are not traced: dead letters, events, traces. Replies to a
   direct reply-to are not traced as deliveries.
2. A message that was published to the trace exchange, or had been before it died for the first time, is never traced.
   So one publish or delivery makes one trace, however the trace exchange and its queues are bound and dead-lettered.
   A client that sends ``x-first-death-exchange`` itself hides deliveries of the message, but not the publish.
3. Traces are published at the end of the turn, in order (`channels.own_messages`); they are transient.
4. Tracing is switched by vhost while the broker runs, and is off after a start.

Cost when it is off: a publish costs nothing. While it is on, routes are not cacheable and every publish takes
`publish_with_care`, and switching changes the topology version. A delivery costs one comparison with None, which is
always the same (`DeliveryLedger.watcher`). Spans (`channels.spans`) are told by the same two hooks.

Source: RabbitMQ, "Firehose Tracer"; names and types as 3.10.8 sends them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.amqp.field_table import decode_table, encode_table, with_length
from warren.amqp.properties import BasicProperties, decode_properties
from warren.channels.own_messages import cut_short, fits, header_frame
from warren.msgstore.log.message import Envelope, Message
from warren.queues.dead_letter import with_properties
from warren.queues.delivery import DeliveryWatcher
from warren.queues.receiver import Receiver

if TYPE_CHECKING:
    from warren.channels.peer import Peer

TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
# Limits for queues and keys, in a trace whose headers would be too large: the message's own are left out as well.
NAMES_MAX: Final = 1000
NAMES_MAX_BYTES: Final = 16384
_FIRST_DEATH: Final = b"\x16x-first-death-exchangeS\x00\x00\x00\x12amq.rabbitmq.trace"
_HEADERS_FLAG: Final = b"\x20\x00"
_COPIES: Final = b"\x02CC"


class TrafficWatcher(DeliveryWatcher):
    """Told of everything that a session publishes and is sent."""

    def published(self, keys: list[str], message: Message, queues: list[Receiver]) -> None:
        """Trace a publish of `message` to `queues`. `keys`: its routing key, and those of CC and BCC."""
        raise AssertionError("overridden")


class BothWatchers(TrafficWatcher):
    """Two instead of one."""

    def __init__(self, first: TrafficWatcher, second: TrafficWatcher) -> None:
        self._first = first
        self._second = second

    def published(self, keys: list[str], message: Message, queues: list[Receiver]) -> None:
        self._first.published(keys, message, queues)
        self._second.published(keys, message, queues)

    def delivered(self, queue: Receiver, message: Message, redelivered: bool) -> None:
        self._first.delivered(queue, message, redelivered)
        self._second.delivered(queue, message, redelivered)


class ChannelTracer(TrafficWatcher):
    """Traces the messages that one channel publishes and is sent."""

    def __init__(self, peer: Peer, number: int) -> None:
        vhost = peer.vhost
        assert vhost is not None
        broker = peer.broker
        self._own_messages = broker.own_messages
        self._vhost = vhost
        self._node = _text("node", broker.node)
        place: dict[str, object] = {
            "vhost": vhost.name,
            "connection": peer.origin.ends(),
            "channel": number,
            "user": peer.login.user_name,
        }
        self._place = encode_table(place)[4:]

    def published(self, keys: list[str], message: Message, queues: list[Receiver]) -> None:
        replies = self._vhost.reply_queues
        names = [queue.name for queue in queues if queue.name not in replies]
        key = "publish." + message.envelope.exchange
        self._trace(key, message, keys, b"", names, True)

    def delivered(self, queue: Receiver, message: Message, redelivered: bool) -> None:
        if message.envelope.exchange == TRACE_EXCHANGE or _died_as_trace(message):
            return
        if queue.name in self._vhost.reply_queues:
            return
        flag = b"\x0bredeliveredI\x00\x00\x00" + (b"\x01" if redelivered else b"\x00")
        self._trace("deliver." + queue.name, message, _keys_of(message), flag, [], False)

    def _trace(
        self, key: str, message: Message, keys: list[str], redelivered: bytes, names: list[str], routed: bool
    ) -> None:
        properties = _decoded_properties(message)
        headers = self._headers(message.envelope, keys, properties, redelivered, names, routed)
        if not fits(headers):
            properties.headers = None
            headers = self._headers(message.envelope, _first(keys), properties, redelivered, _first(names), routed)
        made = with_properties(message, _HEADERS_FLAG + headers)
        made.envelope = Envelope(TRACE_EXCHANGE, cut_short(key))
        made.persistent = False
        made.time_ms = 0
        made.expiration_ms = -1
        made.due_ms = 0
        made.attempts = 0
        self._own_messages.add(self._vhost, made)

    def _headers(
        self,
        envelope: Envelope,
        keys: list[str],
        properties: BasicProperties,
        redelivered: bytes,
        names: list[str],
        routed: bool,
    ) -> bytes:
        parts = [
            _text("exchange_name", envelope.exchange),
            _texts("routing_keys", keys),
            b"\x0apropertiesF" + _table_of(properties),
            self._node,
            redelivered,
            self._place,
        ]
        if routed:
            parts.append(_texts("routed_queues", names))
        return with_length(b"".join(parts))


def _first(names: list[str]) -> list[str]:
    """Return as many of `names` as a trace has room for in any case."""
    count = 0
    size = 0
    for name in names[:NAMES_MAX]:
        size += 5 + len(name.encode("utf-8", "surrogateescape"))
        if size > NAMES_MAX_BYTES:
            break
        count += 1
    return names[:count]


def _decoded_properties(message: Message) -> BasicProperties:
    header = header_frame(message)
    return decode_properties(header, 7, len(header) - 1)


def _died_as_trace(message: Message) -> bool:
    return _FIRST_DEATH in header_frame(message)


def _keys_of(message: Message) -> list[str]:
    """Return the routing key of a delivered message and those of its CC; those of BCC are not kept."""
    keys = [message.envelope.routing_key]
    if _COPIES in header_frame(message):
        headers = _decoded_properties(message).headers
        copies = decode_table(headers).get("CC") if headers is not None else None
        if isinstance(copies, list):
            keys += [key for key in copies if isinstance(key, str)]
    return keys


def _table_of(properties: BasicProperties) -> bytes:
    """Encode the properties that are there as a table, with its length prefix."""
    texts_before = (("content_type", properties.content_type), ("content_encoding", properties.content_encoding))
    numbers: dict[str, object] = {}
    if properties.delivery_mode is not None:
        numbers["delivery_mode"] = properties.delivery_mode
    if properties.priority is not None:
        numbers["priority"] = properties.priority
    if properties.timestamp is not None:
        # Unsigned on the wire, but tables have no tag for such large numbers; the largest are shown as negative.
        numbers["timestamp"] = _signed(properties.timestamp)
    texts_behind = (
        ("correlation_id", properties.correlation_id),
        ("reply_to", properties.reply_to),
        ("expiration", properties.expiration),
        ("message_id", properties.message_id),
        ("type", properties.type),
        ("user_id", properties.user_id),
        ("app_id", properties.app_id),
        ("cluster_id", properties.cluster_id),
    )
    parts = [_text(name, value) for name, value in texts_before if value is not None]
    if properties.headers is not None:
        parts.append(b"\x07headersF" + properties.headers)
    parts.append(encode_table(numbers)[4:])
    parts += [_text(name, value) for name, value in texts_behind if value is not None]
    return with_length(b"".join(parts))


def _signed(value: int) -> int:
    return value if value < 1 << 63 else value - (1 << 64)


def _text(name: str, value: str) -> bytes:
    # Properties may hold bytes that are no UTF-8; they are passed on as they came.
    raw = value.encode("utf-8", "surrogateescape")
    return bytes([len(name)]) + name.encode() + b"S" + with_length(raw)


def _texts(name: str, values: list[str]) -> bytes:
    items = b"".join([b"S" + with_length(value.encode("utf-8", "surrogateescape")) for value in values])
    return bytes([len(name)]) + name.encode() + b"A" + with_length(items)
