"""Acks at the source follow the confirms of the destination, and never run ahead of them."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest

from warren.amqp_client.channel import Confirm
from warren.links.transfer import SPARE_CONFIRMS, SettlementWindow


def window(*tags: int) -> SettlementWindow:
    made = SettlementWindow()
    for sequence, tag in enumerate(tags, 1):
        made.published(sequence, tag)
    return made


def test_a_cumulative_confirm_settles_all_up_to_it() -> None:
    made = window(11, 12, 13)
    made.confirmed(Confirm(2, True, True))
    assert made.settle() == (12, 2)
    assert made.settle() == (0, 0)
    assert len(made) == 1


def test_a_confirm_out_of_order_waits_for_those_before_it() -> None:
    made = window(11, 12, 13)
    made.confirmed(Confirm(3, False, True))
    made.confirmed(Confirm(2, False, True))
    assert made.settle() == (0, 0)
    made.confirmed(Confirm(1, False, True))
    assert made.settle() == (13, 3)


def test_what_is_not_forwarded_settles_with_what_comes_before_it() -> None:
    made = SettlementWindow()
    made.published(1, 11)
    made.skipped(12)
    assert made.settle() == (0, 0)
    made.confirmed(Confirm(1, False, True))
    assert made.settle() == (12, 1)
    made.skipped(13)
    assert made.settle() == (13, 0)


def test_a_refused_publish_is_given_back_and_holds_up_nothing() -> None:
    made = window(11, 12, 13, 14)
    made.confirmed(Confirm(1, False, True))
    assert made.refused(Confirm(2, True, False)) == [12]
    made.confirmed(Confirm(4, True, True))
    assert made.settle() == (14, 3)


def test_confirms_that_come_again_are_not_kept() -> None:
    made = window(*range(1, 1001))
    for sequence in range(1, 1001):
        made.confirmed(Confirm(sequence, False, True))
    assert made.settle() == (1000, 1000)
    for sequence in range(1, 1001):
        made.confirmed(Confirm(sequence, False, True))
        made.settle()
    assert len(made._single) <= SPARE_CONFIRMS


def test_single_confirms_wait_for_the_one_before_them() -> None:
    made = window(*range(1, 1001))
    for sequence in range(2, 1001):
        made.confirmed(Confirm(sequence, False, True))
        assert made.settle() == (0, 0)
    made.confirmed(Confirm(1, True, True))
    assert made.settle() == (1000, 1000)


@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_settled_before_it_and_all_before_it_are_confirmed(seed: int) -> None:
    chance = random.Random(seed)
    made, confirmed, returned = SettlementWindow(), set[int](), set[int]()
    last = acked = 0
    for _ in range(100):
        action = chance.random()
        if action < 0.5 or last == len(confirmed | returned):
            last += 1
            made.published(last, last * 10)
        elif action < 0.6:
            refused = chance.randint(1, last)
            if refused not in confirmed | returned:
                assert made.refused(Confirm(refused, False, False)) == [refused * 10], f"seed {seed}"
                returned.add(refused)
        elif action < 0.8:
            one = chance.choice([number for number in range(1, last + 1) if number not in confirmed | returned])
            made.confirmed(Confirm(one, False, True))
            confirmed.add(one)
        else:
            up_to = chance.randint(1, last)
            made.confirmed(Confirm(up_to, True, True))
            confirmed |= {*range(1, up_to + 1)} - returned
        tag, _ = made.settle()
        acked = max(acked, tag // 10)
        assert {*range(1, acked + 1)} <= confirmed | returned, f"seed {seed}"
        assert acked + 1 not in confirmed, f"seed {seed}: nothing settled is left waiting"


def lines_to_refuse(count: int) -> int:
    """Return how many lines run when each of `count` publishes is refused, the newest first."""
    made, lines = window(*range(1, count + 1)), 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for sequence in range(count, 0, -1):
            assert made.refused(Confirm(sequence, False, False)) == [sequence]
    finally:
        sys.settrace(before)
    return lines


def test_a_refusal_costs_the_same_however_many_publishes_wait() -> None:
    assert lines_to_refuse(1000) < 3 * lines_to_refuse(500)
