"""Field tables and message properties as JSON, and back, for requests; `json_tables` says what becomes of what."""

from __future__ import annotations

from typing import Any, Final

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.properties import BasicProperties
from warren.mgmt_plugin.routes import bad_request
from warren.server import json_tables
from warren.server.json_tables import table_to_json as table_to_json
from warren.server.json_tables import text as text
from warren.server.json_tables import value_to_json as value_to_json

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


def table_from_json(value: object, what: str = "arguments") -> bytes:
    """Return a JSON object as an encoded field table; see `json_tables.table_from_json`.

    Raises:
        HttpError: 400, it is not an object, or has values that a field table cannot hold.
    """
    try:
        return json_tables.table_from_json(value)
    except ValueError as error:
        raise bad_request(f"{what}: {error}" if isinstance(value, dict) else f"{what} {error}") from None


def exchange_to_json(vhost: str, declared: ExchangeDeclaration) -> dict[str, Any]:
    """Return the declaration of an exchange."""
    return {
        "name": text(declared.name),
        "vhost": vhost,
        "type": declared.type,
        "durable": declared.durable,
        "auto_delete": declared.auto_delete,
        "internal": declared.internal,
        "arguments": table_to_json(declared.arguments),
    }


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
