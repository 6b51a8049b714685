"""JSON in pieces: together they say what was meant, and none of them is long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.mgmt_plugin.http.json_pieces import RUN, TEXT, Rows, json_pieces

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=40) | st.just("\udce9" * 3),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=5), inner, max_size=80),
    max_leaves=200,
)


@given(VALUES)
def test_the_pieces_together_say_the_same(value: Any) -> None:
    assert json.loads(b"".join(json_pieces(value))) == value


@pytest.mark.parametrize(
    "value",
    [
        [{"name": f"q{at}", "arguments": {}, "size": at} for at in range(10_000)],
        {"items": [{"payload": "x" * 2_000_000}], "more": False},
        ["é" * 500_000, "\udce9" * 500_000, '"\\\n' * 100_000],
        {f"key{at}": at for at in range(100_000)},
        list(range(100_000)),
        [[list(range(1000))] * 100],
    ],
)
def test_no_piece_is_long(value: Any) -> None:
    pieces = list(json_pieces(value))
    assert json.loads(b"".join(pieces)) == value
    assert max(map(len, pieces)) <= 6 * TEXT  # the longest form of a character
    assert len(pieces) > 30


def test_few_short_values_are_one_piece() -> None:
    for value in ({}, [], "", None, {"a": [1, 2, {"b": "c"}]}, [{"name": "q"}] * RUN):
        assert len(list(json_pieces(value))) == 1


def test_rows_are_described_when_their_turn_comes_and_left_out_when_they_have_gone() -> None:
    described: list[int] = []

    def describe(item: int) -> dict[str, int]:
        described.append(item)
        return {"n": item}

    gone: set[int] = set()
    rows = Rows(range(6), describe, gone.__contains__)
    pieces = json_pieces({"rows": rows, "count": 1})
    taken = b""
    while b'{"n":1}' not in taken:
        taken += next(pieces)
    assert described == [0, 1]
    gone |= {1, 2, 5}
    assert json.loads(taken + b"".join(pieces)) == {"rows": [{"n": n} for n in (0, 1, 3, 4)], "count": 1}
    assert rows.count == 4


def test_a_list_of_no_rows_is_a_list() -> None:
    for nothing in (Rows([], str), Rows([1], str, lambda item: True)):
        assert b"".join(json_pieces(nothing)) == b"[]"
