"""Topic exchanges: topic_exchange (1) to (4), and the words of a key as RabbitMQ 3.10.8 splits them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE
from warren.exchanges.content import STEPS_MAX, Content
from warren.exchanges.topic_exchange import TopicExchange
from warren.queues.destination import Destination

from .topology import UNREADABLE, bind, matched, queue, unbind, unbind_all


def topic() -> TopicExchange:
    return TopicExchange(ExchangeDeclaration("x", "topic", durable=True))


def words(key: str) -> list[str]:
    return key.split(".") if key else []


def agrees(pattern: list[str], key: list[str]) -> bool:
    """Say what a topic pattern means, in the fewest words."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return agrees(pattern[1:], key) or (bool(key) and agrees(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and agrees(pattern[1:], key[1:])


def keys_of(alphabet: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(alphabet), max_size=6).map(".".join)


binding_keys = keys_of(["a", "b", "*", "#", ""]).filter(lambda key: words(key).count("#") <= 2)
routing_keys = keys_of(["a", "b", "c", "", "*", "#"])


@given(
    commands=st.lists(
        st.one_of(st.tuples(st.integers(0, 1), binding_keys), st.integers(0, 99)),  # a binding, or which of them goes
        max_size=40,
    ),
    keys=st.lists(routing_keys, min_size=1, max_size=8),
)
def test_after_any_binds_and_unbinds_it_matches_what_the_patterns_mean(
    commands: list[tuple[int, str] | int], keys: list[str]
) -> None:
    source = topic()
    queues = [queue(str(number)) for number in range(2)]
    bound: dict[tuple[int, str], None] = {}
    for command in commands:
        if not isinstance(command, int):
            number, pattern = command
            bind(source, queues[number], pattern)
            bound[command] = None
        elif bound:
            number, pattern = gone = list(bound)[command % len(bound)]
            assert unbind(source, queues[number], pattern) is not None
            del bound[gone]
    for key in keys:
        expected = sorted(str(number) for number, pattern in bound if agrees(words(pattern), words(key)))
        assert sorted(matched(source, key)) == expected, key
    for number, pattern in sorted(bound):
        assert not source._root.is_empty()
        assert unbind(source, queues[number], pattern) is not None
    assert source._root.is_empty()


@given(st.lists(st.tuples(st.integers(0, 2), binding_keys), max_size=30))
def test_unbinding_destinations_leaves_an_empty_trie(bindings: list[tuple[int, str]]) -> None:
    source = topic()
    queues = [queue(str(number)) for number in range(3)]
    for number, pattern in bindings:
        bind(source, queues[number], pattern)
    for destination in queues:
        unbind_all(source, destination)
    assert source._root.is_empty()


def test_a_word_that_goes_on_below_stands_at_one_place_only() -> None:
    source = topic()
    destination = queue("q")
    for pattern in ("a", "b"):
        bind(source, destination, pattern)
    unbind(source, destination, "a")  # which was the only child
    bind(source, destination, "b.c")
    for pattern in ("b.c", "b"):
        unbind(source, destination, pattern)
    assert matched(source, "b") == []
    assert source._root.is_empty()


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("*", "", False),
        ("#", "", True),
        ("", "", True),
        ("*.*", ".", True),
        ("*", "a.", False),
        ("a.*", "a.", True),
        ("#", ".", True),
        ("*", "*", True),
        ("#", "#", True),
        ("#.#", "", True),
        ("a", "*", False),
        ("a", "#", False),
        (".", ".", True),
        ("*.", "a.", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.b.c", False),
        ("stock.*.nyse", "stock.usd.nyse", True),
        ("stock.*.nyse", "stock.nyse", False),
        ("ab*", "abc", False),
        ("grün.*", "grün.π", True),
        ("a..b", "a.b", False),
        (".a", "a", False),
        ("#.*", "", False),
        ("a.*.#.z", "a.z", False),
        ("#.b.#", "b", True),
        ("a.b#", "a.b.c", False),
    ],
)
def test_words_and_wildcards_mean_what_they_mean_to_rabbitmq(pattern: str, key: str, expected: bool) -> None:
    source = topic()
    bind(source, queue("q"), pattern)
    assert matched(source, key) == (["q"] if expected else [])


def test_many_ways_to_match_are_one_match() -> None:
    source = topic()
    bind(source, queue("q"), "#.a.#")
    assert matched(source, ".".join(["a"] * 100)) == ["q"]


def test_a_thousand_keys_with_two_hashes_meet_a_key_of_128_words() -> None:
    source = topic()
    for number in range(1000):
        bind(source, queue(str(number)), f"#.a.#.{'a.' * (number % 50)}{number}")
    assert matched(source, ".".join(["a"] * 127 + ["7"])) == ["7"]


def test_bindings_that_several_keys_of_a_message_meet_are_looked_at_once() -> None:
    source = topic()
    for number in range(100):
        bind(source, queue(str(number)), "#")
    found: list[Destination] = []
    source.match_keys([f"k{number}" for number in range(200)], Content(UNREADABLE), found)
    assert [destination.name for destination in found] == [str(number) for number in range(100)]


def test_the_work_for_a_message_is_its_words_times_the_nodes() -> None:
    source = topic()
    depth = 8
    for number in range(1 << depth):
        pattern = ["a" if number >> bit & 1 else "*" for bit in range(depth)]
        bind(source, queue(str(number)), ".".join(["#", *pattern, "#"]))
    # The root, a node for each prefix of a pattern from "#" on, and the last "#".
    nodes = 1 + sum(1 << length for length in range(depth + 1)) + (1 << depth)
    for length in (64, 128):
        content = Content(UNREADABLE)
        found: list[Destination] = []
        source.match(".".join(["a"] * length), content, found)
        assert len(found) == 1 << depth
        assert 0 < STEPS_MAX - content.steps_left <= length * nodes


def test_a_message_without_steps_left_is_not_looked_for_any_further() -> None:
    source = topic()
    bind(source, queue("q"), "#.a.#")
    content = Content(UNREADABLE)
    content.steps_left = 100
    found: list[Destination] = []
    source.match_keys([f"{number}.a" for number in range(10_000)], content, found)
    assert found == [] and -10 < content.steps_left < 0


def test_a_key_may_have_two_hashes_and_128_words() -> None:
    source = topic()
    bind(source, queue("q"), "#.a.#")
    bind(source, queue("long"), ".".join(["w"] * 128))
    assert matched(source, ".".join(["w"] * 128)) == ["long"]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("#.a.#.b.#", "binding key '#.a.#.b.#' has 3 '#' words, at most 2 are allowed"),
        (".".join(["w"] * 129), "binding key has 129 words, at most 128 are allowed"),
    ],
)
def test_a_key_with_more_is_refused(pattern: str, text: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        topic().check_binding(pattern, EMPTY_TABLE)
    assert (refusal.value.reply_code, refusal.value.explanation) == (406, text)


def test_hash_as_part_of_a_word_is_no_wildcard() -> None:
    source = topic()
    bind(source, queue("q"), "#a.b#.c#d")
    assert matched(source, "#a.b#.c#d") == ["q"]
    assert matched(source, "x.b.cd") == []


def test_a_topic_route_never_reads_the_content() -> None:
    source = topic()
    bind(source, queue("q"), "a.#")
    found: list[Destination] = []
    source.match("a.b", Content(UNREADABLE), found)
    assert [destination.name for destination in found] == ["q"]
    assert source.cacheable
