"""The form of a dead-lettered message, and the other changes that queues make to a content header.

A message that dies in a queue is published to the dead letter exchange as a new one: same body, same properties, but
without ``expiration``, and with its history in the headers table.

    x-death               array of tables, newest death first, one for each (queue, reason)
        original-expiration   longstr    only if it had an expiration when it first died so
        count                 long       how often
        reason                longstr    rejected, expired, maxlen, delivery_limit
        queue                 longstr
        time                  timestamp  seconds, of the first of these deaths
        exchange              longstr    where it had been published to before the first
        routing-keys          array      of longstr: with which keys, those of CC included
        republished           bool       only after `mark_republished`
    x-first-death-*       queue, reason, exchange; written once
    x-last-death-*        the same of the latest death

1. Work is done on the encoded bytes: an entry, a property or a body frame that is not named above keeps its bytes,
   of whatever type it is. New entries are written after the others.
2. Messages are never changed: the result is a new one, or the same one if nothing had to change. Large bodies are
   shared (``pieces``), or copied once out of a content in one piece.
3. `scan_properties` accepts every header made here. When new entries would take the table beyond ``ENTRIES_MAX``, the
   keys of CC are not repeated in x-death. If that is not enough, the publisher's headers are dropped, CC last: a letter
   that is sent again goes with its keys. Then the older deaths are dropped, too.
4. A message that goes round without a client's doing is stopped by `is_cycle` before it is in a queue again: a header
   from a publisher cannot hide the deaths that follow.

Whose x-death? The history is kept only in this header, so one that a client published is continued. Counts survive when
a consumer publishes again what it got; the retry patterns of RabbitMQ's users rely on that (up to 3.13). 4.x starts
from zero, and a consumer that gives up at a count never does. But that history must not make a cycle: a message
replayed from a dead letter queue could be dropped on its next round, quietly. Hence the deaths that a client publishes
are marked in the next letter (`mark_republished`): they count on, and `is_cycle` does not look at them. Without the
mark both rules are those of RabbitMQ 3. Until its next death the message has the header as published, and only
`Message.republished` and a flag of its record say whose it is. Records of earlier versions do not have that flag: their
deaths were marked when they were published. An x-death that is not an array is replaced: some clients turn headers into
text.

Other content that a client may have put there is treated as RabbitMQ 3 does, at the next death. Entries for the same
queue and reason become one, the first: old brokers wrote one for each death, without a count. Queue and reason may be
longstr or byte array. A count that is not a number begins again. An entry that is not a table, or does not name queue
and reason, stays as it is.

Source: RabbitMQ's page "Dead Letter Exchanges"; the fields and their order are those of 4.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from warren.amqp.codec import wire_short
from warren.amqp.field_table import ENTRIES_MAX, TableWalker, Timestamp, encode_table
from warren.amqp.methods import FRAME_END, FRAME_HEADER
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.amqp.properties import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    EXPIRATION,
    FLAGS_OFFSET,
    HEADERS,
    MIN_HEADER_BYTES,
    find_property,
    is_persistent,
)
from warren.msgstore.log.message import Envelope, Message, write_frame_head
from warren.queues.content_frames import LARGE_MIN_BYTES

REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"

COUNT_MAX: Final = 0x7FFFFFFFFFFFFFFF
# The entries of a first death: x-death, one table with seven fields and a routing key; three each of x-first-death and
# x-last-death.
DEATH_ENTRIES_MAX: Final = 16

# Type tags.
_ARRAY: Final = 65
_TABLE: Final = 70
_LONGSTR: Final = 83
_BYTE_ARRAY: Final = 120

# The kinds of entries of a headers table.
_OTHER: Final = 0
_DEATHS: Final = 1
_FIRST: Final = 2
_LAST: Final = 3
_COPIES: Final = 4
_KINDS: Final[dict[bytes, int]] = {
    b"x-death": _DEATHS,
    b"x-first-death-reason": _FIRST,
    b"x-first-death-queue": _FIRST,
    b"x-first-death-exchange": _FIRST,
    b"x-last-death-reason": _LAST,
    b"x-last-death-queue": _LAST,
    b"x-last-death-exchange": _LAST,
}
_MARK: Final = b"\x0brepublishedt\x01"
_RAW_REJECTED: Final = b"rejected"
_INTEGER_TAGS: Final = b"bBsuIiL"
_DEATHS_KEY: Final = b"\x07x-death"


class DeadLetter:
    """A message on its way to the dead letter exchange, and the routing keys it goes with.

    ``automatic``: the queues it died in, latest first, since a client last rejected or published it.
    """

    def __init__(self, message: Message, keys: list[str], automatic: list[bytes]) -> None:
        self.message = message
        self.keys = keys
        self.automatic = automatic


def dead_letter(
    message: Message, queue: str, reason: str, time_s: int, exchange: str, routing_key: str | None
) -> DeadLetter:
    """Make from `message`, which died in `queue`, the one to publish to the dead letter exchange `exchange`.

    `time_s`: seconds since the epoch. `routing_key`: the dead letter routing key, None to go with the message's own
    keys: its routing key and those of CC (BCC was taken out when it was published). Names have at most 255 bytes.
    """
    if message.republished:
        message = mark_republished(message)
    header = _Header(message)
    split = _SplitHeaders(header, routing_key is not None)
    copies = split.carbon_copies()
    old = message.envelope
    key = old.routing_key if routing_key is None else routing_key
    keys = [key]
    if routing_key is None and copies:
        keys += copies

    raw_queue = queue.encode()
    raw_reason = reason.encode()
    deaths = _Deaths(header.payload, split.deaths, raw_queue, raw_reason)
    again = deaths.again
    count: i64 = 1 if again is None else again.next_count(deaths.uncounted)
    older = deaths.others.getvalue()
    out = split.kept
    firsts = split.firsts
    room: i64 = ENTRIES_MAX - DEATH_ENTRIES_MAX
    if split.entries + len(copies) > room:
        copies = []
    if split.entries > room:
        out = BytesWriter()
        firsts = b""
        history: i64 = split.entries - split.kept_entries
        if history + split.copies_entries <= room:
            out.write(header.payload[split.copies_start : split.copies_end])
        elif history > room:
            older = b""
            again = None

    raw_exchange = old.names[: len(old.names) - old.routing_key_bytes]
    if split.deaths < 0:
        _write_text(out, b"\x14x-first-death-reasonS", raw_reason)
        _write_text(out, b"\x13x-first-death-queueS", raw_queue)
        _write_text(out, b"\x16x-first-death-exchangeS", raw_exchange)
    else:
        out.write(firsts)
    _write_text(out, b"\x13x-last-death-reasonS", raw_reason)
    _write_text(out, b"\x12x-last-death-queueS", raw_queue)
    _write_text(out, b"\x15x-last-death-exchangeS", raw_exchange)
    if again is None:
        latest = _new_death(header, old, raw_queue, raw_reason, count, time_s, copies)
    else:
        latest = again.counted(count)
    out.write(b"\x07x-deathA")
    write_i32_be(out, i32(5 + len(latest) + len(older)))
    out.append(_TABLE)
    write_i32_be(out, i32(len(latest)))
    out.write(latest)
    out.write(older)
    made = reheaded(message, Envelope(exchange, key), header.frame(message, out.getvalue(), True), header.frame_bytes)
    made.persistent = is_persistent(header.payload)  # a quorum queue has stored it in any case
    return DeadLetter(made, keys, deaths.automatic)


def sent_again(message: Message) -> DeadLetter:
    """Return the letter for which `dead_letter` has made `message`, to be sent again."""
    header = _Header(message)
    split = _SplitHeaders(header, False)
    message.persistent = is_persistent(header.payload)
    keys = [message.envelope.routing_key, *split.carbon_copies()]
    if message.envelope.blind_copies is not None:
        keys += message.envelope.blind_copies
    return DeadLetter(message, keys, _Deaths(header.payload, split.deaths, b"", b"").automatic)


def is_cycle(letter: DeadLetter, target_queue: str) -> bool:
    """Tell whether `letter` must not go to `target_queue`: it died there, and no client has rejected it since.

    False for a letter that has just been rejected.
    """
    return target_queue.encode() in letter.automatic


def is_letter_of(message: Message, queue: str) -> bool:
    """Tell whether `message` is a dead letter of `queue` that no client has rejected or published since."""
    header = _Header(message)
    if message.republished or header.payload.find(_DEATHS_KEY) < 0:
        return False
    deaths = _Deaths(header.payload, _SplitHeaders(header, False).deaths, b"", b"")
    return queue.encode() in deaths.automatic


def mark_republished(message: Message) -> Message:
    """Return the `republished` message with the deaths in its x-death marked as the client's; it has not died yet."""
    header = _Header(message)
    split = _SplitHeaders(header, False)
    payload = header.payload
    at: i64 = split.deaths
    if at < 0 or payload[at] != _ARRAY:
        return message
    marked = BytesWriter()
    added: i64 = 0
    walker = TableWalker(payload, at + 5, at + 5 + _length(payload, at + 1))
    while walker.pos < walker.end:
        start: i64 = walker.pos
        walker.skip_value(2)
        if payload[start] != _TABLE or _Death(payload, start + 5, walker.pos).mark >= 0:
            marked.write(payload[start : walker.pos])
            continue
        added += 1
        marked.append(_TABLE)
        write_i32_be(marked, i32(walker.pos - start - 5 + len(_MARK)))
        marked.write(payload[start + 5 : walker.pos])
        marked.write(_MARK)
    if added == 0 or split.entries + added > ENTRIES_MAX:
        return message
    array = marked.getvalue()
    return _with_entries(message, [b"x-death"], b"\x07x-deathA" + len(array).to_bytes(4, "big") + array, 0)


