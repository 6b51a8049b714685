"""Messages of the broker whose routing takes too many steps: own_publishes (4), dead_lettering (7)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.exchanges.content import STEPS_MAX
from warren.queues.lanes import UNDELIVERED

KEYS = 1900  # a letter tells of all of them once more
EXCHANGES = STEPS_MAX // KEYS + 1
COPIES = [str(number) for number in range(KEYS)]
DURABLE = {"delivery_mode": 2}
RETRY_S = 61


class Meeting:
    """Exchange ``x``, whose messages meet so many others that one with many keys cannot be routed.

    Queue ``near`` is bound to it, and ``far`` to the last exchange that it leads to.
    """

    def __init__(self, exchange: str = "x", kind: str = "fanout", arguments: dict[str, Any] | None = None) -> None:
        self.harness = DurableHarness()
        self.client: Client = self.harness.channel()
        self.exchange = exchange
        calls: list[Any] = [exchange_declare(exchange, kind, durable=True, arguments=arguments or {})]
        calls += [queue_declare(name, durable=True) for name in ("near", "far")]
        calls.append(m.QueueBind(0, "near", exchange, "", False, EMPTY_TABLE))
        for number in range(EXCHANGES):
            calls.append(exchange_declare(f"x{number}", "fanout", durable=True))
            calls.append(m.ExchangeBind(0, f"x{number}", exchange, "", False, EMPTY_TABLE))
        calls.append(m.QueueBind(0, "far", f"x{EXCHANGES - 1}", "", False, EMPTY_TABLE))
        self.client.send(1, *calls)
        self.client.take_bytes()

    def publish(self, exchange: str, key: str, body: bytes, **headers: Any) -> None:
        properties = {"headers": encode_table({"CC": COPIES, **headers}), **DURABLE}
        self.client.feed(publish_frames(exchange, key, body, properties=properties))
        self.harness.write()

    def counts(self) -> tuple[int, int]:
        queues = self.harness.vhost.queues
        return int(queues["near"].message_count), int(queues["far"].message_count)

    def shorten(self) -> None:
        """Make the exchange lead to the last one only."""
        client = self.harness.channel()
        for number in range(EXCHANGES - 1):
            client.send(1, m.ExchangeUnbind(0, f"x{number}", self.exchange, "", False, EMPTY_TABLE))
        self.harness.settle()

    def notices(self) -> list[dict[str, object]]:
        self.harness.pass_time(1)
        return [each.fields for each in self.harness.notices if each.event == "routing.too_many_steps"]


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
def test_a_dead_letter_goes_to_all_of_its_queues_or_stays(strategy: str) -> None:
    """It went to those that were found with two million steps, and nothing told of the others."""
    meeting = Meeting()
    arguments: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "x",
        "x-dead-letter-strategy": strategy,
        "x-overflow": "reject-publish",
    }
    meeting.client.call(1, queue_declare("dying", durable=True, arguments=arguments))
    meeting.publish("", "dying", b"one")
    meeting.client.get("dying")
    meeting.client.connection.feed(method_frame(1, m.BasicNack(0, multiple=True, requeue=False)))
    meeting.harness.write()
    assert meeting.counts() == (0, 0)
    lane = meeting.harness.queue("dying").held(UNDELIVERED)
    assert lane is not None and lane.count == 1
    assert meeting.notices() == [{"count": 1, "last": "exchange 'x' in vhost '/'"}]
    meeting.harness = meeting.harness.restart(clean=False)
    meeting.harness.pass_time(6)
    assert meeting.counts() == (0, 0) and meeting.harness.broker.churn.unrouted == 1
    meeting.shorten()
    meeting.harness.pass_time(RETRY_S)
    assert meeting.counts() == (1, 1)
    lane = meeting.harness.queue("dying").held(UNDELIVERED)
    assert lane is not None and lane.count == 0


def test_a_held_message_goes_to_all_of_its_queues_or_stays() -> None:
    meeting = Meeting("late", "x-delayed-message", {"x-delayed-type": "fanout"})
    meeting.publish("late", "k", b"one", **{"x-delay": 1000})
    meeting.client.feed(
        publish_frames("late", "", b"two", properties={"headers": encode_table({"x-delay": 1000}), **DURABLE})
    )
    meeting.harness.write()
    meeting.harness.pass_time(2)
    assert meeting.counts() == (1, 1), "the other one does not wait for it"
    assert meeting.harness.vhost.held["late"].count == 1
    assert meeting.notices() == [{"count": 1, "last": "exchange 'late' in vhost '/'"}]
    meeting.harness.write()
    meeting.harness = meeting.harness.restart(clean=False)
    meeting.harness.pass_time(1)
    assert meeting.harness.vhost.held["late"].count == 1
    meeting.shorten()
    meeting.harness.pass_time(RETRY_S)
    assert meeting.counts() == (2, 2) and meeting.harness.vhost.held["late"].count == 0
    meeting.harness.vhost.held["late"].check_invariants()


def test_routing_is_paid_for_by_the_turn() -> None:
    """A turn routed a hundred letters, and 512 held messages, whatever each of them met."""
    meeting = Meeting("late", "x-delayed-message", {"x-delayed-type": "fanout"})
    for number in range(3):
        meeting.publish("late", "k", b"%d" % number, **{"x-delay": 1000})
    broker = meeting.harness.broker
    broker.keep_time(int(broker.log.now_ms) + 2000)
    assert broker.churn.unrouted == 1
    broker.end_turn()
    assert broker.churn.unrouted == 2
    meeting.harness.settle()
    assert broker.churn.unrouted == 3 and meeting.harness.vhost.held["late"].count == 3


def test_letters_are_routed_one_in_a_turn_if_that_is_much_work() -> None:
    meeting = Meeting()
    meeting.client.call(1, queue_declare("dying", durable=True, arguments={"x-dead-letter-exchange": "x"}))
    for number in range(3):
        meeting.publish("", "dying", b"%d" % number)
        meeting.client.get("dying")
    broker = meeting.harness.broker
    meeting.client.connection.feed(method_frame(1, m.BasicNack(0, multiple=True, requeue=False)))
    routed = [broker.churn.unrouted]
    while routed[-1] < 3:
        broker.end_turn()
        routed.append(broker.churn.unrouted)
    assert max(after - before for before, after in itertools.pairwise(routed)) == 1
    assert meeting.counts() == (0, 0)
