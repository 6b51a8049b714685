"""Deliveries to an MQTT client: PUBLISH, with a packet id for each that waits for an answer.

    QoS 1    PUBLISH ->, <- PUBACK                                     1 to 7FFF
    QoS 2    PUBLISH ->, <- PUBREC, PUBREL ->, <- PUBCOMP              8000 to FFFF

1. The packet id of a delivery follows from its place in its queue. So it is the same when the message is sent again, in
   another connection, and after a restart. For this, nothing has to be stored but the message.
2. A PUBLISH of QoS 2 to a session that lasts is sent when everything logged before it is on disk. This includes the
   message: otherwise, after a crash, another message could have its place and so its packet id. It also includes the
   release of the packet id.
3. A packet id of QoS 2 is not used again while it waits for its PUBREC or PUBCOMP. The next message with this id waits,
   and so do the messages after it. With QoS 1, another id is used instead. If the broker has taken a delivery back, its
   packet id does not wait: the message comes again with the same id. A PUBREC for it may come before that. It is not
   answered like one for an unknown id, since then the client would take the message for a new one.
4. Messages that wait here are unacknowledged like all others. So they are never more than the client takes. Their bytes
   exceed the limit of an outbox by one message at most.
5. A message of QoS 0 from a queue of a higher QoS goes out with QoS 0, and is settled at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from librt.strings import read_i32_be, write_i16_be
from mypy_extensions import i64, u8

from warren.amqp.codec import wire_short
from warren.amqp.methods import FRAME_OVERHEAD_BYTES
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.channels.prepared_publish import NUMBER
from warren.mqtt.fanout import Fanout
from warren.mqtt.outline import Outline
from warren.mqtt.packets import PACKET_BYTES_MAX, V5
from warren.mqtt.topics import Filters
from warren.msgstore.log.batch import BatchWaiter
from warren.msgstore.log.message import HEADER_AT, Message
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer
    from warren.vhosts.kept_sessions import KeptSession

IDS_OF_QOS_1: Final = 0x7FFF
QOS_2_FROM: Final = 0x8000
IDS_OF_QOS_2: Final = 0x8000


# Shared by all ledgers without such entries: never changed.
_NO_SHARED: Final[dict[str, Filters]] = {}
_NO_LEVELS: Final[dict[str, int]] = {}
_NO_TAGS: Final[dict[int, int]] = {}


class Held:
    """A PUBLISH of QoS 2 that waits for `batch` of the log (0: for none), and for its packet id."""

    def __init__(self, consumer: Consumer, message: Message, tag: i64, redelivered: bool, batch: i64) -> None:
        self.consumer = consumer
        self.message = message
        self.tag: i64 = tag
        self.redelivered = redelivered
        self.batch: i64 = batch


class HeldWaiter(BatchWaiter):
    """Tells the ledger when the awaited batch is on disk."""

    def __init__(self, ledger: MqttLedger) -> None:
        self.ledger: MqttLedger | None = ledger

    def batch_done(self, batch: i64) -> None:
        ledger = self.ledger
        if ledger is not None:
            try:
                ledger.send_held()
            except Exception as error:
                ledger.outbox.failed(error)  # do not raise: other waiters of this commit follow


class MqttLedger(DeliveryLedger):
    """Deliveries, written as PUBLISH. `syncs`: messages on disk have to be synced."""

    def __init__(self, peer: MqttPeer, kept: KeptSession, fanout: Fanout, unacked_max: i64, *, syncs: bool) -> None:
        super().__init__(NUMBER, peer.turns, 0, unacked_max)
        self.is_v5: bool = peer.version == V5
        self.packet_max: i64 = peer.limits.packet_max_bytes or PACKET_BYTES_MAX
        self.filters = Filters()
        self._shared = _NO_SHARED  # those of shared subscriptions, by consumer tag
        self._levels = _NO_LEVELS  # the QoS that consumers were granted, by their tags
        self.looks: bool = False  # whether some subscription has an identifier or an option
        self.has_stars: bool = False  # a binding may match more than its subscription
        self.direct: i64 = 0  # deliveries without a queue, which have no tag
        self._kept = kept
        self._syncs = syncs
        self._log = peer.broker.log
        self._fanout = fanout
        self._tags = _NO_TAGS  # by packet id; also of deliveries that came back to their queue without an answer
        self._places = _NO_TAGS  # by packet id: places in the queue of deliveries of QoS 2 that have no PUBREC yet
        self._held: deque[Held] | None = None  # most clients hold nothing, and a deque takes 700 bytes
        self._held_bytes: i64 = 0  # the bodies of what is held
        self._is_full: bool = False  # whether deliveries have stopped because too much is held
        self._waiter: HeldWaiter | None = None
        self._awaited_batch: i64 = 0
        # The form of the last delivery, for the next one with the same outline to the same consumer; None: unknown.
        self._outline: Outline | None = None
        self._consumer: Consumer | None = None
        self._qos: i64 = 0
        self._is_dropped: bool = False
        self._retain: i64 = 0
        self._given = b""  # properties of 5.0 with the length in front

    def grant(self, tag: str, qos: int) -> None:
        """Set the maximum QoS of the consumer with `tag`."""
        if self._levels is _NO_LEVELS:
            self._levels = {}
        self._levels[tag] = qos

    def share(self, tag: str, filters: Filters) -> None:
        """Give the consumer with `tag` the messages of a shared subscription, the only one of `filters`."""
        if self._shared is _NO_SHARED:
            self._shared = {}
        self._shared[tag] = filters
        self.forget_descriptions()

    def names_places(self, consumer: Consumer) -> bool:
        return self._levels.get(consumer.tag, 0) == 2  # see (1)

    def now_ms(self) -> i64:
        """Return the current time."""
        return self._log.now_ms

    # --- out --------------------------------------------------------------------------------------------------------

    def write_delivery(self, consumer: Consumer, message: Message, tag: i64, redelivered: bool) -> None:
        content = message.header_frame()
        header_end: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        self._describe(message, content, header_end, consumer)
        qos: i64 = self._qos if message.persistent else 0
        if qos == 2 and self._has_to_wait(consumer, message, tag, redelivered):
            return
        self._write(message, content, header_end, tag, qos, redelivered, consumer.no_ack)

    def write_directly(self, message: Message) -> None:
        """Write PUBLISH of QoS 0 that has not come through a queue."""
        content = message.header_frame()
        header_end: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        self._describe(message, content, header_end, None)
        self._write(message, content, header_end, 0, 0, False, True)

    def _write(
        self, message: Message, content: bytes, header_end: i64, tag: i64, qos: i64, redelivered: bool, no_ack: bool
    ) -> None:
        """Write a PUBLISH in the form that `_describe` has found."""
        outline = self._outline
        assert outline is not None
        given = self._given
        if self.is_v5:
            given = outline.with_expiry(given, message, self._log.now_ms)
        size: i64 = len(outline.topic_bytes) + len(given) + message.body_bytes
        if qos > 0:
            size += 2
        if self._is_dropped or _whole(size) > self.packet_max:
            if not no_ack:
                self.ack(tag, False)
            return
        outbox = self.outbox
        outbox.touch()
        out = outbox.writer
        first: i64 = 0x30 | self._retain | qos << 1
        if redelivered and qos > 0:
            first |= 8
        out.append(u8(first))
        left_size: i64 = size
        while left_size > 127:
            out.append(u8(left_size & 127 | 128))
            left_size >>= 7
        out.append(u8(left_size))
        out.write(outline.topic_bytes)
        if qos > 0:
            write_i16_be(out, wire_short(self._give_id(tag, qos)))
        if len(given):
            out.write(given)
        body_bytes: i64 = message.body_bytes
        if body_bytes > 0:
            body_at: i64 = header_end + HEADER_AT
            if message.pieces is None and body_at + body_bytes + 1 == len(content):
                body = content[body_at : body_at + body_bytes]
            else:
                body = message.body()
            if body_bytes >= CHUNK_MIN_BYTES:
                outbox.write_chunk(body)
                out = outbox.writer
            else:
                out.write(body)
        if len(out) > outbox.piece_bytes:
            outbox.end_piece()
        if qos == 0 and not no_ack:
            self.ack(tag, False)

    def _give_id(self, tag: i64, qos: i64) -> i64:
        """Return the packet id of a delivery; see (1) and (3)."""
        tags = self._tags
        if tags is _NO_TAGS:
            tags = {}
            self._tags = tags
        place: i64 = self.outstanding(tag).sequence_number
        found: i64 = place % IDS_OF_QOS_1 + 1 if qos == 1 else QOS_2_FROM + place % IDS_OF_QOS_2
        while int(found) in tags and self.is_outstanding(tags[int(found)]):
            found = found % IDS_OF_QOS_1 + 1
        tags[int(found)] = int(tag)
        if qos == 2:
            if self._places is _NO_TAGS:
                self._places = {}
            self._places[int(found)] = int(place)
        return found

    # --- QoS 2 that waits -------------------------------------------------------------------------------------------

    def _has_to_wait(self, consumer: Consumer, message: Message, tag: i64, redelivered: bool) -> bool:
        """Tell whether a PUBLISH of QoS 2 has to wait; if so, hold it until it can be sent."""
        batch: i64 = 0
        if self._kept.stored is not None:
            log = self._log
            batch = log.batch.number
            if batch != self._awaited_batch:
                self._awaited_batch = batch
                waiter = self._waiter
                if waiter is None:
                    waiter = HeldWaiter(self)
                    self._waiter = waiter
                log.wait(waiter, self._syncs)
        elif not self._held and self._is_free(tag):
            return False
        held = self._held
        if held is None:
            held = self._held = deque()
        held.append(Held(consumer, message, tag, redelivered, batch))
        self._held_bytes += message.body_bytes
        if self._held_bytes > self.outbox.soft_limit_bytes:
            self.outbox.writable = False
            self._is_full = True
        return True

    def _is_free(self, tag: i64) -> bool:
        packet_id = int(QOS_2_FROM + self.outstanding(tag).sequence_number % IDS_OF_QOS_2)
        earlier = self._tags.get(packet_id)
        is_taken = earlier is not None and self.is_outstanding(earlier)
        return not is_taken and packet_id not in self._kept.released

    def send_held(self) -> None:
        """Send the deliveries that need no longer wait, as far as the outbox takes them."""
        held = self._held
        if self._is_full and self.outbox.waiting_bytes() == 0:
            # Nothing else would resume deliveries, since the outbox has nothing to send.
            self._is_full = False
            self.outbox.writable = True
            self.turns.wake()
        while held is not None and held and self.outbox.writable:
            first = held[0]
            if first.batch > self._log.done_batch:
                return
            if self.is_outstanding(first.tag):
                if not self._is_free(first.tag):
                    return
                message = first.message
                content = message.header_frame()
                header_end: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
                self._describe(message, content, header_end, first.consumer)
                self._write(message, content, header_end, first.tag, 2, first.redelivered, False)
            held.popleft()
            self._held_bytes -= first.message.body_bytes

    # --- answers ----------------------------------------------------------------------------------------------------

    def maybe_tag(self, packet_id: int) -> int | None:
        """Remove and return the tag of the delivery that PUBACK or PUBREC answers; None: no delivery waits for it."""
        tag = self._tags.pop(packet_id, None)
        return tag if tag is not None and self.is_outstanding(tag) else None

    def take_place(self, packet_id: int) -> int:
        """Remove and return the place in the queue of the delivery that PUBREC answers; -1: there was no such one."""
        return self._places.pop(packet_id, -1) if self._places else -1

    def maybe_held(self, place: int) -> int | None:
        """Return the tag of the held delivery from this place of the queue; None: there is no such one."""
        for each in self._held or ():
            delivery = self.find(each.tag)
            if delivery is not None and delivery.sequence_number == place:
                return int(each.tag)
        return None

    def take_room(self, count: int) -> None:
        """Count messages without the client's last answer as if they were unacked."""
        self.consumer_unacked += count

    def give_room(self) -> None:
        """Release the room of a message that has the client's last answer."""
        self.consumer_unacked -= 1
        self.make_room()
        self.send_held()

    # --- the content of a delivery ----------------------------------------------------------------------------------

    def _describe(self, message: Message, content: bytes, header_end: i64, consumer: Consumer | None) -> None:
        """Find out how a message goes out to `consumer`; None: with QoS 0, without a queue."""
        outline = self._outline
        if outline is not None and consumer is self._consumer and outline.is_of(message.envelope, content, header_end):
            return
        outline = self._fanout.outline_of(message.envelope, content, header_end)
        level = 0
        shared: Filters | None = None
        if consumer is not None:
            level = self._levels.get(consumer.tag, 0)
            shared = self._shared.get(consumer.tag)
        self._outline = outline
        self._consumer = consumer
        self._qos = min(level, outline.qos)
        self._is_dropped = not outline.is_topic
        self._retain = 1 if outline.is_replayed else 0
        ids: list[int] = []
        if shared is not None or self.looks or outline.is_special:
            topic = outline.topic
            if shared is not None:
                matching = shared.matching(topic)
            else:
                # Each QoS has a queue of its own, and a message comes through each whose subscriptions match.
                matching = [each for each in self.filters.matching(topic) if each.qos == level]
            is_own = outline.client == self._kept.name
            wanting = [each for each in matching if not (each.no_local and is_own)]
            if not wanting and (matching or shared is not None or self.has_stars or outline.is_special):
                self._is_dropped = True
            ids = [each.identifier for each in wanting if each.identifier]
            if outline.is_retained and any(each.as_published for each in wanting):
                self._retain = 1
        self._given = outline.given_with(ids) if self.is_v5 else b""

    def forget_descriptions(self) -> None:
        """Forget the form of the last delivery: the subscriptions have changed."""
        self._outline = None

    def close(self) -> None:
        super().close()
        self._tags = _NO_TAGS
        self._places = _NO_TAGS
        self._held = None
        self._consumer = None
        if self._waiter is not None:
            self._waiter.ledger = None
            self._waiter = None


def _whole(size: i64) -> i64:
    """Return the length of a whole packet that has `size` bytes after its length."""
    if size < 128:
        return size + 2
    if size < 16384:
        return size + 3
    return size + 4 if size < 2097152 else size + 5