# --- single headers -----------------------------------------------------------------------------------------------


def with_header(message: Message, name: str, value: object) -> Message:
    """Return `message` with the header `name` set to a scalar.

    An int becomes a long (``l``), everything else is encoded as `encode_table` does.

    Raises:
        ValueError: the name is longer than 255 bytes, or an int than 64 bits.
    """
    return _with_entries(message, [name.encode()], _entry(name, value), 1)


def with_headers(message: Message, headers: Mapping[str, object]) -> Message:
    """Return `message` with all of `headers` set, see `with_header`; the same one when `headers` is empty."""
    entries = [_entry(name, value) for name, value in headers.items()]
    return _with_entries(message, [name.encode() for name in headers], b"".join(entries), len(entries))


def without_header(message: Message, name: str) -> Message:
    """Return `message` without its headers `name`; the same one if it does not have it."""
    return _with_entries(message, [name.encode()], b"", 0)


def with_properties(message: Message, properties: bytes) -> Message:
    """Return `message` with the encoded `properties`, flag word first, instead of its own."""
    header = _Header(message)
    out = BytesWriter()
    write_frame_head(out, FRAME_HEADER, message.channel, FLAGS_OFFSET + len(properties))
    out.write(header.payload[:FLAGS_OFFSET])
    out.write(properties)
    out.append(FRAME_END)
    return _same_but(message, out.getvalue(), header.frame_bytes)


