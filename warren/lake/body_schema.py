"""A JSON Schema as columns: their names and kinds, and whether a body may have other fields.

    type                       column      with format
    boolean                    boolean
    integer                    long        int32: int; int64
    number                     double      float: float; double
    string                     string      date-time: timestamp; date: date
    object, array              string      their JSON

1. A schema describes an object with ``properties``. Each property has one type, or one and "null"; columns are always
   nullable. ``required`` names fields that a body must have.
2. ``additionalProperties: false`` refuses bodies with other fields. Without it they become columns of their own.
3. Other words that restrict values (``minimum``, ``pattern``, ...) are ignored: this is a schema of a table, not a
   validator. Words that would change the columns themselves are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warren.lake.kinds import BOOLEAN, DATE, DOUBLE, FLOAT, INT, LONG, STRING, TIMESTAMP
from warren.spark_bridge.bridge_errors import UsageError

_KINDS: Final[dict[str, dict[str | None, str]]] = {
    "boolean": {None: BOOLEAN},
    "integer": {None: LONG, "int32": INT, "int64": LONG},
    "number": {None: DOUBLE, "float": FLOAT, "double": DOUBLE},
    "string": {None: STRING, "date-time": TIMESTAMP, "date": DATE},
    "object": {None: STRING},
    "array": {None: STRING},
}
_REFUSED: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties")


@dataclass(frozen=True)
class BodySchema:
    """The declaration for bodies: `kinds` by field, the required fields, and whether there may be others."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    is_open: bool = True


def read_schema(source: Path | str) -> BodySchema:
    """Return the declaration in a file, or in the text of one.

    Raises:
        UsageError: it cannot be read, or it is not a schema of a table.
    """
    try:
        return schema_of(json.loads(source if isinstance(source, str) else source.read_text()))
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{source if isinstance(source, Path) else 'schema'}: {error}") from None


def schema_of(document: Any) -> BodySchema:
    """Return the declaration in a JSON Schema.

    Raises:
        UsageError: it does not describe an object, or a property is not of one type.
    """
    if not isinstance(document, dict) or not isinstance(document.get("properties", {}), dict):
        raise UsageError("the schema of bodies must be that of an object, with properties")
    if document.get("type", "object") != "object":
        raise UsageError(f"the schema of bodies must be that of an object, not of {document['type']!r}")
    _refuse("the schema", document)
    kinds = {name: _kind(name, each) for name, each in document.get("properties", {}).items()}
    required = document.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise UsageError("required must be a list of names")
    extra = document.get("additionalProperties", True)
    if not isinstance(extra, bool):
        raise UsageError("additionalProperties must be true or false")
    return BodySchema(kinds, frozenset(required), extra)


def _kind(name: str, declared: Any) -> str:
    if not isinstance(declared, dict):
        raise UsageError(f"property {name!r} must be an object with a type")
    _refuse(f"property {name!r}", declared)
    types = declared.get("type")
    named = [each for each in (types if isinstance(types, list) else [types]) if each != "null"]
    if len(named) != 1 or not isinstance(named[0], str) or named[0] not in _KINDS:
        raise UsageError(
            f"property {name!r}: type must be one of {', '.join(_KINDS)}, alone or with null, and not {types!r}"
        )
    formats = _KINDS[named[0]]
    form = declared.get("format")
    return formats.get(form if isinstance(form, str) else None, formats[None])


def _refuse(what: str, declared: Mapping[str, Any]) -> None:
    for word in _REFUSED:
        if word in declared:
            raise UsageError(f"{what} has {word}, of which no columns can be made")
