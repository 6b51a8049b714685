"""The receivers of routed messages: a queue, or a subscriber that gets them without one.

    publish   a message that a channel published, and that has no expiration: the way of nearly all
    accept    one from anywhere (``queues.origin``), with all its properties
    hold      one that must not come before a time

1. Publishers, exchanges that hold messages, dead letters and copies know a receiver only by these methods.
2. A receiver answers with the fate of the message (``queues.outcome``); a receiver that is gone accepts it.
3. A commit asks a receiver that may refuse publishes for its `Room` first (``channels.commit_check``).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.queues.destination import Destination

# The cost of a message for a queue with rules: it looks at lengths and times, and may have to make room; a message that
# comes back gets new headers, or is dead-lettered.
RULED_STEPS: Final = 4


class Room:
    """The room of a receiver that may refuse publishes: here none. That of a queue is in ``queues.length_limit``."""

    def has_space_for(self, count: i64, body_bytes: i64) -> bool:
        """Tell whether `count` more messages with `body_bytes` bytes would fit if consumers took none."""
        return False

    def promise(self, count: i64, body_bytes: i64) -> None:
        """Reserve room for the messages of a commit (origin `PROMISED`), until they come, or until `void_promise`."""

    def void_promise(self) -> None:
        """Cancel the room reserved for a commit."""


class Receiver(Destination):
    """The base of `BaseQueue`, and of receivers whose clients may be sent messages that are not kept for them."""

    def __init__(self, name: str, *, is_queue: bool = False, durable: bool = False) -> None:
        super().__init__(name, is_queue=is_queue, durable=durable)
        self.ticket: i64 = 0  # of its declaration in the journal of metadata; 0: there is nothing to wait for
        self.stores: bool = durable  # persistent messages go into the log
        self.stores_transient: bool = False  # and transient ones as well

    def publish(self, message: Message) -> i64:
        """Take a routed message that a channel published, and that has no expiration; see `accept`."""
        raise AssertionError("overridden")

    def accept(self, message: Message, origin: i64) -> i64:
        """Take a message. `origin`: where it is from (``queues.origin``). Returns the outcome (``queues.outcome``)."""
        raise AssertionError("overridden")

    def hold(self, message: Message, until_ms: i64, origin: i64) -> i64:
        """Take a routed message that must not be delivered before `until_ms`, and return what `accept` does."""
        raise AssertionError("overridden")

    def will_store(self, message: Message) -> bool:
        """Tell whether `message` goes into the log if it is taken."""
        return self.stores and (message.persistent or self.stores_transient)

    def publish_steps(self) -> i64:
        """Return the steps that a message counts that comes to it, or comes back, in work of several turns."""
        return 1

    def maybe_room(self) -> Room | None:
        """Return its room; None: it takes every publish."""
        return None
