"""What `warren ctl backup` does by itself: its rate, and what it says. With a broker: integration/management."""

from __future__ import annotations

import pytest

from warren.ctl.backup import Pace, _bytes_per_s
from warren.ctl.errors import CtlError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_rate_is_kept_however_large_the_pieces_are() -> None:
    for size in (1, 1000, 5000):
        clock = Clock()
        pace = Pace(1000, clock, clock.sleep)
        for _ in range(10_000 // size):
            pace.moved(size)
        assert clock.now == pytest.approx(110)


def test_what_was_not_used_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(1000, clock, clock.sleep)
    clock.now += 60
    pace.moved(5000)
    assert clock.now == pytest.approx(165)


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    Pace(0, clock, clock.sleep).moved(1 << 40)
    assert clock.now == 100


@pytest.mark.parametrize(("rate", "size"), [(0, 1 << 20), (10**9, 1 << 20), (20_000, 200_000), (1, 10)])
def test_no_piece_takes_so_long_that_the_broker_lets_go(rate: int, size: int) -> None:
    clock = Clock()
    pace = Pace(rate, clock, clock.sleep)
    assert pace.piece(1 << 20) == size
    pace.moved(size)
    assert clock.now <= 110


@pytest.mark.parametrize(
    ("text", "rate"), [("0", 0), ("50MB", 50_000_000), ("1 GiB", 1 << 30), ("5kb", 5000), ("7", 7), ("100mb", 10**8)]
)
def test_a_rate_is_a_number_with_a_unit(text: str, rate: int) -> None:
    assert _bytes_per_s(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "1.5MB", "MB", "1XB", "9" * 20])
def test_another_text_is_no_rate(text: str) -> None:
    with pytest.raises(CtlError, match="--rate"):
        _bytes_per_s(text)
