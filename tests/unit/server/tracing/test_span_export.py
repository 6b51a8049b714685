"""How spans leave the broker. The numbers in parentheses are those of ``span_export.py``."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing
from engine_harness import Harness

from warren.amqp.field_table import encode_table
from warren.channels.spans import SPANS_MOST, Span, Spans
from warren.server.tracing import span_export
from warren.server.tracing.span_export import AT_ONCE, LAST_WORDS_S, SpanExport

SAMPLED = encode_table({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
TEST_DEADLINE_S = 30


class Sender:
    """A collector that says `answer`, and none of it before `may_answer`."""

    def __init__(self) -> None:
        self.answer = ""
        self.requests: list[int] = []
        self.closed = False
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def send(self, spans: Sequence[Span]) -> str:
        self.asked.set()
        self.may_answer.wait(TEST_DEADLINE_S)
        self.requests.append(len(spans))
        return self.answer

    def close(self) -> None:
        self.closed = True
        self.may_answer.set()


class Exporting:
    """An engine whose spans go to a sender."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.spans = self.harness.broker.shared.spans = Spans(1.0)
        self.client = self.harness.channel()
        self.sender = Sender()
        self.export = SpanExport(self.spans, self.sender)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.client.publish("", "nowhere", b"x", headers=SAMPLED)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(TEST_DEADLINE_S):
            while not condition():
                await trio.sleep(0.01)

    async def while_it_runs(self, work: Callable[[], Awaitable[object]]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.export.run)
            await work()
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "LOOK_EVERY_S", 0.01)


def test_everything_is_sent_in_requests_of_a_bounded_size() -> None:
    exporting = Exporting()
    exporting.publish(2 * AT_ONCE + 3)
    trio.run(exporting.while_it_runs, lambda: exporting.until(lambda: exporting.export.exported == 2 * AT_ONCE + 3))
    assert exporting.sender.requests == [AT_ONCE, AT_ONCE, 3]
    assert (exporting.export.failed, exporting.export.dropped, exporting.export.waiting) == (0, 0, 0)


def test_while_a_collector_does_not_answer_the_engine_goes_on_and_what_is_too_much_is_counted() -> None:
    """(1)"""
    exporting = Exporting()
    exporting.sender.may_answer.clear()

    async def work() -> None:
        exporting.publish(1)
        await exporting.until(exporting.sender.asked.is_set)
        exporting.publish(SPANS_MOST + 5)  # nobody waits
        assert (exporting.export.waiting, exporting.export.dropped) == (SPANS_MOST, 5)
        exporting.sender.may_answer.set()
        await exporting.until(lambda: exporting.export.exported == SPANS_MOST + 1)

    trio.run(exporting.while_it_runs, work)


def test_what_cannot_be_sent_is_lost_and_counted_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """(1)"""
    exporting = Exporting()
    exporting.sender.answer = "503: full"

    async def work() -> None:
        for count in (2, 5):
            exporting.publish(count - exporting.export.failed)
            await exporting.until(lambda: exporting.export.failed == count)  # noqa: B023

    trio.run(exporting.while_it_runs, work)
    assert exporting.export.exported == 0
    said = [record.getMessage() for record in caplog.records if record.name == "warren.tracing"]
    assert len(said) == 1 and "could not be sent" in said[0]


def test_a_broker_that_stops_sends_what_waits() -> None:
    """(3)"""
    exporting = Exporting()
    exporting.publish(AT_ONCE + 1)
    trio.run(exporting.export.finish)
    assert exporting.export.exported == AT_ONCE + 1
    assert exporting.sender.closed


def test_a_broker_that_stops_does_not_wait_for_a_collector_that_hangs() -> None:
    """(3)"""
    exporting = Exporting()
    exporting.publish(1)
    exporting.sender.may_answer.clear()

    async def stop() -> None:
        began_s = trio.current_time()
        await exporting.export.finish()
        assert trio.current_time() - began_s >= LAST_WORDS_S

    trio.run(stop, clock=trio.testing.MockClock(rate=10))
    assert exporting.sender.closed
    assert (exporting.export.exported, exporting.export.failed) == (0, 1)
