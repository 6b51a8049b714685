"""How much the cyclic collector looks at in one go. The numbers in parentheses: ``cyclic_collector.py``."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from warren.server.cyclic_collector import (
    FULL_S,
    OVERDUE_S,
    PAUSE_S,
    YOUNG_OBJECTS,
    YOUNG_ROUNDS,
    FullCollections,
    bound_collector,
    collect_lately,
    full_collections,
    pause_collector,
)

# The most objects that a collection requested by `collect_lately` looks at.
LATELY = YOUNG_OBJECTS * (YOUNG_ROUNDS + 3)


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector of the test's process as it was: with what `conftest` has frozen out of its sight."""
    thresholds = gc.get_threshold()
    bound_collector()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()
    gc.freeze()


def test_however_much_comes_and_stays_what_is_looked_at_is_bounded() -> None:
    """(2)"""
    kept: list[list[int]] = []
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    try:
        for number in range(10 * LATELY):
            kept.append([number])
        collect_lately(time.monotonic(), quiet=False)
    finally:
        gc.callbacks.remove(note)
    assert len(looked_at) > YOUNG_ROUNDS
    assert max(looked_at) <= LATELY


class Knot:
    """A cycle."""

    def __init__(self) -> None:
        self.me = self


def test_a_cycle_is_found_while_it_is_young_and_when_the_broker_is_quiet() -> None:
    """(2)"""
    quiet = weakref.ref(Knot())
    assert quiet() is not None
    collect_lately(time.monotonic(), quiet=False)
    assert quiet() is None
    busy = weakref.ref(Knot())
    kept = [[number] for number in range(2 * YOUNG_OBJECTS)]
    assert busy() is None
    assert kept


def test_nothing_is_looked_at_while_the_broker_starts() -> None:
    """(4)"""
    pause_collector()
    knot = weakref.ref(Knot())
    kept = [[number] for number in range(2 * YOUNG_OBJECTS)]
    assert knot() is not None
    bound_collector()
    assert gc.isenabled()
    assert kept


def aged(made: Knot) -> weakref.ref[Knot]:
    """Make a cycle grow old, so that only a full collection finds it; return a reference to it."""
    for _ in range(2):
        gc.collect(1)
    assert made in gc.get_objects(2)
    return weakref.ref(made)


def test_a_cycle_that_lived_long_is_found_when_the_broker_is_quiet() -> None:
    """(5)"""
    begun_s = time.monotonic()
    full = FullCollections()
    old = aged(Knot())
    full.look(begun_s + 2 * OVERDUE_S, quiet=True)
    assert old() is not None, "nothing is done before the broker has started"
    full.begin()
    full.look(begun_s + FULL_S / 2, quiet=True)
    full.look(begun_s + 2 * FULL_S, quiet=False)
    assert old() is not None and full.count == 0
    full.look(begun_s + 2 * FULL_S, quiet=True)
    assert old() is None
    assert (full.count, full.frozen) == (1, 0) and full.found >= 1 and full.seconds > 0
    full.look(begun_s + 2 * FULL_S + 1, quiet=True)
    assert full.count == 1


def test_a_broker_that_is_never_quiet_does_it_in_the_end() -> None:
    """(5)"""
    full = FullCollections()
    full.begin()
    old = aged(Knot())
    full.look(time.monotonic() + OVERDUE_S + 1, quiet=False)
    assert old() is None


def test_a_slice_is_looked_at_once_more_and_never_again() -> None:
    """(5)"""
    full = FullCollections()
    full.begin()
    old = aged(Knot())
    kept = [[number] for number in range(int(0.7 * PAUSE_S / full._cost_s))]
    full.look(time.monotonic(), quiet=False)
    assert old() is None and full.count == 1
    assert full.frozen >= len(kept)
    assert len(gc.get_objects()) < len(kept)
    assert gc.get_freeze_count() >= full.frozen


def test_more_than_can_be_looked_at_in_time_is_not() -> None:
    """(5)"""
    full = FullCollections()
    full.begin()
    kept = [[number] for number in range(int(1.5 * PAUSE_S / full._cost_s))]
    full.look(time.monotonic() + 2 * OVERDUE_S, quiet=True)
    assert full.count == 0 and full.frozen >= len(kept)
    old = aged(Knot())
    full.look(time.monotonic() + 4 * OVERDUE_S, quiet=True)
    assert old() is None, "newer ones are looked at"


def test_the_time_for_a_container_is_measured() -> None:
    """(5)"""
    full = FullCollections()
    full.begin()
    kept = [[number] for number in range(20_000)]
    before_s = full._cost_s
    full.look(time.monotonic() + 2 * OVERDUE_S, quiet=True)
    assert full.count == 1 and full._cost_s != before_s and kept


def test_the_broker_collects_lately_and_fully() -> None:
    before = full_collections.count
    old = aged(Knot())
    collect_lately(time.monotonic() + 2 * OVERDUE_S, quiet=True)
    assert old() is None and full_collections.count == before + 1
