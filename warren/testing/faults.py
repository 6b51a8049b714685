"""Planned faults of publishes, and the record of successful ones. On the loop only.

`FaultyPublishes.judge` is asked by the engine about every publish of a client, when it has been authorized and routed;
in a transaction when that is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.channels.session import Session
from warren.channels.shared import LOSE, REFUSE, RETURN, TAKE
from warren.testing.messages import PublishedMessage, properties_of

if TYPE_CHECKING:
    from warren.channels.peer import Peer
    from warren.channels.session import Session
    from warren.msgstore.log.message import Message
    from warren.queues.receiver import Receiver


class FaultyPublishes:
    """The publishes of one broker. `drop` ends a connection soon, when the engine has handled its current input."""

    def __init__(self) -> None:
        self.published: list[PublishedMessage] = []
        self.nacked: list[PublishedMessage] = []
        self.drop: Callable[[Peer], None] = _nobody
        self._nack = 0
        self._return = 0
        self._drop = 0
        self._doomed: set[int] = set()

    def nack_next(self, count: int) -> None:
        """Refuse the next `count` publishes on channels with confirms."""
        self._nack = count

    def return_next(self, count: int) -> None:
        """Route the next `count` publishes to no queue."""
        self._return = count

    def drop_next(self, count: int) -> None:
        """End the next `count` connections that publish, and lose their messages."""
        self._drop = count

    def clear(self) -> None:
        """Forget the published messages, and cancel all planned faults."""
        self.published.clear()
        self.nacked.clear()
        self._nack = self._return = self._drop = 0
        self._doomed.clear()

    def judge(self, channel: Session, message: Message, queues: list[Receiver]) -> int:
        """Decide the fate of `message`, which would go to `queues`."""
        peer = channel.peer
        if peer.origin.is_direct:
            return TAKE  # the test's own preparations
        if peer.key in self._doomed:
            return LOSE
        if self._drop > 0:
            self._drop -= 1
            self._doomed.add(peer.key)
            self.drop(peer)
            return LOSE
        if self._nack > 0 and channel.confirms is not None:
            self._nack -= 1
            self.nacked.append(_seen(peer, message, []))
            return REFUSE
        if self._return > 0:
            self._return -= 1
            self.published.append(_seen(peer, message, []))
            return RETURN
        self.published.append(_seen(peer, message, queues))
        return TAKE


def _seen(peer: Peer, message: Message, queues: list[Receiver]) -> PublishedMessage:
    return PublishedMessage(
        vhost=peer.login.vhost_name,
        exchange=message.envelope.exchange,
        routing_key=message.envelope.routing_key,
        properties=properties_of(message),
        body=message.body(),
        queues=tuple(queue.name for queue in queues),
        user=peer.login.user_name,
        connection=peer.login.name or peer.origin.peer,
    )


def _nobody(_: Peer) -> None:
    """Do nothing, while the broker does not exist yet."""
