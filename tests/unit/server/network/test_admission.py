"""Connections that have not logged in: their counts, and the silent ones that make room. admission (1), (3) to (5)."""

from __future__ import annotations

import random
from typing import Final

from warren.server.network.admission import GRACE_S, PATIENCE_S, STEPS_MAX, Admission, Crowds

HERE: Final = "127.0.0.1"
NOW_S: Final = 100.0


def full(*addresses: str, per_block_max: int = 1000, descriptors_below: int = 1 << 20) -> Admission:
    """Return one that is full with connections from these addresses, 0 and up."""
    made = Admission(len(addresses), per_block_max, 1000, descriptors_below)
    for descriptor, address in enumerate(addresses):
        assert made.enter(address, descriptor, NOW_S + descriptor / 100)
    return made


def test_the_oldest_silent_one_of_the_network_with_most_makes_room() -> None:
    admission = full("198.51.100.1", "192.0.2.1", "192.0.2.2", "203.0.113.1")
    assert not admission.enter("198.51.100.9", 4, NOW_S)
    assert admission.maybe_loser("198.51.100.9", 4, NOW_S + 1) == 1
    admission.leave(1)
    assert admission.maybe_loser("198.51.100.9", 4, NOW_S + 1) is None, "there is a place"
    assert admission.enter("198.51.100.9", 4, NOW_S + 1)
    assert admission.maybe_loser("192.0.2.9", 5, NOW_S + 2) == 0, "of that network there are two now"


def test_a_peer_that_has_sent_something_makes_room_after_those_that_have_not_and_after_a_while() -> None:
    admission = full(HERE, HERE, HERE)
    admission.heard(0, NOW_S + 5, has_to_wait=False)
    admission.heard(1, NOW_S + 5, has_to_wait=True)
    assert admission.maybe_loser(HERE, 9, NOW_S + 6) == 2
    admission.leave(2)
    assert admission.enter(HERE, 2, NOW_S + 6)
    admission.heard(2, NOW_S + 6, has_to_wait=False)
    assert admission.maybe_loser(HERE, 9, NOW_S + 5 + PATIENCE_S / 2) is None
    assert admission.maybe_loser(HERE, 9, NOW_S + 5 + PATIENCE_S) == 0
    admission.heard(0, NOW_S + 5 + PATIENCE_S / 2, has_to_wait=False)
    assert admission.maybe_loser(HERE, 9, NOW_S + 5 + PATIENCE_S) == 0, "it sends byte for byte"
    admission.heard(0, NOW_S + 7, has_to_wait=True)
    admission.heard(0, NOW_S + 7, has_to_wait=False)
    assert admission.maybe_loser(HERE, 9, NOW_S + 6 + PATIENCE_S) == 2, "0 has begun another step"
    for descriptor in (0, 2):
        admission.heard(descriptor, NOW_S + 7, has_to_wait=True)
    assert admission.maybe_loser(HERE, 9, NOW_S + 1000) is None, "their logins are being checked"
    assert not admission.enter(HERE, 9, NOW_S + 1000)


def test_a_peer_that_has_taken_too_many_steps_no_longer_becomes_younger() -> None:
    admission = full(HERE)
    for step in range(STEPS_MAX + 10):
        admission.heard(0, NOW_S + step, has_to_wait=True)
        admission.heard(0, NOW_S + step, has_to_wait=False)
    assert admission.maybe_loser(HERE, 9, NOW_S + STEPS_MAX + 9) == 0
    admission.leave(0)
    assert admission.enter(HERE, 0, NOW_S + 100)
    admission.heard(0, NOW_S + 100, has_to_wait=True)
    assert admission.maybe_loser(HERE, 9, NOW_S + 200) is None, "another connection with its descriptor"


