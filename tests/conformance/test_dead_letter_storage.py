"""Dead letters on disk: each is in one place after a crash, and stored where it has to be."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, bodies, publish_frames

from warren.amqp import methods as m

from .dead_letters import CAUSES, dead_letters_to, kill, quorum, ready, undelivered
from .rules import rule


@rule(
    "warren.dead-letter.one-write",
    "Between durable queues a letter moves in one write: it is in one place after a crash.",
)
@pytest.mark.parametrize("crash", ["before", "after"])
@pytest.mark.parametrize("cause", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_a_letter_moves_in_one_write(cause: str, crash: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    needs = CAUSES[cause] | ({"x-max-length": 1} if cause == "maxlen" else {})
    client.declare("q", durable=True, arguments=dead_letters_to("amq.fanout") | needs)
    for name in ("a", "b"):
        client.declare(name, durable=True)
        client.bind(name, "amq.fanout")
    client.publish("", "q", b"letter", delivery_mode=2)
    harness.write()
    if cause in ("rejected", "delivery_limit"):
        assert client.get("q") is not None
    if crash == "before":
        harness.store.hold = True
    commits = harness.store.commits
    if cause == "expired":
        harness.pass_time(1)
    elif cause == "maxlen":
        client.publish("", "q", delivery_mode=1)
    else:
        client.send(1, m.BasicReject(1, cause == "delivery_limit"))
    assert (ready(harness, "a"), ready(harness, "b")) == (1, 1)
    harness.write()
    assert harness.store.commits - commits == (0 if crash == "before" else 1)
    harness = harness.restart(clean=False)
    there = [name for name in ("q", "a", "b") if ready(harness, name)]
    if crash == "after":
        assert there == ["a", "b"]
        return
    assert there == (["a", "b"] if cause == "expired" else ["q"]), "what was too old then is too old now"


@rule("warren.dead-letter.one-write", "One that waits for its turn is where it was: a crash loses nothing.")
@pytest.mark.parametrize("cause", ["maxlen", "maxlen, refused"])
def test_a_letter_that_waits_for_its_turn_survives(cause: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    length = 240
    client.declare("q0", durable=True, arguments=dead_letters_to("", "q1", max_length=0))
    for at in range(1, length):
        client.declare(f"q{at}", durable=True, arguments=dead_letters_to("", f"q{at + 1}") | CAUSES[cause])
    client.declare(f"q{length}", durable=True)
    harness.write()
    client.connection.feed(publish_frames("", "q0", b"letter", properties={"delivery_mode": 2}))
    assert harness.broker.has_work(), "not all of the chain in one turn"
    assert ready(harness, f"q{length}") == 0
    log = harness.broker.log
    log.force()
    log.close_if_due()
    assert harness.store.run()
    harness = harness.restart(clean=False)
    assert [int(queue.message_count) for queue in harness.vhost.queues.values()] == [0] * length + [1]
    assert bodies(harness.channel(), f"q{length}") == [b"letter"]


@rule("warren.dead-letter.one-write", "It had died before its queue is deleted: it is sent all the same.")
def test_a_letter_outlives_its_queue(client: Client, harness: Harness) -> None:
    length = 240
    for at in range(length):
        client.declare(f"q{at}", durable=True, arguments=dead_letters_to("", f"q{at + 1}", max_length=0))
    client.declare(f"q{length}", durable=True)
    client.connection.feed(publish_frames("", "q0", b"letter", properties={"delivery_mode": 2}))
    reached = max(at for at in range(length) if harness.queue(f"q{at}").published)
    assert reached < length
    harness.broker.delete_queue(harness.vhost, harness.queue(f"q{reached}"))
    harness.settle()
    assert bodies(client, f"q{length}") == [b"letter"]


@rule("warren.dead-letter.one-write", "So does one that its target refuses, from its queue into those that wait.")
@pytest.mark.parametrize("crash", ["before", "after"])
def test_a_refused_letter_moves_in_one_write(crash: str) -> None:
    harness = DurableHarness()
    client = harness.channel()
    quorum(client, "", "dead")
    client.publish("", "q", delivery_mode=2)
    harness.write()
    assert client.get("q") is not None
    harness.store.hold = crash == "before"
    commits = harness.store.commits
    client.send(1, m.BasicReject(1, False))
    harness.write()
    assert harness.store.commits - commits == (0 if crash == "before" else 1)
    harness = harness.restart(clean=False)
    queue = harness.queue("q")
    assert (queue.ready_count, undelivered(queue)) == ((1, 0) if crash == "before" else (0, 1))


@rule("warren.dead-letter.stored", "A letter is stored where its message was persistent and its new queue is durable.")
@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_what_is_stored(client: Client, harness: Harness, mode: int, durable: bool) -> None:
    client.declare("dead", durable=durable)
    client.declare("q", arguments=dead_letters_to("", "dead"))
    kill(client, harness, "rejected", delivery_mode=mode)
    harness.broker.log.force()
    harness.settle()
    index = harness.queue("dead").ready.index_of(0)
    stored = 0 if index is None else int(index.live_count)
    assert stored == (1 if durable and mode == 2 else 0)
