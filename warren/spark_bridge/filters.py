"""Conditions of a query that the reader applies itself: less is fetched, less is decoded, less goes to Spark.

1. The reader takes over a condition only if its result is exactly as in Spark for every message; Spark applies the
   others. All columns that can be tested here are never null.
2. Conditions on queue, partition and offset leave out messages before they are fetched. Those on timestamp, exchange
   and routing_key are tested before bodies and properties are decoded. A timestamp does not leave out offsets: if a
   clock was set back, messages are older than those before them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from warren.spark_bridge.columns import Chunk, Context, to_record_batches
from warren.spark_bridge.schema import arrow_schema

if TYPE_CHECKING:
    from warren.spark_bridge.pieces import Range

_TEXTS: Final = ("queue", "exchange", "routing_key")
_NUMBERS: Final = ("partition", "offset")
_TIMES: Final = ("timestamp",)
_OF_CHUNKS: Final = ("timestamp", "exchange", "routing_key")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX: Final = (1 << 63) - 1

_COMPARED: Final[dict[type, str]] = {
    LessThan: "less",
    LessThanOrEqual: "less_equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
}
_MATCHED: Final[dict[type, str]] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "match_substring",
}
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "equal": operator.eq,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "is_in": lambda value, values: value in values,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "match_substring": lambda value, part: part in value,
}


class Condition(NamedTuple):
    """`test` of `column` and `value`, or not that. Times are us since the epoch."""

    column: str
    test: str
    value: Any
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """Tell whether it is so for `value`."""
        return _OPERATORS[self.test](value, self.value) != self.negated

    def mask(self, column: pa.Array) -> pa.Array:
        """Return for which values it is so."""
        if self.test == "is_in":
            found = pc.is_in(column, value_set=pa.array(list(self.value), column.type))
        elif self.test in _MATCHED.values():
            found = getattr(pc, self.test)(column, self.value)
        else:
            found = getattr(pc, self.test)(column, pa.scalar(self.value, column.type))
        return pc.invert(found) if self.negated else found


def maybe_condition(asked: Filter) -> Condition | None:
    """Return the condition that `asked` is; None: Spark has to apply it."""
    if isinstance(asked, Not):
        found = maybe_condition(asked.child)
        return None if found is None else found._replace(negated=not found.negated)
    column = ".".join(getattr(asked, "attribute", ()))
    if column not in (*_TEXTS, *_NUMBERS, *_TIMES):
        return None
    if isinstance(asked, In):
        values = [_maybe_value(column, each) for each in asked.value]
        return None if any(each is None for each in values) else Condition(column, "is_in", tuple(values))
    value = _maybe_value(column, getattr(asked, "value", None))
    if value is None:
        return None
    if isinstance(asked, EqualTo | EqualNullSafe):
        return Condition(column, "equal", value)
    if type(asked) in _MATCHED:
        return Condition(column, _MATCHED[type(asked)], value) if column in _TEXTS else None
    if type(asked) in _COMPARED:
        # Texts are ordered by bytes in Spark and by code points in Python.
        return None if column in _TEXTS else Condition(column, _COMPARED[type(asked)], value)
    return None


def _maybe_value(column: str, value: object) -> str | int | None:
    """Return a value as the column has it; None for anything else."""
    if column in _TEXTS:
        return value if isinstance(value, str) else None
    if column in _TIMES:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _INT64_MAX:
        return None
    return value


class Filters:
    """Conditions all of which have to hold."""

    def __init__(self, conditions: Iterable[Condition]) -> None:
        self.conditions = tuple(conditions)
        self._of_chunks = tuple(each for each in self.conditions if each.column in _OF_CHUNKS)
        self._of_offsets = tuple(each for each in self.conditions if each.column == "offset")

    def may_have(self, queue: str, partition: int) -> bool:
        """Tell whether rows of this queue and partition can pass."""
        values: dict[str, object] = {"queue": queue, "partition": partition}
        return all(each.holds(values[each.column]) for each in self.conditions if each.column in values)

    def narrowed(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the part of `ranges` left by queue, partition and offset: all rows that pass are in there."""
        made = []
        for each in ranges:
            if not self.may_have(each.queue, each.partition):
                continue
            first, end = each.first, each.end
            for condition in self._of_offsets:
                low, high = _bounds(condition, end)
                first, end = max(first, low), min(end, high)
            if first < end:
                made.append(each._replace(first=first, end=end))
        return made

    def batches(
        self, chunk: Chunk, schema: pa.Schema, context: Context, *, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `chunk` that pass, as ``to_record_batches`` does."""
        asked = [*self._of_chunks, *self._of_offsets]
        if not asked:
            yield from to_record_batches(chunk, schema, context, first=first, end=end)
            return
        light = arrow_schema(list(dict.fromkeys(each.column for each in asked)))
        masks = [_mask(batch, asked) for batch in to_record_batches(chunk, light, context, first=first, end=end)]
        mask = pa.concat_arrays(masks) if masks else pa.array([], pa.bool_())
        passed = mask.true_count
        if passed == 0:
            return
        at = 0
        for batch in to_record_batches(chunk, schema, context, first=first, end=end):
            if passed == len(mask):
                yield batch
            else:
                kept = batch.filter(mask.slice(at, batch.num_rows))
                if kept.num_rows:
                    yield kept
            at += batch.num_rows


def _mask(batch: pa.RecordBatch, conditions: Iterable[Condition]) -> pa.Array:
    found = None
    for condition in conditions:
        column = batch.column(condition.column)
        if condition.column in _TIMES:
            column = column.cast(pa.int64())
        mask = condition.mask(column)
        found = mask if found is None else pc.and_(found, mask)
    return found


def _bounds(condition: Condition, end: int) -> tuple[int, int]:
    """Return offsets [low, high) between which all are for which `condition` of the offset holds."""
    test, value = condition.test, condition.value
    if condition.negated:
        turned = {"less": "greater_equal", "less_equal": "greater", "greater": "less_equal", "greater_equal": "less"}
        if test not in turned:
            return 0, end
        test = turned[test]
    if test == "equal":
        return value, value + 1
    if test == "is_in":
        return (min(value), max(value) + 1) if value else (0, 0)
    if test in ("less", "less_equal"):
        return 0, value + (test == "less_equal")
    return value + (test == "greater"), end
