"""Lives of a broker as a reader remembers them; lives.py (3)."""

from __future__ import annotations

from warren.spark_bridge.lives import Lives, Remembered

LIVES = Lives([("a", 10), ("b", 20)], 30)


def test_a_reader_without_a_life_is_told_once_for_each_stream_and_nothing_is_compared() -> None:
    told: list[str] = []
    remembered = Remembered("the table", told.append)
    for _ in range(2):
        assert remembered.maybe_divergence("orders", LIVES, None, 25) is None
    assert remembered.maybe_divergence("events", LIVES, None, 5) is None
    assert [text.partition(":")[0] for text in told] == ["'orders'", "'events'"]
    assert "the table does not say in which life" in told[0]


def test_a_reader_at_the_beginning_or_of_a_broker_without_lives_is_told_nothing() -> None:
    told: list[str] = []
    remembered = Remembered("the checkpoint", told.append)
    assert remembered.maybe_divergence("orders", LIVES, None, 0) is None
    assert remembered.maybe_divergence("orders", None, None, 9) is None
    assert remembered.maybe_divergence("orders", None, "a", 9) is None
    assert told == []


def test_a_life_that_a_reader_remembers_is_compared() -> None:
    told: list[str] = []
    remembered = Remembered("the directory", told.append)
    assert remembered.maybe_divergence("orders", LIVES, "a", 20) is None
    found = remembered.maybe_divergence("orders", LIVES, "a", 21)
    assert found is not None and found.offset == 20
    assert told == []
