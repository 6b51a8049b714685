"""The JSON in checkpoints; offsets.py (1), (2), (3)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.spark_bridge.offsets import (
    CLAIMS,
    STREAMS,
    OffsetError,
    Position,
    begin,
    document,
    is_sentinel,
    positions_of,
    sentinel,
)

offsets = st.integers(0, 1 << 62)
positions = st.builds(
    Position,
    id=st.text(max_size=5),
    next=offsets,
    base=st.none() | offsets,
    lost=offsets,
    queue=st.none() | st.text(min_size=1, max_size=5),
    partition=st.just(0),
    claims=st.none() | st.text(min_size=1, max_size=5),
)


@given(st.dictionaries(st.text(max_size=5), positions, max_size=5), st.sampled_from([STREAMS, CLAIMS]))
def test_an_offset_says_the_same_after_a_checkpoint(found: dict[str, Position], kind: str) -> None:
    text = json.dumps(document(found, kind))
    again = positions_of(json.loads(text), kind)
    assert again == found
    assert json.dumps(document(again, kind)) == text


@given(st.permutations(["c", "a", "b"]))
def test_the_same_places_make_the_same_text(names: list[str]) -> None:
    made = {name: Position("i", 5) for name in names}
    expected = '{"v": 1, "p": {"a": {"id": "i", "next": 5}, "b": {"id": "i", "next": 5}, "c": {"id": "i", "next": 5}}}'
    assert json.dumps(document(made)) == expected


def test_before_the_first_batch_nothing_is_said_of_the_broker() -> None:
    assert sentinel("latest") == {"v": 1, "init": "latest"}
    assert is_sentinel(sentinel("latest")) and not is_sentinel(document({}))
    assert positions_of(sentinel("latest")) == {}


def test_an_offset_of_another_version_or_mode_is_refused() -> None:
    with pytest.raises(OffsetError, match="version 2"):
        positions_of({"v": 2, "p": {}})
    with pytest.raises(OffsetError, match="version None"):
        positions_of({"orders": {"0": 5}})
    with pytest.raises(OffsetError, match="drains queues"):
        positions_of(document({}, CLAIMS))
    with pytest.raises(OffsetError, match="reads streams"):
        positions_of(document({}), CLAIMS)
    with pytest.raises(OffsetError, match="cannot be read"):
        positions_of({"v": 1, "p": {"a": {"id": "x"}}})


def test_a_batch_begins_where_the_one_before_ended_unless_its_own_end_says_otherwise() -> None:
    assert begin("a", Position("i", 9), Position("i", 4)) == 4
    assert begin("a", Position("i", 9, base=6), Position("i", 4)) == 6
    assert begin("a", Position("i", 9, base=6), None) == 6
    with pytest.raises(OffsetError, match="where 'a' begins"):
        begin("a", Position("i", 9), None)
    with pytest.raises(OffsetError, match="where 'a' begins"):
        begin("a", Position("j", 9), Position("i", 4))
