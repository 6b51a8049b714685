"""Sorting, filtering, paging and choosing columns."""

from __future__ import annotations

import json
import time
from typing import Any, cast

import pytest
import trio
from answers import whole

from warren.mgmt_plugin.http import scheduler
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.listing import RUN, answer_list, in_order, order
from warren.mgmt_plugin.routes import Call, parse_query

Row = dict[str, Any]


class Asked:
    """A call of which nothing but the query is looked at, and told how much it needs."""

    def __init__(self, query: str) -> None:
        self.query = parse_query(query)
        self.request = self
        self.held = 0
        self.works = 0

    def hold(self, size: int) -> None:
        self.held += size

    async def begin_work(self) -> None:
        self.works += 1


def ask(rows: list[Row], query: str = "", *, described: list[Row] | None = None) -> Any:
    """Return what a list of `rows` is answered with; the rows that had to be described are added to `described`."""

    def describe(row: Row) -> Row:
        if described is not None:
            described.append(row)
        return row

    async def main() -> Response:
        return await answer_list(cast(Call, Asked(query)), rows, describe, {"name": lambda row: row["name"]})

    answer = trio.run(main)
    assert answer.status == 200
    return json.loads(whole(answer))


def refusal(rows: list[Row], query: str) -> HttpError:
    with pytest.raises(HttpError) as caught:
        ask(rows, query)
    return caught.value


def named(*names: str) -> list[Row]:
    return [{"name": name} for name in names]


def names(rows: list[Row]) -> list[str]:
    return [row["name"] for row in rows]


# --- order ------------------------------------------------------------------------------------------------------------


def test_a_list_is_an_array_in_the_order_it_came_in() -> None:
    assert ask(named("b", "a")) == named("b", "a")
    assert ask([]) == []


def test_lists_are_sorted_by_nested_fields_with_missing_ones_first() -> None:
    rows: list[Row] = [
        {"name": "two", "stats": {"rate": 2.5}},
        {"name": "none"},
        {"name": "ten", "stats": {"rate": 10}},
        {"name": "half", "stats": {}},
        {"name": "odd", "stats": 7},
    ]
    assert names(ask(rows, "sort=stats.rate")) == ["none", "half", "odd", "two", "ten"]
    assert names(ask(rows, "sort=stats.rate&sort_reverse=true"))[:2] == ["ten", "two"]
    assert names(ask(rows, "sort=stats.rate&sort_reverse=false")) == names(ask(rows, "sort=stats.rate"))
    assert names(ask(rows, "sort=nosuch.field")) == names(rows)


def test_values_of_different_types_can_be_sorted() -> None:
    values: list[object] = ["b", None, 3, {"x": 1}, "a", 2.5, True, [1]]
    rows = [{"name": str(at), "v": value} for at, value in enumerate(values)]
    assert [row["v"] for row in ask(rows, "sort=v")][:6] == [None, True, 2.5, 3, "a", "b"]
    for one in values:
        for other in values:
            assert (order(one) < order(other)) in (True, False)


def test_numbers_in_texts_count_as_numbers_if_that_is_asked_for() -> None:
    """The web UI does: people look for queue10 after queue9. By itself the order is RabbitMQ's."""
    texts = ["q10", "q9", "Q2", "q", "q02a", "q1-10", "q1-9", "10", "9", "q" + "9" * 9, "q1" + "0" * 9, "q0", "q-1"]
    counted = ["9", "10", "q", "q-1", "q0", "q1-9", "q1-10", "Q2", "q02a", "q9", "q10", "q" + "9" * 9, "q1" + "0" * 9]
    assert names(ask(named(*texts), "sort=name&sort_natural=true")) == counted
    assert names(ask(named(*texts), "sort=name&sort_natural=true&sort_reverse=true")) == counted[::-1]
    assert names(ask(named(*texts), "sort=name")) == sorted(texts)
    rows: list[Row] = [{"name": "a", "v": 10}, {"name": "b", "v": 9}, {"name": "c"}]
    assert names(ask(rows, "sort=v&sort_natural=true")) == ["c", "b", "a"]


def test_what_a_key_knows_is_sorted_without_describing_more_than_the_page() -> None:
    rows = [{"name": f"q{number:03}"} for number in range(200)]
    described: list[Row] = []
    page = ask(rows, "sort=name&sort_reverse=true&page=2&page_size=10", described=described)
    assert names(page["items"]) == [f"q{number:03}" for number in range(189, 179, -1)]
    assert names(described) == names(page["items"])


