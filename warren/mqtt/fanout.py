"""A message for many MQTT clients is decoded once: `Fanout` keeps the parts that are the same for all of them.

1. A PUBLISH of QoS 0 to clients without special requests is made here once, up to its body (`Fanout.head`). Then each
   client costs only a copy into an outbox. A body that is not small is not copied at all.
2. The parts of the latest message are kept. If it is large, they are dropped at the end of the turn.
"""

from __future__ import annotations

from librt.strings import read_i32_be
from mypy_extensions import i64

from warren.amqp.methods import FRAME_OVERHEAD_BYTES
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.mqtt.outline import Outline
from warren.mqtt.packets import PUBLISH, varint
from warren.msgstore.log.message import HEADER_AT, Envelope, Message
from warren.queues.counters import Churn
from warren.queues.long_work import Job, LongWork, Steps
from warren.queues.timers import TimerQueue


class Fanout(Job):
    """The state that the subscribers of one vhost share. `churn`: counts messages that they do not get."""

    def __init__(self, timers: TimerQueue, work: LongWork, churn: Churn) -> None:
        self.timers = timers
        self.churn = churn
        self.message: Message | None = None
        self.is_special: bool = False  # as of `Outline`: not every binding that matches wants the message
        self.is_unfit: bool = False  # making its packets has failed: the message is dropped
        self.head = b""  # of PUBLISH in 3.1 and 3.1.1, up to the body
        self.head_of_5 = b""
        self.body = b""
        self._work = work
        self._outline: Outline | None = None
        self._headed: Outline | None = None  # the messages the heads were made for, with the size of the body
        self._headed_bytes: i64 = 0
        self._is_large: bool = False
        self._is_turn_over: bool = False

    def outline_of(self, envelope: Envelope, content: bytes, header_end: i64) -> Outline:
        """Return the outline of a message with this envelope, and with the header frame in front of `content`."""
        outline = self._outline
        if outline is None or not outline.is_of(envelope, content, header_end):
            outline = Outline(envelope, content, header_end)
            self._outline = outline
        return outline

    def give_up(self, message: Message) -> None:
        """Stop the other subscribers from making packets of a message."""
        self.message = message
        self.is_unfit = True

    def take(self, message: Message, now_ms: i64) -> None:
        """Make the packets of a message: called for its first subscriber."""
        content = message.header_frame()
        header_end: i64 = FRAME_OVERHEAD_BYTES + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        outline = self.outline_of(message.envelope, content, header_end)
        size: i64 = message.body_bytes
        if outline is not self._headed or size != self._headed_bytes or outline.expiration_ms >= 0:
            self._headed = outline
            self._headed_bytes = size
            first = bytes([PUBLISH << 4 | outline.is_replayed])
            topic = outline.topic_bytes
            given = outline.with_expiry(outline.given_with([]), message, now_ms)
            self.head = first + varint(len(topic) + int(size)) + topic
            self.head_of_5 = first + varint(len(topic) + len(given) + int(size)) + topic + given
        self.is_special = outline.is_special
        body_at: i64 = header_end + HEADER_AT
        if message.pieces is None and body_at + size + 1 == len(content):
            self.body = content[body_at : body_at + size]
        else:
            self.body = message.body()
        self.is_unfit = False
        self.message = message  # last, when everything else is complete
        if size >= CHUNK_MIN_BYTES and not self._is_large:
            self._is_large = True
            self._is_turn_over = False
            self._work.begin(self)

    def run(self, steps: Steps) -> bool:
        """Release a large message at the second call, at the end of the turn."""
        if not self._is_turn_over:
            self._is_turn_over = True
            return False
        self._is_large = False
        self.message = None
        self.body = b""
        return True
