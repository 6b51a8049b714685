"""The queues that an operator should look at first: those that grow, lack a consumer, or have old messages.

1. Every queue that the user may see is looked at, in pieces; the answer has at most `SHOWN` of each kind, the worst
   first, and the number of all.
2. Streams keep their messages: only their growth by consumers would matter, and they are left out.
3. Only the queues in the answer are asked why their messages wait.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import ClassVar, Final

from msgspec.structs import asdict

from warren.engine_view.engine_view import EngineView
from warren.engine_view.queues import FilledRow
from warren.engine_view.refs import QueueRef
from warren.engine_view.totals import chunks
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import MANY, Described
from warren.mgmt_plugin.metrics.statistics import Statistics
from warren.mgmt_plugin.names import visible_queues
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route

SHOWN: Final = 10
# A queue grows if it has so many more messages than so long ago, and than a minute ago.
GROWN_MIN: Final = 100
GROWTH_S: Final = 600
LATELY_S: Final = 60
OLD_MS: Final = 600_000


class _Worst:
    """The queues of one kind with the largest values."""

    def __init__(self) -> None:
        self.count = 0
        self._found: list[tuple[int, str, str, QueueRef, Described]] = []

    def add(self, value: int, queue: QueueRef, row: Described) -> None:
        """Count a queue."""
        self.count += 1
        # No two queues of a vhost have the same name: references are not compared.
        entry = (value, row["vhost"], row["name"], queue, row)
        if len(self._found) < SHOWN:
            heappush(self._found, entry)
        else:
            heappushpop(self._found, entry)

    def describe(self, view: EngineView) -> Described:
        """Return the number and the worst of them, each with the reason why its messages wait."""
        worst = sorted(self._found, reverse=True)
        return {"count": self.count, "items": [row | {"why": _why(view, queue, row)} for *_, queue, row in worst]}


def _why(view: EngineView, queue: QueueRef, row: Described) -> str:
    if row["paused"]:
        return "paused"
    if not row["consumers"]:
        return "no_consumer"
    return "too_few_consumers" if view.queues.has_taker(queue) else "consumers_full"


class AttentionHandlers(Handlers):
    """Handlers of what needs attention."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._statistics = statistics

    async def show_attention(self, call: Call) -> Described:
        queues = await visible_queues(call, self._view)
        if len(queues) > MANY:
            await call.request.begin_work()
        growing, unattended, old = _Worst(), _Worst(), _Worst()
        for some in chunks(queues):
            for queue, filled in self._view.queues.filled(some):
                self._look(queue, filled, growing, unattended, old)
            await give_way()
        return {
            "queues": len(queues),
            "growing": growing.describe(self._view),
            "without_consumer": unattended.describe(self._view),
            "old": old.describe(self._view),
        }

    def _look(self, queue: QueueRef, filled: FilledRow, growing: _Worst, unattended: _Worst, old: _Worst) -> None:
        statistics, messages = self._statistics, filled.messages
        grown = statistics.grown(queue, messages, GROWTH_S)
        oldest_ms, at_least = statistics.oldest_ms(queue, messages, filled.published)
        row: Described = asdict(filled)
        del row["published"]
        row |= {"grown": grown, "oldest_ms": oldest_ms, "oldest_at_least": at_least}
        if grown >= GROWN_MIN and statistics.grown(queue, messages, LATELY_S) > 0:
            growing.add(grown, queue, row)
        if not filled.consumers:
            unattended.add(messages, queue, row)
        if oldest_ms >= OLD_MS:
            old.add(oldest_ms, queue, row)

    ROUTES: ClassVar = (
        Route(
            "GET",
            "/api/warren/attention",
            Access.USER,
            show_attention,
            "Queues that grow, have no consumer, or have an old oldest message",
        ),
        Route(
            "GET",
            "/api/warren/attention/{vhost}",
            Access.VHOST_VISIBLE,
            show_attention,
            "The same for a vhost",
        ),
    )
