"""The queue class."""

from __future__ import annotations

import re
from typing import Any

import pytest
from engine_harness import USER, Client, Harness, Refusal, basic_consume, body_of, queue_declare

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table
from warren.vhosts.metadata import BindingPut, QueuePut

from .rules import rule

NO_LAST_QUEUE = "NOT_FOUND - no previously declared queue"
MISSING = "NOT_FOUND - no queue 'missing' in vhost '/'"
LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the original declaration."
)


def queue_bind(queue: str, exchange: str, key: str = "", arguments: Table | None = None) -> m.QueueBind:
    return m.QueueBind(0, queue, exchange, key, False, encode_table(arguments or {}))


def queue_unbind(queue: str, exchange: str, key: str = "", arguments: Table | None = None) -> m.QueueUnbind:
    return m.QueueUnbind(0, queue, exchange, key, encode_table(arguments or {}))


def queue_delete(queue: str, *, if_unused: bool = False, if_empty: bool = False) -> m.QueueDelete:
    return m.QueueDelete(0, queue, if_unused, if_empty, False)


def refused_queue(client: Client, call: Any, code: int, text: str) -> None:
    assert client.refused(1, call) == Refusal("channel", code, text, type(call))


# --- declare ----------------------------------------------------------------------------------------------------------


@rule("queue.declare.default-binding", "A new queue can be reached through the default exchange by its name.")
def test_a_new_queue_is_bound_to_the_default_exchange(client: Client) -> None:
    client.declare("q")
    client.publish("", "q", b"m")
    got = client.get("q")
    assert got is not None and body_of(got) == b"m"


@rule("queue.declare.minimum-queues", "256 queues are no problem, nor are 2000.")
def test_many_queues_can_be_declared(client: Client) -> None:
    for number in range(2000):
        client.declare(f"q{number}")


@rule("queue.declare.queue.default-name", "An empty name asks for a new one: amq.gen- and 22 characters.")
def test_the_server_makes_names(client: Client) -> None:
    names = {client.declare("").queue for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name) for name in names)


@rule(
    "queue.declare.queue.reserved",
    "Names beginning with amq. cannot be declared: 403.",
    deviation="Not even when the queue exists, as in RabbitMQ.",
)
def test_a_reserved_queue_name_is_refused(client: Client) -> None:
    name = client.declare("").queue
    for taken in ("amq.q", name):
        text = f"ACCESS_REFUSED - queue name '{taken}' contains reserved prefix 'amq.*'"
        refused_queue(client, queue_declare(taken), 403, text)
    assert client.declare(name, passive=True).queue == name


@rule(
    "queue.declare.queue.syntax",
    "Any UTF-8 of 255 octets is a name; CR and LF are dropped.",
    deviation="The specification's characters are not enforced, as in RabbitMQ; NUL is refused, 406.",
)
def test_queue_names_are_utf_8_without_nul(client: Client) -> None:
    for name in ("f\u00fcr alle: \u2603 & so/weiter", "x" * 255, " ", "a\tb", "a\x7fb", "\x1b[31m", "\x01", "\x9b"):
        assert client.declare(name).queue == name
        client.publish("", name, b"x")
        assert client.get(name, no_ack=True) is not None
        assert client.call(
            1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False)
        ) == m.QueueDeleteOk(0)
    assert client.declare("a\r\nb").queue == "ab"
    assert client.refused(1, queue_declare("a\x00b")).code == 406


@rule("queue.declare.passive.passive", "A passive declare of a missing queue is 404.")
def test_a_passive_declare_of_nothing_is_not_found(client: Client) -> None:
    refused_queue(client, queue_declare("missing", passive=True), 404, MISSING)


@rule("queue.declare.passive.passive", "A passive declare looks at the name only, and counts.")
def test_a_passive_declare_ignores_everything_but_the_name(client: Client) -> None:
    client.declare("q")
    client.publish("", "q")
    arguments: Table = {"x-single-active-consumer": True}
    call = queue_declare("q", passive=True, durable=True, auto_delete=True, arguments=arguments)
    assert client.call(1, call) == m.QueueDeclareOk("q", 1, 0)


