"""A published message and the route it took. One object however many queues hold the message.

Content travels as it came: ``content`` is the content header frame and the body frames, byte for byte, with the
publisher's channel number in them. A delivery to the same channel number is a plain copy; to another one, two bytes
per frame are patched; only a consumer with a smaller frame_max needs the frames cut again.

A large content that did not come in one read is kept as the pieces it came in and is never joined for a consumer that
takes it as it is: every byte of it is copied once on its way.

The memory of a message is computed here, once, when it is made: ``Message.memory_bytes``. A container adds that to its
total when it takes the message, and subtracts it when the message leaves. The size of the body alone would mislead: the
body may be empty while the headers are not.

Both classes are acyclic by construction (a route knows queues, no queue keeps a route but through messages), so that
the cyclic collector never walks a backlog.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, mypyc_attr, u8

from warren.amqp.codec import wire_short
from warren.amqp.methods import BASIC_CLASS_ID, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD_BYTES


@mypyc_attr(acyclic=True)
class LetterCount:
    """How many dead letters one death has led to (``vhosts.dead_lettering``)."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: i64 = 0


@mypyc_attr(acyclic=True)
class Envelope:
    """Exchange and routing key of a message, as they stand at the end of every basic.deliver of it.

    ``tail`` is both as short strings plus the frame-end octet, ``names`` the bare names one after the other.
    ``blind_copies`` are the keys of a BCC header, which also route a dead letter. ``taken_by`` are the queues that have
    a dead letter which another one refused. ``letters`` is the number of dead letters that share its origin.
    They are not stored.
    """

    __slots__ = ("blind_copies", "exchange", "letters", "names", "routing_key", "routing_key_bytes", "tail", "taken_by")

    def __init__(self, exchange: str, routing_key: str) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        raw_exchange = exchange.encode()
        raw_key = routing_key.encode()
        self.names = raw_exchange + raw_key
        self.routing_key_bytes: i64 = len(raw_key)
        self.blind_copies: list[str] | None = None
        self.taken_by: list[str] | None = None
        self.letters: LetterCount | None = None
        self.tail = bytes([len(raw_exchange)]) + raw_exchange + bytes([len(raw_key)]) + raw_key + b"\xce"


# Where the payload of a content header frame begins.
HEADER_AT: Final = 7

# The memory that a message takes besides its frames, and a piece of it, or a key of a BCC header, besides its bytes.
MESSAGE_OVERHEAD_BYTES: Final = 220
PIECE_OVERHEAD_BYTES: Final = 56


