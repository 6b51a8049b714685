"""Queues with rules, obviously right: lists, sorted where order matters and searched from the start; time is a number.

The model does not choose the consumer of a message. `Queue.handed` says which messages go out, in order; the comparison
says which consumer got each (`World.took`). Between two looks consumers together have limited room, and a message is
not delivered without room.

Events at one moment in several queues, or of different kinds in one queue, have no order here, because messages on disk
come later: `World.moment` is told an order. Expiries are in order, and so are releases and returns.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

NEVER = 1 << 62
UNLIMITED = 1 << 30
UNDELIVERED_RETRY_MS = 5000
QUORUM_DELIVERY_LIMIT = 20


@dataclass(frozen=True)
class Death:
    """An entry of x-death. ``exchange``, ``key`` and ``expiration_ms`` are those of the first such death."""

    queue: str
    reason: str
    count: int
    exchange: str
    key: str
    expiration_ms: int | None


@dataclass(frozen=True)
class Message:
    """A published message, or a dead letter. ``first`` and ``last`` death: reason, queue, exchange.

    ``failures`` and ``returns``: the counts that it has brought from the queue that it died in.
    """

    body: bytes
    exchange: str
    key: str
    persistent: bool = False
    priority: int = 0
    expiration_ms: int | None = None
    delay_ms: int | None = None
    deaths: tuple[Death, ...] = ()  # the latest first
    first: tuple[str, str, str] | None = None
    last: tuple[str, str, str] | None = None
    failures: int = 0
    returns: int = 0

    def __deepcopy__(self, memo: object) -> Message:
        return self  # it never changes

    def died(self, queue: str, reason: str, exchange: str, key: str | None) -> Message:
        """Return the dead letter."""
        same = [death for death in self.deaths if (death.queue, death.reason) == (queue, reason)]
        others = [death for death in self.deaths if death not in same]
        death = Death(queue, reason, 1, self.exchange, self.key, self.expiration_ms)
        if same:
            death = replace(same[0], count=same[0].count + 1)
        return replace(
            self,
            exchange=exchange,
            key=self.key if key is None else key,
            expiration_ms=None,
            deaths=(death, *others),
            first=self.first or (reason, queue, self.exchange),
            last=(reason, queue, self.exchange),
        )

    def has_come_round_to(self, queue: str) -> bool:
        """Tell whether it died in `queue` and no client has rejected it since."""
        for death in self.deaths:
            if death.reason == "rejected":
                return False
            if death.queue == queue:
                return True
        return False


class Rules:
    """The rules that arguments and policy add up to."""

    def __init__(self, arguments: dict[str, Any], policy: dict[str, Any]) -> None:
        values = {name.removeprefix("x-"): value for name, value in arguments.items()}
        for name, value in policy.items():
            if name not in values:
                values[name] = value
            elif isinstance(value, int):
                values[name] = min(value, values[name])
        self.quorum = values.get("queue-type") == "quorum"
        self.single_active: bool = values.get("single-active-consumer", False)
        self.in_memory = values.get("storage") == "memory"
        self.ttl_ms: int | None = values.get("message-ttl")
        self.expires_ms: int | None = values.get("expires")
        self.max_length: int | None = values.get("max-length")
        self.max_length_bytes: int | None = values.get("max-length-bytes")
        self.overflow: str = values.get("overflow", "drop-head")
        if self.quorum and self.overflow == "reject-publish-dlx":
            self.overflow = "drop-head"
        self.dead_letter_exchange: str | None = values.get("dead-letter-exchange")
        self.dead_letter_key: str | None = values.get("dead-letter-routing-key")
        self.keeps_letters = (
            self.quorum
            and values.get("dead-letter-strategy") == "at-least-once"
            and self.dead_letter_exchange is not None
            and self.overflow == "reject-publish"
        )
        self.levels: int = values.get("max-priority", 0)
        self.visibility_ms: int | None = values.get("visibility-timeout")
        self.delivery_limit: int | None = values.get("delivery-limit", QUORUM_DELIVERY_LIMIT if self.quorum else None)
        self.limit_action: str = values.get("delivery-limit-action", "dead-letter")
        self.backoff_ms: list[int] = values.get("retry-backoff", [])
        self.retry_min_ms: int | None = values.get("delayed-retry-min")
        self.retry_max_ms: int | None = values.get("delayed-retry-max", self.retry_min_ms)
        self.retry_type: str = values.get("delayed-retry-type", "all" if self.backoff_ms else "disabled")
        if not self.backoff_ms and self.retry_min_ms is None:
            self.retry_type = "disabled"
        self.counts = self.quorum or self.delivery_limit is not None or self.retry_type != "disabled"

    def __deepcopy__(self, memo: object) -> Rules:
        return self  # they never change

    def is_over(self, count: int, size: int) -> bool:
        """Tell whether `count` messages, or `size` bytes, exceed the limit."""
        too_many = self.max_length is not None and count > self.max_length
        return too_many or (self.max_length_bytes is not None and size > self.max_length_bytes)

    def retry_delay_ms(self, failed: bool, times: int) -> int:
        if self.retry_type not in ("all", "failed" if failed else "returned"):
            return 0
        if self.backoff_ms:
            return self.backoff_ms[min(times, len(self.backoff_ms)) - 1]
        assert self.retry_min_ms is not None
        assert self.retry_max_ms is not None
        return min(times * self.retry_min_ms, self.retry_max_ms)


@dataclass(eq=False)
class Entry:
    """A message in a queue. ``came_ms``: when; ``ages_ms``: from when on the queue's time to live counts.

    ``alone``: it does not leave with its neighbours when that is over, but by its own deadline. ``doubtful``: it was
    delivered before it was held, and the flag that says so is in memory only. ``suspect``: it was held when the broker
    was killed, so it may have been delivered since. ``aged``: the time to live came later than it, from a policy.
    """

    message: Message
    came_ms: int
    ages_ms: int
    place: tuple[int, int] = (0, 0)  # the lower the priority the greater the first number
    alone: bool = False
    redelivered: bool = False
    doubtful: bool = False
    suspect: bool = False
    aged: bool = False
    returned: bool = False
    failures: int = 0
    returns: int = 0
    until_ms: int = 0  # while it is held
    stored_until_ms: int = 0  # a letter that is tried again and again: until when it was held at first
    handed: int = 0  # which one it was of all that went out

    def counted(self) -> Message:
        """Return the message with the counts it has now."""
        return replace(self.message, failures=self.failures, returns=self.returns)

    def __lt__(self, other: Entry) -> bool:
        return self.place < other.place


@dataclass(eq=False)
class Consumer:
    """A consumer of the queue called ``queue``; once it is gone policies no longer change its ``visible_ms``."""

    client: int
    queue: str
    tag: str
    no_ack: bool
    prefetch: int
    visible_ms: int | None
    outstanding: int = 0

    def room(self) -> int:
        return UNLIMITED if self.no_ack or not self.prefetch else max(0, self.prefetch - self.outstanding)


@dataclass(eq=False)
class Delivery:
    """A message at a client. ``limit_ms``: when it comes back unanswered."""

    queue: Queue
    entry: Entry
    consumer: Consumer | None
    limit_ms: int | None = None

    def see_to(self, now_ms: int) -> None:
        """Give it its time, from now on."""
        visible_ms = self.queue.rules.visibility_ms if self.consumer is None else self.consumer.visible_ms
        if visible_ms is not None:
            self.limit_ms = now_ms + visible_ms


@dataclass(eq=False)
class Channel:
    """A client's one channel. Those of its answers that wait for a commit are no longer ``unacked``."""

    client: int
    transactional: bool = False
    tags: int = 0
    prefetch: int = 0
    unacked: dict[int, Delivery] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    published: list[tuple[Message, list[Queue], int]] = field(default_factory=list)  # with: until when it is held
    acked: dict[int, Delivery] = field(default_factory=dict)
    rejected: list[tuple[int, Delivery, bool, bool]] = field(default_factory=list)  # tag, requeue, failed

    def take(self, tag: int, multiple: bool) -> dict[int, Delivery]:
        """Remove what an answer names."""
        named = [each for each in sorted(self.unacked) if each == tag or (multiple and each < tag)]
        return {each: self.unacked.pop(each) for each in named}


