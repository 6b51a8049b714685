"""Rows of a table out of rows of messages: as they are, or with a column for each field of their bodies.

1. The same rows into the same table give the same result. Which rows are refused, and why, depends on nothing else
   (except for the answers of a registry). Order matters: the first values of a new column decide its kind.
2. Every message becomes one row: of the table, or of the table of refused messages, with the reason.
3. Bodies are parsed batch by batch: memory holds the rows of a commit, and the bodies of one batch.
4. Bodies are not trusted: their depth, the number of columns that they make, and the length of a reason are bounded.
5. The columns of messages have their names, and the partition by day has one; a field of a body that has one of these
   is in a column ``body_NAME``. In other names an underscore replaces each character that is not a letter, digit or
   underscore. When two fields of a body come into one column, letters in either case being the same, the body is
   refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from warren.lake import kinds
from warren.lake.body_schema import BodySchema
from warren.lake.json_fields import fields_of
from warren.lake.kinds import ARROW, Unfit
from warren.lake.options import PUBLISH_DATE
from warren.lake.table import Change, changed, with_columns
from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.schema import COLUMN_NAMES, MAP, arrow_schema

COLUMNS_MAX: Final = 500
NAME_MAX: Final = 200
REASON_MAX: Final = 300
REASON: Final = "reason"
REFUSED_COLUMNS: Final = ("queue", "partition", "offset", "timestamp", "exchange", "routing_key", "content_type")
KEY_COLUMNS: Final = ("queue", "partition", "offset", "timestamp")
_NO_NAME: Final = re.compile(r"\W")


class Decoded(NamedTuple):
    """The result for messages: rows of the table after `changes`, and refused messages."""

    rows: pa.Table
    refused: pa.Table
    changes: tuple[Change, ...] = ()


class Decoder(Protocol):
    """Makes rows of a table of rows of messages."""

    refuses: bool  # whether messages can be refused

    def reading(self) -> pa.Schema:
        """Return the columns of messages that it needs."""

    def first_columns(self) -> pa.Schema:
        """Return the columns of a new table."""

    def pending(self, columns: pa.Schema, *, can_widen: bool) -> tuple[Change, ...]:
        """Return the changes that a table with `columns` needs before it takes rows.

        Raises:
            UsageError: the table cannot be made to fit.
        """

    def decode(self, columns: pa.Schema, messages: Iterable[pa.RecordBatch]) -> Decoded:
        """Return the result for `messages` in a table with `columns`.

        Raises:
            UsageError: another program has taken out, or renamed, a column of messages.
        """


def message_schema(names: Sequence[str]) -> pa.Schema:
    """Return the columns of messages as tables have them: Iceberg has no numbers of 16 bits.

    Raises:
        UsageError: a name is not a column, or a column is missing by which rows are found again.
    """
    try:
        found = arrow_schema(names, MAP)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if len(set(names)) != len(names):
        raise UsageError("columns: each of them once")
    missing = [name for name in KEY_COLUMNS if name not in names]
    if missing:
        raise UsageError(f"columns: {', '.join(missing)} must be among them")
    return pa.schema([field.with_type(pa.int32()) if field.type == pa.int16() else field for field in found])


def refused_schema() -> pa.Schema:
    """Return the columns of the table of refused messages."""
    found = message_schema([*REFUSED_COLUMNS, "headers", "body"])
    return found.append(pa.field(REASON, pa.string(), nullable=False))


class MessageDecoder:
    """Messages as they are, the body as bytes."""

    refuses = False

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self._names = COLUMN_NAMES if names is None else tuple(names)
        self._schema = message_schema(self._names)

    def reading(self) -> pa.Schema:
        return arrow_schema(self._names, MAP)

    def first_columns(self) -> pa.Schema:
        return self._schema

    def pending(self, columns: pa.Schema, *, can_widen: bool) -> tuple[Change, ...]:
        _check_messages(columns, self._schema)
        return ()

    def decode(self, columns: pa.Schema, messages: Iterable[pa.RecordBatch]) -> Decoded:
        _check_messages(columns, self._schema)
        rows = pa.Table.from_batches(messages, self.reading())
        return Decoded(with_columns(rows, columns), refused_schema().empty_table())


class FieldDecoder:
    """Messages with a column for each field of their bodies, which are JSON objects or whatever `parse` makes of them.

    `parse`: returns the fields of a body, or raises `Unfit`.
    """

    refuses = True

    def __init__(
        self,
        names: Sequence[str] | None = None,
        schema: BodySchema | None = None,
        columns_max: int = COLUMNS_MAX,
        parse: Callable[[bytes], dict[str, Any]] | None = None,
    ) -> None:
        given = [name for name in COLUMN_NAMES if name != "body"] if names is None else list(names)
        self._schema = message_schema(given)
        self._body = schema or BodySchema()
        self._columns_max = columns_max
        self._parse = parse or parsed_json
        self._declared: dict[str, str] = {}
        for field, kind in self._body.kinds.items():
            column = column_of(field)
            if _folded(column) in {_folded(other) for other in self._declared}:
                raise UsageError(f"property {field!r}: two properties would be in the column {column!r}")
            self._declared[column] = kind
        if len(self._declared) + len(self._schema) > columns_max:
            raise UsageError(f"the schema has more than {columns_max} columns")

    def reading(self) -> pa.Schema:
        needed = {*self._schema.names, *refused_schema().names}
        return arrow_schema([name for name in COLUMN_NAMES if name in needed], MAP)

    def first_columns(self) -> pa.Schema:
        changes = [Change(column, kind, True) for column, kind in self._declared.items()]
        return changed(self._schema, changes, ARROW)

    def pending(self, columns: pa.Schema, *, can_widen: bool) -> tuple[Change, ...]:
        _check_messages(columns, self._schema)
        has = {_folded(name): name for name in columns.names}
        changes = []
        for column, kind in self._declared.items():
            name = has.get(_folded(column))
            if name is None:
                changes.append(Change(column, kind, True))
                continue
            there = kinds.kind_of_type(columns.field(name).type)
            if there == kind:
                continue
            if there is None or kinds.WIDER.get(there) != kind:
                raise UsageError(f"column {name!r} of the table is {there or 'of another type'}, and cannot be {kind}")
            if not can_widen:
                raise UsageError(f"column {name!r}: a table of this format cannot be widened from {there} to {kind}")
            changes.append(Change(name, kind, False))
        return tuple(changes)

    def decode(self, columns: pa.Schema, messages: Iterable[pa.RecordBatch]) -> Decoded:
        _check_messages(columns, self._schema)
        known = _BodyColumns(columns, self._schema.names, self._body, self._columns_max)
        parts = [_part(batch, known, self._parse, self._schema.names) for batch in messages if batch.num_rows]
        late = [part.refuse_late(known) for part in parts]
        changes = tuple(Change(known.names[key], known.kinds[key], True) for key in known.new)
        schema = changed(columns, changes, ARROW)
        rows = [with_columns(part.table(known), schema) for part in parts]
        aside = [part.refused for part in parts] + late
        refused = [with_columns(each, refused_schema()) for each in aside if each.num_rows]
        return Decoded(
            pa.concat_tables(rows) if rows else schema.empty_table(),
            pa.concat_tables(refused) if refused else refused_schema().empty_table(),
            changes,
        )


@dataclass
class _Part:
    """The result for a batch. `rows`: without bodies; `values`: by key; `refused`: with bodies and reasons.

    `source` is the batch, and `numbers` has the places of `rows` in it, if integers of it may not fit a column that is
    being found: it may become one of doubles.
    """

    rows: pa.RecordBatch
    values: dict[str, pa.Array]
    refused: pa.Table
    source: pa.RecordBatch | None = None
    numbers: pa.Array | None = None

    def refuse_late(self, known: _BodyColumns) -> pa.Table:
        """Take out the rows whose integers columns do not have exactly that have become doubles; return them."""
        reasons: dict[int, str] = {}
        for key in known.new if self.source is not None else ():
            values = self.values.get(key)
            if values is None or known.kinds[key] != kinds.DOUBLE or values.type != ARROW[kinds.LONG]:
                continue
            for number in pc.indices_nonzero(_inexact(values)).to_pylist():
                try:
                    known.taken(key, values[number].as_py())
                except Unfit as error:
                    reasons.setdefault(number, str(error)[:REASON_MAX])
        if not reasons:
            return refused_schema().empty_table()
        assert self.source is not None and self.numbers is not None
        bad = {self.numbers[number].as_py(): reason for number, reason in reasons.items()}
        good = pa.array([number for number in range(self.rows.num_rows) if number not in reasons], pa.int64())
        self.rows = self.rows.take(good)
        self.values = {key: each.take(good) for key, each in self.values.items()}
        return _aside(self.source, bad)

    def table(self, known: _BodyColumns) -> pa.Table:
        """Return the rows with the columns that they have a value of, or that are new."""
        found = pa.Table.from_batches([self.rows])
        for key in dict.fromkeys([*self.values, *known.new]):
            kind = ARROW[known.kinds[key]]
            values = self.values.get(key)
            made = pa.nulls(found.num_rows, kind) if values is None else values.cast(kind)
            found = found.append_column(known.names[key], made)
        return found


def _part(
    batch: pa.RecordBatch, known: _BodyColumns, parse: Callable[[bytes], dict[str, Any]], kept: Sequence[str]
) -> _Part:
    """Return the result for the bodies of a batch."""
    refused: dict[int, str] = {}
    values: dict[str, list[Any]] = {}
    for number, raw in enumerate(batch.column("body").to_pylist()):
        try:
            fields = known.fields(parse(raw))
            known.settle(fields)
        except Unfit as error:
            refused[number] = str(error)[:REASON_MAX]
            continue
        for key, value in fields.items():
            column = values.get(key)
            if column is None:
                column = values[key] = [None] * batch.num_rows
            column[number] = value
    for key in known.new:
        if known.kinds[key] == kinds.DOUBLE and key in values:
            for number, value in enumerate(values[key]):
                if isinstance(value, int) and number not in refused:  # a long when it was met
                    try:
                        values[key][number] = known.taken(key, value)
                    except Unfit as error:
                        refused[number] = str(error)[:REASON_MAX]
    for number in refused:
        for each in values.values():
            each[number] = None
    arrays = {key: pa.array(each, ARROW[known.kinds[key]]) for key, each in values.items()}
    rows = batch.select([name for name in batch.schema.names if name in kept])
    aside = _aside(batch, refused)
    good = None
    if refused:
        good = pa.array([number for number in range(batch.num_rows) if number not in refused], pa.int64())
        rows = rows.take(good)
        arrays = {key: each.take(good) for key, each in arrays.items()}
    longs = [arrays[key] for key in known.new if key in arrays and known.kinds[key] == kinds.LONG]
    if not any(pc.any(_inexact(each)).as_py() for each in longs):
        return _Part(rows, arrays, aside)
    return _Part(rows, arrays, aside, batch, pa.array(range(batch.num_rows), pa.int64()) if good is None else good)


def _inexact(values: pa.Array) -> pa.Array:
    """Return which integers a double may not have."""
    return pc.or_(pc.greater(values, kinds.EXACT_MAX), pc.less(values, -kinds.EXACT_MAX)).fill_null(False)


def _aside(batch: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.Table:
    """Return rows of a batch by their numbers, with the reasons why they are refused."""
    bad = sorted(reasons)
    rows = pa.Table.from_batches([batch]).take(pa.array(bad, pa.int64()))
    return rows.append_column(REASON, pa.array([reasons[number] for number in bad], pa.string()))


class _BodyColumns:
    """The columns for bodies: the existing ones, and those that are being found.

    A key is the name of a column in small letters; `names` has it as it is, `new` those that are being found.
    """

    def __init__(self, columns: pa.Schema, messages: Sequence[str], body: BodySchema, most: int) -> None:
        self.names: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.new: dict[str, None] = {}
        self._body = body
        self._room = most - len(columns)
        self._keys: dict[str, str] = {}  # of fields
        self._others = set(map(_folded, messages))  # keys that no field can have
        for field in columns:
            kind = kinds.kind_of_type(field.type)
            if field.name in messages or kind is None:
                self._others.add(_folded(field.name))
            else:
                self.names[_folded(field.name)] = field.name
                self.kinds[_folded(field.name)] = kind

    def fields(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the fields of a body by key, nulls left out, and find columns.

        Raises:
            Unfit: the table does not take the body.
        """
        if self._body.required and not self._body.required <= value.keys():
            raise Unfit(f"without {min(self._body.required - value.keys())!r}")
        found: dict[str, Any] = {}
        fresh: dict[str, str] = {}
        for name, each in value.items():
            key = self._keys.get(name) or self._key(name)
            if key in found:
                raise Unfit(f"two fields for the column {column_of(name)[:NAME_MAX]!r}")
            kind = self.kinds.get(key)
            if kind is None and not self._body.is_open:
                raise Unfit(f"{name[:NAME_MAX]!r} is not in the schema")
            if each is None:
                found[key] = None
            elif kind is None or key in self.new:
                fresh[name] = self._found(name, key, each) if kind is None else self._joined(key, kind, each)
                found[key] = each
            else:
                found[key] = each if type(each) is _AS_IT_IS.get(kind) else self._taken(key, kind, each)
        if fresh:
            self._add(fresh)
        return {key: each for key, each in found.items() if each is not None}

    def settle(self, fields: dict[str, Any]) -> None:
        """Convert values of new columns to the current kinds: longs may become doubles; nothing else changes.

        Raises:
            Unfit: a column does not take one of them.
        """
        for key in fields.keys() & self.new.keys():
            fields[key] = self.taken(key, fields[key])

    def taken(self, key: str, value: Any) -> Any:
        """Return a value as its column has it by now.

        Raises:
            Unfit: it does not take such a value.
        """
        return self._taken(key, self.kinds[key], value)

    def _add(self, fresh: dict[str, str]) -> None:
        """Take over which kinds columns are by now, of fields of one body."""
        keys = {name: self._key(name) for name in fresh}
        if sum(key not in self.kinds for key in keys.values()) > self._room:
            raise Unfit("more columns than the table may have")
        for name, kind in fresh.items():
            key = keys[name]
            if key not in self.kinds:
                self._room -= 1
                self.names[key] = column_of(name)
                self.new[key] = None
            self.kinds[key] = kind

    def _key(self, field: str) -> str:
        key = _folded(column_of(field))
        if len(self._keys) < _FIELDS_MAX:
            self._keys[field] = key
        return key

    def _found(self, field: str, key: str, value: Any) -> str:
        if len(key) > NAME_MAX or key in self._others:
            raise Unfit(f"{field[:NAME_MAX]!r} is not a valid column name")
        return kinds.kind_of_value(value)

    def _joined(self, key: str, kind: str, value: Any) -> str:
        try:
            return kinds.joined(kind, value)
        except Unfit as error:
            raise Unfit(f"{self.names[key]}: {error}") from None

    def _taken(self, key: str, kind: str, value: Any) -> Any:
        try:
            return kinds.taken(kind, value)
        except Unfit as error:
            raise Unfit(f"{self.names[key]}: {error}") from None


