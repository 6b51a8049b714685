"""A leader's promises: until when it serves, and when it is silent (leadership.py)."""

from __future__ import annotations

from unit.cluster.member_node import A, B, C, leader, of

from warren.cluster.events import BeaconAnswered, DiskWaits, SendBeacon, StopServing, Tick


def test_a_leader_serves_for_the_limit_after_sending_what_all_have_answered() -> None:
    node = leader(A, B, C)
    began = node.now
    node.all(Tick(), 0.3)
    node.answered(B, C, after_s=0.5)
    node.all(Tick(), 0.1)
    node.answered(B)  # and C does not: the time of the beacon that both answered counts
    limit = began + 0.3 + 2.0
    assert node.member.serves(limit - 0.001) and not node.member.serves(limit)
    node.now = limit
    assert StopServing() in node.all(Tick())


def test_a_late_answer_to_an_old_beacon_is_worth_what_that_one_is_worth() -> None:
    node = leader(A, B)
    old = node.beacons[-1]
    for _ in range(7):
        node.all(Tick(), 0.25)
    node.all(BeaconAnswered(B, old.epoch, old.number), 0.2)
    assert not node.member.serves(node.now + 0.1)


def test_a_set_of_one_needs_no_promise() -> None:
    node = leader(A)
    assert node.member.serves(node.now + 1e9)


def test_a_leader_whose_disk_hangs_is_silent() -> None:
    node = leader(A, B)
    node.all(DiskWaits(node.now))
    assert of(SendBeacon, node.all(Tick(), 1.9)) != []
    assert of(SendBeacon, node.all(Tick(), 0.3)) == []
