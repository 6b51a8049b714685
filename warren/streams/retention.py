"""The retention of a stream: it removes the oldest messages when there are too many bytes, or when they are too old.

1. The oldest segment is removed whole, but never the last one. When nothing is sealed, whole pages of the index are
   removed.
2. By bytes, messages are removed at a publish, or when older messages have been sealed. By age, they are removed at
   their time: while something can be removed, age is looked at between `LOOK_MIN_MS` and `LOOK_MAX_MS` from now. When
   the clock was set back before a start, times may lie in the future: such messages age from that start, and do not
   keep later ones alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.offset_queue import OffsetRead
from warren.queues.queue_host import QueueHost
from warren.queues.timers import Timer

if TYPE_CHECKING:
    from warren.streams.stream import Stream

LOOK_MIN_MS: Final = 1_000
LOOK_MAX_MS: Final = 3_600_000
# One of this many messages at the end of a page must be readable to tell its age.
AGE_PROBES: Final = 4


class Retention(Timer):
    """The retention of `stream`, by its rules. `oldest_bytes`: of the bodies that are removed next."""

    def __init__(self, stream: Stream, host: QueueHost) -> None:
        super().__init__()
        self.oldest_bytes: i64 = 0
        self._stream: Stream | None = stream
        self._log = host.log
        self._timers = host.timers
        self._since_ms: i64 = host.log.now_ms

    def follow_rules(self) -> None:
        """Look at age again: the stream has other rules, or messages from before a restart."""
        stream = self._stream
        if stream is None:
            return
        if stream.rules.max_age_ms >= 0:
            self._timers.at(self._log.now_ms + LOOK_MIN_MS, self)
        else:
            self._timers.cancel(self)

    def due(self, now_ms: i64) -> None:
        self.keep_age()

    def close(self) -> None:
        """Stop: the stream is deleted."""
        self._timers.cancel(self)
        self._stream = None  # it refers to us, and we to it: do not leave it to the cyclic collector

    # --- by bytes -------------------------------------------------------------------------------------------------

    def keep_bytes(self, limit_bytes: i64) -> None:
        """Remove the oldest messages as long as the rest still has at least `limit_bytes`."""
        stream = self._stream
        if stream is None:
            return
        messages = stream.messages
        sealer = messages.sealer
        while sealer.table.segments:
            self.oldest_bytes = sealer.table.segments[0].body_bytes
            if stream.ready.body_bytes - self.oldest_bytes < limit_bytes or not sealer.may_drop_oldest():
                return
            self._drop_segment(stream)
        while True:
            end: i64 = messages.droppable_to()
            if end == 0:
                self.oldest_bytes = 0
                return
            self.oldest_bytes = messages.oldest_page_bytes()
            if stream.ready.body_bytes - self.oldest_bytes < limit_bytes:
                return
            self._drop_to(stream, end)

    def keep_length(self) -> None:
        """Remove the oldest messages if there are more bytes than the rules allow."""
        stream = self._stream
        if stream is not None and stream.rules.max_length_bytes >= 0:
            self.keep_bytes(stream.rules.max_length_bytes)

    # --- by age ---------------------------------------------------------------------------------------------------

    def keep_age(self) -> None:
        """Remove messages that are too old; of unsealed ones the age is read from disk first."""
        stream = self._stream
        if stream is None or stream.rules.max_age_ms < 0:
            return
        max_age_ms: i64 = stream.rules.max_age_ms
        messages = stream.messages
        sealer = messages.sealer
        while sealer.table.segments:
            oldest_ms: i64 = self._came_ms(sealer.table.segments[0].max_time_us // 1000)
            if oldest_ms + max_age_ms > self._log.now_ms or not sealer.may_drop_oldest():
                self._look_at(oldest_ms + max_age_ms)
                return
            self._drop_segment(stream)
        index = messages.index
        end: i64 = messages.droppable_to()
        if end == 0 or index is None:
            self._look_at(self._log.now_ms + max_age_ms)
        else:
            _AgeRead(self, stream, index, end).begin()

    def page_age_read(self, end: i64, time_ms: i64) -> None:
        """Use `time_ms`, the time of the last message before offset `end`, where a page ends; 0: unknown."""
        stream = self._stream
        if stream is None or stream.rules.max_age_ms < 0:
            return
        max_age_ms: i64 = stream.rules.max_age_ms
        time_ms = self._came_ms(time_ms)
        if stream.messages.droppable_to() == end:
            if time_ms + max_age_ms > self._log.now_ms:
                self._look_at(time_ms + max_age_ms)
                return
            self._drop_to(stream, end)
        self.keep_age()

    def _came_ms(self, time_ms: i64) -> i64:
        """Return when a message of `time_ms` came, as far as this process can tell."""
        # A future time comes from an earlier process, whose clock was ahead: the message is older than this process.
        return self._since_ms if time_ms > self._log.now_ms else time_ms

    def _look_at(self, time_ms: i64) -> None:
        now_ms: i64 = self._log.now_ms
        at_ms: i64 = min(max(time_ms, now_ms + LOOK_MIN_MS), now_ms + LOOK_MAX_MS)
        self._timers.at(at_ms, self)

    # --- away -----------------------------------------------------------------------------------------------------

    def _drop_to(self, stream: Stream, end: i64) -> None:
        count, body_bytes = stream.messages.drop_to(end)
        stream.ready.lost(count, body_bytes)

    def _drop_segment(self, stream: Stream) -> None:
        messages = stream.messages
        segment = messages.sealer.drop_oldest(stream.store_id)
        stream.ready.lost(int(segment.count), int(segment.body_bytes))
        messages.removed_below(messages.first_number())


class _AgeRead(OffsetRead):
    """Reads when the last message of a page was published."""

    def __init__(self, retention: Retention, stream: Stream, index: QueueIndex, end: i64) -> None:
        super().__init__(stream, index, end - AGE_PROBES, end)
        self._retention = retention
        self._stream = stream

    def fetched(self, messages: list[Message | None]) -> None:
        latest_ms: i64 = 0
        for message in messages:
            if message is not None and message.time_ms > latest_ms:
                latest_ms = message.time_ms
        self._stream.messages.offer_loaded(self.loaded)
        self._retention.page_age_read(self.end, latest_ms)