def test_the_sort_keeps_the_order_of_equals() -> None:
    rows = [{"name": name, "n": 1} for name in "cab"]
    assert names(ask(rows, "sort=n")) == ["c", "a", "b"]


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_page_says_where_it_is() -> None:
    rows = named(*(f"q{number}" for number in range(25)))
    page = ask(rows, "page=3&page_size=10")
    assert page == {
        "filtered_count": 25,
        "item_count": 5,
        "page": 3,
        "page_count": 3,
        "page_size": 10,
        "total_count": 25,
        "items": rows[20:],
    }
    assert ask(rows, "page=1")["page_size"] == 100
    assert ask(rows, "page=1&page_size=500")["item_count"] == 25


def test_every_row_is_on_exactly_one_page() -> None:
    rows = named(*(f"q{number}" for number in range(23)))
    for size in (1, 2, 7, 23, 24):
        count = ask(rows, f"page=1&page_size={size}")["page_count"]
        pages = [ask(rows, f"page={number}&page_size={size}")["items"] for number in range(1, count + 1)]
        assert [row for page in pages for row in page] == rows
        assert refusal(rows, f"page={count + 1}&page_size={size}").error == "page_out_of_range"


def test_a_list_of_nothing_has_one_empty_page() -> None:
    page = ask([], "page=1")
    assert (page["page_count"], page["items"], page["total_count"]) == (1, [], 0)


@pytest.mark.parametrize(
    ("query", "error", "reason"),
    [
        ("page=0", "invalid_pagination_parameters", "page number 0, page size undefined"),
        ("page=-1", "invalid_pagination_parameters", "page number -1, page size undefined"),
        ("page=1&page_size=0", "invalid_pagination_parameters", "page number 1, page size 0"),
        ("page=1&page_size=-5", "invalid_pagination_parameters", "page size -5"),
        ("page=1&page_size=501", "invalid_pagination_parameters", "page number 1, page size 501"),
        ("page=2", "page_out_of_range", "Page out of range, page: 2 page size: 100, len: 3"),
        ("page=999999999999999999", "page_out_of_range", "page: 999999999999999999"),
        ("page=x", "bad_request", "Pagination parameters are invalid"),
        ("page=", "bad_request", "Pagination parameters are invalid"),
        ("page=1.5", "bad_request", "Pagination parameters are invalid"),
        ("page=1&page_size=many", "bad_request", "Pagination parameters are invalid"),
        ("page=" + "9" * 5000, "bad_request", "Pagination parameters are invalid"),
        ("page=1&name=(&use_regex=true", "bad_request", "Pagination parameters are invalid"),
    ],
)
def test_pages_that_make_no_sense_are_refused(query: str, error: str, reason: str) -> None:
    caught = refusal(named("a", "b", "c"), query)
    assert (caught.status, caught.error) == (400, error)
    assert reason in str(caught.reason)


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_are_filtered_by_a_part_of_them_whatever_the_case() -> None:
    rows = named("Orders", "reorder", "bills", "a.b", "axb")
    page = ask(rows, "page=1&name=ORDER")
    assert names(page["items"]) == ["Orders", "reorder"]
    assert (page["filtered_count"], page["total_count"], page["item_count"]) == (2, 5, 2)

    def found(query: str) -> list[str]:
        return names(ask(rows, f"page=1&{query}")["items"])

    assert found("name=a.b") == ["a.b"]  # a dot is a dot
    assert found("name=a.b&use_regex=true") == ["a.b", "axb"]
    assert found("name=^o&use_regex=true") == ["Orders"]
    assert found("name=^[oA]&use_regex=true") == ["Orders", "a.b", "axb"]
    assert found("name=^(?!A)B&use_regex=true") == ["bills"]
    assert found("name=(") == []
    assert found("name=") == names(rows)


def test_without_a_page_names_are_not_filtered() -> None:
    rows = named("Orders", "bills")
    for query in ("name=order", "name=^o&use_regex=true", "name=(&use_regex=true"):
        assert names(ask(rows, query)) == ["Orders", "bills"]


@pytest.mark.parametrize("pattern", ["^(a%2B)%2B$", "(a|a)*$", "(.*a){20}", "(x%2Bx%2B)%2By"])
def test_a_hostile_pattern_takes_no_longer_than_any_other(pattern: str) -> None:
    rows = named(*("a" * 255 + "!" for _ in range(50)))
    began_s = time.process_time()
    ask(rows, f"page=1&name={pattern}&use_regex=true")
    assert time.process_time() - began_s < 5  # a backtracking engine would take longer than the universe has been there


