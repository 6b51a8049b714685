"""The exchange class and routing."""

from __future__ import annotations

from typing import Any

import pytest
from engine_harness import USER, Client, Harness, Refusal, body_of, exchange_declare

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.vhosts.metadata import BindingPut, ExchangePut, VhostPut

from .rules import rule

DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"
STANDARD = ("direct", "fanout", "topic", "headers")
EXTENSIONS = ("consistent-hash", "random", "local-random", "modulus-hash", "recent-history", "super-stream")


def refused_exchange(client: Client, call: Any, code: int, text: str) -> None:
    assert client.refused(1, call) == Refusal("channel", code, text, type(call))


def exchange_bind(destination: str, source: str, key: str = "", arguments: Table | None = None) -> m.ExchangeBind:
    return m.ExchangeBind(0, destination, source, key, False, encode_table(arguments or {}))


def exchange_unbind(destination: str, source: str, key: str = "") -> m.ExchangeUnbind:
    return m.ExchangeUnbind(0, destination, source, key, False, EMPTY_TABLE)


def reaches(client: Client, queue: str, exchange: str, key: str = "", **properties: Any) -> int:
    """Publish once; return how many copies came to `queue`, which is left empty."""
    client.publish(exchange, key, b"m", **properties)
    count = 0
    while client.get(queue, no_ack=True):
        count += 1
    return count


# --- types and instances ----------------------------------------------------------------------------------------------


@rule("exchange.required-types", "direct and fanout exist.")
@rule("exchange.recommended-types", "topic and headers exist.")
@rule("exchange.extensions", "So do RabbitMQ's random, hash and history types.")
@pytest.mark.parametrize(
    "kind",
    [*STANDARD, *(f"x-{kind}" for kind in EXTENSIONS)],
)
def test_every_exchange_type_can_be_declared(client: Client, kind: str) -> None:
    client.declare_exchange("x", kind)


@rule("exchange.required-instances", "Every vhost has an amq. exchange of each standard type, durable.")
@pytest.mark.parametrize("vhost", ["/", "new"])
@pytest.mark.parametrize(("name", "kind"), [*((f"amq.{kind}", kind) for kind in STANDARD), ("amq.match", "headers")])
def test_every_vhost_has_the_standard_exchanges(harness: Harness, vhost: str, name: str, kind: str) -> None:
    harness.broker.administer(VhostPut("new"))
    harness.permit(USER, vhost="new")
    client = harness.client(vhost=vhost)
    client.open(1)
    assert client.call(1, exchange_declare(name, kind, durable=True)) == m.ExchangeDeclareOk()
    client.declare("q")
    client.bind("q", name, "k", {"x-match": "all"} if kind == "headers" else None)
    assert reaches(client, "q", name, "k") == 1


@rule("exchange.required-instances", "amq.rabbitmq.trace is a topic exchange that clients cannot publish to.")
def test_the_trace_exchange_is_internal(client: Client) -> None:
    trace = exchange_declare("amq.rabbitmq.trace", "topic", durable=True, internal=True)
    assert client.call(1, trace) == m.ExchangeDeclareOk()
    client.publish("amq.rabbitmq.trace", "k")
    text = "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'"
    assert client.refusal() == Refusal("channel", 403, text, m.BasicPublish)


@rule("exchange.default-exchange", "The default exchange routes to the queue that the routing key names.")
def test_the_default_exchange_routes_by_queue_name(client: Client) -> None:
    client.declare("q")
    assert reaches(client, "q", "", "q") == 1
    assert reaches(client, "q", "", "other") == 0


@rule("exchange.default-access", "The default exchange cannot be declared, deleted, or bound on either side: 403.")
@pytest.mark.parametrize(
    "call",
    [
        exchange_declare("", "direct", durable=True),
        exchange_declare("", "direct", passive=True),
        m.ExchangeDelete(0, "", if_unused=False, no_wait=False),
        exchange_bind("", "amq.direct"),
        exchange_bind("amq.direct", ""),
        exchange_unbind("", "amq.direct"),
        exchange_unbind("amq.direct", ""),
        m.QueueBind(0, "q", "", "k", False, EMPTY_TABLE),
        m.QueueUnbind(0, "q", "", "k", EMPTY_TABLE),
    ],
)
def test_the_default_exchange_is_out_of_reach(client: Client, call: Any) -> None:
    client.declare("q")
    refused_exchange(client, call, 403, DEFAULT)


