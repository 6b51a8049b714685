"""A connection that is open: frames to channels, pauses, and every way it can end.

1. `connection_states` says which state follows which; up to open-ok frames belong to the `handshake`.
2. Replies leave in the order of their requests (`reply_gate`). While one waits for a commit, a method that is not about
   topology waits unread.
3. When a connection ends, its channels have ended and its exclusive queues are deleted, before close-ok is written.
4. All errors that a peer can cause become a close here and nowhere else.
5. What one call of `feed` does is bounded (fast_path.py (5)); frames are handled in their order all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.codec import decode_method, method_frame
from warren.amqp.errors import (
    CHANNEL_ERROR,
    CONNECTION_FORCED,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    AmqpError,
    ChannelException,
    ConnectionException,
    reply_text,
)
from warren.amqp.field_table import Table
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
from warren.amqp.outbox import Outbox
from warren.channels.access import Principal, Usage
from warren.channels.channel import Channel
from warren.channels.connection_states import (
    AWAIT_HEADER,
    CLOSING,
    ENDED,
    NEXT_STATES,
    RUNNING,
    STATE_NAMES,
)
from warren.channels.fast_channel import CHANNEL_CLOSING, EXPECT_HEADER, EXPECT_METHOD, FastChannel
from warren.channels.fast_path import (
    PAUSED_ALARM,
    PAUSED_COMMIT,
    PAUSED_INBOUND,
    PAUSED_LOAD,
    PAUSED_OUTBOX,
    PAUSED_TURN,
    PAUSED_WORK,
    FastConnection,
)
from warren.channels.handshake import FRAME_MAX_BYTES, Handshake
from warren.channels.heartbeats import Heartbeats
from warren.channels.jobs import ChannelEnd, ConnectionEnd, ConnectionJobs, Recheck
from warren.channels.reply_gate import ReplyGate
from warren.channels.topology import TOPOLOGY_METHODS, handle_topology
from warren.channels.topology_growth import GrowthShare, growth_bytes
from warren.queues.long_work import Job
from warren.queues.queue import Queue
from warren.vhosts.limits import MAX_CHANNELS, is_reached
from warren.vhosts.virtual_host import VirtualHost

if TYPE_CHECKING:
    from warren.channels.broker import Broker

CLOSE_TIMEOUT_S: Final = 30.0
# After a framing error no close-ok can be recognised; the peer gets this long to read why it is closed.
LINGER_S: Final = 3.0
DELIVERY_SWEEP_S: Final = 60.0

# Why a connection is blocked when there is no alarm.
INBOUND_REASON: Final = "too much is held for messages received in part"

# Longer than anybody runs a broker.
NO_LIMIT_S: Final = 1e12
# More work than any number of bytes can ask for at a time.
UNLIMITED_UNITS: Final = 1 << 60


class Connection(FastConnection):
    """One client. `key` is its name for the shell, `address` the peer's without its port."""

    def __init__(
        self, broker: Broker, key: int, peer: str, local: str, address: str, certificate_user: str | None
    ) -> None:
        super().__init__(broker.shared, Outbox(key, broker.shared.dirty, broker.limits.outbox_soft_bytes))
        self.broker = broker
        self.key = key
        self.peer = peer
        self.local = local
        self.address = address
        self.certificate_user = certificate_user
        self.state: int = AWAIT_HEADER
        self.user_name = ""
        self.vhost_name = ""
        self.name = ""
        self.client_properties: Table = {}
        self.mechanism = ""
        self.frame_max_bytes: int = broker.limits.frame_max_bytes
        self.channel_max: int = broker.limits.channel_max
        self.heartbeat_s: int = 0
        self.received_reads: i64 = 0  # how often the socket had something
        self.connected_at_s: float = broker.now_s
        self.connected_at_ms: int = broker.now_ms()
        self.is_tls: bool = False  # set by the shell
        self.is_internal: bool = False  # from inside this process; what its login says is checked by the shell
        self.is_direct: bool = False  # without a socket, see `channels.direct`
        self.channels_opened: int = 0  # ever
        self.consumer_cancel_notify: bool = False
        self.wants_blocked: bool = False
        self.told_blocked: bool = False
        self.frame_limit_bytes = FRAME_MAX_BYTES
        self.exclusive_queues: dict[str, Queue] = {}
        self._usage: Usage | None = None  # of the user, from open-ok to the end
        self.handshake: Handshake | None = Handshake(self)  # until the connection is open, or has ended
        self.is_known: bool = False  # has begun to log in
        self._work: ConnectionJobs | None = None
        self._deaf: bool = False  # framing is lost: nothing that comes makes sense any more
        self._growth = GrowthShare()
        self._gate = ReplyGate()
        self._deadline_s: float = broker.now_s + broker.limits.handshake_timeout_s
        self._heartbeats = Heartbeats(broker.now_s)
        self.is_unreachable: bool = False  # it has ended, and nothing more can be told to its peer
        self._next_sweep_s: float = 0.0

    # --- in -------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Handle received bytes; ``b""`` after `Broker.take_resumed` goes on with what was held back."""
        if data:
            self.received_reads += 1
        self.units_left = UNLIMITED_UNITS if self.is_direct else self.shared.feed_units
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

    def early_frame(self, frame_type: i64, number: i64, data: bytes, start: i64, end: i64) -> None:
        if self.state == CLOSING:
            self._closing_frame(frame_type, number, data, start, end)
        elif self.handshake is not None:
            self.handshake.frame(frame_type, number, data, start, end)

    def opened(self, vhost: VirtualHost, principal: Principal, usage: Usage) -> None:
        """The handshake is over: the peer may use `vhost` as `principal` now."""
        broker = self.broker
        self.handshake = None
        self.fast_vhost = vhost
        self.fast_principal = principal
        self.vhost_name = vhost.name
        self.enter(RUNNING)
        self.running = True
        self._usage = usage
        usage.connections += 1
        vhost.open_connections += 1
        broker.open_connections += 1
        broker.churn.connections_opened += 1
        self.send_event(0, m.ConnectionOpenOk(""))
        fields: dict[str, object] = {"peer": self.peer, "user": self.user_name, "vhost": vhost.name}
        if self.name:
            fields["name"] = self.name
        broker.note("info", "connection.opened", fields)
        broker.events.connection_created(self)

    def enter(self, state: int) -> None:
        """Change the state, as the table of states allows."""
        assert state in NEXT_STATES[self.state], f"{STATE_NAMES[self.state]} to {STATE_NAMES[state]}"
        self.state = state

    # --- running --------------------------------------------------------------------------------------------------

    def method_frame(self, number: i64, channel: FastChannel | None, data: bytes, start: i64, end: i64) -> bool:
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
            self.at_method = BASIC_PUBLISH  # what failed is the publish that was under way
            raise ConnectionException(UNEXPECTED_FRAME, text)
        method = decode_method(data, start, end)
        if self.outbox.waiting_bytes() > self.broker.limits.outbox_hard_bytes and not _settles(method):
            # Whoever does not take its replies is not asked for more requests.
            self.pause_for_outbox()
            return False
        if isinstance(method, TOPOLOGY_METHODS):
            if self._gate.is_full():
                self.pause(PAUSED_COMMIT)
                return False
            if self.broker.has_alarm("memory") and not self._may_grow(channel, method):
                return False
            handle_topology(channel, method)
            return True
        if self._gate.is_shut() and not _settles(method):
            self.pause(PAUSED_COMMIT)
            return False
        if isinstance(method, m.BasicGet) and not self._may_get(channel, method):
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

    def _may_get(self, channel: Channel, method: m.BasicGet) -> bool:
        """Tell whether basic.get can be answered now; if not, pause until its message has come from disk."""
        queue = channel.vhost.queues.get(method.queue or channel.last_queue)
        if queue is None or queue.is_ready_to_get():
            return True
        self.pause(PAUSED_LOAD)
        queue.call_when_ready(lambda: self.resume(PAUSED_LOAD))
        return False

    def _channel_open(self, number: int, method: Any) -> bool:
        if isinstance(method, m.ChannelCloseOk):
            return True
        if not isinstance(method, m.ChannelOpen):
            raise ConnectionException(CHANNEL_ERROR, "expected 'channel.open'")
        if self._gate.is_shut():
            self.pause(PAUSED_COMMIT)
            return False
        if len(self.channels) >= self.channel_max:
            raise ConnectionException(
                NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                f"({self.channel_max})",
            )
        usage = self._usage
        if usage is not None and is_reached(usage.limits, MAX_CHANNELS, usage.channels):
            raise ConnectionException(
                NOT_ALLOWED,
                f"number of channels opened for user '{self.user_name}' has reached the maximum allowed user limit of "
                f"({usage.limits[MAX_CHANNELS]})",
            )
        if usage is not None:
            usage.channels += 1
        channel = Channel(self, number)
        self.channels[number] = channel
        if not self.is_direct:
            self.broker.churn.channels_opened += 1
            self.broker.events.channel_created(channel)
        self.send_event(number, m.ChannelOpenOk(b""))
        return True

    def channel_ended(self, channel: Channel, refusal: ChannelException | None, method_id: int) -> None:
        """Tell the peer that a channel has let go of everything: as it asked for, or because of `refusal`."""
        number = int(channel.number)
        if self.state != RUNNING or self.channels.get(number) is not channel:
            return  # so has the connection, meanwhile
        if refusal is None:
            self._forget_channel(number)
            self.send_event(number, m.ChannelCloseOk())
            return
        close = m.ChannelClose(refusal.reply_code, refusal.reply_text, method_id >> 16, method_id & 0xFFFF)
        self.send_method(number, close, 0)
        self._note_error("channel.error", number, refusal)

    def answer_close(self) -> None:
        """Everything that the peer's connection.close ends has ended."""
        if self.state == CLOSING:
            self.send_event(0, m.ConnectionCloseOk())
            self.broker.note("info", "connection.closed", {"peer": self.peer, "user": self.user_name})
            self.end()

    def _forget_channel(self, number: int) -> None:
        del self.channels[number]
        if self._usage is not None:
            self._usage.channels -= 1

    def _closing_channel_method(self, channel: Channel, data: bytes, start: i64, end: i64) -> None:
        """We have sent channel.close: wait for the answer and drop the rest."""
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
            self._deadline_s = NO_LIMIT_S  # until we have answered
            self._end_channels(answered=True)
            if self.state == CLOSING:
                self.pause(PAUSED_WORK)
        elif isinstance(method, m.ConnectionUpdateSecret):
            # Passwords are checked once, at login; what a new secret can change is checked with every operation.
            self.send_event(0, m.ConnectionUpdateSecretOk())
        elif isinstance(method, m.ConnectionCloseOk):
            pass
        else:
            text = "unexpected method in connection state running"
            raise ConnectionException(CHANNEL_ERROR, text)
        return True

    def other_frame(self, frame_type: i64, number: i64, size: i64) -> None:
        """A heartbeat is nothing but received bytes; other types do not exist."""
        if frame_type != FRAME_HEARTBEAT:
            text = f"type {int(frame_type)}, {int(size)} octets: unknown_frame"
            raise ConnectionException(FRAME_ERROR, text)
        if number != 0:
            raise ConnectionException(UNEXPECTED_FRAME, "a heartbeat on a channel other than 0")

    # --- out ------------------------------------------------------------------------------------------------------

    def send_event(self, number: int, method: Any) -> None:
        """Send a method that waits for nothing."""
        self.outbox.write(method_frame(number, method))

    def send_method(self, number: int, method: Any, ticket: int, batch: int = 0) -> None:
        """Send a reply behind all earlier ones, once the metadata change `ticket` and the log's `batch` are on disk."""
        data = method_frame(number, method)
        broker = self.broker
        gate = self._gate
        if gate.is_shut() or ticket > broker.journal.committed_ticket or batch > broker.log.done_batch:
            if not gate.is_shut():
                broker.gate(self)
            gate.hold(ticket, batch, data)
            return
        self.outbox.write(data)

    def open_gate(self) -> bool:
        """Send the replies that have nothing to wait for any more; True when none is left waiting."""
        self._gate.open(self.broker.journal.committed_ticket, self.broker.log.done_batch, self.outbox)
        if self._gate.is_shut():
            return False
        self.resume(PAUSED_COMMIT)
        return True

    def pause(self, reason: i64) -> None:
        """Stop handling input for `reason`."""
        self.paused |= reason

    def share_used(self) -> None:
        """Go on in a later turn."""
        self.pause(PAUSED_TURN)
        self.broker.resumed.append(self)

    def check_outbox(self) -> None:
        # Whoever publishes what nobody takes, and does not take it back, would fill the memory with returns and nacks.
        if self.outbox.waiting_bytes() > self.broker.limits.outbox_hard_bytes:
            self.pause_for_outbox()

    def pause_for_outbox(self) -> None:
        """Stop handling input until the peer has taken what waits for it."""
        self.pause(PAUSED_OUTBOX)
        # Replies alone do not stop deliveries; `drained` is only called after a stop.
        self.outbox.writable = False

    def resume(self, reason: i64) -> None:
        """End the pause for `reason`; the shell goes on reading when there is no other."""
        if self.paused & reason:
            self.paused &= ~reason
            if self.paused == 0:
                self.broker.resumed.append(self)

    def begin(self, job: Job) -> None:
        """Do `job`, in this turn as far as that goes; until it is done nothing more is read from the peer."""
        work = self._work
        if work is None:
            work = ConnectionJobs(self, job)
            self._work = work
            self.broker.work.begin(work)
        else:
            work.add(job)

    def wait_for_work(self) -> None:
        """Some of it is left to be done."""
        if self.running:
            self.pause(PAUSED_WORK)

    def work_done(self) -> None:
        """All of it is done."""
        self._work = None
        self.resume(PAUSED_WORK)

    def drained(self) -> None:
        """The peer has taken everything: deliveries and held requests may go on."""
        self.resume(PAUSED_OUTBOX)
        self.turns.wake()

    def _may_grow(self, channel: Channel, method: Any) -> bool:
        """Tell whether topology may grow by `method` although memory is short; else wait until it is not."""
        size: i64 = growth_bytes(channel, method)
        if size == 0 or self.broker.growth.allows(self._growth, size):
            return True
        if self.is_direct:  # somebody waits for an answer over HTTP
            raise ChannelException(
                PRECONDITION_FAILED, "memory is short: nothing can be declared or bound until the memory alarm is over"
            )
        self.publisher_blocked()
        return False

    def publisher_blocked(self) -> None:
        """Memory or disk is short, or the disk is behind, and this connection publishes."""
        if self.is_direct and self.inbound_bytes:
            return  # its content is in memory already: it may only not begin another
        self.pause(PAUSED_ALARM)
        # That the disk is behind is over in a moment: nothing to tell anybody.
        if self.broker.alarm_reason != "":
            self._tell_blocked()

    def alarm_set(self) -> None:
        """Memory or disk has become short.

        Whoever awaits a confirm is told at once: what it published may be just what has no room on the disk, and it
        may not publish again before that is confirmed.
        """
        if self.state == RUNNING and any(each.unconfirmed_count() > 0 for each in self.channels.values()):
            self._tell_blocked()

    def _tell_blocked(self) -> None:
        if self.wants_blocked and not self.told_blocked:
            self.told_blocked = True
            self.send_event(0, m.ConnectionBlocked(self.broker.alarm_reason or INBOUND_REASON))

    def is_held_up(self) -> bool:
        """Tell whether it waits for the end of an alarm, or its peer has been told so."""
        return self.told_blocked or self.paused & PAUSED_ALARM != 0

    def unblock(self) -> None:
        """The alarm is over."""
        self._tell_unblocked()
        self.resume(PAUSED_ALARM)

    def _tell_unblocked(self) -> None:
        if self.told_blocked:
            self.told_blocked = False
            if self.state == RUNNING:  # nothing follows connection.close
                self.send_event(0, m.ConnectionUnblocked())

    def wait_inbound(self) -> bool:
        # It is told by `tick`, if it still waits then: mostly that is over in a moment.
        if self.is_direct:
            return False  # what it sends is in memory already
        self.pause(PAUSED_INBOUND)
        return True

    def resume_inbound(self) -> None:
        if self.broker.alarm_reason == "":
            self._tell_unblocked()
        self.resume(PAUSED_INBOUND)

    def close_largest(self) -> None:
        """Close this connection, which holds most of what is received in part."""
        error = ConnectionException(RESOURCE_ERROR, INBOUND_REASON)
        self._note_error("connection.error", 0, error)
        self._close_at_once(error.reply_code, error.explanation)

    def close_stalled(self, channel: Channel, timeout_s: float) -> None:
        """Close a channel that has begun a content and sends no more of it."""
        text = f"publish on channel {int(channel.number)} timed out: no more of its content came within {timeout_s:g} s"
        self._close_channel(channel, ChannelException(PRECONDITION_FAILED, text), BASIC_PUBLISH)

    def tick(self, now_s: float) -> None:
        """Send a heartbeat when due, give up on a silent peer, enforce deadlines."""
        if self.paused & PAUSED_INBOUND:
            self._tell_blocked()
        if self.state != RUNNING:
            if now_s >= self._deadline_s and self.state != ENDED:
                self.drop("handshake or close timed out")
            return
        heartbeats = self._heartbeats
        timeout_s = self.broker.limits.send_timeout_s
        heartbeats.tick(now_s, self.received_bytes, self.outbox, is_read=self.paused == 0, send_timeout_s=timeout_s)
        if now_s >= self._next_sweep_s:
            self._close_overdue_channels(now_s)
        if heartbeats.is_stuck(timeout_s) and not (self.is_direct or self.is_internal):
            # Heartbeats show that it lives; but what waits for it, unacknowledged messages too, it would hold for ever.
            self._give_up(f"it took nothing of what waits for it, timeout: {timeout_s:g}s")
        elif heartbeats.is_gone(self.heartbeat_s):
            self._give_up(f"missed heartbeats from client, timeout: {self.heartbeat_s}s")
        elif heartbeats.is_due(self.heartbeat_s):
            self.outbox.write(HEARTBEAT_FRAME)

    def _give_up(self, reason: str) -> None:
        """End as if the socket were gone."""
        self.broker.note("warning", "connection.lost", {"peer": self.peer, "reason": reason})
        self.is_unreachable = True
        self._end_channels()
        self.end()

    def _close_overdue_channels(self, now_s: float) -> None:
        """Close channels whose oldest delivery waits for its ack beyond the timeout, give or take a sweep."""
        timeout_s = self.broker.limits.delivery_timeout_s
        self._next_sweep_s = now_s + min(DELIVERY_SWEEP_S, max(timeout_s, 1.0) / 4)
        if timeout_s == 0:
            return
        for channel in list(self.channels.values()):
            assert isinstance(channel, Channel)
            # Consumers with a limit of their own are seen to by their queues; a longer one holds for the channel.
            longest_s = timeout_s
            for consumer in channel.ledger.consumers.values():
                if consumer.timeout_ms >= 0:
                    longest_s = max(longest_s, consumer.timeout_ms / 1000) if consumer.timeout_ms else NO_LIMIT_S
            if now_s - channel.ledger.waiting_since(now_s) > longest_s:
                self.close_overdue(channel, int(timeout_s * 1000))

    def close_overdue(self, channel: Channel, timeout_ms: int) -> None:
        """Close a channel with a delivery that was not answered within `timeout_ms`."""
        if channel.state == CHANNEL_CLOSING:
            return
        text = (
            f"delivery acknowledgement on channel {int(channel.number)} timed out. Timeout value used: "
            f"{timeout_ms} ms. This timeout value can be configured, "
            "see consumers doc guide to learn more"
        )
        self._close_channel(channel, ChannelException(PRECONDITION_FAILED, text), 0)

    # --- errors and the end -----------------------------------------------------------------------------------------

    def failed(self, error: AmqpError) -> bool:
        """Turn an error into the close it asks for; True when later frames are still to be walked."""
        if self.state >= CLOSING:
            # One close has been sent, or answered. What is malformed now changes nothing but that nobody listens.
            self._deaf = True
            return False
        number = int(self.at_channel)
        if isinstance(error, ChannelException) and self.running and number in self.channels:
            channel = self.channels[number]
            assert isinstance(channel, Channel)
            self._close_channel(channel, error, int(self.at_method))
            return True
        self._note_error("connection.error", int(self.at_channel), error)
        if self.state < RUNNING and error.reply_code != NOT_ALLOWED:
            self.drop(error.reply_text)
            return False
        self._end_channels()
        self.send_close(error.reply_code, error.explanation, int(self.at_method))
        if error.reply_code == FRAME_ERROR:
            self._deaf = True
            self._deadline_s = self.broker.now_s + LINGER_S
            return False
        return True

    def refuse(self, channel: Channel, error: ChannelException, method_id: int) -> None:
        """Close `channel`, if that has not happened yet, because of something that is found only now."""
        if channel.is_open():
            self._close_channel(channel, error, method_id)

    def _close_channel(self, channel: Channel, error: ChannelException, method_id: int) -> None:
        channel.close()
        self.begin(ChannelEnd(channel, told=True, refusal=error, method_id=method_id))

    def _note_error(self, event: str, channel_number: int, error: AmqpError) -> None:
        if self.is_direct:
            return  # whoever asked is told, and is not at fault
        fields: dict[str, object] = {
            "peer": self.peer,
            "user": self.user_name,
            "vhost": self.vhost_name,
            "channel": channel_number,
            "reply_code": error.reply_code,
            "reply_text": error.reply_text,
        }
        self.broker.note("warning", event, fields)

    def broken(self) -> None:
        """We failed, not the peer: close with 541, if it can expect that."""
        self._end_channels()
        if self.state == RUNNING:
            self.send_close(INTERNAL_ERROR, "an internal error, see the broker's log", 0)
        else:
            self.end()

    def force_close(self, reason: str, *, noted: bool = True) -> None:
        """Close from our side with 320, or drop what is not open yet. `noted`: with a notice of its own."""
        if self.state == RUNNING:
            if noted and not self.is_direct:
                fields: dict[str, object] = {"peer": self.peer, "user": self.user_name, "vhost": self.vhost_name}
                fields["reason"] = reason
                self.broker.note("info", "connection.forced", fields)
            self._close_at_once(CONNECTION_FORCED, reason)
        elif self.state not in (CLOSING, ENDED):
            self.end()

    def _close_at_once(self, reply_code: int, explanation: str) -> None:
        self._end_channels()
        self.send_close(reply_code, explanation, 0)
        # Whatever held the connection back, its close-ok is to be read.
        if self.paused:
            self.paused = 0
            self.broker.resumed.append(self)

    def lost(self) -> None:
        """The socket is gone."""
        if self.state == RUNNING and not self.is_direct:
            self.broker.note("info", "connection.lost", {"peer": self.peer, "reason": "closed by the peer"})
        self._end_channels()
        self.end()

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        self.running = False
        self.enter(CLOSING)
        self._deadline_s = self.broker.now_s + CLOSE_TIMEOUT_S
        self._forget_gate()
        text = reply_text(reply_code, explanation)
        self.send_event(0, m.ConnectionClose(reply_code, text, method_id >> 16, method_id & 0xFFFF))

    def _forget_gate(self) -> None:
        self._gate.forget()
        self.broker.forget_gate(self)

    def _closing_frame(self, frame_type: i64, number: i64, data: bytes, start: i64, end: i64) -> None:
        if frame_type != FRAME_METHOD or number != 0 or end - start < 4:
            return
        method_id = int.from_bytes(data[start : start + 4], "big")
        if method_id == CONNECTION_CLOSE_OK:
            self.end()
        elif method_id == CONNECTION_CLOSE:
            self.send_event(0, m.ConnectionCloseOk())
            self.end()

    def drop(self, why: str) -> None:
        """End without a word to the peer."""
        self.broker.note("warning", "connection.dropped", {"peer": self.peer, "reason": why})
        self._end_channels()
        self.end()

    def _end_channels(self, *, answered: bool = False) -> None:
        self.running = False
        channels: list[Channel] = []
        for channel in self.channels.values():
            assert isinstance(channel, Channel)
            if channel.state != CHANNEL_CLOSING:
                channel.close()
                channels.append(channel)
        if self._usage is not None:
            self._usage.channels -= len(self.channels)
        self.channels.clear()
        if channels or self.exclusive_queues or answered:
            self.begin(ConnectionEnd(self, channels, answered=answered))

    def rights_changed(self) -> None:
        """The permission in the vhost has changed: end without one, else cancel consumers that may not read now."""
        if self.broker.access.maybe_principal(self.user_name, self.vhost_name) is None:
            self.force_close(f"access to vhost '{self.vhost_name}' was revoked for user '{self.user_name}'")
            return
        for channel in self.channels.values():
            if isinstance(channel, Channel) and channel.state != CHANNEL_CLOSING:
                self.begin(Recheck(channel))

    def end(self) -> None:
        if self.state == ENDED:
            return
        self.enter(ENDED)
        self.handshake = None
        self.running = False
        self.carry = b""
        self.carry_from = 0
        self._forget_gate()
        usage = self._usage
        if usage is not None:
            self._usage = None
            usage.connections -= 1
            self.broker.open_connections -= 1
            churn = self.broker.churn
            churn.connections_closed += 1
            churn.received_bytes += int(self.received_bytes)
            churn.sent_bytes += int(self.outbox.sent_bytes)
            if self.fast_vhost is not None:
                self.fast_vhost.open_connections -= 1
        self.turns.close()
        self.broker.forget_connection(self)
        self.broker.ended.append(self)
        if self.is_known:
            self.broker.events.connection_closed(self)


def _settles(method: Any) -> bool:
    """Tell whether `method` only takes deliveries back: it has no reply and must never wait."""
    return isinstance(method, m.BasicAck | m.BasicNack | m.BasicReject | m.BasicCancelOk)
