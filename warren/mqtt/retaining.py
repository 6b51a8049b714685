"""Retained messages, from PUBLISH or a will to `vhosts.retained`, and from there to a subscription."""

from __future__ import annotations

from warren.amqp.field_table import encode_table
from warren.amqp.properties import decode_properties
from warren.channels.prepared_publish import PROPERTIES_AT
from warren.channels.publish_properties import EXPIRATION_MAX_MS
from warren.mqtt.conversion import REPLAYED, RETAIN_HEADER, headers_in, properties_of
from warren.mqtt.packets import MESSAGE_EXPIRY, Properties
from warren.mqtt.reason_codes import QUOTA, MqttError
from warren.mqtt.topics import EXCHANGE, routing_key
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.vhosts.retained import Retained, RetainedMessages


def retain(
    retained: RetainedMessages,
    user: str,
    now_ms: int,
    topic: str,
    properties: Properties,
    qos: int,
    body: bytes,
    most_bytes: int,
) -> None:
    """Retain a message of `user` for its topic. An empty message removes the current one.

    Raises:
        MqttError: it is larger than `most_bytes`, or too much is retained already.
    """
    if not body:
        retained.remove(topic)
        return
    if len(body) > most_bytes:
        raise MqttError(QUOTA, "a message that is too large to be retained")
    expiry_s = properties.number(MESSAGE_EXPIRY, -1)
    expires_ms = 0 if expiry_s < 0 else now_ms + min(expiry_s * 1000, EXPIRATION_MAX_MS)
    found = properties_of(properties, qos, False, "").encode()
    if not retained.put(topic, Retained(user, now_ms, expires_ms, found, body)):
        raise MqttError(QUOTA, "the retain limit of this virtual host, or of this user, is reached")


def maybe_replayed(retained: RetainedMessages, now_ms: int, topic: str) -> Message | None:
    """Return the retained message of `topic` for a subscription; None: not found."""
    found = retained.maybe(topic, now_ms)
    if found is None:
        return None
    properties = decode_properties(bytes(PROPERTIES_AT) + found.properties, 0, PROPERTIES_AT + len(found.properties))
    if found.expires_ms:
        properties.expiration = str(found.expires_ms - now_ms)
    headers = headers_in(properties)
    headers[RETAIN_HEADER] = REPLAYED
    properties.headers = encode_table(headers)
    envelope = Envelope(EXCHANGE, routing_key(topic))
    message = build_message(envelope, properties.encode(), found.body, 0, properties.delivery_mode == 2)
    if found.expires_ms:
        message.expiration_ms = found.expires_ms - now_ms
    return message
