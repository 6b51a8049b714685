"""The receivers of routed messages: a queue, or a subscriber that gets them without one.

    publish   a message that a channel published, and that has no expiration: the way of nearly all
    accept    one from anywhere (``queues.origin``), with all its properties
    hold      one that must not come before a time

1. Publishers, exchanges that hold messages, dead letters and copies know a receiver only by these methods.
2. A receiver answers with the fate of the message (``queues.outcome``); a receiver that is gone accepts it.
3. Operations that only a queue has, such as reserving room for a commit, are asked of a queue.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.queues.destination import Destination

# The cost of a publish to a queue with rules: it looks at lengths and times, and may have to make room.
RULED_STEPS: Final = 4


class Receiver(Destination):
    """The base of `Queue`, and of receivers whose clients may be sent messages that are not kept for them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ticket: i64 = 0  # of its declaration in the journal of metadata; 0: there is nothing to wait for
        self.stores: bool = False  # persistent messages go into the log

    def publish(self, message: Message) -> i64:
        """Take a routed message that a channel published, and that has no expiration; see `accept`."""
        raise AssertionError("overridden")

    def accept(self, message: Message, origin: i64) -> i64:
        """Take a message. `origin`: where it is from (``queues.origin``). Returns the outcome (``queues.outcome``)."""
        raise AssertionError("overridden")

    def hold(self, message: Message, until_ms: i64, origin: i64) -> i64:
        """Take a routed message that must not be delivered before `until_ms`, and return what `accept` does."""
        raise AssertionError("overridden")

    def publish_steps(self) -> i64:
        """Return the steps that a publish to it counts in work of several turns."""
        return 1
