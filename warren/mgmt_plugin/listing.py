"""Lists as RabbitMQ's API gives them: sorted, filtered by name, in pages, and with chosen columns.

    sort, sort_reverse                       by any field, nested ones with dots
    sort_natural                             numbers in texts count, case does not: q2 before Q10; up to `NATURAL_MAX`
    page, page_size, name, use_regex         an object with `items` instead of an array; case does not matter in names,
                                             and without a page they are not filtered
    columns                                  fields that are wanted, nested ones with dots

1. An object is described in full only when it is on the page, or when the list is sorted by a field that `keys` lacks.
2. A long list is worked on in pieces of about a millisecond; the broker has its turns in between.
3. Rows are described while the peer takes the answer, each in its current state; objects that are gone by then are left
   out. Meanwhile memory holds the references of a list, and one row.
4. Filtering or sorting more than `MANY` items is long work.

Source: RabbitMQ, management HTTP API; texts of refusals from 3.10.8.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final, TypeVar

from warren.mgmt_plugin.http.json_pieces import Rows, encode_json
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.routes import Call, bad_request
from warren.vhosts.pattern import Pattern

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
MANY: Final = 1000
NATURAL_MAX: Final = 10_000
# Memory of a reference, and of a rank while a list is sorted.
REFERENCE_BYTES: Final = 8
RANK_BYTES: Final = 200
RUN: Final = 256
QUERY: Final = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "sort_natural", "columns")
_NUMBER: Final = re.compile("0*([0-9]+)")

Item = TypeVar("Item")
Described = dict[str, Any]


def _never(item: object) -> bool:
    return False


async def answer_list(
    call: Call,
    items: Sequence[Item],
    describe: Callable[[Item], Described],
    keys: Mapping[str, Callable[[Item], object]],
    gone: Callable[[Item], bool] = _never,
) -> Response:
    """Answer with a list of `items`, which must not change, the way the query string asks.

    `keys` gives fields of an item that need no description of it; ``name`` is one of them where names can be filtered.
    Items that are `gone` when their turn comes are left out.

    Raises:
        HttpError: 400, the page, the name or the size makes no sense; 503, there are too many long answers.
    """
    query = call.query
    paged = "page" in query
    page, page_size = _page_of(query) if paged else (1, len(items))
    found = items
    filters = paged and bool(query.get("name")) and "name" in keys
    sorts = bool(query.get("sort"))
    if len(items) > MANY and (filters or sorts):
        await call.request.begin_work()
        call.request.hold(len(items) * (RANK_BYTES if sorts else REFERENCE_BYTES))
    if filters:
        found = await _with_name(found, query, keys["name"])
    filtered_count = len(found)
    if paged:
        _check_page(page, page_size, filtered_count)
    if sorts:
        found = await _sorted(found, query, describe, keys, gone, page * page_size)
    if not paged:
        return Response(200, pieces=_rows(query, found, describe, gone).pieces())
    found = found[(page - 1) * page_size : page * page_size]
    return _page_response(_rows(query, found, describe, gone), page, page_size, filtered_count, len(items))


def plain_page(call: Call) -> tuple[int, int] | None:
    """Return number and size of the page that is asked for of a list in its own order; None: another order, or all.

    Raises:
        HttpError: 400, they make no sense.
    """
    return _page_of(call.query) if "page" in call.query and not call.query.get("sort") else None


async def answer_page(
    call: Call,
    page: tuple[int, int],
    count: int,
    part: Callable[[int, int], Awaitable[Sequence[Item]]],
    describe: Callable[[Item], Described],
    gone: Callable[[Item], bool] = _never,
) -> Response:
    """Answer with a `plain_page` of a list of `count` items, any `part` of which can be had by start and length.

    Raises:
        HttpError: 400, there is no such page; 503, there are too many long answers.
    """
    number, size = page
    _check_page(number, size, count)
    found = await part((number - 1) * size, size)
    return _page_response(_rows(call.query, found, describe, gone), number, size, count, count)


def _check_page(page: int, page_size: int, count: int) -> None:
    if page > max(1, -(-count // page_size)):
        text = f"Page out of range, page: {page} page size: {page_size}, len: {count}"
        raise HttpError(400, "page_out_of_range", text)


def _rows(
    query: Mapping[str, str],
    items: Sequence[Item],
    describe: Callable[[Item], Described],
    gone: Callable[[Item], bool],
) -> Rows:
    columns = [column.split(".") for column in query.get("columns", "").split(",") if column]
    return Rows(items, (lambda item: _chosen(describe(item), columns)) if columns else describe, gone)


def _page_response(rows: Rows, page: int, page_size: int, filtered_count: int, total_count: int) -> Response:
    head = encode_json({"filtered_count": filtered_count})

    def tail() -> bytes:
        return encode_json(
            {
                "item_count": rows.count,
                "page": page,
                "page_count": max(1, -(-filtered_count // page_size)),
                "page_size": page_size,
                "total_count": total_count,
            }
        )

    return Response(200, pieces=_page_pieces(head, rows, tail))


def _page_pieces(head: bytes, rows: Rows, tail: Callable[[], bytes]) -> Iterator[bytes]:
    yield head[:-1] + b',"items":'
    yield from rows.pieces()
    yield b"," + tail()[1:]


def with_columns(described: Described, query: Mapping[str, str]) -> Described:
    """Return a description with the columns only that the query string asks for."""
    columns = [column.split(".") for column in query.get("columns", "").split(",") if column]
    return _chosen(described, columns) if columns else described


def order(value: object) -> tuple[int, Any]:
    """Return a key by which values of any type can be sorted: missing ones first, then numbers, then texts."""
    if value is None:
        return (0, 0)
    if isinstance(value, int | float):
        return (1, value)
    if isinstance(value, str):
        return (2, value)
    return (3, str(value))


def natural(value: object) -> tuple[int, Any]:
    """Return the same for an order in which numbers in texts count as such, and case does not."""
    return order(_NUMBER.sub(_with_length, value.lower()) if isinstance(value, str) else value)


def _with_length(number: re.Match[str]) -> str:
    """Return digits after their number, so that the order of these texts is that of the numbers."""
    digits = number[1]
    return f"{len(digits)}{digits}" if len(digits) < 9 else f"9{len(digits):05}{digits}"


def dig(row: object, path: Sequence[str]) -> object:
    """Return a nested field of a description, None when it is not there."""
    for part in path:
        if not isinstance(row, dict):
            return None
        row = row.get(part)
    return row


async def _with_name(items: Sequence[Item], query: Mapping[str, str], name_of: Callable[[Item], object]) -> list[Item]:
    wanted = query["name"]
    matches: Callable[[str], bool]
    if query.get("use_regex") == "true":
        try:
            matches = Pattern(wanted, ignores_case=True).matches
        except ValueError as error:
            raise bad_request(f"Pagination parameters are invalid: {error}") from None
    else:
        lower = wanted.lower()
        matches = lambda name: lower in name.lower()  # noqa: E731
    found: list[Item] = []
    for item in items:
        if matches(str(name_of(item))):
            found.append(item)
        await give_way()
    return found


async def in_order(
    items: Sequence[Item],
    key: Callable[[Item], Any],
    *,
    reverse: bool = False,
    most: int | None = None,
) -> list[Item]:
    """Return `items`, or the first `most` of them, sorted by `key` and then by their places, in pieces."""
    runs: list[list[tuple[Any, int]]] = []
    for start in range(0, len(items), RUN):
        run: list[tuple[Any, int]] = []
        for at in range(start, min(start + RUN, len(items))):
            run.append((key(items[at]), at))
            await give_way()
        run.sort(reverse=reverse)
        runs.append(run)
    found: list[Item] = []
    for _, at in islice(merge(*runs, reverse=reverse), most):
        found.append(items[at])
        await give_way()
    for run in runs:
        run.clear()  # to free all at once takes long as well
        await give_way()
    return found


async def _sorted(
    items: Sequence[Item],
    query: Mapping[str, str],
    describe: Callable[[Item], Described],
    keys: Mapping[str, Callable[[Item], object]],
    gone: Callable[[Item], bool],
    most: int,
) -> list[Item]:
    column = query["sort"]
    key_of = keys.get(column)
    path = column.split(".")
    order_of = natural if query.get("sort_natural") == "true" and len(items) <= NATURAL_MAX else order

    def rank(item: Item) -> tuple[int, Any]:
        if gone(item):
            return order(None)  # it cannot be described
        return order_of(key_of(item) if key_of is not None else dig(describe(item), path))

    return await in_order(items, rank, reverse=query.get("sort_reverse") == "true", most=most)


def _page_of(query: Mapping[str, str]) -> tuple[int, int]:
    try:
        page = integer(query["page"])
        size = integer(query.get("page_size") or str(PAGE_SIZE))
    except ValueError:
        raise bad_request("Pagination parameters are invalid") from None
    if page < 1 or not 1 <= size <= PAGE_SIZE_MAX:
        shown = size if "page_size" in query else "undefined"
        raise HttpError(
            400,
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {page}, page size {shown}",
        )
    return page, size


def _chosen(row: Described, columns: Sequence[Sequence[str]]) -> Described:
    chosen: Described = {}
    for path in columns:
        value = dig(row, path)
        if value is None and not _has(row, path):
            continue
        target = chosen
        for part in path[:-1]:
            inner = target.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            target = inner
        else:
            target[path[-1]] = value
    return chosen


def _has(row: object, path: Sequence[str]) -> bool:
    for part in path:
        if not isinstance(row, dict) or part not in row:
            return False
        row = row[part]
    return True
