"""Objects with a past, what is forgotten and what is shown of it; over a real engine, with ticks by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.channels import fast_path
from warren.channels.channel import Channel
from warren.engine_view.counters import (
    CHANNEL_STATS,
    CONNECTION_FIELDS,
    EXCHANGE_STATS,
    LENGTHS,
    QUEUE_FIELDS,
    QUEUE_STATS,
    channel_counters,
    connection_counters,
    exchange_counters,
    queue_counters,
)
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import ChannelRef
from warren.mgmt_plugin.http import scheduler as scheduler_module
from warren.mgmt_plugin.metrics import statistics as statistics_module
from warren.mgmt_plugin.metrics.history import STEP_S
from warren.mgmt_plugin.metrics.statistics import (
    BROKER_FIELDS,
    CHURN,
    KEPT_MAX,
    Ranges,
    Statistics,
)
from warren.vhosts.metadata import VhostDelete, VhostPut


class Watched:
    """A broker in memory, its statistics, and a client with a channel."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.client: Client = self.harness.channel()
        self.view = EngineView(self.harness.broker, lambda: None)
        self.statistics = Statistics(self.view, lambda: (0, 0, 0, 0, 0))

    def tick(self) -> None:
        trio.run(self.statistics.sample)

    def queue(self, name: str) -> Any:
        return self.harness.queue(name)

    def of_queue(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        queue = self.queue(name)
        of = self.statistics.of(queue, QUEUE_FIELDS, queue_counters(queue))
        of.add(shown, LENGTHS, (60, 5))
        return shown | {"message_stats": of.message_stats(QUEUE_STATS)}


def samples_of(shown: dict[str, Any]) -> list[int]:
    return [sample["sample"] for sample in shown["messages_details"]["samples"]]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_has_done_nothing_has_no_past_and_rates_of_nothing(watched: Watched) -> None:
    watched.client.declare("q")
    watched.tick()
    watched.tick()
    shown = watched.of_queue("q")
    assert samples_of(shown) == [0] * 13 and shown["messages_details"]["rate"] == 0.0
    assert shown["message_stats"] == {}
    assert watched.queue("q") not in watched.statistics._kept


def test_what_changes_has_a_rate_of_the_last_tick(watched: Watched) -> None:
    watched.client.declare("q")
    watched.tick()
    for _ in range(10):
        watched.client.publish("", "q", b"x")
    watched.tick()
    shown = watched.of_queue("q")
    assert shown["messages"] == 10 and shown["messages_details"]["rate"] == 10 / STEP_S
    assert shown["message_stats"]["publish_details"]["rate"] == 10 / STEP_S
    assert watched.statistics.rate(watched.queue("q"), QUEUE_FIELDS, "publish") == 10 / STEP_S
    watched.client.publish("", "q", b"x")
    assert watched.of_queue("q")["messages"] == 11  # now, not at the last tick
    watched.tick()
    assert watched.of_queue("q")["messages_details"]["rate"] == 1 / STEP_S
    watched.tick()
    assert watched.of_queue("q")["messages_details"]["rate"] == 0
    assert samples_of(watched.of_queue("q")) == [11, 11, 10, *[0] * 10]


def test_the_channels_of_a_connection_are_looked_into_when_bytes_have_gone_over_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []

    counters = watched.view.connections.channel_counters

    def counting(channels: list[ChannelRef]) -> list[tuple[int, ...]]:
        looked.extend(channels)
        return counters(channels)

    monkeypatch.setattr(watched.view.connections, "channel_counters", counting)
    watched.client.declare("q")
    channel = watched.client.connection.channels[1]
    for _ in range(2):
        watched.tick()
    assert looked == [channel]
    watched.client.publish("", "q", b"x")
    watched.tick()
    assert looked == [channel, channel]
    assert watched.statistics.rate(channel, CHANNEL_STATS, "publish") == 1 / STEP_S
    watched.tick()
    assert watched.statistics.rate(channel, CHANNEL_STATS, "publish") == 0
    assert len(looked) == 2


def test_a_queue_with_a_backlog_from_before_has_no_burst_when_it_is_first_seen(watched: Watched) -> None:
    watched.client.declare("q")
    for _ in range(10):
        watched.client.publish("", "q", b"x")
    watched.tick()
    assert watched.of_queue("q")["messages_details"]["rate"] == 0


def test_who_is_looked_at_has_a_past_from_then_on(watched: Watched) -> None:
    watched.client.declare("q")
    watched.tick()
    watched.statistics.watch(watched.queue("q"), QUEUE_FIELDS)
    assert samples_of(watched.of_queue("q")) == [0] * 13
    watched.tick()
    watched.client.publish("", "q", b"x")
    watched.tick()
    assert samples_of(watched.of_queue("q")) == [1, *[0] * 12]


def test_exchanges_channels_and_connections_are_sampled_too(watched: Watched) -> None:
    watched.client.declare("q")
    watched.tick()
    for _ in range(5):
        watched.client.publish("amq.fanout", "k", b"x")
    watched.tick()
    broker = watched.harness.broker
    exchange = broker.vhosts["/"].exchanges["amq.fanout"]
    connection = watched.client.connection
    channel = connection.channels[1]
    assert isinstance(channel, Channel)
    statistics = watched.statistics
    assert statistics.rate(exchange, EXCHANGE_STATS, "publish_in") == 5 / STEP_S
    assert statistics.rate(channel, CHANNEL_STATS, "publish") == 5 / STEP_S
    assert statistics.rate(connection, CONNECTION_FIELDS, "recv_oct") > 0
    rows: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
        (QUEUE_FIELDS, queue_counters(watched.queue("q"))),
        (EXCHANGE_STATS, exchange_counters(exchange)),
        (CHANNEL_STATS, channel_counters(channel)),
        (CONNECTION_FIELDS, connection_counters(connection)),
        (BROKER_FIELDS, statistics.broker_row([0, 0, 0])),
    ]
    for fields, row in rows:
        assert len(fields) == len(row) and all(type(value) is int for value in row)


