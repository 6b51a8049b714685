"""A stream: a queue whose messages stay, and are read again and again from any place a consumer wants.

    publish -> tail (memory) and open batch -> one fdatasync -> visible to consumers
                                                                  cursor of each: its next offset
    cursor in the tail      messages in memory with their offset as a header: made once for all consumers
    cursor before it        a chunk, read from the log or from sealed files; all cursors at that place share it

1. Everything is stored, whatever its delivery mode. A confirm means what it means for a queue.
2. A consumer sees only synced messages, and on a log with replicas only committed ones: an offset that a consumer has
   seen never stands for another message.
3. An acknowledgement gives credit back, and so does a reject or a requeue. Nothing is taken out. What they mean for
   consumer groups is `streams.group_serving`'s business.
4. Consumers share what is read for them, and the memory that it takes: `streams.chunk_reader`.
5. Times of messages ascend with their offsets, unless the clock was set back: an offset is found by time with a binary
   search (`streams.offset_search`). Filters are applied to each message. Messages that a filter drops count against the
   turn, and so does the cost of looking.
6. Retention removes the oldest messages, by bytes and by age: `streams.retention`.
7. Sealing (`streams.sealer`) changes nothing that clients see: neither offsets nor counts nor deliveries.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import NOT_IMPLEMENTED, PRECONDITION_FAILED, ChannelException, ConnectionException
from warren.msgstore.log.batch import BatchWaiter
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.sealed_streams import SealedStream
from warren.msgstore.log.sealed_table import SealedChunk, SealedTable
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.queues.dispatch import DRAIN_BUDGET
from warren.queues.held_messages import HeldMessages
from warren.queues.lanes import DELAYED, STREAM_GROUPS
from warren.queues.offset_queue import OffsetQueue
from warren.queues.origin import CHANNEL, LETTER, PROMISED, RELEASED
from warren.queues.outcome import ACCEPTED, REPEATED
from warren.queues.queue_host import QueueHost
from warren.queues.rules import QueueRules
from warren.queues.selection import Selection
from warren.queues.unacked import Delivery
from warren.streams.backlog import StreamBacklog
from warren.streams.chunk_reader import ChunkReader
from warren.streams.compaction import Compactor
from warren.streams.consumer import check_priority, filter_of, start_of
from warren.streams.cursor import SOUGHT, Cursor
from warren.streams.delayed_appends import DelayedAppends
from warren.streams.group_serving import GroupServing
from warren.streams.groups import Group, group_name_of
from warren.streams.offset_search import find
from warren.streams.reads import Chunk
from warren.streams.retention import Retention
from warren.streams.sealer import RecoveredSealing, segment_bytes_of

# For streams without consumers: never changed.
_NO_CURSORS: Final[dict[Consumer, Cursor]] = {}
_NO_TURNS: Final[list[Cursor]] = []


class Stream(OffsetQueue):
    """A stream. ``arguments`` is the encoded table of its declaration, `store_id` its name in the log."""

    def __init__(
        self, declaration: QueueDeclaration, runnable: list[BaseQueue], host: QueueHost, store_id: int = 0
    ) -> None:
        self.messages = StreamBacklog(host.log)
        super().__init__(declaration, runnable, host, store_id, self.messages, knows_deliveries=False)
        self.messages.stream = self
        self.cursors = _NO_CURSORS
        self.reading = _NO_CURSORS  # those that have a next offset; the others wait, or are not active
        self.visible_end: i64 = 0  # everything below is synced
        self.groups: GroupServing | None = None  # None: there was never a group
        self.retention = Retention(self, host)
        self._in_turn = _NO_TURNS  # as `reading`, in the order of `drain`; out of date after a change
        self._turn_is_old: bool = False
        self._turn: i64 = 0  # which cursor is served first
        self._commit: _Commit | None = None
        self._chunks: ChunkReader | None = None  # None: there was never a consumer
        self._delayed: DelayedAppends | None = None  # None: nothing was ever delayed
        self._compactor: Compactor | None = None  # None: nothing was ever compacted
        self._recovered: RecoveredSealing | None = None  # None: nothing was found at the start
        self._lost_chunks: set[int] | None = None  # offsets from which sealed messages are missing; None: none are
        host.log.sealed.served[store_id] = _Sealed(self)
        sealed = host.log.sealed.recovered.pop(store_id, None)
        if sealed is not None:
            self._restore_sealed(sealed)

    # --- in -------------------------------------------------------------------------------------------------------

    def publish(self, message: Message) -> i64:
        outcome: i64 = self._take(message)
        if outcome != ACCEPTED:
            self.refused += 1
        return outcome

    def accept(self, message: Message, origin: i64) -> i64:
        """Take a message; deduplication does not keep a dead letter out."""
        if origin in (CHANNEL, PROMISED):
            return self.publish(message)
        if origin == RELEASED:
            self._append(message)
            return ACCEPTED
        outcome: i64 = ACCEPTED
        if origin == LETTER:
            self.published += 1
            self._append(message)
        else:
            outcome = self._take(message)
        if outcome == ACCEPTED:
            self.not_by_channels += 1
        return outcome

    def will_store(self, message: Message) -> bool:
        return message.persistent or message.due_ms == 0

    def _take(self, message: Message) -> i64:
        seen = self.seen
        keys = None if seen is None else seen.keys_of(message)
        if seen is not None and keys is not None and seen.drops(keys, message):
            return REPEATED
        self.published += 1
        kept = self._append(message)
        if seen is not None and keys is not None:
            seen.add(keys, kept, True)
        return ACCEPTED

    def _delay(self, message: Message, until_ms: i64) -> None:
        self._need_delayed().delay(message, until_ms)

    def _need_delayed(self) -> DelayedAppends:
        delayed = self._delayed
        if delayed is None:
            delayed = DelayedAppends(self, self._host)
            self._delayed = delayed
        return delayed

    def held(self, lane: int) -> HeldMessages | None:
        return self._delayed if lane == DELAYED else None

    def may_page_out(self) -> bool:
        delayed = self._delayed
        return super().may_page_out() or (delayed is not None and delayed.in_memory_count() > 0)

    def page_out(self) -> None:
        if self._delayed is not None:
            self._delayed.page_out()
        super().page_out()

    def _append(self, message: Message) -> Message:
        """Add `message`, or a copy that stands for it here; return the added one."""
        kept = message
        now_ms: i64 = self._log.now_ms
        if not message.persistent or (message.time_ms != 0 and message.time_ms != now_ms):
            kept = message.copy()  # others may use the original; a message held or published elsewhere comes here now
            kept.persistent = True
            message.awaits_batch = True  # its confirm: the copy is stored, not the original
        kept.time_ms = now_ms
        if not self.is_life_noted:
            self.note_life()
        ready = self.ready
        place: i64 = ready.append(kept, 0)
        ready.store(kept, place)
        if self.cursors:
            self._await_commit()
        limit_bytes: i64 = self.rules.max_length_bytes
        if limit_bytes >= 0 and ready.body_bytes - self.retention.oldest_bytes >= limit_bytes:
            self.retention.keep_bytes(limit_bytes)
        return kept

    def _await_commit(self) -> None:
        """Register the messages published so far to become visible when they are synced."""
        log = self._log
        commit = self._commit
        if commit is None or commit.batch != log.batch.number:
            commit = _Commit(self, log.batch.number)
            self._commit = commit
            log.wait(commit, True)
        commit.end = self.messages.next_number

    def synced_to(self, end: i64) -> None:
        """Make everything below offset `end` visible: it is synced."""
        if end > self.visible_end and not self.deleted:
            self.visible_end = end
            self.wake()

    def has_lane(self, lane: i64) -> bool:
        return lane in (DELAYED, STREAM_GROUPS) or super().has_lane(lane)

    def restore(self, index: QueueIndex, clean: bool) -> None:
        """Take over the messages that recovery found, or the groups."""
        if index.lane == STREAM_GROUPS:
            self.need_groups().restore(index)
            return
        if index.lane == DELAYED:
            self._need_delayed().restore(index, clean=clean)
            return
        super().restore(index, clean)
        if index.lane:
            return
        sealed_end: i64 = self.messages.sealed_end()
        if self.messages.sealer.table.segments and self.messages.first_in_log() > sealed_end:
            self.sealed_lost(sealed_end)  # a chunk that is damaged at the end of a file looks like a torn one
        self.visible_end = self.messages.synced_to()
        self.retention.follow_rules()
        self._recovered = RecoveredSealing(self, self._host, self.messages.next_number)

    def _restore_sealed(self, table: SealedTable) -> None:
        """Take over the sealed messages; those of the log come later, if there are any."""
        self.messages.restore_sealed(table)
        self.ready.count = table.count
        self.ready.body_bytes = table.body_bytes
        self.visible_end = self.messages.next_number

    def segment_completed(self) -> None:
        """Compact sealed messages, if that is wanted and worth it: a segment is full, and another one has begun."""
        if self.rules.compacts:
            if self._compactor is None:
                self._compactor = Compactor(self)
            self._compactor.segment_completed()

    def forget_sealed_chunks(self) -> None:
        """Give up the sealed chunks that are in memory: others have replaced them."""
        if self._chunks is not None:
            self._chunks.sealed.forget()

    def sealed_lost(self, first: i64) -> None:
        """Report once that the sealed messages from offset `first` on are missing or cannot be read."""
        lost = self._lost_chunks
        if lost is None:
            lost = set()
            self._lost_chunks = lost
        if int(first) not in lost:
            lost.add(int(first))
            self._log.damage.report_chunk(self.store_id, self.vhost_name, self.name, int(first))

    def unsealed_bytes(self) -> i64:
        """Return how many bytes of bodies are not sealed."""
        return self.ready.body_bytes - self.messages.sealer.table.body_bytes

    # --- back -----------------------------------------------------------------------------------------------------

    def settle(self, delivery: Delivery) -> None:
        super().settle(delivery)
        if self.groups is not None:
            self.groups.answered(delivery)

    def requeue(self, delivery: Delivery, *, failed: bool = True, delay_ms: int = -1) -> None:
        """Forget a delivery; the message is where it was, and a consumer of a group gets it again."""
        if self.groups is not None:
            self.groups.requeued(delivery)  # first: if that fails the delivery is unanswered again
        super().requeue(delivery, failed=failed, delay_ms=delay_ms)

    def reject(self, delivery: Delivery) -> None:
        """Forget a delivery; the message is where it was."""
        super().reject(delivery)
        if self.groups is not None:
            self.groups.answered(delivery)

    # --- out ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Deliver messages while consumers take them, at most `DRAIN_BUDGET`; then queue up again."""
        self.is_scheduled = False
        if self.paused:
            return
        budget: i64 = DRAIN_BUDGET
        if self._turn_is_old:
            self._turn_is_old = False
            self._in_turn = list(self.reading.values())
        cursors = self._in_turn
        count: i64 = len(cursors)
        served: i64 = 0
        while served < count:
            at: i64 = (self._turn + served) % count
            budget = self._serve(cursors[at], budget)
            if budget == 0:
                self._turn = at + 1
                self.wake()
                return
            served += 1
        self._turn = 0
        if self._chunks is not None:
            self._chunks.turn_over(cursors)

    def serve(self, consumer: Consumer) -> None:
        cursor = self.cursors.get(consumer)
        if cursor is not None and not self.paused:
            before: i64 = consumer.ledger.next_tag
            left: i64 = self._serve(cursor, DRAIN_BUDGET)
            consumer.looked += DRAIN_BUDGET - left - (consumer.ledger.next_tag - before)
            if left == 0:
                self.wake()

    def _serve(self, cursor: Cursor, budget: i64) -> i64:
        """Deliver to `cursor` the messages that it may have; return what is left of `budget`."""
        consumer = cursor.consumer
        ledger = consumer.ledger
        wanted = cursor.wanted
        selection = cursor.selection
        member = cursor.member
        groups = self.groups
        if cursor.next == SOUGHT:
            return budget
        messages = self.messages
        while cursor.next < self.visible_end and budget > 0 and consumer.has_room():
            if member is not None and not member.has_room(consumer.prefetch):
                break
            offset: i64 = cursor.next
            chunk: Chunk | None = None
            if offset >= messages.tail_from():
                message = messages.find(offset)
            else:
                chunk = cursor.chunk
                if chunk is None or not chunk.has(offset):
                    chunks = self._chunks
                    assert chunks is not None
                    chunk = chunks.chunk_for(cursor)
                    budget -= chunks.looked
                    if chunk is None:
                        break  # it is being read, or others have a turn
                    offset = cursor.next
                message = chunk.messages[offset - chunk.first]
            cursor.next = offset + 1
            budget -= 1
            is_wanted = message is not None
            if wanted is not None and message is not None:
                is_wanted = wanted.passes(message, self._log.now_ms)
                budget -= wanted.cost
            if is_wanted and selection is not None and message is not None:
                is_wanted = selection.passes(message, self._log.now_ms)
                budget -= selection.cost
            if is_wanted and message is not None:
                self.delivered += 1
                self.unacked_count += 1
                self.unacked_bytes += message.body_bytes
                sent = messages.stamped(offset, message) if chunk is None else chunk.stamped(offset, message)
                try:
                    if member is None or groups is None:
                        ledger.deliver(consumer, sent, offset, False)
                    else:
                        groups.deliver(cursor, member, sent, offset)
                except Exception as error:
                    # It would miss this message.
                    ledger.outbox.failed(error)
                    self.delivered -= 1
                    self.unacked_count -= 1
                    self.unacked_bytes -= message.body_bytes
            elif member is not None and member.again and groups is not None:
                groups.gone(cursor, member)
        if member is not None and groups is not None:
            groups.note_progress(cursor, member)
        left = cursor.chunk
        if left is not None and cursor.next >= left.end and self._chunks is not None:
            self._chunks.keep_latest(left)
            cursor.leave_chunk()
        return budget if budget > 0 else 0

    def pass_over(self, cursor: Cursor, offset: i64) -> None:
        """Move `cursor` to `offset`: there is nothing for it before."""
        if cursor.member is None or self.groups is None:
            cursor.next = offset
        else:
            self.groups.removed_below(cursor, cursor.member, offset)

    # --- rules ----------------------------------------------------------------------------------------------------

    def apply_rules(self, rules: QueueRules) -> None:
        super().apply_rules(rules)
        self.messages.sealer.segment_bytes = segment_bytes_of(rules)
        self.retention.keep_length()
        self.retention.follow_rules()

    def close(self) -> None:
        self.retention.close()
        if self._delayed is not None:
            self._delayed.close()
            self._delayed = None
        if self._recovered is not None:
            self._recovered.close()
            self._recovered = None
        self._log.sealed.served.pop(self.store_id, None)
        self._log.damage.chunks.pop(self.store_id, None)
        self.messages.sealer.close(self.store_id)
        self._compactor = None
        if self.groups is not None:
            self.groups.close()
            self.groups = None
        for cursor in self.cursors.values():
            cursor.leave_chunk()
        self.cursors = {}
        self.reading = {}
        self._in_turn = []
        if self._chunks is not None:
            self._chunks.forget()
            self._chunks = None
        self._commit = None
        super().close()

    # --- consumers ------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Register `consumer`, and begin where its arguments say.

        Raises:
            ChannelException: 406, a bad argument, no prefetch, or too many groups.
            ConnectionException: 540, it does not acknowledge, or the channel limits all its consumers together.
        """
        encoded = consumer.arguments
        check_priority(self.name, self.vhost_name, encoded)
        start = start_of(self.name, self.vhost_name, encoded, self._log.now_ms)
        cursor = Cursor(consumer, start, filter_of(self.name, self.vhost_name, encoded))
        group = group_name_of(self.name, self.vhost_name, encoded)
        me = f"queue '{self.name}' in vhost '{self.vhost_name}'"
        if consumer.prefetch == 0:
            raise ChannelException(PRECONDITION_FAILED, f"consumer prefetch count is not set for '{me}'")
        if consumer.no_ack:
            raise self.refusal("automatic acknowledgement")
        if consumer.ledger.prefetch > 0:
            raise ConnectionException(NOT_IMPLEMENTED, f"{me} does not support global qos")
        if group and self.groups is not None:
            self.groups.check_room(group)
        consumer.exclusive = False  # like RabbitMQ: streams do not support it
        self.consumers[consumer] = None
        if self._chunks is None:
            self._chunks = ChunkReader(self)
            self.cursors = {}
            self.reading = {}
        self.cursors[consumer] = cursor
        self.messages.read_by(True)
        if self.visible_end < self.messages.next_number:
            self._await_commit()
        if group:
            self.need_groups().join(group, cursor)
        else:
            self.start(cursor)

    def select(self, consumer: Consumer, selection: Selection) -> None:
        self.cursors[consumer].selection = selection

    def start(self, cursor: Cursor) -> None:
        """Begin `cursor` where its consumer wants to, as soon as that is found."""
        find(self, cursor.start, _Beginning(self, cursor).found)

    def begin(self, cursor: Cursor, offset: i64) -> None:
        """Continue `cursor` at `offset`, or at the first message that is left."""
        first: i64 = self.messages.first_number()
        cursor.next = offset if offset > first else first
        if cursor.consumer not in self.reading:
            self.reading[cursor.consumer] = cursor
            self._turn_is_old = True
        if cursor.member is not None and self.groups is not None:
            self.groups.note_progress(cursor, cursor.member)
        self.wake()

    def _consumer_left(self, consumer: Consumer) -> None:
        cursor = self.cursors.pop(consumer)
        self.pause_reading(cursor)
        if self.groups is not None:
            self.groups.leave(consumer)
        if not self.cursors:
            if self._chunks is not None:
                self._chunks.forget()
            self.messages.read_by(False)

    def pause_reading(self, cursor: Cursor) -> None:
        """Stop serving `cursor` until it begins again."""
        cursor.leave_chunk()
        cursor.next = SOUGHT
        if self.reading.pop(cursor.consumer, None) is None:
            return
        self._turn_is_old = True
        if 2 * len(self.reading) <= len(self._in_turn):
            self._in_turn = list(self.reading.values())
        self._turn = 0

    def offset_of(self, consumer: Consumer) -> int:
        """Return the offset that `consumer` gets next; -1 while it is looked for."""
        cursor = self.cursors.get(consumer)
        return -1 if cursor is None else int(cursor.next)

    # --- groups ---------------------------------------------------------------------------------------------------

    def need_groups(self) -> GroupServing:
        """Return the serving of the consumer groups; make it if needed."""
        groups = self.groups
        if groups is None:
            groups = GroupServing(self, self._host)
            self.groups = groups
        return groups

    def consumer_groups(self) -> list[Group]:
        """Return the groups."""
        groups = self.groups
        return [] if groups is None else groups.all()

    def check_invariants(self) -> None:
        """Assert what the module header says. For tests."""
        if not self.rules.compacts:  # else the tail may have messages that no longer count
            self.ready.check_invariants()
        assert self.unacked_bytes >= 0 and (self.unacked_count > 0 or self.unacked_bytes == 0)
        assert self.messages.first_number() <= self.messages.next_number
        assert self.visible_end <= self.messages.next_number
        assert len(self.cursors) == len(self.consumers)
        for cursor in self.cursors.values():
            chunk = cursor.chunk
            assert chunk is None or chunk.is_used()
            waits = self.is_scheduled or self.paused or (self._chunks is not None and self._chunks.is_reading())
            if not waits and cursor.next != SOUGHT:
                consumer, member = cursor.consumer, cursor.member
                has_room = consumer.has_room() and (member is None or member.has_room(consumer.prefetch))
                assert cursor.next >= self.visible_end or not has_room
        if self.groups is not None:
            self.groups.check_invariants()


class _Beginning:
    """A cursor that begins when its offset is found. A closure, compiled, would be left to the cyclic collector."""

    def __init__(self, stream: Stream, cursor: Cursor) -> None:
        self._stream = stream
        self._cursor = cursor

    def found(self, offset: int) -> None:
        cursor = self._cursor
        if cursor.member is not None and not cursor.member.active:
            return  # another one of its group is served meanwhile
        if not cursor.consumer.gone and cursor.next == SOUGHT:
            self._stream.begin(cursor, offset)


class _Commit(BatchWaiter):
    """The part of a stream in the open batch: up to which offset."""

    def __init__(self, stream: Stream, batch: i64) -> None:
        self.batch: i64 = batch
        self.end: i64 = 0
        self._stream = stream

    def batch_done(self, batch: i64) -> None:
        self._stream.synced_to(self.end)


class _Sealed(SealedStream):
    """The sealed part of a stream, for the scrubber."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def sealed(self) -> SealedTable:
        return self._stream.messages.sealer.table

    def named(self) -> tuple[str, str]:
        return self._stream.vhost_name, self._stream.name

    def chunk_damaged(self, place: SealedChunk) -> None:
        self._stream.sealed_lost(place.first)
