"""The plan of kills follows from the seed, and leaves out no kind of victim."""

from __future__ import annotations

import pytest

from .plan import DRIVER, DRIVER_AND_BROKER, EXECUTOR, KINDS, OF_LAKE, ON_CLUSTER, SPARK, TABLES, VICTIMS, plan


@pytest.mark.parametrize("kills", [1, 3, 7, 10, 100, 101])
def test_there_are_as_many_kills_as_are_asked_for_and_each_life_ends_with_its_driver(kills: int) -> None:
    for seed in range(20):
        lives, of_lake = plan(seed, kills)
        assert sum(len(life.kills) for life in lives) + len(of_lake) == kills
        assert {kill.victim for kill in of_lake} <= set(OF_LAKE)
        for life in lives:
            *others, last = (kill.victim for kill in life.kills)
            assert last in (DRIVER, DRIVER_AND_BROKER)
            assert not {DRIVER, DRIVER_AND_BROKER, *OF_LAKE} & set(others)
            assert life.kind == ON_CLUSTER or EXECUTOR not in others


def test_the_same_seed_has_the_same_plan() -> None:
    assert plan(7, 100) == plan(7, 100) != plan(8, 100)


def test_with_a_hundred_kills_everybody_is_killed_in_everybody_s_work() -> None:
    for seed in range(20):
        lives, of_lake = plan(seed, 100)
        kills = [*of_lake, *(kill for life in lives for kill in life.kills)]
        assert {kill.victim for kill in kills} == set(VICTIMS)
        assert {kill.where for kill in kills} == {*SPARK, *TABLES}
        assert {life.kind for life in lives} == {kind for kind, _ in KINDS}
