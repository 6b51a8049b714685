"""The flat-out path: publish from pre-encoded bytes, count deliveries and confirms by offset arithmetic.

A broker that moves four million messages a second leaves 250 ns for each; a Python statement per message is
already too much. So nothing here runs per message. Publishers send slices of a *batch*: many whole messages
of equal length encoded once, repeated for ever. Consumers see deliveries of constant length, because consumer
tag, exchange, routing key length and body size do not change; `received bytes // length` is the count, and
strided slices of the receive buffer check it.

1. A delivery is counted only after these held: every frame end octet of it is 0xCE, the low octet of its
   delivery tag continues the sequence; and for the first and last delivery of each buffer all octets before
   the delivery tag, the whole tag, and in the last the body size.
2. Anything that does not fit the arithmetic is parsed frame by frame (`_take_one`): another length, a close, a cancel.
   A close raises with code and text.
3. A publisher never stops inside a message: `finish` sends the rest of one that was cut by a full socket.
4. Batch octets change only in the first 8 body octets, and only in messages none of whose octets have been
   sent in this round.
5. On request a delivery is counted only after its number continued the sequence: the two low octets of every one, the
   whole number of the first and the last of each buffer.

The first 8 body octets are either a time stamp, monotonic nanoseconds modulo 2**40 (18 minutes), or a number,
the queue above 40 bits of the place in it. Either way marking rewrites five columns.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from struct import pack_into, unpack_from
from typing import Final, NamedTuple, NoReturn

from warren.amqp import methods
from warren.amqp_client import frames
from warren.amqp_client.blocking import CHANNEL, closed_by_peer
from warren.amqp_client.client_errors import BrokerError
from warren.perf.client import PerfConnection
from warren.perf.meter import Histogram

RECEIVE_BYTES: Final = 1 << 18
SEND_BYTES: Final = 1 << 16
LEAST_BURST: Final = 4
CONFIRM_BYTES: Final = 1 << 13
STAMP_BYTES: Final = 8
PLACE_BITS: Final = 40
_STAMP_MASK: Final = (1 << 40) - 1
_STAMP_COLUMNS: Final = range(3, STAMP_BYTES)
_SHORTEST_DELIVERY_BYTES: Final = 46
_MOST_PER_BUFFER: Final = RECEIVE_BYTES // _SHORTEST_DELIVERY_BYTES + 1
_ENDS: Final = frames.END * _MOST_PER_BUFFER
_LOW_OCTETS: Final = bytes(range(256)) * (_MOST_PER_BUFFER // 256 + 2)
_LATENCIES_PER_BUFFER: Final = 8


class Batch:
    """Whole messages of equal length, encoded once: one publisher sends them round after round."""

    def __init__(self, messages: Sequence[bytes], *, stamp_at: int) -> None:
        """Join the messages. ``stamp_at`` is the offset of the time stamp inside a message, or -1 for none.

        Raises ValueError on unequal lengths.
        """
        self.message_bytes = len(messages[0])
        if any(len(message) != self.message_bytes for message in messages):
            raise ValueError("the messages of a batch must have one length")
        self.count = len(messages)
        self.stamp_at = stamp_at
        self.data = bytearray(b"".join(messages))
        self.view = memoryview(self.data)

    def mark(self, first: int, stop: int, *, now_ns: int, published: int) -> None:
        """Write the time into messages ``first`` to ``stop`` (exclusive), the first of which is the one after
        ``published`` others.
        """
        if self.stamp_at < 0 or first >= stop:
            return
        stamp = now_ns & _STAMP_MASK
        start = first * self.message_bytes + self.stamp_at
        if stop - first == 1:
            pack_into(">Q", self.data, start, stamp)
            return
        octets = stamp.to_bytes(STAMP_BYTES, "big")
        end = stop * self.message_bytes
        for column in _STAMP_COLUMNS:
            self.data[start + column : end : self.message_bytes] = octets[column : column + 1] * (stop - first)


class NumberedBatch(Batch):
    """A batch that goes to ``queues`` queues in turn; each message carries its queue's number and its place there."""

    def __init__(self, messages: Sequence[bytes], *, body_at: int, queues: int) -> None:
        """Join the messages, and number them. ``body_at`` is the offset of the body inside a message.

        Raises ValueError when the messages are not whole rounds of the queues.
        """
        super().__init__(messages, stamp_at=body_at)
        if self.count % queues:
            raise ValueError(f"{self.count} messages are no whole rounds of {queues} queues")
        self._queues = queues
        for index in range(self.count):
            at = index * self.message_bytes + body_at
            pack_into(">Q", self.data, at, number_of(index % queues, 0))

    def mark(self, first: int, stop: int, *, now_ns: int, published: int) -> None:
        """Write the places into messages ``first`` to ``stop`` (exclusive)."""
        if first >= stop:
            return
        start = first * self.message_bytes + self.stamp_at
        end = stop * self.message_bytes
        for column in _STAMP_COLUMNS:
            run = self._queues << 8 * (STAMP_BYTES - 1 - column)
            self.data[start + column : end : self.message_bytes] = running_octets(published, stop - first, run)


