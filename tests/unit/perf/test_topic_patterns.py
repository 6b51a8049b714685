"""topic_patterns.py: reproducible patterns, keys of one length, and what deliveries are checked against."""

from __future__ import annotations

import pytest

from warren.perf.topic_patterns import TopicPatterns, queues_hit


@pytest.mark.parametrize(
    ("binding_key", "routing_key", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.bc", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "a.c.b", False),
        ("#", "a.b", True),
        ("*.#.b", "a.x.y.b", True),
        ("*.#.b", "b", False),
    ],
)
def test_star_is_one_word_and_hash_any_number(binding_key: str, routing_key: str, expected: bool) -> None:
    assert queues_hit([routing_key], [binding_key], 1) == [[0] if expected else []]


def test_the_same_seed_gives_the_same_patterns_and_another_seed_others() -> None:
    one, same, other = (TopicPatterns(bindings=100, keys=100, seed=seed) for seed in (7, 7, 8))
    assert (one.binding_keys, one.routing_keys) == (same.binding_keys, same.routing_keys)
    assert one.binding_keys != other.binding_keys


def test_all_routing_keys_have_one_length() -> None:
    assert {len(key) for key in TopicPatterns(bindings=1, keys=500, seed=1).routing_keys} == {19}


def test_a_thousand_bindings_mix_all_shapes() -> None:
    keys = TopicPatterns(bindings=1000, keys=1, seed=1).binding_keys
    shapes = [sum(key.count("*") == stars and "#" not in key for key in keys) for stars in (0, 1, 2)]
    assert [round(shape, -2) for shape in shapes] == [500, 200, 100]
    assert sum(key.endswith("#") for key in keys) > sum(key.startswith("#") for key in keys) > 0


def test_a_queue_hit_by_several_bindings_counts_once() -> None:
    assert queues_hit(["a.b"], ["a.*", "x.y", "#", "*.b"], 2) == [[0, 1]]
    assert queues_hit(["a.b"], ["a.*", "x.y", "#"], 2) == [[0]]
