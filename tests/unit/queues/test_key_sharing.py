"""Key sharing from inside: the key of a message, messages set aside, and the books about them."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, basic_consume, body_of, publish_frames
from hypothesis import given
from hypothesis import strategies as st
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, Timestamp, encode_table
from warren.msgstore.log.message import Message
from warren.queues.dispatch import DRAIN_BUDGET
from warren.queues.key_sharing import KeyShared
from warren.queues.ready_messages import PLACE_MAX
from warren.queues.shared_keys import ASIDE_MAX, SHORT_ASIDE_MAX, SharedKey, SharedKeys, header_text

# --- the key ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("north", "north"),
        ("", ""),
        ("é", "é"),
        (7, "7"),
        (-(1 << 40), "-1099511627776"),
        (True, "True"),
        (1.5, "1.5"),
        (b"raw", "raw"),
        (b"\xff", "\udcff"),
        (Timestamp(60), "60"),
        (None, ""),
        (["a", 1], "['a', 1]"),
    ],
)
def test_any_value_of_a_header_is_a_key(value: object, text: str) -> None:
    table = encode_table({"first": "customer", "customer": value, "last": 1})
    assert header_text(content_header({"headers": table}, 0), b"customer") == text


def test_a_string_that_is_not_utf_8_is_a_key() -> None:
    table = (2 + 1 + 4 + 1).to_bytes(4, "big") + b"\x01k" + b"S" + (1).to_bytes(4, "big") + b"\xff"
    assert header_text(content_header({"headers": table}, 0), b"k") == "\udcff"


def test_of_a_header_that_comes_twice_the_last_counts() -> None:
    entries = encode_table({"k": "one"})[4:] + encode_table({"k": "two"})[4:]
    table = len(entries).to_bytes(4, "big") + entries
    assert header_text(content_header({"headers": table}, 0), b"k") == "two"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"headers": encode_table({})},
        {"headers": encode_table({"customers": "x", "a": "customer", "nested": {"customer": "x"}})},
        {"app_id": "customer"},
        {"app_id": "customer", "headers": encode_table({"a": 1})},
    ],
)
def test_without_the_header_the_key_is_empty(properties: dict[str, Any]) -> None:
    assert header_text(content_header(properties, 0), b"customer") == ""


# --- the places of a key ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=300))
def test_the_places_of_a_key_are_a_sorted_list(steps: list[tuple[bool, int]]) -> None:
    key = SharedKey("k")
    places: list[int] = []
    for add, number in steps:
        if add and number not in places:
            places = sorted([*places, number])
            assert key.add(number) == (places[0] == number)
        elif not add and places:
            place = places.pop(0 if number % 3 else number % len(places))
            assert key.remove(place) == (not places or place < places[0])
        assert key.waiting == len(places)
        assert key.waiting_places() == places
        if places:
            assert key.first() == places[0]


def test_the_places_that_have_left_are_let_go() -> None:
    key = SharedKey("k")
    for place in range(1000):
        key.add(place)
        key.add(10_000 + place)
        key.remove(int(key.first()))
    assert key.waiting_places() == list(range(10_000, 11_000))


# --- what is set aside ------------------------------------------------------------------------------------------------


def declare(client: Client, *, durable: bool = False, **arguments: Any) -> SharedKeys:
    more: Table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    client.declare("q", durable=durable, arguments={"x-key-shared": True} | more)
    client.bind("q", "amq.fanout")
    sharing = client.harness.plain_queue("q").need_keeper().dispatch
    assert isinstance(sharing, KeyShared)
    return sharing.keys


def aside(keys: SharedKeys) -> list[Message]:
    return [message for _, message in keys.between(0, PLACE_MAX, int(keys.count()))]


def publish(client: Client, *bodies: str, **properties: Any) -> None:
    """Publish messages whose key is the first character of their body."""
    client.feed(
        b"".join(publish_frames("amq.fanout", body[0], body.encode(), properties=properties) for body in bodies)
    )


def consume(client: Client, tag: str, prefetch: int) -> None:
    client.send(1, m.BasicQos(0, prefetch, False), basic_consume("q", tag))
    client.pick(m.BasicConsumeOk)
    client.pick(m.BasicQosOk)


def bodies(client: Client) -> list[str]:
    return [body.decode() for body in client.bodies()]


@pytest.fixture
def client() -> Client:
    return Harness().channel()


def test_only_queues_that_ask_for_it_share_keys(client: Client) -> None:
    client.declare("plain", arguments={"x-max-length": 3, "x-key-shared": False})
    assert not isinstance(client.harness.plain_queue("plain").need_keeper().dispatch, KeyShared)
    assert declare(client).aside_max == ASIDE_MAX


def test_nothing_is_set_aside_while_nobody_has_room(client: Client) -> None:
    sharing = declare(client)
    consume(client, "one", 1)
    consume(client, "two", 1)
    publish(client, "a1", "b1", "a2", "a3", "b2", "a4", "c1")
    assert bodies(client) == ["a1", "b1"]
    assert aside(sharing) == []
    client.send(1, m.BasicAck(2, False))
    assert bodies(client) == ["b2"]
    assert [message.body() for message in aside(sharing)] == [b"a2", b"a3"]
    client.harness.check()


def test_a_message_that_comes_for_a_full_consumer_does_not_stand_in_the_way(client: Client) -> None:
    sharing = declare(client, max_length=2)
    consume(client, "full", 1)
    publish(client, "a1")
    consume(client, "free", 0)
    # In one go: no turn ends between them, and none of the three others may make the limit drop a2.
    publish(client, "a2", "b1", "c1", "b2")
    assert bodies(client) == ["a1", "b1", "c1", "b2"]
    assert [message.body() for message in aside(sharing)] == [b"a2"]


def test_while_memory_is_short_little_is_set_aside(client: Client) -> None:
    log = client.harness.broker.log
    sharing = declare(client)
    consume(client, "full", 2)
    publish(client, "a1", "a2")
    consume(client, "free", 0)
    log.memory_bytes = 0
    publish(client, *["a"] * (SHORT_ASIDE_MAX + 1), "b1")
    assert bodies(client) == ["a1", "a2"]
    assert len(aside(sharing)) == SHORT_ASIDE_MAX
    client.send(1, m.BasicAck(1, False))
    assert bodies(client) == ["a"]
    client.send(1, m.BasicAck(2, False))
    assert bodies(client) == ["a", "b1"]


def test_when_memory_is_there_again_the_next_publish_finds_out(client: Client) -> None:
    log = client.harness.broker.log
    declare(client)
    consume(client, "full", 1)
    publish(client, "a1")
    consume(client, "free", 0)
    memory_bytes, log.memory_bytes = log.memory_bytes, 0
    publish(client, *["a"] * (SHORT_ASIDE_MAX + 1), "b1")
    assert bodies(client) == ["a1"]
    log.memory_bytes = memory_bytes
    publish(client, "a")
    assert bodies(client) == ["b1"]


def test_what_is_set_aside_counts_as_resident(client: Client) -> None:
    log = client.harness.broker.log
    declare(client)
    consume(client, "full", 1)
    publish(client, "a1")
    consume(client, "free", 0)
    publish(client, "a" * 1000, "a" * 2000)
    assert log.resident_bytes > 3000
    client.send(1, m.BasicAck(1, False))
    assert 2000 < log.resident_bytes < 3000
    client.send(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert log.resident_bytes == 0


@pytest.mark.parametrize("keys", ["a", "ab", "abcdefgh"])
def test_more_than_one_turn_hands_out_keeps_the_order(client: Client, keys: str) -> None:
    harness = client.harness
    declare(client)
    count = DRAIN_BUDGET * 2 + 10
    sent = [f"{keys[number % len(keys)]}{number}" for number in range(count)]
    publish(client, *sent)
    consume(client, "one", 0)
    assert bodies(client) == sent
    # All of them come back, and are set aside.
    client.send(1, m.BasicRecover(True))
    received = client.take()
    assert [body_of(each).decode() for each in received if each.content is not None] == sent
    harness.check()


def test_one_turn_hands_out_so_many_messages(client: Client) -> None:
    declare(client)
    publish(client, *[f"{'ab'[number % 2]}{number}" for number in range(DRAIN_BUDGET + 10)])
    client.connection.feed(method_frame(1, basic_consume("q")))
    client.harness.broker.end_turn()
    queue = client.harness.queue("q")
    assert queue.delivered == DRAIN_BUDGET
    client.harness.settle()
    assert queue.delivered == DRAIN_BUDGET + 10


@pytest.mark.parametrize("aside", [False, True])
def test_what_expires_while_the_disk_is_slow_is_not_handed_out(client: Client, aside: bool) -> None:
    """A queue that reads many expired messages from disk does not look at those in memory at the same time."""
    harness = client.harness
    log = harness.broker.log
    declare(client, durable=True)
    if aside:
        consume(client, "full", 1)
        publish(client, "a0", delivery_mode=2)
        consume(client, "free", 1)
        publish(client, *["a"] * 30, delivery_mode=2, expiration="2000")
        publish(client, "b0", delivery_mode=2)
        assert bodies(client) == ["a0", "b0"]
    log.memory_bytes = 0
    publish(client, *["c"] * 100, delivery_mode=2, expiration="2000")
    for _ in range(20):
        publish(client, *["d"] * 100, delivery_mode=2, expiration="1000")
        log.close_if_due(lingered=True)
        harness.settle()
    publish(client, "e", delivery_mode=2)
    harness.store.hold = True
    harness.broker.keep_time(int(log.now_ms) + 3000)
    queue = harness.queue("q")
    assert queue.ready_count > 1000
    if aside:
        client.send(1, m.BasicAck(1, False))
    else:
        consume(client, "one", 0)
    assert bodies(client) == []
    harness.store.hold = False
    harness.settle()
    harness.pass_time(1)
    assert bodies(client) == ["e"]
    harness.check()
