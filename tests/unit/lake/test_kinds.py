"""Which values a column takes, and what a column becomes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from warren.lake import kinds
from warren.lake.kinds import JsonText, Rounded, Unfit


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (kinds.BOOLEAN, True, True),
        (kinds.INT, -(2**31), -(2**31)),
        (kinds.LONG, 2**63 - 1, 2**63 - 1),
        (kinds.LONG, 3.0, 3),
        (kinds.DOUBLE, 3, 3.0),
        (kinds.DOUBLE, 2**53, 2.0**53),
        (kinds.FLOAT, 0.5, 0.5),
        (kinds.FLOAT, -(2**24), -(2.0**24)),
        (kinds.FLOAT, 3.4028235e38, 3.4028235e38),
        (kinds.FLOAT, 1e-45, 1e-45),
        (kinds.FLOAT, 0.0, 0.0),
        (kinds.FLOAT, float("-inf"), float("-inf")),
        (kinds.STRING, "a", "a"),
        (kinds.STRING, {"a": [1, None]}, '{"a":[1,null]}'),
        (kinds.STRING, JsonText('{"a": 1.0}'), '{"a": 1.0}'),
        (kinds.LONG, 1e18, 10**18),
        (kinds.DATE, "2026-11-24", date(2026, 11, 24)),
        (kinds.TIMESTAMP, "2026-11-24T01:00:00+01:00", datetime(2026, 11, 24, tzinfo=UTC)),
        (kinds.TIMESTAMP, "2026-11-24t00:00:00Z", datetime(2026, 11, 24, tzinfo=UTC)),
    ],
)
def test_a_column_takes_what_it_has_exactly(kind: str, value: Any, taken: Any) -> None:
    found = kinds.taken(kind, value)
    assert found == taken and type(found) is type(taken)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (kinds.BOOLEAN, 1),
        (kinds.INT, 2**31),
        (kinds.INT, True),
        (kinds.LONG, 2**63),
        (kinds.LONG, 1.5),
        (kinds.LONG, 1e300),
        (kinds.LONG, Rounded(1.0)),
        (kinds.TIMESTAMP, JsonText('["2026-11-24T00:00:00Z"]')),
        (kinds.LONG, "1"),
        (kinds.DOUBLE, 2**53 + 1),
        (kinds.FLOAT, 2**24 + 1),
        (kinds.FLOAT, 3.4028236e38),
        (kinds.FLOAT, -1e300),
        (kinds.FLOAT, -(2.0**-150)),
        (kinds.FLOAT, 1e-60),
        (kinds.DOUBLE, False),
        (kinds.DOUBLE, float("inf")),
        (kinds.STRING, 1),
        (kinds.STRING, True),
        (kinds.DATE, "2026-11-24T00:00:00Z"),
        (kinds.TIMESTAMP, "2026-11-24"),
        (kinds.TIMESTAMP, "2026-11-24T00:00:00"),
        (kinds.TIMESTAMP, "0001-01-01T00:00:00+23:00"),
        (kinds.TIMESTAMP, 5),
    ],
)
def test_a_column_refuses_what_it_would_have_to_change(kind: str, value: Any) -> None:
    with pytest.raises(Unfit):
        kinds.taken(kind, value)


def test_a_new_column_of_integers_and_others_is_one_of_doubles() -> None:
    assert kinds.joined(kinds.kind_of_value(1), 2.5) == kinds.DOUBLE
    assert kinds.joined(kinds.kind_of_value(2.5), 1) == kinds.DOUBLE


@pytest.mark.parametrize(("first", "then"), [(1, "a"), ("a", 1), (True, 1), (1, True), ("a", False), (2.5, "a")])
def test_a_new_column_is_what_its_first_value_is(first: Any, then: Any) -> None:
    with pytest.raises(Unfit):
        kinds.joined(kinds.kind_of_value(first), then)


def test_every_kind_is_found_again_by_its_type() -> None:
    assert [kinds.kind_of_type(kinds.ARROW[kind]) for kind in kinds.ARROW] == list(kinds.ARROW)
