"""The position of a consumer in a stream."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.queues.consumer import Consumer
from warren.queues.selection import Selection
from warren.streams.consumer import Filter, Start
from warren.streams.groups import Member
from warren.streams.reads import Chunk

SOUGHT: Final = -1  # the next offset of a cursor that is being looked for, or is not served


class Cursor:
    """The place of a consumer: ``next`` is the offset that it gets next. ``member``: of a consumer group, else None.

    A message is delivered if both ``wanted`` and ``selection`` let it pass, as far as they are set.
    """

    def __init__(self, consumer: Consumer, start: Start, wanted: Filter | None) -> None:
        self.consumer = consumer
        self.start = start
        self.next: i64 = SOUGHT
        self.wanted = wanted
        self.selection: Selection | None = None
        self.chunk: Chunk | None = None
        self.member: Member | None = None

    def leave_chunk(self) -> None:
        """Give up the chunk that was read for it."""
        chunk = self.chunk
        if chunk is not None:
            self.chunk = None
            chunk.give_up()
