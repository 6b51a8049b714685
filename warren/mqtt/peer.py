"""An MQTT connection: bytes to packets, the login, the client id, keep alive, and every way it can end.

    state            input that leads on                               state after
    AWAIT_HEADER     CONNECT                                           CHECKING_LOGIN (the shell verifies the password)
                     CONNECT whose method has a challenge              AWAIT_START_OK
    AWAIT_START_OK   AUTH                                              CHECKING_LOGIN, or the same after a challenge
    CHECKING_LOGIN   the login is accepted, the vhost entered, and     RUNNING, told by CONNACK
                     the previous owner of the client id has ended
    RUNNING          DISCONNECT                                        CLOSING until all of it has ended, then ENDED
    any              an error, or the socket is gone                   ENDED

1. Before the login a packet has at most `EARLY_BYTES`, and all incomplete packets together are bounded
   (``channels.early_input``). Afterwards a PUBLISH has at most the size of a message, with a head of at most
   `PUBLISH_HEAD_BYTES`, any other packet `COMMAND_BYTES`.
2. A client id belongs to one connection at a time in a vhost. A later connection gets it when the earlier one has
   released everything.
3. An error is told by CONNACK or, in 5.0, by DISCONNECT with a reason; in 3.1 and 3.1.1 the connection just ends, and
   the log says why.
4. The will is published when a connection ends for any other reason than DISCONNECT with success, before anything of
   the session is removed; with a delay it is handed to `mqtt.sessions`, if the session lasts.
5. A packet is received in pieces, each copied once, which `channels.inbound` counts.
6. A client that has logged in by a method may do so again while it is connected: by the same method, as the same user.
   While that is being verified the client is not read.
7. A client that does not take the answers to its packets is not read while more than `outbox_hard_bytes` of them wait;
   PUBACK has no answer, and is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.errors import AmqpError, ChannelException
from warren.amqp.field_table import Table
from warren.channels.access import CONFIGURE, READ
from warren.channels.back_pressure import block_publisher, hold_content
from warren.channels.connection_states import AWAIT_HEADER, AWAIT_START_OK, CHECKING_LOGIN, CLOSING, ENDED, RUNNING
from warren.channels.ending import note_closed, note_error
from warren.channels.login import LoginRequest, enter_vhost, note_opened
from warren.channels.origin import Origin
from warren.channels.partial_input import PartialInput
from warren.channels.peer import NO_LIMIT_S, Peer
from warren.channels.session import Session
from warren.channels.shared import METHOD_UNITS, PAUSED_COMMIT, PAUSED_LOGIN, PAUSED_TURN, PAUSED_WORK
from warren.mqtt.login_methods import METHODS, EnhancedLogin
from warren.mqtt.packets import (
    ALIAS,
    ALIAS_MAX,
    ASSIGNED_ID,
    AUTH,
    AUTH_DATA,
    AUTH_METHOD,
    CONNECT,
    DISCONNECT,
    PACKET_MAX,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    REASON_STRING,
    RECEIVE_MAX,
    REQUEST_PROBLEM,
    SESSION_EXPIRY,
    SUBSCRIBE,
    UNSUBSCRIBE,
    V3_1_1,
    V5,
    VERSION_NAMES,
    WILL_DELAY,
    Answer,
    Connect,
    Properties,
    Reader,
    Will,
    auth,
    check_topic,
    connack,
    decode_answer,
    decode_connect,
    decode_subscribe,
    decode_text,
    decode_unsubscribe,
    disconnect,
    malformed,
    overlong,
    packet,
    suback,
    unsuback,
)
from warren.mqtt.reason_codes import (
    BAD_ALIAS,
    BAD_CLIENT_ID,
    BAD_LOGIN,
    BAD_METHOD,
    BAD_VERSION,
    CONTINUE_LOGIN,
    KEEP_ALIVE,
    LOGIN_AGAIN,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA,
    SUCCESS,
    TAKEN_OVER,
    TOO_LARGE,
    MqttError,
    reason_of,
    return_code,
)
from warren.mqtt.session import UNANSWERED_MAX, MqttSession, check_will
from warren.mqtt.sessions import encode_will, queue_name, sessions_of
from warren.mqtt.subscribing import ResumeRun, SubscribeRun, UnsubscribeRun

if TYPE_CHECKING:
    from warren.channels.broker import Broker

# Limit for a reason string: the rest is cut off; with a smaller Maximum Packet Size it is left out.
REASON_CHARACTERS: Final = 256
REASON_BYTES: Final = 4 * REASON_CHARACTERS + 16
EARLY_BYTES: Final = 65536
COMMAND_BYTES: Final = 262144
PUBLISH_HEAD_BYTES: Final = 131072  # a topic and properties
ALIASES: Final = 16
CLIENT_ID_MAX_BYTES: Final = 233  # with the parts around it the name of a queue
# The messages of QoS 1 and 2 that may be out to a client that does not set a limit.
RECEIVE_MAX_OLD: Final = 100
# The longest time to keep a session; RabbitMQ has the same limit.
SESSION_EXPIRY_MAX_S: Final = 86400
# The flags that each packet has to have; PUBLISH means something by them.
# For connections without any: never changed.
_NO_ALIASES: Final[dict[int, bytes]] = {}
_PROTOCOLS: Final = {version: f"MQTT {name}" for version, name in VERSION_NAMES.items()}
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
        self.receive_max: int = RECEIVE_MAX_OLD
        self.packet_max_bytes: int = 0  # the packet size that the client takes; 0: any
        self.tells_problems: bool = False  # refusals include the reason
        self._session: MqttSession | None = None
        self._connect: Connect | None = None
        self._enhanced: EnhancedLogin | None = None
        self._will: Will | None = None
        self._aliases = _NO_ALIASES
        self._is_told: bool = False  # CONNACK has said yes
        self._client_id = ""
        self._successor: MqttPeer | None = None  # the peer that has taken the client id over, and waits
        self._input = PartialInput()

    @property
    def client_properties(self) -> Table:
        """The properties that it states. They are made when they are read: there may be very many of them."""
        return {"product": "MQTT client", "client_id": self._client_id} if self._client_id else {}

    @property
    def session(self) -> MqttSession | None:
        """Its session, None before the login: subscriptions, messages under way, and how long it is kept."""
        return self._session

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
        pos: i64 = 0
        held = self._input
        if held.needed > 0:
            self._keep(data)
            if held.size < held.needed or self.paused:
                return
            data = held.whole()
            session = self._session
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
                break  # its length is still to come
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
            raise MqttError(TOO_LARGE, f"a packet of {int(size)} bytes is larger than the {int(most)} that are allowed")

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of a packet."""
        if not piece:
            return
        held = self._input
        cost: i64 = held.add(piece)
        session = self._session
        if session is not None and self.running:
            hold_content(session, cost)
        elif self.state < RUNNING:
            self.shared.early.hold(self, held.size)

    def details(self) -> dict[str, object]:
        session = self._session
        will = self._will
        told: dict[str, object] = {
            "client_id": self._client_id,
            "version": VERSION_NAMES[self.version].replace("-", "."),
            "keep_alive_s": self.heartbeats.interval_s,
            "session_expiry_s": 0 if session is None else session.expiry_s,
            "receive_maximum": self.receive_max,
            "maximum_packet_bytes": self.packet_max_bytes or None,
            "will": None if will is None else {"topic": will.topic, "qos": will.qos, "retain": will.retain},
            "subscriptions": 0 if session is None else len(session.subscribed()),
            "dropped_qos_0": 0 if session is None else session.dropped_qos_0(),
        }
        return {"mqtt": told}

    def count_command(self) -> None:
        """Count work that a packet takes which is not like many before it."""
        self.units_left -= METHOD_UNITS

    def topic_text(self, topic: bytes) -> str:
        """Return a topic to publish to.

        Raises:
            MqttError: the topic is not valid.
        """
        found = decode_text(topic)
        check_topic(found)
        return found

    def _publish(self, first: i64, data: bytes, pos: i64, end: i64) -> bool:
        """PUBLISH; False: it has to wait."""
        session = self._session
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
        session.publish_plain(topic, qos, packet_id, data[at:end], first & 8 != 0)
        self.check_outbox()
        return True

    def _publish_specially(self, first: i64, topic: bytes, packet_id: int, data: bytes, pos: i64, end: i64) -> None:
        """PUBLISH with properties, or to be retained."""
        self.count_command()
        session = self._session
        assert session is not None
        properties = Properties()
        if self.version == V5:
            head_bytes = len(topic) + int(Reader(data, pos, end).varint())
            if head_bytes > PUBLISH_HEAD_BYTES:  # taken apart in one go, while all others wait
                raise MqttError(TOO_LARGE, f"a topic and properties of more than {PUBLISH_HEAD_BYTES} bytes")
            reader = Reader(data, pos, end)
            properties = reader.properties(PUBLISH)
            pos = reader.pos
        if properties.ids:
            raise MqttError(PROTOCOL_ERROR, "a subscription identifier from a client")
        alias = properties.values.pop(ALIAS, None)
        if alias is not None:
            assert isinstance(alias, int)
            if alias > ALIASES:
                raise MqttError(BAD_ALIAS, f"topic aliases go up to {ALIASES}")
            if topic:
                if self._aliases is _NO_ALIASES:
                    self._aliases = {}
                self._aliases[alias] = topic
            else:
                topic = self._aliases.get(alias, b"")
                if topic == b"":
                    raise MqttError(PROTOCOL_ERROR, f"the topic alias {alias} stands for nothing")
        elif topic == b"" and self.version == V5:
            raise MqttError(PROTOCOL_ERROR, "neither a topic nor a topic alias")
        if end - pos > self.shared.message_max_bytes:
            raise MqttError(TOO_LARGE, "a message that is too large")
        body = data[pos:end]
        qos = int(first >> 1 & 3)
        session.publish(self.topic_text(topic), properties, qos, first & 1 != 0, packet_id, body, first & 8 != 0)
        self.check_outbox()

    def _command(self, first: i64, data: bytes, pos: i64, end: i64) -> None:
        """Any other packet."""
        kind = int(first >> 4)
        flags = int(first & 15)
        if flags != _FLAGS.get(kind, 0) and kind != PUBLISH:
            raise malformed(f"flags that a packet of type {kind} does not have")
        session = self._session
        if self.state == AWAIT_HEADER:
            self.count_command()
            if kind != CONNECT:
                raise MqttError(PROTOCOL_ERROR, "a packet before CONNECT")
            connect = decode_connect(data, pos, end)
            if connect.version == V5 and data[pos - 1] == 0:  # the last octet of the length
                raise overlong()
            self._connected(connect)
            return
        if self.state == AWAIT_START_OK and kind == AUTH:
            self.count_command()
            self._authenticate(decode_answer(kind, data, pos, end, self.version))
            return
        if self.state == AWAIT_START_OK and kind == DISCONNECT:
            self.end()
            return
        if session is None or not self.running:
            raise MqttError(PROTOCOL_ERROR, "a packet before CONNACK")
        if kind == PUBACK:
            session.acknowledge_packet(decode_answer(kind, data, pos, end, self.version).packet_id)
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
                self._check_answer(suback(subscribe.packet_id, [0] * len(subscribe.wanted), self.version))
                self.begin(SubscribeRun(session, subscribe, self.version))
            elif kind == UNSUBSCRIBE:
                unsubscribe = decode_unsubscribe(data, pos, end, self.version)
                self._check_answer(unsuback(unsubscribe.packet_id, [0] * len(unsubscribe.wanted), self.version))
                self.begin(UnsubscribeRun(session, unsubscribe, self.version))
            elif kind == PINGREQ:
                if pos != end:
                    raise malformed("PINGREQ with something in it")
                self.outbox.write(packet(PINGRESP, 0, b""))
            elif kind == DISCONNECT:
                self._disconnect(session, decode_answer(kind, data, pos, end, self.version))
            elif kind == AUTH:
                self._authenticate(decode_answer(kind, data, pos, end, self.version))
            else:
                raise MqttError(PROTOCOL_ERROR, f"a packet of type {kind} at this time")
        finally:
            self.units_left -= self.searched() - searched
        self.check_outbox()

    def _of_qos_2(self, session: MqttSession, kind: int, answer: Answer) -> None:
        if kind == PUBREC:
            session.received_packet(answer)
        elif kind == PUBREL:
            session.release_packet(answer.packet_id)
        else:
            session.complete_packet(answer.packet_id)
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
        """Return how many answers that had to wait for the disk have left."""
        return self._gate.opened

    def answers_held(self) -> i64:
        """Return how many such answers there are, with those that wait."""
        return self._gate.held()

    def open_gate(self) -> bool:
        is_open = super().open_gate()
        session = self._session
        if session is not None and session.replays is not None:
            session.replays.answers_left()
        return is_open

    # --- login ------------------------------------------------------------------------------------------------------

    def _connected(self, connect: Connect) -> None:
        """CONNECT."""
        self.version = connect.version
        self.protocol = _PROTOCOLS[self.version]
        self._connect = connect
        self.login.has_begun = True
        self.packet_max_bytes = connect.properties.number(PACKET_MAX, 0)
        method = connect.properties.maybe_text(AUTH_METHOD)
        data = connect.properties.maybe_binary(AUTH_DATA)
        if method is not None:
            if method not in METHODS:
                known = ", ".join(METHODS)
                raise MqttError(BAD_METHOD, f"there is no such method of enhanced authentication: there are {known}")
            self.login.mechanism = method
            self._enhanced = EnhancedLogin(method, self.origin.certificate_user)
            self._take_step(self._enhanced, data or b"")
            return
        if data is not None:
            raise MqttError(PROTOCOL_ERROR, "authentication data without a method")
        user = connect.user
        certified = self.origin.certificate_user
        if user is None and certified is not None:
            self.login.mechanism = "EXTERNAL"
            self._verify(certified, b"", is_proven=True)
            return
        self.login.mechanism = "MQTT"
        password = connect.password
        problem = "" if user is not None and password is not None else "CONNECT has no user or no password"
        self._verify(user or "", password or b"", is_proven=False, problem=problem)

    def _verify(self, user: str, password: bytes, *, is_proven: bool, problem: str = "") -> None:
        """Have the shell verify the user. `user`: USER, or VHOST:USER; a proven identity is a name and nothing else."""
        name, vhost = user, "/"
        if ":" in name and not is_proven:
            vhost, _, name = name.rpartition(":")
        enhanced = self._enhanced
        if enhanced is not None and enhanced.is_again:
            if name != self.login.user_name:
                raise MqttError(NOT_AUTHORIZED, "whoever logs in again is the same user")
        else:
            if not is_proven:
                self.login.vhost_name = vhost
            self.enter(CHECKING_LOGIN)
        self.pause(PAUSED_LOGIN)
        self.broker.logins.append(LoginRequest(self, self.login.mechanism, name, password, is_proven, problem))

    def _authenticate(self, answer: Answer) -> None:
        """AUTH."""
        enhanced = self._enhanced
        if enhanced is None:
            raise MqttError(PROTOCOL_ERROR, "AUTH from a client that has not logged in by a method")
        if answer.properties.maybe_text(AUTH_METHOD) != enhanced.method:
            raise MqttError(PROTOCOL_ERROR, "AUTH by another method than CONNECT")
        if answer.reason == LOGIN_AGAIN and self.running and enhanced.exchange is None:
            enhanced.begin_again(self.origin.certificate_user)
        elif answer.reason != CONTINUE_LOGIN or enhanced.exchange is None:
            raise MqttError(PROTOCOL_ERROR, f"AUTH with the reason {answer.reason:#04x} at this time")
        self._take_step(enhanced, answer.properties.maybe_binary(AUTH_DATA) or b"")

    def _take_step(self, enhanced: EnhancedLogin, data: bytes) -> None:
        exchange = enhanced.exchange
        assert exchange is not None
        said = exchange.step(data)
        if isinstance(said, bytes):
            if self.state == AWAIT_HEADER:
                self.enter(AWAIT_START_OK)
            question = auth(CONTINUE_LOGIN, enhanced.method, said)
            self._check_answer(question)
            self.outbox.write(question)
            self.check_outbox()
            return
        enhanced.exchange = None
        self._verify(said.user, said.password, is_proven=said.is_proven)

    def is_checking_login(self) -> bool:
        enhanced = self._enhanced
        return self.state == CHECKING_LOGIN or (
            enhanced is not None and enhanced.is_again and enhanced.exchange is None and self.running
        )

    def login_refused(self, request: LoginRequest) -> None:
        text = request.problem or "login refused: user or password is wrong, or may not be used from this address"
        self._failed(MqttError(BAD_LOGIN if self.state == CHECKING_LOGIN else NOT_AUTHORIZED, text))

    def login_accepted(self) -> None:
        enhanced = self._enhanced
        if enhanced is not None and enhanced.is_again:
            enhanced.is_again = False
            self.outbox.write(auth(SUCCESS, enhanced.method, b""))
            self.resume(PAUSED_LOGIN)
            return
        connect = self._connect
        assert connect is not None
        try:
            self._check(connect)
            self._take_over()
        except AmqpError as error:
            self._failed(error)

    def _check(self, connect: Connect) -> None:
        """Refuse impossible requests of CONNECT, and take over the others.

        Raises:
            MqttError: it cannot be had.
        """
        properties = connect.properties
        client_id = connect.client_id
        if client_id == "":
            if self.version != V5 and (not connect.clean or self.version != V3_1_1):
                raise MqttError(BAD_CLIENT_ID, "a session that lasts needs a client id")
            client_id = "auto-" + self.broker.unique_name()
        if len(client_id.encode()) > CLIENT_ID_MAX_BYTES or "\r" in client_id or "\n" in client_id:
            raise MqttError(
                BAD_CLIENT_ID, f"the client id has more than {CLIENT_ID_MAX_BYTES} bytes, or a line break in it"
            )
        self._client_id = client_id
        if self.version == V5:
            self.receive_max = properties.number(RECEIVE_MAX, 65535)
            self.tells_problems = properties.number(REQUEST_PROBLEM, 1) == 1 and self._takes_words()

    def _take_over(self) -> None:
        """Take the client id: at once, or when its previous owner has released everything."""
        vhost = self.login.vhost_name or "/"
        names = self.broker.named_clients
        other = names.get((vhost, self._client_id))
        if other is None:
            self._begin(vhost)
            return
        assert isinstance(other, MqttPeer)
        if other.login.user_name != self.login.user_name:
            raise MqttError(BAD_CLIENT_ID, "the client id is that of another user who is connected")
        if other.login.vhost_name != vhost or other is self:
            raise MqttError(BAD_CLIENT_ID, "the client id is in use")
        other.give_way(self)

    def give_way(self, successor: MqttPeer) -> None:
        """`successor` has the client id from now on."""
        earlier = self._successor
        self._successor = successor
        if earlier is not None:
            earlier.fail_later(MqttError(TAKEN_OVER, "the session was taken over by another connection"))
        self.fail_later(MqttError(TAKEN_OVER, "the session was taken over by another connection"))

    def answer_close(self) -> None:
        names = self.broker.named_clients
        key = (self.login.vhost_name, self._client_id)
        successor: MqttPeer | None = None
        if names.get(key) is self:
            del names[key]
            successor = self._successor
            self._successor = None
        if self.state == CLOSING:
            note_closed(self)
            self.end()
        if successor is not None:
            self.end()  # its successor takes its place, where connections are limited
            successor.go_on_after(self)

    def go_on_after(self, earlier: MqttPeer) -> None:
        """Continue after `earlier`, which had the client id, has released everything."""
        if self.state != CHECKING_LOGIN:
            return
        try:
            self._begin(earlier.login.vhost_name)
        except AmqpError as error:
            self._failed(error)

    def _begin(self, vhost: str) -> None:
        """Enter the vhost, and begin or resume the session.

        Raises:
            AmqpError: that is not permitted, or a limit is reached.
        """
        connect = self._connect
        assert connect is not None
        self._connect = None
        self.login.name = self._client_id
        enter_vhost(self, vhost)
        self.broker.named_clients[(vhost, self._client_id)] = self
        usage = self.login.usage
        usable = self.vhost
        principal = self.principal
        assert usage is not None and usable is not None and principal is not None
        usage.channels += 1
        if self.version == V5:
            expiry_s = min(connect.properties.number(SESSION_EXPIRY, 0), SESSION_EXPIRY_MAX_S)
        else:
            expiry_s = 0 if connect.clean else SESSION_EXPIRY_MAX_S
        if connect.will is not None:
            check_will(connect.will)
        sessions = sessions_of(self.broker, usable)
        if expiry_s > 0 and not sessions.has_room(self._client_id, self.login.user_name):
            raise MqttError(QUOTA, "this virtual host, or the user in it, has as many sessions as it may have")
        granted = self._granted(connect, expiry_s)
        self._check_answer(connack(self.version, False, 0, granted))
        earlier = sessions.sessions.get(self._client_id)
        if earlier is not None:
            queue = queue_name(self._client_id, 0)
            if not connect.clean:
                principal.authorize(READ, "queue", queue)
            if connect.clean or expiry_s < earlier.expiry_s:
                principal.authorize(CONFIGURE, "queue", queue)
            if connect.clean:
                sessions.leave_shares(earlier)
                sessions.end(earlier)
        session = MqttSession(self, sessions, sessions.take_up(self._client_id, self.login.user_name), expiry_s)
        self._session = session
        self.channels[1] = session
        self.heartbeats.interval_s = connect.keep_alive_s
        present = False
        if connect.clean:
            session.begin_anew()
            session.keep_for(expiry_s)
        else:
            present = session.resume()
            sessions.take_will(session.kept)
        self._will = connect.will
        self.outbox.write(connack(self.version, present, 0, granted))
        self._is_told = True
        session.release_again()
        if present:
            self.begin(ResumeRun(session))
        note_opened(self)
        self.broker.events.channel_created(session)
        self.resume(PAUSED_LOGIN)

    def _granted(self, connect: Connect, expiry_s: int) -> Properties:
        """Return the properties of CONNACK: differences from the client's requests, or from the defaults of 5.0."""
        granted = Properties()
        values = granted.values
        if connect.properties.number(SESSION_EXPIRY, 0) != expiry_s:
            values[SESSION_EXPIRY] = expiry_s
        values[RECEIVE_MAX] = UNANSWERED_MAX
        values[PACKET_MAX] = int(self.shared.message_max_bytes)
        if connect.client_id == "":
            values[ASSIGNED_ID] = self._client_id
        values[ALIAS_MAX] = ALIASES
        if self._enhanced is not None:
            values[AUTH_METHOD] = self._enhanced.method
        return granted

    # --- the end ----------------------------------------------------------------------------------------------------

    def _disconnect(self, session: MqttSession, answer: Answer) -> None:
        session.confirm()
        expiry = answer.properties.values.get(SESSION_EXPIRY)
        if isinstance(expiry, int):
            if session.expiry_s == 0 and expiry > 0:
                raise MqttError(PROTOCOL_ERROR, "a session that was not to outlive its connection")
            if session.is_resumed and expiry < session.expiry_s:
                session.authorize(CONFIGURE, "queue", queue_name(self._client_id, 0))
            session.keep_for(min(expiry, SESSION_EXPIRY_MAX_S))
        if answer.reason == SUCCESS:
            self._will = None  # a DISCONNECT that is refused leaves it
        self.enter(CLOSING)
        self.heartbeats.deadline_s = NO_LIMIT_S  # until everything has ended
        self.end_channels()
        if self.state == CLOSING:
            self.pause(PAUSED_WORK)

    def end_channels(self, *, answered: bool = False) -> None:
        session = self._session
        if session is not None and 1 in self.channels:
            will = self._will
            self._will = None
            if will is not None and not self._delays(session, will):
                session.publish_will(will)
            self.running = False  # the client is not told about the rest
            if session.expiry_s == 0:
                session.end_for_good()
            else:
                session.sessions.leave(session.kept)
        # A connection that waits for the client id has to hear of the end, however it came.
        super().end_channels(answered=True)

    def _delays(self, session: MqttSession, will: Will) -> bool:
        """Let a will wait if it has a delay, as long as its session lasts; False when it goes out now."""
        delay_s = min(will.properties.number(WILL_DELAY, 0), session.expiry_s)
        if delay_s == 0:
            return False
        due_ms = self.broker.now_ms() + delay_s * 1000
        return session.sessions.delay_will(session.kept, encode_will(self.login.user_name, will), due_ms)

    def drained(self) -> None:
        super().drained()
        session = self._session
        if session is not None and self.running:
            session.go_on_sending()

    def tell_given_up(self, reason: str) -> None:
        if self.version == V5 and self.running:
            self._write_disconnect(KEEP_ALIVE, reason)

    def _failed(self, error: AmqpError) -> None:
        """Tell the peer its error, if its version has a packet for that, and end."""
        if self.state >= CLOSING:
            return
        note_error(self, "connection.error", 1, error)
        self._end_with(reason_of(error), error.explanation)

    def fail_later(self, error: AmqpError) -> None:
        """The same, for something that is found only now."""
        self._failed(error)

    def note_refusal(self, error: AmqpError) -> None:
        """Write to the log that something was refused that does not end the connection."""
        note_error(self, "connection.error", 1, error)

    def _end_with(self, reason: int, explanation: str) -> None:
        if self._is_told:
            if self.version == V5:
                self._write_disconnect(reason, explanation)
        elif self.version == V5:
            properties = Properties()
            if self._takes_words():
                properties.values[REASON_STRING] = explanation[:REASON_CHARACTERS]
            refusal = connack(V5, False, reason, properties)
            if self._takes(refusal):
                self.outbox.write(refusal)
        elif self.login.has_begun or reason == BAD_VERSION:
            self.outbox.write(connack(self.version, False, return_code(reason), Properties()))
        self.end_channels()
        self.end()

    def _write_disconnect(self, reason: int, explanation: str) -> None:
        """DISCONNECT, without words where the client does not take so much."""
        self.outbox.write(disconnect(reason, explanation[:REASON_CHARACTERS] if self._takes_words() else ""))

    def _takes(self, answer: bytes) -> bool:
        return self.packet_max_bytes == 0 or len(answer) <= self.packet_max_bytes

    def _check_answer(self, answer: bytes) -> None:
        """Make sure that the client takes an answer. Answers of a fixed size are smaller than the CONNACK that it took.

        Raises:
            MqttError: it is larger than the client's Maximum Packet Size, and can neither be sent nor be left out.
        """
        if not self._takes(answer):
            most = self.packet_max_bytes
            raise MqttError(TOO_LARGE, f"an answer of {len(answer)} bytes is larger than the {most} the client takes")

    def _takes_words(self) -> bool:
        """Tell whether a reason string fits into the packet size of the client."""
        return self.packet_max_bytes == 0 or self.packet_max_bytes > REASON_BYTES

    def send_close(self, reply_code: int, explanation: str, method_id: int) -> None:
        if self.state < CLOSING:
            self._end_with(reason_of(AmqpError(reply_code, explanation)), explanation)

    def close_session(self, session: Session, error: ChannelException, method_id: int) -> None:
        self.fail_later(error)

    def session_ended(self, session: Session, refusal: ChannelException | None, method_id: int) -> None:
        pass  # it ends with the connection only

    def forget_session(self) -> None:
        """Drop the session, which has ended and refers to this peer: a cycle would stay in memory."""
        self._session = None

    def write_heartbeat(self) -> None:
        pass  # a server sends none: PINGRESP answers

    def forget_input(self) -> None:
        self.shared.early.let_go(self)
        self._input.forget()
        self._aliases = _NO_ALIASES
