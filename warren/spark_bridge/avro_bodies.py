"""Bodies in Avro as columns.

    Avro                                    column
    null and X                              that of X; every column may be null
    boolean, int, long, float, double       boolean, int32, int64, float, double
    int and long, float and double          int64, double
    string, enum                            string
    bytes, fixed                            binary
    long of timestamp-millis or -micros     timestamp[us, UTC]; local-timestamp-…: timestamp[us]
    int of date                             date32
    bytes or fixed of decimal               decimal128, up to 38 digits
    array, map, record                      list, map, struct
    other logical types                     their underlying type

1. A reader has one schema, which defines the columns. With a registry each body names the schema that it was written
   with, and is resolved to the reader's; without one it was written with that very schema.
2. A body has to end where its value ends, or it was written with another schema.
3. The cost of a body is at most its bytes times what its schema says. A schema that contains itself is refused, since a
   body would define its depth. So is an array of values that take no bytes, since a body could have any number of them.
4. A fault of a body is `CorruptBody`, a fault of a schema that a user gives is `UsageError`. A registry that does not
   answer is neither.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from warren.spark_bridge.bridge_errors import CorruptBody, UsageError
from warren.spark_bridge.schema_registry import RegistryClient, taken_apart

COLUMNS_MAX: Final = 5000
WRITERS_MAX: Final = 500
DIGITS_MAX: Final = 38
_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
_NUMBERS: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1)

Convert = Callable[[Any], Any]


class AvroBodies:
    """Makes values of bodies. `schema`: the reader's, `others`: its references, in order; `registry`: of writers."""

    def __init__(self, schema: str, registry: RegistryClient | None = None, *, others: Sequence[str] = ()) -> None:
        parts = [_parsed_text(each) for each in others]
        main = _parsed_text(schema)
        columns = _Columns(*_parsed(main, parts))
        self.schema: pa.Schema = columns.schema
        self._convert = columns.convert
        self._reader, names = _parsed(_plain(main), [_plain(each) for each in parts])
        _check(self._reader, names)
        self._registry = registry
        self._writers: OrderedDict[int, Any] = OrderedDict()

    def value(self, body: bytes) -> dict[str, Any]:
        """Return the fields of a body.

        Raises:
            CorruptBody: it does not fit the schema. BrokerError: the registry does not answer.
        """
        from fastavro import schemaless_reader

        writer, reader = self._reader, None
        if self._registry is not None:
            number, body = taken_apart(body)
            writer, reader = self._writer(number), self._reader
        data = io.BytesIO(body)
        try:
            found = self._convert(schemaless_reader(data, writer, reader))
        except Exception as error:  # fastavro has no class of its own for invalid bytes
            raise CorruptBody(_said(error)) from None
        if data.tell() != len(body):
            raise CorruptBody(f"{len(body) - data.tell()} bytes after the end of its value")
        return found  # type: ignore[no-any-return]

    def _writer(self, number: int) -> Any:
        assert self._registry is not None
        if number in self._writers:
            self._writers.move_to_end(number)
            return self._writers[number]
        schema = self._registry.maybe_schema(number)
        if schema is None:
            raise CorruptBody(f"the registry has no schema {number}")
        if schema.kind != "AVRO":
            raise CorruptBody(f"schema {number} is {schema.kind}, not AVRO")
        try:
            others = [_plain(_parsed_text(each.text)) for each in self._registry.below(schema).values()]
            found, names = _parsed(_plain(_parsed_text(schema.text)), others)
            _check(found, names)
        except UsageError as error:
            raise CorruptBody(f"schema {number}: {error}") from None
        self._writers[number] = found
        if len(self._writers) > WRITERS_MAX:
            self._writers.popitem(last=False)
        return found


