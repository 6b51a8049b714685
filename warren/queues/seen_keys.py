"""The messages that a queue or an exchange has accepted: repetitions are dropped, and confirmed like the first.

    argument of queue.declare or exchange.declare
    x-message-deduplication   true
    x-deduplication-header    the header that has a message's key; default ``x-deduplication-header``
    x-cache-size              how many keys are remembered, and how many producers; default `DEDUP_KEYS`
    x-cache-ttl               ms for which a key is remembered; without it only the size counts

    header of a message
    the one for keys          a text, bytes (the same key as the text that they encode) or an integer
    x-producer and x-seq      a text and an integer: a message is a repetition if its number is not larger than the
                              highest that was accepted of this producer

1. Only accepted messages are remembered, in the batch of the log that has the message: after a crash both are there, or
   neither. A refused publish is not remembered; on an exchange that is one that any queue refused, or that was not
   routed.
2. A key is as durable as its message: it is in the log when a durable queue stores the message or, on a durable
   exchange, when any of the queues would store it. A message whose key a restart loses may come again.
3. A confirm waits until the key is on disk, that of a repetition as well: the first may still be on its way there.
4. A repetition does not prolong anything. When there are too many keys the oldest goes; among producers the one that
   has not published for the longest time. A producer costs the same however much it publishes.
5. Publishes by clients are checked, those of a transaction when it is committed. A delayed message is checked and
   remembered when it is published, so its window is not longer than that of others. A dead letter is neither checked
   nor remembered: it was accepted once, and may come back to where it was. A message that a delayed message exchange
   has held is new to its queues. On an exchange only publishes to it count, not messages that come over a binding or
   to an alternate.
6. After a restart a key is remembered for at most its time from then on, whatever the clock was before. Nothing may be
   published before `is_restoring` is False.
7. Neither a purge nor a delivery forgets a key.
8. A message on its way to very many queues is accepted when the last of them has it, or none refused it. Until then its
   key and its producer are claimed: a publish with one of them waits, and is checked when that is decided. A publish
   that has a claim does not wait for anything, so a deadlock is impossible.

Gaps in the numbers of a producer mean nothing, so they cannot be filled: a producer that gets a nack for 5 and an ack
for 6 cannot send 5 again under that number.

Keys are records of a lane in the log (`queues.lanes`), numbered as they were accepted. So the oldest is the first, and
its message is settled when it is forgotten. Producers are in another lane: each has one record, replaced in its place.
In memory a key costs about 300 bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64, mypyc_attr

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, TableWalker, Timestamp, decode_table, find_tag
from warren.amqp.inequivalence import check_argument
from warren.amqp.properties import FLAGS_OFFSET, HEADERS, headers_of
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.arguments import BY_KEY, fault_of
from warren.queues.record_lane import RecordLane
from warren.queues.rules import DEDUP_KEYS, QueueRules
from warren.queues.timers import NEVER, Timer, TimerQueue

PRODUCER: Final = "x-producer"
SEQUENCE: Final = "x-seq"
# Longer keys and names are remembered by their SHA-256.
KEY_MAX_BYTES: Final = 255
# How often expired keys are removed, and at most how many at once. They are not known from their expiry on.
EXPIRE_EVERY_MS: Final = 1000
EXPIRE_MAX: Final = 4096
# From this many keys on full pages of the index are written to the log, so that checkpoints do not repeat them.
PAGED_FROM: Final = 16384
PAGES_PER_BATCH: Final = 64

_ARGUMENTS: Final = ("message-deduplication", "deduplication-header", "cache-size", "cache-ttl")


class MessageKeys:
    """The keys of a message: `key` and `producer` as they are remembered, ``b""`` without."""

    def __init__(self) -> None:
        self.key: bytes = b""
        self.producer: bytes = b""
        self.sequence: i64 = 0


class KeyClaim:
    """Tells that a message with these keys is on its way to very many queues of an exchange, see (8)."""

    def __init__(self, seen: SeenKeys, keys: MessageKeys) -> None:
        self.seen = seen
        self.keys = keys
        seen.claim(keys)

    def end(self) -> None:
        """End the claim: the message is accepted and remembered, or it is not."""
        self.seen.let_go(self.keys)


class SeenKeys(Timer):
    """The memory of one queue or exchange; `lane` and `producer_lane` are its lanes in the log if it is `durable`."""

    def __init__(
        self,
        log: MessageLog,
        timers: TimerQueue,
        vhost: str,
        name: str,
        durable: bool,
        rules: QueueRules,
        lane: i64,
        producer_lane: i64,
    ) -> None:
        super().__init__()
        self.dropped: i64 = 0  # repetitions
        self._log = log
        self._timers = timers
        self._claimed_keys: set[bytes] = set()
        self._claimed_producers: set[bytes] = set()
        self._durable = durable
        self._header = rules.dedup_header
        self._header_entry = _entry_name(rules.dedup_header)
        self._producer_entry = _entry_name(PRODUCER)
        self._keys = KeyLane(log, vhost, name, lane, rules.dedup_size, rules.dedup_ttl_ms)
        self._producers = ProducerLane(log, vhost, name, producer_lane, rules.dedup_size)

    # --- publishes ------------------------------------------------------------------------------------------------

    def keys_of(self, message: Message) -> MessageKeys | None:
        """Return the keys of `message`; None when it does not have any."""
        pieces = message.pieces
        content = message.content if pieces is None else pieces[0]
        if i64(read_i16_be(content, 7 + FLAGS_OFFSET)) & HEADERS == 0:
            return None
        size: i64 = i64(read_i32_be(content, 3)) & 0xFFFFFFFF
        headers = headers_of(content[7 : 7 + size])
        if self._header_entry not in headers and self._producer_entry not in headers:
            return None
        keys = MessageKeys()
        producer: object = None
        sequence: object = None
        walker = TableWalker(headers, 4, len(headers))
        while walker.pos < walker.end:
            name = walker.key()
            if name == self._header:
                keys.key = key_bytes(walker.value(1))
            elif name == PRODUCER:
                producer = walker.value(1)
            elif name == SEQUENCE:
                sequence = walker.value(1)
            else:
                walker.skip_value(1)
        if isinstance(producer, (str, bytes)) and _is_integer(sequence):
            assert isinstance(sequence, int)
            keys.producer = key_bytes(producer)
            keys.sequence = sequence
        return keys if keys.key or keys.producer else None

    def knows(self, keys: MessageKeys) -> bool:
        """Tell whether a message with such keys was accepted before."""
        if keys.key and self._keys.knows(keys.key):
            return True
        return keys.producer != b"" and self._producers.knows(keys.producer, keys.sequence)

    def drops(self, keys: MessageKeys, message: Message) -> bool:
        """Tell whether `message` with these keys is a repetition, and if so delay its confirm until the first one's."""
        if not self.knows(keys):
            return False
        self.dropped += 1
        if self._keys.index is not None or self._producers.index is not None:
            message.awaits_batch = True
        return True

    def add(self, keys: MessageKeys, message: Message, stored: bool) -> None:
        """Remember `message`, which was accepted just now; `stored`: it goes into the log."""
        if self._keys.is_closed:
            return  # its exchange was deleted while the message was on its way to very many queues
        stored = stored and self._durable
        if stored:
            message.awaits_batch = True
        if keys.key:
            self._keys.add(keys.key, stored)
            if self.at_ms == NEVER:
                self._plan()
        if keys.producer:
            self._producers.add(keys.producer, keys.sequence, stored)

    # --- under way ----------------------------------------------------------------------------------------------------

    def has_claims(self) -> bool:
        """Tell whether anything is claimed."""
        return len(self._claimed_keys) > 0 or len(self._claimed_producers) > 0

    def is_claimed(self, keys: MessageKeys) -> bool:
        """Tell whether another message has claimed one of these keys."""
        return keys.key in self._claimed_keys or keys.producer in self._claimed_producers

    def claim(self, keys: MessageKeys) -> None:
        """Claim these keys, which must be free."""
        assert not self.is_claimed(keys)
        if keys.key:
            self._claimed_keys.add(keys.key)
        if keys.producer:
            self._claimed_producers.add(keys.producer)

    def let_go(self, keys: MessageKeys) -> None:
        """End the claim of these keys."""
        self._claimed_keys.discard(keys.key)
        self._claimed_producers.discard(keys.producer)

    # --- time, start and end --------------------------------------------------------------------------------------

    def due(self, now_ms: i64) -> None:
        self._timers.worked += self._keys.expire(now_ms)
        self._plan()

    def _plan(self) -> None:
        first_ms: i64 = self._keys.first_until_ms()
        now_ms: i64 = self._log.now_ms
        if self._keys.is_restoring:
            self._timers.at(now_ms + EXPIRE_EVERY_MS, self)
        elif first_ms < NEVER:
            self._timers.at(now_ms if first_ms <= now_ms else first_ms + EXPIRE_EVERY_MS, self)

    def lacks(self, lane: i64) -> bool:
        """Tell whether `lane` is one of these two, and still empty."""
        keys = self._keys
        producers = self._producers
        return (lane == keys.lane and keys.index is None) or (lane == producers.lane and producers.index is None)

    def restore(self, index: QueueIndex) -> None:
        """Take over one of the two lanes, which recovery found."""
        if index.lane == self._keys.lane:
            self._keys.restore(index)
            self._plan()
        else:
            self._producers.restore(index)

    def is_restoring(self) -> bool:
        """Tell whether a part must still be read from disk."""
        return self._keys.is_restoring or self._producers.is_restoring

    def close(self) -> None:
        """Forget everything: the queue or exchange is deleted."""
        self._keys.close()
        self._producers.close()
        self._timers.cancel(self)

    # --- for operators --------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Return how many keys are remembered, including some that have just expired."""
        return len(self._keys.keys)

    def producer_count(self) -> int:
        """Return for how many producers the highest number is remembered."""
        return len(self._producers.producers)

    def oldest(self, most: int) -> list[tuple[str, int]]:
        """Return the `most` oldest keys as texts, with the time until which each is remembered, oldest first."""
        listed: list[tuple[str, int]] = []
        for key, seen in self._keys.keys.items():
            if len(listed) == most:
                break
            listed.append((_text_of(key), int(seen.until_ms)))
        return listed

    def clear(self) -> int:
        """Forget all keys and producers, and return how many that were."""
        return self._keys.clear() + self._producers.clear()

    def check_invariants(self) -> None:
        """Assert that memory and index agree. For tests."""
        assert len(self._keys.keys) <= self._keys.size
        assert len(self._producers.producers) <= self._producers.size
        keys = [int(seen.number) for seen in self._keys.keys.values() if seen.number >= 0]
        assert keys == sorted(keys)
        self._keys.check_numbers(keys)
        self._producers.check_numbers([int(p.number) for p in self._producers.producers.values() if p.number >= 0])


