"""Who a message can be routed to: a queue, or a subscriber to whom it goes without one.

    publish   a message that a channel published, and that has no expiration: the way of nearly all
    accept    one from anywhere (``queues.origin``), with whatever it asks for
    hold      one that is not to come before a time

1. Publishers, exchanges that hold messages, dead letters and copies know nothing else of whom they give a message to.
2. A receiver answers with what has become of the message (``queues.outcome``); who is not there any more accepts it.
3. What only a queue can do, such as to keep room for a commit, is asked of a queue.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.exchanges.destination import Destination
from warren.msgstore.log.message import Message

# Of a publish to a queue with rules: it looks at lengths and times, and may have to make room.
RULED_STEPS: Final = 4


class Receiver(Destination):
    """Subclassed by `Queue`, and by protocols whose clients may be sent messages that nobody keeps for them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ticket: i64 = 0  # of its declaration in the journal of metadata; 0: of none that is to be waited for
        self.stores: bool = False  # persistent messages go into the log

    def publish(self, message: Message) -> i64:
        """Take a routed message that a channel published, and that has no expiration; see `accept`."""
        raise AssertionError("overridden")

    def accept(self, message: Message, origin: i64) -> i64:
        """Take a message. `origin`: where it is from (``queues.origin``). Returns the outcome (``queues.outcome``)."""
        raise AssertionError("overridden")

    def hold(self, message: Message, until_ms: i64, origin: i64) -> i64:
        """Take a routed message that is not to be delivered before a time; otherwise as `accept`."""
        raise AssertionError("overridden")

    def publish_steps(self) -> i64:
        """Return how much a publish to it counts in work that takes several turns."""
        return 1