class Queue:
    """A queue. ``hungry``: whether consumers may have room; a publish into a queue of full consumers waits.

    ``returning``: messages come back. Nothing is handed out until the last one has its place, also of what comes
    meanwhile, and limits count all of it.
    """

    def __init__(
        self, world: World, name: str, durable: bool, arguments: dict[str, Any], policy: dict[str, Any]
    ) -> None:
        self.world = world
        self.name = name
        self.durable = durable
        self.arguments = arguments
        self.rules = Rules(arguments, policy)
        self.deleted = False
        self.ready: list[Entry] = []
        self.held: list[Entry] = []
        self.parked: list[Entry] = []
        self.undelivered: list[Entry] = []
        self.handed: list[Entry] = []
        self.out: list[Delivery] = []
        self.consumers: list[Consumer] = []
        self.hungry = False
        self.returning = False
        self.used_ms = world.now_ms
        self.latest_ms = world.now_ms  # of those that came while there was a time to live
        self._numbers = 0

    # --- in ---------------------------------------------------------------------------------------------------------

    def size(self) -> int:
        return sum(len(entry.message.body) for entry in self.ready)

    def publish(self, message: Message) -> bool:
        """Take a message; False: it is refused."""
        rules = self.rules
        full = rules.is_over(len(self.ready) + 1, self.size() + len(message.body))
        if full and rules.overflow != "drop-head":
            if rules.overflow == "reject-publish-dlx":
                self.dead_letter(message, "maxlen")
            return False
        self.note_coming()
        self.add(self.entry(message))
        return True

    def note_coming(self) -> None:
        if self.rules.ttl_ms is not None:
            self.latest_ms = max(self.latest_ms, self.world.now_ms)

    def entry(self, message: Message) -> Entry:
        entry = Entry(message, self.world.now_ms, self.world.now_ms)
        if not self.rules.counts:  # else each queue starts its own count
            entry.failures, entry.returns = message.failures, message.returns
        return entry

    def add(self, entry: Entry) -> None:
        """A message comes: to a consumer at once, or it waits."""
        self._numbers += 1
        entry.place = (self.rules.levels - min(entry.message.priority, self.rules.levels), self._numbers)
        if not self.ready and self.has_room():
            self.hand(entry)
            return
        insort(self.ready, entry)
        if self.rules.ttl_ms is not None:
            entry.alone = entry.came_ms < self.latest_ms
            self.latest_ms = max(self.latest_ms, entry.came_ms)
        if self.deadline_ms(entry) <= self.world.now_ms:
            self.leave(entry, "expired")
        self.keep_limits()

    def hold(self, entry: Entry, until_ms: int) -> None:
        entry.until_ms = until_ms
        self.held.append(entry)

    def keep_limits(self) -> None:
        while self.rules.overflow == "drop-head" and self.rules.is_over(len(self.ready), self.size()):
            self.leave(self.ready[0], "maxlen")

    # --- out --------------------------------------------------------------------------------------------------------

    def served(self) -> list[Consumer]:
        return self.consumers[:1] if self.rules.single_active else self.consumers

    def has_room(self) -> bool:
        """Tell whether a consumer can have one more; note when none can."""
        room = sum(consumer.room() for consumer in self.served())
        self.hungry = self.hungry and not self.returning and room > len(self.handed)
        return self.hungry

    def hand_out(self) -> None:
        """Give consumers what waits."""
        while self.ready and self.has_room():
            self.hand(self.ready.pop(0))

    def hand(self, entry: Entry) -> None:
        self.world.count += 1
        entry.handed = self.world.count
        self.handed.append(entry)

    def leave(self, entry: Entry, reason: str) -> None:
        self.ready.remove(entry)
        self.dead_letter(entry.counted(), reason)

    def dead_letter(self, message: Message, reason: str) -> None:
        rules = self.rules
        if rules.dead_letter_exchange is None:
            return
        self.world.letters.append(
            (self, message.died(self.name, reason, rules.dead_letter_exchange, rules.dead_letter_key))
        )
        self.world.place_letters()

    def keep_letter(self, letter: Message) -> None:
        now_ms = self.world.now_ms
        until_ms = now_ms + UNDELIVERED_RETRY_MS
        self.undelivered.append(Entry(letter, now_ms, now_ms, until_ms=until_ms, stored_until_ms=until_ms))

    # --- back -------------------------------------------------------------------------------------------------------

    def give_back(self, delivery: Delivery, *, failed: bool) -> None:
        """A delivery comes back, to its place or where the rules say."""
        if self.deleted:
            return
        self.out.remove(delivery)
        rules, now_ms, entry = self.rules, self.world.now_ms, delivery.entry
        if rules.counts:
            if failed and rules.delivery_limit is not None and entry.failures >= rules.delivery_limit:
                if rules.limit_action == "park":
                    self.parked.append(entry)
                elif rules.limit_action == "dead-letter":
                    self.dead_letter(entry.counted(), "delivery_limit")
                return
            entry.failures += failed
            entry.returns += 1
            delay_ms = rules.retry_delay_ms(failed, entry.failures if failed else entry.returns)
            if delay_ms:
                self.hold(entry, now_ms + delay_ms)
                return
        if self.deadline_ms(entry) <= now_ms:
            self.dead_letter(entry.counted(), "expired")
            return
        entry.redelivered = entry.returned = True
        entry.doubtful = False
        entry.alone = entry.message.expiration_ms is not None or rules.levels > 0 or entry.came_ms < self.latest_ms
        insort(self.ready, entry)
        self.keep_limits()

    # --- time -------------------------------------------------------------------------------------------------------

    def deadline_ms(self, entry: Entry) -> int:
        own_ms, ttl_ms = entry.message.expiration_ms, self.rules.ttl_ms
        return min(
            NEVER if own_ms is None else entry.came_ms + own_ms,
            NEVER if ttl_ms is None else entry.ages_ms + ttl_ms,
        )

    def aged_ms(self, entry: Entry) -> int:
        return NEVER if self.rules.ttl_ms is None or entry.alone else entry.ages_ms + self.rules.ttl_ms

    def alone_until_ms(self, entry: Entry) -> int:
        own_ms, ttl_ms = entry.message.expiration_ms, self.rules.ttl_ms
        return min(
            NEVER if own_ms is None else entry.came_ms + own_ms,
            NEVER if ttl_ms is None or not entry.alone else entry.ages_ms + ttl_ms,
        )

    # The dead letter of one that expires may come here, and push others out.

    def expire_alone(self) -> None:
        for entry in sorted(self.ready, key=lambda each: (self.alone_until_ms(each), each.place)):
            if self.alone_until_ms(entry) <= self.world.now_ms and entry in self.ready:
                self.leave(entry, "expired")

    def expire_aged(self) -> None:
        for entry in sorted(self.ready, key=lambda each: (not each.returned, each.place)):
            if self.deadline_ms(entry) <= self.world.now_ms and entry in self.ready:
                self.leave(entry, "expired")

    def unused_until_ms(self) -> int:
        return NEVER if self.consumers or self.rules.expires_ms is None else self.used_ms + self.rules.expires_ms

    def timers(self) -> list[tuple[int, Callable[[], None]]]:
        """Return when what will happen here."""
        over = self.rules.overflow == "drop-head" and self.rules.is_over(len(self.ready), self.size())
        limits_ms = [delivery.limit_ms for delivery in self.out if delivery.limit_ms is not None]
        return [
            (min([NEVER, *(self.alone_until_ms(entry) for entry in self.ready)]), self.expire_alone),
            (min([NEVER, *(self.aged_ms(entry) for entry in self.ready)]), self.expire_aged),
            (0 if over else NEVER, self.keep_limits),  # after a restart
            (min([NEVER, *(entry.until_ms for entry in self.held)]), self.release),
            (min([NEVER, *(entry.until_ms for entry in self.undelivered)]), self.send_again),
            (min([NEVER, *limits_ms]), self.take_back),
            (self.unused_until_ms(), self.end),
        ]

    def release(self) -> None:
        now_ms = self.world.now_ms
        for entry in sorted(self.held, key=lambda each: each.until_ms):
            if entry.until_ms <= now_ms:
                self.held.remove(entry)
                entry.came_ms = entry.ages_ms = now_ms
                entry.aged = entry.alone = entry.returned = False
                entry.redelivered = entry.returns > 0 or entry.suspect
                entry.doubtful = entry.redelivered and self.world.pages_out
                self.note_coming()
                self.add(entry)

    def send_again(self) -> None:
        for entry in sorted(self.undelivered, key=lambda each: each.until_ms):
            if entry.until_ms <= self.world.now_ms:
                if self.world.send_again(entry.message):
                    self.undelivered.remove(entry)
                else:
                    entry.until_ms = self.world.now_ms + UNDELIVERED_RETRY_MS

    def take_back(self) -> None:
        now_ms = self.world.now_ms
        late = [delivery for delivery in self.out if delivery.limit_ms is not None and delivery.limit_ms <= now_ms]
        for delivery in sorted(late, key=lambda each: (each.limit_ms, each.entry.handed)):
            delivery.limit_ms = None
            if self.world.take_back(delivery):
                self.give_back(delivery, failed=True)
                self.hungry = True

    def end(self) -> None:
        self.world.expired.append(self)

    # --- rules ------------------------------------------------------------------------------------------------------

    def apply(self, policy: dict[str, Any]) -> None:
        before, self.rules = self.rules, Rules(self.arguments, policy)
        if before.expires_ms != self.rules.expires_ms:
            self.used_ms = self.world.now_ms
        if before.ttl_ms is None:
            for entry in [*self.ready, *(delivery.entry for delivery in self.out)]:
                entry.ages_ms = self.world.now_ms
                entry.aged = True
        if before.ttl_ms is None or (self.rules.ttl_ms is not None and self.rules.ttl_ms < before.ttl_ms):
            for entry in self.ready:
                entry.alone = False  # no deadline was noted for it, or a later one
        for consumer in self.consumers:
            consumer.visible_ms = self.rules.visibility_ms
        self.keep_limits()
        self.hungry = True
        self.expire_alone()
        self.expire_aged()

    def restart(self, *, clean: bool) -> None:
        """Come back from disk. Outstanding deliveries were put back before, if the stop was clean."""
        for delivery in self.out:
            insort(self.ready, delivery.entry)
        self.out = []
        stored = self.durable and not self.rules.in_memory
        for entries in (self.ready, self.held, self.parked, self.undelivered):
            entries[:] = [entry for entry in entries if stored and (entry.message.persistent or self.rules.quorum)]
        for entry in self.ready:
            entry.doubtful = clean and entry.redelivered and not entry.returned
            entry.redelivered = entry.redelivered or not clean
            entry.returned = entry.alone = False
        for entry in self.held:
            entry.suspect = entry.suspect or not clean
        for entry in self.undelivered:
            entry.until_ms = entry.stored_until_ms
        self.consumers = []
        self.hungry = False
        self.used_ms = self.world.now_ms
        self.latest_ms = self.world.now_ms


