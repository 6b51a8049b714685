"""A connection that is open: frames to channels, pauses, and every way it can end.

1. `connection_states` says which state follows which; up to open-ok frames belong to the `handshake`.
2. Replies leave in the order of their requests (`reply_gate`). While one waits for a commit, a method that is not about
   topology waits unread.
3. When a connection ends, its channels have ended and its exclusive queues are deleted, before close-ok is written.
4. All errors that a peer can cause become a close here and nowhere else.
5. Frames for a channel that has ended are ignored for `CLOSED_S`: a client with several threads had them under way.
   channel.close is answered then.
6. The work of one call of `feed` is bounded (fast_path.py (5)); frames are handled in their order all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, method_frame
from warren.amqp.errors import (
    CHANNEL_ERROR,
    FRAME_ERROR,
    NOT_ALLOWED,
    UNEXPECTED_FRAME,
    AmqpError,
    ChannelException,
    ConnectionException,
    reply_text,
)
from warren.amqp.methods import (
    BASIC_PUBLISH,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
)
from warren.channels.access import Principal, Usage
from warren.channels.back_pressure import block_publisher
from warren.channels.channel import Channel, settles
from warren.channels.connection_states import AWAIT_HEADER, CLOSING, ENDED, RUNNING
from warren.channels.consuming import may_get
from warren.channels.content_channel import EXPECT_HEADER, EXPECT_METHOD, ContentChannel
from warren.channels.ending import note_closed, note_error
from warren.channels.fast_path import FrameConnection
from warren.channels.handshake import FRAME_MAX_BYTES, Handshake
from warren.channels.jobs import ChannelEnd
from warren.channels.login import LoginRequest
from warren.channels.origin import Origin
from warren.channels.peer import CLOSE_TIMEOUT_S, NO_LIMIT_S
from warren.channels.session import CHANNEL_CLOSING, Session
from warren.channels.shared import PAUSED_COMMIT, PAUSED_TURN, PAUSED_WORK
from warren.channels.topology import TOPOLOGY_METHODS, handle_topology
from warren.channels.topology_growth import growth_bytes
from warren.vhosts.virtual_host import VirtualHost

if TYPE_CHECKING:
    from warren.channels.broker import Broker

# After a framing error no close-ok can be recognised; the peer gets this long to read why it is closed.
LINGER_S: Final = 3.0
# The time in which frames for an ended channel are ignored, and the number of such channels that are remembered.
CLOSED_S: Final = 10.0
CLOSED_MAX: Final = 256
_NONE_CLOSED: Final[dict[int, float]] = {}


class Connection(FrameConnection):
    """One client. `key` is its name for the shell."""

    def __init__(self, broker: Broker, key: int, origin: Origin) -> None:
        super().__init__(broker, key, origin)
        self.consumer_cancel_notify: bool = False
        self.frame_limit_bytes = FRAME_MAX_BYTES
        self.handshake: Handshake | None = Handshake(self)  # until the connection is open, or has ended
        self._closed = _NONE_CLOSED  # when channels ended that were not opened again, by number
        self._deaf: bool = False  # framing is lost: later bytes make no sense

    # --- in -------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Handle received bytes; ``b""`` after `Broker.take_resumed` continues with the input that was held back."""
        if data:
            self.received_reads += 1
        self.units_left = self.shared.feed_units
        self.paused &= ~PAUSED_TURN
        if self.state == AWAIT_HEADER:
            data = self.carry + data
            self.carry = b""
            if self.handshake is None or not self.handshake.protocol_header(data):
                return
            self.received_bytes += len(PROTOCOL_HEADER)
            data = data[len(PROTOCOL_HEADER) :]
            if not data:
                return
        if self.state == ENDED or self._deaf:
            return
        self.walk(data)

    def give_way(self) -> None:
        """End, as if this peer had never existed: the peer of another protocol takes over."""
        self.enter(ENDED)
        self.forget_input()
        self.turns.close()

    def early_frame(self, frame_type: i64, number: i64, data: bytes, start: i64, end: i64) -> None:
        if self.state == CLOSING:
            self._closing_frame(frame_type, number, data, start, end)
        elif self.handshake is not None:
            self.handshake.frame(frame_type, number, data, start, end)

    def login_accepted(self) -> None:
        if self.handshake is not None:
            self.handshake.login_accepted()

    def login_refused(self, request: LoginRequest) -> None:
        if self.handshake is not None:
            self.handshake.login_refused(request)

    def opened(self, vhost: VirtualHost, principal: Principal, usage: Usage) -> None:
        self.handshake = None
        super().opened(vhost, principal, usage)

    # --- running --------------------------------------------------------------------------------------------------

    def method_frame(self, number: i64, channel: ContentChannel | None, data: bytes, start: i64, end: i64) -> bool:
        """Handle a method of a running connection; False leaves the frame for later, paused."""
        if number == 0:
            return self._connection_method(decode_method(data, start, end))
        if channel is None:
            return self._channel_open(int(number), decode_method(data, start, end))
        assert isinstance(channel, Channel)
        if channel.state == CHANNEL_CLOSING:
            self._closing_channel_method(channel, data, start, end)
            return True
        if channel.state != EXPECT_METHOD:
            what = "content header for class 60" if channel.state == EXPECT_HEADER else "content body"
            kind = "content header" if channel.state == EXPECT_HEADER else "content body"
            text = f"expected {what}, got non {kind} frame instead"
            self.at_method = BASIC_PUBLISH  # the error belongs to the publish under way
            raise ConnectionException(UNEXPECTED_FRAME, text)
        method = decode_method(data, start, end)
        if channel.waiting_bind is not None and channel.waits_for_bind(method):
            return False
        if self.outbox.waiting_bytes() > self.broker.limits.outbox_hard_bytes and not settles(method):
            # A peer that does not read its replies is not read for more requests.
            self.pause_for_outbox()
            return False
        if isinstance(method, TOPOLOGY_METHODS):
            if self._gate.is_full():
                self.pause(PAUSED_COMMIT)
                return False
            broker = self.broker
            if broker.growth.is_limited and not broker.growth.allows(self.key, growth_bytes(channel, method)):
                block_publisher(self)
                return False
            handle_topology(channel, method)
            return True
        if self._gate.is_shut() and not settles(method):
            self.pause(PAUSED_COMMIT)
            return False
        if isinstance(method, m.BasicGet) and not may_get(channel, method.queue):
            return False
        if isinstance(method, m.ChannelClose):
            channel.confirm()
            channel.close()
            self.begin(ChannelEnd(channel, told=True))
        elif isinstance(method, m.ChannelOpen):
            raise ConnectionException(CHANNEL_ERROR, "second 'channel.open' seen")
        elif isinstance(method, m.ChannelCloseOk):
            raise ConnectionException(CHANNEL_ERROR, "unexpected 'channel.close-ok'")
        else:
            channel.handle(method)
        return True

    def _channel_open(self, number: int, method: Any) -> bool:
        if isinstance(method, m.ChannelCloseOk):
            return True
        if not isinstance(method, m.ChannelOpen):
            if not self.was_closed(number):
                raise ConnectionException(CHANNEL_ERROR, "expected 'channel.open'")
            if isinstance(method, m.ChannelClose):
                self.send_method(number, m.ChannelCloseOk(), 0)
            return True
        if self._gate.is_shut():
            self.pause(PAUSED_COMMIT)
            return False
        if len(self.channels) >= self.login.channel_max:
            raise ConnectionException(
                NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                f"({self.login.channel_max})",
            )
        self.login.count_channel()
        channel = Channel(self, number)
        self.channels[number] = channel
        if number in self._closed:
            del self._closed[number]
        self.broker.events.channel_created(channel)
        self.send_event(number, m.ChannelOpenOk(b""))
        return True

    def session_ended(self, channel: Session, refusal: ChannelException | None, method_id: int) -> None:
        """Notify the peer that a channel has released everything: as it asked for, or because of `refusal`."""
        number = int(channel.number)
        if self.state != RUNNING or self.channels.get(number) is not channel:
            return  # so has the connection, meanwhile
        if refusal is None:
            self._forget_channel(number)
            self.send_event(number, m.ChannelCloseOk())
            return
        close = m.ChannelClose(refusal.reply_code, refusal.reply_text, method_id >> 16, method_id & 0xFFFF)
        self.send_method(number, close, 0)
        note_error(self, "channel.error", number, refusal)

    def answer_close(self) -> None:
        """Answer connection.close: everything that it ends has ended."""
        if self.state == CLOSING:
            self.send_event(0, m.ConnectionCloseOk())
            note_closed(self)
            self.end()

    def was_closed(self, number: i64) -> bool:
        """Tell whether a channel of this number has ended lately, so that frames for it may be under way."""
        closed_s = self._closed.get(int(number))
        return closed_s is not None and self.broker.now_s - closed_s < CLOSED_S

    def _forget_channel(self, number: int) -> None:
        del self.channels[number]
        if self._closed is _NONE_CLOSED:
            self._closed = {}
        closed = self._closed
        if len(closed) >= CLOSED_MAX:
            del closed[next(iter(closed))]
        closed[number] = self.broker.now_s
        if self.login.usage is not None:
            self.login.usage.channels -= 1

    def _closing_channel_method(self, channel: Channel, data: bytes, start: i64, end: i64) -> None:
        """Drop methods after our channel.close, until its answer."""
        method_id = int.from_bytes(data[start : start + 4], "big")
        if method_id == CHANNEL_CLOSE_OK:
            self._forget_channel(int(channel.number))
        elif method_id == CHANNEL_CLOSE:
            # Our own close may still wait for a commit.
            self.send_method(int(channel.number), m.ChannelCloseOk(), 0)

    def _connection_method(self, method: Any) -> bool:
        if self._gate.is_shut():
            self.pause(PAUSED_COMMIT)
            return False
        if isinstance(method, m.ConnectionClose):
            for channel in self.channels.values():
                channel.confirm()
            self.enter(CLOSING)
            self.heartbeats.deadline_s = NO_LIMIT_S  # until we have answered
            self.end_channels(answered=True)
            if self.state == CLOSING:
                self.pause(PAUSED_WORK)
        elif isinstance(method, m.ConnectionUpdateSecret):
            # Passwords are checked once, at login; rights that a new secret can change, with every operation.
            self.send_event(0, m.ConnectionUpdateSecretOk())
        elif isinstance(method, m.ConnectionCloseOk):
            pass
        else:
            text = "unexpected method in connection state running"
            raise ConnectionException(CHANNEL_ERROR, text)
        return True

    def other_frame(self, frame_type: i64, number: i64, size: i64) -> None:
        """Accept a heartbeat, which counts only as received bytes; refuse other types, which do not exist."""
        if frame_type != FRAME_HEARTBEAT:
            text = f"type {int(frame_type)}, {int(size)} octets: unknown_frame"
            raise ConnectionException(FRAME_ERROR, text)
        if number != 0:
            raise ConnectionException(UNEXPECTED_FRAME, "a heartbeat on a channel other than 0")

    # --- out ------------------------------------------------------------------------------------------------------

    def send_event(self, number: int, method: Any) -> None:
        """Send a method that need not wait."""
        self.outbox.write(method_frame(number, method))

    def send_method(self, number: int, method: Any, ticket: int, batch: int = 0) -> None:
        """Send a reply after all earlier ones, once the metadata change `ticket` and the log's `batch` are on disk."""
        self.write_when_durable(method_frame(number, method), ticket, batch)

    def write_heartbeat(self) -> None:
        self.outbox.write(HEARTBEAT_FRAME)

    def tell_blocked(self, reason: str) -> None:
        self.send_event(0, m.ConnectionBlocked(reason))

    def tell_unblocked(self) -> None:
        self.send_event(0, m.ConnectionUnblocked())

    # --- errors and the end -----------------------------------------------------------------------------------------

    def failed(self, error: AmqpError) -> bool:
        """Turn an error into the close it asks for; True when later frames are still to be walked."""
        if self.state >= CLOSING:
            # One close has been sent, or answered. A malformed frame now only means that later input is ignored.
            self._deaf = True
            return False
        number = int(self.at_channel)
        if isinstance(error, ChannelException) and self.running and number in self.channels:
            self.close_session(self.channels[number], error, int(self.at_method))
            return True
        note_error(self, "connection.error", int(self.at_channel), error)
        if self.state < RUNNING and error.reply_code != NOT_ALLOWED:
            self.drop(error.reply_text)
            return False
        self.end_channels()
        self.send_close(error.reply_code, error.explanation, int(self.at_method))
        if error.reply_code == FRAME_ERROR:
            self._deaf = True
            self.heartbeats.deadline_s = self.broker.now_s + LINGER_S
            return False
        return True

    def close_session(self, channel: Session, error: ChannelException, method_id: int) -> None:
        channel.close()
        self.begin(ChannelEnd(channel, told=True, refusal=error, method_id=method_id))

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        self.running = False
        self.enter(CLOSING)
        self.heartbeats.deadline_s = self.broker.now_s + CLOSE_TIMEOUT_S
        self._forget_gate()
        text = reply_text(reply_code, explanation)
        self.send_event(0, m.ConnectionClose(reply_code, text, method_id >> 16, method_id & 0xFFFF))

    def forget_input(self) -> None:
        self.handshake = None
        self.carry = b""
        self.carry_from = 0
        self.cut_channel = None  # it refers to us: do not leave a cycle for the cyclic collector
        self.cut_missing = 0

    def _closing_frame(self, frame_type: i64, number: i64, data: bytes, start: i64, end: i64) -> None:
        if frame_type != FRAME_METHOD or number != 0 or end - start < 4:
            return
        method_id = int.from_bytes(data[start : start + 4], "big")
        if method_id == CONNECTION_CLOSE_OK:
            self.end()
        elif method_id == CONNECTION_CLOSE:
            self.send_event(0, m.ConnectionCloseOk())
            self.end()
