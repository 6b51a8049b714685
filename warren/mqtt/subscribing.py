"""SUBSCRIBE, UNSUBSCRIBE and the resuming of a session, as jobs: a few filters in each turn.

SubscribeRun      make a binding of each filter; then SUBACK, then the retained messages (``mqtt.replays``)
UnsubscribeRun    remove each binding; then UNSUBACK
ResumeRun         restore the subscriptions of an existing session from its bindings; then its queues deliver
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.exchanges.binding import Binding
from warren.mqtt.packets import Subscribe, suback, unsuback
from warren.mqtt.replays import Replay, StoredReplay
from warren.mqtt.sessions import QOS, queue_name
from warren.mqtt.subscriptions import subscription_of
from warren.mqtt.topics import EXCHANGE, SHARED, Subscription
from warren.queues.long_work import Job, Steps

if TYPE_CHECKING:
    from warren.mqtt.session import MqttSession

FILTER_STEPS: Final = 48
FOUND_STEPS: Final = 8
BYTES_PER_STEP: Final = 8  # of a filter: each level has a place in the trie
SEARCH_STEPS: Final = 4


class SubscribeRun(Job):
    """SUBSCRIBE: one filter after the other, then SUBACK and the retained messages for them.

    If SUBACK waits for the disk, the retained messages wait as well, and the client is read meanwhile. If the client
    leaves in this time, only a session that lasts gets them.
    """

    def __init__(self, session: MqttSession, request: Subscribe, version: int) -> None:
        self.answer: i64 = 0  # the number of the SUBACK that waits
        self._session = session
        self._request = request
        self._version = version
        ids = request.properties.ids
        self._identifier = ids[0] if ids else 0
        self._codes: list[int] = []
        self._replayed: list[Subscription] = []  # the subscriptions whose retained messages will be sent
        self._begun = 0  # how many of them have begun
        self._replay: Replay | None = None  # None: nothing is sent without a queue
        self._stored_replay: StoredReplay | None = None
        self._is_told = False

    def run(self, steps: Steps) -> bool:
        session = self._session
        wanted = self._request.wanted
        while len(self._codes) < len(wanted):
            if not session.is_open():
                return True
            if steps.left <= 0:
                return False
            steps.left -= FILTER_STEPS
            each = wanted[len(self._codes)]
            code, is_new = session.subscriptions.subscribe(each, self._identifier)
            self._codes.append(code)
            is_own = code <= 2 and not each.filter.startswith(SHARED)
            if is_own and (each.handling == 0 or (each.handling == 1 and is_new)):
                self._replay_later(each.filter)
        if not self._is_told:
            self._is_told = True
            session.write_done(suback(self._request.packet_id, self._codes, self._version))
            if self._replayed and session.need_replays().waits_for_answer(self):
                return True
        while self._begun < len(self._replayed):
            if steps.left <= 0:
                return False
            steps.left -= SEARCH_STEPS
            self._replay_for(self._replayed[self._begun])
            self._begun += 1
        if self._stored_replay is not None:
            self._stored_replay.begin()
        return self._replay is None or self._replay.run(steps)

    def _replay_later(self, filter_: str) -> None:
        session = self._session
        subscription = session.subscriptions.filters.get(filter_)
        assert subscription is not None
        self._replayed.append(subscription)
        if self._stored_replay is None and (subscription.qos > 0 or session.subscriptions.subscriber is None):
            self._stored_replay = session.need_replays().stored()

    def _replay_for(self, subscription: Subscription) -> None:
        session = self._session
        if session.is_open():
            current = session.subscriptions.filters.get(subscription.filter)
            if current is None:
                return  # the subscription was ended while SUBACK waited
            subscription = current
        if subscription.qos > 0 or session.subscriptions.subscriber is None:
            stored = self._stored_replay
            if stored is None:
                if not session.is_open():
                    return
                stored = session.need_replays().stored()
                self._stored_replay = stored
            stored.add(subscription)
            return
        replay = self._replay
        if replay is None:
            replay = Replay(session.need_replays())
            self._replay = replay
        replay.add(subscription)


class UnsubscribeRun(Job):
    """UNSUBSCRIBE: one filter after the other, then UNSUBACK."""

    def __init__(self, session: MqttSession, request: Subscribe, version: int) -> None:
        self._session = session
        self._request = request
        self._version = version
        self._codes: list[int] = []

    def run(self, steps: Steps) -> bool:
        session = self._session
        wanted = self._request.wanted
        while len(self._codes) < len(wanted):
            if not session.is_open():
                return True
            if steps.left <= 0:
                return False
            steps.left -= FILTER_STEPS
            self._codes.append(session.subscriptions.unsubscribe(wanted[len(self._codes)].filter))
        session.write_done(unsuback(self._request.packet_id, self._codes, self._version))
        return True


class ResumeRun(Job):
    """The restart of an existing session: its subscriptions, then its queues deliver again."""

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._qos: int = 0  # the current index in `QOS`
        self._binding: Binding | None = None  # the next binding of the queue for this QoS
        self._is_begun: bool = False  # whether the search in that queue has begun

    def run(self, steps: Steps) -> bool:
        session = self._session
        while self._qos < len(QOS):
            if not session.is_open():
                return True
            qos = QOS[self._qos]
            if not self._has_found(qos, steps):
                return False
            session.subscriptions.consume_again(qos)
            self._qos += 1
            self._is_begun = False
        return True

    def _has_found(self, qos: int, steps: Steps) -> bool:
        session = self._session
        exchange = session.vhost.exchange(EXCHANGE)
        queue = session.vhost.queues.get(queue_name(session.client_id, qos))
        if queue is None:
            return True
        binding = self._binding
        if not self._is_begun or (binding is not None and exchange.bindings.get(binding) is not binding):
            # Also start over if the next binding was removed meanwhile, or removed and made again.
            binding = exchange.by_destination.get(queue)
            self._is_begun = True
        while binding is not None:
            if steps.left <= 0:
                self._binding = binding
                return False
            steps.left -= FOUND_STEPS + len(binding.routing_key) // BYTES_PER_STEP
            session.subscriptions.know(subscription_of(binding, qos))
            binding = binding.next_to_destination
        self._binding = None
        return True
