"""An AMQP 1.0 connection: bytes to frames, SASL, open, sessions, and every way it can end.

    state            input that leads on                               state after
    AWAIT_HEADER     "AMQP" 3 1 0 0                                    AWAIT_START_OK, announced by our mechanisms
    AWAIT_START_OK   sasl-init                                         CHECKING_LOGIN (the shell verifies it)
    CHECKING_LOGIN   the login is accepted                             AWAIT_TUNE_OK, announced by sasl-outcome
    AWAIT_TUNE_OK    "AMQP" 0 1 0 0                                    AWAIT_OPEN
    AWAIT_OPEN       open, of a vhost that the user may enter          RUNNING
    RUNNING          close                                             CLOSING until all of it has ended, then ENDED
                     an error, forced closure                          CLOSING until the client closes, too
    any              the socket is gone                                ENDED

The names are those of `connection_states`, which the API shows. A client that begins without SASL gets the header of
SASL, and the connection ends. The port is that of AMQP 0-9-1: the first 8 bytes show the protocol
(``channels.handshake``).

1. Before open a frame has at most `EARLY_BYTES`; afterwards, as many bytes as we have announced.
2. A frame is received in pieces, each copied once.
3. The reason of an error is in close, as soon as the client can understand that. A refused login is reported by the
   outcome of SASL.
4. The idle time-out that we announce is half of the time after which silence ends the connection.
5. Responses of management are sent in order, each only when its change is durable.
6. If more than `outbox_hard_bytes` wait for a client that does not take its answers, the client is not read meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from warren import __version__
from warren.amqp.errors import FRAME_ERROR, AmqpError, ChannelException
from warren.amqp.field_table import Table
from warren.amqp10.attaching import HANDLE_MAX, attach
from warren.amqp10.error_conditions import (
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    Amqp10Error,
    condition_of,
)
from warren.amqp10.link_draining import continue_drains, tick_drains
from warren.amqp10.management import RESPONSES_MAX
from warren.amqp10.performatives import (
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    FRAME_AMQP,
    FRAME_HEAD_BYTES,
    FRAME_MIN_MAX_BYTES,
    FRAME_SASL,
    HEARTBEAT,
    OPEN,
    SASL_HEADER,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    TRANSFER,
    U32,
    Arguments,
    Head,
    arguments_of,
    error_value,
    frame,
)
from warren.amqp10.session import WINDOW, Amqp10Session
from warren.amqp10.values import Array, Symbol, UByte, UInt, UShort
from warren.channels.back_pressure import block_publisher
from warren.channels.connection_states import (
    AWAIT_HEADER,
    AWAIT_OPEN,
    AWAIT_START_OK,
    AWAIT_TUNE_OK,
    CHECKING_LOGIN,
    CLOSING,
    ENDED,
    NEXT_STATES,
    RUNNING,
)
from warren.channels.ending import note_closed, note_error
from warren.channels.jobs import ChannelEnd
from warren.channels.login import LoginRequest, enter_vhost, note_opened, shared_name
from warren.channels.origin import Origin
from warren.channels.partial_input import PartialInput
from warren.channels.peer import CLOSE_TIMEOUT_S, NO_LIMIT_S, Peer
from warren.channels.session import CHANNEL_CLOSING, Session
from warren.channels.shared import METHOD_UNITS, PAUSED_COMMIT, PAUSED_LOGIN, PAUSED_TURN, PAUSED_WORK

if TYPE_CHECKING:
    from warren.channels.broker import Broker

PROTOCOL: Final = "AMQP 1.0"
EARLY_BYTES: Final = 8192
CHANNEL_MAX: Final = 63
VHOST_PREFIX: Final = "vhost:"
DEFAULT_VHOST: Final = "/"
# The user of an anonymous client, as in RabbitMQ; this user may log in from this machine only.
ANONYMOUS: Final = "guest"
IDLE_MIN_MS: Final = 1000
IDLE_MAX_MS: Final = 86_400_000
LINGER_S: Final = 3.0
# Clients of RabbitMQ 4 look at both. They use filters of properties and SQL filters, which exist here, from 4.2 on.
PRODUCT: Final = "RabbitMQ"
VERSION: Final = "4.2.0"
CAPABILITIES: Final = ("LINK_PAIR_V1_0", "ANONYMOUS-RELAY")
SASL_OK: Final = 0
SASL_AUTH: Final = 1


class Amqp10Peer(Peer):
    """One client that speaks AMQP 1.0."""

    def __init__(self, broker: Broker, key: int, origin: Origin) -> None:
        super().__init__(broker, key, origin, PROTOCOL, NEXT_STATES)
        self.login.channel_max = min(CHANNEL_MAX + 1, broker.limits.channel_max)
        self.peer_frame_bytes: i64 = FRAME_MIN_MAX_BYTES  # the frame size that the client takes
        self._limit: i64 = EARLY_BYTES  # of frames that it sends
        self._head = Head()
        self._is_deaf: bool = False  # framing is lost: later bytes make no sense
        self._is_open_sent: bool = False
        self._responses: deque[tuple[int, int, Amqp10Session, str, bytes]] = deque()
        self._input = PartialInput()

    # --- in ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if data:
            self.received_reads += 1
            self.received_bytes += len(data)
        self.units_left = self.shared.feed_units
        self.paused &= ~PAUSED_TURN
        if self.state == ENDED or self._is_deaf:
            return
        try:
            self._take(data)
        except AmqpError as error:
            self._failed(error)

    def _take(self, data: bytes) -> None:
        pos: i64 = 0
        held = self._input
        if held.needed > 0:
            if data:
                held.add(data)
            if held.size < held.needed or self.paused:
                return
            data = held.whole()
        elif held.rest:
            data = held.joined(data)
            pos = held.start
            held.start = 0
        self._walk(data, pos)

    def _walk(self, data: bytes, pos: i64) -> None:
        """Handle frames from `pos` on, and keep the rest."""
        end: i64 = len(data)
        while end - pos >= FRAME_HEAD_BYTES:
            if self.paused or self.state == ENDED or self._is_deaf:
                break
            if self.units_left <= 0:
                self.share_used()
                break
            self.units_left -= 1
            if self.state == AWAIT_HEADER or self.state == AWAIT_TUNE_OK:
                self._header(data[pos : pos + FRAME_HEAD_BYTES])
                pos += FRAME_HEAD_BYTES
                continue
            size: i64 = i64(read_i32_be(data, pos)) & U32
            if size < FRAME_HEAD_BYTES or size > self._limit:
                self._is_deaf = True
                raise Amqp10Error(FRAMING_ERROR, f"a frame of {int(size)} bytes (maximum {int(self._limit)})")
            stop: i64 = pos + size
            if stop > end:
                self._input.needed = size
                self._input.add(data[pos:])
                return
            if not self._frame(data, pos, stop):
                break
            pos = stop
        if pos < end and self.state != ENDED and not self._is_deaf:
            self._input.keep(data, pos)

    def _header(self, header: bytes) -> None:
        """Take a protocol header."""
        if self.state == AWAIT_TUNE_OK:
            if header != AMQP_HEADER:
                self.outbox.write(AMQP_HEADER)
                self.drop("a protocol header other than that of AMQP 1.0 after SASL")
                return
            self.outbox.write(AMQP_HEADER)
            self.enter(AWAIT_OPEN)
            return
        self.outbox.write(SASL_HEADER)
        if header != SASL_HEADER:
            self.broker.note(
                "warning", "connection.bad_header", {"peer": self.origin.peer, "what": "AMQP 1.0 without SASL"}
            )
            self.end()
            return
        self.enter(AWAIT_START_OK)
        mechanisms = [Symbol("PLAIN"), Symbol("ANONYMOUS")]
        certified = self.origin.certificate_user
        if certified is not None and self.broker.access.get(certified) is not None:
            mechanisms.insert(0, Symbol("EXTERNAL"))
        listed = Array(0xA3, list(mechanisms))
        self.outbox.write(frame(0, SASL_MECHANISMS, [listed], frame_type=FRAME_SASL))

    def _frame(self, data: bytes, pos: i64, end: i64) -> bool:
        """Handle a frame; False: it has to wait."""
        start: i64 = pos + 4 * i64(data[pos + 4])
        frame_type: i64 = data[pos + 5]
        if start < pos + FRAME_HEAD_BYTES or start > end:
            self._is_deaf = True
            raise Amqp10Error(FRAMING_ERROR, "a frame whose content begins outside it")
        if self.state < AWAIT_TUNE_OK:
            if frame_type != FRAME_SASL or self.state != AWAIT_START_OK:
                self.drop("a frame that does not belong to SASL")
                return True
            self._sasl(data, start, end)
            return True
        if frame_type != FRAME_AMQP:
            self._is_deaf = True
            raise Amqp10Error(FRAMING_ERROR, f"a frame of type {int(frame_type)}")
        if start == end:
            return True  # an empty frame: only shows that the peer is alive
        channel: i64 = i64(read_i16_be(data, pos + 6)) & 0xFFFF
        head = self._head
        head.read(data, start, end)
        if self.state == CLOSING:
            if head.code == CLOSE:
                self.end()
            return True
        if self.state == AWAIT_OPEN:
            if head.code != OPEN:
                raise Amqp10Error(ILLEGAL_STATE, "a frame before open")
            self._open(arguments_of("open", data, head.pos, end))
            return True
        code: i64 = head.code
        session = self.channels.get(int(channel) + 1)
        if isinstance(session, Amqp10Session):
            is_handled = self._session_frame(session, code, data, head.pos, end)
        else:
            is_handled = self._other_frame(int(channel), code, data, head.pos, end)
        # Dispositions are accepted even while much waits: their answers check the limit themselves.
        if code != DISPOSITION:
            self.check_outbox()
        return is_handled

    def _session_frame(self, session: Amqp10Session, code: i64, data: bytes, pos: i64, end: i64) -> bool:
        """Handle a frame on the channel of a session; False: it has to wait."""
        if session.state == CHANNEL_CLOSING:
            if code == END:
                self._forget_session(session)
            elif code == CLOSE:
                self._closed()
            return True
        try:
            if code == TRANSFER:
                vhost = self.vhost
                assert vhost is not None
                if self.shared.stopped or vhost.is_crowded:
                    block_publisher(self)
                    return False
                if len(self._responses) >= RESPONSES_MAX:
                    self.pause(PAUSED_COMMIT)  # it asks faster than the disk answers
                    return False
                session.transfer(data, pos, end)
                return True
            if code == DISPOSITION:
                session.disposition(data, pos, end)
                return True
            self.count_command()
            if code == FLOW:
                session.flow(data, pos, end)
                return True
            if len(self._responses) > 0 and code != CLOSE:
                self.pause(PAUSED_COMMIT)
                return False
            searched: i64 = self.searched()
            try:
                self._command(session, code, data, pos, end)
            finally:
                self.units_left -= self.searched() - searched
        except ChannelException as error:
            self.close_session(session, error, 0)
        return True

    def _command(self, session: Amqp10Session, code: i64, data: bytes, pos: i64, end: i64) -> None:
        if code == ATTACH:
            attach(session, arguments_of("attach", data, pos, end))
        elif code == DETACH:
            session.detach(arguments_of("detach", data, pos, end))
        elif code == END:
            session.confirm()
            session.close()
            self.begin(ChannelEnd(session, told=True))
        elif code == CLOSE:
            self._closed()
        elif code == BEGIN:
            raise Amqp10Error(ILLEGAL_STATE, "a begin on a channel that has a session")
        else:
            raise Amqp10Error(ILLEGAL_STATE, f"a performative {int(code):#x} at this time")

    def _other_frame(self, channel: int, code: i64, data: bytes, pos: i64, end: i64) -> bool:
        self.count_command()
        if code == CLOSE:
            self._closed()
        elif code == BEGIN:
            self._begin_session(channel, arguments_of("begin", data, pos, end))
        elif code == OPEN:
            raise Amqp10Error(ILLEGAL_STATE, "a second open")
        else:
            raise Amqp10Error(ILLEGAL_STATE, f"a performative {int(code):#x} on a channel without a session")
        return True

    def count_command(self) -> None:
        """Count the work of a frame that cannot reuse what earlier frames have prepared."""
        self.units_left -= METHOD_UNITS

    # --- login ------------------------------------------------------------------------------------------------------

    def _sasl(self, data: bytes, pos: i64, end: i64) -> None:
        head = self._head
        try:
            head.read(data, pos, end)
            if head.code != SASL_INIT:
                raise Amqp10Error(ILLEGAL_STATE, "a frame of SASL that is not sasl-init")
            fields = arguments_of("sasl-init", data, head.pos, end)
            request = self._login(fields)
        except AmqpError as error:
            self.drop(error.explanation)
            return
        self.login.has_begun = True
        self.enter_checking(request)

    def enter_checking(self, request: LoginRequest) -> None:
        """Ask the shell to verify the peer's identity."""
        self.enter(CHECKING_LOGIN)
        self.pause(PAUSED_LOGIN)
        self.broker.logins.append(request)

    def _login(self, fields: Arguments) -> LoginRequest:
        mechanism = str(fields.text(0) or "")
        self.login.mechanism = shared_name(mechanism)
        response = fields.any(1)
        certified = self.origin.certificate_user
        if mechanism == "EXTERNAL" and certified is not None:
            return LoginRequest(self, mechanism, certified, b"", True)
        if mechanism == "ANONYMOUS":
            return LoginRequest(self, mechanism, ANONYMOUS, ANONYMOUS.encode(), False)
        if mechanism == "PLAIN" and isinstance(response, bytes):
            parts = response.split(b"\x00")
            if len(parts) == 3:
                try:
                    return LoginRequest(self, mechanism, parts[1].decode(), parts[2], False)
                except UnicodeDecodeError:
                    pass
            return LoginRequest(self, mechanism, "", b"", False, "a malformed PLAIN response")
        return LoginRequest(self, mechanism, "", b"", False, f"unknown authentication mechanism {mechanism[:32]!a}")

    def login_accepted(self) -> None:
        self.enter(AWAIT_TUNE_OK)
        self.outbox.write(frame(0, SASL_OUTCOME, [UByte(SASL_OK)], frame_type=FRAME_SASL))
        self.resume(PAUSED_LOGIN)

    def login_refused(self, request: LoginRequest) -> None:
        if request.problem:
            self.broker.note("warning", "connection.dropped", {"peer": self.origin.peer, "reason": request.problem})
        self.outbox.write(frame(0, SASL_OUTCOME, [UByte(SASL_AUTH)], frame_type=FRAME_SASL))
        self.end()

    # --- open and begin ---------------------------------------------------------------------------------------------

    def _open(self, fields: Arguments) -> None:
        limits = self.broker.limits
        container = fields.text(0)
        if container is None:
            raise Amqp10Error(INVALID_FIELD, "an open without a container id")
        self.login.name = str(container)
        hostname = fields.text(1) or ""
        size = fields.number(2, U32)
        if size < FRAME_MIN_MAX_BYTES:
            raise Amqp10Error(INVALID_FIELD, f"a max-frame-size below {FRAME_MIN_MAX_BYTES}")
        self.peer_frame_bytes = min(size, limits.frame_max_bytes)
        self.login.frame_max_bytes = int(self.peer_frame_bytes)
        self.login.channel_max = min(self.login.channel_max, fields.number(3, 65535) + 1)
        idle_ms = fields.number(4, 0)
        if 0 < idle_ms < IDLE_MIN_MS:
            raise Amqp10Error(INVALID_FIELD, f"an idle-time-out below {IDLE_MIN_MS} ms")
        properties: Table = {}
        for name, value in fields.table(9).items():
            if isinstance(name, str) and isinstance(value, str | bool | int):
                properties[str(name)] = str(value) if isinstance(value, str) else value
        properties["connection_name"] = self.login.name
        self.login.stated_properties = properties
        vhost = str(hostname[len(VHOST_PREFIX) :]) if hostname.startswith(VHOST_PREFIX) else DEFAULT_VHOST
        enter_vhost(self, vhost)
        self._limit = limits.frame_max_bytes
        # The client states after how much silence it gives up. We send something within half of that time.
        self.heartbeats.own_interval_s = min(idle_ms, IDLE_MAX_MS) // 1000
        self.heartbeats.interval_s = limits.heartbeat_s
        self.heartbeats.silent_intervals = 1.0
        self._send_open()
        note_opened(self)

    def _send_open(self, *, is_refused: bool = False) -> None:
        broker = self.broker
        limits = broker.limits
        idle_ms = limits.heartbeat_s * 500
        told: dict[object, object] = {
            Symbol("product"): PRODUCT,
            Symbol("version"): VERSION,
            Symbol("platform"): f"Warren {__version__}",
            Symbol("warren_version"): __version__,
            Symbol("cluster_name"): broker.cluster_name(),
            Symbol("node"): broker.node,
        }
        if is_refused:  # a close follows: libraries that see this do not report an open connection
            told[Symbol("amqp:connection-establishment-failed")] = True
        values: list[object] = [
            broker.node,
            None,
            UInt(limits.frame_max_bytes),
            UShort(min(CHANNEL_MAX, limits.channel_max - 1)),
            UInt(idle_ms) if idle_ms else None,
            None,
            None,
            Array(0xA3, [Symbol(each) for each in CAPABILITIES]),
            None,
            told,
        ]
        self._is_open_sent = True
        self.outbox.write(frame(0, OPEN, values))

    def _begin_session(self, channel: int, fields: Arguments) -> None:
        if len(self.channels) >= self.login.channel_max or channel > CHANNEL_MAX:
            raise Amqp10Error(FRAMING_ERROR, f"the maximum channel is {min(CHANNEL_MAX, self.login.channel_max - 1)}")
        if fields.any(0) is not None:
            raise Amqp10Error(INVALID_FIELD, "a begin with a remote channel that was never begun")
        next_outgoing_id = fields.number(1, -1)
        window = fields.number(2, -1)
        if not 0 <= next_outgoing_id <= U32 or not 0 <= window <= U32:
            raise Amqp10Error(INVALID_FIELD, "a begin without a transfer id or a window")
        self.login.count_channel()
        session = Amqp10Session(self, channel, next_outgoing_id, window)
        self.channels[channel + 1] = session
        self.broker.events.channel_created(session)
        values: list[object] = [UShort(channel), UInt(0), UInt(WINDOW), UInt(0x7FFFFFFF), UInt(HANDLE_MAX)]
        self.outbox.write(frame(channel, BEGIN, values))

    def _forget_session(self, session: Amqp10Session) -> None:
        if self.channels.get(int(session.number)) is session:
            del self.channels[int(session.number)]
            if self.login.usage is not None:
                self.login.usage.channels -= 1

    # --- out --------------------------------------------------------------------------------------------------------

    def write_heartbeat(self) -> None:
        self.outbox.write(HEARTBEAT)

    def drained(self) -> None:
        super().drained()
        if self.running:
            for session in list(self.channels.values()):
                if isinstance(session, Amqp10Session):
                    continue_drains(session)

    def is_patient(self) -> bool:
        return False  # drains end in ticks

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        if self.running:
            for session in list(self.channels.values()):
                if isinstance(session, Amqp10Session):
                    tick_drains(session)

    def respond_when_durable(self, session: Amqp10Session, link: str, payload: bytes, ticket: int, batch: int) -> None:
        """Send a response of management after all earlier ones, once its changes are on disk."""
        if not self._responses and self._is_durable(ticket, batch):
            if session.management is not None:
                session.management.respond(link, payload)
            return
        self._responses.append((ticket, batch, session, link, payload))
        self.broker.shut_gates.add(self)

    def _is_durable(self, ticket: int, batch: int) -> bool:
        broker = self.broker
        return ticket <= broker.journal.committed_ticket and batch <= broker.log.done_batch

    def open_gate(self) -> bool:
        responses = self._responses
        while responses and self._is_durable(responses[0][0], responses[0][1]):
            _, _, session, link, payload = responses.popleft()
            if session.management is not None and session.is_open():
                session.management.respond(link, payload)
        if responses:
            return False
        return super().open_gate()

    # --- errors and the end -----------------------------------------------------------------------------------------

    def note_link_error(self, session: Session, error: AmqpError) -> None:
        """Log that a link was refused or detached."""
        note_error(self, "channel.error", int(session.number), error)

    def _failed(self, error: AmqpError) -> None:
        """Turn an error into the close that it asks for."""
        if self.state >= CLOSING:
            self._is_deaf = True  # a close was sent or answered before
            return
        note_error(self, "connection.error", 0, error)
        if self.state < AWAIT_OPEN:
            self.drop(error.reply_text)
            return
        self.end_channels()
        self._close_with(condition_of(error), error.explanation)
        if error.reply_code == FRAME_ERROR:
            self._is_deaf = True
            self.heartbeats.deadline_s = self.broker.now_s + LINGER_S

    def _close_with(self, condition: str, explanation: str) -> None:
        if not self._is_open_sent:
            self._send_open(is_refused=True)  # nothing else may come first
        self.running = False
        self.enter(CLOSING)
        self.heartbeats.deadline_s = self.broker.now_s + CLOSE_TIMEOUT_S
        self._responses.clear()
        self._forget_gate()
        self.outbox.write(frame(0, CLOSE, [error_value(condition, explanation)]))

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        if self.state < CLOSING:
            self._close_with(condition_of(AmqpError(reply_code, explanation)), explanation)

    def _closed(self) -> None:
        """Handle a close by the client."""
        for session in self.channels.values():
            session.confirm()
        self.enter(CLOSING)
        self.heartbeats.deadline_s = NO_LIMIT_S  # until we have answered
        self.end_channels(answered=True)
        if self.state == CLOSING:
            self.pause(PAUSED_WORK)

    def answer_close(self) -> None:
        if self.state == CLOSING:
            self.outbox.write(frame(0, CLOSE, []))
            note_closed(self)
            self.end()

    def close_session(self, session: Session, error: ChannelException, method_id: int) -> None:
        session.close()
        self.begin(ChannelEnd(session, told=True, refusal=error, method_id=method_id))

    def session_ended(self, session: Session, refusal: ChannelException | None, method_id: int) -> None:
        if self.state != RUNNING or not isinstance(session, Amqp10Session):
            return
        if self.channels.get(int(session.number)) is not session:
            return  # the connection has ended meanwhile, too
        if refusal is None:
            self._forget_session(session)
            self.outbox.write(frame(session.channel, END, []))
            return
        told = error_value(condition_of(refusal), refusal.explanation)
        self.outbox.write(frame(session.channel, END, [told]))
        note_error(self, "channel.error", int(session.number), refusal)

    def forget_input(self) -> None:
        self._input.forget()
        self._responses.clear()
