"""A queue whose messages stay and are read by offset, any number of times: a stream, a claim queue.

    OffsetQueue  <-- damage --  OffsetRead  -->  messages of a range, from the log
         |
    OffsetBacklog: the messages that exist

1. A damaged message or index page is reported once, however many readers find it. The messages of such a page no longer
   count; a single message stays where it is, and is passed over.
2. It belongs to no connection and is durable, and everything in it is stored.
3. Its lineage tells which life of the store has written which offsets. A life is entered with the first message that it
   appends, in one frame of the log.

4. A reader takes nothing out, so deliveries wait for their answers and are among the ready messages, too.

The subclass decides who may read, and removes messages at the beginning.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import QueueDeclaration
from warren.msgstore.log.epoch_table import NO_LIFE
from warren.msgstore.log.lineage import NOT_HERE, ON_PATH, Lineage
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.base_queue import BaseQueue
from warren.queues.fetch import Fetch
from warren.queues.offset_backlog import OffsetBacklog
from warren.queues.queue_host import QueueHost

_LINEAGE: Final = "lineage of "  # the number of the queue in the log


class OffsetQueue(BaseQueue):
    """A queue with offsets, which keeps its messages in ``offsets``.

    `knows_deliveries`: a message says itself whether it was delivered before.
    """

    def __init__(
        self,
        declaration: QueueDeclaration,
        runnable: list[BaseQueue],
        host: QueueHost,
        store_id: int,
        offsets: OffsetBacklog,
        *,
        knows_deliveries: bool,
    ) -> None:
        assert declaration.durable and not declaration.exclusive
        super().__init__(declaration, None, runnable, host, store_id, offsets)
        self.offsets = offsets
        self._log = host.log
        self.knows_deliveries: bool = knows_deliveries
        self.is_life_noted: bool = False  # this life is in the lineage, or cannot be entered
        self._life_first: i64 = -1  # the first offset of this life, -1 before it

    @property
    def message_count(self) -> i64:
        """The number of messages, unacked ones included."""
        return self.ready.count

    @property
    def message_bytes(self) -> i64:
        """The bodies of all messages."""
        return self.ready.body_bytes

    def persistent(self) -> tuple[int, int]:
        """Return how many messages there are, and their bodies: all are stored."""
        return int(self.ready.count), int(self.ready.body_bytes)

    def restore(self, index: QueueIndex, clean: bool) -> None:
        super().restore(index, clean)
        self.offsets.delivered_before = 0  # every delivery may have been made before, or the messages know it

    def first_offset(self) -> int:
        """Return the offset of the oldest message, or of the next to come."""
        return int(self.offsets.first_number())

    def next_offset(self) -> int:
        """Return the offset of the next message to come."""
        return int(self.offsets.next_number)

    def synced_end(self) -> int:
        """Return the offset up to which everything is synced: later messages may be missing after a crash."""
        return int(self.offsets.synced_to())

    def lineage(self) -> Lineage:
        """Return the lives with the offsets that they have written."""
        return Lineage(self._host.maybe_remembered(self._lineage_name()) or b"")

    def maybe_divergence(self, life_id: bytes, offset: int) -> str | None:
        """Return where this history has left the one of a reader, and what to do; None: they agree.

        The reader knows everything below `offset`; `life_id` has written the last of it.
        """
        end = self.next_offset()
        found = self.lineage().diverged_at(life_id, offset, end)
        if found == ON_PATH:
            return None
        where = f"at offset {found}"
        if found == NOT_HERE:
            where = f"before offset {offset}, by a life that this broker does not know"
        return (
            f"the history of '{self.name}' diverged {where}: its data were restored from a backup, or are those of a "
            f"copy, and end at offset {end}. Begin again from there, or ask the broker that wrote what was read"
        )

    def note_life(self) -> None:
        """Enter this life in the lineage: the next message is its first, or one of its first."""
        life_id = self._log.life_id
        if self._life_first < 0:
            self._life_first = self.offsets.next_number
        if life_id == NO_LIFE:
            self.is_life_noted = True  # a log without a store
            return
        lineage = self.lineage()
        lineage.begin(life_id, int(self._life_first))
        self.is_life_noted = self._host.remember(self._lineage_name(), lineage.encode())

    def _lineage_name(self) -> str:
        return f"{_LINEAGE}{int(self.store_id)}"

    def close(self) -> None:
        super().close()
        self._host.forget(self._lineage_name())

    def page_damaged(self, page: IndexPage) -> None:
        """Report an index page that cannot be read, and so none of its messages can."""
        index = self.offsets.index
        assert index is not None
        if page not in index.pages:
            return  # another reader has found it, too
        self._log.damage.report_message(index, -1, page.lsn)
        page_number: i64 = index.first_page + index.pages.index(page)
        index.lose_page(page)
        lost: i64 = self.offsets.page_lost(page_number, page)
        self.ready.lost(int(lost), int(page.body_bytes * lost // max(page.live, 1)))

    def message_damaged(self, number: i64, lsn: i64) -> None:
        """Report a message that cannot be read: it is passed over, and stays where it is."""
        index = self.offsets.index
        if index is not None:
            self._log.damage.report_message(index, number, lsn)


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
        """Return the offset up to which was read, once the messages are here."""
        return self.left[0] if self.left else int(self.end)

    def page_damaged(self, page: IndexPage) -> None:
        self._read_queue.page_damaged(page)

    def message_damaged(self, number: i64, lsn: i64) -> None:
        self._read_queue.message_damaged(number, lsn)
