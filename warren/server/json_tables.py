"""Convert field tables to JSON, and back.

Bytes that are not UTF-8 become text with a replacement character: JSON cannot carry them, and this text is only shown,
not sent. A decimal becomes a number, a timestamp its number of seconds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from warren.amqp.errors import AmqpError
from warren.amqp.field_table import EMPTY_TABLE, Timestamp, decode_table, encode_table


def table_to_json(encoded: bytes) -> dict[str, Any]:
    """Return an encoded field table as a JSON object."""
    if encoded == EMPTY_TABLE or not encoded:
        return {}
    return {text(key): value_to_json(value) for key, value in decode_table(encoded).items()}


def value_to_json(value: object) -> Any:
    """Return a decoded field value as JSON represents it."""
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


def table_from_json(value: object) -> bytes:
    """Return a JSON object as an encoded field table. An empty array, as PHP writes an empty object, is empty too.

    Raises:
        ValueError: it is not an object, or holds what a field table cannot.
    """
    if value is None or value == []:
        return EMPTY_TABLE
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    try:
        _check_numbers(value)
        encoded = encode_table(value)
        decode_table(encoded)  # refuses tables that are too deep or have too many fields
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (OverflowError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from None
    except AmqpError as error:
        raise ValueError(error.explanation) from None
    return encoded


def _check_numbers(value: object) -> None:
    if isinstance(value, dict):
        for each in value.values():
            _check_numbers(each)
    elif isinstance(value, list):
        for each in value:
            _check_numbers(each)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit into 64 bits")
