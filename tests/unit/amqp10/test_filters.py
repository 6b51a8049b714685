"""Filters of receivers: accepted and refused filters, answers, and deliveries. In parentheses: ``filters.py``."""

from __future__ import annotations

from typing import Any

import pytest
from amqp10_harness import ATTACH, DETACH, OPEN, Amqp10Client, Frame, amqp10_client, message, section, sections
from engine_harness import Harness, publish_frames

from warren.amqp.field_table import encode_table
from warren.amqp10.attaching import FILTERS_MAX
from warren.amqp10.error_conditions import LinkError
from warren.amqp10.filters import FIELDS_MAX, KEPT_BYTES, Expressions, Reference, kind_of
from warren.amqp10.message_view import DEFAULT_PRIORITY, PROPERTY_NAMES, MessageView
from warren.amqp10.performatives import ACCEPTED, AMQP_HEADER
from warren.amqp10.selectors import LENGTH_MAX
from warren.amqp10.values import Decimal, Described, Float, Symbol, Timestamp, UInt, ULong, Uuid
from warren.queues.dispatch import DRAIN_BUDGET
from warren.streams.chunk_reader import CHUNK_MESSAGES
from warren.streams.stream import Stream

from .test_publishing import error_of
from .test_receiving import bodies

PROPERTIES = 0x173
APPLICATION = 0x174
SQL = 0x120
PROPERTIES_AT = 0x73
APPLICATION_AT = 0x74


def filters(*given: tuple[object, object], offset: object = "first") -> dict[object, object]:
    """Return a filter set: each a descriptor and a value."""
    name = Symbol("rabbitmq:stream-offset-spec")
    found: dict[object, object] = {name: Described(name, offset)}
    for number, (descriptor, value) in enumerate(given):
        found[Symbol(f"filter-{number}")] = Described(
            ULong(descriptor) if isinstance(descriptor, int) else Symbol(str(descriptor)), value
        )
    return found


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.channel().declare("s", durable=True, arguments={"x-queue-type": "stream"})
    return made


def fill(harness: Harness, *given: dict[str, Any]) -> None:
    """Publish to the stream a message for each of these headers, with its number as body."""
    publisher = harness.channel()
    for number, headers in enumerate(given):
        publisher.publish("", "s", b"%d" % number, headers=encode_table(headers))
    harness.settle()


def attached(client: Amqp10Client, handle: int, given: dict[object, object], address: str = "/queues/s") -> list[Any]:
    """Attach; return the filters that the answer has."""
    (answer,) = client.receiver(handle, address, filter=given)
    return list(answer.field(5).value[7] or [])


def received(client: Amqp10Client, given: dict[object, object], handle: int = 0) -> list[bytes]:
    attached(client, handle, given)
    return bodies(client.credit(handle, 1000))


# --- what is taken --------------------------------------------------------------------------------------------------


def test_filters_are_known_by_their_descriptors_and_else_by_their_names() -> None:
    for code, name in ((0x173, "amqp:properties-filter"), (0x120, "amqp:sql-filter")):
        assert kind_of(Symbol("mine"), Described(ULong(code), "")) == name
        assert kind_of(Symbol("mine"), Described(Symbol(name), "")) == name
        assert kind_of(Symbol(name), "") == name
    name = "rabbitmq:stream-offset-spec"
    assert kind_of(Symbol("from start"), Described(Symbol(name), "first")) == name
    assert kind_of(Symbol(name), Described(ULong(5), "first")) == name
    assert kind_of(5, "x") == ""


def test_the_answer_has_the_filters_that_are_applied_and_the_capabilities_of_a_stream(harness: Harness) -> None:
    client = amqp10_client(harness)
    given = filters((PROPERTIES, {Symbol("subject"): "a"}), ("amqp:application-properties-filter", {"k": 1}))
    unknown = {Symbol("unknown"): Described(Symbol("unknown"), 5)}
    (answer,) = client.receiver(0, "/queues/s", filter={**given, **unknown})
    assert answer.field(5).value[7] == given
    assert answer.field(11).elements == ["AMQP_FILTEX_PROP_V1_0", "AMQP_FILTEX_SQL_V1_0"]