# --- lanes --------------------------------------------------------------------------------------------------------


@mypyc_attr(acyclic=True)
class SeenKey:
    """Where a key is stored, -1 when it is not, and until when it is remembered."""

    __slots__ = ("number", "until_ms")

    def __init__(self, number: i64, until_ms: i64) -> None:
        self.number: i64 = number
        self.until_ms: i64 = until_ms


class KeyLane(RecordLane):
    """The last `size` keys, in the order in which they were accepted. A record is the key, its time the end."""

    def __init__(self, log: MessageLog, vhost: str, name: str, lane: i64, size: i64, ttl_ms: i64) -> None:
        super().__init__(log, vhost, name, lane)
        self.size: i64 = size
        self.keys: OrderedDict[bytes, SeenKey] = OrderedDict()
        self._ttl_ms: i64 = ttl_ms
        self._paged_to: i64 = 0

    def knows(self, key: bytes) -> bool:
        """Tell whether `key` is remembered."""
        seen = self.keys.get(key)
        return seen is not None and seen.until_ms > self.log.now_ms

    def add(self, key: bytes, stored: bool) -> None:
        """Remember `key`, which is not known, or no longer known."""
        self.forget(key)
        until_ms: i64 = NEVER if self._ttl_ms < 0 else self.log.now_ms + self._ttl_ms
        number: i64 = -1
        if stored:
            number = self.next_number
            self.next_number = number + 1
            self.put(number, key, 0 if until_ms == NEVER else until_ms)
        self.keys[key] = SeenKey(number, until_ms)
        while len(self.keys) > self.size:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, seen = self.keys.popitem(last=False)
        self.drop(seen.number)

    def forget(self, key: bytes) -> bool:
        """Forget `key`; False when it was not there."""
        seen = self.keys.pop(key, None)
        if seen is None:
            return False
        self.drop(seen.number)
        return True

    def clear(self) -> int:
        """Forget everything, and return how many keys that were."""
        count = len(self.keys)
        self.log.reclamation.add_named(self.keys, 0)
        self.keys = OrderedDict()
        self.drop_all()
        return count

    def close(self) -> None:
        super().close()
        self.log.reclamation.add_named(self.keys, 0)
        self.keys = OrderedDict()

    def first_until_ms(self) -> i64:
        """Return until when the oldest key is remembered; `NEVER` without keys."""
        for seen in self.keys.values():
            return seen.until_ms
        return NEVER

    def expire(self, now_ms: i64) -> i64:
        """Forget expired keys, at most `EXPIRE_MAX`; return how many those were."""
        left: i64 = EXPIRE_MAX
        while left > 0 and self.first_until_ms() <= now_ms:
            self._drop_oldest()
            left -= 1
        return EXPIRE_MAX - left

    def found(self, number: i64, body: bytes, time_ms: i64) -> None:
        until_ms: i64 = NEVER if time_ms == 0 else time_ms
        if self._ttl_ms >= 0 and until_ms > self.log.now_ms + self._ttl_ms:
            until_ms = self.log.now_ms + self._ttl_ms  # the clock of an earlier process was ahead
        seen = self.keys.get(body)
        if until_ms <= self.log.now_ms or (seen is not None and seen.number > number):
            self.drop(number)
            return
        self.forget(body)
        self.keys[body] = SeenKey(number, until_ms)

    def all_found(self) -> None:
        index = self.index
        assert index is not None
        self._paged_to = index.first_page
        while len(self.keys) > self.size:
            self._drop_oldest()

    def batch_closed(self) -> None:
        super().batch_closed()
        index = self.index
        if index is None or self.is_restoring or index.live_count < PAGED_FROM:
            return
        page_number: i64 = self._paged_to if self._paged_to > index.first_page else index.first_page
        end: i64 = self.next_number // index.page_entries
        if end > page_number + PAGES_PER_BATCH:
            end = page_number + PAGES_PER_BATCH
        while page_number < end:
            if index.page(page_number) is not None:
                self.log.batch.write_page(index, page_number)
            page_number += 1
        self._paged_to = page_number


