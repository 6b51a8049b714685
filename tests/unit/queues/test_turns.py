"""Lines of tasks that wait for their turn: which is first, which have left, and which may stand again."""

from __future__ import annotations

import random

import pytest

from warren.queues.turns import COMPACT_MIN, Line, Waiter


def test_who_was_sent_away_may_stand_in_a_line_again() -> None:
    line, other = Line(), Line()
    waiters = [Waiter() for _ in range(3)]
    for waiter in waiters:
        line.join(waiter)
    line.clear()
    assert line.count() == 0 and line.take_first() is None
    for waiter in waiters:
        other.join(waiter)
    assert [other.take_first() for _ in range(4)] == [*waiters, None]


def test_who_stands_in_another_line_is_not_sent_away() -> None:
    line, other = Line(), Line()
    moved, stays = Waiter(), Waiter()
    for waiter in (moved, stays):
        line.join(waiter)
    line.leave(moved)
    other.join(moved)
    line.clear()
    assert moved.line is other and stays.line is None
    assert other.take_first() is moved


@pytest.mark.parametrize("seed", range(8))
def test_a_line_serves_in_the_order_in_which_they_came(seed: int) -> None:
    """Against a list; at times many waiters leave, so that the line is compacted."""
    rng = random.Random(seed)
    line, standing = Line(), list[Waiter]()
    for _ in range(40 * COMPACT_MIN):
        match rng.choice(("join", "join", "leave", "leave", "take", "back")):
            case "join":
                for _ in range(rng.choice((1, 1, COMPACT_MIN))):
                    standing.append(Waiter())
                    line.join(standing[-1])
            case "leave" if standing:
                waiter = standing.pop(rng.randrange(len(standing)))
                line.leave(waiter)
                assert waiter.line is None
            case "take":
                taken = line.take_first()
                assert taken is (standing.pop(0) if standing else None)
            case "back" if standing:
                first = line.take_first()
                assert first is standing[0] and first.line is None
                line.put_first(first)
        assert line.count() == len(standing)
        assert all(waiter.line is line for waiter in standing)
    assert [line.take_first() for _ in range(len(standing) + 1)] == [*standing, None]
