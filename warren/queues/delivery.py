"""Deliveries of one channel: tags given out, messages waiting for their acknowledgement, and the consumers.

1. Delivery tags of a channel count from 1 over all its consumers and gets; a tag is never given twice.
2. A delivery that needs an answer stands in the ledger from the moment its frame is in the outbox until it is
   acked, rejected or the channel ends; ``unacked_count`` counts these.
3. The number of unacked deliveries of a consumer is its ``outstanding``; ``outstanding <= prefetch`` holds except
   right after a smaller prefetch, and no-ack deliveries count nowhere.
4. Consumers that share a limit of the channel, or the outbox, are served in turn (``queues.turns``).

``queues.unacked`` finds deliveries by their tags; consumers are in ``queues.consumer``. A delivery that the broker has
taken back because its time was over is noted in ``_overdue``. Its client may still answer it. That answer is ignored as
long as the tag is among the latest `OVERDUE_MAX` of those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from warren.amqp.codec import wire_short
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.methods import BASIC_GET_OK, FRAME_END, FRAME_METHOD
from warren.amqp.numbers import number_text
from warren.amqp.outbox import CHUNK_MIN_BYTES, NOWHERE, Outbox
from warren.msgstore.log.message import Message, patch_channel, write_frames
from warren.queues.consumer import Consumer
from warren.queues.content_frames import LARGE_MIN_BYTES, ContentFrames
from warren.queues.owed_memory import ALWAYS
from warren.queues.turns import Line, Turns
from warren.queues.unacked import Delivery, UnackedDeliveries

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue
    from warren.queues.receiver import Receiver

# Pieces of a large content that are smaller on average are not sent as they are: most of it would be copied at once.
MEAN_PIECE_BYTES: Final = 4 * CHUNK_MIN_BYTES
AT_ONCE_ACKS: Final = 1024

# How many tags of a channel are remembered as taken back by the broker, and how many time marks.
OVERDUE_MAX: Final = 65_536
MARKS_MAX: Final = 256

# Shared by channels that have none, as most are: never changed.
_NO_MARKS: Final[list[tuple[int, float]]] = []
_NO_OVERDUE: Final[dict[int, None]] = {}
_NO_CONSUMERS: Final[dict[str, Consumer]] = {}


class DeliveryWatcher:
    """Told of each delivery of a channel when it is written: tracing."""

    def delivered(self, queue: Receiver, message: Message, redelivered: bool) -> None:
        """Note that `message` of `queue` was written."""
        raise AssertionError("overridden")


class DeliveryLedger(UnackedDeliveries):
    """The deliveries of one channel. `turns`: of its connection."""

    def __init__(self, channel_number: i64, turns: Turns, frame_max_bytes: i64, unacked_max: i64 = 500000) -> None:
        super().__init__()
        self.channel_number: i64 = channel_number
        self.turns = turns
        self.outbox = turns.outbox
        self.frame_max_bytes: i64 = frame_max_bytes  # what the peer accepts; 0: no limit
        self.unacked_limit: i64 = unacked_max  # the most that a channel may owe, whatever its prefetch
        # The same at present, see `owed_memory`.
        self.unacked_max: i64 = min(unacked_max, ALWAYS) if turns.owed.is_short else unacked_max
        self.granted_bytes: i64 = 0  # in this memory alarm
        self.next_tag: i64 = 1
        self.prefetch: i64 = 0  # basic.qos with global=true; 0: no limit
        self.consumer_unacked: i64 = 0  # unacked of consumers, which the global prefetch limits
        # Counts (`queues.counters`). Deliveries without acks are the rest of the tags.
        self.delivered: i64 = 0
        self.got: i64 = 0
        self.got_no_ack: i64 = 0
        self.got_empty: i64 = 0
        self.redelivered: i64 = 0
        self.acked: i64 = 0
        self.awaited: bool = False  # a consumer stands in `_line`
        self.is_shut: bool = False  # its peer takes nothing on it at the moment, for any consumer
        self._is_served: bool = False  # it is being served, and stands in line again only then
        self._line = Line()  # consumers that wait for room in this channel
        self.consumers = _NO_CONSUMERS  # by their tags; see `add_consumer`
        self.watcher: DeliveryWatcher | None = None
        self.owner: object = None  # the channel, to be closed
        self._marks = _NO_MARKS  # next tag and time, see `waiting_since`
        self._overdue = _NO_OVERDUE  # tags that the broker has taken back

    def add_consumer(self, consumer: Consumer) -> None:
        """Keep a new consumer of the channel."""
        if self.consumers is _NO_CONSUMERS:
            self.consumers = {}
        self.consumers[consumer.tag] = consumer

    def names_places(self, consumer: Consumer) -> bool:
        """Tell whether the client knows the messages of `consumer` by their places, also in later connections."""
        return False

    # --- giving out ---------------------------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, message: Message, sequence_number: i64, redelivered: bool) -> None:
        """Write a delivery to the outbox, and remember it unless the consumer is no-ack.

        An error means that nothing has happened. One in writing goes to `Outbox.failed`: the peer is ended, and its
        deliveries return.
        """
        tag: i64 = self.next_tag
        if not consumer.no_ack:
            self.remember(Delivery(tag, message, consumer.queue, sequence_number, consumer))
            self.delivered += 1
            consumer.outstanding += 1
            self.consumer_unacked += 1
        self.next_tag = tag + 1
        try:
            self.write_delivery(consumer, message, tag, redelivered)
            if self.watcher is not None:
                self.watcher.delivered(consumer.queue, message, redelivered)
        except Exception as error:
            self.outbox.failed(error)

    def write_delivery(self, consumer: Consumer, message: Message, tag: i64, redelivered: bool) -> None:
        """Write basic.deliver with its content to the outbox. Other protocols have a form of their own."""
        outbox = self.outbox
        outbox.touch()
        out = outbox.writer
        head = consumer.deliver_head
        tail = message.envelope.tail
        size: i64 = 1 + len(head) + 8 + len(tail)
        # The 7 bytes before the payload and its first byte, which is 0, in one go.
        write_i64_be(out, (FRAME_METHOD << 56) | (self.channel_number << 40) | (size << 8))
        out.write(head)
        write_i64_be(out, tag)
        out.append(1 if redelivered else 0)
        out.write(tail)
        self.write_content(message)

    def get(
        self, queue: BaseQueue, message: Message, sequence_number: i64, redelivered: bool, no_ack: bool, left: i64
    ) -> None:
        """Answer basic.get; `left` is the number of ready messages after this one. Errors: as of `deliver`."""
        tag: i64 = self.next_tag
        if no_ack:
            self.got_no_ack += 1
        else:
            self.remember(Delivery(tag, message, queue, sequence_number, None))
            self.got += 1
        self.next_tag = tag + 1
        if redelivered:
            self.redelivered += 1
        try:
            self.write_got(message, tag, redelivered, left)
            if self.watcher is not None:
                self.watcher.delivered(queue, message, redelivered)
        except Exception as error:
            self.outbox.failed(error)

    def write_got(self, message: Message, tag: i64, redelivered: bool, left: i64) -> None:
        """Write basic.get-ok with its content to the outbox."""
        outbox = self.outbox
        outbox.touch()
        out = outbox.writer
        tail = message.envelope.tail
        out.append(FRAME_METHOD)
        write_i16_be(out, wire_short(self.channel_number))
        write_i32_be(out, i32(4 + 8 + 1 + len(tail) - 1 + 4))
        write_i32_be(out, BASIC_GET_OK)
        write_i64_be(out, tag)
        out.append(1 if redelivered else 0)
        out.write(tail[:-1])
        write_i32_be(out, i32(left))
        out.append(FRAME_END)
        self.write_content(message)

    def write_content(self, message: Message) -> None:
        """Write content header and body frames as this channel's peer needs them."""
        outbox = self.outbox
        content = message.content
        if message.body_bytes >= LARGE_MIN_BYTES and (
            message.pieces is None
            or message.channel != self.channel_number
            or 0 < self.frame_max_bytes < message.frame_max_bytes
            or len(message.pieces) > message.body_bytes // MEAN_PIECE_BYTES
        ):
            outbox.write_supply(ContentFrames(message, self.channel_number, self.frame_max_bytes))
            return
        out = outbox.writer
        if 0 < self.frame_max_bytes < message.frame_max_bytes:
            write_frames(out, self.channel_number, message.header_payload(), message.body(), self.frame_max_bytes)
        elif message.channel == self.channel_number:
            if message.pieces is not None:
                write_pieces(outbox, message.pieces)
                return
            if len(content) >= CHUNK_MIN_BYTES:
                outbox.write_chunk(content)
                return
            out.write(content)
        else:
            start: i64 = len(out)
            out.write(message.joined())
            patch_channel(out, start, self.channel_number)
        if len(out) > outbox.piece_bytes:
            outbox.end_piece()

    # --- taking back ----------------------------------------------------------------------------------------------

    def ack(self, tag: i64, multiple: bool) -> bool:
        """Settle the deliveries that the client acknowledged; False when `ack_run` has to continue, as they are many.

        Raises:
            ChannelException: 406, the tag is not outstanding.
        """
        if multiple:
            self.check_outstanding(tag)
            return self.ack_run(tag, AT_ONCE_ACKS) < AT_ONCE_ACKS
        delivery = self.maybe_take(tag)
        if delivery is None:
            self._forget_overdue(tag)
            return True
        self.acked += 1
        queue = delivery.queue
        self.release(delivery)
        queue.settle(delivery)
        queue.wake()
        return True

    def ack_run(self, tag: i64, most: i64) -> i64:
        """Settle the oldest, up to `tag` and at most `most`; return how many were settled.

        Queues are woken once for each run of their deliveries, not for each delivery.
        """
        before: i64 = self.unacked_count
        end: i64 = before - most
        last: BaseQueue | None = None
        delivery: Delivery | None = None
        while self.unacked_count > end:
            delivery = self.maybe_take_oldest(tag)
            if delivery is None:
                break
            queue = delivery.queue
            consumer = delivery.consumer
            if consumer is not None:
                consumer.outstanding -= 1
                self.consumer_unacked -= 1
                if consumer.away_from is not None:
                    consumer.come_back()
            queue.settle(delivery)
            if last is not None and last is not queue:
                last.wake()
            last = queue
        taken: i64 = before - self.unacked_count
        self.acked += taken
        if last is not None:
            last.wake()
        if self.awaited:
            self.make_room()
        return taken

    def take(self, tag: i64, multiple: bool) -> list[Delivery]:
        """Remove and return the deliveries that a nack, reject or buffered ack names, oldest first.

        The caller settles or requeues them, and calls `release` for each. A delivery that the broker has taken back is
        not among them.

        Raises:
            ChannelException: 406, the tag is not outstanding.
        """
        if self.awaited:
            self.make_room()
        if not multiple:
            delivery = self.maybe_take(tag)
            if delivery is None:
                self._forget_overdue(tag)
                return []
            return [delivery]
        self.check_outstanding(tag)
        taken: list[Delivery] = []
        while True:
            oldest = self.maybe_take_oldest(tag)
            if oldest is None:
                return taken
            taken.append(oldest)

    def take_overdue(self, tag: i64) -> Delivery | None:
        """Remove and return the delivery with `tag`, whose time is over; its answer will be ignored.

        The caller requeues it, and calls `release`.
        """
        delivery = self.maybe_take(tag)
        if delivery is not None:
            if self._overdue is _NO_OVERDUE:
                self._overdue = {}
            overdue = self._overdue
            if len(overdue) >= OVERDUE_MAX:
                del overdue[next(iter(overdue))]
            overdue[int(tag)] = None
        return delivery

    def is_overdue(self, tag: i64) -> bool:
        """Tell whether the broker has taken the delivery with `tag` back, and it was not answered since."""
        return int(tag) in self._overdue

    def _forget_overdue(self, tag: i64) -> None:
        """Forget that `tag` was taken back: it has been answered.

        Raises:
            ChannelException: 406, it was not.
        """
        if int(tag) not in self._overdue:
            raise _unknown(tag)
        del self._overdue[int(tag)]

    def check_outstanding(self, tag: i64) -> None:
        """Make sure that the delivery with `tag` waits for its answer; 0 stands for all of them, or nothing.

        A delivery that the broker has taken back counts as well.

        Raises:
            ChannelException: 406, the tag is not outstanding.
        """
        if tag != 0 and self.find(tag) is None:
            self._forget_overdue(tag)

    def outstanding(self, tag: i64) -> Delivery:
        """Return the delivery with `tag`.

        Raises:
            ChannelException: 406, the tag is not outstanding.
        """
        delivery = self.find(tag)
        if delivery is None:
            raise _unknown(tag)
        return delivery

    def close(self) -> None:
        """Send nothing more: the channel ends. Its unacked deliveries are taken back later, step by step."""
        self.outbox = NOWHERE
        self._line.clear()
        self.awaited = False
        line = self.line
        if line is not None:
            line.leave(self)
        self.turns.owed.left(self)

    def release(self, delivery: Delivery) -> None:
        """Return the room that `delivery` took to its consumer and this channel."""
        consumer = delivery.consumer
        if consumer is not None:
            consumer.outstanding -= 1
            self.consumer_unacked -= 1
            if consumer.away_from is not None:
                consumer.come_back()
        if self.awaited:
            self.make_room()

    # --- turns ------------------------------------------------------------------------------------------------------

    def has_space(self) -> bool:
        """Tell whether this channel's own limits let a consumer have another message."""
        owed: i64 = self.consumer_unacked
        # After an alarm `unacked_max` stays as it is until more is asked for.
        most: i64 = self.unacked_max if self.turns.owed.is_short else self.unacked_limit
        return (self.prefetch == 0 or owed < self.prefetch) and owed < most

    def find_space(self) -> bool:
        """The same; ask for more than `unacked_max` if only that is lacking."""
        owed: i64 = self.consumer_unacked
        return (self.prefetch == 0 or owed < self.prefetch) and (owed < self.unacked_max or self.may_owe_more())

    def may_owe_more(self) -> bool:
        """Tell whether it may owe more than `unacked_max`, which is larger then."""
        return self.unacked_max < self.unacked_limit and self.turns.owed.may_owe_more(self)

    def hold_back(self) -> None:
        """Memory has become short: owe no more than now, but for a few and what `owed_memory` grants."""
        self.granted_bytes = 0
        self.unacked_max = min(max(self.consumer_unacked, self.unacked_count, ALWAYS), self.unacked_limit)

    def owe_more(self) -> None:
        """Memory is no longer short: let consumers that had to wait continue."""
        self.unacked_max = self.unacked_limit
        self.make_room()

    def join(self, consumer: Consumer) -> None:
        """Add `consumer` to the line for room in this channel."""
        self._line.join(consumer)
        self.awaited = True
        if self.has_space():
            self.make_room()

    def make_room(self) -> None:
        """Serve waiting consumers: there may be room."""
        if self.awaited and self.line is None and not self._is_served:
            self.turns.join(self, for_outbox=False)

    def take_turn(self, run: i64) -> i64:
        """Serve waiting consumers, a message each, until `run` messages are sent and each has had its turn once."""
        line = self._line
        turns = self.turns
        before: i64 = self.next_tag
        looked: i64 = 0
        if self.turn_left == 0:
            self.turn_left = max(run, line.count())
        self._is_served = True
        try:
            while self.awaited and self.turn_left > 0 and self.outbox.writable and self.find_space():
                consumer = line.take_first()
                self.awaited = line.count() > 0
                if consumer is None:
                    break
                assert isinstance(consumer, Consumer)
                consumer.looked = 0
                turns.call(consumer, 1)
                self.turn_left -= 1 + consumer.looked
                looked += consumer.looked
        finally:
            self._is_served = False
        if not self.awaited or not self.find_space():
            self.turn_left = 0
        elif self.turn_left > 0:
            turns.put_first(self, for_outbox=False)
        else:
            self.turn_left = 0
            turns.join(self, for_outbox=False)
        return self.next_tag - before + 1 + looked

    def searches_on(self) -> None:
        """Note that a search continues after a wait for the disk. For code that waits for the end of searches."""

    def left(self, consumer: Consumer) -> None:
        """Forget that `consumer`, which is gone, waits."""
        line = consumer.line
        if line is not None:
            line.leave(consumer)

    def waiting_since(self, now_s: float) -> float:
        """Return a time by which the oldest unanswered delivery had been made; `now_s` when all are answered.

        Deliveries carry no time of their own, which would cost every one of them. Each call leaves a mark instead,
        "tags below this one were given out by then". So the answer is as exact as the calls are frequent.
        """
        oldest = self.oldest_tag()
        if oldest == 0:
            self._marks = _NO_MARKS
            return now_s
        marks = [mark for mark in self._marks if mark[0] > oldest]
        if not marks or marks[-1][0] != self.next_tag:
            marks.append((int(self.next_tag), now_s))
            if len(marks) > MARKS_MAX:
                del marks[1 : MARKS_MAX // 2 : 2]  # a delivery may wait for days; the older, the less exact
        self._marks = marks
        return marks[0][1]

    def last_tag_by(self, time_s: float) -> int:
        """Return up to which tag everything had been delivered by `time_s`; 0: unknown. See `waiting_since`."""
        last = 0
        for next_tag, marked_s in self._marks:
            if marked_s > time_s:
                break
            last = next_tag - 1
        return last

    def delivered_by(self, tag: int, now_s: float) -> float:
        """Return a time by which delivery `tag`, unanswered, had been made; see `waiting_since`."""
        for next_tag, time_s in self._marks:
            if next_tag > tag:
                return time_s
        return now_s

    def outstanding_for(self, consumer: Consumer) -> list[int]:
        """Return the tags that `consumer` has not answered, oldest first.

        If there are any, the cost is that of all unanswered deliveries, of other consumers too.
        """
        if consumer.outstanding == 0:
            return []
        stragglers = self._stragglers
        found = [tag for tag in self._straggler_tags.in_order() if stragglers[tag].consumer is consumer]
        for entry in self._entries:
            if entry is not None and entry.consumer is consumer:
                found.append(int(entry.tag))
        return found

    def oldest_tags(self, most: i64) -> dict[Consumer, int]:
        """Return the oldest unanswered tag of each consumer that has one among about the oldest `most` places.

        Deliveries that a transaction has given back may be passed over.
        """
        found: dict[Consumer, int] = {}
        looked: i64 = 0
        for tag, straggler in self._stragglers.items():
            if looked == most or len(found) == len(self.consumers):
                return found
            looked += 1
            consumer = straggler.consumer
            if consumer is not None and not consumer.gone and tag < found.get(consumer, tag + 1):
                found[consumer] = tag
        entries = self._entries
        at: i64 = self._head
        while at < len(entries) and looked < most and len(found) < len(self.consumers):
            looked += 1
            entry = entries[at]
            at += 1
            if entry is not None:
                owner = entry.consumer
                if owner is not None and not owner.gone and owner not in found:
                    found[owner] = int(entry.tag)
        return found


def write_pieces(outbox: Outbox, pieces: list[bytes]) -> None:
    """Write a content as the pieces it came in; they may all be small, each a frame."""
    for piece in pieces:
        if len(piece) >= CHUNK_MIN_BYTES:
            outbox.write_chunk(piece)
        else:
            outbox.writer.write(piece)
            if len(outbox.writer) > outbox.piece_bytes:
                outbox.end_piece()


def give_back(
    ledger: DeliveryLedger, delivery: Delivery, *, requeue: bool, failed: bool = True, delay_ms: int = -1
) -> None:
    """Requeue or drop a delivery that is out of the ledger; it is unanswered again if that fails.

    Its consumer has room first: a dead letter may be for it.
    """
    queue = delivery.queue
    before: i64 = queue.unacked_count
    ledger.release(delivery)
    queue.wake()
    try:
        if requeue:
            queue.requeue(delivery, failed=failed, delay_ms=delay_ms)
        else:
            queue.reject(delivery)
    except BaseException:
        if queue.unacked_count != before:
            queue.wake()
            raise
        ledger.restore(delivery)
        consumer = delivery.consumer
        if consumer is not None:
            consumer.outstanding += 1
            ledger.consumer_unacked += 1
        raise


def _unknown(tag: i64) -> ChannelException:
    shown = number_text(int(tag) & 0xFFFFFFFFFFFFFFFF)
    return ChannelException(PRECONDITION_FAILED, f"unknown delivery tag {shown}")