class Producer:
    """One producer: the highest number accepted, and where that is stored, -1 when it is not."""

    def __init__(self, number: i64, sequence: i64) -> None:
        self.number: i64 = number
        self.sequence: i64 = sequence


class ProducerLane(RecordLane):
    """The last `size` producers that published. A record is the highest number, a serial one, and the name.

    The serial numbers give the order in which producers were stored. The numbers of the records do not: each producer
    keeps its own, and another one gets it when the producer is forgotten.
    """

    def __init__(self, log: MessageLog, vhost: str, name: str, lane: i64, size: i64) -> None:
        super().__init__(log, vhost, name, lane)
        self.size: i64 = size
        self.producers: OrderedDict[bytes, Producer] = OrderedDict()
        self._free: list[int] = []  # numbers below the next one
        self._serial: i64 = 0
        self._found: list[tuple[int, int, int, bytes]] = []  # serial, number, sequence, name

    def knows(self, name: bytes, sequence: i64) -> bool:
        """Tell whether this number of the producer, or a larger one, was accepted. It has published, in any case."""
        producer = self.producers.get(name)
        if producer is None or sequence > producer.sequence:
            return False
        self.producers.move_to_end(name)
        return True

    def add(self, name: bytes, sequence: i64, stored: bool) -> None:
        """Remember that this number, the highest so far, was accepted."""
        producer = self.producers.get(name)
        if producer is None:
            producer = Producer(-1, sequence)
            self.producers[name] = producer
            while len(self.producers) > self.size:
                _, oldest = self.producers.popitem(last=False)
                self._give_up(oldest)
        else:
            self.producers.move_to_end(name)
            producer.sequence = sequence
        if stored:
            number: i64 = producer.number
            if number >= 0:
                pass  # its record is replaced
            elif self._free:
                number = self._free.pop()
            else:
                number = self.next_number
                self.next_number = number + 1
            self._serial += 1
            words = int(sequence).to_bytes(8, "big", signed=True) + int(self._serial).to_bytes(8, "big")
            self.put(number, words + name, 0)
            producer.number = number  # not before: that may fail

    def _give_up(self, producer: Producer) -> None:
        if producer.number >= 0:
            self.drop(producer.number)
            self._free.append(int(producer.number))

    def clear(self) -> int:
        """Forget all producers, and return how many they were."""
        count = len(self.producers)
        self.log.reclamation.add_named(self.producers, 0)
        self.producers = OrderedDict()
        self._free = []  # their pages may be gone
        self._found = []
        self.drop_all()
        return count

    def close(self) -> None:
        super().close()
        self.log.reclamation.add_named(self.producers, 0)
        self.producers = OrderedDict()
        self._free = []
        self._found = []

    def found(self, number: i64, body: bytes, time_ms: i64) -> None:
        sequence = int.from_bytes(body[:8], "big", signed=True)
        self._found.append((int.from_bytes(body[8:16], "big"), int(number), sequence, body[16:]))

    def all_found(self) -> None:
        found = self._found
        self._found = []
        found.sort(reverse=True)
        taken: set[int] = {int(producer.number) for producer in self.producers.values()}
        for serial, number, sequence, name in found:
            if serial > self._serial:
                self._serial = serial
            # Where a part of the log is damaged, a replaced record may be there besides the one that replaced it.
            if name in self.producers or len(self.producers) >= self.size:
                self.drop(number)
                continue
            self.producers[name] = Producer(number, sequence)
            self.producers.move_to_end(name, last=False)
            taken.add(number)
        free: i64 = self._restore_end - 1
        while free >= 0:
            if int(free) not in taken:
                self._free.append(int(free))
            free -= 1


