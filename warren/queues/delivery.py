"""Deliveries of one channel: tags given out, messages waiting for their acknowledgement, and the consumers.

1. Delivery tags of a channel count from 1 over all its consumers and gets; a tag is never given twice.
2. A delivery that needs an answer stands in the ledger from the moment its frame is in the outbox until it is
   acked, rejected or the channel ends; ``unacked_count`` counts these.
3. The number of unacked deliveries of a consumer is its ``outstanding``; ``outstanding <= prefetch`` holds except
   right after a smaller prefetch, and no-ack deliveries count nowhere.

The ledger is a list indexed by tag: acknowledgements come nearly always in order, so taking the oldest is one look.
When old deliveries stay unanswered while later ones are settled, the few old ones move to ``_stragglers`` and the list
starts afresh: one forgotten message must not pin a list of millions of empty places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, mypyc_attr

from warren.amqp.codec import wire_short
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.outbox import CHUNK_MIN_BYTES, Outbox
from warren.msgstore.message import Message, patch_channel, write_frames

if TYPE_CHECKING:
    from warren.queues.queue import Queue

COMPACT_MIN: Final = 256
SPARSE_MIN: Final = 4096


class Consumer:
    """One basic.consume. Owned by its channel, known to its queue."""

    def __init__(
        self,
        ledger: DeliveryLedger,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: i64,
        arguments: bytes,
    ) -> None:
        self.ledger = ledger
        self.queue = queue
        self.tag = tag
        self.no_ack: bool = no_ack
        self.exclusive: bool = exclusive
        self.priority = priority
        self.wanted_prefetch: i64 = prefetch
        self.prefetch: i64 = prefetch  # 0: no limit
        # How long a delivery may go unanswered before it comes back, and before the channel is closed. Of the latter -1
        # means the broker's own limit, 0 none.
        self.visibility_ms: i64 = -1
        self.timeout_ms: i64 = -1
        self.has_time_limit: bool = False
        self.wanted_visibility_ms: i64 = -1
        self.wanted_timeout_ms: i64 = -1
        self.outstanding: i64 = 0
        self.gone: bool = False  # no longer consuming; what it was sent may be unanswered
        self.arguments = arguments
        self.owner: object = None  # the channel, for whoever has to tell it about the end of the queue
        raw = tag.encode()
        # basic.deliver up to the delivery tag
        self.deliver_head = b"\x00\x3c\x00\x3c" + bytes([len(raw)]) + raw

    def has_room(self) -> bool:
        """Tell whether it may be sent a message now; who had none because of its channel is woken by that."""
        ledger = self.ledger
        if ledger.outbox.writable and (
            self.no_ack
            or (
                (self.prefetch == 0 or self.outstanding < self.prefetch)
                and (ledger.prefetch == 0 or ledger.consumer_unacked < ledger.prefetch)
                and ledger.unacked_count < ledger.unacked_max
            )
        ):
            return True
        if ledger.unacked_count >= ledger.unacked_max:
            ledger.starved = True
        return False


@mypyc_attr(acyclic=True, free_list_len=1)
class Delivery:
    """A message at a client. ``consumer`` is None for a basic.get."""

    __slots__ = ("consumer", "message", "queue", "sequence_number", "tag")

    def __init__(
        self, tag: i64, message: Message, queue: Queue, sequence_number: i64, consumer: Consumer | None
    ) -> None:
        self.tag: i64 = tag
        self.message = message
        self.queue = queue
        self.sequence_number: i64 = sequence_number
        self.consumer = consumer


class DeliveryWatcher:
    """Told of every delivery of a channel as it is written: tracing."""

    def delivered(self, queue: Queue, message: Message, redelivered: bool) -> None:
        """`message` of `queue` was written."""
        raise AssertionError("overridden")


class DeliveryLedger:
    """The deliveries of one channel."""

    def __init__(self, channel_number: i64, outbox: Outbox, frame_max_bytes: i64, unacked_max: i64 = 500000) -> None:
        self.channel_number: i64 = channel_number
        self.outbox = outbox
        self.frame_max_bytes: i64 = frame_max_bytes  # what the peer accepts; 0: no limit
        self.unacked_max: i64 = unacked_max  # what the broker lets a channel owe, whatever its prefetch
        self.next_tag: i64 = 1
        self.prefetch: i64 = 0  # basic.qos with global=true; 0: no limit
        self.consumer_unacked: i64 = 0  # unacked of consumers, what the global prefetch limits
        self.unacked_count: i64 = 0
        # Counts (`queues.counters`). Deliveries without acks are the rest of the tags.
        self.delivered: i64 = 0
        self.got: i64 = 0
        self.got_no_ack: i64 = 0
        self.got_empty: i64 = 0
        self.redelivered: i64 = 0
        self.acked: i64 = 0
        self.starved: bool = False  # a queue found `unacked_max` reached
        self.consumers: dict[str, Consumer] = {}
        self.watcher: DeliveryWatcher | None = None
        self._entries: list[Delivery | None] = []
        self._first_tag: i64 = 1  # tag of _entries[0]
        self._head: i64 = 0  # everything before is settled
        self._live: i64 = 0  # unsettled in _entries
        self._stragglers: dict[int, Delivery] = {}
        self.owner: object = None  # the channel, for whoever has to close it
        self.touched: dict[int, int] = {}  # until when deliveries were given more time: tag to ms
        self._marks: list[tuple[int, float]] = []  # next tag and time, see `waiting_since`

    # --- giving out ---------------------------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, message: Message, sequence_number: i64, redelivered: bool) -> None:
        """Write basic.deliver with its content to the outbox, and remember it unless the consumer is no-ack."""
        tag: i64 = self.next_tag
        self.next_tag = tag + 1
        if not consumer.no_ack:
            self._remember(Delivery(tag, message, consumer.queue, sequence_number, consumer))
            self.delivered += 1
            consumer.outstanding += 1
            self.consumer_unacked += 1
        outbox = self.outbox
        outbox.touch()
        out = outbox.writer
        head = consumer.deliver_head
        tail = message.envelope.tail
        out.append(1)
        write_i16_be(out, wire_short(self.channel_number))
        write_i32_be(out, i32(len(head) + len(tail) + 8))
        out.write(head)
        write_i64_be(out, tag)
        out.append(1 if redelivered else 0)
        out.write(tail)
        self.write_content(message)
        if self.watcher is not None:
            self.watcher.delivered(consumer.queue, message, redelivered)

    def get(
        self, queue: Queue, message: Message, sequence_number: i64, redelivered: bool, no_ack: bool, left: i64
    ) -> None:
        """Write basic.get-ok with its content; `left` is the number of ready messages behind it."""
        tag: i64 = self.next_tag
        self.next_tag = tag + 1
        if no_ack:
            self.got_no_ack += 1
        else:
            self.got += 1
            self._remember(Delivery(tag, message, queue, sequence_number, None))
        if redelivered:
            self.redelivered += 1
        outbox = self.outbox
        outbox.touch()
        out = outbox.writer
        tail = message.envelope.tail
        out.append(1)
        write_i16_be(out, wire_short(self.channel_number))
        write_i32_be(out, i32(4 + 8 + 1 + len(tail) - 1 + 4))
        write_i32_be(out, 60 << 16 | 71)
        write_i64_be(out, tag)
        out.append(1 if redelivered else 0)
        out.write(tail[:-1])
        write_i32_be(out, i32(left))
        out.append(0xCE)
        self.write_content(message)
        if self.watcher is not None:
            self.watcher.delivered(queue, message, redelivered)

    def write_content(self, message: Message) -> None:
        """Write content header and body frames as this channel's peer needs them."""
        outbox = self.outbox
        content = message.content
        if 0 < self.frame_max_bytes < message.frame_max_bytes:
            header = message.header_payload()
            write_frames(outbox.writer, self.channel_number, header, message.body(), self.frame_max_bytes)
            outbox.check_limit()
            return
        if message.channel == self.channel_number:
            if message.pieces is not None:
                for piece in message.pieces:
                    if len(piece) >= CHUNK_MIN_BYTES:
                        outbox.write_chunk(piece)
                    else:
                        outbox.writer.write(piece)
                return
            if len(content) >= CHUNK_MIN_BYTES:
                outbox.write_chunk(content)
                return
            out = outbox.writer
            out.write(content)
        else:
            out = outbox.writer
            start: i64 = len(out)
            out.write(message.joined())
            patch_channel(out, start, self.channel_number)
        if len(out) > outbox.soft_limit_bytes:
            outbox.writable = False

    def _remember(self, delivery: Delivery) -> None:
        entries = self._entries
        if self._live == 0:
            # Nothing waits in the list: start it at this tag, so that no-ack tags leave no gaps behind.
            if self._head or len(entries):
                entries.clear()
                self._head = 0
            self._first_tag = delivery.tag
        else:
            gap: i64 = delivery.tag - self._first_tag - i64(len(entries))
            while gap > 0:
                entries.append(None)
                gap -= 1
        entries.append(delivery)
        self._live += 1
        self.unacked_count += 1

    # --- taking back ----------------------------------------------------------------------------------------------

    def ack(self, tag: i64, multiple: bool) -> None:
        """Settle what the client acknowledged.

        Raises:
            ChannelException: 406, the tag is not outstanding.
        """
        if multiple:
            self._ack_multiple(tag)
            return
        delivery = self._take_one(tag)
        self.acked += 1
        queue = delivery.queue
        self.release(delivery)
        queue.settle(delivery)
        queue.wake()
        if self.prefetch or self.starved:
            self.wake_consumers()

    def _ack_multiple(self, tag: i64) -> None:
        """Settle a run: queues are woken once for each run of their deliveries, not for each delivery."""
        self._check_outstanding(tag)
        before: i64 = self.unacked_count
        last: Queue | None = None
        delivery: Delivery | None = None
        while True:
            delivery = self._take_oldest(tag)
            if delivery is None:
                break
            queue = delivery.queue
            consumer = delivery.consumer
            if consumer is not None:
                consumer.outstanding -= 1
                self.consumer_unacked -= 1
            queue.settle(delivery)
            if last is not None and last is not queue:
                last.wake()
            last = queue
        self.acked += before - self.unacked_count
        if last is not None:
            last.wake()
        if self.prefetch or self.starved:
            self.wake_consumers()

    def take(self, tag: i64, multiple: bool) -> list[Delivery]:
        """Remove and return what a nack, reject or buffered ack names, oldest first.

        The caller settles or requeues them, and calls `release` for each.

        Raises:
            ChannelException: 406, the tag is not outstanding.
        """
        if not multiple:
            return [self._take_one(tag)]
        self._check_outstanding(tag)
        taken: list[Delivery] = []
        while True:
            delivery = self._take_oldest(tag)
            if delivery is None:
                return taken
            taken.append(delivery)

    def is_outstanding(self, tag: i64) -> bool:
        """Tell whether the delivery with `tag` waits for its answer."""
        return self._find(tag) is not None

    def outstanding(self, tag: i64) -> Delivery:
        """Return the delivery with `tag`.

        Raises:
            ChannelException: 406, the tag is not outstanding.
        """
        delivery = self._find(tag)
        if delivery is None:
            raise ChannelException(PRECONDITION_FAILED, f"unknown delivery tag {int(tag) & 0xFFFFFFFFFFFFFFFF}")
        return delivery

    def maybe_take(self, tag: i64) -> Delivery | None:
        """Remove and return the delivery with `tag` if it is still unanswered."""
        if self.touched:
            self.touched.pop(int(tag), None)
        if self._find(tag) is None:
            return None
        return self._take_one(tag)

    def take_all(self) -> list[Delivery]:
        """Remove and return everything, oldest first: basic.recover and the end of the channel."""
        return self.take(0, True)

    def restore(self, deliveries: list[Delivery]) -> None:
        """Put back what `take` returned and nobody released: tx.rollback."""
        remaining = self.take_all()
        for delivery in sorted(deliveries + remaining, key=delivery_tag):
            self._stragglers[int(delivery.tag)] = delivery
            self.unacked_count += 1

    def release(self, delivery: Delivery) -> None:
        """Give the room that `delivery` took back to its consumer and this channel."""
        consumer = delivery.consumer
        if consumer is not None:
            consumer.outstanding -= 1
            self.consumer_unacked -= 1

    def wake_consumers(self) -> None:
        """Let every queue consumed here try again: the outbox drained, or a limit of the channel moved."""
        self.starved = False
        for consumer in self.consumers.values():
            consumer.queue.wake()

    def waiting_since(self, now_s: float) -> float:
        """Return a time by which the oldest unanswered delivery had been made; `now_s` when there is none.

        Deliveries carry no time of their own, that would cost every one of them. Each call leaves a mark instead,
        "tags below this one were given out by then", so the answer is as exact as the calls are frequent.
        """
        oldest = self._oldest_tag()
        if oldest == 0:
            self._marks = []
            return now_s
        marks = [mark for mark in self._marks if mark[0] > oldest]
        if not marks or marks[-1][0] != self.next_tag:
            marks.append((int(self.next_tag), now_s))
        self._marks = marks
        return marks[0][1]

    def delivered_by(self, tag: int, now_s: float) -> float:
        """Return a time by which delivery `tag`, unanswered, had been made; see `waiting_since`."""
        for next_tag, time_s in self._marks:
            if next_tag > tag:
                return time_s
        return now_s

    def outstanding_of(self, queue: Queue) -> list[Delivery]:
        """Return the unanswered deliveries of a queue, in the order of their tags."""
        entries = [*self._stragglers.values(), *self._entries]
        return [entry for entry in entries if entry is not None and entry.queue is queue]

    def _oldest_tag(self) -> int:
        for tag in self._stragglers:
            return tag
        for entry in self._entries[self._head :]:
            if entry is not None:
                return int(entry.tag)
        return 0

    def outstanding_tags(self) -> list[int]:
        """Return the tags that wait for an answer, ascending."""
        tags = list(self._stragglers)
        for entry in self._entries:
            if entry is not None:
                tags.append(int(entry.tag))
        return tags

    def _find(self, tag: i64) -> Delivery | None:
        index: i64 = tag - self._first_tag
        if index >= self._head and index < len(self._entries):
            return self._entries[index]
        if self._stragglers:
            return self._stragglers.get(int(tag))
        return None

    def _check_outstanding(self, tag: i64) -> None:
        if tag != 0:
            self.outstanding(tag)

    def _take_one(self, tag: i64) -> Delivery:
        index: i64 = tag - self._first_tag
        if index >= self._head and index < len(self._entries):
            delivery = self._entries[index]
            if delivery is not None:
                self._entries[index] = None
                self._live -= 1
                self.unacked_count -= 1
                if index == self._head:
                    self._head = index + 1
                self._compact()
                return delivery
        elif self._stragglers:
            straggler = self._stragglers.pop(int(tag), None)
            if straggler is not None:
                self.unacked_count -= 1
                return straggler
        raise ChannelException(PRECONDITION_FAILED, f"unknown delivery tag {int(tag) & 0xFFFFFFFFFFFFFFFF}")

    def _take_oldest(self, up_to: i64) -> Delivery | None:
        """Remove and return the oldest delivery with a tag of at most `up_to`; 0: no limit."""
        if self._stragglers:
            for tag in self._stragglers:
                if up_to != 0 and tag > up_to:
                    return None
                self.unacked_count -= 1
                return self._stragglers.pop(tag)
        entries = self._entries
        end: i64 = len(entries)
        head: i64 = self._head
        while head < end:
            delivery = entries[head]
            if delivery is None:
                head += 1
                continue
            if up_to != 0 and delivery.tag > up_to:
                break
            entries[head] = None
            self._head = head + 1
            self._live -= 1
            self.unacked_count -= 1
            return delivery
        self._head = head
        self._compact()
        return None

    def _compact(self) -> None:
        entries = self._entries
        size: i64 = len(entries)
        if self._live == 0:
            if size:
                entries.clear()
            self._head = 0
        elif self._head > COMPACT_MIN and self._head * 2 > size:
            del entries[: self._head]
            self._first_tag += self._head
            self._head = 0
        elif size - self._head > SPARSE_MIN and self._live * 8 < size - self._head:
            for entry in entries:
                if entry is not None:
                    self._stragglers[int(entry.tag)] = entry
            entries.clear()
            self._head = 0
            self._live = 0


def delivery_tag(delivery: Delivery) -> int:
    """Sort key: the order in which deliveries were made."""
    return int(delivery.tag)
