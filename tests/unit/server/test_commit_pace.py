"""How large batches may be. Numbers in parentheses: the header of ``warren/server/commit_pace.py``."""

from __future__ import annotations

import pytest

from warren.server.commit_pace import BATCH_BYTES_MAX, BATCH_BYTES_MIN, SYNCS, TARGET_S, CommitPace

ROUNDS = 20


def settled(byte_s: float, sync_s: float) -> CommitPace:
    """Return the pace after a load that fills every batch, on a disk with these times."""
    pace = CommitPace()
    for _ in range(ROUNDS):
        pace.note(100, sync_s, synced=True)
        pace.note(pace.batch_bytes, sync_s + pace.batch_bytes * byte_s, synced=True)
    return pace


@pytest.mark.parametrize("mb_per_s", [200, 500, 1500])
def test_a_full_batch_takes_its_time_and_no_more(mb_per_s: int) -> None:
    """(1)"""
    byte_s = 1 / (mb_per_s * 1e6)
    pace = settled(byte_s, 0.0003)
    assert pace.batch_bytes * byte_s == pytest.approx(TARGET_S, rel=0.05)


def test_where_a_sync_is_slow_batches_are_large_enough_to_be_worth_one() -> None:
    """(1) The seek of a disk that turns."""
    sync_s, byte_s = 0.012, 1e-8
    pace = settled(byte_s, sync_s)
    assert pace.batch_bytes * byte_s == pytest.approx(SYNCS * sync_s, rel=0.05)


def test_there_are_bounds() -> None:
    """(2)"""
    assert settled(1e-6, 0.0003).batch_bytes == BATCH_BYTES_MIN
    assert settled(1e-12, 0.0003).batch_bytes == BATCH_BYTES_MAX


def test_a_disk_that_becomes_slow_and_fast_again_is_followed() -> None:
    """(3)"""
    pace = settled(1e-9, 0.0003)
    fast = pace.batch_bytes
    for _ in range(3):
        pace.note(pace.batch_bytes, pace.batch_bytes * 1e-8, synced=True)
    assert pace.batch_bytes < fast / 4
    for _ in range(ROUNDS):
        pace.note(pace.batch_bytes, pace.batch_bytes * 1e-9, synced=True)
    assert pace.batch_bytes > fast * 0.9


def test_what_is_only_written_tells_nothing_of_a_sync_and_one_that_waited_for_others_little() -> None:
    """(1)"""
    pace = settled(1e-8, 0.0003)
    before = pace.batch_bytes
    for _ in range(ROUNDS):
        pace.note(100, 1.0, synced=False)
        pace.note(100, 0.5, synced=True)
        pace.note(100_000, 0.5, synced=True)
    pace.note(before, 0.0003 + before * 1e-8, synced=True)
    assert pace.batch_bytes == pytest.approx(before, rel=0.05)