# --- keys and arguments -------------------------------------------------------------------------------------------


def key_bytes(value: object) -> bytes:
    """Return the bytes by which `value` is remembered; ``b""`` when it cannot be a key."""
    if isinstance(value, str):
        key = b"t" + value.encode()
    elif isinstance(value, bytes):
        key = b"t" + value
    elif _is_integer(value):
        key = b"i" + str(value).encode()
    else:
        return b""
    return key if len(key) <= KEY_MAX_BYTES else b"#" + sha256(key).digest()


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, (bool, Timestamp))


def _text_of(key: bytes) -> str:
    return "sha256:" + key[1:].hex() if key[:1] == b"#" else key[1:].decode("utf-8", "replace")


def _entry_name(name: str) -> bytes:
    """Return `name` as it is encoded in a table."""
    raw = name.encode()
    return bytes([len(raw)]) + raw


def exchange_rules(declaration: ExchangeDeclaration, vhost: str, *, stored: bool = False) -> QueueRules | None:
    """Return the deduplication rules of an exchange, by its arguments; None when it does not deduplicate.

    `stored`: they come from the catalogue; an argument that this version refuses has no effect.

    Raises:
        ChannelException: 406, an argument has an impossible type or value, in the words for queues.
    """
    encoded: bytes = declaration.arguments
    if len(encoded) == 4:
        return None
    table = decode_table(encoded)
    rules = QueueRules()
    rules.dedup_size = DEDUP_KEYS
    for key in _ARGUMENTS:
        row = BY_KEY[key]
        if row.name not in table:
            continue
        value = table[row.name]
        fault = fault_of(row, value, TYPE_NAMES[find_tag(encoded, row.name)])
        if fault:
            if stored:
                continue
            text = f"invalid arg '{row.name}' for exchange '{declaration.name}' in vhost '{vhost}': {fault}"
            raise ChannelException(PRECONDITION_FAILED, text)
        if isinstance(value, bool):
            rules.dedup = value
        elif isinstance(value, str):
            rules.dedup_header = value or rules.dedup_header
        elif isinstance(value, int):
            if key == "cache-size":
                rules.dedup_size = value
            else:
                rules.dedup_ttl_ms = value
    return rules if rules.dedup else None


def check_equivalent(declaration: ExchangeDeclaration, vhost: str, current: bytes) -> None:
    """Check the redeclaration of an exchange whose arguments are `current`.

    Raises:
        ChannelException: 406, one of ours differs.
    """
    if declaration.arguments != current:
        for key in _ARGUMENTS:
            check_argument("exchange", declaration.name, vhost, BY_KEY[key].name, declaration.arguments, current)
