"""The input of a follower's link: read, decoded into entries, and kept until the thread carries them out.

    thread   reads by itself when it has nothing else to do: `next`
    loop     reads while the thread is at the disk, or has not begun: `maybe_read`

1. One of them reads at a time, and entries are handed out in their order.
2. A beacon is reported at once by the side that reads it, and so is a question or an answer (``questions.py``): the
   thread does not carry these out. While the thread is at the disk they wait for the loop to look, at most.
3. The loop reads ahead of the thread by `QUEUED_BYTES_MAX` and one read more. The thread reads when nothing is left.
4. After the end nothing more is read; entries that were read are still handed out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final

from warren.replication.entries import FROM_LEADER, Beacon, Decoder, EntryError, FromLeader, OfBoth, Stop
from warren.replication.wire import Wire

QUEUED_BYTES_MAX: Final = 64 << 20


class Intake:
    """The input from `wire`. The reading side makes the calls; `on_end` when nothing more comes."""

    def __init__(
        self,
        wire: Wire,
        on_beacon: Callable[[Beacon], None],
        on_end: Callable[[], None],
        on_question: Callable[[OfBoth], None],
    ) -> None:
        self.is_over = False
        self.reason = ""  # why it is over
        self.is_left = False  # the leader has ended the link, and said why
        self.is_refused = False  # the input could not be decoded
        self.came_s = time.monotonic()  # when something came last
        self._wire = wire
        self._on_beacon = on_beacon
        self._on_end = on_end
        self._on_question = on_question
        self._decoder = Decoder(FROM_LEADER)
        self._reading = Lock()
        self._entries: deque[tuple[FromLeader, int]] = deque()  # with their sizes in bytes
        self._queued_bytes = 0  # read until now
        self._done_bytes = 0  # the thread's

    # --- the thread's -----------------------------------------------------------------------------------------------

    def next(self) -> tuple[FromLeader, int] | None:
        """Wait for the next entry, and return it with its size; None when it is over, and nothing is left."""
        entries = self._entries
        while not entries:
            with self._reading:
                if entries:
                    break  # the loop has read them meanwhile
                if self.is_over:
                    return None
                if not self._read():
                    self._wire.wait_for_input()
        return entries.popleft()

    def is_empty(self) -> bool:
        """Tell whether nothing waits to be carried out."""
        return not self._entries

    def done(self, size: int) -> None:
        """Count an entry of this size as carried out."""
        self._done_bytes += size

    # --- the loop's -------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """How much was read and is not carried out."""
        return self._queued_bytes - self._done_bytes

    def is_full(self) -> bool:
        """Tell whether the loop is not to read more."""
        return self.queued_bytes > QUEUED_BYTES_MAX

    def maybe_read(self) -> bool:
        """Read the available input, unless the thread does; tell whether to continue when more comes."""
        if self.is_full() or not self._reading.acquire(blocking=False):
            return False
        try:
            if not self.is_over:
                self._read()
        finally:
            self._reading.release()
        return not self.is_over

    def end(self, reason: str) -> None:
        """End the input. Any thread."""
        if not self.is_over:
            self.reason = reason
            self.is_over = True
            self._on_end()
        self._wire.fail(reason)  # the thread may wait for input

    # --- the reading side -------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Take the bytes that have come; False without any."""
        data = self._wire.receive()
        if data is None:
            return False
        if data:
            self.came_s = time.monotonic()
            self.feed(data)
        else:
            wire = self._wire
            self._is_over(wire.failure or ("the leader has closed the connection" if wire.is_over else "it is closed"))
        return True

    def feed(self, data: bytes) -> None:
        """Take bytes as they have come."""
        try:
            self._decoder.feed(data)
            while not self.is_over and (entry := self._decoder.maybe_entry()) is not None:
                if isinstance(entry, Stop):
                    self.is_left = True
                    self._is_over(entry.text)
                elif isinstance(entry, Beacon):
                    self._on_beacon(entry)
                elif isinstance(entry, OfBoth):
                    self._on_question(entry)
                else:
                    assert isinstance(entry, FromLeader)
                    self.put(entry, self._decoder.entry_bytes)
        except EntryError as error:
            self.is_refused = True
            self._is_over(str(error))

    def put(self, entry: FromLeader, size: int) -> None:
        """Hand `entry`, of this many bytes, to the thread."""
        self._queued_bytes += size
        self._entries.append((entry, size))

    def _is_over(self, reason: str) -> None:
        if not self.is_over:
            self.reason = reason
            self.is_over = True
            self._on_end()
