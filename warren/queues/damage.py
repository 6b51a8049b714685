"""The damage on disk of each queue: listed for operators, and given up when one of them asks.

1. A damaged place is an index's (``msgstore.log.index_damage``) or a sealed chunk of a stream. It is known once it was
   read; a restart forgets it, and the next read finds it again.
2. Unless its queue is deleted, a damaged message is removed only by giving it up. Then its entry is settled as if
   acknowledged. A damaged index page is removed without its references: these are not known, so its segments stay until
   ``warren store repair`` has counted them.
3. A chunk of a stream stays in its file and is passed over; once given up, it is no longer listed in this life.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.fetch import Fetch

_STORED: Final = build_message(Envelope("", ""), b"\x00\x00", b"", 0, True)  # stands for one that is written


class DamagedPlace:
    """Messages of a queue from number `first` up to `end`, `messages` of them, damaged since `since_ms` (0: unknown).

    `what`: ``messages``, ``index page``, or ``chunk`` of a stream.
    """

    def __init__(
        self, vhost: str, queue: str, lane: int, what: str, first: int, end: int, messages: int, since_ms: int
    ) -> None:
        self.since_ms = since_ms
        self.vhost = vhost
        self.queue = queue
        self.lane = lane
        self.what = what
        self.first = first
        self.end = end
        self.messages = messages


def has_damage(log: MessageLog) -> bool:
    """Tell whether any damage is known."""
    return bool(log.damage.indexes or log.damage.chunks)


def damaged_messages(log: MessageLog) -> int:
    """Return how many messages are known to be damaged."""
    count = 0
    for index in log.damage.indexes.values():
        if index.damage is not None:
            count += index.damage.message_count()
    for stream_id, firsts in log.damage.chunks.items():
        stream = log.sealed.served.get(stream_id)
        if stream is not None:
            table = stream.sealed()
            for first in firsts:
                if table.first() <= first < table.end:
                    count += int(table.place(first)[1].count)
    return count


def damaged_places(log: MessageLog, most: int) -> list[DamagedPlace]:
    """Return at most `most` damaged places, by queue."""
    found: list[DamagedPlace] = []
    for index in log.damage.indexes.values():
        if len(found) >= most:
            break
        found += _places_of(index)
    for stream_id, firsts in log.damage.chunks.items():
        stream = log.sealed.served.get(stream_id)
        if stream is None or len(found) >= most:
            continue
        table = stream.sealed()
        vhost, name = stream.named()
        for first in sorted(firsts):
            if table.first() <= first < table.end:
                chunk = table.place(first)[1]
                found.append(DamagedPlace(vhost, name, 0, "chunk", first, int(chunk.end), int(chunk.count), 0))
    return found[:most]


def _places_of(index: QueueIndex) -> list[DamagedPlace]:
    damage = index.damage
    if damage is None:
        return []
    vhost, name, lane = index.vhost, index.name, int(index.lane)
    since_ms = int(damage.since_ms)
    found: list[DamagedPlace] = []
    for number in sorted(damage.numbers):
        if found and found[-1].end == number:
            found[-1].end = number + 1
            found[-1].messages += 1
        else:
            found.append(DamagedPlace(vhost, name, lane, "messages", number, number + 1, 1, since_ms))
    size = int(index.page_entries)
    for page_number in sorted(damage.pages):
        live = int(damage.pages[page_number].live)
        found.append(
            DamagedPlace(vhost, name, lane, "index page", page_number * size, (page_number + 1) * size, live, since_ms)
        )
    return found


def give_up_damage(log: MessageLog, vhost: str, queue: str) -> int:
    """Give up the damage of a queue, in all its lanes; return how many messages that were. Settle the turn."""
    count = 0
    for index in list(log.damage.indexes.values()):
        damage = index.damage
        if (index.vhost, index.name) != (vhost, queue) or damage is None:
            continue
        count += damage.message_count()
        for page_number in list(damage.pages):
            index.give_up_page(page_number)
        if damage.numbers:
            _GivingUp(log, index, sorted(damage.numbers)).begin()
        else:
            index.forget_damage()
    for stream_id in list(log.damage.chunks):
        stream = log.sealed.served.get(stream_id)
        if stream is not None and stream.named() == (vhost, queue):
            firsts = log.damage.chunks.pop(stream_id)
            table = stream.sealed()
            for first in firsts:
                if table.first() <= first < table.end:
                    count += int(table.place(first)[1].count)
    return count


class _GivingUp(Fetch):
    """Has the index pages of damaged messages read, if they are absent, and settles the messages unread."""

    def _read_messages(self) -> None:
        index, log = self.index, self.log
        damage = index.damage
        if damage is None or index.deleted:
            return
        count: i64 = 0
        size: i64 = 0
        for number in self.numbers:
            damage.numbers.discard(number)
            body_bytes: i64 = index.body_bytes_of(number)
            if body_bytes >= 0:
                count += 1
                size += body_bytes
                log.batch.settle(index, _STORED, number)
        if damage.is_empty():
            index.forget_damage()
        owner = index.owner
        if owner is not None:
            owner.given_up(int(count), int(size))

    def fetched(self, messages: list[Message | None]) -> None:
        raise AssertionError("no message is read")
