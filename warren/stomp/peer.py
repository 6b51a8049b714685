"""A STOMP connection: bytes to frames, the login, heart-beats, and every way it can end.

    state            input that leads on                        state after
    AWAIT_HEADER     CONNECT or STOMP                           CHECKING_LOGIN (the shell verifies the credentials)
    CHECKING_LOGIN   the login is accepted, the vhost entered   RUNNING
    RUNNING          DISCONNECT                                 CLOSING until all of it has ended, then ENDED
    any              an error: ERROR, or the socket is gone     ENDED

1. Before CONNECT a peer may send `EARLY_BYTES` in all, and its frame has no body. Afterwards a head has `HEAD_BYTES`, a
   body as many as a message may have.
2. An error is told by ERROR, with the receipt-id of the failed frame where there was one, and ends the connection.
3. A body is received in pieces, each copied once, which `channels.inbound` counts. A head in many pieces is looked at
   again when a line of it has ended.
4. DISCONNECT's receipt comes when everything that was sent or declared before is on disk.
5. Input after DISCONNECT, or after a frame with an error, is ignored.
6. A client that does not take its receipts is not read while more than `outbox_hard_bytes` wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren import __version__
from warren.amqp.errors import (
    ACCESS_REFUSED,
    FRAME_ERROR,
    NOT_ALLOWED,
    REPLY_NAMES,
    SYNTAX_ERROR,
    AmqpError,
    ChannelException,
    ConnectionException,
)
from warren.channels.back_pressure import block_publisher, hold_content
from warren.channels.connection_states import AWAIT_HEADER, CHECKING_LOGIN, CLOSING, ENDED, RUNNING
from warren.channels.ending import note_closed, note_error
from warren.channels.login import LoginRequest, enter_vhost, note_opened
from warren.channels.origin import Origin
from warren.channels.partial_input import PartialInput
from warren.channels.peer import NO_LIMIT_S, Peer
from warren.channels.session import Session
from warren.channels.shared import METHOD_UNITS, PAUSED_COMMIT, PAUSED_LOGIN, PAUSED_TURN, PAUSED_WORK
from warren.stomp.frames import (
    HEADERS_MAX,
    V1_0,
    V1_1,
    V1_2,
    VERSION_NAMES,
    StompFrame,
    content_length,
    encode,
    maybe_number,
    parse_head,
)
from warren.stomp.session import Send, StompSession

if TYPE_CHECKING:
    from warren.channels.broker import Broker

EARLY_BYTES: Final = 8192
HEAD_BYTES: Final = 65536
# The broker looks twice a second for clients that need a heart-beat.
HEART_BEAT_MIN_MS: Final = 1000
HEART_BEAT_MAX_MS: Final = 86_400_000
UNTIL_NUL: Final = -1

NEXT_STATES: Final[tuple[tuple[int, ...], ...]] = (
    (CHECKING_LOGIN, ENDED),  # AWAIT_HEADER
    (),
    (RUNNING, CLOSING, ENDED),  # CHECKING_LOGIN
    (),
    (),
    (CLOSING, ENDED),  # RUNNING
    (ENDED,),  # CLOSING
    (),  # ENDED
)


class StompPeer(Peer):
    """One client that speaks STOMP."""

    def __init__(self, broker: Broker, key: int, origin: Origin) -> None:
        super().__init__(broker, key, origin, "STOMP", NEXT_STATES)
        self.version: int = V1_0
        self.session_name = ""
        self.login.channel_max = 1
        self._session: StompSession | None = None
        self._connect: StompFrame | None = None
        self._input = PartialInput()  # pieces: of a body, or of a head that begins in the rest
        self._is_cut: bool = False  # the rest is the beginning of a head
        self._is_longer: bool = False  # a line of it has ended since it was looked at
        self._held: bytes | None = None  # the body of a SEND that waits whole
        # The state of a frame whose body is being received.
        self._head: bytes = b""
        self._frame: StompFrame | None = None
        self._send: Send | None = None
        self._size: i64 = UNTIL_NUL  # bytes of its body, as announced
        self._missing: i64 = 0  # of its body; UNTIL_NUL: nobody knows
        self._in_body: bool = False
        self._receipt: str | None = None  # of the frame that is being handled
        self._is_leaving: bool = False  # DISCONNECT has come

    # --- in ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if data:
            self.received_reads += 1
            self.received_bytes += len(data)
        self.units_left = self.shared.feed_units
        self.paused &= ~PAUSED_TURN
        if self.state >= CLOSING:
            return
        try:
            self._take(data)
        except AmqpError as error:
            self._failed(error)

    def _take(self, data: bytes) -> None:
        held = self._held
        if held is not None and not self.paused:
            self._held = None
            self._sent(held)
        pos: i64 = 0
        unread = self._input
        if self._is_cut:
            if data:
                unread.add(data)
                self._is_longer = self._is_longer or b"\n" in data
            if not self._is_longer or self.paused:
                self._check_head(len(unread.rest) + unread.size)
                return
            data = unread.rest + unread.take()
            unread.rest = b""
            self._is_cut = False
            self._is_longer = False
        elif unread.rest:
            data = unread.joined(data)
            pos = unread.start
            unread.start = 0
        self._walk(data, pos)

    def _check_head(self, size: i64) -> None:
        if size > (HEAD_BYTES if self.running else EARLY_BYTES):
            raise ConnectionException(FRAME_ERROR, "a head that is too long")

    def _walk(self, data: bytes, pos: i64) -> None:
        """Handle frames from `pos` on, and keep the rest."""
        end: i64 = len(data)
        while pos < end:
            if self.state >= CLOSING:
                return  # by an earlier frame: later input is ignored
            if self.paused:
                break
            if self.units_left <= 0:
                self.share_used()
                break
            self.units_left -= 1
            if self._in_body:
                pos = self._body(data, pos)
                continue
            byte: i64 = data[pos]
            if byte == 10 or byte == 13:
                pos += 1
                continue
            most: i64 = pos + HEAD_BYTES
            head_end: i64 = data.find(b"\n\n", pos, most)
            body_at: i64 = head_end + 2
            other: i64 = data.find(b"\n\r\n", pos, most if head_end < 0 else head_end)
            if other >= 0:
                head_end = other
                body_at = other + 3
            if head_end < 0:
                self._check_head(end - pos)
                if data.count(b"\n", pos) > HEADERS_MAX + 1:
                    raise ConnectionException(FRAME_ERROR, f"more than {HEADERS_MAX} headers")
                self._is_cut = True
                self._input.keep(data[pos:], 0)
                return
            self._check_head(head_end - pos)
            self._begin(data[pos:head_end])
            pos = body_at
        if pos < end and self.state < CLOSING:
            self._input.keep(data, pos)

    def _begin(self, head: bytes) -> None:
        """Take the head of a frame; its body follows."""
        self._receipt = None
        session = self._session
        if session is not None and self.running:
            send = session.maybe_known(head)
            if send is not None:
                self._send = send
                self._frame = None
                self._expect(send.size)
                return
        frame = parse_head(head, self.version if self.running else V1_0)
        if self.running:
            self._receipt = frame.get("receipt")
        size: i64 = content_length(frame, int(self.shared.message_max_bytes))
        if frame.command != "SEND":
            # A client may send a content-length for its empty body; some echo that of the message that they answer.
            size = UNTIL_NUL
        self._frame = frame
        self._head = head
        self._send = None
        self._expect(size)

    def _expect(self, size: i64) -> None:
        self._in_body = True
        self._size = size
        self._missing = size

    def _body(self, data: bytes, pos: i64) -> i64:
        """Take the part of a body in `data` from `pos` on; return where the next frame begins."""
        end: i64 = len(data)
        if self._missing == UNTIL_NUL:
            at: i64 = data.find(b"\0", pos)
            if at < 0:
                self._keep(data[pos:])
                return end
            self._whole(data[pos:at])
            return at + 1
        stop: i64 = pos + self._missing
        if stop >= end:
            self._missing -= end - pos
            self._keep(data[pos:])
            return end
        if data[stop] != 0:
            raise ConnectionException(FRAME_ERROR, "a body whose end does not match its content-length")
        self._whole(data[pos:stop])
        return stop + 1

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of a body."""
        size: i64 = len(piece)
        if size == 0:
            return
        held = self._input
        frame = self._frame
        is_send = frame is None or frame.command == "SEND"
        most: i64 = self.shared.message_max_bytes if is_send else 0
        if held.size + size > most or not self.running:
            raise ConnectionException(FRAME_ERROR, f"a body of more than {int(most)} bytes")
        cost: i64 = held.add(piece)
        session = self._session
        if session is not None:
            hold_content(session, cost)

    def _whole(self, last: bytes) -> None:
        """Handle a frame that is whole, with the last piece of its body."""
        self._in_body = False
        body = last
        if self._input.are_any():
            body = self._input.take(last)
            session = self._session
            if session is not None:
                self.shared.inbound.let_go(session)
        frame = self._frame
        if self.running and (frame is None or frame.command == "SEND"):
            self._sent(body)
            return
        if body:
            raise ConnectionException(FRAME_ERROR, "only SEND has a body")
        assert frame is not None
        self.units_left -= METHOD_UNITS
        self._frame = None
        if self.state == AWAIT_HEADER:
            self._connected(frame)
            return
        searched: i64 = self.searched()
        try:
            self._command(frame)
        finally:
            self.units_left -= self.searched() - searched
        # Without a receipt the client gets no answer: acknowledgements are taken even while many bytes wait.
        if self._receipt is not None:
            self.check_outbox()

    def _sent(self, body: bytes) -> None:
        """Handle SEND; one that may not be handled now waits whole."""
        vhost = self.vhost
        session = self._session
        assert vhost is not None and session is not None
        if len(body) > self.shared.message_max_bytes:
            raise ConnectionException(FRAME_ERROR, "a body that is too large")
        if self.shared.stopped or vhost.is_crowded:
            self._held = body
            block_publisher(self)
            return
        send = self._send
        frame = self._frame
        asks = frame is not None and "receipt" in frame.headers
        if asks and (self._gate.is_full() or session.has_too_many_receipts()):
            self._held = body
            self.pause(PAUSED_COMMIT)
            return
        if send is None:
            assert frame is not None
            self.units_left -= METHOD_UNITS
            send = session.understand(self._head, frame, self._size)
        if frame is None:
            session.send(send, body)
        else:
            session.send_specially(send, body, frame)
        self._send = None
        self._frame = None
        self.check_outbox()

    def details(self) -> dict[str, object]:
        session = self._session
        told: dict[str, object] = {
            "version": VERSION_NAMES[self.version],
            "session": self.session_name,
            "heart_beat_sent_s": self.heartbeats.own_interval_s,
            "heart_beat_expected_s": self.heartbeats.interval_s,
            "subscriptions": 0 if session is None else len(session.subscriptions),
        }
        return {"stomp": told}

    # --- commands ---------------------------------------------------------------------------------------------------

    def _command(self, frame: StompFrame) -> None:
        session = self._session
        if session is None:
            raise ConnectionException(SYNTAX_ERROR, f"{frame.command} before CONNECT")
        if self._gate.is_full():
            self.pause(PAUSED_COMMIT)  # takes effect after this frame
        match frame.command:
            case "SUBSCRIBE":
                session.subscribe(frame)
            case "UNSUBSCRIBE":
                session.unsubscribe(frame)
            case "ACK":
                session.answer_frame(frame, is_nack=False)
            case "NACK":
                session.answer_frame(frame, is_nack=True)
            case "BEGIN":
                session.begin_transaction(frame)
            case "COMMIT":
                session.commit(frame)
            case "ABORT":
                session.abort(frame)
            case "DISCONNECT":
                self._disconnect(session, frame)
            case _:
                raise ConnectionException(SYNTAX_ERROR, "this connection has sent CONNECT before")

    # --- login ------------------------------------------------------------------------------------------------------

    def _connected(self, frame: StompFrame) -> None:
        """Handle CONNECT, or STOMP."""
        if frame.command not in ("CONNECT", "STOMP"):
            raise ConnectionException(SYNTAX_ERROR, f"{frame.command} before CONNECT")
        self.version = _agreed_version(frame)
        self.protocol = f"STOMP {VERSION_NAMES[self.version]}"
        self._connect = frame
        self.login.has_begun = True
        user, password = frame.get("login"), frame.get("passcode")
        certified = self.origin.certificate_user
        if user is None and certified is not None:
            self.login.mechanism = "EXTERNAL"
            request = LoginRequest(self, self.login.mechanism, certified, b"", True)
        else:
            self.login.mechanism = "STOMP"
            problem = "" if user is not None and password is not None else "CONNECT has no login or no passcode"
            request = LoginRequest(self, self.login.mechanism, user or "", (password or "").encode(), False, problem)
        self.enter(CHECKING_LOGIN)
        self.pause(PAUSED_LOGIN)
        self.broker.logins.append(request)

    def login_accepted(self) -> None:
        frame = self._connect
        assert frame is not None
        self._connect = None
        self.login.name = frame.headers.get("client-id", "")
        self.login.stated_properties = {"product": "STOMP client"}
        try:
            owes_ms, expects_ms = _heart_beats(frame)
            self._enter_vhost(frame.headers.get("host", "/"))
        except AmqpError as error:
            self._failed(error)
            return
        # Neither side may be slower than agreed: their interval is rounded up, ours down.
        self.heartbeats.interval_s = -(-expects_ms // 1000)
        self.heartbeats.own_interval_s = owes_ms // 1000
        self.session_name = "session-" + self.broker.unique_name()
        usage = self.login.usage
        assert usage is not None
        usage.channels += 1
        session = StompSession(self)
        self._session = session
        self.channels[1] = session
        headers = [
            ("version", VERSION_NAMES[self.version]),
            ("session", self.session_name),
            ("server", f"Warren/{__version__}"),
            ("heart-beat", f"{owes_ms},{expects_ms}"),
        ]
        self.outbox.write(encode("CONNECTED", headers, b"", V1_0))
        note_opened(self)
        self.broker.events.channel_created(session)
        self.resume(PAUSED_LOGIN)

    def _enter_vhost(self, name: str) -> None:
        try:
            enter_vhost(self, name)
        except ConnectionException as error:
            if name in self.broker.vhosts or name == "/":
                raise
            raise ConnectionException(
                NOT_ALLOWED,
                f"{error.explanation}. The header 'host' of CONNECT names the virtual host; without it, or with "
                "'host:/', that is the vhost /",
            ) from None

    def login_refused(self, request: LoginRequest) -> None:
        text = request.problem or f"Access refused for user '{request.user}'"
        self._failed(ConnectionException(ACCESS_REFUSED, text))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _disconnect(self, session: StompSession, frame: StompFrame) -> None:
        receipt = frame.get("receipt")
        session.confirm()
        if receipt is not None:
            log = self.broker.log
            # Without an open batch, the latest messages are in the batch under way, or on disk.
            batch = log.close_soon(session.sync_confirms) or int(log.batch.number) - 1
            session.write_receipt(receipt, self.broker.journal.last_ticket, batch)
        self._is_leaving = True
        if self._gate.is_shut():
            self.pause(PAUSED_COMMIT)
        else:
            self._leave()

    def _leave(self) -> None:
        self.enter(CLOSING)
        self.heartbeats.deadline_s = NO_LIMIT_S  # until everything has ended
        self.end_channels(answered=True)
        if self.state == CLOSING:
            self.pause(PAUSED_WORK)

    def receipts_sent(self) -> None:
        """Go on, if it is for receipts that we waited."""
        if not self._is_leaving:
            self.resume(PAUSED_COMMIT)

    def open_gate(self) -> bool:
        is_open = super().open_gate()
        if is_open and self._is_leaving and self.state == RUNNING:
            self._leave()
        return is_open

    def answer_close(self) -> None:
        if self.state == CLOSING:
            note_closed(self)
            self.end()

    def _failed(self, error: AmqpError) -> None:
        """Send the peer its error, and end."""
        if self.state >= CLOSING:
            return
        note_error(self, "connection.error", 1, error)
        receipt, self._receipt = self._receipt, None
        self._end_with(error, receipt)

    def fail_later(self, error: AmqpError, receipt: str | None) -> None:
        """Fail as `_failed` does, for an error that is found only now. `receipt`: of the frame that failed."""
        if self.state < CLOSING:
            note_error(self, "connection.error", 1, error)
            self._end_with(error, receipt)

    def _end_with(self, error: AmqpError, receipt: str | None) -> None:
        self.end_channels()
        self._write_error(error.reply_code, error.explanation, receipt)
        self.end()

    def _write_error(self, reply_code: int, explanation: str, receipt: str | None) -> None:
        # As RabbitMQ: the name of the reply code, or that CONNECT was refused.
        reason = "Bad CONNECT" if self.login.has_begun and not self.session_name else REPLY_NAMES[reply_code].lower()
        headers = [("message", reason), ("content-type", "text/plain")]
        if receipt is not None:
            headers.append(("receipt-id", receipt))
        body = explanation.encode("utf-8", "replace").replace(b"\0", b" ")
        headers.append(("content-length", str(len(body))))
        self.outbox.write(encode("ERROR", headers, body, self.version))

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        if self.state < CLOSING:
            self._write_error(reply_code, explanation, None)
            self.end()

    def close_session(self, session: Session, error: ChannelException, method_id: int) -> None:
        self.fail_later(error, None)

    def session_ended(self, session: Session, refusal: ChannelException | None, method_id: int) -> None:
        pass  # it ends with the connection only

    def forget_session(self) -> None:
        """Drop the session, which has ended and refers to this peer: a cycle would stay in memory."""
        self._session = None

    def write_heartbeat(self) -> None:
        self.outbox.write(b"\n")

    def forget_input(self) -> None:
        self._input.forget()
        self._held = None
        self._frame = None
        self._send = None


def _agreed_version(frame: StompFrame) -> int:
    """Return the highest version that both speak.

    Raises:
        ConnectionException: 540, the versions do not overlap.
    """
    accepted = frame.get("accept-version")
    if accepted is None:
        return V1_0
    named = [each.strip() for each in accepted.split(",")]
    for version in (V1_2, V1_1, V1_0):
        if VERSION_NAMES[version] in named:
            return version
    raise ConnectionException(SYNTAX_ERROR, "supported versions are 1.0, 1.1 and 1.2")


def _heart_beats(frame: StompFrame) -> tuple[int, int]:
    """Return the intervals in which we send a heart-beat, and in which we want one, in ms; 0: never.

    Raises:
        ConnectionException: 502, the header is not two numbers.
    """
    given = frame.headers.get("heart-beat", "0,0")
    sends, comma, wants = given.partition(",")
    sends_ms = maybe_number(sends.strip(), HEART_BEAT_MAX_MS)
    wants_ms = maybe_number(wants.strip(), HEART_BEAT_MAX_MS)
    if not comma or sends_ms is None or wants_ms is None:
        raise ConnectionException(SYNTAX_ERROR, "heart-beat is not two numbers of milliseconds up to a day")
    return _not_too_often(wants_ms), _not_too_often(sends_ms)


def _not_too_often(interval_ms: int) -> int:
    return max(interval_ms, HEART_BEAT_MIN_MS) if interval_ms else 0
