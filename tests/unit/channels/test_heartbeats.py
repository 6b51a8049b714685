"""When a peer is gone, stuck, or owed a heartbeat, as ticks tell: heartbeats.py (1) to (4)."""

from __future__ import annotations

from warren.amqp.outbox import Outbox
from warren.channels.heartbeats import Heartbeats

INTERVAL_S = 10
TIMEOUT_S = 30.0


class Peer:
    """A peer, and what is between us."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.received_bytes = 0
        self.outbox = Outbox(1, [])
        self.heartbeats = Heartbeats(self.now_s, self.now_s)
        self.heartbeats.interval_s = self.heartbeats.own_interval_s = INTERVAL_S

    def pass_time(self, seconds: float, *, is_read: bool = True) -> None:
        self.now_s += seconds
        self.heartbeats.tick(self.now_s, self.received_bytes, self.outbox, is_read=is_read, send_timeout_s=TIMEOUT_S)

    def send(self, size: int = 1) -> None:
        """Send it something, of which it takes `size` bytes."""
        self.outbox.write(b"abc")
        self.outbox.take()
        self.outbox.sent(size)

    def is_gone(self) -> bool:
        return self.heartbeats.is_gone()

    def is_stuck(self) -> bool:
        return self.heartbeats.is_stuck(TIMEOUT_S)

    def is_due(self) -> bool:
        return self.heartbeats.is_due()


def test_a_peer_is_gone_when_nothing_came_for_two_intervals() -> None:
    peer = Peer()
    for _ in range(4):
        peer.pass_time(5.0)
    assert not peer.is_gone()
    peer.received_bytes = 1
    peer.pass_time(1.0)
    for _ in range(4):
        peer.pass_time(5.0)
    assert not peer.is_gone()
    peer.pass_time(0.5)
    assert peer.is_gone()
    peer.heartbeats.interval_s = 0
    assert not peer.is_gone(), "it has promised nothing"


def test_a_peer_that_is_not_read_is_not_gone() -> None:
    peer = Peer()
    peer.pass_time(10.0)
    peer.pass_time(10.0)
    peer.pass_time(100.0, is_read=False)
    assert not peer.is_gone()
    for _ in range(3):
        peer.pass_time(9.0)
    assert peer.is_gone()


def test_a_pause_of_ours_does_not_make_a_peer_gone() -> None:
    """(4)"""
    peer = Peer()
    peer.received_bytes = 1
    peer.pass_time(1.0)
    peer.pass_time(9.5)
    peer.pass_time(1000.0)
    assert not peer.is_gone(), "what it has sent meanwhile is read before the next tick"
    peer.pass_time(0.5)
    assert not peer.is_gone()
    peer.pass_time(0.5)
    assert peer.is_gone()


def test_a_heartbeat_is_due_when_nothing_was_sent_for_half_an_interval() -> None:
    peer = Peer()
    peer.pass_time(4.5)
    assert not peer.is_due()
    peer.pass_time(0.5)
    assert peer.is_due()
    assert not peer.is_due(), "it was sent"
    peer.pass_time(4.5)
    peer.send(3)
    peer.pass_time(0.5)
    assert not peer.is_due()
    peer.pass_time(4.5)
    assert peer.is_due(), "sent at the latest when the tick before was"


def test_a_peer_is_stuck_when_it_takes_nothing_of_what_waits() -> None:
    peer = Peer()
    peer.pass_time(100.0)
    assert not peer.is_stuck(), "nothing waits"
    peer.send()
    peer.pass_time(1.0)
    for _ in range(29):
        peer.pass_time(1.0)
    assert not peer.is_stuck()
    peer.send()
    for _ in range(30):
        peer.pass_time(1.0)
    assert not peer.is_stuck(), "it has taken a byte"
    peer.pass_time(1.0)
    assert peer.is_stuck()
    assert not peer.heartbeats.is_stuck(0)


def test_a_pause_of_ours_does_not_make_a_peer_stuck() -> None:
    """(4)"""
    peer = Peer()
    peer.send()
    peer.pass_time(1.0)
    peer.pass_time(1000.0)
    assert not peer.is_stuck()
    peer.pass_time(1000.0)
    assert peer.is_stuck()
