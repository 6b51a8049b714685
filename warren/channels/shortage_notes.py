"""What the broker says about its own shortages, and ends for them: contents received in part, dropped dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.amqp.errors import PRECONDITION_FAILED, RESOURCE_ERROR, ChannelException, ConnectionException
from warren.amqp.methods import BASIC_PUBLISH
from warren.channels.back_pressure import INBOUND_REASON
from warren.channels.ending import close_at_once, note_error
from warren.channels.inbound import Inbound
from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.queues.counters import Churn
from warren.vhosts.dead_lettering import LettersInLine

LETTERS_NOTE_EVERY_S: Final = 60.0
# A shortage is reported as over only after this many ticks without one: it comes and goes.
SHORT_TICKS: Final = 10


class ShortageNotes:
    """Watches `inbound`, `letters`, and what `churn` counts as not routed. `note` adds a notice for the log."""

    def __init__(
        self,
        inbound: Inbound,
        letters: LettersInLine,
        churn: Churn,
        note: Callable[[str, str, dict[str, object]], None],
    ) -> None:
        self._inbound = inbound
        self._letters = letters
        self._churn = churn
        self._noted_unrouted = 0
        self._next_unrouted_note_s: float = 0.0
        self._note = note
        self._next_letters_note_s: float = 0.0
        self._short_ticks: int = 0  # until the notice that inbound is no longer short; 0: it was given

    def tick(self, now_s: float) -> None:
        """Add the notices that are due at `now_s`."""
        self._note_inbound()
        self._note_letters(now_s)
        self._note_unrouted(now_s)

    def _note_letters(self, now_s: float) -> None:
        """Log the number of dropped dead letters, at most once a minute."""
        dropped = int(self._letters.dropped)
        if dropped and now_s >= self._next_letters_note_s:
            self._letters.dropped = 0
            self._next_letters_note_s = now_s + LETTERS_NOTE_EVERY_S
            self._note("warning", "dead_letters.dropped", {"count": dropped})

    def _note_unrouted(self, now_s: float) -> None:
        """Log the number of messages whose routing takes too many steps, and where the last was, once a minute."""
        churn = self._churn
        count = churn.unrouted - self._noted_unrouted
        if count and now_s >= self._next_unrouted_note_s:
            self._noted_unrouted = churn.unrouted
            self._next_unrouted_note_s = now_s + LETTERS_NOTE_EVERY_S
            self._note("warning", "routing.too_many_steps", {"count": count, "last": churn.unrouted_from})

    def _note_inbound(self) -> None:
        """Say once that too much is received in part, and once that it is over for a while."""
        inbound = self._inbound
        if inbound.is_short:
            if self._short_ticks == 0:
                largest = max(inbound.connections, key=_inbound_bytes, default=None)
                fields: dict[str, object] = {
                    "held_bytes": int(inbound.held_bytes),
                    "max_bytes": int(inbound.max_bytes),
                    "connections": len(inbound.connections),
                }
                if isinstance(largest, Peer):
                    fields["largest_peer"] = largest.origin.peer
                    fields["largest_user"] = largest.login.user_name
                    fields["largest_bytes"] = int(largest.inbound_bytes)
                self._note("warning", "inbound.short", fields)
            self._short_ticks = SHORT_TICKS
        elif self._short_ticks:
            self._short_ticks -= 1
            if self._short_ticks == 0:
                self._note("info", "inbound.enough", {"held_bytes": int(inbound.held_bytes)})


def close_largest(inbound: Inbound) -> None:
    """Close the connection that holds most of the partly received contents, while they are too much to keep."""
    while True:
        largest = inbound.maybe_largest()
        if largest is None:
            return
        error = ConnectionException(RESOURCE_ERROR, INBOUND_REASON)
        note_error(largest, "connection.error", 0, error)
        close_at_once(largest, error.reply_code, error.explanation)


def close_stalled(channel: Session, timeout_s: float) -> None:
    """Close a channel that has begun a content and sends no more of it."""
    text = f"publish on channel {int(channel.number)} timed out: no more of its content came within {timeout_s:g} s"
    channel.peer.close_session(channel, ChannelException(PRECONDITION_FAILED, text), BASIC_PUBLISH)


def _inbound_bytes(peer: Peer) -> int:
    return int(peer.inbound_bytes)
