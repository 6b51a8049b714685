"""Clients that wait for each answer: many callers of one service by direct reply-to, and basic.get in a loop.

Raw sockets, frames made beforehand, one thread. CPU is that of all processes of the broker.
"""

from __future__ import annotations

import selectors
import time
from typing import NamedTuple

from benchmarks.load_tool import Target
from warren.amqp import methods
from warren.amqp.codec import decode_method, method_frame
from warren.amqp.properties import decode_properties
from warren.amqp_client import frames
from warren.perf.client import CHANNEL, Address, BrokerError, PerfConnection, open_many
from warren.perf.process_stats import sample

CALLERS = 100
BODY = b"x" * 16
QUEUE = "shapes"
_WARM_S = 1.0
_RECEIVE_BYTES = 1 << 16
_DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"


class Answered(NamedTuple):
    """Answers in a second, and the CPU of the broker for each, in µs."""

    per_s: float
    cpu_us: float


class _Inbox:
    """What came on one connection: the reply-to of each message, if any."""

    def __init__(self, connection: PerfConnection) -> None:
        self.connection = connection
        self._received = bytearray(connection.leftover)

    def receive(self) -> list[str | None]:
        """Read once; return the reply-to of each content header that came."""
        fresh = self.connection.sock.recv(_RECEIVE_BYTES)
        if not fresh:
            raise BrokerError(f"{self.connection.address} closed the socket without a word")
        self._received += fresh
        found: list[str | None] = []
        at = 0
        while (frame := frames.maybe_frame(self._received, at, len(self._received))) is not None:
            at = frame.end
            payload = bytes(self._received[frame.start + 7 : frame.end - 1])
            if frame.kind == methods.FRAME_HEADER:
                found.append(decode_properties(payload, 0, len(payload)).reply_to)
            elif frame.kind == methods.FRAME_METHOD:
                method = decode_method(payload, 0, len(payload))
                if isinstance(method, methods.ChannelClose | methods.ConnectionClose | methods.BasicGetEmpty):
                    raise BrokerError(f"{self.connection.address}: {method}")
        del self._received[:at]
        return found


class _Window:
    """The answers between the warm-up and the end."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.count = 0
        self._pid = pid
        self._begin_s = time.monotonic() + _WARM_S
        self._end_s = self._begin_s + seconds
        self._before_us: int | None = None

    def is_open(self) -> bool:
        """Tell whether to continue; begins to count when the warm-up is over."""
        now_s = time.monotonic()
        if self._before_us is None and now_s >= self._begin_s:
            self.count = 0
            self._begin_s = now_s
            self._before_us = sample(self._pid).cpu_us
        return now_s < self._end_s

    def result(self) -> Answered:
        assert self._before_us is not None
        used_us = sample(self._pid).cpu_us - self._before_us
        return Answered(self.count / (time.monotonic() - self._begin_s), used_us / max(1, self.count))


def call(broker: Target, seconds: float) -> Answered:
    """Have `CALLERS` connections call one service, each with one request on its way. Raises BrokerError, OSError."""
    address = Address.from_uri(broker.uri, "amqp", 5672)
    service, *callers = open_many(address, CALLERS + 1)
    try:
        service.declare_queue(QUEUE, exclusive=True)
        service.consume(QUEUE, "service", no_ack=True)
        request = frames.publish(
            CHANNEL,
            "",
            QUEUE,
            BODY,
            frame_max_bytes=service.frame_max_bytes,
            properties=frames.encode_properties(reply_to=_DIRECT_REPLY_TO),
        )
        # Each has a tag of its own: LavinMQ 2.9.1 finds the caller of an answer by the tag, among all of the vhost.
        for number, caller in enumerate(callers):
            caller.consume(_DIRECT_REPLY_TO, f"caller-{number}", no_ack=True)
        with selectors.DefaultSelector() as selector:
            for each in (service, *callers):
                selector.register(each.sock, selectors.EVENT_READ, _Inbox(each))
            for caller in callers:
                caller.sock.sendall(request)
            window = _Window(broker.pid, seconds)
            while window.is_open():
                ready = selector.select(10)
                if not ready:
                    raise BrokerError(f"{address} does not answer")
                for key, _ in ready:
                    inbox: _Inbox = key.data
                    came = inbox.receive()
                    if inbox.connection is service:
                        replies = (
                            frames.publish(CHANNEL, "", to or "", BODY, frame_max_bytes=service.frame_max_bytes)
                            for to in came
                        )
                        service.sock.sendall(b"".join(replies))
                    elif came:
                        if len(came) > 1:
                            raise BrokerError(f"{address} gives a caller the answers of others")
                        window.count += 1
                        inbox.connection.sock.sendall(request)
            return window.result()
    finally:
        for each in (service, *callers):
            each.close()


def get(broker: Target, seconds: float) -> Answered:
    """Publish a message and get it with basic.get, one after the other. Raises BrokerError, OSError."""
    connection = PerfConnection.open(Address.from_uri(broker.uri, "amqp", 5672))
    try:
        connection.declare_queue(QUEUE, exclusive=True)
        publish = frames.publish(CHANNEL, "", QUEUE, BODY, frame_max_bytes=connection.frame_max_bytes)
        both = bytes(publish) + method_frame(CHANNEL, methods.BasicGet(0, QUEUE, no_ack=True))
        inbox = _Inbox(connection)
        window = _Window(broker.pid, seconds)
        while window.is_open():
            connection.sock.sendall(both)
            waits = 1
            while waits:
                waits -= len(inbox.receive())
            window.count += 1
        return window.result()
    finally:
        connection.close()