# --- declare ----------------------------------------------------------------------------------------------------------


@rule("exchange.declare.minimum", "16 exchanges are no problem, nor are 1000.")
def test_many_exchanges_can_be_declared(client: Client) -> None:
    for number in range(1000):
        client.declare_exchange(f"x{number}")


@rule("exchange.declare.exchange.reserved", "Names beginning with amq. cannot be declared: 403.")
def test_a_reserved_exchange_name_is_refused(client: Client) -> None:
    text = "ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'"
    refused_exchange(client, exchange_declare("amq.x"), 403, text)


@rule("exchange.declare.exchange.reserved", "An existing amq. exchange may be declared again as it is.")
def test_a_standard_exchange_may_be_declared_again(client: Client) -> None:
    assert client.call(1, exchange_declare("amq.topic", "topic", durable=True)) == m.ExchangeDeclareOk()
    text = (
        "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'amq.topic' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    refused_exchange(client, exchange_declare("amq.topic", "topic"), 406, text)


@rule(
    "exchange.declare.exchange.syntax",
    "Any UTF-8 is a name; CR and LF are dropped.",
    deviation="The specification's characters are not enforced, as in RabbitMQ; NUL is refused, 406.",
)
def test_exchange_names_are_utf_8_without_nul(client: Client) -> None:
    for name in ("f\u00fcr alle: \u2603 & so/weiter", "a\tb", "\x1b[2J", "\x7f\x9b"):
        client.declare_exchange(name)
        assert client.call(1, exchange_declare(name, passive=True)) == m.ExchangeDeclareOk()
    client.declare_exchange("a\r\nb")
    assert client.call(1, exchange_declare("ab", passive=True)) == m.ExchangeDeclareOk()
    assert client.refused(1, exchange_declare("a\x00b")).code == 406


@rule(
    "exchange.declare.type.support",
    "An unknown type is refused before anything else is looked at.",
    deviation="with 406 for the channel, as RabbitMQ since 3.13, instead of 503.",
)
@pytest.mark.parametrize("name", ["x", "", "amq.x"])
def test_an_unknown_exchange_type_is_refused(client: Client, name: str) -> None:
    text = "PRECONDITION_FAILED - unknown exchange type 'x-unknown'"
    refused_exchange(client, exchange_declare(name, "x-unknown"), 406, text)


@rule(
    "exchange.declare.type.typed",
    "An exchange keeps its type.",
    deviation="A redeclaration with another type is 406, as in RabbitMQ, instead of 530.",
)
@rule("exchange.declare.passive.equivalent", "A redeclaration has to agree in type, durable, auto_delete and internal.")
@pytest.mark.parametrize(
    ("call", "arg", "received", "current"),
    [
        (exchange_declare("x", "fanout"), "type", "fanout", "direct"),
        (exchange_declare("x", durable=True), "durable", "true", "false"),
        (exchange_declare("x", auto_delete=True), "auto_delete", "true", "false"),
        (exchange_declare("x", internal=True), "internal", "true", "false"),
    ],
)
def test_an_inequivalent_exchange_is_refused(client: Client, call: Any, arg: str, received: str, current: str) -> None:
    client.declare_exchange("x")
    client.declare_exchange("x")
    text = (
        f"PRECONDITION_FAILED - inequivalent arg '{arg}' for exchange 'x' in vhost '/': "
        f"received '{received}' but current is '{current}'"
    )
    refused_exchange(client, call, 406, text)


@rule("rabbitmq.exchange.declare", "Of the arguments only alternate-exchange is compared.")
def test_only_the_alternate_exchange_is_compared(client: Client) -> None:
    client.declare_exchange("x", arguments={"alternate-exchange": "a", "x-other": 1})
    client.declare_exchange("x", arguments={"alternate-exchange": "a", "x-other": 2})
    before = "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': "
    other = exchange_declare("x", arguments={"alternate-exchange": "b"})
    refused_exchange(client, other, 406, before + "received 'b' but current is 'a'")
    none = exchange_declare("x")
    refused_exchange(client, none, 406, before + "received none but current is the value 'a' of type 'longstr'")


@rule("rabbitmq.exchange.declare", "alternate-exchange has to be a long string: 406.")
def test_an_alternate_exchange_is_a_string(client: Client) -> None:
    call = exchange_declare("x", arguments={"alternate-exchange": 5})
    text = "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    refused_exchange(client, call, 406, text)


@rule("exchange.declare.passive.not-found", "A passive declare of what does not exist is 404.")
def test_a_passive_declare_of_nothing_is_not_found(client: Client) -> None:
    text = "NOT_FOUND - no exchange 'x' in vhost '/'"
    refused_exchange(client, exchange_declare("x", passive=True), 404, text)


@rule("exchange.declare.passive.not-found", "A passive declare looks at the name only.")
def test_a_passive_declare_ignores_everything_but_the_name(client: Client) -> None:
    client.declare_exchange("x", "fanout")
    passive = exchange_declare("x", "no-such-type", passive=True, durable=True, internal=True)
    assert client.call(1, passive) == m.ExchangeDeclareOk()


@rule("exchange.declare.durable.support", "Durable exchanges are committed before declare-ok, transient ones are not.")
def test_declare_ok_of_a_durable_exchange_means_committed(client: Client, harness: Harness) -> None:
    harness.hold_commits = True
    client.declare_exchange("transient")
    client.send(1, exchange_declare("durable", durable=True, auto_delete=True), exchange_declare("transient"))
    client.nothing()
    harness.hold_commits = False
    harness.settle()
    assert harness.take_changes() == [
        ExchangePut("/", "durable", "direct", auto_delete=True, internal=False, arguments=EMPTY_TABLE, declared_by=USER)
    ]
    assert [each.method for each in client.take()] == [m.ExchangeDeclareOk()] * 2


@rule("rabbitmq.exchange.declare", "With no_wait nothing is answered, and errors are told all the same.")
def test_no_wait_is_silent_but_for_errors(client: Client) -> None:
    client.send(1, exchange_declare("x")._replace(no_wait=True))
    client.send(1, exchange_declare("x", passive=True)._replace(no_wait=True))
    client.send(1, exchange_bind("x", "amq.direct")._replace(no_wait=True))
    client.send(1, exchange_unbind("x", "amq.direct")._replace(no_wait=True))
    client.send(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=True))
    client.nothing()
    assert client.refused(1, exchange_declare("x", passive=True)._replace(no_wait=True)).code == 404