ABSURD: list[tuple[str, tuple[tuple[object, object], ...]]] = [
    ("characters (maximum 4096)", ((SQL, "x" * 65536),)),
    ("characters (maximum 4096)", ((SQL, "(" * 10_000 + "k" + ")" * 10_000),)),
    ("nested deeper", ((SQL, "(" * 90 + "k" + ")" * 90),)),
    ("an SQL filter must be a string", ((SQL, b"k = 1"),)),
    ("an SQL filter must be a string", ((SQL, None),)),
    ("more than one SQL filter", ((SQL, "k = 1"), (SQL, "k = 2"))),
    ("exclude each other", ((SQL, "k = 1"), (APPLICATION, {"k": 1}))),
    ("exclude each other", ((PROPERTIES, {Symbol("to"): "a"}), (SQL, "k = 1"))),
    ("that is not empty", ((PROPERTIES, {}),)),
    ("must be a map of fields", ((APPLICATION, "k = 1"),)),
    ("must be a map of fields", ((APPLICATION, ["k", 1]),)),
    ("a field whose name is not a text", ((APPLICATION, {5: 1}),)),
    ("not have the field 'colour'", ((PROPERTIES, {Symbol("colour"): "red"}),)),
    ("more than 16 fields", ((APPLICATION, {f"k{number}": 1 for number in range(17)}),)),
    ("more than 16 fields", tuple((PROPERTIES, {Symbol("to"): "a"}) for _ in range(17))),
    ("more than 4096 characters", ((APPLICATION, {"k": "x" * 4096}),)),
    ("more than 4096 characters", ((APPLICATION, {"k" * 2048: b"x" * 2048}), (PROPERTIES, {Symbol("to"): "a"}))),
    ("after & a text must", ((APPLICATION, {"k": "&x:abc"}),)),
    ("after & a text must", ((PROPERTIES, {Symbol("message-id"): "&"}),)),
    ("needs a number, text", ((APPLICATION, {"k": [1]}),)),
    ("needs a number, text", ((APPLICATION, {"k": Decimal(bytes(4))}),)),
    ("user-id must be compared with a binary or a text", ((PROPERTIES, {Symbol("user-id"): 5}),)),
    ("message-id must be compared with a text, a binary", ((PROPERTIES, {Symbol("message-id"): True}),)),
    ("creation-time must be compared with a timestamp", ((PROPERTIES, {Symbol("creation-time"): "now"}),)),
    ("group-sequence must be compared with a number", ((PROPERTIES, {Symbol("group-sequence"): 1.5}),)),
    ("subject must be compared with a text", ((PROPERTIES, {Symbol("subject"): 5}),)),
]


@pytest.mark.parametrize(("why", "given"), ABSURD)
def test_an_invalid_filter_is_refused_with_a_reason(
    harness: Harness, why: str, given: tuple[tuple[object, object], ...]
) -> None:
    """(3)"""
    client = amqp10_client(harness)
    answer, detach = client.receiver(0, "/queues/s", filter=filters(*given))
    assert answer.name == "attach" and answer.field(5) is None
    assert error_of(detach) == "amqp:invalid-field"
    text = detach.field(2).value[1]
    assert why in text and len(text) < 300
    # The session continues, without a consumer.
    assert harness.queue("s").consumers == {}
    fill(harness, {"k": 1})
    assert received(client, filters((SQL, "k = 1")), handle=1) == [b"0"]