@pytest.mark.parametrize("pattern", ["(?=a)", "(a)\\1", "a{1,100000}", "[", "*", "(?P<", "x" * 100_000])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    rows = named("a")
    assert refusal(rows, f"page=1&name={pattern}&use_regex=true").status == 400


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_choose_fields_nested_ones_too() -> None:
    row = {"name": "q", "stats": {"rate": 1, "sum": 2, "deep": {"er": None}}, "rest": [1]}
    assert ask([row], "columns=name") == [{"name": "q"}]
    assert ask([row], "columns=stats.rate,stats.deep.er,name") == [
        {"name": "q", "stats": {"rate": 1, "deep": {"er": None}}}
    ]
    assert ask([row], "columns=nosuch,stats.nosuch,name.x") == [{}]
    assert ask([row], "columns=stats,stats.rate") == [{"stats": row["stats"]}]
    assert ask([row], "columns=,") == [row]
    assert ask([row], "page=1&columns=rest")["items"] == [{"rest": [1]}]


def test_choosing_columns_changes_nothing_of_what_was_described() -> None:
    row = {"name": "q", "stats": {"rate": 1, "deep": {"er": 2}}}
    before = json.dumps(row)
    ask([row], "columns=stats,stats.rate,stats.deep.er")
    assert json.dumps(row) == before


def test_a_name_that_is_not_utf_8_is_shown_in_some_way() -> None:
    (row,) = ask(named("caf\udce9"))
    assert row["name"].startswith("caf")


# --- while the peer takes it ------------------------------------------------------------------------------------------


def asked(query: str, rows: list[Row], described: list[str], gone: set[str]) -> tuple[Asked, Response]:
    def describe(row: Row) -> Row:
        described.append(row["name"])
        return row

    call = Asked(query)

    async def main() -> Response:
        keys = {"name": lambda row: row["name"]}
        return await answer_list(cast(Call, call), rows, describe, keys, lambda row: row["name"] in gone)

    return call, trio.run(main)


def test_rows_are_described_when_the_peer_takes_them_and_what_has_gone_is_left_out() -> None:
    described: list[str] = []
    gone: set[str] = set()
    for query in ("", "sort=name", "sort=name&sort_reverse=false"):
        described.clear()
        gone.clear()
        call, answer = asked(query, named(*(f"q{number:04}" for number in range(2000))), described, gone)
        assert answer.pieces is not None and not described
        taken = [next(answer.pieces) for _ in range(10)]
        assert len(described) <= 10
        gone |= {f"q{number:04}" for number in range(20, 2000)}
        rows = json.loads(b"".join([*taken, *answer.pieces]))
        assert names(rows) == [f"q{number:04}" for number in range(20)]
        # Sorting and filtering is work that others wait for; describing is not.
        assert call.works == bool(query) and (call.held >= 8 * 2000) == bool(query)


@pytest.mark.parametrize("query", ["sort=detail", "sort=detail&sort_reverse=true", "page=1&sort=detail"])
def test_what_goes_while_it_is_sorted_is_not_described(query: str) -> None:
    """A vhost or user that is gone has no description: the others are listed all the same."""
    described: list[str] = []
    _, answer = asked(query, named("a", "b", "c"), described, {"b"})
    rows = json.loads(whole(answer))
    assert sorted(names(rows["items"] if "page" in query else rows)) == ["a", "c"]
    assert "b" not in described


def test_a_page_counts_the_rows_that_are_there() -> None:
    rows = named("a", "b", "c", "d")
    _, answer = asked("page=1&page_size=3", rows, [], {"b"})
    page = json.loads(whole(answer))
    assert names(page["items"]) == ["a", "c"]
    assert (page["item_count"], page["filtered_count"], page["total_count"], page["page_count"]) == (2, 4, 4, 2)


@pytest.mark.parametrize("reverse", [False, True])
def test_long_lists_are_sorted_like_short_ones(reverse: bool) -> None:
    keys = [(number * 7919) % 1009 for number in range(3 * RUN + 5)]

    async def main(most: int | None) -> list[int]:
        return await in_order(range(len(keys)), keys.__getitem__, reverse=reverse, most=most)

    expected = sorted(range(len(keys)), key=lambda at: (keys[at], at), reverse=reverse)
    assert trio.run(main, None) == expected
    assert trio.run(main, 10) == expected[:10]


# --- turns ------------------------------------------------------------------------------------------------------------


def test_others_have_their_turn_while_a_long_list_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SLICE_S", 0.0)
    turns: list[int] = []

    async def main() -> None:
        async def count() -> None:
            while True:
                turns.append(1)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            rows = named(*map(str, range(100)))
            query = cast(Call, Asked("page=1&name=1&sort=v"))
            answer = await answer_list(query, rows, lambda row: row, {"name": lambda row: row["name"]})
            assert len(json.loads(whole(answer))["items"]) == 19
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(turns) >= 100
