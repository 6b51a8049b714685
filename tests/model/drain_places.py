"""A broker with drains, in which a test is every reader, that dies and starts again when it is told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import trio
from column_rows import rows_of
from engine_harness import body_of, publish_frames
from simulation.small_store import Shape

from warren.amqp import methods as m
from warren.channels.broker import Broker
from warren.engine_view.engine_view import EngineView
from warren.queues.claim_names import claims_name
from warren.queues.claims import ClaimQueue
from warren.server.draining.claim_verdicts import Failed
from warren.server.draining.drains import Drain, Drains, Opened
from warren.server.management import Management

from .restarting_broker import RestartingBroker
from .test_claims import read_columns, rest

START_MS: Final = 1_700_000_000_000
Result = TypeVar("Result")


class Killed(Exception):
    """The broker dies in the middle of a call."""


class Desk:
    """The part of the broker's management that drains need. `between`: called where others would have their turn.

    `lives`: how many turns there are until the broker dies, negative: it does not.
    """

    def __init__(self, harness: RestartingBroker) -> None:
        self.harness = harness
        self.stopping = False
        self.lives = -1
        self.between: Callable[[], None] = lambda: None
        self.view = EngineView(harness.broker, self.settle)

    @property
    def broker(self) -> Broker:
        return self.harness.broker

    @property
    def messages(self) -> Desk:
        return self

    def settle(self) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        self.harness.settle()
        self.between()

    async def deleted(self) -> None:
        self.settle()
        rest(self.harness)
        self.settle()

    async def commit(self, ticket: int) -> None:
        self.settle()


class Place:
    """A broker with a queue, and its drains."""

    def __init__(self, memory_bytes: int = 128 << 20, **arguments: Any) -> None:
        self.broker = RestartingBroker(Shape(1 << 17, 4), START_MS, memory_bytes)
        self.client = self.broker.channel()
        self.client.declare("q", durable=True, arguments=arguments)
        self.published = 0
        self.clock_s = 1000.0
        self.silent_since_s = 0.0  # the reader of session c
        self._begin()

    def _begin(self) -> None:
        self.desk = Desk(self.broker)
        self.drains = Drains(cast(Management, self.desk), clock=lambda: self.clock_s)

    def start_again(self) -> None:
        """Start again: everything that was not synced is lost."""
        self.broker.start()
        self.client = self.broker.channel()
        self._begin()
        self.broker.settle()
        self.drains.begin_leases()
        self.silent_since_s = self.clock_s

    def publish(self, count: int, **properties: Any) -> list[bytes]:
        bodies = [b"%d" % number for number in range(self.published, self.published + count)]
        self.published += count
        given = {"delivery_mode": 2} | properties
        self.client.feed(b"".join(publish_frames("", "q", body, properties=given) for body in bodies))
        rest(self.broker)
        return bodies

    def drain(self, consumer: str = "c") -> Drain:
        return Drain(self.broker.vhost.name, "q", consumer)

    def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            return await work()

        return trio.run(run)

    def open(self, consumer: str = "c", lease_s: int | None = None) -> Opened:
        self.silent_since_s = self.clock_s
        return self.call(lambda: self.drains.open(self.drain(consumer), "", "guest", lease_s))

    def claim(self, epoch: int, after: int, most: int, consumer: str = "c", **more: Any) -> tuple[int, int]:
        max_bytes, until = more.get("max_bytes"), more.get("until")
        found = self.call(lambda: self.drains.claim(self.drain(consumer), epoch, after, most, max_bytes, until))
        self.silent_since_s = self.clock_s
        return found

    def release(self, epoch: int | None, consumer: str = "c") -> int:
        return self.call(lambda: self.drains.release(self.drain(consumer), epoch))

    def fail(self, epoch: int, first: int, end: int) -> Failed:
        return self.call(lambda: self.drains.fail(self.drain(), epoch, first, end))

    def delete(self, consumer: str = "c", *, discard: bool = False, epoch: int | None = None) -> None:
        self.call(lambda: self.drains.delete(self.drain(consumer), "guest", discard=discard, epoch=epoch))

    def pass_time(self, seconds: float) -> float:
        """Advance the time without calls, so that leases end; return when the next one may end."""
        self.clock_s += seconds
        return self.call(self.drains.end_leases)

    def lease_s(self) -> int | None:
        """Return the lease of session c, as it is listed."""
        return self.drains.listed(self.drains.claims_of(self.drain())).note.lease_s

    def claims(self, consumer: str = "c") -> ClaimQueue:
        """Return the claims of a session, whose oldest number is known."""
        claims = self.broker.vhost.queues[claims_name("q", consumer)]
        assert isinstance(claims, ClaimQueue)
        claims.find_first(lambda number: None)
        rest(self.broker)
        return claims

    def claimed(self) -> list[bytes]:
        """Return the bodies of what is claimed and not acknowledged."""
        if claims_name("q", "c") not in self.broker.vhost.queues:
            return []
        claims = self.claims()
        return self.rows(claims.first_offset(), claims.synced_end())

    def rows(self, first: int, end: int, consumer: str = "c") -> list[bytes]:
        """Return the bodies of claims; all must be there."""
        claims = self.claims(consumer)
        assert claims.first_offset() <= first and end <= claims.synced_end()
        found: list[bytes] = []
        at = first
        while at < end:
            columns, following = read_columns(self.broker, claims, at, end)
            rows = rows_of(b"".join(columns.encode()))
            assert [row.offset for row in rows] == list(range(at, following))
            found += [row.body for row in rows]
            at = following
        return found

    def got(self, queue: str = "q") -> list[bytes]:
        """Take everything out of a queue."""
        found: list[bytes] = []
        while True:
            self.client.send(1, m.BasicGet(0, queue, True))
            received = self.client.take()
            if not received:
                rest(self.broker)
                received = self.client.take()
            (answer,) = received
            if isinstance(answer.method, m.BasicGetEmpty):
                return found
            found.append(body_of(answer))
