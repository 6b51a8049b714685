"""The check of a staged batch before its commit: does a queue take each of its messages, and has each queue room?

    count   each queue that may refuse publishes: how many messages would come to it, and their bytes
    ask     a queue without room for them ends the check; a queue with room keeps it, if the commit takes turns

1. Both take steps, and may take several turns. Promised room counts as if the messages waited in the queue already, so
   other publishers cannot use it meanwhile; promised messages are let in even if the limit has been lowered since.
2. A deleted queue takes nothing. A queue that takes every publish (`maybe_room` is None) is neither counted nor asked.
   A queue that the commit purges first has room as if it were empty.
3. A commit that is done at once needs no promise. One that takes turns has promises, and holds the batch of the log: so
   only one at a time has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.queues.base_queue import BaseQueue
from warren.queues.long_work import Steps
from warren.queues.receiver import Receiver, Room

if TYPE_CHECKING:
    from warren.channels.transaction import BufferedPublish


class _Share:
    """The messages that one queue would get, and the `room` for them."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.messages: i64 = 0
        self.body_bytes: i64 = 0


class CommitCheck:
    """The check of one batch. `mandatory`: do not publish unroutable ones. `is_promised`: queues keep room until `end`.

    `unroutable`: the number of publishes that no queue would get. `full_queue`: one that would refuse some, or None.
    `purged`: the queue that is purged in the same commit, before the messages come.
    """

    def __init__(self, *, mandatory: bool, purged: BaseQueue | None = None) -> None:
        self.purged: BaseQueue | None = purged
        self.unroutable: i64 = 0
        self.full_queue: Receiver | None = None
        self.is_promised: bool = False
        self._mandatory = mandatory
        self._next_publish: i64 = 0
        self._shares: dict[Receiver, _Share] = {}
        # Publishes in a row with one route, which is the same list for all of them where it is remembered.
        self._queues: list[Receiver] = []
        self._next_queue: i64 = 0
        self._messages: i64 = 0  # of the row
        self._held: i64 = 0  # those of them that are not added to the queues now, though the queues hold them
        self._body_bytes: i64 = 0
        self._has_takers: bool = False
        self._asked: list[Receiver] | None = None  # once all is counted
        self._next_asked: i64 = 0

    def run(self, publishes: list[BufferedPublish], steps: Steps) -> bool:
        """Check until no steps are left; True when that is done."""
        return self._count(publishes, steps) and self._ask(steps)

    def has_passed(self) -> bool:
        """Tell whether the batch may be committed; once the check is done."""
        return self.full_queue is None and not (self._mandatory and self.unroutable > 0)

    def end(self) -> None:
        """Void the remaining promises: the batch is done."""
        asked = self._asked
        if asked is not None and self.is_promised:
            for queue in asked[: int(self._next_asked)]:
                self._shares[queue].room.void_promise()
        self._asked = None

    def _count(self, publishes: list[BufferedPublish], steps: Steps) -> bool:
        while steps.left > 0:
            if self._next_queue < len(self._queues):
                self._count_queues(steps)
            elif self._messages > 0:
                if not self._has_takers:
                    self.unroutable += self._messages
                self._messages = 0
            elif self._next_publish < len(publishes):
                self._take_row(publishes, steps)
            else:
                return True
        return False

    def _take_row(self, publishes: list[BufferedPublish], steps: Steps) -> None:
        """Take the publishes that have the same route as the next one."""
        first = publishes[self._next_publish]
        queues = first.queues
        at: i64 = self._next_publish
        end: i64 = len(publishes)
        messages: i64 = 0
        held: i64 = 0
        body_bytes: i64 = 0
        while at < end and messages < steps.left:
            publish = publishes[at]
            if publish.queues is not queues or publish.effects is not first.effects:
                break
            at += 1
            messages += 1
            if publish.message.due_ms:
                held += 1
            else:
                body_bytes += publish.message.body_bytes
        steps.left -= messages
        self._next_publish = at
        self._queues = queues
        self._next_queue = 0
        self._messages = messages
        self._held = held
        self._body_bytes = body_bytes
        self._has_takers = first.effects is not None and first.effects.has_takers()

    def _count_queues(self, steps: Steps) -> None:
        queues = self._queues
        at: i64 = self._next_queue
        end: i64 = len(queues)
        coming: i64 = self._messages - self._held
        while at < end and steps.left > 0:
            queue = queues[at]
            at += 1
            steps.left -= 1
            if queue.deleted:
                continue
            self._has_takers = True
            room = queue.maybe_room() if coming > 0 else None
            if room is not None:
                share = self._shares.get(queue)
                if share is None:
                    share = _Share(room)
                    self._shares[queue] = share
                share.messages += coming
                share.body_bytes += self._body_bytes
        self._next_queue = at

    def _ask(self, steps: Steps) -> bool:
        asked = self._asked
        if asked is None:
            asked = list(self._shares)
            self._asked = asked
        if not self.has_passed():
            return True
        while self._next_asked < len(asked):
            if steps.left <= 0:
                return False
            steps.left -= 1
            queue = asked[self._next_asked]
            share = self._shares[queue]
            if not queue.deleted:
                messages: i64 = share.messages
                body_bytes: i64 = share.body_bytes
                purged = self.purged
                if purged is not None and queue is purged:
                    messages -= purged.ready_count
                    body_bytes -= purged.ready_bytes
                if not share.room.has_space_for(messages, body_bytes):
                    self.full_queue = queue
                    return True
                if self.is_promised:
                    share.room.promise(share.messages, share.body_bytes)
            self._next_asked += 1
        return True
