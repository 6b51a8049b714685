"""Headers of SEND as parts of the stored message, and the headers of MESSAGE that it is sent with.

    SEND                                  property, and MESSAGE
    content-type, content-encoding        the same; content-type also to delivery
    persistent:true                       delivery_mode 2
    priority, correlation-id, reply-to, expiration, type, app-id, user-id, timestamp: the same
                                          reply-to of a queue's name to MESSAGE as /reply-queue/NAME
    amqp-message-id                       message_id; `message-id` is MESSAGE's own, and refused in SEND
    any other                             a header with that name, a text

Headers of AMQP publishers reach MESSAGE where they are texts, numbers or truth values; tables, arrays and bytes do not.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.errors import SYNTAX_ERROR, ConnectionException
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.amqp.numbers import number_text
from warren.amqp.properties import PERSISTENT, BasicProperties, decode_properties
from warren.queues.arguments import BY_KEY
from warren.stomp.destinations import reply_path
from warren.stomp.frames import StompFrame, header_line, maybe_number

# Headers of SEND that are for the broker.
_OWN: Final = frozenset(("destination", "content-length", "receipt", "transaction", "persistent"))
# Headers of SUBSCRIBE and of /queue destinations in SEND: not part of the message.
_OF_QUEUES: Final = frozenset(("durable", "auto-delete", "exclusive", "x-queue-name", "x-queue-type"))
_TEXTS: Final = frozenset(
    (
        "content-type",
        "content-encoding",
        "correlation-id",
        "reply-to",
        "expiration",
        "amqp-message-id",
        "type",
        "user-id",
        "app-id",
        "priority",
        "timestamp",
    )
)
# Headers on which the broker acts, if they are numbers.
_NUMBERS: Final = frozenset(("x-delay", "x-deliver-at"))
_TAKEN: Final = _OWN | _TEXTS | {"subscription", "message-id", "ack", "redelivered"}
TIMESTAMP_MAX: Final = (1 << 63) - 1


def properties_of(frame: StompFrame) -> BasicProperties:
    """Return the properties of a SEND.

    Raises:
        ConnectionException: 502, a header is too long, not a number, or not for the publisher to set.
    """
    properties = BasicProperties()
    others: Table = {}
    for name, value in frame.headers.items():
        if name in _OWN or name in _OF_QUEUES or is_queue_argument(name):
            continue
        if name in ("message-id", "subscription", "ack", "redelivered"):
            raise ConnectionException(SYNTAX_ERROR, f"the header '{name}' is not allowed on SEND")
        if name in _TEXTS:
            if len(value.encode()) > NAME_MAX_BYTES:
                raise ConnectionException(SYNTAX_ERROR, f"the header '{name}' is longer than {NAME_MAX_BYTES} bytes")
        elif len(name.encode()) > NAME_MAX_BYTES:
            raise ConnectionException(SYNTAX_ERROR, f"the name of a header is longer than {NAME_MAX_BYTES} bytes")
        if not _set(properties, name, value):
            number = maybe_number(value, TIMESTAMP_MAX) if name in _NUMBERS else None
            others[name] = value if number is None else number
    if frame.is_true("persistent"):
        properties.delivery_mode = PERSISTENT
    priority = frame.number("priority", 255)
    properties.priority = priority
    properties.timestamp = frame.number("timestamp", TIMESTAMP_MAX)
    if others:
        properties.headers = encode_table(others)
    return properties


def _set(properties: BasicProperties, name: str, value: str) -> bool:
    if name == "content-type":
        properties.content_type = value
    elif name == "content-encoding":
        properties.content_encoding = value
    elif name == "correlation-id":
        properties.correlation_id = value
    elif name == "reply-to":
        properties.reply_to = value
    elif name == "expiration":
        properties.expiration = value
    elif name == "amqp-message-id":
        properties.message_id = value
    elif name == "type":
        properties.type = value
    elif name == "user-id":
        properties.user_id = value
    elif name == "app-id":
        properties.app_id = value
    else:
        return name in ("priority", "timestamp")
    return True


def headers_of_message(payload: bytes, start: i64, end: i64, version: int) -> bytes:
    """Return the headers of MESSAGE for the content header payload ``payload[start:end]``."""
    properties = decode_properties(payload, start, end)
    lines: list[bytes] = []

    def add(name: str, value: str | None) -> None:
        if value is not None:
            lines.append(header_line(name, value, version))

    add("content-type", properties.content_type)
    add("content-encoding", properties.content_encoding)
    if properties.delivery_mode == PERSISTENT:
        add("persistent", "true")
    if properties.priority is not None:
        add("priority", str(properties.priority))
    add("correlation-id", properties.correlation_id)
    reply_to = properties.reply_to
    if reply_to is not None and not reply_to.startswith("/"):
        reply_to = reply_path(reply_to)
    add("reply-to", reply_to)
    add("expiration", properties.expiration)
    add("amqp-message-id", properties.message_id)
    if properties.timestamp is not None:
        add("timestamp", number_text(properties.timestamp))
    add("type", properties.type)
    add("user-id", properties.user_id)
    add("app-id", properties.app_id)
    if properties.headers is not None:
        for name, value in decode_table(properties.headers).items():
            if name in _TAKEN or name == "":
                continue
            if isinstance(value, bool):
                add(name, "true" if value else "false")
            elif isinstance(value, str | int | float):
                add(name, str(value))
    return b"".join(lines)


def is_queue_argument(name: str) -> bool:
    """Tell whether a header is about the queue that is declared with it."""
    return name.startswith("x-") and name[2:] in BY_KEY


def argument_value(name: str, value: str) -> object:
    """Return the value of a header of SUBSCRIBE or SEND as the argument `name` of a queue or consumer."""
    number = maybe_number(value, (1 << 63) - 1)
    if number is not None:
        return number
    if value in ("true", "false"):
        return value == "true"
    return value
