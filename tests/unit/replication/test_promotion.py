"""Doubts about a promotion, and the epoch of a promoted node (``promotion.py``).

Requests for a promotion are in ``test_last_contact.py``.
"""

from __future__ import annotations

import pytest
from simulation.simulated_file_system import SimulatedFileSystem

from warren.replication.free_space import FreeSpace
from warren.replication.last_contact import Contact
from warren.replication.promotion import EPOCHS_APART, SURE_S, Promotion
from warren.replication.replica_store import EPOCH_STRIDE
from warren.server.settings import DISK_FREE_RESUME_SHARE

CONTACT = Contact(1_700_000_000_000, "rabbit@one", 4096, 4000)
WALL_S = 1_700_000_100.0


def doubt(promotion: Promotion, *, has_all: bool = True, now_s: float = 50.0) -> str:
    return promotion.doubt(has_all=has_all, now_s=now_s, wall_s=WALL_S)


def test_only_a_recent_contact_of_this_life_leaves_no_doubt() -> None:
    """(1), (2)"""
    promotion = Promotion(None)
    assert promotion.silent_s(50.0, WALL_S) is None and "it is not known when it was" in doubt(promotion)
    promotion = Promotion(CONTACT)
    assert promotion.silent_s(50.0, WALL_S) == 100.0 and promotion.silent_s(50.0, 0.0) == 0.0
    assert "since it was started" in doubt(promotion) and "100 s ago, before this start" in doubt(promotion)
    assert "lacked 96 bytes" in doubt(promotion)
    promotion.note(CONTACT, 10.0)
    assert promotion.silent_s(50.0, WALL_S) == 40.0
    assert doubt(promotion) == "" and "was not in sync" in doubt(promotion, has_all=False)
    assert doubt(promotion, now_s=10.0 + SURE_S) != ""


def test_the_epoch_of_a_promotion_is_far_beyond_all_known_ones_and_stays() -> None:
    """(3)"""
    promotion = Promotion(CONTACT)
    epoch = promotion.epoch(7)
    assert 0 <= epoch - 7 - EPOCH_STRIDE < EPOCHS_APART
    assert promotion.epoch(8) == epoch and not promotion.is_done
    elected = Promotion(None)
    elected.elect(9)
    assert elected.epoch(8) == 9 and elected.is_done


def test_space_is_low_until_there_is_clearly_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = SimulatedFileSystem()
    free: list[int] = []

    def free_bytes() -> int:
        if not free:
            raise OSError("the disk says nothing")
        return free.pop()

    monkeypatch.setattr(fs, "free_bytes", free_bytes)
    space = FreeSpace(fs)
    assert not space.is_low()
    space.min_bytes = 1000
    for found, is_low in (
        (1000, False),
        (999, True),
        (1000, True),
        (None, True),
        (1000 * DISK_FREE_RESUME_SHARE, False),
    ):
        if found is not None:
            free.append(int(found))
        assert space.is_low() is is_low, found