def _said(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ends within its value"
    if type(error).__name__ == "SchemaResolutionError":
        return "it was written with a schema that cannot be resolved to that of the columns"
    return f"it is no value of its schema: {type(error).__name__}: {error}"[:300]


def _parsed_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the Avro schema is not JSON: {error}") from None


def _parsed(schema: Any, others: list[Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return a schema as fastavro has it, with all names in full, and the definitions of the names.

    Raises:
        UsageError: it is not a valid schema.
    """
    from fastavro import parse_schema

    names: dict[str, Any] = {}
    try:
        for each in others:
            parse_schema(each, names)
        return parse_schema(schema, names), names
    except Exception as error:
        raise UsageError(f"no Avro schema: {error or type(error).__name__}"[:500]) from None


def _plain(schema: Any) -> Any:
    """Return a schema without logical types: they are applied here, by the schema of the reader alone."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value for key, value in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if isinstance(found.get(key), dict | list):
            found[key] = _plain(found[key])
    if isinstance(found.get("fields"), list):
        found["fields"] = [_plain(each) for each in found["fields"]]
    return found


def _check(schema: Any, names: Mapping[str, Any]) -> None:
    """Make sure that no body of a schema can be deeper, or have more values, than its bytes pay for.

    Raises:
        UsageError: it could.
    """
    least: dict[str, int | None] = {}  # bytes that values of a name take at least; None: being looked at

    def bytes_of(each: Any) -> int:
        if isinstance(each, list):
            for branch in each:
                bytes_of(branch)
            return 1
        kind = each["type"] if isinstance(each, dict) else each
        if isinstance(kind, dict | list):
            return bytes_of(kind)
        if kind in ("record", "error"):
            name = each["name"]
            if name in least:
                found = least[name]
                if found is None:
                    raise UsageError(f"the Avro schema {name} contains itself")
                return found
            least[name] = None
            found = sum([bytes_of(part["type"]) for part in each["fields"]])
            least[name] = found
            return found
        if kind == "array":
            if bytes_of(each["items"]) == 0:
                raise UsageError("an Avro schema with an array of values that take no bytes")
            return 1
        if kind == "map":
            bytes_of(each["values"])
            return 1
        if kind == "fixed":
            return int(each["size"])
        if kind in names and kind not in _PLAIN and kind != "null":
            return bytes_of(names[kind])
        return 0 if kind == "null" else 1

    try:
        bytes_of(schema)
    except RecursionError:
        raise UsageError("an Avro schema that is nested too deeply") from None


class _Columns:
    """The conversion of the values of a reader's schema: their Arrow types, and how values are changed to these."""

    def __init__(self, schema: Any, names: Mapping[str, Any]) -> None:
        self._names = names
        self._open: set[str] = set()
        self._count = 0
        try:
            kind, convert = self._of(schema, "the schema")
        except RecursionError:
            raise UsageError("an Avro schema that is nested too deeply") from None
        if not isinstance(schema, dict) or not pa.types.is_struct(kind):
            raise UsageError("the Avro schema of bodies must be a record")
        self.schema = pa.schema([kind.field(at) for at in range(kind.num_fields)])
        self.convert: Convert = convert or _same

    def _of(self, schema: Any, where: str) -> tuple[pa.DataType, Convert | None]:
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise UsageError(f"an Avro schema with more than {COLUMNS_MAX} fields")
        if isinstance(schema, list):
            return self._union(schema, where)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self._of(kind, where)
        if kind in ("record", "error"):
            return self._record(schema, where)
        if kind == "array":
            item, convert = self._of(schema["items"], where)
            return pa.list_(item), None if convert is None else _of_list(convert)
        if kind == "map":
            item, convert = self._of(schema["values"], where)
            return pa.map_(pa.string(), item), None if convert is None else _of_map(convert)
        if isinstance(schema, dict) and "logicalType" in schema:
            logical = _logical(kind, schema)
            if logical is not None:
                return logical
        if kind in _PLAIN:
            return _PLAIN[kind], _raw if kind in ("bytes", "fixed") else None
        if kind in self._names:
            return self._of(self._names[kind], where)
        raise UsageError(f"{where} is {kind}, which cannot become a column")

    def _union(self, schema: list[Any], where: str) -> tuple[pa.DataType, Convert | None]:
        kinds = [each for each in schema if each != "null"]
        wider = _NUMBERS.get(frozenset(kinds)) if all(isinstance(each, str) for each in kinds) else None
        if wider is not None:
            return _PLAIN[wider], None
        if len(kinds) != 1:
            raise UsageError(f"{where} is a union of several types, which cannot become a column")
        kind, convert = self._of(kinds[0], where)
        return kind, None if convert is None else _of_maybe(convert)

    def _record(self, schema: Any, where: str) -> tuple[pa.DataType, Convert | None]:
        name = schema["name"]
        if name in self._open:
            raise UsageError(f"the Avro schema {name} contains itself")
        self._open.add(name)
        fields = []
        changes: dict[str, Convert] = {}
        for each in schema["fields"]:
            kind, convert = self._of(each["type"], f"field {each['name']!r}")
            fields.append(pa.field(each["name"], kind))
            if convert is not None:
                changes[each["name"]] = convert
        self._open.discard(name)
        if not fields:
            raise UsageError(f"{where} is a record without fields, which cannot become a column")
        if not changes:
            return pa.struct(fields), None

        def changed(value: dict[str, Any]) -> dict[str, Any]:
            return {key: changes[key](each) if key in changes else each for key, each in value.items()}

        return pa.struct(fields), changed


def _of_list(convert: Convert) -> Convert:
    return lambda values: [convert(each) for each in values]


def _of_map(convert: Convert) -> Convert:
    return lambda values: {key: convert(each) for key, each in values.items()}


def _of_maybe(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _logical(kind: str, schema: Mapping[str, Any]) -> tuple[pa.DataType, Convert | None] | None:
    """Return the conversion of a logical type; None: the type is ignored."""
    name = schema["logicalType"]
    if kind == "long" and name in _MOMENTS:
        epoch, unit_us = _MOMENTS[name]
        return pa.timestamp("us", None if epoch is _EPOCH else "UTC"), (
            lambda value: epoch + timedelta(microseconds=value * unit_us)
        )
    if kind == "int" and name == "date":
        return pa.date32(), lambda value: _EPOCH_DAY + timedelta(days=value)
    if kind in ("bytes", "fixed") and name == "decimal":
        digits, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(digits, int) and isinstance(scale, int) and 0 <= scale <= digits and 0 < digits <= DIGITS_MAX:
            return pa.decimal128(digits, scale), lambda value: _decimal(_raw(value), digits, scale)
    return None


_MOMENTS: Final[Mapping[str, tuple[datetime, int]]] = {
    "timestamp-millis": (_EPOCH_UTC, 1000),
    "timestamp-micros": (_EPOCH_UTC, 1),
    "local-timestamp-millis": (_EPOCH, 1000),
    "local-timestamp-micros": (_EPOCH, 1),
}


def _decimal(raw: bytes, digits: int, scale: int) -> Decimal:
    # Not int.from_bytes of any value: a value that is much longer than its digits is never converted.
    if len(raw) > DIGITS_MAX or len(str(abs(number := int.from_bytes(raw, "big", signed=True)))) > digits:
        raise ValueError(f"a decimal of more than {digits} digits")
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _raw(value: Any) -> Any:
    """Return bytes; a default in a schema is a text with a letter for each."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _same(value: Any) -> Any:
    return value
