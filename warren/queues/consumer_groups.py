"""Chooses the consumer that a queue serves next: among the highest priority that has one with room, in turn.

With single-active-consumer only one is served, until it goes. Its successor is the one with the highest priority; among
equals the first that came.

1. A consumer that comes or goes costs the same with ten and with a hundred thousand others. A consumer that goes leaves
   a gap; the gaps of a group are closed when they are half of it.
2. A consumer that owes as many answers as its prefetch allows is not looked at again before an answer has come. It
   leaves the ring when it is passed over, and then returns to its place in turn.
3. A priority is not looked at again while its ring is empty. With n priorities coming, going and choosing take log n
   steps: each consumer may have a priority of its own. A priority that is looked at in vain has at least one consumer
   that counts as passed over.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.queues.bit_set import BitSet
from warren.queues.consumer import Consumer
from warren.queues.least_key import LeastKey

# This many passed-over consumers count as one message; when there are more, a publish does not look for one itself.
PASSED_OVER_PER_MESSAGE: Final = 32
# A search that passes over more groups than this looks at the others in place.
TAKEN_OUT_MAX: Final = 64


class _Ranking:
    """Groups of different priorities. `top`: the one with the highest; None without groups."""

    def __init__(self) -> None:
        self.groups: dict[int, _Group] = {}  # by their negative priority
        self.top: _Group | None = None
        self.is_over: bool = False  # the queue is deleted: consumers no longer come back
        self._first: LeastKey | None = None  # not with a single group, as in most queues

    def put(self, group: _Group) -> None:
        if self.is_over:
            return
        rank = -group.priority
        self.groups[rank] = group
        if self.top is None:
            self.top = group
        elif self._first is None:
            self._first = LeastKey()
            self._first.came(-self.top.priority)
        if self._first is not None:
            self._first.came(rank)
        if group.priority > self.top.priority:
            self.top = group

    def remove(self, group: _Group) -> None:
        self.groups.pop(-group.priority, None)
        first = self._first
        if first is not None:
            first.went(-group.priority)
        if self.top is group:
            self.top = self.groups[first.get()] if first is not None and self.groups else None

    def clear(self) -> None:
        """Forget all groups: they refer to each other, so do not leave them to the cyclic collector."""
        self.groups.clear()
        self.top = None
        self._first = None
        self.is_over = True


class _Group(BitSet):
    """Consumers of one priority, in the order in which they came; the set has the places of the ring.

    The ring has those that may have room of their own. While it is not empty the group is in `awake`.
    """

    def __init__(self, priority: int, awake: _Ranking) -> None:
        super().__init__()
        self.priority = priority
        self.is_awake: bool = False
        self._awake = awake
        self.members: list[Consumer | None] = []
        self.count: i64 = 0
        self.first: i64 = 0  # only gaps are before it
        self.next: i64 = 0
        self.passed_over: i64 = 0  # by the last `place_with_room`

    def add(self, number: i64) -> None:
        BitSet.add(self, number)
        if not self.is_awake:
            self.is_awake = True
            self._awake.put(self)

    def join(self, consumer: Consumer) -> None:
        consumer.group_place = len(self.members)
        self.members.append(consumer)
        self.count += 1
        self.add(consumer.group_place)

    def leave(self, consumer: Consumer) -> None:
        self.members[consumer.group_place] = None
        self.discard(consumer.group_place)
        consumer.away_from = None
        self.count -= 1
        if 2 * self.count < len(self.members):
            self._close_gaps()

    def _close_gaps(self) -> None:
        members: list[Consumer | None] = []
        self.clear()
        following: i64 = 0
        for at, member in enumerate(self.members):
            if at == self.next:
                following = len(members)
            if member is not None:
                member.group_place = len(members)
                if member.away_from is None:
                    self.add(member.group_place)
                members.append(member)
        self.members = members
        self.first = 0
        self.next = following if following < len(members) else i64(0)

    def place_with_room(self) -> i64:
        """Return the place of the first in turn that has room; -1 when all are full."""
        members = self.members
        start: i64 = self.next
        self.passed_over = 0
        at: i64 = start
        first = members[start] if start < len(members) else None
        if first is None or first.away_from is not None:
            at = self.next_from(start)
        is_behind: bool = True  # the place from which we began
        while True:
            if at < 0 and is_behind:
                is_behind = False
                at = self.next_from(0)
            if at < 0 or (at >= start and not is_behind):
                return -1
            member = members[at]
            assert member is not None
            if member.has_room():
                return at
            self.passed_over += 1
            if not member.has_own_room():
                self.discard(at)
                member.away_from = self
            at = self.next_from(at + 1)

    def holds_back(self) -> bool:
        """Tell whether a consumer has room and only waits for its turn; the queue is woken after that."""
        members = self.members
        at: i64 = self.next_from(0)
        while at >= 0:
            member = members[at]
            assert member is not None
            if member.awaits_turn():
                member.ledger.turns.hold_back(member.queue)
                return True
            at = self.next_from(at + 1)
        return False

    def oldest(self) -> Consumer | None:
        """Return the one that came first; None when the group is empty."""
        members = self.members
        while self.first < len(members):
            member = members[self.first]
            if member is not None:
                return member
            self.first += 1
        return None


class ConsumerGroups:
    """The consumers of a queue that may be served. Those without room are passed over."""

    def __init__(self) -> None:
        self._ranking: _Ranking | None = None  # with single-active-consumer: of all groups
        self._awake = _Ranking()  # the groups with consumers in their ring; some rings may be empty by now
        self._passed: list[_Group] = []  # by the search under way: their rings have no consumer with room
        self._passed_in_place: list[_Group] = []  # the same, of those that were not taken out of `_awake`
        self._place: i64 = -1  # the place that the search has found
        self._by_priority: dict[int, _Group] = {}
        self._count: int = 0
        self.passed_over: i64 = 0  # by the last `pick`, for want of room
        self.sole: Consumer | None = None  # the only one that is served, as in most queues
        self.exclusive: Consumer | None = None  # then there is no other one
        self._active: Consumer | None = None  # with single-active-consumer, else None
        self._found: Consumer | None = None  # by the last `has_room`

    def add(self, consumer: Consumer, single_active: bool) -> None:
        """Serve `consumer` too."""
        group = self._by_priority.get(consumer.priority)
        if group is None:
            group = _Group(consumer.priority, self._awake)
            self._by_priority[consumer.priority] = group
            if single_active:
                if self._ranking is None:
                    self._ranking = _Ranking()
                self._ranking.put(group)
        group.join(consumer)
        self._count += 1
        if consumer.exclusive:
            self.exclusive = consumer
        if single_active and self._active is None:
            self._active = consumer
        self._choose()

    def remove(self, consumer: Consumer) -> None:
        """Remove `consumer`: it is no longer served."""
        group = self._by_priority[consumer.priority]
        group.leave(consumer)
        self._count -= 1
        if self._found is consumer:
            self._found = None
        if self.exclusive is consumer:
            self.exclusive = None
        if group.count == 0:
            del self._by_priority[consumer.priority]
            self._awake.remove(group)
            if self._ranking is not None:
                self._ranking.remove(group)
        if self._active is consumer:
            self._active = self._next_active()
        self._choose()

    def _next_active(self) -> Consumer | None:
        """Return the consumer that came first among those with the highest priority."""
        ranking = self._ranking
        return None if ranking is None or ranking.top is None else ranking.top.oldest()

    def _choose(self) -> None:
        self.passed_over = 0
        self.sole = self._active
        if self.sole is None and self._count == 1:
            for group in self._by_priority.values():
                self.sole = group.oldest()

    def active(self) -> Consumer | None:
        """Return the only one that is served in a queue with a single active consumer."""
        return self._active

    def clear(self) -> None:
        """Remove all consumers."""
        self._ranking = None
        self._awake.clear()
        self._by_priority = {}
        self._count = 0
        self.sole = None
        self.exclusive = None
        self._active = None
        self._found = None

    def narrow(self, consumer: Consumer) -> None:
        """Serve only `consumer`, whose turn it is, until `widen`, and consumers of a higher priority before it."""
        if self._active is None and len(self._by_priority) == 1:
            self.sole = consumer
            self.passed_over = 0

    def widen(self) -> None:
        """Serve all consumers again."""
        self._choose()

    def rest(self, consumer: Consumer) -> bool:
        """Skip `consumer`, which finds nothing, until it has come back; False: it is the `sole` one."""
        group = self._by_priority[consumer.priority]
        if consumer.away_from is None:
            group.discard(consumer.group_place)
            consumer.away_from = group
        return self.sole is not consumer

    def pick(self) -> Consumer | None:
        """Choose who gets the next message; None when nobody may take one. Not for a `sole` one."""
        group = self._search()
        if group is None or (self._passed and self._must_wait()):
            self._end_search()
            return None
        self._end_search()
        members = group.members
        place: i64 = self._place
        group.next = place + 1 if place + 1 < len(members) else i64(0)
        return members[place]

    def has_room(self) -> bool:
        """Tell whether a consumer could be served, priorities and turns apart. That one is asked first next time."""
        found = self._found
        if found is not None and found.has_room():
            self.passed_over = 0
            return True
        group = self._search()
        self._end_search()
        self._found = None if group is None else group.members[self._place]
        return group is not None

    def _search(self) -> _Group | None:
        """Find the first with room, at `_place` of the returned group. Call `_end_search` afterwards."""
        self.passed_over = 0
        awake = self._awake
        while awake.top is not None:
            group = awake.top
            self._place = group.place_with_room()
            self.passed_over += group.passed_over
            if self._place >= 0:
                return group
            if len(awake.groups) == 1:
                break  # as with most queues, whose consumers are equals
            if len(self._passed) == TAKEN_OUT_MAX:
                return self._search_in_place()
            awake.remove(group)
            if group.next_from(0) < 0:
                group.is_awake = False
            else:
                self._passed.append(group)
        return None

    def _search_in_place(self) -> _Group | None:
        """Continue the search without taking the groups out: they are many, and would all have to go back."""
        awake = self._awake
        for rank in sorted(awake.groups):
            group = awake.groups[rank]
            self._place = group.place_with_room()
            self.passed_over += group.passed_over
            if self._place >= 0:
                return group
            if group.next_from(0) < 0:
                group.is_awake = False
                awake.remove(group)
            else:
                self._passed_in_place.append(group)
        return None

    def _end_search(self) -> None:
        if self._passed_in_place:
            self._passed_in_place = []
        passed = self._passed
        if passed:
            for group in passed:
                self._awake.put(group)
            passed.clear()

    def take_search_cost(self) -> i64:
        """Return the cost of the last search, in messages, once."""
        cost: i64 = self.passed_over // PASSED_OVER_PER_MESSAGE
        self.passed_over = 0
        return cost

    def _must_wait(self) -> bool:
        """Tell whether a passed-over consumer has room and only waits for its turn; the queue is woken after."""
        for group in self._passed + self._passed_in_place:
            self.passed_over += len(group.members)
            if group.holds_back():
                return True
        return False


# Shared by all queues without consumers, of which there may be very many.
NOBODY: Final = ConsumerGroups()
