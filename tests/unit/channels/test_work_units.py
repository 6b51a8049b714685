"""A connection does a share of work at a time; where the walk stops changes nothing of what it does."""

from __future__ import annotations

import random

import pytest
from engine_harness import Client, Harness, content_frames, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import encode_table
from warren.channels.publisher import TOPIC_STEPS_MAX
from warren.channels.session import CARE_UNITS, ROUTE_UNITS
from warren.channels.shared import METHOD_UNITS, PAUSED_TURN, TOPOLOGY_UNITS
from warren.vhosts.metadata import PolicyPut, TopicPermissionPut
from warren.vhosts.pattern import Pattern

QOS = method_frame(1, m.BasicQos(0, 1, False))
QOS_OK = method_frame(1, m.BasicQosOk())
CHANGE = 1 + METHOD_UNITS + TOPOLOGY_UNITS


def units_of(harness: Harness, client: Client, data: bytes) -> int:
    """Return how many units of work `data` costs."""
    shared = harness.broker.shared
    shared.feed_units = 1 << 40
    client.feed(data)
    return int(shared.feed_units - client.connection.units_left)


def test_the_walk_stops_when_the_share_is_used_and_goes_on_when_fed_again() -> None:
    harness = Harness()
    client = harness.channel()
    harness.broker.shared.feed_units = 3 * (METHOD_UNITS + 1)
    client.connection.feed(QOS * 8)
    for answered in (3, 3, 2):
        harness.broker.end_turn()
        assert b"".join(client.connection.outbox.take()) == QOS_OK * answered
        resumed = harness.broker.take_resumed()
        assert resumed == ([client.connection] if answered == 3 else [])
        client.connection.feed(b"")
    assert client.connection.carry == b""
    assert not client.connection.paused


def test_what_a_turn_leaves_over_is_not_copied() -> None:
    harness = Harness()
    client = harness.channel()
    harness.broker.shared.feed_units = METHOD_UNITS + 1
    data = QOS * 100
    client.connection.feed(data)
    for _ in range(50):
        client.connection.feed(b"")
        assert client.connection.carry is data


def test_bytes_that_come_behind_what_is_left_over_stay_behind_it() -> None:
    harness = Harness()
    client = harness.channel()
    harness.broker.shared.feed_units = METHOD_UNITS + 1
    declares = [method_frame(1, queue_declare(f"q{number}")) for number in range(6)]
    client.connection.feed(b"".join(declares[:3]))
    client.connection.feed(b"".join(declares[3:5]))
    client.feed(declares[5])
    names = [each.method.queue for each in client.take()]
    assert names == [f"q{number}" for number in range(6)]


def test_a_pause_of_another_reason_lasts_longer_than_the_turn() -> None:
    harness = Harness(outbox_hard_bytes=100)
    client = harness.channel()
    client.peer.stalled = True
    harness.broker.shared.feed_units = 4 * (METHOD_UNITS + 1)
    client.feed(QOS * 20)
    assert client.connection.paused
    assert not client.connection.paused & PAUSED_TURN
    harness.wake(client.peer)
    assert client.take_bytes() == QOS_OK * 20


def test_a_connection_that_ends_keeps_nothing_of_what_was_left_over() -> None:
    harness = Harness()
    client = harness.channel()
    harness.broker.shared.feed_units = METHOD_UNITS + 1
    client.connection.feed(QOS * 100)
    assert client.connection.carry
    client.hang_up()
    assert client.connection.carry == b""
    assert client.connection.carry_from == 0


def test_what_the_management_does_itself_is_done_at_once() -> None:
    harness = Harness()
    harness.broker.shared.feed_units = 1
    session = harness.broker.open_direct("guest", "/")
    for number in range(100):
        session.command(QueueDeclaration(f"q{number}", durable=False))
    assert len(session.direct.answers) == 100
    session.peer.lost()


def test_a_publish_costs_the_queues_it_goes_to() -> None:
    harness = Harness()
    client = harness.channel()
    for number in range(10):
        client.declare(f"q{number}")
        client.bind(f"q{number}", "amq.fanout")
    to_all, to_one = publish_frames("amq.fanout", ""), publish_frames("", "q1")
    assert units_of(harness, client, to_one) == 1 + ROUTE_UNITS + 1
    assert units_of(harness, client, to_one) == 1
    assert units_of(harness, client, to_all) == 1 + ROUTE_UNITS + 1 + 10 + 10  # routing takes a step
    assert units_of(harness, client, to_all * 3) == 3 * (1 + 10)
    with_care = publish_frames("amq.fanout", "", properties={"expiration": "100000"})
    assert units_of(harness, client, with_care) == 1 + CARE_UNITS + 10
    # Each key is a route of its own.
    keys = b"".join(publish_frames("", f"nobody{number}") for number in range(5))
    assert units_of(harness, client, keys) == 5 * (1 + ROUTE_UNITS)


def test_a_declaration_costs_what_it_takes() -> None:
    harness = Harness()
    client = harness.channel()
    assert units_of(harness, client, method_frame(1, queue_declare("q"))) == CHANGE
    bind = method_frame(1, m.QueueBind(0, "q", "amq.direct", "k", False, encode_table({})))
    assert units_of(harness, client, bind) == CHANGE


