"""RabbitMQ's error texts for parameters: the sentences its clients and users know.

A validator takes a name and a JSON value and returns the errors in it, nothing when it is valid. The caller prefixes
``Validation failed`` and puts one sentence on a line. Values are printed as Erlang terms.

1. Sentences come in RabbitMQ's order: unknown keys first, then the known ones from last to first.
2. A URI in a sentence is redacted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from warren.amqp.field_table import encode_table
from warren.amqp.numbers import is_long, is_number
from warren.amqp_client.redaction import redact, redact_uri
from warren.links.amqp_uri import SHORT_MAX_BYTES, UriError, parse_uri

# All of them are looked at without a pause.
URIS_MAX: Final = 100
URIS_MAX_CHARACTERS: Final = 64 << 10
Json = object
Validator = Callable[[str, Json], list[str]]
Field = tuple[str, Validator, bool]


def term(value: Json) -> str:
    """Return a JSON value as Erlang prints it, its URIs redacted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        if not value:
            return "<<>>"
        shown = redact(value)
        return f"<<{json.dumps(shown, ensure_ascii=False)}{'' if shown.isascii() else '/utf8'}>>"
    if isinstance(value, dict):
        inner = ",".join(f"{term(key)} => {term(entry)}" for key, entry in value.items())
        return f"#{{{inner}}}"
    if isinstance(value, list):
        return f"[{','.join(map(term, value))}]"
    return repr(value)


def number(name: str, value: Json) -> list[str]:
    """Accept a number of any kind in `warren.amqp.numbers`; its reader converts it to that kind."""
    if is_number(value):
        return []
    return [f"{name} should be a number, actually was {term(value)}"]


def binary(name: str, value: Json) -> list[str]:
    return [] if isinstance(value, str) else [f"{name} should be binary, actually was {term(value)}"]


def short_text(name: str, value: Json) -> list[str]:
    """Accept a string that is not too long for a name on the wire."""
    if isinstance(value, str) and len(value.encode()) > SHORT_MAX_BYTES:
        return [f"{name} is longer than {SHORT_MAX_BYTES} bytes"]
    return binary(name, value)


def boolean(name: str, value: Json) -> list[str]:
    return [] if isinstance(value, bool) else [f"{name} should be boolean, actually was {term(value)}"]


def choice(*options: str) -> Validator:
    def validate(name: str, value: Json) -> list[str]:
        if not isinstance(value, str):
            return binary(name, value)
        if value in options:
            return []
        return [f"{name} should be one of {term(list(options))}, actually was {term(value)}"]

    return validate


def delete_after(name: str, value: Json) -> list[str]:
    if value in ("never", "queue-length") or (isinstance(value, int) and is_long(value) and value >= 0):
        return []
    wanted = 'a number greater than or equal to 0, "never" or "queue-length"'
    return [f"{name} should be {wanted}, actually was {term(value)}"]


def table(name: str, value: Json) -> list[str]:
    """Accept an object; the empty list too, which some JSON writers make of an empty object."""
    if isinstance(value, dict) or value == []:
        try:
            encode_table(dict(value or {}))
        except (ValueError, OverflowError):
            return [f"{name} holds a number or key that does not fit into a field table"]
        return []
    if isinstance(value, list):
        return [f"Unrecognised terms {term(value)} in {name}"]
    return [f"{name} not a list {term(value)}"]


def uris(may_use: Callable[[str], str | None] = lambda uri: None) -> Validator:
    """Accept a URI or a list of them; `may_use` returns why a valid one may not be used."""

    def validate(name: str, value: Json) -> list[str]:
        if isinstance(value, list):
            if len(value) > URIS_MAX:
                return [f"{name} has more than {URIS_MAX} URIs"]
            if sum(len(one) for one in value if isinstance(one, str)) > URIS_MAX_CHARACTERS:
                return [f"{name} has more than {URIS_MAX_CHARACTERS} characters"]
            return [problem for one in value for problem in validate_one(name, one)]
        return validate_one(name, value)

    def validate_one(name: str, value: Json) -> list[str]:
        if not isinstance(value, str):
            return [f"{name} should be list, actually was {term(value)}"]
        try:
            parse_uri(value)
        except UriError as error:
            shown = redact_uri(value)
            return [f'"{shown}" not a valid URI: {{{error},"{shown}"}}']
        refusal = may_use(value)
        return [] if refusal is None else [refusal]

    return validate


def fields(name: str, value: Json, known: Sequence[Field]) -> list[str]:
    """Validate an object: `known` are key, validator and whether it is required."""
    if value == []:
        value = {}
    if not isinstance(value, Mapping):
        return [f"{name} not a list {term(value)}"]
    problems: list[str] = []
    for key, validator, mandatory in known:
        if key in value:
            problems += reversed(validator(key, value[key]))
        elif mandatory:
            problems.append(f'Key "{key}" not found in {name}')
    problems.reverse()
    names = {key for key, _, _ in known}
    unknown = sorted(key for key in value if key not in names)
    if unknown:
        listed = ",".join(f"{{{term(key)},{term(value[key])}}}" for key in unknown)
        problems.insert(0, f"Unrecognised terms [{listed}] in {name}")
    return problems


def required(name: str, validator: Validator) -> Field:
    return name, validator, True


def optional(name: str, validator: Validator) -> Field:
    return name, validator, False