# --- delete -----------------------------------------------------------------------------------------------------------


@rule(
    "exchange.delete.exchange.exists",
    "Deleting what does not exist succeeds.",
    deviation="The specification has 404 here; RabbitMQ's clients count on delete-ok.",
)
def test_deleting_a_missing_exchange_succeeds(client: Client) -> None:
    assert client.call(1, m.ExchangeDelete(0, "missing", if_unused=False, no_wait=False)) == m.ExchangeDeleteOk()


@rule("exchange.delete.if-unused.in-use", "With if_unused, an exchange with bindings stays: 406.")
def test_if_unused_protects_an_exchange_with_bindings(client: Client) -> None:
    client.declare_exchange("x")
    client.declare("q")
    client.bind("q", "x", "k")
    delete = m.ExchangeDelete(0, "x", if_unused=True, no_wait=False)
    refused_exchange(client, delete, 406, "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use")
    assert reaches(client, "q", "x", "k") == 1
    client.call(1, m.QueueUnbind(0, "q", "x", "k", EMPTY_TABLE))
    client.call(1, exchange_bind("x", "amq.fanout"))
    assert client.call(1, delete) == m.ExchangeDeleteOk(), "only bindings from it make it used"


@rule("rabbitmq.exchange.delete", "The amq. exchanges cannot be deleted: 403.")
def test_a_standard_exchange_stays(client: Client) -> None:
    text = "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed"
    refused_exchange(client, m.ExchangeDelete(0, "amq.direct", if_unused=False, no_wait=False), 403, text)


