"""Tries of topics: what a client or a vhost leaves of one is freed in pieces, whatever its size."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise

from engine_harness import Harness, exchange_declare, publish_frames
from mqtt_harness import mqtt_client

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.channels.route_cache import Route
from warren.mqtt.packets import packet, text
from warren.mqtt.topics import Subscription
from warren.msgstore.log.reclamation import THINGS_PER_STEP
from warren.queues.long_work import AT_ONCE_STEPS, Steps
from warren.vhosts.metadata import VhostDelete
from warren.vhosts.retained import Retained, RetainedSearch
from warren.vhosts.topic_levels import TopicLevel
from warren.vhosts.unbinding import BINDING_STEPS, INDEXED_BYTES_PER_STEP, Unbinding

TURN_STEPS = AT_ONCE_STEPS
# A turn frees at most twice as much: when work begins, and when it continues, with a step more each time.
MOST = 2 * (TURN_STEPS + 1) * THINGS_PER_STEP
DEEP = "/a" * 30
MANY = 80


def alive(*kinds: type) -> int:
    return sum(type(each) in kinds for each in gc.get_objects())


def most_freed(harness: Harness, act: Callable[[], None], *kinds: type) -> int:
    """Return how many objects of `kinds` at most are freed in one turn, when `act` has all but one freed."""
    harness.broker.work.turn_steps = TURN_STEPS
    harness.broker.work.end_turn()
    left = [alive(*kinds)]
    act()
    left.append(alive(*kinds))
    has_more = True
    while left[-1] > 1:
        assert has_more
        has_more = harness._turn(commit=True)
        left.append(alive(*kinds))
    return max(earlier - later for earlier, later in pairwise(left))


def test_the_filters_of_a_client_that_leaves_are_freed_in_pieces() -> None:
    harness = Harness()
    client = mqtt_client(harness)
    client.peer.feed(packet(8, 2, b"\0\x01" + b"".join(text(f"{at}{DEEP}") + b"\0" for at in range(MANY))))
    harness.settle()
    assert alive(TopicLevel) > MANY * 30
    assert most_freed(harness, client.peer.lost, TopicLevel, Subscription) <= MOST


def retain(harness: Harness) -> None:
    retained = harness.vhost.retained()
    for at in range(MANY):
        assert retained.put(f"{at}{DEEP}", Retained("guest", 0, 1 << 50, b"", b""))


def test_the_topics_of_a_deleted_vhost_are_freed_in_pieces() -> None:
    harness = Harness()
    retain(harness)
    harness.settle()

    def delete() -> None:
        harness.broker.administer(VhostDelete("/"))

    assert most_freed(harness, delete, TopicLevel) <= MOST


def test_searches_that_wait_for_the_client_are_small_and_are_freed_in_pieces() -> None:
    harness = Harness(mqtt_qos0_outbox_bytes=1)
    retain(harness)
    client = mqtt_client(harness)
    client._client.stalled = True
    wanted = ["#", *[f"{at}/+/+" for at in range(2 * MOST)]]
    client.peer.feed(packet(8, 2, b"\0\x01" + b"".join(text(each) + b"\0" for each in wanted)))
    harness.settle()
    searches = [each for each in gc.get_objects() if type(each) is RetainedSearch]
    assert len(searches) == len(wanted)
    assert sum(len(each._words) for each in searches) <= 1, "words of one that has not begun"
    del searches
    assert most_freed(harness, client.peer.lost, RetainedSearch) <= MOST


def test_the_routes_that_a_memory_alarm_drops_are_freed_in_pieces() -> None:
    harness = Harness()
    client = harness.channel()
    client.feed(b"".join(publish_frames("amq.fanout", f"{at}") for at in range(3 * MOST)))

    def alarm() -> None:
        harness.broker.set_alarm("memory", True)

    assert most_freed(harness, alarm, Route) <= MOST


def test_a_binding_with_many_words_or_arguments_takes_more_steps_to_remove() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.send(1, exchange_declare("t", "topic"), exchange_declare("h", "headers"))
    words, size = "a." * 100, 0
    for at in range(50):
        arguments = encode_table({f"{at:02}.{number}": number for number in range(30)})
        size = len(arguments)
        client.send(1, m.QueueBind(0, "q", "t", f"{words}{at}", True, EMPTY_TABLE))
        client.send(1, m.QueueBind(0, "q", "h", "", True, arguments))
    for name, indexed in (("t", len(words)), ("h", size)):
        exchange = harness.vhost.exchanges[name]
        before = len(exchange.bindings)
        assert before == 50
        unbinding = Unbinding(harness.vhost, exchange, "")
        assert not unbinding.run(Steps(TURN_STEPS))
        each = BINDING_STEPS + indexed // INDEXED_BYTES_PER_STEP
        assert 0 < before - len(exchange.bindings) <= TURN_STEPS // each + 1
