"""What a queue is in the log: its name there, and the indexes of its lanes, which are made when they are needed."""

from __future__ import annotations

from mypy_extensions import i64

from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex


class LaneIndexes:
    """Makes the indexes of a queue. ``store_id`` is its name in the log, 0 until it is needed."""

    def __init__(self, log: MessageLog, vhost_name: str, queue_name: str, durable: bool, store_id: int) -> None:
        self.store_id = store_id
        self._log = log
        self._vhost_name = vhost_name
        self._queue_name = queue_name
        self._durable = durable

    def need_store_id(self) -> int:
        """Return the name of the queue in the log; from now on it has one."""
        if self.store_id == 0:
            self.store_id = self._log.new_queue_id()
        return self.store_id

    def make(self, lane: i64) -> QueueIndex:
        """Begin to store the messages of a lane."""
        queue_id = self._log.new_queue_id() if lane > 0 else self.need_store_id()
        return self._log.new_index(queue_id, self._vhost_name, self._queue_name, lane, not self._durable)
