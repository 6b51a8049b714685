"""Wills: a message that a client gives with its CONNECT, for the case that its connection ends without DISCONNECT.

    a connection ends with                     then the will is
      no Will Delay, or a session that does    published through the session, before anything of the session is removed
      not outlive the connection
      a Will Delay                             kept with the session, and published after the delay, or when the session
                                               ends if that is earlier; dropped if the client comes back before

1. A will is published with the permissions that its user has at that time. If it is refused, the log says so.
2. A will that waits is a record of the log (`vhosts.kept_sessions`):

    user (text), QoS << 1 | RETAIN, topic (text), properties, payload

3. A will that could never be published is refused with CONNECT.

Source: MQTT 5, sections 3.1.2.5 and 3.1.3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.amqp.errors import NOT_ALLOWED, AmqpError, ConnectionException
from warren.channels.prepared_publish import PreparedPublish
from warren.mqtt.conversion import properties_of
from warren.mqtt.packets import WILL, WILL_DELAY, Reader, Will, text
from warren.mqtt.retaining import retain
from warren.mqtt.topics import EXCHANGE, routing_key
from warren.msgstore.log.message import Envelope, build_message
from warren.vhosts.kept_sessions import KeptSession
from warren.vhosts.own_publishes import publish_copy

if TYPE_CHECKING:
    from warren.mqtt.session import MqttSession
    from warren.mqtt.sessions import MqttSessions


def check_will(will: Will) -> None:
    """Make sure that `will` can be published at all. The permissions of its user are checked when it is published.

    Raises:
        MqttError: something in it is too long.
    """
    properties = properties_of(will.properties, will.qos, will.retain, "")
    PreparedPublish(EXCHANGE, routing_key(will.topic), properties.encode())


def leave_will(session: MqttSession, will: Will) -> None:
    """Publish the will of a client that is gone; if it has a delay and the session lasts, keep it for later."""
    broker = session.peer.broker
    user = session.peer.login.user_name
    delay_s = min(will.properties.number(WILL_DELAY, 0), session.expiry_s)
    if delay_s > 0:
        due_ms = broker.now_ms() + delay_s * 1000
        if session.sessions.delay_will(session.kept, encode_will(user, will), due_ms):
            return
    confirms, session.confirms = session.confirms, None  # these count only the client's own publishes
    try:
        prepared = session.prepare(will.topic, will.properties, will.qos, will.retain)
        prepared.find_route(session)  # may it be published?
        if will.retain:
            session.retain_message(will.topic, will.properties, will.qos, will.payload)
        prepared.publish(session, will.payload)
    except AmqpError as error:
        about: dict[str, object] = {"peer": session.peer.origin.peer, "user": user, "topic": will.topic}
        broker.note("warning", "mqtt.will_refused", {**about, "reason": error.explanation})
    finally:
        session.confirms = confirms


def encode_will(user: str, will: Will) -> bytes:
    """Return a will that has to wait, as in (2)."""
    return (
        text(user) + bytes([will.qos << 1 | will.retain]) + text(will.topic) + will.properties.encode() + will.payload
    )


def decode_will(data: bytes) -> tuple[str, Will]:
    """Return a will that has waited, with its user."""
    reader = Reader(data, 0, len(data))
    user = reader.text()
    flags = int(reader.byte())
    topic = reader.text()
    properties = reader.properties(WILL)
    return user, Will(topic, data[reader.pos :], flags >> 1, flags & 1 != 0, properties)


def publish_waiting_will(sessions: MqttSessions, session: KeptSession, data: bytes) -> None:
    """Publish a will that has waited, without a session: its connection has ended."""
    broker, vhost = sessions.broker, sessions.vhost
    user, will = decode_will(data)
    try:
        principal = broker.access.maybe_principal(user, vhost.name)
        if principal is None:
            raise ConnectionException(NOT_ALLOWED, f"access to vhost '{vhost.name}' refused for user '{user}'")
        key = routing_key(will.topic)
        exchange = principal.publishable(vhost, EXCHANGE, key)
        if will.retain:
            retained = vhost.retained()
            most = int(broker.shared.message_max_bytes)
            retain(retained, user, broker.now_ms(), will.topic, will.properties, will.qos, will.payload, most)
        properties = properties_of(will.properties, will.qos, will.retain, "").encode()
        message = build_message(Envelope(EXCHANGE, key), properties, will.payload, 0, will.qos > 0)
        publish_copy(vhost, message, exchange, key)
    except AmqpError as error:
        about: dict[str, object] = {"client_id": session.name, "user": user, "topic": will.topic}
        broker.note("warning", "mqtt.will_refused", {**about, "reason": error.explanation})
