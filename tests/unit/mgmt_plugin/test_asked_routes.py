"""Asking where a message would go costs as much as there are bindings on its way, and leaves nothing behind."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest
from engine_harness import Harness

from warren.amqp.field_table import encode_table
from warren.amqp.properties import BasicProperties
from warren.engine_view import routing
from warren.engine_view.refs import ExchangeRef
from warren.engine_view.routing import SHOWN_MAX, Way

# A key and a header that every binding of the type below lets through.
KEY = "a.b"
PROPERTIES = BasicProperties()
PROPERTIES.headers = encode_table({"h": 1})
HEADER = b"\x00\x3c\x00\x00" + bytes(8) + PROPERTIES.encode()


def bindings_of(kind: str, count: int) -> list[tuple[str, bytes]]:
    """Return keys and arguments of bindings that all match."""
    always: dict[str, Any] = {"h": 1, "x-match": "any"} if kind == "headers" else {}
    return [(KEY if kind == "direct" else "#", encode_table(always | {f"n{n}": n})) for n in range(count)]


def bench(kind: str, count: int, queues: int = 1) -> Harness:
    """Return a broker with as many bindings from an exchange to each of the queues."""
    harness = Harness()
    client = harness.channel()
    client.declare_exchange("e", kind)
    for number in range(queues):
        client.declare(f"q{number}")
        queue = harness.vhost.queues[f"q{number}"]
        for key, arguments in bindings_of(kind, count):
            harness.vhost.bind(harness.vhost.exchanges["e"], queue, key, arguments, "guest")
    return harness


def asked(harness: Harness) -> Way:
    way = Way(harness.vhost, KEY, HEADER)
    for _ in way.follow(ExchangeRef(harness.vhost.exchanges["e"])):
        pass
    return way


def calls_of(harness: Harness) -> int:
    """Return how many functions are called to answer."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        asked(harness)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_the_work_is_linear_in_the_bindings_to_one_queue(kind: str) -> None:
    none, once, twice = (calls_of(bench(kind, count)) for count in (1, 100, 200))
    assert twice - none < 2.2 * (once - none)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_nothing_is_left_for_the_collector(kind: str) -> None:
    harness = bench(kind, 50, 3)
    asked(harness)  # make the objects that are made once
    gc.collect()
    gc.disable()
    try:
        left = []
        for _ in range(3):
            asked(harness)
            left.append(gc.collect())
    finally:
        gc.enable()
    assert 0 in left, "each leaves something; a thread of another test may do so at times"


def test_the_answer_is_bounded_and_says_how_much_there_is() -> None:
    harness = bench("fanout", 1, SHOWN_MAX + 5)
    way = asked(harness)
    assert (len(way.steps), way.count, way.complete) == (SHOWN_MAX, SHOWN_MAX + 5, True)


def test_work_ends_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "WORK_MAX", 20)
    way = asked(bench("headers", 100, 2))
    assert not way.complete and way.count == 1


def test_one_of_many_bindings_is_named_once_for_its_key() -> None:
    way = asked(bench("topic", 30, 2))
    assert [(step.destination, step.routing_key) for step in way.steps] == [("q0", "#"), ("q1", "#")]
