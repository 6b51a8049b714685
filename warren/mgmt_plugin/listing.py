"""Lists as RabbitMQ's API gives them: sorted, filtered by name, in pages, and with chosen columns.

    sort, sort_reverse                       by any field, nested ones with dots
    page, page_size, name, use_regex         an object with `items` instead of an array
    columns                                  fields that are wanted, nested ones with dots

1. An object is described in full only when it is on the page, or when it is sorted by a field that `keys` has not.
2. A long list is worked on in pieces of about a millisecond; the broker has its turns in between.

Source: RabbitMQ, management HTTP API; texts of refusals from 3.10.8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import trio

from warren.mgmt_plugin.http import HttpError, Response
from warren.mgmt_plugin.routes import Call, bad_request, encode_json
from warren.queues.pattern import Pattern

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
SLICE_S: Final = 0.001
QUERY: Final = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns")

Item = TypeVar("Item")
Described = dict[str, Any]


class Breather:
    """Lets the broker have a turn whenever about a millisecond has passed."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def breathe(self) -> None:
        """Call this between small pieces of work."""
        if time.perf_counter() - self._began_s > SLICE_S:
            await trio.lowlevel.checkpoint()
            self._began_s = time.perf_counter()


async def answer_list(
    call: Call,
    items: Sequence[Item],
    describe: Callable[[Item], Described],
    keys: Mapping[str, Callable[[Item], object]],
) -> Response:
    """Answer with a list of `items` the way the query string asks.

    `keys` gives fields of an item that need no description of it; ``name`` is one of them where names can be filtered.

    Raises:
        HttpError: 400, the page, the name or the size makes no sense.
    """
    query = call.query
    breather = Breather()
    paged = "page" in query
    page, page_size = _page_of(query) if paged else (1, 0)
    found = list(items)
    if query.get("name") and "name" in keys:
        found = await _with_name(found, query, keys["name"], breather)
    filtered_count = len(found)
    columns = [column.split(".") for column in query.get("columns", "").split(",") if column]
    if query.get("sort"):
        found = await _sorted(found, query, describe, keys, breather)
    if paged:
        page_count = max(1, -(-filtered_count // page_size))
        if page > page_count:
            raise HttpError(
                400,
                "page_out_of_range",
                f"Page out of range, page: {page} page size: {page_size}, len: {filtered_count}",
            )
        found = found[(page - 1) * page_size : page * page_size]
    rows: list[bytes] = []
    for item in found:
        described = describe(item)
        if columns:
            described = _chosen(described, columns)
        rows.append(encode_json(described))
        await breather.breathe()
    array = b"[" + b",".join(rows) + b"]"
    if not paged:
        return Response(200, array)
    head = msgspec.json.encode(
        {
            "filtered_count": filtered_count,
            "item_count": len(found),
            "page": page,
            "page_count": page_count,
            "page_size": page_size,
            "total_count": len(items),
        }
    )
    return Response(200, head[:-1] + b',"items":' + array + b"}")


def with_columns(described: Described, query: Mapping[str, str]) -> Described:
    """Return a description with the columns only that the query string asks for."""
    columns = [column.split(".") for column in query.get("columns", "").split(",") if column]
    return _chosen(described, columns) if columns else described


def answer_rows(call: Call, rows: Sequence[Described]) -> Described | list[Described]:
    """Return a short list, of which nothing but columns and order can be asked for."""
    found = list(rows)
    if call.query.get("sort"):
        path = call.query["sort"].split(".")
        found.sort(key=lambda row: order(dig(row, path)), reverse=call.query.get("sort_reverse") == "true")
    columns = [column.split(".") for column in call.query.get("columns", "").split(",") if column]
    if columns:
        found = [_chosen(row, columns) for row in found]
    return found


def order(value: object) -> tuple[int, Any]:
    """Return a key by which values of any type can be sorted: missing ones first, then numbers, then texts."""
    if value is None:
        return (0, 0)
    if isinstance(value, int | float):
        return (1, value)
    if isinstance(value, str):
        return (2, value)
    return (3, str(value))


def dig(row: object, path: Sequence[str]) -> object:
    """Return a nested field of a description, None when it is not there."""
    for part in path:
        if not isinstance(row, dict):
            return None
        row = row.get(part)
    return row


async def _with_name(
    items: list[Item], query: Mapping[str, str], name_of: Callable[[Item], object], breather: Breather
) -> list[Item]:
    wanted = query["name"]
    matches: Callable[[str], bool]
    if query.get("use_regex") == "true":
        try:
            matches = Pattern(wanted).matches
        except ValueError as error:
            raise bad_request(f"Pagination parameters are invalid: {error}") from None
    else:
        lower = wanted.lower()
        matches = lambda name: lower in name.lower()  # noqa: E731
    found: list[Item] = []
    for item in items:
        if matches(str(name_of(item))):
            found.append(item)
        await breather.breathe()
    return found


async def _sorted(
    items: list[Item],
    query: Mapping[str, str],
    describe: Callable[[Item], Described],
    keys: Mapping[str, Callable[[Item], object]],
    breather: Breather,
) -> list[Item]:
    column = query["sort"]
    key_of = keys.get(column)
    path = column.split(".")
    ranked: list[tuple[tuple[int, Any], int]] = []
    for at, item in enumerate(items):
        value = key_of(item) if key_of is not None else dig(describe(item), path)
        ranked.append((order(value), at))
        await breather.breathe()
    ranked.sort(reverse=query.get("sort_reverse") == "true")
    return [items[at] for _, at in ranked]


def _page_of(query: Mapping[str, str]) -> tuple[int, int]:
    try:
        page = int(query["page"])
        size = int(query.get("page_size") or PAGE_SIZE)
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
