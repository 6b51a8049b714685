"""The names of claim queues: queues.claim_names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.queues.claim_names import claims_name, is_claims_name

NAMES = st.text(st.sampled_from("ab/%~2Fü"), max_size=6) | st.text(min_size=100, max_size=255)


def test_a_name_can_be_read() -> None:
    assert claims_name("orders", "loader") == "amq.drain/orders/loader"
    assert claims_name("a/b", "c~d%") == "amq.drain/a%2Fb/c%7Ed%25"


@pytest.mark.parametrize("letter", ["x", "ü", "/", "€"])
def test_a_name_that_would_be_too_long_ends_in_a_digest(letter: str) -> None:
    one, other = claims_name(letter * 255, "y" * 254 + "a"), claims_name(letter * 255, "y" * 254 + "b")
    assert one != other
    for name in (one, other):
        assert 250 < len(name.encode()) <= 255 and name.rpartition("~")[2].isalnum()


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_drains_never_have_one_name(queue: str, consumer: str, other_queue: str, other_consumer: str) -> None:
    name = claims_name(queue, consumer)
    assert is_claims_name(name) and len(name.encode()) <= 255
    if (queue, consumer) != (other_queue, other_consumer):
        assert name != claims_name(other_queue, other_consumer)
