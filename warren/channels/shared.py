"""The state that peers of one broker share: flags they read, lists they put themselves on, units of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.outbox import Outbox, SpareWriters
from warren.channels.confirms import PendingConfirms
from warren.channels.early_input import EarlyInput
from warren.channels.inbound import Inbound
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues.counters import SizeCounts
from warren.queues.owed_memory import OwedMemory
from warren.queues.receiver import Receiver
from warren.queues.turns import Turns
from warren.vhosts.metadata_journal import MetadataJournal
from warren.vhosts.user_shares import UserShares

if TYPE_CHECKING:
    from warren.channels.session import Session
    from warren.channels.spans import Spans

# The verdicts of a judge of publishes (`Shared.judge`).
TAKE: Final = 0
REFUSE: Final = 1  # as a queue that is full: basic.nack
RETURN: Final = 2  # as if no queue were bound
LOSE: Final = 3  # as if it had come to a queue and gone

# Reasons for not reading from a connection, a bit each.
PAUSED_COMMIT: Final = 1  # replies wait for the log
PAUSED_LOGIN: Final = 2  # credentials are being checked
PAUSED_ALARM: Final = 4  # it publishes, and memory or disk is short or the disk is behind
PAUSED_OUTBOX: Final = 8  # it does not take its replies
PAUSED_LOAD: Final = 16  # the messages it wants are being read from disk
PAUSED_INBOUND: Final = 32  # it holds much of the partly received contents, and all of them are too much
PAUSED_WORK: Final = 64  # its request takes several turns
PAUSED_TURN: Final = 128  # it has had its share of this turn

# Work is counted in units, a third of a microsecond each when compiled: a frame is one, and a queue that a message goes
# to. A step of routing or of long work, which may take longer, counts as one too.
METHOD_UNITS: Final = 16  # more for a method other than basic.publish and basic.ack; of publishes: `session`
TOPOLOGY_UNITS: Final = 96  # more for one that declares, binds or deletes: it tells the journal and all watchers
# The units for one connection at a time if the shell does not set fewer: more than a read full of small publishes, to a
# few queues each.
FEED_UNITS_MAX: Final = 16384


class Shared:
    """The state of the broker that a peer needs for every message."""

    def __init__(self, log: MessageLog, journal: MetadataJournal) -> None:
        self.log = log
        self.stopped: bool = False  # publishers have to wait: an alarm, or the disk is behind
        self.large_stopped: bool = False  # publishers of large messages have to: also if the disk is behind with these
        self.inbound = Inbound(1 << 29, 60.0)
        self.early = EarlyInput()
        self.message_max_bytes: i64 = 134217728
        self.transaction_shares = UserShares(1 << 29)  # in what open transactions may hold, in bytes
        self.feed_units: i64 = FEED_UNITS_MAX  # limit for one call of `Connection.feed`; set by the shell
        self.confirms = PendingConfirms(log, journal)
        # Looks at every routed message before a queue does, and decides about it; None in a broker that serves.
        # It costs nothing then: with a judge no route is cacheable, and every publish takes the careful way.
        self.judge: Callable[[Session, Message, list[Receiver]], int] | None = None
        self.spans: Spans | None = None  # listens to messages that belong to a trace; set by the shell
        self.dirty: list[Outbox] = []
        self.spare_writers = SpareWriters()  # of outboxes
        self.served: list[Turns] = []  # of connections that others wait for, and that can be served
        self.owed = OwedMemory()
        self.sizes = SizeCounts()  # of published bodies