@rule("rabbitmq.exchange.delete", "Bindings from and to a deleted exchange are gone.")
def test_bindings_go_with_their_exchange(client: Client) -> None:
    client.declare("q")
    client.declare_exchange("x", "fanout")
    client.bind("q", "x")
    client.call(1, exchange_bind("x", "amq.fanout"))
    assert reaches(client, "q", "amq.fanout") == 1
    client.call(1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False))
    client.declare_exchange("x", "fanout")
    assert reaches(client, "q", "x") == 0
    assert reaches(client, "q", "amq.fanout") == 0


# --- exchange to exchange ---------------------------------------------------------------------------------------------


@rule("rabbitmq.exchange.bind", "Messages follow bindings between exchanges; unbind ends that. unbind-ok is 40.51.")
def test_exchanges_can_be_bound_to_exchanges(client: Client) -> None:
    client.declare("q")
    client.declare_exchange("x", "fanout")
    client.bind("q", "x")
    assert client.call(1, exchange_bind("x", "amq.topic", "a.*")) == m.ExchangeBindOk()
    assert client.call(1, exchange_bind("x", "amq.topic", "a.*")) == m.ExchangeBindOk()
    assert reaches(client, "q", "amq.topic", "a.b") == 1
    client.send(1, exchange_unbind("x", "amq.topic", "a.*"))
    assert client.take_bytes()[7:11] == b"\x00\x28\x00\x33"
    assert reaches(client, "q", "amq.topic", "a.b") == 0


@rule("rabbitmq.exchange.bind", "Both ends have to exist to be bound: 404.")
def test_exchanges_have_to_exist_to_be_bound(client: Client) -> None:
    text = "NOT_FOUND - no exchange 'missing' in vhost '/'"
    refused_exchange(client, exchange_bind("amq.fanout", "missing"), 404, text)
    refused_exchange(client, exchange_bind("missing", "amq.fanout"), 404, text)


@rule("rabbitmq.exchange.unbind", "Unbinding what is not there succeeds.")
@pytest.mark.parametrize(
    ("destination", "source"), [("amq.fanout", "no"), ("no", "amq.fanout"), ("amq.topic", "amq.fanout")]
)
def test_unbinding_what_is_not_bound_succeeds(client: Client, destination: str, source: str) -> None:
    assert client.call(1, exchange_unbind(destination, source)) == m.ExchangeUnbindOk()


@rule("rabbitmq.exchange.bind", "Cycles of exchanges are walked once: each queue gets one copy.")
def test_cycles_of_exchanges_end(client: Client) -> None:
    client.declare("q")
    for name in ("a", "b", "c"):
        client.declare_exchange(name, "fanout")
    for destination, source in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "a"), ("c", "b")):
        client.call(1, exchange_bind(destination, source))
    for name in ("a", "b", "c"):
        client.bind("q", name)
    assert [reaches(client, "q", name) for name in ("a", "b", "c")] == [1, 1, 1]


@rule("rabbitmq.exchange.internal", "An internal exchange refuses publishes with 403 and takes what is bound to it.")
def test_an_internal_exchange_is_fed_by_bindings_only(client: Client) -> None:
    client.declare_exchange("inner", "fanout", internal=True)
    client.declare("q")
    client.bind("q", "inner")
    client.call(1, exchange_bind("inner", "amq.fanout"))
    assert reaches(client, "q", "amq.fanout") == 1
    client.publish("inner", "")
    text = "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'"
    assert client.refusal() == Refusal("channel", 403, text, m.BasicPublish)


