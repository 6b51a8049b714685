"""How much of what a vhost has one user may take."""

from __future__ import annotations

import random

import pytest

from warren.vhosts.user_shares import UserShares


def taken(shares: UserShares, user: str) -> int:
    while shares.allows(user, 1):
        shares.add(user, 1)
    shares.check_invariants()
    return shares.used(user)


def test_one_user_gets_three_quarters_and_something_is_left_for_each_that_comes() -> None:
    shares = UserShares(1024)
    assert [taken(shares, user) for user in "abcd"] == [768, 192, 48, 12]
    shares.add("a", -768)
    assert taken(shares, "d") > 500


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_given_than_there_is(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    shares = UserShares(chance.randint(1, 200))
    for _ in range(500):
        user, amount = chance.choice("abc"), chance.randint(1, 20)
        if chance.random() < 0.3:
            shares.add(user, -min(amount, shares.used(user)))
        elif shares.allows(user, amount):
            shares.add(user, amount)
        assert 0 <= shares.total <= shares.most
        shares.check_invariants()
