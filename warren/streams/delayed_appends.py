"""The delayed messages of a stream: each is appended, and gets its offset, when its time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.held_messages import HeldMessages
from warren.queues.lanes import DELAYED
from warren.queues.origin import RELEASED
from warren.queues.queue_host import QueueHost
from warren.queues.timers import NEVER, Timer

if TYPE_CHECKING:
    from warren.streams.stream import Stream


class DelayedAppends(HeldMessages):
    """The lane of `stream` with the messages whose time has not come."""

    def __init__(self, stream: Stream, host: QueueHost) -> None:
        super().__init__(host.log)
        self._stream = stream
        self._timers = host.timers
        self._timer: Timer = _Due(self)

    def delay(self, message: Message, until_ms: i64) -> None:
        """Hold a message until its time; it is stored if it is persistent."""
        if message.persistent:
            self._need_index()
        self.hold(message, until_ms, message.persistent)
        self._timers.at(until_ms, self._timer)

    def _need_index(self) -> None:
        if self.index is None:
            self.begin_storing(self._stream.ready.indexes.make(DELAYED))

    def released(self, message: Message) -> None:
        self._stream.accept(message, RELEASED)

    def due(self, now_ms: i64) -> None:
        """Append the messages whose time has come, and set the timer again."""
        self._timers.worked += self.release_due(now_ms)
        self.changed()

    def changed(self) -> None:
        at_ms: i64 = self.first_ms()
        if at_ms < NEVER:
            self._timers.at(at_ms, self._timer)

    def restore(self, index: QueueIndex, *, clean: bool = True) -> None:
        super().restore(index, clean=clean)
        self.changed()

    def page_out(self) -> None:
        if self.needs_index():
            self._need_index()
        super().page_out()

    def close(self) -> None:
        super().close()
        self._timers.cancel(self._timer)
        self._timer = Timer()  # it refers to us, and we to it: do not leave them to the cyclic collector


class _Due(Timer):
    """When the next message is appended."""

    def __init__(self, delayed: DelayedAppends) -> None:
        super().__init__()
        self._delayed = delayed

    def due(self, now_ms: i64) -> None:
        self._delayed.due(now_ms)