@mypyc_attr(acyclic=True, free_list_len=1)
class Message:
    """One message. ``content``: frames as received, or ``b""`` when they are ``pieces``; ``body_bytes``: the bare body.

    The first of the pieces is the content header frame. ``time_ms``: when it was published, in ms since the epoch, or
    while it is held, until when; 0: not needed so far. ``expiration_ms``: its own time to live, -1 without.
    ``memory_bytes``: the memory that it takes, about. It does not change while the message is kept.
    """

    __slots__ = (
        "attempts",
        "awaits_batch",
        "body_bytes",
        "channel",
        "content",
        "due_ms",
        "envelope",
        "expiration_ms",
        "frame_max_bytes",
        "memory_bytes",
        "persistent",
        "pieces",
        "republished",
        "row",
        "sole",
        "time_ms",
    )

    def __init__(
        self,
        envelope: Envelope,
        content: bytes,
        channel: i64,
        body_bytes: i64,
        frame_max_bytes: i64,
        persistent: bool,
        pieces: list[bytes] | None = None,
    ) -> None:
        self.envelope = envelope
        self.content = content
        self.pieces = pieces
        self.memory_bytes: i64 = len(content) + MESSAGE_OVERHEAD_BYTES
        if pieces is not None:
            self.memory_bytes += _kept_bytes(pieces)
        if envelope.blind_copies is not None:
            self.memory_bytes += _key_bytes(envelope.blind_copies)
        self.channel: i64 = channel  # the number baked into the frames of `content`
        self.body_bytes: i64 = body_bytes
        self.frame_max_bytes: i64 = frame_max_bytes  # the largest whole frame in `content`
        self.persistent: bool = persistent
        self.republished: bool = False  # a client published it with an x-death, which is not ours
        self.awaits_batch: bool = False  # its confirm waits for the open batch, whether it has a row there or not
        self.sole: bool = False  # it is known to be in one queue or exchange only; False: it may be in others
        self.row: i64 = -1  # its first row in the open batch of the log, if it has one
        self.time_ms: i64 = 0  # see the docstring: the time of publishing, or the end of being held
        self.expiration_ms: i64 = -1
        self.due_ms: i64 = 0  # not to be delivered before, 0: at once
        self.attempts: i64 = 0  # how often it has come back, in queues that count that; stored is only whether it has

    def copy(self) -> Message:
        """Return a copy of the same message, so that it can get a time of its own."""
        made = Message(
            self.envelope,
            self.content,
            self.channel,
            self.body_bytes,
            self.frame_max_bytes,
            self.persistent,
            self.pieces,
        )
        made.time_ms = self.time_ms
        made.expiration_ms = self.expiration_ms
        made.attempts = self.attempts
        made.republished = self.republished
        return made

    def take_frames(self, content: bytes, pieces: list[bytes] | None) -> None:
        """Set other frames for the same body. Only for the maker of the message, before it is kept anywhere."""
        self.memory_bytes += len(content) - len(self.content)
        if self.pieces is not None:
            self.memory_bytes -= _kept_bytes(self.pieces)
        if pieces is not None:
            self.memory_bytes += _kept_bytes(pieces)
        self.content = content
        self.pieces = pieces

    def copy_blindly_to(self, keys: list[str]) -> None:
        """Put the keys of a BCC header into the envelope; both are new, and not shared yet."""
        self.envelope.blind_copies = keys
        self.memory_bytes += _key_bytes(keys)

    def note_takers(self, names: list[str]) -> None:
        """Note in the envelope of a dead letter which queues have it: those that refused it get it again."""
        old = self.envelope
        envelope = Envelope(old.exchange, old.routing_key)  # that of a message from disk is others' too
        envelope.blind_copies = old.blind_copies
        envelope.letters = old.letters
        envelope.taken_by = names
        self.envelope = envelope

    def content_bytes(self) -> i64:
        """Return the size of all frames."""
        pieces = self.pieces
        if pieces is None:
            return len(self.content)
        total: i64 = 0
        for piece in pieces:
            total += len(piece)
        return total

    def joined(self) -> bytes:
        """Return the frames in one piece, from now on kept so."""
        pieces = self.pieces
        if pieces is not None:
            self.content = b"".join(pieces)
            self.pieces = None
        return self.content

    def header_frame(self) -> bytes:
        """Return bytes that begin with the content header frame, whose payload begins at `HEADER_AT`."""
        pieces = self.pieces
        return self.content if pieces is None else pieces[0]

    def header_payload(self) -> bytes:
        """Return the payload of the content header frame."""
        content = self.header_frame()
        size: i64 = i64(read_i32_be(content, 3)) & 0xFFFFFFFF
        return content[HEADER_AT : HEADER_AT + size]

    def body_parts(self, most: i64) -> list[memoryview]:
        """Return the first `most` bytes of the body where they lie, a part for each frame or piece, uncopied."""
        pieces = self.pieces
        if pieces is None:
            pieces = [self.content]
        parts: list[memoryview] = []
        pos: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(pieces[0], 3)) & 0xFFFFFFFF)
        head = b""  # of a frame, which may begin in one piece and end in the next
        left: i64 = 0  # of its payload
        after: i64 = 0  # its end
        for piece in pieces:
            view = memoryview(piece)
            end: i64 = len(piece)
            while pos < end and most > 0:
                size: i64 = end - pos
                if left > 0:
                    if size > left:
                        size = left
                    if size > most:
                        size = most
                    parts.append(view[pos : pos + size])
                    left -= size
                    most -= size
                    after = 1 if left == 0 else 0
                elif after > 0:
                    size = after
                    after = 0
                else:
                    if size > HEADER_AT - len(head):
                        size = HEADER_AT - len(head)
                    head += piece[pos : pos + size]
                    if len(head) == HEADER_AT:
                        left = i64(read_i32_be(head, 3)) & 0xFFFFFFFF
                        after = 1 if left == 0 else 0
                        head = b""
                pos += size
            pos = 0
            if most == 0:
                break
        return parts

    def body(self) -> bytes:
        """Return the body, joined from its frames or pieces; not copied where it is a piece."""
        if self.pieces is not None:
            views = self.body_parts(self.body_bytes)
            piece = views[0].obj if len(views) == 1 else None
            return piece if isinstance(piece, bytes) and len(piece) == self.body_bytes else b"".join(views)
        parts: list[bytes] = []
        content = self.content
        pos: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        while pos < len(content):
            size: i64 = i64(read_i32_be(content, pos + 3)) & 0xFFFFFFFF
            parts.append(content[pos + HEADER_AT : pos + HEADER_AT + size])
            pos += FRAME_OVERHEAD_BYTES + size
        return b"".join(parts)


