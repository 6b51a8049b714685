"""Retained messages on their way to new subscriptions of an MQTT session.

    Replays         the jobs of a session, and what each of them waits for
    Replay          to a client that is connected, QoS 0 without a queue: as fast as the client takes them
    StoredReplay    to a queue of the session: it waits for the client's answers, for the disk and for memory

1. Each filter is searched once, the oldest first. A filter that is subscribed to again starts over.
2. A job that waits is not in the list of work. It continues when the client has answered (`client_answered`) or has
   taken everything that was sent (`client_took_all`), or when the SUBACK before it was sent (`answers_left`).
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
# No more retained messages are added to a queue that has this number of ready messages, or as many bytes as are allowed
# for QoS 0.
REPLAYED_AHEAD: Final = 1000


class _Searches:
    """The new subscriptions whose retained messages have not all been found: each filter once, the oldest first."""

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
        """Move all of `others` here."""
        for filter_ in others._filters:
            self.put(*others._searches[filter_])
        others._forget()

    def clear(self, reclamation: Reclamation) -> None:
        """Forget all; if they are very many, later turns free them."""
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
        """Take over the rest of `other`."""
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

    It waits while much waits for the client. Only the client's answers change that, so the client is read meanwhile. It
    also waits for the disk and for memory. If a filter is subscribed to again before it is done, it starts over.
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
    """The retained messages that still have to be sent to a session. Made with the first ones."""

    def __init__(self, session: MqttSession, mqtt: MqttPeer) -> None:
        self.session = session
        self._mqtt = mqtt
        self._replay: Replay | None = None  # waits for the client to take the sent bytes
        self._held_runs: list[SubscribeRun] = []  # their SUBACK waits for the disk, and their retained messages for it
        self._stored: StoredReplay | None = None  # for queues of the session, once it was needed

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
        """Return the job that sends retained messages to the queues of this session; make it if it does not exist."""
        replay = self._stored
        if replay is None:
            replay = StoredReplay(self)
            self._stored = replay
        return replay

    def waits_for_answer(self, run: SubscribeRun) -> bool:
        """Tell whether the latest answer waits for the disk. If so, `run` continues when that answer was sent."""
        held = self._mqtt.answers_held()
        if held == self._mqtt.answers_sent():
            return False
        run.answer = held
        self._held_runs.append(run)
        return True

    def answers_left(self) -> None:
        """Send the retained messages of subscriptions whose SUBACK had to wait for the disk, and was sent now."""
        sent = self._mqtt.answers_sent()
        held = self._held_runs
        count = 0
        while count < len(held) and held[count].answer <= sent:
            self._mqtt.begin(held[count])
            count += 1
        del held[:count]

    def is_far_behind(self, qos: int) -> bool:
        """Tell whether so much waits in a queue of this session that retained messages should wait.

        When the connection of a lasting session has ended, nothing waits: nothing would send these messages later.
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

        Until then it is not read. Afterwards `replay` continues.
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
