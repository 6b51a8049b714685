"""The confirm class: publisher confirms."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, Refusal, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table

from .rules import rule


def confirming(client: Client) -> None:
    assert client.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()


@rule("rabbitmq.confirm.select", "select is answered, may be repeated, and is silent with no_wait.")
def test_select_may_be_repeated(client: Client) -> None:
    confirming(client)
    confirming(client)
    client.send(1, m.ConfirmSelect(True))
    client.nothing()


@rule("rabbitmq.confirm.select", "A transactional channel does not confirm: 406.")
def test_a_transactional_channel_does_not_confirm(client: Client) -> None:
    client.call(1, m.TxSelect())
    refusal = client.refused(1, m.ConfirmSelect(False))
    text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    assert refusal == Refusal("channel", 406, text, m.ConfirmSelect)


@rule("rabbitmq.confirm", "Confirms count from 1 with the first publish after select.")
def test_confirms_count_from_select(client: Client) -> None:
    client.declare("q")
    client.publish("", "q")
    confirming(client)
    for number in (1, 2, 3):
        client.publish("", "q")
        assert client.expect(m.BasicAck, 1) == m.BasicAck(number, False)
    confirming(client)
    client.publish("", "q")
    assert client.expect(m.BasicAck).delivery_tag == 4


@rule("rabbitmq.confirm", "What is published in one go is confirmed by one ack with multiple.")
def test_confirms_are_cumulative(client: Client) -> None:
    client.declare("q")
    confirming(client)
    client.feed(publish_frames("", "q") * 100)
    assert client.expect(m.BasicAck) == m.BasicAck(100, True)


@rule("rabbitmq.confirm", "Every kind of message is confirmed: routed or not, empty, with properties, large, consumed.")
@pytest.mark.parametrize("key", ["q", "nowhere"])
@pytest.mark.parametrize("size", [0, 1, 300_000])
@pytest.mark.parametrize("special", [False, True])
def test_every_message_is_confirmed(client: Client, other: Client, key: str, size: int, special: bool) -> None:
    client.declare("q")
    other.consume("q", no_ack=True)
    confirming(client)
    if special:
        client.publish("", key, bytes(size), headers=encode_table({"CC": ["q"], "BCC": ["q"]}), expiration="1000")
    else:
        client.publish("", key, bytes(size), delivery_mode=2)
    assert client.expect(m.BasicAck) == m.BasicAck(1, False)
    assert len(other.deliveries()) == (1 if special or key == "q" else 0)


@rule("rabbitmq.confirm", "A mandatory message comes back before its confirm.")
def test_a_return_comes_before_the_confirm(client: Client) -> None:
    confirming(client)
    client.feed(publish_frames("", "a", mandatory=True) + publish_frames("", "b", mandatory=True))
    received = client.take()
    assert [type(each.method) for each in received] == [m.BasicReturn, m.BasicReturn, m.BasicAck]
    assert received[-1].method == m.BasicAck(2, True)


@rule("rabbitmq.confirm", "Channels confirm on their own.")
def test_channels_confirm_on_their_own(client: Client) -> None:
    client.open(2)
    client.open(3)
    client.declare("q")
    client.send(2, m.ConfirmSelect(True))
    confirming(client)
    client.feed(b"".join(publish_frames("", "q", number=number) for number in (1, 2, 2, 3)))
    received = {each.channel: each.method for each in client.take()}
    assert received == {1: m.BasicAck(1, False), 2: m.BasicAck(2, True)}


@rule("rabbitmq.confirm", "A refused publish is not confirmed, and nothing is confirmed behind channel.close.")
def test_nothing_is_confirmed_behind_a_close(client: Client, harness: Harness) -> None:
    client.declare("q")
    confirming(client)
    client.feed(publish_frames("", "q") + publish_frames("missing", "q") + publish_frames("", "q"))
    kinds = [type(each.method) for each in client.take()]
    assert kinds[-1] is m.ChannelClose
    assert harness.queue("q").ready_count == 1


@rule("rabbitmq.confirm", "Confirms come while other replies wait for a commit: they promise nothing about it.")
def test_confirms_do_not_wait_for_declarations(client: Client, harness: Harness) -> None:
    client.declare("q")
    confirming(client)
    harness.hold_commits = True
    declare = m.QueueDeclare(0, "durable", False, True, False, False, False, b"\0\0\0\0")
    client.feed(method_frame(1, declare) + publish_frames("", "q"))
    assert client.expect(m.BasicAck) == m.BasicAck(1, False)


@rule("rabbitmq.confirm", "A confirm waits for the declaration of the queue that has the message, of nothing else.")
@pytest.mark.parametrize("properties", [{}, {"expiration": "60000"}], ids=["plain", "with a property to act on"])
def test_confirms_wait_for_the_declarations_of_their_queues_only(
    client: Client, harness: Harness, properties: dict[str, str]
) -> None:
    other = harness.channel()
    client.declare("old", durable=True)
    confirming(client)
    harness.broker.journal.hold()
    other.send(1, queue_declare("new", durable=True))

    def publish(queue: str) -> list[object]:
        client.feed(publish_frames("", queue, properties=properties | {"delivery_mode": 2}))
        return [received.method for received in client.take()]

    assert publish("old") == [m.BasicAck(1, False)]
    assert publish("new") == []
    other.nothing()
    harness.broker.journal.release()
    harness.settle()
    other.expect(m.QueueDeclareOk)
    assert client.expect(m.BasicAck) == m.BasicAck(2, False)
