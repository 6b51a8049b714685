"""Retained messages that have expired. Numbers in parentheses: the header of ``warren/vhosts/retained.py``."""

from __future__ import annotations

from durable_harness import DurableHarness
from engine_harness import Harness

from warren.mqtt.sessions import restore_sessions
from warren.vhosts.retained import EXPIRED_AT_ONCE, STALE_MIN, TIDIED_AT_ONCE, Retained, RetainedMessages


def message(now_ms: int, expires_ms: int) -> Retained:
    return Retained("guest", now_ms, expires_ms, b"", b"x")


def names(harness: Harness) -> list[str]:
    return sorted(name.removeprefix("retained:") for name, _ in harness.vhost.records.values("retained:"))


def test_expired_messages_take_no_room_from_others() -> None:
    """Nobody has looked them up. (3)"""
    harness = Harness()
    kept = harness.vhost.retained()
    kept.topic_shares.most = 8
    for number in range(6):
        assert kept.put(f"t/{number}", message(1000, 2000))
    assert not kept.put("t/late", message(1999, 0))
    assert kept.put("t/0", message(1999, 3000)), "it replaces another one"
    assert kept.put("t/late", message(2000, 0))
    assert names(harness) == ["t/0", "t/late"]
    assert kept.count == kept.topic_shares.used("guest") == 2
    assert kept.maybe("t/0", 2999) is not None and kept.maybe("t/0", 3000) is None
    kept.topic_shares.check_invariants()
    kept.byte_shares.check_invariants()


def test_they_are_known_after_a_restart_and_go_a_few_at_a_time() -> None:
    harness = Harness()
    for number in range(2 * EXPIRED_AT_ONCE):
        assert harness.vhost.retained().put(f"t/{number:02}", message(1000, 2000))
    kept = RetainedMessages(harness.vhost.records)
    for _ in kept.read():
        pass
    assert kept.put("new", message(5000, 0))
    assert kept.count == EXPIRED_AT_ONCE + 1
    assert kept.put("new", message(5000, 0))
    assert names(harness) == ["new"]


def test_expiries_of_replaced_messages_are_forgotten() -> None:
    kept = Harness().vhost.retained()
    for number in range(3 * STALE_MIN):
        assert kept.put("t", message(0, 10_000 + number))
    assert len(kept._expiring) <= STALE_MIN + 3


def test_few_of_them_are_looked_at_for_each_message() -> None:
    """One message had all tidied up that others had left: with 100,000 topics 300 ms in one turn."""
    kept = Harness().vhost.retained()
    for number in range(500):
        assert kept.put(f"t/{number}", message(0, 100_000 + number))
    most = left = 500
    for number in range(4 * STALE_MIN):
        assert kept.put(f"t/{number % 50}", message(0, 10_000_000 + number))
        before, left = left, len(kept._expiring) + len(kept._tidied)
        assert before + 1 - left <= TIDIED_AT_ONCE
        most = max(most, left)
    assert most <= 2 * kept.count + STALE_MIN + (2 * kept.count + STALE_MIN) // TIDIED_AT_ONCE + 1
    for now_ms in (100_050, 100_300, 100_500, 20_000_000):
        for _ in range(500):
            assert kept.put("new", message(now_ms, 0))
        assert kept.count == 1 + sum(100_000 + number > now_ms for number in range(50, 500)) + 50 * (
            now_ms < 10_000_000
        )


def test_they_are_found_at_a_start_and_not_when_the_first_client_asks() -> None:
    """All other clients would wait for that."""
    harness = DurableHarness()
    assert harness.vhost.retained().put("t", message(1000, 0))
    harness.broker.log.force()
    harness.settle()
    harness = harness.restart(clean=False)
    assert harness.vhost._retained is None
    for _ in restore_sessions(harness.broker):
        pass
    assert harness.vhost._retained is not None
    assert harness.vhost.retained().count == 1
