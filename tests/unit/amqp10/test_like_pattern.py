"""Which texts are like which patterns, and what it takes to find out. In parentheses: ``like_pattern.py``."""

from __future__ import annotations

import random

import pytest

from warren.amqp10 import like_pattern
from warren.amqp10.like_pattern import Pattern, pattern_of


@pytest.mark.parametrize(
    ("pattern", "escape", "good", "bad"),
    [
        ("", "", [""], ["a"]),
        ("%", "", ["", "a", "\n"], []),
        ("%%", "", ["", "a"], []),
        ("_", "", ["a", "é", "\U0001f60e"], ["", "ab"]),
        ("John%", "", ["John", "Johnny"], ["Joh", "xJohn"]),
        ("%@example.com", "", ["@example.com", "a@example.com"], ["a@example.org"]),
        ("John % Doe", "", ["John  Doe", "John F. Doe"], ["John Doe"]),
        ("___ABC", "", ["123ABC"], ["12ABC", "1234ABC"]),
        ("\\_%", "\\", ["_foo", "_"], ["bar"]),
        ("100!%", "!", ["100%"], ["100", "1000"]),
        ("!!%", "!", ["!", "!x"], ["x"]),
        ("a%b%c", "", ["abc", "axbxc", "abbc", "abcbc"], ["acb", "ab", "ac"]),
        ("%aab%", "", ["aaab", "aab", "xaabx"], ["aab"[::-1], "aba"]),
        ("%a_a%", "", ["aaa", "xaba", "abaa"], ["aa", "abba"]),
        ("%a_c%a_c", "", ["abcabc", "aacxaac", "abcacacc"], ["abc", "abcac"]),
        ("%__%", "", ["ab", "abc"], ["", "a"]),
        (".*", "", [".*"], ["a"]),
        ("a%a", "", ["aa", "aba"], ["a"]),
    ],
)
def test_texts_are_like_patterns(pattern: str, escape: str, good: list[str], bad: list[str]) -> None:
    made = pattern_of(pattern, escape)
    assert all(made.matches(text) for text in good)
    assert not any(made.matches(text) for text in bad)


def slowly_like(pattern: str, text: str) -> bool:
    """Compare by the definition: a table of which beginnings of both fit together."""
    fits = [True] + [False] * len(text)
    for character in pattern:
        if character == "%":
            for at in range(len(text)):
                fits[at + 1] = fits[at + 1] or fits[at]
        else:
            fits = [False] + [fits[at] and character in ("_", text[at]) for at in range(len(text))]
    return fits[-1]


def test_patterns_agree_with_their_definition() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(5000):
        pattern = "".join(chance.choices("ab_%", k=chance.randrange(8)))
        text = "".join(chance.choices("ab", k=chance.randrange(12)))
        assert pattern_of(pattern, "").matches(text) is slowly_like(pattern, text), (pattern, text)


class Counted(str):
    """A text that counts how often a character of it is looked at."""

    looks = 0

    def __getitem__(self, at: object) -> str:
        Counted.looks += 1
        return str.__getitem__(self, at)  # type: ignore[index]


@pytest.mark.parametrize("pattern", ["%a_a_b%", "%a_%a_%a_%a_%b%", "%_a%" * 20 + "b%", "%" + "a_" * 20 + "b%"])
def test_like_looks_once_at_each_character(pattern: str) -> None:
    """(1)"""
    made = pattern_of(pattern, "")
    looks = []
    for size in (2000, 4000):
        Counted.looks = 0
        text = Counted("a" * size)
        if not like_pattern.__file__.endswith(".py"):
            looks.append(int(made.steps(size)))  # compiled code asks no class of ours
            continue
        assert not made.matches(text)
        assert Counted.looks <= size
        looks.append(Counted.looks)
    assert looks[1] <= 2 * looks[0] + 64
    assert made.steps(4000) <= 2 * made.steps(2000)


def test_the_steps_of_a_pattern_grow_with_the_text_only() -> None:
    for pattern in ("%" + "a" * 4000 + "%", "%a_a%", "%a%"):
        made: Pattern = pattern_of(pattern, "")
        assert made.steps(20_000) <= 2 * made.steps(10_000) <= 6 * 10_000 + 2
    assert pattern_of("a%b", "").steps(10_000) == 1
    assert pattern_of("a_b", "").steps(10_000) == 4