def _kept_bytes(pieces: list[bytes]) -> i64:
    total: i64 = 0
    for piece in pieces:
        total += len(piece) + PIECE_OVERHEAD_BYTES
    return total


def _key_bytes(keys: list[str]) -> i64:
    total: i64 = 0
    for key in keys:
        total += len(key) + PIECE_OVERHEAD_BYTES
    return total


def patch_channel(out: BytesWriter, start: i64, channel: i64) -> None:
    """Set the channel number of every frame from `start` to the end of `out`."""
    high: u8 = u8(channel >> 8)
    low: u8 = u8(channel & 255)
    end: i64 = len(out)
    pos: i64 = start
    while pos < end:
        out[pos + 1] = high
        out[pos + 2] = low
        size: i64 = i64(out[pos + 3]) << 24 | i64(out[pos + 4]) << 16 | i64(out[pos + 5]) << 8 | i64(out[pos + 6])
        pos += FRAME_OVERHEAD_BYTES + size


def write_frames(out: BytesWriter, channel: i64, header_payload: bytes, body: bytes, frame_max: i64) -> None:
    """Write a content as frames of at most `frame_max` bytes each, 0 meaning one body frame."""
    write_frame_head(out, FRAME_HEADER, channel, len(header_payload))
    out.write(header_payload)
    out.append(FRAME_END)
    room: i64 = len(body)
    if frame_max > 0:
        room = frame_max - FRAME_OVERHEAD_BYTES
    pos: i64 = 0
    end: i64 = len(body)
    while pos < end:
        size: i64 = end - pos
        if size > room:
            size = room
        write_frame_head(out, FRAME_BODY, channel, size)
        out.write(body[pos : pos + size])
        out.append(FRAME_END)
        pos += size


def write_frame_head(out: BytesWriter, frame_type: i64, channel: i64, payload_bytes: i64) -> None:
    out.append(u8(frame_type))
    write_i16_be(out, wire_short(channel))
    write_i32_be(out, i32(payload_bytes))


def build_message(envelope: Envelope, properties: bytes, body: bytes, frame_max: i64, persistent: bool) -> Message:
    """Make a message of encoded `properties` (flag word first) and `body`, framed for channel 1."""
    out = BytesWriter()
    header = BytesWriter()
    write_i32_be(header, BASIC_CLASS_ID << 16)  # and a weight of 0
    write_i64_be(header, len(body))
    header.write(properties)
    payload = header.getvalue()
    write_frames(out, 1, payload, body, frame_max)
    largest: i64 = FRAME_OVERHEAD_BYTES + len(payload)
    if len(body) > 0:
        body_frame: i64 = FRAME_OVERHEAD_BYTES + i64(len(body))
        if 0 < frame_max < body_frame:
            body_frame = frame_max
        if body_frame > largest:
            largest = body_frame
    return Message(envelope, out.getvalue(), 1, len(body), largest, persistent)
