"""Move messages from memory to disk while memory is short: decide when, and which queue has its turn.

1. Above the paging watermark transient messages, and transient queues, are stored like persistent ones. That ends below
   `RELIEF_SHARE` of it. A restart forgets them all the same.
2. When stored messages take more memory than `store.memory_bytes`, durable queues release theirs, however much memory
   is free.
3. A call takes about `SLICE_S` and continues where the previous one stopped, so that every queue has its turn. That
   includes the search for queues with something to release: if it is long, it takes a tenth of the time at most.
4. When the process crosses the paging watermark, caches are emptied first: the routes of publishers. They may grow
   again up to their limit: without them each publish would look its exchange up for as long as memory is short.
5. A queue moves a piece at a time, and all queues together at most what fits into a batch (`MessageLog.room_to_page`).
   So a confirm waits only for a bounded part of what others have in memory.
"""

from __future__ import annotations

import time
from typing import Final

from warren.channels.broker import Broker
from warren.queues.base_queue import BaseQueue
from warren.vhosts.virtual_host import VirtualHost

SLICE_S: Final = 0.002
LOOKED_AT: Final = 256  # queues that are looked at between two looks at the clock
PAUSE_PER_S: Final = 10.0  # between two rounds, for each second of the search
RELIEF_SHARE: Final = 0.9
# Sorting more than this takes longer than a slice.
_SORTED_MAX: Final = 10_000


class Pager:
    """Makes queues of `broker` move messages out of memory when the process takes more than `watermark_bytes`."""

    def __init__(self, broker: Broker, watermark_bytes: int) -> None:
        self._broker = broker
        self._watermark_bytes = watermark_bytes
        self._round: list[BaseQueue] = []  # queues still to come in this round, the next one last
        self._vhosts: list[VirtualHost] = []  # whose queues this round has not looked at
        self._unseen: list[BaseQueue] = []  # the rest of the queues of a vhost that it looks at
        self._search_s = 0.0  # how long this round has looked for queues
        self._not_before_s = 0.0  # when the next round may begin

    def relieve(self, resident_bytes: int) -> bool:
        """Make some queues release memory if that is needed; tell whether it is. Settle afterwards."""
        log = self._broker.log
        if resident_bytes > self._watermark_bytes:
            if not log.under_pressure:
                self._broker.access.routes.drop_all(log.reclamation)
            log.under_pressure = True
        elif resident_bytes < self._watermark_bytes * RELIEF_SHARE:
            log.under_pressure = False
        if not log.under_pressure and log.resident_bytes <= log.memory_bytes:
            self._round, self._vhosts, self._unseen = [], [], []
            return False
        # Released messages would wait in the batch, in memory.
        if not log.is_congested():
            self._page_out_some()
        return True

    def _page_out_some(self) -> None:
        began_s = time.monotonic()
        stop_s = began_s + SLICE_S
        if not self._round and not self._is_searching():
            if began_s < self._not_before_s:
                return
            self._begin_round()
        if self._is_searching():
            self._search(stop_s)
            self._search_s += time.monotonic() - began_s
            if self._is_searching():
                return
            if self._search_s > SLICE_S:
                self._not_before_s = time.monotonic() + PAUSE_PER_S * self._search_s
        while self._round:
            self._round.pop().page_out()
            if time.monotonic() > stop_s:
                return

    def _begin_round(self) -> None:
        broker = self._broker
        for vhost in broker.vhosts.values():
            for held in vhost.held.values():
                held.page_out()
        self._vhosts = list(broker.vhosts.values())
        self._search_s = 0.0

    def _is_searching(self) -> bool:
        return len(self._vhosts) > 0 or len(self._unseen) > 0

    def _search(self, stop_s: float) -> None:
        """Find the queues with something to release, the longest ones last."""
        everything = self._broker.log.under_pressure
        while self._is_searching():
            if not self._unseen:
                self._unseen = list(self._vhosts.pop().queues.values())
            looked_at = self._unseen[-LOOKED_AT:]
            del self._unseen[-LOOKED_AT:]
            self._round += [queue for queue in looked_at if (everything or queue.durable) and queue.may_page_out()]
            if time.monotonic() > stop_s:
                break
        if not self._is_searching() and len(self._round) <= _SORTED_MAX:
            self._round.sort(key=_ready_bytes)


def _ready_bytes(queue: BaseQueue) -> int:
    return int(queue.ready_bytes)
