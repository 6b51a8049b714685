"""Serving of consumer groups: which consumer of a group is active, where it begins, and what it has answered.

    plain stream            the consumer that came first, until it goes; then the next
    of a super stream       the n-th partition is served to the consumer at n modulo their number, in the order of their
                            connections and channels: the same order in all partitions, however the consumers arrived

A stream has a `GroupServing` as soon as it has a group. The memory of groups is `streams.groups`'s business.

1. One consumer of a group is active, as soon as it is known how far the group has come. Only the active one is sent
   anything, and only its answers to that count.
2. A consumer that becomes active begins at the committed offset: no message is skipped. Unacked deliveries of the
   previous one no longer count, and neither do its answers to them: they only give credit back.
3. A consumer that comes or goes costs the same with few and with many others, of its group and of other groups.
4. Messages that an active consumer requeues are sent to it before everything else, flagged redelivered. Its other
   messages are not sent again. Until it has them again, its next offset is the smallest of these (`Member.again`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.consumer import Consumer
from warren.queues.queue_host import QueueHost
from warren.queues.timers import Timer
from warren.queues.unacked import Delivery
from warren.streams.cursor import SOUGHT, Cursor
from warren.streams.groups import COMMIT_MS, GROUPS_MAX, Group, Member, StreamGroups

if TYPE_CHECKING:
    from warren.streams.stream import Stream

STORED_AT_ONCE: Final = 256


class _GroupCursors:
    """The consumers of one group."""

    def __init__(self) -> None:
        self.active: Cursor | None = None  # of the active consumer
        self._came: OrderedDict[Consumer, Cursor] = OrderedDict()  # in the order in which they came
        self._instances: list[Cursor] = []  # in that of their instances; of a partition only, else empty

    def __len__(self) -> int:
        return len(self._came)

    def all(self) -> list[Cursor]:
        """Return them in the order in which they came."""
        return list(self._came.values())

    def add(self, cursor: Cursor) -> None:
        """Add the cursor of a consumer that comes."""
        self._came[cursor.consumer] = cursor
        if self._instances:
            insort(self._instances, cursor, key=_instance)

    def remove(self, cursor: Cursor) -> None:
        """Remove the cursor of a consumer that goes."""
        del self._came[cursor.consumer]
        if self._instances:
            del self._instances[bisect_left(self._instances, _instance(cursor), key=_instance)]
        if self.active is cursor:
            self.active = None

    def chosen(self, place: int) -> Cursor:
        """Return the cursor to serve, by the `place` of the stream among partitions; below 0: not a partition."""
        if place < 0:
            self._instances = []
            return next(iter(self._came.values())) if self.active is None else self.active
        if not self._instances:
            self._instances = sorted(self._came.values(), key=_instance)
        return self._instances[place % len(self._instances)]


class GroupServing:
    """The consumer groups of one stream, and their consumers."""

    def __init__(self, stream: Stream, host: QueueHost) -> None:
        self.known = StreamGroups(host.log, host.name, stream.name, self._found)
        self._stream = stream
        self._host = host
        self._members: dict[Consumer, Cursor] = {}
        self._cursors: dict[Group, _GroupCursors] = {}  # of the groups that have consumers
        self._arrivals: i64 = 0
        self._moved: dict[Group, None] = {}  # the groups that must be stored soon
        self._commits: Timer = _Commits(self)

    def restore(self, index: QueueIndex) -> None:
        """Take over the groups that recovery found."""
        self.known.restore(index)

    def close(self) -> None:
        """Release everything: the stream is deleted."""
        self._host.timers.cancel(self._commits)
        self._commits = Timer()  # it refers to us, and we to it: do not leave it to the cyclic collector
        self.known.close()

    # --- looking --------------------------------------------------------------------------------------------------

    def all(self) -> list[Group]:
        """Return the groups."""
        return list(self.known.groups.values())

    def consumers_of(self, group: Group) -> list[Consumer]:
        """Return the consumers of a group, in the order in which they came."""
        return [cursor.consumer for cursor in self._cursors_of(group)]

    def active_of(self, group: Group) -> Consumer | None:
        """Return the consumer of a group that is served."""
        cursors = self._cursors.get(group)
        return None if cursors is None or cursors.active is None else cursors.active.consumer

    def _cursors_of(self, group: Group) -> list[Cursor]:
        cursors = self._cursors.get(group)
        return [] if cursors is None else cursors.all()

    # --- coming and going -----------------------------------------------------------------------------------------

    def check_room(self, name: str) -> None:
        """Refuse a new group where there are too many.

        Raises:
            ChannelException: 406.
        """
        groups = self.known.groups
        if len(groups) >= GROUPS_MAX and name not in groups:
            stream = self._stream
            raise ChannelException(
                PRECONDITION_FAILED,
                f"queue '{stream.name}' in vhost '{stream.vhost_name}' has {len(groups)} consumer groups, at most "
                f"{GROUPS_MAX} are allowed: delete those that are not used",
            )

    def join(self, name: str, cursor: Cursor) -> None:
        """Make `cursor` one of the group called `name`, from now on there."""
        group = self.known.group(name)
        ledger = cursor.consumer.ledger
        # Kept, as a connection that ends takes its key with it before its consumers leave.
        cursor.member = Member(group, (ledger.outbox.key, int(ledger.channel_number), int(self._arrivals)))
        self._arrivals += 1
        self._members[cursor.consumer] = cursor
        cursors = self._cursors.get(group)
        if cursors is None:
            cursors = _GroupCursors()
            self._cursors[group] = cursors
        cursors.add(cursor)
        self._elect(group)

    def leave(self, consumer: Consumer) -> None:
        """Forget `consumer`, which is gone."""
        cursor = self._members.pop(consumer, None)
        if cursor is None or cursor.member is None:
            return
        member = cursor.member
        member.restart(0)
        group = member.group
        cursors = self._cursors[group]
        cursors.remove(cursor)
        if not len(cursors):
            del self._cursors[group]
        known = self.known
        if known.is_restoring:
            return
        known.store(group)
        self._elect(group)
        if group.stored < 0 and group not in self._cursors:
            known.forget(group)

    def _found(self) -> None:
        """Note that it is now known how far groups had come before the restart."""
        for group in self.all():
            if group.committed < 0 and group not in self._cursors:
                self.known.forget(group)  # its consumers came and went meanwhile
            else:
                self.known.store(group)
                self._elect(group)

    def regroup(self) -> None:
        """Note that the stream has become a partition, or has another place among the partitions."""
        for group in self.all():
            self._elect(group)

    def _elect(self, group: Group) -> None:
        """Serve the consumer of a group whose turn it is."""
        if self.known.is_restoring:
            return
        cursors = self._cursors.get(group)
        if cursors is None:
            return
        served = cursors.active
        chosen = cursors.chosen(self._host.partition_of(self._stream))
        if chosen is served:
            return
        if served is not None:
            self._stand_down(served)
            self.known.store(group)
        cursors.active = chosen
        member = chosen.member
        assert member is not None
        member.active = True
        if group.committed >= 0:
            self._stream.begin(chosen, group.committed)
        else:
            self._stream.start(chosen)

    def _stand_down(self, cursor: Cursor) -> None:
        member = cursor.member
        assert member is not None
        member.active = False
        member.restart(cursor.consumer.ledger.next_tag)
        self._stream.pause_reading(cursor)

    # --- serving --------------------------------------------------------------------------------------------------

    def deliver(self, cursor: Cursor, member: Member, message: Message, offset: i64) -> None:
        """Send `message`, which is at the place of `cursor`, to the consumer that is served."""
        redelivered: bool = True
        if member.again:
            self._go_on(cursor, member)
        else:
            redelivered = member.sends(offset)
        consumer = cursor.consumer
        if redelivered:
            self._stream.redelivered += 1
            consumer.ledger.redelivered += 1
        consumer.ledger.deliver(consumer, message, offset, redelivered)

    def _go_on(self, cursor: Cursor, member: Member) -> int:
        """Move past the first message of those to be sent again; return its offset."""
        offset = heappop(member.again)
        cursor.next = member.again[0] if member.again else member.resume
        return offset

    def gone(self, cursor: Cursor, member: Member) -> None:
        """Move past the first message to be sent again: it no longer exists."""
        member.progress.answered(self._go_on(cursor, member))

    def removed_below(self, cursor: Cursor, member: Member, first: i64) -> None:
        """Move `cursor`, which is below offset `first`: retention has removed everything there."""
        while member.again and member.again[0] < first:
            self.gone(cursor, member)
        if cursor.next < first:
            cursor.next = first

    def requeued(self, delivery: Delivery) -> None:
        """Note that `delivery` is given back; its consumer may not be in a group. An error changes nothing."""
        cursor = self._answering(delivery)
        if cursor is None or cursor.member is None:
            return
        member = cursor.member
        following: i64 = min(cursor.next, delivery.sequence_number)
        if cursor.chunk is not None and not cursor.chunk.has(following):
            cursor.leave_chunk()
        if not member.again:
            member.resume = cursor.next
        heappush(member.again, int(delivery.sequence_number))
        cursor.next = following

    def answered(self, delivery: Delivery) -> None:
        """Note that `delivery` is acknowledged or rejected; its consumer may not be in a group."""
        cursor = self._answering(delivery)
        if cursor is not None and cursor.member is not None:
            cursor.member.progress.answered(int(delivery.sequence_number))
            self.note_progress(cursor, cursor.member)

    def _answering(self, delivery: Delivery) -> Cursor | None:
        """Return the cursor for which an answer to `delivery` counts."""
        consumer = delivery.consumer
        cursor = None if consumer is None else self._members.get(consumer)
        if cursor is None or cursor.member is None:
            return None
        return cursor if delivery.tag >= cursor.member.first_tag else None

    def note_progress(self, cursor: Cursor, member: Member) -> None:
        """Store the committed offset soon, as it may have moved; at once where the group begins."""
        group = member.group
        committed: i64 = member.progress.committed(cursor.next)
        if committed != group.committed:
            group.committed = committed
            if group.stored < 0:
                self.known.store(group)
            else:
                self._moved[group] = None
                self._host.timers.at(self._host.log.now_ms + COMMIT_MS, self._commits)

    def store(self) -> None:
        """Store how far the groups that have moved have come, at most `STORED_AT_ONCE`."""
        moved = list(self._moved)[:STORED_AT_ONCE]
        for group in moved:
            del self._moved[group]
            if self.known.groups.get(group.name) is group:
                self.known.store(group)
        timers = self._host.timers
        timers.worked += len(moved)
        if self._moved:
            timers.at(self._host.log.now_ms, self._commits)

    def check_invariants(self) -> None:
        """Assert what the module header says. For tests."""
        for group in self.all():
            cursors = self._cursors_of(group)
            active = [cursor for cursor in cursors if cursor.member is not None and cursor.member.active]
            assert [cursor.consumer for cursor in active] == ([self.active_of(group)] if active else [])
            assert len(active) == (1 if cursors and not self.known.is_restoring else 0)
            for cursor in cursors:
                member = cursor.member
                assert member is not None
                assert member.active or cursor.next == SOUGHT
                assert not member.again or cursor.next == member.again[0]
                assert len(member.progress) >= len(member.again)

    # --- operators ------------------------------------------------------------------------------------------------

    def reset(self, name: str, offset: i64) -> None:
        """Continue a group at `offset`, and create it if needed; its consumer is served from there immediately."""
        group = self.known.group(name)
        first: i64 = self._stream.first_offset()
        group.committed = offset if offset > first else first
        self.known.store(group)
        for cursor in self._cursors_of(group):
            member = cursor.member
            if member is not None and member.active:
                cursor.leave_chunk()
                member.restart(cursor.consumer.ledger.next_tag)
                self._stream.begin(cursor, group.committed)

    def forget(self, group: Group) -> None:
        """Forget a group that has no consumers."""
        self.known.forget(group)


def _instance(cursor: Cursor) -> tuple[int, int, int]:
    member = cursor.member
    assert member is not None
    return member.instance


class _Commits(Timer):
    """When a stream stores how far its groups have come."""

    def __init__(self, serving: GroupServing) -> None:
        super().__init__()
        self._serving = serving

    def due(self, now_ms: i64) -> None:
        self._serving.store()
