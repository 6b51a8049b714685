"""Patterns: those that RE2 accepts, and the one look-ahead that is made of two searches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.vhosts.pattern import PATTERN_MAX_BYTES, Pattern


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("", "", False),
        ("", "a", False),
        ("^$", "", True),
        ("^$", "a", False),
        (".*", "", True),
        ("b", "abc", True),
        ("^b", "abc", False),
        ("(?i)^ABC$", "abc", True),
        ("^é", "état", True),
    ],
)
def test_a_pattern_is_searched_for(pattern: str, name: str, found: bool) -> None:
    assert Pattern(pattern).matches(name) is found


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"^(?!amq\.).*", ["a", "amq", "amqx", "x.amq.", ""], ["amq.", "amq.gen"]),
        (r"^(?!amq\.|mqtt-).+$", ["a", "mqtt"], ["amq.gen", "mqtt-1", ""]),
        (r"^(?!(a|b)c).", ["ab", "c"], ["ac", "bcd"]),
        (r"^(?!a)(?!b).", ["c"], ["a", "b", "", "bc"]),
        (r"^(?!a$)a", ["ab"], ["a", "b"]),
        (r"^(?![)a]).", ["b"], [")", "a"]),
        (r"^(?![])a]).", ["b"], ["]", ")", "a"]),
        (r"^(?![^])a]).", ["]", ")", "a"], ["b"]),
        (r"^(?![[:digit:])]).", ["a"], ["1", ")"]),
        (r"^(?!\)).", ["("], [")"]),
        (r"^(?!\Q)|(\E).", [")"], [")|("]),
        (r"^(?!a)[|x]", ["|", "x"], ["b"]),
        (r"^(?!a)\|", ["|"], ["b"]),
        (r"^(?!a)(b|c)$", ["b", "c"], ["ab", "d"]),
        (r"^(?!)a", [], ["a", "", "b"]),
    ],
)
def test_names_can_be_excluded(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [name for name in matching + others if compiled.matches(name)] == matching


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a{2000}",
        "(?=a)b",
        "(?!a)b",
        "a(?!b)",
        "^(?<!a)b",
        "^(?!a",
        "^(?!a(?!b))c",
        "^(?!a)b|c",  # c has no exclusion: two searches cannot say so
        "^(?!a)*",
        "^(?![a",
        "^(?!a\\",
        r"(a)\1",
        "a" * (PATTERN_MAX_BYTES + 1),
        "é" * (PATTERN_MAX_BYTES // 2 + 1),
        "\ud800",
    ],
)
def test_what_cannot_be_answered_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^pattern |surrogates not allowed$"):
        Pattern(pattern)


def test_a_refusal_names_the_pattern_and_the_reason() -> None:
    with pytest.raises(ValueError, match=r"^pattern '\^\(\?!a\{2000\}\)b': invalid repetition size"):
        Pattern("^(?!a{2000})b")


@pytest.mark.parametrize("pattern", ["a(.?){500}(.?){500}z", r"(\pL?){100}", "^(?!(.?){900}z)a", "a{1000}" * 9])
def test_what_would_take_long_for_one_name_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^pattern .*: pattern too large"):
        Pattern(pattern)


def test_a_large_pattern_that_is_stored_is_kept() -> None:
    stored = Pattern("^(.?){500}(.?){500}z", stored=True)
    assert stored.matches("a" * 900 + "z")
    assert not stored.matches("a" * 900)
    assert Pattern("a" * (PATTERN_MAX_BYTES + 1), stored=True).matches("a" * 2000)


def test_searching_takes_more_steps_the_larger_the_pattern_and_the_longer_the_name() -> None:
    small, large = Pattern("^amq"), Pattern("a(.?){100}z")
    assert (small.steps("a"), small.steps("a" * 255)) == (2, 2 + small.size * 255 // 128)
    assert large.size > 100 * small.size > 0
    assert large.steps("a" * 255) > 1000
    assert Pattern("^(?!amq)b").steps("a") == 2 * small.steps("a")
    assert [Pattern(text).steps("a" * 255) for text in ("", "^$", ".*")] == [0, 0, 0]


def test_groups_cost_nothing() -> None:
    """Whatever matches would be searched once more for what they have captured."""
    assert Pattern("((a)(b))+").size == Pattern("(?:ab)+").size


_PIECES = st.recursive(
    st.one_of(
        st.sampled_from(["a", "b", ".", "a*", "[ab]", "[^a]", "[]a]", "[)]", r"\.", r"\|", r"\)", "a$", ""]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
    ),
    max_leaves=6,
)


@given(st.lists(_PIECES, min_size=1, max_size=2), _PIECES, st.text("ab.|)]", max_size=4))
def test_exclusion_means_what_it_means_elsewhere(excluded: list[str], wanted: str, name: str) -> None:
    pattern = "^" + "".join(f"(?!{each})" for each in excluded) + wanted
    assert Pattern(pattern).matches(name) is (re.search(pattern, name) is not None)


def test_what_a_pattern_takes_in_memory_has_an_end() -> None:
    assert Pattern(r"\pL{2}").matches("été")
    for pattern in (r"\pL{20}", r"\pL{1000}"):
        with pytest.raises(ValueError, match="pattern too large"):
            Pattern(pattern)
    assert Pattern(r"\pL{20}", stored=True).matches("a" * 20), "it was taken when there was no such limit"
    with pytest.raises(ValueError, match="pattern too large"):
        Pattern(r"\pL{1000}", stored=True)