# Values that need no check: JSON has no doubles that are not finite.
_AS_IT_IS: Final = {kinds.STRING: str, kinds.BOOLEAN: bool, kinds.DOUBLE: float}
_FIELDS_MAX: Final = 100_000


def parsed_json(raw: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Raises:
        Unfit: it is not one, or has a name twice.
    """
    try:
        value = fields_of(raw)
        if value is not None and _may_repeat(raw, len(value)):
            _check_names(raw)
    except RecursionError:
        raise Unfit("JSON that is nested too deeply") from None
    except ValueError as error:
        raise Unfit(f"no JSON: {error}") from None
    if value is None:
        raise Unfit("no JSON object")
    return value


_SPACED_COLON: Final = re.compile(rb'"\s+:')


def _may_repeat(raw: bytes, names: int) -> bool:
    """Tell whether an object with so many different names may have one of them twice: there is a colon for each."""
    if raw.count(b":") == names:
        return False
    return raw.count(b'":') != names or _SPACED_COLON.search(raw) is not None


def _check_names(raw: bytes) -> None:
    """Make sure that no name is there twice; what is inside of objects is kept as it is.

    Raises:
        Unfit: one is. RecursionError: it is nested too deeply.
    """
    last: list[tuple[str, Any]] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal last
        last = pairs  # the outer object comes last

    json.loads(raw, object_pairs_hook=note)
    names: set[str] = set()
    for name, _ in last:
        if name in names:
            raise Unfit(f"the name {name[:NAME_MAX]!r} twice")
        names.add(name)


def column_of(field: str) -> str:
    """Return the column that a field of a body is in."""
    column = _NO_NAME.sub("_", field) or "_"
    if column[0].isdigit():
        column = "_" + column
    return f"body_{column}" if _folded(column) in _MESSAGE_NAMES else column


def _folded(name: str) -> str:
    return name.lower()


_MESSAGE_NAMES: Final = frozenset({*COLUMN_NAMES, PUBLISH_DATE})


def _check_messages(columns: pa.Schema, wanted: pa.Schema) -> None:
    for field in wanted:
        if field.name not in columns.names:
            raise UsageError(
                f"the table has no column {field.name!r}: it was made with other --columns, or another program has "
                "taken the column out"
            )
