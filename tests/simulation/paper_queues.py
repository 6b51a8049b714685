"""What the queues should hold, on paper: the oracle of the crash simulation. Lists and dicts, nothing clever.

1. A message is one `Entry` for each queue that it went to. `place` is its turn over all publishes; a requeue does not
   change it.
2. What a restart may bring back is what was stored when some batch was closed (`Paper.stored`): persistent, in a
   durable queue, and not settled by then.
3. Of four messages one has a time, and one a time and a time to live of its own, which is never up.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from warren.msgstore.message import Envelope, Message, build_message

_PROPERTIES = b"\x10\x00\x02"  # delivery-mode 2 and nothing else; the store looks at the message, not at these
_EXPIRATION_MS = 10**11
_EXPIRING = b"\x11\x00\x02\x0c%d" % _EXPIRATION_MS  # and an expiration
_EXCHANGES = ("", "orders", "ü")


class Entry(NamedTuple):
    """A message in a queue. `delivered`: a client may have had it before."""

    place: int
    message: int
    persistent: bool
    delivered: bool


# The entries of each queue, in order, by queue id; no queue is empty.
Stored = dict[int, tuple[Entry, ...]]


class PaperQueue:
    """One queue. `unacked` is by delivery tag."""

    def __init__(self, name: str, queue_id: int, durable: bool) -> None:
        self.name = name
        self.queue_id = queue_id
        self.durable = durable
        self.ready: list[Entry] = []
        self.unacked: dict[int, Entry] = {}


class Messages:
    """Every message that was ever published in a test, by number, and back from what is served."""

    def __init__(self) -> None:
        self._made: list[tuple[str, str, bytes, int, int]] = []
        self._numbers: dict[tuple[str, str, bytes], int] = {}

    def new(self, body_bytes: int) -> int:
        """Invent a message that is like no other, with a body of about so many bytes; return its number."""
        number = len(self._made)
        exchange = _EXCHANGES[number % len(_EXCHANGES)]
        body = (b"<%d>" % number) + bytes([number % 250 + 1]) * body_bytes
        properties = _EXPIRING if number % 4 == 3 else _PROPERTIES
        message = build_message(Envelope(exchange, f"k{number % 5}"), properties, body, 4096, True)
        made = (exchange, f"k{number % 5}", message.joined(), len(body), int(message.frame_max_bytes))
        self._made.append(made)
        self._numbers[made[:3]] = number
        return number

    def publish(self, number: int, *, persistent: bool) -> Message:
        """Return the message as a publisher's channel would hand it on."""
        exchange, routing_key, content, body_bytes, frame_max_bytes = self._made[number]
        message = Message(Envelope(exchange, routing_key), content, 1, body_bytes, frame_max_bytes, persistent)
        message.time_ms, message.expiration_ms = self._time_of(number)
        return message

    def _time_of(self, number: int) -> tuple[int, int]:
        return (number if number % 2 else 0), (_EXPIRATION_MS if number % 4 == 3 else -1)

    def number_of(self, message: Message) -> int:
        """Return which one it is, to the last byte; -1: nobody ever published that."""
        envelope = message.envelope
        number = self._numbers.get((envelope.exchange, envelope.routing_key, message.joined()), -1)
        return number if (message.time_ms, message.expiration_ms) == self._time_of(number) else -1

    def number_of_content(self, exchange: str, routing_key: str, content: bytes) -> int:
        """Return which one has these bytes; -1: none."""
        return self._numbers.get((exchange, routing_key, content), -1)


class Paper:
    """All queues, by name."""

    def __init__(self) -> None:
        self.queues: dict[str, PaperQueue] = {}
        self.orphans: Stored = {}  # of queues that only the store knows
        self._next_place = 0

    def publish(self, names: list[str], message: int, *, persistent: bool) -> None:
        self._next_place += 1
        for name in names:
            self.queues[name].ready.append(Entry(self._next_place, message, persistent, False))

    def take(self, name: str, tag: int | None) -> Entry:
        """The oldest message of a queue goes to a client, for good when there is no `tag`."""
        queue = self.queues[name]
        entry = queue.ready.pop(0)
        if tag is not None:
            queue.unacked[tag] = entry
        return entry

    def settle(self, tag: int) -> None:
        """A delivery is acknowledged or rejected. That of a deleted queue is nobody's."""
        for queue in self.queues.values():
            queue.unacked.pop(tag, None)

    def requeue(self, tag: int) -> None:
        """A delivery goes back to its place."""
        for queue in self.queues.values():
            entry = queue.unacked.pop(tag, None)
            if entry is not None:
                insort(queue.ready, entry._replace(delivered=True))

    def stored(self) -> Stored:
        """Return what a restart should bring back if it came now and everything were on disk."""
        found: Stored = dict(self.orphans)
        for queue in self.queues.values():
            if queue.durable:
                entries = [entry for entry in queue.ready if entry.persistent]
                entries += [entry._replace(delivered=True) for entry in queue.unacked.values() if entry.persistent]
                if entries:
                    found[queue.queue_id] = tuple(sorted(entries))
        return found

    def restore(self, name: str, queue_id: int, entries: tuple[Entry, ...], *, clean: bool) -> None:
        """A queue is back after a restart: after an unclean one anything may have been delivered before."""
        queue = self.queues[name] = PaperQueue(name, queue_id, True)
        queue.ready = [entry._replace(delivered=entry.delivered or not clean) for entry in entries]
        for entry in entries:
            self._next_place = max(self._next_place, entry.place)
