"""The owners of lanes that recovery found in the log: the queue, exchange or vhost of that name, or nobody."""

from __future__ import annotations

import pytest
from engine_harness import Harness, exchange_declare

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.lanes import (
    DELAYED,
    EXCHANGE,
    EXCHANGE_PRODUCERS,
    EXCHANGE_SEEN_KEYS,
    PARKED,
    PRODUCERS,
    SEEN_KEYS,
    UNDELIVERED,
    VHOST_RECORDS,
)

OF_QUEUES = [0, 1, 255, DELAYED, PARKED, UNDELIVERED, SEEN_KEYS, PRODUCERS]
OF_EXCHANGES = [EXCHANGE, EXCHANGE_SEEN_KEYS, EXCHANGE_PRODUCERS]
REMEMBERING: Table = {"x-message-deduplication": True}
DELAYING: Table = {**REMEMBERING, "x-delayed-type": "direct"}


def found(harness: Harness, lane: int, name: str, vhost: str = "/") -> QueueIndex:
    """Return an index that is younger than everything declared so far."""
    log = harness.broker.log
    return log.new_index(1_000_000 + len(log.indexes), vhost, name, lane, False)


def declare_all(harness: Harness, *, durable: bool) -> None:
    """Declare a queue and an exchange called ``x`` that may have any lane, and ``plain`` ones."""
    client = harness.channel()
    client.declare("x", durable=durable, arguments={"x-max-priority": 255, **REMEMBERING})
    client.declare("plain", durable=durable)
    for declare in (
        exchange_declare("x", "x-delayed-message", durable=durable, arguments=DELAYING),
        exchange_declare("plain", durable=durable),
    ):
        assert client.call(1, declare) == m.ExchangeDeclareOk()


@pytest.mark.parametrize("lane", [*OF_QUEUES, *OF_EXCHANGES])
def test_a_lane_is_given_once_to_what_is_durable_and_has_its_name(lane: int) -> None:
    harness = Harness()
    declare_all(harness, durable=True)
    assert harness.broker.restore_lane(found(harness, lane, "x"), True)
    if lane in (SEEN_KEYS, PRODUCERS, *OF_EXCHANGES):
        assert not harness.broker.restore_lane(found(harness, lane, "x"), True), "it has one"


@pytest.mark.parametrize("lane", [*OF_QUEUES, *OF_EXCHANGES])
def test_a_lane_is_nobodys_when_nothing_has_its_name(lane: int) -> None:
    harness = Harness()
    declare_all(harness, durable=True)
    for name, vhost in (("gone", "/"), ("x", "gone")):
        assert not harness.broker.restore_lane(found(harness, lane, name, vhost), True)


@pytest.mark.parametrize("lane", [*OF_QUEUES, EXCHANGE])
def test_what_ends_with_the_process_is_given_no_messages_of_an_earlier_one(lane: int) -> None:
    harness = Harness()
    declare_all(harness, durable=False)
    assert not harness.broker.restore_lane(found(harness, lane, "x"), True)


@pytest.mark.parametrize("lane", [1, 255, SEEN_KEYS, PRODUCERS, *OF_EXCHANGES])
def test_a_lane_is_nobodys_when_what_has_its_name_has_no_such_lanes(lane: int) -> None:
    harness = Harness()
    declare_all(harness, durable=True)
    assert not harness.broker.restore_lane(found(harness, lane, "plain"), True)


def test_the_lanes_of_an_earlier_queue_of_that_name_are_nobodys() -> None:
    harness = Harness()
    declare_all(harness, durable=True)
    earlier = QueueIndex(harness.broker.log, int(harness.queue("x").store_id) - 1, "/", "x", 0, False)
    assert not harness.broker.restore_lane(earlier, True)


def test_the_records_of_a_vhost_are_given_once_and_only_to_it() -> None:
    harness = Harness()
    assert not harness.broker.restore_lane(found(harness, VHOST_RECORDS, "", "gone"), True)
    assert harness.broker.restore_lane(found(harness, VHOST_RECORDS, ""), True)
    assert not harness.broker.restore_lane(found(harness, VHOST_RECORDS, ""), True)
