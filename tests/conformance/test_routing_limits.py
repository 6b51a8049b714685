"""Limits for hostile peers: bindings, patterns and reply addresses."""

from __future__ import annotations

import pytest
from engine_harness import (
    Client,
    Harness,
    Refusal,
    basic_consume,
    body_of,
)

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE, encode_table

from .rules import rule

# --- routing ----------------------------------------------------------------------------------------------------------


@rule("abuse.topic", "A topic binding key has at most two #, and 128 words: 406.")
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("#.#.#", "binding key '#.#.#' has 3 '#' words, at most 2 are allowed"),
        ("#.a.#.b.#", "binding key '#.a.#.b.#' has 3 '#' words, at most 2 are allowed"),
        ("." * 128, "binding key has 129 words, at most 128 are allowed"),
    ],
)
def test_topic_patterns_are_bounded(client: Client, key: str, text: str) -> None:
    client.declare("q")
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.topic", key, False, EMPTY_TABLE))
    assert refusal == Refusal("channel", 406, "PRECONDITION_FAILED - " + text, m.QueueBind)


@rule("abuse.routing", "A message whose routing is too much work is refused, 406, and goes nowhere.")
def test_routing_is_bounded(harness: Harness, client: Client) -> None:
    client.declare("q")
    depth = 9
    for number in range(1 << depth):
        pattern = ["a" if number >> bit & 1 else "*" for bit in range(depth)]
        client.bind("q", "amq.topic", ".".join(["#", *pattern, "#"]))
    copies: list[object] = [f"{number}." + "a." * 120 for number in range(40)]
    client.publish("amq.topic", "k", headers=encode_table({"CC": copies}))
    assert client.refusal()[:2] == ("channel", 406)
    assert harness.queue("q").ready_count == 0
    client.open(1)
    client.publish("amq.topic", str(copies[0]))
    assert harness.queue("q").ready_count == 1


@rule("abuse.routing", "A key that CC names again and again is one key.")
def test_the_same_copy_is_one(harness: Harness, client: Client) -> None:
    for number in range(50):
        client.declare(f"q{number}")
        client.bind(f"q{number}", "amq.direct", "k")
    client.publish("amq.direct", "k", headers=encode_table({"CC": ["k"] * 2000, "BCC": ["k"] * 2000}))
    assert [harness.queue(f"q{number}").ready_count for number in range(50)] == [1] * 50


@rule("abuse.topic", "Patterns made to match in many ways are matched in one.")
def test_ambiguous_patterns_match_once(client: Client) -> None:
    client.declare("q")
    for count in range(1, 40):
        client.bind("q", "amq.topic", "#." + "*." * count + "#.a")
    client.publish("amq.topic", ".".join("a" * 120))
    assert client.declare("q").message_count == 1


@rule("abuse.headers", "A headers binding has at most 256 arguments: 406.")
def test_headers_bindings_are_bounded(client: Client) -> None:
    client.declare("q")
    arguments = encode_table({f"h{number}": None for number in range(257)})
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.headers", "", False, arguments))
    text = "PRECONDITION_FAILED - binding has 257 arguments, at most 256 are allowed"
    assert refusal == Refusal("channel", 406, text, m.QueueBind)


# --- reply addresses --------------------------------------------------------------------------------------------------


@rule("abuse.reply-to", "A reply address can be sent to and nothing else: no get, purge, delete, consume, bind.")
def test_a_reply_address_is_only_an_address(client: Client, other: Client) -> None:
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    other.declare("service")
    client.publish("", "service", reply_to="amq.rabbitmq.reply-to")
    got = other.get("service", no_ack=True)
    assert got is not None and got.content is not None
    address = got.content.properties.reply_to
    assert address is not None
    assert other.refused(1, m.BasicGet(0, address, True)).code == 404
    assert other.refused(1, m.QueuePurge(0, address, False)).code == 404
    assert other.refused(1, basic_consume(address, no_ack=True)).code == 404
    assert other.refused(1, m.QueueBind(0, address, "amq.fanout", "", False, EMPTY_TABLE)).code == 403
    assert other.call(1, m.QueueDelete(0, address, if_unused=False, if_empty=False, no_wait=False)) == m.QueueDeleteOk(
        0
    )
    other.publish("", address, b"reply")
    (reply,) = client.take()
    assert body_of(reply) == b"reply"


@rule("abuse.reply-to", "Names made by the broker hold 128 bits that nobody can guess, new ones each.")
def test_made_names_are_unguessable(client: Client, harness: Harness) -> None:
    before = harness._names_given
    names = [client.declare("").queue[-22:], client.consume("")[-22:]]
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    names += [name[-22:] for name in harness.vhost.reply_queues]
    assert harness._names_given == before + 4, "two tags, a queue and a reply address"
    assert len(set(names)) == 3
