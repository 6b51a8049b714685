"""Helper functions around the data source that users would otherwise write themselves.

1. Everything works on batches and streams alike, except functions that look at data when they are called:
   `infer_json_schema` reads a sample.
2. Nothing here needs more of Warren than the rest of this package.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.claims import Claims
from warren.spark_bridge.offsets import STREAMS, positions_of
from warren.spark_bridge.source import FORMAT, PushingDataSource, WarrenDataSource
from warren.spark_bridge.typed_bodies import (
    BodyFormat,
    avro_format,
    protobuf_format,
    reader_of,
    struct_array,
    with_reason,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from warren.spark_bridge.schema_registry import SchemaRegistry

PUSHDOWN_CONF: Final = "spark.sql.python.filterPushdown.enabled"
PACKAGES: Final = ("spark_bridge", "lake")  # that executors need; the second one for `warren lake --engine spark`
SAMPLE_ROWS: Final = 1000
_VARIANT_CHARACTERS: Final = 4 << 20
# Without going back: Java's stack does not hold a step for each character of a long text.
_STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
_NUMBER: Final = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_NOT_ZERO: Final = r"^-?[0.]*[1-9]"
# What a body has, in any place, with a number that may be lost: in any column, in one of floats, times, decimals.
_TINY: Final = r"[eE]-\d{3}|0{200}"
_SMALL: Final = r"[eE]-\d{2}|0{30}"
_FAR: Final = r"\d{13}"
_FRACTION: Final = r"\d\.\d|\d[eE][-+]?\d"
_SECONDS_MAX: Final = 9_223_372_036_854  # of a time: its microseconds have 64 bits
_DECIMAL_DIGITS: Final = 38
ON_CORRUPT: Final = ("null", "fail", "dead_letter")
_DEATHS: Final = "array<struct<count:bigint,reason:string,queue:string,exchange:string,`routing-keys`:array<string>>>"


def register(spark: SparkSession, *, pushdown: bool = False, ship: bool | None = None) -> None:
    """Make the format "warren" known to a session.

    `pushdown`: have Spark push filters down to the reader. Only where no data frame is used twice: Spark 4.3 keeps
    pushed-down filters in the frame, so ``frame.where(...)`` makes a later ``frame.count()`` count only the rest.
    `ship`: send this package to the executors; None: when they are not on this machine. Executors that have it
    installed use the one that was sent.
    """
    if pushdown:
        spark.conf.set(PUSHDOWN_CONF, "true")
    if ship is None:
        ship = not str(spark.conf.get("spark.master", "local")).startswith("local")
    if ship:
        archive = make_archive(Path(tempfile.mkdtemp(prefix="warren-spark-")))
        spark.sparkContext.addPyFile(str(archive))
    spark.dataSource.register(PushingDataSource if pushdown else WarrenDataSource)


def make_archive(directory: Path) -> Path:
    """Write all that executors need of this package to a zip file in `directory`, for ``--py-files`` and the like."""
    whole = Path(__file__).parent.parent
    archive = directory / "warren_spark_bridge.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(whole / "__init__.py", "warren/__init__.py")
        for package in PACKAGES:
            for source in sorted((whole / package).glob("*.py")):
                file.write(source, f"warren/{package}/{source.name}")
    return archive


def read(spark: SparkSession, queue: str, options: Mapping[str, object] | None = None, **more: Any) -> DataFrame:
    """Return a batch: the messages of a queue, or of several with commas between; options in a mapping or by name."""
    return spark.read.format(FORMAT).options(**_options(queue, options, more)).load()


def read_stream(spark: SparkSession, queue: str, options: Mapping[str, object] | None = None, **more: Any) -> DataFrame:
    """Return the same for a streaming query."""
    return spark.readStream.format(FORMAT).options(**_options(queue, options, more)).load()


def view(
    spark: SparkSession, name: str, *, queue: str, options: Mapping[str, object] | None = None, **more: Any
) -> DataFrame:
    """Make the messages of a queue a temporary view for SQL, and return it.

    For ``CREATE TABLE ... USING warren`` Spark drops the options; ``CREATE TEMPORARY VIEW`` does not.
    """
    frame = read(spark, queue, options, **more)
    frame.createOrReplaceTempView(name)
    return frame


def _options(queue: str, options: Mapping[str, object] | None, more: Mapping[str, object]) -> dict[str, str]:
    given = {"subscribe": queue, **(options or {}), **more}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def with_json(
    frame: DataFrame,
    schema: StructType | str,
    *,
    into: str = "value",
    corrupt: str = "_corrupt",
    on_corrupt: str = "null",
    claims: Claims | None = None,
) -> DataFrame:
    """Return `frame` with its bodies as JSON of `schema` in a struct column `into`.

    JSON has no bytes, so a body that is not UTF-8 is corrupt as well. So is an empty one, one with anything behind the
    object, one that has a name twice in an object, and one with NaN. So is one with a number that its column does not
    have: that would become infinite, or 0, or lose digits of a decimal, or become another time. `on_corrupt`:
    what becomes of such a body. ``null``: it is null but for the field `corrupt`, which has its text. ``fail``: what
    evaluates the frame fails. ``dead_letter``: it is left out, and dead-lettered by its queue when the query
    acknowledges it; for frames that drain, whose session is `claims`.

    Raises:
        UsageError: dead_letter without claims, or of a frame that does not say which messages its rows are of.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType, _parse_datatype_string

    parsed = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise ValueError(f"the schema of a JSON object is a struct, not {parsed.simpleString()}")
    wanted = StructType(parsed.fields)
    if corrupt not in wanted.fieldNames():
        wanted = wanted.add(corrupt, StringType())
    how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    how |= {"allowNonNumericNumbers": "false", "allowSingleQuotes": "false"}
    body = F.col("body").cast("string")
    found = F.from_json(body, wanted, how)
    nothing = F.struct(
        *(
            (body if field.name == corrupt else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in wanted.fields
        )
    )
    value = F.when(F.coalesce(_is_loose(body, found, wanted), F.lit(True)), nothing).otherwise(found)
    return _settled(frame, value, into, corrupt, on_corrupt, claims, F.lit("is no JSON of the schema"))


def _is_loose(body: Column, found: Column, schema: StructType) -> Column:
    """Tell whether Spark takes a body for JSON that is not, or whether `found` lacks something of it."""
    from pyspark.sql import functions as F

    # Spark reads up to the end of the first value. In an array that ends with an unguessable text the rest is seen,
    # and a variant has each name once.
    end = uuid4().hex
    array = F.concat(F.lit("["), body, F.lit(f',"{end}"]'))
    whole = F.try_parse_json(array)
    is_one = (
        F.try_variant_get(whole, "$[1]", "string").eqNullSafe(end) & F.try_variant_get(whole, "$[2]", "string").isNull()
    )
    # Too large for a variant and invalid look the same. Of a large one it is only seen whether something follows.
    is_large = (F.length(body) > _VARIANT_CHARACTERS) & whole.isNull()
    is_large_one = (
        is_large & F.json_array_length(array).eqNullSafe(2) & F.get_json_object(array, "$[1]").eqNullSafe(end)
    )
    infinite = _maybe_infinite(found, schema)
    lost = _maybe_lost(body, found, schema)
    loose = (F.trim(body) == "") | ~(is_one | is_large_one)
    more = [each for each in (infinite, lost) if each is not None]
    return reduce(lambda one, other: one | other, more, loose | _is_tiny(body))


def _is_tiny(body: Column) -> Column:
    """Tell whether a number of a body is not 0, and as a double is: Spark gives 0 for it in columns of all types."""
    from pyspark.sql import functions as F

    outside = F.regexp_replace(body, _STRING, '""')
    numbers = F.regexp_extract_all(outside, F.lit(_NUMBER), F.lit(0))
    return body.rlike(_TINY) & F.exists(numbers, lambda each: each.rlike(_NOT_ZERO) & (each.cast("double") == 0))


def _maybe_lost(body: Column, found: Column, schema: StructType) -> Column | None:
    """Tell whether a number of a body is another one in `found`; None: `schema` has no columns where it can be.

    Bodies with such digits are parsed again, with types that lose less.
    """
    from pyspark.sql import functions as F

    digits: set[str] = set()
    wider = _wider(schema, digits)
    if not digits:
        return None
    again = F.from_json(body, wider, {"mode": "PERMISSIVE"})
    changed = F.exists(F.array(again), lambda each: _is_changed(found, each, schema))
    return body.rlike("|".join(sorted(digits))) & F.coalesce(changed, F.lit(False))


def _wider(kind: DataType, digits: set[str]) -> Any:
    """Return a type for a second look at numbers, and add to `digits` what a body has where they may be lost."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        fields = types.StructType()
        for field in kind.fields:
            fields = fields.add(field.name, _wider(field.dataType, digits))
        return fields
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_wider(kind.elementType, digits))
    if isinstance(kind, types.MapType):
        return types.MapType(kind.keyType, _wider(kind.valueType, digits))
    if isinstance(kind, types.FloatType):
        digits.add(_SMALL)
        return types.DoubleType()
    if isinstance(kind, types.TimestampType):
        digits.add(_FAR)
        return types.StringType()
    if isinstance(kind, types.DecimalType):
        digits.add(_FRACTION)
        return types.DecimalType(_DECIMAL_DIGITS, _DECIMAL_DIGITS - (kind.precision - kind.scale))
    return kind


def _is_changed(value: Column, again: Column, kind: DataType) -> Column:
    """Tell whether a value of a type is another number than `again`, which has the type that `_wider` returns."""
    from pyspark.sql import functions as F
    from pyspark.sql import types

    changed = F.lit(False)
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            changed = changed | _is_changed(value[field.name], again[field.name], field.dataType)
    elif isinstance(kind, types.MapType):
        changed = _is_changed(F.map_values(value), F.map_values(again), types.ArrayType(kind.valueType))
    elif isinstance(kind, types.ArrayType):
        pairs = F.zip_with(value, again, lambda one, other: _is_changed(one, other, kind.elementType))
        changed = F.exists(pairs, lambda each: each)
    elif isinstance(kind, types.FloatType):
        changed = (value == 0) & (again != 0)
    elif isinstance(kind, types.TimestampType):
        changed = again.rlike(r"^-?\d+$") & (F.abs(again.cast("decimal(38,0)")) > _SECONDS_MAX)
    elif isinstance(kind, types.DecimalType):
        changed = value != again
    return F.coalesce(changed, F.lit(False))


def _maybe_infinite(value: Column, kind: DataType) -> Column | None:
    """Tell whether a number in `value` is infinite, which JSON has none of; None: it has no such numbers."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

    if isinstance(kind, DoubleType | FloatType):
        return F.coalesce(F.abs(value) == float("inf"), F.lit(False))
    if isinstance(kind, StructType):
        each = [_maybe_infinite(value[field.name], field.dataType) for field in kind.fields]
        found = [one for one in each if one is not None]
        return reduce(lambda one, other: one | other, found) if found else None
    if isinstance(kind, MapType):
        return _maybe_infinite(F.map_values(value), ArrayType(kind.valueType))
    if isinstance(kind, ArrayType):
        of_items = kind.elementType
        if _maybe_infinite(F.lit(None), of_items) is None:
            return None

        def is_infinite(item: Column) -> Column:
            found = _maybe_infinite(item, of_items)
            assert found is not None
            return found

        return F.coalesce(F.exists(value, is_infinite), F.lit(False))
    return None


def with_avro(
    frame: DataFrame,
    schema: str | Path | None = None,
    *,
    registry: SchemaRegistry | str | None = None,
    subject: str | None = None,
    into: str = "value",
    corrupt: str = "_corrupt",
    on_corrupt: str = "null",
    claims: Claims | None = None,
) -> DataFrame:
    """Return `frame` with its bodies as Avro in a struct column `into`.

    `schema`: that of the column, as JSON or a file with it; None: the newest one of `subject`. With a `registry` bodies
    begin with the number of their schema, as Confluent's serializers write it; without one they are exactly as `schema`
    says. `on_corrupt` as of `with_json`; the field `corrupt` gives the reason.

    Raises:
        UsageError: the schema is invalid, or has no columns. BrokerError: the registry does not answer.
    """
    form = avro_format(schema, registry=registry, subject=subject)
    return _typed(frame, form, into, corrupt, on_corrupt, claims)


def with_protobuf(
    frame: DataFrame,
    message: str | None = None,
    descriptors: bytes | Path | None = None,
    *,
    registry: SchemaRegistry | str | None = None,
    subject: str | None = None,
    into: str = "value",
    corrupt: str = "_corrupt",
    on_corrupt: str = "null",
    claims: Claims | None = None,
) -> DataFrame:
    """Return `frame` with its bodies as messages of Protobuf in a struct column `into`.

    `message`: the full name of one in `descriptors`, a file or its content, as of ``protoc --include_imports
    --descriptor_set_out``; None: those of the newest schema of `subject`, of which the first message is taken if none
    is named. With a `registry` bodies begin as Confluent's serializers write them. `on_corrupt` as of `with_json`; the
    field `corrupt` gives the reason.

    Raises:
        UsageError: there is no such message, or it has no columns. BrokerError: the registry does not answer.
    """
    form = protobuf_format(message, descriptors, registry=registry, subject=subject)
    return _typed(frame, form, into, corrupt, on_corrupt, claims)


def _typed(
    frame: DataFrame, form: BodyFormat, into: str, corrupt: str, on_corrupt: str, claims: Claims | None
) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf  # which needs no pandas
    from pyspark.sql.pandas.types import from_arrow_type

    kind = from_arrow_type(with_reason(form.reader().schema, corrupt))

    def read_bodies(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        reader = reader_of(form)
        for bodies in batches:
            yield struct_array(reader, bodies, corrupt)

    make: Any = arrow_udf
    value = make(read_bodies, kind)(F.col("body").cast("binary"))
    what = F.concat(F.lit(f"is no {form.name} of the schema: "), F.col(into)[corrupt])
    return _settled(frame, value, into, corrupt, on_corrupt, claims, what)


def _settled(
    frame: DataFrame,
    value: Column,
    into: str,
    corrupt: str,
    on_corrupt: str,
    claims: Claims | None,
    what: Column,
) -> DataFrame:
    """Return `frame` with `value` in the column `into`; `on_corrupt` is for those whose field `corrupt` is set."""
    from pyspark.sql import functions as F

    if on_corrupt not in ON_CORRUPT:
        raise UsageError(f"on_corrupt {on_corrupt!r}: must be one of {', '.join(ON_CORRUPT)}")
    with_value = frame.withColumn(into, value)
    is_bad = F.col(into)[corrupt].isNotNull()
    if on_corrupt == "fail":
        where = [F.col(name).cast("string") if name in frame.columns else F.lit("?") for name in ("offset", "queue")]
        text = F.format_string("the body of the message with offset %s of queue %s %s", *where, what)
        return with_value.withColumn(into, F.when(is_bad, F.raise_error(text)).otherwise(F.col(into)))
    if on_corrupt != "dead_letter":
        return with_value
    if claims is None:
        raise UsageError("on_corrupt dead_letter: claims says which session has them, as in claims=Claims('nightly')")
    return claims.without(with_value, is_bad)


def lag_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many offsets each stream has after the position of a query, as ``query.lastProgress`` says.

    Drains, and other sources, are left out: the waiting messages of a queue are not in the progress.
    """
    found: dict[str, int] = {}
    for source in progress["sources"]:
        latest, end = (_maybe_offset(source[name]) for name in ("latestOffset", "endOffset"))
        if latest is None or end is None:
            continue
        read_up_to = positions_of(end)
        for name, position in positions_of(latest).items():
            at = read_up_to.get(name)
            is_same = at is not None and at.id == position.id
            found[name] = max(0, position.next - (at.next if at is not None and is_same else 0))
    return found


def _maybe_offset(value: object) -> Mapping[str, Any] | None:
    """Return the offset of this source's streams from a progress; None: it is an offset of another kind."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    return found if isinstance(found, Mapping) and STREAMS in found else None


def infer_json_schema(
    spark: SparkSession,
    queue: str,
    *,
    rows: int = SAMPLE_ROWS,
    options: Mapping[str, object] | None = None,
    **more: Any,
) -> StructType:
    """Return the schema that fits the JSON in the first `rows` bodies of a queue, which stay in the queue.

    Bodies that are not JSON objects are skipped: `with_json` has a column for them.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    sample = read(spark, queue, {"columns": "body", "bodyAs": "string", **(options or {})}, **more)
    # A name that no body has, or the column could not be told from theirs.
    corrupt = f"_corrupt_{uuid4().hex}"
    found = spark.read.option("columnNameOfCorruptRecord", corrupt).json(sample.limit(rows)).schema
    kept: dict[str, StructField] = {}
    for field in found.fields:
        if field.name == corrupt:
            continue
        same = kept.setdefault(field.name, field)
        if same.dataType != field.dataType:  # of bodies that have the name twice, which `with_json` does not take
            kept[field.name] = StructField(field.name, StringType())
    return StructType(list(kept.values()))


def to_kafka_shape(frame: DataFrame) -> DataFrame:
    """Return the columns of Spark's Kafka source: the routing key is the key, the queue the topic.

    `headers` is there when `frame` has them, as map.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import MapType, StringType

    columns = [
        F.col("routing_key").cast("binary").alias("key"),
        F.col("body").cast("binary").alias("value"),
        F.col("queue").alias("topic"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        F.lit(1).alias("timestampType"),  # the broker's time, not the producer's
    ]
    if "headers" in frame.columns:
        kind = frame.schema["headers"].dataType
        if not (isinstance(kind, MapType) and isinstance(kind.valueType, StringType)):
            raise ValueError("headers of Kafka are texts: read with headersFormat map, or without headers")
        columns.append(F.transform(F.map_entries("headers"), _kafka_header).alias("headers"))
    return frame.select(*columns)


def _kafka_header(entry: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value"))


def with_deaths(frame: DataFrame) -> DataFrame:
    """Return `frame` with `dlx_reason`, `dlx_count`, `dlx_queue`: why, how often and in which queue it died last."""
    from pyspark.sql import functions as F

    last = F.from_json(F.col("headers")["x-death"], _DEATHS)[0]
    return frame.withColumns({f"dlx_{field}": last[field] for field in ("reason", "count", "queue")})


def dlq_summary(frame: DataFrame) -> DataFrame:
    """Return how many messages of a dead letter queue died in which queue and for which reason, the most first.

    Columns: dlx_queue, dlx_reason, messages, deaths (some died several times), first_seen, last_seen.
    """
    from pyspark.sql import functions as F

    return (
        with_deaths(frame)
        .groupBy("dlx_queue", "dlx_reason")
        .agg(
            F.count("*").alias("messages"),
            F.sum("dlx_count").alias("deaths"),
            F.min("timestamp").alias("first_seen"),
            F.max("timestamp").alias("last_seen"),
        )
        .orderBy(F.col("messages").desc(), "dlx_queue", "dlx_reason")
    )
