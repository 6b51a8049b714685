"""Whom a queue serves next: the consumers of the highest priority that has one with room, in turn.

With single-active-consumer only one is served, until it goes; its successor is the one with the highest priority, of
equals the first that came.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.queues.delivery import Consumer


class _Group:
    """Consumers of one priority."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members: list[Consumer] = []
        self.next: i64 = 0


class ConsumerGroups:
    """Those of a queue that may be served. Whoever has no room is passed over."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []  # highest priority first
        self._sole: Consumer | None = None  # the only one, as most queues have it
        self._active: Consumer | None = None

    def regroup(self, consumers: list[Consumer], single_active: bool) -> bool:
        """Take `consumers`, in registration order, and tell whether there are any. Runs when one comes or goes."""
        served = consumers
        if single_active and served:
            if self._active not in served:
                self._active = served[0]
                for consumer in served:
                    if consumer.priority > self._active.priority:
                        self._active = consumer
            served = [self._active]
        by_priority: dict[int, _Group] = {}
        for consumer in served:
            if consumer.priority not in by_priority:
                by_priority[consumer.priority] = _Group(consumer.priority)
            by_priority[consumer.priority].members.append(consumer)
        self._groups = [by_priority[priority] for priority in sorted(by_priority, reverse=True)]
        self._sole = served[0] if len(served) == 1 else None
        return len(self._groups) > 0

    def active(self) -> Consumer | None:
        """Return the only one that is served in a queue with a single active consumer."""
        return self._active

    def clear(self) -> None:
        """Serve nobody."""
        self._groups = []
        self._sole = None
        self._active = None

    def pick(self) -> Consumer | None:
        """Choose who gets the next message; None when nobody may take one."""
        sole = self._sole
        if sole is not None:
            return sole if sole.has_room() else None
        for group in self._groups:
            members = group.members
            count: i64 = len(members)
            tried: i64 = 0
            at: i64 = group.next
            while tried < count:
                consumer = members[at]
                at += 1
                if at == count:
                    at = 0
                if consumer.has_room():
                    group.next = at
                    return consumer
                tried += 1
        return None