INEQUIVALENT = [
    (queue_declare("q", durable=True), "durable", "received 'true' but current is 'false'"),
    (
        queue_declare("q", arguments={"x-message-ttl": 1}),
        "x-message-ttl",
        "received the value '1' of type 'signedint' but current is none",
    ),
]


@rule("queue.declare.passive.equivalent", "A redeclaration has to agree in durable, exclusive, auto_delete, arguments.")
@pytest.mark.parametrize(("call", "arg", "how"), INEQUIVALENT)
def test_an_inequivalent_queue_is_refused(client: Client, call: Any, arg: str, how: str) -> None:
    client.declare("q")
    text = f"PRECONDITION_FAILED - inequivalent arg '{arg}' for queue 'q' in vhost '/': {how}"
    refused_queue(client, call, 406, text)


@rule("queue.declare.passive.equivalent", "Argument values are compared, integers by value across widths.")
def test_arguments_are_compared_by_value(client: Client) -> None:
    as_byte = (22).to_bytes(4, "big") + b"\x0cx-max-length" + b"b\x0a" + b"\x05other" + b"V"
    assert len(as_byte) == 4 + 13 + 2 + 6 + 1
    client.send(1, m.QueueDeclare(0, "q", False, False, False, False, False, as_byte))
    client.expect(m.QueueDeclareOk)
    client.declare("q", arguments={"x-max-length": 10})
    call = queue_declare("q", arguments={"x-max-length": 11})
    text = (
        "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': "
        "received '11' but current is '10'"
    )
    refused_queue(client, call, 406, text)
    call = queue_declare("q")
    text = text.replace(
        "received '11' but current is '10'", "received none but current is the value '10' of type 'byte'"
    )
    refused_queue(client, call, 406, text)


@rule("rabbitmq.queue.declare", "Unknown arguments are kept and not compared; x-queue-type classic is the default.")
def test_unknown_arguments_are_not_compared(client: Client) -> None:
    client.declare("q", arguments={"x-unknown": 1})
    client.declare("q", arguments={"x-unknown": 2, "x-queue-type": "classic"})
    client.declare("q")


@rule("rabbitmq.queue.declare", "declare-ok tells the name, the ready messages and the consumers.")
def test_declare_ok_counts_ready_messages_and_consumers(client: Client, other: Client) -> None:
    assert client.declare("q") == m.QueueDeclareOk("q", 0, 0)
    for _ in range(3):
        client.publish("", "q")
    client.get("q")
    assert client.declare("q") == m.QueueDeclareOk("q", 2, 0)
    other.send(1, m.BasicQos(0, 1, False))
    other.expect(m.BasicQosOk)
    other.consume("q")
    assert client.declare("q") == m.QueueDeclareOk("q", 1, 1)


@rule("rabbitmq.queue.declare", "x-queue-type and x-single-active-consumer are checked: 406.")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"x-queue-type": "mystery"},
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type 'mystery'\"",
        ),
        ({"x-queue-type": 5}, "invalid arg 'x-queue-type' for queue 'q' in vhost '/': {unacceptable_type,signedint}"),
        (
            {"x-single-active-consumer": "yes"},
            "invalid arg 'x-single-active-consumer' for queue 'q' in vhost '/': {unacceptable_type,longstr}",
        ),
    ],
)
def test_impossible_arguments_are_refused(client: Client, arguments: Table, reason: str) -> None:
    refused_queue(client, queue_declare("q", arguments=arguments), 406, "PRECONDITION_FAILED - " + reason)
    refused_queue(client, queue_declare("q", passive=True), 404, "NOT_FOUND - no queue 'q' in vhost '/'")


