"""The fast path: from the bytes of a socket to routed messages and settled acknowledgements.

Everything a busy broker does per message happens here and in what it calls: `Queue.publish` and `DeliveryLedger`.
Whatever is rare is a method that `channels.connection` and `channels.channel` override. What makes it fast:

1. The unit of work is the read buffer. One loop walks its frames; a publish whose method, header and single body
   frame lie in the buffer one behind the other is taken in one step, with no state kept between frames.
2. The argument bytes of basic.publish are the key of the route: the same bytes as last time cost one comparison in
   place, and seen before cost one look-up. `VirtualHost.topology_version` says when a remembered route may be wrong. A
   content in several steps goes where it was routed when it began, but not to a queue that is deleted by its last
   frame.
3. Content is one slice of the buffer, or the pieces of a large frame that a read has cut, and is never taken apart;
   its properties are checked in place and decoded only for the few messages that carry something the broker must
   act on.
4. Confirms are counted, not written: `channels.confirms`.
5. A walk stops when it has done `Shared.feed_units` of work, and goes on in a later turn: the connection is paused
   with PAUSED_TURN and on `Broker.resumed`. Units are counted, not measured: the same bytes stop at the same frame.
   One method may do more than was left; the next one then waits.

    states of content on a channel:    EXPECT_METHOD -> EXPECT_HEADER -> EXPECT_BODY -> EXPECT_METHOD
    CHANNEL_CLOSING: we sent channel.close; frames of the channel are dropped until close-ok.

A frame's announced size is checked when its first 7 bytes are here, a content's when its header is: nothing is
buffered for an announcement that we would refuse. What comes of a content that is not whole yet is counted by
`channels.inbound`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from warren.amqp.errors import (
    CHANNEL_ERROR,
    FRAME_ERROR,
    PRECONDITION_FAILED,
    UNEXPECTED_FRAME,
    AmqpError,
    ChannelException,
    ConnectionException,
)
from warren.amqp.methods import (
    ACK_BYTES,
    BASIC_ACK,
    BASIC_CLASS_ID,
    BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD_BYTES,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
)
from warren.amqp.numbers import number_text
from warren.amqp.outbox import Outbox
from warren.amqp.properties import (
    BODY_SIZE_OFFSET,
    MIN_HEADER_BYTES,
    PERSISTENT_FLAG,
    SPECIAL_PROPERTIES,
    scan_properties,
)
from warren.channels.access import ROUTES_MAX, Principal, Route
from warren.channels.confirms import Confirms, PendingConfirms
from warren.channels.inbound import Inbound
from warren.channels.transaction import Transaction
from warren.channels.wide_publish import QUEUES_AT_ONCE
from warren.exchanges.exchange import Exchange
from warren.msgstore.log.message import PIECE_OVERHEAD_BYTES, Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues.counters import SMALL_MAX_BYTES, MessageCounts, SizeCounts
from warren.queues.delivery import DeliveryLedger
from warren.queues.outcome import ACCEPTED, REFUSED
from warren.queues.queue import Queue
from warren.queues.turns import Turns
from warren.vhosts.metadata_journal import MetadataJournal
from warren.vhosts.virtual_host import VirtualHost

EXPECT_METHOD: Final = 0
EXPECT_HEADER: Final = 1
EXPECT_BODY: Final = 2
CHANNEL_CLOSING: Final = 3

# RabbitMQ's hard cap: beyond it the header is a framing error, below it (and above the limit) a refused publish.
BODY_HARD_MAX_BYTES: Final = 536870912
EMPTY_BODY_FRAMES_MAX: Final = 16
# While publishers of large messages have to wait, a connection does that has sent so much of unfinished contents.
STOPPED_MAX_BYTES: Final = 1 << 20
# An 8-byte grace for clients that count the frame overhead wrongly, as RabbitMQ gives.
FRAME_GRACE_BYTES: Final = 8

WORD_BYTES: Final = 8

# Reads up to this size are joined with what was carried over; larger ones are walked where they are.
JOIN_MAX_BYTES: Final = 4096

# A body frame of at least this size that a read has cut is taken in pieces, each copied once, instead of being joined.
CUT_MIN_BYTES: Final = 16384

# What a judge of publishes may say (`Shared.judge`).
TAKE: Final = 0
REFUSE: Final = 1  # as a queue that is full: basic.nack
RETURN: Final = 2  # as if no queue were bound
LOSE: Final = 3  # as if it had come to a queue and gone

# Reasons for not reading from a connection, a bit each.
PAUSED_COMMIT: Final = 1  # a reply waits for the catalogue
PAUSED_LOGIN: Final = 2  # credentials are being checked
PAUSED_ALARM: Final = 4  # it publishes, and memory or disk is short or the disk is behind
PAUSED_OUTBOX: Final = 8  # it does not take its replies
PAUSED_LOAD: Final = 16  # what it wants to get is being read from disk
PAUSED_INBOUND: Final = 32  # it holds much of what is received in part, and that is too much
PAUSED_WORK: Final = 64  # what it has asked for takes several turns
PAUSED_TURN: Final = 128  # it has had its share of this turn

# Work is counted in units, a third of a microsecond each when compiled: a frame is one, and a queue that a message goes
# to. A step of routing or of long work, which may take longer, counts as one too.
METHOD_UNITS: Final = 16  # more for a method other than basic.publish and basic.ack
ROUTE_UNITS: Final = 16  # more for a publish whose route has to be found
CARE_UNITS: Final = 4  # more for a publish with properties to act on, or in a transaction
# What one connection may do at a time when the shell does not say less: more than a read full of small publishes, to a
# few queues each.
FEED_UNITS_MAX: Final = 16384


def _slice(data: bytes, start: i64, end: i64) -> bytes:
    """Return ``data[start:end]`` without a copy when that is all of it: a large frame that was cut between reads."""
    if start == 0 and end == len(data):
        return data
    return data[start:end]


def _are_at(known: bytes, data: bytes, start: i64, end: i64) -> bool:
    """Tell whether ``data[start:end]`` is `known`, without a copy of it: eight bytes are compared at a time."""
    size: i64 = len(known)
    if end - start != size:
        return False
    if size < WORD_BYTES:
        return data[start:end] == known
    last: i64 = size - WORD_BYTES
    at: i64 = 0
    while at < last:
        if read_i64_be(data, start + at) != read_i64_be(known, at):
            return False
        at += WORD_BYTES
    return read_i64_be(data, start + last) == read_i64_be(known, last)


class Shared:
    """What the fast path needs of the broker: flags it reads, lists it puts itself on."""

    def __init__(self, log: MessageLog, journal: MetadataJournal) -> None:
        self.log = log
        self.journal = journal
        self.stopped: bool = False  # publishers have to wait: an alarm, or the disk is behind
        self.large_stopped: bool = False  # those of large messages have to: the same, or the disk is behind with these
        self.inbound = Inbound(1 << 29, 60.0)
        self.message_max_bytes: i64 = 134217728
        self.feed_units: i64 = FEED_UNITS_MAX  # how much one call of `Connection.feed` may do; set by the shell
        self.confirms = PendingConfirms(log, journal)
        # Looks at every routed message before a queue does, and says what becomes of it; None in a broker that serves.
        # It costs nothing then: with a judge no route is cacheable, and every publish takes the careful way.
        self.judge: Callable[[FastChannel, Message, list[Queue]], int] | None = None
        self.dirty: list[Outbox] = []
        self.served: list[Turns] = []  # of connections on which somebody waits, and can be served
        self.sizes = SizeCounts()  # of what is published


class FastChannel:
    """The part of a channel that handles publishes and acks."""

    def __init__(self, connection: FastConnection, number: i64, ledger: DeliveryLedger) -> None:
        self.fast_connection = connection
        self.shared = connection.shared
        self.number: i64 = number
        self.ledger = ledger
        self.state: i64 = EXPECT_METHOD
        self.transaction: Transaction | None = None  # since tx.select
        self.confirms: Confirms | None = None  # since confirm.select
        # What was published here, to how many more queues than messages, and what became of the rest.
        self.published: i64 = 0
        self.published_bytes: i64 = 0
        self.spread: i64 = 0
        self.returned: i64 = 0
        self.dropped: i64 = 0
        self.route: Route | None = None  # of the content being received
        self.last_arguments: bytes = b""
        self.last_route: Route | None = None
        self.last_version: i64 = 0
        self._parts: list[bytes] = []
        self._body_bytes: i64 = 0
        self._body_received: i64 = 0
        self.held_bytes: i64 = 0  # what that costs, counted in `Shared.inbound`
        self.grown_s: float = 0.0
        self._largest_frame: i64 = 0
        self._empty_frames: i64 = 0

    def find_route(self, arguments: bytes) -> Route:
        """Return what basic.publish with these argument bytes means now."""
        connection = self.fast_connection
        vhost = connection.fast_vhost
        principal = connection.fast_principal
        assert vhost is not None and principal is not None
        version: i64 = vhost.topology_version
        if principal.routes_version != version:
            principal.routes = {}
            principal.routes_version = version
        found = principal.routes.get(arguments)
        if found is None:
            connection.units_left -= ROUTE_UNITS
            searched: i64 = principal.searched
            try:
                found = self.make_route(arguments)
            finally:
                connection.units_left -= principal.searched - searched
            connection.units_left -= len(found.queues)
            if found.cacheable:
                if len(principal.routes) >= ROUTES_MAX:
                    principal.routes = {}
                principal.routes[arguments] = found
        self.last_arguments = arguments
        self.last_route = found
        self.last_version = version
        return found

    def begin_header(self, data: bytes, start: i64, end: i64) -> None:
        """Take the content header frame ``data[start:end]`` of a content that does not lie in one piece."""
        self._body_bytes = self.check_header(data, start, end)
        if self._body_bytes == 0:
            self.state = EXPECT_METHOD
            self._leave_out_deleted()
            self.complete(data[start:end], None, data, start, end, 0, end - start)
            return
        self.state = EXPECT_BODY
        self._parts = [_slice(data, start, end)]
        self._body_received = 0
        self._empty_frames = 0
        self._largest_frame = end - start
        self._hold(end - start + PIECE_OVERHEAD_BYTES)

    def check_header(self, data: bytes, start: i64, end: i64) -> i64:
        """Check the header frame ``data[start:end]`` as far as framing goes and return the announced body size.

        Raises:
            ConnectionException: 501, 505. ChannelException: 406, larger than the configured maximum.
        """
        if end - start < FRAME_OVERHEAD_BYTES + MIN_HEADER_BYTES:
            raise ConnectionException(FRAME_ERROR, "content header too short")
        class_id: i64 = i64(read_i16_be(data, start + FRAME_HEAD_BYTES)) & 0xFFFF
        if class_id != BASIC_CLASS_ID:
            raise ConnectionException(
                UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {int(class_id)} instead",
            )
        size: i64 = read_i64_be(data, start + (FRAME_HEAD_BYTES + BODY_SIZE_OFFSET))
        if size < 0 or size > BODY_HARD_MAX_BYTES:
            announced = number_text(int(size) & 0xFFFFFFFFFFFFFFFF)
            raise ConnectionException(
                FRAME_ERROR,
                f"content body size {announced} exceeds maximum allowed size {BODY_HARD_MAX_BYTES}",
            )
        if size > self.shared.message_max_bytes:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"message size {int(size)} is larger than configured max size {int(self.shared.message_max_bytes)}",
            )
        return size

    def add_body(self, data: bytes, start: i64, end: i64) -> None:
        """Take the body frame ``data[start:end]``."""
        size: i64 = end - start - FRAME_OVERHEAD_BYTES
        if size == 0:
            self._empty_frames += 1
            if self._empty_frames > EMPTY_BODY_FRAMES_MAX:
                raise ConnectionException(FRAME_ERROR, "too many empty content body frames")
            return
        received: i64 = self._body_received + size
        if received > self._body_bytes:
            raise ConnectionException(FRAME_ERROR, "content body frame exceeds remaining content size")
        self._parts.append(_slice(data, start, end))
        if received < self._body_bytes:
            self._hold(end - start + PIECE_OVERHEAD_BYTES)
        self._body_frame_done(end - start)

    def begin_cut(self, piece: bytes, size: i64) -> bool:
        """Take the beginning of a large body frame of `size` payload bytes; False leaves it to the ordinary way."""
        if self.state != EXPECT_BODY or self._body_received + size > self._body_bytes:
            return False
        self._parts.append(piece)
        self._hold(len(piece) + PIECE_OVERHEAD_BYTES)
        return True

    def add_cut(self, piece: bytes) -> None:
        """Take more of it. Small pieces are joined: a peer that trickles must not cost an object for every read."""
        if self.state != EXPECT_BODY:
            return
        last = self._parts[-1]
        if len(piece) + len(last) <= CUT_MIN_BYTES:
            self._parts[-1] = last + piece
            self._hold(len(piece))
        else:
            self._parts.append(piece)
            self._hold(len(piece) + PIECE_OVERHEAD_BYTES)

    def end_cut(self, piece: bytes, size: i64) -> None:
        """Take the rest of it."""
        if self.state != EXPECT_BODY:
            return
        self.add_cut(piece)
        self._body_frame_done(size + FRAME_OVERHEAD_BYTES)

    def _body_frame_done(self, frame_bytes: i64) -> None:
        """Count a whole body frame, and publish when it was the last."""
        if frame_bytes > self._largest_frame:
            self._largest_frame = frame_bytes
        self._body_received += frame_bytes - FRAME_OVERHEAD_BYTES
        if self._body_received < self._body_bytes:
            return
        self.shared.inbound.let_go(self)
        parts = self._parts
        header = parts[0]
        self._parts = []
        self.state = EXPECT_METHOD
        self._leave_out_deleted()
        if self._body_bytes >= CUT_MIN_BYTES:
            self.complete(b"", parts, header, 0, len(header), self._body_bytes, self._largest_frame)
        else:
            self.complete(b"".join(parts), None, header, 0, len(header), self._body_bytes, self._largest_frame)

    def _leave_out_deleted(self) -> None:
        """Forget queues of the route that are gone: what was deleted since basic.publish takes nothing any more."""
        route = self.route
        vhost = self.fast_connection.fast_vhost
        assert route is not None and vhost is not None
        if self.last_version != vhost.topology_version:
            # Channels share it, but none takes it for another publish: the version has changed for all.
            route.queues = [queue for queue in route.queues if not queue.deleted]

    def _hold(self, size: i64) -> None:
        """Count `size` bytes of a content received in part; whoever holds much of it waits while publishers have to."""
        shared = self.shared
        shared.inbound.hold(self, size)
        if shared.large_stopped and self.fast_connection.inbound_bytes > STOPPED_MAX_BYTES:
            self.fast_connection.publisher_blocked()

    def drop_content(self) -> None:
        """Forget a content received in part: the channel or its connection ends."""
        self.shared.inbound.let_go(self)
        self._parts = []
        self.route = None

    def complete(
        self,
        content: bytes,
        pieces: list[bytes] | None,
        data: bytes,
        start: i64,
        header_end: i64,
        body_bytes: i64,
        largest: i64,
    ) -> None:
        """Publish the whole content, `content` or `pieces`; ``data[start:header_end]`` is its header frame."""
        route = self.route
        assert route is not None
        flags: i64 = scan_properties(data, start + FRAME_HEAD_BYTES, header_end - 1)
        if flags & SPECIAL_PROPERTIES or not route.cacheable or self.transaction is not None:
            self.fast_connection.units_left -= CARE_UNITS
            header = data[start + FRAME_HEAD_BYTES : header_end - 1]
            self.publish_with_care(route, content, pieces, header, flags, body_bytes, largest)
            return
        self.published += 1
        self.published_bytes += body_bytes
        if body_bytes > SMALL_MAX_BYTES:
            self.shared.sizes.count(body_bytes)
        route.exchange.published_in += 1
        persistent: bool = flags & PERSISTENT_FLAG != 0
        message = Message(route.envelope, content, self.number, body_bytes, largest, persistent, pieces)
        queues = route.queues
        if len(queues) != 1:
            self.not_to_one(route.exchange, i64(len(queues)))
            if len(queues) == 0:
                self.unroutable(route, message)
            elif len(queues) > QUEUES_AT_ONCE:
                self.publish_wide(message, queues, None)
                return
        outcome: i64 = ACCEPTED
        for queue in queues:
            found: i64 = queue.publish(message)
            if found > outcome:
                outcome = found
        confirms = self.confirms
        if confirms is not None:
            confirms.count_publish(message, outcome, route.ticket)
            if outcome == REFUSED:
                self.fast_connection.check_outbox()

    def not_to_one(self, exchange: Exchange, queues: i64) -> None:
        """Note that a message published to `exchange` did not go to one queue but to `queues`."""
        self.spread += queues - 1
        exchange.spread += queues - 1
        self.fast_connection.units_left -= queues

    def add_counts(self, counts: MessageCounts) -> None:
        """Add what this channel has counted to `counts`."""
        ledger = self.ledger
        counts.publish += self.published
        counts.published_bytes += self.published_bytes
        counts.routed += self.published + self.spread
        counts.return_unroutable += self.returned
        counts.drop_unroutable += self.dropped
        counts.deliver += ledger.delivered
        counts.deliver_no_ack += ledger.next_tag - 1 - ledger.delivered - ledger.got - ledger.got_no_ack
        counts.get += ledger.got
        counts.get_no_ack += ledger.got_no_ack
        counts.get_empty += ledger.got_empty
        counts.redeliver += ledger.redelivered
        counts.ack += ledger.acked
        confirms = self.confirms
        if confirms is not None:
            counts.publish_confirm += confirms.published
            counts.confirm += confirms.confirmed

    def confirm(self) -> None:
        """Write what is to be confirmed at the end of the turn: the peer ends the channel before that."""
        confirms = self.confirms
        if confirms is not None:
            confirms.end_turn()

    def unconfirmed_count(self) -> int:
        """Return how many publishes wait for their confirm."""
        confirms = self.confirms
        return 0 if confirms is None else confirms.unanswered_count()

    # --- overridden by channels.channel ---------------------------------------------------------------------------

    def make_route(self, arguments: bytes) -> Route:
        """Decode, authorize and route."""
        raise AssertionError("overridden")

    def publish_with_care(
        self,
        route: Route,
        content: bytes,
        pieces: list[bytes] | None,
        header: bytes,
        flags: i64,
        body_bytes: i64,
        largest: i64,
    ) -> None:
        """Publish a message that needs more than a look at its route."""
        raise AssertionError("overridden")

    def unroutable(self, route: Route, message: Message) -> None:
        """Return a mandatory message; drop another one."""
        raise AssertionError("overridden")

    def publish_wide(self, message: Message, queues: list[Queue], holders: list[Exchange] | None) -> None:
        """Publish to very many queues, over several turns. `holders`: the exchanges that hold it, too."""
        raise AssertionError("overridden")

    def acknowledge(self, tag: i64, multiple: bool) -> None:
        """Settle, or buffer in a transaction."""
        raise AssertionError("overridden")


class FastConnection:
    """The part of a connection that walks the received bytes."""

    def __init__(self, shared: Shared, outbox: Outbox) -> None:
        self.shared = shared
        self.outbox = outbox
        self.turns = Turns(outbox, shared.served)
        self.fast_vhost: VirtualHost | None = None
        self.fast_principal: Principal | None = None
        self.channels: dict[int, FastChannel] = {}
        self.running: bool = False  # open, and neither side is closing
        self.paused: i64 = 0
        self.inbound_bytes: i64 = 0  # what its unfinished contents hold
        self.received_bytes: i64 = 0
        self.frame_limit_bytes: i64 = 0  # largest payload we accept
        self.cut_channel: FastChannel | None = None  # whose large body frame is being received
        self.cut_size: i64 = 0  # its payload
        self.cut_missing: i64 = 0  # what is still to come of it, 0: no frame is cut
        self.carry: bytes = b""  # the beginning of a frame, or everything behind a pause
        self.carry_from: i64 = 0  # where in it the walk goes on: what a turn left over is not copied
        self.units_left: i64 = FEED_UNITS_MAX  # of the work that this call of `feed` may do
        # Where the walk stands, for whoever handles an error raised in it.
        self.at_channel: i64 = 0
        self.at_method: i64 = 0
        self.at_end: i64 = 0

    def walk(self, data: bytes) -> None:
        """Handle received bytes. Whatever is incomplete, or comes after a pause, is carried over."""
        self.received_bytes += len(data)
        if self.carry_from > 0:
            self._go_on(data)
            return
        if self.cut_missing > 0 and not self.paused:
            if self.carry:
                data = self.carry + data
                self.carry = b""
            pos: i64 = self._continue_cut(data)
            if 0 <= pos < len(data):
                self._walk_from(data, pos)
            return
        pos = 0
        carry = self.carry
        if carry:
            if self.paused:
                self.carry = carry + data
                return
            self.carry = b""
            missing: i64 = self._missing(carry)
            if len(data) > JOIN_MAX_BYTES and 0 < missing < len(data):
                # Only the frame that was cut is joined: joining all would copy a large read once more.
                if self._walk_from(carry + data[:missing], 0) < 0:
                    return
                pos = missing
                if self.carry:
                    # It was held back by a pause.
                    self.carry += data[pos:]
                    return
            else:
                data = carry + data
        self._walk_from(data, pos)

    def _go_on(self, data: bytes) -> None:
        """Handle what the last turn left over, and `data` behind it."""
        rest = self.carry
        pos: i64 = self.carry_from
        if data:
            rest = rest[pos:] + data
            pos = 0
        if self.paused:
            self.carry = rest
            self.carry_from = pos
            return
        self.carry = b""
        self.carry_from = 0
        self._walk_from(rest, pos)

    def _missing(self, carry: bytes) -> i64:
        """Return how many bytes the first frame in `carry` lacks; not positive: none, or its header does."""
        if len(carry) < FRAME_HEAD_BYTES:
            return 0
        return FRAME_OVERHEAD_BYTES + (i64(read_i32_be(carry, 3)) & 0xFFFFFFFF) - len(carry)

    def _walk_from(self, data: bytes, pos: i64) -> i64:
        """Handle the frames from `pos` on and keep the rest; -1 when the connection takes no more."""
        while True:
            try:
                pos = self._frames(data, pos)
                break
            except AmqpError as error:
                pos = self.at_end
                if not self.failed(error):
                    return -1
        if pos < len(data) and not self._begin_cut(data, pos):
            if self.paused & PAUSED_TURN:
                self.carry = data
                self.carry_from = pos
            else:
                self.carry = data[pos:]
        return pos

    def _begin_cut(self, data: bytes, pos: i64) -> bool:
        """Take a large body frame whose beginning is the rest of `data`; False when it is none."""
        have: i64 = len(data) - pos
        if self.paused or not self.running or have < FRAME_HEAD_BYTES or data[pos] != FRAME_BODY:
            return False
        size: i64 = i64(read_i32_be(data, pos + 3)) & 0xFFFFFFFF
        channel = self.channels.get(i64(read_i16_be(data, pos + 1)) & 0xFFFF)
        if size < CUT_MIN_BYTES or channel is None or not channel.begin_cut(data[pos:], size):
            return False
        self.cut_channel = channel
        self.cut_size = size
        self.cut_missing = FRAME_OVERHEAD_BYTES + size - have
        return True

    def _continue_cut(self, data: bytes) -> i64:
        """Take what `data` has of the cut frame; return where the next one begins, -1 when no more is taken."""
        channel = self.cut_channel
        assert channel is not None
        missing: i64 = self.cut_missing
        if len(data) < missing:
            self.cut_missing = missing - len(data)
            channel.add_cut(data)
            return len(data)
        self.cut_missing = 0
        self.cut_channel = None
        self.at_channel = channel.number
        self.at_method = BASIC_PUBLISH
        self.at_end = missing
        try:
            marker = int(data[missing - 1])
            if marker != FRAME_END:
                self.at_method = 0
                text = f"type 3, {int(self.cut_size)} octets: {{invalid_frame_end_marker,{marker}}}"
                raise ConnectionException(FRAME_ERROR, text)
            channel.end_cut(_slice(data, 0, missing), self.cut_size)
        except AmqpError as error:
            if not self.failed(error):
                return -1
        return missing

    def _frames(self, data: bytes, start: i64) -> i64:
        """Handle whole frames from `start` on and return where the first incomplete or unwanted one begins."""
        pos: i64 = start
        end: i64 = len(data)
        channels = self.channels
        channel: FastChannel | None = None
        number: i64 = -1
        while end - pos >= FRAME_HEAD_BYTES:
            if self.paused:
                return pos
            units: i64 = self.units_left
            if units <= 0:
                self.share_used()
                return pos
            self.units_left = units - 1
            frame_type: i64 = data[pos]
            size: i64 = i64(read_i32_be(data, pos + 3)) & 0xFFFFFFFF
            frame_number: i64 = i64(read_i16_be(data, pos + 1)) & 0xFFFF
            if size > self.frame_limit_bytes:
                self.at_end = end
                self.at_method = 0
                raise self.frame_too_large(frame_type, frame_number, size)
            payload: i64 = pos + FRAME_HEAD_BYTES
            next_pos: i64 = payload + size + 1
            if next_pos > end:
                return pos
            self.at_end = next_pos
            if data[next_pos - 1] != FRAME_END:
                self.at_method = 0
                marker = int(data[next_pos - 1])
                text = f"type {int(frame_type)}, {int(size)} octets: {{invalid_frame_end_marker,{marker}}}"
                raise ConnectionException(FRAME_ERROR, text)
            if not self.running:
                # Handshake or closing: no channel matters, and the state may change with every frame.
                self.early_frame(frame_type, frame_number, data, payload, next_pos - 1)
                pos = next_pos
                number = -1
                continue
            if frame_number != number:
                number = frame_number
                channel = channels.get(number)
                self.at_channel = number
            if frame_type == FRAME_METHOD:
                method: i64 = 0
                if size >= 4:
                    method = i64(read_i32_be(data, payload)) & 0xFFFFFFFF
                self.at_method = method
                if channel is not None and channel.state == EXPECT_METHOD:
                    if method == BASIC_PUBLISH:
                        vhost = self.fast_vhost
                        assert vhost is not None
                        if self.shared.stopped or vhost.is_crowded:
                            self.publisher_blocked()
                            return pos
                        route = channel.last_route
                        if (
                            route is None
                            or channel.last_version != vhost.topology_version
                            or not _are_at(channel.last_arguments, data, payload + 4, next_pos - 1)
                            or not route.cacheable
                        ):
                            # Errors found while routing are raised behind the method frame. The content that
                            # follows then meets a closing channel and is dropped.
                            route = channel.find_route(data[payload + 4 : next_pos - 1])
                        channel.route = route
                        pos = self._content_in_one_piece(channel, data, next_pos, end)
                        if pos < 0:
                            channel.state = EXPECT_HEADER
                            pos = next_pos
                        continue
                    if method == BASIC_ACK and size == ACK_BYTES:
                        channel.acknowledge(read_i64_be(data, payload + 4), data[payload + 12] & 1 == 1)
                        pos = next_pos
                        continue
                self.units_left -= METHOD_UNITS
                searched: i64 = self.searched()
                try:
                    if not self.method_frame(number, channel, data, payload, next_pos - 1):
                        return pos
                finally:
                    self.units_left -= self.searched() - searched
                # Channels come and go, and so may the whole connection.
                number = -1
            elif frame_type in (FRAME_BODY, FRAME_HEADER):
                # Another channel's method may have come since the publish that this belongs to.
                self.at_method = BASIC_PUBLISH
                self._content_frame(frame_type, channel, number, data, pos, next_pos)
            else:
                self.at_method = 0
                self.other_frame(frame_type, number, size)
            pos = next_pos
        return pos

    def searched(self) -> i64:
        """Return how many steps the patterns of permissions and policies have taken so far."""
        principal = self.fast_principal
        vhost = self.fast_vhost
        return 0 if principal is None or vhost is None else principal.searched + vhost.policies.searched

    def _content_in_one_piece(self, channel: FastChannel, data: bytes, start: i64, end: i64) -> i64:
        """Take header and single body frame lying at `start`; return the position behind, or -1 if they do not.

        Anything unusual is left to the frame by frame way, which also names the errors.
        """
        if end - start < FRAME_OVERHEAD_BYTES + MIN_HEADER_BYTES or data[start] != FRAME_HEADER:
            return -1
        header_end: i64 = start + FRAME_OVERHEAD_BYTES + (i64(read_i32_be(data, start + 3)) & 0xFFFFFFFF)
        if (
            header_end > end
            or header_end - start < FRAME_OVERHEAD_BYTES + MIN_HEADER_BYTES
            or data[header_end - 1] != FRAME_END
        ):
            return -1
        if header_end - start - FRAME_OVERHEAD_BYTES > self.frame_limit_bytes:
            return -1
        number: i64 = channel.number
        if (i64(read_i16_be(data, start + 1)) & 0xFFFF) != number:
            return -1
        if read_i16_be(data, start + FRAME_HEAD_BYTES) != BASIC_CLASS_ID:
            return -1
        body_bytes: i64 = read_i64_be(data, start + (FRAME_HEAD_BYTES + BODY_SIZE_OFFSET))
        if body_bytes == 0:
            self.at_end = header_end
            channel.complete(data[start:header_end], None, data, start, header_end, 0, header_end - start)
            return header_end
        if body_bytes < 0 or body_bytes > self.frame_limit_bytes:
            return -1
        body_end: i64 = header_end + FRAME_OVERHEAD_BYTES + body_bytes
        if body_end > end or data[header_end] != FRAME_BODY or data[body_end - 1] != FRAME_END:
            return -1
        if (i64(read_i16_be(data, header_end + 1)) & 0xFFFF) != number:
            return -1
        if (i64(read_i32_be(data, header_end + 3)) & 0xFFFFFFFF) != body_bytes:
            return -1
        if body_bytes > self.shared.message_max_bytes:
            return -1
        self.at_end = body_end
        largest: i64 = header_end - start
        if FRAME_OVERHEAD_BYTES + body_bytes > largest:
            largest = FRAME_OVERHEAD_BYTES + body_bytes
        channel.complete(data[start:body_end], None, data, start, header_end, body_bytes, largest)
        return body_end

    def _content_frame(
        self, frame_type: i64, channel: FastChannel | None, number: i64, data: bytes, start: i64, end: i64
    ) -> None:
        """Take a header or body frame that comes on its own."""
        if channel is None:
            self.at_method = 0
            if number == 0:
                raise ConnectionException(UNEXPECTED_FRAME, "a content frame on channel 0")
            raise ConnectionException(CHANNEL_ERROR, "expected 'channel.open'")
        state = channel.state
        if state == CHANNEL_CLOSING:
            return
        if state == EXPECT_METHOD:
            self.at_method = 0
            raise ConnectionException(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        if state == EXPECT_HEADER:
            if frame_type != FRAME_HEADER:
                raise ConnectionException(
                    UNEXPECTED_FRAME,
                    "expected content header for class 60, got non content header frame instead",
                )
            channel.begin_header(data, start, end)
            return
        if frame_type != FRAME_BODY:
            raise ConnectionException(UNEXPECTED_FRAME, "expected content body, got non content body frame instead")
        channel.add_body(data, start, end)

    def frame_too_large(self, frame_type: i64, number: i64, size: i64) -> ConnectionException:
        """Return the 501 for a frame that announces a payload of `size` bytes."""
        limit = int(self.frame_limit_bytes - FRAME_GRACE_BYTES)
        text = f"type {int(frame_type)}, {int(size)} octets: {{frame_too_large,{int(size)},{limit}}}"
        return ConnectionException(FRAME_ERROR, text)

    # --- overridden by channels.connection ------------------------------------------------------------------------

    def early_frame(self, frame_type: i64, number: i64, data: bytes, start: i64, end: i64) -> None:
        """Handle a frame before open-ok or while closing."""
        raise AssertionError("overridden")

    def method_frame(self, number: i64, channel: FastChannel | None, data: bytes, start: i64, end: i64) -> bool:
        """Handle any other method; False leaves the frame for later."""
        raise AssertionError("overridden")

    def other_frame(self, frame_type: i64, number: i64, size: i64) -> None:
        """Handle a heartbeat or an unknown frame type."""
        raise AssertionError("overridden")

    def share_used(self) -> None:
        """Stop the walk until a later turn: others wait."""
        raise AssertionError("overridden")

    def check_outbox(self) -> None:
        """Stop reading when the peer does not take what its publishes bring it."""
        raise AssertionError("overridden")

    def publisher_blocked(self) -> None:
        """Stop reading: this connection publishes while memory or disk is short."""
        raise AssertionError("overridden")

    def wait_inbound(self) -> bool:
        """Stop reading until `resume_inbound`; False for one that is read all the same."""
        raise AssertionError("overridden")

    def is_held_back(self) -> bool:
        """Tell whether it is not read for longer than until its next turn."""
        return self.paused & ~PAUSED_TURN != 0

    def resume_inbound(self) -> None:
        """End that."""
        raise AssertionError("overridden")

    def failed(self, error: AmqpError) -> bool:
        """Answer an error raised in the walk; False ends the walk."""
        raise AssertionError("overridden")