def _entry(name: str, value: object) -> bytes:
    # In this order: once narrowed to an int, compiled code has lost what kind of int it was.
    if isinstance(value, bool | Timestamp) or not isinstance(value, int):
        return encode_table({name: value})[4:]
    raw = name.encode()
    if len(raw) > 255 or not -COUNT_MAX - 1 <= value <= COUNT_MAX:
        raise ValueError("a name has at most 255 bytes and a long 64 bits")
    return bytes([len(raw)]) + raw + b"l" + value.to_bytes(8, "big", signed=True)


def _with_entries(message: Message, names: list[bytes], entries: bytes, count: i64) -> Message:
    """Return `message` with `entries`, `count` of them, instead of its headers `names`; the same if nothing changes."""
    header = _Header(message)
    payload = header.payload
    out = BytesWriter()
    found = False
    kept: i64 = 0
    if header.flags & HEADERS:
        walker = TableWalker(payload, header.table + 4, header.table_end)
        run: i64 = walker.pos
        while walker.pos < walker.end:
            start: i64 = walker.pos
            before: i64 = walker.entries
            walker.count_entry()
            walker.skip_key()
            key = payload[start + 1 : walker.pos]
            walker.skip_value(1)
            if key in names:
                found = True
                out.write(payload[run:start])
                run = walker.pos
            else:
                kept += walker.entries - before
        out.write(payload[run : walker.pos])
    if not found and not entries:
        return message
    if kept + count > ENTRIES_MAX:
        out = BytesWriter()
    out.write(entries)
    return _same_but(message, header.frame(message, out.getvalue(), False), header.frame_bytes)


# --- content headers ----------------------------------------------------------------------------------------------


