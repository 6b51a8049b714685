"""Messages that a queue holds back, lane by lane: their number, a list of them, and commands that release them.

Callers are told of messages when these have been read from disk. A queue that is deleted meanwhile tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from warren.engine_view.refs import QueueRef
from warren.queues.base_queue import BaseQueue
from warren.queues.held_messages import DROPPED, PARKED_UNTIL, RELEASED, HeldMessages
from warren.queues.held_messages import HeldMessage as HeldMessage
from warren.queues.lanes import DELAYED as DELAYED
from warren.queues.lanes import PARKED as PARKED
from warren.queues.lanes import UNDELIVERED as UNDELIVERED

HELD_LANES: Final = {"delayed": DELAYED, "parked": PARKED, "undelivered": UNDELIVERED}

Listed = Callable[[list[HeldMessage]], None]


class HeldRow(msgspec.Struct, frozen=True):
    """One lane. `next_due_ms` is None when it is empty, and for parked messages."""

    messages: int
    bytes: int
    next_due_ms: int | None


_EMPTY: Final = HeldRow(0, 0, None)


class Held:
    """The held messages of one engine. `settle` ends the turn of a command."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle

    def row(self, queue: QueueRef, lane: int) -> HeldRow:
        """Return how much a lane of a queue holds."""
        held = _maybe_held(queue, lane)
        if held is None:
            return _EMPTY
        first_ms = PARKED_UNTIL if held.count == 0 else int(held.first_ms())
        return HeldRow(int(held.count), int(held.body_bytes), first_ms if first_ms < PARKED_UNTIL else None)

    def list_earliest(self, queue: QueueRef, lane: int, most: int, told: Listed) -> None:
        """Report the messages that are due first."""
        held = _maybe_held(queue, lane)
        if held is None:
            told([])
        else:
            held.list_earliest(most, told)
            self._settle()

    def list_numbered(self, queue: QueueRef, lane: int, numbers: list[int], told: Listed) -> None:
        """Report those of the messages with these numbers that are there."""
        held = _maybe_held(queue, lane)
        assert held is not None
        held.list_numbered(numbers, told)
        self._settle()

    def numbers_from(self, queue: QueueRef, lane: int, first: int, most: int) -> tuple[list[int], int]:
        """Return the next numbers from `first` on, and where to continue."""
        held = _maybe_held(queue, lane)
        return ([], first) if held is None else held.numbers_from(first, most)

    def end_number(self, queue: QueueRef, lane: int) -> int:
        """Return the number that the next message to be held gets."""
        held = _maybe_held(queue, lane)
        return 0 if held is None else held.end_number()

    # --- commands ---------------------------------------------------------------------------------------------------

    def release(self, queue: QueueRef, lane: int, numbers: list[int], told: Callable[[int], None]) -> None:
        """Release the messages with these numbers, and tell their count."""
        held = _maybe_held(queue, lane)
        if held is None:
            told(0)  # the queue was deleted after they were listed
        else:
            held.take(numbers, RELEASED, told)
            self._settle()

    def release_all(self, queue: QueueRef, lane: int) -> None:
        """Release everything, piece by piece in turns of their own."""
        held = _maybe_held(queue, lane)
        if held is not None:
            held.take_all(RELEASED)
            self._settle()

    def drop(self, queue: QueueRef, lane: int, numbers: list[int], told: Callable[[int], None]) -> None:
        """Drop the messages with these numbers, and tell their count. For `told` of a list, in its turn."""
        held = _maybe_held(queue, lane)
        assert held is not None
        held.take(numbers, DROPPED, told)

    def clear(self, queue: QueueRef, lane: int) -> None:
        """Drop everything in a lane."""
        held = _maybe_held(queue, lane)
        if held is not None:
            held.clear()
            self._settle()


def _maybe_held(queue: QueueRef, lane: int) -> HeldMessages | None:
    assert isinstance(queue, BaseQueue)
    return queue.held(lane)