def test_the_filters_of_a_session_have_a_limit_together(harness: Harness) -> None:
    client = amqp10_client(harness)
    text = "k = 1".ljust(LENGTH_MAX)
    most = FILTERS_MAX // LENGTH_MAX
    for handle in range(most):
        attached(client, handle, filters((SQL, text)))
    _, detach = client.receiver(most, "/queues/s", filter=filters((SQL, "k")))
    assert error_of(detach) == "amqp:resource-limit-exceeded"
    client.send(DETACH, [UInt(most), True])
    attached(client, most, filters())
    client.send(DETACH, [UInt(0), True])
    attached(client, 0, filters((SQL, text)))


def test_who_may_not_read_is_told_nothing_of_filters(harness: Harness) -> None:
    harness.add_user("stranger")
    harness.permit("stranger", read="nothing")
    client = Amqp10Client(harness)
    client.login("stranger", "stranger")
    client.raw(AMQP_HEADER)
    client.send(OPEN, ["client", "vhost:/"])
    client.begin()
    for address in ("/queues/s", "/queues/none"):
        _, detach = client.receiver(len(address), address, filter=filters((SQL, "=")))
        assert error_of(detach) == "amqp:unauthorized-access"


# --- what is compared -----------------------------------------------------------------------------------------------


def sent_message(properties: list[object], application: dict[object, object]) -> bytes:
    before = section(PROPERTIES_AT, properties) + section(APPLICATION_AT, application)
    return message(b"it", durable=True, before=before)


UUID = Uuid(bytes(range(16)))
SENT: list[object] = [UUID, b"guest", "/queues/s", "orders.new", "/queues/answers", "corr", Symbol("text/plain")]
SENT += [Symbol("gzip"), Timestamp(4_000_000_000_123), Timestamp(1_700_000_000_123), "group", UInt(7), "other"]
NAMED = dict(zip(PROPERTY_NAMES, SENT, strict=True))
KINDS: dict[object, object] = {
    "text": "&tex",
    "number": 5,
    "small": UInt(9),
    "ratio": 0.5,
    "flag": True,
    "raw": b"\xff",
    "id": UUID,
    "when": Timestamp(1_700_000_000_999),
    "symbol": Symbol("sym"),
    "huge": ULong(2**64 - 1),
    "null": None,
}


@pytest.fixture
def sent(harness: Harness) -> Amqp10Client:
    """A client that has sent a message with everything to the stream."""
    client = amqp10_client(harness)
    client.sender(200, "/queues/s")
    client.transfer(200, sent_message(SENT, KINDS))
    return client


def another(value: Any) -> Any:
    """Return another value of the same type, a number, a text or a binary."""
    return type(value)(value + 1 if isinstance(value, int) else value[:-1])


@pytest.mark.parametrize("name", NAMED)
def test_each_property_is_compared_as_it_was_sent(sent: Amqp10Client, name: str) -> None:
    assert received(sent, filters((PROPERTIES, {Symbol(name): NAMED[name]}))) == [b"it"]
    assert received(sent, filters((PROPERTIES, {Symbol(name): None})), 1) == [b"it"]
    value = NAMED[name]
    if not isinstance(value, Uuid):
        assert received(sent, filters((PROPERTIES, {Symbol(name): another(value)})), 2) == []
    if type(value) is str:
        assert received(sent, filters((PROPERTIES, {Symbol(name): "&p:" + value[:2]})), 3) == [b"it"]
        assert received(sent, filters((PROPERTIES, {Symbol(name): "&s:" + value[-2:]})), 4) == [b"it"]
        assert received(sent, filters((PROPERTIES, {Symbol(name): "&s:" + value + "x"})), 5) == []


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_application_property_is_compared_as_it_was_sent(sent: Amqp10Client, name: str) -> None:
    """(2)"""
    value = "&" + str(KINDS[name]) if name == "text" else KINDS[name]
    assert received(sent, filters((APPLICATION, {name: value}))) == [b"it"]
    assert received(sent, filters((APPLICATION, {name: None})), 1) == [b"it"]
    assert received(sent, filters((APPLICATION, {name: "something else"})), 2) == []
    assert received(sent, filters((APPLICATION, {"no-" + name: value})), 3) == []


