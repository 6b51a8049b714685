"""How far a query is behind, by its progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from warren.spark_bridge import lag_of
from warren.spark_bridge.offsets import CLAIMS, Position, document, sentinel


def progress(latest: Any, end: Any) -> dict[str, Any]:
    return {"sources": [{"latestOffset": latest, "endOffset": end}]}


def test_the_lag_of_each_stream_is_what_is_behind_the_query() -> None:
    end = document({"a": Position("i", 5), "b": Position("old", 50)})
    latest = document({"a": Position("i", 12), "b": Position("new", 7), "c": Position("j", 3)})
    for form in (dict, json.dumps):
        assert lag_of(progress(form(latest), form(end))) == {"a": 7, "b": 7, "c": 3}
    assert lag_of(progress(end, latest))["a"] == 0  # it was looked at before


def test_what_is_not_ours_has_no_lag() -> None:
    ours = document({"a": Position("i", 5)})
    drained = document({"a": Position("i", 5)}, CLAIMS)
    for latest, end in ((None, ours), (ours, None), ("7", "5"), ("x", "y"), (drained, drained), (ours, sentinel("x"))):
        assert lag_of(progress(latest, end)) == {}
