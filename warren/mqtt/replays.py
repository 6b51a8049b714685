"""Retained messages on their way to new subscriptions of an MQTT session.

    Replay          to a client that is connected, QoS 0 without a queue: as fast as the client takes them
    StoredReplay    to a queue of the session: it waits for the client's answers, for the disk and for memory

1. Each filter is searched once, the oldest first. A filter that is subscribed to again starts over.
2. A job that waits is out of the list of work; the session begins it again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.mqtt.topics import Subscription
from warren.msgstore.log.own_writes import ADDS
from warren.queues.long_work import Job, Steps
from warren.vhosts.retained import RetainedSearch

if TYPE_CHECKING:
    from warren.mqtt.session import MqttSession

RETAINED_STEPS: Final = 10


class _Searches:
    """For which new subscriptions retained messages are still to be looked for: each filter once, the oldest first."""

    def __init__(self) -> None:
        self._filters: deque[str] = deque()
        self._searches: dict[str, tuple[Subscription, RetainedSearch]] = {}

    def put(self, subscription: Subscription, search: RetainedSearch) -> None:
        """Add a subscription, in place of one with the same filter."""
        if subscription.filter not in self._searches:
            self._filters.append(subscription.filter)
        self._searches[subscription.filter] = (subscription, search)

    def maybe_first(self) -> tuple[Subscription, RetainedSearch] | None:
        """Return the oldest."""
        return self._searches[self._filters[0]] if self._filters else None

    def remove_first(self) -> None:
        """The oldest is done."""
        del self._searches[self._filters.popleft()]

    def take_over(self, others: _Searches) -> None:
        """Add all of `others`, which has none afterwards."""
        for filter_ in others._filters:
            self.put(*others._searches[filter_])
        others.clear()

    def clear(self) -> None:
        """Forget all."""
        self._filters.clear()
        self._searches = {}


class Replay(Job):
    """Retained messages for new subscriptions of QoS 0 that need no queue."""

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._left = _Searches()

    def add(self, subscription: Subscription) -> None:
        """Send a subscription its retained messages."""
        self._left.put(subscription, RetainedSearch(self._session.vhost.retained(), subscription.filter))

    def take_over(self, other: Replay) -> None:
        """Send what `other` has left, too."""
        self._left.take_over(other._left)

    def go_on(self, steps: Steps) -> bool:
        session = self._session
        while True:
            first = self._left.maybe_first()
            if first is None:
                return True
            subscription, search = first
            if not session.is_open() or session.has_to_wait(subscription, self):
                return True
            if steps.left <= 0:
                return False
            steps.left -= 1
            if search.is_over():
                self._left.remove_first()
                continue
            topic = search.next()
            if topic is not None:
                steps.left -= RETAINED_STEPS
                session.send_retained(topic, subscription)


class StoredReplay(Job):
    """Retained messages for new subscriptions whose messages go to a queue of the session.

    It waits while the client has much to take: only the client's answers end that, and they are read meanwhile. It also
    waits for the disk and for memory. If a filter is subscribed to again before it is done, it starts over.
    """

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._left = _Searches()
        self._is_under_way: bool = False

    def add(self, subscription: Subscription) -> None:
        """Send a subscription its retained messages, after `begin`."""
        self._left.put(subscription, RetainedSearch(self._session.vhost.retained(), subscription.filter))

    def begin(self) -> None:
        """Continue, unless the job is under way, or nothing is left."""
        if not self._is_under_way and self._left.maybe_first() is not None:
            self._is_under_way = True
            self._session.connection.broker.work.begin(self)

    def need(self) -> i64:
        return ADDS

    def go_on(self, steps: Steps) -> bool:
        session = self._session
        while True:
            first = self._left.maybe_first()
            if first is None or (not session.is_open() and session.expiry_s == 0):
                self._left.clear()
                self._is_under_way = False
                return True
            subscription, search = first
            if session.is_far_behind(subscription.qos):
                self._is_under_way = False
                return True
            if steps.left <= 0:
                return False
            steps.left -= 1
            is_wanted = not session.is_open() or session.subscriptions.get(subscription.filter) is not None
            if not is_wanted or search.is_over():
                self._left.remove_first()
                continue
            topic = search.next()
            if topic is not None:
                steps.left -= RETAINED_STEPS
                steps.wrote(session.send_retained(topic, subscription))
