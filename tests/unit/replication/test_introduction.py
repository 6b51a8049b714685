"""A leader's answer to a follower that introduces itself (introduction.py)."""

from __future__ import annotations

from typing import Any

import pytest

from warren.replication.handshake import Refused
from warren.replication.introduction import StoreOfLeader

GOOD: dict[str, Any] = {"store": "5f" * 16, "epoch": 7, "min_in_sync": 2, "level": 3}


def test_a_leader_says_which_store_it_leads_and_since_which_epoch() -> None:
    store = StoreOfLeader(GOOD)
    assert (store.store_id, store.epoch, store.min_in_sync, store.level) == (b"\x5f" * 16, 7, 2, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"store": "no digits"},
        {"store": "5f"},
        {"store": ""},
        {"store": 5},
        {"store": None},
        {"epoch": -1},
        {"epoch": 1 << 32},
        {"epoch": True},
        {"epoch": "7"},
        {"epoch": None},
        {"min_in_sync": -1},
        {"min_in_sync": 1.5},
    ],
)
def test_an_answer_that_makes_no_sense_is_a_refusal(wrong: dict[str, Any]) -> None:
    """(3): the follower says why it does not follow, and tries again later; it does not end."""
    with pytest.raises(Refused):
        StoreOfLeader(GOOD | wrong)
    with pytest.raises(Refused):
        StoreOfLeader({name: value for name, value in GOOD.items() if name not in wrong})
