"""Headers exchanges: headers_exchange (1) and (2). Unmarked cases were seen on RabbitMQ 3.10.8."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import Timestamp, with_length
from warren.exchanges.binding import Binding
from warren.exchanges.content import STEPS_MAX, Content
from warren.exchanges.headers_exchange import HeadersExchange

from .topology import bind, exchange, headers_content, matched, queue, routed, table_bytes, unbind, unbind_all

Table = dict[str, object]


def headers_exchange() -> HeadersExchange:
    return HeadersExchange(ExchangeDeclaration("x", "headers", durable=True))


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({}, None, True),
        ({"x-match": "any"}, {}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all", "a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, None, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
        ({"x-match": "all-with-x"}, {}, True),
        ({"x-match": "all-with-x", "b": 2}, {"b": 2, "x-match": "other"}, True),
        ({"a": None}, {"a": 5}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"x-match": "any", "a": None}, {"a": False}, True),
        ({"a": 1}, {"a": None}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 0}, {"a": False}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": True}, {"a": False}, False),
        ({"a": "s"}, {"a": b"s"}, True),
        ({"a": b"\xff"}, {"a": b"\xff"}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": ["x", 1]}, {"a": ["x", 1]}, True),
        ({"a": ["x", 1]}, {"a": ["x", 2]}, False),
        ({"a": ["x", 1]}, {"a": ["x", True]}, False),
        ({"a": {"k": 1, "l": []}}, {"a": {"l": [], "k": 1}}, True),
        ({"a": {"k": 1}}, {"a": {"k": 2}}, False),
        ({"a": Decimal("1")}, {"a": 1}, False),
        ({"a": Decimal("1.5")}, {"a": Decimal("1.5")}, True),
        ({"X-a": 1}, {}, False),
        # As RabbitMQ 3.13, which compares exactly.
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1.5}, {"a": 1.5}, True),
        ({"a": Timestamp(5)}, {"a": Timestamp(5)}, True),
        ({"a": Timestamp(5)}, {"a": 5}, False),
    ],
)
def test_a_message_gets_through_when_its_headers_agree(arguments: Table, headers: Table | None, expected: bool) -> None:
    source = exchange("headers")
    bind(source, queue("q"), "ignored", arguments)
    assert matched(source, "", headers_content(headers)) == (["q"] if expected else [])


def test_integers_and_floats_agree_across_widths() -> None:
    """The same value under each tag: B b s u I i l, and f d."""
    integers = [b"B\x05", b"b\x05", b"s\x00\x05", b"u\x00\x05", b"I" + bytes(3) + b"\x05"]
    integers += [b"i" + bytes(3) + b"\x05", b"l" + bytes(7) + b"\x05", b"L" + bytes(7) + b"\x05"]
    floats = [b"f\x3f\xc0\x00\x00", b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"]
    for alike in (integers, floats):
        for bound in alike:
            source = exchange("headers")
            source.bind(Binding(source, queue("q"), "", with_length(b"\x01a" + bound)))
            for sent in alike:
                table = with_length(b"\x01a" + sent)
                content = Content(b"\x00\x3c" + bytes(10) + b"\x20\x00" + table)
                assert matched(source, "", content) == ["q"]


values = st.sampled_from([None, True, False, 0, 1, 2, "1", "a", b"a", 1.0, Timestamp(1), ["a"], {"k": 1}])
names = st.sampled_from(["a", "b", "x-a", "x-b"])
tables: st.SearchStrategy[Table] = st.dictionaries(names, values, max_size=4)
forms = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def kind(value: object) -> str:
    return "text" if isinstance(value, (str, bytes)) else type(value).__name__


def text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def arguments_of(form: str | None, table: Table) -> Table:
    return {**table, **({} if form is None else {"x-match": form})}


def agrees(form: str | None, arguments: Table, headers: Table) -> bool:
    verdicts: list[bool] = []
    for key, value in arguments.items():
        if key.startswith("x-") and form not in ("all-with-x", "any-with-x"):
            continue
        if value is None:
            verdicts.append(key in headers)
        else:
            offer = headers.get(key)
            verdicts.append(kind(offer) == kind(value) and text(offer) == text(value))
    return any(verdicts) if form is not None and form.startswith("any") else all(verdicts)


@given(
    commands=st.lists(
        st.one_of(st.tuples(st.integers(0, 3), forms, tables), st.integers(0, 99)),  # a binding, or which of them goes
        max_size=25,
    ),
    messages=st.lists(tables, min_size=1, max_size=6),
)
def test_after_any_binds_and_unbinds_it_matches_what_the_arguments_mean(
    commands: list[tuple[int, str | None, Table] | int], messages: list[Table]
) -> None:
    source = headers_exchange()
    queues = [queue(str(number)) for number in range(4)]
    bound: dict[tuple[int, bytes], tuple[str | None, Table]] = {}
    for command in commands:
        if not isinstance(command, int):
            number, form, table = command
            arguments = arguments_of(form, table)
            bind(source, queues[number], "", arguments)
            bound[number, table_bytes(arguments)] = (form, table)
        elif bound:
            identity = list(bound)[command % len(bound)]
            assert unbind(source, queues[identity[0]], "", arguments_of(*bound.pop(identity))) is not None
    for headers in messages:
        expected = {str(number) for (number, _), (form, table) in bound.items() if agrees(form, table, headers)}
        assert set(matched(source, "", headers_content(headers))) == expected
    unbind_all(source)
    assert (source._rules, source._always, source._by_demand) == ({}, {}, {})


def test_rules_that_share_a_value_are_told_apart_by_the_others() -> None:
    source = headers_exchange()
    for number in range(100):
        bind(source, queue(str(number)), "", {"type": "order", "number": number})
    assert max(len(rules) for rules in source._by_demand.values()) == 1
    assert matched(source, "", headers_content({"type": "order", "number": 42})) == ["42"]
    assert matched(source, "", headers_content({"type": "offer", "number": 42})) == []


def test_a_rule_of_which_several_demands_are_met_is_found_once() -> None:
    source = headers_exchange()
    same: Table = {str(number): number for number in range(50)}
    for number in range(20):
        bind(source, queue(str(number)), "", {**same, "x-match": "any"})
    content = headers_content(same)
    assert matched(source, content=content) == [str(number) for number in range(20)]
    assert STEPS_MAX - content.steps_left == 20 * 50


def test_a_message_without_steps_left_meets_no_further_rules() -> None:
    source = headers_exchange()
    same: Table = {str(number): number for number in range(50)}
    for number in range(20):
        bind(source, queue(str(number)), "", {**same, str(number): "another"})
    content = headers_content(same)
    content.steps_left = 200
    assert matched(source, content=content) == []
    assert -50 <= content.steps_left < 0


def test_several_routing_keys_make_no_difference() -> None:
    source = exchange("headers")
    bind(source, queue("q"))
    assert routed(source, "a", "b") == ["q"]
    assert not source.cacheable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("foo", 'value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        ("", "value <<>>; expected all, any, all-with-x, or any-with-x"),
        ('a"b', 'value <<"a\\"b">>; expected all, any, all-with-x, or any-with-x'),
        (5, "type signedint (value 5); expected longstr"),
        (True, "type bool (value true); expected longstr"),
        (None, "type void (value undefined); expected longstr"),
        (["a"], 'type array (value [{longstr,<<"a">>}]); expected longstr'),
        ({"a": 1}, 'type table (value [{<<"a">>,signedint,1}]); expected longstr'),
        (b"all", 'type binary (value <<"all">>); expected longstr'),
        (Timestamp(1577836800), "type timestamp (value 1577836800); expected longstr"),
    ],
)
def test_another_x_match_is_refused_in_the_words_of_rabbitmq(value: object, text: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        exchange("headers").check_binding("", table_bytes({"x-match": value}))
    assert (refusal.value.reply_code, refusal.value.explanation) == (406, f"Invalid x-match field {text}")


def test_a_binding_may_have_256_arguments_and_no_more() -> None:
    source = exchange("headers")
    source.check_binding("", table_bytes({str(number): number for number in range(256)}))
    with pytest.raises(ChannelException) as refusal:
        source.check_binding("", table_bytes({str(number): number for number in range(257)}))
    assert refusal.value.reply_code == 406
