"""Definitions as they are given by whoever administers: JSON objects in, refusals in RabbitMQ's words out.

RabbitMQ shows a refused value as Erlang writes it, and scripts look for its texts: `erlang_term` writes it so.
"""

from __future__ import annotations

import json

from warren.amqp.term_text import term_text


def parse_definition(text: str) -> dict[str, object]:
    """Return the JSON object that `text` is.

    Raises:
        ValueError: it is none.
    """
    parsed = parse_json(text)
    if not isinstance(parsed, dict):
        raise ValueError("a definition must be a JSON object")
    return parsed


def parse_json(text: str) -> object:
    """Return what the JSON `text` says.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        parsed: object = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("a definition is nested too deeply") from None
    return parsed


def is_integer(value: object) -> bool:
    """Tell whether a JSON value is a whole number; true and false are none."""
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


def _no_number(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")