@rule("queue.declare.durable.types", "Durable queues are committed before declare-ok, transient ones are not.")
@rule("queue.declare.durable.persistence", "What is committed is all that a restart needs to make the queue again.")
def test_declare_ok_of_a_durable_queue_means_committed(client: Client, harness: Harness) -> None:
    harness.hold_commits = True
    client.declare("transient")
    client.send(1, queue_declare("durable", durable=True, arguments={"x-unknown": 1}))
    client.nothing()
    harness.hold_commits = False
    harness.settle()
    client.expect(m.QueueDeclareOk)
    (put,) = harness.take_changes()
    assert isinstance(put, QueuePut)
    assert put.queue_id > 0
    assert put == QueuePut("/", "durable", False, encode_table({"x-unknown": 1}), put.queue_id)
    restarted = Harness()
    restarted.broker.restore(put)
    assert restarted.channel().declare("durable", durable=True) == m.QueueDeclareOk("durable", 0, 0)


@rule("queue.declare.durable.persistence", "Declaring again what is not committed yet waits for it too.")
def test_a_redeclaration_waits_for_the_commit_as_well(client: Client, other: Client, harness: Harness) -> None:
    harness.hold_commits = True
    client.send(1, queue_declare("durable", durable=True))
    other.send(1, queue_declare("durable", durable=True))
    client.nothing()
    other.nothing()
    harness.hold_commits = False
    harness.settle()
    client.expect(m.QueueDeclareOk)
    other.expect(m.QueueDeclareOk)


# --- exclusive, auto-delete -------------------------------------------------------------------------------------------


@rule("queue.declare.exclusive.types", "Queues may be exclusive or shared.")
def test_exclusive_and_shared_queues_exist(client: Client, other: Client) -> None:
    client.declare("mine", exclusive=True)
    client.declare("ours")
    assert other.declare("ours").queue == "ours"
    assert client.declare("mine", exclusive=True).queue == "mine"


@rule("queue.declare.exclusive.exclusive", "Nobody else may use an exclusive queue: 405, whatever it is.")
@pytest.mark.parametrize(
    "call",
    [
        queue_declare("q"),
        queue_declare("q", exclusive=True),
        queue_declare("q", passive=True),
        basic_consume("q"),
        m.BasicGet(0, "q", False),
        m.QueuePurge(0, "q", False),
        queue_delete("q"),
        queue_bind("q", "amq.direct"),
        queue_unbind("q", "amq.direct"),
    ],
)
def test_an_exclusive_queue_is_locked_for_others(client: Client, other: Client, call: Any) -> None:
    client.declare("q", exclusive=True)
    refused_queue(other, call, 405, LOCKED)


@rule("rabbitmq.queue.exclusive", "Exclusive and shared cannot be changed by a redeclaration: 405.")
def test_exclusiveness_cannot_be_changed(client: Client) -> None:
    client.declare("q")
    refused_queue(client, queue_declare("q", exclusive=True), 405, LOCKED)
    client.call(1, queue_delete("q"))
    client.declare("q", exclusive=True)
    refused_queue(client, queue_declare("q"), 405, LOCKED)


@rule("rabbitmq.queue.exclusive", "Anyone may publish to an exclusive queue.")
def test_anyone_may_publish_to_an_exclusive_queue(client: Client, other: Client) -> None:
    client.declare("q", exclusive=True)
    other.publish("", "q", b"m")
    assert client.get("q") is not None


@rule("rabbitmq.queue.exclusive", "An exclusive queue outlives its channel and goes with its connection.")
@pytest.mark.parametrize("how", ["close", "hang up", "error"])
def test_an_exclusive_queue_goes_with_its_connection(client: Client, harness: Harness, how: str) -> None:
    client.open(2)
    client.declare("q", exclusive=True, number=2)
    client.send(2, m.ChannelClose(200, "", 0, 0))
    client.expect(m.ChannelCloseOk)
    assert "q" in harness.vhost.queues
    if how == "close":
        client.send(0, m.ConnectionClose(200, "", 0, 0))
    elif how == "hang up":
        client.hang_up()
    else:
        client.send(1, m.ChannelOpen(""))
    assert "q" not in harness.vhost.queues