@rule("rabbitmq.exchange.auto-delete", "An auto-delete exchange goes with its last outgoing binding, not before one.")
def test_an_auto_delete_exchange_goes_with_its_last_binding(client: Client, harness: Harness) -> None:
    client.call(1, exchange_declare("auto", "fanout", auto_delete=True))
    client.call(1, exchange_bind("auto", "amq.fanout"))
    client.call(1, exchange_unbind("auto", "amq.fanout"))
    assert "auto" in harness.vhost.exchanges, "bindings to it do not count"
    client.declare("q")
    client.declare("p")
    client.bind("q", "auto", "1")
    client.bind("p", "auto", "2")
    client.call(1, m.QueueUnbind(0, "q", "auto", "1", EMPTY_TABLE))
    assert "auto" in harness.vhost.exchanges
    client.call(1, m.QueueDelete(0, "p", if_unused=False, if_empty=False, no_wait=False))
    assert "auto" not in harness.vhost.exchanges


@rule("rabbitmq.exchange.auto-delete", "Auto-deletion runs through chains of exchanges.")
def test_auto_deletion_cascades(client: Client, harness: Harness) -> None:
    client.call(1, exchange_declare("a", "fanout", auto_delete=True))
    client.call(1, exchange_declare("b", "fanout", auto_delete=True))
    client.call(1, exchange_bind("b", "a"))
    client.declare("q", exclusive=True)
    client.bind("q", "b")
    client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert {"a", "b"} & set(harness.vhost.exchanges) == set()


# --- routing ----------------------------------------------------------------------------------------------------------


@rule("3.1.3.1", "A direct exchange compares keys for equality.")
@rule("queue.bind.routing-key.direct-exchange-key-matching", "A message goes where the binding key is its routing key.")
@pytest.mark.parametrize(("key", "count"), [("a.b", 1), ("a", 0), ("A.B", 0), ("", 0), ("a.*", 0)])
def test_a_direct_exchange_compares_keys(client: Client, key: str, count: int) -> None:
    client.declare("q")
    client.bind("q", "amq.direct", "a.b")
    assert reaches(client, "q", "amq.direct", key) == count