def test_numbers_of_all_types_are_compared_by_value_and_flags_are_none(sent: Amqp10Client) -> None:
    wanted: list[tuple[object, bool]] = [(UInt(5), True), (5.0, True), (Float(5.0), True), (5.5, False), ("5", False)]
    for handle, (value, is_met) in enumerate(wanted):
        assert bool(received(sent, filters((APPLICATION, {"number": value})), handle)) is is_met
    assert received(sent, filters((APPLICATION, {"flag": 1})), 10) == []
    assert received(sent, filters((APPLICATION, {"number": True})), 11) == []


def test_a_message_id_that_is_a_number_is_found_by_it(harness: Harness) -> None:
    client = amqp10_client(harness)
    client.sender(200, "/queues/s")
    client.transfer(200, sent_message([ULong(42)], {}))
    assert received(client, filters((PROPERTIES, {Symbol("message-id"): ULong(42)}))) == [b"it"]
    assert received(client, filters((SQL, "p.message_id = 42")), 1) == [b"it"]
    assert received(client, filters((SQL, "p.message_id = 41")), 2) == []


@pytest.mark.parametrize(
    ("given", "met", "not_met"),
    [
        ("abc", ["abc"], ["ABC", "abcd", 5, None, b"ab"]),
        ("&&p:a", ["&p:a"], ["&&p:a", "p:a", "a"]),
        ("&p:ab", ["ab", "abc", b"abc"], ["a", "xab", 5, None]),
        ("&s:ab", ["ab", "xab", b"xab"], ["b", "abx", 5, None]),
        ("&p:", ["", "x"], [5]),
        (None, ["x", 5, None], []),
        (5, [5, 5.0], [True, "5", b"5", None]),
        (True, [True], [1, False, "true"]),
        (b"ab", [b"ab", "ab"], [b"abc"]),
    ],
)
def test_references_match_values(given: object, met: list[object], not_met: list[object]) -> None:
    reference = Reference(given)
    assert all(reference.matches(value) for value in met)
    assert not any(reference.matches(value) for value in not_met)


def test_what_is_no_application_property_is_none(harness: Harness) -> None:
    fill(harness, {"x-own": 1, "x-amqp10-to": "a", "CC": ["other"], "table": {"a": 1}, "list": [1], "k": 1})
    client = amqp10_client(harness)
    for handle, name in enumerate(("x-own", "x-amqp10-to", "CC", "table", "list", "x-stream-offset")):
        assert received(client, filters((APPLICATION, {name: None})), handle) == []
        assert received(client, filters((SQL, f"[{name}] IS NOT NULL")), 10 + handle) == []
    assert received(client, filters((APPLICATION, {"k": 1})), 20) == [b"0"]


def test_all_fields_of_all_filters_have_to_match(harness: Harness) -> None:
    """(1)"""
    fill(harness, {"a": 1, "b": 1}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1, "c": 1})
    client = amqp10_client(harness)
    assert received(client, filters((APPLICATION, {"a": 1, "b": 1}))) == [b"0", b"3"]
    assert received(client, filters((APPLICATION, {"a": 1}), (APPLICATION, {"b": 1})), 1) == [b"0", b"3"]
    sixteen: dict[object, object] = {f"k{number}": None for number in range(FIELDS_MAX)}
    assert received(client, filters((APPLICATION, sixteen)), 2) == []


# --- streams --------------------------------------------------------------------------------------------------------