class _Header:
    """The content header of a message: its payload, and the place of the headers table in it, even if missing."""

    def __init__(self, message: Message) -> None:
        pieces = message.pieces
        data = message.content if pieces is None else pieces[0]
        self.frame_bytes: i64 = 8 + _length(data, 3)
        payload = data[7 : self.frame_bytes - 1]
        self.payload = payload
        flags: i64 = i64(read_i16_be(payload, FLAGS_OFFSET)) & 0xFFFF
        self.flags: i64 = flags
        pos: i64 = MIN_HEADER_BYTES
        if flags & CONTENT_TYPE:
            pos += 1 + i64(payload[pos])
        if flags & CONTENT_ENCODING:
            pos += 1 + i64(payload[pos])
        self.table: i64 = pos
        if flags & HEADERS:
            pos += 4 + _length(payload, pos)
        self.table_end: i64 = pos

    def frame(self, message: Message, table: bytes | None, drops_expiration: bool) -> bytes:
        """Return the content header frame of `message` with these entries in the headers table."""
        payload = self.payload
        flags: i64 = self.flags
        size: i64 = len(payload) - (self.table_end - self.table)
        if table is not None:
            flags |= HEADERS
            size += 4 + len(table)
        cut: i64 = len(payload)
        resume: i64 = cut
        if drops_expiration and flags & EXPIRATION:
            flags ^= EXPIRATION
            cut = find_property(payload, EXPIRATION)
            resume = cut + 1 + i64(payload[cut])
            size -= resume - cut
        out = BytesWriter()
        write_frame_head(out, FRAME_HEADER, message.channel, size)
        out.write(payload[:FLAGS_OFFSET])
        write_i16_be(out, wire_short(flags))
        out.write(payload[MIN_HEADER_BYTES : self.table])
        if table is not None:
            write_i32_be(out, i32(len(table)))
            out.write(table)
        out.write(payload[self.table_end : cut])
        out.write(payload[resume:])
        out.append(FRAME_END)
        return out.getvalue()


def _length(data: bytes, at: i64) -> i64:
    return i64(read_i32_be(data, at)) & 0xFFFFFFFF


def _same_but(message: Message, frame: bytes, old_frame_bytes: i64) -> Message:
    """Return `message`, for the same queue, with the content header `frame`."""
    made = reheaded(message, message.envelope, frame, old_frame_bytes)
    made.time_ms = message.time_ms
    made.expiration_ms = message.expiration_ms
    made.due_ms = message.due_ms
    made.attempts = message.attempts
    made.republished = message.republished
    return made


def reheaded(message: Message, envelope: Envelope, frame: bytes, old_frame_bytes: i64) -> Message:
    """Return a new message with the body of `message` after the content header `frame`.

    `old_frame_bytes`: the size of the content header frame that it replaces.
    """
    largest: i64 = message.frame_max_bytes
    if len(frame) > largest:
        largest = len(frame)
    elif old_frame_bytes == largest and len(frame) < largest and message.body_bytes < LARGE_MIN_BYTES:
        # The header was the largest frame: look for the largest one now. A large content is cut again as it is.
        largest = _largest_frame(message.joined(), old_frame_bytes, len(frame))
    content = b""
    pieces = message.pieces
    if pieces is not None:
        pieces = [frame, *pieces[1:]]
    else:
        body = message.content[old_frame_bytes:]
        if len(body) < CHUNK_MIN_BYTES:
            content = frame + body
        else:
            pieces = [frame, body]
    return Message(envelope, content, message.channel, message.body_bytes, largest, message.persistent, pieces)


def _largest_frame(content: bytes, start: i64, at_least: i64) -> i64:
    largest: i64 = at_least
    pos: i64 = start
    while pos < len(content):
        size: i64 = 8 + _length(content, pos + 3)
        if size > largest:
            largest = size
        pos += size
    return largest


# --- histories ----------------------------------------------------------------------------------------------------


