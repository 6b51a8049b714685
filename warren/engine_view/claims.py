"""Claim queues: the messages that drains have taken out of queues. See `queues.claims` for what holds of them.

Callers are told when the disk has been read. Of two calls for one claim queue the second waits for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from warren.amqp.declarations import QueueDeclaration
from warren.channels.broker import Broker
from warren.engine_view.refs import QueueRef
from warren.msgstore.log.lineage import ON_PATH as ON_PATH
from warren.msgstore.log.lineage import Lineage as Lineage
from warren.queues.base_queue import BaseQueue
from warren.queues.basic_get import call_when_ready
from warren.queues.claim_names import claims_name as claims_name
from warren.queues.claims import DEAD_LETTER as DEAD_LETTER
from warren.queues.claims import LIMIT as LIMIT
from warren.queues.claims import PIECE_MESSAGES, ClaimQueue, claims_arguments, ends_of
from warren.queues.claims import REQUEUE as REQUEUE
from warren.queues.claims import SESSION_RECORD as SESSION_RECORD
from warren.queues.claims import Verdict as Verdict
from warren.queues.claims import verdicts_record as verdicts_record
from warren.queues.queue import Queue
from warren.vhosts.limits import MAX_QUEUES, is_reached
from warren.vhosts.virtual_host import VirtualHost


class ClaimsRow(msgspec.Struct, frozen=True):
    """A claim queue: the queue and the consumer that it is for, and the claims from `first` up to `end`."""

    vhost: str
    name: str
    source: str
    source_exists: bool
    consumer: str
    messages: int
    bytes: int
    first: int
    end: int


class ClaimedRow(msgspec.Struct, frozen=True):
    """The messages claimed by one call. `waits`: whether there are more is known only after a read from disk."""

    count: int
    body_bytes: int
    waits: bool


class Claims:
    """The claim queues of one engine. `settle` ends the turn of a command."""

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._vhosts: Mapping[str, VirtualHost] = broker.vhosts
        self._settle = settle

    # --- what there is ----------------------------------------------------------------------------------------------

    def maybe(self, vhost: str, name: str) -> QueueRef | None:
        """Return the claim queue with this name."""
        found = self._vhosts.get(vhost)
        claims = None if found is None else found.queues.get(name)
        return QueueRef(claims) if isinstance(claims, ClaimQueue) else None

    def in_order(self, vhost: str) -> list[QueueRef]:
        """Return the claim queues of a vhost by name. Proportional to all of them."""
        found = self._vhosts.get(vhost)
        names: list[str] = []
        for of_queue in [] if found is None else found.claims_of.values():
            names += of_queue
        return [] if found is None else [QueueRef(found.queues[name]) for name in sorted(names)]

    def names_for(self, vhost: str, queue: str) -> list[str]:
        """Return the names of the claim queues that belong to a queue."""
        found = self._vhosts.get(vhost)
        return [] if found is None else list(found.claims_of.get(queue, ()))

    def row(self, claims: QueueRef) -> ClaimsRow:
        """Return a claim queue."""
        found = _claim_queue(claims)
        return ClaimsRow(
            found.vhost_name,
            found.name,
            found.source_name,
            found.source_name in self._vhosts[found.vhost_name].queues,
            found.consumer_name,
            int(found.ready_count),
            int(found.ready_bytes),
            found.first_offset(),
            found.synced_end(),
        )

    def is_drainable(self, queue: QueueRef) -> bool:
        """Tell whether the messages of a queue can be claimed: its kind allows it, and it is not exclusive."""
        return isinstance(queue, Queue) and queue.owner is None

    def has_room(self, vhost: str) -> bool:
        """Tell whether a vhost may have one more queue."""
        found = self._vhosts[vhost]
        count = len(found.queues)
        return count < self._broker.limits.queues_per_vhost_max and not is_reached(found.limits, MAX_QUEUES, count)

    # --- of the queue that is drained -------------------------------------------------------------------------------

    def delivery_limit(self, queue: QueueRef) -> int | None:
        """Return how often a message of a queue may fail; None: without a limit."""
        assert isinstance(queue, BaseQueue)
        return None if queue.rules.delivery_limit < 0 else int(queue.rules.delivery_limit)

    def has_dead_letters(self, queue: QueueRef) -> bool:
        """Tell whether a queue has a dead letter exchange."""
        assert isinstance(queue, BaseQueue)
        return queue.rules.dead_letter_exchange is not None

    def counts_deliveries(self, queue: QueueRef) -> bool:
        """Tell whether the messages of a queue carry the number of failed deliveries."""
        assert isinstance(queue, BaseQueue)
        return queue.rewrites(-1)

    # --- commands ---------------------------------------------------------------------------------------------------

    def declare(self, vhost: str, queue: str, consumer: str, by: str) -> tuple[QueueRef, int]:
        """Declare a claim queue; return it and the ticket to wait for. The caller settles the turn."""
        found, name = self._vhosts[vhost], claims_name(queue, consumer)
        arguments = claims_arguments(queue, consumer)
        ticket = found.declare_queue(QueueDeclaration(name, durable=True, arguments=arguments), by=by)
        return QueueRef(found.queues[name]), ticket

    def delete(self, claims: QueueRef, by: str) -> int:
        """Delete a claim queue; return the ticket to wait for. The caller settles the turn."""
        found = _claim_queue(claims)
        return self._broker.delete_queue(self._vhosts[found.vhost_name], found, by)

    def claim(
        self,
        claims: QueueRef,
        queue: QueueRef,
        most: int,
        room_bytes: int,
        *,
        any_size: bool,
        until: int | None,
        read: Callable[[], None],
    ) -> ClaimedRow:
        """Claim the next messages of a queue; `read` is called when more may be claimed after a read from disk.

        `most`: more than one call claims at a time is possible; `until`: a mark, see `mark`; `any_size`: the first
        message may be larger than `room_bytes`.
        """
        assert isinstance(queue, Queue)
        ends = [] if until is None else ends_of(queue, until)
        claimed = _claim_queue(claims).claim(queue, min(most, PIECE_MESSAGES), room_bytes, any_size, ends)
        if claimed.waits:
            call_when_ready(queue, read)
        self._settle()
        return ClaimedRow(int(claimed.count), int(claimed.body_bytes), claimed.waits)

    def find_first(self, claims: QueueRef, told: Callable[[int], None]) -> None:
        """Report the number of the oldest claim, or of the next to come."""
        _claim_queue(claims).find_first(told)
        self._settle()

    def settle_below(self, claims: QueueRef, number: int, told: Callable[[], None]) -> None:
        """Forget the claims before `number`, which is synced."""
        _claim_queue(claims).settle_below(number, told)
        self._settle()

    def settle_oldest(
        self, claims: QueueRef, home: QueueRef | None, end: int, verdict: Verdict, told: Callable[[int], None]
    ) -> None:
        """Carry a verdict out on the oldest claims before `end`, and tell how many; `home`: their queue."""
        assert home is None or isinstance(home, Queue)
        _claim_queue(claims).settle_oldest(home, end, verdict, told)
        self._settle()

    def give_back(self, claims: QueueRef, home: QueueRef, told: Callable[[int], None]) -> None:
        """Move the oldest claims back into their queue, and tell how many."""
        assert isinstance(home, Queue)
        _claim_queue(claims).give_back(home, told)
        self._settle()


def _claim_queue(claims: QueueRef) -> ClaimQueue:
    assert isinstance(claims, ClaimQueue)
    return claims
