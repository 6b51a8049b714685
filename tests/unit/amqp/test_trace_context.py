"""Which headers are the context of a trace. The numbers in parentheses are those of ``trace_context.py``."""

from __future__ import annotations

import pytest

from warren.amqp.field_table import encode_table
from warren.amqp.properties import BasicProperties
from warren.amqp.trace_context import HEADERS_MOST, TraceContext, maybe_trace_context

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


def context_of(headers: dict[str, object] | None, *, start: int = 3) -> TraceContext | None:
    """Look in a content header payload that begins at `start`."""
    properties = BasicProperties()
    properties.content_type = "text/plain"
    properties.headers = None if headers is None else encode_table(headers)
    properties.correlation_id = "c"
    return maybe_trace_context(bytes(start) + bytes(12) + properties.encode(), start)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (SAMPLED, True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-03", True),
        (f"01-{TRACE}-{PARENT}-01-what comes later", True),
        (f"fe-{TRACE}-{PARENT}-01", True),
        (SAMPLED.encode(), True),
    ],
)
def test_a_context_is_understood_wherever_it_stands(text: str | bytes, sampled: bool) -> None:
    others: dict[str, object] = {"a": {"b": [1, None]}, "traceparenT": "x"}
    for before in ({}, others):
        found = context_of({**before, "traceparent": text, "z": 1})
        assert found is not None
        assert (found.trace_id, found.parent_id, found.sampled) == (TRACE, PARENT, sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        SAMPLED[:-1],
        SAMPLED + "0",
        SAMPLED + "-more",  # not of this version
        f"ff-{TRACE}-{PARENT}-01",
        f"0G-{TRACE}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01.more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-0x",
        f"00 {TRACE}-{PARENT}-01",
        f"00-{TRACE}_{PARENT}-01",
        f"00-{TRACE}-{PARENT}:01",
        f"00-{TRACE[:-1]}é-{PARENT}-01",
        b"\xff" * 55,
        7,
        None,
        {"traceparent": SAMPLED},
        [SAMPLED],
    ],
)
def test_what_is_not_of_that_form_is_no_context(value: object) -> None:
    """(2)"""
    assert context_of({"traceparent": value}) is None


def test_without_headers_there_is_none() -> None:
    assert context_of(None) is None
    assert context_of({}) is None
    assert context_of({"baggage": SAMPLED, "x": {"traceparent": SAMPLED}}) is None


def test_only_the_first_headers_are_looked_at() -> None:
    """(1)"""
    others: dict[str, object] = {f"h{number}": number for number in range(HEADERS_MOST - 1)}
    assert context_of({**others, "traceparent": SAMPLED}) is not None
    assert context_of({**others, "one more": 1, "traceparent": SAMPLED}) is None
