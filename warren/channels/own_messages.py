"""Messages that the broker itself publishes: events (`channels.events`) and traces (`channels.tracing`).

1. They wait for the end of the turn. When they arise, a delivery or the deletion of a vhost may be under way, and
   publishing from there would come back to the same queue.
2. They go to the queues that are bound when they are published, in the order in which they were added. Nobody confirms
   them, and a message that no queue takes is gone.
3. Their headers have room in a frame of the usual size, and every receiver can decode them (`fits`). Their content
   comes from clients in part, and a client must not be able to break the connection of a receiver.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.field_table import is_valid_table
from warren.amqp.methods import FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES
from warren.exchanges.content import Content
from warren.msgstore.log.message import Message
from warren.queues.origin import BROKER
from warren.vhosts.own_publishes import route_own
from warren.vhosts.virtual_host import VirtualHost

HEADERS_MAX_BYTES: Final = 65536  # half of the usual frame_max


class OwnMessage:
    """A message to be published in `vhost`, to the exchange that its envelope names."""

    def __init__(self, vhost: VirtualHost, message: Message) -> None:
        self.vhost = vhost
        self.message = message


class OwnMessages:
    """The messages that the broker publishes at the end of the turn."""

    def __init__(self) -> None:
        self._waiting: list[OwnMessage] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, vhost: VirtualHost, message: Message) -> None:
        """Add `message` to those to publish."""
        self._waiting.append(OwnMessage(vhost, message))

    def publish(self) -> None:
        """Publish the waiting messages. Messages that this adds, traces of deliveries, wait for the next call."""
        if not self._waiting:
            return
        waiting = self._waiting
        self._waiting = []
        published: i64 = 0
        try:
            for own in waiting:
                published += 1
                _publish(own.vhost, own.message)
        finally:
            if published < len(waiting):
                self._waiting = waiting[published:] + self._waiting  # one has failed, not the others


def _publish(vhost: VirtualHost, message: Message) -> None:
    envelope = message.envelope
    exchange = vhost.exchanges.get(envelope.exchange)
    if exchange is None:
        return
    content = Content(header_frame(message)[FRAME_HEAD_BYTES:-1])
    routed = route_own(vhost, exchange, [envelope.routing_key], content)
    if routed.effects is not None:
        routed.effects.publish(message)
    for queue in routed.queues:
        if not queue.deleted:
            queue.accept(message, BROKER)


def header_frame(message: Message) -> bytes:
    """Return the content header frame, without joining a large body that came in pieces."""
    pieces = message.pieces
    data = message.content if pieces is None else pieces[0]
    return data[: FRAME_OVERHEAD_BYTES + (i64(read_i32_be(data, 3)) & 0xFFFFFFFF)]


def fits(headers: bytes) -> bool:
    """Tell whether an encoded headers table is one that any client can be sent, and any exchange can decode."""
    return len(headers) <= HEADERS_MAX_BYTES and is_valid_table(headers)


def cut_short(text: str) -> str:
    """Return as much of `text` as a short string holds."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) <= NAME_MAX_BYTES:
        return text
    end: i64 = NAME_MAX_BYTES
    while end > 0 and raw[end] & 0xC0 == 0x80:
        end -= 1  # not within a character
    return raw[:end].decode("utf-8", "surrogateescape")