def number_of(queue: int, place: int) -> int:
    """Return the first 8 body octets of message ``place`` of queue ``queue``."""
    return queue << PLACE_BITS | place


def running_octets(first: int, count: int, run: int) -> bytes:
    """Return the lowest octet of ``number // run`` for ``count`` numbers from ``first`` on."""
    octet, used = divmod(first, run)
    if run == 1 and count <= _MOST_PER_BUFFER:
        return _LOW_OCTETS[octet & 255 : (octet & 255) + count]
    parts: list[bytes] = []
    while count > 0:
        here = min(run - used, count)
        parts.append(bytes([octet & 255]) * here)
        octet, used, count = octet + 1, 0, count - here
    return b"".join(parts)


def age_ns(buffer: bytearray, at: int, now_ns: int) -> int:
    """Return the age of the time stamp at offset ``at``."""
    (stamp,) = unpack_from(">Q", buffer, at)
    age = (now_ns - int(stamp)) & _STAMP_MASK
    return age if age <= _STAMP_MASK >> 1 else 0


class ConfirmTracker:
    """Which publishes are confirmed, from acks single or cumulative, in any order."""

    def __init__(self) -> None:
        self.settled = 0
        self._low = 0  # every tag up to here is settled
        self._early: set[int] = set()

    @property
    def is_in_order(self) -> bool:
        """Whether everything that is settled was published before everything that is not."""
        return not self._early

    def settle(self, delivery_tag: int, *, multiple: bool) -> None:
        """Take one basic.ack or basic.nack. Raises BrokerError when it settles a message a second time."""
        if delivery_tag <= self._low:
            raise BrokerError(f"the broker confirmed publish {delivery_tag} twice")
        if multiple:
            if self._early:
                self._early = {tag for tag in self._early if tag > delivery_tag}
            self._low = delivery_tag
        elif delivery_tag == self._low + 1:
            self._low = delivery_tag
        else:
            if delivery_tag in self._early:
                raise BrokerError(f"the broker confirmed publish {delivery_tag} twice")
            self._early.add(delivery_tag)
        while self._early and self._low + 1 in self._early:
            self._low += 1
            self._early.remove(self._low)
        self.settled = self._low + len(self._early)