@rule("3.1.3.2", "A fanout exchange ignores keys.")
def test_a_fanout_exchange_ignores_keys(client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.fanout", "some")
    assert reaches(client, "q", "amq.fanout", "other") == 1


TOPICS = [
    ("a.b.c", "a.b.c", True),
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.b.b.c", False),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("#", "", True),
    ("#", "a.b", True),
    ("*", "", False),
    ("*", "a", True),
    ("#.c", "a.b.c", True),
    ("a.#.c", "a.c", True),
    ("a..c", "a..c", True),
    ("a.*.c", "a..c", True),
    ("*.*", ".", True),
    ("a*", "ab", False),
    ("a.#.#", "a", True),
]


@rule("3.1.3.3", "In a topic exchange * is one word, # any number of words; empty words are words.")
@pytest.mark.parametrize(("pattern", "key", "matches"), TOPICS)
def test_a_topic_exchange_matches_words(client: Client, pattern: str, key: str, matches: bool) -> None:
    client.declare("q")
    client.bind("q", "amq.topic", pattern)
    assert reaches(client, "q", "amq.topic", key) == int(matches)


HEADERS = [
    ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": None}, True),
    ({"a": 1, "b": "x"}, {"a": 1}, False),
    ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
    ({"x-match": "any", "a": 1}, {"a": 2}, False),
    ({"x-match": "any"}, {"a": 2}, False),
    ({"x-match": "all"}, {}, True),
    ({}, {"a": 1}, True),
    ({"x-match": "all", "x-y": 1}, {}, True),
    ({"x-match": "all-with-x", "x-y": 1}, {}, False),
    ({"x-match": "all-with-x", "x-y": 1}, {"x-y": 1}, True),
    ({"x-match": "any", "x-y": 1}, {"x-y": 1}, False),
    ({"x-match": "any-with-x", "x-y": 1}, {"x-y": 1}, True),
    ({"a": None}, {"a": "anything"}, True),
    ({"a": None}, {"b": 1}, False),
    ({"a": 1}, {"a": 1 << 40}, False),
    ({"a": 1}, {"a": "1"}, False),
    ({"a": 1}, {"a": 1.0}, False),
    ({"a": [1, "x"]}, {"a": [1, "x"]}, True),
]


@rule("3.1.3.4", "A headers exchange compares headers with binding arguments, all or any of them.")
@rule("rabbitmq.routing.headers", "The -with-x forms look at x- headers too; a void argument asks for presence.")
@pytest.mark.parametrize(("arguments", "headers", "matches"), HEADERS)
def test_a_headers_exchange_compares_headers(client: Client, arguments: Table, headers: Table, matches: bool) -> None:
    client.declare("q")
    client.bind("q", "amq.headers", "ignored", arguments)
    assert reaches(client, "q", "amq.headers", "", headers=encode_table(headers)) == int(matches)


@rule("rabbitmq.routing.headers", "Another x-match is refused at the binding: 406.")
def test_an_unknown_x_match_is_refused(client: Client) -> None:
    client.declare("q")
    refusal = client.refused(1, m.QueueBind(0, "q", "amq.headers", "", False, encode_table({"x-match": "some"})))
    assert (refusal.scope, refusal.code, refusal.method) == ("channel", 406, m.QueueBind)
    assert refusal.text.startswith("PRECONDITION_FAILED - Invalid x-match field value ")
    assert refusal.text.endswith("; expected all, any, all-with-x, or any-with-x")


@rule("rabbitmq.routing.alternate-exchange", "What matches nothing goes on to the alternate exchange, and so on.")
def test_alternate_exchanges_are_followed(client: Client) -> None:
    client.declare("last")
    client.declare("first")
    client.declare_exchange("c", "fanout")
    client.declare_exchange("b", arguments={"alternate-exchange": "c"})
    client.declare_exchange("a", arguments={"alternate-exchange": "b"})
    client.bind("last", "c")
    client.bind("first", "a", "known")
    assert reaches(client, "last", "a", "unknown") == 1
    assert reaches(client, "first", "a", "known") == 1
    assert client.get("last") is None


@rule("rabbitmq.routing.alternate-exchange", "A missing alternate is passed over, a cycle of them walked once.")
def test_alternate_exchanges_may_be_missing_or_circular(client: Client) -> None:
    client.declare("q")
    client.declare_exchange("a", arguments={"alternate-exchange": "b"})
    assert reaches(client, "q", "a", "q") == 0
    client.declare_exchange("b", arguments={"alternate-exchange": "a"})
    assert reaches(client, "q", "a", "q") == 0
    client.bind("q", "b", "k")
    assert reaches(client, "q", "a", "k") == 1


@rule("rabbitmq.routing.alternate-exchange", "What an alternate exchange routes is routed: mandatory returns nothing.")
def test_alternate_routing_counts_as_routing(client: Client) -> None:
    client.declare("q")
    client.declare_exchange("b", "fanout")
    client.declare_exchange("a", arguments={"alternate-exchange": "b"})
    client.bind("q", "b")
    client.publish("a", "k", mandatory=True)
    client.nothing()
    client.call(1, m.QueueUnbind(0, "q", "b", "", EMPTY_TABLE))
    client.publish("a", "k", mandatory=True)
    client.expect(m.BasicReturn)


@rule("rabbitmq.routing.cc", "CC and BCC add routing keys; CC stays in the headers, BCC does not.")
@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.topic"])
def test_copies_go_to_further_keys(client: Client, exchange: str) -> None:
    for name in ("to", "cc1", "cc2", "bcc"):
        client.declare(name)
        if exchange:
            client.bind(name, exchange, name)
    headers = encode_table({"CC": ["cc1", "cc2", 5, "to"], "BCC": ["bcc"], "k": 1})
    client.publish(exchange, "to", b"m", headers=headers)
    for name in ("to", "cc1", "cc2", "bcc"):
        got = client.get(name)
        assert got is not None and got.content is not None
        assert got.method.message_count == 0, "one copy each"
        assert got.method.routing_key == "to"
        assert got.content.properties.headers == encode_table({"CC": ["cc1", "cc2", 5, "to"], "k": 1})


@rule("rabbitmq.routing.cc", "CC and BCC have to be arrays: 406.")
@pytest.mark.parametrize(("name", "value", "kind"), [("CC", "q", "longstr"), ("BCC", 5, "signedint")])
def test_copies_are_arrays(client: Client, name: str, value: object, kind: str) -> None:
    client.publish("", "q", headers=encode_table({name: value}))
    text = f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'
    assert client.refusal() == Refusal("channel", 406, text, m.BasicPublish)


@rule("rabbitmq.routing.consistent-hash", "Each message has exactly one destination, decided by its key.")
@rule("rabbitmq.routing.modulus-hash", "Each message has exactly one destination, decided by its key.")
@rule("rabbitmq.routing.random", "Each message has exactly one destination, decided by nothing.")
@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-modulus-hash", "x-random"])
def test_choosing_exchanges_choose_one(client: Client, kind: str) -> None:
    client.declare_exchange("x", kind)
    queues = ("a", "b", "c")
    for name in queues:
        client.declare(name)
        client.bind(name, "x", "1")
    where: dict[str, set[str]] = {}
    for key in [str(number % 20) for number in range(60)]:
        client.publish("x", key, b"m")
        holders = [name for name in queues if client.get(name, no_ack=True)]
        assert len(holders) == 1
        where.setdefault(key, set()).update(holders)
    assert set().union(*where.values()) == set(queues)
    if kind != "x-random":
        assert all(len(holders) == 1 for holders in where.values())


@rule("rabbitmq.routing.consistent-hash", "The binding key is a weight: anything else is refused with 406.")
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("many", 'The binding key must be an integer: <<"many">>'),
    ],
)
def test_a_consistent_hash_binding_has_a_weight(client: Client, key: str, text: str) -> None:
    client.declare_exchange("x", "x-consistent-hash")
    client.declare("q")
    refusal = client.refused(1, m.QueueBind(0, "q", "x", key, False, EMPTY_TABLE))
    assert refusal == Refusal("channel", 406, "PRECONDITION_FAILED - " + text, m.QueueBind)


