"""Pass spans of the engine (`channels.spans`) to a collector.

    engine  ->  `Spans`, at most 8,192  ->  a thread: what a span says, as OTLP over HTTP (`otlp`)  ->  collector

1. The reactor never waits for a collector. While a collector does not answer, spans gather in the engine. Spans that do
   not fit there, or could not be sent, are dropped and counted.
2. Sending uses at most a fifth of a processor: it takes the interpreter from the reactor.
3. When the broker stops, waiting spans are sent within `LAST_WORDS_S` or lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from warren.channels.broker import Broker
from warren.channels.spans import Span, Spans
from warren.server.logs import get_logger
from warren.server.settings import Settings
from warren.server.threads import TRACES, in_thread

LOOK_EVERY_S: Final = 0.5
AT_ONCE: Final = 512
PAUSE_PER_S: Final = 4.0  # for each second of the processor
LAST_WORDS_S: Final = 2.0
NOTE_EVERY_S: Final = 60.0

log = get_logger("tracing")


class SpanSender(Protocol):
    """Sends spans. Called in one thread at a time."""

    def send(self, spans: Sequence[Span]) -> str:
        """Send them, and wait for the answer; return the error, empty when they have arrived."""
        ...

    def close(self) -> None:
        """End a `send` that is under way in another thread, and refuse to send from then on."""
        ...


class SpanExport:
    """Takes waiting spans from `spans` and sends them. `exported` and `failed` count spans since the start."""

    def __init__(self, spans: Spans, sender: SpanSender) -> None:
        self.exported = 0
        self.failed = 0
        self._spans = spans
        self._sender = sender
        self._sending = trio.Lock()
        self._note_from_s = float("-inf")

    @property
    def waiting(self) -> int:
        return len(self._spans)

    @property
    def dropped(self) -> int:
        """The number of spans without room."""
        return int(self._spans.dropped)

    async def run(self) -> None:
        """Send spans, for ever."""
        while True:
            used_s = await self._send_some()
            # Spans that did not fit into one request follow at once, as far as (2) allows.
            await trio.sleep(used_s * PAUSE_PER_S if self.waiting >= AT_ONCE and used_s else LOOK_EVERY_S)

    async def finish(self) -> None:
        """Send the waiting spans, as far as there is time."""
        with trio.move_on_after(LAST_WORDS_S):
            while self.waiting:
                await self._send_some()
        self._sender.close()

    async def _send_some(self) -> float:
        """Send one request; return how long that used the processor."""
        async with self._sending:
            spans = self._spans.take(AT_ONCE)
            if not spans:
                return 0.0
            sent = 0
            try:
                wrong, used_s = await in_thread(TRACES, self._send, spans, abandon=True)
                if not wrong:
                    sent = len(spans)
            finally:
                self.exported += sent
                self.failed += len(spans) - sent
            if wrong:
                self._note(wrong)
            return used_s

    def _send(self, spans: Sequence[Span]) -> tuple[str, float]:
        began_s = time.thread_time()
        wrong = self._sender.send(spans)
        return wrong, time.thread_time() - began_s

    def _note(self, wrong: str) -> None:
        now_s = trio.current_time()
        if now_s >= self._note_from_s:
            self._note_from_s = now_s + NOTE_EVERY_S
            log.warning("spans could not be sent and are lost", reason=wrong, lost=self.failed, dropped=self.dropped)


def maybe_span_export(settings: Settings, broker: Broker) -> SpanExport | None:
    """Make the engine produce spans, if a collector is set.

    Raises:
        StartError: the packages for sending are not installed.
    """
    if not settings.tracing_otlp_endpoint:
        return None
    # Imported only when needed.
    from warren.server.tracing.otlp import OtlpSender

    sender = OtlpSender(settings.tracing_otlp_endpoint, broker.node)
    broker.shared.spans = Spans(settings.tracing_sampling_ratio)
    return SpanExport(broker.shared.spans, sender)