class _SplitHeaders:
    """A headers table split up for one more death. Positions are those of values, -1: missing."""

    def __init__(self, header: _Header, drops_copies: bool) -> None:
        payload = header.payload
        self.payload = payload
        self.kept = BytesWriter()  # entries that stay
        self.firsts = b""  # x-first-death-*
        self.deaths: i64 = -1  # x-death
        self.copies: i64 = -1  # CC
        self.copies_start: i64 = 0  # of its entry, if that stays
        self.copies_end: i64 = 0
        self.copies_entries: i64 = 0
        self.entries: i64 = 0  # all entries but those that are dropped
        self.kept_entries: i64 = 0  # those of `kept` and `firsts`
        if header.flags & HEADERS == 0:
            return
        walker = TableWalker(payload, header.table + 4, header.table_end)
        run: i64 = walker.pos
        dropped: i64 = 0
        while walker.pos < walker.end:
            start: i64 = walker.pos
            before: i64 = walker.entries
            walker.count_entry()
            walker.skip_key()
            value: i64 = walker.pos
            walker.skip_value(1)
            kind: i64 = _kind_of(payload, start)
            entries: i64 = walker.entries - before
            if kind == _COPIES:
                self.copies = value
                if drops_copies:
                    dropped += entries
                else:
                    self.copies_start = start
                    self.copies_end = walker.pos
                    self.copies_entries = entries
            if kind == _OTHER or (kind == _COPIES and not drops_copies):
                self.kept_entries += entries
                continue
            self.kept.write(payload[run:start])
            run = walker.pos
            if kind == _DEATHS:
                self.deaths = value
            elif kind == _FIRST:
                self.kept_entries += entries
                self.firsts += payload[start : walker.pos]
        self.kept.write(payload[run : walker.pos])
        self.entries = walker.entries - dropped

    def carbon_copies(self) -> list[str]:
        """Return the routing keys in CC: its texts, as for a publish."""
        copies: list[str] = []
        payload = self.payload
        if self.copies < 0 or payload[self.copies] != _ARRAY:
            return copies
        start: i64 = self.copies + 5
        walker = TableWalker(payload, start, start + _length(payload, start - 4))
        while walker.pos < walker.end:
            value = walker.value(2)
            if isinstance(value, str):
                copies.append(value)
        return copies


def _kind_of(payload: bytes, at: i64) -> i64:
    """Return the kind of the entry that begins at `at`."""
    length: i64 = payload[at]
    if length == 2 and payload[at + 1] == 67 and payload[at + 2] == 67:
        return _COPIES
    if length < 7 or payload[at + 1] != 120:  # x
        return _OTHER
    return _KINDS.get(payload[at + 1 : at + 1 + length], _OTHER)


class _Deaths:
    """The array of x-death at `at`, if it is one, without the death of (`queue`, `reason`), which is ``again``.

    ``uncounted``: the count of ``again`` when it does not have one.
    """

    def __init__(self, data: bytes, at: i64, queue: bytes, reason: bytes) -> None:
        self.again: _Death | None = None
        self.uncounted: i64 = 0
        self.others = BytesWriter()
        self.automatic: list[bytes] = []
        automatic = reason != _RAW_REJECTED
        if automatic:
            self.automatic.append(queue)
        if at < 0 or data[at] != _ARRAY:
            return
        walker = TableWalker(data, at + 5, at + 5 + _length(data, at + 1))
        found: list[_Death] = []
        times: dict[tuple[bytes, bytes], int] = {}
        elements: i64 = 0
        while walker.pos < walker.end:
            start: i64 = walker.pos
            walker.skip_value(2)
            elements += 1
            if data[start] != _TABLE:
                continue
            death = _Death(data, start + 5, walker.pos)
            found.append(death)
            pair = (death.queue, death.reason)
            times[pair] = times.get(pair, 0) + 1
            if death.queue == queue and death.reason == reason:
                if self.again is None:
                    self.again = death
            elif death.reason == _RAW_REJECTED or death.mark >= 0:
                automatic = False
            elif automatic:
                self.automatic.append(death.queue)
        # As in RabbitMQ: a single entry of an old broker counts as nothing.
        self.uncounted = 0 if elements == 1 else times.get((queue, reason), 0)
        self._group(data, at + 5, walker.pos, found, times)

    def _group(
        self, data: bytes, start: i64, end: i64, found: list[_Death], times: dict[tuple[bytes, bytes], int]
    ) -> None:
        """Write the entries at `start`, without ``again``; of several deaths of a kind (see `times`) only the first."""
        others = self.others
        again = self.again
        run: i64 = start
        for death in found:
            pair = (death.queue, death.reason)
            number = times[pair]
            is_again = again is not None and death.queue == again.queue and death.reason == again.reason
            if not is_again and (number == 1 or not death.queue or not death.reason):
                continue
            others.write(data[run : death.start - 5])
            run = death.end
            if is_again or number < 0:
                continue
            times[pair] = -1  # later ones are dropped
            if death.count >= 0:
                others.write(data[death.start - 5 : death.end])
            else:
                counted = death.with_count(number)
                others.append(_TABLE)
                write_i32_be(others, i32(len(counted)))
                others.write(counted)
        others.write(data[run:end])


