"""Filters that the reader takes over leave what Spark would leave; filters.py (1), (2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from unit.spark_bridge.broker_in_memory import MemoryBroker, options_for, ranges
from warren.spark_bridge.batch import FilteringReader
from warren.spark_bridge.schema import spark_schema

START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
KEYS = ("", "a", "ab", "b.c", "é", "\U0001f600")
NAMES = ("queue", "partition", "offset", "timestamp", "exchange", "routing_key")

texts = st.sampled_from((*KEYS, "orders", "other", "x"))
numbers = st.integers(-2, 25) | st.sampled_from([1 << 40, -(1 << 62)])
times = st.integers(-2, 25).map(lambda seconds: START + timedelta(seconds=seconds, microseconds=seconds % 3))
values: dict[str, st.SearchStrategy[Any]] = dict(
    zip(NAMES, (texts, numbers, numbers, times, texts, texts), strict=True)
)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(NAMES))
    value = values[name]
    kinds = [EqualTo, EqualNullSafe, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual]
    kind: Any = draw(st.sampled_from([*kinds, In, StringStartsWith, StringEndsWith, StringContains]))
    if kind is In:
        made = In((name,), tuple(draw(st.lists(value, max_size=4))))
    elif kind in (StringStartsWith, StringEndsWith, StringContains):
        name = draw(st.sampled_from(["queue", "exchange", "routing_key"]))
        made = kind((name,), draw(texts))
    else:
        made = kind((name,), draw(value))
    return Not(made) if draw(st.booleans()) else made


def holds(row: dict[str, Any], asked: Filter) -> bool:
    """Say what Spark would say of a row."""
    if isinstance(asked, Not):
        return not holds(row, asked.child)
    value = row[asked.attribute[0]]  # type: ignore[attr-defined]
    other = asked.value  # type: ignore[attr-defined]
    if isinstance(value, str) and not isinstance(asked, In):
        value, other = value.encode(), other.encode()
    match asked:
        case EqualTo() | EqualNullSafe():
            found = value == other
        case LessThan():
            found = value < other
        case LessThanOrEqual():
            found = value <= other
        case GreaterThan():
            found = value > other
        case GreaterThanOrEqual():
            found = value >= other
        case In():
            found = value in other
        case StringStartsWith():
            found = value.startswith(other)
        case StringEndsWith():
            found = value.endswith(other)
        case _:
            found = other in value
    return bool(found)


def broker_with_messages() -> MemoryBroker:
    broker = MemoryBroker()
    stream = broker.stream()
    for number in range(22):
        # The clock is set back once.
        seconds = number if number < 12 else number - 5
        key = KEYS[number % len(KEYS)]
        stream.add(1, exchange=KEYS[number // 8], routing_key=key, time_ms=1_700_000_000_000 + 1000 * seconds)
    broker.stream("other", 3)
    return broker


def rows(broker: MemoryBroker, asked: list[Filter], columns: str = ",".join(NAMES)) -> list[dict[str, Any]]:
    """Return the rows that are left when Spark has applied the filters it got back."""
    options = options_for(broker, streaming=False, subscribe="orders,other", columns=columns)
    reader = FilteringReader(options, spark_schema(columns=options.columns), "load")
    back = list(reader.pushFilters(asked))
    assert all(any(each is one for one in asked) for each in back)
    found = [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
    return [row for row in found if all(holds(row, each) for each in back)]


@settings(deadline=None)
@given(st.lists(filters(), max_size=3))
def test_a_filter_that_is_taken_over_leaves_what_spark_would_leave(asked: list[Filter]) -> None:
    broker = broker_with_messages()
    everything = rows(broker, [])
    assert len(everything) == 25
    assert rows(broker, asked) == [row for row in everything if all(holds(row, each) for each in asked)]


@pytest.mark.parametrize(
    "asked",
    [
        EqualTo(("body",), b"x"),
        EqualTo(("headers", "queue"), "x"),
        EqualTo(("offset",), None),
        EqualTo(("offset",), 5.0),
        EqualTo(("offset",), True),
        EqualTo(("timestamp",), datetime(2023, 1, 1)),  # without a zone it is another type
        EqualTo(("queue",), 5),
        In(("offset",), (1, None)),
        LessThan(("routing_key",), "b"),
        StringStartsWith(("offset",), "1"),
        IsNotNull(("offset",)),
        Not(IsNotNull(("offset",))),
    ],
)
def test_what_could_come_out_otherwise_is_left_to_spark(asked: Filter) -> None:
    options = options_for(MemoryBroker(), streaming=False)
    reader = FilteringReader(options, spark_schema(), "load")
    assert list(reader.pushFilters([asked])) == [asked]


def test_what_a_filter_rules_out_is_not_even_fetched() -> None:
    broker = broker_with_messages()
    options = options_for(broker, streaming=False, subscribe="orders,other")
    reader = FilteringReader(options, spark_schema(), "load")
    assert list(reader.pushFilters([EqualTo(("queue",), "orders"), GreaterThan(("offset",), 9)])) == []
    assert ranges(reader.partitions()) == [("orders", 10, 22)]
    assert list(reader.pushFilters([LessThanOrEqual(("offset",), 1), Not(EqualTo(("queue",), "x"))])) == []
    assert ranges(reader.partitions()) == [("orders", 0, 2), ("other", 0, 2)]
    assert list(reader.pushFilters([In(("offset",), (7, 3))])) == []
    assert ranges(reader.partitions()) == [("orders", 3, 8)]
    assert list(reader.pushFilters([EqualTo(("partition",), 1)])) == []
    assert reader.partitions() == []
