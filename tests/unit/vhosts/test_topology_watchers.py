"""All watchers of the topology hear the same, in the order in which they came."""

from __future__ import annotations

import pytest
from engine_harness import Harness

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.vhosts.metadata import (
    BindingPut,
    ExchangePut,
    GlobalParameterPut,
    MetadataChange,
    PolicyDelete,
    PolicyPut,
    QueuePut,
    VhostDelete,
    VhostPut,
)
from warren.vhosts.parameters import ParameterChange
from warren.vhosts.topology_watcher import TopologyWatcher


class Recorder(TopologyWatcher):
    """Writes down what it is told."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self.lines = lines

    def note(self, line: str) -> None:
        self.lines.append(f"{self.name}: {line}")

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        self.note(f"exchange {exchange.name} in {vhost} by {by}")

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        self.note(f"no exchange {exchange.name} in {vhost} by {by}")

    def queue_created(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self.note(f"queue {queue.name} in {vhost} by {by}")

    def queue_deleted(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self.note(f"no queue {queue.name} in {vhost} by {by}")

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        self.note(f"binding {binding.routing_key} in {vhost} by {by}")

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        self.note(f"no binding {binding.routing_key} in {vhost} by {by}")

    def consumer_created(self, consumer: Consumer) -> None:
        self.note(f"consumer {consumer.tag}, of {len(consumer.queue.consumers)}")

    def consumer_deleted(self, consumer: Consumer) -> None:
        self.note(f"no consumer {consumer.tag}")

    def policies_changed(self, vhost: str) -> None:
        self.note(f"policies of {vhost}")

    def vhost_deleted(self, vhost: str) -> None:
        self.note(f"no vhost {vhost}")


def test_all_watchers_are_told_of_all_vhosts_in_their_order() -> None:
    harness = Harness()
    broker = harness.broker
    lines: list[str] = []
    for name in ("1", "2"):
        broker.watchers.add(Recorder(name, lines))
    broker.administer(VhostPut("v"))
    harness.permit("guest", vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    client.declare_exchange("x")
    client.declare("q")
    client.bind("q", "x", "k")
    client.consume("q", "c")
    broker.administer(PolicyPut("v", "p", "", "all", 0, '{"alternate-exchange":"y"}'))
    broker.administer(PolicyDelete("v", "p"))
    client.call(1, m.BasicCancel("c", False))
    client.call(1, m.QueueUnbind(0, "q", "x", "k", EMPTY_TABLE))
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    client.call(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False))
    broker.administer(VhostDelete("v"))
    broker.administer(VhostDelete("v"))
    assert lines[::2] == [
        "1: exchange x in v by guest",
        "1: queue q in v by guest",
        "1: binding k in v by guest",
        "1: consumer c, of 1",
        "1: policies of v",
        "1: policies of v",
        "1: no consumer c",
        "1: no binding k in v by guest",
        "1: no queue q in v by guest",
        "1: no exchange x in v by guest",
        "1: no vhost v",
    ]
    assert lines[1::2] == [line.replace("1:", "2:", 1) for line in lines[::2]]


def test_watchers_hear_of_consumers_that_lose_their_queue_or_their_right() -> None:
    harness = Harness()
    lines: list[str] = []
    harness.add_user("u")
    client = harness.channel()
    reader = harness.channel("u")
    for name in ("q", "r"):
        client.declare(name)
        reader.consume(name, name)
    harness.broker.watchers.add(Recorder("1", lines))
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    harness.permit("u", read="nothing")
    assert [line for line in lines if "consumer" in line] == ["1: no consumer q", "1: no consumer r"]


class Broken(TopologyWatcher):
    """Meets a defect whenever it is told something."""

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        raise ValueError("a defect")

    def queue_created(self, vhost: str, queue: BaseQueue, by: str) -> None:
        raise ValueError("a defect")

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        raise ValueError("a defect")

    def vhost_deleted(self, vhost: str) -> None:
        raise ValueError("a defect")


def test_a_watcher_that_meets_a_defect_stops_neither_the_others_nor_the_change() -> None:
    """A durable exchange was there, and declared again as durable, but in no journal."""
    harness = Harness()
    broker = harness.broker
    lines: list[str] = []
    broker.watchers.add(Broken())
    broker.watchers.add(Recorder("2", lines))
    broker.administer(VhostPut("v"))
    vhost = broker.vhosts["v"]
    harness.permit("guest", vhost="v")
    harness.take_changes()
    vhost.declare_exchange(ExchangeDeclaration("x", "direct", durable=True))
    vhost.declare_queue(QueueDeclaration("q", durable=True))
    vhost.bind(vhost.exchanges["x"], vhost.queues["q"], "k", b"")
    assert len(broker.work.take_defects()) == 1, "it is reported once"
    harness.settle()
    assert [type(change) for change in harness.take_changes()] == [ExchangePut, QueuePut, BindingPut]
    broker.administer(VhostDelete("v"))
    broker.work.take_defects()
    harness.settle()
    assert harness.take_changes() == [VhostDelete("v")]
    assert lines[:3] == [
        "2: exchange x in v by rmq-internal",
        "2: queue q in v by rmq-internal",
        "2: binding k in v by rmq-internal",
    ]
    assert lines[-1] == "2: no vhost v"


def test_a_listener_of_parameters_that_meets_a_defect_stops_neither_the_others_nor_the_change() -> None:
    harness = Harness()
    book = harness.broker.parameters
    told: list[MetadataChange] = []

    def raises(change: ParameterChange) -> None:
        raise ValueError("a defect")

    book.listeners += [raises, told.append]
    change = GlobalParameterPut("p", "1")
    assert harness.broker.administer(change) > 0
    assert told == [change]
    with pytest.raises(ValueError, match="a defect"):
        harness.settle()  # it is reported
    harness.settle()
    assert harness.take_changes() == [change]
