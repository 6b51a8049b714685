"""The judge of the cluster lab finds what it is for (``tests/cluster_lab/history.py``), by made-up histories."""

from __future__ import annotations

import pytest
from cluster_lab.history import History

PAIR = ("a", "b")


def judged(sent: dict[str, list[str]], confirmed: dict[str, list[str]], found: dict[str, list[str]]) -> list[str]:
    history = History()
    for queue, names in sent.items():
        history.sends(queue, names)
    for queue, names in confirmed.items():
        history.confirmed(queue, names)
    history.drained({queue: found.get(queue, []) for queue in ("q", "twice", *PAIR)}, PAIR, frozenset({"twice"}))
    return history.violations


def test_what_may_be_so_is_no_violation() -> None:
    sent = {"q": ["1", "2", "3"], "a": ["4", "5"], "b": ["4", "5"], "twice": ["6"]}
    confirmed = {"q": ["1"], "a": ["4"], "b": ["4"]}
    assert judged(sent, confirmed, {"q": ["1", "3"], "a": ["4"], "b": ["4"], "twice": ["6", "6"]}) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"a": ["4"], "b": ["4"]}, "q lacks 1 confirmed messages: 1"),
        ({"q": ["1", "9"], "a": ["4"], "b": ["4"]}, "q has 1 messages that nobody sent: 9"),
        ({"q": ["1", "1"], "a": ["4"], "b": ["4"]}, "q has 1 messages twice: 1"),
        ({"q": ["1"], "a": ["4", "5"], "b": ["4"]}, "1 transactions are there by half: 5"),
    ],
)
def test_what_may_not_be_is_found(found: dict[str, list[str]], said: str) -> None:
    sent = {"q": ["1", "2"], "a": ["4", "5"], "b": ["4", "5"]}
    assert judged(sent, {"q": ["1"], "a": ["4"], "b": ["4"]}, found) == [said]


def test_what_was_taken_and_comes_back_is_found() -> None:
    history = History()
    history.sends("q", ["1"])
    history.drained({"q": ["1"], "a": [], "b": []}, PAIR, frozenset())
    history.drained({"q": ["1"], "a": [], "b": []}, PAIR, frozenset())
    assert history.violations == ["q has 1 messages that were taken before: 1"]


def test_an_offset_that_holds_another_message_is_found() -> None:
    history = History()
    history.sends("s", ["1", "2"])
    history.read(0, "1")
    history.stream("s", {0: "1", 1: "2"})
    assert history.violations == []
    history.stream("s", {0: "2"})
    assert history.violations == ["offset 0 was read as 1, and is 2"]
    history.read(0, "2")
    assert len(history.violations) == 2


def test_the_worst_gap_counts_from_the_beginning_to_the_end() -> None:
    history = History()
    assert history.worst_gap_s(10.0, 14.0) == 4.0
