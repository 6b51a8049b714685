"""Messages of a queue that are stored and not committed yet: they become ready once they are committed.

    publish -> place in the queue, row in the open batch -> the batch is committed -> ready

1. A consumer, a basic.get, a claim or a look gets a message only after its batch is committed: written as a confirm of
   this vhost asks for, by the nodes in sync too. So a take-over, or a crash, takes nothing back that somebody has seen,
   and all of a transaction is there once one message of it was delivered.
2. A message has its place as soon as it comes, after all others of its lane. Messages become ready in that order.
3. They count as ready in all counts that are shown, and where a full queue refuses a publish. Limits that drop the
   head, and times to live, act when they are ready.
4. A message that is not stored waits only for those before it.
5. The declaration of the queue is awaited, too (`vhosts.metadata_journal`, 4).
6. On a log with replicas, recovered messages wait for the first commit of this life: other nodes may lack them.

A queue without a gate pays nothing: rules that ask for one make a keeper (``queues.rule_keeper``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from librt.vecs import append, vec
from mypy_extensions import i64

from warren.msgstore.log.batch import BatchWaiter
from warren.msgstore.log.message import Message
from warren.queues.basic_get import serve_waiters
from warren.queues.dispatch import DRAIN_BUDGET
from warren.queues.lanes import LANE_SHIFT
from warren.queues.queue_host import QueueHost

if TYPE_CHECKING:
    from warren.queues.queue import Queue


def fit_gate(queue: Queue, host: QueueHost) -> None:
    """Add or remove the gate at which new messages of `queue` wait for their commit, as its rules say."""
    waits = queue.stores and queue.rules.waits_for_commit(host.log.is_replicated)
    gate = queue.gate
    if waits == (gate is not None):
        return
    if gate is None:
        queue.gate = CommitGate(queue, host)
    else:
        gate.open()
        queue.gate = None  # not before: what comes while messages become ready stands after them


class _Uncommitted(BatchWaiter):
    """Messages that wait for `batch`. None: a place that a message had only for a moment."""

    def __init__(self, gate: CommitGate, batch: i64) -> None:
        self.batch: i64 = batch
        self.messages: list[Message | None] = []
        self.given: i64 = 0  # how many of them are ready
        self.places = vec[i64]()
        self.memory_bytes: i64 = 0
        self._gate = gate

    def add(self, message: Message | None, place: i64) -> None:
        """Add a message, or a place without one."""
        self.messages.append(message)
        self.places = append(self.places, place)
        if message is not None:
            self.memory_bytes += message.memory_bytes

    def batch_done(self, batch: i64) -> None:
        self._gate.committed()


class CommitGate(BatchWaiter):
    """Holds the messages of `queue` until they are committed."""

    def __init__(self, queue: Queue, host: QueueHost) -> None:
        self._queue = queue
        self._host = host
        self._log = host.log
        self._ready = queue.ready
        self._groups: list[_Uncommitted] = []  # by batch, in order
        self._ahead = [0] * queue.ready.lane_count  # by lane: how many places are given out and not ready
        self._awaits_declaration: bool = False
        self.is_recovering: bool = False  # recovered messages wait for the first commit of this life (6)

    # --- in -------------------------------------------------------------------------------------------------------

    def takes(self, message: Message) -> bool:
        """Tell whether `message` has to wait: it is stored, or others wait (4)."""
        return message.persistent or len(self._groups) > 0

    def hold(self, message: Message, lane: i64) -> None:
        """Store `message` at the end of its lane, and keep it until it is committed."""
        ready = self._ready
        place: i64 = self._next_place(lane)
        if message.persistent:
            ready.store(message, place)
            self._open_group().add(message, place)
        else:
            self._groups[-1].add(message, place)
        ready.uncommitted_count += 1
        ready.uncommitted_bytes += message.body_bytes
        self._log.resident_bytes += message.memory_bytes

    def take_place(self, lane: i64) -> i64:
        """Return the place of a message that does not wait, after those of this lane that do."""
        if not self._groups:
            return self._ready.pass_place(lane)
        place: i64 = self._next_place(lane)
        self._groups[-1].add(None, place)
        return place

    def _next_place(self, lane: i64) -> i64:
        ahead: i64 = self._ahead[lane]
        self._ahead[lane] = int(ahead + 1)
        return self._ready.place_after(lane, ahead)

    def _open_group(self) -> _Uncommitted:
        batch: i64 = self._log.batch.number
        groups = self._groups
        if groups and groups[-1].batch == batch:
            return groups[-1]
        group = _Uncommitted(self, batch)
        groups.append(group)
        self._log.wait(group, self._host.sync_confirms)
        return group

    # --- out ------------------------------------------------------------------------------------------------------

    def batch_done(self, batch: i64) -> None:
        """Look again: the declaration of the queue is durable, or the first commit of this life is done."""
        self._awaits_declaration = False
        self._recovered()
        self.committed()

    def _recovered(self) -> None:
        """Hand out recovered messages from now on."""
        queue = self._queue
        if self.is_recovering and not queue.deleted:
            self.is_recovering = False
            queue.restrain()
            queue.wake()

    def committed(self) -> None:
        """Make the messages ready whose batches are done."""
        queue = self._queue
        if self._awaits_declaration or queue.deleted:
            return
        while (groups := self._groups) and groups[0].batch <= self._log.done_batch:
            if self._host.awaits_declaration(queue, self):
                self._awaits_declaration = True
                return
            self._release(groups[0])
        self._released()

    def open(self) -> None:
        """Make all messages ready: the queue no longer waits for commits."""
        while self._groups:
            self._release(self._groups[0])
        self._recovered()
        self._released()

    def _released(self) -> None:
        """Wake the queue: messages are ready."""
        queue = self._queue
        if queue.is_hungry:
            queue.wake()
        serve_waiters(queue, self._host)

    def _release(self, group: _Uncommitted) -> None:
        """Make the messages of the first group ready.

        A message that is ready may push another one out, whose dead letter may push out one that comes back here. So
        messages may come meanwhile. They find the group among those that wait, and stand after all of it (2).
        """
        keeper = self._queue.keeper
        assert keeper is not None
        ready = self._ready
        at: i64 = group.given
        for message in group.messages[group.given :] if group.given else group.messages:
            place: i64 = group.places[at]
            at += 1
            lane: i64 = place >> LANE_SHIFT
            # Before the message is ready: what happens then may bring others.
            self._ahead[lane] -= 1
            if message is None:
                ready.pass_place(lane)
                continue
            ready.uncommitted_count -= 1
            ready.uncommitted_bytes -= message.body_bytes
            group.memory_bytes -= message.memory_bytes
            self._log.resident_bytes -= message.memory_bytes
            try:
                keeper.committed(message, place, hands_over=at <= DRAIN_BUDGET)
            except BaseException:
                group.given = at
                if ready.place_after(lane, 0) == place:
                    self._keep(group, message, lane)
                self._log.wait(group, False)
                raise
        if self._groups and self._groups[0] is group:
            self._groups.pop(0)

    def _keep(self, group: _Uncommitted, message: Message, lane: i64) -> None:
        """Have a message wait again that could not be made ready."""
        group.given -= 1
        group.memory_bytes += message.memory_bytes
        self._ahead[lane] += 1
        self._ready.uncommitted_count += 1
        self._ready.uncommitted_bytes += message.body_bytes
        self._log.resident_bytes += message.memory_bytes

    def await_first_commit(self) -> None:
        """Keep recovered messages, and those after them, until the first commit of this life (6)."""
        if not self.is_recovering:
            self.is_recovering = True
            self._queue.restrain()
            self._log.wait(self, True)

    # --- away -----------------------------------------------------------------------------------------------------

    def purge(self) -> None:
        """Drop all messages that wait; the others of the queue have gone just now."""
        for lane, ahead in enumerate(self._ahead):
            if ahead:
                self._purge(lane, ahead)
                self._ahead[lane] = 0
        self.close()

    def _purge(self, lane: i64, ahead: i64) -> None:
        """Settle the messages at the next places of a lane, which is empty, and give these places to nobody."""
        backlog = self._ready.backlog(lane)
        first: i64 = backlog.next_number
        if backlog.index is not None:
            self._log.batch.settle_waiting(backlog.index, first, first + ahead)
        backlog.next_number = first + ahead

    def close(self) -> None:
        """Release all messages."""
        for group in self._groups:
            self._log.reclamation.add(group.messages, group.memory_bytes)
        self._groups = []
        self._ready.uncommitted_count = 0
        self._ready.uncommitted_bytes = 0

    def check_invariants(self) -> None:
        """Assert the counts, and the order of places. For tests."""
        waiting = [each for group in self._groups for each in group.messages[group.given :] if each is not None]
        assert self._ready.uncommitted_count == len(waiting)
        assert self._ready.uncommitted_bytes == sum([int(message.body_bytes) for message in waiting])
        lanes: i64 = len(self._ahead)
        lane: i64 = 0
        while lane < lanes:
            expected: i64 = self._ready.place_after(lane, 0)
            for group in self._groups:
                at: i64 = group.given
                while at < len(group.messages):
                    if group.places[at] >> LANE_SHIFT == lane:
                        assert group.places[at] == expected, "places are not in order"
                        expected += 1
                    at += 1
            assert expected == self._ready.place_after(lane, self._ahead[lane]), "places are missing"
            lane += 1
        batches = [int(group.batch) for group in self._groups]
        assert batches == sorted(batches)
