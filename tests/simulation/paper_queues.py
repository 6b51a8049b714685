"""The expected contents of the queues, on paper: the oracle of the crash simulation. Lists and dicts, nothing clever.

1. A message is one `Entry` for each queue that it went to. `place` is its position among all arrivals of a queue; a
   requeue does not change it. Held messages are in a lane of their own, each with the time of its release.
2. A restart may bring back the messages stored when some batch was closed (`Paper.stored`): persistent, in a durable
   queue, and not settled by then. A quorum queue stores transient messages, too.
3. Of four plain messages one has a time, and one has a time and its own time to live, which never ends.
4. A dead letter that is refused again keeps its place, and the disk keeps the time of its first retry.
5. The paper decides the fate of each message. Three moments depend on the disk: an expired message leaves, the head of
   a queue that is too long is dropped, a held message is released. The paper is told of them, and objects if they are
   wrong.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Final, NamedTuple

from simulation.queue_kinds import Kind, kind_of
from warren.amqp.field_table import decode_table
from warren.amqp.properties import HEADERS, BasicProperties, find_property
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.dead_letter import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED
from warren.queues.lanes import DELAYED, PARKED, UNDELIVERED

HELD_LANES: Final = (DELAYED, PARKED, UNDELIVERED)
PARKED_UNTIL: Final = 1 << 61
UNDELIVERED_RETRY_MS: Final = 5000
NEVER: Final = 1 << 62
_EXPIRATION_MS: Final = 10**11
_EXCHANGES: Final = ("", "orders", "ü")


class Violation(AssertionError):
    """The store has broken a promise."""


class Death(NamedTuple):
    """A header's entry about one queue and reason."""

    queue: str
    reason: str
    times: int


class Version(NamedTuple):
    """A message, and what its header says by now: failed deliveries, all returns, deaths, the last one first."""

    number: int
    failures: int = 0
    returns: int = 0
    deaths: tuple[Death, ...] = ()

    def __repr__(self) -> str:
        deaths = "".join(f", {death.reason} in {death.queue}" for death in self.deaths)
        counts = f", {self.failures} of {self.returns} failed" if self.returns else ""
        return f"<{self.number}{counts}{deaths}>" if counts or deaths else str(self.number)

    def died(self, queue: str, reason: str) -> Version:
        """Return the letter that is made of it."""
        times = 1 + sum(death.times for death in self.deaths if death[:2] == (queue, reason))
        others = tuple(death for death in self.deaths if death[:2] != (queue, reason))
        return self._replace(deaths=(Death(queue, reason, times), *others))

    def goes_round(self, target: str) -> bool:
        """Tell whether it died in `target` before, and nobody has rejected it since."""
        for death in self.deaths:
            if death.reason == REJECTED:
                return False
            if death.queue == target:
                return True
        return False


class Entry(NamedTuple):
    """A message in a queue. `delivered`: a client may have had it before. `time_ms` of a held one: until when."""

    lane: int
    place: int
    message: Version
    persistent: bool
    delivered: bool
    time_ms: int


# The entries of each index, in order, by its number in the log; none is empty.
Stored = dict[int, tuple[Entry, ...]]


class PaperQueue:
    """One queue. `unacked` is by delivery tag, `held` by lane. `leaving`: messages that a client has just given up."""

    def __init__(self, name: str, queue_id: int, durable: bool) -> None:
        self.name = name
        self.queue_id = queue_id
        self.durable = durable
        self.kind: Kind = kind_of(name)
        self.ready: list[Entry] = []
        self.unacked: dict[int, Entry] = {}
        self.held: dict[int, list[Entry]] = {code: [] for code in HELD_LANES}
        self.retries: dict[int, int] = {}  # of dead letters refused again: the next retry in ms, by place
        self.restored: set[int] = set()  # lanes whose deadlines were read from disk, and so become known in any order
        self.leaving: tuple[Entry, str] | None = None

    def due_ms(self, entry: Entry) -> int:
        """Return when a held message is due; an earlier time may be on disk."""
        return self.retries.get(entry.place, entry.time_ms)

    def is_full(self) -> bool:
        return self.kind.refuses and 0 <= self.kind.max_length <= len(self.ready)


class _Made(NamedTuple):
    """A message as it was published."""

    exchange: str
    routing_key: str
    properties: BasicProperties
    body: bytes
    expiration_ms: int
    content: bytes
    frame_max_bytes: int


