"""Describe spans and send them to a collector: OTLP over HTTP, by the OpenTelemetry SDK, which is an extra.

    span       name              kind      parent
    publish    publish EXCHANGE  SERVER    the context of the message
    delivery   deliver QUEUE     PRODUCER  the context of the message

1. Attributes are those of the semantic conventions for messaging and RabbitMQ, so far as the broker knows them; its own
   begin with ``warren.``. Names of spans do not contain routing keys or generated names, so that few names exist.
2. A span begins and ends at the time of the turn in which it happened. The time between a publish and its delivery is
   the time that the message waited.
3. Headers, certificates, compression and timeouts of the requests are set by the SDK's own variables, such as
   ``OTEL_EXPORTER_OTLP_HEADERS``. It repeats a request after a brief failure, within its timeout (10 s).

Source: OpenTelemetry, semantic conventions for messaging spans and for RabbitMQ, 1.45.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from warren import __version__
from warren.channels.spans import Span
from warren.server.start_errors import StartError

EXTRA: Final = "./warren[otel]"
TRACES_PATH: Final = "/v1/traces"
_DEFAULT_EXCHANGE: Final = "amq.default"
_GENERATED: Final = "amq.gen-"
_NS_PER_MS: Final = 1_000_000
_PUBLISH: Final = "publish"
_DELIVER: Final = "deliver"
_LOGGER: Final = "opentelemetry"


class _LastWords(logging.Handler):
    """Keeps the last log line of the SDK: only that says why something failed there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class OtlpSender:
    """Sends spans to the collector at `endpoint`; without a path to the standard one of OTLP for spans.

    Raises:
        StartError: the packages of the extra are not installed.
    """

    def __init__(self, endpoint: str, node: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanLimits, TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            raise StartError(
                f"tracing_otlp_endpoint needs the packages of OpenTelemetry ({error}): pip install '{EXTRA}'"
            ) from None
        self._trace: Any = trace
        self._success: Any = SpanExportResult.SUCCESS
        self._exporter: Any = OTLPSpanExporter(endpoint=with_path(endpoint))
        self._made: Any = InMemorySpanExporter()
        about = {"service.name": "warren", "service.version": __version__, "service.instance.id": node}
        provider: Any = TracerProvider(
            # The engine has decided already which spans to send. Our attributes are all short.
            sampler=ALWAYS_ON,
            resource=Resource.create(about),
            shutdown_on_exit=False,
            span_limits=SpanLimits(),
        )
        provider.add_span_processor(SimpleSpanProcessor(self._made))
        self._tracer: Any = provider.get_tracer("warren", __version__)
        self._last_words = _LastWords()
        logger = logging.getLogger(_LOGGER)
        logger.propagate = False  # a line for each request that fails would be too many
        logger.addHandler(self._last_words)

    def send(self, spans: Sequence[Span]) -> str:
        for span in spans:
            self._make(span)
        made = self._made.get_finished_spans()
        self._made.clear()
        self._last_words.text = ""
        if self._exporter.export(made) == self._success:
            return ""
        return self._last_words.text or "the collector did not accept them"

    def close(self) -> None:
        self._exporter.shutdown()

    def _make(self, span: Span) -> None:
        trace = self._trace
        context = span.context
        parent = trace.SpanContext(
            int(context.trace_id, 16), int(context.parent_id, 16), is_remote=True, trace_flags=trace.TraceFlags(1)
        )
        at_ns = span.time_ms * _NS_PER_MS
        self._tracer.start_span(
            name_of(span),
            context=trace.set_span_in_context(trace.NonRecordingSpan(parent)),
            kind=trace.SpanKind.SERVER if span.queue is None else trace.SpanKind.PRODUCER,
            attributes=attributes_of(span),
            start_time=at_ns,
        ).end(at_ns)


def with_path(endpoint: str) -> str:
    """Return the URL to which spans are sent."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + TRACES_PATH


def name_of(span: Span) -> str:
    """Return the name of a span."""
    if span.queue is None:
        return f"{_PUBLISH} {span.exchange or _DEFAULT_EXCHANGE}"
    return f"{_DELIVER} {'(generated)' if span.queue.startswith(_GENERATED) else span.queue}"


def attributes_of(span: Span) -> dict[str, str | int | bool]:
    """Return the attributes of a span."""
    place = span.place
    parts = [span.exchange, span.routing_key]
    if span.queue is not None:
        parts.append(span.queue)
    found: dict[str, str | int | bool] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": _PUBLISH if span.queue is None else _DELIVER,
        "messaging.destination.name": ":".join(dict.fromkeys(part for part in parts if part)) or _DEFAULT_EXCHANGE,
        "messaging.message.body.size": span.body_bytes,
        "warren.vhost": place.vhost,
        "warren.exchange": span.exchange,
        "warren.channel": place.channel,
    }
    if span.queue is None:
        found |= {"messaging.operation.type": "send", "warren.queues": span.queues}
    else:
        found |= {"warren.queue": span.queue, "warren.redelivered": span.redelivered}
    for name, text in (
        ("messaging.rabbitmq.destination.routing_key", span.routing_key),
        ("messaging.message.id", span.message_id),
        ("messaging.message.conversation_id", span.correlation_id),
    ):
        if text:
            found[name] = text
    for name, address in (("network.peer", place.peer), ("server", place.local)):
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit():
            found |= {f"{name}.address": host.strip("[]"), f"{name}.port": int(port)}
    if "network.peer.port" in found:  # it belongs to a socket
        protocol, _, version = place.protocol.removeprefix("Web ").partition(" ")
        found |= {"network.protocol.name": protocol.lower(), "network.protocol.version": version.replace("-", ".")}
    return found
