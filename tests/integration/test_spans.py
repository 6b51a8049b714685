"""Spans of a broker, as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until

from .management.client import Api

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"


class Collector:
    """Takes OTLP over HTTP. `spans` are what came, as their attributes and a few fields; `status` what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        self.refused = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if collector.status == 200:
                    collector.take(self.path, body)
                else:
                    collector.refused += 1
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, path: str, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            self.resources.append(_attributes(of_resource.resource.attributes))
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        _attributes(span.attributes)
                        | {
                            "name": span.name,
                            "kind": span.kind,
                            "trace": span.trace_id.hex(),
                            "span": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "start_ns": span.start_time_unix_nano,
                            "end_ns": span.end_time_unix_nano,
                        }
                    )

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    found = Collector()
    yield found
    found.close()


def open_channel(process: WarrenProcess) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)).channel()


def publish(channel: Any, body: bytes, traceparent: str = SAMPLED) -> None:
    channel.basic_publish("", "q", body, pika.BasicProperties(headers={"traceparent": traceparent}, message_id="m"))


def counts(process: WarrenProcess) -> dict[str, float]:
    """Return the metrics of spans."""
    api = Api(process.http_port)
    try:
        page = api.ask("GET", "//metrics").body.decode()
    finally:
        api.close()
    rows = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("warren_tracing_")]
    return {name.removeprefix("warren_tracing_spans_"): float(value) for name, value in rows}


def test_a_collector_gets_a_span_of_each_publish_and_delivery(tmp_path: Path, collector: Collector) -> None:
    settings = {"tracing_otlp_endpoint": collector.endpoint, "node_name": "rabbit@traced"}
    with WarrenProcess(tmp_path, settings=settings) as process:
        channel = open_channel(process)
        channel.queue_declare("q")
        publish(channel, b"one")
        publish(channel, b"of no interest", SAMPLED[:-1] + "0")
        for _ in range(2):
            method, _, _ = channel.basic_get("q", auto_ack=True)
            assert method is not None
        wait_until(lambda: len(collector.spans) >= 2, "the spans to arrive")
        wait_until(lambda: counts(process)["exported_total"] == 2, "them to be counted")
        publish(channel, b"as it stops")
        channel.queue_declare("q")
        channel.connection.close()
    published, delivered, last = collector.spans
    assert (published["name"], published["kind"]) == ("publish amq.default", 2)  # SERVER
    assert (delivered["name"], delivered["kind"]) == ("deliver q", 4)  # PRODUCER
    assert last["name"] == "publish amq.default"
    for span in collector.spans:
        assert (span["trace"], span["parent"]) == (TRACE_ID, PARENT_ID)
        assert span["messaging.system"] == "rabbitmq"
        assert span["messaging.message.id"] == "m"
        assert span["server.port"] == process.amqp_port
        assert span["start_ns"] == span["end_ns"] > 1_700_000_000 * 10**9
    assert len({span["span"] for span in collector.spans}) == 3
    assert collector.resources[0]["service.name"] == "warren"
    assert collector.resources[0]["service.instance.id"] == "rabbit@traced"


def test_a_collector_that_refuses_costs_spans_and_nothing_else(tmp_path: Path, collector: Collector) -> None:
    collector.status = 400
    with WarrenProcess(tmp_path, settings={"tracing_otlp_endpoint": collector.endpoint}) as process:
        channel = open_channel(process)
        channel.queue_declare("q")
        publish(channel, b"x")
        wait_until(lambda: counts(process).get('lost_total{reason="failed"}') == 1, "the span to be given up")
        assert "spans could not be sent and are lost" in process.log()
        method, _, body = channel.basic_get("q", auto_ack=True)
        assert method is not None and body == b"x"
        collector.status = 200
        publish(channel, b"y")
        wait_until(lambda: len(collector.spans) >= 1, "a span to arrive again")
        channel.connection.close()