def test_an_exchange_and_a_connection_have_a_past_of_an_hour(watched: Watched) -> None:
    exchange = watched.harness.broker.vhosts["/"].exchanges["amq.fanout"]
    connection = watched.client.connection
    ticks = 3600 // STEP_S + 24
    for _ in range(ticks):
        watched.client.publish("amq.fanout", "k", b"x")
        watched.tick()
    for item, fields, row, name in (
        (exchange, EXCHANGE_STATS, exchange_counters(exchange), "publish_in"),
        (connection, CONNECTION_FIELDS, connection_counters(connection), "recv_oct"),
    ):
        shown: dict[str, Any] = {}
        watched.statistics.of(item, fields, row).add(shown, (name,), (3600, 60))
        samples = [sample["sample"] for sample in shown[f"{name}_details"]["samples"]]
        assert len(samples) == 61
        apart = {newer - older for newer, older in pairwise(samples)}
        assert len(apart) == 1 and apart.pop() > 0


def test_an_exchange_that_rests_keeps_its_row_until_it_goes(watched: Watched) -> None:
    client = watched.client
    client.call(1, m.ExchangeDeclare(0, "x", "fanout", False, False, False, False, False, b"\0\0\0\0"))
    exchange = watched.harness.broker.vhosts["/"].exchanges["x"]
    statistics = watched.statistics
    watched.tick()
    client.publish("x", "k", b"x")
    for rate in (1 / STEP_S, 0.0, 0.0):
        watched.tick()
        assert statistics.rate(exchange, EXCHANGE_STATS, "publish_in") == rate
        assert statistics._seen[exchange] == exchange_counters(exchange)
    client.publish("x", "k", b"x")
    watched.tick()
    assert statistics.rate(exchange, EXCHANGE_STATS, "publish_in") == 1 / STEP_S
    client.call(1, m.ExchangeDelete(0, "x", False, False))
    watched.tick()
    assert exchange not in statistics._seen and exchange not in statistics._changed_ms
    assert exchange not in statistics._kept


