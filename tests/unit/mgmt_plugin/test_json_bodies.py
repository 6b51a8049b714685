"""The counts of a gauge, compared with the objects that a decoder builds."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from warren.mgmt_plugin.http.json_bodies import DEPTH_MAX, JsonGauge, TooDeep, TooMuch

TEXTS = ("", "x", '"', "\\", '\\"', "[[[[", "{}{}", ",,::", "\\\\", "\u00e9\u20ac", "\n\t", '"]', "a" * 50)


def random_value(source: random.Random, depth: int) -> Any:
    kind = source.randrange(8 if depth else 5)
    if kind < 2:
        return source.choice(TEXTS)
    if kind < 5:
        return source.choice([0, -1, 1.5, True, None, 10**30])
    if kind == 5:
        return [random_value(source, depth - 1) for _ in range(source.randrange(5))]
    return {source.choice(TEXTS) + str(at): random_value(source, depth - 1) for at in range(source.randrange(5))}


def objects(value: Any) -> int:
    """Return how many values and keys there are in a value, itself included."""
    if isinstance(value, dict):
        return 1 + sum(1 + objects(each) for each in value.values())
    if isinstance(value, list):
        return 1 + sum(map(objects, value))
    return 1


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def gauged(data: bytes, sizes: list[int], values_max: int = 1 << 40) -> JsonGauge:
    gauge = JsonGauge(values_max)
    at = 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        gauge.look(data[at : at + size])
        at += size
    return gauge


def test_it_counts_what_a_decoder_builds_however_the_body_is_cut() -> None:
    source = random.Random(11)
    for _ in range(300):
        value = random_value(source, 6)
        data = json.dumps(value, ensure_ascii=source.random() < 0.5).encode()
        for sizes in ([1], [2], [source.randrange(1, 9) for _ in range(7)], [len(data)]):
            gauge = gauged(data, sizes)
            assert objects(value) <= gauge._values + 1 <= 2 * objects(value)
            assert (gauge._depth, gauge._in_text, gauge._escaped) == (0, False, False)


def test_a_value_may_have_so_many_levels_and_no_more() -> None:
    source = random.Random(5)
    for levels in (1, DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1, 900):
        for opening, closing in ((b"[", b"]"), (b'{"[{\\"":', b"}")):
            data = opening * levels + b"1" + closing * levels
            if levels <= DEPTH_MAX:
                gauged(data, [source.randrange(1, 50)])
            else:
                with pytest.raises(TooDeep, match="nested"):
                    gauged(data, [source.randrange(1, 50)])


def test_a_value_may_have_so_many_others_in_it_and_no_more() -> None:
    assert gauged(b"[" + b"1," * 98 + b"1]", [7], 99)
    with pytest.raises(TooMuch, match="more than 99 values"):
        gauged(b"[" + b"1," * 99 + b"1]", [7], 99)


def test_what_stands_in_texts_does_not_count() -> None:
    text = "[{,:" * 10_000
    assert gauged(json.dumps([text, text]).encode(), [8192])._values == 2


def test_what_is_not_json_is_measured_as_far_as_a_decoder_comes() -> None:
    for data in (b'\\"[[', b'"', b'"\\', b"\\", b"]]]]", b"}", b'"\x00', b"\xff" * 100, b'{"a":"' + b"\\" * 999):
        for size in (1, 2, 5, 1000):
            gauged(data, [size])
