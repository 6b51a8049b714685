"""A broker that is obviously right: lists, searched from the start, nothing remembered that can be counted.

It does not choose the consumer of a message. It learns of each delivery and says whether it was allowed: the oldest
ready messages of the queue go to consumers that may have them, those of higher priority first, until no consumer may
have more.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field


@dataclass(order=True)
class Entry:
    """A ready message: its place in the queue, its body, whether it was delivered before."""

    place: int
    body: int
    redelivered: bool


@dataclass(eq=False)
class Queue:
    name: str
    auto_delete: bool = False
    single_active: bool = False
    owner: int | None = None
    ready: list[Entry] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    active: Consumer | None = None  # the served consumer, if the queue serves one
    places: int = 0
    deleted: bool = False

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.active = self.active or consumer

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if self.active is consumer:
            self.active = max(self.consumers, key=lambda each: each.priority, default=None)  # of equals the first

    def append(self, body: int) -> None:
        self.ready.append(Entry(self.places, body, False))
        self.places += 1


@dataclass(eq=False)
class Consumer:
    channel: Channel
    queue: Queue
    tag: str
    no_ack: bool
    exclusive: bool
    priority: int
    prefetch: int

    def room(self) -> int:
        """Return how many messages more this consumer may have; negative: it has too many."""
        held = [delivery for delivery in self.channel.held() if delivery.consumer is not None]
        mine = sum(delivery.consumer is self for delivery in held)
        room = 1000
        if self.prefetch:
            room = self.prefetch - mine
        if self.channel.shared_prefetch:
            room = min(room, self.channel.shared_prefetch - len(held))
        return room

    def may_have_more(self) -> bool:
        if self.queue.single_active and self.queue.active is not self:
            return False
        return self.no_ack or self.room() > 0

    def has_too_many(self) -> bool:
        return not self.no_ack and self.room() < 0


@dataclass(eq=False)
class Delivery:
    queue: Queue
    entry: Entry
    consumer: Consumer | None

    def put_back(self) -> None:
        if not self.queue.deleted:
            insort(self.queue.ready, Entry(self.entry.place, self.entry.body, True))


@dataclass(eq=False)
class Channel:
    client: int
    transactional: bool
    tags: int = 0
    prefetch: int = 0
    shared_prefetch: int = 0
    unacked: dict[int, Delivery] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    published: list[tuple[list[Queue], int, bool]] = field(default_factory=list)  # with: mandatory
    acked: dict[int, Delivery] = field(default_factory=dict)
    rejected: dict[int, tuple[Delivery, bool]] = field(default_factory=dict)

    def held(self) -> list[Delivery]:
        return [*self.unacked.values(), *self.acked.values(), *(each for each, _ in self.rejected.values())]

    def take(self, tag: int, multiple: bool) -> dict[int, Delivery] | None:
        """Remove what an ack names; None: the tag is unknown."""
        if tag not in self.unacked and not (tag == 0 and multiple):
            return None
        named = [each for each in sorted(self.unacked) if each == tag or (multiple and (tag == 0 or each < tag))]
        return {each: self.unacked.pop(each) for each in named}

    def rollback(self) -> None:
        self.unacked |= self.acked | {tag: delivery for tag, (delivery, _) in self.rejected.items()}
        self.published, self.acked, self.rejected = [], {}, {}

    def commit(self) -> list[int]:
        """Make it all happen; return what nobody takes."""
        returned = []
        for queues, body, mandatory in self.published:
            alive = [queue for queue in queues if not queue.deleted]
            for queue in alive:
                queue.append(body)
            if mandatory and not alive:
                returned.append(body)
        for delivery, requeue in self.rejected.values():
            if requeue:
                delivery.put_back()
        self.published, self.acked, self.rejected = [], {}, {}
        return returned

    def delivered(self, queue: Queue, entry: Entry, consumer: Consumer | None, no_ack: bool) -> int:
        """Note a delivery and return its tag."""
        self.tags += 1
        if not no_ack:
            self.unacked[self.tags] = Delivery(queue, entry, consumer)
        return self.tags


class SmallBroker:
    """Queues by name, and the bindings of the one fanout exchange."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.bound: set[str] = set()

    def delete(self, queue: Queue) -> list[Consumer]:
        """Delete a queue and return the consumers that lose it."""
        del self.queues[queue.name]
        self.bound.discard(queue.name)
        queue.deleted = True
        for consumer in queue.consumers:
            del consumer.channel.consumers[consumer.tag]
        return queue.consumers

    def cancel(self, consumer: Consumer) -> None:
        del consumer.channel.consumers[consumer.tag]
        consumer.queue.remove(consumer)
        if consumer.queue.auto_delete and not consumer.queue.consumers:
            self.delete(consumer.queue)

    def close(self, channel: Channel) -> None:
        for consumer in list(channel.consumers.values()):
            self.cancel(consumer)
        channel.rollback()
        for delivery in channel.unacked.values():
            delivery.put_back()
        channel.unacked = {}
