"""Streams: which messages are kept, through crashes and beside other queues, and which retention drops."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import (
    Client,
    Harness,
    body_of,
)

from warren.amqp import methods as m
from warren.amqp.field_table import Timestamp, encode_table
from warren.streams.chunk_reader import SHORT_CHUNK_MESSAGES
from warren.vhosts.metadata import PolicyDelete

from .rules import rule
from .stream_clients import (
    OFFSET,
    PAGE,
    START_S,
    consume,
    declare,
    everything,
    fill,
    headers_of,
    numbers,
    offset_of,
    offsets,
    put_policy,
    restarted,
)
from .typed_table import text

# --- what is kept -----------------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.durable", "Everything is stored, whatever its delivery mode, and confirmed when it is synced.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("mode", [None, 1, 2])
def test_confirms(clean: bool, mode: int | None) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.call(1, m.ConfirmSelect(False))
    harness.store.hold = True
    properties: dict[str, Any] = {} if mode is None else {"delivery_mode": mode}
    client.publish("", "s", b"x", **properties)
    client.nothing()
    harness.store.hold = False
    harness.settle()
    assert client.expect(m.BasicAck).delivery_tag == 1
    harness = harness.restart(clean=clean)
    client = harness.channel()
    consume(client)
    (received,) = client.deliveries()
    assert (offset_of(received), body_of(received)) == (0, b"x")
    assert received.content is not None and received.content.properties.delivery_mode == mode
    assert not received.method.redelivered
    client.publish("", "s", b"y")
    assert offsets(client) == [1]


@rule("warren.stream.visible", "Nobody sees what is not synced: an offset once seen never stands for another message.")
@pytest.mark.parametrize("mode", [1, 2])
def test_nobody_sees_what_is_not_synced(mode: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 1)
    harness.write()
    consume(client)
    assert offsets(client) == [0]
    harness.store.hold = True
    client.publish("", "s", b"lost", delivery_mode=mode)
    client.open(2)
    client.call(2, m.BasicQos(0, 10, False))
    client.consume("s", arguments={OFFSET: "last"}, number=2)
    client.nothing()
    harness = harness.restart(clean=False)
    client = harness.channel()
    client.publish("", "s", b"another", delivery_mode=mode)
    assert everything(client) == [(0, b"0"), (1, b"another")]


@rule("warren.stream.visible", "What is synced is seen, whoever has come before or after the publish.")
def test_what_is_synced_is_seen() -> None:
    harness = DurableHarness()
    client, early, late = harness.channel(), harness.channel(), harness.channel()
    declare(client)
    consume(early)
    harness.store.hold = True
    fill(client, 2)
    consume(late)
    fill(client, 1, first=2)
    early.nothing()
    late.nothing()
    harness.store.hold = False
    harness.settle()
    assert offsets(early) == offsets(late) == [0, 1, 2]


@rule("rabbitmq.stream.durable", "It comes back with its messages, their times and its arguments.")
@pytest.mark.parametrize("clean", [False, True])
def test_it_comes_back(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_age="1h")
    fill(client, 40, seconds=1)
    for _ in range(2):
        harness, client = restarted(harness, clean=clean)
    assert harness.queue("s").ready_count == 40
    declare(client, max_age="1h")
    assert everything(client) == numbers(40)
    consume(client, {OFFSET: Timestamp(START_S + 33)})
    assert offsets(client) == list(range(33, 40))


@rule("rabbitmq.stream.durable", "Besides classic queues on one exchange each keeps what it is to keep.")
@pytest.mark.parametrize("mode", [1, 2])
def test_a_stream_besides_a_classic_queue(mode: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    declare(client, "second")
    client.declare("classic", durable=True)
    client.declare("transient")
    for queue in ("s", "classic", "transient", "second"):
        client.bind(queue, "amq.fanout")
    client.call(1, m.ConfirmSelect(False))
    harness.store.hold = True
    client.publish("amq.fanout", "", b"x", delivery_mode=mode)
    client.nothing()
    harness.store.hold = False
    harness.settle()
    client.expect(m.BasicAck)
    for queue in ("classic", "transient"):
        got = client.get(queue)
        assert got is not None and got.content is not None
        assert (body_of(got), got.content.properties.headers) == (b"x", None)
    harness = harness.restart(clean=False)
    client = harness.channel()
    assert everything(client) == [(0, b"x")]
    assert harness.queue("second").ready_count == 1
    assert (client.get("classic") is not None) == (mode == 2)


@rule("rabbitmq.stream.durable", "Its messages have no time to live of their own: an expiration is a property.")
@pytest.mark.parametrize("on_disk", [False, True])
def test_expiration_is_ignored(on_disk: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 2, expiration="5")
    if on_disk:
        harness, client = restarted(harness)
    harness.pass_time(3600)
    consume(client)
    deliveries = client.deliveries()
    assert [offset_of(each) for each in deliveries] == [0, 1]
    assert [each.content and each.content.properties.expiration for each in deliveries] == ["5", "5"]


@rule("rabbitmq.stream.dead-letters", "A stream takes dead letters, and they are of the time at which they came.")
def test_dead_letters() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.declare(
        "q",
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s", "x-message-ttl": 10_000},
    )
    fill(client, 1)
    client.publish("", "q", b"rejected", delivery_mode=1)
    got = client.get("q")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    client.publish("", "q", b"expired", delivery_mode=2)
    harness.pass_time(10)
    _, client = restarted(harness, clean=False)
    assert everything(client) == [(0, b"0"), (1, b"rejected"), (2, b"expired")]
    consume(client, {OFFSET: Timestamp(START_S + 5)})
    (letter,) = client.deliveries()
    headers = headers_of(letter)
    assert (offset_of(letter), headers["x-first-death-reason"]) == (2, text("expired"))


@rule("rabbitmq.stream.delayed", "A delayed message is in the stream from its time on, and is of that time.")
@pytest.mark.parametrize("mode", [1, 2])
def test_delayed_messages(mode: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    consume(client)
    client.publish("", "s", b"later", headers=encode_table({"x-delay": 10_000}), delivery_mode=mode)
    fill(client, 1)
    assert offsets(client) == [0]
    harness.pass_time(9)
    client.nothing()
    harness.pass_time(1)
    (late,) = client.deliveries()
    assert (offset_of(late), body_of(late)) == (1, b"later")
    _, client = restarted(harness, clean=False)
    consume(client, {OFFSET: Timestamp(START_S + 10)})
    assert offsets(client) == [1]


@rule("rabbitmq.stream.delayed", "What is held for a stream survives a restart and goes into it when its time comes.")
@pytest.mark.parametrize("clean", [True, False])
def test_delayed_messages_survive(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 1)
    client.publish("", "s", b"later", headers=encode_table({"x-delay": 10_000}), delivery_mode=2)
    harness, client = restarted(harness, clean=clean)
    assert everything(client) == numbers(1)
    harness.pass_time(10)
    assert everything(client) == [(0, b"0"), (1, b"later")]


@rule("rabbitmq.stream.tx", "A transaction publishes with its commit, which is answered when all is synced.")
@pytest.mark.parametrize("mode", [1, 2])
def test_transactions(mode: int) -> None:
    harness = DurableHarness()
    client, reader = harness.channel(), harness.channel()
    declare(client)
    consume(reader)
    client.call(1, m.TxSelect())
    client.publish("", "s", b"rolled back", delivery_mode=mode)
    client.call(1, m.TxRollback())
    client.publish("", "s", b"committed", delivery_mode=mode)
    reader.nothing()
    harness.store.hold = True
    client.send(1, m.TxCommit())
    client.nothing()
    reader.nothing()
    harness.store.hold = False
    harness.settle()
    client.expect(m.TxCommitOk)
    assert reader.bodies() == [b"committed"]
    assert everything(harness.restart(clean=False).channel()) == [(0, b"committed")]


@rule("rabbitmq.stream.tx", "Acknowledgements in a transaction give credit with its commit.")
def test_acknowledgements_in_a_transaction(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    client.call(1, m.TxSelect())
    consume(client, prefetch=2)
    assert offsets(client) == [0, 1]
    client.send(1, m.BasicAck(1, False), m.BasicNack(2, multiple=False, requeue=True))
    client.nothing()
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()
    client.send(1, m.BasicAck(1, False), m.BasicNack(2, multiple=False, requeue=True), m.TxCommit())
    client.pick(m.TxCommitOk)
    assert offsets(client) == [2, 3]
    assert harness.queue("s").unacked_count == 2


# --- retention --------------------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.retention", "With x-max-length-bytes the oldest pages go, as long as so many bytes are left.")
def test_retention_by_bytes() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_length_bytes=2000)
    for number in range(5 * PAGE):
        client.publish("", "s", b"%d" % number * 50)
    harness, client = restarted(harness)
    client.publish("", "s", b"new")
    stream = harness.queue("s")
    left = everything(client)
    first = left[0][0]
    assert [offset for offset, _ in left] == list(range(first, 5 * PAGE + 1))
    assert first % PAGE == 0 and first > 0
    assert stream.ready_count == len(left)
    assert stream.ready_bytes == sum(len(body) for _, body in left)
    assert 2000 <= stream.ready_bytes < 2000 + PAGE * 100


@rule("rabbitmq.stream.retention", "With x-max-age the oldest pages go when all in them is older than that.")
def test_retention_by_age() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_age="1m")
    fill(client, 3 * PAGE, seconds=1)
    harness, client = restarted(harness)
    # The last of the first page came in second 15.
    harness.pass_time(60 + PAGE - 1 - 3 * PAGE - 3)
    put_policy(harness, max_age="2m")  # has it look at once
    harness.pass_time(2)
    assert len(everything(client)) == 3 * PAGE
    harness.pass_time(2)
    assert everything(client) == numbers(3 * PAGE, first=PAGE)
    harness.pass_time(PAGE)
    assert everything(client) == numbers(3 * PAGE, first=2 * PAGE)


@rule("rabbitmq.stream.retention", "After a start with the clock set back messages age from it at the latest.")
@pytest.mark.parametrize("clean", [True, False])
def test_retention_by_age_after_a_clock_that_was_ahead(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_age="1m")
    fill(client, 2 * PAGE)
    harness.write()
    harness = harness.restart(clean=clean, down_s=-3600)
    client = harness.channel()
    fill(client, 2 * PAGE)
    harness.write()
    harness.pass_time(58)
    assert len(everything(client)) == 4 * PAGE
    harness.pass_time(4)
    assert [offset for offset, _ in everything(client)] == list(range(2 * PAGE, 4 * PAGE))


@rule("rabbitmq.stream.retention", "The last page stays, and no offset is given twice.")
@pytest.mark.parametrize("count", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
@pytest.mark.parametrize("limit", [{"max_length_bytes": 0}, {"max_age": "1s"}])
@pytest.mark.parametrize("clean", [True, False])
def test_the_last_page_stays(count: int, limit: dict[str, Any], clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, **limit)
    fill(client, count)
    for _ in range(3):
        harness, client = restarted(harness, clean=clean)
        put_policy(harness, queue_leader_locator="balanced")  # all rules are checked again
        harness.pass_time(7200)
        left = everything(client)
        assert left == numbers(count, first=left[0][0])
        assert left[0][0] == (count - 1) // PAGE * PAGE
    client.publish("", "s", b"next")
    assert everything(client)[-1] == (count, b"next")


@rule("rabbitmq.stream.retention", "A consumer whose next message went goes on with the oldest that is there.")
def test_a_consumer_that_was_left_behind() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_length_bytes=0)
    fill(client, 8 * PAGE)
    harness.write()
    client = harness.restart(clean=True, memory_bytes=0).channel()
    client.declare("q")
    client.publish("", "q")  # now memory is short, and what a consumer has of it is little
    consume(client, prefetch=SHORT_CHUNK_MESSAGES)
    assert offsets(client) == list(range(SHORT_CHUNK_MESSAGES))
    client.publish("", "s", b"new")
    client.send(1, m.BasicAck(0, True))
    assert offsets(client) == [8 * PAGE]
    consume(client, {OFFSET: 3})
    assert offsets(client) == [8 * PAGE]


@rule("rabbitmq.stream.policy", "Policies of streams set max-length-bytes and max-age, and the smaller number counts.")
def test_policies() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_length_bytes=2000)
    client.declare("q", durable=True)
    fill(client, 5 * PAGE)
    harness, client = restarted(harness)
    put_policy(harness, "streams", max_length_bytes=10, max_age="1h")
    rules = harness.queue("s").rules
    assert (rules.max_length_bytes, rules.max_age_ms) == (10, 3_600_000)
    assert everything(client) == numbers(5 * PAGE, first=4 * PAGE)
    assert harness.queue("q").rules.max_length_bytes == -1
    put_policy(harness, "streams", max_length_bytes=10**6)
    assert (harness.queue("s").rules.max_length_bytes, harness.queue("s").rules.max_age_ms) == (2000, -1)
    put_policy(harness, "streams", cleanup="compact")
    assert harness.queue("s").rules.compacts
    harness.broker.administer(PolicyDelete("/", "p"))
    harness.settle()
    assert harness.queue("s").rules.max_length_bytes == 2000
    assert not harness.queue("s").rules.compacts


@rule("rabbitmq.stream.policy", "A max-age that a policy brings holds for what is there, and goes with the policy.")
def test_max_age_of_a_policy() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3 * PAGE)
    harness, client = restarted(harness)
    harness.pass_time(7200)
    put_policy(harness, "streams", max_age="3h")
    harness.pass_time(3599)
    harness.broker.administer(PolicyDelete("/", "p"))
    harness.pass_time(7200)
    assert len(everything(client)) == 3 * PAGE
    put_policy(harness, "streams", max_age="1h")
    harness.pass_time(2)
    assert everything(client) == numbers(3 * PAGE, first=2 * PAGE)


@rule("rabbitmq.stream.policy", "Policies for other types, and those with keys that streams lack, pass it over.")
@pytest.mark.parametrize(
    ("apply_to", "definition"),
    [
        ("classic_queues", {"max_length_bytes": 5}),
        ("quorum_queues", {"max_length_bytes": 5}),
        ("exchanges", {"alternate_exchange": "x"}),
        ("all", {"max_length_bytes": 5, "max_length": 5}),
        ("queues", {"max_length_bytes": 5, "message_ttl": 5}),
    ],
)
def test_other_policies(client: Client, harness: Harness, apply_to: str, definition: dict[str, object]) -> None:
    declare(client)
    put_policy(harness, apply_to, **definition)
    assert harness.queue("s").rules.max_length_bytes == -1
