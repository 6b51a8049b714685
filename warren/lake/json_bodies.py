"""JSON bodies as columns while they are read, without a table that remembers the columns.

1. The columns are those of a schema, or those found in a sample of messages. Their names are those of the lake's
   tables (`column_of`), and there are at most `decoder.COLUMNS_MAX`.
2. A column whose sample has values of several kinds has texts; a value that is not a text becomes its JSON.
3. These values are null and counted in `unfit`: a value that its column does not take, the values of two fields that
   would share one column, letters in either case being the same, and every field of a body that is not a JSON object.
   The body itself is a column as well, so nothing is lost. (A table of the lake refuses such a body.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from warren.lake import kinds
from warren.lake.body_schema import BodySchema
from warren.lake.decoder import COLUMNS_MAX, NAME_MAX, column_of
from warren.lake.json_fields import fields_of, text_of
from warren.lake.kinds import ARROW, Unfit

SAMPLE_ROWS: Final = 1000  # of the oldest messages, and of the newest


class JsonBodies:
    """Makes columns of bodies. `fields`: their kinds by name; those that are said to be texts take any value."""

    def __init__(self, fields: dict[str, str], *, is_sampled: bool = False) -> None:
        self.unfit = 0
        self._is_sampled = is_sampled
        self._fields: dict[str, list[str]] = {}  # of each column
        self._kinds: dict[str, str] = {}
        columns: dict[str, str] = {}  # by their names in small letters, which SQL does not tell apart
        for field, kind in fields.items():
            column = columns.setdefault(column_of(field).lower(), column_of(field))
            self._fields.setdefault(column, []).append(field)
            self._kinds[column] = kind if self._kinds.get(column, kind) == kind else kinds.STRING
        self.schema: pa.Schema = pa.schema([pa.field(name, ARROW[kind]) for name, kind in self._kinds.items()])

    def columns(self, bodies: pa.Array, wanted: Sequence[str]) -> dict[str, pa.Array]:
        """Return the values of the columns `wanted`."""
        values: dict[str, list[Any]] = {name: [] for name in wanted}
        for raw in bodies.to_pylist():
            found = maybe_object(raw)
            if found is None:
                self.unfit += 1
                found = {}
            for name, column in values.items():
                fields = [field for field in self._fields[name] if found.get(field) is not None]
                column.append(self._value(name, fields, found, raw) if fields else None)
        return {name: pa.array(column, ARROW[self._kinds[name]]) for name, column in values.items()}

    def _value(self, column: str, fields: list[str], found: dict[str, Any], raw: bytes) -> Any:
        kind = self._kinds[column]
        value = found[fields[0]]
        try:
            if len(fields) > 1:
                raise Unfit("two fields for one column")
            if kind == kinds.STRING and self._is_sampled and not isinstance(value, str):
                return text_of(raw, fields[0])
            return kinds.taken(kind, value)
        except Unfit:
            self.unfit += 1
            return None


def maybe_object(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a body contains; None: it is not a JSON object."""
    try:
        return fields_of(raw)
    except (ValueError, RecursionError):
        return None


def declared(schema: BodySchema) -> JsonBodies:
    """Return the columns that a schema says."""
    return JsonBodies(dict(schema.kinds))


def found_in(sample: Iterable[bytes]) -> JsonBodies:
    """Return the columns of the fields in a sample of bodies, in the order in which they appear."""
    fields: dict[str, str] = {}
    for raw in sample:
        for name, value in (maybe_object(raw) or {}).items():
            if value is None or len(name) > NAME_MAX:
                continue
            before = fields.get(name)
            if before is None and len(fields) >= COLUMNS_MAX:
                continue
            try:
                fields[name] = kinds.kind_of_value(value) if before is None else kinds.joined(before, value)
            except Unfit:
                fields[name] = kinds.STRING
    return JsonBodies(fields, is_sampled=True)
