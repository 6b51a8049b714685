"""Counters since the start: messages, deaths, sizes, and things that came and went.

1. Counters never decrease, except that a deleted object takes its own counts along.
2. On a message's way a field is incremented in an object at hand (exchange, queue, channel, ledger), and only if no
   other counter tells the same. The rest is derived on demand, in `MessageCounts`.
3. When a channel ends, its counts are added to its vhost; when a vhost ends, to the broker. So sums never decrease.

The fields of `MessageCounts` mean what those of RabbitMQ's ``message_stats`` mean, seen on 3.10.8:

    publish            by channels, in a transaction from its commit on; not dead letters, nor what the broker publishes
    confirm            basic.ack to a publisher; a nack is not counted
    return_unroutable  mandatory and not routed; drop_unroutable: not mandatory
    deliver            with manual ack, redeliveries included; deliver_no_ack: without; get, get_no_ack: by basic.get
    get_empty          basic.get that found nothing
    redeliver          those of the four that had been delivered before
    ack                basic.ack, in a transaction from its commit on; not nack and reject

A reply by direct reply-to counts as routed and delivered; RabbitMQ calls it dropped.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

# Upper bounds, inclusive, of the sizes of bodies. Up to the first one the fast path does not count.
SIZE_BOUNDS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
SMALL_MAX_BYTES: Final = 100
LARGE_BOUNDS: Final = 7
assert SIZE_BOUNDS[0] == SMALL_MAX_BYTES and len(SIZE_BOUNDS) == 1 + LARGE_BOUNDS

AT_MOST_ONCE: Final = "at_most_once"
AT_LEAST_ONCE: Final = "at_least_once"
DISABLED: Final = "disabled"
STRATEGIES: Final = (AT_MOST_ONCE, AT_LEAST_ONCE, DISABLED)


class MessageCounts:
    """What happened to messages on one channel, in one queue, or a sum of several.

    ``publish_confirm``: of `publish`, those on channels that confirm. ``routed``: to how many queues they went, all
    together. ``published_bytes``: their bodies. A queue has none of these, nor `confirm` and the unroutable ones.
    """

    def __init__(self) -> None:
        self.publish: i64 = 0
        self.publish_confirm: i64 = 0
        self.published_bytes: i64 = 0
        self.routed: i64 = 0
        self.confirm: i64 = 0
        self.return_unroutable: i64 = 0
        self.drop_unroutable: i64 = 0
        self.deliver: i64 = 0
        self.deliver_no_ack: i64 = 0
        self.get: i64 = 0
        self.get_no_ack: i64 = 0
        self.get_empty: i64 = 0
        self.redeliver: i64 = 0
        self.ack: i64 = 0

    def add(self, other: MessageCounts) -> None:
        """Add the counts of `other`."""
        self.publish += other.publish
        self.publish_confirm += other.publish_confirm
        self.published_bytes += other.published_bytes
        self.routed += other.routed
        self.confirm += other.confirm
        self.return_unroutable += other.return_unroutable
        self.drop_unroutable += other.drop_unroutable
        self.deliver += other.deliver
        self.deliver_no_ack += other.deliver_no_ack
        self.get += other.get
        self.get_no_ack += other.get_no_ack
        self.get_empty += other.get_empty
        self.redeliver += other.redeliver
        self.ack += other.ack

    @property
    def deliver_get(self) -> int:
        """All deliveries."""
        return int(self.deliver + self.deliver_no_ack + self.get + self.get_no_ack)


class Sums:
    """The message counts of each vhost and of all, and the bytes of all clients, since the start."""

    def __init__(self) -> None:
        self.by_vhost: dict[str, MessageCounts] = {}
        self.everywhere = MessageCounts()
        self.received_bytes: i64 = 0
        self.sent_bytes: i64 = 0


class DeathCounts:
    """How many messages died, by reason, whether they were dead-lettered or dropped.

    ``confirmed``: dead-lettered at least once, and taken by every queue they went to.
    """

    def __init__(self) -> None:
        self.expired: i64 = 0
        self.maxlen: i64 = 0
        self.rejected: i64 = 0
        self.delivery_limit: i64 = 0
        self.confirmed: i64 = 0

    def count(self, reason: str) -> None:
        """Count a death. `reason` as ``queues.dead_letter`` has it."""
        if reason == "expired":
            self.expired += 1
        elif reason == "maxlen":
            self.maxlen += 1
        elif reason == "rejected":
            self.rejected += 1
        else:
            self.delivery_limit += 1


class DeathTable:
    """The deaths in all queues: by the type of the queue, quorum or not, and one of `STRATEGIES`."""

    def __init__(self) -> None:
        self.counts: dict[tuple[bool, str], DeathCounts] = {}
        for is_quorum in (False, True):
            for strategy in STRATEGIES:
                self.counts[(is_quorum, strategy)] = DeathCounts()

    def at(self, *, is_quorum: bool, has_exchange: bool, at_least_once: bool) -> DeathCounts:
        """Return the counts of queues like this: `has_exchange` tells that they dead-letter at all."""
        strategy = DISABLED
        if has_exchange:
            strategy = AT_LEAST_ONCE if at_least_once else AT_MOST_ONCE
        return self.counts[(is_quorum, strategy)]


class Churn:
    """How many things came and went. `connections`: those that were open; `queues_declared`: redeclared ones too."""

    def __init__(self) -> None:
        self.connections_opened: int = 0
        self.connections_closed: int = 0
        self.received_bytes: int = 0  # by connections that have ended
        self.sent_bytes: int = 0
        self.channels_opened: int = 0
        self.channels_closed: int = 0
        self.queues_declared: int = 0
        self.queues_created: int = 0
        self.queues_deleted: int = 0
        self.dropped_qos_0: int = 0  # messages that MQTT clients did not read in time
        self.logins_accepted: int = 0
        self.logins_refused: int = 0
        # Messages of the broker that were not routed, because that takes too many steps (`vhosts.own_publishes` (4)).
        self.unrouted: int = 0
        self.unrouted_from = ""  # the exchange and the vhost of the last one


class SizeCounts:
    """How many bodies were larger than `SMALL_MAX_BYTES`, by `SIZE_BOUNDS`. All others are small."""

    def __init__(self) -> None:
        self._bounds = vec[i64]()
        self._counts = vec[i64]()
        for bound in SIZE_BOUNDS[1:]:
            self._bounds = append(self._bounds, bound)
            self._counts = append(self._counts, 0)
        self._counts = append(self._counts, 0)  # larger than all bounds

    def count(self, size: i64) -> None:
        """Count a body of `size` bytes, which is larger than `SMALL_MAX_BYTES`."""
        at: i64 = 0
        while at < LARGE_BOUNDS and size > self._bounds[at]:
            at += 1
        self._counts[at] += 1

    def buckets(self, published: int) -> list[int]:
        """Return how many of all `published` bodies had at most each of `SIZE_BOUNDS`, and then the total."""
        large = [int(count) for count in self._counts]
        found = [published - sum(large)]
        for count in large:
            found.append(found[-1] + count)
        return found
