"""The events that a vhost reports about its contents."""

from __future__ import annotations

import gc

from engine_harness import Harness, exchange_declare

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE
from warren.engine_view.engine_view import EngineView


def test_the_lengths_of_all_queues_are_added_up() -> None:
    harness = Harness()
    client = harness.channel()
    vhosts = EngineView(harness.broker, lambda: None).vhosts
    assert vhosts.lengths("/") == (0, 0, 0, 0)
    for name, count in (("a", 3), ("b", 5)):
        client.declare(name)
        for _ in range(count):
            client.publish("", name, b"m")
    for _ in range(2):
        client.get("b", no_ack=False)
    client.declare("c")
    client.consume("c", "t")
    client.consume("c", "u")
    client.publish("", "c", b"m")
    assert vhosts.lengths("/") == (9, 6, 3, 2)


def test_queues_are_sorted_once_for_each_change_of_the_topology() -> None:
    harness = Harness()
    client = harness.channel()
    vhost = harness.vhost
    in_order = vhost.sorted_queues
    for name in ("b", "c", "a"):
        client.declare(name)
    assert not in_order.are_of(vhost.topology_version)
    assert [queue.name for queue in in_order.get(vhost.topology_version)] == ["a", "b", "c"]
    assert in_order.are_of(vhost.topology_version)
    client.declare("B")
    assert not in_order.are_of(vhost.topology_version)
    sorted_elsewhere = sorted(vhost.queues.values(), key=lambda queue: queue.name)
    in_order.keep(sorted_elsewhere, vhost.topology_version)
    assert in_order.are_of(vhost.topology_version)
    assert in_order.get(vhost.topology_version) is sorted_elsewhere
    client.declare("d")
    in_order.keep(sorted_elsewhere, vhost.topology_version - 1)
    assert not in_order.are_of(vhost.topology_version) and len(in_order.get(vhost.topology_version)) == 5


def test_sorted_queues_do_not_keep_deleted_ones() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("a")
    queue = harness.queue("a")
    assert harness.vhost.sorted_queues.get(harness.vhost.topology_version) == [queue]
    client.call(1, m.QueueDelete(0, "a", False, False, False))
    assert [found for found in gc.get_referrers(queue) if isinstance(found, list)] == []


def test_a_destination_knows_its_sources_until_the_last_binding_goes() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    for exchange in ("amq.direct", "amq.topic"):
        for key in ("a", "b"):
            client.bind("q", exchange, key)

    def sources() -> list[str]:
        return sorted(source.name for source in harness.vhost.incoming.sources_of(harness.queue("q")) if source.name)

    assert sources() == ["amq.direct", "amq.topic"]
    client.call(1, m.QueueUnbind(0, "q", "amq.direct", "a", EMPTY_TABLE))
    assert sources() == ["amq.direct", "amq.topic"]
    client.call(1, m.QueueUnbind(0, "q", "amq.direct", "b", EMPTY_TABLE))
    assert sources() == ["amq.topic"]


def test_routes_are_remembered_where_the_routing_key_decides_and_nobody_looks_at_each_message() -> None:
    harness = Harness()
    vhost = harness.vhost

    def cacheable() -> list[bool]:
        names = ("", "amq.direct", "amq.topic", "amq.headers")
        return [vhost.is_cacheable(vhost.exchanges[name], Content(b"")) for name in names]

    assert cacheable() == [True, True, True, False]
    harness.broker.trace("/", True)
    assert cacheable() == [False] * 4


def test_destinations_of_one_exchange_are_nothing_to_each_other() -> None:
    harness = Harness()
    client = harness.channel()
    names = ("amq.direct", "amq.fanout", "amq.topic")
    for queue in ("p", "q"):
        client.declare(queue)
        client.bind(queue, "amq.direct")

    def sources(queue: str) -> list[str]:
        return sorted(source.name for source in harness.vhost.incoming.sources_of(harness.queue(queue)))

    for count in (2, 3):
        client.bind("p", names[count - 1])
        assert (sources("p"), sources("q")) == (list(names[:count]), ["amq.direct"])
    for count in (0, 1, 2):
        assert (sources("p"), sources("q")) == (list(names[count:]), ["amq.direct"])
        client.call(1, m.QueueUnbind(0, "p", names[count], "", EMPTY_TABLE))
    assert (sources("p"), sources("q")) == ([], ["amq.direct"])
    client.bind("p", "amq.direct")
    client.call(1, m.QueueUnbind(0, "q", "amq.direct", "", EMPTY_TABLE))
    assert (sources("p"), sources("q")) == (["amq.direct"], [])


def test_many_bindings_of_a_deleted_exchange_go_in_later_turns() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.call(1, exchange_declare("x", "topic"))
    for number in range(5000):
        client.bind("q", "x", f"a.{number}")
    vhost, queue = harness.vhost, harness.queue("q")
    vhost.delete_exchange(vhost.exchanges["x"])
    assert any(source.name == "x" for source in vhost.incoming.sources_of(queue)), "not all at once"
    harness.settle()
    assert not any(source.name == "x" for source in vhost.incoming.sources_of(queue))
