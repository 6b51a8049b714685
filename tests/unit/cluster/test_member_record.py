"""A leader and etcd: a record that changed, is gone or is older, and leading while etcd is away (record_view.py)."""

from __future__ import annotations

import pytest
from unit.cluster.member_node import A, B, C, leader, of, record

from warren.cluster.events import (
    BeaconReceived,
    EpochRefused,
    Event,
    LinkLost,
    Objected,
    Position,
    Read,
    ReadFailed,
    RecordChanged,
    RecordRead,
    Report,
    Restart,
    StopServing,
    Swap,
    SwapRefused,
    SwapUnknown,
    Tick,
)
from warren.cluster.member import Role
from warren.cluster.record import Record, Versioned, removed, taken_over


@pytest.mark.parametrize(
    "event",
    [
        RecordChanged(Versioned(99, record(B, C, leader=B, epoch=7))),
        BeaconReceived(B, 7, 1),
        EpochRefused(B, 7),
        Objected(C, Position(5, 40)),
    ],
)
def test_a_leader_that_learns_of_a_greater_epoch_or_of_what_it_lacks_restarts(
    event: Event,
) -> None:
    node = leader(A, B, C)
    actions = node.all(event)
    assert [type(action) for action in actions] == [StopServing, Restart]
    assert node.all(Tick(), 1.0) == [] and not node.member.serves(node.now)


def test_a_leader_goes_on_for_hours_without_etcd_while_all_answer() -> None:
    node = leader(A, B, C)
    for _ in range(4 * 3600):
        node.all(Tick(), 0.26)
        node.answered(B, C)
        assert node.member.serves(node.now)
    assert of(Swap, node.last) == []


def test_a_leader_without_the_answers_it_needs_reads_the_record_again_and_ends_when_another_one_leads() -> None:
    node = leader(A, B, least=2)
    known = record(A, B, epoch=6, least=2)
    began = node.now
    node.answered(B)
    for _ in range(3):
        while not of(Read, node.all(Tick(), 0.25)):
            assert node.now < began + 10.0
        assert not node.member.serves(node.now)
        node.all(RecordRead(Versioned(node.revision, known)))
    node.answered(B)
    assert node.member.serves(node.now)
    for _ in range(40):
        assert not of(Read, node.all(Tick(), 0.25))
        node.answered(B)
    taken = taken_over(known, B, 6)
    assert isinstance(taken, Record)
    while not of(Read, node.all(Tick(), 0.25)):
        pass
    assert of(Restart, node.all(RecordRead(Versioned(node.revision + 1, taken))))


def test_a_replica_that_leaves_while_etcd_is_away_stops_service_until_etcd_is_back() -> None:
    node = leader(A, B, C)
    swap = node.one(Swap, LinkLost(C))
    node.all(SwapUnknown(swap.number))
    for _ in range(40):
        for action in node.all(Tick(), 0.26):
            if isinstance(action, Read):
                node.all(ReadFailed())
        node.answered(B)
    assert not node.member.serves(node.now)
    node.one(Read, Tick(), 0.26)
    (again,) = of(Swap, node.all(RecordRead(Versioned(node.revision, record(A, B, C, epoch=6)))))
    assert again.record == removed(record(A, B, C, epoch=6), A, 6, C)
    node.done(again)
    assert node.member.serves(node.now)


@pytest.mark.parametrize("found", [None, Versioned(3, record(A, B, C, epoch=6))])
def test_a_leader_whose_record_is_gone_or_older_asks_etcd_now_and_then(found: Versioned | None) -> None:
    """Each of its proposals would be refused, and be made again as soon as etcd has answered."""
    node = leader(A, B, C)
    swap = node.one(Swap, LinkLost(C))
    assert Read() in node.all(SwapRefused(swap.number))
    for _ in range(20):
        actions = node.all(RecordRead(found))
        assert of(Swap, actions) == [] and of(Read, actions) == []
        for _ in range(4):
            assert of(Read, node.last) == [] and of(Swap, node.last) == []
            node.all(Tick(), 0.065)
            node.answered(B)
            if of(Read, node.last):
                break
    assert node.member.role is Role.LEADING
    (again,) = of(Swap, node.all(RecordChanged(Versioned(30, record(A, B, C, epoch=6)))))
    assert again.record.in_sync == {A, B}


def test_a_record_of_an_older_epoch_is_reported_and_changes_nothing() -> None:
    node = leader(A, B)
    actions = node.all(RecordChanged(Versioned(99, record(A, B, epoch=3))))
    assert "backup" in of(Report, actions)[0].text and node.member.serves(node.now)
