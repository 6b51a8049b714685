"""Claims of tests about queues and consumers: they wait as long as they have to, and say what there was instead."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pika
import pytest
import trio

from warren.testing import Broker, Death, Properties

from .conftest import Open
from .test_plugin import run


def failure(claim: Callable[[], object]) -> list[str]:
    """Return the lines of what a claim says that is wrong."""
    with pytest.raises(AssertionError) as failed:
        claim()
    return str(failed.value).splitlines()


def test_what_waits_in_a_queue_is_found_like_what_was_published(broker: Broker) -> None:
    broker.declare_queue("q")
    broker.publish("", "q", '{"id": 1}', properties=Properties(headers={"kind": "a"}))
    broker.publish("", "q", "two")
    assert [message.text for message in broker.assert_queued("q")] == ['{"id": 1}', "two"]
    assert len(broker.assert_queued("q", body={"id": 1}, headers={"kind": "a"}, count=1)) == 1
    assert broker.assert_queued("q", body="three", count=0) == []
    assert failure(lambda: broker.assert_queued("q", body="three", within_s=0)) == [
        "no message waits in queue 'q' with body='three' (within 0 s).",
        "Waiting, 2 in all:",
        "  1. exchange='' routing_key='q' body=b'{\"id\": 1}' headers={'kind': 'a'}   <- differs in body",
        "  2. exchange='' routing_key='q' body=b'two'   <- differs in body",
    ]
    assert failure(lambda: broker.assert_queued("q", count=1, within_s=0))[0] == (
        "1 message should be waiting in queue 'q', but 2 are (within 0 s)."
    )


def test_messages_that_are_out_or_held_are_told_of_too(broker: Broker, opened: Open) -> None:
    channel = opened("worker")
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"out")
    channel.basic_publish("", "q", b"later", pika.BasicProperties(headers={"x-delay": 60_000}))
    channel.basic_get("q")
    view = broker.queue("q")
    assert (view.delayed, view.parked, view.unacked) == (1, 0, 1)
    assert failure(lambda: broker.assert_queued("q", within_s=0)) == [
        "no message waits in queue 'q' (within 0 s).",
        "Nothing waits there.",
        "Beside these: 1 unacked, 1 delayed.",
    ]
    assert failure(lambda: broker.assert_queue_empties("q", within_s=0)) == [
        "queue 'q' did not become empty: 1 unacked, 1 delayed (within 0 s).",
        "It has no consumer.",
    ]


def test_a_queue_that_a_consumer_empties_in_time_is_waited_for(broker: Broker, opened: Open) -> None:
    broker.declare_queue("q")
    broker.publish("", "q", "x")
    channel = opened()
    channel.basic_consume("q", lambda ch, method, *_: ch.basic_ack(method.delivery_tag), consumer_tag="mine")
    lines = failure(lambda: broker.assert_queue_empties("q", within_s=0))
    assert lines == ["queue 'q' did not become empty: 1 unacked (within 0 s).", "Its consumers: mine."]
    consumer = threading.Timer(0.05, channel.connection.process_data_events, (5,))
    consumer.start()
    broker.assert_queue_empties("q", within_s=30)
    consumer.join()


def test_a_queue_that_does_not_exist_is_said_not_to(broker: Broker) -> None:
    broker.declare_queue("other")
    assert failure(lambda: broker.assert_queue_empties("q", within_s=0)) == [
        "queue 'q' should be empty, but does not exist (within 0 s).",
        "Queues in vhost '/': 'other'.",
    ]
    assert failure(lambda: broker.assert_queued("q", within_s=0)) == [
        "queue 'q' should have messages, but does not exist (within 0 s).",
        "Queues in vhost '/': 'other'.",
    ]


def test_consumers_are_waited_for(broker: Broker, opened: Open) -> None:
    broker.declare_queue("q")
    channel = opened("worker")
    assert failure(lambda: broker.assert_consumed("q", within_s=0)) == [
        "queue 'q' has no consumer (within 0 s).",
        "Connections: 'worker'.",
    ]
    consumer = threading.Timer(0.05, lambda: channel.basic_consume("q", lambda *_: None, consumer_tag="mine"))
    consumer.start()
    assert broker.assert_consumed("q", count=1, within_s=30) == ("mine",)
    consumer.join()
    assert failure(lambda: broker.assert_consumed("q", count=2, within_s=0))[:2] == [
        "queue 'q' should have 2 consumers, but has 1 (within 0 s).",
        "Consumers: mine.",
    ]


def test_dead_letters_are_found_by_where_and_why_they_died(broker: Broker, opened: Open) -> None:
    broker.declare_queue("dead")
    to_dead: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    broker.declare_queue("jobs", arguments=to_dead)
    broker.publish("", "dead", "no letter")
    assert failure(lambda: broker.assert_dead_lettered("jobs", within_s=0)) == [
        "no message was dead-lettered by queue 'jobs' (within 0 s).",
        "No dead letter waits in any queue.",
    ]
    broker.publish("", "jobs", "bad")
    channel = opened()
    method, _, _ = channel.basic_get("jobs")
    assert method is not None and method.delivery_tag is not None
    channel.basic_reject(method.delivery_tag, requeue=False)
    (letter,) = broker.assert_dead_lettered("jobs", reason="rejected", to="dead", body="bad", count=1, within_s=30)
    assert letter.deaths == (Death(queue="jobs", reason="rejected", count=1, exchange="", routing_keys=("jobs",)),)
    assert failure(lambda: broker.assert_dead_lettered("jobs", reason="expired", within_s=0)) == [
        "no message was dead-lettered by queue 'jobs' as expired (within 0 s).",
        "Dead letters, 1 in all:",
        f"  in queue 'dead': {letter}, rejected in 'jobs'",
    ]
    assert failure(lambda: broker.assert_dead_lettered("jobs", to="other", within_s=0)) == [
        "no message was dead-lettered by queue 'jobs' to queue 'other' (within 0 s).",
        "No dead letter waits there.",
    ]


def run_asyncio(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(bounded())


def run_trio(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await work()

    trio.run(bounded)


@pytest.mark.parametrize("run_loop", [run_asyncio, run_trio])
def test_an_event_loop_goes_on_while_a_claim_is_awaited(
    broker: Broker, run_loop: Callable[[Callable[[], Awaitable[None]]], None]
) -> None:
    sleep = asyncio.sleep if run_loop is run_asyncio else trio.sleep
    broker.declare_queue("dead")
    broker.declare_queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    seen: list[str] = []

    def looked() -> bool:
        # Called again and again, and what runs beside has its turns in between.
        seen.append("look")
        return seen.count("tick") > 3

    async def ticks(is_over: Callable[[], bool]) -> None:
        while not is_over():
            seen.append("tick")
            await sleep(0.001)

    async def scenario() -> None:
        over: list[bool] = []
        if run_loop is run_asyncio:
            beside = asyncio.create_task(ticks(lambda: bool(over)))
            await broker.aio.wait_until(looked, 30)
            over.append(True)
            await beside
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ticks, lambda: bool(over))
                await broker.aio.wait_until(looked, 30)
                over.append(True)
        with pytest.raises(AssertionError, match=r"^a wonder did not become true \(within 0 s\)\.$"):
            await broker.aio.wait_until(lambda: False, 0, "a wonder")
        with pytest.raises(AssertionError, match="no message was published with body='x'"):
            await broker.aio.assert_published(body="x", within_s=0)
        with pytest.raises(AssertionError, match="has no consumer"):
            await broker.aio.assert_consumed("q", within_s=0)
        broker.publish("", "q", "x")
        assert [message.text for message in await broker.aio.assert_queued("q", count=1)] == ["x"]
        with pytest.raises(AssertionError, match="no message was dead-lettered"):
            await broker.aio.assert_dead_lettered("q", within_s=0)
        broker.queue("q").purge()
        await broker.aio.assert_queue_empties("q")

    run_loop(scenario)


FAILS = """
def test_nobody_publishes(warren_broker):
    warren_broker.assert_published(exchange="orders", within_s=0)


