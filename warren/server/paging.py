"""Move messages from memory to disk while memory is short: decide when, and which queue has its turn.

1. Above the paging watermark transient messages, and transient queues, are stored like persistent ones. That ends below
   `RELIEF_SHARE` of it. A restart forgets them all the same.
2. When stored messages take more memory than `store.memory_bytes`, durable queues release theirs, however much memory
   is free.
3. A call takes about `SLICE_S` and continues where the previous one stopped, so that every queue has its turn.
4. Above the paging watermark caches are emptied first: the routes of publishers, before each round.
5. A queue moves a piece at a time, and all queues together at most what fits into a batch (`MessageLog.room_to_page`).
   So a confirm waits only for a bounded part of what others have in memory.
"""

from __future__ import annotations

import time
from typing import Final

from warren.channels.broker import Broker
from warren.queues.base_queue import BaseQueue

SLICE_S: Final = 0.002
RELIEF_SHARE: Final = 0.9
# Sorting more than this takes longer than a slice.
_SORTED_MAX: Final = 10_000


class Pager:
    """Makes queues of `broker` move messages out of memory when the process takes more than `watermark_bytes`."""

    def __init__(self, broker: Broker, watermark_bytes: int) -> None:
        self._broker = broker
        self._watermark_bytes = watermark_bytes
        self._round: list[BaseQueue] = []  # queues still to come in this round, the next one last

    def relieve(self, resident_bytes: int) -> bool:
        """Make some queues release memory if that is needed; tell whether it is. Settle afterwards."""
        log = self._broker.log
        if resident_bytes > self._watermark_bytes:
            log.under_pressure = True
        elif resident_bytes < self._watermark_bytes * RELIEF_SHARE:
            log.under_pressure = False
        if not log.under_pressure and log.resident_bytes <= log.memory_bytes:
            self._round = []
            return False
        # Released messages would wait in the batch, in memory.
        if not log.is_congested():
            self._page_out_some()
        return True

    def _page_out_some(self) -> None:
        stop_s = time.monotonic() + SLICE_S
        if not self._round:
            if self._broker.log.under_pressure:
                self._broker.access.routes.drop_all()
            self._round = self._new_round()
            for vhost in self._broker.vhosts.values():
                for held in vhost.held.values():
                    held.page_out()
        while self._round:
            self._round.pop().page_out()
            if time.monotonic() > stop_s:
                return

    def _new_round(self) -> list[BaseQueue]:
        """Return the queues with something to release, the longest ones last."""
        everything = self._broker.log.under_pressure
        waiting = [
            queue
            for vhost in self._broker.vhosts.values()
            for queue in vhost.queues.values()
            if (everything or queue.durable) and queue.may_page_out()
        ]
        if len(waiting) <= _SORTED_MAX:
            waiting.sort(key=_ready_bytes)
        return waiting


def _ready_bytes(queue: BaseQueue) -> int:
    return int(queue.ready_bytes)
