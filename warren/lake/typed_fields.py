"""Bodies in Avro or Protobuf as columns: the columns that a table gets by their schema, and the values of each body.

    column of the schema (`spark_bridge.typed_bodies`)      column of the table
    boolean, int32, int64, float, double, string            the same
    binary, timestamp with a zone, date                     the same
    list, map, struct                                       string: their JSON; bytes in it are base64,
                                                            numbers that are not finite texts, as "NaN"
    decimal, timestamp without a zone                       string

1. The schema defines all columns; a body does not add any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa

from warren.lake import kinds
from warren.lake.body_schema import BodySchema
from warren.lake.kinds import Unfit
from warren.spark_bridge.bridge_errors import CorruptBody
from warren.spark_bridge.header_table import float_text
from warren.spark_bridge.typed_bodies import BodyFormat

Parse = Callable[[bytes], dict[str, Any]]
_NESTED: Final = (pa.types.is_list, pa.types.is_map, pa.types.is_struct)


class TypedBodies:
    """Makes values of bodies; `declared`: the kinds of columns. It can be pickled; a copy loads its formats again.

    Raises:
        UsageError: the schema has no columns.
    """

    def __init__(self, form: BodyFormat) -> None:
        self._form = form
        self._reader = form.reader()
        self._texts: dict[str, Callable[[Any], str]] = {}
        self.declared: dict[str, str] = {}
        for field in self._reader.schema:
            kind = kinds.kind_of_type(field.type)
            if kind is None:
                kind = kinds.STRING
                self._texts[field.name] = _json if any(test(field.type) for test in _NESTED) else str
            self.declared[field.name] = kind

    def __reduce__(self) -> tuple[type[TypedBodies], tuple[BodyFormat]]:
        return TypedBodies, (self._form,)

    def __call__(self, body: bytes) -> dict[str, Any]:
        """Return the fields of a body.

        Raises:
            Unfit: it does not fit the schema.
        """
        try:
            found = self._reader.value(body)
        except CorruptBody as error:
            raise Unfit(str(error)) from None
        for name, text in self._texts.items():
            if found[name] is not None:
                found[name] = text(found[name])
        return found


def fields_of(form: BodyFormat) -> tuple[BodySchema, Parse]:
    """Return the columns of a format, and the function that makes their values of a body.

    Raises:
        UsageError: its schema has no columns.
    """
    bodies = TypedBodies(form)
    return BodySchema(bodies.declared, is_open=False), bodies


def _json(value: Any) -> str:
    return msgspec.json.encode(_for_json(value)).decode()


def _for_json(value: Any) -> Any:
    """Return a value with texts for what JSON lacks: numbers that are not finite, booleans as keys."""
    if isinstance(value, dict):
        return {_JSON_KEYS[key] if isinstance(key, bool) else key: _for_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_for_json(each) for each in value]
    return float_text(value) if isinstance(value, float) and not math.isfinite(value) else value


_JSON_KEYS: Final = {False: "false", True: "true"}
