"""Policies put, replaced and deleted at random: a book answers like a list that is searched from end to end."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from warren.vhosts.metadata import PolicyDelete, PolicyPut
from warren.vhosts.policies import APPLY_TO, Policy, PolicyBook

TYPES = ("classic", "quorum", "stream")
# Keys with a value, and the queue types that support them.
KEYS = {
    "expires": (1, {"classic", "quorum"}),
    "dead-letter-strategy": ("at-most-once", {"quorum"}),
    "max-age": ("1h", {"stream"}),
    "max-length-bytes": (5, set(TYPES)),
    "queue-mode": ("lazy", {"classic"}),
    "alternate-exchange": ("a", set(TYPES)),
}
OPERATOR_KEYS = ("expires", "max-length-bytes")
MEANS = {
    "all": {*TYPES, "exchange"},
    "exchanges": {"exchange"},
    "queues": set(TYPES),
    "classic_queues": {"classic"},
    "quorum_queues": {"quorum"},
    "streams": {"stream"},
}
PATTERNS = ("", ".*", "^a", "b$", "a.b", "[bc]", "^(a|b)$", "^(?!a)", "^(?!b|ac)c?")


@st.composite
def puts(draw: st.DrawFn) -> PolicyPut:
    operator = draw(st.booleans())
    keys = draw(st.sets(st.sampled_from(OPERATOR_KEYS if operator else sorted(KEYS)), min_size=1, max_size=3))
    return PolicyPut(
        "/",
        draw(st.sampled_from("pqr")),
        draw(st.sampled_from(PATTERNS)),
        draw(st.sampled_from(APPLY_TO)),
        draw(st.integers(-2, 2)),
        json.dumps({key: KEYS[key][0] for key in sorted(keys)}),
        operator,
    )


DELETES = st.builds(PolicyDelete, st.just("/"), st.sampled_from("pqr"), st.booleans())


def expected(held: list[PolicyPut], target: str, name: str) -> PolicyPut | None:
    """Return the one of `held` that wins for an entity."""
    best: PolicyPut | None = None
    for put in held:
        unsupported = target != "exchange" and any(target not in KEYS[key][1] for key in json.loads(put.definition))
        if target not in MEANS[put.apply_to] or unsupported or re.search(put.pattern, name) is None:
            continue
        if best is None or put.priority > best.priority or (put.priority == best.priority and put.name < best.name):
            best = put
    return best


def put_of(policy: Policy | None) -> PolicyPut | None:
    return None if policy is None else policy.put


@given(st.lists(st.one_of(puts(), puts(), DELETES), max_size=12), st.text("abc", max_size=3))
def test_a_book_answers_like_a_list(changes: list[PolicyPut | PolicyDelete], name: str) -> None:
    book = PolicyBook()
    held: list[PolicyPut] = []
    for change in changes:
        held = [put for put in held if (put.name, put.operator) != (change.name, change.operator)]
        if isinstance(change, PolicyPut):
            book.put(change)
            held.append(change)
        else:
            book.delete(change.name, operator=change.operator)
        mine = [put for put in held if not put.operator]
        operators = [put for put in held if put.operator]
        for queue_type in TYPES:
            assert put_of(book.maybe_policy("queue", name, queue_type)) == expected(mine, queue_type, name)
            assert put_of(book.maybe_operator_policy(name, queue_type)) == expected(operators, queue_type, name)
        assert put_of(book.maybe_policy("exchange", name)) == expected(mine, "exchange", name)