def test_a_newcomer_of_a_smaller_network_need_not_wait() -> None:
    admission = full(*["192.0.2.1"] * 4, "198.51.100.1")
    for descriptor in range(4):
        admission.heard(descriptor, NOW_S + 1, has_to_wait=False)
    assert admission.maybe_loser("192.0.2.9", 9, NOW_S + 1) == 4, "it is silent"
    admission.heard(4, NOW_S + 1, has_to_wait=True)
    assert admission.maybe_loser("192.0.2.9", 9, NOW_S + 1) is None
    assert admission.maybe_loser("203.0.113.1", 9, NOW_S + 1) == 0
    assert admission.maybe_loser("198.51.100.2", 9, NOW_S + 1) == 0
    admission.heard(2, NOW_S + 1, has_to_wait=True)
    admission.heard(3, NOW_S + 1, has_to_wait=True)
    assert admission.maybe_loser("198.51.100.2", 9, NOW_S + 1) is None, "that would be as large"
    assert admission.maybe_loser("203.0.113.1", 9, NOW_S + 1) == 0


def test_one_that_waits_for_us_makes_room_for_a_smaller_network_only() -> None:
    admission = full(*["192.0.2.1"] * 3, "198.51.100.1")
    for descriptor in range(4):
        admission.heard(descriptor, NOW_S + 1, has_to_wait=True)
    assert admission.maybe_loser("192.0.2.9", 9, NOW_S + 1000) is None, "its own network waits"
    assert admission.maybe_loser("203.0.113.1", 9, NOW_S + 1) == 0
    admission.heard(0, NOW_S + 2, has_to_wait=False)
    assert admission.maybe_loser("203.0.113.1", 9, NOW_S + 2) == 1
    admission.leave(1)
    admission.leave(2)
    assert admission.enter("192.0.2.1", 1, NOW_S + 2)
    assert admission.maybe_loser("203.0.113.1", 9, NOW_S + 2) is None, "there is a place"


def test_of_a_crowded_network_its_own_make_room() -> None:
    admission = Admission(100, 2, 1000)
    for descriptor, address in enumerate(["192.0.2.1", "192.0.2.2", "198.51.100.1"]):
        assert admission.enter(address, descriptor, NOW_S)
    assert admission.maybe_loser("198.51.100.2", 3, NOW_S + 1) is None
    assert admission.maybe_loser("192.0.2.3", 3, NOW_S + GRACE_S / 2) is None
    assert admission.maybe_loser("192.0.2.3", 3, NOW_S + 1) == 0


def test_when_descriptors_run_short_a_silent_one_makes_room() -> None:
    admission = Admission(100, 100, 1000, descriptors_below=5)
    assert admission.maybe_loser("192.0.2.3", 7, NOW_S) is None
    assert admission.enter("192.0.2.1", 4, NOW_S)
    assert admission.maybe_loser("192.0.2.3", 4, NOW_S + 1) is None
    assert admission.maybe_loser("192.0.2.3", 5, NOW_S + 1) == 4


def test_the_largest_crowd_is_known_after_any_changes() -> None:
    seed = 20261129
    rng = random.Random(seed)
    crowds = Crowds()
    members: dict[str, dict[int, float]] = {}
    for step in range(5000):
        block, descriptor = rng.choice("abcde"), rng.randrange(12)
        crowd = members.setdefault(block, {})
        if rng.random() < 0.5:
            crowds.add(block, descriptor, step)
            crowd.setdefault(descriptor, step)
        else:
            crowds.remove(block, descriptor)
            crowd.pop(descriptor, None)
        for name, expected in members.items():
            assert crowds.maybe_oldest(name, step) == next(iter(expected), None), f"seed {seed}, step {step}"
        largest = max(map(len, members.values()))
        assert crowds.largest == largest, f"seed {seed}, step {step}"
        oldest = [next(iter(each)) for each in members.values() if len(each) == largest > 0]
        found = crowds.maybe_oldest(None, step)
        assert found in oldest if oldest else found is None, f"seed {seed}, step {step}"
