"""The effects of the answers to a pre-vote (pre_vote.py)."""

from __future__ import annotations

import pytest

from warren.cluster.events import Position, Standing
from warren.cluster.pre_vote import PreVote, positions
from warren.cluster.record import LeaderBy, Record, Replica

A, B, C = (Replica(node, f"{node}1") for node in "abc")
NOTHING = Position(0, 0)


def record(*in_sync: Replica, least: int = 2, drained: str = "") -> Record:
    names = frozenset("abc")
    return Record("s", 5, A, LeaderBy.TAKE_OVER, frozenset(in_sync), names, least, drained=frozenset(drained))


def vote(**told: Standing) -> PreVote:
    found = PreVote(1, frozenset("abc"), 10.0)
    for replica in (A, B, C):
        if replica.node in told:
            found.take(replica.node, replica, told[replica.node])
    return found


@pytest.mark.parametrize(("least", "others", "enough"), [(1, 0, True), (2, 0, False), (2, 1, True), (3, 1, False)])
def test_as_many_others_as_a_commit_needs_have_to_answer(least: int, others: int, enough: bool) -> None:
    """(1)"""
    found = vote()
    for node in ("a", "c")[:others]:
        found.take(node, None, None)  # of a version that says nothing of its log
    assert found.reaches(record(A, B, C, least=least)) is enough
    assert found.ahead(NOTHING) is None


@pytest.mark.parametrize(
    ("position", "committed", "is_ahead"),
    [
        (Position(5, 100), Position(5, 100), False),
        (Position(5, 99), Position(5, 100), True),
        (Position(4, 900), Position(5, 100), True),
        (Position(6, 50), Position(5, 100), False),
    ],
)
def test_a_node_that_has_as_committed_what_is_not_here_is_ahead(
    position: Position, committed: Position, is_ahead: bool
) -> None:
    """(2)"""
    found = vote(a=Standing(Position(9, 9), NOTHING), c=Standing(Position(5, 500), committed))
    assert found.ahead(position) == ((C, committed) if is_ahead else None)


def test_the_one_that_has_most_is_named() -> None:
    """(2)"""
    found = vote(a=Standing(Position(5, 8), Position(5, 7)), c=Standing(Position(5, 9), Position(5, 8)))
    ahead = found.ahead(Position(5, 1))
    assert ahead is not None and ahead.replica == C
    assert positions(found.told) == "c has LSN 9 of epoch 5, a has LSN 8 of epoch 5"


def test_longer_logs_of_the_set_stand_first_and_of_equal_ones_the_first_by_name() -> None:
    """(3)"""
    same, longer = Standing(Position(5, 10), NOTHING), Standing(Position(5, 11), NOTHING)
    assert vote(a=same, c=longer).rank(record(A, B, C), B, Position(5, 10)) == 2
    assert vote(a=longer, c=longer).rank(record(B, C), B, Position(5, 10)) == 1
    assert vote(c=longer).rank(record(B, C, drained="c"), B, Position(5, 10)) == 0


def test_it_is_decided_when_all_have_answered_or_were_given_their_time() -> None:
    found = vote()
    assert not found.is_ready(10.4, 0.5) and found.is_ready(10.5, 0.5)
    found.is_over = True
    assert found.is_ready(10.0, 0.5)
    assert PreVote(2, frozenset(), 10.0).is_ready(10.0, 0.5)