def test_messages_come_in_order_with_their_offsets_and_use_credit_only_when_they_match(harness: Harness) -> None:
    fill(harness, *({"k": number % 10} for number in range(100)))
    client = amqp10_client(harness)
    attached(client, 0, filters((SQL, "k = 3")))
    found = client.credit(0, 4)
    assert bodies(found) == [b"3", b"13", b"23", b"33"]
    assert [sections(each.payload)[0x72]["x-stream-offset"] for each in found] == [3, 13, 23, 33]
    found = client.credit(0, 10, count=4)
    assert bodies(found) == [b"43", b"53", b"63", b"73", b"83", b"93"]
    client.settle(0, 9, ACCEPTED)
    fill(harness, {"k": 3}, {"k": 4})
    assert bodies(client.take()) == [b"0"]
    assert harness.queue("s").unacked_count == 1
    harness.check()


def test_filters_go_together_with_offsets_and_filter_values(harness: Harness) -> None:
    fill(
        harness, *({"k": number, "x-stream-filter-value": "even" if number % 2 == 0 else "odd"} for number in range(10))
    )
    client = amqp10_client(harness)
    name = Symbol("rabbitmq:stream-filter")
    given = {**filters((SQL, "k < 7"), offset=ULong(3)), name: Described(name, "even")}
    assert received(client, given) == [b"4", b"6"]
    assert received(client, filters((SQL, "k < 7"), offset="next"), 1) == []


def test_the_time_is_asked_for_each_message(harness: Harness) -> None:
    """(4)"""
    log = harness.broker.log
    client = amqp10_client(harness)
    at = int(log.now_ms) + 5000
    attached(client, 0, filters((SQL, f"UTC() >= {at}")))
    client.credit(0, 10)
    fill(harness, {"k": 1})
    assert client.take() == []
    log.now_ms += 5000
    fill(harness, {"k": 1})
    assert bodies(client.take()) == [b"0"]


def test_what_was_decided_holds_for_the_next_message_with_the_same_properties(harness: Harness) -> None:
    """(4)"""
    long = "x" * KEPT_BYTES
    fill(harness, {"k": 1}, {"k": 1}, {"k": 2}, {"k": 2}, {"k": 1, "long": long}, {"k": 1, "long": long})
    expressions = Expressions()
    expressions.add("amqp:sql-filter", "k = 1")
    stream = harness.queue("s")
    assert isinstance(stream, Stream)
    costs = []
    outcomes = []
    for found in stream.messages.messages(0, 6):
        assert found is not None
        outcomes.append(expressions.passes(found, 0))
        costs.append(int(expressions.cost))
    assert outcomes == [True, True, False, False, True, True]
    assert costs[1] == costs[3] == 0 and costs[4] == costs[5] >= KEPT_BYTES // 64


def test_what_does_not_match_is_passed_over_in_turns(harness: Harness) -> None:
    """A turn looks at no more messages than it could deliver; each turn continues where the last one ended."""
    count = 3 * DRAIN_BUDGET
    tables = [encode_table({"k": number}) for number in range(count)]
    harness.channel().feed(b"".join(publish_frames("", "s", properties={"headers": table}) for table in tables))
    stream = harness.queue("s")
    assert isinstance(stream, Stream)
    client = amqp10_client(harness)
    attached(client, 0, filters((SQL, f"k = {count - 1}")))
    (consumer,) = stream.consumers
    (cursor,) = stream.cursors.values()
    consumer.credit = 5
    seen = int(cursor.next)
    turns = 0
    while int(cursor.next) < count:
        stream.serve(consumer)
        assert 0 < int(cursor.next) - seen <= DRAIN_BUDGET
        seen = int(cursor.next)
        turns += 1
        assert turns < 100
    assert turns >= 3
    assert consumer.credit == 4 and stream.unacked_count == 1


def test_large_messages_and_conditions_make_turns_shorter(harness: Harness) -> None:
    publisher = harness.channel()
    text = "a" * 50_000
    for number in range(50):
        publisher.publish("", "s", b"", headers=encode_table({"k": number, "text": text}))
    harness.settle()
    stream = harness.queue("s")
    assert isinstance(stream, Stream)
    client = amqp10_client(harness)
    attached(client, 0, filters((SQL, "text LIKE '%b_b%' OR text LIKE '%b_c%'")))
    (consumer,) = stream.consumers
    (cursor,) = stream.cursors.values()
    consumer.credit = 1
    stream.serve(consumer)
    assert 0 < int(cursor.next) <= 2
    harness.settle()  # it continues to the end by itself
    assert int(cursor.next) == 50 and consumer.credit == 1


