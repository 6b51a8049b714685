"""The properties of messages as MQTT clients see them: decoded once for all messages with the same properties."""

from __future__ import annotations

from mypy_extensions import i64

from warren.amqp.properties import decode_properties
from warren.channels.prepared_publish import PROPERTIES_AT
from warren.mqtt.conversion import (
    CLIENT_HEADER,
    QOS_HEADER,
    REPLAYED,
    RETAIN_HEADER,
    RETAINED,
    expiry_left_s,
    given_to,
    headers_in,
)
from warren.mqtt.packets import MESSAGE_EXPIRY, Properties, text, varint
from warren.mqtt.topics import is_topic, topic_of
from warren.msgstore.log.message import HEADER_AT, Envelope, Message


class Outline:
    """The outline of messages with an envelope and properties; their header frame is ``content`` up to `header_end`."""

    def __init__(self, envelope: Envelope, content: bytes, header_end: i64) -> None:
        found = decode_properties(content, HEADER_AT, header_end - 1)
        headers = headers_in(found)
        retain = headers.get(RETAIN_HEADER)
        client = headers.get(CLIENT_HEADER)
        self.envelope = envelope
        self.properties = content[HEADER_AT + PROPERTIES_AT : header_end - 1]
        self.topic = topic_of(envelope.routing_key)
        self.topic_bytes = text(self.topic)
        self.qos: i64 = 2 if headers.get(QOS_HEADER) == 2 else 1  # if the message is persistent; else it is 0
        self.is_topic: bool = is_topic(self.topic)  # False: the message is not delivered
        # Whether more than the subscription decides about a delivery.
        self.is_special: bool = self.topic.startswith("$") or not self.is_topic
        self.is_replayed: bool = retain == REPLAYED
        self.is_retained: bool = retain == RETAINED  # whether it was published with RETAIN
        self.client = client if isinstance(client, str) else ""  # the publisher, if it is known
        self.expiration_ms: i64 = -1
        if found.expiration is not None and found.expiration.isdigit() and len(found.expiration) <= 12:
            self.expiration_ms = int(found.expiration)
        self._given: Properties = given_to(found, headers)
        self._encoded = self._given.encode()

    def is_of(self, envelope: Envelope, content: bytes, header_end: i64) -> bool:
        """Tell whether a message with this envelope and header has this outline."""
        return envelope is self.envelope and content[HEADER_AT + PROPERTIES_AT : header_end - 1] == self.properties

    def given_with(self, ids: list[int]) -> bytes:
        """Return the properties for a client of 5.0, with identifiers of its subscriptions, and without an expiry."""
        if not ids:
            return self._encoded
        given = self._given
        given.ids = ids
        encoded = given.encode()
        given.ids = []
        return encoded

    def with_expiry(self, given: bytes, message: Message, now_ms: i64) -> bytes:
        """Return encoded properties with the remaining expiry of one of the messages, if they have one."""
        if self.expiration_ms < 0:
            return given
        left_s = expiry_left_s(self.expiration_ms, message.time_ms, now_ms)
        at = 1
        while given[at - 1] & 0x80:
            at += 1
        rest = bytes([MESSAGE_EXPIRY]) + left_s.to_bytes(4, "big") + given[at:]
        return varint(len(rest)) + rest
