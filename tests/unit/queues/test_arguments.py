"""The table of queue arguments, retry delays, and the arguments of consumers: arguments (1) to (4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.amqp.numbers import TIME_MAX_MS
from warren.queues.arguments import (
    AGE,
    ARGUMENTS,
    BY_KEY,
    CHOICE,
    FLAG,
    INTEGER,
    TEXT,
    Argument,
    ConsumerArguments,
    QueueArguments,
    backoff_delays,
    consumer_arguments,
    fault_of,
)

STRANGE: list[object] = [
    None,
    -1,
    0,
    2**70,
    1.5,
    "",
    "\ud800",
    "x" * 300,
    b"\xff",
    [],
    [[]],
    ["\ud800"],
    {},
    {"a": [None]},
]
BASES: list[Table] = [{}, {"x-queue-type": "quorum"}, {"x-queue-type": "stream"}]
TIMES = ("x-visibility-timeout", "x-consumer-timeout")


def parsed(arguments: Table, *, name: str = "q", stored: bool = False) -> QueueArguments:
    return QueueArguments(QueueDeclaration(name, durable=True, arguments=encode_table(arguments)), "/", stored=stored)


def possible_value(row: Argument) -> object:
    if row.kind == INTEGER:
        return row.low
    if row.kind == CHOICE:
        return row.choices[-1]
    return {FLAG: True, TEXT: "name", AGE: "5s"}.get(row.kind, ["5s"])


def type_of(base: Table) -> str:
    return str(base.get("x-queue-type", "classic"))


def refusal(arguments: Table) -> str:
    with pytest.raises(ChannelException) as refused:
        parsed(arguments)
    assert refused.value.reply_code == 406
    return refused.value.explanation


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_argument_stands_in_the_table_once() -> None:
    assert len(BY_KEY) == len(ARGUMENTS)
    assert all(row.name == f"x-{row.key}" and BY_KEY[row.key] is row for row in ARGUMENTS)


@pytest.mark.parametrize("base", BASES)
def test_every_value_that_passed_is_there_by_its_policy_key(base: Table) -> None:
    for row in ARGUMENTS:
        if row.fits(type_of(base)):
            value = possible_value(row)
            beside: Table = {"x-dead-letter-exchange": ""} if row.key == "dead-letter-routing-key" else {}
            arguments = parsed({**base, **beside, row.name: value, "x-unknown": 1})
            assert arguments.queue_type == type_of(base)
            assert arguments.values.pop(row.key) == value
            assert set(arguments.values) == {"dead-letter-exchange" for _ in beside}


@pytest.mark.parametrize("base", BASES)
def test_every_known_argument_is_refused_when_it_cannot_be(base: Table) -> None:
    for row in ARGUMENTS:
        assert row.name in refusal({**base, row.name: 1.5})


@pytest.mark.parametrize("row", ARGUMENTS, ids=[row.key for row in ARGUMENTS])
def test_no_value_makes_the_table_stumble(row: Argument) -> None:
    for value in STRANGE:
        assert isinstance(fault_of(row, value, ""), str)


def test_a_plain_declaration_asks_for_nothing() -> None:
    for encoded in (EMPTY_TABLE, encode_table({"x-queue-type": "classic", "unknown": 5})):
        arguments = QueueArguments(
            QueueDeclaration("q", durable=False, exclusive=True, auto_delete=True, arguments=encoded), "/"
        )
        assert (arguments.queue_type, arguments.values) == ("classic", {})


def test_refusals_name_queue_and_vhost() -> None:
    with pytest.raises(ChannelException) as refused:
        QueueArguments(QueueDeclaration("a b", durable=False, arguments=encode_table({"x-expires": 0})), "v")
    assert refused.value.explanation == "invalid arg 'x-expires' for queue 'a b' in vhost 'v': {value_zero,0}"


def test_of_duplicate_arguments_the_last_one_counts() -> None:
    twice = encode_table({"x-expires": 0})[4:] + encode_table({"x-expires": 5})[4:]
    arguments = QueueArguments(
        QueueDeclaration("q", durable=True, arguments=len(twice).to_bytes(4, "big") + twice), "/"
    )
    assert arguments.values == {"expires": 5}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("x-queue-type", "\"unsupported queue type '\ufffdx'\""),
        ("x-queue-mode", "\"unsupported queue mode '\ufffdx'\""),
        ("x-overflow", "invalid_overflow"),
    ],
)
def test_a_choice_that_is_not_utf_8_is_one_that_there_is_not(name: str, fault: str) -> None:
    pair = bytes([len(name)]) + name.encode() + b"S\0\0\0\x02\xffx"
    with pytest.raises(ChannelException) as refused:
        QueueArguments(QueueDeclaration("q", durable=True, arguments=len(pair).to_bytes(4, "big") + pair), "/")
    assert refused.value.explanation == f"invalid arg '{name}' for queue 'q' in vhost '/': {fault}"


# --- stored arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"x-max-length": -1, "x-max-length-bytes": 5}, {"max-length-bytes": 5}),
        ({"x-queue-type": 5, "x-expires": 5}, {"expires": 5}),
        ({"x-queue-type": "mystery", "x-expires": 0}, {}),
        ({"x-dead-letter-exchange": 5, "x-overflow": "x"}, {}),
        ({"x-dead-letter-strategy": "at-least-once", "x-max-age": "1D"}, {}),
        ({"x-key-shared": True, "x-max-priority": 5}, {"max-priority": 5}),
        ({"x-storage": "memory", "x-max-length": -1}, {}),
        (
            {"x-storage": "memory", "x-key-shared": True, "x-single-active-consumer": True},
            {"single-active-consumer": True},
        ),
        ({"x-queue-mode": "lazy", "x-queue-version": 0}, {"queue-mode": "lazy"}),
    ],
)
def test_of_stored_arguments_the_possible_ones_count(arguments: Table, values: Table) -> None:
    refusal(arguments)
    kept = parsed(arguments, stored=True)
    assert (kept.values, kept.queue_type) == (values, "classic")


@pytest.mark.parametrize(("kind", "values"), [("quorum", {"delivery-limit": 5}), ("stream", {"max-age": "5s"})])
def test_a_stored_queue_is_of_its_type(kind: str, values: Table) -> None:
    arguments: Table = {"x-queue-type": kind, "x-delivery-limit": 5, "x-max-priority": 5, "x-max-age": "5s"}
    kept = parsed(arguments, stored=True)
    assert (kept.values, kept.queue_type) == (values, kind)


def test_what_may_be_declared_is_stored_as_declared() -> None:
    arguments: Table = {"x-queue-type": "quorum", "x-delivery-limit": 5, "x-retry-backoff": "exponential:1s:5s"}
    assert parsed(arguments, stored=True).values == parsed(arguments).values


# --- retry delays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "delays"),
    [
        ([5000], [5000]),
        (["5s", "30s", "5m", "1h"], [5000, 30_000, 300_000, 3_600_000]),
        ([0, "0s", "1ms", 2, "1d"], [0, 0, 1, 2, 86_400_000]),
        ([TIME_MAX_MS, "3650d"], [TIME_MAX_MS, TIME_MAX_MS]),
        ("exponential:1s:5s", [1000, 2000, 4000, 5000]),
        ("exponential:1s:8s", [1000, 2000, 4000, 8000]),
        ("exponential:1s:1s", [1000]),
        ("exponential:500ms:1m", [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]),
    ],
)
def test_a_backoff_means_delays(value: object, delays: list[int]) -> None:
    assert backoff_delays(value) == delays


@pytest.mark.parametrize(
    "value",
    [
        None,
        5000,
        {},
        b"exponential:1s:5s",
        [],
        [-1],
        [TIME_MAX_MS + 1],
        ["3651d"],
        [2**70],
        [True],
        [1.0],
        [None],
        [["5s"]],
        ["5"],
        ["s"],
        [""],
        ["-5s"],
        ["+5s"],
        ["5 s"],
        ["5S"],
        ["1.5s"],
        ["5s "],
        ["\u0665s"],
        ["9" * 5000 + "s"],
        ["5s", "soon"],
        "",
        "5s",
        "exponential",
        "exponential:1s",
        "exponential:1s:",
        "exponential:0s:5s",
        "exponential:5s:1s",
        "exponential:1s:3651d",
        "exponential:1:5",
        "exponential:1s:5s:",
        "linear:1s:5s",
    ],
)
def test_anything_else_means_none(value: object) -> None:
    assert backoff_delays(value) == []


@given(st.integers(1, TIME_MAX_MS), st.integers(1, TIME_MAX_MS))
def test_exponential_delays_double_up_to_their_cap(first_ms: int, cap_ms: int) -> None:
    delays = backoff_delays(f"exponential:{first_ms}ms:{cap_ms}ms")
    if first_ms > cap_ms:
        assert delays == []
        return
    assert delays[-1] == cap_ms
    assert delays == [min(first_ms << number, cap_ms) for number in range(len(delays))]
    assert len(set(delays)) == len(delays)


# --- consumers --------------------------------------------------------------------------------------------------------


def told(asked: ConsumerArguments) -> tuple[int, int, int]:
    return asked.priority, asked.visibility_timeout_ms, asked.consumer_timeout_ms


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, (0, -1, -1)),
        ({"x-unknown": None}, (0, -1, -1)),
        ({"x-priority": -5}, (-5, -1, -1)),
        ({"x-priority": 2**40, "x-visibility-timeout": 1, "x-consumer-timeout": 0}, (2**40, 1, 0)),
        ({"x-visibility-timeout": TIME_MAX_MS, "x-consumer-timeout": 2**62}, (0, TIME_MAX_MS, TIME_MAX_MS)),
    ],
)
def test_consumers_ask_for_a_priority_and_times(arguments: Table, expected: tuple[int, int, int]) -> None:
    assert told(consumer_arguments("q", "/", encode_table(arguments))) == expected


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("x-priority", "high", '"expected integer, got longstr"'),
        ("x-priority", True, '"expected integer, got bool"'),
        ("x-priority", None, '"expected integer, got void"'),
        ("x-visibility-timeout", 0, "{value_zero,0}"),
        ("x-visibility-timeout", -1, "{value_negative,-1}"),
        ("x-visibility-timeout", TIME_MAX_MS + 1, "{value_too_large,315360000001}"),
        *((name, "5s", '"expected integer, got longstr"') for name in TIMES),
        *((name, None, '"expected integer, got void"') for name in TIMES),
        ("x-consumer-timeout", -1, "{value_negative,-1}"),
    ],
)
def test_impossible_arguments_of_consumers_are_refused(name: str, value: object, reason: str) -> None:
    with pytest.raises(ChannelException) as refused:
        consumer_arguments("q", "v", encode_table({name: value}))
    assert refused.value.reply_code == 406
    assert refused.value.explanation == f"invalid arg '{name}' for queue 'q' in vhost 'v': {reason}"
