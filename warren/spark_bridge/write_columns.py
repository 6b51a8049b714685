"""The meaning of each column of a data frame in a message, and the encoding of rows as frames.

    body            `body` or `value`: binary or string, needed
    exchange        option, else `exchange` or `topic`; without either the default exchange
    routing key     option, else `routing_key` or `key`; without either empty, which the default exchange does not take
    properties      the property columns of ``schema``; headers in any of its three formats

1. Any other column is an error, unless the options allow to leave it out. Columns that a reader adds to a message
   (queue, partition, offset, timestamp, redelivered, delivery_count) are always left out: so the rows of a reader can
   be written unchanged.
2. A null `delivery_mode` or `message_id` is one that the row does not have, as SQL's INSERT has it in columns that it
   leaves out. The options decide then, as without the column.
3. `RowEncoder` is the part that tasks get: it can be pickled, and does not depend on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.frames import FRAME_BYTES_MAX, encode_publishes, sliced
from warren.spark_bridge.options import OptionError
from warren.spark_bridge.properties import encode_properties
from warren.spark_bridge.schema import COLUMNS, PROPERTY_COLUMNS, TYPED_VALUE
from warren.spark_bridge.writer_options import WriteOptions

PERSISTENT: Final = 2

_BODY: Final = ("body", "value")
_EXCHANGE: Final = ("exchange", "topic")
_ROUTING_KEY: Final = ("routing_key", "key")
_TEXT: Final = "string"
_READERS_OWN: Final = frozenset(
    found.name for found in COLUMNS if not found.is_property and found.name not in (*_BODY, *_EXCHANGE, *_ROUTING_KEY)
)


class Field(NamedTuple):
    """A column to write: its name, and its Arrow type."""

    name: str
    type: pa.DataType


class RowEncoder(NamedTuple):
    """How rows become messages. A column None: `exchange` or `routing_key` has the text for all."""

    body: str
    exchange_column: str | None
    routing_key_column: str | None
    exchange: str
    routing_key: str
    properties: tuple[str, ...]
    persistent: bool
    numbers: bool

    def encode(
        self,
        batch: pa.RecordBatch,
        *,
        prefix: str = "",
        first_row: int = 0,
        mandatory: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> Iterator[pa.Array]:
        """Yield the messages of `batch`, a binary each; `first_row` is the number of its first row in the task.

        Raises:
            ValueError: a value cannot be sent.
        """
        for part in sliced(batch, batch.column(self.body)):
            yield encode_publishes(
                self._texts(part, self.exchange_column, self.exchange),
                self._texts(part, self.routing_key_column, self.routing_key),
                self._properties(part, prefix, first_row),
                part.column(self.body),
                mandatory=mandatory,
                frame_bytes_max=frame_bytes_max,
            )
            first_row += part.num_rows

    def _texts(self, batch: pa.RecordBatch, name: str | None, otherwise: str) -> pa.Array | str:
        if name is None:
            return otherwise
        column = batch.column(name)
        return column if column.type == pa.string() else column.cast(pa.string())

    def _properties(self, batch: pa.RecordBatch, prefix: str, first_row: int) -> pa.Array:
        count = batch.num_rows
        columns = {name: batch.column(name) for name in self.properties}
        if self.persistent:
            modes = columns.get("delivery_mode")
            if modes is None:
                modes = pa.array(np.full(count, PERSISTENT, np.int16))
            columns["delivery_mode"] = pc.fill_null(modes, pa.scalar(PERSISTENT, modes.type))
        if self.numbers:
            numbers = pa.array([f"{prefix}{row}" for row in range(first_row, first_row + count)])
            given = columns.get("message_id")
            columns["message_id"] = numbers if given is None else pc.coalesce(given, numbers.cast(given.type))
        return encode_properties(columns, count)


def row_encoder(fields: Sequence[Field], options: WriteOptions) -> RowEncoder:
    """Return how rows with these columns become messages.

    Raises:
        OptionError: a column is missing, there twice, unknown, or of a type that it cannot have.
    """
    names = [each.name for each in fields]
    body = _one_of(names, _BODY)
    if body is None:
        raise OptionError("there is no column body (or value) to be sent")
    exchange = _one_of(names, _EXCHANGE)
    routing_key = _one_of(names, _ROUTING_KEY)
    known = {*_BODY, *_EXCHANGE, *_ROUTING_KEY, *PROPERTY_COLUMNS, *_READERS_OWN}
    for each in fields:
        if each.name not in known and not options.ignores_unknown_columns:
            raise OptionError(
                f"column {each.name!r} is no part of a message: leave it out, or set the option ignoreUnknownColumns"
            )
        if each.name in known - _READERS_OWN:
            _check_type(each)
    if options.routing_key is None and routing_key is None and options.exchange in (None, "") and exchange is None:
        raise OptionError(
            'nothing says where messages go: name a queue, as in option("queue", "orders"), or add a column '
            "routing_key. Spark passes no options to a table that CREATE TABLE makes"
        )
    return RowEncoder(
        body=body,
        exchange_column=None if options.exchange is not None else exchange,
        routing_key_column=None if options.routing_key is not None else routing_key,
        exchange=options.exchange or "",
        routing_key=options.routing_key or "",
        properties=tuple(name for name in names if name in PROPERTY_COLUMNS),
        persistent=options.persistent,
        numbers=options.numbers_messages,
    )


def _one_of(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    found = [name for name in names if name in wanted]
    if len(found) > 1:
        raise OptionError(f"columns {' and '.join(found)}: only one of them can be")
    return found[0] if found else None


def _check_type(given: Field) -> None:
    """Make sure that a column is of a type that can be sent.

    Raises:
        OptionError: it is not.
    """
    name, kind = given
    wanted: str
    if name in _BODY:
        wanted, fits = "binary or string", _is_text(kind) or _is_binary(kind)
    elif name in ("delivery_mode", "priority"):
        wanted, fits = "an integer", pa.types.is_integer(kind)
    elif name == "message_timestamp":
        wanted, fits = "a timestamp", pa.types.is_timestamp(kind)
    elif name == "headers":
        wanted, fits = "a map of strings, what a reader gives, or JSON as a string", _is_headers(kind)
    elif name == "key":
        wanted, fits = "binary or string", _is_text(kind) or _is_binary(kind)
    else:
        wanted, fits = "a string", _is_text(kind)
    if not fits:
        raise OptionError(f"column {name!r} is {kind}: it must be {wanted}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if _is_text(kind):
        return True
    if not pa.types.is_map(kind) or not _is_text(kind.key_type):
        return False
    item: Any = kind.item_type
    if pa.types.is_struct(item):
        return [(field.name, field.type) for field in item] == [(field.name, field.type) for field in TYPED_VALUE]
    return _is_text(item)