@rule("rabbitmq.queue.exclusive", "An exclusive queue is never durable, whatever was asked for.")
def test_an_exclusive_queue_is_not_durable(client: Client, harness: Harness) -> None:
    before = harness.broker.journal.last_ticket
    client.declare("q", exclusive=True, durable=True)
    client.declare("q", exclusive=True, durable=False)
    assert harness.broker.journal.last_ticket == before


@rule("rabbitmq.queue.auto-delete", "An auto-delete queue goes with its last consumer, not before it had one.")
def test_an_auto_delete_queue_goes_with_its_last_consumer(client: Client, other: Client, harness: Harness) -> None:
    client.declare("q", auto_delete=True)
    client.publish("", "q")
    client.get("q")
    client.consume("q", "a")
    other.consume("q", "b")
    client.call(1, m.BasicCancel("a", False))
    assert "q" in harness.vhost.queues
    other.hang_up()
    assert "q" not in harness.vhost.queues
    client.send(1, m.BasicAck(1, False))
    client.nothing()


@rule(
    "queue.declare.auto-delete.pre-existence",
    "A redeclaration cannot change auto_delete.",
    deviation="A different auto_delete is 406, as in RabbitMQ, instead of being ignored.",
)
def test_auto_delete_cannot_be_changed(client: Client) -> None:
    client.declare("q", auto_delete=True)
    text = (
        "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'q' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    refused_queue(client, queue_declare("q"), 406, text)


# --- bind and unbind --------------------------------------------------------------------------------------------------


@rule("queue.bind.duplicates", "Binding twice is binding once.")
def test_a_second_identical_binding_changes_nothing(client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.direct", "k")
    client.bind("q", "amq.direct", "k")
    client.publish("amq.direct", "k")
    assert client.declare("q").message_count == 1
    client.call(1, queue_unbind("q", "amq.direct", "k"))
    client.publish("amq.direct", "k")
    assert client.declare("q").message_count == 1


@rule("queue.bind.unique", "However many bindings match, a queue gets one copy.")
def test_a_queue_gets_one_copy(client: Client) -> None:
    client.declare("q")
    for key in ("#", "a.*", "*.b", "a.b"):
        client.bind("q", "amq.topic", key)
    client.bind("q", "amq.topic", "a.b", {"another": 1})
    client.publish("amq.topic", "a.b")
    assert client.declare("q").message_count == 1


@rule("queue.bind.transient-exchange", "A durable queue may be bound to a transient exchange, transiently.")
def test_a_durable_queue_may_be_bound_to_a_transient_exchange(client: Client, harness: Harness) -> None:
    client.declare("q", durable=True)
    client.declare_exchange("x")
    before = harness.broker.journal.last_ticket
    client.bind("q", "x", "k")
    assert harness.broker.journal.last_ticket == before


@rule("queue.bind.durable-exchange", "Between a durable exchange and a durable queue bindings are committed.")
def test_durable_bindings_are_committed(client: Client, harness: Harness) -> None:
    client.declare("q", durable=True)
    harness.take_changes()
    harness.hold_commits = True
    client.send(1, queue_bind("q", "amq.direct", "k", {"a": 1}))
    client.nothing()
    harness.hold_commits = False
    harness.settle()
    client.expect(m.QueueBindOk)
    assert harness.take_changes() == [BindingPut("/", "amq.direct", "q", "queue", "k", encode_table({"a": 1}))]


@rule("queue.bind.binding-count", "4 bindings of a queue are no problem, nor are 2000.")
def test_a_queue_may_have_many_bindings(client: Client) -> None:
    client.declare("q")
    for number in range(2000):
        client.bind("q", "amq.direct", f"k{number}")


NEEDS_A_QUEUE = [
    queue_bind("", "amq.direct", "k"),
    queue_unbind("", "amq.direct", "k"),
    m.QueuePurge(0, "", False),
    queue_delete(""),
    m.BasicGet(0, "", False),
    basic_consume(""),
]


@rule("queue.bind.queue.queue-known", "An empty queue name needs a queue declared before on this channel: 404.")
@rule("queue.unbind.queue.queue-known", "An empty queue name needs a queue declared before on this channel: 404.")
@rule("queue.purge.queue.queue-known", "An empty queue name needs a queue declared before on this channel: 404.")
@rule("queue.delete.queue.queue-known", "An empty queue name needs a queue declared before on this channel: 404.")
@pytest.mark.parametrize("call", NEEDS_A_QUEUE)
def test_an_empty_name_needs_a_declared_queue(client: Client, call: Any) -> None:
    client.open(2)
    client.declare("elsewhere", number=2)
    refused_queue(client, call, 404, NO_LAST_QUEUE)


@rule("rabbitmq.queue.last", "An empty queue name means the queue last declared on this channel, passively too.")
def test_an_empty_name_means_the_last_queue(client: Client) -> None:
    client.declare("p")
    client.declare("q")
    client.declare("p", passive=True)
    client.publish("", "p", b"m")
    assert client.get("") is not None
    assert client.declare("", passive=True).queue == "p"
    client.send(1, m.BasicAck(1, False))
    assert client.call(1, m.QueuePurge(0, "", False)) == m.QueuePurgeOk(0)
    client.consume("", "t")
    client.call(1, m.BasicCancel("t", False))
    assert client.call(1, queue_delete("", if_empty=True)) == m.QueueDeleteOk(0)


@rule("rabbitmq.queue.last", "In bind and unbind, an empty queue name with an empty key makes that name the key.")
def test_an_empty_key_with_an_empty_name_is_the_last_queue_too(client: Client) -> None:
    client.declare("q")
    client.bind("", "amq.direct", "")
    client.publish("amq.direct", "q")
    assert client.declare("q").message_count == 1
    client.call(1, queue_unbind("", "amq.direct", ""))
    client.publish("amq.direct", "q")
    assert client.declare("q").message_count == 1
    client.bind("q", "amq.direct", "")
    client.publish("amq.direct", "")
    assert client.declare("q").message_count == 2


@rule("queue.bind.queue.must-exist", "A queue that does not exist cannot be bound: 404.")
def test_a_missing_queue_cannot_be_bound(client: Client) -> None:
    refused_queue(client, queue_bind("missing", "amq.direct"), 404, MISSING)


@rule("queue.bind.exchange.exchange-existence", "An exchange that does not exist cannot be bound to: 404.")
def test_a_queue_cannot_be_bound_to_a_missing_exchange(client: Client) -> None:
    client.declare("q")
    refused_queue(client, queue_bind("q", "missing"), 404, "NOT_FOUND - no exchange 'missing' in vhost '/'")


@rule(
    "queue.bind.exchange.default-exchange",
    "An empty exchange name means the default exchange.",
    deviation="to which nothing may be bound: 403, as in RabbitMQ.",
)
@rule(
    "queue.unbind.exchange.default-exchange",
    "An empty exchange name means the default exchange.",
    deviation="from which nothing may be unbound: 403, as in RabbitMQ.",
)
def test_a_queue_cannot_be_bound_to_the_default_exchange(client: Client) -> None:
    client.declare("q")
    text = "ACCESS_REFUSED - operation not permitted on the default exchange"
    refused_queue(client, queue_bind("q", "", "k"), 403, text)
    refused_queue(client, queue_unbind("q", "", "k"), 403, text)


@rule(
    "queue.unbind.01",
    "Unbinding what is not bound succeeds.",
    deviation="The specification closes the connection; RabbitMQ's clients count on unbind-ok.",
)
@rule(
    "queue.unbind.queue.must-exist",
    "Unbinding a missing queue succeeds.",
    deviation="The specification has 404; RabbitMQ's clients count on unbind-ok.",
)
@rule(
    "queue.unbind.exchange.must-exist",
    "Unbinding from a missing exchange succeeds.",
    deviation="The specification has 404; RabbitMQ's clients count on unbind-ok.",
)
@pytest.mark.parametrize(("queue", "exchange"), [("q", "amq.direct"), ("missing", "amq.direct"), ("q", "missing")])
def test_unbinding_what_is_not_bound_succeeds(client: Client, queue: str, exchange: str) -> None:
    client.declare("q")
    assert client.call(1, queue_unbind(queue, exchange)) == m.QueueUnbindOk()


@rule("rabbitmq.queue.bind", "Arguments are part of a binding's identity.")
def test_bindings_differ_by_their_arguments(client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.direct", "k", {"a": 1})
    client.call(1, queue_unbind("q", "amq.direct", "k"))
    client.publish("amq.direct", "k")
    client.call(1, queue_unbind("q", "amq.direct", "k", {"a": 1}))
    client.publish("amq.direct", "k")
    assert client.declare("q").message_count == 1


@rule("rabbitmq.queue.bind", "CR and LF are dropped from names.")
def test_line_ends_are_dropped_from_names(client: Client) -> None:
    client.declare("q")
    client.bind("q\r\n", "amq.\ndirect", "k")
    client.publish("amq.direct", "k")
    assert client.call(1, m.QueuePurge(0, "q\n", False)) == m.QueuePurgeOk(1)


# --- purge ------------------------------------------------------------------------------------------------------------


@rule("queue.purge.02", "purge drops ready messages, counts them, and leaves what is unacked.")
def test_purge_leaves_what_is_unacked(client: Client) -> None:
    client.declare("q")
    for body in (b"1", b"2", b"3"):
        client.publish("", "q", body)
    client.get("q")
    assert client.call(1, m.QueuePurge(0, "q", False)) == m.QueuePurgeOk(2)
    client.send(1, m.BasicReject(1, True))
    got = client.get("q")
    assert got is not None and body_of(got) == b"1"


@rule("queue.purge.queue.must-exist", "A missing queue cannot be purged: 404.")
def test_a_missing_queue_cannot_be_purged(client: Client) -> None:
    refused_queue(client, m.QueuePurge(0, "missing", False), 404, MISSING)


# --- delete -----------------------------------------------------------------------------------------------------------


@rule(
    "queue.delete.queue.must-exist",
    "Deleting a missing queue succeeds with a count of 0.",
    deviation="The specification has 404 here; RabbitMQ's clients count on delete-ok.",
)
def test_deleting_a_missing_queue_succeeds(client: Client) -> None:
    assert client.call(1, queue_delete("missing")) == m.QueueDeleteOk(0)


@rule("queue.delete.if-unused.in-use", "With if_unused, a queue with consumers stays: 406.")
def test_if_unused_protects_a_queue_with_consumers(client: Client, other: Client) -> None:
    client.declare("q")
    other.consume("q")
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    refused_queue(client, queue_delete("q", if_unused=True), 406, text)
    assert client.declare("q").consumer_count == 1


@rule("queue.delete.if-empty.not-empty", "With if_empty, a queue with ready messages stays: 406.")
def test_if_empty_protects_a_queue_with_messages(client: Client) -> None:
    client.declare("q")
    client.publish("", "q")
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    refused_queue(client, queue_delete("q", if_empty=True), 406, text)
    client.get("q")
    assert client.call(1, queue_delete("q", if_empty=True)) == m.QueueDeleteOk(0)


@rule("rabbitmq.queue.delete", "delete-ok counts the ready messages, and the bindings are gone.")
def test_delete_counts_ready_messages_and_drops_bindings(client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.direct", "k")
    for _ in range(3):
        client.publish("amq.direct", "k")
    client.get("q")
    assert client.call(1, queue_delete("q")) == m.QueueDeleteOk(2)
    client.send(1, m.BasicAck(1, False))
    client.nothing()
    client.declare("q")
    client.publish("amq.direct", "k")
    assert client.declare("q").message_count == 0


@rule("rabbitmq.queue.delete", "Consumers of a deleted queue get basic.cancel, if they announced that they understand.")
def test_consumers_of_a_deleted_queue_are_told(client: Client, other: Client, harness: Harness) -> None:
    plain = harness.client(capabilities=())
    plain.open(1)
    client.declare("q")
    other.consume("q", "mine")
    plain.consume("q", "theirs")
    client.call(1, queue_delete("q"))
    assert other.expect(m.BasicCancel, 1) == m.BasicCancel("mine", True)
    plain.nothing()
    client.declare("q")
    client.publish("", "q")
    other.nothing()
    assert other.consume("q", "mine") == "mine", "the tag is free again"


@rule("rabbitmq.queue.delete", "Who deletes a queue hears of consumers of its own behind delete-ok.")
@pytest.mark.parametrize("durable", [False, True])
def test_own_consumers_of_a_deleted_queue_are_told_behind_the_reply(
    client: Client, harness: Harness, durable: bool
) -> None:
    client.open(2)
    client.declare("q", durable=durable)
    client.consume("q", "one")
    client.consume("q", "another", number=2)
    harness.hold_commits = durable
    client.send(1, queue_delete("q"))
    if durable:
        client.nothing()
    harness.hold_commits = False
    harness.settle()
    assert [(received.channel, received.method) for received in client.take()] == [
        (1, m.QueueDeleteOk(0)),
        (1, m.BasicCancel("one", True)),
        (2, m.BasicCancel("another", True)),
    ]
    client.declare("q", durable=durable)
    client.consume("q", "one")
    client.send(1, queue_delete("q")._replace(no_wait=True))
    assert client.expect(m.BasicCancel, 1) == m.BasicCancel("one", True)
    client.nothing()


@rule("rabbitmq.queue.declare", "With no_wait nothing is answered, and errors are told all the same.")
def test_no_wait_is_silent_but_for_errors(client: Client) -> None:
    client.send(1, queue_declare("q")._replace(no_wait=True))
    client.send(1, queue_declare("q", passive=True)._replace(no_wait=True))
    client.send(1, queue_bind("q", "amq.direct")._replace(no_wait=True))
    client.send(1, m.QueuePurge(0, "q", True), queue_delete("q")._replace(no_wait=True))
    client.nothing()
    assert client.refused(1, queue_declare("q", passive=True)._replace(no_wait=True)).code == 404


@rule("rabbitmq.queue.reply-to", "amq.rabbitmq.reply-to can be declared, cannot be bound, and forged ids are unknown.")
def test_the_reply_queue_is_a_name_only(client: Client) -> None:
    assert client.declare("amq.rabbitmq.reply-to") == m.QueueDeclareOk("amq.rabbitmq.reply-to", 0, 1)
    text = "NOT_FOUND - no queue 'amq.rabbitmq.reply-to.forged' in vhost '/'"
    refused_queue(client, queue_declare("amq.rabbitmq.reply-to.forged"), 404, text)
    text = "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue"
    refused_queue(client, queue_bind("amq.rabbitmq.reply-to", "amq.direct"), 403, text)
    refused_queue(client, queue_unbind("amq.rabbitmq.reply-to.forged", "amq.direct"), 403, text)


@rule("rabbitmq.names", "Who declares is the user that logged in; the vhost is the connection's.")
def test_texts_name_vhost_and_user(harness: Harness) -> None:
    harness.add_user("bob", configure="^bob")
    bob = harness.channel("bob")
    assert USER != "bob"
    text = "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'bob'"
    refused_queue(bob, queue_declare("q"), 403, text)