def test_nobody_does_on_a_loop_either(warren_broker):
    import trio

    async def scenario():
        await warren_broker.aio.assert_published(exchange="orders", within_s=0)

    trio.run(scenario)
"""


@pytest.mark.long
def test_pytest_shows_the_line_of_the_test(tmp_path: Path) -> None:
    output = run(tmp_path, test_suite_py=FAILS)
    assert "2 failed" in output
    assert ">       await warren_broker.aio.assert_published(" in output
    assert ">       warren_broker.assert_published(" in output
    assert "assertions.py" not in output


UNITTEST = """
import unittest

import pika

from warren.testing import BrokerTestCase


class TestOrders(BrokerTestCase):
    broker_options = {"vhosts": ["shop"]}

    def test_one(self):
        self.assertFalse(self.broker.queue("q").exists)
        self.broker.declare_queue("q")

    test_two = test_one

    def test_that_fails(self):
        self.broker.assert_published(exchange="orders", within_s=0)


class TestOnALoop(BrokerTestCase, unittest.IsolatedAsyncioTestCase):
    async def test_it(self):
        self.broker.declare_queue("q")
        await self.broker.aio.assert_queue_empties("q")


class TestWithCleanUps(BrokerTestCase):
    def setUp(self):
        connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
        self.addCleanup(connection.close)

    def test_it(self):
        self.assertEqual(len(self.broker.connections), 1)
"""


@pytest.mark.long
def test_unittest_has_a_broker_for_each_class_that_is_empty_in_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(UNITTEST)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-q", "test_suite"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(root)},
        timeout=120,
    )
    assert "Ran 5 tests" in done.stderr
    assert "FAILED (failures=1)" in done.stderr, done.stderr
    assert 'self.broker.assert_published(exchange="orders", within_s=0)' in done.stderr
    assert "assertions.py" not in done.stderr
