"""Key-shared queues: x-key-shared, x-key-header."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, basic_consume, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.queues.shared_keys import ASIDE_MAX

from .rules import rule

RULE = "warren.queue.key-shared"


def declare(client: Client, *, durable: bool = False, **arguments: Any) -> None:
    """Declare the queue and have it get every routing key."""
    more: Table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    client.declare("q", durable=durable, arguments={"x-key-shared": True} | more)
    client.bind("q", "amq.fanout")


def publish(client: Client, *bodies: str, **properties: Any) -> None:
    """Publish messages whose key is the first character of their body."""
    client.feed(
        b"".join(publish_frames("amq.fanout", body[0], body.encode(), properties=properties) for body in bodies)
    )


def consume(client: Client, tag: str, *, prefetch: int = 0, no_ack: bool = False, priority: int = 0) -> None:
    client.send(1, m.BasicQos(0, prefetch, False))
    client.pick(m.BasicQosOk)
    client.consume("q", tag, no_ack=no_ack, arguments={"x-priority": priority})


def came(client: Client) -> list[str]:
    """Take what was delivered, as ``tag:body``."""
    return [f"{each.method.consumer_tag}:{body_of(each).decode()}" for each in client.deliveries()]


def ack(client: Client, tag: int, *, multiple: bool = False) -> None:
    client.send(1, m.BasicAck(tag, multiple))


def nack(client: Client, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
    client.send(1, m.BasicNack(tag, multiple, requeue))


def get(client: Client, *, no_ack: bool = False) -> str | None:
    """Return the body that a basic.get brings."""
    got = client.get("q", no_ack=no_ack)
    return None if got is None else body_of(got).decode()


def ready(client: Client) -> int:
    return client.declare("q", passive=True).message_count


# --- who gets what ----------------------------------------------------------------------------------------------------


@rule(RULE, "While something of a key is unanswered, the rest of it goes to the same consumer, in order.")
def test_a_key_stays_with_its_consumer(client: Client) -> None:
    declare(client)
    consume(client, "one")
    consume(client, "two")
    publish(client, "a1", "a2")
    publish(client, "b1")
    publish(client, "a3")
    publish(client, "b2", "a4")
    assert came(client) == ["one:a1", "one:a2", "two:b1", "one:a3", "two:b2", "one:a4"]


@rule(RULE, "Keys of which nothing is unanswered go to all consumers in turn, messages that had to wait as well.")
@pytest.mark.parametrize("waiting", [False, True])
def test_keys_are_spread(client: Client, waiting: bool) -> None:
    declare(client)
    keys = [chr(ord("a") + number) for number in range(20)]
    if waiting:
        publish(client, *keys, *keys)
    client.send(1, *[basic_consume("q", f"c{number}") for number in range(4)])
    for _ in range(4):
        client.pick(m.BasicConsumeOk)
    if not waiting:
        publish(client, *keys, *keys)
    found: dict[str, list[str]] = {}
    for each in client.deliveries():
        found.setdefault(each.method.consumer_tag, []).append(body_of(each).decode())
    assert [len(bodies) for bodies in found.values()] == [10] * 4
    assert sorted(key for bodies in found.values() for key in set(bodies)) == keys


@rule(RULE, "A key that is answered for is free: its next message goes to whoever is next.")
def test_an_answered_key_is_free(client: Client) -> None:
    declare(client)
    consume(client, "one", prefetch=1)
    consume(client, "two", prefetch=1)
    publish(client, "a1", "a2")
    assert came(client) == ["one:a1"]
    ack(client, 1)
    assert came(client) == ["two:a2"]


@rule(RULE, "A consumer that is full holds up its keys only.")
def test_a_full_consumer_holds_up_its_keys_only(client: Client) -> None:
    declare(client)
    consume(client, "one", prefetch=1)
    consume(client, "two", prefetch=3)
    publish(client, "a1", "a2", "b1", "a3", "c1", "b2")
    assert came(client) == ["one:a1", "two:b1", "two:c1", "two:b2"]
    assert ready(client) == 2
    publish(client, "d1", "b3")
    assert came(client) == []
    ack(client, 4)
    assert came(client) == ["two:d1"]
    ack(client, 1)
    assert came(client) == ["one:a2"]


@rule(RULE, "A consumer that does not read holds up its keys only.")
def test_a_consumer_that_does_not_read_holds_up_its_keys_only(client: Client) -> None:
    harness = client.harness
    declare(client)
    slow = harness.channel()
    consume(slow, "slow")
    publish(client, "a1")
    assert came(slow) == ["slow:a1"]
    slow.peer.stalled = True
    consume(client, "quick")
    size = int(harness.broker.limits.outbox_soft_bytes)
    publish(client, "a2" + "x" * size, "a3", "b1", "a4", "c1")
    assert came(client) == ["quick:b1", "quick:c1"]
    harness.wake(slow.peer)
    assert [text[:7] for text in came(slow)] == ["slow:a2", "slow:a3", "slow:a4"]


@rule(RULE, "Consumers of higher priority are preferred for a free key; a key that is not free stays where it is.")
def test_priority_decides_on_free_keys(client: Client) -> None:
    declare(client)
    consume(client, "low", prefetch=2)
    publish(client, "a1")
    consume(client, "high", prefetch=2, priority=5)
    publish(client, "a2", "b1", "c1", "a3", "d1")
    assert came(client) == ["low:a1", "low:a2", "high:b1", "high:c1"]
    ack(client, 1)
    assert came(client) == ["low:a3"]
    ack(client, 3)
    assert came(client) == ["high:d1"]


@rule(RULE, "What needs no acknowledgement leaves its key free.")
def test_consumers_without_acks_bind_nothing(client: Client) -> None:
    declare(client)
    consume(client, "one", no_ack=True)
    consume(client, "two", no_ack=True)
    publish(client, "a1", "a2", "a3")
    assert came(client) == ["one:a1", "two:a2", "one:a3"]


@rule(RULE, "x-max-unacked limits what is out, of bound keys as well.")
def test_the_queues_limit_of_unacked_messages_holds(client: Client) -> None:
    declare(client, max_unacked=2)
    consume(client, "one")
    publish(client, "a1", "a2", "a3", "b1")
    assert came(client) == ["one:a1", "one:a2"]
    ack(client, 1)
    assert came(client) == ["one:a3"]


# --- what the key is --------------------------------------------------------------------------------------------------


@rule(RULE, "With x-key-header the key is the value of that header as text, whatever its type; without it it is empty.")
def test_a_header_can_be_the_key(client: Client) -> None:
    declare(client, key_header="customer")
    consume(client, "one", prefetch=2)
    consume(client, "two", prefetch=3)
    for body, value in (("1", 5), ("2", "5"), ("3", None), ("4", ""), ("5", 5)):
        headers: Table = {"other": "customer", "customer": value} if value is not None else {"other": 1}
        publish(client, body, headers=encode_table(headers))
    publish(client, "6")
    assert came(client) == ["one:1", "one:2", "two:3", "two:4", "two:6"]
    ack(client, 2, multiple=False)
    assert came(client) == ["one:5"]


# --- back -------------------------------------------------------------------------------------------------------------


@rule(RULE, "What is requeued goes before all later messages of its key that wait.")
def test_a_requeued_message_goes_before_later_ones(client: Client) -> None:
    declare(client)
    consume(client, "one", prefetch=2)
    publish(client, "a1", "a2", "a3", "a4")
    assert came(client) == ["one:a1", "one:a2"]
    nack(client, 1)
    assert came(client) == ["one:a1"]
    nack(client, 3, multiple=True)
    assert came(client) == ["one:a1", "one:a2"]


@rule(RULE, "Of a channel that ends everything comes back, and each key goes on in order with another consumer.")
@pytest.mark.parametrize("how", ["channel", "connection"])
def test_a_consumer_that_dies_leaves_its_keys_in_order(client: Client, other: Client, how: str) -> None:
    declare(client)
    consume(other, "dies")
    publish(client, "a1", "b1", "a2", "b2")
    assert len(came(other)) == 4
    consume(client, "one")
    consume(client, "two")
    publish(client, "a3")
    assert came(other) == ["dies:a3"]
    if how == "channel":
        other.call(1, m.ChannelClose(200, "", 0, 0))
    else:
        other.hang_up()
    assert came(client) == ["one:a1", "two:b1", "one:a2", "two:b2", "one:a3"]


@rule(RULE, "A cancelled consumer keeps its keys until what it has is answered or comes back.")
def test_a_cancelled_consumer_keeps_its_keys(client: Client, other: Client) -> None:
    declare(client)
    consume(other, "gone", prefetch=2)
    publish(client, "a1", "b1", "a2", "b2", "b3")
    assert came(other) == ["gone:a1", "gone:b1"]
    other.call(1, m.BasicCancel("gone", False))
    consume(client, "one")
    consume(client, "two")
    publish(client, "a3", "c1")
    assert came(client) == ["one:c1"]
    ack(other, 1)
    assert came(client) == ["two:a2", "two:a3"]
    nack(other, 2)
    assert came(client) == ["one:b1", "one:b2", "one:b3"]
    other.nothing()


@rule(RULE, "An ack in a transaction frees its key with the commit.")
def test_a_transaction_frees_keys_with_its_commit(client: Client, other: Client) -> None:
    declare(client)
    assert other.call(1, m.TxSelect()) == m.TxSelectOk()
    consume(other, "buffers", prefetch=1)
    publish(client, "a1", "a2")
    assert came(other) == ["buffers:a1"]
    consume(client, "one")
    ack(other, 1)
    client.nothing()
    other.send(1, m.TxCommit())
    assert len(other.take()) + len(came(client)) == 2
    assert ready(client) == 0


@rule(RULE, "A dead letter that comes back to its queue goes behind what waits of its key.")
def test_a_dead_letter_comes_last_of_its_key(client: Client, other: Client) -> None:
    declare(client, dead_letter_exchange="amq.fanout")
    client.call(1, m.BasicQos(0, 1, True))
    consume(client, "one")
    consume(other, "two")
    publish(client, "a1", "a2")
    assert came(client) == ["one:a1"]
    # Its channel has room again when the letter comes, but its turn has not.
    nack(client, 1, requeue=False)
    assert came(client) == ["one:a2"]
    other.nothing()
    ack(client, 2)
    assert came(client) + came(other) in (["one:a1"], ["two:a1"])


# --- basic.get --------------------------------------------------------------------------------------------------------


@rule(RULE, "basic.get takes the oldest message whose key is free; the gets of one channel are one consumer.")
def test_a_get_takes_what_is_free(client: Client, other: Client) -> None:
    declare(client)
    publish(client, "a1", "a2", "b1", "b2", "c1")
    assert get(client) == "a1"
    assert get(other) == "b1"
    assert get(client) == "a2"
    assert get(other) == "b2"
    assert get(other, no_ack=True) == "c1"
    publish(client, "a3")
    assert get(other) is None
    assert ready(client) == 1
    ack(client, 2, multiple=True)
    assert get(other) == "a3"
    nack(other, 2)
    assert get(client) is None
    ack(other, 1)
    assert get(client) == "b2"


@rule(RULE, "What was got binds its key for consumers too, and what consumers have binds theirs for gets.")
def test_gets_and_consumers_respect_each_other(client: Client, other: Client) -> None:
    declare(client)
    publish(client, "a1", "a2", "b1")
    assert get(other) == "a1"
    consume(client, "one", prefetch=1)
    assert came(client) == ["one:b1"]
    publish(client, "b2", "c1")
    assert get(other) == "a2"
    assert get(other) == "c1"
    assert get(other) is None
    ack(client, 1)
    assert came(client) == ["one:b2"]


# --- what waits -------------------------------------------------------------------------------------------------------


def with_messages_aside(client: Client, **arguments: Any) -> None:
    """Leave ``a2`` to ``a4`` waiting for a consumer that is full, while another one has room."""
    declare(client, **arguments)
    consume(client, "full", prefetch=1)
    publish(client, "a1")
    consume(client, "free", prefetch=10)
    publish(client, "a2", "a3", "b1", "a4")
    assert came(client) == ["full:a1", "free:b1"]
    assert ready(client) == 3


@rule(RULE, "Messages that wait for the consumer of their key are ready: they are counted and purged.")
def test_what_waits_is_ready(client: Client) -> None:
    with_messages_aside(client)
    assert client.call(1, m.QueuePurge(0, "q", False)) == m.QueuePurgeOk(3)
    publish(client, "a5")
    ack(client, 1)
    assert came(client) == ["full:a5"]


@rule(RULE, "A length limit drops the oldest message that waits, whatever its key.")
def test_what_waits_counts_towards_a_length_limit(client: Client) -> None:
    with_messages_aside(client, max_length=3)
    publish(client, "a5")
    assert ready(client) == 3
    ack(client, 1)
    assert came(client) == ["full:a3"]


@rule(RULE, "Messages that wait expire, of the queue's time to live and of their own.")
@pytest.mark.parametrize("own", [False, True])
def test_what_waits_expires(client: Client, own: bool) -> None:
    if own:
        with_messages_aside(client)
        publish(client, "a5", expiration="1000")
    else:
        with_messages_aside(client, message_ttl=1000)
    client.harness.pass_time(0.5)
    publish(client, "a6")
    client.harness.pass_time(0.6)
    assert ready(client) == (4 if own else 1)
    ack(client, 1)
    assert came(client) == (["full:a2"] if own else ["full:a6"])


@rule(RULE, "At most 10,000 messages are looked past: behind them other keys wait too, until one of them leaves.")
def test_so_many_messages_are_looked_past_and_no_more(client: Client) -> None:
    declare(client)
    consume(client, "full", prefetch=2)
    publish(client, "a1", "a2")
    consume(client, "free")
    publish(client, *["a"] * (ASIDE_MAX - 1), "b1", "a", "b2", "a", "c1")
    assert ASIDE_MAX == 10_000
    assert came(client) == ["full:a1", "full:a2", "free:b1", "free:b2"]
    assert ready(client) == ASIDE_MAX + 2
    ack(client, 1)
    assert came(client) == ["full:a"]
    ack(client, 2)
    assert came(client) == ["full:a", "free:c1"]


@rule(RULE, "A queue that is deleted forgets its keys; what is out may be answered.")
def test_a_deleted_queue_forgets_its_keys(client: Client) -> None:
    with_messages_aside(client)
    client.send(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert m.QueueDeleteOk(3) in [each.method for each in client.take()]
    ack(client, 1)
    nack(client, 2)
    declare(client)
    publish(client, "a1")
    assert get(client) == "a1"


@rule(RULE, "After a restart every key goes on in order, what had waited and what had been out.")
@pytest.mark.parametrize("clean", [False, True])
def test_order_survives_a_restart(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, durable=True)
    consume(client, "full", prefetch=2)
    publish(client, "a1", "a2", delivery_mode=2)
    consume(client, "free", prefetch=1)
    publish(client, "a3", "b1", "a4", "b2", delivery_mode=2)
    assert came(client) == ["full:a1", "full:a2", "free:b1"]
    harness.write()
    harness = harness.restart(clean=clean)
    client = harness.channel()
    consume(client, "one")
    consume(client, "two")
    found = came(client)
    assert sorted(text[4:] for text in found) == ["a1", "a2", "a3", "a4", "b1", "b2"]
    assert [text[4:] for text in found if "a" in text] == ["a1", "a2", "a3", "a4"]
    assert [text[4:] for text in found if "b" in text] == ["b1", "b2"]


@rule(RULE, "A message that finds its key's consumer full and is not in memory waits as others do.")
def test_a_long_queue_keeps_keys_in_order() -> None:
    harness = Harness()
    log = harness.broker.log
    log.memory_bytes = 0
    client = harness.channel()
    declare(client, durable=True)
    bodies = [f"{'abcd'[number % 4]}{number}" for number in range(2000)]
    for at in range(0, 2000, 100):
        publish(client, *bodies[at : at + 100], delivery_mode=2)
        log.close_if_due(lingered=True)
        harness.settle()
    assert get(client) == "a0"
    assert get(client, no_ack=True) == "b1"
    client.send(1, m.BasicRecover(True))
    client.take()
    for number in range(3):
        client.send(1, m.BasicQos(0, 5, False), basic_consume("q", f"c{number}"))
    seen: dict[str, list[str]] = {}
    while True:
        received = [each for each in client.take() if each.content is not None]
        for each in received:
            body = body_of(each).decode()
            seen.setdefault(body[0], []).append(body)
        if not received:
            break
        ack(client, 0, multiple=True)
    for key in "abcd":
        assert seen[key] == [body for body in bodies if body[0] == key and body != "b1"]
