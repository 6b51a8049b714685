"""Which subscriptions a topic matches: while they are few, when they are many, and as section 4.7 of MQTT 5.0 says."""

from __future__ import annotations

import random
import re

import pytest
from engine_harness import Harness

from warren.mqtt.topics import FEW, Filters, Subscription, matches


def as_expression(filter_: str) -> re.Pattern[str]:
    """Return what a filter means."""
    words = {"+": "[^/]*"}
    *front, last = filter_.split("/")
    if last == "#":
        expression = "/".join(words.get(word, re.escape(word)) for word in front)
        expression += "(/.*)?" if front else ".*"
    else:
        expression = "/".join(words.get(word, re.escape(word)) for word in (*front, last))
    return re.compile(r"(?!\$)" + expression if filter_[0] in "+#" else expression, re.DOTALL)


def subscription(filter_: str, qos: int = 0) -> Subscription:
    return Subscription(filter_, qos, False, False, 0, b"")


@pytest.mark.parametrize(
    ("filter_", "topic", "is_matched"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("#", "a", True),
        ("#", "$SYS/a", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/+", "$SYS/a", True),
        ("$SYS/#", "$SYS", True),
        ("+", "a/b", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("+", "/a", False),
        ("a/+/c", "a//c", True),
        ("a/+", "a", False),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
    ],
)
def test_a_filter_matches_what_the_standard_says(filter_: str, topic: str, is_matched: bool) -> None:
    assert matches(filter_, topic) is is_matched
    assert bool(as_expression(filter_).fullmatch(topic)) is is_matched


def test_few_and_many_find_the_same_while_subscriptions_come_and_go() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def level(*wild: str) -> str:
        return chance.choice(["", "a", "b", "$c", "*", *wild])

    def a_filter() -> str:
        words = [level("+", "+") for _ in range(chance.randint(1, 4))]
        return "/".join([*words, "#"] if chance.random() < 0.3 else words) or "#"

    for _ in range(300):
        filters = Filters()
        there: dict[str, int] = {}
        for step in range(3 * FEW):
            if there and chance.random() < 0.3:
                gone = chance.choice(list(there))
                filters.remove(gone)
                del there[gone]
            else:
                there[name := a_filter()] = step
                filters.put(subscription(name, step))
            assert {each.filter: each.qos for each in filters.values()} == there
            assert len(filters) == len(there)
            wanted = chance.choice([*there, "none"])
            got = filters.get(wanted)
            assert (None if got is None else got.qos) == there.get(wanted)
            topic = "/".join(level() for _ in range(chance.randint(1, 4))) or "a"
            found = {each.filter: each.qos for each in filters.matching(topic)}
            assert found == {name: qos for name, qos in there.items() if as_expression(name).fullmatch(topic)}, topic


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
def test_nothing_is_left_of_those_that_are_cleared(count: int) -> None:
    filters = Filters()
    for number in range(count):
        filters.put(subscription(f"a/{number}"))
    filters.clear(Harness().broker.log.reclamation)
    assert (len(filters), filters.values(), filters.get("a/0"), filters.matching("a/0")) == (0, [], None, [])
    filters.put(subscription("b"))
    assert [each.filter for each in filters.matching("b")] == ["b"]
    assert len(Filters()) == 0