class PerfPublisher:
    """One publishing connection.

    ``window`` is the number of unconfirmed messages allowed, 0 for no confirms.
    """

    def __init__(self, connection: PerfConnection, batch: Batch, *, window: int, confirm_latency: Histogram) -> None:
        self.connection = connection
        self.sock = connection.sock
        self.batch = batch
        self.window = window
        self.blocked = False
        self.nacked = 0
        self.returned = 0
        self.confirms = ConfirmTracker()
        self._latency = confirm_latency
        self._sent_bytes = 0
        self._started = 0  # messages of which at least one octet is sent
        self._marks: deque[tuple[int, int]] = deque()  # (publish, time) of the first message of each send
        self._inbox = bytearray(max(CONFIRM_BYTES, len(connection.leftover)))
        self._inbox[: len(connection.leftover)] = connection.leftover
        self._inbox_filled = len(connection.leftover)

    @property
    def published(self) -> int:
        """Messages sent completely."""
        return self._sent_bytes // self.batch.message_bytes

    @property
    def confirmed(self) -> int:
        """Messages the broker answered for."""
        return self.confirms.settled

    def allowance(self) -> int:
        """Return how many more messages may be in flight; without confirms more than anyone sends at once.

        A quarter of the window must be free first: one message per confirm would be a system call per
        message.
        """
        if not self.window:
            return SEND_BYTES
        free = self.window - (self._started - self.confirms.settled)
        return free if 4 * free >= self.window else 0

    def publish(self, messages: int, stamp_ns: int) -> int:
        """Send up to ``messages`` further messages, one burst at most, as far as the socket takes them; sets
        `blocked` when it took less.

        Returns the number of those begun.
        """
        before = self._started
        burst = max(LEAST_BURST, SEND_BYTES // self.batch.message_bytes)
        self._send_until((before + min(messages, burst)) * self.batch.message_bytes, stamp_ns)
        return self._started - before

    def finish(self) -> bool:
        """Send the rest of a message that was cut. Returns whether nothing is left to send."""
        self._send_until(self._started * self.batch.message_bytes, 0)
        return self._sent_bytes == self._started * self.batch.message_bytes

    def _send_until(self, target: int, stamp_ns: int) -> None:
        batch = self.batch
        length = batch.message_bytes
        round_bytes = batch.count * length
        while self._sent_bytes < target:
            offset = self._sent_bytes % round_bytes
            stop = min(offset + target - self._sent_bytes, round_bytes)
            fresh = (
                self._started * length - self._sent_bytes + offset
            )  # where the first message begins that has nothing sent
            batch.mark(fresh // length, stop // length, now_ns=stamp_ns, published=self._started)
            try:
                sent = self.sock.send(batch.view[offset:stop])
            except BlockingIOError:
                self.blocked = True
                return
            except OSError as error:
                self._explain_loss(error)
            started_before = self._started
            self._sent_bytes += sent
            self._started = max(started_before, -(-self._sent_bytes // length))
            if self.window and self._started > started_before:
                self._marks.append((started_before + 1, stamp_ns))
            if offset + sent < stop:
                self.blocked = True
                return

    def receive(self) -> bool:
        """Receive once into the inbox; False when there is nothing."""
        where = self.connection.address
        try:
            fresh = self.sock.recv_into(memoryview(self._inbox)[self._inbox_filled :])
        except BlockingIOError:
            return False
        except OSError as error:
            raise BrokerError(f"lost {where}: {error.strerror or error}") from None
        if not fresh:
            raise BrokerError(f"{where} closed the socket of a publisher without a word")
        self._inbox_filled += fresh
        return True

    def keep_from(self, at: int) -> None:
        """Keep the received bytes from ``at`` on, which are not a whole frame yet."""
        self._inbox[: self._inbox_filled - at] = self._inbox[at : self._inbox_filled]
        self._inbox_filled -= at

    def note_latency(self, now_ns: int) -> None:
        """Record how long those took that are confirmed now."""
        while self._marks and self._marks[0][0] <= self.confirms.settled:
            self._latency.record(now_ns - self._marks.popleft()[1])

    def read_confirms(self, now_ns: int) -> None:
        """Receive confirms, nacks and returns. A close raises ConnectionClosed with the broker's words."""
        if not self.receive():
            return
        inbox, at, stop = self._inbox, 0, self._inbox_filled
        confirms = self.confirms
        while at + frames.ACK_BYTES <= stop and inbox[at : at + 11] == _ACK_HEAD:
            tag, bits = unpack_from(">QB", inbox, at + 11)
            confirms.settle(tag, multiple=bits == 1)
            at += frames.ACK_BYTES
        if at < stop:
            at = self._read_slowly(at, stop)
            if stop - at == len(inbox):
                inbox += bytes(len(inbox))  # one frame larger than the inbox: a returned message
        self.keep_from(at)
        self.note_latency(now_ns)

    def _read_slowly(self, at: int, stop: int) -> int:
        """Take whole frames of any kind. Returns where the incomplete one begins."""
        data = self._inbox
        for found in frames.frames(data, at, stop):
            at = found.end
            if found.kind != methods.FRAME_METHOD:
                continue
            packed = frames.method_id(data, found)
            if packed in (methods.BASIC_ACK, methods.BASIC_NACK):
                tag, bits = unpack_from(">QB", data, found.start + 11)
                before = self.confirms.settled
                self.confirms.settle(tag, multiple=bool(bits & 1))
                if packed == methods.BASIC_NACK:
                    self.nacked += self.confirms.settled - before
            elif packed == _RETURN:
                self.returned += 1
            else:
                closed = closed_by_peer(str(self.connection.address), data, found)
                name = frames.method_name(data, found)
                raise closed or BrokerError(f"{self.connection.address} sent a publisher the unexpected method {name}")
        return at

    def _explain_loss(self, error: OSError) -> NoReturn:
        self.read_confirms(time.monotonic_ns())  # the broker's close method, when it is there, says why
        raise BrokerError(f"lost {self.connection.address} while publishing: {error.strerror or error}")


_RETURN: Final = methods.METHOD_IDS[methods.BasicReturn]
_CANCEL: Final = methods.METHOD_IDS[methods.BasicCancel]
_ACK_HEAD: Final = frames.ack(CHANNEL, 0, multiple=False)[:11]


class Layout(NamedTuple):
    """Where things lie in a delivery of this stream."""

    length: int
    ends: tuple[int, ...]
    tag_at: int
    size_at: int
    body_at: int
    head: bytes
    size: bytes


def maybe_layout(buffer: bytes | bytearray, start: int, stop: int) -> Layout | None:
    """Return the layout of the delivery that begins at ``start``, or None while it is incomplete.

    Raises BrokerError when something else begins there.
    """
    delivered = frames.maybe_frame(buffer, start, stop)
    if delivered is None:
        return None
    if delivered.kind != methods.FRAME_METHOD or frames.method_id(buffer, delivered) != methods.BASIC_DELIVER:
        raise BrokerError(f"a frame of type {delivered.kind} came where a delivery was due")
    tag_at = 12 + buffer[start + 11]
    header = frames.maybe_frame(buffer, delivered.end, stop)
    if header is None:
        return None
    if header.kind != methods.FRAME_HEADER:
        raise BrokerError(f"a frame of type {header.kind} came where a content header was due")
    (missing,) = unpack_from(">Q", buffer, header.start + 11)
    ends = [delivered.end, header.end]
    while missing > 0:
        body = frames.maybe_frame(buffer, ends[-1], stop)
        if body is None:
            return None
        if body.kind != methods.FRAME_BODY:
            raise BrokerError(f"a frame of type {body.kind} came where a content body was due")
        missing -= body.end - body.start - methods.FRAME_OVERHEAD_BYTES
        ends.append(body.end)
    if missing:
        raise BrokerError(f"a delivery has {-missing} body octets more than its header announced")
    return Layout(
        length=ends[-1] - start,
        ends=tuple(end - 1 - start for end in ends),
        tag_at=tag_at,
        size_at=header.start + 11 - start,
        body_at=header.end + 7 - start,
        head=bytes(buffer[start : start + tag_at]),
        size=bytes(buffer[header.start + 11 : header.start + 19]),
    )


class DeliveryStream:
    """Counts the deliveries in a byte stream and checks them (1, 2, 5).

    The reader fills ``buffer`` from ``filled`` on. With ``first_number`` bodies are numbered from it on.
    """

    def __init__(
        self, where: str, *, body_bytes: int, stamped: bool, latency: Histogram, first_number: int | None = None
    ) -> None:
        self.buffer = bytearray(max(RECEIVE_BYTES, 2 * body_bytes + 65536))
        self.view = memoryview(self.buffer)
        self.filled = 0
        self.received = 0
        self._where = where
        self._stamped = stamped
        self._latency = latency
        self._first_number = first_number
        self._layout: Layout | None = None

    @property
    def body_at(self) -> int:
        """Offset of the body in a delivery of the present layout."""
        return self._layout.body_at if self._layout is not None else 0

    def take(self, fresh_bytes: int, now_ns: int) -> int:
        """Count the whole deliveries after ``fresh_bytes`` more bytes arrived; keeps the incomplete rest.

        Returns their number.

        Raises ConnectionClosed, or BrokerError when the bytes are not deliveries in sequence.
        """
        self.filled += fresh_bytes
        before = self.received
        at = 0
        while True:
            if self._layout is not None:
                at = self._take_equal(self._layout, at, now_ns)
            end = self._take_one(at, now_ns)
            if end == at:
                break
            at = end
        rest = self.filled - at
        if at and rest:
            self.buffer[:rest] = self.buffer[at : self.filled]
        self.filled = rest
        return self.received - before

    def _take_equal(self, layout: Layout, at: int, now_ns: int) -> int:
        """Take the run of deliveries that have this layout: all that are complete, or none of them.

        Returns where it ends.
        """
        length = layout.length
        count = min((self.filled - at) // length, _MOST_PER_BUFFER)
        if not count:
            return at
        buffer = self.buffer
        stop = at + count * length
        last = stop - length
        head = layout.head
        tag_at = layout.tag_at
        size_at = layout.size_at
        first_tag = self.received + 1
        low = first_tag & 255
        if (
            buffer[at : at + tag_at] != head
            or buffer[last : last + tag_at] != head
            or buffer[last + size_at : last + size_at + 8] != layout.size
            or unpack_from(">Q", buffer, at + tag_at)[0] != first_tag
            or unpack_from(">Q", buffer, last + tag_at)[0] != first_tag + count - 1
            or (count > 2 and buffer[at + tag_at + 7 : stop : length] != _LOW_OCTETS[low : low + count])
        ):
            return at
        for end in layout.ends:
            if buffer[at + end : stop : length] != _ENDS[:count]:
                return at
        if self._first_number is not None and not self._are_numbered(at + layout.body_at, stop, count):
            return at
        self.received += count
        if self._stamped:
            every = -(-count // _LATENCIES_PER_BUFFER)
            for stamp_at in range(at + layout.body_at, stop, every * length):
                self._latency.record(age_ns(buffer, stamp_at, now_ns), every)
        return stop

    def _are_numbered(self, body_at: int, stop: int, count: int) -> bool:
        """Return whether the numbers of ``count`` deliveries of one length continue the sequence (5)."""
        assert self._first_number is not None and self._layout is not None
        buffer, first, length = self.buffer, self._first_number + self.received, self._layout.length
        last_at = body_at + (count - 1) * length
        return bool(
            unpack_from(">Q", buffer, body_at)[0] == first
            and unpack_from(">Q", buffer, last_at)[0] == first + count - 1
            and buffer[body_at + 7 : stop : length] == running_octets(first, count, 1)
            and buffer[body_at + 6 : stop : length] == running_octets(first, count, 256)
        )

    def _check_number(self, layout: Layout, at: int) -> None:
        """Raise BrokerError when the delivery at ``at`` does not carry the number that is due (5)."""
        if self._first_number is None:
            return
        due = self._first_number + self.received
        if int.from_bytes(layout.size, "big") < STAMP_BYTES:
            raise BrokerError(f"{self._where} delivered a message without a number where {_named(due)} was due")
        (number,) = unpack_from(">Q", self.buffer, at + layout.body_at)
        if number != due:
            raise BrokerError(f"{self._where} delivered {_named(number)} where {_named(due)} was due")

    def _take_one(self, at: int, now_ns: int) -> int:
        """Take one delivery of any layout, and remember its layout.

        Returns where it ends, ``at`` while it is incomplete.
        """
        try:
            found = frames.maybe_frame(self.buffer, at, self.filled)
            if found is None:
                return at
            if found.kind == methods.FRAME_METHOD:
                closed = closed_by_peer(self._where, self.buffer, found)
                if closed is not None:
                    raise closed
                if frames.method_id(self.buffer, found) == _CANCEL:
                    raise BrokerError(f"{self._where} cancelled the consumer: its queue is gone, or an operator did it")
            layout = maybe_layout(self.buffer, at, self.filled)
        except frames.FrameFormatError as error:
            raise BrokerError(f"{self._where} sent no AMQP: {error}") from None
        if layout is None:
            return at
        (tag,) = unpack_from(">Q", self.buffer, at + layout.tag_at)
        if tag != self.received + 1:
            raise BrokerError(f"{self._where} sent delivery {tag} where {self.received + 1} was due")
        self._check_number(layout, at)
        self.received += 1
        self._layout = layout
        if self._stamped:
            self._latency.record(age_ns(self.buffer, at + layout.body_at, now_ns))
        return at + layout.length


def _named(number: int) -> str:
    return f"message {number & (1 << PLACE_BITS) - 1} of queue {number >> PLACE_BITS}"


class Consumer:
    """One consuming connection. Acknowledges cumulatively after every ``ack_batch`` deliveries; 0 when the
    consumer is no_ack.
    """

    def __init__(
        self,
        connection: PerfConnection,
        *,
        ack_batch: int,
        body_bytes: int,
        stamped: bool,
        latency: Histogram,
        first_number: int | None = None,
    ) -> None:
        self.connection = connection
        self.sock = connection.sock
        self.ack_batch = ack_batch
        self.stream = DeliveryStream(
            str(connection.address), body_bytes=body_bytes, stamped=stamped, latency=latency, first_number=first_number
        )
        self.stream.buffer[: len(connection.leftover)] = connection.leftover
        self.stream.filled = len(connection.leftover)
        self.blocked = False
        self._acked = 0
        self._unsent = b""

    @property
    def received(self) -> int:
        """Deliveries counted."""
        return self.stream.received

    def receive(self, now_ns: int) -> int:
        """Receive once, count, acknowledge. Returns the number of deliveries."""
        stream = self.stream
        try:
            fresh = self.sock.recv_into(stream.view[stream.filled :])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise BrokerError(f"lost {self.connection.address} while consuming: {error.strerror or error}") from None
        if not fresh:
            raise BrokerError(f"{self.connection.address} closed the socket of a consumer without a word")
        return self._count(fresh, now_ns)

    def take_leftover(self, now_ns: int) -> int:
        """Count and acknowledge deliveries that came with the answer to basic.consume: from a queue that was not
        empty that may be the whole prefetch. Returns the number of deliveries.
        """
        return self._count(0, now_ns)

    def _count(self, fresh: int, now_ns: int) -> int:
        stream = self.stream
        count = stream.take(fresh, now_ns)
        if self.ack_batch and stream.received - self._acked >= self.ack_batch:
            self._acknowledge(self._acked + self.ack_batch, self.ack_batch)
        return count

    def acknowledge_rest(self) -> None:
        """Acknowledge everything received, whatever the batch."""
        if self.ack_batch and self.stream.received > self._acked:
            self._acknowledge(self.stream.received, 1)

    def _acknowledge(self, first_tag: int, step: int) -> None:
        multiple = self.ack_batch > 1
        tags = range(first_tag, self.stream.received + 1, step)
        self._acked = tags[-1]
        self._unsent += b"".join([frames.ack(CHANNEL, tag, multiple=multiple) for tag in tags])
        self.flush()

    def flush(self) -> None:
        """Send acknowledgements as far as the socket takes them; sets `blocked` when it took less."""
        try:
            sent = self.sock.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise BrokerError(
                f"lost {self.connection.address} while acknowledging: {error.strerror or error}"
            ) from None
        self._unsent = self._unsent[sent:]
        self.blocked = bool(self._unsent)
