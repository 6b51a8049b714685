"""Messages in memory with consecutive numbers: the head or the tail of a backlog.

    items    None ... None | message  None  message ... message
             gone            at, has number `first`

1. A place is None where its message was taken out of turn, or where the number was given to one that did not wait.
2. The backlog appends and pops in line, since it does so for each message of a queue; everything else is here.
3. A run without messages has no places.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.batch import written_bytes
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex

# How many places a run has per message, and in addition, before it is sparse.
PLACES_PER_MESSAGE: Final = 64
SPARSE_MIN: Final = 16384
# The places before `at` are freed when they are this many, and most of all.
GONE_MIN: Final = 1024


class Cut:
    """The messages that a run has given up: how many, and their bytes."""

    def __init__(self, places: list[Message | None]) -> None:
        self.count: i64 = 0
        self.memory_bytes: i64 = 0
        self.body_bytes: i64 = 0
        for message in places:
            if message is not None:
                self.count += 1
                self.memory_bytes += message.memory_bytes
                self.body_bytes += message.body_bytes


class MessageRun:
    """A run of `count` messages, which take `memory_bytes`; their bodies have `body_bytes`."""

    def __init__(self) -> None:
        self.items: list[Message | None] = []
        self.at: i64 = 0
        self.first: i64 = 0
        self.count: i64 = 0
        self.memory_bytes: i64 = 0
        self.body_bytes: i64 = 0

    def end(self) -> i64:
        """Return the number after the last place."""
        return self.first + len(self.items) - self.at

    def append(self, message: Message, number: i64) -> None:
        """Put a message at the end, with `number`; the places up to there become gaps."""
        items = self.items
        if not items:
            self.first = number
        gap: i64 = number - self.end()
        while gap > 0:
            items.append(None)
            gap -= 1
        items.append(message)
        self.count += 1
        self.memory_bytes += message.memory_bytes
        self.body_bytes += message.body_bytes

    def find(self, number: i64) -> Message | None:
        """Return the message with `number`."""
        place: i64 = number - self.first
        return self.items[self.at + place] if 0 <= place < len(self.items) - self.at else None

    def seek(self, number: i64) -> i64:
        """Return the number of the first message from `number` on, or the end of the run; not before that end."""
        if number < self.first:
            number = self.first
        items = self.items
        at: i64 = self.at + number - self.first
        while at < len(items) and items[at] is None:
            at += 1
            number += 1
        return number

    def skip_gap(self) -> None:
        """Skip to the first message of the run; there is one."""
        items = self.items
        at: i64 = self.at
        if items[at] is not None:
            return
        while items[at] is None:
            at += 1
        self.first += at - self.at
        if at > GONE_MIN and at * 2 > len(items):
            del items[:at]
            at = 0
        self.at = at

    def take(self, message: Message, number: i64) -> None:
        """Take out `message`, which has `number`."""
        self.items[self.at + number - self.first] = None
        self.count -= 1
        self.memory_bytes -= message.memory_bytes
        self.body_bytes -= message.body_bytes
        if self.count == 0:
            self.items.clear()
            self.at = 0
        elif number == self.first:
            self.skip_gap()

    def is_sparse(self) -> bool:
        """Tell whether it has gaps for the most part."""
        return len(self.items) - self.at > SPARSE_MIN + PLACES_PER_MESSAGE * self.count

    def trim(self) -> None:
        """Free the gaps at both ends."""
        if self.count == 0:
            return
        items = self.items
        end: i64 = len(items)
        while items[end - 1] is None:
            end -= 1
        del items[end:]
        self.skip_gap()

    def cut_end(self, at: i64) -> Cut:
        """Give up everything from place `at` of `items` on."""
        return self._without(Cut(self.items[at:]), at, len(self.items))

    def cut_beginning(self, places: i64) -> Cut:
        """Give up this many places at the beginning."""
        end: i64 = self.at + places
        cut = Cut(self.items[self.at : end])
        self.first += places
        self.at = 0
        return self._without(cut, 0, end)

    def _without(self, cut: Cut, start: i64, end: i64) -> Cut:
        del self.items[start:end]
        self.count -= cut.count
        self.memory_bytes -= cut.memory_bytes
        self.body_bytes -= cut.body_bytes
        if self.count == 0:
            self.items.clear()
            self.at = 0
        return cut

    def clear(self, log: MessageLog) -> None:
        """Forget everything; it is taken apart later."""
        log.reclamation.add(self.items, self.memory_bytes)
        self.items = []
        self.at = 0
        self.count = 0
        self.memory_bytes = 0
        self.body_bytes = 0

    def settle(self, index: QueueIndex) -> None:
        """Settle all messages; gaps may be out for acknowledgement."""
        batch = index.log.batch
        items = self.items
        at: i64 = self.at
        number: i64 = self.first
        end: i64 = len(items)
        if self.count == end - at:
            batch.settle_waiting(index, number, number + self.count)
            return
        while at < end:
            start: i64 = at
            while at < end and items[at] is not None:
                at += 1
            if at > start:
                batch.settle_waiting(index, number, number + at - start)
            number += at - start + 1
            at += 1

    def stored_from(self, index: QueueIndex, least: i64) -> i64:
        """Return the place in `items` from which everything is on disk, but not one before `least`."""
        items = self.items
        at: i64 = len(items)
        number: i64 = self.end()
        while at > least:
            if items[at - 1] is not None and index.lsn_of(number - 1) == 0:
                break
            at -= 1
            number -= 1
        return at

    def stored_to(self, index: QueueIndex) -> i64:
        """Return the place in `items` before which everything is on disk."""
        items = self.items
        at: i64 = self.at
        number: i64 = self.first
        while at < len(items) and (items[at] is None or index.lsn_of(number) != 0):
            at += 1
            number += 1
        return at

    def store(self, index: QueueIndex, at: i64, *, whole: bool) -> None:
        """Store the messages from a place in `items` on, in order: all, or as far as the open batch has room."""
        items = self.items
        log = index.log
        number: i64 = self.first + at - self.at
        while at < len(items) and (whole or log.room_to_page() > 0):
            message = items[at]
            # One with a row is in the open batch already: for us, or for another queue first.
            if message is not None and message.row < 0 and index.lsn_of(number) == 0:
                log.batch.add(index, message, number)
            at += 1
            number += 1

    def room_from(self, least: i64, room: i64) -> i64:
        """Return the place in `items` from which everything takes about `room` bytes in a batch, not before `least`."""
        items = self.items
        at: i64 = len(items)
        while at > least and room > 0:
            at -= 1
            message = items[at]
            if message is not None:
                room -= written_bytes(message)
        return at

    def short_to(self, most: i64, most_bytes: i64) -> i64:
        """Return the place in `items` up to which there are `most` places and `most_bytes`, or one message."""
        items = self.items
        at: i64 = self.at
        end: i64 = at + most
        if end > len(items):
            end = len(items)
        size: i64 = 0
        while at < end:
            message = items[at]
            if message is not None:
                if size > 0 and size + message.memory_bytes > most_bytes:
                    break
                size += message.memory_bytes
            at += 1
        return at

    def numbered(self) -> list[tuple[int, Message]]:
        """Return the messages with their numbers, in order."""
        start = int(self.first - self.at)
        return [(start + at, message) for at, message in enumerate(self.items) if message is not None]

    def check_invariants(self) -> None:
        """Assert (3) of the module header, and the sums. For tests."""
        messages = [message for message in self.items if message is not None]
        assert self.items[: self.at].count(None) == self.at
        assert self.count == len(messages) and (self.count or not self.items)
        assert self.memory_bytes == sum([int(message.memory_bytes) for message in messages])
        assert self.body_bytes == sum([int(message.body_bytes) for message in messages])


# Stands for a run that has never had a message, and stays empty: most queues have no tail.
NO_MESSAGES: Final = MessageRun()
