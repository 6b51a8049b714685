"""A queue whose messages are read by offset, by whoever and as often as need be: a stream, a claim queue.

    OffsetQueue  <-- what is damaged --  OffsetRead  -->  messages of a range, from the log
         |
    OffsetBacklog: which messages there are

1. A message or an index page that cannot be read is reported once, however many readers come across it. The messages of
   such a page count no more; a single message stays where it is, and is passed over.
2. It belongs to no connection and is durable, and everything in it is stored.

Who may read, and what takes messages away at the beginning, is for the class that extends this one to say.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.amqp.declarations import QueueDeclaration
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.fetch import Fetch
from warren.queues.offset_backlog import OffsetBacklog
from warren.queues.queue import Queue
from warren.queues.queue_host import QueueHost


class OffsetQueue(Queue):
    """A queue with offsets, which keeps its messages in ``offsets``.

    `knows_deliveries`: a message says itself whether it was delivered before.
    """

    def __init__(
        self,
        declaration: QueueDeclaration,
        runnable: list[Queue],
        host: QueueHost,
        store_id: int,
        offsets: OffsetBacklog,
        *,
        knows_deliveries: bool,
    ) -> None:
        assert declaration.durable and not declaration.exclusive
        super().__init__(declaration, None, runnable, host, store_id)
        self.offsets = offsets
        self.knows_deliveries: bool = knows_deliveries
        self.ready.keep_in(offsets)
        self._damaged: set[int] = set()  # offsets that were reported

    def first_offset(self) -> int:
        """Return the offset of the oldest message, or of the next to come."""
        return int(self.offsets.first_number())

    def next_offset(self) -> int:
        """Return the offset of the next message to come."""
        return int(self.offsets.next_number)

    def synced_end(self) -> int:
        """Return the offset up to which everything is synced: what is from there on may not be there after a crash."""
        return int(self.offsets.synced_to())

    def is_ready_to_get(self) -> bool:
        """`get` refuses at once."""
        return True

    def page_damaged(self, page: IndexPage) -> None:
        """An index page cannot be read, and so none of its messages."""
        index = self.offsets.index
        assert index is not None
        if page not in index.pages:
            return  # somebody else was reading it too
        index.damaged_count += page.live
        self._log.report_damage(index, -1, page.lsn)
        page_number: i64 = index.first_page + index.pages.index(page)
        index.lose_page(page)
        lost: i64 = self.offsets.page_lost(page_number, page)
        self.ready.lost(int(lost), int(page.body_bytes * lost // max(page.live, 1)))

    def message_damaged(self, number: i64, lsn: i64) -> None:
        """A message cannot be read: it is passed over, and stays where it is."""
        index = self.offsets.index
        if int(number) not in self._damaged and index is not None:
            self._damaged.add(int(number))
            index.damaged_count += 1
            self._log.report_damage(index, number, lsn)


class OffsetRead(Fetch):
    """Reads the messages of `queue` from offset ``first`` up to ``end``, or the first of them. Override `fetched`.

    `most_bytes`: see `Fetch`.
    """

    def __init__(self, queue: OffsetQueue, index: QueueIndex, first: i64, end: i64, most_bytes: i64 = 0) -> None:
        super().__init__(index.log, index, list(range(int(first), int(end))), most_bytes)
        self.first: i64 = first
        self.end: i64 = end
        self._read_queue = queue

    def reached(self) -> int:
        """Return the offset up to which it was read, when it is here."""
        return self.left[0] if self.left else int(self.end)

    def page_damaged(self, page: IndexPage) -> None:
        self._read_queue.page_damaged(page)

    def message_damaged(self, number: i64, lsn: i64) -> None:
        self._read_queue.message_damaged(number, lsn)