@pytest.mark.parametrize(
    "end",
    [
        lambda watched: watched.client.call(1, m.QueueDelete(0, "q", False, False, False)),
        lambda watched: watched.client.hang_up(),
    ],
    ids=["deleted", "connection lost"],
)
def test_what_has_gone_is_forgotten_at_the_next_tick(watched: Watched, end: Callable[[Watched], object]) -> None:
    other = watched.harness.channel()
    watched.client.call(1, m.QueueDeclare(0, "q", False, False, True, False, False, b"\0\0\0\0"))
    for _ in range(3):
        watched.client.publish("", "q", b"x")
        watched.tick()
    queue = watched.queue("q")
    assert queue in watched.statistics._kept
    end(watched)
    watched.tick()
    assert queue not in watched.statistics._kept and queue not in watched.statistics._queue_rows
    other.declare("q")
    watched.tick()
    assert samples_of(watched.of_queue("q")) == [0] * 13


def test_nothing_that_has_gone_is_held_in_memory(watched: Watched) -> None:
    sizes = []
    for _ in range(4):
        for number in range(50):
            client = watched.harness.channel()
            client.call(1, m.QueueDeclare(0, f"q{number}", False, False, True, False, False, b"\0\0\0\0"))
            client.publish("", f"q{number}", b"x")
            watched.tick()
            client.hang_up()
        watched.tick()
        statistics = watched.statistics
        rows = len(statistics._seen) + len(statistics._queue_rows) + len(statistics._changed_ms)
        sizes.append((len(statistics._kept), rows, len(statistics._vhost_series)))
    assert sizes[0] == sizes[-1]


