"""Deduplication: x-message-deduplication on queues and exchanges, keys in a header, numbers of producers."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Refusal, body_of, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.vhosts.metadata import VhostDelete

from .rules import rule

DEDUP: Table = {"x-message-deduplication": True}
KEY = "x-deduplication-header"


def headers(table: Table, **properties: Any) -> dict[str, Any]:
    return {"headers": encode_table(table), "delivery_mode": 2, **properties}


def keyed(key: object, **properties: Any) -> dict[str, Any]:
    """Return the properties of a persistent message with this key."""
    return headers({KEY: key}, **properties)


def numbered(producer: str, sequence: int) -> dict[str, Any]:
    return headers({"x-producer": producer, "x-seq": sequence})


def declare(client: Client, name: str = "q", **arguments: object) -> None:
    """Declare a durable queue that drops repetitions."""
    client.declare(name, durable=True, arguments=DEDUP | {"x-" + k.replace("_", "-"): v for k, v in arguments.items()})


def declare_exchange(client: Client, name: str = "e", kind: str = "fanout", **arguments: object) -> None:
    """Declare a durable exchange that drops repetitions."""
    table = DEDUP | {"x-" + k.replace("_", "-"): v for k, v in arguments.items()}
    assert client.call(1, exchange_declare(name, kind, durable=True, arguments=table)) == m.ExchangeDeclareOk()


def confirming(client: Client) -> Client:
    assert client.call(1, m.ConfirmSelect(False)) == m.ConfirmSelectOk()
    return client


def answer(client: Client, exchange: str, key: str, body: bytes = b"", **properties: Any) -> type[Any]:
    """Publish in confirm mode, and return what kind of answer came: BasicAck or BasicNack."""
    client.publish(exchange, key, body, **properties)
    (received,) = client.take()
    return type(received.method)


def bodies(client: Client, queue: str = "q") -> list[bytes]:
    """Take everything out of a queue."""
    found = []
    while (got := client.get(queue, no_ack=True)) is not None:
        found.append(body_of(got))
    return found


# --- queues -----------------------------------------------------------------------------------------------------------


@rule("warren.dedup.queue", "A message whose key the queue has accepted before is dropped, and confirmed with an ack.")
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("mode", [1, 2])
def test_a_repetition_is_dropped_and_acked(client: Client, durable: bool, mode: int) -> None:
    client.declare("q", durable=durable, arguments=DEDUP)
    confirming(client)
    for number, key in enumerate(["a", "b", "a", 5, b"b", 5, "5"]):
        assert answer(client, "", "q", b"%d" % number, **keyed(key, delivery_mode=mode)) is m.BasicAck
    assert bodies(client) == [b"0", b"1", b"3", b"6"]


@rule("warren.dedup.queue", "What has no key, or none that can be one, is never a repetition.")
def test_what_has_no_key_is_not_looked_at(client: Client) -> None:
    declare(client)
    for properties in ({}, headers({"other": "a"}), keyed(1.5), keyed([1]), keyed(None), keyed(True)):
        for _ in range(2):
            client.publish("", "q", **properties)
    client.publish("", "q", b"x" * 300_000)
    assert len(bodies(client)) == 13


@rule("warren.dedup.queue", "Neither a delivery, an ack nor a purge lets a key in again; deleting the queue does.")
def test_a_key_outlives_its_message(client: Client) -> None:
    declare(client)
    client.publish("", "q", **keyed("a"))
    client.publish("", "q", **keyed("b"))
    assert client.get("q", no_ack=True) is not None
    assert client.call(1, m.QueuePurge(0, "q", False)) == m.QueuePurgeOk(1)
    for key in "ab":
        client.publish("", "q", **keyed(key))
    assert bodies(client) == []
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    declare(client)
    client.publish("", "q", b"again", **keyed("a"))
    assert bodies(client) == [b"again"]


@rule("warren.dedup.queue", "x-deduplication-header names the header; x-cache-size and x-cache-ttl bound the window.")
def test_header_size_and_time_are_arguments(client: Client, harness: Harness) -> None:
    declare(client, deduplication_header="id", cache_size=2, cache_ttl=1000)

    def publish(key: str) -> bool:
        client.publish("", "q", **headers({"id": key, KEY: "always the same"}))
        return len(bodies(client)) == 1

    assert [publish(key) for key in ("a", "b", "a", "c", "a")] == [True, True, False, True, True]
    harness.pass_time(0.999)
    assert not publish("a")
    harness.pass_time(0.001)
    assert publish("a")


@rule("warren.dedup.queue", "After a start with the clock set back a key is remembered for x-cache-ttl at most.")
@pytest.mark.parametrize("clean", [False, True])
def test_a_key_of_a_clock_that_was_ahead(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, cache_ttl=1000)
    client.publish("", "q", b"first", **keyed("a"))
    harness.write()
    harness = harness.restart(clean=clean, down_s=-3600)
    client = harness.channel()
    harness.pass_time(0.999)
    client.publish("", "q", b"again", **keyed("a"))
    harness.pass_time(0.001)
    client.publish("", "q", b"another", **keyed("a"))
    assert bodies(client) == [b"first", b"another"]


@rule("warren.dedup.producer", "A number that is not larger than the highest accepted of x-producer is a repetition.")
def test_numbers_of_producers(client: Client) -> None:
    declare(client)
    declare_exchange(client)
    client.declare("r")
    client.bind("r", "e")
    for exchange, queue in (("", "q"), ("e", "r")):
        for producer, sequence in (("p", 1), ("p", 3), ("p", 2), ("p", 3), ("other", 2), ("p", 4)):
            client.publish(exchange, "q", b"%s %d" % (producer.encode(), sequence), **numbered(producer, sequence))
        assert bodies(client, queue) == [b"p 1", b"p 3", b"other 2", b"p 4"]


@rule("warren.dedup.refused", "A publish that the queue refused is not remembered: sent again it is taken.")
def test_a_refused_publish_leaves_nothing(client: Client) -> None:
    declare(client, max_length=1, overflow="reject-publish")
    confirming(client)
    assert answer(client, "", "q", b"1", **keyed("a")) is m.BasicAck
    assert answer(client, "", "q", b"2", **keyed("b")) is m.BasicNack
    assert answer(client, "", "q", b"3", **numbered("p", 7)) is m.BasicNack
    assert answer(client, "", "q", b"4", **keyed("a")) is m.BasicAck, "what was accepted is acked, full or not"
    assert bodies(client) == [b"1"]
    assert answer(client, "", "q", b"5", **keyed("b")) is m.BasicAck
    assert bodies(client) == [b"5"]
    assert answer(client, "", "q", b"6", **numbered("p", 7)) is m.BasicAck
    assert bodies(client) == [b"6"]


@rule("warren.dedup.queue", "It goes with priorities, a TTL and a length limit.")
def test_it_goes_with_other_rules(client: Client) -> None:
    declare(client, max_priority=5, max_length=3, message_ttl=60_000)
    for number, key in enumerate(["a", "b", "a", "c", "d", "b"]):
        client.publish("", "q", b"%d" % number, **keyed(key, priority=number))
    assert bodies(client) == [b"3", b"1", b"0"], "4 in all, and the first of the highest priority was one too many"


# --- exchanges --------------------------------------------------------------------------------------------------------


@rule("warren.dedup.exchange", "An exchange drops what it has routed before, for all its queues, and confirms it.")
def test_an_exchange_drops_for_all_its_queues(client: Client, harness: Harness) -> None:
    declare_exchange(client)
    for queue in ("q", "r"):
        client.declare(queue, durable=True)
        client.bind(queue, "e")
    confirming(client)
    for number, key in enumerate("abab"):
        assert answer(client, "e", "", b"%d" % number, mandatory=True, **keyed(key)) is m.BasicAck
    assert answer(client, "", "q", b"4", **keyed("a")) is m.BasicAck, "by another exchange"
    assert bodies(client, "q") == [b"0", b"1", b"4"]
    assert bodies(client, "r") == [b"0", b"1"]
    assert harness.vhost.seen_keys["e"].dropped == 2


@rule("warren.dedup.exchange", "What no queue got, or any queue refused, is not remembered.")
def test_an_exchange_remembers_what_was_accepted_by_all(client: Client) -> None:
    declare_exchange(client)
    confirming(client)
    client.publish("e", "", b"1", mandatory=True, **keyed("a"))
    returned, confirmed = client.take()
    assert (type(returned.method), type(confirmed.method)) == (m.BasicReturn, m.BasicAck)
    client.declare("q", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("r", durable=True)
    for queue in ("q", "r"):
        client.bind(queue, "e")
    assert answer(client, "e", "", b"2", **keyed("a")) is m.BasicAck
    assert answer(client, "e", "", b"3", **keyed("b")) is m.BasicNack
    assert bodies(client, "q") == [b"2"]
    assert answer(client, "e", "", b"4", **keyed("b")) is m.BasicAck
    assert answer(client, "e", "", b"5", **keyed("b")) is m.BasicAck
    assert bodies(client, "q") == [b"4"]
    assert bodies(client, "r") == [b"2", b"3", b"4"]


@rule(
    "warren.dedup.exchange", "Only publishes to the exchange count, not what comes over a binding or to an alternate."
)
def test_only_publishes_to_the_exchange_count(client: Client) -> None:
    declare_exchange(client)
    client.declare_exchange("first", "fanout", arguments={"alternate-exchange": "e"})
    client.declare("q")
    client.bind("q", "e")
    for exchange in ("first", "first", "e", "e"):
        client.publish(exchange, "", exchange.encode(), **keyed("a"))
    assert client.call(1, m.ExchangeBind(0, "e", "first", "", False, encode_table({}))) == m.ExchangeBindOk()
    client.publish("first", "", b"bound", **keyed("a"))
    assert bodies(client) == [b"first", b"first", b"e", b"bound"]


@rule(
    "warren.dedup.exchange",
    "What no durable queue gets is remembered until the broker stops, and no confirm waits.",
)
def test_what_nobody_stores_is_not_stored(client: Client, harness: Harness) -> None:
    declare_exchange(client)
    client.declare("q")
    client.bind("q", "e")
    confirming(client)
    for body in (b"1", b"2"):
        assert answer(client, "e", "", body, **keyed("a")) is m.BasicAck
    assert bodies(client) == [b"1"]
    assert harness.indexes == []


@rule("warren.dedup.exchange", "A recent-history exchange does not keep a repetition.")
def test_a_history_has_no_repetitions(client: Client) -> None:
    declare_exchange(client, kind="x-recent-history")
    client.declare("q")
    client.bind("q", "e")
    for body in (b"1", b"2"):
        client.publish("e", "", body, **keyed("a"))
    client.declare("late")
    client.bind("late", "e")
    assert bodies(client) == bodies(client, "late") == [b"1"]


@rule(
    "warren.dedup.arguments",
    "An exchange refuses the arguments that a queue refuses, and to be redeclared with others.",
)
def test_arguments_of_exchanges_are_checked(client: Client, harness: Harness) -> None:
    bad = exchange_declare("e", arguments=DEDUP | {"x-cache-size": 0})
    text = "PRECONDITION_FAILED - invalid arg 'x-cache-size' for exchange 'e' in vhost '/': {value_zero,0}"
    assert client.refused(1, bad) == Refusal("channel", 406, text, m.ExchangeDeclare)
    assert "e" not in harness.vhost.exchanges
    declare_exchange(client, cache_size=5)
    declare_exchange(client, cache_size=5)
    text = (
        "PRECONDITION_FAILED - inequivalent arg 'x-cache-size' for exchange 'e' in vhost '/': "
        "received '6' but current is '5'"
    )
    other = exchange_declare("e", "fanout", durable=True, arguments=DEDUP | {"x-cache-size": 6})
    assert client.refused(1, other) == Refusal("channel", 406, text, m.ExchangeDeclare)
    text = (
        "PRECONDITION_FAILED - inequivalent arg 'x-message-deduplication' for queue 'q' in vhost '/': "
        "received none but current is the value 'true' of type 'bool'"
    )
    declare(client)
    assert client.refused(1, queue_declare("q", durable=True)) == Refusal("channel", 406, text, m.QueueDeclare)


@rule("warren.dedup.exchange", "A deleted exchange, or vhost, has forgotten everything; the log too.")
def test_what_is_deleted_leaves_nothing_in_the_log(client: Client, harness: Harness) -> None:
    log = harness.broker.log
    declare_exchange(client)
    declare(client)
    client.bind("q", "e")
    for properties in (keyed("a"), numbered("p", 1)):
        client.publish("e", "", **properties)
    log.force()
    harness.settle()
    assert sorted(int(index.lane) for index in harness.indexes) == [0, 260, 261, 262, 263]
    client.call(1, m.ExchangeDelete(0, "e", if_unused=False, no_wait=False))
    assert sorted(int(index.lane) for index in harness.indexes) == [0, 260, 262]
    declare_exchange(client)
    client.bind("q", "e")
    client.publish("e", "", **keyed("a"))
    assert harness.vhost.seen_keys["e"].count() == 1
    harness.broker.administer(VhostDelete("/"))
    harness.settle()
    assert harness.indexes == []


# --- confirms and transactions ----------------------------------------------------------------------------------------


@rule("warren.dedup.confirm", "No confirm before the key is on disk, not that of a repetition either.")
@pytest.mark.parametrize("exchange", ["", "e"])
def test_a_confirm_waits_for_the_key(client: Client, other: Client, harness: Harness, exchange: str) -> None:
    if exchange:
        declare_exchange(client)
        client.declare("q", durable=True)
        client.bind("q", "e")
    else:
        declare(client)
    other.consume("q", no_ack=True)
    harness.broker.log.force()
    harness.settle()
    confirming(client)
    harness.store.hold = True
    client.publish(exchange, "q", b"1", **keyed("a"))
    assert other.bodies() == [b"1"], "delivered without ack: of the message nothing is stored"
    client.publish(exchange, "q", b"2", **keyed("a"))
    client.publish(exchange, "q", b"3")
    client.nothing()
    assert other.bodies() == [b"3"]
    harness.store.hold = False
    harness.settle()
    assert client.take()[-1].method == m.BasicAck(3, True)
    client.publish(exchange, "q", b"4", **keyed("a"))
    assert client.expect(m.BasicAck) == m.BasicAck(4, False)
    other.nothing()


@rule("warren.dedup.confirm", "A repetition by another client is not confirmed before the first is on disk.")
@pytest.mark.parametrize("exchange", ["", "e"])
@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_confirm_waits_for_the_key_of_another_client(
    client: Client, other: Client, harness: Harness, exchange: str, is_under_way: bool
) -> None:
    declare(client)
    if exchange:
        declare_exchange(client)
        client.declare("r", durable=True)
        client.bind("r", "e")
    harness.broker.log.force()
    harness.settle()
    confirming(other)
    harness.store.hold = True
    client.publish(exchange, "q", b"1", **keyed("a"))  # without confirms: nobody else waits for its batch
    if is_under_way:
        harness.broker.log.force()
        harness.settle()
    assert (harness.broker.log.in_flight is not None) is is_under_way
    other.publish(exchange, "q", b"2", **keyed("a"))
    other.nothing()
    harness.store.hold = False
    harness.settle()
    assert other.expect(m.BasicAck) == m.BasicAck(1, False)
    assert bodies(client, "r" if exchange else "q") == [b"1"]


@rule("warren.dedup.tx", "A transaction's publishes are looked at when it is committed; a rollback leaves nothing.")
@pytest.mark.parametrize("exchange", ["", "e"])
def test_a_transaction_is_decided_at_its_commit(client: Client, other: Client, exchange: str) -> None:
    if exchange:
        declare_exchange(client)
        client.declare("q", durable=True)
        client.bind("q", "e")
    else:
        declare(client)
    client.call(1, m.TxSelect())
    client.publish(exchange, "q", b"1", **keyed("a"))
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()
    for body in (b"2", b"3"):
        client.publish(exchange, "q", body, **keyed("a"))
    client.publish(exchange, "q", b"4", **keyed("b"))
    other.publish(exchange, "q", b"5", **keyed("b"))
    assert client.call(1, m.TxCommit()) == m.TxCommitOk()
    assert bodies(other) == [b"5", b"2"]


@rule("warren.dedup.tx", "tx.commit-ok for a repetition waits until the first is on disk.")
@pytest.mark.parametrize("exchange", ["", "e"])
def test_commit_ok_waits_for_what_is_repeated(client: Client, other: Client, harness: Harness, exchange: str) -> None:
    declare(client)
    declare_exchange(client)
    client.bind("q", "e")
    harness.broker.log.force()
    harness.settle()
    client.call(1, m.TxSelect())
    confirming(other)
    harness.store.hold = True
    other.publish(exchange, "q", **keyed("a"))
    client.publish(exchange, "q", **keyed("a"))
    client.send(1, m.TxCommit())
    client.nothing()
    other.nothing()
    harness.store.hold = False
    harness.settle()
    assert client.expect(m.TxCommitOk) == m.TxCommitOk()
    client.publish(exchange, "q", **keyed("a"))
    assert client.call(1, m.TxCommit()) == m.TxCommitOk(), "with nothing to wait for"
    assert len(bodies(client)) == 1


# --- dead letters and delays ------------------------------------------------------------------------------------------


@rule("warren.dedup.dead-letter", "A dead letter comes back to where it was, whatever was seen there.")
def test_a_dead_letter_may_come_back(client: Client) -> None:
    declare(client, dead_letter_exchange="", dead_letter_routing_key="again")
    client.declare("again", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    client.publish("", "q", b"1", **keyed("a"))
    for queue in ("q", "again"):
        got = client.get(queue)
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, False))
    assert bodies(client) == [b"1"]


@rule("warren.dedup.dead-letter", "A dead letter leaves no key where it goes.")
def test_a_dead_letter_leaves_no_key(client: Client) -> None:
    declare(client)
    client.declare("first", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    client.publish("", "first", b"1", **keyed("a"))
    got = client.get("first")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    client.publish("", "q", b"2", **keyed("a"))
    client.publish("", "q", b"3", **keyed("a"))
    assert bodies(client) == [b"1", b"2"]


@rule("warren.dedup.delay", "A delayed message is remembered from its publish on, and passes when its time has come.")
@pytest.mark.parametrize("exchange", ["", "e"])
def test_a_delayed_message_counts_from_its_publish(client: Client, harness: Harness, exchange: str) -> None:
    if exchange:
        declare_exchange(client, cache_ttl=1000)
        client.declare("q", durable=True)
        client.bind("q", "e")
    else:
        declare(client, cache_ttl=1000)

    def publish(body: bytes, delay_ms: int = 0) -> None:
        table: Table = {KEY: "a"} | ({"x-delay": delay_ms} if delay_ms else {})
        client.publish(exchange, "q", body, **headers(table))

    publish(b"1", 900)
    publish(b"2")
    publish(b"3", 10)
    assert bodies(client) == []
    harness.pass_time(0.95)
    assert bodies(client) == [b"1"]
    publish(b"4")
    assert bodies(client) == []
    harness.pass_time(0.05)
    publish(b"5")
    assert bodies(client) == [b"5"]


@rule("warren.dedup.batch", "A window that many keys pass through in one batch ends with the latest of them.")
def test_many_publishes_in_one_go(client: Client, harness: Harness) -> None:
    """A window of 128 with 1,000 keys in one read: keys evicted in the same batch are never written."""
    declare(client)
    confirming(client)
    client.feed(b"".join(publish_frames("", "q", b"", 1, False, False, keyed(key)) for key in range(1000)))
    assert client.take()[-1].method == m.BasicAck(1000, True)
    queue = harness.queue("q")
    assert queue.ready_count == 1000
    assert queue.seen is not None
    assert queue.seen.count() == 128
    queue.seen.check_invariants()
    lanes = {int(index.lane): index for index in harness.broker.log.indexes.values()}
    assert lanes[260].live_count == 128
    assert lanes[260].first_page == 872 // 256
