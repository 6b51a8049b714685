"""The size of a batch; limits.py (1), (2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warren.spark_bridge.limits import shares, within_bytes

backlogs = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 100), max_size=8)


@given(backlogs, st.integers(1, 300), st.integers(0, 20))
def test_a_batch_is_as_full_as_it_may_be_and_no_fuller(waiting: dict[str, int], most: int, turn: int) -> None:
    given_rows = shares(waiting, most, turn)
    assert sum(given_rows.values()) == min(most, sum(waiting.values()))
    assert all(0 < rows <= waiting[name] for name, rows in given_rows.items())


@given(backlogs, st.integers(8, 300))
def test_who_has_little_is_read_whole_and_the_others_share_alike(waiting: dict[str, int], most: int) -> None:
    given_rows = shares(waiting, most)
    cut = [rows for name, rows in given_rows.items() if rows < waiting[name]]
    if cut:
        assert max(given_rows.values()) - min(cut) <= 1


def test_with_fewer_rows_than_streams_everybody_has_his_turn() -> None:
    waiting = dict.fromkeys("abcde", 10) | {"e": 1}
    seen = {name for turn in range(5) for name in shares(waiting, 2, turn)}
    assert seen == set("abcde")


@given(
    st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(1, 50), min_size=1, max_size=20), max_size=5),
    st.integers(1, 300),
    st.integers(0, 10),
)
def test_a_batch_has_no_more_bytes_than_it_may_unless_it_is_one_message(
    sizes: dict[str, list[int]], most: int, turn: int
) -> None:
    def plan(name: str, rows: int, room: int) -> tuple[int, int]:
        fit = 1
        while fit < rows and sum(sizes[name][: fit + 1]) <= room:
            fit += 1
        return fit, sum(sizes[name][:fit])

    found = within_bytes({name: len(each) for name, each in sizes.items()}, most, plan, turn)
    total = sum(sum(sizes[name][:rows]) for name, rows in found.items())
    assert total <= most or sum(found.values()) == 1
    assert bool(found) == bool(sizes)
    assert all(rows >= 1 for rows in found.values())
