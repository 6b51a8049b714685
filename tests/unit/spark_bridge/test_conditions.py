"""Conditions on rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.conditions import parse
from warren.spark_bridge.schema import TIMESTAMP_TYPE

ROWS = pa.RecordBatch.from_pydict(
    {
        "routing_key": ["a.b", "c", "a_b", "it's"],
        "priority": pa.array([1, None, 5, 0], pa.int16()),
        "redelivered": [True, False, True, False],
        "timestamp": pa.array([datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)], TIMESTAMP_TYPE),
        "body": pa.array([b"x", b"yy", b"'", b""], pa.binary()),
        "offset": [0, 1, 2, 3],
    }
)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("routing_key = 'c'", [1]),
        ("routing_key == 'c'", [1]),
        ("ROUTING_KEY <> 'c'", [0, 2, 3]),
        ("routing_key != 'c'", [0, 2, 3]),
        ("routing_key like 'a.%'", [0]),
        ("routing_key LIKE 'a_b'", [0, 2]),
        (r"routing_key like 'a\_b'", [2]),
        ("routing_key not like 'a%'", [1, 3]),
        ("routing_key = 'it''s'", [3]),
        ("offset >= 1 and offset < 3", [1, 2]),
        ("offset > 2 or offset <= 0", [0, 3]),
        ("offset > 0 and offset < 2 or offset = 3", [1, 3]),
        ("offset > 0 and (offset < 2 or offset = 3)", [1, 3]),
        ("not offset > 0", [0]),
        ("not not offset > 0", [1, 2, 3]),
        ("offset in (1, 3, 99999999999)", [1, 3]),
        ("offset not in (1,3)", [0, 2]),
        ("offset = -1", []),
        ("redelivered", [0, 2]),
        ("not redelivered", [1, 3]),
        ("redelivered = false", [1, 3]),
        ("timestamp >= '2026-01-02' and timestamp < '2026-01-03T01:00:00+01:00'", [1]),
        ("timestamp in ('2026-01-04T00:00:00Z')", [3]),
        ("body = ''''", [2]),
        ("body in ('x', 'yy')", [0, 1]),
        # Nulls are neither true nor false.
        ("priority > 0", [0, 2]),
        ("not priority > 0", [3]),
        ("priority in (1, 70000)", [0]),
        ("priority not in (1)", [2, 3]),
        ("priority is null", [1]),
        ("priority is not null and redelivered", [0, 2]),
        ("priority > 0 or redelivered = false", [0, 1, 2, 3]),
        ("not (priority > 0 and redelivered)", [1, 3]),
        ("priority > 70000", []),
        # Any number of conditions.
        ("offset > 0" + " and offset < 3" * 3000, [1, 2]),
        ("offset = 1" + " or offset = 9" * 3000 + " or offset = 3", [1, 3]),
    ],
)
def test_rows_for_which_it_is_true_stay(text: str, offsets: list[int]) -> None:
    assert parse(text).rows_of(ROWS).column("offset").to_pylist() == offsets


def test_it_says_which_columns_it_asks() -> None:
    assert parse("priority > 1 and (redelivered or priority is null)").columns == {"priority", "redelivered"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends too early"),
        ("offset =", "ends too early"),
        ("offset", "ends too early"),
        ("offset = 1 2", "not understood: '2'"),
        ("offset = 1 and", "ends too early"),
        ("(offset = 1", "ends too early"),
        ("offset = 1)", r"not understood: '\)'"),
        ("offset ~ 1", "not understood: '~ 1'"),
        ("= 1", "not understood: '= 1'"),
        ("rooting_key = 'a'", "did you mean 'routing_key'"),
        ("routing_key = 5", "routing_key cannot be compared with 5"),
        ("routing_key = null", "routing_key cannot be compared with null"),
        ("offset = '5'", "offset cannot be compared with '5'"),
        ("offset = 1.5", "offset cannot be compared with 1.5"),
        ("offset = 99999999999999999999", "offset cannot be compared"),
        ("timestamp > 'noon'", "timestamp cannot be compared with 'noon'"),
        ("offset like 'a'", "not understood"),
        ("offset not", "ends too early"),
        ("routing_key like x", "not understood: 'x'"),
        ("routing_key in ()", "cannot be compared"),
        ("headers = 'x'", "--engine spark"),
        ("routing_key = 'open", "not understood"),
        ("not " * 60 + "redelivered", "nested deeper"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse(text)
