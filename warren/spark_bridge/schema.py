"""The columns of a message, as Spark and as Arrow see them.

1. Their names, order and types are fixed: code that reads one queue reads any. A reader may ask for some of them, in
   any order; the Arrow types are those into which PySpark turns the Spark types, to the nullability of map values.
2. Importing this needs neither pyspark nor a broker.

    column             Spark      null  where it is from
    queue              string     no    the reader
    partition          int        no    the reader: number of the partition stream of a super stream, else 0
    offset             bigint     no    chunk: place in the stream, snapshot or claim
    timestamp          timestamp  no    chunk: when it was published
    exchange           string     no    chunk
    routing_key        string     no    chunk
    redelivered        boolean    no    chunk
    delivery_count     int        yes   properties: how often a delivery has failed; null: its queue does not count that
    body               binary     no    chunk; with body_as="string" string and null where it is not UTF-8
    content_type       string     yes   properties, as are all that follow
    content_encoding   string     yes
    delivery_mode      smallint   yes   an octet without sign, so more than a tinyint
    priority           smallint   yes   likewise
    correlation_id     string     yes
    reply_to           string     yes
    expiration         string     yes
    message_id         string     yes
    message_timestamp  timestamp  yes   the property ``timestamp``
    type               string     yes
    user_id            string     yes
    app_id             string     yes
    cluster_id         string     yes
    headers            see below  yes   map<string,string>, map<string,struct<t,s,i,d,b,json>> or string (JSON)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

MAP: Final = "map"
TYPED: Final = "typed"
JSON: Final = "json"
HEADERS_FORMATS: Final = (MAP, TYPED, JSON)
BINARY: Final = "binary"
STRING: Final = "string"
BODY_FORMATS: Final = (BINARY, STRING)


class Column(NamedTuple):
    """A column of the schema; `spark`: the simple name of its type, "headers" and "body" for those that depend."""

    name: str
    spark: str
    nullable: bool = True
    is_property: bool = False


COLUMNS: Final = (
    Column("queue", "string", nullable=False),
    Column("partition", "int", nullable=False),
    Column("offset", "bigint", nullable=False),
    Column("timestamp", "timestamp", nullable=False),
    Column("exchange", "string", nullable=False),
    Column("routing_key", "string", nullable=False),
    Column("redelivered", "boolean", nullable=False),
    Column("delivery_count", "int"),
    Column("body", "body", nullable=False),
    Column("content_type", "string", is_property=True),
    Column("content_encoding", "string", is_property=True),
    Column("delivery_mode", "smallint", is_property=True),
    Column("priority", "smallint", is_property=True),
    Column("correlation_id", "string", is_property=True),
    Column("reply_to", "string", is_property=True),
    Column("expiration", "string", is_property=True),
    Column("message_id", "string", is_property=True),
    Column("message_timestamp", "timestamp", is_property=True),
    Column("type", "string", is_property=True),
    Column("user_id", "string", is_property=True),
    Column("app_id", "string", is_property=True),
    Column("cluster_id", "string", is_property=True),
    Column("headers", "headers", is_property=True),
)
COLUMN_NAMES: Final = tuple(column.name for column in COLUMNS)
PROPERTY_COLUMNS: Final = tuple(column.name for column in COLUMNS if column.is_property)
# Columns that the properties of a message are needed for.
FROM_PROPERTIES: Final = frozenset((*PROPERTY_COLUMNS, "delivery_count"))
_BY_NAME: Final = {column.name: column for column in COLUMNS}

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
TYPED_VALUE: Final = pa.struct(
    [
        pa.field("t", pa.string()),
        pa.field("s", pa.string()),
        pa.field("i", pa.int64()),
        pa.field("d", pa.float64()),
        pa.field("b", pa.binary()),
        pa.field("json", pa.string()),
    ]
)
_ARROW_HEADERS: Final = {
    MAP: pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())),
    TYPED: pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", TYPED_VALUE)),
    JSON: pa.string(),
}
_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "smallint": pa.int16(),
    "boolean": pa.bool_(),
    "timestamp": TIMESTAMP_TYPE,
}


def column(name: str) -> Column:
    """Return the column called `name`.

    Raises:
        ValueError: there is no such column; the reason names the nearest one.
    """
    found = _BY_NAME.get(name)
    if found is None:
        from difflib import get_close_matches

        near = get_close_matches(name, COLUMN_NAMES, 1)
        raise ValueError(f"no column {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    return found


def arrow_type(name: str, headers_format: str = MAP, body_as: str = BINARY) -> pa.DataType:
    """Return the Arrow type of the column called `name`."""
    _check(headers_format, body_as)
    kind = column(name).spark
    if kind == "headers":
        return _ARROW_HEADERS[headers_format]
    if kind == "body":
        return pa.binary() if body_as == BINARY else pa.string()
    return _ARROW[kind]


def arrow_schema(columns: Sequence[str] | None = None, headers_format: str = MAP, body_as: str = BINARY) -> pa.Schema:
    """Return the Arrow schema of `columns`, in their order; None: all of them.

    Raises:
        ValueError: an unknown column or format.
    """
    _check(headers_format, body_as)
    return pa.schema(
        [
            pa.field(name, arrow_type(name, headers_format, body_as), nullable=_is_nullable(column(name), body_as))
            for name in (COLUMN_NAMES if columns is None else columns)
        ]
    )


def spark_schema(headers_format: str = MAP, body_as: str = BINARY, columns: Sequence[str] | None = None) -> StructType:
    """Return the Spark schema of `columns`, in their order; None: all of them.

    Raises:
        ValueError: an unknown column or format.
    """
    from pyspark.sql import types

    _check(headers_format, body_as)
    string = types.StringType()
    value = types.StructType(
        [
            types.StructField("t", string),
            types.StructField("s", string),
            types.StructField("i", types.LongType()),
            types.StructField("d", types.DoubleType()),
            types.StructField("b", types.BinaryType()),
            types.StructField("json", string),
        ]
    )
    headers = {MAP: types.MapType(string, string), TYPED: types.MapType(string, value), JSON: string}
    kinds: dict[str, DataType] = {
        "string": string,
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "smallint": types.ShortType(),
        "boolean": types.BooleanType(),
        "timestamp": types.TimestampType(),
        "body": types.BinaryType() if body_as == BINARY else string,
        "headers": headers[headers_format],
    }
    return types.StructType(
        [
            types.StructField(found.name, kinds[found.spark], _is_nullable(found, body_as))
            for found in map(column, COLUMN_NAMES if columns is None else columns)
        ]
    )


def _is_nullable(found: Column, body_as: str) -> bool:
    return found.nullable or (found.name == "body" and body_as == STRING)


def _check(headers_format: str, body_as: str) -> None:
    if headers_format not in HEADERS_FORMATS:
        raise ValueError(f"headers format {headers_format!r}: must be one of {', '.join(HEADERS_FORMATS)}")
    if body_as not in BODY_FORMATS:
        raise ValueError(f"body format {body_as!r}: must be one of {', '.join(BODY_FORMATS)}")
