"""Spans: reports to a tracing system about the messages that belong to a client's trace.

A *span* here is a point in time: a message was routed, or was written for a consumer. The shell takes them and sends
them on (`server.tracing.span_export`); nothing here knows the format.

1. Only messages with a sampled trace context make spans. The broker does not begin a trace: it does not change
   messages, so nothing would connect the spans of a message that came without a context.
2. A publish makes one when it is routed, in a transaction too, whether a queue takes it or not; a delivery when it is
   written, by basic.get too. Publishing a message of the broker itself makes none.
3. Of the traces that are sampled, `ratio` is kept, decided by the trace id alone: all spans of a trace are kept, or
   none, on every node and in every program that decides so.
4. At most `SPANS_MOST` wait. Further spans are dropped and counted: nobody waits for a collector.

Cost when tracing is off: one comparison with None for a publish with headers and for a delivery. When it is on,
routes are remembered as ever, since a message without headers has no context; headers are walked once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.properties import CORRELATION_ID, MESSAGE_ID, find_property_from
from warren.amqp.trace_context import TraceContext, maybe_trace_context
from warren.channels.tracing import TrafficWatcher
from warren.msgstore.log.message import HEADER_AT, Message
from warren.queues.receiver import Receiver

if TYPE_CHECKING:
    from warren.channels.peer import Peer

SPANS_MOST: Final = 8192
_LOW_HALF: Final = 16  # of a trace id: by these digits programs decide what they keep


class SpanPlace:
    """Where spans come from: the connection, as it was when its session began."""

    def __init__(self, peer: Peer, channel: int) -> None:
        self.vhost = peer.login.vhost_name
        self.peer = peer.origin.peer
        self.local = peer.origin.local
        self.protocol = peer.origin.shown(peer.protocol)
        self.channel = channel


class Span:
    """A publish, or with `queue` a delivery. `queues`: the number of queues that a publish goes to."""

    def __init__(self, place: SpanPlace, context: TraceContext, message: Message, time_ms: i64) -> None:
        envelope = message.envelope
        header = message.header_frame()
        self.place = place
        self.context = context
        self.time_ms: int = int(time_ms)
        self.exchange = envelope.exchange
        self.routing_key = envelope.routing_key
        self.body_bytes: int = int(message.body_bytes)
        self.message_id = _short_string(header, MESSAGE_ID)
        self.correlation_id = _short_string(header, CORRELATION_ID)
        self.queue: str | None = None
        self.queues: int = 0
        self.redelivered: bool = False


class Spans:
    """The spans that wait to be taken. `ratio`: the share of the sampled traces to keep, 0 to 1."""

    def __init__(self, ratio: float) -> None:
        self.dropped: i64 = 0  # since the start
        self._below: int = round(ratio * (1 << 64))
        self._waiting: list[Span] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def maybe_wanted(self, message: Message) -> TraceContext | None:
        """Return the context of a message that makes a span; None: it does not make one."""
        context = maybe_trace_context(message.header_frame(), HEADER_AT)
        if context is None or not context.sampled:
            return None
        if int(context.trace_id[_LOW_HALF:], 16) >= self._below:
            return None
        if len(self._waiting) >= SPANS_MOST:
            self.dropped += 1
            return None
        return context

    def add(self, span: Span) -> None:
        self._waiting.append(span)

    def take(self, most: int) -> list[Span]:
        """Return the oldest, at most so many; they are the shell's from now on."""
        taken = self._waiting[:most]
        del self._waiting[:most]
        return taken


class SessionSpans(TrafficWatcher):
    """Makes spans of the messages that one session publishes and is sent."""

    def __init__(self, spans: Spans, peer: Peer, number: int) -> None:
        self._spans = spans
        self._log = peer.broker.log
        self._place = SpanPlace(peer, number)

    def published(self, keys: list[str], message: Message, queues: list[Receiver]) -> None:
        context = self._spans.maybe_wanted(message)
        if context is not None:
            span = Span(self._place, context, message, self._log.now_ms)
            span.queues = len(queues)
            self._spans.add(span)

    def delivered(self, queue: Receiver, message: Message, redelivered: bool) -> None:
        context = self._spans.maybe_wanted(message)
        if context is not None:
            span = Span(self._place, context, message, self._log.now_ms)
            span.queue = queue.name
            span.redelivered = redelivered
            self._spans.add(span)


def _short_string(header: bytes, wanted: i64) -> str:
    """Return a property of the content header frame, empty without."""
    at: i64 = find_property_from(header, HEADER_AT, wanted)
    if at < 0:
        return ""
    return header[at + 1 : at + 1 + i64(header[at])].decode("utf-8", "replace")
