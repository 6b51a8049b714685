"""basic.get: the next message of a queue for a client that asks, and callers that wait for an answer.

    can_answer       False: the next message is being read from disk, or expired ones have to go first
    call_when_ready  tells once that there is an answer now
    answer_get       gives the next message, or tells that the queue is empty

1. An answer waits until the next message is in memory and committed, and while channels give messages back: those have
   to be in their places before another one leaves.
2. A queue that gives out nothing, because it is paused or has recovered messages without a commit, looks empty.
3. A queue has `Gets` from the first of these calls on. They stay when it is deleted: their counts are shown then.

A reader of claims (``queues.claims``) waits in the same way, and takes the messages by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.queues.delivery import DeliveryLedger

if TYPE_CHECKING:
    from warren.queues.queue import Queue
    from warren.queues.queue_host import QueueHost


class Gets:
    """The counts of basic.get in one queue (``queues.counters``), and the callers that wait."""

    def __init__(self) -> None:
        self.got: i64 = 0
        self.got_no_ack: i64 = 0
        self.got_empty: i64 = 0
        self.waiters: list[Callable[[], None]] | None = None  # None: nobody waits


def can_answer(queue: Queue) -> bool:
    """Tell whether `answer_get` can answer now; first remove expired messages."""
    if queue.returning:
        return False
    if queue.keeper is not None and not queue.keeper.expiry.expire():
        return False  # `serve_waiters` when all has
    return _is_next_here(queue)


def _is_next_here(queue: Queue) -> bool:
    """Tell whether the next message is in memory and committed, or does not exist."""
    ready = queue.ready
    gate = queue.gate
    if gate is not None and gate.is_recovering:
        return queue.ready_count == 0
    if ready.count == 0:
        return ready.uncommitted_count == 0
    keeper = queue.keeper
    return ready.ready_or_fetch() if keeper is None else keeper.dispatch.ready_or_fetch()


def call_when_ready(queue: Queue, waiter: Callable[[], None]) -> None:
    """Call `waiter` when the oldest message has been read from disk, or returned messages are in place."""
    gets = _gets_of(queue)
    if gets.waiters is None:
        gets.waiters = []
    gets.waiters.append(waiter)


def serve_waiters(queue: Queue, host: QueueHost) -> None:
    """Call the waiters for the next message, if it is here."""
    gets = queue.gets
    if gets is None:
        return
    waiters = gets.waiters
    if waiters and not queue.returning and _is_next_here(queue):
        gets.waiters = None
        for waiter in waiters:
            try:
                waiter()
            except Exception as error:  # the others wait for their own answers
                host.work.report(error)


def answer_get(queue: Queue, ledger: DeliveryLedger, no_ack: bool) -> bool:
    """Answer basic.get through `ledger` with the next message; False when it is empty. See `can_answer`."""
    gets = _gets_of(queue)
    ready = queue.ready
    keeper = queue.keeper
    if keeper is not None:
        keeper.used()
        keeper.expiry.expire()
    message: Message | None = None
    if queue.is_shut:
        pass
    elif keeper is not None:
        message = keeper.dispatch.maybe_take(ledger)
    elif ready.count > 0 and ready.ready_or_fetch():
        message = ready.take_next()
    if message is None:
        gets.got_empty += 1
        ledger.got_empty += 1
        return False
    place: i64 = ready.next_place
    redelivered = ready.next_redelivered
    if keeper is not None and not no_ack:
        keeper.dispatch.got(message, place, ledger)
    try:
        ledger.get(queue, message, place, redelivered, no_ack, ready.count)
    except BaseException:
        if not no_ack:
            ready.put_back(message, place)
            if keeper is not None:
                keeper.dispatch.came_back(place)
        raise
    if redelivered:
        queue.redelivered += 1
    if no_ack:
        gets.got_no_ack += 1
        ready.settle(message, place)
    else:
        gets.got += 1
        queue.unacked_count += 1
        queue.unacked_bytes += message.body_bytes
    rules = queue.rules
    if not no_ack and (rules.visibility_timeout_ms > 0 or rules.consumer_timeout_ms > 0):
        queue.need_keeper().timeouts().begin(ledger, rules.visibility_timeout_ms, rules.consumer_timeout_ms)
    return True


def _gets_of(queue: Queue) -> Gets:
    gets = queue.gets
    if gets is None:
        gets = Gets()
        queue.gets = gets
    return gets
