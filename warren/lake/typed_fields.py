"""Bodies in Avro or Protobuf as columns: what their schema says a table is to have, and the values of each body.

    column of the schema (`spark_bridge.typed_bodies`)      column of the table
    boolean, int32, int64, float, double, string            the same
    binary, timestamp with a zone, date                     the same
    list, map, struct                                       string: their JSON; bytes in it are base64
    decimal, timestamp without a zone                       string

1. The schema has all columns, so a body makes none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa

from warren.lake import kinds
from warren.lake.body_schema import BodySchema
from warren.lake.kinds import Unfit
from warren.spark_bridge.errors import CorruptBody
from warren.spark_bridge.typed_bodies import BodyFormat

Parse = Callable[[bytes], dict[str, Any]]
_NESTED: Final = (pa.types.is_list, pa.types.is_map, pa.types.is_struct)


def fields_of(form: BodyFormat) -> tuple[BodySchema, Parse]:
    """Return the columns of a format, and what makes their values of a body.

    Raises:
        UsageError: its schema is none of columns.
    """
    reader = form.reader()
    texts: dict[str, Callable[[Any], str]] = {}
    declared = {}
    for field in reader.schema:
        kind = kinds.kind_of_type(field.type)
        if kind is None:
            kind = kinds.STRING
            texts[field.name] = _json if any(test(field.type) for test in _NESTED) else str
        declared[field.name] = kind

    def parse(body: bytes) -> dict[str, Any]:
        try:
            found = reader.value(body)
        except CorruptBody as error:
            raise Unfit(str(error)) from None
        for name, text in texts.items():
            if found[name] is not None:
                found[name] = text(found[name])
        return found

    return BodySchema(declared, is_open=False), parse


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
