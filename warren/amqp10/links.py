"""The two kinds of links of a session, from its point of view: links on which it receives, and on which it sends.

A link that has failed stays known by its handle until the peer has detached it, too (`is_gone`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.channels.partial_input import Pieces
from warren.channels.prepared_publish import PreparedPublish
from warren.queues.consumer import Consumer

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

# How many deliveries a sender may have on the way, and how much credit has to be free before it gets more.
LINK_CREDIT: Final = 2048
CREDIT_STEP: Final = LINK_CREDIT // 4
# Maximum size of what is before a body, and of what is around its parts and after it: this is decoded without a pause.
HEAD_BYTES: Final = 262144


class Link:
    """The state of both kinds of links."""

    def __init__(self, name: str, handle: int) -> None:
        self.name = name
        self.handle = handle
        self.is_gone: bool = False  # whether it has failed: its input is dropped until the peer detaches it
        self.is_management: bool = False


class ReceivingLink(Link):
    """The client sends on it. `address`: its target, None: each message names its own."""

    def __init__(self, name: str, handle: int, delivery_count: i64) -> None:
        super().__init__(name, handle)
        self.exchange = ""
        self.routing_key = ""
        self.is_anonymous: bool = False
        self.delivery_count: i64 = delivery_count
        self.credit: i64 = 0
        self.unconfirmed: i64 = 0
        self.kept: dict[bytes, PreparedPublish] = {}  # by the bytes before the body
        self.kept_settled: dict[bytes, PreparedPublish] = {}
        # State of a delivery that comes in several transfers.
        self.pieces = Pieces()
        self.delivery_id: i64 = 0
        self.is_settled: bool = False

    def lacks_queue(self, vhost: VirtualHost) -> bool:
        """Tell whether its target is a queue, and that queue does not exist."""
        queue = self.routing_key
        return self.exchange == "" and queue != "" and queue not in vhost.queues and queue not in vhost.reply_queues

    def is_cut(self) -> bool:
        """Tell whether the rest of a delivery is still to be received."""
        return self.pieces.are_any()

    def credit_due(self) -> i64:
        """Return the new credit to grant, 0: leave it unchanged."""
        wanted: i64 = LINK_CREDIT - self.unconfirmed
        if wanted - self.credit >= CREDIT_STEP:
            return wanted
        return 0

    def forget_heads(self) -> None:
        """Keep none of them."""
        self.kept.clear()
        self.kept_settled.clear()

    def forget(self) -> None:
        """Release what the link holds: it has ended."""
        self.forget_heads()
        self.pieces.drop()


class SendingLink(Link):
    """The client receives on it. `limit`: its delivery count when all of its credit is used."""

    def __init__(self, name: str, handle: int) -> None:
        super().__init__(name, handle)
        self.consumer: Consumer | None = None  # None: the link belongs to a pair for management
        self.limit: i64 = 0
        self.credit: i64 = 0  # of one without a consumer
        self.queue = ""  # the queue that was made for it, and is deleted with it
        self.is_draining: bool = False
        self.filter_size: i64 = 0  # in characters
        self.message_max: int = 0  # the largest message that the client takes on it, in bytes; 0: any
        # For a stream: its position when a drain was looked at last, and the end at the time of that request.
        self.place: i64 = 0
        self.drain_to: i64 = 0
        self.responses: deque[bytes] = deque()  # responses of a link pair that wait for credit

    def credit_left(self) -> i64:
        consumer = self.consumer
        return self.credit if consumer is None else consumer.credit

    def delivery_count(self) -> i64:
        return (self.limit - self.credit_left()) & 0xFFFFFFFF

    def grant(self, limit: i64, credit: i64) -> None:
        self.limit = limit & 0xFFFFFFFF
        consumer = self.consumer
        if consumer is None:
            self.credit = credit
        else:
            consumer.credit = credit
