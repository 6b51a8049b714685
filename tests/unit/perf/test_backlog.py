"""backlog.py: numbered messages filled in, drained in order, passed through, against the small broker."""

from __future__ import annotations

import json
import os

import pytest
import typer
from typer.testing import CliRunner

from warren.amqp import methods
from warren.perf import backlog
from warren.perf.backlog import Backlog, Run
from warren.perf.choices import Mode
from warren.perf.client import Address, BrokerError, PerfConnection
from warren.perf.command import perf

from .small_broker import SmallBroker


def filled(address: Address, **changes: int) -> Backlog:
    """A backlog that lies in its queues."""
    work = Backlog(**{"messages": 3000, "confirms": 50, **changes})  # type: ignore[arg-type]
    Run(Mode.FILL, work, address).run()
    return work


def numbers_in(broker: SmallBroker, queue: str) -> list[int]:
    return [int.from_bytes(message.content[29:37], "big") for message in broker.queues[queue]]


@pytest.mark.parametrize("queues", [1, 3, 11, 1000])
def test_a_fill_leaves_every_message_in_its_queue_at_its_place(
    queues: int, broker: SmallBroker, address: Address
) -> None:
    work = filled(address, queues=queues)
    assert sorted(broker.queues) == work.queue_names
    for index, queue in enumerate(work.queue_names):
        places = range((work.messages - index + queues - 1) // queues)
        assert numbers_in(broker, queue) == [index << 40 | place for place in places]


@pytest.mark.parametrize("queues", [1, 3, 11])
@pytest.mark.parametrize("size", [8, 100, 5000])
def test_a_drain_receives_what_a_fill_left_and_deletes_the_queues(
    queues: int, size: int, broker: SmallBroker, address: Address
) -> None:
    broker.frame_max_bytes = 4096
    work = filled(address, queues=queues, size_bytes=size, messages=3000 if size <= 100 else 300)
    found = Run(Mode.DRAIN, work, address).run()
    assert (found.window.received, found.window.published) == (work.messages, 0)
    assert broker.queues == {}
    assert sum(1 for _, multiple in broker.acked if multiple) >= work.messages // work.ack_batch - queues


@pytest.mark.parametrize("queues", [1, 7])
def test_messages_pass_through_in_order_with_a_short_backlog(
    queues: int, broker: SmallBroker, address: Address
) -> None:
    found = Run(Mode.THROUGH, Backlog(messages=25_000, queues=queues, confirms=500), address).run()
    assert (found.window.received, found.window.confirmed) == (25_000, 25_000)
    assert broker.queues == {}


def test_a_prefetch_that_arrives_with_the_answer_to_consume_is_acknowledged(
    broker: SmallBroker, address: Address
) -> None:
    work = filled(address, messages=300, queues=30, prefetch=10, ack_batch=10)
    assert Run(Mode.DRAIN, work, address).run().window.received == 300
    assert broker.acked == [(10, 1)] * 30


def test_each_tenth_of_the_messages_has_a_rate(address: Address) -> None:
    work = Backlog(messages=5000, confirms=100, persistent=True, durable=True)
    found = Run(Mode.FILL, work, address, pid=os.getpid()).run().as_dict()
    rates = found["tenths_per_s"]
    assert isinstance(rates, list) and len(rates) == 10 and all(rate > 0 for rate in rates)
    assert found["broker_rss_most_bytes"] >= found["broker_rss_bytes"] > 0  # type: ignore[operator]


def test_a_drain_notices_a_lost_message(broker: SmallBroker, address: Address) -> None:
    work = filled(address)
    del broker.queues["perf-0"][1500]
    with pytest.raises(BrokerError, match="message 1501 of queue 0 where message 1500 of queue 0 was due"):
        Run(Mode.DRAIN, work, address).run()


def test_a_drain_notices_a_message_that_is_there_twice(broker: SmallBroker, address: Address) -> None:
    work = filled(address)
    broker.queues["perf-0"].insert(700, broker.queues["perf-0"][699])
    with pytest.raises(BrokerError, match="message 699 of queue 0 where message 700 of queue 0 was due"):
        Run(Mode.DRAIN, work, address).run()


def test_a_drain_notices_one_message_too_many(broker: SmallBroker, address: Address) -> None:
    work = filled(address, messages=100)
    broker.queues["perf-0"].append(broker.queues["perf-0"][99])
    with pytest.raises(BrokerError, match="message 99 of queue 0 where message 100 of queue 0 was due"):
        Run(Mode.DRAIN, work, address).run()


def test_a_drain_that_stands_still_says_what_is_missing(
    broker: SmallBroker, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_PATIENCE_NS", 100_000_000)
    work = filled(address, messages=100)
    broker.queues["perf-0"].pop()
    with pytest.raises(BrokerError, match="stands still: published 0, confirmed 0, received 99 of 100"):
        Run(Mode.DRAIN, work, address).run()


def test_the_oldest_message_is_got_whole_and_none_from_an_empty_queue(broker: SmallBroker, address: Address) -> None:
    broker.frame_max_bytes = 4096
    work = filled(address, messages=10, size_bytes=9000)
    with PerfConnection.open(address) as connection:
        body = connection.maybe_get(work.queue_name(0))
        assert body is not None
        assert (len(body), body[:8]) == (9000, bytes(8))
        connection.declare_queue("empty")
        assert connection.maybe_get("empty") is None


def test_a_refused_get_is_told_with_code_and_text(broker: SmallBroker, address: Address) -> None:
    broker.close_on, broker.close_code, broker.close_text = methods.BasicGet, 404, "NOT_FOUND - no queue 'q'"
    with PerfConnection.open(address) as connection, pytest.raises(BrokerError, match="404 NOT_FOUND - no queue 'q'"):
        connection.maybe_get("q")


def test_deleting_a_queue_tells_how_many_messages_were_in_it(address: Address) -> None:
    work = filled(address, messages=10)
    with PerfConnection.open(address) as connection:
        assert connection.delete_queue(work.queue_name(0)) == 10


@pytest.mark.parametrize(
    "changes", [{"messages": 2, "queues": 3}, {"size_bytes": 7}, {"prefetch": 10, "ack_batch": 11}], ids=str
)
def test_a_backlog_that_means_nothing_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Backlog(**{"messages": 10, **changes})  # type: ignore[arg-type]


def test_fill_and_drain_are_modes_of_the_command(broker: SmallBroker, address: Address) -> None:
    app = typer.Typer()
    app.command()(perf)
    arguments = [
        "--uri",
        f"amqp://{address}",
        "-n",
        "500",
        "-q",
        "2",
        "--ack-batch",
        "10",
        "--confirms",
        "20",
        "--json",
    ]
    for mode in ("fill", "drain"):
        done = CliRunner().invoke(app, [mode, *arguments])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["mode"] == mode
    assert broker.queues == {}
    refused = CliRunner().invoke(app, ["fill", "--uri", f"amqp://{address}", "-n", "500"])
    assert (refused.exit_code, refused.output) == (1, "warren perf: numbered messages are published with confirms\n")
