"""The events that a vhost reports about its contents."""

from __future__ import annotations

import gc

from engine_harness import USER, Harness, exchange_declare, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE
from warren.engine_view.engine_view import EngineView
from warren.engine_view.vhosts import PIECE
from warren.exchanges.content import Content
from warren.exchanges.recent_history_exchange import RecentHistoryExchange
from warren.mqtt.sessions import sessions_of
from warren.msgstore.log.message import Envelope, build_message
from warren.vhosts.metadata import VhostDelete, VhostPut
from warren.vhosts.own_publishes import publish_copy
from warren.vhosts.super_streams import PARTITIONS_MAX


def test_the_lengths_of_all_queues_are_added_up() -> None:
    harness = Harness()
    client = harness.channel()
    vhosts = EngineView(harness.broker, lambda: None).vhosts
    assert list(vhosts.length_pieces("/")) == [] == list(vhosts.length_pieces("not there"))
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
    assert list(vhosts.length_pieces("/")) == [(9, 6, 3, 2)]


def test_the_lengths_of_very_many_queues_are_added_up_in_pieces() -> None:
    harness = Harness()
    client = harness.channel()
    for number in range(2 * PIECE + 1):
        client.declare(f"q{number}")
    client.publish("", "q0", b"m")
    pieces = EngineView(harness.broker, lambda: None).vhosts.length_pieces("/")
    assert next(pieces) == (1, 1, 0, 0)
    client.call(1, m.QueueDelete(0, "q1", if_unused=False, if_empty=False, no_wait=False))
    assert list(pieces) == [(0, 0, 0, 0)] * 2


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


def test_a_super_stream_has_as_many_bindings_as_it_may_have_partitions() -> None:
    """super_streams (5); others may have more, and existing bindings may be made again."""
    harness = Harness()
    client = harness.channel()
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.call(1, exchange_declare("x", durable=True))
    client.call(1, exchange_declare("super", durable=True, arguments={"x-super-stream": True}))
    for name in ("x", "super"):
        client.send(1, *[m.QueueBind(0, "s", name, f"k{at}", True, EMPTY_TABLE) for at in range(PARTITIONS_MAX)])
    client.bind("s", "x", "one more")
    client.bind("s", "super", "k0")
    refusal = client.refused(1, m.QueueBind(0, "s", "super", "one more", False, EMPTY_TABLE))
    assert (refusal.code, refusal.text) == (
        406,
        "PRECONDITION_FAILED - cannot bind from exchange 'super' in vhost '/': its limit of 1000 bindings is reached",
    )


def test_a_deleted_vhost_forgets_sessions_and_records_step_by_step() -> None:
    harness = Harness()
    harness.broker.administer(VhostPut("v"))
    vhost = harness.broker.vhosts["v"]
    kept = sessions_of(harness.broker, vhost)
    for number in range(1000):
        kept.keep(kept.take_up(f"c{number}", "guest"), 100, b"")
        kept.leave(kept.sessions[f"c{number}"])
    timers = len(harness.broker.timers)
    harness.broker.work.turn_steps = 100
    harness.broker.work.end_turn()
    harness.broker.administer(VhostDelete("v"))
    assert 0 < len(kept.sessions) < 1000
    while kept.sessions:
        harness.broker.end_turn()
    assert not harness.broker.log.reclamation.is_empty()
    harness.settle()
    assert len(vhost.records) == 0 and harness.broker.log.reclamation.is_empty()
    assert len(harness.broker.timers) < timers


def test_a_deleted_vhost_forgets_remembered_messages_step_by_step() -> None:
    harness = Harness()
    harness.broker.administer(VhostPut("v"))
    harness.permit(USER, vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    client.declare_exchange("h", "x-recent-history", arguments={"x-recent-history-length": 1000})
    client.feed(publish_frames("h", "", b"x") * 1000)
    history = harness.broker.vhosts["v"].exchanges["h"]
    assert isinstance(history, RecentHistoryExchange)
    harness.broker.work.turn_steps = 100
    harness.broker.work.end_turn()
    harness.broker.administer(VhostDelete("v"))
    assert 0 < history.count < 1000
    harness.settle()
    assert history.count == 0


def test_timers_count_the_queues_that_a_copy_goes_to() -> None:
    """Otherwise 512 wills would go to thousands of queues in one call."""
    harness = Harness()
    client = harness.channel()
    for name in ("a", "b", "c"):
        client.declare(name)
        client.bind(name, "amq.fanout")
    message = build_message(Envelope("amq.topic", "k"), b"\0\0", b"x", 0, False)
    worked = harness.broker.timers.worked
    assert publish_copy(harness.vhost, message, harness.vhost.exchanges["amq.fanout"], "k") == (3, False)
    assert harness.broker.timers.worked - worked == 3
