"""Clients of a `WarrenProcess`: pika connections, bare sockets that do what no good client would, steady traffic."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

import pika
from broker_process import WarrenProcess
from compat.broker import Broker
from compat.pika_client.wire import Ended, WireClient
from pika import frame, spec

from warren.amqp import methods as m
from warren.amqp.codec import frame as encode_frame
from warren.amqp.codec import method_frame

FRAME_ROOM_BYTES = 131072 - m.FRAME_OVERHEAD_BYTES


def broker_at(process: WarrenProcess, host: str = "127.0.0.1", **changes: Any) -> Broker:
    """Describe `process` to clients, as guest in "/" unless told otherwise."""
    settings: dict[str, Any] = {"username": "guest", "password": "guest", "vhost": "/"}
    return Broker(host=host, port=process.amqp_port, started_here=True, **(settings | changes))


def connect(process: WarrenProcess, **changes: Any) -> pika.BlockingConnection:
    """Open a pika connection; `changes` are connection parameters."""
    return pika.BlockingConnection(broker_at(process).parameters(**changes))


def open_wire(process: WarrenProcess, channel_number: int = 1, **handshake: Any) -> WireClient:
    """Open a connection with one channel on a bare socket; `handshake` as for `WireClient.handshake`."""
    client = WireClient(broker_at(process))
    client.handshake(**handshake)
    client.open_channel(channel_number)
    return client


def content_header(channel_number: int, body_bytes: int) -> bytes:
    """Return the header frame of a content without properties that announces `body_bytes`."""
    payload = b"\x00\x3c\x00\x00" + body_bytes.to_bytes(8, "big") + b"\x00\x00"
    return encode_frame(m.FRAME_HEADER, channel_number, payload)


def publish_frames(
    exchange: str, routing_key: str, body: bytes, channel_number: int = 1, *, mandatory: bool = False
) -> bytes:
    """Return a whole publish as bytes."""
    publish = m.BasicPublish(0, exchange, routing_key, mandatory, False)
    parts = [method_frame(channel_number, publish), content_header(channel_number, len(body))]
    for start in range(0, len(body), FRAME_ROOM_BYTES):
        parts.append(encode_frame(m.FRAME_BODY, channel_number, body[start : start + FRAME_ROOM_BYTES]))
    return b"".join(parts)


def next_body(client: WireClient, method: type[Any]) -> bytes:
    """Return the body of the next content, which must come with `method`; other methods are skipped."""
    while True:
        got = client.next_frame()
        if isinstance(got, frame.Method) and isinstance(got.method, method):
            break
    header = client.next_frame()
    assert isinstance(header, frame.Header)
    parts = []
    missing = header.body_size
    while missing:
        body = client.next_frame()
        assert isinstance(body, frame.Body)
        parts.append(body.fragment)
        missing -= len(body.fragment)
    return b"".join(parts)


class Traffic:
    """A client that sends itself a message, again whenever it comes back: shows that the broker delivers.

    Runs in a thread inside its ``with`` block, at most `per_s` times a second; `count` is what was delivered so far.
    """

    def __init__(self, process: WarrenProcess, per_s: int = 500) -> None:
        self.count = 0
        self._pause_s = 1 / per_s
        self._client = open_wire(process)
        self._client.send(1, spec.Queue.Declare(exclusive=True))
        queue = self._client.expect(spec.Queue.DeclareOk, 1).queue
        self._client.send(1, spec.Basic.Consume(queue=queue, no_ack=True))
        self._client.expect(spec.Basic.ConsumeOk, 1)
        self._message = publish_frames("", queue, b"round and round")
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._client.send_bytes(self._message)
                next_body(self._client, spec.Basic.Deliver)
                self.count += 1
                time.sleep(self._pause_s)
        except (Ended, OSError):
            return
