"""Calls in a query are found, and nothing else. sql_text (1), (2)."""

from __future__ import annotations

import pytest

from warren.lake.sql_text import Call, replaced
from warren.spark_bridge.bridge_errors import UsageError


def calls_of(query: str) -> tuple[str, list[Call]]:
    found: list[Call] = []

    def name_of(call: Call) -> str:
        found.append(call)
        return f"t{len(found)}"

    return replaced(query, name_of), found


def test_a_call_is_replaced_by_a_name() -> None:
    text, found = calls_of("SELECT * FROM stream('a') s JOIN lake('b''c') USING (id) WHERE s.x > 1")
    assert text == """SELECT * FROM "t1" s JOIN "t2" USING (id) WHERE s.x > 1"""
    assert found == [Call("stream", (("0", "a"),)), Call("lake", (("0", "b'c"),))]


def test_arguments_may_have_names_comments_and_space_around_them() -> None:
    _, [found] = calls_of("FROM Stream ( -- which\n 'a' , SINCE => '1h',json:=TRUE, until => -5 )")
    assert found == Call("stream", (("0", "a"), ("since", "1h"), ("json", True), ("until", -5)))
    assert str(found) == "stream('a', since => '1h', json => true, until => -5)"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 'stream(''a'')'",
        "SELECT \"lake('a')\"",
        "SELECT 1 -- FROM stream('a')",
        "SELECT 1 /* FROM\nstream('a') */",
        "SELECT $$ stream('a') $$, $x$ lake('a') $$ $x$, $a1$ ' stream('a') $a1$",
        r"SELECT E'it\'s stream(\'a\')', e'\\' || ' stream(''a'')'",
        "SELECT upstream('a'), s.stream('a'), streams FROM stream",
    ],
)
def test_what_is_no_call_stays_as_it_is(query: str) -> None:
    assert calls_of(query) == (query, [])


@pytest.mark.parametrize("query", ["stream(a)", "stream('a' 'b')", "stream('a', x => 1.5)", "stream('a'", "lake("])
def test_arguments_that_are_not_understood_are_refused(query: str) -> None:
    with pytest.raises(UsageError, match="are texts, whole numbers, true and false"):
        calls_of(query)


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(UsageError):
        calls_of("stream('a', since => '1h', since => '2h')")


def test_names_are_quoted() -> None:
    assert replaced("FROM stream('a\"b')", str) == 'FROM "stream(\'a""b\')"'
