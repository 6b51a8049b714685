"""A stored message as JSON: complete, and readable where possible.

    body              text, when all of it is UTF-8; else body_base64
    properties        those present, by name; headers as an object
    header values     as in JSON; other values are an object with one key: bytes {"base64": …}, timestamp
                      {"timestamp": seconds}, decimal {"decimal": digits}, not a number {"float": "nan"}
    time_ms           only when it is stored: when the message was published, or until when its lane holds it
    content_header    base64, only in exports: the payload of the AMQP header frame as it came, with every type tag

Property strings that are not UTF-8 keep their bytes as lone surrogates (Python's ``surrogateescape``).
"""

from __future__ import annotations

import math
from base64 import b64encode
from decimal import Decimal

from warren.amqp.errors import ConnectionException
from warren.amqp.field_table import Timestamp, decode_table
from warren.amqp.properties import decode_properties
from warren.amqp.specification import PROPERTIES
from warren.msgstore.log.message import Message
from warren.msgstore.tools.lines import Line


def message_fields(message: Message, *, with_content_header: bool = False) -> Line:
    """Return the content of `message`, from its exchange to its body."""
    header = message.header_payload()
    fields: Line = {
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "properties": property_fields(header),
    }
    if message.time_ms:
        fields["time_ms"] = int(message.time_ms)
    if with_content_header:
        fields["content_header"] = base64_text(header)
    body = message.body()
    fields["body_bytes"] = len(body)
    try:
        fields["body"] = body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64_text(body)
    return fields


def property_fields(header: bytes) -> Line:
    """Return the properties that the payload of a content header has."""
    try:
        properties = decode_properties(header, 0, len(header))
        headers = None if properties.headers is None else decode_table(properties.headers)
    except ConnectionException as error:
        # Nothing is stored that the broker had not checked; and still a tool does not stop here.
        return {"malformed": str(error), "base64": base64_text(header)}
    fields: Line = {name: getattr(properties, name) for name in PROPERTIES}
    fields["headers"] = None if headers is None else json_value(headers)
    return {name: value for name, value in fields.items() if value is not None}


def json_value(value: object) -> object:
    """Return the JSON value that stands for the value of a field."""
    match value:
        case Timestamp():
            return {"timestamp": int(value)}
        case Decimal():
            return {"decimal": str(value)}
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case bytes():
            return {"base64": base64_text(value)}
        case list():
            return [json_value(item) for item in value]
        case dict():
            return {key: json_value(item) for key, item in value.items()}
    return value


def base64_text(data: bytes) -> str:
    """Return `data` in base64."""
    return b64encode(data).decode("ascii")
