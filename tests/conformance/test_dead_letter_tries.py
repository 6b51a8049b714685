"""Dead letters at least once: those that no target takes are kept, and tried again."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, bodies, body_of

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.queues.lanes import UNDELIVERED

from .dead_letters import RETRY_S, dead_letters_to, deaths_of, history, quorum, ready, reject, undelivered
from .rules import rule


@rule("rabbitmq.dead-letter.at-least-once", "A letter that a target refuses is kept and tried again every 5 s.")
def test_a_refused_letter_is_tried_again(client: Client, harness: Harness) -> None:
    client.declare("dead", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    quorum(client, "", "dead")
    client.publish("", "dead", b"in the way")
    for body in (b"1", b"2"):
        reject(client, body)
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count, undelivered(queue)) == (0, 0, 2)
    harness.pass_time(2 * RETRY_S)
    assert bodies(client, "dead") == [b"in the way"]
    harness.pass_time(RETRY_S - 0.001)
    assert ready(harness, "dead") == 0
    harness.pass_time(0.001)
    assert (ready(harness, "dead"), undelivered(queue)) == (1, 1)
    assert bodies(client, "dead") == [b"1"]
    harness.pass_time(RETRY_S)
    assert (bodies(client, "dead"), undelivered(queue)) == ([b"2"], 0)
    harness.pass_time(10 * RETRY_S)
    assert ready(harness, "dead") == 0


@rule("rabbitmq.dead-letter.at-least-once", "So is one that has no target yet: no exchange, or no route.")
@pytest.mark.parametrize("missing", ["exchange", "route"])
def test_a_letter_without_a_target_is_tried_again(client: Client, harness: Harness, missing: str) -> None:
    quorum(client, "dlx", "k")
    client.declare("dead")
    if missing == "route":
        client.declare_exchange("dlx")
    reject(client)
    harness.pass_time(2 * RETRY_S)
    assert undelivered(harness.queue("q")) == 1
    if missing == "exchange":
        client.declare_exchange("dlx")
    client.bind("dead", "dlx", "k")
    harness.pass_time(RETRY_S)
    assert history(client.get("dead")) == [("q", "rejected", 1)]
    assert undelivered(harness.queue("q")) == 0


@rule("rabbitmq.dead-letter.at-least-once", "Of several targets only those get it again that have refused it.")
def test_only_those_that_refused_get_it_again(client: Client, harness: Harness) -> None:
    quorum(client, "amq.fanout")
    client.declare("taker", arguments={"x-message-ttl": 60_000})
    client.declare("refuser", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for name in ("taker", "refuser"):
        client.bind(name, "amq.fanout")
    client.publish("", "refuser", b"in the way")
    reject(client, b"letter")
    harness.pass_time(4 * RETRY_S)
    assert ready(harness, "taker") == 1
    assert bodies(client, "refuser") == [b"in the way"]
    harness.pass_time(RETRY_S)
    assert (bodies(client, "refuser"), ready(harness, "taker")) == ([b"letter"], 1)


@rule("rabbitmq.dead-letter.at-least-once", "That it is kept for one target changes nothing for those that have it.")
def test_a_kept_letter_ages_where_it_was_taken(client: Client, harness: Harness) -> None:
    quorum(client, "amq.fanout")
    client.declare("at once", arguments={"x-message-ttl": 60_000})
    client.declare("later", arguments={"x-message-ttl": 60_000, "x-max-length": 1, "x-overflow": "reject-publish"})
    client.declare("never", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    for name in ("at once", "later", "never"):
        client.bind(name, "amq.fanout")
    client.publish("", "later", b"in the way")
    reject(client)
    assert bodies(client, "later") == [b"in the way"]
    left = []
    for seconds in (60 - 0.001, 0.001, RETRY_S - 0.001, 0.001):
        harness.pass_time(seconds)
        left.append((ready(harness, "at once"), ready(harness, "later")))
    assert left == [(1, 1), (0, 1), (0, 1), (0, 0)]
    assert undelivered(harness.queue("q")) == 1


@rule("rabbitmq.dead-letter.at-least-once", "A letter that is tried again goes by the same keys, CC and BCC included.")
def test_the_keys_of_a_letter_that_is_tried_again(client: Client, harness: Harness) -> None:
    quorum(client, "dlx")
    names = ("q", "cc", "bcc")
    reject(client, headers=encode_table({"CC": ["cc"], "BCC": ["bcc"]}))
    client.declare_exchange("dlx")
    for name in names:
        client.declare(f"dead-{name}")
        client.bind(f"dead-{name}", "dlx", name)
    harness.pass_time(RETRY_S)
    assert [ready(harness, f"dead-{name}") for name in names] == [1, 1, 1]


@rule("rabbitmq.dead-letter.at-least-once", "A circle stays cut when it is tried again.")
def test_a_circle_stays_cut(client: Client, harness: Harness) -> None:
    quorum(client, "amq.fanout", message_ttl=1000)
    client.declare("refuser", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    for name in ("q", "refuser"):
        client.bind(name, "amq.fanout")
    client.publish("", "q", delivery_mode=2)
    harness.pass_time(1 + 3 * RETRY_S)
    queue = harness.queue("q")
    assert (int(queue.published), undelivered(queue)) == (1, 1)


@rule("rabbitmq.dead-letter.at-least-once", "A chain is gone through without waiting for another try.")
def test_a_long_chain_of_quorum_queues(client: Client, harness: Harness) -> None:
    length = 35
    for at in range(length):
        quorum(client, "", f"q{at + 1}", f"q{at}", message_ttl=0)
    client.declare(f"q{length}")
    client.publish("", "q0", delivery_mode=2)
    assert len(deaths_of(client.get(f"q{length}"))) == length
    assert sum(undelivered(harness.queue(f"q{at}")) for at in range(length)) == 0


@rule("rabbitmq.dead-letter.at-least-once", "Without reject-publish, and in classic queues, it is at most once.")
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"},
        {"x-queue-type": "quorum", "x-overflow": "reject-publish"},
        {"x-overflow": "reject-publish"},
    ],
)
def test_at_most_once(client: Client, harness: Harness, arguments: Table) -> None:
    client.declare("q", durable=True, arguments=dead_letters_to("missing") | arguments)
    reject(client)
    assert undelivered(harness.queue("q")) == 0


@rule("warren.dead-letter.at-least-once.restart", "A stored letter that waits for its target waits over restarts.")
@pytest.mark.parametrize("clean", [False, True])
def test_waiting_letters_survive(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    quorum(client, "", "dead")
    for number in range(40):
        reject(client, b"%d" % number)
    harness.write()
    for _ in range(2):
        harness = harness.restart(clean=clean, memory_bytes=0)
        assert undelivered(harness.queue("q")) == 40
        harness.pass_time(RETRY_S)
    client = harness.channel()
    client.declare("dead", durable=True)
    harness.pass_time(RETRY_S)
    got = client.get("dead")
    assert history(got) == [("q", "rejected", 1)]
    assert got is not None and body_of(got) == b"0"
    assert len(bodies(client, "dead")) == 39
    harness.write()
    assert undelivered(harness.restart(clean=clean).queue("q")) == 0


@rule("warren.dead-letter.at-least-once.restart", "After a start with the clock set back a letter is tried in 5 s.")
@pytest.mark.parametrize("clean", [False, True])
def test_a_letter_of_a_clock_that_was_ahead_is_tried_again(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    quorum(client, "", "dead")
    reject(client)
    harness.write()
    harness = harness.restart(clean=clean, down_s=-3600, memory_bytes=0)
    client = harness.channel()
    client.declare("dead", durable=True)
    harness.pass_time(RETRY_S)
    assert bodies(client, "dead") == [b"x"]


@rule("warren.dead-letter.at-least-once.memory", "Who has taken a letter does not get it again, wherever that waits.")
def test_a_letter_that_has_left_memory_knows_who_has_it() -> None:
    harness = DurableHarness(memory_bytes=0)
    client = harness.channel()
    quorum(client, "amq.fanout")
    client.declare("taker", durable=True)
    client.declare("refuser", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    for name in ("taker", "refuser"):
        client.bind(name, "amq.fanout")
    client.publish("", "refuser", b"in the way", delivery_mode=2)
    for number in range(3):
        reject(client, b"%d" % number)
    harness.write()
    lane = harness.queue("q").held(UNDELIVERED)
    assert lane is not None and lane.in_memory_count() == 0
    for _ in range(3):
        harness.pass_time(RETRY_S)
    assert (ready(harness, "taker"), undelivered(harness.queue("q"))) == (3, 3)
    assert bodies(client, "refuser") == [b"in the way"]
    harness.pass_time(RETRY_S)
    assert (bodies(client, "refuser"), ready(harness, "taker")) == ([b"0"], 3)
    assert undelivered(harness.queue("q")) == 2


@rule("warren.dead-letter.at-least-once.in-place", "A letter that is tried again in vain writes nothing to the log.")
@pytest.mark.parametrize("memory_bytes", [0, 1 << 30])
def test_a_try_in_vain_writes_nothing(memory_bytes: int) -> None:
    harness = DurableHarness(memory_bytes=memory_bytes)
    client = harness.channel()
    quorum(client, "", "dead")
    for number in range(3):
        reject(client, b"%d" % number)
    harness.write()
    written = harness.broker.log.next_lsn
    for _ in range(3):
        harness.pass_time(RETRY_S)
        harness.write()
    assert (harness.broker.log.next_lsn, undelivered(harness.queue("q"))) == (written, 3)
    client.declare("dead", durable=True)
    harness.pass_time(RETRY_S)
    assert (bodies(client, "dead"), undelivered(harness.queue("q"))) == ([b"0", b"1", b"2"], 0)


@rule("warren.dead-letter.at-least-once.deleted", "Letters that wait go with their queue.")
def test_waiting_letters_go_with_their_queue(client: Client, harness: Harness) -> None:
    quorum(client, "", "dead")
    reject(client)
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    client.declare("dead")
    harness.pass_time(3 * RETRY_S)
    assert ready(harness, "dead") == 0
