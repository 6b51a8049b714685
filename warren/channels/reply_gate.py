"""Replies of a connection that wait until their changes are on disk.

1. Replies leave in the order of their requests: one that waits holds back all later ones.
2. A reply waits for a change of the metadata (its ticket), for a batch of the log (its number), or for both.
3. A reply that was sent is not taken back; when a connection closes, waiting replies are forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from warren.amqp.outbox import Outbox

if TYPE_CHECKING:
    from warren.channels.peer import Peer

# As many may wait; the connection then does not read on.
REPLIES_MAX: Final = 1000
_NONE: Final[list[tuple[int, int, bytes]]] = []  # shared by all that are empty: never changed


@mypyc_attr(acyclic=True)
class ReplyGate:
    """The replies of one connection that wait, in order."""

    def __init__(self) -> None:
        self._replies = _NONE  # ticket of the metadata, batch of the log, frame
        self.opened: i64 = 0  # for so many replies

    def is_shut(self) -> bool:
        """Tell whether a reply waits, so that every later one has to."""
        return len(self._replies) > 0

    def is_full(self) -> bool:
        """Tell whether as many wait as may."""
        return len(self._replies) >= REPLIES_MAX

    def held(self) -> i64:
        """Return what `opened` will be when all replies that wait now have left."""
        return self.opened + len(self._replies)

    def hold(self, ticket: int, batch: int, reply: bytes) -> None:
        """Keep a frame until both the change `ticket` and `batch` are on disk."""
        if self._replies is _NONE:
            self._replies = []
        self._replies.append((ticket, batch, reply))

    def open(self, committed_ticket: i64, done_batch: i64, outbox: Outbox) -> None:
        """Write the replies that have nothing left to wait for."""
        sent = 0
        for ticket, batch, reply in self._replies:
            if ticket > committed_ticket or batch > done_batch:
                break
            outbox.write(reply)
            sent += 1
        self.opened += sent
        if sent == len(self._replies):
            self._replies = _NONE
        else:
            del self._replies[:sent]

    def forget(self) -> None:
        """Drop the waiting replies: nothing follows connection.close."""
        self._replies = _NONE


class ShutGates:
    """The connections of a broker with replies that wait."""

    def __init__(self) -> None:
        self._connections: set[Peer] = set()

    def add(self, peer: Peer) -> None:
        """Remember that `peer` has replies that wait for a commit."""
        self._connections.add(peer)

    def forget(self, peer: Peer) -> None:
        """Forget a connection that ended."""
        self._connections.discard(peer)

    def open(self) -> None:
        """Send what has nothing left to wait for, on all connections: something was committed."""
        if not self._connections:
            return
        for peer in list(self._connections):
            try:
                is_open = peer.open_gate()
            except Exception as error:
                peer.outbox.failed(error)  # ends it: a reply may be written in part
                is_open = True
            if is_open:
                self._connections.discard(peer)
