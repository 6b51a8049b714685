"""PUBLISH as properties of the stored message, and back.

    PUBLISH                       property of 0-9-1
    QoS 1                         delivery_mode 2; not set for QoS 0
    QoS 2                         delivery_mode 2, and the header x-mqtt-qos: 2
    message expiry, in s          expiration, in ms, at most ten years; the rest of it goes out, rounded up
    content type                  content_type
    correlation data              correlation_id if it is a text of up to 255 bytes, else the header x-correlation-id
    response topic                the header x-reply-to-topic, as a routing key
    payload format                the header x-payload-format
    user property                 a header with that name, a text. If a name is repeated: a list of texts. If others are
                                  between these: in addition the header x-mqtt-order, with all names in their order
    RETAIN                        the header x-mqtt-retain: `RETAINED`, or `REPLAYED` when a retained message is sent
    the client id, if the client has a subscription without its own messages     the header x-mqtt-client

If the broker acts on a header with the name of a user property, the property is kept under `_ESCAPE` and that name. In
5.0, headers of other publishers that are texts, numbers or truth values go out as user properties. Invalid headers do
no harm: values other than those above, or longer than a packet allows, are left out.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.amqp.properties import PERSISTENT, BasicProperties
from warren.channels.publish_properties import EXPIRATION_MAX_MS
from warren.mqtt.packets import (
    CONTENT_TYPE,
    CORRELATION,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    Properties,
    check_topic,
    fits,
)
from warren.mqtt.reason_codes import IMPLEMENTATION, MqttError
from warren.mqtt.topics import is_topic, routing_key, topic_of

RETAINED: Final = 1
REPLAYED: Final = 2
RETAIN_HEADER: Final = "x-mqtt-retain"
CLIENT_HEADER: Final = "x-mqtt-client"
QOS_HEADER: Final = "x-mqtt-qos"
_CORRELATION: Final = "x-correlation-id"
_REPLY: Final = "x-reply-to-topic"
_FORMAT: Final = "x-payload-format"
_ORDER: Final = "x-mqtt-order"
_OWN: Final = frozenset((RETAIN_HEADER, CLIENT_HEADER, QOS_HEADER, _CORRELATION, _REPLY, _FORMAT, _ORDER))
_ESCAPE: Final = "mqtt."
_ACTED_ON: Final = frozenset(("CC", "BCC", "x-death", "x-delay", "x-deliver-at")) | _OWN


def properties_of(given: Properties, qos: int, retain: bool, client: str) -> BasicProperties:
    """Return the properties of a PUBLISH or a will. `client`: its id, if the message has to keep it.

    Raises:
        MqttError: a value is too long to be kept.
    """
    found = BasicProperties()
    headers: Table = {}
    if qos > 0:
        found.delivery_mode = PERSISTENT
    for identifier, value in given.values.items():
        if identifier == CONTENT_TYPE and isinstance(value, str):
            _check_length("content type", value)
            found.content_type = value
        elif identifier == MESSAGE_EXPIRY and isinstance(value, int):
            found.expiration = str(min(value * 1000, EXPIRATION_MAX_MS))
        elif identifier == CORRELATION and isinstance(value, bytes):
            text = _maybe_text(value)
            if text is None:
                headers[_CORRELATION] = value
            else:
                found.correlation_id = text
        elif identifier == RESPONSE_TOPIC and isinstance(value, str):
            check_topic(value)
            headers[_REPLY] = routing_key(value)
        elif identifier == PAYLOAD_FORMAT and isinstance(value, int):
            headers[_FORMAT] = value
    names: list[object] = []
    lists: dict[str, list[object]] = {}
    for name, text in given.users:
        if name in _ACTED_ON or name.startswith(_ESCAPE):
            name = _ESCAPE + name
        _check_length("name of a user property", name)
        names.append(name)
        values = lists.setdefault(name, [])
        values.append(text)
        headers[name] = text if len(values) == 1 else values
    if len(lists) < len(names) and names != [name for name in lists for _ in lists[name]]:
        headers[_ORDER] = names
    if qos == 2:
        headers[QOS_HEADER] = 2
    if retain:
        headers[RETAIN_HEADER] = RETAINED
    if client:
        headers[CLIENT_HEADER] = client
    if headers:
        found.headers = encode_table(headers)
    return found


def _check_length(what: str, value: str) -> None:
    if len(value.encode()) > NAME_MAX_BYTES:
        raise MqttError(IMPLEMENTATION, f"the {what} is longer than {NAME_MAX_BYTES} bytes")


def _maybe_text(value: bytes) -> str | None:
    if len(value) > NAME_MAX_BYTES:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def given_to(found: BasicProperties, headers: Table) -> Properties:
    """Return the properties of the outgoing PUBLISH of a message, except its expiry."""
    given = Properties()
    values = given.values
    payload_format = headers.get(_FORMAT)
    if isinstance(payload_format, int) and payload_format in (0, 1):
        values[PAYLOAD_FORMAT] = int(payload_format)
    if found.content_type is not None:
        values[CONTENT_TYPE] = found.content_type
    reply = headers.get(_REPLY)
    if isinstance(reply, str) and fits(reply) and is_topic(topic_of(reply)):
        values[RESPONSE_TOPIC] = topic_of(reply)
    correlation = headers.get(_CORRELATION)
    if isinstance(correlation, bytes) and fits(correlation):
        values[CORRELATION] = correlation
    elif found.correlation_id is not None:
        values[CORRELATION] = found.correlation_id.encode("utf-8", "surrogateescape")
    order = headers.get(_ORDER)
    if isinstance(order, list):
        _give_in_order(headers, order, given)
    else:
        for name, value in headers.items():
            for each in value if isinstance(value, list) else [value]:
                _give(name, each, given)
    return given


def _give_in_order(headers: Table, order: list[object], given: Properties) -> None:
    """Give a user property for each name in `order`, and then those not in it: headers may have changed since."""
    left: dict[str, list[object]] = {}
    for name, value in headers.items():
        left[name] = value[::-1] if isinstance(value, list) else [value]
    for each in order:
        if isinstance(each, str) and left.get(each):
            _give(each, left[each].pop(), given)
    for name, values in left.items():
        while values:
            _give(name, values.pop(), given)


def _give(name: str, value: object, given: Properties) -> None:
    if name in _OWN:
        return
    shown = name.removeprefix(_ESCAPE)
    if isinstance(value, bool):
        given.users.append((shown, "true" if value else "false"))
    elif isinstance(value, str | int | float):
        shown_value = str(value)
        if fits(shown_value):
            given.users.append((shown, shown_value))


def headers_in(found: BasicProperties) -> Table:
    """Return the headers of a message."""
    return {} if found.headers is None else decode_table(found.headers)


def expiry_left_s(expiration_ms: i64, published_ms: i64, now_ms: i64) -> int:
    """Return how long a message may still live, in s."""
    left: i64 = expiration_ms
    if published_ms > 0 and now_ms > published_ms:
        left -= now_ms - published_ms
    return 0 if left <= 0 else int(-(-left // 1000))
