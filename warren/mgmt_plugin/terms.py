"""Field tables and message properties as JSON, and back.

Bytes that are not UTF-8 become text with a replacement character: JSON has nothing else, and what is shown here is not
what travels. A decimal becomes a number, a timestamp the number of its seconds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from warren.amqp.errors import AmqpError
from warren.amqp.field_table import EMPTY_TABLE, Timestamp, decode_table, encode_table
from warren.amqp.properties import BasicProperties
from warren.mgmt_plugin.routes import bad_request

TEXT_PROPERTIES: Final = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
NUMBER_PROPERTIES: Final = {"delivery_mode": 255, "priority": 255, "timestamp": (1 << 64) - 1}


def table_to_json(encoded: bytes) -> dict[str, Any]:
    """Return an encoded field table as a JSON object."""
    if encoded == EMPTY_TABLE or not encoded:
        return {}
    return {text(key): value_to_json(value) for key, value in decode_table(encoded).items()}


def value_to_json(value: object) -> Any:
    """Return a decoded field value as JSON has it."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {text(key): value_to_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [value_to_json(each) for each in value]
    if isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


def text(value: str) -> str:
    """Return a text that JSON can carry: bytes kept by surrogates become a replacement character."""
    return value.encode("utf-8", "replace").decode("utf-8", "replace")


def table_from_json(value: object, what: str = "arguments") -> bytes:
    """Return a JSON object as an encoded field table. An empty array, as PHP writes an empty object, is empty too.

    Raises:
        HttpError: 400, it is not an object, or holds what a field table cannot.
    """
    if value is None or value == []:
        return EMPTY_TABLE
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be an object")
    _check_numbers(value, what)
    try:
        encoded = encode_table(value)
        decode_table(encoded)  # not too deep, not too many
    except (ValueError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise bad_request(f"{what}: {error}") from None
    except AmqpError as error:
        raise bad_request(f"{what}: {error.explanation}") from None
    return encoded


def _check_numbers(value: object, what: str) -> None:
    if isinstance(value, dict):
        for each in value.values():
            _check_numbers(each, what)
    elif isinstance(value, list):
        for each in value:
            _check_numbers(each, what)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise bad_request(f"{what}: {value} does not fit into 64 bits")


def properties_to_json(properties: BasicProperties) -> dict[str, Any]:
    """Return the properties that are there."""
    shown: dict[str, Any] = {}
    for name in (*TEXT_PROPERTIES, *NUMBER_PROPERTIES):
        value = getattr(properties, name)
        if value is not None:
            shown[name] = text(value) if isinstance(value, str) else value
    if properties.headers is not None:
        shown["headers"] = table_to_json(properties.headers)
    return shown


def properties_from_json(given: object) -> BasicProperties:
    """Return the properties that a JSON object names; other keys are left out, as RabbitMQ does.

    Raises:
        HttpError: 400, one has the wrong type.
    """
    if given == []:
        given = {}
    if not isinstance(given, dict):
        raise bad_request("properties must be an object")
    properties = BasicProperties()
    for name in TEXT_PROPERTIES:
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise bad_request(["not_a_string", name])
        if len(value.encode("utf-8", "replace")) > 255:
            raise bad_request(f"{name} is longer than 255 bytes")
        setattr(properties, name, value)
    for name, most in NUMBER_PROPERTIES.items():
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise bad_request(["not_int", name])
        setattr(properties, name, value)
    if given.get("headers"):
        properties.headers = table_from_json(given["headers"], "headers")
    return properties