@pytest.mark.skipif(
    not str(fast_path.__file__).endswith(".so"), reason="the calls within the interpreted engine count too"
)
def test_idle_queues_cost_less_than_a_call_each(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    # Giving way takes calls, too, and how often that is depends on the machine.
    monkeypatch.setattr(scheduler_module, "SLICE_S", float("inf"))

    def calls_of_a_tick(queues: int) -> int:
        for number in range(queues):
            watched.client.declare(f"q{number}")
        watched.tick()
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            watched.tick()
        finally:
            sys.setprofile(None)
        return calls

    few = calls_of_a_tick(1000)
    assert calls_of_a_tick(3000) - few < 200
    watched.client.publish("", "q7", b"x")
    watched.tick()
    assert watched.statistics.rate(watched.queue("q7"), QUEUE_FIELDS, "publish") == 1 / STEP_S


def test_a_queue_in_the_place_of_one_that_has_gone_is_sampled(watched: Watched) -> None:
    client = watched.client
    client.declare("gone")
    client.publish("", "gone", b"x")
    watched.tick()
    client.call(1, m.QueueDelete(0, "gone", False, False, False))
    for name in ("new", "gone"):
        client.declare(name)
        watched.tick()
        client.publish("", name, b"x")
        watched.tick()
        assert watched.statistics.rate(watched.queue(name), QUEUE_FIELDS, "publish") == 1 / STEP_S
        client.call(1, m.QueueDelete(0, name, False, False, False))
    watched.tick()
    assert watched.statistics._queue_rows == {}


def test_vhosts_come_and_go(watched: Watched) -> None:
    broker = watched.harness.broker
    broker.administer(VhostPut("other"), "")
    watched.tick()
    assert set(watched.statistics._vhost_series) == {"/", "other"}
    broker.administer(VhostDelete("other"), "")
    watched.tick()
    assert set(watched.statistics._vhost_series) == {"/"}


def test_so_many_have_a_past_and_no_more(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_MAX >= 1000
    monkeypatch.setattr(statistics_module, "KEPT_MAX", 5)
    monkeypatch.setattr(statistics_module, "REST_TICKS", 0)
    names = [f"q{number}" for number in range(20)]
    for name in names:
        watched.client.declare(name)
    watched.tick()
    for name in names:
        watched.client.publish("", name, b"x")
        watched.tick()
        assert len(watched.statistics._kept) <= 5
        # Without a past of its own it has a rate.
        assert watched.of_queue(name)["messages_details"]["rate"] == 1 / STEP_S
    # The channel, the connection and the default exchange never rest; the first queues do.
    assert watched.queue("q19") in watched.statistics._kept
    assert watched.queue("q0") not in watched.statistics._kept
    # A queue that somebody looks at takes a place in any case.
    watched.statistics.watch(watched.queue("q0"), QUEUE_FIELDS)
    assert watched.queue("q0") in watched.statistics._kept
    assert len(watched.statistics._kept) == 5


def test_the_broker_and_its_vhosts_always_have_a_past(watched: Watched) -> None:
    watched.tick()
    watched.client.declare("q")
    for _ in range(5):
        watched.client.publish("", "q", b"x")
    watched.tick()
    lengths = (5, 5, 0)
    for shown in (watched.statistics.of_broker(lengths), watched.statistics.of_vhost("/", lengths)):
        told: dict[str, Any] = {}
        shown.add(told, LENGTHS, (60, 5))
        assert told["messages"] == 5 and told["messages_details"]["rate"] == 1.0
        assert samples_of(told) == [5, *[0] * 12]
        assert shown.message_stats(CHANNEL_STATS)["publish_details"]["rate"] == 1.0
    churn: dict[str, Any] = {}
    watched.statistics.of_broker(lengths).add(churn, CHURN)
    assert churn["queue_declared"] == 1 and churn["queue_declared_details"]["rate"] == 1 / STEP_S


def test_totals_of_some_vhosts_are_their_sums(watched: Watched) -> None:
    broker = watched.harness.broker
    broker.administer(VhostPut("other"), "")
    watched.client.declare("q")
    watched.client.publish("", "q", b"x")
    vhosts = ["/", "other"]
    told: dict[str, Any] = {}
    shown = watched.statistics.of_vhosts(vhosts, [1, 1, 0])
    shown.add(told, LENGTHS)
    assert told["messages"] == 1 and shown.message_stats(CHANNEL_STATS)["publish"] == 1
    watched.statistics.of_vhosts([], [0, 0, 0]).add(told, LENGTHS)
    assert told["messages"] == 0


def test_counts_of_what_has_gone_stay_in_the_totals(watched: Watched) -> None:
    watched.client.declare("q")
    for _ in range(5):
        watched.client.publish("", "q", b"x")
    watched.client.call(1, m.QueueDelete(0, "q", False, False, False))
    before = watched.statistics.broker_row([0, 0, 0])
    watched.client.hang_up()
    after = watched.statistics.broker_row([0, 0, 0])
    at = BROKER_FIELDS.index("publish")
    assert before[at] == after[at] == 5


@pytest.mark.parametrize(
    ("query", "lengths"),
    [
        ({}, (0, 0)),
        ({"lengths_age": "60", "lengths_incr": "5"}, (60, 5)),
        ({"lengths_age": "60"}, (0, 0)),
        ({"lengths_age": "x", "lengths_incr": "5"}, (0, 0)),
        ({"lengths_age": "-60", "lengths_incr": "5"}, (0, 0)),
        ({"lengths_age": "60", "lengths_incr": "0"}, (0, 0)),
    ],
)
def test_ranges_that_make_no_sense_are_none(query: dict[str, str], lengths: tuple[int, int]) -> None:
    assert Ranges.of(query).lengths == lengths


def test_sampling_goes_on_at_its_steps(watched: Watched) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watched.statistics.run)
            await trio.sleep(10 * STEP_S + 1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert watched.statistics.clock.tick == 11


def test_rates_are_right_while_samples_are_taken(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many queues that takes long, and lists are asked for meanwhile."""
    rates: list[float] = []

    async def look() -> None:
        rates.append(watched.statistics.rate(watched.queue("q"), QUEUE_FIELDS, "publish"))
        rates.append(watched.of_queue("q")["message_stats"]["publish_details"]["rate"])

    watched.client.declare("q")
    for _ in range(2):
        watched.client.publish("", "q", b"x")
        watched.tick()
    monkeypatch.setattr(statistics_module, "give_way", look)
    watched.client.publish("", "q", b"x")
    watched.tick()
    assert len(rates) > 2 and set(rates) == {1 / STEP_S}


def test_a_node_that_cannot_be_asked_spoils_nothing_else(watched: Watched) -> None:
    """No descriptor is left, for one: exchanges that come meanwhile have rates, then and later."""

    def refused() -> tuple[int, ...]:
        raise OSError(24, "Too many open files")

    watched.statistics.node_row = refused
    watched.client.declare_exchange("x", "fanout")
    watched.tick()
    watched.statistics.node_row = lambda: (0, 0, 0, 0, 0)
    watched.tick()
    watched.client.publish("x", "", b"x")
    watched.tick()
    exchange: Any = watched.harness.broker.vhosts["/"].exchanges["x"]
    shown = watched.statistics.of(exchange, EXCHANGE_STATS, exchange_counters(exchange))
    assert shown.message_stats(EXCHANGE_STATS)["publish_in_details"]["rate"] == 1 / STEP_S


def test_the_more_a_list_has_the_fewer_samples_each_item_gets() -> None:
    query = {"lengths_age": "100000", "lengths_incr": "5"}
    for items, most in ((1, 20_001), (1000, 100), (10_000, 10), (1_000_000, 2)):
        age_s, incr_s = Ranges.of(query, items).lengths
        assert age_s // incr_s + 1 == most
    assert Ranges.of(query | {"page": "1"}, 1_000_000).lengths == Ranges.of(query, 500).lengths


def test_the_age_of_the_oldest_message_and_growth_follow_from_the_counts(watched: Watched) -> None:
    watched.client.declare("q")
    watched.tick()
    watched.client.feed(publish_frames("", "q", b"m") * 3)
    queue = watched.queue("q")

    def oldest_ms() -> tuple[int, bool]:
        return watched.statistics.oldest_ms(queue, int(queue.message_count), int(queue.counts().publish))

    def grown(span_s: int) -> int:
        return watched.statistics.grown(queue, int(queue.message_count), span_s)

    assert oldest_ms()[0] == 0
    for _ in range(11):
        watched.tick()
    watched.client.feed(publish_frames("", "q", b"m") * 2)
    watched.tick()
    assert oldest_ms() == (11 * STEP_S * 1000, False)
    assert (grown(600), grown(30)) == (5, 2)
    statistics = watched.statistics
    now_ms, tick_ms = statistics.clock.time_ms, STEP_S * 1000
    arrived = [statistics.maybe_arrived_ms(queue, came_before) for came_before in range(5)]
    assert arrived == [now_ms - 11 * tick_ms] * 3 + [now_ms] * 2
    for _ in range(3):
        watched.client.send(1, m.BasicGet(0, "q", True))
    assert oldest_ms() == (0, False)
    assert grown(30) == -1
    watched.client.feed(publish_frames("", "q", b"m"))
    for _ in range(2):
        watched.client.send(1, m.BasicGet(0, "q", True))
    assert oldest_ms() == (0, False), "it came after the last tick"


def test_messages_from_before_the_first_tick_are_at_least_as_old_as_that(watched: Watched) -> None:
    watched.client.declare("q")
    watched.client.feed(publish_frames("", "q", b"m") * 3)
    for _ in range(4):
        watched.tick()
    assert watched.statistics.oldest_ms(watched.queue("q"), 3, 3) == (3 * STEP_S * 1000, True)
    assert watched.statistics.maybe_arrived_ms(watched.queue("q"), 0) is None