def test_a_long_stream_is_read_from_disk_to_its_end(harness: Harness) -> None:
    harness.broker.log.page_entries = 16
    fill(harness, *({"k": number} for number in range(2 * CHUNK_MESSAGES)))
    harness.broker.log.memory_bytes = 0
    for _ in range(3):
        harness.broker.log.close_if_due(lingered=True)
        harness.settle()
    client = amqp10_client(harness)
    wanted = [7, CHUNK_MESSAGES, 2 * CHUNK_MESSAGES - 1]
    text = ", ".join(str(number) for number in wanted)
    assert received(client, filters((SQL, f"k IN ({text})"))) == [b"%d" % number for number in wanted]
    harness.check()


def flows(frames: list[Frame]) -> list[Frame]:
    return [each for each in frames if each.name == "flow"]


def test_a_drain_goes_on_while_the_stream_is_passed_over(harness: Harness) -> None:
    fill(harness, *({"k": number} for number in range(10)))
    client = amqp10_client(harness)
    attached(client, 0, filters((SQL, "k = 9")))
    found = client.credit(0, 5, drain=True)
    assert bodies([each for each in found if each.name == "transfer"]) == [b"9"]
    for _ in range(3):
        harness.pass_time(5)
        found += client.take()
    (drained,) = flows(found)
    assert drained.field(6) == 0 and drained.field(8) is True
    fill(harness, {"k": 9})
    assert client.take() == []
    assert bodies(client.credit(0, 1, count=5)) == [b"0"]


def test_a_drain_ends_although_more_comes_that_does_not_match(harness: Harness) -> None:
    client = amqp10_client(harness)
    attached(client, 0, filters((SQL, "k = 9")))
    found = client.credit(0, 5, drain=True)
    rounds = 0
    while not found:
        fill(harness, {"k": rounds % 9})
        harness.pass_time(5)
        found = client.take()
        rounds += 1
        assert rounds < 5
    (drained,) = flows(found)
    assert drained.field(6) == 0


def test_two_with_different_filters_share_a_stream(harness: Harness) -> None:
    fill(harness, *({"k": number} for number in range(20)))
    client = amqp10_client(harness)
    assert received(client, filters((SQL, "k % 2 = 0"))) == [b"%d" % number for number in range(0, 20, 2)]
    assert received(client, filters((SQL, "k % 2 = 1")), 1) == [b"%d" % number for number in range(1, 20, 2)]
    attached(client, 2, filters())
    assert len(bodies(client.credit(2, 1000))) == 20


def test_a_filter_set_that_is_no_map_ends_the_connection(harness: Harness) -> None:
    client = amqp10_client(harness)
    source = Described(ULong(0x28), ["/queues/s", None, None, None, None, None, None, "k = 1"])
    found = client.send(ATTACH, ["r", UInt(0), True, None, None, source, Described(ULong(0x29), [])])
    assert [each.name for each in found] == ["close"]


def test_a_view_of_a_bare_message_is_empty() -> None:
    content = bytes.fromhex("003c0000") + bytes(8) + b"\0\0"
    view = MessageView(content, 0, len(content), 0)
    assert view.priority() == DEFAULT_PRIORITY
    assert [view.property(at) for at in range(13)] == [None] * 13
    assert view.application_property("x") is None and not view.has_application_property("x")


def test_expressions_refuse_what_they_do_not_know() -> None:
    with pytest.raises(LinkError, match="must be a map"):
        Expressions().add("amqp:properties-filter", Described(ULong(PROPERTIES), 5))
