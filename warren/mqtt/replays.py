"""Retained messages on their way to new subscriptions of an MQTT session.

    Replays         what a session has of these jobs, and which of them waits for what
    Replay          to a client that is connected, QoS 0 without a queue: as fast as the client takes them
    StoredReplay    to a queue of the session: it waits for the client's answers, for the disk and for memory

1. Each filter is searched once, the oldest first. A filter that is subscribed to again starts over.
2. A job that waits is out of the list of work. It begins again when the client has answered (`client_answered`), has
   taken everything that was sent (`client_took_all`), or when the SUBACK before it has left (`answers_left`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.mqtt.retaining import maybe_replayed
from warren.mqtt.sessions import queue_name
from warren.mqtt.topics import Subscription
from warren.msgstore.log.own_writes import ADDS
from warren.msgstore.log.reclamation import Reclamation
from warren.queues.long_work import Job, Steps
from warren.queues.origin import BROKER
from warren.queues.receiver import Receiver
from warren.vhosts.retained import RetainedSearch

if TYPE_CHECKING:
    from warren.mqtt.peer import MqttPeer
    from warren.mqtt.session import MqttSession
    from warren.mqtt.subscribing import SubscribeRun

RETAINED_STEPS: Final = 10
# With this number of messages ready in its queue, or as many bytes as for QoS 0, no more retained messages are added.
REPLAYED_AHEAD: Final = 1000


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
        """Remove the oldest filter: it is done."""
        del self._searches[self._filters.popleft()]

    def take_over(self, others: _Searches) -> None:
        """Add all of `others`, which has none afterwards."""
        for filter_ in others._filters:
            self.put(*others._searches[filter_])
        others._forget()

    def clear(self, reclamation: Reclamation) -> None:
        """Forget all; very many are taken apart later."""
        reclamation.add_named(self._searches, 0)
        self._forget()

    def _forget(self) -> None:
        self._filters.clear()
        self._searches = {}


class Replay(Job):
    """Retained messages for new subscriptions of QoS 0 that need no queue."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays
        self._session = replays.session
        self._left = _Searches()

    def add(self, subscription: Subscription) -> None:
        """Send a subscription its retained messages."""
        self._left.put(subscription, RetainedSearch(self._session.vhost.retained(), subscription.filter))

    def take_over(self, other: Replay) -> None:
        """Send what `other` has left, too."""
        self._left.take_over(other._left)

    def give_up(self) -> None:
        """Send nothing more."""
        self._left.clear(self._session.shared.log.reclamation)

    def run(self, steps: Steps) -> bool:
        session = self._session
        while True:
            first = self._left.maybe_first()
            if first is None:
                return True
            subscription, search = first
            if not session.is_open():
                self.give_up()
                return True
            if self._replays.has_to_wait(subscription, self):
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
                self._replays.send(topic, subscription)


class StoredReplay(Job):
    """Retained messages for new subscriptions whose messages go to a queue of the session.

    It waits while the client has much to take: only the client's answers end that, and they are read meanwhile. It also
    waits for the disk and for memory. If a filter is subscribed to again before it is done, it starts over.
    """

    def __init__(self, replays: Replays) -> None:
        self._replays = replays
        self._session = replays.session
        self._left = _Searches()
        self._is_under_way: bool = False

    def add(self, subscription: Subscription) -> None:
        """Send a subscription its retained messages, after `begin`."""
        self._left.put(subscription, RetainedSearch(self._session.vhost.retained(), subscription.filter))

    def begin(self) -> None:
        """Continue, unless the job is under way, or nothing is left."""
        if not self._is_under_way and self._left.maybe_first() is not None:
            self._is_under_way = True
            self._session.peer.broker.work.begin(self)

    def need(self) -> i64:
        return ADDS

    def run(self, steps: Steps) -> bool:
        session = self._session
        while True:
            first = self._left.maybe_first()
            if first is None or (not session.is_open() and session.kept.owner is None):
                self._left.clear(session.shared.log.reclamation)
                self._is_under_way = False
                return True
            subscription, search = first
            if self._replays.is_far_behind(subscription.qos):
                self._is_under_way = False
                return True
            if steps.left <= 0:
                return False
            steps.left -= 1
            is_wanted = not session.is_open() or session.subscriptions.filters.get(subscription.filter) is not None
            if not is_wanted or search.is_over():
                self._left.remove_first()
                continue
            topic = search.next()
            if topic is not None:
                steps.left -= RETAINED_STEPS
                steps.wrote(self._replays.send(topic, subscription))

    def failed(self) -> bool:
        return True


