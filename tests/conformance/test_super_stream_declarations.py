"""Super streams: what makes one, what is refused, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Refusal, exchange_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.queues.long_work import TURN_STEPS
from warren.streams.stream import Stream
from warren.vhosts.metadata import BindingPut, ExchangePut, PolicyPut, QueuePut, VhostLimitsPut
from warren.vhosts.super_streams import PARTITIONS_MAX

from .rules import rule
from .stream_clients import STREAM
from .super_stream_topology import (
    ME,
    ORDER,
    TYPE,
    arguments_of,
    bind,
    bindings,
    counts,
    declaration,
    partitions,
    refused,
    super_stream,
    topology,
)


@rule("warren.super-stream.declare", "An exchange declared with x-super-stream: N has N partitions, bound in order.")
@pytest.mark.parametrize("kind", [TYPE, "direct"])
@pytest.mark.parametrize("count", [1, 3, 20, PARTITIONS_MAX])
def test_a_number_of_partitions(client: Client, harness: Harness, kind: str, count: int) -> None:
    super_stream(client, count, kind)
    keys = [str(number) for number in range(count)]
    assert bindings(harness) == topology(*keys)
    assert partitions(harness) == [f"e-{key}" for key in keys]
    assert all(isinstance(queue, Stream) for queue in harness.vhost.queues.values())
    assert arguments_of(harness, "e-0") == STREAM
    assert decode_table(harness.vhost.exchanges["e"].arguments) == {TYPE: True}


@rule("warren.super-stream.declare", "With a list of texts a direct exchange has a partition for each of these keys.")
def test_keys(client: Client, harness: Harness) -> None:
    super_stream(client, ["emea", "apac", "7"], "direct")
    assert bindings(harness) == topology("emea", "apac", "7")
    assert partitions(harness) == ["e-emea", "e-apac", "e-7"]


@rule("warren.super-stream.declare", "The arguments of streams are those of its partitions, all others are its own.")
def test_arguments_are_passed_on(client: Client, harness: Harness) -> None:
    of_streams: Table = {"x-max-age": "7D", "x-max-length-bytes": 1 << 40, "x-stream-max-segment-size-bytes": 1 << 20}
    own: Table = {"alternate-exchange": "amq.fanout", "x-message-deduplication": True, "x-mine": [1, {"a": None}]}
    super_stream(client, 2, more=of_streams | own)
    for name in ("e-0", "e-1"):
        assert arguments_of(harness, name) == STREAM | of_streams
    assert decode_table(harness.vhost.exchanges["e"].arguments) == own | {TYPE: True}
    assert harness.vhost.exchanges["e"].alternate == "amq.fanout"
    assert "e" in harness.vhost.seen_keys


@rule("rabbitmq.super-stream.declare", "What clients of RabbitMQ declare makes a super stream, one call for each part.")
@pytest.mark.parametrize("kind", [TYPE, "direct"])
def test_topology_by_hand(client: Client, harness: Harness, kind: str) -> None:
    super_stream(client, True, kind)
    assert partitions(harness) == []
    for order in (2, 0, 1):
        client.declare(f"invoices-{order}", durable=True, arguments=STREAM)
        bind(client, f"invoices-{order}", str(order), order)
    assert partitions(harness) == ["invoices-0", "invoices-1", "invoices-2"]
    super_stream(client, True, kind)
    assert partitions(harness, "amq.direct") is None and partitions(harness, "none") is None


@rule("rabbitmq.super-stream.declare", "Partitions without an order come last, in the order of binding; each once.")
def test_order_of_partitions(client: Client, harness: Harness) -> None:
    super_stream(client, True, "direct")
    orders: dict[str, list[object]] = {"a": [None], "b": [7], "c": ["1"], "d": [-1], "e": [True], "f": [9, 3], "g": [7]}
    for name, wanted in orders.items():
        client.declare(name, durable=True, arguments=STREAM)
        for order in wanted:
            bind(client, name, name, order)
    client.declare("classic", durable=True)
    bind(client, "classic", "h", 0)
    client.declare_exchange("x")
    assert client.call(1, m.ExchangeBind(0, "x", "e", "", False, encode_table({ORDER: 0}))) == m.ExchangeBindOk()
    assert partitions(harness) == ["d", "f", "b", "g", "a", "c", "e"]


@rule("rabbitmq.super-stream.declare", "The binding keys of the hashing type are integers: else 406.")
@pytest.mark.parametrize("key", ["", "a", "1.5", "1a", " 1", "٣"])
def test_binding_keys(client: Client, key: str) -> None:
    super_stream(client, True)
    client.declare("s", durable=True, arguments=STREAM)
    bind(client, "s", "-1")
    bind(client, "s", "007")
    refusal = client.refused(1, m.QueueBind(0, "s", "e", key, False, encode_table({})))
    assert refusal.code == 406 and refusal.method is m.QueueBind
    assert refusal.text.startswith("PRECONDITION_FAILED - The binding key must be an integer: <<")


@rule("warren.super-stream.declare", "Impossible numbers and keys are refused, and make nothing.")
@pytest.mark.parametrize(
    ("wanted", "kind", "shown"),
    [
        (0, TYPE, "{signedint,0}"),
        (-1, "x-super-stream", "{signedint,-1}"),
        (PARTITIONS_MAX + 1, TYPE, f"{{signedint,{PARTITIONS_MAX + 1}}}"),
        ("3", TYPE, '{longstr,<<"3">>}'),
        (["a"], TYPE, '{array,[{longstr,<<"a">>}]}'),
        (None, TYPE, "{void,undefined}"),
    ],
)
def test_impossible_partitions(client: Client, wanted: object, kind: str, shown: str) -> None:
    refused(client, wanted, f"invalid arg '{TYPE}' for {ME}: {{invalid_super_stream,{shown}}}", kind)


@rule("rabbitmq.super-stream.declare", "Elsewhere the argument means nothing, nor does a value that is none of those.")
@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (3, "fanout"),
        (["a"], "topic"),
        ("3", "direct"),
        (0, "direct"),
        ([], "direct"),
        (["a", "a"], "direct"),
        ([""], "direct"),
        (["a", 1], "direct"),
        (False, TYPE),
        (False, "direct"),
    ],
)
def test_arguments_without_meaning(client: Client, harness: Harness, wanted: object, kind: str) -> None:
    super_stream(client, wanted, kind)
    assert harness.vhost.queues == {} and partitions(harness) is None


@rule("warren.super-stream.declare", "Partitions need an exchange that lasts.")
@pytest.mark.parametrize(
    ("durable", "auto_delete", "named"), [(False, False, "non-durable"), (True, True, "auto-delete")]
)
def test_super_streams_last(client: Client, durable: bool, auto_delete: bool, named: str) -> None:
    refused(client, 3, f"invalid property '{named}' for {ME}", durable=durable, auto_delete=auto_delete)
    assert (
        client.call(1, declaration(True, durable=durable, auto_delete=auto_delete)) == m.ExchangeDeclareOk()
    )  # RabbitMQ's clients may


@rule(
    "warren.super-stream.declare",
    "What would be refused of a stream or an exchange is refused here, and makes nothing.",
)
@pytest.mark.parametrize(
    ("more", "explanation"),
    [
        (
            {"x-max-age": "7x"},
            "invalid arg 'x-max-age' for queue 'e-0' in vhost '/': {invalid_max_age,<<\"7x\">>}",
        ),
        (
            {"x-stream-max-segment-size-bytes": 1 << 40},
            "Exceeded max value for x-stream-max-segment-size-bytes",
        ),
        (
            {"alternate-exchange": 5},
            "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'e' in vhost '/'",
        ),
    ],
)
def test_bad_arguments(client: Client, more: Table, explanation: str) -> None:
    refusal = client.refused(1, declaration(3, more=more))
    assert refusal.text.startswith(f"PRECONDITION_FAILED - {explanation.split(':')[0]}")
    assert not client.harness.vhost.queues and "e" not in client.harness.vhost.exchanges


@rule("warren.super-stream.declare", "No partition may have a name that no queue can have.")
@pytest.mark.parametrize(("name", "wanted"), [("n" * 254, 1), ("n" * 253, 11), ("ä" * 127, ["a"])])
def test_long_names(client: Client, name: str, wanted: object) -> None:
    kind = TYPE if isinstance(wanted, int) else "direct"
    refusal = client.refused(1, declaration(wanted, kind, name=name))
    assert refusal.code == 406 and "a partition would have a name of more than 255 bytes" in refusal.text
    refusal = client.refused(1, declaration(["a\nb"], "direct"))
    assert refusal.code == 406 and "contains a NUL or a line break" in refusal.text
    assert not client.harness.vhost.queues and "e" not in client.harness.vhost.exchanges


@rule("warren.super-stream.redeclare", "The same declaration again is accepted, and so is one with true.")
@pytest.mark.parametrize(("wanted", "kind"), [(3, TYPE), (3, "direct"), (["a", "b"], "direct")])
@pytest.mark.parametrize("restart", [True, False])
def test_redeclaration(wanted: object, kind: str, restart: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    more: Table = {"x-max-age": "7D", "alternate-exchange": "amq.fanout"}
    super_stream(client, wanted, kind, more=more)
    made = bindings(harness), {name: int(queue.store_id) for name, queue in harness.vhost.queues.items()}
    if restart:
        harness = harness.restart(clean=False)
        client = harness.channel()
    super_stream(client, wanted, kind, more=more)
    assert (bindings(harness), {name: int(queue.store_id) for name, queue in harness.vhost.queues.items()}) == made
    super_stream(client, True, kind, more=more)


@rule("warren.super-stream.redeclare", "Another number, other keys, other arguments, another type: 406.")
def test_inequivalent_declarations(client: Client) -> None:
    super_stream(client, 3, more={"x-max-age": "7D"})
    differs = f"inequivalent arg '{TYPE}' for {ME}: "
    refused(client, 4, f"{differs}received '4' but current is '3'", more={"x-max-age": "7D"})
    refused(client, 3, f"inequivalent arg 'type' for {ME}: received 'direct' but current is '{TYPE}'", "direct")
    text = "inequivalent arg 'x-max-age' for queue 'e-0' in vhost '/': received "
    refused(client, 3, f"{text}the value '8D' but current is '7D'".replace("the value ", ""), more={"x-max-age": "8D"})
    refused(client, 3, f"{text}none but current is the value '7D' of type 'longstr'")
    super_stream(client, ["a", "b"], "direct", name="keys")
    text = "inequivalent arg 'x-super-stream' for exchange 'keys' in vhost '/': received "
    for wanted, received in ((["b", "a"], "b,a"), (2, "2"), (["a"], "a")):
        refused(client, wanted, f"{text}'{received}' but current is 'a,b'", "direct", name="keys")


@rule("warren.super-stream.redeclare", "Counted is what there is: with a partition less, or more, another number fits.")
def test_declared_number_follows_the_bindings(client: Client) -> None:
    super_stream(client, 3)
    client.declare("late", durable=True, arguments=STREAM)
    bind(client, "late", "3", 3)
    refused(client, 3, f"inequivalent arg '{TYPE}' for {ME}: received '3' but current is '4'")
    super_stream(client, 4)
    client.call(1, m.QueueDelete(0, "late", if_unused=False, if_empty=False, no_wait=False))
    super_stream(client, 3)
    client.call(1, m.QueueDelete(0, "e-0", if_unused=False, if_empty=False, no_wait=False))
    refused(client, 3, f"inequivalent arg '{TYPE}' for {ME}: received '3' but current is '1,2'")


@rule("warren.super-stream.redeclare", "An exchange that is no super stream does not become one.")
def test_ordinary_exchanges_stay(client: Client) -> None:
    assert client.call(1, exchange_declare("e", TYPE, durable=True)) == m.ExchangeDeclareOk()
    client.declare("s", durable=True, arguments=STREAM)
    bind(client, "s", "0", 0)
    refused(client, 1, f"inequivalent arg '{TYPE}' for {ME}: received '1' but current is '0'")


@rule(
    "warren.super-stream.delete",
    "exchange.delete leaves the partitions; declared again, they are its partitions again.",
)
def test_deleting_the_exchange(client: Client, harness: Harness) -> None:
    super_stream(client, 2, more={"x-max-age": "7D"})
    client.publish("e", "k", b"kept")
    before = counts(harness, "e-0", "e-1")
    assert client.call(1, m.ExchangeDelete(0, "e", if_unused=False, no_wait=False)) == m.ExchangeDeleteOk()
    assert sorted(harness.vhost.queues) == ["e-0", "e-1"]
    text = "inequivalent arg 'x-max-age' for queue 'e-0' in vhost '/': received "
    refused(client, 2, f"{text}none but current is the value '7D' of type 'longstr'")
    super_stream(client, 3, more={"x-max-age": "7D"})
    assert counts(harness, "e-0", "e-1", "e-2") == [*before, 0]
    assert bindings(harness) == topology("0", "1", "2")


@rule("warren.super-stream.declare", "Queues of those names that are something else are in the way, and stay.")
@pytest.mark.parametrize(
    ("arguments", "options", "code"),
    [
        (None, {"durable": True}, 406),
        (STREAM | {"x-max-age": "1D"}, {"durable": True}, 406),
        (None, {"exclusive": True}, 405),
    ],
)
def test_queues_in_the_way(client: Client, other: Client, arguments: Any, options: dict[str, bool], code: int) -> None:
    other.declare("e-1", arguments=arguments, **options)
    refusal = client.refused(1, declaration(3))
    assert (refusal.code, refusal.method) == (code, m.ExchangeDeclare)
    assert list(client.harness.vhost.queues) == ["e-1"] and "e" not in client.harness.vhost.exchanges


@rule("warren.super-stream.declare", "Limits hold for all partitions together.")
def test_limits() -> None:
    harness = Harness(queues_per_vhost_max=5, bindings_per_exchange_max=4)
    client = harness.channel()
    client.declare("one")
    refused(client, 5, "cannot declare super stream 'e' with 5 partitions: queue limit in vhost '/' (5) is reached")
    harness.broker.administer(VhostLimitsPut("/", '{"max-queues": 3}'))
    refused(client, 3, "cannot declare super stream 'e' with 3 partitions: queue limit in vhost '/' (3) is reached")
    super_stream(client, 2)
    super_stream(client, 2)
    harness.broker.administer(VhostLimitsPut("/", "{}"))
    harness.broker.limits.queues_per_vhost_max = 1000
    refused(
        client, 5, "cannot declare super stream 'f' with 5 partitions: its limit of 4 bindings is reached", name="f"
    )


@rule(
    "warren.super-stream.declare", "Needed is what declaring and binding each part would need: else 403, and nothing."
)
@pytest.mark.parametrize(
    ("permissions", "missing"),
    [
        (("e", "e", "e"), ""),
        (("^(e|e-0|e-1)$", "", ""), "write access to queue 'e-0'"),
        (("^(e|e-0|e-1)$", "e-0", ""), "write access to queue 'e-1'"),
        (("^(e|e-0|e-1)$", "e-.", ""), "read access to exchange 'e'"),
        (("^(e|e-0)$", "e", "e"), "configure access to queue 'e-1'"),
        (("^e-", "e", "e"), "configure access to exchange 'e'"),
    ],
)
def test_permissions(harness: Harness, permissions: tuple[str, str, str], missing: str) -> None:
    harness.add_user("limited", *permissions)
    client = harness.channel("limited")
    if missing:
        access, _, thing = missing.partition(" access to ")
        text = f"ACCESS_REFUSED - {access} access to {thing} in vhost '/' refused for user 'limited'"
        assert client.refused(1, declaration(2)) == Refusal("channel", 403, text, m.ExchangeDeclare)
        assert not harness.vhost.queues and "e" not in harness.vhost.exchanges
    else:
        super_stream(client, 2)
        harness.permit("limited", "e", "", "")
        super_stream(client, 2)  # it is there


@rule("warren.super-stream.durable", "All of it is committed in one batch, and there after a crash, or none of it.")
@pytest.mark.parametrize("committed", [True, False])
def test_crashes(committed: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    harness.hold_commits = not committed
    client.send(1, declaration(3, more={"x-max-age": "7D"}))
    if committed:
        assert client.expect(m.ExchangeDeclareOk) == m.ExchangeDeclareOk()
        assert [type(each) for each in harness.take_changes()] == [ExchangePut, *(QueuePut, BindingPut) * 3]
    else:
        client.nothing()
    harness = harness.restart(clean=False)
    assert partitions(harness) == (["e-0", "e-1", "e-2"] if committed else None)
    assert len(harness.vhost.queues) == (3 if committed else 0)


@rule("abuse.patterns", "Partitions follow their policies before the declaration is answered, a few of them in a turn.")
def test_a_turn_finds_the_policies_of_a_few_partitions(harness: Harness) -> None:
    for at in range(3):
        policy = PolicyPut("/", f"p{at}", "a(.?){250}z", "streams", 1, '{"max-age":"1D"}')
        harness.broker.administer(policy)
    harness.broker.administer(PolicyPut("/", "mine", "^e", "streams", 0, '{"max-age":"2D"}'))
    harness.settle()
    client = harness.channel()
    searched = harness.vhost.policies.searched
    client.connection.feed(method_frame(1, declaration(100, name="e" * 200)))
    turn = harness.vhost.policies.searched - searched
    harness.settle()
    client.expect(m.ExchangeDeclareOk)
    followed = [queue.policies.policy_name() for queue in harness.vhost.queues.values()]
    assert followed == ["mine"] * 100
    whole = harness.vhost.policies.searched - searched
    each = whole // 101
    assert whole > 10 * turn
    assert turn <= TURN_STEPS + 2 * each
