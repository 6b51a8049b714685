"""A connection without a socket: the broker's own management acts on it for a user, by the methods of AMQP.

1. It begins open. It has neither a handshake nor a password: its caller has checked the user.
2. Permissions of the user, limits of vhosts, texts of refusals and events of declarations are those of any other
   connection, because it is one. It does not count towards a limit of connections, and nobody is told about it.
3. Its input is handled at once: only the broker's own management uses it.
4. Its outbox is not on the list that sockets are flushed from. It is on `Broker.direct_outboxes` when there is
   something to read, or to continue after a pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.outbox import Outbox
from warren.channels.access import Principal
from warren.channels.connection import Connection
from warren.channels.connection_states import RUNNING
from warren.channels.peer import NO_LIMIT_S
from warren.queues.turns import Turns
from warren.vhosts.virtual_host import VirtualHost

if TYPE_CHECKING:
    from warren.channels.broker import Broker

PEER: Final = "management"


class DirectConnection(Connection):
    """One such connection of `principal` in `vhost`."""

    def __init__(self, broker: Broker, key: int, principal: Principal, vhost: VirtualHost) -> None:
        super().__init__(broker, key, PEER, PEER, "", None)
        self.is_direct = True
        # With a list of its own: it does not delay the flushing of sockets.
        self.outbox = Outbox(key, broker.direct_outboxes, broker.limits.outbox_soft_bytes)
        self.turns = Turns(self.outbox, broker.shared.served)
        self.user_name = principal.user.name
        broker.note_user(self)
        self.vhost_name = vhost.name
        self.fast_vhost = vhost
        self.fast_principal = principal
        self.consumer_cancel_notify = True
        self.frame_limit_bytes = i64(broker.limits.frame_max_bytes)
        self._deadline_s = NO_LIMIT_S
        self.handshake = None
        self.state = RUNNING
        self.running = True

    def resume(self, reason: i64) -> None:
        """End the pause for `reason`; the user of this connection continues with ``feed(b"")``."""
        if self.paused & reason:
            self.paused &= ~reason
            if self.paused == 0:
                self.outbox.touch()