@rule("rabbitmq.routing.consistent-hash", "hash-header and hash-property exclude each other: 406.")
def test_a_consistent_hash_has_one_source(client: Client) -> None:
    arguments: Table = {"hash-header": "h", "hash-property": "message_id"}
    refusal = client.refused(1, exchange_declare("x", "x-consistent-hash", arguments=arguments))
    assert (refusal.scope, refusal.code) == ("channel", 406)
    assert "hash-header and hash-property are mutually exclusive" in refusal.text


@rule("rabbitmq.routing.recent-history", "A newly bound queue gets the last messages, but for those marked no-store.")
def test_a_recent_history_exchange_remembers(client: Client) -> None:
    client.declare_exchange("x", "x-recent-history", arguments={"x-recent-history-length": 2})
    for body in (b"1", b"2", b"3"):
        client.publish("x", "", body)
    client.publish("x", "", b"secret", headers=encode_table({"x-recent-history-no-store": True}))
    client.declare("q")
    client.bind("q", "x")
    got = [client.get("q", no_ack=True) for _ in range(3)]
    assert [body_of(each) for each in got if each] == [b"2", b"3"]


@rule("rabbitmq.exchange.bind", "The binding of two durable exchanges is committed before bind-ok.")
def test_durable_bindings_of_exchanges_are_committed(client: Client, harness: Harness) -> None:
    client.call(1, exchange_declare("x", durable=True))
    harness.take_changes()
    harness.hold_commits = True
    client.send(1, exchange_bind("x", "amq.direct", "k"))
    client.nothing()
    harness.hold_commits = False
    harness.settle()
    assert harness.take_changes() == [BindingPut("/", "amq.direct", "x", "exchange", "k", EMPTY_TABLE)]
    client.expect(m.ExchangeBindOk)
