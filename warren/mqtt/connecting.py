"""From CONNECT to CONNACK: the client's login, its requests, and the broker's answer to them.

    CONNECT     user and password, a certificate, or a method with its first data
    AUTH        the answers of a client that logs in by a method (`mqtt.login_methods`), then and later
    CONNACK     the session begins, or continues an earlier one of the client id

1. The shell verifies each login. Meanwhile the client is not read. The user may have the form VHOST:USER. A proven
   identity is a plain user name, and its vhost is ``/``.
2. Nothing of an earlier session is changed before it is certain that CONNACK is not too large for the client.
3. A session is kept for at most `SESSION_EXPIRY_MAX_S`. In 3.1 and 3.1.1, a session that is not clean is kept so long.
4. CONNACK states where the session differs from the client's requests, or from the defaults of 5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.channels.access import CONFIGURE, READ
from warren.channels.connection_states import AWAIT_HEADER, AWAIT_START_OK, CHECKING_LOGIN
from warren.channels.login import LoginRequest, enter_vhost, note_opened
from warren.channels.shared import PAUSED_LOGIN
from warren.mqtt.client_ids import own
from warren.mqtt.login_methods import METHODS, ClaimedIdentity, EnhancedLogin
from warren.mqtt.packets import (
    ALIAS_MAX,
    ASSIGNED_ID,
    AUTH_DATA,
    AUTH_METHOD,
    PACKET_MAX,
    RECEIVE_MAX,
    SESSION_EXPIRY,
    V3_1_1,
    V5,
    Answer,
    Connect,
    Properties,
    auth,
    connack,
)
from warren.mqtt.reason_codes import (
    BAD_CLIENT_ID,
    BAD_METHOD,
    CONTINUE_LOGIN,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA,
    MqttError,
)
from warren.mqtt.session import UNANSWERED_MAX, MqttSession
from warren.mqtt.sessions import queue_name, sessions_of
from warren.mqtt.subscribing import ResumeRun
from warren.mqtt.topic_aliases import ALIASES
from warren.mqtt.wills import check_will

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer

CLIENT_ID_MAX_BYTES: Final = 233  # longer ids would not fit into the names of queues
# The longest time to keep a session; RabbitMQ has the same limit.
SESSION_EXPIRY_MAX_S: Final = 86400


class Connecting:
    """A client that has sent CONNECT, until it is told CONNACK or has ended."""

    def __init__(self, peer: MqttPeer, connect: Connect) -> None:
        self._peer = peer
        self._connect = connect

    def begin(self) -> None:
        """Request verification of the login, or begin the exchange of a method.

        Raises:
            MqttError: the method is unknown, or its data makes no sense.
        """
        peer = self._peer
        connect = self._connect
        method = connect.properties.maybe_text(AUTH_METHOD)
        data = connect.properties.maybe_binary(AUTH_DATA)
        certified = peer.origin.certificate_user
        if method is not None:
            if method not in METHODS:
                known = ", ".join(METHODS)
                raise MqttError(BAD_METHOD, f"unknown method of enhanced authentication (supported: {known})")
            peer.login.mechanism = method
            peer.enhanced = EnhancedLogin(method, certified)
            _go_on(peer, peer.enhanced, peer.enhanced.step(data or b""))
            return
        if data is not None:
            raise MqttError(PROTOCOL_ERROR, "authentication data without a method")
        user = connect.user
        if user is None and certified is not None:
            peer.login.mechanism = "EXTERNAL"
            _verify(peer, certified, b"", is_proven=True)
            return
        peer.login.mechanism = "MQTT"
        password = connect.password
        problem = "" if user is not None and password is not None else "CONNECT has no user or no password"
        _verify(peer, user or "", password or b"", is_proven=False, problem=problem)

    def name_client(self) -> None:
        """Give the client, whose login is accepted, the id that it asks for, or a new one.

        Raises:
            MqttError: it cannot have the id.
        """
        peer = self._peer
        client_id = self._connect.client_id
        if client_id == "":
            if peer.version != V5 and (not self._connect.clean or peer.version != V3_1_1):
                raise MqttError(BAD_CLIENT_ID, "a persistent session needs a client id")
            client_id = "auto-" + peer.broker.unique_name()
        if len(client_id.encode()) > CLIENT_ID_MAX_BYTES or "\r" in client_id or "\n" in client_id:
            raise MqttError(
                BAD_CLIENT_ID, f"the client id has more than {CLIENT_ID_MAX_BYTES} bytes, or a line break in it"
            )
        peer.client_id = client_id

    def finish(self) -> None:
        """Enter the vhost, and begin or resume the session. The client id must be free.

        Raises:
            AmqpError: that is not permitted, or a limit is reached.
        """
        peer = self._peer
        connect = self._connect
        broker = peer.broker
        client_id = peer.client_id
        peer.login.name = client_id
        enter_vhost(peer, peer.login.vhost_name or "/")
        own(peer)
        usage = peer.login.usage
        vhost = peer.vhost
        principal = peer.principal
        assert usage is not None and vhost is not None and principal is not None
        if peer.version == V5:
            expiry_s = min(connect.properties.number(SESSION_EXPIRY, 0), SESSION_EXPIRY_MAX_S)
        else:
            expiry_s = 0 if connect.clean else SESSION_EXPIRY_MAX_S
        if connect.will is not None:
            check_will(connect.will)
        sessions = sessions_of(broker, vhost)
        if expiry_s > 0 and not sessions.has_room(client_id, peer.login.user_name):
            raise MqttError(QUOTA, "the session limit of this virtual host, or of the user in it, is reached")
        granted = self._granted(expiry_s)
        peer.limits.check(connack(peer.version, False, 0, granted))
        earlier = sessions.sessions.get(client_id)
        if earlier is not None:
            queue = queue_name(client_id, 0)
            if not connect.clean:
                principal.authorize(READ, "queue", queue)
            if connect.clean or expiry_s < earlier.expiry_s:
                principal.authorize(CONFIGURE, "queue", queue)
            if connect.clean:
                sessions.leave_shares(earlier)
                sessions.end(earlier)
        session = MqttSession(peer, sessions, sessions.take_up(client_id, peer.login.user_name), expiry_s)
        peer.session = session
        peer.channels[1] = session
        usage.channels += 1
        peer.heartbeats.interval_s = connect.keep_alive_s
        present = False
        if connect.clean:
            session.clean_start()
            session.keep_for(expiry_s)
        else:
            present = session.resume()
            sessions.take_will(session.kept)
        peer.outbox.write(connack(peer.version, present, 0, granted))
        peer.connected(connect.will)
        session.resend_pubrel()
        if present:
            peer.begin(ResumeRun(session))
        note_opened(peer)
        broker.events.channel_created(session)
        peer.resume(PAUSED_LOGIN)

    def _granted(self, expiry_s: int) -> Properties:
        """Return the properties of CONNACK; see (4)."""
        peer = self._peer
        connect = self._connect
        granted = Properties()
        values = granted.values
        if connect.properties.number(SESSION_EXPIRY, 0) != expiry_s:
            values[SESSION_EXPIRY] = expiry_s
        values[RECEIVE_MAX] = UNANSWERED_MAX
        values[PACKET_MAX] = int(peer.shared.message_max_bytes)
        if connect.client_id == "":
            values[ASSIGNED_ID] = peer.client_id
        values[ALIAS_MAX] = ALIASES
        if peer.enhanced is not None:
            values[AUTH_METHOD] = peer.enhanced.method
        return granted


def authenticate(peer: MqttPeer, answer: Answer) -> None:
    """Handle AUTH.

    Raises:
        MqttError: it may not come now.
    """
    enhanced = peer.enhanced
    if enhanced is None:
        raise MqttError(PROTOCOL_ERROR, "AUTH from a client that has not logged in with a method")
    _go_on(peer, enhanced, enhanced.take(answer, peer.origin.certificate_user, is_open=peer.running))


def _go_on(peer: MqttPeer, enhanced: EnhancedLogin, said: ClaimedIdentity | bytes) -> None:
    """Continue after a step of a method: send its challenge, or request verification of the identity."""
    if isinstance(said, ClaimedIdentity):
        _verify(peer, said.user, said.password, is_proven=said.is_proven)
        return
    if peer.state == AWAIT_HEADER:
        peer.enter(AWAIT_START_OK)
    question = auth(CONTINUE_LOGIN, enhanced.method, said)
    peer.limits.check(question)
    peer.outbox.write(question)
    peer.check_outbox()


def _verify(peer: MqttPeer, user: str, password: bytes, *, is_proven: bool, problem: str = "") -> None:
    """Ask the shell to verify the user; see (1)."""
    name, vhost = user, "/"
    if ":" in name and not is_proven:
        vhost, _, name = name.rpartition(":")
    login = peer.login
    if peer.enhanced is not None and peer.enhanced.is_again:
        if name != login.user_name:
            raise MqttError(NOT_AUTHORIZED, "a client that logs in again must be the same user")
    else:
        if not is_proven:
            login.vhost_name = vhost
        peer.enter(CHECKING_LOGIN)
    peer.pause(PAUSED_LOGIN)
    peer.broker.logins.append(LoginRequest(peer, login.mechanism, name, password, is_proven, problem))
