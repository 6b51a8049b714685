"""Deliveries to a client, written as transfers.

1. The delivery id is the broker's tag of the delivery minus one, in 32 bits. The delivery tag of AMQP 1.0 is the same
   as the id. Tags begin at 1, without gaps: messages that the broker itself sends on the session take a tag, too.
2. Each transfer uses up one of the session's window. When the window is used up, nothing is handed out (`is_shut`)
   until the peer widens it. If a delivery is cut at that point, its rest is held, and is sent first.
3. No frame is larger than the peer takes. If a delivery needs several frames, they are made as the socket takes them.
4. A message that is larger than the receiver takes (`max-message-size`) is not sent. Its delivery already has a place
   in the sequence of the session. So the session ends, as with RabbitMQ, and its deliveries are requeued. On a link
   with such a limit, deliveries that are sent settled are settled here only after their size is checked.
5. The encoded sections of a message are kept for the next one with the same envelope and properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i32_be, write_i32_be
from mypy_extensions import i32, i64, u8

from warren.amqp.methods import FRAME_OVERHEAD_BYTES
from warren.amqp.outbox import CHUNK_MIN_BYTES, NOWHERE, Supply
from warren.amqp.properties import BasicProperties, decode_properties
from warren.amqp10.conversion import data_head, delivery_count_of, header_section
from warren.amqp10.error_conditions import MESSAGE_SIZE, LinkError
from warren.amqp10.link_draining import continue_drains
from warren.amqp10.originals import Shown, StoredLayout
from warren.amqp10.performatives import to_i32
from warren.channels.prepared_publish import PROPERTIES_AT
from warren.msgstore.log.message import HEADER_AT, Envelope, Message
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger
from warren.queues.timers import Timer

if TYPE_CHECKING:
    from warren.amqp10.peer import Amqp10Peer
    from warren.amqp10.session import Amqp10Session

# The bytes of a transfer before its payload: with `more` one byte more.
WHOLE_BYTES: Final = 29
PART_BYTES: Final = 30
# A body of at least this size is sent from where it is stored, without joining its pieces. It always takes several
# transfers.
LARGE_MIN_BYTES: Final = 1 << 20
# The size of the pieces in which a delivery of several frames is made.
PIECE_BYTES: Final = 1 << 18


def transfer_head(channel: int, handle: int) -> bytes:
    """Return a transfer on `handle`, which is below 256, from after its size up to its delivery id."""
    return bytes([2, 0, channel >> 8, channel & 255, 0, 0x53, 0x14, 0xC0, 0x10, 5, 0x52, handle, 0x70])


class Outgoing:
    """A delivery that takes several transfers; `frames_left` of them must not be sent yet."""

    def __init__(
        self, head: bytes, tag: bytes, settled: bool, prefix: bytes, body: list[memoryview], size: i64, room: i64
    ) -> None:
        self.handle: i64 = head[11]
        self.frames_left: i64 = (len(prefix) + size + room - 1) // room
        self._head = head
        self._more_head = head[:8] + b"\x11\x06" + head[10:]
        self._tag = tag
        self._settled: bool = settled
        self._prefix = prefix
        self._body = body  # in its stored parts
        self._part: i64 = 0  # which of its parts is next, and from which byte on
        self._pos: i64 = 0
        self._room: i64 = room
        self._left: i64 = len(prefix) + size  # bytes of the payload that have to be made
        self._promised: i64 = self._left  # bytes of the payload that must not be sent yet

    def take(self, frames: i64) -> Transfers:
        """Return the next transfers."""
        size: i64 = self._room * frames
        overhead: i64 = PART_BYTES * frames
        self.frames_left -= frames
        if self.frames_left == 0:
            size = self._promised
            overhead -= 1
        self._promised -= size
        return Transfers(self, frames, size + overhead)

    def write(self, out: BytesWriter) -> None:
        """Make the next transfer."""
        size: i64 = self._left
        is_last: bool = size <= self._room
        if not is_last:
            size = self._room
        write_i32_be(out, i32(size + (WHOLE_BYTES if is_last else PART_BYTES)))
        out.write(self._head if is_last else self._more_head)
        out.write(self._tag)
        out.write(b"\xa0\x04")
        out.write(self._tag)
        out.append(0x43)
        out.append(0x41 if self._settled else 0x42)
        if not is_last:
            out.append(0x41)
        self._left -= size
        prefix = self._prefix
        if len(prefix) > 0:
            taken: i64 = len(prefix)
            if taken > size:
                taken = size
            out.write(prefix[:taken])
            self._prefix = prefix[taken:]
            size -= taken
        while size > 0:
            part = self._body[self._part]
            have: i64 = len(part) - self._pos
            if have > size:
                have = size
            out.write(bytes(part[self._pos : self._pos + have]))
            self._pos += have
            size -= have
            if self._pos == len(part):
                self._part += 1
                self._pos = 0
        if self._left == 0:
            self._body = []


class Transfers(Supply):
    """Some of the transfers of a delivery."""

    def __init__(self, outgoing: Outgoing, frames: i64, size: i64) -> None:
        super().__init__(size)
        self._outgoing = outgoing
        self._frames: i64 = frames

    def next_piece(self) -> bytes:
        out = BytesWriter()
        while self._frames > 0 and len(out) < PIECE_BYTES:
            self._outgoing.write(out)
            self._frames -= 1
        made = out.getvalue()
        self.left_bytes -= len(made)
        return made


class SizeLimit:
    """The largest message that a receiver takes, in bytes. `settles`: its messages are sent settled."""

    def __init__(self, most: i64, *, settles: bool) -> None:
        self.most: i64 = most
        self.settles: bool = settles


_NO_LIMITS: Final[dict[Consumer, SizeLimit]] = {}  # shared by all without any: never changed


class OversizedEnd(Timer):
    """Ends the session of a receiver that does not take a message. A timer does it, after the queue has handed out."""

    def __init__(self, session: Amqp10Session, error: LinkError) -> None:
        super().__init__()
        self._session = session
        self._error = error

    def due(self, now_ms: i64) -> None:
        self._session.refuse(self._error, 0)


class Amqp10Ledger(DeliveryLedger):
    """The deliveries of one session. `window`: the number of transfers that its peer takes."""

    def __init__(self, peer: Amqp10Peer, number: i64, channel: int, window: i64, unacked_max: i64) -> None:
        super().__init__(number, peer.turns, 0, unacked_max)
        self.channel = channel
        self.session: Amqp10Session | None = None
        self.window: i64 = window
        self.next_outgoing_id: i64 = 0
        self.own: i64 = 0  # deliveries that the broker itself has sent
        self.frame_bytes: i64 = peer.peer_frame_bytes
        self.is_shut = window == 0
        self._log = peer.broker.log
        self._timers = peer.broker.timers
        self._limits = _NO_LIMITS
        self._held: Outgoing | None = None
        self._is_ending: bool = False  # a delivery was not sent: no later one is, see (4)
        # The encoded form of the last delivery, for the next one with the same envelope and properties.
        self._envelope: Envelope | None = None
        self._properties = b""
        self._decoded = BasicProperties()
        self._first = b""  # for the first delivery of a message
        self._expiration_ms: i64 = -1
        self._failures: int = 0
        self._sections = b""
        self._layout = StoredLayout(self._decoded, {})

    def limit(self, consumer: Consumer, most: i64, *, settles: bool) -> None:
        """Send the peer of a consumer no message with more than `most` bytes."""
        if self._limits is _NO_LIMITS:
            self._limits = {}
        self._limits[consumer] = SizeLimit(most, settles=settles)

    def forget_limit(self, consumer: Consumer) -> None:
        """Forget the limit of a consumer whose link has ended."""
        if self._limits:
            self._limits.pop(consumer, None)

    def write_delivery(self, consumer: Consumer, message: Message, tag: i64, redelivered: bool) -> None:
        consumer.credit -= 1
        content = message.header_frame()
        header_end: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        properties = content[HEADER_AT + PROPERTIES_AT : header_end - 1]
        if message.envelope is not self._envelope or properties != self._properties:
            self._describe(message.envelope, content, header_end)
            self._properties = properties
        prefix = self._first
        if redelivered or message.attempts > 0 or self._expiration_ms >= 0:
            prefix = self._header_of(message, redelivered) + self._sections
        size: i64 = message.body_bytes
        body_at: i64 = header_end + HEADER_AT
        layout = self._layout
        limit = self._limits.get(consumer) if self._limits else None
        settled: bool = consumer.no_ack
        if limit is not None:
            behind: i64 = len(data_head(size)) + size if layout.is_usual else len(layout.sections(message.body()))
            if not self._takes(limit, len(prefix) + behind):
                return
            if limit.settles:
                settled = True
                self.ack(tag, False)
        if not layout.is_usual:
            self._send(consumer.deliver_head, tag, settled, prefix, layout.sections(message.body()))
            return
        if size >= LARGE_MIN_BYTES:
            parts = message.body_parts(size)
            self._send_parts(consumer.deliver_head, tag, settled, prefix + data_head(size), parts, size)
            return
        if size == 0:
            body = b""
        elif message.pieces is None and body_at + size + 1 == len(content):
            body = content[body_at : body_at + size]
        else:
            body = message.body()
        if size < 256:
            out = BytesWriter()
            out.write(prefix)
            out.write(b"\x00\x53\x75\xa0")
            out.append(u8(size))
            prefix = out.getvalue()
        else:
            prefix = prefix + data_head(size)
        self._send(consumer.deliver_head, tag, settled, prefix, body)

    def _takes(self, limit: SizeLimit, size: i64) -> bool:
        """Tell whether the peer takes a message of `size` bytes; if not, the session ends soon, see (4)."""
        if size <= limit.most:
            return True
        self.is_shut = self._is_ending = True
        session = self.session
        if session is not None:
            text = f"message size ({int(size)} bytes) > maximum message size ({int(limit.most)} bytes)"
            self._timers.at(self._log.now_ms, OversizedEnd(session, LinkError(MESSAGE_SIZE, text)))
        return False

    def searches_on(self) -> None:
        if self.session is not None:
            continue_drains(self.session)

    def send_own(self, handle: int, payload: bytes) -> None:
        """Send a message of the broker itself, settled."""
        tag: i64 = self.next_tag
        self.next_tag = tag + 1
        self.own += 1
        self._send(transfer_head(self.channel, handle), tag, True, payload, b"")

    def _send(self, head: bytes, tag: i64, settled: bool, prefix: bytes, body: bytes) -> None:
        outbox = self.outbox
        if outbox is NOWHERE:
            return
        delivery_id: i64 = tag - 1
        size: i64 = len(prefix) + len(body)
        if size + WHOLE_BYTES > self.frame_bytes:
            self._send_parts(head, tag, settled, prefix, [memoryview(body)], len(body))
            return
        outbox.touch()
        out = outbox.writer
        number: i32 = to_i32(delivery_id)
        write_i32_be(out, i32(size + WHOLE_BYTES))
        out.write(head)
        write_i32_be(out, number)
        out.append(0xA0)
        out.append(4)
        write_i32_be(out, number)
        out.append(0x43)
        out.append(0x41 if settled else 0x42)
        out.write(prefix)
        if len(body) >= CHUNK_MIN_BYTES:
            outbox.write_chunk(body)
            out = outbox.writer
        elif len(body) > 0:
            out.write(body)
        if len(out) > outbox.piece_bytes:
            outbox.end_piece()
        self.next_outgoing_id = (self.next_outgoing_id + 1) & 0xFFFFFFFF
        self.window -= 1
        if self.window <= 0:
            self.is_shut = True

    def _send_parts(
        self, head: bytes, tag: i64, settled: bool, prefix: bytes, body: list[memoryview], size: i64
    ) -> None:
        """Send a delivery that takes several transfers."""
        if self.outbox is NOWHERE:
            return
        number = int((tag - 1) & 0xFFFFFFFF).to_bytes(4, "big")
        room: i64 = self.frame_bytes - PART_BYTES
        self._held = Outgoing(head, number, settled, prefix, body, size, room)
        self._go_on()

    def _go_on(self) -> None:
        """Send held bytes, as many as the window allows."""
        held = self._held
        if held is not None:
            frames: i64 = held.frames_left
            if frames > self.window:
                frames = self.window
            if frames > 0:
                self.window -= frames
                self.next_outgoing_id = (self.next_outgoing_id + frames) & 0xFFFFFFFF
                outbox = self.outbox
                outbox.touch()
                outbox.write_supply(held.take(frames))
            if held.frames_left == 0:
                self._held = None
        self.is_shut = self.window <= 0 or self._held is not None or self._is_ending

    def widen(self, window: i64) -> bool:
        """Set the window of transfers that the peer takes; return True when deliveries may resume."""
        was_shut = self.is_shut
        self.window = window
        self._go_on()
        return was_shut and not self.is_shut

    def drop_held(self, handle: int) -> bool:
        """Forget the held rest of a link that ends; return True when deliveries of other links may resume."""
        held = self._held
        if held is None or held.handle != handle:
            return False
        self._held = None
        self.is_shut = self.window <= 0 or self._is_ending
        return not self.is_shut

    def tag_of(self, delivery_id: i64) -> i64:
        """Return the latest tag with a delivery id."""
        return self.next_tag - 1 - ((self.next_tag - 2 - delivery_id) & 0xFFFFFFFF)

    def _describe(self, envelope: Envelope, content: bytes, header_end: i64) -> None:
        found = decode_properties(content, HEADER_AT, header_end - 1)
        self._envelope = envelope
        self._decoded = found
        self._expiration_ms = -1
        if found.expiration is not None and found.expiration.isdigit() and len(found.expiration) <= 12:
            self._expiration_ms = int(found.expiration)
        shown = Shown(found)
        self._layout = StoredLayout(found, shown.headers)
        self._sections = shown.sections(envelope.exchange, envelope.routing_key)
        self._failures = delivery_count_of(found)
        self._first = header_section(found, None, first=True, delivery_count=0) + self._sections

    def _header_of(self, message: Message, redelivered: bool) -> bytes:
        ttl_ms: int | None = None
        if self._expiration_ms >= 0:
            left: i64 = self._expiration_ms
            if 0 < message.time_ms < self._log.now_ms:
                left -= self._log.now_ms - message.time_ms
            ttl_ms = int(left) if left > 0 else 0
        first = not redelivered and message.attempts == 0
        return header_section(self._decoded, ttl_ms, first=first, delivery_count=self._failures)

    def close(self) -> None:
        super().close()
        self._held = None
        self._envelope = None
        self._limits = _NO_LIMITS
