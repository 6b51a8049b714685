"""Dead letters: what they say, how many tries they have, where they go, and in which order."""

from __future__ import annotations

import json

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, bodies

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp, encode_table
from warren.vhosts.metadata import PolicyPut

from .dead_letters import CAUSES, dead_letters_to, deaths_of, every_cause, headers_of, history, kill, ready, undelivered
from .rules import rule


@rule(
    "rabbitmq.dead-letter.history",
    "A letter says why, where and when it died, how often, and where it had been published.",
)
@every_cause
def test_what_a_letter_says(client: Client, harness: Harness, cause: str) -> None:
    client.declare("dead")
    client.declare("q", arguments=dead_letters_to("", "dead") | CAUSES[cause])
    client.bind("q", "amq.direct", "k")
    client.publish("amq.direct", "k", headers=encode_table({"a": 1}))
    if cause == "expired":
        harness.pass_time(1)
    if cause in ("rejected", "delivery_limit"):
        client.get("q")
        client.send(1, m.BasicReject(1, cause == "delivery_limit"))
    got = client.get("dead")
    reason = cause.partition(",")[0]
    assert deaths_of(got) == [
        {
            "count": 1,
            "reason": reason,
            "queue": "q",
            "time": Timestamp(int(harness.broker.log.now_ms) // 1000),
            "exchange": "amq.direct",
            "routing-keys": ["k"],
        }
    ]
    headers = headers_of(got)
    assert headers["a"] == 1
    for which in ("first", "last"):
        place = [headers[f"x-{which}-death-{field}"] for field in ("reason", "queue", "exchange")]
        assert place == [reason, "q", "amq.direct"]
    assert got is not None and (got.method.exchange, got.method.routing_key) == ("", "dead")
    assert not got.method.redelivered


@rule("rabbitmq.dead-letter.history", "A second death of the same kind counts, and stands first again.")
def test_a_second_death_counts(client: Client, harness: Harness) -> None:
    client.declare("q", arguments=dead_letters_to("", "other"))
    client.declare("other", arguments=dead_letters_to("", "q", message_ttl=1000))
    client.publish("", "q")
    first_s = int(harness.broker.log.now_ms) // 1000
    for turn in range(1, 4):
        got = client.get("q")
        if turn > 1:
            assert history(got) == [("other", "expired", turn - 1), ("q", "rejected", turn - 1)]
            assert [death["time"] for death in deaths_of(got)] == [first_s + 1, first_s]
            headers = headers_of(got)
            assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("q", "other")
        assert got is not None
        client.send(1, m.BasicReject(got.method.delivery_tag, False))
        harness.pass_time(1)


@rule("warren.dead-letter.counts", "Counts of failed deliveries stay behind: a letter has all its tries where it goes.")
@pytest.mark.parametrize("delayed", [False, True])
def test_a_letter_has_all_its_tries(client: Client, harness: Harness, delayed: bool) -> None:
    limit: Table = {"x-delivery-limit": 2}
    client.declare("q", arguments=dead_letters_to("", "second") | limit)
    client.declare("second", arguments=dead_letters_to("", "dead") | limit)
    client.declare("dead")
    client.publish("", "q", headers=encode_table({"x-delay": 1000} if delayed else {"a": 1}))
    if delayed:
        harness.pass_time(1)
    for queue in ("q", "second"):
        for failures in range(3):
            got = client.get(queue)
            assert got is not None
            assert headers_of(got).get("x-delivery-count", 0) == failures
            client.send(1, m.BasicReject(got.method.delivery_tag, True))
    assert history(client.get("dead")) == [("second", "delivery_limit", 1), ("q", "delivery_limit", 1)]


@rule("warren.dead-letter.counts", "So has a message that a client publishes again with the headers it had.")
@pytest.mark.parametrize("header", ["x-delivery-count", "x-acquired-count"])
def test_a_republished_message_has_all_its_tries(client: Client, harness: Harness, header: str) -> None:
    client.declare("dead")
    client.declare("q", durable=True, arguments=dead_letters_to("", "dead", delivery_limit=1))
    client.declare("plain")
    client.call(1, m.ConfirmSelect(False))
    harness.store.hold = True
    client.publish("", "q", b"x" * 100, headers=encode_table({header: 100, "a": 1}), delivery_mode=2)
    client.nothing()
    harness.store.hold = False
    harness.settle()
    assert client.expect(m.BasicAck) == m.BasicAck(1, False), "its confirm waits for the disk as any other"
    for _ in range(2):
        got = client.get("q")
        assert got is not None and headers_of(got)["a"] == 1
        client.send(1, m.BasicReject(got.method.delivery_tag, True))
    assert ready(harness, "dead") == 1
    client.publish("", "plain", headers=encode_table({header: 100}))
    client.take()
    assert headers_of(client.get("plain")) == {header: 100}, "a queue that counts nothing has no opinion"


@rule(
    "rabbitmq.dead-letter.keys",
    "A letter goes by its own keys, CC and BCC included, or by the queue's one.",
)
@pytest.mark.parametrize("key", [None, "k", ""])
@every_cause
def test_the_keys_of_a_letter(client: Client, harness: Harness, cause: str, key: str | None) -> None:
    names = ("q", "cc", "bcc", "k", "none")
    for name in names[1:]:
        client.declare(f"dead-{name}")
        client.bind(f"dead-{name}", "amq.direct", "" if name == "none" else name)
    client.declare("dead-q")
    client.bind("dead-q", "amq.direct", "q")
    client.declare("q", arguments=dead_letters_to("amq.direct", key) | CAUSES[cause])
    kill(client, harness, cause, headers=encode_table({"CC": ["cc", "cc"], "BCC": ["bcc"], "a": 1}))
    there = [name for name in names if ready(harness, f"dead-{name}")]
    assert there == {None: ["q", "cc", "bcc"], "k": ["k"], "": ["none"]}[key]
    for name in there:
        got = client.get(f"dead-{name}", no_ack=True)
        headers = headers_of(got)
        assert "BCC" not in headers
        assert headers.get("CC") == (["cc", "cc"] if key is None else None)
        (death,) = deaths_of(got)
        assert death["routing-keys"] == ["q", "cc", "cc"]
        assert client.get(f"dead-{name}") is None


@rule(
    "warren.dead-letter.bcc",
    "The keys of BCC are not stored: after a restart a letter does not go by them.",
    deviation="In RabbitMQ it does. Nobody may see these keys, and a backup of the store shows what is in it.",
)
def test_blind_copies_are_not_stored() -> None:
    harness = DurableHarness()
    client = harness.channel()
    client.declare("q", durable=True, arguments=dead_letters_to("amq.direct"))
    for name in ("cc", "bcc"):
        client.declare(f"dead-{name}", durable=True)
        client.bind(f"dead-{name}", "amq.direct", name)
    client.publish("", "q", headers=encode_table({"CC": ["cc"], "BCC": ["bcc"]}), delivery_mode=2)
    harness.write()
    harness = harness.restart(clean=True)
    client = harness.channel()
    assert client.get("q") is not None
    client.send(1, m.BasicReject(1, False))
    assert (ready(harness, "dead-cc"), ready(harness, "dead-bcc")) == (1, 0)


@rule("rabbitmq.dead-letter.order", "What dies together arrives in the order of the queue.")
@pytest.mark.parametrize("cause", ["rejected", "expired", "maxlen"])
def test_letters_arrive_in_order(client: Client, harness: Harness, cause: str) -> None:
    client.declare("dead")
    client.declare("q", arguments=dead_letters_to("", "dead") | ({"x-message-ttl": 1000} if cause == "expired" else {}))
    for number in range(50):
        client.publish("", "q", b"%d" % number)
    if cause == "expired":
        harness.pass_time(1)
    elif cause == "maxlen":
        harness.broker.administer(PolicyPut("/", "p", "^q$", "queues", 0, json.dumps({"max-length": 0})))
    else:
        client.consume("q")
        client.take()
        client.send(1, m.BasicNack(0, multiple=True, requeue=False))
    assert bodies(client, "dead") == [b"%d" % number for number in range(50)]


@rule("rabbitmq.dead-letter.missing", "Without exchange or route a letter is lost, and nobody is told.")
@pytest.mark.parametrize("arguments", [dead_letters_to("missing"), dead_letters_to("amq.direct", "nobody")])
@every_cause
def test_letters_are_lost_quietly(client: Client, harness: Harness, cause: str, arguments: Table) -> None:
    client.declare("q", arguments=arguments | CAUSES[cause])
    client.call(1, m.ConfirmSelect(False))
    client.publish("", "q", mandatory=True)
    answer = m.BasicNack(1, multiple=False, requeue=False) if "refused" in cause else m.BasicAck(1, False)
    assert [each.method for each in client.take()] == [answer]
    if cause == "expired":
        harness.pass_time(1)
    if cause in ("rejected", "delivery_limit"):
        client.get("q")
        client.send(1, m.BasicReject(1, cause == "delivery_limit"))
    queue = harness.queue("q")
    assert (queue.ready_count, queue.unacked_count, undelivered(queue)) == (0, 0, 0)
    client.nothing()


@rule("rabbitmq.dead-letter.policy", "A policy says where letters go from then on; an argument goes before it.")
def test_dead_lettering_by_policy(client: Client, harness: Harness) -> None:
    for name in ("a", "b"):
        client.declare(name)
    client.declare("q1")
    client.declare("q2", arguments=dead_letters_to("", "a"))
    for queue in ("q1", "q2"):
        client.publish("", queue)
    definition = json.dumps({"dead-letter-exchange": "", "dead-letter-routing-key": "b"})
    harness.broker.administer(PolicyPut("/", "p", "^q", "queues", 0, definition))
    harness.settle()
    for tag, queue in ((1, "q1"), (2, "q2")):
        assert client.get(queue) is not None
        client.send(1, m.BasicReject(tag, False))
    assert (ready(harness, "a"), ready(harness, "b")) == (1, 1)
