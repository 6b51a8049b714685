"""A consumer: its limits, and whether its queue may send it a message now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.methods import BASIC_DELIVER
from warren.amqp.outbox import NOWHERE
from warren.queues.bit_set import BitSet
from warren.queues.turns import Waiter

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue
    from warren.queues.delivery import DeliveryLedger
    from warren.queues.rules import QueueRules
    from warren.queues.selective import Search

# The longest arguments of a consumer that are kept to be shown. There may be 10,000 consumers on a channel.
ARGUMENTS_KEPT_BYTES: Final = 4096


class Consumer(Waiter):
    """One basic.consume. Owned by its channel, known to its queue."""

    def __init__(
        self,
        ledger: DeliveryLedger,
        queue: BaseQueue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: i64,
        arguments: bytes,
    ) -> None:
        super().__init__()
        self.ledger = ledger
        self.queue = queue
        self.tag = tag
        self.no_ack: bool = no_ack
        self.exclusive: bool = exclusive
        self.priority = priority
        self.wanted_prefetch: i64 = prefetch
        self.prefetch: i64 = prefetch  # 0: no limit
        # How long a delivery may go unanswered before it comes back, and before the channel is closed. For the latter
        # -1 means the broker's own limit, and 0 none.
        self.visibility_ms: i64 = -1
        self.timeout_ms: i64 = -1
        self.has_time_limit: bool = False
        self.wanted_visibility_ms: i64 = -1
        self.wanted_timeout_ms: i64 = -1
        self.credit: i64 = -1  # how many more its peer has asked for; -1: it does not say
        self.outstanding: i64 = 0
        self.gone: bool = False  # no longer consuming; its deliveries may be unanswered
        self.timed_out: bool = False  # the broker has cancelled it because it did not answer in time
        self.group_place: i64 = 0  # kept by `consumer_groups`, as is the ring to come back to
        self.away_from: BitSet | None = None
        self.search: Search | None = None  # of a consumer that wants only some messages; not of a stream
        self.looked: i64 = 0  # the cost of looking for messages, in messages; code that counts resets it
        self.arguments = arguments
        self.owner: object = None  # the channel, to be told about the end of the queue
        raw = tag.encode()
        # basic.deliver up to the delivery tag, without the first byte, which is 0
        self.deliver_head = BASIC_DELIVER.to_bytes(4, "big")[1:] + bytes([len(raw)]) + raw

    def keep_small_arguments(self) -> None:
        """Forget long arguments: they were read already, and would only be shown from now on."""
        if len(self.arguments) > ARGUMENTS_KEPT_BYTES:
            self.arguments = EMPTY_TABLE

    def follow(self, rules: QueueRules) -> None:
        """Set its limits by the rules of its queue."""
        self.prefetch = self.wanted_prefetch
        if rules.prefetch_max > 0 and (self.prefetch == 0 or self.prefetch > rules.prefetch_max):
            self.prefetch = rules.prefetch_max
        self.come_back()
        self.visibility_ms = rules.visibility_timeout_ms
        if self.wanted_visibility_ms > 0:
            self.visibility_ms = self.wanted_visibility_ms
        self.timeout_ms = rules.consumer_timeout_ms
        if self.wanted_timeout_ms >= 0:
            self.timeout_ms = self.wanted_timeout_ms
        self.has_time_limit = not self.no_ack and (self.visibility_ms > 0 or self.timeout_ms > 0)

    def has_room(self) -> bool:
        """Tell whether it may be sent a message now. A consumer blocked only by a shared limit joins the line."""
        ledger = self.ledger
        outbox = ledger.outbox
        if (
            outbox.writable
            and not outbox.awaited
            and self.credit != 0
            and not ledger.is_shut
            and (
                self.no_ack
                or (
                    (self.prefetch == 0 or self.outstanding < self.prefetch)
                    and not ledger.awaited
                    and (ledger.prefetch == 0 or ledger.consumer_unacked < ledger.prefetch)
                    and ledger.consumer_unacked < ledger.unacked_max
                )
            )
        ):
            return True
        return self._has_turn_or_waits()

    def is_ready(self) -> bool:
        """Tell whether it could be sent a message now, turns apart. It does not join a line."""
        ledger = self.ledger
        return (
            ledger.outbox.writable
            and not ledger.is_shut
            and self.has_own_room()
            and (self.no_ack or ledger.has_space())
        )

    def awaits_turn(self) -> bool:
        """Tell whether it only lacks its turn, which comes now."""
        return self.line is not None and self.is_ready()

    def has_own_room(self) -> bool:
        """Tell whether it owes fewer answers than its prefetch, and has credit."""
        return self.credit != 0 and (self.no_ack or self.prefetch == 0 or self.outstanding < self.prefetch)

    def come_back(self) -> None:
        """Return to the ring, so that it is considered again when the queue chooses a consumer."""
        ring = self.away_from
        if ring is not None:
            self.away_from = None
            ring.add(self.group_place)

    def _has_turn_or_waits(self) -> bool:
        """Tell whether its turn has come, and continues; else see to it that it waits in the right line.

        A turn is that of its queue on its channel: a consumer with priority there need not wait for a turn of its own.
        """
        ledger = self.ledger
        if ledger.outbox is NOWHERE or ledger.is_shut or not self.has_own_room():
            return False
        if not self.no_ack and ledger.consumer_unacked >= ledger.unacked_max and ledger.find_space():
            return self.has_room()
        turns = ledger.turns
        has_space = self.no_ack or ledger.has_space()
        called = turns.called
        is_called = called is not None and called.ledger is ledger and called.queue is self.queue
        is_called_here = is_called and has_space and ledger.next_tag < turns.called_until
        if is_called_here and ledger.outbox.writable:
            return True
        if self.line is not None:
            return False
        if is_called_here:
            self.turn_left = turns.called_until - ledger.next_tag
            turns.put_first(self, for_outbox=True)
            return False
        if self.no_ack or (has_space and not ledger.awaited):
            turns.join(self, for_outbox=True)
        else:
            ledger.join(self)
        return False

    def take_turn(self, run: i64) -> i64:
        """Take at most `run` messages of its queue."""
        ledger = self.ledger
        before: i64 = ledger.next_tag
        if self.turn_left > 0:
            run = self.turn_left
            self.turn_left = 0
        self.looked = 0
        ledger.turns.call(self, run)
        return ledger.next_tag - before + 1 + self.looked