class Messages:
    """Every message that was ever published in a test, by number, and back from what is served."""

    def __init__(self) -> None:
        self._made: list[_Made] = []
        self._versions: dict[tuple[str, str, bytes], Version | None] = {}

    def new(self, body_bytes: int, *, persistent: bool = True, priority: int = -1, expiration_ms: int = -1) -> Version:
        """Invent a unique message, with a body of about `body_bytes` bytes."""
        number = len(self._made)
        exchange, key = _EXCHANGES[number % len(_EXCHANGES)], f"k{number % 5}"
        body = (b"<%d>" % number) + bytes([number % 250 + 1]) * body_bytes
        if number % 4 == 3 and expiration_ms < 0:
            expiration_ms = _EXPIRATION_MS
        properties = BasicProperties()
        properties.delivery_mode = 2 if persistent else 1  # and nothing else as a rule
        if priority >= 0:
            properties.priority = priority
        if expiration_ms >= 0:
            properties.expiration = str(expiration_ms)
        message = build_message(Envelope(exchange, key), properties.encode(), body, 4096, True)
        content = message.joined()
        frame_max = int(message.frame_max_bytes)
        self._made.append(_Made(exchange, key, properties, body, expiration_ms, content, frame_max))
        version = self._versions[exchange, key, content] = Version(number)
        return version

    def publish(self, version: Version, time_ms: int) -> Message:
        """Return the message as a publisher's channel would hand it on."""
        made = self._made[version.number]
        envelope = Envelope(made.exchange, made.routing_key)
        persistent = made.properties.delivery_mode == 2
        message = Message(envelope, made.content, 1, len(made.body), made.frame_max_bytes, persistent)
        message.time_ms, message.expiration_ms = time_ms, made.expiration_ms
        return message

    def plain_time_of(self, version: Version) -> int:
        """Return the time that it has in a queue that needs none."""
        return version.number if version.number % 2 else 0

    def body_bytes(self, version: Version) -> int:
        return len(self._made[version.number].body)

    def life_ms(self, version: Version) -> int:
        """Return its own time to live, -1 without. That of a letter ends with the first death."""
        return -1 if version.deaths else self._made[version.number].expiration_ms

    def priority(self, version: Version) -> int:
        return self._made[version.number].properties.priority or 0

    def stored_version(self, message: Message) -> Version | None:
        """Return which one was read from disk, to the last byte; None: nobody ever published that."""
        version = self.version_of(message)
        if version is None or message.expiration_ms != (self.life_ms(version) if message.time_ms else -1):
            return None
        return version

    def version_of(self, message: Message) -> Version | None:
        """Return which one it is; None: nobody ever published that."""
        return self.version_of_content(message.envelope.exchange, message.envelope.routing_key, message.joined())

    def version_of_content(self, exchange: str, routing_key: str, content: bytes) -> Version | None:
        """Return which one has these bytes; None: none."""
        key = (exchange, routing_key, content)
        if key not in self._versions:
            self._versions[key] = self._read(*key)
        return self._versions[key]

    def _read(self, exchange: str, routing_key: str, content: bytes) -> Version | None:
        """Return which message this is with another header, all of whose bytes must be as expected."""
        payload = content[7 : 7 + int.from_bytes(content[3:7], "big")]
        head = content.find(b"<", 8 + len(payload))
        number = content[head + 1 : content.find(b">", head)]
        at = find_property(payload, HEADERS)
        if at < 0 or not number.isdigit() or int(number) >= len(self._made):
            return None
        made = self._made[int(number)]
        encoded = payload[at : at + 4 + int.from_bytes(payload[at : at + 4], "big")]
        version = _version_by_headers(int(number), encoded)
        properties = BasicProperties()
        properties.headers = encoded
        properties.delivery_mode = made.properties.delivery_mode
        properties.priority = made.properties.priority
        properties.expiration = None if version.deaths else made.properties.expiration
        envelope = Envelope(exchange, routing_key)
        if build_message(envelope, properties.encode(), made.body, 4096, True).joined() != content:
            return None
        route = ("", kind_of(version.deaths[0].queue).letters_to) if version.deaths else made[:2]
        return version if (exchange, routing_key) == route else None


def _version_by_headers(number: int, encoded: bytes) -> Version:
    table = decode_table(encoded)
    failures, returns = table.pop("x-delivery-count", 0), table.pop("x-acquired-count", 0)
    assert isinstance(failures, int) and isinstance(returns, int)
    deaths: list[Death] = []
    listed = table.pop("x-death", [])
    assert isinstance(listed, list)
    for death in listed:
        assert isinstance(death, dict)
        deaths.append(Death(death["queue"], death["reason"], death["count"]))
    if deaths:
        last = (table.pop("x-last-death-queue"), table.pop("x-last-death-reason"))
        assert last == deaths[0][:2], f"the last death is {last}, not {deaths[0]}"
        table.pop("x-last-death-exchange")
        for what in ("queue", "reason", "exchange"):
            table.pop(f"x-first-death-{what}")
    assert not table, f"headers that nobody wrote: {table}"
    return Version(number, failures, returns, tuple(deaths))


