"""Definitions from an administrator: JSON objects in, refusals in RabbitMQ's words out.

RabbitMQ shows a refused value as Erlang writes it, and scripts look for its texts: `erlang_term` writes it so.
"""

from __future__ import annotations

import json
from typing import Final

from warren.amqp.term_text import term_text

_DOUBLE_MAX: Final = 1.7976931348623157e308


def parse_definition(text: str) -> dict[str, object]:
    """Return the JSON object in `text`.

    Raises:
        ValueError: it is not a JSON object.
    """
    parsed = parse_json(text)
    if not isinstance(parsed, dict):
        raise ValueError("a definition must be a JSON object")
    return parsed


def parse_json(text: str, *, stored: bool = False) -> object:
    """Return the value of the JSON `text`.

    A fraction beyond the range of a double is refused: written out again it would not be JSON. One that an earlier
    version has `stored` becomes the largest double instead.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        parsed: object = json.loads(text, parse_constant=_no_number, parse_float=_nearest_double if stored else _double)
    except RecursionError:
        raise ValueError("a definition is nested too deeply") from None
    return parsed


def is_integer(value: object) -> bool:
    """Tell whether a JSON value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def erlang_term(value: object) -> str:
    """Write a JSON value the way RabbitMQ shows it: ``<<"text">>``, ``[1,2]``, ``#{<<"key">> => true}``, by key."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ",".join([erlang_term(each) for each in value]) + "]"
    if isinstance(value, dict):
        return "#{" + ",".join([f"{erlang_term(key)} => {erlang_term(value[key])}" for key in sorted(value)]) + "}"
    return term_text(value)


def erlang_pairs(settings: dict[str, object]) -> str:
    """Write an object as RabbitMQ shows settings that it does not know: ``[{<<"key">>,1}]``, by key."""
    pairs = [f"{{{erlang_term(key)},{erlang_term(settings[key])}}}" for key in sorted(settings)]
    return "[" + ",".join(pairs) + "]"


def _double(text: str) -> float:
    value = float(text)
    if abs(value) > _DOUBLE_MAX:
        raise ValueError(f"{text} does not fit into a double")
    return value


def _nearest_double(text: str) -> float:
    return max(-_DOUBLE_MAX, min(_DOUBLE_MAX, float(text)))


def _no_number(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