class Replays:
    """The retained messages that a session is still to be sent. Made with the first ones."""

    def __init__(self, session: MqttSession, mqtt: MqttPeer) -> None:
        self.session = session
        self._mqtt = mqtt
        self._replay: Replay | None = None  # waits for the client to take the sent bytes
        self._held_runs: list[SubscribeRun] = []  # their SUBACK waits for the disk, and what is retained for the SUBACK
        self._stored: StoredReplay | None = None  # for queues of the session, from the first time on

    def send(self, topic: str, subscription: Subscription) -> i64:
        """Send a subscription the retained message of `topic`; return its bytes."""
        session = self.session
        vhost = session.vhost
        receiver: Receiver | None = session.subscriptions.subscriber
        if receiver is None or subscription.qos > 0:
            receiver = vhost.queues.get(queue_name(session.client_id, subscription.qos))
        found = maybe_replayed(vhost.retained(), session.peer.broker.now_ms(), topic)
        if found is None or receiver is None:
            return 0
        receiver.accept(found, BROKER)
        return found.memory_bytes

    def stored(self) -> StoredReplay:
        """Return the job that sends retained messages to the queues of this session; it exists from now on."""
        replay = self._stored
        if replay is None:
            replay = StoredReplay(self)
            self._stored = replay
        return replay

    def waits_for_answer(self, run: SubscribeRun) -> bool:
        """Tell whether the latest answer waits for the disk; `run` then continues when it has left."""
        held = self._mqtt.answers_held()
        if held == self._mqtt.answers_sent():
            return False
        run.answer = held
        self._held_runs.append(run)
        return True

    def answers_left(self) -> None:
        """Send retained messages that belong after answers that have left: these waited for the disk."""
        sent = self._mqtt.answers_sent()
        held = self._held_runs
        count = 0
        while count < len(held) and held[count].answer <= sent:
            self._mqtt.begin(held[count])
            count += 1
        del held[:count]

    def is_far_behind(self, qos: int) -> bool:
        """Tell whether so much waits in a queue of this session that retained messages should wait.

        A session that outlives its connection gets them all when that has ended: nobody would send them later.
        """
        session = self.session
        queue = session.vhost.queues.get(queue_name(session.client_id, qos))
        if queue is None or (not session.is_open() and session.expiry_s > 0):
            return False
        ready = queue.ready
        most_bytes: i64 = session.peer.broker.limits.mqtt_qos0_outbox_bytes
        return ready.count > REPLAYED_AHEAD or ready.body_bytes > most_bytes

    def client_answered(self) -> None:
        """Continue the replay: the client has answered or taken something, so there may be room for more."""
        replay = self._stored
        if replay is not None:
            replay.begin()

    def has_to_wait(self, subscription: Subscription, replay: Replay) -> bool:
        """Tell whether the client has to take something before it is sent more retained messages.

        Nothing more is read from it meanwhile; afterwards `replay` continues.
        """
        subscriber = self.session.subscriptions.subscriber
        if subscription.qos > 0 or subscriber is None or not subscriber.is_behind():
            return False
        waiting = self._replay
        if waiting is None:
            self._replay = replay
        elif waiting is not replay:
            waiting.take_over(replay)
        self._mqtt.pause_for_outbox()
        return True

    def client_took_all(self) -> None:
        """Continue: the client has taken all that was sent."""
        replay = self._replay
        if replay is not None:
            self._replay = None
            self._mqtt.begin(replay)
        self.client_answered()

    def client_left(self) -> None:
        """Drop messages that wait for the client, which has gone, and continue replays into its queues."""
        if self._replay is not None:
            self._replay.give_up()
            self._replay = None
        held, self._held_runs = self._held_runs, []
        for run in held:
            self.session.peer.broker.work.begin(run)

    def end(self) -> None:
        """End with the session. The job refers to us; if it is under way, it ends by itself."""
        self._stored = None
