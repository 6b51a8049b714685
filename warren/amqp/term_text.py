"""Field values as RabbitMQ prints them in reply texts, as Erlang terms: ``<<"text">>``, ``true``, ``5``.

People search for these texts, and client test suites compare some of them.
"""

from __future__ import annotations

from decimal import Decimal

from warren.amqp.field_table import Timestamp


def term_text(value: object) -> str:
    """Return the term that stands for a decoded field value.

    The integer type inside arrays and tables is the one that `encode_table` would choose; it is not kept by
    decoding.
    """
    if isinstance(value, (str, bytes)):
        return _binary_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        _, _, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        return f"{{{-exponent},{int(value.scaleb(-exponent))}}}"
    if isinstance(value, list):
        return "[" + ",".join(f"{{{_type_name(entry)},{term_text(entry)}}}" for entry in value) + "]"
    if isinstance(value, dict):
        pairs = (f"{{{_binary_text(key)},{_type_name(entry)},{term_text(entry)}}}" for key, entry in value.items())
        return "[" + ",".join(pairs) + "]"
    if value is None:
        return "undefined"
    return str(value)


def bare_text(value: object) -> str:
    """Return `term_text`, but strings without their brackets and quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return term_text(value)


def _binary_text(value: str | bytes) -> str:
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    if not text:
        return "<<>>"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'<<"{escaped}">>'


def _type_name(value: object) -> str:
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bytes):
        return "binary"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "signedint" if -0x80000000 <= value <= 0x7FFFFFFF else "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, list):
        return "array"
    return "table" if isinstance(value, dict) else "void"