class Paper:
    """All queues, by name."""

    def __init__(self, messages: Messages) -> None:
        self.queues: dict[str, PaperQueue] = {}
        self.orphans: Stored = {}  # of queues that only the store knows
        self._messages = messages
        self._next_place = 0

    def _turn(self) -> int:
        self._next_place += 1
        return self._next_place

    # --- in ---------------------------------------------------------------------------------------------------------

    def time_at(self, name: str, version: Version, now_ms: int) -> int:
        """Return what time a message gets when it comes to a queue; 0 when nobody will ask for it."""
        timed = kind_of(name).ttl_ms >= 0 or self._messages.life_ms(version) >= 0
        return now_ms if timed else 0

    def enter(self, name: str, version: Version, time_ms: int, *, persistent: bool, delivered: bool = False) -> None:
        """A message comes to a queue."""
        queue = self.queues[name]
        lane = max(0, queue.kind.levels - 1 - self._messages.priority(version))
        insort(queue.ready, Entry(lane, self._turn(), version, persistent, delivered, time_ms))

    def hold(self, name: str, lane: int, entry: Entry, until_ms: int) -> None:
        """A message is not to be delivered before a time."""
        held = entry._replace(lane=lane, place=self._turn(), time_ms=until_ms)
        self.queues[name].held[lane].append(held)

    def send(self, source: str, letter: Version, now_ms: int, *, persistent: bool, again: bool = False) -> bool:
        """A dead letter leaves `source`, or what was refused then is sent again; tell whether it counts as taken."""
        target = self.queues.get(kind_of(source).letters_to)
        if target is None:
            return False
        if letter.goes_round(target.name) and not again:
            return True  # and is nowhere
        if target.is_full():
            return False
        if target.kind.counts:
            letter = letter._replace(failures=0, returns=0)  # counts of another queue do not matter to this one
        self.enter(target.name, letter, self.time_at(target.name, letter, now_ms), persistent=persistent)
        return True

    # --- out --------------------------------------------------------------------------------------------------------

    def deadline_ms(self, name: str, entry: Entry) -> int:
        """Return when a ready message has to be gone."""
        lives = [life for life in (kind_of(name).ttl_ms, self._messages.life_ms(entry.message)) if life >= 0]
        return entry.time_ms + min(lives) if lives else NEVER

    def take(self, name: str, tag: int | None) -> Entry:
        """Give the oldest message of a queue to a client, for good without a `tag`."""
        queue = self.queues[name]
        entry = queue.ready.pop(0)
        if tag is not None:
            queue.unacked[tag] = entry
        return entry

    def owner(self, tag: int) -> PaperQueue | None:
        """Return whose message a delivery is; that of a deleted queue is nobody's."""
        for queue in self.queues.values():
            if tag in queue.unacked:
                return queue
        return None

    def settle(self, tag: int) -> None:
        """A delivery is acknowledged."""
        queue = self.owner(tag)
        if queue is not None:
            del queue.unacked[tag]

    def reject(self, tag: int) -> None:
        """A delivery is rejected for good."""
        queue = self.owner(tag)
        if queue is not None:
            self._gone(queue, queue.unacked.pop(tag), REJECTED)

    def _gone(self, queue: PaperQueue, entry: Entry, reason: str) -> None:
        if queue.kind.letters_to:
            queue.leaving = (entry, reason)

    def requeue(self, tag: int, now_ms: int, *, failed: bool, delay_ms: int) -> None:
        """A delivery goes back to its place, is held for another try, or has been out too often or too long."""
        queue = self.owner(tag)
        if queue is None:
            return
        kind = queue.kind
        entry = queue.unacked.pop(tag)._replace(delivered=True)
        if kind.counts:
            counted = entry.message._replace(
                failures=entry.message.failures + failed, returns=entry.message.returns + 1
            )
            if failed and 0 <= kind.delivery_limit < counted.failures:
                if kind.parks:
                    self.hold(queue.name, PARKED, entry, PARKED_UNTIL)
                else:
                    self._gone(queue, entry, DELIVERY_LIMIT)
                return
            entry = entry._replace(message=counted)
            if delay_ms < 0:
                delay_ms = kind.retry_ms
        if delay_ms > 0:
            self.hold(queue.name, DELAYED, entry, now_ms + delay_ms)
        elif self.deadline_ms(queue.name, entry) <= now_ms:
            self._gone(queue, entry, EXPIRED)
        else:
            insort(queue.ready, entry)

    def leave(self, name: str, version: Version, reason: str, now_ms: int) -> Entry:
        """A message is said to be gone from a queue, for this reason."""
        queue = self.queues[name]
        if queue.leaving is not None:
            entry, expected = queue.leaving
            queue.leaving = None
            if (entry.message, expected) != (version, reason):
                raise Violation(f"{version} left {name!r}, {reason}; it should be {entry.message}, {expected}")
            return entry
        if reason == DELIVERY_LIMIT:  # parked for that reason, and now somebody asks for it
            return self._take_held(queue, PARKED, version, PARKED_UNTIL)
        if reason == MAXLEN:
            if not queue.ready or queue.ready[0].message != version or len(queue.ready) <= queue.kind.max_length:
                raise Violation(f"{version} was dropped from the head of {name!r}, which has {queue.ready}")
            return queue.ready.pop(0)
        if reason != EXPIRED:
            raise Violation(f"{version} left {name!r}, {reason}, and nobody asked for that")
        found = [entry for entry in queue.ready if entry.message == version]
        if len(found) != 1 or self.deadline_ms(name, found[0]) > now_ms:
            raise Violation(f"{version} has expired in {name!r} at {now_ms}, which has {queue.ready}")
        queue.ready.remove(found[0])
        return found[0]

    def release(self, name: str, found: list[Version | None], count: int, now_ms: int, *, asked: bool) -> None:
        """Make `count` held messages ready, because it is time or a client asked for it. They are in memory.

        `found`: the messages that left the queue just now, and those of it in memory, in order.
        """
        queue = self.queues[name]
        known = {entry.message for entry in queue.ready}
        released = [version for version in found if version not in known]
        if len(released) != count:
            raise Violation(f"{count} messages came out of {name!r}, and are not {released}")
        for version in released:
            held = [entry for lane in (DELAYED, PARKED) for entry in queue.held[lane] if entry.message == version]
            if len(held) != 1:
                raise Violation(f"{version} came out of {name!r}, which holds {queue.held}")
            self._release(queue, held[0], now_ms, asked=asked)

    def _release(self, queue: PaperQueue, entry: Entry, now_ms: int, *, asked: bool) -> None:
        others = queue.held[entry.lane]
        if not asked:
            if entry.time_ms > now_ms:
                raise Violation(f"{entry} is released at {now_ms}")
            in_order = entry.lane not in queue.restored and queue.kind.levels == 1
            if in_order and (entry.time_ms, entry.place) != min((other.time_ms, other.place) for other in others):
                raise Violation(f"{entry} is released before others of {others}")
        others.remove(entry)
        time_ms = self.time_at(queue.name, entry.message, now_ms)
        self.enter(queue.name, entry.message, time_ms, persistent=entry.persistent, delivered=entry.delivered)

    def take_undelivered(self, name: str, version: Version, now_ms: int) -> Entry:
        """A letter that nobody took is tried again."""
        return self._take_held(self.queues[name], UNDELIVERED, version, now_ms)

    def keep_undelivered(self, name: str, entry: Entry, until_ms: int) -> None:
        """Keep a letter that was refused again: its place and its time on disk stay."""
        queue = self.queues[name]
        insort(queue.held[UNDELIVERED], entry)
        queue.retries[entry.place] = until_ms

    def _take_held(self, queue: PaperQueue, lane: int, version: Version, now_ms: int) -> Entry:
        held = queue.held[lane]
        found = [entry for entry in held if entry.message == version and queue.due_ms(entry) <= now_ms]
        if len(found) != 1:
            raise Violation(f"{version} leaves {queue.name!r} at {now_ms}, which holds {held}")
        held.remove(found[0])
        return found[0]

    # --- restarts ---------------------------------------------------------------------------------------------------

    def stored(self, index_ids: Mapping[tuple[str, int], int]) -> Stored:
        """Return what a restart should bring back if it came now and everything were on disk.

        `index_ids`: the numbers that lanes other than 0 have in the log, by name of the queue and lane.
        """
        found: Stored = dict(self.orphans)
        for queue in self.queues.values():
            if not queue.durable:
                continue
            entries = [*queue.ready, *(entry._replace(delivered=True) for entry in queue.unacked.values())]
            for held in queue.held.values():
                entries += held
            for entry in sorted(entry for entry in entries if entry.persistent or queue.kind.at_least_once):
                key = index_ids.get((queue.name, entry.lane), -1) if entry.lane else queue.queue_id
                found[key] = (*found.get(key, ()), entry)
        return found

    def restore(self, name: str, queue_id: int, entries: list[Entry], *, clean: bool) -> None:
        """A queue is back after a restart: after an unclean one anything may have been delivered before."""
        queue = self.queues[name] = PaperQueue(name, queue_id, True)
        for entry in sorted(entries):
            back = entry._replace(delivered=entry.delivered or not clean)
            if entry.lane in queue.held:
                queue.held[entry.lane].append(back)
                queue.restored.add(entry.lane)
            else:
                queue.ready.append(back)
            self._next_place = max(self._next_place, entry.place)
