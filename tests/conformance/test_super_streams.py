"""Super streams: how they are declared, where messages go, and which consumers of a group get which partition."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, Received, Refusal, exchange_declare, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.exchanges.murmur3 import murmur3
from warren.queues.long_work import TURN_STEPS
from warren.streams.groups import GROUP
from warren.streams.stream import Stream
from warren.vhosts.metadata import BindingPut, ExchangePut, PolicyPut, QueuePut, VhostLimitsPut
from warren.vhosts.super_streams import PARTITIONS_MAX, partitions_of

from .rules import rule
from .stream_clients import OFFSET, STREAM, offset_of, precondition

TYPE = "x-super-stream"
ORDER = "x-stream-partition-order"
ME = "exchange 'e' in vhost '/'"


def super_stream(
    client: Client, wanted: object = 3, kind: str = TYPE, *, name: str = "e", more: Table | None = None
) -> None:
    """Declare a super stream, which is accepted."""
    assert client.call(1, declaration(wanted, kind, name=name, more=more)) == m.ExchangeDeclareOk()


def declaration(
    wanted: object,
    kind: str = TYPE,
    *,
    name: str = "e",
    more: Table | None = None,
    durable: bool = True,
    auto_delete: bool = False,
) -> m.ExchangeDeclare:
    arguments: Table = {TYPE: wanted} | (more or {})
    return exchange_declare(name, kind, durable=durable, auto_delete=auto_delete, arguments=arguments)


def refused(client: Client, wanted: object, explanation: str, kind: str = TYPE, **options: Any) -> None:
    """Declare a super stream, which is refused: nothing of it is there then."""
    vhost = client.harness.vhost
    before = list(vhost.exchanges), list(vhost.queues)
    refusal = client.refused(1, declaration(wanted, kind, **options))
    assert refusal == precondition(explanation, m.ExchangeDeclare)
    assert (list(vhost.exchanges), list(vhost.queues)) == before


def partitions(harness: Harness, name: str = "e") -> list[str] | None:
    return partitions_of(harness.vhost, name)


def stream_of(harness: Harness, name: str) -> Stream:
    queue = harness.queue(name)
    assert isinstance(queue, Stream)
    return queue


def arguments_of(harness: Harness, name: str) -> Table:
    return decode_table(harness.queue(name).arguments)


def bindings(harness: Harness, name: str = "e") -> list[tuple[str, str, Table]]:
    return [
        (binding.destination.name, binding.routing_key, binding.table)
        for binding in harness.vhost.exchanges[name].bindings.values()
    ]


def topology(*keys: str, name: str = "e") -> list[tuple[str, str, Table]]:
    return [(f"{name}-{key}", key, {ORDER: order}) for order, key in enumerate(keys)]


def bind(client: Client, queue: str, key: str, order: object = None, exchange: str = "e") -> None:
    client.bind(queue, exchange, key, None if order is None else {ORDER: order})


def unbind(client: Client, queue: str, key: str, order: int) -> None:
    assert client.call(1, m.QueueUnbind(0, queue, "e", key, encode_table({ORDER: order}))) == m.QueueUnbindOk()


def counts(harness: Harness, *names: str) -> list[int]:
    return [int(harness.queue(name).message_count) for name in names]


# --- declaring --------------------------------------------------------------------------------------------------------


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
    client.call(1, m.QueueDelete(0, "late", False, False, False))
    super_stream(client, 3)
    client.call(1, m.QueueDelete(0, "e-0", False, False, False))
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
    assert client.call(1, m.ExchangeDelete(0, "e", False, False)) == m.ExchangeDeleteOk()
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


# --- routing ----------------------------------------------------------------------------------------------------------


@rule("rabbitmq.super-stream.routing", "A message goes to the partition that murmur3 of its routing key says.")
@pytest.mark.parametrize(
    ("key", "partition"),
    # The expectations of the stream protocol's .NET client.
    [
        ("hello4", 2),
        ("hello5", 0),
        ("hello6", 2),
        ("hello7", 0),
        ("hello8", 1),
        ("hello9", 0),
        ("hello10", 2),
        ("hello88", 1),
    ],
)
def test_hashed_keys(client: Client, harness: Harness, key: str, partition: int) -> None:
    super_stream(client, 3)
    client.publish("e", key)
    assert counts(harness, "e-0", "e-1", "e-2") == [int(at == partition) for at in range(3)]


@rule("rabbitmq.super-stream.routing", "The hash is MurmurHash3 of 32 bits.")
@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\0", 0, 0x514E28B7),
        (b"\0\0", 0, 0x30F4C306),
        (b"\0\0\0", 0, 0x85F0B427),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"aaaa", 0x9747B28C, 0x5A97808A),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_murmur3(data: bytes, seed: int, expected: int) -> None:
    assert murmur3(data, seed) == expected


@rule("rabbitmq.super-stream.routing", "Keys spread over the partitions; each goes to one and the same, always.")
def test_spread() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 4)
    names = ["e-0", "e-1", "e-2", "e-3"]
    keys = [f"key {number}" for number in range(400)]
    client.feed(b"".join(publish_frames("e", key) for key in keys))
    first = counts(harness, *names)
    assert sum(first) == 400 and min(first) > 60
    client.feed(b"".join(publish_frames("e", key) for key in reversed(keys)))
    assert counts(harness, *names) == [2 * count for count in first]
    harness.write()
    harness = harness.restart(clean=False)
    client = harness.channel()
    client.feed(b"".join(publish_frames("e", key) for key in keys))
    assert counts(harness, *names) == [3 * count for count in first]


@rule("rabbitmq.super-stream.routing", "Who publishes to a direct exchange chooses the partition.")
def test_chosen_keys(client: Client, harness: Harness) -> None:
    super_stream(client, ["a", "b"], "direct")
    for key in ("a", "b", "b", "c"):
        client.publish("e", key)
    assert counts(harness, "e-a", "e-b") == [1, 2]


@rule("rabbitmq.super-stream.routing", "Where no partition has the number that was hashed, a message is not routed.")
def test_missing_partitions(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    client.declare("lost")
    client.declare_exchange("a", "fanout")
    client.bind("lost", "a")
    super_stream(client, 2, name="f", more={"alternate-exchange": "a"})
    keys = {int(murmur3(key.encode(), 104729) % 2): key for key in map(str, range(20))}
    for name in ("e", "f"):
        client.call(1, m.QueueDelete(0, f"{name}-0", False, False, False))
        client.declare(f"{name}-9", durable=True, arguments=STREAM)
        bind(client, f"{name}-9", "9", 9, name)
    client.publish("e", keys[0], b"0", mandatory=True)
    (returned,) = client.take()
    assert isinstance(returned.method, m.BasicReturn)
    client.publish("f", keys[0], b"0")
    assert counts(harness, "lost") == [1]
    client.publish("e", keys[1], b"1", mandatory=True)
    client.nothing()
    assert counts(harness, "e-1", "e-9", "f-1", "f-9") == [1, 0, 0, 0]


@rule("rabbitmq.super-stream.routing", "Without partitions nothing is routed; CC and BCC are not looked at.")
def test_other_keys(client: Client, harness: Harness) -> None:
    super_stream(client, True)
    client.publish("e", "hello4", mandatory=True)
    assert isinstance(client.take()[0].method, m.BasicReturn)
    super_stream(client, 3, name="f")
    client.publish("f", "hello4", headers=encode_table({"CC": ["hello5"], "BCC": ["hello8"]}))
    assert counts(harness, "f-0", "f-1", "f-2") == [0, 0, 1]


@rule("warren.super-stream.routing", "Routes that were looked up before follow every change of the partitions.")
def test_routes_follow_the_partitions(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    key = next(key for key in map(str, range(99)) if [murmur3(key.encode(), 104729) % n for n in (2, 3)] == [1, 2])
    frames = publish_frames("e", key)
    for _ in range(3):
        client.feed(frames)
    client.declare("e-2", durable=True, arguments=STREAM)
    bind(client, "e-2", "2", 2)
    client.feed(frames)
    unbind(client, "e-2", "2", 2)
    client.feed(frames)
    assert counts(harness, "e-0", "e-1", "e-2") == [0, 4, 1]


# --- groups -----------------------------------------------------------------------------------------------------------


class Instance:
    """An application that consumes from partitions as one of a group, on a connection of its own."""

    def __init__(
        self, harness: Harness, partitions: list[str], *, prefetch: int = 100, client: Client | None = None
    ) -> None:
        self.client = client or harness.channel()
        self.tags: dict[str, str] = {}
        self.client.call(1, m.BasicQos(0, prefetch, False))
        for partition in partitions:
            self.join(partition)

    def join(self, partition: str, number: int = 1) -> None:
        arguments: Table = {GROUP: "g", OFFSET: "first"}
        self.tags[partition] = self.client.consume(partition, arguments=arguments, number=number)

    def leave(self, partition: str) -> None:
        self.client.send(1, m.BasicCancel(self.tags.pop(partition), False))
        self.client.pick(m.BasicCancelOk)

    def deliveries(self) -> dict[str, list[tuple[int, bool]]]:
        """Return by partition the offsets of what came, each with whether it is flagged redelivered."""
        found: dict[str, list[tuple[int, bool]]] = {}
        for each in self.client.deliveries():
            found.setdefault(self.partition_of(each), []).append((offset_of(each), each.method.redelivered))
        return found

    def partition_of(self, received: Received) -> str:
        (partition,) = (name for name, tag in self.tags.items() if tag == received.method.consumer_tag)
        return partition

    def ack_all(self) -> None:
        self.client.send(1, m.BasicAck(0, True))


def named(count: int) -> list[str]:
    return [f"e-{number}" for number in range(count)]


def fill(client: Client, partitions: list[str], count: int) -> None:
    for partition in partitions:
        client.feed(b"".join(publish_frames("", partition, b"%d" % number) for number in range(count)))


def active(harness: Harness, partitions: list[str], instances: list[Instance]) -> list[int]:
    """Look into the broker: return which instance has each partition."""
    found: list[int] = []
    for partition in partitions:
        serving = stream_of(harness, partition).need_groups()
        (group,) = serving.all()
        consumer = serving.active_of(group)
        assert consumer is not None
        (at,) = (at for at, each in enumerate(instances) if consumer.ledger.outbox is each.client.connection.outbox)
        found.append(at)
    return found


def committed(harness: Harness, partition: str) -> int:
    (group,) = stream_of(harness, partition).consumer_groups()
    return int(group.committed)


@rule("warren.super-stream.groups", "Each partition is served to one instance; all have as many, give or take one.")
@pytest.mark.parametrize(("count", "members"), [(1, 3), (3, 1), (3, 2), (4, 3), (8, 3), (5, 5), (3, 4)])
def test_partitions_are_spread(client: Client, harness: Harness, count: int, members: int) -> None:
    super_stream(client, count)
    names = named(count)
    fill(client, names, 2)
    instances = [Instance(harness, names) for _ in range(members)]
    assert active(harness, names, instances) == [place % members for place in range(count)]
    for instance in instances:
        instance.client.deliveries()
    fill(client, names, 1)
    for at, instance in enumerate(instances):
        got = instance.deliveries()
        assert sorted(got) == [name for place, name in enumerate(names) if place % members == at]


@rule("warren.super-stream.groups", "In whichever order they come to the partitions, the spread is as even.")
@pytest.mark.parametrize("seed", range(6))
def test_the_spread_does_not_depend_on_who_was_first(client: Client, harness: Harness, seed: int) -> None:
    super_stream(client, 6)
    names = named(6)
    instances = [Instance(harness, []) for _ in range(3)]
    joins = list(product(instances, names))
    for step in range(len(joins)):
        instance, name = joins.pop((seed * 7 + step * 5) % len(joins))
        instance.join(name)
    assert active(harness, names, instances) == [0, 1, 2, 0, 1, 2]


@rule(
    "warren.super-stream.groups",
    "Channels of one connection are instances of their own, in the order of their numbers.",
)
def test_channels_are_instances(client: Client, harness: Harness) -> None:
    super_stream(client, 4)
    names = named(4)
    fill(client, names, 1)
    other = harness.channel()
    for number in (2, 3):
        other.open(number)
        other.call(number, m.BasicQos(0, 10, False))
    for number in (3, 2):
        for name in names:
            other.consume(name, f"{number}.{name}", arguments={GROUP: "g", OFFSET: "first"}, number=number)
    other.take()
    fill(client, names, 1)
    got = [each.method.consumer_tag for each in other.deliveries()]
    assert sorted(got) == ["2.e-0", "2.e-2", "3.e-1", "3.e-3"]


@rule(
    "warren.super-stream.groups.move",
    "An instance that joins takes its share at the committed offset; nothing is passed over.",
)
def test_joining(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 4)
    old = Instance(harness, names)
    deliveries = old.client.deliveries()
    for each in deliveries:
        if offset_of(each) < 2:
            old.client.send(1, m.BasicAck(each.method.delivery_tag, False))
    new = Instance(harness, names)
    assert active(harness, names, [old, new]) == [0, 1]
    assert new.deliveries() == {"e-1": [(2, True), (3, True)]}
    fill(client, names, 1)
    assert old.deliveries() == {"e-0": [(4, False)]}
    assert new.deliveries() == {"e-1": [(4, False)]}


@rule(
    "warren.super-stream.groups.move",
    "What one that lost a partition says of it later gives it credit, and changes nothing of the group.",
)
@pytest.mark.parametrize("answer", ["ack", "ack all", "reject", "requeue", "recover"])
def test_late_answers(client: Client, harness: Harness, answer: str) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 6)
    old = Instance(harness, names, prefetch=4)
    before = [each for each in old.client.deliveries() if old.partition_of(each) == "e-1"]
    assert [offset_of(each) for each in before] == [0, 1, 2, 3]
    old.client.send(1, m.BasicAck(before[0].method.delivery_tag, False))
    assert old.deliveries() == {"e-1": [(4, False)]}
    new = Instance(harness, names, prefetch=4)
    assert new.deliveries() == {"e-1": [(1, True), (2, True), (3, True), (4, True)]}
    match answer:
        case "ack all":
            old.ack_all()
        case "recover":
            old.client.send(1, m.BasicRecover(True))
            old.client.pick(m.BasicRecoverOk)
        case _:
            for each in before[1:]:
                tag = each.method.delivery_tag
                call = m.BasicAck(tag, False) if answer == "ack" else m.BasicNack(tag, False, answer == "requeue")
                old.client.send(1, call)
    assert committed(harness, "e-1") == 1
    assert "e-1" not in old.deliveries()
    new.client.nothing()
    new.ack_all()
    assert new.deliveries() == {"e-1": [(5, False)]}
    assert committed(harness, "e-1") == 5
    new.client.hang_up()
    # It is back, with what it had before out of the way.
    assert committed(harness, "e-1") == 5
    assert old.deliveries()["e-1"] == [(5, True)]


@rule(
    "warren.super-stream.groups.move", "What was answered before the move stays answered, out of order it comes again."
)
def test_answers_out_of_order(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 4)
    old = Instance(harness, names)
    mine = [each for each in old.client.deliveries() if old.partition_of(each) == "e-1"]
    for at in (0, 2):
        old.client.send(1, m.BasicAck(mine[at].method.delivery_tag, False))
    new = Instance(harness, names)
    assert new.deliveries() == {"e-1": [(1, True), (2, True), (3, True)]}


@rule("warren.super-stream.groups.move", "When an instance goes its partitions go to the others, however it goes.")
@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_leaving(client: Client, harness: Harness, how: str, which: int) -> None:
    super_stream(client, 6)
    names = named(6)
    fill(client, names, 2)
    instances = [Instance(harness, names) for _ in range(3)]
    for instance in instances:
        for each in instance.client.deliveries():
            if offset_of(each) == 0:
                instance.client.send(1, m.BasicAck(each.method.delivery_tag, False))
    assert [committed(harness, name) for name in names] == [1] * 6
    leaver = instances.pop(which)
    if how == "cancel":
        for name in names:
            leaver.leave(name)
    elif how == "channel":
        leaver.client.call(1, m.ChannelClose(200, "", 0, 0))
    else:
        leaver.client.hang_up()
    assert active(harness, names, instances) == [0, 1, 0, 1, 0, 1]
    # Those that stayed where they were are not disturbed.
    moved = [name for at, name in enumerate(names) if at % 3 != [at for at in range(3) if at != which][at % 2]]
    got = [instance.deliveries() for instance in instances]
    assert got[0] | got[1] == {name: [(1, True)] for name in moved}
    for instance in instances:
        instance.ack_all()
    assert [committed(harness, name) for name in names] == [2] * 6


@rule(
    "warren.super-stream.groups.move", "An instance that does not consume from all partitions leaves those to others."
)
def test_partial_instances(client: Client, harness: Harness) -> None:
    super_stream(client, 3)
    names = named(3)
    whole = Instance(harness, names)
    part = Instance(harness, ["e-1"])
    assert active(harness, names, [whole, part]) == [0, 1, 0]
    whole.leave("e-1")
    part.join("e-2")
    assert active(harness, names, [whole, part]) == [0, 1, 0]
    whole.leave("e-2")
    assert active(harness, names, [whole, part]) == [0, 1, 1]


@rule("warren.super-stream.groups.move", "A partition that comes, goes or changes its place moves those behind it.")
def test_partitions_come_and_go(client: Client, harness: Harness) -> None:
    super_stream(client, 4)
    names = named(4)
    instances = [Instance(harness, names) for _ in range(2)]
    assert active(harness, names, instances) == [0, 1, 0, 1]
    unbind(client, "e-0", "0", 0)
    assert active(harness, names, instances) == [0, 0, 1, 0]  # a plain stream is left where it is
    bind(client, "e-0", "9", 9)
    assert active(harness, names, instances) == [1, 0, 1, 0]
    assert client.call(1, m.QueueDelete(0, "e-1", False, False, False)) == m.QueueDeleteOk(0)
    assert active(harness, ["e-2", "e-3", "e-0"], instances) == [0, 1, 0]
    assert client.call(1, m.ExchangeDelete(0, "e", False, False)) == m.ExchangeDeleteOk()
    assert active(harness, ["e-2", "e-3", "e-0"], instances) == [0, 1, 0]


@rule("warren.super-stream.groups.move", "A stream that becomes a partition while it is consumed moves like one.")
def test_a_stream_becomes_a_partition(client: Client, harness: Harness) -> None:
    super_stream(client, True)
    for name in ("s", "t"):
        client.declare(name, durable=True, arguments=STREAM)
    fill(client, ["t"], 3)
    instances = [Instance(harness, ["t"]) for _ in range(2)]
    assert instances[0].deliveries() == {"t": [(0, False), (1, False), (2, False)]}
    bind(client, "t", "1", 1)
    instances[1].client.nothing()  # it is the only partition, at place 0
    bind(client, "s", "0", 0)
    assert instances[1].deliveries() == {"t": [(0, True), (1, True), (2, True)]}
    unbind(client, "s", "0", 0)
    assert instances[0].deliveries() == {"t": [(0, True), (1, True), (2, True)]}


@rule("warren.super-stream.groups", "Of a stream in two super streams the place in the one of the smaller name counts.")
def test_two_super_streams(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    super_stream(client, True, name="d")
    instances = [Instance(harness, named(2)) for _ in range(2)]
    assert active(harness, named(2), instances) == [0, 1]
    bind(client, "e-1", "0", 0, "d")
    assert active(harness, named(2), instances) == [0, 0]
    assert client.call(1, m.ExchangeDelete(0, "d", False, False)) == m.ExchangeDeleteOk()
    assert active(harness, named(2), instances) == [0, 1]


@rule("warren.super-stream.groups", "Groups of one super stream are independent, and so are consumers without a group.")
def test_groups_are_independent(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 1)
    Instance(harness, names)
    plain = harness.channel()
    plain.call(1, m.BasicQos(0, 10, False))
    for name in names:
        plain.consume(name, arguments={GROUP: "h", OFFSET: "first"})
        plain.consume(name, arguments={OFFSET: "first"})
    assert len(plain.deliveries()) == 4


@rule(
    "warren.super-stream.groups", "A group that is reset is served from there, by the instance that has the partition."
)
def test_resets(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 3)
    old, new = Instance(harness, names), Instance(harness, names)
    old.client.deliveries()
    new.client.deliveries()
    new.ack_all()
    assert committed(harness, "e-1") == 3
    stream_of(harness, "e-1").need_groups().reset("g", 1)
    harness.settle()
    assert new.deliveries() == {"e-1": [(1, True), (2, True)]}
    old.client.nothing()


@rule(
    "warren.super-stream.groups.move", "How far the group had come is stored with the move: a crash does not undo it."
)
def test_a_crash_after_a_move() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 4)
    old = Instance(harness, names)
    mine = [each for each in old.client.deliveries() if old.partition_of(each) == "e-1"]
    old.client.send(1, *(m.BasicAck(each.method.delivery_tag, False) for each in mine[:3]))
    harness.write()
    Instance(harness, names)
    harness.write()
    harness = harness.restart(clean=False)
    assert committed(harness, "e-1") == 3


@rule(
    "warren.super-stream.groups.move",
    "While nobody knows yet how far a group has come, nothing is served, and then in turn.",
)
def test_who_comes_early() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 2)
    names = named(2)
    fill(client, names, 3)
    instance = Instance(harness, names, prefetch=2)
    instance.client.deliveries()
    instance.ack_all()
    harness.write()
    harness = harness.restart(clean=True)
    harness.store.hold = True
    instances = [Instance(harness, names) for _ in range(2)]
    for each in instances:
        each.client.nothing()
    harness.store.hold = False
    harness.settle()
    assert [each.deliveries() for each in instances] == [{"e-0": [(2, False)]}, {"e-1": [(2, False)]}]


@rule(
    "warren.super-stream.groups.move", "Who is still looking for its beginning may lose the partition, and get it back."
)
def test_moves_while_an_offset_is_looked_for() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 2)
    fill(client, ["e-1"], 5)
    harness.write()
    harness = harness.restart(clean=True)
    harness.store.hold = True
    arguments: Table = {GROUP: "g", OFFSET: "1h"}
    clients = [harness.channel() for _ in range(2)]
    for each in clients:
        each.call(1, m.BasicQos(0, 10, False))
        each.consume("e-1", arguments=arguments)
    clients[1].hang_up()
    third = harness.channel()
    third.call(1, m.BasicQos(0, 10, False))
    third.consume("e-1", arguments=arguments)
    harness.store.hold = False
    harness.settle()
    clients[0].nothing()
    assert [offset_of(each) for each in third.deliveries()] == [0, 1, 2, 3, 4]


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
