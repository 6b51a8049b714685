"""A set of places, against a set of numbers."""

from __future__ import annotations

from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.queues.bit_set import BitSet

# Of words and tops the first, the last, and those beside them.
NUMBERS = st.one_of(
    st.integers(0, 5000), st.sampled_from([0, 31, 32, 1023, 1024, 1055, 1056, 32767, 32768, 65535, 100_000])
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.booleans(), NUMBERS), max_size=60), st.lists(NUMBERS, min_size=1, max_size=10))
def test_the_next_place_is_found_from_anywhere(changes: list[tuple[bool, int]], starts: list[int]) -> None:
    places = BitSet()
    plain: set[int] = set()
    for added, number in changes:
        if added:
            places.add(number)
            plain.add(number)
        else:
            places.discard(number)
            plain.discard(number)
    for start in [*starts, *[number + 1 for _, number in changes]]:
        assert places.next_from(start) == min((number for number in plain if number >= start), default=-1)
    places.clear()
    assert places.next_from(0) == -1
