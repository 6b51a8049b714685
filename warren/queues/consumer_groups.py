"""Whom a queue serves next: the consumers of the highest priority that has one with room, in turn.

With single-active-consumer only one is served, until it goes; its successor is the one with the highest priority, of
equals the first that came.

1. A consumer that comes or goes costs the same with ten and with a hundred thousand others. Who goes leaves a gap
   behind; the gaps of a group are closed when they are half of it.
2. Who owes as many answers as its prefetch allows is not looked at again before one of them has come: it is out of the
   ring from when it is passed over for that until then, and back at its place in turn.
"""

from __future__ import annotations

from bisect import insort

from mypy_extensions import i64

from warren.queues.bit_set import BitSet
from warren.queues.delivery import Consumer


class _Group:
    """Consumers of one priority, in the order in which they came."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members: list[Consumer | None] = []
        self.count: i64 = 0
        self.first: i64 = 0  # before it are gaps only
        self.next: i64 = 0
        self.ring = BitSet()  # of those that may have room of their own
        self.passed_over: i64 = 0  # by the last `place_with_room`

    def add(self, consumer: Consumer) -> None:
        consumer.group_place = len(self.members)
        self.ring.add(consumer.group_place)
        self.members.append(consumer)
        self.count += 1

    def remove(self, consumer: Consumer) -> None:
        self.members[consumer.group_place] = None
        self.ring.discard(consumer.group_place)
        consumer.away_from = None
        self.count -= 1
        if 2 * self.count < len(self.members):
            self._close_gaps()

    def _close_gaps(self) -> None:
        members: list[Consumer | None] = []
        ring = self.ring
        ring.clear()
        following: i64 = 0
        for at, member in enumerate(self.members):
            if at == self.next:
                following = len(members)
            if member is not None:
                member.group_place = len(members)
                if member.away_from is None:
                    ring.add(member.group_place)
                members.append(member)
        self.members = members
        self.first = 0
        self.next = following if following < len(members) else i64(0)

    def place_with_room(self) -> i64:
        """Return the place of the first in turn that has room; -1 when nobody has."""
        members = self.members
        start: i64 = self.next
        self.passed_over = 0
        ring = self.ring
        at: i64 = start
        first = members[start] if start < len(members) else None
        if first is None or first.away_from is not None:
            at = ring.next_from(start)
        is_behind: bool = True  # the place from which we began
        while True:
            if at < 0 and is_behind:
                is_behind = False
                at = ring.next_from(0)
            if at < 0 or (at >= start and not is_behind):
                return -1
            member = members[at]
            assert member is not None
            if member.has_room():
                return at
            self.passed_over += 1
            if not member.has_own_room():
                ring.discard(at)
                member.away_from = ring
            at = ring.next_from(at + 1)

    def holds_back(self) -> bool:
        """Tell whether somebody has room and only waits for its turn; the queue is woken after that."""
        members = self.members
        at: i64 = self.ring.next_from(0)
        while at >= 0:
            member = members[at]
            assert member is not None
            if member.awaits_turn():
                member.ledger.turns.hold_back(member.queue)
                return True
            at = self.ring.next_from(at + 1)
        return False

    def oldest(self) -> Consumer | None:
        """Return the one that came first; None when nobody is left."""
        members = self.members
        while self.first < len(members):
            member = members[self.first]
            if member is not None:
                return member
            self.first += 1
        return None


class ConsumerGroups:
    """Those of a queue that may be served. Whoever has no room is passed over."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []  # highest priority first
        self._by_priority: dict[int, _Group] = {}
        self._count: int = 0
        self._empty: int = 0  # groups without members: as many as half of them
        self.passed_over: i64 = 0  # by the last `pick`, for want of room
        self.sole: Consumer | None = None  # the only one that is served, as most queues have it
        self._active: Consumer | None = None  # with single-active-consumer, else None
        self._found: Consumer | None = None  # by the last `has_room`

    def add(self, consumer: Consumer, single_active: bool) -> None:
        """Serve `consumer` too."""
        group = self._by_priority.get(consumer.priority)
        if group is None:
            group = _Group(consumer.priority)
            self._by_priority[consumer.priority] = group
            insort(self._groups, group, key=_descending)
        elif group.count == 0:
            self._empty -= 1
        group.add(consumer)
        self._count += 1
        if single_active and self._active is None:
            self._active = consumer
        self._choose()

    def remove(self, consumer: Consumer) -> None:
        """Serve `consumer` no longer."""
        group = self._by_priority[consumer.priority]
        group.remove(consumer)
        self._count -= 1
        if self._found is consumer:
            self._found = None
        if group.count == 0:
            self._empty += 1
            if 2 * self._empty > len(self._groups):
                self._forget_empty()
        if self._active is consumer:
            self._active = self._oldest()
        self._choose()

    def _forget_empty(self) -> None:
        self._empty = 0
        self._groups = [group for group in self._groups if group.count > 0]
        self._by_priority = {group.priority: group for group in self._groups}

    def _oldest(self) -> Consumer | None:
        """Return the first that came of those with the highest priority."""
        for group in self._groups:
            if group.count > 0:
                return group.oldest()
        return None

    def _choose(self) -> None:
        self.passed_over = 0
        self.sole = self._active
        if self.sole is None and self._count == 1:
            self.sole = self._oldest()

    def active(self) -> Consumer | None:
        """Return the only one that is served in a queue with a single active consumer."""
        return self._active

    def clear(self) -> None:
        """Serve nobody."""
        self._groups = []
        self._by_priority = {}
        self._count = 0
        self._empty = 0
        self.sole = None
        self._active = None
        self._found = None

    def narrow(self, consumer: Consumer) -> None:
        """Until `widen` serve only `consumer`, whose turn it is; but whoever has a higher priority goes before it."""
        if self._active is None and len(self._groups) == 1:
            self.sole = consumer
            self.passed_over = 0

    def widen(self) -> None:
        """End that."""
        self._choose()

    def pick(self) -> Consumer | None:
        """Choose who gets the next message; None when nobody may take one. There is no `sole` one."""
        self.passed_over = 0
        for group in self._groups:
            place: i64 = group.place_with_room()
            self.passed_over += group.passed_over
            if place >= 0:
                if group is not self._groups[0] and self._must_wait(group):
                    return None
                members = group.members
                group.next = place + 1 if place + 1 < len(members) else i64(0)
                return members[place]
        return None

    def has_room(self) -> bool:
        """Tell whether somebody could be served, priorities and turns apart. Whoever is found is asked first again."""
        self.passed_over = 0
        found = self._found
        if found is not None and found.has_room():
            return True
        self._found = None
        for group in self._groups:
            place: i64 = group.place_with_room()
            self.passed_over += group.passed_over
            if place >= 0:
                self._found = group.members[place]
                return True
        return False

    def _must_wait(self, group: _Group) -> bool:
        """Tell whether one that goes before `group` has room and only waits for its turn; the queue is woken after."""
        for higher in self._groups:
            if higher is group:
                return False
            self.passed_over += len(higher.members)
            if higher.holds_back():
                return True
        return False


def _descending(group: _Group) -> int:
    return -group.priority
