"""How much the cyclic collector looks at in one go. The numbers in parentheses: ``cyclic_collector.py``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from warren.server.cyclic_collector import (
    YOUNG_OBJECTS,
    YOUNG_ROUNDS,
    bound_collector,
    collect_lately,
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
        collect_lately()
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
    collect_lately()
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
