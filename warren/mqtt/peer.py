"""An MQTT connection: bytes to packets, and every way it can end.

Parts of it have a module each: `connecting` (from CONNECT to CONNACK), `client_limits`, `client_ids`, `wills` and
`topic_aliases`; keep alive is `channels.heartbeats`.

    state            input that leads on                               state after
    AWAIT_HEADER     CONNECT                                           CHECKING_LOGIN (the shell verifies the password)
                     CONNECT whose method has a challenge              AWAIT_START_OK
    AWAIT_START_OK   AUTH                                              CHECKING_LOGIN, or the same after a challenge
    CHECKING_LOGIN   the login is accepted, the vhost entered, and     RUNNING, announced by CONNACK
                     the previous owner of the client id has ended
    RUNNING          DISCONNECT                                        CLOSING until all of it has ended, then ENDED
    any              an error, or the socket is gone                   ENDED

1. Before the login a packet has at most `EARLY_BYTES`, and all incomplete packets together are bounded
   (``channels.early_input``). After it, a PUBLISH has at most the size of a message, with a head of at most
   `PUBLISH_HEAD_BYTES`, and any other packet at most `COMMAND_BYTES`.
2. The client gets an error in CONNACK or, in 5.0, in DISCONNECT with a reason. In 3.1 and 3.1.1 a connection with an
   error just ends after CONNACK, and the log has the reason.
3. DISCONNECT with success drops the will. If the connection ends in any other way, the will is published or kept
   (`mqtt.wills`), before anything of the session is removed.
4. A packet is received in pieces. Each is copied once, and `channels.inbound` counts them.
5. A client that has logged in by a method may do so again while it is connected, by the same method and as the same
   user. While that is being verified the client is not read.
6. If more than `outbox_hard_bytes` wait for a client after a packet that has an answer, the client is not read until it
   has taken everything. PUBACK has no answer, and does not cause this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.errors import AmqpError, ChannelException
from warren.amqp.field_table import Table
from warren.channels.access import CONFIGURE
from warren.channels.back_pressure import block_publisher, hold_content
from warren.channels.connection_states import AWAIT_HEADER, AWAIT_START_OK, CHECKING_LOGIN, CLOSING, ENDED, RUNNING
from warren.channels.ending import note_closed, note_error
from warren.channels.login import LoginRequest
from warren.channels.origin import Origin
from warren.channels.partial_input import PartialInput
from warren.channels.peer import NO_LIMIT_S, Peer
from warren.channels.session import Session
from warren.channels.shared import METHOD_UNITS, PAUSED_COMMIT, PAUSED_LOGIN, PAUSED_TURN, PAUSED_WORK
from warren.mqtt.client_ids import maybe_owner, release, succeed
from warren.mqtt.client_limits import OLD, ClientLimits, limits_of
from warren.mqtt.connecting import SESSION_EXPIRY_MAX_S, Connecting, authenticate
from warren.mqtt.login_methods import EnhancedLogin
from warren.mqtt.packets import (
    ALIAS,
    AUTH,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    REASON_STRING,
    SESSION_EXPIRY,
    SUBSCRIBE,
    UNSUBSCRIBE,
    V3_1_1,
    V5,
    VERSION_NAMES,
    Answer,
    Connect,
    Properties,
    Reader,
    Will,
    auth,
    connack,
    decode_answer,
    decode_connect,
    decode_subscribe,
    decode_topic,
    decode_unsubscribe,
    disconnect,
    malformed,
    overlong,
    packet,
    suback,
    unsuback,
)
from warren.mqtt.reason_codes import (
    BAD_LOGIN,
    BAD_VERSION,
    KEEP_ALIVE,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    SUCCESS,
    TOO_LARGE,
    MqttError,
    reason_of,
    return_code,
)
from warren.mqtt.session import MqttSession
from warren.mqtt.sessions import queue_name
from warren.mqtt.subscribing import SubscribeRun, UnsubscribeRun
from warren.mqtt.topic_aliases import TopicAliases
from warren.mqtt.wills import leave_will

if TYPE_CHECKING:
    from warren.channels.broker import Broker

EARLY_BYTES: Final = 65536
COMMAND_BYTES: Final = 262144
PUBLISH_HEAD_BYTES: Final = 131072  # a topic and properties
_PROTOCOLS: Final = {version: f"MQTT {name}" for version, name in VERSION_NAMES.items()}
# The flags that each packet has to have. In PUBLISH they have a meaning.
_FLAGS: Final = {SUBSCRIBE: 2, UNSUBSCRIBE: 2, PUBREL: 2}

NEXT_STATES: Final[tuple[tuple[int, ...], ...]] = (
    (AWAIT_START_OK, CHECKING_LOGIN, ENDED),  # AWAIT_HEADER
    (CHECKING_LOGIN, ENDED),  # AWAIT_START_OK
    (RUNNING, CLOSING, ENDED),  # CHECKING_LOGIN
    (),
    (),
    (CLOSING, ENDED),  # RUNNING
    (ENDED,),  # CLOSING
    (),  # ENDED
)


class MqttPeer(Peer):
    """One client that speaks MQTT."""

    def __init__(self, broker: Broker, key: int, origin: Origin) -> None:
        super().__init__(broker, key, origin, "MQTT", NEXT_STATES)
        self.version: int = V3_1_1
        self.login.channel_max = 1
        self.heartbeats.silent_intervals = 1.5
        self.limits: ClientLimits = OLD
        self.client_id = ""
        self.session: MqttSession | None = None  # from the login on
        self.enhanced: EnhancedLogin | None = None  # if it logs in by a method
        self.successor: MqttPeer | None = None  # has taken the client id over, and waits
        self._connecting: Connecting | None = None  # from CONNECT until CONNACK has said yes
        self._will: Will | None = None
        self._aliases: TopicAliases | None = None
        self._input = PartialInput()

    @property
    def client_properties(self) -> Table:
        """The client's properties for the API. They are made on demand: there may be very many clients."""
        return {"product": "MQTT client", "client_id": self.client_id} if self.client_id else {}

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
            self.fail(error)

    def _take(self, data: bytes) -> None:
        pos: i64 = 0
        held = self._input
        if held.needed > 0:
            self._keep(data)
            if held.size < held.needed or self.paused:
                return
            data = held.whole()
            session = self.session
            if session is not None:
                self.shared.inbound.let_go(session)
            self.shared.early.let_go(self)
        elif held.rest:
            data = held.joined(data)
            pos = held.start
            held.start = 0
        self._walk(data, pos)

    def _walk(self, data: bytes, pos: i64) -> None:
        """Handle packets from `pos` on, and keep the rest."""
        end: i64 = len(data)
        while pos < end:
            if self.paused:
                break
            if self.units_left <= 0:
                self.share_used()
                break
            self.units_left -= 1
            at: i64 = pos + 1
            size: i64 = 0
            shift: i64 = 0
            while at < end:
                byte: i64 = data[at]
                at += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    if byte == 0 and shift > 0 and self.version == V5:
                        raise overlong()
                    shift = -1
                    break
                shift += 7
                if shift > 21:
                    raise malformed("a remaining length of more than four octets")
            if shift >= 0:
                break  # the rest of the length has not come yet
            first: i64 = data[pos]
            self._check_size(first >> 4, size)
            stop: i64 = at + size
            if stop > end:
                self._input.needed = stop - pos
                self._keep(data[pos:])
                return
            if first >> 4 == PUBLISH and self.running:
                if not self._publish(first, data, at, stop):
                    break
            else:
                self._command(first, data, at, stop)
            pos = stop
        if pos < end and self.state < CLOSING:
            self._input.keep(data, pos)

    def _check_size(self, kind: i64, size: i64) -> None:
        most: i64 = COMMAND_BYTES
        if not self.running:
            most = EARLY_BYTES
        elif kind == PUBLISH:
            most = self.shared.message_max_bytes + PUBLISH_HEAD_BYTES
        if size > most:
            raise MqttError(TOO_LARGE, f"a packet of {int(size)} bytes is larger than the maximum of {int(most)}")

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of a packet."""
        if not piece:
            return
        held = self._input
        cost: i64 = held.add(piece)
        session = self.session
        if session is not None and self.running:
            hold_content(session, cost)
        elif self.state < RUNNING:
            self.shared.early.hold(self, held.size)

    def details(self) -> dict[str, object]:
        session = self.session
        will = self._will
        told: dict[str, object] = {
            "client_id": self.client_id,
            "version": VERSION_NAMES[self.version].replace("-", "."),
            "keep_alive_s": self.heartbeats.interval_s,
            "session_expiry_s": 0 if session is None else session.expiry_s,
            "receive_maximum": self.limits.receive_max,
            "maximum_packet_bytes": self.limits.packet_max_bytes or None,
            "will": None if will is None else {"topic": will.topic, "qos": will.qos, "retain": will.retain},
            "subscriptions": 0 if session is None else session.subscriptions.count(),
            "dropped_qos_0": 0 if session is None else session.dropped_qos_0(),
        }
        return {"mqtt": told}

    def count_command(self) -> None:
        """Count the work of a packet that cannot reuse what earlier packets have prepared."""
        self.units_left -= METHOD_UNITS

    def _publish(self, first: i64, data: bytes, pos: i64, end: i64) -> bool:
        """Handle PUBLISH; False: it has to wait."""
        session = self.session
        vhost = self.vhost
        assert session is not None and vhost is not None
        if self.shared.stopped or vhost.is_crowded:
            block_publisher(self)
            return False
        qos: i64 = first >> 1 & 3
        if qos == 3 or (qos == 0 and first & 8):
            raise malformed("a QoS that does not exist")
        if end - pos < 2:
            raise malformed("PUBLISH without a topic")
        topic_end: i64 = pos + 2 + (i64(data[pos]) << 8 | i64(data[pos + 1]))
        at: i64 = topic_end
        if qos > 0:
            at += 2
        if at > end:
            raise malformed("PUBLISH that is shorter than its topic")
        topic = data[pos + 2 : topic_end]
        packet_id: int = 0
        if qos > 0:
            packet_id = int(i64(data[topic_end]) << 8 | i64(data[topic_end + 1]))
            if packet_id == 0:
                raise malformed("a packet id of 0")
        if self.version == V5 or first & 1:
            if self.version == V5 and at < end and data[at] == 0 and first & 1 == 0 and topic_end > pos + 2:
                at += 1
            else:
                self._publish_specially(first, topic, packet_id, data, at, end)
                return True
        if end - at > self.shared.message_max_bytes:
            raise MqttError(TOO_LARGE, "a message that is too large")
        session.publish_plain(topic, qos, packet_id, data[at:end])
        self.check_outbox()
        return True

    def _publish_specially(self, first: i64, topic: bytes, packet_id: int, data: bytes, pos: i64, end: i64) -> None:
        """Handle PUBLISH with properties, or to be retained."""
        self.units_left -= METHOD_UNITS  # as `count_command`
        session = self.session
        assert session is not None
        properties = Properties()
        if self.version == V5:
            reader = Reader(data, pos, end)
            head_bytes = len(topic) + int(reader.varint())
            if head_bytes > PUBLISH_HEAD_BYTES:  # a head is decoded without a pause, while all others wait
                raise MqttError(TOO_LARGE, f"a topic and properties of more than {PUBLISH_HEAD_BYTES} bytes")
            reader.pos = pos
            properties = reader.properties(PUBLISH)
            pos = reader.pos
        if properties.ids:
            raise MqttError(PROTOCOL_ERROR, "a subscription identifier from a client")
        alias = properties.values.pop(ALIAS, None)
        if alias is not None:
            assert isinstance(alias, int)
            aliases = self._aliases
            if aliases is None:
                aliases = TopicAliases()
                self._aliases = aliases
            topic = aliases.topic_of(alias, topic)
        elif topic == b"" and self.version == V5:
            raise MqttError(PROTOCOL_ERROR, "neither a topic nor a topic alias")
        if end - pos > self.shared.message_max_bytes:
            raise MqttError(TOO_LARGE, "a message that is too large")
        body = data[pos:end]
        qos = int(first >> 1 & 3)
        session.publish(decode_topic(topic), properties, qos, first & 1 != 0, packet_id, body)
        self.check_outbox()

    def _command(self, first: i64, data: bytes, pos: i64, end: i64) -> None:
        """Handle any other packet."""
        kind = int(first >> 4)
        flags = int(first & 15)
        if flags != _FLAGS.get(kind, 0) and kind != PUBLISH:
            raise malformed(f"flags that a packet of type {kind} does not have")
        session = self.session
        if self.state == AWAIT_HEADER:
            self.count_command()
            if kind != CONNECT:
                raise MqttError(PROTOCOL_ERROR, "a packet before CONNECT")
            connect = decode_connect(data, pos, end)
            if connect.version == V5 and data[pos - 1] == 0:  # the last octet of the length
                raise overlong()
            self._connect(connect)
            return
        if self.state == AWAIT_START_OK and kind == AUTH:
            self.count_command()
            authenticate(self, decode_answer(kind, data, pos, end, self.version))
            return
        if self.state == AWAIT_START_OK and kind == DISCONNECT:
            self.end()
            return
        if session is None or not self.running:
            raise MqttError(PROTOCOL_ERROR, "a packet before CONNACK")
        if kind == PUBACK:
            session.on_puback(decode_answer(kind, data, pos, end, self.version).packet_id)
            return
        if self._gate.is_full():
            self.pause(PAUSED_COMMIT)  # takes effect after this packet
        if PUBREC <= kind <= PUBCOMP:
            self._of_qos_2(session, kind, decode_answer(kind, data, pos, end, self.version))
            return
        self.count_command()
        searched: i64 = self.searched()
        try:
            if kind == SUBSCRIBE:
                subscribe = decode_subscribe(data, pos, end, self.version)
                self.limits.check(suback(subscribe.packet_id, [0] * len(subscribe.wanted), self.version))
                self.begin(SubscribeRun(session, subscribe, self.version))
            elif kind == UNSUBSCRIBE:
                unsubscribe = decode_unsubscribe(data, pos, end, self.version)
                self.limits.check(unsuback(unsubscribe.packet_id, [0] * len(unsubscribe.wanted), self.version))
                self.begin(UnsubscribeRun(session, unsubscribe, self.version))
            elif kind == PINGREQ:
                if pos != end:
                    raise malformed("PINGREQ that is not empty")
                self.outbox.write(packet(PINGRESP, 0, b""))
            elif kind == DISCONNECT:
                self._disconnect(session, decode_answer(kind, data, pos, end, self.version))
            elif kind == AUTH:
                authenticate(self, decode_answer(kind, data, pos, end, self.version))
            else:
                raise MqttError(PROTOCOL_ERROR, f"an unexpected packet of type {kind}")
        finally:
            self.units_left -= self.searched() - searched
        self.check_outbox()

    def _of_qos_2(self, session: MqttSession, kind: int, answer: Answer) -> None:
        if kind == PUBREC:
            session.on_pubrec(answer)
        elif kind == PUBREL:
            session.on_pubrel(answer.packet_id)
        else:
            session.on_pubcomp(answer.packet_id)
        self.check_outbox()

    def write_when_stored(self, packet: bytes, *, syncs: bool) -> None:
        """Send an answer when everything that was put into the log before it is on disk."""
        log = self.broker.log
        if syncs:
            log.force()
        else:
            log.batch.is_forced = True
        self.write_when_durable(packet, 0, int(log.batch.number))

    def answers_sent(self) -> i64:
        """Return how many of the answers that had to wait for the disk were sent."""
        return self._gate.opened

    def answers_held(self) -> i64:
        """Return how many such answers there were so far, including those that still wait."""
        return self._gate.held()

    def open_gate(self) -> bool:
        is_open = super().open_gate()
        session = self.session
        if session is not None and session.replays is not None:
            session.replays.answers_left()
        return is_open

    # --- login ------------------------------------------------------------------------------------------------------

    def _connect(self, connect: Connect) -> None:
        """Handle CONNECT."""
        self.version = connect.version
        self.protocol = _PROTOCOLS[self.version]
        self.limits = limits_of(connect)
        self.login.has_begun = True
        self._connecting = Connecting(self, connect)
        self._connecting.begin()

    def is_checking_login(self) -> bool:
        enhanced = self.enhanced
        return self.state == CHECKING_LOGIN or (
            enhanced is not None and enhanced.is_again and enhanced.exchange is None and self.running
        )

    def login_refused(self, request: LoginRequest) -> None:
        text = request.problem or "login refused: user or password is wrong, or may not be used from this address"
        self.fail(MqttError(BAD_LOGIN if self.state == CHECKING_LOGIN else NOT_AUTHORIZED, text))

    def login_accepted(self) -> None:
        enhanced = self.enhanced
        if enhanced is not None and enhanced.is_again:
            enhanced.is_again = False
            self.outbox.write(auth(SUCCESS, enhanced.method, b""))
            self.resume(PAUSED_LOGIN)
            return
        connecting = self._connecting
        assert connecting is not None
        try:
            connecting.name_client()
            owner = maybe_owner(self)
            if owner is None:
                connecting.finish()
            else:
                assert isinstance(owner, MqttPeer)
                succeed(self, owner)
        except AmqpError as error:
            self.fail(error)

    def begin_after(self) -> None:
        """Continue: the connection that had the client id has released everything."""
        connecting = self._connecting
        if connecting is None or self.state != CHECKING_LOGIN:
            return
        try:
            connecting.finish()
        except AmqpError as error:
            self.fail(error)

    def connected(self, will: Will | None) -> None:
        """Keep the will: CONNACK accepted the client."""
        self._will = will
        self._connecting = None

    # --- the end ----------------------------------------------------------------------------------------------------

    def answer_close(self) -> None:
        successor = release(self)
        if self.state == CLOSING:
            note_closed(self)
            self.end()
        if successor is not None:
            self.end()  # its successor takes its place, where connections are limited
            successor.begin_after()

    def _disconnect(self, session: MqttSession, answer: Answer) -> None:
        session.confirm()
        expiry = answer.properties.values.get(SESSION_EXPIRY)
        if isinstance(expiry, int):
            if session.expiry_s == 0 and expiry > 0:
                raise MqttError(PROTOCOL_ERROR, "a session that ends with its connection")
            if session.is_resumed and expiry < session.expiry_s:
                session.authorize(CONFIGURE, "queue", queue_name(self.client_id, 0))
            session.keep_for(min(expiry, SESSION_EXPIRY_MAX_S))
        if answer.reason == SUCCESS:
            self._will = None  # only now: a DISCONNECT that is refused does not drop the will
        self.enter(CLOSING)
        self.heartbeats.deadline_s = NO_LIMIT_S  # until everything has ended
        self.end_channels()
        if self.state == CLOSING:
            self.pause(PAUSED_WORK)

    def end_channels(self, *, answered: bool = False) -> None:
        session = self.session
        if session is not None and 1 in self.channels:
            will = self._will
            self._will = None
            if will is not None:
                leave_will(session, will)
            self.running = False  # nothing more is sent to the client
            if self._connecting is not None and session.kept.stored is None:
                session.sessions.end(session.kept)  # CONNACK refuses the client: queues with its id are not its own
            elif self._connecting is None and session.expiry_s == 0:
                session.end_for_good()
            else:
                session.sessions.leave(session.kept)
        # A connection that waits for the client id has to learn of the end, whatever its reason.
        super().end_channels(answered=True)

    def drained(self) -> None:
        super().drained()
        session = self.session
        if session is not None and self.running:
            session.go_on_sending()

    def tell_given_up(self, reason: str) -> None:
        if self.version == V5 and self.running:
            self._write_disconnect(KEEP_ALIVE, reason)

    def fail(self, error: AmqpError) -> None:
        """Send the peer its error, if its version has a packet for that, and end."""
        if self.state >= CLOSING:
            return
        note_error(self, "connection.error", 1, error)
        self._end_with(reason_of(error), error.explanation)

    def _end_with(self, reason: int, explanation: str) -> None:
        has_begun = self.login.has_begun
        if has_begun and self._connecting is None:
            if self.version == V5:
                self._write_disconnect(reason, explanation)
        elif self.version == V5:
            properties = Properties()
            if self.limits.takes_words:
                properties.values[REASON_STRING] = self.limits.words(explanation)
            refusal = connack(V5, False, reason, properties)
            if self.limits.takes(refusal):
                self.outbox.write(refusal)
        elif has_begun or reason == BAD_VERSION:
            self.outbox.write(connack(self.version, False, return_code(reason), Properties()))
        self.end_channels()
        self.end()

    def _write_disconnect(self, reason: int, explanation: str) -> None:
        """Send DISCONNECT; without a reason string if that would make it too large for the client."""
        self.outbox.write(disconnect(reason, self.limits.words(explanation)))

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        if self.state < CLOSING:
            self._end_with(reason_of(AmqpError(reply_code, explanation)), explanation)

    def close_session(self, session: Session, error: ChannelException, method_id: int) -> None:
        self.fail(error)

    def session_ended(self, session: Session, refusal: ChannelException | None, method_id: int) -> None:
        pass  # it ends with the connection only

    def write_heartbeat(self) -> None:
        pass  # a server sends none: PINGRESP answers

    def forget_input(self) -> None:
        self.shared.early.let_go(self)
        self._input.forget()
        self._aliases = None
        self._connecting = None
