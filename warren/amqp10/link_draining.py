"""Drains of links: a client asks for the messages that can be sent at once, and gives up the rest of its credit.

    flow, drain=true   -->  a `DrainRun` lets the queue serve the link, a share in each turn
                       <--  the available messages
                       <--  flow, drain=true: the rest of the credit is used up

1. Messages that exist when a drain is requested are sent before it ends, if the link may have them. A stream is read up
   to the end that it had at that time, and a queue up to the last message that the link's filters want.
2. Some messages cannot be sent at once: they are being read from disk, or the client has not taken earlier bytes. This
   does not end a drain. It continues when the client has taken everything, and in each tick. It ends in a tick if the
   link has made no progress since the look before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp10.links import SendingLink
from warren.queues.arguments import STREAM
from warren.queues.consumer import Consumer
from warren.queues.long_work import Job, Steps
from warren.streams.stream import Stream

if TYPE_CHECKING:
    from warren.amqp10.session import Amqp10Session

DRAIN_STEPS: Final = 4


def begin_drain(session: Amqp10Session, link: SendingLink) -> None:
    """Begin to drain a link, whose client has asked for that."""
    consumer = link.consumer
    if consumer is None or consumer.credit == 0:
        _end(session, link)
        return
    queue = consumer.queue
    link.drain_to = queue.next_offset() if isinstance(queue, Stream) else 0
    search = consumer.search
    if search is not None:
        search.mark(queue.ready)
    session.peer.begin(DrainRun(session, link))


def continue_drains(session: Amqp10Session) -> None:
    """Continue: the client has taken the bytes that waited for it, so there is room for more."""
    for link in list(session.links.values()):
        if isinstance(link, SendingLink) and link.is_draining and not link.is_gone:
            session.peer.begin(DrainRun(session, link))


def tick_drains(session: Amqp10Session) -> None:
    """Check the draining links: end the drains that make no progress."""
    for link in list(session.links.values()):
        if isinstance(link, SendingLink) and link.is_draining and not link.is_gone:
            consumer = link.consumer
            if consumer is None or (consumer.credit == link.credit and _is_through(link, consumer)):
                _end(session, link)
            else:
                session.peer.begin(DrainRun(session, link))


class DrainRun(Job):
    """Drains a link: sends the available messages, and uses up the rest of the credit."""

    def __init__(self, session: Amqp10Session, link: SendingLink) -> None:
        self._session = session
        self._link = link

    def run(self, steps: Steps) -> bool:
        link = self._link
        consumer = link.consumer
        while link.is_draining and consumer is not None and self._session.is_open():
            if steps.left <= 0:
                return False
            before: i64 = consumer.credit
            queue = consumer.queue
            search = consumer.search
            looks: i64 = 0 if search is None else search.looks
            consumer.looked = 0
            if not consumer.gone and before > 0 and consumer.has_room():
                queue.serve(consumer)
            steps.left -= DRAIN_STEPS + before - consumer.credit + consumer.looked
            has_looked = search is not None and search.looks > looks
            if has_looked and consumer.credit > 0 and search is not None and not search.has_seen_all(queue.ready):
                continue
            if consumer.credit == before or consumer.credit == 0:
                _stopped(self._session, link)
                return True
        return True


def _stopped(session: Amqp10Session, link: SendingLink) -> None:
    """End the drain if nothing is left, else look again later. All that can be sent now was sent."""
    consumer = link.consumer
    if consumer is None or consumer.credit == 0:
        _end(session, link)
        return
    queue = consumer.queue
    if consumer.gone or (queue.ready_count == 0 and queue.rules.queue_type != STREAM) or _has_seen_all(consumer):
        _end(session, link)
        return
    link.credit = consumer.credit  # the credit at the time of this look
    link.place = _place_of(consumer)


def _end(session: Amqp10Session, link: SendingLink) -> None:
    """Report that the remaining credit is used up."""
    link.is_draining = False
    link.grant(link.limit, 0)
    session.write_sending_flow(link, drain=True)


def _has_seen_all(consumer: Consumer) -> bool:
    """Tell whether a consumer that wants some messages of a queue has looked at all that a drain found there."""
    search = consumer.search
    return search is not None and search.has_seen_all(consumer.queue.ready)


def _place_of(consumer: Consumer) -> i64:
    """Return the position of a consumer in a stream or queue: it may be far along without a matching message."""
    queue = consumer.queue
    search = consumer.search
    if search is not None:
        return search.looks
    return queue.offset_of(consumer) if isinstance(queue, Stream) else 0


def _is_through(link: SendingLink, consumer: Consumer) -> bool:
    """Tell whether a drain has seen the messages available when it was requested, or cannot proceed."""
    place = _place_of(consumer)
    search = consumer.search
    if search is not None:
        return not search.waits and place == link.place
    return place == link.place or place >= link.drain_to