class World:
    """All queues, in the order they were declared, and the channels."""

    def __init__(self, now_ms: int, *, pages_out: bool = False) -> None:
        self.now_ms = now_ms
        self.pages_out = pages_out  # memory is so short that messages leave it
        self.queues: dict[str, Queue] = {}
        self.bound: list[str] = []  # to the fanout exchange
        self.policies: dict[str, dict[str, Any]] = {}  # by the name of the queue
        self.channels: dict[int, Channel] = {}
        self.expired: list[Queue] = []
        self.letters: list[tuple[Queue, Message]] = []  # of what has died, and where; they are sent in this order
        self.placing = False
        self.count = 0

    # --- queues -----------------------------------------------------------------------------------------------------

    def declare(self, name: str, durable: bool, arguments: dict[str, Any]) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(self, name, durable, arguments, self.policies.get(name, {}))
        queue.used_ms = self.now_ms
        return queue

    def delete(self, queue: Queue) -> list[Consumer]:
        """Delete a queue; return the consumers that lose it."""
        queue.deleted = True
        del self.queues[queue.name]
        self.bound = [name for name in self.bound if name != queue.name]
        for consumer in queue.consumers:
            del self.channels[consumer.client].consumers[consumer.tag]
        return queue.consumers

    def bind(self, name: str) -> None:
        if name not in self.bound:
            self.bound.append(name)

    def purge(self, queue: Queue) -> int:
        count = len(queue.ready)
        queue.ready = []
        return count

    def put_policy(self, name: str, definition: dict[str, Any]) -> None:
        self.policies[name] = definition
        for queue in self.queues.values():
            queue.apply(self.policies.get(queue.name, {}))

    # --- messages ---------------------------------------------------------------------------------------------------

    def route(self, exchange: str, key: str) -> list[Queue]:
        names = {"": [key], "amq.fanout": self.bound}.get(exchange, [])
        return [self.queues[name] for name in names if name in self.queues]

    def publish(self, channel: Channel, message: Message) -> bool:
        """Publish; False: a queue refuses it."""
        queues = self.route(message.exchange, message.key)
        until_ms = 0 if message.delay_ms is None else self.now_ms + message.delay_ms
        if channel.transactional:
            channel.published.append((message, queues, until_ms))
            return True
        return self.enqueue(message, queues, until_ms)

    def enqueue(self, message: Message, queues: list[Queue], until_ms: int) -> bool:
        taken = True
        for queue in queues:
            if queue.deleted:
                continue
            if until_ms:
                queue.hold(queue.entry(message), until_ms)
            else:
                taken = queue.publish(message) and taken
        return taken

    def place_letters(self) -> None:
        """Send the dead messages, in that order; messages that die by that come after them."""
        if self.placing:
            return
        self.placing = True
        while self.letters:
            queue, letter = self.letters.pop(0)
            if not self.send(letter) and queue.rules.keeps_letters and not queue.deleted:
                queue.keep_letter(letter)
        self.placing = False

    def send_again(self, letter: Message) -> bool:
        """Send a letter that was not taken, then what that leads to."""
        self.placing = True
        taken = self.send(letter)
        self.placing = False
        self.place_letters()
        return taken

    def send(self, letter: Message) -> bool:
        """Send a dead letter; False: nobody took it, or somebody refused it."""
        queues = self.route(letter.exchange, letter.key)
        taken = len(queues) > 0
        for queue in queues:
            if not letter.has_come_round_to(queue.name):
                taken = queue.publish(letter) and taken
        return taken

    # --- consumers --------------------------------------------------------------------------------------------------

    def consume(self, channel: Channel, queue: Queue, tag: str, no_ack: bool) -> None:
        consumer = Consumer(channel.client, queue.name, tag, no_ack, channel.prefetch, queue.rules.visibility_ms)
        channel.consumers[tag] = consumer
        queue.consumers.append(consumer)
        queue.hungry = True

    def cancel(self, consumer: Consumer) -> None:
        del self.channels[consumer.client].consumers[consumer.tag]
        queue = self.queues[consumer.queue]
        queue.consumers.remove(consumer)
        queue.hungry = len(queue.consumers) > 0
        queue.used_ms = self.now_ms

    def get(self, channel: Channel, queue: Queue, no_ack: bool) -> Entry | None:
        queue.used_ms = self.now_ms
        if not queue.ready:
            return None
        entry = queue.ready.pop(0)
        self.count += 1
        entry.handed = self.count
        self._out(channel, queue, entry, None, no_ack)
        return entry

    def took(self, consumer: Consumer, entry: Entry) -> None:
        """The entry, of those handed out, went to this consumer."""
        queue = self.queues[consumer.queue]
        queue.handed.remove(entry)
        consumer.outstanding += not consumer.no_ack
        self._out(self.channels[consumer.client], queue, entry, consumer, consumer.no_ack)

    def _out(self, channel: Channel, queue: Queue, entry: Entry, consumer: Consumer | None, no_ack: bool) -> None:
        channel.tags += 1
        if no_ack:
            return
        delivery = Delivery(queue, entry, consumer)
        delivery.see_to(self.now_ms)
        queue.out.append(delivery)
        channel.unacked[channel.tags] = delivery

    def take_back(self, delivery: Delivery) -> bool:
        """Take an unanswered delivery from its client; False: its answer waits for a commit."""
        for channel in self.channels.values():
            for tag, each in channel.unacked.items():
                if each is delivery:
                    del channel.unacked[tag]
                    self._release(delivery)
                    return True
        return False

    @staticmethod
    def _release(delivery: Delivery) -> None:
        if delivery.consumer is not None:
            delivery.consumer.outstanding -= 1

    def settle(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._release(delivery)
            if not delivery.queue.deleted:
                delivery.queue.out.remove(delivery)
            delivery.queue.hungry = True

    def put_back(self, deliveries: list[Delivery], *, requeue: bool, failed: bool) -> None:
        self._put_back_all([(delivery, requeue, failed) for delivery in deliveries])

    def _put_back_all(self, answers: list[tuple[Delivery, bool, bool]]) -> None:
        """Each with: whether it is requeued, whether that is a failure."""
        for delivery, requeue, failed in answers:
            queue = delivery.queue
            self._release(delivery)
            if requeue:
                queue.returning = True
                queue.give_back(delivery, failed=failed)
            elif not queue.deleted:
                queue.dead_letter(delivery.entry.counted(), "rejected")
                queue.out.remove(delivery)
        for delivery, _, _ in answers:
            delivery.queue.returning = False
            delivery.queue.hungry = True

    def commit(self, channel: Channel) -> bool:
        """Make it all happen; False: a queue has refused something."""
        taken = True
        for message, queues, until_ms in channel.published:
            taken = self.enqueue(message, queues, until_ms) and taken
        self.settle(list(channel.acked.values()))
        answers = [(delivery, requeue, failed) for _, delivery, requeue, failed in channel.rejected]
        self._put_back_all(sorted(answers, key=lambda each: each[1]))  # what dies is in the commit, requeues follow it
        channel.published, channel.acked, channel.rejected = [], {}, []
        return taken

    def rollback(self, channel: Channel) -> None:
        """Forget publishes and answers. Answered messages have their full time again."""
        back = channel.acked | {tag: delivery for tag, delivery, _, _ in channel.rejected}
        for delivery in back.values():
            before_ms = delivery.limit_ms
            delivery.see_to(self.now_ms)
            if delivery.limit_ms != before_ms:
                self.count += 1
                delivery.entry.handed = self.count
        channel.unacked |= back
        channel.published, channel.acked, channel.rejected = [], {}, []

    def end(self, channel: Channel) -> None:
        """The channel is closed, or lost."""
        for consumer in list(channel.consumers.values()):
            self.cancel(consumer)
        back = [channel.unacked[tag] for tag in sorted(channel.unacked)]
        back += channel.acked.values()
        back += [delivery for _, delivery, _, _ in channel.rejected]
        channel.unacked = {}
        self.put_back(back, requeue=True, failed=True)

    def hand_out(self) -> None:
        """Give all consumers what they can have: a command is over."""
        for queue in self.queues.values():
            queue.hand_out()

    # --- time -------------------------------------------------------------------------------------------------------

    def next_ms(self) -> int:
        return min([NEVER, *(at_ms for queue in self.queues.values() for at_ms, _ in queue.timers())])

    def due(self) -> list[tuple[str, int]]:
        """Return what is due by now: the names of queues, and which part of what each has to do."""
        found: list[tuple[str, int]] = []
        for queue in self.queues.values():
            found += [(queue.name, part) for part, (at_ms, _) in enumerate(queue.timers()) if at_ms <= self.now_ms]
        return found

    def leave_alone(self, places: Sequence[tuple[str, tuple[int, int]]]) -> None:
        """Make the messages in these places of queues leave alone."""
        for name, place in places:
            for entry in self.queues[name].ready:
                entry.alone = entry.alone or entry.place == place

    def moment(self, order: Sequence[tuple[str, int]], *, hasty: bool = False, prompt: bool = False) -> None:
        """Do what is due, in this order.

        If `hasty`, consumers get what they can after each. If `prompt`, a queue that nobody uses is deleted in its
        turn, with what it holds; else at the end.
        """
        for name, part in order:
            if name in self.queues:
                self.queues[name].timers()[part][1]()
            if hasty:
                self.hand_out()
            if prompt:
                self._delete_expired()
        self._delete_expired()

    def _delete_expired(self) -> None:
        for queue in self.expired:
            assert self.delete(queue) == []
        self.expired = []

    def restart(self, *, clean: bool) -> None:
        """Stop and start. At a clean stop all channels have ended before."""
        for queue in list(self.queues.values()):
            if queue.durable:
                queue.restart(clean=clean)
            else:
                self.delete(queue)
        self.channels = {}
