"""The cost of standing still: idle connections, and declared queues that hold nothing.

1. Memory is the difference of the broker's resident size before and after, once it has settled, over the
   number of things opened.
2. The connections are closed and the queues deleted before the result is returned, unless `keep` asks to
   leave the queues.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from warren.perf import process_stats
from warren.perf.client import Address, PerfConnection, open_many, product_of

_SETTLE_LOOK_S: Final = 0.5
_SETTLE_MOST_S: Final = 10.0


@dataclass
class Footprint:
    """Time and memory of many things of one kind. Memory is absent without the broker's process id."""

    mode: str
    broker: str
    count: int
    seconds: float
    slowest_ms: float | None
    before: process_stats.ProcessSample | None
    after: process_stats.ProcessSample | None

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain values, for JSON."""
        found: dict[str, object] = {
            "mode": self.mode,
            "broker": self.broker,
            "count": self.count,
            "seconds": round(self.seconds, 3),
            "per_s": round(self.count / self.seconds, 1) if self.seconds else 0.0,
        }
        if self.slowest_ms is not None:
            found["slowest_ms"] = round(self.slowest_ms, 3)
        if self.before is not None and self.after is not None:
            found["broker_rss_before_bytes"] = self.before.rss_bytes
            found["broker_rss_after_bytes"] = self.after.rss_bytes
            found["broker_rss_bytes_each"] = round((self.after.rss_bytes - self.before.rss_bytes) / self.count, 1)
            found["broker_cpu_us_each"] = round((self.after.cpu_us - self.before.cpu_us) / self.count, 1)
        return found


def settled_sample(pid: int) -> process_stats.ProcessSample:
    """Return a sample once resident memory has changed by less than 1 % between two looks, at the latest
    after 10 s.
    """
    last = process_stats.sample(pid)
    until = time.monotonic() + _SETTLE_MOST_S
    while time.monotonic() < until:
        time.sleep(_SETTLE_LOOK_S)
        now = process_stats.sample(pid)
        if abs(now.rss_bytes - last.rss_bytes) * 100 < last.rss_bytes:
            return now
        last = now
    return last


def idle_connections(address: Address, count: int, *, pid: int = 0) -> Footprint:
    """Open ``count`` connections with one channel each, hold them while memory is read, close them.

    Raises BrokerError, also when this process may not open so many files.
    """
    with PerfConnection.open(address) as control:
        before = settled_sample(pid) if pid else None
        start = time.monotonic()
        opened = open_many(address, count)
        seconds = time.monotonic() - start
        try:
            after = settled_sample(pid) if pid else None
        finally:
            for connection in opened:
                connection.close()
        return Footprint("connections", product_of(control.server_properties), count, seconds, None, before, after)


def declared_queues(
    address: Address, count: int, *, durable: bool, pipelined: bool, prefix: str, keep: bool, pid: int = 0
) -> Footprint:
    """Declare ``count`` queues, all requests at once or each after the answer to the one before, and delete
    them unless ``keep``.

    Raises BrokerError.
    """
    queues = [f"{prefix}-{index}" for index in range(count)]
    slowest_ms: float | None = None
    with PerfConnection.open(address) as control:
        before = settled_sample(pid) if pid else None
        start = time.monotonic()
        if pipelined:
            control.declare_queues(queues, durable=durable)
        else:
            slowest_ms = 0.0
            last = start
            for queue in queues:
                control.declare_queue(queue, durable=durable)
                now = time.monotonic()
                slowest_ms = max(slowest_ms, (now - last) * 1000)
                last = now
        seconds = time.monotonic() - start
        after = settled_sample(pid) if pid else None
        if not keep:
            control.delete_queues(queues)
        return Footprint("declare", product_of(control.server_properties), count, seconds, slowest_ms, before, after)
