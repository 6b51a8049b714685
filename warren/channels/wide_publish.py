"""A publish to very many queues, over several turns.

1. Other input of the connection is not handled meanwhile: in each queue, messages of one channel are in the order of
   their publishes. The confirm, or the basic.nack if any queue refused it, comes after the last queue.
2. A stored message is in one frame of the log, and so after a crash in all queues or in none: the batch is held open,
   and written in portions meanwhile. The confirms of all clients wait for its end.
3. The queues are those of its route when it was published. One that is deleted meanwhile takes nothing.
4. Where an exchange drops repetitions, the key is claimed when the first queue gets the message (`SeenKeys` (8)).
   Before that the batch is held. If another message has claimed the key, it waits for that one's end: then it is
   looked up and routed (`OnceMore`).
5. Exchanges act on the message when it is routed (`Exchange.publish`): later, a queue bound meanwhile would miss it. If
   it is stored, the batch is held before (`OnceMore`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.errors import ChannelException
from warren.channels.route_cache import Route
from warren.exchanges.effects import Effects
from warren.msgstore.log.message import Message
from warren.msgstore.log.own_writes import HOLD, NOTHING
from warren.queues.long_work import Job, Steps
from warren.queues.origin import CHANNEL
from warren.queues.outcome import ACCEPTED
from warren.queues.receiver import Receiver
from warren.queues.seen_keys import KeyClaim

if TYPE_CHECKING:
    from warren.channels.publisher import Publisher

# To more than these a publish goes in parts: they take about half a millisecond.
QUEUES_AT_ONCE: Final = 2048
# A stored message is also written and entered, with the queue's name.
STORED_STEPS: Final = 2


def hand_over(message: Message, queue: Receiver, origin: i64) -> i64:
    """Give a message that a channel published to a queue; return the outcome. `origin`: `CHANNEL` or `PROMISED`."""
    return queue.hold(message, message.due_ms, CHANNEL) if message.due_ms else queue.accept(message, origin)


class Spread:
    """A message on its way to its queues, and the outcome so far. `effects`: they act on it at once."""

    def __init__(
        self, message: Message, queues: list[Receiver], claim: KeyClaim | None, origin: i64, effects: Effects | None
    ) -> None:
        self.message = message
        self.queues = queues
        self.claim = claim
        self._origin: i64 = origin
        self.effects = effects
        self.outcome: i64 = ACCEPTED if effects is None else effects.publish(message)
        self._next: int = 0

    def run(self, steps: Steps) -> bool:
        """Hand it to queues until no steps are left; True when all have it."""
        queues = self.queues
        message = self.message
        at = self._next
        outcome: i64 = self.outcome
        origin: i64 = self._origin
        besides: i64 = STORED_STEPS if message.persistent else 0
        while at < len(queues) and steps.left > 0:
            queue = queues[at]
            at += 1
            steps.left -= besides + queue.publish_steps()
            if not queue.deleted:
                found: i64 = hand_over(message, queue, origin)
                if found > outcome:
                    outcome = found
        self._next = at
        self.outcome = outcome
        if message.row >= 0:
            message.awaits_batch = True  # its rows may be written, and forgotten, before the last queue has it
        return at == len(queues)

    def failed(self) -> None:
        """Release its keys: it does not come to the other queues."""
        if self.claim is not None:
            self.claim.end()


class WidePublish(Job):
    """A publish outside of a transaction. `holds`: the batch is held already."""

    def __init__(self, publisher: Publisher, spread: Spread, *, holds: bool = False) -> None:
        self._publisher = publisher
        self._spread = spread
        self._holds: bool = holds

    def need(self) -> i64:
        return HOLD if self._spread.message.persistent and not self._holds else NOTHING

    def run(self, steps: Steps) -> bool:
        spread = self._spread
        log = self._publisher.log
        if not self._holds and spread.message.persistent:
            if not log.hold_batch():
                return False
            self._holds = True
        if not spread.run(steps):
            return False
        self._release()
        self._publisher.wide_publish_done(spread)
        return True

    def _release(self) -> None:
        if self._holds:
            self._holds = False
            self._publisher.log.release_batch()

    def failed(self) -> bool:
        self._release()
        self._spread.failed()
        return False


class OnceMore(Job):
    """A publish to an exchange that drops repetitions; it continues when it is known whether it is a repetition.

    `keys`: its routing key and those of CC and BCC. `wants_hold`: it goes to very many queues, and is stored; then also
    one that exchanges act on (5).
    """

    def __init__(
        self, publisher: Publisher, route: Route, message: Message, keys: list[str], header: bytes, *, wants_hold: bool
    ) -> None:
        self._publisher = publisher
        self._route = route
        self._message = message
        self._keys = keys
        self._header = header
        self._wants_hold = wants_hold
        self._holds: bool = False
        self._further: Job | None = None  # the rest of it

    def need(self) -> i64:
        if self._further is not None:
            return self._further.need()
        return HOLD if self._wants_hold and not self._holds else NOTHING

    def run(self, steps: Steps) -> bool:
        if self._further is not None:
            return self._further.run(steps)
        publisher = self._publisher
        log = publisher.log
        message = self._message
        if publisher.is_claimed(message):
            return False
        if self._wants_hold and not self._holds:
            if not log.hold_batch():
                return False
            self._holds = True
        route = self._route
        left = [queue for queue in route.queues if not queue.deleted]
        try:
            further = publisher.publish_routed(route, left, message, self._keys, self._header, holds=self._holds)
        except ChannelException as error:
            publisher.refuse(error)
            further = None
        if further is None:
            if self._holds:
                log.release_batch()
            return True
        self._further = further
        return further.run(steps)

    def failed(self) -> bool:
        if self._further is not None:
            self._further.failed()
        elif self._holds:
            self._publisher.log.release_batch()
        return False
