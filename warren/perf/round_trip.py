"""One request and one reply at a time: the latency that a caller of a remote procedure sees.

The requester publishes to a request queue, the responder answers to the queue named in reply-to, both through
the default exchange and both consuming with no_ack. Two connections, one thread, one message in the whole
broker: a message never waits for another one.

1. A request is sent only after the reply to the one before it was received completely.
2. The body carries the number of the request; a reply with another number is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from struct import pack_into, unpack_from

from warren.amqp_client import frames
from warren.perf import process_stats
from warren.perf.client import CHANNEL, Address, BrokerError, PerfConnection, product_of
from warren.perf.flow import DeliveryStream
from warren.perf.meter import Histogram, Totals

_SHORTEST_BODY_BYTES = 16


@dataclass
class RoundTrips:
    """The results of a request/reply run. CPU is the broker's, for one request and its reply together."""

    broker: str
    size_bytes: int
    window: Totals
    latency: Histogram
    process: process_stats.ProcessSample | None
    cpu_us: int

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain values, for JSON."""
        seconds = self.window.at_ns / 1e9 or 1.0
        found: dict[str, object] = {
            "mode": "rpc",
            "broker": self.broker,
            "size_bytes": self.size_bytes,
            "seconds": round(seconds, 3),
            "round_trips_per_s": round(self.window.received / seconds, 1),
            "round_trip_latency_us": self.latency.summary_us(),
        }
        if self.process is not None:
            found["broker_cpu_us_per_round_trip"] = round(self.cpu_us / max(1, self.window.received), 3)
            found["broker_rss_bytes"] = self.process.rss_bytes
        return found


class _End:
    """One side of the exchange: sends a prepared message, receives one delivery."""

    def __init__(self, address: Address, inbox: str, outbox: str, *, size_bytes: int, reply_to: str) -> None:
        self.connection = PerfConnection.open(address)
        self.connection.delete_queues([inbox])
        self.connection.declare_queue(inbox, exclusive=True)
        self.connection.consume(inbox, "c", no_ack=True)
        self.stream = DeliveryStream(str(address), body_bytes=size_bytes, stamped=False, latency=Histogram())
        properties = frames.encode_properties(reply_to=reply_to or None, correlation_id="warren-perf-rpc")
        self._message = bytearray(
            frames.publish(
                CHANNEL,
                "",
                outbox,
                bytes(size_bytes),
                frame_max_bytes=self.connection.frame_max_bytes,
                properties=properties,
            )
        )
        self._body_at = frames.body_offset(self._message)

    def send(self, number: int) -> None:
        pack_into(">Q", self._message, self._body_at, number)
        self.connection.sock.sendall(self._message)

    def receive(self) -> int:
        """Wait for one delivery and return the number in its body."""
        stream = self.stream
        while True:
            try:
                fresh = self.connection.sock.recv_into(stream.view[stream.filled :])
            except TimeoutError:
                raise BrokerError(f"{self.connection.address} delivered nothing in time") from None
            if not fresh:
                raise BrokerError(f"{self.connection.address} closed the socket without a word")
            if stream.take(fresh, 0):
                (number,) = unpack_from(">Q", stream.buffer, stream.body_at)
                return int(number)


def run(
    address: Address,
    *,
    size_bytes: int,
    warmup_s: float,
    duration_s: float,
    prefix: str,
    pid: int = 0,
    on_tick: Callable[[Totals, Totals], None] | None = None,
) -> RoundTrips:
    """Exchange requests and replies for ``duration_s`` seconds after the warm-up. Raises BrokerError."""
    size_bytes = max(size_bytes, _SHORTEST_BODY_BYTES)
    requests, replies = f"{prefix}-requests", f"{prefix}-replies"
    responder = _End(address, requests, replies, size_bytes=size_bytes, reply_to="")
    requester = _End(address, replies, requests, size_bytes=size_bytes, reply_to=replies)
    latency = Histogram()
    number = 0
    try:
        _exchange(requester, responder, 0, warmup_s, Histogram(), None)
        number = requester.stream.received
        before = process_stats.sample(pid) if pid else None
        start_ns = time.monotonic_ns()
        count = _exchange(requester, responder, number, duration_s, latency, on_tick)
        window = Totals(time.monotonic_ns() - start_ns, published=2 * count, received=count)
        after = process_stats.sample(pid) if pid else None
    except OSError as error:
        raise BrokerError(f"lost {address}: {error.strerror or error}") from None
    finally:
        requester.connection.close()
        responder.connection.close()
    return RoundTrips(
        broker=product_of(requester.connection.server_properties),
        size_bytes=size_bytes,
        window=window,
        latency=latency,
        process=after,
        cpu_us=after.cpu_us - before.cpu_us if after and before else 0,
    )


def _exchange(
    requester: _End,
    responder: _End,
    number: int,
    seconds: float,
    latency: Histogram,
    on_tick: Callable[[Totals, Totals], None] | None,
) -> int:
    """Run round trips for ``seconds``, numbering on from ``number``. Returns their number."""
    begin = now_ns = time.monotonic_ns()
    stop_ns = begin + int(seconds * 1e9)
    last = Totals(begin)
    count = 0
    while now_ns < stop_ns:
        sent_ns = now_ns
        number += 1
        requester.send(number)
        responder.send(responder.receive())
        answered = requester.receive()
        now_ns = time.monotonic_ns()
        if answered != number:
            raise BrokerError(f"reply {answered} came where {number} was due")
        latency.record(now_ns - sent_ns)
        count += 1
        if on_tick is not None and now_ns - last.at_ns > 1_000_000_000:
            now = Totals(now_ns, published=2 * count, received=count)
            on_tick(last, now)
            last = now
    return count
