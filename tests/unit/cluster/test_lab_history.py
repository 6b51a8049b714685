"""The judge of the cluster lab finds what it is for (``tests/cluster_lab/history.py``), by made-up histories."""

from __future__ import annotations

import pytest
from cluster_lab.history import History, Rules

PAIR = ("a", "b")
RULES = Rules(PAIR, frozenset({"twice"}), witnesses={"watched": ("kept", "other")}, moves={"target": "source"})
QUEUES = ("q", "twice", *PAIR, "watched", "kept", "other", "source", "target")


def judged(sent: dict[str, list[str]], confirmed: dict[str, list[str]], found: dict[str, list[str]]) -> list[str]:
    history = History()
    for queue, names in sent.items():
        history.sends(queue, names)
    for queue, names in confirmed.items():
        history.confirmed(queue, names)
    drained(history, found)
    return history.violations


def drained(history: History, found: dict[str, list[str]]) -> None:
    history.drained({queue: found.get(queue, []) for queue in QUEUES}, RULES)


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
    drained(history, {"q": ["1"]})
    drained(history, {"q": ["1"]})
    assert history.violations == ["q has 1 messages that were taken before: 1"]


def watching() -> History:
    """Return the history of a message that was seen, and of one that was not."""
    history = History()
    for queue in ("watched", "kept", "other"):
        history.sends(queue, ["1", "2"])
        history.confirmed(queue, ["1"])
    history.saw("watched", "1")
    return history


@pytest.mark.parametrize("left", [[], ["1"], ["2"], ["1", "2"]])
def test_what_was_seen_need_not_be_in_its_queue(left: list[str]) -> None:
    history = watching()
    drained(history, {"watched": left, "kept": ["1", "2"], "other": ["1", "2"]})
    assert history.violations == []


def test_what_was_seen_and_taken_back_is_found() -> None:
    history = watching()
    history.saw("watched", "2")
    drained(history, {"kept": ["1"], "other": ["1", "2"]})
    assert history.violations == ["1 messages were seen in watched, and were taken back: kept lacks 2"]


def test_what_nobody_sent_and_somebody_saw_is_found() -> None:
    history = watching()
    history.saw("watched", "3")
    drained(history, {"kept": ["1", "3"], "other": ["1", "3"]})
    assert "watched has 1 messages that nobody sent: 3" in history.violations


def test_what_was_seen_and_comes_back_later_is_found() -> None:
    history = watching()
    drained(history, {"kept": ["1"], "other": ["1"]})
    history.violations.clear()
    drained(history, {"watched": ["1"]})
    assert history.violations == ["watched has 1 messages that were taken before: 1"]


def moving() -> History:
    """Return the history of a message that was moved, as far as its client knows, and seen."""
    history = History()
    history.sends("source", ["1", "2"])
    history.confirmed("source", ["1", "2"])
    history.sends("target", ["1"])
    history.saw("target", "1")
    return history


@pytest.mark.parametrize("found", [{"source": ["2"]}, {"source": ["2"], "target": ["1"]}])
def test_what_was_moved_is_in_one_queue(found: dict[str, list[str]]) -> None:
    history = moving()
    drained(history, found)
    assert history.violations == []


@pytest.mark.parametrize("target", [[], ["1"]])
def test_what_was_moved_and_taken_back_is_found(target: list[str]) -> None:
    history = moving()
    drained(history, {"source": ["1", "2"], "target": target})
    assert history.violations == ["1 messages moved to target, and are in source: 1"]


def test_what_was_moved_to_nowhere_is_found() -> None:
    history = moving()
    drained(history, {})
    assert history.violations == ["source lacks 1 confirmed messages: 2"]


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