class _Death:
    """One table of x-death: the entries ``data[start:end]``. ``count`` and ``mark``: places of entries, -1: missing."""

    def __init__(self, data: bytes, start: i64, end: i64) -> None:
        self.data = data
        self.start: i64 = start
        self.end: i64 = end
        self.queue = b""
        self.reason = b""
        self.count: i64 = -1
        self.count_end: i64 = -1
        self.mark: i64 = -1
        self.mark_end: i64 = -1
        walker = TableWalker(data, start, end)
        while walker.pos < end:
            entry: i64 = walker.pos
            walker.skip_key()
            value: i64 = walker.pos
            walker.skip_value(3)
            length: i64 = data[entry]
            if length != 5 and length != 6 and length != 11:
                continue
            key = data[entry + 1 : value]
            if key == b"count":
                self.count = entry
                self.count_end = walker.pos
            elif key == b"republished":
                self.mark = entry
                self.mark_end = walker.pos
            elif data[value] == _LONGSTR or data[value] == _BYTE_ARRAY:
                if key == b"queue":
                    self.queue = data[value + 5 : walker.pos]
                elif key == b"reason":
                    self.reason = data[value + 5 : walker.pos]

    def next_count(self, uncounted: i64) -> i64:
        """Return the count after one more death: `uncounted` if it is missing, nothing if it makes no sense."""
        if self.count < 0:
            return uncounted + 1
        value: i64 = self.count + 6
        number: i64 = 0
        tag: i64 = self.data[value]
        if tag == 108:  # l
            number = read_i64_be(self.data, value + 1)
        elif tag in _INTEGER_TAGS:
            read = TableWalker(self.data, value, self.count_end).value(3)
            assert isinstance(read, int)
            number = read
        if number < 0:
            return 1
        return number if number == COUNT_MAX else number + 1

    def with_count(self, count: i64) -> bytes:
        """Return the table's content, which does not have a count, with one in front."""
        out = BytesWriter()
        out.write(b"\x05countl")
        write_i64_be(out, count)
        out.write(self.data[self.start : self.end])
        return out.getvalue()

    def counted(self, count: i64) -> bytes:
        """Return the table's content with another `count` and without a mark."""
        out = BytesWriter()
        data = self.data
        count_start: i64 = self.count
        count_end: i64 = self.count_end
        if count_start < 0:
            count_start = self.start
            count_end = self.start
        rest: i64 = self.start
        if 0 <= self.mark < count_start:
            out.write(data[rest : self.mark])
            rest = self.mark_end
        out.write(data[rest:count_start])
        out.write(b"\x05countl")
        write_i64_be(out, count)
        rest = count_end
        if self.mark >= count_end:
            out.write(data[rest : self.mark])
            rest = self.mark_end
        out.write(data[rest : self.end])
        return out.getvalue()


def _new_death(
    header: _Header, old: Envelope, queue: bytes, reason: bytes, count: i64, time_s: int, copies: list[str]
) -> bytes:
    """Return the content of the table for the first death of its kind."""
    out = BytesWriter()
    payload = header.payload
    if header.flags & EXPIRATION:
        at: i64 = find_property(payload, EXPIRATION)
        _write_text(out, b"\x13original-expirationS", payload[at + 1 : at + 1 + i64(payload[at])])
    out.write(b"\x05countl")
    write_i64_be(out, count)
    _write_text(out, b"\x06reasonS", reason)
    _write_text(out, b"\x05queueS", queue)
    out.write(b"\x04timeT")
    write_i64_be(out, i64(time_s))
    exchange_bytes: i64 = len(old.names) - old.routing_key_bytes
    _write_text(out, b"\x08exchangeS", old.names[:exchange_bytes])
    keys = BytesWriter()
    _write_text(keys, b"S", old.names[exchange_bytes:])
    for key in copies:
        _write_text(keys, b"S", key.encode())
    _write_text(out, b"\x0crouting-keysA", keys.getvalue())
    return out.getvalue()


def _write_text(out: BytesWriter, head: bytes, text: bytes) -> None:
    """Write `head`, which ends in a type tag, and `text` with its length."""
    out.write(head)
    write_i32_be(out, i32(len(text)))
    out.write(text)