def test_a_transaction_costs_its_publishes_when_they_come_and_their_queues_when_it_is_committed() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    client.call(1, m.TxSelect())
    assert units_of(harness, client, publish_frames("", "q") * 10) == 10 * (1 + CARE_UNITS) + ROUTE_UNITS + 1
    assert units_of(harness, client, method_frame(1, m.TxCommit())) == 1 + METHOD_UNITS + 10


@pytest.mark.parametrize("seed", range(20))
def test_a_share_of_any_size_gives_the_same_answers(seed: int) -> None:
    chance = random.Random(seed)
    requests = [method_frame(1, queue_declare("a")), method_frame(1, m.ConfirmSelect(False))]
    for number in range(60):
        requests.append(
            chance.choice(
                [
                    QOS,
                    method_frame(1, queue_declare(f"q{number}")),
                    method_frame(1, exchange_declare(f"e{number}")),
                    publish_frames("", "a", b"x" * chance.randrange(50)),
                    publish_frames("", f"q{number - 1}", b"y"),
                    publish_frames("", "nobody", b"z" * 40000, mandatory=True),
                    method_frame(2, m.ChannelOpen("")) + method_frame(2, m.ChannelClose(200, "", 0, 0)),
                    method_frame(1, m.BasicGet(0, "a", True)),
                    # A content whose frames are apart.
                    content_apart(b"w" * 100),
                ]
            )
        )
    data = b"".join(requests)

    def answers(share: int) -> list[object]:
        harness = Harness()
        client = harness.channel()
        harness.broker.shared.feed_units = share
        at = 0
        pieces = random.Random(seed)
        while at < len(data):
            size = pieces.choice([1, 7, 100, 5000])
            client.feed(data[at : at + size])
            at += size
        harness.check()
        # Confirms are cumulative: how often they are written is for turns to say.
        received = [each for each in client.take() if not isinstance(each.method, m.BasicAck)]
        return [(each.channel, each.method, each.content and each.content.body) for each in received]

    whole = answers(1 << 40)
    assert whole
    for share in (1, 20, 100):
        assert answers(share) == whole


def content_apart(body: bytes) -> bytes:
    """Return a publish with another channel's frame between its frames."""
    publish = method_frame(1, m.BasicPublish(0, "", "a", mandatory=False, immediate=False))
    contents = content_frames(1, body)
    header = contents[: -len(body) - 8]
    heartbeat = b"\x08\0\0\0\0\0\0\xce"
    return publish + heartbeat + header + heartbeat + contents[len(header) :]


LARGE = "^(.?){150}z"
LONG = "n" * 200


def test_who_declares_pays_for_the_policies_that_are_tried() -> None:
    harness = Harness()
    client = harness.channel()
    declares = [method_frame(1, queue_declare(LONG + "q")), method_frame(1, exchange_declare(LONG + "e"))]
    again = [method_frame(1, queue_declare(LONG + "q")), method_frame(1, exchange_declare(LONG + "e"))]
    for at in range(3):
        policy = PolicyPut("/", f"p{at}", LARGE, "all", 0, '{"max-length":10}')
        harness.broker.administer(policy)
    harness.settle()
    each = Pattern(LARGE).steps(LONG + "q")
    assert [units_of(harness, client, data) for data in declares] == [CHANGE + 3 * (1 + each)] * 2
    assert [units_of(harness, client, data) for data in again] == [CHANGE] * 2


def test_who_asks_what_is_permitted_pays_for_the_patterns() -> None:
    harness = Harness()
    harness.add_user("u", configure=LARGE)
    client = harness.channel("u")
    each = Pattern(LARGE).steps(LONG)
    declare = method_frame(1, queue_declare(LONG))
    assert units_of(harness, client, declare) == CHANGE + each  # refused
    assert units_of(harness, client, method_frame(1, m.ChannelCloseOk())) == 1 + METHOD_UNITS


def test_who_publishes_pays_for_topic_permissions() -> None:
    harness = Harness()
    harness.add_user("u")
    harness.broker.administer(TopicPermissionPut("u", "/", "amq.topic", LARGE, ".*"))
    client = harness.channel("u")
    key = "n" * 140 + "z"
    each = Pattern(LARGE).steps(key)
    plain = 1 + ROUTE_UNITS + 1  # routing takes a step
    permitted = publish_frames("amq.topic", key)
    assert units_of(harness, client, permitted) == plain + 1 + each
    assert units_of(harness, client, permitted) == 1
    assert units_of(harness, client, publish_frames("amq.topic", LONG)) > each  # refused


def test_a_message_with_very_many_topics_is_refused_where_each_has_to_be_permitted() -> None:
    harness = Harness()
    harness.add_user("u")
    harness.broker.administer(TopicPermissionPut("u", "/", "amq.topic", "k(.?){50}", ".*"))
    client = harness.channel("u")

    def publish(count: int) -> bytes:
        headers = encode_table({"CC": [f"key-{at}" for at in range(count)]})
        return publish_frames("amq.topic", "k", properties={"headers": headers})

    each = Pattern("k(.?){50}").steps("key-1000")
    client.feed(publish(TOPIC_STEPS_MAX // (2 * each)))
    client.nothing()
    client.feed(publish(2 * TOPIC_STEPS_MAX // each))
    close = client.expect(m.ChannelClose)
    assert close.reply_code == 406
    assert "has more routing keys than its topic permissions can be checked for" in close.reply_text
