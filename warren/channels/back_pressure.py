"""Publishers that wait while memory, a disk or a replica is short, and what their peers are told about it.

1. A peer stops being read when it publishes in a shortage, and is read again when the shortage is over
   (`jobs.Resuming`), in any protocol. It is told only if it wants to know.
2. A delay of the disk is soon over: nobody is told. Nor is a peer told that it holds too much of what is received in
   part, unless it still waits at the next tick (`Peer.tick`).
3. A peer that was told is told when that is over, unless it closes: nothing follows connection.close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.channels.connection_states import RUNNING
from warren.channels.shared import PAUSED_ALARM

if TYPE_CHECKING:
    from warren.channels.peer import Peer
    from warren.channels.session import Session

# `Peer.blocked_notice`.
UNWANTED: Final = 0
WANTED: Final = 1
TOLD: Final = 2

# Limit for incomplete contents of a peer while publishers of large messages wait.
STOPPED_MAX_BYTES: Final = 1 << 20
# Why a peer is blocked without an alarm.
INBOUND_REASON: Final = "too much is held for messages received in part"


def block_publisher(peer: Peer) -> None:
    """Pause `peer`, which publishes while memory or disk is short, or the disk lags."""
    peer.pause(PAUSED_ALARM)
    if peer.broker.flow.alarm_reason != "":
        tell_blocked(peer)


def hold_content(session: Session, size: i64) -> None:
    """Count `size` bytes of an incomplete content; a peer that holds many waits while publishers of large ones do."""
    shared = session.shared
    shared.inbound.hold(session, size)
    if shared.large_stopped and session.peer.inbound_bytes > STOPPED_MAX_BYTES:
        block_publisher(session.peer)


def alarm_set(peer: Peer) -> None:
    """Notify a peer that waits for a confirm that memory or disk has become short.

    A peer that waits for a confirm is told at once: its message may be the one that has no room on the disk, and
    it may not publish again before that message is confirmed.
    """
    if peer.state == RUNNING and any(each.unconfirmed_count() > 0 for each in peer.channels.values()):
        tell_blocked(peer)


def tell_blocked(peer: Peer) -> None:
    """Send `peer` the reason why it waits."""
    if peer.blocked_notice == WANTED:
        peer.blocked_notice = TOLD
        peer.tell_blocked(peer.broker.flow.alarm_reason or INBOUND_REASON)


def tell_unblocked(peer: Peer) -> None:
    """Notify `peer` that it need not wait, if it was told that it had to."""
    if peer.blocked_notice == TOLD:
        peer.blocked_notice = WANTED
        if peer.state == RUNNING:
            peer.tell_unblocked()


def is_held_up(peer: Peer) -> bool:
    """Tell whether `peer` waits for the end of an alarm, or was told so."""
    return peer.blocked_notice == TOLD or peer.paused & PAUSED_ALARM != 0


def unblock(peer: Peer) -> None:
    """Resume `peer`: the alarm is over."""
    tell_unblocked(peer)
    peer.resume(PAUSED_ALARM)
