"""Outcomes in both directions: the answers to a client's messages, and its answers to deliveries.

1. A message that is sent unsettled is answered once. The answer is `accepted` when all queues have the message, and it
   is synced if it is stored; `released` when no queue takes it; `rejected` when a queue refuses it.
2. Accepted deliveries with consecutive ids are answered as one range.
3. An outcome from a client applies to the outstanding deliveries of its range. Other ids in the range are ignored. If
   the client has not settled the deliveries itself, our answer settles them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from warren.amqp.field_table import Table
from warren.amqp10.error_conditions import LIMIT_EXCEEDED
from warren.amqp10.links import ReceivingLink, SendingLink
from warren.amqp10.performatives import (
    ACCEPTED,
    DISPOSITION,
    REJECTED,
    described,
    error_value,
    frame,
    write_accepted,
)
from warren.amqp10.values import Symbol, UInt
from warren.channels.confirms import Confirms, PendingConfirms
from warren.channels.jobs import LOOKS_PER_STEP, Returning
from warren.queues.consumer import Consumer
from warren.queues.dead_letter import with_headers
from warren.queues.long_work import Job, Steps
from warren.queues.queue import Queue
from warren.queues.retry import store_again
from warren.queues.unacked import Delivery

if TYPE_CHECKING:
    from warren.amqp10.session import Amqp10Session

# The largest header that gets annotations of an outcome, before these are added.
ANNOTATED_MAX_BYTES: Final = 16_384
LINK_STEPS: Final = 8


class Run:
    """Publishes of one link with consecutive numbers and delivery ids."""

    def __init__(self, number: i64, delivery_id: i64, link: ReceivingLink) -> None:
        self.number: i64 = number
        self.delivery_id: i64 = delivery_id
        self.count: i64 = 1
        self.link = link


class Outcomes(Confirms):
    """Confirms as dispositions."""

    def __init__(self, pending: PendingConfirms, session: Amqp10Session, *, syncs: bool) -> None:
        super().__init__(pending, session.ledger.outbox, syncs=syncs)
        self._session: Amqp10Session | None = session
        self._runs: deque[Run] = deque()
        self._last: Run | None = None

    def expect(self, link: ReceivingLink, delivery_id: i64) -> None:
        """Answer `delivery_id` when the next publish is confirmed."""
        number: i64 = self.published + 1
        link.unconfirmed += 1
        last = self._last
        if (
            last is not None
            and last.link is link
            and last.number + last.count == number
            and (last.delivery_id + last.count) & 0xFFFFFFFF == delivery_id
        ):
            last.count += 1
            return
        run = Run(number, delivery_id, link)
        self._runs.append(run)
        self._last = run

    def take_back(self, number: i64) -> Run | None:
        """Stop waiting for the confirm of a recent publish; return its link and id; None: no confirm was awaited."""
        behind: list[Run] = []
        found: Run | None = None
        while self._runs:
            run = self._runs.pop()
            if run.number <= number:
                if number < run.number + run.count:
                    found = Run(number, (run.delivery_id + number - run.number) & 0xFFFFFFFF, run.link)
                    rest: i64 = run.number + run.count - number - 1
                    if rest > 0:
                        later = Run(number + 1, (found.delivery_id + 1) & 0xFFFFFFFF, run.link)
                        later.count = rest
                        behind.append(later)
                    run.count = number - run.number
                if run.count > 0:
                    self._runs.append(run)
                break
            behind.append(run)
        for run in reversed(behind):
            self._runs.append(run)
        self._last = self._runs[-1] if self._runs else None
        if found is not None:
            found.link.unconfirmed -= 1
        return found

    def write_confirmed(self, up_to: i64, count: i64) -> None:
        session = self._session
        runs = self._runs
        first: i64 = 0
        told: i64 = 0  # the number of deliveries to answer, beginning with `first`
        links: list[ReceivingLink] = []
        while runs and runs[0].number <= up_to:
            run = runs[0]
            taken: i64 = up_to - run.number + 1
            if taken >= run.count:
                taken = run.count
                runs.popleft()
                if run is self._last:
                    self._last = None
            begins: i64 = run.delivery_id
            run.number += taken
            run.delivery_id = (run.delivery_id + taken) & 0xFFFFFFFF
            run.count -= taken
            link = run.link
            link.unconfirmed -= taken
            if not links or links[-1] is not link:
                links.append(link)
            if told > 0 and (first + told) & 0xFFFFFFFF == begins:
                told += taken
            else:
                if told > 0 and session is not None:
                    session.write_outcome(first, told)
                first = begins
                told = taken
        if session is not None:
            if told > 0:
                session.write_outcome(first, told)
            for link in links:
                session.top_up(link)

    def write_refused(self, number: i64) -> None:
        run = self.take_back(number)
        session = self._session
        if run is not None and session is not None:
            info: dict[object, object] = {Symbol("reason"): Symbol("maxlen")}
            error = error_value(LIMIT_EXCEEDED, "a full queue has refused the message", info)
            session.write_state(run.delivery_id, described(REJECTED, [error]))
            session.top_up(run.link)

    def close(self) -> None:
        super().close()
        self._session = None
        self._runs.clear()
        self._last = None


def accepted(out: BytesWriter, channel: i64, first: i64, count: i64) -> None:
    """Write that deliveries are accepted."""
    write_accepted(out, channel, first, (first + count - 1) & 0xFFFFFFFF)


def settled_frame(channel: int, is_receiver: bool, first: int, last: int, state: object) -> bytes:
    """Return a disposition that settles deliveries with `state`."""
    return frame(channel, DISPOSITION, [is_receiver, UInt(first), UInt(last), True, state])


def annotate(delivery: Delivery, annotations: Table) -> bool:
    """Add annotations of its outcome to the message of `delivery`; False: they do not fit, or it is of a stream."""
    queue = delivery.queue
    header_bytes = len(delivery.message.header_payload())
    if queue.deleted or header_bytes > ANNOTATED_MAX_BYTES:
        return False
    if not isinstance(queue, Queue):
        return False
    store_again(queue, delivery, with_headers(delivery.message, annotations))
    return True


class DispositionRun(Job):
    """A client's answer to deliveries: the `tags` that were outstanding, oldest first."""

    def __init__(
        self,
        session: Amqp10Session,
        tags: list[int],
        state: int,
        *,
        failed: bool,
        delay_ms: int,
        annotations: Table,
        answer: bytes,
    ) -> None:
        self._annotations = annotations
        self._session = session
        self._tags = tags
        self._next: int = 0
        self._state = state
        self._failed = failed
        self._delay_ms = delay_ms
        self._answer = answer
        self._returning = Returning(session.ledger)

    def need(self) -> i64:
        return self._returning.need

    def run(self, steps: Steps) -> bool:
        session = self._session
        tags = self._tags
        while self._next < len(tags):
            if steps.left <= 0:
                return False
            tag = tags[self._next]
            self._next += 1
            if self._state == ACCEPTED:
                steps.left -= 1
                if session.ledger.is_outstanding(tag):
                    session.acknowledge(tag, False)
                continue
            delivery = session.ledger.find(tag)
            if delivery is not None:
                rewritten = bool(self._annotations) and annotate(delivery, self._annotations)
                session.ledger.maybe_take(tag)  # only now: if the step before fails, the delivery stays unanswered
                self._returning.put_back(
                    delivery,
                    steps,
                    requeue=self._state != REJECTED,
                    failed=self._failed,
                    delay_ms=self._delay_ms,
                    rewritten=rewritten,
                )
            else:
                steps.left -= 1
        if not self._returning.end(steps):
            return False
        if self._answer and session.is_open():
            session.peer.outbox.write(self._answer)
            session.peer.check_outbox()
        return True

    def failed(self) -> bool:
        return True


