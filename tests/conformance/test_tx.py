"""The tx class: local transactions of publishes and acknowledgements."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import Client, Harness, Refusal, body_of, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame

from .rules import rule


def transactional(client: Client) -> None:
    assert client.call(1, m.TxSelect()) == m.TxSelectOk()


def commit(client: Client) -> None:
    assert client.call(1, m.TxCommit()) == m.TxCommitOk()


def rollback(client: Client) -> None:
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()


@rule("tx.commit.transacted", "commit without select is 406.")
@rule("tx.rollback.transacted", "rollback without select is 406.")
@pytest.mark.parametrize("call", [m.TxCommit(), m.TxRollback()])
def test_a_transaction_has_to_be_selected(client: Client, call: Any) -> None:
    text = "PRECONDITION_FAILED - channel is not transactional"
    assert client.refused(1, call) == Refusal("channel", 406, text, type(call))


@rule("rabbitmq.tx.select", "select may be repeated within a transaction; a confirming channel refuses it with 406.")
def test_select_may_be_repeated(client: Client) -> None:
    client.declare("q")
    transactional(client)
    client.publish("", "q")
    transactional(client)
    commit(client)
    assert client.declare("q").message_count == 1
    client.open(2)
    client.call(2, m.ConfirmSelect(False))
    refusal = client.refused(2, m.TxSelect())
    text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    assert refusal == Refusal("channel", 406, text, m.TxSelect)


@rule("rabbitmq.tx", "What is published appears with the commit, in order, and never after a rollback.")
def test_publishes_wait_for_the_commit(client: Client, other: Client) -> None:
    client.declare("q")
    transactional(client)
    other.consume("q", no_ack=True)
    client.feed(publish_frames("", "q", b"1") + publish_frames("", "q", b"2"))
    other.nothing()
    commit(client)
    assert other.bodies() == [b"1", b"2"]
    client.publish("", "q", b"3")
    rollback(client)
    commit(client)
    other.nothing()


@rule("rabbitmq.tx", "A new transaction begins with every commit and rollback.")
def test_transactions_follow_each_other(client: Client) -> None:
    client.declare("q")
    transactional(client)
    for number in range(3):
        client.publish("", "q", b"%d" % number)
        if number % 2:
            rollback(client)
        else:
            commit(client)
    assert client.declare("q").message_count == 2


@rule("rabbitmq.tx", "Acks settle with the commit; after a rollback the messages are unacked still, not redelivered.")
def test_acks_wait_for_the_commit(client: Client, harness: Harness) -> None:
    client.declare("q")
    for _ in range(3):
        client.publish("", "q")
    transactional(client)
    for _ in range(3):
        client.get("q")
    client.send(1, m.BasicAck(2, True))
    assert harness.queue("q").unacked_count == 3
    rollback(client)
    assert harness.queue("q").unacked_count == 3
    client.nothing()
    client.send(1, m.BasicAck(1, False), m.BasicAck(3, True))
    commit(client)
    assert (harness.queue("q").ready_count, harness.queue("q").unacked_count) == (0, 0)


@rule("rabbitmq.tx", "Rejected messages go back, or away, with the commit.")
def test_rejects_wait_for_the_commit(client: Client, harness: Harness) -> None:
    client.declare("q")
    for body in (b"1", b"2", b"3"):
        client.publish("", "q", body)
    transactional(client)
    for _ in range(3):
        client.get("q")
    client.send(1, m.BasicReject(1, True), m.BasicNack(2, multiple=False, requeue=False))
    assert harness.queue("q").ready_count == 0
    commit(client)
    got = client.get("q")
    assert got is not None and body_of(got) == b"1" and got.method.redelivered
    assert client.get("q") is None
    assert harness.queue("q").unacked_count == 2


@rule("basic.ack.multiple.exists", "In a transaction tags are checked at once, not at the commit.")
def test_tags_are_checked_at_once(client: Client) -> None:
    client.declare("q")
    client.publish("", "q")
    transactional(client)
    client.get("q")
    client.send(1, m.BasicAck(1, False))
    client.nothing()
    refusal = client.refused(1, m.BasicAck(1, False))
    assert refusal == Refusal("channel", 406, "PRECONDITION_FAILED - unknown delivery tag 1", m.BasicAck)


@rule("rabbitmq.tx", "A channel that closes takes its open transaction with it: nothing of it has happened.")
@pytest.mark.parametrize("how", ["close", "error", "hang up"])
def test_a_closing_channel_rolls_back(client: Client, other: Client, how: str) -> None:
    client.declare("q")
    client.publish("", "q", b"old")
    transactional(client)
    client.get("q")
    client.send(1, m.BasicAck(1, False))
    client.publish("", "q", b"new")
    if how == "close":
        client.call(1, m.ChannelClose(200, "", 0, 0))
    elif how == "error":
        client.refused(1, m.QueuePurge(0, "missing", False))
    else:
        client.hang_up()
    got = other.get("q")
    assert got is not None and body_of(got) == b"old" and got.method.redelivered
    assert other.get("q") is None


@rule("rabbitmq.tx", "Unacked messages count against the prefetch until their acks are committed.")
def test_prefetch_moves_with_the_commit(client: Client) -> None:
    client.declare("q")
    client.feed(publish_frames("", "q") * 4)
    transactional(client)
    client.call(1, m.BasicQos(0, 2, False))
    client.consume("q")
    assert len(client.deliveries()) == 2
    client.send(1, m.BasicAck(2, True))
    client.nothing()
    client.send(1, m.TxCommit())
    kinds = [type(each.method) for each in client.take()]
    assert kinds == [m.TxCommitOk, m.BasicDeliver, m.BasicDeliver]


@rule("rabbitmq.tx", "Mandatory messages that nobody takes come back at the commit, before commit-ok.")
def test_returns_come_with_the_commit(client: Client) -> None:
    transactional(client)
    client.publish("", "nowhere", b"m", mandatory=True)
    client.nothing()
    client.send(1, m.TxCommit())
    kinds = [type(each.method) for each in client.take()]
    assert kinds == [m.BasicReturn, m.TxCommitOk]


@rule("rabbitmq.tx", "A queue deleted within the transaction takes nothing at the commit.")
def test_a_deleted_queue_takes_nothing(client: Client, other: Client) -> None:
    client.declare("q")
    transactional(client)
    client.publish("", "q")
    other.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    other.declare("q")
    commit(client)
    assert other.declare("q").message_count == 0


@rule("rabbitmq.tx", "A mandatory message whose queue is deleted before the commit comes back.")
def test_a_message_for_a_deleted_queue_comes_back(client: Client, other: Client) -> None:
    client.declare("q")
    transactional(client)
    client.publish("", "q", mandatory=True)
    other.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    client.send(1, m.TxCommit())
    assert [type(each.method) for each in client.take()] == [m.BasicReturn, m.TxCommitOk]


@rule("rabbitmq.tx", "Errors of a publish are told at once.")
def test_errors_of_a_publish_are_told_at_once(client: Client) -> None:
    transactional(client)
    client.publish("missing", "k")
    assert client.refusal().code == 404


@rule("rabbitmq.tx", "commit-ok comes also when nothing of the transaction is left to be stored.")
def test_a_commit_with_nothing_to_store_is_answered(client: Client, harness: Harness) -> None:
    client.declare("q", durable=True, arguments={"x-max-length": 0})
    transactional(client)
    for _ in range(3):  # the first names the queue in the log, and waits for that
        client.publish("", "q", delivery_mode=2)
        commit(client)
        harness.broker.log.force()
        harness.settle()


@rule("rabbitmq.tx.commit", "commit is answered when the queues that have its messages are declared for good, too.")
def test_a_commit_waits_for_the_declarations_of_its_queues_only(client: Client, harness: Harness) -> None:
    other = harness.channel()
    client.declare("old", durable=True)
    transactional(client)
    harness.broker.journal.hold()
    other.send(1, queue_declare("new", durable=True))

    def publish(queue: str) -> list[object]:
        client.feed(publish_frames("", queue, properties={"delivery_mode": 2}) + method_frame(1, m.TxCommit()))
        return [received.method for received in client.take()]

    assert publish("old") == [m.TxCommitOk()]
    assert publish("new") == []
    harness.broker.journal.release()
    harness.settle()
    assert client.expect(m.TxCommitOk) == m.TxCommitOk()
