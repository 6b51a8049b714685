"""The lives of a member's own directory: one that was restored neither stands nor leads (own_directory.py)."""

from __future__ import annotations

import dataclasses

import pytest
from unit.cluster.member_node import A, B, C, Node, of, record

from warren.cluster.events import KeepLives, Lead, RecordChanged, RecordRead, Report, Swap, SwapRefused, Tick
from warren.cluster.member import Role
from warren.cluster.record import LeaderBy, Life, Record, Replica, Versioned


def lived(life: str, floor: tuple[int, int] = (5, 8), *in_sync: Replica, least: int = 2, head: Replica = A) -> Record:
    """Return a record that knows a life of B, and how far was committed then."""
    found = record(*(in_sync or (A, B, C)), leader=head, least=least)
    return dataclasses.replace(found, lives=frozenset({Life("b", life)}), floor=floor)


@pytest.mark.parametrize(
    ("life", "floor"), [("an older one", (5, 8)), ("b1", (5, 11)), ("b1", (6, 1)), ("b2", (5, 11)), ("b9", (5, 8))]
)
def test_a_restored_directory_forgets_its_lives_leaves_the_set_and_never_stands(
    life: str, floor: tuple[int, int]
) -> None:
    node = Node(B, lived(life, floor), lives=("b1", "b2", "b3"))
    keep, report, swap = node.last
    assert keep == KeepLives(("b3",)) and isinstance(swap, Swap) and swap.record.in_sync == {A, C}
    assert isinstance(report, Report) and "older than it was: its log ended at LSN 10 of epoch 5" in report.text
    assert node.member.trouble_of_directory() == report.text
    node.all(SwapRefused(swap.number))
    node.all(RecordRead(Versioned(8, lived(life, floor, B, C, head=C))))
    for _ in range(20):
        assert of(Swap, node.all(Tick(), 1.0)) == [], "two have to be in sync, so it stays and does not stand"
    # It has been caught up: the leader has its life on record.
    node.all(RecordRead(Versioned(9, lived("b3", (7, 50), B, C, head=C))))
    assert node.member.trouble_of_directory() == ""
    assert of(Swap, node.all(Tick(), 5.0)) != []


def test_a_restored_node_does_not_lead_by_a_transfer_that_was_under_way() -> None:
    node = Node(B, lived("an older one", (5, 8)), lives=("b1", "b2"))
    handed_over = lived("an older one", (5, 8), A, B, head=B)
    handed_over = dataclasses.replace(handed_over, epoch=6, by=LeaderBy.TRANSFER)
    assert of(Lead, node.all(RecordChanged(Versioned(8, handed_over)))) == []
    assert node.member.role is Role.FOLLOWING


@pytest.mark.parametrize(("life", "kept"), [("b1", ()), ("b2", ("b2", "b3")), ("b3", ("b3",))])
def test_a_directory_that_knows_its_life_stands_and_forgets_those_before(life: str, kept: tuple[str, ...]) -> None:
    node = Node(B, lived(life), lives=("b1", "b2", "b3"))
    assert of(KeepLives, node.last) == ([KeepLives(kept)] if kept else [])
    node.beacon()
    swap = node.one(Swap, Tick(), 3.1)
    assert swap.record.life_of(B) == "b3"


def test_a_directory_is_compared_with_the_floor_at_the_start_only() -> None:
    node = Node(B, lived("b1", (5, 8)), lives=("b1", "b2"))
    assert of(KeepLives, node.all(RecordChanged(Versioned(8, lived("b1", (5, 800)))))) == []
    assert node.member.trouble_of_directory() == ""
    # A late change may add it with an earlier life.
    assert of(KeepLives, node.all(RecordChanged(Versioned(9, lived("b0", (5, 800)))))) == [KeepLives(("b2",))]
    assert node.member.trouble_of_directory() != ""


def test_a_record_without_lives_is_that_of_an_older_version_and_gets_none_in_a_take_over() -> None:
    node = Node(B, record(A, B, C), lives=("b1",))
    assert of(KeepLives, node.last) == []
    node.beacon()
    assert node.one(Swap, Tick(), 3.1).record.lives == frozenset()