class LinkEnd(Job):
    """A link with deliveries ends: its consumer is gone; unanswered deliveries are requeued."""

    def __init__(self, session: Amqp10Session, link: SendingLink, consumer: Consumer, answer: bytes) -> None:
        self._session = session
        self._link = link
        self._consumer = consumer
        self._tags: list[int] | None = None  # of deliveries that its peer has not answered
        self._next: int = 0
        self._answer = answer
        self._returning = Returning(session.ledger)

    def need(self) -> i64:
        return self._returning.need

    def run(self, steps: Steps) -> bool:
        session = self._session
        tags = self._tags
        if tags is None:
            if self._consumer.outstanding > 0:
                if steps.left <= 0:
                    return False
                steps.left -= session.ledger.unacked_count // LOOKS_PER_STEP
            tags = session.ledger.outstanding_for(self._consumer)
            self._tags = tags
        while self._next < len(tags):
            if steps.left <= 0:
                return False
            delivery = session.ledger.maybe_take(tags[self._next])
            self._next += 1
            steps.left -= 1
            if delivery is not None:
                self._returning.put_back(delivery, steps, requeue=True, failed=True)
        if not self._returning.end(steps):
            return False
        steps.left -= LINK_STEPS
        session.link_ended(self._link, self._answer)
        return True

    def failed(self) -> bool:
        return True
